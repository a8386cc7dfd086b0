//! Messages that wait for a receive: probed, offered, and receives that are taken back; the report to a sender of a
//! receive that was too short. Over every medium.

use crate::common::{self, ALL, WITH_TAGS, World, check};
use ropewalk_base::error::Fault;
use ropewalk_net::{Channel, Completed, Level, OperationId, Oversize, PeerId, Posted};

const TAGGED: Channel = Channel::Tagged;

fn send(world: &mut World, to: PeerId, bits: u64, len: usize, level: Level, user: u64) {
    let memory = world.memory(len, bits as u8);
    let node = &world.nodes[0];
    let posted = node.endpoint.post_send(&node.context, to, TAGGED, bits, memory, level, user);
    world.posted(0, posted);
}

fn receive(world: &mut World, bits: u64, mask: u64, len: usize, user: u64) -> Option<OperationId> {
    let memory = world.memory(len, 0);
    let node = &world.nodes[1];
    let cut = Oversize::Truncate;
    let posted =
        node.endpoint.post_receive(&node.context, TAGGED, None, bits, mask, memory, cut, user);
    let id = match &posted {
        Ok(Posted::Pending(id)) => Some(*id),
        _ => None,
    };
    world.posted(1, posted);
    id
}

/// Waits until so many messages wait for a receive and can be looked at.
fn unmatched(world: &mut World, count: usize) {
    world.until("unmatched messages", |world| world.nodes[1].endpoint.unmatched_count() == count);
    // Also the last bytes of small ones.
    (0..20).for_each(|_| world.step());
}

#[test]
fn a_sender_whose_message_was_fetched_or_matched_is_told_how_much_was_taken() {
    for medium in WITH_TAGS {
        let mut world = World::pair(medium);
        let to = world.peer(0, 1);
        let cases = [
            (1, 2 << 20, Level::Buffered),
            (2, 1_000, Level::Matched),
            (3, 100_000, Level::Matched),
            (4, 0, Level::Matched),
        ];
        for (bits, len, level) in cases {
            for before in [true, false] {
                for room in [10, 0, len] {
                    if before {
                        receive(&mut world, bits, u64::MAX, room, 5);
                    }
                    send(&mut world, to, bits, len, level, 6);
                    if !before {
                        unmatched(&mut world, 1);
                        receive(&mut world, bits, u64::MAX, room, 5);
                    }
                    let taken = room.min(len) as u64;
                    let (got, sent) = (world.take(1, 5), world.take(0, 6));
                    assert_eq!((got.bytes, got.message_bytes), (taken, len as u64), "{medium:?}");
                    assert_eq!(sent.outcome, Ok(()), "{medium:?}");
                    assert_eq!((sent.bytes, sent.message_bytes), (taken, len as u64), "{medium:?}");
                }
            }
        }
    }
}

#[test]
fn a_probe_sees_the_message_that_a_receive_would_take_and_leaves_it() {
    for medium in WITH_TAGS {
        let mut world = World::pair(medium);
        let to = world.peer(0, 1);
        let before = world.nodes[1].endpoint.arrivals();
        assert_eq!(world.nodes[1].endpoint.probe(TAGGED, None, 0, 0), None);
        for (bits, len) in [(0x11, 7), (0x21, 100_000), (0x12, 0)] {
            send(&mut world, to, bits, len, Level::Buffered, bits);
        }
        unmatched(&mut world, 3);
        assert!(world.nodes[1].endpoint.arrivals() > before, "{medium:?}");
        let probe = |world: &World, bits, mask| {
            let found = world.nodes[1].endpoint.probe(TAGGED, None, bits, mask)?;
            Some((found.bits, found.bytes))
        };
        for _ in 0..2 {
            assert_eq!(probe(&world, 0, 0), Some((0x11, 7)), "{medium:?}");
            assert_eq!(probe(&world, 0x20, 0xf0), Some((0x21, 100_000)), "{medium:?}");
            assert_eq!(probe(&world, 0x12, u64::MAX), Some((0x12, 0)), "{medium:?}");
            assert_eq!(probe(&world, 0x13, u64::MAX), None, "{medium:?}");
        }
        receive(&mut world, 0x20, 0xf0, 100_000, 9);
        let got = world.take(1, 9);
        check(got.memory, 100_000, 0x21);
        assert_eq!(probe(&world, 0x20, 0xf0), None);
        world.nodes.iter().for_each(|node| node.endpoint.check());
    }
}

#[test]
fn messages_are_offered_once_in_order_and_taken_or_left() {
    for medium in ALL {
        let mut world = World::pair(medium);
        let to = world.peer(0, 1);
        // A message that waits already is not offered, nor is one that a posted receive takes.
        send(&mut world, to, 90, 5, Level::Buffered, 90);
        unmatched(&mut world, 1);
        world.nodes[1].endpoint.offer_unmatched(Some((TAGGED, u64::MAX)));
        receive(&mut world, 2, u64::MAX, 5, 2);
        let messages = [(1, 3, Level::Buffered), (2, 5, Level::Buffered), (3, 0, Level::Matched)];
        for (bits, len, level) in messages {
            send(&mut world, to, bits, len, level, bits);
        }
        send(&mut world, to, 4, 100_000, Level::Buffered, 4);
        send(&mut world, to, 5, 20, Level::Matched, 5);
        send(&mut world, to, 6, 21, Level::Buffered, 6);
        unmatched(&mut world, 6);
        let endpoint = world.nodes[1].endpoint.clone();
        let mut bytes = Vec::new();
        let mut next = || {
            let offered = endpoint.next_offer(&mut bytes)?;
            let message = offered.message;
            assert_eq!(bytes.len() as u64, if offered.is_whole { message.bytes } else { 0 });
            assert!(
                (0..bytes.len()).all(|at| bytes[at] == common::pattern(at, message.bits as u8))
            );
            Some(offered)
        };
        let first = next().unwrap();
        assert_eq!((first.message.bits, first.is_whole), (1, true), "{medium:?}");
        // While the user is asked nobody else gets it: neither a probe nor a receive.
        assert_eq!(endpoint.probe(TAGGED, None, 1, u64::MAX), None, "{medium:?}");
        let posted = receive(&mut world, 1, u64::MAX, 3, 11);
        assert!(posted.is_some(), "{medium:?}");
        // It was posted meanwhile, and takes the message that is left.
        endpoint.end_offer(&first, false);
        assert_eq!(world.take(1, 11).outcome, Ok(()), "{medium:?}");
        let second = next().unwrap();
        assert_eq!((second.message.bits, second.is_whole), (3, true), "{medium:?}");
        assert!(world.nodes[0].done.iter().all(|done| done.user != 3), "{medium:?}");
        endpoint.end_offer(&second, true);
        assert_eq!(world.take(0, 3).outcome, Ok(()), "{medium:?}");
        let third = next().unwrap();
        assert_eq!((third.message.bits, third.is_whole), (4, false), "{medium:?}");
        endpoint.end_offer(&third, true);
        let Completed { outcome, bytes, message_bytes, .. } = world.take(0, 4);
        assert_eq!((outcome, bytes, message_bytes), (Ok(()), 0, 100_000), "{medium:?}");
        let fourth = next().unwrap();
        endpoint.end_offer(&fourth, true);
        let Completed { outcome, bytes, .. } = world.take(0, 5);
        assert_eq!((outcome, bytes), (Ok(()), 20), "{medium:?}");
        // A receive may take a message before its user is asked.
        receive(&mut world, 6, u64::MAX, 21, 16);
        assert_eq!(world.take(1, 16).outcome, Ok(()), "{medium:?}");
        assert!(next().is_none(), "{medium:?}");
        assert_eq!(world.nodes[1].endpoint.unmatched_count(), 1, "{medium:?}: the first of all");
        assert_eq!(world.take(1, 2).outcome, Ok(()), "{medium:?}");
        world.nodes.iter().for_each(|node| node.endpoint.check());
    }
}

#[test]
fn of_what_is_not_to_be_seen_no_bytes_are_shown_and_none_were_taken() {
    for medium in ALL {
        let mut world = World::pair(medium);
        let to = world.peer(0, 1);
        let endpoint = world.nodes[1].endpoint.clone();
        endpoint.offer_unmatched(Some((TAGGED, u64::MAX)));
        let messages = [(7, 22, true), (8, 0, true), (9, 23, false)];
        for (bits, len, _) in messages {
            send(&mut world, to, bits, len, Level::Unseen, bits);
        }
        unmatched(&mut world, 3);
        for (bits, len, is_taken) in messages {
            let mut bytes = Vec::new();
            let unseen = endpoint.next_offer(&mut bytes).unwrap();
            let told = (unseen.message.bits, unseen.message.bytes);
            assert_eq!(told, (bits, len as u64), "{medium:?}");
            assert!(!unseen.is_whole && bytes.is_empty(), "{medium:?}");
            assert!(world.nodes[0].done.iter().all(|done| done.user != bits), "{medium:?}");
            endpoint.end_offer(&unseen, is_taken);
            if !is_taken {
                assert!(world.nodes[0].done.iter().all(|done| done.user != bits), "{medium:?}");
                receive(&mut world, bits, u64::MAX, len, 19);
                check(world.take(1, 19).memory, len, bits as u8);
            }
            let Completed { outcome, bytes, message_bytes, .. } = world.take(0, bits);
            let taken = if is_taken { 0 } else { len as u64 };
            let expected = (Ok(()), taken, len as u64);
            assert_eq!((outcome, bytes, message_bytes), expected, "{medium:?}");
        }
        world.nodes.iter().for_each(|node| node.endpoint.check());
    }
}

#[test]
fn an_offered_message_that_is_left_is_probed_and_received_later() {
    for medium in WITH_TAGS {
        let mut world = World::pair(medium);
        let to = world.peer(0, 1);
        let endpoint = world.nodes[1].endpoint.clone();
        endpoint.offer_unmatched(Some((TAGGED, u64::MAX)));
        for (bits, len) in [(1, 100), (2, 60_000)] {
            send(&mut world, to, bits, len, Level::Buffered, bits);
        }
        unmatched(&mut world, 2);
        for bits in [1, 2] {
            let offered = endpoint.next_offer(&mut Vec::new()).unwrap();
            assert_eq!(offered.message.bits, bits, "{medium:?}");
            endpoint.end_offer(&offered, false);
        }
        assert!(endpoint.next_offer(&mut Vec::new()).is_none(), "{medium:?}");
        for (bits, len) in [(2, 60_000), (1, 100)] {
            assert!(endpoint.probe(TAGGED, None, bits, u64::MAX).is_some(), "{medium:?}");
            receive(&mut world, bits, u64::MAX, len, bits);
            check(world.take(1, bits).memory, len, bits as u8);
        }
        world.nodes.iter().for_each(|node| node.endpoint.check());
    }
}

#[test]
fn a_receive_is_taken_back_only_while_it_has_no_message() {
    for medium in WITH_TAGS {
        let mut world = World::pair(medium);
        let to = world.peer(0, 1);
        let endpoint = world.nodes[1].endpoint.clone();
        let idle = receive(&mut world, 1, u64::MAX, 10, 1).unwrap();
        assert!(endpoint.withdraw(idle), "{medium:?}");
        assert_eq!(world.take(1, 1).outcome, Err(Fault::Cancelled), "{medium:?}");
        assert!(!endpoint.withdraw(idle), "{medium:?}: it is over");
        // The message that it would have taken goes to the next one.
        send(&mut world, to, 1, 10, Level::Buffered, 1);
        unmatched(&mut world, 1);
        receive(&mut world, 1, u64::MAX, 10, 2);
        assert_eq!(world.take(1, 2).outcome, Ok(()), "{medium:?}");
        send(&mut world, to, 2, 500_000, Level::Buffered, 2);
        unmatched(&mut world, 1);
        // One that has a message which is being fetched keeps it.
        if let Some(busy) = receive(&mut world, 2, u64::MAX, 500_000, 3) {
            assert!(!endpoint.withdraw(busy), "{medium:?}");
        }
        check(world.take(1, 3).memory, 500_000, 2);
        world.nodes.iter().for_each(|node| node.endpoint.check());
    }
}
