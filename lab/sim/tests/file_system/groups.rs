//! Groups that the map gives other servers: nobody writes to a server that is not in the group any more.
//!
//! Nothing moves bytes yet, so the groups of these tests are empty when they change. Until the former server has heard of
//! the change it would still serve clients with the older map (docs/design/110-groups.md): these tests wait for that.

use std::time::Duration;

use crate::programs::*;
use ropewalk_client::{Caller, Client};
use ropewalk_sim::{Cluster, ClusterConfig, Kill, Simulation};
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::meta::ROOT;

const STRIPE: usize = 64 << 10;

fn cluster(seed: u64) -> (Simulation, Cluster) {
    let mut simulation = Simulation::new(seed);
    let config = ClusterConfig { data_servers: 3, clients: 2, ..ClusterConfig::default() };
    let cluster = Cluster::start(&mut simulation, config);
    simulation.run_for(Duration::from_secs(3));
    (simulation, cluster)
}

/// A file of one stripe; the group and the server of the next one.
async fn one_stripe(client: Client) -> (Group, u32) {
    let file = create(&client, b"f").await;
    write(&client, &file, 0, &pattern(1, STRIPE)).await.expect("written");
    client.sync(&file).await.expect("synced");
    let inode = client.lookup(&Caller::root(), ROOT, b"f").await.expect("found").inode;
    let striped = client.placement(inode).await.expect("told").striped.expect("it has stripes");
    let next = striped.stripes(2 * STRIPE as u64).last().expect("two stripes");
    (striped.group(next.stripe), next.server)
}

async fn write_next(client: Client) {
    let file = open(&client, b"f", BOTH).await.expect("opened");
    write(&client, &file, STRIPE as u64, &pattern(2, STRIPE)).await.expect("written");
    client.sync(&file).await.expect("synced");
}

async fn check(client: Client) {
    let file = open(&client, b"f", READ).await.expect("opened");
    let bytes = read_all(&client, &file).await.expect("read");
    assert_same(&bytes, &[pattern(1, STRIPE), pattern(2, STRIPE)].concat());
}

/// Moves an empty group from its server to the next one, whose number this returns.
fn change(simulation: &mut Simulation, cluster: &Cluster, group: Group, from: u32) -> u32 {
    let to = from % 3 + 1;
    let meta = cluster.meta();
    let set =
        cluster.spawn(simulation, 0, move |_| async move { meta.set_group(group, &[to]).await });
    simulation.run_until(Duration::from_secs(1), |_| set.borrow().is_some());
    assert_eq!(*set.borrow(), Some(true));
    to
}

fn objects(cluster: &Cluster) -> [u64; 3] {
    [0, 1, 2].map(|server| cluster.data(server).store().usage().objects)
}

/// The stripe went where the group is now.
fn is_at(before: [u64; 3], after: [u64; 3], server: u32) {
    let grown: Vec<usize> = (0..3).filter(|at| after[*at] != before[*at]).collect();
    assert_eq!(grown, [server as usize - 1], "{before:?}, {after:?}");
}

#[test]
fn a_client_with_an_older_map_is_refused_and_asks_for_the_map() {
    let (mut simulation, cluster) = cluster(5);
    let (group, from) = cluster.run(&mut simulation, 0, one_stripe);
    let to = change(&mut simulation, &cluster, group, from);
    // All data servers hear of it by their heartbeats.
    simulation.run_for(Duration::from_secs(2));
    let before = objects(&cluster);
    cluster.run(&mut simulation, 0, write_next);
    is_at(before, objects(&cluster), to);
    cluster.run(&mut simulation, 1, check);
    cluster.run(&mut simulation, 0, check);
}

#[test]
fn a_server_that_does_not_know_the_map_of_its_caller_asks_for_it_at_once() {
    let (mut simulation, cluster) = cluster(6);
    let (group, from) = cluster.run(&mut simulation, 0, one_stripe);
    let to = change(&mut simulation, &cluster, group, from);
    let (before, begin) = (objects(&cluster), simulation.now());
    // This client never asked for the map before.
    cluster.run(&mut simulation, 1, write_next);
    let took = simulation.now().since(begin);
    assert!(took < Duration::from_millis(500), "it waited for a heartbeat: {took:?}");
    is_at(before, objects(&cluster), to);
    // The former server hears of it, too.
    simulation.run_for(Duration::from_secs(2));
    cluster.run(&mut simulation, 0, check);
}

#[test]
fn a_server_that_was_down_while_its_group_went_does_not_take_it_back() {
    let (mut simulation, cluster) = cluster(7);
    let (group, from) = cluster.run(&mut simulation, 0, one_stripe);
    let name = format!("data{from}");
    cluster.kill(&mut simulation, &name, Kill::Power);
    let to = change(&mut simulation, &cluster, group, from);
    // Nobody tells it while it starts, and it gives up waiting for fences.
    cluster.kill(&mut simulation, ropewalk_sim::cluster::META, Kill::Power);
    cluster.restart(&mut simulation, &name);
    let write = cluster.spawn(&simulation, 0, write_next);
    simulation.run_for(Duration::from_secs(8));
    assert!(write.borrow().is_none(), "it serves without a map");
    cluster.restart(&mut simulation, ropewalk_sim::cluster::META);
    cluster.await_start(&mut simulation);
    let before = objects(&cluster);
    simulation.run_until(Duration::from_secs(60), |_| write.borrow().is_some());
    assert!(write.borrow().is_some(), "it goes on when the map is told");
    is_at(before, objects(&cluster), to);
    cluster.run(&mut simulation, 1, check);
}
