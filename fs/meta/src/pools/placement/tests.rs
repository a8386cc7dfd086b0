//! Where the groups of files of several copies are.

use std::time::Duration;

use super::super::tests::{beat, pools_of, seconds};
use super::*;
use ropewalk_wire::fs::meta::Step;
use ropewalk_wire::fs::value::Bytes;

fn bands(pools: &Pools, copies: u8) -> Vec<Band> {
    pools.map().bands(0).filter(|band| band.copies() == copies).cloned().collect()
}

#[test]
fn copies_of_a_group_are_in_different_domains_and_all_servers_share_them() {
    let servers = [10, 11, 12, 20, 21, 30, 40, 41, 42];
    for copies in [2, 3] {
        let mut pools = pools_of(&servers);
        assert!(pools.begin_copies(copies, seconds(1)).is_some_and(|rows| !rows.is_empty()));
        let bands = bands(&pools, copies);
        let homes: Vec<u32> =
            bands.iter().filter_map(|it| it.mirroring).map(|it| it.home).collect();
        assert_eq!(homes, servers);
        let mut held: BTreeMap<u32, usize> = BTreeMap::new();
        for (band, home) in bands.iter().zip(homes) {
            assert!(band.is_valid());
            for group in &band.groups {
                assert_eq!((group.servers[0], group.servers.len()), (home, usize::from(copies)));
                let domains: BTreeSet<u32> = group.servers.iter().map(|it| it / 10).collect();
                assert_eq!(domains.len(), usize::from(copies), "{:?}", group.servers);
                group.servers[1..].iter().for_each(|it| *held.entry(*it).or_default() += 1);
            }
        }
        // Each server gets about as much as the others, also one that is alone in its domain.
        assert_eq!(held.len(), servers.len(), "{held:?}");
        let (least, most) = (held.values().min().unwrap(), held.values().max().unwrap());
        assert!(most < &(2 * least), "{held:?}");
    }
}

#[test]
fn too_few_domains_are_refused_and_change_nothing() {
    let mut pools = pools_of(&[10, 11, 12, 20]);
    let before = pools.map().clone();
    assert_eq!(pools.begin_copies(3, seconds(1)), None);
    // A full server is no place for copies, nor is one that is silent.
    beat(&mut pools, 20, 1, 20, seconds(1));
    assert_eq!(pools.begin_copies(2, seconds(1)), None);
    beat(&mut pools, 20, 1, 900, seconds(1));
    assert_eq!(pools.begin_copies(2, seconds(9)), None);
    assert_eq!(pools.map(), &before);
    assert!(pools.begin_copies(2, seconds(1)).is_some());
    // Where there are bands already, a policy may be set although a host is down.
    assert_eq!(pools.begin_copies(2, seconds(9)), Some(Vec::new()));
    assert_eq!(pools.begin_copies(1, seconds(9)), Some(Vec::new()));
}

#[test]
fn a_server_that_joins_gets_bands_of_all_kinds_in_use_once_it_has_room() {
    let mut pools = pools_of(&[10, 20]);
    pools.begin_copies(2, seconds(1)).expect("two hosts");
    assert_eq!(pools.add_missing_bands(seconds(1)), []);
    beat(&mut pools, 30, 1, 20, seconds(1));
    pools.add_band(30);
    assert_eq!(pools.add_missing_bands(seconds(1)), [], "it is full");
    beat(&mut pools, 30, 1, 900, seconds(1));
    assert_eq!(pools.add_missing_bands(seconds(1)).len(), 2, "rows of the band and of the map");
    assert_eq!(pools.kinds(), BTreeSet::from([1, 2]));
    assert_eq!(bands(&pools, 2).len(), 3);
    assert_eq!(bands(&pools, 2)[2].groups[0].servers[0], 30);
}

#[test]
fn pools_of_each_number_of_copies_follow_their_own_bands() {
    let silence = Duration::from_secs(10);
    let mut pools = pools_of(&[10, 20, 30]);
    let next = |pools: &mut Pools, copies, now| {
        let pool = pools.successor(copies, now, silence)?;
        pools.add(pool.clone());
        Some((pool.version, pool.copies, pool.members.numbers().to_vec()))
    };
    assert_eq!(next(&mut pools, 1, seconds(1)), Some((1, 1, vec![0, 1, 2])));
    assert_eq!(next(&mut pools, 2, seconds(1)), None);
    pools.begin_copies(2, seconds(1)).expect("three hosts");
    assert_eq!(next(&mut pools, 2, seconds(1)), Some((2, 2, vec![3, 4, 5])));
    assert_eq!(pools.get(0).map(|pool| pool.version), Some(1), "the newest of one copy");
    // A server dies: it leaves its groups, and the bands of two copies stay usable.
    for server in [10, 20] {
        beat(&mut pools, server, 1, 900, seconds(12));
    }
    assert!(!pools.drop_silent(seconds(12)).is_empty());
    assert_eq!(next(&mut pools, 1, seconds(12)), Some((3, 1, vec![0, 1])));
    assert_eq!(next(&mut pools, 2, seconds(12)), None);
    assert_eq!(pools.newest(2).map(|pool| pool.version), Some(2));
    let lacking = 64 + 32 + 32;
    let shortage =
        Shortage { groups: 3 * 64, short: lacking, last: lacking, together: 0, losses: 0 };
    assert_eq!(pools.shortage(), shortage);
}

#[test]
fn a_store_that_is_given_up_leaves_its_groups_to_those_that_have_something() {
    let mut pools = pools_of(&[10, 20, 30]);
    pools.begin_copies(2, seconds(1)).expect("three hosts");
    let group = bands(&pools, 2)[0].groups().next().expect("it has groups").0;
    let other = pools.map().members(group)[1];
    // The other member left before: it is the only one that still has bytes.
    let (groups, map) = (Step::numbers(&[group]), pools.map().epoch);
    let step = Step { groups: Bytes(&groups), by: 10, map, server: other, in_step: false };
    pools.set_step(&step, seconds(1)).expect("it counts");
    assert!(!pools.replace_store(10).is_empty());
    let left = pools.map().membership(group).expect("it is there");
    assert_eq!((&left.servers[..], &left.newcomers[..], left.losses), (&[other][..], &[10][..], 1));
    for band in bands(&pools, 2) {
        assert!(band.groups.iter().all(|it| !it.servers.contains(&10)), "{band:?}");
    }
    // Given up once more as the last one, the emptied store is nobody's heir.
    let map = pools.map().epoch;
    pools.set_group(group, &[20]).expect("it is there");
    let groups = Step::numbers(&[group]);
    assert!(map < pools.map().epoch);
    pools.set_group(group, &[20, 30]).expect("it is there");
    let map = pools.map().epoch;
    let step = Step { groups: Bytes(&groups), by: 20, map, server: 30, in_step: false };
    pools.set_step(&step, seconds(1)).expect("it counts");
    pools.replace_store(30);
    assert_eq!(pools.map().membership(group).map(|it| it.newcomers.clone()), Some(vec![30]));
    pools.replace_store(20);
    let left = pools.map().membership(group).expect("it is there");
    assert_eq!((&left.servers[..], &left.newcomers[..]), (&[30][..], &[20][..]), "nobody has more");
}

#[test]
fn a_full_server_does_not_leave_all_new_files_to_one_other() {
    let silence = Duration::from_secs(10);
    let mut pools = pools_of(&[10, 20, 30]);
    pools.begin_copies(2, seconds(1)).expect("three hosts");
    let pool = pools.successor(2, seconds(1), silence).expect("the first one");
    assert_eq!(pool.members.numbers(), [3, 4, 5]);
    pools.add(pool);
    beat(&mut pools, 30, 1, 20, seconds(2));
    beat(&mut pools, 40, 1, 900, seconds(2));
    pools.add_band(40);
    pools.add_missing_bands(seconds(2));
    // Only the band of the new server has no member that is full.
    let pool = pools.successor(2, seconds(2), silence).expect("another one");
    assert_eq!(pool.members.numbers(), [3, 4, 7], "all whose orderers have room");
}

#[test]
fn members_that_come_to_share_a_domain_are_counted() {
    let mut pools = pools_of(&[10, 20, 30]);
    pools.begin_copies(2, seconds(1)).expect("three hosts");
    assert_eq!(pools.shortage().together, 0);
    pools.servers.get_mut(&30).expect("it was heard").domain = b"host2".to_vec();
    let (together, all) = (pools.shortage().together, pools.shortage().groups);
    assert!(together > 0 && together < all);
}
