//! The exposing side: the table of regions that a link's peer may access.
//!
//! Invariant: this side never reads its table, only its own notes, so that a peer's scribbling harms the peer's
//! access alone.

use std::sync::atomic::{Ordering, fence};

use ropewalk_base::error::Fault;
use ropewalk_base::hash::{HashMap, HashSeed};
use ropewalk_base::memory::{BufferTable, Slice};
use ropewalk_base::verb::RemoteKey;

use crate::arena;
use crate::native::{PeerMemory, Piece, REGION_PIECES_MAX};
use crate::segment::{EXPOSURES_MAX, PIECES_ONE, Segment, Side};

/// Free lists that a link keeps for reuse.
const LISTS_KEPT_MAX: usize = 16;

/// The regions that this side exposes over one link.
#[derive(Debug)]
pub struct Exposures {
    /// Reads are announced, too.
    within_process: bool,
    live: HashMap<u32, Exposure>,
    /// Indices that were marked dead, but may still be announced.
    revoking: Vec<u32>,
    spare: Vec<Vec<Piece>>,
}

#[derive(Debug)]
struct Exposure {
    key: RemoteKey,
    list: Vec<Piece>,
    revoked: bool,
    /// An announcement is waited for.
    guarded: bool,
}

impl Exposures {
    /// Nothing exposed to a peer so reached.
    pub fn to(peer: PeerMemory) -> Exposures {
        let within_process = peer == PeerMemory::Own;
        let live = HashMap::with_hasher(HashSeed::OWN_KEYS);
        Exposures { within_process, live, revoking: Vec::new(), spare: Vec::new() }
    }

    /// Makes `region` accessible.
    pub fn expose(
        &mut self,
        segment: &Segment,
        side: Side,
        key: RemoteKey,
        region: Slice,
        writable: bool,
        buffers: &BufferTable,
    ) -> Result<(), Fault> {
        let index = key.slot.index;
        if index >= EXPOSURES_MAX || self.live.contains_key(&index) {
            return Err(Fault::Busy);
        }
        let segments =
            if writable { buffers.resolve_writable(region) } else { buffers.resolve(region) };
        let (mut pieces, mut bytes, mut address) = (0, 0u64, 0u64);
        let mut arena = None;
        for piece in segments.clone() {
            if pieces == 0 {
                address = piece.address() as u64;
                arena = arena::find(address, piece.len() as u64);
            }
            pieces += 1;
            bytes += piece.len() as u64;
        }
        if key.slot.generation == 0 || bytes != region.len || pieces > REGION_PIECES_MAX {
            return Err(Fault::Invalid);
        }
        let mut list = Vec::new();
        if pieces > 1 {
            list = self.spare.pop().unwrap_or_default();
            list.extend(segments.map(|piece| [piece.address() as u64, piece.len() as u64]));
            address = list.as_ptr().expose_provenance() as u64;
        }
        let entry = segment.entry(side, index);
        entry.secret().store(key.secret, Ordering::Relaxed);
        entry.address().store(address, Ordering::Relaxed);
        entry.bytes().store(bytes, Ordering::Relaxed);
        let count = if pieces > 1 { pieces as u64 } else { PIECES_ONE };
        entry.pieces().store(count, Ordering::Relaxed);
        entry.writable().store(u64::from(writable), Ordering::Relaxed);
        let (id, descriptor) = arena.map_or((0, 0), |arena| (arena.id, arena.descriptor as u64));
        entry.arena().store(id, Ordering::Relaxed);
        entry.descriptor().store(descriptor, Ordering::Relaxed);
        entry.live().store(u64::from(key.slot.generation), Ordering::Release);
        let guarded = writable || self.within_process;
        self.live.insert(index, Exposure { key, list, revoked: false, guarded });
        Ok(())
    }

    /// Ends access under `key`. True where nobody holds the region any more; otherwise
    /// [`Exposures::settled`] will name the key.
    pub fn revoke(&mut self, segment: &Segment, side: Side, key: RemoteKey) -> Result<bool, Fault> {
        let index = key.slot.index;
        let exposure = self.live.get_mut(&index).filter(|exposure| exposure.key == key);
        let Some(exposure) = exposure.filter(|exposure| !exposure.revoked) else {
            return Err(Fault::BadKey);
        };
        exposure.revoked = true;
        let guarded = exposure.guarded;
        segment.entry(side, index).live().store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !(guarded && announced(segment, side, index)) {
            self.forget(index);
            return Ok(true);
        }
        self.revoking.push(index);
        self.publish_revoking(segment, side);
        Ok(false)
    }

    /// A key whose revocation is complete now. To be asked until it answers `None`.
    pub fn settled(&mut self, segment: &Segment, side: Side) -> Option<RemoteKey> {
        let position = self.revoking.iter().position(|index| !announced(segment, side, *index))?;
        let index = self.revoking.swap_remove(position);
        self.publish_revoking(segment, side);
        self.forget(index)
    }

    /// Ends access under all keys of this link; [`Exposures::is_held`] tells when it is over. Each may still be
    /// revoked, by a caller that wants to know when the peer has left that one.
    pub fn withdraw(&mut self, segment: &Segment, side: Side) {
        for index in self.live.keys() {
            segment.entry(side, *index).live().store(0, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// Whether the peer may still hold any region that was exposed over this link.
    pub fn is_held(&self, segment: &Segment, side: Side) -> bool {
        let accessing = segment.accessing(side.other()).load(Ordering::Acquire);
        // Anything else than the number of an entry of ours is garbage, and guards nothing.
        let index = accessing.checked_sub(1).and_then(|index| u32::try_from(index).ok());
        let exposure = index.and_then(|index| self.live.get(&index));
        exposure.is_some_and(|exposure| exposure.guarded)
    }

    /// Whether `settled` would name a key.
    pub fn has_settled(&self, segment: &Segment, side: Side) -> bool {
        self.revoking.iter().any(|index| !announced(segment, side, *index))
    }

    /// Whether revocations wait.
    pub fn is_revoking(&self) -> bool {
        !self.revoking.is_empty()
    }

    /// The peer is gone: a key whose revocation is complete thereby, until there is none.
    pub fn released(&mut self) -> Option<RemoteKey> {
        let index = self.revoking.pop()?;
        self.forget(index)
    }

    fn publish_revoking(&self, segment: &Segment, side: Side) {
        segment.revoking(side).store(self.revoking.len() as u32, Ordering::Relaxed);
    }

    fn forget(&mut self, index: u32) -> Option<RemoteKey> {
        let mut exposure = self.live.remove(&index)?;
        if exposure.list.capacity() > 0 && self.spare.len() < LISTS_KEPT_MAX {
            exposure.list.clear();
            self.spare.push(exposure.list);
        }
        Some(exposure.key)
    }
}

fn announced(segment: &Segment, side: Side, index: u32) -> bool {
    segment.accessing(side.other()).load(Ordering::Acquire) == u64::from(index) + 1
}
