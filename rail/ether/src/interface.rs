//! Interfaces of this network namespace.

use ropewalk_wire::mxoe::Station;

use crate::config::{EtherError, Protocol};
use crate::socket;

/// A card, or the kernel's substitute for one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    pub index: u32,
    pub station: Station,
    /// Longest payload of a frame, in bytes: the Ethernet header is not counted.
    pub mtu: usize,
    pub is_up: bool,
    /// Frames can leave: the interface is up, and so is the link behind it.
    pub is_running: bool,
    pub is_loopback: bool,
    pub is_ethernet: bool,
}

/// All of them, in the order of their numbers.
pub fn interfaces() -> Vec<Interface> {
    let mut found = socket::names().into_iter().filter_map(|name| socket::interface(&name).ok());
    let mut all: Vec<Interface> = found.by_ref().collect();
    all.sort_by_key(|interface| interface.index);
    all
}

/// The only one that frames can leave by, and that is no loopback.
fn only(protocol: Protocol) -> Result<Interface, EtherError> {
    let mut usable = interfaces();
    usable.retain(|it| it.is_up && it.is_running && it.is_ethernet && !it.is_loopback);
    match usable.len() {
        0 => Err(EtherError::NoneUp),
        1 => Ok(usable.remove(0)),
        _ => {
            let names: Vec<String> = usable.into_iter().map(|it| it.name).collect();
            Err(EtherError::Several { names: names.join(", "), scheme: protocol.scheme() })
        }
    }
}

/// The one of this name; without a name the only one, which is wanted for this protocol.
pub fn find(name: Option<&str>, protocol: Protocol) -> Result<Interface, EtherError> {
    let Some(name) = name else { return only(protocol) };
    let interface = socket::interface(name).map_err(|cause| {
        let interface = name.to_string();
        match cause.raw_os_error() {
            None | Some(libc::ENODEV | libc::ENXIO) => EtherError::NoInterface(interface),
            Some(_) => EtherError::Socket { interface, cause },
        }
    })?;
    if !interface.is_ethernet && !interface.is_loopback {
        return Err(EtherError::NoEthernet(name.to_string()));
    }
    if !interface.is_up {
        return Err(EtherError::Down(name.to_string()));
    }
    Ok(interface)
}
