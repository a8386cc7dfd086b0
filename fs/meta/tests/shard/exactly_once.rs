//! Retries: each mutating request, sent again with its number, gives the same reply and no second
//! effect, before and after a restart; and what calls outside the rules get.

use crate::common::*;
use ropewalk_meta::{Config, Outcome};
use ropewalk_wire::fs::head::Status;
use ropewalk_wire::fs::meta::*;
use ropewalk_wire::fs::value::{Bytes, Errno};
use ropewalk_wire::fs::{decode, encode};

/// Executes `request` twice under one number and says whether rows were the same after both.
fn twice(cluster: &mut Cluster, request: MetaRequest<'_>, restart: bool) {
    let name = format!("{request:?}");
    let sequence = cluster.next_sequence(0, 5);
    let outcome = cluster.send(0, 5, sequence, request);
    let first = cluster.wait(outcome);
    assert!(first.get().is_ok(), "{name}: {:?}", first.get());
    if restart {
        cluster.restart();
    }
    let before: Vec<_> = rows(cluster);
    cluster.pass(1_000_000_000);
    let outcome = cluster.send(0, 5, sequence, request);
    let second = cluster.wait(outcome);
    assert_eq!(rows(cluster), before, "{name} had a second effect");
    assert_eq!(without_grants(&first), without_grants(&second), "{name}");
    if !restart {
        assert_eq!(first.grant(), second.grant(), "{name}");
    }
    invariants::check(cluster.shard());
}

fn rows(cluster: &mut Cluster) -> Vec<(Vec<u8>, Vec<u8>)> {
    cluster.shard().rows().iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

/// The result with leases left out: a restart ends them, and reclaiming is the client's affair.
fn without_grants(answer: &Answer) -> Vec<u8> {
    let mut result: MetaResult<'_> = decode(&answer.0).expect("replies decode");
    match &mut result {
        Ok(MetaReply::Entry(entry) | MetaReply::Opened { entry, .. }) => {
            entry.grant = None;
            entry.entry_cached = false;
        }
        Ok(MetaReply::Attributes { grant, .. }) => *grant = None,
        _ => {}
    }
    let mut bytes = Vec::new();
    encode(&result, &mut bytes);
    bytes
}

fn every_mutation(restart: bool) {
    let mut cluster = Cluster::new(1, Config::default(), 1);
    let cluster = &mut cluster;
    let who = Who::ROOT;
    let name = |name: &'static [u8]| Bytes(name);
    twice(cluster, create(ROOT, b"file"), restart);
    let file = cluster.call(0, lookup(ROOT, b"file")).inode();
    // Across a restart it is another matter: see the test below.
    let temporary = MetaRequest::Temporary { who, parent: ROOT, mode: 0o600, access: WRITE };
    twice(cluster, temporary, false);
    twice(cluster, make(ROOT, b"dir", Node::Directory), restart);
    let parent = cluster.call(0, lookup(ROOT, b"dir")).inode();
    twice(cluster, make(parent, b"link", Node::Symlink { target: name(b"x") }), restart);
    twice(cluster, make(parent, b"pipe", Node::Fifo), restart);
    twice(cluster, make(parent, b"sub", Node::Directory), restart);
    twice(cluster, MetaRequest::Link { who, inode: file, parent, name: name(b"second") }, restart);
    twice(cluster, write(file, 0, 0, b"some bytes"), restart);
    let append = MetaRequest::WriteInline {
        inode: file,
        epoch: 0,
        offset: 0,
        data: name(b"more"),
        append: true,
        kill_privileges: false,
    };
    twice(cluster, append, restart);
    twice(cluster, MetaRequest::ReserveAppend { inode: file, epoch: 0, len: 7 }, restart);
    assert_eq!(cluster.attributes(0, file).attributes().size, 10 + 4 + 7);
    attributes_and_locks(cluster, file, restart);
    names_and_content(cluster, file, parent, restart);
}

fn attributes_and_locks(cluster: &mut Cluster, file: u64, restart: bool) {
    let (who, name) = (Who::ROOT, |name: &'static [u8]| Bytes(name));
    let set = MetaRequest::SetXattr {
        who,
        inode: file,
        name: name(b"user.x"),
        value: name(b"1"),
        create: true,
        replace: false,
    };
    twice(cluster, set, restart);
    twice(cluster, MetaRequest::RemoveXattr { who, inode: file, name: name(b"user.x") }, restart);
    let range = LockRange {
        kind: LockKind::Exclusive,
        whole_file: false,
        owner: 1,
        process: 1,
        start: 0,
        end: 9,
    };
    twice(cluster, MetaRequest::SetLock { inode: file, range, wait: true }, restart);
    let free = LockRange { kind: LockKind::Unlock, start: 3, end: 4, ..range };
    twice(cluster, MetaRequest::SetLock { inode: file, range: free, wait: false }, restart);
    twice(cluster, MetaRequest::ReleaseOwner { inode: file, owner: 1, whole_file: false }, restart);
}

fn names_and_content(cluster: &mut Cluster, file: u64, parent: u64, restart: bool) {
    let (who, name) = (Who::ROOT, |name: &'static [u8]| Bytes(name));
    let rename = |mode, new_name| MetaRequest::Rename {
        who,
        parent: ROOT,
        name: name(b"file"),
        new_parent: parent,
        new_name,
        mode,
        closed: 0,
    };
    twice(cluster, rename(RenameMode::Exchange, name(b"pipe")), restart);
    twice(cluster, rename(RenameMode::Replace, name(b"link")), restart);
    let open =
        MetaRequest::Open { who, inode: file, access: WRITE, truncate: true, execute: false };
    twice(cluster, open, restart);
    let grant = cluster
        .call(0, MetaRequest::Acquire { inode: file, mode: LeaseMode::Write, insist: false });
    let (version, epoch) = (grant.attributes().version, grant.grant().expect("alone").epoch);
    let written = runs(&[(0, 3)]);
    let report = report(epoch, 3 << 20, &written);
    twice(cluster, MetaRequest::LeaveInline { inode: file, version, report }, restart);
    let report = Report { epoch: epoch + 1, size: Some(4 << 20), ..report };
    twice(cluster, MetaRequest::Report { inode: file, report }, restart);
    twice(cluster, resize(file, 1 << 20), restart);
    let closed = 0;
    let sub = MetaRequest::RemoveDirectory { who, parent, name: name(b"sub"), closed };
    twice(cluster, sub, restart);
    twice(cluster, unlink(parent, b"pipe"), restart);
    twice(cluster, unlink(parent, b"second"), restart);
}

#[test]
fn every_mutating_request_has_one_effect() {
    every_mutation(false);
}

#[test]
fn every_mutating_request_has_one_effect_across_a_restart() {
    every_mutation(true);
}

#[test]
fn calls_outside_the_rules_are_refused() {
    let mut cluster = Cluster::new(1, Config::default(), 2);
    let refused = |status| Outcome::Refused(status);
    assert_eq!(cluster.send(0, 0, 0, lookup(ROOT, b"a")), refused(Status::BadSequence));
    assert!(matches!(cluster.send(0, 0, 1, create(ROOT, b"a")), Outcome::Reply(_)));
    assert!(matches!(cluster.send(0, 0, 2, create(ROOT, b"b")), Outcome::Reply(_)));
    assert_eq!(cluster.send(0, 0, 1, create(ROOT, b"a")), refused(Status::BadSequence));
    assert_eq!(cluster.send(0, 64, 1, lookup(ROOT, b"a")), refused(Status::BadSequence));
    let session = cluster.clients[0].session;
    cluster.clients[0].session += 1;
    assert_eq!(cluster.send(0, 0, 3, lookup(ROOT, b"a")), refused(Status::NoSession));
    cluster.clients[0].session = 0;
    assert_eq!(cluster.send(0, 0, 3, lookup(ROOT, b"a")), refused(Status::NoSession));
    cluster.clients[0].session = session;
    let moment = cluster.moment();
    assert!(cluster.shard().close_session(session, moment).is_some());
    assert_eq!(cluster.send(0, 0, 3, lookup(ROOT, b"a")), refused(Status::NoSession));
    // Nothing of the session is left but what it made.
    let tables: Vec<u8> = rows(&mut cluster).iter().map(|(key, _)| key[0]).collect();
    assert!(!tables.contains(&b'R') && !tables.contains(&b'S'));
}

#[test]
fn failures_are_not_stored() {
    let mut cluster = Cluster::new(1, Config::default(), 3);
    let sequence = cluster.next_sequence(0, 1);
    let Outcome::Reply(reply) = cluster.send(0, 1, sequence, unlink(ROOT, b"a")) else { panic!() };
    assert_eq!(Answer(reply.bytes).errno(), Errno::ENOENT);
    cluster.create(0, b"a");
    let Outcome::Reply(reply) = cluster.send(0, 1, sequence, unlink(ROOT, b"a")) else { panic!() };
    assert!(Answer(reply.bytes).get().is_ok());
}

#[test]
fn inode_numbers_wait_for_their_range_to_be_durable() {
    let config = Config { inode_range: 2, ..Config::default() };
    let mut cluster = Cluster::new(1, config, 4);
    let first = cluster.create(0, b"a");
    let position = cluster.shard().position();
    cluster.shard().rows_mut().hold_durable = Some(position);
    let mut waits = None;
    let mut made = vec![first];
    for name in [&b"b"[..], b"c", b"d", b"e"] {
        let sequence = cluster.next_sequence(0, 0);
        match cluster.send(0, 0, sequence, create(ROOT, name)) {
            Outcome::Reply(reply) => made.push(Answer(reply.bytes).inode()),
            outcome => {
                waits = Some(outcome);
                break;
            }
        }
    }
    let outcome = waits.expect("a range runs out before the next is durable");
    cluster.shard().rows_mut().hold_durable = None;
    let now = cluster.moment();
    cluster.shard().handle_durable(now);
    made.push(cluster.wait(outcome).inode());
    cluster.restart();
    made.push(cluster.create(0, b"z"));
    let mut unique = made.clone();
    unique.dedup();
    assert_eq!(unique, made, "numbers grow and never repeat");
}

#[test]
fn a_file_without_a_name_that_nobody_reclaimed_is_made_anew_by_a_retry() {
    let mut cluster = Cluster::new(1, Config::default(), 1);
    let cluster = &mut cluster;
    let who = Who::ROOT;
    let request = MetaRequest::Temporary { who, parent: ROOT, mode: 0o600, access: WRITE };
    let sequence = cluster.next_sequence(0, 5);
    let outcome = cluster.send(0, 5, sequence, request);
    let first = cluster.wait(outcome).inode();
    // The reply was lost with the server, so the client does not know what to reclaim.
    cluster.restart();
    assert_eq!(cluster.attributes(0, first).errno(), Errno::ESTALE);
    let outcome = cluster.send(0, 5, sequence, request);
    let second = cluster.wait(outcome).inode();
    assert_eq!(cluster.attributes(0, second).attributes().link_count, 0);
    let outcome = cluster.send(0, 5, sequence, request);
    assert_eq!(cluster.wait(outcome).inode(), second, "once");
}

#[test]
fn a_report_from_before_the_restart_waits_for_the_reclaim_of_its_lease() {
    let mut cluster = Cluster::new(1, Config::default(), 1);
    let cluster = &mut cluster;
    let file = cluster.create(0, b"file");
    let rows = cluster.shard.take().expect("the shard runs").into_rows();
    cluster.start(rows);
    let sequence = cluster.next_sequence(0, 5);
    let report = MetaRequest::Report { inode: file, report: report(0, 10, &[]) };
    let outcome = cluster.send(0, 5, sequence, report);
    assert!(matches!(outcome, Outcome::Wait(_)));
    cluster.reclaim(0);
    assert_eq!(cluster.wait(outcome).attributes().size, 10);
}
