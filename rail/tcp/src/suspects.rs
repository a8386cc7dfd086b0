//! Links whose path is suspect, since the local side of all of them has changed.

use std::net::IpAddr;

use ropewalk_base::health::Suspicion;
use ropewalk_base::slots::SlotId;
use ropewalk_rail::Report;
use ropewalk_rail::interfaces::Change;

use crate::rail::TcpRail;
use crate::socket;

impl TcpRail {
    /// Tells of the links that are suspect after a change of the local side; true where there are any.
    #[cold]
    pub(crate) fn suspect_all(&mut self, change: &Change, report: &mut dyn Report) -> bool {
        let mut any = false;
        if let Some(cause) = change.suspicion {
            for (slot, _) in self.links.iter().filter(|(_, link)| link.was_up()) {
                report.suspect(self.id(slot), cause);
                any = true;
            }
        }
        if change.may_lack_routes {
            for slot in self.newly_routeless() {
                report.suspect(self.id(slot), Suspicion::RouteGone);
                any = true;
            }
        }
        any
    }

    /// Links whose peers have no route any more. The kernel is asked once for each peer.
    fn newly_routeless(&mut self) -> Vec<SlotId> {
        let mut asked: Vec<(IpAddr, bool)> = Vec::new();
        let mut newly = Vec::new();
        let local = &self.config.local;
        for (slot, link) in self.links.iter_mut().filter(|(_, link)| link.was_up()) {
            let Some(peer) = link.socket().and_then(socket::peer_ip) else { continue };
            let known = asked.iter().find(|(other, _)| *other == peer);
            let reached = known.map_or_else(|| local.reaches(peer), |(_, reached)| *reached);
            if known.is_none() {
                asked.push((peer, reached));
            }
            if !std::mem::replace(&mut link.lacks_route, !reached) && !reached {
                newly.push(slot);
            }
        }
        newly
    }
}
