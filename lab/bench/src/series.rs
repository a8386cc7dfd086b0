//! From repeated work to figures: medians, tails, processor time, ratios.

use crate::counters::Served;
use crate::report::{CALLS, Outcome, SERVED, SYNCS};
use crate::worker::Work;

/// The metric of a row's main figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figure {
    /// Operations per second.
    Rate,
    /// MiB per second.
    Bandwidth,
    /// Milliseconds of one operation.
    Time,
}

impl Figure {
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Figure::Rate => ("rate", "1/s"),
            Figure::Bandwidth => ("bandwidth", "MiB/s"),
            Figure::Time => ("latency", "ms"),
        }
    }
}

/// The name of our own system.
pub const OURS: &str = "ropewalk";

/// A system under measurement, with its work in each run.
pub struct Series {
    pub system: &'static str,
    pub version: String,
    pub medium: &'static str,
    /// Beside those of the row.
    pub params: Vec<(&'static str, String)>,
    pub runs: Vec<Work>,
}

/// A measurement, the same for all systems.
pub struct Row {
    pub name: String,
    pub figure: Figure,
    pub params: Vec<(&'static str, String)>,
}

/// The median (of an even number, the mean of the middle two), the lowest, the highest.
pub(crate) fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
    (f64::midpoint(low, high), values[0], values[values.len() - 1])
}

/// The median of independent values, and where that of all such values lies in 95 of 100 cases (by their
/// order alone). Few values do not say it: then it is their whole range.
pub(crate) fn interval(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let count = values.len() as f64;
    let reach = 0.98 * count.sqrt();
    let from = ((count / 2.0 - reach).floor().max(0.0)) as usize;
    let to = ((count / 2.0 + reach).ceil() as usize).min(values.len() - 1);
    (spread(values.clone()).0, values[from], values[to])
}

const MIB: f64 = (1 << 20) as f64;
const GIB: f64 = (1 << 30) as f64;

impl Row {
    fn value(&self, work: &Work) -> f64 {
        match self.figure {
            Figure::Rate => work.operations as f64 / work.seconds(),
            Figure::Bandwidth => work.bytes as f64 / MIB / work.seconds(),
            Figure::Time => work.seconds() * 1e3 / work.operations.max(1) as f64,
        }
    }

    /// The run's main figure if each operation took as long as the 99th percentile.
    fn tail(&self, work: &Work) -> f64 {
        let slow = work.times.quantile(0.99).max(1) as f64 / 1e9;
        let each = work.bytes as f64 / work.operations.max(1) as f64;
        match self.figure {
            Figure::Rate => work.lanes as f64 / slow,
            Figure::Bandwidth => work.lanes as f64 * each / MIB / slow,
            Figure::Time => slow * 1e3,
        }
    }

    fn cpu(&self, work: &Work) -> f64 {
        let seconds = work.cpu_nanos as f64 / 1e9;
        match self.figure {
            Figure::Bandwidth => seconds / (work.bytes.max(1) as f64 / GIB),
            _ => seconds / (work.operations.max(1) as f64 / 1e3),
        }
    }

    /// The figures of this row: of each system its main figure, the time of one operation, and the
    /// processor time; of ours, beside another system, the ratio to that.
    pub fn outcomes(&self, all: &[Series]) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for series in all.iter().filter(|series| !series.runs.is_empty()) {
            let (metric, unit) = self.figure.words();
            let (median, min, max) =
                spread(series.runs.iter().map(|run| self.value(run)).collect());
            let (p99, ..) = spread(series.runs.iter().map(|run| self.tail(run)).collect());
            let mut main = self.outcome(series, metric, unit);
            (main.median, main.min, main.max, main.p99) = (median, min, max, p99);
            let peer = all.iter().find(|peer| peer.system != OURS && !peer.runs.is_empty());
            if let Some(peer) = peer.filter(|_| series.system == OURS) {
                let pairs = series.runs.iter().zip(&peer.runs);
                let ratios = pairs.map(|(ours, other)| self.value(ours) / self.value(other));
                main.ratio = Some((spread(ratios.collect()).0, peer.system));
            }
            outcomes.push(main);
            if self.figure != Figure::Time {
                let mut one = self.outcome(series, "latency", "us");
                let quantile = |part: f64| {
                    spread(
                        series
                            .runs
                            .iter()
                            .map(|run| run.times.quantile(part) as f64 / 1e3)
                            .collect(),
                    )
                };
                (one.median, one.min, one.max) = quantile(0.5);
                one.p99 = quantile(0.99).0;
                outcomes.push(one);
            }
            let unit = if self.figure == Figure::Bandwidth { "s/GiB" } else { "s/1000" };
            if self.figure == Figure::Time {
                continue;
            }
            let mut cpu = self.outcome(series, "cpu", unit);
            (cpu.median, cpu.min, cpu.max) =
                spread(series.runs.iter().map(|run| self.cpu(run)).collect());
            cpu.p99 = cpu.max;
            outcomes.push(cpu);
            outcomes.extend(self.served(series));
        }
        outcomes
    }

    /// The servers' part in each operation, where it is known.
    fn served(&self, series: &Series) -> Vec<Outcome> {
        let runs: Option<Vec<(Served, f64)>> = series
            .runs
            .iter()
            .map(|run| Some((run.served?, run.operations.max(1) as f64)))
            .collect();
        let Some(runs) = runs else { return Vec::new() };
        let figure = |metric, unit, of: fn(&Served) -> f64| {
            let mut one = self.outcome(series, metric, unit);
            let values = runs.iter().map(|(served, operations)| of(served) / operations);
            (one.median, one.min, one.max) = spread(values.collect());
            one.p99 = one.max;
            one
        };
        vec![
            figure(CALLS, "1/operation", |served| served.calls),
            figure(SERVED, "us/operation", |served| served.seconds * 1e6),
            figure(SYNCS, "1/operation", |served| served.syncs),
        ]
    }

    fn outcome(&self, series: &Series, metric: &'static str, unit: &'static str) -> Outcome {
        let mut params = self.params.clone();
        params.extend(series.params.iter().cloned());
        Outcome {
            scenario: self.name.clone(),
            system: series.system,
            version: series.version.clone(),
            medium: series.medium,
            params,
            metric,
            unit,
            median: 0.0,
            min: 0.0,
            max: 0.0,
            p99: 0.0,
            runs: series.runs.len(),
            ratio: None,
        }
    }
}

/// A figure that was taken directly, such as a size.
pub fn direct(
    name: &str,
    medium: &'static str,
    params: Vec<(&'static str, String)>,
    (metric, unit): (&'static str, &'static str),
    values: Vec<f64>,
) -> Outcome {
    let runs = values.len();
    let (median, min, max) = spread(values);
    Outcome {
        scenario: name.into(),
        system: "ropewalk",
        version: env!("CARGO_PKG_VERSION").into(),
        medium,
        params,
        metric,
        unit,
        median,
        min,
        max,
        p99: max,
        runs,
        ratio: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(operations: u64, seconds: u64, nanos: u64) -> Work {
        let mut work =
            Work { end_nanos: seconds * 1_000_000_000, operations, lanes: 2, ..Work::default() };
        work.bytes = operations << 20;
        work.cpu_nanos = work.end_nanos / 2;
        for _ in 0..operations {
            work.times.note(nanos);
        }
        work
    }

    #[test]
    fn the_middle_of_two_lies_between_them() {
        assert_eq!(spread(vec![4.0, 1.0]), (2.5, 1.0, 4.0));
        assert_eq!(spread(vec![4.0, 1.0, 3.0]), (3.0, 1.0, 4.0));
    }

    #[test]
    fn a_row_tells_rate_tail_ratio_and_processor_time() {
        let row = Row { name: "r".into(), figure: Figure::Rate, params: Vec::new() };
        let series = |system, runs| Series {
            system,
            version: "1".into(),
            medium: "mount",
            params: Vec::new(),
            runs,
        };
        let ours = vec![run(1000, 1, 1 << 20), run(3000, 1, 1 << 20), run(2000, 1, 1 << 20)];
        let peer = vec![run(1000, 1, 1 << 20), run(1000, 1, 1 << 20), run(4000, 1, 1 << 20)];
        let all = row.outcomes(&[series("ropewalk", ours), series("passthrough_ll", peer)]);
        let names: Vec<_> = all.iter().map(|one| (one.system, one.metric)).collect();
        let each = ["rate", "latency", "cpu"];
        let wanted = ["ropewalk", "passthrough_ll"]
            .into_iter()
            .flat_map(|system| each.map(|metric| (system, metric)));
        assert_eq!(names, wanted.collect::<Vec<_>>());
        assert_eq!(
            (all[0].median, all[0].min, all[0].max, all[0].runs),
            (2000.0, 1000.0, 3000.0, 3)
        );
        // Ratios run by run: 1, 3, and one half.
        assert_eq!(all[0].ratio, Some((1.0, "passthrough_ll")));
        assert!(all[3].ratio.is_none());
        assert!((all[0].p99 - 2e9 / f64::from(1 << 20)).abs() / all[0].p99 < 0.04);
        assert!((all[2].median - 0.25).abs() < 1e-9, "{}", all[2].median);
    }

    #[test]
    fn an_interval_lies_around_the_median() {
        assert_eq!(interval(vec![2.0]), (2.0, 2.0, 2.0));
        let values: Vec<f64> = (1..=30).map(f64::from).collect();
        let (middle, from, to) = interval(values);
        assert_eq!(middle, 15.5);
        assert!((9.0..12.0).contains(&from) && (20.0..=22.0).contains(&to), "{from} {to}");
    }
}
