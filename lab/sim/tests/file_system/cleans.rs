//! Bytes of groups that went elsewhere, which a person has freed.

use std::time::Duration;

use crate::programs::*;
use ropewalk_client::operator::OperatorError;
use ropewalk_client::operator::check::CheckOptions;
use ropewalk_client::{Client, Errno};
use ropewalk_sim::cluster::META;
use ropewalk_sim::{Cluster, ClusterConfig, Kill, Simulation};
use ropewalk_wire::fs::data::Cleaned;
use ropewalk_wire::fs::orders::ServerOrder;

const PATIENCE: Duration = Duration::from_secs(5);
const BYTES: usize = 6 << 20;

fn cluster(seed: u64, copies: u32) -> (Simulation, Cluster) {
    let mut simulation = Simulation::new(seed);
    let config = ClusterConfig { data_servers: 4, clients: 2, ..ClusterConfig::default() };
    let cluster = Cluster::start(&mut simulation, config);
    simulation.run_for(Duration::from_secs(2));
    if copies > 1 {
        cluster.mirror(&mut simulation, copies);
    }
    cluster.run(&mut simulation, 0, |client| async move {
        let file = create(&client, b"f").await;
        write(&client, &file, 0, &pattern(1, BYTES)).await.expect("written");
        client.sync(&file).await.expect("synced");
    });
    simulation.run_for(Duration::from_secs(2));
    (simulation, cluster)
}

fn order(simulation: &mut Simulation, cluster: &Cluster, order: ServerOrder) {
    cluster.run(simulation, 1, move |client| async move {
        let operator = client.operator(PATIENCE).expect("an address");
        operator.order(order).await.expect("ordered");
    });
}

/// Waits until no group has to move.
fn settle(simulation: &mut Simulation, cluster: &Cluster) {
    let mut quiet = 0;
    for _ in 0..240 {
        simulation.run_for(Duration::from_secs(1));
        let is_over = cluster.run(simulation, 1, |client| async move {
            let operator = client.operator(PATIENCE).expect("an address");
            operator.order(ServerOrder::Show).await.expect("told").1.are_over()
        });
        quiet = if is_over { quiet + 1 } else { 0 };
        if quiet == 3 {
            return;
        }
    }
    panic!("groups move for ever");
}

fn clean(
    simulation: &mut Simulation,
    cluster: &Cluster,
    server: u32,
    remove: bool,
) -> Result<Cleaned, OperatorError> {
    cluster.run(simulation, 1, move |client| async move {
        let operator = client.operator(PATIENCE).expect("an address");
        operator.servers().await.expect("told");
        operator.clean(server, (remove, false), &|_| {}).await
    })
}

async fn check_file(client: Client, seed: u64) {
    let file = open(&client, b"f", READ).await.expect("opened");
    assert_same(&read_all(&client, &file).await.expect("read"), &pattern(seed, BYTES));
}

async fn problems(client: Client) -> u64 {
    let operator = client.operator(PATIENCE).expect("an address");
    let options = CheckOptions { read: true, ..CheckOptions::default() };
    operator.check(options, &|_| {}).await.expect("compared").problems()
}

#[test]
fn what_a_drained_server_gave_away_is_freed_by_an_order_and_comes_back_when_groups_do() {
    for copies in [1, 2] {
        let (mut simulation, cluster) = cluster(31, copies);
        let none = clean(&mut simulation, &cluster, 1, true).expect("cleaned");
        assert_eq!((none.objects, none.bytes), (0, 0), "it is in its groups");
        order(&mut simulation, &cluster, ServerOrder::Drain { server: 1, heir: None });
        settle(&mut simulation, &cluster);
        let counted = clean(&mut simulation, &cluster, 1, false).expect("counted");
        assert!(counted.bytes > 0 && counted.unclear == 0, "{counted:?}");
        assert!(cluster.run(&mut simulation, 0, problems) > 0, "bytes are left");
        let freed = clean(&mut simulation, &cluster, 1, true).expect("cleaned");
        assert_eq!((freed.objects, freed.bytes), (counted.objects, counted.bytes));
        let again = clean(&mut simulation, &cluster, 1, true).expect("cleaned");
        assert_eq!((again.objects, again.bytes), (0, 0));
        cluster.run(&mut simulation, 1, |client| check_file(client, 1));
        assert_eq!(cluster.run(&mut simulation, 0, problems), 0);
        // A loss of power brings nothing of it back.
        cluster.kill(&mut simulation, "data1", Kill::Power);
        cluster.restart(&mut simulation, "data1");
        cluster.await_start(&mut simulation);
        simulation.run_for(Duration::from_secs(2));
        let again = clean(&mut simulation, &cluster, 1, true).expect("cleaned");
        assert_eq!((again.objects, again.bytes), (0, 0));
        order(&mut simulation, &cluster, ServerOrder::Cancel);
        order(&mut simulation, &cluster, ServerOrder::Rebalance);
        settle(&mut simulation, &cluster);
        cluster.run(&mut simulation, 1, |client| check_file(client, 1));
        let differences = cluster.copy_differences(copies);
        assert!(differences.is_empty(), "{differences:#?}");
    }
}

#[test]
fn cleaning_beside_moves_and_writes_takes_nothing_that_is_needed() {
    for (seed, copies) in [(41, 1), (42, 2), (43, 3)] {
        let (mut simulation, cluster) = cluster(seed, copies);
        let writing = cluster.spawn(&simulation, 0, |client| async move {
            let file = open(&client, b"f", BOTH).await.expect("opened");
            for round in 2..40 {
                write(&client, &file, 0, &pattern(round, BYTES)).await.expect("written");
                client.sync(&file).await.expect("synced");
                client.world().sleep(Duration::from_millis(300)).await;
            }
            39
        });
        let mut freed = 0;
        for round in 0..12 {
            let server = 1 + (round / 2) % 4;
            let given = match round % 4 {
                0 | 2 => ServerOrder::Drain { server, heir: None },
                1 => ServerOrder::Cancel,
                _ => ServerOrder::Rebalance,
            };
            order(&mut simulation, &cluster, given);
            for _ in 0..8 {
                simulation.run_for(Duration::from_millis(150));
                for server in 1..=4 {
                    // One that does not know its groups right now refuses.
                    if let Ok(cleaned) = clean(&mut simulation, &cluster, server, true) {
                        freed += cleaned.objects;
                    }
                }
            }
        }
        assert!(freed > 0, "seed {seed}: nothing was freed");
        assert!(simulation.run_until(Duration::from_secs(120), |_| writing.borrow().is_some()));
        let last = writing.borrow().expect("it ended");
        order(&mut simulation, &cluster, ServerOrder::Cancel);
        settle(&mut simulation, &cluster);
        cluster.run(&mut simulation, 1, move |client| check_file(client, last));
        let differences = cluster.copy_differences(copies);
        assert!(differences.is_empty(), "{differences:#?}");
    }
}

/// The danger of it: metadata that were restored from before a move say that the bytes are where they were.
#[test]
fn metadata_of_before_a_move_find_an_error_and_no_zeros_where_bytes_were_freed() {
    let (mut simulation, cluster) = cluster(61, 2);
    let older = cluster.meta_disk().copy();
    order(&mut simulation, &cluster, ServerOrder::Drain { server: 1, heir: None });
    settle(&mut simulation, &cluster);
    assert!(clean(&mut simulation, &cluster, 1, true).expect("cleaned").bytes > 0);
    // An operator who takes the older copy for the right one, and has every data server forget what it knew.
    let servers = ["data1", "data2", "data3", "data4"];
    for server in servers {
        cluster.kill(&mut simulation, server, Kill::Process(Duration::ZERO));
    }
    cluster.kill(&mut simulation, META, Kill::Process(Duration::ZERO));
    cluster.meta_disk().restore(&older);
    for (number, server) in servers.into_iter().enumerate() {
        let disk = cluster.data_disk(number);
        let joined = disk.files().into_iter().find(|path| path.ends_with("joined"));
        disk.replace(&joined.expect("it is there"), None);
        cluster.restart(&mut simulation, server);
    }
    cluster.restart(&mut simulation, META);
    cluster.await_start(&mut simulation);
    simulation.run_for(Duration::from_secs(30));
    // Each block has its bytes, from the other member, or is an error.
    let whole = cluster.run(&mut simulation, 1, |client| async move {
        let file = open(&client, b"f", READ).await.expect("the metadata are there");
        let (expected, mut whole) = (pattern(1, BYTES), 0);
        for (number, part) in expected.chunks(64 << 10).enumerate() {
            match read(&client, &file, (number * (64 << 10)) as u64, part.len()).await {
                Ok(bytes) => {
                    assert_same(&bytes, part);
                    whole += 1;
                }
                Err(errno) => assert_eq!(errno, Errno::EIO),
            }
        }
        whole
    });
    assert!(whole * 2 > BYTES / (64 << 10), "{whole} parts: the other members have theirs");
}

#[test]
fn nothing_is_freed_that_a_server_cannot_judge() {
    let (mut simulation, cluster) = cluster(51, 2);
    order(&mut simulation, &cluster, ServerOrder::Drain { server: 1, heir: None });
    settle(&mut simulation, &cluster);
    // A group lacks a member that is down: the former bytes may be wanted yet.
    cluster.kill(&mut simulation, "data3", Kill::Process(Duration::ZERO));
    simulation.run_for(Duration::from_secs(4));
    match clean(&mut simulation, &cluster, 1, true) {
        Err(OperatorError::Refused { errno: Errno::EBUSY, .. }) => {}
        other => panic!("{other:?}"),
    }
    cluster.restart(&mut simulation, "data3");
    cluster.await_start(&mut simulation);
    settle(&mut simulation, &cluster);
    assert!(clean(&mut simulation, &cluster, 1, true).expect("cleaned").bytes > 0);
    // A store of the first format gives nothing away.
    let mut simulation = Simulation::new(52);
    let mut config = ClusterConfig { clients: 2, ..ClusterConfig::default() };
    config.meta.shard.first_format = true;
    let cluster = Cluster::start(&mut simulation, config);
    simulation.run_for(Duration::from_secs(2));
    match clean(&mut simulation, &cluster, 1, true) {
        Err(OperatorError::Refused { errno: Errno::EOPNOTSUPP, .. }) => {}
        other => panic!("{other:?}"),
    }
}
