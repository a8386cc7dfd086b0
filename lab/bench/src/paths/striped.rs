//! A stream over two rails, as a part of what each of them carries alone: equal and unequal rails, one that becomes slow,
//! one that loses frames.

use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, bail};
use ropewalk_netns::{Fault, FaultKind, Injected, Topology, TopologyConfig};

use crate::host::{self, monotonic_nanos};
use crate::lab::{Options, alternate, quoted, version};
use crate::paths::bare::{join_rails, tune};
use crate::paths::guide::Kin;
use crate::paths::presence::Medium;
use crate::paths::side::System;
use crate::paths::stream::{Arrivals, MESSAGE_BYTES};
use crate::paths::verdict::{Verdict, listed};
use crate::process::Process;
use crate::report::Outcome;
use crate::series::{OURS, spread};

const RAILS: usize = 2;
/// The rate of a rail without a fault.
const RATE_KBIT: u64 = 1_000_000;
/// The time in which a slowed rail has to be noticed.
const NOTICE: Duration = Duration::from_millis(100);

/// What is wrong with the second rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Equal,
    /// It has a tenth of the rate.
    Unequal,
    /// It slows down to 0.3 of the rate in the middle.
    Slowed,
    /// It loses so many of a thousand frames.
    Loss(u32),
}

/// When the fault begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    Before,
    InTheMiddle,
}

impl Kind {
    const ALL: [Kind; 5] =
        [Kind::Equal, Kind::Unequal, Kind::Slowed, Kind::Loss(10), Kind::Loss(50)];

    fn name(self) -> String {
        match self {
            Kind::Equal => "equal".into(),
            Kind::Unequal => "unequal".into(),
            Kind::Slowed => "slowed".into(),
            Kind::Loss(permille) => format!("loss{}", permille / 10),
        }
    }

    fn fault(self) -> Option<(Fault, When)> {
        let (kind, when) = match self {
            Kind::Equal => return None,
            Kind::Unequal => (FaultKind::Rate { kbit: RATE_KBIT / 10 }, When::Before),
            Kind::Slowed => (FaultKind::Rate { kbit: RATE_KBIT * 3 / 10 }, When::InTheMiddle),
            Kind::Loss(permille) => (FaultKind::Loss { ppm: permille * 1000 }, When::Before),
        };
        Some((Fault::new(kind, 0, 1), when))
    }

    /// The part of the sum of what both rails carry alone, in percent, that both shall carry together.
    fn target(self) -> f64 {
        match self {
            Kind::Equal | Kind::Unequal | Kind::Loss(10) => 98.0,
            Kind::Slowed => 95.0,
            Kind::Loss(_) => 94.0,
        }
    }
}

/// A system in a row, over both rails and over each alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Party {
    name: &'static str,
    system: System,
    tuned: bool,
}

#[derive(Debug, Clone, Copy)]
struct Row {
    kind: Kind,
    medium: Medium,
}

/// What a run found, in MB/s.
struct Found {
    together: f64,
    alone: [f64; 2],
    /// The longest time without a message, in ms.
    gap: f64,
}

fn rows_of(quick: bool) -> Vec<Row> {
    let all = Medium::ALL.into_iter();
    let rows = all.flat_map(|medium| Kind::ALL.map(|kind| Row { kind, medium }));
    let is_quick = |row: &Row| (row.kind, row.medium) == (Kind::Unequal, Medium::Tcp);
    rows.filter(|row| !quick || is_quick(row)).collect()
}

/// The names of all rows, or of those that are measured where it has to be quick.
pub fn rows(quick: bool) -> Vec<String> {
    rows_of(quick).iter().map(Row::name).collect()
}

/// What they measure.
pub fn kin() -> Kin {
    let each = |kind: &Kind| format!("{} {} %", kind.name(), kind.target());
    Kin {
        names: "stripe.PAIR.MEDIUM",
        what: "a stream over two rails, as a part of what each carries alone",
        reach: Kind::ALL.iter().map(each).collect::<Vec<_>>().join(", "),
    }
}

/// Measures the rows that are wanted.
///
/// # Errors
/// There can be no network namespaces; or a message was lost, doubled, reordered or changed.
pub fn striped(options: &Options, emit: &mut dyn FnMut(&Outcome)) -> anyhow::Result<()> {
    let wanted = |row: &Row| options.wanted(&row.name());
    let time = Duration::from_millis(options.amount(2000, 700).max(700));
    for row in rows_of(options.quick).into_iter().filter(wanted) {
        let parties = row.parties(options.peers);
        let names: Vec<String> =
            parties.iter().map(|party| format!("{}: {}", row.name(), party.name)).collect();
        let found = alternate(options, options.runs(), &names, |turn, run| {
            row.run(&parties[turn], time, run)
        });
        for (party, found) in parties.iter().zip(&found).filter(|(_, found)| !found.is_empty()) {
            emit(&row.outcome(party, found));
        }
    }
    Ok(())
}

impl Row {
    fn name(&self) -> String {
        format!("stripe.{}.{}", self.kind.name(), self.medium.name())
    }

    fn parties(&self, peers: bool) -> Vec<Party> {
        let ours = Party { name: OURS, system: System::Ours(self.medium), tuned: false };
        let many = |name, tuned| Party { name, system: System::Many, tuned };
        let all = [ours, many("mptcp", false), many("mptcp-tuned", true)];
        all.into_iter().filter(|party| peers || party.name == OURS).collect()
    }

    fn run(&self, party: &Party, time: Duration, run: usize) -> anyhow::Result<Found> {
        let (together, gap) = self.stream(party, 0..RAILS, time, run)?;
        let mut alone = [0.0; RAILS];
        for (rail, alone) in alone.iter_mut().enumerate() {
            *alone = self.stream(party, rail..rail + 1, time, run)?.0;
        }
        Ok(Found { together, alone, gap })
    }

    /// One stream over these rails: its goodput in MB/s, and the longest time without a message in ms. What slows down
    /// counts from then on when it had to be noticed.
    fn stream(
        &self,
        party: &Party,
        rails: Range<usize>,
        time: Duration,
        run: usize,
    ) -> anyhow::Result<(f64, f64)> {
        let config =
            TopologyConfig { rails: RAILS, rate_kbit: Some(RATE_KBIT), ..Default::default() };
        let topology = Topology::new(&config)?;
        if party.system == System::Many && rails.len() > 1 {
            join_rails(&topology)?;
        }
        if party.tuned {
            tune(&topology)?;
        }
        let fault = self.kind.fault();
        let inject = |when: When| -> anyhow::Result<Option<Injected>> {
            let fault = fault.filter(|(_, at)| *at == when);
            let injected = fault.map(|(fault, _)| topology.inject(&fault.seeded(run as u64 + 1)));
            Ok(injected.transpose()?)
        };
        let _fault = inject(When::Before)?;
        let start = |side: usize| {
            let host = topology.host(side);
            let places = match party.system {
                System::Ours(medium) => medium.places_at(host, rails.clone()),
                System::Tcp | System::Many => host.address(rails.start).to_string(),
            };
            let part = party.system.part(side, &places);
            Process::start(host.command(std::env::current_exe()?), &part)
        };
        let (mut sender, mut receiver) = (start(0)?, start(1)?);
        let (near, far) = (sender.hear_word("url")?, receiver.hear_word("url")?);
        receiver.tell(&near)?;
        sender.tell(&far)?;
        sender.hear_word("met")?;
        receiver.hear_word("met")?;
        let warm = Duration::from_millis(500);
        let start = monotonic_nanos();
        let nanos = |time: Duration| time.as_nanos() as u64;
        // A command takes its time, too.
        let until = start + nanos(2 * warm + time + NOTICE + Duration::from_millis(200));
        sender.tell(&until.to_string())?;
        std::thread::sleep(warm);
        let _later = inject(When::InTheMiddle)?;
        let begin = monotonic_nanos() + nanos(NOTICE);
        let counts = sender.numbers()?;
        let [sent, _] = counts[..] else { bail!("a sender said {counts:?}") };
        let came = receiver.hear_word("came")?;
        let arrivals = Arrivals::decode(&came).context("a receiver does not say what came")?;
        let Arrivals { times, doubled, reordered, corrupt, .. } = &arrivals;
        if (times.len() as u64, *doubled, *reordered, *corrupt) != (sent, 0, 0, 0) {
            let came = times.len();
            bail!("{came} of {sent} messages came, {doubled} doubled, {reordered} out of order");
        }
        Ok(judge(times, begin..begin + nanos(time)))
    }

    fn outcome(&self, party: &Party, found: &[Found]) -> Outcome {
        let column = |of: fn(&Found) -> f64| spread(found.iter().map(of).collect());
        let part = |one: &Found| 100.0 * one.together / one.alone.iter().sum::<f64>();
        let parts: Vec<f64> = found.iter().map(part).collect();
        let verdict = Verdict::at_least(self.kind.target(), "%", &parts);
        let mut params = vec![
            ("bytes", MESSAGE_BYTES.to_string()),
            ("placement", quoted("namespaces")),
            ("rails", RAILS.to_string()),
            ("together_mbs", format!("{:.1}", column(|one| one.together).0)),
            ("first_mbs", format!("{:.1}", column(|one| one.alone[0]).0)),
            ("second_mbs", format!("{:.1}", column(|one| one.alone[1]).0)),
            ("gap_ms", format!("{:.1}", column(|one| one.gap).2)),
        ];
        params.extend(verdict.params());
        params.push(("trials", listed(&parts)));
        let (median, min, max) = spread(parts);
        let is_ours = party.name == OURS;
        Outcome {
            scenario: self.name(),
            system: party.name,
            version: if is_ours { version() } else { host::kernel() },
            medium: if is_ours { self.medium.name() } else { "tcp" },
            params,
            metric: "share",
            unit: "%",
            median,
            min,
            max,
            p99: min,
            runs: found.len(),
            ratio: None,
        }
    }
}

/// MB/s and the longest time without a message in ms.
fn judge(times: &[u64], span: Range<u64>) -> (f64, f64) {
    let inside: Vec<u64> = times.iter().copied().filter(|time| span.contains(time)).collect();
    let bytes = inside.len() as f64 * MESSAGE_BYTES as f64;
    let moments = [&[span.start], &inside[..], &[span.end]].concat();
    let gap = moments.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
    (bytes * 1e3 / (span.end - span.start) as f64, gap as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goodput_and_gap_are_those_of_the_span() {
        const MS: u64 = 1_000_000;
        let times: Vec<u64> = (0..1000).filter(|ms| !(500..520).contains(ms)).collect();
        let times: Vec<u64> = times.into_iter().map(|ms| ms * MS).collect();
        let (goodput, gap) = judge(&times, 400 * MS..600 * MS);
        assert!((goodput - 0.9 * MESSAGE_BYTES as f64 / 1e3).abs() < 0.01, "{goodput}");
        assert_eq!(gap, 21.0);
        assert_eq!(judge(&[], 0..100 * MS), (0.0, 100.0));
    }

    #[test]
    fn the_quick_row_is_one_of_all() {
        assert_eq!((rows(false).len(), rows(true)), (15, vec!["stripe.unequal.tcp".to_string()]));
        assert!(rows(false).contains(&rows(true)[0]));
    }
}
