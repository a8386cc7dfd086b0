//! Holes: finding them, making them, and room that is asked for beforehand.

use ropewalk_wire::fs::attributes::Content;
use ropewalk_wire::fs::runs::Runs;
use ropewalk_wire::fs::value::Errno;

use crate::client::Client;
use crate::file::File;
use crate::lease::For;
use crate::locks::Actor;
use crate::write::{How, has_set_ids};

/// Zeros of one write.
const ZERO_BYTES: u64 = 1 << 20;

impl Client {
    /// `fallocate(2)`: with `zero` the range reads as zeros from now on, with `keep` the size stays.
    ///
    /// Room is not reserved: a full data server is met at the write, as with every striped file
    /// system whose stripes appear at first write. `keeps_privileges` is asked where there are any.
    pub async fn allocate(
        &self,
        file: &File,
        offset: u64,
        len: u64,
        (keep, zero): (bool, bool),
        keeps_privileges: impl FnOnce() -> bool,
        actor: &Actor,
    ) -> Result<(), Errno> {
        if !file.options().access.write {
            return Err(Errno::EBADF);
        }
        let end = offset.checked_add(len).ok_or(Errno::EFBIG)?;
        if end > i64::MAX as u64 {
            return Err(Errno::EFBIG);
        }
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        let found = self.attributes(file.number()).await?;
        // The kernel leaves it to us, as it does with writes, and does not say so here.
        let set_ids = has_set_ids(found.mode) && !keeps_privileges();
        if set_ids || found.capable {
            self.kill_privileges(&file.inode, set_ids).await?;
        }
        if zero {
            self.zero(file, offset, end.min(found.size), actor).await?;
        }
        self.reach(file, if keep { 0 } else { end }, actor).await
    }

    /// Makes the file reach to `end` at least, as a write there would: what others add meanwhile
    /// stays. It counts as changed in any case.
    async fn reach(&self, file: &File, end: u64, actor: &Actor) -> Result<(), Errno> {
        let inode = &file.inode;
        let mut patience = self.patience();
        while patience.lasts().await {
            let lease = self.lease(inode, For::Writing).await?;
            self.check_locks(file, actor)?;
            let most = inode.state.borrow().layout.map_or(0, |layout| layout.size_max());
            if end > most {
                return Err(Errno::EFBIG);
            }
            self.wrote(inode, end, &Runs::default())?;
            // Told at once: appends to inline bytes go by the size that the server knows.
            match self.try_report(inode).await {
                Err(Errno::ESTALE) => {
                    drop(lease);
                    inode.refresh();
                }
                reported => return reported,
            }
        }
        Err(Errno::EIO)
    }

    /// Writes zeros over what was written; holes stay holes.
    async fn zero(
        &self,
        file: &File,
        offset: u64,
        end: u64,
        actor: &Actor,
    ) -> Result<(), Errno> {
        let mut at = offset;
        while at < end {
            let data = match self.seek(file, at, false).await {
                Ok(data) => data,
                Err(Errno::ENXIO) => return Ok(()),
                Err(errno) => return Err(errno),
            };
            let hole = self.seek(file, data, true).await?;
            at = data.max(at);
            let until = hole.min(end);
            while at < until {
                let len = (until - at).min(ZERO_BYTES) as usize;
                let mut zeros = self.inner.pool.take(len).ok_or(Errno::ENOMEM)?;
                zeros.fill(0);
                let how = How { append: false, kill_privileges: false, actor: *actor };
                self.write_for_kernel(file, at, zeros, 0..len, how).await?;
                at += len as u64;
            }
            at = at.max(until.max(data));
            if hole >= end {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The next byte at or behind `offset` that was written, or with `hole` that was not; `ENXIO`
    /// behind the end. As fine as stripes are.
    pub async fn seek(&self, file: &File, offset: u64, hole: bool) -> Result<u64, Errno> {
        let inode = &file.inode;
        inode.doubt_stripes();
        let _lease = self.lease(inode, For::Reading).await?;
        let size = self.attributes(inode.number).await?.size;
        if offset >= size {
            return Err(Errno::ENXIO);
        }
        if self.is_inline(inode) {
            // The inode has the bytes up to the last written one; zeros follow up to the size.
            let written = self.inline_bytes(inode).await?.len() as u64;
            return match (offset < written, hole) {
                (true, false) | (false, true) => Ok(offset),
                (true, true) => Ok(written.min(size)),
                (false, false) => Err(Errno::ENXIO),
            };
        }
        let state = inode.state.borrow();
        let layout = match &state.content {
            Some(Content::Striped(layout)) => *layout,
            _ => return Ok(if hole { size } else { offset }),
        };
        let stripe_bytes = u64::from(layout.stripe_bytes);
        let mut stripe = offset / stripe_bytes;
        let mut at = offset;
        while at < size {
            let written = u32::try_from(stripe).is_ok_and(|stripe| state.written.contains(stripe));
            if written != hole {
                return Ok(at);
            }
            stripe += 1;
            at = stripe * stripe_bytes;
        }
        if hole { Ok(size) } else { Err(Errno::ENXIO) }
    }
}
