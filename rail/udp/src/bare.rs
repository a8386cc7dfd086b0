//! Options of a bare socket, so that the kernel carries many datagrams at a time: for measurements.

use std::net::UdpSocket;
use std::os::fd::AsFd;

use crate::batch;

/// Has the kernel cut later sends into datagrams of this many bytes; false if it cannot.
pub fn cut(socket: &UdpSocket, bytes: u16) -> bool {
    batch::set(socket.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, bytes.into())
}

/// Datagrams of one length that come together are received as one; false where the kernel cannot.
pub fn join(socket: &UdpSocket) -> bool {
    batch::set(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1)
}
