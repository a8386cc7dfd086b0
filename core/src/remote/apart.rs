//! Bytes for exposed memory that are verified before they go to their place.
//!
//! Others write there, too: other peers, this host's processes, and the application. A checksum of what lies at the place fails
//! where such bytes came in between, and would cost the link although nothing was damaged. Spans come again then, so they are
//! placed at once; frames of a stream do not.

use ropewalk_base::error::Fault;
use ropewalk_base::memory::Slice;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{LinkId, Placement, Token};
use ropewalk_wire::frame::Prefix;

use crate::api::{Output, PeerId};
use crate::engine::Core;
use crate::incoming::{Incoming, IncomingKind};

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
        if prefix.span.get() != 0 || checksum.is_none() {
            return self.place_into(link, Some(id), prefix, slice, kind);
        }
        let bytes = prefix.payload_bytes.get();
        let place = Incoming {
            link,
            peer: Some(id),
            session: prefix.session.get(),
            payload_bytes: bytes,
            kind,
            slice,
            checksum: None,
            span: 0,
            broken_off: false,
        };
        let full = Placement::Violation("more placements than a link can have");
        let place = match self.incoming.insert(place, true) {
            Ok(place) => place,
            Err(place) => {
                self.incoming_lost(place, Fault::Busy);
                return full;
            }
        };
        let copy = Incoming {
            link,
            peer: Some(id),
            session: prefix.session.get(),
            payload_bytes: bytes,
            kind: IncomingKind::Apart { place },
            slice: Slice::NONE,
            checksum,
            span: 0,
            broken_off: false,
        };
        match self.incoming.insert(copy, self.placing_whole) {
            Ok(slot) => Placement::Stage { bytes, token: Token(slot.to_u64()) },
            Err(copy) => {
                self.incoming_lost(copy, Fault::Busy);
                full
            }
        }
    }

    /// There is no memory for the copy: the bytes go to their place, and are verified there.
    #[cold]
    pub(crate) fn place_at_once(&mut self, place: SlotId, checksum: Option<u32>) -> Placement {
        let Some(incoming) = self.incoming.get_mut(place) else { return Placement::Drop };
        incoming.checksum = checksum;
        let slice = incoming.slice;
        if !self.placing_whole {
            self.incoming.list(place);
        }
        Placement::Into { slice, token: Token(place.to_u64()) }
    }

    /// The copy is here, and verified. Its place may have been given up.
    pub(crate) fn apart_received(&mut self, place: SlotId, copy: &Incoming) {
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
        if copy.slice.buffer != Slice::NONE.buffer {
            self.outputs.push(Output::Release(copy.slice.buffer));
        }
        if let Some(place) = self.incoming.remove(place) {
            self.incoming_lost(place, fault);
        }
    }
}
