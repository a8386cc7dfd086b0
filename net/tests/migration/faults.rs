//! Paths that fail while an alternate is armed, or while it is loaded.

use std::time::Duration;

use ropewalk_base::memory::Memory;
use ropewalk_net::migration::MigrationState::Armed;
use ropewalk_net::migration::{
    ArmCause, Connection, MoveCause, PathEvent, Policy, Role, Rule, What,
};
use ropewalk_net::{Channel, Level, Posted};
use ropewalk_rail_sim::Cut;

use crate::world::{FIRST, Setup, World, name};

fn migrated(world: &World, at: usize) -> Vec<PathEvent> {
    let is_move = |event: &&PathEvent| matches!(event.what, What::Migrated { .. });
    world.nodes[at].events.iter().filter(is_move).copied().collect()
}

#[test]
fn a_primary_path_that_falls_silent_is_left_for_the_armed_one_and_the_event_says_why_and_when() {
    for seed in 0..6 {
        let mut world = World::met(seed, Setup::pair(Policy::KeepArmed));
        world.until("both armed", |world| world.both_are(Armed));
        world.traffic(30);
        assert_eq!(world.nodes[0].migrations(), 0, "seed {seed}");
        world.block(0, true);
        let cut_at = world.now();
        let stall = world.traffic(60);
        assert!(stall < Duration::from_millis(40), "seed {seed}: {stall:?}");
        let events = [migrated(&world, 0), migrated(&world, 1)];
        assert!(events.iter().all(|events| !events.is_empty()), "seed {seed}");
        // One side decides, the other one follows, or both decided the same.
        let first = events.iter().flatten().min_by_key(|event| event.at).unwrap();
        let What::Migrated { from, to, cause, counter } = first.what else { unreachable!() };
        assert_eq!((from, cause, counter), (FIRST, MoveCause::PrimarySuspect, 1), "seed {seed}");
        let took = first.detected_after.expect("it was a fault");
        let since = first.at.since(cut_at);
        assert!(took > Duration::from_micros(500) && took < Duration::from_millis(40), "{took:?}");
        assert!(since < Duration::from_millis(40), "seed {seed}: {since:?}");
        assert!(world.primary(0) == to && world.primary(1) == to);
        world.verify();
    }
}

#[test]
fn a_failed_path_that_is_mended_is_armed_again_and_serves_the_next_fault() {
    for seed in 0..4 {
        let mut world = World::met(seed, Setup::pair(Policy::KeepArmed));
        for round in 0..4 {
            world.until("both armed", |world| {
                world.pass(0, 1);
                world.both_are(Armed)
            });
            let primary = world.primary(0);
            let rail = usize::from(primary != FIRST);
            let stalls = match round % 2 {
                0 => {
                    world.block(rail, true);
                    let stalls = world.traffic(150);
                    world.block(rail, false);
                    stalls
                }
                _ => {
                    world.network.cut(&name(0, rail), &name(1, rail), Cut::Both);
                    world.traffic(150)
                }
            };
            assert!(stalls < Duration::from_millis(40), "seed {seed}, {round}: {stalls:?}");
            assert!(world.primary(0) != primary && world.primary(1) != primary);
        }
        assert!(world.nodes[0].migrations() >= 4, "seed {seed}");
        world.verify();
    }
}

#[test]
fn an_armed_alternate_that_fails_is_armed_no_more() {
    let mut world = World::met(1, Setup::pair(Policy::KeepArmed));
    world.until("both armed", |world| world.both_are(Armed));
    world.network.cut(&name(0, 1), &name(1, 1), Cut::Both);
    world.until("the news", |world| !world.both_are(Armed));
    world.until("both are disarmed", |world| {
        let told =
            |node: usize| world.nodes[node].count(|what| matches!(what, What::Disarmed { .. })) > 0;
        told(0) && told(1)
    });
    world.traffic(10);
    world.until("both armed again", |world| world.both_are(Armed));
    assert_eq!((world.primary(0), world.nodes[0].migrations()), (FIRST, 0));
    world.verify();
}

#[test]
fn a_path_that_is_silent_while_it_is_loaded_is_not_armed() {
    let mut world = World::met(2, Setup::pair(Policy::Nothing));
    world.block(1, true);
    let path = world.specify(0);
    let peer = world.peer(0, 1);
    world.nodes[0].endpoint.load_paths(&[peer], ropewalk_net::migration::By::Event);
    world.until("the end", |world| {
        world.nodes[0].count(|what| matches!(what, What::ArmFailed { .. })) == 1
    });
    let failed = |what: &What| match what {
        // Either side may find out first, by the arming or by standing probes.
        What::ArmFailed { path: of, cause } => {
            let is_so =
                matches!(cause, ArmCause::Probes(_) | ArmCause::Withdrawn | ArmCause::PathFailed);
            *of == path && is_so
        }
        _ => false,
    };
    assert_eq!(world.nodes[0].count(failed), 1, "{:?}", world.nodes[0].whats());
    assert_eq!(
        world.nodes[0].endpoint.specify_path(peer, Default::default()),
        Err(Rule::AlternateFailed),
        "it rests"
    );
    world.block(1, false);
    world.until("it is fit again", |world| {
        world.nodes[0].endpoint.specify_path(peer, Default::default()) == Ok(path)
    });
}

#[test]
fn a_session_without_a_path_says_so_and_goes_on_with_the_first_that_is_mended() {
    for seed in 0..4 {
        let mut world = World::met(seed, Setup::pair(Policy::KeepArmed));
        world.until("both armed", |world| world.both_are(Armed));
        let known = (world.known(0, 1), world.known(1, 0));
        for rail in 0..2 {
            world.network.change_paths(&name(0, 0), &name(1, 0), |path| path.refuse = true);
            world.network.cut(&name(0, rail), &name(1, rail), Cut::Both);
        }
        let peer = world.peer(0, 1);
        let pathless = |world: &World| {
            world.nodes[0].endpoint.path_state(peer).connection == Connection::Pathless
        };
        world.until("no path", |world| pathless(world));
        assert_eq!(world.nodes[0].count(|what| *what == What::NoPath), 1, "seed {seed}");
        assert_eq!(world.nodes[0].endpoint.migrate_path(peer), Err(Rule::NoPath));
        world.network.change_paths(&name(0, 0), &name(1, 0), |path| path.refuse = false);
        world.traffic(3);
        assert!(world.nodes[0].count(|what| matches!(what, What::Resumed { .. })) >= 1);
        world.until("both armed again", |world| {
            world.pass(0, 1);
            world.both_are(Armed)
        });
        assert_eq!((world.known(0, 1), world.known(1, 0)), known, "seed {seed}");
        assert!(world.roles(0, 1).iter().any(|(_, role)| *role == Role::Alternate));
        assert!(world.roles(0, 1).len() <= 3, "paths that are gone are forgotten");
        world.verify();
    }
}

/// The peer has acknowledged the offer of a long message and takes it when a receive is posted: nothing else is owed.
#[test]
fn what_waits_for_the_peer_alone_ends_when_all_paths_are_silent_for_too_long() {
    for seed in 0..4 {
        let mut world = World::met(seed, Setup::pair(Policy::Nothing));
        world.part_rails();
        world.traffic(3);
        let (peer, node) = (world.peer(0, 1), &world.nodes[0]);
        let memory = Memory::constant(&[7; 1 << 20]);
        let (tagged, level) = (Channel::Tagged, Level::Delivered);
        let posted = node.endpoint.post_send(&node.context, peer, tagged, 77, memory, level, 88);
        assert!(matches!(posted, Ok(Posted::Pending(_))));
        world.wait(Duration::from_secs(2));
        (0..2).for_each(|rail| world.block(rail, true));
        let mut end = None;
        let took = world.until("its end", |world| {
            end = end.take().or_else(|| world.nodes[0].done.pop_front());
            end.is_some()
        });
        let end = end.expect("it ended");
        assert_eq!((end.user, end.outcome.is_err()), (88, true), "seed {seed}");
        // Half a minute, from when both are known to be silent.
        let least = Duration::from_secs(29);
        assert!(took > least && took < Duration::from_secs(45), "seed {seed}: {took:?}");
    }
}
