//! How far the journal came, beside the journal: so that a record which is no longer there is missed.
//!
//! The last records of a journal have nobody behind them to testify that they were there. This file
//! does: it says up to where records were with the kernel and up to where they were durable. It is
//! written in place after each group and each sync, and synced only at a start: after the death of the
//! process it says all, after a power loss at least nothing untrue.
//!
//! | mark | bytes |
//! |---|---|
//! | magic "RWJMARK\n" | 8 |
//! | format version | 4 |
//! | CRC32C of the other fields | 4 |
//! | identity of the store | 16 |
//! | era | 8 |
//! | written | 8 |
//! | durable | 8 |
//!
//! Invariants
//! * it names nothing that is not there: `written` counts in its era only, in which nothing that the
//!   kernel had can be lost;
//! * it is a second witness and nothing else: one that is damaged or missing is made anew.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ropewalk_base::checksum;
use ropewalk_base::disk::{Disk, File, Open};

use crate::error::StoreError;

const NAME: &str = "mark";
const NEW_NAME: &str = "mark.new";
const MAGIC: &[u8; 8] = b"RWJMARK\n";
const VERSION: u32 = 1;
const BYTES: usize = 56;

/// What a mark says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reach {
    pub store: u128,
    pub era: u64,
    pub written: u64,
    pub durable: u64,
}

impl Reach {
    fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.store.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.era.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.written.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.durable.to_le_bytes());
        let crc = crc_of(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Reach> {
        if bytes.len() < BYTES || &bytes[..8] != MAGIC {
            return None;
        }
        let eight = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
        let four = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
        (crc_of(bytes) == four(12) && four(8) == VERSION).then(|| Reach {
            store: u128::from(eight(24)) << 64 | u128::from(eight(16)),
            era: eight(32),
            written: eight(40),
            durable: eight(48),
        })
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

fn crc_of(bytes: &[u8]) -> u32 {
    checksum::append(checksum::crc32c(&bytes[..12]), &bytes[16..BYTES])
}

/// For fuzzers, see [`crate::decoders`]: whether these bytes, with a checksum that fits, are a mark.
pub(crate) fn accepts(bytes: &mut [u8]) -> bool {
    if bytes.len() >= BYTES {
        let crc = crc_of(bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    }
    let Some(reach) = Reach::decode(bytes) else { return false };
    assert_eq!(Reach::decode(&reach.encode()), Some(reach));
    true
}

/// The last record that the mark in `directory` calls written or durable; 0 where there is no mark that
/// can be believed.
pub(super) fn required(
    disk: &dyn Disk,
    directory: &Path,
    store: u128,
    era: u64,
) -> Result<u64, StoreError> {
    let path = directory.join(NAME);
    let fail = |cause| StoreError::io("cannot read", &path, cause);
    let file = match disk.open(&path, Open::Read) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(0),
        file => file.map_err(fail)?,
    };
    let mut bytes = [0; BYTES];
    let count = file.read_at(0, &mut bytes).map_err(fail)?;
    Ok(Reach::decode(&bytes[..count]).map_or(0, |reach| reach.required(store, era)))
}

/// The mark of a journal that takes records.
pub(super) struct MarkFile {
    file: Arc<dyn File>,
    path: PathBuf,
    store: u128,
    era: u64,
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
        let path = directory.join(NAME);
        let bytes = Reach { store, era, written: last, durable: last }.encode();
        let result = open(disk, directory, &path, &bytes);
        let file = result.map_err(|cause| StoreError::io("cannot write", &path, cause))?;
        Ok(MarkFile { file, path, store, era })
    }

    /// Says how far the journal came.
    pub(super) fn set(&self, written: u64, durable: u64) -> Result<(), StoreError> {
        let reach = Reach { store: self.store, era: self.era, written, durable };
        let result = self.file.write_at(0, &reach.encode());
        result.map_err(|cause| StoreError::io("cannot write", &self.path, cause))
    }
}

fn open(disk: &dyn Disk, directory: &Path, path: &Path, bytes: &[u8]) -> io::Result<Arc<dyn File>> {
    match disk.open(path, Open::Write) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
        Err(cause) => return Err(cause),
        // In its place: a start needs no room.
        Ok(file) if file.len()? == bytes.len() as u64 => {
            file.write_at(0, bytes)?;
            file.sync_data()?;
            return Ok(file);
        }
        Ok(_) => {}
    }
    let new = directory.join(NEW_NAME);
    let file = disk.open(&new, Open::Create)?;
    file.set_len(0)?;
    file.write_at(0, bytes)?;
    file.sync_data()?;
    disk.rename(&new, path)?;
    disk.sync_directory(directory)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(Reach::decode(&damaged), None, "bit {bit}");
        }
        assert_eq!(Reach::decode(&bytes[..BYTES - 1]), None);
    }
}
