//! Bare packet sockets, without a protocol: what frames cost by themselves, and programs that stand between
//! two cards.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::{settings, socket};

/// Bytes that stand before each frame of [`all_frames`]: what the kernel says of segments and checksums.
pub const OFFLOAD_HEADER_BYTES: usize = 10;

/// A socket for frames of this EtherType on an interface. It does not block; whoever sends writes whole frames.
pub fn frames_of(interface: &str, ethertype: u16) -> io::Result<OwnedFd> {
    let interface = socket::interface(interface)?;
    let fd = socket::open()?;
    socket::bind(fd.as_fd(), &interface, ethertype)?;
    Ok(fd)
}

/// A socket for all frames that come in on an interface, whoever they are for, as far as the card takes them.
/// Each begins with [`OFFLOAD_HEADER_BYTES`], and is sent with them on another such socket as it came.
pub fn all_frames(interface: &str) -> io::Result<OwnedFd> {
    let interface = socket::interface(interface)?;
    let fd = socket::open()?;
    for option in [libc::PACKET_IGNORE_OUTGOING, libc::PACKET_VNET_HDR] {
        socket::set(fd.as_fd(), libc::SOL_PACKET, option, &1_i32)?;
    }
    socket::bind(fd.as_fd(), &interface, libc::ETH_P_ALL as u16)?;
    Ok(fd)
}

/// Lets the kernel join what an interface receives: a virtual card receives from a queue of its own then (NAPI).
pub fn join_segments(interface: &str) -> io::Result<()> {
    settings::set_joining(interface, true)
}
