//! The options of a user of the port, and the errors of opening it.

use std::net::SocketAddr;

use ropewalk_rail::binding::{Binding, BindingError};

/// The configuration of a [`UdpPort`](crate::UdpPort).
#[derive(Debug, Clone)]
pub struct UdpConfig {
    /// The address at which peers may call; port 0 lets the system choose one. `None`: the port only calls.
    pub listen: Option<SocketAddr>,
    /// Addresses to tell peers instead of the bound one.
    pub advertise: Vec<String>,
    /// The interface to which the socket is bound, and its address where it only calls.
    pub local: Binding,
    /// Longest datagram, in bytes, where the network takes it; where the kernel grants a small receive buffer
    /// they are no longer than [`PACKET_BYTES_USUAL`].
    pub packet_bytes: usize,
    /// Bytes of the kernel's receive buffer; as many as it grants.
    pub receive_buffer_bytes: usize,
    /// Whether the kernel cuts and joins datagrams, where it can.
    pub offload: bool,
}

/// The payload of frames of 9,000 bytes behind IPv6 and UDP.
const PACKET_BYTES: usize = 8952;
/// The payload of frames of 1,500 bytes behind IPv6 and UDP: paths with shorter frames are rare.
pub const PACKET_BYTES_USUAL: usize = 1452;
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;

impl Default for UdpConfig {
    fn default() -> UdpConfig {
        UdpConfig {
            listen: None,
            advertise: Vec::new(),
            local: Binding::default(),
            packet_bytes: PACKET_BYTES,
            receive_buffer_bytes: RECEIVE_BUFFER_BYTES,
            offload: true,
        }
    }
}

impl UdpConfig {
    /// The default, but peers may call.
    pub fn listening(address: SocketAddr) -> UdpConfig {
        UdpConfig { listen: Some(address), ..UdpConfig::default() }
    }
}

/// The reason why the port could not be opened. Class: node.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UdpError {
    #[error(
        "cannot listen on udp://{0}: the port is in use; choose another port, or 0 for any free \
         one, or end the process that holds it (`ss -lunp` names it)"
    )]
    PortInUse(SocketAddr),
    #[error(
        "cannot listen on udp://{0}: no interface of this host has the address; `ip address` lists \
         the addresses, 0.0.0.0 stands for all"
    )]
    NoSuchAddress(SocketAddr),
    #[error(transparent)]
    Binding(#[from] BindingError),
    #[error("cannot open a socket for udp://{address}: {cause}")]
    Socket { address: SocketAddr, cause: std::io::Error },
}
