//! Operations: their data at the origin, and their place at the target.
//!
//! Data of an origin are bytes that the call copies, or [`Cells`] that are read until the operation is complete at the
//! origin. Results go to cells: they come after the call has returned, so that no borrowed slice could take them, and
//! who reads the cells meanwhile sees old or new bytes and harms nothing.

use ropewalk_base::descriptor::Piece;
use ropewalk_base::memory::{Cells, Element, Update, Updater};

use crate::error::BadArgument;
use crate::types::{Class, Datatype};

/// The rank that is nobody: operations on it do nothing (MPI_PROC_NULL).
pub const PROC_NULL: Option<u32> = None;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Bytes<'a> {
    Slice(&'a [u8]),
    Cells(&'a Cells, usize),
}

/// Data of the origin: `count` instances of a datatype.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    pub(crate) bytes: Bytes<'a>,
    pub(crate) count: u64,
    pub(crate) datatype: &'a Datatype,
}

impl<'a> Source<'a> {
    /// In a slice that begins at the address of the first instance. It is copied within the call.
    pub fn slice(bytes: &'a [u8], count: u64, datatype: &'a Datatype) -> Source<'a> {
        Source { bytes: Bytes::Slice(bytes), count, datatype }
    }

    /// In cells; the address of the first instance is `at` bytes in. Long data are not copied: they must not change until
    /// the operation is complete at the origin.
    pub fn cells(cells: &'a Cells, at: usize, count: u64, datatype: &'a Datatype) -> Source<'a> {
        Source { bytes: Bytes::Cells(cells, at), count, datatype }
    }

    pub(crate) fn data_bytes(&self) -> u64 {
        data_bytes(self.datatype, self.count)
    }

    /// Whether all data lie inside of the memory.
    pub(crate) fn check(&self) -> Result<(), BadArgument> {
        let (at, len) = match self.bytes {
            Bytes::Slice(slice) => (0, slice.len()),
            Bytes::Cells(cells, at) => (at, cells.len()),
        };
        check(self.datatype, self.count, at, len)
    }

    /// Copies data to bytes of cells, which is where some of them go: `from` counts from the address of the first instance.
    pub(crate) fn copy_to(&self, from: i64, cells: &Cells, at: usize, bytes: usize) {
        let copied = match self.bytes {
            Bytes::Slice(slice) => cells.write(at, &slice[from as usize..from as usize + bytes]),
            Bytes::Cells(own, base) => own.copy((base as i64 + from) as usize, cells, at, bytes),
        };
        copied.expect("all data were judged");
    }

    /// Its pieces.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = Piece> {
        pieces(self.datatype, self.count)
    }

    /// Where the only piece begins, if the data have no gaps.
    pub(crate) fn only(&self) -> Option<i64> {
        self.datatype.run(false, self.count)
    }

    /// Combines elements at a byte of mapped cells with all data, which begin `from` bytes behind the address of the first instance
    /// and have no gaps. `None`: nothing was changed; they have to be copied first, or the target has to do it.
    pub(crate) fn combine_at(
        &self,
        from: i64,
        (updater, cells): (&mut Updater, &Cells),
        (at, elements): (usize, usize),
        update: Update,
    ) -> Option<()> {
        match self.bytes {
            Bytes::Slice(slice) => {
                let own = &slice[from as usize..][..update.sent(elements)];
                updater.update(cells, at, elements, update, own, None)
            }
            Bytes::Cells(own, base) => {
                let own = (own, (base as i64 + from) as usize);
                updater.update_from(cells, at, elements, update, own)
            }
        }
    }

    /// Copies data from their byte `from` on, as many as `to` has.
    pub(crate) fn gather(&self, from: u64, to: &mut [u8]) {
        let base = match self.bytes {
            Bytes::Slice(_) => 0,
            Bytes::Cells(_, at) => at as i64,
        };
        let copy = |at: i64, into: &mut [u8]| {
            let at = (base + at) as usize;
            match self.bytes {
                Bytes::Slice(slice) => into.copy_from_slice(&slice[at..at + into.len()]),
                Bytes::Cells(cells, _) => cells.read(at, into).expect("all data were judged"),
            }
        };
        if to.is_empty() {
            return;
        }
        // A walk over many instances without gaps would find one piece, slowly.
        if let Some(offset) = self.only() {
            return copy(offset + from as i64, to);
        }
        let mut done = 0;
        for piece in self.datatype.descriptor().pieces(self.count, from) {
            let bytes = (to.len() - done).min(piece.bytes as usize);
            if bytes == 0 {
                return;
            }
            copy(piece.offset, &mut to[done..done + bytes]);
            done += bytes;
        }
    }
}

/// Where results go: `count` instances of a datatype in cells, the address of the first one `at` bytes in. They are there when
/// the operation is complete at the origin: after the synchronisation, or when its request is done.
#[derive(Debug, Clone, Copy)]
pub struct Destination<'a> {
    pub(crate) cells: &'a Cells,
    pub(crate) at: usize,
    pub(crate) count: u64,
    pub(crate) datatype: &'a Datatype,
}

impl<'a> Destination<'a> {
    pub fn new(cells: &'a Cells, at: usize, count: u64, datatype: &'a Datatype) -> Self {
        Destination { cells, at, count, datatype }
    }

    pub(crate) fn data_bytes(&self) -> u64 {
        data_bytes(self.datatype, self.count)
    }

    pub(crate) fn check(&self) -> Result<(), BadArgument> {
        check(self.datatype, self.count, self.at, self.cells.len())
    }

    /// Writes data there, from their byte `from` on.
    pub(crate) fn scatter(&self, from: u64, data: &[u8]) {
        let write = |at: i64, own: &[u8]| {
            let at = (self.at as i64 + at) as usize;
            self.cells.write(at, own).expect("all data were judged");
        };
        if let Some(offset) = self.only() {
            return write(offset + from as i64, data);
        }
        let mut left = data;
        for piece in self.datatype.descriptor().pieces(self.count, from) {
            let (own, rest) = left.split_at(left.len().min(piece.bytes as usize));
            write(piece.offset, own);
            if rest.is_empty() {
                return;
            }
            left = rest;
        }
    }

    /// Its pieces.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = Piece> {
        pieces(self.datatype, self.count)
    }

    /// Where the only piece begins, if the data have no gaps.
    pub(crate) fn only(&self) -> Option<i64> {
        self.datatype.run(false, self.count)
    }
}

/// The target of an operation: `count` instances of a datatype at a rank, from a displacement on that counts in the target's
/// unit. No rank ([`PROC_NULL`]): nothing happens.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    pub(crate) rank: Option<u32>,
    pub(crate) displacement: u64,
    pub(crate) count: u64,
    pub(crate) datatype: &'a Datatype,
}

impl<'a> Target<'a> {
    pub fn new(
        rank: impl Into<Option<u32>>,
        displacement: u64,
        count: u64,
        datatype: &'a Datatype,
    ) -> Target<'a> {
        Target { rank: rank.into(), displacement, count, datatype }
    }

    pub(crate) fn data_bytes(&self) -> u64 {
        data_bytes(self.datatype, self.count)
    }

    /// The element of a single one.
    pub(crate) fn single(&self) -> Result<Element, BadArgument> {
        match (self.datatype.class(), self.datatype.elements(), self.count) {
            (Class::One(element), Some(1), 1) => Ok(element),
            _ => Err(BadArgument::NotOne),
        }
    }
}

/// Data of instances; what has more than addresses reach has more than any memory, and is found out there.
fn data_bytes(datatype: &Datatype, count: u64) -> u64 {
    datatype.size().saturating_mul(count)
}

/// The bytes of instances: one piece where they have no gaps, since a walk over many would find that one slowly.
fn pieces(datatype: &Datatype, count: u64) -> impl Iterator<Item = Piece> {
    let run = datatype.run(false, count);
    let whole = run.map(|offset| Piece { offset, bytes: data_bytes(datatype, count) });
    let walk = run.is_none().then(|| datatype.descriptor().pieces(count, 0));
    whole.into_iter().chain(walk.into_iter().flatten())
}

fn check(datatype: &Datatype, count: u64, at: usize, len: usize) -> Result<(), BadArgument> {
    let outside = |start, end| Err(BadArgument::Outside { start, end, len });
    let Some(bounds) = datatype.descriptor().bounds(count) else {
        return outside(0, i128::MAX);
    };
    if bounds.is_empty() {
        return Ok(());
    }
    let (start, end) = (at as i128 + i128::from(bounds.start), at as i128 + i128::from(bounds.end));
    if start < 0 || end > len as i128 { outside(start, end) } else { Ok(()) }
}

/// The kinds of operations, with their data.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Verb<'a> {
    Put(Source<'a>),
    Get(Destination<'a>),
    /// `source` is not read where the operator is `Nothing`.
    Update {
        update: Update,
        element: Element,
        source: Source<'a>,
        result: Option<Destination<'a>>,
    },
    Swap {
        element: Element,
        expected: [u8; 8],
        desired: [u8; 8],
        result: Destination<'a>,
    },
}

/// An operation that was judged at the origin: it is in an epoch, its lengths agree, its data lie in their memory, and there
/// are some.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operation<'a> {
    pub verb: Verb<'a>,
    pub rank: u32,
    /// Bytes from the begin of the target's window to the address of the first instance.
    pub address: i64,
    pub count: u64,
    /// At the target.
    pub datatype: &'a Datatype,
}

impl Operation<'_> {
    /// The pieces at the target.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> {
        pieces(self.datatype, self.count)
    }

    /// Where the only piece begins at the target, if the data have no gaps.
    pub fn only(&self) -> Option<i64> {
        self.datatype.run(false, self.count)
    }
}
