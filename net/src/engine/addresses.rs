//! The address book: the addresses of peers, as they were looked up.
//!
//! Invariant: an entry belongs to one peer. A peer that gets the slot of a forgotten one has no address of it.

use ropewalk_base::hash::{HashMap, HashSeed};
use ropewalk_core::PeerId;
use ropewalk_rail::address::Address;

pub(crate) struct AddressBook {
    /// By the peer's slot.
    addresses: Vec<Option<(PeerId, Address)>>,
    /// The peer that was looked up last for an address.
    looked_up: HashMap<Address, PeerId>,
}

impl AddressBook {
    pub fn new() -> AddressBook {
        let looked_up = HashMap::with_hasher(HashSeed::OWN_KEYS);
        AddressBook { addresses: Vec::new(), looked_up }
    }

    /// The address of a peer, if it has one.
    pub fn address_of(&self, peer: PeerId) -> Option<&Address> {
        let entry = self.addresses.get(peer.0.index as usize)?.as_ref();
        entry.filter(|(known, _)| *known == peer).map(|(_, address)| address)
    }

    /// The peer that was looked up last for an address. The core may have forgotten it since.
    pub fn looked_up(&self, address: &Address) -> Option<PeerId> {
        self.looked_up.get(address).copied()
    }

    /// Gives a peer its address.
    pub fn set(&mut self, peer: PeerId, address: Address) {
        let index = peer.0.index as usize;
        if self.addresses.len() <= index {
            self.addresses.resize_with(index + 1, || None);
        }
        self.addresses[index] = Some((peer, address));
    }

    /// A fresh peer was looked up for this address. Peers that `is_known` denies are dropped now and then.
    pub fn note_looked_up(
        &mut self,
        address: &Address,
        peer: PeerId,
        is_known: impl Fn(PeerId) -> bool,
    ) {
        if self.looked_up.len() > 2 * self.addresses.len() {
            self.looked_up.retain(|_, peer| is_known(*peer));
        }
        self.looked_up.insert(address.clone(), peer);
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_base::slots::SlotId;

    use super::*;

    fn peer(index: u32, generation: u32) -> PeerId {
        PeerId(SlotId { index, generation })
    }

    #[test]
    fn a_peer_in_a_slot_that_was_used_has_no_address_of_the_former_one() {
        let mut book = AddressBook::new();
        let address = Address::parse("shm://a").unwrap();
        book.set(peer(3, 1), address.clone());
        assert_eq!(book.address_of(peer(3, 1)), Some(&address));
        assert_eq!(book.address_of(peer(3, 2)), None);
        assert_eq!(book.address_of(peer(4, 1)), None);
    }

    #[test]
    fn look_ups_of_forgotten_peers_do_not_pile_up() {
        let mut book = AddressBook::new();
        for number in 0..1000 {
            let address = Address::parse(&format!("shm://a{number}")).unwrap();
            let last = peer(0, number);
            book.note_looked_up(&address, last, |known| known == last);
            book.set(last, address);
        }
        assert!(book.looked_up.len() <= 4, "{}", book.looked_up.len());
    }
}
