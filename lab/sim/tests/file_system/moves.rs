//! Groups that move: servers that are drained, replaced and removed, an even spread, members that are gone for long.

use std::time::Duration;

use crate::programs::*;
use ropewalk_client::operator::OperatorError;
use ropewalk_client::{Client, Errno};
use ropewalk_sim::cluster::META;
use ropewalk_sim::{Cluster, ClusterConfig, Kill, Simulation};
use ropewalk_wire::fs::orders::{Moves, Orders, ServerOrder};

const PATIENCE: Duration = Duration::from_secs(5);
const BYTES: usize = 3 << 20;

fn cluster(seed: u64, data_servers: u32, copies: u32) -> (Simulation, Cluster) {
    let mut simulation = Simulation::new(seed);
    let config = ClusterConfig { data_servers, clients: 2, ..ClusterConfig::default() };
    let cluster = Cluster::start(&mut simulation, config);
    simulation.run_for(Duration::from_secs(2));
    if copies > 1 {
        cluster.mirror(&mut simulation, copies);
    }
    cluster.run(&mut simulation, 0, |client| async move {
        let file = create(&client, b"f").await;
        write(&client, &file, 0, &pattern(1, BYTES)).await.expect("written");
    });
    (simulation, cluster)
}

fn order(
    simulation: &mut Simulation,
    cluster: &Cluster,
    order: ServerOrder,
) -> Result<(Orders, Moves), Errno> {
    cluster.run(simulation, 1, move |client| async move {
        let operator = client.operator(PATIENCE).expect("an address");
        operator.order(order).await.map_err(|error| match error {
            OperatorError::Refused { errno, .. } => errno,
            error => panic!("{error}"),
        })
    })
}

/// Groups that each server has.
fn loads(cluster: &Cluster, servers: u32) -> Vec<usize> {
    let map = cluster.meta().map().expect("it serves");
    let groups = || map.bands(0).flat_map(|band| &band.groups);
    let of = |server: u32| groups().filter(|it| it.holders().any(|it| it == server)).count();
    (1..=servers).map(of).collect()
}

/// Runs until nothing is left to be moved; the time it took.
fn settle(simulation: &mut Simulation, cluster: &Cluster) -> Duration {
    let begin = simulation.now();
    for _ in 0..600 {
        simulation.run_for(Duration::from_millis(500));
        let (_, moves) = order(simulation, cluster, ServerOrder::Show).expect("told");
        if moves.are_over() {
            // A look may have been from before the last change.
            simulation.run_for(Duration::from_millis(1500));
            let (_, moves) = order(simulation, cluster, ServerOrder::Show).expect("told");
            if moves.are_over() {
                return simulation.now().since(begin);
            }
        }
    }
    let (_, moves) = order(simulation, cluster, ServerOrder::Show).expect("told");
    panic!("not over after {:?}: {moves:?}", simulation.now().since(begin));
}

async fn check_file(client: Client, seed: u64) {
    let file = open(&client, b"f", READ).await.expect("opened");
    assert_same(&read_all(&client, &file).await.expect("read"), &pattern(seed, BYTES));
}

/// Writes the file again and again while something else happens; the number of the last time.
async fn keep_writing(client: Client, rounds: u64) -> u64 {
    let file = open(&client, b"f", BOTH).await.expect("opened");
    for round in 2..2 + rounds {
        write(&client, &file, 0, &pattern(round, BYTES)).await.expect("written");
        client.sync(&file).await.expect("synced");
        client.world().sleep(Duration::from_millis(300)).await;
    }
    1 + rounds
}

#[test]
fn a_server_is_drained_while_clients_write_and_may_go_then() {
    for copies in [1, 2] {
        let (mut simulation, cluster) = cluster(1, 4, copies);
        let writing = cluster.spawn(&simulation, 0, |client| keep_writing(client, 20));
        let drain = ServerOrder::Drain { server: 1, heir: None };
        let (orders, _) = order(&mut simulation, &cluster, drain).expect("ordered");
        assert_eq!(orders.departures.len(), 1);
        let busy = order(&mut simulation, &cluster, ServerOrder::Remove { server: 1 });
        assert_eq!(busy.expect_err("it has groups"), Errno::EBUSY);
        println!("{copies} copies: {:?}", settle(&mut simulation, &cluster));
        assert_eq!(loads(&cluster, 4)[0], 0, "{:?}", loads(&cluster, 4));
        assert!(simulation.run_until(Duration::from_secs(60), |_| writing.borrow().is_some()));
        let last = writing.borrow().expect("it ended");
        let runs = order(&mut simulation, &cluster, ServerOrder::Remove { server: 1 });
        assert_eq!(runs.expect_err("it would come back"), Errno::ETXTBSY);
        cluster.kill(&mut simulation, "data1", Kill::Power);
        simulation.run_for(Duration::from_secs(3));
        order(&mut simulation, &cluster, ServerOrder::Remove { server: 1 }).expect("removed");
        cluster.run(&mut simulation, 1, move |client| check_file(client, last));
        let differences = cluster.copy_differences_among(copies, 1..4);
        assert!(differences.is_empty(), "{differences:#?}");
        // Its number is free, and files can be made.
        let gone = order(&mut simulation, &cluster, ServerOrder::Remove { server: 1 });
        assert_eq!(gone.expect_err("nobody has the number"), Errno::ENOENT);
        cluster.run(&mut simulation, 0, |client| async move {
            let file = create(&client, b"g").await;
            write(&client, &file, 0, &pattern(3, BYTES)).await.expect("written");
        });
    }
}

#[test]
fn the_only_server_cannot_be_drained_nor_one_that_is_unknown() {
    let (mut simulation, cluster) = cluster(2, 1, 1);
    let mut drain = |server, heir| {
        order(&mut simulation, &cluster, ServerOrder::Drain { server, heir }).map(drop)
    };
    assert_eq!(drain(1, None), Err(Errno::ENODEV));
    assert_eq!(drain(1, Some(1)), Err(Errno::ENODEV));
    assert_eq!(drain(7, None), Err(Errno::ENOENT));
}

#[test]
fn a_drain_goes_on_whoever_dies_meanwhile() {
    for (seed, name) in [(10, META), (11, "data1"), (12, "data2"), (13, "data3")] {
        for (kill, copies) in [
            (Kill::Process(Duration::ZERO), 1),
            (Kill::Process(Duration::ZERO), 2),
            (Kill::Power, 2),
        ] {
            let (mut simulation, cluster) = cluster(seed, 3, copies);
            cluster.run(&mut simulation, 0, |client| async move {
                let file = open(&client, b"f", BOTH).await.expect("opened");
                client.sync(&file).await.expect("synced");
            });
            let drain = ServerOrder::Drain { server: 1, heir: None };
            order(&mut simulation, &cluster, drain).expect("ordered");
            simulation.run_for(Duration::from_millis(700 * (seed % 4)));
            cluster.kill(&mut simulation, name, kill);
            simulation.run_for(Duration::from_secs(3));
            cluster.restart(&mut simulation, name);
            cluster.await_start(&mut simulation);
            settle(&mut simulation, &cluster);
            assert_eq!(loads(&cluster, 3)[0], 0, "{name} {copies}: {:?}", loads(&cluster, 3));
            cluster.run(&mut simulation, 1, |client| check_file(client, 1));
            let differences = cluster.copy_differences_among(copies, 1..3);
            assert!(differences.is_empty(), "{name} {copies}: {differences:#?}");
        }
    }
}

#[test]
fn groups_are_spread_evenly_over_a_server_that_joined() {
    for copies in [1, 2] {
        let (mut simulation, mut cluster) = cluster(3, 3, copies);
        cluster.add_data_server(&mut simulation);
        cluster.await_start(&mut simulation);
        simulation.run_for(Duration::from_secs(2));
        let before = loads(&cluster, 4);
        order(&mut simulation, &cluster, ServerOrder::Rebalance).expect("ordered");
        println!("{copies} copies: {:?}", settle(&mut simulation, &cluster));
        let after = loads(&cluster, 4);
        let (least, most) = (after.iter().min().unwrap(), after.iter().max().unwrap());
        assert!(most - least <= usize::from(copies > 1) + 1, "{before:?} {after:?}");
        // Nothing moves where all is even, and each group is with the one that is to order it.
        simulation.run_for(Duration::from_secs(12));
        let epoch = cluster.meta().map().expect("it serves").epoch;
        simulation.run_for(Duration::from_secs(10));
        assert_eq!(cluster.meta().map().expect("it serves").epoch, epoch);
        cluster.run(&mut simulation, 1, |client| check_file(client, 1));
    }
}

#[test]
fn a_server_takes_the_place_of_another_one() {
    let (mut simulation, mut cluster) = cluster(4, 3, 1);
    cluster.add_data_server(&mut simulation);
    cluster.await_start(&mut simulation);
    simulation.run_for(Duration::from_secs(2));
    let before = loads(&cluster, 4);
    let drain = ServerOrder::Drain { server: 2, heir: Some(4) };
    order(&mut simulation, &cluster, drain).expect("ordered");
    settle(&mut simulation, &cluster);
    assert_eq!(loads(&cluster, 4), [before[0], 0, before[2], before[1] + before[3]]);
    cluster.run(&mut simulation, 1, |client| check_file(client, 1));
}

#[test]
fn moves_pause_keep_their_pace_and_are_taken_back() {
    let (mut simulation, cluster) = cluster(5, 2, 1);
    order(&mut simulation, &cluster, ServerOrder::Pause { paused: true }).expect("ordered");
    let drain = ServerOrder::Drain { server: 1, heir: None };
    order(&mut simulation, &cluster, drain).expect("ordered");
    simulation.run_for(Duration::from_secs(5));
    assert_eq!(loads(&cluster, 2), [64, 64]);
    let (_, moves) = order(&mut simulation, &cluster, ServerOrder::Show).expect("told");
    assert_eq!((moves.under_way, moves.waiting), (0, 64));
    let rate = ServerOrder::Rate { mib_per_second: 1 };
    order(&mut simulation, &cluster, rate).expect("ordered");
    order(&mut simulation, &cluster, ServerOrder::Pause { paused: false }).expect("ordered");
    simulation.run_for(Duration::from_millis(1500));
    let between = loads(&cluster, 2);
    assert!(between[1] > 64 && between[0] > 0, "{between:?}");
    order(&mut simulation, &cluster, ServerOrder::Cancel).expect("ordered");
    settle(&mut simulation, &cluster);
    let after = loads(&cluster, 2);
    assert!(after[0] > 0 && after.iter().sum::<usize>() == 128, "{after:?}");
    cluster.run(&mut simulation, 1, |client| check_file(client, 1));
}

#[test]
fn a_member_that_is_gone_for_long_is_replaced() {
    let (mut simulation, cluster) = cluster(6, 4, 2);
    cluster.kill(&mut simulation, "data1", Kill::Power);
    simulation.run_for(Duration::from_secs(60));
    let short = cluster.copy_differences_among(2, 1..4);
    assert!(!short.is_empty(), "it may come back");
    simulation.run_for(Duration::from_secs(600));
    let short = cluster.copy_differences_among(2, 1..4);
    assert!(short.is_empty(), "{short:#?}");
    cluster.run(&mut simulation, 1, |client| check_file(client, 1));
    // It comes back: nobody needs its copies any more.
    cluster.restart(&mut simulation, "data1");
    cluster.await_start(&mut simulation);
    simulation.run_for(Duration::from_secs(10));
    cluster.run(&mut simulation, 1, |client| check_file(client, 1));
}

#[test]
fn groups_go_on_without_a_server_that_a_person_gave_up() {
    let (mut simulation, cluster) = cluster(71, 3, 2);
    let lost = |simulation: &mut Simulation, server| {
        order(simulation, &cluster, ServerOrder::Lost { server }).map(drop)
    };
    assert_eq!(lost(&mut simulation, 7), Err(Errno::ENOENT));
    assert_eq!(lost(&mut simulation, 1), Err(Errno::ETXTBSY), "it lives");
    // One by one all but the third go; then the third is gone for good.
    cluster.run(&mut simulation, 0, |client| async move {
        let file = open(&client, b"f", BOTH).await.expect("opened");
        client.sync(&file).await.expect("synced");
    });
    for server in ["data1", "data2"] {
        cluster.kill(&mut simulation, server, Kill::Process(Duration::ZERO));
    }
    simulation.run_for(Duration::from_secs(5));
    cluster.kill(&mut simulation, "data3", Kill::Process(Duration::ZERO));
    cluster.restart(&mut simulation, "data1");
    cluster.restart(&mut simulation, "data2");
    simulation.run_for(Duration::from_secs(10));
    assert_eq!(lost(&mut simulation, 3), Err(Errno::ETXTBSY), "it was heard a moment ago");
    simulation.run_for(Duration::from_secs(25));
    assert!(loads(&cluster, 3)[2] > 0);
    assert_eq!(lost(&mut simulation, 3), Ok(()));
    // Its groups of one copy nobody else has.
    assert_eq!(loads(&cluster, 3)[2], 64);
    simulation.run_for(Duration::from_secs(10));
    // All was at another member, too, so nothing is missing.
    cluster.run(&mut simulation, 1, |client| check_file(client, 1));
    settle(&mut simulation, &cluster);
    let differences = cluster.copy_differences_among(2, 0..2);
    assert!(differences.is_empty(), "{differences:#?}");
    // If its disk turns up after all, it brings nothing back.
    cluster.run(&mut simulation, 0, |client| async move {
        let file = open(&client, b"f", BOTH).await.expect("opened");
        write(&client, &file, 0, &pattern(2, BYTES)).await.expect("written");
    });
    cluster.restart(&mut simulation, "data3");
    cluster.await_start(&mut simulation);
    simulation.run_for(Duration::from_secs(5));
    cluster.run(&mut simulation, 1, |client| check_file(client, 2));
}

#[test]
fn what_was_acknowledged_by_a_server_alone_that_is_given_up_is_told_by_the_next_sync() {
    let (mut simulation, cluster) = cluster(72, 2, 2);
    cluster.run(&mut simulation, 0, |client| async move {
        let file = open(&client, b"f", BOTH).await.expect("opened");
        client.sync(&file).await.expect("synced");
    });
    cluster.kill(&mut simulation, "data2", Kill::Process(Duration::ZERO));
    simulation.run_for(Duration::from_secs(5));
    let synced = cluster.spawn(&simulation, 0, |client| async move {
        let file = open(&client, b"f", BOTH).await.expect("opened");
        write(&client, &file, 0, &pattern(2, BYTES)).await.expect("written");
        client.world().sleep(Duration::from_secs(90)).await;
        client.sync(&file).await
    });
    simulation.run_for(Duration::from_secs(20));
    cluster.kill(&mut simulation, "data1", Kill::Power);
    cluster.restart(&mut simulation, "data2");
    simulation.run_for(Duration::from_secs(40));
    order(&mut simulation, &cluster, ServerOrder::Lost { server: 1 }).expect("given up");
    assert!(simulation.run_until(Duration::from_secs(120), |_| synced.borrow().is_some()));
    let synced = synced.borrow_mut().take().expect("it ended");
    assert_eq!(synced.expect_err("bytes are lost"), Errno::EIO);
    // The file has what the other member had.
    cluster.run(&mut simulation, 1, |client| check_file(client, 1));
}
