//! The decision whether a rail has to be woken: its sleeping word, and the peers that read it.
//!
//! The word is an epoch: odd while its owner sleeps. Peers see it read-only, so that none of them
//! can disturb another's wake-ups, and each rings at most once in an epoch.
//!
//! Invariant (checked by the model in `tests/loom.rs`): after work was published, then a barrier,
//! then `Waker::due`; and at the sleeper `fall_asleep`, then a barrier, then a look for work: one of
//! the two sees the other. Which barrier is the caller's choice (see `barrier`).

/// The word in shared memory.
pub trait EpochWord {
    /// Its value, relaxed.
    fn load(&self) -> u32;
    /// Sets it, relaxed.
    fn store(&self, epoch: u32);
}

/// The owner's side.
#[derive(Debug, Default)]
pub struct Sleeper {
    epoch: u32,
    /// The sleep in which its owner rang for itself.
    rung: u32,
}

impl Sleeper {
    /// Whether the word says "asleep".
    pub fn is_asleep(&self) -> bool {
        !self.epoch.is_multiple_of(2)
    }

    /// Whether it sleeps, and its owner has not rung for itself in this sleep.
    pub fn is_unrung(&self) -> bool {
        self.is_asleep() && self.rung != self.epoch
    }

    /// Its owner rings for itself.
    pub fn ring(&mut self) {
        self.rung = self.epoch;
    }

    /// From now on peers ring. A barrier and a look for work must follow.
    pub fn fall_asleep(&mut self, word: &impl EpochWord) {
        if !self.is_asleep() {
            self.epoch = self.epoch.wrapping_add(1);
            word.store(self.epoch);
        }
    }

    /// Peers need not ring any more.
    pub fn wake_up(&mut self, word: &impl EpochWord) {
        if self.is_asleep() {
            self.epoch = self.epoch.wrapping_add(1);
            word.store(self.epoch);
        }
    }
}

/// A peer's side: remembers in which epoch it rang.
#[derive(Debug, Default)]
pub struct Waker {
    rung: u32,
}

impl Waker {
    /// Whether the bell has to be rung now; a barrier must separate it from the publication.
    #[inline]
    pub fn due(&mut self, word: &impl EpochWord) -> bool {
        let epoch = word.load();
        if epoch.is_multiple_of(2) || epoch == self.rung {
            return false;
        }
        self.rung = epoch;
        true
    }
}
