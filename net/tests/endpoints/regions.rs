//! Regions: memory that peers put into and get from, and its end.

use crate::common::{self, ALL, Medium, World};
use ropewalk_base::error::Fault;
use ropewalk_base::limits::REMOTE_SEGMENTS_MAX;
use ropewalk_base::verb::{RemoteLayout, RemoteSegment};
use ropewalk_net::{Audience, Channel, Direction, Level, Oversize, PeerId};

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
    let memory = world.memory(len, 0);
    let node = &world.nodes[at];
    let (channel, mask, cut) = (Channel::Tagged, u64::MAX, Oversize::Truncate);
    let posted =
        node.endpoint.post_receive(&node.context, channel, source, bits, mask, memory, cut, user);
    world.posted(at, posted);
}

#[test]
fn put_and_get_reach_exactly_the_ranges_that_their_key_allows() {
    for medium in ALL {
        let mut world = World::pair(medium);
        let to = world.peer(0, 1);
        let region = world.memory(1 << 20, 9);
        let key = world.nodes[1].endpoint.expose(region, true, Audience::Everybody).unwrap();
        let access = |world: &mut World, direction, remote, memory, user| {
            let node = &world.nodes[0];
            let posted =
                node.endpoint.post_access(&node.context, direction, to, key, remote, memory, user);
            world.posted(0, posted);
            world.take(0, user)
        };
        let memory = world.memory(600_000, 0);
        let got = access(&mut world, Direction::Get, RemoteLayout::At(1000), memory, 1);
        assert_eq!(got.outcome, Ok(()), "{medium:?}");
        let bytes = got.memory.into_pooled().unwrap();
        assert!((0..600_000).all(|index| bytes[index] == common::pattern(index + 1000, 9)));
        let memory = world.memory(700_000, 77);
        let put = access(&mut world, Direction::Put, RemoteLayout::At(5), memory, 2);
        assert_eq!(put.outcome, Ok(()), "{medium:?}");
        let list = |segments: &[(u64, u64)]| {
            let segments = segments.iter().map(|&(offset, len)| RemoteSegment { offset, len });
            RemoteLayout::List(segments.collect())
        };
        let layout = list(&[(5, 10), (700_000, 3), (0, 0), (100, 400_000)]);
        let memory = world.memory(400_013, 0);
        let got = access(&mut world, Direction::Get, layout, memory, 3);
        assert_eq!(got.outcome, Ok(()), "{medium:?}");
        let bytes = got.memory.into_pooled().unwrap();
        assert!((0..10).all(|index| bytes[index] == common::pattern(index, 77)));
        assert!((0..3).all(|index| bytes[10 + index] == common::pattern(699_995 + index, 77)));
        assert!((0..400_000).all(|index| bytes[13 + index] == common::pattern(95 + index, 77)));
        for layout in [RemoteLayout::At((1 << 20) - 5), RemoteLayout::At(u64::MAX - 2)] {
            let memory = world.memory(6, 0);
            let node = &world.nodes[0];
            let posted = node.endpoint.post_access(
                &node.context,
                Direction::Get,
                to,
                key,
                layout,
                memory,
                4,
            );
            world.posted(0, posted);
            let refused = world.take(0, 4).outcome;
            assert!(
                matches!(refused, Err(Fault::BadKey | Fault::Invalid)),
                "{medium:?} {refused:?}"
            );
        }
        let node = &world.nodes[1];
        node.endpoint.unexpose(key, &node.context, 50).unwrap();
        let back = world.take(1, 50);
        assert_eq!(back.memory.len(), 1 << 20);
        let memory = world.memory(6, 0);
        let stale = access(&mut world, Direction::Get, RemoteLayout::At(0), memory, 5);
        assert_eq!(stale.outcome, Err(Fault::BadKey), "{medium:?}");
    }
}

#[test]
fn a_region_that_ends_is_given_back_although_another_begins_in_its_place() {
    for medium in ALL {
        let mut world = World::pair(medium);
        let to = world.peer(0, 1);
        send(&mut world, 0, to, 1, 10, 1);
        receive(&mut world, 1, None, 1, 10, 2);
        world.take(0, 1);
        world.take(1, 2);
        let mut key = None;
        for user in 100..120 {
            // Nothing comes for a while.
            (0..50).for_each(|_| world.step());
            let region = world.memory(1000, 9);
            let node = &world.nodes[1];
            let next = node.endpoint.expose(region, true, Audience::Everybody).unwrap();
            if let Some(before) = key.replace(next) {
                node.endpoint.unexpose(before, &node.context, user).unwrap();
                node.endpoint.progress();
                let region = world.memory(1000, 9);
                let node = &world.nodes[1];
                let third = node.endpoint.expose(region, true, Audience::Everybody).unwrap();
                node.endpoint.unexpose(third, &node.context, user + 1000).unwrap();
                assert_eq!(world.take(1, user).memory.len(), 1000);
                assert_eq!(world.take(1, user + 1000).memory.len(), 1000);
            }
        }
    }
}

#[test]
fn many_list_gets_at_once_wait_for_each_other() {
    const GETS: u64 = 8;
    const SEGMENTS: u64 = REMOTE_SEGMENTS_MAX as u64;
    const BYTES: u64 = 8192;
    for medium in [Medium::Tcp, Medium::Loop] {
        let mut world = World::pair(medium);
        let to = world.peer(0, 1);
        let region = world.memory(1 << 20, 9);
        let key = world.nodes[1].endpoint.expose(region, true, Audience::Everybody).unwrap();
        let offset = |segment| segment * 997;
        let list: std::sync::Arc<[RemoteSegment]> = (0..SEGMENTS)
            .map(|segment| RemoteSegment { offset: offset(segment), len: BYTES })
            .collect();
        for user in 0..GETS {
            let memory = world.memory((SEGMENTS * BYTES) as usize, 0);
            let (node, remote) = (&world.nodes[0], RemoteLayout::List(list.clone()));
            let (context, direction) = (&node.context, Direction::Get);
            let posted =
                node.endpoint.post_access(context, direction, to, key, remote, memory, user);
            world.posted(0, posted);
        }
        for user in 0..GETS {
            let got = world.take(0, user);
            assert_eq!(got.outcome, Ok(()), "{medium:?}");
            let bytes = got.memory.into_pooled().unwrap();
            for segment in 0..SEGMENTS {
                let from = (segment * BYTES) as usize;
                let expected = common::pattern(offset(segment) as usize, 9);
                assert_eq!(bytes[from], expected, "{medium:?}: segment {segment}");
            }
            world.nodes.iter().for_each(|node| node.endpoint.check());
        }
    }
}

#[test]
fn a_region_is_given_back_only_when_a_closing_link_cannot_write_it_any_more() {
    for medium in [Medium::Shm, Medium::Loop, Medium::SimNative] {
        let mut world = World::pair(medium);
        let to = world.peer(0, 1);
        send(&mut world, 0, to, 1, 10, 1);
        receive(&mut world, 1, None, 1, 10, 2);
        world.take(0, 1);
        let peer = world.take(1, 2).peer.unwrap();
        const BYTES: usize = 16 << 20;
        let region = world.memory(BYTES, 9);
        let key = world.nodes[1].endpoint.expose(region, true, Audience::Everybody).unwrap();
        let memory = world.memory(BYTES, 77);
        let node = &world.nodes[0];
        let (context, remote) = (&node.context, RemoteLayout::At(0));
        let direction = Direction::Put;
        let posted = node.endpoint.post_access(context, direction, to, key, remote, memory, 3);
        world.posted(0, posted);
        // Frames that wait keep the link closing.
        for user in 100..140 {
            let memory = world.memory(16_000, 1);
            let node = &world.nodes[1];
            let (channel, level) = (Channel::Tagged, Level::Buffered);
            let posted =
                node.endpoint.post_send(&node.context, peer, channel, 5, memory, level, user);
            world.posted(1, posted);
        }
        let node = &world.nodes[1];
        node.endpoint.forget(peer);
        node.endpoint.unexpose(key, &node.context, 50).unwrap();
        let back = loop {
            match world.nodes[1].endpoint.test(&world.nodes[1].context) {
                Some(completed) if completed.user == 50 => break completed,
                Some(_) => {}
                None => world.step(),
            }
            let done = &mut world.nodes[1].done;
            if let Some(index) = done.iter().position(|completed| completed.user == 50) {
                break done.remove(index);
            }
        };
        let before = back.memory.into_pooled().unwrap();
        let copy = before.to_vec();
        for _ in 0..50 {
            world.nodes[0].endpoint.progress();
        }
        for _ in 0..100 {
            world.step();
        }
        assert!(before[..] == copy[..], "{medium:?}: a write received after the end of its region");
        assert_ne!(world.take(0, 3).outcome, Ok(()), "{medium:?}");
    }
}

#[test]
fn regions_beyond_the_table_of_a_rail_are_reached_by_frames() {
    // As many as the table of shared memory has places, and some more.
    const REGIONS: usize = 65_536 + 10;
    for medium in [Medium::Shm, Medium::Loop] {
        let mut world = World::pair(medium);
        let to = world.peer(0, 1);
        send(&mut world, 0, to, 1, 10, 1);
        receive(&mut world, 1, None, 1, 10, 2);
        world.take(0, 1);
        world.take(1, 2);
        let mut keys = Vec::new();
        for _ in 0..REGIONS {
            let region = world.memory(16, 9);
            let endpoint = &world.nodes[1].endpoint;
            keys.push(endpoint.expose(region, true, Audience::Everybody).unwrap());
            if keys.len() % 1000 == 0 {
                world.step();
            }
        }
        for (user, key) in keys[REGIONS - 20..].iter().enumerate() {
            let user = 10 * user as u64;
            for (direction, user) in [(Direction::Put, user), (Direction::Get, user + 1)] {
                let memory = world.memory(8, 5);
                let node = &world.nodes[0];
                let (context, at) = (&node.context, RemoteLayout::At(4));
                let posted =
                    node.endpoint.post_access(context, direction, to, *key, at, memory, user);
                world.posted(0, posted);
                let ended = world.take(0, user);
                assert_eq!(ended.outcome, Ok(()), "{medium:?} {direction:?}");
                let bytes = ended.memory.into_pooled().unwrap();
                assert!((0..8).all(|index| bytes[index] == common::pattern(index, 5)));
            }
            let node = &world.nodes[1];
            node.endpoint.unexpose(*key, &node.context, 5000 + user).unwrap();
            assert_eq!(world.take(1, 5000 + user).memory.len(), 16);
        }
    }
}
