//! Memory that the library allocates for callers: aligned to pages, populated by use and used again, and
//! such that peers on this host map it instead of asking the kernel for copies.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ropewalk_net::shared_memory;

#[derive(Default)]
pub struct Buffers {
    /// Lengths by addresses.
    lent: Mutex<HashMap<usize, usize>>,
}

impl Buffers {
    fn lent(&self) -> MutexGuard<'_, HashMap<usize, usize>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of so many bytes.
    pub fn allocate(&self, bytes: usize) -> Option<*mut c_void> {
        let address = shared_memory::allocate(bytes)?.as_ptr();
        self.lent().insert(address.addr(), bytes);
        Some(address.cast())
    }

    /// Takes a buffer back; false where it is none of ours.
    pub fn free(&self, buffer: *mut c_void) -> bool {
        let Some(address) = NonNull::new(buffer.cast()) else { return false };
        let Some(bytes) = self.lent().remove(&buffer.addr()) else { return false };
        // SAFETY: it was allocated with this length, and who frees memory uses it no more.
        unsafe { shared_memory::free(address, bytes) }
    }
}

impl Drop for Buffers {
    /// The memory ends with the library.
    fn drop(&mut self) {
        for (address, bytes) in self.lent().drain() {
            if let Some(address) = NonNull::new(std::ptr::with_exposed_provenance_mut(address)) {
                // SAFETY: it was allocated with this length; the interface ends its use here.
                unsafe { shared_memory::free(address, bytes) };
            }
        }
        shared_memory::give_up_idle();
    }
}
