//! Peers that are not there: operations posted for one of them end, receives, too.

use crate::common::{Medium, World};
use ropewalk_base::error::Fault;
use ropewalk_net::{Channel, Level, Oversize, PeerId};

fn send(world: &mut World, from: usize, to: PeerId, bits: u64, len: usize, user: u64) {
    let memory = world.memory(len, bits as u8);
    let node = &world.nodes[from];
    let (channel, level) = (Channel::Tagged, Level::Buffered);
    let posted = node.endpoint.post_send(&node.context, to, channel, bits, memory, level, user);
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
fn a_receive_from_a_peer_that_is_gone_ends_as_a_send_does() {
    let media = [Medium::Tcp, Medium::Shm, Medium::SimStream];
    for (medium, separate) in media.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let mut world = World::new(medium);
        for _ in 0..2 {
            world.add_with(|config| config.core.separate_sessions = separate);
        }
        let there = world.peer(0, 1);
        receive(&mut world, 0, Some(there), 1, 100, 1);
        let is_linked = |world: &mut World| world.nodes[0].endpoint.peer_rail(there).is_some();
        world.until("a link for a receive alone", is_linked);
        receive(&mut world, 0, None, 2, 100, 2);
        let dead = world.nodes.remove(1);
        drop(dead);
        assert_eq!(world.take(0, 1).outcome, Err(Fault::PeerReset));
        let unreachable = Err(Fault::Unreachable);
        receive(&mut world, 0, Some(there), 1, 100, 3);
        assert_eq!(world.take(0, 3).outcome, unreachable, "{medium:?}");
        for user in 4..100 {
            match user % 3 {
                0 => send(&mut world, 0, there, 1, 100, user),
                bits => receive(&mut world, 0, Some(there), bits, 100, user),
            }
        }
        for user in 4..100 {
            assert_eq!(world.take(0, user).outcome, unreachable, "{medium:?} {user}");
        }
        let node = &world.nodes[0];
        assert!(node.done.is_empty(), "one from anybody goes on");
        let links: u64 = node.endpoint.counters().1.iter().map(|it| it.1.links_up).sum();
        assert_eq!(links, 1);
        node.endpoint.check();
    }
}
