//! Links to peers: the engine finds an address and a rail that speaks its scheme.

use std::net::SocketAddr;

use ropewalk_auth::NodeName;
use ropewalk_base::error::Fault;
use ropewalk_base::verb::LinkId;
use ropewalk_core::{Called, PeerId};
use ropewalk_rail::Rail;
use ropewalk_rail::address::Address;

use crate::engine::{Engine, PeerEvent};

/// A rail, and an address that it can call.
struct Way {
    /// The place of the address in its list.
    place: usize,
    rail: usize,
    scheme: String,
    rest: String,
    /// The rail is the one by which the kernel would call the address, as far as that is known. Else it has the place
    /// among those of its scheme that the address has.
    is_paired: bool,
    /// The rail is bound to no interface, and others of its scheme are.
    is_loose: bool,
    /// See [`Called::is_told`].
    is_told: bool,
}

impl Way {
    fn is_same(&self, other: &Way) -> bool {
        (self.rail, &self.rest) == (other.rail, &other.rest)
    }
}

impl Engine {
    /// A peer for these addresses. While it is unknown who answers there, all who look them up get names
    /// of one peer: under several their messages would go in the order in which the peers are found.
    pub fn add_peer(&mut self, address: Address) -> Result<PeerId, Fault> {
        let core = &self.core;
        let node = address.node().map(NodeName::new).transpose().map_err(|_| Fault::Invalid)?;
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
        if let Some(node) = node {
            self.core.want_node(peer, node);
        }
        self.addresses.set(peer, address);
        Ok(peer)
    }

    /// Tries the ways to a peer from this attempt on, until one can at least be tried.
    pub(super) fn connect(&mut self, peer: PeerId, attempt: u32) {
        let now = self.now();
        let ways = self.ways_to(peer);
        let is_alone = ways.len() < 2;
        for (number, way) in ways.into_iter().enumerate().skip(attempt as usize) {
            let Way { rail, scheme, rest, is_told, .. } = way;
            if self.rails.of_scheme(&scheme).any(|(_, rail)| is_own(rail, &rest)) {
                // Not every network brings back packets that are sent to oneself.
                return self.core.connect_to_itself(peer);
            }
            let called = Called { way: number as u32, is_alone, is_told };
            match self.rails.at(rail).connect(&rest, now) {
                Ok(link) => return self.core.connecting(peer, link, called),
                Err(Fault::Busy) => self.core.crowded(peer),
                Err(_) => {}
            }
        }
        self.core.unreachable(peer);
    }

    /// The ways to a peer: where it was looked up, and where it says that it is, if nobody looked it up or its session
    /// looks for a link. Each address is called first by the rail that most likely reaches it.
    fn ways_to(&mut self, peer: PeerId) -> Vec<Way> {
        let looked_up = self.addresses.address_of(peer).cloned();
        let told = self.told_address(peer);
        let told = told.filter(|_| looked_up.is_none() || self.core.has_lost_paths(peer));
        let mut ways = Vec::new();
        for (address, is_more) in [(&looked_up, false), (&told, looked_up.is_some())] {
            let mut more = self.ways_over(address.as_ref());
            more.sort_by_key(|way| (way.place, way.is_loose, !way.is_paired));
            more.iter_mut().for_each(|way| way.is_told = is_more);
            more.retain(|way| {
                let is_known = ways.iter().any(|other: &Way| other.is_same(way));
                // A host's own addresses are no other host's.
                let mut at_home = || {
                    let rail = self.rails.at(way.rail);
                    rail.capabilities().same_host_only || is_own(rail, &way.rest)
                };
                !(is_known || is_more && at_home())
            });
            ways.append(&mut more);
        }
        ways
    }

    /// Tries to add a path to the session with a peer: each way in turn whose rail carries none.
    pub(super) fn join(&mut self, peer: PeerId, attempt: u32, rails: u64) {
        let now = self.now();
        let ways = self.ways_to_join(peer);
        let ways = ways.into_iter().enumerate().skip(attempt as usize);
        for (index, Way { rail, rest, .. }) in ways {
            let capabilities = self.rails.at(rail).capabilities();
            if is_among(rails, rail) || capabilities.same_host_only || capabilities.foreign {
                continue;
            }
            match self.rails.at(rail).connect(&rest, now) {
                Ok(link) => return self.core.joining(peer, link, index as u32),
                Err(_) => self.core.not_called(peer, rail as u8, index as u32),
            }
        }
        self.core.no_way_to_join(peer);
    }

    /// The ways by which paths are added to the session with a peer.
    fn ways_to_join(&mut self, peer: PeerId) -> Vec<Way> {
        // It knows its own addresses best, also those that nobody looked up.
        let address = self.told_address(peer).or_else(|| self.addresses.address_of(peer).cloned());
        let mut ways = self.ways_over(address.as_ref());
        // Most likely the first rail reaches the first address, the second one the second.
        ways.sort_by_key(|way| (way.is_loose, !way.is_paired));
        ways
    }

    /// The host at the other end of the way of this number.
    pub(super) fn host_by_way(&mut self, peer: PeerId, way: u32) -> Option<String> {
        let way = self.ways_to_join(peer).into_iter().nth(way as usize)?;
        let (address, _) = way.rest.split_once('?').unwrap_or((&way.rest, ""));
        let address = address.trim_end_matches('/');
        let host = address.parse::<SocketAddr>().map(|socket| socket.ip().to_string());
        Some(host.unwrap_or_else(|_| address.to_string()))
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

    /// The core asks what the rail of a link has counted.
    pub(super) fn measure(&mut self, link: LinkId) {
        let now = self.now();
        let health = self.rails.of_mut(link).and_then(|rail| rail.health(link, now));
        self.core.path_measured(link, health.as_ref());
    }

    /// The path of a link is dead.
    pub(super) fn abandon(&mut self, link: LinkId) {
        if let Some(rail) = self.rails.of_mut(link) {
            rail.abandon(link);
        }
    }

    /// Each of these addresses by each rail that speaks so: nobody knows which peer is behind which interface.
    fn ways_over(&mut self, address: Option<&Address>) -> Vec<Way> {
        let parts: Vec<(&str, &str)> = address.iter().flat_map(|address| address.parts()).collect();
        let mut ways = Vec::new();
        let (now, Engine { rails, routes, .. }) = (self.now(), self);
        for (at, &(scheme, rest)) in parts.iter().enumerate() {
            let place = parts[..at].iter().filter(|before| before.0 == scheme).count();
            let are_bound = rails.of_scheme(scheme).any(|(_, rail)| rail.bound_to().is_some());
            for (number, (rail, it)) in rails.of_scheme(scheme).enumerate() {
                let (scheme, rest) = (scheme.to_string(), rest.to_string());
                let bound = it.bound_to();
                let is_loose = are_bound && bound.is_none();
                let leads = bound.and_then(|bound| routes.lead_by(&bound, &rest, now));
                let is_paired = leads.unwrap_or(number == place);
                ways.push(Way {
                    place: at,
                    rail,
                    scheme,
                    rest,
                    is_paired,
                    is_loose,
                    is_told: false,
                });
            }
        }
        ways
    }

    /// Tries a rail that shares memory with a peer which has a link already.
    pub(super) fn upgrade(&mut self, peer: PeerId, link: LinkId) {
        let now = self.now();
        let told = std::str::from_utf8(self.core.addresses_over(link)).ok();
        if let Some(address) = told.and_then(|text| Address::parse(text).ok()) {
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

/// Whether a set of rails, one a bit, has this one. It says nothing of those from the 64th on: they carry no further paths.
fn is_among(rails: u64, rail: usize) -> bool {
    u32::try_from(rail).ok().and_then(|rail| rails.checked_shr(rail)).is_none_or(|it| it & 1 == 1)
}

/// Whether a rail listens at this address.
fn is_own(rail: &dyn Rail, address: &str) -> bool {
    let address = address.split_once('?').map_or(address, |(address, _)| address);
    rail.addresses().iter().any(|own| own == address.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::is_among;

    #[test]
    fn a_rail_beyond_the_set_counts_as_used() {
        assert!(is_among(1 << 63 | 4, 63) && is_among(4, 2) && !is_among(4, 1) && !is_among(4, 63));
        assert!(is_among(0, 64) && is_among(0, 255));
    }
}
