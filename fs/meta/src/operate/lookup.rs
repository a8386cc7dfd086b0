//! Lookup, attributes, symbolic links: the requests that only read one inode.

use ropewalk_wire::fs::attributes::InodeKind;
use ropewalk_wire::fs::meta::{Entry, MetaReply, ROOT, Who};
use ropewalk_wire::fs::value::{Bytes, Errno};

use super::{Operation, Step};
use crate::keys::{self, Table};
use crate::leases::Need;
use crate::permission::{self, SEARCH};
use crate::rows::Rows;

impl<R: Rows> Operation<'_, R> {
    pub fn lookup(&mut self, who: &Who<'_>, parent: u64, name: &[u8]) -> Step<()> {
        let directory = self.directory(parent)?;
        permission::check_name(name)?;
        permission::check(&directory, who, SEARCH)?;
        let root = self.root()?;
        let number = match name {
            b"." => parent,
            b".." if parent == ROOT || parent == root => parent,
            b".." if directory.links == 0 => return Err(Errno::ENOENT.into()),
            b".." => directory.parent,
            _ => match self.find(parent, name)?.dentry {
                Some(dentry) => dentry.inode,
                None => {
                    self.cache_grant(parent, directory.epoch);
                    let cached = self.caches_entries(parent);
                    return self.answer(&MetaReply::Missing { cached });
                }
            },
        };
        self.need(number, Need::Fresh);
        self.settle()?;
        self.cache_grant(parent, directory.epoch);
        let entry = self.entry(parent, number)?;
        self.answer(&MetaReply::Entry(entry))
    }

    /// An inode as an entry of a directory, with the lease that can be had.
    pub fn entry(&mut self, parent: u64, number: u64) -> Step<Entry> {
        let inode = self.inode(number)?;
        let (attributes, epoch) = (inode.attributes(), inode.epoch);
        let attributes = self.shown(attributes);
        let grant = self.cache_grant(number, epoch);
        Ok(Entry { attributes, entry_cached: self.caches_entries(parent), grant, directory: None })
    }

    pub fn get_attributes(&mut self, number: u64) -> Step<()> {
        self.inode(number)?;
        self.need(number, Need::Fresh);
        self.settle()?;
        self.answer_attributes(number)
    }

    /// Replies with an inode's attributes and the lease that can be had.
    pub fn answer_attributes(&mut self, number: u64) -> Step<()> {
        let inode = self.inode(number)?;
        let (attributes, epoch) = (inode.attributes(), inode.epoch);
        let attributes = self.shown(attributes);
        let grant = self.cache_grant(number, epoch);
        self.answer(&MetaReply::Attributes { attributes, grant })
    }

    pub fn read_link(&mut self, number: u64) -> Step<()> {
        if self.inode(number)?.kind != InodeKind::Symlink {
            return Err(Errno::EINVAL.into());
        }
        let target = self.inline_bytes(number)?;
        self.answer(&MetaReply::Content { bytes: Bytes(&target) })
    }

    /// The inline row of an inode, as long as the inode says.
    pub fn inline_bytes(&mut self, number: u64) -> Step<Vec<u8>> {
        let len = self.inode(number)?.inline_bytes as usize;
        if len == 0 {
            return Ok(Vec::new());
        }
        let bytes = self.shard.rows.get(&keys::key(Table::Inline, &[number]))?;
        match bytes {
            Some(bytes) if bytes.len() == len => Ok(bytes),
            _ => Err(Errno::EIO.into()),
        }
    }
}
