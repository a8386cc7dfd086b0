//! The policies of the asynchronous thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use ropewalk_core::Plant;
use ropewalk_net::migration::MigrationState::{Armed, Migrated};
use ropewalk_net::migration::{By, Policy, Role, What};

use crate::world::{FIRST, Setup, World};

/// Arms both sides by hand, and moves.
fn arm_and_move(world: &mut World) {
    world.specify(0);
    let peer = world.peer(0, 1);
    world.nodes[0].endpoint.load_paths(&[peer], By::Event);
    world.until("both armed", |world| world.both_are(Armed));
    world.nodes[0].endpoint.migrate_path(peer).unwrap();
    world.traffic(2);
}

#[test]
fn nothing_is_done_where_the_policy_is_nothing() {
    let mut world = World::met(1, Setup::pair(Policy::Nothing));
    world.wait(Duration::from_secs(5));
    assert!(world.both_are(Migrated));
    arm_and_move(&mut world);
    world.wait(Duration::from_secs(5));
    assert!(world.both_are(Migrated) && world.primary(0) != FIRST);
    assert_eq!(world.nodes[0].migrations(), 1);
}

#[test]
fn traffic_moves_as_soon_as_it_is_armed_where_the_policy_says_so() {
    let mut world = World::met(1, Setup::pair(Policy::MigrateWhenArmed));
    world.specify(0);
    let peer = world.peer(0, 1);
    world.nodes[0].endpoint.load_paths(&[peer], By::Event);
    world.until("the move", |world| world.primary(0) != FIRST && world.primary(1) != FIRST);
    world.traffic(5);
    assert!(world.both_are(Migrated));
    assert_eq!(world.roles(0, 1), world.roles(1, 0));
}

#[test]
fn an_alternate_is_loaded_after_a_move_where_the_policy_says_so() {
    let mut world = World::met(1, Setup::pair(Policy::SpecifyAndLoad));
    world.wait(Duration::from_secs(1));
    assert!(world.both_are(Migrated), "nothing has moved");
    arm_and_move(&mut world);
    world.until("armed again", |world| world.both_are(Armed));
    assert_eq!(world.nodes[0].count(|what| matches!(what, What::Armed { .. })), 2);
    world.traffic(5);
    assert_eq!(world.nodes[0].migrations(), 1);
}

#[test]
fn an_alternate_is_specified_after_a_move_and_not_loaded_where_the_policy_says_so() {
    let setup = Setup { rails: 3, ..Setup::pair(Policy::SpecifyOnly) };
    let mut world = World::met(1, setup);
    arm_and_move(&mut world);
    world.wait(Duration::from_secs(2));
    assert!(world.both_are(Migrated));
    let alternates = world.roles(0, 1);
    assert!(alternates.iter().any(|(_, role)| *role == Role::Alternate), "{alternates:?}");
}

#[test]
fn an_alternate_is_kept_armed_by_default_through_any_number_of_moves() {
    let setup = Setup { rails: 3, ..Setup::pair(Policy::default()) };
    let mut world = World::met(4, setup);
    let peers = [world.peer(0, 1), world.peer(1, 0)];
    for round in 0..20 {
        world.until("both armed", |world| world.both_are(Armed));
        let mover = round % 2;
        world.nodes[mover].endpoint.migrate_path(peers[mover]).unwrap();
        let stall = world.traffic(3);
        assert!(stall < Duration::from_millis(5), "round {round}: {stall:?}");
    }
    world.until("both armed", |world| world.both_are(Armed));
    assert_eq!(world.roles(0, 1), world.roles(1, 0));
    world.verify();
}

/// A silent path is left, and an alternate is armed again before the next one falls silent.
fn survives_two_faults(plant: Plant) {
    let setup = Setup { rails: 3, plant, ..Setup::pair(Policy::default()) };
    let mut world = World::met(7, setup);
    for _ in 0..2 {
        world.until("both armed", |world| world.both_are(Armed));
        let primary = world.primary(0);
        let rail = world.nodes[0].endpoint.path_entries(world.peer(0, 1));
        let rail = rail.iter().find(|(entry, _)| entry.record.id == primary).unwrap();
        world.block(usize::from(rail.0.record.local_rail), true);
        let stall = world.traffic(60);
        assert!(stall < Duration::from_millis(60), "{stall:?}");
        assert_ne!(world.primary(0), primary);
    }
}

#[test]
fn an_alternate_that_is_not_armed_again_is_found() {
    survives_two_faults(Plant::Nothing);
    let forgotten = catch_unwind(AssertUnwindSafe(|| survives_two_faults(Plant::RearmForgotten)));
    assert!(forgotten.is_err(), "nobody loads an alternate after the first fault");
}

#[test]
fn an_application_replaces_the_policy_by_what_it_does_on_events() {
    let setup = Setup { rails: 3, ..Setup::pair(Policy::Nothing) };
    let mut world = World::met(5, setup);
    let context = world.nodes[0].endpoint.context(false).unwrap();
    world.nodes[0].endpoint.tell_of_path_events(&context);
    arm_and_move(&mut world);
    let count = world.nodes[0].endpoint.path_event_count();
    assert!(count > 0 && world.nodes[0].endpoint.path_events_lost() == 0);
    let peer = world.peer(0, 1);
    let mut seen = 0;
    for _ in 0..6 {
        world.until("its own thread arms and moves", |world| {
            let endpoint = world.nodes[0].endpoint.clone();
            while let Some(event) = world.nodes[0].events.get(seen).copied() {
                seen += 1;
                match event.what {
                    What::Migrated { .. } => {
                        let _ = endpoint.specify_path(peer, Default::default());
                        endpoint.load_paths(&[peer], By::Event);
                    }
                    What::Armed { .. } => return endpoint.migrate_path(peer).is_ok(),
                    _ => {}
                }
            }
            false
        });
        world.traffic(2);
    }
    assert!(world.nodes[0].migrations() >= 6);
    world.verify();
}
