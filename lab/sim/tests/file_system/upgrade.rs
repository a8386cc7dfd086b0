//! A file system of the first format is brought forward while its clients work, and while anybody dies.

use std::path::Path;
use std::time::Duration;

use crate::programs::*;
use ropewalk_base::disk::Disk;
use ropewalk_client::Client;
use ropewalk_client::operator::upgrade::Format;
use ropewalk_sim::cluster::META;
use ropewalk_sim::disk::VirtualDisk;
use ropewalk_sim::{Cluster, ClusterConfig, Kill, Simulation};
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::orders::ServerOrder;

const PATIENCE: Duration = Duration::from_secs(5);
const BYTES: usize = 5 << 20;
const SERVERS: u32 = 3;

/// A cluster of the first format with a few files.
fn cluster(seed: u64) -> (Simulation, Cluster) {
    let mut simulation = Simulation::new(seed);
    let mut config = ClusterConfig { data_servers: SERVERS, clients: 2, ..Default::default() };
    config.meta.shard.first_format = true;
    let cluster = Cluster::start(&mut simulation, config);
    simulation.run_for(Duration::from_secs(2));
    cluster.run(&mut simulation, 0, |client| async move {
        for number in 0..6 {
            let file = create(&client, name(number).as_bytes()).await;
            write(&client, &file, 0, &pattern(number, BYTES)).await.expect("written");
            client.sync(&file).await.expect("synced");
        }
    });
    (simulation, cluster)
}

fn name(number: u64) -> String {
    format!("f{number}")
}

/// Gives the order, or asks.
fn ask(simulation: &mut Simulation, cluster: &Cluster, begins: bool) -> Option<Format> {
    cluster.run(simulation, 1, move |client| async move {
        let operator = client.operator(PATIENCE).expect("an address");
        match begins {
            true => operator.upgrade().await.ok(),
            false => operator.format().await.ok(),
        }
    })
}

/// Orders and waits until everything is brought forward.
fn finish(simulation: &mut Simulation, cluster: &Cluster) -> Format {
    for _ in 0..120 {
        simulation.run_for(Duration::from_millis(500));
        let now = ask(simulation, cluster, true);
        if let Some(now) = now.filter(|now| now.is_newest() && now.servers.iter().all(|it| it.done))
        {
            return now;
        }
    }
    panic!("not over: {:?}", ask(simulation, cluster, false));
}

async fn check_files(client: Client, round: u64) {
    for number in 0..6 {
        let file = open(&client, name(number).as_bytes(), READ).await.expect("opened");
        let expected = pattern(if number == 0 { round } else { number }, BYTES);
        assert_same(&read_all(&client, &file).await.expect("read"), &expected);
    }
}

/// All objects of all servers say a group of a band, or that they are nobody's.
fn groups(cluster: &Cluster) -> Vec<Option<u64>> {
    let servers = 0..cluster.data_count();
    let listing = |server| cluster.data(server).store().list(None).expect("a listing");
    let groups = |server| listing(server).map(|info| info.expect("readable").group.get());
    servers.flat_map(|server| groups(server).collect::<Vec<_>>()).collect()
}

fn is_told(group: &Option<u64>) -> bool {
    group.is_some_and(|group| Group::from_number(group).server().is_none())
}

#[test]
fn clients_work_on_while_the_format_changes_and_servers_can_be_drained_then() {
    for seed in 0..5 {
        let (mut simulation, cluster) = cluster(seed);
        let before = ask(&mut simulation, &cluster, false).expect("told");
        assert_eq!((before.format, before.newest, before.free), (1, 2, true), "{before:?}");
        assert!(!groups(&cluster).iter().any(is_told));
        let drain = |simulation: &mut Simulation, cluster: &Cluster| {
            cluster.run(simulation, 1, |client| async move {
                let operator = client.operator(PATIENCE).expect("an address");
                operator.order(ServerOrder::Drain { server: 2, heir: None }).await.is_ok()
            })
        };
        assert!(!drain(&mut simulation, &cluster), "files of the first format stay");
        // One client has the file open, and writes it again and again; it learns of nothing before a server refuses it.
        let writing = cluster.spawn(&simulation, 0, |client| async move {
            let file = open(&client, b"f0", BOTH).await.expect("opened");
            for round in 10..40 {
                write(&client, &file, 0, &pattern(round, BYTES)).await.expect("written");
                client.sync(&file).await.expect("synced");
            }
        });
        simulation.run_for(Duration::from_millis(100 * seed));
        let now = finish(&mut simulation, &cluster);
        assert_eq!((now.format, now.free), (2, true));
        assert!(groups(&cluster).iter().all(is_told));
        assert!(drain(&mut simulation, &cluster));
        let done = |_: &Simulation| writing.borrow().is_some();
        assert!(simulation.run_until(Duration::from_secs(120), done));
        simulation.run_for(Duration::from_secs(30));
        let map = cluster.meta().map().expect("it serves");
        let left = map.bands(0).flat_map(|band| &band.groups).filter(|it| it.servers.contains(&2));
        assert_eq!(left.count(), 0);
        cluster.kill(&mut simulation, "data2", Kill::Process(Duration::ZERO));
        for client in 0..2 {
            cluster.run(&mut simulation, client, |client| check_files(client, 39));
        }
    }
}

#[test]
fn anybody_may_die_at_any_moment_of_an_upgrade() {
    for seed in 100..140 {
        let (mut simulation, cluster) = cluster(seed);
        let mut random = simulation.fork_random();
        let servers = cluster.servers();
        let order = cluster.spawn(&simulation, 1, |client| async move {
            let operator = client.operator(PATIENCE).expect("an address");
            operator.upgrade().await.is_ok()
        });
        for _ in 0..4 {
            let most = [50, 400, 4000][random.below(3) as usize];
            let steps = random.below(most);
            simulation.run_steps(steps);
            let victim = &servers[random.below(servers.len() as u64) as usize];
            let kill = match random.below(2) {
                0 => Kill::Power,
                _ => Kill::Process(Duration::ZERO),
            };
            cluster.kill(&mut simulation, victim, kill);
            simulation.run_for(Duration::from_micros(random.below(300_000)));
            cluster.restart(&mut simulation, victim);
            cluster.await_start(&mut simulation);
        }
        drop(order);
        finish(&mut simulation, &cluster);
        assert!(groups(&cluster).iter().all(is_told), "seed {seed}");
        cluster.run(&mut simulation, 0, |client| check_files(client, 0));
        // After a restart everybody remembers.
        for server in &servers {
            cluster.kill(&mut simulation, server, Kill::Process(Duration::ZERO));
            cluster.restart(&mut simulation, server);
        }
        cluster.await_start(&mut simulation);
        let now = finish(&mut simulation, &cluster);
        assert_eq!(now.servers.iter().map(|it| it.told).sum::<u64>(), 0, "told once: {now:?}");
        cluster.run(&mut simulation, 1, |client| check_files(client, 0));
    }
}

#[test]
fn a_server_that_is_not_heard_stands_in_the_way() {
    let (mut simulation, cluster) = cluster(7);
    cluster.kill(&mut simulation, "data1", Kill::Process(Duration::ZERO));
    simulation.run_for(Duration::from_secs(3));
    let now = ask(&mut simulation, &cluster, true).expect("told");
    assert_eq!((now.format, now.free), (1, false));
    let able: Vec<(u32, bool)> = now.servers.iter().map(|it| (it.server, it.is_able())).collect();
    assert_eq!(able, [(1, false), (2, true), (3, true)]);
    cluster.restart(&mut simulation, "data1");
    finish(&mut simulation, &cluster);
}

/// An upgrade is cut at the calls to a disk in turn, by losses of power and by deaths: of the metadata server, and of a data
/// server that tells its objects their groups.
#[test]
fn an_upgrade_may_be_cut_at_each_call_to_a_disk() {
    for (name, step) in [(META, 1), ("data1", 3)] {
        let mut cuts = 0;
        for number in (1..100).step_by(step) {
            let (mut simulation, cluster) = cluster(200);
            let disk = if name == META { cluster.meta_disk() } else { cluster.data_disk(0) };
            disk.halt_after(number);
            let order = cluster.spawn(&simulation, 1, |client| async move {
                let operator = client.operator(PATIENCE).expect("an address");
                operator.upgrade().await.is_ok()
            });
            simulation.run_for(Duration::from_millis(if name == META { 300 } else { 2500 }));
            let is_cut = disk.is_halted();
            let is_over = order.borrow().is_some();
            let power = (number / step as u64).is_multiple_of(2);
            let kill = if power { Kill::Power } else { Kill::Process(Duration::ZERO) };
            cluster.kill(&mut simulation, name, kill);
            drop(order);
            cluster.restart(&mut simulation, name);
            cluster.await_start(&mut simulation);
            cuts += u32::from(is_cut);
            // In whichever format it is, the files are there.
            cluster.run(&mut simulation, 0, |client| check_files(client, 0));
            let now = finish(&mut simulation, &cluster);
            assert_eq!(now.format, 2, "call {number} of {name}");
            assert!(groups(&cluster).iter().all(is_told), "call {number} of {name}");
            cluster.run(&mut simulation, 0, |client| check_files(client, 0));
            if !is_cut && is_over {
                break;
            }
        }
        println!("{name} was cut {cuts} times");
        assert!(cuts >= 2, "{cuts} cuts");
    }
}

/// Disks without room stop an upgrade, and nothing is lost; with room it goes on.
#[test]
fn an_upgrade_on_full_disks_waits_for_room() {
    let (mut simulation, cluster) = cluster(201);
    let capacity = |disk: &VirtualDisk, path: &str| {
        let space = disk.space(Path::new(path)).expect("space");
        let former = space.total;
        disk.set_capacity(space.total - space.available);
        former
    };
    let meta = capacity(cluster.meta_disk(), "/meta");
    simulation.run_for(Duration::from_secs(3));
    ask(&mut simulation, &cluster, true);
    simulation.run_for(Duration::from_secs(5));
    cluster.run(&mut simulation, 0, |client| check_files(client, 0));
    cluster.meta_disk().set_capacity(meta);
    simulation.run_for(Duration::from_secs(3));
    let data: Vec<u64> =
        (0..SERVERS as usize).map(|server| capacity(cluster.data_disk(server), "/data")).collect();
    for _ in 0..10 {
        ask(&mut simulation, &cluster, true);
        simulation.run_for(Duration::from_secs(1));
    }
    cluster.run(&mut simulation, 0, |client| check_files(client, 0));
    for (server, capacity) in data.into_iter().enumerate() {
        cluster.data_disk(server).set_capacity(capacity);
    }
    let now = finish(&mut simulation, &cluster);
    assert_eq!(now.format, 2);
    assert!(groups(&cluster).iter().all(is_told));
    cluster.run(&mut simulation, 1, |client| check_files(client, 0));
}
