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
    },
    Loaded {
        arming: ArmingId,
    },
    Refused {
        arming: ArmingId,
        rule: Rule,
    },
    Migrate(Move),
    /// An arming is over, or the sender's operator drains a path, or both.
    Withdraw {
        arming: Option<ArmingId>,
        drained: Option<PathId>,
    },
}
