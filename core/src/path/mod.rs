//! Peers, links and sessions: how endpoints find each other and what holds between them.
//!
//! A *link* is one connection of one rail. A *session* is what two lives of two endpoints agree on
//! when a link is confirmed: message numbers, credits and keys belong to it. In mode `Fail` it ends
//! with its link, unless both sides closed it as idle; in mode `Resume` it goes on over the next link.

mod calls;
mod closing;
mod connecting;
mod evictable;
mod handshake;
mod idle;
mod in_flight;
mod links;
mod names;
mod newcomers;
mod peers;
mod records;
mod session;
mod timers;

pub(crate) use evictable::Evictable;
pub(crate) use links::Links;
pub(crate) use names::{Name, Names};
pub(crate) use newcomers::Newcomers;
pub(crate) use peers::Peers;
pub(crate) use timers::Timers;

use calls::Calls;
use evictable::EvictionMarks;
use in_flight::InFlight;
use timers::PeerTimer;

use std::num::NonZeroU32;

use ropewalk_base::hash::{HashMap, HashSeed};
use ropewalk_base::ids::Incarnation;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::LinkId;
use ropewalk_wire::frame::{Body, HelloBody};

use crate::api::{CHANNELS, Channel, OperationId, PeerId};
use crate::credit::{Granted, Lent, Windows};
use crate::lists::List;
use crate::reliable::Reliable;
use crate::remote::{Accesses, Puts};
use crate::streams::{Streams, Throttled};

/// Announced messages of a peer that are not over, beyond which another announce is in no hurry.
const ANNOUNCES_AHEAD: usize = 8;
/// Messages that are being fetched beside one whose end may be told a little later.
const FETCHES_AHEAD: usize = 4;
/// A connection.
#[derive(Debug)]
pub(crate) struct Link {
    /// Known from the beginning on links that we began, from `Hello` on accepted ones.
    pub peer: Option<PeerId>,
    pub outbound: bool,
    pub upgrade: bool,
    pub insist: bool,
    pub stage: LinkStage,
    /// Our random part of the session tag, and the peer's greeting.
    pub nonce: u32,
    pub hello: Option<HelloBody>,
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
    pub turn: Option<usize>,
    /// The peer was asked to do without it.
    pub closing_idle: bool,
    /// The traffic when the clock's hand passed last.
    pub traffic_seen: Option<u64>,
    /// Turns for which the hand passes it over, since the peer wanted it to stay; and the next time.
    pub spared: u32,
    pub spared_next: u32,
}

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

/// How far a peer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerStage {
    /// Nothing to do, or nothing tried.
    Idle,
    /// A link is being made, over this attempt's address.
    Connecting { attempt: u32 },
    /// Our link was refused since theirs shall survive; we try again at this time.
    Yielded { until: Time },
    /// A session runs over this link.
    Up { link: LinkId },
    /// Mode `Resume`: the link was lost; the session waits for a new one.
    Suspended { since: Time },
    /// Its session's link is to be closed: the peer was asked at the latest `until` (once more where that
    /// is `late`), and nothing is sent.
    ClosingIdle { link: LinkId, until: Time, late: bool },
    /// Its session has no link, and needs none until somebody wants something.
    IdleClosed { since: Time },
    /// There was no descriptor for a link; tried again at this time.
    Crowded { attempt: u32, until: Time },
}

/// Another endpoint.
#[derive(Debug)]
pub(crate) struct Peer {
    pub stage: PeerStage,
    pub timer: PeerTimer,
    pub eviction: EvictionMarks,
    pub identity: PeerIdentity,
    pub names: Names,
    pub calls: Calls,
    /// We know an address of it (else only it can connect).
    pub reachable: bool,
    pub session: Option<Session>,
    pub in_flight: InFlight,
    pub waiting: Waiting,
    pub throttled: Throttled,
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
    /// The cluster of an endpoint that answered at its address and is not one of ours; 0: none did.
    pub other_cluster: u128,
    /// Its address list as it told us.
    pub addresses: Vec<u8>,
}

/// The number of a session. Frames name it; 0 names none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SessionId(NonZeroU32);

/// Who the peer of a session is. As wide as a word, so that no other field of a [`Session`] has as many values to spare:
/// the compiler tells by one of them that there is no session. A message reads this line in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Partner {
    Endpoint,
    /// One who speaks no frames.
    Foreign,
}

/// What a session begins with.
#[derive(Debug)]
pub(crate) struct NewSession {
    pub id: SessionId,
    pub partner: Partner,
    /// The credit that the peer grants, and the windows that it is lent, as it was told.
    pub granted: Granted,
    pub windows: Windows,
    /// Frames of its link may be lost, or it outlives its link.
    pub spans: bool,
}

/// The state that a life of ours shares with a life of a peer: numbers, credit, operations under way. Fields that every
/// message reads come first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Session {
    pub partner: Partner,
    /// Spans, where frames of the link may be lost or the session outlives its link.
    pub reliable: Option<Box<Reliable>>,
    pub id: SessionId,
    pub send_next: [u64; CHANNELS],
    pub receive_next: [u64; CHANNELS],
    pub granted: Granted,
    pub lent: Lent,
    /// Sends whose end the receiver will tell, by channel and message number.
    pub unfinished: HashMap<(u8, u64), OperationId>,
    /// Receives that get an announced message, by channel and message number.
    pub fetching: HashMap<(u8, u64), OperationId>,
    /// Messages of the peer's of which fragments are still to come, by channel and message number.
    pub assembling: HashMap<(u8, u64), SlotId>,
    /// Data frames to make.
    pub streams: Streams,
    /// Gets and puts of ours.
    pub accesses: Accesses,
    /// Puts of the peer's.
    pub puts: Puts,
    /// Control frames that wait for the answer to `CloseIdle`.
    pub deferred: Vec<Body>,
    /// After how many posts of receives it was idle-closed; `NOT_IDLE`: a link carries it.
    idle_since_post: u64,
}

const NOT_IDLE: u64 = u64::MAX;

const _: () = assert!(size_of::<Option<Session>>() == size_of::<Session>(), "see `Partner`");

impl Link {
    /// A link before any greeting. `peer`: the one that we connect to.
    pub fn new(peer: Option<PeerId>, nonce: u32) -> Link {
        Link {
            peer,
            outbound: peer.is_some(),
            upgrade: false,
            insist: false,
            stage: if peer.is_some() { LinkStage::Opening } else { LinkStage::Greeting },
            nonce,
            hello: None,
            ours: None,
            theirs: None,
            windows: Windows::default(),
            broken: false,
            packet: 0,
            agreed: 0,
            turn: None,
            closing_idle: false,
            traffic_seen: None,
            spared: 0,
            spared_next: 0,
        }
    }

    /// The session that both sides would go on with over this link.
    pub fn goes_on_with(&self) -> Option<SessionId> {
        self.ours.filter(|_| self.ours == self.theirs)
    }
}

impl SessionId {
    /// The number that both sides make of what they drew for their greetings.
    pub fn agreed(ours: u32, theirs: u32) -> SessionId {
        SessionId::own(ours.wrapping_add(theirs))
    }

    /// The number of a session whose other side needs to know none.
    pub fn own(drawn: u32) -> SessionId {
        SessionId(NonZeroU32::MIN | drawn)
    }

    /// The session that a frame names.
    pub fn named(name: u32) -> Option<SessionId> {
        NonZeroU32::new(name).map(SessionId)
    }

    /// Its name in a frame.
    #[inline]
    pub fn name(self) -> u32 {
        self.0.get()
    }
}

impl Waiting {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.sends.iter().all(List::is_empty) && self.accesses.is_empty()
    }
}

impl Session {
    /// A session in which nothing was sent yet. `lent`: the windows of `new`.
    pub fn new(new: NewSession, lent: Lent, hash: &HashSeed) -> Session {
        let NewSession { id, partner, granted, windows: _, spans } = new;
        Session {
            partner,
            reliable: spans.then(|| Box::new(Reliable::new())),
            id,
            send_next: [0; CHANNELS],
            receive_next: [0; CHANNELS],
            granted,
            lent,
            unfinished: HashMap::with_hasher(hash.clone()),
            fetching: HashMap::with_hasher(hash.clone()),
            assembling: HashMap::with_hasher(hash.clone()),
            streams: Streams::default(),
            accesses: Accesses::default(),
            puts: Puts::default(),
            deferred: Vec::new(),
            idle_since_post: NOT_IDLE,
        }
    }

    /// Its name in frames.
    #[inline]
    pub fn name(&self) -> u32 {
        self.id.name()
    }

    /// Whether it is the session that a frame names.
    #[inline]
    pub fn is_named(&self, name: u32) -> bool {
        self.id.name() == name
    }

    #[inline]
    pub fn is_foreign(&self) -> bool {
        self.partner == Partner::Foreign
    }

    /// Takes credit and the next number for an eager message, where there is credit.
    #[inline]
    pub fn take_eager(&mut self, channel: Channel, payload_bytes: u64) -> Option<u64> {
        self.granted.take_eager(channel, payload_bytes).then(|| self.next_number(channel))
    }

    /// The same for a rendezvous.
    pub fn take_rts(&mut self, channel: Channel) -> Option<u64> {
        self.granted.take_rts().then(|| self.next_number(channel))
    }

    #[inline]
    fn next_number(&mut self, channel: Channel) -> u64 {
        let number = self.send_next[channel as usize];
        self.send_next[channel as usize] += 1;
        number
    }

    /// Whether so many messages wait for the peer's receives, or for their turn there, that another announce is
    /// in no hurry.
    pub fn has_enough_to_do(&self) -> bool {
        self.unfinished.len() > ANNOUNCES_AHEAD
    }

    /// Whether we fetch so many messages of the peer's that it need not know at once of one that is done.
    pub fn has_more_to_do(&self) -> bool {
        self.fetching.len() >= FETCHES_AHEAD
    }

    /// It is idle-closed, if it is not already, after so many posts of receives.
    pub fn close_idle(&mut self, posts: u64) {
        self.idle_since_post = self.idle_since_post.min(posts);
    }

    /// A link carries it.
    pub fn wake(&mut self) {
        self.idle_since_post = NOT_IDLE;
    }

    /// After how many posts of receives it was idle-closed, where it is.
    pub fn idle_since_post(&self) -> Option<u64> {
        (self.idle_since_post != NOT_IDLE).then_some(self.idle_since_post)
    }
}

impl Peer {
    pub fn new(reachable: bool) -> Peer {
        Peer {
            stage: PeerStage::Idle,
            timer: PeerTimer::OFF,
            eviction: EvictionMarks::NONE,
            identity: PeerIdentity::default(),
            names: Names::default(),
            calls: Calls::NONE,
            reachable,
            session: None,
            in_flight: InFlight::default(),
            waiting: Waiting::default(),
            throttled: Throttled::default(),
        }
    }

    /// Whether operations or data frames wait for their turn.
    #[inline]
    pub fn has_waiting(&self) -> bool {
        let has_streams = |session: &Session| !session.streams.is_empty();
        !self.waiting.is_empty() || self.session.as_ref().is_some_and(has_streams)
    }

    /// When something is due for it.
    pub fn due(&self) -> Time {
        let reliable = || self.session.as_ref()?.reliable.as_ref();
        let due = match self.stage {
            PeerStage::Yielded { until } => Some(until),
            PeerStage::ClosingIdle { until, .. } | PeerStage::Crowded { until, .. } => Some(until),
            PeerStage::Connecting { .. } => Some(self.calls.deadline()),
            PeerStage::Suspended { .. } => reliable().map(|it| it.retry_at),
            PeerStage::Up { .. } => reliable().and_then(|it| it.deadline()),
            PeerStage::Idle | PeerStage::IdleClosed { .. } => None,
        };
        due.unwrap_or(Time::NEVER)
    }

    /// Whether an attempt to make a link to it is under way.
    pub fn is_called(&self) -> bool {
        matches!(
            self.stage,
            PeerStage::Connecting { .. } | PeerStage::Yielded { .. } | PeerStage::Crowded { .. }
        )
    }

    /// The link that carries the session now.
    #[inline]
    pub fn link(&self) -> Option<LinkId> {
        match self.stage {
            PeerStage::Up { link } => Some(link),
            _ => None,
        }
    }

    /// The same, also where nothing is sent over it any more since it is to be closed.
    pub fn session_link(&self) -> Option<LinkId> {
        match self.stage {
            PeerStage::Up { link } | PeerStage::ClosingIdle { link, .. } => Some(link),
            _ => None,
        }
    }
}
