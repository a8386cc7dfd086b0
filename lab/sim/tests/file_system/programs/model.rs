//! The contents that a file system must hold: a reference that knows which data was synced.

use std::collections::BTreeMap;

use ropewalk_base::random::Random;

/// A name: a directory's place in [`Model::directories`], and the name in it.
pub type Name = (usize, Vec<u8>);

/// One file, as it is and as it may be found after a power loss.
#[derive(Debug, Clone, Default)]
pub struct FileModel {
    pub inode: u64,
    pub bytes: Vec<u8>,
    /// Contents since the last sync, the one that was synced first. Never empty.
    history: Vec<Vec<u8>>,
    /// The ends of writes since the last sync. Of these a later one may survive an earlier one, as on any file
    /// system: then its end is that of the file.
    ends: Vec<usize>,
    pub mode: u16,
    /// Clients that have not synced since a server died: one sync of each may say that it does not
    /// know.
    pub doubtful: Vec<usize>,
    /// Blocks that were not synced before a power loss may be neither old nor new, behind the end of the file too:
    /// operations that meet them fail.
    pub fragile: bool,
    /// Found to be of no use after a power loss. The next one may bring its names back.
    useless: bool,
    pub links: u32,
}

/// All files and names.
#[derive(Debug, Clone, Default)]
pub struct Model {
    pub names: BTreeMap<Name, usize>,
    /// Names since the last sync of anything, which is first. Never empty.
    history: Vec<BTreeMap<Name, usize>>,
    pub files: Vec<FileModel>,
}

impl Model {
    pub fn new() -> Model {
        Model { history: vec![BTreeMap::new()], ..Model::default() }
    }

    pub fn add_file(&mut self, name: Name, inode: u64) -> usize {
        let file = FileModel {
            inode,
            mode: 0o644,
            history: vec![Vec::new()],
            links: 1,
            ..FileModel::default()
        };
        self.files.push(file);
        let id = self.files.len() - 1;
        self.names.insert(name, id);
        self.renamed();
        id
    }

    /// Names changed.
    pub fn renamed(&mut self) {
        self.history.push(self.names.clone());
    }

    /// A file that has a name, at random.
    pub fn any_named(&self, random: &mut Random) -> Option<(Name, usize)> {
        let at = random.below(self.names.len().max(1) as u64) as usize;
        self.names.iter().nth(at).map(|(name, id)| (name.clone(), *id))
    }

    pub fn change(&mut self, id: usize, change: impl FnOnce(&mut Vec<u8>)) {
        let file = &mut self.files[id];
        change(&mut file.bytes);
        file.history.push(file.bytes.clone());
    }

    /// Bytes are written.
    pub fn write(&mut self, id: usize, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        self.change(id, |content| {
            content.resize(content.len().max(end), 0);
            content[offset..end].copy_from_slice(bytes);
        });
        self.files[id].ends.push(end);
    }

    /// Bytes become zeros; with `keep` the size stays.
    pub fn punch(&mut self, id: usize, offset: usize, len: usize, keep: bool) {
        let end = offset + len;
        self.change(id, |content| {
            if !keep {
                content.resize(content.len().max(end), 0);
            }
            let last = end.min(content.len());
            content[offset.min(last)..last].fill(0);
        });
        if !keep {
            self.files[id].ends.push(end);
        }
    }

    /// A sync of a file succeeded: its content is durable, and so is everything about names.
    pub fn synced(&mut self, id: usize, client: usize) {
        let file = &mut self.files[id];
        file.history = vec![file.bytes.clone()];
        file.ends.clear();
        file.doubtful.retain(|other| *other != client);
        self.history = vec![self.names.clone()];
    }

    /// The power of a server failed.
    pub fn server_died(&mut self, clients: usize) {
        for file in &mut self.files {
            file.doubtful = (0..clients).collect();
        }
    }

    /// Whether the names that were found (with their inodes) are those of a moment since the last sync; from then on
    /// they are the names. `all`: the power of everything failed, so that the found names are durable.
    pub fn accept_names(&mut self, found: &BTreeMap<Name, u64>, all: bool) -> Result<(), String> {
        let as_inodes = |names: &BTreeMap<Name, usize>| -> BTreeMap<Name, u64> {
            names.iter().map(|(name, id)| (name.clone(), self.files[*id].inode)).collect()
        };
        let matching = self.history.iter().rev().find(|names| as_inodes(names) == *found).cloned();
        let Some(names) = matching else {
            return Err(format!(
                "names {found:?} were never so; last synced {:?}",
                self.history[0]
            ));
        };
        self.names = names;
        if all {
            self.history.clear();
        }
        self.history.push(self.names.clone());
        for (id, file) in self.files.iter_mut().enumerate() {
            file.links = self.names.values().filter(|other| **other == id).count() as u32;
        }
        Ok(())
    }

    /// Whether content that was found after a power loss may be; from then on it is the content.
    /// False if the file is of no use any more: it cannot be read, or bytes of it that were not
    /// synced are hidden, since the metadata server lost its end or its stripes; they may come to light
    /// when it is written there again.
    pub fn accept_content(
        &mut self,
        id: usize,
        found: Option<Vec<u8>>,
        all: bool,
    ) -> Result<bool, String> {
        let file = &mut self.files[id];
        let Some(found) = found else {
            if file.history.len() == 1 {
                return Err(format!("inode {}: synced, and not readable", file.inode));
            }
            file.useless = true;
            return Ok(false);
        };
        let shortest = file.history.iter().map(Vec::len).min().unwrap_or(0);
        let is_end = found.len() >= shortest && file.ends.contains(&found.len());
        if !is_end && !file.history.iter().any(|state| state.len() == found.len()) {
            let sizes: Vec<usize> = file.history.iter().map(Vec::len).collect();
            return Err(format!("inode {}: size {} among {sizes:?}", file.inode, found.len()));
        }
        let mut hidden = file.history.iter().any(|state| state.len() > found.len());
        for (at, byte) in found.iter().enumerate() {
            let differs = |state: &Vec<u8>| state.get(at).is_some_and(|other| *other != 0);
            hidden |= *byte == 0 && file.history.iter().any(differs);
            let mut states = file.history.iter().map(|state| state.get(at).copied());
            let first = states.next().flatten();
            if first == Some(*byte) {
                continue;
            }
            let (mut known, mut changed) = (false, first.is_none());
            for state in states {
                known |= state.unwrap_or(0) == *byte;
                changed |= state != first;
            }
            if !(known || changed && *byte == 0) {
                return Err(format!(
                    "inode {}: byte {at} is {byte}, which was never written there (of {}; {} \
                     states)",
                    file.inode,
                    found.len(),
                    file.history.len()
                ));
            }
        }
        file.fragile |= file.history.len() > 1;
        file.useless |= hidden;
        file.bytes = found;
        if all {
            file.history.clear();
            file.ends.clear();
            file.doubtful.clear();
        }
        file.history.push(file.bytes.clone());
        Ok(!file.useless)
    }
}

impl std::fmt::Display for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for ((directory, name), id) in &self.names {
            let file = &self.files[*id];
            let name = String::from_utf8_lossy(name);
            let (inode, bytes) = (file.inode, file.bytes.len());
            write!(f, "{directory}/{name}: file {id}, inode {inode}, {bytes} bytes; ")?;
        }
        Ok(())
    }
}
