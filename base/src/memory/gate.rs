//! An asymmetric lock: many parties update single words of a memory by the processor's instructions, or one of them updates
//! whole blocks by plain loops.
//!
//! A party that updates words raises a flag of its own, looks at the state, and lowers the flag: two plain stores and a load.
//! One that wants a block sets the state, waits for a barrier on all processors, and looks at all flags. So the order between
//! flag and state costs only those who update blocks. In the state of blocks every party takes the lock in turn, until nobody
//! has updated a block for a while.
//!
//! Invariants:
//! * while a party is alone, no other party is between [`Gate::enter`] and [`Gate::leave`];
//! * nobody waits for a party that updates words: who wants a block then updates words, too. A party that is alone and dies is
//!   found by those who wait; one that is stopped holds them up.
//!
//! `base/tests/loom.rs` has the model, over this file.

/// Words are updated; nobody holds the lock.
const WORDS: u32 = 0;
/// Whoever updates anything takes the lock. The bits below name its holder.
const BLOCKS: u32 = 1 << 30;
/// Words are updated, and never blocks again.
const NEVER: u32 = 1 << 31;
const HOLDER: u32 = BLOCKS - 1;
/// Updates of words that take the lock one after the other until words need none again.
const QUIET_MAX: u32 = 64;

/// The words that all parties see.
pub(crate) trait Medium {
    /// With acquire order.
    fn state(&self) -> u32;
    /// With release order.
    fn set_state(&self, state: u32);
    /// With acquire and release order; false where the state is another one.
    fn exchange_state(&self, from: u32, to: u32) -> bool;
    /// Updates of words since the last block. Only the holder of the lock counts.
    fn quiet(&self) -> u32;
    fn set_quiet(&self, many: u32);
    /// The numbers of all parties are below.
    fn parties(&self) -> u32;
    /// Needs no order of its own.
    fn raise(&self, party: u32);
    /// With release order.
    fn lower(&self, party: u32);
    /// With acquire order.
    fn is_raised(&self, party: u32) -> bool;
    /// Keeps a store before it in front of a load behind it, as far as [`Self::heavy_barrier`] in another party sees them.
    fn light_barrier(&self);
    /// When it returns, each other party has passed a whole barrier since it was called. False: there is none.
    fn heavy_barrier(&self) -> bool;
    /// Lets some time pass for a flag that is about to be lowered. False: it was enough.
    fn linger(&self, turns: u32) -> bool;
    /// Lets some time pass for the holder of the lock. True: it is dead.
    fn wait(&self, holder: u32, turns: u32) -> bool;
}

/// The way in which a party updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Word by word: others do, too.
    Words,
    /// Nobody else updates anything.
    Alone,
}

/// A party's view of the lock.
pub(crate) struct Gate<'a, M> {
    pub medium: &'a M,
    pub party: u32,
}

impl<M: Medium> Gate<'_, M> {
    /// Before an update of some words.
    #[inline]
    pub fn enter(&self) -> Way {
        loop {
            self.medium.raise(self.party);
            self.medium.light_barrier();
            let state = self.medium.state();
            if state & BLOCKS == 0 {
                return Way::Words;
            }
            self.medium.lower(self.party);
            if self.take(state) {
                return Way::Alone;
            }
        }
    }

    /// Before an update of a block. `None`: others update words at this moment; so this party should.
    pub fn enter_alone(&self) -> Option<Way> {
        loop {
            match self.medium.state() {
                WORDS => {
                    if self.medium.exchange_state(WORDS, BLOCKS | self.holder()) {
                        return self.is_alone().then_some(Way::Alone);
                    }
                }
                NEVER => return None,
                state => {
                    if self.take(state) {
                        return Some(Way::Alone);
                    }
                }
            }
        }
    }

    /// After an update. `block`: one of a block.
    #[inline]
    pub fn leave(&self, way: Way, block: bool) {
        match way {
            Way::Words => self.medium.lower(self.party),
            Way::Alone => self.give(block),
        }
    }

    /// Nobody updates blocks from now on.
    pub fn forbid_blocks(&self) {
        let mut turns = 0;
        loop {
            let state = self.medium.state();
            let holder = state & HOLDER;
            let is_free = holder == 0 || self.medium.wait(holder - 1, turns);
            if state == NEVER || (is_free && self.medium.exchange_state(state, NEVER)) {
                return;
            }
            turns += 1;
        }
    }

    fn holder(&self) -> u32 {
        self.party + 1
    }

    /// Takes the lock, in the state of blocks. False: the state is another one now.
    #[cold]
    fn take(&self, mut state: u32) -> bool {
        let mut turns = 0;
        while state & BLOCKS != 0 {
            match state & HOLDER {
                0 => {
                    if self.medium.exchange_state(state, BLOCKS | self.holder()) {
                        return true;
                    }
                }
                holder => {
                    if self.medium.wait(holder - 1, turns)
                        && self.medium.exchange_state(state, BLOCKS | self.holder())
                    {
                        // Perhaps it died before it had looked at all flags.
                        return self.is_alone();
                    }
                    turns += 1;
                }
            }
            state = self.medium.state();
        }
        false
    }

    /// Whether nobody is left who updates words, now that the state is set. Else it is taken back.
    fn is_alone(&self) -> bool {
        let is_ordered = self.medium.heavy_barrier();
        let is_idle = |party: u32| {
            let mut turns = 0;
            while party != self.party && self.medium.is_raised(party) {
                if !self.medium.linger(turns) {
                    return false;
                }
                turns += 1;
            }
            true
        };
        let is_alone = is_ordered && (0..self.medium.parties()).all(is_idle);
        if !is_alone {
            self.medium.set_state(WORDS);
        }
        is_alone
    }

    #[cold]
    fn give(&self, block: bool) {
        let quiet = if block { 0 } else { self.medium.quiet() + 1 };
        let is_over = quiet >= QUIET_MAX;
        self.medium.set_quiet(if is_over { 0 } else { quiet });
        self.medium.set_state(if is_over { WORDS } else { BLOCKS });
    }
}
