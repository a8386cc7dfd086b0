//! The message layer over every medium: messages arrive, once, in order, where they belong.

use crate::common::{self, ALL, Medium, WITH_TAGS, World, check};
use ropewalk_base::error::Fault;
use ropewalk_base::memory::Memory;
use ropewalk_base::verb::RemoteLayout;
use ropewalk_net::{Audience, Channel, Direction, Level, Oversize, PeerId, Posted};

fn send(world: &mut World, from: usize, to: PeerId, bits: u64, len: usize, user: u64) {
    let memory = world.memory(len, bits as u8);
    let node = &world.nodes[from];
    let posted = node.endpoint.post_send(
        &node.context,
        to,
        Channel::Tagged,
        bits,
        memory,
        Level::Buffered,
        user,
    );
    world.posted(from, posted);
}

fn receive(world: &mut World, at: usize, source: Option<PeerId>, bits: u64, len: usize, user: u64) {
    receive_masked(world, at, source, bits, u64::MAX, len, user);
}

fn receive_masked(
    world: &mut World,
    at: usize,
    source: Option<PeerId>,
    bits: u64,
    mask: u64,
    len: usize,
    user: u64,
) {
    let memory = world.memory(len, 0);
    let node = &world.nodes[at];
    let oversize = Oversize::Truncate;
    let posted = node.endpoint.post_receive(
        &node.context,
        Channel::Tagged,
        source,
        bits,
        mask,
        memory,
        oversize,
        user,
    );
    world.posted(at, posted);
}

/// Media on which a message may come in fragments.
const STREAMS: [Medium; 3] = [Medium::Tcp, Medium::Tcp6, Medium::SimStream];

const SIZES: [usize; 12] =
    [0, 1, 8, 63, 4096, 16383, 16384, 16385, 65536, 262_144, 262_145, 3_000_000];

#[test]
fn every_size_arrives_whether_the_receive_comes_first_or_late() {
    for medium in WITH_TAGS {
        let mut world = World::pair(medium);
        let to = world.peer(0, 1);
        for (index, len) in SIZES.into_iter().enumerate() {
            for late in [false, true] {
                let (bits, user) = (index as u64 * 2 + u64::from(late), 100);
                if !late {
                    receive(&mut world, 1, None, bits, len, user);
                }
                send(&mut world, 0, to, bits, len, 1);
                if late {
                    for _ in 0..20 {
                        world.step();
                    }
                    receive(&mut world, 1, None, bits, len, user);
                }
                let received = world.take(1, user);
                assert_eq!(received.outcome, Ok(()), "{medium:?} {len}");
                assert_eq!((received.bytes, received.message_bytes), (len as u64, len as u64));
                check(received.memory, len, bits as u8);
                let sent = world.take(0, 1);
                assert_eq!(sent.outcome, Ok(()), "{medium:?} {len}");
            }
        }
    }
}

#[test]
fn large_messages_that_were_awaited_are_not_staged() {
    for medium in [Medium::Tcp, Medium::Shm, Medium::ShmRing, Medium::Loop] {
        let mut world = World::pair(medium);
        let to = world.peer(0, 1);
        for round in 0..20 {
            receive(&mut world, 1, None, round, 1 << 20, 100);
            send(&mut world, 0, to, round, 1 << 20, 1);
            world.take(1, 100);
            world.take(0, 1);
        }
        let (_, rails) = world.nodes[1].endpoint.counters();
        let staged: u64 = rails.iter().map(|(_, counters)| counters.bytes_staged).sum();
        // Of 20 MiB only bytes that came in one read with a header may be staged: well under 4 KiB for each of the
        // 80 data frames.
        assert!(staged <= 80 * 4096, "{medium:?}: {staged} bytes staged");
        let (counters, _) = world.nodes[1].endpoint.counters();
        assert_eq!(counters.bytes_unmatched, 0);
    }
}

#[test]
fn messages_of_a_peer_match_in_the_order_of_sending_small_and_large_mixed() {
    for medium in WITH_TAGS {
        let mut world = World::pair(medium);
        let to = world.peer(0, 1);
        let lens = [10usize, 100_000, 20, 300_000, 0, 30, 50_000, 40];
        for (index, len) in lens.into_iter().enumerate() {
            send(&mut world, 0, to, 5, len, index as u64);
        }
        for _ in 0..20 {
            world.step();
        }
        for (index, len) in lens.into_iter().enumerate() {
            // Alternately by exact bits and by wildcard: the earliest sent wins all the same.
            let mask = if index % 2 == 0 { u64::MAX } else { 0 };
            receive_masked(&mut world, 1, None, 5, mask, 400_000, 100 + index as u64);
            let received = world.take(1, 100 + index as u64);
            assert_eq!(received.message_bytes, len as u64, "{medium:?} message {index}");
            check(received.memory, len, 5);
        }
    }
}

#[test]
fn requests_arrive_without_a_receive_and_in_order() {
    for medium in ALL {
        let mut world = World::pair(medium);
        let to = world.peer(0, 1);
        for number in 0..200u64 {
            let memory = world.memory(number as usize * 7 % 3000, number as u8);
            let node = &world.nodes[0];
            let channel = Channel::Request;
            let posted = node.endpoint.post_send(
                &node.context,
                to,
                channel,
                number,
                memory,
                Level::Buffered,
                number,
            );
            world.posted(0, posted);
        }
        let mut next = 0;
        world.until("requests", |world| {
            while let Some(request) = world.nodes[1].endpoint.next_request() {
                assert_eq!(request.bits, next, "{:?}", world.medium);
                assert_eq!(request.bytes().len(), next as usize * 7 % 3000);
                next += 1;
            }
            next == 200
        });
    }
}

#[test]
fn operations_end_once_when_the_peer_goes_and_the_next_ones_reach_its_successor() {
    for medium in [Medium::Tcp, Medium::Shm, Medium::ShmRing, Medium::Loop, Medium::SimStream] {
        let mut world = World::pair(medium);
        let (to, from) = (world.peer(0, 1), world.peer(1, 0));
        send(&mut world, 0, to, 1, 10, 1);
        receive(&mut world, 1, None, 1, 10, 2);
        world.take(0, 1);
        world.take(1, 2);
        receive(&mut world, 0, Some(to), 7, 10, 3);
        receive(&mut world, 0, None, 7, 10, 4);
        send(&mut world, 0, to, 8, 1 << 20, 5);
        let _ = from;
        world.step();
        world.nodes[1].endpoint.close();
        for user in [3, 5] {
            assert_eq!(world.take(0, user).outcome, Err(Fault::PeerReset), "{medium:?} {user}");
        }
        assert!(world.nodes[0].done.iter().all(|completed| completed.user != 4));
    }
}

#[test]
fn two_that_connect_to_each_other_at_once_end_up_with_one_session() {
    for medium in WITH_TAGS {
        for _ in 0..20 {
            let mut world = World::pair(medium);
            let (a, b) = (world.peer(0, 1), world.peer(1, 0));
            send(&mut world, 0, a, 1, 10, 1);
            send(&mut world, 1, b, 2, 10, 2);
            receive(&mut world, 0, Some(a), 2, 10, 3);
            receive(&mut world, 1, Some(b), 1, 10, 4);
            for (node, user) in [(0, 1), (1, 2), (0, 3), (1, 4)] {
                assert_eq!(world.take(node, user).outcome, Ok(()), "{medium:?}");
            }
            for node in &world.nodes {
                assert_eq!(node.endpoint.counters().0.sessions, 1, "{medium:?}");
            }
        }
    }
}

#[test]
fn sends_complete_at_the_level_that_was_asked_for() {
    for medium in WITH_TAGS {
        let mut world = World::pair(medium);
        let to = world.peer(0, 1);
        for (bits, level) in [(1, Level::Delivered), (2, Level::Matched)] {
            let memory = world.memory(100, 1);
            let node = &world.nodes[0];
            let posted = node.endpoint.post_send(
                &node.context,
                to,
                Channel::Tagged,
                bits,
                memory,
                level,
                bits,
            );
            world.posted(0, posted);
        }
        assert_eq!(world.take(0, 1).outcome, Ok(()));
        for _ in 0..50 {
            world.step();
        }
        assert!(world.nodes[0].done.is_empty(), "{medium:?}: matched without a receive");
        receive(&mut world, 1, None, 2, 100, 9);
        assert_eq!(world.take(0, 2).outcome, Ok(()));
    }
}

#[test]
fn a_cancelled_operation_ends_and_its_neighbours_live_on() {
    for medium in ALL {
        let mut world = World::pair(medium);
        let to = world.peer(0, 1);
        // A large send that nobody receives, and a receive that nobody satisfies.
        let memory = world.memory(1 << 20, 1);
        let node = &world.nodes[0];
        let large = node
            .endpoint
            .post_send(&node.context, to, Channel::Tagged, 1, memory, Level::Buffered, 1)
            .unwrap();
        let memory = world.memory(10, 0);
        let idle = node.endpoint.post_receive(
            &node.context,
            Channel::Tagged,
            Some(to),
            3,
            u64::MAX,
            memory,
            Oversize::Truncate,
            2,
        );
        let (Posted::Pending(large), Ok(Posted::Pending(idle))) = (large, idle) else {
            panic!("{medium:?}: completed without a peer");
        };
        for _ in 0..30 {
            world.step();
        }
        world.nodes[0].endpoint.cancel(large);
        world.nodes[0].endpoint.cancel(idle);
        assert_eq!(world.take(0, 1).outcome, Err(Fault::Cancelled), "{medium:?}");
        assert_eq!(world.take(0, 2).outcome, Err(Fault::Cancelled), "{medium:?}");
        // The peer hears of it; a receive that came before would have been cancelled with it.
        for _ in 0..50 {
            world.step();
        }
        send(&mut world, 0, to, 1, 20, 3);
        receive(&mut world, 1, None, 1, 1 << 20, 4);
        let received = world.take(1, 4);
        assert_eq!((received.outcome, received.message_bytes), (Ok(()), 20), "{medium:?}");
    }
}

#[test]
fn a_receive_that_is_too_short_cuts_or_refuses_as_asked() {
    for medium in WITH_TAGS {
        let mut world = World::pair(medium);
        let to = world.peer(0, 1);
        for (bits, len) in [(1, 1000), (2, 100_000)] {
            receive(&mut world, 1, None, bits, 10, 5);
            send(&mut world, 0, to, bits, len, 1);
            let cut = world.take(1, 5);
            assert_eq!(cut.outcome, Err(Fault::Truncated), "{medium:?}");
            assert_eq!((cut.bytes, cut.message_bytes), (10, len as u64));
            check(cut.memory, 10, bits as u8);
            let memory = world.memory(10, 0);
            let node = &world.nodes[1];
            let posted = node.endpoint.post_receive(
                &node.context,
                Channel::Tagged,
                None,
                bits,
                u64::MAX,
                memory,
                Oversize::Refuse,
                6,
            );
            world.posted(1, posted);
            send(&mut world, 0, to, bits, len, 2);
            let refused = world.take(1, 6);
            assert_eq!(refused.outcome, Err(Fault::Oversize), "{medium:?}");
            assert_eq!(refused.message_bytes, len as u64);
            receive(&mut world, 1, None, bits, len, 7);
            let whole = world.take(1, 7);
            assert_eq!(whole.outcome, Ok(()), "{medium:?}: the refused message stayed");
            check(whole.memory, len, bits as u8);
            world.nodes[0].done.clear();
        }
    }
}

#[test]
fn nobody_there_is_unreachable() {
    for medium in [Medium::Tcp, Medium::Shm, Medium::Loop, Medium::SimStream] {
        let mut world = World::pair(medium);
        let to = world.peer(0, 1);
        let gone = world.nodes.pop().unwrap();
        gone.endpoint.close();
        drop(gone);
        if world.simulated() {
            continue;
        }
        let memory = Memory::constant(b"hello");
        let node = &world.nodes[0];
        let posted = node.endpoint.post_send(
            &node.context,
            to,
            Channel::Tagged,
            1,
            memory,
            Level::Buffered,
            1,
        );
        world.posted(0, posted);
        assert_eq!(world.take(0, 1).outcome, Err(Fault::Unreachable), "{medium:?}");
    }
}

#[test]
fn an_endpoint_reaches_itself() {
    for medium in WITH_TAGS {
        let mut world = World::pair(medium);
        let own = world.peer(0, 0);
        let again = world.peer(0, 0);
        for (number, len) in [0, 10, 5_000, 700_000].into_iter().enumerate() {
            let (bits, to) = (number as u64, [own, again][number % 2]);
            if number % 2 == 0 {
                receive(&mut world, 0, Some(own), bits, len, 100 + bits);
            }
            send(&mut world, 0, to, bits, len, bits);
            if number % 2 == 1 {
                receive(&mut world, 0, None, bits, len, 100 + bits);
            }
            let received = world.take(0, 100 + bits);
            assert_eq!(received.outcome, Ok(()), "{medium:?} {len}");
            check(received.memory, len, bits as u8);
            assert_eq!(world.take(0, bits).outcome, Ok(()), "{medium:?} {len}");
        }
        assert!(world.nodes[0].endpoint.same_peer(own, again));
        assert_eq!(world.nodes[0].endpoint.peer_rail(own), Some("loop"));
        let region = world.memory(300_000, 5);
        let key = world.nodes[0].endpoint.expose(region, true, Audience::Everybody).unwrap();
        for (direction, user) in [(Direction::Get, 7), (Direction::Put, 8)] {
            let memory = world.memory(290_000, 6);
            let node = &world.nodes[0];
            let remote = RemoteLayout::At(10);
            let posted =
                node.endpoint.post_access(&node.context, direction, own, key, remote, memory, user);
            world.posted(0, posted);
            let access = world.take(0, user);
            assert_eq!(access.outcome, Ok(()), "{medium:?}");
            let bytes = access.memory.into_pooled().unwrap();
            let from = if direction == Direction::Get { (10, 5) } else { (0, 6) };
            assert!((0..290_000).all(|at| bytes[at] == common::pattern(at + from.0, from.1)));
        }
        // A message to itself that nobody receives, and a farewell: both end.
        send(&mut world, 0, own, 99, 700_000, 9);
        world.step();
        world.nodes[0].endpoint.check();
        world.nodes[0].endpoint.close();
        assert_eq!(world.take(0, 9).outcome, Err(Fault::Closed), "{medium:?}");
    }
}

#[test]
fn where_only_awaited_messages_are_wanted_all_others_are_dropped_and_hold_no_credit() {
    for medium in ALL {
        let mut world = World::pair(medium);
        let peer = world.peer(0, 1);
        world.nodes[1].endpoint.drop_unawaited(Channel::Tagged);
        // Both far more than the windows for small and for announced messages.
        for (bytes, count) in [(8_000, 400), (100_000, 1_500)] {
            for number in 0..count {
                let memory = world.memory(bytes, 1);
                let node = &world.nodes[0];
                let (channel, bits) = (Channel::Tagged, number);
                let posted = node
                    .endpoint
                    .post_send(&node.context, peer, channel, bits, memory, Level::Buffered, 1)
                    .expect("there is room");
                let outcome = match posted {
                    Posted::Done(completed) => completed.outcome,
                    Posted::Pending(_) => world.take(0, 1).outcome,
                };
                // Messages that left at once are over, announced ones are given back. The shorter ones are
                // announced, too, if the window is used up for a moment, and over streams the
                // longer ones leave at once.
                let longer = bytes > 64 * 1024 && !STREAMS.contains(&medium);
                let cancelled = outcome == Err(Fault::Cancelled);
                assert!(cancelled || (outcome.is_ok() && !longer), "{medium:?}: {outcome:?}");
            }
        }
        assert_eq!(world.nodes[1].endpoint.unmatched_count(), 0);
        // One that is awaited arrives.
        let (into, out) = (world.memory(8, 0), world.memory(8, 1));
        let (channel, mask, cut) = (Channel::Tagged, u64::MAX, Oversize::Truncate);
        let node = &world.nodes[1];
        let received =
            node.endpoint.post_receive(&node.context, channel, None, 3, mask, into, cut, 2);
        assert!(matches!(received, Ok(Posted::Pending(_))));
        let node = &world.nodes[0];
        node.endpoint.post_send(&node.context, peer, channel, 3, out, Level::Buffered, 1).unwrap();
        assert_eq!(world.take(1, 2).outcome, Ok(()));
    }
}

#[test]
fn announces_of_a_burst_share_system_calls_and_wait_for_a_pass_at_most() {
    const BURST: u64 = 100;
    const BYTES: usize = 20_000;
    let mut world = World::pair(Medium::Tcp);
    let to = world.peer(0, 1);
    send(&mut world, 0, to, 1, 10, 1000);
    receive(&mut world, 1, None, 1, 10, 1000);
    world.take(0, 1000);
    world.take(1, 1000);
    let calls = |world: &World| world.nodes[0].endpoint.counters().1[0].1.system_calls;
    let before = calls(&world);
    for user in 0..BURST {
        send(&mut world, 0, to, user, BYTES, user);
    }
    // The first ones go at once.
    let posted = calls(&world) - before;
    assert!((9..=16).contains(&posted), "{posted} system calls for {BURST} announces");
    world.nodes[0].endpoint.progress();
    while world.nodes[1].endpoint.unmatched_count() < BURST as usize {
        world.nodes[1].endpoint.progress();
    }
    // One that is in a hurry takes the others with it, in order.
    send(&mut world, 0, to, 500, BYTES, 500);
    send(&mut world, 0, to, 501, 10, 501);
    while world.nodes[1].endpoint.unmatched_count() < BURST as usize + 2 {
        world.nodes[1].endpoint.progress();
    }
    for user in (0..BURST).chain([500, 501]) {
        let bytes = if user == 501 { 10 } else { BYTES };
        receive(&mut world, 1, None, user, bytes, user);
        assert_eq!(world.take(1, user).outcome, Ok(()));
        assert_eq!(world.take(0, user).outcome, Ok(()));
    }
}

#[test]
fn large_messages_of_another_process_are_read_or_sent_as_the_rail_says() {
    for (medium, native) in [(Medium::Shm, true), (Medium::ShmRing, false), (Medium::Loop, true)] {
        let mut world = World::pair(medium);
        let to = world.peer(0, 1);
        for (user, bytes) in [(1, 100_000), (2, 3 << 20)] {
            send(&mut world, 0, to, user, bytes, user);
            receive(&mut world, 1, None, user, bytes, user);
            let completed = world.take(1, user);
            assert_eq!(completed.outcome, Ok(()), "{medium:?}");
            common::check(completed.memory, bytes, user as u8);
            assert_eq!(world.take(0, user).outcome, Ok(()), "{medium:?}");
        }
        let read = world.nodes[1].endpoint.counters().1[0].1.bytes_native;
        assert_eq!(read, if native { 100_000 + (3 << 20) } else { 0 }, "{medium:?}");
        world.nodes.iter().for_each(|node| node.endpoint.check());
    }
}

/// The numbers of messages that left at once and that were announced, for one message of this many bytes.
fn ways(medium: Medium, bytes: usize, eager_bytes_max: Option<u32>) -> (u64, u64) {
    let mut world = World::new(medium);
    for _ in 0..2 {
        world.add_with(|config| config.core.eager_bytes_max = eager_bytes_max);
    }
    let (sender, receiver) = (&world.nodes[0], &world.nodes[1]);
    let memories = [world.memory(bytes, 1), world.memory(bytes, 1)];
    common::message(sender, receiver, world.peer(0, 1), memories);
    let (counters, _) = sender.endpoint.counters();
    (counters.messages_eager_sent, counters.messages_announced)
}

#[test]
fn messages_are_announced_where_that_costs_less() {
    let media = [
        // As far as the first credit reaches: a message counts the buffer that it might be staged in.
        (Medium::Tcp, 32 << 10),
        (Medium::Shm, 16 << 10),
        (Medium::Loop, 16 << 10),
        // On loopback its packets are long.
        (Medium::Udp, 64 << 10),
        (Medium::Mxoe, 32 << 10),
    ];
    for (medium, at_once) in media {
        assert_eq!(ways(medium, at_once, None), (1, 0), "{medium:?}");
        assert_eq!(ways(medium, at_once + 1, None), (0, 1), "{medium:?}");
    }
}

#[test]
fn no_more_leaves_at_once_than_a_rail_takes_whatever_is_configured() {
    let most = Some(64 << 10);
    assert_eq!(ways(Medium::Tcp, 64 << 10, most), (1, 0));
    assert_eq!(ways(Medium::Mxoe, 32 << 10, most), (1, 0));
    assert_eq!(ways(Medium::Mxoe, (32 << 10) + 1, most), (0, 1));
}
