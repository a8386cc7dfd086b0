//! The contents that files must have after all acknowledged operations, and may have after a loss.

use std::collections::{BTreeMap, BTreeSet};

use super::operation::{Operation, Random, bytes};

/// Names of one moment: each leads to a file.
type Names = BTreeMap<String, usize>;

/// The files that were found: for each path the inode's number and its content. The content is none if reading
/// it is refused (`EIO`), since a part is lost.
pub type Found = BTreeMap<String, (u64, Option<Vec<u8>>)>;

/// The processes that were lost, which decide what may be missing.
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

/// The results of syncs after a loss, by path.
#[derive(Debug, Default)]
pub struct Syncs {
    pub well: Vec<String>,
    pub failed: Vec<String>,
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
    /// A part that was never synced is lost, and reading is refused since.
    refused: bool,
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

    /// A path of each file that is there now, but for the files that an operation touched.
    pub fn paths(&self, but: Option<&Operation>) -> Vec<String> {
        let but = but.map(Operation::to_string).unwrap_or_default();
        let touched = but.split(' ').filter_map(|word| self.names().get(word));
        let mut seen: BTreeSet<usize> = touched.copied().collect();
        let first = self.names().iter().filter(|(_, file)| seen.insert(**file));
        first.map(|(path, _)| path.clone()).collect()
    }

    /// The number of files that cannot be read any more, since unsynced data is lost.
    pub fn refused(&self) -> usize {
        self.names().values().filter(|file| self.files[**file].refused).count()
    }

    /// The number of operations.
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

    /// The same where the servers lost power and the client lives: the operation may have come after the loss, and have met
    /// any content since the last sync, of which an append has its place.
    pub fn maybe_after_loss(&mut self, operation: &Operation) {
        if let Some((path, change, by_write)) = change_of_content(operation) {
            let file = self.names()[path];
            let versions = &mut self.files[file].versions;
            let met = versions.clone();
            for version in met {
                let mut bytes = version.bytes.clone();
                change(&mut bytes);
                versions.push(Version { by_write: false, ..version });
                versions.push(Version { bytes, by_write });
            }
        } else {
            self.maybe(operation);
        }
    }

    fn change(&mut self, operation: &Operation) {
        if let Operation::Create(_) = operation {
            self.files.push(File::of(Vec::new()));
        }
        if let Some((path, change, by_write)) = change_of_content(operation) {
            let file = self.names()[path];
            let mut bytes = self.files[file].last().to_vec();
            change(&mut bytes);
            self.files[file].versions.push(Version { bytes, by_write });
        }
        let newest = self.files.len().saturating_sub(1);
        let names = after(self.names(), operation, newest, self.names());
        if names != *self.names() {
            self.moments.push(names);
        }
    }

    /// Compares what was found with what has to be; from then on that is the truth. `under_way`: the
    /// operation of which nobody knows whether it took effect.
    pub fn settle(
        &mut self,
        found: &Found,
        loss: Loss,
        under_way: Option<&Operation>,
        syncs: &Syncs,
    ) -> Result<(), String> {
        let back = match loss {
            Loss::Nothing => 0,
            Loss::Client => usize::from(under_way.is_some()),
            Loss::Power => usize::MAX,
        };
        let mut refused = None;
        for moment in self.moments(found, back, under_way) {
            match self.judge(&moment, found, loss, syncs) {
                Ok(()) => {
                    self.accept(moment, found);
                    return Ok(());
                }
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        Err(refused.unwrap_or_else(|| {
            let names: Vec<_> = found.iter().map(|(path, (inode, _))| (path, inode)).collect();
            format!("found {names:?}, expected {:?}", self.names())
        }))
    }

    /// Whether what was found is right if its names are those of this moment.
    fn judge(
        &self,
        moment: &Names,
        found: &Found,
        loss: Loss,
        syncs: &Syncs,
    ) -> Result<(), String> {
        let moved = |path: &&String| moment.get(*path) != self.names().get(*path);
        // A file of which a loss was told once, and which is well from then on: by a name that the
        // loss gave back to it.
        let told: BTreeSet<_> =
            syncs.failed.iter().filter(moved).map(|path| moment.get(path)).collect();
        for path in &syncs.well {
            // Another name of that moment may lead to another file.
            if moment.contains_key(path) && !moved(&path) && !told.contains(&moment.get(path)) {
                let file = &self.files[moment[path]];
                file.judge(found[path].1.as_deref(), Loss::Nothing)
                    .map_err(|error| format!("{path}: synced well, and yet: {error}"))?;
            }
        }
        let mut numbers: BTreeMap<usize, u64> = BTreeMap::new();
        for (path, file) in moment {
            let (inode, content) = &found[path];
            let first = *numbers.entry(*file).or_insert(*inode);
            if first != *inode {
                return Err(format!("{path}: a link leads to another file"));
            }
            self.files[*file]
                .judge(content.as_deref(), loss)
                .map_err(|error| format!("{path}: {error}"))?;
        }
        Ok(())
    }

    /// From now on this is the truth.
    fn accept(&mut self, moment: Names, found: &Found) {
        for (path, file) in &moment {
            let content = found[path].1.clone();
            self.files[*file].refused = content.is_none();
            if let Some(content) = content {
                self.files[*file] = File::of(content);
            }
        }
        self.moments = vec![moment];
    }

    /// The moments, at most `back` changes ago, whose names are those that were found, the latest ones first: there may be
    /// several, where another file has a name since. An operation under way may have come after a loss.
    fn moments(&self, found: &Found, back: usize, under_way: Option<&Operation>) -> Vec<Names> {
        let same = |names: &Names| names.keys().eq(found.keys());
        let links = |names: &Names| {
            let pairs = || names.iter().map(|(path, file)| (*file, found[path].0));
            pairs().all(|(file, inode)| pairs().all(|(f, i)| (f == file) == (i == inode)))
        };
        let moments = || self.moments.iter().rev().take(back.saturating_add(1)).cloned();
        let newest = self.files.len().saturating_sub(1);
        let later =
            moments().filter_map(|names| Some(after(&names, under_way?, newest, self.names())));
        moments().chain(later).filter(same).filter(links).collect()
    }
}

/// The file whose content an operation changes, how it does that, and whether that is a write.
#[expect(clippy::type_complexity, reason = "three things of one operation")]
fn change_of_content(
    operation: &Operation,
) -> Option<(&str, Box<dyn Fn(&mut Vec<u8>) + '_>, bool)> {
    match operation {
        Operation::Write(path, offset, len, number) => {
            let change = move |content: &mut Vec<u8>| {
                let end = *offset as usize + len;
                content.resize(content.len().max(end), 0);
                content[*offset as usize..end].copy_from_slice(&bytes(*number, *len));
            };
            Some((path, Box::new(change), true))
        }
        Operation::Append(path, len, number) => {
            let change = move |content: &mut Vec<u8>| content.extend(bytes(*number, *len));
            Some((path, Box::new(change), true))
        }
        Operation::Truncate(path, size) => {
            Some((path, Box::new(|content: &mut Vec<u8>| content.resize(*size as usize, 0)), false))
        }
        _ => None,
    }
}

/// Names after an operation; `newest`: the file that was made last; `known`: names as the client knows
/// them, for whom a link is one of a file, and not of a name that a loss may have taken.
fn after(names: &Names, operation: &Operation, newest: usize, known: &Names) -> Names {
    let mut names = names.clone();
    match operation {
        Operation::Create(path) => {
            names.insert(path.clone(), newest);
        }
        // Two names of one file: nothing changes.
        Operation::Rename(from, to) if names.get(from) != names.get(to) => {
            if let Some(file) = names.remove(from) {
                names.insert(to.clone(), file);
            }
        }
        Operation::Link(from, to) => {
            if let Some(file) = known.get(from).copied() {
                names.insert(to.clone(), file);
            }
        }
        Operation::Unlink(path) => {
            names.remove(path);
        }
        _ => {}
    }
    names
}

impl File {
    fn of(bytes: Vec<u8>) -> File {
        File { versions: vec![Version { bytes, by_write: false }], refused: false }
    }

    fn judge(&self, found: Option<&[u8]>, loss: Loss) -> Result<(), String> {
        match found {
            Some(found) => self.accept(found, loss),
            None if self.refused || (loss == Loss::Power && self.versions.len() > 1) => Ok(()),
            None => Err("reading is refused, although all of it was synced".to_string()),
        }
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
