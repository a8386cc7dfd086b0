//! `ropewalk mx perf`: half round trips and bandwidth by size.
//!
//! * [`serve`]: the side that waits; [`side`]: the common parts of both sides, and their messages;
//! * [`place`]: the place of the other side.

mod place;
mod serve;
mod side;

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use ropewalk_base::error::Fault;
use ropewalk_base::memory::Memory;
use ropewalk_net::PeerId;
use serde_json::json;

use crate::report::{complain, print, print_json, table};
use crate::stop::Stop;
use side::{BYTES_MAX, DATA, HELLO, HELLO_BYTES, Side};

/// Arguments of `ropewalk mx perf`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  On the first host, which waits until Ctrl-C:
  ropewalk mx perf --board mxoe://eth0
  ropewalk mx perf --board udp://10.0.0.1:7100

  On the second host, which measures:
  ropewalk mx perf --to mxoe://02:00:00:00:00:07/0
  ropewalk mx perf --to node2:0/0 --sizes 0,64,1M      by the board's name
  ropewalk mx perf --to udp://10.0.0.1:7100 --json     prints JSON

Each message goes to the other host and comes back. The latency is half of the median round trip; \
the bandwidth is the message's size divided by the latency.

The networks are mxoe://, ether://, udp://, tcp:// and shm://. Over mxoe:// the command speaks \
MXoE with every host. MX programs use Ropewalk's own packets with hosts that run Ropewalk: \
measure those by ether://.

'ropewalk mx peers' shows the names of hosts. If this host has several interfaces, choose one by \
--board. On a host with Open-MX, any program that returns each message to its sender with the same \
match bits can answer.")]
pub struct Perf {
    /// Measure against this peer: the address that it printed, or HOST:BOARD/ENDPOINT for MXoE.
    /// Without this option the command waits for others.
    #[arg(long, value_name = "PEER")]
    to: Option<String>,
    /// Use this network: mxoe://eth0, ether://eth0/3, udp://10.0.0.1:7100, tcp://10.0.0.1:7100 or
    /// shm://NAME [default: mxoe:// on the only interface].
    #[arg(long, value_name = "URL")]
    board: Option<String>,
    /// Measure messages of these sizes in bytes, separated by commas, such as 64,4K,1M [default: 0
    /// and the powers of two up to 4M].
    #[arg(long, allow_negative_numbers = true, value_delimiter = ',', value_parser = size, requires = "to")]
    sizes: Vec<u64>,
    /// Measure this many round trips for each size [default: 1000, fewer for long messages].
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true, requires = "to",
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    rounds: Option<u32>,
    /// Print a JSON object for each size.
    #[arg(long, requires = "to")]
    json: bool,
}

/// The longest message unless somebody says otherwise.
const SIZE_MAX: u64 = 4 << 20;
/// Rounds of each size: as many as this moves, within bounds.
const MOVED_BYTES: u64 = 64 << 20;
const ROUNDS: std::ops::RangeInclusive<u64> = 20..=1000;
/// Rounds before those that count.
const WARM: u32 = 10;
/// A side that does not answer for so long is none; and after how long somebody who waits is told so.
const PATIENCE: Duration = Duration::from_secs(30);
const NOTICE: Duration = Duration::from_secs(3);
/// Bytes in a second of the slowest network that is waited for.
const BYTES_PER_SECOND_MIN: u64 = 100_000;
/// Numbers of posts.
const CAME: u64 = 1;
const WENT: u64 = 2;

pub fn size(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.chars().last() {
        Some('k' | 'K') => (&text[..text.len() - 1], 1u64 << 10),
        Some('m' | 'M') => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|it| it.checked_mul(unit));
    bytes
        .filter(|bytes| *bytes <= BYTES_MAX)
        .ok_or_else(|| "give sizes from 0 to 64M, such as 100, 4K or 1M".to_string())
}

/// The measurement of one size.
#[derive(Debug, Clone, PartialEq)]
struct Measured {
    bytes: u64,
    rounds: u32,
    /// Half round trips in microseconds: the middle one and the shortest.
    median: f64,
    least: f64,
}

impl Measured {
    /// Of the round trips, in nanoseconds.
    fn of(bytes: u64, mut nanos: Vec<u64>) -> Measured {
        nanos.sort_unstable();
        let half = |index: usize| nanos[index] as f64 / 2000.0;
        let rounds = nanos.len() as u32;
        Measured { bytes, rounds, median: half(nanos.len() / 2), least: half(0) }
    }

    /// MiB in a second.
    fn bandwidth(&self) -> f64 {
        self.bytes as f64 / (1u64 << 20) as f64 / (self.median / 1e6).max(1e-9)
    }
}

/// Waits, or measures.
pub fn run(arguments: &Perf) -> anyhow::Result<()> {
    let stop = Stop::watch()?;
    let Some(to) = &arguments.to else {
        let board = arguments.board.as_deref().unwrap_or(serve::BOARD);
        return serve::run(board, &stop);
    };
    let (mut side, peer) = place::meet(to, arguments.board.as_deref(), &stop)?;
    let powers = std::iter::once(0).chain((0..).map(|power| 1 << power));
    let usual = powers.take_while(|bytes| *bytes <= SIZE_MAX).collect();
    let sizes = if arguments.sizes.is_empty() { usual } else { arguments.sizes.clone() };
    let mut rows = Vec::new();
    let mut outcome = Ok(());
    for bytes in sizes {
        let usual = (MOVED_BYTES / bytes.max(1)).clamp(*ROUNDS.start(), *ROUNDS.end()) as u32;
        let rounds = arguments.rounds.unwrap_or(usual);
        complain!("{bytes} bytes, {rounds} rounds");
        let met = greet(&mut side, peer, bytes).map_err(|why| unmet(to, &why));
        let met = met.and_then(|()| check_other(&side, peer));
        let measured = met.and_then(|()| {
            let measured = measure(&mut side, peer, bytes, rounds);
            measured.with_context(|| format!("{to}, {bytes} bytes"))
        });
        outcome = measured.and_then(|measured| {
            if arguments.json {
                return print_object(&measured);
            }
            rows.push(row(&measured));
            Ok(())
        });
        if outcome.is_err() {
            break;
        }
    }
    side.close();
    if !rows.is_empty() {
        let header = ["bytes", "rounds", "latency us", "min us", "MiB/s"];
        print(format!("{}\n", table(&header, rows)).as_bytes())?;
    }
    if stop.is_asked() { stop.check() } else { outcome }
}

/// Why the peer was not met, then the remedy.
fn unmet(to: &str, why: &anyhow::Error) -> anyhow::Error {
    let hint = first_hint(to);
    match why.downcast_ref::<Fault>() {
        Some(Fault::Unreachable) => anyhow::anyhow!("{to} cannot be reached: {hint}"),
        _ => anyhow::anyhow!("{to}: {why:#}: {hint}"),
    }
}

/// The remedies if nobody answers.
fn first_hint(to: &str) -> String {
    let is_mxoe = to.starts_with("mxoe://") || !to.contains("://");
    let wire = match is_mxoe {
        true => {
            "; all hosts of an MXoE network need the same order=, frame= and mode=, which \
             'ropewalk mx info' shows"
        }
        false => "",
    };
    format!("start 'ropewalk mx perf' there first, on the same network{wire}")
}

/// The time that a message of so many bytes, and its answer, may be under way.
fn patience(bytes: u64) -> Duration {
    PATIENCE + Duration::from_secs(2 * bytes / BYTES_PER_SECOND_MIN)
}

/// Messages of this length are going to come.
fn greet(side: &mut Side, peer: PeerId, bytes: u64) -> anyhow::Result<()> {
    let room = side.memory(HELLO_BYTES as u64, |_| 0)?;
    side.receive(Some(peer), HELLO, room, CAME)?;
    let hello = side.hello(bytes)?;
    side.send(peer, HELLO, hello, WENT)?;
    side.finish(WENT, PATIENCE)?;
    if !side.happens(NOTICE)? {
        complain!("the peer has not answered for {} s; still waiting", NOTICE.as_secs());
    }
    side.finish(CAME, PATIENCE)?;
    Ok(())
}

/// Fails where the peer is this command itself.
fn check_other(side: &Side, peer: PeerId) -> anyhow::Result<()> {
    let own = side.endpoint.peer_rail(peer) == Some("loop");
    ensure!(!own, "this is the command's own address: give the address of the other side");
    Ok(())
}

/// Messages of one size, there and back.
fn measure(side: &mut Side, peer: PeerId, bytes: u64, rounds: u32) -> anyhow::Result<Measured> {
    let failed = |fault| anyhow::anyhow!("{fault}");
    let patience = patience(bytes);
    let filled = |place: usize| (place as u64).wrapping_mul(167).wrapping_add(bytes) as u8;
    let (mut out, mut into) = (side.memory(bytes, filled)?, side.memory(bytes, |_| 0)?);
    let mut samples = Vec::with_capacity(rounds as usize);
    for round in 0..rounds + WARM {
        let begin = Instant::now();
        side.receive(Some(peer), DATA, into, CAME).map_err(failed)?;
        side.send(peer, DATA, out, WENT).map_err(failed)?;
        let came = side.finish(CAME, patience)?;
        ensure!(
            came.message_bytes == bytes,
            "the peer returned {} bytes instead of {bytes}",
            came.message_bytes
        );
        into = came.memory;
        out = side.finish(WENT, patience)?.memory;
        if round >= WARM {
            samples.push(begin.elapsed().as_nanos() as u64);
        }
    }
    ensure!(is_whole(into, filled), "the peer returned a message with other contents");
    Ok(Measured::of(bytes, samples))
}

fn is_whole(memory: Memory, filled: impl Fn(usize) -> u8) -> bool {
    let Some(buffer) = memory.into_pooled() else { return true };
    buffer.iter().enumerate().all(|(place, byte)| *byte == filled(place))
}

fn row(it: &Measured) -> Vec<String> {
    vec![
        it.bytes.to_string(),
        it.rounds.to_string(),
        format!("{:.3}", it.median),
        format!("{:.3}", it.least),
        format!("{:.1}", it.bandwidth()),
    ]
}

fn print_object(it: &Measured) -> anyhow::Result<()> {
    print_json(&json!({
        "bytes": it.bytes,
        "rounds": it.rounds,
        "latency_us": it.median,
        "least_us": it.least,
        "mib_per_second": it.bandwidth(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_comes_before_the_remedy_if_a_peer_is_not_met() {
        let said = |to, why| unmet(to, &why).to_string();
        assert_eq!(
            said("tcp://127.0.0.1:1", Fault::Unreachable.into()),
            "tcp://127.0.0.1:1 cannot be reached: start 'ropewalk mx perf' there first, on the same \
             network"
        );
        let silent = said("udp://[::1]:1", anyhow::anyhow!("the peer has not answered for 30 s"));
        assert!(silent.starts_with("udp://[::1]:1: the peer has not answered for 30 s: start "));
    }

    #[test]
    fn sizes_are_numbers_with_units_within_bounds() {
        let read = |text| size(text).ok();
        assert_eq!(
            [read("0"), read("100"), read("4K"), read("1m")],
            [0, 100, 4096, 1 << 20].map(Some)
        );
        assert_eq!(
            [read("64M"), read("65M"), read("K"), read(""), read("-1")].map(|it| it.is_some()),
            [true, false, false, false, false]
        );
    }

    #[test]
    fn slow_networks_are_waited_for_and_hints_fit_the_network() {
        assert_eq!(patience(0), PATIENCE);
        assert!(patience(64 << 20) > Duration::from_secs(600), "at 10 Mbit/s it takes two minutes");
        assert!(first_hint("node2/0").contains("order=") && !first_hint("udp://x:1").contains('='));
    }

    #[test]
    fn half_of_the_middle_round_trip_counts() {
        let measured = Measured::of(1 << 20, vec![9_000_000, 2_000_000, 4_000_000]);
        assert_eq!((measured.median, measured.least, measured.rounds), (2000.0, 1000.0, 3));
        assert!((measured.bandwidth() - 500.0).abs() < 1e-6);
        assert_eq!(row(&measured), ["1048576", "3", "2000.000", "1000.000", "500.0"]);
    }
}
