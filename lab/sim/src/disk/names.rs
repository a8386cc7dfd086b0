//! The names of a virtual disk: a live tree, a durable tree, and the changes between them.
//!
//! Invariants: `/` and the empty path always exist; a kept name whose directories were lost is
//! lost with them; a rename is kept wholly or not at all.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ropewalk_base::disk::Kind;
use ropewalk_base::random::Random;

/// The object behind a name: a directory, or a file by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    Directory,
    File(u64),
}

impl Entry {
    pub(super) fn kind(self) -> Kind {
        match self {
            Entry::Directory => Kind::Directory,
            Entry::File(_) => Kind::File,
        }
    }
}

/// One change of the tree since the directories in question were last synced.
#[derive(Debug, Clone)]
pub(super) enum NameChange {
    Add { path: PathBuf, entry: Entry },
    Remove { path: PathBuf },
    Rename { from: PathBuf, to: PathBuf, entry: Entry },
}

/// A tree of names; paths are absolute or relative, always spelled the same way by the caller.
///
/// By directory, and in it by name: most of a simulation's calls list a directory, or look for a name in it, and comparing whole
/// paths part by part took a fourth of its time.
#[derive(Debug, Clone, Default)]
pub(super) struct Tree {
    directories: BTreeMap<OsString, BTreeMap<OsString, Entry>>,
}

/// A path's directory, and its name there.
fn split(path: &Path) -> (&OsStr, &OsStr) {
    let bytes = path.as_os_str().as_bytes();
    let Some(at) = bytes.iter().rposition(|byte| *byte == b'/') else {
        return (OsStr::new(""), path.as_os_str());
    };
    (OsStr::from_bytes(&bytes[..at.max(1)]), OsStr::from_bytes(&bytes[at + 1..]))
}

impl Tree {
    pub(super) fn get(&self, path: &Path) -> Option<Entry> {
        let (directory, name) = split(path);
        self.directories.get(directory)?.get(name).copied()
    }

    fn insert(&mut self, path: &Path, entry: Entry) {
        let (directory, name) = split(path);
        match self.directories.get_mut(directory) {
            Some(names) => drop(names.insert(name.to_owned(), entry)),
            None => {
                let names = BTreeMap::from([(name.to_owned(), entry)]);
                self.directories.insert(directory.to_owned(), names);
            }
        }
    }

    pub(super) fn remove(&mut self, path: &Path) {
        let (directory, name) = split(path);
        let Some(names) = self.directories.get_mut(directory) else { return };
        names.remove(name);
        if names.is_empty() {
            self.directories.remove(directory);
        }
    }

    /// The names directly inside a directory, in order.
    pub(super) fn inside(&self, directory: &Path) -> impl Iterator<Item = (&OsStr, Entry)> {
        let names = self.directories.get(directory.as_os_str());
        names.into_iter().flatten().map(|(name, entry)| (name.as_os_str(), *entry))
    }

    /// All names, in no order.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> {
        self.directories.values().flat_map(BTreeMap::values).copied()
    }

    pub(super) fn len(&self) -> usize {
        self.directories.values().map(BTreeMap::len).sum()
    }

    /// The paths of all files, in order.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let all = self.directories.iter().flat_map(|(directory, names)| {
            let files = names.iter().filter(|(_, entry)| matches!(entry, Entry::File(_)));
            files.map(|(name, _)| Path::new(directory).join(name))
        });
        let mut files: Vec<PathBuf> = all.collect();
        files.sort_unstable();
        files
    }

    /// Drops all names below directories that are none (any more).
    fn drop_unreachable(&mut self) {
        let is_directory = |path: &Path| is_root(path) || self.get(path) == Some(Entry::Directory);
        let lost: Vec<OsString> = self
            .directories
            .keys()
            .filter(|directory| !Path::new(directory).ancestors().all(is_directory))
            .cloned()
            .collect();
        for directory in lost {
            self.directories.remove(&directory);
        }
    }
}

impl NameChange {
    /// The name whose directory must be synced to make the change durable.
    fn name(&self) -> &Path {
        match self {
            NameChange::Add { path, .. } | NameChange::Remove { path } => path,
            NameChange::Rename { to, .. } => to,
        }
    }

    fn other_name(&self) -> Option<&Path> {
        match self {
            NameChange::Rename { from, .. } => Some(from),
            _ => None,
        }
    }

    pub(super) fn apply(&self, tree: &mut Tree) {
        match self {
            NameChange::Add { path, entry } => {
                tree.insert(path, *entry);
            }
            NameChange::Remove { path } => {
                tree.remove(path);
            }
            NameChange::Rename { from, to, entry } => {
                if tree.get(from) == Some(*entry) {
                    tree.remove(from);
                }
                tree.insert(to, *entry);
            }
        }
    }
}

/// Whether `path` is one of the names that always exist.
pub(super) fn is_root(path: &Path) -> bool {
    path.as_os_str().is_empty() || path == Path::new("/")
}

/// Makes the changes of one directory durable, with the earlier ones on which they stand.
pub(super) fn sync(durable: &mut Tree, pending: &mut Vec<NameChange>, directory: &Path) {
    let mut taken: Vec<usize> = Vec::new();
    for index in (0..pending.len()).rev() {
        let change = &pending[index];
        let own = split(change.name()).0 == directory.as_os_str();
        let needed = own
            || taken.iter().any(|later| {
                let later = &pending[*later];
                let names = [Some(later.name()), later.other_name()];
                [Some(change.name()), change.other_name()]
                    .iter()
                    .any(|name| name.is_some() && names.contains(name))
            });
        if needed {
            taken.push(index);
        }
    }
    for index in taken.iter().rev() {
        pending[*index].apply(durable);
    }
    let mut index = 0;
    pending.retain(|_| {
        index += 1;
        !taken.contains(&(index - 1))
    });
}

/// The tree that a power cut leaves: every unsynced change is kept or lost by chance.
pub(super) fn crash(durable: &Tree, pending: &[NameChange], random: &mut Random) -> Tree {
    let mut tree = durable.clone();
    for change in pending {
        if random.below(2) == 0 {
            change.apply(&mut tree);
        }
    }
    tree.drop_unreachable();
    tree
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_synced_rename_takes_the_creation_of_its_source_along() {
        let (mut durable, mut pending) = (Tree::default(), Vec::new());
        let (a, b) = (PathBuf::from("/a/x"), PathBuf::from("/b/x"));
        pending.push(NameChange::Add { path: "/a".into(), entry: Entry::Directory });
        pending.push(NameChange::Add { path: a.clone(), entry: Entry::File(1) });
        pending.push(NameChange::Rename { from: a.clone(), to: b.clone(), entry: Entry::File(1) });
        sync(&mut durable, &mut pending, Path::new("/b"));
        assert_eq!((durable.get(&b), durable.get(&a)), (Some(Entry::File(1)), None));
        assert_eq!(pending.len(), 1);
        // The directory of the kept name was never made durable, so the name is out of reach.
        let tree = crash(&durable, &[], &mut Random::from_seed(1));
        assert_eq!(tree.len(), 0);
    }
}
