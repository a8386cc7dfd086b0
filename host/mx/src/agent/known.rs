//! An interface of the table of an agent, as clients are told of it.

use std::time::Duration;

use ropewalk_wire::mxoe::{Announcement, Order, Station};
use ropewalk_wire::packets;

/// An interface as the agent knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownPeer {
    /// In the agent's table; 0 is the agent's own interface.
    pub index: u16,
    pub station: Station,
    /// The index of the agent's interface in the peer's table.
    pub reverse: Option<u16>,
    /// Of its life, where it has sent a beacon.
    pub serial: Option<u32>,
    /// It is one of ours.
    pub ours: Option<Announcement>,
    /// The byte order of its fields, where it is known: another one than that of the agent's interface is understood by
    /// neither.
    pub order: Option<Order>,
    pub name: Option<String>,
    /// It is the agent's own interface.
    pub is_own: bool,
    /// The time for which nothing was heard of it.
    pub age: Duration,
}

impl KnownPeer {
    /// Whether its endpoints take our own packets, in the version that we speak.
    pub fn takes_ours(&self) -> bool {
        let takes = |it: Announcement| {
            it.version == packets::VERSION && it.features & Announcement::TAKES_OURS != 0
        };
        self.ours.is_some_and(takes)
    }
}
