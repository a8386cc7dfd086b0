//! Receives: posted, given the message that they take, and done.

use ropewalk_base::error::Fault;
use ropewalk_base::memory::{BufferId, Slice};
use ropewalk_base::slots::SlotId;
use ropewalk_wire::frame::{FinBody, status_to_wire};

use crate::api::*;
use crate::credit::Charge;
use crate::engine::Core;
use crate::matching::{Content, Unmatched, Wanted};
use crate::operation::{Ending, Kind, ReceiveStage, ReceiveState};
use crate::rendezvous::Announced;

impl Core {
    /// Posts a receive. It may complete within this call.
    pub fn post_receive(&mut self, id: OperationId, mut receive: Receive) {
        let name = receive.source;
        let meant = name.map(|name| self.meant(name));
        receive.source = meant.map(|(peer, _)| peer);
        let barred = meant.and_then(|(_, fault)| fault);
        let post = self.matching.next_post();
        let stage = ReceiveStage::Posted { post };
        let state = ReceiveState { receive, stage, from: None, bits: 0, message_bytes: 0 };
        self.matching.begin_receive(receive.into.len);
        self.operations.insert(id, Kind::Receive(state));
        if let (Some(peer), Some(name)) = (receive.source, name)
            && barred != Some(Fault::Invalid)
        {
            self.operations.own_as(id, peer, name);
        }
        let invalid = receive.channel == Channel::Request || barred == Some(Fault::Invalid);
        if invalid || self.closing {
            let fault = if self.closing { Fault::Closed } else { Fault::Invalid };
            return self.finish(id, Err(fault), 0);
        }
        if let Some(fault) = barred {
            // A receive may still take a message that arrived before the session ended.
            if self.matching.find_message(wanted(&receive)).is_none() {
                return self.finish(id, Err(fault), 0);
            }
        }
        self.match_receive(id, wanted(&receive), post);
        if let Some(source) = receive.source {
            self.want_heard(source, id);
        }
    }

    /// Gives a receive the message that it takes, or posts it in its turn.
    pub(crate) fn match_receive(&mut self, id: OperationId, wanted: Wanted, post: u64) {
        let Some(found) = self.matching.find_message(wanted) else {
            return self.matching.post(post, id, wanted);
        };
        let Some(Kind::Receive(state)) = self.operations.get(id).map(|operation| &operation.kind)
        else {
            return;
        };
        let receive = state.receive;
        let Some(message) = self.matching.message_mut(found) else { return };
        if message.bytes > receive.into.len && receive.oversize == Oversize::Refuse {
            let (peer, bits, bytes) = (message.peer, message.bits, message.bytes);
            return self.refuse(id, peer, bits, bytes);
        }
        if let Content::Arriving { claimed_by } = &mut message.content {
            *claimed_by = Some(id);
            let (peer, bits, bytes) = (message.peer, message.bits, message.bytes);
            self.assign(id, peer, bits, bytes);
            return;
        }
        self.take_message(id, found);
    }

    /// A receive fails since the message is longer; the message stays where it is.
    #[cold]
    pub(super) fn refuse(&mut self, id: OperationId, peer: PeerId, bits: u64, bytes: u64) {
        self.assign(id, peer, bits, bytes);
        self.finish(id, Err(Fault::Oversize), 0);
    }

    /// Notes which message a receive took; where it goes.
    #[inline(always)]
    pub(crate) fn assign(
        &mut self,
        id: OperationId,
        peer: PeerId,
        bits: u64,
        bytes: u64,
    ) -> Option<Slice> {
        let Kind::Receive(state) = &mut self.operations.get_mut(id)?.kind else { return None };
        state.from = Some(peer);
        state.bits = bits;
        state.message_bytes = bytes;
        state.stage = ReceiveStage::Placing;
        Some(state.receive.into)
    }

    /// Gives an unmatched message to a receive.
    pub(crate) fn take_message(&mut self, id: OperationId, found: SlotId) {
        let Some(message) = self.matching.remove_message(found) else { return };
        let peer = message.peer;
        let into = self.assign(id, peer, message.bits, message.bytes);
        let taken = into.map_or(0, |into| message.bytes.min(into.len));
        match message.content {
            Content::Empty | Content::Arriving { .. } => self.receive_done(id),
            Content::Staged(buffer) => {
                self.copy_out(id, buffer, message.bytes);
            }
            Content::Rendezvous(key, help) => {
                self.free_charge(peer, message.session, Charge::Rendezvous);
                let Unmatched { message, bytes, .. } = message;
                self.fetch(id, peer, Announced { message, bytes, key, help });
                return;
            }
        }
        let channel = message.channel;
        let charge = Charge::Eager { channel, payload_bytes: message.bytes };
        self.free_charge(peer, message.session, charge);
        self.acknowledge_waited(&message, taken);
    }

    /// Tells the sender of a message that waited that it was taken, and how many bytes of it. A message may outlive its
    /// session: its sender was told so, and its number may be another message's by now.
    pub(crate) fn acknowledge_waited(&mut self, message: &Unmatched, taken: u64) {
        let Unmatched { channel, peer, session, acknowledge, .. } = *message;
        if self.peers.has_session(peer, session) {
            let number = message.message;
            self.acknowledge(peer, channel, number, acknowledge, Level::Matched, taken);
        }
    }

    fn copy_out(&mut self, id: OperationId, buffer: BufferId, bytes: u64) {
        let Some(operation) = self.operations.get(id) else { return };
        let Kind::Receive(state) = &operation.kind else { return };
        let into = state.receive.into;
        let len = bytes.min(into.len);
        let from = Slice { buffer, offset: 0, len };
        self.outputs.push(Output::Copy { from, to: into.part(0, len) });
        self.outputs.push(Output::Release(buffer));
        self.receive_done(id);
    }

    /// All bytes of a receive's message are in its memory.
    #[inline(always)]
    pub(crate) fn receive_done(&mut self, id: OperationId) {
        let Some(operation) = self.operations.get_mut(id) else { return };
        let Kind::Receive(state) = &operation.kind else { return };
        let room = state.receive.into.len;
        let bytes = state.message_bytes.min(room);
        let outcome = if state.message_bytes > room { Err(Fault::Truncated) } else { Ok(()) };
        self.counters.messages_received += 1;
        if operation.retained > 0 || operation.ending.is_some() {
            operation.ending.get_or_insert(Ending { outcome, bytes });
            return self.try_complete(id);
        }
        let (peer, bits, message_bytes) = (state.from, state.bits, state.message_bytes);
        self.matching.end_receive(room);
        *self.outputs.push_completion() =
            Completion { operation: id, outcome, bytes, message_bytes, peer, bits };
        self.operations.forget(id);
    }

    /// Tells the sender what it waits for, where that is `reached`, and how many bytes were taken.
    #[inline]
    pub(crate) fn acknowledge(
        &mut self,
        peer: PeerId,
        channel: Channel,
        message: u64,
        asked: u8,
        reached: Level,
        bytes: u64,
    ) {
        let is_it = match reached {
            Level::Matched => Level::waits_for_match(asked),
            reached => asked == reached as u8 && asked != Level::Buffered as u8,
        };
        if is_it {
            self.emit_fin(peer, channel, message, Ok(()), bytes);
        }
    }

    pub(crate) fn emit_fin(
        &mut self,
        peer: PeerId,
        channel: Channel,
        message: u64,
        outcome: Result<(), Fault>,
        bytes: u64,
    ) {
        let body = FinBody {
            message: message.into(),
            channel: channel as u8,
            status: status_to_wire(outcome),
            reserved: [0; 6],
            bytes: bytes.into(),
        };
        self.emit_control(peer, body);
    }
}

/// The match criteria of a receive.
pub(crate) fn wanted(receive: &Receive) -> Wanted {
    Wanted {
        channel: receive.channel,
        source: receive.source,
        bits: receive.bits,
        mask: receive.mask,
    }
}
