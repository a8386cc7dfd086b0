//! System calls for many datagrams at a time.
//!
//! Invariant: every pointer that the kernel is given points into buffers of the batch itself, which is
//! borrowed mutably for the call.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

use ropewalk_rail::packet::{PARTS, Packet};

/// Packets that may wait for a flush.
pub const PACKETS_MAX: usize = 64;
/// Messages of one system call.
pub const MESSAGES_MAX: usize = 16;
/// Longest message: the most that the kernel joins.
const MESSAGE_BYTES: usize = 1 << 16;
/// Places of bytes of one system call: those of all packets that may wait.
const VECTORS_MAX: usize = PACKETS_MAX * PARTS;
/// Bytes for one control message, of a segment's length.
const CONTROL_BYTES: usize = 64;

/// Buffers to receive into.
pub struct Incoming {
    call: NonNull<Call>,
    /// The number of messages to ask for: as many as came, and twice that if it was too few. Each call looks for one
    /// more than there is, if it may, and that look takes as long as the first one.
    asked: usize,
    lengths: [(usize, usize); MESSAGES_MAX],
    from: [Option<SocketAddr>; MESSAGES_MAX],
}

/// The kernel's argument of each call, made once: its headers point into itself.
struct Call {
    headers: [libc::mmsghdr; MESSAGES_MAX],
    vectors: [libc::iovec; MESSAGES_MAX],
    names: [libc::sockaddr_storage; MESSAGES_MAX],
    controls: [Control; MESSAGES_MAX],
    bytes: [u8; MESSAGES_MAX * MESSAGE_BYTES],
}

// SAFETY: it belongs to its owner alone and is not tied to a thread.
unsafe impl Send for Incoming {}

/// Control messages are aligned as their headers are.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL_BYTES]);

impl Incoming {
    /// Empty buffers.
    pub fn new() -> Incoming {
        let layout = Layout::new::<Call>();
        // SAFETY: it has a length.
        let memory = unsafe { alloc_zeroed(layout) }.cast::<Call>();
        let call = NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout));
        for index in 0..MESSAGES_MAX {
            // SAFETY: inside of the memory, which is aligned for it, and in which zeroes are legal; no
            // references are made.
            unsafe {
                let vector = &raw mut (*memory).vectors[index];
                let bytes = (&raw mut (*memory).bytes).cast::<u8>().add(index * MESSAGE_BYTES);
                vector.write(libc::iovec { iov_base: bytes.cast(), iov_len: MESSAGE_BYTES });
                let header = &raw mut (*memory).headers[index].msg_hdr;
                (*header).msg_name = (&raw mut (*memory).names[index]).cast();
                (*header).msg_iov = vector;
                (*header).msg_iovlen = 1;
                (*header).msg_control = (&raw mut (*memory).controls[index]).cast();
            }
        }
        let (lengths, from) = ([(0, 0); MESSAGES_MAX], [None; MESSAGES_MAX]);
        let mut incoming = Incoming { call, asked: 1, lengths, from };
        incoming.restore(MESSAGES_MAX);
        incoming
    }

    /// The kernel has changed the first headers.
    fn restore(&mut self, count: usize) {
        for index in 0..count {
            // SAFETY: as when it was made.
            unsafe {
                let header = &raw mut (*self.call.as_ptr()).headers[index].msg_hdr;
                (*header).msg_namelen = size_of::<libc::sockaddr_storage>() as u32;
                (*header).msg_controllen = CONTROL_BYTES as _;
            }
        }
    }

    /// Receives messages; how many, and whether that was all.
    pub fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<(usize, bool)> {
        let (flags, no_limit) = (libc::MSG_DONTWAIT, ptr::null_mut());
        let call = self.call.as_ptr();
        // SAFETY: the headers name parts of the same memory, which nobody else uses meanwhile.
        let count = unsafe {
            let headers = (&raw mut (*call).headers).cast();
            libc::recvmmsg(socket.as_raw_fd(), headers, self.asked as u32, flags, no_limit)
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        for index in 0..count {
            // SAFETY: the kernel has filled this header, its control messages, and its name, of the length
            // that its family has.
            unsafe {
                let header = (*call).headers[index];
                let bytes = header.msg_len as usize;
                let segment = segment_of(&header.msg_hdr);
                self.lengths[index] = (bytes, segment.unwrap_or(bytes));
                self.from[index] = address_of(&(*call).names[index]);
            }
        }
        self.restore(count);
        let all = count < self.asked;
        self.asked = if all { count.max(1) } else { (self.asked * 2).min(MESSAGES_MAX) };
        Ok((count, all))
    }

    /// Sender and datagrams of a message that was received.
    pub fn message(&self, index: usize) -> Option<(SocketAddr, impl Iterator<Item = &[u8]>)> {
        let (bytes, segment) = self.lengths[index];
        let begin = index * MESSAGE_BYTES;
        // SAFETY: initialised memory of ours, in which the kernel writes within `receive` only.
        let buffers = unsafe { &(*self.call.as_ptr()).bytes };
        let all = &buffers[begin..begin + bytes.min(MESSAGE_BYTES)];
        // One without bytes is a datagram, too.
        let empty = all.is_empty().then_some(all);
        Some((self.from[index]?, all.chunks(segment.max(1)).chain(empty)))
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // SAFETY: it was allocated so, and nothing of it is used any more.
        unsafe { dealloc(self.call.as_ptr().cast(), Layout::new::<Call>()) };
    }
}

/// The length of the datagrams that were joined; `None` where it is only one.
///
/// # Safety
/// The header's control messages are those that the kernel wrote.
unsafe fn segment_of(header: &libc::msghdr) -> Option<usize> {
    // SAFETY: the caller vouches for the control messages, which these walk.
    let mut control = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !control.is_null() {
        // SAFETY: not null, and inside of the header's control messages.
        let entry = unsafe { &*control };
        if entry.cmsg_level == libc::SOL_UDP && entry.cmsg_type == libc::UDP_GRO {
            // SAFETY: this kind carries an int.
            let bytes = unsafe { libc::CMSG_DATA(control).cast::<i32>().read_unaligned() };
            return usize::try_from(bytes).ok();
        }
        // SAFETY: as above.
        control = unsafe { libc::CMSG_NXTHDR(header, control) };
    }
    None
}

/// # Safety
/// `name` holds an address of the length that its family has.
unsafe fn address_of(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let name = ptr::from_ref(name);
    match i32::from(name_family(name)) {
        libc::AF_INET => {
            // SAFETY: the family determines the type.
            let v4 = unsafe { &*name.cast::<libc::sockaddr_in>() };
            let host = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddr::new(IpAddr::V4(host), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: the family determines the type.
            let v6 = unsafe { &*name.cast::<libc::sockaddr_in6>() };
            let host = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Some(SocketAddr::V6(SocketAddrV6::new(host, port, 0, v6.sin6_scope_id)))
        }
        _ => None,
    }
}

fn name_family(name: *const libc::sockaddr_storage) -> libc::sa_family_t {
    // SAFETY: the callers have a reference to it.
    unsafe { (*name).ss_family }
}

/// An address as the kernel wants it, and its length.
fn name_of(address: SocketAddr) -> (libc::sockaddr_storage, u32) {
    // SAFETY: an address is plain data for which zeroes are legal.
    let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
    let place = ptr::from_mut(&mut storage);
    let bytes = match address {
        SocketAddr::V4(v4) => {
            let name = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage has room for every kind of address, and is aligned for it.
            unsafe { place.cast::<libc::sockaddr_in>().write(name) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let name = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { place.cast::<libc::sockaddr_in6>().write(name) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, bytes as u32)
}

/// Packets to one address, which follow each other.
#[derive(Debug, Clone)]
pub struct Run {
    pub to: SocketAddr,
    /// The indices of the packets, the bytes of all, and the bytes of each but the last.
    pub packets: Range<usize>,
    pub bytes: usize,
    pub segment: usize,
}

impl Run {
    /// Whether the kernel is to cut it.
    pub fn is_cut(&self) -> bool {
        self.segment < self.bytes
    }
}

/// Sends runs of packets; their written parts are in `buffer`. Returns the number of runs that left.
pub fn send(
    socket: BorrowedFd<'_>,
    buffer: &[u8],
    packets: &[Packet],
    runs: &[Run],
) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    if let [run] = runs
        && let [packet] = &packets[run.packets.clone()]
        && let [bytes, [], []] = packet.parts(buffer)
    {
        let (name, name_bytes) = name_of(run.to);
        let name = ptr::from_ref(&name).cast();
        let (socket, place) = (socket.as_raw_fd(), bytes.as_ptr().cast());
        // SAFETY: bytes and name are only read.
        let sent = unsafe { libc::sendto(socket, place, bytes.len(), flags, name, name_bytes) };
        return if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(1) };
    }
    let count = runs.len().min(MESSAGES_MAX);
    // SAFETY: addresses and headers are plain data for which zeroes are legal.
    let (mut names, mut headers): (
        [libc::sockaddr_storage; MESSAGES_MAX],
        [libc::mmsghdr; MESSAGES_MAX],
    ) = unsafe { (zeroed(), zeroed()) };
    let (mut vectors, mut firsts) = (Vectors::new(), [0; MESSAGES_MAX]);
    let mut controls = [Control([0; CONTROL_BYTES]); MESSAGES_MAX];
    for (index, run) in runs[..count].iter().enumerate() {
        let first = vectors.count;
        let parts = packets[run.packets.clone()].iter().flat_map(|packet| packet.parts(buffer));
        parts.filter(|part| !part.is_empty()).for_each(|part| vectors.add(part, first));
        let (name, name_bytes) = name_of(run.to);
        names[index] = name;
        let header = &mut headers[index].msg_hdr;
        header.msg_name = ptr::from_mut(&mut names[index]).cast();
        header.msg_namelen = name_bytes;
        firsts[index] = first;
        header.msg_iovlen = (vectors.count - first) as _;
        if run.is_cut() {
            header.msg_control = controls[index].0.as_mut_ptr().cast();
            // SAFETY: pure arithmetic.
            header.msg_controllen = unsafe { libc::CMSG_SPACE(2) } as _;
            // SAFETY: the header has room for one control message with two bytes, and is aligned.
            unsafe {
                let control = libc::CMSG_FIRSTHDR(header);
                (*control).cmsg_level = libc::SOL_UDP;
                (*control).cmsg_type = libc::UDP_SEGMENT;
                (*control).cmsg_len = libc::CMSG_LEN(2) as _;
                libc::CMSG_DATA(control).cast::<u16>().write_unaligned(run.segment as u16);
            }
        }
    }
    // Only now do the entries stay as they are.
    let entries = vectors.entries.as_mut_ptr().cast::<libc::iovec>();
    for (header, first) in headers.iter_mut().zip(firsts) {
        header.msg_hdr.msg_iov = entries.wrapping_add(first);
    }
    // SAFETY: the headers name `buffer` and bytes that packets keep, which are only read, and values of this function.
    let sent =
        unsafe { libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), count as u32, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Places of bytes, one behind the other.
struct Vectors {
    entries: [MaybeUninit<libc::iovec>; VECTORS_MAX],
    count: usize,
}

impl Vectors {
    fn new() -> Vectors {
        Vectors { entries: [const { MaybeUninit::uninit() }; VECTORS_MAX], count: 0 }
    }

    /// Adds a part, to the last one where it lies behind that and both are from `first` on.
    fn add(&mut self, part: &[u8], first: usize) {
        if self.count > first {
            // SAFETY: entries before `count` were written.
            let last = unsafe { self.entries[self.count - 1].assume_init_mut() };
            if last.iov_base.cast::<u8>().wrapping_add(last.iov_len).cast_const() == part.as_ptr() {
                last.iov_len += part.len();
                return;
            }
        }
        let (iov_base, iov_len) = (part.as_ptr().cast_mut().cast(), part.len());
        self.entries[self.count].write(libc::iovec { iov_base, iov_len });
        self.count += 1;
    }
}

/// Sets an option that takes an int; false where the kernel does not know it or does not allow it.
pub fn set(socket: BorrowedFd<'_>, level: i32, option: i32, value: i32) -> bool {
    let value_at = ptr::from_ref(&value).cast();
    let bytes = size_of::<i32>() as u32;
    // SAFETY: the value lives on, and has the length that is named.
    unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value_at, bytes) == 0 }
}
