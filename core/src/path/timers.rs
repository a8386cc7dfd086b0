//! When peers are to be looked at.
//!
//! Invariant: a peer has at most one entry, which its own timer names.

use std::collections::BTreeSet;

use ropewalk_base::time::Time;

use super::calls::INSIST_FROM;
use super::{CallStage, Peer, Peers};
use crate::api::PeerId;
use crate::engine::Core;

/// When a peer is looked at; nothing may be due by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PeerTimer(Time);

impl PeerTimer {
    pub const OFF: PeerTimer = PeerTimer(Time::NEVER);

    pub fn is_set(self) -> bool {
        self != PeerTimer::OFF
    }
}

/// The timers of all peers, and the first time at which anything is due.
#[derive(Debug)]
pub(crate) struct Timers {
    by_time: BTreeSet<(Time, PeerId)>,
    wake: Time,
    /// Room for the peers that are looked at now.
    due: Vec<PeerId>,
}

impl Timers {
    pub fn new() -> Timers {
        Timers { by_time: BTreeSet::new(), wake: Time::NEVER, due: Vec::new() }
    }

    /// The time before which nothing is due; `NEVER` if nothing is to come.
    #[inline]
    pub fn wake(&self) -> Time {
        self.wake
    }

    /// Something other than a peer is due then.
    pub fn wake_by(&mut self, due: Time) {
        self.wake = self.wake.min(due);
    }

    /// Sets a peer's timer, unless it goes off earlier.
    #[inline]
    pub fn set(&mut self, id: PeerId, timer: &mut PeerTimer, due: Time) {
        if due < timer.0 {
            self.stop(id, timer);
            timer.0 = due;
            self.by_time.insert((due, id));
            self.wake_by(due);
        }
    }

    /// Stops a peer's timer.
    pub fn stop(&mut self, id: PeerId, timer: &mut PeerTimer) {
        let before = std::mem::replace(timer, PeerTimer::OFF);
        if before != PeerTimer::OFF {
            self.by_time.remove(&(before.0, id));
        }
    }

    /// Takes out the peers whose timers have gone off by now, the earliest first. The list comes back by
    /// [`Timers::looked_at`].
    pub fn take_due(&mut self, now: Time, peers: &mut Peers) -> Vec<PeerId> {
        let mut due = std::mem::take(&mut self.due);
        while let Some(&(at, id)) = self.by_time.first().filter(|(at, _)| *at <= now) {
            self.by_time.remove(&(at, id));
            if let Some(peer) = peers.get_mut(id) {
                peer.timer = PeerTimer::OFF;
                due.push(id);
            }
        }
        due
    }

    /// The peers of this list were looked at.
    pub fn looked_at(&mut self, mut due: Vec<PeerId>) {
        due.clear();
        self.due = due;
    }

    /// How many peers have a timer that is set.
    pub fn len(&self) -> usize {
        self.by_time.len()
    }

    /// All that was due is done; `other` is due next beside the peers.
    pub fn rest(&mut self, other: Time) {
        let first = self.by_time.first().map_or(Time::NEVER, |(at, _)| *at);
        self.wake = first.min(other);
    }

    /// Asserts the invariant for a peer that has to be looked at by `due`.
    pub fn check(&self, id: PeerId, timer: PeerTimer, due: Time) {
        assert!(timer.0 <= due, "{id:?} is looked at in time");
        let set = timer != PeerTimer::OFF;
        assert_eq!(self.by_time.contains(&(timer.0, id)), set, "the timer of {id:?}");
    }
}

impl Core {
    /// Makes sure that `advance` looks at a peer at `due`, or before: what is due later by then is not
    /// taken back.
    pub(crate) fn wake_by(&mut self, id: PeerId, due: Time) {
        if let Some(peer) = self.peers.get_mut(id) {
            self.timers.set(id, &mut peer.timer, due);
        }
    }

    pub(crate) fn run_timers(&mut self) {
        let now = self.now;
        let due = self.timers.take_due(now, &mut self.peers);
        for id in due.iter().copied() {
            let Some(peer) = self.peers.get_mut(id) else { continue };
            match peer.calls.stage() {
                CallStage::Yielded { until } if until <= now => self.connect_next(id, INSIST_FROM),
                CallStage::Connecting { attempt } if peer.calls.due() <= now => {
                    self.attempt_late(id, attempt);
                }
                CallStage::Crowded { attempt, until } if until <= now => {
                    self.connect_again(id, attempt);
                }
                _ => {}
            }
            self.run_session_timers(id);
            let due = self.peers.get(id).map_or(Time::NEVER, Peer::due);
            self.wake_by(id, due);
        }
        self.timers.looked_at(due);
        let sweep = self.run_sweep();
        let silent = self.close_silent();
        let review = self.review_standings();
        self.timers.rest(sweep.min(silent).min(review));
    }

    /// Does what is due for the session with a peer, and for its paths.
    fn run_session_timers(&mut self, id: PeerId) {
        let Some(session) = self.peers.session(id) else { return };
        let (lost, closing) = (session.paths.has_lost(), session.paths.is_closing());
        if lost {
            self.retry_lost(id);
        }
        if closing {
            self.close_unanswered(id);
        }
        if self.peers.session(id).is_some_and(|session| session.paths.is_up()) {
            self.run_span_timers(id);
            self.run_joins(id);
            self.run_migration(id);
            self.run_marks(id);
        }
    }
}
