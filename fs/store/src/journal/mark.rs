//! The end of the journal, kept beside the journal, so that a missing last record is noticed.
//!
//! No later record testifies that the last records of a journal were there. This file does: it holds the last
//! position that was with the kernel and the last one that was durable. After each group and each sync three
//! words are stored into it, mapped and without a system call. It is synced only at a start. After the death
//! of the process it is complete; after a power loss it holds at least nothing untrue.
//!
//! | mark | bytes |
//! |---|---|
//! | magic "RWJMARK\n" | 8 |
//! | format version | 4 |
//! | CRC32C of the other fields of the head | 4 |
//! | identity of the store | 16 |
//! | era | 8 |
//! | two slots: written, durable, guard | 2 times 24 |
//!
//! A guard is the CRC32C of the head and of the two words before it, and the CRC's complement above.
//!
//! Invariants
//! * it names no record that is not there: `written` counts in its era only, in which no record that the
//!   kernel had can be lost;
//! * the slots are used in turn: a death between two words, or damage, leaves the other slot, and in it every
//!   position that was reported before;
//! * it is a second witness and nothing else: one that is damaged or missing is made anew.

use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ropewalk_base::checksum;
use ropewalk_base::disk::{Disk, File, Open};

use crate::error::StoreError;
use crate::overwrite::overwrite;

const MAGIC: &[u8; 8] = b"RWJMARK\n";
const VERSION: u32 = 2;
const HEAD_BYTES: usize = 40;
const SLOT_BYTES: usize = 24;
const SLOTS: usize = 2;
const BYTES: usize = HEAD_BYTES + SLOTS * SLOT_BYTES;

/// The content of a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reach {
    pub store: u128,
    pub era: u64,
    pub written: u64,
    pub durable: u64,
}

impl Reach {
    fn head(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.store.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.era.to_le_bytes());
        let crc = crc_of(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let head = self.head();
        bytes[..HEAD_BYTES].copy_from_slice(&head);
        let guard = guard(checksum::crc32c(&head), self.written, self.durable);
        let words = [self.written, self.durable, guard].into_iter().cycle();
        for (place, word) in bytes[HEAD_BYTES..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Reach> {
        let (head, slots) = bytes.get(..BYTES)?.split_at(HEAD_BYTES);
        let four = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four"));
        if &head[..8] != MAGIC || crc_of(head) != four(12) || four(8) != VERSION {
            return None;
        }
        let seed = checksum::crc32c(head);
        let told = slots.chunks_exact(SLOT_BYTES).filter_map(|slot| {
            let [written, durable, found] = [0, 8, 16].map(|at| eight(slot, at));
            (found == guard(seed, written, durable)).then_some((written, durable))
        });
        // Each of them was true when it was said, and is.
        let (written, durable) = told.reduce(|a, b| (a.0.max(b.0), a.1.max(b.1)))?;
        let store = u128::from(eight(head, 24)) << 64 | u128::from(eight(head, 16));
        Some(Reach { store, era: eight(head, 32), written, durable })
    }

    /// The last record that has to be there in this store and era.
    fn required(&self, store: u128, era: u64) -> u64 {
        match self.store == store {
            true if self.era == era => self.written.max(self.durable),
            true => self.durable,
            false => 0,
        }
    }
}

fn eight(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"))
}

fn crc_of(head: &[u8]) -> u32 {
    checksum::append(checksum::crc32c(&head[..12]), &head[16..HEAD_BYTES])
}

fn guard(head: u32, written: u64, durable: u64) -> u64 {
    let crc =
        checksum::append(checksum::append(head, &written.to_le_bytes()), &durable.to_le_bytes());
    u64::from(crc) | u64::from(!crc) << 32
}

/// For fuzzers, see [`crate::decoders`]: whether these bytes, with checksums that fit, are a mark.
pub(crate) fn accepts(bytes: &mut [u8]) -> bool {
    if let Some((head, slots)) = bytes.get_mut(..BYTES).map(|mark| mark.split_at_mut(HEAD_BYTES)) {
        let crc = crc_of(head);
        head[12..16].copy_from_slice(&crc.to_le_bytes());
        // The other slot is judged as it is.
        let fits = guard(checksum::crc32c(head), eight(slots, 0), eight(slots, 8));
        slots[16..24].copy_from_slice(&fits.to_le_bytes());
    }
    let Some(reach) = Reach::decode(bytes) else { return false };
    assert_eq!(Reach::decode(&reach.encode()), Some(reach));
    true
}

/// Beside the journal's directory: an older copy of that whole directory is missed records, too.
fn path_of(directory: &Path) -> PathBuf {
    directory.with_added_extension("mark")
}

/// The last record that the mark of the journal in `directory` calls written or durable; 0 where there is
/// no mark that can be believed.
pub(super) fn required(
    disk: &dyn Disk,
    directory: &Path,
    store: u128,
    era: u64,
) -> Result<u64, StoreError> {
    let path = path_of(directory);
    let fail = |cause| StoreError::io("cannot read", &path, cause);
    let file = match disk.open(&path, Open::Read) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(0),
        file => file.map_err(fail)?,
    };
    let mut bytes = [0; BYTES];
    let count = file.read_at(0, &mut bytes).map_err(fail)?;
    Ok(Reach::decode(&bytes[..count]).map_or(0, |reach| reach.required(store, era)))
}

/// Removes the mark of the journal in `directory`.
pub(super) fn remove(disk: &dyn Disk, directory: &Path) -> Result<(), StoreError> {
    let path = path_of(directory);
    let fail = |cause| StoreError::io("cannot remove", &path, cause);
    match disk.remove_file(&path) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(()),
        removed => removed.map_err(fail)?,
    }
    path.parent().map_or(Ok(()), |parent| disk.sync_directory(parent)).map_err(fail)
}

/// The mark of a journal that takes records.
pub(super) struct MarkFile {
    file: Arc<dyn File>,
    path: PathBuf,
    /// The CRC of the head.
    head: u32,
    /// The slot that is next.
    slot: Cell<usize>,
}

impl MarkFile {
    /// Writes the mark of a new life, durably.
    pub(super) fn begin(
        disk: &dyn Disk,
        directory: &Path,
        store: u128,
        era: u64,
        last: u64,
    ) -> Result<MarkFile, StoreError> {
        let path = path_of(directory);
        let reach = Reach { store, era, written: last, durable: last };
        let result = overwrite(disk, &path, &path.with_added_extension("new"), &reach.encode());
        let file = result.map_err(|cause| StoreError::io("cannot write", &path, cause))?;
        let head = checksum::crc32c(&reach.head());
        Ok(MarkFile { file, path, head, slot: Cell::new(0) })
    }

    /// Says how far the journal came.
    pub(super) fn set(&self, written: u64, durable: u64) -> Result<(), StoreError> {
        let slot = self.slot.replace((self.slot.get() + 1) % SLOTS);
        let words = [written, durable, guard(self.head, written, durable)];
        let result = self.file.note((HEAD_BYTES + slot * SLOT_BYTES) as u64, &words);
        result.map_err(|cause| StoreError::io("cannot write", &self.path, cause))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_disk::HostDisk;

    #[test]
    fn a_mark_counts_in_its_store_and_what_was_only_written_in_its_era() {
        let reach = Reach { store: 3 << 80, era: 5, written: 20, durable: 10 };
        let bytes = reach.encode();
        assert_eq!(Reach::decode(&bytes), Some(reach));
        assert_eq!(reach.required(3 << 80, 5), 20);
        assert_eq!(reach.required(3 << 80, 6), 10);
        assert_eq!(reach.required(4, 5), 0);
        for bit in 0..BYTES * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            // One slot is enough, the head is needed.
            let expected = (bit >= HEAD_BYTES * 8).then_some(reach);
            assert_eq!(Reach::decode(&damaged), expected, "bit {bit}");
            damaged[HEAD_BYTES + 16] ^= 0b11;
            damaged[HEAD_BYTES + SLOT_BYTES + 16] ^= 0b11;
            assert_eq!(Reach::decode(&damaged), None, "bit {bit} and both guards");
        }
        assert_eq!(Reach::decode(&bytes[..BYTES - 1]), None);
    }

    #[test]
    fn a_death_between_two_words_leaves_what_was_said_before() {
        let directory = tempfile::tempdir().unwrap();
        let path = &directory.path().join("journal");
        let said = || required(&HostDisk, path, 7, 3).unwrap();
        let mark = MarkFile::begin(&HostDisk, path, 7, 3, 4).unwrap();
        assert_eq!(said(), 4);
        for last in 5..20 {
            let words = [last, 2, guard(mark.head, last, 2)];
            for count in 1..words.len() {
                let at = HEAD_BYTES + mark.slot.get() * SLOT_BYTES;
                mark.file.note(at as u64, &words[..count]).unwrap();
                assert_eq!(said(), last - 1, "{count} words of {last}");
            }
            mark.set(last, 2).unwrap();
            assert_eq!(said(), last);
        }
        // Another life begins with its own numbers, in both slots.
        drop(MarkFile::begin(&HostDisk, path, 7, 4, 6).unwrap());
        assert_eq!((said(), required(&HostDisk, path, 7, 4).unwrap()), (6, 6));
    }
}
