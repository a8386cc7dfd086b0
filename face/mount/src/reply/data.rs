//! File contents on their way to the kernel, in pieces, without a copy.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use ropewalk_base::pool::PoolBuffer;

/// The zero bytes that stand for holes.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Most pieces that one system call takes, less the reply's header.
const PIECES_MAX: usize = 1023;

enum Piece {
    Owned(PoolBuffer, Range<usize>),
    Shared(Arc<PoolBuffer>, Range<usize>),
    Zeros(usize),
    Bytes(Vec<u8>),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Piece::Owned(buffer, range) => &buffer[range.clone()],
            Piece::Shared(buffer, range) => &buffer[range.clone()],
            Piece::Zeros(len) => &ZEROS[..*len],
            Piece::Bytes(bytes) => bytes,
        }
    }
}

/// The contents of a READ reply: pieces of buffers, one behind the other.
#[derive(Default)]
pub struct Data {
    /// Most replies are one piece; it needs no list.
    first: Option<Piece>,
    more: Vec<Piece>,
    len: usize,
}

impl Data {
    /// Nothing yet: as a reply, the end of the file.
    pub fn new() -> Data {
        Data::default()
    }

    /// A whole buffer.
    pub fn of(buffer: PoolBuffer) -> Data {
        let mut data = Data::new();
        data.push(buffer);
        data
    }

    /// Adds a whole buffer.
    pub fn push(&mut self, buffer: PoolBuffer) {
        let range = 0..buffer.len();
        self.push_range(buffer, range);
    }

    /// Adds a part of a buffer. The range must lie inside.
    pub fn push_range(&mut self, buffer: PoolBuffer, range: Range<usize>) {
        assert!(range.end <= buffer.len(), "a piece of data lies inside its buffer");
        self.add(range.len(), Piece::Owned(buffer, range));
    }

    /// Adds a part of a buffer that others read, too. The range must lie inside.
    pub fn push_shared(&mut self, buffer: Arc<PoolBuffer>, range: Range<usize>) {
        assert!(range.end <= buffer.len(), "a piece of data lies inside its buffer");
        self.add(range.len(), Piece::Shared(buffer, range));
    }

    /// Adds a hole.
    pub fn push_zeros(&mut self, mut len: usize) {
        while len > 0 {
            let part = len.min(ZEROS.len());
            self.add(part, Piece::Zeros(part));
            len -= part;
        }
    }

    /// Adds bytes of the general heap: for small things.
    pub fn push_bytes(&mut self, bytes: Vec<u8>) {
        self.add(bytes.len(), Piece::Bytes(bytes));
    }

    fn add(&mut self, len: usize, piece: Piece) {
        if len == 0 {
            return;
        }
        self.len += len;
        if self.first.is_none() {
            self.first = Some(piece);
        } else {
            self.more.push(piece);
        }
    }

    /// Bytes in all pieces together.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies everything into `target`, which has exactly as many bytes.
    pub fn copy_to(&self, target: &mut [u8]) {
        assert_eq!(target.len(), self.len, "the target has the data's length");
        let mut at = 0;
        for piece in self.first.iter().chain(&self.more) {
            let bytes = piece.bytes();
            target[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        }
    }

    /// Calls `send` with all pieces behind `header`. More pieces than one system call takes are
    /// gathered into one.
    pub(crate) fn with_slices<R>(
        &self,
        header: &[u8],
        send: impl FnOnce(&[IoSlice<'_>]) -> R,
    ) -> R {
        let Some(first) = &self.first else { return send(&[IoSlice::new(header)]) };
        if self.more.is_empty() {
            return send(&[IoSlice::new(header), IoSlice::new(first.bytes())]);
        }
        let pieces = std::iter::once(first).chain(&self.more).map(Piece::bytes);
        if self.more.len() < PIECES_MAX {
            let head = std::iter::once(IoSlice::new(header));
            let slices: Vec<IoSlice<'_>> = head.chain(pieces.map(IoSlice::new)).collect();
            return send(&slices);
        }
        let gathered: Vec<u8> = pieces.flatten().copied().collect();
        send(&[IoSlice::new(header), IoSlice::new(&gathered)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropewalk_base::pool::Pool;

    fn flat(data: &Data) -> Vec<u8> {
        data.with_slices(b"h", |slices| {
            assert!(slices.len() <= PIECES_MAX + 1);
            slices.iter().flat_map(|slice| slice.to_vec()).collect()
        })
    }

    #[test]
    fn pieces_come_out_in_order_however_many_there_are() {
        let pool = Pool::with_budget(1 << 20);
        let mut data = Data::new();
        assert_eq!(flat(&data), b"h");
        data.push_range(pool.copy_of(b"abcdef").unwrap(), 1..3);
        assert_eq!(flat(&data), b"hbc");
        data.push_zeros(2);
        data.push_shared(Arc::new(pool.copy_of(b"xyz").unwrap()), 2..3);
        assert_eq!(flat(&data), b"hbc\0\0z");
        for _ in 0..2000 {
            data.push_bytes(b"q".to_vec());
        }
        assert_eq!(flat(&data).len(), 1 + data.len());
        assert_eq!(data.len(), 2005);
    }

    #[test]
    fn a_long_hole_is_all_zeros() {
        let mut data = Data::new();
        data.push_zeros(200_000);
        assert_eq!(flat(&data)[1..], vec![0; 200_000]);
    }
}
