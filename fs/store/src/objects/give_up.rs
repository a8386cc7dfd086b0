//! Giving up the content of objects: their blocks are lost from then on, and their room is free.
//!
//! Lost, and no holes: if somebody looks for the bytes after all, reading them is an error, and another copy mends them. The
//! records are durable before the room goes, so a loss of power never leaves entries over blocks that are gone.

use super::block::UNKNOWN;
use super::punch::free_range;
use super::record::Record;
use super::{Inner, ObjectError, ObjectId, ObjectStore, State, WriteEpoch};

/// Blocks of one record.
const RECORD_BLOCKS: usize = 256;
/// Blocks of one batch, which fits a segment also where each of them has a record of its own.
const BATCH_BLOCKS: usize = 512;

impl ObjectStore {
    /// Every written block of an object is lost from now on. [`ObjectStore::free_given_up`] makes that durable, and frees the room.
    /// Returns the number of blocks.
    pub fn give_up(&self, object: ObjectId, by: WriteEpoch) -> Result<u64, ObjectError> {
        let mut guard = self.inner.state.borrow_mut();
        let state = &mut *guard;
        self.inner.admit(state)?;
        self.inner.admit_epoch(state, by)?;
        if !self.inner.load(state, object, false)? {
            return Ok(0);
        }
        let blocks = self.inner.kept_blocks(state, object);
        for some in blocks.chunks(BATCH_BLOCKS) {
            self.inner.lose_blocks(state, object, some)?;
        }
        let due = self.inner.checkpoint_due(state, 1);
        drop(guard);
        if due {
            self.start_checkpoint();
        }
        Ok(blocks.len() as u64)
    }

    /// Makes durable what was given up of these objects, and frees its room. An object that was written again meanwhile
    /// keeps the new blocks.
    pub async fn free_given_up(&self, objects: &[ObjectId]) -> Result<(), ObjectError> {
        let end = self.inner.state.borrow().log.end();
        self.log_durable_to(end).await?;
        for object in objects {
            let state = &mut *self.inner.state.borrow_mut();
            self.inner.admit(state)?;
            if self.inner.load(state, *object, false)? {
                self.inner.free_lost(state, *object);
            }
        }
        Ok(())
    }
}

impl Inner {
    /// Blocks with bytes, in the file or in memory.
    fn kept_blocks(&self, state: &State, object: ObjectId) -> Vec<u32> {
        let known = &state.objects[&object];
        let in_file =
            known.entries.iter().zip(0..).filter(|(entry, _)| ![0, UNKNOWN].contains(entry));
        let mut blocks: Vec<u32> = in_file.map(|(_, block)| block).collect();
        blocks.extend(known.overlay.keys());
        blocks.sort_unstable();
        blocks.dedup();
        blocks
    }

    fn lose_blocks(
        &self,
        state: &mut State,
        object: ObjectId,
        blocks: &[u32],
    ) -> Result<(), ObjectError> {
        let known = state.objects.get_mut(&object).expect("the object was loaded");
        let group = known.front.group;
        let mut pairs = Vec::new();
        for run in blocks.chunk_by(|a, b| a + 1 == *b).flat_map(|run| run.chunks(RECORD_BLOCKS)) {
            pairs.clear();
            for block in run {
                pairs.extend_from_slice(&known.entry(*block).to_le_bytes());
                pairs.extend_from_slice(&UNKNOWN.to_le_bytes());
            }
            state.log.push(&Record::Write { object, group, first: run[0], entries: &pairs });
        }
        let committed = state.log.commit(&mut known.chain, 0);
        known.logged(committed.map_err(super::error::about(object, "append to the intent log"))?);
        let mut change = 0;
        for block in blocks {
            change += known.set_entry(*block, UNKNOWN);
            // Nobody has to make them durable any more.
            known.suspects.remove(*block);
            known.unsynced.remove(*block);
            if let Some(syncing) = &mut known.syncing {
                syncing.remove(*block);
            }
            if known.overlay.remove(block).is_some() {
                state.overlay_blocks -= 1;
            }
        }
        state.count_bytes(change);
        Ok(())
    }

    /// A refusal costs room and nothing else.
    fn free_lost(&self, state: &mut State, object: ObjectId) {
        let known = &state.objects[&object];
        let Some(file) = known.file.clone() else { return };
        let lost =
            |block: &u32| known.entry(*block) == UNKNOWN && !known.overlay.contains_key(block);
        let blocks: Vec<u32> = (0..known.entries.len() as u32).filter(lost).collect();
        for run in blocks.chunk_by(|a, b| a + 1 == *b) {
            let (from, to) = (run[0], run[run.len() - 1] + 1);
            let _ =
                free_range(&*file, self.layout.block_offset(from), self.layout.block_offset(to));
        }
    }
}
