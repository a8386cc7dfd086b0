//! Policies of directories: who sets them, who inherits them, and the pools that follow.

use crate::common::*;
use crate::directories::join;
use ropewalk_meta::Config;
use ropewalk_wire::fs::meta::*;
use ropewalk_wire::fs::value::{Bytes, Errno};

const POLICY: Bytes<'_> = Bytes(b"ropewalk.policy");

fn set_as(cluster: &mut Cluster, who: Who<'_>, inode: u64, value: &[u8]) -> Result<(), Errno> {
    let (name, value, create, replace) = (POLICY, Bytes(value), false, false);
    let set = MetaRequest::SetXattr { who, inode, name, value, create, replace };
    cluster.call(0, set).get().map(drop)
}

fn set(cluster: &mut Cluster, inode: u64, value: &[u8]) -> Result<(), Errno> {
    set_as(cluster, Who::ROOT, inode, value)
}

fn policy(cluster: &mut Cluster, inode: u64) -> String {
    let get = MetaRequest::GetXattr { who: Who::ROOT, inode, name: POLICY };
    let answer = cluster.call(0, get);
    let MetaReply::Content { bytes } = answer.ok() else { panic!() };
    String::from_utf8_lossy(bytes.0).into_owned()
}

fn copies(cluster: &mut Cluster, inode: u64) -> u8 {
    let answer = cluster.call(0, open(inode, READ));
    let MetaReply::Opened { layout, .. } = answer.ok() else { panic!() };
    let answer = cluster.call(0, MetaRequest::GetPool { version: layout.pool_version });
    let MetaReply::Pool { pool, .. } = answer.ok() else { panic!() };
    pool.copies
}

fn directory(cluster: &mut Cluster, parent: u64, name: &[u8]) -> u64 {
    cluster.call(0, make(parent, name, Node::Directory)).inode()
}

#[test]
fn new_entries_inherit_the_policy_of_their_directory_also_after_a_restart() {
    let mut cluster = Cluster::new(1, Config::default(), 1);
    let above = directory(&mut cluster, ROOT, b"above");
    assert_eq!(set(&mut cluster, above, b"copies=2"), Err(Errno::ENODEV), "one data server");
    assert_eq!(policy(&mut cluster, above), "copies=1");
    join(&mut cluster, 2);
    join(&mut cluster, 3);
    cluster.heartbeat();
    let early = cluster.call(0, create(above, b"early")).inode();
    let before = directory(&mut cluster, above, b"before");
    assert_eq!(set(&mut cluster, above, b"copies=2"), Ok(()));
    for restart in [false, true] {
        if restart {
            cluster.restart();
        }
        assert_eq!(policy(&mut cluster, above), "copies=2");
        assert_eq!(policy(&mut cluster, before), "copies=1", "what was there stays as it is");
        assert_eq!(copies(&mut cluster, early), 1);
        let below = directory(&mut cluster, above, format!("below {restart}").as_bytes());
        assert_eq!(policy(&mut cluster, below), "copies=2");
        let file = cluster.call(0, create(below, b"file")).inode();
        assert_eq!(
            (copies(&mut cluster, file), policy(&mut cluster, file)),
            (2, "copies=2".into())
        );
        // Its own number stays also where it loses its bytes.
        cluster.call(0, resize(file, 70_000)).ok();
        assert_eq!(set(&mut cluster, below, b"copies=1"), Ok(()));
        cluster.call(0, resize(file, 0)).ok();
        assert_eq!(copies(&mut cluster, file), 2);
        // More where its directory wants more by then.
        assert_eq!(set(&mut cluster, below, b"copies=3"), Ok(()));
        assert_eq!(copies(&mut cluster, file), 2);
        cluster.call(0, resize(file, 70_000)).ok();
        cluster.call(0, resize(file, 0)).ok();
        assert_eq!(copies(&mut cluster, file), 3);
        let other = cluster.call(0, create(below, b"other")).inode();
        assert_eq!(copies(&mut cluster, other), 3);
    }
}

#[test]
fn a_policy_is_set_by_the_owner_of_a_directory_only() {
    let mut cluster = Cluster::new(1, Config::default(), 1);
    join(&mut cluster, 2);
    cluster.heartbeat();
    let above = directory(&mut cluster, ROOT, b"above");
    let file = cluster.call(0, create(above, b"file")).inode();
    let fifo = cluster.call(0, make(above, b"fifo", Node::Fifo)).inode();
    let stranger = Who { user: 7, group: 7, ..Who::ROOT };
    assert_eq!(set_as(&mut cluster, stranger, above, b"copies=2"), Err(Errno::EPERM));
    // A kernel has judged nothing of it.
    let judge = Judge::Kernel { keeps_privileges: true };
    let by_mount = Who { judge, ..stranger };
    assert_eq!(set_as(&mut cluster, by_mount, above, b"copies=2"), Err(Errno::EPERM));
    // The first policy of a number of copies makes bands at all data servers.
    let change = AttributeChange { user: Some(7), ..AttributeChange::default() };
    let own = directory(&mut cluster, ROOT, b"own");
    cluster.call(0, MetaRequest::SetAttributes { who: Who::ROOT, inode: own, change }).ok();
    assert_eq!(set_as(&mut cluster, stranger, own, b"copies=2"), Err(Errno::EPERM));
    assert_eq!(set(&mut cluster, above, b"copies=2"), Ok(()));
    assert_eq!(set_as(&mut cluster, stranger, own, b"copies=2"), Ok(()));
    assert_eq!(set(&mut cluster, file, b"copies=2"), Err(Errno::ENOTDIR));
    for bad in ["copies=4", "copies=0", "2", ""] {
        assert_eq!(set(&mut cluster, above, bad.as_bytes()), Err(Errno::EINVAL), "{bad}");
    }
    let get = MetaRequest::GetXattr { who: Who::ROOT, inode: fifo, name: POLICY };
    assert_eq!(cluster.call(0, get).errno(), Errno::ENODATA);
    assert_eq!(set(&mut cluster, above, b"copies=2"), Ok(()));
    let list = MetaRequest::ListXattr { who: Who::ROOT, inode: above };
    let answer = cluster.call(0, list);
    assert_eq!(
        answer.ok(),
        MetaReply::Content { bytes: Bytes(b"") },
        "copies of trees do not take it along"
    );
    let remove = MetaRequest::RemoveXattr { who: Who::ROOT, inode: above, name: POLICY };
    let below = directory(&mut cluster, above, b"below");
    assert_eq!(set(&mut cluster, below, b"copies=1"), Ok(()));
    let remove_below = MetaRequest::RemoveXattr { who: Who::ROOT, inode: below, name: POLICY };
    cluster.call(0, remove_below).ok();
    assert_eq!(policy(&mut cluster, below), "copies=2", "that of the directory above");
    cluster.call(0, remove).ok();
    assert_eq!(policy(&mut cluster, above), "copies=1");
}

#[test]
fn a_store_of_the_first_format_has_no_copies() {
    let config = Config { first_format: true, ..Config::default() };
    let mut cluster = Cluster::new(1, config, 1);
    join(&mut cluster, 2);
    cluster.heartbeat();
    assert_eq!(set(&mut cluster, ROOT, b"copies=2"), Err(Errno::EOPNOTSUPP));
    assert_eq!(set(&mut cluster, ROOT, b"copies=1"), Ok(()));
}
