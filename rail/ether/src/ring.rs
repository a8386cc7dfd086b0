//! The receive ring: slots that the kernel and this process hand each other (TPACKET_V2, packet(7)).
//!
//! Invariants:
//! * a slot is read while its status says that it is ours, by the holder of the ring's lock, and then given
//!   back;
//! * lengths that the kernel wrote are checked against the slot.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use crate::socket;

/// Bytes of a block, which holds a whole number of slots.
const BLOCK_BYTES: usize = 1 << 20;
/// Bytes that all slots have together, usually.
const RING_BYTES: usize = 8 << 20;
/// The bytes that the kernel puts in front of a frame.
const FRONT_BYTES: usize = 128;

/// Slots for received frames, and the state of their reader.
#[derive(Debug)]
pub struct Ring<T> {
    memory: NonNull<u8>,
    slot_bytes: usize,
    slots: usize,
    /// The slot that is read next; changed under the lock.
    next: AtomicUsize,
    lock: Mutex<T>,
}

// SAFETY: the mapping belongs to the ring alone and is not tied to a thread.
unsafe impl<T: Send> Send for Ring<T> {}
// SAFETY: without the lock nothing is read but statuses, which are atomic.
unsafe impl<T: Send> Sync for Ring<T> {}

/// The reader of the ring.
#[derive(Debug)]
pub struct Reader<'a, T> {
    ring: &'a Ring<T>,
    pub with: MutexGuard<'a, T>,
}

/// The content of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// The frame did not fit, and was not shown.
    pub is_cut: bool,
    /// The kernel had no slot for others, since it was asked how many these are.
    pub is_losing: bool,
}

/// Bytes of a slot for frames of so many.
fn slot_bytes(frame_bytes: usize) -> io::Result<usize> {
    let bytes = (frame_bytes + FRONT_BYTES).next_power_of_two();
    if bytes > BLOCK_BYTES { Err(io::ErrorKind::InvalidInput.into()) } else { Ok(bytes) }
}

impl<T> Ring<T> {
    /// A ring for frames of at most so many bytes, of the usual size.
    pub fn new(socket: BorrowedFd<'_>, frame_bytes: usize, with: T) -> io::Result<Ring<T>> {
        Ring::with_slots(socket, frame_bytes, RING_BYTES / slot_bytes(frame_bytes)?, with)
    }

    /// A ring for so many frames, a power of two.
    pub fn with_slots(
        socket: BorrowedFd<'_>,
        frame_bytes: usize,
        slots: usize,
        with: T,
    ) -> io::Result<Ring<T>> {
        let version = libc::tpacket_versions::TPACKET_V2 as i32;
        socket::set(socket, libc::SOL_PACKET, libc::PACKET_VERSION, &version)?;
        let slot_bytes = slot_bytes(frame_bytes)?;
        let ring_bytes = slots * slot_bytes;
        let block_bytes = ring_bytes.min(BLOCK_BYTES);
        let request = libc::tpacket_req {
            tp_block_size: block_bytes as u32,
            tp_block_nr: (ring_bytes / block_bytes) as u32,
            tp_frame_size: slot_bytes as u32,
            tp_frame_nr: slots as u32,
        };
        socket::set(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping where the kernel likes, of the ring that was just made.
        let memory = unsafe {
            libc::mmap(ptr::null_mut(), ring_bytes, protection, flags, socket.as_raw_fd(), 0)
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let (next, lock) = (AtomicUsize::new(0), Mutex::new(with));
        Ok(Ring { memory, slot_bytes, slots, next, lock })
    }

    /// The number of frames that it holds.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Bytes that a slot has for a frame.
    pub fn frame_bytes(&self) -> usize {
        self.slot_bytes - FRONT_BYTES
    }

    /// Waits for the lock. A reader that panicked has not given its slot back: it is read again.
    pub fn lock(&self) -> Reader<'_, T> {
        let with = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        Reader { ring: self, with }
    }

    /// The lock, where nobody has it.
    pub fn try_lock(&self) -> Option<Reader<'_, T>> {
        match self.lock.try_lock() {
            Ok(with) => Some(Reader { ring: self, with }),
            Err(TryLockError::Poisoned(poisoned)) => {
                Some(Reader { ring: self, with: poisoned.into_inner() })
            }
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn slot(&self) -> *mut u8 {
        let next = self.next.load(Ordering::Relaxed);
        // SAFETY: the slot lies inside of the mapping.
        unsafe { self.memory.as_ptr().add(next * self.slot_bytes) }
    }

    fn status(&self) -> &AtomicU32 {
        // SAFETY: a slot begins with its status, is aligned, and both sides go by atomic accesses.
        unsafe { AtomicU32::from_ptr(self.slot().cast()) }
    }

    /// Whether the next slot is ours. Without the lock it may be that somebody reads it already.
    pub fn has_frame(&self) -> bool {
        self.status().load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }
}

impl<T> Reader<'_, T> {
    /// Shows the next frame; `None` where there is none.
    pub fn show(&mut self, to: &mut dyn FnMut(&mut T, &[u8])) -> Option<Slot> {
        let ring = self.ring;
        let status = ring.status().load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        let slot = ring.slot();
        // SAFETY: the slot is ours, and begins with this header.
        let header = unsafe { slot.cast::<libc::tpacket2_hdr>().read() };
        let (begin, bytes) = (usize::from(header.tp_mac), header.tp_snaplen as usize);
        let fits = begin.checked_add(bytes).is_some_and(|end| end <= ring.slot_bytes);
        let is_whole = fits && header.tp_len == header.tp_snaplen;
        if is_whole {
            // SAFETY: inside of the slot, which the kernel does not touch until it is given back, and nobody
            // else does without the lock.
            to(&mut self.with, unsafe { std::slice::from_raw_parts(slot.add(begin), bytes) });
        }
        ring.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
        let next = ring.next.load(Ordering::Relaxed) + 1;
        ring.next.store(if next == ring.slots { 0 } else { next }, Ordering::Relaxed);
        Some(Slot { is_cut: !is_whole, is_losing: status & libc::TP_STATUS_LOSING != 0 })
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing of it is used any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.slots * self.slot_bytes) };
    }
}
