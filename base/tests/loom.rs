//! Model of the lock between those who update words and blocks of shared memory: no update is lost, and nobody waits for ever. Run
//! with `cargo test -p ropewalk-base --test loom --release`.

use loom::sync::Arc;
use loom::sync::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};
use loom::thread;

#[path = "../src/memory/gate.rs"]
#[allow(dead_code)]
mod gate;

use gate::{Gate, Medium, Way};

const PARTIES: usize = 3;

#[derive(Default)]
struct Words {
    state: AtomicU32,
    quiet: AtomicU32,
    raised: [AtomicU32; PARTIES],
    /// Two elements of the memory.
    elements: [AtomicU32; 2],
    /// The holder that is dead, and one more.
    dead: u32,
    has_barrier: bool,
}

impl Words {
    fn new() -> Words {
        Words { has_barrier: true, ..Words::default() }
    }
}

impl Medium for Words {
    fn state(&self) -> u32 {
        self.state.load(Acquire)
    }
    fn set_state(&self, state: u32) {
        self.state.store(state, Release);
    }
    fn exchange_state(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, AcqRel, Relaxed).is_ok()
    }
    fn quiet(&self) -> u32 {
        self.quiet.load(Relaxed)
    }
    fn set_quiet(&self, many: u32) {
        self.quiet.store(many, Relaxed);
    }
    fn parties(&self) -> u32 {
        PARTIES as u32
    }
    fn raise(&self, party: u32) {
        self.raised[party as usize].store(1, Relaxed);
    }
    fn lower(&self, party: u32) {
        self.raised[party as usize].store(0, Release);
    }
    fn is_raised(&self, party: u32) -> bool {
        self.raised[party as usize].load(Acquire) != 0
    }
    // The barrier on all processors makes a whole one of that of the compiler.
    fn light_barrier(&self) {
        fence(SeqCst);
    }
    fn heavy_barrier(&self) -> bool {
        fence(SeqCst);
        self.has_barrier
    }
    fn linger(&self, turns: u32) -> bool {
        thread::yield_now();
        turns < 1
    }
    fn wait(&self, holder: u32, _turns: u32) -> bool {
        thread::yield_now();
        self.dead == holder + 1
    }
}

fn update(words: &Words, party: u32, block: bool) {
    let gate = Gate { medium: words, party };
    let alone = if block { gate.enter_alone() } else { None };
    let way = alone.unwrap_or_else(|| gate.enter());
    for element in &words.elements {
        match way {
            Way::Words => {
                element.fetch_add(1, Relaxed);
            }
            Way::Alone => {
                let before = element.load(Relaxed);
                element.store(before + 1, Relaxed);
            }
        }
    }
    gate.leave(way, block);
}

/// Each party makes its updates, and all of them are found.
fn check(words: impl Fn() -> Words + Sync + Send + 'static, parties: &'static [&'static [bool]]) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(if parties.len() > 2 { 1 } else { 3 });
    builder.max_branches = 20_000;
    builder.check(move || {
        let words = Arc::new(words());
        let act = |(party, blocks): (usize, &'static &'static [bool])| {
            let words = words.clone();
            thread::spawn(move || {
                blocks.iter().for_each(|block| update(&words, party as u32, *block));
            })
        };
        let all: Vec<_> = parties.iter().enumerate().map(act).collect();
        all.into_iter().for_each(|it| it.join().unwrap());
        let want: usize = parties.iter().map(|blocks| blocks.len()).sum();
        for element in &words.elements {
            assert_eq!(element.load(Relaxed) as usize, want);
        }
    });
}

#[test]
fn a_block_and_words_lose_no_update_of_each_other() {
    check(Words::new, &[&[true], &[false, false]]);
}

#[test]
fn blocks_of_two_lose_no_update_of_each_other() {
    check(Words::new, &[&[true, true], &[true]]);
}

#[test]
fn three_lose_no_update_of_each_other() {
    check(Words::new, &[&[true], &[true], &[false]]);
}

/// The lock goes back to words while others want it: the last of so many updates of words without a block.
#[test]
fn words_and_a_block_meet_while_the_state_goes_back() {
    let almost = || {
        let words = Words::new();
        words.state.store(1 << 30, Relaxed);
        words.quiet.store(63, Relaxed);
        words
    };
    check(almost, &[&[false], &[true]]);
}

#[test]
fn who_died_with_the_lock_is_succeeded_by_one() {
    let dead = || {
        let words = Words { dead: 3, ..Words::new() };
        words.state.store(1 << 30 | 3, Relaxed);
        words
    };
    check(dead, &[&[true], &[false]]);
}

#[test]
fn without_a_barrier_all_update_words() {
    check(|| Words { has_barrier: false, ..Words::default() }, &[&[true], &[false]]);
}

#[test]
fn blocks_are_forbidden_beside_one() {
    loom::model(|| {
        let words = Arc::new(Words::new());
        let other = words.clone();
        let other = thread::spawn(move || update(&other, 1, true));
        Gate { medium: &*words, party: 0 }.forbid_blocks();
        update(&words, 0, false);
        other.join().unwrap();
        assert_eq!(words.state.load(Relaxed), 1 << 31);
        assert_eq!(words.elements[0].load(Relaxed), 2);
    });
}
