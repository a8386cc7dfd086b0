//! A pool of reusable buffers: page-aligned, initialised, bounded.
//!
//! Invariants: the bytes lent out never exceed the budget, but for buffers that were made over to their
//! owner; a buffer belongs to one owner at a time; fresh memory is zeroed once and populated by use,
//! then reused (populating a page costs more than copying it, specs/machine-limits 1.1).

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::memory::Segment;

const CLASS_BYTES_MIN: usize = 256;
/// Classes of 256 B, 512 B, ... up to 16 MiB; larger buffers are allocated and freed each time.
const CLASSES: usize = 17;
const PAGE_BYTES: usize = 4096;

/// A source of buffers with a budget. Cloning gives another handle on the same pool.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    budget: usize,
    lent: AtomicUsize,
    lent_max: AtomicUsize,
    /// Free memory by class; the budget bounds it, too.
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    lists: [Vec<Raw>; CLASSES],
    bytes: usize,
}

/// An allocation of one class, free or lent.
struct Raw {
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a `Raw` is the sole owner of its allocation, like a `Box<[u8]>`.
unsafe impl Send for Raw {}
// SAFETY: shared access to a `Raw` allows reading only (through `PoolBuffer::deref`).
unsafe impl Sync for Raw {}

impl Raw {
    fn layout(bytes: usize) -> Layout {
        let align = if bytes >= PAGE_BYTES { PAGE_BYTES } else { 64 };
        Layout::from_size_align(bytes, align).expect("class sizes are valid layouts")
    }

    fn allocate(bytes: usize) -> Raw {
        let layout = Raw::layout(bytes);
        // SAFETY: the layout has a size above zero (the smallest class is 256 B).
        let address = unsafe { alloc_zeroed(layout) };
        let Some(address) = NonNull::new(address) else { handle_alloc_error(layout) };
        Raw { address, bytes }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: allocated in `allocate` with this very layout, freed only here.
        unsafe { dealloc(self.address.as_ptr(), Raw::layout(self.bytes)) };
    }
}

fn class_of(bytes: usize) -> (Option<usize>, usize) {
    let rounded = bytes.max(CLASS_BYTES_MIN).next_power_of_two();
    let class = (rounded / CLASS_BYTES_MIN).trailing_zeros() as usize;
    if class < CLASSES {
        (Some(class), rounded)
    } else {
        (None, bytes.next_multiple_of(PAGE_BYTES))
    }
}

impl Pool {
    /// A pool that lends at most `budget` bytes (buffers count with their class size).
    pub fn with_budget(budget: usize) -> Pool {
        Pool {
            shared: Arc::new(Shared {
                budget,
                lent: AtomicUsize::new(0),
                lent_max: AtomicUsize::new(0),
                free: Mutex::new(Free::default()),
            }),
        }
    }

    /// A buffer of `bytes` bytes with arbitrary (initialised) content; `None` over budget.
    pub fn take(&self, bytes: usize) -> Option<PoolBuffer> {
        let (class, rounded) = class_of(bytes);
        let shared = &*self.shared;
        let before = shared.lent.fetch_add(rounded, Ordering::Relaxed);
        if before + rounded > shared.budget {
            shared.lent.fetch_sub(rounded, Ordering::Relaxed);
            return None;
        }
        shared.lent_max.fetch_max(before + rounded, Ordering::Relaxed);
        let reused = class.and_then(|class| {
            let mut free = shared.free.lock().expect("pool lists are never left half-changed");
            let raw = free.lists[class].pop()?;
            free.bytes -= raw.bytes;
            Some(raw)
        });
        let raw = reused.unwrap_or_else(|| Raw::allocate(rounded));
        let segment = Segment::new(raw.address.as_ptr(), bytes);
        let capacity = raw.bytes;
        // From here on the buffer owns the allocation; its drop makes a `Raw` of it again.
        std::mem::forget(raw);
        Some(PoolBuffer { segment, capacity, pool: self.clone(), counted: true })
    }

    /// A buffer with a copy of `bytes`; `None` over budget.
    pub fn copy_of(&self, bytes: &[u8]) -> Option<PoolBuffer> {
        let mut buffer = self.take(bytes.len())?;
        buffer.copy_from_slice(bytes);
        Some(buffer)
    }

    /// Bytes lent out now, in class sizes.
    pub fn lent_bytes(&self) -> usize {
        self.shared.lent.load(Ordering::Relaxed)
    }

    /// The most bytes that were ever lent out at once.
    pub fn lent_bytes_max(&self) -> usize {
        self.shared.lent_max.load(Ordering::Relaxed)
    }

    /// The most bytes that may be lent out.
    pub fn budget_bytes(&self) -> usize {
        self.shared.budget
    }

    fn give_back(&self, raw: Raw, counted: bool) {
        if counted {
            self.shared.lent.fetch_sub(raw.bytes, Ordering::Relaxed);
        }
        if let (Some(class), _) = class_of(raw.bytes) {
            let mut free = self.shared.free.lock().expect("pool lists are never left half-changed");
            if free.bytes + raw.bytes <= self.shared.budget {
                free.bytes += raw.bytes;
                free.lists[class].push(raw);
            }
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} of {} bytes lent)", self.lent_bytes(), self.shared.budget)
    }
}

/// A buffer of a [`Pool`]; goes back when dropped. Dereferences to its bytes.
pub struct PoolBuffer {
    /// The bytes in use, from the beginning of an allocation that this value owns.
    segment: Segment,
    /// Bytes of the allocation.
    capacity: usize,
    pool: Pool,
    /// Whether the budget still counts it.
    counted: bool,
}

impl PoolBuffer {
    /// The whole buffer as a segment.
    #[inline]
    pub fn segment(&self) -> &Segment {
        &self.segment
    }

    /// The number of bytes that it can have without another allocation.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Makes the buffer over to its owner: the budget counts it no more. The owner has a bound of its own for such
    /// buffers.
    pub fn make_over(&mut self) {
        if std::mem::replace(&mut self.counted, false) {
            self.pool.shared.lent.fetch_sub(self.capacity, Ordering::Relaxed);
        }
    }

    /// Changes the length within the capacity. Bytes that come in are initialised, but arbitrary.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity, "a pool buffer cannot grow over its capacity");
        self.segment = Segment::new(self.segment.as_mut_ptr(), len);
    }
}

impl Deref for PoolBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the allocation is initialised (zeroed at birth), has at least `len` bytes, and is
        // owned by this value; operations own the `PoolBuffer` itself while a rail may write it.
        unsafe { std::slice::from_raw_parts(self.segment.as_mut_ptr(), self.segment.len()) }
    }
}

impl DerefMut for PoolBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.segment.as_mut_ptr(), self.segment.len()) }
    }
}

impl Drop for PoolBuffer {
    fn drop(&mut self) {
        let address = NonNull::new(self.segment.as_mut_ptr()).expect("an allocation is not null");
        self.pool.give_back(Raw { address, bytes: self.capacity }, self.counted);
    }
}

impl fmt::Debug for PoolBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PoolBuffer({} bytes)", self.segment.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_holds_and_memory_is_reused() {
        let pool = Pool::with_budget(8192);
        let a = pool.take(4096).unwrap();
        let address = a.segment().address();
        assert_eq!(address % PAGE_BYTES, 0);
        let b = pool.take(3000).unwrap();
        assert_eq!(b.capacity(), 4096);
        assert!(pool.take(1).is_none());
        drop(a);
        assert_eq!(pool.take(4000).unwrap().segment().address(), address);
        assert_eq!(pool.lent_bytes(), 4096);
        assert_eq!(pool.lent_bytes_max(), 8192);
    }

    #[test]
    fn a_buffer_that_was_made_over_leaves_the_budget_at_once_and_once() {
        let pool = Pool::with_budget(4096);
        let mut buffer = pool.take(4096).unwrap();
        let address = buffer.segment().address();
        buffer.make_over();
        buffer.make_over();
        assert_eq!(pool.lent_bytes(), 0);
        let other = pool.take(4096).unwrap();
        drop(buffer);
        assert_eq!(pool.lent_bytes(), 4096);
        drop(other);
        assert_eq!(pool.lent_bytes(), 0);
        // The pool still bounds the buffers that it keeps for reuse: this is the first one that came back.
        assert_eq!(pool.take(4096).unwrap().segment().address(), address);
    }

    #[test]
    fn large_buffers_do_not_round_up_to_a_power_of_two() {
        let pool = Pool::with_budget(64 << 20);
        let buffer = pool.take((16 << 20) + 1).unwrap();
        assert_eq!(buffer.capacity(), (16 << 20) + PAGE_BYTES);
        drop(buffer);
        assert_eq!(pool.lent_bytes(), 0);
    }
}
