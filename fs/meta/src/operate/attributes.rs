//! Changing attributes: `chmod`, `chown`, `truncate`, `utimensat`, and the privileges that fall.

use ropewalk_wire::fs::attributes::InodeKind;
use ropewalk_wire::fs::meta::{AttributeChange, TimeChange, Who};
use ropewalk_wire::fs::value::Errno;

use super::{Operation, Step};
use crate::inode::{Inode, encode_row};
use crate::keys::{self, Table};
use crate::leases::Need;
use crate::permission::{self, SET_GROUP, SET_USER, WRITE};
use crate::rows::Rows;
use crate::shard::{CUT_VERSION, Cut};

/// The attribute that holds a program's capabilities; it falls with setuid.
pub(super) const CAPABILITY: &[u8] = b"security.capability";

/// Bits that make a program run as its owner or group.
const SET_IDS: u16 = SET_USER | SET_GROUP;

impl<R: Rows> Operation<'_, R> {
    pub fn set_attributes(
        &mut self,
        who: &Who<'_>,
        number: u64,
        change: &AttributeChange,
    ) -> Step<()> {
        let inode = self.inode(number)?.clone();
        check_change(&inode, who, change)?;
        let shrinks = change.size.is_some_and(|size| size < inode.size);
        let grants =
            inode.is_file() && change.mode.is_some_and(|mode| mode & SET_IDS & !inode.mode != 0);
        // A writer must know before its next write that there are privileges to fall.
        self.need(number, if shrinks || grants { Need::Alone } else { Need::Quiet });
        self.settle()?;
        if let Some(size) = change.size {
            let kill = !who.keeps_privileges() || change.kill_privileges;
            self.set_size(number, size, kill)?;
        }
        let now = self.now.calendar;
        let target = self.touch(number)?;
        let changes_owner = change.user.is_some() || change.group.is_some();
        target.user = change.user.unwrap_or(target.user);
        target.group = change.group.unwrap_or(target.group);
        if let Some(mode) = change.mode {
            target.mode = mode & 0o7777;
            if !who.passes() && !who.is_in(inode.group) {
                target.mode &= !SET_GROUP;
            }
        }
        for (time, wanted) in
            [(&mut target.accessed, change.accessed), (&mut target.modified, change.modified)]
        {
            match wanted {
                TimeChange::Keep => {}
                TimeChange::Now => *time = now,
                TimeChange::At(at) => *time = at,
            }
        }
        let all = change.kill_privileges || (changes_owner && change.mode.is_none());
        if (all || change.kill_capability) && !inode.is_directory() {
            self.kill_privileges(number, all)?;
        }
        self.answer_attributes(number)
    }

    fn set_size(&mut self, number: u64, size: u64, kill_privileges: bool) -> Step<()> {
        let inode = self.inode(number)?.clone();
        if size == 0 && (inode.size > 0 || inode.striped) {
            return self.truncate_to_zero(number, kill_privileges);
        }
        let now = self.now.calendar;
        self.kill_privileges(number, kill_privileges)?;
        let renews = size < inode.size && !inode.striped;
        let generation =
            if renews { self.next_generation(inode.generation)? } else { inode.generation };
        let before = self.shown_size(number)?;
        let target = self.touch(number)?;
        target.modified = now;
        target.size = size;
        if size >= inode.size {
            // It waited for what it wrote itself.
            self.shard.leases.appends.reported((number, self.session), size);
            return self.note_growth(number, before, size);
        }
        target.epoch += 1;
        self.shard.leases.appends.forget_all(number);
        let target = self.change(number)?;
        if inode.striped {
            return self.begin_cut(&inode, size);
        }
        target.generation = generation;
        if u64::from(inode.inline_bytes) > size {
            target.inline_bytes = size as u32;
            let key = keys::key(Table::Inline, &[number]);
            let mut bytes = self.shard.rows.get(&key)?.ok_or(Errno::EIO)?;
            bytes.truncate(size as usize);
            self.batch.put(key, bytes);
        }
        Ok(())
    }

    /// Shrinking stripes has two steps. The first is the batch of this operation: the new size and
    /// epoch, the intent to cut, and the reply. The reply is told when the objects were cut (after a
    /// crash the intent row goes on with that). The call is not executed again: others may have
    /// written behind the new end by then.
    fn begin_cut(&mut self, inode: &Inode, size: u64) -> Step<()> {
        let layout = inode.layout.ok_or(Errno::EIO)?;
        let stripe_bytes = u64::from(layout.stripe_bytes);
        let stripe = u32::try_from(size.div_ceil(stripe_bytes)).map_err(|_| Errno::EFBIG)?;
        let number = inode.number;
        let target = self.change(number)?;
        target.written.cut(stripe);
        let cut = Cut {
            inode: number,
            generation: target.generation,
            epoch: target.epoch,
            layout,
            stripe,
            offset: (size % stripe_bytes) as u32,
        };
        let key = keys::key(Table::Shrink, &[number]);
        self.batch.put(key, encode_row(CUT_VERSION, &cut));
        self.shard.cuts.insert(number, cut);
        self.shard.cut_queue.push_back(number);
        self.told_after_cut = Some(number);
        Ok(())
    }

    /// Takes capabilities from a file, as every change of its bytes does; with `set_ids` setuid and
    /// setgid, too, as a change by another user does.
    pub fn kill_privileges(&mut self, number: u64, set_ids: bool) -> Step<()> {
        let inode = self.inode(number)?;
        let (mode, capable) = (inode.mode, inode.capable);
        let left = if set_ids { permission::without_privileges(mode) } else { mode };
        if left != mode {
            self.touch(number)?.mode = left;
        }
        if capable {
            self.batch.remove(keys::named(Table::Xattr, &[number], CAPABILITY));
            let target = self.touch(number)?;
            target.xattr_bytes -= CAPABILITY.len() as u32 + 1;
            target.capable = false;
        }
        Ok(())
    }
}

/// Whether `who` may make the requested changes.
fn check_change(inode: &Inode, who: &Who<'_>, change: &AttributeChange) -> Result<(), Errno> {
    let owns = permission::owns(inode, who);
    if change.user.is_some_and(|user| !who.passes() && (!owns || user != inode.user)) {
        return Err(Errno::EPERM);
    }
    let foreign = |group| group != inode.group && !who.is_in(group);
    if change.group.is_some_and(|group| !who.passes() && (!owns || foreign(group))) {
        return Err(Errno::EPERM);
    }
    if change.mode.is_some() && !owns {
        return Err(Errno::EPERM);
    }
    let legal = |time: TimeChange| match time {
        TimeChange::At(at) => at.nanos < 1_000_000_000,
        _ => true,
    };
    if !legal(change.accessed) || !legal(change.modified) {
        return Err(Errno::EINVAL);
    }
    match (change.accessed, change.modified) {
        (TimeChange::Keep, TimeChange::Keep) => {}
        (TimeChange::Now, TimeChange::Now) if !owns => permission::check(inode, who, WRITE)?,
        _ if !owns => return Err(Errno::EPERM),
        _ => {}
    }
    match change.size {
        None => Ok(()),
        Some(_) if inode.is_directory() => Err(Errno::EISDIR),
        Some(_) if inode.kind != InodeKind::File => Err(Errno::EINVAL),
        Some(size) => {
            if !change.through_handle {
                permission::check(inode, who, WRITE)?;
            }
            let most = inode.layout.map_or(0, |layout| layout.size_max());
            if size > most { Err(Errno::EFBIG) } else { Ok(()) }
        }
    }
}
