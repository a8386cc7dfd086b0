//! System calls: the properties of interfaces, the socket, its filter, and many frames in one call.
//!
//! Invariant: pointers that the kernel is given point to values that live on for the call.

use std::ffi::CStr;
use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use ropewalk_rail::packet::{PARTS, Packet};
use ropewalk_wire::mxoe::Station;

use crate::interface::Interface;

/// Frames of one system call.
pub const FRAMES_MAX: usize = 64;

fn checked(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Names of all interfaces.
pub fn names() -> Vec<String> {
    let mut found = Vec::new();
    // SAFETY: no arguments; the list is ours until it is freed.
    let list = unsafe { libc::if_nameindex() };
    if list.is_null() {
        return found;
    }
    let mut at = list;
    loop {
        // SAFETY: the list goes on until an entry without a name.
        let entry = unsafe { &*at };
        if entry.if_index == 0 || entry.if_name.is_null() {
            break;
        }
        // SAFETY: a name of the list, which ends in a zero byte.
        let name = unsafe { CStr::from_ptr(entry.if_name) };
        found.extend(name.to_str().map(str::to_string));
        // SAFETY: this was not the last entry.
        at = unsafe { at.add(1) };
    }
    // SAFETY: nothing of the list is used from here on.
    unsafe { libc::if_freenameindex(list) };
    found
}

/// The kernel's description of an interface.
pub fn interface(name: &str) -> io::Result<Interface> {
    // SAFETY: plain arguments.
    let socket =
        checked(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: just opened, and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: a request is plain data for which zeroes are legal.
    let mut request: libc::ifreq = unsafe { zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let mut ask = |what| {
        // SAFETY: these requests write to the value that they are given.
        checked(unsafe { libc::ioctl(socket.as_raw_fd(), what, ptr::from_mut(&mut request)) })?;
        Ok::<_, io::Error>(request.ifr_ifru)
    };
    // SAFETY: the request that was made says which part of the union is filled, here and below.
    let index = unsafe { ask(libc::SIOCGIFINDEX)?.ifru_ifindex } as u32;
    // SAFETY: see above.
    let mtu = unsafe { ask(libc::SIOCGIFMTU)?.ifru_mtu } as usize;
    // SAFETY: see above.
    let flags = i32::from(unsafe { ask(libc::SIOCGIFFLAGS)?.ifru_flags });
    // SAFETY: see above.
    let hardware = unsafe { ask(libc::SIOCGIFHWADDR)?.ifru_hwaddr };
    let mut station = [0; 6];
    for (to, from) in station.iter_mut().zip(hardware.sa_data) {
        *to = from as u8;
    }
    Ok(Interface {
        name: name.to_string(),
        index,
        station: Station(station),
        mtu,
        is_up: flags & libc::IFF_UP != 0,
        is_running: flags & libc::IFF_RUNNING != 0,
        is_loopback: flags & libc::IFF_LOOPBACK != 0,
        is_ethernet: hardware.sa_family == libc::ARPHRD_ETHER,
    })
}

/// Whether the error says that a right is missing.
pub fn is_right(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES))
}

/// A socket that sees nothing yet.
pub fn open() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: plain arguments. Protocol 0: nothing comes before it is bound.
    let socket = checked(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
    // SAFETY: just opened, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

/// Lets it see frames of an EtherType on the interface.
pub fn bind(socket: BorrowedFd<'_>, interface: &Interface, ethertype: u16) -> io::Result<()> {
    // SAFETY: an address is plain data for which zeroes are legal.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = ethertype.to_be();
    address.sll_ifindex = interface.index as i32;
    let bytes = size_of::<libc::sockaddr_ll>() as u32;
    let place = ptr::from_ref(&address).cast();
    // SAFETY: the address lives on, and has the length that is named.
    checked(unsafe { libc::bind(socket.as_raw_fd(), place, bytes) }).map(drop)
}

/// Sets an option of any layout.
pub fn set<T>(socket: BorrowedFd<'_>, level: i32, option: i32, value: &T) -> io::Result<()> {
    let place = ptr::from_ref(value).cast();
    let bytes = size_of::<T>() as u32;
    // SAFETY: the value lives on, and has the length that is named.
    checked(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, place, bytes) }).map(drop)
}

/// Frames that were dropped since this was asked last, as there was no room for them.
pub fn dropped(socket: BorrowedFd<'_>) -> u64 {
    #[repr(C)]
    struct Statistics {
        packets: u32,
        drops: u32,
    }
    let mut statistics = Statistics { packets: 0, drops: 0 };
    let mut bytes = size_of::<Statistics>() as u32;
    let place = ptr::from_mut(&mut statistics).cast();
    // SAFETY: the kernel writes as many bytes as are named.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            place,
            ptr::from_mut(&mut bytes),
        )
    };
    if result == 0 { statistics.drops.into() } else { 0 }
}

/// Lets through the frames that a program selects, from now on; frames that were let through before stay.
pub fn filter(socket: BorrowedFd<'_>, mut program: Vec<libc::sock_filter>) -> io::Result<()> {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// Whether the interface that it was bound to is still there.
pub fn is_bound(socket: BorrowedFd<'_>) -> bool {
    // SAFETY: an address is plain data for which zeroes are legal.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    let mut bytes = size_of::<libc::sockaddr_ll>() as u32;
    let (place, bytes) = (ptr::from_mut(&mut address).cast(), ptr::from_mut(&mut bytes));
    // SAFETY: the kernel writes as many bytes as are named.
    let result = unsafe { libc::getsockname(socket.as_raw_fd(), place, bytes) };
    result == 0 && address.sll_ifindex > 0
}

/// The present limits of an interface: the longest payload of a frame, in bytes, and whether it is up.
#[derive(Debug, Clone, Copy)]
pub struct Takes {
    pub mtu: usize,
    pub is_up: bool,
}

/// The present limits of the interface with this number, whatever its name is by now.
pub fn takes(socket: BorrowedFd<'_>, interface: u32) -> io::Result<Takes> {
    // SAFETY: a request is plain data for which zeroes are legal.
    let mut request: libc::ifreq = unsafe { zeroed() };
    request.ifr_ifru.ifru_ifindex = interface as i32;
    let ask = |what, request: &mut libc::ifreq| {
        // SAFETY: these requests write to the value that they are given: the name first, by which the others ask.
        checked(unsafe { libc::ioctl(socket.as_raw_fd(), what, ptr::from_mut(request)) })
    };
    ask(libc::SIOCGIFNAME, &mut request)?;
    ask(libc::SIOCGIFMTU, &mut request)?;
    // SAFETY: the request has filled this part of the union.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu } as usize;
    ask(libc::SIOCGIFFLAGS, &mut request)?;
    // SAFETY: as above, of this part.
    let flags = i32::from(unsafe { request.ifr_ifru.ifru_flags });
    Ok(Takes { mtu, is_up: flags & libc::IFF_UP != 0 })
}

/// Sends frames; their written parts are in `bytes`. Returns the number that left.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], frames: &[Packet]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    if let [frame] = frames
        && let [frame, [], []] = frame.parts(bytes)
    {
        // SAFETY: the frame is only read.
        let sent =
            unsafe { libc::send(socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), flags) };
        return if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(1) };
    }
    let count = frames.len().min(FRAMES_MAX);
    // SAFETY: headers are plain data for which zeroes are legal.
    let mut headers: [libc::mmsghdr; FRAMES_MAX] = unsafe { zeroed() };
    let mut vectors = [const { MaybeUninit::<[libc::iovec; PARTS]>::uninit() }; FRAMES_MAX];
    for (index, frame) in frames[..count].iter().enumerate() {
        let parts = frame.parts(bytes);
        let vector = |part: &[u8]| libc::iovec {
            iov_base: part.as_ptr().cast_mut().cast(),
            iov_len: part.len(),
        };
        headers[index].msg_hdr.msg_iov = vectors[index].write(parts.map(vector)).as_mut_ptr();
        headers[index].msg_hdr.msg_iovlen = if parts[1].is_empty() { 1 } else { PARTS };
    }
    // SAFETY: the headers name `bytes` and bytes that frames keep, which are only read, and values of this function.
    let sent =
        unsafe { libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), count as u32, flags) };
    checked(sent).map(|sent| sent as usize)
}
