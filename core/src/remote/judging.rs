//! Judges what peers want of our memory.
//!
//! Invariant: a key is checked by slot, generation, secret, audience and range before a byte moves.

use ropewalk_base::memory::Slice;
use ropewalk_base::verb::RemoteKey;

use crate::api::*;
use crate::engine::Core;

impl Core {
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
}
