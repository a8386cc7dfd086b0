//! Large directories: scans while entries come and go, with names that collide; pools; `check`.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::*;
use ropewalk_base::random::Random;
use ropewalk_meta::sessions::SessionOwner;
use ropewalk_meta::{Config, Outcome};
use ropewalk_wire::fs::layout::Members;
use ropewalk_wire::fs::meta::*;
use ropewalk_wire::fs::status::Room;
use ropewalk_wire::fs::value::{Bytes, Errno};

/// Every entry that stays during a whole scan is seen exactly once; nothing is seen twice unless it
/// was made anew.
fn scan_under_change(hash_bits: u32, names: u64) {
    for seed in 0..20 {
        let config = Config { hash_bits, ..Config::default() };
        let mut cluster = Cluster::new(2, config, seed);
        let mut random = Random::from_seed(seed);
        let mut present = BTreeSet::new();
        for _ in 0..names {
            let name = format!("name{}", random.below(names)).into_bytes();
            if present.insert(name.clone()) {
                cluster.call(0, make(ROOT, &name, Node::Fifo)).ok();
            }
        }
        let (mut stayed, mut made) = (present.clone(), BTreeSet::new());
        let (mut seen, mut cookie, mut end) = (BTreeMap::new(), 0, false);
        while !end {
            let request = MetaRequest::ReadDirectory {
                who: Who::ROOT,
                inode: ROOT,
                cookie,
                bytes_max: 0,
                attributes: random.chance(500_000),
            };
            let answer = cluster.call(1, request);
            let MetaReply::Directory { entries, end: last, .. } = answer.ok() else { panic!() };
            for entry in &entries {
                assert!(entry.cookie > cookie && entry.cookie > 2 && entry.cookie < 1 << 63);
                cookie = entry.cookie;
                *seen.entry(entry.name.0.to_vec()).or_insert(0) += 1;
            }
            end = last;
            for _ in 0..random.below(6) {
                let name = format!("name{}", random.below(names)).into_bytes();
                if present.remove(&name) {
                    cluster.call(0, unlink(ROOT, &name)).ok();
                    stayed.remove(&name);
                } else {
                    cluster.call(0, make(ROOT, &name, Node::Fifo)).ok();
                    present.insert(name.clone());
                    made.insert(name);
                }
            }
        }
        for name in &stayed {
            assert_eq!(seen.get(name), Some(&1), "seed {seed}: {}", name.escape_ascii());
        }
        for (name, times) in &seen {
            assert!(*times == 1 || made.contains(name), "seed {seed}: {}", name.escape_ascii());
        }
        invariants::check(cluster.shard());
    }
}

#[test]
fn scans_survive_changes() {
    scan_under_change(56, 120);
}

#[test]
fn scans_survive_changes_where_names_collide() {
    scan_under_change(2, 120);
}

#[test]
fn too_many_collisions_are_refused_and_no_name_is_lost() {
    let mut cluster = Cluster::new(1, Config { hash_bits: 2, ..Config::default() }, 1);
    let (mut made, mut refused) = (Vec::new(), 0);
    for name in 0..500u32 {
        let name = name.to_string().into_bytes();
        match cluster.call(0, make(ROOT, &name, Node::Fifo)).get() {
            Ok(_) => made.push(name),
            Err(errno) => {
                assert_eq!(errno, Errno::ENOSPC);
                refused += 1;
            }
        }
    }
    assert!(refused > 0 && made.len() >= 128);
    for name in &made {
        cluster.call(0, lookup(ROOT, name)).ok();
    }
    invariants::check(cluster.shard());
}

#[test]
fn the_root_directory_belongs_to_whom_the_cluster_was_made_for() {
    let config = Config { root_owner: (1000, 100), ..Config::default() };
    let mut cluster = Cluster::new(1, config, 1);
    let root = cluster.attributes(0, ROOT).attributes();
    assert_eq!((root.user, root.group, root.mode), (1000, 100, 0o755));
    // Once made it is the rows' to say, not the next start's.
    cluster.restart();
    assert_eq!(cluster.attributes(0, ROOT).attributes().user, 1000);
}

/// A data server of this number joins, which is a failure domain of its own.
pub fn join(cluster: &mut Cluster, server: u32) {
    let domain = format!("host{server}");
    let now = cluster.moment();
    let request = MetaRequest::Heartbeat(Heartbeat {
        server,
        boot: 1,
        era: 1,
        store: 7,
        history: 0,
        met: 0,
        known_by: 0,
        replace: false,
        admit: true,
        room: Room { total_bytes: GIB, free_bytes: GIB, available_bytes: GIB, file_system: 0 },
        address: Bytes(b"tcp://two"),
        domain: Bytes(domain.as_bytes()),
    });
    let call = ropewalk_meta::Call { session: 0, slot: 0, sequence: 0, request, now };
    cluster.shard().execute(call);
}

fn pool_versions_follow_the_servers(first_format: bool, members: &Members) {
    let config = Config { first_format, ..Config::default() };
    let mut cluster = Cluster::new(1, config, 1);
    let first = cluster.create(0, b"a");
    join(&mut cluster, 2);
    let second = cluster.create(0, b"b");
    let version = |cluster: &mut Cluster, inode| {
        let answer = cluster.call(0, open(inode, READ));
        let MetaReply::Opened { layout, .. } = answer.ok() else { panic!() };
        layout.pool_version
    };
    assert_eq!((version(&mut cluster, first), version(&mut cluster, second)), (1, 2));
    cluster.restart();
    let answer = cluster.call(0, MetaRequest::GetPool { version: 0 });
    let MetaReply::Pool { pool, servers } = answer.ok() else { panic!() };
    assert_eq!((pool.version, &pool.members), (2, members));
    let servers: Vec<_> = servers.iter().map(|it| (it.server, it.alive)).collect();
    assert_eq!(servers, [(1, true), (2, false)]);
    assert_eq!(cluster.call(0, MetaRequest::GetPool { version: 9 }).errno(), Errno::ENOENT);
    let MetaReply::FileSystem { room, .. } = cluster.call(0, MetaRequest::StatFileSystem).ok()
    else {
        panic!()
    };
    assert_eq!(room.total_bytes, 100 * GIB);
}

#[test]
fn pool_versions_follow_the_servers_and_files_keep_theirs() {
    pool_versions_follow_the_servers(false, &Members::Bands(vec![0, 1]));
    pool_versions_follow_the_servers(true, &Members::Servers(vec![1, 2]));
}

/// Epoch, bands with the first server of their last groups, and whether that is all.
fn map(cluster: &mut Cluster, since: u32, from: u32, server: Option<u32>) -> (u32, Vec<u64>, bool) {
    let bytes_max = from * 300;
    let request = MetaRequest::GetMap { since, from, server, bytes_max };
    let answer = cluster.call(0, request);
    let MetaReply::Map { epoch, bands, end } = answer.ok() else { panic!() };
    let told = bands.iter().map(|band| {
        assert!(band.is_valid());
        u64::from(band.number) << 32 | u64::from(band.groups[63].servers[0])
    });
    (epoch, told.collect(), end)
}

#[test]
fn a_server_that_joins_gets_a_band_and_the_map_is_told_in_parts() {
    let mut cluster = Cluster::new(1, Config::default(), 1);
    [5, 3].into_iter().for_each(|server| join(&mut cluster, server));
    for _ in 0..2 {
        let band = |number: u64, server: u64| number << 32 | server;
        assert_eq!(map(&mut cluster, 0, 0, None), (4, vec![band(0, 1)], false));
        assert_eq!(map(&mut cluster, 0, 1, None), (4, vec![band(1, 5)], false));
        assert_eq!(map(&mut cluster, 0, 2, None), (4, vec![band(2, 3)], true));
        assert_eq!(map(&mut cluster, 3, 0, None), (4, vec![band(2, 3)], true), "news only");
        assert_eq!(map(&mut cluster, 4, 0, Some(5)), (4, vec![band(1, 5)], true));
        assert_eq!(map(&mut cluster, 0, 0, Some(9)), (4, vec![], true));
        // The rows say the same, and a further heartbeat makes no further band.
        cluster.restart();
        join(&mut cluster, 5);
    }
}

#[test]
fn files_wait_for_a_first_data_server_and_check_lists_all_inodes() {
    let mut cluster = Cluster::new(1, Config::default(), 1);
    let mut inodes = vec![ROOT];
    for name in 0..20u8 {
        inodes.push(cluster.create(0, &[b'a' + name]));
    }
    let (mut listed, mut from, mut end) = (Vec::new(), 0, false);
    while !end {
        let answer = cluster.call(0, MetaRequest::ListInodes { from, bytes_max: 1000 });
        let MetaReply::Inodes { inodes, end: last } = answer.ok() else { panic!() };
        listed.extend(inodes.iter().map(|info| info.attributes.inode));
        from = listed.last().expect("each reply has some") + 1;
        end = last;
    }
    assert_eq!(listed, inodes);
    // An empty cluster without data servers: a file waits, a directory does not.
    cluster.start(ropewalk_meta::VolatileRows::default());
    let now = cluster.moment();
    let opening =
        cluster.shard().open_session(9, SessionOwner::default(), now).expect("rows in memory");
    cluster.clients[0] = Client { session: opening.session, ..Client::default() };
    cluster.call(0, make(ROOT, b"dir", Node::Directory)).ok();
    let sequence = cluster.next_sequence(0, 0);
    let outcome = cluster.send(0, 0, sequence, create(ROOT, b"a"));
    assert!(matches!(outcome, Outcome::Wait(_)));
    cluster.heartbeat();
    cluster.wait(outcome).ok();
}
