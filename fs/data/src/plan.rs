//! The plan of a transfer: its pieces checked against every limit, cut into chunks.
//!
//! A transfer's bytes are its pieces' bytes one after the other. A chunk is a part of them that fits one
//! buffer; it never cuts the run of bytes under one checksum.

use ropewalk_wire::fs::data::{BLOCK_BYTES, ObjectRange, PIECES_MAX, TRANSFER_BYTES_MAX};

/// Bytes of one chunk at most, and of the buffers in which chunks travel.
pub(crate) const CHUNK_BYTES: u32 = 1 << 20;

/// A request whose pieces make no sense; nothing was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Invalid;

/// A range within one stripe, as part of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// The index of its piece in the request.
    pub piece: usize,
    pub stripe: u32,
    pub offset: u32,
    pub len: u32,
}

impl Part {
    /// Blocks that the range touches: as many checksums it has.
    pub(crate) fn blocks(&self) -> usize {
        blocks_touched(self.offset, self.len)
    }
}

/// The bytes that travel in one buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// From the transfer's first byte.
    pub start: u64,
    pub len: u32,
    pub parts: Vec<Part>,
}

/// A checked transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    pub pieces: Vec<ObjectRange>,
    /// Of all pieces.
    pub bytes: u32,
    /// Checksums of all pieces.
    pub checksums: usize,
}

fn blocks_touched(offset: u32, len: u32) -> usize {
    if len == 0 {
        return 0;
    }
    let end = u64::from(offset) + u64::from(len);
    (end.div_ceil(u64::from(BLOCK_BYTES)) - u64::from(offset / BLOCK_BYTES)) as usize
}

/// Checks the pieces of any request: not none, not too many, none empty or beyond an object.
pub(crate) fn check(pieces: &[ObjectRange], object_bytes: u64) -> Result<(), Invalid> {
    let inside = |piece: &ObjectRange| {
        piece.len > 0 && u64::from(piece.offset) + u64::from(piece.len) <= object_bytes
    };
    let legal = (1..=PIECES_MAX).contains(&pieces.len()) && pieces.iter().all(inside);
    if legal { Ok(()) } else { Err(Invalid) }
}

impl Plan {
    /// Checks the pieces of a transfer.
    pub(crate) fn new(pieces: Vec<ObjectRange>, object_bytes: u64) -> Result<Plan, Invalid> {
        check(&pieces, object_bytes)?;
        let bytes: u64 = pieces.iter().map(|piece| u64::from(piece.len)).sum();
        if bytes > u64::from(TRANSFER_BYTES_MAX) {
            return Err(Invalid);
        }
        let blocks = pieces.iter().map(|piece| blocks_touched(piece.offset, piece.len)).sum();
        Ok(Plan { pieces, bytes: bytes as u32, checksums: blocks })
    }

    /// Cuts the transfer into chunks, in order.
    pub(crate) fn chunks(&self) -> Vec<Chunk> {
        let mut chunks = Vec::new();
        let mut chunk = Chunk { start: 0, len: 0, parts: Vec::new() };
        for (piece, range) in self.pieces.iter().enumerate() {
            let (mut offset, mut left) = (range.offset, range.len);
            while left > 0 {
                let len = fitting(offset, left, CHUNK_BYTES - chunk.len);
                if len == 0 {
                    let start = chunk.start + u64::from(chunk.len);
                    let next = Chunk { start, len: 0, parts: Vec::new() };
                    chunks.push(std::mem::replace(&mut chunk, next));
                    continue;
                }
                chunk.parts.push(Part { piece, stripe: range.stripe, offset, len });
                chunk.len += len;
                // Beyond the last byte this may be one more than any offset: then nothing is left.
                offset = offset.wrapping_add(len);
                left -= len;
            }
        }
        chunks.push(chunk);
        chunks
    }
}

/// The bytes of `left` at `offset` that go into `room` bytes without a cut within a block.
fn fitting(offset: u32, left: u32, room: u32) -> u32 {
    if left <= room {
        return left;
    }
    let end = u64::from(offset) + u64::from(room);
    let end = end - end % u64::from(BLOCK_BYTES);
    end.saturating_sub(u64::from(offset)) as u32
}

/// The numbers of a list of checksums, where it has exactly `count`.
pub(crate) fn checksums(bytes: &[u8], count: usize) -> Result<Vec<u32>, Invalid> {
    if Some(bytes.len()) != count.checked_mul(4) {
        return Err(Invalid);
    }
    let number = |four: &[u8]| u32::from_le_bytes([four[0], four[1], four[2], four[3]]);
    Ok(bytes.chunks_exact(4).map(number).collect())
}

#[cfg(test)]
mod tests {
    use ropewalk_base::random::Random;
    use ropewalk_wire::fs::group::Group;

    use super::*;

    const OBJECT_BYTES: u64 = 64 << 20;

    fn range(stripe: u32, offset: u32, len: u32) -> ObjectRange {
        ObjectRange { stripe, group: Group::of_server(0), offset, len }
    }

    #[test]
    fn pieces_beyond_any_limit_are_refused() {
        let plan = |pieces: Vec<ObjectRange>| Plan::new(pieces, OBJECT_BYTES);
        assert_eq!(plan(Vec::new()), Err(Invalid));
        assert_eq!(plan(vec![range(0, 0, 0)]), Err(Invalid));
        assert_eq!(plan(vec![range(0, u32::MAX, u32::MAX)]), Err(Invalid));
        assert_eq!(plan(vec![range(0, (64 << 20) - 1, 2)]), Err(Invalid));
        assert!(plan(vec![range(0, (64 << 20) - 1, 1)]).is_ok());
        assert_eq!(plan(vec![range(0, 0, TRANSFER_BYTES_MAX), range(0, 0, 1)]), Err(Invalid));
        assert_eq!(plan(vec![range(0, 0, 1); PIECES_MAX + 1]), Err(Invalid));
        assert!(plan(vec![range(0, 0, 1); PIECES_MAX]).is_ok());
        assert_eq!(checksums(&[0; 7], 2), Err(Invalid));
        assert_eq!(checksums(&[1, 0, 0, 0, 2, 1, 0, 0], 2), Ok(vec![1, 258]));
    }

    #[test]
    fn chunks_cover_all_pieces_once_and_cut_only_between_blocks() {
        let mut random = Random::from_seed(3);
        for _ in 0..300 {
            let count = 1 + random.below(20);
            let most = u64::from(TRANSFER_BYTES_MAX) / count;
            let pieces: Vec<_> = (0..count)
                .map(|_| {
                    let len = 1 + random.below(most) as u32;
                    range(random.below(4) as u32, random.below(8 << 20) as u32, len)
                })
                .collect();
            let plan = Plan::new(pieces.clone(), OBJECT_BYTES).unwrap();
            let (mut at, mut blocks) = (0u64, 0);
            let mut left: Vec<_> = pieces.iter().map(|piece| (piece.offset, piece.len)).collect();
            for chunk in plan.chunks() {
                assert_eq!(chunk.start, at);
                assert!((1..=CHUNK_BYTES).contains(&chunk.len));
                assert_eq!(chunk.parts.iter().map(|part| part.len).sum::<u32>(), chunk.len);
                at += u64::from(chunk.len);
                for part in &chunk.parts {
                    let (offset, rest) = &mut left[part.piece];
                    assert_eq!((part.offset, part.stripe), (*offset, pieces[part.piece].stripe));
                    *offset += part.len;
                    *rest -= part.len;
                    assert!(*rest == 0 || *offset % BLOCK_BYTES == 0, "a checksum's run is cut");
                    blocks += part.blocks();
                }
            }
            assert_eq!((at, blocks), (u64::from(plan.bytes), plan.checksums));
            assert!(left.iter().all(|(_, rest)| *rest == 0));
        }
    }
}
