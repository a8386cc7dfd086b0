//! The receive ring: slots that the kernel and this process hand each other (TPACKET_V2, packet(7)).
//!
//! Invariants: a slot is read while its status says that it is ours, and given back when that is over;
//! what the kernel wrote about lengths is checked against the slot.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::socket;

/// Slots of the ring; bytes of a block, which holds a whole number of slots.
const BLOCK_BYTES: usize = 1 << 20;
/// Bytes that all slots have together.
const RING_BYTES: usize = 8 << 20;
/// What the kernel puts in front of a frame.
const FRONT_BYTES: usize = 128;

/// Slots for received frames.
#[derive(Debug)]
pub struct Ring {
    memory: NonNull<u8>,
    slot_bytes: usize,
    slots: usize,
    next: usize,
}

// SAFETY: the mapping belongs to the ring alone and is not tied to a thread.
unsafe impl Send for Ring {}

impl Ring {
    /// A ring for frames of at most so many bytes.
    pub fn new(socket: BorrowedFd<'_>, frame_bytes: usize) -> io::Result<Ring> {
        let version = libc::tpacket_versions::TPACKET_V2 as i32;
        socket::set(socket, libc::SOL_PACKET, libc::PACKET_VERSION, &version)?;
        let slot_bytes = (frame_bytes + FRONT_BYTES).next_power_of_two();
        if slot_bytes > BLOCK_BYTES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let slots = RING_BYTES / slot_bytes;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK_BYTES as u32,
            tp_block_nr: (RING_BYTES / BLOCK_BYTES) as u32,
            tp_frame_size: slot_bytes as u32,
            tp_frame_nr: slots as u32,
        };
        socket::set(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping where the kernel likes, of the ring that was just made.
        let memory = unsafe {
            libc::mmap(ptr::null_mut(), RING_BYTES, protection, flags, socket.as_raw_fd(), 0)
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Ring { memory, slot_bytes, slots, next: 0 })
    }

    /// How many frames it holds.
    pub fn slots(&self) -> usize {
        self.slots
    }

    fn slot(&self) -> *mut u8 {
        // SAFETY: the slot lies inside of the mapping.
        unsafe { self.memory.as_ptr().add(self.next * self.slot_bytes) }
    }

    fn status(&self) -> &AtomicU32 {
        // SAFETY: a slot begins with its status, is aligned, and both sides go by atomic accesses.
        unsafe { AtomicU32::from_ptr(self.slot().cast()) }
    }

    /// Whether the next slot is ours.
    pub fn has_frame(&self) -> bool {
        self.status().load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// Shows the next frame, if there is one; false where there is none. A frame that did not fit is not
    /// shown.
    pub fn show(&mut self, to: &mut dyn FnMut(&[u8])) -> bool {
        if !self.has_frame() {
            return false;
        }
        let slot = self.slot();
        // SAFETY: the slot is ours, and begins with this header.
        let header = unsafe { slot.cast::<libc::tpacket2_hdr>().read() };
        let (begin, bytes) = (usize::from(header.tp_mac), header.tp_snaplen as usize);
        let fits = begin.checked_add(bytes).is_some_and(|end| end <= self.slot_bytes);
        if fits && header.tp_len == header.tp_snaplen {
            // SAFETY: inside of the slot, which the kernel does not touch until it is given back.
            to(unsafe { std::slice::from_raw_parts(slot.add(begin), bytes) });
        }
        self.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % self.slots;
        true
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing of it is used any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), RING_BYTES) };
    }
}
