//! The record of the directory's starts in the part that holds the data. So a part of another directory is
//! not taken for this one's, nor an older copy of the part for the part itself.
//!
//! The part is `objects` of a data server and `journal` of a metadata server. The file `starts` in it names the
//! store that the superblock names, and the last starts, tidy ends included. The superblock has the last
//! one of which the part was told.
//!
//! | copy of `starts`, one page | bytes |
//! |---|---|
//! | magic "RWSTARTS" | 8 |
//! | format version | 4 |
//! | CRC32C of the other fields | 4 |
//! | identity of the store | 16 |
//! | starts and ends, the newest last, 0 where there was none | 48 times 8 |
//!
//! Invariants
//! * the part is told of a start before the superblock is: a death in between leaves a start that nobody asks
//!   for;
//! * the entry that the superblock asks for leaves the list last, so that starts which come no further do not
//!   displace it;
//! * the copies are written in their place one after the other, so a start needs no room on the disk;
//! * it is a second witness and nothing else: where both copies are damaged or gone, they are made anew.

use std::io;
use std::path::{Path, PathBuf};

use ropewalk_base::checksum;
use ropewalk_base::disk::{Disk, Open};

use crate::overwrite::overwrite;

const NAME: &str = "starts";
const NEW_NAME: &str = "starts.new";
const MAGIC: &[u8; 8] = b"RWSTARTS";
const VERSION: u32 = 1;
/// The number of starts and ends that are remembered.
const COUNT: usize = 48;
const HEAD_BYTES: usize = 32;
const USED: usize = HEAD_BYTES + COUNT * 8;
/// A page: the device gives it back or does not, and writing it heals it.
const COPY_BYTES: usize = 4096;
const COPIES: [u64; 2] = [0, COPY_BYTES as u64];

/// The content of a part's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Known {
    pub store: u128,
    /// The newest last.
    ids: [u64; COUNT],
}

impl Known {
    pub(super) fn new(store: u128) -> Known {
        Known { store, ids: [0; COUNT] }
    }

    /// Whether it was told of this start or end; 0 is none, of which everybody knows.
    pub(super) fn has(&self, id: u64) -> bool {
        id == 0 || self.ids.contains(&id)
    }

    pub(super) fn newest(&self) -> u64 {
        self.ids[COUNT - 1]
    }

    /// With one more start or end behind `asked`, which the superblock asks for until it has the new one.
    pub(super) fn and(mut self, asked: u64, id: u64) -> Known {
        for newest in [asked, id].into_iter().filter(|id| *id != 0) {
            let place = self.ids.iter().position(|known| *known == newest).unwrap_or(0);
            self.ids[place..].rotate_left(1);
            self.ids[COUNT - 1] = newest;
        }
        self
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(COPY_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.store.to_le_bytes());
        self.ids.iter().for_each(|id| bytes.extend_from_slice(&id.to_le_bytes()));
        let crc = crc_of(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes.resize(COPY_BYTES, 0);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Known> {
        let bytes = bytes.get(..USED)?;
        let four = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
        if &bytes[..8] != MAGIC || crc_of(bytes) != four(12) || four(8) != VERSION {
            return None;
        }
        let store = u128::from_le_bytes(bytes[16..HEAD_BYTES].try_into().expect("sixteen"));
        let mut known = Known::new(store);
        for (id, bytes) in known.ids.iter_mut().zip(bytes[HEAD_BYTES..].chunks_exact(8)) {
            *id = u64::from_le_bytes(bytes.try_into().expect("eight"));
        }
        Some(known)
    }
}

fn crc_of(bytes: &[u8]) -> u32 {
    checksum::append(checksum::crc32c(&bytes[..12]), &bytes[16..USED])
}

/// For fuzzers, see [`crate::decoders`]: whether these bytes, with a checksum that fits, are starts.
pub(crate) fn accepts(bytes: &mut [u8]) -> bool {
    if bytes.len() >= USED {
        let crc = crc_of(bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    }
    let Some(known) = Known::decode(bytes) else { return false };
    assert_eq!(Known::decode(&known.encode()), Some(known));
    true
}

/// The file of a part, for people.
pub(super) fn path_in(part: &Path) -> PathBuf {
    part.join(NAME)
}

/// The content of a part's record; None where it has no such file, or a damaged one.
pub(super) fn read(disk: &dyn Disk, part: &Path) -> io::Result<Option<Known>> {
    let file = match disk.open(&path_in(part), Open::Read) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut failed = None;
    for at in COPIES {
        let mut bytes = [0; USED];
        match file.read_at(at, &mut bytes) {
            Ok(count) => match Known::decode(&bytes[..count]) {
                Some(known) => return Ok(Some(known)),
                None => continue,
            },
            Err(cause) => failed = Some(cause),
        }
    }
    failed.map_or(Ok(None), Err)
}

/// Writes a part's record, durably.
pub(super) fn write(disk: &dyn Disk, part: &Path, known: &Known) -> io::Result<()> {
    let (path, bytes) = (path_in(part), known.encode());
    match disk.open(&path, Open::Write) {
        Ok(file) if file.len()? == 2 * COPY_BYTES as u64 => {
            for at in COPIES.into_iter().rev() {
                file.write_at(at, &bytes)?;
                file.sync_data()?;
            }
            Ok(())
        }
        _ => overwrite(disk, &path, &part.join(NEW_NAME), &[&bytes[..], &bytes].concat()).map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_disk::HostDisk;

    #[test]
    fn what_is_asked_for_is_known_however_many_starts_come_no_further() {
        let mut known = Known::new(7);
        assert!(known.has(0) && !known.has(5));
        for id in 1..200 {
            known = known.and(id - 1, id);
            assert!(known.has(id) && known.has(id - 1), "{id}");
            assert!(id < 50 || !known.has(id - 48), "{id}");
        }
        for id in 1000..1200 {
            known = known.and(199, id);
            assert!(known.has(199) && known.newest() == id, "{id}");
        }
    }

    #[test]
    fn one_copy_is_enough_and_any_flipped_bit_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let part = directory.path();
        let known = Known::new(1 << 100 | 3).and(4, 5).and(5, 6);
        assert_eq!(read(&HostDisk, part).unwrap(), None);
        write(&HostDisk, part, &Known::new(9)).unwrap();
        write(&HostDisk, part, &known).unwrap();
        let good = known.encode();
        for bit in 0..USED * 8 {
            let mut damaged = good.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Known::decode(&damaged), None, "bit {bit}");
        }
        let file = HostDisk.open(&path_in(part), Open::Write).unwrap();
        for at in COPIES {
            file.write_at(at, &[0; 512]).unwrap();
            assert_eq!(read(&HostDisk, part).unwrap(), (at == 0).then_some(known.clone()));
        }
        write(&HostDisk, part, &known).unwrap();
        assert_eq!(read(&HostDisk, part).unwrap(), Some(known));
    }
}
