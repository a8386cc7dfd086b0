//! System calls: maps, programs and links of eBPF (bpf(2)), and sockets of AF_XDP.
//!
//! Invariant: pointers that the kernel is given point to values that live on for the call.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use super::program::Instruction;

const MAP_CREATE: i64 = 0;
const MAP_UPDATE: i64 = 2;
const PROGRAM_LOAD: i64 = 5;
const LINK_CREATE: i64 = 28;
const LINK_DETACH: i64 = 34;
const KIND_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;

/// Kinds of maps: values by number; sockets by queue.
pub const ARRAY: u32 = 2;
pub const SOCKETS: u32 = 17;
/// The place at which a program is attached: behind the driver, or in it.
pub const BEHIND_DRIVER: u32 = 1 << 1;
pub const IN_DRIVER: u32 = 1 << 2;

/// `union bpf_attr` of each command, as far as it is used: all other fields are zero.
#[repr(C)]
struct MapAttributes {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
}

#[repr(C)]
struct UpdateAttributes {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ProgramAttributes {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach: u32,
}

#[repr(C)]
struct LinkAttributes {
    program: u32,
    interface: u32,
    attach: u32,
    flags: u32,
}

fn checked(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Carries out a command, whose attributes these are.
fn bpf<T>(command: i64, attributes: &T) -> io::Result<i64> {
    let (place, bytes) = (ptr::from_ref(attributes), size_of::<T>());
    // SAFETY: the kernel reads the given number of bytes, and the memory that the callers let them point to.
    checked(unsafe { libc::syscall(libc::SYS_bpf, command, place, bytes) })
}

fn owned(descriptor: i64) -> OwnedFd {
    // SAFETY: the kernel has just opened it, and nobody else has it.
    unsafe { OwnedFd::from_raw_fd(descriptor as i32) }
}

/// A map of so many values, each of so many bytes.
pub fn map(kind: u32, value_bytes: u32, entries: u32) -> io::Result<OwnedFd> {
    let key_bytes = size_of::<u32>() as u32;
    bpf(MAP_CREATE, &MapAttributes { kind, key_bytes, value_bytes, entries }).map(owned)
}

/// Sets a value, which has the length that values of the map have.
pub fn update<const BYTES: usize>(
    map: BorrowedFd<'_>,
    key: u32,
    value: &[u8; BYTES],
) -> io::Result<()> {
    let attributes = UpdateAttributes {
        map: map.as_raw_fd() as u32,
        padding: 0,
        key: ptr::from_ref(&key) as u64,
        value: value.as_ptr() as u64,
        flags: 0,
    };
    bpf(MAP_UPDATE, &attributes).map(drop)
}

/// Has the kernel check a program for incoming frames. The program shall see each frame in one piece: a program that
/// copes with several pieces costs 0.3 us a frame more.
pub fn load(instructions: &[Instruction]) -> io::Result<OwnedFd> {
    let mut name = [0; 16];
    name[..8].copy_from_slice(b"ropewalk");
    let attributes = ProgramAttributes {
        kind: KIND_XDP,
        count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: c"Apache-2.0".as_ptr() as u64,
        log_level: 0,
        log_bytes: 0,
        log: 0,
        kernel: 0,
        flags: 0,
        name,
        interface: 0,
        attach: ATTACH_XDP,
    };
    bpf(PROGRAM_LOAD, &attributes).map(owned)
}

/// Attaches a program to an interface where it has none, as long as the result is open.
pub fn link(program: BorrowedFd<'_>, interface: u32, flags: u32) -> io::Result<OwnedFd> {
    let program = program.as_raw_fd() as u32;
    bpf(LINK_CREATE, &LinkAttributes { program, interface, attach: ATTACH_XDP, flags }).map(owned)
}

/// Ends a link, even if other processes have it open. If that fails, it is closed before long.
pub fn detach(link: BorrowedFd<'_>) {
    let _ = bpf(LINK_DETACH, &(link.as_raw_fd() as u32));
}

/// A socket without memory, which belongs to no queue yet.
pub fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: plain arguments.
    checked(unsafe { libc::socket(libc::AF_XDP, kind, 0) }.into()).map(owned)
}

/// Binds a socket to a queue of an interface.
pub fn bind(socket: BorrowedFd<'_>, interface: u32, queue: u32, flags: u16) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: flags,
        sxdp_ifindex: interface,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    let bytes = size_of::<libc::sockaddr_xdp>() as u32;
    let place = ptr::from_ref(&address).cast();
    // SAFETY: the address lives on, and has the length that is named.
    checked(unsafe { libc::bind(socket.as_raw_fd(), place, bytes) }.into()).map(drop)
}

/// Reads an option that has this layout; a kernel that knows less of it leaves the rest zero.
fn option<T>(socket: BorrowedFd<'_>, option: i32) -> io::Result<T> {
    // SAFETY: both callers' layouts are numbers, for which zeroes are legal.
    let mut value: T = unsafe { zeroed() };
    let mut bytes = size_of::<T>() as u32;
    let (place, length) = (ptr::from_mut(&mut value).cast(), ptr::from_mut(&mut bytes));
    // SAFETY: the kernel writes as many bytes as are named, at most.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_XDP, option, place, length) };
    checked(result.into()).map(|_| value)
}

/// The offsets of the parts of a socket's rings.
pub fn offsets(socket: BorrowedFd<'_>) -> io::Result<libc::xdp_mmap_offsets> {
    option(socket, libc::XDP_MMAP_OFFSETS)
}

/// Frames that were dropped so far, as there was no room for them.
pub fn dropped(socket: BorrowedFd<'_>) -> u64 {
    let statistics = option::<libc::xdp_statistics>(socket, libc::XDP_STATISTICS);
    statistics.map_or(0, |it| it.rx_dropped + it.rx_ring_full)
}

/// Has the kernel send the frames in the ring.
pub fn kick(socket: BorrowedFd<'_>) -> io::Result<()> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: no memory and no address are named.
    let result = unsafe { libc::sendto(socket.as_raw_fd(), ptr::null(), 0, flags, ptr::null(), 0) };
    checked(result as i64).map(drop)
}

/// Has the kernel look at the card, where it polls busily, and take memory that was given back to it.
pub fn drive(socket: BorrowedFd<'_>) {
    let flags = libc::MSG_DONTWAIT;
    // The result is of no interest: the ring shows the frames that came.
    // SAFETY: no memory and no address are named.
    let _ = unsafe {
        libc::recvfrom(
            socket.as_raw_fd(),
            ptr::null_mut(),
            0,
            flags,
            ptr::null_mut(),
            ptr::null_mut(),
        )
    };
}
