//! Puts of a peer by frames: each is placed, and the last one is answered.

use std::collections::VecDeque;

use ropewalk_base::error::Fault;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{LinkId, Placement};
use ropewalk_wire::frame::{Prefix, PutBody, key_from_wire};

use crate::api::*;
use crate::engine::Core;
use crate::incoming::IncomingKind;

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
