//! The memories of operations under way, and copies between parts of them.
//!
//! Invariants: those of [`super`]; a copy of 1, 2, 4 or 8 bytes reads its source once and writes its target once, where
//! each is aligned, so that nobody sees a part of it. A copy of fleeting memory fails where the memory is gone.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Gone, Memory, Segment, guard, store};
use crate::followed::Followed;
use crate::slots::{SlotId, Slots};
use crate::time::Time;

/// Names a memory in a [`BufferTable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BufferId(pub SlotId);

/// A range of bytes of a memory in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    pub buffer: BufferId,
    /// First byte, counted over all segments of the memory.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

impl Slice {
    /// No bytes, of no buffer.
    pub const NONE: Slice =
        Slice { buffer: BufferId(SlotId { index: u32::MAX, generation: 0 }), offset: 0, len: 0 };

    /// The part that begins `offset` bytes in and has `len` bytes; must lie inside.
    #[inline]
    pub fn part(self, offset: u64, len: u64) -> Slice {
        assert!(offset <= self.len && len <= self.len - offset, "a part lies inside its slice");
        Slice { buffer: self.buffer, offset: self.offset + offset, len }
    }
}

/// Bytes that are copied at a time for a checksum: few enough for the stack and the nearest cache.
const CHECKSUM_BYTES: usize = 8 * 1024;

/// The memories of all operations in flight of one endpoint.
#[derive(Debug)]
pub struct BufferTable {
    memories: Slots<Memory>,
    /// Bytes that were copied to and from them. Only the table's holder counts: no addition has to be atomic.
    copied: AtomicU64,
    /// Those that something is fetched into, where anybody asks for that.
    followed: Followed,
}

impl BufferTable {
    /// A table for at most `limit` memories.
    pub fn with_limit(limit: usize) -> BufferTable {
        BufferTable {
            memories: Slots::with_limit(limit),
            copied: AtomicU64::new(0),
            followed: Followed::default(),
        }
    }

    /// Takes a memory in; gives it back where the table is full.
    #[inline]
    pub fn insert(&mut self, memory: Memory) -> Result<BufferId, Memory> {
        self.memories.insert(memory).map(BufferId)
    }

    /// Gives a memory back to its owner; slices of it resolve to nothing from now on.
    #[inline]
    pub fn remove(&mut self, id: BufferId) -> Option<Memory> {
        if !self.followed.is_empty() {
            self.followed.remove(id.0);
        }
        self.memories.remove(id.0)
    }

    /// The memory that `id` names.
    #[inline]
    pub fn get(&self, id: BufferId) -> Option<&Memory> {
        self.memories.get(id.0)
    }

    /// The number of memories.
    pub fn len(&self) -> usize {
        self.memories.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.memories.is_empty()
    }

    /// From now on something is fetched into a memory, of which somebody may ask how it goes.
    pub fn follow(&mut self, id: BufferId, now: Time) {
        self.followed.add(id.0, now);
    }

    /// Since when nothing more has come of what is fetched into a memory: since it began, or since the last question
    /// before which something had come. `None` where nothing is fetched.
    pub fn still_since(&mut self, id: BufferId, now: Time) -> Option<Time> {
        self.followed.still_since(id.0, now)
    }

    /// The non-empty segments behind `slice`, cut at the memory's end; none for a stale buffer.
    #[inline]
    pub fn resolve(&self, slice: Slice) -> Segments<'_> {
        let segments = self.get(slice.buffer).map_or(&[][..], Memory::segments);
        Segments { segments, skip: slice.offset, left: slice.len }
    }

    /// The same for those who write there: none for read-only memory.
    #[inline]
    pub fn resolve_writable(&self, slice: Slice) -> Segments<'_> {
        let memory = self.get(slice.buffer).filter(|memory| memory.is_writable());
        let segments = memory.map_or(&[][..], Memory::segments);
        Segments { segments, skip: slice.offset, left: slice.len }
    }

    /// Whether the memory of a slice may go away while it is here: see [`super::Cells::fleeting`]. A caller that resolves such a slice
    /// copies by [`Segment::copy_out`].
    #[inline]
    pub fn is_fleeting(&self, slice: Slice) -> bool {
        guard::is_in_use() && self.get(slice.buffer).is_some_and(Memory::is_fleeting)
    }

    /// Whether the bytes of a slice are there at this moment. Of memory that cannot go away they are; of other memory each page is
    /// looked at.
    #[inline]
    pub fn is_there(&self, slice: Slice) -> bool {
        !self.is_fleeting(slice) || self.resolve(slice).all(Segment::is_there)
    }

    /// Bytes that were copied to, from and between these memories so far. Copies by the kernel are not among them, nor
    /// are bytes that a checksum reads.
    pub fn bytes_copied(&self) -> u64 {
        self.copied.load(Ordering::Relaxed)
    }

    /// Bytes came to a memory.
    #[inline]
    pub(super) fn came(&self, to: BufferId, bytes: u64) {
        if !self.followed.is_empty() {
            self.followed.note(to.0, bytes);
        }
        self.count(bytes);
    }

    #[inline]
    fn count(&self, bytes: u64) {
        self.copied.store(self.copied.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    }

    /// Copies `from` to `to`, over segment borders, as many bytes as both have. Returns that number; fewer where memory is gone.
    pub fn copy(&self, from: Slice, to: Slice) -> u64 {
        self.try_copy(from, to).unwrap_or_else(|gone| gone.done as u64)
    }

    /// The same, for those who have to know where memory is gone.
    ///
    /// # Errors
    /// Some of the bytes are not there; any part of them may have been copied.
    pub fn try_copy(&self, from: Slice, to: Slice) -> Result<u64, Gone> {
        let is_fleeting = self.is_fleeting(from) || self.is_fleeting(to);
        let (copied, is_whole) = self.copy_segments(from, to, is_fleeting);
        self.came(to.buffer, copied);
        if is_whole { Ok(copied) } else { Err(Gone { done: copied as usize }) }
    }

    /// Bytes that were copied, and whether no memory was gone.
    fn copy_segments(&self, from: Slice, to: Slice, is_fleeting: bool) -> (u64, bool) {
        let mut source = self.resolve(from);
        let mut target = self.resolve_writable(to);
        let (mut a, mut b) = (Segment::EMPTY, Segment::EMPTY);
        let mut copied = 0;
        loop {
            if a.is_empty() {
                a = match source.next() {
                    Some(segment) => segment,
                    None => return (copied, true),
                };
            }
            if b.is_empty() {
                b = match target.next() {
                    Some(segment) => segment,
                    None => return (copied, true),
                };
            }
            let bytes = a.len().min(b.len());
            // SAFETY: both segments belong to memories in this table, which keep them mapped, or are
            // fleeting. No Rust reference into the target exists (module invariant): it is writable,
            // which memory is not that others hold references to.
            let copied_it = unsafe { copy(a.as_mut_ptr(), b.as_mut_ptr(), bytes, is_fleeting) };
            if !copied_it {
                return (copied, false);
            }
            a = a.part(bytes, usize::MAX);
            b = b.part(bytes, usize::MAX);
            copied += bytes as u64;
        }
    }

    /// Copies the bytes of `from` into `to`, as many as both have; for tests and small headers. Returns that number; fewer
    /// where memory is gone.
    pub fn read(&self, from: Slice, to: &mut [u8]) -> usize {
        self.try_read(from, to).unwrap_or_else(|gone| gone.done)
    }

    /// The same, for those who have to know where memory is gone.
    ///
    /// # Errors
    /// Some of the bytes are not there; any part of them may have been copied.
    pub fn try_read(&self, from: Slice, to: &mut [u8]) -> Result<usize, Gone> {
        let is_fleeting = self.is_fleeting(from);
        let mut done = 0;
        for segment in self.resolve(from) {
            let bytes = segment.len().min(to.len() - done);
            // SAFETY: the segment is alive (see `copy`), or fleeting; `to` is a reference of the
            // caller's own and has at least `bytes` bytes left.
            let copied = unsafe {
                copy(segment.as_mut_ptr(), to.as_mut_ptr().add(done), bytes, is_fleeting)
            };
            if !copied {
                return Err(Gone { done });
            }
            done += bytes;
        }
        self.count(done as u64);
        Ok(done)
    }

    /// Copies `from` into the bytes of `to`, as many as both have. Returns that number; fewer where memory is gone.
    pub fn write(&self, to: Slice, from: &[u8]) -> usize {
        self.try_write(to, from).unwrap_or_else(|gone| gone.done)
    }

    /// The same, for those who have to know where memory is gone.
    ///
    /// # Errors
    /// Some of the bytes are not there; any part of them may have been copied.
    pub fn try_write(&self, to: Slice, from: &[u8]) -> Result<usize, Gone> {
        let is_fleeting = self.is_fleeting(to);
        let mut done = 0;
        for segment in self.resolve_writable(to) {
            let bytes = segment.len().min(from.len() - done);
            // SAFETY: as in `try_read`, the other way round; the segment may be written.
            let copied =
                unsafe { copy(from.as_ptr().add(done), segment.as_mut_ptr(), bytes, is_fleeting) };
            if !copied {
                return Err(Gone { done });
            }
            done += bytes;
        }
        self.came(to.buffer, done as u64);
        Ok(done)
    }

    /// Copies memory outside of the table into the bytes of `to`, as many as both have.
    ///
    /// # Errors
    /// Some bytes of `to` are not there; any part of the others may have been written.
    ///
    /// # Safety
    /// `from` is mapped, and lies outside of every memory of the table.
    #[inline]
    pub unsafe fn fill(&self, to: Slice, from: Segment) -> Result<(), Gone> {
        if self.is_fleeting(to) {
            // SAFETY: as the caller vouches.
            return unsafe { self.fill_fleeting(to, from) };
        }
        let mut from = from;
        for segment in self.resolve_writable(to) {
            let bytes = segment.len().min(from.len());
            // SAFETY: the segment is alive and may be written, the caller vouches for `from`.
            unsafe { store::copy(from.as_mut_ptr(), segment.as_mut_ptr(), bytes) };
            self.came(to.buffer, bytes as u64);
            from = from.part(bytes, usize::MAX);
            if from.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// # Safety
    /// As [`Self::fill`].
    #[cold]
    unsafe fn fill_fleeting(&self, to: Slice, from: Segment) -> Result<(), Gone> {
        let mut done = 0;
        for segment in self.resolve_writable(to) {
            let part = from.part(done, segment.len());
            // SAFETY: the caller vouches for `from`; nobody refers to the segment, which may be gone.
            if !unsafe { guard::copy(part.as_mut_ptr(), segment.as_mut_ptr(), part.len()) } {
                return Err(Gone { done });
            }
            self.came(to.buffer, part.len() as u64);
            done += part.len();
        }
        Ok(())
    }

    /// The CRC32C of the bytes of `slice`; where some of them are gone, one that hardly anything has.
    pub fn crc32c(&self, slice: Slice) -> u32 {
        let is_fleeting = self.is_fleeting(slice);
        let mut crc = 0;
        let mut space = [const { MaybeUninit::<u8>::uninit() }; CHECKSUM_BYTES];
        for mut rest in self.resolve(slice) {
            while !rest.is_empty() {
                let bytes = rest.len().min(CHECKSUM_BYTES);
                // A peer might write there meanwhile, so that there must be no reference to it: the
                // checksum is that of a copy. Where both ran at once it fails, which is what it is for.
                // SAFETY: the memory is alive (see `copy`), or fleeting, and apart from `space`, which is
                // ours alone; what the slice covers was written just before.
                let copied = unsafe {
                    let to = space.as_mut_ptr().cast::<u8>();
                    if is_fleeting && !guard::copy(rest.as_mut_ptr(), to, bytes) {
                        return !crc;
                    }
                    if !is_fleeting {
                        ptr::copy_nonoverlapping(rest.as_mut_ptr(), to, bytes);
                    }
                    std::slice::from_raw_parts(to, bytes)
                };
                crc = crate::checksum::append(crc, copied);
                rest = rest.part(bytes, usize::MAX);
            }
        }
        crc
    }
}

/// Copies bytes; false where they are fleeting and gone.
///
/// # Safety
/// As [`store::copy`]; but fleeting bytes need not be mapped.
#[inline]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize, is_fleeting: bool) -> bool {
    // SAFETY: as the caller vouches.
    unsafe {
        if is_fleeting {
            return guard::copy(from, to, bytes);
        }
        store::copy(from, to, bytes);
    }
    true
}

impl Segment {
    /// Copies the bytes of a fleeting memory's segment. False where some of them are gone; then any part of them was copied.
    ///
    /// # Safety
    /// So many bytes may be written at `to`. The segment is of a memory that is alive.
    pub unsafe fn copy_out(self, to: *mut u8) -> bool {
        // SAFETY: as the caller vouches; bytes that are gone end the copy.
        unsafe { guard::copy(self.as_mut_ptr(), to, self.len()) }
    }

    /// Whether all its bytes are there.
    pub(super) fn is_there(self) -> bool {
        // SAFETY: a byte is read of each page, and nobody refers to what a peer may write.
        unsafe { guard::is_there(self.as_mut_ptr(), self.len()) }
    }
}

impl Memory {
    /// The non-empty segments of so many bytes, from byte `skip` on; cut at the end.
    #[inline]
    pub(super) fn parts(&self, skip: u64, bytes: u64) -> Segments<'_> {
        Segments { segments: self.segments(), skip, left: bytes }
    }
}

/// The segments behind a [`Slice`], in order, none of them empty.
#[derive(Debug, Clone)]
pub struct Segments<'a> {
    segments: &'a [Segment],
    skip: u64,
    left: u64,
}

impl Iterator for Segments<'_> {
    type Item = Segment;

    #[inline]
    fn next(&mut self) -> Option<Segment> {
        while self.left > 0 {
            let (&segment, rest) = self.segments.split_first()?;
            self.segments = rest;
            if self.skip >= segment.len() as u64 {
                self.skip -= segment.len() as u64;
                continue;
            }
            let part =
                segment.part(self.skip as usize, usize::try_from(self.left).unwrap_or(usize::MAX));
            self.skip = 0;
            self.left -= part.len() as u64;
            return Some(part);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::pool::Pool;

    #[test]
    fn copies_cross_segment_borders_and_stale_slices_resolve_to_nothing() {
        let pool = Pool::with_budget(1 << 20);
        let mut table = BufferTable::with_limit(8);
        let mut pieces = Vec::new();
        for (size, fill) in [(3usize, 1u8), (1, 2), (5, 3)] {
            let mut buffer = pool.take(size).unwrap();
            buffer.fill(fill);
            pieces.push(buffer);
        }
        let a = table.insert(Memory::many(pieces)).unwrap();
        let b = table.insert(Memory::pooled(pool.take(16).unwrap())).unwrap();
        let from = Slice { buffer: a, offset: 2, len: 5 };
        let to = Slice { buffer: b, offset: 4, len: 12 };
        assert_eq!(table.copy(from, to), 5);
        let mut out = [0u8; 5];
        assert_eq!(table.read(to.part(0, 5), &mut out), 5);
        assert_eq!(out, [1, 2, 3, 3, 3]);
        assert_eq!(table.crc32c(from), crate::checksum::crc32c(&out));
        assert!(table.remove(a).is_some());
        assert_eq!(table.copy(from, to), 0);
    }

    #[test]
    fn memory_that_may_not_be_written_stays_as_it_is() {
        static CONSTANT: [u8; 4] = *b"keep";
        let mut promised = CONSTANT;
        let pool = Pool::with_budget(1 << 20);
        let mut table = BufferTable::with_limit(8);
        let mut shared = pool.take(4).unwrap();
        shared.copy_from_slice(&CONSTANT);
        let shared = Arc::new(shared);
        // SAFETY: the array outlives the table, and is looked at through the table only.
        let raw = |promised: &mut [u8; 4], cuts: &[usize]| unsafe {
            let whole = Segment::new(promised.as_mut_ptr(), promised.len());
            let segments: Vec<Segment> = cuts.iter().map(|cut| whole.part(*cut, 2)).collect();
            Memory::from_raw(&segments, false)
        };
        let source = table.insert(Memory::pooled(pool.take(4).unwrap())).unwrap();
        let source = Slice { buffer: source, offset: 0, len: 4 };
        assert_eq!(table.write(source, b"lost"), 4);
        let memories = [
            Memory::constant(&CONSTANT),
            Memory::shared(shared.clone()),
            raw(&mut promised, &[0, 2]),
        ];
        for memory in memories {
            let target = Slice { buffer: table.insert(memory).unwrap(), offset: 0, len: 4 };
            assert_eq!(table.write(target, b"lost"), 0);
            assert_eq!(table.copy(source, target), 0);
            let mut outside = *b"lost";
            // SAFETY: a local array is mapped and in no table.
            unsafe { table.fill(target, Segment::new(outside.as_mut_ptr(), 4)) }.unwrap();
            let mut bytes = [0; 4];
            assert_eq!(table.read(target, &mut bytes), 4);
            assert_eq!(bytes, CONSTANT);
        }
    }

    #[test]
    fn a_checksum_is_that_of_all_bytes_however_they_are_cut() {
        let pool = Pool::with_budget(1 << 20);
        let mut table = BufferTable::with_limit(1);
        let mut pieces = Vec::new();
        let mut all = Vec::new();
        for size in [1, CHECKSUM_BYTES - 1, CHECKSUM_BYTES, 1, 3 * CHECKSUM_BYTES + 7] {
            let mut buffer = pool.take(size).unwrap();
            buffer.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 7 + size) as u8);
            all.extend_from_slice(&buffer);
            pieces.push(buffer);
        }
        let buffer = table.insert(Memory::many(pieces)).unwrap();
        for (offset, len) in [(0, all.len()), (5, CHECKSUM_BYTES), (CHECKSUM_BYTES, 9), (3, 0)] {
            let slice = Slice { buffer, offset: offset as u64, len: len as u64 };
            let expected = crate::checksum::crc32c(&all[offset..offset + len]);
            assert_eq!(table.crc32c(slice), expected, "{len} bytes from {offset}");
        }
    }
}
