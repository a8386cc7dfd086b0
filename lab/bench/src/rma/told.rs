//! The report of a row: the figure of each party, conditions, ratios with their intervals, pictures.

use ropewalk_netns::Topology;

use super::case::{CREATED, Case, MESSAGES, ONE_ORIGIN, PUT, Program, Served, median};
use super::cost::Cost;
use super::peers::{self, Peers};
use super::place::{self, MTU};
use super::{Measured, Party};
use crate::host;
use crate::lab::{quoted, version};
use crate::report::{self, Outcome};
use crate::series::{interval, spread};

/// The party that ratios are of.
const OURS: &str = "direct";
/// The highest cost of an open window that nobody uses: percent of a processor, and the time of a message as a
/// multiple of that without one.
const IDLE_PERCENT: f64 = 0.5;
const POLLING_RATIO: f64 = 1.05;
/// The longest time of a target's loops beside an origin, without the processor time of who serves: a multiple of that alone.
const SERVED_RATIO: f64 = 1.05;
/// The least bandwidth of several origins, as a multiple of that of one.
const ORIGINS_RATIO: f64 = 0.9;
/// The longest time of an accumulate, and of a strided put, as a multiple of that of a put of as many bytes.
const PUT_RATIO: f64 = 1.25;
/// The size from which that counts: below it a put is a frame and nothing else.
const PUT_BYTES_MIN: usize = 65_536;

/// A party with its runs.
pub(super) struct Run {
    party: Party,
    /// The row's; with several origins, the yardstick has a case of its own.
    case: Case,
    version: String,
    found: Vec<Measured>,
    figures: Vec<f64>,
    /// Its puts do not wait for the target.
    is_local: bool,
}

impl Run {
    /// `None` where nothing was measured.
    pub fn new(
        case: &Case,
        party: Party,
        found: Vec<Measured>,
        (peers, network): (&mut Peers, Option<&Topology>),
    ) -> Option<Run> {
        if found.is_empty() {
            return None;
        }
        let (version, is_local) = match &party {
            Party::Ours(case) if case.system == super::case::System::Raw => (host::kernel(), false),
            Party::Ours(_) => (version(), false),
            Party::Mpi(peer) => {
                let is_local = peers.is_local(peer, case, network).unwrap_or_else(|error| {
                    eprintln!(
                        "{}: whether puts of {} are local: {error:#}",
                        case.name(),
                        peer.name
                    );
                    false
                });
                (peers.version(peer), is_local)
            }
        };
        let case = match &party {
            Party::Ours(own) => own.clone(),
            Party::Mpi(_) => case.clone(),
        };
        let figures = found.iter().map(|it| case.figure(&it.samples, it.cpu)).collect();
        Some(Run { party, case, version, found, figures, is_local })
    }

    fn name(&self) -> &'static str {
        self.party.name()
    }

    /// Whether its operations are messages that targets execute within their calls.
    fn is_by_messages(&self) -> bool {
        match &self.party {
            Party::Ours(_) => self.name() == MESSAGES,
            Party::Mpi(peer) => peer.by_messages,
        }
    }

    /// Whether the ratio to another one is told: ours to all, messages to messages, and created windows to MPIs.
    fn is_compared(&self, other: &Run) -> bool {
        let is_mpi = matches!(other.party, Party::Mpi(_));
        let same = match self.name() {
            OURS => other.name() != OURS,
            MESSAGES => is_mpi && other.is_by_messages(),
            CREATED => is_mpi,
            _ => false,
        };
        !other.is_local && same
    }

    /// Ratios of the pairs with another one.
    fn ratios(&self, other: &Run) -> Vec<f64> {
        self.figures.iter().zip(&other.figures).map(|(a, b)| a / b).collect()
    }

    /// The median over runs of something.
    fn middle(&self, of: impl Fn(&Measured) -> f64) -> f64 {
        spread(self.found.iter().map(of).collect()).0
    }

    /// The median over runs of what each of them has.
    fn of_all(&self, of: impl Fn(&Measured) -> Option<u64>) -> Option<f64> {
        let all: Option<Vec<u64>> = self.found.iter().map(of).collect();
        Some(spread(all?.into_iter().map(|it| it as f64).collect()).0)
    }

    /// The costs of ranks 0 and 1 for each round, beside processor time. Bare sockets and MPIs do not count it.
    fn costs(&self, rounds: f64) -> Vec<(&'static str, String)> {
        type Of = fn(&Cost) -> u64;
        let counters: [(&'static str, usize, Of); 8] = [
            ("copied_bytes_0", 0, |it| it.copied),
            ("copied_bytes_1", 1, |it| it.copied),
            ("registrations_0", 0, |it| it.registrations),
            ("registrations_1", 1, |it| it.registrations),
            ("frames_0", 0, |it| it.frames),
            ("frames_1", 1, |it| it.frames),
            ("system_calls_0", 0, |it| it.system_calls),
            ("system_calls_1", 1, |it| it.system_calls),
        ];
        let told = |(name, rank, of): (&'static str, usize, Of)| {
            let middle = self.of_all(|it| Some(of(&it.costs.as_ref()?[rank])))?;
            Some((name, format!("{:.3}", middle / rounds)))
        };
        counters.into_iter().filter_map(told).collect()
    }

    /// The time of a target's loops, and of its service meanwhile: medians of all rounds.
    fn served(&self) -> [(&'static str, String); 4] {
        let all: Vec<Served> = self.found.iter().flat_map(|it| Served::all(&it.samples)).collect();
        let middle = |of: fn(&Served) -> u64| median(all.iter().map(|it| of(it) as f64).collect());
        let micros = |of| format!("{:.1}", middle(of) / 1000.0);
        [
            ("loops_alone_us", micros(|it| it.alone)),
            ("loops_beside_us", micros(|it| it.beside)),
            ("service_us", micros(|it| it.service)),
            ("operations", format!("{:.0}", middle(|it| it.operations))),
        ]
    }

    fn params(&self, row: &Case) -> Vec<(&'static str, String)> {
        let case = &self.case;
        let rounds = case.all_rounds() as f64;
        let cpu = |rank: usize| {
            let micros = self.middle(|it| it.cpu[rank] as f64 / 1000.0 / rounds);
            format!("{micros:.3}")
        };
        let is_apart = place::is_apart(case.medium);
        let mut params = vec![
            ("bytes", case.bytes.to_string()),
            ("ranks", row.ranks.to_string()),
            match case.program {
                Program::Idle => ("idle_ms", case.loops.to_string()),
                _ => ("loops", case.loops.to_string()),
            },
            ("rounds", case.rounds.to_string()),
            ("placement", quoted(if is_apart { "namespaces" } else { "processes" })),
            ("cores", host::cores().to_string()),
            ("cpu_us_0", cpu(0)),
            ("cpu_us_1", cpu(1)),
        ];
        params.extend(self.costs(rounds));
        if let Some(wire) = self.of_all(|it| it.wire) {
            params.push(("mtu", MTU.to_string()));
            params.push(("wire_bytes", format!("{:.1}", wire / rounds)));
            params.push(("moved_bytes", case.moved().to_string()));
        }
        if case.program == Program::Origins {
            params.push(("origins", (case.ranks - 1).to_string()));
        }
        if matches!(case.program, Program::Served(_)) {
            params.extend(self.served());
        }
        if let Some(most) = self.found.iter().filter_map(|it| case.overtaken(&it.samples)).max() {
            params.push(("overtaken_most", most.to_string()));
        }
        let alone: Option<Vec<f64>> = self.found.iter().map(|it| case.alone(&it.samples)).collect();
        if let Some(alone) = alone {
            let (alone, beside) = (spread(alone).0, spread(self.figures.clone()).0);
            // The target computes as long as a put takes alone.
            let overlap = 100.0 * (1.0 - (beside - alone) / alone.max(0.001));
            params.push(("alone_us", format!("{alone:.3}")));
            params.push(("overlap_percent", format!("{:.1}", overlap.clamp(0.0, 100.0))));
        }
        if let Party::Mpi(peer) = &self.party {
            params.push(("window", quoted(peer.memory)));
            params.push(("progress", quoted(if peer.has_thread { "thread" } else { "calls" })));
            params.push(("yields", peers::yields(case).to_string()));
            // In a namespace of its own nobody else uses the interface of rank 0.
            let names = match is_apart {
                true => [("interface_bytes", 0), ("interface_segments", 1)],
                false => [("lo_bytes", 0), ("lo_segments", 1)],
            };
            for (name, at) in names {
                let each = self.middle(|it| it.interface.unwrap_or_default()[at] as f64 / rounds);
                params.push((name, format!("{each:.1}")));
            }
        }
        if self.is_local {
            params.push(("local", "true".into()));
            params.push(("verdict", quoted("local: its flush does not wait for the target")));
        }
        params
    }
}

/// The outcomes of a row, as many as there are parties.
pub(super) fn outcomes(case: &Case, runs: &[Run], peers: &mut Peers) -> Vec<Outcome> {
    let one = |run: &Run| {
        let mut params = run.params(case);
        let mut ratio = None;
        for other in runs.iter().filter(|other| run.is_compared(other)) {
            let (middle, from, to) = interval(run.ratios(other));
            let told = format!("[{middle:.4},{from:.4},{to:.4}]");
            params.push((peers.ratio_name(other.name()), told));
            if other.name() == case.yardstick() {
                ratio = Some((middle, case.yardstick()));
            }
        }
        if run.name().starts_with(MESSAGES) && run.name() != case.yardstick() {
            let yardstick = runs.iter().find(|other| other.name() == case.yardstick());
            ratio = yardstick.map(|other| (median(run.ratios(other)), case.yardstick()));
        }
        params.extend(verdict(case, run, runs));
        let (middle, min, max) = spread(run.figures.clone());
        let (metric, unit) = case.metric();
        Outcome {
            scenario: case.name(),
            system: run.name(),
            version: run.version.clone(),
            medium: place::scheme(case.medium),
            params,
            metric,
            unit,
            median: middle,
            min,
            max,
            p99: if case.more_is_better() { min } else { max },
            runs: run.figures.len(),
            ratio,
        }
    };
    runs.iter().map(one).collect()
}

/// Whether ours is what it shall be: the median counts.
fn verdict(case: &Case, run: &Run, runs: &[Run]) -> Vec<(&'static str, String)> {
    let own = spread(run.figures.clone()).0;
    let beside = |name: &str| {
        let other = runs.iter().find(|other| other.name() == name)?;
        Some(median(run.ratios(other)))
    };
    let (reach, unit, value) = match case.program {
        Program::Idle => (IDLE_PERCENT, "% of a processor", Some(own)),
        Program::Polling => (POLLING_RATIO, "x without a window", beside(case.yardstick())),
        Program::Served(_) => (SERVED_RATIO, "x alone", Some(own)),
        Program::Origins => (ORIGINS_RATIO, "x one origin", beside(ONE_ORIGIN)),
        Program::Flush(_) if case.bytes >= PUT_BYTES_MIN => (PUT_RATIO, "x a put", beside(PUT)),
        _ => return Vec::new(),
    };
    let Some(value) = value.filter(|_| run.name() == OURS) else { return Vec::new() };
    let is_kept = if case.more_is_better() { value >= reach } else { value <= reach };
    let word = if is_kept { "kept" } else { "missed" };
    vec![
        ("reach", reach.to_string()),
        ("kept", is_kept.to_string()),
        ("verdict", quoted(&format!("reach {reach} {unit}: {word}"))),
    ]
}

/// The horizontal axis of a figure: the parameter, and its words.
fn axis(family: &str) -> (&'static str, &'static str) {
    let is = |names: &[&str]| names.iter().any(|name| family.starts_with(name));
    match family {
        _ if is(&["overlap", "skew"]) => ("loops", "loops of computation"),
        _ if is(&["synchronisation", "origins", "counter", "fairness"]) => ("ranks", "ranks"),
        _ => ("bytes", "bytes of an operation"),
    }
}

/// A picture of each row's family: its name without the last word.
pub fn figures(outcomes: &[Outcome]) -> String {
    let mut drawn: Vec<(&str, Vec<Outcome>)> = Vec::new();
    for outcome in outcomes {
        let family = outcome.scenario.rsplit_once('.').map_or("", |it| it.0);
        match drawn.iter_mut().find(|(other, _)| *other == family) {
            Some((_, found)) => found.push(outcome.clone()),
            None => drawn.push((family, vec![outcome.clone()])),
        }
    }
    let figure = |(family, found): &(&str, Vec<Outcome>)| {
        report::figure_by(found, found[0].metric, axis(family), &format!(", {family}"))
    };
    report::stack(&drawn.iter().map(figure).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::super::case::{Act, System};
    use super::super::peers::Peer;
    use super::*;

    const ROW: Case = Case {
        program: Program::Latency,
        system: System::Direct,
        medium: "tcp",
        ranks: 2,
        bytes: 8,
        loops: 0,
        rounds: 1,
    };

    fn run(party: Party, row: &Case, samples: Vec<Vec<u64>>) -> Run {
        let measured = |samples| Measured { samples, ..Measured::default() };
        let found = samples.into_iter().map(measured).collect();
        Run::new(row, party, found, (&mut Peers::default(), None)).expect("it was measured")
    }

    fn ours(system: System, row: &Case, ranks: u32, samples: Vec<Vec<u64>>) -> Run {
        run(Party::Ours(Case { system, ranks, ..row.clone() }), row, samples)
    }

    #[test]
    fn messages_have_a_ratio_to_an_mpi_by_messages_and_to_no_other_one() {
        let mpi = |peer: Peer| Run {
            party: Party::Mpi(peer),
            version: "4.1.4".into(),
            is_local: false,
            ..ours(System::Messages, &ROW, 2, vec![vec![40_000], vec![20_000], vec![20_000]])
        };
        let [by_messages, other] = [("openmpi4-pt2pt", true), ("openmpi5", false)]
            .map(|(name, by_messages)| mpi(Peer::named(name, by_messages)));
        let times = || vec![vec![20_000], vec![18_000], vec![30_000]];
        let direct = ours(System::Direct, &ROW, 2, times());
        let messages = ours(System::Messages, &ROW, 2, times());
        let told = outcomes(&ROW, &[direct, messages, by_messages, other], &mut Peers::default());
        let ratios = |at: usize| -> Vec<&str> {
            let names = told[at].params.iter().map(|it| it.0);
            names.filter(|name| name.starts_with("ratio_")).collect()
        };
        assert_eq!(ratios(0), ["ratio_messages", "ratio_openmpi4-pt2pt", "ratio_openmpi5"]);
        assert_eq!(ratios(1), ["ratio_openmpi4-pt2pt"]);
        assert_eq!(told[1].param("ratio_openmpi4-pt2pt"), "[0.9000,0.5000,1.5000]");
        assert!(ratios(2).is_empty() && ratios(3).is_empty());
    }

    #[test]
    fn several_origins_are_judged_by_one_of_the_same_run() {
        let row = Case { program: Program::Origins, ranks: 5, bytes: 65_536, ..ROW };
        for (nanos, kept) in [(4_400_000, "true"), (4_500_000, "false")] {
            // Four origins move four times as much.
            let direct = ours(System::Direct, &row, 5, vec![vec![nanos]]);
            let one = ours(System::OneOrigin, &row, 2, vec![vec![1_000_000]]);
            let told = outcomes(&row, &[direct, one], &mut Peers::default());
            assert_eq!(told[0].param("kept"), kept);
            let words = |at: usize| (told[at].param("ranks"), told[at].param("origins"));
            assert_eq!((words(0), words(1)), (("5", "4"), ("5", "1")));
            let ratio = 4_000_000.0 / nanos as f64;
            assert_eq!(
                told[0].param("ratio_one-origin"),
                format!("[{ratio:.4},{ratio:.4},{ratio:.4}]")
            );
            assert!((told[1].median - 1048.6).abs() < 0.1 && told[1].param("kept").is_empty());
        }
        // One origin has nothing beside it.
        let row = Case { ranks: 2, ..row };
        let told =
            outcomes(&row, &[ours(System::Direct, &row, 2, vec![vec![9]])], &mut Peers::default());
        assert_eq!(told[0].param("verdict"), "");
    }

    #[test]
    fn an_accumulate_is_judged_by_a_put_of_the_same_run() {
        let row = Case { program: Program::Flush(Act::Accumulate), bytes: 65_536, ..ROW };
        for (nanos, kept) in [(12_500, "true"), (12_600, "false")] {
            let direct = ours(System::Direct, &row, 2, vec![vec![nanos]]);
            let put =
                Case { program: Program::Flush(Act::Put), system: System::Put, ..row.clone() };
            let put = run(Party::Ours(put), &row, vec![vec![10_000]]);
            let told = outcomes(&row, &[direct, put], &mut Peers::default());
            assert_eq!(told[0].param("kept"), kept);
            assert!(told[0].param("ratio_direct-put").starts_with("[1.2"), "{:?}", told[0].params);
            assert_eq!(told[1].param("kept"), "");
        }
        // A put itself has nothing to be judged by.
        let row = Case { program: Program::Flush(Act::Put), ..row };
        let direct = ours(System::Direct, &row, 2, vec![vec![9]]);
        assert_eq!(outcomes(&row, &[direct], &mut Peers::default())[0].param("verdict"), "");
    }

    #[test]
    fn overtaking_is_told_beside_the_index_and_is_no_part_of_it() {
        let row = Case { program: Program::Fairness, ranks: 3, ..ROW };
        let runs = vec![vec![980, 7], vec![990, 31], vec![970, 2]];
        let told = outcomes(&row, &[ours(System::Direct, &row, 3, runs)], &mut Peers::default());
        assert_eq!((told[0].median, told[0].param("overtaken_most")), (0.98, "31"));
    }

    #[test]
    fn a_target_that_serves_is_told_with_its_loops() {
        let row = Case { program: Program::Served(Act::Put), ..ROW };
        for (beside, kept) in [(30_000_000, "true"), (32_000_000, "false")] {
            let round = Served { alone: 20_000_000, beside, service: 10_000_000, operations: 50 };
            let told = outcomes(
                &row,
                &[ours(System::Direct, &row, 2, vec![round.encode().to_vec()])],
                &mut Peers::default(),
            );
            let param = |name| told[0].param(name);
            assert_eq!((param("kept"), param("operations")), (kept, "50"));
            assert_eq!((param("loops_alone_us"), param("service_us")), ("20000.0", "10000.0"));
            assert_eq!((told[0].metric, told[0].unit), ("time", "x alone"));
            assert_eq!(told[0].median, (beside - 10_000_000) as f64 / 2e7);
        }
    }
}
