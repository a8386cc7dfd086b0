//! Two associations over one pair of rails: each gets a fair part of both, whoever came first and whoever sends.

use std::time::Duration;

use crate::common::{Medium, World, pattern};
use ropewalk_base::time::Time;
use ropewalk_net::{Channel, Level, Mode, Oversize, PeerId};
use ropewalk_rail::Rail;
use ropewalk_rail_sim::{Path, Release, SimConfig};

/// Bytes a second of 1 Gbit/s.
const GIGABIT: u64 = 125_000_000;
const RAILS: usize = 2;
/// The hosts of the first endpoint and of the two others.
const HOSTS: [u64; 2] = [100, 200];

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A stream of messages, so many of them at a time, from when on.
#[derive(Debug, Clone, Copy)]
struct Stream {
    bytes: usize,
    depth: u64,
    from: Duration,
}

const SHORT: Stream = Stream { bytes: 64 << 10, depth: 32, from: Duration::ZERO };
const LONG: Stream = Stream { bytes: 1 << 20, depth: 8, from: Duration::ZERO };

impl Stream {
    fn from(self, millis: u64) -> Stream {
        Stream { from: ms(millis), ..self }
    }
}

/// An association with a stream over it.
struct Flow {
    nodes: [usize; 2],
    peer: PeerId,
    stream: Stream,
    sent: u64,
    freed: u64,
    posted: u64,
    /// When each message was there.
    times: Vec<Time>,
}

/// Whether the first endpoint sends to both others, over one controller for each pair of rails; or both send to it, as two
/// processes do that know nothing of each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Out,
    In,
}

fn name(number: usize, rail: usize) -> String {
    format!("f{number}-{rail}")
}

/// The first endpoint, and two on another host, with a cable for each rail and direction.
fn world(rates: [u64; RAILS]) -> World {
    let mut world = World::new(Medium::SimStream);
    world.mode = Mode::Resume;
    for (rail, rate) in rates.into_iter().enumerate() {
        let [near, far, other] = [0, 1, 2].map(|number| name(number, rail));
        world.network.share_cable(&[&near]);
        world.network.share_cable(&[&far, &other]);
        for there in [&far, &other] {
            world.network.change_paths(&near, there, |path: &mut Path| {
                path.bytes_per_second = rate;
            });
        }
    }
    for number in 0..3 {
        // A kernel takes what it is given, and acknowledges none to us.
        let config =
            SimConfig { release: Release::AtOnce, window_frames: 64, ..SimConfig::stream() };
        let rail = |rail: usize| -> Box<dyn Rail> {
            Box::new(world.network.rail(&name(number, rail), config.clone()))
        };
        let rails = (0..RAILS).map(rail).collect();
        world.add_over_all(rails, |config| {
            config.core.paths_max = RAILS;
            config.host = HOSTS[number.min(1)];
        });
    }
    world
}

fn flow(world: &mut World, way: Way, other: usize, stream: Stream) -> Flow {
    let nodes = if way == Way::Out { [0, other] } else { [other, 0] };
    let peer = world.peer(nodes[0], nodes[1]);
    Flow { nodes, peer, stream, sent: 0, freed: 0, posted: 0, times: Vec::new() }
}

/// The number of an operation: which flow, whether it sends, and which message.
fn user(flow: usize, sends: bool, number: u64) -> u64 {
    number << 2 | (flow as u64) << 1 | u64::from(sends)
}

impl Flow {
    fn receive(&mut self, world: &mut World, place: usize) {
        let memory = world.memory(self.stream.bytes, 0);
        let node = &world.nodes[self.nodes[1]];
        let (channel, mask, cut) = (Channel::Tagged, u64::MAX, Oversize::Truncate);
        let number = user(place, false, self.posted);
        let (endpoint, context) = (&node.endpoint, &node.context);
        let posted =
            endpoint.post_receive(context, channel, None, place as u64, mask, memory, cut, number);
        world.posted(self.nodes[1], posted);
        self.posted += 1;
    }

    fn send(&mut self, world: &mut World, place: usize) {
        let memory = world.memory(self.stream.bytes, self.sent as u8);
        let node = &world.nodes[self.nodes[0]];
        let (channel, level) = (Channel::Tagged, Level::Buffered);
        let number = user(place, true, self.sent);
        let (endpoint, context) = (&node.endpoint, &node.context);
        let posted =
            endpoint.post_send(context, self.peer, channel, place as u64, memory, level, number);
        world.posted(self.nodes[0], posted);
        self.sent += 1;
    }
}

/// Two streams for so long. Returns their flows when all has arrived, once and whole, and the time when they began.
fn pour(world: &mut World, mut flows: [Flow; 2], time: Duration) -> ([Flow; 2], Time) {
    for (place, flow) in flows.iter_mut().enumerate() {
        (0..flow.stream.depth).for_each(|_| flow.receive(world, place));
        flow.send(world, place);
    }
    // All their paths are there.
    let joined = |world: &World| {
        let counters = world.nodes.iter().map(|node| node.endpoint.counters().0);
        counters.map(|counters| counters.paths_joined).sum::<u64>() == 4
    };
    world.until("paths", |world| joined(world));
    let begin = world.now();
    let mut steps = 0;
    loop {
        let since = world.now().since(begin);
        for (place, flow) in flows.iter_mut().enumerate() {
            let is_open = (flow.stream.from..time).contains(&since);
            while is_open && flow.sent < flow.freed + flow.stream.depth {
                flow.send(world, place);
            }
        }
        world.step();
        steps += 1;
        if steps % 64 == 0 {
            world.nodes.iter().for_each(|node| node.endpoint.check());
        }
        for node in 0..world.nodes.len() {
            for completed in std::mem::take(&mut world.nodes[node].done) {
                assert_eq!(completed.outcome, Ok(()));
                let flow = &mut flows[(completed.user >> 1 & 1) as usize];
                if completed.user & 1 == 1 {
                    flow.freed += 1;
                    continue;
                }
                // Receives take messages in order; their bytes may come in another one.
                let number = completed.user >> 2;
                let bytes = completed.memory.into_pooled().unwrap();
                let is_right = |at: usize| bytes[at] == pattern(at, number as u8);
                assert!((0..bytes.len()).step_by(997).all(is_right), "message {number}");
                flow.times.push(world.now());
                flow.receive(world, (completed.user >> 1 & 1) as usize);
            }
        }
        let came = flows.iter().all(|flow| flow.times.len() as u64 == flow.sent);
        if since >= time && came && flows.iter().all(|flow| flow.freed == flow.sent) {
            return (flows, begin);
        }
        assert!(since < time + ms(5000), "the streams are stuck");
    }
}

/// The parts that two streams get between these times, and both together of what the rails carry, in percent.
fn parts(rates: [u64; RAILS], way: Way, streams: [Stream; 2], [from, to]: [u64; 2]) -> [f64; 2] {
    let mut world = world(rates);
    let flows = [0, 1].map(|place| flow(&mut world, way, 1 + place, streams[place]));
    let (flows, begin) = pour(&mut world, flows, ms(to));
    let bytes = flows.map(|flow| {
        let inside = |time: &&Time| (ms(from)..ms(to)).contains(&time.since(begin));
        (flow.times.iter().filter(inside).count() * flow.stream.bytes) as f64
    });
    let sum = bytes[0] + bytes[1];
    let carried = (rates[0] + rates[1]) as f64 * (to - from) as f64 / 1e3;
    let found = [100.0 * bytes[0] / sum, 100.0 * sum / carried];
    println!("{rates:?}, {way:?}, {streams:?}: {:.1} % of {:.1} %", found[0], found[1]);
    let suspected: u64 =
        world.nodes.iter().map(|node| node.endpoint.counters().0.paths_suspected).sum();
    // Senders that know nothing of each other hold a queue each, and one that begins surprises the other.
    assert!(suspected == 0 || way == Way::In, "{suspected} suspicions");
    found
}

/// Asserts that both get a fair part of all.
fn assert_fair(rates: [u64; RAILS], way: Way, streams: [Stream; 2], during: [u64; 2]) {
    let [first, sum] = parts(rates, way, streams, during);
    // Those with controllers of their own come near to the limits of 25 and 75.
    let parts = if way == Way::Out { 40.0..60.0 } else { 20.0..80.0 };
    assert!(parts.contains(&first) && sum > 93.0, "{first} % of {sum} %");
}

#[test]
fn two_associations_that_send_over_one_pair_of_rails_get_fair_parts() {
    for rates in [[GIGABIT; 2], [GIGABIT, GIGABIT / 10]] {
        for streams in [[SHORT; 2], [LONG; 2], [SHORT, LONG], [LONG, SHORT]] {
            assert_fair(rates, Way::Out, streams, [200, 800]);
        }
    }
}

#[test]
fn two_associations_that_receive_over_one_pair_of_rails_get_fair_parts() {
    for streams in [[SHORT; 2], [LONG; 2], [SHORT, LONG], [LONG, SHORT]] {
        assert_fair([GIGABIT; 2], Way::In, streams, [200, 800]);
    }
}

#[test]
fn an_association_that_joins_late_gets_its_part_soon_and_leaves_it_again() {
    for way in [Way::Out, Way::In] {
        for streams in [[SHORT, SHORT.from(400)], [LONG.from(400), LONG]] {
            // From 100 ms after the second one began.
            assert_fair([GIGABIT; 2], way, streams, [500, 1000]);
        }
    }
}

#[test]
fn associations_over_slow_rails_are_fair_and_none_is_suspect() {
    assert_fair([GIGABIT / 20; 2], Way::Out, [SHORT; 2], [300, 2000]);
}
