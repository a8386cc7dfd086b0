//! Taking names away, and inodes with their last name and last user.

use ropewalk_wire::fs::attributes::InodeKind;
use ropewalk_wire::fs::meta::{MetaReply, Who};
use ropewalk_wire::fs::value::Errno;

use super::directory::Dentry;
use super::{Operation, Step};
use crate::inode::{Inode, encode_row};
use crate::keys::{self, Table};
use crate::leases::Need;
use crate::locks::Effects;
use crate::parking::WaitOn;
use crate::permission::{self, SEARCH};
use crate::rows::Rows;
use crate::shard::{Admission, REAP_VERSION};

impl<R: Rows> Operation<'_, R> {
    pub fn unlink(&mut self, who: &Who<'_>, parent: u64, name: &[u8], closed: u64) -> Step<()> {
        let directory = self.directory(parent)?;
        permission::check_name(name)?;
        permission::check(&directory, who, SEARCH)?;
        if permission::is_dot(name) {
            return Err(Errno::EISDIR.into());
        }
        let dentry = self.find(parent, name)?.dentry.ok_or(Errno::ENOENT)?;
        let inode = self.inode(dentry.inode)?.clone();
        permission::check_removal(&directory, &inode, who)?;
        if inode.is_directory() {
            return Err(Errno::EISDIR.into());
        }
        self.need_entries(parent);
        self.need(inode.number, Need::Quiet);
        self.settle()?;
        self.remove_dentry(parent, name, dentry.cookie);
        self.count_entries(parent, -1, 0)?;
        self.drop_link(parent, dentry, closed)
    }

    pub fn remove_directory(
        &mut self,
        who: &Who<'_>,
        parent: u64,
        name: &[u8],
        closed: u64,
    ) -> Step<()> {
        let directory = self.directory(parent)?;
        permission::check_name(name)?;
        permission::check(&directory, who, SEARCH)?;
        match name {
            b"." => return Err(Errno::EINVAL.into()),
            b".." => return Err(Errno::ENOTEMPTY.into()),
            _ => {}
        }
        let dentry = self.find(parent, name)?.dentry.ok_or(Errno::ENOENT)?;
        let inode = self.inode(dentry.inode)?.clone();
        permission::check_removal(&directory, &inode, who)?;
        if !inode.is_directory() {
            return Err(Errno::ENOTDIR.into());
        }
        if inode.size > 0 {
            return Err(Errno::ENOTEMPTY.into());
        }
        self.need_entries(parent);
        self.need(inode.number, Need::Quiet);
        self.settle()?;
        self.remove_dentry(parent, name, dentry.cookie);
        self.count_entries(parent, -1, -1)?;
        self.drop_link(parent, dentry, closed)
    }

    /// An inode lost the entry `dentry` of `parent`; replies with the remaining attributes.
    fn drop_link(&mut self, parent: u64, dentry: Dentry, closed: u64) -> Step<()> {
        let left = self.unname(parent, dentry, closed)?;
        let attributes = self.shown(left.attributes());
        let directory = self.directory_now(parent)?;
        self.answer(&MetaReply::Removed { attributes, directory })
    }

    /// Takes one link off an inode, and the inode away with its last link and last user. `closed`: an inode
    /// that the session does not use any more, or 0. Returns the inode as it was at the end.
    pub fn unname(&mut self, parent: u64, dentry: Dentry, closed: u64) -> Step<Inode> {
        let number = dentry.inode;
        let inode = self.touch(number)?;
        inode.links = if inode.is_directory() { 0 } else { inode.links - 1 };
        self.remove_back_pointer(number, parent, dentry.cookie)?;
        let inode = self.inode(number)?.clone();
        if inode.links == 0 {
            if closed == number {
                self.shard.leases.remove(number, self.session);
                // Calls that wait for the lease can go on; no release follows.
                self.shard.parking.wake(WaitOn::Inode(number));
            }
            // Asked in any case: a session that has it open may close it in a moment.
            let kept = self.keep_for_a_moment(number);
            if kept || self.shard.leases.is_used(number) {
                self.batch.put(keys::key(Table::Orphan, &[number]), Vec::new());
            } else {
                self.destroy(&inode)?;
            }
        }
        Ok(inode)
    }

    /// Whether somebody who was just told of the inode may still come for it.
    fn keep_for_a_moment(&mut self, number: u64) -> bool {
        let shard = &mut *self.shard;
        // An inode is not kept while room is short: removals are to make room.
        shard.admission == Admission::All
            && shard.graves.bury(number, self.now.time, shard.config.moment)
    }

    /// Notes that the session knows the inode, and no lease stands for that.
    pub fn note_told(&mut self, number: u64) {
        let shard = &mut *self.shard;
        if self.session != 0 {
            shard.graves.told(number, self.now.time, shard.config.moment);
        }
    }

    /// Destroys an orphan if no session uses it any more.
    pub fn collect(&mut self, number: u64) -> Step<()> {
        let inode = self.inode(number)?.clone();
        let used = self.shard.leases.is_used(number) || self.shard.graves.keeps(number);
        // On a full disk the orphan stays, to be collected when there is room again.
        if inode.links > 0 || used || self.shard.is_full() {
            return Ok(());
        }
        self.batch.remove(keys::key(Table::Orphan, &[number]));
        self.destroy(&inode)
    }

    /// Takes away every row of an inode, and queues its objects.
    fn destroy(&mut self, inode: &Inode) -> Step<()> {
        let number = inode.number;
        self.forget_inode(number)?;
        if inode.inline_bytes > 0 {
            self.batch.remove(keys::key(Table::Inline, &[number]));
        }
        if inode.xattr_bytes > 0 {
            self.remove_range(&keys::key(Table::Xattr, &[number]))?;
        }
        if inode.striped {
            self.queue_reap(inode);
        }
        if self.shard.cuts.remove(&number).is_some() {
            self.batch.remove(keys::key(Table::Shrink, &[number]));
            self.shard.parking.wake(WaitOn::Inode(number));
        }
        let mut effects = Effects::default();
        self.shard.locks.release_inode(number, &mut effects);
        self.apply_locks(effects);
        self.shard.inode_count = self.shard.inode_count.saturating_sub(1);
        Ok(())
    }

    /// Puts the present generation of a file's objects into the reap queue.
    pub fn queue_reap(&mut self, inode: &Inode) {
        let pool_version = inode.layout.map_or(0, |layout| layout.pool_version);
        let key = keys::key(Table::Reap, &[inode.number, u64::from(inode.generation)]);
        self.batch.put(key, encode_row(REAP_VERSION, &pool_version));
        self.shard.reap_waiting = true;
    }

    fn remove_range(&mut self, prefix: &[u8]) -> Step<()> {
        let batch = &mut self.batch;
        self.shard.rows.scan(prefix, &keys::after(prefix), &mut |key, _| {
            batch.remove(key.to_vec());
            true
        })?;
        Ok(())
    }

    /// Points an inode back to one more entry.
    pub fn add_back_pointer(&mut self, number: u64, parent: u64, cookie: u64) -> Step<()> {
        let inode = self.change(number)?;
        if inode.parent == 0 {
            inode.parent = parent;
            inode.cookie = cookie;
        } else {
            let key = keys::key(Table::BackPointer, &[number, parent, cookie]);
            self.batch.put(key, Vec::new());
        }
        Ok(())
    }

    /// Forgets that an inode is behind an entry; another of its entries becomes the one that its
    /// row names.
    pub fn remove_back_pointer(&mut self, number: u64, parent: u64, cookie: u64) -> Step<()> {
        let inode = self.inode(number)?;
        let (links, kind) = (inode.links, inode.kind);
        if (inode.parent, inode.cookie) != (parent, cookie) {
            self.batch.remove(keys::key(Table::BackPointer, &[number, parent, cookie]));
            return Ok(());
        }
        let mut next = (0, 0);
        if links > 0 && kind != InodeKind::Directory {
            let prefix = keys::key(Table::BackPointer, &[number]);
            self.shard.rows.scan(&prefix, &keys::after(&prefix), &mut |key, _| {
                next = (keys::number(key, 1).unwrap_or(0), keys::number(key, 2).unwrap_or(0));
                false
            })?;
            if next != (0, 0) {
                self.batch.remove(keys::key(Table::BackPointer, &[number, next.0, next.1]));
            }
        }
        let inode = self.change(number)?;
        (inode.parent, inode.cookie) = next;
        Ok(())
    }
}
