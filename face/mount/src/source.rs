//! The source of requests and the way of replies: the seam between the loop and /dev/fuse.
//!
//! [`Device`] reads and writes the character device. Another source (the kernel's io_uring queues)
//! has other buffers and other tickets, and the same loop.
//!
//! Invariants of `Device`:
//! * it never blocks: the descriptor is non-blocking;
//! * a WRITE's data begins at the start of a page-aligned buffer of its own, and was copied once,
//!   by the kernel, unless it is so small that keeping a large buffer would cost more;
//! * if the pool has no large buffer left, nothing is read, and data that was read is never lost.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use ropewalk_base::pool::{Pool, PoolBuffer};
use rustix::fs::OFlags;
use zerocopy::FromBytes;

use crate::abi::Opcode;
use crate::abi::requests::{InHeader, WriteIn};
use crate::errno::Errno;
use crate::negotiate::PAGE_BYTES;

/// Header of a WRITE, which is what the kernel wants room for beside `max_write`.
const HEAD_BYTES: usize = size_of::<InHeader>() + size_of::<WriteIn>();
/// WRITEs up to here are copied into a buffer of their size: a copy of 32 KiB costs about 2 us, a
/// MiB that is held back for it costs other requests their buffers.
const COPY_BYTES_MAX: usize = 32 << 10;

/// The bytes of a request.
pub enum Body {
    /// Header, arguments and extensions in one piece.
    Whole(Bytes),
    /// A WRITE: its fixed part, and its data in a buffer of exactly that length.
    Write { fixed: [u8; size_of::<WriteIn>()], data: PoolBuffer },
}

/// Bytes of the pool, or of the general heap if the pool is at its budget. Requests other than a WRITE are
/// small, and interrupts and unlocks must get through then above all.
pub enum Bytes {
    Pooled(PoolBuffer),
    Heap(Vec<u8>),
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Pooled(buffer) => buffer,
            Bytes::Heap(bytes) => bytes,
        }
    }
}

/// A request as it arrived.
pub struct Incoming<T> {
    pub header: InHeader,
    pub body: Body,
    pub ticket: T,
}

/// The next request of a source, or the reason for having none.
pub enum Next<T> {
    Request(Incoming<T>),
    /// Nothing; the descriptor becomes readable.
    Empty,
    /// No buffers: to be asked again when requests have ended.
    Starved,
    /// The mount is gone.
    Closed,
}

/// Brings requests.
pub trait RequestSource {
    /// Takes the answer to one request.
    type Ticket: Ticket;

    /// Readable while there are requests.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// The next request. Never waits.
    fn next(&mut self) -> Next<Self::Ticket>;
}

/// The way back of one reply.
pub trait Ticket: 'static {
    /// Hands the reply over: its header and everything behind it.
    fn answer(&self, slices: &[IoSlice<'_>]) -> Result<(), Errno>;
}

/// One descriptor of /dev/fuse.
pub struct Device {
    file: Rc<OwnedFd>,
    pool: Pool,
    /// The buffer for the next request; a request that needs it takes it along.
    spare: Option<PoolBuffer>,
    payload_bytes: usize,
}

impl Device {
    /// Reads from `file` WRITEs of up to `max_write_bytes`. Buffers come from `pool`, which needs
    /// room for several of them.
    pub fn new(file: OwnedFd, pool: Pool, max_write_bytes: u32) -> Result<Device, Errno> {
        let flags = rustix::fs::fcntl_getfl(&file)?;
        rustix::fs::fcntl_setfl(&file, flags | OFlags::NONBLOCK)?;
        let payload_bytes = max_write_bytes as usize;
        let enough = HEAD_BYTES + payload_bytes >= crate::abi::READ_BUFFER_BYTES_MIN;
        let payload_bytes = if enough { payload_bytes } else { crate::abi::READ_BUFFER_BYTES_MIN };
        Ok(Device { file: Rc::new(file), pool, spare: None, payload_bytes })
    }

    /// The way of replies to requests that another process read from this descriptor.
    pub fn ticket(&self) -> DeviceTicket {
        DeviceTicket { file: self.file.clone() }
    }

    /// A copy of a small WRITE's data, in a buffer that begins a page as all others do.
    fn small(&self, data: &[u8]) -> Option<PoolBuffer> {
        let mut copy = self.pool.take(data.len().max(PAGE_BYTES as usize))?;
        copy.set_len(data.len());
        copy.copy_from_slice(data);
        Some(copy)
    }

    fn incoming(
        &mut self,
        head: &[u8; HEAD_BYTES],
        len: usize,
        mut spare: PoolBuffer,
    ) -> Option<Incoming<DeviceTicket>> {
        let ticket = DeviceTicket { file: self.file.clone() };
        let (header, fixed) = InHeader::read_from_prefix(head).ok()?;
        let behind = len.saturating_sub(HEAD_BYTES);
        if header.opcode == Opcode::Write as u32 && len >= HEAD_BYTES {
            let (write, _) = WriteIn::read_from_prefix(fixed).ok()?;
            if write.size as usize == behind && header.extension_words == 0 {
                let fixed = *fixed.first_chunk()?;
                let copy =
                    if behind <= COPY_BYTES_MAX { self.small(&spare[..behind]) } else { None };
                let data = match copy {
                    Some(copy) => {
                        self.spare = Some(spare);
                        copy
                    }
                    None => {
                        spare.set_len(behind);
                        spare
                    }
                };
                return Some(Incoming { header, body: Body::Write { fixed, data }, ticket });
            }
        }
        let front = len.min(HEAD_BYTES);
        let whole = match self.pool.take(len) {
            Some(mut small) => {
                small[..front].copy_from_slice(&head[..front]);
                small[front..].copy_from_slice(&spare[..behind]);
                Bytes::Pooled(small)
            }
            None => Bytes::Heap([&head[..front], &spare[..behind]].concat()),
        };
        self.spare = Some(spare);
        Some(Incoming { header, body: Body::Whole(whole), ticket })
    }
}

impl RequestSource for Device {
    type Ticket = DeviceTicket;

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn next(&mut self) -> Next<DeviceTicket> {
        loop {
            let spare = self.spare.take().or_else(|| self.pool.take(self.payload_bytes));
            let Some(mut spare) = spare else { return Next::Starved };
            let mut head = [0; HEAD_BYTES];
            let read = rustix::io::readv(
                &*self.file,
                &mut [IoSliceMut::new(&mut head), IoSliceMut::new(&mut spare)],
            );
            match read {
                Ok(0) => return Next::Closed,
                Ok(len) => {
                    if let Some(incoming) = self.incoming(&head, len, spare) {
                        return Next::Request(incoming);
                    }
                    // Not even a header: there is nobody to answer to.
                    continue;
                }
                // ENOENT: the request's caller was killed while it was being handed over.
                Err(rustix::io::Errno::INTR | rustix::io::Errno::NOENT) => {
                    self.spare = Some(spare);
                    continue;
                }
                Err(rustix::io::Errno::AGAIN) => {
                    self.spare = Some(spare);
                    return Next::Empty;
                }
                // ENODEV after an unmount, ECONNABORTED after an abort. Anything else means that
                // this descriptor brings no requests any more, either.
                Err(_) => return Next::Closed,
            }
        }
    }
}

/// Answers by a write to the descriptor that the request was read from, as the kernel demands.
pub struct DeviceTicket {
    file: Rc<OwnedFd>,
}

impl Ticket for DeviceTicket {
    fn answer(&self, slices: &[IoSlice<'_>]) -> Result<(), Errno> {
        loop {
            match rustix::io::writev(&*self.file, slices) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
                Ok(_) => return Ok(()),
            }
        }
    }
}
