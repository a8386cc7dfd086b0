//! In steady state a message allocates nothing: neither small ones nor announced ones.

mod common;

use std::alloc::System;

use common::{Medium, World};
use ropewalk_base::memory::Memory;
use ropewalk_net::{Channel, Level, Oversize, PeerId, Posted};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// One message from one node to the other, with the memories that went round before.
fn round(world: &World, from: usize, peer: PeerId, memories: [Memory; 2]) -> [Memory; 2] {
    let (sender, receiver) = (&world.nodes[from], &world.nodes[1 - from]);
    let [out, into] = memories;
    let (channel, mask, cut) = (Channel::Tagged, u64::MAX, Oversize::Truncate);
    let received = receiver
        .endpoint
        .post_receive(&receiver.context, channel, None, 3, mask, into, cut, 1)
        .unwrap();
    let sent = sender
        .endpoint
        .post_send(&sender.context, peer, channel, 3, out, Level::Buffered, 2)
        .unwrap();
    let early = |posted| match posted {
        Posted::Done(completed) => Some(completed),
        Posted::Pending(_) => None,
    };
    let (mut received, mut sent) = (early(received), early(sent));
    while received.is_none() || sent.is_none() {
        sent = sent.or_else(|| sender.endpoint.test(&sender.context));
        received = received.or_else(|| receiver.endpoint.test(&receiver.context));
    }
    [sent.unwrap(), received.unwrap()].map(|completed| {
        assert_eq!(completed.outcome, Ok(()));
        completed.memory
    })
}

#[test]
fn messages_allocate_nothing_once_they_flow() {
    for medium in [Medium::Tcp, Medium::Shm, Medium::Loop] {
        let mut world = World::pair(medium);
        let peers = [world.peer(0, 1), world.peer(1, 0)];
        for len in [8, 1 << 20] {
            let mut memories = [world.memory(len, 1), world.memory(len, 1)];
            for number in 0..600 {
                memories = round(&world, number % 2, peers[number % 2], memories);
            }
            let before = ALLOCATOR.stats();
            const MESSAGES: usize = 1000;
            for number in 0..MESSAGES {
                memories = round(&world, number % 2, peers[number % 2], memories);
            }
            let stats = ALLOCATOR.stats() - before;
            let count = stats.allocations + stats.reallocations;
            assert_eq!(count, 0, "{medium:?}, {len} bytes: {count} for {MESSAGES} messages");
        }
        world.nodes.clear();
    }
}
