//! Mode `Resume` over a network that cuts, loses, doubles, reorders and corrupts: every message
//! arrives once and in order, every put and get is right, and a seed reproduces its run exactly.

#[path = "scenario/seeds.rs"]
mod seeds;

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
use ropewalk_core::Plant;
use ropewalk_net::{
    Audience, Channel, Completed, Context, Counters, Direction, Endpoint, EndpointConfig, Level,
    Mode, Oversize, PeerId, Posted,
};
use ropewalk_rail::Rail;
use ropewalk_rail::address::Address;
use ropewalk_rail_sim::{Cut, Kill, Path, SimConfig, SimNetwork};
use seeds::{each, seeds};

const NAMES: [&str; 2] = ["left", "right"];
/// Their second rails, where they have two.
const SECOND: [&str; 2] = ["left-b", "right-b"];

struct Node {
    endpoint: Endpoint,
    context: Context,
    peer: PeerId,
    done: Vec<Completed>,
}

struct Sim {
    network: SimNetwork,
    clock: Arc<AtomicU64>,
    nodes: Vec<Node>,
    pool: Pool,
    random: Random,
    kind: u64,
    /// Rails of each endpoint, so that a session has as many paths.
    rails: usize,
    steps: u64,
    check_every: u64,
    plant: Plant,
}

impl Sim {
    fn new(seed: u64) -> Sim {
        Sim::with(seed, 1, Plant::Nothing)
    }

    fn with(seed: u64, rails: usize, plant: Plant) -> Sim {
        let mut sim = Sim {
            network: SimNetwork::new(seed),
            clock: Arc::new(AtomicU64::new(0)),
            nodes: Vec::new(),
            pool: Pool::with_budget(1 << 30),
            random: Random::from_seed(seed),
            // Only a rail that loses nothing carries one path of several.
            kind: seed % if rails > 1 { 2 } else { 3 },
            rails,
            steps: 0,
            check_every: if seed < 12 { 1 } else { 64 },
            plant,
        };
        if sim.kind == 2 {
            let mut path = sim.network.path(NAMES[0], NAMES[1]);
            path.loss = 50_000;
            path.duplication = 50_000;
            path.reordering = 100_000;
            path.header_corruption = 20_000;
            path.payload_corruption = 20_000;
            sim.network.set_default_path(path);
        }
        for number in 0..2 {
            let node = sim.life(number, 1);
            sim.nodes.push(node);
        }
        sim
    }

    /// Makes both know each other: only then a receive from the one is known to mean the other.
    fn meet(&mut self) {
        self.send(0, Channel::Request, 0, 0, 1);
        self.send(1, Channel::Request, 0, 0, 1);
        let met = |node: &Node| {
            let known = node.endpoint.peer_rail(node.peer).is_some();
            known && node.endpoint.next_request().is_some()
        };
        let mut left = [true, true];
        while left != [false, false] || self.nodes.iter().any(|node| node.done.is_empty()) {
            self.step();
            for (node, left) in self.nodes.iter().zip(&mut left) {
                *left &= !met(node);
            }
            assert!(self.now() < LIMIT, "they do not meet: {left:?}");
        }
        self.nodes.iter_mut().for_each(|node| node.done.clear());
    }

    /// A process under its fixed name; `life` counts its restarts.
    fn life(&self, number: usize, life: u64) -> Node {
        let config = match self.kind {
            0 => SimConfig::stream(),
            1 => SimConfig::native(),
            _ => SimConfig::datagram(),
        };
        let names = [NAMES[number], SECOND[number]].into_iter().take(self.rails);
        let rails =
            names.map(|name| Box::new(self.network.rail(name, config.clone())) as Box<dyn Rail>);
        let rails = rails.collect();
        let mut config = EndpointConfig::new(ClusterId(1));
        config.endpoint = EndpointId(number as u128 + 1);
        config.incarnation = Incarnation(life);
        config.host = 0;
        config.seed = number as u64 * 1000 + life;
        config.service_thread = false;
        // Sessions that may have several paths go on in either mode.
        let fails = self.rails > 1 && self.random.clone().next_u64() & 1 == 0;
        config.core.mode = if fails { Mode::Fail } else { Mode::Resume };
        config.core.paths_max = self.rails;
        config.core.plant = self.plant;
        let clock = self.clock.clone();
        config.clock = Arc::new(move || Time(clock.load(Ordering::Relaxed)));
        config.virtual_time = true;
        let endpoint = Endpoint::open(config, rails).unwrap();
        let context = endpoint.context(true).unwrap();
        let address = Address::parse(&format!("sim://{}", NAMES[1 - number])).unwrap();
        let peer = endpoint.lookup(&address).unwrap();
        Node { endpoint, context, peer, done: Vec::new() }
    }

    fn step(&mut self) {
        let mut any = false;
        for node in &mut self.nodes {
            any |= node.endpoint.progress();
            while let Some(completed) = node.endpoint.test(&node.context) {
                any = true;
                node.done.push(completed);
            }
            // Recounting everything costs a hundred times as much as a step.
            if self.steps.is_multiple_of(self.check_every) {
                node.endpoint.check();
            }
        }
        self.steps += 1;
        if !any {
            let now = Time(self.clock.load(Ordering::Relaxed));
            let deadlines = self.nodes.iter().filter_map(|node| node.endpoint.deadline());
            let next = deadlines.chain(self.network.next_event()).min();
            let next = next.unwrap_or(now + Duration::from_millis(1));
            let next = next.max(now + Duration::from_nanos(1));
            self.clock.store(next.0, Ordering::Relaxed);
            self.network.set_now(next);
        }
    }

    fn now(&self) -> Time {
        Time(self.clock.load(Ordering::Relaxed))
    }

    fn memory(&self, len: usize, seed: u64) -> Memory {
        let mut buffer = self.pool.take(len).unwrap();
        for (index, byte) in buffer.iter_mut().enumerate() {
            *byte = pattern(index, seed);
        }
        Memory::pooled(buffer)
    }

    fn note(&mut self, node: usize, posted: Result<Posted, (Memory, Fault)>) {
        match posted {
            Ok(Posted::Done(completed)) => self.nodes[node].done.push(completed),
            Ok(Posted::Pending(_)) => {}
            Err((_, fault)) => panic!("a post was refused: {fault}"),
        }
    }

    fn send(&mut self, from: usize, channel: Channel, bits: u64, len: usize, user: u64) {
        let memory = self.memory(len, user);
        let level = [Level::Buffered, Level::Delivered, Level::Matched][user as usize % 3];
        let node = &self.nodes[from];
        let posted =
            node.endpoint.post_send(&node.context, node.peer, channel, bits, memory, level, user);
        self.note(from, posted);
    }

    fn receive(&mut self, at: usize, user: u64) {
        let memory = self.memory(LEN_MAX, 0);
        let node = &self.nodes[at];
        let source = user.is_multiple_of(2).then_some(node.peer);
        let posted = node.endpoint.post_receive(
            &node.context,
            Channel::Tagged,
            source,
            0,
            0,
            memory,
            Oversize::Truncate,
            user,
        );
        self.note(at, posted);
    }

    fn access(&mut self, direction: Direction, key: RemoteKey, at: usize, len: usize, user: u64) {
        let memory = self.memory(len, if direction == Direction::Put { user } else { 0 });
        let node = &self.nodes[0];
        let remote = RemoteLayout::At(at as u64);
        let posted = node.endpoint.post_access(
            &node.context,
            direction,
            node.peer,
            key,
            remote,
            memory,
            user,
        );
        self.note(0, posted);
    }

    fn cut(&mut self) {
        let other = Duration::from_micros(self.random.below(3000));
        let cut = match self.random.below(8) {
            0 => Cut::Silent,
            1 | 2 => Cut::FirstThenOther(other),
            _ => Cut::Both,
        };
        let first = self.random.below(2) as usize;
        for names in [NAMES, SECOND].into_iter().take(self.rails) {
            // Sometimes both at once.
            if self.rails == 1 || self.random.below(3) > 0 {
                self.network.cut(names[first], names[1 - first], cut);
            }
        }
    }
}

fn pattern(index: usize, seed: u64) -> u8 {
    (index as u8).wrapping_mul(31).wrapping_add((index >> 8) as u8) ^ (seed as u8).wrapping_mul(7)
}

const LEN_MAX: usize = 150_000;
const MESSAGES: u64 = 14;
const ACCESSES: u64 = 5;
const SLOT: usize = 70_000;
const LIMIT: Time = Time(600_000_000_000);

fn random_len(random: &mut Random) -> usize {
    match random.below(4) {
        0 => random.below(100) as usize,
        1 => random.below(16_385) as usize,
        2 => 16_384 + random.below(60_000) as usize,
        _ => random.below(LEN_MAX as u64) as usize,
    }
}

/// One run; its trace and how often sessions began and links were cut.
fn run(seed: u64, rails: usize, plant: Plant) -> (u64, Counters) {
    let mut sim = Sim::with(seed, rails, plant);
    sim.meet();
    // Get slots hold a pattern that is never written, put slots are written once each.
    let region = sim.memory(2 * ACCESSES as usize * SLOT, 0);
    let key = sim.nodes[1].endpoint.expose(region, true, Audience::Everybody).unwrap();
    let mut lens = Vec::new();
    let (mut sent, mut posted, mut requests, mut accesses) = (0, 0, 0, 0);
    let mut next_request = 0;
    let mut access_lens = Vec::new();
    let mut next_cut = sim.now();
    let mut cuts = 0;
    loop {
        if sent < MESSAGES && sim.random.below(10) == 0 {
            let len = random_len(&mut sim.random);
            lens.push(len);
            sim.send(0, Channel::Tagged, sent, len, sent);
            sent += 1;
        }
        if posted < MESSAGES && sim.random.below(10) == 0 {
            sim.receive(1, posted);
            posted += 1;
        }
        if requests < MESSAGES && sim.random.below(10) == 0 {
            let len = sim.random.below(16_385) as usize;
            sim.send(1, Channel::Request, len as u64, len, 1000 + requests);
            requests += 1;
        }
        if accesses < 2 * ACCESSES && sim.random.below(10) == 0 {
            let direction = [Direction::Get, Direction::Put][accesses as usize % 2];
            let len = 1 + sim.random.below(SLOT as u64) as usize;
            access_lens.push(len);
            sim.access(direction, key, accesses as usize * SLOT, len, 2000 + accesses);
            accesses += 1;
        }
        if cuts < 6 && sim.now() >= next_cut {
            sim.cut();
            cuts += 1;
            let pause = Duration::from_micros(sim.random.below(20_000));
            next_cut = sim.now() + pause;
        }
        sim.step();
        while let Some(request) = sim.nodes[0].endpoint.next_request() {
            assert_eq!(request.bytes().len() as u64, request.bits, "seed {seed}: request");
            for (index, byte) in request.bytes().iter().enumerate() {
                assert_eq!(*byte, pattern(index, 1000 + next_request), "seed {seed}: order");
            }
            next_request += 1;
        }
        let left = (2 * ACCESSES + MESSAGES) as usize;
        let right = 2 * MESSAGES as usize;
        let done = sim.nodes[0].done.len() >= left && sim.nodes[1].done.len() >= right;
        if done && next_request == MESSAGES {
            break;
        }
        assert!(
            sim.now() < LIMIT,
            "seed {seed}: stuck with {} of {left} and {} of {right} done, {next_request} requests",
            sim.nodes[0].done.len(),
            sim.nodes[1].done.len(),
        );
    }
    verify(&mut sim, seed, &lens, &access_lens, key);
    let counters = sim.nodes[0].endpoint.counters().0;
    assert_eq!(counters.violations, 0, "seed {seed}");
    (sim.network.trace_hash(), counters)
}

fn verify(sim: &mut Sim, seed: u64, lens: &[usize], access_lens: &[usize], key: RemoteKey) {
    for completed in std::mem::take(&mut sim.nodes[0].done) {
        assert_eq!(completed.outcome, Ok(()), "seed {seed}: {}", completed.user);
        let access = completed.user.wrapping_sub(2000);
        if completed.user >= 2000 && access.is_multiple_of(2) {
            let bytes = completed.memory.into_pooled().unwrap();
            for index in 0..access_lens[access as usize] {
                let at = access as usize * SLOT + index;
                assert_eq!(bytes[index], pattern(at, 0), "seed {seed}: get {access}");
            }
        }
    }
    for completed in std::mem::take(&mut sim.nodes[1].done) {
        assert_eq!(completed.outcome, Ok(()), "seed {seed}: {}", completed.user);
        if completed.user < 1000 {
            let number = completed.user as usize;
            assert_eq!(completed.bits, completed.user, "seed {seed}: out of order");
            assert_eq!(completed.message_bytes, lens[number] as u64);
            let bytes = completed.memory.into_pooled().unwrap();
            for index in 0..lens[number] {
                assert_eq!(bytes[index], pattern(index, completed.user), "seed {seed}: {number}");
            }
        }
    }
    let node = &sim.nodes[1];
    node.endpoint.unexpose(key, &node.context, 9).unwrap();
    while sim.nodes[1].done.is_empty() {
        sim.step();
        assert!(sim.now() < LIMIT, "seed {seed}: the region does not come back");
    }
    let region = sim.nodes[1].done.remove(0).memory.into_pooled().unwrap();
    for (access, len) in access_lens.iter().enumerate().skip(1).step_by(2) {
        for index in 0..*len {
            let want = pattern(index, 2000 + access as u64);
            assert_eq!(region[access * SLOT + index], want, "seed {seed}: put {access}");
        }
    }
    assert_eq!(sim.nodes[1].endpoint.unmatched_count(), 0, "seed {seed}: something came twice");
}

#[test]
fn everything_arrives_once_and_in_order_whatever_the_network_does() {
    each(seeds(300), |seed| twice(seed, 1), |_| {});
}

/// Two equal runs over so many paths.
fn twice(seed: u64, paths: usize) -> Counters {
    let (trace, counters) = run(seed, paths, Plant::Nothing);
    assert_eq!(counters.sessions, 1, "seed {seed}: the session was not resumed");
    let again = run(seed, paths, Plant::Nothing);
    assert_eq!((trace, counters), again, "seed {seed} does not reproduce its run");
    counters
}

/// A run with a planted bug fails within so many seeds.
fn finds(plant: Plant) {
    const SEEDS: u64 = 60;
    let fails = |seed: &u64| std::panic::catch_unwind(|| run(*seed, 1, plant)).is_err();
    let found = (0..SEEDS).find(fails);
    let found = found.unwrap_or_else(|| panic!("{plant:?} is not found within {SEEDS} seeds"));
    println!("{plant:?} is found by seed {found}");
}

#[test]
fn planted_bugs_in_spans_are_found() {
    finds(Plant::DuplicatesTaken);
    finds(Plant::WindowOffByOne);
    finds(Plant::PlacedAtStart);
    finds(Plant::EndsBeforeRelease);
}

#[test]
fn everything_arrives_once_and_in_order_while_paths_come_and_go() {
    let (mut joined, mut lost) = (0, 0);
    each(
        seeds(300),
        |seed| twice(seed, 2),
        |counters| {
            (joined, lost) = (joined + counters.paths_joined, lost + counters.paths_lost);
        },
    );
    assert!(joined > 0 && lost > 0, "{joined} joined, {lost} lost");
}

#[test]
fn a_restarted_peer_fails_operations_once_and_is_reached_again() {
    for seed in 0..60 {
        let mut sim = Sim::new(seed);
        sim.meet();
        for number in 0..6 {
            sim.send(0, Channel::Tagged, number, 40_000 * number as usize, number);
        }
        sim.receive(0, 500);
        sim.receive(0, 501);
        let steps = 50 + sim.random.below(300);
        for _ in 0..steps {
            sim.step();
        }
        let kill = [Kill::Process(Duration::from_micros(100)), Kill::Power][seed as usize % 2];
        sim.network.kill(NAMES[1], kill);
        sim.nodes[1] = sim.life(1, 2);
        sim.send(1, Channel::Tagged, 77, 10, 77);
        // The old receive from the peer fails with its session; the one from anybody lives on.
        while sim.nodes[0].done.len() < 8 {
            sim.step();
            assert!(
                sim.now() < LIMIT,
                "seed {seed}: {:?}, {:?}",
                users(&sim.nodes[0].done),
                sim.nodes[1].done
            );
        }
        let done = std::mem::take(&mut sim.nodes[0].done);
        let mut names = users(&done);
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 8, "seed {seed}: each operation ends once");
        let of = |user| done.iter().find(|completed| completed.user == user).unwrap();
        assert_eq!(of(500).outcome, Err(Fault::PeerReset), "seed {seed}");
        assert_eq!((of(501).outcome, of(501).bits), (Ok(()), 77), "seed {seed}");
        for number in 1..6 {
            // Nobody received: a message that needs the peer's answer cannot have succeeded.
            let large = number * 40_000 > 16_384;
            assert!(!large || of(number).outcome == Err(Fault::PeerReset), "seed {seed} {number}");
        }
        sim.send(0, Channel::Tagged, 88, 20_000, 600);
        sim.receive(1, 700);
        while sim.nodes[0].done.is_empty() || sim.nodes[1].done.len() < 2 {
            sim.step();
            assert!(sim.now() < LIMIT, "seed {seed}: the successor is not reached");
        }
        assert_eq!(sim.nodes[0].done[0].outcome, Ok(()), "seed {seed}");
    }
}

/// How a path breaks without a word.
#[derive(Debug, Clone, Copy)]
enum Silence {
    Both,
    /// From the sender to the receiver alone, and the other way round.
    Data,
    Answers,
}

impl Silence {
    fn set(self, network: &SimNetwork, blocked: bool) {
        let (data, answers) = (!matches!(self, Silence::Answers), !matches!(self, Silence::Data));
        if data {
            network.change_path(NAMES[0], NAMES[1], |path| path.blocked = blocked);
        }
        if answers {
            network.change_path(NAMES[1], NAMES[0], |path| path.blocked = blocked);
        }
    }
}

/// Sends a message, and steps until the receiver has it; how long that took.
fn pass(sim: &mut Sim, number: u64) -> Duration {
    let begin = sim.now();
    sim.receive(1, number);
    // Short ones, and long ones that the receiver gets.
    let len = if number.is_multiple_of(3) { 100_000 } else { 1000 };
    sim.send(0, Channel::Tagged, number, len, number);
    while sim.nodes[1].done.is_empty() {
        sim.step();
        assert!(sim.now() < LIMIT, "message {number} does not arrive");
    }
    let completed = sim.nodes[1].done.remove(0);
    assert_eq!((completed.outcome, completed.bits), (Ok(()), number));
    sim.nodes[0].done.clear();
    sim.now().since(begin)
}

#[test]
fn traffic_leaves_a_path_that_falls_silent_and_comes_back_when_it_is_mended() {
    let mut seed = 0;
    for silence in [Silence::Both, Silence::Data, Silence::Answers] {
        for _ in 0..3 {
            seed += 1;
            let mut sim = Sim::with(seed, 2, Plant::Nothing);
            sim.meet();
            let mut number = 0;
            let mut pass_until = |sim: &mut Sim, enough: &dyn Fn(&Counters) -> bool| {
                let mut longest = Duration::ZERO;
                while !enough(&sim.nodes[0].endpoint.counters().0) {
                    longest = longest.max(pass(sim, number));
                    number += 1;
                }
                longest
            };
            let joined = |sim: &Sim| sim.nodes[0].endpoint.counters().0.paths_joined;
            pass_until(&mut sim, &|it| it.paths_joined >= 1);
            silence.set(&sim.network, true);
            let stall = pass_until(&mut sim, &|it| it.paths_dead >= 1);
            assert!(stall < Duration::from_millis(40), "seed {seed}: {silence:?} took {stall:?}");
            silence.set(&sim.network, false);
            let before = joined(&sim);
            let stall = pass_until(&mut sim, &|it| it.paths_joined > before);
            assert!(stall < Duration::from_millis(40), "seed {seed}: mending took {stall:?}");
            let counters = sim.nodes[0].endpoint.counters().0;
            assert_eq!((counters.sessions, counters.violations), (1, 0), "seed {seed}");
        }
    }
}

fn users(done: &[Completed]) -> Vec<u64> {
    done.iter().map(|completed| completed.user).collect()
}

#[test]
fn a_peer_that_speaks_first_is_heard_also_where_the_confirmation_of_its_link_was_lost() {
    for seed in (2..300).step_by(3) {
        let mut sim = Sim::new(seed);
        sim.meet();
        let mut path = sim.network.path(NAMES[0], NAMES[1]);
        path.loss = 400_000;
        sim.network.set_default_path(path);
        // The left one goes first, and has nothing to say on the new link.
        sim.network.cut(NAMES[0], NAMES[1], Cut::Both);
        for _ in 0..100 {
            sim.step();
        }
        sim.send(1, Channel::Tagged, 5, 10, 1);
        while sim.nodes[1].done.is_empty() {
            sim.step();
            assert!(sim.now() < LIMIT, "seed {seed}: the message waits for ever");
        }
        assert_eq!(sim.nodes[1].done[0].outcome, Ok(()), "seed {seed}");
    }
}

#[test]
fn credit_that_came_back_while_the_link_was_lost_is_told_over_the_next_one() {
    const REQUESTS: u64 = 60;
    for seed in 0..6 {
        let mut sim = Sim::new(seed);
        sim.meet();
        for number in 0..REQUESTS {
            sim.send(1, Channel::Request, number, 16_000, number);
        }
        let until = sim.now() + Duration::from_secs(1);
        while sim.now() < until {
            sim.step();
        }
        sim.network.change_paths(NAMES[0], NAMES[1], |path| path.refuse = true);
        sim.network.cut(NAMES[0], NAMES[1], Cut::Both);
        for _ in 0..10 {
            sim.step();
        }
        let mut taken = 0;
        let take = |sim: &Sim, taken: &mut u64| {
            while let Some(request) = sim.nodes[0].endpoint.next_request() {
                assert_eq!(request.bits, *taken, "seed {seed}");
                *taken += 1;
            }
        };
        take(&sim, &mut taken);
        assert!(0 < taken && taken < REQUESTS, "seed {seed}: {taken} is no full window");
        sim.network.change_paths(NAMES[0], NAMES[1], |path| path.refuse = false);
        while taken < REQUESTS {
            sim.step();
            take(&sim, &mut taken);
            assert!(sim.now() < LIMIT, "seed {seed}: no credit after {taken} requests");
        }
    }
}

#[test]
fn a_session_that_was_given_up_leaves_nothing_that_stands_in_the_way_of_the_next_one() {
    let mut sim = Sim::new(2);
    sim.meet();
    sim.network.set_default_path(Path::default());
    // The left one is heard, and hears nothing, until both give up.
    sim.network.change_path(NAMES[1], NAMES[0], |path| path.loss = 1_000_000);
    sim.network.cut(NAMES[0], NAMES[1], Cut::Both);
    let until = sim.now() + Duration::from_secs(40);
    while sim.now() < until {
        sim.step();
    }
    sim.network.change_path(NAMES[1], NAMES[0], |path| path.loss = 0);
    sim.send(1, Channel::Tagged, 5, 10, 1);
    while sim.nodes[1].done.is_empty() {
        sim.step();
        assert!(sim.now() < LIMIT, "the message waits for ever");
    }
    assert_eq!(sim.nodes[1].done[0].outcome, Ok(()));
}

#[test]
fn a_message_that_broke_off_goes_on_though_only_its_sender_knows_of_the_broken_link() {
    let (mut halves, mut stopped) = (0, 0);
    // Streams, and native access.
    for seed in (0..120).filter(|seed| seed % 3 < 2) {
        let mut sim = Sim::new(seed);
        sim.meet();
        let links = sim.nodes[1].endpoint.counters().1[0].1.links_down;
        sim.receive(1, 2);
        sim.send(0, Channel::Tagged, 0, LEN_MAX, 1);
        for _ in 0..sim.random.below(60) {
            sim.step();
        }
        // The receiver hears of it long after the sender has called again.
        let late = Duration::from_secs(20);
        sim.network.cut(NAMES[0], NAMES[1], Cut::FirstThenOther(late));
        let begin = sim.now();
        while sim.nodes.iter().any(|node| node.done.is_empty()) {
            sim.step();
            let took = sim.now().since(begin);
            assert!(took < Duration::from_secs(1), "seed {seed}: it waits for the other's news");
        }
        assert!(sim.nodes.iter().all(|node| node.done[0].outcome == Ok(())), "seed {seed}");
        let until = sim.now() + Duration::from_secs(30);
        while sim.now() < until {
            sim.step();
        }
        let (counters, rails) = sim.nodes[1].endpoint.counters();
        assert_eq!(rails[0].1.links_down, links + 1, "seed {seed}: a good link was closed");
        halves += counters.places_given_up;
        stopped += counters.accesses_stopped;
    }
    assert!(halves > 0, "none broke off while it was being placed");
    assert!(stopped > 0, "none broke off while it was read");
}

#[test]
fn a_caller_that_never_greets_does_not_keep_its_link() {
    for seed in 0..2 {
        let mut sim = Sim::new(seed);
        sim.meet();
        let links = |sim: &Sim| {
            let counters = sim.nodes[0].endpoint.counters().1[0].1;
            counters.links_up - counters.links_down
        };
        let before = links(&sim);
        let mut caller = sim.network.rail("caller", SimConfig::stream());
        caller.attach(0);
        caller.connect(NAMES[0], sim.now()).unwrap();
        let wait = |sim: &mut Sim, seconds| {
            let until = sim.now() + Duration::from_secs(seconds);
            while sim.now() < until {
                sim.step();
            }
        };
        wait(&mut sim, 5);
        assert_eq!(links(&sim), before + 1, "seed {seed}: it is given some time");
        wait(&mut sim, 6);
        assert_eq!(links(&sim), before, "seed {seed}");
    }
}

#[test]
fn a_farewell_ends_the_session_at_once() {
    let mut sim = Sim::new(0);
    sim.send(0, Channel::Tagged, 1, 100_000, 1);
    for _ in 0..200 {
        sim.step();
    }
    sim.nodes[1].endpoint.close();
    let before = sim.now();
    while sim.nodes[0].done.is_empty() {
        sim.step();
        assert!(sim.now().since(before) < Duration::from_secs(1), "it waits for a new link");
    }
    assert_eq!(sim.nodes[0].done[0].outcome, Err(Fault::PeerReset));
    assert_eq!(sim.nodes[0].endpoint.counters().0.violations, 0);
}
