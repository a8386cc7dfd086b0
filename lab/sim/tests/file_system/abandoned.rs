//! Programs that give up in the middle: futures of the client are dropped wherever they wait, and
//! nothing that was acknowledged, no slot, no credit and no memory may go with them.

use std::time::Duration;

use crate::programs::*;
use ropewalk_base::task::{Either, race, yield_now};
use ropewalk_client::{Caller, Client};
use ropewalk_sim::{Cluster, ClusterConfig, Kill, SimConfig, Simulation};
use ropewalk_wire::fs::meta::ROOT;

fn cluster(simulation: &mut Simulation, rail: SimConfig) -> Cluster {
    let config = ClusterConfig { data_servers: 1, clients: 2, rail, ..ClusterConfig::default() };
    Cluster::start(simulation, config)
}

/// Drops `work` after `time`, unless it is done.
async fn for_a_while<T>(client: &Client, time: Duration, work: impl Future<Output = T>) {
    match race(work, client.world().sleep(time)).await {
        Either::Left(_) | Either::Right(()) => {}
    }
}

#[test]
fn replies_that_nobody_waits_for_hold_no_credit() {
    let mut simulation = Simulation::new(1);
    let cluster = cluster(&mut simulation, SimConfig::stream());
    cluster.run(&mut simulation, 0, |client| async move {
        let root = Caller::root();
        for number in 0..200 {
            create(&client, format!("a name of some length {number}").as_bytes()).await;
        }
        // The listings are long enough to be announced, the attributes go at once.
        for _ in 0..2000 {
            race(client.read_directory(&root, ROOT, 0, true), yield_now()).await;
            for _ in 0..10 {
                race(client.lookup(&root, ROOT, b"nothing"), yield_now()).await;
            }
        }
        assert_eq!(list(&client).await.len(), 200);
    });
}

#[test]
fn calls_that_never_left_do_not_take_their_slots_along() {
    let mut simulation = Simulation::new(2);
    let cluster = cluster(&mut simulation, SimConfig::stream());
    let (name, meta) = (cluster.client_name(0).to_owned(), cluster.servers()[0].clone());
    cluster.run(&mut simulation, 0, |client| async move {
        create(&client, b"before").await;
    });
    simulation.network().partition(&name, &meta);
    cluster.run(&mut simulation, 0, |client| async move {
        // More than there are slots, so that each is used and given up.
        for _ in 0..200 {
            let root = Caller::root();
            let asked = client.lookup(&root, ROOT, b"before");
            for_a_while(&client, Duration::from_millis(1), asked).await;
        }
    });
    simulation.network().heal(&name, &meta);
    cluster.run(&mut simulation, 0, |client| async move {
        for number in 0..200 {
            create(&client, format!("{number}").as_bytes()).await;
        }
    });
}

#[test]
fn what_is_too_long_to_be_sent_costs_no_slot() {
    let mut simulation = Simulation::new(3);
    let cluster = cluster(&mut simulation, SimConfig::stream());
    cluster.run(&mut simulation, 0, |client| async move {
        let file = create(&client, b"file").await;
        let (root, value) = (Caller::root(), vec![7; 40_000]);
        for _ in 0..100 {
            let plain = (false, false);
            let set = client.set_xattr(&root, file.number(), b"user.long", &value, plain).await;
            assert_eq!(set, Err(ropewalk_client::Errno::E2BIG));
        }
        create(&client, b"another").await;
    });
}

#[test]
fn a_report_that_is_given_up_is_made_later() {
    let mut simulation = Simulation::new(4);
    let cluster = cluster(&mut simulation, SimConfig::stream());
    let (name, meta) = (cluster.client_name(0).to_owned(), cluster.servers()[0].clone());
    let file = cluster.run(&mut simulation, 0, |client| async move {
        let file = create(&client, b"file").await;
        write(&client, &file, 0, &pattern(1, 1 << 20)).await.expect("written");
        client.sync(&file).await.expect("synced");
        write(&client, &file, 1 << 20, &pattern(2, 1 << 20)).await.expect("written");
        file
    });
    simulation.network().partition(&name, &meta);
    let number = file.number();
    cluster.run(&mut simulation, 0, |client| async move {
        for_a_while(&client, Duration::from_millis(5), client.sync(&file)).await;
    });
    // Messages in flight are lost with their receiver.
    cluster.kill(&mut simulation, &meta, Kill::Process(Duration::ZERO));
    simulation.network().heal(&name, &meta);
    cluster.restart(&mut simulation, &meta);
    cluster.await_start(&mut simulation);
    let size = cluster.run(&mut simulation, 1, |client| async move {
        client.attributes(number).await.expect("attributes").size
    });
    assert_eq!(size, 2 << 20);
}

#[test]
fn a_sync_that_is_given_up_is_made_whole_by_the_next() {
    let mut simulation = Simulation::new(5);
    let cluster = cluster(&mut simulation, SimConfig::stream());
    let (name, data) = (cluster.client_name(0).to_owned(), cluster.servers()[1].clone());
    let file = cluster.run(&mut simulation, 0, |client| async move {
        let file = create(&client, b"file").await;
        write(&client, &file, 0, &pattern(1, 1 << 20)).await.expect("written");
        file
    });
    simulation.network().partition(&name, &data);
    let file = cluster.run(&mut simulation, 0, |client| async move {
        for_a_while(&client, Duration::from_millis(5), client.sync(&file)).await;
        file
    });
    simulation.network().heal(&name, &data);
    cluster.run(&mut simulation, 0, |client| async move {
        client.sync(&file).await.expect("synced");
    });
    cluster.kill(&mut simulation, &data, Kill::Power);
    cluster.restart(&mut simulation, &data);
    cluster.await_start(&mut simulation);
    cluster.run(&mut simulation, 1, |client| async move {
        let file = open(&client, b"file", READ).await.expect("opened");
        assert_same(&read_all(&client, &file).await.expect("read"), &pattern(1, 1 << 20));
    });
}

#[test]
fn transfers_that_are_given_up_give_their_memory_back() {
    for rail in [SimConfig::stream(), SimConfig::native()] {
        let mut simulation = Simulation::new(6);
        let cluster = cluster(&mut simulation, rail);
        let (name, data) = (cluster.client_name(0).to_owned(), cluster.servers()[1].clone());
        let file = cluster.run(&mut simulation, 0, |client| async move {
            let file = create(&client, b"file").await;
            write(&client, &file, 0, &pattern(1, 1 << 20)).await.expect("written");
            client.sync(&file).await.expect("synced");
            file
        });
        simulation.network().partition(&name, &data);
        let file = cluster.run(&mut simulation, 0, |client| async move {
            // Several times what the pool has.
            for _ in 0..600 {
                let buffer = client.pool().copy_of(&pattern(2, 1 << 20)).expect("memory");
                let written = client.write(&file, 0, buffer, 0..1 << 20);
                for_a_while(&client, Duration::from_millis(1), written).await;
                let buffer = client.pool().take(1 << 20).expect("memory");
                let read = client.read(&file, 0, buffer);
                for_a_while(&client, Duration::from_millis(1), read).await;
            }
            file
        });
        simulation.network().heal(&name, &data);
        cluster.run(&mut simulation, 0, |client| async move {
            write(&client, &file, 0, &pattern(3, 1 << 20)).await.expect("written");
            assert_same(&read_all(&client, &file).await.expect("read"), &pattern(3, 1 << 20));
        });
    }
}
