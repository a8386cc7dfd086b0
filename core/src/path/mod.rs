//! Peers, links and sessions: how endpoints find each other and what holds between them.
//!
//! A *link* is one connection of one rail. A *session* is what two lives of two endpoints agree on
//! when a link is confirmed: message numbers, credits and keys belong to it. In mode `Fail` it ends
//! with its link, unless both sides closed it as idle; in mode `Resume` it goes on over the next link.

mod answers;
mod arming;
mod calls;
mod carrying;
mod closing;
mod connecting;
mod evictable;
mod handshake;
mod idle;
mod joining;
mod links;
mod migrating;
mod names;
mod newcomers;
mod peers;
mod proving;
mod records;
mod resting;
mod revoking;
mod routes;
mod sealing;
mod timers;
mod trusting;
mod unconfirmed;
mod waking;

pub(crate) use carrying::CarryingProof;
pub(crate) use evictable::Evictable;
pub(crate) use links::Links;
pub(crate) use migrating::PathRequests;
pub use migrating::PathState;
pub(crate) use names::{Name, Names};
pub(crate) use newcomers::Newcomers;
pub(crate) use peers::Peers;
pub(crate) use routes::{RouteNews, Routes};
pub(crate) use sealing::Protection;
pub(crate) use timers::Timers;
pub(crate) use trusting::Trust;
pub(crate) use waking::Waking;

pub(crate) use calls::CallStage;

use calls::Calls;
use evictable::EvictionMarks;
use timers::PeerTimer;
use trusting::{LinkTrust, ProvenNode};

use ropewalk_auth::{NodeName, Standing};
use ropewalk_base::ids::Incarnation;
use ropewalk_base::time::Time;
use ropewalk_base::verb::LinkId;
use ropewalk_wire::frame::{FLAG_JOIN, HelloBody};

use crate::api::{CHANNELS, PeerId};
use crate::credit::Windows;
use crate::lists::List;
use crate::reliable::RedundantChannels;
use unconfirmed::Unconfirmed;

use crate::session::{PathId, Session, SessionId};
use crate::streams::Throttled;

/// A connection.
#[derive(Debug)]
pub(crate) struct Link {
    /// Known from the beginning on links that we began, from `Hello` on accepted ones.
    pub peer: Option<PeerId>,
    /// The peer whose session it is to join, until it has.
    pub joins: Option<PeerId>,
    /// The path that it is to be, where we have proven ourselves: the peer's welcome is awaited.
    pub proven: Option<PathId>,
    /// The peer's rail, if it told that: on links that joined.
    pub their_rail: Option<u8>,
    /// The source port that the user of the calling side chose, or 0.
    pub entropy: u16,
    pub outbound: bool,
    /// Another endpoint that answers is not the peer: see [`crate::Called::is_told`]. So it is by each of several ways to a peer
    /// whose session has lost its links.
    pub is_told: bool,
    pub upgrade: bool,
    pub insist: bool,
    /// How far both sides have proven that the link may carry the session on.
    pub proof: CarryingProof,
    /// How far both sides have proven that they have keys, and the flags of the peer's greeting.
    pub trust: Option<Box<LinkTrust>>,
    /// How far its protection is; none: nothing is known of it. Links without keys have none, and there may be many.
    pub protection: Option<Box<Protection>>,
    pub their_flags: u16,
    /// Stands for the host from which the peer called, or for our rail, where answers are counted.
    pub source: u8,
    pub stage: LinkStage,
    /// Our random part of the session tag, and the peer's greeting.
    pub nonce: u32,
    pub hello: Option<HelloBody>,
    /// The mode that our own greeting told.
    pub mode: u8,
    /// The addresses in the peer's greeting: they count when the link has come to carry a session.
    pub told: Option<Box<Told>>,
    /// The session that we, and the peer, would go on with, if not with a new one.
    pub ours: Option<SessionId>,
    pub theirs: Option<SessionId>,
    /// Credit that our greeting names.
    pub windows: Windows,
    /// The peer broke the protocol here: its session is not resumed.
    pub broken: bool,
    /// Numbers of frames on this path.
    pub packet: u64,
    /// Accepted and greeted on: after how many others.
    pub agreed: u64,
    /// Its place among the links that carry a session.
    pub turn: Option<u32>,
    /// The peer was asked to do without it.
    pub closing_idle: bool,
    /// The same, and it has not answered, or not before the link was lost: the peer may rest.
    pub offered: bool,
    /// The traffic when the clock's hand passed last; `u64::MAX`: it has not passed.
    pub traffic_seen: u64,
    /// Turns for which the hand passes it over, since the peer wanted it to stay; and the next time.
    pub spared: u8,
    pub spared_next: u8,
}

/// The addresses in a greeting.
#[derive(Debug)]
pub(crate) struct Told(pub Vec<u8>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkStage {
    /// The rail is still making it.
    Opening,
    /// Hello was sent or is awaited.
    Greeting,
    /// Greeted and accepted: the connecting side still has to confirm.
    Agreed,
    /// Carries a session.
    Up,
    /// We closed it; the rail's last word is awaited.
    Closing,
}

/// Another endpoint.
#[derive(Debug)]
pub(crate) struct Peer {
    pub timer: PeerTimer,
    pub eviction: EvictionMarks,
    pub identity: PeerIdentity,
    pub names: Names,
    pub calls: Calls,
    /// We know an address of it (else only it can connect).
    pub reachable: bool,
    pub session: Option<Session>,
    /// Without a session: the last call of the peer's that it may have confirmed in vain.
    pub unconfirmed: Option<Box<Unconfirmed>>,
    pub waiting: Waiting,
    pub throttled: Throttled,
    /// Its channels whose messages go over two paths at once.
    pub redundant: RedundantChannels,
}

/// Operations that wait for a session with a peer, or in it for their turn: lists through the table of operations.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// By channel.
    pub sends: [List; CHANNELS],
    /// Gets and puts.
    pub accesses: List,
}

/// The identity of a peer, as its greetings and answers tell it.
#[derive(Debug, Default)]
pub(crate) struct PeerIdentity {
    /// 0 until it greeted us for the first time.
    pub endpoint: u128,
    pub incarnation: Incarnation,
    /// The cluster that it named when it answered us last; 0: none.
    pub cluster: u128,
    /// Few peers have some.
    notes: Option<Box<PeerNotes>>,
    /// Its address list, as it told us over the link that carried its session last.
    pub addresses: Box<[u8]>,
}

/// Rare facts about a peer.
#[derive(Debug, Default)]
struct PeerNotes {
    /// The node that it has proven to be.
    node: Option<ProvenNode>,
    /// The node that its address names.
    wanted: Option<NodeName>,
    /// The conditions under which the proof of its session holds.
    standing: Option<Standing>,
    /// The cluster of an endpoint that answered at its address and is not one of ours.
    other_cluster: Option<u128>,
}

impl PeerIdentity {
    /// The node that it has proven to be.
    fn node(&self) -> Option<&ProvenNode> {
        self.notes.as_ref()?.node.as_ref()
    }

    fn set_node(&mut self, node: Option<ProvenNode>) {
        if node.is_some() || self.notes.is_some() {
            self.notes.get_or_insert_default().node = node;
        }
    }

    /// The node that its address names.
    fn wanted(&self) -> Option<&NodeName> {
        self.notes.as_ref()?.wanted.as_ref()
    }

    /// The conditions under which the proof of its session holds.
    fn standing(&self) -> Option<Standing> {
        self.notes.as_ref()?.standing
    }

    fn set_standing(&mut self, standing: Option<Standing>) {
        if standing.is_some() || self.notes.is_some() {
            self.notes.get_or_insert_default().standing = standing;
        }
    }

    /// The cluster of a stranger who answered at its address.
    fn other_cluster(&self) -> Option<u128> {
        self.notes.as_ref()?.other_cluster
    }

    fn set_other_cluster(&mut self, cluster: Option<u128>) {
        if cluster.is_some() || self.notes.is_some() {
            self.notes.get_or_insert_default().other_cluster = cluster;
        }
    }
}

impl Link {
    /// Whether both sides have proven that a link of ours belongs to a session: only the peer's welcome is awaited.
    pub fn is_proven(&self) -> bool {
        self.stage == LinkStage::Agreed && self.proven.is_some()
    }

    /// A link before any greeting. `peer`: the one that we connect to.
    pub fn new(peer: Option<PeerId>, nonce: u32) -> Link {
        Link {
            peer,
            joins: None,
            proven: None,
            their_rail: None,
            entropy: 0,
            outbound: peer.is_some(),
            is_told: false,
            upgrade: false,
            insist: false,
            proof: CarryingProof::default(),
            trust: None,
            protection: None,
            their_flags: 0,
            source: 0,
            stage: if peer.is_some() { LinkStage::Opening } else { LinkStage::Greeting },
            nonce,
            hello: None,
            mode: 0,
            told: None,
            ours: None,
            theirs: None,
            windows: Windows::default(),
            broken: false,
            packet: 0,
            agreed: 0,
            turn: None,
            closing_idle: false,
            offered: false,
            traffic_seen: u64::MAX,
            spared: 0,
            spared_next: 0,
        }
    }

    /// Whether it was accepted, and its greeting asks to join a session.
    pub fn asks_to_join(&self) -> bool {
        !self.outbound && self.their_flags & FLAG_JOIN != 0
    }

    /// The session that both sides would go on with over this link.
    pub fn goes_on_with(&self) -> Option<SessionId> {
        self.ours.filter(|_| self.ours == self.theirs)
    }
}

impl Waiting {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.sends.iter().all(List::is_empty) && self.accesses.is_empty()
    }
}

impl Peer {
    pub fn new(reachable: bool) -> Peer {
        Peer {
            timer: PeerTimer::OFF,
            eviction: EvictionMarks::NONE,
            identity: PeerIdentity::default(),
            names: Names::default(),
            calls: Calls::NONE,
            reachable,
            session: None,
            unconfirmed: None,
            waiting: Waiting::default(),
            throttled: Throttled::default(),
            redundant: RedundantChannels::default(),
        }
    }

    /// Whether operations or data frames wait for their turn.
    #[inline]
    pub fn has_waiting(&self) -> bool {
        let has_frames = |session: &Session| {
            let one_sided = session.one_sided.as_ref();
            !session.streams.is_empty() || one_sided.is_some_and(|it| it.has_waiting())
        };
        !self.waiting.is_empty() || self.session.as_ref().is_some_and(has_frames)
    }

    /// When something is due for it.
    pub fn due(&self) -> Time {
        let session = self.session.as_ref().map_or(Time::NEVER, Session::due);
        session.min(self.calls.due())
    }

    /// The link for control frames of its session.
    #[inline]
    pub fn link(&self) -> Option<LinkId> {
        self.session.as_ref()?.paths.control()
    }

    /// Whether there is one.
    #[inline]
    pub fn is_up(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.paths.is_up())
    }

    /// Whether a link carries its session, if only until it is closed as idle.
    pub fn has_link(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.paths.has_link())
    }

    /// Since when its session has rested; `None` where we call the peer, and where another link carries it.
    pub fn resting_since(&self) -> Option<Time> {
        self.session.as_ref().filter(|_| self.calls.is_idle())?.paths.resting_since()
    }

    /// Whether it is not called, and has no session that runs or looks for a link.
    pub fn is_idle_or_rests(&self) -> bool {
        let rests = self.session.as_ref().is_none_or(|session| session.paths.is_resting());
        rests && self.calls.is_idle()
    }
}
