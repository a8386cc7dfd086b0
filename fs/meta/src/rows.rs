//! The ordered store as the shard sees it: rows of bytes under keys of bytes.
//!
//! Invariants of every implementation:
//! * a batch is applied whole or not at all, and reads see it as soon as `commit` returns;
//! * positions grow with every commit; the durable commits are a prefix of all commits;
//! * keys are ordered as byte strings.
//!
//! The shard keeps no copy of rows, so an implementation should answer `get` from memory.

use std::collections::BTreeMap;

/// The error of a store's operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowsError {
    /// It cannot go on; the shard that met this stops, since it cannot know which changes were kept.
    #[error("{0}")]
    Failed(String),
    /// Bytes on the disk that were asked for are not those that were written. Others can be read.
    #[error("{0}")]
    Damaged(String),
}

/// Changes that take effect together. `None` removes a row. A later change of a key wins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    pub changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Batch {
    /// Writes a row.
    pub fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.changes.push((key, Some(value)));
    }

    /// Removes a row; nothing happens where it is not there.
    pub fn remove(&mut self, key: Vec<u8>) {
        self.changes.push((key, None));
    }

    /// Whether nothing would change.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

/// Called with key and value of each row of a scan; false ends it.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> bool + 'a;

/// An ordered store with atomic batches.
pub trait Rows {
    /// The value under `key`.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, RowsError>;

    /// Visits the rows with `from <= key < to` in order.
    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), RowsError>;

    /// Applies a batch; its position.
    fn commit(&mut self, batch: Batch) -> Result<u64, RowsError>;

    /// Everything up to this position survives a power loss.
    fn durable(&self) -> u64;
}

/// Rows in memory only, for tests and for measuring the shard without a disk. Every commit counts as
/// durable, unless `hold_durable` says how far.
#[derive(Debug, Clone, Default)]
pub struct VolatileRows {
    rows: BTreeMap<Vec<u8>, Vec<u8>>,
    position: u64,
    /// The durable mark stays here where it is set.
    pub hold_durable: Option<u64>,
}

impl VolatileRows {
    /// All rows in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.rows.iter().map(|(key, value)| (&key[..], &value[..]))
    }
}

impl Rows for VolatileRows {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, RowsError> {
        Ok(self.rows.get(key).cloned())
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), RowsError> {
        if from < to {
            for (key, value) in self
                .rows
                .range::<[u8], _>((std::ops::Bound::Included(from), std::ops::Bound::Excluded(to)))
            {
                if !visit(key, value) {
                    break;
                }
            }
        }
        Ok(())
    }

    fn commit(&mut self, batch: Batch) -> Result<u64, RowsError> {
        for (key, value) in batch.changes {
            match value {
                Some(value) => self.rows.insert(key, value),
                None => self.rows.remove(&key),
            };
        }
        self.position += 1;
        Ok(self.position)
    }

    fn durable(&self) -> u64 {
        self.hold_durable.unwrap_or(self.position)
    }
}
