//! The names of a virtual disk: a live tree, a durable tree, and the changes between them.
//!
//! Invariants: `/` and the empty path always exist; a kept name whose directories were lost is
//! lost with them; a rename is kept wholly or not at all.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ropewalk_base::random::Random;

/// The object behind a name: a directory, or a file by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    Directory,
    File(u64),
}

/// One change of the tree since the directories in question were last synced.
#[derive(Debug, Clone)]
pub(super) enum NameChange {
    Add { path: PathBuf, entry: Entry },
    Remove { path: PathBuf },
    Rename { from: PathBuf, to: PathBuf, entry: Entry },
}

/// A tree of names; paths are absolute or relative, always spelled the same way by the caller.
pub(super) type Tree = BTreeMap<PathBuf, Entry>;

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
                tree.insert(path.clone(), *entry);
            }
            NameChange::Remove { path } => {
                tree.remove(path);
            }
            NameChange::Rename { from, to, entry } => {
                if tree.get(from) == Some(entry) {
                    tree.remove(from);
                }
                tree.insert(to.clone(), *entry);
            }
        }
    }
}

/// Whether `path` is one of the names that always exist.
pub(super) fn is_root(path: &Path) -> bool {
    path.as_os_str().is_empty() || path == Path::new("/")
}

/// The names directly inside a directory.
pub(super) fn inside<'a>(
    tree: &'a Tree,
    directory: &'a Path,
) -> impl Iterator<Item = (&'a Path, Entry)> {
    tree.range(directory.to_path_buf()..)
        .take_while(move |(path, _)| path.starts_with(directory))
        .filter(move |(path, _)| path.parent() == Some(directory))
        .map(|(path, entry)| (path.as_path(), *entry))
}

/// Makes the changes of one directory durable, with the earlier ones on which they stand.
pub(super) fn sync(durable: &mut Tree, pending: &mut Vec<NameChange>, directory: &Path) {
    let mut taken: Vec<usize> = Vec::new();
    for index in (0..pending.len()).rev() {
        let change = &pending[index];
        let own = change.name().parent() == Some(directory);
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
    let all = tree.clone();
    tree.retain(|path, _| {
        path.ancestors()
            .skip(1)
            .all(|parent| is_root(parent) || all.get(parent) == Some(&Entry::Directory))
    });
    tree
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_synced_rename_takes_the_creation_of_its_source_along() {
        let (mut durable, mut pending) = (Tree::new(), Vec::new());
        let (a, b) = (PathBuf::from("/a/x"), PathBuf::from("/b/x"));
        pending.push(NameChange::Add { path: "/a".into(), entry: Entry::Directory });
        pending.push(NameChange::Add { path: a.clone(), entry: Entry::File(1) });
        pending.push(NameChange::Rename { from: a.clone(), to: b.clone(), entry: Entry::File(1) });
        sync(&mut durable, &mut pending, Path::new("/b"));
        assert_eq!(durable.get(&b), Some(&Entry::File(1)));
        assert!(!durable.contains_key(&a));
        assert_eq!(pending.len(), 1);
        // The directory of the kept name was never made durable, so the name is out of reach.
        let tree = crash(&durable, &[], &mut Random::from_seed(1));
        assert!(tree.is_empty());
    }
}
