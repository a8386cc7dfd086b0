//! The work of a message without any waiting: one thread plays both ends, so that only instructions remain. For
//! profilers (`perf record`, `valgrind --tool=callgrind`).
//!
//! `cargo run --release -p ropewalk-net --example message_cost [ROUNDS [loop|shm|tcp|udp|mxoe]]`; instructions:
//! `valgrind --tool=callgrind --toggle-collect='message_cost::common::message' .../message_cost 2000 loop`.

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::Instant;

use common::{Medium, World, message};

fn main() {
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(200_000u32);
    let only = std::env::args().nth(2);
    for (name, medium) in [
        ("loop", Medium::Loop),
        ("shm", Medium::Shm),
        ("tcp", Medium::Tcp),
        ("udp", Medium::Udp),
        ("mxoe", Medium::Mxoe),
    ] {
        if only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        let mut world = World::pair(medium);
        let peer = world.peer(0, 1);
        let mut memories = [world.memory(8, 1), world.memory(8, 1)];
        for _ in 0..1000 {
            memories = message(&world.nodes[0], &world.nodes[1], peer, memories);
        }
        let begin = Instant::now();
        for _ in 0..rounds {
            memories = message(&world.nodes[0], &world.nodes[1], peer, memories);
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
