//! Exposures: memory becomes accessible, peers' rails are told, and it ends once nobody holds it.
//!
//! Invariant: a region is given back only after no order, placement or rail holds it.

use ropewalk_base::error::Fault;
use ropewalk_base::memory::Slice;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{LinkId, RemoteKey, Verb};

use super::regions::Region;
use crate::api::*;
use crate::engine::Core;
use crate::path::{CarryingProof, Link, LinkStage};

impl Core {
    /// Makes memory accessible. The key is what a peer needs.
    pub fn expose(
        &mut self,
        slice: Slice,
        writable: bool,
        audience: Audience,
    ) -> Result<RemoteKey, Fault> {
        self.expose_as(slice, Exposing::to(audience, writable)).map(|(key, _)| key)
    }

    /// The same with more terms. Also the name that the region has, if it has one. [`Fault::NameTaken`] where
    /// another region has the name.
    pub fn expose_as(
        &mut self,
        slice: Slice,
        terms: Exposing,
    ) -> Result<(RemoteKey, Option<u64>), Fault> {
        let name = match terms.naming {
            Naming::Nameless => None,
            Naming::Given(name) if self.regions.has_name(name) => return Err(Fault::NameTaken),
            Naming::Given(name) => Some(name),
            Naming::Chosen => Some(self.free_name()),
        };
        let audience = match terms.audience {
            Audience::One(peer) => Audience::One(self.resolve(peer)),
            audience => audience,
        };
        if !self.groups.retain(audience) {
            return Err(Fault::Invalid);
        }
        let key = self.open_region(slice, Exposing { audience, ..terms }, name, None);
        if key.is_err() {
            self.groups.release(audience);
        }
        Ok((key?, name))
    }

    /// A name that no region has.
    fn free_name(&mut self) -> u64 {
        loop {
            let name = self.random.next_u64();
            if !self.regions.has_name(name) {
                return name;
            }
        }
    }

    fn open_region(
        &mut self,
        slice: Slice,
        terms: Exposing,
        name: Option<u64>,
        owner: Option<OperationId>,
    ) -> Result<RemoteKey, Fault> {
        let Exposing { writable, audience, events, counts, .. } = terms;
        let secret = self.random.next_u64();
        let region = Region {
            secret,
            slice,
            writable,
            audience,
            name,
            events,
            counts,
            owner,
            closing: false,
            retained: 0,
            streams: 0,
            exposed: self.regions.take_list(),
        };
        let slot = self.regions.insert(region).map_err(|_| Fault::Busy)?;
        self.counters.regions_opened += 1;
        let key = RemoteKey { slot, secret };
        self.expose_to(audience, key);
        Ok(key)
    }

    /// The one-shot region of an announced send.
    pub(crate) fn expose_for(
        &mut self,
        peer: PeerId,
        slice: Slice,
        owner: OperationId,
    ) -> Option<RemoteKey> {
        let terms = Exposing::to(Audience::One(peer), false);
        let key = self.open_region(slice, terms, None, Some(owner)).ok()?;
        self.retain_memory(owner);
        Some(key)
    }

    pub(super) fn is_native(&self, link: LinkId) -> bool {
        [Direction::Get, Direction::Put].iter().any(|it| self.rails.does(link, *it))
    }

    /// Tells of a region on the links with native access whose peers may use it: those that carry a
    /// session, and those whose peers we have greeted already, or to which we have proven that we belong to their session: they
    /// may use a link before we hear their answer.
    fn expose_to(&mut self, audience: Audience, key: RemoteKey) {
        let joining = match audience {
            Audience::One(peer) => self.joining_link(peer),
            Audience::Everybody | Audience::Group(_) => None,
        };
        if let Some(link) = joining {
            self.expose_on(link, key);
        }
        if let Audience::One(peer) = audience
            && let Some(session) = self.peers.session(peer).filter(|it| it.paths.is_up())
            && session.paths.links().count() == self.links.count_of_peer(peer)
        {
            // The way of nearly every announced message: no list of links is made.
            let link_at = |core: &Core, at| core.peers.session(peer)?.paths.links().nth(at);
            let mut at = 0;
            while let Some(link) = link_at(self, at) {
                self.expose_on(link, key);
                at += 1;
            }
            return;
        }
        let greeted = |state: &Link| {
            let proves = state.proof == CarryingProof::Demanded && state.trust.is_some();
            let agreed = state.stage == LinkStage::Agreed && !state.outbound && !proves;
            (state.peer.is_some() && (agreed || state.stage == LinkStage::Up)) || state.is_proven()
        };
        let links = match audience {
            Audience::One(peer) => self.links.of_peer(peer),
            Audience::Everybody | Audience::Group(_)
                if self.rails.iter().any(|rail| rail.native_read) =>
            {
                let mut links: Vec<LinkId> = self.links.iter().map(|(link, _)| link).collect();
                links.sort_unstable();
                links
            }
            Audience::Everybody | Audience::Group(_) => return,
        };
        for link in links {
            let state = self.links.get(link).filter(|state| greeted(state));
            let peer = state.and_then(|state| state.peer.or(state.joins));
            if peer.is_some_and(|peer| self.is_among(self.resolve(peer), audience)) {
                self.expose_on(link, key);
            }
        }
    }

    /// A link of ours that is about to join the session with a peer, and that the peer may use already.
    fn joining_link(&self, peer: PeerId) -> Option<LinkId> {
        let link = self.peers.session(peer)?.bundle()?.attempt_link()?;
        self.links.get(link)?.is_proven().then_some(link)
    }

    fn expose_on(&mut self, link: LinkId, key: RemoteKey) {
        if !self.is_native(link) {
            return;
        }
        let region = self.regions.get_mut(key.slot);
        let Some(region) = region.filter(|region| !region.counts) else { return };
        region.exposed.push(link);
        let (region, writable) = (region.slice, region.writable);
        let verb = Verb::Expose { link, key, region, writable };
        self.outputs.push(Output::Verb(verb));
    }

    /// A session began: regions that its peer may use are told to its rail.
    pub(crate) fn expose_existing(&mut self, id: PeerId, link: LinkId) {
        if !self.is_native(link) {
            return;
        }
        for slot in self.regions.open_to(id) {
            if let Some(region) = self.regions.get(slot).filter(|region| !region.closing)
                && self.is_among(id, region.audience)
            {
                self.expose_on(link, RemoteKey { slot, secret: region.secret });
            }
        }
    }

    /// Ends a region; `Unexposed` tells when nobody holds it any more.
    pub fn unexpose(&mut self, key: RemoteKey) -> Result<(), Fault> {
        match self.regions.get(key.slot) {
            Some(region) if region.secret == key.secret && !region.closing => {
                self.close_region(key.slot);
                // A peer will soon acknowledge its pending frames: a copy of them each time would be in vain.
                self.take_region_back(key.slot, false);
                Ok(())
            }
            _ => Err(Fault::BadKey),
        }
    }

    pub(crate) fn close_region(&mut self, slot: SlotId) {
        let Some(region) = self.regions.get_mut(slot) else { return };
        if region.closing {
            return;
        }
        region.closing = true;
        let (secret, has_name) = (region.secret, region.name.is_some());
        if has_name {
            self.regions.free_name(slot);
        }
        let Some(region) = self.regions.get_mut(slot) else { return };
        let key = RemoteKey { slot, secret };
        for &link in &region.exposed {
            self.outputs.push(Output::Verb(Verb::Revoke { link, key }));
        }
        self.drop_streams_of(slot);
        self.end_lock(slot);
        self.try_end_region(slot);
    }

    /// A rail confirms that nobody uses the region over this link any more.
    pub fn revoked(&mut self, link: LinkId, key: RemoteKey) {
        if let Some(region) = self.regions.get_mut(key.slot) {
            region.exposed.retain(|other| *other != link);
        }
        self.try_end_region(key.slot);
    }

    /// A link is gone, and with it what its rail held.
    pub(crate) fn revoked_by_loss(&mut self, link: LinkId, peer: Option<PeerId>) {
        let Some(peer) = peer.filter(|_| self.is_native(link)) else { return };
        for slot in self.regions.open_to(peer) {
            let Some(region) = self.regions.get_mut(slot) else { continue };
            if region.exposed.contains(&link) {
                region.exposed.retain(|other| *other != link);
                self.try_end_region(slot);
            }
        }
    }

    pub(crate) fn release_region(&mut self, slot: SlotId) {
        if let Some(region) = self.regions.get_mut(slot) {
            assert!(region.retained > 0, "a rail lets go of what it held");
            region.retained -= 1;
        }
        self.try_end_region(slot);
    }

    fn try_end_region(&mut self, slot: SlotId) {
        let over = self.regions.get(slot).is_some_and(|region| {
            region.closing && region.retained == 0 && region.exposed.is_empty()
        });
        if !over {
            return;
        }
        let Some(region) = self.regions.remove(slot) else { return };
        self.regions.give_list(region.exposed);
        match region.owner {
            Some(operation) => self.release_memory(operation),
            None => {
                self.groups.release(region.audience);
                let key = RemoteKey { slot, secret: region.secret };
                self.outputs.push(Output::Unexposed { key });
            }
        }
    }
}
