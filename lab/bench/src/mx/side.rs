//! Both sides of a measurement, each a process in a namespace of its own: its role, and its orders.

use std::io::Write;

use anyhow::{Context, bail};

use crate::mx::bare;
use crate::mx::many::Many;
use crate::mx::ours::Ours;
use crate::mx::rows::Network;
use crate::mx::wire::{enter, frames};
use crate::process::next_line;

/// The role of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role {
    pub network: Network,
    /// Bare sockets or frames, without our library.
    pub bare: bool,
    pub mtu: usize,
    pub spins: bool,
    /// It has a thread that makes progress.
    pub service: bool,
    /// Each side stays on a core of its own.
    pub pinned: bool,
    /// The process whose namespace it is in.
    pub holder: u32,
    /// 0: it measures; 1: it answers.
    pub side: usize,
    /// Bytes of the longest message that is not announced; 0: as usual.
    pub eager: usize,
    /// Endpoints that take part at once, each with a thread; 0: one, which this thread uses.
    pub endpoints: usize,
    /// Endpoints beside the one that answers, which do nothing.
    pub neighbours: usize,
}

impl Role {
    /// For another process, behind the word that says how it takes part.
    pub fn encode(&self) -> String {
        let Role { network, bare, mtu, spins, service, pinned, holder, side, .. } = self;
        let Role { eager, endpoints, neighbours, .. } = self;
        let network = network.name();
        let common = format!("{network} {bare} {mtu} {spins} {service} {pinned} {holder} {side}");
        format!("{common} {eager} {endpoints} {neighbours}")
    }

    /// From what [`Role::encode`] says.
    fn decode(text: &str) -> Option<Role> {
        let words: Vec<&str> = text.split(' ').collect();
        let [network, bare, mtu, spins, service, pinned, holder, side, rest @ ..] = &words[..]
        else {
            return None;
        };
        let [eager, endpoints, neighbours] = rest else { return None };
        Some(Role {
            network: Network::named(network)?,
            bare: bare.parse().ok()?,
            mtu: mtu.parse().ok()?,
            spins: spins.parse().ok()?,
            service: service.parse().ok()?,
            pinned: pinned.parse().ok()?,
            holder: holder.parse().ok()?,
            side: side.parse().ok()?,
            eager: eager.parse().ok()?,
            endpoints: endpoints.parse().ok()?,
            neighbours: neighbours.parse().ok()?,
        })
    }
}

/// The times of a receiver that computes, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Computed {
    /// Computing while nothing happens, and while a message comes.
    pub alone: u64,
    pub beside: u64,
    /// The time of a message while nobody computes, and the rest of it after computing.
    pub message: u64,
    pub rest: u64,
}

/// One side, of ours or of a reference. Each method of the first side has a counterpart on the second.
pub trait Side {
    /// Its address.
    fn url(&self) -> String;
    /// Gets to know the other one.
    fn meet(&mut self, other: &str) -> anyhow::Result<()>;
    /// Nanoseconds of each of so many round trips; `None` if there is no such thing.
    fn ping(&mut self, bytes: usize, rounds: usize) -> anyhow::Result<Option<Vec<u64>>>;
    /// The other side of it.
    fn pong(&mut self, bytes: usize, rounds: usize) -> anyhow::Result<()>;
    /// Nanoseconds until the other side has so many messages.
    fn pour(&mut self, bytes: usize, count: usize) -> anyhow::Result<u64>;
    /// The other side of it: the longest time in which nothing was complete.
    fn drink(&mut self, bytes: usize, count: usize) -> anyhow::Result<u64>;
    /// Sends messages to a receiver that computes meanwhile.
    fn feed(&mut self, _bytes: usize, _rounds: usize) -> anyhow::Result<()> {
        bail!("a reference does not overlap")
    }
    /// The other side of it.
    fn compute(&mut self, _bytes: usize, _rounds: usize) -> anyhow::Result<Computed> {
        bail!("a reference does not overlap")
    }
    /// Messages both ways at once, one of each side at a time; both sides do this. Nanoseconds of so many.
    fn exchange(&mut self, bytes: usize, rounds: usize) -> anyhow::Result<u64>;
    /// Sends messages one by one, each on request; with `late`, so that they come before their receives. Returns the
    /// bytes that were copied here.
    fn hand(&mut self, _bytes: usize, _rounds: usize, _late: bool) -> anyhow::Result<u64> {
        bail!("a reference does not count copies")
    }
    /// The other side of it.
    fn take(&mut self, _bytes: usize, _rounds: usize, _late: bool) -> anyhow::Result<u64> {
        bail!("a reference does not count copies")
    }
}

/// Round trips before those that count.
pub fn warm(rounds: usize) -> usize {
    rounds / 10 + 5
}

/// Prints a line for the process that started this one.
pub fn say(line: &str) -> anyhow::Result<()> {
    println!("{line}");
    Ok(std::io::stdout().flush()?)
}

/// Plays a role until the process that started this one hangs up.
pub fn serve(part: &str) -> anyhow::Result<()> {
    let role = Role::decode(part).with_context(|| format!("'{part}' is no role"))?;
    enter(role.holder)?;
    if role.pinned {
        let mut set = rustix::thread::CpuSet::new();
        set.set(role.side);
        rustix::thread::sched_setaffinity(None, &set)?;
    }
    let mut side = match role.bare {
        true => bare::open(&role)?,
        false if role.endpoints > 0 => Box::new(Many::open(&role)?),
        false => Box::new(Ours::open(&role)?),
    };
    // Idle neighbours keep their endpoints until this process ends.
    let _neighbours = neighbours(&role)?;
    say(&format!("url {}", side.url()))?;
    let other = next_line()?.context("nobody says who the other side is")?;
    side.meet(&other)?;
    say("met")?;
    while let Some(line) = next_line()? {
        let answer = act(side.as_mut(), role.side == 0, &line)?;
        say(&answer)?;
    }
    Ok(())
}

/// The endpoints of a role that do nothing.
fn neighbours(role: &Role) -> anyhow::Result<Vec<Ours>> {
    let count = if role.side == 1 { role.neighbours } else { 0 };
    (0..count).map(|_| Ours::open(role)).collect()
}

/// Has a role's neighbours, and nothing else, until the process that started this one hangs up.
pub fn idle(part: &str) -> anyhow::Result<()> {
    let role = Role::decode(part).with_context(|| format!("'{part}' is no role"))?;
    enter(role.holder)?;
    let _neighbours = neighbours(&role)?;
    say("idle")?;
    while next_line()?.is_some() {}
    Ok(())
}

/// Does what a line says; the answer.
fn act(side: &mut dyn Side, measures: bool, line: &str) -> anyhow::Result<String> {
    let mut words = line.split(' ');
    let what = words.next().unwrap_or("");
    let mut number = || words.next()?.parse::<usize>().ok();
    let (Some(bytes), Some(count)) = (number(), number()) else { bail!("'{line}' is too short") };
    let before = frames();
    let answer = match (what, measures) {
        ("latency", true) => match side.ping(bytes, count)? {
            None => "none".into(),
            Some(samples) => {
                let (median, tail) = typical(samples);
                format!("latency {median} {tail} {}", frames() - before)
            }
        },
        ("latency", false) => side.pong(bytes, count).map(|()| "done".to_string())?,
        ("bandwidth", true) => {
            let nanos = side.pour(bytes, count)?;
            format!("bandwidth {nanos} {}", frames() - before)
        }
        ("bandwidth", false) => format!("done {}", side.drink(bytes, count)?),
        ("overlap", true) => side.feed(bytes, count).map(|()| "overlap".to_string())?,
        ("overlap", false) => {
            let Computed { alone, beside, message, rest } = side.compute(bytes, count)?;
            format!("done {alone} {beside} {message} {rest}")
        }
        ("exchange", true) => {
            let nanos = side.exchange(bytes, count)?;
            format!("exchange {nanos} {}", frames() - before)
        }
        ("exchange", false) => {
            say("ready")?;
            side.exchange(bytes, count).map(|_| "done".to_string())?
        }
        ("posted" | "late", true) => format!("copied {}", side.hand(bytes, count, what == "late")?),
        ("posted" | "late", false) => {
            say("ready")?;
            format!("done {}", side.take(bytes, count, what == "late")?)
        }
        _ => bail!("nobody knows how to '{line}'"),
    };
    Ok(answer)
}

/// The median, and the slowest of a hundred.
fn typical(mut samples: Vec<u64>) -> (u64, u64) {
    samples.sort_unstable();
    let at = |part: f64| samples[((samples.len() - 1) as f64 * part) as usize];
    (at(0.5), at(0.99))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_crosses_to_another_process() {
        let role = Role {
            network: Network::Compatible,
            bare: false,
            mtu: 9000,
            spins: true,
            service: false,
            pinned: true,
            holder: 4711,
            side: 1,
            eager: 4096,
            endpoints: 4,
            neighbours: 63,
        };
        let text = role.encode();
        assert_eq!(Role::decode(&text), Some(role));
        assert_eq!(Role::decode("gm"), None);
    }
}
