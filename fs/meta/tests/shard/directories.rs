//! Large directories: scans while entries come and go, with names that collide; pools; `check`.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::*;
use ropewalk_base::random::Random;
use ropewalk_meta::sessions::SessionOwner;
use ropewalk_meta::{Config, Outcome};
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

#[test]
fn pool_versions_follow_the_servers_and_files_keep_theirs() {
    let mut cluster = Cluster::new(1, Config::default(), 1);
    let first = cluster.create(0, b"a");
    let now = cluster.moment();
    let request = MetaRequest::Heartbeat(Heartbeat {
        server: 2,
        boot: 1,
        store: 7,
        meta_store: 0,
        met: 0,
        known_by: 0,
        replace: false,
        admit: true,
        room: Room { total_bytes: GIB, free_bytes: GIB, available_bytes: GIB, file_system: 0 },
        address: Bytes(b"tcp://two"),
    });
    let call = ropewalk_meta::Call { session: 0, slot: 0, sequence: 0, request, now };
    cluster.shard().execute(call);
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
    assert_eq!((pool.version, pool.servers), (2, vec![1, 2]));
    assert_eq!((servers[0].alive, servers[1].alive), (true, false));
    assert_eq!(cluster.call(0, MetaRequest::GetPool { version: 9 }).errno(), Errno::ENOENT);
    let MetaReply::FileSystem { room, .. } = cluster.call(0, MetaRequest::StatFileSystem).ok()
    else {
        panic!()
    };
    assert_eq!(room.total_bytes, 100 * GIB);
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
