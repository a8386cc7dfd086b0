//! Ordered rows with atomic batches: the interface of every metadata store.
//!
//! Keys and values are bytes, keys are ordered bytewise. A store belongs to one executor, which applies
//! serially: its reads between two of its own commits see one consistent snapshot, that of the last commit.

use std::ops::Bound;
use std::sync::Arc;

use crate::batch::Batch;
use crate::error::StoreError;
use crate::marks::{Position, Reached};

/// The value of a row.
pub type Value = Arc<[u8]>;

/// A row as a scan hands it out.
pub type Row = (Vec<u8>, Value);

/// The direction of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Forward,
    Backward,
}

/// A range of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyRange<'a> {
    pub start: Bound<&'a [u8]>,
    pub end: Bound<&'a [u8]>,
}

impl<'a> KeyRange<'a> {
    /// All keys.
    pub fn all() -> KeyRange<'a> {
        KeyRange { start: Bound::Unbounded, end: Bound::Unbounded }
    }

    /// From `start` to before `end`.
    pub fn between(start: &'a [u8], end: &'a [u8]) -> KeyRange<'a> {
        KeyRange { start: Bound::Included(start), end: Bound::Excluded(end) }
    }

    /// Behind `start`, to before `end`: the rest of a scan after its last key.
    pub fn after(start: &'a [u8], end: &'a [u8]) -> KeyRange<'a> {
        KeyRange { start: Bound::Excluded(start), end: Bound::Excluded(end) }
    }

    /// Whether no key can be in the range.
    pub fn is_empty(&self) -> bool {
        match (self.start, self.end) {
            (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
            (Bound::Included(start), Bound::Included(end)) => start > end,
            (Bound::Included(start) | Bound::Excluded(start), Bound::Excluded(end))
            | (Bound::Excluded(start), Bound::Included(end)) => start >= end,
        }
    }
}

/// A store of ordered rows.
pub trait MetaStore {
    /// The value of a key, as of the last commit.
    fn get(&self, key: &[u8]) -> Result<Option<Value>, StoreError>;

    /// Up to `limit` rows of a range, as of the last commit, in the order asked for.
    fn scan(&self, range: KeyRange<'_>, order: Order, limit: usize)
    -> Result<Vec<Row>, StoreError>;

    /// Makes all changes of a batch at once, visible to reads from now on.
    ///
    /// # Errors
    /// `Busy` where the caller did not wait for [`MetaStore::ready`]; `TooLarge`; `Full`;
    /// `Stopped` after an error of the disk. Nothing of the batch takes effect then.
    fn commit(&self, batch: &Batch) -> Result<Position, StoreError>;

    /// Completes when there is room for a commit. One that follows at once is never `Busy`.
    fn ready(&self) -> impl Future<Output = Result<(), StoreError>>;

    /// The position of the last commit.
    fn position(&self) -> Position;

    /// Everything up to here survives the death of the process.
    fn written(&self) -> Position;

    /// Everything up to here survives a power loss.
    fn durable(&self) -> Position;

    /// Completes when `written` covers `position`.
    fn wait_written(&self, position: Position) -> Reached;

    /// Completes when `durable` covers `position`.
    fn wait_durable(&self, position: Position) -> Reached;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_ranges_are_seen() {
        assert!(KeyRange::between(b"b", b"b").is_empty());
        assert!(KeyRange::between(b"c", b"b").is_empty());
        assert!(KeyRange::after(b"b", b"b").is_empty());
        assert!(!KeyRange::between(b"a", b"b").is_empty());
        assert!(!KeyRange::all().is_empty());
        let point = KeyRange { start: Bound::Included(b"b"), end: Bound::Included(b"b") };
        assert!(!point.is_empty());
    }
}
