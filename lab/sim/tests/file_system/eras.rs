//! A power loss of the metadata server takes a cut of a file back that clients were told of, and that
//! they used: nothing of the forgotten history may come to light in the one that goes on.

use std::time::Duration;

use crate::programs::*;
use ropewalk_client::{Caller, Errno, OpenOptions};
use ropewalk_sim::cluster::META;
use ropewalk_sim::{Cluster, ClusterConfig, Kill, Simulation};

const BYTES: usize = 100_000;
const CUT: OpenOptions = OpenOptions { truncate: true, ..BOTH };

/// Two clients; the first wrote the file and made it durable.
fn cluster(seed: u64) -> (Simulation, Cluster) {
    let mut simulation = Simulation::new(seed);
    let config = ClusterConfig { data_servers: 1, clients: 2, ..ClusterConfig::default() };
    let cluster = Cluster::start(&mut simulation, config);
    cluster.run(&mut simulation, 0, |client| async move {
        let file = create(&client, b"file").await;
        write(&client, &file, 0, &pattern(1, BYTES)).await.expect("written");
        client.sync(&file).await.expect("synced");
    });
    (simulation, cluster)
}

fn lose_power(simulation: &mut Simulation, cluster: &Cluster) {
    cluster.kill(simulation, META, Kill::Power);
    simulation.run_for(Duration::from_secs(1));
    cluster.restart(simulation, META);
    cluster.await_start(simulation);
}

/// Whether the cut was forgotten: else it was durable in time, which other seeds are for.
fn is_forgotten(simulation: &mut Simulation, cluster: &Cluster) -> bool {
    let size = cluster.run(simulation, 0, |client| async move {
        let root = ropewalk_wire::fs::meta::ROOT;
        client.lookup(&Caller::root(), root, b"file").await.expect("found").size
    });
    assert!(size == 0 || size == BYTES as u64, "{size}");
    size > 0
}

#[test]
fn who_saw_a_forgotten_cut_names_the_objects_that_there_are() {
    let mut forgotten = 0;
    for seed in 1..=8 {
        let (mut simulation, cluster) = cluster(seed);
        cluster.run(&mut simulation, 1, |client| async move {
            open(&client, b"file", CUT).await.expect("cut to nothing");
        });
        lose_power(&mut simulation, &cluster);
        if !is_forgotten(&mut simulation, &cluster) {
            continue;
        }
        forgotten += 1;
        cluster.run(&mut simulation, 1, |client| async move {
            let file = open(&client, b"file", BOTH).await.expect("opened");
            assert_same(&read_all(&client, &file).await.expect("read"), &pattern(1, BYTES));
            assert_eq!(client.sync(&file).await, Err(Errno::EIO), "the cut is lost, and told so");
            write(&client, &file, 70_000, b"here").await.expect("written");
            client.sync(&file).await.expect("synced");
        });
        cluster.run(&mut simulation, 0, |client| async move {
            let file = open(&client, b"file", READ).await.expect("opened");
            let mut expected = pattern(1, BYTES);
            expected[70_000..70_004].copy_from_slice(b"here");
            assert_same(&read_all(&client, &file).await.expect("read"), &expected);
        });
    }
    assert!(forgotten > 0, "every cut was durable before the power failed");
}

#[test]
fn what_was_written_after_a_forgotten_cut_stays_forgotten() {
    let mut forgotten = 0;
    for seed in 1..=8 {
        let (mut simulation, cluster) = cluster(seed);
        cluster.run(&mut simulation, 1, |client| async move {
            let file = open(&client, b"file", CUT).await.expect("cut to nothing");
            write(&client, &file, 0, &pattern(2, BYTES)).await.expect("written");
        });
        lose_power(&mut simulation, &cluster);
        if !is_forgotten(&mut simulation, &cluster) {
            continue;
        }
        forgotten += 1;
        // Cut once more: the objects that are written now must not be those of the forgotten cut.
        cluster.run(&mut simulation, 0, |client| async move {
            let file = open(&client, b"file", CUT).await.expect("cut to nothing");
            write(&client, &file, 70_000, b"end").await.expect("written");
            let mut expected = vec![0; 70_003];
            expected[70_000..].copy_from_slice(b"end");
            assert_same(&read_all(&client, &file).await.expect("read"), &expected);
        });
    }
    assert!(forgotten > 0, "every cut was durable before the power failed");
}
