//! Locks: exclusion, sharing, fairness, and what a flush promises.

use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

use ropewalk_rma::{
    Asserts, Cells, Datatype, Destination, Element, LockKind, Source, Target, Window,
};

use crate::common::{Setup, ranks};

const NONE: Asserts = Asserts::NONE;

fn put(window: &Window, to: u32, value: u64) {
    let number = Datatype::of(Element::U64);
    let bytes = value.to_ne_bytes();
    window.put(Source::slice(&bytes, 1, &number), Target::new(to, 0, 1, &number)).unwrap();
}

fn get(window: &Window, from: u32) -> u64 {
    let (number, back) = (Datatype::of(Element::U64), Cells::zeroed(8));
    let result = Destination::new(&back, 0, 1, &number);
    window.get(result, Target::new(from, 0, 1, &number)).unwrap();
    window.flush_local(from).unwrap();
    back.load(0).unwrap()
}

pub fn an_exclusive_lock_lets_nobody_between_a_get_and_a_put(setup: Setup) {
    const TURNS: u64 = 40;
    ranks(setup, 4, |own| {
        let window = own.window(8);
        for turn in 0..TURNS {
            let to = (turn % 2) as u32;
            window.lock(LockKind::Exclusive, to, NONE).unwrap();
            let value = get(&window, to);
            put(&window, to, value + 1);
            window.unlock(to).unwrap();
        }
        own.team.barrier().unwrap();
        if own.rank < 2 {
            window.lock(LockKind::Shared, own.rank, NONE).unwrap();
            assert_eq!(window.cells().load::<u64>(0), Some(TURNS * 2));
            window.unlock(own.rank).unwrap();
        }
    });
}

pub fn ones_own_lock_is_here_when_the_call_returns(setup: Setup) {
    let inside = AtomicI32::new(0);
    ranks(setup, 3, |own| {
        let window = own.window(8);
        for _ in 0..30 {
            if own.rank == 0 {
                // Loads and stores of one's own memory, with no operation at all.
                window.lock(LockKind::Exclusive, 0, NONE).unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                let value: u64 = window.cells().load(0).unwrap();
                std::thread::yield_now();
                window.cells().store(0, value + 1).unwrap();
                inside.fetch_sub(1, Ordering::SeqCst);
                window.unlock(0).unwrap();
            } else {
                window.lock(LockKind::Exclusive, 0, NONE).unwrap();
                let value = get(&window, 0);
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                put(&window, 0, value + 1);
                inside.fetch_sub(1, Ordering::SeqCst);
                window.unlock(0).unwrap();
            }
        }
        own.team.barrier().unwrap();
        if own.rank == 0 {
            assert_eq!(window.cells().load::<u64>(0), Some(90));
        }
    });
}

pub fn shared_locks_are_held_at_once(setup: Setup) {
    let inside = AtomicU32::new(0);
    ranks(setup, 4, |own| {
        let window = own.window(8);
        if own.rank > 0 {
            window.lock(LockKind::Shared, 0, NONE).unwrap();
            assert_eq!(get(&window, 0), 0);
            inside.fetch_add(1, Ordering::SeqCst);
            // Nobody lets go before all have it.
            while inside.load(Ordering::SeqCst) < 3 {
                std::thread::yield_now();
            }
            window.unlock(0).unwrap();
        }
        own.team.barrier().unwrap();
    });
}

pub fn nobody_passes_who_asked_before(setup: Setup) {
    let order = Mutex::new(Vec::new());
    // A question that is lost on its way comes later than the next one.
    let pause = Duration::from_millis(if setup.is_faulty() { 150 } else { 2 });
    ranks(setup, 5, |own| {
        let window = own.window(8);
        // Ranks 1 to 4 ask one after the other, while rank 0 holds its own lock. 1 and 4 share, 2 and 3 do not.
        let kind = if [1, 4].contains(&own.rank) { LockKind::Shared } else { LockKind::Exclusive };
        if own.rank == 0 {
            window.lock(LockKind::Exclusive, 0, NONE).unwrap();
        }
        let (mut asked, back) = (None, Cells::zeroed(8));
        for turn in 1..own.size {
            own.team.barrier().unwrap();
            if turn == own.rank {
                window.lock(kind, 0, NONE).unwrap();
                let number = Datatype::of(Element::U64);
                let target = Target::new(0, 0, 1, &number);
                let request = window.rget(Destination::new(&back, 0, 1, &number), target).unwrap();
                // Asks for the lock, and does not wait for it.
                assert!(!request.test().unwrap());
                asked = Some(request);
            }
            own.team.barrier().unwrap();
            std::thread::sleep(pause);
        }
        own.team.barrier().unwrap();
        if own.rank == 0 {
            order.lock().unwrap().push(0);
            window.unlock(0).unwrap();
        } else {
            asked.unwrap().wait().unwrap();
            window.flush(0).unwrap();
            order.lock().unwrap().push(own.rank);
            window.unlock(0).unwrap();
        }
        own.team.barrier().unwrap();
    });
    assert_eq!(order.into_inner().unwrap(), [0, 1, 2, 3, 4]);
}

pub fn lock_all_starves_nobody_and_is_starved_by_nobody(setup: Setup) {
    ranks(setup, 3, |own| {
        let window = own.window(8);
        for turn in 1..30_u64 {
            if own.rank == 0 {
                window.lock(LockKind::Exclusive, 2, NONE).unwrap();
                put(&window, 2, turn);
                window.unlock(2).unwrap();
            } else {
                window.lock_all(NONE).unwrap();
                let seen = get(&window, 2);
                // Nobody writes while the lock is shared.
                assert_eq!(get(&window, 2), seen);
                window.unlock_all().unwrap();
            }
        }
        own.team.barrier().unwrap();
    });
}

pub fn a_flush_completes_at_the_target_and_a_local_one_here(setup: Setup) {
    ranks(setup, 2, |own| {
        let window = own.window(600_000);
        if own.rank == 0 {
            window.lock_all(NONE).unwrap();
            for (turn, length) in [8, 5000, 600_000].into_iter().enumerate() {
                let byte = Datatype::of(Element::Byte);
                let data = Cells::copy_of(&vec![turn as u8 + 1; length]);
                let source = Source::cells(&data, 0, length as u64, &byte);
                window.put(source, Target::new(1, 0, length as u64, &byte)).unwrap();
                window.flush_local(1).unwrap();
                // The memory may be used again.
                data.write(0, &vec![0xee; length]).unwrap();
                window.flush(1).unwrap();
                own.team.exchange(&[turn as u8]).unwrap();
                own.team.barrier().unwrap();
            }
            window.flush_all().unwrap();
            window.flush_local_all().unwrap();
            window.sync().unwrap();
            window.unlock_all().unwrap();
        } else {
            for (turn, length) in [8, 5000, 600_000].into_iter().enumerate() {
                own.team.exchange(&[turn as u8]).unwrap();
                let mut now = vec![0; length];
                window.cells().read(0, &mut now).unwrap();
                assert!(now.iter().all(|it| *it == turn as u8 + 1), "{length} bytes");
                own.team.barrier().unwrap();
            }
        }
        own.team.barrier().unwrap();
    });
}

pub fn locks_that_nobody_contends_for_may_go_unasked(setup: Setup) {
    ranks(setup, 2, |own| {
        let window = own.window(8);
        let to = own.rank ^ 1;
        for turn in 1..20 {
            window.lock(LockKind::Exclusive, to, Asserts::NO_CHECK).unwrap();
            put(&window, to, turn);
            window.unlock(to).unwrap();
        }
        window.lock_all(Asserts::NO_CHECK).unwrap();
        put(&window, to, 100);
        window.unlock_all().unwrap();
        own.team.barrier().unwrap();
        assert_eq!(window.cells().load::<u64>(0), Some(100));
        own.team.barrier().unwrap();
        // The lock is free for those who ask.
        window.lock(LockKind::Exclusive, to, NONE).unwrap();
        put(&window, to, 101);
        window.unlock(to).unwrap();
        own.team.barrier().unwrap();
    });
}
