//! Who has which endpoint of an interface: a claim is a name in the abstract namespace of Unix sockets,
//! which belongs to the network namespace and ends with the process, however that ends.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::config::{ENDPOINTS, EtherError, Language};
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
        language: Language,
        wanted: Option<u8>,
    ) -> Result<Claim, EtherError> {
        let name = || interface.name.clone();
        match wanted {
            Some(endpoint) => {
                let taken = EtherError::Taken { interface: name(), endpoint };
                Claim::one(interface, language, endpoint).ok_or(taken)
            }
            None => {
                let mut free =
                    ENDPOINTS.filter_map(|endpoint| Claim::one(interface, language, endpoint));
                free.next().ok_or_else(|| EtherError::AllTaken(name()))
            }
        }
    }

    fn one(interface: &Interface, language: Language, endpoint: u8) -> Option<Claim> {
        let language = match language {
            Language::Ours => "ether",
            Language::Mxoe(_) => "mxoe",
        };
        let name = format!("ropewalk/{language}/{}/{endpoint}", interface.index);
        let address = SocketAddr::from_abstract_name(name).ok()?;
        let socket = UnixDatagram::bind_addr(&address).ok()?;
        Some(Claim { endpoint, _socket: socket })
    }
}
