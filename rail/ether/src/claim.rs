//! The ownership of an interface's endpoints. A claim is a name in the abstract namespace of Unix sockets, which
//! belongs to the network namespace and ends with the process, however that ends.

use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::config::{ENDPOINTS, EtherError, Protocol};
use crate::holder::stranger_at;
use crate::interface::Interface;

/// An endpoint that is ours as long as this lives.
#[derive(Debug)]
pub struct Claim {
    pub endpoint: u8,
    _socket: UnixDatagram,
}

impl Claim {
    /// Claims the wanted endpoint, or the smallest that nobody has.
    pub fn new(
        interface: &Interface,
        protocol: Protocol,
        wanted: Option<u8>,
    ) -> Result<Claim, EtherError> {
        let name = || interface.name.clone();
        match wanted {
            Some(endpoint) => {
                let taken = || match stranger_at(&name_of(interface, protocol, endpoint)) {
                    Some(user) => EtherError::Held { interface: name(), endpoint, user },
                    None => EtherError::Taken { interface: name(), endpoint },
                };
                Claim::one(interface, protocol, endpoint)?.ok_or_else(taken)
            }
            None => {
                let one = |endpoint| Claim::one(interface, protocol, endpoint).transpose();
                ENDPOINTS
                    .filter_map(one)
                    .next()
                    .unwrap_or_else(|| Err(EtherError::AllTaken(name())))
            }
        }
    }

    /// `None`: somebody has it.
    fn one(
        interface: &Interface,
        protocol: Protocol,
        endpoint: u8,
    ) -> Result<Option<Claim>, EtherError> {
        let socket = SocketAddr::from_abstract_name(name_of(interface, protocol, endpoint))
            .and_then(|address| UnixDatagram::bind_addr(&address));
        match socket {
            Ok(socket) => Ok(Some(Claim { endpoint, _socket: socket })),
            Err(error) if error.kind() == ErrorKind::AddrInUse => Ok(None),
            // No descriptor is left, say.
            Err(cause) => Err(EtherError::Socket { interface: interface.name.clone(), cause }),
        }
    }
}

fn name_of(interface: &Interface, protocol: Protocol, endpoint: u8) -> String {
    let protocol = match protocol {
        Protocol::Ours => "ether",
        Protocol::Mxoe(_) => "mxoe",
    };
    format!("ropewalk/{protocol}/{}/{endpoint}", interface.index)
}

/// Whether somebody has claimed that endpoint: anybody of this host, of whom no more is believed than that the agent is
/// not to answer in its place.
pub fn is_claimed(interface: &Interface, protocol: Protocol, endpoint: u8) -> bool {
    let address = SocketAddr::from_abstract_name(name_of(interface, protocol, endpoint));
    let socket = UnixDatagram::unbound();
    // If this process cannot find out, it assumes that the endpoint is claimed.
    let (Ok(address), Ok(socket)) = (address, socket) else { return true };
    match socket.connect_addr(&address) {
        Ok(()) => true,
        Err(error) => error.kind() != std::io::ErrorKind::ConnectionRefused,
    }
}

/// Tells processes that ask that a queue of an interface goes by AF_XDP, as long as the result lives. `None`: the
/// name still belongs to somebody else.
pub fn name_queue(interface: u32, queue: u32) -> Option<UnixDatagram> {
    let name = format!("ropewalk/xdp/{interface}/{queue}");
    UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name).ok()?).ok()
}

/// The name by which the agent of the interface of this number is claimed and found.
pub fn agent_name(interface: u32) -> String {
    format!("ropewalk/mxoe/{interface}/agent")
}
