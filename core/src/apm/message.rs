//! What the two sides of an association say to each other about paths.
//!
//! `LOAD` and its answers belong to the path that they take, and are lost with it. `MIGRATE` and `WITHDRAW` are spans:
//! they arrive once, perhaps late and in another order, over whatever path is left.

use super::load::ArmingId;
use super::migrate::Move;
use super::path::PathId;
use super::state::Rule;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Message {
    /// Load `path` as the alternate. It says the sender's newest migration, for it may overtake the `MIGRATE`.
    Load {
        arming: ArmingId,
        path: PathId,
        newest: Option<Move>,
        /// A caller wants this path in place of another one that is armed, or being armed.
        replaces: bool,
    },
    Loaded {
        arming: ArmingId,
    },
    Refused {
        arming: ArmingId,
        rule: Rule,
    },
    Migrate(Move),
    /// An arming is over, or the sender's operator drains a path or brings it up again, or both.
    Withdraw {
        arming: Option<ArmingId>,
        drain: Option<Drain>,
    },
}

/// What the sender's operator wants of a path now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Drain {
    pub path: PathId,
    /// False: it may be used again.
    pub is_drained: bool,
    /// Counts such orders of the sender's about this path; it wraps. Messages arrive in any order: the newest one counts.
    pub order: u16,
}
