//! Tombstones and fences: small facts that outlive the intent log.
//!
//! Invariants
//! * a tombstone's generation and a fence's epoch never sink while they are remembered;
//! * both are bounded in number: those with the least marks are forgotten first;
//! * the file `marks` is replaced whole (write, sync, rename, sync of the directory), so that it is
//!   either the old or the new one after any crash; then its copy is, in the same way. Where the device has
//!   no place for one more file both are written where they are, one after the other;
//! * its number grows with each time. The log says the least number that will do, so an older file
//!   is not taken for the newest: a forgotten tombstone brings removed bytes back, and a forgotten
//!   fence lets somebody write who lost his lease.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use ropewalk_base::checksum;
use ropewalk_base::disk::{Disk, Open};

use super::error::{is_full, is_unreadable};
use super::{ObjectId, reserve};

const MAGIC: &[u8; 8] = b"RWomarks";
const NAMES: [&str; 2] = ["marks", "marks.copy"];
const HEAD_BYTES: usize = 80;
const ENTRY_BYTES: usize = 20;
/// Most fences and most tombstones, about 40 bytes each in memory. Clients that sleep while so many others
/// are fenced, and requests that are on their way while so many files are removed, are none.
const FENCES_MAX: usize = 1 << 20;
const TOMBSTONES_MAX: usize = 1 << 22;
/// One in so many entries of a full table is forgotten at a time.
const FORGOTTEN_PART: usize = 8;

/// The known removed inodes and fenced sessions, and the amount of data stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Marks {
    /// Inode: the generation up to which its objects are gone, and the expiry mark.
    tombstones: BTreeMap<u64, (u32, u64)>,
    /// Session: the least epoch allowed, and the mark of its age.
    fences: BTreeMap<u64, (u32, u64)>,
    /// Objects and bytes in them; an estimate after a crash.
    pub(super) objects: u64,
    pub(super) object_bytes: u64,
    /// The number of this file among all that were written one after the other.
    pub(super) number: u64,
    /// The log was durable up to here before.
    pub(super) durable: u64,
    /// The log's end, where nothing in it is needed any more; 0 where something is.
    pub(super) clean: u64,
}

type Table = BTreeMap<u64, (u32, u64)>;

/// Notes an entry; where that makes more than `most`, the oldest others are forgotten.
fn raise(map: &mut Table, most: usize, (key, value, mark): (u64, u32, u64)) {
    let entry = map.entry(key).or_default();
    *entry = (entry.0.max(value), entry.1.max(mark));
    if map.len() <= most {
        return;
    }
    let others = map.iter().filter(|(other, _)| **other != key);
    let mut by_age: Vec<_> = others.map(|(other, (_, mark))| (*mark, *other)).collect();
    let forgotten = map.len() - most + most / FORGOTTEN_PART;
    if forgotten < by_age.len() {
        by_age.select_nth_unstable(forgotten);
        by_age.truncate(forgotten);
    }
    for (_, other) in by_age {
        map.remove(&other);
    }
}

impl Marks {
    pub(super) fn bury(&mut self, inode: u64, generation: u32, mark: u64) {
        raise(&mut self.tombstones, TOMBSTONES_MAX, (inode, generation, mark));
    }

    pub(super) fn is_buried(&self, object: ObjectId) -> bool {
        self.tombstones.get(&object.inode).is_some_and(|(gone, _)| object.generation <= *gone)
    }

    pub(super) fn fence(&mut self, session: u64, epoch: u32, mark: u64) {
        raise(&mut self.fences, FENCES_MAX, (session, epoch, mark));
    }

    /// The least epoch of a session that is not refused.
    pub(super) fn minimum(&self, session: u64) -> u32 {
        self.fences.get(&session).map_or(0, |(epoch, _)| *epoch)
    }

    /// Forgets tombstones with a mark below `before`; whether there were any. Fences stay: a client that
    /// slept for a week may wake up.
    pub(super) fn expire(&mut self, before: u64) -> bool {
        let count = self.tombstones.len();
        self.tombstones.retain(|_, (_, mark)| *mark >= before);
        count != self.tombstones.len()
    }

    /// The numbers of tombstones and fences.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.tombstones.len(), self.fences.len())
    }

    fn encode(&self, store: u128) -> Vec<u8> {
        let entries = self.tombstones.len() + self.fences.len();
        let mut bytes = Vec::with_capacity(HEAD_BYTES + entries * ENTRY_BYTES + 4);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&(self.tombstones.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&(self.fences.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&self.objects.to_le_bytes());
        bytes.extend_from_slice(&self.object_bytes.to_le_bytes());
        bytes.extend_from_slice(&store.to_le_bytes());
        for number in [self.number, self.durable, self.clean] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        for (key, (value, mark)) in self.tombstones.iter().chain(&self.fences) {
            bytes.extend_from_slice(&key.to_le_bytes());
            bytes.extend_from_slice(&value.to_le_bytes());
            bytes.extend_from_slice(&mark.to_le_bytes());
        }
        let crc = checksum::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8], store: u128) -> Option<Marks> {
        let (body, crc) = bytes.split_at_checked(bytes.len().checked_sub(4)?)?;
        if checksum::crc32c(body).to_le_bytes() != crc {
            return None;
        }
        let head = body.get(..HEAD_BYTES).filter(|head| &head[..8] == MAGIC)?;
        if head[40..56] != store.to_le_bytes() {
            return None;
        }
        let word = |bytes: &[u8], at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let (tombstones, fences) = (word(head, 8), word(head, 16));
        let entries = &body[HEAD_BYTES..];
        let count = tombstones.checked_add(fences)?.checked_mul(ENTRY_BYTES as u64)?;
        if count != entries.len() as u64 {
            return None;
        }
        let mut marks = Marks {
            objects: word(head, 24),
            object_bytes: word(head, 32),
            number: word(head, 56),
            durable: word(head, 64),
            clean: word(head, 72),
            ..Marks::default()
        };
        for (index, entry) in entries.chunks_exact(ENTRY_BYTES).enumerate() {
            let mut value = [0; 4];
            value.copy_from_slice(&entry[8..12]);
            let (key, value, mark) = (word(entry, 0), u32::from_le_bytes(value), word(entry, 12));
            if (index as u64) < tombstones {
                marks.bury(key, value, mark);
            } else {
                marks.fence(key, value, mark);
            }
        }
        Some(marks)
    }

    /// For fuzzers, see [`crate::decoders`]: whether these bytes, with a checksum that fits, are marks.
    pub(crate) fn accepts(bytes: &[u8]) -> bool {
        let mut bytes = bytes.to_vec();
        let Some(store) = bytes.get(40..56) else { return false };
        let store = u128::from_le_bytes(store.try_into().expect("sixteen bytes"));
        let crc = checksum::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        let Some(marks) = Marks::decode(&bytes, store) else { return false };
        let again = marks.encode(store);
        assert!(Marks::decode(&again, store).is_some_and(|marks| marks.encode(store) == again));
        true
    }

    /// Reads the marks of a store; empty ones where it never had any, which `least` 0 says. With them a note
    /// on damage; an error text where no valid copy is left.
    pub(super) fn load(
        disk: &dyn Disk,
        root: &Path,
        store: u128,
        least: u64,
    ) -> io::Result<Result<(Marks, Option<String>), String>> {
        let (mut best, mut damage, mut present) = (None::<Marks>, None, 0);
        for name in NAMES {
            let bytes = match read(disk, &root.join(name)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                // As damaged as bytes that are not marks.
                Err(error) if is_unreadable(&error) => Vec::new(),
                result => result?,
            };
            present += 1;
            match Marks::decode(&bytes, store) {
                Some(marks) if best.as_ref().is_none_or(|best| best.number < marks.number) => {
                    best = Some(marks);
                }
                Some(_) => (),
                None => damage = Some(format!("{} is damaged", root.join(name).display())),
            }
        }
        if present == 0 && least == 0 {
            return Ok(Ok((Marks::default(), None)));
        }
        let told = "removals and orders to refuse clients may be lost with it: restore it";
        Ok(match best {
            // That one of them is not there may be a power cut between two renames.
            Some(best) if best.number >= least => Ok((best, damage)),
            Some(_) => Err(format!("{} is an older copy, {told}", root.join(NAMES[0]).display())),
            None if present == 0 => {
                Err(format!("{} is not there, {told}", root.join(NAMES[0]).display()))
            }
            None => Err(format!("{} is damaged, {told}", root.join(NAMES[0]).display())),
        })
    }

    /// Replaces the files durably, also on a full device. Blocks.
    pub(super) fn save(&self, disk: &Arc<dyn Disk>, root: &Path, store: u128) -> io::Result<()> {
        let bytes = self.encode(store);
        let length = bytes.len() as u64;
        let replaced = NAMES.into_iter().try_for_each(|name| {
            reserve::spend(&**disk, root, length, || {
                let new = root.join(name).with_extension("new");
                let file = disk.open(&new, Open::Create)?;
                file.set_len(0)?;
                file.write_at(0, &bytes)?;
                file.sync_data()?;
                disk.rename(&new, &root.join(name))
            })
        });
        match replaced {
            Err(error) if is_full(&error) && are_there(&**disk, root)? => {
                let write = || write_in_place(&**disk, root, store, &bytes);
                reserve::spend(&**disk, root, length, write)?;
            }
            result => result?,
        }
        disk.sync_directory(root)
    }
}

fn read(disk: &dyn Disk, path: &Path) -> io::Result<Vec<u8>> {
    let file = disk.open(path, Open::Read)?;
    let mut bytes = vec![0; file.len()? as usize];
    let read = file.read_at(0, &mut bytes)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Whether both copies have a file.
fn are_there(disk: &dyn Disk, root: &Path) -> io::Result<bool> {
    let kinds = NAMES.map(|name| disk.kind(&root.join(name)));
    Ok(kinds.into_iter().collect::<io::Result<Vec<_>>>()?.iter().all(Option::is_some))
}

/// Writes both copies where they are, the worse one first: one of them is whole at every moment.
fn write_in_place(disk: &dyn Disk, root: &Path, store: u128, bytes: &[u8]) -> io::Result<()> {
    let number = |name: &&str| {
        let marks = read(disk, &root.join(name)).ok().and_then(|it| Marks::decode(&it, store));
        marks.map(|marks| marks.number)
    };
    let mut names = NAMES;
    names.sort_by_cached_key(number);
    for name in names {
        let file = disk.open(&root.join(name), Open::Write)?;
        // A device without room for it leaves what there is.
        file.allocate(0, bytes.len() as u64)?;
        file.write_at(0, bytes)?;
        file.set_len(bytes.len() as u64)?;
        file.sync_data()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_back_never_sink_and_expire() {
        let mut marks = Marks { objects: 3, object_bytes: 4096, ..Marks::default() };
        marks.bury(5, 2, 10);
        marks.bury(5, 1, 20);
        marks.fence(9, 7, 3);
        let bytes = marks.encode(6);
        assert_eq!(Marks::decode(&bytes, 6), Some(marks.clone()));
        assert_eq!(Marks::decode(&bytes, 7), None);
        for length in 0..bytes.len() {
            assert_eq!(Marks::decode(&bytes[..length], 6), None);
        }
        let object = |generation| ObjectId { inode: 5, generation, stripe: 0 };
        assert!(marks.is_buried(object(2)) && !marks.is_buried(object(3)));
        assert!(marks.expire(25));
        assert!(!marks.is_buried(object(2)));
        assert_eq!((marks.minimum(9), marks.minimum(8)), (7, 0));
    }

    #[test]
    fn both_are_bounded_and_the_oldest_are_forgotten_first() {
        let mut marks = Marks::default();
        let count = FENCES_MAX as u64 + 10;
        // Numbers of sessions say nothing about their age.
        let session = |age: u64| age.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for age in 0..count {
            marks.fence(session(age), 3, 1000 + age / 100);
            assert_eq!(marks.minimum(session(age)), 3);
        }
        // One whose clock went back is not forgotten by its own coming.
        (0..FENCES_MAX as u64).for_each(|age| marks.fence(session(count + age), 3, 1_000_000));
        marks.fence(7, 3, 0);
        assert_eq!(marks.minimum(7), 3);
        assert!(marks.fences.len() <= FENCES_MAX && marks.fences.len() > FENCES_MAX / 4 * 3);
        assert_eq!((marks.minimum(session(0)), marks.minimum(session(2 * count - 11))), (0, 3));
        let read = Marks::decode(&marks.encode(1), 1).expect("they are whole");
        assert_eq!(read.fences, marks.fences);
        let mut table = Table::new();
        (0..100).for_each(|key| raise(&mut table, 64, (key, 1, 1000 - key)));
        assert!(
            table.len() <= 64 && table.contains_key(&99) && table.contains_key(&0),
            "{table:?}"
        );
    }
}
