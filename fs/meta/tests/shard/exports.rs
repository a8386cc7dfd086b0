//! Sessions under exports: the ids of callers and of replies, and the rights that are left to them.

use crate::common::*;
use ropewalk_base::random::Random;
use ropewalk_meta::exports::{Export, IdRange, NOBODY, Rights, Squash};
use ropewalk_meta::identity::{Identity, Limit};
use ropewalk_meta::sessions::SessionOwner;
use ropewalk_meta::{Call, Config, Outcome};
use ropewalk_wire::fs::exports::{Asker, ExportInfo, ExportOrder, ExportTerms};
use ropewalk_wire::fs::meta::*;
use ropewalk_wire::fs::value::{Bytes, Errno};
use ropewalk_wire::fs::{decode, encode};

const EXPORT: u32 = 7;

fn who(user: u32) -> Who<'static> {
    Who { user, group: user, groups: Bytes(&[]), judge: Judge::Server }
}

fn squashing(squash: Squash) -> Export {
    Export { squash, ..Export::WHOLE }
}

/// Users and groups 0 to 99 are 5000 to 5099 in the file system, and 1000 to 1009 are 0 to 9.
fn mapping(squash: Squash) -> Export {
    let range = |outer, inner, count| IdRange { outer, inner, count };
    let ranges = vec![range(0, 5000, 100), range(1000, 0, 10)];
    Export { squash, users: ranges.clone(), groups: ranges, ..Export::WHOLE }
}

/// Opens a session of one more client; its number.
fn join(cluster: &mut Cluster, identity: Identity) -> usize {
    let (now, client) = (cluster.moment(), cluster.clients.len());
    let endpoint = 100 + client as u128;
    let owner = SessionOwner { endpoint, incarnation: 1, identity, export: EXPORT };
    let opened = cluster.shard().open_session(endpoint, owner, now).expect("rows in memory");
    cluster.clients.push(Client { session: opened.session, ..Client::default() });
    client
}

/// Client 0 has the whole file system, client 1 this export.
fn exporting(export: Export) -> Cluster {
    let mut cluster = Cluster::new(1, Config::default(), 24);
    assert_eq!(cluster.shard().set_export(EXPORT, Some(export)), Ok(true));
    assert_eq!(join(&mut cluster, Identity::Unproven), 1);
    cluster
}

fn owner(user: u32, mode: u16) -> AttributeChange {
    AttributeChange {
        user: Some(user),
        group: Some(user),
        mode: Some(mode),
        ..AttributeChange::default()
    }
}

fn change(who: Who<'_>, inode: u64, change: AttributeChange) -> MetaRequest<'_> {
    MetaRequest::SetAttributes { who, inode, change }
}

fn open_as(who: Who<'_>, inode: u64, access: Access) -> MetaRequest<'_> {
    MetaRequest::Open { who, inode, access, truncate: false, execute: false }
}

fn owners(answer: &Answer) -> (u32, u32) {
    (answer.attributes().user, answer.attributes().group)
}

/// The rules once more, apart from the code that is tested: the bits that an inner user has on an inode.
fn bits(user: u32, owner: u32, mode: u16) -> u16 {
    match user {
        0 => 7,
        // In these tests a user's group has his number.
        _ if user == owner => (mode >> 6) & 7,
        _ => mode & 7,
    }
}

fn expected(allowed: bool, errno: Errno) -> Result<(), Errno> {
    if allowed { Ok(()) } else { Err(errno) }
}

struct Case {
    squash: Squash,
    /// As the client says him, and as he counts.
    caller: (u32, u32),
    by_kernel: bool,
    owner: u32,
    mode: u16,
}

type Check<'a> = dyn Fn(&mut Cluster, MetaRequest<'_>, Result<(), Errno>, &str) + 'a;

impl Case {
    fn told(&self) -> String {
        let Case { squash, caller: (outer, _), by_kernel, owner, mode } = self;
        format!("{squash:?} {outer} by kernel {by_kernel} on {owner} {mode:o}")
    }

    /// Each operation's outcome on a file and in a directory of this owner and mode.
    fn check(&self, cluster: &mut Cluster, directory: u64, file: u64) {
        let Case { owner: owned, mode, .. } = *self;
        let who = self.who();
        for inode in [directory, file] {
            cluster.call(0, change(Who::ROOT, inode, owner(owned, mode))).ok();
        }
        let check = |cluster: &mut Cluster, request: MetaRequest<'_>, wanted, what: &str| {
            let answer = cluster.call(1, request);
            let got = answer.get().map(|_| ());
            assert_eq!(got, wanted, "{what}: {}", self.told());
            if let Ok(MetaReply::Opened { entry, .. }) = answer.get() {
                cluster.close(1, entry.attributes.inode);
            }
        };
        for (access, wanted) in [(READ, 4), (Access { read: false, write: true }, 2)] {
            let request = open_as(who, file, access);
            check(cluster, request, expected(self.has(wanted), Errno::EACCES), "open");
        }
        let list = MetaRequest::ReadDirectory {
            who,
            inode: directory,
            cookie: 0,
            bytes_max: 0,
            attributes: true,
        };
        check(cluster, list, expected(self.has(4), Errno::EACCES), "list");
        let look = MetaRequest::Lookup { who, parent: directory, name: Bytes(b"nothing") };
        check(cluster, look, expected(self.has(1), Errno::EACCES), "lookup");
        let (name, value) = (Bytes(b"user.x"), Bytes(b"y"));
        let xattr =
            MetaRequest::SetXattr { who, inode: file, name, value, create: false, replace: false };
        check(cluster, xattr, expected(self.has(2), Errno::EACCES), "set an attribute");
        let times = AttributeChange { modified: TimeChange::Now, ..AttributeChange::default() };
        let touch = AttributeChange { accessed: TimeChange::Now, ..times };
        check(
            cluster,
            change(who, file, touch),
            expected(self.owns() || self.has(2), Errno::EACCES),
            "touch",
        );
        let chmod = AttributeChange { mode: Some(mode), ..AttributeChange::default() };
        check(cluster, change(who, file, chmod), expected(self.owns(), Errno::EPERM), "chmod");
        let chown = AttributeChange { user: Some(12), ..AttributeChange::default() };
        check(cluster, change(who, file, chown), expected(self.passes(), Errno::EPERM), "chown");
        self.check_content(cluster, file, &check);
        self.check_names(cluster, directory, file, &check);
    }

    fn who(&self) -> Who<'static> {
        let judge = match self.by_kernel {
            true => Judge::Kernel { keeps_privileges: true },
            false => Judge::Server,
        };
        Who { judge, ..who(self.caller.0) }
    }

    /// Whether the caller counts as one who may do all.
    fn passes(&self) -> bool {
        self.caller.1 == 0 || (self.by_kernel && self.squash == Squash::None)
    }

    fn has(&self, wanted: u16) -> bool {
        self.passes() || bits(self.caller.1, self.owner, self.mode) & wanted == wanted
    }

    fn owns(&self) -> bool {
        self.passes() || self.caller.1 == self.owner
    }

    /// The rest of what is done with a file's content and attributes.
    fn check_content(&self, cluster: &mut Cluster, file: u64, check: &Check<'_>) {
        let who = self.who();
        let name = Bytes(b"user.there");
        let value = Bytes(b"y");
        let (create, replace) = (false, false);
        let inode = file;
        let set = MetaRequest::SetXattr { who: Who::ROOT, inode, name, value, create, replace };
        cluster.call(0, set).ok();
        let get = MetaRequest::GetXattr { who, inode, name };
        check(cluster, get, expected(self.has(4), Errno::EACCES), "get an attribute");
        let list = MetaRequest::ListXattr { who, inode };
        check(cluster, list, Ok(()), "list attributes");
        let remove = MetaRequest::RemoveXattr { who, inode, name };
        check(cluster, remove, expected(self.has(2), Errno::EACCES), "remove an attribute");
        let size = AttributeChange { size: Some(3), ..AttributeChange::default() };
        let cut = change(who, inode, size);
        check(cluster, cut, expected(self.has(2), Errno::EACCES), "truncate");
        let execute =
            MetaRequest::Open { who, inode, access: READ, truncate: false, execute: true };
        // A caller that passes judges the right to execute itself.
        check(cluster, execute, expected(self.has(1), Errno::EACCES), "execute");
        let empties = Access { read: false, write: true };
        let open =
            MetaRequest::Open { who, inode, access: empties, truncate: true, execute: false };
        check(cluster, open, expected(self.has(2), Errno::EACCES), "open and truncate");
    }

    /// The operations that change the names in a directory.
    fn check_names(&self, cluster: &mut Cluster, directory: u64, file: u64, check: &Check<'_>) {
        let (who, parent, inner) = (self.who(), directory, self.caller.1);
        let changes = expected(self.has(3), Errno::EACCES);
        let node = |name, node| MetaRequest::Make { who, parent, name, mode: 0o700, node };
        let (name, other) = (Bytes(b"f"), Bytes(b"g"));
        let unlink = |who, name| MetaRequest::Unlink { who, parent, name, closed: 0 };
        for made in [Node::File, Node::Symlink { target: Bytes(b"to") }] {
            check(cluster, node(name, made), changes, "make");
            if self.has(3) {
                let found = cluster.call(0, lookup(directory, b"f"));
                assert_eq!(owners(&found), (inner, inner), "{}", self.told());
                check(cluster, unlink(who, name), Ok(()), "unlink");
            }
        }
        check(cluster, node(name, Node::Directory), changes, "make a directory");
        let remove = |who| MetaRequest::RemoveDirectory { who, parent, name, closed: 0 };
        if !self.has(3) {
            cluster.call(0, make(directory, b"f", Node::Directory)).ok();
        }
        check(cluster, remove(who), changes, "remove a directory");
        if !self.has(3) {
            cluster.call(0, remove(Who::ROOT)).ok();
        }
        let link = |who| MetaRequest::Link { who, inode: file, parent, name };
        check(cluster, link(who), changes, "link");
        if !self.has(3) {
            cluster.call(0, link(Who::ROOT)).ok();
        }
        let rename = |who| MetaRequest::Rename {
            who,
            parent,
            name,
            new_parent: parent,
            new_name: other,
            mode: RenameMode::Replace,
            closed: 0,
        };
        check(cluster, rename(who), changes, "rename");
        if !self.has(3) {
            cluster.call(0, rename(Who::ROOT)).ok();
        }
        check(cluster, unlink(who, other), changes, "unlink");
        if !self.has(3) {
            cluster.call(0, unlink(Who::ROOT, other)).ok();
        }
        let access = Access { read: true, write: true };
        let temporary = MetaRequest::Temporary { who, parent, mode: 0o600, access };
        check(cluster, temporary, changes, "make a nameless file");
        let (exclusive, truncate) = (true, false);
        let create =
            MetaRequest::Create { who, parent, name, mode: 0o000, access, exclusive, truncate };
        check(cluster, create, changes, "create");
        if self.has(3) {
            check(cluster, unlink(who, name), Ok(()), "unlink");
        }
    }
}

#[test]
fn squash_and_mode_bits_decide_every_operation() {
    for squash in [Squash::None, Squash::Root, Squash::All] {
        let mut cluster = exporting(squashing(squash));
        let directory = cluster.call(0, make(ROOT, b"d", Node::Directory)).inode();
        let file = cluster.call(0, make(ROOT, b"file", Node::File)).inode();
        for (outer, by_kernel) in [(0, false), (0, true), (7, false), (7, true), (8, false)] {
            let inner = match squash {
                Squash::None => outer,
                Squash::Root if outer == 0 => NOBODY,
                Squash::Root => outer,
                Squash::All => NOBODY,
            };
            let caller = (outer, inner);
            for owner in [0, 7, NOBODY] {
                for mode in [0o000, 0o100, 0o300, 0o700, 0o007, 0o004, 0o003, 0o405, 0o777] {
                    let case = Case { squash, caller, by_kernel, owner, mode };
                    case.check(&mut cluster, directory, file);
                }
            }
        }
    }
}

#[test]
fn a_client_sees_its_own_ids_and_the_rows_have_those_of_the_file_system() {
    let mut cluster = exporting(mapping(Squash::None));
    cluster.call(0, change(Who::ROOT, ROOT, owner(0, 0o777))).ok();
    // User 3 of the client is 5003.
    let create = |name| MetaRequest::Create {
        who: who(3),
        parent: ROOT,
        name: Bytes(name),
        mode: 0o644,
        access: WRITE,
        exclusive: true,
        truncate: false,
    };
    let made = cluster.call(1, create(b"his"));
    assert_eq!(owners(&made), (3, 3));
    let inode = made.inode();
    cluster.close(1, inode);
    assert_eq!(owners(&cluster.call(0, MetaRequest::GetAttributes { inode })), (5003, 5003));
    assert_eq!(owners(&cluster.call(1, MetaRequest::GetAttributes { inode })), (3, 3));
    // The root directory is user 0's, who is user 1000 of the client: the only one who may give files away.
    assert_eq!(owners(&cluster.call(1, MetaRequest::GetAttributes { inode: ROOT })), (1000, 1000));
    let chown = |by, user| change(who(by), inode, AttributeChange { user, ..Default::default() });
    assert_eq!(cluster.call(1, chown(0, Some(4))).errno(), Errno::EPERM);
    assert_eq!(cluster.call(1, chown(1000, Some(4))).attributes().user, 4);
    assert_eq!(cluster.call(1, chown(1000, Some(200))).errno(), Errno::EINVAL);
    assert_eq!(owners(&cluster.call(0, MetaRequest::GetAttributes { inode })), (5004, 5003));
    // Nobody of the client's: a user without a place there.
    cluster.call(0, change(Who::ROOT, inode, owner(77_777, 0o644))).ok();
    let list = MetaRequest::ReadDirectory {
        who: who(0),
        inode: ROOT,
        cookie: 0,
        bytes_max: 1 << 14,
        attributes: true,
    };
    let listed = cluster.call(1, list);
    let MetaReply::Directory { entries, .. } = listed.ok() else { panic!("a list") };
    let attributes = entries[0].attributes.expect("they were asked for");
    assert_eq!((attributes.user, attributes.group), (NOBODY, NOBODY));
}

#[test]
fn retries_and_calls_that_wait_are_mapped_once() {
    let mut cluster = exporting(mapping(Squash::None));
    cluster.call(0, change(Who::ROOT, ROOT, owner(0, 0o777))).ok();
    // 1004 is 4 in the file system, and 4 would be 5004 if it were mapped twice.
    let request = MetaRequest::Make {
        who: who(1004),
        parent: ROOT,
        name: Bytes(b"his"),
        mode: 0o600,
        node: Node::File,
    };
    // Client 0 caches the directory, so the call has to wait for its answer.
    cluster.call(0, open(ROOT, READ)).ok();
    cluster
        .call(0, MetaRequest::Acquire { inode: ROOT, mode: LeaseMode::Read, insist: false })
        .ok();
    cluster.clients[0].silent = true;
    let sequence = cluster.next_sequence(1, 5);
    let outcome = cluster.send(1, 5, sequence, request);
    assert!(matches!(outcome, Outcome::Wait(_)), "{outcome:?}");
    cluster.clients[0].silent = false;
    let number = cluster.clients[0].grants[&ROOT].number;
    cluster.answer_recall(0, ROOT, number, LeaseMode::None);
    let made = cluster.wait(outcome);
    assert_eq!(owners(&made), (1004, 1004));
    let inode = made.inode();
    let get = MetaRequest::GetAttributes { inode };
    assert_eq!(owners(&cluster.call(0, get)), (4, 4));
    // The stored reply, from memory and from its row.
    for restarts in [false, true] {
        if restarts {
            cluster.restart();
        }
        let again = cluster.send(1, 5, sequence, request);
        assert_eq!(owners(&cluster.wait(again)), (1004, 1004), "after a restart: {restarts}");
    }
    assert_eq!(owners(&cluster.call(1, get)), (1004, 1004), "the export is in its row");
}

/// All rows of files and their names.
fn files(cluster: &mut Cluster) -> Vec<(Vec<u8>, Vec<u8>)> {
    let rows = cluster.shard().rows().iter().filter(|(key, _)| b"DIJX".contains(&key[0]));
    rows.map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

#[test]
fn a_read_only_export_changes_nothing_and_reads_all() {
    let mut cluster = exporting(Export { rights: Rights::ReadOnly, ..Export::WHOLE });
    let file = cluster.create(0, b"file");
    let grant = cluster.clients[0].grants[&file];
    let write = MetaRequest::WriteInline {
        inode: file,
        epoch: grant.epoch,
        offset: 0,
        data: Bytes(b"text"),
        append: false,
        kill_privileges: false,
    };
    cluster.call(0, write).ok();
    cluster.close(0, file);
    let before = files(&mut cluster);
    for request in [
        create(ROOT, b"new"),
        make(ROOT, b"new", Node::Directory),
        unlink(ROOT, b"file"),
        open(file, WRITE),
        change(Who::ROOT, file, owner(7, 0o600)),
        write,
        MetaRequest::RenewEpoch { inode: file },
        MetaRequest::Acquire { inode: file, mode: LeaseMode::Write, insist: false },
        MetaRequest::ReserveAppend { inode: file, epoch: grant.epoch, len: 1 },
        MetaRequest::Reclaim { inode: file, mode: LeaseMode::None, open: Some(WRITE) },
        MetaRequest::Release { inode: file, number: 0, keep: LeaseMode::None, open: Some(WRITE) },
    ] {
        assert_eq!(cluster.call(1, request).errno(), Errno::EROFS, "{request:?}");
    }
    cluster.call(1, open(file, READ)).ok();
    let read = cluster.call(1, MetaRequest::ReadInline { inode: file });
    assert!(matches!(read.ok(), MetaReply::Inline { bytes: Bytes(b"text"), .. }));
    let accessed = Some(cluster.moment().calendar);
    let none = Bytes(&[]);
    let report = Report {
        epoch: grant.epoch,
        size: None,
        modified: None,
        accessed,
        written: none,
        punched: none,
    };
    cluster.call(1, MetaRequest::Report { inode: file, report }).ok();
    cluster.close(1, file);
    let after = files(&mut cluster);
    assert_eq!(before, after, "not even the time of access");
}

#[test]
fn a_number_of_an_inode_opens_nothing_that_no_caller_could() {
    let mut cluster = exporting(squashing(Squash::Root));
    let file = cluster.call(0, make(ROOT, b"secret", Node::File)).inode();
    let read = MetaRequest::ReadInline { inode: file };
    let lease = MetaRequest::Acquire { inode: file, mode: LeaseMode::Read, insist: false };
    // Root's own, and readable for root or root's group only.
    for mode in [0o600, 0o040, 0o000] {
        cluster.call(0, change(Who::ROOT, file, owner(0, mode))).ok();
        for request in [read, lease, open_as(who(0), file, READ), open_as(who(7), file, READ)] {
            assert_eq!(cluster.call(1, request).errno(), Errno::EACCES, "{mode:o} {request:?}");
        }
    }
    // Some caller may, and the client answers for which.
    for (user, mode) in [(0, 0o604), (7, 0o000), (NOBODY, 0o000)] {
        cluster.call(0, change(Who::ROOT, file, owner(user, mode))).ok();
        cluster.call(1, read).ok();
    }
    let mut cluster = exporting(squashing(Squash::All));
    let file = cluster.call(0, make(ROOT, b"secret", Node::File)).inode();
    cluster.call(0, change(Who::ROOT, file, owner(7, 0o600))).ok();
    assert_eq!(cluster.call(1, MetaRequest::ReadInline { inode: file }).errno(), Errno::EACCES);
}

#[test]
fn a_user_of_the_host_has_his_rights_through_the_export_and_no_others() {
    let mut cluster = exporting(mapping(Squash::None));
    let user = Identity::User(Limit { user: 3, groups: vec![3, 4] });
    let client = join(&mut cluster, user);
    let file = cluster.call(0, make(ROOT, b"file", Node::File)).inode();
    cluster.call(0, change(Who::ROOT, file, owner(5003, 0o600))).ok();
    cluster.call(client, open_as(who(3), file, READ)).ok();
    cluster.close(client, file);
    assert_eq!(cluster.call(client, open_as(who(1000), file, READ)).errno(), Errno::EPERM);
    let read = MetaRequest::ReadInline { inode: file };
    cluster.call(client, read).ok();
    cluster.call(0, change(Who::ROOT, file, owner(5004, 0o600))).ok();
    assert_eq!(cluster.call(client, read).errno(), Errno::EACCES);
    cluster.call(0, change(Who::ROOT, file, owner(5004, 0o640))).ok();
    cluster.call(client, read).ok();
}

#[test]
fn exports_need_sense_and_sessions_need_their_export() {
    let mut cluster = exporting(squashing(Squash::None));
    let get = MetaRequest::GetAttributes { inode: ROOT };
    cluster.call(1, get).ok();
    let senseless = Export { anonymous: (0, 0), ..Export::WHOLE };
    assert_eq!(cluster.shard().set_export(EXPORT, Some(senseless)), Ok(false));
    assert_eq!(cluster.shard().set_export(0, Some(squashing(Squash::All))), Ok(false));
    assert_eq!(cluster.shard().set_export(0, None), Ok(false));
    assert_eq!(cluster.shard().set_export(EXPORT, None), Ok(true));
    assert_eq!(fenced(&mut cluster).len(), 1, "its session ends");
    cluster.call(0, get).ok();
    let rows = cluster.shard.take().expect("it runs").into_rows();
    cluster.start(rows);
    cluster.heartbeat();
    assert_eq!(
        fenced(&mut cluster).len(),
        1,
        "it is asked for until all data servers have the fence"
    );
    assert_eq!(cluster.shard().set_export(EXPORT, Some(squashing(Squash::All))), Ok(true));
    let first = Config { first_format: true, ..Config::default() };
    let mut old = Cluster::new(1, first, 24);
    assert_eq!(old.shard().set_export(EXPORT, Some(squashing(Squash::All))), Ok(false));
    let row = |cluster: &mut Cluster| {
        let rows = cluster.shard().rows();
        rows.iter().find(|(key, _)| key[0] == b'S').map(|(_, value)| value[0])
    };
    assert_eq!((row(&mut old), row(&mut cluster)), (Some(2), Some(3)));
    old.restart();
    old.create(0, b"goes on");
}

/// Client 0 has the whole file system, client 1 the directory `sub` as its root. The numbers of `sub`, of a file
/// in it, of a directory outside, and of a file there.
fn subtree() -> (Cluster, [u64; 4]) {
    let mut cluster = Cluster::new(1, Config::default(), 24);
    let sub = cluster.call(0, make(ROOT, b"sub", Node::Directory)).inode();
    let inside = cluster.call(0, make(sub, b"inside", Node::File)).inode();
    let other = cluster.call(0, make(ROOT, b"other", Node::Directory)).inode();
    let outside = cluster.call(0, make(other, b"outside", Node::File)).inode();
    let export = Export { root: sub, ..Export::WHOLE };
    assert_eq!(cluster.shard().set_export(EXPORT, Some(export)), Ok(true));
    assert_eq!(join(&mut cluster, Identity::Unproven), 1);
    (cluster, [sub, inside, other, outside])
}

/// Every request of a session that names an inode, or two; the second one is inside.
fn naming(inode: u64) -> Vec<MetaRequest<'static>> {
    use MetaRequest as M;
    let (who, name, closed) = (Who::ROOT, Bytes(b"name"), 0);
    let (parent, mode, access, epoch) = (inode, 0o644, READ, 1);
    let (none, number) = (Bytes(&[]), 1);
    let report = Report {
        epoch,
        size: Some(1),
        modified: None,
        accessed: None,
        written: none,
        punched: none,
    };
    let kind = LockKind::Shared;
    let range = LockRange { kind, whole_file: true, owner: 1, process: 1, start: 0, end: 9 };
    let rename = |parent, new_parent| {
        let mode = RenameMode::Replace;
        M::Rename { who, parent, name, new_parent, new_name: Bytes(b"new"), mode, closed }
    };
    vec![
        M::Lookup { who, parent, name },
        M::Lookup { who, parent, name: Bytes(b"..") },
        M::GetAttributes { inode },
        M::SetAttributes { who, inode, change: AttributeChange::default() },
        M::Create { who, parent, name, mode, access, exclusive: false, truncate: false },
        M::Temporary { who, parent, mode, access },
        M::Make { who, parent, name, mode, node: Node::File },
        M::Open { who, inode, access, truncate: false, execute: false },
        M::Unlink { who, parent, name, closed },
        M::RemoveDirectory { who, parent, name, closed },
        rename(inode, ROOT),
        rename(ROOT, inode),
        M::Link { who, inode, parent: ROOT, name },
        M::ReadDirectory { who, inode, cookie: 0, bytes_max: 0, attributes: true },
        M::ReadLink { inode },
        M::GetXattr { who, inode, name },
        M::ListXattr { who, inode },
        M::SetXattr {
            who,
            inode,
            name: Bytes(b"user.x"),
            value: name,
            create: false,
            replace: false,
        },
        M::RemoveXattr { who, inode, name: Bytes(b"user.x") },
        M::Acquire { inode, mode: LeaseMode::Read, insist: false },
        M::Release { inode, number, keep: LeaseMode::Read, open: Some(READ) },
        M::Release { inode, number, keep: LeaseMode::None, open: None },
        M::Report { inode, report },
        M::RenewEpoch { inode },
        M::ReadInline { inode },
        M::WriteInline {
            inode,
            epoch,
            offset: 0,
            data: name,
            append: true,
            kill_privileges: false,
        },
        M::Reclaim { inode, mode: LeaseMode::Read, open: Some(READ) },
        M::LeaveInline { inode, version: 1, report },
        M::ReserveAppend { inode, epoch, len: 1 },
        M::SetLock { inode, range, wait: false },
        M::TestLock { inode, range },
    ]
}

/// A handle of a file is its number and nothing else, so anybody can make one up: a million of them, many of files that are there.
#[test]
fn a_million_forged_handles_lead_nowhere_out_of_a_subtree() {
    let (mut cluster, [sub, inside, other, outside]) = subtree();
    let mut real = vec![other, outside];
    for number in 0..200u32 {
        let name = format!("n{number}");
        real.push(cluster.call(0, make(other, name.as_bytes(), Node::File)).inode());
    }
    let own = [ROOT, sub, inside];
    let mut random = Random::from_seed(24);
    for number in 0..1_000_000u64 {
        let inode = match number % 4 {
            0 => real[random.below(real.len() as u64) as usize],
            1 => random.below(1000),
            // A few bits are others than those of a right one.
            2 => real[0] ^ 1 << random.below(64) ^ 1 << random.below(64),
            _ => random.next_u64(),
        };
        if own.contains(&inode) {
            continue;
        }
        let requests = naming(inode);
        let request = requests[(number / 4 % requests.len() as u64) as usize];
        let answer = cluster.call(1, request);
        if answer.get().is_ok() {
            // Of a file that is not there nothing can be given back.
            let gives_back = matches!(request, MetaRequest::Release { .. });
            assert!(gives_back && !real.contains(&inode), "{request:?}");
            continue;
        }
        let errno = answer.errno();
        let is_no_handle = inode == 0 && errno == Errno::EINVAL;
        assert!(errno == Errno::ESTALE || is_no_handle, "{request:?}: {errno}");
    }
    assert_eq!(cluster.call(1, MetaRequest::GetAttributes { inode: inside }).inode(), inside);
}

#[test]
fn no_number_and_no_name_leads_out_of_a_subtree() {
    let (mut cluster, [sub, inside, other, outside]) = subtree();
    let whole = ROOT;
    for inode in [other, outside] {
        for request in naming(inode) {
            assert_eq!(cluster.call(1, request).errno(), Errno::ESTALE, "{request:?}");
        }
        assert_eq!(cluster.clients[1].grants.get(&inode), None);
    }
    // A link from inside does not get there, and the other parent is looked at, too.
    let link = |inode, parent| MetaRequest::Link { who: who(0), inode, parent, name: Bytes(b"l") };
    assert_eq!(cluster.call(1, link(inside, other)).errno(), Errno::ESTALE);
    // The root is the directory that was exported, by either number, and nothing is above it.
    for parent in [whole, sub] {
        for name in [&b".."[..], b"."] {
            assert_eq!(cluster.call(1, lookup(parent, name)).inode(), ROOT);
        }
        assert_eq!(cluster.call(1, lookup(parent, b"inside")).inode(), inside);
        assert_eq!(cluster.call(1, MetaRequest::GetAttributes { inode: parent }).inode(), ROOT);
    }
    let deep = cluster.call(1, make(ROOT, b"deep", Node::Directory)).inode();
    assert_eq!(cluster.call(1, lookup(deep, b"..")).inode(), ROOT);
    assert_eq!(cluster.call(0, lookup(deep, b"..")).inode(), sub);
    // A file is inside by any of its names.
    let second = MetaRequest::Link { who: who(0), inode: outside, parent: deep, name: Bytes(b"l") };
    cluster.call(0, second).ok();
    assert_eq!(cluster.call(1, MetaRequest::GetAttributes { inode: outside }).inode(), outside);
    cluster.call(0, unlink(deep, b"l")).ok();
    cluster.pass(60_000_000_000);
    let session = cluster.clients[1].session;
    let now = cluster.moment();
    assert!(cluster.shard().renew_session(session, now));
}

#[test]
fn what_was_moved_out_is_gone_and_what_is_open_stays() {
    let (mut cluster, [sub, inside, other, _]) = subtree();
    let deep = cluster.call(0, make(sub, b"deep", Node::Directory)).inode();
    let file = cluster.call(0, make(deep, b"file", Node::File)).inode();
    cluster.call(1, MetaRequest::GetAttributes { inode: deep }).ok();
    cluster.call(1, open(inside, READ)).ok();
    let out = |parent, name: &'static [u8]| MetaRequest::Rename {
        who: who(0),
        parent,
        name: Bytes(name),
        new_parent: other,
        new_name: Bytes(name),
        mode: RenameMode::Replace,
        closed: 0,
    };
    cluster.call(0, out(sub, b"deep")).ok();
    cluster.call(0, out(sub, b"inside")).ok();
    for inode in [deep, file] {
        assert_eq!(cluster.call(1, MetaRequest::GetAttributes { inode }).errno(), Errno::ESTALE);
    }
    assert_eq!(cluster.call(1, create(deep, b"new")).errno(), Errno::ESTALE);
    cluster.call(1, MetaRequest::ReadInline { inode: inside }).ok();
    cluster.close(1, inside);
    let number = u64::MAX;
    let release = MetaRequest::Release { inode: inside, number, keep: LeaseMode::None, open: None };
    cluster.call(1, release);
    assert_eq!(cluster.call(1, open(inside, READ)).errno(), Errno::ESTALE);
}

#[test]
fn recalls_and_retries_name_the_root_as_its_client_does() {
    let (mut cluster, [sub, ..]) = subtree();
    // A retry of a change of the root finds the lease that it granted.
    let change = AttributeChange { mode: Some(0o777), ..AttributeChange::default() };
    let request = MetaRequest::SetAttributes { who: who(0), inode: ROOT, change };
    cluster
        .call(1, MetaRequest::Acquire { inode: ROOT, mode: LeaseMode::Read, insist: false })
        .ok();
    let sequence = cluster.next_sequence(1, 5);
    let outcome = cluster.send(1, 5, sequence, request);
    let first = cluster.wait(outcome);
    let outcome = cluster.send(1, 5, sequence, request);
    let again = cluster.wait(outcome);
    assert_eq!((first.inode(), first.grant()), (ROOT, again.grant()));
    assert!(first.grant().is_some(), "a session that holds a lease is told of it");
    assert_eq!(again.inode(), ROOT);
    // Another one's create takes the lease away: the client hears of inode 1, and answers for it.
    cluster.call(0, create(sub, b"new")).ok();
    let recalled = cluster.heard.iter().any(|(client, callback)| {
        *client == 1 && matches!(callback, Callback::Recall { inode: ROOT, .. })
    });
    assert!(recalled, "{:?}", cluster.heard);
    assert_eq!(cluster.call(1, lookup(ROOT, b"new")).attributes().size, 0);
}

#[test]
fn the_root_of_an_export_is_a_directory_that_exists() {
    let (mut cluster, [sub, inside, ..]) = subtree();
    for root in [inside, 4711] {
        let export = Export { root, ..Export::WHOLE };
        assert_eq!(cluster.shard().set_export(EXPORT + 1, Some(export)), Ok(false));
    }
    cluster.call(0, unlink(sub, b"inside")).ok();
    // Clients know the root by their number: it stays.
    assert_eq!(cluster.shard().set_export(EXPORT, Some(Export::WHOLE)), Ok(false));
    let name = Bytes(b"sub");
    cluster
        .call(0, MetaRequest::RemoveDirectory { who: who(0), parent: ROOT, name, closed: 0 })
        .ok();
    cluster.pass(5_000_000_000);
    let now = cluster.moment();
    cluster.shard().tick(now);
    cluster.restart();
    // Never the whole file system: at most the directory that was removed.
    assert_eq!(cluster.call(1, create(ROOT, b"new")).errno(), Errno::ENOENT);
    let found = cluster.call(1, lookup(ROOT, b"other"));
    assert!(!matches!(found.get(), Ok(MetaReply::Entry(_))), "{found:?}");
}

fn terms(name: &str, clients: &[&str]) -> ExportTerms {
    ExportTerms {
        name: name.to_owned(),
        clients: clients.iter().map(|rule| rule.parse().expect("a rule")).collect(),
        rights: Rights::ReadWrite,
        squash: Squash::Root,
        anonymous: (NOBODY, NOBODY),
        users: Vec::new(),
        groups: Vec::new(),
    }
}

/// Gives an order about exports, as an administrator.
fn order(cluster: &mut Cluster, order: ExportOrder<'_>) -> Result<Vec<(u32, String, u32)>, Errno> {
    let now = cluster.moment();
    let request = MetaRequest::Export(order);
    let call = Call { session: 0, slot: 0, sequence: 0, request, now };
    let Outcome::Reply(reply) = cluster.shard().execute(call) else { panic!("no reply") };
    match decode::<MetaResult<'_>>(&reply.bytes).expect("it decodes")? {
        MetaReply::Done => Ok(Vec::new()),
        MetaReply::Exports { exports, end } => {
            assert!(end);
            let show = |it: &ExportInfo<'_>| (it.number, it.terms.name.clone(), it.sessions);
            Ok(exports.iter().map(show).collect())
        }
        other => panic!("{other:?}"),
    }
}

fn set_terms(cluster: &mut Cluster, terms: &ExportTerms, root: &[u8]) -> Result<(), Errno> {
    let mut bytes = Vec::new();
    encode(terms, &mut bytes);
    let set = ExportOrder::Set { terms: Bytes(&bytes), root: Bytes(root) };
    order(cluster, set).map(drop)
}

const LIST: ExportOrder<'static> = ExportOrder::List { from: 0, bytes_max: 0 };

#[test]
fn exports_are_made_changed_listed_and_removed_by_order() {
    let mut cluster = Cluster::new(1, Config::default(), 24);
    let nobody = Asker::default();
    assert_eq!(cluster.shard().choose_export(&nobody), Some(0), "everybody has everything");
    assert_eq!(set_terms(&mut cluster, &terms("a", &["node:x"]), b"/"), Ok(()));
    assert_eq!(cluster.shard().choose_export(&nobody), None);
    assert_eq!(set_terms(&mut cluster, &terms("b", &["*"]), b""), Ok(()));
    assert_eq!(cluster.shard().choose_export(&nobody), Some(2));
    let named = Asker { node: Some("x"), ..nobody };
    assert_eq!(cluster.shard().choose_export(&named), Some(1));
    assert_eq!(set_terms(&mut cluster, &terms("c", &["*"]), b"/"), Err(Errno::EEXIST));
    assert_eq!(set_terms(&mut cluster, &terms("c", &[]), b"/none"), Err(Errno::ENOENT));
    assert_eq!(set_terms(&mut cluster, &terms("c d", &[]), b"/"), Err(Errno::EINVAL));
    // A change keeps the number.
    assert_eq!(set_terms(&mut cluster, &terms("b", &["*", "local"]), b""), Ok(()));
    assert_eq!(order(&mut cluster, LIST), Ok(vec![(1, "a".to_owned(), 0), (2, "b".to_owned(), 0)]));
    assert_eq!(remove(&mut cluster, b"none", false), Err(Errno::ENOENT));
    assert_eq!(remove(&mut cluster, b"a", false), Ok(()));
    assert_eq!(order(&mut cluster, LIST), Ok(vec![(2, "b".to_owned(), 0)]));
    // Without clients an export still keeps others out, and the last one goes only on purpose.
    assert_eq!(set_terms(&mut cluster, &terms("b", &[]), b""), Ok(()));
    assert_eq!(cluster.shard().choose_export(&nobody), None);
    assert_eq!(remove(&mut cluster, b"b", false), Err(Errno::EBUSY));
    assert_eq!(remove(&mut cluster, b"b", true), Ok(()));
    assert_eq!(cluster.shard().choose_export(&nobody), Some(0));
}

fn remove(cluster: &mut Cluster, name: &[u8], opens: bool) -> Result<(), Errno> {
    order(cluster, ExportOrder::Remove { name: Bytes(name), opens }).map(drop)
}

/// A session of the export.
fn with_session(cluster: &mut Cluster, export: u32) -> u64 {
    let (now, endpoint) = (cluster.moment(), 100 + u128::from(export));
    let identity = Identity::Unproven;
    let owner = SessionOwner { endpoint, incarnation: 1, identity, export };
    cluster.shard().open_session(endpoint, owner, now).expect("rows in memory").session
}

/// The sessions for which fences are asked for.
fn fenced(cluster: &mut Cluster) -> Vec<u64> {
    std::iter::from_fn(|| cluster.shard().poll_fence()).map(|(session, _)| session).collect()
}

#[test]
fn sessions_end_with_the_terms_that_they_were_opened_under() {
    let mut cluster = Cluster::new(1, Config::default(), 24);
    assert_eq!(set_terms(&mut cluster, &terms("a", &["*"]), b"/"), Ok(()));
    let first = with_session(&mut cluster, 1);
    // Other clients, or nothing: nobody's rights change.
    assert_eq!(set_terms(&mut cluster, &terms("a", &["*", "local"]), b""), Ok(()));
    assert_eq!(fenced(&mut cluster), Vec::<u64>::new());
    assert!(cluster.shard().is_unjudged(first));
    assert_eq!(cluster.shard().judge_client(first, Some(1)).ok(), Some(true));
    assert!(!cluster.shard().is_unjudged(first));
    let read_only = ExportTerms { rights: Rights::ReadOnly, ..terms("a", &["*"]) };
    assert_eq!(set_terms(&mut cluster, &read_only, b""), Ok(()));
    assert_eq!(fenced(&mut cluster), [first]);
    // A client that would get another export now.
    let second = with_session(&mut cluster, 1);
    assert_eq!(cluster.shard().judge_client(second, None).ok(), Some(false));
    assert_eq!(fenced(&mut cluster), [second]);
    assert_eq!(remove(&mut cluster, b"a", true), Ok(()));
}

#[test]
fn the_number_of_a_removed_export_is_not_given_out_while_a_session_has_it() {
    let mut cluster = Cluster::new(1, Config::default(), 24);
    assert_eq!(set_terms(&mut cluster, &terms("old", &["*"]), b"/"), Ok(()));
    let session = with_session(&mut cluster, 1);
    assert_eq!(order(&mut cluster, LIST), Ok(vec![(1, "old".to_owned(), 1)]));
    assert_eq!(remove(&mut cluster, b"old", true), Ok(()));
    assert_eq!(fenced(&mut cluster), [session]);
    // It is there until all data servers have its fence.
    assert_eq!(set_terms(&mut cluster, &terms("new", &["*"]), b"/"), Ok(()));
    assert_eq!(order(&mut cluster, LIST), Ok(vec![(2, "new".to_owned(), 0)]));
}
