//! Foreign peers: what is held for them, what they cannot be told, and how they end.

mod common;

use common::{Medium, World, check};
use ropewalk_base::error::Fault;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{RemoteKey, RemoteLayout};
use ropewalk_net::{Channel, Direction, Level, Oversize, PeerId};

fn send(world: &mut World, peer: PeerId, channel: Channel, len: usize, user: u64) {
    let memory = world.memory(len, user as u8);
    let node = &world.nodes[0];
    let level = Level::Delivered;
    let posted = node.endpoint.post_send(&node.context, peer, channel, user, memory, level, user);
    world.posted(0, posted);
}

fn receive(world: &mut World, len: usize, user: u64) {
    let memory = world.memory(len, 0);
    let node = &world.nodes[1];
    let (any, whole) = (None, Oversize::Truncate);
    let (context, tagged, mask) = (&node.context, Channel::Tagged, u64::MAX);
    let posted = node.endpoint.post_receive(context, tagged, any, user, mask, memory, whole, user);
    world.posted(1, posted);
}

#[test]
fn what_a_foreign_peer_sends_and_nobody_takes_is_bounded_and_nothing_is_lost() {
    const COUNT: u64 = 500;
    const LEN: usize = 4096;
    let mut world = World::new(Medium::Mxoe);
    world.add();
    world.add_with(|config| {
        config.core.eager_window_bytes = 64 << 10;
        config.core.eager_window_bytes_max = 128 << 10;
    });
    let peer = world.peer(0, 1);
    for user in 0..COUNT {
        send(&mut world, peer, Channel::Tagged, LEN, user);
    }
    for _ in 0..20_000 {
        world.step();
    }
    let held = world.nodes[1].endpoint.counters().0.bytes_unmatched;
    assert!((32 << 10..=128 << 10).contains(&held), "{held} bytes are held");
    for user in 0..COUNT {
        receive(&mut world, LEN, user);
        let received = world.take(1, user);
        assert_eq!((received.outcome, received.bytes), (Ok(()), LEN as u64), "{user}");
        check(received.memory, LEN, user as u8);
    }
    for user in 0..COUNT {
        assert_eq!(world.take(0, user).outcome, Ok(()));
    }
}

#[test]
fn what_a_foreign_peer_has_no_word_for_is_refused() {
    let mut world = World::pair(Medium::Mxoe);
    let peer = world.peer(0, 1);
    send(&mut world, peer, Channel::Tagged, 10, 1);
    receive(&mut world, 10, 1);
    world.take(1, 1);
    send(&mut world, peer, Channel::Request, 10, 2);
    assert_eq!(world.take(0, 2).outcome, Err(Fault::NotPermitted));
    let key = RemoteKey { slot: SlotId { index: 0, generation: 1 }, secret: 1 };
    for (user, direction) in [(3, Direction::Get), (4, Direction::Put)] {
        let memory = world.memory(100, 0);
        let node = &world.nodes[0];
        let remote = RemoteLayout::At(0);
        let posted =
            node.endpoint.post_access(&node.context, direction, peer, key, remote, memory, user);
        world.posted(0, posted);
        assert_eq!(world.take(0, user).outcome, Err(Fault::NotPermitted));
    }
    // Nothing of that hurts the others.
    send(&mut world, peer, Channel::Tagged, 100_000, 5);
    receive(&mut world, 100_000, 5);
    assert_eq!(world.take(1, 5).outcome, Ok(()));
    assert_eq!(world.take(0, 5).bytes, 100_000);
}

#[test]
fn a_sender_learns_how_much_was_taken() {
    let mut world = World::pair(Medium::Mxoe);
    let peer = world.peer(0, 1);
    receive(&mut world, 60_000, 1);
    send(&mut world, peer, Channel::Tagged, 100_000, 1);
    let received = world.take(1, 1);
    assert_eq!((received.outcome, received.bytes), (Err(Fault::Truncated), 60_000));
    let sent = world.take(0, 1);
    assert_eq!((sent.outcome, sent.bytes), (Ok(()), 60_000));
}

/// Who is forgotten may be wanted again at once, also while messages are under way.
#[test]
fn who_was_forgotten_is_reached_again_at_once() {
    for under_way in [0, 1, 20] {
        let mut world = World::pair(Medium::Mxoe);
        let mut next = 0;
        for round in 0..4 {
            let peer = world.peer(0, 1);
            send(&mut world, peer, Channel::Tagged, 10, next);
            receive(&mut world, 10, next);
            assert_eq!(world.take(1, next).outcome, Ok(()), "{under_way} under way, round {round}");
            assert_eq!(world.take(0, next).outcome, Ok(()));
            next += 1;
            for user in next..next + under_way {
                send(&mut world, peer, Channel::Tagged, 50_000, user);
            }
            world.nodes[0].endpoint.forget(peer);
            for user in next..next + under_way {
                assert_eq!(world.take(0, user).outcome, Err(Fault::Cancelled));
            }
            next += under_way;
        }
        let counters = world.nodes[0].endpoint.counters().0;
        assert_eq!(counters.sessions, 4);
    }
}
