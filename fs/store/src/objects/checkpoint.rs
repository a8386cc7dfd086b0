//! Checkpoints: changes that only log and memory have go into the object files, then the log is recycled.
//!
//! Order, and why: the log goes on in a fresh segment, so that everything before it is a whole; the
//! log is synced, since nothing it protects may reach a file before it; patched blocks and tables are
//! written and synced object by object; marks, directories and the roll follow; then the new tail is made
//! durable, and only after that old segments are overwritten.
//!
//! Invariants
//! * an object whose sync fails is logged anew in full before its old records go;
//! * a tail is said only when all that it relies upon is durable: the record of the tail may outlive the
//!   rest;
//! * a tombstone is passed only when the names that it takes away are gone, durably.

use std::collections::BTreeMap;

use super::board::Chain;
use super::error::about;
use super::log::Log;
use super::object::{Object, Patch};
use super::read::read_filled;
use super::record::Record;
use super::table::{Place, Tails};
use super::{Inner, ObjectError, ObjectId, ObjectStore, State};

/// Blocks of one object that a failed sync left in doubt and that go through the log instead.
const SUSPECTS_CARRIED_MAX: usize = 1024;
/// Object files that are synced at the same time.
const SYNCS_AT_ONCE: usize = 16;

/// An object whose state was written into its file, and the sync of it that has to be waited for.
struct Flushed {
    object: ObjectId,
    round: u64,
    /// Failed syncs of the object before: another one may have lost the written blocks.
    failures: u64,
    /// The stamp in the file's head now, where it has one.
    stamp: Option<u32>,
    /// The log has to be durable so far before the tail passes changes that the object's file does not have.
    relies_on: u64,
    result: Result<(), ObjectError>,
}

impl ObjectStore {
    /// Completes when the store has room for another change: at once in normal times, after a
    /// checkpoint where changes come faster than the device takes them. To be called before
    /// writes; a caller that does not makes log and memory grow.
    pub async fn room(&self) -> Result<(), ObjectError> {
        loop {
            let settled = {
                let state = &mut *self.inner.state.borrow_mut();
                self.inner.admit(state)?;
                if !self.inner.checkpoint_due(state, 2) {
                    return Ok(());
                }
                if let Some(reason) = state.checkpoint_error.take() {
                    let source = std::io::Error::other(reason);
                    return Err(self.inner.failed_doing("make a checkpoint")(source));
                }
                self.inner.settled.notified()
            };
            self.start_checkpoint();
            settled.await;
        }
    }

    /// Makes everything durable and the log empty; for a tidy end and for tests.
    pub async fn checkpoint(&self) -> Result<(), ObjectError> {
        // One that is under way may have passed recent writes: one more is needed then.
        let target = {
            let state = self.inner.state.borrow();
            state.checkpoints_ended + 1 + u64::from(state.checkpointing)
        };
        loop {
            let settled = {
                let state = self.inner.state.borrow();
                self.inner.admit(&state)?;
                if state.checkpoints_ended >= target {
                    let reason = state.checkpoint_error.clone();
                    let source = reason.map(std::io::Error::other);
                    let failed = self.inner.failed_doing("make a checkpoint");
                    return source.map_or(Ok(()), |source| Err(failed(source)));
                }
                self.inner.settled.notified()
            };
            self.start_checkpoint();
            settled.await;
        }
    }

    /// Makes everything durable and says durably that the log is not needed; changes are refused
    /// afterwards. For a tidy end.
    pub async fn close(&self) -> Result<(), ObjectError> {
        self.checkpoint().await?;
        let inner = &self.inner;
        let marks = {
            let state = &mut *inner.state.borrow_mut();
            inner.admit(state)?;
            let removing = !state.removing.is_empty() || !state.removed_from.is_empty();
            let busy = state.checkpointing || removing;
            if busy || state.objects.values().any(|known| !known.is_clean()) {
                // Somebody goes on writing or removing, or a device fails: then the log has the last word.
                return Ok(());
            }
            state.fail("the store was closed".to_owned());
            state.marks.number += 1;
            (state.marks.durable, state.marks.clean) = (state.log.durable(), state.log.end());
            state.marks.clone()
        };
        let (disk, layout) = (inner.disk.clone(), inner.layout.clone());
        let save = move || marks.save(&disk, layout.root(), layout.store());
        let saved = inner.world.offload(save).await.ok_or(ObjectError::Closed)?;
        saved.map_err(inner.failed_doing("save removals and fences"))
    }

    /// Starts a checkpoint unless one is under way or the store has failed.
    pub(super) fn start_checkpoint(&self) {
        {
            let state = &mut *self.inner.state.borrow_mut();
            if state.checkpointing || state.failed.is_some() {
                return;
            }
            state.checkpointing = true;
        }
        // A task of its own: it goes on also where nobody waits any more.
        let store = self.clone();
        self.inner.world.spawn(async move {
            let result = store.checkpoint_stages().await;
            {
                let state = &mut *store.inner.state.borrow_mut();
                state.checkpointing = false;
                state.checkpoints_ended += 1;
                state.checkpoints += u64::from(result.is_ok());
                state.checkpoint_error = result.err().map(|error| error.to_string());
            }
            store.inner.settled.notify_all();
        });
    }

    async fn checkpoint_stages(&self) -> Result<(), ObjectError> {
        let (tail, end, objects) = self.inner.open_checkpoint()?;
        self.log_durable_to(end).await?;
        let mut carried_to = end;
        for batch in objects.chunks(SYNCS_AT_ONCE) {
            let mut rounds = Vec::new();
            for object in batch {
                rounds.extend(self.flush(*object, tail));
            }
            // Each one is looked after, also when another could not be: nobody asks again later.
            let mut carried = Ok(());
            for Flushed { object, round, failures, stamp, relies_on, result } in rounds {
                carried_to = carried_to.max(relies_on);
                let synced = self.sync_round(object, round).await;
                let failed =
                    synced.and(result).is_err() || self.inner.sync_failures(object) != failures;
                if failed {
                    carried = self.inner.carry(object).and(carried);
                    carried_to = self.inner.state.borrow().log.end();
                }
                let state = &mut *self.inner.state.borrow_mut();
                if let Some(known) = state.objects.get_mut(&object) {
                    known.flushing = false;
                    if let Some(stamp) = stamp.filter(|_| !failed) {
                        state.roll.note(object, stamp);
                    }
                    // The tail has not passed its records: a replay may still read them. None of those
                    // is lost unseen, for the mark of the sync that has just ended is linked to them, and
                    // lies in a segment that the tail keeps.
                    if !failed && known.first_position.is_none() && known.exists {
                        known.chain.last = Chain::DURABLE;
                    }
                }
            }
            carried?;
        }
        self.removals_done_before(tail).await?;
        self.sync_removals_marks_and_roll().await?;
        // A power cut may leave the record of the new tail, and not the records that it relies on.
        self.log_durable_to(carried_to).await?;
        let end = {
            let state = &mut *self.inner.state.borrow_mut();
            let marks = state.marks.number;
            state.log.advance(tail, marks).map_err(self.inner.failed_doing("end a checkpoint"))?;
            state.log.end()
        };
        self.log_durable_to(end).await?;
        let state = &mut *self.inner.state.borrow_mut();
        state.log.forget_before(tail);
        // Calls that wait for room wait for this, too. It goes round twice, since use gives one reprieve.
        let steps = 2 * state.clock.len();
        self.inner.evict(state, steps);
        Ok(())
    }

    /// Writes the changes that only memory has of an object into its file and starts a sync.
    fn flush(&self, object: ObjectId, tail: u64) -> Option<Flushed> {
        let state = &mut *self.inner.state.borrow_mut();
        let known = state.objects.get_mut(&object)?;
        if known.first_position.is_none_or(|position| position >= tail) {
            known.as_of = None;
            return None;
        }
        let failures = known.sync_failures;
        // Blocks that have changed since the checkpoint began: of what they were then the log alone may
        // have a part, before the tail, and the file gets none of it. The later records stand for it.
        let has_changed = known.as_of.as_ref().is_some_and(|entries| !entries.is_empty())
            || known.overlay.values().any(|patch| patch.changed_at >= tail);
        let relies_on = if has_changed { state.log.end() } else { 0 };
        known.flushing = true;
        let result = self.inner.flush_object(state, object, tail);
        let known = state.objects.get_mut(&object)?;
        let stamp = known.file.as_ref().map(|_| known.front.stamp);
        let mut round = known.sync_started + 1;
        // One that is under way may have begun too early to cover everything.
        if known.syncing.is_none() {
            self.begin_sync(state, object);
            round = state.objects[&object].sync_started;
        }
        Some(Flushed { object, round, failures, stamp, relies_on, result })
    }

    /// Completes when the names are gone of all removals of which the log has the tombstone before `tail`:
    /// without the record nothing would take them away after a crash.
    async fn removals_done_before(&self, tail: u64) -> Result<(), ObjectError> {
        loop {
            let settled = {
                let state = self.inner.state.borrow();
                self.inner.admit(&state)?;
                if state.removing.first().is_none_or(|position| *position >= tail) {
                    return Ok(());
                }
                self.inner.settled.notified()
            };
            settled.await;
        }
    }

    async fn sync_removals_marks_and_roll(&self) -> Result<(), ObjectError> {
        let inner = &self.inner;
        let (removed_from, marks, roll) = {
            let state = &mut *inner.state.borrow_mut();
            let marks = state.marks_changed.then(|| {
                state.marks.number += 1;
                state.marks.durable = state.log.durable();
                state.marks.clone()
            });
            state.marks_changed = false;
            (std::mem::take(&mut state.removed_from), marks, state.roll.work())
        };
        let (disk, layout) = (inner.disk.clone(), inner.layout.clone());
        let directories = removed_from.clone();
        let work = inner.world.offload(move || {
            for directory in directories {
                match disk.sync_directory(&layout.directory_path(directory)) {
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => (),
                    result => result?,
                }
            }
            marks.map_or(Ok(()), |marks| marks.save(&disk, layout.root(), layout.store()))?;
            Ok(roll.map(|(file, changes)| (file.write(&changes), changes)))
        });
        let result = work.await.ok_or(ObjectError::Closed)?;
        if let Ok(Some((unwatched, changes))) = &result {
            inner.state.borrow_mut().roll.settled(changes, *unwatched);
        }
        if result.is_err() {
            let state = &mut *inner.state.borrow_mut();
            state.marks_changed = true;
            state.removed_from.extend(removed_from);
        }
        result.map(|_| ()).map_err(inner.failed_doing("save removals and fences"))
    }
}

impl Inner {
    /// Whether `times` the limits that start a checkpoint are exceeded.
    pub(super) fn checkpoint_due(&self, state: &State, times: usize) -> bool {
        let config = &self.config;
        state.log.live_bytes() > config.checkpoint_bytes * times as u64
            || state.log.is_short(times)
            || state.overlay_blocks * super::BLOCK_BYTES > config.overlay_bytes * times
            || state.objects.len() > config.objects_cached.saturating_mul(times)
    }

    /// Goes on in a fresh segment. The tail to reach, the log's end, the objects to bring in.
    fn open_checkpoint(&self) -> Result<(u64, u64, Vec<ObjectId>), ObjectError> {
        let state = &mut *self.state.borrow_mut();
        self.admit(state)?;
        let tail = state.log.rotate().map_err(self.failed_doing("begin a log segment"))?;
        state.image_floor = tail;
        let dirty = state.objects.iter_mut().filter(|(_, object)| !object.is_clean());
        let dirty = dirty.map(|(object, known)| {
            known.as_of = Some(BTreeMap::new());
            *object
        });
        let dirty = dirty.collect();
        Ok((tail, state.log.end(), dirty))
    }

    /// Writes patched blocks whose last change lies before `tail`, and the table.
    fn flush_object(
        &self,
        state: &mut State,
        object: ObjectId,
        tail: u64,
    ) -> Result<(), ObjectError> {
        let known = state.objects.get_mut(&object).expect("the caller has looked it up");
        let as_of = known.as_of.take().unwrap_or_default();
        // Without a file there is nothing but the intents of a write that failed.
        let Some(file) = known.file.clone() else {
            known.first_position = None;
            return Ok(());
        };
        let failed = about(object, "write its file in a checkpoint");
        known.first_position = None;
        let ready = known.overlay.iter().filter(|(_, patch)| patch.changed_at < tail);
        let ready: Vec<u32> = ready.map(|(block, _)| *block).collect();
        let mut blocks = 0;
        for block in ready {
            let patch = &known.overlay[&block];
            file.write_at(self.layout.block_offset(block), &patch.content[..]).map_err(&failed)?;
            blocks += known.set_entry(block, patch_entry(known, block));
            known.unsynced.insert(block);
            if let Some(patch) = known.overlay.remove(&block) {
                state.scratch.give(patch.content);
                state.overlay_blocks -= 1;
            }
        }
        let place = Place { layout: &self.layout, object };
        let tails = Tails { durable: state.log.tail(), next: tail };
        let result = place.write_table(known, &*file, &as_of, tails).map_err(failed);
        // Blocks changed after the tail stay in the log until the next checkpoint.
        for block in as_of.into_keys() {
            known.change_table(block);
            known.first_position = Some(tail);
        }
        let patched = known.overlay.values().map(|patch| patch.imaged_at).min();
        known.first_position = known.first_position.into_iter().chain(patched).min();
        state.count_bytes(blocks);
        result
    }

    fn sync_failures(&self, object: ObjectId) -> u64 {
        self.state.borrow().objects.get(&object).map_or(0, |known| known.sync_failures)
    }

    /// Logs an object's present state in full, since its old records are about to go and its file
    /// cannot be relied upon.
    fn carry(&self, object: ObjectId) -> Result<(), ObjectError> {
        let state = &mut *self.state.borrow_mut();
        let Some(known) = state.objects.get_mut(&object) else { return Ok(()) };
        // Should this fail, the checkpoint fails, and the next one begins with all of it again.
        known.first_position = Some(0);
        known.change_whole_table();
        if let Some((first, count)) = known.suspects.span() {
            state.log.push(&Record::Suspect { object, first, count });
        }
        let oldest = state.log.end();
        // The state of the table in the file is unknown: the holes at its end are logged as well.
        let (entries, end) =
            (known.entries.len() as u32, known.table_end(self.layout.blocks_max()));
        if entries < end {
            state.log.push(&Record::Hole { object, first: entries, count: end - entries });
        }
        let mut pairs = Vec::with_capacity(known.entries.len() * 8);
        let (mut first, group) = (0, known.front.group);
        // An entry after a block's image would hide the image from replay.
        let ends = known.overlay.keys().copied().chain([known.entries.len() as u32]);
        for end in ends {
            pairs.clear();
            for block in first..end {
                pairs.extend_from_slice(&known.entry(block).to_le_bytes());
                pairs.extend_from_slice(&known.entry(block).to_le_bytes());
            }
            if first < end {
                state.log.push(&Record::Write { object, group, first, entries: &pairs });
                self.commit(&mut state.log, &mut known.chain)?;
            }
            first = end + 1;
        }
        // Commits the records that had no block entries to go with.
        let doing = "carry an object over in the log";
        state.log.commit_if_any(&mut known.chain).map_err(self.failed_doing(doing))?;
        for (block, patch) in &mut known.overlay {
            state.log.push(&Record::Image { object, block: *block, bytes: &patch.content[..] });
            let position = self.commit(&mut state.log, &mut known.chain)?;
            (patch.imaged_at, patch.changed_at) = (position, position);
        }
        // The device may have lost these blocks, but the page cache still has them: the log keeps them whole.
        let suspects: Vec<u32> = known.suspects.iter().take(SUSPECTS_CARRIED_MAX).collect();
        for block in suspects {
            let mut content = state.scratch.take();
            let offset = self.layout.block_offset(block);
            let read =
                known.file.as_ref().map(|file| read_filled(&**file, offset, &mut content[..]));
            let entry = known.entry(block);
            if !matches!(read, Some(Ok(()))) || super::block::entry(&content[..]) != entry {
                continue;
            }
            state.log.push(&Record::Image { object, block, bytes: &content[..] });
            let position = self.commit(&mut state.log, &mut known.chain)?;
            let patch = Patch { content, entry, imaged_at: position, changed_at: position };
            known.overlay.insert(block, patch);
            known.suspects.remove(block);
            state.overlay_blocks += 1;
        }
        // Blocks that are not in doubt were synced before. That is logged now, since the sync itself could
        // not do so.
        if known.suspects.is_empty() && !known.sync_failed {
            state.log.push(&Record::Mark { object, position: known.synced_position });
            self.commit(&mut state.log, &mut known.chain)?;
        }
        known.first_position = Some(oldest);
        Ok(())
    }

    fn commit(&self, log: &mut Log, chain: &mut Chain) -> Result<u64, ObjectError> {
        log.commit(chain, 0).map_err(self.failed_doing("carry an object over in the log"))
    }
}

fn patch_entry(object: &Object, block: u32) -> u32 {
    object.overlay[&block].entry
}
