//! The cost of a pass, of a post with its cancellation and of a message beside many idle peers and posted receives:
//! nanoseconds on one thread that plays both ends.
//!
//! `cargo run --release -p ropewalk-net --example crowd_cost [ROUNDS [loop|tcp [PEERS RECEIVES]]]`; without
//! the last two beside 1 and 10, then beside 1,000 and 10,000. Needs ten descriptors a peer.

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::Instant;

use common::{Medium, World, message};
use ropewalk_base::memory::Memory;
use ropewalk_net::{Channel, Level, Oversize, PeerId, Posted};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |at: usize| arguments.get(at).and_then(|text| text.parse::<u64>().ok());
    let rounds = number(1).unwrap_or(200_000);
    let crowds = match (number(3), number(4)) {
        (Some(peers), Some(receives)) => vec![(peers, receives)],
        _ => vec![(1, 10), (1000, 10_000)],
    };
    for (name, medium) in [("loop", Medium::Loop), ("tcp", Medium::Tcp)] {
        if arguments.get(2).is_some_and(|only| only != name) {
            continue;
        }
        for (peers, receives) in &crowds {
            measure(medium, *peers, *receives, rounds);
        }
    }
}

/// Adds a node that sends the first one a message.
fn join(world: &mut World) {
    let own = world.add();
    let hub = world.peer(own, 0);
    let memories = [world.memory(8, 1), world.memory(8, 1)];
    message(&world.nodes[own], &world.nodes[0], hub, memories);
}

fn receive(world: &World, source: Option<PeerId>, bits: u64) -> Posted {
    let (node, into, cut) = (&world.nodes[0], world.memory(8, 1), Oversize::Truncate);
    let (tagged, mask) = (Channel::Tagged, u64::MAX);
    let posted =
        node.endpoint.post_receive(&node.context, tagged, source, bits, mask, into, cut, 1);
    posted.expect("there is room")
}

fn measure(medium: Medium, peers: u64, receives: u64, rounds: u64) {
    let mut world = World::new(medium);
    world.add();
    (0..peers).for_each(|_| join(&mut world));
    let (peer, hub) = (world.peer(0, 1), world.peer(1, 0));
    let (bytes, level) = (Memory::constant(b"x"), Level::Buffered);
    let node = &world.nodes[0];
    let _ = node.endpoint.post_send(&node.context, peer, Channel::Untagged, 0, bytes, level, 0);
    while node.endpoint.test(&node.context).is_none() {
        world.nodes[1].endpoint.progress();
    }
    for number in 0..receives {
        receive(&world, (number % 2 == 0).then_some(peer), 1000 + number);
    }
    let begin = Instant::now();
    while begin.elapsed().as_millis() < 300 {
        world.nodes[0].endpoint.progress();
    }
    let mut memories = [world.memory(8, 1), world.memory(8, 1)];
    let begin = Instant::now();
    for _ in 0..rounds {
        memories = message(&world.nodes[1], &world.nodes[0], hub, memories);
    }
    let of_message = begin.elapsed().as_nanos() as u64 / rounds;
    let node = &world.nodes[0];
    let begin = Instant::now();
    for _ in 0..rounds {
        assert!(node.endpoint.test(&node.context).is_none());
    }
    let of_pass = begin.elapsed().as_nanos() as u64 / rounds;
    let begin = Instant::now();
    for _ in 0..rounds {
        let Posted::Pending(id) = receive(&world, Some(peer), 1000) else { panic!("not sent") };
        node.endpoint.cancel(id);
        assert!(node.endpoint.test(&node.context).is_some());
    }
    let of_cancel = begin.elapsed().as_nanos() as u64 / rounds;
    println!(
        "{medium:?}, {peers} peers, {receives} receives: {of_message} ns a message, {of_pass} ns an \
         idle pass, {of_cancel} ns a receive that is cancelled"
    );
    world.nodes.clear();
}
