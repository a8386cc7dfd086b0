//! A file is truncated whose objects are damaged: the truncation ends, and the file goes on.

use std::path::PathBuf;
use std::time::Duration;

use crate::programs::*;
use ropewalk_client::{AttributeChange, Caller, Client, Errno, File, OpenOptions};
use ropewalk_sim::{Cluster, ClusterConfig, Kill, Simulation};

const STRIPE: usize = 64 << 10;
const BLOCK: usize = 4096;
const BYTES: usize = 4 * STRIPE;
/// Behind 100 bytes of the third block of the second stripe.
const END: usize = STRIPE + 2 * BLOCK + 100;

/// A file of four stripes; the place of each stripe's object: server and path.
fn cluster(clients: u32) -> (Simulation, Cluster, Vec<(usize, PathBuf)>) {
    let mut simulation = Simulation::new(4);
    let config = ClusterConfig { data_servers: 2, clients, ..ClusterConfig::default() };
    let cluster = Cluster::start(&mut simulation, config);
    cluster.run(&mut simulation, 0, |client| async move {
        let file = create(&client, b"f").await;
        write(&client, &file, 0, &pattern(1, BYTES)).await.expect("written");
        client.sync(&file).await.expect("synced");
    });
    let mut places: Vec<_> = (0..2)
        .flat_map(|server| {
            let files = cluster.data_disk(server).files();
            files.into_iter().filter_map(move |path| Some((stripe(&path)?, (server, path))))
        })
        .collect();
    places.sort();
    assert_eq!(places.len(), 4, "{places:?}");
    // The next life of a server reads the data that was damaged at rest.
    for server in ["data1", "data2"] {
        let store = cluster.data(usize::from(server == "data2")).store().clone();
        simulation.block_on(server, ropewalk_sim::cluster::PROGRAM_LIMIT, async move {
            store.checkpoint().await.expect("the disk is whole");
        });
        cluster.kill(&mut simulation, server, Kill::Process(Duration::ZERO));
    }
    (simulation, cluster, places.into_iter().map(|(_, place)| place).collect())
}

/// The stripe of an object's file.
fn stripe(path: &std::path::Path) -> Option<u32> {
    let mut parts = path.file_name()?.to_str()?.split('.');
    let (_, _) = (parts.next()?, parts.next()?);
    u32::from_str_radix(parts.next()?, 16).ok()
}

fn restart(simulation: &mut Simulation, cluster: &Cluster) {
    cluster.restart(simulation, "data1");
    cluster.restart(simulation, "data2");
    cluster.await_start(simulation);
}

fn damage_block(cluster: &Cluster, (server, path): &(usize, PathBuf), content: &[u8]) {
    let disk = cluster.data_disk(*server);
    let bytes = disk.bytes(path).expect("it is there");
    let block = bytes.chunks(BLOCK).position(|block| block == content).expect("the block is there");
    disk.flip_bit(path, (block * BLOCK + 50) as u64, 3);
}

fn damage_head(cluster: &Cluster, (server, path): &(usize, PathBuf)) {
    (0..2).for_each(|copy| cluster.data_disk(*server).flip_bit(path, copy * 512 + 30, 3));
}

async fn truncate(client: &Client, file: &File, size: usize) -> Result<(), Errno> {
    let change = AttributeChange { size: Some(size as u64), ..AttributeChange::default() };
    client.set_attributes(&Caller::root(), file.number(), change).await.map(drop)
}

/// The file is truncated, longer, written, read and opened by others, at once.
async fn use_it(client: Client, lost: (usize, usize)) {
    let file = open(&client, b"f", BOTH).await.expect("opened");
    truncate(&client, &file, END).await.expect("the truncation ends");
    truncate(&client, &file, BYTES).await.expect("longer again");
    let mut expected = pattern(1, BYTES);
    expected[END..].fill(0);
    for (block, expected) in expected.chunks(BLOCK).enumerate() {
        let at = block * BLOCK;
        let found = read(&client, &file, at as u64, BLOCK).await;
        match found {
            Ok(bytes) if at < lost.0 || lost.1 <= at => assert_same(&bytes, expected),
            Err(Errno::EIO) if lost.0 <= at && at < lost.1 => {}
            found => panic!("at {at}: {:?}", found.map(|bytes| bytes.len())),
        }
    }
    // Overwritten blocks are healed, and blocks that were cut away can be written again.
    write(&client, &file, 0, &pattern(2, BYTES)).await.expect("written");
    client.sync(&file).await.expect("synced");
    assert_same(&read_all(&client, &file).await.expect("read"), &pattern(2, BYTES));
    let anew = OpenOptions { truncate: true, ..BOTH };
    open(&client, b"f", anew).await.expect("opened anew");
}

#[test]
fn a_truncation_into_a_damaged_block_ends_and_the_file_goes_on() {
    let (mut simulation, cluster, places) = cluster(1);
    let block = STRIPE + 2 * BLOCK;
    damage_block(&cluster, &places[1], &pattern(1, BYTES)[block..block + BLOCK]);
    restart(&mut simulation, &cluster);
    cluster.run(&mut simulation, 0, move |client| use_it(client, (block, block + BLOCK)));
    let told = cluster.logged().iter().any(|line| line.contains("was truncated within a block"));
    assert!(told, "{:?}", cluster.logged());
}

#[test]
fn a_truncation_before_or_within_a_stripe_without_a_head_ends_and_the_file_goes_on() {
    for (damaged, lost) in [(1, (STRIPE, END)), (2, (0, 0)), (3, (0, 0))] {
        let (mut simulation, cluster, places) = cluster(1);
        damage_head(&cluster, &places[damaged]);
        restart(&mut simulation, &cluster);
        cluster.run(&mut simulation, 0, move |client| use_it(client, lost));
    }
}

#[test]
fn people_are_told_which_server_a_truncation_waits_for() {
    let (mut simulation, cluster, places) = cluster(1);
    restart(&mut simulation, &cluster);
    let server = places[1].0;
    cluster.data_disk(server).fail_write(1);
    cluster.run(&mut simulation, 0, |client| async move {
        let file = open(&client, b"f", BOTH).await.expect("opened");
        truncate(&client, &file, END).await.expect("once the disk is well");
    });
    let name = format!("data server {}", server + 1);
    let lines = cluster.logged();
    let told =
        lines.iter().filter(|line| line.contains("is not truncated yet") && line.contains(&name));
    assert_eq!(told.count(), 1, "{lines:?}");
}
