//! The table of peers: their records, and which record stands for an endpoint.
//!
//! Invariant: the record of an endpoint is there, names that endpoint, and is nobody's alias.

use ropewalk_base::hash::{HashMap, HashSeed};
use ropewalk_base::slots::Slots;

use super::Peer;
use crate::api::PeerId;
use crate::session::Session;

#[derive(Debug)]
pub(crate) struct Peers {
    table: Slots<Peer>,
    by_endpoint: HashMap<u128, PeerId>,
    hash: HashSeed,
}

impl Peers {
    pub fn new(limit: usize, hash: HashSeed) -> Peers {
        let by_endpoint = HashMap::with_hasher(hash.clone());
        Peers { table: Slots::with_limit(limit), by_endpoint, hash }
    }

    #[inline]
    pub fn get(&self, id: PeerId) -> Option<&Peer> {
        self.table.get(id.0)
    }

    #[inline]
    pub fn get_mut(&mut self, id: PeerId) -> Option<&mut Peer> {
        self.table.get_mut(id.0)
    }

    /// The session with a peer, if there is one.
    #[inline]
    pub fn session(&self, id: PeerId) -> Option<&Session> {
        self.get(id)?.session.as_ref()
    }

    #[inline]
    pub fn session_mut(&mut self, id: PeerId) -> Option<&mut Session> {
        self.get_mut(id)?.session.as_mut()
    }

    /// Whether a frame of a peer names the session that there is.
    #[inline]
    pub fn has_session(&self, id: PeerId, name: u32) -> bool {
        self.session(id).is_some_and(|session| session.is_named(name))
    }

    /// Adds a record. `reachable`: the driver has an address for it. `None` if the table is full.
    pub fn add(&mut self, reachable: bool) -> Option<PeerId> {
        self.table.insert(Peer::new(reachable)).map(PeerId).ok()
    }

    /// Adds a record of an endpoint that called us.
    pub fn add_caller(&mut self, endpoint: u128) -> Option<PeerId> {
        let id = self.add(false)?;
        if let Some(peer) = self.get_mut(id) {
            peer.names.learnt = true;
        }
        self.assign(endpoint, id);
        Some(id)
    }

    /// Takes a record out.
    pub fn remove(&mut self, id: PeerId) -> Option<Peer> {
        let peer = self.table.remove(id.0)?;
        if self.by_endpoint.get(&peer.identity.endpoint) == Some(&id) {
            self.by_endpoint.remove(&peer.identity.endpoint);
        }
        Some(peer)
    }

    /// The record of an endpoint.
    pub fn of_endpoint(&self, endpoint: u128) -> Option<PeerId> {
        self.by_endpoint.get(&endpoint).copied()
    }

    /// A record stands for an endpoint from now on.
    pub fn assign(&mut self, endpoint: u128, id: PeerId) {
        if let Some(peer) = self.get_mut(id) {
            peer.identity.endpoint = endpoint;
        }
        self.by_endpoint.insert(endpoint, id);
    }

    /// A record stands for no endpoint any more.
    pub fn unassign(&mut self, id: PeerId) {
        let Some(peer) = self.table.get_mut(id.0) else { return };
        let endpoint = std::mem::take(&mut peer.identity.endpoint);
        if self.by_endpoint.get(&endpoint) == Some(&id) {
            self.by_endpoint.remove(&endpoint);
        }
    }

    /// No record stands for an endpoint any more, whatever record names it.
    pub fn forget_endpoint(&mut self, endpoint: u128) {
        self.by_endpoint.remove(&endpoint);
    }

    /// For the maps of a peer's session.
    pub fn hash(&self) -> &HashSeed {
        &self.hash
    }

    pub fn is_full(&self) -> bool {
        self.table.is_full()
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (PeerId, &Peer)> {
        self.table.iter().map(|(slot, peer)| (PeerId(slot), peer))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (PeerId, &mut Peer)> {
        self.table.iter_mut().map(|(slot, peer)| (PeerId(slot), peer))
    }

    /// Asserts the invariant.
    pub fn check(&self) {
        for (endpoint, id) in &self.by_endpoint {
            let peer = self.get(*id).expect("an endpoint's record is there");
            assert_eq!(peer.identity.endpoint, *endpoint, "the endpoint of {id:?}");
            assert!(peer.names.alias_of.is_none(), "{id:?} stands for itself");
        }
    }
}
