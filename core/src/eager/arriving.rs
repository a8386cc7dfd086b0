//! The way in: a message goes to the receive that takes it, or is staged until there is one.

use ropewalk_base::error::Fault;
use ropewalk_base::limits::EAGER_BYTES_MAX;
use ropewalk_base::memory::Slice;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{LinkId, Placement, Token};
use ropewalk_wire::frame::{EagerBody, FLAG_PAYLOAD_CHECKSUM, Prefix};

use crate::api::*;
use crate::assembly::Target;
use crate::credit::Charge;
use crate::engine::Core;
use crate::incoming::{Incoming, IncomingKind, OF_RECEIVE};
use crate::matching::{Content, Unmatched};
use crate::operation::Kind;
use crate::session::Session;

impl Core {
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
        let Some(session) = self.peers.session_mut(id) else { return Placement::Drop };
        let resumes = session.reliable.is_some();
        if body.more_bytes.get() > 0
            && (channel == Channel::Request || resumes || prefix.payload_bytes.get() == 0)
        {
            return self.violation("a message in fragments where there are none");
        }
        let charge = Charge::Eager { channel, payload_bytes };
        if !session.lent.arrive(charge) {
            return self.violation("the peer sent more than its credit");
        }
        let next = session.next_message(channel, body.message.get());
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
        let (message, asked) = (body.message.get(), body.acknowledge);
        if bytes == 0 {
            self.finish_request(id, message, asked, 0);
            self.request_received(Some(id), prefix.session.get(), bits, 0, Slice::NONE);
            return Placement::Drop;
        }
        let kind = IncomingKind::Request { bits, bytes, message, asked };
        self.place_into(link, Some(id), prefix, Slice::NONE, kind)
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
        let Some(operation) = self.accepting(channel, id, bits, bytes) else {
            return self.keep_unmatched(link, id, prefix, body, channel);
        };
        let charge = Charge::Eager { channel, payload_bytes: bytes };
        self.free_charge(id, prefix.session.get(), charge);
        let Some(into) = self.assign(operation, id, bits, bytes) else { return Placement::Drop };
        if bytes == 0 || (into.len == 0 && !in_fragments) {
            self.tell_taken(id, channel, message, asked, bytes, 0);
            self.receive_done(operation);
            return Placement::Drop;
        }
        let slice = into.part(0, bytes.min(into.len));
        if in_fragments {
            return self.assemble(link, id, prefix, body, Target::Receive(operation), slice);
        }
        if self.placing_whole
            && prefix.span.get() == 0
            && prefix.flags.get() & FLAG_PAYLOAD_CHECKSUM == 0
        {
            self.tell_taken(id, channel, message, asked, bytes, slice.len);
            return Placement::Into { slice, token: Token(operation.0.to_u64() | OF_RECEIVE) };
        }
        self.retain_memory(operation);
        self.place_into(
            link,
            Some(id),
            prefix,
            slice,
            IncomingKind::Eager { operation, message, asked },
        )
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
        if self.matching.drops_unawaited(channel) {
            let charge = Charge::Eager { channel, payload_bytes: bytes };
            self.free_charge(id, prefix.session.get(), charge);
            let (message, asked) = (body.message.get(), body.acknowledge);
            self.acknowledge(id, channel, message, asked, Level::Delivered, bytes);
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
            self.acknowledge(
                id,
                channel,
                body.message.get(),
                body.acknowledge,
                Level::Delivered,
                0,
            );
            return Placement::Drop;
        }
        if body.more_bytes.get() > 0 {
            return self.assemble(link, id, prefix, body, Target::Unmatched(slot), Slice::NONE);
        }
        let kind = IncomingKind::Unmatched { message: slot };
        self.place_into(link, Some(id), prefix, Slice::NONE, kind)
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
            self.emit_fin(id, channel, body.message.get(), Err(Fault::Cancelled), 0);
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
    pub(crate) fn eager_received(&mut self, id: OperationId, incoming: &Incoming) {
        let mut channel = None;
        if let Some(operation) = self.operations.get_mut(id) {
            assert!(operation.retained > 0, "a rail lets go of what it held");
            operation.retained -= 1;
            if let Kind::Receive(state) = &operation.kind {
                channel = Some(state.receive.channel);
            }
        }
        if let (Some(channel), Some(peer)) = (channel, incoming.peer)
            && let IncomingKind::Eager { message, asked, .. } = incoming.kind
        {
            let bytes = incoming.payload_bytes.into();
            self.tell_taken(peer, channel, message, asked, bytes, incoming.slice.len);
        }
        self.receive_done(id);
    }

    /// A receive has all of a message, or the part that it has room for: tells its sender, where that waits for it.
    #[inline(always)]
    fn tell_taken(
        &mut self,
        peer: PeerId,
        channel: Channel,
        message: u64,
        asked: u8,
        bytes: u64,
        taken: u64,
    ) {
        self.acknowledge(peer, channel, message, asked, Level::Delivered, bytes);
        self.acknowledge(peer, channel, message, asked, Level::Matched, taken);
    }

    /// All of a request is here.
    pub(crate) fn finish_request(&mut self, peer: PeerId, message: u64, asked: u8, bytes: u64) {
        if asked != Level::Buffered as u8 {
            self.emit_fin(peer, Channel::Request, message, Ok(()), bytes);
        }
    }

    /// A message that came before its receive is here.
    pub(crate) fn staged_received(&mut self, slot: SlotId, slice: Slice) {
        if let Some(message) = self.matching.message_mut(slot) {
            let Unmatched { peer, channel, message, acknowledge, bytes, .. } = *message;
            self.acknowledge(peer, channel, message, acknowledge, Level::Delivered, bytes);
        }
        self.unmatched_received(slot, slice);
    }

    pub(crate) fn unmatched_received(&mut self, slot: SlotId, slice: Slice) {
        let Some(message) = self.matching.message_mut(slot) else {
            self.outputs.push(Output::Release(slice.buffer));
            return;
        };
        let claimed = match message.content {
            Content::Arriving { claimed_by } => claimed_by,
            _ => None,
        };
        message.content = Content::Staged(slice.buffer);
        self.matching.received(slot);
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

    pub(crate) fn request_received(
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

    /// Whether a message may be matched now.
    pub(crate) fn next_message(
        &mut self,
        id: PeerId,
        channel: Channel,
        message: u64,
    ) -> NextMessage {
        let session = self.peers.session_mut(id);
        session.map_or(NextMessage::Wrong, |session| session.next_message(channel, message))
    }
}

impl Session {
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
            Some(reliable) if message >= *next && !reliable.held.contains(channel, message) => {
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

/// The verdict of `next_message` on a message's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextMessage {
    Now,
    Early,
    Wrong,
}
