//! In steady state a message allocates nothing: neither small ones nor announced ones. Over packets it is bounded.

mod common;

use std::alloc::System;

use common::{Medium, World, message};
use ropewalk_base::memory::Memory;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[test]
fn messages_allocate_nothing_once_they_flow_or_over_packets_little() {
    const MESSAGES: usize = 1000;
    let streams = [Medium::Tcp, Medium::Shm, Medium::ShmRing, Medium::Loop];
    let streams = streams.map(|medium| (medium, [(8, 0), (1 << 20, 0)]));
    // Over packets one for each message of several packets, and in MXoE one for each that is acknowledged; and, as it
    // happens, one for a timer. Twice as many would be seen.
    let packets = [
        (Medium::Udp, [(8, MESSAGES / 2), (8000, MESSAGES * 9 / 5)]),
        (Medium::Mxoe, [(8, MESSAGES * 9 / 5), (8000, MESSAGES * 9 / 5)]),
    ];
    for (medium, lengths) in streams.into_iter().chain(packets) {
        let mut world = World::pair(medium);
        let peers = [world.peer(0, 1), world.peer(1, 0)];
        for (len, most) in lengths {
            let mut memories = [world.memory(len, 1), world.memory(len, 1)];
            let mut run = |count: usize| {
                for number in 0..count {
                    let (from, to) = (number % 2, 1 - number % 2);
                    let taken =
                        std::mem::replace(&mut memories, [Memory::empty(), Memory::empty()]);
                    memories = message(&world.nodes[from], &world.nodes[to], peers[from], taken);
                }
            };
            run(600);
            let mut counts = [0; 3].map(|_| {
                let before = ALLOCATOR.stats();
                run(MESSAGES);
                let stats = ALLOCATOR.stats() - before;
                stats.allocations + stats.reallocations
            });
            counts.sort_unstable();
            // The test's own harness allocates beside, once, at its start: in one round at most. Rare allocations of
            // a message show in more.
            assert!(counts[1] <= most, "{medium:?}, {len} bytes, {MESSAGES} messages: {counts:?}");
        }
        world.nodes.clear();
    }
}
