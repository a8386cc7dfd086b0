//! The last write epoch seen of each file.
//!
//! A client whose lease was taken away may still send writes that it prepared under the lease. By the epoch
//! the server tells such a request from a valid one. The epochs are in memory only: after a restart of the
//! server the fence, which is durable, keeps away sessions that lost a lease by silence.
//!
//! The metadata server raises the epoch for each cut, and sends a cut outside of any session. So the epoch
//! also tells a repeated cut, which must not remove bytes that were written after the first one.
//!
//! A session that is limited to one user's rights may say any epoch of a file that it may write. So its word
//! is a *claim*: as good as others' while nobody says otherwise. A caller with an older epoch disputes it,
//! and then the metadata server is asked.
//!
//! Invariants:
//! * the remembered epoch of a file never sinks, but for claims that the metadata server denies;
//! * a claim turns nobody away by itself; only epochs from the metadata server, or from sessions that may act
//!   for everybody, do;
//! * an inode has one claim, so that no session can displace others' claims by invented generations;
//! * at most twice `FILES_MAX` files and as many claims are remembered, and those that were touched last are
//!   among them.

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_wire::fs::data::FileId;

/// Files in each half of the memory.
const FILES_MAX: usize = 64 * 1024;
/// Sessions that are known to have made false claims.
const LIARS_MAX: usize = 1024;

/// Whether a request comes under the newest epoch of its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Current,
    Stale,
    /// Only the metadata server knows.
    Disputed,
}

/// The remembered epoch of a file.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    epoch: u32,
    /// The place of the file's last cut in this epoch: stripe and offset.
    cut: Option<(u32, u32)>,
}

/// A limited session's claim about an inode.
#[derive(Debug, Clone, Copy)]
struct Claim {
    generation: u32,
    epoch: u32,
    session: u64,
}

/// The entries that were touched last.
#[derive(Debug)]
struct Memory<K, V> {
    recent: BTreeMap<K, V>,
    /// Becomes the place of the recent ones when these are too many; then it is forgotten.
    older: BTreeMap<K, V>,
}

impl<K: Ord, V: Copy> Memory<K, V> {
    fn get(&self, key: &K) -> Option<V> {
        self.recent.get(key).or_else(|| self.older.get(key)).copied()
    }

    fn note(&mut self, key: K, value: V) {
        if self.recent.len() >= FILES_MAX && !self.recent.contains_key(&key) {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(key, value);
    }

    fn forget(&mut self, key: &K) {
        self.recent.remove(key);
        self.older.remove(key);
    }
}

impl<K, V> Default for Memory<K, V> {
    fn default() -> Memory<K, V> {
        Memory { recent: BTreeMap::new(), older: BTreeMap::new() }
    }
}

/// The newest epoch of each file, as far as remembered.
#[derive(Debug, Default)]
pub(crate) struct FileEpochs {
    sure: Memory<(u64, u32), Seen>,
    claims: Memory<u64, Claim>,
    /// Their claims are asked about before they count.
    liars: BTreeSet<u64>,
    /// The epochs of files that orderers of groups know, by server.
    elsewhere: Memory<(u32, u64, u32), u32>,
}

impl FileEpochs {
    /// Notes the file's epoch, where it is current. `session`: the limited one whose word it is.
    pub(crate) fn admit(&mut self, file: FileId, session: Option<u64>) -> Standing {
        let seen = self.seen(file);
        let lied = session.is_some_and(|session| self.liars.contains(&session));
        match self.standing(file) {
            Standing::Current if lied && file.epoch > seen.epoch => Standing::Disputed,
            Standing::Current => {
                // Files that never had another epoch than the first need no place.
                match session.filter(|_| file.epoch > seen.epoch) {
                    _ if file.epoch == 0 => {}
                    Some(session) => {
                        let FileId { inode, generation, epoch } = file;
                        self.claims.note(inode, Claim { generation, epoch, session });
                    }
                    None => {
                        let cut = seen.cut.filter(|_| file.epoch == seen.epoch);
                        self.note(file, Seen { epoch: file.epoch, cut });
                    }
                }
                Standing::Current
            }
            standing => standing,
        }
    }

    /// An orderer knows a file's epoch.
    pub(crate) fn note_elsewhere(&mut self, orderer: u32, file: FileId) {
        // That of what is made equal is nobody's.
        if file.epoch != 0 && file.epoch != u32::MAX && !self.is_elsewhere(orderer, file) {
            self.elsewhere.note((orderer, file.inode, file.generation), file.epoch);
        }
    }

    /// A server began a new life, and knows no epochs any more.
    pub(crate) fn forget_elsewhere(&mut self) {
        self.elsewhere = Memory::default();
    }

    /// Whether an orderer is known to know this epoch of a file. Another one may have been invented.
    pub(crate) fn is_elsewhere(&self, orderer: u32, file: FileId) -> bool {
        let known = self.elsewhere.get(&(orderer, file.inode, file.generation));
        file.epoch == 0 || known == Some(file.epoch)
    }

    /// Whether no later epoch of the file was seen. Notes nothing: a session that may only read a file must
    /// not make it stale for others by an invented epoch.
    pub(crate) fn standing(&self, file: FileId) -> Standing {
        let claim = self.claims.get(&file.inode);
        let claim = claim.filter(|claim| claim.generation == file.generation);
        if file.epoch < self.seen(file).epoch {
            Standing::Stale
        } else if claim.is_some_and(|claim| file.epoch < claim.epoch) {
            Standing::Disputed
        } else {
            Standing::Current
        }
    }

    /// Takes the metadata server's answer about a disputed inode: its generation and epoch, if it is a file.
    pub(crate) fn settle(&mut self, inode: u64, told: Option<(u32, u32)>) {
        let claim = self.claims.get(&inode);
        self.claims.forget(&inode);
        let Some((generation, epoch)) = told else { return };
        let file = FileId { inode, generation, epoch };
        let seen = self.seen(file);
        if epoch > seen.epoch {
            self.note(file, Seen { epoch, cut: None });
        }
        if let Some(claim) = claim
            && (claim.generation, claim.epoch) > (generation, epoch)
        {
            if self.liars.len() >= LIARS_MAX {
                self.liars.pop_first();
            }
            self.liars.insert(claim.session);
        }
    }

    /// Whether this was the file's last cut in this epoch.
    pub(crate) fn was_cut(&self, file: FileId, cut: (u32, u32)) -> bool {
        let seen = self.seen(file);
        seen.cut == Some(cut) && seen.epoch == file.epoch
    }

    /// A write of this epoch of the file came late, to a copy: if the file was cut in a later epoch, the cut has to be done
    /// again when it is repeated.
    pub(crate) fn wrote_before_cut(&mut self, file: FileId) {
        let seen = self.seen(file);
        if seen.cut.is_some() && file.epoch < seen.epoch {
            self.note(file, Seen { cut: None, ..seen });
        }
    }

    /// Notes that the file was cut in this epoch, which was admitted before.
    pub(crate) fn note_cut(&mut self, file: FileId, cut: (u32, u32)) {
        self.note(file, Seen { epoch: file.epoch, cut: Some(cut) });
    }

    fn seen(&self, file: FileId) -> Seen {
        self.sure.get(&(file.inode, file.generation)).unwrap_or_default()
    }

    fn note(&mut self, file: FileId, seen: Seen) {
        self.sure.note((file.inode, file.generation), seen);
    }

    /// Forgets a file that is gone, up to a generation.
    pub(crate) fn forget(&mut self, inode: u64, generation: u32) {
        for half in [&mut self.sure.recent, &mut self.sure.older] {
            while let Some((&key, _)) = half.range((inode, 0)..=(inode, generation)).next() {
                half.remove(&key);
            }
        }
        if self.claims.get(&inode).is_some_and(|claim| claim.generation <= generation) {
            self.claims.forget(&inode);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use Standing::{Current, Disputed, Stale};

    fn file(inode: u64, epoch: u32) -> FileId {
        FileId { inode, generation: 1, epoch }
    }

    #[test]
    fn an_older_epoch_is_refused_until_the_file_is_gone() {
        let mut epochs = FileEpochs::default();
        assert_eq!(epochs.admit(file(1, 0), None), Current);
        assert_eq!(epochs.admit(file(1, 5), None), Current);
        assert_eq!(epochs.admit(file(1, 4), None), Stale);
        assert_eq!(epochs.admit(file(1, 5), None), Current);
        assert_eq!(epochs.admit(FileId { generation: 2, ..file(1, 4) }, None), Current);
        epochs.forget(1, 1);
        assert_eq!(epochs.admit(file(1, 0), None), Current);
        assert_eq!(epochs.admit(FileId { generation: 2, ..file(1, 3) }, None), Stale);
    }

    #[test]
    fn a_look_at_an_epoch_leaves_nothing_behind() {
        let mut epochs = FileEpochs::default();
        assert_eq!(epochs.standing(file(1, 9)), Current);
        assert_eq!(epochs.admit(file(1, 5), None), Current);
        assert_eq!([9, 4].map(|epoch| epochs.standing(file(1, epoch))), [Current, Stale]);
        assert_eq!(epochs.admit(file(1, 5), None), Current);
    }

    #[test]
    fn a_cut_is_remembered_for_its_epoch() {
        let mut epochs = FileEpochs::default();
        assert_eq!(epochs.admit(file(1, 5), None), Current);
        assert!(!epochs.was_cut(file(1, 5), (2, 9)));
        epochs.note_cut(file(1, 5), (2, 9));
        assert_eq!(epochs.admit(file(1, 5), None), Current);
        assert!(epochs.was_cut(file(1, 5), (2, 9)) && !epochs.was_cut(file(1, 5), (2, 8)));
        assert_eq!(epochs.admit(file(1, 6), None), Current);
        assert!(!epochs.was_cut(file(1, 5), (2, 9)) && !epochs.was_cut(file(1, 6), (2, 9)));
    }

    #[test]
    fn memory_is_bounded_and_keeps_what_was_touched_last() {
        let mut epochs = FileEpochs::default();
        for inode in 0..3 * FILES_MAX as u64 {
            assert_eq!(epochs.admit(file(inode, 2), None), Current);
            assert_eq!(epochs.admit(file(7, 2), None), Current);
        }
        assert!(epochs.sure.recent.len() + epochs.sure.older.len() <= 2 * FILES_MAX);
        assert_eq!(epochs.admit(file(7, 1), None), Stale);
        assert_eq!(epochs.admit(file(3 * FILES_MAX as u64 - 1, 1), None), Stale);
    }

    #[test]
    fn a_claim_turns_others_away_only_where_the_metadata_server_says_so() {
        let mut epochs = FileEpochs::default();
        assert_eq!(epochs.admit(file(1, 5), None), Current);
        assert_eq!(epochs.admit(file(1, 6), Some(8)), Current);
        // Late, under an older epoch: of everybody.
        assert_eq!(epochs.admit(file(1, 4), Some(9)), Stale);
        for session in [None, Some(9)] {
            assert_eq!(epochs.admit(file(1, 5), session), Disputed);
        }
        epochs.settle(1, Some((1, 6)));
        assert_eq!(epochs.admit(file(1, 5), None), Stale);
        assert_eq!(epochs.admit(file(1, 6), None), Current);
        // No new claim of a session that made a false claim is believed.
        assert_eq!(epochs.admit(file(1, u32::MAX), Some(7)), Current);
        assert_eq!(epochs.standing(file(1, 6)), Disputed);
        epochs.settle(1, Some((1, 6)));
        assert_eq!(epochs.admit(file(1, 6), Some(9)), Current);
        assert_eq!(epochs.admit(file(1, u32::MAX), Some(7)), Disputed);
        assert_eq!(epochs.admit(file(1, 6), Some(7)), Current);
        assert_eq!(epochs.admit(file(1, 7), Some(8)), Current);
        epochs.settle(1, None);
        assert_eq!(epochs.admit(file(1, 6), None), Current);
    }

    #[test]
    fn claims_of_invented_generations_make_nobody_elses_forgotten() {
        let mut epochs = FileEpochs::default();
        assert_eq!(epochs.admit(file(1, 5), None), Current);
        assert_eq!(epochs.admit(file(2, 5), Some(9)), Current);
        for generation in 2..3 * FILES_MAX as u32 {
            let invented = FileId { inode: 3, generation, epoch: 1 };
            assert_eq!(epochs.admit(invented, Some(7)), Current);
        }
        assert_eq!(epochs.admit(file(1, 4), None), Stale);
        assert_eq!(epochs.admit(file(2, 4), None), Disputed);
    }
}
