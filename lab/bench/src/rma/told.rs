//! The report of a row: the figure of each party, conditions, ratios with their intervals, pictures.

use ropewalk_netns::Topology;

use super::case::{Case, MESSAGES, Program, median};
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

/// A party with its runs.
pub(super) struct Run {
    party: Party,
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
        let figures = found.iter().map(|it| case.figure(&it.samples, it.cpu)).collect();
        Some(Run { party, version, found, figures, is_local })
    }

    fn name(&self) -> &'static str {
        self.party.name()
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

    fn params(&self, case: &Case) -> Vec<(&'static str, String)> {
        let rounds = case.all_rounds() as f64;
        let cpu = |rank: usize| {
            let micros = self.middle(|it| it.cpu[rank] as f64 / 1000.0 / rounds);
            format!("{micros:.3}")
        };
        let is_apart = place::is_apart(case.medium);
        let mut params = vec![
            ("bytes", case.bytes.to_string()),
            ("ranks", case.ranks.to_string()),
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
        for other in runs.iter().filter(|other| run.name() == OURS && other.name() != OURS) {
            if other.is_local {
                continue;
            }
            let pairs = run.figures.iter().zip(&other.figures).map(|(a, b)| a / b).collect();
            let (middle, from, to) = interval(pairs);
            let told = format!("[{middle:.4},{from:.4},{to:.4}]");
            params.push((peers.ratio_name(other.name()), told));
            if other.name() == case.yardstick() {
                ratio = Some((middle, case.yardstick()));
            }
        }
        if run.name().starts_with(MESSAGES) && run.name() != case.yardstick() {
            let yardstick = runs.iter().find(|other| other.name() == case.yardstick());
            ratio = yardstick.map(|other| {
                let pairs = run.figures.iter().zip(&other.figures).map(|(a, b)| a / b);
                (median(pairs.collect()), case.yardstick())
            });
        }
        params.extend(verdict(case, run, ratio));
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

/// Whether an open window costs no more than it shall: the median counts.
fn verdict(case: &Case, run: &Run, ratio: Option<(f64, &str)>) -> Vec<(&'static str, String)> {
    let (reach, unit, value) = match (case.program, ratio) {
        (Program::Idle, _) => (IDLE_PERCENT, "% of a processor", spread(run.figures.clone()).0),
        (Program::Polling, Some((ratio, _))) => (POLLING_RATIO, "x without a window", ratio),
        _ => return Vec::new(),
    };
    if run.name() != OURS {
        return Vec::new();
    }
    let is_kept = value <= reach;
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
