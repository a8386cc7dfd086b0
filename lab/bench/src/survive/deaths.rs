//! Rows of data servers that die or stand still under mirrored files: the longest time in which a client gets no read, or no
//! write, acknowledged.
//!
//! Invariants
//! * One crowd works through all runs of a fault. Another server is the victim in each run, over all faults: one that came
//!   back orders no groups until another one dies.
//! * At the end all blocks that were acknowledged are read. One that is missing is an error of the whole benchmark.

use std::time::Duration;

use anyhow::{Context, bail};

use crate::host::monotonic_nanos;
use crate::lab::{Options, quoted, version};
use crate::paths::listed;
use crate::report::Outcome;
use crate::series::{OURS, spread};
use crate::survive::bar::Bar;
use crate::survive::crowd::{COUNT, Crowd, Record};
use crate::survive::gaps;
use crate::survive::ground::Ground;
use crate::survive::names::Kind;
use crate::survive::outage::{runs, tail};
use crate::survive::site::pause;
use crate::survive::steady::{self, BLOCK, LANES};
use crate::survive::store::{Store, hosts, plain};

/// Data servers, and copies of each file.
pub const SERVERS: usize = 3;
pub const COPIES: usize = 2;
/// Undisturbed work before a fault, and around the return of the server.
pub const BEFORE: Duration = Duration::from_millis(1000);
pub const AROUND: Duration = Duration::from_millis(500);
/// The rest of a lane between two operations.
pub const REST: Duration = Duration::from_millis(2);
const BIN_NS: u64 = 100_000_000;

/// A fault of a data server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// `kill -9`; it is started again later.
    Killed,
    /// SIGSTOP, and SIGCONT later.
    Stopped,
}

/// All of them, with their names.
pub const ALL: [(Death, &str); 2] = [(Death::Killed, "killed"), (Death::Stopped, "stopped")];
/// Operations, and the longest gap in ms that they shall have.
const KINDS: [(Kind, f64); 2] = [(Kind::Read, 1000.0), (Kind::Write, 2000.0)];

fn name(fault: &str, kind: Kind) -> String {
    format!("data.{fault}.{}", kind.name())
}

/// The names of all rows.
pub fn rows() -> Vec<String> {
    ALL.iter().flat_map(|(_, fault)| KINDS.map(|(kind, _)| name(fault, kind))).collect()
}

/// The moments of a run.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    pub begin: u64,
    pub fault: u64,
    pub back: u64,
    pub end: u64,
}

/// Measures the rows that are wanted.
///
/// # Errors
/// Operations fail, something that was acknowledged is missing, or clients do not go on.
pub fn deaths(options: &Options, emit: &mut dyn FnMut(&Outcome)) -> anyhow::Result<()> {
    if !rows().iter().any(|row| options.wanted(row)) {
        return Ok(());
    }
    let ground = Ground::make(hosts(SERVERS))?;
    let mut store = Store::start(&ground, options, plain(SERVERS))?;
    store.keep_copies(COPIES)?;
    let mut victims = (0..SERVERS).cycle();
    for (death, fault) in ALL {
        if !KINDS.iter().any(|(kind, _)| options.wanted(&name(fault, *kind))) {
            continue;
        }
        let measured = measure(&mut store, &mut victims, death, fault);
        if options.is_interrupted() {
            return Ok(());
        }
        let (records, runs) = match measured {
            Ok(measured) => measured,
            Err(error) => {
                store.show_logs();
                bail!("data.{fault}: {error:#}; the servers' directories stay in {}", store.keep());
            }
        };
        for (kind, reach) in KINDS.into_iter().filter(|it| options.wanted(&name(fault, it.0))) {
            emit(&outcome(&store, (fault, kind, reach), &records, &runs)?);
        }
    }
    Ok(())
}

fn measure(
    store: &mut Store<'_>,
    victims: &mut dyn Iterator<Item = usize>,
    death: Death,
    fault: &str,
) -> anyhow::Result<(Vec<Record>, Vec<Run>)> {
    let options = store.options();
    let count = runs(options);
    let bar = Bar::new(&format!("data.{fault}"), count);
    let order = steady::order(store.order("survive steady"), steady::blocks(options), REST);
    let scratch = store.scratch().to_path_buf();
    let mut crowd = Crowd::of(order, (fault, &scratch), &mut |order| store.client(order))?;
    let mut done = Vec::new();
    for (number, victim) in (0..count).zip(victims) {
        bar.show(number, "");
        let run = once(store, &mut crowd, death, victim);
        let run = run.with_context(|| format!("run {number}"))?;
        if options.progress {
            let ms = |to: u64, from: u64| (to - from) / 1_000_000;
            eprintln!(
                "data.{fault} run {number}: back after {} ms, in step after {} ms more",
                ms(run.back, run.fault),
                ms(run.end, run.back)
            );
        }
        done.push(run);
    }
    Ok((crowd.stop()?, done))
}

/// One death, until the victim is in step again.
fn once(
    store: &mut Store<'_>,
    crowd: &mut Crowd,
    death: Death,
    victim: usize,
) -> anyhow::Result<Run> {
    let options = store.options();
    let begin = monotonic_nanos();
    pause(options, BEFORE)?;
    let fault = monotonic_nanos();
    match death {
        Death::Killed => store.kill_data(victim),
        Death::Stopped => store.data(victim)?.suspend()?,
    }
    let before = crowd.counts()?;
    crowd.await_progress(options, &before)?;
    pause(options, AROUND)?;
    let back = monotonic_nanos();
    match death {
        Death::Killed => store.start_data(victim, false)?,
        Death::Stopped => store.data(victim)?.resume()?,
    }
    pause(options, AROUND)?;
    store.await_copies()?;
    Ok(Run { begin, fault, back, end: monotonic_nanos() })
}

/// The longest gap of a client in ms in each run, from the fault on, and before it.
pub fn longest(records: &[Record], kind: Kind, run: &Run) -> anyhow::Result<(f64, f64)> {
    let (mut gap, mut control) = (0.0f64, 0.0f64);
    for record in records {
        let times: Vec<u64> = record.times(kind);
        let within: Vec<u64> =
            times.into_iter().filter(|at| (run.begin..=run.end).contains(at)).collect();
        let after = gaps::longest_after(&within, run.fault);
        gap = gap.max(after.context("a client did nothing after the fault")?);
        control = control.max(gaps::longest_before(&within, run.fault));
    }
    Ok((gap, control))
}

fn outcome(
    store: &Store<'_>,
    (fault, kind, reach): (&str, Kind, f64),
    records: &[Record],
    runs: &[Run],
) -> anyhow::Result<Outcome> {
    let found = runs.iter().map(|run| longest(records, kind, run));
    let (all, controls): (Vec<f64>, Vec<f64>) =
        found.collect::<anyhow::Result<Vec<_>>>()?.into_iter().unzip();
    let (median, min, max) = spread(all.clone());
    let late = all.iter().filter(|gap| **gap > reach).count();
    let slowest = runs
        .iter()
        .flat_map(|run| records.iter().flat_map(|it| it.spent(kind, (run.fault, run.end)).max()));
    let mut params = store.params();
    params.extend([
        ("clients", COUNT.to_string()),
        ("depth", LANES.to_string()),
        ("bytes", BLOCK.to_string()),
        ("copies", COPIES.to_string()),
        ("fault", quoted(fault)),
        ("gaps_ms", listed(&all)),
        ("control_gap_ms", format!("{:.1}", controls.into_iter().fold(0.0, f64::max))),
        ("slowest_ms", format!("{:.1}", slowest.max().unwrap_or(0) as f64 / 1e6)),
        ("lost", "0".into()),
        ("reach", reach.to_string()),
        ("missed", late.to_string()),
        ("kept", (late == 0).to_string()),
        ("verdict", quoted(&format!("reach {reach} ms: {late} of {} above", all.len()))),
    ]);
    params.extend(timeline(records, kind, &runs[middle(&all)], fault));
    Ok(Outcome {
        scenario: name(fault, kind),
        system: OURS,
        version: version(),
        medium: "library",
        params,
        metric: "stall",
        unit: "ms",
        median,
        min,
        max,
        p99: tail(all.clone()),
        runs: all.len(),
        ratio: None,
    })
}

/// The number of the run with the middle gap.
pub fn middle(gaps: &[f64]) -> usize {
    let mut order: Vec<usize> = (0..gaps.len()).collect();
    order.sort_by(|a, b| gaps[*a].total_cmp(&gaps[*b]));
    order[order.len() / 2]
}

/// Operations a second in a run, for its picture.
pub fn timeline(
    records: &[Record],
    kind: Kind,
    run: &Run,
    fault: &str,
) -> Vec<(&'static str, String)> {
    let each: Vec<Vec<u64>> = records.iter().map(|it| it.times(kind)).collect();
    let rates = gaps::rates(&gaps::together(&each), (run.begin, run.end), BIN_NS);
    let rates: Vec<String> = rates.iter().map(|rate| format!("{rate:.0}")).collect();
    let ms = |at: u64| (at - run.begin) / 1_000_000;
    vec![
        ("timeline_bin_ms", (BIN_NS / 1_000_000).to_string()),
        ("timeline_rates", format!("[{}]", rates.join(","))),
        ("timeline_events", format!("[\"{} {fault}\",\"{} back\"]", ms(run.fault), ms(run.back))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_is_of_the_run_with_the_middle_gap() {
        assert_eq!(middle(&[5.0]), 0);
        assert_eq!(middle(&[900.0, 100.0, 300.0]), 2);
        assert_eq!(rows()[0], "data.killed.read");
        assert_eq!(rows().len(), 4);
    }
}
