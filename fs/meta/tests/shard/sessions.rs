//! Several sessions: leases and recalls between them, opens of removed files, sessions that die,
//! restarts with their grace period.

use crate::common::*;
use ropewalk_meta::identity::{Identity, Limit};
use ropewalk_meta::sessions::SessionOwner;
use ropewalk_meta::{Admission, Call, Config, Outcome};
use ropewalk_wire::fs::attributes::InodeKind;
use ropewalk_wire::fs::head::Status;
use ropewalk_wire::fs::meta::*;
use ropewalk_wire::fs::value::{Bytes, Errno};

const SECOND: u64 = 1_000_000_000;

fn cluster(clients: usize) -> Cluster {
    Cluster::new(clients, Config::default(), 7)
}

fn exists(cluster: &mut Cluster, inode: u64) -> bool {
    cluster.attributes(0, inode).get().is_ok()
}

#[test]
fn one_request_creates_opens_and_grants() {
    let mut cluster = cluster(2);
    let answer = cluster.call(0, create(ROOT, b"a"));
    let MetaReply::Opened { entry, created, .. } = answer.ok() else { panic!() };
    assert!(created && entry.attributes.kind == InodeKind::File);
    assert_eq!(entry.grant.expect("nobody else knows it").mode, LeaseMode::Write);
    assert!(cluster.heard.is_empty());
}

#[test]
fn changes_of_a_directory_recall_it_before_they_are_acknowledged() {
    let mut cluster = cluster(2);
    let root = MetaRequest::GetAttributes { inode: ROOT };
    assert_eq!(cluster.call(1, root).grant().expect("quiet").mode, LeaseMode::Read);
    let missing = cluster.call(1, lookup(ROOT, b"a"));
    assert_eq!(missing.ok(), MetaReply::Missing { cached: true });
    let sequence = cluster.next_sequence(0, 0);
    let outcome = cluster.send(0, 0, sequence, create(ROOT, b"a"));
    assert!(matches!(outcome, Outcome::Wait(_)), "the reader has not answered");
    // A retry meanwhile waits for the same thing.
    assert_eq!(cluster.send(0, 0, sequence, create(ROOT, b"a")), outcome);
    let made = cluster.wait(outcome).inode();
    assert_eq!(cluster.heard.len(), 1);
    assert!(matches!(cluster.heard[0], (1, Callback::Recall { inode: ROOT, .. })));
    assert_eq!(cluster.call(1, lookup(ROOT, b"a")).inode(), made);
    // While it is contended nobody caches it, so the next change waits for nobody.
    assert!(cluster.call(1, root).grant().is_none());
    cluster.create(0, b"b");
    assert_eq!(cluster.heard.iter().filter(|(client, _)| *client == 1).count(), 1);
    cluster.pass(SECOND);
    assert!(cluster.call(1, root).grant().is_some());
}

#[test]
fn a_reader_sees_what_a_writer_reported_on_recall() {
    let mut cluster = cluster(2);
    let file = cluster.create(0, b"a");
    let sequence = cluster.next_sequence(1, 0);
    let outcome = cluster.send(1, 0, sequence, MetaRequest::GetAttributes { inode: file });
    let Outcome::Wait(_) = outcome else { panic!("the writer owns the size") };
    let (session, recall) = cluster.shard().poll_callback().expect("a recall");
    assert_eq!(session, cluster.clients[0].session);
    let Callback::Recall { number, keep, .. } = recall else { panic!() };
    assert_eq!(keep, LeaseMode::Read);
    let report = MetaRequest::Report { inode: file, report: report(0, 12345, &[]) };
    cluster.call(0, report).ok();
    let release = MetaRequest::Release { inode: file, number, keep, open: Some(WRITE) };
    assert_eq!(cluster.call(0, release).grant().expect("kept").mode, LeaseMode::Read);
    assert_eq!(cluster.wait(outcome).attributes().size, 12345);
}

#[test]
fn whoever_waits_for_a_lease_goes_on_when_its_holder_removes_the_file() {
    for replace in [false, true] {
        let mut cluster = cluster(2);
        let file = cluster.create(0, b"a");
        let other = cluster.create(0, b"b");
        cluster.clients[0].silent = true;
        let outcome = cluster.send(1, 0, 1, lookup(ROOT, b"a"));
        assert!(matches!(outcome, Outcome::Wait(_)), "the writer owns the size");
        // The holder knows of no recall yet. It gives the inode up with its last name, so no release follows.
        let who = Who::ROOT;
        let (parent, name, new_name, closed) = (ROOT, Bytes(b"b"), Bytes(b"a"), file);
        let (new_parent, mode) = (ROOT, RenameMode::Replace);
        let request = match replace {
            false => MetaRequest::Unlink { who, parent, name: new_name, closed },
            true => MetaRequest::Rename { who, parent, name, new_parent, new_name, mode, closed },
        };
        cluster.call(0, request).ok();
        cluster.clients[0].silent = false;
        let found = cluster.wait(outcome);
        match replace {
            false => assert!(matches!(found.ok(), MetaReply::Missing { .. })),
            true => assert_eq!(found.inode(), other),
        }
    }
}

#[test]
fn writers_share_and_appends_lose_nothing() {
    let mut cluster = cluster(2);
    let file = cluster.create(0, b"a");
    let grant = cluster.call(1, open(file, WRITE)).grant().expect("in use");
    assert_eq!(grant.mode, LeaseMode::Shared);
    let first = cluster.clients[0].session;
    assert_eq!(cluster.shard().leases().mode(file, first), LeaseMode::Shared);
    let append = |data| MetaRequest::WriteInline {
        inode: file,
        epoch: 0,
        offset: 0,
        data: Bytes(data),
        append: true,
        kill_privileges: false,
    };
    for round in 0..10 {
        let (client, data) = if round % 2 == 0 { (0, b"even.") } else { (1, b"odd..") };
        cluster.call(client, append(data)).ok();
    }
    let answer = cluster.call(0, MetaRequest::ReadInline { inode: file });
    let MetaReply::Inline { bytes, .. } = answer.ok() else { panic!("no bytes") };
    assert_eq!(bytes, Bytes(&b"even.odd..".repeat(5)));
    // When the other has closed it, the one that is left can be alone again.
    cluster.close(1, file);
    let acquire = MetaRequest::Acquire { inode: file, mode: LeaseMode::Write, insist: false };
    assert_eq!(cluster.call(0, acquire).grant().expect("alone").mode, LeaseMode::Write);
}

#[test]
fn a_removed_file_lives_as_long_as_somebody_has_it_open() {
    let mut cluster = cluster(3);
    let file = cluster.create(0, b"a");
    cluster.call(1, open(file, READ)).ok();
    cluster.call(2, unlink(ROOT, b"a")).ok();
    assert_eq!(cluster.attributes(1, file).attributes().link_count, 0);
    cluster.restart();
    assert!(exists(&mut cluster, file), "opens are reclaimed");
    cluster.close(0, file);
    assert!(exists(&mut cluster, file));
    cluster.close(1, file);
    assert!(!exists(&mut cluster, file));
    invariants::check(cluster.shard());
}

#[test]
fn what_another_session_was_just_told_of_is_kept_for_a_moment_after_its_removal() {
    let mut cluster = cluster(2);
    let tick = |cluster: &mut Cluster, seconds: u64| {
        cluster.pass(seconds * SECOND);
        let now = cluster.moment();
        cluster.shard().tick(now);
        invariants::check(cluster.shard());
    };
    let remove = |name, closed| MetaRequest::Unlink {
        who: Who::ROOT,
        parent: ROOT,
        name: Bytes(name),
        closed,
    };
    let file = cluster.create(0, b"a");
    cluster.close(0, file);
    cluster.call(1, lookup(ROOT, b"a")).ok();
    cluster.call(0, remove(b"a", file)).ok();
    assert_eq!(cluster.attributes(1, file).attributes().link_count, 0);
    tick(&mut cluster, 1);
    // Its kernel comes late, and then has it open.
    cluster.call(1, open(file, READ)).ok();
    tick(&mut cluster, 2);
    assert!(exists(&mut cluster, file));
    // With the last use goes the lease, too.
    cluster.clients[1].grants.clear();
    cluster.close(1, file);
    assert!(!exists(&mut cluster, file));
    // Nobody comes for this one.
    let link = cluster.call(0, make(ROOT, b"l", Node::symlink(b"to"))).inode();
    cluster.call(1, lookup(ROOT, b"l")).ok();
    cluster.call(0, remove(b"l", link)).ok();
    assert!(cluster.call(1, MetaRequest::ReadLink { inode: link }).get().is_ok());
    tick(&mut cluster, 2);
    assert!(!exists(&mut cluster, link));
    // A directory is empty, and was removed, for who still has it.
    let directory = cluster.call(0, make(ROOT, b"d", Node::Directory)).inode();
    cluster.call(1, lookup(ROOT, b"d")).ok();
    let (who, name) = (Who::ROOT, Bytes(b"d"));
    let request = MetaRequest::RemoveDirectory { who, parent: ROOT, name, closed: directory };
    cluster.call(0, request).ok();
    assert_eq!(cluster.call(1, lookup(directory, b"x")).ok(), MetaReply::Missing { cached: false });
    assert_eq!(cluster.call(1, create(directory, b"x")).errno(), Errno::ENOENT);
    // A restart keeps nothing that nobody uses.
    cluster.restart();
    assert!(!exists(&mut cluster, directory));
    // A file that nobody else knows goes at once.
    let file = cluster.create(0, b"b");
    cluster.close(0, file);
    cluster.call(0, remove(b"b", file)).ok();
    assert!(!exists(&mut cluster, file));
    invariants::check(cluster.shard());
}

#[test]
fn an_orphan_that_nobody_reclaims_is_destroyed() {
    let mut cluster = cluster(2);
    let file = cluster.create(0, b"a");
    cluster.call(1, unlink(ROOT, b"a")).ok();
    assert!(exists(&mut cluster, file));
    cluster.clients[0].open.clear();
    cluster.clients[0].grants.clear();
    cluster.restart();
    assert!(!exists(&mut cluster, file));
    invariants::check(cluster.shard());
}

#[test]
fn a_silent_session_is_fenced_before_others_get_what_it_held() {
    let mut cluster = cluster(2);
    let file = cluster.create(0, b"a");
    let range = LockRange {
        kind: LockKind::Exclusive,
        whole_file: true,
        owner: 5,
        process: 1,
        start: 0,
        end: u64::MAX,
    };
    cluster.call(0, MetaRequest::SetLock { inode: file, range, wait: false }).ok();
    let wait = MetaRequest::SetLock { inode: file, range, wait: true };
    assert_eq!(cluster.call(1, wait).ok(), MetaReply::Queued);
    cluster.clients[0].silent = true;
    let sequence = cluster.next_sequence(1, 0);
    let outcome = cluster.send(1, 0, sequence, open(file, WRITE));
    assert!(matches!(outcome, Outcome::Wait(_)));
    cluster.pump();
    // It lives and calls, but it does not answer: the time of the recall counts.
    for _ in 0..11 {
        cluster.pass(SECOND);
        let now = cluster.moment();
        for client in 0..2 {
            let session = cluster.clients[client].session;
            cluster.shard().renew_session(session, now);
        }
        cluster.shard().tick(now);
    }
    let dead = cluster.clients[0].session;
    assert_eq!(cluster.shard().poll_fence(), Some((dead, 2)));
    let sequence = cluster.next_sequence(0, 0);
    let call = cluster.send(0, 0, sequence, lookup(ROOT, b"a"));
    assert_eq!(call, Outcome::Refused(Status::Fenced));
    cluster.pump();
    assert!(cluster.completed.is_empty(), "the fence is not up yet");
    assert!(!cluster.heard.iter().any(|(_, call)| matches!(call, Callback::LockGranted { .. })));
    let now = cluster.moment();
    cluster.shard().handle_fenced(dead, now);
    let answer = cluster.wait(outcome);
    assert_eq!(answer.grant().expect("alone").mode, LeaseMode::Write);
    assert_eq!(answer.attributes().object_generation, 1, "stripes that nobody knows are avoided");
    let granted = Callback::LockGranted { inode: file, owner: 5, start: 0 };
    assert!(cluster.heard.contains(&(1, granted)));
    let sequence = cluster.next_sequence(0, 0);
    let call = cluster.send(0, 0, sequence, lookup(ROOT, b"a"));
    assert_eq!(call, Outcome::Refused(Status::NoSession));
    invariants::check(cluster.shard());
}

#[test]
fn after_a_restart_nothing_is_given_away_before_all_have_reclaimed() {
    let mut cluster = cluster(2);
    let file = cluster.create(0, b"a");
    cluster.clients[0].silent = true;
    cluster.restart();
    let sequence = cluster.next_sequence(1, 0);
    let outcome = cluster.send(1, 0, sequence, open(file, WRITE));
    cluster.pump();
    assert!(cluster.shard().is_in_grace() && cluster.completed.is_empty());
    // A caller without a session, and so without slots that bound its calls, does not wait here.
    let (waiting, now) = (cluster.shard().waiting(), cluster.moment());
    let request = MetaRequest::GetPath { inode: file };
    let stranger = Call { session: 0, slot: 0, sequence: 0, request, now };
    assert_eq!(cluster.shard().execute(stranger), Outcome::Refused(Status::Unavailable));
    assert_eq!(cluster.shard().waiting(), waiting);
    cluster.clients[0].silent = false;
    cluster.reclaim(0);
    assert!(!cluster.shard().is_in_grace());
    assert_eq!(cluster.wait(outcome).grant().expect("granted").mode, LeaseMode::Shared);
    // The same once more, and the other never comes back.
    cluster.clients[0].silent = true;
    cluster.restart();
    let sequence = cluster.next_sequence(1, 0);
    let outcome = cluster.send(1, 0, sequence, MetaRequest::GetAttributes { inode: file });
    cluster.pass(11 * SECOND);
    let (now, session) = (cluster.moment(), cluster.clients[1].session);
    cluster.shard().renew_session(session, now);
    cluster.shard().tick(now);
    let fence = cluster.shard().poll_fence().expect("it did not reclaim");
    assert_eq!(fence.0, cluster.clients[0].session);
    // A crash before the fence is up: it is asked for again.
    cluster.restart();
    assert_eq!(cluster.shard().poll_fence(), Some(fence));
    assert!(cluster.shard().is_in_grace());
    let now = cluster.moment();
    cluster.shard().handle_fenced(fence.0, now);
    assert!(!cluster.shard().is_in_grace());
    let sequence = cluster.clients[1].sequences[&0];
    let request = MetaRequest::GetAttributes { inode: file };
    let again = cluster.send(1, 0, sequence, request);
    assert_ne!(again, outcome);
    let again = match again {
        Outcome::Refused(Status::BadSequence) => panic!("the last number is still good"),
        again => cluster.wait(again),
    };
    assert_eq!(again.inode(), file);
}

#[test]
fn locks_survive_a_restart_and_exclude_across_sessions() {
    let mut cluster = cluster(2);
    let file = cluster.create(0, b"a");
    let range =
        |kind, start, end| LockRange { kind, whole_file: false, owner: 1, process: 77, start, end };
    let set = |kind, start, end| MetaRequest::SetLock {
        inode: file,
        range: range(kind, start, end),
        wait: false,
    };
    cluster.call(0, set(LockKind::Exclusive, 10, 19)).ok();
    cluster.restart();
    assert_eq!(cluster.call(1, set(LockKind::Shared, 0, 10)).errno(), Errno::EAGAIN);
    cluster.call(1, set(LockKind::Shared, 0, 9)).ok();
    let test = MetaRequest::TestLock { inode: file, range: range(LockKind::Shared, 0, u64::MAX) };
    let conflict = Some(range(LockKind::Exclusive, 10, 19));
    assert_eq!(cluster.call(1, test).ok(), MetaReply::Lock { conflict });
    cluster.call(0, set(LockKind::Unlock, 0, u64::MAX)).ok();
    assert_eq!(cluster.call(1, test).ok(), MetaReply::Lock { conflict: None });
    assert_eq!(cluster.call(1, set(LockKind::Shared, 9, 3)).errno(), Errno::EINVAL);
}

#[test]
fn a_clients_name_outlives_the_server_and_steers_no_terminal() {
    let mut cluster = cluster(1);
    let now = cluster.moment();
    let long = [b"mount \x1b[2Jof node1".as_slice(), &[b'x'; 200]].concat();
    let opening = cluster
        .shard()
        .open_named_session((77, &long), SessionOwner::default(), now)
        .expect("rows in memory");
    let named = |cluster: &mut Cluster| {
        cluster.shard().client_name(opening.session).map(<[u8]>::to_vec).expect("it is open")
    };
    let before = named(&mut cluster);
    let expected = b"mount \\x1b[2Jof node1xxx";
    assert!(before.starts_with(expected) && before.len() == 64, "{before:?}");
    cluster.restart();
    assert_eq!(named(&mut cluster), before);
}

#[test]
fn a_client_that_comes_back_ends_its_old_session() {
    let mut cluster = cluster(1);
    let file = cluster.create(0, b"a");
    let old = cluster.clients[0].session;
    let now = cluster.moment();
    let opening =
        cluster.shard().open_session(1, SessionOwner::default(), now).expect("rows in memory");
    assert_ne!(opening.session, old);
    assert_eq!(cluster.shard().poll_fence(), Some((old, 2)));
    cluster.shard().handle_fenced(old, now);
    assert!(!cluster.shard().leases().is_used(file));
}

#[test]
fn a_full_disk_refuses_changes_and_forgets_nothing() {
    let mut cluster = cluster(2);
    let file = cluster.create(0, b"a");
    let other = cluster.create(0, b"b");
    cluster.call(1, unlink(ROOT, b"a")).ok();
    let now = cluster.moment();
    cluster.shard().set_admission(Admission::Nothing, now);
    assert_eq!(cluster.call(0, create(ROOT, b"c")).errno(), Errno::ENOSPC);
    assert_eq!(cluster.call(0, unlink(ROOT, b"b")).errno(), Errno::ENOSPC);
    assert_eq!(cluster.call(1, lookup(ROOT, b"b")).inode(), other);
    cluster.close(0, file);
    let session = cluster.clients[1].session;
    assert_eq!(cluster.shard().close_session(session, now), None);
    assert!(exists(&mut cluster, file), "its end needs room");
    cluster.shard().set_admission(Admission::All, now);
    assert!(!exists(&mut cluster, file));
    cluster.call(0, create(ROOT, b"c")).ok();
    invariants::check(cluster.shard());
}

#[test]
fn a_fence_that_a_silent_data_server_missed_is_remembered_until_it_is_paid() {
    let mut cluster = cluster(2);
    let dead = cluster.clients[0].session;
    // One that was never used leaves nothing to be fenced.
    cluster.create(0, b"a");
    cluster.clients[0].silent = true;
    cluster.pass(11 * SECOND);
    let (now, living) = (cluster.moment(), cluster.clients[1].session);
    assert!(cluster.shard().renew_session(living, now));
    cluster.shard().tick(now);
    let (session, epoch) = cluster.shard().poll_fence().expect("its term is over");
    assert_eq!(session, dead);
    cluster.shard().owe_fence(&[3, 8], session, epoch);
    cluster.shard().handle_fenced(session, now);
    // The session is gone, and so is this life of the server.
    cluster.clients.remove(0);
    cluster.restart();
    assert_eq!(cluster.shard().poll_fence(), None);
    // Servers that join later are to be told, too.
    let later = (u32::MAX, dead, 2);
    assert_eq!(cluster.shard().fences_owed(), Ok(vec![(3, dead, 2), (8, dead, 2), later]));
    cluster.shard().handle_fence_paid(8, dead);
    cluster.shard().handle_fence_paid(9, dead);
    assert_eq!(cluster.shard().fences_owed(), Ok(vec![(3, dead, 2), later]));
    cluster.restart();
    assert_eq!(cluster.shard().fences_owed(), Ok(vec![(3, dead, 2), later]));
}

#[test]
fn a_session_that_was_never_used_ends_without_a_fence() {
    let mut cluster = cluster(2);
    let unused = cluster.clients[0].session;
    cluster.clients[0].silent = true;
    cluster.pass(11 * SECOND);
    let (now, living) = (cluster.moment(), cluster.clients[1].session);
    assert!(cluster.shard().renew_session(living, now));
    cluster.shard().tick(now);
    assert_eq!(cluster.shard().poll_fence(), None);
    assert_eq!(cluster.shard().poll_ended(), Some(unused));
    assert!(!cluster.shard().renew_session(unused, now));
}

#[test]
fn one_endpoint_and_one_user_have_a_bounded_number_of_sessions_and_idle_ones_make_room() {
    let config = Config {
        sessions_max: 6,
        sessions_of_endpoint_max: 2,
        sessions_of_user_max: 3,
        ..Config::default()
    };
    let mut cluster = Cluster::new(1, config, 7);
    cluster.create(0, b"held");
    let now = cluster.moment();
    let owner = |endpoint, user: Option<u32>| SessionOwner {
        endpoint,
        incarnation: 1,
        identity: user
            .map_or(Identity::Unproven, |user| Identity::User(Limit { user, groups: vec![user] })),
        export: 0,
    };
    let mut client = 10;
    let mut open = |cluster: &mut Cluster, owner: SessionOwner| {
        client += 1;
        cluster.shard().make_room(&owner, now)?;
        let opened = cluster.shard().open_session(client, owner, now);
        Ok(opened.expect("rows in memory").session)
    };
    let first = open(&mut cluster, owner(1, None));
    assert!(first.is_ok() && open(&mut cluster, owner(1, None)).is_ok());
    assert_eq!(open(&mut cluster, owner(1, None)), Err(Errno::EUSERS), "of one endpoint");
    let his: Vec<u64> = (2..5).map(|it| open(&mut cluster, owner(it, Some(7))).unwrap()).collect();
    assert_eq!(open(&mut cluster, owner(5, Some(7))), Err(Errno::EUSERS), "of one user");
    // Six are all; one of those that were never used goes, a plain user's first.
    assert!(open(&mut cluster, owner(6, None)).is_ok());
    let ended = cluster.shard().poll_ended().expect("one had to go");
    assert!(his.contains(&ended));
    let holder = cluster.clients[0].session;
    assert!(cluster.shard().renew_session(holder, now), "what is used stays");
}

/// The limits of a session with few places, beside one that takes all it gets.
fn narrow() -> Config {
    Config {
        sessions_max: 4,
        leases_max: 4,
        opens_max: 7,
        opens_in_all_max: 12,
        locks_max: 5,
        locks_in_all_max: 8,
        ..Config::default()
    }
}

/// Files that a client made and closed without keeping a lease.
fn closed_files(cluster: &mut Cluster, count: u8) -> Vec<u64> {
    let files: Vec<u64> = (0..count).map(|name| cluster.create(0, &[b'a' + name])).collect();
    for file in &files {
        let (number, keep) = (u64::MAX, LeaseMode::None);
        cluster.call(0, MetaRequest::Release { inode: *file, number, keep, open: None }).ok();
    }
    let root =
        MetaRequest::Release { inode: ROOT, number: u64::MAX, keep: LeaseMode::None, open: None };
    cluster.call(0, root).ok();
    cluster.clients[0].open.clear();
    cluster.clients[0].grants.clear();
    files
}

#[test]
fn open_files_are_bounded_and_everybody_has_a_share() {
    let mut cluster = cluster(4);
    let files = closed_files(&mut cluster, 20);
    cluster.config = narrow();
    cluster.restart();
    let count = |cluster: &mut Cluster, client: usize| {
        let session = cluster.clients[client].session;
        cluster.shard().leases().count(session)
    };
    let open_all = |cluster: &mut Cluster, client| {
        let opened =
            files.iter().take_while(|file| cluster.call(client, open(**file, READ)).get().is_ok());
        opened.count()
    };
    assert_eq!(open_all(&mut cluster, 0), 7);
    let parent = ROOT;
    let temporary = MetaRequest::Temporary { who: Who::ROOT, parent, mode: 0o600, access: WRITE };
    let acquire = |mode| MetaRequest::Acquire { inode: files[19], mode, insist: true };
    for request in [
        open(files[19], WRITE),
        open(ROOT, READ),
        create(ROOT, b"new"),
        temporary,
        acquire(LeaseMode::Read),
        acquire(LeaseMode::Write),
    ] {
        assert_eq!(cluster.call(0, request).errno(), Errno::ENFILE, "{request:?}");
    }
    // It is as it was otherwise: open files are used, requests that need no place are served.
    cluster.call(0, open(files[0], WRITE)).ok();
    cluster.call(0, MetaRequest::GetAttributes { inode: files[19] }).ok();
    cluster.call(0, lookup(ROOT, b"new")).ok();
    assert_eq!(count(&mut cluster, 0), 7);
    // The others have what is left, and then their share, which is what there is for each.
    assert_eq!(open_all(&mut cluster, 1), 5);
    assert_eq!(open_all(&mut cluster, 2), 3);
    assert_eq!(open_all(&mut cluster, 3), 3);
    assert_eq!(cluster.call(2, create(ROOT, b"new")).errno(), Errno::ENFILE);
    // A restart takes nothing away from anybody.
    cluster.restart();
    assert_eq!([0, 1, 2, 3].map(|client| count(&mut cluster, client)), [7, 5, 3, 3]);
    for client in 0..4 {
        assert!(cluster.clients[client].open.len() >= 3, "client {client}");
    }
    // Files that are closed make room.
    for file in &files[..3] {
        cluster.close(0, *file);
    }
    let (number, keep) = (u64::MAX, LeaseMode::None);
    for inode in files[..3].iter().copied() {
        cluster.call(0, MetaRequest::Release { inode, number, keep, open: None });
    }
    assert_eq!(cluster.call(0, create(ROOT, b"new")).errno(), Errno::ENFILE, "all have too many");
    for file in &files[..5] {
        for client in 1..3 {
            cluster.call(client, MetaRequest::Release { inode: *file, number, keep, open: None });
        }
    }
    cluster.call(0, create(ROOT, b"new")).ok();
    invariants::check(cluster.shard());
}

#[test]
fn what_is_only_cached_leaves_room_for_what_is_opened() {
    let mut cluster = cluster(2);
    let files = closed_files(&mut cluster, 20);
    cluster.config = Config { leases_max: 100, opens_max: 100, ..narrow() };
    cluster.restart();
    for file in &files {
        cluster.call(0, MetaRequest::GetAttributes { inode: *file }).ok();
    }
    let cached = cluster.clients[0].grants.len();
    assert_eq!(cached, 6, "half of all");
    for file in &files[10..16] {
        cluster.call(1, open(*file, READ)).ok();
    }
}

#[test]
fn locks_over_many_files_are_bounded_also_by_unlocking() {
    let mut cluster = cluster(2);
    let files = closed_files(&mut cluster, 9);
    cluster.config = narrow();
    cluster.restart();
    let range =
        |kind, start, end| LockRange { kind, whole_file: false, owner: 1, process: 1, start, end };
    let request = |inode, range| MetaRequest::SetLock { inode, range, wait: false };
    let whole = range(LockKind::Exclusive, 0, u64::MAX);
    for file in &files[..5] {
        cluster.call(0, request(*file, whole)).ok();
    }
    assert_eq!(cluster.call(0, request(files[5], whole)).errno(), Errno::ENOLCK);
    let piece = range(LockKind::Unlock, 5, 9);
    assert_eq!(cluster.call(0, request(files[0], piece)).errno(), Errno::ENOLCK);
    for file in &files[6..] {
        cluster.call(1, request(*file, whole)).ok();
    }
    assert_eq!(cluster.call(1, request(files[5], whole)).errno(), Errno::ENOLCK);
    cluster.restart();
    assert_eq!(cluster.call(0, request(files[5], whole)).errno(), Errno::ENOLCK);
    let tail = range(LockKind::Unlock, 5, u64::MAX);
    cluster.call(0, request(files[0], tail)).ok();
    cluster.call(0, request(files[1], range(LockKind::Unlock, 0, u64::MAX))).ok();
    cluster.call(1, request(files[5], whole)).ok();
    // A session that ends leaves nothing behind.
    let (session, now) = (cluster.clients[0].session, cluster.moment());
    cluster.shard().close_session(session, now).unwrap();
    assert_eq!(cluster.shard().locks().check(), Ok(()));
    for file in &files[..4] {
        assert!(cluster.shard().locks().held(*file).is_empty());
    }
    invariants::check(cluster.shard());
}
