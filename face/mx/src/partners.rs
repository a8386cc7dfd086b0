//! Partners: endpoints of others that this one connected to, or that connected to it, each with one place
//! for a pointer of the user's.
//!
//! An address has the partner's number and the session of its endpoint. Nothing is read through it: the partner
//! is looked up, and an address without a partner is refused.

use std::collections::HashMap;

use ropewalk_base::slots::{SlotId, Slots};
use ropewalk_face_common::{HandleBits, PEERS_MAX};
use ropewalk_net::PeerId;

use crate::abi::Address;
use crate::process::PLACE_BITS;

/// The most partners of an endpoint. Every peer that reaches us makes one.
const PARTNERS_MAX: usize = PEERS_MAX;
const INDEX_BITS: u32 = 20;
const BITS: HandleBits = HandleBits::new(PLACE_BITS, INDEX_BITS);
const _: () = assert!(PARTNERS_MAX <= 1 << INDEX_BITS);

/// An endpoint of somebody's.
#[derive(Debug)]
pub struct Partner {
    pub nic_id: u64,
    pub endpoint: u8,
    /// Of its endpoint; 0 while it is unknown.
    pub session: u32,
    pub peer: Option<PeerId>,
    /// The name of it by which it can be called.
    pub called: Option<PeerId>,
    /// Messages can be sent to it.
    pub is_up: bool,
    /// MXoE is spoken with it.
    pub is_foreign: bool,
    /// Its lives, as it has named them in our own protocol and in MXoE.
    pub own_life: Life,
    pub mxoe_life: Life,
    /// It is this endpoint itself.
    pub is_own: bool,
    /// The user's pointer.
    pub context: usize,
}

/// The session that was named last.
#[derive(Debug, Default)]
pub struct Life(Option<u32>);

impl Life {
    /// A session is named, and from now on known: whether it is the one before it, or the first one.
    pub fn goes_on_in(&mut self, session: u32) -> bool {
        self.0.replace(session).is_none_or(|before| before == session)
    }
}

/// Partners by number, by place, and by what the layer below calls them.
#[derive(Debug)]
pub struct Partners {
    slots: Slots<Partner>,
    by_place: HashMap<(u64, u8), SlotId>,
    by_peer: HashMap<PeerId, SlotId>,
}

impl Partners {
    /// None; `first` is where addresses begin to count.
    pub fn new(first: u32) -> Partners {
        let slots = Slots::counting_from(PARTNERS_MAX, first);
        Partners { slots, by_place: HashMap::new(), by_peer: HashMap::new() }
    }

    /// The partner at this place, a new one where there was none.
    pub fn at(&mut self, nic_id: u64, endpoint: u8) -> Option<SlotId> {
        if let Some(id) = self.by_place.get(&(nic_id, endpoint)) {
            return Some(*id);
        }
        let partner = Partner {
            nic_id,
            endpoint,
            session: 0,
            peer: None,
            called: None,
            is_up: false,
            is_foreign: false,
            own_life: Life::default(),
            mxoe_life: Life::default(),
            is_own: false,
            context: 0,
        };
        let id = self.slots.insert(partner).ok()?;
        self.by_place.insert((nic_id, endpoint), id);
        Some(id)
    }

    /// The partner at this place.
    pub fn find_at(&self, nic_id: u64, endpoint: u8) -> Option<SlotId> {
        self.by_place.get(&(nic_id, endpoint)).copied()
    }

    pub fn get(&self, id: SlotId) -> Option<&Partner> {
        self.slots.get(id)
    }

    pub fn get_mut(&mut self, id: SlotId) -> Option<&mut Partner> {
        self.slots.get_mut(id)
    }

    /// Records the number of a partner in the layer below; a partner may have several.
    pub fn name(&mut self, peer: PeerId, partner: SlotId) {
        self.by_peer.insert(peer, partner);
    }

    pub fn of_peer(&self, peer: PeerId) -> Option<SlotId> {
        self.by_peer.get(&peer).copied()
    }

    /// The names of a partner.
    pub fn names_of(&self, partner: SlotId) -> Vec<PeerId> {
        let own = self.by_peer.iter().filter(|(_, other)| **other == partner);
        own.map(|(peer, _)| *peer).collect()
    }

    /// A name is nobody's any more.
    pub fn unname(&mut self, peer: PeerId) {
        self.by_peer.remove(&peer);
    }

    /// All that messages can be sent to.
    pub fn all_up(&self) -> Vec<SlotId> {
        let up = self.slots.iter().filter(|(_, partner)| partner.is_up);
        up.map(|(id, _)| id).collect()
    }

    /// Takes a partner out; addresses of it name nothing from here on.
    pub fn remove(&mut self, id: SlotId) -> Option<Partner> {
        let partner = self.slots.remove(id)?;
        self.by_place.remove(&(partner.nic_id, partner.endpoint));
        self.by_peer.retain(|_, other| *other != id);
        Some(partner)
    }

    /// The address of a partner.
    pub fn address(&self, place: usize, id: SlotId) -> Address {
        let session = self.slots.get(id).map_or(0, |partner| partner.session);
        Address { stuff: [BITS.handle(place, id), u64::from(session) << 32] }
    }

    /// The place of the endpoint that an address belongs to.
    pub fn place_of(address: Address) -> usize {
        BITS.owner(address.stuff[0])
    }

    /// The partner of an address.
    #[inline]
    pub fn find(&self, place: usize, address: Address) -> Option<SlotId> {
        BITS.find(place, address.stuff[0], |index| self.slots.id_at(index))
    }
}

/// The session in an address.
pub fn session_of(address: Address) -> u32 {
    (address.stuff[1] >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_one_partner_of_one_endpoint_until_that_is_gone() {
        let mut partners = Partners::new(1);
        let id = partners.at(7, 1).unwrap();
        assert_eq!(partners.at(7, 1), Some(id));
        partners.get_mut(id).unwrap().session = 0xa1b2_c3d4;
        let address = partners.address(5, id);
        assert_eq!((Partners::place_of(address), session_of(address)), (5, 0xa1b2_c3d4));
        assert_eq!(partners.find(5, address), Some(id));
        assert_eq!(partners.find(4, address), None);
        assert_eq!(partners.find(5, Address { stuff: [u64::MAX; 2] }), None);
        assert_eq!(partners.find(5, Address::default()), None);
        partners.remove(id);
        assert_eq!(partners.at(7, 1).map(|again| again.index), Some(id.index));
        assert_eq!(partners.find(5, address), None, "another one has its place");
    }
}
