//! Operations on exposed memory, as the protocol core describes them. [`super::BufferTable::apply`] executes them.

use std::sync::Arc;

use super::{Element, Slice, Update};
use crate::descriptor::Descriptor;

/// An operation on exposed memory that was judged and may take effect.
#[derive(Debug, Clone)]
pub struct Job {
    pub change: Change,
    pub places: Places,
}

/// What becomes of the target's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Those of the source take their place.
    Store,
    /// The same, as the source says: it has records, each of an offset in the places (8 bytes), a length (4) and as many bytes.
    /// Numbers are little-endian. They are stored in their order. The places have no gaps.
    Records,
    /// Each element is combined with one of the source.
    Update(Update),
    /// One element is combined with an operand: its first bytes, as many as the element is sent with.
    One { update: Update, operand: [u8; 8] },
    /// One element takes the desired value where it has the expected one.
    Swap { element: Element, expected: [u8; 8], desired: [u8; 8] },
}

/// Where the target's bytes lie.
#[derive(Debug, Clone)]
pub enum Places {
    /// Without gaps.
    One(Slice),
    /// As instances of a datatype: `bytes` bytes of their data, from the byte `from` on. Elements of an update lie in them
    /// with their padding.
    Shaped {
        region: Slice,
        /// The address that the datatype's offsets count from, in the region.
        address: i64,
        shape: Arc<Descriptor>,
        count: u64,
        from: u64,
        bytes: u64,
    },
}

/// Bytes of a record before its data: see [`Change::Records`].
pub const RECORD_BYTES: usize = 12;

/// The head of a record of so many bytes.
pub fn record(offset: u64, bytes: u32) -> [u8; RECORD_BYTES] {
    let mut head = [0; RECORD_BYTES];
    head[..8].copy_from_slice(&offset.to_le_bytes());
    head[8..].copy_from_slice(&bytes.to_le_bytes());
    head
}
