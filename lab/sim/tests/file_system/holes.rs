//! Punched holes: zeros at once, room given back, and nothing comes back.

use std::time::Duration;

use crate::programs::*;
use ropewalk_client::{Actor, Client, Errno, File};
use ropewalk_sim::{Cluster, ClusterConfig, Cut, Simulation};

const BYTES: usize = 5 << 20;

fn cluster(seed: u64, clients: u32) -> (Simulation, Cluster) {
    let mut simulation = Simulation::new(seed);
    let config = ClusterConfig { data_servers: 2, clients, ..ClusterConfig::default() };
    let cluster = Cluster::start(&mut simulation, config);
    cluster.run(&mut simulation, 0, |client| async move {
        let file = create(&client, b"file").await;
        write(&client, &file, 0, &pattern(1, BYTES)).await.expect("written");
        client.sync(&file).await.expect("synced");
    });
    (simulation, cluster)
}

async fn punch(client: &Client, file: &File, offset: usize, len: usize) -> Result<(), Errno> {
    client.allocate(file, offset as u64, len as u64, (true, true), || true, &Actor::OWN).await
}

async fn blocks(client: &Client, file: &File) -> u64 {
    client.attributes(file.number()).await.expect("known").blocks
}

#[test]
fn what_is_punched_whole_or_in_pieces_has_no_blocks_and_no_data() {
    for piece in [BYTES, 1 << 18, 1 << 20] {
        let (mut simulation, cluster) = cluster(1, 1);
        cluster.run(&mut simulation, 0, move |client| async move {
            let file = open(&client, b"file", BOTH).await.expect("opened");
            assert!(blocks(&client, &file).await >= BYTES as u64 / 512);
            for at in (0..BYTES).step_by(piece) {
                punch(&client, &file, at, piece).await.expect("punched");
            }
            assert_eq!(blocks(&client, &file).await, 0);
            assert_eq!(client.seek(&file, 0, false).await, Err(Errno::ENXIO));
            assert_eq!(client.seek(&file, 0, true).await, Ok(0));
            let zeros = vec![0; BYTES];
            assert_same(&read_all(&client, &file).await.expect("read"), &zeros);
            // One byte brings its stripe back, and nothing beside it.
            write(&client, &file, 2_000_000, b"x").await.expect("written");
            client.sync(&file).await.expect("synced");
            let mut expected = zeros;
            expected[2_000_000] = b'x';
            assert_same(&read_all(&client, &file).await.expect("read"), &expected);
            assert!((1..=2048).contains(&blocks(&client, &file).await));
        });
    }
}

#[test]
fn beside_another_writer_all_is_zeros_and_nothing_of_its_is_lost() {
    let (mut simulation, cluster) = cluster(2, 2);
    let holes = cluster.spawn(&simulation, 0, |client| async move {
        let file = open(&client, b"file", BOTH).await.expect("opened");
        for _ in 0..50 {
            punch(&client, &file, 0, BYTES / 2).await.expect("punched");
        }
    });
    let bytes = cluster.spawn(&simulation, 1, |client| async move {
        let file = open(&client, b"file", BOTH).await.expect("opened");
        for round in 0..50 {
            write(&client, &file, BYTES as u64 / 2, &pattern(round, 70_000))
                .await
                .expect("written");
        }
    });
    simulation.run_until(Duration::from_secs(300), |_| {
        holes.borrow().is_some() && bytes.borrow().is_some()
    });
    for number in [0, 1] {
        cluster.run(&mut simulation, number, |client| async move {
            let file = open(&client, b"file", READ).await.expect("opened");
            let mut expected = pattern(1, BYTES);
            expected[..BYTES / 2].fill(0);
            expected[BYTES / 2..BYTES / 2 + 70_000].copy_from_slice(&pattern(49, 70_000));
            assert_same(&read_all(&client, &file).await.expect("read"), &expected);
        });
    }
}

/// A punch is cut off from its server, its program gives up, another client writes: late, it takes
/// nothing of that along.
#[test]
fn a_late_punch_takes_nothing_of_what_others_wrote_after_it() {
    for seed in 1..=6 {
        let (mut simulation, cluster) = cluster(seed, 2);
        let servers = cluster.servers();
        let data: Vec<_> =
            servers.iter().filter(|name| *name != ropewalk_sim::cluster::META).collect();
        let begun = cluster.spawn(&simulation, 0, |client| async move {
            let file = open(&client, b"file", BOTH).await.expect("opened");
            punch(&client, &file, 0, BYTES).await
        });
        simulation.run_steps(20 + 15 * seed);
        for server in &data {
            simulation.network().cut(server, cluster.client_name(0), Cut::Both);
        }
        cluster.run(&mut simulation, 1, |client| async move {
            let file = open(&client, b"file", BOTH).await.expect("opened");
            write(&client, &file, 0, &pattern(7, BYTES)).await.expect("written");
        });
        simulation.run_until(Duration::from_secs(200), |_| begun.borrow().is_some());
        cluster.run(&mut simulation, 1, |client| async move {
            let file = open(&client, b"file", READ).await.expect("opened");
            let found = read_all(&client, &file).await.expect("read");
            let whole = pattern(7, BYTES);
            // The punch came before or after the write, stripe by stripe, and left no bytes of the first
            // content.
            for (at, (found, wrote)) in found.chunks(4096).zip(whole.chunks(4096)).enumerate() {
                let zeros = found.iter().all(|byte| *byte == 0);
                assert!(found == wrote || zeros, "block {at} is neither");
            }
        });
    }
}
