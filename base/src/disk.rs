//! Local storage as a trait: the host's file system in production, a virtual disk that drops and
//! tears unsynced writes in the simulator.
//!
//! The contract is what POSIX gives on a journaling file system, and no more:
//! * after `write_at` returns the bytes survive the death of the process, not a power loss;
//! * after `sync_data` returns the file's bytes and length survive a power loss;
//! * a created, renamed or removed name survives a power loss after `sync_directory` of its parent;
//! * unsynced writes may survive wholly, not at all, or torn at sector borders, in any order;
//! * a failed `sync_data` leaves it open which writes are durable, and a second try that succeeds
//!   proves nothing about them.
//!
//! All calls may block; a caller that must not be blocked goes through `World::offload`.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::timing::Histogram;

/// The mode in which a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Open {
    /// To read; it must exist.
    Read,
    /// To read and write; it must exist.
    Write,
    /// To read and write; made where it does not exist.
    Create,
    /// To read and write; must not exist (`AlreadyExists`).
    CreateNew,
}

/// The type of a directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Other,
}

/// Room on the file system that holds a path, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    pub total: u64,
    /// Free, also where only the superuser may use it.
    pub free: u64,
    /// Free for everybody.
    pub available: u64,
    /// Names the file system: the same for all paths on it that this host sees, for every caller, and for no other file
    /// system. 0 if that is not known.
    pub identity: u128,
}

/// A tree of files.
pub trait Disk: Send + Sync {
    /// Binds this path, and all paths below it, to the directory that is there now, whatever happens to the name. If
    /// nothing is there, the path keeps its plain meaning.
    ///
    /// # Errors
    /// If the path is no directory, or if the directory belongs to a user who should not have it.
    fn hold(&self, root: &Path) -> io::Result<()> {
        let _ = root;
        Ok(())
    }
    /// Opens a file.
    fn open(&self, path: &Path, open: Open) -> io::Result<Arc<dyn File>>;
    /// Makes a directory and its missing parents; existing ones are fine.
    fn create_directory(&self, path: &Path) -> io::Result<()>;
    /// Removes a file's name.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty directory.
    fn remove_directory(&self, path: &Path) -> io::Result<()>;
    /// Renames a file, replacing the target atomically.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// The names in a directory, sorted bytewise.
    fn list(&self, path: &Path) -> io::Result<Vec<(std::ffi::OsString, Kind)>>;
    /// The type of `path`; `None` if nothing is there.
    fn kind(&self, path: &Path) -> io::Result<Option<Kind>>;
    /// Makes the names in a directory durable.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;
    /// Room on the file system of `path`.
    fn space(&self, path: &Path) -> io::Result<Space>;
    /// Names the stretch of time in which everything that was written to the file at `path` is still
    /// seen, synced or not: other after a power loss or a new mount, the same after a mere death of
    /// the process. `None` where that is not known.
    fn memory_of(&self, path: &Path) -> Option<u128>;
    /// The durations of the calls for file contents since this disk was opened. `None` where nobody counts them.
    fn times(&self) -> Option<DiskTimes> {
        None
    }
}

/// Durations of a disk's calls for the contents of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskTimes {
    pub reads: Histogram,
    pub writes: Histogram,
    pub syncs: Histogram,
    pub bytes_read: u64,
    pub bytes_written: u64,
}

/// Stores a small record durably, twice: at the beginning of a file and at `second_at`, in another sector. A file that is there is
/// written in its place, so that a full disk takes it: the second copy first, and each is durable before the next one is written. A
/// file that is not there is made under the name `new` and renamed. Blocks.
///
/// # Errors
/// Those of the disk. One whole copy is there nevertheless, the old one or the new one, if there was one before.
pub fn write_twice(
    disk: &dyn Disk,
    directory: &Path,
    (name, new): (&str, &str),
    second_at: u64,
    bytes: &[u8],
) -> io::Result<()> {
    let (path, new) = (directory.join(name), directory.join(new));
    match disk.open(&path, Open::Write) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => (),
        opened => {
            let file = opened?;
            for at in [second_at, 0] {
                file.write_at(at, bytes)?;
                file.sync_data()?;
            }
            return Ok(());
        }
    }
    let file = disk.open(&new, Open::Create)?;
    file.set_len(0)?;
    file.write_at(0, bytes)?;
    file.write_at(second_at, bytes)?;
    file.sync_data()?;
    disk.rename(&new, &path)?;
    disk.sync_directory(directory)
}

/// An open file. All positions and lengths are in bytes.
pub trait File: Send + Sync {
    /// Reads at `offset` until `bytes` is full or the file ends; returns how many were read.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize>;
    /// Writes all of `bytes` at `offset`. After an error any part of them may be written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Leaves words at `offset`, a multiple of 8 within the file's length, one after the other, for a
    /// later life of the process: as good as `write_at`, and without a system call where the file
    /// can be mapped. Each word is old or new; a death in between leaves those at the front.
    fn note(&self, offset: u64, words: &[u64]) -> io::Result<()> {
        words
            .iter()
            .zip((offset..).step_by(8))
            .try_for_each(|(word, at)| self.write_at(at, &word.to_le_bytes()))
    }
    /// Makes the written bytes and the length durable.
    fn sync_data(&self) -> io::Result<()>;
    /// The file's length.
    fn len(&self) -> io::Result<u64>;
    /// Whether the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Cuts or extends the file; added bytes read as zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Reserves room for a range, growing the file where it ends earlier.
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Frees the room of a range; it reads as zeros, the length stays.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Takes the file's exclusive lock until it is closed; `WouldBlock` where another process or
    /// server has it.
    fn lock(&self) -> io::Result<()>;
}

/// No storage at all: for nodes that keep nothing, such as clients. Every call is `Unsupported`.
#[derive(Debug, Clone, Copy)]
pub struct NoDisk;

impl NoDisk {
    fn refuse<T>() -> io::Result<T> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "this node has no storage"))
    }
}

impl Disk for NoDisk {
    fn open(&self, _path: &Path, _open: Open) -> io::Result<Arc<dyn File>> {
        NoDisk::refuse()
    }
    fn create_directory(&self, _path: &Path) -> io::Result<()> {
        NoDisk::refuse()
    }
    fn remove_file(&self, _path: &Path) -> io::Result<()> {
        NoDisk::refuse()
    }
    fn remove_directory(&self, _path: &Path) -> io::Result<()> {
        NoDisk::refuse()
    }
    fn rename(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        NoDisk::refuse()
    }
    fn list(&self, _path: &Path) -> io::Result<Vec<(std::ffi::OsString, Kind)>> {
        NoDisk::refuse()
    }
    fn kind(&self, _path: &Path) -> io::Result<Option<Kind>> {
        NoDisk::refuse()
    }
    fn sync_directory(&self, _path: &Path) -> io::Result<()> {
        NoDisk::refuse()
    }
    fn space(&self, _path: &Path) -> io::Result<Space> {
        NoDisk::refuse()
    }
    fn memory_of(&self, _path: &Path) -> Option<u128> {
        None
    }
}
