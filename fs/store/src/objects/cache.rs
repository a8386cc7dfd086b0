//! Loading objects into memory, their files, and what is let go when too many are there.
//!
//! Invariant: only clean objects are dropped. So a descriptor that a write went through stays open
//! until its sync has reported, and no error of the device goes unseen.

use std::io;
use std::sync::Arc;

use ropewalk_base::disk::{Disk, File, Open};

use super::block::BLOCK_BYTES;
use super::error::about;
use super::layout::{HEADER_BYTES, HeaderState, Layout};
use super::object::Object;
use super::{DirectoryState, Inner, ObjectError, ObjectId, State};

/// Objects that one load looks at for eviction.
const EVICTION_STEPS: usize = 4;

/// What an object's file holds.
pub(super) enum FileState {
    Absent,
    /// A creation that a crash cut short.
    Unfinished,
    Damaged,
    Present(Arc<dyn File>, Vec<u32>),
}

/// Opens an object's file and reads its table.
pub(super) fn open_object(
    disk: &dyn Disk,
    layout: &Layout,
    object: ObjectId,
) -> io::Result<FileState> {
    let file = match disk.open(&layout.path(object), Open::Write) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(FileState::Absent),
        Err(error) => return Err(error),
    };
    let length = file.len()?;
    let blocks = length.saturating_sub(layout.data_offset()).div_ceil(BLOCK_BYTES as u64);
    let blocks = blocks.min(u64::from(layout.blocks_max())) as usize;
    let mut bytes = vec![0; HEADER_BYTES + blocks * 4];
    let read = file.read_at(0, &mut bytes)?;
    match layout.judge(object, &bytes[..read.min(HEADER_BYTES)]) {
        HeaderState::Good => (),
        HeaderState::Unfinished => return Ok(FileState::Unfinished),
        HeaderState::Damaged => return Ok(FileState::Damaged),
    }
    let entries = bytes[HEADER_BYTES..].chunks_exact(4).map(|entry| {
        let mut word = [0; 4];
        word.copy_from_slice(entry);
        u32::from_le_bytes(word)
    });
    Ok(FileState::Present(file, entries.collect()))
}

/// Gives a new object's file its header. What an unfinished creation left in it is cut away first:
/// without a header its table says nothing.
pub(super) fn begin_file(file: &dyn File, layout: &Layout, object: ObjectId) -> io::Result<()> {
    if !file.is_empty()? {
        file.set_len(0)?;
    }
    file.write_at(0, &layout.header(object))
}

/// The table page (of 4096 bytes in the file) that holds a block's entry.
pub(super) fn table_page(block: u32) -> u64 {
    (HEADER_BYTES as u64 + u64::from(block) * 4) / BLOCK_BYTES as u64
}

impl Inner {
    /// Brings an object into memory; false where it does not exist. With `create`, an absent one
    /// is there afterwards, without a file.
    pub(super) fn load(
        &self,
        state: &mut State,
        object: ObjectId,
        create: bool,
    ) -> Result<bool, ObjectError> {
        if let Some(known) = state.objects.get_mut(&object) {
            known.touched = true;
            return Ok(known.exists || create);
        }
        if state.marks.is_buried(object) {
            return if create { Err(ObjectError::Removed { object }) } else { Ok(false) };
        }
        let found = open_object(&*self.disk, &self.layout, object)
            .map_err(about(object, "open its file"))?;
        let loaded = match found {
            FileState::Present(file, entries) => Object {
                file: Some(file),
                exists: true,
                table_pages: table_page((entries.len() as u32).saturating_sub(1)) + 1,
                entries,
                touched: true,
                ..Object::default()
            },
            FileState::Damaged => return Err(ObjectError::Header { object }),
            FileState::Absent | FileState::Unfinished if create => {
                Object { touched: true, ..Object::default() }
            }
            FileState::Absent | FileState::Unfinished => return Ok(false),
        };
        self.evict(state, EVICTION_STEPS);
        state.objects.insert(object, loaded);
        state.clock.push_back(object);
        Ok(true)
    }

    /// Drops clean objects that were not used lately, looking at `steps` of them at most.
    pub(super) fn evict(&self, state: &mut State, steps: usize) {
        for _ in 0..steps {
            if state.objects.len() < self.config.objects_cached {
                return;
            }
            let Some(candidate) = state.clock.pop_front() else { return };
            let Some(object) = state.objects.get_mut(&candidate) else { continue };
            if object.touched || !object.is_clean() {
                object.touched = false;
                state.clock.push_back(candidate);
            } else {
                state.objects.remove(&candidate);
            }
        }
    }

    /// Takes an object out of memory, whatever only memory and log have of it.
    pub(super) fn discard(&self, state: &mut State, object: ObjectId) {
        if let Some(gone) = state.objects.remove(&object) {
            state.overlay_blocks -= gone.overlay.len();
            state.clock.retain(|other| *other != object);
        }
    }

    /// The object's file, made where it does not exist yet.
    pub(super) fn file(
        &self,
        state: &mut State,
        object: ObjectId,
    ) -> Result<Arc<dyn File>, ObjectError> {
        let known = state.objects.get(&object).expect("the object was loaded");
        if let Some(file) = &known.file {
            return Ok(file.clone());
        }
        let file = self.create(state, object).map_err(about(object, "make its file"))?;
        let known = state.objects.get_mut(&object).expect("the object was loaded");
        known.file = Some(file.clone());
        known.exists = true;
        known.name_unsynced = true;
        known.table_pages = 1;
        state.marks.objects += 1;
        state.marks_changed = true;
        Ok(file)
    }

    fn create(&self, state: &mut State, object: ObjectId) -> io::Result<Arc<dyn File>> {
        let path = self.layout.path(object);
        let number = Layout::directory_of(object.inode);
        let directory = self.layout.directory_path(number);
        if state.directories[number as usize] == DirectoryState::Unknown {
            let present = self.disk.kind(&directory)?.is_some();
            if !present {
                self.disk.create_directory(&directory)?;
            }
            state.directories[number as usize] =
                if present { DirectoryState::Present } else { DirectoryState::NameUnsynced };
        }
        let file = self.disk.open(&path, Open::Create)?;
        if let Err(error) = begin_file(&*file, &self.layout, object) {
            // Best effort: what stays is recognised as an unfinished creation.
            let _ = self.disk.remove_file(&path);
            return Err(error);
        }
        Ok(file)
    }

    /// Gives the table room for the entry of `block`, so that a checkpoint meets no full device.
    pub(super) fn reserve_table(
        &self,
        state: &mut State,
        object: ObjectId,
        block: u32,
    ) -> Result<(), ObjectError> {
        let known = state.objects.get_mut(&object).expect("the object was loaded");
        let pages = table_page(block) + 1;
        if pages <= known.table_pages {
            return Ok(());
        }
        let file = known.file.as_ref().expect("the file was made first");
        let page = BLOCK_BYTES as u64;
        file.allocate(known.table_pages * page, (pages - known.table_pages) * page)
            .map_err(about(object, "reserve room for its checksums"))?;
        known.table_pages = pages;
        Ok(())
    }
}
