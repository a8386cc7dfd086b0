//! Synchronisation of a window: fence; post, start, complete and wait; locks; flush and sync.

use std::sync::atomic::{Ordering, fence};

use super::Window;
use crate::asserts::Asserts;
use crate::check::Checks;
use crate::epochs::{Call, LockKind};
use crate::error::Error;
use crate::way::Reach;

impl Window {
    /// Ends the epoch of the last fence, and begins the next one, unless `asserts` says otherwise. All ranks call it. When it
    /// returns, what any rank issued before is complete here and there.
    ///
    /// # Errors
    /// Another epoch is open; an operation was refused; a rank is lost.
    pub fn fence(&self, asserts: Asserts) -> Result<(), Error> {
        let judged = self.inner.epochs()?.fence(asserts);
        let preceded = self.inner.rule(judged)?;
        let fenced = self.inner.way.fence(preceded);
        self.inner.checked(|checks| checks.fenced(asserts));
        fenced
    }

    /// Begins an access epoch for these ranks. Does not wait for their posts: operations do.
    ///
    /// # Errors
    /// An access epoch is open, or the group or the assertions are none.
    pub fn start(&self, group: &[u32], asserts: Asserts) -> Result<(), Error> {
        let judged = self.inner.epochs()?.start(group, asserts);
        let group = self.inner.rule(judged)?;
        self.inner.checked(Checks::begin);
        self.inner.way.start(&group, !asserts.has(Asserts::NO_CHECK))
    }

    /// Ends the epoch of a start: operations are complete at this rank, and the targets are told. Waits for posts that have
    /// not come yet.
    ///
    /// # Errors
    /// There was no start; an operation was refused; a rank is lost.
    pub fn complete(&self) -> Result<(), Error> {
        let judged = self.inner.epochs()?.complete();
        let group = self.inner.rule(judged)?;
        let completed = self.inner.way.complete(&group);
        self.inner.checked(|checks| checks.complete(None, true));
        completed
    }

    /// Exposes this rank's memory to the ranks of a group, for one epoch of each. Does not wait.
    ///
    /// # Errors
    /// The memory is exposed or locked already, or the group or the assertions are none.
    pub fn post(&self, group: &[u32], asserts: Asserts) -> Result<(), Error> {
        let judged = self.inner.epochs()?.post(group, asserts);
        let group = self.inner.rule(judged)?;
        self.inner.checked(|checks| checks.posted(asserts));
        self.inner.way.post(&group, !asserts.has(Asserts::NO_CHECK))
    }

    /// Ends the epoch of a post: all ranks of its group have completed theirs, and what they did is done here.
    ///
    /// # Errors
    /// There was no post; a rank is lost.
    pub fn wait(&self) -> Result<(), Error> {
        let group = {
            let epochs = self.inner.epochs()?;
            self.inner.rule(epochs.posted(Call::Wait))?
        };
        let waited = self.inner.way.wait(&group);
        let ended = self.inner.epochs()?.wait();
        self.inner.rule(ended)?;
        self.inner.checked(Checks::waited);
        waited
    }

    /// Whether a wait would return now; then the epoch is over, as after one. False: nothing changed.
    ///
    /// # Errors
    /// There was no post; a rank is lost, and the epoch is over.
    pub fn test(&self) -> Result<bool, Error> {
        let group = {
            let epochs = self.inner.epochs()?;
            self.inner.rule(epochs.posted(Call::Test))?
        };
        let tested = self.inner.way.test(&group);
        if tested != Ok(false) {
            let ended = self.inner.epochs()?.wait();
            self.inner.rule(ended)?;
            self.inner.checked(Checks::waited);
        }
        tested
    }

    /// Begins an epoch for one more rank. Only the lock of this rank itself is here when it returns; others are waited for
    /// when operations are.
    ///
    /// # Errors
    /// The rank is locked already, another epoch is open, or the window takes no locks. Or the last holder of this rank's own
    /// lock, or of one of a shared window, died with it: then the epoch has begun all the same. Other locks are asked for with
    /// the first operation, and the next synchronisation tells of it: flush before you use what you read.
    pub fn lock(&self, kind: LockKind, rank: u32, asserts: Asserts) -> Result<(), Error> {
        let judged = self.inner.epochs()?.lock(rank, asserts);
        self.inner.rule(judged)?;
        self.inner.checked(Checks::begin);
        self.inner.way.lock(kind, rank, !asserts.has(Asserts::NO_CHECK))
    }

    /// Ends the epoch of a lock: operations are complete at the rank.
    ///
    /// # Errors
    /// It is not locked; an operation was refused; the rank is lost.
    pub fn unlock(&self, rank: u32) -> Result<(), Error> {
        let judged = self.inner.epochs()?.unlock(rank);
        self.inner.rule(judged)?;
        let unlocked = self.inner.way.unlock(rank);
        self.inner.checked(|checks| checks.complete(Some(rank), true));
        unlocked
    }

    /// Locks all ranks, shared.
    ///
    /// # Errors
    /// As [`Self::lock`].
    pub fn lock_all(&self, asserts: Asserts) -> Result<(), Error> {
        let judged = self.inner.epochs()?.lock_all(asserts);
        self.inner.rule(judged)?;
        self.inner.checked(Checks::begin);
        self.inner.way.lock_all(!asserts.has(Asserts::NO_CHECK))
    }

    /// Ends the epoch of `lock_all`.
    ///
    /// # Errors
    /// As [`Self::unlock`].
    pub fn unlock_all(&self) -> Result<(), Error> {
        let judged = self.inner.epochs()?.unlock_all();
        self.inner.rule(judged)?;
        let unlocked = self.inner.way.unlock_all();
        self.inner.checked(|checks| checks.complete(None, true));
        unlocked
    }

    fn passive_flush(&self, rank: Option<u32>, reach: Reach) -> Result<(), Error> {
        let judged = self.inner.epochs()?.passive(Call::Flush, rank);
        self.inner.rule(judged)?;
        let flushed = self.inner.way.flush(rank, reach);
        self.inner.checked(|checks| checks.complete(rank, reach == Reach::Target));
        flushed
    }

    /// Completes what this rank issued to a rank, there and here.
    ///
    /// # Errors
    /// The rank is not locked; an operation was refused; the rank is lost.
    pub fn flush(&self, rank: u32) -> Result<(), Error> {
        self.passive_flush(Some(rank), Reach::Target)
    }

    /// The same for all ranks.
    ///
    /// # Errors
    /// As [`Self::flush`].
    pub fn flush_all(&self) -> Result<(), Error> {
        self.passive_flush(None, Reach::Target)
    }

    /// Completes what this rank issued to a rank here: its memory may be used again, and results are in theirs.
    ///
    /// # Errors
    /// As [`Self::flush`].
    pub fn flush_local(&self, rank: u32) -> Result<(), Error> {
        self.passive_flush(Some(rank), Reach::Local)
    }

    /// The same for all ranks.
    ///
    /// # Errors
    /// As [`Self::flush`].
    pub fn flush_local_all(&self) -> Result<(), Error> {
        self.passive_flush(None, Reach::Local)
    }

    /// Orders loads and stores of this rank's memory with what others do there, and serves others meanwhile.
    ///
    /// # Errors
    /// The window was freed.
    pub fn sync(&self) -> Result<(), Error> {
        drop(self.inner.epochs()?);
        fence(Ordering::SeqCst);
        let served = self.inner.way.progress();
        fence(Ordering::SeqCst);
        served
    }
}
