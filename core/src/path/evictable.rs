//! Peers that may be forgotten if there is no room for another one.
//!
//! Invariant: a peer is in either list as its own marks say, and in each at most once.

use std::collections::{BTreeSet, VecDeque};

use ropewalk_base::time::Time;

use super::Peers;
use crate::api::PeerId;

/// Entries that one search for room looks at.
pub(super) const LOOKS: usize = 64;

/// The lists in which a peer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EvictionMarks {
    queued: bool,
    /// `NEVER`: not in the list of idle sessions.
    idle_since: Time,
}

impl EvictionMarks {
    pub const NONE: EvictionMarks = EvictionMarks { queued: false, idle_since: Time::NEVER };
}

#[derive(Debug, Default)]
pub(crate) struct Evictable {
    /// Peers that called us and that nobody here looked up: the first to have gone comes first.
    callers: VecDeque<PeerId>,
    /// Sessions of such peers whose links were closed since nothing was under way: the least recently used first.
    idle: BTreeSet<(Time, PeerId)>,
}

impl Evictable {
    /// A peer that nobody here looked up has no session.
    pub fn add_caller(&mut self, id: PeerId, peers: &mut Peers) {
        let Some(peer) = peers.get_mut(id) else { return };
        if peer.reachable || std::mem::replace(&mut peer.eviction.queued, true) {
            return;
        }
        self.callers.push_back(id);
        if self.callers.len() > 2 * peers.len() + LOOKS {
            self.callers.retain(|id| peers.get(*id).is_some());
        }
    }

    /// Takes the next caller out; the record may be gone.
    pub fn next_caller(&mut self, peers: &mut Peers) -> Option<PeerId> {
        let id = self.callers.pop_front()?;
        if let Some(peer) = peers.get_mut(id) {
            peer.eviction.queued = false;
        }
        Some(id)
    }

    /// The link of a peer's session was closed since nothing was under way.
    pub fn add_idle(&mut self, id: PeerId, marks: &mut EvictionMarks, since: Time) {
        if marks.idle_since == Time::NEVER {
            marks.idle_since = since;
            self.idle.insert((since, id));
        }
    }

    /// Takes out the peer whose session has been idle for longest, as far as the list knows, with the time.
    pub fn next_idle(&mut self, peers: &mut Peers) -> Option<(Time, PeerId)> {
        let (since, id) = self.idle.pop_first()?;
        if let Some(peer) = peers.get_mut(id) {
            peer.eviction.idle_since = Time::NEVER;
        }
        Some((since, id))
    }

    /// A peer's record is gone.
    pub fn remove(&mut self, id: PeerId, marks: EvictionMarks) {
        self.idle.remove(&(marks.idle_since, id));
    }

    /// Asserts the invariant for a peer; whether its session is in the list of idle ones.
    pub fn check(&self, id: PeerId, marks: EvictionMarks) -> bool {
        let queued = self.callers.iter().filter(|caller| **caller == id).count();
        assert_eq!(queued, usize::from(marks.queued), "{id:?} among the callers");
        let listed = marks.idle_since < Time::NEVER;
        assert_eq!(self.idle.contains(&(marks.idle_since, id)), listed, "the idle mark of {id:?}");
        listed
    }
}
