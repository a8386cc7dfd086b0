//! Native access to a peer's memory, guarded so that late data never lands.
//!
//! The exposing side keeps a table in shared memory; the accessing side (the origin) checks it and
//! copies, with cross-memory attach between processes, or `memcpy` where it has the peer's memory mapped
//! (`crate::arena`) or is another thread of its process.
//!
//! The guard of writes: the origin announces which entry it is about to use, passes a fence, and looks whether the
//! entry is live; the exposing side marks it dead, passes a fence, and looks whether it is announced. The second of
//! the two sees the first one's write. So after the announcement is gone, nobody touches the region any more. An
//! origin announces for each piece anew, so that a revocation waits for one piece at most, however long the access
//! is. If a peer is stopped in the middle of a write, the revocation waits until the peer goes on or dies: nothing
//! else keeps late bytes out.
//!
//! Reads from another process announce nothing, and no revocation waits for them: the origin looks again after the
//! copy whether the entry is the same; if it is not, the bytes do not count. Two threads of one process announce
//! reads, too: memory that one gives back could be unmapped under the other's hands, and neither can be stopped alone.
//!
//! Invariants: an entry's fields change only while it is dead, and, if it could be written, not announced; so the
//! values that an origin found in an entry count only if that is still live afterwards. All values that the origin
//! reads from the table are checked or handed to the kernel, which checks them; the exposing side never reads its
//! table, only its own notes, so that a peer's scribbling harms the peer's access alone.

mod access;
mod exposures;
mod origin;

use std::os::fd::OwnedFd;

use rustix::process::Pid;

pub use access::Access;
pub use exposures::Exposures;
pub use origin::{Origin, RegionList, Scratch};

/// Most pieces of one exposed region.
pub const REGION_PIECES_MAX: usize = 8192;
/// Bytes that one announcement covers, and so about the longest wait of a revocation (50 us).
pub const PIECE_BYTES: u64 = 512 * 1024;

/// Address and length of a piece, as it lies in shared lists.
type Piece = [u64; 2];

/// The way to access the memory of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerMemory {
    /// In another process: by the kernel.
    Process(Pid),
    /// In this process.
    Own,
}

fn vector(address: u64, bytes: u64) -> libc::iovec {
    let base = std::ptr::with_exposed_provenance_mut(address as usize);
    libc::iovec { iov_base: base, iov_len: bytes as usize }
}

/// Whether a descriptor has something to say: of a process, that it ended.
pub fn is_readable(descriptor: &OwnedFd) -> bool {
    let mut set = [rustix::event::PollFd::new(descriptor, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut set, Some(&now)).is_ok_and(|count| count > 0)
}

/// Whether the number at `address` of the process `pid` can be read from here, and is `expected`.
pub fn probe(pid: Pid, address: u64, expected: u64) -> bool {
    let mut value = [0u8; 8];
    let read = read_process(pid, address, &mut value);
    read.is_ok_and(|read| read == 8) && u64::from_ne_bytes(value) == expected
}

/// Reads another process's memory by the bare system call, for references of measurements. How many
/// bytes were read; an error where the kernel does not let us, or nothing is there.
pub fn read_process(pid: Pid, address: u64, into: &mut [u8]) -> std::io::Result<usize> {
    let local = vector(into.as_mut_ptr().expose_provenance() as u64, into.len() as u64);
    let remote = vector(address, into.len() as u64);
    // SAFETY: the local vector names a slice that is borrowed for writing; the remote one is the
    // kernel's to check.
    let read = unsafe {
        libc::process_vm_readv(
            pid.as_raw_nonzero().get(),
            &raw const local,
            1,
            &raw const remote,
            1,
            0,
        )
    };
    usize::try_from(read).map_err(|_| std::io::Error::last_os_error())
}
