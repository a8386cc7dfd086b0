//! Memory that the library allocates for callers: aligned to pages, kept for the next one of its size.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ropewalk_base::pool::{Pool, PoolBuffer};

/// Memory that is kept for the next caller, at most.
const KEPT_BYTES_MAX: usize = 1 << 40;

pub struct Buffers {
    pool: Pool,
    lent: Mutex<HashMap<usize, PoolBuffer>>,
}

/// The least that is allocated: page-aligned, as callers expect.
const BYTES_MIN: usize = 4096;

impl Default for Buffers {
    fn default() -> Buffers {
        Buffers { pool: Pool::with_budget(KEPT_BYTES_MAX), lent: Mutex::default() }
    }
}

impl Buffers {
    fn lent(&self) -> MutexGuard<'_, HashMap<usize, PoolBuffer>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of so many bytes.
    pub fn allocate(&self, bytes: usize) -> Option<*mut c_void> {
        let buffer = self.pool.take(bytes.max(BYTES_MIN))?;
        let address = buffer.segment().as_mut_ptr();
        self.lent().insert(address.addr(), buffer);
        Some(address.cast())
    }

    /// Takes a buffer back; false where it is none of ours.
    pub fn free(&self, buffer: *mut c_void) -> bool {
        self.lent().remove(&buffer.addr()).is_some()
    }
}
