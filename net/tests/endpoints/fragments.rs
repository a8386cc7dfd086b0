//! Messages that leave at once and are longer than a frame: the fate of their fragments.

use std::time::Duration;

use crate::common::{Medium, World, check};
use ropewalk_base::error::Fault;
use ropewalk_net::{Channel, Level, OperationId, Oversize, PeerId, Posted};
use ropewalk_rail_sim::{Cut, Path, SimConfig};

/// The media over which a message may come in fragments.
const STREAMS: [Medium; 3] = [Medium::Tcp, Medium::Tcp6, Medium::SimStream];
/// Longer than a frame of any of them.
const LONG: usize = 1 << 20;

/// Two endpoints that lend each other enough for long messages from the beginning.
fn generous(medium: Medium) -> World {
    let mut world = World::new(medium);
    for _ in 0..2 {
        world.add_with(|config| config.core.eager_window_bytes = 8 << 20);
    }
    world
}

fn send(world: &mut World, to: PeerId, bits: u64, len: usize, level: Level) -> Option<OperationId> {
    let memory = world.memory(len, bits as u8);
    let node = &world.nodes[0];
    let channel = Channel::Tagged;
    let posted = node.endpoint.post_send(&node.context, to, channel, bits, memory, level, bits);
    let id = match &posted {
        Ok(Posted::Pending(id)) => Some(*id),
        _ => None,
    };
    world.posted(0, posted);
    id
}

fn receive(world: &mut World, bits: u64, len: usize) -> Option<OperationId> {
    let memory = world.memory(len, 0);
    let node = &world.nodes[1];
    let (channel, cut) = (Channel::Tagged, Oversize::Truncate);
    let posted = node.endpoint.post_receive(
        &node.context,
        channel,
        None,
        bits,
        u64::MAX,
        memory,
        cut,
        1000 + bits,
    );
    let id = match &posted {
        Ok(Posted::Pending(id)) => Some(*id),
        _ => None,
    };
    world.posted(1, posted);
    id
}

fn sent_at_once(world: &World) -> (u64, u64, u64) {
    let (counters, _) = world.nodes[0].endpoint.counters();
    (counters.messages_eager_sent, counters.messages_announced, counters.fragments_sent)
}

/// Both endpoints hold what they account for, and the credit that was lent for a message has come back.
fn check_all(world: &World) {
    world.nodes.iter().for_each(|node| node.endpoint.check());
}

#[test]
fn messages_of_every_length_come_in_fragments_to_receives_that_are_early_late_or_short() {
    let lens = [(262_144, 0), (262_145, 1), (300_000, 1), (524_288, 1), (999_999, 3), (LONG, 3)];
    for (medium, (len, fragments)) in STREAMS.into_iter().flat_map(|it| lens.map(|len| (it, len))) {
        for room in [len, len + 1, len - 1, 262_144, 262_145, 100, 0] {
            for late in [false, true] {
                let mut world = generous(medium);
                let to = world.peer(0, 1);
                if !late {
                    receive(&mut world, 1, room);
                }
                send(&mut world, to, 1, len, Level::Buffered);
                if late {
                    world.until("the message", |world| {
                        world.nodes[1].endpoint.unmatched_count() == 1
                    });
                    receive(&mut world, 1, room);
                }
                let received = world.take(1, 1001);
                let outcome = if room >= len { Ok(()) } else { Err(Fault::Truncated) };
                assert_eq!(received.outcome, outcome, "{medium:?} {len} {room} {late}");
                assert_eq!(received.bytes, len.min(room) as u64);
                assert_eq!(received.message_bytes, len as u64);
                check(received.memory, len.min(room), 1);
                assert_eq!(world.take(0, 1).outcome, Ok(()));
                assert_eq!(sent_at_once(&world), (1, 0, fragments), "{medium:?} {len}");
                check_all(&world);
            }
        }
    }
}

#[test]
fn a_sender_learns_that_a_message_was_matched_or_delivered_once_that_is_so() {
    for medium in STREAMS {
        for level in [Level::Matched, Level::Delivered] {
            let mut world = generous(medium);
            let to = world.peer(0, 1);
            receive(&mut world, 1, LONG);
            send(&mut world, to, 1, LONG, level);
            assert_eq!(world.take(1, 1001).outcome, Ok(()));
            assert_eq!(world.take(0, 1).outcome, Ok(()), "{medium:?} {level:?}");
            send(&mut world, to, 2, LONG, level);
            (0..200).for_each(|_| world.step());
            let told = world.nodes[0].done.iter().any(|completed| completed.user == 2);
            if medium != Medium::SimStream {
                world.until("unmatched message", |world| {
                    world.nodes[1].endpoint.counters().0.messages_unmatched == 1
                });
            }
            assert!(!told || level == Level::Delivered, "{medium:?}: nobody took it");
            receive(&mut world, 2, LONG);
            assert_eq!(world.take(1, 1002).outcome, Ok(()));
            assert_eq!(world.take(0, 2).outcome, Ok(()), "{medium:?} {level:?}");
            check_all(&world);
        }
    }
}

#[test]
fn the_first_of_longer_messages_is_announced_and_those_behind_it_come_at_once() {
    for medium in STREAMS {
        for len in [64 << 10, 256 << 10, LONG] {
            let mut world = World::pair(medium);
            let to = world.peer(0, 1);
            for bits in 1..=20 {
                receive(&mut world, bits, len);
                send(&mut world, to, bits, len, Level::Buffered);
                let received = world.take(1, 1000 + bits);
                check(received.memory, len, bits as u8);
                world.take(0, bits);
                // As where an answer comes back.
                (0..20).for_each(|_| world.step());
            }
            let (at_once, announced, _) = sent_at_once(&world);
            assert_eq!((at_once, announced), (19, 1), "{medium:?} {len}");
            check_all(&world);
        }
    }
}

#[test]
fn where_nobody_waits_for_long_messages_they_are_announced_until_somebody_does() {
    for medium in STREAMS {
        let mut world = generous(medium);
        let to = world.peer(0, 1);
        let exchange = |world: &mut World, bits: std::ops::Range<u64>, late: bool| {
            let before = sent_at_once(world);
            for bits in bits {
                if !late {
                    receive(world, bits, 100_000);
                }
                send(world, to, bits, 100_000, Level::Buffered);
                (0..20).for_each(|_| world.step());
                if late {
                    world.until("the message", |world| {
                        world.nodes[1].endpoint.unmatched_count() == 1
                    });
                    receive(world, bits, 100_000);
                }
                check(world.take(1, 1000 + bits).memory, 100_000, bits as u8);
                world.take(0, bits);
                (0..20).for_each(|_| world.step());
            }
            let after = sent_at_once(world);
            (after.0 - before.0, after.1 - before.1)
        };
        assert_eq!(exchange(&mut world, 1..11, false), (10, 0), "{medium:?}: somebody waits");
        assert_eq!(exchange(&mut world, 11..21, true), (1, 9), "{medium:?}: nobody does");
        assert_eq!(exchange(&mut world, 21..31, false), (6, 4), "{medium:?}: somebody again");
        // Short messages leave at once in any case.
        send(&mut world, to, 50, 32 << 10, Level::Buffered);
        send(&mut world, to, 51, 32 << 10, Level::Buffered);
        assert_eq!(sent_at_once(&world).1, 13, "{medium:?}");
        check_all(&world);
    }
}

#[test]
fn what_nobody_waits_for_is_bounded_by_what_was_lent_and_nothing_is_lost() {
    for medium in STREAMS {
        let mut world = World::pair(medium);
        let to = world.peer(0, 1);
        // So that two of the longest are lent.
        for bits in [1, 2] {
            receive(&mut world, bits, LONG);
            send(&mut world, to, bits, LONG, Level::Buffered);
            world.take(1, 1000 + bits);
        }
        for bits in 10..60 {
            send(&mut world, to, bits, LONG, Level::Buffered);
        }
        world.until("all that were sent", |world| {
            world.nodes[1].endpoint.counters().0.messages_unmatched == 50
        });
        (0..200).for_each(|_| world.step());
        let (counters, _) = world.nodes[1].endpoint.counters();
        assert!(counters.bytes_unmatched <= 2 * LONG as u64, "{medium:?}: {counters:?}");
        for bits in 10..60 {
            receive(&mut world, bits, LONG);
            let received = world.take(1, 1000 + bits);
            assert_eq!(received.outcome, Ok(()), "{medium:?}");
            check(received.memory, LONG, bits as u8);
        }
        check_all(&world);
    }
}

/// Endpoints over a rail of 100 MB/s, on which a long message takes ten milliseconds.
fn slow() -> (World, PeerId) {
    let mut world = World::new(Medium::SimStream);
    let path = Path { bytes_per_second: 100_000_000, ..Path::default() };
    world.network.set_default_path(path);
    for name in ["slow-a", "slow-b"] {
        let rail = world.network.rail(name, SimConfig::stream());
        world.add_over(Box::new(rail), |config| config.core.eager_window_bytes = 8 << 20);
    }
    let to = world.peer(0, 1);
    receive(&mut world, 900, 8);
    send(&mut world, to, 900, 8, Level::Buffered);
    world.take(1, 1900);
    world.take(0, 900);
    (world, to)
}

/// Lets time pass until some of a long message is there, and some is not.
fn half_way(world: &mut World) {
    world.pass(Duration::from_millis(6));
}

#[test]
fn a_short_message_goes_in_between_the_fragments_of_a_long_one() {
    let (mut world, to) = slow();
    for bits in 1..=2 {
        receive(&mut world, bits, LONG);
    }
    send(&mut world, to, 1, LONG, Level::Buffered);
    world.pass(Duration::from_micros(100));
    send(&mut world, to, 2, 8, Level::Buffered);
    world.until("the short one", |world| !world.nodes[1].done.is_empty());
    assert_eq!(world.nodes[1].done[0].user, 1002, "the long one goes on behind it");
    check(world.take(1, 1001).memory, LONG, 1);
    check_all(&world);
}

#[test]
fn a_receive_that_is_cancelled_in_the_middle_ends_at_once_and_the_link_goes_on() {
    let (mut world, to) = slow();
    let received = receive(&mut world, 1, LONG).unwrap();
    send(&mut world, to, 1, LONG, Level::Buffered);
    half_way(&mut world);
    world.nodes[1].endpoint.cancel(received);
    world.pass(Duration::from_millis(1));
    let ended = world.nodes[1].done.iter().find(|it| it.user == 1001).expect("it ended at once");
    assert_eq!(ended.outcome, Err(Fault::Cancelled));
    check_all(&world);
    assert_eq!(world.take(0, 1).outcome, Ok(()));
    receive(&mut world, 2, LONG);
    send(&mut world, to, 2, LONG, Level::Buffered);
    check(world.take(1, 1002).memory, LONG, 2);
    check_all(&world);
}

#[test]
fn a_message_that_its_sender_gives_up_in_the_middle_ends_its_receive_and_frees_its_buffer() {
    for posted in [true, false] {
        let (mut world, to) = slow();
        if posted {
            receive(&mut world, 1, LONG);
        }
        // The rail has all of the second one's first fragment, and nothing of its others.
        receive(&mut world, 3, LONG);
        send(&mut world, to, 3, LONG, Level::Buffered);
        let sent = send(&mut world, to, 1, LONG, Level::Buffered).unwrap();
        half_way(&mut world);
        world.nodes[0].endpoint.cancel(sent);
        let ended = world.take(0, 1);
        assert_eq!(ended.outcome, Err(Fault::Cancelled));
        check(world.take(1, 1003).memory, LONG, 3);
        if posted {
            assert_eq!(world.take(1, 1001).outcome, Err(Fault::Cancelled));
        } else {
            world.pass(Duration::from_millis(50));
            assert_eq!(world.nodes[1].endpoint.unmatched_count(), 0, "nothing waits");
        }
        check_all(&world);
        receive(&mut world, 2, LONG);
        send(&mut world, to, 2, LONG, Level::Buffered);
        check(world.take(1, 1002).memory, LONG, 2);
        check_all(&world);
    }
}

#[test]
fn a_link_that_breaks_in_the_middle_fails_the_message_at_both_ends() {
    for posted in [true, false] {
        let (mut world, to) = slow();
        if posted {
            receive(&mut world, 1, LONG);
        }
        send(&mut world, to, 1, LONG, Level::Buffered);
        half_way(&mut world);
        let claims = !posted;
        if claims {
            receive(&mut world, 1, LONG);
        }
        assert!(world.network.cut("slow-a", "slow-b", Cut::Both) >= 1);
        assert_eq!(world.take(0, 1).outcome, Err(Fault::PeerReset));
        assert_eq!(world.take(1, 1001).outcome, Err(Fault::PeerReset), "posted: {posted}");
        check_all(&world);
        receive(&mut world, 2, LONG);
        send(&mut world, to, 2, LONG, Level::Buffered);
        check(world.take(1, 1002).memory, LONG, 2);
        check_all(&world);
    }
}

#[test]
fn an_endpoint_that_closes_in_the_middle_of_a_message_ends_it() {
    for closing in [0, 1] {
        let (mut world, to) = slow();
        receive(&mut world, 1, LONG);
        send(&mut world, to, 1, LONG, Level::Buffered);
        half_way(&mut world);
        world.nodes[closing].endpoint.close();
        assert!(world.take(0, 1).outcome.is_err(), "sender, {closing} closes");
        // Data that a rail was given before its endpoint closed still goes out.
        let ended = world.take(1, 1001).outcome;
        assert!(ended.is_err() || closing == 0, "receiver, {closing} closes: {ended:?}");
    }
}
