//! Why an arming ended, and why traffic moved.

use super::path::Side;
use super::state::Rule;

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
    /// The other paths rested, since the connection was idle, and the one that is wanted did not come up in time.
    NoneCameUp,
    /// The connection ended.
    ConnectionOver,
}

/// The finding of an arming's probes.
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
