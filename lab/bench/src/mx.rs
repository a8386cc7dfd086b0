//! The figures of the MX papers: round trips and bandwidth by size, what a receiver that computes does not see,
//! and what lost frames cost, between two network namespaces that a pair of virtual cards joins.
//!
//! Ours goes through endpoints and tagged messages over each network that MX is carried on; beside it, in turn,
//! bare frames, datagrams and streams. Bandwidths count 10^6 bytes.
//!
//! * [`mod@rows`]: which rows there are; [`wire`]: the namespaces; [`relay`]: what loses frames;
//! * [`side`]: the processes; [`ours`], [`bare`]: what they do.

mod bare;
mod ours;
mod relay;
mod rows;
mod side;
mod wire;

use std::collections::BTreeMap;

use anyhow::{Context, bail};

use crate::host;
use crate::lab::{Options, alternate, hold_dma_latency, quoted, version};
use crate::mx::rows::{Kind, Row, rows_of};
use crate::mx::side::{Role, warm};
use crate::mx::wire::Wire;
use crate::net::WARM;
use crate::process::Process;
use crate::report::{self, Outcome};
use crate::series::{OURS, interval, spread};

/// Of a million frames, where some are lost.
const LOST_PPM: u32 = 10_000;

/// Who takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Party {
    Ours,
    /// Without what the row is about: the service thread, or the losses.
    Without,
    Raw,
}

/// One measurement of a size.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
struct Point {
    /// Microseconds of half a round trip, or MB/s, or percent.
    value: f64,
    /// The slowest half round trip of a hundred; 0 elsewhere.
    p99: f64,
    /// Processor time of both sides: microseconds a message, or seconds a GB.
    cpu: f64,
    /// Frames of both directions for each message.
    frames: f64,
    /// The longest time without a message, in ms.
    gap: f64,
    /// How long computing takes while a message comes, as a multiple of what it takes alone.
    computing: f64,
}

/// Namespaces by the MTU of their cards, and by what a relay between them loses.
#[derive(Default)]
struct Wires(BTreeMap<(usize, Option<u32>), Wire>);

impl Wires {
    fn get(&mut self, mtu: usize, lost_ppm: Option<u32>) -> anyhow::Result<&Wire> {
        use std::collections::btree_map::Entry;
        Ok(match self.0.entry((mtu, lost_ppm)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(match lost_ppm {
                None => Wire::direct(mtu)?,
                Some(lost_ppm) => Wire::relayed(mtu, lost_ppm)?,
            }),
        })
    }
}

/// Plays a part that has begun with `mx `.
pub(crate) fn serve(part: &str) -> anyhow::Result<()> {
    match part.split_once(' ').unwrap_or((part, "")) {
        ("hold", _) => wire::hold(),
        ("relay", words) => relay::run(words),
        ("side", words) => side::serve(words),
        (other, _) => bail!("nobody knows what '{other}' is"),
    }
}

/// Measures everything that is wanted; what cannot be measured is named on stderr.
///
/// # Errors
/// There can be no network namespaces.
pub fn mx(options: &Options, emit: &mut dyn FnMut(&Outcome)) -> anyhow::Result<()> {
    let held = options.hold_dma_latency.then(hold_dma_latency).flatten();
    let dma = if held.is_some() { "\"held\"" } else { "\"default\"" };
    let mut wires = Wires::default();
    wires.get(1500, None)?;
    for row in rows_of(options.quick, options.scale) {
        if !options.wanted(&row.name) {
            continue;
        }
        let parties = row.parties(options.peers);
        let names = parties.iter().map(|party| format!("{}: {}", row.name, row.medium(*party)));
        let names: Vec<String> = names.collect();
        let found = alternate(options, options.runs(), &names, |turn, _| {
            row.measure(parties[turn], &mut wires)
        });
        for outcome in row.outcomes(parties, &found, dma) {
            emit(&outcome);
        }
    }
    Ok(())
}

/// The names of all rows.
pub fn rows() -> Vec<String> {
    rows_of(false, 1.0).into_iter().map(|row| row.name).collect()
}

/// Round trips and bandwidths by size: a figure for each way of waiting and each MTU.
pub fn figures(outcomes: &[Outcome]) -> String {
    let mut figures = Vec::new();
    for (what, metric) in [("latency.", "latency"), ("bandwidth.", "bandwidth")] {
        for ending in ["1500.spin", "1500.block", "9000.spin", "9000.block"] {
            let mut found: Vec<Outcome> = Vec::new();
            let fitting = outcomes.iter().filter(|it| {
                it.scenario.starts_with(what)
                    && it.scenario.ends_with(ending)
                    && it.metric == metric
            });
            for one in fitting {
                // A reference stands beside several of ours.
                let key = |it: &Outcome| (it.medium, it.system, it.param("bytes").to_string());
                if found.iter().all(|other| key(other) != key(one)) {
                    found.push(one.clone());
                }
            }
            if !found.is_empty() {
                let of = ending.split_once('.').map_or("", |(mtu, _)| mtu);
                figures.push(report::figure_of(&found, metric, &format!(", MTU {of}")));
            }
        }
    }
    report::stack(&figures)
}

impl Row {
    fn parties(&self, peers: bool) -> &'static [Party] {
        match self.kind {
            Kind::Latency | Kind::Bandwidth if peers => &[Party::Ours, Party::Raw],
            Kind::Latency | Kind::Bandwidth => &[Party::Ours],
            Kind::Overlap | Kind::Loss => &[Party::Ours, Party::Without],
        }
    }

    fn medium(&self, party: Party) -> &'static str {
        match party {
            Party::Raw => self.network.bare_name(),
            Party::Ours | Party::Without => self.network.name(),
        }
    }

    fn measure(&self, party: Party, wires: &mut Wires) -> anyhow::Result<Vec<Option<Point>>> {
        let lost_ppm = match (self.kind, party) {
            (Kind::Loss, Party::Without) => Some(0),
            (Kind::Loss, _) => Some(LOST_PPM),
            _ => None,
        };
        let wire = wires.get(self.mtu, lost_ppm)?;
        let alone = matches!(self.kind, Kind::Latency | Kind::Bandwidth);
        let role = Role {
            network: self.network,
            bare: party == Party::Raw,
            mtu: self.mtu,
            spins: self.spins,
            service: !(self.kind == Kind::Overlap && party == Party::Without),
            // Where a thread computes, or a relay runs, the kernel knows better.
            pinned: alone && host::cores() >= 2,
            holder: 0,
            side: 0,
        };
        let mut pair = wire.start(&role)?;
        self.sizes.iter().map(|bytes| self.measure_size(&mut pair, *bytes)).collect()
    }

    fn measure_size(&self, pair: &mut [Process; 2], bytes: usize) -> anyhow::Result<Option<Point>> {
        let count = if self.kind == Kind::Overlap { self.amount } else { self.count(bytes) };
        let what = match self.kind {
            Kind::Latency => "latency",
            Kind::Bandwidth | Kind::Loss => "bandwidth",
            Kind::Overlap => "overlap",
        };
        let used = |pair: &[Process; 2]| -> u64 {
            pair.iter().map(|process| host::cpu_nanos(process.id())).sum()
        };
        let line = format!("{what} {bytes} {count}");
        pair[1].tell(&line)?;
        pair[1].hear_word("ready")?;
        let before = used(pair);
        pair[0].tell(&line)?;
        let told = pair[0].hear()?;
        if told == "none" {
            pair[1].hear_word("done")?;
            return Ok(None);
        }
        let answer = pair[1].numbers()?;
        let cpu = used(pair).saturating_sub(before) as f64;
        let told = told.split(' ').skip(1).map(|word| word.parse().ok());
        let told: Vec<u64> = told.collect::<Option<_>>().context("an answer is no number")?;
        let point = match (self.kind, &told[..], &answer[..]) {
            (Kind::Latency, [median, p99, frames], _) => {
                let messages = 2.0 * (count + warm(count)) as f64;
                Point {
                    value: *median as f64 / 2e3,
                    p99: *p99 as f64 / 2e3,
                    cpu: cpu / 1e3 / messages,
                    frames: *frames as f64 / messages,
                    ..Point::default()
                }
            }
            (Kind::Bandwidth | Kind::Loss, [nanos, frames], [gap]) => {
                let (messages, all) = (count as f64, (count + count.min(WARM)) as f64);
                Point {
                    value: messages * bytes as f64 * 1e3 / (*nanos).max(1) as f64,
                    p99: 0.0,
                    cpu: cpu / (all * bytes as f64),
                    frames: *frames as f64 / all,
                    gap: *gap as f64 / 1e6,
                    ..Point::default()
                }
            }
            (Kind::Overlap, _, [alone, beside, message, rest]) => {
                let part = |a: &u64, b: &u64| *a as f64 / (*b).max(1) as f64;
                let value = 100.0 * (1.0 - part(rest, message)).max(0.0);
                Point { value, computing: part(beside, alone), ..Point::default() }
            }
            _ => bail!("an answer is too short"),
        };
        Ok(Some(point))
    }

    fn outcomes(
        &self,
        parties: &[Party],
        found: &[Vec<Vec<Option<Point>>>],
        dma: &str,
    ) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for (index, bytes) in self.sizes.iter().enumerate() {
            let points = |turn: usize| -> Vec<Point> {
                found[turn].iter().filter_map(|points| points[index]).collect()
            };
            for (turn, party) in parties.iter().enumerate() {
                let own = points(turn);
                if own.is_empty() {
                    continue;
                }
                let column = |value: fn(&Point) -> f64| own.iter().map(value).collect::<Vec<_>>();
                let mut params = self.params(*party, *bytes, &own, dma);
                let mut ratio = None;
                if *party == Party::Ours && self.kind != Kind::Overlap && parties.len() > 1 {
                    ratio = self.ratio(&own, &points(1), &mut params);
                }
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
                let (median, min, max) = spread(column(|point| point.cpu));
                let cpu = ("cpu", cpu_unit);
                let beside = Outcome {
                    metric: cpu.0,
                    unit: cpu.1,
                    median,
                    min,
                    max,
                    p99: max,
                    ratio: None,
                    ..main.clone()
                };
                outcomes.push(main);
                if self.kind != Kind::Overlap {
                    outcomes.push(beside);
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
            Kind::Overlap => ("overlap", "%", "%"),
        }
    }

    /// Ours as a multiple of the other one, run by run: the median, whose interval becomes a parameter.
    fn ratio(
        &self,
        ours: &[Point],
        other: &[Point],
        params: &mut Vec<(&'static str, String)>,
    ) -> Option<(f64, &'static str)> {
        let pairs: Vec<f64> = ours.iter().zip(other).map(|(a, b)| a.value / b.value).collect();
        if pairs.is_empty() {
            return None;
        }
        let (middle, from, to) = interval(pairs);
        let (name, to_whom) = match self.kind {
            Kind::Loss => ("ratio_lossless", "lossless"),
            _ => ("ratio_raw", "raw"),
        };
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
        if self.kind == Kind::Overlap {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_beside_several_of_ours_is_drawn_once() {
        let outcome = |scenario: &str, system, medium, bytes: usize| Outcome {
            scenario: scenario.into(),
            system,
            version: "1".into(),
            medium,
            params: vec![("bytes", bytes.to_string())],
            metric: "latency",
            unit: "us",
            median: 2.0,
            min: 1.0,
            max: 3.0,
            p99: 3.0,
            runs: 1,
            ratio: None,
        };
        let mut all = Vec::new();
        for (scenario, medium) in
            [("latency.ether.1500.spin", "ether"), ("latency.mxoe.1500.spin", "mxoe")]
        {
            for bytes in [0, 32] {
                all.push(outcome(scenario, "ropewalk", medium, bytes));
                all.push(outcome(scenario, "raw", "frames", bytes));
            }
        }
        let drawn = figures(&all);
        assert_eq!(drawn.matches("<polyline").count(), 3, "{drawn}");
        assert!(drawn.contains("MTU 1500") && !drawn.contains("inf"), "{drawn}");
    }
}
