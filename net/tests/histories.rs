//! One-sided operations under everything that befalls networks: their histories are those of a memory in which each takes
//! effect once, in its order, and is told of when it is over.

mod history;
#[path = "scenario/seeds.rs"]
mod seeds;

use history::{History, Run};
use ropewalk_core::Plant;
use seeds::{each, seeds};

fn run(seed: u64, plant: Plant) -> Run {
    History::new(seed, plant).run()
}

/// What many runs were.
#[derive(Debug, Default)]
struct Sums {
    seeds: u64,
    operations: u64,
    failed: u64,
    cancelled: u64,
    cuts: u64,
    granted: u64,
    at_once: u64,
    tokens_seen: u64,
    notices_seen: u64,
    records: u64,
    rested: u64,
}

impl Sums {
    fn add(&mut self, run: Run) {
        self.seeds += 1;
        self.operations += run.operations;
        self.failed += run.failed;
        self.cancelled += run.cancelled;
        self.cuts += run.cuts;
        self.granted += run.granted;
        self.at_once += run.at_once;
        self.tokens_seen += run.tokens_seen;
        self.notices_seen += run.notices_seen;
        self.records += run.records;
        self.rested += run.rested;
    }
}

/// All seeds that fail, for a person who looks for one that is short (`ROPEWALK_GO_ON=1`).
fn which_fail() {
    std::panic::set_hook(Box::new(|_| ()));
    let failure = |seed| {
        let why = std::panic::catch_unwind(|| run(seed, Plant::Nothing)).err()?;
        let said = why.downcast_ref::<String>().map(String::as_str);
        let said = said.or(why.downcast_ref::<&str>().copied()).unwrap_or_default();
        let said: String = said.chars().take(400).collect();
        Some(format!("{seed}: {}", said.replace('\n', " ")))
    };
    each(seeds(240), failure, |failure| failure.iter().for_each(|text| println!("{text}")));
}

#[test]
fn histories_are_those_of_one_memory() {
    if std::env::var_os("ROPEWALK_GO_ON").is_some() {
        return which_fail();
    }
    let mut sums = Sums::default();
    let twice = |seed| {
        let outcome = run(seed, Plant::Nothing);
        assert_eq!(outcome, run(seed, Plant::Nothing), "seed {seed} does not reproduce its run");
        outcome
    };
    each(seeds(240), twice, |outcome| sums.add(outcome));
    println!("{sums:?}");
    let Sums { seeds, failed, cancelled, cuts, granted, rested, .. } = sums;
    let Sums { at_once, tokens_seen, notices_seen, records, .. } = sums;
    let all = [failed, cancelled, cuts, granted, rested, at_once, tokens_seen];
    let all = all.into_iter().chain([notices_seen, records]);
    assert!(seeds < 48 || all.into_iter().all(|it| it > seeds / 8), "something did not happen");
}

#[test]
fn planted_bugs_are_found() {
    const SEEDS: u64 = 60;
    for plant in [
        Plant::PutTwice,
        Plant::AtomicTwice,
        Plant::TokenEarly,
        Plant::TokenPassesGet,
        Plant::AppliedEarly,
        Plant::UnlockTwice,
        Plant::OrderLost,
        Plant::NoticeEarly,
        Plant::RecordsTwice,
        Plant::LockedPutEarly,
    ] {
        let fails = |seed: &u64| std::panic::catch_unwind(|| run(*seed, plant)).is_err();
        let found = (0..SEEDS).find(fails);
        let found = found.unwrap_or_else(|| panic!("{plant:?} is not found within {SEEDS} seeds"));
        println!("{plant:?} is found by seed {found}");
    }
}
