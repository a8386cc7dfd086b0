//! Rows of faults: the longest time in which clients get no create acknowledged, over many runs.

use std::path::Path;

use anyhow::bail;

use crate::host;
use crate::lab::{Options, quoted, version};
use crate::paths::listed;
use crate::report::Outcome;
use crate::series::{OURS, spread};
use crate::survive::bar::Bar;
use crate::survive::crowd::{COUNT, CREATORS};
use crate::survive::ground::Ground;
use crate::survive::site::{LEASE_MS, Site};
use crate::survive::trial::{Fault, Trial, run, verify};

/// Runs of a row, unless the options say a number.
const RUNS: usize = 5;
/// Runs on one site: another one begins with empty servers.
const RUNS_OF_SITE: usize = 10;

/// The names of all rows.
pub fn rows() -> Vec<String> {
    Fault::ALL.iter().map(|fault| name(*fault)).collect()
}

fn name(fault: Fault) -> String {
    format!("meta.{}", fault.name())
}

/// Runs of any row that has some.
pub fn runs(options: &Options) -> usize {
    options.runs.unwrap_or(if options.quick { 1 } else { RUNS }).max(1)
}

/// Measures the rows that are wanted.
///
/// # Errors
/// Something that was acknowledged is missing, was done twice, or clients did not go on.
pub fn outages(
    ground: &Ground,
    options: &Options,
    emit: &mut dyn FnMut(&Outcome),
) -> anyhow::Result<()> {
    for fault in Fault::ALL.into_iter().filter(|fault| options.wanted(&name(*fault))) {
        if fault == Fault::Cut
            && let Some(why) = ground.lacks_cuts()
        {
            eprintln!("{} is left out, since no server can be cut off: {why}", name(fault));
            continue;
        }
        let row = measure(ground, options, fault);
        if options.is_interrupted() {
            return Ok(());
        }
        emit(&outcome(fault, row?, ground, options));
    }
    Ok(())
}

/// What came of all runs of a row.
struct Row {
    trials: Vec<Trial>,
    /// Names that were looked for, in all.
    names: u64,
}

fn measure(ground: &Ground, options: &Options, fault: Fault) -> anyhow::Result<Row> {
    let (name, count) = (name(fault), runs(options));
    let bar = Bar::new(&name, count);
    let mut row = Row { trials: Vec::new(), names: 0 };
    while row.trials.len() < count {
        let here = RUNS_OF_SITE.min(count - row.trials.len());
        let mut site = Site::start(ground, options, 2)?;
        let mut folders = Vec::new();
        for _ in 0..here {
            let number = row.trials.len();
            bar.show(number, &words(&row.trials));
            let folder = format!("{}{number}", fault.name());
            let done = run(ground, &mut site, fault, (&folder, number)).and_then(|trial| {
                verify(ground, &mut site, &trial.folders)?;
                Ok(trial)
            });
            let trial = match done {
                Ok(trial) => trial,
                Err(error) => {
                    site.show_logs();
                    bail!("{name}, run {number}: {error:#}");
                }
            };
            if options.progress {
                eprintln!("{name} run {number}: {:.0} ms", trial.gap);
            }
            folders.extend(trial.folders.clone());
            row.trials.push(trial);
        }
        // Later faults must not have taken anything of earlier runs.
        row.names += verify(ground, &mut site, &folders)?;
    }
    Ok(row)
}

/// What is known so far.
fn words(trials: &[Trial]) -> String {
    if trials.is_empty() {
        return String::new();
    }
    let (median, _, worst) = spread(trials.iter().map(|trial| trial.gap).collect());
    format!("gaps: median {median:.0} ms, worst {worst:.0} ms")
}

fn outcome(fault: Fault, row: Row, ground: &Ground, options: &Options) -> Outcome {
    let of = |pick: fn(&Trial) -> f64| row.trials.iter().map(pick).collect::<Vec<f64>>();
    let gaps = of(|trial| trial.gap);
    let (median, min, max) = spread(gaps.clone());
    let (reach, worst) = fault.reach();
    let control = of(|trial| trial.control).into_iter().fold(0.0, f64::max);
    let all = spread(of(|trial| trial.all_gap));
    let mut params = params(ground, &options.disk);
    params.extend([
        ("clients", COUNT.to_string()),
        ("depth", CREATORS.to_string()),
        ("fault", quoted(fault.name())),
        ("lease_ms", LEASE_MS.to_string()),
        ("gaps_ms", listed(&gaps)),
        ("all_clients_gap_ms", format!("[{:.1},{:.1},{:.1}]", all.0, all.1, all.2)),
        ("control_gap_ms", format!("{control:.1}")),
        ("acknowledged", row.names.to_string()),
        // More than none of either would have been an error.
        ("lost", "0".into()),
        ("twice", "0".into()),
        ("reach_median_ms", reach.to_string()),
    ]);
    params.extend(verdict(&gaps, (reach, worst)));
    Outcome {
        scenario: name(fault),
        system: OURS,
        version: version(),
        medium: "library",
        params,
        metric: "stall",
        unit: "ms",
        median,
        min,
        max,
        p99: tail(gaps),
        runs: row.trials.len(),
        ratio: None,
    }
}

/// Whether the median and the worst gap are short enough.
fn verdict(gaps: &[f64], (reach, worst): (f64, f64)) -> Vec<(&'static str, String)> {
    let late = gaps.iter().filter(|gap| **gap > worst).count();
    let is_short = spread(gaps.to_vec()).0 <= reach;
    let said = if is_short { "kept" } else { "missed" };
    let text = format!(
        "reach median {reach} ms: {said}, worst {worst} ms: {late} of {} above",
        gaps.len()
    );
    vec![
        ("reach", worst.to_string()),
        ("missed", late.to_string()),
        ("kept", (is_short && late == 0).to_string()),
        ("verdict", quoted(&text)),
    ]
}

/// What all rows here have in common.
pub fn params(ground: &Ground, place: &Path) -> Vec<(&'static str, String)> {
    vec![
        ("network", quoted(ground.name())),
        ("servers", "1".into()),
        ("journal", quoted(host::storage(place))),
        ("placement", quoted("processes")),
        ("crc", "true".into()),
    ]
}

/// The value that one of a hundred is above.
pub fn tail(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() * 99).div_ceil(100) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_and_the_worst_are_judged() {
        let said = |gaps: &[f64]| verdict(gaps, (1500.0, 4000.0));
        let good = said(&[1000.0, 1400.0, 3900.0]);
        assert_eq!((good[1].1.as_str(), good[2].1.as_str()), ("0", "true"));
        let slow = said(&[1600.0, 1700.0, 1000.0]);
        assert!(slow[2].1 == "false" && slow[3].1.contains("1500 ms: missed"), "{slow:?}");
        let late = said(&[1000.0, 1200.0, 4100.0]);
        assert_eq!((late[1].1.as_str(), late[2].1.as_str()), ("1", "false"));
        assert!(late[3].1.contains("1 of 3 above"), "{late:?}");
    }

    #[test]
    fn the_runs_of_a_row_are_few_unless_more_are_asked_for() {
        let mut options = Options::default();
        assert_eq!(runs(&options), RUNS);
        options.quick = true;
        assert_eq!(runs(&options), 1);
        options.runs = Some(50);
        assert_eq!(runs(&options), 50);
        assert_eq!(rows()[0], "meta.killed");
        assert_eq!((tail(vec![3.0]), tail((1..=200).map(f64::from).collect())), (3.0, 198.0));
    }
}
