//! Sessions with several paths under everything that befalls networks: each seed is a plan of faults and operations.

mod scenario;

use ropewalk_core::Plant;
use scenario::plan::Plan;
use scenario::{Outcomes, Scenario};

/// `ROPEWALK_SEEDS`: how many, or `=seed` for one alone.
fn seeds() -> std::ops::Range<u64> {
    let given = std::env::var("ROPEWALK_SEEDS").unwrap_or_default();
    match given.strip_prefix('=').and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..given.parse().unwrap_or(500),
    }
}

/// The same, for tests that need fewer.
fn seeds_of(count: u64) -> std::ops::Range<u64> {
    let all = seeds();
    if all.end - all.start == 1 { all } else { 0..count }
}

fn run(seed: u64, plant: Plant) -> Outcomes {
    Scenario::new(seed, Plan::of(seed), plant).run()
}

/// All seeds that fail, for a person who looks for one that is short (`ROPEWALK_GO_ON=1`).
fn which_fail(seeds: std::ops::Range<u64>) {
    std::panic::set_hook(Box::new(|_| ()));
    for seed in seeds {
        let failed = std::panic::catch_unwind(|| run(seed, Plant::Nothing)).err();
        let Some(why) = failed else { continue };
        let said = why.downcast_ref::<String>().map(String::as_str);
        let said = said.or(why.downcast_ref::<&str>().copied()).unwrap_or_default();
        let plan = Plan::of(seed);
        let (faults, posts) = (plan.faults.len(), plan.postings.len());
        let said: String = said.chars().take(150).collect();
        println!("{seed}: {faults} faults, {posts} posts: {}", said.replace('\n', " "));
    }
}

#[test]
fn everything_arrives_once_and_in_order_over_several_paths() {
    let seeds = seeds();
    if std::env::var_os("ROPEWALK_GO_ON").is_some() {
        return which_fail(seeds);
    }
    let (mut befallen, mut cuts, mut faults) = (0, 0, 0);
    let (mut joined, mut suspected, mut dead, mut taken_over) = (0, 0, 0, 0);
    let alone = seeds.end - seeds.start == 1;
    for seed in seeds {
        if alone {
            println!("{:#?}", Plan::of(seed));
        }
        let outcomes = run(seed, Plant::Nothing);
        assert_eq!(outcomes, run(seed, Plant::Nothing), "seed {seed} does not reproduce its run");
        befallen += outcomes.befallen.sum();
        (cuts, faults) = (cuts + outcomes.cuts, faults + outcomes.faults);
        for counters in &outcomes.counters {
            (joined, suspected) =
                (joined + counters.paths_joined, suspected + counters.paths_suspected);
            dead += counters.paths_dead;
            taken_over += counters.spans_taken_over;
        }
    }
    println!(
        "{faults} faults: {cuts} links cut, {befallen} packets lost, doubled, delayed or spoiled; \
         {joined} paths joined, {suspected} suspected, {dead} dead, {taken_over} spans taken over"
    );
    assert!(alone || (joined > 0 && suspected > 0 && dead > 0 && taken_over > 0));
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
fn a_time_out_before_the_drain_is_found_by_every_seed() {
    let suspected = |seed: u64, plant| {
        let outcomes = Scenario::new(seed, Plan::pausing_under_way(seed), plant).run();
        outcomes.counters[0].paths_suspected
    };
    for seed in seeds_of(20) {
        assert_eq!(suspected(seed, Plant::Nothing), 0, "seed {seed}");
        let planted = suspected(seed, Plant::TimeoutBeforeDrain);
        println!("seed {seed}: {planted} suspicions in 7 pauses");
        assert!(planted > 0, "seed {seed}: the planted bug is not found");
    }
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
