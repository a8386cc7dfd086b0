//! The costs of a message of a session with two paths while nothing fails, beside those of the same session with one.

mod common;

use std::alloc::System;

use common::{Medium, World};
use ropewalk_base::memory::Memory;
use ropewalk_net::{Channel, Level, Oversize, PeerId};
use ropewalk_rail::Rail;
use ropewalk_rail_sim::SimConfig;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const MESSAGES: u64 = 4000;

/// Of both endpoints and all their rails.
#[derive(Debug, Clone, Copy, Default)]
struct Costs {
    frames: u64,
    bytes: u64,
    copied: u64,
    allocations: u64,
}

impl Costs {
    fn so_far(world: &World) -> Costs {
        let mut costs = Costs::default();
        for node in &world.nodes {
            for (_, rail) in node.endpoint.counters().1 {
                costs.frames += rail.frames_sent;
                costs.bytes += rail.bytes_sent;
            }
            costs.copied += node.endpoint.bytes_copied();
        }
        let stats = ALLOCATOR.stats();
        costs.allocations = (stats.allocations + stats.reallocations) as u64;
        costs
    }

    fn since(self, before: Costs) -> [u64; 4] {
        [
            self.frames - before.frames,
            self.bytes - before.bytes,
            self.copied - before.copied,
            self.allocations - before.allocations,
        ]
    }
}

/// Two endpoints whose session numbers its frames, with so many rails each.
fn pair(rails: usize) -> World {
    let mut world = World::new(Medium::SimStream);
    for side in ["a", "b"] {
        let rail = |number: usize| -> Box<dyn Rail> {
            Box::new(world.network.rail(&format!("{side}{number}"), SimConfig::stream()))
        };
        let rails = (0..rails).map(rail).collect();
        world.add_over_all(rails, |config| config.core.paths_max = 2);
    }
    world
}

/// Messages of this length there and back, and their costs.
fn costs(rails: usize, len: usize) -> [u64; 4] {
    let mut world = pair(rails);
    let peers = [world.peer(0, 1), world.peer(1, 0)];
    let mut memories = [world.memory(len, 1), world.memory(len, 1)];
    run(&mut world, &peers, &mut memories, 1000);
    let joined = world.nodes[0].endpoint.counters().0.paths_joined;
    assert_eq!(joined, rails as u64 - 1, "{rails} rails");
    let before = Costs::so_far(&world);
    run(&mut world, &peers, &mut memories, MESSAGES);
    Costs::so_far(&world).since(before)
}

fn run(world: &mut World, peers: &[PeerId; 2], memories: &mut [Memory; 2], count: u64) {
    let (channel, mask, cut) = (Channel::Tagged, u64::MAX, Oversize::Truncate);
    for number in 0..count as usize {
        let (from, to) = (number % 2, 1 - number % 2);
        let [out, into] = std::mem::replace(memories, [Memory::empty(), Memory::empty()]);
        let node = &world.nodes[to];
        let (endpoint, context) = (&node.endpoint, &node.context);
        let posted = endpoint.post_receive(context, channel, None, 3, mask, into, cut, 1);
        world.posted(to, posted);
        let node = &world.nodes[from];
        let (endpoint, context) = (&node.endpoint, &node.context);
        let posted = endpoint.post_send(context, peers[from], channel, 3, out, Level::Buffered, 2);
        world.posted(from, posted);
        let sent = world.take(from, 2);
        let received = world.take(to, 1);
        assert_eq!((sent.outcome, received.outcome), (Ok(()), Ok(())));
        *memories = [sent.memory, received.memory];
    }
}

#[test]
fn a_second_path_costs_nothing_while_nothing_fails() {
    for len in [8, 8000, 200_000] {
        let [one, two] = [1, 2].map(|rails| costs(rails, len));
        // The answer acknowledges: nobody waits for more.
        assert!(len > 8000 || one[0] <= MESSAGES + MESSAGES / 50, "{len} bytes: {one:?}");
        println!("{len} bytes: frames, bytes, copied bytes and allocations {one:?}, {two:?}");
        // More of a long message is under way at a time over two paths, for which the simulator allocates.
        let compared = if len > 8000 { 3 } else { 4 };
        for (one, two) in one.into_iter().zip(two).take(compared) {
            // Probes of the path that stands by come with time, not with messages.
            assert!(two <= one + one / 100 + 8, "{len} bytes: {one} and {two}");
        }
    }
}
