//! The end of links: closing one, its last word, and payloads that it takes with it.

use ropewalk_base::error::Fault;
use ropewalk_base::memory::Slice;
use ropewalk_base::verb::{LinkId, Token, Verb};
use ropewalk_wire::frame::{Body, Envelope};

use super::{CallStage, LinkStage, Waiting};
use crate::api::{Channel, Output, *};
use crate::credit::Charge;
use crate::engine::Core;
use crate::incoming::{Incoming, IncomingKind};
use crate::session::sought::CallFault;
use crate::session::{PathCause, Session};

impl Core {
    pub(crate) fn close_link(&mut self, link: LinkId) {
        if let Some(state) = self.links.get_mut(link)
            && state.stage != LinkStage::Closing
        {
            state.stage = LinkStage::Closing;
            self.links.end_carrying(link);
            // Its last word may be long in coming, where nobody hears it: what it was placing, or read and wrote, goes
            // over another.
            let foreign = self.is_foreign(link);
            for slot in self.incoming.of(link).into_iter().filter(|_| !foreign) {
                if let Some(incoming) = self.incoming.get_mut(slot) {
                    incoming.broken_off = true;
                }
                let token = Token(slot.to_u64());
                self.outputs.push(Output::Verb(Verb::CancelReceive { link, token }));
            }
            if !foreign {
                self.stop_natives_of(link);
            }
            self.outputs.push(Output::Verb(Verb::Close { link }));
        }
    }

    /// A rail's last word about a link.
    pub fn link_down(&mut self, link: LinkId, fault: Fault) {
        let peer = self.links.get(link).and_then(|state| state.peer);
        let peer = peer.and_then(|id| self.peers.get(self.resolve(id)));
        // The rail of a foreign peer knows how its partner ended.
        let session = peer.and_then(|peer| peer.session.as_ref());
        let foreign = session.is_some_and(Session::is_foreign);
        let lost = if foreign { fault } else { Fault::PeerReset };
        for incoming in self.incoming.take_of(link) {
            self.undo_incoming(incoming, lost);
        }
        let Some(state) = self.links.remove(link) else { return };
        self.revoked_by_loss(link, state.peer.or(state.joins));
        if let Some(id) = state.joins {
            let is_there = state.stage != LinkStage::Opening;
            let fault = if is_there { CallFault::TurnedDown } else { CallFault::Refused };
            return self.joining_down(id, link, fault);
        }
        let Some(id) = state.peer.map(|id| self.resolve(id)) else { return };
        self.evictable.add_caller(id, &mut self.peers);
        let lossy = self.is_lossy(link);
        let now = self.now;
        let Some(peer) = self.peers.get_mut(id) else { return };
        if let Some(session) = peer.session.as_mut().filter(|it| it.paths.carries(link)) {
            session.paths.note_cause(link, PathCause::LinkLost, now);
            // To resume a session in which a peer broke the protocol would be to hear it again.
            return match state.broken {
                true => self.end_session(id, Fault::PeerReset),
                false if foreign => self.end_session(id, lost),
                false => {
                    self.note_lost(id, link);
                    self.session_link_lost(id, link, state.offered);
                }
            };
        }
        let linked = peer.has_link();
        self.note_unconfirmed(id, link, &state);
        if !state.outbound && !linked {
            // Operations that wait for the peer may have counted on this link.
            return self.want_waiting(id);
        }
        if !state.outbound || linked || state.stage == LinkStage::Closing {
            return;
        }
        if state.upgrade {
            // Memory is not shared after all: the other link, still agreed, is used.
            let agreed = |other: &LinkId| {
                let state = self.links.get(*other);
                state.is_some_and(|state| state.outbound && state.stage == LinkStage::Agreed)
            };
            if let Some(other) = self.links.of_peer(id).into_iter().find(agreed) {
                self.confirm(id, other);
            }
            return;
        }
        if fault == Fault::Busy {
            self.crowded(id);
        }
        if matches!(fault, Fault::NotPermitted | Fault::Closed) && self.is_foreign(link) {
            // It is there, and does not want us: no other address of it would.
            return self.end_session(id, fault);
        }
        let Some(peer) = self.peers.get_mut(id) else { return };
        if let CallStage::Connecting { attempt } = peer.calls.stage() {
            // A link that was up and broke while we greeted was there: perhaps the greeting suffered.
            let greeted = state.stage == LinkStage::Greeting;
            if greeted && fault == Fault::Protocol {
                peer.calls.note_babble();
            }
            let again = peer.calls.lose_greeting(greeted && lossy);
            self.connect_next(id, if again { attempt } else { attempt + 1 });
        }
    }

    /// The peer closes: like a lost link, but in mode `Resume`, too, the session is over.
    pub(crate) fn arrive_goodbye(&mut self, link: LinkId) {
        let Some(id) = self.links.get(link).and_then(|state| state.peer) else { return };
        self.end_session(self.resolve(id), Fault::PeerReset);
        self.close_link(link);
    }

    /// The endpoint closes: peers are told, operations fail.
    pub fn close(&mut self) {
        self.closing = true;
        self.give_all_rests_up();
        let mut links: Vec<LinkId> = self.links.iter().map(|(link, _)| link).collect();
        links.sort_unstable();
        for link in links {
            let up = self.links.get(link).filter(|state| state.stage == LinkStage::Up);
            let id = up.and_then(|state| state.peer).map(|id| self.resolve(id));
            let id = id.filter(|_| link != LOOP_LINK);
            if let Some(id) = id {
                // The peer's sends that are here succeed, although we close. A farewell over one path may overtake an
                // acknowledgement over another.
                self.acknowledge_over(id, link);
            }
            if let Some(session) = id.and_then(|id| self.peers.session(id)) {
                let envelope = Envelope { session: session.name(), ..Envelope::default() };
                self.emit_on(link, envelope, &Body::Goodbye, None, Token::NONE);
            }
            self.close_link(link);
        }
        for (_, peer) in self.peers.iter_mut() {
            if let Some(session) = &mut peer.session {
                session.fetching.clear();
                session.accesses.pulling = None;
            }
            peer.waiting = Waiting::default();
        }
        let ids: Vec<OperationId> = self.operations.iter().map(|(id, _)| id).collect();
        for id in ids {
            self.fail_operation(id, Fault::Closed);
        }
    }

    /// A payload is lost on its way to its place: its operation fails with this.
    pub(crate) fn incoming_lost(&mut self, incoming: Incoming, fault: Fault) {
        if let IncomingKind::Copy { attempt } = incoming.kind {
            return self.copy_lost(attempt, &incoming);
        }
        if let IncomingKind::Apart { place } = incoming.kind {
            return self.apart_lost(place, &incoming, fault);
        }
        let staged = matches!(
            incoming.kind,
            IncomingKind::Hello
                | IncomingKind::Unmatched { .. }
                | IncomingKind::Request { .. }
                | IncomingKind::Held { .. }
                | IncomingKind::Prove { .. }
        );
        if staged && incoming.slice.buffer != Slice::NONE.buffer {
            self.outputs.push(Output::Release(incoming.slice.buffer));
        }
        match incoming.kind {
            IncomingKind::Update(frame) => self.update_lost(&incoming, frame),
            IncomingKind::LockedPut { region, cookie } => {
                let Incoming { peer, session, .. } = incoming;
                self.locked_put_over(peer, session, (region, cookie), Err(fault));
            }
            IncomingKind::Elements { operation, .. } => self.release_memory(operation),
            IncomingKind::Eager { operation, .. } | IncomingKind::Data { operation, .. } => {
                self.receive_broken(operation, fault);
                self.release_memory(operation);
            }
            IncomingKind::Fragment { assembly, operation } => {
                self.fragment_lost(assembly, operation, fault);
            }
            IncomingKind::Put(put) => self.release_region(put.region),
            IncomingKind::Unmatched { message } => self.unmatched_lost(message, fault),
            IncomingKind::Request { .. } => self.free_lost(&incoming, Channel::Request),
            IncomingKind::Held { channel, .. } => self.free_lost(&incoming, channel),
            IncomingKind::Hello
            | IncomingKind::Copy { .. }
            | IncomingKind::Apart { .. }
            | IncomingKind::Prove { .. } => {}
        }
    }

    fn free_lost(&mut self, incoming: &Incoming, channel: Channel) {
        let charge = Charge::Eager { channel, payload_bytes: incoming.payload_bytes.into() };
        if let Some(peer) = incoming.peer {
            self.free_charge(peer, incoming.session, charge);
        }
    }

    /// A placement broke off: it goes on when its span comes again, or what it was for fails.
    pub(crate) fn undo_incoming(&mut self, incoming: Incoming, fault: Fault) {
        let kept = if incoming.is_copy() { Err(incoming) } else { self.keep_broken(incoming) };
        if let Err(incoming) = kept {
            self.incoming_lost(incoming, fault);
        }
    }
}
