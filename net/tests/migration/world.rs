//! Endpoints with several rails each in a simulated network, whose sessions have as many paths.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ropewalk_base::ids::{ClusterId, EndpointId, Incarnation};
use ropewalk_base::memory::Memory;
use ropewalk_base::pool::Pool;
use ropewalk_base::time::Time;
use ropewalk_core::Plant;
use ropewalk_net::migration::{
    Connection, MigrationState, PathEvent, PathId, Policy, Role, Wanted, What,
};
use ropewalk_net::{
    Channel, Completed, Context, Endpoint, EndpointConfig, Level, Mode, Oversize, PeerId, Posted,
};
use ropewalk_rail::Rail;
use ropewalk_rail::address::Address;
use ropewalk_rail_sim::{SimConfig, SimNetwork};

/// Longer than anything takes here.
const LIMIT: Duration = Duration::from_secs(60);
pub const LEN: usize = 3000;
/// The path that each session begins with.
pub const FIRST: PathId = PathId(0);

pub struct Node {
    pub endpoint: Endpoint,
    pub context: Context,
    /// By the number of the other node.
    pub peers: Vec<Option<PeerId>>,
    pub done: VecDeque<Completed>,
    pub events: Vec<PathEvent>,
}

pub struct World {
    pub network: SimNetwork,
    pub nodes: Vec<Node>,
    rails: usize,
    clock: Arc<AtomicU64>,
    pool: Pool,
    sent: u64,
}

/// What is the same in all endpoints of a world.
#[derive(Clone, Copy)]
pub struct Setup {
    pub nodes: usize,
    pub rails: usize,
    pub policy: Policy,
    pub plant: Plant,
}

impl Setup {
    /// Two endpoints of two rails each.
    pub fn pair(policy: Policy) -> Setup {
        Setup { nodes: 2, rails: 2, policy, plant: Plant::Nothing }
    }
}

pub fn name(node: usize, rail: usize) -> String {
    format!("n{node}-{rail}")
}

impl World {
    /// Endpoints that know the address of each other's first rail, and have not called yet.
    pub fn new(seed: u64, setup: Setup) -> World {
        let mut world = World {
            network: SimNetwork::new(seed),
            nodes: Vec::new(),
            rails: setup.rails,
            clock: Arc::new(AtomicU64::new(0)),
            pool: Pool::with_budget(1 << 30),
            sent: 0,
        };
        for number in 0..setup.nodes {
            let node = world.open(number, setup);
            world.nodes.push(node);
        }
        world
    }

    /// The first of them has a session with each other one, with a path for each rail.
    pub fn met(seed: u64, setup: Setup) -> World {
        let mut world = World::new(seed, setup);
        world.meet();
        world
    }

    /// The first of them calls all others, and has a path for each rail to each.
    pub fn meet(&mut self) {
        let nodes = self.nodes.len();
        for other in 1..nodes {
            for (at, to) in [(0, other), (other, 0)] {
                let peer = self.peer(at, to);
                self.nodes[at].endpoint.connect(peer);
                self.until("its name", |world| {
                    let endpoint = &world.nodes[at].endpoint;
                    endpoint.peer_endpoint(peer).is_some() && endpoint.peer_rail(peer).is_some()
                });
            }
        }
        let all = self.rails;
        self.until("all paths", |world| {
            (1..nodes).all(|other| {
                let both = [(0, other), (other, 0)];
                both.iter().all(|(at, to)| world.roles(*at, *to).len() == all)
            })
        });
    }

    fn open(&self, number: usize, setup: Setup) -> Node {
        let rail = |rail| {
            let rail = self.network.rail(&name(number, rail), SimConfig::stream());
            Box::new(rail) as Box<dyn Rail>
        };
        let mut config = EndpointConfig::new(ClusterId(1));
        config.endpoint = EndpointId(number as u128 + 1);
        config.incarnation = Incarnation(1);
        config.host = 0;
        config.seed = number as u64;
        config.service_thread = false;
        config.core.mode = Mode::Resume;
        config.core.paths_max = setup.rails;
        config.core.path_policy = setup.policy;
        config.core.plant = setup.plant;
        let clock = self.clock.clone();
        config.clock = Arc::new(move || Time(clock.load(Ordering::Relaxed)));
        config.virtual_time = true;
        let endpoint = Endpoint::open(config, (0..setup.rails).map(rail).collect()).unwrap();
        let context = endpoint.context(true).unwrap();
        let lookup = |other: usize| {
            let address = Address::parse(&format!("sim://{}", name(other, 0))).unwrap();
            (other != number).then(|| endpoint.lookup(&address).unwrap())
        };
        let peers = (0..setup.nodes).map(lookup).collect();
        Node { endpoint, context, peers, done: VecDeque::new(), events: Vec::new() }
    }

    pub fn step(&mut self) {
        let mut any = false;
        for node in &mut self.nodes {
            any |= node.endpoint.progress();
            while let Some(completed) = node.endpoint.test(&node.context) {
                any = true;
                node.done.push_back(completed);
            }
            while let Some(event) = node.endpoint.next_path_event() {
                node.events.push(event);
            }
            node.endpoint.check();
        }
        if !any {
            let now = self.now();
            let deadlines = self.nodes.iter().filter_map(|node| node.endpoint.deadline());
            let next = deadlines.chain(self.network.next_event()).min();
            let next = next.unwrap_or(now + Duration::from_millis(1));
            let next = next.max(now + Duration::from_nanos(1));
            self.clock.store(next.0, Ordering::Relaxed);
            self.network.set_now(next);
        }
    }

    /// One pass of each, and the next ones after this time: as where one thread drives many.
    pub fn step_rarely(&mut self, every: Duration) {
        for node in &mut self.nodes {
            node.endpoint.progress();
            node.events.extend(std::iter::from_fn(|| node.endpoint.next_path_event()));
        }
        let next = self.now() + every;
        self.clock.store(next.0, Ordering::Relaxed);
        self.network.set_now(next);
    }

    /// Frames that all have sent so far.
    pub fn frames(&self) -> u64 {
        let rails = self.nodes.iter().flat_map(|node| node.endpoint.counters().1);
        rails.map(|(_, counters)| counters.frames_sent).sum()
    }

    pub fn now(&self) -> Time {
        Time(self.clock.load(Ordering::Relaxed))
    }

    /// Steps until something holds; how long that took.
    pub fn until(&mut self, what: &str, mut holds: impl FnMut(&mut World) -> bool) -> Duration {
        let begin = self.now();
        while !holds(self) {
            self.step();
            let took = self.now().since(begin);
            let events: Vec<_> = self.nodes.iter().map(|node| node.whats()).collect();
            assert!(took < LIMIT, "{what} is awaited in vain: {events:?}");
        }
        self.now().since(begin)
    }

    pub fn wait(&mut self, time: Duration) {
        let until = self.now() + time;
        self.until("some time", |world| world.now() >= until);
    }

    pub fn peer(&self, at: usize, other: usize) -> PeerId {
        self.nodes[at].peers[other].expect("another node")
    }

    fn memory(&self, len: usize, seed: u64) -> Memory {
        let mut buffer = self.pool.take(len).unwrap();
        buffer.fill(seed as u8);
        Memory::pooled(buffer)
    }

    fn note(&mut self, at: usize, posted: Result<Posted, (Memory, ropewalk_net::Fault)>) {
        match posted {
            Ok(Posted::Done(completed)) => self.nodes[at].done.push_back(completed),
            Ok(Posted::Pending(_)) => {}
            Err((_, fault)) => panic!("a post was refused: {fault}"),
        }
    }

    /// A message from one node to another; returns its number.
    pub fn send(&mut self, from: usize, to: usize) -> u64 {
        self.sent += 1;
        let number = self.sent;
        let (memory, node) = (self.memory(LEN, number), &self.nodes[from]);
        let (peer, level) = (self.peer(from, to), Level::Delivered);
        let (tagged, context) = (Channel::Tagged, &node.context);
        let posted = node.endpoint.post_send(context, peer, tagged, number, memory, level, 0);
        self.note(from, posted);
        number
    }

    pub fn receive(&mut self, at: usize, number: u64) {
        let (memory, node) = (self.memory(LEN, 0), &self.nodes[at]);
        let (tagged, cut, context) = (Channel::Tagged, Oversize::Truncate, &node.context);
        let posted = node.endpoint.post_receive(
            context,
            tagged,
            None,
            number,
            u64::MAX,
            memory,
            cut,
            number,
        );
        self.note(at, posted);
    }

    /// A message that its receiver has, as it was sent, and that its sender knows of. How long that took.
    pub fn pass(&mut self, from: usize, to: usize) -> Duration {
        let begin = self.now();
        let number = self.send(from, to);
        self.receive(to, number);
        let ends = |node: &mut Node, number: u64| {
            let at = node.done.iter().position(|done| done.user == number)?;
            node.done.remove(at)
        };
        let (mut sent, mut got) = (None, None);
        self.until("a message", |world| {
            sent = sent.take().or_else(|| ends(&mut world.nodes[from], 0));
            got = got.take().or_else(|| ends(&mut world.nodes[to], number));
            sent.is_some() && got.is_some()
        });
        let (sent, got) = (sent.unwrap(), got.unwrap());
        assert_eq!((sent.outcome, got.outcome, got.bits), (Ok(()), Ok(()), number));
        let node = &self.nodes[to];
        assert_eq!(got.peer.map(|peer| node.endpoint.resolve(peer)), Some(self.known(to, from)));
        assert!(got.memory.into_pooled().unwrap().iter().all(|byte| *byte == number as u8));
        self.now().since(begin)
    }

    /// The peer under which completions name it.
    pub fn known(&self, at: usize, other: usize) -> PeerId {
        self.nodes[at].endpoint.resolve(self.peer(at, other))
    }

    /// Messages both ways for a while; the longest that one took.
    pub fn traffic(&mut self, messages: usize) -> Duration {
        let pass = |world: &mut World| world.pass(0, 1).max(world.pass(1, 0));
        (0..messages).map(|_| pass(self)).max().unwrap_or_default()
    }

    pub fn roles(&self, at: usize, other: usize) -> Vec<(PathId, Role)> {
        let node = &self.nodes[at];
        let entries = node.endpoint.path_entries(self.peer(at, other));
        entries.iter().map(|(entry, role)| (entry.record.id, *role)).collect()
    }

    pub fn primary(&self, at: usize) -> PathId {
        let roles = self.roles(at, 1 - at);
        roles.iter().find(|(_, role)| *role == Role::Primary).expect("there is one").0
    }

    pub fn state(&self, at: usize, other: usize) -> MigrationState {
        let state = self.nodes[at].endpoint.path_state(self.peer(at, other));
        assert_eq!(state.connection, Connection::Rts);
        state.migration
    }

    pub fn both_are(&self, state: MigrationState) -> bool {
        self.state(0, 1) == state && self.state(1, 0) == state
    }

    pub fn specify(&self, at: usize) -> PathId {
        let node = &self.nodes[at];
        node.endpoint.specify_path(self.peer(at, 1 - at), Wanted::default()).expect("it is fit")
    }

    /// Bytes that the rails of a node have sent.
    pub fn bytes(&self, at: usize) -> Vec<u64> {
        let rails = self.nodes[at].endpoint.counters().1;
        rails.iter().map(|(_, counters)| counters.bytes_sent).collect()
    }

    /// Of two nodes with two rails each: a rail reaches no other than that of its number from now on.
    pub fn part_rails(&mut self) {
        for (from, to) in [(0, 1), (1, 0)] {
            let (from, to) = (name(0, from), name(1, to));
            self.network.change_paths(&from, &to, |path| path.blocked = true);
        }
    }

    /// Nothing comes through between two rails of one number.
    pub fn block(&mut self, rail: usize, blocked: bool) {
        self.block_to(1, rail, blocked);
    }

    /// The same between the first node and another one.
    pub fn block_to(&mut self, other: usize, rail: usize, blocked: bool) {
        for (from, to) in [(0, other), (other, 0)] {
            let (from, to) = (name(from, rail), name(to, rail));
            self.network.change_path(&from, &to, |path| path.blocked = blocked);
        }
    }

    /// Nobody broke the protocol, and each pair has the session that it began with.
    pub fn verify(&self) {
        for node in &self.nodes {
            let counters = node.endpoint.counters().0;
            assert_eq!((counters.violations, counters.resets), (0, 0));
            assert_eq!(node.endpoint.unmatched_count(), 0);
        }
    }
}

impl Node {
    pub fn whats(&self) -> Vec<What> {
        self.events.iter().map(|event| event.what).collect()
    }

    pub fn count(&self, is_such: impl Fn(&What) -> bool) -> usize {
        self.events.iter().filter(|event| is_such(&event.what)).count()
    }

    pub fn migrations(&self) -> usize {
        self.count(|what| matches!(what, What::Migrated { .. }))
    }
}
