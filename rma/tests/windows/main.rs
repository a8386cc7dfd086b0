//! What windows promise, for every implementation: each scenario runs over each setup.

mod accumulates;
mod checks;
mod common;
mod costs;
mod dynamic;
mod errors;
mod locks;
mod long_types;
mod notices;
mod synchronisation;
mod transfers;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use common::{Setup, faulty};
use ropewalk_rma::{Asserts, Datatype, Element, Implementation, Operator, Source, Target};

const TCP: Setup = Setup {
    scheme: "tcp",
    implementation: Implementation::Messages,
    eager_bytes: 16 << 10,
    map_memory: true,
    seed: 0,
};
/// Nearly everything goes in messages of its own.
const TCP_APART: Setup = Setup { eager_bytes: 64, ..TCP };
const SHM: Setup = Setup { scheme: "shm", ..TCP };

const DIRECT_TCP: Setup = Setup { implementation: Implementation::Direct, ..TCP };
const ORIGIN_TCP: Setup = Setup { implementation: Implementation::DirectAccumulateAtOrigin, ..TCP };
const DIRECT_SHM: Setup = Setup { scheme: "shm", map_memory: false, ..DIRECT_TCP };
const ORIGIN_SHM: Setup = Setup { scheme: "shm", map_memory: false, ..ORIGIN_TCP };
const UDP: Setup = Setup { scheme: "udp", ..TCP };
const DIRECT_UDP: Setup = Setup { scheme: "udp", ..DIRECT_TCP };
const ORIGIN_UDP: Setup = Setup { scheme: "udp", ..ORIGIN_TCP };
/// By rails that lose, double and reorder frames, and by links that are cut and sessions that go on.
const LOSES: Setup = Setup { scheme: faulty::LOSES, ..TCP };
const DIRECT_LOSES: Setup = Setup { scheme: faulty::LOSES, ..DIRECT_TCP };
const ORIGIN_LOSES: Setup = Setup { scheme: faulty::LOSES, ..ORIGIN_TCP };
const CUTS: Setup = Setup { scheme: faulty::CUTS, ..TCP };
const DIRECT_CUTS: Setup = Setup { scheme: faulty::CUTS, ..DIRECT_TCP };
const ORIGIN_CUTS: Setup = Setup { scheme: faulty::CUTS, ..ORIGIN_TCP };
/// Loads and stores of each other's memory.
const MAPPED: Setup = Setup { map_memory: true, ..DIRECT_SHM };

/// Whether an accumulate of many pieces takes long: at the origin each of them is some round trips, and these are long, or some
/// of their frames are lost.
fn is_slow_by_pieces(setup: Setup) -> bool {
    let at_origin = setup.implementation == Implementation::DirectAccumulateAtOrigin;
    setup.is_faulty() || (at_origin && setup.scheme == "udp")
}

/// The time for which a scenario goes on with other seeds.
const SEEDS_WITHIN: Duration = Duration::from_secs(5);

/// Runs a scenario; over networks with faults with so many seeds as `ROPEWALK_SEEDS` says, for some seconds, or with one alone
/// (`=seed`).
fn with_seeds(setup: Setup, scenario: fn(Setup)) {
    if !setup.is_faulty() {
        return scenario(setup);
    }
    let given = std::env::var("ROPEWALK_SEEDS").unwrap_or_default();
    let alone = given.strip_prefix('=').map(|seed| seed.parse().expect("a seed"));
    let seeds = alone.map_or(0..given.parse().unwrap_or(1), |seed: u64| seed..seed + 1);
    let begin = Instant::now();
    for seed in seeds {
        let run = || scenario(Setup { seed, ..setup });
        if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
            eprintln!("seed {seed} failed; the same chances again: ROPEWALK_SEEDS=={seed}");
            resume_unwind(panic);
        }
        if begin.elapsed() >= SEEDS_WITHIN {
            return;
        }
    }
}

/// A test for each scenario and each setup.
macro_rules! scenarios {
    ($($module:ident: $($scenario:ident),*;)*) => {
        scenarios! { @all messages_over_tcp TCP: $($module: $($scenario),*;)* }
        scenarios! { @all messages_apart_over_tcp TCP_APART: $($module: $($scenario),*;)* }
        scenarios! { @all messages_over_shm SHM: $($module: $($scenario),*;)* }
        scenarios! { @all direct_over_tcp DIRECT_TCP: $($module: $($scenario),*;)* }
        scenarios! { @all direct_over_shm DIRECT_SHM: $($module: $($scenario),*;)* }
        scenarios! { @all mapped_over_shm MAPPED: $($module: $($scenario),*;)* }
        scenarios! { @all at_origin_over_tcp ORIGIN_TCP: $($module: $($scenario),*;)* }
        scenarios! { @all at_origin_over_shm ORIGIN_SHM: $($module: $($scenario),*;)* }
        scenarios! { @all messages_over_udp UDP: $($module: $($scenario),*;)* }
        scenarios! { @all direct_over_udp DIRECT_UDP: $($module: $($scenario),*;)* }
        scenarios! { @all at_origin_over_udp ORIGIN_UDP: $($module: $($scenario),*;)* }
        scenarios! { @all messages_over_losses LOSES: $($module: $($scenario),*;)* }
        scenarios! { @all direct_over_losses DIRECT_LOSES: $($module: $($scenario),*;)* }
        scenarios! { @all at_origin_over_losses ORIGIN_LOSES: $($module: $($scenario),*;)* }
        scenarios! { @all messages_over_cuts CUTS: $($module: $($scenario),*;)* }
        scenarios! { @all direct_over_cuts DIRECT_CUTS: $($module: $($scenario),*;)* }
        scenarios! { @all at_origin_over_cuts ORIGIN_CUTS: $($module: $($scenario),*;)* }
    };
    (@all $name:ident $setup:ident: $($module:ident: $($scenario:ident),*;)*) => {
        mod $name {
            $($(
                #[test]
                fn $scenario() {
                    super::with_seeds(super::$setup, super::$module::$scenario);
                }
            )*)*
        }
    };
}

/// The networks with faults have them: else their scenarios would say nothing.
#[test]
fn frames_are_lost_and_doubled_and_sessions_go_on_over_new_links() {
    for setup in [LOSES, DIRECT_LOSES, CUTS, DIRECT_CUTS] {
        common::ranks(setup, 2, |own| {
            let mut window = own.window(64);
            let word = Datatype::of(Element::U64);
            let (one, to) = (1u64.to_ne_bytes(), Target::new(own.rank ^ 1, 0, 1, &word));
            let mut rounds = 0;
            loop {
                window.fence(Asserts::NONE).unwrap();
                window.accumulate(Source::slice(&one, 1, &word), to, Operator::Sum).unwrap();
                window.fence(Asserts::NONE).unwrap();
                rounds += 1;
                assert_eq!(window.cells().load::<u64>(0), Some(rounds));
                let counters = own.endpoint.counters().0;
                let is_enough = counters.frames_re_sent > 0 && counters.duplicates_dropped > 0;
                assert!(rounds < 20_000, "{setup:?}: nothing happened: {counters:?}");
                // Both ranks make as many rounds.
                let all = own.team.exchange(&[u8::from(is_enough)]).unwrap();
                if all.iter().all(|it| it == &[1]) {
                    break;
                }
            }
            window.free().unwrap();
        });
    }
}

scenarios! {
    transfers:
        puts_and_gets_of_all_lengths_between_all_ranks,
        data_of_any_types_go_to_the_places_of_a_model,
        requests_end_alone_and_in_any_order,
        nothing_is_legal_and_still_needs_an_epoch;
    accumulates:
        all_types_take_all_their_operators_near_and_far,
        elements_with_gaps_are_combined_where_they_lie,
        accumulates_of_one_origin_keep_their_order_whatever_their_length,
        counters_of_all_ranks_lose_nothing_and_tell_each_value_once,
        accumulates_are_done_before_their_epoch_is_over_for_others,
        swaps_of_all_types_happen_where_all_bytes_are_as_expected;
    long_types:
        types_of_many_blocks_are_put_got_and_combined_at_their_places,
        requests_with_types_of_many_blocks_end_with_their_last_part,
        long_types_are_judged_as_a_whole,
        long_types_lie_in_one_region_of_a_dynamic_window,
        loops_instances_and_pairs_of_long_types_keep_their_places;
    synchronisation:
        epochs_of_a_ring_follow_each_other,
        an_epoch_has_several_origins_and_targets_and_tells_those_that_are_not_used,
        operations_wait_for_the_post_and_the_start_does_not,
        a_test_that_says_no_changes_nothing,
        a_post_of_somebody_else_is_kept_for_a_later_start,
        asserted_epochs_work_without_messages_of_their_own,
        fences_order_the_epochs_of_all_ranks,
        all_ranks_find_behind_a_fence_what_any_rank_did_anywhere_before,
        who_waits_on_one_window_serves_the_others,
        windows_over_the_same_memory_see_each_other,
        threads_of_a_rank_work_at_once,
        programs_of_all_kinds_of_epochs_end_as_one_process_alone_would;
    locks:
        an_exclusive_lock_lets_nobody_between_a_get_and_a_put,
        ones_own_lock_is_here_when_the_call_returns,
        shared_locks_are_held_at_once,
        nobody_passes_who_asked_before,
        lock_all_starves_nobody_and_is_starved_by_nobody,
        a_flush_completes_at_the_target_and_a_local_one_here,
        locks_that_nobody_contends_for_may_go_unasked;
    checks:
        operations_that_overlap_are_told,
        operators_of_a_window_that_promises_one_are_told,
        memory_that_two_operations_use_is_told,
        columns_side_by_side_are_apart,
        assertions_that_are_untrue_are_told;
    dynamic:
        operations_of_all_kinds_find_their_addresses,
        a_range_has_to_lie_in_one_region,
        memory_that_is_attached_anew_is_found_again,
        nothing_is_written_after_a_detach,
        many_regions_come_and_go,
        wrong_attachments_are_told,
        a_rank_that_is_lost_holds_no_memory_back;
    notices:
        a_notice_comes_after_its_put_and_all_before_it,
        notices_of_all_origins_and_epochs_are_counted_once_each,
        wrong_notices_are_told_and_change_nothing;
    errors:
        wrong_calls_are_told_in_words_and_change_nothing,
        arguments_that_make_no_sense_are_told,
        what_a_target_refuses_comes_at_the_next_synchronisation_and_hangs_nobody,
        what_is_refused_in_an_epoch_of_start_comes_with_its_end_or_the_next_one,
        a_refusal_names_window_rank_and_range,
        ranks_that_make_different_windows_are_told,
        what_was_refused_behind_a_complete_is_told_by_the_free_at_the_latest,
        a_rank_that_is_lost_ends_the_epochs_that_wait_for_it;
}
