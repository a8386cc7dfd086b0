//! Sockets: made non-blocking, with the options that every link has.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use ropewalk_rail::Owner;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

use crate::config::{TcpConfig, TcpError};
use crate::owner;

/// Connections that the kernel completes before they are accepted; cut to net.core.somaxconn.
const BACKLOG: i32 = 4096;
/// Bytes that may wait unsent in the kernel: what is queued there cannot be overtaken any more, so
/// it is one data frame.
const UNSENT_BYTES_MAX: libc::c_int = 256 * 1024;

fn open(address: &SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    net::socket_with(family, SocketType::STREAM, flags, None)
}

/// A listening socket and the address that it got.
pub fn listen(address: SocketAddr) -> Result<(OwnedFd, SocketAddr), TcpError> {
    try_listen(address).map_err(|errno| match errno {
        Errno::ADDRINUSE => TcpError::PortInUse(address),
        Errno::ADDRNOTAVAIL => TcpError::NoSuchAddress(address),
        Errno::ACCESS | Errno::PERM => TcpError::PortReserved(address),
        other => TcpError::Listen { address, cause: other.into() },
    })
}

fn try_listen(address: SocketAddr) -> Result<(OwnedFd, SocketAddr), Errno> {
    let socket = open(&address)?;
    // A server that restarts finds connections of its former life in TIME_WAIT; without this option
    // they would keep it from its port. Two listeners on one port it does not allow.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    net::bind(&socket, &address)?;
    net::listen(&socket, BACKLOG)?;
    let bound = local_address(socket.as_fd()).ok_or(Errno::AFNOSUPPORT)?;
    Ok((socket, bound))
}

/// A socket whose connect is under way.
pub fn connect(address: &SocketAddr) -> Result<OwnedFd, Errno> {
    let socket = open(address)?;
    match net::connect(&socket, address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno),
    }
}

/// The next connection of a listening socket.
pub fn accept(listener: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    net::accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)
}

/// Options of every link: no delay for small frames, a bound on silence, a short queue of unsent
/// bytes. A socket that refuses one of them works without it.
pub fn tune(socket: BorrowedFd<'_>, config: &TcpConfig) {
    let dead_after = config.dead_after;
    let _ = sockopt::set_tcp_nodelay(socket, true);
    if let Some(bytes) = config.send_buffer_bytes {
        let _ = sockopt::set_socket_send_buffer_size(socket, bytes as usize);
    }
    if let Some(bytes) = config.receive_buffer_bytes {
        let _ = sockopt::set_socket_recv_buffer_size(socket, bytes as usize);
    }
    let _ = sockopt::set_socket_keepalive(socket, true);
    // Three probes fit into the time; the user timeout then judges probes and data alike.
    let pause = (dead_after / 4).max(Duration::from_secs(1));
    let _ = sockopt::set_tcp_keepidle(socket, pause);
    let _ = sockopt::set_tcp_keepintvl(socket, pause);
    let _ = sockopt::set_tcp_keepcnt(socket, 3);
    let millis = u32::try_from(dead_after.as_millis()).unwrap_or(u32::MAX);
    let _ = sockopt::set_tcp_user_timeout(socket, millis);
    let bytes = UNSENT_BYTES_MAX;
    // SAFETY: the option takes an int, which lives until the call returns.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NOTSENT_LOWAT,
            (&raw const bytes).cast(),
            size_of_val(&bytes) as libc::socklen_t,
        );
    }
}

/// Whether the connect of a writable socket succeeded, and reached somebody else: a connect to a
/// free port of this machine can by chance meet itself, as source and target port are equal.
pub fn connected(socket: BorrowedFd<'_>) -> bool {
    let fine = matches!(sockopt::socket_error(socket), Ok(Ok(())));
    let Some(peer) = peer_address(socket) else { return false };
    fine && local_address(socket) != Some(peer)
}

fn local_address(socket: BorrowedFd<'_>) -> Option<SocketAddr> {
    SocketAddr::try_from(net::getsockname(socket).ok()?).ok()
}

/// Whether bytes that were sent have not reached the other machine. Closed by then, with bytes unread that
/// came from there, the socket is reset and they are lost.
pub fn owes(socket: BorrowedFd<'_>) -> bool {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes one int, which lives until the call returns.
    let asked = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    asked == 0 && bytes > 0
}

/// The host at the other end.
pub fn peer_host(socket: BorrowedFd<'_>) -> Option<String> {
    peer_address(socket).map(|address| address.ip().to_canonical().to_string())
}

/// Whose process is at the other end. One that has gone meanwhile is nobody's: its address may be another
/// process's by now.
pub fn peer_owner(socket: BorrowedFd<'_>) -> Owner {
    let (peer, own) = (peer_address(socket), local_address(socket));
    let (Some(peer), Some(own)) = (peer, own) else { return Owner::Untold };
    let owner = owner::owner_of(peer, own);
    if peer_address(socket) == Some(peer) { owner } else { Owner::Untold }
}

fn peer_address(socket: BorrowedFd<'_>) -> Option<SocketAddr> {
    SocketAddr::try_from(net::getpeername(socket).ok()??).ok()
}
