//! Which write epoch of a file was seen last.
//!
//! A client whose lease was taken away may still send what it meant to write under it; by the epoch
//! the server knows such a request from a valid one. Memory only: after a restart of the server the
//! fence, which is durable, keeps away those who lost a lease by silence.
//!
//! The metadata server raises the epoch for each cut, and sends a cut outside of any session: the
//! epoch also tells a repeated cut, which must not take what was written after the first one.
//!
//! Invariant: what is remembered of a file never sinks; at most twice `FILES_MAX` are remembered, and
//! those that were touched last are among them.

use std::collections::BTreeMap;

use ropewalk_wire::fs::data::FileId;

/// Files in each half of the memory.
const FILES_MAX: usize = 64 * 1024;

/// What is remembered of a file.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    epoch: u32,
    /// Where the file was cut last in this epoch: stripe and offset.
    cut: Option<(u32, u32)>,
}

type Half = BTreeMap<(u64, u32), Seen>;

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
        let seen = self.seen(file);
        if file.epoch < seen.epoch {
            return false;
        }
        // Files that never had another epoch than the first need no place.
        if file.epoch > 0 {
            let cut = seen.cut.filter(|_| file.epoch == seen.epoch);
            self.note(file, Seen { epoch: file.epoch, cut });
        }
        true
    }

    /// Whether no later epoch of the file was seen. Notes nothing: who may only read a file must not make
    /// it stale for others by an epoch of his own invention.
    pub(crate) fn is_current(&self, file: FileId) -> bool {
        file.epoch >= self.seen(file).epoch
    }

    /// Whether this was the file's last cut in this epoch.
    pub(crate) fn was_cut(&self, file: FileId, cut: (u32, u32)) -> bool {
        let seen = self.seen(file);
        seen.cut == Some(cut) && seen.epoch == file.epoch
    }

    /// Notes that the file was cut in this epoch, which was admitted before.
    pub(crate) fn note_cut(&mut self, file: FileId, cut: (u32, u32)) {
        self.note(file, Seen { epoch: file.epoch, cut: Some(cut) });
    }

    fn seen(&self, file: FileId) -> Seen {
        let key = (file.inode, file.generation);
        self.recent.get(&key).or_else(|| self.older.get(&key)).copied().unwrap_or_default()
    }

    fn note(&mut self, file: FileId, seen: Seen) {
        let key = (file.inode, file.generation);
        if self.recent.len() >= FILES_MAX && !self.recent.contains_key(&key) {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(key, seen);
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
    fn a_look_at_an_epoch_leaves_nothing_behind() {
        let mut epochs = FileEpochs::default();
        assert!(epochs.is_current(file(1, 9)) && epochs.admit(file(1, 5)));
        assert!(epochs.is_current(file(1, 9)) && !epochs.is_current(file(1, 4)));
        assert!(epochs.admit(file(1, 5)));
    }

    #[test]
    fn a_cut_is_remembered_for_its_epoch() {
        let mut epochs = FileEpochs::default();
        assert!(epochs.admit(file(1, 5)));
        assert!(!epochs.was_cut(file(1, 5), (2, 9)));
        epochs.note_cut(file(1, 5), (2, 9));
        assert!(epochs.admit(file(1, 5)));
        assert!(epochs.was_cut(file(1, 5), (2, 9)) && !epochs.was_cut(file(1, 5), (2, 8)));
        assert!(epochs.admit(file(1, 6)));
        assert!(!epochs.was_cut(file(1, 5), (2, 9)) && !epochs.was_cut(file(1, 6), (2, 9)));
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
