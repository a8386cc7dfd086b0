//! What files have to be after everything that was acknowledged, and what they may be after a loss.

use std::collections::BTreeMap;

use super::operation::{Operation, Random, bytes};

/// Names of one moment: each leads to a file.
type Names = BTreeMap<String, usize>;

/// What was found: for each path the inode's number and its content.
pub type Found = BTreeMap<String, (u64, Vec<u8>)>;

/// Who was lost, and so what may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Nothing that was acknowledged, whatever servers died.
    Nothing,
    /// The client: content that was not synced. An operation may have been under way.
    Client,
    /// Power, and the client with it: all that came after the last sync. Names are those of one
    /// moment since.
    Power,
}

#[derive(Debug, Clone)]
struct Version {
    bytes: Vec<u8>,
    /// A write led here: the kernel may have split it, and each part is done for itself.
    by_write: bool,
}

#[derive(Debug, Clone)]
struct File {
    /// Contents since the last sync, the synced one first, the present one last.
    versions: Vec<Version>,
}

/// The files of one directory as they should be.
#[derive(Debug, Clone)]
pub struct Model {
    directory: String,
    files: Vec<File>,
    /// Names since the last sync of anything; the present ones last.
    moments: Vec<Names>,
    /// Counts operations; contents follow from it.
    operations: u64,
    next_name: u32,
}

/// Names within the directory at a time.
const NAMES_MAX: usize = 8;

impl Model {
    /// An empty directory.
    pub fn new(directory: &str, first_number: u64) -> Model {
        Model {
            directory: directory.to_string(),
            files: Vec::new(),
            moments: vec![Names::new()],
            operations: first_number,
            next_name: 0,
        }
    }

    fn names(&self) -> &Names {
        self.moments.last().expect("there is always a present")
    }

    /// How many operations there were.
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// An operation that is possible now.
    pub fn choose(&mut self, random: &mut Random) -> Operation {
        self.operations += 1;
        let names = self.names();
        let fresh = || format!("{}/f{}", self.directory, self.next_name);
        if names.len() < 2 {
            self.next_name += 1;
            return Operation::Create(format!("{}/f{}", self.directory, self.next_name - 1));
        }
        let pick = |random: &mut Random| {
            let index = random.below(names.len() as u64) as usize;
            names.keys().nth(index).expect("the index is below the number of names").clone()
        };
        let path = pick(random);
        let number = self.operations;
        // Some stay within the inode, some have stripes, some cross from one to the other.
        let small = |random: &mut Random| 1 + random.below(6000);
        let large = |random: &mut Random| 1 + random.below(120_000);
        let operation = match random.below(20) {
            0..=2 if names.len() < NAMES_MAX => Operation::Create(fresh()),
            0..=6 => {
                let len = if random.below(2) == 0 { small(random) } else { large(random) };
                Operation::Write(path, random.below(100_000), len as usize, number)
            }
            7..=9 => Operation::Append(path, small(random) as usize, number),
            10..=11 => Operation::Truncate(path, random.below(120_000)),
            12..=13 => {
                let to = if random.below(2) == 0 { fresh() } else { pick(random) };
                if to == path { Operation::Sync(path) } else { Operation::Rename(path, to) }
            }
            14 if names.len() < NAMES_MAX => Operation::Link(path, fresh()),
            14..=15 => Operation::Unlink(path),
            _ => Operation::Sync(path),
        };
        self.next_name += u32::from(operation.to_string().ends_with(&fresh()));
        operation
    }

    /// An operation that was acknowledged.
    pub fn done(&mut self, operation: &Operation) {
        if let Operation::Sync(path) = operation {
            let file = self.names()[path];
            let versions = &mut self.files[file].versions;
            versions.drain(..versions.len() - 1);
            self.moments.drain(..self.moments.len() - 1);
            return;
        }
        self.change(operation);
    }

    /// An operation of which nobody knows whether it took effect.
    pub fn maybe(&mut self, operation: &Operation) {
        if !matches!(operation, Operation::Sync(_)) {
            self.change(operation);
        }
    }

    fn change(&mut self, operation: &Operation) {
        let mut names = self.names().clone();
        let before = names.clone();
        match operation {
            Operation::Create(path) => {
                self.files.push(File::of(Vec::new()));
                names.insert(path.clone(), self.files.len() - 1);
            }
            Operation::Write(path, offset, len, number) => {
                self.content(path, true, |content| {
                    let end = *offset as usize + len;
                    content.resize(content.len().max(end), 0);
                    content[*offset as usize..end].copy_from_slice(&bytes(*number, *len));
                });
            }
            Operation::Append(path, len, number) => {
                self.content(path, true, |content| content.extend(bytes(*number, *len)));
            }
            Operation::Truncate(path, size) => {
                self.content(path, false, |content| content.resize(*size as usize, 0));
            }
            Operation::Rename(from, to) => {
                // Two names of one file: nothing changes.
                if names.get(from) != names.get(to) {
                    let file = names.remove(from).expect("it was chosen from the names");
                    names.insert(to.clone(), file);
                }
            }
            Operation::Link(from, to) => {
                names.insert(to.clone(), names[from]);
            }
            Operation::Unlink(path) => {
                names.remove(path);
            }
            Operation::Directory(_) | Operation::Sync(_) | Operation::Close => {}
        }
        if names != before {
            self.moments.push(names);
        }
    }

    fn content(&mut self, path: &str, by_write: bool, change: impl FnOnce(&mut Vec<u8>)) {
        let file = self.names()[path];
        let mut bytes = self.files[file].last().to_vec();
        change(&mut bytes);
        self.files[file].versions.push(Version { bytes, by_write });
    }

    /// Compares what was found with what has to be; from then on that is the truth. `under_way`: the
    /// last operation may not have taken effect.
    pub fn settle(&mut self, found: &Found, loss: Loss, under_way: bool) -> Result<(), String> {
        let back = match loss {
            Loss::Nothing => 0,
            Loss::Client => usize::from(under_way),
            Loss::Power => usize::MAX,
        };
        let moment = self.moment(found, back)?;
        let mut numbers: BTreeMap<usize, u64> = BTreeMap::new();
        for (path, file) in &moment {
            let (inode, content) = &found[path];
            let first = *numbers.entry(*file).or_insert(*inode);
            if first != *inode {
                return Err(format!("{path}: a link leads to another file"));
            }
            self.files[*file].accept(content, loss).map_err(|error| format!("{path}: {error}"))?;
        }
        for (path, file) in &moment {
            self.files[*file] = File::of(found[path].1.clone());
        }
        self.moments = vec![moment];
        Ok(())
    }

    /// The moment, at most `back` changes ago, whose names are those that were found.
    fn moment(&self, found: &Found, back: usize) -> Result<Names, String> {
        let same = |names: &&Names| names.keys().eq(found.keys());
        let links = |names: &&Names| {
            let pairs = || names.iter().map(|(path, file)| (*file, found[path].0));
            pairs().all(|(file, inode)| pairs().all(|(f, i)| (f == file) == (i == inode)))
        };
        let mut moments = self.moments.iter().rev().take(back.saturating_add(1)).filter(same);
        moments.find(links).cloned().ok_or_else(|| {
            let names: Vec<_> = found.iter().map(|(path, (inode, _))| (path, inode)).collect();
            format!("found {names:?}, expected {:?}", self.names())
        })
    }
}

impl File {
    fn of(bytes: Vec<u8>) -> File {
        File { versions: vec![Version { bytes, by_write: false }] }
    }

    fn last(&self) -> &[u8] {
        &self.versions.last().expect("there is always a present").bytes
    }

    fn accept(&self, found: &[u8], loss: Loss) -> Result<(), String> {
        let last = self.last();
        if loss == Loss::Nothing {
            if found == last {
                return Ok(());
            }
            let at = found.iter().zip(last).position(|(a, b)| a != b);
            return Err(format!(
                "{} bytes instead of {}, different from {at:?}",
                found.len(),
                last.len()
            ));
        }
        if !self.had_size(found.len()) {
            let sizes: Vec<usize> = self.versions.iter().map(|one| one.bytes.len()).collect();
            return Err(format!("{} bytes, which it never had: {sizes:?}", found.len()));
        }
        for (at, byte) in found.iter().enumerate() {
            let had = || self.versions.iter().map(|one| one.bytes.get(at).copied().unwrap_or(0));
            let first = had().next().unwrap_or(0);
            let changed = had().any(|one| one != first);
            let right = had().any(|one| one == *byte) || changed && *byte == 0;
            if !right {
                return Err(format!("byte {at} is {byte}, which it never was"));
            }
        }
        Ok(())
    }

    fn had_size(&self, size: usize) -> bool {
        let mut before = None;
        self.versions.iter().any(|version| {
            let len = version.bytes.len();
            let between = before
                .replace(len)
                .is_some_and(|before| version.by_write && (before..=len).contains(&size));
            between || len == size
        })
    }
}
