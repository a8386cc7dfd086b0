//! The seam between windows and what carries them.
//!
//! [`Window`](crate::Window) judges each call: epochs, arguments, ranges of the caller's memory. What is left reaches one
//! `Way`, which moves the bytes. All ways keep MPI's semantics, and the same tests.

use std::ops::Range;
use std::sync::Arc;

use ropewalk_base::memory::Cells;

use crate::epochs::LockKind;
use crate::error::Error;
use crate::operation::Operation;
use crate::ticket::Ticket;

/// How far a flush waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Until memory of this rank may be used again, and results are here.
    Local,
    /// Until operations are complete at their targets, too.
    Target,
}

/// How a window's operations and synchronisation reach other ranks. Calls come in an order that the rules of epochs allow.
///
/// `check` is false where the user asserts `NO_CHECK`. A call that ends an epoch ends it in any case, and tells then what was
/// refused ([`Error::Refused`]), or who is lost ([`Error::Lost`]). Groups are sorted.
pub(crate) trait Way: Send + Sync {
    /// Starts an operation, or queues it. Where there is a ticket, each part that is under way is added to it before this
    /// returns, and ends when it is complete at the origin. Does not wait.
    fn operate(&self, operation: &Operation<'_>, ticket: Option<&Arc<Ticket>>)
    -> Result<(), Error>;

    /// Opens the way to all ranks; before that, with `flush`, everything issued is completed at its target, and in any case
    /// all ranks come together.
    fn fence(&self, flush: bool) -> Result<(), Error>;

    /// Begins an access epoch. Never waits.
    fn start(&self, group: &[u32], check: bool) -> Result<(), Error>;

    /// Ends it: operations are complete at the origin, and all targets are told.
    fn complete(&self, group: &[u32]) -> Result<(), Error>;

    /// Begins an exposure epoch. Never waits.
    fn post(&self, group: &[u32], check: bool) -> Result<(), Error>;

    /// Whether all ranks of the group completed. It is not asked again once it said so.
    fn test(&self, group: &[u32]) -> Result<bool, Error>;

    /// The same, waiting.
    fn wait(&self, group: &[u32]) -> Result<(), Error>;

    /// Begins an epoch for one more rank. Waits for the lock of this rank itself only.
    fn lock(&self, kind: LockKind, rank: u32, check: bool) -> Result<(), Error>;

    /// Ends it: operations are complete at the target.
    fn unlock(&self, rank: u32) -> Result<(), Error>;

    fn lock_all(&self, check: bool) -> Result<(), Error>;

    fn unlock_all(&self) -> Result<(), Error>;

    /// Completes what this rank issued to one rank, or to all.
    fn flush(&self, rank: Option<u32>, reach: Reach) -> Result<(), Error>;

    /// Starts a put, if there is one; after it, and after all that was issued to the rank before, a counter there grows by 1.
    fn notify(&self, put: Option<&Operation<'_>>, rank: u32, counter: u32) -> Result<(), Error>;

    /// Notices that a counter of this rank has had.
    fn notices(&self, counter: u32) -> u64;

    /// Waits until they are so many. A rank that is lost ends it.
    fn wait_notices(&self, counter: u32, least: u64) -> Result<(), Error>;

    /// Starts what waits for a rank, and makes progress. Never waits.
    fn push(&self, rank: u32) -> Result<(), Error>;

    /// Waits until a ticket of an operation on a rank is done.
    fn wait_for(&self, rank: u32, ticket: &Ticket) -> Result<(), Error>;

    /// Makes progress on all windows of the team.
    fn progress(&self) -> Result<(), Error>;

    /// A dynamic window: memory of this rank is reached by its address from now on.
    fn attach(&self, cells: &Cells, range: Range<usize>) -> Result<(), Error>;

    /// Nobody reaches that at this address any more. Waits for what is under way there.
    fn detach(&self, address: u64) -> Result<(), Error>;

    /// All ranks come together; then nobody reaches the memory any more.
    fn free(&self) -> Result<(), Error>;
}
