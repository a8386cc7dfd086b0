//! Judges what peers want of our memory.
//!
//! Invariant: a key is checked by slot, generation, secret, audience and range before a byte moves.

use ropewalk_base::memory::Slice;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::RemoteKey;
use ropewalk_wire::frame::key_from_wire;
use zerocopy::little_endian::U64;

use crate::api::*;
use crate::engine::Core;

impl Core {
    /// A key as a frame has it. That of the region where it is a name: who judges it sees no difference.
    #[inline(always)]
    pub(super) fn key_of(&self, slot: U64, secret: U64) -> RemoteKey {
        let key = key_from_wire(slot, secret);
        if key.is_named() { self.key_of_name(key) } else { key }
    }

    #[cold]
    fn key_of_name(&self, name: RemoteKey) -> RemoteKey {
        match self.regions.named(name.secret) {
            Some((slot, region)) => RemoteKey { slot, secret: region.secret },
            // It finds no region.
            None => name,
        }
    }

    /// Something was done to a region: it counts, and its owner may want to know.
    #[inline(always)]
    pub(super) fn note_served(&mut self, slot: SlotId, what: Served) {
        self.counters.accesses_served += 1;
        if self.regions.any_counts() {
            self.tell_served(slot, what);
        }
    }

    #[cold]
    fn tell_served(&mut self, slot: SlotId, what: Served) {
        if let Some(region) = self.regions.get(slot).filter(|region| region.counts) {
            let key = RemoteKey { slot, secret: region.secret };
            self.outputs.push(Output::Served { key, what });
        }
    }

    /// Checks a key as a peer presents it; the slice of the range where it holds.
    pub(super) fn check_key(
        &self,
        id: PeerId,
        key: RemoteKey,
        offset: u64,
        len: u64,
        write: bool,
    ) -> Option<Slice> {
        let region = self.regions.get(key.slot)?;
        let holds = region.secret == key.secret
            && !region.closing
            && self.is_among(id, region.audience)
            && (!write || region.writable)
            && offset <= region.slice.len
            && len <= region.slice.len - offset;
        holds.then(|| region.slice.part(offset, len))
    }
}
