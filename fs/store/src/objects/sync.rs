//! Making things durable: object files, their names, the log.
//!
//! A sync of an object is one fdatasync of its file, if blocks were written in place. Then one fdatasync of
//! the log follows, with a mark that says so; all callers that wait share it. The sync runs beside the
//! executor in a task of its own, so that its result is noted also where the caller has stopped waiting.
//!
//! Invariant: a file has one sync at a time. Blocks that a failed sync covered stay suspect until they are
//! written again, and so long every sync of the object fails.

use std::io;

use super::block::BlockSet;
use super::layout::Layout;
use super::record::Record;
use super::table::Place;
use super::{DirectoryState, Inner, ObjectError, ObjectId, ObjectStore, State};

/// The result of a sync of one object's file.
struct FileSync {
    object: ObjectId,
    /// Log position at its start: in-place writes before it are covered.
    position: u64,
    /// It covered the file's name, which may have been made only after it began.
    named: bool,
    result: Option<io::Result<()>>,
}

impl ObjectStore {
    /// Completes when everything that was acknowledged for these objects is durable.
    pub async fn sync(&self, objects: &[ObjectId]) -> Result<(), ObjectError> {
        let known = {
            let state = self.inner.state.borrow();
            let known = objects.iter().filter(|object| state.objects.contains_key(object));
            known.copied().collect()
        };
        self.sync_set(known).await
    }

    /// As [`ObjectStore::sync`], for all objects of the given (inode, generation) pairs.
    pub async fn sync_files(&self, files: &[(u64, u32)]) -> Result<(), ObjectError> {
        let mut known = Vec::new();
        for &(inode, generation) in files {
            let from = ObjectId { inode, generation, stripe: 0 };
            let to = ObjectId { inode, generation, stripe: u32::MAX };
            let state = self.inner.state.borrow();
            known.extend(state.objects.range(from..=to).map(|(object, _)| *object));
        }
        self.sync_set(known).await
    }

    /// Completes when everything that was acknowledged until now is durable.
    pub async fn sync_all(&self) -> Result<(), ObjectError> {
        let known = self.inner.state.borrow().objects.keys().copied().collect();
        self.sync_set(known).await
    }

    async fn sync_set(&self, objects: Vec<ObjectId>) -> Result<(), ObjectError> {
        let targets: Vec<_> = {
            let state = &mut *self.inner.state.borrow_mut();
            self.inner.admit(state)?;
            objects.into_iter().filter_map(|object| self.target(state, object)).collect()
        };
        let mut result = Ok(());
        for (object, round) in targets {
            result = self.sync_round(object, round).await.and(result);
        }
        // After the files: the marks of what was synced must be durable too, else replay could take
        // a synced block that a later write has torn for one that was never there.
        let end = self.inner.state.borrow().log.end();
        self.log_durable_to(end).await.and(result)
    }

    /// Starts a sync of the object where one is needed and possible; the round to wait for.
    fn target(&self, state: &mut State, object: ObjectId) -> Option<(ObjectId, u64)> {
        let known = state.objects.get(&object)?;
        if known.is_synced() {
            return (!known.suspects.is_empty()).then_some((object, known.sync_started));
        }
        if known.syncing.is_some() {
            return Some((object, known.sync_started + 1));
        }
        self.begin_sync(state, object);
        Some((object, state.objects[&object].sync_started))
    }

    /// Waits until the object's sync number `round` has ended, starting it where it is its turn.
    pub(super) async fn sync_round(&self, object: ObjectId, round: u64) -> Result<(), ObjectError> {
        loop {
            let settled = {
                let state = &mut *self.inner.state.borrow_mut();
                let Some(known) = state.objects.get(&object) else { return Ok(()) };
                if known.sync_finished >= round {
                    let failed = !known.suspects.is_empty() || known.sync_failed;
                    return if failed { Err(ObjectError::SyncFailed { object }) } else { Ok(()) };
                }
                if known.syncing.is_none() {
                    self.begin_sync(state, object);
                }
                self.inner.settled.notified()
            };
            settled.await;
        }
    }

    /// Starts a sync of the object's file, its name included. No other is under way.
    pub(super) fn begin_sync(&self, state: &mut State, object: ObjectId) {
        let position = state.log.end();
        let number = Layout::directory_of(object.inode);
        let known = state.objects.get_mut(&object).expect("only known objects are synced");
        assert!(known.syncing.is_none(), "object {object} is synced twice at a time");
        known.syncing = Some(std::mem::take(&mut known.unsynced));
        known.table_unsynced = false;
        known.sync_started += 1;
        let mut directories = Vec::new();
        let named = known.name_unsynced;
        if named {
            directories.push(self.inner.layout.directory_path(number));
            if state.directories[number as usize] == DirectoryState::NameUnsynced {
                directories.push(self.inner.layout.objects());
            }
        }
        let (file, disk) = (known.file.clone(), self.inner.disk.clone());
        // Here and not beside the executor: a checkpoint may write a later head meanwhile.
        let place = Place { layout: &self.inner.layout, object };
        let rewritten = match &file {
            Some(file) if known.header_suspect => file.write_at(0, &place.head(known.front)),
            _ => Ok(()),
        };
        let work = self.inner.world.offload(move || {
            rewritten?;
            if let Some(file) = file {
                file.sync_data()?;
            }
            directories.iter().try_for_each(|directory| disk.sync_directory(directory))
        });
        let store = self.clone();
        self.inner.world.spawn(async move {
            let result = work.await;
            store.inner.settle_sync(FileSync { object, position, named, result });
            store.inner.settled.notify_all();
        });
    }

    /// Completes when the log is durable up to `position`; one fdatasync serves all who wait.
    pub(super) async fn log_durable_to(&self, position: u64) -> Result<(), ObjectError> {
        loop {
            let settled = {
                let state = &mut *self.inner.state.borrow_mut();
                self.inner.admit(state)?;
                if state.log.durable() >= position {
                    return Ok(());
                }
                if !state.log_syncing {
                    self.begin_log_sync(state);
                }
                self.inner.settled.notified()
            };
            settled.await;
        }
    }

    fn begin_log_sync(&self, state: &mut State) {
        state.log_syncing = true;
        let work = state.log.sync_work();
        let running = self.inner.world.offload(move || {
            let result = work.run();
            (work, result)
        });
        let store = self.clone();
        self.inner.world.spawn(async move {
            let ended = running.await;
            {
                let state = &mut *store.inner.state.borrow_mut();
                state.log_syncing = false;
                match ended {
                    Some((work, Ok(()))) => state.log.synced(&work),
                    Some((_, Err(error))) => state.fail(format!("a sync failed: {error}")),
                    None => state.fail("a sync was given up".to_owned()),
                }
            }
            store.inner.settled.notify_all();
        });
    }
}

impl Inner {
    /// Notes how a sync of an object's file ended.
    fn settle_sync(&self, ended: FileSync) {
        let state = &mut *self.state.borrow_mut();
        let FileSync { object, position, named, result } = ended;
        // The object may have been removed meanwhile.
        let Some(known) = state.objects.get_mut(&object) else { return };
        let covered = known.syncing.take().unwrap_or_default();
        known.sync_finished += 1;
        if matches!(result, Some(Ok(()))) {
            known.sync_failed = false;
            known.synced_position = position;
            known.header_suspect = false;
            if named {
                known.name_unsynced = false;
                let number = Layout::directory_of(object.inode) as usize;
                state.directories[number] = DirectoryState::Present;
            }
            if known.suspects.is_empty() {
                state.log.push(&Record::Mark { object, position });
            }
            if known.unsynced.is_empty() {
                // Keeps the set's memory for the next round.
                known.unsynced = covered;
                known.unsynced.clear();
            }
        } else {
            known.sync_failed = true;
            known.sync_failures += 1;
            known.header_suspect = known.file.is_some();
            known.change_whole_table();
            // Also the blocks written while it ran: nobody knows what the failure took along. Only blocks
            // that the log has in full are out of danger.
            let mut suspects = BlockSet::default();
            for block in covered.iter().chain(known.unsynced.iter()) {
                if !known.overlay.contains_key(&block) {
                    suspects.insert(block);
                }
            }
            known.suspects.extend(&suspects);
            if let Some((first, count)) = known.suspects.span() {
                state.log.push(&Record::Suspect { object, first, count });
            }
        }
        if let Err(error) = state.log.commit_if_any(&mut known.chain) {
            state.fail(format!("the result of a sync could not be logged: {error}"));
        }
    }
}
