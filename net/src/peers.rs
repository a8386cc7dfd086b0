//! Peers of an endpoint: their look-up, and the facts known about them.

use ropewalk_base::error::Fault;
use ropewalk_base::ids::{ClusterId, EndpointId, Origin};
use ropewalk_base::verb::LinkId;
use ropewalk_core::{Channel, PeerId};
use ropewalk_rail::Owner;
use ropewalk_rail::address::Address;

use crate::context::Context;
use crate::endpoint::Endpoint;
use crate::engine::{News, PeerEvent};

/// The user whose process a peer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerUser {
    /// Nobody vouches for users there: it is on another host, or its rail cannot ask the kernel.
    Unknown,
    /// It may be on this host, and the kernel does not say whose it is.
    Untold,
    /// There is no link to it now.
    Gone,
    /// The superuser's, or of the user of this process: it could do anything here.
    Own,
    /// Another user's of this host.
    Other(u32),
}

impl Endpoint {
    /// A peer for an address. No connection is made before something is posted. Where the address names a node, no other one is
    /// let in: operations with it end as [`Fault::Untrusted`].
    pub fn lookup(&self, address: &Address) -> Result<PeerId, Fault> {
        self.reach_by_need(address);
        let mut engine = self.locked();
        let peer = engine.add_peer(address.clone());
        engine.drain();
        peer
    }

    /// The peer that is this endpoint itself: messages to it touch no rail.
    pub fn own_peer(&self) -> Result<PeerId, Fault> {
        let mut engine = self.locked();
        let peer = engine.core.own_peer();
        engine.drain();
        peer
    }

    /// Whether a session with the peer runs, and over which rail.
    pub fn peer_rail(&self, peer: PeerId) -> Option<&'static str> {
        let engine = self.locked();
        let link: LinkId = engine.core.peer_link(peer)?;
        engine.rails.of(link).map_or(Some("loop"), |rail| Some(rail.scheme()))
    }

    /// Makes sure that a peer is being connected to: `PeerEvent::Up` or `Down` says how that ended, where it is
    /// not up.
    pub fn connect(&self, peer: PeerId) {
        let mut engine = self.locked();
        engine.core.want_session(peer);
        engine.drain();
    }

    /// The host that a peer is connected from or to, without a port; `None` where there is no session,
    /// or its rail knows no hosts.
    pub fn peer_host(&self, peer: PeerId) -> Option<String> {
        let engine = self.locked();
        let link: LinkId = engine.core.peer_link(peer)?;
        engine.rails.of(link)?.peer_host(link)
    }

    /// The scheme of the rail over which a peer is connected; `None` where there is no session.
    pub fn peer_scheme(&self, peer: PeerId) -> Option<&'static str> {
        let engine = self.locked();
        let link: LinkId = engine.core.peer_link(peer)?;
        Some(engine.rails.of(link)?.scheme())
    }

    /// The user whose process the peer is, as far as the kernel vouches for it. May ask the kernel: not for hot
    /// paths.
    pub fn peer_user(&self, peer: PeerId) -> PeerUser {
        let own = rustix::process::geteuid().as_raw();
        let engine = self.locked();
        let Some(link) = engine.core.peer_link(peer) else { return PeerUser::Gone };
        let owner = match engine.rails.of(link) {
            Some(rail) => rail.peer_owner(link),
            // An endpoint's link to itself.
            None => Owner::User(own),
        };
        match owner {
            Owner::Unknown => PeerUser::Unknown,
            Owner::Untold => PeerUser::Untold,
            Owner::User(user) if user == 0 || user == own => PeerUser::Own,
            Owner::User(user) => PeerUser::Other(user),
        }
    }

    /// Whether a peer is known: looked up or connected, and not forgotten.
    pub fn is_known(&self, peer: PeerId) -> bool {
        self.locked().core.is_known(peer)
    }

    /// The peer's own endpoint id, once it greeted us.
    pub fn peer_endpoint(&self, peer: PeerId) -> Option<EndpointId> {
        self.locked().core.peer_endpoint(peer).map(EndpointId)
    }

    /// The node that a peer has proven to be, where both sides have keys and its keys have a name.
    pub fn peer_node(&self, peer: PeerId) -> Option<String> {
        self.locked().core.peer_node(peer).map(|node| node.as_str().to_string())
    }

    /// The origin of the peer, its endpoint and incarnation, once it has greeted us.
    pub fn peer_origin(&self, peer: PeerId) -> Option<Origin> {
        self.locked().core.peer_origin(peer)
    }

    /// Makes this endpoint a member of the peer's cluster, if it got none when it was opened. From now on endpoints
    /// of another cluster that answer at an address of a peer are refused. The peer must have answered once. Returns
    /// the cluster to which this endpoint then belongs.
    pub fn join_cluster_of(&self, peer: PeerId) -> ClusterId {
        self.locked().core.join_cluster_of(peer)
    }

    /// The cluster of the endpoint that answered at the peer's address, if it is not ours.
    pub fn stranger(&self, peer: PeerId) -> Option<ClusterId> {
        self.locked().core.peer_stranger(peer).map(ClusterId)
    }

    /// Whether both are the same endpoint.
    pub fn same_peer(&self, a: PeerId, b: PeerId) -> bool {
        let engine = self.locked();
        engine.core.resolve(a) == engine.core.resolve(b)
    }

    /// The peer that this one stands for, if it is an alias.
    pub fn resolve(&self, peer: PeerId) -> PeerId {
        self.locked().core.resolve(peer)
    }

    /// Forgets a peer: its operations end as cancelled.
    pub fn forget(&self, peer: PeerId) {
        let mut engine = self.locked();
        engine.core.forget_peer(peer);
        engine.drain();
    }

    /// All names of a peer, the one that it has in completions and requests first.
    pub fn names_of(&self, peer: PeerId) -> Vec<PeerId> {
        self.locked().core.names_of(peer)
    }

    /// Forgets one of several names of a peer: operations that were posted under it end as cancelled, all
    /// others and the session go on.
    pub fn forget_name(&self, name: PeerId) {
        let mut engine = self.locked();
        engine.core.forget_name(name);
        engine.drain();
    }

    /// Whether nothing can ever be posted under this name again: it is not known, or its session was the only
    /// one that it stands for ([`Config::separate_sessions`]).
    ///
    /// [`Config::separate_sessions`]: ropewalk_core::Config::separate_sessions
    pub fn is_over(&self, name: PeerId) -> bool {
        self.locked().core.is_over(name)
    }

    /// From now on messages to the peer on this channel go over two of its paths at once, and the first copy that is whole
    /// counts: a path that hangs, loses or is cut costs such a message nothing while another one is well. They take
    /// twice the bytes of the network. Where there is one path they go over that one. It stays so for all sessions
    /// with the peer, under each of its names, until it is taken back.
    ///
    /// A message that is announced, since it is too long to leave at once, is announced over two paths. Its bytes are read
    /// once: what a broken path had of them is read over another one, after its time-out.
    pub fn set_redundant(&self, peer: PeerId, channel: Channel, redundant: bool) {
        self.locked().core.set_redundant(peer, channel, redundant);
    }

    /// The next change of a peer's session.
    pub fn next_event(&self) -> Option<PeerEvent> {
        self.locked().peer_events.pop()
    }

    /// The number of session changes so far. A caller that has seen them all need not ask for events.
    pub fn event_count(&self) -> u64 {
        self.shared.signals.peer_events()
    }

    /// From now on this context is rung when sessions change.
    pub fn tell_of_events(&self, context: &Context) {
        self.locked().contexts.tell_of(News::PeerEvents, &context.queue);
    }
}
