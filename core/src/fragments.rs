//! Messages in fragments: what leaves at once and is longer than a frame.
//!
//! The first fragment is an eager frame that names the length of the rest; it is matched. The others follow as
//! bulk, so that what is short goes in between. Their credit is that of the whole message.
//!
//! Only over links that are reliable and ordered, in sessions without spans: the fragments of a message follow each
//! other without a gap. Invariants: a fragment lands where its message goes, once; memory that a message is
//! assembled in has one owner, the assembly, until its last byte is here.

use ropewalk_base::error::Fault;
use ropewalk_base::memory::Slice;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{LinkId, Placement};
use ropewalk_wire::frame::{AbortBody, EagerBody, FragmentBody, Prefix};

use crate::api::*;
use crate::assembly::{Assembly, Target};
use crate::engine::Core;
use crate::incoming::IncomingKind;
use crate::operation::{Kind, SendStage};
use crate::streams::{Stream, StreamKind};

impl Core {
    /// The fragments of a message behind the first one, in their turn among the peer's streams.
    pub(crate) fn send_rest(&mut self, id: OperationId, send: &Send, message: u64, sent: u64) {
        self.retain_memory(id);
        let kind =
            StreamKind::Message { operation: id, channel: send.channel, message, offset: sent };
        let left = send.payload.part(sent, send.payload.len - sent);
        if let Some(session) = self.peers.session_mut(send.peer) {
            session.streams.push(Stream { kind, left });
        }
        self.pump_streams(send.peer);
    }

    /// A rail let go of a fragment.
    pub(crate) fn fragment_released(
        &mut self,
        id: OperationId,
        peer: PeerId,
        outcome: Result<(), Fault>,
    ) {
        if let Err(fault) = outcome {
            self.give_rest_up(peer, id);
            self.finish(id, Err(fault), 0);
        }
        self.release_memory(id);
        let Some(operation) = self.operations.get(id) else { return };
        if let Kind::Send(state) = &operation.kind
            && state.stage == SendStage::Fragments
            && operation.retained == 0
        {
            let bytes = state.send.payload.len;
            self.finish(id, Ok(()), bytes);
        }
    }

    /// No further fragment of a message is sent, and its receiver is told.
    pub(crate) fn give_rest_up(&mut self, id: PeerId, operation: OperationId) {
        let Some(session) = self.peers.session_mut(id) else { return };
        let of = |stream: &Stream| matches!(stream.kind, StreamKind::Message { operation: it, .. } if it == operation);
        let Some(stream) = session.streams.take(of) else { return };
        if let StreamKind::Message { channel, message, .. } = stream.kind {
            let channel = channel as u8;
            self.emit_control(id, AbortBody { message: message.into(), channel, reserved: [0; 7] });
        }
        self.stream_ended(&stream.kind);
    }

    /// No further fragment of any message is sent.
    pub(crate) fn give_all_rests_up(&mut self) {
        let operation_of = |stream: &Stream| match stream.kind {
            StreamKind::Message { operation, .. } => Some(operation),
            _ => None,
        };
        let mut found = Vec::new();
        for (id, peer) in self.peers.iter() {
            let streams = peer.session.iter().flat_map(|session| session.streams.iter());
            let operations = streams.filter_map(operation_of);
            found.extend(operations.map(|operation| (id, operation)));
        }
        found.into_iter().for_each(|(peer, operation)| self.give_rest_up(peer, operation));
    }

    /// The first fragment of a message that was matched just now; `into`: where all of it goes, if there is a place.
    pub(crate) fn assemble(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        body: &EagerBody,
        target: Target,
        into: Slice,
    ) -> Placement {
        let Some(channel) = Channel::from_u8(body.channel) else { return Placement::Drop };
        let bytes = u64::from(prefix.payload_bytes.get());
        let message = body.message.get();
        let total = bytes + u64::from(body.more_bytes.get());
        let acknowledge = body.acknowledge;
        let assembly = Assembly::new(id, channel, message, acknowledge, target, into, total);
        let Ok(slot) = self.assemblies.insert(assembly) else {
            return self.violation("more messages in fragments than an endpoint assembles");
        };
        if let Some(session) = self.peers.session_mut(id) {
            session.assembling.insert((body.channel, message), slot);
        }
        self.place_fragment(link, id, prefix, slot)
    }

    /// A further fragment. One of a message that is not assembled any more goes nowhere.
    pub(crate) fn arrive_fragment(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        body: &FragmentBody,
    ) -> Placement {
        let session = self.peers.session(id);
        let key = (body.channel, body.message.get());
        let Some(slot) = session.and_then(|session| session.assembling.get(&key).copied()) else {
            return Placement::Drop;
        };
        let Some(assembly) = self.assemblies.get(slot) else { return Placement::Drop };
        let bytes = u64::from(prefix.payload_bytes.get());
        if !assembly.is_next(body.offset.get(), bytes) {
            return self.violation("a fragment that does not follow the one before");
        }
        self.place_fragment(link, id, prefix, slot)
    }

    fn place_fragment(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        slot: SlotId,
    ) -> Placement {
        let bytes = u64::from(prefix.payload_bytes.get());
        let Some(assembly) = self.assemblies.get_mut(slot) else { return Placement::Drop };
        let offset = assembly.begin(bytes);
        let (into, total) = (assembly.into, assembly.total);
        let operation = assembly.receive();
        let ended = |operation| {
            self.operations.get(operation).is_none_or(|operation| operation.ending.is_some())
        };
        let fresh = operation.is_none() && offset == 0;
        if operation.is_some_and(ended) || (!fresh && offset >= into.len) {
            assembly.skip(bytes);
            self.try_assembled(slot);
            return Placement::Drop;
        }
        assembly.place();
        if let Some(operation) = operation {
            self.retain_memory(operation);
        }
        let kind = IncomingKind::Fragment { assembly: slot, operation };
        let place = match fresh {
            true => Slice::NONE,
            false => into.part(offset, bytes.min(into.len - offset)),
        };
        match self.place_into(link, Some(id), prefix, place, kind) {
            // Its buffer has room for all that follows.
            Placement::Stage { token, .. } => Placement::Stage { bytes: total as u32, token },
            placement => placement,
        }
    }

    /// The buffer of a message that nobody waits for; its first fragment goes to this part of it.
    pub(crate) fn assembly_staged(&mut self, slot: SlotId, whole: Slice, bytes: u32) -> Slice {
        if let Some(assembly) = self.assemblies.get_mut(slot) {
            assembly.into = whole;
        }
        whole.part(0, u64::from(bytes).min(whole.len))
    }

    /// A fragment is at its place, or was taken back from it: in either case it does not come again.
    pub(crate) fn fragment_received(
        &mut self,
        slot: SlotId,
        operation: Option<OperationId>,
        bytes: u32,
    ) {
        if let Some(assembly) = self.assemblies.get_mut(slot) {
            assembly.placed(u64::from(bytes));
            self.try_assembled(slot);
        }
        if let Some(operation) = operation {
            self.release_memory(operation);
        }
    }

    /// A fragment will not be at its place: its message is lost.
    pub(crate) fn fragment_lost(
        &mut self,
        slot: SlotId,
        operation: Option<OperationId>,
        fault: Fault,
    ) {
        if let Some(assembly) = self.assemblies.get_mut(slot) {
            assembly.placed(0);
            self.break_assembly(slot, fault);
        }
        if let Some(operation) = operation {
            self.release_memory(operation);
        }
    }

    /// The rest of a message does not come: its receive fails.
    pub(crate) fn break_assembly(&mut self, slot: SlotId, fault: Fault) {
        let Some(assembly) = self.assemblies.get_mut(slot) else { return };
        if assembly.give_up() {
            let (id, key) = (assembly.peer, (assembly.channel as u8, assembly.message));
            let target = assembly.target;
            if let Some(session) = self.peers.session_mut(id)
                && session.assembling.get(&key) == Some(&slot)
            {
                session.assembling.remove(&key);
            }
            match target {
                Target::Receive(operation) => self.receive_broken(operation, fault),
                Target::Unmatched(message) => self.unmatched_lost(message, fault),
            }
        }
        let still = self.assemblies.get(slot).is_some_and(Assembly::is_placing);
        if !still
            && let Some(assembly) = self.assemblies.remove(slot)
            && assembly.receive().is_none()
            && assembly.into.buffer != Slice::NONE.buffer
        {
            self.outputs.push(Output::Release(assembly.into.buffer));
        }
    }

    /// Their session ended: what its peer was sending does not come.
    pub(crate) fn break_assemblies(&mut self, slots: impl Iterator<Item = SlotId>, fault: Fault) {
        let mut slots: Vec<SlotId> = slots.collect();
        slots.sort_unstable();
        slots.into_iter().for_each(|slot| self.break_assembly(slot, fault));
    }

    /// The sender gave a message up in the middle; false where none of this number is being assembled.
    pub(crate) fn abort_assembly(&mut self, id: PeerId, channel: Channel, message: u64) -> bool {
        let key = (channel as u8, message);
        let slot = self.peers.session(id).and_then(|it| it.assembling.get(&key).copied());
        if let Some(slot) = slot {
            self.break_assembly(slot, Fault::Cancelled);
        }
        slot.is_some()
    }

    /// Hands a message over once all of it is here.
    fn try_assembled(&mut self, slot: SlotId) {
        let Some(assembly) = self.assemblies.get(slot) else { return };
        if assembly.is_placing() || (!assembly.is_whole() && !assembly.is_over()) {
            return;
        }
        if assembly.is_over() {
            return self.break_assembly(slot, Fault::Cancelled);
        }
        let Some(assembly) = self.assemblies.remove(slot) else { return };
        let Assembly { peer: id, channel, message, acknowledge, target, into, total, .. } =
            assembly;
        if let Some(session) = self.peers.session_mut(id) {
            session.assembling.remove(&(channel as u8, message));
        }
        self.acknowledge(id, channel, message, acknowledge, Level::Delivered, total);
        match target {
            Target::Receive(operation) => {
                let taken = total.min(into.len);
                self.acknowledge(id, channel, message, acknowledge, Level::Matched, taken);
                let placing = self.operations.get(operation).is_some_and(|operation| {
                    operation.ending.is_none() && matches!(operation.kind, Kind::Receive(_))
                });
                if placing {
                    self.receive_done(operation);
                }
            }
            Target::Unmatched(message) => self.unmatched_received(message, into),
        }
    }
}
