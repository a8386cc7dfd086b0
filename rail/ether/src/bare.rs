//! Bare packet sockets, without a protocol: for measurements of the cost of frames alone, and for programs that
//! stand between two cards.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::{settings, socket};

/// Bytes before each frame of [`all_frames`]: the kernel's statement about segments and checksums.
pub const OFFLOAD_HEADER_BYTES: usize = 10;

/// A socket for frames of this EtherType on an interface. It does not block; the sender writes whole frames.
pub fn frames_of(interface: &str, ethertype: u16) -> io::Result<OwnedFd> {
    let interface = socket::interface(interface)?;
    let fd = socket::open()?;
    socket::bind(fd.as_fd(), &interface, ethertype)?;
    Ok(fd)
}

/// A socket for all frames that come in on an interface, for any destination, as far as the card takes them. Each
/// begins with [`OFFLOAD_HEADER_BYTES`], and is sent with them on another such socket as it came.
pub fn all_frames(interface: &str) -> io::Result<OwnedFd> {
    let interface = socket::interface(interface)?;
    let fd = socket::open()?;
    for option in [libc::PACKET_IGNORE_OUTGOING, libc::PACKET_VNET_HDR] {
        socket::set(fd.as_fd(), libc::SOL_PACKET, option, &1_i32)?;
    }
    socket::bind(fd.as_fd(), &interface, libc::ETH_P_ALL as u16)?;
    Ok(fd)
}

/// Lets the kernel join the frames of an interface: a virtual card then receives from a queue of its own (NAPI).
pub fn join_segments(interface: &str) -> io::Result<()> {
    settings::set_joining(interface, true)
}
