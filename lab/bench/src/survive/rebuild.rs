//! Rows of a data server that lost its store: the rate at which it gets its copies back, beside a bare copy of as many
//! bytes; and the work of clients meanwhile.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use crate::host::monotonic_nanos;
use crate::lab::{Options, alternate};
use crate::report::Outcome;
use crate::series::{Figure, OURS, spread};
use crate::survive::bare;
use crate::survive::crowd::{COUNT, Crowd, Record};
use crate::survive::drain::{WARM, fill};
use crate::survive::ground::Ground;
use crate::survive::names::Kind;
use crate::survive::pairs::Pair;
use crate::survive::site::{LIMIT, pause};
use crate::survive::steady::{self, BLOCK, LANES};
use crate::survive::store::{Store, hosts, plain};
use crate::worker::Work;

const SERVERS: usize = 3;
const COPIES: usize = 2;
/// Runs of a full measurement.
const RUNS: usize = 5;
/// Bytes of each file that lies there before.
const FILE_BYTES: usize = 4 << 20;
const RATE: &str = "rebuild.rate";
const BESIDE: &str = "rebuild.beside";
const LOOK: Duration = Duration::from_millis(10);
/// A store that grew by so much has got bytes of files.
const FIRST_BYTES: u64 = 256 << 10;

/// The names of all rows.
pub fn rows() -> Vec<String> {
    [RATE, BESIDE].map(String::from).to_vec()
}

/// Measures the rows that are wanted.
///
/// # Errors
/// Operations fail, something that was acknowledged is missing, or the server does not come into step.
pub fn rebuilds(options: &Options, emit: &mut dyn FnMut(&Outcome)) -> anyhow::Result<()> {
    if !rows().iter().any(|row| options.wanted(row)) {
        return Ok(());
    }
    let ground = Ground::make(hosts(SERVERS))?;
    let mut store = Store::start(&ground, options, plain(SERVERS))?;
    store.keep_copies(COPIES)?;
    fill(&store, options.amount(192, 48).max(4), FILE_BYTES)?;
    if options.wanted(RATE) {
        rates(&ground, &mut store, options, emit);
    }
    if options.wanted(BESIDE) {
        let count = options.runs.unwrap_or(if options.quick { 1 } else { RUNS }).max(1);
        let told = beside(&mut store, options, count);
        if options.is_interrupted() {
            return Ok(());
        }
        match told {
            Ok(told) => told.iter().for_each(emit),
            Err(error) => {
                store.show_logs();
                bail!("{BESIDE}: {error:#}; the servers' directories stay in {}", store.keep());
            }
        }
    }
    Ok(())
}

/// A server that lost its store gets its copies.
struct Rebuilt {
    /// From its start until no group lacks a copy.
    span: (u64, u64),
    /// The time until it had the first bytes.
    first: Duration,
    bytes: u64,
}

/// Kills a server, takes its store away, and starts it again.
fn lose(store: &mut Store<'_>, victim: usize) -> anyhow::Result<Rebuilt> {
    store.kill_data(victim);
    // The metadata server has to miss it: else there is nothing to wait for afterwards.
    store.await_shortage()?;
    let folder = store.directory(victim);
    fs::remove_dir_all(&folder).context("cannot take a store away")?;
    let (begin, started) = (monotonic_nanos(), Instant::now());
    store.start_data(victim, true)?;
    let empty = stored(&folder);
    while stored(&folder) < empty + FIRST_BYTES {
        ensure!(started.elapsed() < LIMIT, "data server {victim} has got no bytes");
        pause(store.options(), LOOK)?;
    }
    let first = started.elapsed();
    store.await_copies()?;
    let span = (begin, monotonic_nanos());
    Ok(Rebuilt { span, first, bytes: store.object_bytes()?[victim] })
}

/// Bytes that the files of a directory take.
fn stored(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => stored(&entry.path()),
        Ok(found) => found.blocks() * 512,
        Err(_) => 0,
    });
    bytes.sum()
}

fn rates(
    ground: &Ground,
    store: &mut Store<'_>,
    options: &Options,
    emit: &mut dyn FnMut(&Outcome),
) {
    let names = [OURS, "bare-copy"].map(|party| format!("{RATE}: {party}"));
    // A bare copy has as many bytes as the last rebuild.
    let (mut bytes, mut firsts) = (0, Vec::new());
    let found = alternate(options, options.runs_or(RUNS), &names, |turn, run| {
        if turn == 0 {
            let rebuilt = lose(store, run % SERVERS)?;
            let (begin_nanos, end_nanos) = rebuilt.span;
            bytes = rebuilt.bytes;
            firsts.push(rebuilt.first.as_secs_f64() * 1e3);
            return Ok(bare::whole((begin_nanos, end_nanos), bytes));
        }
        if bytes == 0 {
            bytes = store.object_bytes()?.into_iter().max().unwrap_or(1);
        }
        bare::copy(ground, store, bytes)
    });
    if options.is_interrupted() {
        return;
    }
    let mut params = store.params();
    params.extend([("copies", COPIES.to_string()), ("clients", "0".into())]);
    params.push(("moved_bytes", bytes.to_string()));
    let own = match firsts.is_empty() {
        true => Vec::new(),
        false => vec![("first_bytes_ms", format!("{:.0}", spread(firsts).0))],
    };
    let pair = Pair {
        name: RATE.into(),
        figure: Figure::Bandwidth,
        other: "bare-copy",
        ratio: "ratio_bare-copy",
        reach: Some(0.5),
        params,
    };
    let told = pair.outcomes(found, [own, Vec::new()]);
    // A rebuild is one operation: the time of one says nothing.
    told.iter().filter(|it| it.metric == "bandwidth").for_each(emit);
}

/// The work of clients during rebuilds, and right before them.
fn beside(store: &mut Store<'_>, options: &Options, count: usize) -> anyhow::Result<Vec<Outcome>> {
    let order = store.order("survive steady");
    let order = steady::order(order, steady::blocks(options), Duration::ZERO);
    let scratch = store.scratch().to_path_buf();
    let mut crowd = Crowd::of(order, ("beside", &scratch), &mut |order| store.client(order))?;
    let calm = Duration::from_secs(if options.quick { 2 } else { 5 });
    let mut spans = Vec::new();
    for run in 0..count {
        pause(options, WARM)?;
        let begin = monotonic_nanos();
        pause(options, calm)?;
        let end = monotonic_nanos();
        let rebuilt = lose(store, run % SERVERS).with_context(|| format!("run {run}"))?;
        crowd.counts()?;
        spans.push((rebuilt.span, (begin, end)));
    }
    let records = crowd.stop()?;
    let found = [
        spans.iter().map(|(during, _)| work(&records, *during)).collect(),
        spans.iter().map(|(_, before)| work(&records, *before)).collect(),
    ];
    let mut params = store.params();
    params.extend([
        ("copies", COPIES.to_string()),
        ("clients", COUNT.to_string()),
        ("depth", (2 * LANES).to_string()),
        ("bytes", BLOCK.to_string()),
        ("lost", "0".into()),
    ]);
    let pair = Pair {
        name: BESIDE.into(),
        figure: Figure::Rate,
        other: "undisturbed",
        ratio: "ratio_undisturbed",
        reach: Some(0.7),
        params,
    };
    let told = pair.outcomes(found.to_vec(), [Vec::new(), Vec::new()]);
    // Nobody has counted processor time.
    Ok(told.into_iter().filter(|it| it.metric != "cpu").collect())
}

/// The operations of all clients in a span.
fn work(records: &[Record], span: (u64, u64)) -> Work {
    let lanes = (COUNT * 2 * LANES) as u64;
    let mut work = Work { begin_nanos: span.0, end_nanos: span.1, lanes, ..Work::default() };
    for record in records {
        for nanos in [Kind::Read, Kind::Write].iter().flat_map(|kind| record.spent(*kind, span)) {
            work.times.note(nanos);
            work.operations += 1;
            work.bytes += BLOCK as u64;
        }
    }
    work
}
