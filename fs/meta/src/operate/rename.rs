//! Rename in its three modes. The order of the checks is the one that programs see on Linux.

use ropewalk_wire::fs::meta::{MetaReply, ROOT, RenameMode, Who};
use ropewalk_wire::fs::value::Errno;

use super::directory::Dentry;
use super::{Operation, Step};
use crate::inode::Inode;
use crate::leases::Need;
use crate::permission::{self, SEARCH, WRITE};
use crate::rows::Rows;
use crate::shard::Admission;

/// One side of a rename: a directory, a name in it, and the entry found there.
struct Side<'n> {
    directory: Inode,
    name: &'n [u8],
    found: Option<(Dentry, Inode)>,
    free: Option<u64>,
}

impl<R: Rows> Operation<'_, R> {
    pub fn rename(
        &mut self,
        who: &Who<'_>,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        mode: RenameMode,
        closed: u64,
    ) -> Step<()> {
        let old = self.side(who, from)?;
        let new = self.side(who, to)?;
        if permission::is_dot(old.name) || permission::is_dot(new.name) {
            return Err(Errno::EBUSY.into());
        }
        let (dentry, inode) = old.found.clone().ok_or(Errno::ENOENT)?;
        match mode {
            RenameMode::NoReplace if new.found.is_some() => return Err(Errno::EEXIST.into()),
            RenameMode::Exchange if new.found.is_none() => return Err(Errno::ENOENT.into()),
            _ => {}
        }
        self.check_ancestors(&old, &new, mode)?;
        if new.found.as_ref().is_some_and(|(target, _)| target.inode == dentry.inode) {
            return self.answer(&MetaReply::Done);
        }
        permission::check_removal(&old.directory, &inode, who)?;
        let exchange = mode == RenameMode::Exchange;
        let cookie = self.check_target(who, &new, &inode, exchange)?;
        if old.directory.number != new.directory.number {
            check_moved(who, &inode, &new)?;
            if let Some((_, target)) = new.found.as_ref().filter(|_| exchange) {
                check_moved(who, target, &old)?;
            }
        }
        self.need_entries(old.directory.number);
        self.need_entries(new.directory.number);
        self.need(inode.number, Need::Quiet);
        if let Some((_, target)) = &new.found {
            self.need(target.number, Need::Quiet);
        }
        self.settle()?;
        let replaced = match &new.found {
            Some((target, _)) if exchange => {
                self.exchange(&old, &new, dentry, *target)?;
                None
            }
            _ => self.replace(&old, &new, dentry, cookie, closed)?,
        };
        match replaced {
            // The holder of a lease on it learns here how many names are left.
            Some(inode) => {
                let attributes = self.shown(inode.attributes());
                self.answer(&MetaReply::Attributes { attributes, grant: None })
            }
            None => self.answer(&MetaReply::Done),
        }
    }

    fn side<'n>(&mut self, who: &Who<'_>, (parent, name): (u64, &'n [u8])) -> Step<Side<'n>> {
        let directory = self.directory(parent)?;
        permission::check_name(name)?;
        permission::check(&directory, who, SEARCH)?;
        let found = self.find(parent, name)?;
        let entry = match found.dentry {
            Some(dentry) => Some((dentry, self.inode(dentry.inode)?.clone())),
            None => None,
        };
        Ok(Side { directory, name, found: entry, free: found.free })
    }

    /// A directory cannot go below itself, and not replace one that it is below.
    fn check_ancestors(&mut self, old: &Side<'_>, new: &Side<'_>, mode: RenameMode) -> Step<()> {
        let moved = old.found.as_ref().filter(|(_, inode)| inode.is_directory());
        if let Some((dentry, _)) = moved
            && self.is_below(new.directory.number, dentry.inode)?
        {
            return Err(Errno::EINVAL.into());
        }
        let target = new.found.as_ref().filter(|(_, inode)| inode.is_directory());
        if let Some((dentry, _)) = target
            && self.is_below(old.directory.number, dentry.inode)?
        {
            let exchange = mode == RenameMode::Exchange;
            return Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY }.into());
        }
        Ok(())
    }

    /// Whether `directory` is `ancestor` or lies below it.
    pub fn is_below(&mut self, mut directory: u64, ancestor: u64) -> Step<bool> {
        while directory != ancestor {
            if directory == ROOT || directory == 0 {
                return Ok(false);
            }
            directory = self.inode(directory)?.parent;
        }
        Ok(true)
    }

    /// Whether the new name may be taken, and the entry that is there may go; the new entry's cookie.
    fn check_target(
        &mut self,
        who: &Who<'_>,
        new: &Side<'_>,
        moved: &Inode,
        exchange: bool,
    ) -> Step<u64> {
        let Some((dentry, target)) = &new.found else {
            if self.shard.admission >= Admission::Freeing {
                return Err(Errno::ENOSPC.into());
            }
            return self.check_new_entry(&new.directory, who, new.free);
        };
        permission::check_removal(&new.directory, target, who)?;
        if !exchange {
            match (moved.is_directory(), target.is_directory()) {
                (true, false) => return Err(Errno::ENOTDIR.into()),
                (false, true) => return Err(Errno::EISDIR.into()),
                (true, true) if target.size > 0 => return Err(Errno::ENOTEMPTY.into()),
                _ => {}
            }
        }
        Ok(dentry.cookie)
    }

    fn replace(
        &mut self,
        old: &Side<'_>,
        new: &Side<'_>,
        dentry: Dentry,
        cookie: u64,
        closed: u64,
    ) -> Step<Option<Inode>> {
        let (from, to) = (old.directory.number, new.directory.number);
        self.touch(dentry.inode)?;
        let is_directory = self.inode(dentry.inode)?.is_directory();
        let links = i32::from(is_directory);
        self.remove_dentry(from, old.name, dentry.cookie);
        self.count_entries(from, -1, -links)?;
        self.remove_back_pointer(dentry.inode, from, dentry.cookie)?;
        let mut replaced = None;
        if let Some((target, _)) = &new.found {
            self.count_entries(to, -1, -links)?;
            replaced = Some(self.unname(to, *target, closed)?);
        }
        self.put_entry(to, new.name, Dentry { cookie, ..dentry }, links)?;
        Ok(replaced)
    }

    fn exchange(
        &mut self,
        old: &Side<'_>,
        new: &Side<'_>,
        first: Dentry,
        second: Dentry,
    ) -> Step<()> {
        let (from, to) = (old.directory.number, new.directory.number);
        let links = |dentry: Dentry, operation: &mut Self| -> Step<i32> {
            Ok(i32::from(operation.touch(dentry.inode)?.is_directory()))
        };
        let (first_links, second_links) = (links(first, self)?, links(second, self)?);
        self.put_dentry(from, old.name, Dentry { cookie: first.cookie, ..second });
        self.put_dentry(to, new.name, Dentry { cookie: second.cookie, ..first });
        self.count_entries(from, 0, second_links - first_links)?;
        self.count_entries(to, 0, first_links - second_links)?;
        self.remove_back_pointer(first.inode, from, first.cookie)?;
        self.remove_back_pointer(second.inode, to, second.cookie)?;
        self.add_back_pointer(first.inode, to, second.cookie)?;
        self.add_back_pointer(second.inode, from, first.cookie)
    }
}

/// A directory that gets another parent is changed itself (its `..`): that takes write permission on
/// it, and room for one more link in the new parent.
fn check_moved(who: &Who<'_>, moved: &Inode, to: &Side<'_>) -> Result<(), Errno> {
    if !moved.is_directory() {
        return Ok(());
    }
    permission::check(moved, who, WRITE)?;
    if to.directory.links == u32::MAX { Err(Errno::EMLINK) } else { Ok(()) }
}
