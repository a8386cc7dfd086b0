//! A socket for the agent of an interface: it sees the packets between hosts, and packets for endpoints that are not
//! hidden from it.
//!
//! Invariant: frames for hidden endpoints cost it nothing, so that an agent sleeps while messages go by.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ropewalk_rail::packet::Packet;
use ropewalk_wire::mxoe::{ETHERNET_BYTES, ETHERTYPE, Ethernet, FRAME_BYTES_MIN, Order, Station};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::claim::is_claimed;
use crate::config::{EtherError, Protocol};
use crate::filter::agent_program;
use crate::hub::BODY_BYTES_MAX;
use crate::interface::Interface;
use crate::numbers::Numbers;
use crate::socket;

/// See the module.
#[derive(Debug)]
pub struct AgentSocket {
    socket: OwnedFd,
    interface: Interface,
    protocol: Protocol,
    buffer: Box<[u8]>,
    /// The kernel has said so of the interface, and nothing came since then.
    is_down: bool,
}

/// The owners of an interface's endpoints, as processes have claimed them.
#[derive(Debug, Clone)]
pub struct Claims {
    interface: Interface,
    protocol: Protocol,
}

impl Claims {
    /// Whether some process has this endpoint.
    pub fn has(&self, endpoint: u8) -> bool {
        is_claimed(&self.interface, self.protocol, endpoint)
    }

    /// Whether some process takes packets of our own protocol for it.
    pub fn has_ours(&self, endpoint: u8) -> bool {
        is_claimed(&self.interface, Protocol::Ours, endpoint)
    }
}

/// A body, and between whom it went.
#[derive(Debug)]
pub struct Heard<'a> {
    pub from: Station,
    pub to: Station,
    pub body: &'a [u8],
}

impl AgentSocket {
    /// A socket from which no endpoint is hidden.
    pub fn open(interface: &Interface, order: Order) -> Result<AgentSocket, EtherError> {
        let open = || {
            let socket = socket::open()?;
            let fd = socket.as_fd();
            socket::filter(fd, agent_program(interface.station, &Numbers::default()))?;
            let _ = socket::set(fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1i32);
            socket::bind(fd, interface, ETHERTYPE)?;
            Ok(socket)
        };
        let socket = open().map_err(|cause| match socket::is_right(&cause) {
            true => EtherError::NotPermitted(interface.name.clone()),
            false => EtherError::Socket { interface: interface.name.clone(), cause },
        })?;
        Ok(AgentSocket {
            socket,
            interface: interface.clone(),
            protocol: Protocol::Mxoe(order),
            buffer: vec![0; ETHERNET_BYTES + BODY_BYTES_MAX].into_boxed_slice(),
            is_down: false,
        })
    }

    /// Frames for these endpoints are not seen from now on, and those for all others are.
    pub fn hide(&self, endpoints: impl IntoIterator<Item = u8>) -> io::Result<()> {
        let mut hidden = Numbers::default();
        endpoints.into_iter().for_each(|endpoint| hidden.insert(endpoint));
        socket::filter(self.socket.as_fd(), agent_program(self.interface.station, &hidden))
    }

    /// The owners of the endpoints of this interface.
    pub fn claims(&self) -> Claims {
        Claims { interface: self.interface.clone(), protocol: self.protocol }
    }

    /// The interface is down, as far as is known: whether it is still there has to be asked now and then, by
    /// [`receive`](AgentSocket::receive).
    pub fn is_down(&self) -> bool {
        self.is_down
    }

    /// The next packet, if there is one. An error: the interface is not there any more.
    pub fn receive(&mut self) -> io::Result<Option<Heard<'_>>> {
        let len = loop {
            match rustix::net::recv(&self.socket, &mut *self.buffer, RecvFlags::DONTWAIT) {
                Ok((len, _)) if len < ETHERNET_BYTES => {}
                Ok((len, _)) => break len,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if !self.is_down => return Ok(None),
                // It is told once that the interface is down; it may come up again, or be removed, of which nothing
                // is told any more.
                Err(_) if socket::is_bound(self.socket.as_fd()) => {
                    self.is_down = true;
                    return Ok(None);
                }
                Err(Errno::AGAIN) => return Err(Errno::NODEV.into()),
                Err(error) => return Err(error.into()),
            }
        };
        self.is_down = false;
        let frame = Ethernet::split(&self.buffer[..len]);
        Ok(frame.map(|(ethernet, body)| Heard {
            from: ethernet.source,
            to: ethernet.destination,
            body,
        }))
    }

    /// Sends a body. A body that does not leave is lost, as it could be on its way.
    pub fn send(&self, to: Station, body: &[u8]) {
        let source = self.interface.station;
        let ethernet = Ethernet { destination: to, source, ethertype: ETHERTYPE };
        let mut frame = ethernet.to_bytes().to_vec();
        frame.extend_from_slice(body);
        frame.resize(frame.len().max(FRAME_BYTES_MIN), 0);
        let whole = 0..frame.len();
        let _ = socket::send(self.socket.as_fd(), &frame, &[Packet::whole(whole)]);
    }
}

impl AsFd for AgentSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
