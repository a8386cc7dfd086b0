//! Large messages: announced, fetched by the receiver when it knows where they belong, finished.
//!
//! rendezvous = `Rts` + get on a one-shot region + `Fin`.

use ropewalk_base::error::Fault;
use ropewalk_base::verb::{Help, LinkId, Placement, RemoteKey, RemoteLayout};
use ropewalk_wire::frame::{
    AbortBody, FinBody, RtsBody, key_from_wire, key_to_wire, status_from_wire,
};

use crate::api::*;
use crate::credit::Charge;
use crate::eager::NextMessage;
use crate::engine::Core;
use crate::matching::{Content, Unmatched};
use crate::operation::{Kind, ReceiveStage, SendStage};
use crate::session::Session;

/// A large message as it was announced.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Announced {
    pub message: u64,
    pub bytes: u64,
    pub key: RemoteKey,
    pub help: Help,
}

impl Core {
    /// Announces a send whose memory is a one-shot region for the peer.
    pub(crate) fn announce(&mut self, id: OperationId, send: Send, message: u64, key: RemoteKey) {
        if let Some(operation) = self.operations.get_mut(id)
            && let Kind::Send(state) = &mut operation.kind
        {
            state.stage = SendStage::Rendezvous { region: key.slot };
        }
        if let Some(session) = self.peers.session_mut(send.peer) {
            session.unfinished.insert((send.channel as u8, message), id);
        }
        self.counters.messages_announced += 1;
        let (key_slot, key_secret) = key_to_wire(key);
        let body = RtsBody {
            bits: send.bits.into(),
            message: message.into(),
            channel: send.channel as u8,
            alone: u8::from(self.links.carrying() <= 1),
            reserved: [0; 6],
            total_bytes: send.payload.len.into(),
            key_slot,
            key_secret,
        };
        let patient = self.peers.session(send.peer).is_some_and(Session::has_enough_to_do);
        self.emit(send.peer, body, None);
        if patient {
            self.outputs.last_is_patient();
        }
    }

    /// A large message is announced.
    pub(crate) fn arrive_rts(&mut self, _link: LinkId, id: PeerId, body: RtsBody) -> Placement {
        let channel = match Channel::from_u8(body.channel) {
            Some(channel) if channel != Channel::Request => channel,
            _ => return self.violation("an announce of a channel that has none"),
        };
        if !self.charge(id, Charge::Rendezvous) {
            return self.violation("the peer announced more than its credit");
        }
        match self.next_message(id, channel, body.message.get()) {
            NextMessage::Now => {}
            NextMessage::Early => {
                self.hold_rts(id, channel, body);
                return Placement::Drop;
            }
            NextMessage::Wrong => return self.violation("an announce out of order"),
        }
        self.match_rts(id, channel, &body);
        self.release_held(id, channel);
        Placement::Drop
    }

    pub(crate) fn match_rts(&mut self, id: PeerId, channel: Channel, body: &RtsBody) {
        let (bits, bytes, message) = (body.bits.get(), body.total_bytes.get(), body.message.get());
        let key = key_from_wire(body.key_slot, body.key_secret);
        // The sender of an RTS waits for the end of its message, and makes passes.
        let help = if body.alone == 1 { Help::PreferPush } else { Help::Possible };
        let Some(session) = self.peers.session_mut(id) else { return };
        let held = session.reliable.as_mut().map(|reliable| &mut reliable.held);
        let is_withdrawn = held.is_some_and(|held| held.take_withdrawn(channel, message));
        let session = session.name();
        if is_withdrawn {
            return self.free_charge(id, session, Charge::Rendezvous);
        }
        if let Some(operation) = self.accepting(channel, id, bits, bytes) {
            self.free_charge(id, session, Charge::Rendezvous);
            self.lend_for(id, bytes);
            if let Some(Kind::Receive(state)) =
                self.operations.get_mut(operation).map(|operation| &mut operation.kind)
            {
                state.from = Some(id);
                state.bits = bits;
                state.message_bytes = bytes;
            }
            return self.fetch(operation, id, Announced { message, bytes, key, help });
        }
        if self.matching.drops_unawaited(channel) {
            self.counters.messages_dropped += 1;
            self.free_charge(id, session, Charge::Rendezvous);
            return self.emit_fin(id, channel, message, Err(Fault::Cancelled), 0);
        }
        self.counters.messages_unmatched += 1;
        let unmatched = Unmatched {
            channel,
            peer: id,
            session,
            bits,
            message,
            bytes,
            content: Content::Rendezvous(key, help),
            acknowledge: 0,
            shown: false,
        };
        match self.matching.arrive(unmatched) {
            Some(found) => {
                self.offer(channel, found);
                self.lend_to_waiting(id);
            }
            None => {
                self.free_charge(id, session, Charge::Rendezvous);
                self.emit_fin(id, channel, message, Err(Fault::Busy), 0);
            }
        }
    }

    /// A receive gets the message that it took.
    pub(crate) fn fetch(&mut self, id: OperationId, peer: PeerId, announced: Announced) {
        let Announced { message, bytes, key, help } = announced;
        let Some(operation) = self.operations.get(id) else { return };
        let Kind::Receive(state) = &operation.kind else { return };
        let channel = state.receive.channel;
        let len = bytes.min(state.receive.into.len);
        let local = state.receive.into.part(0, len);
        let (remote, terms) = (RemoteLayout::At(0), Terms::default());
        let access = Access { action: Action::Get, peer, key, remote, local, terms };
        let access = self.operations.add_access(access, help);
        if let Some(Kind::Receive(state)) = self.operations.get_mut(id).map(|it| &mut it.kind) {
            state.stage = ReceiveStage::Fetching { message, access };
        }
        self.operations.own(id, peer);
        if let Some(session) = self.peers.session_mut(peer) {
            session.fetching.insert((channel as u8, message), id);
        }
        if len == 0 {
            self.not_fetching(peer, channel, message);
            self.emit_fin(peer, channel, message, Ok(()), 0);
            return self.receive_done(id);
        }
        self.begin_access(id);
    }

    fn not_fetching(&mut self, peer: PeerId, channel: Channel, message: u64) {
        if let Some(session) = self.peers.session_mut(peer) {
            session.fetching.remove(&(channel as u8, message));
        }
    }

    /// The get inside a receive ended.
    pub(crate) fn fetched(&mut self, id: OperationId, outcome: Result<(), Fault>) {
        let Some(operation) = self.operations.get(id) else { return };
        let Kind::Receive(state) = &operation.kind else { return };
        let ReceiveStage::Fetching { message, .. } = &state.stage else { return };
        let Some(access) = self.operations.access(operation) else { return };
        let (peer, message, bytes) = (access.access.peer, *message, access.moved);
        let channel = state.receive.channel;
        self.not_fetching(peer, channel, message);
        self.emit_fin(peer, channel, message, outcome, bytes);
        if self.peers.session(peer).is_some_and(Session::has_more_to_do) {
            // Its sender lacks no work of ours.
            self.outputs.last_joins_others();
        }
        match outcome {
            Ok(()) => self.receive_done(id),
            // The region of an announced message is closed only when its sender gives it up.
            Err(Fault::BadKey) => self.finish(id, Err(Fault::Cancelled), bytes),
            Err(fault) => self.finish(id, Err(fault), bytes),
        }
    }

    /// The receiver is done with a message.
    pub(crate) fn arrive_fin(&mut self, id: PeerId, body: FinBody) {
        let (outcome, bytes) = (status_from_wire(body.status), body.bytes.get());
        self.send_over(id, (body.channel, body.message.get()), outcome, bytes);
    }

    /// The receiver says that a send is over, which is named by channel and number.
    pub(crate) fn send_over(
        &mut self,
        id: PeerId,
        name: (u8, u64),
        outcome: Result<(), Fault>,
        bytes: u64,
    ) {
        let Some(session) = self.peers.session_mut(id) else { return };
        let Some(operation) = session.unfinished.remove(&name) else {
            // A message that we aborted meanwhile.
            return;
        };
        let Some(state) = self.operations.get(operation) else { return };
        let Kind::Send(send) = &state.kind else { return };
        let stage = send.stage;
        let bytes = bytes.min(send.send.payload.len);
        self.finish(operation, outcome, bytes);
        if let SendStage::Rendezvous { region } = stage {
            self.close_region(region);
            if outcome.is_err() {
                self.take_region_back(region, true);
            }
        }
    }

    /// Gives up an announced send: the receiver is told, the region closed.
    pub(crate) fn abort_rendezvous(&mut self, id: OperationId) {
        let Some(operation) = self.operations.get(id) else { return };
        let Kind::Send(state) = &operation.kind else { return };
        let SendStage::Rendezvous { region } = state.stage else { return };
        let (peer, channel, message) = (state.send.peer, state.send.channel, state.message);
        if let Some(session) = self.peers.session_mut(peer) {
            session.unfinished.remove(&(channel as u8, message));
        }
        let body = AbortBody { message: message.into(), channel: channel as u8, reserved: [0; 7] };
        self.emit(peer, body, None);
        self.finish(id, Err(Fault::Cancelled), 0);
        self.close_region(region);
    }

    /// An announce whose turn has not come was withdrawn: it has overtaken the announce, or that waits for earlier
    /// messages. Nobody waits for it, and no receive takes it.
    fn skip(&mut self, id: PeerId, channel: Channel, message: u64) -> bool {
        let most = self.config.rts_window as usize;
        let Some(session) = self.peers.session_mut(id) else { return false };
        let is_early = message >= session.receive_next[channel as usize];
        let Some(reliable) = session.reliable.as_mut().filter(|_| is_early) else { return false };
        if self.config.plant != Plant::SkipOmitted {
            reliable.held.withdraw(channel, message, most);
        }
        true
    }

    /// The sender gave an announced message up.
    pub(crate) fn arrive_abort(&mut self, id: PeerId, body: AbortBody) {
        let Some(channel) = Channel::from_u8(body.channel) else { return };
        let message = body.message.get();
        if let Some(found) = self.matching.find_rts(channel, id, message) {
            if let Some(unmatched) = self.matching.remove_message(found) {
                self.free_charge(id, unmatched.session, Charge::Rendezvous);
            }
            return;
        }
        if self.abort_assembly(id, channel, message) || self.skip(id, channel, message) {
            return;
        }
        let session = self.peers.session(id);
        let fetching = session.and_then(|it| it.fetching.get(&(channel as u8, message)));
        if let Some(&operation) = fetching {
            self.access_ended(operation, Err(Fault::Cancelled));
            self.take_back(operation);
        }
    }
}
