//! The MPIs of this machine in rows of rails that die: a stream over all rails, of which one stays cut.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use ropewalk_netns::{Fault, Topology};

use crate::host::monotonic_nanos;
use crate::lab::{Options, quoted};
use crate::mpi::Mpi;
use crate::paths::cut::party::{Party, RAILS};
use crate::paths::cut::row::Row;
use crate::paths::cut::trial::Times;
use crate::paths::side::System;
use crate::paths::stream::MESSAGE_BYTES;
use crate::paths::trace::Trace;
use crate::report::Outcome;

/// Who has not delivered all messages by then, counted from the fault, hangs.
const LIMIT: Duration = Duration::from_secs(60);
/// Ranks know each other by then, on a busy machine, too.
const START: Duration = Duration::from_secs(15);
/// So much of what an MPI says is told where it does not start.
const SAID_MAX: usize = 300;
const LOOK: Duration = Duration::from_millis(20);
/// Frames that a rail has sent if it carries messages.
const USED: u64 = 500;

/// What came of a stream.
struct Found {
    trace: Trace,
    is_done: bool,
    /// Its ranks ended with an error.
    has_failed: bool,
    /// Rails over which messages went before the fault.
    used: usize,
}

/// Runs each MPI once. Where one does not start, its row says why.
pub fn measure(row: &Row, times: &Times, options: &Options) -> anyhow::Result<Vec<Outcome>> {
    let place = tempfile::Builder::new().prefix("ropewalk-mpi-").tempdir()?;
    let mut outcomes = Vec::new();
    for mpi in Mpi::find_for_streams(place.path()) {
        if options.is_interrupted() {
            break;
        }
        // A network of its own: what hung in the last one may have left something behind.
        let party = Party { name: mpi.name(), system: System::Tcp, rails: RAILS, tuned: false };
        let topology = row.network(&party)?;
        match run(row, times, &mpi, &topology, place.path()) {
            Ok(found) => outcomes.push(outcome(row, &mpi, &found)),
            Err(error) => {
                let said = format!("does not start: {error:#}");
                eprintln!("{}: {} {said}", row.name(), mpi.name());
                let params = params(row, &in_a_line(&said));
                outcomes.push(told(row, &mpi, START.as_secs_f64() * 1e3, params));
            }
        }
    }
    Ok(outcomes)
}

fn run(
    row: &Row,
    times: &Times,
    mpi: &Mpi,
    topology: &Topology,
    place: &Path,
) -> anyhow::Result<Found> {
    let file = place.join(format!("times.{}", mpi.name()));
    let until = monotonic_nanos() + (START + times.control + times.outage).as_nanos() as u64;
    let ranks = mpi.stream(topology, until, &file)?;
    let deadline = Instant::now() + START;
    while read(&file).0.len() < 100 {
        let is_late = Instant::now() >= deadline || ranks.have_ended();
        ensure!(!is_late, "no messages within {START:?}{}", ranks.why());
        std::thread::sleep(LOOK);
    }
    let begin = monotonic_nanos();
    std::thread::sleep(times.control);
    // Some use one rail although they are given two: the fault is at the one that carries more.
    let sent: Vec<u64> = (0..RAILS)
        .map(|rail| Ok(topology.host(0).link(rail)?.sent))
        .collect::<anyhow::Result<_>>()?;
    let used = sent.iter().filter(|frames| **frames > USED).count();
    let rail = if sent[1] > 2 * sent[0] { 1 } else { 0 };
    let cut = monotonic_nanos();
    let injected = topology.inject(&Fault { rail, ..row.fault(0) })?;
    let deadline = Instant::now() + LIMIT;
    let (mut moments, mut is_done) = read(&file);
    let mut has_failed = false;
    while !is_done && !has_failed && Instant::now() < deadline {
        std::thread::sleep(LOOK);
        let have_ended = ranks.have_ended();
        (moments, is_done) = read(&file);
        has_failed = have_ended && !is_done;
    }
    let end = if is_done { until } else { monotonic_nanos() };
    drop(ranks);
    injected.mend()?;
    let last = *moments.last().context("there are messages")?;
    let end = if is_done { last.max(cut + 1) } else { end };
    Ok(Found {
        trace: Trace { times: moments, begin, cut, mended: end, end },
        is_done,
        has_failed,
        used,
    })
}

/// The times of the messages so far, and whether that was all.
fn read(file: &Path) -> (Vec<u64>, bool) {
    let bytes = std::fs::read(file).unwrap_or_default();
    let (words, _) = bytes.as_chunks::<8>();
    let mut times: Vec<u64> = words.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    let is_done = times.pop_if(|time| *time == 0).is_some();
    (times, is_done)
}

fn outcome(row: &Row, mpi: &Mpi, found: &Found) -> Outcome {
    let stall = found.trace.stall();
    let said = match found {
        Found { is_done: true, .. } => format!("stalls for {stall:.0} ms"),
        Found { has_failed: true, .. } => format!("fails after {stall:.0} ms"),
        _ => format!("hangs ({} s)", LIMIT.as_secs()),
    };
    let mut params = params(row, &said);
    params.extend([
        ("used_rails", found.used.to_string()),
        ("hangs", (!found.is_done && !found.has_failed).to_string()),
        ("goodput_mbs", format!("{:.1}", found.trace.goodput())),
        ("control_gap_ms", format!("{:.2}", found.trace.control_gap())),
    ]);
    told(row, mpi, stall, params)
}

fn params(row: &Row, said: &str) -> Vec<(&'static str, String)> {
    vec![
        ("bytes", MESSAGE_BYTES.to_string()),
        ("placement", quoted("namespaces")),
        ("rate", quoted(row.rate.name())),
        ("rails", RAILS.to_string()),
        ("fault", quoted(row.kind.name())),
        ("verdict", quoted(said)),
    ]
}

fn told(row: &Row, mpi: &Mpi, stall: f64, params: Vec<(&'static str, String)>) -> Outcome {
    Outcome {
        scenario: format!("{}.stall", row.name()),
        system: mpi.name(),
        version: mpi.version().into(),
        medium: "tcp",
        params,
        metric: "stall",
        unit: "ms",
        median: stall,
        min: stall,
        max: stall,
        p99: stall,
        runs: 1,
        ratio: None,
    }
}

/// What programs say, as a part of a line that stands between quotation marks.
fn in_a_line(said: &str) -> String {
    let words: Vec<&str> = said.split_whitespace().collect();
    let plain = words.join(" ").replace(['"', '\\'], "'");
    plain.chars().filter(|it| !it.is_control()).take(SAID_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_is_known_although_more_is_awaited() {
        let place = tempfile::tempdir().expect("there is room");
        let file = place.path().join("times");
        assert_eq!(read(&file), (Vec::new(), false));
        let words = [5u64, 9, 0].map(u64::to_ne_bytes).concat();
        std::fs::write(&file, &words[..19]).expect("it is written");
        assert_eq!(read(&file), (vec![5, 9], false));
        std::fs::write(&file, &words).expect("it is written");
        assert_eq!(read(&file), (vec![5, 9], true));
    }

    #[test]
    fn what_an_mpi_says_fits_into_a_row() {
        assert_eq!(in_a_line("no \"a\\b\"\n  there\u{1b}"), "no 'a'b' there");
        assert_eq!(in_a_line(&"x".repeat(1000)).len(), SAID_MAX);
    }
}
