//! Locks and the sessions they go with: a client that was cut off for too long has lost its locks to
//! others, and writes nothing under them any more.

use std::rc::Rc;
use std::time::Duration;

use crate::programs::*;
use ropewalk_base::abandon::Abandoned;
use ropewalk_sim::cluster::META;
use ropewalk_sim::{Cluster, ClusterConfig, SimConfig, Simulation};
use ropewalk_wire::fs::meta::{LockKind, LockRange};
use ropewalk_wire::fs::value::Errno;

fn lock(kind: LockKind, whole_file: bool) -> LockRange {
    LockRange { kind, whole_file, owner: 7, process: 1, start: 0, end: u64::MAX }
}

#[test]
fn who_lost_a_lock_with_its_session_is_refused_until_it_unlocks() {
    let mut seed = 0;
    for (len, whole_file) in [(1000, true), (1 << 20, true), (1000, false), (1 << 20, false)] {
        seed += 1;
        let mut simulation = Simulation::new(seed);
        let rail = SimConfig::stream();
        let mut config =
            ClusterConfig { data_servers: 1, clients: 2, rail, ..ClusterConfig::default() };
        config.meta.shard.term = Duration::from_secs(2);
        config.meta.tick = Duration::from_millis(100);
        let cluster = Cluster::start(&mut simulation, config);
        let name = cluster.client_name(0).to_owned();
        let file = cluster.run(&mut simulation, 0, move |client| async move {
            let file = create(&client, b"file").await;
            let taken =
                client.set_lock(file.number(), lock(LockKind::Exclusive, whole_file), false);
            taken.await.expect("nobody has it");
            write(&client, &file, 0, &pattern(1, len)).await.expect("written");
            client.sync(&file).await.expect("synced");
            write(&client, &file, 0, &pattern(4, len)).await.expect("written");
            Rc::new(file)
        });
        // Everything that it remembers would still do, if it were asked now.
        for server in cluster.servers() {
            simulation.network().partition(&name, &server);
        }
        let late = cluster.spawn(&simulation, 0, {
            let file = file.clone();
            move |client| async move {
                client.world().sleep(Duration::from_millis(1500)).await;
                write(&client, &file, 10, &pattern(2, 100)).await
            }
        });
        cluster.run(&mut simulation, 1, move |client| async move {
            let file = open(&client, b"file", BOTH).await.expect("opened");
            let taken = client.set_lock(file.number(), lock(LockKind::Exclusive, whole_file), true);
            taken.await.expect("it falls with the session");
            write(&client, &file, 0, &pattern(3, len)).await.expect("written");
            client.sync(&file).await.expect("synced");
        });
        for server in cluster.servers() {
            simulation.network().heal(&name, &server);
        }
        let number = file.number();
        cluster.run(&mut simulation, 0, {
            let file = file.clone();
            move |client| async move {
                assert_eq!(read(&client, &file, 0, 10).await.map(drop), Err(Errno::EIO));
                assert_eq!(write(&client, &file, 0, b"late").await.map(drop), Err(Errno::EIO));
                let again = client.set_lock(number, lock(LockKind::Exclusive, whole_file), false);
                assert_eq!(again.await, Err(Errno::EIO));
                for _ in 0..2 {
                    assert_eq!(client.sync(&file).await, Err(Errno::EIO));
                }
            }
        });
        simulation.run_for(Duration::from_secs(5));
        assert_eq!(late.borrow().map(|late| late.map(drop)), Some(Err(Errno::EIO)));
        let found = cluster.run(&mut simulation, 0, move |client| async move {
            let unlocked = client.set_lock(number, lock(LockKind::Unlock, whole_file), false);
            unlocked.await.expect("what is lost can be given up");
            let found = read_all(&client, &file).await.expect("read");
            // Each of the syncs before reported the loss to it.
            client.sync(&file).await.expect("nothing else is lost");
            let fresh = open(&client, b"file", BOTH).await.expect("opened");
            write(&client, &fresh, 0, b"anew").await.expect("written");
            client.sync(&fresh).await.expect("synced");
            found
        });
        assert_same(&found, &pattern(3, len));
    }
}

/// Bytes were lost with a session: each file that was open learns of it once, by a sync, and by its close before
/// that. A later open, after a report, has nothing to do with it.
#[test]
fn what_went_with_a_session_is_told_once_to_each_open_file() {
    let mut simulation = Simulation::new(1);
    let mut config = ClusterConfig { data_servers: 1, clients: 1, ..ClusterConfig::default() };
    config.meta.shard.term = Duration::from_secs(2);
    config.meta.tick = Duration::from_millis(100);
    let cluster = Cluster::start(&mut simulation, config);
    let name = cluster.client_name(0).to_owned();
    let files = cluster.run(&mut simulation, 0, |client| async move {
        let first = create(&client, b"file").await;
        write(&client, &first, 0, &pattern(1, 1 << 20)).await.expect("written");
        client.sync(&first).await.expect("synced");
        let second = open(&client, b"file", BOTH).await.expect("opened");
        write(&client, &first, 0, &pattern(2, 1 << 20)).await.expect("written");
        [first, second]
    });
    for server in cluster.servers() {
        simulation.network().partition(&name, &server);
    }
    simulation.run_for(Duration::from_secs(5));
    for server in cluster.servers() {
        simulation.network().heal(&name, &server);
    }
    cluster.run(&mut simulation, 0, |client| async move {
        let [first, second] = files;
        // The session's end shows with it.
        read(&client, &first, 0, 10).await.expect("read");
        let before = open(&client, b"file", BOTH).await.expect("opened");
        assert!(client.needs_flush(&first));
        assert_eq!(client.flush(&first).await, Err(Errno::EIO), "at a close");
        let after = open(&client, b"file", BOTH).await.expect("opened");
        for file in [&first, &second, &before] {
            assert_eq!(client.sync(file).await, Err(Errno::EIO));
            assert!(!client.needs_flush(file));
        }
        for file in [&after, &first, &second, &before] {
            write(&client, file, 0, b"anew").await.expect("written");
            client.sync(file).await.expect("it was told");
        }
        client.sync_all().await.expect("it was told");
    });
}

fn bytes(kind: LockKind, owner: u64, start: u64, end: u64) -> LockRange {
    LockRange { kind, whole_file: false, owner, process: 1, start, end }
}

/// A client waits for a longer and stronger lock than it has, and goes away at about the moment at which it could
/// have it. It keeps the lock that it had, whether others cut the line to the server or not.
#[test]
fn who_goes_away_from_a_waiting_lock_has_what_it_had() {
    for at in 0..60_u64 {
        let mut simulation = Simulation::new(at);
        let config = ClusterConfig { data_servers: 1, clients: 2, ..ClusterConfig::default() };
        let cluster = Cluster::start(&mut simulation, config);
        let name = cluster.client_name(0).to_owned();
        let file = cluster.run(&mut simulation, 0, |client| async move {
            let file = create(&client, b"file").await;
            for range in [bytes(LockKind::Shared, 1, 10, 19), bytes(LockKind::Exclusive, 1, 30, 39)]
            {
                client.set_lock(file.number(), range, false).await.expect("free");
            }
            Rc::new(file)
        });
        let number = file.number();
        cluster.run(&mut simulation, 1, move |client| async move {
            let shared = client.set_lock(number, bytes(LockKind::Shared, 2, 0, 19), false);
            shared.await.expect("free");
        });
        let left = Abandoned::new();
        let waiter = cluster.spawn(&simulation, 0, {
            let left = left.clone();
            move |client| async move {
                let wanted = bytes(LockKind::Exclusive, 1, 0, 49);
                let waits = async { client.await_lock(number, wanted, &left).await };
                left.clone().over(Box::pin(waits)).await
            }
        });
        simulation.run_for(Duration::from_millis(20));
        assert!(waiter.borrow().is_none(), "the other one shares what is wanted");
        let unlocked = cluster.spawn(&simulation, 1, move |client| async move {
            client.set_lock(number, bytes(LockKind::Unlock, 2, 0, 49), false).await
        });
        simulation.run_for(Duration::from_micros(at * 20));
        if at % 3 == 0 {
            simulation.network().partition(&name, META);
        }
        left.set();
        simulation.run_for(Duration::from_millis(200));
        simulation.network().heal(&name, META);
        simulation.run_for(Duration::from_secs(5));
        assert_eq!(*unlocked.borrow(), Some(Ok(())), "{at}");
        let answer = waiter.borrow().expect("it ends");
        let kept = match answer {
            Err(Errno::EINTR) => [
                (0, None),
                (15, Some(LockKind::Shared)),
                (25, None),
                (35, Some(LockKind::Exclusive)),
            ],
            // It was answered before it went.
            _ => [0, 15, 25, 35].map(|byte| (byte, Some(LockKind::Exclusive))),
        };
        for (byte, kind) in kept {
            let found = cluster.run(&mut simulation, 1, move |client| async move {
                let wanted = bytes(LockKind::Exclusive, 2, byte, byte);
                client.test_lock(number, wanted).await.expect("answered")
            });
            assert_eq!(found.map(|found| found.kind), kind, "{at}: byte {byte}, {answer:?}");
        }
    }
}
