//! A cell of the table: branches, each with a condition, and next states with actions or a rule that refuses.

use super::state::{Connection, Event, MigrationState, Rule};

/// When a branch is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum When {
    Always,
    /// The event names something that breaks a rule; [`Branch::Unfit`] refuses by that rule.
    Unfit,
    /// The `LOAD` of the arming under way came over its other path, too.
    Again,
    /// The message is older than what is known, or names an arming that is over.
    Stale,
    /// The `LOAD` crosses an arming of this side, which counts.
    Crossed,
    /// The answer is `REFUSED`.
    Denied,
    /// The `WITHDRAW` ends the arming under way.
    Ends,
    /// Both answers are there, probes are good both ways, and eager data from before the arming is acknowledged.
    Complete,
    /// The event's path is the primary one.
    IsPrimary,
    /// The event's path is the primary one, and no other proven path is good.
    IsOnly,
    /// The event's path is the alternate.
    IsAlternate,
    /// A proven path that is good is there beside the primary one.
    Spare,
    /// The event's path may carry data.
    Usable,
}

/// The effects of a step beside its change of states, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The event's path becomes the alternate.
    SetAlternate,
    /// The load is kept until the connection sends.
    KeepLoad,
    /// An arming of this side begins: `LOAD` on both paths, probes, watch of old eager data.
    BeginArming,
    /// The peer's arming takes the place of any other. `WITHDRAW` goes out for one of this side.
    AdoptArming,
    /// `LOADED` or `REFUSED`, over the path that the `LOAD` took.
    AnswerLoaded,
    AnswerRefused,
    /// The alternate is proven; whoever asked for it hears so.
    Arm,
    /// The proof by probes begins anew; the user hears that the alternate is disarmed.
    Disarm,
    /// The arming is over without a migration; whoever asked hears the cause.
    EndArming,
    /// The arming is of no use any more; or the event's path is drained, or drained no more.
    SendWithdraw,
    MarkDrained,
    MarkUp,
    SetWeight,
    /// The paths' roles change; the arming is over.
    MoveToAlternate,
    MoveToSpare,
    MoveToPath,
    /// The next counter, with the new roles.
    SendMigrate,
    /// The roles become those of the message; the arming is over.
    Follow,
    TellMigrated,
    TellMended,
    TellNoPath,
    TellResumed,
    /// All that belongs to the association is forgotten, apart from paths and their health.
    Clear,
}

/// One way out of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Branch {
    /// `None`: the state stays.
    Go {
        when: When,
        connection: Option<Connection>,
        migration: Option<MigrationState>,
        actions: &'static [Action],
    },
    Refuse {
        when: When,
        rule: Rule,
    },
    /// When [`When::Unfit`]: refused by the rule that the event's data breaks.
    Unfit,
}

/// A cell; never empty.
pub type Cell = &'static [Branch];

/// One event in some states.
#[derive(Debug)]
pub struct Row {
    pub event: Event,
    pub connections: &'static [Connection],
    pub migrations: &'static [MigrationState],
    pub cell: Cell,
}

impl Branch {
    pub fn when(&self) -> When {
        match self {
            Branch::Go { when, .. } | Branch::Refuse { when, .. } => *when,
            Branch::Unfit => When::Unfit,
        }
    }
}
