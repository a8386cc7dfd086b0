//! Comparing what was copied with its source: every byte, and all that a copy keeps.
//!
//! Not compared, since no copy has them: times of access and of change of the inode, and its number.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use anyhow::{Context, bail};
use ropewalk_client::InodeKind;

use super::end::{End, Meta};
use super::fail::ends_all;
use super::work::{Copy, Item, LINK, Moved, NODE, OWNER, Plan};
use crate::report::complain;

/// Bytes of one read.
const CHUNK_BYTES: u64 = 1 << 20;
/// Differences that are told one by one.
const TOLD_MAX: u64 = 20;
/// The granularity of the holes of a cluster's files: its usual stripes.
const GRAIN_BYTES: u64 = 1 << 20;

impl<A: End, B: End> Copy<A, B> {
    /// Compares all that was copied with its source, but for what is known not to be kept. One entry that
    /// differs, or cannot be read, does not hide the others: they are told, and counted.
    pub async fn compare(&self, plan: &Plan) -> anyhow::Result<Moved> {
        self.bar.set_length(plan.moved().bytes);
        let wrong = Cell::new(0u64);
        let last = RefCell::new(None);
        let compare = async |item: &Item| {
            let compared = match item.link {
                Some(first) if !self.has_lost(LINK, item) => {
                    self.compare_link(&plan.items[first], item).await
                }
                _ => self.compare_one(item).await,
            };
            let Err(error) = compared else { return Ok(()) };
            let now = self.from.look(&item.job.from, false).await;
            let still = now.ok().flatten().is_some_and(|now| same(&now, &item.meta));
            let changed = if still { "" } else { " (it changed while it was copied)" };
            let error = error.context(format!("{}{changed}", self.from.shown(&item.job.from)));
            let silent = self.from.is_silent() || self.to.is_silent();
            if self.stop.is_asked() || ends_all(&error, silent) {
                return Err(error);
            }
            wrong.set(wrong.get() + 1);
            // A single one is the command's own error.
            let before = last.borrow_mut().replace(error);
            if let Some(before) = before.filter(|_| wrong.get() <= TOLD_MAX) {
                self.bar.suspend(|| complain!("ropewalk: {before:#}"));
            }
            Ok(())
        };
        self.each(plan, compare).await?;
        match (last.into_inner(), wrong.get()) {
            (None, _) => Ok(plan.moved()),
            (Some(error), 1) => Err(error),
            (Some(error), wrong) => {
                Err(error.context(format!("{wrong} entries differ from the source; the last one")))
            }
        }
    }

    async fn found(&self, item: &Item) -> anyhow::Result<Meta> {
        let found = self.to.look(&item.job.to, false).await?;
        found.with_context(|| format!("{} is missing", self.to.shown(&item.job.to)))
    }

    async fn compare_link(&self, first: &Item, item: &Item) -> anyhow::Result<()> {
        if self.has_lost(NODE, item) {
            return Ok(());
        }
        let (first, found) = (self.found(first).await?, self.found(item).await?);
        if first.inode != found.inode {
            bail!("is a separate file instead of a hard link");
        }
        Ok(())
    }

    async fn compare_one(&self, item: &Item) -> anyhow::Result<()> {
        let Item { job, meta, .. } = item;
        if self.has_lost(NODE, item) {
            return Ok(());
        }
        let found = self.found(item).await?;
        if found.kind != meta.kind {
            bail!("is a {:?} in the copy, a {:?} in the source", found.kind, meta.kind);
        }
        let owner = |meta: &Meta| (meta.user, meta.group);
        if owner(&found) != owner(meta) && !self.has_lost(OWNER, item) {
            bail!("owner and group are {:?}, not {:?}", owner(&found), owner(meta));
        }
        if found.modified != meta.modified {
            bail!("the modification time is {:?}, not {:?}", found.modified, meta.modified);
        }
        if found.mode != meta.mode && meta.kind != InodeKind::Symlink {
            bail!("the mode is {:o}, not {:o}", found.mode, meta.mode);
        }
        self.compare_extended(item).await?;
        match meta.kind {
            InodeKind::Symlink => {
                let wanted = self.from.read_link(&job.from).await?;
                if self.to.read_link(&job.to).await? != wanted {
                    bail!("the link's target differs");
                }
            }
            InodeKind::File => self.compare_content(item, found.size).await?,
            InodeKind::CharacterDevice | InodeKind::BlockDevice if found.device != meta.device => {
                bail!("is device {:x}, not {:x}", found.device, meta.device)
            }
            _ => {}
        }
        Ok(())
    }

    async fn compare_extended(&self, item: &Item) -> anyhow::Result<()> {
        let wanted = self.from.extended(&item.job.from).await?;
        let found = self.to.extended(&item.job.to).await?;
        for (name, value) in wanted.users {
            let name = name.escape_ascii().to_string();
            let kept = found
                .users
                .iter()
                .any(|(other, found)| other.escape_ascii().to_string() == name && *found == value);
            if !kept && !self.has_lost(&format!("the attribute {name}"), item) {
                bail!("the attribute {name} differs");
            }
        }
        Ok(())
    }

    async fn compare_content(&self, item: &Item, size: u64) -> anyhow::Result<()> {
        let Item { job, meta, .. } = item;
        if size != meta.size {
            bail!("has {size} bytes, not {}", meta.size);
        }
        let (from, to) = (self.from.open(&job.from).await?, self.to.open(&job.to).await?);
        let mut offset = 0;
        while offset < size {
            self.stop.check()?;
            let len = (size - offset).min(CHUNK_BYTES) as usize;
            let (left, right) = (self.buffer(len).await, self.buffer(len).await);
            let (left, expected) = self.from.read(&from, offset, left).await?;
            let (right, read) = self.to.read(&to, offset, right).await?;
            if expected != len || read != len || left[..len] != right[..len] {
                let at = left[..len].iter().zip(&right[..len]).position(|(a, b)| a != b);
                let at = at.unwrap_or(expected.min(read));
                bail!("bytes differ from offset {}", offset + at as u64);
            }
            offset += len as u64;
            self.bar.inc(len as u64);
        }
        if meta.sparse && size > GRAIN_BYTES {
            let wanted = ranges(&self.from, &from, size).await?;
            let found = ranges(&self.to, &to, size).await?;
            compare_holes(&wanted, &found)?;
        }
        Ok(())
    }
}

/// Whether an entry is what it was.
fn same(now: &Meta, then: &Meta) -> bool {
    // Reading changes the time of access.
    Meta { accessed: then.accessed, ..*now } == *then
}

/// The ranges of a file that were written.
async fn ranges<E: End>(end: &E, file: &E::File, size: u64) -> anyhow::Result<Vec<Range<u64>>> {
    let (mut ranges, mut at) = (Vec::new(), 0);
    while at < size {
        let Some(range) = end.data(file, at).await? else { break };
        at = range.end.max(at + 1);
        ranges.push(range);
    }
    Ok(ranges)
}

/// No byte of the copy is on a disk but those in the source's grains that have some there.
fn compare_holes(wanted: &[Range<u64>], found: &[Range<u64>]) -> anyhow::Result<()> {
    for range in found {
        let mut at = range.start;
        while at < range.end {
            let grain = at / GRAIN_BYTES * GRAIN_BYTES;
            let end = grain + GRAIN_BYTES;
            if !wanted.iter().any(|wanted| wanted.start < end && grain < wanted.end) {
                bail!("the hole at offset {at} was filled");
            }
            at = end;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_as_fine_as_stripes_and_never_filled() {
        const MIB: u64 = 1 << 20;
        let range = |start, end| Range { start, end };
        let wanted = [range(10 * MIB, 10 * MIB + 4096)];
        assert!(compare_holes(&wanted, &[range(10 * MIB, 11 * MIB)]).is_ok());
        assert!(compare_holes(&wanted, &[]).is_ok());
        let filled = compare_holes(&wanted, &[range(10 * MIB, 12 * MIB)]).unwrap_err().to_string();
        assert!(filled.contains(&format!("at offset {}", 11 * MIB)), "{filled}");
        assert!(compare_holes(&[], &[range(0, 1)]).is_err());
    }
}
