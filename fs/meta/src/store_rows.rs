//! [`Rows`] over a [`MetaStore`]: the rows of a real server.
//!
//! The server waits for the store's `ready` before it hands a call to the shard, and tells the shard
//! when that says that the disk is full; so a commit never meets a store that is busy.

use ropewalk_store::{KeyRange, MetaStore, Order, StoreError};

use crate::rows::{Batch, Rows, RowsError, Visit};

/// Rows of the first page of a scan, and of the further ones: most scans look for one row.
const FIRST_PAGE: usize = 4;
const FURTHER_PAGE: usize = 256;

/// The rows of a store.
#[derive(Debug, Clone)]
pub struct StoreRows<S> {
    store: S,
}

impl<S: MetaStore> StoreRows<S> {
    /// The rows of `store`, which nobody else changes.
    pub fn new(store: S) -> StoreRows<S> {
        StoreRows { store }
    }

    /// The store, for its marks and for `ready`.
    pub fn store(&self) -> &S {
        &self.store
    }
}

impl From<StoreError> for RowsError {
    fn from(error: StoreError) -> RowsError {
        match error {
            StoreError::Damaged { .. } => RowsError::Damaged(error.to_string()),
            _ => RowsError::Failed(error.to_string()),
        }
    }
}

impl<S: MetaStore> Rows for StoreRows<S> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, RowsError> {
        Ok(self.store.get(key)?.map(|value| value.to_vec()))
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut Visit<'_>) -> Result<(), RowsError> {
        if from >= to {
            return Ok(());
        }
        let mut limit = FIRST_PAGE;
        let mut rows = self.store.scan(KeyRange::between(from, to), Order::Forward, limit)?;
        loop {
            if !rows.iter().all(|(key, value)| visit(key, value)) || rows.len() < limit {
                return Ok(());
            }
            let Some((last, _)) = rows.pop() else { return Ok(()) };
            limit = FURTHER_PAGE;
            rows = self.store.scan(KeyRange::after(&last, to), Order::Forward, limit)?;
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
        Ok(self.store.commit(&changes)?.0)
    }

    fn durable(&self) -> u64 {
        self.store.durable().0
    }
}
