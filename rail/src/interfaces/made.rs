//! Messages of the kernel, made by hand for tests.

use std::net::IpAddr;

pub const UP: u32 = 0x1;
pub const CARRIER: u32 = 0x1_0000;
pub const NEW_LINK: u16 = 16;
pub const DEL_LINK: u16 = 17;
pub const NEW_ADDRESS: u16 = 20;
pub const DEL_ADDRESS: u16 = 21;
pub const NEW_ROUTE: u16 = 24;
pub const DONE: u16 = 3;
pub const ERROR: u16 = 2;
pub const INTERRUPTED: u16 = 0x10;

/// A message with this body.
pub fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = (16 + body.len() as u32).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(body);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// An attribute, with its padding.
pub fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// The body of a message about an interface.
pub fn link_body(family: u8, index: i32, flags: u32, attributes: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = vec![family, 0, 1, 0];
    bytes.extend(index.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(attributes.concat());
    bytes
}

/// An interface with a name, an MTU, and the station `02:00:00:00:00:01`.
pub fn link(index: i32, flags: u32, name: &str, mtu: u32) -> Vec<u8> {
    let attributes = [
        attribute(3, &[name.as_bytes(), &[0]].concat()),
        attribute(4, &mtu.to_ne_bytes()),
        attribute(1, &[2, 0, 0, 0, 0, 1]),
    ];
    message(NEW_LINK, 0, 0, &link_body(0, index, flags, &attributes))
}

/// An interface that is gone.
pub fn link_removed(index: i32) -> Vec<u8> {
    message(DEL_LINK, 0, 0, &link_body(0, index, 0, &[]))
}

/// An address of an interface, with a prefix of 24 bits.
pub fn address(kind: u16, index: u32, address: &str) -> Vec<u8> {
    let (family, value) = match address.parse().unwrap() {
        IpAddr::V4(v4) => (2, v4.octets().to_vec()),
        IpAddr::V6(v6) => (10, v6.octets().to_vec()),
    };
    let mut body = vec![family, 24, 0x80, 0];
    body.extend(index.to_ne_bytes());
    body.extend(attribute(1, &value));
    message(kind, 0, 0, &body)
}

/// A route that leaves by an interface.
pub fn route(interface: Option<u32>) -> Vec<u8> {
    let mut body = vec![2, 24, 0, 0, 254, 0, 0, 1, 0, 0, 0, 0];
    body.extend(interface.map(|index| attribute(4, &index.to_ne_bytes())).unwrap_or_default());
    message(NEW_ROUTE, 0, 0, &body)
}

/// The end of the dump with this number.
pub fn done(sequence: u32) -> Vec<u8> {
    message(DONE, 0, sequence, &0i32.to_ne_bytes())
}
