//! The pool of an endpoint, of which all windows are lent.
//!
//! Invariant: the bytes lent are the windows of all peers together.

use super::{Lent, Windows, charge_bytes};

#[derive(Debug)]
pub(crate) struct Pool {
    bytes: u64,
    lent: u64,
    /// Bytes that unmatched messages of ended sessions still occupy.
    orphaned: u64,
}

impl Pool {
    pub fn new(bytes: u64) -> Pool {
        Pool { bytes, lent: 0, orphaned: 0 }
    }

    fn used(&self) -> u64 {
        self.lent + self.orphaned
    }

    /// Whether windows may grow by so much: out of half the pool.
    #[inline]
    pub fn has_room(&self, more: u64) -> bool {
        self.used() + more <= self.bytes / 2
    }

    /// The first windows of a new session; `None` if the pool has none left. Once half the pool is lent, which is all
    /// that windows grow from, newcomers get the least that works.
    pub fn first(&self, usual: Windows, least: Windows) -> Option<Windows> {
        if self.has_room(usual.sum()) {
            return Some(usual);
        }
        (self.used() + least.sum() <= self.bytes).then_some(least)
    }

    pub fn lend(&mut self, bytes: u64) {
        self.lent += bytes;
    }

    /// A session ended: what was lent to its peer comes back, but for messages that are still here.
    pub fn take_back(&mut self, lent: &Lent) {
        let (window, occupied) = lent.window_and_occupied();
        self.lent -= window;
        self.orphaned += occupied;
    }

    /// A message of an ended session does not occupy us any more.
    pub fn free_orphan(&mut self, payload_bytes: u64) {
        self.orphaned -= charge_bytes(payload_bytes);
    }

    /// Asserts the invariant. `windows` and `orphaned`: of all peers, and of messages that are here.
    pub fn check(&self, windows: u64, orphaned: u64) {
        assert_eq!(windows, self.lent, "windows lent to peers");
        assert!(orphaned <= self.orphaned, "{orphaned} over {}", self.orphaned);
    }
}
