//! The work of a message without any waiting: one thread plays both ends, so that what is left is
//! instructions. For profilers (`perf record`, `valgrind --tool=callgrind`).
//!
//! `cargo run --release -p ropewalk-net --example message_cost [ROUNDS [loop|shm|tcp]]`; instructions:
//! `valgrind --tool=callgrind --toggle-collect='message_cost::message' .../message_cost 2000 loop`.

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::Instant;

use common::{Medium, World};
use ropewalk_base::memory::Memory;
use ropewalk_net::{Channel, Level, Oversize, PeerId, Posted};

/// One message, received into memory that was posted before; both memories come back.
#[inline(never)]
fn message(world: &World, peer: PeerId, memories: [Memory; 2]) -> [Memory; 2] {
    let (sender, receiver) = (&world.nodes[0], &world.nodes[1]);
    let [out, into] = memories;
    let (channel, mask, cut) = (Channel::Tagged, u64::MAX, Oversize::Truncate);
    let received = receiver
        .endpoint
        .post_receive(&receiver.context, channel, None, 3, mask, into, cut, 1)
        .expect("there is room");
    let sent = sender
        .endpoint
        .post_send(&sender.context, peer, channel, 3, out, Level::Buffered, 2)
        .expect("there is room");
    let early = |posted| match posted {
        Posted::Done(completed) => Some(completed),
        Posted::Pending(_) => None,
    };
    let (mut received, mut sent) = (early(received), early(sent));
    while received.is_none() || sent.is_none() {
        sent = sent.or_else(|| sender.endpoint.test(&sender.context));
        received = received.or_else(|| receiver.endpoint.test(&receiver.context));
    }
    [sent.expect("just seen"), received.expect("just seen")].map(|completed| completed.memory)
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(200_000u32);
    let only = std::env::args().nth(2);
    for (name, medium) in [("loop", Medium::Loop), ("shm", Medium::Shm), ("tcp", Medium::Tcp)] {
        if only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        let mut world = World::pair(medium);
        let peer = world.peer(0, 1);
        let mut memories = [world.memory(8, 1), world.memory(8, 1)];
        for _ in 0..1000 {
            memories = message(&world, peer, memories);
        }
        let begin = Instant::now();
        for _ in 0..rounds {
            memories = message(&world, peer, memories);
        }
        println!("{medium:?}: {} ns a message", begin.elapsed().as_nanos() / u128::from(rounds));
        let begin = Instant::now();
        for _ in 0..rounds {
            assert!(world.nodes[1].endpoint.test(&world.nodes[1].context).is_none());
        }
        println!("{medium:?}: {} ns an idle pass", begin.elapsed().as_nanos() / u128::from(rounds));
        world.nodes.clear();
    }
}
