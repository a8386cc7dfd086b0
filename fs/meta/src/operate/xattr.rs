//! Extended attributes and the rules of their name spaces.

use ropewalk_wire::fs::attributes::InodeKind;
use ropewalk_wire::fs::meta::{MetaReply, NAME_BYTES_MAX, Who, XATTR_BYTES_MAX};
use ropewalk_wire::fs::value::{Bytes, Errno};

use super::attributes::CAPABILITY;
use super::{Operation, Step};
use crate::inode::Inode;
use crate::keys::{self, Table};
use crate::leases::Need;
use crate::permission::{self, READ, STICKY, WRITE};
use crate::rows::Rows;
use ropewalk_wire::fs::policy::{POLICY, Policy};

/// Most bytes of a listing: the limit of `listxattr`.
const LIST_BYTES_MAX: usize = 64 * 1024;

impl<R: Rows> Operation<'_, R> {
    pub fn get_xattr(&mut self, who: &Who<'_>, number: u64, name: &[u8]) -> Step<()> {
        let inode = self.inode(number)?.clone();
        if name == POLICY {
            return self.get_policy(&inode);
        }
        check(&inode, who, name, false)?;
        let value = if inode.xattr_bytes == 0 {
            None
        } else {
            self.shard.rows.get(&keys::named(Table::Xattr, &[number], name))?
        };
        let value = value.ok_or(Errno::ENODATA)?;
        self.answer(&MetaReply::Content { bytes: Bytes(&value) })
    }

    pub fn list_xattr(&mut self, who: &Who<'_>, number: u64) -> Step<()> {
        let mut names = Vec::new();
        if self.inode(number)?.xattr_bytes > 0 {
            let prefix = keys::key(Table::Xattr, &[number]);
            self.shard.rows.scan(&prefix, &keys::after(&prefix), &mut |key, _| {
                let name = keys::name(key, 1);
                if who.passes() || !name.starts_with(b"trusted.") {
                    names.extend_from_slice(name);
                    names.push(0);
                }
                true
            })?;
        }
        self.answer(&MetaReply::Content { bytes: Bytes(&names) })
    }

    pub fn set_xattr(
        &mut self,
        who: &Who<'_>,
        number: u64,
        name: &[u8],
        value: &[u8],
        create: bool,
        replace: bool,
    ) -> Step<()> {
        let inode = self.inode(number)?.clone();
        if name == POLICY {
            // It is there always.
            let policy = if create { Err(Errno::EEXIST) } else { Ok(Policy::parse(value)) };
            return self.set_policy(who, number, policy?.ok_or(Errno::EINVAL)?);
        }
        check(&inode, who, name, true)?;
        if value.len() > XATTR_BYTES_MAX {
            return Err(Errno::E2BIG.into());
        }
        let key = keys::named(Table::Xattr, &[number], name);
        let old = match inode.xattr_bytes {
            0 => None,
            _ => self.shard.rows.get(&key)?,
        };
        let exists = old.is_some();
        match (exists, create, replace) {
            (true, true, _) => return Err(Errno::EEXIST.into()),
            (false, _, true) => return Err(Errno::ENODATA.into()),
            _ => {}
        }
        let grows = if exists { 0 } else { name.len() + 1 };
        if inode.xattr_bytes as usize + grows > LIST_BYTES_MAX {
            return Err(Errno::ENOSPC.into());
        }
        if old.is_none_or(|old| old.len() < value.len()) {
            self.check_growth()?;
        }
        let capable = name == CAPABILITY && inode.is_file();
        // A writer must know before its next write that there are capabilities to fall.
        self.need(number, if capable { Need::Alone } else { Need::Quiet });
        self.settle()?;
        let target = self.touch(number)?;
        target.xattr_bytes += grows as u32;
        target.capable |= name == CAPABILITY;
        self.batch.put(key, value.to_vec());
        self.answer(&MetaReply::Done)
    }

    pub fn remove_xattr(&mut self, who: &Who<'_>, number: u64, name: &[u8]) -> Step<()> {
        if name == POLICY {
            return self.remove_policy(who, number);
        }
        let inode = self.inode(number)?.clone();
        match name == CAPABILITY && inode.is_file() {
            // As a write would take them away.
            true if permission::owns(&inode, who) => {}
            true => permission::check(&inode, who, WRITE)?,
            false => check(&inode, who, name, true)?,
        }
        let key = keys::named(Table::Xattr, &[number], name);
        if inode.xattr_bytes == 0 || self.shard.rows.get(&key)?.is_none() {
            return Err(Errno::ENODATA.into());
        }
        self.need(number, Need::Quiet);
        self.settle()?;
        let target = self.touch(number)?;
        target.xattr_bytes -= name.len() as u32 + 1;
        target.capable &= name != CAPABILITY;
        self.batch.remove(key);
        self.answer(&MetaReply::Done)
    }
}

/// Whether the name is one that `who` may read or write on the inode.
fn check(inode: &Inode, who: &Who<'_>, name: &[u8], write: bool) -> Result<(), Errno> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(Errno::ERANGE);
    }
    if name.contains(&0) {
        return Err(Errno::EINVAL);
    }
    let refused = if write { Errno::EPERM } else { Errno::ENODATA };
    let dot = name.iter().position(|&byte| byte == b'.').ok_or(Errno::EOPNOTSUPP)?;
    let (space, rest) = name.split_at(dot + 1);
    match space {
        b"user." | b"trusted." | b"security." if rest.is_empty() => return Err(Errno::EINVAL),
        b"user." => {}
        b"trusted." if !who.passes() => return Err(refused),
        b"security." if write && !who.passes() => return Err(Errno::EPERM),
        b"trusted." | b"security." => return Ok(()),
        _ => return Err(Errno::EOPNOTSUPP),
    }
    let sticky = inode.is_directory() && inode.mode & STICKY != 0;
    if !matches!(inode.kind, InodeKind::File | InodeKind::Directory)
        || (write && sticky && !permission::owns(inode, who))
    {
        return Err(refused);
    }
    permission::check(inode, who, if write { WRITE } else { READ })
}
