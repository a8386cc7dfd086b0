//! Results of the rows, as figures with names, units and the conditions of the measurement.

use crate::host;
use crate::lab::{quoted, version};
use crate::mx::rows::{Kind, Row};
use crate::mx::{LOST_PPM, Party, Point};
use crate::report::Outcome;
use crate::series::{OURS, interval, spread};

impl Row {
    pub(super) fn outcomes(
        &self,
        parties: &[Party],
        found: &[Vec<Vec<Option<Point>>>],
        dma: &str,
    ) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for (index, bytes) in self.sizes.iter().enumerate() {
            let points = |turn: usize| -> Vec<Point> {
                found.get(turn).into_iter().flatten().filter_map(|points| points[index]).collect()
            };
            for (turn, party) in parties.iter().enumerate() {
                let own = points(turn);
                if own.is_empty() {
                    continue;
                }
                let column = |value: fn(&Point) -> f64| own.iter().map(value).collect::<Vec<_>>();
                let mut params = self.params(*party, *bytes, &own, dma);
                let ratio = self.compared(*party, &own, &points, &mut params);
                let (median, min, max) = spread(column(|point| point.value));
                let (metric, unit, cpu_unit) = self.units();
                let main = Outcome {
                    scenario: self.name.clone(),
                    system: if *party == Party::Raw { "raw" } else { OURS },
                    version: if *party == Party::Raw { host::kernel() } else { version() },
                    medium: self.medium(*party),
                    params,
                    metric,
                    unit,
                    median,
                    min,
                    max,
                    p99: spread(column(|point| point.p99)).0,
                    runs: own.len(),
                    ratio,
                };
                let beside = |(median, min, max), p99, metric, unit| {
                    let ratio = None;
                    Outcome { metric, unit, median, min, max, p99, ratio, ..main.clone() }
                };
                match self.kind {
                    Kind::Overlap => outcomes.push(main),
                    Kind::Copies => {
                        let sent = spread(column(|point| point.sent));
                        let sent = beside(sent, 0.0, metric, unit);
                        let scenario = |side: &str| format!("{}.{side}", self.name);
                        outcomes.push(Outcome { scenario: scenario("send"), ..sent });
                        outcomes.push(Outcome { scenario: scenario("receive"), ..main });
                    }
                    _ => {
                        let cpu = spread(column(|point| point.cpu));
                        let cpu = beside(cpu, cpu.2, "cpu", cpu_unit);
                        outcomes.extend([main, cpu]);
                    }
                }
            }
        }
        outcomes
    }

    /// The metric, its unit, and that of processor time.
    fn units(&self) -> (&'static str, &'static str, &'static str) {
        match self.kind {
            Kind::Latency => ("latency", "us", "us/message"),
            Kind::Bandwidth | Kind::Loss => ("bandwidth", "MB/s", "s/GB"),
            Kind::BothWays => ("bandwidth", "MB/s", "s/GB"),
            Kind::Rate => ("rate", "1/s", "us/message"),
            Kind::Overlap => ("overlap", "%", "%"),
            Kind::Copies => ("count", "copies/byte", ""),
        }
    }

    /// A party as a multiple of the one that it is compared with, run by run: the median, whose interval becomes
    /// a parameter.
    fn compared(
        &self,
        party: Party,
        own: &[Point],
        points: &dyn Fn(usize) -> Vec<Point>,
        params: &mut Vec<(&'static str, String)>,
    ) -> Option<(f64, &'static str)> {
        let (other, name, to_whom) = match (party, self.kind) {
            (Party::Swept(at), _) if at > 0 => {
                let (name, to_whom) = self.sweep.first();
                (0, name, to_whom)
            }
            (Party::Ours, Kind::Loss) => (1, "ratio_lossless", "lossless"),
            (Party::Ours, Kind::Latency | Kind::Bandwidth | Kind::BothWays) => {
                (1, "ratio_raw", "raw")
            }
            _ => return None,
        };
        let others = points(other);
        let pairs: Vec<f64> = own.iter().zip(&others).map(|(a, b)| a.value / b.value).collect();
        if pairs.is_empty() {
            return None;
        }
        let (middle, from, to) = interval(pairs);
        params.push((name, format!("[{middle:.4},{from:.4},{to:.4}]")));
        Some((middle, to_whom))
    }

    fn params(
        &self,
        party: Party,
        bytes: usize,
        points: &[Point],
        dma: &str,
    ) -> Vec<(&'static str, String)> {
        let mut params = vec![
            ("bytes", bytes.to_string()),
            ("placement", quoted("namespaces")),
            ("mtu", self.mtu.to_string()),
            ("wait", quoted(if self.spins { "spin" } else { "block" })),
        ];
        let column = |value: fn(&Point) -> f64| points.iter().map(value).collect::<Vec<_>>();
        params.extend((self.gigabits > 0).then(|| ("gigabits", self.gigabits.to_string())));
        if let Party::Swept(at) = party {
            params.extend(self.sweep.param(at));
        }
        if self.kind == Kind::Copies {
            params.push(("posted", quoted(if party == Party::Ours { "before" } else { "late" })));
        } else if self.kind == Kind::Overlap {
            params.push(("service", (party == Party::Ours).to_string()));
            params.push(("computing", format!("{:.3}", spread(column(|it| it.computing)).0)));
        } else {
            params.push(("frames", format!("{:.2}", spread(column(|point| point.frames)).0)));
        }
        if self.kind == Kind::Loss {
            let lost_ppm = if party == Party::Ours { LOST_PPM } else { 0 };
            params.push(("lost_ppm", lost_ppm.to_string()));
            params.push(("longest_gap_ms", format!("{:.2}", spread(column(|it| it.gap)).2)));
        }
        params.push(("dma_latency", dma.into()));
        params
    }
}
