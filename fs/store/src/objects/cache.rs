//! Loading objects into memory, their files, and eviction when too many are there.
//!
//! Invariant: only clean objects are dropped. So a descriptor that a write went through stays open
//! until its sync has reported, and no error of the device goes unseen.

use std::io;
use std::sync::Arc;

use ropewalk_base::disk::{Disk, File, Open};

use super::block::BLOCK_BYTES;
use super::board::Chain;
use super::error::{about, is_unreadable};
use super::layout::Layout;
use super::object::Object;
use super::table::{Front, HeadState, PAIR_BYTES, Place, front_bytes};
use super::{DirectoryState, GroupTag, Grouped, Inner, ObjectError, ObjectId, State};

/// Objects that one load looks at for eviction.
const EVICTION_STEPS: usize = 4;

/// The state of an object's file.
pub(super) enum FileState {
    Absent,
    /// A creation that a crash cut short.
    Unfinished,
    /// The head is gone, the table is not.
    Headless,
    Damaged,
    /// The device does not give head and table back.
    Unreadable(io::Error),
    Present(Arc<dyn File>, Front, Vec<u32>),
}

/// Opens an object's file and reads its table. Checkpoints up to `durable` have come to their end.
pub(super) fn open_object(
    disk: &dyn Disk,
    layout: &Layout,
    object: ObjectId,
    durable: u64,
) -> io::Result<FileState> {
    read_object(disk, layout, object, durable, false)
}

/// As [`open_object`]; makes both copies of each part whole first, durably. So what a crash has cut
/// short in one of them never meets what the next one cuts short in the other.
pub(super) fn repair_object(
    disk: &dyn Disk,
    layout: &Layout,
    object: ObjectId,
    durable: u64,
) -> io::Result<FileState> {
    read_object(disk, layout, object, durable, true)
}

fn read_object(
    disk: &dyn Disk,
    layout: &Layout,
    object: ObjectId,
    durable: u64,
    repair: bool,
) -> io::Result<FileState> {
    let file = match disk.open(&layout.path(object), Open::Write) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(FileState::Absent),
        Err(error) if is_unreadable(&error) => return Ok(FileState::Unreadable(error)),
        Err(error) => return Err(error),
    };
    let length = file.len()?;
    let blocks = length.saturating_sub(layout.data_offset()).div_ceil(BLOCK_BYTES as u64);
    let blocks = blocks.clamp(1, u64::from(layout.blocks_max())) as u32;
    let mut bytes = vec![0; front_bytes(blocks) as usize];
    let read = match file.read_at(0, &mut bytes) {
        Err(error) if is_unreadable(&error) => return Ok(FileState::Unreadable(error)),
        result => result?,
    };
    let place = Place { layout, object };
    let front = match place.judge(&bytes[..read.min(PAIR_BYTES)]) {
        HeadState::Good(front) => front,
        HeadState::Unfinished if bytes[PAIR_BYTES..].iter().any(|byte| *byte != 0) => {
            return Ok(FileState::Headless);
        }
        HeadState::Unfinished => return Ok(FileState::Unfinished),
        HeadState::Damaged => return Ok(FileState::Damaged),
    };
    let promised = (1 + front.pairs as usize) * PAIR_BYTES;
    if promised > bytes.len() {
        let had = bytes.len();
        bytes.resize(promised, 0);
        file.read_at(had as u64, &mut bytes[had..])?;
    }
    let repairs = if repair { place.repairs(front, &bytes) } else { Vec::new() };
    for (at, sector) in &repairs {
        file.write_at(*at, sector)?;
    }
    if !repairs.is_empty() {
        file.sync_data()?;
    }
    let entries = place.entries(front, &bytes[PAIR_BYTES..], durable);
    Ok(FileState::Present(file, front, entries))
}

/// Compares the file's state with the stamp that the roll has of the object.
pub(super) fn check_age(
    object: ObjectId,
    found: &FileState,
    stamp: Option<u32>,
) -> Result<(), ObjectError> {
    let Some(stamp) = stamp else { return Ok(()) };
    match found {
        FileState::Present(_, front, _) if front.stamp < stamp => {
            Err(ObjectError::Older { object })
        }
        FileState::Absent => Err(ObjectError::Gone { object }),
        FileState::Unfinished => Err(ObjectError::Header { object }),
        _ => Ok(()),
    }
}

/// Gives a new object's file its head. The rest of an unfinished creation is cut away first: without a head
/// its table says nothing.
pub(super) fn begin_file(
    file: &dyn File,
    layout: &Layout,
    Grouped { object, group }: Grouped,
) -> io::Result<()> {
    if !file.is_empty()? {
        file.set_len(0)?;
    }
    file.write_at(0, &Place { layout, object }.head(Front { group, ..Front::default() }))
}

/// The pages (of 4096 bytes in the file) that head and table need up to a block's entry.
pub(super) fn table_pages(block: u32) -> u64 {
    front_bytes(block + 1).div_ceil(BLOCK_BYTES as u64)
}

impl Inner {
    /// Brings an object into memory; false where it does not exist. With `create`, an absent one
    /// is there afterwards, without a file. One that is absent and should not be is an error.
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
        // Whole in both copies before anything is written: a power cut may have torn the head of a file
        // of which the log has nothing.
        let found = repair_object(&*self.disk, &self.layout, object, state.log.tail())
            .map_err(about(object, "open its file"))?;
        let stamp = state.roll.stamp(object);
        check_age(object, &found, stamp)?;
        let loaded = match found {
            FileState::Present(file, front, entries) => {
                if stamp.is_none() {
                    // The roll is younger than the object, or was damaged.
                    state.roll.note(object, front.stamp);
                }
                Object {
                    file: Some(file),
                    exists: true,
                    table_pages: table_pages((entries.len() as u32).saturating_sub(1)),
                    front,
                    entries,
                    chain: Chain::of_durable(),
                    touched: true,
                    ..Object::default()
                }
            }
            FileState::Damaged | FileState::Headless => return Err(ObjectError::Header { object }),
            FileState::Unreadable(error) => return Err(about(object, "open its file")(error)),
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
                if let Some(mut gone) = state.objects.remove(&candidate) {
                    state.log.release(&mut gone.chain);
                }
            }
        }
    }

    /// Takes an object out of memory, also with changes that only memory and log have.
    pub(super) fn discard(&self, state: &mut State, object: ObjectId) {
        if let Some(mut gone) = state.objects.remove(&object) {
            state.log.release(&mut gone.chain);
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

    /// Makes the directory of an object's file, if it is not there.
    pub(super) fn make_directory(&self, state: &mut State, object: ObjectId) -> io::Result<()> {
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
        Ok(())
    }

    fn create(&self, state: &mut State, object: ObjectId) -> io::Result<Arc<dyn File>> {
        let group = state.objects.get(&object).map_or(GroupTag::default(), |it| it.front.group);
        let path = self.layout.path(object);
        self.make_directory(state, object)?;
        let file = self.disk.open(&path, Open::Create)?;
        if let Err(error) = begin_file(&*file, &self.layout, Grouped { object, group }) {
            // Best effort: a file that stays is recognised as an unfinished creation.
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
        let pages = table_pages(block);
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
