//! Throwing bytes away: ranges that read as zeros afterwards, and room that is free again.

use ropewalk_base::disk::File;

use super::block::{BLOCK_BYTES, blocks_of};
use super::cache::{FileState, open_object};
use super::error::about;
use super::record::Record;
use super::write::{Logged, Scratch, part_of};
use super::{Inner, ObjectError, ObjectId, ObjectStore, State, WriteEpoch, Written};

impl ObjectStore {
    /// Makes the bytes from `from` to the object's end read as zeros and frees their room.
    pub fn truncate(
        &self,
        object: ObjectId,
        from: u64,
        by: WriteEpoch,
    ) -> Result<Written, ObjectError> {
        let length = self.inner.layout.object_bytes().saturating_sub(from);
        self.punch(object, from, length, by)
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
        let mut guard = self.inner.state.borrow_mut();
        let state = &mut *guard;
        self.inner.admit(state)?;
        self.inner.admit_epoch(state, by)?;
        self.inner.check_range(object, offset, length)?;
        if length > 0 && self.inner.load(state, object, false)? {
            let mut scratch = std::mem::take(&mut state.scratch);
            let result = self.inner.punch_present(state, &mut scratch, object, offset, length);
            state.scratch = scratch;
            result?;
        }
        let written = Written { position: state.log.end(), era: self.inner.era };
        let due = self.inner.checkpoint_due(state, 1);
        drop(guard);
        if due {
            self.start_checkpoint();
        }
        Ok(written)
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

    /// Cuts one generation of a file at byte `offset` of stripe `stripe`: what lies behind, later
    /// stripes included, reads as zeros. Emptied objects keep their names until the inode goes.
    pub fn truncate_file(
        &self,
        inode: u64,
        generation: u32,
        stripe: u32,
        offset: u64,
        by: WriteEpoch,
    ) -> Result<(), ObjectError> {
        for object in self.inner.objects_of(inode)? {
            if object.generation != generation || object.stripe < stripe {
                continue;
            }
            let from = if object.stripe == stripe { offset } else { 0 };
            self.truncate(object, from, by)?;
        }
        Ok(())
    }
}

impl Inner {
    fn punch_present(
        &self,
        state: &mut State,
        scratch: &mut Scratch,
        object: ObjectId,
        offset: u64,
        length: u64,
    ) -> Result<(), ObjectError> {
        let touched = blocks_of(offset, length);
        let first = offset.div_ceil(BLOCK_BYTES as u64) as u32;
        let end = ((offset + length) / BLOCK_BYTES as u64) as u32;
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
                scratch.logged.clear();
                return Err(error);
            }
            content[from..from + part].fill(0);
            scratch.logged.push(Logged { block, content, offset: from, length: part });
        }
        // Only blocks up to the last written one can change.
        let known = &state.objects[&object];
        let highest = known.overlay.last_key_value().map_or(0, |(block, _)| *block + 1);
        let end = end.min(highest.max(known.entries.len() as u32));
        let holes = usize::from(first < end);
        if holes > 0 {
            state.log.push(&Record::Hole { object, first, count: end - first });
        }
        if let Err(error) = self.commit_logged(state, scratch, object, holes) {
            scratch.logged.clear();
            return Err(error);
        }
        if holes > 0 {
            self.forget_blocks(state, object, first, end);
            self.free_blocks(state, object, first, end);
        }
        Ok(())
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
            entries.iter().filter(|entry| **entry != 0).count() as u64
        }
        _ => 0,
    }
}
