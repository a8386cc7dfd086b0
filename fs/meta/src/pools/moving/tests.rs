//! The steps of groups that move.

use ropewalk_wire::fs::map::Map;
use ropewalk_wire::fs::meta::Step;
use ropewalk_wire::fs::value::Bytes;

use super::super::Banded;
use super::super::tests::{beat, seconds};
use super::*;

/// Servers of as many hosts, with bands of one copy, and of two.
fn pools_of(servers: &[u32]) -> Pools {
    let mut pools = Pools::default().mapped(Some(Banded::default()));
    for server in servers {
        beat(&mut pools, *server, 1, 900, seconds(1));
        pools.add_band(*server);
    }
    pools.begin_copies(2, seconds(1)).expect("there are several hosts");
    pools
}

fn all_beat(pools: &mut Pools, servers: &[u32], now: Time) {
    for server in servers {
        beat(pools, *server, 1, 900, now);
    }
}

/// All newcomers of groups with a member are brought into step.
fn enter(pools: &mut Pools, now: Time) {
    let map = pools.map().clone();
    for (group, membership) in map.bands(0).flat_map(|band| band.groups()) {
        for server in &membership.newcomers {
            let groups = Step::numbers(&[group]);
            let (by, map) = (membership.servers[0], map.epoch + 99);
            let step = Step { groups: Bytes(&groups), by, map, server: *server, in_step: true };
            pools.set_step(&step, now);
        }
    }
}

fn is_complete(map: &Map) -> bool {
    map.bands(0).all(|band| {
        let wanted = usize::from(band.copies());
        band.groups.iter().all(|it| it.servers.len() == wanted && it.newcomers.is_empty())
    })
}

#[test]
fn a_server_that_is_to_leave_has_no_group_in_the_end_and_no_group_lacks_a_copy() {
    let servers = [10, 20, 30, 40];
    let mut pools = pools_of(&servers);
    pools.set_leaving(20, true);
    let mut now = seconds(2);
    for round in 0.. {
        assert!(round < 100, "{:?}", pools.loads());
        all_beat(&mut pools, &servers, now);
        pools.move_groups(now);
        let newcomers =
            pools.map().bands(0).flat_map(|it| &it.groups).filter(|it| !it.newcomers.is_empty());
        assert!(newcomers.count() <= MOVES_AT_ONCE);
        let members = pools.map().bands(0).all(|band| {
            band.groups.iter().all(|it| it.servers.len() >= usize::from(band.copies()))
        });
        assert!(members, "a copy is missed");
        if pools.moves().under_way == 0 && !pools.loads().contains_key(&20) {
            break;
        }
        enter(&mut pools, now);
        now = now + PAUSE;
    }
    assert!(is_complete(pools.map()));
    let loads = pools.loads();
    let (least, most) = (loads.values().min().unwrap(), loads.values().max().unwrap());
    assert!(loads.len() == 3 && *most <= least + least / 5, "{loads:?}");
    for group in pools.map().bands(0).flat_map(|band| &band.groups) {
        let domains: BTreeSet<u32> = group.servers.iter().map(|it| it / 10).collect();
        assert_eq!(domains.len(), group.servers.len());
    }
    // New files do not go there.
    let pool = pools.successor(1, now, Duration::from_secs(10)).expect("another one");
    assert!(!pools.map().servers_of(&pool).contains(&20));
    pools.forget(20);
    assert_eq!(pools.member(20), None);
}

#[test]
fn an_order_that_is_taken_back_leaves_the_groups_as_they_were() {
    let servers = [10, 20, 30];
    let mut pools = pools_of(&servers);
    let before: Vec<Membership> = pools.map().bands(0).flat_map(|it| it.groups.clone()).collect();
    pools.set_leaving(20, true);
    assert!(!pools.move_groups(seconds(2)).is_empty());
    assert!(pools.moves().under_way > 0);
    pools.set_leaving(20, false);
    all_beat(&mut pools, &servers, seconds(4));
    pools.move_groups(seconds(4));
    let after = pools.map().bands(0).flat_map(|it| it.groups.clone());
    let same = after.zip(before).all(|(after, before)| {
        (after.servers, after.newcomers) == (before.servers, before.newcomers)
    });
    assert!(same);
}

#[test]
fn groups_that_no_server_can_take_are_counted_and_stay() {
    let mut pools = pools_of(&[10, 20]);
    pools.set_leaving(20, true);
    pools.move_groups(seconds(2));
    assert!(pools.move_groups(seconds(2)).is_empty(), "not at each moment");
    for at in 3..20 {
        all_beat(&mut pools, &[10, 20], seconds(at));
        enter(&mut pools, seconds(at));
        pools.move_groups(seconds(at));
    }
    // Those of one copy may go to the other server, those of two have no third host.
    assert_eq!(pools.moves().stuck, 128);
    assert!(pools.map().bands(2).all(|band| band.groups.iter().all(|it| it.servers.len() == 2)));
    assert!(pools.map().bands(0).take(2).all(|it| it.groups.iter().all(|it| it.servers == [10])));
}

#[test]
fn a_member_that_is_gone_for_long_is_replaced() {
    let mut pools = pools_of(&[10, 20, 30]);
    let here = [10, 20];
    all_beat(&mut pools, &here, seconds(10));
    pools.drop_silent(seconds(10));
    assert!(pools.move_groups(seconds(10)).is_empty(), "it has time to come back");
    beat(&mut pools, 40, 1, 900, seconds(700));
    for at in 0..40 {
        let now = seconds(700 + 2 * at);
        all_beat(&mut pools, &[10, 20, 40], now);
        pools.move_groups(now);
        enter(&mut pools, now);
    }
    let mirrored = pools.map().bands(0).filter(|band| band.copies() == 2);
    for group in mirrored.flat_map(|band| &band.groups) {
        assert!(group.servers.len() == 2 && !group.holders().any(|it| it == 30), "{group:?}");
    }
    // What was on it alone stays there.
    assert!(pools.map().bands(0).any(|band| band.groups.iter().all(|it| it.servers == [30])));
}
