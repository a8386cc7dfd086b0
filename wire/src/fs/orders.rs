//! Orders of operators about the places of groups: servers that are to leave, an even spread.

use serde::{Deserialize, Serialize};

/// An order of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServerOrder {
    /// None: what holds now is asked for.
    Show,
    /// The groups of a server go to other servers; `heir`: to this one, where it can take them.
    Drain { server: u32, heir: Option<u32> },
    /// A server is to stay after all.
    Keep { server: u32 },
    /// A server without groups is forgotten, and its number is free.
    Remove { server: u32 },
    /// Groups are spread evenly over the servers.
    Rebalance,
    /// No server is to leave, and no spread is wanted any more.
    Cancel,
    /// Moves that were not begun yet wait; or they go on.
    Pause { paused: bool },
    /// Each server sends at most so much for moves; 0: as much as it can.
    Rate { mib_per_second: u32 },
    // Version 11.
    /// The disk of a server is gone for good, and nobody brings another one: its groups go on without it, where somebody else has
    /// something of them.
    Lost { server: u32 },
}

/// A server that is to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Departure {
    pub server: u32,
    /// The server that takes its groups, where it can.
    pub heir: Option<u32>,
}

/// The orders that hold.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Orders {
    /// By number.
    pub departures: Vec<Departure>,
    /// An even spread is wanted.
    pub spread: bool,
    pub paused: bool,
    /// 0: no limit.
    pub mib_per_second: u32,
}

/// Groups on their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Moves {
    /// Groups with a newcomer that is heard, or with a member that is about to go.
    pub under_way: u64,
    /// Groups that have yet to move, or lack a member, and wait for their turn.
    pub waiting: u64,
    /// The same, but no server can take them, or their orderer is not heard.
    pub stuck: u64,
}

impl Moves {
    /// Whether nothing is left to be done.
    pub fn are_over(&self) -> bool {
        *self == Moves::default()
    }
}
