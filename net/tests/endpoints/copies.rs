//! The number of copies of a message's bytes, as endpoints count them.

use crate::common::{Medium, World, message};

const ROUNDS: u64 = 20;

#[test]
fn what_is_awaited_is_copied_once_by_either_side() {
    // Short ones are kept to be sent again, and leave from there, but for the shortest, which are written into their
    // packets; long ones are sent from their place.
    let of = |medium| [(medium, 200, 2), (medium, 700, 1), (medium, 8000, 1), (medium, 300_000, 1)];
    for (medium, bytes, sent) in of(Medium::Udp).into_iter().chain(of(Medium::Mxoe)) {
        let world = World::pair(medium);
        let peer = world.peer(0, 1);
        let mut memories = [world.memory(bytes, 1), world.memory(bytes, 1)];
        let mut each = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            let copied =
                |world: &World| [0, 1].map(|node: usize| world.nodes[node].endpoint.bytes_copied());
            let before = copied(&world);
            memories = message(&world.nodes[0], &world.nodes[1], peer, memories);
            let after = copied(&world);
            (0..2).for_each(|node| each[node].push(after[node] - before[node]));
        }
        // A packet that goes again, on a busy machine, is one round's.
        let [sender, receiver] = each.map(|mut all| {
            all.sort_unstable();
            all[all.len() / 2]
        });
        let bytes = bytes as u64;
        assert_eq!((sender, receiver), (sent * bytes, bytes), "{medium:?}");
    }
}

#[test]
fn only_an_announced_message_registers_its_memory() {
    for (bytes, is_announced) in [(8000, false), (300_000, true)] {
        let world = World::pair(Medium::Udp);
        let peer = world.peer(0, 1);
        let counters = || [0, 1].map(|node: usize| world.nodes[node].endpoint.counters().0);
        let mut memories = [world.memory(bytes, 1), world.memory(bytes, 1)];
        for _ in 0..ROUNDS {
            let before = counters();
            memories = message(&world.nodes[0], &world.nodes[1], peer, memories);
            let after = counters();
            let opened =
                [0, 1].map(|node| after[node].regions_opened - before[node].regions_opened);
            let announced = after[0].messages_announced - before[0].messages_announced;
            let one = u64::from(is_announced);
            assert_eq!((opened, announced), ([one, 0], one), "{bytes} bytes");
        }
    }
}
