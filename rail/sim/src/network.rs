//! The state behind [`crate::SimNetwork`]: rails, paths, connections and the queue of events.
//!
//! Invariants:
//! * events run in the order (time, sequence number), and time never runs backwards;
//! * all randomness is drawn from one generator, in the order of events and orders;
//! * an inbox is in the order in which its rail's owner is to hear of things; `Down` is the last
//!   item that names a link.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::memory::Slice;
use ropewalk_base::random::Random;
use ropewalk_base::slots::Slots;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{Header, LinkId, RailCounters, RemoteKey, Token};

use crate::access::{Access, Reply};
use crate::config::{Path, SimConfig};
use crate::connection::Connection;
use crate::trace::Trace;

/// Links of one rail, at most.
const LINKS_MAX: usize = 1 << 16;

/// The bytes of a frame under way.
#[derive(Debug, Clone)]
pub(crate) struct Frame {
    pub header: Header,
    pub payload: Vec<u8>,
}

impl Frame {
    pub(crate) fn bytes(&self) -> u64 {
        (self.header.as_bytes().len() + self.payload.len()) as u64
    }
}

/// A message on the wire from one end of a connection to the other.
#[derive(Debug)]
pub(crate) enum Message {
    Open,
    Accept,
    Refuse,
    /// The sender's end is gone.
    Reset(Fault),
    /// A frame as a whole.
    Whole(Arc<Frame>),
    /// The header of a frame and the first half of its payload.
    Head(Arc<Frame>),
    /// The rest of it.
    Tail(Arc<Frame>),
    Access(Access),
    Reply(Reply),
}

impl Message {
    fn kind(&self) -> u64 {
        match self {
            Message::Open => 1,
            Message::Accept => 2,
            Message::Refuse => 3,
            Message::Reset(_) => 4,
            Message::Whole(_) => 5,
            Message::Head(_) => 6,
            Message::Tail(_) => 7,
            Message::Access(_) => 8,
            Message::Reply(_) => 9,
        }
    }
}

/// Something that happens at a moment. `side` is an end of the connection: 0 began it.
#[derive(Debug)]
pub(crate) enum Event {
    /// A message reaches `side`.
    Arrive { connection: u64, side: usize, message: Message },
    /// The messages that a partition held back before `side` go on.
    Resume { connection: u64, side: usize },
    /// `side` waited long enough for the answer to its connect.
    ConnectTimeout { connection: u64 },
    /// `side` has not heard of its peer for its timeout, if the epoch is still the same.
    Suspect { connection: u64, side: usize, epoch: u64 },
    /// `side` notices a cut.
    Cut { connection: u64, side: usize },
    /// The wire out of `side` can take the next frame.
    WireFree { connection: u64, side: usize },
    /// A frame of `side` left its window.
    Sent { connection: u64, side: usize, number: u64 },
    /// The bytes of a native access are at `side`, its target.
    AccessReady { connection: u64, side: usize, access: Access },
}

impl Event {
    fn words(&self) -> [u64; 3] {
        match self {
            Event::Arrive { connection, side, message } => {
                [message.kind(), *connection, *side as u64]
            }
            Event::Resume { connection, side } => [16, *connection, *side as u64],
            Event::ConnectTimeout { connection } => [17, *connection, 0],
            Event::Suspect { connection, side, .. } => [18, *connection, *side as u64],
            Event::Cut { connection, side } => [19, *connection, *side as u64],
            Event::WireFree { connection, side } => [20, *connection, *side as u64],
            Event::Sent { connection, side, .. } => [21, *connection, *side as u64],
            Event::AccessReady { connection, side, .. } => [22, *connection, *side as u64],
        }
    }
}

/// An event that a rail reports at its next poll.
#[derive(Debug)]
pub(crate) enum Item {
    Up {
        link: LinkId,
        accepted: bool,
    },
    Down {
        link: LinkId,
        fault: Fault,
    },
    Whole {
        link: LinkId,
        frame: Arc<Frame>,
    },
    Head {
        link: LinkId,
        frame: Arc<Frame>,
    },
    Tail {
        link: LinkId,
        frame: Arc<Frame>,
    },
    Done {
        token: Token,
        held: Slice,
    },
    Failed {
        token: Token,
        held: Slice,
        fault: Fault,
    },
    /// A native access of the peer, to be carried out on our buffers.
    Access {
        connection: u64,
        side: usize,
        access: Access,
    },
    /// The answer to a native access of ours.
    Answer {
        token: Token,
        local: Slice,
        data: Vec<u8>,
    },
    Revoked {
        link: LinkId,
        key: RemoteKey,
    },
}

impl Item {
    fn kind(&self) -> u64 {
        match self {
            Item::Up { .. } => 32,
            Item::Down { .. } => 33,
            Item::Whole { .. } => 34,
            Item::Head { .. } => 35,
            Item::Tail { .. } => 36,
            Item::Done { .. } => 37,
            Item::Failed { .. } => 38,
            Item::Access { .. } => 39,
            Item::Answer { .. } => 40,
            Item::Revoked { .. } => 41,
        }
    }

    /// Whether this tells the end of the order with this token.
    pub(crate) fn is_outcome_of(&self, of: Token) -> bool {
        match self {
            Item::Done { token, .. } | Item::Failed { token, .. } | Item::Answer { token, .. } => {
                *token == of
            }
            _ => false,
        }
    }

    /// Whether this is a frame, or a part of one, of `link`.
    fn is_frame_of(&self, of: LinkId) -> bool {
        match self {
            Item::Whole { link, .. } | Item::Head { link, .. } | Item::Tail { link, .. } => {
                *link == of
            }
            _ => false,
        }
    }
}

/// One name in the network, alive or not.
#[derive(Debug)]
pub(crate) struct RailState {
    /// The process that has the name, by number; the `SimRail` of an older process has no effect.
    pub life: u64,
    pub alive: bool,
    /// The host itself is off: it does not even refuse.
    pub dark: bool,
    /// The rail's index within its endpoint.
    pub index: u8,
    pub config: SimConfig,
    /// Connection and side of each link.
    pub links: Slots<(u64, usize)>,
    pub inbox: VecDeque<Item>,
    pub counters: RailCounters,
}

/// See [`crate::SimNetwork`].
#[derive(Debug)]
pub(crate) struct Network {
    pub now: Time,
    pub random: Random,
    pub trace: Trace,
    pub rails: Vec<RailState>,
    pub connections: BTreeMap<u64, Connection>,
    pub connection_count: u64,
    pub default_path: Path,
    names: BTreeMap<String, usize>,
    paths: BTreeMap<(usize, usize), Path>,
    /// When each cable is free, and the cable of each rail that has one.
    cables: Vec<Time>,
    cable_of: BTreeMap<usize, usize>,
    events: BTreeMap<(Time, u64), Event>,
    event_count: u64,
}

impl Network {
    pub(crate) fn new(seed: u64) -> Network {
        Network {
            now: Time::ZERO,
            random: Random::from_seed(seed),
            trace: Trace::new(),
            rails: Vec::new(),
            connections: BTreeMap::new(),
            connection_count: 0,
            default_path: Path::default(),
            names: BTreeMap::new(),
            paths: BTreeMap::new(),
            cables: Vec::new(),
            cable_of: BTreeMap::new(),
            events: BTreeMap::new(),
            event_count: 0,
        }
    }

    /// The index of a name; unknown names are dead rails, so that faults can be set beforehand.
    pub(crate) fn rail_index(&mut self, name: &str) -> usize {
        if let Some(&rail) = self.names.get(name) {
            return rail;
        }
        self.rails.push(RailState {
            life: 0,
            alive: false,
            dark: false,
            index: 0,
            config: SimConfig::stream(),
            links: Slots::with_limit(LINKS_MAX),
            inbox: VecDeque::new(),
            counters: RailCounters::default(),
        });
        self.names.insert(name.to_string(), self.rails.len() - 1);
        self.rails.len() - 1
    }

    /// Gives a name to a new process.
    pub(crate) fn start_rail(&mut self, name: &str, config: SimConfig) -> (usize, u64) {
        config.check();
        let index = self.rail_index(name);
        let rail = &mut self.rails[index];
        assert!(!rail.alive, "two live simulated rails are called {name}");
        rail.life += 1;
        rail.alive = true;
        rail.dark = false;
        rail.config = config;
        rail.counters = RailCounters::default();
        let life = rail.life;
        self.trace.mix(index as u64);
        (index, life)
    }

    pub(crate) fn path(&self, from: usize, to: usize) -> Path {
        self.paths.get(&(from, to)).copied().unwrap_or(self.default_path)
    }

    /// What these rails send goes over one cable from now on.
    pub(crate) fn share_cable(&mut self, rails: impl Iterator<Item = usize>) {
        self.cables.push(Time::ZERO);
        self.cable_of.extend(rails.map(|rail| (rail, self.cables.len() - 1)));
    }

    /// How long what a rail sends now waits for its cable, which it keeps busy for so long; `None`: it has none.
    pub(crate) fn queue(&mut self, rail: usize, busy: Duration) -> Option<Duration> {
        let free_at = &mut self.cables[*self.cable_of.get(&rail)?];
        let begin = self.now.max(*free_at);
        *free_at = begin + busy;
        Some(begin.since(self.now))
    }

    /// Changes a direction; where it was blocked or healed, its connections are told.
    pub(crate) fn change_path(&mut self, from: usize, to: usize, change: impl FnOnce(&mut Path)) {
        let before = self.path(from, to);
        let mut after = before;
        change(&mut after);
        self.paths.insert((from, to), after);
        if !before.blocked && after.blocked {
            self.handle_blocked(from, to);
        } else if before.blocked && !after.blocked || before.frame_bytes_max < after.frame_bytes_max
        {
            self.handle_healed(from, to);
        }
    }

    pub(crate) fn schedule(&mut self, at: Time, event: Event) {
        self.event_count += 1;
        self.events.insert((at.max(self.now), self.event_count), event);
    }

    /// Lets `message` leave for `side` now: it arrives after the path's latency, `delay` later, and
    /// not before anything that left the same end earlier.
    pub(crate) fn send(&mut self, connection: u64, side: usize, message: Message, delay: Duration) {
        let Some(state) = self.connections.get(&connection) else { return };
        let path = self.path(state.ends[1 - side].rail, state.ends[side].rail);
        let at =
            crate::config::spread(self.now + path.latency + delay, path.jitter, &mut self.random);
        let Some(state) = self.connections.get_mut(&connection) else { return };
        let lane = &mut state.ends[1 - side].lane;
        let at = at.max(lane.last_arrival);
        lane.last_arrival = at;
        self.schedule(at, Event::Arrive { connection, side, message });
    }

    pub(crate) fn next_event(&self) -> Option<Time> {
        self.events.keys().next().map(|(time, _)| *time)
    }

    /// Runs all events that are due at `now`.
    pub(crate) fn advance(&mut self, now: Time) {
        while let Some(entry) = self.events.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let ((time, _), event) = entry.remove_entry();
            self.now = self.now.max(time);
            self.run_event(event);
        }
        self.now = self.now.max(now);
    }

    fn run_event(&mut self, event: Event) {
        self.trace.mix(self.now.0);
        event.words().into_iter().for_each(|word| self.trace.mix(word));
        match event {
            Event::Arrive { connection, side, message } => {
                self.handle_arrival(connection, side, message);
            }
            Event::Resume { connection, side } => self.handle_resume(connection, side),
            Event::ConnectTimeout { connection } => self.handle_connect_timeout(connection),
            Event::Suspect { connection, side, epoch } => {
                self.handle_suspect(connection, side, epoch);
            }
            Event::Cut { connection, side } => {
                self.end_down(connection, side, Fault::PeerReset, true);
            }
            Event::WireFree { connection, side } => self.handle_wire_free(connection, side),
            Event::Sent { connection, side, number } => self.handle_sent(connection, side, number),
            Event::AccessReady { connection, side, access } => {
                self.handle_access_ready(connection, side, access);
            }
        }
    }

    pub(crate) fn push(&mut self, rail: usize, item: Item) {
        self.rails[rail].inbox.push_back(item);
    }

    /// The next thing that a rail has to report.
    pub(crate) fn pop(&mut self, rail: usize) -> Option<Item> {
        let item = self.rails[rail].inbox.pop_front()?;
        self.trace.mix(rail as u64);
        self.trace.mix(item.kind());
        Some(item)
    }

    /// Forgets frames of `link` that arrived and were not reported.
    pub(crate) fn discard_frames(&mut self, rail: usize, link: LinkId) {
        self.rails[rail].inbox.retain(|item| !item.is_frame_of(link));
    }
}
