//! The kernel's messages about interfaces, addresses and routes (NETLINK_ROUTE, rtnetlink(7)), and requests for them.
//!
//! Invariants:
//! * no bytes make it panic, and it allocates nothing;
//! * a message is read within its own length, and an attribute within its message;
//! * a reader of a datagram comes to its end, whatever the lengths in it say.
//!
//! It keeps no state and knows no socket.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::names::{HardwareAddress, InterfaceName};

/// The groups of messages to which a socket subscribes, as a mask.
pub const GROUPS: u32 =
    group(RTNLGRP_LINK) | group(RTNLGRP_IPV4_IFADDR) | group(RTNLGRP_IPV6_IFADDR);
/// The groups of routes, which change often on some hosts.
pub const ROUTE_GROUPS: u32 = group(RTNLGRP_IPV4_ROUTE) | group(RTNLGRP_IPV6_ROUTE);

const fn group(number: u32) -> u32 {
    1 << (number - 1)
}

const RTNLGRP_LINK: u32 = 1;
const RTNLGRP_IPV4_IFADDR: u32 = 5;
const RTNLGRP_IPV4_ROUTE: u32 = 7;
const RTNLGRP_IPV6_IFADDR: u32 = 9;
const RTNLGRP_IPV6_ROUTE: u32 = 11;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
pub const RTM_NEWLINK: u16 = 16;
pub const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
pub const RTM_NEWADDR: u16 = 20;
pub const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;

const NLM_F_REQUEST: u16 = 0x1;
/// Of a reply that is part of a dump.
pub const NLM_F_MULTI: u16 = 0x2;
/// Likewise: something changed during the dump, which may lack entries.
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_DUMP: u16 = 0x300;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_EXT_MASK: u16 = 29;
const RTEXT_FILTER_SKIP_STATS: u32 = 1 << 3;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_TENTATIVE: u32 = 0x40;

const RTA_OIF: u16 = 4;
/// A route that a look-up left behind: nobody set it.
const RTM_F_CLONED: u32 = 0x200;

const AF_UNSPEC: u8 = libc::AF_UNSPEC as u8;
const AF_INET: u8 = libc::AF_INET as u8;
const AF_INET6: u8 = libc::AF_INET6 as u8;

const HEADER_BYTES: usize = 16;
const LINK_BYTES: usize = 16;
/// The place of the index in a message about an interface.
pub const LINK_INDEX_AT: u32 = HEADER_BYTES as u32 + 4;
const ADDRESS_BYTES: usize = 8;
const ROUTE_BYTES: usize = 12;
const ATTRIBUTE_BYTES: usize = 4;
/// The upper bits of an attribute's type say how to read its value.
const TYPE_MASK: u16 = 0x3fff;

/// A datagram breaks the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// A message of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// The number of the request that it answers. Of an event it may be that of anybody's request.
    pub sequence: u32,
    /// It is part of a dump during which something changed.
    pub is_interrupted: bool,
    pub event: Event,
}

/// The content of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Link(LinkChange),
    /// The interface with this index is gone, or in another network namespace.
    LinkRemoved(u32),
    Address(AddressChange),
    /// A route was added, changed or removed. With the index of the interface that it leaves by, where the message
    /// names one.
    Route(Option<u32>),
    /// The end of a dump.
    Done,
    /// A request failed with this error number.
    Failed(i32),
    /// Something else.
    Other,
}

/// An interface is like this now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkChange {
    pub index: u32,
    pub is_up: bool,
    pub has_carrier: bool,
    /// `None`: the message does not tell.
    pub name: Option<InterfaceName>,
    /// In bytes.
    pub mtu: Option<u32>,
    pub hardware: Option<HardwareAddress>,
}

/// An interface has this address now, or no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressChange {
    pub index: u32,
    pub address: IpAddr,
    pub prefix_bits: u8,
    /// Sockets can use it: it is there, and no other host has it.
    pub is_usable: bool,
}

/// The messages of a datagram. After one that is malformed come no more.
#[derive(Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Messages<'a> {
    /// The messages of this datagram.
    pub fn of(datagram: &'a [u8]) -> Messages<'a> {
        Messages { rest: datagram }
    }

    fn parse_next(&mut self) -> Option<Message> {
        let length = u32_at(self.rest, 0)? as usize;
        let kind = u16_at(self.rest, 4)?;
        let flags = u16_at(self.rest, 6)?;
        let sequence = u32_at(self.rest, 8)?;
        let body = self.rest.get(HEADER_BYTES..length)?;
        let event = event(kind, body)?;
        self.rest = self.rest.get(aligned(length)..).unwrap_or(&[]);
        Some(Message { sequence, is_interrupted: flags & NLM_F_DUMP_INTR != 0, event })
    }
}

impl Iterator for Messages<'_> {
    type Item = Result<Message, Malformed>;

    fn next(&mut self) -> Option<Result<Message, Malformed>> {
        if self.rest.is_empty() {
            return None;
        }
        let message = self.parse_next();
        if message.is_none() {
            self.rest = &[];
        }
        Some(message.ok_or(Malformed))
    }
}

fn event(kind: u16, body: &[u8]) -> Option<Event> {
    match kind {
        NLMSG_ERROR => i32_at(body, 0).map(Event::Failed),
        // Older kernels tell no outcome.
        NLMSG_DONE => Some(match i32_at(body, 0).unwrap_or(0) {
            error if error < 0 => Event::Failed(error),
            _ => Event::Done,
        }),
        RTM_NEWLINK | RTM_DELLINK => link(kind == RTM_DELLINK, body),
        RTM_NEWADDR | RTM_DELADDR => address(kind == RTM_DELADDR, body),
        RTM_NEWROUTE | RTM_DELROUTE => route(body),
        _ => Some(Event::Other),
    }
}

fn link(is_removed: bool, body: &[u8]) -> Option<Event> {
    let family = *body.first()?;
    let index = index_at(body, 4)?;
    let flags = u32_at(body, 8)?;
    let attributes = body.get(LINK_BYTES..)?;
    // Bridges tell of their ports under their own family: a port that leaves its bridge is not gone.
    if family != AF_UNSPEC {
        return Some(Event::Other);
    }
    if is_removed {
        return Some(Event::LinkRemoved(index));
    }
    let (mut name, mut mtu, mut hardware) = (None, None, None);
    for_each_attribute(attributes, |kind, value| {
        match kind {
            IFLA_IFNAME => name = Some(InterfaceName::from_kernel(value)?),
            IFLA_MTU => mtu = Some(u32_at(value, 0)?),
            IFLA_ADDRESS => hardware = Some(HardwareAddress::from_kernel(value)?),
            _ => {}
        }
        Some(())
    })?;
    Some(Event::Link(LinkChange {
        index,
        is_up: flags & libc::IFF_UP as u32 != 0,
        has_carrier: flags & libc::IFF_LOWER_UP as u32 != 0,
        name,
        mtu,
        hardware,
    }))
}

fn address(is_removed: bool, body: &[u8]) -> Option<Event> {
    let &[family, prefix_bits, flags, ..] = body else { return None };
    let index = index_at(body, 4)?;
    let attributes = body.get(ADDRESS_BYTES..)?;
    let (mut local, mut other, mut flags) = (None, None, u32::from(flags));
    for_each_attribute(attributes, |kind, value| {
        match kind {
            IFA_LOCAL => local = ip(family, value),
            IFA_ADDRESS => other = ip(family, value),
            IFA_FLAGS => flags = u32_at(value, 0)?,
            _ => {}
        }
        Some(())
    })?;
    // Of a point-to-point link the second one is the peer's.
    let Some(address) = local.or(other) else { return Some(Event::Other) };
    let is_usable = !is_removed && flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED) == 0;
    Some(Event::Address(AddressChange { index, address, prefix_bits, is_usable }))
}

fn route(body: &[u8]) -> Option<Event> {
    let flags = u32_at(body, 8)?;
    let attributes = body.get(ROUTE_BYTES..)?;
    let mut interface = None;
    for_each_attribute(attributes, |kind, value| {
        if kind == RTA_OIF {
            interface = Some(index_at(value, 0)?);
        }
        Some(())
    })?;
    Some(if flags & RTM_F_CLONED != 0 { Event::Other } else { Event::Route(interface) })
}

fn ip(family: u8, value: &[u8]) -> Option<IpAddr> {
    match family {
        AF_INET => <[u8; 4]>::try_from(value).ok().map(|bytes| Ipv4Addr::from(bytes).into()),
        AF_INET6 => <[u8; 16]>::try_from(value).ok().map(|bytes| Ipv6Addr::from(bytes).into()),
        _ => None,
    }
}

/// Shows each attribute's type and value; `None` where the lengths break the format, or `show` says so.
fn for_each_attribute(bytes: &[u8], mut show: impl FnMut(u16, &[u8]) -> Option<()>) -> Option<()> {
    let mut rest = bytes;
    // Fewer bytes are padding.
    while rest.len() >= ATTRIBUTE_BYTES {
        let length = usize::from(u16_at(rest, 0)?);
        let kind = u16_at(rest, 2)? & TYPE_MASK;
        show(kind, rest.get(ATTRIBUTE_BYTES..length)?)?;
        rest = rest.get(aligned(length)..).unwrap_or(&[]);
    }
    Some(())
}

/// The place behind so many bytes where the next part may begin.
fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(4)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    bytes.get(at..at + 4)?.try_into().ok().map(i32::from_ne_bytes)
}

/// The index of an interface: more than 0.
fn index_at(bytes: &[u8], at: usize) -> Option<u32> {
    i32_at(bytes, at).filter(|index| *index > 0).map(i32::unsigned_abs)
}

/// Bytes of a request for interfaces.
pub const LINK_REQUEST_BYTES: usize = HEADER_BYTES + LINK_BYTES + ATTRIBUTE_BYTES + 4;
/// Bytes of a request for addresses.
pub const ADDRESS_REQUEST_BYTES: usize = HEADER_BYTES + ADDRESS_BYTES;

/// The request for all interfaces, or for the one with this index.
pub fn request_links(index: Option<u32>, sequence: u32) -> [u8; LINK_REQUEST_BYTES] {
    let flags = if index.is_none() { NLM_F_REQUEST | NLM_F_DUMP } else { NLM_F_REQUEST };
    let mut request = [0; LINK_REQUEST_BYTES];
    write_header(&mut request, RTM_GETLINK, flags, sequence);
    let body = &mut request[HEADER_BYTES..];
    body[4..8].copy_from_slice(&index.unwrap_or(0).to_ne_bytes());
    let attribute = &mut body[LINK_BYTES..];
    attribute[..2].copy_from_slice(&(ATTRIBUTE_BYTES as u16 + 4).to_ne_bytes());
    attribute[2..4].copy_from_slice(&IFLA_EXT_MASK.to_ne_bytes());
    attribute[4..8].copy_from_slice(&RTEXT_FILTER_SKIP_STATS.to_ne_bytes());
    request
}

/// The request for the addresses of all interfaces.
pub fn request_addresses(sequence: u32) -> [u8; ADDRESS_REQUEST_BYTES] {
    let mut request = [0; ADDRESS_REQUEST_BYTES];
    write_header(&mut request, RTM_GETADDR, NLM_F_REQUEST | NLM_F_DUMP, sequence);
    request
}

fn write_header(request: &mut [u8], kind: u16, flags: u16, sequence: u32) {
    let length = request.len() as u32;
    request[..4].copy_from_slice(&length.to_ne_bytes());
    request[4..6].copy_from_slice(&kind.to_ne_bytes());
    request[6..8].copy_from_slice(&flags.to_ne_bytes());
    request[8..12].copy_from_slice(&sequence.to_ne_bytes());
}

#[cfg(test)]
mod tests;
