//! Parties that update shared memory: the words of their lock, which lie in front of the memory in a mapping that all have.
//!
//! Invariants: a party's number is its own, in all processes; what others wrote into the words leads to wrong order at the
//! worst, and to no access elsewhere.

use std::hint;
use std::ptr::NonNull;
use std::sync::LazyLock;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    compiler_fence,
};
use std::time::Duration;

use super::gate::{Gate, Medium, Way};

/// Parties that a memory has room for. With more of them no blocks are updated.
const PARTIES: usize = 254;
/// Turns in which a flag is looked at again: less time than an update of words by instructions would take.
const LINGER_TURNS: u32 = 256;
/// Turns of waiting that spin, and those that leave the processor to others. Later ones sleep.
const SPIN_TURNS: u32 = 64;
const YIELD_TURNS: u32 = 2_000;
const SLEEP: Duration = Duration::from_micros(50);
/// Between two looks at whether a holder lives, in turns.
const LOOK_TURNS: u32 = 256;
/// Blocks that are updated word by word after some have met others, at most.
const AVOIDED_MAX: u32 = 64;

/// The words of a lock between those who update a memory. All zeros are a lock that nobody has.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct LockWords {
    state: AtomicU32,
    quiet: AtomicU32,
    /// Numbers of parties that were ever taken are below.
    taken: AtomicU32,
    parties: [PartyWords; PARTIES],
}

/// The line of one party.
#[derive(Debug)]
#[repr(C, align(64))]
struct PartyWords {
    raised: AtomicU32,
    /// The process; zero where the number is free.
    process: AtomicU32,
    /// When the process began, as the kernel counts it.
    began: AtomicU64,
}

impl Medium for LockWords {
    #[inline(always)]
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
        self.taken.load(Acquire).min(PARTIES as u32)
    }
    #[inline(always)]
    fn raise(&self, party: u32) {
        self.parties[party as usize].raised.store(1, Relaxed);
    }
    #[inline(always)]
    fn lower(&self, party: u32) {
        self.parties[party as usize].raised.store(0, Release);
    }
    fn is_raised(&self, party: u32) -> bool {
        self.parties[party as usize].raised.load(Acquire) != 0
    }
    #[inline(always)]
    fn light_barrier(&self) {
        compiler_fence(SeqCst);
    }
    fn heavy_barrier(&self) -> bool {
        barrier::on_all_processors()
    }
    fn linger(&self, turns: u32) -> bool {
        hint::spin_loop();
        turns < LINGER_TURNS
    }
    fn wait(&self, holder: u32, turns: u32) -> bool {
        match turns {
            ..SPIN_TURNS => hint::spin_loop(),
            SPIN_TURNS..YIELD_TURNS => std::thread::yield_now(),
            _ => std::thread::sleep(SLEEP),
        }
        let words = self.parties.get(holder as usize);
        turns >= YIELD_TURNS
            && turns.is_multiple_of(LOOK_TURNS)
            && words.is_some_and(|it| !is_alive(it.process.load(Acquire), it.began.load(Acquire)))
    }
}

/// One of those who update a memory. Its updates are one after the other, as it is borrowed for each of them.
#[derive(Debug)]
pub(super) struct Party {
    words: NonNull<LockWords>,
    /// `None`: it has forbidden blocks, and is nobody whom others would have to see.
    number: Option<u32>,
    /// Blocks that go by words, and how many do after the next one that meets others.
    avoided: u32,
    avoids: u32,
}

// SAFETY: the words are atomics, and whoever has the party keeps them mapped.
unsafe impl Send for Party {}

impl Party {
    /// A party of those who share these words.
    ///
    /// # Safety
    /// The words stay mapped as long as the party lives.
    pub unsafe fn new(words: NonNull<LockWords>) -> Party {
        // SAFETY: as the caller vouches; all bytes are atomics.
        let all = unsafe { words.as_ref() };
        let number = barrier::is_there().then(|| all.number()).flatten();
        if number.is_none() {
            Gate { medium: all, party: 0 }.forbid_blocks();
        }
        Party { words, number, avoided: 0, avoids: 1 }
    }

    fn words(&self) -> &LockWords {
        // SAFETY: the maker of the party keeps them mapped; all bytes are atomics.
        unsafe { self.words.as_ref() }
    }

    fn gate(&self) -> Option<Gate<'_, LockWords>> {
        let party = self.number?;
        Some(Gate { medium: self.words(), party })
    }

    /// Calls `update` with the way in which it has to go: of a block, if that is wanted and may be.
    #[inline]
    pub fn update<T>(&mut self, block: bool, update: impl FnOnce(Way) -> T) -> T {
        let alone = if block { self.enter_alone() } else { None };
        let Some(gate) = self.gate() else { return update(Way::Words) };
        let way = alone.unwrap_or_else(|| gate.enter());
        let inside = Inside { gate, way, block };
        let done = update(way);
        drop(inside);
        done
    }

    /// Nobody updates blocks from now on.
    pub fn forbid_blocks(&self) {
        if let Some(gate) = self.gate() {
            gate.forbid_blocks();
        }
    }

    fn enter_alone(&mut self) -> Option<Way> {
        if self.avoided > 0 {
            self.avoided -= 1;
            return None;
        }
        let way = self.gate()?.enter_alone();
        match way {
            Some(_) => self.avoids = 1,
            None => {
                self.avoided = self.avoids;
                self.avoids = (2 * self.avoids).min(AVOIDED_MAX);
            }
        }
        way
    }
}

impl Drop for Party {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let words = &self.words().parties[number as usize];
            // The next owner of the number must not be taken for a process that began when this one did.
            words.began.store(0, Release);
            words.process.store(0, Release);
        }
    }
}

/// An update that is going on. It ends also where it panics.
struct Inside<'a> {
    gate: Gate<'a, LockWords>,
    way: Way,
    block: bool,
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.gate.leave(self.way, self.block);
    }
}

impl LockWords {
    /// A number for a party; `None` where all are taken.
    fn number(&self) -> Option<u32> {
        let (process, began) = *THIS_PROCESS;
        let take = |words: &PartyWords| {
            words.process.compare_exchange(0, process, AcqRel, Relaxed).is_ok()
        };
        let number = self.parties.iter().position(take)?;
        let words = &self.parties[number];
        words.began.store(began, Release);
        words.raised.store(0, Release);
        self.taken.fetch_max(number as u32 + 1, SeqCst);
        Some(number as u32)
    }
}

/// This process, and when it began.
static THIS_PROCESS: LazyLock<(u32, u64)> = LazyLock::new(|| {
    let process = std::process::id();
    (process, began(process).ok().flatten().unwrap_or(0))
});

/// When a process began; `None` where it has ended.
fn began(process: u32) -> std::io::Result<Option<u64>> {
    let line = match std::fs::read_to_string(format!("/proc/{process}/stat")) {
        Ok(line) => line,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(began_of(&line))
}

/// The same from the process's line in `/proc`. Where its first thread has ended and others go on, its state is that of a zombie.
fn began_of(line: &str) -> Option<u64> {
    // The second field is a name in brackets, which may have blanks and brackets of its own. The third is the state.
    let mut fields = line.rsplit(')').next()?.split_ascii_whitespace();
    let state = fields.next()?;
    let threads: u64 = fields.nth(16)?.parse().ok()?;
    let has_ended = state == "X" || state == "Z" && threads <= 1;
    fields.nth(1).filter(|_| !has_ended)?.parse().ok()
}

/// Whether a process lives; also where nobody can say so.
fn is_alive(process: u32, began_at: u64) -> bool {
    let can_tell = began_at != 0 && THIS_PROCESS.1 != 0;
    !can_tell || began(process).map_or(true, |began| began == Some(began_at))
}

mod barrier {
    //! A barrier on all processors that run processes which asked for it: `membarrier(2)`, since Linux 4.16.

    use std::sync::LazyLock;

    /// Whether this process takes part. Where one cannot, no blocks are updated.
    static IS_REGISTERED: LazyLock<bool> =
        LazyLock::new(|| !cfg!(miri) && call(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0);

    fn call(command: libc::c_int) -> libc::c_long {
        // SAFETY: the call touches no memory of ours.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }
    }

    pub fn is_there() -> bool {
        *IS_REGISTERED
    }

    /// False: the kernel has none, or not any more.
    pub fn on_all_processors() -> bool {
        call(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED) == 0
    }
}

#[cfg(test)]
mod tests;
