//! What an endpoint tells of the paths of its sessions.

use std::time::Duration;

use ropewalk_base::time::Time;

use super::notice::What;
use crate::api::PeerId;

/// Something that happened to the paths of a peer, when, and at what cost. Its peer is the id under which messages of the
/// peer are known; it is the same before and after any number of migrations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PathEvent {
    pub peer: PeerId,
    pub what: What,
    /// When it was noticed, by the endpoint's clock.
    pub at: Time,
    /// Of a [`What::Migrated`] that a fault caused on this side: for how long the path that was left had delivered nothing
    /// of what went over it.
    pub detected_after: Option<Duration>,
    /// Of the same: bytes that were under way over that path, and went again over another.
    pub resent_bytes: u64,
}

impl PathEvent {
    /// An event without a cost.
    pub fn new(peer: PeerId, what: What, at: Time) -> PathEvent {
        PathEvent { peer, what, at, detected_after: None, resent_bytes: 0 }
    }
}
