//! Frames past the packet layer of the kernel: a socket of AF_XDP beside the packet socket of a hub
//! (docs/design/091-xdp.md).
//!
//! * [`Xdp`]: the socket, and its sending side; [`Receiver`]: its receiving side; [`program`]: the choice of frames;
//!   [`rings`]: memory that the kernel shares; [`kernel`]: system calls.
//!
//! Invariants:
//! * only frames for endpoints that were told of by [`Xdp::tell`] come here, and only as long as this lives: all
//!   others, and those that are too long, take the same way as without it;
//! * a chunk of memory belongs to one of: the kernel, the receiver, the list of free ones;
//! * nobody waits here for somebody else's frames: a sender that finds the lock taken uses the packet socket.

mod kernel;
mod program;
mod rings;

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use libc::xdp_desc;
use ropewalk_rail::packet::Packet;
use ropewalk_wire::mxoe::Station;

use self::kernel::{BEHIND_DRIVER, IN_DRIVER};
use self::program::Wanted;
use self::rings::{Giver, Mapping, Ring, Taker, Which};
use crate::claim::name_queue;
use crate::config::{Protocol, Sockets};
use crate::numbers::Numbers;
use crate::socket;

/// Memory for received frames, and chunks for frames to send.
const RECEIVED_BYTES: usize = 8 << 20;
const SENT_CHUNKS: u32 = 256;
/// Chunks: a page at most, and half of one for short frames.
const CHUNK_BYTES: usize = 4096;
const CHUNK_BYTES_SHORT: usize = 2048;
/// The bytes that the kernel puts in front of a frame.
const FRONT_BYTES: usize = 256;
/// The step in which the kernel says that somebody has the queue.
const BIND: &str = "bind";
/// Frames that busy polling takes at a time.
const POLL_BUDGET: i32 = 64;

/// The parameters for opening a socket.
#[derive(Debug, Clone, Copy)]
pub struct Opening {
    pub interface: u32,
    pub station: Station,
    pub protocol: Protocol,
    /// Longest frame of the interface.
    pub frame_bytes: usize,
    pub sockets: Sockets,
}

/// The reason why there is no socket of AF_XDP: a step that failed.
#[derive(Debug)]
pub struct XdpError {
    step: &'static str,
    cause: io::Error,
}

impl fmt::Display for XdpError {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let XdpError { step, cause } = self;
        match cause.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => to.write_str(
                "it needs the capabilities CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW: run as root, or \
                 give them to the program (`setcap cap_bpf,cap_net_admin,cap_net_raw+ep PROGRAM`)",
            ),
            Some(libc::EBUSY | libc::EEXIST) => to.write_str(
                "the queue or the interface belongs to another socket or program of XDP; `ip link show` shows \
                 programs, and queue=N names another queue",
            ),
            Some(libc::ENOBUFS | libc::ENOMEM) => write!(
                to,
                "{step}: the limit on locked memory is reached; raise it (`ulimit -l`)"
            ),
            _ => write!(to, "{step}: {cause}"),
        }
    }
}

impl XdpError {
    /// The interface has no program but ours, so that the former owner of the queue is gone. The kernel gives the
    /// queue back a little later, or once each process that was forked off has closed it, too.
    pub fn is_of_the_past(&self) -> bool {
        self.step == BIND && self.cause.raw_os_error() == Some(libc::EBUSY)
    }
}

/// Says which step an error belongs to.
fn at<T>(step: &'static str, result: io::Result<T>) -> Result<T, XdpError> {
    result.map_err(|cause| XdpError { step, cause })
}

/// The socket.
#[derive(Debug)]
pub struct Xdp {
    /// The program leaves the interface first.
    link: Link,
    _queues: OwnedFd,
    endpoints: OwnedFd,
    socket: Arc<OwnedFd>,
    received: Arc<Ring<xdp_desc>>,
    sent: Arc<Ring<xdp_desc>>,
    fill: Arc<Ring<u64>>,
    sender: Mutex<Sender>,
    /// Frames wait for the kernel, which had no room for them.
    stuck: AtomicBool,
    frame_bytes_max: usize,
    slots: usize,
    zero_copy: bool,
    polls: bool,
    /// A name that tells people that this process has the queue.
    _name: Option<UnixDatagram>,
}

/// The sending part.
#[derive(Debug)]
struct Sender {
    memory: Arc<Mapping>,
    give: Giver<xdp_desc>,
    completed: Taker<u64>,
    /// The offsets of unused chunks.
    free: Vec<u64>,
    chunk_bytes: usize,
}

/// The receiving part; it belongs to the holder of the ring's lock.
#[derive(Debug)]
pub struct Receiver {
    memory: Arc<Mapping>,
    taker: Taker<xdp_desc>,
    fill: Giver<u64>,
    chunk_bytes: usize,
    /// Chunks of received frames lie in front of those of frames to send.
    bytes: usize,
    /// The memory belongs to the kernel as well as long as the socket is open.
    _socket: Arc<OwnedFd>,
}

/// Opens a socket on a queue that nobody has, and has the frames for its endpoints come there: by the driver
/// without a copy where it can do that, and else behind it.
pub fn open(wanted: &Opening) -> Result<(Xdp, Receiver), XdpError> {
    // If a frame may be longer than a chunk, few drivers put it there themselves.
    if wanted.frame_bytes + FRONT_BYTES <= CHUNK_BYTES
        && let Ok(opened) = open_as(wanted, libc::XDP_ZEROCOPY, IN_DRIVER)
    {
        return Ok(opened);
    }
    open_as(wanted, libc::XDP_COPY, BEHIND_DRIVER)
}

fn open_as(wanted: &Opening, copy: u16, place: u32) -> Result<(Xdp, Receiver), XdpError> {
    let short = wanted.frame_bytes + FRONT_BYTES <= CHUNK_BYTES_SHORT;
    let chunk_bytes = if short { CHUNK_BYTES_SHORT } else { CHUNK_BYTES };
    let slots = (RECEIVED_BYTES / chunk_bytes) as u32;
    let bytes = RECEIVED_BYTES + SENT_CHUNKS as usize * chunk_bytes;
    let memory = Arc::new(at("memory", Mapping::memory(bytes))?);
    let socket = Arc::new(at("socket", kernel::socket())?);
    let fd = socket.as_fd();
    let registered = libc::xdp_umem_reg {
        addr: memory.at() as u64,
        len: bytes as u64,
        chunk_size: chunk_bytes as u32,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    at("memory", socket::set(fd, libc::SOL_XDP, libc::XDP_UMEM_REG, &registered))?;
    for (which, count) in counts(slots) {
        at("rings", Ring::<u64>::set(fd, which, count))?;
    }
    let offsets = at("rings", kernel::offsets(fd))?;
    let taker = Taker::of(at("rings", Ring::map(fd, Which::Received, &offsets, slots))?);
    let mut fill = Giver::of(at("rings", Ring::map(fd, Which::Fill, &offsets, slots))?);
    let give = Giver::of(at("rings", Ring::map(fd, Which::Sent, &offsets, SENT_CHUNKS))?);
    let completed = Taker::of(at("rings", Ring::map(fd, Which::Completed, &offsets, SENT_CHUNKS))?);
    let chunks = |range: Range<usize>| range.step_by(chunk_bytes).map(|at| at as u64);
    for chunk in chunks(0..RECEIVED_BYTES) {
        fill.give(chunk);
    }
    fill.publish();
    at("busy polling", poll_busily(fd, wanted.sockets.poll_us))?;
    let flags = copy | libc::XDP_USE_NEED_WAKEUP;
    let bind = || at(BIND, kernel::bind(fd, wanted.interface, wanted.sockets.queue, flags));
    let frame_bytes_max = chunk_bytes - FRONT_BYTES;
    if place == IN_DRIVER {
        // First: a program in a driver may be felt by all, and is in vain where the driver copies.
        bind()?;
    }
    let Attached { link, queues, endpoints } = attach(wanted, fd, frame_bytes_max, place)?;
    if place == BEHIND_DRIVER {
        bind()?;
    }
    let free = chunks(RECEIVED_BYTES..bytes).collect();
    let sender = Sender { memory: memory.clone(), give, completed, free, chunk_bytes };
    let xdp = Xdp {
        link,
        _queues: queues,
        endpoints,
        received: taker.ring().clone(),
        sent: sender.give.ring().clone(),
        fill: fill.ring().clone(),
        sender: Mutex::new(sender),
        stuck: AtomicBool::new(false),
        frame_bytes_max,
        slots: slots as usize,
        zero_copy: copy == libc::XDP_ZEROCOPY,
        polls: wanted.sockets.poll_us > 0,
        socket: socket.clone(),
        _name: name_queue(wanted.interface, wanted.sockets.queue),
    };
    let bytes = RECEIVED_BYTES;
    Ok((xdp, Receiver { memory, taker, fill, chunk_bytes, bytes, _socket: socket }))
}

/// Entries of each ring.
fn counts(slots: u32) -> [(Which, u32); 4] {
    [
        (Which::Received, slots),
        (Which::Fill, slots),
        (Which::Sent, SENT_CHUNKS),
        (Which::Completed, SENT_CHUNKS),
    ]
}

/// Enables busy polling: a look at the ring makes the kernel poll the card, which then interrupts less.
fn poll_busily(fd: BorrowedFd<'_>, microseconds: u32) -> io::Result<()> {
    if microseconds == 0 {
        return Ok(());
    }
    let microseconds = i32::try_from(microseconds).unwrap_or(i32::MAX);
    socket::set(fd, libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, &1i32)?;
    socket::set(fd, libc::SOL_SOCKET, libc::SO_BUSY_POLL, &microseconds)?;
    socket::set(fd, libc::SOL_SOCKET, libc::SO_BUSY_POLL_BUDGET, &POLL_BUDGET)
}

/// The link that keeps a program attached.
#[derive(Debug)]
struct Link {
    descriptor: Mutex<Option<OwnedFd>>,
    process: u32,
}

impl Link {
    fn end(&self) {
        let mut descriptor = self.descriptor.lock().unwrap_or_else(PoisonError::into_inner);
        // At once, and not only when a process that is forked off just now has closed it, too. It ends in the
        // process that made it: in one that was forked off nothing is closed for the other. Without the right to
        // that it ends as it is closed.
        if let Some(descriptor) = descriptor.take()
            && self.process == std::process::id()
        {
            kernel::detach(descriptor.as_fd());
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.end();
    }
}

struct Attached {
    link: Link,
    queues: OwnedFd,
    endpoints: OwnedFd,
}

/// Attaches a program that sends frames of no endpoint yet.
fn attach(
    wanted: &Opening,
    fd: BorrowedFd<'_>,
    frame_bytes_max: usize,
    place: u32,
) -> Result<Attached, XdpError> {
    let Opening { interface, station, protocol, sockets, .. } = *wanted;
    let endpoints = at("map", kernel::map(kernel::ARRAY, 256, 1))?;
    let queues = at("map", kernel::map(kernel::SOCKETS, 4, sockets.queue + 1))?;
    let own = fd.as_raw_fd().to_ne_bytes();
    at("map", kernel::update(queues.as_fd(), sockets.queue, &own))?;
    let instructions = program::program(&Wanted {
        station,
        protocol,
        frame_bytes_max,
        endpoints: endpoints.as_raw_fd(),
        sockets: queues.as_raw_fd(),
    });
    let program = at("program", kernel::load(&instructions))?;
    let descriptor = at("link", kernel::link(program.as_fd(), interface, place))?;
    let link = Link { descriptor: Mutex::new(Some(descriptor)), process: std::process::id() };
    Ok(Attached { link, queues, endpoints })
}

impl Xdp {
    /// The socket, for other questions to the kernel, and for sleeping.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Frames that it holds.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Frames for these endpoints come here from now on, and no others.
    pub fn tell(&self, endpoints: &Numbers) -> io::Result<()> {
        let own: [u8; 256] = std::array::from_fn(|number| endpoints.contains(number as u8).into());
        kernel::update(self.endpoints.as_fd(), 0, &own)
    }

    /// No more frames come here.
    pub fn detach(&self) {
        self.link.end();
    }

    /// Whether a frame waits that nobody has looked at to the end.
    pub fn has_frame(&self) -> bool {
        self.received.waiting() > 0
    }

    /// Somebody looked and found nothing: where the card is polled busily, or its driver stopped because it had no
    /// chunks, that is done now.
    pub fn found_nothing(&self) {
        if self.polls || self.fill.wants_wake() {
            kernel::drive(self.socket());
        }
    }

    /// Frames that found no room, so far.
    pub fn dropped(&self) -> u64 {
        kernel::dropped(self.socket())
    }

    /// Sends frames; their written parts are in `bytes`. `None` if they have to go another way: one is too long,
    /// somebody else sends, or there is no room.
    pub fn send(&self, bytes: &[u8], frames: &[Packet]) -> Option<io::Result<()>> {
        if frames.iter().any(|frame| frame.len() > self.frame_bytes_max) {
            return None;
        }
        let mut sender = self.sender()?;
        // In order: the remaining frames of others go first.
        if !self.zero_copy && self.sent.waiting() > 0 && !self.kick().unwrap_or(false) {
            return None;
        }
        sender.put(bytes, frames)?;
        Some(self.push())
    }

    /// Has frames leave that had to wait; whether all of them have.
    pub fn flush(&self) -> bool {
        if self.stuck.load(Ordering::Acquire) {
            // The holder of the sender does the same.
            let Some(_sender) = self.sender() else { return false };
            let _ = self.push();
        }
        !self.stuck.load(Ordering::Acquire)
    }

    fn sender(&self) -> Option<MutexGuard<'_, Sender>> {
        match self.sender.try_lock() {
            Ok(sender) => Some(sender),
            // Chunks that a sender who panicked had are lost; nothing else is half-changed.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// As `kick`, and remembers whether something has to wait. On an interface that is down nothing waits for room:
    /// it leaves, late, with the frames that are sent once it is up.
    fn push(&self) -> io::Result<()> {
        let result = self.kick();
        self.stuck.store(matches!(result, Ok(false)), Ordering::Release);
        result.map(drop)
    }

    /// Has the kernel take the frames in the ring. Returns whether it took all of them, or goes on by itself.
    fn kick(&self) -> io::Result<bool> {
        if self.zero_copy {
            if self.sent.wants_wake() {
                let _ = kernel::kick(self.socket());
            }
            return Ok(true);
        }
        let mut before = self.sent.waiting();
        while before > 0 {
            let result = kernel::kick(self.socket());
            let waiting = self.sent.waiting();
            match result.err().and_then(|error| error.raw_os_error()) {
                Some(libc::EINTR) => {}
                None | Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS) => {
                    // It takes so many in one call; where it takes none it has no room.
                    if waiting == before {
                        return Ok(false);
                    }
                }
                Some(other) => return Err(io::Error::from_raw_os_error(other)),
            }
            before = waiting;
        }
        Ok(true)
    }
}

impl Sender {
    /// Puts frames into the ring, if there is room for all of them.
    fn put(&mut self, bytes: &[u8], frames: &[Packet]) -> Option<()> {
        // The latest first: it is in the cache.
        while let Some(chunk) = self.completed.peek() {
            self.completed.done();
            self.free.push(chunk);
        }
        let first = self.free.len().checked_sub(frames.len())?;
        for (chunk, frame) in self.free.drain(first..).zip(frames) {
            debug_assert!(frame.len() <= self.chunk_bytes);
            let mut len = 0;
            for part in frame.parts(bytes) {
                let fits = part.len().min(self.chunk_bytes - len);
                // SAFETY: a free chunk, which lies in the memory and has that length; nobody else touches it before
                // it is in the ring.
                let to = unsafe { self.memory.at().add(chunk as usize + len) };
                // SAFETY: see above; the part lies elsewhere, and is as long.
                unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), to, fits) };
                len += fits;
            }
            // There is room: the ring has an entry for each chunk.
            self.give.give(xdp_desc { addr: chunk, len: len as u32, options: 0 });
        }
        self.give.publish();
        Some(())
    }
}

impl Receiver {
    /// Shows the next frame; false where there is none.
    pub fn show(&mut self, to: &mut dyn FnMut(&[u8])) -> bool {
        let Some(entry) = self.taker.peek() else { return false };
        let (begin, len) = (entry.addr as usize, entry.len as usize);
        let chunk = begin & !(self.chunk_bytes - 1);
        if begin.checked_add(len).is_some_and(|end| end <= chunk + self.chunk_bytes)
            && chunk < self.bytes
        {
            debug_assert!(self.bytes <= self.memory.bytes());
            // SAFETY: inside of a chunk, as was checked, which the kernel does not touch until it is given back,
            // and nobody else does.
            to(unsafe { std::slice::from_raw_parts(self.memory.at().add(begin), len) });
            // There is room: the ring has an entry for each chunk.
            self.fill.give(chunk as u64);
            self.fill.publish();
        }
        self.taker.done();
        true
    }
}
