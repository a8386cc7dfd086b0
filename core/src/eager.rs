//! Small messages: sent at once where credit allows, matched at arrival.

use ropewalk_base::error::Fault;
use ropewalk_base::limits::REQUEST_BYTES_MAX;
use ropewalk_base::memory::{BufferId, Slice};
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{LinkId, Placement, Urgency};
use ropewalk_wire::frame::{Body, EagerBody, Envelope, FinishBody, Prefix, status_to_wire};

use crate::api::*;
use crate::credit::Charge;
use crate::engine::{Core, LandingKind, Order, Payload};
use crate::matching::{Content, Unmatched, Wanted};
use crate::operation::{Kind, ReceiveStage, ReceiveState, SendStage, SendState};
use crate::path::{FRAMES_PENDING_MAX, PeerStage};

impl Core {
    /// Posts a message. It may complete within this call.
    pub fn post_send(&mut self, id: OperationId, mut send: Send) {
        send.peer = self.resolve(send.peer);
        let state = SendState { send, stage: SendStage::Waiting, message: 0 };
        self.operations.insert(id, Kind::Send(state));
        let too_long =
            send.channel == Channel::Request && send.payload.len > u64::from(REQUEST_BYTES_MAX);
        if too_long || self.closing {
            let fault = if too_long { Fault::Oversize } else { Fault::Closed };
            return self.finish(id, Err(fault), 0);
        }
        let Some(peer) = self.peers.get(send.peer.0) else {
            return self.finish(id, Err(Fault::Invalid), 0);
        };
        let first = peer.waiting[send.channel as usize].first.is_none();
        if first && peer.link().is_some() && self.start_send(id) {
            return;
        }
        self.enqueue_send(id, send);
        self.want_session(send.peer);
    }

    /// Starts a waiting send where session, credit and rail allow it.
    pub(crate) fn start_send(&mut self, id: OperationId) -> bool {
        let Some(operation) = self.operations.get_mut(id) else { return true };
        let Kind::Send(state) = &mut operation.kind else { return true };
        let send = state.send;
        let Some(peer) = self.peers.get_mut(send.peer.0) else { return true };
        if peer.frames_pending >= FRAMES_PENDING_MAX {
            return false;
        }
        // A request is never announced: nobody posts for it.
        let small = send.channel == Channel::Request
            || send.payload.len <= u64::from(self.config.eager_bytes_max);
        let message = peer.send_next[send.channel as usize];
        if small && peer.granted.take_eager(send.channel, send.payload.len) {
            peer.send_next[send.channel as usize] += 1;
            state.stage = SendStage::Eager;
            state.message = message;
            operation.held += 1;
            if send.level != Level::Buffered {
                peer.unfinished.insert((send.channel as u8, message), id);
            }
            self.counters.messages_eager_sent += 1;
            let body = Body::Eager(EagerBody {
                bits: send.bits.into(),
                message: message.into(),
                channel: send.channel as u8,
                acknowledge: send.level as u8,
                reserved: [0; 6],
            });
            let order = Order::Eager { operation: id, peer: send.peer };
            let payload = Payload { slice: send.payload, urgency: Urgency::Urgent, order };
            self.emit(send.peer, Envelope::default(), body, Some(payload));
            return true;
        }
        if send.channel == Channel::Request || !peer.granted.take_announce() {
            return false;
        }
        peer.send_next[send.channel as usize] += 1;
        state.message = message;
        self.announce(id, send, message);
        true
    }

    /// The rail let go of an eager frame.
    pub(crate) fn eager_released(&mut self, id: OperationId, outcome: Result<(), Fault>) {
        let Some(operation) = self.operations.get_mut(id) else { return };
        if let Kind::Send(state) = &mut operation.kind {
            let bytes = state.send.payload.len;
            if let Err(fault) = outcome {
                self.finish(id, Err(fault), 0);
            } else if state.send.level == Level::Buffered {
                self.finish(id, Ok(()), bytes);
            } else if state.stage == SendStage::Eager {
                state.stage = SendStage::Acknowledge;
            }
        }
        self.let_go(id);
    }

    /// Posts a receive. It may complete within this call.
    pub fn post_receive(&mut self, id: OperationId, mut receive: Receive) {
        receive.source = receive.source.map(|peer| self.resolve(peer));
        let state = ReceiveState {
            receive,
            stage: ReceiveStage::Posted,
            from: None,
            bits: 0,
            message_bytes: 0,
        };
        self.operations.insert(id, Kind::Receive(state));
        if receive.channel == Channel::Request || self.closing {
            let fault = if self.closing { Fault::Closed } else { Fault::Invalid };
            return self.finish(id, Err(fault), 0);
        }
        self.match_receive(id, wanted(&receive), None);
    }

    /// Gives a receive the message that it takes, or posts it; with the turn that it had already.
    pub(crate) fn match_receive(&mut self, id: OperationId, wanted: Wanted, post: Option<u64>) {
        let Some(found) = self.matching.find_message(wanted) else {
            return match post {
                Some(post) => self.matching.post_as(post, id, wanted),
                None => self.matching.post(id, wanted),
            };
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
            self.assign(id, peer, bits, bytes, ReceiveStage::Placing);
            return;
        }
        self.take_message(id, found);
    }

    /// A receive fails since the message is longer; the message stays where it is.
    fn refuse(&mut self, id: OperationId, peer: PeerId, bits: u64, bytes: u64) {
        self.assign(id, peer, bits, bytes, ReceiveStage::Placing);
        self.finish(id, Err(Fault::Oversize), 0);
    }

    fn assign(&mut self, id: OperationId, peer: PeerId, bits: u64, bytes: u64, next: ReceiveStage) {
        if let Some(operation) = self.operations.get_mut(id)
            && let Kind::Receive(state) = &mut operation.kind
        {
            state.from = Some(peer);
            state.bits = bits;
            state.message_bytes = bytes;
            state.stage = next;
        }
    }

    /// Gives an unmatched message to a receive.
    pub(crate) fn take_message(&mut self, id: OperationId, found: SlotId) {
        let Some(message) = self.matching.remove_message(found) else { return };
        let peer = message.peer;
        self.assign(id, peer, message.bits, message.bytes, ReceiveStage::Placing);
        match message.content {
            Content::Empty | Content::Arriving { .. } => self.receive_done(id),
            Content::Staged(buffer) => {
                self.copy_out(id, buffer, message.bytes);
            }
            Content::Announced(key) => {
                self.free_charge(peer, message.session, Charge::Announce);
                self.fetch(id, peer, message.message, message.bytes, key);
                return;
            }
        }
        let channel = message.channel;
        let charge = Charge::Eager { channel, payload_bytes: message.bytes };
        self.free_charge(peer, message.session, charge);
        self.acknowledge(peer, channel, message.message, message.acknowledge, Level::Matched);
    }

    fn copy_out(&mut self, id: OperationId, buffer: BufferId, bytes: u64) {
        let Some(operation) = self.operations.get(id) else { return };
        let Kind::Receive(state) = &operation.kind else { return };
        let into = state.receive.into;
        let len = bytes.min(into.len);
        let from = Slice { buffer, offset: 0, len };
        self.outputs.push_back(Output::Copy { from, to: into.part(0, len) });
        self.outputs.push_back(Output::Release(buffer));
        self.receive_done(id);
    }

    /// All bytes of a receive's message are in its memory.
    pub(crate) fn receive_done(&mut self, id: OperationId) {
        let Some(operation) = self.operations.get(id) else { return };
        let Kind::Receive(state) = &operation.kind else { return };
        let bytes = state.message_bytes.min(state.receive.into.len);
        let cut = state.message_bytes > state.receive.into.len;
        self.counters.messages_received += 1;
        self.finish(id, if cut { Err(Fault::Truncated) } else { Ok(()) }, bytes);
    }

    /// Tells the sender what it waits for, where that is `reached`.
    fn acknowledge(
        &mut self,
        peer: PeerId,
        channel: Channel,
        message: u64,
        asked: u8,
        reached: Level,
    ) {
        if asked == reached as u8 && asked != Level::Buffered as u8 {
            self.emit_finish(peer, channel, message, Ok(()), 0);
        }
    }

    pub(crate) fn emit_finish(
        &mut self,
        peer: PeerId,
        channel: Channel,
        message: u64,
        outcome: Result<(), Fault>,
        bytes: u64,
    ) {
        let body = Body::Finish(FinishBody {
            message: message.into(),
            channel: channel as u8,
            status: status_to_wire(outcome),
            reserved: [0; 6],
            bytes: bytes.into(),
        });
        self.emit_control(peer, body);
    }

    /// A small message arrives.
    pub(crate) fn arrive_eager(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        body: EagerBody,
    ) -> Placement {
        let Some(channel) = Channel::from_u8(body.channel) else {
            return self.violation("a message of an unknown channel");
        };
        let bytes = u64::from(prefix.payload_bytes.get());
        if bytes > u64::from(ropewalk_base::limits::EAGER_BYTES_MAX) {
            return self.violation("an eager message over the limit");
        }
        if !self.charge(id, Charge::Eager { channel, payload_bytes: bytes }) {
            return self.violation("the peer sent more than its credit");
        }
        match self.next_message(id, channel, body.message.get()) {
            NextMessage::Now => {}
            NextMessage::Early => {
                let placement = self.hold_eager(link, id, prefix, body, channel);
                self.release_held(id, channel);
                return placement;
            }
            NextMessage::Wrong => {
                let session = self.session_of(id);
                self.free_charge(id, session, Charge::Eager { channel, payload_bytes: bytes });
                return self.violation("a message out of order");
            }
        }
        let placement = self.match_eager(link, id, prefix, &body, channel);
        self.release_held(id, channel);
        placement
    }

    fn match_eager(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        body: &EagerBody,
        channel: Channel,
    ) -> Placement {
        let bytes = u64::from(prefix.payload_bytes.get());
        let (bits, message) = (body.bits.get(), body.message.get());
        let asked = body.acknowledge;
        if channel == Channel::Request {
            // A request is matched by being here.
            let reached = if asked == Level::Buffered as u8 { 0 } else { asked };
            if reached != 0 {
                self.emit_finish(id, channel, message, Ok(()), 0);
            }
            if bytes == 0 {
                let session = self.session_of(id);
                self.request_landed(Some(id), session, bits, 0, Slice::NONE);
                return Placement::Drop;
            }
            let kind = LandingKind::Request { bits, bytes: bytes as u32 };
            return self.land_into(link, Some(id), prefix, Slice::NONE, kind);
        }
        self.acknowledge(id, channel, message, asked, Level::Delivered);
        if let Some(operation) = self.accepting(channel, id, bits, bytes) {
            let session = self.session_of(id);
            self.free_charge(id, session, Charge::Eager { channel, payload_bytes: bytes });
            self.acknowledge(id, channel, message, asked, Level::Matched);
            self.assign(operation, id, bits, bytes, ReceiveStage::Placing);
            let into = match self.operations.get(operation).map(|operation| &operation.kind) {
                Some(Kind::Receive(state)) => state.receive.into,
                _ => Slice::NONE,
            };
            if bytes == 0 || into.len == 0 {
                self.receive_done(operation);
                return Placement::Drop;
            }
            self.hold(operation);
            let slice = into.part(0, bytes.min(into.len));
            return self.land_into(link, Some(id), prefix, slice, LandingKind::Eager { operation });
        }
        self.counters.messages_unmatched += 1;
        self.counters.bytes_unmatched += bytes;
        let content =
            if bytes == 0 { Content::Empty } else { Content::Arriving { claimed_by: None } };
        let session = self.session_of(id);
        let unmatched = Unmatched {
            channel,
            peer: id,
            session,
            bits,
            message,
            bytes,
            content,
            acknowledge: asked,
            arrival: 0,
        };
        let Some(slot) = self.matching.arrive(unmatched) else {
            self.free_charge(id, session, Charge::Eager { channel, payload_bytes: bytes });
            return self.violation("more unmatched messages than the endpoint holds");
        };
        if bytes == 0 {
            return Placement::Drop;
        }
        let kind = LandingKind::Unmatched { message: slot };
        self.land_into(link, Some(id), prefix, Slice::NONE, kind)
    }

    /// The receive that takes a message; receives that refuse its length fail on the way.
    pub(crate) fn accepting(
        &mut self,
        channel: Channel,
        peer: PeerId,
        bits: u64,
        bytes: u64,
    ) -> Option<OperationId> {
        loop {
            let id = self.matching.take_receive(channel, peer, bits)?;
            let fits = match self.operations.get(id).map(|operation| &operation.kind) {
                Some(Kind::Receive(state)) => {
                    bytes <= state.receive.into.len || state.receive.oversize == Oversize::Truncate
                }
                _ => unreachable!("a posted receive is an operation"),
            };
            if fits {
                return Some(id);
            }
            self.refuse(id, peer, bits, bytes);
        }
    }

    pub(crate) fn eager_landed(&mut self, id: OperationId) {
        self.receive_done(id);
        self.let_go(id);
    }

    pub(crate) fn unmatched_landed(&mut self, slot: SlotId, slice: Slice) {
        let Some(message) = self.matching.message_mut(slot) else {
            self.outputs.push_back(Output::Release(slice.buffer));
            return;
        };
        let claimed = match message.content {
            Content::Arriving { claimed_by } => claimed_by,
            _ => None,
        };
        message.content = Content::Staged(slice.buffer);
        if let Some(operation) = claimed {
            if self.operations.get(operation).is_some_and(|operation| !operation.cancelled) {
                self.take_message(operation, slot);
            } else {
                self.rematch(slot);
            }
        }
    }

    /// The receive that had claimed a message is gone: another posted one may take it.
    pub(crate) fn rematch(&mut self, slot: SlotId) {
        let Some(message) = self.matching.message_mut(slot) else { return };
        let (channel, peer, bits, bytes) =
            (message.channel, message.peer, message.bits, message.bytes);
        if let Some(operation) = self.accepting(channel, peer, bits, bytes) {
            self.take_message(operation, slot);
        }
    }

    pub(crate) fn request_landed(
        &mut self,
        peer: Option<PeerId>,
        session: u32,
        bits: u64,
        bytes: u32,
        slice: Slice,
    ) {
        let Some(peer) = peer else { return };
        self.counters.messages_received += 1;
        let payload = (bytes > 0).then_some((slice.buffer, bytes));
        self.outputs.push_back(Output::Request { peer, session, bits, payload });
    }

    /// The driver's user took a request of this session: its credit goes back.
    pub fn request_taken(&mut self, peer: PeerId, session: u32, bytes: u32) {
        let charge = Charge::Eager { channel: Channel::Request, payload_bytes: u64::from(bytes) };
        let peer = self.resolve(peer);
        self.free_charge(peer, session, charge);
    }

    fn enqueue_send(&mut self, id: OperationId, send: Send) {
        if let Some(peer) = self.peers.get_mut(send.peer.0) {
            let queue = &mut peer.waiting[send.channel as usize];
            let last = queue.last.replace(id);
            if queue.first.is_none() {
                queue.first = Some(id);
            }
            if let Some(last) = last.and_then(|last| self.operations.get_mut(last)) {
                last.next = Some(id);
            }
        }
    }

    /// Whether a message may be matched now.
    pub(crate) fn next_message(
        &mut self,
        id: PeerId,
        channel: Channel,
        message: u64,
    ) -> NextMessage {
        let Some(peer) = self.peers.get_mut(id.0) else { return NextMessage::Wrong };
        let next = &mut peer.receive_next[channel as usize];
        let Some(reliable) = &peer.reliable else {
            return match message == *next {
                true => {
                    *next += 1;
                    NextMessage::Now
                }
                false => NextMessage::Wrong,
            };
        };
        // A request is handed over when its last byte is here, which may be after those of later
        // ones: all of them wait for their turn.
        if message == *next && channel != Channel::Request {
            *next += 1;
            NextMessage::Now
        } else if message >= *next && !reliable.holds(channel, message) {
            NextMessage::Early
        } else {
            NextMessage::Wrong
        }
    }

    /// Moves on what waits for this peer: sends, accesses, data frames.
    pub(crate) fn pump(&mut self, id: PeerId) {
        for channel in 0..CHANNELS {
            while let Some(peer) = self.peers.get(id.0) {
                let Some(first) = peer.waiting[channel].first else { break };
                if !matches!(peer.stage, PeerStage::Up { .. }) {
                    break;
                }
                // Read before: an operation that starts may end within the call.
                let next = self.operations.get(first).and_then(|operation| operation.next);
                if !self.start_send(first) {
                    break;
                }
                self.pop_waiting(id, channel, next);
            }
        }
        self.pump_accesses(id);
        self.pump_streams(id);
    }

    fn pop_waiting(&mut self, id: PeerId, channel: usize, next: Option<OperationId>) {
        if let Some(peer) = self.peers.get_mut(id.0) {
            let queue = &mut peer.waiting[channel];
            queue.first = next;
            if next.is_none() {
                queue.last = None;
            }
        }
    }

    pub(crate) fn session_of(&self, id: PeerId) -> u32 {
        self.peers.get(id.0).map_or(0, |peer| peer.session)
    }
}

/// What `next_message` says about a message's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextMessage {
    Now,
    Early,
    Wrong,
}

/// What a receive accepts.
pub(crate) fn wanted(receive: &Receive) -> Wanted {
    Wanted {
        channel: receive.channel,
        source: receive.source,
        bits: receive.bits,
        mask: receive.mask,
    }
}
