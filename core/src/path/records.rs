//! Records of peers: looked up, learnt from a call, forgotten; what is known of a peer.

use ropewalk_auth::Untrusted;
use ropewalk_base::error::Fault;
use ropewalk_base::ids::{ClusterId, EndpointId, Origin};
use ropewalk_base::verb::LinkId;

use super::{Link, LinkStage, evictable};
use crate::api::{PeerId, *};
use crate::credit::Granted;
use crate::engine::Core;
use crate::session::{NewSession, PeerKind, SessionId};

impl Core {
    /// Adds a peer; `reachable`: the driver has an address for it.
    pub fn add_peer(&mut self, reachable: bool) -> Result<PeerId, Fault> {
        self.peers.add(reachable).ok_or(Fault::Busy)
    }

    /// Forgets a peer: its operations end as cancelled, its link is closed.
    pub fn forget_peer(&mut self, id: PeerId) {
        let id = self.resolve(id);
        // All of its names go: none stands for itself afterwards.
        let names = self.peers.get_mut(id).map(|peer| std::mem::take(&mut peer.names.aliases));
        for name in names.into_iter().flatten() {
            self.drop_record(name);
        }
        self.end_session(id, Fault::Cancelled);
        // Also receives from one that never came.
        self.fail_operations(id, Fault::Cancelled, true, None);
        for link in self.links.of_peer(id) {
            self.close_link(link);
        }
        self.remove_record(id);
    }

    /// Takes a peer that has no other names out of the tables, with the messages of it that wait.
    pub(super) fn remove_record(&mut self, id: PeerId) {
        self.drop_messages_of(id, Fault::Cancelled);
        self.drop_record(id);
    }

    /// Takes a record out of all tables, a peer's or that of another name of it.
    pub(super) fn drop_record(&mut self, id: PeerId) {
        let Some(mut peer) = self.peers.remove(id) else { return };
        self.timers.stop(id, &mut peer.timer);
        self.evictable.remove(id, peer.eviction);
    }

    /// The record of an endpoint that connected to us; a new one where it is unknown.
    pub(crate) fn peer_of(&mut self, endpoint: u128) -> Option<PeerId> {
        if let Some(id) = self.peers.of_endpoint(endpoint) {
            return Some(id);
        }
        if self.peers.is_full() {
            self.evict_peer();
        }
        let id = self.peers.add_caller(endpoint)?;
        self.evictable.add_caller(id, &mut self.peers);
        Some(id)
    }

    /// Makes room among the peers: forgets one that called us, has gone, and concerns nobody here; the first to go
    /// comes first. Looks at a few only: a caller that finds no room calls again.
    fn evict_peer(&mut self) {
        for _ in 0..evictable::LOOKS {
            let Some(id) = self.evictable.next_caller(&mut self.peers) else { break };
            let Some(peer) = self.peers.get(id) else { continue };
            if peer.reachable || peer.session.is_some() || !self.links.of_peer(id).is_empty() {
                // It is noted again at the end of that session or link.
                continue;
            }
            if self.operations.is_free(id) {
                return self.forget_peer(id);
            }
            self.evictable.add_caller(id, &mut self.peers);
        }
        if let Some(id) = self.end_oldest_idle() {
            self.forget_peer(id);
        }
    }

    /// Finds out whether a peer that answered is one that we know under another address.
    pub(crate) fn identify(&mut self, asked: PeerId, endpoint: u128) -> PeerId {
        let known = self.peers.of_endpoint(endpoint);
        if known == Some(asked) {
            return asked;
        }
        self.leave_endpoint(asked);
        if self.has_ended(asked)
            && let Some(other) = self.peer_of(endpoint)
        {
            // Nobody wants it under the name of one that had called us once.
            return other;
        }
        match known {
            Some(known) => {
                self.alias(asked, known);
                known
            }
            None => {
                self.peers.assign(endpoint, asked);
                asked
            }
        }
    }

    /// Another endpoint than the one that a record stood for, if any, answers at its address now. What was posted after
    /// the end of the old one's session is for whoever answers.
    pub(crate) fn leave_endpoint(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get(id) else { return };
        let endpoint = peer.identity.endpoint;
        let links = peer.session.iter().flat_map(|session| session.paths.links());
        let links: Vec<LinkId> = links.collect();
        self.peers.forget_endpoint(endpoint);
        if self.peers.session(id).is_some() {
            self.replace_session(id);
        }
        // The old one learns that its session is over, and calls again where it was about to begin one.
        for other in self.links.of_peer(id) {
            let hello = self.links.get(other).and_then(|state| state.hello);
            let greeted = hello.is_some_and(|it| u128::from_le_bytes(it.endpoint) == endpoint);
            if greeted || links.contains(&other) {
                self.close_link(other);
            }
        }
    }

    /// The peer that is this endpoint itself, with its session.
    pub fn own_peer(&mut self) -> Result<PeerId, Fault> {
        if let Some(own) = self.peers.of_endpoint(self.identity.endpoint.0) {
            return Ok(own);
        }
        let own = self.add_peer(true)?;
        self.begin_loop(own);
        Ok(own)
    }

    /// The peer that is being connected to is this endpoint itself.
    pub fn connect_to_itself(&mut self, peer: PeerId) {
        self.begin_loop(self.resolve(peer));
    }

    /// An endpoint talks to itself: a session whose frames the driver hands back to us.
    pub(crate) fn begin_loop(&mut self, asked: PeerId) {
        if !self.are_wanted(asked) {
            self.note_untrusted(Untrusted::OtherNode);
            return self.end_session(asked, Fault::Untrusted);
        }
        let own = self.identity.endpoint.0;
        let id = match self.peers.of_endpoint(own) {
            Some(id) if id == asked => id,
            known => {
                self.leave_endpoint(asked);
                if self.has_ended(asked) {
                    // Nobody wants it under the name of one that had called us once.
                    return;
                }
                if let Some(id) = known {
                    return self.alias(asked, id);
                }
                self.peers.assign(own, asked);
                asked
            }
        };
        if self.peers.session(id).is_some() {
            // Found out over a second address.
            return;
        }
        if let Some(peer) = self.peers.get_mut(id) {
            peer.identity.incarnation = self.identity.incarnation;
        }
        let nonce = self.random.next_u64() as u32;
        let windows = self.first_windows().unwrap_or(self.least_windows());
        self.links.insert(LOOP_LINK, Link { stage: LinkStage::Up, ..Link::new(Some(id), nonce) });
        let granted = Granted::begin(windows, u64::from(self.config.rts_window));
        self.make_session(
            id,
            NewSession {
                id: SessionId::own(nonce),
                kind: PeerKind::Ours,
                link: LOOP_LINK,
                granted,
                windows,
                spans: false,
                outlives_links: false,
            },
        );
        self.begin_lengths(id);
        self.pump(id);
    }

    /// The address list that the peer told.
    pub fn peer_addresses(&self, id: PeerId) -> &[u8] {
        self.peers.get(self.resolve(id)).map_or(&[], |peer| &peer.identity.addresses)
    }

    /// The address list that a peer told over a link on which both sides have greeted, and which carries no session yet.
    pub fn addresses_over(&self, link: LinkId) -> &[u8] {
        let told = self.links.get(link).and_then(|link| link.told.as_deref());
        told.map_or(&[], |told| &told.0)
    }

    /// The peer's endpoint, where it greeted us.
    pub fn peer_endpoint(&self, id: PeerId) -> Option<u128> {
        let endpoint = self.peers.get(self.resolve(id))?.identity.endpoint;
        (endpoint != 0).then_some(endpoint)
    }

    /// The peer's life, where it greeted us.
    pub fn peer_origin(&self, id: PeerId) -> Option<Origin> {
        let peer = self.peers.get(self.resolve(id))?;
        let origin = Origin {
            endpoint: EndpointId(peer.identity.endpoint),
            incarnation: peer.identity.incarnation,
        };
        (peer.identity.endpoint != 0).then_some(origin)
    }

    /// The cluster of this endpoint; 0: it was told none, and has joined none.
    pub fn cluster(&self) -> ClusterId {
        self.identity.cluster
    }

    /// This endpoint, where it has no cluster, belongs to that of the peer from now on: strangers who answer
    /// at its peers' addresses are refused. The cluster that it belongs to then.
    pub fn join_cluster_of(&mut self, id: PeerId) -> ClusterId {
        if self.identity.cluster.0 == 0
            && let Some(peer) = self.peers.get(self.resolve(id))
        {
            self.identity.cluster = ClusterId(peer.identity.cluster);
        }
        self.identity.cluster
    }

    /// The cluster of a stranger who answered at the peer's address.
    pub fn peer_stranger(&self, id: PeerId) -> Option<u128> {
        self.peers.get(self.resolve(id))?.identity.other_cluster()
    }

    /// Whether a session with the peer runs.
    pub fn is_up(&self, id: PeerId) -> bool {
        self.peers.get(self.resolve(id)).is_some_and(|peer| peer.link().is_some())
    }

    /// The link that carries the session with the peer, or the first one of several.
    pub fn peer_link(&self, id: PeerId) -> Option<LinkId> {
        self.peers.get(self.resolve(id))?.link()
    }
}
