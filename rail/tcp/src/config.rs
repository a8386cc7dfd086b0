//! The options of a user of the rail, and the errors of opening it.

use std::net::SocketAddr;
use std::time::Duration;

use ropewalk_rail::binding::Binding;

/// The configuration of a [`TcpRail`](crate::TcpRail). The default only connects.
#[derive(Debug, Clone)]
pub struct TcpConfig {
    /// The address to listen at; port 0 lets the system choose one.
    pub listen: Option<SocketAddr>,
    /// Addresses to tell peers instead of those of the machine's interfaces (`host:port`), for hosts
    /// that others reach under another name.
    pub advertise: Vec<String>,
    /// The interface and the source address of calls, and the interface to listen at.
    pub local: Binding,
    /// The time limit for a connect, including the look-up of a name.
    pub connect_timeout: Duration,
    /// The time limit for the first complete header of an accepted link.
    pub greeting_timeout: Duration,
    /// The time for which a closed link may make no progress in sending the frames that were ordered before.
    pub close_timeout: Duration,
    /// The time for which the peer's machine may be silent before the link counts as dead. Also the longest time for
    /// which a peer may leave data unread that was sent to it.
    pub dead_after: Duration,
    /// Bytes of the kernel's buffers of each socket; `None`: as the system chooses, and adapts.
    pub send_buffer_bytes: Option<u32>,
    pub receive_buffer_bytes: Option<u32>,
    /// Most links at a time; further connects are `Busy`, further accepted ones are hung up.
    pub links_max: usize,
}

impl Default for TcpConfig {
    fn default() -> TcpConfig {
        TcpConfig {
            listen: None,
            advertise: Vec::new(),
            local: Binding::default(),
            connect_timeout: Duration::from_secs(5),
            greeting_timeout: Duration::from_secs(10),
            close_timeout: Duration::from_secs(5),
            dead_after: Duration::from_secs(30),
            send_buffer_bytes: None,
            receive_buffer_bytes: None,
            links_max: 65_536,
        }
    }
}

impl TcpConfig {
    /// The default, but listening.
    pub fn listening(address: SocketAddr) -> TcpConfig {
        TcpConfig { listen: Some(address), ..TcpConfig::default() }
    }
}

/// The reason why the rail could not be opened. Class: node.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TcpError {
    #[error(
        "cannot listen on tcp://{0}: the port is in use; choose another port, or 0 for any free \
         one, or end the process that holds it (`ss -ltnp` names it)"
    )]
    PortInUse(SocketAddr),
    #[error(
        "cannot listen on tcp://{0}: no interface of this host has the address; `ip address` lists \
         the addresses, 0.0.0.0 stands for all"
    )]
    NoSuchAddress(SocketAddr),
    #[error(
        "cannot listen on tcp://{0}: ports below 1024 need the capability CAP_NET_BIND_SERVICE; \
         choose a higher port, or give it to the program"
    )]
    PortReserved(SocketAddr),
    #[error("cannot listen on tcp://{address}: {cause}")]
    Listen { address: SocketAddr, cause: std::io::Error },
    #[error(
        "cannot make an epoll set or an eventfd: {0}; \
         where too many files are open, raise the limit (`ulimit -n`)"
    )]
    Descriptors(std::io::Error),
}
