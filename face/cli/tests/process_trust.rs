//! Attacks that a user with a shell on a host of the cluster cannot carry out.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ropewalk_rpc::{CallError, Connection};
use ropewalk_wire::fs::data::{DataRequest, FileId};
use ropewalk_wire::fs::meta::{
    Access, AttributeChange, Heartbeat, Judge, LeaseMode, MetaReply, MetaRequest, Node, Who,
};
use ropewalk_wire::fs::session::SessionRequest;
use ropewalk_wire::fs::status::Room;
use ropewalk_wire::fs::trust::Capability;
use ropewalk_wire::fs::value::{Bytes, Errno};
use serde_json::{Value, json};
use support::command::{Plain, ropewalk};
use support::site::{Site, is_root, told};
use support::stranger::{Refused, Stranger, range};
use support::{Cluster, PROGRAM, Process};

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_string()
}

/// Everything below a directory, and itself, with its rights.
fn rights(directory: &Path) -> Vec<(PathBuf, u32)> {
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777;
    let mut found = vec![(directory.to_path_buf(), mode(directory))];
    for entry in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        match entry.is_dir() {
            true => found.extend(rights(&entry)),
            false => found.push((entry.clone(), mode(&entry))),
        }
    }
    found
}

/// Each thing below a directory that others than its owner can use.
fn wide(directory: &Path) -> Vec<(PathBuf, u32)> {
    rights(directory).into_iter().filter(|(_, mode)| mode & 0o077 != 0).collect()
}

/// A command of a user whose umask takes nothing away.
fn open_handed(arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "umask 000; exec \"$0\" \"$@\"", PROGRAM]).args(arguments);
    command
}

#[test]
fn only_the_owner_can_read_what_servers_and_commands_make() {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("file"), vec![7; 3_000_000]).unwrap();
    let (up, formatted) = (place.path().join("up"), place.path().join("formatted"));
    let capture = place.path().join("capture.pcapng");
    let mut command = open_handed(&["up", &text(&up), "--listen", "127.0.0.1:0"]);
    command.env("ROPEWALK_CAPTURE", &capture);
    let mut serving = Process::run(command, "serves at").unwrap();
    let address = serving.line.split("serves at ").nth(1).unwrap().trim().to_string();
    ropewalk(place.path(), &address, &["cp", "file", ":/"]).well();
    assert!(rights(&up).len() > 20, "a store has files: {:?}", rights(&up));
    assert_eq!(wide(&up), []);
    serving.stop();
    assert_eq!(wide(&up), []);
    let captures = fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().path());
    let captures: Vec<_> =
        captures.filter(|path| text(path).contains("capture")).flat_map(|it| wide(&it)).collect();
    assert_eq!(captures, []);
    let status = open_handed(&["format", &text(&formatted)]).stdout(Stdio::null()).status();
    assert!(status.unwrap().success());
    assert_eq!(wide(&formatted), []);
    let background = text(&place.path().join("background"));
    let words = ["up", &background, "--listen", "127.0.0.1:0", "--background"];
    // A background process keeps no pipe of ours.
    let status = open_handed(&words).stdout(Stdio::null()).status();
    assert!(status.unwrap().success());
    let found = wide(Path::new(&background));
    ropewalk(place.path(), "", &["down", &background]).well();
    assert_eq!(found, []);
}

#[test]
fn a_store_that_others_can_read_is_told_of_at_each_start() {
    let place = tempfile::tempdir().unwrap();
    let (directory, log) = (place.path().join("up"), place.path().join("log"));
    let mut said = Vec::new();
    for mode in [0o700, 0o755] {
        let stderr = fs::File::create(&log).unwrap();
        let mut command = Command::new(PROGRAM);
        command.args(["up", &text(&directory), "--listen", "127.0.0.1:0"]).stderr(stderr);
        if mode != 0o700 {
            let store = directory.join("data1");
            fs::set_permissions(store, fs::Permissions::from_mode(mode)).unwrap();
        }
        Process::run(command, "serves at").unwrap().stop();
        said.push(fs::read_to_string(&log).unwrap());
    }
    assert!(!said[0].contains("chmod"), "{}", said[0]);
    let data = text(&directory.join("data1"));
    assert_eq!(said[1].matches("chmod").count(), 1, "{}", said[1]);
    assert!(said[1].contains(&format!("chmod -R go= {data}")), "{}", said[1]);
}

const BAD_KEY: Refused = Refused::Call(CallError::Unproven);
const NOT_HIS: Refused = Refused::Call(CallError::NoSession);

#[test]
fn strangers_neither_see_nor_use_nor_end_sessions() {
    if let Some(told) = told() {
        return steal_a_session(&told);
    }
    if !is_root() {
        return;
    }
    let site = Site::new();
    // Somebody who is honest: root's program, with a session and an open file.
    let honest = Stranger::at(&site.address);
    let (session, token) = honest.take(honest.open(1, b"honest").unwrap());
    let open = MetaRequest::GetAttributes { inode: 1 };
    honest.ask(Some(session), &open, |_| ()).unwrap();
    let told = json!({
        "address": site.address, "session": session, "token": token, "inode": site.inode(":/secret"),
    });
    site.as_a_stranger("strangers_neither_see_nor_use_nor_end_sessions", &told);
    // It was none of their business, and all goes on.
    honest.ask(Some(session), &open, |_| ()).unwrap();
    let state = site.status();
    let names = state["sessions"].as_array().unwrap();
    assert!(names.iter().any(|row| row["client"] == "honest"), "{state}");
    let refused = &state["metadata"]["calls"]["refused to strangers"]["calls"];
    assert!(refused.as_u64() >= Some(4), "{state}");
    site.run(&["check", "--read"]).well();
    site.run(&["cp", ":/secret", "back"]).well();
    assert_eq!(fs::read(site.place.path().join("back")).unwrap(), vec![7; 3_000_000]);
}

fn steal_a_session(told: &Value) {
    let number = |name: &str| told[name].as_u64().unwrap();
    let stranger = Stranger::at(told["address"].as_str().unwrap());
    let (session, token, inode) = (number("session"), number("token"), number("inode"));
    let eperm = Err(Refused::Errno(Errno::EPERM));
    let list = MetaRequest::ListSessions { after: 0, bytes_max: 4096 };
    assert_eq!(stranger.ask(None, &list, |_| ()), eperm);
    let list = MetaRequest::ListInodes { from: 0, bytes_max: 4096 };
    assert_eq!(stranger.ask(None, &list, |_| ()), eperm);
    assert_eq!(stranger.ask(None, &MetaRequest::GetPath { inode }, |_| ()), eperm);
    let objects = [&inode.to_le_bytes()[..], &1u32.to_le_bytes()].concat();
    let discard = MetaRequest::Discard { server: 0, objects: Bytes(&objects) };
    assert_eq!(stranger.ask(None, &discard, |_| ()), eperm);
    assert_eq!(stranger.ask(None, &MetaRequest::Admit { server: 9 }, |_| ()), eperm);
    // As if the session were his, even with its token.
    stranger.steal(session, token);
    let look = MetaRequest::GetAttributes { inode: 1 };
    assert_eq!(stranger.ask(Some(session), &look, |_| ()), Err(NOT_HIS));
    let renewed = stranger.session(&SessionRequest::Renew { session });
    assert_eq!(renewed, Err(Refused::Errno(Errno::ESTALE)));
    // Nor does it move to him: he does not know what its owner was told.
    let (endpoint, incarnation) = (stranger.origin.0.0, stranger.origin.1.0);
    let to_him = SessionRequest::Move { session, endpoint, incarnation, tag: 7 };
    assert_eq!(stranger.session(&to_him), Err(Refused::Errno(Errno::ESTALE)));
    stranger.session(&SessionRequest::Close { session }).unwrap();
    for (place, address) in stranger.data_servers().iter().enumerate() {
        let server = stranger.to(address);
        server.set_session(session, 1, token);
        let file = FileId { inode, generation: 1, epoch: 1 };
        let pieces = vec![range(place, 0)];
        let read = DataRequest::Read { file, pieces, bulk: None, verify: true };
        assert_eq!(stranger.ask_data(&server, None, &read, |_| ()), Err(NOT_HIS));
        let sync = DataRequest::Sync { files: vec![file], groups: Vec::new() };
        assert_eq!(stranger.ask_data(&server, None, &sync, |_| ()), Err(NOT_HIS));
        server.set_session(0, 0, 0);
        assert_eq!(stranger.ask_data(&server, None, &read, |_| ()), Err(NOT_HIS));
        destroy(&stranger, &server, file, session);
    }
}

/// Requests to a data server that only the metadata server and administrators may make.
fn destroy(stranger: &Stranger, server: &Connection, file: FileId, session: u64) {
    let pieces = vec![range(0, 0)];
    for request in [
        DataRequest::Reap { inodes: vec![(file.inode, u32::MAX)] },
        DataRequest::Fence { session, epoch: u32::MAX },
        DataRequest::Truncate { file, stripe: 0, offset: 0, groups: Vec::new() },
        DataRequest::Punch { file, pieces },
        DataRequest::List { after: None, bytes_max: 4096 },
        DataRequest::Examine { objects: Vec::new(), read: true },
        DataRequest::Sync { files: vec![file], groups: Vec::new() },
    ] {
        assert_eq!(stranger.ask_data(server, None, &request, |_| ()), Err(BAD_KEY), "{request:?}");
    }
    stranger.ask_data(server, None, &DataRequest::Status, |_| ()).unwrap();
}

#[test]
fn nobody_joins_by_a_heartbeat_of_his_own() {
    let site = Site::new();
    // Not even root without the secret: a program of his may have lost its way.
    let stranger = Stranger::at(&site.address);
    for server in [0, 7] {
        let request = MetaRequest::Heartbeat(Heartbeat {
            server,
            boot: 1,
            era: 1,
            store: 1,
            history: 0,
            met: 0,
            known_by: 0,
            replace: true,
            admit: true,
            room: Room::default(),
            address: Bytes(b"tcp://127.0.0.1:1"),
            domain: Bytes(b""),
        });
        assert_eq!(stranger.ask(None, &request, |_| ()), Err(BAD_KEY));
    }
    let state = site.status();
    assert_eq!(state["servers"].as_array().unwrap().len(), 2, "{state}");
    site.run(&["cp", ":/secret", "back"]).well();
}

#[test]
fn a_plain_user_acts_for_himself_in_a_cluster_of_roots() {
    if let Some(told) = told() {
        return act_for_root(&told);
    }
    if !is_root() {
        return;
    }
    let site = Site::new();
    let all = site.place.path().join("all");
    fs::create_dir(&all).unwrap();
    fs::set_permissions(&all, fs::Permissions::from_mode(0o777)).unwrap();
    site.run(&["cp", "-a", "all", ":/"]).well();
    let inodes = [":/secret", ":/small", ":/open"].map(|path| site.inode(path));
    let told = json!({ "address": site.address, "inodes": inodes });
    site.as_a_stranger("a_plain_user_acts_for_himself_in_a_cluster_of_roots", &told);
    // With the program itself he does what he may.
    let open = tempfile::tempdir().unwrap();
    let plain = Plain::new(open.path());
    fs::set_permissions(open.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let back = text(&open.path().join("back"));
    plain.run(&site.address, &["cp", ":/open", &back]).well();
    assert_eq!(fs::read(&back).unwrap(), vec![7; 3_000_000]);
    plain.run(&site.address, &["cp", &back, ":/all/his"]).well();
    plain.run(&site.address, &["cp", ":/all/his", &format!("{back}2")]).well();
    assert_eq!(fs::read(format!("{back}2")).unwrap(), vec![7; 3_000_000]);
    for path in [":/secret", ":/small"] {
        let error = plain.run(&site.address, &["cp", path, &back]).badly();
        assert!(error.contains("Permission denied"), "{error}");
    }
    let error = plain.run(&site.address, &["check"]).badly();
    assert!(error.contains("for administrators only"), "{error}");
    let status = plain.run(&site.address, &["status", "--interval", "0"]).well();
    assert!(status.contains("; only administrators see the list"), "{status}");
}

fn act_for_root(told: &Value) {
    let stranger = Stranger::at(told["address"].as_str().unwrap());
    let (session, token) = stranger.take(stranger.open(2, b"plain").unwrap());
    let inodes: Vec<u64> =
        told["inodes"].as_array().unwrap().iter().map(|it| it.as_u64().unwrap()).collect();
    let (secret, small, open) = (inodes[0], inodes[1], inodes[2]);
    let eacces = Err(Refused::Errno(Errno::EACCES));
    let judge = Judge::Kernel { keeps_privileges: true };
    let own = Who { user: 65534, group: 65534, groups: Bytes(&[]), judge };
    let greedy = Who { groups: Bytes(&0u32.to_le_bytes()), ..own };
    let access = Access { read: true, write: false };
    let ask = |request: &MetaRequest<'_>| stranger.ask(Some(session), request, |_| ());
    let as_root = MetaRequest::Open {
        who: Who::ROOT,
        inode: secret,
        access,
        truncate: false,
        execute: false,
    };
    assert_eq!(ask(&as_root), Err(Refused::Errno(Errno::EPERM)));
    let create = MetaRequest::Make {
        who: Who::ROOT,
        parent: 1,
        name: Bytes(b"x"),
        mode: 0o644,
        node: Node::File,
    };
    assert_eq!(ask(&create), Err(Refused::Errno(Errno::EPERM)));
    for who in [own, greedy] {
        let request =
            MetaRequest::Open { who, inode: secret, access, truncate: false, execute: false };
        assert_eq!(ask(&request), eacces);
    }
    // Requests that name no user.
    for inode in [secret, small] {
        for mode in [LeaseMode::Read, LeaseMode::Shared, LeaseMode::Write] {
            assert_eq!(ask(&MetaRequest::Acquire { inode, mode, insist: false }), eacces);
        }
        assert_eq!(ask(&MetaRequest::ReadInline { inode }), eacces);
        assert_eq!(ask(&MetaRequest::RenewEpoch { inode }), eacces);
        assert_eq!(ask(&MetaRequest::ReserveAppend { inode, epoch: 0, len: 5 }), eacces);
        let data = Bytes(b"new");
        let write = MetaRequest::WriteInline {
            inode,
            epoch: 0,
            offset: 0,
            data,
            append: false,
            kill_privileges: false,
        };
        assert_eq!(ask(&write), eacces);
        let change = AttributeChange { size: Some(0), through_handle: true, ..Default::default() };
        assert_eq!(ask(&MetaRequest::SetAttributes { who: own, inode, change }), eacces);
    }
    assert_eq!(
        ask(&MetaRequest::Acquire { inode: open, mode: LeaseMode::Write, insist: false }),
        eacces
    );
    let request =
        MetaRequest::Open { who: own, inode: open, access, truncate: false, execute: false };
    let capability = stranger.ask(Some(session), &request, |reply| match reply {
        MetaReply::Opened { capability, .. } => capability.expect("he is limited"),
        other => panic!("not opened: {other:?}"),
    });
    let files = (secret, open);
    act_for_root_at_data_servers(&stranger, (session, token), capability.unwrap(), files);
}

/// Reads and changes through data servers with a capability to read one file.
fn act_for_root_at_data_servers(
    stranger: &Stranger,
    (session, token): (u64, u64),
    own: Capability,
    (secret, open): (u64, u64),
) {
    let eacces = Err(Refused::Errno(Errno::EACCES));
    let forged = Capability { writes: true, tag: [7; 16], ..own };
    for (place, address) in stranger.data_servers().iter().enumerate() {
        let server = stranger.to(address);
        server.set_session(session, 1, token);
        let pieces = vec![range(place, 0)];
        let read = |inode| DataRequest::Read {
            file: FileId { inode, generation: 0, epoch: 9 },
            pieces: pieces.clone(),
            bulk: None,
            verify: true,
        };
        let old = Err(Refused::Call(CallError::OldCapability));
        for shown in [None, Some(own), Some(forged)] {
            assert_eq!(stranger.ask_data(&server, shown, &read(secret), |_| ()), old);
        }
        stranger.ask_data(&server, Some(own), &read(open), |_| ()).unwrap();
        let file = FileId { inode: open, generation: 0, epoch: 9 };
        let punch = DataRequest::Punch { file, pieces: pieces.clone() };
        assert_eq!(stranger.ask_data(&server, Some(own), &punch, |_| ()), eacces);
        let more = Capability { writes: true, ..own };
        assert_eq!(stranger.ask_data(&server, Some(more), &punch, |_| ()), old);
        // His token says that he is limited, and cannot say otherwise.
        server.set_session(session, 1, token & !1);
        assert_eq!(stranger.ask_data(&server, None, &read(open), |_| ()), Err(NOT_HIS));
    }
}

/// A stranger who knows a session's number tries to use, renew and end it: he is refused.
fn try_to_take(stranger: &Stranger, session: u64, token: u64, inode: u64) {
    stranger.steal(session, token);
    let open = Some(Access { read: true, write: true });
    for request in [
        MetaRequest::Reclaim { inode, mode: LeaseMode::Write, open },
        MetaRequest::ReclaimDone,
        MetaRequest::Release { inode, number: u64::MAX, keep: LeaseMode::None, open: None },
        MetaRequest::GetAttributes { inode },
        MetaRequest::Sync,
    ] {
        assert_eq!(stranger.ask(Some(session), &request, |_| ()), Err(NOT_HIS), "{request:?}");
    }
    let renewed = stranger.session(&SessionRequest::Renew { session });
    assert_eq!(renewed, Err(Refused::Errno(Errno::ESTALE)));
    stranger.session(&SessionRequest::Close { session }).unwrap();
}

#[test]
fn after_a_restart_a_session_is_taken_up_by_its_owner_alone() {
    let place = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(&place.path().join("up"));
    let address = cluster.address();
    let honest = Stranger::at(&address);
    let (session, token) = honest.take(honest.open(1, b"honest").unwrap());
    let access = Access { read: true, write: true };
    // Nobody else keeps it: it has no name.
    let make = MetaRequest::Temporary { who: Who::ROOT, parent: 1, mode: 0o600, access };
    let inode = honest.ask(Some(session), &make, |reply| match reply {
        MetaReply::Opened { entry, .. } => entry.attributes.inode,
        other => panic!("not made: {other:?}"),
    });
    let inode = inode.unwrap();
    // A silent owner: the session is in its grace period when the others come.
    cluster.process.kill();
    cluster.restart();
    let other = Stranger::at(&address);
    for shown in [0, token, token ^ 1, token ^ 2] {
        try_to_take(&other, session, shown, inode);
    }
    let (endpoint, incarnation) = honest.origin;
    let twin = Stranger::posing(&address, endpoint, incarnation);
    for shown in [0, token ^ 1, token ^ 2] {
        try_to_take(&twin, session, shown, inode);
    }
    drop(twin);
    // One who calls himself the same client ends nothing by that.
    other.open(1, b"honest").unwrap();
    let reclaim = MetaRequest::Reclaim { inode, mode: LeaseMode::Write, open: Some(access) };
    honest.ask(Some(session), &reclaim, |_| ()).unwrap();
    honest.ask(Some(session), &MetaRequest::ReclaimDone, |_| ()).unwrap();
    honest.session(&SessionRequest::Renew { session }).unwrap();
    try_to_take(&other, session, token, inode);
    // Data servers, which know nobody after their restart, look at both, too.
    for address in other.data_servers() {
        let server = other.to(&address);
        let file = FileId { inode, generation: 1, epoch: 1 };
        for shown in [0, token, token ^ 2] {
            server.set_session(session, 1, shown);
            let sync = DataRequest::Sync { files: vec![file], groups: Vec::new() };
            assert_eq!(other.ask_data(&server, None, &sync, |_| ()), Err(NOT_HIS));
        }
    }
    honest.ask(Some(session), &MetaRequest::GetAttributes { inode }, |_| ()).unwrap();
    honest.session(&SessionRequest::Close { session }).unwrap();
    let gone = honest.ask(Some(session), &MetaRequest::GetAttributes { inode }, |_| ());
    assert_eq!(gone, Err(NOT_HIS));
}

/// Resident memory of a process, in bytes.
fn resident(process: &Process) -> u64 {
    let pid = process.pid().as_raw_nonzero();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// The memory of sessions that `docs/design/071-trust.md` states: of those that were opened, and of those that
/// have a directory open as well. With each 64 of them comes a client's endpoint and its connection.
#[test]
fn ten_thousand_sessions_cost_a_server_little() {
    const CLIENTS: u64 = 157;
    const SESSIONS: u64 = CLIENTS * 64;
    let access = Access { read: true, write: false };
    let open = |inode| MetaRequest::Open {
        who: Who::ROOT,
        inode,
        access,
        truncate: false,
        execute: false,
    };
    for (what, uses) in [("opened", false), ("with a directory open", true)] {
        let site = Site::new();
        let owner = Stranger::at(&site.address);
        let (session, _) = owner.take(owner.open(1 << 40, b"owner").unwrap());
        let directories: Vec<u64> = (0..64u8)
            .map(|name| {
                let name = [b'0' + name];
                let (node, mode) = (Node::Directory, 0o755);
                let name = Bytes(&name);
                let make = MetaRequest::Make { who: Who::ROOT, parent: 1, name, mode, node };
                let made = owner.ask(Some(session), &make, |reply| match reply {
                    MetaReply::Entry(entry) => entry.attributes.inode,
                    other => panic!("not made: {other:?}"),
                });
                made.unwrap()
            })
            .collect();
        owner.session(&SessionRequest::Close { session }).unwrap();
        let before = resident(&site.up);
        let mut clients = Vec::new();
        for number in 0..CLIENTS {
            let client = Stranger::at(&site.address);
            for (session, directory) in (0..64).zip(&directories) {
                let opened = client.open(u128::from(number * 64 + session), b"one of many");
                let (session, _) = client.take(opened.unwrap());
                if uses {
                    client.ask(Some(session), &open(*directory), |_| ()).unwrap();
                }
            }
            clients.push(client);
        }
        let after = resident(&site.up);
        let each = (after - before) / SESSIONS;
        println!("{SESSIONS} sessions, {what}: {each} bytes each, {before} before, {after} after");
        let count = site.status()["metadata"]["sessions"].as_u64().unwrap();
        assert!(count >= SESSIONS, "{count} are left");
        assert!(each < 4096, "{each} bytes");
    }
}

#[test]
fn what_a_client_calls_itself_does_nothing_to_a_terminal() {
    let site = Site::new();
    let stranger = Stranger::at(&site.address);
    let name = "evil\u{1b}[2J\u{1b}]0;title\u{7}\r\n\u{9b}31m\u{202e}";
    stranger.take(stranger.open(3, name.as_bytes()).unwrap());
    let status = site.run(&["status", "--interval", "0"]).well();
    assert!(status.contains("evil\\x1b[2J"), "{status:?}");
    let told = |letter: char| letter != '\n' && (letter.is_control() || letter == '\u{202e}');
    assert!(!status.contains(told), "{status:?}");
    let json = site.status().to_string();
    assert!(!json.contains("\\u001b") && json.contains("evil\\\\x1b"), "{json}");
}

/// The secret of the cluster in this directory.
fn secret(up: &Path) -> [u8; 32] {
    let file = fs::read_to_string(up.join("cluster")).unwrap();
    let digits = file.lines().nth(1).unwrap().rsplit(' ').next().unwrap();
    assert_eq!(digits.len(), 64, "32 bytes");
    std::array::from_fn(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap())
}

#[test]
fn of_servers_that_ask_to_join_the_latest_are_shown_and_steer_no_terminal() {
    let site = Site::new();
    let secret = secret(&site.place.path().join("up"));
    let stranger = Stranger::at(&site.address);
    let address = Bytes("tcp://evil\u{1b}[2J\r\n\u{9b}31m\u{202e}:1".as_bytes());
    for server in 100..200 {
        let (replace, admit, room) = (false, false, Room::default());
        let (boot, store, history) = (1, 1, 0);
        let (met, known_by, era) = (0, 0, 1);
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
            domain: Bytes(b""),
        };
        assert_eq!(stranger.beat(&site.address, secret, beat), Some(false));
    }
    let status = site.run(&["status", "--interval", "0"]).well();
    assert_eq!(status.matches("asked to join").count(), 64, "{status}");
    assert!(status.contains("'ropewalk server add 199'"), "{status}");
    assert!(!status.contains("server add 135'"), "{status}");
    assert!(status.contains("evil\\x1b[2J"), "{status:?}");
    let steers = |letter: char| letter != '\n' && (letter.is_control() || letter == '\u{202e}');
    assert!(!status.contains(steers), "{status:?}");
    let state = site.status();
    assert_eq!(state["asking"].as_array().unwrap().len(), 64, "{state}");
    assert!(!state.to_string().contains("\\u001b"), "{state}");
    assert_eq!(state["servers"].as_array().unwrap().len(), 2, "{state}");
    site.run(&["check", "--read"]).well();
    site.run(&["df"]).well();
}

#[test]
fn one_client_opens_a_bounded_number_of_sessions() {
    let site = Site::new();
    let stranger = Stranger::at(&site.address);
    let refused = Err(Refused::Errno(Errno::EUSERS));
    let taken = (0..1000).take_while(|client| stranger.open(100 + client, b"many") != refused);
    assert_eq!(taken.count(), 64);
    // Others are none the worse for it, and he himself may again when some have ended.
    site.run(&["ls", ":/"]).well();
    let deadline = Instant::now() + Duration::from_secs(30);
    while stranger.open(5000, b"later") == refused {
        assert!(Instant::now() < deadline, "his sessions do not end");
        std::thread::sleep(Duration::from_millis(200));
    }
}
