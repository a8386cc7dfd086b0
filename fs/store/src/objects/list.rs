//! Going through all objects, one hashed directory at a time.

use std::ffi::OsString;
use std::path::Path;

use super::block::{BLOCK_BYTES, has_bytes};
use super::cache::{FileState, check_age, open_object};
use super::error::about;
use super::layout::Layout;
use super::{GroupTag, Inner, ObjectError, ObjectId, ObjectStore};

/// An object as `check` sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectInfo {
    pub object: ObjectId,
    /// Bytes in written blocks.
    pub bytes: u64,
    /// The end of the last written block.
    pub end: u64,
    pub group: GroupTag,
}

/// All objects of a store, in the order of their directories; memory for one directory at a time.
/// Objects that come or go meanwhile may or may not be seen.
pub struct Listing {
    store: ObjectStore,
    /// Those that were there when it began: a young store has few of them.
    directories: std::vec::IntoIter<u32>,
    objects: std::vec::IntoIter<ObjectId>,
}

impl ObjectStore {
    /// All objects, or those that come after `after` in the listing's order.
    pub fn list(&self, after: Option<ObjectId>) -> Result<Listing, ObjectError> {
        let mut directories = self.inner.list_directories()?;
        let mut objects = Vec::new();
        if let Some(after) = after {
            let directory = Layout::directory_of(after.inode);
            directories.retain(|other| *other > directory);
            objects = self.inner.list_directory(directory)?;
            objects.retain(|object| *object > after);
        }
        Ok(Listing {
            store: self.clone(),
            directories: directories.into_iter(),
            objects: objects.into_iter(),
        })
    }

    /// One object; `None` where it does not exist. One that is not as the store had it is an error.
    pub fn info(&self, object: ObjectId) -> Result<Option<ObjectInfo>, ObjectError> {
        let state = self.inner.state.borrow();
        if let Some(known) = state.objects.get(&object) {
            let overlay_end =
                known.overlay.keys().next_back().map_or(0, |block| *block as usize + 1);
            let info = describe(object, known.front.group, &known.entries, overlay_end);
            return Ok(known.exists.then_some(info));
        }
        if state.marks.is_buried(object) {
            return Ok(None);
        }
        let tail = state.log.tail();
        let found = open_object(&*self.inner.disk, &self.inner.layout, object, tail)
            .map_err(about(object, "open its file"))?;
        check_age(object, &found, state.roll.stamp(object))?;
        match found {
            FileState::Present(_, front, entries) => {
                Ok(Some(describe(object, front.group, &entries, 0)))
            }
            FileState::Damaged | FileState::Headless => Err(ObjectError::Header { object }),
            FileState::Unreadable(error) => Err(about(object, "open its file")(error)),
            FileState::Absent | FileState::Unfinished => Ok(None),
        }
    }
}

impl ObjectStore {
    /// A form of the checksum of each block up to the last written one, 0 for holes: blocks with the same number have the
    /// same bytes. `None` where there is no such object.
    pub fn table(&self, object: ObjectId) -> Result<Option<Vec<u32>>, ObjectError> {
        let state = &mut *self.inner.state.borrow_mut();
        if !self.inner.load(state, object, false)? {
            return Ok(None);
        }
        let known = &state.objects[&object];
        let mut entries = known.entries.clone();
        for (block, patch) in &known.overlay {
            let index = *block as usize;
            if entries.len() <= index {
                entries.resize(index + 1, 0);
            }
            entries[index] = patch.entry;
        }
        let written = entries.iter().rposition(|entry| *entry != 0).map_or(0, |last| last + 1);
        entries.truncate(written);
        Ok(Some(entries))
    }
}

fn describe(object: ObjectId, group: GroupTag, entries: &[u32], overlay_end: usize) -> ObjectInfo {
    let blocks = entries.iter().filter(|entry| has_bytes(**entry)).count() as u64;
    let end = entries.iter().rposition(|entry| *entry != 0).map_or(0, |last| last + 1);
    let end = end.max(overlay_end) as u64;
    let (bytes, end) = (blocks * BLOCK_BYTES as u64, end * BLOCK_BYTES as u64);
    ObjectInfo { object, bytes, end, group }
}

impl Inner {
    /// The hashed directories that are there, in order.
    fn list_directories(&self) -> Result<Vec<u32>, ObjectError> {
        let names = self.names_in(&self.layout.objects())?;
        // Fixed-width names: bytewise order is the order of the numbers.
        Ok(names.iter().filter_map(|name| Layout::parse_directory(name)).collect())
    }

    fn list_directory(&self, directory: u32) -> Result<Vec<ObjectId>, ObjectError> {
        let names = self.names_in(&self.layout.directory_path(directory))?;
        // The same.
        Ok(names.iter().filter_map(|name| Layout::parse(name)).collect())
    }

    fn names_in(&self, path: &Path) -> Result<Vec<OsString>, ObjectError> {
        match self.disk.list(path) {
            Ok(names) => Ok(names.into_iter().map(|(name, _)| name).collect()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(self.failed_doing("list a directory of objects")(error)),
        }
    }
}

impl Iterator for Listing {
    type Item = Result<ObjectInfo, ObjectError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            for object in self.objects.by_ref() {
                match self.store.info(object) {
                    Ok(None) => (),
                    Ok(Some(info)) => return Some(Ok(info)),
                    Err(error) => return Some(Err(error)),
                }
            }
            let directory = self.directories.next()?;
            match self.store.inner.list_directory(directory) {
                Ok(objects) => self.objects = objects.into_iter(),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
