//! What a standby costs: creates with it beside creates without it, in alternation.

use anyhow::Context;

use crate::host;
use crate::lab::{Options, alternate};
use crate::order::Order;
use crate::report::Outcome;
use crate::series::{Figure, OURS};
use crate::survive::ground::{CLIENTS, Ground};
use crate::survive::outage::params;
use crate::survive::pairs::Pair;
use crate::survive::site::Site;
use crate::worker::{Work, Worker};

/// The names of the two parties.
const PARTIES: [&str; 2] = [OURS, "without-standby"];
/// Runs of each, unless the options say a number.
const RUNS: usize = 7;

/// A row of creates with so many under way.
#[derive(Debug, Clone, Copy)]
struct Cost {
    depth: u64,
    /// Creates of a run, and of a quick one.
    counts: (u64, u64),
    figure: Figure,
    /// What the ratio shall not exceed, or not fall short of.
    reach: f64,
}

const ALL: [Cost; 2] = [
    Cost { depth: 1, counts: (5_000, 1_000), figure: Figure::Time, reach: 1.6 },
    Cost { depth: 32, counts: (20_000, 4_000), figure: Figure::Rate, reach: 0.8 },
];

impl Cost {
    fn name(&self) -> String {
        format!("create.depth{}", self.depth)
    }
}

/// The names of all rows.
pub fn rows() -> Vec<String> {
    ALL.iter().map(Cost::name).collect()
}

/// Measures the rows that are wanted.
///
/// # Errors
/// Servers do not start.
pub fn costs(
    ground: &Ground,
    options: &Options,
    emit: &mut dyn FnMut(&Outcome),
) -> anyhow::Result<()> {
    let wanted: Vec<&Cost> = ALL.iter().filter(|cost| options.wanted(&cost.name())).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let sites = [Site::start(ground, options, 2)?, Site::start(ground, options, 1)?];
    for cost in wanted {
        let names = PARTIES.map(|party| format!("{}: {party}", cost.name()));
        let count = options.amount(cost.counts.0, cost.counts.1);
        let found = alternate(options, options.runs_or(RUNS), &names, |turn, run| {
            creates(ground, &sites[turn], cost, count, run)
        });
        if options.is_interrupted() {
            return Ok(());
        }
        for outcome in outcomes(cost, found, &params(ground, &options.disk)) {
            emit(&outcome);
        }
    }
    Ok(())
}

/// One client's creates in a new directory.
fn creates(
    ground: &Ground,
    site: &Site<'_>,
    cost: &Cost,
    count: u64,
    run: usize,
) -> anyhow::Result<Work> {
    let folder = format!("/{}.{run}", cost.name());
    let order = Order::new("library names").with("address", site.address());
    let order = order.with("what", "create").with("folder", folder).with("name", "f");
    let order = order.with("count", count).with("depth", cost.depth);
    let mut worker = Worker::start_by(ground.command(CLIENTS), &order)?;
    let serving = site.processes();
    let cpu = || serving.iter().map(|process| host::cpu_nanos(*process)).sum::<u64>();
    let before = cpu();
    worker.go()?;
    let mut work = worker.finish().context("a client failed")?;
    work.cpu_nanos += cpu().saturating_sub(before);
    Ok(work)
}

/// The figures of both, and the ratios of pairs of runs.
fn outcomes(cost: &Cost, found: Vec<Vec<Work>>, common: &[(&'static str, String)]) -> Vec<Outcome> {
    let own = [("clients", "1".to_string()), ("depth", cost.depth.to_string())];
    let pair = Pair {
        name: cost.name(),
        figure: cost.figure,
        other: PARTIES[1],
        ratio: "ratio_without-standby",
        reach: Some(cost.reach),
        params: common.iter().cloned().chain(own).collect(),
    };
    let standby = |is_there: bool| vec![("standby", is_there.to_string())];
    pair.outcomes(found, [standby(true), standby(false)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(operations: u64, seconds: u64) -> Work {
        Work { operations, end_nanos: seconds * 1_000_000_000, lanes: 1, ..Work::default() }
    }

    #[test]
    fn a_time_is_compared_with_a_time_and_a_rate_with_a_rate() {
        for (cost, ratio, kept) in [(&ALL[0], "[1.5000,", "true"), (&ALL[1], "[0.6667,", "false")] {
            let found = vec![vec![work(1000, 3)], vec![work(1000, 2)]];
            let told = outcomes(cost, found, &[]);
            let main = &told[0];
            assert_eq!((main.system, main.param("standby")), (OURS, "true"));
            let param = |name| main.params.iter().find(|it| it.0 == name).unwrap().1.clone();
            assert!(param("ratio_without-standby").starts_with(ratio), "{main:?}");
            assert_eq!(param("kept"), kept);
            assert_eq!(main.ratio.unwrap().1, "without-standby");
        }
    }
}
