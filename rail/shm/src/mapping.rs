//! Memory that several processes map: created here and sealed, or received and checked.
//!
//! Invariants: a mapping lives as long as its `Mapping`; a peer's memory is mapped only if its size is as expected
//! and it is sealed against shrinking, so that no access can fault; nobody makes Rust references
//! into it but to atomics.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// A shared mapping of this process.
#[derive(Debug)]
pub struct Mapping {
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is plain memory that is reached by atomics and raw copies only.
unsafe impl Send for Mapping {}
// SAFETY: as above; code that copies bytes keeps to the protocol of the ring or of the guard.
unsafe impl Sync for Mapping {}

/// The access that peers have to shared memory of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Peers write, too.
    ReadWrite,
    /// Peers cannot map it writable (where the kernel knows that seal, since 5.1).
    ReadOnly,
}

impl Mapping {
    /// Fresh zeroed memory that can be sent to peers, and its descriptor.
    pub fn create(bytes: usize, sharing: Sharing) -> Result<(Mapping, OwnedFd), Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = rustix::fs::memfd_create("ropewalk", flags)?;
        rustix::fs::ftruncate(&memory, bytes as u64)?;
        let mapping = Mapping::map(&memory, bytes, ProtFlags::READ | ProtFlags::WRITE)?;
        let fixed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        match sharing {
            Sharing::ReadWrite => rustix::fs::fcntl_add_seals(&memory, fixed)?,
            Sharing::ReadOnly => {
                let seals = fixed | SealFlags::FUTURE_WRITE;
                match rustix::fs::fcntl_add_seals(&memory, seals) {
                    Err(Errno::INVAL) => rustix::fs::fcntl_add_seals(&memory, fixed)?,
                    other => other?,
                }
            }
        }
        Ok((mapping, memory))
    }

    /// Maps memory that a peer sent. `None` if it is not sealed memory of exactly `bytes` bytes.
    pub fn receive(memory: &OwnedFd, bytes: usize, sharing: Sharing) -> Option<Mapping> {
        let seals = rustix::fs::fcntl_get_seals(memory).ok()?;
        let size = rustix::fs::fstat(memory).ok()?.st_size;
        if !seals.contains(SealFlags::SHRINK) || usize::try_from(size) != Ok(bytes) {
            return None;
        }
        let protection = match sharing {
            Sharing::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
            Sharing::ReadOnly => ProtFlags::READ,
        };
        Mapping::map(memory, bytes, protection).ok()
    }

    /// Fresh zeroed memory for threads of this process.
    pub fn private(bytes: usize) -> Result<Mapping, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice disturbs nothing.
        let address =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, protection, flags)? };
        Mapping::from_kernel(address.cast(), bytes)
    }

    fn map(memory: &OwnedFd, bytes: usize, protection: ProtFlags) -> Result<Mapping, Errno> {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing; the file's size is at least
        // `bytes` and sealed by the callers.
        let address = unsafe {
            rustix::mm::mmap(ptr::null_mut(), bytes, protection, flags, memory.as_fd(), 0)?
        };
        Mapping::from_kernel(address.cast(), bytes)
    }

    fn from_kernel(address: *mut u8, bytes: usize) -> Result<Mapping, Errno> {
        let address = NonNull::new(address).ok_or(Errno::NOMEM)?;
        Ok(Mapping { address, bytes })
    }

    /// The byte at `offset` and the bytes behind it.
    #[inline]
    pub fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset <= self.bytes, "an offset lies within its mapping");
        // SAFETY: the offset lies within the mapping (offsets are constants of the layout, or ring
        // positions that were masked or checked).
        unsafe { self.address.as_ptr().add(offset) }
    }

    /// The number at `offset`, a multiple of 8.
    #[inline]
    pub fn u64(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset.is_multiple_of(8) && offset + 8 <= self.bytes);
        // SAFETY: mapped as long as `self`, aligned (mappings are page-aligned), and all accesses of
        // all processes to these bytes are atomic.
        unsafe { AtomicU64::from_ptr(self.at(offset).cast()) }
    }

    /// The number at `offset`, a multiple of 4.
    #[inline]
    pub fn u32(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset.is_multiple_of(4) && offset + 4 <= self.bytes);
        // SAFETY: as in `u64`.
        unsafe { AtomicU32::from_ptr(self.at(offset).cast()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by this value's constructor and unmapped only here; no reference into it outlives `self`.
        // Unmapping a mapped range cannot fail.
        let _ = unsafe { rustix::mm::munmap(self.address.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn received_memory_is_the_same_memory_and_must_be_sealed_and_of_the_right_size() {
        let (ours, memory) = Mapping::create(8192, Sharing::ReadWrite).unwrap();
        let theirs = Mapping::receive(&memory, 8192, Sharing::ReadWrite).unwrap();
        ours.u64(4096).store(7, Ordering::Relaxed);
        assert_eq!(theirs.u64(4096).load(Ordering::Relaxed), 7);
        assert!(Mapping::receive(&memory, 4096, Sharing::ReadWrite).is_none());
        assert!(rustix::fs::ftruncate(&memory, 0).is_err());

        let bare = rustix::fs::memfd_create("bare", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&bare, 8192).unwrap();
        assert!(Mapping::receive(&bare, 8192, Sharing::ReadWrite).is_none());
    }

    #[test]
    fn a_board_cannot_be_mapped_writable_by_peers() {
        let (_ours, memory) = Mapping::create(4096, Sharing::ReadOnly).unwrap();
        assert!(Mapping::receive(&memory, 4096, Sharing::ReadOnly).is_some());
        assert!(Mapping::receive(&memory, 4096, Sharing::ReadWrite).is_none());
    }
}
