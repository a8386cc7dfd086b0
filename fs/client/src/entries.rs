//! Names that the client remembers, under leases on their directories.
//!
//! Invariants: a directory is here only while its lease is held; a directory that is `complete` has no
//! other names than those here; names are bounded over all directories, and one that is not here is
//! asked for.

use std::collections::BTreeMap;

use ropewalk_base::hash::{HashMap, HashSeed};

/// Names that are remembered, over all directories. Beyond that what others have is forgotten, and
/// then nothing more is taken in.
const NAMES_MAX: usize = 1 << 18;
/// Names without attributes that are asked for one by one, before their directory is read ahead.
const MISSES: u32 = 4;

/// The remembered entries of one directory.
#[derive(Debug)]
struct Directory {
    /// `None`: known to be absent. A name is only ever asked for as a whole, so no order is kept.
    names: HashMap<Vec<u8>, Option<u64>>,
    complete: bool,
    /// A listing from the beginning, all under this lease, has come to this cookie.
    listed_to: Option<u64>,
    /// Look-ups of names whose attributes were not known.
    misses: u32,
    /// Attributes were read ahead to this cookie; none where there are no more.
    ahead: Option<u64>,
    reading_ahead: bool,
}

/// The names of all directories that are remembered.
#[derive(Debug)]
pub(crate) struct Entries {
    directories: BTreeMap<u64, Directory>,
    /// Over all directories.
    names: usize,
    hash: HashSeed,
}

impl Entries {
    pub fn new(hash: HashSeed) -> Entries {
        Entries { directories: BTreeMap::new(), names: 0, hash }
    }

    /// The record of a directory; an empty one where nothing is known yet.
    fn directory(&mut self, number: u64) -> &mut Directory {
        self.directories.entry(number).or_insert_with(|| Directory::new(self.hash.clone()))
    }

    /// The meaning of a name: `Some(None)` where there is no such name, `None` where that is not known.
    pub fn known(&self, parent: u64, name: &[u8]) -> Option<Option<u64>> {
        let directory = self.directories.get(&parent)?;
        match directory.names.get(name) {
            Some(known) => Some(*known),
            None if directory.complete && !matches!(name, b"." | b"..") => Some(None),
            None => None,
        }
    }

    /// Remembers a name, under a lease on the directory.
    pub fn remember(&mut self, parent: u64, name: &[u8], inode: Option<u64>) {
        if self.names >= NAMES_MAX {
            self.forget_others(parent);
        }
        let full = self.names >= NAMES_MAX;
        let directory = self.directory(parent);
        if let Some(known) = directory.names.get_mut(name) {
            *known = inode;
        } else if full {
            directory.complete = false;
            directory.listed_to = None;
        } else {
            directory.names.insert(name.to_vec(), inode);
            self.names += 1;
        }
    }

    fn forget_others(&mut self, parent: u64) {
        self.directories.retain(|number, _| *number == parent);
        self.names = self.directories.values().map(|directory| directory.names.len()).sum();
    }

    /// A name was changed by us. `cached`: the lease covers its new meaning.
    pub fn change(&mut self, parent: u64, name: &[u8], inode: Option<u64>, cached: bool) {
        if !self.directories.contains_key(&parent) {
            return;
        }
        if cached {
            return self.remember(parent, name, inode);
        }
        let directory = self.directories.get_mut(&parent).expect("it was looked for");
        self.names -= usize::from(directory.names.remove(name).is_some());
        directory.complete = false;
        directory.listed_to = None;
    }

    /// The lease on the directory goes.
    pub fn remove(&mut self, parent: u64) {
        if let Some(directory) = self.directories.remove(&parent) {
            self.names -= directory.names.len();
        }
    }

    /// All leases are gone.
    pub fn clear(&mut self) {
        *self = Entries::new(self.hash.clone());
    }

    /// A directory that we made, and have a lease on: there is nothing in it.
    pub fn made(&mut self, number: u64) {
        self.remove(number);
        self.directory(number).complete = true;
    }

    /// A piece of a listing came, from behind `from` up to `to` (the last one with `end`), of which
    /// each name is remembered by now. False in `gapless`: something may be missing or too much.
    pub fn listed(&mut self, number: u64, from: u64, to: u64, (end, gapless): (bool, bool)) {
        let directory = if from == 0 && gapless {
            self.directory(number)
        } else {
            let Some(directory) = self.directories.get_mut(&number) else { return };
            directory
        };
        if !gapless {
            directory.listed_to = None;
            return;
        }
        if from != 0 && directory.listed_to != Some(from) {
            return;
        }
        directory.listed_to = Some(to);
        directory.complete |= end;
    }

    /// A name is known and its meaning is not: returns the cookie from which the directory shall be read
    /// ahead. A program that looks at some entries of a directory after another mostly looks at all of them,
    /// in any order.
    pub fn missed(&mut self, parent: u64, most: usize) -> Option<u64> {
        let directory = self.directories.get_mut(&parent)?;
        directory.misses = directory.misses.saturating_add(1);
        let worthwhile = (MISSES as usize * 4..most).contains(&directory.names.len());
        if directory.misses <= MISSES || directory.reading_ahead || !worthwhile {
            return None;
        }
        let from = directory.ahead?;
        directory.reading_ahead = true;
        Some(from)
    }

    /// The directory was read ahead up to a cookie; none where it is not to go on.
    pub fn read_ahead(&mut self, parent: u64, to: Option<u64>) {
        if let Some(directory) = self.directories.get_mut(&parent) {
            directory.reading_ahead = false;
            directory.ahead = to;
        }
    }
}

impl Directory {
    fn new(hash: HashSeed) -> Directory {
        Directory {
            names: HashMap::with_hasher(hash),
            complete: false,
            listed_to: None,
            misses: 0,
            ahead: Some(0),
            reading_ahead: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_complete_after_a_listing_without_gaps() {
        let mut entries = Entries::new(HashSeed::OWN_KEYS);
        entries.remember(1, b"a", Some(5));
        assert_eq!(entries.known(1, b"b"), None);
        entries.listed(1, 0, 10, (false, true));
        entries.listed(1, 20, 30, (true, true));
        assert_eq!(entries.known(1, b"b"), None, "a piece is missing");
        entries.listed(1, 10, 20, (false, true));
        entries.listed(1, 20, 30, (true, true));
        assert_eq!((entries.known(1, b"b"), entries.known(1, b"..")), (Some(None), None));
        // A change whose outcome the lease does not cover.
        entries.change(1, b"a", Some(6), false);
        assert_eq!((entries.known(1, b"a"), entries.known(1, b"b")), (None, None));
        entries.listed(1, 0, 10, (false, true));
        entries.listed(1, 10, 20, (true, false));
        assert_eq!(entries.known(1, b"b"), None);
        entries.made(2);
        assert_eq!(entries.known(2, b"x"), Some(None));
        entries.change(2, b"x", Some(7), true);
        assert_eq!((entries.known(2, b"x"), entries.known(2, b"y")), (Some(Some(7)), Some(None)));
        entries.remove(2);
        assert_eq!((entries.known(2, b"y"), entries.names), (None, 0));
    }

    #[test]
    fn names_are_bounded() {
        let mut entries = Entries::new(HashSeed::OWN_KEYS);
        entries.made(1);
        entries.remember(2, b"other", None);
        let name = |number: usize| number.to_le_bytes();
        (0..NAMES_MAX + 5).for_each(|number| entries.remember(1, &name(number), Some(9)));
        assert_eq!(entries.names, NAMES_MAX);
        assert_eq!(entries.known(2, b"other"), None);
        assert_eq!(entries.known(1, &name(NAMES_MAX + 1)), None, "it is not complete any more");
        entries.remember(1, &name(3), None);
        assert_eq!(entries.known(1, &name(3)), Some(None));
    }

    #[test]
    fn a_directory_is_read_ahead_after_some_misses() {
        let mut entries = Entries::new(HashSeed::OWN_KEYS);
        (0..20u8).for_each(|number| entries.remember(1, &[number], Some(9)));
        assert!((0..MISSES).all(|_| entries.missed(1, 1000).is_none()));
        assert_eq!(entries.missed(1, 1000), Some(0));
        assert_eq!(entries.missed(1, 1000), None, "one piece at a time");
        entries.read_ahead(1, Some(70));
        assert_eq!(entries.missed(1, 10), None, "more than can be kept");
        assert_eq!(entries.missed(1, 1000), Some(70));
        entries.read_ahead(1, None);
        assert_eq!(entries.missed(1, 1000), None);
    }
}
