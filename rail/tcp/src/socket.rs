//! Sockets: made non-blocking, with the options that every link has.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use ropewalk_rail::Owner;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

use crate::config::{TcpConfig, TcpError};
use crate::owner;

/// Connections that the kernel completes before they are accepted; cut to net.core.somaxconn.
const BACKLOG: i32 = 4096;
/// Bytes that may wait unsent in the kernel: frames that are queued there cannot be overtaken any more, so it is one
/// data frame.
const UNSENT_BYTES_MAX: libc::c_int = 256 * 1024;
/// Bits of `SO_BUF_LOCK`: which sizes of buffers somebody chose.
const SEND_CHOSEN: libc::c_int = 1;
const RECEIVE_CHOSEN: libc::c_int = 2;

/// The congestion control of connections within one host, where no link can be congested. BBR, a usual default, paces
/// there, too, by a rate that it guesses from bursts: half round trips of 1 MiB took 210 to 250 us with it, and take 140.
/// The kernel lets every user choose this one.
const WITHIN_HOST: &str = "reno";

fn open(address: &SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    net::socket_with(family, SocketType::STREAM, flags, None)
}

/// A socket that listens.
#[derive(Debug)]
pub struct Listener {
    pub socket: OwnedFd,
    /// The address that it got.
    pub address: SocketAddr,
    /// The sizes of its buffers before anybody chose some, and the chosen ones.
    usual: Sizes,
    chosen: Sizes,
}

/// The requested sizes of the kernel's buffers of a socket, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sizes {
    send: Option<u32>,
    receive: Option<u32>,
}

/// A listening socket, whose connections have the buffers that are configured.
pub fn listen(address: SocketAddr, config: &TcpConfig) -> Result<Listener, TcpError> {
    try_listen(address, config).map_err(|errno| match errno {
        Errno::ADDRINUSE => TcpError::PortInUse(address),
        Errno::ADDRNOTAVAIL => TcpError::NoSuchAddress(address),
        Errno::ACCESS | Errno::PERM => TcpError::PortReserved(address),
        other => TcpError::Listen { address, cause: other.into() },
    })
}

fn try_listen(address: SocketAddr, config: &TcpConfig) -> Result<Listener, Errno> {
    let socket = open(&address)?;
    // A server that restarts finds connections of its former life in TIME_WAIT; without this option
    // they would keep it from its port. Two listeners on one port it does not allow.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    let usual = Sizes::of(socket.as_fd());
    // Before it listens: the amount in flight over a connection is agreed on when the connection is made.
    let chosen = Sizes::chosen(config);
    chosen.ask_for(socket.as_fd());
    if address.ip().is_loopback() {
        set_within_host(socket.as_fd());
    }
    config.local.bind_interface(socket.as_fd())?;
    net::bind(&socket, &address)?;
    net::listen(&socket, BACKLOG)?;
    let address = local_address(socket.as_fd()).ok_or(Errno::AFNOSUPPORT)?;
    Ok(Listener { socket, address, usual, chosen })
}

impl Sizes {
    /// The sizes that a socket has. The kernel reports twice the requested size.
    fn of(socket: BorrowedFd<'_>) -> Sizes {
        let asked = |told: usize| u32::try_from(told / 2).ok();
        Sizes {
            send: sockopt::socket_send_buffer_size(socket).ok().and_then(asked),
            receive: sockopt::socket_recv_buffer_size(socket).ok().and_then(asked),
        }
    }

    fn chosen(config: &TcpConfig) -> Sizes {
        Sizes { send: config.send_buffer_bytes, receive: config.receive_buffer_bytes }
    }

    /// Asks for buffers of these sizes. A socket that refuses works with others.
    fn ask_for(self, socket: BorrowedFd<'_>) {
        if let Some(bytes) = self.send {
            let _ = sockopt::set_socket_send_buffer_size(socket, bytes as usize);
        }
        if let Some(bytes) = self.receive {
            let _ = sockopt::set_socket_recv_buffer_size(socket, bytes as usize);
        }
    }
}

impl Listener {
    /// Connections that are accepted from now on have buffers as configured.
    pub fn resize(&mut self, config: &TcpConfig) {
        let before = std::mem::replace(&mut self.chosen, Sizes::chosen(config));
        if before == self.chosen {
            return;
        }
        let (socket, usual, Sizes { send, receive }) =
            (self.socket.as_fd(), self.usual, self.chosen);
        // A size that was never chosen is left as it is.
        let wanted = Sizes {
            send: send.or(before.send.and(usual.send)),
            receive: receive.or(before.receive.and(usual.receive)),
        };
        wanted.ask_for(socket);
        // Sizes that nobody chose are the kernel's to adapt again. Kernels before 5.16 cannot be told so.
        let mut chosen: libc::c_int = 0;
        chosen |= if send.is_some() { SEND_CHOSEN } else { 0 };
        chosen |= if receive.is_some() { RECEIVE_CHOSEN } else { 0 };
        // SAFETY: the option takes an int, which lives until the call returns.
        unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_BUF_LOCK,
                (&raw const chosen).cast(),
                size_of_val(&chosen) as libc::socklen_t,
            );
        }
    }
}

/// A socket whose connect is under way.
pub fn connect(address: &SocketAddr, config: &TcpConfig) -> Result<OwnedFd, Errno> {
    let socket = open(address)?;
    Sizes::chosen(config).ask_for(socket.as_fd());
    if address.ip().is_loopback() {
        set_within_host(socket.as_fd());
    }
    if !config.local.is_free() {
        config.local.bind_interface(socket.as_fd())?;
        config.local.bind_caller(socket.as_fd(), address)?;
    }
    match net::connect(&socket, address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno),
    }
}

/// The next connection of a listening socket, and from where it comes.
pub fn accept(listener: BorrowedFd<'_>) -> Result<(OwnedFd, Option<IpAddr>), Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (socket, from) = net::acceptfrom_with(listener, flags)?;
    let from = from.and_then(|from| SocketAddr::try_from(from).ok());
    Ok((socket, from.map(|from| from.ip().to_canonical())))
}

/// What identifies a caller: its host, or of a long address its network, in which one host may have all addresses.
pub fn host_of(address: IpAddr) -> [u8; 8] {
    let mut host = [0; 8];
    match address {
        IpAddr::V4(address) => host[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => host.copy_from_slice(&address.octets()[..8]),
    }
    host
}

/// Chooses the congestion control for a connection within this host. Where the address says so, the call comes before
/// the connection is made: the kernel goes on pacing a connection that BBR has paced once.
fn set_within_host(socket: BorrowedFd<'_>) {
    let _ = sockopt::set_tcp_congestion(socket, WITHIN_HOST);
}

/// Options of every link: no delay for small frames, a bound on silence, a short queue of unsent
/// bytes, no pacing within the host. A socket that refuses one of them works without it.
pub fn tune(socket: BorrowedFd<'_>, config: &TcpConfig) {
    let dead_after = config.dead_after;
    let host = |address: SocketAddr| address.ip().to_canonical();
    let peer = peer_address(socket).map(host);
    if peer.is_some() && peer == local_address(socket).map(host) {
        set_within_host(socket);
    }
    let _ = sockopt::set_tcp_nodelay(socket, true);
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
    queued_bytes(socket) > 0
}

/// Bytes that were sent and have not reached the other machine, as far as is known.
pub fn queued_bytes(socket: BorrowedFd<'_>) -> u64 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes one int, which lives until the call returns.
    let asked = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if asked == 0 { u64::try_from(bytes).unwrap_or(0) } else { 0 }
}

/// The host at the other end.
pub fn peer_host(socket: BorrowedFd<'_>) -> Option<String> {
    peer_address(socket).map(|address| address.ip().to_canonical().to_string())
}

/// The owner of the process at the other end. A peer that has gone meanwhile has none: its address may be another
/// process's by now.
pub fn peer_owner(socket: BorrowedFd<'_>) -> Owner {
    let (peer, own) = (peer_address(socket), local_address(socket));
    let (Some(peer), Some(own)) = (peer, own) else { return Owner::Untold };
    let owner = owner::owner_of(peer, own);
    if peer_address(socket) == Some(peer) { owner } else { Owner::Untold }
}

/// The address at the other end.
pub fn peer_ip(socket: BorrowedFd<'_>) -> Option<IpAddr> {
    peer_address(socket).map(|address| address.ip().to_canonical())
}

fn peer_address(socket: BorrowedFd<'_>) -> Option<SocketAddr> {
    SocketAddr::try_from(net::getpeername(socket).ok()??).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_within_the_host_is_not_paced() {
        for address in ["127.0.0.1:0", "0.0.0.0:0", "[::]:0"] {
            let config = TcpConfig::listening(address.parse().unwrap());
            let listener = listen(address.parse().unwrap(), &config).unwrap();
            let called = SocketAddr::from(([127, 0, 0, 1], listener.address.port()));
            let calling = connect(&called, &config).unwrap();
            let accepted = loop {
                match accept(listener.socket.as_fd()) {
                    Err(Errno::AGAIN) => std::thread::yield_now(),
                    other => break other.unwrap().0,
                }
            };
            for end in [calling.as_fd(), accepted.as_fd()] {
                tune(end, &config);
                assert_eq!(sockopt::tcp_congestion(end).unwrap(), WITHIN_HOST, "{address}");
            }
        }
    }
}
