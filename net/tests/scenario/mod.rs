//! Two endpoints with several rails each, under the faults and the operations of a plan, and what must hold.
#![allow(dead_code)]

mod commands;
mod faults;
pub mod log;
mod long;
pub mod plan;
pub mod seeds;
pub mod wire;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ropewalk_base::error::Fault as Outcome;
use ropewalk_base::ids::{ClusterId, EndpointId, Incarnation};
use ropewalk_base::memory::{Change, Element, Memory, Operator, Update};
use ropewalk_base::pool::Pool;
use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{RemoteKey, RemoteLayout};
use ropewalk_core::Plant;
use ropewalk_net::packets::PacketRail;
use ropewalk_net::{
    Atomic, Audience, Channel, Completed, Context, Counters, Direction, Endpoint, EndpointConfig,
    Level, OperationId, Oversize, PeerId, Posted,
};
use ropewalk_rail::Rail;
use ropewalk_rail::address::Address;
use ropewalk_rail_sim::{SimConfig, SimNetwork, Trace};

use log::{Log, Sent};
use plan::{Fault, Kind, LEN_MAX, Plan, Post};
use wire::{Befallen, Wire};

/// Virtual time that a run may take.
const LIMIT: Duration = Duration::from_secs(200);
const SIDES: [&str; 2] = ["left", "right"];
pub const CHANNELS: [Channel; 3] = [Channel::Tagged, Channel::Untagged, Channel::Request];
const LEVELS: [Level; 3] = [Level::Buffered, Level::Delivered, Level::Matched];

struct Node {
    endpoint: Endpoint,
    context: Context,
    peer: PeerId,
    /// Where the other side's accesses go: half of it is read, half of it is written.
    key: RemoteKey,
    pending: BTreeMap<u64, OperationId>,
}

/// What a run was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcomes {
    pub trace: u64,
    pub counters: [Counters; 2],
    pub befallen: Befallen,
    /// Links that were cut, and faults of other kinds that began.
    pub cuts: u64,
    pub faults: u64,
}

pub struct Scenario {
    pub plan: Plan,
    seed: u64,
    network: SimNetwork,
    wire: Wire,
    clock: Arc<AtomicU64>,
    nodes: Vec<Node>,
    lives: [u64; 2],
    paused: [u32; 2],
    pool: Pool,
    log: Log,
    trace: Trace,
    plant: Plant,
    steps: u64,
    check_every: u64,
    cuts: u64,
    faults: u64,
    /// Faults that are on, by side, rail and number.
    on: Vec<Option<Fault>>,
    /// Prints what happens, for a person who looks at one seed (`ROPEWALK_TELL=1`).
    tells: bool,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Begin(usize),
    End(usize),
    Post(usize),
    Cancel { side: usize, life: u64, user: u64 },
}

impl Scenario {
    pub fn new(seed: u64, plan: Plan, plant: Plant) -> Scenario {
        let mut scenario = Scenario {
            seed,
            network: SimNetwork::new(seed),
            wire: Wire::new(seed),
            clock: Arc::new(AtomicU64::new(0)),
            nodes: Vec::new(),
            lives: [1; 2],
            paused: [0; 2],
            pool: Pool::with_budget(1 << 30),
            log: Log::new(plan.accesses),
            trace: Trace::new(),
            plant,
            steps: 0,
            check_every: if seed < 20 { 1 } else { 256 },
            cuts: 0,
            faults: 0,
            on: vec![None; plan.faults.len()],
            tells: std::env::var_os("ROPEWALK_TELL").is_some(),
            plan,
        };
        scenario.lay_out();
        for side in 0..2 {
            let node = scenario.life(side);
            scenario.nodes.push(node);
        }
        scenario
    }

    fn name(side: usize, rail: usize) -> String {
        format!("{}-{rail}", SIDES[side])
    }

    fn pairs(&self) -> Vec<(usize, usize)> {
        let rails = self.plan.kinds.len();
        let all = (0..rails).flat_map(|left| (0..rails).map(move |right| (left, right)));
        all.filter(|(left, right)| self.plan.kinds[*left] == self.plan.kinds[*right]).collect()
    }

    /// Rails that are no pair do not reach each other, unless all do.
    fn lay_out(&self) {
        for (left, right) in self.pairs() {
            if left == right || self.plan.is_crossed {
                continue;
            }
            let names = [Self::name(0, left), Self::name(1, right)];
            self.network.change_paths(&names[0], &names[1], |path| path.refuse = true);
            for (from, to) in [(0, 1), (1, 0)] {
                self.wire.change(&names[from], &names[to], |way| way.blocked = true);
            }
        }
    }

    fn life(&self, side: usize) -> Node {
        let life = self.lives[side];
        let clock = self.clock.clone();
        let clock: ropewalk_net::endpoint::SharedClock =
            Arc::new(move || Time(clock.load(Ordering::Relaxed)));
        let mut rails: Vec<Box<dyn Rail>> = Vec::new();
        for (rail, kind) in self.plan.kinds.iter().enumerate() {
            let name = Self::name(side, rail);
            let config = match kind {
                Kind::Stream => SimConfig::stream(),
                Kind::Native => SimConfig::native(),
                Kind::Datagram => SimConfig::datagram(),
                Kind::Packets => {
                    let port = self.wire.port(&name, self.plan.packet_bytes);
                    let seed = (life * 2 + side as u64) * 8 + rail as u64;
                    let random = Random::from_seed(self.seed ^ seed << 32);
                    let packets = PacketRail::new(port, random, clock.clone());
                    rails.push(Box::new(packets.expect("there are descriptors")));
                    continue;
                }
            };
            rails.push(Box::new(self.network.rail(&name, config)));
        }
        let mut config = EndpointConfig::new(ClusterId(1));
        config.endpoint = EndpointId(side as u128 + 1);
        config.incarnation = Incarnation(life);
        config.host = 0;
        config.seed = self.seed * 1000 + side as u64 * 100 + life;
        config.service_thread = false;
        config.staging_bytes = self.plan.staging_bytes;
        config.core.mode = self.plan.modes[side];
        config.core.paths_max = self.plan.paths_max;
        config.core.links_max = if self.plan.parks { 0 } else { usize::MAX };
        config.core.operations_max = 4096;
        config.core.regions_max = 1024;
        config.core.plant = self.plant;
        config.core.path_policy = self.plan.policy;
        config.clock = clock;
        config.virtual_time = true;
        let endpoint = Endpoint::open(config, rails).expect("it opens");
        let context = endpoint.context(true).expect("there are descriptors");
        let other = self.address(1 - side);
        let peer = endpoint.lookup(&other).expect("it is an address");
        let region = self.memory(self.log.counter() + 8, 0);
        let key = endpoint.expose(region, true, Audience::Everybody).expect("there is room");
        Node { endpoint, context, peer, key, pending: BTreeMap::new() }
    }

    /// The address of a side's first rail.
    fn address(&self, side: usize) -> Address {
        let scheme = if self.plan.kinds[0] == Kind::Packets { wire::SCHEME } else { "sim" };
        let text = format!("{scheme}://{}", Self::name(side, 0));
        Address::parse(&text).expect("it is an address")
    }

    pub fn now(&self) -> Time {
        Time(self.clock.load(Ordering::Relaxed))
    }

    fn memory(&self, len: usize, seed: u64) -> Memory {
        let mut buffer = self.pool.take(len).expect("there is room");
        log::fill(&mut buffer, seed);
        Memory::pooled(buffer)
    }

    /// Memory with nothing that anybody sends.
    fn room(&self, len: usize) -> Memory {
        let mut buffer = self.pool.take(len).expect("there is room");
        buffer.fill(0xee);
        Memory::pooled(buffer)
    }

    /// One pass of each side; and time passes if nobody had work. Not beyond `until`.
    fn step(&mut self, until: Time) {
        let mut any = false;
        for side in 0..2 {
            if self.paused[side] > 0 {
                continue;
            }
            any |= self.nodes[side].endpoint.progress();
            while let Some(completed) = self.nodes[side].endpoint.test(&self.nodes[side].context) {
                any = true;
                self.completed(side, completed);
            }
            while let Some(request) = self.nodes[side].endpoint.next_request() {
                any = true;
                self.trace.mix(request.bits);
                self.log.request(side, request.bits, request.bytes());
            }
            if self.steps.is_multiple_of(self.check_every) {
                self.nodes[side].endpoint.check();
            }
        }
        self.steps += 1;
        assert!(self.steps < 3_000_000, "seed {}: it never rests", self.seed);
        if any {
            return;
        }
        let now = self.now();
        let awake = (0..2).filter(|side| self.paused[*side] == 0);
        let deadlines = awake.filter_map(|side| self.nodes[side].endpoint.deadline());
        let events = self.network.next_event().into_iter().chain(self.wire.next_event());
        let next = deadlines.chain(events).min().unwrap_or(until);
        let next = next.max(now + Duration::from_nanos(1)).min(until.max(now));
        self.clock.store(next.0, Ordering::Relaxed);
        self.network.set_now(next);
        self.wire.set_now(next);
    }

    fn completed(&mut self, side: usize, completed: Completed) {
        self.nodes[side].pending.remove(&completed.user);
        self.tell(|| {
            let Completed { user, outcome, bits, bytes, .. } = &completed;
            format!("{} ended {user}: {outcome:?}, bits {bits}, {bytes} bytes", SIDES[side])
        });
        self.trace.mix(completed.user);
        self.trace.mix(completed.outcome.map_or_else(|fault| fault as u64, |()| 99));
        self.trace.mix(completed.bytes);
        self.log.end(side, completed);
    }

    fn tell(&self, what: impl FnOnce() -> String) {
        if self.tells {
            eprintln!("{:>12} {}", self.now().0, what());
        }
    }

    fn noted(&mut self, side: usize, user: u64, posted: Result<Posted, (Memory, Outcome)>) {
        match posted {
            Ok(Posted::Done(completed)) => self.completed(side, completed),
            Ok(Posted::Pending(id)) => _ = self.nodes[side].pending.insert(user, id),
            Err((_, fault)) => panic!("seed {}: a post was refused: {fault}", self.seed),
        }
    }

    fn send(&mut self, side: usize, channel: usize, len: usize, level: Level) -> u64 {
        let sent = Sent { side, channel, len, level };
        let user = self.log.send(sent);
        self.tell(|| format!("{} sends {user}: {sent:?}", SIDES[side]));
        let memory = self.memory(len, user);
        let node = &self.nodes[side];
        let (peer, channel) = (node.peer, CHANNELS[channel]);
        let posted =
            node.endpoint.post_send(&node.context, peer, channel, user, memory, level, user);
        self.noted(side, user, posted);
        user
    }

    fn receive(&mut self, side: usize, channel: usize, len: usize, from_all: bool) -> u64 {
        let user = self.log.receive(side, channel, len, self.lives[side]);
        self.tell(|| format!("{} receives {user}: channel {channel}, {len} bytes", SIDES[side]));
        let memory = self.room(len);
        let node = &self.nodes[side];
        // The other side is known by its address only where both have met.
        let from_all = from_all || !self.plan.meets || self.lives != [1; 2];
        let (source, cut) = ((!from_all).then_some(node.peer), Oversize::Truncate);
        let (channel, any) = (CHANNELS[channel], 0);
        let posted =
            node.endpoint.post_receive(&node.context, channel, source, any, any, memory, cut, user);
        self.noted(side, user, posted);
        user
    }

    /// An access to a place that no other one has, if there is one.
    fn access(&mut self, side: usize, direction: Direction, len: usize) -> Option<u64> {
        let (user, place) = self.log.access(side, direction, len, self.lives)?;
        self.tell(|| format!("{} accesses {user}: {direction:?} {len} bytes", SIDES[side]));
        let memory =
            if direction == Direction::Put { self.memory(len, user) } else { self.room(len) };
        let (node, key) = (&self.nodes[side], self.nodes[1 - side].key);
        let remote = RemoteLayout::At(place as u64);
        let posted = node.endpoint.post_access(
            &node.context,
            direction,
            node.peer,
            key,
            remote,
            memory,
            user,
        );
        self.noted(side, user, posted);
        Some(user)
    }

    fn count(&mut self, side: usize) -> u64 {
        let user = self.log.count(side, self.lives);
        self.tell(|| format!("{} counts {user}", SIDES[side]));
        let (node, key) = (&self.nodes[side], self.nodes[1 - side].key);
        let update = Update::new(Element::U64, Operator::Sum).expect("they fit");
        let change = Change::One { update, operand: 1u64.to_le_bytes() };
        let atomic = Atomic { change, fetch: true, token: false };
        let at = self.log.counter() as u64;
        let posted = node.endpoint.post_atomic(&node.context, node.peer, key, at, atomic, user);
        self.noted(side, user, posted.map_err(|fault| (Memory::empty(), fault)));
        user
    }

    fn post(&mut self, index: usize, events: &mut BTreeMap<(Time, usize), Event>) {
        let posting = self.plan.postings[index];
        let side = posting.side;
        let user = match posting.post {
            Post::Send { channel, len, level } => {
                Some(self.send(side, channel, len, LEVELS[level]))
            }
            Post::Receive { channel, len, from_all } => {
                Some(self.receive(side, channel, len, from_all))
            }
            Post::Access { direction, len } => self.access(side, direction, len),
            Post::Count => Some(self.count(side)),
            Post::Order(order) => {
                self.order(side, order);
                None
            }
        };
        if let (Some(user), Some(after)) = (user, posting.cancel) {
            let cancel = Event::Cancel { side, life: self.lives[side], user };
            events.insert((self.now() + after, 100_000 + index), cancel);
        }
    }

    fn cancel(&mut self, side: usize, life: u64, user: u64) {
        if life != self.lives[side] {
            return;
        }
        if let Some(id) = self.nodes[side].pending.get(&user) {
            self.tell(|| format!("{} cancels {user}", SIDES[side]));
            self.log.cancelled(user);
            self.nodes[side].endpoint.cancel(*id);
        }
    }
}

/// The run.
impl Scenario {
    fn late(&self, begin: Time, what: &str) {
        if self.now().since(begin) < LIMIT {
            return;
        }
        for (node, name) in self.nodes.iter().zip(SIDES) {
            let (counters, _) = node.endpoint.counters();
            eprintln!("{name}: {:?}", node.endpoint.held());
            eprintln!("pending {:?}, {counters:?}", node.pending.keys());
        }
        panic!("seed {}: stuck: {what}: {}", self.seed, self.log.open());
    }

    /// Has both send a request, so that each knows the other.
    fn meet(&mut self) {
        let begin = self.now();
        let first = [0, 1].map(|side| self.send(side, 2, 1, Level::Delivered));
        while !first.iter().all(|user| self.log.has(*user) && self.log.outcome(*user).is_some()) {
            let until = self.now() + Duration::from_secs(1);
            self.step(until);
            self.late(begin, "they do not meet");
        }
    }

    pub fn run(mut self) -> Outcomes {
        if self.plan.meets {
            self.meet();
        }
        let start = self.now();
        let mut events = BTreeMap::new();
        let leave = dropped();
        for (index, fault) in self.plan.faults.iter().enumerate() {
            if leave.contains(&index) {
                continue;
            }
            let begin = start + fault.at;
            events.insert((begin, index), Event::Begin(index));
            events.insert((begin + fault.long, 1000 + index), Event::End(index));
        }
        for (index, posting) in self.plan.postings.iter().enumerate() {
            events.insert((start + posting.at, 10_000 + index), Event::Post(index));
        }
        while let Some((&(at, _), _)) = events.first_key_value() {
            if at > self.now() {
                self.step(at);
                continue;
            }
            let (_, event) = events.pop_first().expect("there is one");
            match event {
                Event::Begin(index) => self.begin(index),
                Event::End(index) => self.end(index),
                Event::Post(index) => self.post(index, &mut events),
                Event::Cancel { side, life, user } => self.cancel(side, life, user),
            }
        }
        self.finish();
        self.log.verify(self.seed, self.plan.may_reset());
        let counters = [0, 1].map(|side| self.nodes[side].endpoint.counters().0);
        for counters in &counters {
            assert_eq!(counters.violations, 0, "seed {}: violations", self.seed);
            let reset = self.plan.may_reset();
            assert!(reset || counters.sessions == 1, "seed {}: sessions", self.seed);
        }
        self.trace.mix(self.network.trace_hash());
        self.trace.mix(self.wire.trace_hash());
        self.trace.mix(self.now().0);
        let befallen = self.wire.befallen();
        let (cuts, faults) = (self.cuts, self.faults);
        Outcomes { trace: self.trace.value(), counters, befallen, cuts, faults }
    }

    /// All is mended. Takes what was sent, ends what still waits, and sees that nothing is left.
    fn finish(&mut self) {
        for side in 0..2 {
            for channel in 0..3 {
                self.take_all(side, channel);
            }
        }
        let begin = self.now();
        let soon = |scenario: &Scenario| scenario.now() + Duration::from_secs(1);
        for side in 0..2 {
            let receives: Vec<u64> = self.nodes[side].pending.keys().copied().collect();
            for user in receives {
                if self.log.is_receive(user) {
                    self.cancel(side, self.lives[side], user);
                }
            }
        }
        while self.nodes.iter().any(|node| !node.pending.is_empty()) {
            let until = soon(self);
            self.step(until);
            self.late(begin, "operations do not end");
        }
        for side in 0..2 {
            let node = &self.nodes[side];
            node.endpoint.unexpose(node.key, &node.context, log::REGION).expect("it is exposed");
        }
        while self.log.regions() < 2 {
            let until = soon(self);
            self.step(until);
            self.late(begin, "regions do not come back");
        }
        let quiet = |node: &Node| {
            let (held, buffers, bytes) = node.endpoint.held();
            // The addresses of the endpoint, and the bytes of its probes, are buffers of their own.
            held == Default::default() && buffers <= 2 && bytes == 0
        };
        while !self.nodes.iter().all(quiet) {
            let until = soon(self);
            self.step(until);
            self.late(begin, "something is held");
        }
        self.nodes.iter().for_each(|node| node.endpoint.check());
        for (node, name) in self.nodes.iter().zip(SIDES) {
            for event in node.endpoint.path_history(0).events {
                self.tell(|| format!("{name} tells of its paths: {event:?}"));
            }
        }
    }

    /// Receives at the other side until it has the last message of a channel.
    fn take_all(&mut self, side: usize, channel: usize) {
        let begin = self.now();
        let level = if channel == 2 { Level::Delivered } else { Level::Matched };
        loop {
            let last = self.send(side, channel, 100, level);
            self.log.last(last);
            let mut waits = None;
            let here = loop {
                let until = self.now() + Duration::from_secs(1);
                self.step(until);
                self.late(begin, "the last message does not arrive");
                let outcome = self.log.outcome(last);
                if outcome == Some(Ok(())) && self.log.has(last) {
                    break true;
                }
                if outcome.is_some_and(|outcome| outcome.is_err()) {
                    break false;
                }
                let open = self.log.has_open_receive(1 - side, channel);
                let waited = waits.is_some_and(|user| self.log.outcome(user).is_none());
                if channel < 2 && !open && !waited && !self.log.has(last) {
                    waits = Some(self.receive(1 - side, channel, LEN_MAX, true));
                }
            };
            if here {
                return;
            }
            assert!(self.plan.may_reset(), "seed {}: {:?}", self.seed, self.log.outcome(last));
        }
    }
}

/// Faults that are left out, for a person who looks for the one that matters: `ROPEWALK_LEAVE_OUT=3,5`.
fn dropped() -> Vec<usize> {
    let text = std::env::var("ROPEWALK_LEAVE_OUT").unwrap_or_default();
    text.split(',').filter_map(|number| number.trim().parse().ok()).collect()
}
