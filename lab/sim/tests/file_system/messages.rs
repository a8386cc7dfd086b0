//! The number of messages that operations cost, and their receivers.

use std::time::Duration;

use crate::programs::*;
use ropewalk_client::{Caller, Client, RenameMode};
use ropewalk_sim::{Cluster, ClusterConfig, Simulation};
use ropewalk_wire::fs::meta::ROOT;

const SIZES: [usize; 6] = [0, 100, 16 << 10, 64 << 10, 300_000, 3 << 20];
const SERVERS: usize = 4;

fn cluster() -> (Simulation, Cluster) {
    let mut simulation = Simulation::new(11);
    let config =
        ClusterConfig { data_servers: SERVERS as u32, clients: 2, ..ClusterConfig::default() };
    let cluster = Cluster::start(&mut simulation, config);
    // The first look at the root directory is over, and so are the servers' first heartbeats.
    for client in [0, 1] {
        cluster.run(&mut simulation, client, |client| async move {
            client.attributes(ROOT).await.expect("attributes");
        });
    }
    simulation.run_for(Duration::from_secs(3));
    (simulation, cluster)
}

/// Requests that reached data servers.
fn at_data_servers(cluster: &Cluster) -> u64 {
    (0..cluster.data_count()).map(|server| cluster.data(server).counters().requests).sum()
}

/// Calls to the metadata server and to data servers that a program cost on a client.
fn cost<F: Future<Output = ()> + 'static>(
    simulation: &mut Simulation,
    cluster: &Cluster,
    client: usize,
    program: impl FnOnce(Client) -> F,
) -> (u64, u64) {
    let before = (cluster.client(client).counts(), at_data_servers(cluster));
    cluster.run(simulation, client, program);
    // Work that a close leaves behind belongs to the cost.
    simulation.run_for(Duration::from_secs(1));
    let after = (cluster.client(client).counts(), at_data_servers(cluster));
    let asked = after.0.data_calls - before.0.data_calls;
    assert_eq!(asked, after.1 - before.1, "data servers hear from nobody else");
    (after.0.meta_calls - before.0.meta_calls, asked)
}

#[test]
fn names_and_opens_cost_one_request_and_no_data_server_is_asked() {
    let (mut simulation, cluster) = cluster();
    let simulation = &mut simulation;
    let root = Caller::root;
    for (number, size) in SIZES.into_iter().enumerate() {
        let name = |kind: &str| format!("{kind}{number}").into_bytes();
        let (new, renamed) = (name("new"), name("renamed"));
        let file = new.clone();
        let create = cost(simulation, &cluster, 0, |client| async move {
            drop(create(&client, &file).await);
        });
        assert_eq!(create, (1, 0), "create and close");
        let file = new.clone();
        cluster.run(simulation, 0, |client| async move {
            let file = open(&client, &file, BOTH).await.expect("opened");
            write(&client, &file, 0, &pattern(1, size)).await.expect("written");
        });
        simulation.run_for(Duration::from_secs(2));
        // The client that has the lease, and one that has nothing.
        let file = new.clone();
        let again = cost(simulation, &cluster, 0, |client| async move {
            drop(open(&client, &file, BOTH).await.expect("opened"));
        });
        assert_eq!(again, (0, 0), "open and close under a lease");
        let file = new.clone();
        let lookup = cost(simulation, &cluster, 1, |client| async move {
            client.lookup(&root(), ROOT, &file).await.expect("found");
        });
        assert_eq!(lookup, (1, 0), "stat by a path whose last name is not known");
        let file = new.clone();
        let stranger = cost(simulation, &cluster, 1, |client| async move {
            drop(open(&client, &file, READ).await.expect("opened"));
        });
        assert!(stranger.0 <= 1 && stranger.1 == 0, "open and close: {stranger:?}");
        let (from, to) = (new.clone(), renamed.clone());
        let rename = cost(simulation, &cluster, 1, |client| async move {
            let mode = RenameMode::Replace;
            client.rename(&root(), ROOT, &from, ROOT, &to, mode).await.expect("renamed");
        });
        assert_eq!(rename, (1, 0), "rename");
        let stat = cost(simulation, &cluster, 1, |client| async move {
            let found = client.lookup(&root(), ROOT, &renamed).await.expect("found");
            assert_eq!(found.size, size as u64);
        });
        assert!(stat.0 <= 2 && stat.1 == 0, "stat after a rename: {stat:?}");
    }
}

#[test]
fn unlinked_files_cost_data_servers_nothing_but_batched_reaps() {
    const FILES: usize = 60;
    let (mut simulation, cluster) = cluster();
    let simulation = &mut simulation;
    cluster.run(simulation, 0, |client| async move {
        for number in 0..FILES {
            let file = create(&client, format!("f{number}").as_bytes()).await;
            write(&client, &file, 0, &pattern(number as u64, 300_000)).await.expect("written");
        }
    });
    simulation.run_for(Duration::from_secs(2));
    let objects =
        || -> u64 { (0..SERVERS).map(|server| cluster.data(server).store().usage().objects).sum() };
    assert!(objects() >= FILES as u64);
    let before = (cluster.client(0).counts(), at_data_servers(&cluster));
    cluster.run(simulation, 0, |client| async move {
        for number in 0..FILES {
            let name = format!("f{number}");
            client.unlink(&Caller::root(), ROOT, name.as_bytes()).await.expect("unlinked");
        }
    });
    let after = cluster.client(0).counts();
    assert_eq!(after.meta_calls - before.0.meta_calls, FILES as u64, "one request for each");
    assert_eq!(after.data_calls, before.0.data_calls, "the client asks no data server");
    assert!(simulation.run_until(Duration::from_secs(60), |_| objects() == 0), "all is reaped");
    simulation.run_for(Duration::from_secs(30));
    let told = cluster.meta().messages_to_data_servers();
    let heard = at_data_servers(&cluster) - before.1;
    assert_eq!((told.cuts, told.fences), (0, 0));
    assert_eq!(heard, told.reaps, "nothing but reaps");
    // The garbage of a moment goes to each server in one message.
    assert!(told.reaps <= 2 * SERVERS as u64, "{} reaps for {FILES} files", told.reaps);
}
