//! Failures in a copy: of one entry, which is told while the rest has its turn, or of all.

use anyhow::bail;
use ropewalk_client::Errno;

use super::end::End;
use super::work::{Copy, Item, Plan};
use crate::remote::Failure;
use crate::report::complain;

/// Whether a failure would come again with all that is left: the target is full or can only be read,
/// or who serves it is gone. `silent`: a server left calls unanswered; without that an `EIO` is about one file,
/// whose bytes are damaged or lost.
pub(super) fn ends_all(error: &anyhow::Error, silent: bool) -> bool {
    if let Some(failure) = error.downcast_ref::<Failure>() {
        const ALL: [Errno; 4] = [Errno::ENOSPC, Errno::EDQUOT, Errno::EROFS, Errno::EPROTO];
        return ALL.contains(&failure.errno) || (silent && failure.errno == Errno::EIO);
    }
    use rustix::io::Errno as Host;
    // A disk's EIO is about one file; that of a mount's server would be told for each.
    const ALL: [Host; 4] = [Host::NOSPC, Host::DQUOT, Host::ROFS, Host::NOTCONN];
    let errno = error.downcast_ref().and_then(Host::from_io_error);
    errno.is_some_and(|errno| ALL.contains(&errno))
}

impl Plan {
    /// Fails where something could not be copied.
    pub fn check(&self) -> anyhow::Result<()> {
        let failed = self.items.iter().filter(|item| item.failed.get()).count() as u64;
        let (failed, all) = (failed + self.missed, self.entries() + self.missed);
        if failed > 0 {
            let entries = if all == 1 { "entry" } else { "entries" };
            bail!("{failed} of {all} {entries} could not be copied");
        }
        Ok(())
    }
}

impl<A: End, B: End> Copy<A, B> {
    /// Tells a failure that leaves the rest its turn; whether there was none. `alone`: there is no
    /// rest.
    pub(super) fn bear(&self, alone: bool, done: anyhow::Result<()>) -> anyhow::Result<bool> {
        let Err(error) = done else { return Ok(true) };
        let silent = self.from.is_silent() || self.to.is_silent();
        if !self.goes_on || alone || self.stop.is_asked() || ends_all(&error, silent) {
            return Err(error);
        }
        self.bar.suspend(|| complain!("ropewalk: {error:#}"));
        Ok(false)
    }

    /// Does something with an entry; whether it is done. Nothing is done in a directory that could not
    /// be made, and an entry that fails is told once.
    pub(super) async fn attempt(
        &self,
        plan: &Plan,
        item: &Item,
        act: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<bool> {
        if item.parent.is_some_and(|parent| plan.items[parent].failed.get()) {
            item.failed.set(true);
            return Ok(false);
        }
        let done = act.await;
        if done.is_err() && item.failed.get() && self.goes_on {
            return Ok(false);
        }
        let is_done = self.bear(plan.entries() + plan.missed == 1, done)?;
        if !is_done {
            item.failed.set(true);
        }
        Ok(is_done)
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;
    use crate::remote::of;

    #[test]
    fn only_what_would_come_again_ends_a_copy() {
        let host = |errno: rustix::io::Errno| {
            let failed = Err::<(), _>(std::io::Error::from(errno));
            ends_all(&failed.with_context(|| "a/b".to_string()).unwrap_err(), true)
        };
        assert!(host(rustix::io::Errno::NOSPC));
        assert!(host(rustix::io::Errno::DQUOT));
        assert!(!host(rustix::io::Errno::ACCESS));
        assert!(!host(rustix::io::Errno::IO), "one file of a disk is rotten");
        for errno in [Errno::EIO, Errno::ENOSPC, Errno::EROFS] {
            assert!(ends_all(&of(b"/a")(errno), true), "{errno:?}");
            assert!(ends_all(&of(b"/a")(errno).context("owner"), true), "{errno:?}");
        }
        assert!(
            !ends_all(&of(b"/a")(Errno::EIO), false),
            "its bytes are damaged, those of others not"
        );
        for errno in [Errno::EACCES, Errno::ESTALE, Errno::ENAMETOOLONG, Errno::ENOENT] {
            assert!(!ends_all(&of(b"/a")(errno), true), "{errno:?}");
        }
        assert!(!ends_all(&anyhow::anyhow!("a is the same file"), true));
    }
}
