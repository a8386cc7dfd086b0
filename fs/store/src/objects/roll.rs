//! The roll: the objects of a store, and the age of each one's file.
//!
//! A file cannot say that it is gone, nor that it is a copy of an earlier day. The roll can: for each object
//! that a checkpoint has brought into its file it has the stamp that the file's head bore then. A file that
//! is missing, or bears a lesser stamp, is not the one that the store had.
//!
//! It is a hash table in one file that grows page by page (linear hashing). One page is read when an object
//! comes into memory; a checkpoint writes the pages that it has changed. Only the changes for the next
//! checkpoint are kept in memory.
//!
//! Invariants
//! * an entry is written only when the file with that stamp is durable, its name included: however old the
//!   roll is, it convicts no file that a crash has left as it had to be;
//! * it is durable before the log lets go of changes that a checkpoint has taken in;
//! * nothing is ever lost with the roll alone. Each entry has a checksum of its own; an object without one
//!   is not watched until it is used again.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use ropewalk_base::checksum;
use ropewalk_base::disk::{Disk, File, Open};

use super::ObjectId;
use super::error::{is_full, is_unreadable};

pub(super) const NAME: &str = "roll";
const PAGE_BYTES: usize = 4096;
const ENTRY_BYTES: usize = 24;
const PAGE_ENTRIES: usize = PAGE_BYTES / ENTRY_BYTES;
/// A page with so many entries makes the table grow.
const CROWDED: usize = PAGE_ENTRIES * 7 / 8;
/// Pages that one entry makes at most.
const GROWTH_MAX: usize = 8;
/// Pages that a checkpoint holds in memory.
const PAGES_HELD_MAX: usize = 256;

type Page = [u8; PAGE_BYTES];

/// The changes to enter for objects: the stamp of a file, or that the object was removed.
pub(super) type Changes = BTreeMap<ObjectId, Option<u32>>;

/// The file of the roll.
#[derive(Clone)]
pub(super) struct RollFile {
    file: Arc<dyn File>,
    salt: u32,
}

/// The roll of a store at work.
pub(super) struct Roll {
    /// `None` where it could not be made: then nothing is watched.
    file: Option<RollFile>,
    /// The changes that the next checkpoint writes.
    pending: Changes,
    /// Objects that could not be entered since the store was opened.
    unwatched: u64,
}

impl Roll {
    /// Opens the roll of a store, and makes one where there is none, durably. True with it: there was
    /// none.
    pub(super) fn open(disk: &dyn Disk, root: &Path, salt: u32) -> io::Result<(Roll, bool)> {
        let mut is_new = false;
        let mut make = || -> io::Result<Arc<dyn File>> {
            let file = disk.open(&root.join(NAME), Open::Create)?;
            if file.len()? < PAGE_BYTES as u64 {
                is_new = true;
                file.write_at(0, &[0; PAGE_BYTES])?;
                disk.sync_directory(root)?;
            }
            // Also where an earlier start came no further than this.
            file.sync_data()?;
            Ok(file)
        };
        let file = match make() {
            Ok(file) => Some(RollFile { file, salt }),
            // A store opens on a full device, too.
            Err(error) if is_full(&error) => None,
            Err(error) => return Err(error),
        };
        Ok((Roll { file, pending: Changes::new(), unwatched: 0 }, is_new))
    }

    /// Whether there is a file at all: on a full device none could be made.
    pub(super) fn is_kept(&self) -> bool {
        self.file.is_some()
    }

    /// Objects that could not be entered since the store was opened.
    pub(super) fn unwatched(&self) -> u64 {
        self.unwatched
    }

    /// The stamp that the object's file must bear at least; `None` where nobody knows of one.
    pub(super) fn stamp(&self, object: ObjectId) -> Option<u32> {
        let pending = self.pending.get(&object).copied();
        if pending == Some(None) {
            return None;
        }
        // A page that cannot be read is not needed as long as nothing else is damaged.
        let written = self.file.as_ref().and_then(|file| file.stamp(object).ok()?);
        written.max(pending.flatten())
    }

    /// The object's file is durable with this stamp.
    pub(super) fn note(&mut self, object: ObjectId, stamp: u32) {
        if self.file.is_some() {
            self.pending.insert(object, Some(stamp));
        } else {
            self.unwatched += 1;
        }
    }

    /// The object was removed by order.
    pub(super) fn strike(&mut self, object: ObjectId) {
        if self.file.is_some() {
            self.pending.insert(object, None);
        }
    }

    /// Writes changes, durably. Blocks.
    pub(super) fn write(&mut self, changes: &Changes) {
        if let Some(file) = self.file.as_ref().filter(|_| !changes.is_empty()) {
            self.unwatched += file.write(changes);
        }
    }

    /// The pending changes and the file for them; `None` where there are none.
    pub(super) fn work(&self) -> Option<(RollFile, Changes)> {
        let file = self.file.clone()?;
        (!self.pending.is_empty()).then(|| (file, self.pending.clone()))
    }

    /// The changes were written, but for so many objects that could not be entered.
    pub(super) fn settled(&mut self, changes: &Changes, unwatched: u64) {
        self.pending.retain(|object, change| changes.get(object) != Some(change));
        self.unwatched += unwatched;
    }
}

impl RollFile {
    fn stamp(&self, object: ObjectId) -> io::Result<Option<u32>> {
        let pages = self.file.len()? / PAGE_BYTES as u64;
        let mut page = [0; PAGE_BYTES];
        let at = page_of(object, pages) * PAGE_BYTES as u64;
        let read = self.file.read_at(at, &mut page)?;
        page[read..].fill(0);
        Ok(find(&page, object, self.salt).map(|(_, stamp)| stamp))
    }

    /// Writes changes, durably, and counts the objects that could not be entered: on a full device those
    /// whose page has no place; on one that fails perhaps all. They are not watched until they are next
    /// used, which is no reason to refuse changes. A stamp never sinks. Blocks.
    pub(super) fn write(&self, changes: &Changes) -> u64 {
        let entered = changes.values().filter(|change| change.is_some()).count() as u64;
        self.try_write(changes).unwrap_or(entered)
    }

    fn try_write(&self, changes: &Changes) -> io::Result<u64> {
        let pages = (self.file.len()? / PAGE_BYTES as u64).max(1);
        let mut table = Table { of: self, pages, held: BTreeMap::new() };
        let mut unwatched = 0;
        for (object, change) in changes {
            match change {
                Some(stamp) => unwatched += u64::from(!table.raise(*object, *stamp)?),
                None => table.clear(*object)?,
            }
            if table.held.len() > PAGES_HELD_MAX {
                table.write()?;
            }
        }
        table.write()?;
        self.file.sync_data()?;
        Ok(unwatched)
    }
}

/// The table while it is changed.
struct Table<'a> {
    of: &'a RollFile,
    pages: u64,
    /// Pages that were read, and whether they were changed.
    held: BTreeMap<u64, (Box<Page>, bool)>,
}

impl Table<'_> {
    fn page(&mut self, number: u64) -> io::Result<&mut (Box<Page>, bool)> {
        match self.held.entry(number) {
            std::collections::btree_map::Entry::Occupied(held) => Ok(held.into_mut()),
            std::collections::btree_map::Entry::Vacant(empty) => {
                let mut page = Box::new([0; PAGE_BYTES]);
                let read = match self.of.file.read_at(number * PAGE_BYTES as u64, &mut page[..]) {
                    // The page's entries are no longer watched. Once written whole, the page can be read
                    // again.
                    Err(error) if is_unreadable(&error) => 0,
                    result => result?,
                };
                page[read..].fill(0);
                Ok(empty.insert((page, false)))
            }
        }
    }

    /// Enters an object; false where there is no place for it.
    fn raise(&mut self, object: ObjectId, stamp: u32) -> io::Result<bool> {
        let salt = self.of.salt;
        for tried in 0..=GROWTH_MAX {
            let (number, pages) = (page_of(object, self.pages), self.pages);
            let (page, changed) = self.page(number)?;
            if let Some((index, before)) = find(page, object, salt) {
                if before < stamp {
                    put(page, index, object, stamp, salt);
                    *changed = true;
                }
                return Ok(true);
            }
            // Entries that moved to a later page, and damaged ones, make room.
            let stays = |entry| page_of(entry, pages) == number;
            let taken: Vec<bool> = (0..PAGE_ENTRIES)
                .map(|index| read(page, index, salt).is_some_and(|(entry, _)| stays(entry)))
                .collect();
            let free = taken.iter().position(|taken| !taken);
            let crowded = taken.iter().filter(|taken| **taken).count() >= CROWDED;
            if let Some(index) = free.filter(|_| !crowded || tried > 0) {
                put(page, index, object, stamp, salt);
                *changed = true;
                return Ok(true);
            }
            if !self.grow()? && free.is_none() {
                return Ok(false);
            }
        }
        Ok(false)
    }

    fn clear(&mut self, object: ObjectId) -> io::Result<()> {
        let (number, salt) = (page_of(object, self.pages), self.of.salt);
        let (page, changed) = self.page(number)?;
        if let Some((index, _)) = find(page, object, salt) {
            page[index * ENTRY_BYTES..][..ENTRY_BYTES].fill(0);
            *changed = true;
        }
        Ok(())
    }

    /// Makes one page more from entries of one of the others; false on a full device. The other one keeps the
    /// moved entries until the place is needed: so a crash in between loses little.
    fn grow(&mut self) -> io::Result<bool> {
        let (new, salt) = (self.pages, self.of.salt);
        let from = new - (1 << new.ilog2());
        let old = self.page(from)?.0.clone();
        let mut page = Box::new([0; PAGE_BYTES]);
        let moved = (0..PAGE_ENTRIES).filter_map(|index| read(&old, index, salt));
        let moved = moved.filter(|(object, _)| page_of(*object, new + 1) == new);
        for (index, (object, stamp)) in moved.enumerate() {
            put(&mut page, index, object, stamp, salt);
        }
        match self.of.file.write_at(new * PAGE_BYTES as u64, &page[..]) {
            Err(error) if is_full(&error) => return Ok(false),
            result => result?,
        }
        self.held.insert(new, (page, false));
        self.pages += 1;
        Ok(true)
    }

    fn write(&mut self) -> io::Result<()> {
        for (number, (page, changed)) in std::mem::take(&mut self.held) {
            if changed {
                self.of.file.write_at(number * PAGE_BYTES as u64, &page[..])?;
            }
        }
        Ok(())
    }
}

/// The page of an object in a table of so many, at least one.
fn page_of(object: ObjectId, pages: u64) -> u64 {
    let ObjectId { inode, generation, stripe } = object;
    // The finaliser of splitmix64, twice: every bit depends on all.
    let mixed = mix(mix(inode) ^ (u64::from(generation) << 32 | u64::from(stripe)));
    let half = 1 << pages.max(1).ilog2();
    let place = mixed & (2 * half - 1);
    if place < pages { place } else { mixed & (half - 1) }
}

fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

fn put(page: &mut Page, index: usize, object: ObjectId, stamp: u32, salt: u32) {
    let entry = &mut page[index * ENTRY_BYTES..][..ENTRY_BYTES];
    entry[..8].copy_from_slice(&object.inode.to_le_bytes());
    entry[8..12].copy_from_slice(&object.generation.to_le_bytes());
    entry[12..16].copy_from_slice(&object.stripe.to_le_bytes());
    entry[16..20].copy_from_slice(&stamp.to_le_bytes());
    let crc = checksum::append(salt, &entry[..20]);
    entry[20..].copy_from_slice(&crc.to_le_bytes());
}

/// An entry of a page; `None` where there is none, or a damaged one, or another store's.
fn read(page: &Page, index: usize, salt: u32) -> Option<(ObjectId, u32)> {
    let entry = &page[index * ENTRY_BYTES..][..ENTRY_BYTES];
    let half = |at: usize| {
        let mut half = [0; 4];
        half.copy_from_slice(&entry[at..at + 4]);
        u32::from_le_bytes(half)
    };
    if entry.iter().all(|byte| *byte == 0) || checksum::append(salt, &entry[..20]) != half(20) {
        return None;
    }
    let inode = u64::from(half(4)) << 32 | u64::from(half(0));
    Some((ObjectId { inode, generation: half(8), stripe: half(12) }, half(16)))
}

fn find(page: &Page, object: ObjectId, salt: u32) -> Option<(usize, u32)> {
    let wanted = object.inode.to_le_bytes();
    (0..PAGE_ENTRIES).filter(|index| page[index * ENTRY_BYTES..][..8] == wanted).find_map(|index| {
        let (found, stamp) = read(page, index, salt)?;
        (found == object).then_some((index, stamp))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_disk::HostDisk;

    fn object(number: u64) -> ObjectId {
        let (inode, stripe) = (number / 7, number as u32 % 7);
        ObjectId { inode, generation: 1 + (number % 2) as u32, stripe }
    }

    fn open(path: &Path, salt: u32) -> RollFile {
        Roll::open(&HostDisk, path, salt).unwrap().0.file.unwrap()
    }

    #[test]
    fn entries_are_found_while_the_table_grows_and_stamps_never_sink() {
        let directory = tempfile::tempdir().unwrap();
        let file = open(directory.path(), 5);
        const COUNT: u64 = 30_000;
        for some in (0..COUNT).collect::<Vec<_>>().chunks(1000) {
            let changes = some.iter().map(|number| (object(*number), Some(*number as u32 + 1)));
            assert_eq!(file.write(&changes.collect()), 0);
        }
        assert_eq!(file.write(&BTreeMap::from([(object(3), Some(2)), (object(4), Some(99))])), 0);
        assert_eq!(file.write(&BTreeMap::from([(object(5), None), (object(COUNT), None)])), 0);
        let file = open(directory.path(), 5);
        let expected = |number: u64| match number {
            4 => Some(99),
            5 => None,
            _ => Some(number as u32 + 1),
        };
        for number in 0..COUNT {
            assert_eq!(file.stamp(object(number)).unwrap(), expected(number), "{number}");
        }
        assert_eq!(file.stamp(object(COUNT)).unwrap(), None);
        let bytes = file.file.len().unwrap();
        assert!(bytes < 64 * COUNT, "{bytes} bytes for {COUNT} objects");
        // Another store's says nothing, and a shorter one nothing wrong.
        let foreign = open(directory.path(), 6);
        assert_eq!(foreign.stamp(object(9)).unwrap(), None);
        file.file.set_len(bytes / 2).unwrap();
        for number in 0..COUNT {
            let stamp = file.stamp(object(number)).unwrap();
            assert!(stamp.is_none_or(|stamp| stamp <= number as u32 + 1 || number == 4));
        }
    }

    #[test]
    fn a_damaged_entry_is_none_and_its_place_is_used_again() {
        let directory = tempfile::tempdir().unwrap();
        let file = open(directory.path(), 5);
        let fill = |from: u64, to: u64| {
            let some = (from..to).map(|number| (object(number), Some(7)));
            assert_eq!(file.write(&some.collect()), 0);
        };
        fill(0, 20);
        for number in 0..20 {
            let mut byte = [0];
            let at = number * ENTRY_BYTES as u64 + number;
            file.file.read_at(at, &mut byte).unwrap();
            file.file.write_at(at, &[byte[0] ^ 4]).unwrap();
        }
        assert!((0..20).all(|number| file.stamp(object(number)).unwrap().is_none()));
        fill(20, 40);
        assert!((20..40).all(|number| file.stamp(object(number)).unwrap() == Some(7)));
        assert_eq!(file.file.len().unwrap(), PAGE_BYTES as u64);
    }
}
