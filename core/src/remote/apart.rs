//! Bytes for exposed memory that are verified before they go to their place.
//!
//! Others write there, too: other peers, this host's processes, and the application. A checksum of what lies at the place fails
//! where such bytes came in between, and would cost the link although nothing was damaged. Spans come again then, so they are
//! placed at once; frames of a stream do not. For the same reason bytes that serve a get over a stream are copied before their
//! checksum is taken, since they may wait for room in a socket.

use ropewalk_base::error::Fault;
use ropewalk_base::memory::{BufferId, Slice};
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{LinkId, Placement, Token};
use ropewalk_wire::frame::Prefix;

use crate::api::{Output, PeerId};
use crate::engine::Core;
use crate::incoming::{Incoming, IncomingKind};
use crate::orders::{Named, Order, Orders};

/// The part of the memory for messages that such bytes may have: nobody granted credit for them, so peers that stall in the middle
/// of a put must not use up what is lent to others. Without room they are verified at their place.
const APART_PART: u64 = 16;

impl Core {
    /// The place of a payload in exposed memory.
    pub(crate) fn place_exposed(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        slice: Slice,
        kind: IncomingKind,
    ) -> Placement {
        let checksum = Incoming::checksum_of(prefix);
        let bytes = prefix.payload_bytes.get();
        let staged = self.apart_bytes + u64::from(bytes);
        let has_room = staged <= self.config.eager_pool_bytes / APART_PART;
        if prefix.span.get() != 0 || checksum.is_none() || !has_room {
            return self.place_into(link, Some(id), prefix, slice, kind);
        }
        let session = prefix.session.get();
        let entry = |kind, slice, checksum| Incoming {
            link,
            peer: Some(id),
            session,
            payload_bytes: bytes,
            kind,
            slice,
            checksum,
            span: 0,
            broken_off: false,
        };
        let full = Placement::Violation("more placements than a link can have");
        let place = match self.incoming.insert(entry(kind, slice, None), true) {
            Ok(place) => place,
            Err(place) => {
                self.incoming_lost(place, Fault::Busy);
                return full;
            }
        };
        self.apart_bytes = staged;
        let copy = entry(IncomingKind::Apart { place }, Slice::NONE, checksum);
        match self.incoming.insert(copy, self.placing_whole) {
            Ok(slot) => Placement::Stage { bytes, token: Token(slot.to_u64()) },
            Err(copy) => {
                self.incoming_lost(copy, Fault::Busy);
                full
            }
        }
    }

    /// The payload of the frame that is next, where it lies in exposed memory and does not come again.
    pub fn exposed_payload(&mut self) -> Option<Slice> {
        let (token, payload) = (self.frame().token, self.frame().payload);
        let Named::Entry(slot) = Orders::named(token) else { return None };
        if payload.len == 0 {
            return None;
        }
        matches!(self.orders.get(slot)?.order, Order::ServeFrame { .. }).then_some(payload)
    }

    /// That payload was copied to a buffer, which is released with the frame.
    pub fn payload_copied(&mut self, buffer: BufferId) {
        let frame = self.frame();
        let (token, bytes) = (frame.token, frame.payload.len);
        frame.payload = Slice { buffer, offset: 0, len: bytes };
        let Named::Entry(slot) = Orders::named(token) else { return };
        let Some(entry) = self.orders.get_mut(slot) else { return };
        if let Order::ServeFrame { region, peer, .. } = entry.order {
            entry.order = Order::Kept { peer, bulk: true, buffer };
            self.release_region(region);
        }
    }

    /// There is no memory for the copy: the bytes go to their place, and are verified there.
    #[cold]
    pub(crate) fn place_at_once(&mut self, place: SlotId, checksum: Option<u32>) -> Placement {
        let Some(incoming) = self.incoming.get_mut(place) else { return Placement::Drop };
        incoming.checksum = checksum;
        let slice = incoming.slice;
        self.apart_bytes -= u64::from(incoming.payload_bytes);
        if !self.placing_whole {
            self.incoming.list(place);
        }
        Placement::Into { slice, token: Token(place.to_u64()) }
    }

    /// The copy is here, and verified. Its place may have been given up.
    pub(crate) fn apart_received(&mut self, place: SlotId, copy: &Incoming) {
        self.apart_bytes -= u64::from(copy.payload_bytes);
        // Jobs give it back as they do with copies of spans.
        self.copies_staged += 1;
        let Some(place) = self.incoming.remove(place) else { return self.release_copy(copy.slice) };
        let runs = place.peer.is_some_and(|peer| self.peers.has_session(peer, place.session));
        if runs {
            return self.take_place(place, copy.slice);
        }
        self.release_copy(copy.slice);
        self.incoming_lost(place, Fault::PeerReset);
    }

    /// The copy does not come.
    pub(crate) fn apart_lost(&mut self, place: SlotId, copy: &Incoming, fault: Fault) {
        self.apart_bytes -= u64::from(copy.payload_bytes);
        if copy.slice.buffer != Slice::NONE.buffer {
            self.outputs.push(Output::Release(copy.slice.buffer));
        }
        if let Some(place) = self.incoming.remove(place) {
            self.incoming_lost(place, fault);
        }
    }
}
