//! Puts that tell the target of themselves, and counters that wait for them.

use super::Window;
use crate::error::{BadArgument, Error};
use crate::operation::{Source, Target, Verb};

impl Window {
    /// Copies data to a target. After that, and after all that this rank issued to it before, the target's counter grows by 1.
    /// A short put and its notice are one frame.
    ///
    /// # Errors
    /// As [`Self::put`], or the window has no such counter. A put that the target's window does not hold is refused, and
    /// its notice comes all the same.
    pub fn put_notify(
        &self,
        source: Source<'_>,
        target: Target<'_>,
        counter: u32,
    ) -> Result<(), Error> {
        self.check_counter(counter)?;
        self.inner.check_put(&source, &target)?;
        let put = self.inner.judge(&target, Verb::Put(source))?;
        let Some(rank) = target.rank else { return Ok(()) };
        if let Some(put) = &put {
            self.inner.check(put)?;
        }
        self.inner.way.notify(put.as_ref(), rank, counter)
    }

    /// Notices that a counter of this rank has had since the window was made. Makes progress. What the origins did before
    /// these notices is in the window.
    ///
    /// # Errors
    /// The window has no such counter.
    pub fn notices(&self, counter: u32) -> Result<u64, Error> {
        self.check_counter(counter)?;
        Ok(self.inner.way.notices(counter))
    }

    /// Waits until a counter of this rank has had so many notices in all.
    ///
    /// # Errors
    /// The window has no such counter; or a rank of the team is lost, and they are fewer.
    pub fn wait_notices(&self, counter: u32, least: u64) -> Result<(), Error> {
        self.check_counter(counter)?;
        self.inner.way.wait_notices(counter, least)
    }

    fn check_counter(&self, counter: u32) -> Result<(), Error> {
        // A window that was freed has none.
        drop(self.inner.epochs()?);
        let counters = self.inner.options.counters;
        let judged = match counter < counters {
            true => Ok(()),
            false => Err(BadArgument::Counter { counter, counters }),
        };
        self.inner.argument(judged)
    }
}
