//! Who may send how much: eager bytes, requests, announces.
//!
//! Limits are absolute (counted from the session's beginning), so a `Credit` frame that comes twice
//! or late does no harm. All that the peers of an endpoint may have sent unmatched is lent from one
//! pool: an idle peer holds the first window only, a busy one is lent more while there is some.

use ropewalk_wire::frame::{Body, CreditBody, Envelope};

use crate::api::{Channel, PeerId};
use crate::engine::Core;

/// Bytes that a message counts beside its payload: what we keep to remember it.
pub(crate) const OVERHEAD_BYTES: u64 = 128;

/// What the peer allowed us, and what we used of it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Granted {
    pub eager_limit: u64,
    pub eager_used: u64,
    pub request_limit: u64,
    pub request_used: u64,
    pub announce_limit: u64,
    pub announce_used: u64,
}

/// What we allowed the peer, and what it used and we freed again.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Received {
    pub eager: Account,
    pub request: Account,
    pub announce: Account,
}

/// One kind of credit, on the receiving side.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Account {
    /// May be outstanding at a time.
    pub window: u64,
    /// Arrived.
    pub arrived: u64,
    /// Arrived and freed again.
    pub freed: u64,
    /// The limit that the peer was told last.
    pub told: u64,
}

impl Account {
    pub fn begin(window: u64) -> Account {
        Account { window, arrived: 0, freed: 0, told: window }
    }

    /// Counts an arrival; false where the peer was not allowed to send it.
    #[must_use]
    fn arrive(&mut self, amount: u64) -> bool {
        self.arrived += amount;
        self.arrived <= self.told
    }

    /// Frees some of it; true where the peer should be told.
    fn free(&mut self, amount: u64) -> bool {
        self.freed += amount;
        debug_assert!(self.freed <= self.arrived, "what is freed has arrived");
        self.freed + self.window - self.told >= self.window / 2
    }
}

impl Granted {
    /// Takes credit for an eager message, where there is enough.
    pub fn take_eager(&mut self, channel: Channel, payload_bytes: u64) -> bool {
        let (limit, used) = match channel {
            Channel::Request => (self.request_limit, &mut self.request_used),
            _ => (self.eager_limit, &mut self.eager_used),
        };
        let charge = payload_bytes + OVERHEAD_BYTES;
        if *used + charge > limit {
            return false;
        }
        *used += charge;
        true
    }

    /// Takes credit for an announce, where there is some.
    pub fn take_announce(&mut self) -> bool {
        if self.announce_used >= self.announce_limit {
            return false;
        }
        self.announce_used += 1;
        true
    }
}

/// What a message counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Charge {
    Eager { channel: Channel, payload_bytes: u64 },
    Announce,
}

impl Core {
    /// Counts the arrival of a message; false where the peer ignored its credits.
    #[must_use]
    pub(crate) fn charge(&mut self, peer: PeerId, charge: Charge) -> bool {
        let Some(peer) = self.peers.get_mut(peer.0) else { return false };
        match charge {
            Charge::Eager { channel: Channel::Request, payload_bytes } => {
                peer.received.request.arrive(payload_bytes + OVERHEAD_BYTES)
            }
            Charge::Eager { payload_bytes, .. } => {
                peer.received.eager.arrive(payload_bytes + OVERHEAD_BYTES)
            }
            Charge::Announce => peer.received.announce.arrive(1),
        }
    }

    /// Gives credit of this session back: the message does not occupy us any more.
    pub(crate) fn free_charge(&mut self, id: PeerId, session: u32, charge: Charge) {
        let Some(peer) = self.peers.get_mut(id.0) else { return };
        if peer.session != session {
            return;
        }
        let tell = match charge {
            Charge::Eager { channel: Channel::Request, payload_bytes } => {
                peer.received.request.free(payload_bytes + OVERHEAD_BYTES)
            }
            Charge::Eager { payload_bytes, .. } => {
                peer.received.eager.free(payload_bytes + OVERHEAD_BYTES)
            }
            Charge::Announce => peer.received.announce.free(1),
        };
        if tell && peer.link().is_some() {
            self.tell_credit(id);
        }
    }

    fn tell_credit(&mut self, id: PeerId) {
        let (max, pool) = (self.config.eager_window_bytes_max, self.config.eager_pool_bytes);
        let Some(peer) = self.peers.get_mut(id.0) else { return };
        // A peer that used half its window is busy: it is lent more, while the pool has some.
        for account in [&mut peer.received.eager, &mut peer.received.request] {
            let more = account.window.min(u64::from(max).saturating_sub(account.window));
            let busy = account.freed + account.window - account.told >= account.window / 2;
            if busy && more > 0 && self.lent_bytes + more <= pool {
                account.window += more;
                self.lent_bytes += more;
            }
        }
        for account in
            [&mut peer.received.eager, &mut peer.received.request, &mut peer.received.announce]
        {
            account.told = account.told.max(account.freed + account.window);
        }
        let body = Body::Credit(CreditBody {
            eager_limit: peer.received.eager.told.into(),
            request_limit: peer.received.request.told.into(),
            announce_limit: peer.received.announce.told.into(),
        });
        self.emit_control(id, body);
    }

    /// The session begins: the first windows are lent.
    pub(crate) fn begin_credit(&mut self, id: PeerId) {
        let window = u64::from(self.config.eager_window_bytes);
        let announces = u64::from(self.config.announce_window);
        self.lent_bytes += 2 * window;
        let Some(peer) = self.peers.get_mut(id.0) else { return };
        peer.received.eager = Account::begin(window);
        peer.received.request = Account::begin(window);
        peer.received.announce = Account::begin(announces);
    }

    /// The session ended: what was lent comes back.
    pub(crate) fn end_credit(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get_mut(id.0) else { return };
        self.lent_bytes -= peer.received.eager.window + peer.received.request.window;
        peer.received = Received::default();
        peer.granted = Granted::default();
    }

    /// The peer allows us more.
    pub(crate) fn arrive_credit(&mut self, id: PeerId, body: CreditBody) {
        let Some(peer) = self.peers.get_mut(id.0) else { return };
        let granted = &mut peer.granted;
        granted.eager_limit = granted.eager_limit.max(body.eager_limit.get());
        granted.request_limit = granted.request_limit.max(body.request_limit.get());
        granted.announce_limit = granted.announce_limit.max(body.announce_limit.get());
        self.pump(id);
    }

    /// A control frame to a peer whose session runs.
    pub(crate) fn emit_control(&mut self, id: PeerId, body: Body) {
        self.emit(id, Envelope::default(), body, None);
    }
}
