//! Copies of spans beside the one that is being placed, and payloads that are verified before they go to their place.
//!
//! Both are staged. A copy that is whole before the one at the place has its rail give the place up: what begins to
//! arrive tells nothing of what will be here first. The bytes go to the place when no rail writes there.

use ropewalk_base::error::Fault;
use ropewalk_base::limits::SPAN_BYTES_MAX;
use ropewalk_base::memory::Slice;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{LinkId, Placement, Token, Verb};
use ropewalk_wire::frame::Prefix;

use super::window::{StagedCopy, Try, WholeCopy};
use crate::api::{Output, PeerId};
use crate::engine::Core;
use crate::incoming::{Incoming, IncomingKind};
use crate::remote::Stored;

/// Copies that an endpoint stages at a time, at most, and the part of the memory for messages that they may have.
/// Nobody granted credit for them, so that they must not use up what is lent; what finds no room comes again.
const STAGED_MAX: u64 = 64;
const STAGED_PART: u64 = 16;

impl Core {
    /// A copy of a span comes, while another one is on the way to its place.
    pub(super) fn take_over(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        earlier: SlotId,
    ) -> Placement {
        let Some(earlier) = self.incoming.get(earlier) else { return Placement::Drop };
        if earlier.payload_bytes != prefix.payload_bytes.get() {
            return self.violation("a span came again with another length");
        }
        self.place_copy(link, id, prefix)
    }

    /// Stages the payload of a span, and keeps the place where it belongs until its bytes were verified.
    pub(crate) fn place_apart_first(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        place: Incoming,
    ) -> Placement {
        let of = Try::of(prefix, link);
        let Some(reliable) = self.reliable_mut(id) else {
            self.incoming_lost(place, Fault::PeerReset);
            return Placement::Drop;
        };
        reliable.window.begin_apart(of, place);
        self.place_copy(link, id, prefix)
    }

    /// How many copies may be staged.
    pub(crate) fn copies_max(&self) -> u64 {
        let max = self.config.eager_pool_bytes / STAGED_PART / u64::from(SPAN_BYTES_MAX);
        max.clamp(1, STAGED_MAX)
    }

    fn place_copy(&mut self, link: LinkId, id: PeerId, prefix: &Prefix) -> Placement {
        if u64::from(self.copies_staged) >= self.copies_max() {
            return Placement::Drop;
        }
        let bytes = prefix.payload_bytes.get();
        let copy = Incoming {
            link,
            peer: Some(id),
            session: prefix.session.get(),
            payload_bytes: bytes,
            kind: IncomingKind::Copy { attempt: prefix.attempt.get() },
            slice: Slice::NONE,
            checksum: Incoming::checksum_of(prefix),
            span: prefix.span.get(),
            broken_off: false,
        };
        match self.incoming.insert(copy, self.placing_whole) {
            Ok(slot) => Placement::Stage { bytes, token: Token(slot.to_u64()) },
            Err(_) => Placement::Violation("more placements than a link can have"),
        }
    }

    /// A copy has its buffer.
    pub(crate) fn copy_staged(&mut self, slot: SlotId, attempt: u16) {
        self.copies_staged += 1;
        let Some(copy) = self.incoming.get(slot) else { return };
        let of = Try { span: copy.span, attempt, link: copy.link };
        let (peer, session) = (copy.peer, copy.session);
        let Some(peer) = peer.filter(|peer| self.peers.has_session(*peer, session)) else { return };
        let Some(reliable) = self.reliable_mut(peer) else { return };
        if let Some(older) = reliable.window.stage(of, slot) {
            self.drop_copy(older);
        }
    }

    /// A copy is here, and verified.
    pub(crate) fn copy_received(&mut self, attempt: u16, copy: &Incoming) {
        let Incoming { peer, session, span, slice, link, .. } = *copy;
        let peer = peer.filter(|peer| self.peers.has_session(*peer, session));
        let whole = match peer.and_then(|peer| self.reliable_mut(peer)) {
            Some(reliable) => reliable.window.copy_here(Try { span, attempt, link }, slice),
            None => WholeCopy::Unneeded,
        };
        match whole {
            WholeCopy::To(place) => self.take_place(place, slice),
            WholeCopy::Waits(slot) => self.break_off(slot),
            WholeCopy::Unneeded => self.release_copy(slice),
        }
    }

    /// Has a rail give a place up, since a copy is whole.
    fn break_off(&mut self, slot: SlotId) {
        let Some(incoming) = self.incoming.get_mut(slot) else { return };
        if !std::mem::replace(&mut incoming.broken_off, true) {
            let (link, token) = (incoming.link, Token(slot.to_u64()));
            self.outputs.push(Output::Verb(Verb::CancelReceive { link, token }));
        }
    }

    /// No rail writes to the place of a span any more, and a copy of it is here.
    pub(crate) fn take_place(&mut self, mut place: Incoming, copy: Slice) {
        let to = place.slice;
        self.counters.spans_taken_over += u64::from(place.broken_off);
        if let IncomingKind::Update(_) = place.kind {
            // Its job may be executed before any output: the elements are taken from where they are.
            self.copies_staged -= 1;
            self.outputs.push(Output::Release(to.buffer));
            place.slice = copy.part(0, to.len);
            return self.take_effect(place, &[]);
        }
        let stored = match place.kind {
            IncomingKind::Put(put) => Some(Stored::Put(put, place.payload_bytes)),
            IncomingKind::LockedPut { region, cookie } => Some(Stored::Locked { region, cookie }),
            _ => None,
        };
        if let Some(stored) = stored {
            if let Some(peer) = place.peer.filter(|_| place.span != 0) {
                self.span_placed(peer, place.span);
            }
            return self.store_later(&place, stored, copy);
        }
        self.outputs.push(Output::Copy { from: copy.part(0, to.len), to });
        self.release_copy(copy);
        self.take_effect(place, &[]);
    }

    /// A placement broke off. It goes on with a copy of its span that is here, or when the span comes again; `Err`
    /// where nothing comes.
    pub(crate) fn keep_broken(&mut self, incoming: Incoming) -> Result<(), Incoming> {
        let Some(id) = incoming.peer else { return Err(incoming) };
        let span = incoming.span;
        let ready = incoming.slice.buffer != Slice::NONE.buffer;
        let runs = self.peers.has_session(id, incoming.session);
        let Some(reliable) = self.reliable_mut(id).filter(|_| span != 0 && ready && runs) else {
            return Err(incoming);
        };
        if let Some((place, copy)) = reliable.window.break_off(span, incoming)? {
            self.take_place(place, copy);
        }
        Ok(())
    }

    /// A copy does not come.
    pub(crate) fn copy_lost(&mut self, attempt: u16, copy: &Incoming) {
        let peer = copy.peer.filter(|peer| self.peers.has_session(*peer, copy.session));
        if let Some(reliable) = peer.and_then(|peer| self.reliable_mut(peer)) {
            let of = Try { span: copy.span, attempt, link: copy.link };
            reliable.window.copy_lost(of);
        }
        if copy.slice.buffer != Slice::NONE.buffer {
            self.release_copy(copy.slice);
        }
    }

    /// Nobody needs a copy any more.
    pub(crate) fn drop_copy(&mut self, copy: StagedCopy) {
        match copy {
            StagedCopy::Here(slice) => self.release_copy(slice),
            StagedCopy::Arriving(slot) => {
                if let Some(incoming) = self.incoming.get(slot) {
                    let (link, token) = (incoming.link, Token(slot.to_u64()));
                    self.outputs.push(Output::Verb(Verb::CancelReceive { link, token }));
                }
            }
        }
    }

    pub(crate) fn release_copy(&mut self, slice: Slice) {
        self.copies_staged -= 1;
        self.outputs.push(Output::Release(slice.buffer));
    }
}
