//! Two associations over the same rails, each with a stream: the part that the one with less gets, whichever begins first.

use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, bail};
use ropewalk_netns::{Topology, TopologyConfig};

use crate::host::monotonic_nanos;
use crate::lab::{Options, alternate, quoted, version};
use crate::paths::presence::Medium;
use crate::paths::side::{System, pair_part};
use crate::paths::stream::{Arrivals, MESSAGE_BYTES};
use crate::process::Process;
use crate::report::Outcome;
use crate::series::{OURS, spread};

const RAILS: usize = 2;
const RATE_KBIT: u64 = 1_000_000;
/// The part that each gets at least, in percent.
const TARGET: f64 = 25.0;
/// From the beginning of a stream to when its part counts.
const WARM: Duration = Duration::from_millis(500);

/// Whose associations they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Of one endpoint, which sends to two others.
    Shared,
    /// The same; one of them begins later, while the other has all.
    Late,
    /// Of two processes, which know nothing of each other.
    Apart,
}

#[derive(Debug, Clone, Copy)]
struct Row {
    kind: Kind,
    medium: Medium,
}

/// What a run found: the part of the first one in percent, and MB/s of both.
#[derive(Debug, Clone, Copy)]
struct Found {
    first: f64,
    together: f64,
}

impl Found {
    fn least(&self) -> f64 {
        self.first.min(100.0 - self.first)
    }
}

fn rows_of(quick: bool) -> Vec<Row> {
    let kinds = [Kind::Shared, Kind::Late, Kind::Apart];
    let rows = Medium::ALL.into_iter().flat_map(|medium| kinds.map(|kind| Row { kind, medium }));
    let is_quick = |row: &Row| (row.kind, row.medium) == (Kind::Late, Medium::Tcp);
    rows.filter(|row| !quick || is_quick(row)).collect()
}

/// The names of all rows, or of those that are measured where it has to be quick.
pub fn rows(quick: bool) -> Vec<String> {
    rows_of(quick).iter().map(Row::name).collect()
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
        let kind = match self.kind {
            Kind::Shared => "shared",
            Kind::Late => "late",
            Kind::Apart => "apart",
        };
        format!("fair.{kind}.{}", self.medium.name())
    }

    /// Odd runs begin with the other association.
    fn run(&self, time: Duration, run: usize) -> anyhow::Result<Found> {
        let config =
            TopologyConfig { rails: RAILS, rate_kbit: Some(RATE_KBIT), ..Default::default() };
        let topology = Topology::new(&config)?;
        let start = |side: usize, part: &dyn Fn(&str) -> String| {
            let host = topology.host(side);
            let places = self.medium.places_at(host, 0..RAILS);
            Process::start(host.command(std::env::current_exe()?), &part(&places))
        };
        let stream =
            |side: usize| start(side, &|places| System::Ours(self.medium).part(side, places));
        let mut receivers = [stream(1)?, stream(1)?];
        let mut senders = match self.kind {
            Kind::Apart => vec![stream(0)?, stream(0)?],
            _ => vec![start(0, &|places| pair_part(self.medium, places))?],
        };
        let mut urls = Vec::new();
        for sender in &mut senders {
            urls.push(sender.hear_word("url")?);
        }
        for (place, receiver) in receivers.iter_mut().enumerate() {
            let far = receiver.hear_word("url")?;
            receiver.tell(&urls[place % urls.len()])?;
            senders[place % urls.len()].tell(&far)?;
        }
        senders.iter_mut().try_for_each(|sender| sender.hear_word("met").map(drop))?;
        receivers.iter_mut().try_for_each(|receiver| receiver.hear_word("met").map(drop))?;
        let nanos = |time: Duration| time.as_nanos() as u64;
        let late = if self.kind == Kind::Late { nanos(WARM) } else { 0 };
        let now = monotonic_nanos();
        let begin = now + late + nanos(WARM);
        let until = begin + nanos(time);
        let starts = if run.is_multiple_of(2) { [now, now + late] } else { [now + late, now] };
        for sender in &mut senders {
            match self.kind {
                Kind::Apart => sender.tell(&until.to_string())?,
                _ => sender.tell(&format!("{} {} {until}", starts[0], starts[1]))?,
            }
        }
        let mut sent = Vec::new();
        for sender in &mut senders {
            let counts = sender.numbers()?;
            sent.extend_from_slice(if self.kind == Kind::Apart {
                &counts[..1]
            } else {
                &counts[..]
            });
        }
        let mut bytes = [0.0; 2];
        for ((receiver, bytes), sent) in receivers.iter_mut().zip(&mut bytes).zip(sent) {
            *bytes = bytes_of(receiver, sent, begin..until)?;
        }
        Ok(judge(bytes, time))
    }

    fn outcome(&self, found: &[Found]) -> Outcome {
        let (median, min, max) = spread(found.iter().map(Found::least).collect());
        let together = spread(found.iter().map(|one| one.together).collect()).0;
        let below = found.iter().filter(|one| one.least() < TARGET).count();
        Outcome {
            scenario: self.name(),
            system: OURS,
            version: version(),
            medium: self.medium.name(),
            params: vec![
                ("bytes", MESSAGE_BYTES.to_string()),
                ("placement", quoted("namespaces")),
                ("rails", RAILS.to_string()),
                ("together_mbs", format!("{together:.1}")),
                ("target_percent", TARGET.to_string()),
                ("below_target", below.to_string()),
            ],
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
fn judge(bytes: [f64; 2], time: Duration) -> Found {
    let sum = bytes[0] + bytes[1];
    let first = 100.0 * bytes[0] / sum.max(1.0);
    Found { first, together: sum / 1e6 / time.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_of_the_one_with_less_counts() {
        let found = judge([75e6, 25e6], Duration::from_secs(2));
        assert_eq!((found.first, found.least(), found.together), (75.0, 25.0, 50.0));
        assert_eq!(judge([0.0, 1e6], Duration::from_secs(1)).least(), 0.0);
    }

    #[test]
    fn the_quick_row_is_one_of_all() {
        assert_eq!((rows(false).len(), rows(true)), (9, vec!["fair.late.tcp".to_string()]));
        assert!(rows(false).contains(&rows(true)[0]));
    }
}
