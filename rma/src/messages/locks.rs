//! The lock of a window at its target: one queue, first come first served.
//!
//! Invariant: a request never passes one that waits, shared ones included, so nobody starves.

use std::collections::VecDeque;

use super::wire::Malformed;
use crate::epochs::LockKind;

/// Who holds the lock, and who waits for it.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    holders: Vec<u32>,
    is_exclusive: bool,
    waiting: VecDeque<(u32, LockKind)>,
    /// A rank died with it; the next one to have it is told.
    died: bool,
}

impl Locks {
    /// A request. True: it is granted.
    ///
    /// # Errors
    /// The rank holds the lock, or waits for it.
    pub fn ask(&mut self, rank: u32, kind: LockKind) -> Result<bool, Malformed> {
        if self.holders.contains(&rank) || self.waits(rank) {
            return Err("it asked twice for one lock");
        }
        if self.waiting.is_empty() && self.is_free_for(kind) {
            self.hold(rank, kind);
            return Ok(true);
        }
        self.waiting.push_back((rank, kind));
        Ok(false)
    }

    /// Whether a rank waits.
    pub fn waits(&self, rank: u32) -> bool {
        self.waiting.iter().any(|(other, _)| *other == rank)
    }

    fn is_free_for(&self, kind: LockKind) -> bool {
        self.holders.is_empty() || kind == LockKind::Shared && !self.is_exclusive
    }

    fn hold(&mut self, rank: u32, kind: LockKind) {
        self.holders.push(rank);
        self.is_exclusive = kind == LockKind::Exclusive;
    }

    /// The holder lets go. Gives those who have the lock now, in their order.
    ///
    /// # Errors
    /// It did not hold the lock.
    pub fn release(&mut self, rank: u32) -> Result<Vec<u32>, Malformed> {
        let held = self.holders.iter().position(|other| *other == rank);
        self.holders.swap_remove(held.ok_or("it released a lock that it did not hold")?);
        Ok(self.grant())
    }

    /// A rank is lost. Gives those who have the lock now.
    pub fn forget(&mut self, rank: u32) -> Vec<u32> {
        self.waiting.retain(|(other, _)| *other != rank);
        if let Some(held) = self.holders.iter().position(|other| *other == rank) {
            self.holders.swap_remove(held);
            self.died = true;
        }
        self.grant()
    }

    /// Whether the rank that has the lock now is to be told that one died with it.
    pub fn tells_of_death(&mut self) -> bool {
        std::mem::take(&mut self.died)
    }

    /// There is no lock any more. Gives those who wait.
    pub fn end(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.waiting).into_iter().map(|(rank, _)| rank).collect()
    }

    fn grant(&mut self) -> Vec<u32> {
        let mut granted = Vec::new();
        while let Some((rank, kind)) = self.waiting.front().copied()
            && self.is_free_for(kind)
        {
            self.waiting.pop_front();
            self.hold(rank, kind);
            granted.push(rank);
        }
        granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARED: LockKind = LockKind::Shared;
    const EXCLUSIVE: LockKind = LockKind::Exclusive;

    #[test]
    fn a_shared_request_never_passes_a_waiting_exclusive_one() {
        let mut locks = Locks::default();
        assert_eq!(locks.ask(1, SHARED), Ok(true));
        assert_eq!(locks.ask(2, SHARED), Ok(true));
        assert_eq!(locks.ask(3, EXCLUSIVE), Ok(false));
        assert_eq!(locks.ask(4, SHARED), Ok(false));
        assert_eq!(locks.ask(5, SHARED), Ok(false));
        assert_eq!(locks.ask(6, EXCLUSIVE), Ok(false));
        assert_eq!(locks.release(2), Ok(vec![]));
        assert_eq!(locks.release(1), Ok(vec![3]));
        assert_eq!(locks.release(3), Ok(vec![4, 5]));
        assert_eq!(locks.ask(3, SHARED), Ok(false));
        assert_eq!(locks.release(4), Ok(vec![]));
        assert_eq!(locks.release(5), Ok(vec![6]));
        assert_eq!(locks.release(6), Ok(vec![3]));
    }

    #[test]
    fn asking_twice_and_releasing_what_is_not_held_is_told() {
        let mut locks = Locks::default();
        assert_eq!(locks.ask(1, EXCLUSIVE), Ok(true));
        assert!(locks.ask(1, SHARED).is_err());
        assert_eq!(locks.ask(2, SHARED), Ok(false));
        assert!(locks.ask(2, SHARED).is_err());
        assert!(locks.release(2).is_err());
        assert!(locks.release(3).is_err());
    }

    #[test]
    fn the_lock_of_a_lost_rank_goes_to_the_next_one_and_its_request_goes() {
        let mut locks = Locks::default();
        assert_eq!(locks.ask(1, EXCLUSIVE), Ok(true));
        assert_eq!(locks.ask(2, EXCLUSIVE), Ok(false));
        assert_eq!(locks.ask(3, SHARED), Ok(false));
        assert_eq!(locks.forget(2), []);
        assert!(!locks.tells_of_death());
        assert_eq!(locks.forget(1), [3]);
        assert!(locks.tells_of_death() && !locks.tells_of_death());
        // Nobody waits: whoever asks next is told.
        assert_eq!(locks.forget(3), []);
        assert_eq!(locks.ask(4, EXCLUSIVE), Ok(true));
        assert!(locks.tells_of_death());
    }
}
