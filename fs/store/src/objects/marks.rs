//! Tombstones and fences: small facts that outlive the intent log.
//!
//! Invariants
//! * a tombstone's generation and a fence's epoch never sink;
//! * the file `marks` is replaced whole (write, sync, rename, sync of the directory), so that it is
//!   either the old or the new one after any crash.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use ropewalk_base::checksum;
use ropewalk_base::disk::{Disk, Open};

use super::{ObjectId, reserve};

const MAGIC: &[u8; 8] = b"RWomarks";
const HEAD_BYTES: usize = 40;
const ENTRY_BYTES: usize = 20;

/// What is known of removed inodes and fenced sessions, and how much is stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Marks {
    /// Inode: the generation up to which its objects are gone, and the expiry mark.
    tombstones: BTreeMap<u64, (u32, u64)>,
    /// Session: the least epoch allowed, and the expiry mark.
    fences: BTreeMap<u64, (u32, u64)>,
    /// Objects and bytes in them; an estimate after a crash.
    pub(super) objects: u64,
    pub(super) object_bytes: u64,
}

fn raise(map: &mut BTreeMap<u64, (u32, u64)>, key: u64, value: u32, mark: u64) {
    let entry = map.entry(key).or_default();
    *entry = (entry.0.max(value), entry.1.max(mark));
}

impl Marks {
    pub(super) fn bury(&mut self, inode: u64, generation: u32, mark: u64) {
        raise(&mut self.tombstones, inode, generation, mark);
    }

    pub(super) fn is_buried(&self, object: ObjectId) -> bool {
        self.tombstones.get(&object.inode).is_some_and(|(gone, _)| object.generation <= *gone)
    }

    pub(super) fn fence(&mut self, session: u64, epoch: u32, mark: u64) {
        raise(&mut self.fences, session, epoch, mark);
    }

    /// The least epoch of a session that is not refused.
    pub(super) fn minimum(&self, session: u64) -> u32 {
        self.fences.get(&session).map_or(0, |(epoch, _)| *epoch)
    }

    /// Forgets what carries a mark below `before`; whether anything did.
    pub(super) fn expire(&mut self, before: u64) -> bool {
        let count = self.tombstones.len() + self.fences.len();
        self.tombstones.retain(|_, (_, mark)| *mark >= before);
        self.fences.retain(|_, (_, mark)| *mark >= before);
        count != self.tombstones.len() + self.fences.len()
    }

    /// How many tombstones and fences there are.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.tombstones.len(), self.fences.len())
    }

    fn encode(&self) -> Vec<u8> {
        let entries = self.tombstones.len() + self.fences.len();
        let mut bytes = Vec::with_capacity(HEAD_BYTES + entries * ENTRY_BYTES + 4);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&(self.tombstones.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&(self.fences.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&self.objects.to_le_bytes());
        bytes.extend_from_slice(&self.object_bytes.to_le_bytes());
        for (key, (value, mark)) in self.tombstones.iter().chain(&self.fences) {
            bytes.extend_from_slice(&key.to_le_bytes());
            bytes.extend_from_slice(&value.to_le_bytes());
            bytes.extend_from_slice(&mark.to_le_bytes());
        }
        let crc = checksum::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Marks> {
        let (body, crc) = bytes.split_at_checked(bytes.len().checked_sub(4)?)?;
        if checksum::crc32c(body).to_le_bytes() != crc {
            return None;
        }
        let head = body.get(..HEAD_BYTES).filter(|head| &head[..8] == MAGIC)?;
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
        let mut marks =
            Marks { objects: word(head, 24), object_bytes: word(head, 32), ..Marks::default() };
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
        let crc = checksum::crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        let Some(marks) = Marks::decode(&bytes) else { return false };
        let again = marks.encode();
        assert!(Marks::decode(&again).is_some_and(|marks| marks.encode() == again));
        true
    }

    /// Reads the marks of a store; `None` where the file is damaged, empty ones where it is absent.
    pub(super) fn load(disk: &dyn Disk, root: &Path) -> io::Result<Option<Marks>> {
        let file = match disk.open(&root.join("marks"), Open::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Some(Marks::default()));
            }
            Err(error) => return Err(error),
        };
        let mut bytes = vec![0; file.len()? as usize];
        let read = file.read_at(0, &mut bytes)?;
        Ok(Marks::decode(&bytes[..read]))
    }

    /// Replaces the file durably, also on a full device. Blocks.
    pub(super) fn save(&self, disk: &Arc<dyn Disk>, root: &Path) -> io::Result<()> {
        let bytes = self.encode();
        reserve::spend(&**disk, root, bytes.len() as u64, || {
            let new = root.join("marks.new");
            let file = disk.open(&new, Open::Create)?;
            file.set_len(0)?;
            file.write_at(0, &bytes)?;
            file.sync_data()?;
            disk.rename(&new, &root.join("marks"))?;
            disk.sync_directory(root)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_back_never_sink_and_expire() {
        let mut marks = Marks { objects: 3, object_bytes: 4096, ..Marks::default() };
        marks.bury(5, 2, 10);
        marks.bury(5, 1, 20);
        marks.fence(9, 7, 30);
        let bytes = marks.encode();
        assert_eq!(Marks::decode(&bytes), Some(marks.clone()));
        for length in 0..bytes.len() {
            assert_eq!(Marks::decode(&bytes[..length]), None);
        }
        let object = |generation| ObjectId { inode: 5, generation, stripe: 0 };
        assert!(marks.is_buried(object(2)) && !marks.is_buried(object(3)));
        assert!(marks.expire(25));
        assert!(!marks.is_buried(object(2)));
        assert_eq!((marks.minimum(9), marks.minimum(8)), (7, 0));
    }
}
