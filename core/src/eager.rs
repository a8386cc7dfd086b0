//! Small messages: sent at once where credit allows, matched at arrival.

use ropewalk_base::error::Fault;
use ropewalk_base::limits::{
    EAGER_BYTES, EAGER_BYTES_LONG, EAGER_BYTES_MAX, FRAME_PAYLOAD_BYTES_MAX, REQUEST_BYTES_MAX,
};
use ropewalk_base::memory::{BufferId, Slice};
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{Capabilities, LinkId, Placement, Token, Urgency};
use ropewalk_wire::frame::{EagerBody, FLAG_PAYLOAD_CHECKSUM, FinishBody, Prefix, status_to_wire};

use crate::api::*;
use crate::credit::Charge;
use crate::engine::{Core, LandingKind, OF_RECEIVE, Order, Payload};
use crate::foreign::unspeakable;
use crate::fragments::Target;
use crate::matching::{Content, Unmatched, Wanted};
use crate::operation::{Ending, Kind, ReceiveStage, ReceiveState, SendStage, SendState};
use crate::path::{FRAMES_PENDING_MAX, Peer, PeerStage};
use crate::rendezvous::Announced;

impl Config {
    /// Up to how many bytes messages leave at once over a rail; without one, what no rail wants less than.
    #[inline]
    pub(crate) fn eager_bytes(&self, rail: Option<&Capabilities>) -> u64 {
        let wanted = || rail.map_or(EAGER_BYTES, |rail| rail.eager_bytes).max(self.eager_bytes_min);
        u64::from(self.eager_bytes_max.unwrap_or_else(wanted))
    }
}

/// Whether messages go in fragments over such a rail.
fn takes_fragments(rail: &Capabilities) -> bool {
    rail.eager_bytes > rail.frame_payload_bytes_max
}

impl Core {
    /// The longest message that a peer may count on sending at once, over whatever rail: its first window has room
    /// for it. Longer ones are sent in fragments as far as its window has grown.
    pub(crate) fn eager_bytes_sure(&self) -> u32 {
        let Config { eager_bytes_max, eager_bytes_min, .. } = self.config;
        let sure = |rail: &Capabilities| match takes_fragments(rail) {
            true => rail.eager_bytes.min(EAGER_BYTES),
            false => rail.eager_bytes,
        };
        let wanted = || self.rails.iter().map(sure).max().unwrap_or(EAGER_BYTES);
        eager_bytes_max.unwrap_or_else(|| wanted().max(eager_bytes_min)).min(EAGER_BYTES_LONG)
    }

    /// The longest message that this endpoint takes at once over a link; longer ones are to be announced.
    pub(crate) fn eager_bytes_over(&self, link: LinkId, spans: bool) -> u64 {
        let rail = self.rails.get(usize::from(link.rail));
        let bytes = self.config.eager_bytes(rail);
        match rail {
            Some(rail) if takes_fragments(rail) && !spans => bytes,
            // A message in one frame, of those that are kept until they are acknowledged.
            Some(rail) => bytes.min(rail.frame_payload_bytes_max.min(EAGER_BYTES_LONG).into()),
            None => bytes.min(EAGER_BYTES_LONG.into()),
        }
    }

    /// A session begins, or goes on, over this link: how long messages and frames over it may be.
    pub(crate) fn begin_lengths(&mut self, id: PeerId, link: LinkId) {
        let hello = self.links.get(link).and_then(|state| state.hello);
        let accepted = hello.map(|hello| u64::from(hello.eager_max.get()) * 1024);
        let spans = self.peers.get(id.0).is_some_and(|peer| peer.reliable.is_some());
        let accepted = match accepted {
            Some(0) => u64::from(EAGER_BYTES_LONG),
            Some(bytes) => bytes,
            None => u64::MAX,
        };
        let eager_bytes = self.eager_bytes_over(link, spans).min(accepted);
        let rail = self.rails.get(usize::from(link.rail));
        let frame = rail.map_or(FRAME_PAYLOAD_BYTES_MAX, |rail| rail.frame_payload_bytes_max);
        let frame_bytes = u64::from(frame.min(FRAME_PAYLOAD_BYTES_MAX));
        if let Some(peer) = self.peers.get_mut(id.0) {
            peer.granted.limit(eager_bytes, frame_bytes);
        }
    }

    /// Ends a post that the driver itself refuses.
    pub fn refuse_post(&mut self, id: OperationId, fault: Fault) {
        let (outcome, peer) = (Err(fault), None);
        *self.outputs.push_completion() =
            Completion { operation: id, outcome, bytes: 0, message_bytes: 0, peer, bits: 0 };
    }

    /// Posts a message. It may complete within this call.
    pub fn post_send(&mut self, id: OperationId, mut send: Send) {
        let name = send.peer;
        let (peer, barred) = self.meant(name);
        send.peer = peer;
        let state = SendState { send, stage: SendStage::Waiting { turn: 0 }, message: 0 };
        self.operations.insert(id, Kind::Send(state));
        if barred != Some(Fault::Invalid) {
            self.operations.own_as(id, send.peer, name);
        }
        let too_long =
            send.channel == Channel::Request && send.payload.len > u64::from(REQUEST_BYTES_MAX);
        if too_long || self.closing {
            let fault = if too_long { Fault::Oversize } else { Fault::Closed };
            return self.finish(id, Err(fault), 0);
        }
        if let Some(fault) = barred {
            return self.finish(id, Err(fault), 0);
        }
        let Some(peer) = self.peers.get(send.peer.0) else { return };
        let first = peer.waiting[send.channel as usize].is_empty();
        if first && peer.link().is_some() && self.start_send(id) {
            return;
        }
        self.enqueue_send(id, send);
        self.want_session(send.peer);
    }

    /// Starts a waiting send where session, credit and rail allow it.
    #[inline(always)]
    pub(crate) fn start_send(&mut self, id: OperationId) -> bool {
        let Some(operation) = self.operations.get_mut(id) else { return true };
        let Kind::Send(state) = &mut operation.kind else { return true };
        let send = state.send;
        let Some(peer) = self.peers.get_mut(send.peer.0) else { return true };
        if peer.foreign
            && let Some(fault) = unspeakable(&send)
        {
            self.finish(id, Err(fault), 0);
            return true;
        }
        if peer.frames_pending >= FRAMES_PENDING_MAX {
            return false;
        }
        // A request is never announced: nobody posts for it.
        // A foreign peer tells the match of no message but an announced one.
        let tells = !peer.foreign || !Level::waits_for_match(send.level as u8);
        let small = send.channel == Channel::Request
            || (tells && send.payload.len <= peer.granted.eager_bytes);
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
            let first = send.payload.len.min(peer.granted.frame_bytes);
            let mut body = eager_body(&send, message);
            body.more_bytes = ((send.payload.len - first) as u32).into();
            let order = Order::Eager { operation: id };
            let slice = send.payload.part(0, first);
            let payload = Payload { slice, urgency: Urgency::Urgent, order };
            self.emit(send.peer, body, Some(payload));
            if first < send.payload.len {
                self.send_rest(id, &send, message, first);
            }
            return true;
        }
        let waits = small && self.awaits_credit(send.peer, send.payload.len);
        if send.channel == Channel::Request || waits {
            return false;
        }
        self.start_announced(id, send, message)
    }

    fn start_announced(&mut self, id: OperationId, send: Send, message: u64) -> bool {
        let Some(peer) = self.peers.get_mut(send.peer.0) else { return true };
        if !peer.granted.take_announce() {
            return false;
        }
        peer.send_next[send.channel as usize] += 1;
        if let Some(Kind::Send(state)) = self.operations.get_mut(id).map(|it| &mut it.kind) {
            state.message = message;
        }
        self.announce(id, send, message);
        true
    }

    /// The rail let go of an eager frame.
    #[inline(always)]
    pub(crate) fn eager_released(&mut self, id: OperationId, outcome: Result<(), Fault>) {
        let Some(operation) = self.operations.get_mut(id) else { return };
        let Kind::Send(state) = &mut operation.kind else { return };
        let peer = state.send.peer;
        let bytes = state.send.payload.len;
        let in_fragments = operation.held > 1;
        let acknowledged = outcome.is_ok() && state.send.level != Level::Buffered;
        state.first_left(acknowledged, in_fragments);
        let goes_on = acknowledged || (outcome.is_ok() && in_fragments);
        if !goes_on && operation.ending.is_none() {
            let bytes = if outcome.is_ok() { bytes } else { 0 };
            operation.ending = Some(Ending { outcome, bytes });
        }
        if in_fragments && outcome.is_err() {
            self.give_rest_up(peer, id);
        }
        self.let_go(id);
        self.release_frame(peer, false);
        self.pump(peer);
    }

    /// Posts a receive. It may complete within this call.
    pub fn post_receive(&mut self, id: OperationId, mut receive: Receive) {
        let name = receive.source;
        let meant = name.map(|name| self.meant(name));
        receive.source = meant.map(|(peer, _)| peer);
        let barred = meant.and_then(|(_, fault)| fault);
        let post = self.matching.next_post();
        let stage = ReceiveStage::Posted { post };
        let state = ReceiveState { receive, stage, from: None, bits: 0, message_bytes: 0 };
        self.awaited += self.awaits(receive.into.len);
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
            // What arrived before the end can still be had.
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
    fn refuse(&mut self, id: OperationId, peer: PeerId, bits: u64, bytes: u64) {
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
            Content::Announced(key, help) => {
                self.free_charge(peer, message.session, Charge::Announce);
                let Unmatched { message, bytes, .. } = message;
                self.fetch(id, peer, Announced { message, bytes, key, help });
                return;
            }
        }
        let channel = message.channel;
        let charge = Charge::Eager { channel, payload_bytes: message.bytes };
        self.free_charge(peer, message.session, charge);
        let (number, asked) = (message.message, message.acknowledge);
        self.acknowledge(peer, channel, number, asked, Level::Matched, taken);
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

    /// Whether an announced message may end a receive with so much room, as a number.
    #[inline]
    pub(crate) fn awaits(&self, room: u64) -> u32 {
        u32::from(room > self.config.eager_bytes(None))
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
        if operation.held > 0 || operation.ending.is_some() {
            operation.ending.get_or_insert(Ending { outcome, bytes });
            return self.try_complete(id);
        }
        let (peer, bits, message_bytes) = (state.from, state.bits, state.message_bytes);
        self.awaited -= self.awaits(room);
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
            self.emit_finish(peer, channel, message, Ok(()), bytes);
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
        let body = FinishBody {
            message: message.into(),
            channel: channel as u8,
            status: status_to_wire(outcome),
            reserved: [0; 6],
            bytes: bytes.into(),
        };
        self.emit_control(peer, body);
    }

    /// A small message arrives.
    #[inline(always)]
    pub(crate) fn arrive_eager(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        body: &EagerBody,
    ) -> Placement {
        let Some(channel) = Channel::from_u8(body.channel) else {
            return self.violation("a message of an unknown channel");
        };
        let payload_bytes = message_bytes(prefix, body);
        if payload_bytes > u64::from(EAGER_BYTES_MAX) {
            return self.violation("an eager message over the limit");
        }
        let Some(peer) = self.peers.get_mut(id.0) else { return Placement::Drop };
        if body.more_bytes.get() > 0
            && (channel == Channel::Request
                || peer.reliable.is_some()
                || prefix.payload_bytes.get() == 0)
        {
            return self.violation("a message in fragments where there are none");
        }
        let charge = Charge::Eager { channel, payload_bytes };
        if !peer.received.arrive(charge) {
            return self.violation("the peer sent more than its credit");
        }
        let next = peer.next_message(channel, body.message.get());
        let resumes = peer.reliable.is_some();
        let placement = match next {
            NextMessage::Now if channel == Channel::Request => {
                self.place_request(link, id, prefix, body)
            }
            NextMessage::Now => self.match_eager(link, id, prefix, body, channel),
            NextMessage::Early => self.hold_eager(link, id, prefix, body, channel),
            NextMessage::Wrong => {
                self.free_charge(id, prefix.session.get(), charge);
                return self.violation("a message out of order");
            }
        };
        if resumes {
            self.release_held(id, channel);
        }
        placement
    }

    /// A request is matched by being here.
    fn place_request(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        body: &EagerBody,
    ) -> Placement {
        let (bits, bytes) = (body.bits.get(), prefix.payload_bytes.get());
        if body.acknowledge != Level::Buffered as u8 {
            let message = body.message.get();
            self.emit_finish(id, Channel::Request, message, Ok(()), bytes.into());
        }
        if bytes == 0 {
            self.request_landed(Some(id), prefix.session.get(), bits, 0, Slice::NONE);
            return Placement::Drop;
        }
        let kind = LandingKind::Request { bits, bytes };
        self.land_into(link, Some(id), prefix, Slice::NONE, kind)
    }

    #[inline(always)]
    pub(crate) fn match_eager(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        body: &EagerBody,
        channel: Channel,
    ) -> Placement {
        let bytes = message_bytes(prefix, body);
        let (bits, message) = (body.bits.get(), body.message.get());
        let asked = body.acknowledge;
        let in_fragments = body.more_bytes.get() > 0;
        if !in_fragments {
            self.acknowledge(id, channel, message, asked, Level::Delivered, bytes);
        }
        let Some(operation) = self.accepting(channel, id, bits, bytes) else {
            return self.keep_unmatched(link, id, prefix, body, channel);
        };
        let charge = Charge::Eager { channel, payload_bytes: bytes };
        self.free_charge(id, prefix.session.get(), charge);
        let Some(into) = self.assign(operation, id, bits, bytes) else { return Placement::Drop };
        self.acknowledge(id, channel, message, asked, Level::Matched, bytes.min(into.len));
        if bytes == 0 || (into.len == 0 && !in_fragments) {
            self.receive_done(operation);
            return Placement::Drop;
        }
        let slice = into.part(0, bytes.min(into.len));
        if in_fragments {
            return self.assemble(link, id, prefix, body, Target::Receive(operation), slice);
        }
        if self.whole && prefix.span.get() == 0 && prefix.flags.get() & FLAG_PAYLOAD_CHECKSUM == 0 {
            return Placement::Into { slice, token: Token(operation.0.to_u64() | OF_RECEIVE) };
        }
        self.hold(operation);
        self.land_into(link, Some(id), prefix, slice, LandingKind::Eager { operation })
    }

    /// A message that came before its receive: it is staged.
    fn keep_unmatched(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        body: &EagerBody,
        channel: Channel,
    ) -> Placement {
        let bytes = message_bytes(prefix, body);
        if self.only_awaited[channel as usize] {
            let charge = Charge::Eager { channel, payload_bytes: bytes };
            self.free_charge(id, prefix.session.get(), charge);
            return self.drop_unmatched(id, channel, body);
        }
        self.counters.messages_unmatched += 1;
        self.counters.bytes_unmatched += bytes;
        let content =
            if bytes == 0 { Content::Empty } else { Content::Arriving { claimed_by: None } };
        let session = prefix.session.get();
        let unmatched = Unmatched {
            channel,
            peer: id,
            session,
            bits: body.bits.get(),
            message: body.message.get(),
            bytes,
            content,
            acknowledge: body.acknowledge,
            shown: false,
        };
        let Some(slot) = self.matching.arrive(unmatched) else {
            self.free_charge(id, session, Charge::Eager { channel, payload_bytes: bytes });
            return self.violation("more unmatched messages than the endpoint holds");
        };
        self.offer(channel, slot);
        self.lend_to_waiting(id);
        self.note_unmatched(id, bytes);
        if bytes == 0 {
            return Placement::Drop;
        }
        if body.more_bytes.get() > 0 {
            return self.assemble(link, id, prefix, body, Target::Unmatched(slot), Slice::NONE);
        }
        let kind = LandingKind::Unmatched { message: slot };
        self.land_into(link, Some(id), prefix, Slice::NONE, kind)
    }

    /// Nobody waits for a message, and nobody will.
    pub(crate) fn drop_unmatched(
        &mut self,
        id: PeerId,
        channel: Channel,
        body: &EagerBody,
    ) -> Placement {
        self.counters.messages_dropped += 1;
        if Level::waits_for_match(body.acknowledge) {
            self.emit_finish(id, channel, body.message.get(), Err(Fault::Cancelled), 0);
        }
        Placement::Drop
    }

    /// The receive that takes a message; receives that refuse its length fail on the way.
    #[inline(always)]
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

    #[inline(always)]
    pub(crate) fn eager_landed(&mut self, id: OperationId) {
        if let Some(operation) = self.operations.get_mut(id) {
            assert!(operation.held > 0, "a rail lets go of what it held");
            operation.held -= 1;
        }
        self.receive_done(id);
    }

    pub(crate) fn unmatched_landed(&mut self, slot: SlotId, slice: Slice) {
        let Some(message) = self.matching.message_mut(slot) else {
            self.outputs.push(Output::Release(slice.buffer));
            return;
        };
        let claimed = match message.content {
            Content::Arriving { claimed_by } => claimed_by,
            _ => None,
        };
        message.content = Content::Staged(slice.buffer);
        self.matching.landed(slot);
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
        self.outputs.push(Output::Request { peer, session, bits, payload });
    }

    /// The driver's user took a request of this session: its credit goes back.
    pub fn request_taken(&mut self, peer: PeerId, session: u32, bytes: u32) {
        let charge = Charge::Eager { channel: Channel::Request, payload_bytes: u64::from(bytes) };
        let peer = self.resolve(peer);
        self.free_charge(peer, session, charge);
    }

    fn enqueue_send(&mut self, id: OperationId, send: Send) {
        if let Some(peer) = self.peers.get_mut(send.peer.0) {
            self.operations.enqueue_send(&mut peer.waiting[send.channel as usize], id);
        }
    }

    /// Whether a message may be matched now.
    pub(crate) fn next_message(
        &mut self,
        id: PeerId,
        channel: Channel,
        message: u64,
    ) -> NextMessage {
        let peer = self.peers.get_mut(id.0);
        peer.map_or(NextMessage::Wrong, |peer| peer.next_message(channel, message))
    }

    /// Moves on what waits for this peer: sends, accesses, data frames.
    #[inline]
    pub(crate) fn pump(&mut self, id: PeerId) {
        if self.peers.get(id.0).is_some_and(Peer::has_waiting) {
            self.pump_waiting(id);
        }
    }

    fn pump_waiting(&mut self, id: PeerId) {
        for channel in 0..CHANNELS {
            while let Some(peer) = self.peers.get_mut(id.0) {
                let queue = &mut peer.waiting[channel];
                let Some(first) = self.operations.first_of(queue) else { break };
                if !matches!(peer.stage, PeerStage::Up { .. }) {
                    break;
                }
                // Before it starts: an operation may end within the call.
                self.operations.unqueue(queue, first);
                if !self.start_send(first) {
                    if let Some(peer) = self.peers.get_mut(id.0) {
                        self.operations.put_back(&mut peer.waiting[channel], first);
                    }
                    break;
                }
            }
        }
        self.pump_accesses(id);
        self.pump_streams(id);
    }

    pub(crate) fn session_of(&self, id: PeerId) -> u32 {
        self.peers.get(id.0).map_or(0, |peer| peer.session)
    }
}

impl Peer {
    /// Whether a message of this number may be matched now; then the next one is expected.
    #[inline]
    fn next_message(&mut self, channel: Channel, message: u64) -> NextMessage {
        let next = &mut self.receive_next[channel as usize];
        if message == *next && (channel != Channel::Request || self.reliable.is_none()) {
            *next += 1;
            return NextMessage::Now;
        }
        // A request is handed over when its last byte is here, which, where frames overtake each
        // other, may be after those of later ones: there all of them wait for their turn.
        match &self.reliable {
            Some(reliable) if message >= *next && !reliable.holds(channel, message) => {
                NextMessage::Early
            }
            _ => NextMessage::Wrong,
        }
    }
}

/// Bytes of a message of which this is the whole, or the first fragment.
#[inline]
fn message_bytes(prefix: &Prefix, body: &EagerBody) -> u64 {
    u64::from(prefix.payload_bytes.get()) + u64::from(body.more_bytes.get())
}

pub(crate) fn eager_body(send: &Send, message: u64) -> EagerBody {
    EagerBody::whole(send.bits, message, send.channel as u8, send.level as u8)
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
