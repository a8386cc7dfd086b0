//! In steady state windows by remote access allocate nothing: both ranks, their endpoints and service threads together.

mod pair;

use std::alloc::System;

use pair::two_of_a_team;
use ropewalk_rma::{
    Asserts, Cells, Datatype, Destination, Element, Error, LockKind, Operator, Source, Target,
    Team, Window,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const NONE: Asserts = Asserts::NONE;
/// Rounds that fill all rooms, and those that are counted.
const WARM: usize = 2000;
const COUNTED: usize = 1000;
/// Operations for each allocation, at least: a list grows once in a while, and other threads of the test's harness allocate.
const FOR_EACH: usize = 16;
/// Over packets a put or a get that is longer than one has a pull of its own, with its lists.
const OF_A_PULL: usize = 3;

/// A round of one rank, by what it is: so many operations.
type Round<'a> = (&'static str, usize, &'a (dyn Fn(u32) -> Result<(), Error> + Sync));

fn so_far() -> u64 {
    let stats = ALLOCATOR.stats();
    (stats.allocations + stats.reallocations) as u64
}

/// Both ranks make rounds together, and each counts while it does.
fn assert_none(scheme: &str, team: &Team, rank: u32, (name, operations, round): Round<'_>) {
    let rounds = |count: usize| (0..count).try_for_each(|_| round(rank)).expect(name);
    rounds(WARM);
    let mut least = u64::MAX;
    for _ in 0..5 {
        team.barrier().expect("nobody is lost");
        let before = so_far();
        rounds(COUNTED);
        // A barrier's messages are not counted.
        least = least.min(so_far() - before);
    }
    team.barrier().expect("nobody is lost");
    println!("{scheme}: {name}: {least} allocations in {COUNTED} rounds");
    let pulls = if scheme == "udp" && name.contains("of 4 KiB") { OF_A_PULL } else { 0 };
    let most = COUNTED * operations / FOR_EACH + COUNTED * pulls;
    assert!(least <= most as u64, "{scheme}: {name}: {least}");
}

/// Rank 0 works on rank 1's window in an epoch of locks, while rank 1 waits.
fn passive(scheme: &str, team: &Team, window: &Window, rank: u32) {
    let word = Datatype::of(Element::U64);
    let (data, result) = (Cells::zeroed(4096), Cells::zeroed(4096));
    let source = |count| Source::cells(&data, 0, count, &word);
    let into = |count| Destination::new(&result, 0, count, &word);
    let at = |count| Target::new(1, 0, count, &word);
    let put = |count| window.put(source(count), at(count)).and_then(|()| window.flush(1));
    let get = |count| window.get(into(count), at(count)).and_then(|()| window.flush(1));
    let update = |count| {
        window.accumulate(source(count), at(count), Operator::Sum)?;
        window.flush(1)
    };
    let fetch = || {
        window.fetch_and_op(Some(source(1)), into(1), at(1), Operator::Sum)?;
        window.flush_all()
    };
    let burst = || {
        (0..16).try_for_each(|_| window.put(source(1), at(1)))?;
        window.flush_local(1)?;
        window.flush(1)
    };
    let acts: [Round<'_>; 7] = [
        ("put + flush", 1, &|_| put(1)),
        ("put of 4 KiB + flush", 1, &|_| put(512)),
        ("get + flush", 1, &|_| get(1)),
        ("get of 4 KiB + flush", 1, &|_| get(512)),
        ("accumulate of 4 KiB + flush", 1, &|_| update(512)),
        ("fetch_and_op + flush_all", 1, &|_| fetch()),
        ("16 puts + flush_local + flush", 16, &|_| burst()),
    ];
    for (name, operations, act) in acts {
        window.lock_all(NONE).expect("nobody is lost");
        let round = |rank: u32| if rank == 0 { act(rank) } else { Ok(()) };
        assert_none(scheme, team, rank, (name, operations, &round));
        window.unlock_all().expect("nobody is lost");
    }
    let locked = |rank: u32| {
        if rank == 0 {
            window.lock(LockKind::Exclusive, 1, NONE)?;
            window.put(source(1), at(1))?;
            window.unlock(1)?;
        }
        Ok(())
    };
    assert_none(scheme, team, rank, ("lock + put + unlock", 1, &locked));
}

/// Both ranks take part in the epochs.
fn active(scheme: &str, team: &Team, window: &Window, rank: u32) {
    let word = Datatype::of(Element::U64);
    let data = Cells::zeroed(64);
    let put = |rank: u32| {
        window.put(Source::cells(&data, 0, 1, &word), Target::new(1 - rank, 8, 1, &word))
    };
    let fenced = |rank: u32| {
        put(rank)?;
        window.fence(NONE)
    };
    window.fence(NONE).expect("nobody is lost");
    assert_none(scheme, team, rank, ("put + fence", 1, &fenced));
    window.fence(Asserts::NO_SUCCEED).expect("nobody is lost");
    let matched = |rank: u32| {
        let other = [1 - rank];
        window.post(&other, NONE)?;
        window.start(&other, NONE)?;
        put(rank)?;
        window.complete()?;
        window.wait()
    };
    assert_none(scheme, team, rank, ("post + start + put + complete + wait", 1, &matched));
}

#[test]
fn operations_and_epochs_allocate_nothing() {
    for scheme in ["tcp", "shm", "udp"] {
        two_of_a_team(scheme, |team, window, _, rank| {
            passive(scheme, team, window, rank);
            active(scheme, team, window, rank);
        });
    }
}
