//! The figures of a cut row, with what they shall reach.

use crate::host;
use crate::lab::{quoted, version};
use crate::paths::cut::party::Party;
use crate::paths::cut::row::{Kind, Look, Row};
use crate::paths::cut::trial::{Times, Trial};
use crate::paths::stream::MESSAGE_BYTES;
use crate::paths::trace::Trace;
use crate::paths::verdict::{Verdict, listed};
use crate::report::Outcome;
use crate::series::{OURS, spread};

/// After so many nanoseconds of a fault, what is left of the rails shall be in use.
const NOTICE: u64 = 50_000_000;
/// The part of it in percent.
pub const LEFT_REACH: f64 = 95.0;
/// What counts as no stall, in ms beyond the gap of the undisturbed stream.
const NO_STALL: f64 = 5.0;

/// A figure of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Figure {
    /// The longest gap from the fault on.
    Stall,
    /// The time until the rest of the rails is in use.
    Failover,
    /// The goodput over the rest of the rails, as a part of what they carry.
    Left,
    /// The time until a mended rail is in use.
    Back,
    /// The longest gap from the mending on.
    Gap,
    Goodput,
}

impl Figure {
    fn name(self) -> &'static str {
        match self {
            Figure::Stall => "stall",
            Figure::Failover => "failover",
            Figure::Left => "left",
            Figure::Back => "back",
            Figure::Gap => "gap",
            Figure::Goodput => "goodput",
        }
    }

    fn metric(self) -> (&'static str, &'static str) {
        match self {
            Figure::Goodput => ("bandwidth", "MB/s"),
            Figure::Left => ("share", "%"),
            _ => ("stall", "ms"),
        }
    }
}

impl Row {
    /// What is told of a run: short runs end before a mended rail is back.
    fn figures(&self, is_short: bool) -> Vec<Figure> {
        let mut figures = self.all_figures();
        figures.retain(|figure| !is_short || self.look == Look::Return || *figure != Figure::Back);
        figures
    }

    fn all_figures(&self) -> Vec<Figure> {
        match (self.look, self.kind.is_cut()) {
            (Look::Return, _) => vec![Figure::Back, Figure::Gap, Figure::Goodput],
            (Look::Death, _) => {
                vec![Figure::Stall, Figure::Failover, Figure::Left, Figure::Goodput]
            }
            (_, true) => {
                vec![Figure::Stall, Figure::Failover, Figure::Left, Figure::Back, Figure::Goodput]
            }
            (_, false) => vec![Figure::Stall, Figure::Back, Figure::Goodput],
        }
    }

    /// Of each figure that of each party.
    pub fn outcomes(&self, parties: &[Party], found: &[Vec<Trial>], times: &Times) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for figure in self.figures(times.is_short) {
            let values = |turn: usize| -> Vec<f64> {
                let judged = |trial: &Trial| self.judge(figure, &parties[turn], trial).0;
                found[turn].iter().map(judged).collect()
            };
            let rival = parties.iter().position(|party| party.name == "mptcp");
            for (turn, party) in parties.iter().enumerate() {
                let own = values(turn);
                let wants_another = matches!(figure, Figure::Failover | Figure::Left);
                // One rail leaves nothing to fail over to.
                if own.is_empty() || (wants_another && party.rails == 1) {
                    continue;
                }
                let rival = rival.filter(|_| party.name == OURS && !wants_another);
                let ratios = rival.map_or(Vec::new(), |rival| {
                    own.iter().zip(values(rival)).map(|(a, b)| a / b).collect()
                });
                let ratio = (!ratios.is_empty()).then(|| (spread(ratios).0, "mptcp"));
                let params = self.params(figure, party, &found[turn], &own);
                let (median, min, max) = spread(own.clone());
                let (metric, unit) = figure.metric();
                outcomes.push(Outcome {
                    scenario: format!("{}.{}", self.name(), figure.name()),
                    system: party.name,
                    version: if party.name == OURS { version() } else { host::kernel() },
                    medium: if party.name == OURS { self.medium.name() } else { "tcp" },
                    params,
                    metric,
                    unit,
                    median,
                    min,
                    max,
                    p99: tail(own),
                    runs: found[turn].len(),
                    ratio: ratio.filter(|(ratio, _)| ratio.is_finite()),
                });
            }
        }
        outcomes
    }

    /// The figure, and whether what it waits for came.
    fn judge(&self, figure: Figure, party: &Party, trial: &Trial) -> (f64, bool) {
        let (_, window) = self.rate.bin_and_window();
        let rest = (party.rails - 1) as f64 / party.rails as f64;
        match figure {
            Figure::Stall => (trial.stall(), true),
            Figure::Failover => trial.together().failover(rest, window),
            Figure::Left => {
                let all = trial.together();
                (100.0 * all.goodput_after(NOTICE) / (rest * all.goodput()).max(1e-9), true)
            }
            Figure::Back => trial.together().back(window),
            Figure::Gap => (trial.most(Trace::gap_after), true),
            Figure::Goodput => (trial.goodput(), true),
        }
    }

    fn params(
        &self,
        figure: Figure,
        party: &Party,
        trials: &[Trial],
        values: &[f64],
    ) -> Vec<(&'static str, String)> {
        let column = |of: fn(&Trial) -> f64| spread(trials.iter().map(of).collect());
        let mut params = vec![
            ("bytes", MESSAGE_BYTES.to_string()),
            ("placement", quoted("namespaces")),
            ("rate", quoted(self.rate.name())),
            ("rails", party.rails.to_string()),
            ("streams", self.streams().to_string()),
            ("fault", quoted(self.kind.name())),
            ("outage_ms", format!("{:.0}", column(Trial::outage).0)),
        ];
        let late = trials.iter().filter(|trial| !self.judge(figure, party, trial).1).count();
        if matches!(figure, Figure::Failover | Figure::Back) {
            params.push(("not_back", late.to_string()));
        }
        if matches!(figure, Figure::Stall | Figure::Gap) {
            params.push(("control_gap_ms", format!("{:.2}", column(Trial::control_gap).2)));
            let gaps: Vec<f64> = trials.iter().map(Trial::control_gap).collect();
            params.push(("control_gaps", listed(&gaps)));
        }
        if figure == Figure::Stall {
            // What else comes of ours fails the row.
            let damaged = trials.iter().filter(|trial| trial.damage().is_some()).count();
            params.push(("damaged", damaged.to_string()));
            params.extend(["lost", "doubled", "reordered"].map(|name| (name, "0".into())));
            if party.name == OURS {
                params.push(("re_sent_per_message", format!("{:.2}", column(Trial::re_sent).0)));
            }
            params.extend(self.timeline(trials));
        }
        params.extend(self.verdict(figure, trials, values).into_iter().flat_map(|it| it.params()));
        params.push(("trials", listed(values)));
        params
    }

    /// What a figure shall reach, where it shall reach something.
    fn verdict(&self, figure: Figure, trials: &[Trial], values: &[f64]) -> Option<Verdict> {
        let gaps = || trials.iter().map(Trial::control_gap).collect::<Vec<_>>();
        match figure {
            Figure::Stall => Some(Verdict::beside(self.stall_reach(), "ms", values, &gaps())),
            Figure::Gap => Some(Verdict::beside(NO_STALL, "ms", values, &gaps())),
            Figure::Left => Some(Verdict::at_least(LEFT_REACH, "%", values)),
            Figure::Back if self.look == Look::Return => {
                Some(Verdict::at_most(self.back_reach(), "ms", values))
            }
            _ => None,
        }
    }

    /// The goodput over time of the run with the middle stall.
    fn timeline(&self, trials: &[Trial]) -> Vec<(&'static str, String)> {
        let (bin, _) = self.rate.bin_and_window();
        let mut order: Vec<&Trial> = trials.iter().collect();
        order.sort_by(|a, b| a.stall().total_cmp(&b.stall()));
        let trial = order[order.len() / 2];
        let trace = trial.together();
        let from = trace.begin as f64 - trace.cut as f64;
        let bins: Vec<String> =
            trace.timeline(bin).iter().map(|rate| format!("{rate:.1}")).collect();
        vec![
            ("timeline_from_ms", format!("{:.1}", from / 1e6)),
            ("timeline_bin_ms", (bin / 1_000_000).to_string()),
            ("timeline_mended_ms", format!("{:.1}", trace.outage())),
            ("timeline_mbs", format!("[{}]", bins.join(","))),
        ]
    }
}

/// Whether a peer may deliver damaged bytes: virtual interfaces hand up what TCP does not check.
pub fn may_be_damaged(kind: Kind, party: &Party) -> bool {
    kind == Kind::Corrupt && party.name != OURS
}

/// The value that one of a hundred is above.
fn tail(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() * 99).div_ceil(100) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_a_hundred_is_above_the_tail() {
        assert_eq!(tail((1..=200).map(f64::from).collect()), 198.0);
        assert_eq!(tail(vec![3.0, 1.0]), 3.0);
    }
}
