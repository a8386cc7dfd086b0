//! Rows of two parties in alternation: the figures of both, and the ratio of each pair of runs.

use crate::lab::{quoted, version};
use crate::report::Outcome;
use crate::series::{Figure, OURS, Row, Series, interval};
use crate::worker::Work;

/// Our system beside the same with one difference.
#[derive(Debug, Clone)]
pub struct Pair {
    pub name: String,
    pub figure: Figure,
    /// The name of the other party, and of the parameter with the ratio to it.
    pub other: &'static str,
    pub ratio: &'static str,
    /// A time shall be at most so many times the other's, a rate at least.
    pub reach: Option<f64>,
    pub params: Vec<(&'static str, String)>,
}

/// Ours as a multiple of the other one, as people compare the figure: times by times, rates by rates.
fn ratio(figure: Figure, ours: &Work, other: &Work) -> f64 {
    let rate = |work: &Work| match figure {
        Figure::Bandwidth => work.bytes as f64 / work.seconds(),
        _ => work.operations as f64 / work.seconds(),
    };
    if figure == Figure::Time { rate(other) / rate(ours) } else { rate(ours) / rate(other) }
}

impl Pair {
    fn keeps(&self, ratio: f64, reach: f64) -> bool {
        if self.figure == Figure::Time { ratio <= reach } else { ratio >= reach }
    }

    /// `found`: the runs of ours and of the other party. `own`: parameters of each.
    pub fn outcomes(
        &self,
        found: Vec<Vec<Work>>,
        own: [Vec<(&'static str, String)>; 2],
    ) -> Vec<Outcome> {
        let row = Row { name: self.name.clone(), figure: self.figure, params: self.params.clone() };
        let pairs = found[0].iter().zip(&found[1]);
        let ratios: Vec<f64> = pairs.map(|(ours, other)| ratio(self.figure, ours, other)).collect();
        let series: Vec<Series> = [OURS, self.other]
            .into_iter()
            .zip(found)
            .zip(own)
            .map(|((system, runs), params)| Series {
                system,
                version: version(),
                medium: "library",
                params,
                runs,
            })
            .collect();
        let mut outcomes = row.outcomes(&series);
        if outcomes.iter().any(|it| it.ratio.is_some()) {
            let (median, from, to) = interval(ratios);
            let mut more = vec![(self.ratio, format!("[{median:.4},{from:.4},{to:.4}]"))];
            more.extend(self.reach.map(|reach| self.verdict(median, reach)).unwrap_or_default());
            for ours in outcomes.iter_mut().filter(|it| it.system == OURS) {
                ours.params.extend(more.clone());
            }
        }
        outcomes
    }

    fn verdict(&self, ratio: f64, reach: f64) -> Vec<(&'static str, String)> {
        let kept = self.keeps(ratio, reach);
        let words = if self.figure == Figure::Time { "at most" } else { "at least" };
        let said = if kept { "kept" } else { "missed" };
        vec![
            ("reach", reach.to_string()),
            ("kept", kept.to_string()),
            ("verdict", quoted(&format!("reach {words} {reach} x: {said}"))),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_without_a_reach_has_no_verdict() {
        let work = |bytes| Work { operations: 1, bytes, end_nanos: 1000, ..Work::default() };
        let pair = Pair {
            name: "copies3.write".into(),
            figure: Figure::Bandwidth,
            other: "one-copy",
            ratio: "ratio_one-copy",
            reach: None,
            params: Vec::new(),
        };
        let told = pair.outcomes(vec![vec![work(300)], vec![work(1000)]], [vec![], vec![]]);
        let of = |told: &[Outcome], name| told[0].param(name).to_string();
        assert_eq!(
            (of(&told, "ratio_one-copy"), of(&told, "verdict")),
            ("[0.3000,0.3000,0.3000]".into(), String::new())
        );
        let judged = Pair { reach: Some(0.25), ..pair };
        let told = judged.outcomes(vec![vec![work(300)], vec![work(1000)]], [vec![], vec![]]);
        assert_eq!(
            (of(&told, "kept"), of(&told, "verdict")),
            ("true".into(), "reach at least 0.25 x: kept".into())
        );
    }
}
