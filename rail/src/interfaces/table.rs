//! The knowledge of a network namespace: its interfaces, their addresses, and how often routes changed.
//!
//! It is filled by dumps, which list everything, and kept by events between them. An entry that a whole dump did not
//! list is removed at its end.
//!
//! Invariants: there are at most [`LINKS_MAX`] interfaces and [`ADDRESSES_MAX`] addresses; an address whose interface is
//! not known goes with the next dump that is whole.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::names::{HardwareAddress, InterfaceName};
use super::netlink::{AddressChange, Event, LinkChange};

/// Most interfaces, and most addresses: a namespace with more of them is not followed.
pub const LINKS_MAX: usize = 1 << 16;
pub const ADDRESSES_MAX: usize = 1 << 16;

/// There are more interfaces or addresses than are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overfull;

/// An interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Tells apart two interfaces that had one index after each other.
    pub birth: u32,
    pub name: InterfaceName,
    /// Somebody has set it up.
    pub is_up: bool,
    /// It is up, and so is the other end of its wire.
    pub has_carrier: bool,
    /// In bytes.
    pub mtu: u32,
    pub hardware: HardwareAddress,
    /// Changes of routes that leave by it.
    route_changes: u32,
    /// The dump or event that listed it last belongs to this round.
    round: u32,
}

#[derive(Debug, Default)]
pub struct Table {
    links: BTreeMap<u32, Link>,
    /// By interface, address and prefix: the round. Those that sockets can use.
    addresses: BTreeMap<(u32, IpAddr, u8), u32>,
    /// Changes of routes that name no interface.
    route_changes: u32,
    births: u32,
    /// Counts dumps.
    round: u32,
    is_changed: bool,
}

impl Table {
    /// The interface with this index.
    pub fn link(&self, index: u32) -> Option<&Link> {
        self.links.get(&index)
    }

    /// The index of the interface with this name.
    pub fn index_of(&self, name: &str) -> Option<u32> {
        let mut links = self.links.iter();
        links.find(|(_, link)| link.name.as_bytes() == name.as_bytes()).map(|(index, _)| *index)
    }

    /// Whether the interface has this address, for sockets to use.
    pub fn has_address(&self, index: u32, address: IpAddr) -> bool {
        self.addresses.range((index, address, 0)..=(index, address, u8::MAX)).next().is_some()
    }

    /// The interface that has this address.
    pub fn holder(&self, address: IpAddr) -> Option<u32> {
        self.addresses.keys().find(|key| key.1 == address).map(|key| key.0)
    }

    /// Counts the changes of routes that may leave by an interface.
    pub fn route_changes(&self, index: u32) -> u32 {
        let own = self.links.get(&index).map_or(0, |link| link.route_changes);
        self.route_changes.wrapping_add(own)
    }

    /// All interfaces, in the order of their indices.
    pub fn links(&self) -> impl Iterator<Item = &Link> {
        self.links.values()
    }

    /// The numbers of interfaces and of addresses.
    pub fn counts(&self) -> (usize, usize) {
        (self.links.len(), self.addresses.len())
    }

    /// Whether anything has changed since this was asked last.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    /// Takes in an event, or an entry of a dump.
    pub fn handle(&mut self, event: &Event) -> Result<(), Overfull> {
        match event {
            Event::Link(change) => self.handle_link(change),
            Event::LinkRemoved(index) => {
                self.is_changed |= self.links.remove(index).is_some();
                self.addresses.retain(|(of, _, _), _| of != index);
                Ok(())
            }
            Event::Address(change) => self.handle_address(change),
            Event::Route(interface) => {
                let link = interface.and_then(|index| self.links.get_mut(&index));
                let count = link.map_or(&mut self.route_changes, |link| &mut link.route_changes);
                *count = count.wrapping_add(1);
                self.is_changed = true;
                Ok(())
            }
            Event::Done | Event::Failed(_) | Event::Other => Ok(()),
        }
    }

    fn handle_link(&mut self, change: &LinkChange) -> Result<(), Overfull> {
        let LinkChange { index, is_up, has_carrier, name, mtu, hardware } = *change;
        let before = self.links.get(&index).copied();
        let known = before.or_else(|| {
            // A message that tells one thing of many says nothing of an interface that is unknown.
            let (name, mtu) = (name?, mtu?);
            self.births = self.births.wrapping_add(1);
            Some(Link {
                birth: self.births,
                name,
                is_up,
                has_carrier,
                mtu,
                hardware: HardwareAddress::default(),
                route_changes: 0,
                round: self.round,
            })
        });
        let Some(known) = known else { return Ok(()) };
        if before.is_none() && self.links.len() >= LINKS_MAX {
            return Err(Overfull);
        }
        let now = Link {
            is_up,
            has_carrier,
            name: name.unwrap_or(known.name),
            mtu: mtu.unwrap_or(known.mtu),
            hardware: hardware.unwrap_or(known.hardware),
            round: self.round,
            ..known
        };
        self.links.insert(index, now);
        self.is_changed |= before.map(|before| Link { round: self.round, ..before }) != Some(now);
        Ok(())
    }

    fn handle_address(&mut self, change: &AddressChange) -> Result<(), Overfull> {
        let AddressChange { index, address, prefix_bits, is_usable } = *change;
        let key = (index, address, prefix_bits);
        if !is_usable {
            self.is_changed |= self.addresses.remove(&key).is_some();
            return Ok(());
        }
        if self.addresses.len() >= ADDRESSES_MAX && !self.addresses.contains_key(&key) {
            return Err(Overfull);
        }
        let round = self.round;
        self.is_changed |= self.addresses.insert(key, round).is_none();
        Ok(())
    }

    /// A dump begins: its entries, and the events from now on, belong to a new round.
    pub fn begin_dump(&mut self) {
        self.round = self.round.wrapping_add(1);
    }

    /// A dump of interfaces is over, and was whole: those that it did not list are gone.
    pub fn end_links(&mut self) {
        let (before, round) = (self.links.len(), self.round);
        self.links.retain(|_, link| link.round == round);
        self.is_changed |= self.links.len() != before;
    }

    /// Likewise for addresses, after one of interfaces.
    pub fn end_addresses(&mut self) {
        let before = self.addresses.len();
        let Table { links, addresses, round, .. } = self;
        addresses.retain(|(index, ..), of| of == round && links.contains_key(index));
        self.is_changed |= self.addresses.len() != before;
    }
}
