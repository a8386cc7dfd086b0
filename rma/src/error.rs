//! Errors of windows and teams, in words that name the window, the rank and the rule or range.

use std::fmt;

use ropewalk_base::error::Class;
use ropewalk_base::memory::{Element, Operator, OutOfCells};
use ropewalk_net::Fault;
use thiserror::Error;

use crate::conflict::Conflict;
use crate::epochs::Rule;
use crate::options::Implementation;

/// How messages name a window: its number in its team, and what the user called it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowName {
    pub number: u32,
    pub name: String,
}

impl fmt::Display for WindowName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "window {}", self.number)?;
        if self.name.is_empty() { Ok(()) } else { write!(f, " ({})", self.name) }
    }
}

/// Bad arguments of a call, apart from epochs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BadArgument {
    #[error("the origin has {origin} bytes of data and the target {target}")]
    Lengths { origin: u64, target: u64 },
    #[error("the result has {result} bytes of data and the target {target}")]
    ResultLengths { result: u64, target: u64 },
    #[error("an accumulate needs one predefined type at both sides, and the same one")]
    Elements,
    #[error("{operator:?} is not defined for {element:?}{}", without_arithmetic(*.element))]
    Operator { element: Element, operator: Operator },
    #[error("elements of the target overlap, which an accumulate must not have")]
    Overlap,
    #[error("{0:?} needs data of the origin")]
    NoSource(Operator),
    #[error("this call takes one element of a predefined type at each side")]
    NotOne,
    #[error("{0:?} cannot be compared and swapped")]
    NotComparable(Element),
    #[error("the data of the origin are outside of its memory: bytes {start} to {end} of {len}")]
    Outside { start: i128, end: i128, len: usize },
    #[error("the displacement {0} reaches farther than addresses do")]
    Displacement(u64),
    #[error(transparent)]
    Range(#[from] OutOfCells),
    #[error("a displacement unit of 0 bytes: it is at least 1")]
    Unit,
    #[error("an eager threshold of {bytes} bytes: at most {most} are allowed")]
    Eager { bytes: u32, most: u32 },
    #[error("a window with {counters} counters: at most {most} are allowed")]
    Counters { counters: u32, most: u32 },
    #[error("counter {counter}: the window has {counters} (option `counters`)")]
    Counter { counter: u32, counters: u32 },
    #[error("an exchange of {bytes} bytes: at most {most} are allowed")]
    Exchange { bytes: usize, most: usize },
    #[error("the window was not made for loads and stores of all ranks: allocate_shared does that")]
    NotShared,
    #[error("the window is not dynamic: create_dynamic makes one that memory is attached to")]
    NotDynamic,
    #[error("a dynamic window has displacements in bytes, and no unit of {0}")]
    DynamicUnit(u32),
    #[error(
        "{bytes} bytes from address {address:#x} on are attached already, at least some of them"
    )]
    Attached { address: u64, bytes: u64 },
    #[error("nothing is attached that begins at address {0:#x}")]
    NotAttached(u64),
    #[error("no more than {most} regions are attached at a time")]
    Regions { most: usize },
    #[error(
        "{bytes} bytes of this memory are exposed already by a window of another implementation or team ({other:?}): accumulates through both would get lost, so free that one first"
    )]
    Regime { bytes: usize, other: Implementation },
    #[error("there is no rank {rank}: the window has {size}")]
    NoRank { rank: u32, size: u32 },
}

/// Why a target refused an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// It does not lie in the target's window. `at` is its first byte, `bytes` how far it reaches.
    Bounds { verb: &'static str, at: i64, bytes: u64, window_bytes: u64 },
    /// The addresses, from `at` on, do not lie in one region that the target has attached to its dynamic window.
    Unattached { verb: &'static str, at: i64, bytes: u64 },
    /// The target has no such window, or took the memory away under it.
    Window { verb: &'static str },
    /// The datatype is none, or not known there.
    Type { verb: &'static str },
    /// Type and operator do not go together.
    Operator { verb: &'static str },
    /// The target has no room for its result at the moment. It changed nothing, and may be tried again.
    Room { verb: &'static str },
    /// Whoever held the lock before died with it: what it wrote may be half done. The lock is granted all the same.
    OwnerDied,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Bounds { verb, at, bytes, window_bytes } => write!(
                f,
                "refused a {verb} of {bytes} bytes from byte {at} on: its window has {window_bytes} bytes"
            ),
            Refusal::Unattached { verb, at, bytes } => write!(
                f,
                "refused a {verb} of {bytes} bytes from address {at:#x} on: they are not in one region that it has attached"
            ),
            Refusal::Window { verb } => {
                write!(
                    f,
                    "refused a {verb}: its memory is not there any more (was it unmapped, or the window freed?)"
                )
            }
            Refusal::Type { verb } => {
                write!(f, "refused a {verb}: its datatype is not known there")
            }
            Refusal::Operator { verb } => {
                write!(f, "refused a {verb}: the operator is not defined for the type")
            }
            Refusal::Room { verb } => {
                write!(f, "refused a {verb}: it has no room for that now (try it again)")
            }
            Refusal::OwnerDied => {
                write!(f, "gave a lock whose last holder died: its window may be half written")
            }
        }
    }
}

/// Why a rank is of no more use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Loss {
    #[error("cannot be reached any more: {0}")]
    Session(Fault),
    #[error("sent what makes no sense: {0}")]
    Protocol(&'static str),
    #[error("is lost, as other ranks say")]
    Told,
    #[error("lives, but has no such window")]
    Without,
}

/// Errors of windows and teams.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The call broke a rule of epochs. Nothing happened.
    #[error("{window}, rank {rank}: {rule}")]
    Misuse { window: WindowName, rank: u32, rule: Rule },
    /// The checking mode found a misuse ([`WindowOptions::check`](crate::WindowOptions::check)). Nothing happened.
    #[error("{window}, rank {rank}: {conflict}")]
    Conflict { window: WindowName, rank: u32, conflict: Box<Conflict> },
    /// The arguments make no sense. Nothing happened.
    #[error("{window}, rank {rank}: {argument}")]
    Argument { window: WindowName, rank: u32, argument: BadArgument },
    /// A target refused an operation of this rank, and changed nothing. The next synchronisation tells of it, and so does the
    /// operation's request. `further`: so many more were refused since the last one.
    #[error("{window}: rank {rank} {refusal}{}", further_refusals(*.further))]
    Refused { window: WindowName, rank: u32, refusal: Refusal, further: u64 },
    /// A rank that the call waits for is lost. The epoch is over, its effect unknown. `operation`: one of this rank's that was
    /// under way then, or waited, where the implementation keeps them apart (not [`Implementation::Messages`]); a request has its
    /// own one.
    #[error("{window}: rank {rank} {loss}{}", interrupted(operation.as_ref()))]
    Lost { window: WindowName, rank: u32, loss: Loss, operation: Option<Interrupted> },
    /// The same in a call of the team.
    #[error("rank {rank} of the team {loss}")]
    TeamLost { rank: u32, loss: Loss },
    /// The arguments of a call of the team make no sense.
    #[error("team: {0}")]
    Team(BadArgument),
    /// Ranks made different windows in one collective call.
    #[error("{window}: rank {rank} made it with another {what}")]
    Disagree { window: WindowName, rank: u32, what: &'static str },
    /// The memory of a window that all ranks were to load and store could not be mapped by a rank.
    #[error(
        "the ranks do not share memory: rank {rank} cannot map that of all others (is it of another host or user?)"
    )]
    NotShared { rank: u32 },
    #[error("the endpoint is closed")]
    Closed,
    /// A bounded resource of this process is used up.
    #[error("this process has no room for {0}")]
    Room(&'static str),
}

/// An operation that a loss has ended. `at` is its first byte at the target, or its address there; `bytes` how far it reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interrupted {
    pub verb: &'static str,
    pub at: i64,
    pub bytes: u64,
}

fn interrupted(operation: Option<&Interrupted>) -> String {
    let of = |it: &Interrupted| {
        format!(" (a {} of {} bytes from byte {} on was not over)", it.verb, it.bytes, it.at)
    };
    operation.map_or(String::new(), of)
}

fn without_arithmetic(element: Element) -> &'static str {
    match element.is_calculated() {
        true => "",
        false => {
            ", with which this processor does not calculate: it takes Replace and Nothing only"
        }
    }
}

fn further_refusals(further: u64) -> String {
    match further {
        0 => String::new(),
        1 => " (and one more operation was refused)".into(),
        many => format!(" (and {many} more operations were refused)"),
    }
}

impl Error {
    /// The same loss, with an operation that it ended.
    pub(crate) fn during(self, ended: Interrupted) -> Error {
        match self {
            Error::Lost { window, rank, loss, .. } => {
                Error::Lost { window, rank, loss, operation: Some(ended) }
            }
            other => other,
        }
    }

    /// The class by which recovery is decided.
    pub fn class(&self) -> Class {
        match self {
            Error::Misuse { .. } | Error::Conflict { .. } => Class::Caller,
            Error::Argument { .. } | Error::Team(_) => Class::Caller,
            Error::Disagree { .. } | Error::NotShared { .. } => Class::Caller,
            Error::Refused { .. } => Class::Operation,
            Error::Lost { .. } | Error::TeamLost { .. } => Class::Peer,
            Error::Closed | Error::Room(_) => Class::Node,
        }
    }
}
