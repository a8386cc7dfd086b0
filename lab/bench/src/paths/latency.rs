//! Latency through many channels of one association: of every iteration while alternates are specified, loaded and migrated to
//! again and again, against none (figure 7 of the paper); and by size while a rail is cut in mid-series (figure 8).

use std::time::Duration;

use ropewalk_net::migration::{By, Policy, Wanted, What};
use ropewalk_netns::{Fault, FaultKind, Topology, TopologyConfig};

use crate::lab::{Options, alternate, quoted, version};
use crate::paths::pair::Pair;
use crate::report::Outcome;
use crate::series::{OURS, spread};

const TRANSITION: &str = "latency.transition.tcp";
const CUT: &str = "latency.cut.tcp";
/// Bytes of the messages of figure 7.
const BYTES: usize = 128;
const CHANNELS: [u64; 3] = [1, 64, 512];
/// Channels of figure 8, and its sizes.
const CHANNELS_CUT: u64 = 512;
const SIZES: [usize; 8] = [1, 16, 128, 1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Iterations before anything is measured.
const WARM: u64 = 100;

/// The names of all rows.
pub fn rows() -> Vec<String> {
    [TRANSITION, CUT].map(str::to_string).to_vec()
}

/// Measures the rows that are wanted.
///
/// # Errors
/// An endpoint cannot be opened, or there can be no network namespaces; or a message was lost.
pub fn latency(options: &Options, emit: &mut dyn FnMut(&Outcome)) -> anyhow::Result<()> {
    if options.wanted(TRANSITION) {
        transitions(options, emit);
    }
    if options.wanted(CUT) {
        cuts(options, emit)?;
    }
    Ok(())
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

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.latencies.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
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
        let (endpoint, peer) = pair.near();
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
            emit(&outcome(
                TRANSITION,
                params,
                means,
                runs.iter().map(Run::longest).fold(0.0, f64::max),
            ));
        }
    }
}

fn run_cut(net: &Topology, bytes: usize, iterations: u64, is_cut: bool) -> anyhow::Result<Run> {
    let pair = Pair::between([net.host(0), net.host(1)], bytes, CHANNELS_CUT)?;
    for number in 0..WARM.min(iterations) {
        pair.ping(number % CHANNELS_CUT)?;
    }
    // The default policy arms the other path.
    pair.rest(Duration::from_millis(50))?;
    let mut run = Run { latencies: Vec::new(), events: Vec::new() };
    let mut fault = None;
    for number in 0..iterations {
        if is_cut && number == iterations / 2 {
            run.events.push((number as usize, "cut"));
            fault = Some(net.inject(&Fault::new(FaultKind::Cut, 0, 0))?);
        }
        run.latencies.push(pair.ping(number % CHANNELS_CUT)?);
    }
    drop(pair);
    if let Some(fault) = fault {
        fault.mend()?;
    }
    Ok(run)
}

fn cuts(options: &Options, emit: &mut dyn FnMut(&Outcome)) -> anyhow::Result<()> {
    let config = TopologyConfig { hosts: 2, rails: 2, ..TopologyConfig::default() };
    let net = Topology::new(&config)?;
    // This thread calls: it ends with the measurement.
    let measured = std::thread::scope(|scope| {
        let work = scope.spawn(|| -> anyhow::Result<Vec<Outcome>> {
            net.host(0).namespace().enter()?;
            Ok(measure_cuts(options, &net))
        });
        work.join().map_err(|_| anyhow::anyhow!("the measuring thread panicked"))?
    })?;
    measured.iter().for_each(emit);
    Ok(())
}

fn measure_cuts(options: &Options, net: &Topology) -> Vec<Outcome> {
    let iterations = options.amount(400, 100);
    let sizes = if options.quick { &SIZES[2..3] } else { &SIZES[..] };
    let mut outcomes = Vec::new();
    for bytes in sizes {
        let names = ["without", "with"].map(|word| format!("{CUT}: {bytes} bytes, {word}"));
        let found = alternate(options, options.runs(), &names, |turn, _| {
            run_cut(net, *bytes, iterations, turn == 1)
        });
        for (runs, word) in found.iter().zip(["none", "cut"]) {
            let Some(first) = runs.first() else { continue };
            let means = runs.iter().map(Run::mean).collect();
            let params = vec![
                ("channels", CHANNELS_CUT.to_string()),
                ("bytes", bytes.to_string()),
                ("beside", quoted(word)),
                ("placement", quoted("one process, two namespaces")),
                ("iterations", iterations.to_string()),
                ("median_us", format!("{:.2}", first.median())),
                ("longest_us", format!("{:.0}", first.longest())),
                // The iteration that meets the cut, and the same one without it.
                ("at_cut_us", format!("{:.1}", first.latencies[iterations as usize / 2])),
                ("p99_us", format!("{:.2}", first.sorted()[first.latencies.len() * 99 / 100])),
                ("events", events(&first.events)),
            ];
            let longest = runs.iter().map(Run::longest).fold(0.0, f64::max);
            outcomes.push(outcome(CUT, params, means, longest));
        }
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
}
