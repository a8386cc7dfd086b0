//! The side whose memory it is: keys are checked, gets become streams, puts land.
//!
//! Invariant: a key is checked by slot, generation, secret, audience and range before a byte moves.

use ropewalk_base::error::Fault;
use ropewalk_base::memory::Slice;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{LinkId, Placement, RemoteKey};
use ropewalk_wire::frame::{GetBody, Prefix, PutBody, ResultBody, key_from_wire, status_to_wire};

use crate::api::*;
use crate::engine::Core;
use crate::incoming::IncomingKind;
use crate::path::{PUTS_MAX, STREAMS_MAX, Stream, StreamKind};

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
        let Some(peer) = self.peers.get_mut(id.0) else { return };
        if peer.streams.len() >= STREAMS_MAX {
            return self.emit_result(id, cookie, Err(Fault::Busy));
        }
        self.counters.gets_served += 1;
        let into_offset = body.into_offset.get();
        let kind = StreamKind::Serve { region: key.slot, cookie, into_offset };
        peer.streams.push_back(Stream { kind, left: slice });
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
        region.held += 1;
        let kind = IncomingKind::Put { region: key.slot, cookie, bytes, total };
        self.land_into(link, Some(id), prefix, slice, kind)
    }

    pub(crate) fn put_landed(
        &mut self,
        peer: Option<PeerId>,
        slot: SlotId,
        cookie: u64,
        bytes: u64,
        total: u64,
    ) {
        if let Some((id, peer)) = peer.and_then(|id| Some((id, self.peers.get_mut(id.0)?))) {
            let index = peer.puts.iter().position(|put| put.0 == slot && put.1 == cookie);
            let before = index.map_or(0, |index| peer.puts[index].2);
            if before + bytes >= total {
                if let Some(index) = index {
                    peer.puts.remove(index);
                }
                self.emit_result(id, cookie, Ok(()));
            } else if let Some(index) = index {
                peer.puts[index].2 += bytes;
            } else {
                if peer.puts.len() >= PUTS_MAX {
                    peer.puts.pop_front();
                }
                peer.puts.push_back((slot, cookie, bytes));
            }
        }
        self.region_let_go(slot);
    }
}
