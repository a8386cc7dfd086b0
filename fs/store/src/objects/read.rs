//! Reading: every block is compared with its checksum before a byte of it is used, here or by the
//! reader, who is given the checksums.

use ropewalk_base::checksum;
use ropewalk_base::disk::File;

use super::block::{BLOCK_BYTES, Block, ZERO_CHECKSUM, blocks_of, checksum_of, entry, entry_of};
use super::error::about;
use super::write::part_of;
use super::{Inner, ObjectError, ObjectId, ObjectStore, State};

const READING: &str = "read its file";

/// The result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadOutcome {
    /// No such object: whether that means zeros or a loss is the caller's knowledge. Nothing was
    /// put into the caller's memory.
    Absent,
    /// All bytes were put into place, zeros where nothing was written.
    Present { bytes: usize },
}

impl ObjectStore {
    /// [`ObjectStore::read`] for a reader that compares the bytes with the checksums: those of whole blocks
    /// are the ones noted when the blocks were written, whatever the device says now.
    pub fn read_unverified(
        &self,
        object: ObjectId,
        offset: u64,
        into: &mut [u8],
        checksums: &mut Vec<u32>,
    ) -> Result<ReadOutcome, ObjectError> {
        self.read_with(object, offset, into, checksums, false)
    }

    /// Reads `into.len()` bytes at `offset`, and appends to `checksums` the CRC32C of the bytes
    /// within each block that the range touches. Blocks on the device where its cache misses.
    pub fn read(
        &self,
        object: ObjectId,
        offset: u64,
        into: &mut [u8],
        checksums: &mut Vec<u32>,
    ) -> Result<ReadOutcome, ObjectError> {
        self.read_with(object, offset, into, checksums, true)
    }

    fn read_with(
        &self,
        object: ObjectId,
        offset: u64,
        into: &mut [u8],
        checksums: &mut Vec<u32>,
        verify: bool,
    ) -> Result<ReadOutcome, ObjectError> {
        let state = &mut *self.inner.state.borrow_mut();
        self.inner.check_range(object, offset, into.len() as u64)?;
        if !self.inner.load(state, object, false)? {
            return Ok(ReadOutcome::Absent);
        }
        let result = self.inner.read_present(state, object, offset, into, checksums, verify);
        if let Err(ObjectError::Corrupt { .. }) = result {
            state.corrupt_blocks += 1;
        }
        result.map(|()| ReadOutcome::Present { bytes: into.len() })
    }

    /// Reads a whole object and compares every written block. Returns the number of written blocks.
    pub fn verify(&self, object: ObjectId) -> Result<u64, ObjectError> {
        let state = &mut *self.inner.state.borrow_mut();
        if !self.inner.load(state, object, false)? {
            return Ok(0);
        }
        let mut content = state.scratch.take();
        let blocks = state.objects[&object].entries.len() as u32;
        let mut result = Ok(state.objects[&object].written_blocks());
        for block in 0..blocks {
            if let Err(error) = self.inner.content(state, object, block, &mut content) {
                result = Err(error);
                break;
            }
        }
        state.scratch.give(content);
        result
    }
}

/// Reads until `into` is full; bytes behind the file's end are zeros.
pub(super) fn read_filled(file: &dyn File, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
    let read = file.read_at(offset, into)?;
    into[read..].fill(0);
    Ok(())
}

impl Inner {
    /// The content of one block as it reads now, verified.
    pub(super) fn content(
        &self,
        state: &State,
        object: ObjectId,
        block: u32,
        into: &mut Block,
    ) -> Result<(), ObjectError> {
        let known = &state.objects[&object];
        if let Some(patch) = known.overlay.get(&block) {
            into.copy_from_slice(&patch.content[..]);
            return Ok(());
        }
        let expected = known.entry(block);
        let Some(file) = known.file.as_ref().filter(|_| expected != 0) else {
            into.fill(0);
            return Ok(());
        };
        read_filled(&**file, self.layout.block_offset(block), into)
            .map_err(about(object, READING))?;
        if entry(into) != expected {
            return Err(ObjectError::Corrupt { object, block });
        }
        Ok(())
    }

    fn read_present(
        &self,
        state: &mut State,
        object: ObjectId,
        offset: u64,
        into: &mut [u8],
        checksums: &mut Vec<u32>,
        verify: bool,
    ) -> Result<(), ObjectError> {
        let length = into.len() as u64;
        let blocks = if length == 0 { 0..0 } else { blocks_of(offset, length) };
        let mut block = blocks.start;
        let mut done = 0;
        while block < blocks.end {
            let run = self.in_place_run(state, object, block, offset, length);
            if run > 0 {
                let target = &mut into[done..done + run * BLOCK_BYTES];
                self.read_run(state, object, block, target, checksums, verify)?;
                done += target.len();
                block += run as u32;
                continue;
            }
            let (from, part) = part_of(block, offset, length);
            let target = &mut into[done..done + part];
            let known = &state.objects[&object];
            if known.entry(block) == 0 && !known.overlay.contains_key(&block) {
                target.fill(0);
                let whole = part == BLOCK_BYTES;
                checksums.push(if whole { ZERO_CHECKSUM } else { checksum::crc32c(target) });
            } else {
                let mut content = state.scratch.take();
                let result = self.content(state, object, block, &mut content);
                target.copy_from_slice(&content[from..from + part]);
                state.scratch.give(content);
                result?;
                checksums.push(checksum::crc32c(target));
            }
            done += part;
            block += 1;
        }
        Ok(())
    }

    /// The number of whole blocks from `block` on that can be read from the file at once.
    fn in_place_run(
        &self,
        state: &State,
        object: ObjectId,
        block: u32,
        offset: u64,
        length: u64,
    ) -> usize {
        let known = &state.objects[&object];
        let from = u64::from(block) * BLOCK_BYTES as u64;
        if from < offset {
            return 0;
        }
        let whole = ((offset + length - from) / BLOCK_BYTES as u64) as u32;
        let patched = known.overlay.range(block..).next().map_or(u32::MAX, |(block, _)| *block);
        let end = (block + whole).min(patched).min(known.entries.len() as u32);
        let entries = known.entries.get(block as usize..end as usize).unwrap_or(&[]);
        entries.iter().take_while(|entry| **entry != 0).count()
    }

    fn read_run(
        &self,
        state: &State,
        object: ObjectId,
        first: u32,
        into: &mut [u8],
        checksums: &mut Vec<u32>,
        verify: bool,
    ) -> Result<(), ObjectError> {
        let known = &state.objects[&object];
        let file = known.file.as_ref().expect("an object with blocks has a file");
        read_filled(&**file, self.layout.block_offset(first), into)
            .map_err(about(object, READING))?;
        for (index, content) in into.chunks_exact(BLOCK_BYTES).enumerate() {
            let block = first + index as u32;
            if let (false, Some(noted)) = (verify, checksum_of(known.entry(block))) {
                checksums.push(noted);
                continue;
            }
            let found = checksum::crc32c(content);
            if entry_of(found) != known.entry(block) {
                return Err(ObjectError::Corrupt { object, block });
            }
            checksums.push(found);
        }
        Ok(())
    }
}
