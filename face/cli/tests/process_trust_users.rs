//! The rights of a plain user of the server's host, and their duration.

mod support;

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use ropewalk_rpc::CallError;
use ropewalk_rpc::trust::{Grantor, SECRET_BYTES, Secret};
use ropewalk_wire::fs::data::{DataRequest, FileId};
use ropewalk_wire::fs::meta::{Access, Judge, LeaseMode, MetaReply, MetaRequest, Who};
use ropewalk_wire::fs::session::SessionRequest;
use ropewalk_wire::fs::trust::{Capability, LIMITED};
use ropewalk_wire::fs::value::{Bytes, Errno};
use rustix::net::{AddressFamily, SocketType};
use serde_json::json;
use support::site::{Site, is_root, told};
use support::stranger::{Refused, Stranger, range};

/// An address of this host that is not loopback's, if it has one.
fn own_address() -> Option<IpAddr> {
    let table = fs::read_to_string("/proc/thread-self/net/fib_trie").ok()?;
    let lines: Vec<&str> = table.lines().collect();
    lines.windows(2).find_map(|pair| {
        let address: IpAddr = pair[0].split_once("|-- ")?.1.trim().parse().ok()?;
        (pair[1].contains("/32 host LOCAL") && !address.is_loopback()).then_some(address)
    })
}

/// An address at which one connection goes on to the server's, from another address of this host.
fn detour(from: IpAddr, server: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = format!("tcp://{}", listener.local_addr().unwrap());
    let tcp = server.split(',').find_map(|part| part.strip_prefix("tcp://")).unwrap();
    let server: SocketAddr = tcp.parse().unwrap();
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::new(from, 0)).unwrap();
    rustix::net::connect(&socket, &server).unwrap();
    let onward = TcpStream::from(socket);
    std::thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let (mut calls, mut to) = (client.try_clone().unwrap(), onward.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut calls, &mut to));
        std::io::copy(&mut &onward, &mut &client)
    });
    at
}

#[test]
fn a_plain_user_is_known_wherever_on_his_host_he_connects_from() {
    if let Some(told) = told() {
        let address = told["address"].as_str().unwrap();
        let from = told["from"].as_str().map(|from| from.parse().unwrap());
        let address = from.map_or(address.to_string(), |from| detour(from, address));
        let stranger = Stranger::at(&address);
        let (_, token) = stranger.take(stranger.open(2, b"plain").unwrap());
        return assert_eq!(token & LIMITED, LIMITED, "he may act for everybody");
    }
    if !is_root() {
        return;
    }
    let from = own_address().unwrap_or(IpAddr::V4([127, 0, 0, 2].into()));
    let site = Site::new();
    let part = "a_plain_user_is_known_wherever_on_his_host_he_connects_from";
    site.as_a_stranger(part, &json!({ "address": site.address }));
    site.as_a_stranger(part, &json!({ "address": site.address, "from": from }));
}

/// A site with a file for everybody, and its inode.
fn shared_file() -> (Site, u64) {
    let site = Site::new();
    let path = site.place.path().join("shared");
    fs::write(&path, vec![7; 3_000_000]).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    site.run(&["cp", "-a", "shared", ":/"]).well();
    let inode = site.inode(":/shared");
    (site, inode)
}

/// Opens a file as who he is: its identity as of now, and the capability for it.
fn open(stranger: &Stranger, session: u64, inode: u64, user: u32) -> (FileId, Option<Capability>) {
    let judge = Judge::Server;
    let who = Who { user, group: user, groups: Bytes(&[]), judge };
    let access = Access { read: true, write: true };
    let open = MetaRequest::Open { who, inode, access, truncate: false, execute: false };
    let opened = |reply: MetaReply<'_>| match reply {
        MetaReply::Opened { entry, capability, .. } => {
            let generation = entry.attributes.object_generation;
            let epoch = entry.grant.map_or(0, |grant| grant.epoch);
            (FileId { inode, generation, epoch }, capability)
        }
        other => panic!("not opened: {other:?}"),
    };
    let (file, capability) = stranger.ask(Some(session), &open, opened).unwrap();
    let acquire = MetaRequest::Acquire { inode, mode: LeaseMode::Shared, insist: false };
    (stranger.ask(Some(session), &acquire, opened).map_or(file, |(file, _)| file), capability)
}

#[test]
fn a_capability_ends_with_its_session() {
    if let Some(told) = told() {
        let stranger = Stranger::at(told["address"].as_str().unwrap());
        let inode = told["inode"].as_u64().unwrap();
        let (session, token) = stranger.take(stranger.open(2, b"plain").unwrap());
        let (file, capability) = open(&stranger, session, inode, 65534);
        let servers = stranger.data_servers();
        let ask = |place: usize| {
            let pieces = vec![range(place, 0)];
            let read = DataRequest::Read { file, pieces, bulk: None, verify: true };
            let server = stranger.to(&servers[place]);
            server.set_session(session, 1, token);
            stranger.ask_data(&server, capability, &read, |_| ())
        };
        ask(0).unwrap();
        stranger.session(&SessionRequest::Close { session }).unwrap();
        let gone = Err(Refused::Call(CallError::NoSession));
        assert_eq!(ask(1), gone);
        // The server that was asked before hears it with its next heartbeat, long before its answer is old.
        let since = Instant::now();
        while ask(0) != gone {
            assert!(
                since.elapsed() < Duration::from_secs(20),
                "it serves a session that is closed"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        return println!("revoked within {:?}", since.elapsed());
    }
    if !is_root() {
        return;
    }
    let (site, inode) = shared_file();
    let told = json!({ "address": site.address, "inode": inode });
    site.as_a_stranger("a_capability_ends_with_its_session", &told);
}

#[test]
fn an_epoch_that_somebody_invents_keeps_nobody_from_writing() {
    let punch = |file, place| DataRequest::Punch { file, pieces: vec![range(place, 900)] };
    if let Some(told) = told() {
        let stranger = Stranger::at(told["address"].as_str().unwrap());
        let inode = told["inode"].as_u64().unwrap();
        let (session, token) = stranger.take(stranger.open(2, b"plain").unwrap());
        let (file, capability) = open(&stranger, session, inode, 65534);
        for (place, address) in stranger.data_servers().iter().enumerate() {
            let server = stranger.to(address);
            server.set_session(session, 1, token);
            let invented = FileId { epoch: u32::MAX, ..file };
            stranger.ask_data(&server, capability, &punch(invented, place), |_| ()).unwrap();
        }
        return stranger.session(&SessionRequest::Close { session }).map(drop).unwrap();
    }
    if !is_root() {
        return;
    }
    let (site, inode) = shared_file();
    let told = json!({ "address": site.address, "inode": inode });
    site.as_a_stranger("an_epoch_that_somebody_invents_keeps_nobody_from_writing", &told);
    let honest = Stranger::at(&site.address);
    let (session, token) = honest.take(honest.open(1, b"honest").unwrap());
    let (file, capability) = open(&honest, session, inode, 0);
    assert!(file.epoch > 0, "it left its inode");
    for (place, address) in honest.data_servers().iter().enumerate() {
        let server = honest.to(address);
        server.set_session(session, 1, token);
        assert_eq!(honest.ask_data(&server, capability, &punch(file, place), |_| ()), Ok(()));
        // A file id of an earlier epoch is still refused as stale.
        let late = FileId { epoch: file.epoch - 1, ..file };
        let stale = Err(Refused::Errno(Errno::ESTALE));
        assert_eq!(honest.ask_data(&server, capability, &punch(late, place), |_| ()), stale);
    }
    honest.session(&SessionRequest::Close { session }).unwrap();
    // The metadata server cuts the file, and others write it.
    site.run(&["cp", "secret", ":/shared"]).well();
    site.run(&["cp", ":/shared", "back"]).well();
    assert_eq!(fs::read(site.place.path().join("back")).unwrap(), vec![7; 3_000_000]);
}

#[test]
#[ignore = "prints a time: --ignored --nocapture"]
fn the_time_of_a_check_of_a_capability() {
    const CHECKS: u32 = 200_000;
    let grantor = Grantor::new(&Secret::new([7; SECRET_BYTES]));
    let given = grantor.capability(5, (9, 1), (true, false), 1_800_000_000);
    let begin = Instant::now();
    for _ in 0..CHECKS {
        assert!(grantor.check_capability(5, std::hint::black_box((9, 1)), &given));
    }
    println!("a check of a capability takes {:?}", begin.elapsed() / CHECKS);
}
