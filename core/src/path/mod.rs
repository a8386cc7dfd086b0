//! Peers, links and sessions: how endpoints find each other and what holds between them.
//!
//! A *link* is one connection of one rail. A *session* is what two lives of two endpoints agree on
//! when a link is confirmed: message numbers, credits and keys belong to it. In mode `Fail` it ends
//! with its link, unless both sides parked it; in mode `Resume` it goes on over the next link.

mod evictable;
mod handshake;
mod in_flight;
mod links;
mod names;
mod newcomers;
mod parking;
mod session;
mod timers;

pub(crate) use evictable::Evictable;
pub(crate) use links::Links;
pub(crate) use names::Name;
pub(crate) use newcomers::Newcomers;
pub(crate) use timers::Timers;

use evictable::EvictionMarks;
use in_flight::InFlight;
use timers::PeerTimer;

use std::collections::VecDeque;

use ropewalk_base::hash::{HashMap, HashSeed};
use ropewalk_base::ids::Incarnation;
use ropewalk_base::limits::{QUEUED_FRAMES_MAX, REMOTE_SEGMENTS_MAX};
use ropewalk_base::memory::Slice;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{LinkId, RemoteKey, RemoteSegment};
use ropewalk_wire::frame::{Body, HelloBody};

use crate::api::{CHANNELS, Channel, OperationId, PeerId};
use crate::credit::{Granted, Lent, Windows};
use crate::lists::List;
use crate::reliable::Reliable;

/// Announced messages of a peer that are not over, beyond which another announce is in no hurry.
const ANNOUNCES_AHEAD: usize = 8;
/// Messages that are being fetched beside one whose end may be told a little later.
const FETCHES_AHEAD: usize = 4;
/// Gets and puts of ours to one peer at a time.
pub(crate) const ACCESSES_MAX: u32 = 256;
/// Segments that they have together: each of a get is asked for by a frame and served as a stream.
pub(crate) const SEGMENTS_MAX: u32 = 4096;
/// Streams to one peer: segments that it asked for, and puts of ours. An honest one has at most
/// `SEGMENTS_MAX` under way; older ones were cancelled.
pub(crate) const STREAMS_MAX: usize = 2 * SEGMENTS_MAX as usize + ACCESSES_MAX as usize;
/// Puts of one peer that arrived in part. An honest one has at most `ACCESSES_MAX` under way; older
/// ones were cancelled.
pub(crate) const PUTS_MAX: usize = 2 * ACCESSES_MAX as usize;

const _: () = assert!(REMOTE_SEGMENTS_MAX <= SEGMENTS_MAX as usize, "any list fits the window");
const _: () = assert!(8 * SEGMENTS_MAX as usize <= QUEUED_FRAMES_MAX, "no window fills a queue");

/// Gets and puts of ours that one peer has not answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct UnderWay {
    pub accesses: u32,
    pub segments: u32,
}

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
    /// The session that we, and the peer, would go on with; 0: a new one.
    pub ours: u32,
    pub theirs: u32,
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
    pub parking: bool,
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
    Parking { link: LinkId, until: Time, late: bool },
    /// Its session has no link, and needs none until somebody wants something.
    Parked { since: Time },
    /// There was no descriptor for a link; tried again at this time.
    Crowded { attempt: u32, until: Time },
}

/// Another endpoint.
#[derive(Debug)]
pub(crate) struct Peer {
    pub stage: PeerStage,
    pub timer: PeerTimer,
    pub eviction: EvictionMarks,
    /// After how many posts of receives its session was parked.
    pub parked_at_post: Option<u64>,
    /// 0 until it greeted us for the first time.
    pub endpoint: u128,
    /// The cluster that it named when it answered us last; 0: none.
    pub cluster: u128,
    /// The cluster of somebody who answered at its address and is not one of ours; 0: nobody did.
    pub stranger: u128,
    pub incarnation: Incarnation,
    /// Its address list as it told us.
    pub addresses: Vec<u8>,
    /// Whether users may post under its own number.
    pub name: Name,
    /// It called us: nobody looked its record up.
    pub learnt: bool,
    /// The name that was first looked up for the same address, where that is another one.
    pub leader: Option<PeerId>,
    /// Another record for the same endpoint stands for this one.
    pub alias_of: Option<PeerId>,
    /// Its session is with one who speaks no frames.
    pub foreign: bool,
    /// The records for which this one stands.
    pub aliases: Vec<PeerId>,
    /// We know an address of it (else only it can connect).
    pub reachable: bool,
    pub session: u32,
    /// A greeting that is not answered by then was in vain; how often that happened in a row.
    pub greeted_until: Time,
    pub greeted_over: Option<LinkId>,
    pub greetings_lost: u32,
    /// Somebody answered at its address who does not keep to the protocol.
    pub babbled: bool,
    /// Since when there is no descriptor for a link to it.
    pub crowded_since: Option<Time>,
    /// That was so in the present round of attempts.
    pub crowded: bool,
    /// A link over which it called before its last frames over the old one were here.
    pub caller: Option<LinkId>,
    /// Control frames that wait for the answer to `Park`.
    pub deferred: Vec<Body>,
    pub in_flight: InFlight,
    pub under_way: UnderWay,
    /// Gets and puts so far.
    pub accesses_begun: u64,
    pub send_next: [u64; CHANNELS],
    pub receive_next: [u64; CHANNELS],
    /// Sends that wait, by channel: lists through the operations.
    pub waiting: [List; CHANNELS],
    /// Gets and puts that wait.
    pub waiting_accesses: List,
    pub granted: Granted,
    pub lent: Lent,
    /// Sends whose end the receiver will tell, by channel and message number.
    pub unfinished: HashMap<(u8, u64), OperationId>,
    /// Receives that get an announced message, by channel and message number.
    pub fetching: HashMap<(u8, u64), OperationId>,
    /// Messages of its of which fragments are still to come, by channel and message number.
    pub assembling: HashMap<(u8, u64), SlotId>,
    /// Data frames to make, in turn.
    pub streams: VecDeque<Stream>,
    /// It waits for the next pass to make some.
    pub throttled: bool,
    /// Puts of the peer that arrived in part: region, cookie, bytes so far; the oldest first.
    pub puts: VecDeque<(SlotId, u64, u64)>,
    pub reliable: Option<Box<Reliable>>,
}

/// Bytes on their way to a peer in data frames.
#[derive(Debug)]
pub(crate) struct Stream {
    pub kind: StreamKind,
    /// Bytes that are still to be sent.
    pub left: Slice,
}

#[derive(Debug)]
pub(crate) enum StreamKind {
    /// A message of ours: what is behind its first fragment.
    Message { operation: OperationId, channel: Channel, message: u64, offset: u64 },
    /// The peer asked: our region serves.
    Serve { region: SlotId, cookie: u64, into_offset: u64 },
    /// Our put: segments of the remote layout that are left, the first one first.
    Put { operation: OperationId, key: RemoteKey, segments: Segments, total: u64 },
}

/// The rest of a remote layout.
#[derive(Debug, Clone)]
pub(crate) enum Segments {
    At(u64),
    List { list: std::sync::Arc<[RemoteSegment]>, index: usize, done: u64 },
}

impl UnderWay {
    /// Whether an access of so many segments may begin.
    pub fn has_room(&self, segments: u32) -> bool {
        self.accesses < ACCESSES_MAX && self.segments + segments <= SEGMENTS_MAX
    }

    /// An access of so many segments begins.
    pub fn begin(&mut self, segments: u32) {
        self.accesses += 1;
        self.segments += segments;
    }

    /// An access of so many segments is over.
    pub fn end(&mut self, segments: u32) {
        self.accesses = self.accesses.saturating_sub(1);
        self.segments = self.segments.saturating_sub(segments);
    }
}

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
            ours: 0,
            theirs: 0,
            windows: Windows::default(),
            broken: false,
            packet: 0,
            agreed: 0,
            turn: None,
            parking: false,
            traffic_seen: None,
            spared: 0,
            spared_next: 0,
        }
    }
}

impl Peer {
    /// Whether so many messages wait for its receives, or for their turn there, that another announce is
    /// in no hurry.
    pub fn has_enough_to_do(&self) -> bool {
        self.unfinished.len() > ANNOUNCES_AHEAD
    }

    /// Whether we fetch so many messages of its that it need not know at once of one that is done.
    pub fn has_more_to_do(&self) -> bool {
        self.fetching.len() >= FETCHES_AHEAD
    }

    pub fn new(reachable: bool, hash: HashSeed) -> Peer {
        Peer {
            stage: PeerStage::Idle,
            timer: PeerTimer::OFF,
            eviction: EvictionMarks::NONE,
            parked_at_post: None,
            endpoint: 0,
            cluster: 0,
            stranger: 0,
            incarnation: Incarnation(0),
            addresses: Vec::new(),
            name: Name::Live,
            learnt: false,
            leader: None,
            alias_of: None,
            foreign: false,
            aliases: Vec::new(),
            reachable,
            session: 0,
            greeted_until: Time::NEVER,
            greeted_over: None,
            greetings_lost: 0,
            babbled: false,
            crowded_since: None,
            crowded: false,
            caller: None,
            deferred: Vec::new(),
            in_flight: InFlight::default(),
            under_way: UnderWay::default(),
            accesses_begun: 0,
            send_next: [0; CHANNELS],
            receive_next: [0; CHANNELS],
            waiting: [List::EMPTY; CHANNELS],
            waiting_accesses: List::EMPTY,
            granted: Granted::default(),
            lent: Lent::default(),
            unfinished: HashMap::with_hasher(hash.clone()),
            fetching: HashMap::with_hasher(hash.clone()),
            assembling: HashMap::with_hasher(hash),
            streams: VecDeque::new(),
            throttled: false,
            puts: VecDeque::new(),
            reliable: None,
        }
    }

    /// Whether operations or data frames wait for their turn.
    #[inline]
    pub fn has_waiting(&self) -> bool {
        self.waiting.iter().any(|queue| !queue.is_empty())
            || !self.waiting_accesses.is_empty()
            || !self.streams.is_empty()
    }

    /// When something is due for it.
    pub fn due(&self) -> Time {
        let due = match self.stage {
            PeerStage::Yielded { until } => Some(until),
            PeerStage::Parking { until, .. } | PeerStage::Crowded { until, .. } => Some(until),
            PeerStage::Connecting { .. } => Some(self.greeted_until),
            PeerStage::Suspended { .. } => self.reliable.as_ref().map(|it| it.retry_at),
            PeerStage::Up { .. } => self.reliable.as_ref().and_then(|it| it.deadline()),
            PeerStage::Idle | PeerStage::Parked { .. } => None,
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
            PeerStage::Up { link } | PeerStage::Parking { link, .. } => Some(link),
            _ => None,
        }
    }
}
