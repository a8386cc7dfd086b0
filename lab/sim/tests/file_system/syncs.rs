//! Syncs of one file at the same time: each one ends when the bytes are durable that were written before it.

use crate::programs::*;
use ropewalk_base::task::join;
use ropewalk_sim::{Cluster, ClusterConfig, Simulation};

#[test]
fn a_sync_beside_another_ends_no_earlier_than_the_bytes_are_durable() {
    for seed in 1..=20 {
        let mut simulation = Simulation::new(seed);
        let config = ClusterConfig { data_servers: 1, clients: 1, ..ClusterConfig::default() };
        let cluster = Cluster::start(&mut simulation, config);
        let server = cluster.data(0);
        cluster.run(&mut simulation, 0, |client| async move {
            let file = create(&client, b"file").await;
            write(&client, &file, 0, &pattern(1, 300_000)).await.expect("written");
            let store = server.store();
            let written = store.log_end();
            assert!(store.log_durable() < written);
            let sync = async |what: &str| {
                client.sync(&file).await.expect("synced");
                assert!(store.log_durable() >= written, "seed {seed}: {what} ended too early");
            };
            join(sync("the first"), sync("the second")).await;
            // All of it was asked for, and by then nothing is left to be.
            let all = async {
                client.sync_all().await.expect("synced");
                assert!(store.log_durable() >= store.log_end());
            };
            write(&client, &file, 0, &pattern(2, 300_000)).await.expect("written");
            join(sync("the third"), all).await;
        });
    }
}
