//! Foreign peers: endpoints that speak a protocol of their own, which their rail knows.
//!
//! Their sessions begin without a greeting, have the tagged channel only, and know no credit. What their messages
//! mean is told by the rail; what is said to them is frames as to any other peer, whose meaning the rail carries.
//!
//! Invariants: a peer may have as many bytes and announces here that nobody took as any other, and at least one
//! message; what is beyond waits at the rail, and the frame that would lend credit says that there is room; a
//! message that a posted receive accepts never waits.

use ropewalk_base::error::Fault;
use ropewalk_base::verb::{ForeignEnd, ForeignMessage, LinkId, Placement};
use ropewalk_wire::frame::{EagerBody, RtsBody, ShortHeader, key_to_wire};

use crate::api::*;
use crate::credit::{Charge, Granted, Windows};
use crate::engine::Core;
use crate::path::LinkStage;
use crate::session::{NewSession, PeerKind, SessionId};

impl Core {
    /// Whether the peers of a link are foreign.
    #[inline]
    pub(crate) fn is_foreign(&self, link: LinkId) -> bool {
        self.rails.of(link).is_some_and(|rail| rail.foreign)
    }

    /// A link carries messages with a foreign peer: its session begins. `name` tells it apart from all other
    /// endpoints; `accepted`: it connected to us.
    pub fn foreign_up(&mut self, link: LinkId, name: u128, accepted: bool) {
        if self.trust.is_some() {
            return self.refuse_foreign(link, accepted);
        }
        let mut id = if accepted {
            self.link_up(link, true);
            let Some(id) = self.peer_of(name) else { return self.close_link(link) };
            id
        } else {
            let Some(asked) = self.links.get(link).and_then(|state| state.peer) else { return };
            self.identify(self.resolve(asked), name)
        };
        if self.peers.session(id).is_some() {
            self.fail_session(id, Fault::PeerReset);
            // Its record may have ended with the session.
            let Some(other) = self.peer_of(name) else { return self.close_link(link) };
            id = other;
        }
        self.links.set_peer(link, id);
        let windows = self.first_windows().unwrap_or(self.least_windows());
        let Some(state) = self.links.get_mut(link) else { return };
        state.stage = LinkStage::Up;
        let number = SessionId::own(state.nonce);
        // It lends nothing; what its receiver has no room for is sent again by the rail.
        let endless = u64::MAX / 2;
        let granted = Granted::begin(Windows { eager: endless, request: 0 }, endless);
        let (kind, spans, outlives_links) = (PeerKind::Foreign, false, false);
        self.make_session(
            id,
            NewSession { id: number, kind, link, granted, windows, spans, outlives_links },
        );
        self.begin_lengths(id);
        self.links.begin_carrying(link);
        self.pump(id);
    }

    /// A foreign peer proves nothing: an endpoint with keys does without.
    fn refuse_foreign(&mut self, link: LinkId, accepted: bool) {
        if accepted {
            self.link_up(link, true);
        }
        self.counters.untrusted += 1;
        let asked = self.links.get(link).and_then(|state| state.peer);
        self.close_link(link);
        if let Some(asked) = asked {
            self.end_session(self.resolve(asked), Fault::Untrusted);
        }
    }

    /// A link that is being made is one that there is already: a foreign peer has one link, whoever began it.
    pub(crate) fn is_same_foreign(&mut self, asked: PeerId, link: LinkId) -> bool {
        let known = self.links.get(link).and_then(|state| state.peer);
        let Some(known) = known.filter(|_| self.is_foreign(link)) else { return false };
        let (asked, known) = (self.resolve(asked), self.resolve(known));
        if asked != known {
            self.leave_endpoint(asked);
            if !self.has_ended(asked) {
                self.alias(asked, known);
            }
        }
        true
    }

    /// The next message of a foreign peer: where its payload belongs, if it is not announced only. `None` where
    /// there is no room for it yet. `whole` as for [`Core::place_whole`].
    pub fn foreign_message(
        &mut self,
        link: LinkId,
        message: ForeignMessage,
        whole: bool,
    ) -> Option<Placement> {
        let ForeignMessage { number, bits, bytes, key } = message;
        let channel = Channel::Tagged;
        let Some(id) = self.links.get(link).and_then(|state| state.peer) else {
            return Some(Placement::Drop);
        };
        let id = self.resolve(id);
        let charge = match key {
            Some(_) => Charge::Rendezvous,
            None => Charge::Eager { channel, payload_bytes: bytes },
        };
        let taken = self.matching.first_receive(channel, id, bits).is_some();
        let session = self.peers.session_mut(id).filter(|it| it.paths.is_up_over(link))?;
        if !session.lent.arrive_foreign(charge, taken) {
            return None;
        }
        let session = session.name();
        if let Some(key) = key {
            let (key_slot, key_secret) = key_to_wire(key);
            let body = RtsBody {
                bits: bits.into(),
                message: number.into(),
                channel: channel as u8,
                alone: 0,
                reserved: [0; 6],
                total_bytes: bytes.into(),
                key_slot,
                key_secret,
            };
            self.match_rts(id, channel, &body);
            return Some(Placement::Drop);
        }
        let header = ShortHeader::of(session, bytes as u32, bits, number);
        let (prefix, body): (_, EagerBody) = header.expand();
        self.placing_whole = whole;
        let placement = self.match_eager(link, id, &prefix, &body, channel);
        self.placing_whole = false;
        Some(placement)
    }

    /// A foreign peer says whether a key that it was shown is right.
    pub fn foreign_key(&mut self, link: LinkId, key: u32, right: bool) {
        let Some(id) = self.links.get(link).and_then(|state| state.peer) else { return };
        let peer = self.resolve(id);
        self.outputs.push(Output::KeyJudged { peer, key, right });
    }

    /// A foreign peer says that a message of ours is over.
    pub fn foreign_end(&mut self, link: LinkId, end: ForeignEnd) {
        let Some(id) = self.links.get(link).and_then(|state| state.peer) else { return };
        self.send_over(self.resolve(id), (end.channel, end.number), Ok(()), end.bytes);
    }
}

/// Why something cannot be said to a foreign peer.
#[cold]
pub(crate) fn unspeakable(send: &Send) -> Option<Fault> {
    match send.channel {
        Channel::Tagged if send.payload.len <= u64::from(u32::MAX) => None,
        Channel::Tagged => Some(Fault::Oversize),
        _ => Some(Fault::NotPermitted),
    }
}
