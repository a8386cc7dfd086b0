//! The local side of a path: an interface, a source address, or both; and whether it is there.
//!
//! It knows no socket: it reads a [`Table`].

use std::net::IpAddr;

use super::names::{HardwareAddress, InterfaceName};
use super::table::{Link, Table};

/// An interface, as users name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named<'a> {
    Index(u32),
    /// Whichever has this name at first: a later one of that name is another interface, and this one may be renamed.
    Name(&'a str),
}

/// The local side of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalSide<'a> {
    /// The interface to which its socket is bound. `None`: the one that has the source address.
    pub interface: Option<Named<'a>>,
    /// The address to which its socket is bound.
    pub source: Option<IpAddr>,
    /// Changes of routes are counted. Where routes change often, this costs a look for each change.
    pub follows_routes: bool,
}

impl<'a> LocalSide<'a> {
    /// The side of a socket that is bound to an interface.
    pub fn on(interface: Named<'a>) -> LocalSide<'a> {
        LocalSide { interface: Some(interface), source: None, follows_routes: false }
    }

    /// The side of a socket that is bound to an address.
    pub fn at(source: IpAddr) -> LocalSide<'a> {
        LocalSide { interface: None, source: Some(source), follows_routes: false }
    }
}

/// The reason why nothing leaves or arrives at a local side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LocalFault {
    /// The interface was removed, or moved to another network namespace: for good.
    InterfaceRemoved,
    /// Somebody has set the interface down.
    InterfaceDown,
    /// No interface has the source address, or the interface has it no more.
    AddressRemoved,
    /// The interface is up, and the other end of its wire is not there. The kernel may tell this up to a second late.
    CarrierLost,
}

/// The state of a local side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SideState {
    /// Why it is not there: the first cause in the order of [`LocalFault`]. `None`: it is.
    pub fault: Option<LocalFault>,
    /// Of its interface, as it was last: the index, the name, the MTU in bytes, and the hardware address.
    pub index: u32,
    pub name: InterfaceName,
    pub mtu: u32,
    pub hardware: HardwareAddress,
    /// Grows with each change of a route that may concern it, where it follows routes: the way to a peer may be
    /// another one, or gone.
    pub route_changes: u32,
}

/// A local side that was found in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Side {
    interface: Option<u32>,
    /// Of that interface, or of the last one that had the address.
    birth: u32,
    source: Option<IpAddr>,
    /// The source address is the interface's own; else it may be any interface's.
    is_own: bool,
    follows_routes: bool,
}

impl Side {
    /// The side, and its state. `None` if there is no such interface, or no interface at all with the address.
    pub fn find(side: &LocalSide<'_>, table: &Table) -> Option<(Side, SideState)> {
        let LocalSide { interface, source, follows_routes } = *side;
        let interface = match interface {
            Some(Named::Index(index)) => Some(index),
            Some(Named::Name(name)) => Some(table.index_of(name)?),
            None => None,
        };
        let index = interface.or_else(|| table.holder(source?))?;
        let link = table.link(index)?;
        let is_own = source.is_some_and(|source| table.has_address(index, source));
        let side = Side { interface, birth: link.birth, source, is_own, follows_routes };
        let state = side.read(table, index, link);
        Some((side, state))
    }

    /// Whether it has a source address.
    pub fn has_source(&self) -> bool {
        self.source.is_some()
    }

    /// The index of its interface now, whose state was `last` before.
    pub fn index(&self, table: &Table, last: &SideState) -> u32 {
        let holder = || self.source.and_then(|source| table.holder(source));
        self.interface.or_else(holder).unwrap_or(last.index)
    }

    /// Its state now, which was `last` before.
    pub fn state(&self, table: &Table, last: &SideState) -> SideState {
        if last.fault == Some(LocalFault::InterfaceRemoved) {
            return *last;
        }
        let index = self.index(table, last);
        match table.link(index) {
            Some(link) if self.interface.is_none() || link.birth == self.birth => {
                self.read(table, index, link)
            }
            _ => {
                let fault = match self.interface {
                    Some(_) => LocalFault::InterfaceRemoved,
                    None => LocalFault::AddressRemoved,
                };
                SideState { fault: Some(fault), ..*last }
            }
        }
    }

    fn read(&self, table: &Table, index: u32, link: &Link) -> SideState {
        let has_source =
            self.source.is_none_or(|source| match self.is_own && self.interface.is_some() {
                true => table.has_address(index, source),
                false => table.holder(source).is_some(),
            });
        let fault = match (link.is_up, has_source, link.has_carrier) {
            (false, ..) => Some(LocalFault::InterfaceDown),
            (_, false, _) => Some(LocalFault::AddressRemoved),
            (.., false) => Some(LocalFault::CarrierLost),
            _ => None,
        };
        let route_changes = if self.follows_routes { table.route_changes(index) } else { 0 };
        let Link { name, mtu, hardware, .. } = *link;
        SideState { fault, index, name, mtu, hardware, route_changes }
    }
}
