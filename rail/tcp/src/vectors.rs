//! Lists of memory for one system call, on the stack.
//!
//! Invariant: the kernel is the only one that touches the memory; no Rust reference to it is made,
//! since a peer or the application may write it meanwhile.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use ropewalk_base::memory::Segment;
use rustix::io::Errno;

/// Most pieces of one system call: enough for a batch of small frames, small enough for the stack.
pub const VECTORS_MAX: usize = 128;

/// Pieces of memory for `sendmsg` and `recvmsg`.
pub struct Vectors {
    entries: [MaybeUninit<libc::iovec>; VECTORS_MAX],
    count: usize,
    bytes: usize,
}

impl Vectors {
    /// No pieces.
    #[inline]
    pub fn new() -> Vectors {
        Vectors { entries: [const { MaybeUninit::uninit() }; VECTORS_MAX], count: 0, bytes: 0 }
    }

    /// Adds a piece; false, without it, where there is no room for one more.
    #[inline]
    pub fn push(&mut self, segment: Segment) -> bool {
        let Some(entry) = self.entries.get_mut(self.count) else { return false };
        let iov_base = segment.as_mut_ptr().cast();
        entry.write(libc::iovec { iov_base, iov_len: segment.len() });
        self.count += 1;
        self.bytes += segment.len();
        true
    }

    /// Adds all pieces, as far as there is room; the bytes added.
    #[inline]
    pub fn extend(&mut self, segments: impl Iterator<Item = Segment>) -> usize {
        let before = self.bytes;
        for segment in segments {
            if !self.push(segment) {
                break;
            }
        }
        self.bytes - before
    }

    /// Bytes in all pieces together.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether no further piece has room.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.count == VECTORS_MAX
    }

    fn message(&mut self) -> libc::msghdr {
        // SAFETY: a msghdr is plain data for which zero means "nothing" in every field.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.entries.as_mut_ptr().cast();
        message.msg_iovlen = self.count as _;
        message
    }

    /// Sends the pieces, as many bytes as the socket takes.
    ///
    /// # Safety
    /// Every piece is mapped until the call returns.
    #[inline]
    pub unsafe fn send(&mut self, socket: BorrowedFd<'_>) -> Result<usize, Errno> {
        let message = self.message();
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: `message` names `count` initialised entries; the caller vouches for the memory.
        outcome(unsafe { libc::sendmsg(socket.as_raw_fd(), &message, flags) })
    }

    /// Receives into the pieces, as many bytes as there are; 0 at the end of the stream.
    ///
    /// # Safety
    /// Every piece is mapped until the call returns, and may be written.
    #[inline]
    pub unsafe fn receive(&mut self, socket: BorrowedFd<'_>) -> Result<usize, Errno> {
        let mut message = self.message();
        // SAFETY: as in `send`; the caller vouches that the memory may be written.
        outcome(unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) })
    }
}

/// Throws away up to `bytes` received bytes without copying them; 0 at the end of the stream.
// Memory checkers take the call below for a fault; they are told of this function by its name.
#[inline(never)]
pub fn discard(socket: BorrowedFd<'_>, bytes: usize) -> Result<usize, Errno> {
    let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
    let nowhere = std::ptr::null_mut();
    // SAFETY: with MSG_TRUNC a TCP socket drops the bytes and writes nothing (tcp(7)); were it to
    // write after all, a null pointer makes the kernel answer EFAULT.
    outcome(unsafe { libc::recv(socket.as_raw_fd(), nowhere, bytes, flags) })
}

fn outcome(result: isize) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| {
        let error = std::io::Error::last_os_error();
        Errno::from_io_error(&error).unwrap_or(Errno::IO)
    })
}
