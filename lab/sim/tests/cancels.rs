//! Random cancels at random moments, of operations in every stage, while peers are stopped and paths blocked. Each
//! operation ends soon and once, its memory is its owner's from then on, and other operations are untouched.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::ids::{ClusterId, EndpointId, Incarnation};
use ropewalk_base::memory::Memory;
use ropewalk_base::pool::Pool;
use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{RemoteKey, RemoteLayout};
use ropewalk_net::context::Completed;
use ropewalk_net::{
    Audience, Channel, Context, Direction, Endpoint, EndpointConfig, Level, Mode, OperationId,
    Oversize, PeerId, Posted,
};
use ropewalk_rail::address::Address;
use ropewalk_sim::disk::VirtualDisk;
use ropewalk_sim::seeds::Seeds;
use ropewalk_sim::{Node, Path, Pollable, SimConfig, Simulation, run_seeds, seeds};

const NAMES: [&str; 3] = ["a", "b", "c"];
const PAIRS: [(usize, usize); 6] = [(0, 1), (1, 0), (1, 2), (2, 1), (0, 2), (2, 0)];
/// A cancelled operation has ended after so much virtual time, whatever its peer does.
const SOON: Duration = Duration::from_millis(50);
const TURNS: u64 = 120;
const TAGS: u64 = 3;
const RECEIVE_BYTES: usize = 300_000;
/// The bytes of a fragment in runs that split messages into many fragments.
const SHORT_FRAMES: u32 = 32 << 10;
/// A region for writing has so many slots, each for one put.
const SLOTS: u64 = 12;
const SLOT_BYTES: u64 = 150_000;
/// The caller's number of an exposure that ends.
const EXPOSURE: u64 = u64::MAX;

/// An endpoint, and its events.
struct Actor {
    endpoint: Endpoint,
    context: Context,
    clock: Arc<AtomicU64>,
    done: RefCell<Vec<Completed>>,
}

struct Polled(Rc<Actor>);

impl Pollable for Polled {
    fn poll(&mut self, now: Time) -> bool {
        let actor = &self.0;
        actor.clock.store(now.0, Ordering::Relaxed);
        let any = actor.endpoint.progress();
        let before = actor.done.borrow().len();
        while let Some(completed) = actor.endpoint.test(&actor.context) {
            actor.done.borrow_mut().push(completed);
        }
        any || actor.done.borrow().len() > before
    }

    fn deadline(&self) -> Option<Time> {
        self.0.endpoint.deadline()
    }
}

fn boot(node: &Node, mode: Mode, rail: SimConfig) -> Rc<Actor> {
    let clock = Arc::new(AtomicU64::new(node.world().now().0));
    let hand = clock.clone();
    let mut config = EndpointConfig {
        endpoint: EndpointId(u128::from(node.name().as_bytes()[0])),
        incarnation: Incarnation(1),
        host: 0,
        service_thread: false,
        clock: Arc::new(move || Time(hand.load(Ordering::Relaxed))),
        virtual_time: true,
        seed: node.world().random_u64(),
        ..EndpointConfig::new(ClusterId(1))
    };
    config.core.mode = mode;
    if rail.capabilities.frame_payload_bytes_max == SHORT_FRAMES {
        // Credit for messages in fragments from the beginning.
        config.core.eager_window_bytes = 2 << 20;
    }
    let endpoint = Endpoint::open(config, vec![Box::new(node.rail(rail))]).expect("an endpoint");
    let context = endpoint.context(false).expect("a context");
    let actor = Rc::new(Actor { endpoint, context, clock, done: RefCell::default() });
    node.register(Polled(actor.clone()));
    actor
}

fn pattern(id: u64, offset: usize) -> u8 {
    (id.wrapping_mul(37) as u8).wrapping_add((offset % 251) as u8)
}

fn holds(memory: Memory, id: u64, bytes: u64) -> bool {
    let buffer = memory.into_pooled().expect("memory of this test is pooled");
    let bytes = &buffer[..bytes as usize];
    bytes.iter().enumerate().all(|(offset, byte)| *byte == pattern(id, offset))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Send,
    Receive { tag: u64 },
    Get { content: u64 },
    Put { peer: usize, slot: u64 },
}

/// An operation that has not ended.
#[derive(Debug, Clone, Copy)]
struct Pending {
    actor: usize,
    what: What,
    operation: OperationId,
}

/// The region that a node exposes.
struct Region {
    key: RemoteKey,
    content: u64,
}

struct Scene<'s> {
    simulation: &'s mut Simulation,
    random: Random,
    actors: Vec<Rc<Actor>>,
    peers: BTreeMap<(usize, usize), PeerId>,
    pool: Pool,
    /// By the caller's number; those that were cancelled stay until they end.
    pending: BTreeMap<u64, Pending>,
    cancelled: BTreeSet<u64>,
    next: u64,
    /// Regions to read, and to write, by node. `None` while one is taken back.
    readable: Vec<Option<Region>>,
    writable: Vec<RemoteKey>,
    slots_used: Vec<u64>,
    /// Puts that succeeded: origin, owner of the region, slot, content.
    put: Vec<(usize, usize, u64, u64)>,
    /// Messages as they were received: receiver, sender, tag; number of the post and of the message.
    received: BTreeMap<(usize, usize, u64), Vec<(u64, u64)>>,
    /// The sender of each message.
    senders: BTreeMap<u64, usize>,
    /// Memory of cancelled receives and gets, overwritten when it came back.
    abandoned: Vec<Memory>,
}

/// Counters of the covered cases, summed up.
#[derive(Debug, Default)]
struct Coverage {
    frames_detached: u64,
    places_given_up: u64,
    accesses_stopped: u64,
    spans_kept: u64,
    fragments: u64,
    cancelled: u64,
    succeeded: u64,
}

impl Scene<'_> {
    fn peer(&mut self, from: usize, to: usize) -> PeerId {
        let actors = &self.actors;
        *self.peers.entry((from, to)).or_insert_with(|| {
            let address = Address::parse(actors[to].endpoint.addresses()).expect("an address");
            actors[from].endpoint.lookup(&address).expect("a peer")
        })
    }

    fn memory(&self, len: usize, id: u64) -> Memory {
        let mut buffer = self.pool.take(len).expect("within the budget");
        buffer.iter_mut().enumerate().for_each(|(offset, byte)| *byte = pattern(id, offset));
        Memory::pooled(buffer)
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn posted(
        &mut self,
        actor: usize,
        user: u64,
        what: What,
        posted: Result<Posted, (Memory, Fault)>,
    ) {
        match posted {
            Ok(Posted::Pending(operation)) => {
                self.pending.insert(user, Pending { actor, what, operation });
            }
            Ok(Posted::Done(completed)) => {
                let operation = completed.operation;
                self.pending.insert(user, Pending { actor, what, operation });
                self.ended(completed);
            }
            Err((_, fault)) => panic!("a post was refused: {fault}"),
        }
    }

    fn send(&mut self, from: usize, to: usize) {
        let user = self.number();
        let tag = self.random.below(TAGS);
        let len = [0, 100, 9000, 16_000, 60_000, 280_000][self.random.below(6) as usize];
        let level =
            [Level::Buffered, Level::Delivered, Level::Matched][self.random.below(3) as usize];
        let (peer, memory) = (self.peer(from, to), self.memory(len, user));
        let (actor, bits) = (self.actors[from].clone(), user << 8 | tag);
        let channel = Channel::Tagged;
        let posted =
            actor.endpoint.post_send(&actor.context, peer, channel, bits, memory, level, user);
        self.senders.insert(user, from);
        self.posted(from, user, What::Send, posted);
    }

    fn receive(&mut self, at: usize) {
        let user = self.number();
        let tag = self.random.below(TAGS);
        let memory = self.memory(RECEIVE_BYTES, 0);
        let (actor, cut) = (self.actors[at].clone(), Oversize::Truncate);
        let posted = actor.endpoint.post_receive(
            &actor.context,
            Channel::Tagged,
            None,
            tag,
            0xFF,
            memory,
            cut,
            user,
        );
        self.posted(at, user, What::Receive { tag }, posted);
    }

    fn access(
        &mut self,
        actor: usize,
        peer: usize,
        what: What,
        (key, offset): (RemoteKey, u64),
        memory: Memory,
        user: u64,
    ) {
        let direction =
            if matches!(what, What::Put { .. }) { Direction::Put } else { Direction::Get };
        let (to, from) = (self.peer(actor, peer), self.actors[actor].clone());
        let remote = RemoteLayout::At(offset);
        let posted =
            from.endpoint.post_access(&from.context, direction, to, key, remote, memory, user);
        self.posted(actor, user, what, posted);
    }

    fn get(&mut self, actor: usize, peer: usize) {
        let Some(Region { key, content }) = &self.readable[peer] else { return };
        let (key, content, user) = (*key, *content, self.number());
        let memory = self.memory(RECEIVE_BYTES, 0);
        self.access(actor, peer, What::Get { content }, (key, 0), memory, user);
    }

    fn put(&mut self, actor: usize, peer: usize) {
        let slot = self.slots_used[peer];
        if slot == SLOTS {
            return;
        }
        self.slots_used[peer] += 1;
        let (user, key) = (self.number(), self.writable[peer]);
        let memory = self.memory(SLOT_BYTES as usize, user);
        let at = (key, slot * SLOT_BYTES);
        self.access(actor, peer, What::Put { peer, slot }, at, memory, user);
    }

    /// A node takes its region back; with its completion it exposes another one.
    fn renew(&mut self, at: usize) {
        let Some(region) = self.readable[at].take() else { return };
        let actor = self.actors[at].clone();
        actor.endpoint.unexpose(region.key, &actor.context, EXPOSURE).expect("exposed");
    }

    fn expose(&mut self, at: usize) {
        let content = self.number();
        let memory = self.memory(RECEIVE_BYTES, content);
        let endpoint = &self.actors[at].endpoint;
        let key = endpoint.expose(memory, false, Audience::Everybody);
        let key = key.unwrap_or_else(|(_, fault)| panic!("no exposure: {fault}"));
        self.readable[at] = Some(Region { key, content });
    }

    /// Cancels an operation, and waits until it has ended.
    fn cancel(&mut self) {
        let awake: Vec<u64> =
            self.pending.keys().copied().filter(|user| !self.cancelled.contains(user)).collect();
        if awake.is_empty() {
            return;
        }
        let user = awake[self.random.below(awake.len() as u64) as usize];
        let Pending { actor, operation, .. } = self.pending[&user];
        self.cancelled.insert(user);
        // Its peers may stay stopped, not the actor itself: a stopped actor learns nothing.
        self.simulation.resume(NAMES[actor]);
        self.actors[actor].endpoint.cancel(operation);
        self.ends_soon(user);
    }

    fn ends_soon(&mut self, user: u64) {
        let Pending { actor, what, .. } = self.pending[&user];
        let node = self.actors[actor].clone();
        let ended = self
            .simulation
            .run_until(SOON, |_| node.done.borrow().iter().any(|completed| completed.user == user));
        assert!(ended, "{what:?} of {actor} did not end");
        self.take();
    }

    /// Records the operations that ended.
    fn take(&mut self) {
        for at in 0..self.actors.len() {
            let done = std::mem::take(&mut *self.actors[at].done.borrow_mut());
            for completed in done {
                match completed.user {
                    EXPOSURE => self.expose(at),
                    _ => self.ended(completed),
                }
            }
            self.actors[at].endpoint.check();
        }
    }

    fn ended(&mut self, completed: Completed) {
        let Completed { user, outcome, bytes, message_bytes, bits, memory, .. } = completed;
        let Pending { actor, what, .. } = self.pending.remove(&user).expect("each ends once");
        let cancelled = self.cancelled.contains(&user);
        match (what, outcome) {
            (What::Receive { tag }, Ok(())) => {
                let id = bits >> 8;
                assert_eq!((bits & 0xFF, bytes), (tag, message_bytes));
                assert!(holds(memory, id, bytes), "message {id} is not what was sent");
                let sender = self.senders.get(&id).copied().expect("a message that was sent");
                self.received.entry((actor, sender, tag)).or_default().push((user, id));
            }
            (What::Get { content }, Ok(())) => {
                assert!(holds(memory, content, bytes), "a get is not what the key was given for");
            }
            (What::Put { peer, slot }, Ok(())) => self.put.push((actor, peer, slot, user)),
            (What::Send, Ok(())) => {}
            // The region was taken back; the sender, or the receiver, gave the message up.
            (What::Get { .. }, Err(Fault::BadKey)) => {}
            (What::Send | What::Receive { .. }, Err(Fault::Cancelled)) => self.abandon(memory),
            (_, Err(Fault::Cancelled)) if cancelled => self.abandon(memory),
            _ => panic!("{what:?} of {actor} ended with {outcome:?}"),
        }
    }

    /// The memory is used for something else at once.
    fn abandon(&mut self, memory: Memory) {
        let mut buffer = memory.into_pooled().expect("memory of this test is pooled");
        buffer.fill(0xEE);
        self.abandoned.push(Memory::pooled(buffer));
    }

    /// Sessions between all of them: the fate of greetings is tested elsewhere.
    fn meet(&mut self) {
        for (from, to) in PAIRS {
            self.get(from, to);
            self.simulation.run_for(Duration::from_millis(100));
            self.take();
            assert!(self.pending.is_empty(), "{:?}", self.pending);
        }
    }

    /// One thing that happens.
    fn turn(&mut self) {
        let actor = self.random.below(3) as usize;
        let peer = (actor + 1 + self.random.below(2) as usize) % 3;
        match self.random.below(20) {
            0..5 => self.send(actor, peer),
            5..9 => self.receive(actor),
            9 => self.get(actor, peer),
            10 => self.put(actor, peer),
            11 => self.renew(actor),
            12..16 => self.cancel(),
            16 => self.simulation.pause(NAMES[actor]),
            17 => self.simulation.resume(NAMES[actor]),
            18 => self.simulation.network().partition(NAMES[actor], NAMES[peer]),
            _ => self.simulation.network().heal(NAMES[actor], NAMES[peer]),
        }
        let pause = Duration::from_micros(self.random.below(400));
        self.simulation.run_for(pause);
        self.take();
    }

    fn calm(&mut self) {
        for name in NAMES {
            self.simulation.resume(name);
            for other in NAMES {
                self.simulation.network().heal(name, other);
            }
        }
    }

    /// Lets the rest end: operations that wait for a partner that never comes are cancelled.
    fn finish(&mut self) {
        self.calm();
        self.simulation.run_for(Duration::from_secs(2));
        self.take();
        while let Some(user) = self.pending.keys().next().copied() {
            let Pending { actor, operation, .. } = self.pending[&user];
            self.cancelled.insert(user);
            self.actors[actor].endpoint.cancel(operation);
            self.ends_soon(user);
        }
        self.simulation.run_for(Duration::from_secs(2));
        self.take();
    }

    /// Between all of them messages go through as ever, and puts are where they were put.
    fn prove(&mut self) {
        for (actor, peer, slot, content) in std::mem::take(&mut self.put) {
            let user = self.number();
            let memory = self.memory(SLOT_BYTES as usize, 0);
            let at = (self.writable[peer], slot * SLOT_BYTES);
            self.access(actor, peer, What::Get { content }, at, memory, user);
        }
        let ended = |scene: &Scene| scene.pending.is_empty();
        for (from, to) in PAIRS {
            // Messages that were delivered although their sender cancelled them are received first.
            for _ in 0..3 {
                self.send(from, to);
            }
        }
        let sent: Vec<u64> = self.pending.keys().copied().collect();
        for _ in 0..400 {
            for at in 0..3 {
                self.receive(at);
            }
            self.simulation.run_for(Duration::from_millis(5));
            self.take();
            if sent.iter().all(|user| !self.pending.contains_key(user)) {
                break;
            }
        }
        assert!(sent.iter().all(|user| !self.pending.contains_key(user)), "the rest is stuck");
        let left: Vec<u64> = self.pending.keys().copied().collect();
        for user in left {
            let Pending { actor, operation, .. } = self.pending[&user];
            self.cancelled.insert(user);
            self.actors[actor].endpoint.cancel(operation);
        }
        self.simulation.run_for(SOON);
        self.take();
        assert!(ended(self), "{:?}", self.pending);
    }

    /// Of one sender's messages with a tag the earliest went to the earliest receive, each to one.
    fn check(&self) {
        for (between, messages) in &self.received {
            let mut messages = messages.clone();
            messages.sort_unstable();
            let in_order = messages.is_sorted_by(|before, after| before.1 < after.1);
            assert!(in_order, "{between:?}: {messages:?}");
        }
        for actor in &self.actors {
            let (counters, _) = actor.endpoint.counters();
            assert_eq!((counters.violations, counters.resets), (0, 0), "sessions stay up");
        }
    }

    fn check_abandoned(&mut self) {
        for memory in std::mem::take(&mut self.abandoned) {
            let buffer = memory.into_pooled().expect("memory of this test is pooled");
            assert!(buffer.iter().all(|byte| *byte == 0xEE), "late data received");
        }
    }
}

fn run(seeds: Seeds, mode: Mode, rail: SimConfig, path: Path) -> Coverage {
    let coverage = RefCell::new(Coverage::default());
    run_seeds(seeds, |simulation| {
        simulation.network().set_default_path(slow());
        let actors: Rc<RefCell<Vec<Rc<Actor>>>> = Rc::default();
        for name in NAMES {
            let (actors, rail) = (actors.clone(), rail.clone());
            simulation.add_node(name, Arc::new(VirtualDisk::new(0)), move |node| {
                actors.borrow_mut().push(boot(node, mode, rail.clone()));
            });
        }
        let random = simulation.fork_random();
        let actors = actors.take();
        let mut scene = Scene {
            simulation,
            random,
            actors,
            peers: BTreeMap::new(),
            pool: Pool::with_budget(1 << 30),
            pending: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            next: 0,
            readable: vec![None, None, None],
            writable: Vec::new(),
            slots_used: vec![0; 3],
            put: Vec::new(),
            received: BTreeMap::new(),
            senders: BTreeMap::new(),
            abandoned: Vec::new(),
        };
        for at in 0..3 {
            scene.expose(at);
            let memory = scene.memory((SLOTS * SLOT_BYTES) as usize, 0);
            let key = scene.actors[at].endpoint.expose(memory, true, Audience::Everybody);
            scene.writable.push(key.unwrap_or_else(|(_, fault)| panic!("no exposure: {fault}")));
        }
        scene.meet();
        scene.simulation.network().set_default_path(path);
        for _ in 0..TURNS {
            scene.turn();
        }
        scene.finish();
        scene.prove();
        scene.check();
        scene.check_abandoned();
        let mut sum = coverage.borrow_mut();
        sum.cancelled += scene.cancelled.len() as u64;
        sum.succeeded += scene.received.values().map(|list| list.len() as u64).sum::<u64>();
        for actor in &scene.actors {
            let (counters, _) = actor.endpoint.counters();
            sum.frames_detached += counters.frames_detached;
            sum.places_given_up += counters.places_given_up;
            sum.accesses_stopped += counters.accesses_stopped;
            sum.spans_kept += counters.spans_kept;
            sum.fragments += counters.fragments_sent;
        }
    });
    let coverage = coverage.into_inner();
    println!("{mode:?}: {coverage:?}");
    assert!(coverage.cancelled > 100 && coverage.succeeded > 100, "{coverage:?}");
    coverage
}

/// Slow enough that cancels meet frames in the middle.
fn slow() -> Path {
    Path { bytes_per_second: 200_000_000, ..Path::default() }
}

#[test]
fn cancels_over_streams_end_at_once_and_touch_nobody_else() {
    let coverage = run(seeds(0, 10), Mode::Fail, SimConfig::stream(), slow());
    assert!(coverage.frames_detached > 20 && coverage.places_given_up > 5, "{coverage:?}");
}

#[test]
fn cancels_of_messages_in_fragments_end_at_once_and_touch_nobody_else() {
    let mut rail = SimConfig::stream();
    rail.capabilities.frame_payload_bytes_max = SHORT_FRAMES;
    let coverage = run(seeds(80_000, 12), Mode::Fail, rail, slow());
    assert!(coverage.frames_detached > 20 && coverage.places_given_up > 5, "{coverage:?}");
    assert!(coverage.fragments > 500, "{coverage:?}");
}

#[test]
fn cancels_over_native_rails_end_at_once_and_touch_nobody_else() {
    let coverage = run(seeds(20_000, 10), Mode::Fail, SimConfig::native(), slow());
    assert!(coverage.frames_detached > 20 && coverage.accesses_stopped > 5, "{coverage:?}");
}

#[test]
fn cancels_of_sessions_that_resume_end_at_once_and_touch_nobody_else() {
    for rail in [SimConfig::stream(), SimConfig::native()] {
        let coverage = run(seeds(40_000, 7), Mode::Resume, rail, slow());
        assert!(coverage.frames_detached > 20 && coverage.spans_kept > 20, "{coverage:?}");
    }
}

#[test]
fn cancels_over_lossy_rails_end_at_once_and_touch_nobody_else() {
    let path = Path { loss: 20_000, duplication: 20_000, reordering: 50_000, ..slow() };
    let coverage = run(seeds(60_000, 8), Mode::Fail, SimConfig::datagram(), path);
    assert!(coverage.frames_detached > 20 && coverage.spans_kept > 20, "{coverage:?}");
}
