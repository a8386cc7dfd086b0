//! Links to peers: the engine finds an address and a rail that speaks its scheme.

use ropewalk_base::error::Fault;
use ropewalk_base::verb::LinkId;
use ropewalk_core::PeerId;
use ropewalk_rail::Rail;
use ropewalk_rail::address::Address;

use crate::engine::{Engine, PeerEvent};

/// A rail, and an address that it can call.
struct Way {
    rail: usize,
    scheme: String,
    rest: String,
    /// Among those of its scheme the rail has the place that the address has.
    is_paired: bool,
}

impl Engine {
    /// A peer for these addresses. While it is unknown who answers there, all who look them up get names
    /// of one peer: under several their messages would go in the order in which the peers are found.
    pub fn add_peer(&mut self, address: Address) -> Result<PeerId, Fault> {
        let core = &self.core;
        let unknown = |peer: &PeerId| core.is_known(*peer) && core.peer_endpoint(*peer).is_none();
        let peer = match self.addresses.looked_up(&address).filter(unknown) {
            Some(same) => self.core.add_name(same)?,
            None => {
                let peer = self.core.add_peer(true)?;
                let core = &self.core;
                self.addresses.note_looked_up(&address, peer, |peer| core.is_known(peer));
                peer
            }
        };
        self.addresses.set(peer, address);
        Ok(peer)
    }

    /// Tries addresses from this attempt on, until one can at least be tried.
    pub(super) fn connect(&mut self, peer: PeerId, attempt: u32) {
        let now = self.now();
        let looked_up = self.addresses.address_of(peer).cloned();
        let address = looked_up.or_else(|| self.told_address(peer));
        let ways = self.ways_over(address.as_ref());
        for Way { rail, scheme, rest, .. } in ways.into_iter().skip(attempt as usize) {
            if self.rails.of_scheme(&scheme).any(|(_, rail)| is_own(rail, &rest)) {
                // Not every network brings back packets that are sent to oneself.
                return self.core.connect_to_itself(peer);
            }
            match self.rails.at(rail).connect(&rest, now) {
                Ok(link) => return self.core.connecting(peer, link),
                Err(Fault::Busy) => self.core.crowded(peer),
                Err(_) => {}
            }
        }
        self.core.unreachable(peer);
    }

    /// Tries to add a path to the session with a peer: each way in turn whose rail carries none.
    pub(super) fn join(&mut self, peer: PeerId, attempt: u32, rails: u64) {
        let now = self.now();
        // It knows its own addresses best, also those that nobody looked up.
        let address = self.told_address(peer).or_else(|| self.addresses.address_of(peer).cloned());
        let mut ways = self.ways_over(address.as_ref());
        // Most likely the first rail reaches the first address, the second one the second.
        ways.sort_by_key(|way| !way.is_paired);
        let ways = ways.into_iter().enumerate().skip(attempt as usize);
        for (index, Way { rail, rest, .. }) in ways {
            let (is_used, capabilities) =
                (rails >> rail & 1 == 1, self.rails.at(rail).capabilities());
            if is_used || capabilities.same_host_only || capabilities.foreign {
                continue;
            }
            if let Ok(link) = self.rails.at(rail).connect(&rest, now) {
                return self.core.joining(peer, link, index as u32);
            }
        }
        self.core.no_way_to_join(peer);
    }

    /// A link is one of several paths of its session.
    pub(super) fn tune(&mut self, link: LinkId) {
        if let Some(rail) = self.rails.of_mut(link) {
            rail.tune_as_path(link);
        }
    }

    /// The core asks how a link does.
    pub(super) fn tell_health(&mut self, link: LinkId) {
        let now = self.now();
        let health = self.rails.of_mut(link).and_then(|rail| rail.health(link, now));
        self.core.path_health(link, health.as_ref());
    }

    /// The path of a link is dead.
    pub(super) fn abandon(&mut self, link: LinkId) {
        if let Some(rail) = self.rails.of_mut(link) {
            rail.abandon(link);
        }
    }

    /// Each of these addresses by each rail that speaks so: nobody knows which peer is behind which interface.
    fn ways_over(&self, address: Option<&Address>) -> Vec<Way> {
        let parts: Vec<(&str, &str)> = address.iter().flat_map(|address| address.parts()).collect();
        let mut ways = Vec::new();
        for (at, &(scheme, rest)) in parts.iter().enumerate() {
            let place = parts[..at].iter().filter(|before| before.0 == scheme).count();
            for (number, (rail, _)) in self.rails.of_scheme(scheme).enumerate() {
                let (scheme, rest) = (scheme.to_string(), rest.to_string());
                ways.push(Way { rail, scheme, rest, is_paired: number == place });
            }
        }
        ways
    }

    /// Tries a rail that shares memory with a peer which has a link already.
    pub(super) fn upgrade(&mut self, peer: PeerId, link: LinkId) {
        let now = self.now();
        if let Some(address) = self.told_address(peer) {
            for (scheme, rest) in address.parts() {
                let mut rails = self.rails.of_scheme(scheme);
                let nearer = rails.find(|(_, rail)| rail.capabilities().same_host_only);
                let Some((index, _)) = nearer else { continue };
                drop(rails);
                if let Ok(better) = self.rails.at(index).connect(rest, now) {
                    return self.core.connecting_upgrade(peer, better);
                }
            }
        }
        self.core.no_upgrade(peer, link);
    }

    /// A peer that was looked up is one that we know already: where that one had called us, it is called
    /// by the address that was looked up from now on.
    pub(super) fn aliased(&mut self, alias: PeerId, peer: PeerId) {
        self.peer_event(PeerEvent::Aliased { alias, peer });
        let Some(address) = self.addresses.address_of(alias).cloned() else { return };
        if self.addresses.address_of(peer).is_none() {
            self.addresses.set(peer, address);
        }
    }

    /// The addresses that a peer told us in its greeting.
    fn told_address(&self, peer: PeerId) -> Option<Address> {
        let text = std::str::from_utf8(self.core.peer_addresses(peer)).ok()?;
        Address::parse(text).ok()
    }
}

/// Whether a rail listens at this address.
fn is_own(rail: &dyn Rail, address: &str) -> bool {
    let address = address.split_once('?').map_or(address, |(address, _)| address);
    rail.addresses().iter().any(|own| own == address.trim_end_matches('/'))
}
