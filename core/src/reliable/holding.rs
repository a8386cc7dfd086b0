//! Holds messages that overtook earlier ones, and matches them in their turn.

use ropewalk_base::memory::{BufferId, Slice};
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{LinkId, Placement};
use ropewalk_wire::frame::{EagerBody, Prefix, RtsBody};

use super::held::{Held, HeldMessages};
use crate::api::*;
use crate::credit::Charge;
use crate::engine::Core;
use crate::incoming::IncomingKind;
use crate::matching::{Content, Unmatched};

impl Core {
    /// The session is over: its held messages go.
    pub(super) fn drop_held(&mut self, id: PeerId, session: u32, held: HeldMessages) {
        for ((channel, _), held) in held.messages {
            // A message whose bytes are still to come goes with its placement.
            let Held::Eager { bytes, buffer, received: true, .. } = held else { continue };
            if let Some(buffer) = buffer {
                self.outputs.push(Output::Release(buffer));
            }
            if let Some(channel) = Channel::from_u8(channel) {
                let charge = Charge::Eager { channel, payload_bytes: bytes };
                self.free_charge(id, session, charge);
            }
        }
    }

    /// A small message that overtook an earlier one.
    pub(crate) fn hold_eager(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        body: &EagerBody,
        channel: Channel,
    ) -> Placement {
        let bytes = u64::from(prefix.payload_bytes.get());
        let message = body.message.get();
        let held = Held::Eager { body: *body, bytes, buffer: None, received: bytes == 0 };
        if let Some(reliable) = self.reliable_mut(id) {
            reliable.held.messages.insert((channel as u8, message), held);
        }
        if bytes == 0 {
            return Placement::Drop;
        }
        let kind = IncomingKind::Held { channel, message };
        self.place_into(link, Some(id), prefix, Slice::NONE, kind)
    }

    /// An announce that overtook an earlier message.
    pub(crate) fn hold_rts(&mut self, id: PeerId, channel: Channel, body: RtsBody) {
        if let Some(reliable) = self.reliable_mut(id) {
            reliable.held.messages.insert((channel as u8, body.message.get()), Held::Rts(body));
        }
    }

    pub(crate) fn held_received(
        &mut self,
        id: Option<PeerId>,
        channel: Channel,
        message: u64,
        slice: Slice,
    ) {
        let reliable = id.and_then(|id| self.reliable_mut(id));
        let key = (channel as u8, message);
        match reliable.and_then(|reliable| reliable.held.messages.get_mut(&key)) {
            Some(Held::Eager { buffer, received, .. }) => {
                *buffer = Some(slice.buffer);
                *received = true;
            }
            _ => return self.outputs.push(Output::Release(slice.buffer)),
        }
        if let Some(id) = id {
            self.release_held(id, channel);
        }
    }

    /// Matches held messages whose turn has come.
    pub(crate) fn release_held(&mut self, id: PeerId, channel: Channel) {
        loop {
            let Some(session) = self.peers.session_mut(id) else { return };
            let message = session.receive_next[channel as usize];
            let Some(reliable) = session.reliable.as_mut() else { return };
            let key = (channel as u8, message);
            match reliable.held.messages.get(&key) {
                Some(Held::Eager { received: true, .. } | Held::Rts(_)) => {}
                _ => return,
            }
            let Some(held) = reliable.held.messages.remove(&key) else { return };
            session.receive_next[channel as usize] += 1;
            let name = session.name();
            match held {
                Held::Rts(body) => self.match_rts(id, channel, &body),
                Held::Eager { body, bytes, buffer, .. } => {
                    self.match_held((id, name), channel, &body, bytes, buffer);
                }
            }
        }
    }

    fn match_held(
        &mut self,
        (id, session): (PeerId, u32),
        channel: Channel,
        body: &EagerBody,
        bytes: u64,
        buffer: Option<BufferId>,
    ) {
        let (bits, message) = (body.bits.get(), body.message.get());
        if channel == Channel::Request {
            if body.acknowledge != 0 {
                self.emit_fin(id, channel, message, Ok(()), bytes);
            }
            let slice =
                buffer.map_or(Slice::NONE, |buffer| Slice { buffer, offset: 0, len: bytes });
            return self.request_received(Some(id), session, bits, bytes as u32, slice);
        }
        if body.acknowledge == Level::Delivered as u8 {
            self.emit_fin(id, channel, message, Ok(()), bytes);
        }
        self.counters.messages_unmatched += 1;
        self.counters.bytes_unmatched += bytes;
        let unmatched = Unmatched {
            channel,
            peer: id,
            session,
            bits,
            message,
            bytes,
            content: buffer.map_or(Content::Empty, Content::Staged),
            acknowledge: body.acknowledge,
            shown: false,
        };
        match self.matching.arrive(unmatched) {
            Some(found) => {
                self.rematch(found);
                self.offer(channel, found);
                if self.matching.drops_unawaited(channel) {
                    self.discard(found, body);
                }
                self.lend_to_waiting(id);
            }
            None => {
                let charge = Charge::Eager { channel, payload_bytes: bytes };
                self.free_charge(id, session, charge);
            }
        }
    }

    /// Drops a held message that no receive took.
    fn discard(&mut self, found: SlotId, body: &EagerBody) {
        let Some(message) = self.matching.remove_message(found) else { return };
        let (peer, channel, payload_bytes) = (message.peer, message.channel, message.bytes);
        if let Content::Staged(buffer) = message.content {
            self.outputs.push(Output::Release(buffer));
        }
        self.free_charge(peer, message.session, Charge::Eager { channel, payload_bytes });
        self.drop_unmatched(peer, channel, body);
    }
}
