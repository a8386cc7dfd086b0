//! Rings of numbers and memory for frames, shared with the kernel.
//!
//! Invariants:
//! * a ring has one [`Giver`] or one [`Taker`] of this process, and the kernel at its other end;
//! * an entry is read or written by the side whose turn it is; the two counters at the ring's begin tell.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::socket;

/// A mapping of its own.
#[derive(Debug)]
pub struct Mapping {
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone and is not tied to a thread.
unsafe impl Send for Mapping {}
// SAFETY: its contents are only reached by raw pointers, whose users say why they may.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(bytes: usize, flags: i32, descriptor: i32, offset: i64) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, where the kernel likes.
        let memory = unsafe {
            libc::mmap(ptr::null_mut(), bytes, protection, flags, descriptor, offset as _)
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { at, bytes })
    }

    /// Memory for frames. A process that is forked off shares it, so that no page of it is ever exchanged for a
    /// copy behind the kernel's back.
    pub fn memory(bytes: usize) -> io::Result<Mapping> {
        Mapping::new(bytes, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0)
    }

    pub fn at(&self) -> *mut u8 {
        self.at.as_ptr()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing of it is used any more.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

/// The kind of a socket's ring, which decides its option and offset.
#[derive(Debug, Clone, Copy)]
pub enum Which {
    /// Frames that came, and memory for them.
    Received,
    Fill,
    /// Frames that shall leave, and memory of those that have left.
    Sent,
    Completed,
}

impl Which {
    fn option(self) -> i32 {
        match self {
            Which::Received => libc::XDP_RX_RING,
            Which::Fill => libc::XDP_UMEM_FILL_RING,
            Which::Sent => libc::XDP_TX_RING,
            Which::Completed => libc::XDP_UMEM_COMPLETION_RING,
        }
    }

    fn offset(self) -> i64 {
        match self {
            Which::Received => 0,
            Which::Sent => 0x8000_0000,
            Which::Fill => 0x1_0000_0000,
            Which::Completed => 0x1_8000_0000,
        }
    }

    fn parts(self, all: &libc::xdp_mmap_offsets) -> &libc::xdp_ring_offset {
        match self {
            Which::Received => &all.rx,
            Which::Fill => &all.fr,
            Which::Sent => &all.tx,
            Which::Completed => &all.cr,
        }
    }
}

/// Entries that one side writes and the other one reads.
#[derive(Debug)]
pub struct Ring<T> {
    mapping: Mapping,
    produced: usize,
    consumed: usize,
    flags: usize,
    entries: usize,
    mask: u32,
    of: PhantomData<T>,
}

// SAFETY: counters are atomic, and entries are reached through the one giver or taker only.
unsafe impl<T: Send> Send for Ring<T> {}
// SAFETY: see above.
unsafe impl<T: Send> Sync for Ring<T> {}

/// Entries are numbers, with nothing between and behind them.
pub trait Entry: Copy + Send {}
impl Entry for u64 {}
impl Entry for libc::xdp_desc {}

impl<T: Entry> Ring<T> {
    /// Sets the length of a ring, which is a power of two; before the socket is bound.
    pub fn set(socket: BorrowedFd<'_>, which: Which, count: u32) -> io::Result<()> {
        socket::set(socket, libc::SOL_XDP, which.option(), &count)
    }

    /// Maps a ring of so many entries.
    pub fn map(
        socket: BorrowedFd<'_>,
        which: Which,
        offsets: &libc::xdp_mmap_offsets,
        count: u32,
    ) -> io::Result<Ring<T>> {
        let parts = which.parts(offsets);
        let [produced, consumed, flags, entries] =
            [parts.producer, parts.consumer, parts.flags, parts.desc].map(|at| at as usize);
        let bytes = entries + count as usize * size_of::<T>();
        let highest = produced.max(consumed).max(flags) + size_of::<u32>();
        if highest > bytes || !count.is_power_of_two() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mapping_flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        let mapping = Mapping::new(bytes, mapping_flags, socket.as_raw_fd(), which.offset())?;
        Ok(Ring { mapping, produced, consumed, flags, entries, mask: count - 1, of: PhantomData })
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: a word inside of the mapping, as was checked, aligned by the kernel; both sides go by atomic
        // accesses.
        unsafe { AtomicU32::from_ptr(self.mapping.at().add(at).cast()) }
    }

    fn entry(&self, number: u32) -> *mut T {
        let index = (number & self.mask) as usize;
        // SAFETY: the index is smaller than the count of entries, all of which lie in the mapping.
        unsafe { self.mapping.at().add(self.entries).cast::<T>().add(index) }
    }

    /// Entries that were written and not read yet, as far as can be seen without being one of the two.
    pub fn waiting(&self) -> u32 {
        let consumed = self.word(self.consumed).load(Ordering::Acquire);
        self.word(self.produced).load(Ordering::Acquire).wrapping_sub(consumed)
    }

    /// Whether the kernel goes on only when it is asked to.
    pub fn wants_wake(&self) -> bool {
        self.word(self.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// The side that writes entries.
#[derive(Debug)]
pub struct Giver<T> {
    ring: Arc<Ring<T>>,
    next: u32,
    /// The other side has read all before this one; looked up again when the ring seems full, since it lies in a
    /// line of the cache that the other side writes.
    read: u32,
}

impl<T: Entry> Giver<T> {
    /// Of a ring that was just mapped, which nobody else writes to.
    pub fn of(ring: Ring<T>) -> Giver<T> {
        let next = ring.word(ring.produced).load(Ordering::Relaxed);
        Giver { read: ring.word(ring.consumed).load(Ordering::Acquire), ring: Arc::new(ring), next }
    }

    pub fn ring(&self) -> &Arc<Ring<T>> {
        &self.ring
    }

    /// Adds an entry, which the other side sees with the next [`Giver::publish`]; false where the ring is full.
    pub fn give(&mut self, entry: T) -> bool {
        if self.next.wrapping_sub(self.read) > self.ring.mask {
            self.read = self.ring.word(self.ring.consumed).load(Ordering::Acquire);
            if self.next.wrapping_sub(self.read) > self.ring.mask {
                return false;
            }
        }
        // SAFETY: an entry that the other side has read, and reads again only once it is published; nobody else
        // writes.
        unsafe { self.ring.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
        true
    }

    pub fn publish(&mut self) {
        self.ring.word(self.ring.produced).store(self.next, Ordering::Release);
    }
}

/// The side that reads them.
#[derive(Debug)]
pub struct Taker<T> {
    ring: Arc<Ring<T>>,
    next: u32,
    /// The other side has written all before this one, and perhaps more.
    written: u32,
}

impl<T: Entry> Taker<T> {
    /// Of a ring that was just mapped, which nobody else reads from.
    pub fn of(ring: Ring<T>) -> Taker<T> {
        let next = ring.word(ring.consumed).load(Ordering::Relaxed);
        Taker { ring: Arc::new(ring), next, written: next }
    }

    pub fn ring(&self) -> &Arc<Ring<T>> {
        &self.ring
    }

    /// The next entry, again and again until it is [`Taker::done`].
    pub fn peek(&mut self) -> Option<T> {
        if self.written == self.next {
            self.written = self.ring.word(self.ring.produced).load(Ordering::Acquire);
        }
        // SAFETY: an entry that was written, and is written again only once it is done.
        (self.written != self.next).then(|| unsafe { self.ring.entry(self.next).read() })
    }

    /// The entry that [`Taker::peek`] returned is read.
    pub fn done(&mut self) {
        self.next = self.next.wrapping_add(1);
        self.ring.word(self.ring.consumed).store(self.next, Ordering::Release);
    }
}
