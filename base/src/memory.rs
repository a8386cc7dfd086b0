//! Memory that operations may touch, as seen by rooms that must not see pointers.
//!
//! A [`Memory`] is a list of segments together with what keeps them alive. While an operation runs,
//! its memory lies in a [`BufferTable`]; the protocol core names parts of it by [`Slice`], and only
//! rails (and the copies of this module) turn a slice into addresses.
//!
//! Invariants:
//! * the bytes behind a segment stay mapped as long as its `Memory` lives: pool buffers are owned, and the caller of
//!   [`Memory::from_raw`] vouches for raw memory. Fleeting memory ([`Cells::fleeting`]) may go away: it is copied by routines that
//!   a fault can leave (`guard`);
//! * nobody holds a Rust reference into memory that a peer or another thread may write meanwhile:
//!   all access here goes through raw pointers;
//! * read-only memory is never written: for writing, its slices resolve to nothing.

mod apply;
mod cells;
mod element;
mod gate;
mod guard;
mod job;
mod long_double;
mod mapped;
mod party;
mod store;
mod table;
mod update;
mod words;

pub use cells::{Cells, OutOfCells, Value};
pub use element::{Element, Operator, Shape};
pub use guard::Gone;
pub use job::{Change, Job, Places, RECORD_BYTES, record};
pub use mapped::Updater;
pub use party::LockWords;
pub use table::{BufferId, BufferTable, Segments, Slice};
pub use update::{NeedsLock, Update};

use std::ptr;
use std::sync::Arc;

use crate::pool::PoolBuffer;

/// A contiguous piece of this process's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    address: usize,
    bytes: usize,
}

impl Segment {
    /// A segment of nothing.
    pub const EMPTY: Segment = Segment { address: 0, bytes: 0 };

    /// Names `bytes` bytes at `address`. Naming is harmless; code that reads or writes through the pointer has to know
    /// that the memory is alive.
    pub fn new(address: *mut u8, bytes: usize) -> Segment {
        Segment { address: address.expose_provenance(), bytes }
    }

    /// A pointer to its first byte.
    #[inline]
    pub fn as_mut_ptr(self) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.address)
    }

    /// Its address as a number, as another process would use it.
    #[inline]
    pub fn address(self) -> usize {
        self.address
    }

    /// Its length in bytes.
    #[inline]
    pub fn len(self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.bytes == 0
    }

    /// Whether both have a byte in common.
    pub fn overlaps(self, other: Segment) -> bool {
        let ends = |it: Segment| it.address.saturating_add(it.bytes);
        let has_bytes = !self.is_empty() && !other.is_empty();
        has_bytes && self.address < ends(other) && other.address < ends(self)
    }

    /// The part of at most `bytes` bytes that begins `offset` bytes in; cut at this segment's end.
    #[inline]
    pub fn part(self, offset: usize, bytes: usize) -> Segment {
        let offset = offset.min(self.bytes);
        Segment { address: self.address + offset, bytes: bytes.min(self.bytes - offset) }
    }
}

/// A list of segments and what keeps them alive; moved into an operation, given back with its
/// completion. Small, since it is moved so often.
#[derive(Debug)]
pub struct Memory {
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// One buffer of a pool, readable and writable.
    Pooled(PoolBuffer),
    /// One piece of static data, or of raw memory that the caller vouched for.
    Promised { segment: Segment, writable: bool },
    /// A buffer that others read, too.
    Shared { segment: Segment, _keep: Arc<PoolBuffer> },
    /// A range of cells, readable and writable.
    Cells { segment: Segment, keep: Cells },
    /// The same of cells that may go away.
    Fleeting { segment: Segment, _keep: Cells },
    /// More than one piece.
    Pieces(Box<Pieces>),
}

#[derive(Debug)]
struct Pieces {
    segments: Box<[Segment]>,
    bytes: u64,
    writable: bool,
    /// Some of them may go away.
    fleeting: bool,
    /// The buffers that they are of, where they are not promised.
    keep: Vec<PoolBuffer>,
    parts: Vec<Memory>,
}

const _: () = assert!(size_of::<Memory>() <= 40);

fn total(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| segment.len() as u64).sum()
}

impl Memory {
    /// No bytes at all.
    pub fn empty() -> Memory {
        Memory { kind: Kind::Promised { segment: Segment::EMPTY, writable: true } }
    }

    /// A whole pool buffer, readable and writable.
    #[inline]
    pub fn pooled(buffer: PoolBuffer) -> Memory {
        Memory { kind: Kind::Pooled(buffer) }
    }

    /// The concatenation of pool buffers (each with its whole length), readable and writable.
    pub fn many(buffers: Vec<PoolBuffer>) -> Memory {
        let segments: Box<[Segment]> = buffers.iter().map(|buffer| *buffer.segment()).collect();
        let bytes = total(&segments);
        let (keep, parts) = (buffers, Vec::new());
        let pieces = Pieces { segments, bytes, writable: true, fleeting: false, keep, parts };
        Memory { kind: Kind::Pieces(Box::new(pieces)) }
    }

    /// Memories one after the other. Writable where all of them are.
    pub fn joined(parts: Vec<Memory>) -> Memory {
        let segments: Vec<Segment> =
            parts.iter().flat_map(|part| part.segments()).copied().collect();
        let (bytes, writable) = (total(&segments), parts.iter().all(Memory::is_writable));
        let (segments, keep) = (segments.into(), Vec::new());
        let fleeting = parts.iter().any(Memory::is_fleeting);
        let pieces = Pieces { segments, bytes, writable, fleeting, keep, parts };
        Memory { kind: Kind::Pieces(Box::new(pieces)) }
    }

    /// A buffer that others may be reading, too: for sending only.
    pub fn shared(buffer: Arc<PoolBuffer>) -> Memory {
        Memory { kind: Kind::Shared { segment: *buffer.segment(), _keep: buffer } }
    }

    /// Constant bytes: for sending only.
    pub fn constant(bytes: &'static [u8]) -> Memory {
        let segment = Segment::new(bytes.as_ptr().cast_mut(), bytes.len());
        Memory { kind: Kind::Promised { segment, writable: false } }
    }

    /// Memory of a foreign caller, as the C faces get it.
    ///
    /// # Safety
    /// Until this value is dropped every segment stays mapped, is not accessed by the caller in a
    /// way that races with the operation, and, where `writable`, may be written.
    pub unsafe fn from_raw(segments: &[Segment], writable: bool) -> Memory {
        let kind = match segments {
            [] => Kind::Promised { segment: Segment::EMPTY, writable },
            [segment] => Kind::Promised { segment: *segment, writable },
            _ => Kind::Pieces(Box::new(Pieces {
                segments: segments.into(),
                bytes: total(segments),
                writable,
                fleeting: false,
                keep: Vec::new(),
                parts: Vec::new(),
            })),
        };
        Memory { kind }
    }

    /// All segments in order. Empty ones may be among them.
    #[inline]
    pub fn segments(&self) -> &[Segment] {
        match &self.kind {
            Kind::Pooled(buffer) => std::slice::from_ref(buffer.segment()),
            Kind::Promised { segment, .. }
            | Kind::Shared { segment, .. }
            | Kind::Cells { segment, .. }
            | Kind::Fleeting { segment, .. } => std::slice::from_ref(segment),
            Kind::Pieces(pieces) => &pieces.segments,
        }
    }

    /// Bytes in all segments together.
    #[inline]
    pub fn len(&self) -> u64 {
        match &self.kind {
            Kind::Pooled(buffer) => buffer.segment().len() as u64,
            Kind::Promised { segment, .. }
            | Kind::Shared { segment, .. }
            | Kind::Cells { segment, .. }
            | Kind::Fleeting { segment, .. } => segment.len() as u64,
            Kind::Pieces(pieces) => pieces.bytes,
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether an operation may write here.
    #[inline]
    pub fn is_writable(&self) -> bool {
        match &self.kind {
            Kind::Pooled(_) | Kind::Cells { .. } | Kind::Fleeting { .. } => true,
            Kind::Promised { writable, .. } => *writable,
            Kind::Shared { .. } => false,
            Kind::Pieces(pieces) => pieces.writable,
        }
    }

    /// Whether others update elements of it by the processor's atomic operations: see [`Cells::share`].
    #[inline]
    pub fn is_shared(&self) -> bool {
        match &self.kind {
            Kind::Cells { keep, .. } => keep.is_shared(),
            Kind::Pieces(pieces) => pieces.parts.iter().any(Memory::is_shared),
            _ => false,
        }
    }

    /// Calls `update`, which changes elements of a range (offset and length) of shared memory word by word, while nobody updates a
    /// block there.
    fn by_words<T>(&self, (offset, len): (u64, u64), update: impl FnOnce() -> T) -> T {
        match &self.kind {
            Kind::Cells { keep, .. } => keep.by_words(update),
            Kind::Pieces(pieces) => {
                let end = offset.saturating_add(len);
                let mut begin = 0;
                let mut touched = pieces.parts.iter().filter_map(|part| {
                    let at = begin;
                    begin += part.len();
                    (at < end && offset < begin).then_some((at, part))
                });
                let (first, second) = (touched.next(), touched.next());
                match (first, second) {
                    (Some((at, part)), None) => {
                        let within = offset.saturating_sub(at);
                        part.by_words((within, len), update)
                    }
                    (Some((_, first)), Some((_, second))) => {
                        first.forbid_blocks();
                        second.forbid_blocks();
                        touched.for_each(|(_, part)| part.forbid_blocks());
                        update()
                    }
                    (None, _) => update(),
                }
            }
            _ => update(),
        }
    }

    /// Pieces of several memories are changed at once, and have no lock in common.
    fn forbid_blocks(&self) {
        match &self.kind {
            Kind::Cells { keep, .. } => keep.forbid_blocks(),
            Kind::Pieces(pieces) => pieces.parts.iter().for_each(Memory::forbid_blocks),
            _ => {}
        }
    }

    /// Whether some of it may go away while it is here: see [`Cells::fleeting`].
    #[inline]
    pub fn is_fleeting(&self) -> bool {
        guard::is_in_use()
            && match &self.kind {
                Kind::Fleeting { .. } => true,
                Kind::Pieces(pieces) => pieces.fleeting,
                _ => false,
            }
    }

    /// The pool buffer inside, where it is one.
    pub fn into_pooled(self) -> Option<PoolBuffer> {
        match self.kind {
            Kind::Pooled(buffer) => Some(buffer),
            _ => None,
        }
    }

    /// The pool buffers inside, where they are owned; empty otherwise.
    pub fn into_many(self) -> Vec<PoolBuffer> {
        match self.kind {
            Kind::Pooled(buffer) => vec![buffer],
            Kind::Pieces(pieces) => pieces.keep,
            _ => Vec::new(),
        }
    }
}
