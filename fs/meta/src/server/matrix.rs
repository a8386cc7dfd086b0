//! The matrix of all requests: the ids that each carries, and what it demands of its session. A row for each kind.

use std::collections::BTreeSet;

use ropewalk_wire::fs::exports::ExportOrder;
use ropewalk_wire::fs::meta::*;
use ropewalk_wire::fs::orders::ServerOrder;
use ropewalk_wire::fs::status::Room;
use ropewalk_wire::fs::upgrade::{Telling, UpgradeOrder};
use ropewalk_wire::fs::value::{Bytes, Errno, Timestamp};

use super::counters::{KINDS, SESSION_KINDS, kind};
use crate::demands::{Asks, asks};
use crate::exports::{Export, IdRange, Rights, Squash};
use crate::identity::Standing;

const READ: Access = Access { read: true, write: false };
const WRITE: Access = Access { read: false, write: true };
const NAME: Bytes<'static> = Bytes(b"name");
const NONE: Bytes<'static> = Bytes(&[]);
const FILE: u64 = 9;

/// The ids in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Says {
    Nothing,
    Who,
    /// Beside `who`: the ids that `chown` gives.
    WhoAndOwner,
}
use Says::{Nothing, Who as Caller, WhoAndOwner};

/// The answer to it under an export that is read only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum There {
    Served,
    Refused,
}
use There::{Refused, Served};

type Row = (MetaRequest<'static>, Says, There, Asks);

fn content(access: Access) -> Asks {
    Asks::Content(FILE, access)
}

/// Requests that name their caller.
fn on_behalf() -> Vec<Row> {
    use MetaRequest as M;
    let (who, parent, name, inode, closed) = (Who::ROOT, ROOT, NAME, FILE, 0);
    let node = Node::File;
    let create = |access| M::Create {
        who,
        parent,
        name,
        mode: 0o644,
        access,
        exclusive: false,
        truncate: false,
    };
    let open = |access, truncate| M::Open { who, inode, access, truncate, execute: false };
    let rename = M::Rename {
        who,
        parent,
        name,
        new_parent: ROOT,
        new_name: NAME,
        mode: RenameMode::Replace,
        closed,
    };
    let set_xattr = M::SetXattr { who, inode, name, value: NONE, create: false, replace: false };
    let list = |attributes| M::ReadDirectory { who, inode, cookie: 0, bytes_max: 0, attributes };
    let change = AttributeChange { user: Some(1), group: Some(2), ..AttributeChange::default() };
    let cut = AttributeChange { size: Some(0), through_handle: true, ..change };
    let temporary = M::Temporary { who, parent, mode: 0o600, access: WRITE };
    vec![
        (M::Lookup { who, parent, name }, Caller, Served, Asks::Nothing),
        (M::SetAttributes { who, inode, change }, WhoAndOwner, Refused, Asks::Nothing),
        (M::SetAttributes { who, inode, change: cut }, WhoAndOwner, Refused, content(WRITE)),
        (create(READ), Caller, Refused, Asks::Nothing),
        (temporary, Caller, Refused, Asks::Nothing),
        (M::Make { who, parent, name, mode: 0, node }, Caller, Refused, Asks::Nothing),
        (open(READ, false), Caller, Served, Asks::Nothing),
        (open(WRITE, false), Caller, Refused, Asks::Nothing),
        (open(READ, true), Caller, Refused, Asks::Nothing),
        (M::Unlink { who, parent, name, closed }, Caller, Refused, Asks::Nothing),
        (M::RemoveDirectory { who, parent, name, closed }, Caller, Refused, Asks::Nothing),
        (rename, Caller, Refused, Asks::Nothing),
        (M::Link { who, inode, parent, name }, Caller, Refused, Asks::Nothing),
        (list(true), Caller, Served, Asks::Nothing),
        (M::GetXattr { who, inode, name }, Caller, Served, Asks::Nothing),
        (M::ListXattr { who, inode }, Caller, Served, Asks::Nothing),
        (set_xattr, Caller, Refused, Asks::Nothing),
        (M::RemoveXattr { who, inode, name }, Caller, Refused, Asks::Nothing),
    ]
}

/// Requests of a session about a file, without a word of a caller.
fn about_files() -> Vec<Row> {
    use LeaseMode as L;
    use MetaRequest as M;
    let (inode, number, epoch) = (FILE, 1, 1);
    let quiet = Report {
        epoch,
        size: None,
        modified: None,
        accessed: Some(Timestamp::default()),
        written: NONE,
        punched: NONE,
    };
    let wrote = Report { size: Some(1), ..quiet };
    let acquire = |mode| M::Acquire { inode, mode, insist: false };
    let reclaim = |mode, open| M::Reclaim { inode, mode, open };
    let release = |open| M::Release { inode, number, keep: L::None, open };
    let kind = LockKind::Shared;
    let range = LockRange { kind, whole_file: true, owner: 1, process: 1, start: 0, end: 9 };
    let write = M::WriteInline {
        inode,
        epoch,
        offset: 0,
        data: NAME,
        append: false,
        kill_privileges: true,
    };
    let both = Access { read: true, write: true };
    vec![
        (M::GetAttributes { inode }, Nothing, Served, Asks::Nothing),
        (M::ReadLink { inode }, Nothing, Served, Asks::Nothing),
        (acquire(L::Read), Nothing, Served, content(READ)),
        (acquire(L::Shared), Nothing, Refused, content(WRITE)),
        (acquire(L::Write), Nothing, Refused, content(WRITE)),
        (reclaim(L::Read, Some(READ)), Nothing, Served, content(READ)),
        (reclaim(L::Shared, Some(READ)), Nothing, Served, content(READ)),
        (reclaim(L::None, Some(WRITE)), Nothing, Refused, content(WRITE)),
        (reclaim(L::Write, Some(READ)), Nothing, Refused, content(both)),
        (M::ReclaimDone, Nothing, Served, Asks::Nothing),
        (release(None), Nothing, Served, Asks::Nothing),
        (release(Some(READ)), Nothing, Served, Asks::More(FILE, READ)),
        (release(Some(WRITE)), Nothing, Refused, Asks::More(FILE, WRITE)),
        (M::Report { inode, report: quiet }, Nothing, Served, Asks::Either(FILE)),
        (M::Report { inode, report: wrote }, Nothing, Refused, content(WRITE)),
        (M::RenewEpoch { inode }, Nothing, Refused, content(WRITE)),
        (M::ReadInline { inode }, Nothing, Served, content(READ)),
        (write, Nothing, Refused, content(WRITE)),
        (M::LeaveInline { inode, version: 1, report: wrote }, Nothing, Refused, content(WRITE)),
        (M::ReserveAppend { inode, epoch, len: 1 }, Nothing, Refused, content(WRITE)),
        (M::SetLock { inode, range, wait: true }, Nothing, Served, Asks::Either(FILE)),
        (M::TestLock { inode, range }, Nothing, Served, Asks::Either(FILE)),
        (M::CancelLock { inode, range }, Nothing, Served, Asks::Nothing),
        (M::ReleaseOwner { inode, owner: 1, whole_file: true }, Nothing, Served, Asks::Nothing),
        (M::ToldUnlocked { inode, number }, Nothing, Served, Asks::Nothing),
        (M::ToldGrown { inode, number }, Nothing, Served, Asks::Nothing),
        (M::Allow { inode }, Nothing, Served, Asks::Either(FILE)),
        (M::Sync, Nothing, Served, Asks::Nothing),
    ]
}

/// Requests about the cluster.
fn about_the_cluster() -> Vec<Row> {
    use MetaRequest as M;
    let (from, bytes_max) = (0, 0);
    let room = Room { total_bytes: 1, free_bytes: 1, available_bytes: 1, file_system: 0 };
    let beat = Heartbeat {
        server: 1,
        boot: 1,
        era: 1,
        store: 1,
        history: 1,
        met: 0,
        known_by: 0,
        replace: false,
        admit: false,
        room,
        address: NAME,
        domain: NAME,
    };
    let groups = NAME;
    let step = Step { groups, by: 1, map: 1, server: 1, in_step: true };
    let requests = [
        M::StatFileSystem,
        M::GetPool { version: 0 },
        M::GetMap { since: 0, from: 0, server: None, bytes_max },
        M::Heartbeat(beat),
        M::ListInodes { from, bytes_max },
        M::GetInodes { inodes: NONE, bytes_max },
        M::GetPath { inode: FILE },
        M::Status,
        M::ListSessions { after: 0, bytes_max },
        M::ListServers { from: 0, bytes_max },
        M::Discard { server: 1, objects: NONE },
        M::Admit { server: 1 },
        M::Order(ServerOrder::Show),
        M::Export(ExportOrder::List { from: 0, bytes_max }),
        M::SetStep(step),
        M::Vouch { sessions: NONE, inodes: NONE },
        M::Inspect { from, cookie: 0, whole: true },
        M::Upgrade(UpgradeOrder::Show),
        M::TellGroups(Telling { server: 1, told: 0, done: false, objects: NONE }),
        M::MayClean { server: 1, map: 1 },
    ];
    requests.into_iter().map(|request| (request, Nothing, Served, Asks::Nothing)).collect()
}

#[test]
fn every_request_says_which_ids_it_carries_and_what_it_demands() {
    let rows = [on_behalf(), about_files(), about_the_cluster()].concat();
    // A map under which no id stays as it is.
    let shift = |base| vec![IdRange { outer: 0, inner: base, count: 1000 }];
    let (users, groups) = (shift(5000), shift(7000));
    let shifted = Export { users, groups, squash: Squash::None, ..Export::WHOLE };
    let read_only = Export { rights: Rights::ReadOnly, ..Export::WHOLE };
    for (request, says, there, demand) in &rows {
        let mut named = *request;
        let has_who = named.who_mut().is_some();
        assert_eq!(has_who, *says != Nothing, "{request:?}");
        assert_eq!(asks(request), *demand, "{request:?}");
        let mut groups = Vec::new();
        let admitted = Standing { limit: None, export: &shifted }.admit(request, &mut groups);
        let admitted = *admitted.expect("all ids have a place").request();
        let mut expected = *request;
        if let Some(who) = expected.who_mut() {
            (who.user, who.group) = (5000, 7000);
        }
        if let MetaRequest::SetAttributes { change, .. } = &mut expected {
            assert_eq!(*says, WhoAndOwner);
            (change.user, change.group) = (Some(5001), Some(7002));
        }
        assert_eq!(
            admitted, expected,
            "the ids that it is said to carry, and no others, are mapped"
        );
        let mut groups = Vec::new();
        let admitted = Standing { limit: None, export: &read_only }.admit(request, &mut groups);
        let expected = if *there == Served { None } else { Some(Errno::EROFS) };
        assert_eq!(admitted.err(), expected, "{request:?}");
    }
    let seen: BTreeSet<usize> = rows.iter().map(|(request, ..)| kind(request)).collect();
    let all: BTreeSet<usize> = (0..KINDS.len()).filter(|at| !SESSION_KINDS.contains(at)).collect();
    let missing: Vec<&str> = all.difference(&seen).map(|at| KINDS[*at]).collect();
    assert!(missing.is_empty(), "requests without a row: {missing:?}");
}
