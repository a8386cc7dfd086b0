//! The steps of groups that move.

use std::collections::BTreeSet;

use super::super::encode_band;
use super::super::tests::{beat, pools_of, seconds};
use super::*;
use ropewalk_wire::fs::meta::Step;
use ropewalk_wire::fs::value::Bytes;

fn groups(pools: &Pools) -> Vec<(Group, Membership)> {
    let groups = pools.map().bands(0).flat_map(|band| band.groups());
    groups.map(|(group, membership)| (group, membership.clone())).collect()
}

fn held(pools: &Pools, server: u32) -> usize {
    groups(pools).iter().filter(|(_, it)| it.holders().any(|it| it == server)).count()
}

/// Brings all newcomers that are heard into step, and has marked orderers step down.
fn work(pools: &mut Pools, now: Time) {
    for (group, membership) in groups(pools) {
        let (by, map) = (membership.servers[0], pools.map().epoch);
        let numbers = Step::numbers(&[group]);
        let step = Step { groups: Bytes(&numbers), by, map, server: by, in_step: false };
        if membership.leaving.contains(&by) {
            pools.set_step(&step, now);
        } else if let Some(newcomer) = membership.newcomers.first() {
            pools.set_step(&Step { server: *newcomer, in_step: true, ..step }, now);
        }
    }
}

/// Looks and works until nothing moves any more; how many looks that took.
fn run(pools: &mut Pools, servers: &[u32], from: u64) -> u64 {
    for second in from.. {
        for server in servers {
            beat(pools, *server, 1, 900, seconds(second));
        }
        pools.move_groups(seconds(second));
        assert!(second < from + 200, "{:?}", pools.moves());
        if pools.moves().are_over() {
            return second - from;
        }
        work(pools, seconds(second));
    }
    unreachable!("it ends or fails")
}

#[test]
fn a_drained_server_has_no_group_left_and_its_copies_are_apart_from_the_others() {
    let servers = [10, 11, 20, 30, 40];
    let mut pools = pools_of(&servers);
    pools.begin_copies(2, seconds(1)).expect("four hosts");
    pools.take_order(ServerOrder::Drain { server: 20, heir: None }).expect("taken");
    run(&mut pools, &servers, 2);
    assert_eq!(held(&pools, 20), 0);
    for (_, membership) in groups(&pools) {
        let hosts: BTreeSet<u32> = membership.servers.iter().map(|it| it / 10).collect();
        assert_eq!(hosts.len(), membership.servers.len(), "{membership:?}");
        assert_eq!((membership.newcomers.len(), membership.leaving.len()), (0, 0));
    }
    assert!(!pools.is_needed(20));
    // Nobody gets its bands back.
    run(&mut pools, &servers, 300);
    assert_eq!(held(&pools, 20), 0);
}

#[test]
fn groups_go_by_capacity() {
    let servers = [10, 20];
    let mut pools = pools_of(&servers);
    pools.take_order(ServerOrder::Rebalance).expect("taken");
    // The second disk is three times as large.
    for second in 2..120 {
        for server in servers {
            beat(&mut pools, server, 1, 900, seconds(second));
        }
        pools.servers.get_mut(&20).expect("it was heard").room.total_bytes = 3000;
        pools.move_groups(seconds(second));
        work(&mut pools, seconds(second));
    }
    assert_eq!((held(&pools, 10), held(&pools, 20)), (32, 96));
}

#[test]
fn an_orderer_brings_in_a_few_at_a_time_and_a_silent_one_none() {
    let servers = [10, 20, 30];
    let mut pools = pools_of(&servers);
    pools.take_order(ServerOrder::Drain { server: 10, heir: None }).expect("taken");
    pools.move_groups(seconds(1));
    let moves = Moves { under_way: 16, waiting: 48, stuck: 0 };
    assert_eq!(pools.moves(), moves);
    // Without its orderer nothing moves.
    for second in 2..5 {
        beat(&mut pools, 20, 1, 900, seconds(second));
        beat(&mut pools, 30, 1, 900, seconds(second));
    }
    pools.move_groups(seconds(5));
    assert_eq!(pools.moves(), Moves { under_way: 0, waiting: 16, stuck: 48 });
    // A full server takes nothing.
    for second in 6..8 {
        beat(&mut pools, 10, 1, 900, seconds(second));
        beat(&mut pools, 20, 1, 20, seconds(second));
        beat(&mut pools, 30, 1, 20, seconds(second));
    }
    pools.move_groups(seconds(7));
    assert_eq!(pools.moves(), Moves { under_way: 0, waiting: 0, stuck: 64 });
}

#[test]
fn one_that_never_was_a_member_inherits_nothing() {
    let servers = [10, 20];
    let mut pools = pools_of(&servers);
    pools.take_order(ServerOrder::Drain { server: 10, heir: None }).expect("taken");
    pools.move_groups(seconds(1));
    let moving = groups(&pools).into_iter().find(|(_, it)| !it.takers.is_empty());
    let (group, membership) = moving.expect("it moves");
    assert_eq!((&membership.servers[..], &membership.takers[..]), (&[10][..], &[20][..]));
    // Its row says so, too.
    let band = pools.map().band(group.band().expect("of a band").0).expect("it is there");
    assert_eq!(super::super::decode_band(&encode_band(band)).as_ref(), Ok(band));
    pools.replace_store(10);
    let left = pools.map().membership(group).expect("it is there");
    assert_eq!((&left.servers[..], left.losses), (&[10][..], 1));
}

#[test]
fn a_word_that_leaves_nobody_is_void_for_good() {
    let mut pools = pools_of(&[10, 20]);
    let group = Group::of_band(0, 0);
    pools.set_group(group, &[10, 20]).expect("it is there");
    let (numbers, map) = (Step::numbers(&[group]), pools.map().epoch);
    let step = Step { groups: Bytes(&numbers), by: 10, map, server: 10, in_step: false };
    // The other one is silent just now.
    beat(&mut pools, 10, 1, 900, seconds(9));
    assert!(pools.set_step(&step, seconds(9)).is_some_and(|rows| !rows.is_empty()));
    assert_eq!(pools.map().members(group), [10, 20]);
    // A copy of the same word comes when it is heard again.
    beat(&mut pools, 20, 1, 900, seconds(10));
    assert_eq!(pools.set_step(&step, seconds(10)), None);
    assert_eq!(pools.map().members(group), [10, 20]);
}

#[test]
fn a_server_that_is_given_up_leaves_its_groups_where_somebody_else_has_something() {
    let mut pools = pools_of(&[10, 20, 30]);
    let groups: Vec<Group> = (0..4).map(|index| Group::of_band(0, index)).collect();
    let put =
        |pools: &mut super::super::Pools, at: usize, members: &[u32], rest: (&[u32], &[u32])| {
            pools.set_group(groups[at], members).expect("it is there");
            let banded = pools.banded.as_mut().expect("it has bands");
            let rows = banded.change_in(&[0], |group, it| {
                let (newcomers, takers) = (rest.0.to_vec(), rest.1.to_vec());
                (group == groups[at]).then(|| Membership { newcomers, takers, ..it.clone() })
            });
            assert!(!rows.is_empty());
        };
    put(&mut pools, 0, &[10, 20], (&[30], &[]));
    put(&mut pools, 1, &[10], (&[20, 30], &[]));
    put(&mut pools, 2, &[10], (&[20], &[20]));
    put(&mut pools, 3, &[20], (&[10], &[]));
    let now = seconds(100);
    for server in [20, 30] {
        beat(&mut pools, server, 1, 900, now);
    }
    beat(&mut pools, 10, 1, 900, seconds(80));
    assert_eq!(pools.lose_server(10, now).err(), Some(Refusal::Lives));
    assert_eq!(pools.lose_server(40, now).err(), Some(Refusal::Unknown));
    let now = seconds(111);
    // The one that left last, but it is silent: then the one before.
    beat(&mut pools, 20, 1, 900, now);
    assert!(!pools.lose_server(10, now).expect("given up").is_empty());
    let left = |at: usize| left_of(&pools, groups[at]);
    assert_eq!(left(0), (vec![20], vec![30], 0));
    assert_eq!(left(1), (vec![20], vec![30], 1));
    assert_eq!(left(2), (vec![10], vec![20], 0), "a taker has parts only");
    assert_eq!(left(3), (vec![20], vec![], 0));
    let band = pools.map().band(0).expect("it is there");
    assert!(band.is_valid() && pools.is_needed(10));
}

fn left_of(pools: &Pools, group: Group) -> (Vec<u32>, Vec<u32>, u32) {
    let it = pools.map().membership(group).expect("it is there").clone();
    (it.servers, it.newcomers, it.losses)
}
