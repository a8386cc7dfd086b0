//! Signals: what other threads see of the engine without its lock. The holder of the engine alone writes them.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[derive(Debug, Default)]
pub(crate) struct Signals {
    peer_events: AtomicU64,
    path_events: AtomicU64,
    announced: AtomicU32,
    awaited: AtomicU32,
    arrivals: AtomicU64,
    raises: AtomicU64,
}

impl Signals {
    /// Changes of peers' sessions so far.
    pub fn peer_events(&self) -> u64 {
        self.peer_events.load(Ordering::SeqCst)
    }

    /// A session changed.
    pub fn count_peer_event(&self) {
        // In one order with the sleeper's flag, like the count of completions.
        self.peer_events.fetch_add(1, Ordering::SeqCst);
    }

    /// Events of paths so far.
    pub fn path_events(&self) -> u64 {
        self.path_events.load(Ordering::SeqCst)
    }

    /// Something happened to the paths of a peer.
    pub fn count_path_event(&self) {
        // In one order with the sleeper's flag, like the count of completions.
        self.path_events.fetch_add(1, Ordering::SeqCst);
    }

    /// How often peers told something by a word of exposed memory.
    pub fn raises(&self) -> u64 {
        self.raises.load(Ordering::SeqCst)
    }

    /// A peer told something so.
    pub fn count_raise(&self) {
        // In one order with the sleeper's flag, like the count of completions.
        self.raises.fetch_add(1, Ordering::SeqCst);
    }

    /// Announced messages that are not over, whose receivers may need us.
    pub fn announced(&self) -> u32 {
        self.announced.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub fn set_announced(&self, announced: u32) {
        self.announced.store(announced, Ordering::Relaxed);
    }

    /// Receives that wait for long messages.
    pub fn awaited(&self) -> u32 {
        self.awaited.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub fn set_awaited(&self, awaited: u32) {
        self.awaited.store(awaited, Ordering::Relaxed);
    }

    /// A number that grows with messages that wait for a receive, as `ropewalk_core::Core::arrivals` had it last.
    #[inline]
    pub fn arrivals(&self) -> u64 {
        self.arrivals.load(Ordering::SeqCst)
    }

    pub fn set_arrivals(&self, arrivals: u64) {
        // In one order with the sleeper's flag, like the count of completions.
        self.arrivals.store(arrivals, Ordering::SeqCst);
    }
}
