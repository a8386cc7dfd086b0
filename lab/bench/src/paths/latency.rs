//! Latency of every iteration through many channels of one association, while alternates are specified, loaded and migrated to
//! again and again, against none (figure 7 of the paper); and by size while a rail is cut in mid-series, through many channels
//! and between many endpoints (figure 8).

use std::time::Duration;

use ropewalk_net::migration::{By, Policy, Wanted, What};
use ropewalk_netns::{Fault, FaultKind, Topology, TopologyConfig};

use crate::lab::{Options, alternate, quoted, version};
use crate::paths::guide::Kin;
use crate::paths::pair::{Many, Pair, allow_files};
use crate::paths::verdict::{Verdict, listed};
use crate::report::Outcome;
use crate::series::{OURS, spread};

const TRANSITION: &str = "latency.transition.tcp";
/// Bytes of the messages of figure 7.
const BYTES: usize = 128;
const CHANNELS: [u64; 3] = [1, 64, 512];
/// Channels, or endpoints, of figure 8, also where it has to be quick; and its sizes.
const COUNTS_CUT: [u64; 2] = [512, 64];
const SIZES: [usize; 8] = [1, 16, 128, 1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Iterations before anything is measured.
const WARM: u64 = 100;
/// Messages through each channel, or of each endpoint, of figure 8.
const ROUNDS_CUT: u64 = 2;
/// The most milliseconds that a message and its answer may take over a rail that is cut.
const REACH_MS: f64 = 30.0;
/// So many microseconds are late for an iteration beside a cut.
const LATE_US: f64 = 5000.0;

/// The names of all rows.
pub fn rows() -> Vec<String> {
    [vec![TRANSITION.to_string()], Many::ALL.map(cut_row).to_vec()].concat()
}

/// What they measure.
pub fn kin() -> Vec<Kin> {
    vec![
        Kin {
            names: TRANSITION,
            what: "latency of every iteration while traffic moves, beside none (figure 7)",
            reach: String::new(),
        },
        Kin {
            names: "latency.cut.MANY.tcp",
            what: "latency by size while a rail is cut, with 512 of them: the mean, and the \
                   iteration that meets the cut apart (figure 8)",
            reach: format!("that one {REACH_MS} ms there and back"),
        },
    ]
}

fn cut_row(many: Many) -> String {
    format!("latency.cut.{}.tcp", many.name())
}

/// Measures the rows that are wanted.
///
/// # Errors
/// An endpoint cannot be opened, or there can be no network namespaces; or a message was lost.
pub fn latency(options: &Options, emit: &mut dyn FnMut(&Outcome)) -> anyhow::Result<()> {
    if options.wanted(TRANSITION) {
        transitions(options, emit);
    }
    let wanted = |many: &Many| options.wanted(&cut_row(*many));
    Many::ALL.into_iter().filter(wanted).try_for_each(|many| cuts(many, options, emit))
}

/// The latencies of a run, in microseconds, in the order of the iterations; and what happened before which of them.
struct Run {
    latencies: Vec<f64>,
    events: Vec<(usize, &'static str)>,
}

impl Run {
    fn mean(&self) -> f64 {
        self.latencies.iter().sum::<f64>() / self.latencies.len().max(1) as f64
    }

    fn longest(&self) -> f64 {
        self.latencies.iter().copied().fold(0.0, f64::max)
    }

    fn median(&self) -> f64 {
        spread(self.latencies.clone()).0
    }
}

/// Specifies, loads and migrates, and begins anew, as events say.
struct Mover {
    is_begun: bool,
}

impl Mover {
    fn act(&mut self, pair: &Pair, at: usize, events: &mut Vec<(usize, &'static str)>) {
        let (endpoint, peer) = pair.first();
        if !self.is_begun {
            self.is_begun = endpoint.specify_path(peer, Wanted::default()).is_ok();
            if self.is_begun {
                events.push((at, "load"));
                endpoint.load_paths(&[peer], By::Event);
            }
        }
        while let Some(event) = endpoint.next_path_event() {
            match event.what {
                What::Armed { .. } => {
                    events.push((at, "armed"));
                    if endpoint.migrate_path(peer).is_ok() {
                        events.push((at, "migrated"));
                    }
                    self.is_begun = false;
                }
                What::ArmFailed { .. } | What::Disarmed { .. } => self.is_begun = false,
                _ => {}
            }
        }
    }
}

fn run_transitions(channels: u64, iterations: u64, moves: bool) -> anyhow::Result<Run> {
    let pair = Pair::within_host(BYTES, channels, Policy::Nothing)?;
    for number in 0..WARM {
        pair.ping(number % channels)?;
    }
    let mut run = Run { latencies: Vec::new(), events: Vec::new() };
    let mut mover = Mover { is_begun: false };
    for number in 0..iterations {
        if moves {
            mover.act(&pair, number as usize, &mut run.events);
        }
        run.latencies.push(pair.ping(number % channels)?);
    }
    Ok(run)
}

fn transitions(options: &Options, emit: &mut dyn FnMut(&Outcome)) {
    let iterations = options.amount(5000, 1000);
    let counts = if options.quick { &CHANNELS[..1] } else { &CHANNELS[..] };
    for channels in counts {
        let names = ["without", "with"].map(|word| format!("{TRANSITION}: {channels}, {word}"));
        let found = alternate(options, options.runs(), &names, |turn, _| {
            run_transitions(*channels, iterations, turn == 1)
        });
        for (runs, word) in found.iter().zip(["none", "transitions"]) {
            let Some(first) = runs.first() else { continue };
            let means = runs.iter().map(Run::mean).collect();
            let mut params = vec![
                ("channels", channels.to_string()),
                ("bytes", BYTES.to_string()),
                ("beside", quoted(word)),
                ("placement", quoted("one process")),
            ];
            params.push(("median_us", format!("{:.2}", first.median())));
            params.push((
                "moves",
                first.events.iter().filter(|it| it.1 == "migrated").count().to_string(),
            ));
            params.push(("iterations_us", list(&first.latencies)));
            params.push(("events", events(&first.events)));
            let longest = runs.iter().map(Run::longest).fold(0.0, f64::max);
            emit(&outcome(TRANSITION, params, means, longest));
        }
    }
}

/// A run in the middle of which a rail may be cut.
struct CutRun {
    /// The latencies in microseconds but for that of the iteration in the middle, which is the first one over a rail that was
    /// cut.
    others: Vec<f64>,
    middle: f64,
    /// Paths that near ends suspected.
    suspected: u64,
}

impl CutRun {
    fn mean(&self) -> f64 {
        self.others.iter().sum::<f64>() / self.others.len().max(1) as f64
    }

    fn longest(&self) -> f64 {
        self.others.iter().copied().fold(0.0, f64::max)
    }

    /// Other iterations that the cut made late, too: each endpoint finds out itself, or is told in time.
    fn late(&self) -> usize {
        self.others.iter().filter(|us| **us >= LATE_US).count()
    }
}

fn run_cut(
    net: &Topology,
    bytes: usize,
    (many, count): (Many, u64),
    is_cut: bool,
) -> anyhow::Result<CutRun> {
    let pair = Pair::between([net.host(0), net.host(1)], bytes, (many, count))?;
    for number in 0..count {
        pair.ping(number)?;
    }
    // The default policy arms the other path.
    pair.rest(Duration::from_millis(50))?;
    let mut run = CutRun { others: Vec::new(), middle: 0.0, suspected: pair.suspected() };
    let mut fault = None;
    for number in 0..ROUNDS_CUT * count {
        // Half of the channels, or of the endpoints, still have messages before the cut.
        let is_middle = number == ROUNDS_CUT * count / 2;
        if is_middle && is_cut {
            let rail = pair.rail(number % count)?;
            fault = Some(net.inject(&Fault::new(FaultKind::Cut, 0, rail))?);
        } else {
            pair.pass()?;
        }
        let latency = pair.ping(number % count)?;
        match is_middle {
            true => run.middle = latency,
            false => run.others.push(latency),
        }
    }
    run.suspected = pair.suspected() - run.suspected;
    drop(pair);
    if let Some(fault) = fault {
        fault.mend()?;
    }
    Ok(run)
}

fn cuts(many: Many, options: &Options, emit: &mut dyn FnMut(&Outcome)) -> anyhow::Result<()> {
    allow_files();
    let config = TopologyConfig { hosts: 2, rails: 2, ..TopologyConfig::default() };
    let net = Topology::new(&config)?;
    // This thread calls: it ends with the measurement.
    let measured = std::thread::scope(|scope| {
        let work = scope.spawn(|| -> anyhow::Result<Vec<Outcome>> {
            net.host(0).namespace().enter()?;
            Ok(measure_cuts(many, options, &net))
        });
        work.join().map_err(|_| anyhow::anyhow!("the measuring thread panicked"))?
    })?;
    measured.iter().for_each(emit);
    Ok(())
}

fn measure_cuts(many: Many, options: &Options, net: &Topology) -> Vec<Outcome> {
    let sizes = if options.quick { &SIZES[2..3] } else { &SIZES[..] };
    let count = COUNTS_CUT[usize::from(options.quick)];
    let mut outcomes = Vec::new();
    for bytes in sizes {
        let names =
            ["without", "with"].map(|word| format!("{}: {bytes} bytes, {word}", cut_row(many)));
        let found = alternate(options, options.runs(), &names, |turn, _| {
            run_cut(net, *bytes, (many, count), turn == 1)
        });
        outcomes.extend(cut_outcomes((many, count), *bytes, &found));
    }
    outcomes
}

/// The outcomes of one size: without a cut, and with one. Values are means of the iterations that do not meet it.
fn cut_outcomes((many, count): (Many, u64), bytes: usize, found: &[Vec<CutRun>]) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for (runs, word) in found.iter().zip(["none", "cut"]).filter(|(runs, _)| !runs.is_empty()) {
        let column = |of: &dyn Fn(&CutRun) -> f64| spread(runs.iter().map(of).collect());
        let (at_cut, _, at_cut_most) = column(&|run| run.middle);
        let every: Vec<f64> = runs.iter().flat_map(|run| run.others.iter().copied()).collect();
        let mut params = vec![
            (many.name(), count.to_string()),
            ("bytes", bytes.to_string()),
            ("beside", quoted(word)),
            ("placement", quoted("one process, two namespaces")),
            ("iterations", (ROUNDS_CUT * count).to_string()),
            // The iteration that meets the cut, and the same one without it.
            ("at_cut_us", format!("{at_cut:.1}")),
            ("at_cut_most_us", format!("{at_cut_most:.1}")),
            ("median_us", format!("{:.2}", spread(every).0)),
            ("late", format!("{:.0}", column(&|run| run.late() as f64).0)),
            ("suspected", format!("{:.0}", column(&|run| run.suspected as f64).0)),
        ];
        // There and back.
        let middle: Vec<f64> = runs.iter().map(|run| run.middle * 2.0 / 1e3).collect();
        if word == "cut" {
            params.extend(Verdict::at_most(REACH_MS, "ms", &middle).params());
        }
        params.push(("trials", listed(&middle)));
        let means = runs.iter().map(CutRun::mean).collect();
        let longest = runs.iter().map(CutRun::longest).fold(0.0, f64::max);
        let ratios: Vec<f64> =
            runs.iter().zip(&found[0]).map(|(run, other)| run.mean() / other.mean()).collect();
        let ratio = (word == "cut" && !ratios.is_empty()).then(|| (spread(ratios).0, "none"));
        outcomes.push(Outcome { ratio, ..outcome(&cut_row(many), params, means, longest) });
    }
    outcomes
}

fn list(values: &[f64]) -> String {
    let words: Vec<String> = values.iter().map(|value| format!("{value:.1}")).collect();
    format!("[{}]", words.join(","))
}

fn events(events: &[(usize, &'static str)]) -> String {
    let words: Vec<String> = events.iter().map(|(at, word)| format!("[{at},\"{word}\"]")).collect();
    format!("[{}]", words.join(","))
}

/// A figure whose values are the means of runs, and whose tail is the longest iteration.
fn outcome(
    row: &str,
    params: Vec<(&'static str, String)>,
    means: Vec<f64>,
    longest: f64,
) -> Outcome {
    let runs = means.len();
    let (median, min, max) = spread(means);
    Outcome {
        scenario: row.to_string(),
        system: OURS,
        version: version(),
        medium: "tcp",
        params,
        metric: "latency",
        unit: "us",
        median,
        min,
        max,
        p99: longest,
        runs,
        ratio: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_iteration_is_measured_while_traffic_moves_to_and_fro() {
        let run = run_transitions(4, 4000, true).unwrap();
        assert_eq!(run.latencies.len(), 4000);
        let count = |word: &str| run.events.iter().filter(|(_, it)| *it == word).count();
        assert!(count("migrated") >= 2 && count("armed") >= count("migrated"), "{:?}", run.events);
        let quiet = run_transitions(4, 200, false).unwrap();
        assert!(quiet.events.is_empty() && quiet.median() > 0.0);
    }

    #[test]
    fn the_iteration_that_meets_a_cut_is_apart_from_the_mean_of_the_others() {
        let run = |middle: f64| CutRun { others: vec![10.0, 20.0, 6000.0], middle, suspected: 2 };
        let found = [vec![run(15.0)], vec![run(9000.0), run(16_000.0)]];
        let outcomes = cut_outcomes((Many::Endpoints, 512), 128, &found);
        assert_eq!(outcomes.len(), 2);
        let [none, cut] = [0, 1].map(|place| &outcomes[place]);
        assert_eq!((none.median, cut.median), (2010.0, 2010.0));
        assert_eq!((none.param("at_cut_us"), cut.param("endpoints")), ("15.0", "512"));
        assert_eq!((cut.param("late"), cut.param("suspected")), ("1", "2"));
        // 18 and 32 ms there and back.
        assert_eq!(cut.param("verdict"), "reach 30 ms: 1 of 2 above");
        assert_eq!((none.ratio, cut.ratio), (None, Some((1.0, "none"))));
    }
}
