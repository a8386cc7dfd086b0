//! Rows of a data server that is drained while clients work: the tail of their operations, the spread of bytes afterwards,
//! and the time.
//!
//! Invariant: files have one copy, so the one copy of each moves. An operation that fails, or a block that is lost, is an
//! error of the whole benchmark.

use std::time::Duration;

use anyhow::{Context, bail};

use crate::host::monotonic_nanos;
use crate::lab::{Options, quoted};
use crate::report::Outcome;
use crate::series::{direct, spread};
use crate::survive::bar::Bar;
use crate::survive::crowd::{COUNT, Crowd, Record};
use crate::survive::ground::Ground;
use crate::survive::names::Kind;
use crate::survive::site::pause;
use crate::survive::steady::{self, BLOCK, LANES};
use crate::survive::store::{Store, hosts, plain};

const SERVERS: usize = 4;
/// Runs of a full measurement.
const RUNS: usize = 3;
/// Bytes of each file that lies there before: so many files are spread evenly by chance.
const FILE_BYTES: usize = 128 << 10;
/// The rest of a lane between two operations.
const REST: Duration = Duration::from_millis(2);
/// The first operations of clients do not count.
pub const WARM: Duration = Duration::from_millis(500);
/// The tail during the drain as a multiple of the one before, and the percentage by which a server may miss the mean.
const REACH_TAIL: f64 = 2.0;
const REACH_SPREAD: f64 = 5.0;

const ROWS: [&str; 3] = ["drain.p99", "drain.spread", "drain.time"];

/// The names of all rows.
pub fn rows() -> Vec<String> {
    ROWS.map(String::from).to_vec()
}

/// A drain, from outside.
struct Drained {
    /// In ms: the 99th percentile of all operations before and during, and the slowest one during.
    before: f64,
    during: f64,
    slowest: f64,
    operations: usize,
    seconds: f64,
    /// Bytes that came to the other servers, and the bytes on them.
    moved: u64,
    bytes: Vec<u64>,
}

/// Measures the rows, where any is wanted.
///
/// # Errors
/// Operations fail, something that was acknowledged is missing, or the drain does not end.
pub fn drains(options: &Options, emit: &mut dyn FnMut(&Outcome)) -> anyhow::Result<()> {
    if !ROWS.iter().any(|row| options.wanted(row)) {
        return Ok(());
    }
    let ground = Ground::make(hosts(SERVERS))?;
    let count = options.runs.unwrap_or(if options.quick { 1 } else { RUNS }).max(1);
    let bar = Bar::new("drain", count);
    let (mut found, mut params) = (Vec::new(), Vec::new());
    for number in 0..count {
        bar.show(number, "");
        let mut store = Store::start(&ground, options, plain(SERVERS))?;
        params = store.params();
        let drained = drain(&store, options, number % SERVERS);
        if options.is_interrupted() {
            return Ok(());
        }
        match drained {
            Ok(drained) => found.push(drained),
            Err(error) => {
                store.show_logs();
                bail!("drain: {error:#}; the servers' directories stay in {}", store.keep());
            }
        }
    }
    params.extend([
        ("clients", COUNT.to_string()),
        ("depth", (2 * LANES).to_string()),
        ("bytes", BLOCK.to_string()),
        ("copies", "1".into()),
    ]);
    let told = outcomes(&found, &params);
    told.iter().filter(|it| options.wanted(&it.scenario)).for_each(&mut *emit);
    Ok(())
}

/// Fills a cluster with so many files of so many bytes.
pub fn fill(store: &Store<'_>, files: u64, bytes: usize) -> anyhow::Result<()> {
    let order = store.order("survive fill").with("folder", "/fill").with("count", files);
    let mut process = store.client(&order.with("bytes", bytes))?;
    process.hear_word("filled")?;
    process.await_end()
}

fn drain(store: &Store<'_>, options: &Options, victim: usize) -> anyhow::Result<Drained> {
    fill(store, options.amount(6_000, 1_500).max(100), FILE_BYTES)?;
    let order = steady::order(store.order("survive steady"), steady::blocks(options), REST);
    let mut crowd = Crowd::of(order, ("drain", store.scratch()), &mut |order| store.client(order))?;
    pause(options, WARM)?;
    let calm = monotonic_nanos();
    pause(options, Duration::from_secs(if options.quick { 2 } else { 5 }))?;
    let full = store.object_bytes()?;
    let begin = monotonic_nanos();
    store.ask(&["server", "drain", &victim.to_string()])?;
    let spent = store.await_drained(victim)?;
    let end = monotonic_nanos();
    crowd.counts()?;
    let mut bytes = store.object_bytes()?;
    let before: Vec<u64> = others(&full, victim);
    bytes = others(&bytes, victim);
    let moved = bytes.iter().sum::<u64>().saturating_sub(before.iter().sum());
    let records = crowd.stop()?;
    let (before, _, _) = tail(&records, (calm, begin)).context("clients did nothing before")?;
    let (during, slowest, operations) =
        tail(&records, (begin, end)).context("clients did nothing meanwhile")?;
    let seconds = spent.as_secs_f64();
    Ok(Drained { before, during, slowest, operations, seconds, moved, bytes })
}

fn others(bytes: &[u64], victim: usize) -> Vec<u64> {
    let others = bytes.iter().enumerate().filter(|(number, _)| *number != victim);
    others.map(|(_, bytes)| *bytes).collect()
}

/// The 99th percentile and the greatest time in ms of all operations of a span, and their number.
pub fn tail(records: &[Record], span: (u64, u64)) -> Option<(f64, f64, usize)> {
    let kinds = [Kind::Read, Kind::Write];
    let of = |record: &Record| kinds.map(|kind| record.spent(kind, span).collect::<Vec<_>>());
    let mut all: Vec<u64> = records.iter().flat_map(of).flatten().collect();
    all.sort_unstable();
    let ms = |nanos: u64| nanos as f64 / 1e6;
    let at = (all.len() * 99).div_ceil(100).checked_sub(1)?;
    Some((ms(all[at]), ms(*all.last()?), all.len()))
}

/// The greatest distance of a server from the mean of all, in percent of that.
fn unevenness(bytes: &[u64]) -> f64 {
    let mean = bytes.iter().sum::<u64>() as f64 / bytes.len().max(1) as f64;
    let far = bytes.iter().map(|it| (*it as f64 - mean).abs()).fold(0.0, f64::max);
    100.0 * far / mean.max(1.0)
}

fn outcomes(found: &[Drained], params: &[(&'static str, String)]) -> Vec<Outcome> {
    let of = |pick: fn(&Drained) -> f64| found.iter().map(pick).collect::<Vec<f64>>();
    let judged = |kept: bool, text: String| {
        let said = if kept { "kept" } else { "missed" };
        [("kept", kept.to_string()), ("verdict", quoted(&format!("{text}: {said}")))]
    };
    let with = |more: Vec<(&'static str, String)>| [params.to_vec(), more].concat();
    let (ratio, _, _) = spread(of(|it| it.during / it.before));
    let (slowest, _, _) = spread(of(|it| it.slowest));
    let operations: usize = found.iter().map(|it| it.operations).sum();
    let mut more = vec![
        ("lost", "0".to_string()),
        ("errors", "0".into()),
        ("operations", operations.to_string()),
        ("slowest_ms", format!("{slowest:.1}")),
        ("reach", REACH_TAIL.to_string()),
    ];
    more.extend(judged(ratio <= REACH_TAIL, format!("reach at most {REACH_TAIL} x before")));
    let [tails, spreads, times] = ROWS;
    let latency = ("latency", "ms");
    let mut during = direct(tails, "library", with(more), latency, of(|it| it.during));
    during.ratio = Some((ratio, "before"));
    let mut before = direct(tails, "library", with(Vec::new()), latency, of(|it| it.before));
    before.system = "before";
    let (uneven, _, _) = spread(of(|it| unevenness(&it.bytes)));
    let bytes: Vec<String> =
        found.iter().flat_map(|it| it.bytes.iter().map(u64::to_string)).collect();
    let mut more = vec![("server_bytes", format!("[{}]", bytes.join(",")))];
    more.push(("reach", REACH_SPREAD.to_string()));
    more.extend(judged(uneven <= REACH_SPREAD, format!("reach within {REACH_SPREAD} %")));
    let share = ("share", "%");
    let spread_row = direct(spreads, "library", with(more), share, of(|it| unevenness(&it.bytes)));
    let moved = spread(of(|it| it.moved as f64)).0;
    let rate = spread(of(|it| it.moved as f64 / (1 << 20) as f64 / it.seconds)).0;
    let more = vec![("moved_bytes", format!("{moved:.0}")), ("moved_mib_s", format!("{rate:.1}"))];
    let time = direct(times, "library", with(more), ("time", "s"), of(|it| it.seconds));
    vec![during, before, spread_row, time]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_is_the_greatest_distance_from_the_mean() {
        assert_eq!(unevenness(&[100, 100, 100]), 0.0);
        assert!((unevenness(&[90, 105, 105]) - 10.0).abs() < 1e-9);
        assert_eq!(unevenness(&[0, 0]), 0.0);
    }

    #[test]
    fn a_tail_is_judged_by_the_one_before() {
        let one = |during| Drained {
            before: 2.0,
            during,
            slowest: 9.0,
            operations: 100,
            seconds: 4.0,
            moved: 8 << 20,
            bytes: vec![100, 104, 96],
        };
        let told = outcomes(&[one(3.0), one(5.0), one(3.5)], &[]);
        assert_eq!(told[0].ratio, Some((1.75, "before")));
        assert_eq!((told[0].param("kept"), told[2].param("kept")), ("true", "true"));
        assert_eq!(told[3].param("moved_mib_s"), "2.0");
        let told = outcomes(&[one(5.0)], &[]);
        assert_eq!(told[0].param("kept"), "false");
    }
}
