//! Dentries: finding, adding and taking away entries of directories.

use ropewalk_wire::fs::attributes::InodeKind;
use ropewalk_wire::fs::meta::DirectoryNow;
use ropewalk_wire::fs::value::Errno;

use super::{Operation, Step};
use crate::inode::{Damaged, Inode, decode_row, encode_row};
use crate::keys::{self, Table};
use crate::names::COLLISIONS_MAX;
use crate::rows::Rows;

const VERSION: u8 = 1;

/// An entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dentry {
    pub cookie: u64,
    pub inode: u64,
    pub kind: InodeKind,
}

/// The result of a look-up of a name in a directory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub dentry: Option<Dentry>,
    /// The cookie that a new entry of this name gets; None where too many names collide.
    pub free: Option<u64>,
}

/// The value of a dentry row.
pub(crate) fn decode_dentry(value: &[u8]) -> Result<(u64, InodeKind), Damaged> {
    decode_row(VERSION, value)
}

impl<R: Rows> Operation<'_, R> {
    /// The inode, which must be a directory (`ENOTDIR`).
    pub fn directory(&mut self, number: u64) -> Step<Inode> {
        let inode = self.inode(number)?;
        if inode.is_directory() { Ok(inode.clone()) } else { Err(Errno::ENOTDIR.into()) }
    }

    /// Looks a name up in the rows. Changes by this very operation are not seen.
    pub fn find(&mut self, parent: u64, name: &[u8]) -> Step<Found> {
        let first = self.shard.names.first_cookie(name);
        let from = keys::key(Table::Dentry, &[parent, first]);
        let to = keys::key(Table::Dentry, &[parent, first + COLLISIONS_MAX]);
        let (mut dentry, mut free, mut damaged) = (None, first, false);
        self.shard.rows.scan(&from, &to, &mut |key, value| {
            let cookie = keys::number(key, 1).unwrap_or(0);
            if cookie == free {
                free += 1;
            }
            if keys::name(key, 2) == name {
                match decode_dentry(value) {
                    Ok((inode, kind)) => dentry = Some(Dentry { cookie, inode, kind }),
                    Err(Damaged) => damaged = true,
                }
            }
            dentry.is_none() && !damaged
        })?;
        if damaged {
            return Err(Damaged.into());
        }
        Ok(Found { dentry, free: (free < first + COLLISIONS_MAX).then_some(free) })
    }

    /// Writes an entry. The directory's count and times are the caller's affair.
    pub fn put_dentry(&mut self, parent: u64, name: &[u8], dentry: Dentry) {
        let key = keys::named(Table::Dentry, &[parent, dentry.cookie], name);
        self.batch.put(key, encode_row(VERSION, &(dentry.inode, dentry.kind)));
    }

    /// Takes an entry away. The directory's count and times are the caller's affair.
    pub fn remove_dentry(&mut self, parent: u64, name: &[u8], cookie: u64) {
        self.batch.remove(keys::named(Table::Dentry, &[parent, cookie], name));
    }

    /// A directory after a change of its entries.
    pub fn directory_now(&mut self, number: u64) -> Step<DirectoryNow> {
        let directory = self.inode(number)?;
        Ok(DirectoryNow {
            version: directory.version,
            size: directory.size,
            link_count: directory.links,
            modified: directory.modified,
        })
    }

    /// Changes a directory whose entries changed: their number, the links of subdirectories, times.
    pub fn count_entries(&mut self, number: u64, entries: i64, links: i32) -> Step<()> {
        let now = self.now.calendar;
        let directory = self.change(number)?;
        directory.size = directory.size.saturating_add_signed(entries);
        directory.links = directory.links.saturating_add_signed(links);
        directory.modified = now;
        directory.changed = now;
        Ok(())
    }
}
