//! Changing attributes: `chmod`, `chown`, `truncate`, `utimensat`, and the privileges that fall.

use ropewalk_wire::fs::attributes::InodeKind;
use ropewalk_wire::fs::meta::{AttributeChange, TimeChange, Who};
use ropewalk_wire::fs::value::Errno;

use super::{Operation, Step};
use crate::inode::{Inode, encode_row};
use crate::keys::{self, Table};
use crate::leases::Need;
use crate::permission::{self, SET_GROUP, WRITE};
use crate::rows::Rows;
use crate::shard::{CUT_VERSION, Cut};

/// The attribute that holds a program's capabilities; it falls with setuid.
const CAPABILITY: &[u8] = b"security.capability";

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
        self.need(number, if shrinks { Need::Alone } else { Need::Quiet });
        self.settle()?;
        if let Some(size) = change.size {
            let kill = who.user != 0 || change.kill_privileges;
            self.set_size(number, size, kill)?;
        }
        let now = self.now.calendar;
        let target = self.touch(number)?;
        let changes_owner = change.user.is_some() || change.group.is_some();
        target.user = change.user.unwrap_or(target.user);
        target.group = change.group.unwrap_or(target.group);
        if let Some(mode) = change.mode {
            target.mode = mode & 0o7777;
            if who.user != 0 && !who.is_in(inode.group) {
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
        let falls = change.kill_privileges || (changes_owner && change.mode.is_none());
        if falls && !inode.is_directory() {
            self.kill_privileges(number)?;
        }
        self.answer_attributes(number)
    }

    fn set_size(&mut self, number: u64, size: u64, kill_privileges: bool) -> Step<()> {
        let inode = self.inode(number)?.clone();
        if size == 0 && (inode.size > 0 || inode.striped) {
            return self.truncate_to_zero(number, kill_privileges);
        }
        let now = self.now.calendar;
        if kill_privileges {
            self.kill_privileges(number)?;
        }
        let renews = size < inode.size && !inode.striped;
        let generation =
            if renews { self.next_generation(inode.generation)? } else { inode.generation };
        let target = self.touch(number)?;
        target.modified = now;
        target.size = size;
        if size >= inode.size {
            return Ok(());
        }
        target.epoch += 1;
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

    /// Takes setuid, setgid and capabilities from a file, as a write by another user does.
    pub fn kill_privileges(&mut self, number: u64) -> Step<()> {
        let inode = self.inode(number)?;
        let (mode, xattr_bytes) = (inode.mode, inode.xattr_bytes);
        let left = permission::without_privileges(mode);
        if left != mode {
            self.touch(number)?.mode = left;
        }
        if xattr_bytes > 0 {
            let key = keys::named(Table::Xattr, &[number], CAPABILITY);
            if self.shard.rows.get(&key)?.is_some() {
                self.batch.remove(key);
                self.touch(number)?.xattr_bytes -= CAPABILITY.len() as u32 + 1;
            }
        }
        Ok(())
    }
}

/// Whether `who` may change what is asked.
fn check_change(inode: &Inode, who: &Who<'_>, change: &AttributeChange) -> Result<(), Errno> {
    let owns = permission::owns(inode, who);
    if change.user.is_some_and(|user| who.user != 0 && (!owns || user != inode.user)) {
        return Err(Errno::EPERM);
    }
    let foreign = |group| group != inode.group && !who.is_in(group);
    if change.group.is_some_and(|group| who.user != 0 && (!owns || foreign(group))) {
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
