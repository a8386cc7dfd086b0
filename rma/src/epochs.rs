//! Epochs: which calls are legal when, at one rank and on one window. No input, no output.
//!
//! A window has an access epoch (what this rank may do to others) and, apart from it, an exposure epoch (what others may do
//! here). A fence leaves both behind, as `FenceIssued`: the first operation makes an epoch of it, and start, post or a lock
//! cancels it.
//!
//! Invariant: a call that is refused changes nothing.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use crate::asserts::Asserts;

/// A call on a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    Fence,
    Start,
    Complete,
    Post,
    Wait,
    Test,
    Lock,
    Unlock,
    LockAll,
    UnlockAll,
    Flush,
    Request,
    Operation,
    Free,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Call::Fence => "fence",
            Call::Start => "start",
            Call::Complete => "complete",
            Call::Post => "post",
            Call::Wait => "wait",
            Call::Test => "test",
            Call::Lock => "lock",
            Call::Unlock => "unlock",
            Call::LockAll => "lock_all",
            Call::UnlockAll => "unlock_all",
            Call::Flush => "flush",
            Call::Request => "an operation with a request",
            Call::Operation => "an operation",
            Call::Free => "free",
        })
    }
}

/// The rule that a call broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Rule {
    #[error("{0} needs an access epoch: call fence, start, lock or lock_all first")]
    NoAccess(Call),
    #[error("{0} needs a lock: it is for epochs of lock and lock_all only")]
    NoPassive(Call),
    #[error("{call} while the access epoch of {open} is open: end that one first")]
    AccessOpen { call: Call, open: Call },
    #[error("{call} while the window is exposed by {open}: end that epoch first")]
    ExposureOpen { call: Call, open: Call },
    #[error("{call} without {begin} before it")]
    NotBegun { call: Call, begin: Call },
    #[error("rank {0} is not in the group of start")]
    NotStarted(u32),
    #[error("rank {0} is not locked: call lock for it, or lock_all, first")]
    NotLocked(u32),
    #[error("rank {0} is locked already: unlock it first")]
    LockedTwice(u32),
    #[error("{0} would have this rank's window locked and exposed at once")]
    LockedAndExposed(Call),
    #[error("the window takes no locks: make it without no_locks")]
    NoLocks,
    #[error(
        "a fence says that nothing precedes it (NO_PRECEDE), but operations were made since the last one: leave that out"
    )]
    Preceded,
    #[error(
        "{0} does not take one of these assertions: fence takes NO_STORE, NO_PUT, NO_PRECEDE, NO_SUCCEED; \
         post NO_CHECK, NO_STORE, NO_PUT; start and lock NO_CHECK"
    )]
    Assertion(Call),
    #[error("there is no rank {rank} among {size}")]
    NoRank { rank: u32, size: u32 },
    #[error("the window was freed")]
    Freed,
    #[error("a group names rank {0} twice")]
    NamedTwice(u32),
}

/// Who else may hold a lock at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    /// Others with a shared lock.
    Shared,
    /// Nobody.
    Exclusive,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Access {
    None,
    /// A fence, and no operation since.
    FenceIssued,
    Fence,
    Start(Arc<[u32]>),
    /// Those of `locked`.
    Lock,
    LockAll,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Exposure {
    /// Or that of a fence.
    None,
    Post(Arc<[u32]>),
}

/// The group of the last start, or post. Programs name one again and again, so its list is kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct LastGroup {
    /// As the program gave it.
    given: Vec<u32>,
    sorted: Arc<[u32]>,
}

impl LastGroup {
    /// The list of a group, of ranks below `size`, each once.
    fn sorted(&mut self, group: &[u32], size: u32) -> Result<Arc<[u32]>, Rule> {
        if self.given == group {
            return Ok(self.sorted.clone());
        }
        if let Some(rank) = group.iter().copied().find(|rank| *rank >= size) {
            return Err(Rule::NoRank { rank, size });
        }
        let mut sorted = group.to_vec();
        sorted.sort_unstable();
        if let Some(two) = sorted.windows(2).find(|two| two[0] == two[1]) {
            return Err(Rule::NamedTwice(two[0]));
        }
        *self = LastGroup { given: group.to_vec(), sorted: sorted.into() };
        Ok(self.sorted.clone())
    }
}

/// The epochs of a window at one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Epochs {
    rank: u32,
    size: u32,
    no_locks: bool,
    access: Access,
    exposure: Exposure,
    /// Ranks locked one by one, sorted.
    locked: Vec<u32>,
    last_started: LastGroup,
    last_posted: LastGroup,
}

impl Epochs {
    /// No epoch, at this rank of so many. `no_locks`: the window takes none.
    pub fn new(rank: u32, size: u32, no_locks: bool) -> Epochs {
        Epochs {
            rank,
            size,
            no_locks,
            access: Access::None,
            exposure: Exposure::None,
            locked: Vec::new(),
            last_started: LastGroup::default(),
            last_posted: LastGroup::default(),
        }
    }

    /// The call that opened the access epoch which stands in the way of another one.
    fn access(&self) -> Option<Call> {
        match &self.access {
            Access::None | Access::FenceIssued => None,
            Access::Fence => Some(Call::Fence),
            Access::Start(_) => Some(Call::Start),
            Access::Lock => Some(Call::Lock),
            Access::LockAll => Some(Call::LockAll),
        }
    }

    fn no_access(&self, call: Call) -> Result<(), Rule> {
        self.access().map_or(Ok(()), |open| Err(Rule::AccessOpen { call, open }))
    }

    fn no_exposure(&self, call: Call) -> Result<(), Rule> {
        let is_posted = self.exposure != Exposure::None;
        if is_posted { Err(Rule::ExposureOpen { call, open: Call::Post }) } else { Ok(()) }
    }

    fn check_rank(&self, rank: u32) -> Result<(), Rule> {
        let size = self.size;
        if rank < size { Ok(()) } else { Err(Rule::NoRank { rank, size }) }
    }

    fn has_locked(&self, rank: u32) -> bool {
        self.locked.binary_search(&rank).is_ok()
    }

    fn check_asserts(call: Call, asserts: Asserts, allowed: Asserts) -> Result<(), Rule> {
        if allowed.has(asserts) { Ok(()) } else { Err(Rule::Assertion(call)) }
    }

    /// A fence. True: operations were made since the last one, and have to be complete before the barrier.
    ///
    /// # Errors
    /// Another epoch is open, or the assertions are none of a fence, or wrong.
    pub fn fence(&mut self, asserts: Asserts) -> Result<bool, Rule> {
        Self::check_asserts(Call::Fence, asserts, Asserts::OF_FENCE)?;
        let preceded = self.access == Access::Fence;
        if !preceded {
            self.no_access(Call::Fence)?;
        }
        self.no_exposure(Call::Fence)?;
        if preceded && asserts.has(Asserts::NO_PRECEDE) {
            return Err(Rule::Preceded);
        }
        let ends = asserts.has(Asserts::NO_SUCCEED);
        self.access = if ends { Access::None } else { Access::FenceIssued };
        Ok(preceded)
    }

    /// Begins an access epoch for the ranks of a group, which may be empty. Gives the group, sorted.
    ///
    /// # Errors
    /// An access epoch is open, the group is none, or the assertions are none of a start.
    pub fn start(&mut self, group: &[u32], asserts: Asserts) -> Result<Arc<[u32]>, Rule> {
        Self::check_asserts(Call::Start, asserts, Asserts::OF_ACCESS)?;
        self.no_access(Call::Start)?;
        let group = self.last_started.sorted(group, self.size)?;
        self.access = Access::Start(group.clone());
        Ok(group)
    }

    /// Ends the epoch of a start; gives its group.
    ///
    /// # Errors
    /// There is none.
    pub fn complete(&mut self) -> Result<Arc<[u32]>, Rule> {
        match std::mem::replace(&mut self.access, Access::None) {
            Access::Start(group) => Ok(group),
            other => {
                self.access = other;
                Err(Rule::NotBegun { call: Call::Complete, begin: Call::Start })
            }
        }
    }

    /// Begins an exposure epoch for the ranks of a group, which may be empty. Gives the group, sorted.
    ///
    /// # Errors
    /// The window is exposed already, by a post or by a fence with operations; this rank holds a lock on itself; the group
    /// is none; or the assertions are none of a post.
    pub fn post(&mut self, group: &[u32], asserts: Asserts) -> Result<Arc<[u32]>, Rule> {
        Self::check_asserts(Call::Post, asserts, Asserts::OF_POST)?;
        self.no_exposure(Call::Post)?;
        match &self.access {
            Access::Fence => {
                return Err(Rule::ExposureOpen { call: Call::Post, open: Call::Fence });
            }
            Access::LockAll => return Err(Rule::LockedAndExposed(Call::Post)),
            Access::Lock if self.has_locked(self.rank) => {
                return Err(Rule::LockedAndExposed(Call::Post));
            }
            _ => {}
        }
        let group = self.last_posted.sorted(group, self.size)?;
        if self.access == Access::FenceIssued {
            self.access = Access::None;
        }
        self.exposure = Exposure::Post(group.clone());
        Ok(group)
    }

    /// The group of the post that `call` (wait or test) asks about. Nothing changes.
    ///
    /// # Errors
    /// There was no post.
    pub fn posted(&self, call: Call) -> Result<Arc<[u32]>, Rule> {
        match &self.exposure {
            Exposure::Post(group) => Ok(group.clone()),
            Exposure::None => Err(Rule::NotBegun { call, begin: Call::Post }),
        }
    }

    /// The exposure epoch is over: a wait returned, or a test said true.
    ///
    /// # Errors
    /// There was none.
    pub fn wait(&mut self) -> Result<(), Rule> {
        self.posted(Call::Wait)?;
        self.exposure = Exposure::None;
        Ok(())
    }

    fn may_lock(&self, call: Call, own: bool) -> Result<(), Rule> {
        if self.no_locks {
            return Err(Rule::NoLocks);
        }
        let is_posted = self.exposure != Exposure::None;
        if own && is_posted { Err(Rule::LockedAndExposed(call)) } else { Ok(()) }
    }

    /// Locks one more rank.
    ///
    /// # Errors
    /// It is locked already, another access epoch is open, this rank would be locked and exposed at once, there is no such
    /// rank, the window takes no locks, or the assertions are none of a lock.
    pub fn lock(&mut self, rank: u32, asserts: Asserts) -> Result<(), Rule> {
        Self::check_asserts(Call::Lock, asserts, Asserts::OF_ACCESS)?;
        self.check_rank(rank)?;
        self.may_lock(Call::Lock, rank == self.rank)?;
        if self.access != Access::Lock {
            self.no_access(Call::Lock)?;
            self.access = Access::Lock;
        }
        match self.locked.binary_search(&rank) {
            Ok(_) => Err(Rule::LockedTwice(rank)),
            Err(place) => {
                self.locked.insert(place, rank);
                Ok(())
            }
        }
    }

    /// Unlocks a rank.
    ///
    /// # Errors
    /// It is not locked.
    pub fn unlock(&mut self, rank: u32) -> Result<(), Rule> {
        self.check_rank(rank)?;
        if self.access != Access::Lock {
            return Err(Rule::NotBegun { call: Call::Unlock, begin: Call::Lock });
        }
        let place = self.locked.binary_search(&rank).map_err(|_| Rule::NotLocked(rank))?;
        self.locked.remove(place);
        if self.locked.is_empty() {
            self.access = Access::None;
        }
        Ok(())
    }

    /// Locks all ranks, shared.
    ///
    /// # Errors
    /// As [`Self::lock`].
    pub fn lock_all(&mut self, asserts: Asserts) -> Result<(), Rule> {
        Self::check_asserts(Call::LockAll, asserts, Asserts::OF_ACCESS)?;
        self.may_lock(Call::LockAll, true)?;
        self.no_access(Call::LockAll)?;
        self.access = Access::LockAll;
        Ok(())
    }

    /// Unlocks all ranks.
    ///
    /// # Errors
    /// They are not locked by `lock_all`.
    pub fn unlock_all(&mut self) -> Result<(), Rule> {
        if self.access != Access::LockAll {
            return Err(Rule::NotBegun { call: Call::UnlockAll, begin: Call::LockAll });
        }
        self.access = Access::None;
        Ok(())
    }

    /// Whether `call` (a flush, or an operation with a request) is legal, to one rank or, with `None`, to all. Nothing
    /// changes.
    ///
    /// # Errors
    /// This is no epoch of lock or lock_all, or the rank is not locked.
    pub fn passive(&self, call: Call, rank: Option<u32>) -> Result<(), Rule> {
        if let Some(rank) = rank {
            self.check_rank(rank)?;
        }
        match &self.access {
            Access::LockAll => Ok(()),
            Access::Lock => match rank.filter(|rank| !self.has_locked(*rank)) {
                Some(rank) => Err(Rule::NotLocked(rank)),
                None => Ok(()),
            },
            _ => Err(Rule::NoPassive(call)),
        }
    }

    /// An operation on a rank's window; `None`: on nobody's (MPI_PROC_NULL), which needs an epoch, too.
    ///
    /// # Errors
    /// There is no access epoch, or it is not for this rank.
    pub fn operate(&mut self, rank: Option<u32>) -> Result<(), Rule> {
        if let Some(rank) = rank {
            self.check_rank(rank)?;
        }
        match (&self.access, rank) {
            (Access::None, _) => Err(Rule::NoAccess(Call::Operation)),
            (Access::Start(group), Some(rank)) if group.binary_search(&rank).is_err() => {
                Err(Rule::NotStarted(rank))
            }
            (Access::Lock, Some(rank)) if !self.has_locked(rank) => Err(Rule::NotLocked(rank)),
            (Access::FenceIssued, _) => {
                self.access = Access::Fence;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The ranks of the access epoch, where it names some.
    pub fn ranks(&self) -> Vec<u32> {
        match &self.access {
            Access::Start(group) => group.to_vec(),
            Access::Lock => self.locked.clone(),
            _ => Vec::new(),
        }
    }

    /// Whether the window may be freed: a fence without operations behind it is no epoch.
    ///
    /// # Errors
    /// An epoch is open.
    pub fn free(&self) -> Result<(), Rule> {
        self.no_access(Call::Free)?;
        self.no_exposure(Call::Free)
    }
}

#[cfg(test)]
mod tests;
