//! Partners that were let go, and what is remembered of them.
//!
//! Invariants: after a clean close, before which all messages arrived, the next link goes on with the same numbers. An
//! endpoint that gives a partner up leaves state at the partner that only a restart takes away. It therefore looks like
//! an endpoint that restarted.

use std::hash::Hash;

use ropewalk_base::error::Fault;
use ropewalk_base::slots::SlotId;
use ropewalk_wire::mxoe::{SESSION_UNKNOWN, Sequence};

use super::machine::{Mxoe, Partner, any_session};

/// Partners that were let go and are remembered.
const FORMERS_MAX: usize = 4096;

/// A partner that was let go.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClosedPeer {
    pub session: u32,
    /// In which session of ours it is counted on, and whether that is another one than it knows.
    pub own: u32,
    pub is_renewed: bool,
    pub receive_next: Sequence,
    pub connects: u8,
    /// Acknowledgements: it believes those only that have a greater number than all before.
    pub acks_sent: u32,
}

impl<S: Copy + Eq + Hash + std::fmt::Debug> Mxoe<S> {
    pub(super) fn former(&self, station: S, endpoint: u8) -> Option<ClosedPeer> {
        self.closed_peers.get(&(station, endpoint)).copied()
    }

    /// Remembers what came from a partner that is let go.
    pub(super) fn remember(&mut self, state: &Partner<S>) {
        if state.session == SESSION_UNKNOWN || !state.is_proven {
            return;
        }
        let receive_next = state.receiving.acknowledged();
        let Partner { session, own, connects, acks_sent, .. } = *state;
        let is_renewed = false;
        let former = ClosedPeer { session, own, is_renewed, receive_next, connects, acks_sent };
        self.remember_as((state.station, state.endpoint), former);
    }

    /// Ends a link with which the partner may go on. The partner's part of this link, which we no longer have, does not
    /// belong to the next link. The next link is therefore in a session of its own.
    pub(super) fn abandon(&mut self, id: SlotId, fault: Fault) {
        let Some(state) = self.partners.get(id) else { return };
        let name = (state.station, state.endpoint);
        self.end(id, fault);
        self.renew(name);
    }

    /// Ends a link that was closed. If all our messages arrived, the numbers go on.
    pub(super) fn leave(&mut self, id: SlotId) {
        let Some(state) = self.partners.get(id) else { return };
        match state.sending.is_done() {
            true => self.end(id, Fault::Closed),
            false => self.abandon(id, Fault::Closed),
        }
    }

    pub(super) fn renew(&mut self, name: (S, u8)) {
        if let Some(former) = self.closed_peers.get_mut(&name) {
            former.own = any_session(&mut self.random);
            former.is_renewed = true;
            former.receive_next = Sequence::new(0, 1);
        }
    }

    pub(super) fn remember_as(&mut self, name: (S, u8), former: ClosedPeer) {
        if self.closed_peers.insert(name, former).is_none() {
            self.closed_names.push_back(name);
        }
        if self.closed_names.len() > FORMERS_MAX
            && let Some(oldest) = self.closed_names.pop_front()
        {
            self.closed_peers.remove(&oldest);
        }
    }
}
