//! An unmatched message, and the match criteria of a receive.

use ropewalk_base::memory::BufferId;
use ropewalk_base::verb::{Help, RemoteKey};

use crate::api::{Channel, OperationId, PeerId};

/// A message that arrived before its receive.
#[derive(Debug)]
pub(crate) struct Unmatched {
    pub channel: Channel,
    pub peer: PeerId,
    /// The session that it came in: its credit is that session's.
    pub session: u32,
    pub bits: u64,
    pub message: u64,
    pub bytes: u64,
    pub content: Content,
    pub acknowledge: u8,
    /// It is being offered to the user: no receive takes it meanwhile.
    pub shown: bool,
}

/// The place of an unmatched message's bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Content {
    /// There are none.
    Empty,
    /// On their way into a staging buffer; a receive may have claimed them already.
    Arriving { claimed_by: Option<OperationId> },
    /// In a staging buffer.
    Staged(BufferId),
    /// Still at the sender, who would help so to fetch it.
    Rendezvous(RemoteKey, Help),
}

/// The match criteria of a receive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub channel: Channel,
    pub source: Option<PeerId>,
    pub bits: u64,
    pub mask: u64,
}

impl Wanted {
    #[inline]
    pub(super) fn accepts(&self, channel: Channel, peer: PeerId, bits: u64) -> bool {
        self.channel == channel
            && self.source.is_none_or(|source| source == peer)
            && (self.bits ^ bits) & self.mask == 0
    }
}

impl Unmatched {
    /// Whether no receive has claimed it, and nobody is asked about it.
    pub(super) fn is_free(&self) -> bool {
        !self.shown && !matches!(self.content, Content::Arriving { claimed_by: Some(_) })
    }
}
