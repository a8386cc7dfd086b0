//! The layout of the memory that the two sides of a link share, and of a rail's board.
//!
//! A *segment* belongs to one link: two rings, and for each side the lines that it writes and its
//! table of exposures. A *board* belongs to one rail and is read by all its peers: the sleeping
//! word. Side 0 is the connector's, side 1 the acceptor's.
//!
//! Invariants: each line has one writer; producer's, consumer's and guard's lines are two cache
//! lines apart, since processors fetch them in pairs; pages nobody touched cost no memory, so the
//! tables may be large.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::mapping::Mapping;
use crate::ring::Medium;
use crate::sleep::EpochWord;

/// Bytes of one ring.
pub const RING_BYTES: usize = 1024 * 1024;
/// Exposures of one side that a link can have, by the index of their key.
pub const EXPOSURES_MAX: u32 = 64 * 1024;

const PAGE_BYTES: usize = 4096;
const LINES: usize = 1024;
const LINES_BYTES: usize = 1024;
const RINGS: usize = PAGE_BYTES;
const TABLES: usize = RINGS + 2 * RING_BYTES;
const ENTRY_BYTES: usize = 64;
const TABLE_BYTES: usize = EXPOSURES_MAX as usize * ENTRY_BYTES;

/// Bytes of a segment; nearly all of it is table that is never touched.
pub const SEGMENT_BYTES: usize = TABLES + 2 * TABLE_BYTES;
/// Bytes of a board.
pub const BOARD_BYTES: usize = PAGE_BYTES;

const _: () = assert!(LINES + 2 * LINES_BYTES <= PAGE_BYTES);
const _: () = assert!(RING_BYTES.is_power_of_two());

/// One of the two sides of a link: 0 for the connector, 1 for the acceptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Side(pub usize);

impl Side {
    /// The other one.
    pub fn other(self) -> Side {
        Side(1 - self.0)
    }
}

/// The memory of one link.
#[derive(Debug)]
pub struct Segment(pub Mapping);

impl Segment {
    /// Proof of sharing: the number that the connector wrote.
    pub fn nonce(&self) -> &AtomicU64 {
        self.0.u64(0)
    }

    /// Proof of sharing: the number that the acceptor wrote.
    pub fn answer(&self) -> &AtomicU64 {
        self.0.u64(8)
    }

    fn line(&self, side: Side, number: usize) -> usize {
        LINES + side.0 * LINES_BYTES + number * 128
    }

    /// The ring that `side` fills.
    #[inline]
    pub fn ring(&self, side: Side) -> Ring<'_> {
        Ring { segment: self, side }
    }

    /// Not 0: `side` has frames queued that wait for room in its ring.
    #[inline]
    pub fn wants_room(&self, side: Side) -> &AtomicU32 {
        self.0.u32(self.line(side, 0))
    }

    #[inline]
    fn head(&self, side: Side) -> &AtomicU64 {
        self.0.u64(self.line(side.other(), 1))
    }

    /// The exposure of the other side that `side` accesses at the moment: its index plus 1, or 0.
    #[inline]
    pub fn accessing(&self, side: Side) -> &AtomicU64 {
        self.0.u64(self.line(side, 2))
    }

    /// The number of exposures that `side` is revoking.
    #[inline]
    pub fn revoking(&self, side: Side) -> &AtomicU32 {
        self.0.u32(self.line(side, 3))
    }

    /// Not 0: `side` has left and takes part in nothing any more.
    #[inline]
    pub fn left(&self, side: Side) -> &AtomicU32 {
        self.0.u32(self.line(side, 3) + 4)
    }

    /// Odd while `side` does not look for frames of this link, and has to be rung for them.
    #[inline]
    pub fn resting(&self, side: Side) -> RestWord<'_> {
        RestWord(self.0.u32(self.line(side, 4)))
    }

    /// The exposure number `index` (below `EXPOSURES_MAX`) of `side`.
    #[inline]
    pub fn entry(&self, side: Side, index: u32) -> Entry<'_> {
        assert!(index < EXPOSURES_MAX, "an index lies within the table");
        let offset = TABLES + side.0 * TABLE_BYTES + index as usize * ENTRY_BYTES;
        Entry { segment: self, offset }
    }
}

/// The word by which a side of a link says that it does not look.
#[derive(Debug, Clone, Copy)]
pub struct RestWord<'a>(&'a AtomicU32);

impl EpochWord for RestWord<'_> {
    #[inline]
    fn load(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    #[inline]
    fn store(&self, epoch: u32) {
        self.0.store(epoch, Ordering::Relaxed);
    }
}

/// One entry of a table of exposures. `live` is the generation of the key, or 0; the other fields
/// are valid while it is live.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    segment: &'a Segment,
    offset: usize,
}

/// Region lies in one piece at `address`; otherwise `address` is that of a list.
pub const PIECES_ONE: u64 = 0;

impl Entry<'_> {
    /// Generation of the key that is exposed here, or 0.
    pub fn live(&self) -> &AtomicU64 {
        self.segment.0.u64(self.offset)
    }

    /// Secret of the key.
    pub fn secret(&self) -> &AtomicU64 {
        self.segment.0.u64(self.offset + 8)
    }

    /// The address of the region in its owner's memory, or of the list of its pieces.
    pub fn address(&self) -> &AtomicU64 {
        self.segment.0.u64(self.offset + 16)
    }

    /// Bytes of the region.
    pub fn bytes(&self) -> &AtomicU64 {
        self.segment.0.u64(self.offset + 24)
    }

    /// The number of pieces in the list, or `PIECES_ONE`.
    pub fn pieces(&self) -> &AtomicU64 {
        self.segment.0.u64(self.offset + 32)
    }

    /// 1 where the region may be written.
    pub fn writable(&self) -> &AtomicU64 {
        self.segment.0.u64(self.offset + 40)
    }

    /// The arena in which the region begins (`crate::arena`), or 0.
    pub fn arena(&self) -> &AtomicU64 {
        self.segment.0.u64(self.offset + 48)
    }

    /// The arena's descriptor in the process of its owner.
    pub fn descriptor(&self) -> &AtomicU64 {
        self.segment.0.u64(self.offset + 56)
    }
}

/// The ring of one side of a segment.
#[derive(Debug, Clone, Copy)]
pub struct Ring<'a> {
    segment: &'a Segment,
    side: Side,
}

impl Ring<'_> {
    /// The byte `at` of the ring.
    #[inline]
    pub fn at(&self, at: usize) -> *mut u8 {
        self.segment.0.at(RINGS + self.side.0 * RING_BYTES + at)
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        self.segment.0.u64(RINGS + self.side.0 * RING_BYTES + at)
    }
}

impl Medium for Ring<'_> {
    const LINE: usize = 64;
    const CAPACITY: usize = RING_BYTES;

    #[inline]
    fn load_word(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }

    #[inline]
    fn publish_word(&self, at: usize, word: u64) {
        self.word(at).store(word, Ordering::Release);
    }

    #[inline]
    fn clear_word(&self, at: usize) {
        self.word(at).store(0, Ordering::Relaxed);
    }

    #[inline]
    fn load_head(&self) -> u64 {
        self.segment.head(self.side).load(Ordering::Acquire)
    }

    #[inline]
    fn publish_head(&self, head: u64) {
        self.segment.head(self.side).store(head, Ordering::Release);
    }
}

/// The memory of one rail that its peers read.
#[derive(Debug)]
pub struct Board(pub Mapping);

impl Board {
    /// Not 0: peers put a fence between a publication and their look at the sleeping word.
    #[inline]
    pub fn fenced(&self) -> &AtomicU32 {
        self.0.u32(4)
    }
}

impl EpochWord for Board {
    #[inline]
    fn load(&self) -> u32 {
        self.0.u32(0).load(Ordering::Relaxed)
    }

    #[inline]
    fn store(&self, epoch: u32) {
        self.0.u32(0).store(epoch, Ordering::Relaxed);
    }
}
