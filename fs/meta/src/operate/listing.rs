//! Lists: directories, and all inodes for `check`.

use ropewalk_wire::fs::attributes::InodeKind;
use ropewalk_wire::fs::head::REPLY_BYTES_MAX;
use ropewalk_wire::fs::meta::{DirectoryEntry, LeaseMode, MetaReply, Who};
use ropewalk_wire::fs::value::{Bytes, Errno};

use super::directory::decode_dentry;
use super::garbage::{INODE_BYTES, RUN_BYTES};
use super::{Operation, Step};
use crate::inode::{Damaged, Inode};
use crate::keys::{self, Table};
use crate::permission::{self, READ};
use crate::rows::{Rows, RowsError};

/// Most bytes that an entry takes beside its name, without and with attributes and grant.
const ENTRY_BYTES: usize = 32;
const ENTRY_ATTRIBUTES_BYTES: usize = 192;
/// Bytes of a reply beside its entries.
const FRAME_BYTES: usize = 256;

/// Room for entries in a reply that is asked to have `bytes_max` bytes; always enough for one.
pub(super) fn budget(bytes_max: u32) -> usize {
    (bytes_max as usize).clamp(2 * FRAME_BYTES + 512, REPLY_BYTES_MAX) - FRAME_BYTES
}

/// Bytes of an inode in a list of `check`.
fn listed_bytes(inode: &Inode) -> usize {
    INODE_BYTES + inode.written.as_slice().len() * RUN_BYTES
}

pub(super) struct Row {
    pub cookie: u64,
    name: Vec<u8>,
    inode: u64,
    kind: InodeKind,
}

impl<R: Rows> Operation<'_, R> {
    pub fn read_directory(
        &mut self,
        who: &Who<'_>,
        number: u64,
        cookie: u64,
        bytes_max: u32,
        attributes: bool,
    ) -> Step<()> {
        let directory = self.directory(number)?;
        if directory.links == 0 {
            // A process that still stands in it finds nothing, as in every file system of Linux.
            return Err(Errno::ENOENT.into());
        }
        // Later pieces of a scan go on under the permission that its beginning had.
        if cookie == 0 {
            permission::check(&directory, who, READ)?;
        }
        let (rows, end) = self.entries_after(number, cookie, budget(bytes_max), attributes)?;
        let mut entries = Vec::with_capacity(rows.len());
        for row in &rows {
            let mut entry = DirectoryEntry {
                name: Bytes(&row.name),
                inode: row.inode,
                kind: row.kind,
                cookie: row.cookie,
                attributes: None,
                grant: None,
            };
            if attributes && !self.is_written_by_others(row.inode) {
                match self.inode(row.inode) {
                    Ok(inode) => {
                        let (attributes, epoch) = (inode.attributes(), inode.epoch);
                        entry.attributes = Some(self.shown(attributes));
                        entry.grant = self.cache_grant(row.inode, epoch);
                    }
                    // The name is whole, and so are the others. A request for the inode itself answers EIO.
                    Err(stop) => self.note_damage(stop)?,
                }
            }
            entries.push(entry);
        }
        let grant = self.cache_grant(number, directory.epoch);
        self.answer(&MetaReply::Directory { entries, end, grant })
    }

    pub(super) fn entries_after(
        &mut self,
        number: u64,
        cookie: u64,
        mut room: usize,
        attributes: bool,
    ) -> Step<(Vec<Row>, bool)> {
        let fixed = if attributes { ENTRY_ATTRIBUTES_BYTES } else { ENTRY_BYTES };
        let (mut rows, mut end, mut damaged) = (Vec::new(), true, false);
        let Some(first) = cookie.checked_add(1) else { return Ok((rows, end)) };
        let from = keys::key(Table::Dentry, &[number, first]);
        let to = keys::after(&keys::key(Table::Dentry, &[number]));
        self.shard.rows.scan(&from, &to, &mut |key, value| {
            let name = keys::name(key, 2);
            let takes = fixed + name.len();
            if takes > room {
                end = false;
                return false;
            }
            room -= takes;
            match (keys::number(key, 1), decode_dentry(value)) {
                (Some(cookie), Ok((inode, kind))) => {
                    rows.push(Row { cookie, name: name.to_vec(), inode, kind });
                }
                _ => damaged = true,
            }
            !damaged
        })?;
        if damaged { Err(Errno::EIO.into()) } else { Ok((rows, end)) }
    }

    /// Whether the attributes here are not the newest: another session owns them.
    fn is_written_by_others(&self, inode: u64) -> bool {
        let leases = &self.shard.leases;
        leases.writer(inode).is_some_and(|session| session != self.session)
            && leases.mode(inode, self.session) == LeaseMode::None
    }

    pub fn list_inodes(&mut self, from: u64, bytes_max: u32) -> Step<()> {
        let mut room = budget(bytes_max);
        let (mut inodes, mut end, mut damaged) = (Vec::new(), true, false);
        let first = keys::key(Table::Inode, &[from]);
        let last = keys::after(&[Table::Inode as u8]);
        let scanned = self.shard.rows.scan(&first, &last, &mut |key, value| {
            let number = keys::number(key, 0).ok_or(Damaged);
            let Ok(inode) = number.and_then(|number| Inode::decode(number, value)) else {
                damaged = true;
                return false;
            };
            let takes = listed_bytes(&inode);
            if takes > room && !inodes.is_empty() {
                end = false;
                return false;
            }
            room = room.saturating_sub(takes);
            inodes.push(inode);
            true
        });
        match scanned {
            Err(RowsError::Damaged(_)) => damaged = true,
            result => result?,
        }
        if damaged {
            end = false;
            if inodes.is_empty() {
                inodes = self.inodes_before_damage(from)?;
                let mut takes = 0;
                let mut fits = |inode: &Inode| {
                    takes += listed_bytes(inode);
                    takes <= budget(bytes_max)
                };
                // One always has room.
                let count = inodes.iter().take_while(|inode| fits(inode)).count();
                inodes.truncate(count.max(1));
            }
            // The next request meets the damage.
            if inodes.is_empty() {
                return Err(Errno::EIO.into());
            }
        }
        let inodes = inodes.iter().map(|inode| self.info(inode)).collect();
        self.answer(&MetaReply::Inodes { inodes, end })
    }
}
