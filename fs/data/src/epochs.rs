//! Which write epoch of a file was seen last.
//!
//! A client whose lease was taken away may still send what it meant to write under it; by the epoch
//! the server knows such a request from a valid one. Memory only: after a restart of the server the
//! fence, which is durable, keeps away those who lost a lease by silence.
//!
//! Invariant: what is remembered of a file never sinks; at most twice `FILES_MAX` are remembered, and
//! those that were touched last are among them.

use std::collections::BTreeMap;

use ropewalk_wire::fs::data::FileId;

/// Files in each half of the memory.
const FILES_MAX: usize = 64 * 1024;

type Half = BTreeMap<(u64, u32), u32>;

/// The newest epoch of each file, as far as remembered.
#[derive(Debug, Default)]
pub(crate) struct FileEpochs {
    recent: Half,
    /// Becomes the place of the recent ones when these are too many; then it is forgotten.
    older: Half,
}

impl FileEpochs {
    /// Notes the file's epoch; false where a later one was seen before.
    pub(crate) fn admit(&mut self, file: FileId) -> bool {
        let key = (file.inode, file.generation);
        let seen = match self.recent.get(&key) {
            Some(seen) => *seen,
            None => self.older.get(&key).copied().unwrap_or(0),
        };
        if file.epoch < seen {
            return false;
        }
        // Files that never had another epoch than the first need no place.
        if file.epoch > 0 {
            if self.recent.len() >= FILES_MAX && !self.recent.contains_key(&key) {
                self.older = std::mem::take(&mut self.recent);
            }
            self.recent.insert(key, file.epoch);
        }
        true
    }

    /// Forgets a file that is gone, up to a generation.
    pub(crate) fn forget(&mut self, inode: u64, generation: u32) {
        for half in [&mut self.recent, &mut self.older] {
            while let Some((&key, _)) = half.range((inode, 0)..=(inode, generation)).next() {
                half.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(inode: u64, epoch: u32) -> FileId {
        FileId { inode, generation: 1, epoch }
    }

    #[test]
    fn an_older_epoch_is_refused_until_the_file_is_gone() {
        let mut epochs = FileEpochs::default();
        assert!(epochs.admit(file(1, 0)));
        assert!(epochs.admit(file(1, 5)));
        assert!(!epochs.admit(file(1, 4)));
        assert!(epochs.admit(file(1, 5)));
        assert!(epochs.admit(FileId { generation: 2, ..file(1, 4) }));
        epochs.forget(1, 1);
        assert!(epochs.admit(file(1, 0)));
        assert!(!epochs.admit(FileId { generation: 2, ..file(1, 3) }));
    }

    #[test]
    fn memory_is_bounded_and_keeps_what_was_touched_last() {
        let mut epochs = FileEpochs::default();
        for inode in 0..3 * FILES_MAX as u64 {
            assert!(epochs.admit(file(inode, 2)));
            assert!(epochs.admit(file(7, 2)));
        }
        assert!(epochs.recent.len() + epochs.older.len() <= 2 * FILES_MAX);
        assert!(!epochs.admit(file(7, 1)));
        assert!(!epochs.admit(file(3 * FILES_MAX as u64 - 1, 1)));
    }
}
