//! What operators see of paths, with the names of rails and peers.

use ropewalk_base::ids::EndpointId;
use ropewalk_base::time::Time;
use ropewalk_core::{HistoryEvent, PathStatus, PeerId};

use super::Engine;
use crate::path_status::{PathEventView, PathView, PeerName, RailName};

impl Engine {
    /// A path as it is now.
    pub fn path_view(&mut self, status: PathStatus, now: Time) -> PathView {
        let PathStatus { peer, endpoint, rail, link, way, .. } = status;
        let remote = link.and_then(|link| self.rails.of(link)?.peer_host(link));
        let remote = remote.or_else(|| self.host_by_way(peer, way?));
        let health = link.and_then(|link| self.rails.of_mut(link)?.health(link, now));
        let (peer, rail) = (self.peer_name(peer, endpoint), self.rail_name(rail));
        PathView { peer, rail, remote, health, status }
    }

    pub fn event_view(&self, event: HistoryEvent) -> PathEventView {
        let HistoryEvent { number, at, peer, endpoint, path, rail, change } = event;
        let (peer, rail) = (self.peer_name(peer, endpoint), self.rail_name(rail));
        PathEventView { number, at, peer, path, rail, change }
    }

    fn peer_name(&self, peer: PeerId, endpoint: u128) -> PeerName {
        let looked_up = self.addresses.address_of(peer).map(ToString::to_string);
        let told = || {
            let told = std::str::from_utf8(self.core.peer_addresses(peer)).ok()?;
            (!told.is_empty()).then(|| told.to_string())
        };
        // Its record may be another peer's by now.
        let is_same = self.core.peer_endpoint(peer) == Some(endpoint);
        let address = if is_same { looked_up.or_else(told) } else { None };
        PeerName { peer, endpoint: EndpointId(endpoint), address }
    }

    pub(crate) fn rail_name(&self, index: u8) -> RailName {
        let rail = self.rails.iter().nth(index.into());
        let bound = rail.and_then(|rail| rail.bound_to()).unwrap_or_default();
        let setting = |name: &str| {
            let mut settings = bound.split('&').filter_map(|setting| setting.split_once('='));
            settings.find(|(key, _)| *key == name).map(|(_, value)| value.to_string())
        };
        RailName {
            index,
            scheme: rail.map_or("?", |rail| rail.scheme()),
            interface: setting("interface"),
            source: setting("source"),
            entropy: rail.map(|rail| rail.entropy()).filter(|port| *port > 0),
            address: rail.and_then(|rail| rail.addresses().into_iter().next()),
        }
    }
}
