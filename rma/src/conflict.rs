//! What the checking mode of a window tells ([`WindowOptions::check`](crate::WindowOptions::check)), in words.

use std::fmt;
use std::ops::Range;

use ropewalk_base::memory::{Element, Operator};

use crate::epochs::Call;

/// What an operation does to its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Put,
    Get,
    Update { element: Element, operator: Operator, fetches: bool },
    Swap { element: Element },
}

/// An operation, for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    pub(crate) kind: Kind,
    pub(crate) rank: u32,
    /// From its first byte to behind its last one, at the target.
    pub(crate) bytes: Range<i64>,
}

impl fmt::Display for Described {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = self.bytes;
        match self.kind {
            Kind::Put => write!(f, "put")?,
            Kind::Get => write!(f, "get")?,
            Kind::Update { element, operator, fetches } => {
                let name = if fetches { "get_accumulate" } else { "accumulate" };
                write!(f, "{name} ({operator:?} of {element:?})")?;
            }
            Kind::Swap { element } => write!(f, "compare_and_swap (of {element:?})")?,
        }
        write!(f, " on rank {}, bytes {start} to {}", self.rank, end - 1)
    }
}

/// What is wrong about an operation, or about two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Clash {
    /// Both are at the same bytes of the target, which one of them writes, and they are not both accumulates.
    Target,
    /// Both are accumulates, of elements of different types.
    Types,
    /// Both are accumulates, whose elements overlap in part.
    Parts,
    /// Both are accumulates, with different operators where the window promises one.
    Operators,
    /// Both use the same memory of this rank, and one of them writes it. `bytes` are addresses then.
    Local,
}

/// A misuse that the checking mode found. The call did nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Conflict {
    /// An operation does not go together with one that is not complete.
    Operations { clash: Clash, earlier: Described, later: Described, bytes: Range<i64> },
    /// The last fence said that no operation comes behind it.
    Succeeds(Described),
    /// The last fence or post said that no operation writes this rank's memory.
    WritesHere(Described),
    /// The window is freed within an epoch: so many operations are not complete.
    Free { open: Call, ranks: Vec<u32>, pending: usize, last: Option<Described> },
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Conflict::Operations { clash, earlier, later, bytes } => {
                // Messages have the last byte, not the one behind it.
                let (start, end) = (bytes.start, bytes.end - 1);
                let why = match clash {
                    Clash::Local => {
                        return write!(
                            f,
                            "{later}, uses addresses {start:#x} to {end:#x} of this rank, as does {earlier}, and one of them writes there: complete that one first"
                        );
                    }
                    Clash::Target => "complete that one first",
                    Clash::Types => "accumulates of one epoch have one type at a byte",
                    Clash::Parts => "their elements overlap in part",
                    Clash::Operators => "the window promises one operator (same_op)",
                };
                write!(f, "{later}, overlaps {earlier}, at bytes {start} to {end}: {why}")
            }
            Conflict::Succeeds(operation) => {
                write!(f, "{operation}, comes behind a fence that said NO_SUCCEED: leave that out")
            }
            Conflict::WritesHere(operation) => {
                write!(
                    f,
                    "{operation}, writes memory that nobody writes, as NO_PUT says: leave that out"
                )
            }
            Conflict::Free { open, ranks, pending, last } => {
                write!(f, "free within the epoch of {open}")?;
                if !ranks.is_empty() {
                    write!(f, " of ranks {ranks:?}")?;
                }
                match last {
                    Some(last) => {
                        write!(
                            f,
                            ": operations that are not complete: {pending}, the last one {last}"
                        )
                    }
                    None => write!(f, ": end that one first"),
                }
            }
        }
    }
}
