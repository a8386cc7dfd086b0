//! Tombstones and fences: durable before they are acknowledged.

use std::io;
use std::sync::Arc;

use ropewalk_base::disk::Disk;
use ropewalk_base::task::oneshot;

use super::block::BLOCK_BYTES;
use super::error::is_for_now;
use super::layout::Layout;
use super::punch::{count_blocks, list_inode};
use super::record::Record;
use super::{ObjectError, ObjectId, ObjectStore, State};

/// The result of one removal.
#[derive(Debug, Default)]
pub(super) struct Removed {
    pub(super) objects: Vec<ObjectId>,
    blocks: u64,
    /// Why not all of them are gone.
    pub(super) left: Option<io::Error>,
}

/// Unlinks the objects of `inode` up to `generation`, all that can be. Blocks.
pub(super) fn unlink_inode(
    disk: &Arc<dyn Disk>,
    layout: &Layout,
    inode: u64,
    generation: u32,
) -> Removed {
    let mut removed = Removed::default();
    let objects = list_inode(&**disk, layout, inode).unwrap_or_else(|error| {
        removed.left = Some(error);
        Vec::new()
    });
    for object in objects {
        if object.generation > generation {
            continue;
        }
        let blocks = count_blocks(&**disk, layout, object);
        match disk.remove_file(&layout.path(object)) {
            Ok(()) => {
                removed.objects.push(object);
                removed.blocks += blocks;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => (),
            Err(error) => removed.left = Some(error),
        }
    }
    removed
}

impl ObjectStore {
    /// Removes the objects of `inode` up to `generation`; a durable tombstone refuses writes that
    /// come later. `mark` is the caller's measure for [`ObjectStore::expire`]. May be repeated.
    pub async fn remove_inode(
        &self,
        inode: u64,
        generation: u32,
        mark: u64,
    ) -> Result<(), ObjectError> {
        let inner = &self.inner;
        let (position, end) = {
            let state = &mut *inner.state.borrow_mut();
            inner.admit(state)?;
            state.log.push(&Record::Tombstone { inode, generation, mark });
            let committed = state.log.commit_marks();
            let position = committed.map_err(inner.failed_doing("log a removal"))?;
            state.removing.insert(position);
            state.marks.bury(inode, generation, mark);
            state.marks_changed = true;
            let from = ObjectId { inode, generation: 0, stripe: 0 };
            let to = ObjectId { inode, generation, stripe: u32::MAX };
            let gone: Vec<_> = state.objects.range(from..=to).map(|(object, _)| *object).collect();
            for object in gone {
                discard_counted(self, state, object);
            }
            (position, state.log.end())
        };
        inner.settled.notify_all();
        let (sender, ended) = oneshot();
        // A task of its own: it goes on also where nobody waits any more, for checkpoints wait for it.
        let store = self.clone();
        inner.world.spawn(async move {
            let result = store.remove_names(inode, generation, end).await;
            store.inner.state.borrow_mut().removing.remove(&position);
            store.inner.settled.notify_all();
            sender.send(result);
        });
        ended.await.unwrap_or(Err(ObjectError::Closed))
    }

    /// Takes the names of a removed inode away, whose tombstone is in the log before `end`.
    async fn remove_names(&self, inode: u64, generation: u32, end: u64) -> Result<(), ObjectError> {
        let inner = &self.inner;
        // The names go only after the tombstone is durable: a crash in between is finished by
        // replay, and no write can have come back.
        self.log_durable_to(end).await?;
        let (disk, layout) = (inner.disk.clone(), inner.layout.clone());
        let work = inner.world.offload(move || unlink_inode(&disk, &layout, inode, generation));
        let removed = work.await.ok_or(ObjectError::Closed)?;
        let state = &mut *inner.state.borrow_mut();
        state.removed_from.insert(Layout::directory_of(inode));
        state.marks.objects = state.marks.objects.saturating_sub(removed.objects.len() as u64);
        state.count_bytes(-(removed.blocks as i64));
        removed.objects.into_iter().for_each(|object| state.roll.strike(object));
        match removed.left {
            None => Ok(()),
            Some(source) if is_for_now(&source) => {
                Err(inner.failed_doing("remove objects")(source))
            }
            Some(source) => Err(ObjectError::Left { inode, source }),
        }
    }

    /// Refuses the session's changes below `epoch` from now on, also where this fails; durable when it
    /// completes. Of very many fences those with the least marks are forgotten.
    pub async fn fence(&self, session: u64, epoch: u32, mark: u64) -> Result<(), ObjectError> {
        let end = {
            let state = &mut *self.inner.state.borrow_mut();
            state.marks.fence(session, epoch, mark);
            state.marks_changed = true;
            self.inner.admit(state)?;
            state.log.push(&Record::Fence { session, epoch, mark });
            state.log.commit_marks().map_err(self.inner.failed_doing("log a fence"))?;
            state.log.end()
        };
        self.log_durable_to(end).await
    }

    /// Forgets tombstones whose mark lies below `before`: the caller knows that no request of that time
    /// can arrive any more.
    pub fn expire(&self, before: u64) {
        let state = &mut *self.inner.state.borrow_mut();
        state.marks_changed |= state.marks.expire(before);
    }
}

/// Drops an object and takes blocks that the file's table does not show out of the count.
fn discard_counted(store: &ObjectStore, state: &mut State, object: ObjectId) {
    let Some(known) = state.objects.get(&object) else { return };
    let in_memory = known.written_blocks();
    // The removal will subtract the blocks of the file's table; the difference goes now.
    let in_file = count_blocks(&*store.inner.disk, &store.inner.layout, object);
    let bytes = (in_memory as i64 - in_file as i64) * BLOCK_BYTES as i64;
    state.marks.object_bytes = state.marks.object_bytes.saturating_add_signed(-bytes);
    store.inner.discard(state, object);
}
