//! A disk in memory that forgets: on a power cut, unsynced changes are lost, torn or kept by chance.
//!
//! Every file has a live image, which reads see and which survives the death of the process, and
//! a durable image, which survives a power cut. Between the two lies the list of unsynced
//! changes, in order. Names work the same way, per directory.
//!
//! Invariants
//! * `crash` depends on the disk's history and the given randomness alone;
//! * after `crash` or `survive_process_death` no file handle of before works, and no lock is held;
//! * a failed sync decides at once which changes stay, and a later sync does not bring the others
//!   back: the contract of `ropewalk_base::disk`.

mod faults;
mod image;
mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use ropewalk_base::disk::{Disk, File, Kind, Open, Space};
use ropewalk_base::random::Random;

use faults::{Faults, due};
use image::{Change, Image, PAGE_BYTES};
use names::{Entry, NameChange, Tree};

/// Error numbers of Linux that the virtual disk answers with.
const EIO: i32 = 5;
const EBADF: i32 = 9;
const ENOTDIR: i32 = 20;
const EISDIR: i32 = 21;
const ENOSPC: i32 = 28;
const ENOTEMPTY: i32 = 39;

/// Counts of the requests to a disk so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub reads: u64,
    pub writes: u64,
    pub bytes_written: u64,
    /// `sync_data` and `sync_directory` calls.
    pub syncs: u64,
    /// All calls that change something: writes, lengths, names, syncs.
    pub operations: u64,
}

/// A disk in memory; cloning gives another handle on the same disk.
#[derive(Clone)]
pub struct VirtualDisk {
    state: Arc<Mutex<State>>,
}

struct State {
    files: BTreeMap<u64, Node>,
    next_file: u64,
    next_handle: u64,
    live: Tree,
    durable: Tree,
    pending: Vec<NameChange>,
    /// Grows at every death; handles of an earlier life are refused.
    life: u64,
    /// Power cuts so far.
    memory: u64,
    capacity: u64,
    files_max: usize,
    used_pages: u64,
    faults: Faults,
    /// Pages that cannot be read: file number and page.
    spoiled: BTreeSet<(u64, u64)>,
    counts: Counts,
    random: Random,
}

#[derive(Default, Clone)]
struct Node {
    live: Image,
    durable: Image,
    unsynced: Vec<Change>,
    handles: u64,
    linked: bool,
    locked_by: Option<u64>,
}

fn system(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

fn halted() -> io::Error {
    io::Error::other("the virtual machine is halted")
}

impl VirtualDisk {
    /// An empty disk of unlimited size. `seed` decides what failed syncs and halted writes leave.
    pub fn new(seed: u64) -> VirtualDisk {
        let state = State {
            files: BTreeMap::new(),
            next_file: 1,
            next_handle: 1,
            live: Tree::default(),
            durable: Tree::default(),
            pending: Vec::new(),
            life: 1,
            memory: 0,
            capacity: u64::MAX,
            files_max: usize::MAX,
            used_pages: 0,
            faults: Faults::default(),
            spoiled: BTreeSet::new(),
            counts: Counts::default(),
            random: Random::from_seed(seed),
        };
        VirtualDisk { state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("a virtual disk is never left half-changed")
    }

    /// Cuts the power: synced changes stay, others are kept, lost or torn by chance. Pending faults are forgotten;
    /// the planted bug stays.
    pub fn crash(&self, random: &mut Random) {
        let mut state = self.state();
        let state = &mut *state;
        state.memory += 1;
        state.live = names::crash(&state.durable, &state.pending, random);
        state.durable = state.live.clone();
        state.pending.clear();
        for node in state.files.values_mut() {
            for change in std::mem::take(&mut node.unsynced) {
                node.durable.apply_by_chance(&change, random);
            }
            node.live = node.durable.clone();
        }
        state.end_of_life();
    }

    /// Ends the process as kill -9 does: all that was written stays, handles and locks do not.
    pub fn survive_process_death(&self) {
        self.state().end_of_life();
    }

    /// Room for so many bytes, counted in pages of 4096; beyond it writes answer ENOSPC.
    pub fn set_capacity(&self, bytes: u64) {
        self.state().capacity = bytes;
    }

    /// Places for so many files and no more; beyond it making one answers ENOSPC.
    pub fn set_files_max(&self, count: usize) {
        self.state().files_max = count;
    }

    /// A disk of its own with the same content at rest: as if this one had lost its process now.
    pub fn copy(&self) -> VirtualDisk {
        let state = self.state();
        let mut copy = State {
            files: state.files.clone(),
            live: state.live.clone(),
            durable: state.durable.clone(),
            pending: state.pending.clone(),
            faults: Faults::default(),
            spoiled: state.spoiled.clone(),
            random: state.random.clone(),
            ..*state
        };
        copy.end_of_life();
        VirtualDisk { state: Arc::new(Mutex::new(copy)) }
    }

    /// Gives a file other bytes at rest, or takes it away. Panics where there is no such file: the test is
    /// wrong.
    pub fn replace(&self, path: &Path, bytes: Option<&[u8]>) {
        let mut state = self.state();
        let Some(Entry::File(number)) = state.live.get(path) else {
            panic!("no file {} to replace", path.display())
        };
        let Some(bytes) = bytes else {
            state.live.remove(path);
            state.durable.remove(path);
            return state.collect();
        };
        let node = state.files.get_mut(&number).expect("a named file exists");
        let mut image = Image::default();
        image.apply(&Change::Write { offset: 0, bytes: bytes.into() });
        node.unsynced.clear();
        (node.live, node.durable) = (image.clone(), image);
    }

    /// The content of an earlier [`VirtualDisk::copy`] is put back. No process may use the disk.
    pub fn restore(&self, copy: &VirtualDisk) {
        let copy = copy.state();
        let mut state = self.state();
        (state.live, state.durable) = (copy.live.clone(), copy.live.clone());
        state.files = copy.files.clone();
        state.next_file = copy.next_file;
        state.pending.clear();
        state.end_of_life();
    }

    /// Another disk in this one's place: of the same size, and empty. No process may use it.
    pub fn renew(&self) {
        let mut state = self.state();
        (state.live, state.durable) = (Tree::default(), Tree::default());
        state.pending.clear();
        state.spoiled.clear();
        state.collect();
        state.end_of_life();
    }

    /// All files of the disk, in order.
    pub fn files(&self) -> Vec<PathBuf> {
        self.state().live.files()
    }

    /// The counts of requests to the disk so far.
    pub fn counts(&self) -> Counts {
        self.state().counts
    }

    /// All bytes of a file; `None` if it does not exist.
    pub fn bytes(&self, path: &Path) -> Option<Vec<u8>> {
        let state = self.state();
        let Entry::File(number) = state.live.get(path)? else { return None };
        let image = &state.files[&number].live;
        let mut bytes = vec![0; image.len() as usize];
        image.read(0, &mut bytes);
        Some(bytes)
    }
}

impl State {
    fn end_of_life(&mut self) {
        self.life += 1;
        let skip_sync = self.faults.skip_sync;
        self.faults = Faults { skip_sync, ..Faults::default() };
        for node in self.files.values_mut() {
            node.handles = 0;
            node.locked_by = None;
        }
        self.collect();
        self.used_pages =
            self.files.values().filter(|node| node.linked).map(|node| node.live.page_count()).sum();
    }

    /// Drops files that no name, no change and no handle can reach any more.
    fn collect(&mut self) {
        let mut reachable = BTreeSet::new();
        let mut linked = BTreeSet::new();
        for entry in self.live.entries() {
            if let Entry::File(number) = entry {
                linked.insert(number);
            }
        }
        let pending = self.pending.iter().filter_map(|change| match change {
            NameChange::Add { entry, .. } | NameChange::Rename { entry, .. } => Some(*entry),
            NameChange::Remove { .. } => None,
        });
        for entry in self.durable.entries().chain(pending) {
            if let Entry::File(number) = entry {
                reachable.insert(number);
            }
        }
        self.files.retain(|number, node| {
            node.linked = linked.contains(number);
            node.linked || node.handles > 0 || reachable.contains(number)
        });
    }

    /// Admits a changing call; an error if the machine has stopped. True: it stops here.
    fn begin(&mut self) -> io::Result<bool> {
        if self.faults.halted {
            return Err(halted());
        }
        self.counts.operations += 1;
        let stops = due(&mut self.faults.halt);
        self.faults.halted = stops;
        Ok(stops)
    }

    fn kind(&self, path: &Path) -> Option<Kind> {
        if names::is_root(path) {
            return Some(Kind::Directory);
        }
        self.live.get(path).map(Entry::kind)
    }

    fn require_parent(&self, path: &Path) -> io::Result<()> {
        match self.kind(path.parent().unwrap_or(Path::new(""))) {
            Some(Kind::Directory) => Ok(()),
            Some(_) => Err(system(ENOTDIR)),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn change_name(&mut self, change: NameChange) {
        change.apply(&mut self.live);
        self.pending.push(change);
    }

    /// Takes a file's link away; its room is free when no handle is left either.
    fn unlink(&mut self, number: u64) {
        let node = self.files.get_mut(&number).expect("a named file exists");
        node.linked = false;
        if node.handles == 0 {
            self.used_pages -= node.live.page_count();
        }
        if self.files.len() > 2 * self.live.len() + 64 {
            self.collect();
        }
    }

    /// Applies a change to pages that cannot be read. A page that is overwritten or cut off as a whole becomes
    /// readable. A write or hole that covers such a page in part fails with `EIO`.
    fn heal(&mut self, number: u64, change: &Change) -> io::Result<()> {
        let (from, to, writes) = match change {
            Change::Write { offset, bytes } => (*offset, offset + bytes.len() as u64, true),
            Change::Punch { offset, len } => (*offset, offset.saturating_add(*len), true),
            Change::SetLen(len) => (*len, u64::MAX, false),
            Change::Allocate { .. } => return Ok(()),
        };
        let pages = image::pages_of(from, to - from);
        let hit = self.spoiled.range((number, pages.start)..(number, pages.end));
        let hit: Vec<_> = hit.copied().collect();
        let whole = |page: u64| from <= page * PAGE_BYTES && (page + 1) * PAGE_BYTES <= to;
        if writes && hit.iter().any(|(_, page)| !whole(*page)) {
            return Err(system(EIO));
        }
        hit.into_iter().filter(|(_, page)| whole(*page)).for_each(|page| {
            self.spoiled.remove(&page);
        });
        Ok(())
    }

    /// Makes a change of a file's bytes, live now and durable at the next sync.
    fn change_file(&mut self, number: u64, change: Change) -> io::Result<()> {
        if !self.spoiled.is_empty() {
            self.heal(number, &change)?;
        }
        let node = self.files.get_mut(&number).expect("an open file exists");
        let before = node.live.page_count();
        let (offset, len) = match &change {
            Change::Write { offset, bytes } => (*offset, bytes.len() as u64),
            Change::Allocate { offset, len } => (*offset, *len),
            Change::SetLen(_) | Change::Punch { .. } => (0, 0),
        };
        let missing = node.live.missing(offset, len);
        let needed = self.used_pages.saturating_add(missing);
        if missing > 0 && needed.saturating_mul(PAGE_BYTES) > self.capacity {
            return Err(system(ENOSPC));
        }
        node.live.apply(&change);
        node.unsynced.push(change);
        self.used_pages = self.used_pages + node.live.page_count() - before;
        Ok(())
    }
}

impl Disk for VirtualDisk {
    fn open(&self, path: &Path, open: Open) -> io::Result<Arc<dyn File>> {
        let mut state = self.state();
        if state.faults.halted {
            return Err(halted());
        }
        let existing = state.live.get(path);
        let number = match (existing, open) {
            (Some(Entry::Directory), _) => return Err(system(EISDIR)),
            (Some(Entry::File(_)), Open::CreateNew) => {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            (Some(Entry::File(number)), _) => number,
            (None, Open::Read | Open::Write) => return Err(io::ErrorKind::NotFound.into()),
            (None, Open::Create | Open::CreateNew) => {
                state.require_parent(path)?;
                if state.files.len() >= state.files_max {
                    return Err(system(ENOSPC));
                }
                state.begin()?;
                let number = state.next_file;
                state.next_file += 1;
                state.files.insert(number, Node { linked: true, ..Node::default() });
                let entry = Entry::File(number);
                state.change_name(NameChange::Add { path: path.to_path_buf(), entry });
                number
            }
        };
        let handle = state.next_handle;
        state.next_handle += 1;
        state.files.get_mut(&number).expect("a named file exists").handles += 1;
        let (life, writable) = (state.life, open != Open::Read);
        drop(state);
        Ok(Arc::new(VirtualFile { disk: self.clone(), number, handle, life, writable }))
    }

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        let missing: Vec<PathBuf> = path
            .ancestors()
            .take_while(|ancestor| state.kind(ancestor) != Some(Kind::Directory))
            .map(Path::to_path_buf)
            .collect();
        for path in missing.into_iter().rev() {
            state.require_parent(&path)?;
            if state.kind(&path).is_some() {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            state.begin()?;
            state.change_name(NameChange::Add { path, entry: Entry::Directory });
        }
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        match state.live.get(path) {
            None => Err(io::ErrorKind::NotFound.into()),
            Some(Entry::Directory) => Err(system(EISDIR)),
            Some(Entry::File(number)) => {
                state.begin()?;
                state.change_name(NameChange::Remove { path: path.to_path_buf() });
                state.unlink(number);
                Ok(())
            }
        }
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        match state.live.get(path) {
            None => return Err(io::ErrorKind::NotFound.into()),
            Some(Entry::File(_)) => return Err(system(ENOTDIR)),
            Some(Entry::Directory) => (),
        }
        if state.live.inside(path).next().is_some() {
            return Err(system(ENOTEMPTY));
        }
        state.begin()?;
        state.change_name(NameChange::Remove { path: path.to_path_buf() });
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.require_parent(to)?;
        let entry = match state.live.get(from) {
            None => return Err(io::ErrorKind::NotFound.into()),
            Some(Entry::Directory) => return Err(system(EISDIR)),
            Some(entry) => entry,
        };
        let target = state.live.get(to);
        if target == Some(Entry::Directory) {
            return Err(system(EISDIR));
        }
        state.begin()?;
        if from == to {
            return Ok(());
        }
        let change = NameChange::Rename { from: from.to_path_buf(), to: to.to_path_buf(), entry };
        state.change_name(change);
        if let Some(Entry::File(replaced)) = target {
            state.unlink(replaced);
        }
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<(std::ffi::OsString, Kind)>> {
        let state = self.state();
        match state.kind(path) {
            _ if state.faults.halted => return Err(halted()),
            None => return Err(io::ErrorKind::NotFound.into()),
            Some(Kind::Directory) => (),
            Some(_) => return Err(system(ENOTDIR)),
        }
        let names = state.live.inside(path);
        Ok(names.map(|(name, entry)| (name.to_os_string(), entry.kind())).collect())
    }

    fn kind(&self, path: &Path) -> io::Result<Option<Kind>> {
        let state = self.state();
        if state.faults.halted { Err(halted()) } else { Ok(state.kind(path)) }
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        if state.kind(path) != Some(Kind::Directory) {
            return Err(io::ErrorKind::NotFound.into());
        }
        if state.begin()? {
            return Err(halted());
        }
        state.counts.syncs += 1;
        if due(&mut state.faults.sync) {
            return Err(system(EIO));
        }
        if !state.faults.skip_sync {
            let state = &mut *state;
            names::sync(&mut state.durable, &mut state.pending, path);
        }
        Ok(())
    }

    fn space(&self, _path: &Path) -> io::Result<Space> {
        let state = self.state();
        let used = state.used_pages * PAGE_BYTES;
        let free = state.capacity.saturating_sub(used);
        Ok(Space { total: state.capacity, free, available: free, identity: 0 })
    }

    fn memory_of(&self, path: &Path) -> Option<u128> {
        let state = self.state();
        let file = match state.live.get(path) {
            Some(Entry::File(number)) => number,
            _ => return None,
        };
        Some(u128::from(state.memory + 1) << 64 | u128::from(file))
    }
}

struct VirtualFile {
    disk: VirtualDisk,
    number: u64,
    handle: u64,
    life: u64,
    writable: bool,
}

impl VirtualFile {
    fn state(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.disk.state();
        if state.life != self.life || state.faults.halted {
            return Err(halted());
        }
        Ok(state)
    }

    fn change(&self, change: Change) -> io::Result<()> {
        if !self.writable {
            return Err(system(EBADF));
        }
        let mut state = self.state()?;
        let stops = state.begin()?;
        let mut fails = false;
        if let Change::Write { bytes, .. } = &change {
            state.counts.writes += 1;
            state.counts.bytes_written += bytes.len() as u64;
            fails = due(&mut state.faults.write);
        }
        if !stops && !fails {
            return state.change_file(self.number, change);
        }
        // Cut short: a part of a write is made, anything else is not.
        if let Change::Write { offset, bytes } = change {
            let part = state.random.below(bytes.len() as u64 + 1) as usize;
            let bytes = bytes[..part].into();
            state.change_file(self.number, Change::Write { offset, bytes })?;
        }
        Err(if stops { halted() } else { system(EIO) })
    }
}

impl File for VirtualFile {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let mut state = self.state()?;
        state.counts.reads += 1;
        if due(&mut state.faults.read) {
            return Err(system(EIO));
        }
        let pages = image::pages_of(offset, bytes.len() as u64);
        let end = state.files[&self.number].live.len().div_ceil(PAGE_BYTES).min(pages.end);
        let spoiled = (self.number, pages.start)..(self.number, end.max(pages.start));
        if state.spoiled.range(spoiled).next().is_some() {
            return Err(system(EIO));
        }
        Ok(state.files[&self.number].live.read(offset, bytes))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.change(Change::Write { offset, bytes: bytes.into() })
    }

    /// No call to the kernel: neither counted nor cut short.
    fn note(&self, offset: u64, words: &[u64]) -> io::Result<()> {
        let mut state = self.state()?;
        let page = (self.number, offset / PAGE_BYTES);
        assert!(!state.spoiled.contains(&page), "a store into a page that cannot be read kills");
        for (word, at) in words.iter().zip((offset..).step_by(8)) {
            let bytes = word.to_le_bytes().as_slice().into();
            state.change_file(self.number, Change::Write { offset: at, bytes })?;
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state()?;
        let stops = state.begin()?;
        state.counts.syncs += 1;
        let fails = due(&mut state.faults.sync);
        let state = &mut *state;
        if stops {
            // Nothing is decided yet: the death of the process does not take writes out of the page
            // cache, and a power cut draws for each of them anyway.
            return Err(halted());
        }
        let node = state.files.get_mut(&self.number).expect("an open file exists");
        if fails {
            // The kernel takes changes that the failed sync did not reach for clean. No later sync writes them.
            for change in std::mem::take(&mut node.unsynced) {
                node.durable.apply_by_chance(&change, &mut state.random);
            }
            return Err(system(EIO));
        }
        if !state.faults.skip_sync {
            for change in std::mem::take(&mut node.unsynced) {
                node.durable.apply(&change);
            }
        }
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.state()?.files[&self.number].live.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(Change::SetLen(len))
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.change(Change::Allocate { offset, len })
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.change(Change::Punch { offset, len })
    }

    fn lock(&self) -> io::Result<()> {
        let mut state = self.state()?;
        let node = state.files.get_mut(&self.number).expect("an open file exists");
        match node.locked_by {
            Some(holder) if holder != self.handle => Err(io::ErrorKind::WouldBlock.into()),
            _ => {
                node.locked_by = Some(self.handle);
                Ok(())
            }
        }
    }
}

impl Drop for VirtualFile {
    fn drop(&mut self) {
        let mut state = self.disk.state();
        if state.life != self.life {
            return;
        }
        let state = &mut *state;
        let node = state.files.get_mut(&self.number).expect("an open file exists");
        node.handles -= 1;
        if node.locked_by == Some(self.handle) {
            node.locked_by = None;
        }
        if node.handles == 0 && !node.linked {
            state.used_pages -= node.live.page_count();
        }
    }
}

#[cfg(test)]
mod tests;
