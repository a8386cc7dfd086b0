//! The embedded store as the shard's rows.
//!
//! Invariant: whoever commits through this waited for `MetaStore::ready` before, so that `Busy` is
//! no answer here; any error stops the shard.

use ropewalk_store::{EmbeddedStore, KeyRange, MetaStore, Order, StoreError};

use crate::rows::{Batch, Rows, RowsError, Visit};

/// Rows that the first piece of a scan reads: most scans look at few.
const SCAN_ROWS_FIRST: usize = 16;
/// Rows that later pieces of a scan read at most.
const SCAN_ROWS_MAX: usize = 1024;

/// Rows in an embedded store.
pub struct StoreRows {
    store: EmbeddedStore,
}

impl StoreRows {
    /// Rows of this store; nobody else may write to it.
    pub fn new(store: EmbeddedStore) -> StoreRows {
        StoreRows { store }
    }
}

fn failed(error: StoreError) -> RowsError {
    RowsError(error.to_string())
}

impl Rows for StoreRows {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, RowsError> {
        let value = self.store.get(key).map_err(failed)?;
        Ok(value.map(|value| value.to_vec()))
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), RowsError> {
        let mut limit = SCAN_ROWS_FIRST;
        let mut range = KeyRange::between(from, to);
        let mut last;
        loop {
            let mut rows = self.store.scan(range, Order::Forward, limit).map_err(failed)?;
            for (key, value) in &rows {
                if !visit(key, value) {
                    return Ok(());
                }
            }
            match rows.pop() {
                Some((key, _)) if rows.len() + 1 == limit => last = key,
                _ => return Ok(()),
            }
            range = KeyRange::after(&last, to);
            limit = (limit * 4).min(SCAN_ROWS_MAX);
        }
    }

    fn commit(&mut self, batch: Batch) -> Result<u64, RowsError> {
        let mut changes = ropewalk_store::Batch::new();
        for (key, value) in &batch.changes {
            match value {
                Some(value) => changes.put(key, value),
                None => changes.delete(key),
            };
        }
        let position = self.store.commit(&changes).map_err(failed)?;
        Ok(position.0)
    }

    fn durable(&self) -> u64 {
        self.store.durable().0
    }
}
