//! A thread that comes late is no fault of its peer: what the rails have is heard before a time-out is judged.

mod common;

use std::time::Duration;

use common::{Medium, World, check};
use ropewalk_net::{Channel, Level, Mode, Oversize};
use ropewalk_rail_sim::{Release, SimConfig};

const BYTES: usize = 5_000;

/// The frames that node 0 sent again while messages went to node 1, and node 0 made no pass for a minute while the
/// answers lay with its rail.
fn re_sent(medium: Medium) -> u64 {
    let mut world = World::new(medium);
    world.mode = Mode::Resume;
    for name in ["left", "right"] {
        let config =
            if medium == Medium::SimStream { SimConfig::stream() } else { SimConfig::datagram() };
        // The core sends a frame again only after the rail has released it.
        let config = SimConfig { release: Release::AtOnce, ..config };
        let rail = Box::new(world.network.rail(name, config));
        world.add_over(rail, |_| {});
    }
    let peer = world.peer(0, 1);
    let send = |world: &World, user: u64| {
        let (to, from) = (&world.nodes[1], &world.nodes[0]);
        let into = world.memory(BYTES, 0);
        to.endpoint
            .post_receive(
                &to.context,
                Channel::Tagged,
                None,
                user,
                u64::MAX,
                into,
                Oversize::Truncate,
                user,
            )
            .expect("there is room");
        let out = world.memory(BYTES, user as u8);
        from.endpoint
            .post_send(&from.context, peer, Channel::Tagged, user, out, Level::Delivered, user)
            .expect("there is room")
    };
    send(&world, 1);
    world.until("first message", |world| {
        world.nodes.iter().all(|node| node.done.iter().any(|done| done.user == 1))
    });
    for user in 2..40 {
        send(&world, user);
    }
    // The frames leave; the peer answers; node 0 hears it a minute later.
    world.nodes[0].endpoint.progress();
    world.pass_alone(1, Duration::from_secs(60));
    world.until("messages", |world| world.nodes[0].done.len() == 39);
    world.until("messages there", |world| world.nodes[1].done.len() == 39);
    for done in std::mem::take(&mut world.nodes[1].done) {
        assert_eq!(done.outcome, Ok(()));
        check(done.memory, BYTES, done.user as u8);
    }
    world.nodes[0].endpoint.counters().0.frames_re_sent
}

#[test]
fn a_sender_that_comes_late_sends_nothing_again() {
    for medium in [Medium::SimStream, Medium::SimDatagram] {
        assert_eq!(re_sent(medium), 0, "{medium:?}");
    }
}
