//! Very long operations of two ranks at once: nobody waits for who waits for him.

#[allow(dead_code)]
#[path = "windows/common.rs"]
mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

use common::{Setup, ranks};
use ropewalk_rma::{
    Asserts, Cells, Datatype, Destination, Element, Implementation, LockKind, Operator, Source,
    Target,
};

const GIB: usize = 1 << 30;
/// Far more than it takes. A hang ends the process then.
const LIMIT: Duration = Duration::from_secs(500);

/// The word at every MiB, by the rank that has it.
fn word(rank: u32, number: usize) -> u64 {
    u64::from(rank + 1) << 32 | number as u64
}

/// One at a time: each takes 2 GiB of memory.
static TURN: Mutex<()> = Mutex::new(());

/// Sets it when it is dropped, so that nobody waits for one who panicked.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Rank 0 accumulates 128 MiB at rank 2 again and again; meanwhile rank 1 adds to a word there.
fn beside(scheme: &'static str, implementation: Implementation) {
    const BYTES: usize = 128 << 20;
    const ROUNDS: u32 = 3;
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let setup = Setup { scheme, implementation, eager_bytes: 16 << 10, map_memory: false, seed: 0 };
    let is_over = AtomicBool::new(false);
    ranks(setup, 3, |own| {
        let window = own.window(BYTES + 8);
        let word = Datatype::of(Element::U64);
        own.team.barrier().expect("nobody is lost");
        if own.rank == 0 {
            let _over = Over(&is_over);
            let (data, count) = (Cells::zeroed(BYTES), BYTES as u64 / 8);
            window.lock(LockKind::Shared, 2, Asserts::NONE).expect("it may");
            for _ in 0..ROUNDS {
                let (source, all) =
                    (Source::cells(&data, 0, count, &word), Target::new(2, 0, count, &word));
                window.accumulate(source, all, Operator::Sum).expect("it fits");
                window.flush(2).expect("nobody is lost");
            }
            window.unlock(2).expect("nobody is lost");
        }
        if own.rank == 1 {
            let (one, before) = (1u64.to_ne_bytes(), Cells::zeroed(8));
            window.lock(LockKind::Shared, 2, Asserts::NONE).expect("it may");
            let mut served = 0;
            while !is_over.load(Ordering::SeqCst) {
                let (source, into) =
                    (Source::slice(&one, 1, &word), Destination::new(&before, 0, 1, &word));
                let at = Target::new(2, BYTES as u64, 1, &word);
                window.fetch_and_op(Some(source), into, at, Operator::Sum).expect("it fits");
                window.flush(2).expect("nobody is lost");
                served += 1;
            }
            window.unlock(2).expect("nobody is lost");
            // An accumulate that was done at a stretch would let one in between two of its rounds.
            println!("{scheme}, {implementation:?}: {served} words beside {ROUNDS} accumulates");
            assert!(served > 16 * ROUNDS, "{scheme}, {implementation:?}: {served}");
        }
        own.team.barrier().expect("nobody is lost");
    });
}

#[test]
fn who_adds_one_word_is_served_beside_a_long_accumulate() {
    for scheme in ["tcp", "shm", "udp"] {
        beside(scheme, Implementation::Direct);
    }
}

/// Both ranks get 1 GiB of each other at once.
fn both_ways(scheme: &'static str, implementation: Implementation) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (done, waits) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        if waits.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("two gets of 1 GiB hang over {scheme}, {implementation:?}");
            std::process::abort();
        }
    });
    let setup = Setup { scheme, implementation, eager_bytes: 16 << 10, map_memory: false, seed: 0 };
    ranks(setup, 2, |own| {
        let other = own.rank ^ 1;
        let window = own.window(GIB + 8);
        for number in 0..GIB >> 20 {
            window.cells().store(number << 20, word(own.rank, number)).expect("it fits");
        }
        window.cells().store(GIB - 8, u64::MAX).expect("it fits");
        let (back, byte) = (Cells::zeroed(GIB), Datatype::of(Element::U8));
        own.team.barrier().expect("nobody is lost");
        window.lock_all(Asserts::NONE).expect("it may");
        let target = Target::new(other, 0, GIB as u64, &byte);
        window.get(Destination::new(&back, 0, GIB as u64, &byte), target).expect("it fits");
        // One more goes the same way.
        let (one, long) = (1_u64.to_ne_bytes(), Datatype::of(Element::U64));
        let target = Target::new(other, GIB as u64, 1, &long);
        window.accumulate(Source::slice(&one, 1, &long), target, Operator::Sum).expect("it fits");
        window.unlock_all().expect("the other one serves");
        for number in 0..GIB >> 20 {
            assert_eq!(back.load::<u64>(number << 20), Some(word(other, number)), "MiB {number}");
        }
        assert_eq!(back.load::<u64>(GIB - 8), Some(u64::MAX));
        own.team.barrier().expect("nobody is lost");
        assert_eq!(window.cells().load::<u64>(GIB), Some(1));
    });
    drop(done);
}

#[test]
fn two_ranks_get_a_gibibyte_of_each_other_over_tcp() {
    both_ways("tcp", Implementation::Direct);
}

#[test]
fn two_ranks_get_a_gibibyte_of_each_other_over_shm() {
    both_ways("shm", Implementation::Direct);
}

#[test]
fn two_ranks_get_a_gibibyte_of_each_other_by_messages() {
    both_ways("tcp", Implementation::Messages);
}
