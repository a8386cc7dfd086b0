//! Two associations over the same rails, each with a stream: the part that the one with less gets, whichever begins first.

use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, bail};
use ropewalk_netns::{Topology, TopologyConfig};

use crate::host::monotonic_nanos;
use crate::lab::{Options, alternate, quoted, version};
use crate::paths::guide::Kin;
use crate::paths::presence::Medium;
use crate::paths::side::{System, pair_part};
use crate::paths::stream::{Arrivals, MESSAGE_BYTES};
use crate::paths::verdict::{Verdict, listed};
use crate::process::Process;
use crate::report::Outcome;
use crate::series::{OURS, spread};

const RAILS: usize = 2;
/// The part that each gets at least, in percent.
const TARGET: f64 = 25.0;
/// From the beginning of the first stream to that of a late one.
const WARM: Duration = Duration::from_millis(500);
/// A process starts, and meets its peer, within that.
const JOIN: Duration = Duration::from_millis(1000);
/// From the beginning of the last stream to when parts count.
const SETTLED: Duration = Duration::from_millis(200);

/// Whose associations they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Of one endpoint, which sends to two others.
    Shared,
    /// The same; one of them begins later, while the other has all.
    Late,
    /// Of two processes, which know nothing of each other.
    Apart,
    /// The same; one of them starts later, and finds the other one's queue.
    ApartLate,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Shared, Kind::Late, Kind::Apart, Kind::ApartLate];

    fn name(self) -> &'static str {
        match self {
            Kind::Shared => "shared",
            Kind::Late => "late",
            Kind::Apart => "apart",
            Kind::ApartLate => "apart-late",
        }
    }

    fn is_apart(self) -> bool {
        matches!(self, Kind::Apart | Kind::ApartLate)
    }
}

#[derive(Debug, Clone, Copy)]
struct Row {
    kind: Kind,
    rate: Rate,
    medium: Medium,
}

/// The rate of each rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rate {
    Usual,
    Slow,
}

impl Rate {
    fn name(self) -> &'static str {
        match self {
            Rate::Usual => "1g",
            Rate::Slow => "50m",
        }
    }

    fn kbit(self) -> u64 {
        match self {
            Rate::Usual => 1_000_000,
            Rate::Slow => 50_000,
        }
    }
}

/// A sender and its receiver, which know each other.
struct Stream {
    sender: Process,
    receiver: Process,
}

/// What a run found: the part of the first one in percent, MB/s of both, and frames that went again.
#[derive(Debug, Clone, Copy)]
struct Found {
    first: f64,
    together: f64,
    re_sent: u64,
}

impl Found {
    fn least(&self) -> f64 {
        self.first.min(100.0 - self.first)
    }
}

fn rows_of(quick: bool) -> Vec<Row> {
    let kinds =
        || [Rate::Usual, Rate::Slow].into_iter().flat_map(|rate| Kind::ALL.map(|it| (rate, it)));
    let rows = Medium::ALL
        .into_iter()
        .flat_map(|medium| kinds().map(move |(rate, kind)| Row { kind, rate, medium }));
    let is_quick =
        |row: &Row| (row.kind, row.rate, row.medium) == (Kind::ApartLate, Rate::Usual, Medium::Tcp);
    rows.filter(|row| !quick || is_quick(row)).collect()
}

/// The names of all rows, or of those that are measured where it has to be quick.
pub fn rows(quick: bool) -> Vec<String> {
    rows_of(quick).iter().map(Row::name).collect()
}

/// What they measure.
pub fn kin() -> Kin {
    Kin {
        names: "fair.WHOSE.RATE.MEDIUM",
        what: "two streams over one pair of rails: the part of the one that gets less",
        reach: format!("{TARGET} %"),
    }
}

/// Measures the rows that are wanted.
///
/// # Errors
/// There can be no network namespaces; or a message was lost, doubled, reordered or changed.
pub fn fair(options: &Options, emit: &mut dyn FnMut(&Outcome)) -> anyhow::Result<()> {
    let time = Duration::from_millis(options.amount(2000, 700).max(700));
    for row in rows_of(options.quick).into_iter().filter(|row| options.wanted(&row.name())) {
        let names = [format!("{}: {OURS}", row.name())];
        let found = alternate(options, options.runs(), &names, |_, run| row.run(time, run));
        if let Some(found) = found.first().filter(|found| !found.is_empty()) {
            emit(&row.outcome(found));
        }
    }
    Ok(())
}

impl Row {
    fn name(&self) -> String {
        format!("fair.{}.{}.{}", self.kind.name(), self.rate.name(), self.medium.name())
    }

    fn run(&self, time: Duration, run: usize) -> anyhow::Result<Found> {
        let kbit = Some(self.rate.kbit());
        let config = TopologyConfig { rails: RAILS, rate_kbit: kbit, ..Default::default() };
        let topology = Topology::new(&config)?;
        match self.kind.is_apart() {
            true => self.run_apart(&topology, time),
            false => self.run_shared(&topology, time, run),
        }
    }

    /// A process at one side, with its part.
    fn start(
        &self,
        topology: &Topology,
        side: usize,
        part: impl FnOnce(&str) -> String,
    ) -> anyhow::Result<Process> {
        let host = topology.host(side);
        let places = self.medium.places_at(host, 0..RAILS);
        Process::start(host.command(std::env::current_exe()?), &part(&places))
    }

    fn start_side(&self, topology: &Topology, side: usize) -> anyhow::Result<Process> {
        self.start(topology, side, |places| System::Ours(self.medium).part(side, places))
    }

    /// A stream of two new processes.
    fn meet(&self, topology: &Topology) -> anyhow::Result<Stream> {
        let (mut sender, mut receiver) =
            (self.start_side(topology, 0)?, self.start_side(topology, 1)?);
        let (near, far) = (sender.hear_word("url")?, receiver.hear_word("url")?);
        receiver.tell(&near)?;
        sender.tell(&far)?;
        sender.hear_word("met")?;
        receiver.hear_word("met")?;
        Ok(Stream { sender, receiver })
    }

    /// Two senders.
    fn run_apart(&self, topology: &Topology, time: Duration) -> anyhow::Result<Found> {
        let mut first = self.meet(topology)?;
        let early = if self.kind == Kind::Apart { Some(self.meet(topology)?) } else { None };
        let until = monotonic_nanos() + nanos(2 * WARM + JOIN + time);
        first.sender.tell(&until.to_string())?;
        let mut second = match early {
            Some(second) => second,
            None => {
                std::thread::sleep(WARM);
                self.meet(topology)?
            }
        };
        second.sender.tell(&until.to_string())?;
        let begin = monotonic_nanos() + nanos(SETTLED);
        let (mut bytes, mut re_sent) = ([0.0; 2], 0);
        for (stream, bytes) in [&mut first, &mut second].into_iter().zip(&mut bytes) {
            let counts = stream.sender.numbers()?;
            let [sent, again] = counts[..] else { bail!("a sender said {counts:?}") };
            *bytes = bytes_of(&mut stream.receiver, sent, begin..until)?;
            re_sent += again;
        }
        Ok(judge(bytes, Duration::from_nanos(until.saturating_sub(begin)), re_sent))
    }

    /// One sender, and two receivers. Odd runs begin with the other association.
    fn run_shared(&self, topology: &Topology, time: Duration, run: usize) -> anyhow::Result<Found> {
        let mut receivers = [self.start_side(topology, 1)?, self.start_side(topology, 1)?];
        let mut sender = self.start(topology, 0, |places| pair_part(self.medium, places))?;
        let near = sender.hear_word("url")?;
        for receiver in &mut receivers {
            let far = receiver.hear_word("url")?;
            receiver.tell(&near)?;
            sender.tell(&far)?;
        }
        sender.hear_word("met")?;
        receivers.iter_mut().try_for_each(|receiver| receiver.hear_word("met").map(drop))?;
        let late = if self.kind == Kind::Late { nanos(WARM) } else { 0 };
        let now = monotonic_nanos();
        let begin = now + late + nanos(SETTLED);
        let until = begin + nanos(time);
        let starts = if run.is_multiple_of(2) { [now, now + late] } else { [now + late, now] };
        sender.tell(&format!("{} {} {until}", starts[0], starts[1]))?;
        let counts = sender.numbers()?;
        let [first, second, re_sent] = counts[..] else { bail!("a sender said {counts:?}") };
        let mut bytes = [0.0; 2];
        for ((receiver, bytes), sent) in receivers.iter_mut().zip(&mut bytes).zip([first, second]) {
            *bytes = bytes_of(receiver, sent, begin..until)?;
        }
        Ok(judge(bytes, time, re_sent))
    }

    fn outcome(&self, found: &[Found]) -> Outcome {
        let (median, min, max) = spread(found.iter().map(Found::least).collect());
        let together = spread(found.iter().map(|one| one.together).collect()).0;
        let least: Vec<f64> = found.iter().map(Found::least).collect();
        let verdict = Verdict::at_least(TARGET, "%", &least);
        let mut params = vec![
            ("bytes", MESSAGE_BYTES.to_string()),
            ("placement", quoted("namespaces")),
            ("rate", quoted(self.rate.name())),
            ("rails", RAILS.to_string()),
            ("together_mbs", format!("{together:.1}")),
            ("re_sent", found.iter().map(|one| one.re_sent).sum::<u64>().to_string()),
        ];
        params.extend(verdict.params());
        let firsts: Vec<f64> = found.iter().map(|one| one.first).collect();
        params.push(("trials", listed(&firsts)));
        Outcome {
            scenario: self.name(),
            system: OURS,
            version: version(),
            medium: self.medium.name(),
            params,
            metric: "least_share",
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

fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// The bytes that a receiver got in this time, of so many messages, which came once, whole and in order.
fn bytes_of(receiver: &mut Process, sent: u64, span: Range<u64>) -> anyhow::Result<f64> {
    let came = receiver.hear_word("came")?;
    let arrivals = Arrivals::decode(&came).context("a receiver does not say what came")?;
    let Arrivals { times, doubled, reordered, corrupt, .. } = &arrivals;
    if (times.len() as u64, *doubled, *reordered, *corrupt) != (sent, 0, 0, 0) {
        let came = times.len();
        bail!("{came} of {sent} messages came, {doubled} doubled, {reordered} out of order");
    }
    let inside = times.iter().filter(|time| span.contains(*time)).count();
    Ok(inside as f64 * MESSAGE_BYTES as f64)
}

/// The parts of two associations that got so many bytes in this time.
fn judge(bytes: [f64; 2], time: Duration, re_sent: u64) -> Found {
    let sum = bytes[0] + bytes[1];
    let first = 100.0 * bytes[0] / sum.max(1.0);
    Found { first, together: sum / 1e6 / time.as_secs_f64(), re_sent }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_of_the_one_with_less_counts() {
        let found = judge([75e6, 25e6], Duration::from_secs(2), 0);
        assert_eq!((found.first, found.least(), found.together), (75.0, 25.0, 50.0));
        assert_eq!(judge([0.0, 1e6], Duration::from_secs(1), 3).least(), 0.0);
    }

    #[test]
    fn the_quick_row_is_one_of_all() {
        assert_eq!(
            (rows(false).len(), rows(true)),
            (24, vec!["fair.apart-late.1g.tcp".to_string()])
        );
        assert!(rows(false).contains(&rows(true)[0]));
    }
}
