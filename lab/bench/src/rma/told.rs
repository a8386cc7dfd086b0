//! What is told of a row: the figure of each party, conditions, ratios with their intervals, pictures.

use super::case::{Case, median};
use super::peers::{self, Peers};
use super::{Measured, Party};
use crate::host;
use crate::lab::{quoted, version};
use crate::report::{self, Outcome};
use crate::series::{interval, spread};

/// The party that ratios are of, and the yardstick.
const OURS: &str = "direct";
const YARDSTICK: &str = "messages";

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
    pub fn new(case: &Case, party: Party, found: Vec<Measured>, peers: &mut Peers) -> Option<Run> {
        if found.is_empty() {
            return None;
        }
        let (version, is_local) = match &party {
            Party::Ours(case) if case.system == super::case::System::Raw => (host::kernel(), false),
            Party::Ours(_) => (version(), false),
            Party::Mpi(peer) => {
                let is_local = peers.is_local(peer, case).unwrap_or_else(|error| {
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
        let figures = found.iter().map(|it| case.figure(&it.samples)).collect();
        Some(Run { party, version, found, figures, is_local })
    }

    fn name(&self) -> &'static str {
        self.party.name()
    }

    /// The median over runs of something.
    fn middle(&self, of: impl Fn(&Measured) -> f64) -> f64 {
        spread(self.found.iter().map(of).collect()).0
    }

    fn params(&self, case: &Case) -> Vec<(&'static str, String)> {
        let rounds = case.all_rounds() as f64;
        let cpu = |rank: usize| {
            let micros = self.middle(|it| it.cpu[rank] as f64 / 1000.0 / rounds);
            format!("{micros:.3}")
        };
        let mut params = vec![
            ("bytes", case.bytes.to_string()),
            ("ranks", case.ranks.to_string()),
            ("loops", case.loops.to_string()),
            ("rounds", case.rounds.to_string()),
            ("placement", "\"processes\"".into()),
            ("cores", host::cores().to_string()),
            ("cpu_us_0", cpu(0)),
            ("cpu_us_1", cpu(1)),
        ];
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
            for (name, at) in [("lo_bytes", 0), ("lo_segments", 1)] {
                let each = self.middle(|it| it.lo.unwrap_or_default()[at] as f64 / rounds);
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
            if other.name() == YARDSTICK {
                ratio = Some((middle, YARDSTICK));
            }
        }
        if run.name().starts_with(YARDSTICK) && run.name() != YARDSTICK {
            let yardstick = runs.iter().find(|other| other.name() == YARDSTICK);
            ratio = yardstick.map(|other| {
                let pairs = run.figures.iter().zip(&other.figures).map(|(a, b)| a / b);
                (median(pairs.collect()), YARDSTICK)
            });
        }
        let (middle, min, max) = spread(run.figures.clone());
        let (metric, unit) = case.metric();
        Outcome {
            scenario: case.name(),
            system: run.name(),
            version: run.version.clone(),
            medium: case.medium,
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

/// What a figure's horizontal axis counts: the parameter, and its words.
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
