//! What a machine tells the application, and why.

use super::path::{PathId, Side};
use super::request::{Outcome, Ticket};
use super::state::Rule;
use crate::api::PeerId;

/// A notice of one connection. The peer's id is the same before and after any number of migrations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Notice {
    pub peer: PeerId,
    pub what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum What {
    /// The alternate is proven.
    Armed {
        path: PathId,
    },
    /// REARM ended in MIGRATED.
    ArmFailed {
        path: PathId,
        cause: ArmCause,
    },
    /// The alternate is no longer proven: ARMED ended in REARM or MIGRATED.
    Disarmed {
        path: PathId,
        cause: ArmCause,
    },
    Migrated {
        from: PathId,
        to: PathId,
        cause: MoveCause,
        counter: u32,
    },
    /// The path is known now, or good again, or drained no more.
    Added {
        path: PathId,
    },
    Mended {
        path: PathId,
    },
    NoPath,
    /// A path is usable again.
    Resumed {
        path: PathId,
    },
    /// A request ended whose caller asked for an event.
    Done {
        ticket: Ticket,
        outcome: Outcome,
    },
}

/// Why an arming ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ArmCause {
    Probes(ProbeFault),
    /// The standing probes of an armed path turned bad.
    StandbyBad,
    PathFailed,
    Refused(Rule),
    Withdrawn,
    Drained,
    /// A migration came first.
    Overtaken,
    NoPath,
    /// The connection ended.
    ConnectionOver,
}

/// What the probes of an arming found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProbeFault {
    NoRoute,
    /// Only this direction is dead: to the peer, or from it.
    OneWayOut,
    OneWayIn,
    Mtu,
    Loss,
    Corrupt,
}

/// Why traffic moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MoveCause {
    /// By a request, for instance to balance load.
    Manual,
    PrimarySuspect,
    PrimaryFailed,
    Drained,
    /// The migration of that side, which is the peer's, counts.
    Decided(Side),
}
