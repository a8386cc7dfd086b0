//! Wrong calls, refusals of targets, and ranks that are lost.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ropewalk_base::error::Class;
use ropewalk_rma::types::Order;
use ropewalk_rma::{
    Asserts, BadArgument, Cells, Datatype, Destination, Element, Error, LockKind, Operator,
    Refusal, Source, Target, Window, WindowOptions,
};

use crate::common::{Setup, bytes, ranks};

const NONE: Asserts = Asserts::NONE;

fn put(window: &Window, to: u32, at: u64, value: u64) -> Result<(), Error> {
    let number = Datatype::of(Element::U64);
    let bytes = value.to_ne_bytes();
    window.put(Source::slice(&bytes, 1, &number), Target::new(to, at, 1, &number))
}

pub fn wrong_calls_are_told_in_words_and_change_nothing(setup: Setup) {
    ranks(setup, 2, |own| {
        let mut window = own.window(64);
        let (rank, to) = (own.rank, own.rank ^ 1);
        let told = |result: Result<(), Error>, words: &str| {
            let error = result.expect_err(words);
            assert_eq!(error.to_string(), format!("window 0 (test), rank {rank}: {words}"));
            assert_eq!(error.class(), Class::Caller);
        };
        told(
            put(&window, to, 0, 1),
            "an operation needs an access epoch: call fence, start, lock or lock_all first",
        );
        told(window.complete(), "complete without start before it");
        told(window.wait(), "wait without post before it");
        told(window.test().map(drop), "test without post before it");
        told(window.unlock(to), "unlock without lock before it");
        told(window.flush(to), "flush needs a lock: it is for epochs of lock and lock_all only");
        window.lock(LockKind::Shared, to, NONE).unwrap();
        told(
            window.lock(LockKind::Exclusive, to, NONE),
            &format!("rank {to} is locked already: unlock it first"),
        );
        told(
            window.fence(NONE),
            "fence while the access epoch of lock is open: end that one first",
        );
        let words = format!("rank {rank} is not locked: call lock for it, or lock_all, first");
        told(put(&window, rank, 0, 1), &words);
        told(put(&window, 2, 0, 1), "there is no rank 2 among 2");
        told(window.free(), "free while the access epoch of lock is open: end that one first");
        put(&window, to, 8 * u64::from(rank), 5 + u64::from(rank)).unwrap();
        window.unlock(to).unwrap();
        window.fence(NONE).unwrap();
        let number = Datatype::of(Element::U64);
        let source = [0; 8];
        let request =
            window.rput(Source::slice(&source, 1, &number), Target::new(to, 0, 1, &number));
        told(
            request.map(drop),
            "an operation with a request needs a lock: it is for epochs of lock and lock_all only",
        );
        window.fence(Asserts::NO_SUCCEED).unwrap();
        assert_eq!(window.cells().load::<u64>(8 * to as usize), Some(5 + u64::from(to)));
        window.free().unwrap();
        told(window.fence(NONE), "the window was freed");
        told(window.free(), "the window was freed");
        told(put(&window, to, 0, 1), "the window was freed");
    });
}

pub fn arguments_that_make_no_sense_are_told(setup: Setup) {
    ranks(setup, 1, |own| {
        let window = own.window(64);
        let (number, float) = (Datatype::of(Element::U64), Datatype::of(Element::F64));
        let (data, back) = ([0; 16], Cells::zeroed(16));
        window.fence(NONE).unwrap();
        let to = |count, datatype| Target::new(0, 0, count, datatype);
        let told = |result: Result<(), Error>, want: BadArgument| match result {
            Err(Error::Argument { argument, .. }) => assert_eq!(argument, want),
            other => panic!("{other:?} in place of {want:?}"),
        };
        let source = Source::slice(&data, 2, &number);
        told(window.put(source, to(1, &number)), BadArgument::Lengths { origin: 16, target: 8 });
        let beyond = Source::slice(&data, 3, &number);
        let (start, end, len) = (0, 24, 16);
        told(window.put(beyond, to(3, &number)), BadArgument::Outside { start, end, len });
        let result = Destination::new(&back, 8, 2, &number);
        let (start, end) = (8, 24);
        told(window.get(result, to(2, &number)), BadArgument::Outside { start, end, len });
        let result = Destination::new(&back, 0, 1, &number);
        let lengths = BadArgument::ResultLengths { result: 8, target: 16 };
        told(window.get(result, to(2, &number)), lengths);
        told(window.accumulate(source, to(2, &float), Operator::Sum), BadArgument::Elements);
        let float_source = Source::slice(&data, 2, &float);
        let (element, operator) = (Element::F64, Operator::BitOr);
        told(
            window.accumulate(float_source, to(2, &float), operator),
            BadArgument::Operator { element, operator },
        );
        let twice = number.hindexed(&[(1, 0), (1, 4)]).unwrap();
        told(window.accumulate(source, to(1, &twice), Operator::Sum), BadArgument::Overlap);
        told(
            window.fetch_and_op(
                Some(source),
                Destination::new(&back, 0, 2, &number),
                to(2, &number),
                Operator::Sum,
            ),
            BadArgument::NotOne,
        );
        told(
            window.fetch_and_op(None, result, to(1, &number), Operator::Sum),
            BadArgument::NoSource(Operator::Sum),
        );
        let result = Destination::new(&back, 0, 1, &float);
        told(
            window.compare_and_swap(&[0; 8], &[0; 8], result, to(1, &float)),
            BadArgument::NotComparable(Element::F64),
        );
        let far = Target::new(0, u64::MAX, 2, &number);
        told(window.put(source, far), BadArgument::Displacement(u64::MAX));
        window.fence(NONE).unwrap();
        assert_eq!(bytes(window.cells()), [0; 64]);
    });
}

pub fn what_a_target_refuses_comes_at_the_next_synchronisation_and_hangs_nobody(setup: Setup) {
    ranks(setup, 3, |own| {
        let window = own.window(if own.rank == 2 { 100 } else { 1 << 20 });
        let number = Datatype::of(Element::U64);
        let long = vec![7; 800_000];
        let cells = Cells::zeroed(800_000);
        let gaps = number.vector(50_000, 1, 2).unwrap();
        let source = |count| Source::slice(&long[..count as usize * 8], count, &number);
        let result = |count| Destination::new(&cells, 0, count, &number);
        let at = |at, count| Target::new(2, at, count, &number);
        let operations: [&dyn Fn() -> Result<(), Error>; 9] = [
            &|| window.put(source(2), at(90, 2)),
            &|| window.put(source(100_000), at(0, 100_000)),
            &|| window.put(source(50_000), Target::new(2, 0, 1, &gaps)),
            &|| window.get(result(2), at(96, 2)),
            &|| window.get(result(100_000), at(0, 100_000)),
            &|| window.get(Destination::new(&cells, 0, 1, &gaps), at(0, 50_000)),
            &|| window.accumulate(source(100_000), at(0, 100_000), Operator::Sum),
            &|| {
                window.get_accumulate(
                    Some(source(80_000)),
                    result(80_000),
                    at(8, 80_000),
                    Operator::Max,
                )
            },
            &|| window.compare_and_swap(&[0; 8], &[9; 8], result(1), at(93, 1)),
        ];
        let refused = |outcome: Result<(), Error>| match outcome {
            Err(Error::Refused {
                rank: 2, refusal: Refusal::Bounds { window_bytes, .. }, ..
            }) => {
                assert_eq!(window_bytes, 100);
            }
            other => panic!("{other:?}"),
        };
        for operation in operations {
            window.fence(NONE).unwrap();
            if own.rank == 0 {
                operation().unwrap();
                put(&window, 1, 0, 77).unwrap();
            }
            let fenced = window.fence(Asserts::NO_SUCCEED);
            if own.rank == 0 {
                refused(fenced);
            } else {
                fenced.unwrap();
            }
            if own.rank == 1 {
                assert_eq!(window.cells().load::<u64>(0), Some(77));
                window.cells().store(0, 0_u64).unwrap();
            }
            own.team.barrier().unwrap();
            if own.rank == 0 {
                window.lock(LockKind::Exclusive, 2, NONE).unwrap();
                operation().unwrap();
                refused(window.flush(2));
                operation().unwrap();
                refused(window.unlock(2));
                // It is told once.
                window.lock(LockKind::Exclusive, 2, NONE).unwrap();
                window.unlock(2).unwrap();
            }
            own.team.barrier().unwrap();
            // What was refused wrote nothing.
            assert!(own.rank != 2 || bytes(window.cells()) == [0; 100]);
        }
        own.team.barrier().unwrap();
    });
}

pub fn what_is_refused_in_an_epoch_of_start_comes_with_its_end_or_the_next_one(setup: Setup) {
    ranks(setup, 2, |own| {
        let window = own.window(100);
        if own.rank == 1 {
            window.post(&[0], NONE).unwrap();
            // What was refused is done: nobody waits for it.
            window.wait().unwrap();
            assert_eq!(bytes(window.cells()), [0; 100]);
        } else {
            window.start(&[1], NONE).unwrap();
            put(&window, 1, 93, 5).unwrap();
            let completed = window.complete();
            window.lock(LockKind::Shared, 1, NONE).unwrap();
            let (number, back) = (Datatype::of(Element::U64), Cells::zeroed(8));
            let target = Target::new(1, 0, 1, &number);
            window.get(Destination::new(&back, 0, 1, &number), target).unwrap();
            let error = completed.and(window.unlock(1)).unwrap_err();
            assert!(matches!(error, Error::Refused { rank: 1, further: 0, .. }), "{error}");
        }
        own.team.barrier().unwrap();
    });
}

pub fn a_refusal_names_window_rank_and_range(setup: Setup) {
    ranks(setup, 2, |own| {
        let options = WindowOptions { displacement_unit: 8, ..setup.options("halo") };
        let window = own.team.allocate(512, &options).unwrap();
        if own.rank == 0 {
            let number = Datatype::of(Element::F64);
            let data = [0; 24];
            window.lock(LockKind::Exclusive, 1, NONE).unwrap();
            for _ in 0..3 {
                let target = Target::new(1, 62, 3, &number);
                window.put(Source::slice(&data, 3, &number), target).unwrap();
            }
            assert_eq!(
                window.unlock(1).unwrap_err().to_string(),
                "window 0 (halo): rank 1 refused a put of 24 bytes from byte 496 on: its window has 512 \
                 bytes (and 2 more operations were refused)"
            );
            window.lock(LockKind::Shared, 1, NONE).unwrap();
            let back = Cells::zeroed(24);
            let target = Target::new(1, 64, 3, &number);
            let request = window.rget(Destination::new(&back, 0, 3, &number), target).unwrap();
            assert_eq!(
                request.wait().unwrap_err().to_string(),
                "window 0 (halo): rank 1 refused a get of 24 bytes from byte 512 on: its window has 512 bytes"
            );
            assert!(window.unlock(1).is_err());
        }
        own.team.barrier().unwrap();
    });
}

pub fn ranks_that_make_different_windows_are_told(setup: Setup) {
    ranks(setup, 3, |own| {
        let mut options = setup.options("odd");
        options.no_locks = own.rank == 1;
        let error = own.team.allocate(8, &options).map(drop).unwrap_err();
        let other = if own.rank == 1 { 0 } else { 1 };
        assert_eq!(
            error.to_string(),
            format!("window 0 (odd): rank {other} made it with another same_op or no_locks")
        );
        let mut options = setup.options("unit");
        options.displacement_unit = own.rank;
        let error = own.team.allocate(8, &options).map(drop).unwrap_err();
        let text = if own.rank == 0 {
            "window 1 (unit), rank 0: a displacement unit of 0 bytes: it is at least 1"
        } else {
            "window 1 (unit): rank 0 made it with another outcome: its arguments are wrong"
        };
        assert_eq!(error.to_string(), text);
        // The next one is as good as ever.
        let window = own.window(8);
        window.fence(NONE).unwrap();
        put(&window, (own.rank + 1) % 3, 0, 4).unwrap();
        window.fence(NONE).unwrap();
        assert_eq!(window.cells().load::<u64>(0), Some(4));
        let part = Datatype::of(Element::U64).subarray(&[(4, 2, 3)], Order::C);
        assert!(part.is_err());
    });
}

/// A complete asks nothing back, and in a barrier of four ranks the target and the origin tell each other nothing.
pub fn what_was_refused_behind_a_complete_is_told_by_the_free_at_the_latest(setup: Setup) {
    ranks(setup, 4, |own| {
        for _ in 0..8 {
            let mut window = own.window(64);
            let told = match own.rank {
                0 => {
                    window.start(&[1], NONE).unwrap();
                    put(&window, 1, 0, 7).unwrap();
                    put(&window, 1, 64, 8).unwrap();
                    window.complete()
                }
                1 => {
                    window.post(&[0], NONE).unwrap();
                    window.wait()
                }
                _ => Ok(()),
            };
            assert!(own.rank == 0 || told.is_ok(), "{told:?}");
            let freed = window.free();
            let outcomes = [told, freed].map(|outcome| outcome.is_err());
            assert_eq!(outcomes.iter().filter(|it| **it).count(), usize::from(own.rank == 0));
            assert_eq!(window.cells().load::<u64>(0), Some(if own.rank == 1 { 7 } else { 0 }));
        }
    });
}

pub fn a_rank_that_is_lost_ends_the_epochs_that_wait_for_it(setup: Setup) {
    let (begin, told) = (Instant::now(), AtomicU32::new(0));
    ranks(setup, 4, |own| {
        let window = own.window(8);
        let other = own.window(8);
        own.team.barrier().unwrap();
        if own.rank == 3 {
            // It holds a lock, and asks for nothing more.
            window.lock(LockKind::Exclusive, 0, NONE).unwrap();
            put(&window, 0, 0, 1).unwrap();
            window.flush(0).unwrap();
            own.team.barrier().unwrap();
            own.team.settle(Duration::from_secs(5));
            return own.endpoint.close();
        }
        own.team.barrier().unwrap();
        let lost = |outcome: Result<(), Error>| {
            let error = outcome.expect_err("rank 3 is gone");
            assert!(matches!(error, Error::Lost { rank: 3, .. }), "{error}");
            let text = error.to_string();
            let told = "rank 3 cannot be reached any more: ";
            assert!(text.contains(told) || text.contains("rank 3 is lost, as other"), "{text}");
            assert_eq!(error.class(), Class::Peer);
        };
        // Its lock goes to the next one, who is told, and to nobody else. A lock of this rank's own memory tells it at once:
        // what lies there may be half done.
        let locked = window.lock(LockKind::Exclusive, 0, NONE);
        assert!(own.rank == 0 || locked.is_ok(), "{locked:?}");
        put(&window, 0, 0, u64::from(own.rank)).unwrap();
        let unlocked = window.unlock(0);
        assert!(own.rank != 0 || unlocked.is_ok(), "{unlocked:?}");
        if let Err(error) = locked.and(unlocked) {
            let text = error.to_string();
            assert!(text.contains("a lock whose last holder died"), "{text}");
            told.fetch_add(1, Ordering::SeqCst);
        }
        // Those who are left go on.
        other.lock(LockKind::Shared, (own.rank + 1) % 3, NONE).unwrap();
        put(&other, (own.rank + 1) % 3, 0, 9).unwrap();
        other.unlock((own.rank + 1) % 3).unwrap();
        lost(window.fence(NONE));
        other.post(&[3], NONE).unwrap();
        lost(other.wait());
        other.start(&[3], NONE).unwrap();
        lost(other.complete());
        let _ = own.team.barrier().unwrap_err();
        assert_eq!(other.cells().load::<u64>(0), Some(9));
        assert!(begin.elapsed() < Duration::from_secs(30));
    });
    assert_eq!(told.into_inner(), 1, "one rank hears that the holder died");
}
