//! Punch, truncate, reap, fence, epochs, listing, failing disks, heartbeats.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::disk::{Disk, Kind};
use ropewalk_base::ids::{ClusterId, ServerId};
use ropewalk_base::task::join_all;
use ropewalk_data::{DataConfig, DataError, DataServer};
use ropewalk_net::Address;
use ropewalk_rpc::{Answer, CallError, Handler, Incoming, Marks, Responder, Secret, Server};
use ropewalk_sim::disk::VirtualDisk;
use ropewalk_sim::endpoint::endpoint;
use ropewalk_sim::{Kill, SimConfig, Simulation};
use ropewalk_store::superblock::{ClaimError, Expect};
use ropewalk_wire::fs::data::{Condition, DataRequest, EXAMINED_MAX, FileId, Found, ObjectName};
use ropewalk_wire::fs::head::Status;
use ropewalk_wire::fs::map::FIRST_EPOCH;
use ropewalk_wire::fs::meta::{Clock, Heartbeat, MetaReply, MetaRequest, MetaResult, Registration};
use ropewalk_wire::fs::value::Errno;
use ropewalk_wire::fs::{decode, encode};

use crate::client::{Client, Failed, file, range, secret};
use crate::cluster::{Cluster, LIMIT, SESSION, Setup, add_client, run};

const STALE: Failed = Failed::Errno(Errno::ESTALE);

fn cluster(seed: u64) -> (Simulation, Cluster, Client) {
    let mut simulation = Simulation::new(seed);
    let cluster = Cluster::new(&mut simulation, &Setup::new(SimConfig::stream()));
    // Without a session, as the metadata server.
    let meta = add_client(&mut simulation, "meta", SimConfig::stream());
    (simulation, cluster, meta)
}

fn run_meta<T: 'static>(
    simulation: &mut Simulation,
    future: impl Future<Output = T> + 'static,
) -> T {
    simulation.block_on("meta", LIMIT, future).expect("it ends in time")
}

#[test]
fn punched_and_truncated_bytes_read_as_zeros_and_others_stay() {
    let (mut simulation, cluster, _) = cluster(21);
    let client = cluster.client.clone();
    run(&mut simulation, async move {
        for stripe in 0..4 {
            client.write(file(1), &[range(stripe, 0, 20_000)], &[9; 20_000]).await.unwrap();
        }
        let pieces = vec![range(0, 100, 5), range(1, 3000, 10_000), range(9, 0, 100)];
        client.done(&DataRequest::Punch { file: file(1), pieces }).await.unwrap();
        let read = client.read(file(1), &[range(0, 99, 7), range(1, 2999, 10_002)]).await.unwrap();
        assert_eq!(read.bytes[..7], [9, 0, 0, 0, 0, 0, 9]);
        assert_eq!((read.bytes[7], read.bytes[7 + 10_001]), (9, 9));
        assert!(read.bytes[8..7 + 10_001].iter().all(|byte| *byte == 0));
        // 5000 bytes stay of stripe 2; nothing does of stripe 3.
        let request =
            DataRequest::Truncate { file: file(1), stripe: 3, offset: 5000, groups: Vec::new() };
        client.done(&request).await.unwrap();
        let pieces = [range(1, 19_999, 1), range(2, 0, 20_000), range(3, 0, 20_000)];
        let read = client.read(file(1), &pieces).await.unwrap();
        assert!(read.bytes[..5001].iter().all(|byte| *byte == 9));
        assert!(read.bytes[5001..].iter().all(|byte| *byte == 0));
        let request =
            DataRequest::Truncate { file: file(1), stripe: 0, offset: 0, groups: Vec::new() };
        client.done(&request).await.unwrap();
        let read = client.read(file(1), &pieces).await.unwrap();
        assert!(read.bytes.iter().all(|byte| *byte == 0));
        for (stripe, offset) in [(0, 1), (1, u32::MAX)] {
            let request =
                DataRequest::Truncate { file: file(1), stripe, offset, groups: Vec::new() };
            assert_eq!(client.done(&request).await, Err(Failed::Errno(Errno::EINVAL)));
        }
    });
}

fn write_after_a_reap(seed: u64) {
    let (mut simulation, cluster, meta) = cluster(seed);
    let (client, pieces) = (cluster.client.clone(), [range(0, 0, 5000)]);
    run(&mut simulation, async move {
        for inode in 1..=200 {
            client.write(file(inode), &pieces, &[1; 5000]).await.unwrap();
        }
        let again = FileId { generation: 2, ..file(1) };
        client.write(again, &pieces, &[2; 5000]).await.unwrap();
        let reap = DataRequest::Reap { inodes: vec![(1, 1)] };
        assert_eq!(client.done(&reap).await, Err(Failed::Call(CallError::Unproven)));
    });
    run_meta(&mut simulation, async move {
        let inodes: Vec<_> = (1..=199).map(|inode| (inode, 1)).collect();
        for _ in 0..2 {
            meta.done(&DataRequest::Reap { inodes: inodes.clone() }).await.unwrap();
        }
        assert_eq!(meta.status().await.unwrap().objects, 2);
    });
    // A power loss right after the reply takes nothing of it back.
    cluster.restart(&mut simulation, Kill::Power);
    let client = cluster.client.clone();
    run(&mut simulation, async move {
        assert_eq!(client.write(file(1), &pieces, &[1; 5000]).await, Err(STALE));
        assert_eq!(client.read(file(1), &pieces).await.unwrap().found, [Found::Absent]);
        client.write(file(200), &pieces, &[3; 5000]).await.unwrap();
        let again = FileId { generation: 2, ..file(1) };
        client.write(again, &pieces, &[4; 5000]).await.unwrap();
        assert_eq!(client.read(again, &pieces).await.unwrap().bytes, [4; 5000]);
    });
}

/// The power loss takes what is not durable only by chance: several seeds.
#[test]
fn a_late_write_brings_no_reaped_object_back() {
    (100..105).for_each(write_after_a_reap);
}

fn fence_a_session(seed: u64) {
    let (mut simulation, cluster, meta) = cluster(seed);
    let (client, pieces) = (cluster.client.clone(), [range(0, 0, 10)]);
    let writer = client.clone();
    run(&mut simulation, async move {
        writer.write(file(1), &pieces, &[1; 10]).await.unwrap();
    });
    run_meta(&mut simulation, async move {
        meta.done(&DataRequest::Fence { session: SESSION, epoch: 2 }).await.unwrap();
        let nobody = DataRequest::Fence { session: 0, epoch: 2 };
        assert_eq!(meta.done(&nobody).await, Err(Failed::Errno(Errno::EINVAL)));
    });
    cluster.restart(&mut simulation, Kill::Power);
    run(&mut simulation, async move {
        let fenced = Failed::Call(CallError::Fenced);
        assert_eq!(client.write(file(1), &pieces, &[2; 10]).await, Err(fenced));
        assert_eq!(client.read(file(1), &pieces).await, Err(fenced));
        let fence = DataRequest::Fence { session: SESSION, epoch: 0 };
        // In any session: only the metadata server may fence.
        assert_eq!(client.done(&fence).await, Err(Failed::Call(CallError::Unproven)));
        client.use_session(SESSION + 1, 1);
        assert_eq!(client.done(&fence).await, Err(Failed::Call(CallError::Unproven)));
        client.use_session(SESSION, 2);
        client.write(file(1), &pieces, &[3; 10]).await.unwrap();
        assert_eq!(client.read(file(1), &pieces).await.unwrap().bytes, [3; 10]);
        // Outside of a session nothing is written.
        client.use_session(0, 9);
        let refused = client.write(file(1), &pieces, &[4; 10]).await;
        assert_eq!(refused, Err(Failed::Call(CallError::NoSession)));
    });
}

/// The power loss takes what is not durable only by chance: several seeds.
#[test]
fn a_fenced_session_is_refused_until_its_epoch_is_new() {
    (80..92).for_each(fence_a_session);
}

#[test]
fn an_older_epoch_of_a_file_is_stale() {
    let (mut simulation, cluster, _) = cluster(24);
    let client = cluster.client.clone();
    run(&mut simulation, async move {
        let (pieces, old) = ([range(0, 0, 4)], file(1));
        let new = FileId { epoch: 2, ..old };
        client.write(old, &pieces, b"old!").await.unwrap();
        client
            .done(&DataRequest::Truncate { file: new, stripe: 0, offset: 0, groups: Vec::new() })
            .await
            .unwrap();
        assert_eq!(client.write(old, &pieces, b"late").await, Err(STALE));
        assert_eq!(client.read(old, &pieces).await, Err(STALE));
        let punch = DataRequest::Punch { file: old, pieces: pieces.to_vec() };
        assert_eq!(client.done(&punch).await, Err(STALE));
        assert_eq!(client.read(new, &pieces).await.unwrap().bytes, [0; 4]);
        client.write(new, &pieces, b"new!").await.unwrap();
        assert_eq!(client.read(new, &pieces).await.unwrap().bytes, b"new!");
    });
}

#[test]
fn a_write_that_a_cut_overtakes_brings_nothing_back() {
    for seed in 30..50 {
        let (mut simulation, cluster, meta) = cluster(seed);
        let (client, delay) = (cluster.client.clone(), simulation.fork_random().below(12_000));
        let pieces = [range(0, 0, 6 << 20)];
        let cut = FileId { epoch: 2, ..file(1) };
        let writer = client.clone();
        simulation.node("client").world().spawn(async move {
            let written = writer.write(file(1), &pieces, &vec![1; 6 << 20]).await;
            assert!(matches!(written, Ok(_) | Err(STALE)), "{written:?}");
        });
        simulation.run_for(Duration::from_micros(delay));
        run_meta(&mut simulation, async move {
            let request =
                DataRequest::Truncate { file: cut, stripe: 0, offset: 0, groups: Vec::new() };
            meta.done(&request).await.unwrap();
        });
        run(&mut simulation, async move {
            client.world.sleep(Duration::from_secs(1)).await;
            let read = client.read(cut, &pieces).await.unwrap();
            assert!(read.bytes.iter().all(|byte| *byte == 0), "delay {delay}");
        });
    }
}

fn cut_outside_of_a_session(seed: u64) {
    let (mut simulation, cluster, meta) = cluster(seed);
    let (client, pieces) = (cluster.client.clone(), [range(0, 0, 10_000)]);
    let cut = DataRequest::Truncate {
        file: FileId { epoch: 2, ..file(1) },
        stripe: 1,
        offset: 9,
        groups: Vec::new(),
    };
    let writer = client.clone();
    run(&mut simulation, async move {
        writer.write(file(1), &pieces, &[1; 10_000]).await.unwrap();
        writer.sync(&[file(1)]).await.unwrap();
    });
    let (cutter, request) = (meta.clone(), cut.clone());
    run_meta(&mut simulation, async move { cutter.done(&request).await.unwrap() });
    cluster.restart(&mut simulation, Kill::Power);
    let (reader, new) = (client.clone(), FileId { epoch: 2, ..file(1) });
    run(&mut simulation, async move {
        let read = reader.read(new, &pieces).await.unwrap();
        assert_eq!(read.bytes[..9], [1; 9]);
        assert!(read.bytes[9..].iter().all(|byte| *byte == 0));
    });
    let (cutter, request) = (meta.clone(), cut.clone());
    run_meta(&mut simulation, async move { cutter.done(&request).await.unwrap() });
    let writer = client.clone();
    run(&mut simulation, async move {
        writer.write(new, &pieces, &[2; 10_000]).await.unwrap();
    });
    run_meta(&mut simulation, async move { meta.done(&cut).await.unwrap() });
    run(&mut simulation, async move {
        assert_eq!(client.read(new, &pieces).await.unwrap().bytes, [2; 10_000]);
    });
}

/// The power loss takes what is not durable only by chance: several seeds.
#[test]
fn a_cut_outside_of_a_session_is_made_once_and_survives_a_power_loss() {
    (60..72).for_each(cut_outside_of_a_session);
}

#[test]
fn a_listing_has_every_object_once_whatever_the_pages() {
    let (mut simulation, cluster, meta) = cluster(26);
    let client = cluster.client.clone();
    run(&mut simulation, async move {
        let writes = (0..300u64).map(|number| {
            let client = client.clone();
            let (file, stripe) = (file(number * 7919 % 101 + 1), (number / 101) as u32);
            async move { client.write(file, &[range(stripe, 0, 9000)], &[1; 9000]).await }
        });
        for written in join_all(writes).await {
            written.unwrap();
        }
    });
    run_meta(&mut simulation, async move {
        let mut names = std::collections::BTreeSet::new();
        let (mut after, mut pages) = (None, 0);
        loop {
            let (objects, end) = meta.list(after, 1000).await.unwrap();
            pages += 1;
            for object in &objects {
                assert_eq!(object.bytes, 12_288);
                assert!(names.insert((object.inode, object.generation, object.stripe)));
            }
            after = objects.last().map(|last| (last.inode, last.generation, last.stripe));
            if end {
                break;
            }
            assert!(!objects.is_empty(), "a page that is not the last one brings something");
        }
        assert_eq!(names.len(), 300);
        assert!(pages >= 10, "{pages}");
        let tiny = meta.list(None, 10).await;
        assert_eq!(tiny.err(), Some(Failed::Errno(Errno::EINVAL)));
        assert_eq!(meta.status().await.unwrap().objects, 300);
    });
}

#[test]
fn a_failed_sync_is_an_error_and_no_later_one_hides_it() {
    let (mut simulation, cluster, _) = cluster(27);
    let (client, disk) = (cluster.client.clone(), cluster.disk.clone());
    run(&mut simulation, async move {
        let (pieces, io) = ([range(0, 0, 100_000)], Err(Failed::Errno(Errno::EIO)));
        client.write(file(1), &pieces, &[1; 100_000]).await.unwrap();
        disk.fail_sync(1);
        assert_eq!(client.sync(&[file(1)]).await, io);
        assert_eq!(client.sync(&[file(1)]).await, io);
        client.write(file(1), &pieces, &[2; 100_000]).await.unwrap();
        client.sync(&[file(1)]).await.unwrap();
    });
    assert!(cluster.lines.borrow().iter().any(|line| line.contains("sync")));
}

#[test]
fn a_full_disk_is_told_and_goes_on_when_there_is_room() {
    let (mut simulation, cluster, _) = cluster(28);
    let (client, disk) = (cluster.client.clone(), cluster.disk.clone());
    run(&mut simulation, async move {
        let used = 64 << 20;
        disk.set_capacity(used);
        let mut refused = None;
        for inode in 1..=100 {
            let (pieces, bytes) = ([range(0, 0, 2 << 20)], vec![1; 2 << 20]);
            if let Err(error) = client.write(file(inode), &pieces, &bytes).await {
                refused = Some((inode, error));
                break;
            }
        }
        let (inode, error) = refused.expect("the disk is full some time");
        assert_eq!(error, Failed::Errno(Errno::ENOSPC));
        for inode in 1..inode {
            let read = client.read(file(inode), &[range(0, 0, 2 << 20)]).await.unwrap();
            assert!(read.bytes.iter().all(|byte| *byte == 1));
        }
        disk.set_capacity(used * 2);
        client.write(file(inode), &[range(0, 0, 2 << 20)], &vec![1; 2 << 20]).await.unwrap();
    });
}

/// Server, boot id, room and address of each heartbeat.
type Heard = Rc<RefCell<Vec<(u32, u64, u64, String)>>>;

/// The identity of the listener's store.
const HISTORY: u128 = 77;

/// A metadata server that only listens.
struct Listener {
    heard: Heard,
}

impl Handler for Listener {
    fn secret(&self) -> Option<Secret> {
        Some(secret())
    }

    fn handle(self: Rc<Self>, incoming: Incoming, responder: Responder) {
        let reply = match decode::<MetaRequest<'_>>(incoming.body()) {
            Ok(MetaRequest::Heartbeat(beat)) => {
                let Heartbeat { server, boot, room, history, .. } = beat;
                assert!(room.available_bytes <= room.free_bytes);
                assert!(room.free_bytes <= room.total_bytes);
                let first = self.heard.borrow().is_empty();
                assert_eq!(history, if first { 0 } else { HISTORY });
                // The first one asks to be taken in, and offers nothing yet.
                assert_eq!(first, room.available_bytes == 0);
                let address = String::from_utf8(beat.address.0.to_vec()).unwrap();
                self.heard.borrow_mut().push((server, boot, room.available_bytes, address));
                let (map, clock) = (FIRST_EPOCH, Clock::default());
                let taken = Registration::Taken { history: HISTORY, map, mib_per_second: 0, clock };
                MetaReply::Registered(taken)
            }
            Ok(MetaRequest::GetMap { server: Some(3), .. }) => {
                MetaReply::Map { epoch: FIRST_EPOCH, bands: Vec::new(), end: true }
            }
            other => panic!("{other:?}"),
        };
        let (mut body, result): (_, MetaResult<'_>) = (Vec::new(), Ok(reply));
        encode(&result, &mut body);
        responder.send(Answer { status: Status::Done, body, marks: Marks::default() });
    }
}

#[test]
fn heartbeats_come_each_second_and_go_on_after_a_silence() {
    let mut simulation = Simulation::new(29);
    let heard = Heard::default();
    let listener = heard.clone();
    simulation.add_virtual_node("meta", VirtualDisk::new(0), move |node| {
        let endpoint = endpoint(node, ClusterId(1), SimConfig::stream());
        Server::start(node.world(), endpoint, Rc::new(Listener { heard: listener.clone() }));
    });
    let (disk, server) = (VirtualDisk::new(1), Rc::new(RefCell::new(None)));
    disk.set_capacity(1 << 30);
    let place = server.clone();
    simulation.add_virtual_node("server", disk, move |node| {
        let endpoint = endpoint(node, ClusterId(1), SimConfig::stream());
        let meta = Address::parse("sim://meta").unwrap();
        let mut config =
            DataConfig::new(PathBuf::from("/data"), ClusterId(1), ServerId(3), secret());
        config.meta = vec![endpoint.endpoint().lookup(&meta).unwrap()];
        let (world, place) = (node.world().clone(), place.clone());
        node.world().spawn(async move {
            let started = DataServer::start(&world, endpoint, config).await.unwrap();
            *place.borrow_mut() = Some(started);
        });
    });
    simulation.run_for(Duration::from_millis(10_500));
    let boot = server.borrow().as_ref().expect("it has started").boot();
    {
        let heard = heard.borrow();
        assert!((10..=12).contains(&heard.len()), "{}", heard.len());
        let wanted = (3, boot, "sim://server");
        let all = heard[1..].iter().all(|(server, boot, room, address)| {
            (*server, *boot, address.as_str()) == wanted && *room > 1 << 29
        });
        assert!(all, "{heard:?}");
    }
    simulation.kill("meta", Kill::Power);
    simulation.run_for(Duration::from_secs(60));
    let before = heard.borrow().len();
    simulation.restart("meta");
    simulation.run_for(Duration::from_secs(10));
    assert!(heard.borrow().len() >= before + 5);
    // A tidy end: no more heartbeats, and everything is in its place.
    let stopping = server.borrow().clone().unwrap();
    let store = stopping.store().clone();
    let stopped = simulation.block_on("server", LIMIT, async move { stopping.stop().await });
    stopped.unwrap().unwrap();
    assert_eq!(store.usage().objects_dirty, 0);
    let before = heard.borrow().len();
    simulation.run_for(Duration::from_secs(10));
    assert!(heard.borrow().len() <= before + 1);
}

/// Tries to start a server; how that ends.
fn start(disk: &VirtualDisk, server: u32, expect: Expect) -> Result<(), DataError> {
    let mut simulation = Simulation::new(1);
    let result = Rc::new(RefCell::new(None));
    let place = result.clone();
    simulation.add_virtual_node("server", disk.clone(), move |node| {
        let endpoint = endpoint(node, ClusterId(1), SimConfig::stream());
        let (path, id) = (PathBuf::from("/data"), ServerId(server));
        let mut config = DataConfig::new(path, ClusterId(1), id, secret());
        config.expect = expect;
        let (world, place) = (node.world().clone(), place.clone());
        node.world().spawn(async move {
            let started = DataServer::start(&world, endpoint, config).await;
            *place.borrow_mut() = Some(started.map(drop));
        });
    });
    assert!(simulation.run_until(LIMIT, |_| result.borrow().is_some()));
    simulation.kill("server", Kill::Power);
    result.take().unwrap()
}

fn remove_tree(disk: &VirtualDisk, path: &Path) {
    for (name, kind) in disk.list(path).unwrap() {
        match kind {
            Kind::Directory => remove_tree(disk, &path.join(name)),
            _ => disk.remove_file(&path.join(name)).unwrap(),
        }
    }
    disk.remove_directory(path).unwrap();
    disk.sync_directory(path.parent().unwrap()).unwrap();
}

#[test]
fn a_directory_that_lost_its_data_is_not_taken_for_a_new_one() {
    let disk = VirtualDisk::new(5);
    let emptied = start(&disk, 3, Expect::Existing);
    assert!(matches!(emptied, Err(DataError::Claim(ClaimError::Emptied { .. }))));
    start(&disk, 3, Expect::Any).unwrap();
    start(&disk, 3, Expect::Existing).unwrap();
    let other = start(&disk, 4, Expect::Any);
    assert!(matches!(other, Err(DataError::Claim(ClaimError::OtherServer { .. }))));
    remove_tree(&disk, Path::new("/data/objects"));
    for expect in [Expect::Any, Expect::Existing] {
        let gone = start(&disk, 3, expect);
        assert!(matches!(gone, Err(DataError::ObjectsGone { .. })), "{gone:?}");
    }
    start(&disk, 3, Expect::Replace).unwrap();
    start(&disk, 3, Expect::Existing).unwrap();
}

#[test]
fn an_examination_tells_of_each_object_and_reads_where_asked() {
    let (mut simulation, cluster, meta) = cluster(31);
    let client = cluster.client.clone();
    run(&mut simulation, async move {
        for stripe in 0..3 {
            client.write(file(1), &[range(stripe, 0, 100_000)], &[7; 100_000]).await.unwrap();
        }
        client.sync(&[file(1)]).await.unwrap();
    });
    let path = cluster.object_path(1, 1, 1);
    let bytes = cluster.disk.bytes(&path).unwrap();
    let sevens: Vec<_> = bytes.windows(8).enumerate().filter(|(_, run)| *run == [7; 8]).collect();
    cluster.disk.flip_bit(&path, sevens[sevens.len() / 2].0 as u64, 3);
    let object = |stripe| ObjectName { inode: 1, generation: 1, stripe };
    run_meta(&mut simulation, async move {
        let there = Condition::Present { bytes: 25 * 4096 };
        let names: Vec<_> = (0..4).map(object).collect();
        let found = meta.examine(&names, false).await.unwrap();
        assert_eq!(found, [there, there, there, Condition::Absent], "nothing was read");
        let found = meta.examine(&names, true).await.unwrap();
        assert!(matches!(found[1], Condition::Corrupt { block: 1.. }), "{found:?}");
        assert_eq!((found[0], found[2], found[3]), (there, there, Condition::Absent));
        let invalid = Err(Failed::Errno(Errno::EINVAL));
        assert_eq!(meta.examine(&[], true).await, invalid);
        assert_eq!(meta.examine(&[object(0); EXAMINED_MAX + 1], false).await, invalid);
        let activities = meta.status().await.unwrap().activities;
        assert_eq!(activities[&b"write"[..]], (3, 300_000));
        let (calls, bytes) = activities[&b"examine"[..]];
        assert!(calls == 4 && bytes >= 2 * 25 * 4096, "{calls} {bytes}");
    });
    let lines = cluster.lines.borrow();
    assert!(lines.iter().any(|line| line.contains("object 1.1.1")), "{lines:?}");
}
