//! The figures of the MX papers: round trips and bandwidth by size, the overlap of communication with a receiver's
//! computing, and the cost of lost frames. They go between two network namespaces that a pair of virtual cards joins.
//!
//! Ours goes through endpoints and tagged messages over each network that MX is carried on; beside it, in turn,
//! bare frames, datagrams and streams. Bandwidths count 10^6 bytes.
//!
//! * [`mod@rows`], [`sweeps`]: the rows; [`wire`]: the namespaces; [`relay`]: the relay that loses frames;
//! * [`side`]: the processes; [`ours`], [`many`], [`copies`], [`bare`]: their operations;
//! * [`outcomes`], [`mod@figures`]: the results, and pictures of them.

mod bare;
mod copies;
mod figures;
mod many;
mod ours;
mod outcomes;
mod relay;
mod rows;
mod side;
mod sweeps;
mod wire;

use std::collections::BTreeMap;

use anyhow::{Context, bail};

use crate::host;
use crate::lab::{Options, alternate, hold_dma_latency};
pub use crate::mx::figures::figures;
use crate::mx::rows::{Kind, Row, rows_of};
use crate::mx::side::{Role, warm};
use crate::mx::sweeps::Sweep;
use crate::mx::wire::{Line, Wire};
use crate::net::WARM;
use crate::process::Process;
use crate::report::Outcome;

/// The lost frames of a million, in rows with losses.
const LOST_PPM: u32 = 10_000;

/// A party of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Party {
    Ours,
    /// Ours, without the condition that the row examines: the service thread, or the losses.
    Without,
    Raw,
    /// Ours, with this setting of those that the row sweeps.
    Swept(usize),
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
    /// The time of computing while a message comes, as a multiple of the time alone.
    computing: f64,
    /// Bytes that the sender copies for each of a message.
    sent: f64,
}

/// Namespaces by the link between them.
#[derive(Default)]
struct Wires(BTreeMap<Line, Wire>);

impl Wires {
    fn get(&mut self, line: Line) -> anyhow::Result<&Wire> {
        use std::collections::btree_map::Entry;
        Ok(match self.0.entry(line) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Wire::new(&line)?),
        })
    }
}

/// Plays a part that has begun with `mx `.
pub(crate) fn serve(part: &str) -> anyhow::Result<()> {
    match part.split_once(' ').unwrap_or((part, "")) {
        ("hold", _) => wire::hold(),
        ("relay", words) => relay::run(words),
        ("side", words) => side::serve(words),
        ("idle", words) => side::idle(words),
        (other, _) => bail!("nobody knows what '{other}' is"),
    }
}

/// Measures everything that is wanted; measurements that fail are named on stderr.
///
/// # Errors
/// There can be no network namespaces.
pub fn mx(options: &Options, emit: &mut dyn FnMut(&Outcome)) -> anyhow::Result<()> {
    let held = options.hold_dma_latency.then(hold_dma_latency).flatten();
    let dma = if held.is_some() { "\"held\"" } else { "\"default\"" };
    let mut wires = Wires::default();
    wires.get(Line { mtu: 1500, lost_ppm: None, gigabits: 0, waits: None })?;
    for mut row in rows_of(options.quick, options.scale) {
        if !options.sizes.is_empty() {
            row.sizes.retain(|bytes| options.sizes.contains(bytes));
        }
        if row.sizes.is_empty() || !options.wanted(&row.name) {
            continue;
        }
        let parties = row.parties(options.peers);
        let names = parties.iter().map(|party| format!("{}: {}", row.name, row.medium(*party)));
        let names: Vec<String> = names.collect();
        let found = alternate(options, options.runs(), &names, |turn, _| {
            row.measure(parties[turn], &mut wires)
        });
        for outcome in row.outcomes(&parties, &found, dma) {
            emit(&outcome);
        }
    }
    Ok(())
}

/// The names of all rows, or of those that are measured where it has to be quick.
pub fn rows(quick: bool) -> Vec<String> {
    rows_of(quick, 1.0).into_iter().map(|row| row.name).collect()
}

impl Row {
    fn parties(&self, peers: bool) -> Vec<Party> {
        if self.sweep != Sweep::Nothing {
            return (0..self.sweep.len()).map(Party::Swept).collect();
        }
        match self.kind {
            Kind::Latency | Kind::Bandwidth | Kind::BothWays if peers => {
                vec![Party::Ours, Party::Raw]
            }
            Kind::Latency | Kind::Bandwidth | Kind::BothWays | Kind::Rate => vec![Party::Ours],
            Kind::Overlap | Kind::Loss | Kind::Copies => vec![Party::Ours, Party::Without],
        }
    }

    fn medium(&self, party: Party) -> &'static str {
        match party {
            Party::Raw => self.network.bare_name(),
            Party::Ours | Party::Without | Party::Swept(_) => self.network.name(),
        }
    }

    /// The link that carries a party's messages.
    fn line(&self, party: Party) -> Line {
        let lost_ppm = match (self.kind, party) {
            (Kind::Loss, Party::Without) => Some(0),
            (Kind::Loss, _) => Some(LOST_PPM),
            _ => None,
        };
        let waits = match party {
            Party::Swept(at) => self.sweep.waits(at),
            _ => None,
        };
        Line { mtu: self.mtu, lost_ppm, gigabits: self.gigabits, waits }
    }

    fn role(&self, party: Party) -> Role {
        let alone = matches!(self.kind, Kind::Latency | Kind::Bandwidth | Kind::BothWays);
        let (sweep, at) = match party {
            Party::Swept(at) => (self.sweep, at),
            _ => (Sweep::Nothing, 0),
        };
        Role {
            network: self.network,
            bare: party == Party::Raw,
            mtu: self.mtu,
            spins: self.spins,
            service: !(self.kind == Kind::Overlap && party == Party::Without),
            // If a thread computes or a relay runs, the kernel's placement of threads is better.
            pinned: alone && host::cores() >= 2,
            holder: 0,
            side: 0,
            eager: sweep.eager(at),
            endpoints: sweep.endpoints(at),
            neighbours: sweep.neighbours(at).0,
        }
    }

    fn measure(&self, party: Party, wires: &mut Wires) -> anyhow::Result<Vec<Option<Point>>> {
        let (wire, role) = (wires.get(self.line(party))?, self.role(party));
        let processes = match party {
            Party::Swept(at) => self.sweep.neighbours(at).1,
            _ => 0,
        };
        let _crowd = wire.crowd(&role, processes)?;
        let mut pair = wire.start(&role)?;
        let measured = self.sizes.iter().map(|bytes| self.measure_size(party, &mut pair, *bytes));
        measured.collect()
    }

    /// The word for it, and how many messages or rounds.
    fn work(&self, party: Party, bytes: usize) -> (&'static str, usize) {
        match self.kind {
            Kind::Latency => ("latency", self.count(bytes)),
            Kind::Bandwidth | Kind::Loss | Kind::Rate => ("bandwidth", self.count(bytes)),
            Kind::BothWays => ("exchange", self.count(bytes)),
            Kind::Overlap => ("overlap", self.amount),
            Kind::Copies if party == Party::Without => ("late", self.amount),
            Kind::Copies => ("posted", self.amount),
        }
    }

    fn measure_size(
        &self,
        party: Party,
        pair: &mut [Process; 2],
        bytes: usize,
    ) -> anyhow::Result<Option<Point>> {
        let (what, count) = self.work(party, bytes);
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
        self.point((bytes, count), &told, &answer, cpu).map(Some)
    }

    /// Computes the figures from the answers of both sides, for `count` messages of a size and `cpu` nanoseconds of
    /// processor time.
    fn point(
        &self,
        (bytes, count): (usize, usize),
        told: &[u64],
        answer: &[u64],
        cpu: f64,
    ) -> anyhow::Result<Point> {
        let messages = count as f64;
        let part = |a: u64, b: u64| a as f64 / b.max(1) as f64;
        Ok(match (self.kind, told, answer) {
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
                let all = (count + count.min(WARM)) as f64;
                Point {
                    value: messages * bytes as f64 * 1e3 / (*nanos).max(1) as f64,
                    cpu: cpu / (all * bytes as f64),
                    frames: *frames as f64 / all,
                    gap: *gap as f64 / 1e6,
                    ..Point::default()
                }
            }
            (Kind::BothWays, [nanos, frames], _) => {
                let all = 2.0 * (count + warm(count)) as f64;
                Point {
                    value: 2.0 * messages * bytes as f64 * 1e3 / (*nanos).max(1) as f64,
                    cpu: cpu / (all * bytes as f64),
                    frames: *frames as f64 / all,
                    ..Point::default()
                }
            }
            (Kind::Rate, [nanos, frames], _) => Point {
                value: messages * 1e9 / (*nanos).max(1) as f64,
                cpu: cpu / 1e3 / messages,
                frames: *frames as f64 / messages,
                ..Point::default()
            },
            (Kind::Overlap, _, [alone, beside, message, rest]) => {
                let value = 100.0 * (1.0 - part(*rest, *message)).max(0.0);
                Point { value, computing: part(*beside, *alone), ..Point::default() }
            }
            (Kind::Copies, [sent], [received]) => {
                let all = (count * bytes) as u64;
                let (value, sent) = (part(*received, all), part(*sent, all));
                Point { value, sent, ..Point::default() }
            }
            _ => bail!("an answer is too short"),
        })
    }
}
