//! Messages over two paths at once: whatever befalls one path, and whenever, each message takes as long as over the other
//! one alone; and none is lost, doubled or reordered.

mod scenario;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ropewalk_base::ids::{ClusterId, EndpointId, Incarnation};
use ropewalk_base::memory::Memory;
use ropewalk_base::pool::Pool;
use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_core::Plant;
use ropewalk_net::endpoint::SharedClock;
use ropewalk_net::packets::PacketRail;
use ropewalk_net::{
    Channel, Context, Counters, Endpoint, EndpointConfig, Level, Mode, Oversize, PeerId, Posted,
};
use ropewalk_rail::Rail;
use ropewalk_rail::address::Address;
use ropewalk_rail_sim::{Cut, SimConfig, SimNetwork};
use scenario::log::{fill, pattern};
use scenario::seeds::{each, seeds};
use scenario::wire::{self, Way, Wire};

const MESSAGES: u64 = 300;
/// All of them leave at once: longer ones may be announced.
const LEN_MAX: u64 = 32_000;
/// What a message may take longer than over a path of its own: an acknowledgement of another one, or a probe, goes first.
const SLACK: Duration = Duration::from_micros(150);
/// The rest of a run: all is mended.
const REST: Duration = Duration::from_secs(5);

/// What befalls a path.
#[derive(Debug, Clone, Copy)]
enum What {
    /// Nothing passes there, or back.
    Block([bool; 2]),
    /// So many packets of a million are lost.
    Lossy(u32),
    Slow {
        bytes_per_second: u64,
    },
    Late(Duration),
    Cut(Cut),
}

/// What a seed does.
#[derive(Debug)]
struct Plan {
    /// Links of packets, on which a message can hang in its middle; else streams.
    packets: bool,
    what: What,
    /// The rail that it befalls, when, and for how long.
    rail: usize,
    at: Duration,
    long: Duration,
    /// When each message is posted, its bytes, and whether it is one of those that go twice.
    messages: Vec<(Duration, usize, bool)>,
}

impl Plan {
    fn of(seed: u64) -> Plan {
        let mut random = Random::from_seed(seed);
        let packets = seed.is_multiple_of(2);
        let us = |random: &mut Random, least: u64, most: u64| {
            Duration::from_micros(least + random.below(most - least))
        };
        let what = match random.below(if packets { 5 } else { 7 }) {
            0 => What::Block([true, true]),
            1 => What::Block([true, false]),
            2 => What::Block([false, true]),
            3 => What::Slow { bytes_per_second: 1_000_000 + random.below(10_000_000) },
            4 if packets => What::Lossy(100_000 + random.below(500_000) as u32),
            4 => What::Late(us(&mut random, 1000, 100_000)),
            5 => What::Cut(Cut::Both),
            _ => What::Cut(Cut::Silent),
        };
        let mut at = Duration::from_millis(2);
        let messages = (0..MESSAGES).map(|_| {
            at += us(&mut random, 100, 2000);
            let magnitude = 3 + random.below(14);
            let len = 8 + random.below(1 << magnitude).min(LEN_MAX) as usize;
            (at, len, random.below(8) > 0)
        });
        let messages = messages.collect();
        let rail = random.below(2) as usize;
        let (at, long) = (us(&mut random, 10_000, 250_000), us(&mut random, 500, 200_000));
        Plan { packets, what, rail, at, long, messages }
    }
}

impl Plan {
    fn fault(&self) -> String {
        let Plan { packets, what, rail, at, long, .. } = self;
        format!("packets {packets}, rail {rail}, from {at:?} for {long:?}: {what:?}")
    }
}

struct Node {
    endpoint: Endpoint,
    context: Context,
    peer: PeerId,
}

struct World {
    network: SimNetwork,
    wire: Wire,
    clock: Arc<AtomicU64>,
    pool: Pool,
    nodes: Vec<Node>,
    packets: bool,
    steps: u64,
    /// By number of a receive: the message, its bytes, and when it was there.
    received: BTreeMap<u64, (u64, u64, Time)>,
    sent: u64,
}

fn name(side: usize, rail: usize) -> String {
    format!("{}-{rail}", ["left", "right"][side])
}

impl World {
    fn new(seed: u64, packets: bool, rails: usize, plant: Plant) -> World {
        let mut world = World {
            network: SimNetwork::new(seed),
            wire: Wire::new(seed),
            clock: Arc::new(AtomicU64::new(0)),
            pool: Pool::with_budget(1 << 30),
            nodes: Vec::new(),
            packets,
            steps: 0,
            received: BTreeMap::new(),
            sent: 0,
        };
        for rail in 0..2 {
            for side in 0..2 {
                world.set(side, rail, |_| ());
                // Rails that are no pair do not reach each other.
                let (from, to) = (name(side, rail), name(1 - side, 1 - rail));
                world.wire.change(&from, &to, |way| way.blocked = true);
                world.network.change_path(&from, &to, |path| path.refuse = true);
            }
        }
        for side in 0..2 {
            let node = world.node(side, rails, plant);
            world.nodes.push(node);
        }
        world
    }

    fn node(&self, side: usize, rails: usize, plant: Plant) -> Node {
        let clock = self.clock.clone();
        let clock: SharedClock = Arc::new(move || Time(clock.load(Ordering::Relaxed)));
        let rail = |rail: usize| -> Box<dyn Rail> {
            let name = name(side, rail);
            if !self.packets {
                return Box::new(self.network.rail(&name, SimConfig::stream()));
            }
            let random = Random::from_seed((side * 2 + rail) as u64);
            let port = self.wire.port(&name, 1500);
            Box::new(PacketRail::new(port, random, clock.clone()).expect("there are descriptors"))
        };
        let rails: Vec<Box<dyn Rail>> = (0..rails).map(rail).collect();
        let mut config = EndpointConfig::new(ClusterId(1));
        config.endpoint = EndpointId(side as u128 + 1);
        config.incarnation = Incarnation(1);
        config.host = 0;
        config.seed = side as u64;
        config.service_thread = false;
        config.core.mode = Mode::Resume;
        config.core.paths_max = rails.len();
        // So much that none is announced for want of credit.
        config.core.eager_window_bytes = 1 << 20;
        config.core.plant = plant;
        config.clock = clock.clone();
        let endpoint = Endpoint::open(config, rails).expect("it opens");
        let context = endpoint.context(true).expect("there are descriptors");
        let scheme = if self.packets { wire::SCHEME } else { "sim" };
        let address = format!("{scheme}://{}", name(1 - side, 0));
        let address = Address::parse(&address).expect("it is an address");
        let peer = endpoint.lookup(&address).expect("it is an address");
        Node { endpoint, context, peer }
    }

    /// Sets the way out of a side's rail; a way that nothing befalls has a gigabyte a second.
    fn set(&self, side: usize, rail: usize, change: impl FnOnce(&mut Way)) {
        let (from, to) = (name(side, rail), name(1 - side, rail));
        let mut way = Way::default();
        change(&mut way);
        self.wire.change(&from, &to, |it| *it = way);
        self.network.change_path(&from, &to, |path| {
            path.latency = way.latency;
            path.bytes_per_second = way.bytes_per_second;
            path.blocked = way.blocked;
        });
    }

    fn befall(&self, plan: &Plan, begins: bool) {
        for side in 0..2 {
            self.set(side, plan.rail, |way| match plan.what {
                _ if !begins => {}
                What::Block(ways) => way.blocked = ways[side],
                What::Lossy(loss) => way.loss = loss,
                What::Slow { bytes_per_second } => way.bytes_per_second = bytes_per_second,
                What::Late(latency) => way.latency = latency,
                What::Cut(_) => {}
            });
        }
        if let What::Cut(cut) = plan.what
            && begins
        {
            self.network.cut(&name(0, plan.rail), &name(1, plan.rail), cut);
        }
    }

    fn now(&self) -> Time {
        Time(self.clock.load(Ordering::Relaxed))
    }

    /// One pass of each side; and time passes if nobody had work. Not beyond `until`.
    fn step(&mut self, until: Time) {
        let mut any = false;
        for side in 0..2 {
            any |= self.nodes[side].endpoint.progress();
            while let Some(completed) = self.nodes[side].endpoint.test(&self.nodes[side].context) {
                any = true;
                self.completed(side, completed);
            }
            if self.steps.is_multiple_of(64) {
                self.nodes[side].endpoint.check();
            }
        }
        self.steps += 1;
        assert!(self.steps < 3_000_000, "it never rests");
        if any {
            return;
        }
        let now = self.now();
        let deadlines = self.nodes.iter().filter_map(|node| node.endpoint.deadline());
        let events = self.network.next_event().into_iter().chain(self.wire.next_event());
        let next = deadlines.chain(events).min().unwrap_or(until);
        let next = next.max(now + Duration::from_nanos(1)).min(until.max(now));
        self.clock.store(next.0, Ordering::Relaxed);
        self.network.set_now(next);
        self.wire.set_now(next);
    }

    fn completed(&mut self, side: usize, completed: ropewalk_net::Completed) {
        assert_eq!(completed.outcome, Ok(()), "{} of side {side}", completed.user);
        if side == 0 {
            self.sent += 1;
            return;
        }
        let bytes = completed.memory.into_pooled().expect("it was pooled");
        let message = completed.bits;
        for (index, byte) in bytes[..completed.bytes as usize].iter().enumerate() {
            assert_eq!(*byte, pattern(index, message), "message {message}, byte {index}");
        }
        let entry = (message, completed.bytes, self.now());
        assert!(self.received.insert(completed.user, entry).is_none(), "a receive ended twice");
    }

    fn noted(&mut self, side: usize, posted: Posted) {
        if let Posted::Done(completed) = posted {
            self.completed(side, completed);
        }
    }

    fn send(&mut self, message: u64, len: usize, channel: Channel) {
        let mut buffer = self.pool.take(len).expect("there is room");
        fill(&mut buffer, message);
        let node = &self.nodes[0];
        let (memory, level) = (Memory::pooled(buffer), Level::Buffered);
        let (context, peer) = (&node.context, node.peer);
        let posted =
            node.endpoint.post_send(context, peer, channel, message, memory, level, message);
        self.noted(0, posted.expect("there is room"));
    }

    fn receive(&mut self, number: u64, channel: Channel) {
        let memory = Memory::pooled(self.pool.take(LEN_MAX as usize + 8).expect("there is room"));
        let node = &self.nodes[1];
        let cut = Oversize::Refuse;
        let posted =
            node.endpoint.post_receive(&node.context, channel, None, 0, 0, memory, cut, number);
        self.noted(1, posted.expect("there is room"));
    }

    fn counters(&self) -> [Counters; 2] {
        [0, 1].map(|side: usize| self.nodes[side].endpoint.counters().0)
    }

    /// Steps until the session has as many paths as there are rails.
    fn join(&mut self, rails: usize) {
        self.receive(0, Channel::Tagged);
        self.send(0, 10, Channel::Tagged);
        let joined = rails as u64 - 1;
        while self.received.is_empty() || self.counters().iter().any(|it| it.paths_joined < joined)
        {
            let until = self.now() + Duration::from_millis(1);
            self.step(until);
            assert!(self.now() < Time::ZERO + Duration::from_secs(5), "no path joins");
        }
        // Probes, and the arming of an alternate.
        let until = self.now() + Duration::from_millis(200);
        while self.now() < until {
            self.step(until);
        }
        self.received.clear();
        self.sent = 0;
    }
}

/// What a run was: how long each message that goes twice took, and the counters.
struct Run {
    took: Vec<Duration>,
    counters: [Counters; 2],
}

/// Runs the messages of a plan, over so many rails, of which one path fails if there are two.
fn run(seed: u64, rails: usize, redundant: bool, plant: Plant) -> Run {
    let plan = Plan::of(seed);
    let mut world = World::new(seed, plan.packets, rails, plant);
    world.join(rails);
    let peer = world.nodes[0].peer;
    world.nodes[0].endpoint.set_redundant(peer, Channel::Tagged, redundant);
    let channels = [Channel::Untagged, Channel::Tagged];
    for (number, (_, _, twice)) in (1..).zip(&plan.messages) {
        world.receive(number, channels[usize::from(*twice)]);
    }
    let start = world.now();
    let mut events: BTreeSet<(Duration, Option<u64>)> =
        (1..).zip(&plan.messages).map(|(number, it)| (it.0, Some(number))).collect();
    if rails == 2 {
        events.insert((plan.at, None));
    }
    let (mut posted, mut fails) = (BTreeMap::new(), true);
    while let Some((at, event)) = events.pop_first() {
        while world.now() < start + at {
            world.step(start + at);
        }
        match event {
            Some(number) => {
                let (_, len, twice) = plan.messages[number as usize - 1];
                posted.insert(number, world.now());
                world.send(number, len, channels[usize::from(twice)]);
            }
            None => {
                world.befall(&plan, fails);
                if std::mem::take(&mut fails) {
                    events.insert((plan.at + plan.long, None));
                }
            }
        }
    }
    let took = finish(seed, &plan, &mut world, &posted);
    Run { took, counters: world.counters() }
}

/// All is mended: what was sent is there, once and in order, and nothing is held.
fn finish(
    seed: u64,
    plan: &Plan,
    world: &mut World,
    posted: &BTreeMap<u64, Time>,
) -> Vec<Duration> {
    let until = world.now() + REST;
    let quiet = |node: &Node| {
        let (held, buffers, bytes) = node.endpoint.held();
        held == Default::default() && buffers <= 2 && bytes == 0
    };
    loop {
        let is_here = world.received.len() as u64 == MESSAGES && world.sent == MESSAGES;
        if is_here && world.nodes.iter().all(quiet) {
            break;
        }
        let held = [0, 1].map(|side: usize| world.nodes[side].endpoint.held());
        let count = (world.received.len(), world.sent);
        assert!(world.now() < until, "seed {seed}: {count:?} ended: {held:?}, {}", plan.fault());
        world.step(until);
    }
    let mut last = [0; 2];
    let mut took = Vec::new();
    for (message, bytes, at) in world.received.values() {
        let (_, len, twice) = plan.messages[*message as usize - 1];
        assert_eq!(*bytes, len as u64, "seed {seed}: message {message}");
        let last = &mut last[usize::from(twice)];
        assert!(*message > *last, "seed {seed}: {message} after {last}");
        *last = *message;
        if twice {
            took.push(at.since(posted[message]));
        }
    }
    for counters in world.counters() {
        assert_eq!((counters.violations, counters.sessions), (0, 1), "seed {seed}");
        assert_eq!(counters.messages_announced, 0, "seed {seed}");
    }
    took
}

#[test]
fn a_message_over_two_paths_takes_as_long_as_over_the_better_one() {
    let (mut twice, mut taken_over, mut longest) = (0, 0, Duration::ZERO);
    let compare = |seed| {
        let alone = run(seed, 1, false, Plant::Nothing);
        let both = run(seed, 2, true, Plant::Nothing);
        for (number, (took, alone)) in both.took.iter().zip(&alone.took).enumerate() {
            assert!(
                took.saturating_sub(*alone) <= SLACK,
                "seed {seed}: the {number}th took {took:?}, and {alone:?} alone: {}",
                Plan::of(seed).fault()
            );
        }
        let longer =
            both.took.iter().zip(&alone.took).map(|(took, alone)| took.saturating_sub(*alone));
        (longer.max(), both.counters)
    };
    each(seeds(100), compare, |(longer, counters)| {
        longest = longest.max(longer.unwrap_or_default());
        twice += counters[0].spans_redundant;
        taken_over += counters[1].spans_taken_over;
    });
    println!("{twice} spans went twice, {taken_over} were taken over, at most {longest:?} longer");
    assert!(twice > 0);
}

#[test]
fn over_one_path_at_a_time_some_wait_for_a_time_out() {
    let late = |seed: u64| {
        let took = run(seed, 2, false, Plant::Nothing).took;
        took.into_iter().max().is_some_and(|longest| longest > Duration::from_millis(3))
    };
    let late = (0..20).filter(|seed| late(*seed)).count();
    assert!(late > 5, "{late} of 20 runs");
}

#[test]
fn a_dropped_filter_of_duplicates_is_found() {
    let plant = Plant::DuplicatesTaken;
    let fails = |seed: &u64| std::panic::catch_unwind(|| run(*seed, 2, true, plant)).is_err();
    let found = (0..20).find(fails);
    println!("found by seed {}", found.expect("it is found"));
}
