//! Sockets between the processes of a host: packets in order, under a name of the network namespace, which nobody has
//! to delete.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::{Errno, Result};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with,
    bind, connect, recv, send, socket_with,
};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

fn socket() -> Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Takes a name, which is free.
pub fn listen(name: &str) -> Result<OwnedFd> {
    let socket = socket()?;
    bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Connects to the holder of a name. Calls on this socket time out after `patience`.
pub fn call(name: &str, patience: Duration) -> Result<OwnedFd> {
    let socket = socket()?;
    set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(patience))?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok(socket)
}

/// The user that holds the called name, if that user is not to be trusted: any process can take any name.
pub fn stranger(socket: &OwnedFd) -> Option<u32> {
    let user = socket_peercred(socket).map_or(u32::MAX, |it| it.uid.as_raw());
    (!ropewalk_rail_ether::is_trusted(user)).then_some(user)
}

/// The next client that connects.
pub fn accept(listener: &OwnedFd) -> Result<OwnedFd> {
    accept_with(listener, SocketFlags::CLOEXEC)
}

/// Says something. Without `patience` it is an error where the other side does not read.
pub fn say(socket: impl AsFd, bytes: &[u8], patience: bool) -> Result<()> {
    let flags = if patience { SendFlags::empty() } else { SendFlags::DONTWAIT };
    send(socket, bytes, flags | SendFlags::NOSIGNAL).map(drop)
}

/// Receives a message of the other side. An empty one: the other side has closed the connection.
pub fn hear(socket: impl AsFd, buffer: &mut [u8], patience: bool) -> Result<&[u8]> {
    let flags = if patience { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
    loop {
        match recv(&socket, &mut *buffer, flags) {
            Ok((len, _)) => return Ok(&buffer[..len.min(buffer.len())]),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}
