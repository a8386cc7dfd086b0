//! File content as far as it concerns the metadata: inline bytes, reports of writers, appends.

use ropewalk_wire::fs::attributes::Attributes;
use ropewalk_wire::fs::meta::{Callback, INLINE_BYTES_MAX, LeaseMode, MetaReply, Report};
use ropewalk_wire::fs::value::{Bytes, Errno};

use super::{Operation, Step};
use crate::inode::Inode;
use crate::keys::{self, Table};
use crate::leases::Need;
use crate::parking::WaitOn;
use crate::rows::Rows;
use crate::runs;

impl<R: Rows> Operation<'_, R> {
    /// The inode, which must be a regular file of this write epoch.
    fn file(&mut self, number: u64, epoch: u32) -> Step<Inode> {
        let inode = self.inode(number)?;
        if !inode.is_file() {
            return Err(Errno::EINVAL.into());
        }
        if inode.epoch != epoch {
            return Err(Errno::ESTALE.into());
        }
        Ok(inode.clone())
    }

    pub fn read_inline(&mut self, number: u64) -> Step<()> {
        let inode = self.inode(number)?;
        if !inode.is_file() || inode.striped {
            return Err(Errno::ESTALE.into());
        }
        self.need(number, Need::Fresh);
        self.settle()?;
        let bytes = self.inline_bytes(number)?;
        let version = self.inode(number)?.version;
        self.answer(&MetaReply::Inline { bytes: Bytes(&bytes), version })
    }

    /// Writes inline bytes at an offset, or at the end.
    pub fn write_inline(
        &mut self,
        number: u64,
        epoch: u32,
        offset: Option<u64>,
        data: &[u8],
        kill_privileges: bool,
    ) -> Step<()> {
        let inode = self.file(number, epoch)?;
        if inode.striped {
            return Err(Errno::ESTALE.into());
        }
        self.need(number, Need::Quiet);
        self.settle()?;
        let offset = offset.unwrap_or(inode.size);
        let end = offset.checked_add(data.len() as u64).ok_or(Errno::EFBIG)?;
        if end > INLINE_BYTES_MAX {
            return Err(Errno::E2BIG.into());
        }
        if end > u64::from(inode.inline_bytes) {
            self.check_growth()?;
        }
        if data.is_empty() {
            let Inode { size, version, modified, .. } = inode;
            return self.answer(&MetaReply::Written { offset, size, version, modified });
        }
        let mut bytes = self.inline_bytes(number)?;
        let (begin, end) = (offset as usize, end as usize);
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[begin..end].copy_from_slice(data);
        if data.iter().all(|byte| *byte == 0) {
            // Zeros up to the size need no bytes: this is how a small file is punched.
            let kept = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            bytes.truncate(kept);
        }
        let now = self.now.calendar;
        let target = self.touch(number)?;
        target.modified = now;
        target.inline_bytes = bytes.len() as u32;
        target.size = target.size.max(end as u64);
        let size = target.size;
        let key = keys::key(Table::Inline, &[number]);
        match bytes.is_empty() {
            true if inode.inline_bytes > 0 => self.batch.remove(key),
            true => {}
            false => self.batch.put(key, bytes),
        }
        self.note_growth(number, inode.size, size)?;
        self.kill_privileges(number, kill_privileges)?;
        let version = self.inode(number)?.version;
        self.answer(&MetaReply::Written { offset, size, version, modified: now })
    }

    pub fn leave_inline(&mut self, number: u64, version: u64, report: &Report<'_>) -> Step<()> {
        let inode = self.file(number, report.epoch)?;
        let mode = self.shard.leases.mode(number, self.session);
        let writes = matches!(mode, LeaseMode::Shared | LeaseMode::Write);
        if inode.striped || inode.version != version || !writes {
            return Err(Errno::ESTALE.into());
        }
        check_report(&inode, report)?;
        let target = self.touch(number)?;
        target.striped = true;
        target.inline_bytes = 0;
        if inode.inline_bytes > 0 {
            self.batch.remove(keys::key(Table::Inline, &[number]));
        }
        self.take_report(number, report, mode)?;
        self.change(number)?.epoch += 1;
        self.answer_attributes(number)
    }

    pub fn reserve_append(&mut self, number: u64, epoch: u32, len: u64) -> Step<()> {
        let inode = self.file(number, epoch)?;
        self.need(number, Need::Quiet);
        self.settle()?;
        let offset = inode.size;
        let size = offset.checked_add(len).ok_or(Errno::EFBIG)?;
        check_size(&inode, size)?;
        if len > 0 {
            let (now, before) = (self.now.calendar, self.shown_size(number)?);
            let target = self.touch(number)?;
            target.size = size;
            target.modified = now;
            self.shard.leases.reserve(number, self.session, offset, size);
            self.note_growth(number, before, 0)?;
        }
        let Inode { version, modified, .. } = *self.inode(number)?;
        self.answer(&MetaReply::Written { offset, size, version, modified })
    }

    /// The size of an inode as everybody is told: it ends before appends that are under way.
    pub fn shown_size(&mut self, number: u64) -> Step<u64> {
        let size = self.inode(number)?.size;
        Ok(self.shard.leases.appends.shown(number, size))
    }

    /// Attributes with the size that is told.
    pub fn shown(&self, attributes: Attributes) -> Attributes {
        let shown = self.shard.leases.appends.shown(attributes.inode, attributes.size);
        let reached = self.reached.filter(|(number, _)| *number == attributes.inode);
        Attributes { size: shown.max(reached.map_or(0, |(_, size)| size)), ..attributes }
    }

    /// The file may look longer than it did (`before`), and the caller made it reach to `size`. The kernels
    /// of sessions that look at it hear of that before the reply, and appends of others up to there are done.
    pub fn note_growth(&mut self, number: u64, before: u64, size: u64) -> Step<()> {
        self.reached = Some((number, size));
        let shown = self.shown_size(number)?;
        if shown > before {
            self.tell_growth(number, shown, shown <= size);
            if self.shard.growth.is_awaited(number) {
                self.told_after_growth = Some(number);
            }
        }
        if self.shard.leases.appends.wait(number, self.session, size, self.now.time) {
            self.told_after_growth = Some(number);
        }
        if self.told_after_growth.is_some() {
            // The reply is stored: the report must not be taken once more after the wait.
            self.change(number)?;
        }
        Ok(())
    }

    /// Tells the sessions that look at a file of its size.
    pub fn tell_size(&mut self, number: u64) -> Step<()> {
        let shown = self.shown_size(number)?;
        self.tell_growth(number, shown, false);
        Ok(())
    }

    /// Tells the sessions that look at a file that it grew. `knows`: the caller's kernel need not be told;
    /// where it is, since others appended behind the caller, the caller does not wait for it.
    fn tell_growth(&mut self, number: u64, size: u64, knows: bool) {
        let (call, now) = (self.ticket, self.now.time);
        let shard = &mut *self.shard;
        for session in shard.leases.onlookers(number, if knows { self.session } else { 0 }) {
            if session != self.session {
                shard.growth.tell((number, session), call, now);
            }
            let grown = Callback::Grown { inode: number, size, number: call };
            shard.callbacks.push_back((session, grown));
        }
    }

    pub fn told_grown(&mut self, inode: u64, number: u64) -> Step<()> {
        if self.shard.growth.told(inode, self.session, number) {
            self.shard.parking.wake(WaitOn::Grown(inode));
        }
        self.answer(&MetaReply::Done)
    }

    pub fn report(&mut self, number: u64, report: &Report<'_>) -> Step<()> {
        let mode = self.shard.leases.mode(number, self.session);
        self.check_and_take(number, report, mode)?;
        self.answer_attributes(number)
    }

    /// A write of this session may be under way for which it cannot wait, and must not come after
    /// those of others. Never waits: others wait for it.
    pub fn renew_epoch(&mut self, number: u64) -> Step<()> {
        let mode = self.shard.leases.mode(number, self.session);
        if !matches!(mode, LeaseMode::Shared | LeaseMode::Write) {
            return Err(Errno::ESTALE.into());
        }
        self.change(number)?.epoch += 1;
        // Its appends take other ranges after this.
        self.shard.leases.appends.forget(number, self.session);
        self.answer_attributes(number)
    }

    /// Takes a report of a session that has (or just gave back) a lease of `mode`.
    pub fn check_and_take(
        &mut self,
        number: u64,
        report: &Report<'_>,
        mode: LeaseMode,
    ) -> Step<()> {
        let inode = self.file(number, report.epoch)?;
        let writes = matches!(mode, LeaseMode::Shared | LeaseMode::Write);
        let wrote = report.size.is_some()
            || report.modified.is_some()
            || !report.written.0.is_empty()
            || !report.punched.0.is_empty();
        let alone = report.punched.0.is_empty() || mode == LeaseMode::Write;
        if wrote && !(writes && alone) {
            return Err(Errno::ESTALE.into());
        }
        let moved = !report.written.0.is_empty() || !report.punched.0.is_empty();
        if moved && !inode.striped {
            return Err(Errno::EINVAL.into());
        }
        check_report(&inode, report)?;
        self.take_report(number, report, mode)
    }

    fn take_report(&mut self, number: u64, report: &Report<'_>, mode: LeaseMode) -> Step<()> {
        let shown = self.shown_size(number)?;
        let before = self.inode(number)?.clone();
        let mut after = before.clone();
        apply_report(&mut after, report)?;
        if let Some(modified) = report.modified {
            // A client whose idea of this clock went wrong does not write into the future.
            let modified = modified.min(self.now.calendar);
            // Among several writers the latest write counts, in whichever order they report. A time
            // that was set on purpose, to the future even, gives way to a later write.
            let latest = mode != LeaseMode::Shared
                || modified > before.modified
                || modified >= before.changed;
            after.modified = if latest { modified } else { before.modified };
        }
        after.accessed = report.accessed.unwrap_or(before.accessed);
        let size = report.size.unwrap_or(0);
        self.shard.leases.appends.reported((number, self.session), size);
        if after == before {
            return self.note_growth(number, shown, size);
        }
        let wrote = Inode { accessed: before.accessed, ..after.clone() } != before;
        let target = if wrote { self.touch(number)? } else { self.change(number)? };
        let (version, changed) = (target.version, target.changed);
        *target = Inode { version, changed, ..after };
        self.note_growth(number, shown, size)?;
        // The client lets them fall before it writes; none are left where one did not.
        if wrote { self.kill_privileges(number, false) } else { Ok(()) }
    }
}

/// Whether a report can be taken as a whole.
fn check_report(inode: &Inode, report: &Report<'_>) -> Result<(), Errno> {
    apply_report(&mut inode.clone(), report)?;
    let legal = |at: Option<ropewalk_wire::fs::value::Timestamp>| {
        at.is_none_or(|at| at.nanos < 1_000_000_000)
    };
    if legal(report.modified) && legal(report.accessed) { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Size and stripes of a report.
fn apply_report(inode: &mut Inode, report: &Report<'_>) -> Result<(), Errno> {
    if let Some(size) = report.size {
        check_size(inode, size)?;
        inode.size = inode.size.max(size);
    }
    for (first, count) in runs::parse(report.punched.0).ok_or(Errno::EINVAL)? {
        if !inode.written.remove(first, count) {
            return Err(Errno::EFBIG);
        }
    }
    for (first, count) in runs::parse(report.written.0).ok_or(Errno::EINVAL)? {
        if !inode.written.add(first, count) {
            return Err(Errno::EFBIG);
        }
    }
    Ok(())
}

fn check_size(inode: &Inode, size: u64) -> Result<(), Errno> {
    let most = inode.layout.map_or(0, |layout| layout.size_max());
    if size > most { Err(Errno::EFBIG) } else { Ok(()) }
}
