//! Puts that tell of themselves.

use ropewalk_rma::{
    Asserts, BadArgument, Datatype, Element, Error, LockKind, Operator, PROC_NULL, Refusal, Source,
    Target, Window, WindowOptions,
};

use crate::common::{Rank, Setup, bytes, pattern, ranks};

const NONE: Asserts = Asserts::NONE;

fn window(own: &Rank, bytes: usize, counters: u32) -> Window {
    let options = WindowOptions { counters, ..own.setup.options("notices") };
    own.team.allocate(bytes, &options).expect("all ranks make the same")
}

fn put_notify(window: &Window, data: &[u8], to: u32, at: u64, counter: u32) {
    let byte = Datatype::of(Element::U8);
    let count = data.len() as u64;
    let target = Target::new(to, at, count, &byte);
    window.put_notify(Source::slice(data, count, &byte), target, counter).unwrap();
}

pub fn a_notice_comes_after_its_put_and_all_before_it(setup: Setup) {
    const LONG: usize = 100_000;
    ranks(setup, 3, |own| {
        let window = window(own, 2 * LONG, 2);
        let (left, right) = ((own.rank + 2) % 3, (own.rank + 1) % 3);
        let byte = Datatype::of(Element::U8);
        window.lock_all(NONE).unwrap();
        for round in 1..=30_u64 {
            let len = [8, LONG, 4096, 4097][round as usize % 4];
            let seed = |rank: u32| u64::from(rank) << 16 | round;
            let (own_data, before) = (pattern(seed(own.rank), len), pattern(!seed(own.rank), LONG));
            let target = Target::new(right, 0, LONG as u64, &byte);
            window.put(Source::slice(&before, LONG as u64, &byte), target).unwrap();
            put_notify(&window, &own_data, right, LONG as u64, 1);
            window.wait_notices(1, round).unwrap();
            let seen = bytes(window.cells());
            assert!(seen[..LONG] == pattern(!seed(left), LONG), "round {round}: what was before");
            assert!(seen[LONG..][..len] == pattern(seed(left), len), "round {round}");
            assert_eq!(window.notices(0), Ok(0));
            // Nobody writes the next round before it was looked at here.
            own.team.barrier().unwrap();
        }
        window.unlock_all().unwrap();
        own.team.barrier().unwrap();
    });
}

pub fn notices_of_all_origins_and_epochs_are_counted_once_each(setup: Setup) {
    const EACH: u64 = 50;
    ranks(setup, 4, |own| {
        let window = window(own, 8 * 4, 1);
        let word = Datatype::of(Element::U64);
        let notify =
            |value: u64| put_notify(&window, &value.to_ne_bytes(), 0, 8 * u64::from(own.rank), 0);
        window.fence(NONE).unwrap();
        (1..=EACH).for_each(notify);
        window.fence(NONE).unwrap();
        let mut wanted = 4 * EACH;
        if own.rank == 0 {
            window.wait_notices(0, wanted).unwrap();
            assert_eq!(window.notices(0), Ok(wanted), "one each");
        }
        window.fence(Asserts::NO_SUCCEED).unwrap();
        // Of an epoch that the target opens later; a put of another length than its notices goes before.
        if own.rank > 0 {
            window.start(&[0], NONE).unwrap();
            (1..=EACH).for_each(notify);
            window.complete().unwrap();
        } else {
            window.post(&[1, 2, 3], NONE).unwrap();
            window.wait().unwrap();
            wanted += 3 * EACH;
            assert_eq!(window.notices(0), Ok(wanted), "they came with the epoch");
        }
        // Under a lock, behind an accumulate; and an empty one, which tells and puts nothing.
        let before = window.cells().load::<u64>(0);
        own.team.barrier().unwrap();
        window.lock(LockKind::Exclusive, 0, NONE).unwrap();
        let one = 1u64.to_ne_bytes();
        let target = Target::new(0, 0, 1, &word);
        window.accumulate(Source::slice(&one, 1, &word), target, Operator::Sum).unwrap();
        put_notify(&window, &[], 0, 0, 0);
        window.flush(0).unwrap();
        window.unlock(0).unwrap();
        if own.rank == 0 {
            wanted += 4;
            window.wait_notices(0, wanted).unwrap();
            window.lock(LockKind::Shared, 0, NONE).unwrap();
            let sum = window.cells().load::<u64>(0).zip(before).map(|(now, before)| now - before);
            assert_eq!((sum, window.notices(0)), (Some(4), Ok(wanted)));
            window.unlock(0).unwrap();
        }
        own.team.barrier().unwrap();
    });
}

pub fn wrong_notices_are_told_and_change_nothing(setup: Setup) {
    ranks(setup, 2, |own| {
        let byte = Datatype::of(Element::U8);
        let many = WindowOptions { counters: (1 << 16) + 1, ..own.setup.options("many") };
        let argument = BadArgument::Counters { counters: (1 << 16) + 1, most: 1 << 16 };
        let refused = own.team.allocate(8, &many).map(|_| ()).unwrap_err();
        assert!(matches!(refused, Error::Argument { argument: it, .. } if it == argument));
        let window = window(own, 8, 3);
        let other = 1 - own.rank;
        let bad = BadArgument::Counter { counter: 3, counters: 3 };
        let is_bad = |error| matches!(error, Error::Argument { argument, .. } if argument == bad);
        assert!(is_bad(window.notices(3).unwrap_err()));
        assert!(is_bad(window.wait_notices(3, 0).unwrap_err()));
        window.lock_all(NONE).unwrap();
        let put = |rank: Option<u32>, at, counter| {
            let target = Target::new(rank, at, 4, &byte);
            window.put_notify(Source::slice(&[7; 4], 4, &byte), target, counter)
        };
        assert!(is_bad(put(Some(other), 0, 3).unwrap_err()));
        assert_eq!(put(PROC_NULL, 0, 0), Ok(()));
        // What the window does not hold is not put; who waits for its notice does not hang.
        assert_eq!(put(Some(other), 5, 2), Ok(()));
        let refused = window.flush(other).unwrap_err();
        let is_bounds = matches!(&refused, Error::Refused { refusal: Refusal::Bounds { .. }, .. });
        assert!(is_bounds, "{refused}");
        window.wait_notices(2, 1).unwrap();
        assert_eq!(bytes(window.cells()), [0; 8]);
        window.unlock_all().unwrap();
        assert!(matches!(put(Some(other), 0, 0).unwrap_err(), Error::Misuse { .. }), "no epoch");
        own.team.barrier().unwrap();
    });
}
