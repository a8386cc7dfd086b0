//! The side whose memory it is: keys are checked, gets become streams, puts are placed.
//!
//! Invariant: a key is checked by slot, generation, secret, audience and range before a byte moves.

use std::collections::VecDeque;

use ropewalk_base::error::Fault;
use ropewalk_base::memory::Slice;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{LinkId, Placement, RemoteKey};
use ropewalk_wire::frame::{GetBody, Prefix, PutBody, ResultBody, key_from_wire, status_to_wire};

use crate::api::*;
use crate::engine::Core;
use crate::incoming::IncomingKind;
use crate::streams::{Stream, StreamKind};

/// Puts of one peer that arrived in part. An honest one has at most `ACCESSES_MAX` under way; older ones were
/// cancelled.
const PUTS_MAX: usize = 2 * super::ACCESSES_MAX as usize;

/// Puts of one peer that arrived in part: region, cookie, bytes so far; the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Puts {
    partial: VecDeque<(SlotId, u64, u64)>,
}

impl Puts {
    /// Bytes of a put arrived; true if all `total` of them have.
    fn arrive(&mut self, region: SlotId, cookie: u64, bytes: u64, total: u64) -> bool {
        let index = self.partial.iter().position(|put| put.0 == region && put.1 == cookie);
        let before = index.map_or(0, |index| self.partial[index].2);
        let whole = before + bytes >= total;
        match index {
            Some(index) if whole => drop(self.partial.remove(index)),
            Some(index) => self.partial[index].2 += bytes,
            None if whole => {}
            None => {
                if self.partial.len() >= PUTS_MAX {
                    self.partial.pop_front();
                }
                self.partial.push_back((region, cookie, bytes));
            }
        }
        whole
    }
}

impl Core {
    /// Checks a key as a peer presents it; the slice of the range where it holds.
    fn check_key(
        &self,
        id: PeerId,
        key: RemoteKey,
        offset: u64,
        len: u64,
        write: bool,
    ) -> Option<Slice> {
        let region = self.regions.get(key.slot)?;
        let audience = match region.audience {
            Audience::Everybody => true,
            Audience::One(peer) => peer == id,
        };
        let holds = region.secret == key.secret
            && !region.closing
            && audience
            && (!write || region.writable)
            && offset <= region.slice.len
            && len <= region.slice.len - offset;
        holds.then(|| region.slice.part(offset, len))
    }

    /// A peer asks for bytes.
    pub(crate) fn arrive_get(&mut self, id: PeerId, body: GetBody) {
        let key = key_from_wire(body.key_slot, body.key_secret);
        let cookie = body.cookie.get();
        if body.len.get() == 0 {
            return self.emit_result(id, cookie, Err(Fault::Invalid));
        }
        let Some(slice) = self.check_key(id, key, body.offset.get(), body.len.get(), false) else {
            return self.emit_result(id, cookie, Err(Fault::BadKey));
        };
        let Some(session) = self.peers.session_mut(id) else { return };
        if !session.streams.has_room() {
            return self.emit_result(id, cookie, Err(Fault::Busy));
        }
        self.counters.gets_served += 1;
        let into_offset = body.into_offset.get();
        let kind = StreamKind::Serve { region: key.slot, cookie, into_offset };
        session.streams.push(Stream { kind, left: slice });
        if let Some(region) = self.regions.get_mut(key.slot) {
            region.streams += 1;
        }
        self.pump_streams(id);
    }

    pub(crate) fn emit_result(&mut self, id: PeerId, cookie: u64, outcome: Result<(), Fault>) {
        let status = status_to_wire(outcome);
        let body = ResultBody { cookie: cookie.into(), status, reserved: [0; 7] };
        self.emit_control(id, body);
    }

    /// Bytes for a region of ours arrive.
    pub(crate) fn arrive_put(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        body: PutBody,
    ) -> Placement {
        let bytes = u64::from(prefix.payload_bytes.get());
        let key = key_from_wire(body.key_slot, body.key_secret);
        let cookie = body.cookie.get();
        if bytes == 0 {
            return self.violation("a put of nothing");
        }
        let Some(slice) = self.check_key(id, key, body.offset.get(), bytes, true) else {
            self.emit_result(id, cookie, Err(Fault::BadKey));
            return Placement::Drop;
        };
        let total = body.total_bytes.get();
        let Some(region) = self.regions.get_mut(key.slot) else { return Placement::Drop };
        region.retained += 1;
        let kind = IncomingKind::Put { region: key.slot, cookie, bytes, total };
        self.place_into(link, Some(id), prefix, slice, kind)
    }

    pub(crate) fn put_received(
        &mut self,
        peer: Option<PeerId>,
        slot: SlotId,
        cookie: u64,
        bytes: u64,
        total: u64,
    ) {
        if let Some((id, session)) = peer.and_then(|id| Some((id, self.peers.session_mut(id)?)))
            && session.puts.arrive(slot, cookie, bytes, total)
        {
            self.emit_result(id, cookie, Ok(()));
        }
        self.release_region(slot);
    }
}
