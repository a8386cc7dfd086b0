//! Pieces of datatypes that lie in one segment of their memory: none needs a search for its place, and bytes that are copied
//! as they are need no more than a loop.

use super::super::store;
use super::{BufferTable, Change, Cursor, Operator, Places, Regime, Segment, Slice};
use crate::descriptor::{Descriptor, Piece};

/// Pieces of instances of a datatype.
#[derive(Debug)]
pub(super) struct Scattered<'a> {
    /// Everything from the first byte of all instances to the last one.
    segment: Segment,
    /// Where in it the datatype's offsets begin to count; before it, where that is negative.
    zero: i64,
    shape: &'a Descriptor,
    count: u64,
    from: u64,
    bytes: u64,
}

/// The pieces of so many bytes.
pub(super) fn cut(
    pieces: impl Iterator<Item = Piece> + Clone,
    bytes: u64,
) -> impl Iterator<Item = Piece> + Clone {
    let mut left = bytes;
    pieces.map_while(move |piece| {
        let bytes = piece.bytes.min(left);
        left -= bytes;
        (bytes > 0).then_some(Piece { bytes, ..piece })
    })
}

impl BufferTable {
    /// Pieces that were judged. `None` where they lie in several segments, as in a window and in the board behind it.
    pub(super) fn scattered<'a>(&self, places: &'a Places) -> Option<Scattered<'a>> {
        let Places::Shaped { region, address, shape, count, from, bytes } = places else {
            return None;
        };
        let bounds = shape.bounds(*count)?;
        let begin = u64::try_from(address + bounds.start).ok()?;
        let all = region.part(begin, (bounds.end - bounds.start) as u64);
        let segment = self.resolve_writable(all).next()?;
        let (count, from, bytes) = (*count, *from, *bytes);
        let pieces = Scattered { segment, zero: -bounds.start, shape, count, from, bytes };
        (segment.len() as u64 == all.len).then_some(pieces)
    }

    /// Copies bytes that are stored or fetched as they are. False where the change is another one, where the other side lies in
    /// several segments, or some memory may be gone: nothing was done then.
    pub(super) fn exchange_plainly(
        &self,
        change: Change,
        pieces: &Scattered<'_>,
        source: &Cursor<impl Iterator<Item = Segment> + Clone>,
        result: Option<Slice>,
        regime: Regime,
    ) -> bool {
        if regime.is_fleeting() {
            return false;
        }
        match change {
            Change::Store => {
                let Some(from) = source.clone().only(pieces.bytes) else { return false };
                // SAFETY: the pieces lie in writable memory of the table; the source does too, or its owner vouches.
                unsafe { pieces.each(from, |piece, own, bytes| store::copy(own, piece, bytes)) };
            }
            // Bytes, one by one, are never half of anything.
            Change::Update(update)
                if update.operator() == Operator::Nothing && update.extent() == 1 =>
            {
                let to = result.map(|it| Cursor::new(self.resolve_writable(it)));
                let Some(to) = to.and_then(|it| it.only(pieces.bytes)) else { return false };
                // SAFETY: pieces and result lie in memory of the table, and the result may be written.
                unsafe { pieces.each(to, |piece, own, bytes| store::copy(piece, own, bytes)) };
            }
            _ => return false,
        }
        true
    }
}

impl Scattered<'_> {
    /// The pieces, in order.
    pub fn segments(&self) -> impl Iterator<Item = Segment> + Clone {
        let (segment, zero) = (self.segment, self.zero);
        let part =
            move |piece: Piece| segment.part((zero + piece.offset) as usize, piece.bytes as usize);
        cut(self.shape.pieces(self.count, self.from), self.bytes).map(part)
    }

    /// Acts on each piece, and on as many bytes of `own`, one after the other.
    ///
    /// # Safety
    /// `own` has as many bytes as all pieces, and `act` may do what it does with a piece, with its own bytes, and their number.
    unsafe fn each(&self, own: Segment, act: impl Fn(*mut u8, *mut u8, usize)) {
        let begin = self.segment.as_mut_ptr();
        let (mut own, mut left) = (own.as_mut_ptr(), self.bytes);
        for run in self.shape.runs(self.count, self.from) {
            let mut piece = begin.wrapping_offset((self.zero + run.offset) as isize);
            for _ in 0..run.times {
                let bytes = run.bytes.min(left) as usize;
                act(piece, own, bytes);
                piece = piece.wrapping_offset(run.stride as isize);
                own = own.wrapping_add(bytes);
                left -= bytes as u64;
                if left == 0 {
                    return;
                }
            }
        }
    }
}
