//! What a machine tells the application.

use super::cause::{ArmCause, MoveCause};
use super::path::PathId;
use super::request::{Outcome, Ticket};
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
    /// Nothing comes back over the path, or its rail says that it is broken: traffic leaves it. Told by the driver.
    Suspect {
        path: PathId,
    },
    /// The path has lost its link. Told by the driver.
    Failed {
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
