//! Sessions with several paths under everything that befalls networks: each seed is a plan of faults and operations.

mod scenario;

use std::ops::Range;

use ropewalk_core::Plant;
use scenario::plan::Plan;
use scenario::seeds::{each, seeds};
use scenario::{Outcomes, Scenario};

/// The seeds of this number and beyond are long plans.
const LONG: u64 = 1 << 32;
/// So many seeds meet so many faults at least.
const DEEP: (u64, u64) = (10_000, 1_000_000);

fn plan(seed: u64) -> Plan {
    if seed < LONG { Plan::of(seed) } else { Plan::long(seed - LONG) }
}

/// One seed where it is asked for, else so many.
fn seeds_of(count: u64) -> Range<u64> {
    let all = seeds(count);
    if all.end - all.start == 1 { all } else { 0..count }
}

fn run(seed: u64, plant: Plant) -> Outcomes {
    Scenario::new(seed, plan(seed), plant).run()
}

/// All seeds that fail, for a person who looks for one that is short (`ROPEWALK_GO_ON=1`).
fn which_fail(seeds: Range<u64>) {
    std::panic::set_hook(Box::new(|_| ()));
    let failure = |seed| {
        let why = std::panic::catch_unwind(|| run(seed, Plant::Nothing)).err()?;
        let said = why.downcast_ref::<String>().map(String::as_str);
        let said = said.or(why.downcast_ref::<&str>().copied()).unwrap_or_default();
        let plan = plan(seed);
        let (faults, posts) = (plan.faults.len(), plan.postings.len());
        let said: String = said.chars().take(150).collect();
        let said = said.replace('\n', " ");
        Some(format!("{seed}: {faults} faults, {posts} posts: {said}"))
    };
    each(seeds, failure, |failure| failure.iter().for_each(|text| println!("{text}")));
}

/// What the runs of many seeds were, added up.
#[derive(Debug, Default)]
struct Sums {
    seeds: u64,
    /// Each packet that was lost by chance or for its length, doubled, delayed or spoiled is a fault; each link that was cut;
    /// and each beginning of another kind of fault. What is lost over a way that was cut is none.
    faults: u64,
    links_cut: u64,
    packets: u64,
    joined: u64,
    suspected: u64,
    dead: u64,
    taken_over: u64,
}

impl Sums {
    fn add(&mut self, outcomes: Outcomes) {
        let packets = outcomes.befallen.sum();
        self.seeds += 1;
        self.links_cut += outcomes.cuts;
        self.packets += packets;
        self.faults += outcomes.faults + outcomes.cuts + packets;
        for counters in &outcomes.counters {
            self.joined += counters.paths_joined;
            self.suspected += counters.paths_suspected;
            self.dead += counters.paths_dead;
            self.taken_over += counters.spans_taken_over;
        }
    }
}

fn twice(seed: u64) -> Outcomes {
    let outcomes = run(seed, Plant::Nothing);
    assert_eq!(outcomes, run(seed, Plant::Nothing), "seed {seed} does not reproduce its run");
    outcomes
}

/// There is a long plan for five others. `ROPEWALK_SEEDS=10000` runs 10,000 and 2,000 in twenty minutes; `verify --deep`
/// gets as far as a minute allows.
#[test]
fn everything_arrives_once_and_in_order_over_several_paths() {
    let seeds = seeds(500);
    let alone = seeds.end - seeds.start == 1;
    let long = LONG..LONG + (seeds.end - seeds.start) / 5;
    if std::env::var_os("ROPEWALK_GO_ON").is_some() {
        which_fail(seeds);
        return which_fail(long);
    }
    let mut sums = Sums::default();
    if alone {
        println!("{:#?}", plan(seeds.start));
    }
    each(seeds, twice, |outcomes| sums.add(outcomes));
    println!("{sums:?}");
    let deep = sums.seeds >= DEEP.0;
    each(long, twice, |outcomes| sums.add(outcomes));
    println!("with long plans: {sums:?}");
    let Sums { joined, suspected, dead, taken_over, .. } = sums;
    assert!(alone || (joined > 0 && suspected > 0 && dead > 0 && taken_over > 0));
    assert!(!deep || sums.faults >= DEEP.1, "{} faults of {}", sums.faults, DEEP.1);
}

#[test]
fn a_side_that_makes_no_pass_for_a_while_suspects_nobody() {
    let suspected = |seed: u64, plant| {
        let outcomes = Scenario::new(seed, Plan::pausing(seed), plant).run();
        let suspected = outcomes.counters[0].paths_suspected;
        if suspected > 0 {
            println!("seed {seed}, {plant:?}: {suspected}");
        }
        suspected
    };
    let sum = |plant| seeds_of(40).map(|seed| suspected(seed, plant)).sum::<u64>();
    let (well, planted) = (sum(Plant::Nothing), sum(Plant::TimeoutBeforeDrain));
    println!("{well} paths suspected, and {planted} with a time-out before the drain");
    // One that goes silent for another reason, like a peer that has left it, is no matter of passes.
    assert!(planted > 2 * well, "{well} suspected, {planted} with the planted bug");
}

#[test]
fn of_many_rails_a_session_uses_as_many_as_it_may() {
    for (seed, rails) in [(1, 16), (2, 16), (3, 64)] {
        let plan = Plan { faults: Vec::new(), is_crossed: false, ..Plan::wide(seed, rails) };
        let outcomes = Scenario::new(seed, plan, Plant::Nothing).run();
        let joined = outcomes.counters.map(|counters| counters.paths_joined);
        assert!(joined.iter().all(|joined| *joined <= 7), "{joined:?} beside the first one");
    }
    for seed in 0..20 {
        let outcomes = Scenario::new(seed, Plan::wide(seed, 16), Plant::Nothing).run();
        let again = Scenario::new(seed, Plan::wide(seed, 16), Plant::Nothing).run();
        assert_eq!(outcomes, again, "seed {seed}");
    }
}

#[test]
fn planted_bugs_are_found_over_several_paths() {
    for plant in [
        Plant::DuplicatesTaken,
        Plant::WindowOffByOne,
        Plant::PlacedAtStart,
        Plant::EndsBeforeRelease,
    ] {
        let fails = |seed: &u64| std::panic::catch_unwind(|| run(*seed, plant)).is_err();
        let found = (0..200).find(fails);
        let found = found.unwrap_or_else(|| panic!("{plant:?} is not found"));
        println!("{plant:?} is found by seed {found}");
    }
}
