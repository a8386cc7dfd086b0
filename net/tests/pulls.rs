//! Gets and puts of sessions with several paths, over rails that read natively: paths are cut in the middle of them.
//!
//! The simulated rails break off where memory is given back that one of them still holds (`SimConfig::strict_buffers`), and
//! the endpoints recount that every byte of a get is in one place ([`Endpoint::check`]).

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
use ropewalk_base::verb::{RemoteKey, RemoteLayout, RemoteSegment};
use ropewalk_net::{
    Audience, Channel, Completed, Context, Counters, Direction, Endpoint, EndpointConfig, Level,
    Mode, OperationId, Oversize, PeerId, Posted,
};
use ropewalk_rail::Rail;
use ropewalk_rail::address::Address;
use ropewalk_rail_sim::{Cut, SimConfig, SimNetwork};
use seeds::{each, seeds};

const LIMIT: Time = Time(600_000_000_000);
const MIB: usize = 1 << 20;
/// A part of a get is no longer than this.
const PART_BYTES_MAX: u64 = 256 << 10;

struct Node {
    endpoint: Endpoint,
    context: Context,
    /// Its peer: the second node's is the first, all others' the second.
    peer: PeerId,
    done: Vec<Completed>,
}

struct Sim {
    network: SimNetwork,
    clock: Arc<AtomicU64>,
    nodes: Vec<Node>,
    pool: Pool,
    random: Random,
    rails: usize,
    steps: u64,
    check_every: u64,
}

/// The `rail`-th rail of the `node`-th node.
fn name(node: usize, rail: usize) -> String {
    format!("n{node}-{rail}")
}

fn pattern(index: usize, seed: u64) -> u8 {
    (index as u8)
        .wrapping_mul(31)
        .wrapping_add((index >> 8) as u8)
        .wrapping_add((index >> 16) as u8)
        ^ (seed as u8).wrapping_mul(7)
}

impl Sim {
    /// `nodes` endpoints with so many rails each, and sessions between those that are peers, with all their paths.
    fn new(seed: u64, nodes: usize, rails: usize, native: bool) -> Sim {
        let mut sim = Sim::meeting(seed, nodes, rails, native);
        sim.refuse_others(false);
        sim.until("paths join", Sim::has_all_paths);
        sim
    }

    /// Whether rails other than the first ones refuse calls.
    fn refuse_others(&mut self, refuse: bool) {
        let rails =
            || (0..self.nodes.len()).flat_map(|node| (0..self.rails).map(move |it| (node, it)));
        for (near, far) in rails().flat_map(|near| rails().map(move |far| (near, far))) {
            if near.0 != far.0 && near.1 + far.1 > 0 {
                let (near, far) = (name(near.0, near.1), name(far.0, far.1));
                self.network.change_path(&near, &far, |path| path.refuse = refuse);
            }
        }
    }

    /// The same with sessions that have one path, and get no other one yet.
    fn meeting(seed: u64, nodes: usize, rails: usize, native: bool) -> Sim {
        let mut sim = Sim {
            network: SimNetwork::new(seed),
            clock: Arc::new(AtomicU64::new(0)),
            nodes: Vec::new(),
            pool: Pool::with_budget(1 << 30),
            random: Random::from_seed(seed),
            rails,
            steps: 0,
            check_every: if seed < 6 { 1 } else { 16 },
        };
        for number in 0..nodes {
            let node = sim.node(number, native);
            sim.nodes.push(node);
        }
        sim.refuse_others(true);
        // Each to its peer: only then the name that it was looked up by is known to mean that one.
        for from in 0..nodes {
            let to = if from == 1 { 0 } else { 1 };
            sim.send(from, 1, 0, 1);
            sim.receive(to, 1, 0);
            sim.until("a first message arrives", |sim| !sim.nodes[to].done.is_empty());
            sim.until("all is over", |sim| !sim.nodes[from].done.is_empty());
            sim.nodes.iter_mut().for_each(|node| node.done.clear());
        }
        sim
    }

    fn has_all_paths(&self) -> bool {
        let joins = (self.nodes.len() - 1) * (self.rails - 1);
        self.counters(1).paths_joined >= joins as u64
    }

    fn node(&self, number: usize, native: bool) -> Node {
        let config = if native { SimConfig::native() } else { SimConfig::stream() };
        let rails = (0..self.rails).map(|rail| {
            Box::new(self.network.rail(&name(number, rail), config.clone())) as Box<dyn Rail>
        });
        let rails = rails.collect();
        let mut config = EndpointConfig::new(ClusterId(1));
        config.endpoint = EndpointId(number as u128 + 1);
        config.incarnation = Incarnation(1);
        config.host = 0;
        config.seed = number as u64 * 1000 + 1;
        config.service_thread = false;
        config.core.mode = Mode::Resume;
        config.core.paths_max = self.rails;
        let clock = self.clock.clone();
        config.clock = Arc::new(move || Time(clock.load(Ordering::Relaxed)));
        config.virtual_time = true;
        let endpoint = Endpoint::open(config, rails).unwrap();
        let context = endpoint.context(true).unwrap();
        let peer = if number == 1 { 0 } else { 1 };
        let peer = Address::parse(&format!("sim://{}", name(peer, 0))).unwrap();
        let peer = endpoint.lookup(&peer).unwrap();
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
            if self.steps.is_multiple_of(self.check_every) {
                node.endpoint.check();
            }
        }
        self.steps += 1;
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

    fn until(&mut self, what: &str, mut over: impl FnMut(&Sim) -> bool) {
        while !over(self) {
            self.step();
            assert!(self.now() < LIMIT, "{what}: never");
        }
    }

    fn pass(&mut self, time: Duration) {
        let until = self.now() + time;
        while self.now() < until {
            self.step();
        }
    }

    fn now(&self) -> Time {
        Time(self.clock.load(Ordering::Relaxed))
    }

    fn counters(&self, node: usize) -> Counters {
        self.nodes[node].endpoint.counters().0
    }

    /// Bytes that the rails of a node were told to read or write natively.
    fn bytes_native(&self, node: usize) -> Vec<u64> {
        let rails = self.nodes[node].endpoint.counters().1;
        rails.iter().map(|(_, counters)| counters.bytes_native).collect()
    }

    fn memory(&self, len: usize, seed: u64) -> Memory {
        let mut buffer = self.pool.take(len).unwrap();
        for (index, byte) in buffer.iter_mut().enumerate() {
            *byte = pattern(index, seed);
        }
        Memory::pooled(buffer)
    }

    fn note(
        &mut self,
        node: usize,
        posted: Result<Posted, (Memory, Fault)>,
    ) -> Option<OperationId> {
        match posted {
            Ok(Posted::Done(completed)) => {
                self.nodes[node].done.push(completed);
                None
            }
            Ok(Posted::Pending(id)) => Some(id),
            Err((_, fault)) => panic!("a post was refused: {fault}"),
        }
    }

    fn send(&mut self, from: usize, len: usize, bits: u64, user: u64) {
        let memory = self.memory(len, bits);
        let Node { endpoint, context, peer, .. } = &self.nodes[from];
        let (channel, level) = (Channel::Tagged, Level::Matched);
        let posted = endpoint.post_send(context, *peer, channel, bits, memory, level, user);
        self.note(from, posted);
    }

    fn receive(&mut self, at: usize, len: usize, user: u64) {
        let memory = self.memory(len, 0);
        let Node { endpoint, context, .. } = &self.nodes[at];
        let (channel, cut) = (Channel::Tagged, Oversize::Truncate);
        let posted = endpoint.post_receive(context, channel, None, 0, 0, memory, cut, user);
        self.note(at, posted);
    }

    fn expose(&self, node: usize, len: usize, seed: u64) -> RemoteKey {
        let region = self.memory(len, seed);
        self.nodes[node].endpoint.expose(region, true, Audience::Everybody).unwrap()
    }

    fn get(
        &mut self,
        from: usize,
        key: RemoteKey,
        remote: RemoteLayout,
        len: usize,
        user: u64,
    ) -> Option<OperationId> {
        let memory = self.memory(len, 99);
        self.access(from, Direction::Get, key, remote, memory, user)
    }

    fn put(&mut self, from: usize, key: RemoteKey, len: usize, seed: u64, user: u64) {
        let memory = self.memory(len, seed);
        self.access(from, Direction::Put, key, RemoteLayout::At(0), memory, user);
    }

    fn access(
        &mut self,
        from: usize,
        direction: Direction,
        key: RemoteKey,
        remote: RemoteLayout,
        memory: Memory,
        user: u64,
    ) -> Option<OperationId> {
        let Node { endpoint, context, peer, .. } = &self.nodes[from];
        let posted = endpoint.post_access(context, direction, *peer, key, remote, memory, user);
        self.note(from, posted)
    }

    /// The completion of the only operation of a node that is under way.
    fn completed(&mut self, node: usize) -> Completed {
        self.until("an operation completes", |sim| !sim.nodes[node].done.is_empty());
        assert_eq!(self.nodes[node].done.len(), 1);
        self.nodes[node].done.remove(0)
    }

    /// Ends a region, and returns its bytes.
    fn unexpose(&mut self, node: usize, key: RemoteKey) -> Vec<u8> {
        let Node { endpoint, context, .. } = &self.nodes[node];
        endpoint.unexpose(key, context, 9).unwrap();
        self.completed(node).memory.into_pooled().unwrap().to_vec()
    }

    /// Does so with the links between a rail of a node and all rails of another.
    fn with_rail(
        &mut self,
        node: usize,
        rail: usize,
        other: usize,
        mut act: impl FnMut(&SimNetwork, &str, &str),
    ) {
        for far in 0..self.rails {
            act(&self.network, &name(node, rail), &name(other, far));
        }
    }

    fn cut(&mut self, node: usize, rail: usize, other: usize, cut: Cut) {
        self.with_rail(node, rail, other, |network, a, b| {
            network.cut(a, b, cut);
        });
    }

    /// The wire of a rail carries nothing any more, without a word, or carries again.
    fn silence(&mut self, node: usize, rail: usize, other: usize, blocked: bool) {
        self.with_rail(node, rail, other, |network, a, b| {
            network.change_paths(a, b, |path| path.blocked = blocked);
        });
    }
}

fn assert_bytes(bytes: &[u8], begin: usize, seed: u64, what: &str) {
    let wrong = bytes.iter().enumerate().position(|(at, byte)| *byte != pattern(begin + at, seed));
    assert_eq!(wrong, None, "{what}: a wrong byte");
}

#[test]
fn only_what_a_dead_path_had_is_read_again() {
    const LEN: usize = 40 * MIB;
    for (seed, rails) in (0..24).flat_map(|seed| [(seed, 2), (seed, 3)]) {
        let mut sim = Sim::new(seed, 2, rails, true);
        let key = sim.expose(1, LEN, 5);
        sim.get(0, key, RemoteLayout::At(0), LEN, 1);
        let begun = 8 + sim.random.below(20);
        sim.until("parts are read", |sim| sim.counters(0).parts_read >= begun);
        let rail = sim.random.below(rails as u64) as usize;
        let before = sim.bytes_native(0);
        match seed % 3 {
            0 => sim.cut(0, rail, 1, Cut::Both),
            1 => sim.cut(0, rail, 1, Cut::FirstThenOther(Duration::from_millis(3))),
            _ => sim.silence(0, rail, 1, true),
        }
        let got = sim.completed(0);
        let what = format!("seed {seed}, {rails} rails");
        assert_eq!(got.outcome, Ok(()), "{what}");
        assert_bytes(&got.memory.into_pooled().unwrap(), 0, 5, &what);
        let (counters, after) = (sim.counters(0), sim.bytes_native(0));
        assert_eq!((counters.sessions, counters.resets, counters.gets), (1, 0, 1), "{what}");
        // What the rails were told beyond the bytes of the get is what they gave back.
        let again = after.iter().sum::<u64>() - LEN as u64;
        assert!(again <= counters.parts_returned * PART_BYTES_MAX, "{what}: {again} bytes again");
        assert_eq!(again > 0, counters.parts_returned > 0, "{what}");
        assert!(again <= 8 << 20, "{what}: {again} bytes again are more than a window");
        assert!(counters.parts_returned > 0 || seed % 3 < 2, "{what}: nothing was lost");
        // All were at work, and the others have done the rest.
        assert!(before.iter().all(|bytes| *bytes > 0), "{what}: {before:?}");
        // Nothing comes late: the memory of the get is gone, and rails that held it would break off.
        sim.silence(0, rail, 1, false);
        sim.pass(Duration::from_secs(1));
        let region = sim.unexpose(1, key);
        assert_bytes(&region, 0, 5, &what);
    }
}

#[test]
fn a_list_of_segments_is_read_in_parts() {
    for seed in 0..6 {
        let mut sim = Sim::new(seed, 2, 2, true);
        let key = sim.expose(1, 6 * MIB, 3);
        let mut lens: Vec<u64> = (0..60).map(|_| sim.random.below(100_000)).collect();
        lens.push(2 * MIB as u64);
        let mut segments = Vec::new();
        for len in lens {
            let offset = sim.random.below((6 * MIB) as u64 - len);
            segments.push(RemoteSegment { offset, len });
        }
        let len = segments.iter().map(|it| it.len).sum::<u64>() as usize;
        sim.get(0, key, RemoteLayout::List(segments.clone().into()), len, 1);
        sim.until("parts are read", |sim| sim.counters(0).parts_read >= 4);
        sim.cut(0, seed as usize % 2, 1, Cut::Both);
        let got = sim.completed(0);
        assert_eq!(got.outcome, Ok(()));
        let (bytes, mut done) = (got.memory.into_pooled().unwrap(), 0);
        for segment in segments {
            let here = &bytes[done..done + segment.len as usize];
            assert_bytes(here, segment.offset as usize, 3, &format!("seed {seed}"));
            done += segment.len as usize;
        }
    }
}

/// What the first node has got and received in a run. `lens`: offset and length of each get.
fn verify(sim: &mut Sim, seed: u64, lens: &[(usize, usize)]) {
    for completed in std::mem::take(&mut sim.nodes[0].done) {
        let what = format!("seed {seed}, {}", completed.user);
        assert_eq!(completed.outcome, Ok(()), "{what}");
        let (bytes, length) = (completed.memory.into_pooled().unwrap(), completed.bytes as usize);
        match completed.user.checked_sub(100) {
            None => {
                let (offset, len) = lens[completed.user as usize];
                assert_eq!(length, len, "{what}");
                assert_bytes(&bytes, offset, 5, &what);
            }
            Some(_) => assert_bytes(&bytes[..length], 0, completed.bits, &what),
        }
    }
}

/// A run of messages and gets under faults; its trace, and the counters of the side that gets.
fn run(seed: u64) -> (u64, Counters) {
    let rails = 2 + (seed % 2) as usize;
    let mut sim = Sim::new(seed, 2, rails, true);
    const REGION: usize = 3 * MIB;
    let read = sim.expose(1, REGION, 5);
    let (mut begun, mut sent, mut faults, mut next_fault) = (0, 0, 0, sim.now());
    let mut lens = Vec::new();
    let mut broken = Vec::new();
    let total = 10;
    loop {
        if begun < total && sim.random.below(6) == 0 {
            let len = 1 + sim.random.below(REGION as u64) as usize;
            let offset = sim.random.below((REGION - len) as u64 + 1);
            lens.push((offset as usize, len));
            sim.get(0, read, RemoteLayout::At(offset), len, begun);
            begun += 1;
        }
        if sent < total && sim.random.below(6) == 0 {
            // The receiver reads these: their senders offer to help, and sometimes a rail leaves them to frames.
            let len = sim.random.below(REGION as u64) as usize;
            sim.send(1, len, sent, 100 + sent);
            sim.receive(0, REGION, 100 + sent);
            sent += 1;
        }
        if faults < 8 && sim.now() >= next_fault {
            let rail = sim.random.below(rails as u64) as usize;
            match sim.random.below(4) {
                0 => sim.cut(0, rail, 1, Cut::Both),
                1 => sim.cut(1, rail, 0, Cut::FirstThenOther(Duration::from_micros(700))),
                2 => sim.cut(0, rail, 1, Cut::Silent),
                _ => {
                    sim.silence(0, rail, 1, true);
                    broken.push((sim.now() + Duration::from_millis(40), rail));
                }
            }
            faults += 1;
            next_fault = sim.now() + Duration::from_micros(sim.random.below(15_000));
        }
        for (at, rail) in std::mem::take(&mut broken) {
            if at <= sim.now() {
                sim.silence(0, rail, 1, false);
            } else {
                broken.push((at, rail));
            }
        }
        sim.step();
        let done = [0, 1].map(|node: usize| sim.nodes[node].done.len());
        if done == [2 * total as usize, total as usize] {
            break;
        }
        assert!(sim.now() < LIMIT, "seed {seed}: stuck with {done:?} done");
    }
    verify(&mut sim, seed, &lens);
    for sent in std::mem::take(&mut sim.nodes[1].done) {
        assert_eq!(sent.outcome, Ok(()), "seed {seed}: the send of {}", sent.user);
    }
    let region = sim.unexpose(1, read);
    assert_bytes(&region, 0, 5, "the region");
    let counters = sim.counters(0);
    assert_eq!((counters.violations, counters.sessions), (0, 1), "seed {seed}");
    (sim.network.trace_hash(), counters)
}

#[test]
fn gets_and_announced_messages_are_whole_whatever_becomes_of_their_paths() {
    let (mut returned, mut suspected) = (0, 0);
    let twice = |seed| {
        let outcome = run(seed);
        assert_eq!(outcome, run(seed), "seed {seed} does not reproduce its run");
        outcome.1
    };
    each(seeds(40), twice, |counters| {
        returned += counters.parts_returned;
        suspected += counters.paths_suspected;
    });
    println!("{returned} parts came back, {suspected} paths were left");
    assert!(returned > 0 && suspected > 0, "{returned} parts came back, {suspected} left");
}

#[test]
fn a_get_that_is_cancelled_in_the_middle_ends_when_all_rails_have_let_go() {
    const LEN: usize = 8 * MIB;
    let mut cancelled = 0;
    for seed in 0..60 {
        let mut sim = Sim::new(seed, 2, 2 + seed as usize % 2, true);
        let key = sim.expose(1, LEN, 5);
        let id = sim.get(0, key, RemoteLayout::At(0), LEN, 1);
        let steps = sim.random.below(60);
        (0..steps).for_each(|_| sim.step());
        if seed % 3 == 0 {
            sim.silence(0, seed as usize % 2, 1, true);
            (0..sim.random.below(20)).for_each(|_| sim.step());
        }
        if let Some(id) = id.filter(|_| sim.nodes[0].done.is_empty()) {
            sim.nodes[0].endpoint.cancel(id);
        }
        let begin = sim.now();
        let got = sim.completed(0);
        assert!(sim.now().since(begin) < Duration::from_millis(1), "seed {seed}: it waits");
        cancelled += u32::from(got.outcome == Err(Fault::Cancelled));
        // A rail that still wrote would find the memory gone, and break off.
        drop(got);
        sim.silence(0, seed as usize % 2, 1, false);
        sim.pass(Duration::from_millis(300));
        // The rest of the session is as before.
        sim.get(0, key, RemoteLayout::At(7), MIB, 2);
        let got = sim.completed(0);
        assert_eq!(got.outcome, Ok(()), "seed {seed}");
        assert_bytes(&got.memory.into_pooled().unwrap(), 7, 5, "the next get");
    }
    assert!(cancelled > 40, "{cancelled} were cancelled in the middle");
}

#[test]
fn a_get_goes_on_where_it_was_when_all_paths_were_lost() {
    const LEN: usize = 32 * MIB;
    for seed in 0..12 {
        let mut sim = Sim::new(seed, 2, 2, true);
        let key = sim.expose(1, LEN, 5);
        sim.get(0, key, RemoteLayout::At(0), LEN, 1);
        sim.until("parts are read", |sim| sim.counters(0).parts_read >= 20);
        for rail in 0..2 {
            sim.with_rail(0, rail, 1, |network, a, b| {
                network.change_paths(a, b, |path| path.refuse = true);
                network.cut(a, b, Cut::Both);
            });
        }
        sim.pass(Duration::from_secs(2));
        assert!(sim.nodes[0].done.is_empty(), "seed {seed}");
        for rail in 0..2 {
            sim.with_rail(0, rail, 1, |network, a, b| {
                network.change_paths(a, b, |path| path.refuse = false);
            });
        }
        let got = sim.completed(0);
        assert_eq!(got.outcome, Ok(()), "seed {seed}");
        assert_bytes(&got.memory.into_pooled().unwrap(), 0, 5, &format!("seed {seed}"));
        let again = sim.bytes_native(0).iter().sum::<u64>() - LEN as u64;
        assert!(again <= 16 << 20, "seed {seed}: {again} bytes again");
        assert_eq!(sim.counters(0).sessions, 1, "seed {seed}");
    }
}

#[test]
fn a_region_is_read_over_paths_that_join_after_it_and_ends_on_all_of_them() {
    // A part for each path, and one more.
    const SHORT: usize = 200_000;
    for seed in 0..8 {
        let mut sim = Sim::meeting(seed, 2, 3, true);
        sim.check_every = 64;
        sim.refuse_others(false);
        let mut begun = [0; 2];
        // Regions begin in every moment of a greeting, and each is read at once by the other side.
        let mut more = 20;
        while more > 0 || (0..2).any(|at| sim.nodes[1 - at].done.len() < begun[at]) {
            let is_joined = sim.has_all_paths() && sim.counters(0).paths_joined == 2;
            for (at, begun) in begun.iter_mut().enumerate() {
                if more > 0 && sim.nodes[1 - at].done.len() == *begun {
                    more -= u32::from(is_joined);
                    let key = sim.expose(at, SHORT, *begun as u64);
                    sim.get(1 - at, key, RemoteLayout::At(0), SHORT, *begun as u64);
                    *begun += 1;
                }
            }
            sim.step();
        }
        for at in 0..2 {
            for got in std::mem::take(&mut sim.nodes[at].done) {
                assert_eq!(got.outcome, Ok(()), "seed {seed}: region {}", got.user);
                assert_bytes(&got.memory.into_pooled().unwrap(), 0, got.user, "a region");
            }
            assert!(sim.bytes_native(at).iter().all(|bytes| *bytes > 0), "seed {seed}");
        }
        // One that ends in the middle of reads over all rails: nobody reads or holds it afterwards.
        let big = sim.expose(1, 8 * MIB, 5);
        sim.get(0, big, RemoteLayout::At(0), 8 * MIB, 1);
        (0..sim.random.below(40)).for_each(|_| sim.step());
        if seed % 2 == 0 {
            sim.silence(1, 2, 0, true);
        }
        let begin = sim.now();
        let node = &sim.nodes[1];
        node.endpoint.unexpose(big, &node.context, 9).unwrap();
        let region = sim.completed(1);
        assert!(sim.now().since(begin) < Duration::from_millis(20), "seed {seed}: it waits");
        drop(region);
        let got = sim.completed(0);
        assert!(
            matches!(got.outcome, Ok(()) | Err(Fault::BadKey)),
            "seed {seed}: {:?}",
            got.outcome
        );
        sim.silence(1, 2, 0, false);
        sim.pass(Duration::from_millis(200));
    }
}

#[test]
fn a_put_whose_path_dies_happens_once_also_where_another_wrote_after_it() {
    const LEN: usize = 600_000;
    let (mut after, mut re_sent) = (0, 0);
    for seed in 0..60 {
        let mut sim = Sim::new(seed, 3, 2, true);
        let key = sim.expose(1, LEN, 0);
        let rail = seed as usize % 2;
        sim.put(0, key, LEN, 5, 1);
        // The moment of the cut is any: before, within, or after the writing, before it is known to be over.
        let moment = sim.now() + Duration::from_micros(sim.random.below(900));
        let whole = |bytes: &[u8], seed: u64| (0..LEN).all(|at| bytes[at] == pattern(at, seed));
        // The third endpoint looks at the region until the whole put is there, and then writes over it.
        let mut is_cut = false;
        loop {
            sim.get(2, key, RemoteLayout::At(0), LEN, 2);
            while sim.nodes[2].done.is_empty() {
                if !is_cut && sim.now() >= moment {
                    is_cut = true;
                    match seed % 3 {
                        // Nothing that the target says comes back.
                        0 => sim.with_rail(1, rail, 0, |network, a, b| {
                            network.change_path(a, b, |path| path.blocked = true);
                        }),
                        1 => sim.cut(0, rail, 1, Cut::Both),
                        _ => sim.silence(0, rail, 1, true),
                    }
                }
                sim.step();
            }
            let got = sim.nodes[2].done.remove(0);
            assert_eq!(got.outcome, Ok(()), "seed {seed}");
            if whole(&got.memory.into_pooled().unwrap(), 5) {
                break;
            }
        }
        after += u32::from(sim.nodes[0].done.is_empty());
        sim.put(2, key, LEN, 9, 3);
        let put = sim.completed(2);
        assert_eq!(put.outcome, Ok(()), "seed {seed}");
        let put = sim.completed(0);
        assert_eq!(put.outcome, Ok(()), "seed {seed}");
        sim.silence(0, rail, 1, false);
        sim.pass(Duration::from_millis(500));
        assert_eq!(sim.bytes_native(0).iter().sum::<u64>(), 0, "no rail writes by itself");
        assert!(whole(&sim.unexpose(1, key), 9), "seed {seed}: the first put was done twice");
        re_sent += sim.counters(0).frames_re_sent;
    }
    assert!(after > 2 && re_sent > 0, "{after} second puts came before the end of the first one");
}

#[test]
fn a_get_by_frames_goes_on_when_its_path_dies_and_its_server_keeps_little() {
    const LEN: usize = 64 * MIB;
    for seed in 0..8 {
        let mut sim = Sim::new(seed, 2, 2, false);
        sim.check_every = 512;
        let key = sim.expose(1, LEN, 5);
        sim.get(0, key, RemoteLayout::At(0), LEN, 1);
        let begin = sim.now();
        let at = begin + Duration::from_millis(5 + sim.random.below(15));
        sim.until("time passes", |sim| sim.now() >= at);
        assert!(sim.nodes[0].done.is_empty(), "seed {seed}");
        let before = sim.counters(1).frames_re_sent;
        match seed % 2 {
            0 => (0..2).for_each(|rail| sim.silence(0, rail, 1, rail == seed as usize / 2 % 2)),
            _ => sim.cut(0, seed as usize / 2 % 2, 1, Cut::Both),
        }
        let got = sim.completed(0);
        assert_eq!(got.outcome, Ok(()), "seed {seed}");
        assert_bytes(&got.memory.into_pooled().unwrap(), 0, 5, &format!("seed {seed}"));
        let counters = sim.counters(1);
        // What lay with the dead path goes again, 33 to 39 spans of 64 KiB, and nothing was asked for anew.
        let again = counters.frames_re_sent - before;
        assert!((1..=40).contains(&again), "seed {seed}: {again} spans went again");
        assert_eq!((counters.gets_served, counters.sessions), (1, 1), "seed {seed}");
        // They lie in the region itself: no copy was made.
        assert_eq!(counters.spans_kept, 0, "seed {seed}");
    }
}
