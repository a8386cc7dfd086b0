//! Changes that come late: a write that its program gave up, or that waited until its lease was gone,
//! is still on its way when others have written. It must not undo what was acknowledged to them.

use std::time::Duration;

use crate::programs::*;
use ropewalk_base::task::{join, race};
use ropewalk_client::{Caller, OpenOptions};
use ropewalk_sim::cluster::META;
use ropewalk_sim::{Cluster, ClusterConfig, SimConfig, Simulation};
use ropewalk_wire::fs::meta::{INLINE_BYTES_MAX, ROOT, RenameMode};
use ropewalk_wire::fs::value::Errno;

const PIECE: usize = 4096;

fn cluster(simulation: &mut Simulation, term: Duration) -> Cluster {
    let rail = SimConfig::stream();
    let mut config =
        ClusterConfig { data_servers: 1, clients: 2, rail, ..ClusterConfig::default() };
    config.meta.shard.term = term;
    config.meta.tick = Duration::from_millis(100);
    Cluster::start(simulation, config)
}

/// The client that writes in place of the one that gave up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Other,
    Same,
}

#[test]
fn a_write_that_was_given_up_does_not_come_after_the_next_one() {
    for next in [Next::Other, Next::Same] {
        let mut simulation = Simulation::new(1);
        let cluster = cluster(&mut simulation, Duration::from_secs(10));
        let (name, data) = (cluster.client_name(0).to_owned(), cluster.servers()[1].clone());
        let file = cluster.run(&mut simulation, 0, |client| async move {
            let file = create(&client, b"file").await;
            write(&client, &file, 0, &pattern(1, 1 << 20)).await.expect("written");
            client.sync(&file).await.expect("synced");
            file
        });
        // Frames sent from now on arrive when the network is well again.
        simulation.network().partition_one_way(&name, &data);
        let file = cluster.run(&mut simulation, 0, |client| async move {
            let late = pattern(2, PIECE);
            let written = write(&client, &file, 0, &late);
            race(written, client.world().sleep(Duration::from_millis(5))).await;
            file
        });
        if next == Next::Same {
            simulation.network().heal(&name, &data);
        }
        let writer = if next == Next::Same { 0 } else { 1 };
        cluster.run(&mut simulation, writer, |client| async move {
            let file = open(&client, b"file", BOTH).await.expect("opened");
            write(&client, &file, 0, &pattern(3, PIECE)).await.expect("written");
            client.sync(&file).await.expect("synced");
        });
        simulation.network().heal(&name, &data);
        simulation.run_for(Duration::from_secs(3));
        let found = cluster.run(&mut simulation, 1, |client| async move {
            let file = open(&client, b"file", READ).await.expect("opened");
            read(&client, &file, 0, PIECE).await.expect("read")
        });
        assert_same(&found, &pattern(3, PIECE));
        drop(file);
    }
}

#[test]
fn an_append_that_waited_until_its_session_was_gone_takes_nobodys_place() {
    let mut simulation = Simulation::new(2);
    let cluster = cluster(&mut simulation, Duration::from_secs(1));
    let name = cluster.client_name(0).to_owned();
    let (meta, data) = (cluster.servers()[0].clone(), cluster.servers()[1].clone());
    let file = cluster.run(&mut simulation, 0, |client| async move {
        let file = create(&client, b"file").await;
        write(&client, &file, 0, &pattern(1, 1 << 20)).await.expect("written");
        client.sync(&file).await.expect("synced");
        drop(file);
        let options = OpenOptions { access: BOTH.access, ..APPEND };
        open(&client, b"file", options).await.expect("opened")
    });
    simulation.network().partition_one_way(&name, &data);
    simulation.network().partition(&name, &meta);
    let file = std::rc::Rc::new(file);
    cluster.spawn(&simulation, 0, {
        let file = file.clone();
        |client| async move {
            // Many more calls than may be under way at a time; the record waits behind them.
            for _ in 0..640 {
                let (client, file) = (client.clone(), file.clone());
                let world = client.world().clone();
                world.spawn(async move {
                    let _ = read(&client, &file, 0, PIECE).await;
                });
            }
            client.world().sleep(Duration::from_millis(1)).await;
            let _ = write(&client, &file, 0, &pattern(2, PIECE)).await;
        }
    });
    simulation.run_for(Duration::from_millis(2500));
    let place = cluster.run(&mut simulation, 1, |client| async move {
        let file = open(&client, b"file", APPEND).await.expect("opened");
        let place = write(&client, &file, 0, &pattern(3, PIECE)).await.expect("appended");
        client.sync(&file).await.expect("synced");
        place
    });
    simulation.network().heal(&name, &data);
    simulation.network().heal(&name, &meta);
    simulation.run_for(Duration::from_secs(8));
    let found = cluster.run(&mut simulation, 1, |client| async move {
        let file = open(&client, b"file", READ).await.expect("opened");
        read_all(&client, &file).await.expect("read")
    });
    assert_same(&found[place as usize..][..PIECE], &pattern(3, PIECE));
    // The other record is in the file once, elsewhere.
    let other = found.chunks(PIECE).filter(|piece| *piece == pattern(2, PIECE)).count();
    assert_eq!((other, found.len()), (1, (1 << 20) + 2 * PIECE));
}

#[test]
fn a_read_that_is_overtaken_by_a_write_leaves_nothing_old_behind() {
    let mut simulation = Simulation::new(3);
    let cluster = cluster(&mut simulation, Duration::from_secs(10));
    for round in 0..50 {
        let old = pattern(2 * round, INLINE_BYTES_MAX as usize);
        cluster.run(&mut simulation, 1, move |client| async move {
            let file = match round {
                0 => create(&client, b"file").await,
                _ => open(&client, b"file", OpenOptions::WRITE).await.expect("opened"),
            };
            write(&client, &file, 0, &old).await.expect("written");
        });
        cluster.run(&mut simulation, 0, move |client| async move {
            // The server does not send the bytes to a client that opens the file for writing.
            let writer = open(&client, b"file", OpenOptions::WRITE).await.expect("opened");
            let reader = open(&client, b"file", READ).await.expect("opened");
            let new = pattern(2 * round + 1, PIECE);
            let writing = async {
                client.world().sleep(Duration::from_micros(3 * round)).await;
                write(&client, &writer, 0, &new).await.expect("written");
            };
            let reading = async { read_all(&client, &reader).await.expect("read") };
            join(reading, writing).await;
            let found = read(&client, &reader, 0, PIECE).await.expect("read");
            assert_same(&found, &new);
        });
    }
}

/// A rename waits at the server for a client that stands still, and is given up. Later operations of the same client
/// come after it: it moves no file that was made since.
#[test]
fn a_rename_that_was_given_up_does_not_come_after_the_next_request() {
    let mut simulation = Simulation::new(3);
    let rail = SimConfig::stream();
    let patience = Duration::from_secs(1);
    let mut config =
        ClusterConfig { data_servers: 1, clients: 2, rail, patience, ..ClusterConfig::default() };
    config.meta.shard.term = Duration::from_secs(30);
    config.meta.tick = Duration::from_millis(100);
    let cluster = Cluster::start(&mut simulation, config);
    let still = cluster.client_name(1).to_owned();
    let held = cluster.run(&mut simulation, 1, |client| async move {
        let held = create(&client, b"target").await;
        write(&client, &held, 0, &pattern(1, PIECE)).await.expect("written");
        held
    });
    // The directory's lease goes while it is awake.
    cluster.run(&mut simulation, 0, |client| async move {
        drop(create(&client, b"source").await);
    });
    simulation.network().partition(&still, META);
    cluster.run(&mut simulation, 0, |client| async move {
        let (root, mode) = (Caller::root(), RenameMode::Replace);
        let renamed = client.rename(&root, ROOT, b"source", ROOT, b"target", mode).await;
        assert_eq!(renamed.map(drop), Err(Errno::EIO), "it waits for who stands still");
        client.unlink(&root, ROOT, b"source").await.expect("it was not renamed");
        drop(create(&client, b"source").await);
    });
    simulation.run_for(Duration::from_secs(60));
    cluster.run(&mut simulation, 0, |client| async move {
        let mut names = list(&client).await;
        names.sort_unstable();
        assert_eq!(names, [b"source".to_vec(), b"target".to_vec()]);
    });
    drop(held);
}
