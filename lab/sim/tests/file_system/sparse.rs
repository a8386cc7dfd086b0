//! Files whose stripes lie so far apart that their map is long: no message has room for all of it, but
//! the reply that opens the file.

use std::rc::Rc;
use std::time::Duration;

use crate::programs::*;
use ropewalk_base::task::join_all;
use ropewalk_client::{Client, Errno, File};
use ropewalk_sim::{Cluster, ClusterConfig, SimConfig, Simulation};
use ropewalk_wire::fs::runs::RUNS_MAX;

const STRIPE: u64 = 64 << 10;
/// Programs that write at the same time.
const WRITERS: u64 = 64;

fn cluster(rail: SimConfig) -> (Simulation, Cluster) {
    let mut simulation = Simulation::new(5);
    let mut config = ClusterConfig { clients: 2, rail, ..ClusterConfig::default() };
    // An inode's row with all its stripes is one record.
    config.meta.store.journal.segment_bytes = 1 << 20;
    config.meta.store.journal_bytes = 4 << 20;
    config.data_disk_bytes = 8 << 30;
    let cluster = Cluster::start(&mut simulation, config);
    (simulation, cluster)
}

fn byte(run: u64) -> u8 {
    (run % 251) as u8 + 1
}

/// Writes one byte into every second stripe.
async fn scatter(client: Client, file: Rc<File>, runs: std::ops::Range<u64>) {
    let (client, file, runs) = (&client, &file, &runs);
    join_all((0..WRITERS).map(|writer| async move {
        for run in runs.clone().filter(|run| run % WRITERS == writer) {
            let written = write(client, file, 2 * run * STRIPE, &[byte(run)]).await;
            assert_eq!(written, Ok(2 * run * STRIPE), "run {run}");
        }
    }))
    .await;
}

async fn assert_scattered(client: &Client, file: &File, count: u64) {
    for run in (0..count).step_by(97).chain([count - 1]) {
        let read = read(client, file, 2 * run * STRIPE, 1).await;
        assert_eq!(read, Ok(vec![byte(run)]), "run {run}");
    }
    let size = client.attributes(file.number()).await.expect("attributes").size;
    assert_eq!(size, 2 * (count - 1) * STRIPE + 1);
    assert_eq!(read(client, file, STRIPE, 10).await, Ok(vec![0; 10]));
}

#[test]
fn a_file_of_many_runs_is_reported_given_back_and_opened() {
    const COUNT: u64 = 14_000;
    let (mut simulation, cluster) = cluster(SimConfig::stream());
    let file = cluster.run(&mut simulation, 0, |client| async move {
        let file = Rc::new(create(&client, b"f").await);
        // Out of the inode row, which changes the file's epoch.
        scatter(client.clone(), file.clone(), 0..1).await;
        scatter(client.clone(), file.clone(), 1..5000).await;
        client.sync(&file).await.expect("synced");
        scatter(client.clone(), file.clone(), 5000..COUNT).await;
        file
    });
    // Some of it is in no report yet and goes with the lease.
    cluster.run(&mut simulation, 1, |client| async move {
        let file = open(&client, b"f", READ).await.expect("opened");
        assert_scattered(&client, &file, COUNT).await;
    });
    let held = file.clone();
    cluster.run(&mut simulation, 0, |client| async move {
        client.sync(&held).await.expect("nothing is lost");
        assert_scattered(&client, &held, COUNT).await;
    });
}

#[test]
fn the_write_that_would_need_one_run_too_many_says_so() {
    let (mut simulation, cluster) = cluster(SimConfig::native());
    let count = RUNS_MAX as u64;
    let file = cluster.run(&mut simulation, 0, |client| async move {
        let file = Rc::new(create(&client, b"f").await);
        scatter(client.clone(), file.clone(), 0..count).await;
        let over = write(&client, &file, 2 * count * STRIPE, b"x").await;
        assert_eq!(over, Err(Errno::EFBIG));
        client.sync(&file).await.expect("what was acknowledged is kept");
        assert_scattered(&client, &file, count).await;
        file
    });
    // Also where two write, neither of which knows all stripes.
    cluster.run(&mut simulation, 1, |client| async move {
        let file = open(&client, b"f", BOTH).await.expect("opened");
        for round in 0..3u64 {
            let over = write(&client, &file, 2 * (count + round) * STRIPE, b"x").await;
            assert_eq!(over, Err(Errno::EFBIG));
            write(&client, &file, 1, b"y").await.expect("there is room in a stripe");
        }
        client.sync(&file).await.expect("what was acknowledged is kept");
        assert_eq!(read(&client, &file, 0, 2).await, Ok(vec![byte(0), b'y']));
    });
    cluster.run(&mut simulation, 0, |client| async move {
        let over = write(&client, &file, 2 * count * STRIPE, b"x").await;
        assert_eq!(over, Err(Errno::EFBIG));
        assert_scattered(&client, &file, count).await;
        client.world().sleep(Duration::from_secs(2)).await;
        client.sync(&file).await.expect("what was acknowledged is kept");
    });
}
