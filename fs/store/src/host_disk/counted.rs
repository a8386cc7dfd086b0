//! Durations of a disk's calls for the contents of files.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ropewalk_base::disk::DiskTimes;
use ropewalk_base::timing::AtomicTimer;

/// Counts on all threads that use a disk.
#[derive(Debug, Default)]
pub(super) struct Counted {
    reads: AtomicTimer,
    writes: AtomicTimer,
    syncs: AtomicTimer,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
}

impl Counted {
    /// Counts a read, and the bytes that it brought.
    pub fn read(&self, read: impl FnOnce() -> std::io::Result<usize>) -> std::io::Result<usize> {
        let begin = Instant::now();
        let done = read();
        self.reads.add(begin.elapsed());
        let bytes = *done.as_ref().unwrap_or(&0);
        self.bytes_read.fetch_add(bytes as u64, Ordering::Relaxed);
        done
    }

    /// Counts a write of so many bytes.
    pub fn write<T>(&self, bytes: usize, write: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let done = write();
        self.writes.add(begin.elapsed());
        self.bytes_written.fetch_add(bytes as u64, Ordering::Relaxed);
        done
    }

    /// Counts a sync.
    pub fn sync<T>(&self, sync: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let done = sync();
        self.syncs.add(begin.elapsed());
        done
    }

    pub fn times(&self) -> DiskTimes {
        DiskTimes {
            reads: self.reads.read(),
            writes: self.writes.read(),
            syncs: self.syncs.read(),
            bytes_read: self.bytes_read.load(Ordering::Relaxed),
            bytes_written: self.bytes_written.load(Ordering::Relaxed),
        }
    }
}
