//! The pieces of a put: each lies in one stretch of the peer's memory, and is an operation with a number.

use ropewalk_base::verb::{RemoteLayout, RemoteSegment};

/// Bytes of a piece, at most.
const PIECE_BYTES_MAX: u64 = 1 << 30;

/// A stretch of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub offset: u64,
    pub bytes: u32,
}

/// The pieces of a remote layout, in their order.
#[derive(Debug, Clone)]
pub(crate) struct Pieces {
    layout: RemoteLayout,
    /// Bytes of the whole put.
    len: u64,
    /// The segment that is next, and how many bytes of it were given.
    index: usize,
    done: u64,
}

impl Pieces {
    pub fn of(layout: &RemoteLayout, len: u64) -> Pieces {
        Pieces { layout: layout.clone(), len, index: 0, done: 0 }
    }

    /// How many a remote layout has.
    pub fn count_of(layout: &RemoteLayout, len: u64) -> u64 {
        let of = |len: u64| len.div_ceil(PIECE_BYTES_MAX);
        match layout {
            RemoteLayout::At(_) => of(len),
            RemoteLayout::List(list) => list.iter().map(|segment| of(segment.len)).sum(),
            RemoteLayout::Strided(_) => 0,
        }
    }

    fn segment(&self) -> Option<RemoteSegment> {
        match &self.layout {
            RemoteLayout::At(offset) if self.index == 0 => {
                Some(RemoteSegment { offset: *offset, len: self.len })
            }
            RemoteLayout::At(_) => None,
            RemoteLayout::List(list) => list.get(self.index).copied(),
            RemoteLayout::Strided(_) => None,
        }
    }
}

impl Iterator for Pieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        loop {
            let segment = self.segment()?;
            let bytes = (segment.len - self.done).min(PIECE_BYTES_MAX);
            if bytes > 0 {
                let offset = segment.offset.wrapping_add(self.done);
                self.done += bytes;
                return Some(Piece { offset, bytes: bytes as u32 });
            }
            (self.index, self.done) = (self.index + 1, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(layout: &RemoteLayout, len: u64) -> Vec<(u64, u32)> {
        let pieces: Vec<_> = Pieces::of(layout, len).map(|it| (it.offset, it.bytes)).collect();
        assert_eq!(Pieces::count_of(layout, len), pieces.len() as u64);
        pieces
    }

    #[test]
    fn a_stretch_is_one_piece_and_a_very_long_one_several() {
        assert_eq!(pieces(&RemoteLayout::At(5), 7), [(5, 7)]);
        assert_eq!(pieces(&RemoteLayout::At(5), 0), []);
        let most = PIECE_BYTES_MAX as u32;
        let long = 2 * PIECE_BYTES_MAX + 3;
        let expected = [(1, most), (1 + PIECE_BYTES_MAX, most), (1 + 2 * PIECE_BYTES_MAX, 3)];
        assert_eq!(pieces(&RemoteLayout::At(1), long), expected);
    }

    #[test]
    fn each_segment_of_a_list_that_has_bytes_is_a_piece() {
        let segments = [(9, 4), (1, 0), (2, 6), (u64::MAX, 1), (3, 0)];
        let list: Vec<_> = segments.map(|(offset, len)| RemoteSegment { offset, len }).into();
        let layout = RemoteLayout::List(list.into());
        assert_eq!(pieces(&layout, 11), [(9, 4), (2, 6), (u64::MAX, 1)]);
    }
}
