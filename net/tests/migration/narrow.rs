//! Alternates that pass short frames alone: they are not armed.

use std::time::Duration;

use ropewalk_net::migration::MigrationState::Armed;
use ropewalk_net::migration::{By, Outcome, Policy, What};

use crate::world::{FIRST, Setup, World, name};

/// Longer than all frames but those of messages and long probes.
const BYTES: u64 = 1000;

/// From now on the second path passes frames of so many bytes at most, in these directions.
fn narrow(world: &mut World, directions: &[(usize, usize)], bytes: u64) {
    for (from, to) in directions {
        let (from, to) = (name(*from, 1), name(*to, 1));
        world.network.change_path(&from, &to, |path| path.frame_bytes_max = bytes);
    }
}

const DIRECTIONS: [&[(usize, usize)]; 3] = [&[(0, 1)], &[(1, 0)], &[(0, 1), (1, 0)]];

#[test]
fn an_alternate_that_passes_short_frames_alone_is_not_armed_by_either_side() {
    for seed in 0..12 {
        let directions = DIRECTIONS[seed as usize % 3];
        let loader = seed as usize / 3 % 2;
        let mut world = World::met(seed, Setup::pair(Policy::Nothing));
        narrow(&mut world, directions, BYTES);
        let path = world.specify(loader);
        let peer = world.peer(loader, 1 - loader);
        let mut loads = world.nodes[loader].endpoint.load_paths(&[peer], By::Poll);
        let took = world.until("the end", |world| {
            assert!(!world.both_are(Armed), "seed {seed}");
            world.nodes[loader].endpoint.poll_loads(&mut loads) == 0
        });
        let end = loads.ends().next().and_then(|(_, end)| end);
        assert!(matches!(end, Some(Outcome::Failed(_))), "seed {seed}: {end:?} for {path:?}");
        assert!(took < Duration::from_secs(3), "seed {seed}: {took:?}");
        world.traffic(10);
        for node in &world.nodes {
            assert_eq!(node.count(|what| matches!(what, What::Armed { .. })), 0, "seed {seed}");
        }
        assert_eq!((world.primary(0), world.primary(1)), (FIRST, FIRST));
        world.verify();
    }
}

#[test]
fn the_default_policy_arms_a_narrow_path_when_it_is_mended_and_not_before() {
    for seed in 0..3 {
        let mut world = World::new(seed, Setup::pair(Policy::KeepArmed));
        let directions = DIRECTIONS[seed as usize];
        narrow(&mut world, directions, BYTES);
        world.meet();
        let end = world.now() + Duration::from_secs(5);
        while world.now() < end {
            world.traffic(10);
            for node in &world.nodes {
                assert_eq!(node.count(|what| matches!(what, What::Armed { .. })), 0, "seed {seed}");
            }
        }
        narrow(&mut world, directions, u64::MAX);
        world.until("both are armed", |world| {
            world.pass(0, 1);
            world.both_are(Armed)
        });
        world.verify();
    }
}
