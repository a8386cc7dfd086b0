//! The metadata server on simulated nodes: sessions, leases, locks, data servers.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::meta_cluster::client::{self, Client, WRITE, create, lookup, make, rename, unlink};
use crate::meta_cluster::data_server::{self, Told};
use crate::meta_cluster::{LIMIT, META, Meta, config, endpoint};
use ropewalk_sim::disk::VirtualDisk;
use ropewalk_sim::{Kill, Simulation, run_seeds};
use ropewalk_wire::fs::meta::*;
use ropewalk_wire::fs::value::{Bytes, Errno};

type Shared = Rc<RefCell<Option<Rc<Client>>>>;

/// Adds a client node; the client, as soon as it has a session.
fn add_client(simulation: &mut Simulation, name: &str) -> Rc<Client> {
    let place = Shared::default();
    let started = place.clone();
    simulation.add_node(name, Arc::new(VirtualDisk::new(0)), move |node| {
        let (endpoint, node, place) = (endpoint(node), node.clone(), place.clone());
        let world = node.world().clone();
        world.spawn(async move {
            let client = Client::start(&node, endpoint).await;
            *place.borrow_mut() = Some(client);
        });
    });
    assert!(simulation.run_until(LIMIT, |_| started.borrow().is_some()), "no session");
    let client = started.borrow().clone();
    client.expect("just seen")
}

/// A call of a client, to its end.
fn call(
    simulation: &mut Simulation,
    node: &str,
    client: &Rc<Client>,
    request: MetaRequest<'static>,
) -> client::Result {
    let client = client.clone();
    let result = simulation.block_on(node, LIMIT, async move { client.call(&request).await });
    result.expect("the call ends in time")
}

fn lock(kind: LockKind) -> LockRange {
    LockRange { kind, whole_file: false, owner: 1, process: 1, start: 0, end: u64::MAX }
}

#[test]
fn a_session_creates_finds_lists_renames_and_removes_without_any_data_server() {
    run_seeds(0..10, |simulation| {
        let meta = Meta::add(simulation, config());
        data_server::add(simulation, 1);
        let client = add_client(simulation, "a");
        let mut call = |request| call(simulation, "a", &client, request);
        let made = call(make(ROOT, b"d", 0o755, client::Node_::Directory));
        let directory = made.inode();
        let inode = call(create(directory, b"one", 0o644)).inode();
        assert_eq!(call(create(directory, b"one", 0o644)).get(), Err(Errno::EEXIST));
        assert_eq!(call(lookup(directory, b"one")).inode(), inode);
        call(rename(directory, b"one", b"two")).ok();
        assert!(matches!(call(lookup(directory, b"one")).ok(), MetaReply::Missing { .. }));
        assert_eq!(call(MetaRequest::GetAttributes { inode }).attributes().mode, 0o644);
        call(unlink(directory, b"two")).ok();
        assert_eq!(call(unlink(directory, b"two")).get(), Err(Errno::ENOENT));
        assert_eq!(call(MetaRequest::Sync).ok(), MetaReply::Done);
        let lister = client.clone();
        let list = async move { lister.list(directory).await };
        assert_eq!(simulation.block_on("a", LIMIT, list).map(|list| list.len()), Some(0));
        let server = meta.server();
        assert_eq!(server.messages_to_data_servers().total(), 0);
        assert_eq!(server.calls()["create"], 2);
        assert_eq!(server.marks().durable, server.marks().written);
    });
}

#[test]
fn a_file_is_recalled_from_its_writer_and_read_by_another_client() {
    run_seeds(0..20, |simulation| {
        let _meta = Meta::add(simulation, config());
        data_server::add(simulation, 1);
        let (a, b) = (add_client(simulation, "a"), add_client(simulation, "b"));
        let created = call(simulation, "a", &a, create(ROOT, b"f", 0o644));
        let (inode, grant) = (created.inode(), created.grant().expect("nobody else is there"));
        assert_eq!(grant.mode, LeaseMode::Write);
        let open = MetaRequest::Open {
            who: Who::ROOT,
            inode,
            access: WRITE,
            truncate: false,
            execute: false,
        };
        let opened = call(simulation, "b", &b, open);
        assert_eq!(opened.grant().map(|grant| grant.mode), Some(LeaseMode::Shared));
        let heard = a.heard.borrow().clone();
        assert!(
            matches!(heard[..], [Callback::Recall { inode: of, .. }] if of == inode),
            "{heard:?}"
        );
    });
}

#[test]
fn a_silent_client_is_fenced_and_its_locks_fall_to_those_who_wait() {
    run_seeds(0..20, |simulation| {
        let meta = Meta::add(simulation, config());
        let told = data_server::add(simulation, 1);
        let (a, b) = (add_client(simulation, "a"), add_client(simulation, "b"));
        let inode = call(simulation, "a", &a, create(ROOT, b"f", 0o644)).inode();
        let range = lock(LockKind::Exclusive);
        let take = MetaRequest::SetLock { inode, range, wait: true };
        assert_eq!(call(simulation, "a", &a, take).ok(), MetaReply::Done);
        assert_eq!(call(simulation, "b", &b, take).ok(), MetaReply::Queued);
        let dead = a.session();
        let killed = simulation.now();
        drop(a);
        simulation.kill("a", Kill::Power);
        let granted = Callback::LockGranted { inode, owner: 1, start: 0 };
        assert!(simulation.run_until(LIMIT, |_| b.heard.borrow().contains(&granted)));
        assert!(
            simulation.now().since(killed) >= Duration::from_secs(9),
            "before its term was over"
        );
        assert_eq!(*told.borrow(), [Told::Fence(dead, 2)], "the fence came before the grant");
        assert_eq!(call(simulation, "b", &b, take).ok(), MetaReply::Done);
        assert_eq!(meta.server().messages_to_data_servers().total(), 1);
    });
}

#[test]
fn striped_files_are_cut_and_reaped_where_their_objects_are() {
    run_seeds(0..10, |simulation| {
        let meta = Meta::add(simulation, config());
        let told = [data_server::add(simulation, 1), data_server::add(simulation, 2)];
        simulation.run_for(Duration::from_secs(2));
        let a = add_client(simulation, "a");
        let created = call(simulation, "a", &a, create(ROOT, b"f", 0o644));
        let (inode, epoch) = (created.inode(), a.epoch(created.inode()));
        let report = Report {
            epoch,
            size: Some(5 << 20),
            modified: None,
            accessed: None,
            written: Bytes(&[0, 0, 0, 0, 5, 0, 0, 0]),
            punched: Bytes(&[]),
        };
        let version = created.attributes().version;
        call(simulation, "a", &a, MetaRequest::LeaveInline { inode, version, report }).ok();
        let change = AttributeChange { size: Some((1 << 20) + 5), ..AttributeChange::default() };
        let cut = MetaRequest::SetAttributes { who: Who::ROOT, inode, change };
        assert_eq!(call(simulation, "a", &a, cut).attributes().size, (1 << 20) + 5);
        for told in &told {
            assert_eq!(*told.borrow(), [Told::Truncate(inode, 2, 5)]);
        }
        simulation.kill("data2", Kill::Power);
        call(simulation, "a", &a, unlink(ROOT, b"f")).ok();
        let closing = a.clone();
        simulation.block_on("a", LIMIT, async move { closing.close(inode).await });
        simulation.run_for(Duration::from_secs(5));
        assert!(!told[1].borrow().iter().any(|told| matches!(told, Told::Reap(_))));
        // The row outlives the server, and a data server that comes back is told.
        meta.kill(simulation, Kill::Power);
        simulation.run_for(Duration::from_secs(1));
        meta.restart(simulation);
        simulation.restart("data2");
        let reaped = |told: &data_server::Log| {
            let wanted = |told: &Told| matches!(told, Told::Reap(list) if list[0].0 == inode);
            told.borrow().iter().any(wanted)
        };
        assert!(simulation.run_until(LIMIT, |_| told.iter().all(reaped)));
        simulation.run_for(Duration::from_secs(20));
        let before = meta.server().messages_to_data_servers();
        simulation.run_for(Duration::from_secs(20));
        assert_eq!(meta.server().messages_to_data_servers(), before, "done is done");
    });
}

#[test]
fn the_grace_period_ends_at_once_when_nobody_has_anything_to_reclaim() {
    run_seeds(0..5, |simulation| {
        let meta = Meta::add(simulation, config());
        data_server::add(simulation, 1);
        let a = add_client(simulation, "a");
        call(simulation, "a", &a, create(ROOT, b"f", 0o644)).ok();
        let leaving = a.clone();
        simulation.block_on("a", LIMIT, async move { leaving.close_session().await });
        let server = meta.server();
        let stopped = simulation.block_on(META, LIMIT, async move { server.stop().await });
        assert!(matches!(stopped, Some(Ok(()))), "{stopped:?}");
        meta.kill(simulation, Kill::Power);
        meta.restart(simulation);
        meta.await_start(simulation);
        assert!(!meta.server().is_in_grace());
        let b = add_client(simulation, "b");
        let found = call(simulation, "b", &b, lookup(ROOT, b"f"));
        assert_eq!(found.attributes().mode, 0o644);
    });
}

#[test]
fn a_full_disk_refuses_changes_serves_the_rest_and_recovers_by_itself() {
    run_seeds(0..5, |simulation| {
        let meta = Meta::add(simulation, config());
        data_server::add(simulation, 1);
        let a = add_client(simulation, "a");
        call(simulation, "a", &a, create(ROOT, b"f", 0o644)).ok();
        meta.disk.set_capacity(1 << 20);
        let filler = a.clone();
        let refused = simulation.block_on("a", LIMIT, async move {
            for number in 0..2000u32 {
                let name = format!("file-{number}").into_bytes();
                if let Err(errno) = filler.call(&create(ROOT, &name, 0o600)).await.get() {
                    return Some(errno);
                }
            }
            None
        });
        assert_eq!(refused, Some(Some(Errno::ENOSPC)));
        call(simulation, "a", &a, lookup(ROOT, b"f")).ok();
        meta.disk.set_capacity(1 << 30);
        simulation.run_for(Duration::from_secs(2));
        call(simulation, "a", &a, create(ROOT, b"g", 0o644)).ok();
        assert_eq!(meta.server().failure(), None);
    });
}

#[test]
fn damage_in_the_index_fails_what_needs_it_and_the_server_goes_on() {
    run_seeds(0..3, |simulation| {
        let mut config = config();
        config.store.cache_bytes = 32 << 10;
        let meta = Meta::add(simulation, config);
        data_server::add(simulation, 1);
        let a = add_client(simulation, "a");
        let name = |number: u32| format!("{number:0>180}").into_bytes();
        for number in 0..300 {
            let name: &'static [u8] = name(number).leak();
            call(simulation, "a", &a, create(ROOT, name, 0o644)).ok();
        }
        let server = meta.server();
        let stopped = simulation.block_on(META, LIMIT, async move { server.stop().await });
        assert!(matches!(stopped, Some(Ok(()))), "{stopped:?}");
        meta.kill(simulation, Kill::Power);
        meta.restart(simulation);
        meta.await_start(simulation);
        // One leaf, and what former transactions left of it. It rots while the server runs: without
        // optimization the engine walks its whole file at a start.
        let index = std::path::Path::new("/meta/index.redb");
        let (bytes, wanted) = (meta.disk.bytes(index).unwrap(), name(150));
        let all = bytes.windows(wanted.len()).enumerate().filter(|(_, found)| *found == wanted);
        let places: Vec<usize> = all.map(|(at, _)| at).collect();
        assert!(!places.is_empty());
        for at in places {
            meta.disk.flip_bit(index, at as u64, 3);
        }
        let b = add_client(simulation, "b");
        let mut failed = 0;
        for number in 0..300 {
            let name: &'static [u8] = name(number).leak();
            match call(simulation, "b", &b, lookup(ROOT, name)).get() {
                Ok(_) => {}
                Err(errno) => {
                    assert_eq!(errno, Errno::EIO, "file {number}");
                    failed += 1;
                }
            }
        }
        assert!((1..60).contains(&failed), "{failed} of 300 are unreadable");
        assert_eq!(meta.server().failure(), None);
        call(simulation, "b", &b, create(ROOT, b"new", 0o644)).ok();
        call(simulation, "b", &b, lookup(ROOT, b"new")).ok();
    });
}
