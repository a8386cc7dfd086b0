//! The file `told`: all objects of this store have learned the group that they have since a certain upgrade.

use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};

use ropewalk_base::checksum;
use ropewalk_base::disk::{Disk, Open, write_twice};
use ropewalk_base::time::Time;
use ropewalk_wire::fs::term::Term;

const NAME: &str = "told";
const NEW_NAME: &str = "told.new";
const MAGIC: &[u8; 8] = b"RWGROUPS";
/// Magic, the upgrade's number, and the checksum of both.
pub(crate) const BYTES: usize = 20;
/// The offset of the second copy: in a sector of its own.
const SECOND_AT: usize = 512;

/// The progress of this life of the server.
#[derive(Debug)]
pub(crate) struct Progress {
    pub directory: PathBuf,
    /// A pass is under way.
    pub running: Cell<bool>,
    /// No pass begins before: the last one has failed.
    pub not_before: Cell<Time>,
    /// Objects that have learned their group.
    pub told: Cell<u64>,
    /// The term whose metadata server knows that none is left.
    pub reported: Cell<Term>,
}

impl Progress {
    pub(crate) fn new(directory: &Path) -> Progress {
        let (running, told, reported) = Default::default();
        let not_before = Cell::new(Time::ZERO);
        Progress { directory: directory.to_path_buf(), running, not_before, told, reported }
    }
}

/// The number of the upgrade since when all objects know their group; `None`: not all of them may.
pub(crate) fn read(disk: &dyn Disk, directory: &Path) -> Option<u64> {
    let file = disk.open(&directory.join(NAME), Open::Read).ok()?;
    let mut bytes = [0; SECOND_AT + BYTES];
    let count = file.read_at(0, &mut bytes).ok()?;
    let copies = [0, SECOND_AT].into_iter();
    copies.filter_map(|at| bytes[..count].get(at..at + BYTES)).find_map(decode)
}

fn decode(bytes: &[u8]) -> Option<u64> {
    let (body, sum) = bytes.split_at(BYTES - 4);
    let is_whole = body[..8] == *MAGIC && checksum::crc32c(body).to_le_bytes() == sum;
    is_whole.then(|| body[8..].try_into().map(u64::from_le_bytes).ok()).flatten()
}

/// Whether a note is accepted. For fuzzers.
pub(crate) fn accepts(bytes: &[u8]) -> bool {
    let Some(step) = decode(bytes) else { return false };
    assert_eq!(decode(&encode(step)), Some(step), "the journey changes it");
    true
}

fn encode(step: u64) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&step.to_le_bytes());
    bytes.extend_from_slice(&checksum::crc32c(&bytes).to_le_bytes());
    bytes
}

/// Notes that all objects know their group since an upgrade. Durable when it returns.
pub(crate) fn write(disk: &dyn Disk, directory: &Path, step: u64) -> io::Result<()> {
    write_twice(disk, directory, (NAME, NEW_NAME), SECOND_AT as u64, &encode(step))
}

#[cfg(test)]
mod tests {
    use ropewalk_store::HostDisk;

    use super::*;

    #[test]
    fn one_copy_of_the_note_is_enough_and_none_is_as_none() {
        let directory = tempfile::tempdir().unwrap();
        let (disk, path) = (HostDisk::shared(), directory.path());
        assert_eq!(read(&*disk, path), None);
        for step in [7, u64::MAX] {
            write(&*disk, path, step).unwrap();
            assert_eq!(read(&*disk, path), Some(step));
        }
        let mut bytes = std::fs::read(path.join(NAME)).unwrap();
        bytes[9] ^= 1;
        std::fs::write(path.join(NAME), &bytes).unwrap();
        assert_eq!(read(&*disk, path), Some(u64::MAX));
        bytes[SECOND_AT + 9] ^= 1;
        std::fs::write(path.join(NAME), &bytes).unwrap();
        assert_eq!(read(&*disk, path), None);
        std::fs::write(path.join(NAME), &bytes[..30]).unwrap();
        assert_eq!(read(&*disk, path), None);
    }
}
