//! The engine: the core, its rails and the buffers between them, worked by one thread at a time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ropewalk_base::error::Fault;
use ropewalk_base::hash::{HashMap, HashSeed};
use ropewalk_base::memory::{BufferId, BufferTable, Memory, Slice};
use ropewalk_base::pool::{Pool, PoolBuffer};
use ropewalk_base::time::Time;
use ropewalk_base::verb::{FrameOrder, LinkId, Ordered, Placement, RemoteKey, Token, Verb};
use ropewalk_core::{Audience, Completion, Core, LOOP_LINK, Next, OperationId, Output, PeerId};
use ropewalk_rail::address::Address;
use ropewalk_rail::{Rail, RailOption, Report, Sight};
use ropewalk_wire::frame;

use crate::context::{Completed, Queue};
use crate::posts::{Caller, NO_ANSWER, Post, Slot};
use crate::rail_events::RailEvents;
use crate::requests::{Request, Requests};

/// A monotonic clock that threads share.
pub type SharedClock = Arc<dyn Fn() -> Time + std::marker::Send + Sync>;

#[derive(Debug)]
pub(crate) enum Command {
    Post(OperationId, Post),
    Cancel(OperationId),
    RequestTaken {
        peer: PeerId,
        session: u32,
        bytes: u32,
    },
    /// The last sleeper is awake. See [`Shared::disarm`](crate::shared::Shared::disarm).
    StandUp,
}

struct Exposure {
    key: RemoteKey,
    buffer: BufferId,
    /// The queue that gets its memory at its end, with the caller's number.
    end: Option<(Arc<Queue>, u64)>,
}

pub(crate) struct Engine {
    pub core: Core,
    pub rails: Vec<Box<dyn Rail>>,
    pub buffers: BufferTable,
    pool: Pool,
    payload_checksum: bool,
    /// Also between processes of one host.
    pub same_host_checksum: bool,
    /// By rail: frames carry checksums.
    sealed: Vec<bool>,
    /// By rail: when it was polled last.
    polled: Vec<Time>,
    clock: SharedClock,
    /// The contexts by their numbers; none where nobody uses it any more.
    pub(crate) queues: Vec<Option<Arc<Queue>>>,
    pub(crate) slots: Vec<Slot>,
    pub(crate) free: Vec<u32>,
    pub(crate) slots_max: usize,
    exposures: Vec<Option<Exposure>>,
    /// Addresses by the peer's slot, as they were looked up.
    addresses: Vec<Option<(PeerId, Address)>>,
    /// The peer that was looked up last for an address.
    looked_up: HashMap<Address, PeerId>,
    requests: Arc<Requests>,
    /// Contexts that are told of requests.
    request_queues: Vec<Arc<Queue>>,
    pub(crate) caller: Caller,
    /// The completion for the caller, once it is answered.
    pub(crate) answer: Completion,
    pub events: VecDeque<PeerEvent>,
    /// Events so far.
    pub event_count: Arc<AtomicU64>,
    /// Contexts that are told of them.
    event_queues: Vec<Arc<Queue>>,
    /// Announced messages whose receivers may need us, as [`Core::announced`] had it last.
    pub announced: Arc<AtomicU32>,
    /// Receives that wait for such messages, as [`Core::awaited`] had it last.
    pub awaited: Arc<AtomicU32>,
    /// As [`Core::arrivals`] had it last, and contexts that are told when it changes.
    pub arrivals: Arc<AtomicU64>,
    arrivals_seen: u64,
    arrival_queues: Vec<Arc<Queue>>,
    /// Rails were prepared for a sleep and not told of its end.
    pub armed: bool,
    /// Somebody may ask for the progress of fetched data.
    pub(crate) follows: bool,
    /// A rail may keep frames for others that followed them.
    keeps_frames: bool,
    /// The number of these frames that wait for the next pass; `None` if one of them must not wait.
    patient_frames: Option<u32>,
    /// Passes over the rails.
    pub passes: u64,
    /// Passes since the last one that asked for the time and polled every rail, and when that was.
    short_passes: u32,
    tick: Tick,
}

/// The kernel's coarse time, of some milliseconds, which costs next to nothing to read: seconds and
/// nanoseconds.
type Tick = (i64, i64);

fn tick() -> Tick {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    (time.tv_sec, time.tv_nsec)
}

/// A change in a peer's session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerEvent {
    Up(PeerId),
    Down(PeerId, Fault),
    /// A foreign peer says whether a key that it was shown, by a connect or beside one, is right.
    KeyJudged {
        peer: PeerId,
        key: u32,
        right: bool,
    },
    /// Two are one endpoint: `alias` stands for `peer` from here on.
    Aliased {
        alias: PeerId,
        peer: PeerId,
    },
}

/// Passes at a stretch that do not ask for the time, and poll rails only if these see work. They may be late for
/// timers and news of the kernel only, so that few of them are enough to make spinning cheap. A thread that makes
/// passes seldom makes none of these: they end with the tick in which they began.
const SHORT_PASSES_MAX: u32 = 15;

/// Frames that wait for the next pass, at most.
const PATIENT_FRAMES_MAX: u32 = 32;

/// The time for which a rail that sees no work is not polled beside others: a look at quiet sockets costs as much as
/// a message through shared memory.
const QUIET_FOR: std::time::Duration = std::time::Duration::from_micros(10);

/// Peer events that are kept for a caller who does not ask for them.
pub(crate) const EVENTS_MAX: usize = 1024;

impl Engine {
    #[expect(clippy::too_many_arguments, reason = "the parts of an endpoint, put together once")]
    pub fn new(
        core: Core,
        rails: Vec<Box<dyn Rail>>,
        buffers: BufferTable,
        pool: Pool,
        payload_checksum: bool,
        clock: SharedClock,
        slots_max: usize,
        requests: Arc<Requests>,
    ) -> Engine {
        let sealed = rails.iter().map(|rail| !rail.capabilities().checksummed).collect();
        Engine {
            core,
            polled: vec![Time::ZERO; rails.len()],
            rails,
            buffers,
            pool,
            payload_checksum,
            same_host_checksum: false,
            sealed,
            clock,
            queues: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            slots_max,
            exposures: Vec::new(),
            addresses: Vec::new(),
            looked_up: HashMap::with_hasher(HashSeed::OWN_KEYS),
            requests,
            request_queues: Vec::new(),
            caller: Caller::Nobody,
            answer: NO_ANSWER,
            events: VecDeque::new(),
            event_count: Arc::default(),
            event_queues: Vec::new(),
            announced: Arc::default(),
            awaited: Arc::default(),
            arrivals: Arc::default(),
            arrivals_seen: 0,
            arrival_queues: Vec::new(),
            armed: false,
            follows: false,
            keeps_frames: false,
            patient_frames: Some(0),
            passes: 0,
            short_passes: SHORT_PASSES_MAX,
            tick: (0, 0),
        }
    }

    pub fn now(&self) -> Time {
        (self.clock)()
    }

    /// A new context. `wants_requests`: it is told of requests, too.
    pub fn add_context(&mut self, wants_requests: bool) -> std::io::Result<Arc<Queue>> {
        let queue = Arc::new(Queue::new(self.queues.len() as u32, wants_requests)?);
        self.queues.push(Some(queue.clone()));
        if wants_requests {
            self.request_queues.push(queue.clone());
        }
        Ok(queue)
    }

    /// A context that nobody uses any more: completions to it are dropped from here on.
    pub fn retire_context(&mut self, queue: &Queue) {
        queue.retire();
        self.request_queues.retain(|other| other.number != queue.number);
        self.arrival_queues.retain(|other| other.number != queue.number);
        self.event_queues.retain(|other| other.number != queue.number);
        if let Some(place) = self.queues.get_mut(queue.number as usize) {
            *place = None;
        }
    }

    /// One more rail. Its descriptor is watched by the caller.
    pub fn add_rail(&mut self, rail: Box<dyn Rail>) {
        let capabilities = rail.capabilities();
        self.sealed.push(!capabilities.checksummed);
        self.polled.push(Time::ZERO);
        self.core.add_rail(capabilities, rail.scheme());
        self.rails.push(rail);
    }

    /// Sets an option of all rails of a scheme; false where none has it.
    pub fn set_option(&mut self, scheme: &str, option: RailOption) -> bool {
        let rails = self.rails.iter_mut().filter(|rail| rail.scheme() == scheme);
        rails.fold(false, |any, rail| rail.set(option) | any)
    }

    /// Whether an operation is under way, and its context's number.
    pub fn pending_in(&self, id: OperationId) -> Option<u32> {
        let slot = self.slots.get(id.0.index as usize)?;
        (slot.is_used_by(id)).then(|| slot.context())
    }

    /// Carries out a command that was left for the holder of the engine.
    pub fn command(&mut self, command: Command) {
        match command {
            Command::Post(id, post) => {
                self.start_left(id, post);
            }
            Command::Cancel(id) => {
                self.core.cancel(id);
            }
            Command::RequestTaken { peer, session, bytes } => {
                self.core.request_taken(peer, session, bytes);
            }
            Command::StandUp => {}
        }
        self.drain();
    }

    /// Makes memory accessible to peers.
    pub fn expose(
        &mut self,
        memory: Memory,
        writable: bool,
        audience: Audience,
    ) -> Result<RemoteKey, (Memory, Fault)> {
        if writable && !memory.is_writable() {
            return Err((memory, Fault::Invalid));
        }
        let len = memory.len();
        let buffer = self.buffers.insert(memory).map_err(|memory| (memory, Fault::Busy))?;
        let slice = Slice { buffer, offset: 0, len };
        match self.core.expose(slice, writable, audience) {
            Ok(key) => {
                let index = key.slot.index as usize;
                if self.exposures.len() <= index {
                    self.exposures.resize_with(index + 1, || None);
                }
                self.exposures[index] = Some(Exposure { key, buffer, end: None });
                self.drain();
                Ok(key)
            }
            Err(fault) => {
                let memory = self.buffers.remove(buffer).unwrap_or_else(Memory::empty);
                Err((memory, fault))
            }
        }
    }

    /// Ends an exposure; its memory comes back through `queue` with `user`.
    pub fn unexpose(&mut self, key: RemoteKey, queue: Arc<Queue>, user: u64) -> Result<(), Fault> {
        match self.exposures.get_mut(key.slot.index as usize) {
            Some(Some(exposure)) if exposure.key == key && exposure.end.is_none() => {
                exposure.end = Some((queue, user));
            }
            _ => return Err(Fault::BadKey),
        }
        let result = self.core.unexpose(key);
        self.drain();
        result
    }

    fn unexposed(&mut self, key: RemoteKey) {
        let Some(entry) = self.exposures.get_mut(key.slot.index as usize) else { return };
        if entry.as_ref().is_none_or(|exposure| exposure.key != key) {
            return;
        }
        let Some(exposure) = entry.take() else { return };
        let memory = self.buffers.remove(exposure.buffer).unwrap_or_else(Memory::empty);
        if let Some((queue, user)) = exposure.end {
            let bytes = memory.len();
            queue.push(Completed {
                operation: OperationId(key.slot),
                user,
                outcome: Ok(()),
                bytes,
                message_bytes: bytes,
                peer: None,
                bits: 0,
                memory,
            });
        }
    }

    /// A peer for these addresses. While it is unknown who answers there, all who look them up get names
    /// of one peer: under several their messages would go in the order in which the peers are found.
    pub fn add_peer(&mut self, address: Address) -> Result<PeerId, Fault> {
        let unknown = |peer: &&PeerId| {
            self.core.is_known(**peer) && self.core.peer_endpoint(**peer).is_none()
        };
        let peer = match self.looked_up.get(&address).filter(unknown) {
            Some(same) => self.core.add_name(*same)?,
            None => {
                let peer = self.core.add_peer(true)?;
                self.note_looked_up(&address, peer);
                peer
            }
        };
        let index = peer.0.index as usize;
        if self.addresses.len() <= index {
            self.addresses.resize_with(index + 1, || None);
        }
        self.addresses[index] = Some((peer, address));
        Ok(peer)
    }

    fn note_looked_up(&mut self, address: &Address, peer: PeerId) {
        if self.looked_up.len() > 2 * self.addresses.len() {
            let core = &self.core;
            self.looked_up.retain(|_, peer| core.is_known(*peer));
        }
        self.looked_up.insert(address.clone(), peer);
    }

    /// One pass: time, rails, and the consequences. True if anything happened.
    pub fn progress(&mut self) -> bool {
        self.passes += 1;
        let sight = self.rails.iter().map(|rail| rail.look()).max().unwrap_or(Sight::Blind);
        let mut now = self.core.now();
        let tick = tick();
        let same_tick = self.tick == tick;
        let short = sight < Sight::Blind
            && self.short_passes < SHORT_PASSES_MAX
            && same_tick
            && !self.keeps_frames
            && !self.core.has_outputs()
            && !self.core.is_throttled();
        if short {
            self.short_passes += 1;
            if sight == Sight::Nothing {
                return false;
            }
        } else {
            self.short_passes = 0;
            self.tick = tick;
            now = self.now();
            self.core.advance(now);
        }
        if self.keeps_frames {
            self.push_frames();
        }
        let mut any = self.drain();
        for index in 0..self.rails.len() {
            if self.rails.len() > 1 && same_tick && self.may_pass_over(index, short, now) {
                continue;
            }
            self.polled[index] = now;
            let Engine { core, rails, buffers, pool, .. } = self;
            let mut events = RailEvents { core, buffers, pool };
            if rails[index].poll(now, &mut events) {
                any = true;
                self.drain();
            }
        }
        any
    }

    /// Whether a rail is not polled in this pass, since it sees no work: others may want the time that
    /// asking the kernel takes.
    #[inline]
    fn may_pass_over(&self, index: usize, short: bool, now: Time) -> bool {
        let sight = self.rails[index].look();
        let recent = now.since(self.polled[index]) < QUIET_FOR;
        (short && sight != Sight::Work) || (sight == Sight::Nothing && recent)
    }

    /// When a pass has to be made at the latest.
    pub fn deadline(&self) -> Option<Time> {
        self.rails.iter().filter_map(|rail| rail.deadline()).chain(self.core.deadline()).min()
    }

    /// Whether a rail has a payload in part, whose rest is on its way.
    pub fn is_receiving(&self) -> bool {
        self.rails.iter().any(|rail| rail.is_receiving())
    }

    /// Prepares the rails for sleep; false where there is work. Rails that were armed are armed afresh:
    /// a peer rings once for each arming, and that bell may have been heard already.
    pub fn arm(&mut self) -> bool {
        if self.armed {
            self.disarm();
        }
        self.armed = true;
        for index in 0..self.rails.len() {
            if !self.rails[index].arm() {
                self.disarm();
                return false;
            }
        }
        true
    }

    pub fn disarm(&mut self) {
        self.armed = false;
        // After a sleep the time matters, and every rail.
        self.short_passes = SHORT_PASSES_MAX;
        self.polled.fill(Time::ZERO);
        self.rails.iter_mut().for_each(|rail| rail.disarm());
    }

    /// Likewise after a sleep in which no rail's descriptor had anything to say: that counts as a pass
    /// that found nothing.
    pub fn disarm_quiet(&mut self) {
        let now = self.now();
        if self.deadline().is_some_and(|due| due <= now) {
            return self.disarm();
        }
        self.armed = false;
        self.core.advance(now);
        self.short_passes = 0;
        self.tick = tick();
        self.polled.fill(now);
        self.rails.iter_mut().for_each(|rail| rail.disarm_quiet());
    }

    /// Carries out the orders of the core, in order. True if there were any.
    #[inline]
    pub fn drain(&mut self) -> bool {
        let any = self.core.has_outputs();
        if any {
            self.drain_all();
            // Last: a rail's answer may have ended some.
            self.announced.store(self.core.announced(), Ordering::Relaxed);
            self.awaited.store(self.core.awaited(), Ordering::Relaxed);
        }
        if self.core.arrivals() != self.arrivals_seen {
            self.note_arrivals();
        }
        any
    }

    /// Messages came that wait for a receive.
    #[cold]
    fn note_arrivals(&mut self) {
        self.arrivals_seen = self.core.arrivals();
        // In one order with the sleeper's flag, like the count of completions.
        self.arrivals.store(self.arrivals_seen, Ordering::SeqCst);
        self.arrival_queues.iter().for_each(|queue| queue.ring());
    }

    /// A context that is told, from now on, when messages wait for a receive.
    pub fn tell_of_arrivals(&mut self, queue: &Arc<Queue>) {
        self.arrival_queues.push(queue.clone());
    }

    /// The bytes of a staged message.
    pub fn read_staged(&self, buffer: BufferId, bytes: &mut Vec<u8>) {
        let len = self.buffers.get(buffer).map_or(0, Memory::len);
        bytes.resize(len as usize, 0);
        self.buffers.read(Slice { buffer, offset: 0, len }, bytes);
    }

    fn drain_all(&mut self) {
        loop {
            while let Some(next) = self.core.next_output() {
                match next {
                    Next::Frame => self.send(false),
                    Next::PatientFrame => self.send(true),
                    Next::Completed => self.completed(),
                    Next::Other => self.act(),
                }
            }
            // A sleeper on the rails makes no pass before the answer to such a frame arrives.
            let patient =
                !self.armed && self.patient_frames.is_some_and(|count| count < PATIENT_FRAMES_MAX);
            if !self.keeps_frames {
                self.patient_frames = Some(0);
                return;
            }
            if patient {
                return;
            }
            self.push_frames();
        }
    }

    /// Lets rails send the frames that they keep.
    fn push_frames(&mut self) {
        self.keeps_frames = false;
        self.patient_frames = Some(0);
        let Engine { core, rails, buffers, pool, .. } = self;
        let mut events = RailEvents { core, buffers, pool };
        rails.iter_mut().for_each(|rail| {
            rail.push(&mut events);
        });
    }

    /// Gives the next frame to its rail.
    #[inline]
    fn send(&mut self, patient: bool) {
        let followed = patient || self.core.is_followed();
        self.keeps_frames |= followed;
        self.patient_frames = self.patient_frames.filter(|_| patient).map(|count| count + 1);
        let link = self.core.frame().link;
        let checked = self.checked(link);
        let frame = self.core.frame();
        let (rail, token) = (usize::from(link.rail), frame.token);
        let Some(rail) = self.rails.get_mut(rail) else { return self.loop_frame() };
        let answer = hand_over(&mut **rail, frame, checked, followed, &self.buffers);
        self.core.ordered(token, answer);
    }

    /// Whether frames of a link have checksums, and whether that goes for their payloads.
    #[inline]
    fn checked(&self, link: LinkId) -> Option<bool> {
        if !self.sealed.get(usize::from(link.rail)).is_some_and(|sealed| *sealed) {
            return None;
        }
        let wanted = self.same_host_checksum || !self.core.is_same_host(link);
        Some(self.payload_checksum && wanted)
    }

    /// Gives the frame of a message that leaves at once to its rail.
    #[inline]
    pub(crate) fn hand_over_inline(&mut self) -> Ordered {
        if self.keeps_frames {
            self.push_frames();
        }
        let link = self.core.inline_frame().link;
        let (rail, checked) = (usize::from(link.rail), self.checked(link));
        let frame = self.core.inline_frame();
        hand_over(&mut *self.rails[rail], frame, checked, false, &self.buffers)
    }

    /// Does one of the rarer things.
    #[inline(never)]
    fn act(&mut self) {
        match self.core.take_output() {
            Output::Verb(verb) => self.order(&verb),
            Output::Copy { from, to } => {
                self.buffers.copy(from, to);
            }
            Output::Release(buffer) => drop(self.buffers.remove(buffer)),
            Output::Keep { peer, span, from } => {
                let buffer = self.copy_of(from);
                self.core.kept(peer, span, buffer);
            }
            Output::Request { peer, session, bits, payload } => {
                self.request(peer, session, bits, payload);
            }
            Output::Connect { peer, attempt } => self.connect(peer, attempt),
            Output::Upgrade { peer, link } => self.upgrade(peer, link),
            Output::PeerUp { peer } => self.event(PeerEvent::Up(peer)),
            Output::PeerDown { peer, fault } => self.event(PeerEvent::Down(peer, fault)),
            Output::KeyJudged { peer, key, right } => {
                self.event(PeerEvent::KeyJudged { peer, key, right });
            }
            Output::Unexposed { key } => self.unexposed(key),
            Output::Aliased { alias, peer } => self.aliased(alias, peer),
        }
    }

    fn event(&mut self, event: PeerEvent) {
        if self.events.len() >= EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
        // In one order with the sleeper's flag, like the count of completions.
        self.event_count.fetch_add(1, Ordering::SeqCst);
        self.event_queues.iter().for_each(|queue| queue.ring());
    }

    /// A context that is told, from now on, when sessions change.
    pub fn tell_of_events(&mut self, queue: &Arc<Queue>) {
        self.event_queues.push(queue.clone());
    }

    /// Orders that are not frames to a peer.
    fn order(&mut self, verb: &Verb) {
        let (link, token) = match verb {
            Verb::Close { link: LOOP_LINK } => {
                return self.core.link_down(LOOP_LINK, Fault::Closed);
            }
            Verb::Read { link, token, .. } | Verb::Write { link, token, .. } => (*link, *token),
            Verb::Detach { link, token, .. }
            | Verb::Stop { link, token }
            | Verb::Unplace { link, token } => (*link, *token),
            Verb::Expose { link, .. } | Verb::Close { link } | Verb::Revoke { link, .. } => {
                (*link, Token::NONE)
            }
        };
        let rail = &mut self.rails[usize::from(link.rail)];
        let answer = match verb {
            // Of several that are ordered at once the asks may leave together.
            Verb::Read { local, .. } => {
                if self.follows {
                    self.buffers.follow(local.buffer, (self.clock)());
                }
                self.keeps_frames = true;
                self.patient_frames = None;
                rail.order_followed(verb, &self.buffers)
            }
            _ => rail.order(verb, &self.buffers),
        };
        match (verb, answer) {
            // The rail holds nothing under that key. With any other answer, only its report says that nobody holds
            // the region.
            (Verb::Revoke { link, key }, Ordered::Refused(_)) => self.core.revoked(*link, *key),
            (Verb::Detach { .. } | Verb::Stop { .. } | Verb::Unplace { .. }, answer) => {
                self.core.let_go_of(verb, answer);
            }
            _ => self.core.ordered(token, answer),
        }
    }

    /// A buffer of the pool with these bytes, where there is room for one.
    fn copy_of(&mut self, from: Slice) -> Option<BufferId> {
        let buffer = self.pool.take(from.len as usize)?;
        let buffer = self.buffers.insert(Memory::pooled(buffer)).ok()?;
        self.buffers.copy(from, Slice { buffer, offset: 0, len: from.len });
        Some(buffer)
    }

    /// A frame from this endpoint to itself: placed like any other, and copied.
    #[cold]
    fn loop_frame(&mut self) {
        let FrameOrder { header, payload, token, .. } = *self.core.frame();
        let Engine { core, buffers, pool, .. } = self;
        let mut events = RailEvents { core, buffers, pool };
        match events.place(LOOP_LINK, header.as_bytes(), payload.len as u32) {
            Placement::Into { slice, token } => {
                events.buffers.copy(payload, slice);
                events.landed(LOOP_LINK, token);
            }
            Placement::Drop => {}
            Placement::Stage { .. } => unreachable!("turned into a place by `RailEvents`"),
            Placement::Violation(_) => self.core.link_down(LOOP_LINK, Fault::Protocol),
        }
        self.core.ordered(token, Ordered::Released);
    }

    fn request(&mut self, peer: PeerId, session: u32, bits: u64, payload: Option<(BufferId, u32)>) {
        let bytes = payload.map_or(0, |(_, bytes)| bytes);
        let payload: Option<PoolBuffer> = payload
            .and_then(|(buffer, _)| self.buffers.remove(buffer))
            .and_then(Memory::into_pooled);
        let origin = self.core.peer_origin(peer).unwrap_or_default();
        let request = Request { peer, origin, session, bits, payload, bytes, charged: true };
        self.requests.push(request);
        for queue in &self.request_queues {
            queue.ring();
        }
    }

    /// Tries addresses from this attempt on, until one can at least be tried.
    fn connect(&mut self, peer: PeerId, attempt: u32) {
        let now = self.now();
        let known = self.addresses.get(peer.0.index as usize).and_then(|entry| entry.as_ref());
        let address = match known {
            Some((known, address)) if *known == peer => Some(address.clone()),
            _ => self.told_address(peer),
        };
        let parts: Vec<(String, String)> = address
            .iter()
            .flat_map(|address| address.parts())
            .map(|(scheme, rest)| (scheme.to_string(), rest.to_string()))
            .collect();
        // Each address by each rail that speaks so: nobody knows which peer is behind which interface.
        let ways = parts.iter().flat_map(|(scheme, rest)| {
            let rails = self.rails.iter().enumerate().filter(move |(_, it)| it.scheme() == scheme);
            rails.map(move |(index, _)| (index, scheme, rest))
        });
        let ways: Vec<_> = ways.skip(attempt as usize).collect();
        for (rail, scheme, rest) in ways {
            let mut alike = self.rails.iter().filter(|it| it.scheme() == scheme);
            if alike.any(|rail| is_own(rail.as_ref(), rest)) {
                // Not every network brings back packets that are sent to oneself.
                return self.core.connect_to_itself(peer);
            }
            match self.rails[rail].connect(rest, now) {
                Ok(link) => return self.core.connecting(peer, link),
                Err(Fault::Busy) => self.core.crowded(peer),
                Err(_) => {}
            }
        }
        self.core.unreachable(peer);
    }

    /// A peer that was looked up is one that we know already: where that one had called us, it is called
    /// by the address that was looked up from now on.
    fn aliased(&mut self, alias: PeerId, peer: PeerId) {
        self.event(PeerEvent::Aliased { alias, peer });
        let entry = self.addresses.get(alias.0.index as usize).and_then(|entry| entry.as_ref());
        let looked_up = entry.filter(|(known, _)| *known == alias);
        let Some((_, address)) = looked_up.cloned() else { return };
        let index = peer.0.index as usize;
        if self.addresses.len() <= index {
            self.addresses.resize_with(index + 1, || None);
        }
        let known = matches!(&self.addresses[index], Some((known, _)) if *known == peer);
        if !known {
            self.addresses[index] = Some((peer, address));
        }
    }

    fn told_address(&self, peer: PeerId) -> Option<Address> {
        let text = std::str::from_utf8(self.core.peer_addresses(peer)).ok()?;
        Address::parse(text).ok()
    }

    fn upgrade(&mut self, peer: PeerId, link: LinkId) {
        let now = self.now();
        if let Some(address) = self.told_address(peer) {
            for (scheme, rest) in address.parts() {
                let rail = self
                    .rails
                    .iter_mut()
                    .find(|rail| rail.scheme() == scheme && rail.capabilities().same_host_only);
                if let Some(Ok(better)) = rail.map(|rail| rail.connect(rest, now)) {
                    return self.core.connecting_upgrade(peer, better);
                }
            }
        }
        self.core.no_upgrade(peer, link);
    }
}

/// Gives a frame to a rail. `checked`: with a checksum of the header, and if true also of the payload; `None`:
/// without checksums.
#[inline(always)]
fn hand_over(
    rail: &mut dyn Rail,
    frame: &mut FrameOrder,
    checked: Option<bool>,
    followed: bool,
    buffers: &BufferTable,
) -> Ordered {
    if let Some(checked) = checked {
        let payload = checked && frame.payload.len > 0;
        let checksum = payload.then(|| buffers.crc32c(frame.payload));
        frame::seal(&mut frame.header, checksum);
    }
    if followed { rail.send_followed(frame, buffers) } else { rail.send(frame, buffers) }
}

/// Whether a rail listens at this address.
fn is_own(rail: &dyn Rail, address: &str) -> bool {
    let address = address.split_once('?').map_or(address, |(address, _)| address);
    rail.addresses().iter().any(|own| own == address.trim_end_matches('/'))
}
