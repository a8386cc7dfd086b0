//! The place of all elements that are judged together.

/// As a frame of elements tells it: the origin makes it, and the target judges by it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Whole {
    /// Without gaps, from this offset in the region on.
    Flat(u64),
    /// In instances of a datatype that the origin has told.
    Strided { layout: u8, address: i64, instances: u64, from: u64 },
    /// Where they say themselves, all of them in one frame.
    Records,
}
