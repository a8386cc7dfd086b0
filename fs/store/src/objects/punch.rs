//! Throwing bytes away: ranges that read as zeros afterwards, and room that is free again.

use std::collections::BTreeMap;
use std::io;

use ropewalk_base::disk::{File, Open};

use super::block::{BLOCK_BYTES, UNKNOWN, blocks_of, has_bytes};
use super::cache::{FileState, open_object};
use super::error::about;
use super::layout::Layout;
use super::object::Object;
use super::record::Record;
use super::table::{PAIR_BYTES, Place, Tails};
use super::write::{Logged, Scratch, part_of};
use super::{GroupTag, Inner, ObjectError, ObjectId, ObjectStore, State, WriteEpoch, Written};

/// The treatment of damage when bytes are thrown away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// Bytes beside the range that cannot be read are an error, and nothing changes.
    Careful,
    /// They are lost from then on, and the range goes.
    Cut,
    /// As `Cut`, of an object that was made anew: the log may still have its earlier records.
    Remade,
}

/// A range of an object that goes.
#[derive(Clone, Copy)]
struct Gone {
    object: ObjectId,
    offset: u64,
    length: u64,
    manner: Manner,
}

impl ObjectStore {
    /// Makes the bytes from `from` to the object's end read as zeros and frees their room. Damage does not
    /// stop it: of a block that is kept in part and cannot be read, that part is an error from then on, until
    /// the block is overwritten; so are all kept blocks of an object whose head is damaged or an older one.
    pub fn truncate(
        &self,
        object: ObjectId,
        from: u64,
        by: WriteEpoch,
    ) -> Result<Written, ObjectError> {
        self.cut(object, from, by).map(|(written, _)| written)
    }

    /// As [`ObjectStore::truncate`]; true with it: something that is kept is lost.
    fn cut(
        &self,
        object: ObjectId,
        from: u64,
        by: WriteEpoch,
    ) -> Result<(Written, bool), ObjectError> {
        let length = self.inner.layout.object_bytes().saturating_sub(from);
        let range = Gone { object, offset: from, length, manner: Manner::Cut };
        let error = match self.throw_away(range, by) {
            Err(error) => error,
            done => return done,
        };
        let cannot_load = match &error {
            ObjectError::Header { .. } | ObjectError::Older { .. } => true,
            // Nothing of what is gone is wanted.
            ObjectError::Gone { .. } => from == 0,
            // A device that fails in the head may come back, with what it has. Nothing of it is wanted.
            ObjectError::Io { .. } => {
                from == 0 && !self.inner.state.borrow().objects.contains_key(&object)
            }
            _ => false,
        };
        if !cannot_load {
            return Err(error);
        }
        self.inner.remake(object, from).map_err(about(object, "make its file anew"))?;
        self.throw_away(Gone { manner: Manner::Remade, ..range }, by)
    }

    /// Makes `length` bytes at `offset` read as zeros and frees the room of whole blocks. An object
    /// that does not exist stays so. Survives the death of the process; a sync makes it durable.
    pub fn punch(
        &self,
        object: ObjectId,
        offset: u64,
        length: u64,
        by: WriteEpoch,
    ) -> Result<Written, ObjectError> {
        let range = Gone { object, offset, length, manner: Manner::Careful };
        self.throw_away(range, by).map(|(written, _)| written)
    }

    /// True where something beside the range is lost.
    fn throw_away(&self, range: Gone, by: WriteEpoch) -> Result<(Written, bool), ObjectError> {
        let Gone { object, offset, length, .. } = range;
        let mut guard = self.inner.state.borrow_mut();
        let state = &mut *guard;
        self.inner.admit(state)?;
        self.inner.admit_epoch(state, by)?;
        self.inner.check_range(object, offset, length)?;
        let mut loses = false;
        if length > 0 && self.inner.load(state, object, false)? {
            let mut scratch = std::mem::take(&mut state.scratch);
            let result = self.inner.punch_present(state, &mut scratch, range);
            state.scratch = scratch;
            loses = result?;
        }
        let written = Written { position: state.log.end(), era: self.inner.era };
        let due = self.inner.checkpoint_due(state, 1);
        drop(guard);
        if due {
            self.start_checkpoint();
        }
        Ok((written, loses))
    }

    /// Whether the object is there and has no bytes.
    pub fn is_empty(&self, object: ObjectId) -> Result<bool, ObjectError> {
        let state = &mut *self.inner.state.borrow_mut();
        if !self.inner.load(state, object, false)? {
            return Ok(false);
        }
        let known = &state.objects[&object];
        Ok(known.overlay.is_empty() && known.entries.iter().all(|entry| *entry == 0))
    }

    /// Cuts one generation of a file at byte `offset` of stripe `stripe`: the bytes behind, later stripes
    /// included, read as zeros. Emptied objects keep their names until the inode goes. If one object cannot
    /// be cut, the others are nevertheless. Returns the objects that lost bytes which should have been kept.
    pub fn truncate_file(
        &self,
        inode: u64,
        generation: u32,
        stripe: u32,
        offset: u64,
        by: WriteEpoch,
    ) -> Result<Vec<ObjectId>, ObjectError> {
        self.truncate_file_in(inode, generation, (stripe, offset), by, None)
    }

    /// As [`ObjectStore::truncate_file`], of the objects whose groups are to be cut; `None`: all.
    pub fn truncate_file_in(
        &self,
        inode: u64,
        generation: u32,
        (stripe, offset): (u32, u64),
        by: WriteEpoch,
        of: Option<&dyn Fn(GroupTag) -> bool>,
    ) -> Result<Vec<ObjectId>, ObjectError> {
        let (mut lossy, mut result) = (Vec::new(), Ok(()));
        for object in self.inner.objects_of(inode)? {
            if object.generation != generation || object.stripe < stripe {
                continue;
            }
            if let Some(of) = of {
                match self.info(object) {
                    Ok(Some(info)) if of(info.group) => {}
                    Ok(_) => continue,
                    Err(error) => {
                        // Nobody knows whether it is one of those.
                        result = result.and(Err(error));
                        continue;
                    }
                }
            }
            let from = if object.stripe == stripe { offset } else { 0 };
            match self.cut(object, from, by) {
                Ok((_, loses)) => lossy.extend(loses.then_some(object)),
                Err(error) => result = result.and(Err(error)),
            }
        }
        result.map(|()| lossy)
    }
}

impl Inner {
    /// Makes the file anew of an object whose content nobody knows any more: blocks before the byte `kept`
    /// are lost from now on, the others are holes. Durable when it ends; after a crash at any place the
    /// object is as damaged as before, or made anew. Blocks on the device.
    fn remake(&self, object: ObjectId, kept: u64) -> io::Result<()> {
        let state = &mut *self.state.borrow_mut();
        let path = self.layout.path(object);
        let (file, is_new) = match self.disk.open(&path, Open::Write) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.make_directory(state, object)?;
                (self.disk.open(&path, Open::Create)?, true)
            }
            file => (file?, false),
        };
        let length = file.len()?;
        // First neither head nor table: no part of the old ones may come to light with the new head, and a
        // file without anything would be a creation that was cut short.
        let mut front = vec![0; self.layout.data_offset().min(length) as usize];
        let head = front.len().min(PAIR_BYTES);
        front[..head].fill(0xff);
        file.write_at(0, &front)?;
        let blocks = kept.div_ceil(BLOCK_BYTES as u64) as u32;
        let _ = free_range(&*file, self.layout.block_offset(blocks), length);
        file.sync_data()?;
        let entries = vec![UNKNOWN; blocks as usize];
        let mut known = Object { entries, ..Object::default() };
        known.front.stamp = state.roll.stamp(object).unwrap_or(0);
        known.change_whole_table();
        // As if of a checkpoint that came to its end: missing entries of the table are lost, never a hole.
        let tails = Tails { durable: 0, next: 0 };
        let place = Place { layout: &self.layout, object };
        place.write_table(&mut known, &*file, &BTreeMap::new(), tails)?;
        file.sync_data()?;
        if is_new {
            let directory = Layout::directory_of(object.inode);
            self.disk.sync_directory(&self.layout.directory_path(directory))?;
        }
        state.roll.note(object, known.front.stamp);
        Ok(())
    }

    /// True where a block that is kept in part is lost.
    fn punch_present(
        &self,
        state: &mut State,
        scratch: &mut Scratch,
        range: Gone,
    ) -> Result<bool, ObjectError> {
        let Gone { object, offset, length, manner } = range;
        let touched = blocks_of(offset, length);
        let first = offset.div_ceil(BLOCK_BYTES as u64) as u32;
        let end = ((offset + length) / BLOCK_BYTES as u64) as u32;
        let mut lost = None;
        for block in [touched.start, touched.end - 1] {
            let (from, part) = part_of(block, offset, length);
            let planned = scratch.logged.last().is_some_and(|last| last.block == block);
            let known = &state.objects[&object];
            let hole = known.entry(block) == 0 && !known.overlay.contains_key(&block);
            if part == BLOCK_BYTES || hole || planned {
                continue;
            }
            let mut content = scratch.take();
            if let Err(error) = self.content(state, object, block, &mut content) {
                if manner != Manner::Careful && is_damage(&error) {
                    lost = Some(block);
                    scratch.give(content);
                    continue;
                }
                scratch.logged.clear();
                return Err(error);
            }
            content[from..from + part].fill(0);
            scratch.logged.push(Logged { block, content, offset: from, length: part });
        }
        // Only blocks up to the last written one can change.
        let known = &state.objects[&object];
        let highest = known.overlay.last_key_value().map_or(0, |(block, _)| *block + 1);
        let highest = highest.max(known.entries.len() as u32);
        let end = if manner == Manner::Remade { end } else { end.min(highest) };
        if let Some(block) = lost {
            let entries = [known.entry(block).to_le_bytes(), UNKNOWN.to_le_bytes()].concat();
            let group = known.front.group;
            state.log.push(&Record::Write { object, group, first: block, entries: &entries });
        }
        let holes = usize::from(first < end);
        if holes > 0 {
            state.log.push(&Record::Hole { object, first, count: end - first });
        }
        let pushed = holes + usize::from(lost.is_some());
        if let Err(error) = self.commit_logged(state, scratch, object, pushed) {
            scratch.logged.clear();
            return Err(error);
        }
        if let Some(block) = lost {
            let known = state.objects.get_mut(&object).expect("the object was loaded");
            let change = known.set_entry(block, UNKNOWN);
            known.suspects.remove(block);
            state.count_bytes(change);
        }
        if holes > 0 {
            self.forget_blocks(state, object, first, end);
            self.free_blocks(state, object, first, end);
        }
        Ok(lost.is_some() || manner == Manner::Remade && offset > 0)
    }

    fn forget_blocks(&self, state: &mut State, object: ObjectId, first: u32, end: u32) {
        let known = state.objects.get_mut(&object).expect("the object was loaded");
        let mut blocks = 0;
        for block in first..end {
            blocks += known.set_entry(block, 0);
            known.suspects.remove(block);
            if known.overlay.remove(&block).is_some() {
                state.overlay_blocks -= 1;
            }
        }
        state.count_bytes(blocks);
    }

    /// Gives room back. The table already says that the blocks are holes, so a refusal costs room
    /// and nothing else.
    fn free_blocks(&self, state: &mut State, object: ObjectId, first: u32, end: u32) {
        let known = state.objects.get_mut(&object).expect("the object was loaded");
        let Some(file) = known.file.clone() else { return };
        let _ = free_range(&*file, self.layout.block_offset(first), self.layout.block_offset(end));
    }

    /// The names of an inode's objects of all generations.
    pub(super) fn objects_of(&self, inode: u64) -> Result<Vec<ObjectId>, ObjectError> {
        list_inode(&*self.disk, &self.layout, inode)
            .map_err(self.failed_doing("list a directory of objects"))
    }
}

/// Whether a block cannot be read, and will not be another time.
fn is_damage(error: &ObjectError) -> bool {
    const EIO: i32 = 5;
    match error {
        ObjectError::Corrupt { .. } => true,
        ObjectError::Io { source, .. } => source.raw_os_error() == Some(EIO),
        _ => false,
    }
}

/// Frees a byte range of a file. The length stays: it says how much of the table counts, and a
/// file that became shorter would hide entries that a later write brings back.
pub(super) fn free_range(file: &dyn File, from: u64, to: u64) -> std::io::Result<()> {
    let to = to.min(file.len()?);
    if from < to { file.punch(from, to - from) } else { Ok(()) }
}

/// The names of an inode's objects of all generations.
pub(super) fn list_inode(
    disk: &dyn ropewalk_base::disk::Disk,
    layout: &super::layout::Layout,
    inode: u64,
) -> std::io::Result<Vec<ObjectId>> {
    use super::layout::Layout;
    let directory = layout.directory_path(Layout::directory_of(inode));
    let names = match disk.list(&directory) {
        Ok(names) => names,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let objects = names.iter().filter_map(|(name, _)| Layout::parse(name));
    Ok(objects.filter(|object| object.inode == inode).collect())
}

/// Blocks that an object's file holds, 0 where it cannot be read: for counting only.
pub(super) fn count_blocks(
    disk: &dyn ropewalk_base::disk::Disk,
    layout: &super::layout::Layout,
    object: ObjectId,
) -> u64 {
    // As if all checkpoints had come to their end: a pair too many that is unknown counts little.
    match open_object(disk, layout, object, u64::MAX).map_err(about(object, "open its file")) {
        Ok(FileState::Present(_, _, entries)) => {
            entries.iter().filter(|entry| has_bytes(**entry)).count() as u64
        }
        _ => 0,
    }
}
