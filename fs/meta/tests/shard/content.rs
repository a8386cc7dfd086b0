//! File content as metadata: inline bytes, leaving the inode row, reports, cuts, reaps.

use crate::common::*;
use ropewalk_meta::{Config, Outcome, Reap};
use ropewalk_wire::fs::attributes::Content;
use ropewalk_wire::fs::meta::*;
use ropewalk_wire::fs::value::{Bytes, Errno};

const MIB: u64 = 1 << 20;

fn cluster() -> Cluster {
    Cluster::new(2, Config::default(), 7)
}

/// A file of `size` bytes with its first stripes written, opened by client 0.
fn striped(cluster: &mut Cluster, name: &[u8], size: u64) -> u64 {
    let answer = cluster.call(0, create(ROOT, name));
    let (inode, version) = (answer.inode(), answer.attributes().version);
    let written = runs(&[(0, size.div_ceil(MIB) as u32)]);
    let report = report(0, size, &written);
    let answer = cluster.call(0, MetaRequest::LeaveInline { inode, version, report });
    assert_eq!(answer.grant().expect("kept").epoch, 1);
    inode
}

fn read(cluster: &mut Cluster, inode: u64) -> Vec<u8> {
    match cluster.call(0, MetaRequest::ReadInline { inode }).ok() {
        MetaReply::Inline { bytes, .. } => bytes.0.to_vec(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn inline_files_grow_to_their_limit_and_have_holes() {
    let mut cluster = cluster();
    let file = cluster.create(0, b"a");
    cluster.call(0, write(file, 0, 10, b"end")).ok();
    assert_eq!(read(&mut cluster, file), b"\0\0\0\0\0\0\0\0\0\0end");
    let answer = cluster.call(0, write(file, 0, INLINE_BYTES_MAX - 1, b"x"));
    assert!(
        matches!(answer.ok(), MetaReply::Written { offset, size, .. } if (offset, size) == (16383, 16384))
    );
    assert_eq!(cluster.call(0, write(file, 0, INLINE_BYTES_MAX, b"x")).errno(), Errno::E2BIG);
    assert_eq!(cluster.call(0, write(file, 0, u64::MAX, b"x")).errno(), Errno::EFBIG);
    assert_eq!(cluster.attributes(0, file).attributes().blocks, 32);
    // Growing by truncation takes no bytes; shrinking throws them away for good.
    cluster.call(0, resize(file, 5 * MIB)).ok();
    assert_eq!(cluster.attributes(0, file).attributes().size, 5 * MIB);
    cluster.call(0, resize(file, 12)).ok();
    cluster.call(0, resize(file, 20)).ok();
    assert_eq!(read(&mut cluster, file), b"\0\0\0\0\0\0\0\0\0\0en");
    assert_eq!(cluster.call(0, resize(file, u64::MAX)).errno(), Errno::EFBIG);
    invariants::check(cluster.shard());
}

#[test]
fn opening_a_small_file_brings_its_bytes() {
    let mut cluster = cluster();
    let file = cluster.create(0, b"a");
    cluster.call(0, write(file, 0, 0, b"hello")).ok();
    let answer = cluster.call(1, open(file, READ));
    let MetaReply::Opened { inline, content, .. } = answer.ok() else { panic!() };
    assert_eq!((inline, content), (Some(Bytes(b"hello")), Content::Inline));
}

#[test]
fn leaving_the_inode_row_is_one_step_that_stale_clients_miss() {
    let mut cluster = cluster();
    let file = cluster.create(0, b"a");
    cluster.call(0, write(file, 0, 0, b"hello")).ok();
    let version = cluster.attributes(0, file).attributes().version;
    let written = runs(&[(0, 1)]);
    let leave = |version, epoch| MetaRequest::LeaveInline {
        inode: file,
        version,
        report: report(epoch, MIB, &written),
    };
    assert_eq!(cluster.call(1, leave(version, 0)).errno(), Errno::ESTALE, "without a lease");
    assert_eq!(cluster.call(0, leave(version - 1, 0)).errno(), Errno::ESTALE);
    assert_eq!(cluster.call(0, leave(version, 1)).errno(), Errno::ESTALE);
    let after = cluster.call(0, leave(version, 0));
    assert_eq!(after.attributes().blocks, 2048);
    assert_eq!(cluster.call(0, leave(after.attributes().version, 1)).errno(), Errno::ESTALE);
    assert_eq!(cluster.call(0, write(file, 1, 0, b"x")).errno(), Errno::ESTALE);
    let answer = cluster
        .call(0, MetaRequest::Acquire { inode: file, mode: LeaseMode::Write, insist: false });
    let MetaReply::Opened { content, layout, written, .. } = answer.ok() else { panic!() };
    assert_eq!((content, written), (Content::Striped(layout), vec![(0, 1)]));
    invariants::check(cluster.shard());
}

#[test]
fn reports_need_the_epoch_and_the_lease() {
    let mut cluster = cluster();
    let file = striped(&mut cluster, b"a", 2 * MIB);
    let more = runs(&[(5, 1)]);
    let send =
        |epoch, size| MetaRequest::Report { inode: file, report: report(epoch, size, &more) };
    assert_eq!(cluster.call(0, send(0, 6 * MIB)).errno(), Errno::ESTALE);
    assert_eq!(cluster.call(1, send(1, 6 * MIB)).errno(), Errno::ESTALE);
    let attributes = cluster.call(0, send(1, 6 * MIB)).attributes();
    assert_eq!((attributes.size, attributes.blocks), (6 * MIB, 3 * 2048));
    // A smaller size is old news, never a truncation.
    assert_eq!(cluster.call(0, send(1, MIB)).attributes().size, 6 * MIB);
    let punched = runs(&[(0, 2)]);
    let report = Report { written: Bytes(&[]), punched: Bytes(&punched), ..report(1, 0, &[]) };
    let attributes = cluster.call(0, MetaRequest::Report { inode: file, report }).attributes();
    assert_eq!(attributes.blocks, 2048);
    let odd = Report { written: Bytes(&[1, 2, 3]), ..report };
    let answer = cluster.call(0, MetaRequest::Report { inode: file, report: odd });
    assert_eq!(answer.errno(), Errno::EINVAL);
}

#[test]
fn appends_reserve_their_place() {
    let mut cluster = cluster();
    let file = striped(&mut cluster, b"a", MIB);
    cluster.call(1, open(file, WRITE)).ok();
    let append = |len| MetaRequest::ReserveAppend { inode: file, epoch: 1, len };
    let mut end = MIB;
    for (client, len) in [(0, 10), (1, 20), (0, 30)] {
        let answer = cluster.call(client, append(len));
        assert!(
            matches!(answer.ok(), MetaReply::Written { offset, size, .. } if (offset, size) == (end, end + len))
        );
        end += len;
    }
    assert_eq!(cluster.call(0, append(u64::MAX)).errno(), Errno::EFBIG);
}

#[test]
fn a_cut_is_finished_before_it_is_acknowledged_also_across_a_crash() {
    let mut cluster = cluster();
    let file = striped(&mut cluster, b"a", 5 * MIB);
    cluster.hold_cuts = true;
    let sequence = cluster.next_sequence(0, 0);
    let request = resize(file, MIB + 100);
    assert!(matches!(cluster.send(0, 0, sequence, request), Outcome::Wait(_)));
    let cut = cluster.shard().poll_cut().expect("something to cut");
    assert_eq!((cut.stripe, cut.offset, cut.epoch), (2, 100, 2));
    // A client that would bring bytes back has to wait, and old writers are refused.
    let other = cluster.next_sequence(1, 0);
    assert!(matches!(cluster.send(1, 0, other, open(file, WRITE)), Outcome::Wait(_)));
    let report = MetaRequest::Report { inode: file, report: report(1, 9 * MIB, &[]) };
    assert_eq!(cluster.call(0, report).errno(), Errno::ESTALE);
    cluster.restart();
    let sequence = cluster.clients[0].sequences[&0];
    assert_eq!(cluster.shard().poll_cut(), Some(cut), "the crash forgets no cut");
    let last = cluster.next_sequence(0, 0).max(sequence);
    let outcome = cluster.send(0, 0, last, request);
    assert!(matches!(outcome, Outcome::Wait(_)));
    let now = cluster.moment();
    cluster.shard().handle_cut(cut, false, now);
    assert_eq!(cluster.shard().poll_cut(), Some(cut), "what failed is tried again");
    cluster.shard().handle_cut(cut, true, now);
    let attributes = cluster.wait(outcome).attributes();
    assert_eq!((attributes.size, attributes.blocks), (MIB + 100, 2048 + 1));
    assert_eq!(cluster.shard().poll_cut(), None);
    invariants::check(cluster.shard());
}

#[test]
fn a_file_is_cut_once_whatever_others_append_before_the_reply() {
    for crash in [false, true] {
        let mut cluster = cluster();
        let file = striped(&mut cluster, b"a", 5 * MIB);
        // Closed: the next one to write has it for itself.
        cluster.close(0, file);
        cluster.hold_cuts = true;
        // Another client waits for the lease; the holder's cut passes it.
        cluster.clients[0].silent = true;
        let opening = cluster.send(1, 5, 1, open(file, WRITE));
        assert!(matches!(opening, Outcome::Wait(_)));
        let cutting = cluster.send(0, 5, 1, resize(file, MIB));
        assert!(matches!(cutting, Outcome::Wait(_)));
        let cut = cluster.shard().poll_cut().expect("something to cut");
        cluster.clients[0].silent = false;
        let held = cluster.clients[0].grants[&file].number;
        let (opening, cutting) = if crash {
            // The open state comes back; the lease was given up before.
            cluster.clients[0].grants.remove(&file);
            cluster.restart();
            assert_eq!(cluster.shard().poll_cut(), Some(cut));
            let again = cluster.send(1, 5, 1, open(file, WRITE));
            let cutting = cluster.send(0, 5, 1, resize(file, MIB));
            (again, cutting)
        } else {
            cluster.answer_recall(0, file, held, LeaseMode::None);
            (opening, cutting)
        };
        // Slow enough to be recalled before it is done.
        cluster.clients[1].silent = true;
        let now = cluster.moment();
        cluster.shard().handle_cut(cut, true, now);
        let opened = cluster.wait(opening);
        let grant = opened.grant().expect("a lease");
        let epoch = grant.epoch;
        assert_eq!(opened.attributes().size, MIB);
        // Bytes appended behind the new end, and acknowledged, are not cut by the same call.
        let more = runs(&[(1, 1)]);
        let report = MetaRequest::Report { inode: file, report: report(epoch, 2 * MIB, &more) };
        let sequence = cluster.next_sequence(1, 1);
        let reported = cluster.send(1, 1, sequence, report);
        assert_eq!(cluster.wait(reported).attributes().size, 2 * MIB);
        cluster.clients[1].silent = false;
        cluster.answer_recall(1, file, grant.number, LeaseMode::None);
        assert_eq!(cluster.shard().poll_cut(), None, "cut twice (crash: {crash})");
        assert_eq!(cluster.wait(cutting).attributes().size, MIB, "as it was when it was cut");
        assert_eq!(cluster.attributes(0, file).attributes().size, 2 * MIB);
        invariants::check(cluster.shard());
    }
}

#[test]
fn truncation_to_nothing_and_removal_leave_objects_to_be_reaped() {
    let mut cluster = cluster();
    let small = cluster.create(0, b"small");
    cluster.call(0, write(small, 0, 0, b"x")).ok();
    let file = striped(&mut cluster, b"a", 5 * MIB);
    let attributes = cluster.call(0, resize(file, 0)).attributes();
    assert_eq!((attributes.object_generation, attributes.blocks), (1, 0));
    let first = Reap { inode: file, generation: 0, pool_version: 1 };
    assert_eq!(cluster.shard().poll_reap(), Ok(Some(first)));
    assert_eq!(cluster.shard().poll_reap(), Ok(None));
    let big = striped(&mut cluster, b"b", MIB);
    for name in [&b"small"[..], b"b"] {
        cluster.call(0, unlink(ROOT, name)).ok();
    }
    cluster.close(0, small);
    let grant = cluster.clients[0].grants[&big];
    let (number, keep, open) = (grant.number, LeaseMode::None, None);
    cluster.call(0, MetaRequest::Release { inode: big, number, keep, open }).ok();
    let second = Reap { inode: big, generation: 0, pool_version: 1 };
    assert_eq!(cluster.shard().poll_reap(), Ok(Some(second)), "and the small file needs none");
    cluster.shard().handle_reaped(second, true);
    cluster.shard().handle_reaped(first, false);
    assert_eq!(cluster.shard().poll_reap(), Ok(Some(first)));
    cluster.restart();
    assert_eq!(cluster.shard().poll_reap(), Ok(Some(first)));
    cluster.shard().handle_reaped(first, true);
    assert_eq!(cluster.shard().poll_reap(), Ok(None));
}

#[test]
fn privileges_fall_with_writes_and_gifts() {
    let mut cluster = cluster();
    let file = cluster.create(0, b"a");
    let mode = |mode| AttributeChange { mode: Some(mode), ..AttributeChange::default() };
    let set = |change| MetaRequest::SetAttributes { who: Who::ROOT, inode: file, change };
    let xattr = MetaRequest::SetXattr {
        who: Who::ROOT,
        inode: file,
        name: Bytes(b"security.capability"),
        value: Bytes(b"cap"),
        create: false,
        replace: false,
    };
    let kill = AttributeChange { kill_privileges: true, ..AttributeChange::default() };
    let owner = AttributeChange { user: Some(0), ..AttributeChange::default() };
    for change in [kill, owner] {
        cluster.call(0, set(mode(0o6755))).ok();
        cluster.call(0, xattr).ok();
        assert_eq!(cluster.call(0, set(change)).attributes().mode, 0o755);
        let get = MetaRequest::GetXattr {
            who: Who::ROOT,
            inode: file,
            name: Bytes(b"security.capability"),
        };
        assert_eq!(cluster.call(0, get).errno(), Errno::ENODATA);
        invariants::check(cluster.shard());
    }
}
