//! Rows of data servers that die or stand still under files behind mounts, ours and those of peers: the longest time in which
//! a client gets no read, or no write, acknowledged.
//!
//! Invariants
//! * All do the work of `data.*` by the same program ([`super::blocks`]), in alternation, each with a mount of its own.
//! * A file system that does not go on gets its server back after a time limit, and its figure is what it took then.
//! * At the end of each run all blocks that were acknowledged are read. One that is missing, or an operation that fails, is an
//!   error of ours, and leaves a peer out.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, ensure};

use crate::host::monotonic_nanos;
use crate::lab::{Options, alternate, quoted};
use crate::order::Order;
use crate::paths::listed;
use crate::process::Process;
use crate::report::Outcome;
use crate::series::{interval, spread};
use crate::servers::Mount;
use crate::survive::crowd::{COUNT, Crowd, Record};
use crate::survive::deaths::{self, AROUND, BEFORE, Death, REST, Run, SERVERS};
use crate::survive::names::Kind;
use crate::survive::outage::{runs, tail};
use crate::survive::rival::{GLUSTER, LOOK, MOOSE, Rival};
use crate::survive::rivals;
use crate::survive::site::{LIMIT, pause, scratch};
use crate::survive::steady::{self, BLOCK, LANES};

const KINDS: [Kind; 2] = [Kind::Read, Kind::Write];

fn name(fault: &str, kind: Kind) -> String {
    format!("mount.{fault}.{}", kind.name())
}

/// The names of all rows.
pub fn rows() -> Vec<String> {
    deaths::ALL.iter().flat_map(|(_, fault)| KINDS.map(|kind| name(fault, kind))).collect()
}

/// A file system and a mount of it, which goes first.
struct Party<'a> {
    mount: Mount,
    rival: Box<dyn Rival + 'a>,
}

/// One death, and what clients did meanwhile.
struct Trial {
    run: Run,
    records: Vec<Record>,
}

/// Measures the rows that are wanted.
///
/// # Errors
/// Ours does not start, or fails under work.
pub fn mounted(options: &Options, emit: &mut dyn FnMut(&Outcome)) -> anyhow::Result<()> {
    if !rows().iter().any(|row| options.wanted(row)) {
        return Ok(());
    }
    let (ground, place) = (rivals::ground()?, scratch(&options.disk)?);
    let mut parties = Vec::new();
    for rival in rivals::start(&ground, options, &[GLUSTER.0, MOOSE.0])? {
        let path = place.path().join(rival.system());
        match rival.mount(&path) {
            Ok(mount) => parties.push(Party { mount, rival }),
            Err(error) if parties.is_empty() => return Err(error),
            Err(error) => {
                rival.show_logs();
                eprintln!(
                    "no comparison with {}, which cannot be mounted: {error:#}",
                    rival.system()
                );
            }
        }
    }
    for (death, fault) in deaths::ALL {
        if !KINDS.iter().any(|kind| options.wanted(&name(fault, *kind))) {
            continue;
        }
        let names = parties.iter().map(|it| format!("mount.{fault}: {}", it.rival.system()));
        let names: Vec<String> = names.collect();
        let found = alternate(options, runs(options), &names, |turn, run| {
            one(&mut parties[turn], options, place.path(), (death, fault, run))
                .inspect_err(|_| parties[turn].rival.show_logs())
        });
        if options.is_interrupted() {
            return Ok(());
        }
        ensure!(!found[0].is_empty(), "mount.{fault} of ours failed, as told above");
        for kind in KINDS.into_iter().filter(|kind| options.wanted(&name(fault, *kind))) {
            outcomes(&parties, (fault, kind), &found)?.iter().for_each(&mut *emit);
        }
    }
    Ok(())
}

/// Clients that work on new files, and one death among them.
fn one(
    party: &mut Party<'_>,
    options: &Options,
    scratch: &Path,
    (death, fault, number): (Death, &str, usize),
) -> anyhow::Result<Trial> {
    let folder = party.mount.path().join(format!("{fault}{number}"));
    let order = steady::order(Order::new("survive mounted"), steady::blocks(options), REST);
    let path = folder.to_str().context("the path is not UTF-8")?;
    let mut crowd = Crowd::of(order, (path.trim_start_matches('/'), scratch), &mut |order| {
        let command = Command::new(std::env::current_exe()?);
        Process::start(command, &format!("work\n{}", order.encode()))
    })?;
    let disturbed = disturb(party, options, &mut crowd, (death, number % SERVERS), &folder);
    let run = disturbed.inspect_err(|_| {
        // Operations that hang would keep their processes.
        party.mount.abort();
    })?;
    let records = crowd.stop()?;
    std::fs::remove_dir_all(&folder)?;
    Ok(Trial { run, records })
}

/// A server fails, and comes back after clients have gone on, or at the time limit.
fn disturb(
    party: &mut Party<'_>,
    options: &Options,
    crowd: &mut Crowd,
    (death, victim): (Death, usize),
    folder: &Path,
) -> anyhow::Result<Run> {
    let rival = &mut party.rival;
    let begin = monotonic_nanos();
    pause(options, BEFORE)?;
    let fault = monotonic_nanos();
    match death {
        Death::Killed => rival.kill(victim)?,
        Death::Stopped => rival.suspend(victim)?,
    }
    let before = crowd.counts()?;
    crowd.goes_on(options, &before)?;
    pause(options, AROUND)?;
    let back = monotonic_nanos();
    match death {
        Death::Killed => rival.restart(victim)?,
        Death::Stopped => rival.resume(victim)?,
    }
    crowd.await_progress(options, &before)?;
    pause(options, AROUND)?;
    let (since, mut lacked) = (Instant::now(), None);
    while let Some(shortage) = rival.shortage(folder)? {
        // Peers take their time, which is nobody's figure here.
        ensure!(since.elapsed() < 3 * LIMIT, "{shortage} after {} s", 3 * LIMIT.as_secs());
        crowd.counts()?;
        lacked.get_or_insert(shortage);
        pause(options, LOOK)?;
    }
    if options.progress {
        let (name, lacked) = (rival.system(), lacked.unwrap_or("nothing".into()));
        eprintln!(
            "{name}: in order after {:.1?}, which lacked at first: {lacked}",
            since.elapsed()
        );
    }
    Ok(Run { begin, fault, back, end: monotonic_nanos() })
}

/// The longest gaps of all runs in ms, and before the faults.
fn gaps(trials: &[Trial], kind: Kind) -> anyhow::Result<(Vec<f64>, Vec<f64>)> {
    let found = trials.iter().map(|trial| deaths::longest(&trial.records, kind, &trial.run));
    Ok(found.collect::<anyhow::Result<Vec<_>>>()?.into_iter().unzip())
}

fn outcomes(
    parties: &[Party<'_>],
    (fault, kind): (&str, Kind),
    found: &[Vec<Trial>],
) -> anyhow::Result<Vec<Outcome>> {
    let mut told: Vec<Outcome> = Vec::new();
    let mut ours: Vec<f64> = Vec::new();
    for (party, trials) in parties.iter().zip(found).filter(|(_, trials)| !trials.is_empty()) {
        let (all, controls) = gaps(trials, kind)?;
        let one = outcome(&*party.rival, (fault, kind), trials, (&all, controls));
        match told.first_mut() {
            None => ours = all,
            Some(first) => compare(first, (one.system, &ours, &all)),
        }
        told.push(one);
    }
    Ok(told)
}

/// Tells how many times the gaps of a peer ours are, run by run.
fn compare(ours: &mut Outcome, (system, own, other): (&'static str, &[f64], &[f64])) {
    let ratios: Vec<f64> = own.iter().zip(other).map(|(own, other)| own / other).collect();
    let (median, from, to) = interval(ratios);
    let name = if system == GLUSTER.0 { "ratio_glusterfs" } else { "ratio_moosefs" };
    ours.params.push((name, format!("[{median:.4},{from:.4},{to:.4}]")));
    ours.ratio = ours.ratio.or(Some((median, system)));
}

fn outcome(
    rival: &dyn Rival,
    (fault, kind): (&str, Kind),
    trials: &[Trial],
    (all, controls): (&[f64], Vec<f64>),
) -> Outcome {
    let (median, min, max) = spread(all.to_vec());
    let limit = LIMIT.as_secs_f64() * 1e3;
    let over = all.iter().filter(|gap| **gap >= limit).count();
    let slowest = trials.iter().flat_map(|trial| {
        let span = (trial.run.fault, trial.run.end);
        trial.records.iter().flat_map(move |it| it.spent(kind, span).max())
    });
    let verdict = match over {
        0 => "went on without the server".to_string(),
        _ => format!(
            "over {} s in {over} of {} runs: until the server was back",
            LIMIT.as_secs(),
            trials.len()
        ),
    };
    let mut params = rival.params();
    params.extend([
        ("clients", COUNT.to_string()),
        ("depth", LANES.to_string()),
        ("bytes", BLOCK.to_string()),
        ("copies", rival.copies().to_string()),
        ("fault", quoted(fault)),
        ("gaps_ms", listed(all)),
        ("control_gap_ms", format!("{:.1}", controls.into_iter().fold(0.0, f64::max))),
        ("slowest_ms", format!("{:.1}", slowest.max().unwrap_or(0) as f64 / 1e6)),
        ("lost", "0".into()),
        ("over_limit", over.to_string()),
        ("verdict", quoted(&verdict)),
    ]);
    let middle = &trials[deaths::middle(all)];
    params.extend(deaths::timeline(&middle.records, kind, &middle.run, fault));
    Outcome {
        scenario: name(fault, kind),
        system: rival.system(),
        version: rival.version().into(),
        medium: "mount",
        params,
        metric: "stall",
        unit: "ms",
        median,
        min,
        max,
        p99: tail(all.to_vec()),
        runs: all.len(),
        ratio: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_is_compared_with_each_peer_run_by_run() {
        let mut ours = crate::series::direct(
            "mount.killed.read",
            "mount",
            Vec::new(),
            ("stall", "ms"),
            vec![1.0],
        );
        let own = [100.0, 300.0, 200.0];
        compare(&mut ours, ("glusterfs", &own, &[100.0, 100.0, 100.0]));
        compare(&mut ours, ("moosefs", &own, &[400.0, 400.0]));
        assert_eq!(ours.ratio, Some((2.0, "glusterfs")));
        assert_eq!(ours.param("ratio_glusterfs"), "[2.0000,1.0000,3.0000]");
        assert!(ours.param("ratio_moosefs").starts_with("[0.5"), "{ours:?}");
        assert_eq!(rows()[3], "mount.stopped.write");
    }
}
