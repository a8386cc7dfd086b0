//! Descriptors of data with gaps: which bytes of memory a derived datatype has, in which order.
//!
//! A descriptor travels once, and later by its number, in place of an operation for each piece. It is a tree of runs of
//! bytes and of loops over them, stored in the order of its walk. All of MPI's constructors become such trees: a vector is
//! a loop over a run, a subarray nested loops, an indexed type or a struct a list. Neighbours that touch become one run
//! when a descriptor is made, so that whole rows of a matrix are one run.
//!
//! Offsets count from the address that an operation names, and may be negative. Instances of a type lie `extent` bytes
//! apart.
//!
//! Invariants: a walk gives no empty piece and none outside of the bounds, and no sum in it overflows. So an operation is
//! judged by its bounds before its first byte moves. A descriptor of a peer is checked and made as one of our own.
//!
//! A process may make descriptors of more nodes than travel. Peers get these in sections ([`Descriptor::sections`]).

mod sections;
mod shape;
mod walk;

use std::ops::Range;

use thiserror::Error;

pub use sections::Section;
use shape::{Node, Shape};
pub use walk::{Pieces, Run, Runs};

/// Nodes of a descriptor that travels, at most.
pub const NODES_MAX: usize = 1024;
/// Nodes of a descriptor of this process, at most: some 40 MiB of memory.
pub const NODES_HERE_MAX: usize = 1 << 20;
/// Loops within each other at most.
pub const DEPTH_MAX: usize = 8;
/// Offsets, and bytes of data, are at most so far from zero: sums of some of them do not overflow.
const FAR: i128 = 1 << 56;
/// Pieces that a search for overlaps compares one by one, at most.
const PIECES_COMPARED: u64 = 65_536;

/// Why something is no descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Malformed {
    #[error("a datatype has more than {NODES_HERE_MAX} pieces and loops: send it in parts")]
    TooMany,
    #[error("a datatype of a peer has more than {NODES_MAX} pieces and loops, in one section")]
    TooLong,
    #[error("a datatype has more than {DEPTH_MAX} loops within each other: send it in parts")]
    TooDeep,
    #[error("a datatype reaches farther than addresses do")]
    TooFar,
    #[error("the bytes of a datatype are cut off or contradict each other")]
    Bytes,
}

/// Which bytes of memory a datatype has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    shape: Shape,
    /// From the first byte to behind the last one, of one instance.
    bounds: Range<i64>,
    extent: i64,
    /// It is plain that no two pieces of one instance have a byte in common.
    is_apart: bool,
}

/// A piece of memory: its offset from the address that an operation names, and its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub offset: i64,
    pub bytes: u64,
}

impl Descriptor {
    /// Bytes without gaps.
    ///
    /// # Errors
    /// There are more than addresses reach.
    pub fn contiguous(bytes: u64) -> Result<Descriptor, Malformed> {
        Descriptor::made(&[Node::Run { offset: 0, bytes }], None)
    }

    /// `count` times the same, `stride` bytes apart: a vector, and one dimension of a subarray.
    ///
    /// # Errors
    /// It has too many nodes, too many loops within each other, or reaches too far.
    pub fn repeated(&self, count: u64, stride: i64) -> Result<Descriptor, Malformed> {
        let own = self.shape.nodes();
        let mut nodes = Vec::with_capacity(own.len() + 1);
        nodes.push(Node::Loop { offset: 0, count, stride, nodes: own.len() });
        nodes.extend(own);
        // The gaps of a resized type count, too.
        let turns = i128::from(count).saturating_sub(1).max(0);
        let extent = i128::from(stride).abs() * turns + i128::from(self.extent);
        Descriptor::made(&nodes, Some(extent))
    }

    /// Parts one after the other, each so far from the address as is told: indexed types, and structs. The extent is that
    /// of all data.
    ///
    /// # Errors
    /// As [`Self::repeated`].
    pub fn joined(parts: &[(i64, &Descriptor)]) -> Result<Descriptor, Malformed> {
        Descriptor::blocks(parts.iter().map(|(by, part)| (*by, 1, *part)))
    }

    /// The same of parts that are so many instances side by side.
    ///
    /// # Errors
    /// As [`Self::repeated`].
    pub fn blocks<'a>(
        parts: impl Iterator<Item = (i64, u64, &'a Descriptor)>,
    ) -> Result<Descriptor, Malformed> {
        let mut nodes = Vec::new();
        for (by, count, part) in parts {
            let own = part.shape.nodes();
            if nodes.len() + own.len() > NODES_HERE_MAX {
                return Err(Malformed::TooMany);
            }
            match (count, own) {
                (0, _) | (_, []) => {}
                (1, _) => {
                    let mut at = 0;
                    while at < own.len() {
                        let after = own[at].after(at);
                        nodes.push(own[at].moved(by)?);
                        nodes.extend(&own[at + 1..after]);
                        at = after;
                    }
                }
                // A loop would be a node more, until it is found that it has no gaps.
                (_, [Node::Run { offset, bytes }]) if part.extent == *bytes as i64 => {
                    let all = i128::from(*bytes) * i128::from(count);
                    let bytes = u64::try_from(all).map_err(|_| Malformed::TooFar)?;
                    nodes.push(Node::Run { offset: *offset, bytes }.moved(by)?);
                }
                _ => {
                    let stride = part.extent;
                    nodes.push(Node::Loop { offset: by, count, stride, nodes: own.len() });
                    nodes.extend(own);
                }
            }
        }
        Descriptor::made(&nodes, None)
    }

    /// The same with instances so many bytes apart.
    ///
    /// # Errors
    /// That is farther than addresses reach.
    pub fn resized(self, extent: i64) -> Result<Descriptor, Malformed> {
        if i128::from(extent).abs() > FAR {
            return Err(Malformed::TooFar);
        }
        Ok(Descriptor { extent, ..self })
    }

    fn made(nodes: &[Node], extent: Option<i128>) -> Result<Descriptor, Malformed> {
        let (shape, bounds) = Shape::made(nodes)?;
        let extent = extent.unwrap_or(i128::from(bounds.end) - i128::from(bounds.start));
        if extent.abs() > FAR {
            return Err(Malformed::TooFar);
        }
        let is_apart = shape.is_apart();
        Ok(Descriptor { shape, bounds, extent: extent as i64, is_apart })
    }

    /// Bytes of data of one instance.
    pub fn len(&self) -> u64 {
        self.shape.bytes()
    }

    /// Whether it has no data.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes from one instance to the next.
    pub fn extent(&self) -> i64 {
        self.extent
    }

    /// From the first byte of `count` instances to behind the last one, as offsets; empty where there is no data. `None`
    /// where they reach farther than addresses do.
    pub fn bounds(&self, count: u64) -> Option<Range<i64>> {
        if count == 0 || self.is_empty() {
            return Some(0..0);
        }
        let last = i128::from(self.extent).checked_mul(i128::from(count - 1))?;
        let start = i128::from(self.bounds.start).checked_add(last.min(0))?;
        let end = i128::from(self.bounds.end).checked_add(last.max(0))?;
        let bytes = i128::from(self.len()).checked_mul(i128::from(count))?;
        (start >= -FAR && end <= FAR && bytes <= FAR).then_some(start as i64..end as i64)
    }

    /// The pieces of `count` instances, from this byte of their data on; neighbours that touch are one.
    ///
    /// # Panics
    /// They reach farther than addresses do ([`Self::bounds`]).
    pub fn pieces(&self, count: u64, from: u64) -> Pieces<'_> {
        assert!(self.bounds(count).is_some(), "instances lie where memory can be");
        Pieces::new(&self.shape, count, self.extent, from)
    }

    /// The same bytes as [`Self::pieces`], as few runs of equal pieces.
    ///
    /// # Panics
    /// They reach farther than addresses do ([`Self::bounds`]).
    pub fn runs(&self, count: u64, from: u64) -> Runs<'_> {
        assert!(self.bounds(count).is_some(), "instances lie where memory can be");
        Runs::new(&self.shape, count, self.extent, from)
    }

    /// Whether pieces of `count` instances may have a byte in common. The answer is exact for 65,536 pieces and fewer.
    /// With more of them, loops that reach into each other count as overlapping.
    pub fn may_overlap(&self, count: u64) -> bool {
        if self.is_plainly_apart(count) {
            return false;
        }
        if self.bounds(count).is_none() || self.shape.runs().saturating_mul(count) > PIECES_COMPARED
        {
            return true;
        }
        let mut pieces: Vec<Piece> = self.pieces(count, 0).collect();
        pieces.sort_unstable_by_key(|piece| piece.offset);
        pieces.windows(2).any(|two| two[0].offset + two[0].bytes as i64 > two[1].offset)
    }

    /// Whether the structure alone tells that no two pieces of `count` instances have a byte in common. False where loops
    /// reach into each other, though they may miss each other. No piece is looked at.
    pub fn is_plainly_apart(&self, count: u64) -> bool {
        let own = self.bounds.end - self.bounds.start;
        self.is_apart && (count <= 1 || self.extent.unsigned_abs() >= own.unsigned_abs())
    }

    /// Its bytes in a frame: the extent, then each node.
    ///
    /// # Panics
    /// It has more nodes than travel ([`Self::may_travel`]).
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.may_travel(), "a long descriptor travels in sections");
        let nodes = self.shape.nodes();
        let mut out = Vec::with_capacity(size_of::<i64>() + nodes.len() * shape::NODE_BYTES);
        out.extend(self.extent.to_le_bytes());
        nodes.iter().for_each(|node| node.encode(&mut out));
        out
    }

    /// The descriptor that a peer sent.
    ///
    /// # Errors
    /// It is none; or one with too many nodes, too many loops within each other, or that reaches too far.
    pub fn decode(bytes: &[u8]) -> Result<Descriptor, Malformed> {
        let (extent, rest) = bytes.split_first_chunk().ok_or(Malformed::Bytes)?;
        let (nodes, rest) = rest.as_chunks::<{ shape::NODE_BYTES }>();
        if !rest.is_empty() {
            return Err(Malformed::Bytes);
        }
        if nodes.len() > NODES_MAX {
            return Err(Malformed::TooLong);
        }
        let nodes: Vec<Node> = nodes.iter().map(Node::decode).collect();
        Descriptor::made(&nodes, Some(i128::from(i64::from_le_bytes(*extent))))
    }
}

#[cfg(test)]
mod tests;
