//! Fences; post, start, complete and wait; windows at once.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ropewalk_base::random::Random;
use ropewalk_rma::{
    Asserts, Cells, Datatype, Destination, Element, LockKind, Operator, Source, Target, Window,
};

use crate::common::{Setup, bytes, ranks};

const NONE: Asserts = Asserts::NONE;

fn put(window: &Window, to: u32, at: u64, value: u64) {
    let number = Datatype::of(Element::U64);
    let bytes = value.to_ne_bytes();
    window.put(Source::slice(&bytes, 1, &number), Target::new(to, at * 8, 1, &number)).unwrap();
}

fn load(window: &Window, at: usize) -> u64 {
    window.cells().load(window.range().start + at * 8).unwrap()
}

pub fn epochs_of_a_ring_follow_each_other(setup: Setup) {
    for size in [1, 2, 5] {
        ranks(setup, size, |own| {
            let window = own.window(16);
            let (left, right) = ((own.rank + size - 1) % size, (own.rank + 1) % size);
            for round in 0..200 {
                // In either order: a start does not wait for a post.
                if (round + own.rank).is_multiple_of(2) {
                    window.post(&[left], NONE).unwrap();
                    window.start(&[right], NONE).unwrap();
                } else {
                    window.start(&[right], NONE).unwrap();
                    window.post(&[left], NONE).unwrap();
                }
                put(&window, right, 0, u64::from(own.rank) << 32 | u64::from(round));
                window.complete().unwrap();
                window.wait().unwrap();
                assert_eq!(load(&window, 0), u64::from(left) << 32 | u64::from(round));
            }
        });
    }
}

pub fn an_epoch_has_several_origins_and_targets_and_tells_those_that_are_not_used(setup: Setup) {
    ranks(setup, 5, |own| {
        let window = own.window(8 * 5);
        let others = own.others();
        for round in 1..40_u64 {
            if own.rank < 2 {
                // Origins, of which each leaves one target out.
                window.start(&[4, 2, 3], NONE).unwrap();
                let unused = 2 + (round as u32 + own.rank) % 3;
                for to in (2..5).filter(|to| *to != unused) {
                    put(&window, to, own.rank.into(), round);
                }
                window.complete().unwrap();
            } else {
                window.post(&[1, 0], NONE).unwrap();
                window.wait().unwrap();
                for from in 0..2_u32 {
                    let unused = 2 + (round as u32 + from) % 3;
                    let want = if unused == own.rank { round - 1 } else { round };
                    let seen = load(&window, from as usize);
                    // Before the round of the last use it was one less.
                    assert!(
                        seen == want || unused == own.rank && seen < round,
                        "{seen} in {round}"
                    );
                    window.cells().store(from as usize * 8, round).unwrap();
                }
            }
        }
        window.start(&[], NONE).unwrap();
        window.post(&[], NONE).unwrap();
        assert!(window.test().unwrap());
        window.complete().unwrap();
        window.post(&others, NONE).unwrap();
        window.start(&others, NONE).unwrap();
        window.complete().unwrap();
        while !window.test().unwrap() {
            std::thread::yield_now();
        }
        assert!(window.test().is_err());
    });
}

pub fn operations_wait_for_the_post_and_the_start_does_not(setup: Setup) {
    let posted = AtomicBool::new(false);
    ranks(setup, 2, |own| {
        let window = own.window(8 * 100);
        if own.rank == 0 {
            window.start(&[1], NONE).unwrap();
            // So many that they would leave early.
            (0..100).for_each(|at| put(&window, 1, at, at + 1));
            assert!(!posted.load(Ordering::SeqCst), "nobody waited for the post");
            own.team.barrier().unwrap();
            window.complete().unwrap();
            assert!(posted.load(Ordering::SeqCst));
        } else {
            own.team.barrier().unwrap();
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(20) {
                own.team.progress();
                assert_eq!(bytes(window.cells()), [0; 800]);
            }
            posted.store(true, Ordering::SeqCst);
            window.post(&[0], NONE).unwrap();
            window.wait().unwrap();
            (0..100).for_each(|at| assert_eq!(load(&window, at), at as u64 + 1));
        }
    });
}

pub fn a_test_that_says_no_changes_nothing(setup: Setup) {
    ranks(setup, 2, |own| {
        let window = own.window(8);
        if own.rank == 0 {
            window.post(&[1], NONE).unwrap();
            for _ in 0..10 {
                assert!(!window.test().unwrap());
            }
            own.team.barrier().unwrap();
            while !window.test().unwrap() {}
            assert_eq!(load(&window, 0), 7);
        } else {
            own.team.barrier().unwrap();
            window.start(&[0], NONE).unwrap();
            put(&window, 0, 0, 7);
            window.complete().unwrap();
        }
    });
}

pub fn a_post_of_somebody_else_is_kept_for_a_later_start(setup: Setup) {
    ranks(setup, 3, |own| {
        let window = own.window(8);
        if own.rank == 0 {
            own.team.barrier().unwrap();
            // Both posts are here. Rank 2 first, then rank 1 twice.
            window.start(&[2], NONE).unwrap();
            put(&window, 2, 0, 2);
            window.complete().unwrap();
            for round in [10, 11] {
                window.start(&[1], NONE).unwrap();
                put(&window, 1, 0, round);
                window.complete().unwrap();
            }
        } else {
            window.post(&[0], NONE).unwrap();
            own.team.barrier().unwrap();
            window.wait().unwrap();
            assert_eq!(load(&window, 0), if own.rank == 2 { 2 } else { 10 });
            if own.rank == 1 {
                window.post(&[0], NONE).unwrap();
                window.wait().unwrap();
                assert_eq!(load(&window, 0), 11);
            }
        }
    });
}

pub fn asserted_epochs_work_without_messages_of_their_own(setup: Setup) {
    ranks(setup, 2, |own| {
        let window = own.window(8);
        for round in 1..20_u64 {
            if own.rank == 0 {
                own.team.barrier().unwrap();
                window.start(&[1], Asserts::NO_CHECK).unwrap();
                put(&window, 1, 0, round);
                window.complete().unwrap();
            } else {
                window.post(&[0], Asserts::NO_CHECK | Asserts::NO_STORE).unwrap();
                own.team.barrier().unwrap();
                window.wait().unwrap();
                assert_eq!(load(&window, 0), round);
            }
        }
        window.fence(Asserts::NO_PRECEDE | Asserts::NO_STORE).unwrap();
        put(&window, own.rank ^ 1, 0, 100);
        window.fence(Asserts::NO_SUCCEED | Asserts::NO_PUT).unwrap();
        assert_eq!(load(&window, 0), 100);
        assert!(window.lock(LockKind::Shared, 0, NONE).is_ok());
        window.unlock(0).unwrap();
        own.team.barrier().unwrap();
    });
}

pub fn fences_order_the_epochs_of_all_ranks(setup: Setup) {
    for size in [2, 3, 5] {
        ranks(setup, size, |own| {
            let window = own.window(8 * size as usize);
            let number = Datatype::of(Element::U64);
            window.fence(Asserts::NO_PRECEDE).unwrap();
            for round in 1..60_u64 {
                (0..size).for_each(|to| put(&window, to, own.rank.into(), round));
                window.fence(NONE).unwrap();
                // Everybody reads what everybody wrote to one rank, in the next epoch.
                let from = (round % u64::from(size)) as u32;
                let (all, count) = (Cells::zeroed(8 * size as usize), u64::from(size));
                let result = Destination::new(&all, 0, count, &number);
                window.get(result, Target::new(from, 0, count, &number)).unwrap();
                window.fence(NONE).unwrap();
                for rank in 0..size as usize {
                    assert_eq!(all.load::<u64>(rank * 8), Some(round), "from {rank}");
                }
            }
            window.fence(Asserts::NO_SUCCEED).unwrap();
        });
    }
}

/// A rank puts, also at itself; others get it from the target, which the rank that put has told nothing of.
pub fn all_ranks_find_behind_a_fence_what_any_rank_did_anywhere_before(setup: Setup) {
    /// Words, of which a get needs many frames.
    const WORDS: usize = 8 << 10;
    // Among more than 16 ranks a fence is another one.
    let sizes: &[u32] = if setup.is_faulty() { &[2, 3] } else { &[2, 3, 4, 17] };
    for size in sizes.iter().copied() {
        ranks(setup, size, |own| {
            let window = own.window(WORDS * 8);
            let word = Datatype::of(Element::U64);
            let fill = |value: u64| value.to_ne_bytes().repeat(WORDS);
            let rounds = if size > 4 || setup.is_faulty() { 6 } else { 40 };
            window.fence(NONE).unwrap();
            for round in 1..=rounds {
                let value = u64::from(round);
                let from = round % size;
                let to = (from + 1 + round / size % (size - 1)) % size;
                if own.rank == from {
                    let data = fill(value);
                    for at in [to, from] {
                        let source = Source::slice(&data, WORDS as u64, &word);
                        window.put(source, Target::new(at, 0, WORDS as u64, &word)).unwrap();
                    }
                }
                window.fence(NONE).unwrap();
                let got = [Cells::zeroed(WORDS * 8), Cells::zeroed(WORDS * 8)];
                for (got, at) in got.iter().zip([to, from]) {
                    let destination = Destination::new(got, 0, WORDS as u64, &word);
                    window.get(destination, Target::new(at, 0, WORDS as u64, &word)).unwrap();
                }
                window.fence(NONE).unwrap();
                // Gets of before have ended: what is stored now comes too late for them.
                let begin = window.range().start;
                for at in [begin, begin + (WORDS - 1) * 8] {
                    window.cells().store(at, u64::MAX).unwrap();
                }
                for got in &got {
                    assert!(bytes(got) == fill(value), "round {round} of {size} ranks");
                }
                window.fence(NONE).unwrap();
            }
        });
    }
}

pub fn who_waits_on_one_window_serves_the_others(setup: Setup) {
    let done = AtomicBool::new(false);
    ranks(setup, 3, |own| {
        let (one, other) = (own.window(8), own.window(64));
        let third = own.team.create(other.cells(), 16..32, &own.setup.options("third")).unwrap();
        match own.rank {
            0 => {
                // Waits for rank 2 while rank 1 works on the other windows.
                one.post(&[2], NONE).unwrap();
                one.wait().unwrap();
                assert_eq!(load(&other, 0), 5);
                assert_eq!(load(&third, 1), 6);
                assert_eq!(other.cells().load::<u64>(24), Some(6));
            }
            1 => {
                other.lock(LockKind::Exclusive, 0, NONE).unwrap();
                put(&other, 0, 0, 5);
                other.unlock(0).unwrap();
                third.lock_all(NONE).unwrap();
                put(&third, 0, 1, 6);
                third.unlock_all().unwrap();
                done.store(true, Ordering::SeqCst);
            }
            _ => {
                while !done.load(Ordering::SeqCst) {
                    own.team.progress();
                }
                one.start(&[0], NONE).unwrap();
                put(&one, 0, 0, 1);
                one.complete().unwrap();
            }
        }
        own.team.barrier().unwrap();
    });
}

pub fn windows_over_the_same_memory_see_each_other(setup: Setup) {
    ranks(setup, 2, |own| {
        let cells = Cells::zeroed(64);
        let options = own.setup.options("half");
        let mut whole = own.team.create(&cells, 0..64, &options).unwrap();
        let half = own.team.create(&cells, 32..64, &options).unwrap();
        whole.fence(NONE).unwrap();
        half.fence(NONE).unwrap();
        put(&whole, own.rank ^ 1, 4, 1);
        put(&half, own.rank ^ 1, 1, 2);
        half.fence(Asserts::NO_SUCCEED).unwrap();
        whole.fence(Asserts::NO_SUCCEED).unwrap();
        assert_eq!((load(&half, 0), load(&whole, 5)), (1, 2));
        whole.free().unwrap();
        half.lock(LockKind::Shared, own.rank ^ 1, NONE).unwrap();
        put(&half, own.rank ^ 1, 3, 9);
        half.unlock(own.rank ^ 1).unwrap();
        own.team.barrier().unwrap();
        assert_eq!(load(&half, 3), 9);
    });
}

pub fn threads_of_a_rank_work_at_once(setup: Setup) {
    ranks(setup, 2, |own| {
        const TURNS: u64 = 50;
        let window = own.window(8);
        let number = Datatype::of(Element::U64);
        let running = AtomicU32::new(3);
        window.lock_all(NONE).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let old = Cells::zeroed(8);
                    let result = Destination::new(&old, 0, 1, &number);
                    for _ in 0..TURNS {
                        let one = 1_u64.to_ne_bytes();
                        let (source, to) =
                            (Source::slice(&one, 1, &number), Target::new(0, 0, 1, &number));
                        let request = window
                            .rget_accumulate(Some(source), result, to, Operator::Sum)
                            .unwrap();
                        request.wait().unwrap();
                        assert!(old.load::<u64>(0).unwrap() < TURNS * 6);
                    }
                    running.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        assert_eq!(running.into_inner(), 0);
        window.unlock_all().unwrap();
        own.team.barrier().unwrap();
        if own.rank == 0 {
            assert_eq!(load(&window, 0), TURNS * 6);
        }
    });
}

/// All ranks draw the same program of epochs, so that each knows what every window has in the end.
pub fn programs_of_all_kinds_of_epochs_end_as_one_process_alone_would(setup: Setup) {
    ranks(setup, 4, |own| {
        const CELLS: u64 = 64;
        let window = own.window(8 * CELLS as usize);
        let number = Datatype::of(Element::U64);
        let mut random = Random::from_seed(2026);
        let mut below = |limit: u64| random.next_u64() % limit;
        let mut model = vec![vec![0_u64; CELLS as usize]; 4];
        for _ in 0..60 {
            let kind = below(4);
            match kind {
                0 => window.fence(NONE).unwrap(),
                1 => {
                    window.post(&own.others(), NONE).unwrap();
                    window.start(&own.others(), NONE).unwrap();
                }
                2 => window.lock_all(NONE).unwrap(),
                _ => {}
            }
            for _ in 0..below(60) {
                let (from, to) = (below(4) as u32, below(4) as u32);
                let (at, value, sums) = (below(CELLS), below(1000), below(2) == 0);
                if kind == 1 && from == to {
                    continue;
                }
                // Each rank sets cells of its own, and all add to shared ones.
                let at = if sums { at / 2 } else { CELLS / 2 + u64::from(from) * 8 + at % 8 };
                let cell = &mut model[to as usize][at as usize];
                *cell = if sums { *cell + value } else { value };
                if from != own.rank {
                    continue;
                }
                if kind == 3 {
                    window.lock(LockKind::Shared, to, NONE).unwrap();
                }
                let bytes = value.to_ne_bytes();
                let source = Source::slice(&bytes, 1, &number);
                let operator = if sums { Operator::Sum } else { Operator::Replace };
                let target = Target::new(to, at * 8, 1, &number);
                window.accumulate(source, target, operator).unwrap();
                if kind == 3 {
                    window.unlock(to).unwrap();
                }
            }
            match kind {
                0 => window.fence(Asserts::NO_SUCCEED).unwrap(),
                1 => {
                    window.complete().unwrap();
                    window.wait().unwrap();
                }
                2 => window.unlock_all().unwrap(),
                _ => {}
            }
            own.team.barrier().unwrap();
            for (at, want) in model[own.rank as usize].iter().enumerate() {
                assert_eq!(load(&window, at), *want, "cell {at} after kind {kind}");
            }
            own.team.barrier().unwrap();
        }
    });
}
