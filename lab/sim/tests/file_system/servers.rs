//! Data servers that join, die, fill up and rot.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use crate::programs::*;
use ropewalk_base::disk::{Disk, Kind, Open};
use ropewalk_client::{Caller, Client, Errno};
use ropewalk_sim::cluster::META;
use ropewalk_sim::disk::VirtualDisk;
use ropewalk_sim::{Cluster, ClusterConfig, Cut, Kill, Simulation};
use ropewalk_wire::fs::meta::ROOT;

fn cluster(data_servers: u32) -> (Simulation, Cluster) {
    let mut simulation = Simulation::new(21);
    let config = ClusterConfig { data_servers, clients: 2, ..ClusterConfig::default() };
    let cluster = Cluster::start(&mut simulation, config);
    simulation.run_for(Duration::from_secs(3));
    (simulation, cluster)
}

async fn write_files(client: Client, kind: &'static str, count: u64) {
    for number in 0..count {
        let file = create(&client, format!("{kind}{number}").as_bytes()).await;
        write(&client, &file, 0, &pattern(number, 300_000)).await.expect("written");
        client.sync(&file).await.expect("synced");
    }
}

async fn check_files(client: Client, kind: &'static str, count: u64) {
    for number in 0..count {
        let file = open(&client, format!("{kind}{number}").as_bytes(), READ).await;
        let bytes = read_all(&client, &file.expect("opened")).await.expect("read");
        assert_same(&bytes, &pattern(number, 300_000));
    }
}

fn objects(cluster: &Cluster, server: usize) -> u64 {
    cluster.data(server).store().usage().objects
}

#[test]
fn a_fifth_data_server_gets_new_files_and_old_ones_stay_where_they_are() {
    let (mut simulation, mut cluster) = cluster(4);
    cluster.run(&mut simulation, 0, |client| write_files(client, "old", 20));
    let before: Vec<u64> = (0..4).map(|server| objects(&cluster, server)).collect();
    cluster.add_data_server(&mut simulation);
    cluster.await_start(&mut simulation);
    simulation.run_for(Duration::from_secs(3));
    cluster.run(&mut simulation, 1, |client| check_files(client, "old", 20));
    let after: Vec<u64> = (0..4).map(|server| objects(&cluster, server)).collect();
    assert_eq!(before, after, "nothing moves");
    assert_eq!(objects(&cluster, 4), 0);
    cluster.run(&mut simulation, 0, |client| write_files(client, "new", 20));
    assert!(objects(&cluster, 4) > 0, "the newcomer is used");
    cluster.run(&mut simulation, 1, |client| check_files(client, "new", 20));
    cluster.run(&mut simulation, 1, |client| check_files(client, "old", 20));
}

#[test]
fn new_files_go_around_a_data_server_that_is_dead() {
    let (mut simulation, cluster) = cluster(3);
    cluster.run(&mut simulation, 0, |client| write_files(client, "old", 9));
    cluster.kill(&mut simulation, "data2", Kill::Power);
    simulation.run_for(Duration::from_secs(15));
    let begin = simulation.now();
    cluster.run(&mut simulation, 0, |client| write_files(client, "new", 20));
    assert!(simulation.now().since(begin) < Duration::from_secs(2), "nobody waits for the dead");
    cluster.run(&mut simulation, 1, |client| check_files(client, "new", 20));
    // Synced files are there again when the server is back.
    cluster.restart(&mut simulation, "data2");
    cluster.await_start(&mut simulation);
    cluster.run(&mut simulation, 1, |client| check_files(client, "old", 9));
}

#[test]
fn a_lost_link_is_not_overlooked_where_another_one_begins_at_that_moment() {
    let (mut simulation, cluster) = cluster(1);
    let file = cluster.run(&mut simulation, 0, |client| async move {
        let file = Rc::new(create(&client, b"f").await);
        write(&client, &file, 0, &pattern(1, 100_000)).await.expect("written");
        client.sync(&file).await.expect("synced");
        file
    });
    simulation.network().cut("data1", cluster.client_name(0), Cut::Both);
    simulation.run_for(Duration::from_millis(10));
    simulation.network().cut(META, cluster.client_name(0), Cut::Both);
    // The lease is there: the first thing that this needs is a link to the data server.
    cluster.run(&mut simulation, 0, |client| async move {
        write(&client, &file, 50_000, b"x").await.expect("written");
        client.sync(&file).await.expect("synced");
    });
}

/// Leaves the second data server 4 KiB.
fn fill(cluster: &Cluster) {
    let space = cluster.data_disk(1).space(Path::new("/data")).expect("space");
    cluster.data_disk(1).set_capacity(space.total - space.available + 4096);
}

#[test]
fn new_files_go_around_a_data_server_that_is_full() {
    let (mut simulation, cluster) = cluster(3);
    cluster.run(&mut simulation, 0, |client| write_files(client, "old", 9));
    fill(&cluster);
    simulation.run_for(Duration::from_secs(3));
    let before = objects(&cluster, 1);
    cluster.run(&mut simulation, 0, |client| write_files(client, "new", 20));
    assert_eq!(objects(&cluster, 1), before);
    cluster.run(&mut simulation, 1, |client| check_files(client, "new", 20));
    cluster.run(&mut simulation, 1, |client| check_files(client, "old", 9));
}

/// Clients learn where a full server is that no new file goes to, also if it tells its address late or moves.
#[test]
fn a_full_data_server_is_found_whenever_it_starts() {
    let (mut simulation, mut cluster) = cluster(3);
    cluster.run(&mut simulation, 0, |client| write_files(client, "old", 60));
    fill(&cluster);
    simulation.run_for(Duration::from_secs(3));
    // Nobody knows its address when a new client asks.
    cluster.kill(&mut simulation, "data2", Kill::Power);
    fill(&cluster);
    cluster.kill(&mut simulation, META, Kill::Power);
    cluster.restart(&mut simulation, META);
    cluster.add_client(&mut simulation);
    simulation.run_for(Duration::from_secs(5));
    let read = cluster.spawn(&simulation, 2, |client| check_files(client, "old", 60));
    simulation.run_for(Duration::from_secs(2));
    assert!(read.borrow().is_none(), "a file has bytes at the server that is down");
    cluster.restart(&mut simulation, "data2");
    simulation.run_until(Duration::from_secs(10), |_| read.borrow().is_some());
    assert!(read.borrow().is_some(), "the server was not found");
    let before = objects(&cluster, 1);
    cluster.run(&mut simulation, 0, |client| write_files(client, "new", 20));
    assert_eq!(objects(&cluster, 1), before, "it is full");
}

/// All files below a directory.
fn files(disk: &VirtualDisk, directory: &Path, out: &mut Vec<PathBuf>) {
    for (name, kind) in disk.list(directory).expect("listed") {
        let path = directory.join(name);
        match kind {
            Kind::Directory => files(disk, &path, out),
            Kind::File => out.push(path),
            Kind::Other => {}
        }
    }
}

#[test]
fn a_flipped_bit_on_disk_is_an_error_that_names_the_object() {
    let (mut simulation, cluster) = cluster(1);
    let bytes = pattern(1, 60_000);
    let content = bytes.clone();
    let number = cluster.run(&mut simulation, 0, |client| async move {
        let file = create(&client, b"f").await;
        write(&client, &file, 0, &content).await.expect("written");
        client.sync(&file).await.expect("synced");
        file.number()
    });
    // Everything is where it belongs, and nothing in memory.
    cluster.run(&mut simulation, 0, |_| {
        let store = cluster.data(0).store().clone();
        async move { store.checkpoint().await.expect("a checkpoint") }
    });
    cluster.kill(&mut simulation, "data1", Kill::Process(Duration::ZERO));
    let disk = cluster.data_disk(0);
    let mut found = Vec::new();
    files(disk, Path::new("/data"), &mut found);
    let (path, at) = found
        .iter()
        .find_map(|path| {
            let held = disk.bytes(path)?;
            let at = held.windows(64).position(|window| window == &bytes[30_000..30_064])?;
            (!path.to_string_lossy().contains("log")).then(|| (path.clone(), at))
        })
        .expect("the bytes are in some file");
    disk.flip_bit(&path, at as u64, 3);
    cluster.restart(&mut simulation, "data1");
    cluster.await_start(&mut simulation);
    let outcome = cluster.run(&mut simulation, 1, |client| async move {
        let file = open(&client, b"f", READ).await.expect("opened");
        let good = read(&client, &file, 0, 4096).await.expect("other blocks are well");
        assert_same(&good, &bytes[..4096]);
        read_all(&client, &file).await
    });
    assert_eq!(outcome.err(), Some(Errno::EIO));
    let object = format!("object {number}.");
    let lines = cluster.logged();
    assert!(lines.iter().any(|line| line.contains(&object)), "{object} not in {lines:?}");
}

/// A data server whose log failed keeps no fence. A dead client's leases go to others nevertheless,
/// for such a server takes no change from anybody, and it gets the fence when it is started anew.
#[test]
fn a_data_server_that_keeps_no_fence_does_not_keep_what_a_dead_client_held() {
    let (mut simulation, cluster) = cluster(2);
    let held = cluster.run(&mut simulation, 0, |client| async move {
        write_files(client.clone(), "held", 4).await;
        let mut held = Vec::new();
        for number in 0..4 {
            held.push(open(&client, format!("held{number}").as_bytes(), BOTH).await.expect("open"));
        }
        held
    });
    let _held = cluster.run(&mut simulation, 0, |client| async move {
        for file in &held {
            write(&client, file, 0, &pattern(9, 300_000)).await.expect("written");
        }
        held
    });
    cluster.data_disk(1).fail_sync(1);
    let store = cluster.data(1).store().clone();
    let synced = cluster.run(&mut simulation, 0, |_| async move { store.sync(&[]).await });
    assert!(synced.is_err(), "its log failed");
    for server in [META, "data1", "data2"] {
        simulation.network().partition(cluster.client_name(0), server);
    }
    cluster.run(&mut simulation, 1, |client| async move {
        for number in 0..4 {
            let name = format!("held{number}");
            open(&client, name.as_bytes(), BOTH).await.expect("its lease is to be had");
        }
    });
    let told = cluster.logged();
    assert!(
        told.iter().any(|line| line.contains("data server 2 cannot record that session")),
        "{told:?}"
    );
    cluster.kill(&mut simulation, "data2", Kill::Process(Duration::ZERO));
    cluster.restart(&mut simulation, "data2");
    simulation.run_for(Duration::from_secs(5));
    cluster.run(&mut simulation, 1, |client| write_files(client, "new", 4));
    cluster.run(&mut simulation, 1, |client| check_files(client, "new", 4));
}

/// Of many files that go at once the objects of one cannot be removed: those of all others are.
#[test]
fn an_object_that_cannot_be_removed_stands_in_no_others_way() {
    const OTHERS: u64 = 100;
    let (mut simulation, cluster) = cluster(1);
    let disk = cluster.data_disk(0).clone();
    let all = |disk: &VirtualDisk| {
        let mut found = Vec::new();
        files(disk, Path::new("/"), &mut found);
        found
    };
    let before = all(&disk);
    cluster.run(&mut simulation, 0, |client| write_files(client, "bad", 1));
    let is_new =
        |path: &&PathBuf| !before.contains(path) && path.to_string_lossy().contains("objects");
    let bad = all(&disk).iter().find(is_new).expect("its object").clone();
    disk.remove_file(&bad).expect("removed");
    disk.create_directory(&bad).expect("in its place");
    cluster.run(&mut simulation, 0, |client| write_files(client, "good", OTHERS));
    cluster.run(&mut simulation, 0, |client| async move {
        let unlink = async |name: &str| {
            client.unlink(&Caller::root(), ROOT, name.as_bytes()).await.expect("unlinked");
        };
        unlink("bad0").await;
        for number in 0..OTHERS {
            unlink(&format!("good{number}")).await;
        }
    });
    simulation.run_for(Duration::from_secs(30));
    assert_eq!(objects(&cluster, 0), 1);
    let told = cluster.logged();
    let told = |words: &str| told.iter().filter(|line| line.contains(words)).count();
    assert_eq!(told("files of its objects are not"), 1, "it is asked for once");
    // A server that finds the removal in its log starts nevertheless.
    cluster.kill(&mut simulation, "data1", Kill::Process(Duration::ZERO));
    cluster.restart(&mut simulation, "data1");
    simulation.run_for(Duration::from_secs(5));
    cluster.run(&mut simulation, 0, |client| write_files(client, "new", 1));
}

/// A client is cut off and its session goes to its end while a data server is down. When that server comes back, late
/// writes of the client do not come behind the writes of the next holder.
#[test]
fn a_data_server_that_comes_back_takes_nothing_of_sessions_that_ended_meanwhile() {
    let (mut simulation, cluster) = cluster(2);
    let file = cluster.run(&mut simulation, 0, |client| async move {
        write_files(client.clone(), "f", 1).await;
        Rc::new(open(&client, b"f0", BOTH).await.expect("opened"))
    });
    cluster.kill(&mut simulation, "data2", Kill::Process(Duration::ZERO));
    let late = cluster.spawn(&simulation, 0, |client| async move {
        write(&client, &file, 0, &pattern(7, 300_000)).await
    });
    simulation.run_for(Duration::from_secs(1));
    let zombie = cluster.client_name(0).to_owned();
    for server in [META, "data2"] {
        simulation.network().partition(&zombie, server);
    }
    simulation.network().partition("data2", META);
    simulation.run_for(Duration::from_secs(40));
    let next = cluster.spawn(&simulation, 1, |client| async move {
        let file = open(&client, b"f0", BOTH).await.expect("its lease is to be had");
        write(&client, &file, 0, &pattern(8, 300_000)).await
    });
    simulation.run_for(Duration::from_secs(5));
    cluster.restart(&mut simulation, "data2");
    simulation.run_for(Duration::from_secs(2));
    simulation.network().heal(&zombie, "data2");
    simulation.run_for(Duration::from_secs(2));
    assert!(late.borrow().is_none(), "nobody has told the client yet");
    simulation.network().heal("data2", META);
    assert!(simulation.run_until(Duration::from_secs(60), |_| next.borrow().is_some()));
    assert_eq!(next.borrow_mut().take(), Some(Ok(0)));
    simulation.run_for(Duration::from_secs(10));
    cluster.run(&mut simulation, 1, |client| async move {
        let file = open(&client, b"f0", READ).await.expect("opened");
        assert_same(&read_all(&client, &file).await.expect("read"), &pattern(8, 300_000));
    });
}

/// A data server that lost its disk joins anew, although it was to get fences.
#[test]
fn a_data_server_with_an_empty_store_joins_although_fences_wait_for_it() {
    let (mut simulation, cluster) = cluster(2);
    cluster.run(&mut simulation, 0, |client| write_files(client, "f", 1));
    cluster.kill(&mut simulation, "data2", Kill::Process(Duration::ZERO));
    for server in [META, "data1"] {
        simulation.network().partition(cluster.client_name(0), server);
    }
    simulation.run_for(Duration::from_secs(60));
    let disk = cluster.data_disk(1);
    let mut found = Vec::new();
    files(disk, Path::new("/data"), &mut found);
    let joined = found.iter().find(|path| path.ends_with("joined")).expect("it has joined once");
    disk.remove_file(joined).expect("removed");
    cluster.restart(&mut simulation, "data2");
    cluster.await_start(&mut simulation);
    simulation.run_for(Duration::from_secs(3));
    cluster.run(&mut simulation, 1, |client| write_files(client, "new", 4));
    cluster.run(&mut simulation, 1, |client| check_files(client, "new", 4));
}

/// An older copy of the metadata store acknowledges nothing before the data servers, which met a newer one,
/// have said so.
#[test]
fn an_older_copy_of_the_metadata_serves_nobody_before_it_is_known_as_one() {
    let (mut simulation, cluster) = cluster(2);
    let snapshot = |disk: &VirtualDisk| {
        let mut found = Vec::new();
        files(disk, Path::new("/meta"), &mut found);
        found.into_iter().map(|path| (disk.bytes(&path).expect("read"), path)).collect::<Vec<_>>()
    };
    let end = |simulation: &mut Simulation| {
        let meta = cluster.meta();
        let stopped = cluster.run(simulation, 1, |_| async move { meta.stop().await });
        stopped.expect("it ends well");
        cluster.kill(simulation, META, Kill::Process(Duration::ZERO));
    };
    end(&mut simulation);
    let older = snapshot(cluster.meta_disk());
    cluster.restart(&mut simulation, META);
    cluster.await_start(&mut simulation);
    simulation.run_for(Duration::from_secs(20));
    cluster.run(&mut simulation, 0, |client| write_files(client, "new", 1));
    end(&mut simulation);
    let disk = cluster.meta_disk();
    for (_, path) in snapshot(disk) {
        disk.remove_file(&path).expect("removed");
    }
    for (bytes, path) in &older {
        let file = disk.open(path, Open::Create).expect("made");
        file.write_at(0, bytes).expect("written");
    }
    for server in ["data1", "data2"] {
        simulation.network().partition(server, META);
    }
    cluster.restart(&mut simulation, META);
    let made = cluster.spawn(&simulation, 0, |client| async move {
        client.create(&Caller::root(), ROOT, b"later", 0o644, true, BOTH).await.map(drop)
    });
    simulation.run_for(Duration::from_millis(100));
    for server in ["data1", "data2"] {
        simulation.network().heal(server, META);
    }
    simulation.run_for(Duration::from_secs(30));
    assert!(!matches!(*made.borrow(), Some(Ok(()))), "it is lost with the older copy");
    let told = cluster.logged();
    assert!(told.iter().any(|line| line.contains("is an older copy")), "{told:?}");
}

/// A copy of the metadata that was made while the server ran, in the same start as the newest state: terms and starts do not
/// tell that it is older. The map does, in which a member was driven out since.
#[test]
fn metadata_that_know_an_older_map_than_data_servers_are_known_as_an_older_copy() {
    // The second time data servers know it from their disks.
    for restarts in [false, true] {
        let (mut simulation, cluster) = cluster(3);
        cluster.mirror(&mut simulation, 2);
        cluster.run(&mut simulation, 0, |client| write_files(client, "f", 2));
        simulation.run_for(Duration::from_secs(5));
        let older = cluster.meta_disk().copy();
        cluster.kill(&mut simulation, "data3", Kill::Process(Duration::ZERO));
        simulation.run_for(Duration::from_secs(5));
        cluster.run(&mut simulation, 0, |client| write_files(client, "new", 2));
        cluster.kill(&mut simulation, META, Kill::Process(Duration::ZERO));
        cluster.meta_disk().restore(&older);
        let servers = ["data1", "data2"];
        for server in servers.into_iter().filter(|_| restarts) {
            cluster.kill(&mut simulation, server, Kill::Power);
            cluster.restart(&mut simulation, server);
        }
        cluster.restart(&mut simulation, META);
        let made = cluster.spawn(&simulation, 0, |client| async move {
            client.create(&Caller::root(), ROOT, b"later", 0o644, true, BOTH).await.map(drop)
        });
        simulation.run_for(Duration::from_secs(30));
        // The first data server that shows it ends the metadata server; whoever asks another time hears the same.
        let told = "its directory is an older copy than the one that data server";
        assert!(cluster.logged().iter().any(|line| line.contains(told)), "{:#?}", cluster.logged());
        assert!(made.borrow().is_none(), "it serves on");
        cluster.kill(&mut simulation, META, Kill::Process(Duration::ZERO));
        cluster.restart(&mut simulation, META);
        simulation.run_for(Duration::from_secs(10));
        let lines = cluster.logged();
        let told = lines.iter().filter(|line| line.contains(told)).count();
        assert!(told >= 2 && made.borrow().is_none(), "{lines:#?}");
    }
}
