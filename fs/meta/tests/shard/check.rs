//! The requests of `check` to the metadata server: the fate of inodes, their paths, and the removal of
//! garbage.

use crate::common::*;
use ropewalk_meta::{Config, Reap};
use ropewalk_wire::fs::meta::*;
use ropewalk_wire::fs::value::{Bytes, Errno};

fn cluster() -> Cluster {
    Cluster::new(2, Config::default(), 11)
}

fn path(cluster: &mut Cluster, inode: u64) -> Result<Vec<u8>, Errno> {
    match cluster.call(0, MetaRequest::GetPath { inode }).get()? {
        MetaReply::Content { bytes } => Ok(bytes.0.to_vec()),
        other => panic!("{other:?}"),
    }
}

fn fates(cluster: &mut Cluster, inodes: &[u64], bytes_max: u32) -> Result<Vec<InodeFate>, Errno> {
    let bytes: Vec<u8> = inodes.iter().flat_map(|inode| inode.to_le_bytes()).collect();
    let request = MetaRequest::GetInodes { inodes: Bytes(&bytes), bytes_max };
    match cluster.call(0, request).get()? {
        MetaReply::Fates { fates } => Ok(fates),
        other => panic!("{other:?}"),
    }
}

fn discard(cluster: &mut Cluster, server: u32, objects: &[(u64, u32)]) -> Result<u32, Errno> {
    let mut bytes = Vec::new();
    for (inode, generation) in objects {
        bytes.extend(inode.to_le_bytes());
        bytes.extend(generation.to_le_bytes());
    }
    let request = MetaRequest::Discard { server, objects: Bytes(&bytes) };
    match cluster.call(0, request).get()? {
        MetaReply::Discarded { count } => Ok(count),
        other => panic!("{other:?}"),
    }
}

/// A file of one stripe, which client 0 has open.
fn striped(cluster: &mut Cluster, name: &[u8]) -> u64 {
    let answer = cluster.call(0, create(ROOT, name));
    let (inode, version) = (answer.inode(), answer.attributes().version);
    let written = runs(&[(0, 1)]);
    let report = report(0, 1 << 20, &written);
    cluster.call(0, MetaRequest::LeaveInline { inode, version, report }).ok();
    inode
}

fn reaps(cluster: &mut Cluster) -> Vec<(u64, u32)> {
    let mut found = Vec::new();
    while let Some(reap) = cluster.shard().poll_reap().expect("rows in memory") {
        let Reap { inode, generation, .. } = reap;
        found.push((inode, generation));
    }
    found
}

#[test]
fn a_path_leads_to_an_inode_wherever_it_was_moved() {
    let mut cluster = cluster();
    assert_eq!(path(&mut cluster, ROOT).unwrap(), b"/");
    let outer = cluster.call(0, make(ROOT, b"outer", Node::Directory)).inode();
    let inner = cluster.call(0, make(outer, b"inner", Node::Directory)).inode();
    let file = cluster.call(0, create(inner, b"file")).inode();
    assert_eq!(path(&mut cluster, file).unwrap(), b"/outer/inner/file");
    let rename = MetaRequest::Rename {
        who: Who::ROOT,
        parent: outer,
        name: Bytes(b"inner"),
        new_parent: ROOT,
        new_name: Bytes(b"moved"),
        mode: RenameMode::Replace,
        closed: 0,
    };
    cluster.call(0, rename).ok();
    assert_eq!(path(&mut cluster, file).unwrap(), b"/moved/file");
    // Still open, but without a name; and never there at all.
    cluster.call(0, unlink(inner, b"file")).ok();
    assert_eq!(path(&mut cluster, file), Err(Errno::ENOENT));
    assert_eq!(path(&mut cluster, 1 << 40), Err(Errno::ENOENT));
}

#[test]
fn a_path_that_is_too_long_is_an_error() {
    let mut cluster = cluster();
    let mut at = ROOT;
    for _ in 0..=PATH_BYTES_MAX / 256 {
        at = cluster.call(0, make(at, &[b'n'; 255], Node::Directory)).inode();
    }
    assert_eq!(path(&mut cluster, at), Err(Errno::ENAMETOOLONG));
}

#[test]
fn fates_tell_of_inodes_and_of_garbage_on_its_way() {
    let mut cluster = cluster();
    let (used, removed) = (striped(&mut cluster, b"used"), striped(&mut cluster, b"removed"));
    let all = [used, removed, 1 << 40];
    let before = fates(&mut cluster, &all, 1 << 16).unwrap();
    let info = before[0].inode.as_ref().expect("it is there");
    assert_eq!((info.attributes.inode, info.written.len(), info.changing), (used, 1, true));
    assert!(before[1].inode.is_some() && before[2].inode.is_none());
    assert!(before.iter().all(|fate| fate.reaping.is_none()));
    cluster.close(0, removed);
    let (who, parent, name) = (Who::ROOT, ROOT, Bytes(b"removed"));
    cluster.call(0, MetaRequest::Unlink { who, parent, name, closed: removed }).ok();
    // A reader changes nothing.
    cluster.close(0, used);
    let number = cluster.clients[0].grants[&used].number;
    let keep = LeaseMode::Read;
    cluster.call(0, MetaRequest::Release { inode: used, number, keep, open: None }).ok();
    let after = fates(&mut cluster, &all, 1 << 16).unwrap();
    assert!(!after[0].inode.as_ref().expect("it is there").changing);
    assert_eq!(after[1], InodeFate { inode: None, reaping: Some(0) });
    // Pages have at least one, whatever room there is.
    assert_eq!(fates(&mut cluster, &all, 0).unwrap(), after[..1]);
    assert_eq!(fates(&mut cluster, &[], 1 << 16), Err(Errno::EINVAL));
    let many: Vec<u64> = (0..=INODES_ASKED_MAX as u64).collect();
    assert_eq!(fates(&mut cluster, &many, 1 << 16), Err(Errno::EINVAL));
    // Cutting to nothing throws a generation away.
    cluster.call(0, resize(used, 0)).ok();
    let cut = &fates(&mut cluster, &[used], 1 << 16).unwrap()[0];
    let generation = cut.inode.as_ref().map(|info| info.attributes.object_generation);
    assert_eq!((generation, cut.reaping), (Some(1), Some(0)));
}

#[test]
fn only_what_is_garbage_for_certain_is_discarded() {
    let mut cluster = cluster();
    let file = striped(&mut cluster, b"file");
    cluster.call(0, resize(file, 0)).ok();
    assert_eq!(reaps(&mut cluster), [(file, 0)]);
    let reap = Reap { inode: file, generation: 0, pool_version: 1 };
    cluster.shard().handle_reaped(reap, true);
    // Reserved numbers were never given out, and never will be; the next ones will.
    let next = file + 1;
    let asked = [(7, 3), (file, 0), (file, 1), (file, 2), (next, 0), (u64::MAX, 0)];
    assert_eq!(discard(&mut cluster, 1, &asked), Ok(2));
    assert_eq!(reaps(&mut cluster), [(7, 3), (file, 0)]);
    assert_eq!(discard(&mut cluster, 9, &asked), Err(Errno::ENOENT), "no pool has the server");
    assert_eq!(discard(&mut cluster, 1, &[]), Err(Errno::EINVAL));
    assert_eq!(cluster.create(0, b"next"), next);
    // Numbers that a life of the server did not use up are never used.
    cluster.restart();
    let unused = next + 1;
    assert_eq!(discard(&mut cluster, 1, &[(unused, 0)]), Ok(1));
    assert!(cluster.create(0, b"later") > unused);
}

#[test]
fn stripes_of_a_writer_that_died_before_it_told_are_reaped() {
    let mut cluster = cluster();
    let file = cluster.create(0, b"small");
    let dead = cluster.clients[0].session;
    cluster.clients[0].silent = true;
    cluster.pass(11_000_000_000);
    let now = cluster.moment();
    let living = cluster.clients[1].session;
    assert!(cluster.shard().renew_session(living, now));
    cluster.shard().tick(now);
    assert_eq!(cluster.shard().poll_fence(), Some((dead, 2)));
    assert_eq!(reaps(&mut cluster), [], "it may still write");
    cluster.shard().handle_fenced(dead, now);
    assert_eq!(reaps(&mut cluster), [(file, 0)]);
    let answer = cluster.call(1, lookup(ROOT, b"small"));
    assert_eq!(answer.attributes().object_generation, 1, "the next ones have another name");
}
