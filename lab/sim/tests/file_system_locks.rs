//! Locks and the sessions they go with: a client that was cut off for too long has lost its locks to
//! others, and writes nothing under them any more.

mod programs;

use std::rc::Rc;
use std::time::Duration;

use programs::*;
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
            }
        });
        simulation.run_for(Duration::from_secs(5));
        assert_eq!(late.borrow().map(|late| late.map(drop)), Some(Err(Errno::EIO)));
        let found = cluster.run(&mut simulation, 0, move |client| async move {
            let unlocked = client.set_lock(number, lock(LockKind::Unlock, whole_file), false);
            unlocked.await.expect("what is lost can be given up");
            read_all(&client, &file).await.expect("read")
        });
        assert_same(&found, &pattern(3, len));
    }
}
