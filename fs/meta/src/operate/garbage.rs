//! The requests of `check`: the fate of inodes, their places in the tree, and the removal of garbage.

use ropewalk_wire::fs::head::REPLY_BYTES_MAX;
use ropewalk_wire::fs::meta::{
    DISCARDED_MAX, INODES_ASKED_MAX, InodeFate, InodeInfo, MetaReply, PATH_BYTES_MAX, ROOT,
    VOUCHED_MAX,
};
use ropewalk_wire::fs::runs::RUNS_MAX;
use ropewalk_wire::fs::value::{Bytes, Errno};

use super::{Operation, Step, Stop};
use crate::inode::{Inode, encode_row};
use crate::keys::{self, Table};
use crate::rows::Rows;
use crate::shard::REAP_VERSION;

/// An inode of a reply, and each run of its written stripes, in bytes.
pub(super) const INODE_BYTES: usize = 224;
pub(super) const RUN_BYTES: usize = 10;
/// Bytes of a reply beside its entries.
const FRAME_BYTES: usize = 64;
// A reply has room for the stripes of any file.
const _: () = assert!(FRAME_BYTES + INODE_BYTES + RUNS_MAX * RUN_BYTES <= REPLY_BYTES_MAX);
/// Inode and generation of one object of `Discard`.
const OBJECT_BYTES: usize = 12;

impl<R: Rows> Operation<'_, R> {
    /// An inode as `check` sees it.
    pub fn info(&self, inode: &Inode) -> InodeInfo {
        let shard = &*self.shard;
        InodeInfo {
            attributes: inode.attributes(),
            content: inode.content(),
            written: inode.written.as_slice().to_vec(),
            // One that is only kept for a moment goes with all that it has: its last writer, who took its
            // name, told no more of it.
            changing: shard.leases.is_written(inode.number)
                || shard.cuts.contains_key(&inode.number)
                || shard.graves.keeps(inode.number),
        }
    }

    pub fn get_inodes(&mut self, numbers: &[u8], bytes_max: u32) -> Step<()> {
        let count = numbers.len() / 8;
        if !numbers.len().is_multiple_of(8) || !(1..=INODES_ASKED_MAX).contains(&count) {
            return Err(Errno::EINVAL.into());
        }
        let mut room = (bytes_max as usize).min(REPLY_BYTES_MAX).saturating_sub(FRAME_BYTES);
        let mut fates: Vec<InodeFate> = Vec::new();
        for number in numbers.chunks_exact(8) {
            let number = u64::from_le_bytes(number.try_into().expect("eight bytes"));
            let inode = match self.inode(number) {
                Ok(inode) => Some(inode.clone()),
                Err(Stop::Errno(Errno::ESTALE)) => None,
                Err(stop) => return Err(stop),
            };
            let inode = inode.map(|inode| self.info(&inode));
            let runs = inode.as_ref().map_or(0, |inode| inode.written.len());
            let takes = INODE_BYTES + runs * RUN_BYTES;
            if takes > room && !fates.is_empty() {
                break;
            }
            room = room.saturating_sub(takes);
            let reaping = self.reaping(number)?;
            fates.push(InodeFate { inode, reaping });
        }
        self.answer(&MetaReply::Fates { fates })
    }

    /// The facts that a data server may believe: the sessions that exist, and the write epochs of files.
    pub fn vouch(&mut self, sessions: &[u8], inodes: &[u8]) -> Step<()> {
        let numbers = |bytes: &[u8]| {
            let legal = bytes.len().is_multiple_of(8) && bytes.len() <= 8 * VOUCHED_MAX;
            let number = |eight: &[u8]| u64::from_le_bytes(eight.try_into().expect("eight bytes"));
            legal.then(|| bytes.chunks_exact(8).map(number).collect::<Vec<_>>())
        };
        let (Some(sessions), Some(inodes)) = (numbers(sessions), numbers(inodes)) else {
            return Err(Errno::EINVAL.into());
        };
        let lives = |session| {
            let there = self.shard.sessions.get(session).is_some_and(|it| !it.row.fencing);
            // A session whose export is no more has no rights.
            there && self.shard.standing(session).is_some()
        };
        let sessions: Vec<u8> = sessions.into_iter().map(|it| u8::from(lives(it))).collect();
        let mut files = Vec::new();
        for number in inodes {
            files.push(match self.inode(number) {
                Ok(inode) => inode.is_file().then_some((inode.generation, inode.epoch)),
                Err(Stop::Errno(Errno::ESTALE)) => None,
                Err(stop) => return Err(stop),
            });
        }
        let clock = self.shard.clock(self.now);
        self.answer(&MetaReply::Vouched { sessions: Bytes(&sessions), clock, files })
    }

    /// The highest generation of the inode's objects that is on its way out.
    fn reaping(&self, number: u64) -> Step<Option<u32>> {
        let prefix = keys::key(Table::Reap, &[number]);
        let mut highest = None;
        self.shard.rows.scan(&prefix, &keys::after(&prefix), &mut |key, _| {
            let generation = keys::number(key, 1).and_then(|number| u32::try_from(number).ok());
            highest = highest.max(generation);
            true
        })?;
        Ok(highest)
    }

    pub fn get_path(&mut self, number: u64) -> Step<()> {
        let path = self.path_of(number)?;
        self.answer(&MetaReply::Content { bytes: Bytes(&path) })
    }

    /// A path of an inode, from the root of everything.
    pub fn path_of(&mut self, number: u64) -> Step<Vec<u8>> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let (mut at, mut bytes) = (number, 0);
        while at != ROOT {
            let (parent, cookie) = match self.inode(at) {
                Ok(inode) => (inode.parent, inode.cookie),
                Err(Stop::Errno(Errno::ESTALE)) => return Err(Errno::ENOENT.into()),
                Err(stop) => return Err(stop),
            };
            let prefix = keys::key(Table::Dentry, &[parent, cookie]);
            let mut name = None;
            self.shard.rows.scan(&prefix, &keys::after(&prefix), &mut |key, _| {
                name = Some(keys::name(key, 2).to_vec());
                false
            })?;
            let name = name.ok_or(Errno::ENOENT)?;
            // Also the end of a circle, should rows ever make one.
            bytes += name.len() + 1;
            if bytes > PATH_BYTES_MAX {
                return Err(Errno::ENAMETOOLONG.into());
            }
            names.push(name);
            at = parent;
        }
        let mut path: Vec<u8> =
            names.iter().rev().flat_map(|name| [b"/", &name[..]].concat()).collect();
        if path.is_empty() {
            path.push(b'/');
        }
        Ok(path)
    }

    /// Queues objects of a server as garbage where they are that for certain.
    pub fn discard(&mut self, server: u32, objects: &[u8]) -> Step<()> {
        let count = objects.len() / OBJECT_BYTES;
        if !objects.len().is_multiple_of(OBJECT_BYTES) || !(1..=DISCARDED_MAX).contains(&count) {
            return Err(Errno::EINVAL.into());
        }
        // A reap goes to the servers of a pool version.
        let pool = self.shard.pools.newest_with(server).ok_or(Errno::ENOENT)?;
        let mut count = 0;
        for object in objects.chunks_exact(OBJECT_BYTES) {
            let (inode, generation) = object.split_at(8);
            let inode = u64::from_le_bytes(inode.try_into().expect("eight bytes"));
            let generation = u32::from_le_bytes(generation.try_into().expect("four bytes"));
            if !self.is_garbage(inode, generation)? {
                continue;
            }
            count += 1;
            let key = keys::key(Table::Reap, &[inode, u64::from(generation)]);
            if self.shard.rows.get(&key)?.is_none() {
                self.batch.put(key, encode_row(REAP_VERSION, &pool));
            }
        }
        self.shard.reap_waiting |= count > 0;
        self.answer(&MetaReply::Discarded { count })
    }

    /// Whether no object of this generation of the inode can ever be used again. A number that was
    /// not given out yet may still become a file's, whose writes a tombstone would refuse.
    fn is_garbage(&mut self, inode: u64, generation: u32) -> Step<bool> {
        match self.inode(inode) {
            Ok(inode) => Ok(generation < inode.generation),
            Err(Stop::Errno(Errno::ESTALE)) => {
                Ok(inode < self.shard.numbers.first_unused(self.shard.next_range))
            }
            Err(stop) => Err(stop),
        }
    }
}
