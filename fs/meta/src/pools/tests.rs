//! Pools, the map, and the members of groups.

use ropewalk_wire::fs::group::BAND_GROUPS;
use ropewalk_wire::fs::map::Mirroring;
use ropewalk_wire::fs::value::Bytes;

use super::rows::{PLAIN_BAND_VERSION, PlainBand};
use super::*;

const SILENCE: Duration = Duration::from_secs(10);

pub fn seconds(seconds: u64) -> Time {
    Time(seconds * 1_000_000_000)
}

pub fn beat(pools: &mut Pools, server: u32, boot: u64, available_bytes: u64, now: Time) -> bool {
    pools.set_member(server, 7);
    let (total_bytes, free_bytes) = (1000, available_bytes);
    let room = Room { total_bytes, free_bytes, available_bytes, file_system: 0 };
    let address = Bytes(b"somewhere");
    let (store, history) = (7, 0);
    let (replace, admit) = (false, false);
    let (met, known_by, era) = (0, 0, 1);
    let domain = format!("host{}", server / 10);
    let beat = Heartbeat {
        server,
        boot,
        era,
        store,
        history,
        met,
        known_by,
        replace,
        admit,
        room,
        address,
        domain: Bytes(domain.as_bytes()),
    };
    pools.note_told(server, 0, true);
    pools.handle_heartbeat(&beat, now)
}

/// Pools of these servers; a server's failure domain is its number without the last digit.
pub fn pools_of(servers: &[u32]) -> Pools {
    let mut pools = Pools::default().mapped(Some(Banded::default()));
    for server in servers {
        beat(&mut pools, *server, 1, 900, seconds(1));
        pools.add_band(*server);
    }
    pools
}

fn step(pools: &mut Pools, now: Time) -> Option<Vec<u32>> {
    let pool = pools.successor(1, now, SILENCE)?;
    pools.add(pool.clone());
    Some(pool.members.numbers().to_vec())
}

#[test]
fn versions_follow_the_servers_that_are_usable() {
    let mut pools = Pools::default();
    assert_eq!(step(&mut pools, Time::ZERO), None);
    beat(&mut pools, 3, 1, 900, seconds(1));
    assert_eq!(step(&mut pools, seconds(1)), Some(vec![3]));
    beat(&mut pools, 1, 1, 900, seconds(2));
    assert_eq!(step(&mut pools, seconds(2)), Some(vec![1, 3]));
    assert_eq!(step(&mut pools, seconds(3)), None);
    // Full, then dead, then back.
    beat(&mut pools, 1, 1, 20, seconds(9));
    assert_eq!(step(&mut pools, seconds(9)), Some(vec![3]));
    assert_eq!(step(&mut pools, seconds(12)), None, "the last usable servers stay");
    beat(&mut pools, 1, 2, 500, seconds(13));
    assert_eq!(step(&mut pools, seconds(13)), Some(vec![1]));
    assert_eq!(pools.newest(1).map(|pool| pool.version), Some(4));
    assert_eq!(pools.get(2), Some(&Pool::of_servers(2, vec![1, 3])));
}

#[test]
fn a_pool_names_the_bands_whose_servers_are_all_usable() {
    let mut pools = Pools::default().mapped(Some(Banded::default()));
    for server in [7, 3] {
        beat(&mut pools, server, 1, 900, seconds(1));
        assert_eq!(pools.add_band(server).len(), 2, "rows of the band and of the map");
    }
    assert_eq!(step(&mut pools, seconds(1)), Some(vec![0, 1]));
    assert_eq!(pools.newest_with(3), Some(1));
    // A group of the first server's band is on the second one, too: without it the band cannot be used.
    assert!(pools.set_group(Group::of_band(0, 5), &[7, 3]).is_some());
    assert!(pools.set_group(Group::of_band(9, 5), &[7, 3]).is_none());
    assert_eq!(pools.map().epoch, 4);
    beat(&mut pools, 3, 1, 20, seconds(12));
    beat(&mut pools, 7, 1, 900, seconds(12));
    assert_eq!(step(&mut pools, seconds(12)), None, "the last usable bands stay");
    beat(&mut pools, 3, 1, 900, seconds(13));
    beat(&mut pools, 7, 1, 20, seconds(13));
    assert_eq!(step(&mut pools, seconds(13)), Some(vec![1]));
}

/// Pools of three servers, of which groups 0 and 1 of the first band have two members.
fn mirrored() -> (Pools, [Group; 2]) {
    let mut pools = Pools::default().mapped(Some(Banded::default()));
    for server in [1, 2, 3] {
        beat(&mut pools, server, 1 << 32, 900, seconds(1));
        pools.add_band(server);
    }
    let groups = [Group::of_band(0, 0), Group::of_band(0, 1)];
    pools.set_group(groups[0], &[1, 2]).expect("it is there");
    pools.set_group(groups[1], &[2, 3]).expect("it is there");
    (pools, groups)
}

fn servers(pools: &Pools, group: Group) -> (Vec<u32>, Vec<u32>) {
    let group = pools.map().membership(group).expect("it is there");
    (group.servers.clone(), group.newcomers.clone())
}

#[test]
fn silent_members_leave_where_another_one_is_heard() {
    let (mut pools, [first, second]) = mirrored();
    assert!(pools.drop_silent(seconds(2)).is_empty());
    assert!(pools.drop_silent(seconds(9)).is_empty(), "nobody would stay");
    beat(&mut pools, 1, 1 << 32, 900, seconds(9));
    let epoch = pools.map().epoch;
    assert_eq!(pools.drop_silent(seconds(9)).len(), 2, "rows of the band and of the map");
    assert_eq!(servers(&pools, first), (vec![1], vec![2]));
    assert_eq!(servers(&pools, second), (vec![2, 3], vec![]), "none of them is heard");
    assert_eq!(pools.map().epoch, epoch + 1);
    assert_eq!(pools.map().membership(first).map(|group| group.since), Some(epoch + 1));
    assert!(pools.drop_silent(seconds(9)).is_empty());
}

#[test]
fn who_begins_a_new_life_leaves_where_another_member_is_known_to_live() {
    let (mut pools, [first, _]) = mirrored();
    // Its last sign is of before: it may have died with this one.
    assert_eq!(pools.begin_life(1, 2 << 32, false, seconds(2)), None);
    beat(&mut pools, 2, 1 << 32, 900, seconds(3));
    assert!(pools.begin_life(1, 2 << 32, false, seconds(3)).is_some_and(|rows| !rows.is_empty()));
    assert_eq!(servers(&pools, first), (vec![2], vec![1]));
    // A newcomer's new life is another state of the group: what is under way for it does not count.
    let since = |pools: &Pools| pools.map().membership(first).map(|group| group.since);
    let before = since(&pools);
    assert!(pools.begin_life(1, 3 << 32, false, seconds(4)).is_some());
    assert!(since(&pools) > before);
    // The last member stays, and says what it may have lost.
    assert_eq!(pools.begin_life(2, 2 << 32, false, seconds(9)).map(|rows| rows.len()), Some(2));
    assert_eq!(servers(&pools, first), (vec![2], vec![1]));
    pools.begin_life(2, 3 << 32, true, seconds(9)).expect("at once");
    assert_eq!(pools.map().membership(first).map(|group| group.losses), Some(1));
}

#[test]
fn who_lost_power_leaves_as_long_as_there_is_another_member() {
    let (mut pools, [first, second]) = mirrored();
    pools.begin_life(2, 2 << 32, true, seconds(90)).expect("at once");
    assert_eq!(servers(&pools, first), (vec![1], vec![2]));
    assert_eq!(servers(&pools, second), (vec![3], vec![2]));
}

#[test]
fn the_orderer_says_who_is_in_step() {
    let (mut pools, [first, _]) = mirrored();
    let map = pools.map().epoch;
    let groups = Step::numbers(&[first]);
    let step = Step { groups: Bytes(&groups), by: 1, map, server: 2, in_step: false };
    let late = seconds(2);
    assert_eq!(pools.set_step(&Step { by: 2, server: 1, ..step }, late), None, "not the first");
    assert_eq!(pools.set_step(&Step { map: 1, ..step }, late), None, "an older map");
    let itself = Step { server: 1, ..step };
    assert_eq!(pools.set_step(&Step { in_step: true, ..itself }, late), None);
    // Nobody else is heard: all stays as it is, and the word is void for good.
    assert!(pools.set_step(&itself, seconds(9)).is_some());
    assert_eq!(servers(&pools, first), (vec![1, 2], vec![]));
    assert_eq!(pools.set_step(&itself, late), None);
    let map = pools.map().epoch;
    let step = Step { map, ..step };
    assert!(pools.set_step(&step, late).is_some());
    assert_eq!(servers(&pools, first), (vec![1], vec![2]));
    // A word of before counts no more; nor does one after a report of the newcomer.
    let enter = Step { in_step: true, ..step };
    assert_eq!(pools.set_step(&enter, late), None);
    let map = pools.map().epoch;
    assert!(pools.set_step(&Step { map, ..step }, late).is_some_and(|rows| !rows.is_empty()));
    assert_eq!(pools.set_step(&Step { map, ..enter }, late), None);
    let map = pools.map().epoch;
    assert_eq!(pools.set_step(&Step { map, ..enter }, seconds(9)), None, "it is silent");
    assert!(pools.set_step(&Step { map, ..enter }, late).is_some());
    assert_eq!(servers(&pools, first), (vec![1, 2], vec![]));
}

#[test]
fn an_orderer_that_lost_an_object_leaves_by_its_own_word() {
    let (mut pools, [first, second]) = mirrored();
    let (groups, map) = (Step::numbers(&[first, second]), pools.map().epoch);
    let step = Step { groups: Bytes(&groups), by: 1, map, server: 1, in_step: false };
    assert!(pools.set_step(&step, seconds(2)).is_some_and(|rows| !rows.is_empty()));
    assert_eq!(servers(&pools, first), (vec![2], vec![1]));
    assert_eq!(servers(&pools, second), (vec![2, 3], vec![]));
}

#[test]
fn an_orderer_hands_groups_on_to_a_member_that_is_heard() {
    let (mut pools, [first, second]) = mirrored();
    let third = Group::of_band(2, 7);
    pools.set_group(third, &[2, 3, 1]).expect("it is there");
    let (groups, map) = (Step::numbers(&[first, second, third]), pools.map().epoch);
    let step = Step { groups: Bytes(&groups), by: 2, map, server: 3, in_step: true };
    assert!(pools.set_step(&step, seconds(2)).is_some_and(|rows| !rows.is_empty()));
    assert_eq!(servers(&pools, first), (vec![1, 2], vec![]), "another one orders it");
    assert_eq!(servers(&pools, second), (vec![3, 2], vec![]));
    assert_eq!(servers(&pools, third), (vec![3, 2, 1], vec![]));
    assert_eq!(pools.map().epoch, map + 1, "one change");
    assert_eq!(pools.set_step(&step, seconds(2)), None, "the word comes once more");
    // Where that one is not heard all stays, and the word is void for good.
    let back = Step { by: 3, server: 2, map: map + 1, ..step };
    assert!(pools.set_step(&back, seconds(9)).is_some_and(|rows| !rows.is_empty()));
    assert_eq!(servers(&pools, second), (vec![3, 2], vec![]));
    assert_eq!(pools.set_step(&back, seconds(2)), None);
    assert_eq!(servers(&pools, second), (vec![3, 2], vec![]));
}

#[test]
fn a_server_that_stops_leaves_all_its_groups_in_which_another_one_lives() {
    let (mut pools, [first, second]) = mirrored();
    let third = Group::of_band(2, 7);
    pools.set_group(third, &[2, 3]).expect("it is there");
    let map = pools.map().epoch;
    let step = Step { groups: Bytes(&[]), by: 2, map, server: 2, in_step: false };
    assert!(pools.set_step(&step, seconds(9)).is_some(), "nobody is heard");
    assert_eq!(servers(&pools, first), (vec![1, 2], vec![]));
    assert_eq!(pools.set_step(&step, seconds(2)), Some(vec![]), "that word counts no more");
    assert_eq!(servers(&pools, first), (vec![1, 2], vec![]));
    let step = Step { map: pools.map().epoch, ..step };
    assert_eq!(pools.set_step(&Step { server: 1, ..step }, seconds(2)), None, "of itself only");
    assert!(pools.set_step(&step, seconds(2)).is_some_and(|rows| !rows.is_empty()));
    assert_eq!(servers(&pools, first), (vec![1], vec![2]));
    assert_eq!(servers(&pools, second), (vec![3], vec![2]));
    assert_eq!(servers(&pools, third), (vec![3], vec![2]));
    assert_eq!(pools.map().epoch, step.map + 1, "one change");
}

#[test]
fn a_server_without_a_link_is_missed_when_its_lease_is_over() {
    let (mut pools, [first, _]) = mirrored();
    for server in [1, 2, 3] {
        beat(&mut pools, server, 1, 900, seconds(10));
    }
    let at = |milliseconds: u64| seconds(10) + Duration::from_millis(milliseconds);
    pools.note_linkless(2, LINKLESS_SILENCE);
    beat(&mut pools, 1, 1, 900, at(790));
    assert!(pools.drop_silent(at(799)).is_empty() && pools.is_heard(2, at(799)));
    assert!(!pools.drop_silent(at(800)).is_empty() && !pools.is_heard(2, at(800)));
    assert_eq!(servers(&pools, first), (vec![1], vec![2]));
    beat(&mut pools, 2, 1, 900, at(900));
    beat(&mut pools, 1, 1, 900, at(2000));
    assert!(pools.is_heard(2, at(2399)) && !pools.is_heard(2, at(2400)), "it has a link again");
}

#[test]
fn one_word_counts_for_the_groups_that_its_server_orders() {
    let (mut pools, [first, second]) = mirrored();
    let third = Group::of_band(2, 7);
    pools.set_group(third, &[2, 3]).expect("it is there");
    let groups = Step::numbers(&[first, second, third, Group::of_band(9, 9)]);
    let map = pools.map().epoch;
    let step = Step { groups: Bytes(&groups), by: 2, map, server: 3, in_step: false };
    assert!(pools.set_step(&step, seconds(1)).is_some_and(|rows| rows.len() == 3));
    assert_eq!(pools.map().epoch, map + 1, "one change");
    assert_eq!(servers(&pools, first), (vec![1, 2], vec![]), "another one orders it");
    for group in [second, third] {
        assert_eq!(servers(&pools, group), (vec![2], vec![3]));
    }
}

#[test]
fn rows_of_bands_are_read_in_all_formats() {
    let plain = PlainBand { number: 3, groups: vec![(5, vec![1, 300]); BAND_GROUPS as usize] };
    let band = decode_band(&encode_row(PLAIN_BAND_VERSION, &plain)).expect("a band");
    assert_eq!(band.groups[7], Membership::new(5, vec![1, 300]));
    let mut band = Band::new(4, 1, 2);
    band.groups[9].newcomers.push(8);
    assert_eq!(encode_band(&band)[0], 2, "as former programs read it");
    assert_eq!(decode_band(&encode_band(&band)).ok().as_ref(), Some(&band));
    band.mirroring = Some(Mirroring { copies: 3, home: 1 });
    assert_eq!(decode_band(&encode_band(&band)).ok().as_ref(), Some(&band));
    band.mirroring = Some(Mirroring { copies: 1, home: 1 });
    assert!(decode_band(&encode_band(&band)).is_err());
    for bad in [&[][..], &[1, 3, 0], &[2, 3, 1, 5, 1, 1, 0, 0], &[3], &[4]] {
        assert!(decode_band(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn rows_of_pools_are_read_in_all_formats() {
    let old = Pool::of_servers(7, vec![1, 300]);
    assert_eq!(encode_pool(&old), [1, 7, 2, 1, 0xac, 2], "the first format stays as it is");
    let new = Pool { version: 8, members: Members::Bands(vec![0, 300]), copies: 1 };
    assert_eq!(encode_pool(&new), [2, 8, 1, 2, 0, 0xac, 2], "as former programs read it");
    for pool in [old, Pool { copies: 3, ..new.clone() }, new] {
        assert_eq!(decode_pool(&encode_pool(&pool)).ok(), Some(pool));
    }
    for bad in [&[1, 7, 0][..], &[2, 7, 1, 0], &[3, 7, 1, 1, 1], &[3, 7, 1, 1, 1, 4], &[4], &[]] {
        assert!(decode_pool(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn files_can_be_made_from_the_start_where_all_servers_are_nearly_full() {
    let mut pools = Pools::default();
    beat(&mut pools, 1, 1, 20, seconds(1));
    assert_eq!(step(&mut pools, seconds(1)), Some(vec![1]));
    beat(&mut pools, 2, 1, 900, seconds(2));
    assert_eq!(step(&mut pools, seconds(2)), Some(vec![2]));
}

#[test]
fn a_large_disk_keeps_no_more_than_it_needs() {
    let total_bytes = 1 << 48;
    let room = |available_bytes| Room { total_bytes, available_bytes, ..Room::default() };
    let heard = Time::ZERO;
    let server = |room| Server { boot: 1, room, heard, ..Server::default() };
    assert!(server(room((1 << 30) + 1)).has_room());
    assert!(!server(room(1 << 30)).has_room());
}

#[test]
fn servers_on_one_file_system_do_not_promise_it_twice() {
    let mut pools = Pools::default();
    for (server, file_system) in [(1, 5), (2, 5), (3, 6), (4, 0)] {
        beat(&mut pools, server, 1, 900, seconds(1));
        pools.servers.get_mut(&server).expect("heard").room.file_system = file_system;
    }
    let whole = pools.room();
    assert_eq!((whole.total_bytes, whole.available_bytes), (3000, 2700));
    let shares = [1, 2, 3, 4].map(|server| pools.share(server).available_bytes);
    assert_eq!(shares, [450, 450, 900, 900]);
}

#[test]
fn after_a_restart_servers_have_time_to_be_heard() {
    let kept = BTreeMap::from([(5, Pool::of_servers(5, vec![1, 2]))]);
    let mut pools = Pools::new(BTreeMap::new(), kept, seconds(100));
    beat(&mut pools, 1, 1, 900, seconds(101));
    assert_eq!(step(&mut pools, seconds(101)), None);
    beat(&mut pools, 1, 1, 900, seconds(111));
    assert_eq!(step(&mut pools, seconds(111)), Some(vec![1]));
    assert_eq!(pools.newest(1).map(|pool| pool.version), Some(6));
}
