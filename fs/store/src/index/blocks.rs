//! The file of the index: the engine's file in blocks with checksums, behind a head, with room in
//! reserve at its end.
//!
//! The engine verifies nothing of what it reads, so every block of 4096 bytes that it writes is
//! followed by a checksum of the block, its number and the store. Block 0, the engine's header, is
//! written in place again and again; it lies in the head instead, twice.
//!
//! The engine copies what it changes, so that even a removal needs room first. All blocks that it
//! believes to have are allocated on the disk, and beyond them lies the reserve: when it grows while
//! the disk is full, it grows into that.
//!
//! Invariants
//! * a block that does not fit its checksum is never handed out: the engine gets zeros, which no page
//!   of its begins with, and the call fails (see `guard`);
//! * no write within the engine's file needs room on the disk;
//! * after the first failed write or sync everything is refused: blocks that a failed sync left out would not
//!   be written by a later one, and the engine would take that one for success.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use redb::StorageBackend;
use ropewalk_base::checksum;
use ropewalk_base::disk::File;

use super::guard::note_damage;
use super::head::{ENGINE_BYTES, HEAD_BYTES, Head, NoHead};

/// Bytes of a block, and of the engine's page.
pub(super) const BLOCK_BYTES: u64 = 4096;
/// Bytes of a block with its checksum.
pub(super) const STRIDE: u64 = BLOCK_BYTES + 4;
/// The offset of block 1. The copies of the head lie before it, a page for each.
const FIRST_OFFSET: u64 = 8192;
const SECOND_HEAD: u64 = 4096;
/// Blocks by which the engine grows its file, at most: it would double it otherwise, and whatever it
/// grows by is allocated.
const GROWTH_BLOCKS: u32 = 1024;
/// The field of the engine's header that holds the number of pages of a region, and the engine's default.
const REGION_PAGES: std::ops::Range<usize> = 20..24;
const REGION_PAGES_USUAL: u32 = 1 << 20;

/// Bytes by which the file grows.
pub(crate) const GROWTH_BYTES: u64 = GROWTH_BLOCKS as u64 * STRIDE;

/// The file, shared by the engine and the index.
pub(super) struct Blocks {
    file: Arc<dyn File>,
    /// The checksum of the store's identity, with which that of each block begins.
    seed: u32,
    reserve: u64,
    failed: AtomicBool,
    state: Mutex<State>,
}

struct State {
    head: Head,
    /// Bytes that the file has on the disk, the reserve included.
    physical: u64,
}

/// Why a file is no index of this store.
pub(super) enum Unfit {
    Io(io::Error),
    /// Neither copy of the head holds.
    Headless,
    /// It is of another store.
    Foreign,
    Newer(u32),
}

impl From<io::Error> for Unfit {
    fn from(cause: io::Error) -> Unfit {
        Unfit::Io(cause)
    }
}

/// Bytes of the file for so many bytes of the engine's.
fn physical_of(len: u64) -> u64 {
    FIRST_OFFSET + (len / BLOCK_BYTES).saturating_sub(1) * STRIDE
}

impl Blocks {
    /// Begins an empty file, with its reserve.
    pub(super) fn create(file: Arc<dyn File>, store: u128, reserve: u64) -> io::Result<Blocks> {
        file.set_len(0)?;
        file.allocate(0, FIRST_OFFSET + reserve)?;
        let head = Head { sequence: 0, store, len: 0, engine: [0; ENGINE_BYTES] };
        Ok(Blocks::new(file, head, FIRST_OFFSET + reserve, reserve))
    }

    /// Takes up a file of `store`.
    pub(super) fn open(file: Arc<dyn File>, store: u128, reserve: u64) -> Result<Blocks, Unfit> {
        let mut newest: Option<Head> = None;
        let mut foreign = false;
        for offset in [0, SECOND_HEAD] {
            let mut bytes = [0; HEAD_BYTES];
            let count = file.read_at(offset, &mut bytes)?;
            match Head::decode(&bytes[..count]) {
                Ok(head) if head.store != store => foreign = true,
                Ok(head) if newest.as_ref().is_none_or(|seen| seen.sequence < head.sequence) => {
                    newest = Some(head);
                }
                Err(NoHead::Newer(version)) => return Err(Unfit::Newer(version)),
                Ok(_) | Err(NoHead::Damaged) => {}
            }
        }
        let Some(head) = newest else {
            return Err(if foreign { Unfit::Foreign } else { Unfit::Headless });
        };
        let physical = file.len()?;
        Ok(Blocks::new(file, head, physical, reserve))
    }

    fn new(file: Arc<dyn File>, head: Head, physical: u64, reserve: u64) -> Blocks {
        let seed = checksum::crc32c(&head.store.to_le_bytes());
        let state = Mutex::new(State { head, physical });
        Blocks { file, seed, reserve, failed: AtomicBool::new(false), state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("never left half-changed")
    }

    /// Bytes of the file that the engine uses, or may use without growing.
    pub(super) fn engine_bytes(&self) -> u64 {
        physical_of(self.state().head.len)
    }

    /// Bytes of the reserve that are there.
    pub(super) fn reserve_bytes(&self) -> u64 {
        let state = self.state();
        state.physical.saturating_sub(physical_of(state.head.len))
    }

    /// Takes the reserve up again where it was used, as far as the disk has room.
    pub(super) fn replenish(&self) -> io::Result<()> {
        let mut state = self.state();
        let wanted = physical_of(state.head.len) + self.reserve;
        match self.extend(&mut state, wanted) {
            Err(cause) if is_full(&cause) => Ok(()),
            result => result,
        }
    }

    fn extend(&self, state: &mut State, wanted: u64) -> io::Result<()> {
        if state.physical >= wanted {
            return Ok(());
        }
        let result = self.file.allocate(state.physical, wanted - state.physical);
        state.physical = self.file.len()?;
        result
    }

    fn change(&self, change: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        if self.failed.load(Ordering::Acquire) {
            return Err(io::Error::other("an earlier write of the index failed"));
        }
        let result = change();
        if result.is_err() {
            self.failed.store(true, Ordering::Release);
        }
        result
    }

    fn write_head(&self, state: &mut State) -> io::Result<()> {
        state.head.sequence += 1;
        let bytes = state.head.encode();
        self.file.write_at(0, &bytes)?;
        self.file.write_at(SECOND_HEAD, &bytes)
    }

    fn resize(&self, len: u64) -> io::Result<()> {
        let mut state = self.state();
        let (needed, wanted) = (physical_of(len), physical_of(len) + self.reserve);
        match self.extend(&mut state, wanted) {
            // Into the reserve.
            Err(cause) if is_full(&cause) && state.physical >= needed => {}
            // As long as it has what it needs, the reserve may come later.
            Err(cause) if is_full(&cause) => self.extend(&mut state, needed)?,
            result => result?,
        }
        state.head.len = len;
        self.write_head(&mut state)?;
        if state.physical > wanted {
            self.file.set_len(wanted)?;
            state.physical = wanted;
        }
        Ok(())
    }

    fn checksum(&self, block: u64, bytes: &[u8]) -> u32 {
        let begin = checksum::append(self.seed, &block.to_le_bytes());
        checksum::append(begin, bytes)
    }

    /// Reads whole blocks from `offset` of the engine's file on. Where one of them does not hold, all
    /// are zeros.
    fn read_blocks(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let first = offset / BLOCK_BYTES;
        let count = out.len() as u64 / BLOCK_BYTES;
        let begin = FIRST_OFFSET + (first - 1) * STRIDE;
        let mut bytes = vec![0; (count * STRIDE) as usize];
        // An error of the disk is one of these blocks: the engine would refuse all others after it.
        let got = self.file.read_at(begin, &mut bytes).unwrap_or(0);
        for number in 0..count {
            let at = (number * STRIDE) as usize;
            let (block, sum) = bytes[at..at + STRIDE as usize].split_at(BLOCK_BYTES as usize);
            let sum = u32::from_le_bytes(sum.try_into().expect("four bytes"));
            if got < at + STRIDE as usize || self.checksum(first + number, block) != sum {
                note_damage(begin + at as u64);
                out.fill(0);
                return Ok(());
            }
            let to = (number * BLOCK_BYTES) as usize;
            out[to..to + BLOCK_BYTES as usize].copy_from_slice(block);
        }
        Ok(())
    }

    fn write_blocks(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let first = offset / BLOCK_BYTES;
        let count = data.len().div_ceil(BLOCK_BYTES as usize);
        let mut bytes = Vec::with_capacity(count * STRIDE as usize);
        for (number, block) in data.chunks_exact(BLOCK_BYTES as usize).enumerate() {
            bytes.extend_from_slice(block);
            let sum = self.checksum(first + number as u64, block);
            bytes.extend_from_slice(&sum.to_le_bytes());
        }
        self.file.write_at(FIRST_OFFSET + (first - 1) * STRIDE, &bytes)
    }

    /// Lets a new file grow in small steps: the first headers that the engine writes say otherwise. It
    /// reads back what it wrote before it believes it.
    fn limit_growth(engine: &mut [u8; ENGINE_BYTES]) {
        let pages = u32::from_le_bytes(engine[REGION_PAGES].try_into().expect("four bytes"));
        if pages == REGION_PAGES_USUAL {
            engine[REGION_PAGES].copy_from_slice(&GROWTH_BLOCKS.to_le_bytes());
        }
    }
}

/// Whether the disk has no room.
fn is_full(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Whether a range consists of whole blocks behind the engine's header.
fn is_whole(offset: u64, len: usize) -> bool {
    offset >= BLOCK_BYTES
        && offset.is_multiple_of(BLOCK_BYTES)
        && len.is_multiple_of(BLOCK_BYTES as usize)
}

fn misplaced(offset: u64, len: usize) -> io::Error {
    io::Error::other(format!("the engine asks for {len} bytes at {offset}, which are no blocks"))
}

/// The blocks as the engine has them.
pub(super) struct Backend(pub Arc<Blocks>);

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Backend")
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.state().head.len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if is_whole(offset, out.len()) {
            return self.0.read_blocks(offset, out);
        }
        let state = self.0.state();
        let end = (offset as usize).checked_add(out.len()).filter(|end| *end <= ENGINE_BYTES);
        let end = end.ok_or_else(|| misplaced(offset, out.len()))?;
        out.copy_from_slice(&state.head.engine[offset as usize..end]);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.change(|| self.0.resize(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.change(|| self.0.file.sync_data())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let blocks = &*self.0;
        if is_whole(offset, data.len()) {
            return blocks.change(|| blocks.write_blocks(offset, data));
        }
        if offset != 0 || data.len() != ENGINE_BYTES {
            return Err(misplaced(offset, data.len()));
        }
        blocks.change(|| {
            let mut state = blocks.state();
            state.head.engine.copy_from_slice(data);
            Blocks::limit_growth(&mut state.head.engine);
            blocks.write_head(&mut state)
        })
    }
}
