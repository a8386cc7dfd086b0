//! Writing: verify, log, write in place, remember.
//!
//! Whole blocks of large writes, and blocks that were holes, go in place after their intent is
//! logged. Everything else goes into the log with its bytes and stays in memory until a checkpoint:
//! the file keeps the old block, so nothing beside the written bytes is ever at risk.

use super::block::{BLOCK_BYTES, Block, Cursor, blocks_of, entry, entry_of};
use super::error::about;
use super::object::Patch;
use super::read::read_filled;
use super::record::{IMAGE_RECORD_BYTES, Record, write_record_bytes};
use super::{
    GroupTag, Grouped, Inner, ObjectError, ObjectId, ObjectStore, State, WriteEpoch, Written,
};

const APPENDING: &str = "append to the intent log";

/// A change of a block that goes through the log.
pub(super) struct Logged {
    pub(super) block: u32,
    pub(super) content: Box<Block>,
    /// The changed bytes within the block.
    pub(super) offset: usize,
    pub(super) length: usize,
}

/// A block that goes in place.
struct InPlace {
    block: u32,
    entry: u32,
    /// The bytes, where they are not simply the caller's.
    composed: Option<Box<Block>>,
}

/// Memory that calls use again and again.
#[derive(Default)]
pub(super) struct Scratch {
    in_place: Vec<InPlace>,
    pub(super) logged: Vec<Logged>,
    pairs: Vec<u8>,
    spare: Vec<Box<Block>>,
}

/// Spare block buffers that are kept.
const SPARE_BLOCKS_MAX: usize = 1024;

impl Scratch {
    pub(super) fn take(&mut self) -> Box<Block> {
        self.spare.pop().unwrap_or_else(|| Box::new([0; BLOCK_BYTES]))
    }

    pub(super) fn give(&mut self, block: Box<Block>) {
        if self.spare.len() < SPARE_BLOCKS_MAX {
            self.spare.push(block);
        }
    }

    fn clear(&mut self) {
        while let Some(InPlace { composed, .. }) = self.in_place.pop() {
            if let Some(block) = composed {
                self.give(block);
            }
        }
        while let Some(Logged { content, .. }) = self.logged.pop() {
            self.give(content);
        }
    }
}

/// The verified input of a write.
#[derive(Clone, Copy)]
struct Input<'a> {
    object: ObjectId,
    offset: u64,
    length: u64,
    data: Cursor<'a>,
    checksums: &'a [u32],
}

/// The part of a block that a byte range covers: offset in the block, length.
pub(super) fn part_of(block: u32, offset: u64, length: u64) -> (usize, usize) {
    let start = u64::from(block) * BLOCK_BYTES as u64;
    let from = offset.max(start);
    let to = (offset + length).min(start + BLOCK_BYTES as u64);
    ((from - start) as usize, (to - from) as usize)
}

impl ObjectStore {
    /// Writes `data` (one after the other) at `offset` of an object, which is made where needed, and remembers
    /// its group from then on.
    ///
    /// `checksums` has the CRC32C of the bytes within each block that the range touches, in order.
    /// On success the bytes survive the death of the process. After an error each block has its old
    /// or its new bytes, or reads as an error; nothing else changed. Blocks on the page cache only.
    pub fn write(
        &self,
        object: impl Into<Grouped>,
        offset: u64,
        data: &[&[u8]],
        checksums: &[u32],
        by: WriteEpoch,
    ) -> Result<Written, ObjectError> {
        let Grouped { object, group } = object.into();
        let mut guard = self.inner.state.borrow_mut();
        let state = &mut *guard;
        self.inner.admit(state)?;
        self.inner.admit_epoch(state, by)?;
        let length = data.iter().map(|segment| segment.len() as u64).sum();
        self.inner.check_range(object, offset, length)?;
        let input = Input { object, offset, length, data: Cursor::new(data), checksums };
        self.inner.verify(&input)?;
        if length > 0 {
            self.inner.load(state, object, true)?;
            let known = state.objects.get_mut(&object).expect("the object was loaded");
            known.front.group = known.front.group.or(group);
            let mut scratch = std::mem::take(&mut state.scratch);
            let result = self.inner.write_verified(state, &mut scratch, input);
            scratch.clear();
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
    /// Gives an object another group than the one that it was told first. Whether there is such an object. It is durable
    /// with the next checkpoint; a crash before may bring the former group back.
    pub fn regroup(&self, object: ObjectId, group: GroupTag) -> Result<bool, ObjectError> {
        let state = &mut *self.inner.state.borrow_mut();
        self.inner.admit(state)?;
        if !self.inner.load(state, object, false)? {
            return Ok(false);
        }
        let known = state.objects.get_mut(&object).expect("the object was loaded");
        if known.front.group != group {
            // The record has no block. Through it the next checkpoint writes the head.
            state.log.push(&Record::Write { object, group, first: 0, entries: &[] });
            let committed = state.log.commit(&mut known.chain, 0);
            known.logged(committed.map_err(about(object, APPENDING))?);
            known.front.group = group;
            known.change_table(0);
        }
        Ok(true)
    }
}

impl Inner {
    /// Checks the caller's checksums before anything is touched.
    fn verify(&self, input: &Input<'_>) -> Result<(), ObjectError> {
        let Input { object, offset, length, mut data, checksums } = *input;
        let blocks = if length == 0 { 0..0 } else { blocks_of(offset, length) };
        if blocks.len() != checksums.len() {
            let limit = self.layout.object_bytes();
            return Err(ObjectError::Range { object, offset, length, limit });
        }
        for (block, checksum) in blocks.zip(checksums) {
            let (_, part) = part_of(block, offset, length);
            if data.checksum(part) != *checksum {
                return Err(ObjectError::Checksum { object, block });
            }
        }
        Ok(())
    }

    fn write_verified(
        &self,
        state: &mut State,
        scratch: &mut Scratch,
        input: Input<'_>,
    ) -> Result<(), ObjectError> {
        self.plan(state, scratch, input)?;
        if !scratch.in_place.is_empty() {
            self.log_intents(state, scratch, input.object)?;
            match self.write_in_place(state, scratch, input) {
                Ok(()) => self.remember_in_place(state, scratch, input.object),
                Err(error) => {
                    self.settle_failed(state, scratch, input.object);
                    return Err(error);
                }
            }
        }
        self.commit_logged(state, scratch, input.object, 0)
    }

    /// Decides for each block which way it goes, and composes blocks that are written in part.
    fn plan(
        &self,
        state: &mut State,
        scratch: &mut Scratch,
        input: Input<'_>,
    ) -> Result<(), ObjectError> {
        let Input { object, offset, length, mut data, checksums } = input;
        let small = length <= self.config.logged_bytes as u64;
        for (block, checksum) in blocks_of(offset, length).zip(checksums) {
            let (from, part) = part_of(block, offset, length);
            let known = &state.objects[&object];
            let hole = known.entry(block) == 0 && !known.overlay.contains_key(&block);
            let whole = part == BLOCK_BYTES;
            if whole && (hole || !small) {
                data.skip(part);
                scratch.in_place.push(InPlace {
                    block,
                    entry: entry_of(*checksum),
                    composed: None,
                });
                continue;
            }
            let mut content = scratch.take();
            if !whole {
                self.content(state, object, block, &mut content)?;
            }
            data.copy(&mut content[from..from + part]);
            if hole {
                let entry = entry(&content[..]);
                scratch.in_place.push(InPlace { block, entry, composed: Some(content) });
            } else {
                scratch.logged.push(Logged { block, content, offset: from, length: part });
            }
        }
        Ok(())
    }

    /// Appends the intents of all blocks that go in place.
    fn log_intents(
        &self,
        state: &mut State,
        scratch: &mut Scratch,
        object: ObjectId,
    ) -> Result<(), ObjectError> {
        let Scratch { in_place, logged, pairs, .. } = scratch;
        let known = state.objects.get_mut(&object).expect("the object was loaded");
        let (mut runs, group) = (0, known.front.group);
        for run in in_place.chunk_by(|a, b| a.block + 1 == b.block) {
            pairs.clear();
            for block in run {
                pairs.extend_from_slice(&known.entry(block.block).to_le_bytes());
                pairs.extend_from_slice(&block.entry.to_le_bytes());
            }
            let first = run[0].block;
            state.log.push(&Record::Write { object, group, first, entries: pairs });
            runs += 1;
        }
        // Room for settling a failure, and for the logged part, in the same segment.
        let settle = write_record_bytes(in_place.len()) + runs * write_record_bytes(1);
        let reserve = settle + logged.len() * IMAGE_RECORD_BYTES;
        let position =
            state.log.commit_begun(&mut known.chain, reserve).map_err(about(object, APPENDING))?;
        known.logged(position);
        Ok(())
    }

    fn write_in_place(
        &self,
        state: &mut State,
        scratch: &Scratch,
        input: Input<'_>,
    ) -> Result<(), ObjectError> {
        let Input { object, offset, mut data, .. } = input;
        let file = self.file(state, object)?;
        let last = scratch.in_place.last().map_or(0, |block| block.block);
        self.reserve_table(state, object, last)?;
        let failed = about(object, "write its file");
        let mut consumed = offset;
        let joins = |a: &InPlace, b: &InPlace| {
            a.block + 1 == b.block && a.composed.is_none() && b.composed.is_none()
        };
        for run in scratch.in_place.chunk_by(joins) {
            let mut target = self.layout.block_offset(run[0].block);
            if let Some(content) = &run[0].composed {
                file.write_at(target, &content[..]).map_err(&failed)?;
                continue;
            }
            let start = u64::from(run[0].block) * BLOCK_BYTES as u64;
            data.skip((start - consumed) as usize);
            let mut left = run.len() * BLOCK_BYTES;
            consumed = start + left as u64;
            while left > 0 {
                let part = data.next(left);
                file.write_at(target, part).map_err(&failed)?;
                target += part.len() as u64;
                left -= part.len();
            }
        }
        Ok(())
    }

    fn remember_in_place(&self, state: &mut State, scratch: &mut Scratch, object: ObjectId) {
        let known = state.objects.get_mut(&object).expect("the object was loaded");
        let mut blocks = 0;
        for written in &scratch.in_place {
            blocks += known.set_entry(written.block, written.entry);
            known.unsynced.insert(written.block);
            known.suspects.remove(written.block);
        }
        let (first, last) = match scratch.in_place[..] {
            [ref first, .., ref last] => (first.block, last.block),
            [ref only] => (only.block, only.block),
            [] => return,
        };
        // Nearly always empty: only blocks that were patched lately are in the overlay.
        while let Some((&block, _)) = known.overlay.range(first..=last).find(|(block, _)| {
            scratch.in_place.binary_search_by_key(*block, |written| written.block).is_ok()
        }) {
            if let Some(patch) = known.overlay.remove(&block) {
                state.overlay_blocks -= 1;
                scratch.spare.push(patch.content);
            }
        }
        state.log.done(&mut known.chain);
        state.count_bytes(blocks);
    }

    /// After a failed write in place: reads the present content of each block, and logs that.
    fn settle_failed(&self, state: &mut State, scratch: &mut Scratch, object: ObjectId) {
        let known = state.objects.get_mut(&object).expect("the object was loaded");
        let mut content = scratch.take();
        let mut blocks = 0;
        for planned in &scratch.in_place {
            let old = known.entry(planned.block);
            let found = known.file.as_ref().and_then(|file| {
                let offset = self.layout.block_offset(planned.block);
                read_filled(&**file, offset, &mut content[..]).ok()?;
                Some(entry(&content[..]))
            });
            let kept = match found {
                Some(found) if found == planned.entry => planned.entry,
                _ if known.file.is_none() || old == 0 => old,
                Some(found) if found == old => old,
                // Neither: a mismatch from now on, unless the overlay has the block.
                _ => planned.entry,
            };
            blocks += known.set_entry(planned.block, kept);
            known.unsynced.insert(planned.block);
            if found == Some(planned.entry) && known.overlay.remove(&planned.block).is_some() {
                state.overlay_blocks -= 1;
            }
        }
        scratch.give(content);
        state.count_bytes(blocks);
        if let Err(error) = self.log_settled(state, scratch, object) {
            state.fail(format!("a failed write could not be settled: {error}"));
        }
    }

    /// Logs the content of blocks after a failed write. Blocks that live in the overlay get their image again
    /// and no entry: an entry after the image would hide it from replay.
    fn log_settled(
        &self,
        state: &mut State,
        scratch: &mut Scratch,
        object: ObjectId,
    ) -> std::io::Result<()> {
        let known = state.objects.get_mut(&object).expect("the object was loaded");
        let Scratch { in_place, pairs, .. } = scratch;
        let patched = |block: &InPlace| known.overlay.contains_key(&block.block);
        let joins = |a: &InPlace, b: &InPlace| a.block + 1 == b.block && patched(a) == patched(b);
        for run in in_place.chunk_by(joins).filter(|run| !patched(&run[0])) {
            pairs.clear();
            for block in run {
                let kept = known.entry(block.block).to_le_bytes();
                pairs.extend_from_slice(&kept);
                pairs.extend_from_slice(&kept);
            }
            let (first, entries, group) = (run[0].block, &pairs[..], known.front.group);
            state.log.push_continued(&Record::Write { object, group, first, entries });
            state.log.commit_begun(&mut known.chain, 0)?;
        }
        for planned in in_place.iter() {
            if let Some(patch) = known.overlay.get_mut(&planned.block) {
                let bytes = &patch.content[..];
                state.log.push_continued(&Record::Image { object, block: planned.block, bytes });
                let position = state.log.commit_begun(&mut known.chain, 0)?;
                (patch.imaged_at, patch.changed_at) = (position, position);
            }
        }
        state.log.done(&mut known.chain);
        Ok(())
    }

    /// Appends the blocks of `scratch.logged` and moves them to the overlay. Records that the caller
    /// pushed before go into the same batch; `pushed` says how many those are.
    pub(super) fn commit_logged(
        &self,
        state: &mut State,
        scratch: &mut Scratch,
        object: ObjectId,
        pushed: usize,
    ) -> Result<(), ObjectError> {
        if scratch.logged.is_empty() && pushed == 0 {
            return Ok(());
        }
        let known = state.objects.get_mut(&object).expect("the object was loaded");
        let floor = state.image_floor;
        for Logged { block, content, offset, length } in &scratch.logged {
            let block = *block;
            let based = known.overlay.get(&block).is_some_and(|patch| patch.imaged_at >= floor);
            if based && *length < BLOCK_BYTES {
                let bytes = &content[*offset..*offset + *length];
                state.log.push(&Record::Delta { object, block, offset: *offset as u32, bytes });
            } else {
                state.log.push(&Record::Image { object, block, bytes: &content[..] });
            }
        }
        let position = state.log.commit(&mut known.chain, 0).map_err(about(object, APPENDING))?;
        known.logged(position);
        while let Some(Logged { block, content, length, .. }) = scratch.logged.pop() {
            let entry = entry(&content[..]);
            known.suspects.remove(block);
            match known.overlay.get_mut(&block) {
                Some(patch) => {
                    if patch.imaged_at < floor || length == BLOCK_BYTES {
                        patch.imaged_at = position;
                    }
                    (patch.entry, patch.changed_at) = (entry, position);
                    let old = std::mem::replace(&mut patch.content, content);
                    scratch.give(old);
                }
                None => {
                    let patch = Patch { content, entry, imaged_at: position, changed_at: position };
                    known.overlay.insert(block, patch);
                    state.overlay_blocks += 1;
                }
            }
        }
        Ok(())
    }
}
