//! Groups of several members: acknowledged writes outlive any one of them, and those that come back are brought into step.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::programs::*;
use ropewalk_base::disk::Disk;
use ropewalk_base::random::Random;
use ropewalk_client::{Actor, Caller, Client, Errno};
use ropewalk_data::Defect;
use ropewalk_sim::{Cluster, ClusterConfig, Kill, Path as Way, Simulation, seeds};
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::map::Membership;
use ropewalk_wire::fs::meta::ROOT;

const STRIPE: usize = 64 << 10;
const STRIPES: usize = 12;
/// Writes at a time while groups are handed on.
const WRITERS: usize = 6;
const PAIRS: [(u32, u32); 6] = [(1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4)];

fn cluster(seed: u64, servers: u32, copies: u32) -> (Simulation, Cluster) {
    cluster_with(seed, servers, copies, None)
}

fn cluster_with(
    seed: u64,
    servers: u32,
    copies: u32,
    data_defect: Option<Defect>,
) -> (Simulation, Cluster) {
    let mut simulation = Simulation::new(seed);
    let config = ClusterConfig {
        data_servers: servers,
        clients: 2,
        data_defect,
        ..ClusterConfig::default()
    };
    let cluster = Cluster::start(&mut simulation, config);
    cluster.mirror(&mut simulation, copies);
    (simulation, cluster)
}

async fn write_file(client: Client) {
    let file = create(&client, b"f").await;
    write(&client, &file, 0, &pattern(1, STRIPES * STRIPE)).await.expect("written");
}

/// Reads the file; `changed` begins with the bytes that were written last.
async fn check_file(client: Client, changed: Vec<u8>) {
    let file = open(&client, b"f", READ).await.expect("opened");
    let bytes = read_all(&client, &file).await.expect("read");
    let mut expected = pattern(1, STRIPES * STRIPE);
    expected[..changed.len()].copy_from_slice(&changed);
    assert_same(&bytes, &expected);
}

/// The server that orders the writes of the file's first stripe, counted from 1.
async fn orderer(client: Client) -> (Group, u32) {
    let inode = client.lookup(&Caller::root(), ROOT, b"f").await.expect("found").inode;
    let striped = client.placement(inode).await.expect("told").striped.expect("it has stripes");
    let first = striped.stripes(STRIPE as u64).next().expect("a stripe");
    (striped.group(first.stripe), first.server)
}

fn assert_equal(cluster: &Cluster, copies: u32) {
    let differences = cluster.copy_differences(copies);
    assert!(differences.is_empty(), "{differences:#?}");
}

#[test]
fn a_write_is_at_all_members_when_it_is_acknowledged() {
    for copies in [2, 3] {
        let (mut simulation, cluster) = cluster(1, 4, copies);
        cluster.run(&mut simulation, 0, write_file);
        assert_equal(&cluster, copies);
        let objects: u64 = (0..4).map(|server| cluster.data(server).store().usage().objects).sum();
        assert_eq!(objects, STRIPES as u64 * u64::from(copies));
        cluster.run(&mut simulation, 1, |client| check_file(client, Vec::new()));
    }
}

/// Kills a member of the first stripe's group, the orderer or another one, and writes and reads meanwhile.
fn dies(seed: u64, copies: u32, place: usize, kill: Kill) {
    let (mut simulation, cluster) = cluster(seed, 4, copies);
    cluster.run(&mut simulation, 0, write_file);
    let (group, first) = cluster.run(&mut simulation, 0, orderer);
    let members = cluster.meta().map().expect("it serves").members(group);
    assert_eq!((members.len(), members[0]), (copies as usize, first));
    let name = format!("data{}", members[place]);
    cluster.kill(&mut simulation, &name, kill);
    let begin = simulation.now();
    let changed = pattern(9, 3 * STRIPE / 2);
    let bytes = changed.clone();
    cluster.run(&mut simulation, 0, |client| async move {
        let file = open(&client, b"f", BOTH).await.expect("opened");
        write(&client, &file, 0, &bytes).await.expect("written");
        client.sync(&file).await.expect("synced");
    });
    let took = simulation.now().since(begin);
    println!("member {place} of {copies}: {took:?}");
    assert!(took < Duration::from_secs(4), "writes stood still for {took:?}");
    let bytes = changed.clone();
    cluster.run(&mut simulation, 1, |client| check_file(client, bytes));
    // It comes back, is brought into step, and takes part again.
    cluster.restart(&mut simulation, &name);
    cluster.await_start(&mut simulation);
    simulation.run_for(Duration::from_secs(20));
    assert_equal(&cluster, copies);
    cluster.run(&mut simulation, 1, |client| check_file(client, changed));
}

#[test]
fn the_death_of_any_member_loses_nothing_and_it_is_brought_into_step() {
    for (copies, place) in [(2, 1), (2, 0), (3, 0), (3, 1), (3, 2)] {
        dies(10 + place as u64, copies, place, Kill::Process(Duration::ZERO));
        dies(20 + place as u64, copies, place, Kill::Power);
    }
}

/// The longest time for which no write was acknowledged after harm came to a member of a group of three.
fn longest_gap(
    seed: u64,
    place: usize,
    harm: impl Fn(&mut Simulation, &Cluster, &str),
) -> Duration {
    let (mut simulation, cluster) = cluster(seed, 4, 3);
    cluster.run(&mut simulation, 0, write_file);
    let (group, _) = cluster.run(&mut simulation, 0, orderer);
    let member = cluster.meta().map().expect("it serves").members(group)[place];
    let world = simulation.node(cluster.client_name(0)).world().clone();
    let writer = cluster.spawn(&simulation, 0, |client| async move {
        let file = open(&client, b"f", BOTH).await.expect("opened");
        let mut longest = Duration::ZERO;
        let end = world.now() + Duration::from_secs(4);
        while world.now() < end {
            let begin = world.now();
            write(&client, &file, 0, &pattern(2, STRIPE)).await.expect("written");
            longest = longest.max(world.now().since(begin));
            world.sleep(Duration::from_millis(5)).await;
        }
        longest
    });
    simulation.run_for(Duration::from_millis(500));
    harm(&mut simulation, &cluster, &format!("data{member}"));
    let done = |_: &Simulation| writer.borrow().is_some();
    assert!(simulation.run_until(Duration::from_secs(60), done), "member {place} of seed {seed}");
    let longest = writer.borrow_mut().take();
    longest.expect("it is done")
}

#[test]
fn writes_go_on_within_a_second_when_a_member_is_killed() {
    for place in 0..3 {
        for seed in seeds(50, 5) {
            let gap = longest_gap(seed, place, |simulation, cluster, name| {
                cluster.kill(simulation, name, Kill::Process(Duration::ZERO));
            });
            println!("member {place}, seed {seed}: {gap:?}");
            assert!(gap < Duration::from_secs(1), "member {place}, seed {seed}: {gap:?}");
        }
    }
}

#[test]
fn writes_go_on_at_once_when_a_member_says_that_it_stops() {
    for place in 0..3 {
        let gap = longest_gap(55, place, |simulation, cluster, name| {
            let number: usize = name["data".len()..].parse().expect("a number");
            let server = cluster.data(number - 1);
            let begin = simulation.now();
            simulation.block_on(name, Duration::from_secs(1), async move { server.leave().await });
            let took = simulation.now().since(begin);
            assert!(took < Duration::from_millis(100), "it left after {took:?}");
            cluster.kill(simulation, name, Kill::Process(Duration::ZERO));
        });
        println!("member {place}: {gap:?}");
        assert!(gap < Duration::from_millis(200), "member {place}: {gap:?}");
    }
}

#[test]
fn a_member_that_stands_still_keeps_its_place_for_longer() {
    let gap = longest_gap(60, 1, |simulation, _, name| {
        simulation.pause(name);
        simulation.run_for(Duration::from_millis(1_100));
        simulation.resume(name);
    });
    assert!(gap > Duration::from_secs(1) && gap < Duration::from_millis(1_300), "{gap:?}");
}

/// Groups that another server orders than the one that is to.
fn away_from_home(cluster: &Cluster) -> usize {
    let map = cluster.meta().map().expect("it serves");
    let is_away = |home: u32| move |group: &&Membership| group.servers[0] != home;
    let bands = map.bands(0).filter_map(|band| Some((band.mirroring?.home, band)));
    bands.map(|(home, band)| band.groups.iter().filter(is_away(home)).count()).sum()
}

/// A server is started again, and is to order its groups afterwards. Writes go on meanwhile. `dies`: copies are under way for long, and
/// the client dies when the first groups are handed on. Returns what differs between copies afterwards, and the longest
/// time without a write since the server came back.
fn order_goes_home(seed: u64, dies: bool) -> (Vec<String>, Duration) {
    let (mut simulation, cluster) = cluster(seed, 4, 2);
    let mut random = simulation.fork_random();
    cluster.run(&mut simulation, 0, write_file);
    let (_, first) = cluster.run(&mut simulation, 0, orderer);
    let name = format!("data{first}");
    cluster.kill(&mut simulation, &name, Kill::Process(Duration::ZERO));
    simulation.run_for(Duration::from_secs(2));
    cluster.restart(&mut simulation, &name);
    cluster.await_start(&mut simulation);
    let away = away_from_home(&cluster);
    assert!(away > 0, "seed {seed}");
    let pairs: &[(u32, u32)] = if dies { &PAIRS } else { &[] };
    for (one, other) in pairs {
        let slow = |path: &mut Way| path.latency = Duration::from_millis(40);
        simulation.network().change_paths(&format!("data{one}"), &format!("data{other}"), slow);
    }
    let longest = Rc::new(Cell::new(Duration::ZERO));
    let writers = (0..WRITERS).map(|_| {
        let world = simulation.node(cluster.client_name(0)).world().clone();
        let (longest, mut places) = (longest.clone(), Random::from_seed(random.below(1 << 32)));
        cluster.spawn(&simulation, 0, |client| async move {
            let file = open(&client, b"f", BOTH).await.expect("opened");
            let end = world.now() + Duration::from_secs(16);
            while world.now() < end {
                let begin = world.now();
                let at = places.below((STRIPES * STRIPE / 4096) as u64 - 1) * 4096;
                write(&client, &file, at, &pattern(begin.0, 8192)).await.expect("written");
                longest.set(longest.get().max(world.now().since(begin)));
                // An object that was changed a moment ago is made equal in any case.
                let most = if dies { 600 } else { 10 };
                world.sleep(Duration::from_millis(places.below(most))).await;
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    let done = |_: &Simulation| writers.iter().all(|writer| writer.borrow().is_some());
    if dies {
        while away_from_home(&cluster) == away {
            simulation.run_for(Duration::from_millis(1));
        }
        simulation.run_for(Duration::from_millis(random.below(50)));
        cluster.kill(&mut simulation, cluster.client_name(0), Kill::Power);
        simulation.run_for(Duration::from_secs(20));
    } else {
        assert!(simulation.run_until(Duration::from_secs(60), done), "seed {seed}");
    }
    simulation.run_for(Duration::from_secs(2));
    assert_eq!(away_from_home(&cluster), 0, "seed {seed}");
    (cluster.copy_differences(2), longest.get())
}

#[test]
fn a_server_that_was_started_again_orders_its_groups_when_it_is_in_step() {
    for seed in seeds(70, 2) {
        let (differences, longest) = order_goes_home(seed, false);
        println!("seed {seed}: {longest:?}");
        assert!(differences.is_empty(), "seed {seed}: {differences:#?}");
        assert!(longest < Duration::from_millis(500), "seed {seed}: {longest:?} without a write");
    }
    for seed in seeds(80, 4) {
        let (differences, _) = order_goes_home(seed, true);
        assert!(differences.is_empty(), "seed {seed}: {differences:#?}");
    }
}

/// A change of the file's first stripe.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Change {
    Write,
    Punch,
}

impl Change {
    /// The stripe, after it.
    fn bytes(self) -> Vec<u8> {
        match self {
            Change::Write => pattern(9, STRIPE),
            Change::Punch => vec![0; STRIPE],
        }
    }

    async fn make(self, client: &Client) {
        let file = open(client, b"f", BOTH).await.expect("opened");
        match self {
            Change::Write => {
                write(client, &file, 0, &self.bytes()).await.expect("written");
            }
            Change::Punch => {
                let (length, how) = (STRIPE as u64, (true, true));
                let punched = client.allocate(&file, 0, length, how, || true, &Actor::OWN).await;
                punched.expect("punched");
            }
        }
    }
}

/// A change goes to one member and not to another one, and after so many steps the orderer and the client die: nobody repeats
/// it. Returns the differences between the members that are left.
fn differ_after(change: Change, steps: u64, defect: Option<Defect>) -> Vec<String> {
    let (mut simulation, cluster) = cluster_with(40, 4, 3, defect);
    cluster.run(&mut simulation, 0, write_file);
    let (group, first) = cluster.run(&mut simulation, 0, orderer);
    let members = cluster.meta().map().expect("it serves").members(group);
    let names =
        [first, members[1 + (steps / 4 % 2) as usize]].map(|server| format!("data{server}"));
    simulation.network().partition(&names[0], &names[1]);
    let made =
        cluster.spawn(&simulation, 0, move |client| async move { change.make(&client).await });
    simulation.run_steps(steps);
    let done = made.borrow().is_some();
    cluster.kill(&mut simulation, cluster.client_name(0), Kill::Power);
    cluster.kill(&mut simulation, &names[0], Kill::Power);
    simulation.network().heal(&names[0], &names[1]);
    simulation.run_for(Duration::from_secs(20));
    let others = (0..4).filter(|server| *server != first as usize - 1);
    let differences = cluster.copy_differences_among(2, others);
    if defect.is_none() {
        let read = cluster.run(&mut simulation, 1, |client| async move {
            let file = open(&client, b"f", READ).await.expect("opened");
            read_all(&client, &file).await.expect("read")
        });
        let (old, new) = (pattern(1, STRIPES * STRIPE), change.bytes());
        assert_same(&read[STRIPE..], &old[STRIPE..]);
        let whole = read[..STRIPE] == old[..STRIPE] && !done || read[..STRIPE] == new[..];
        assert!(whole, "after {steps} steps a {change:?} is neither there nor absent");
    }
    differences
}

#[test]
fn what_a_dead_orderer_left_half_done_is_the_same_everywhere() {
    // Between any two of them in `--deep`; the change is over, or stands still, before the last one.
    let is_deep = std::env::var_os("ROPEWALK_SEEDS").is_some();
    for (change, every) in [(Change::Write, 4), (Change::Punch, 8)] {
        for steps in (0..160).step_by(if is_deep { 1 } else { every }) {
            let differences = differ_after(change, steps, None);
            assert!(differences.is_empty(), "{change:?} after {steps} steps: {differences:#?}");
        }
    }
    let steps = (0..160).step_by(4);
    let mut found = steps.map(|it| differ_after(Change::Write, it, Some(Defect::Unsettled)));
    assert!(found.any(|differences| !differences.is_empty()), "the planted bug is not found");
}

#[test]
fn all_members_may_be_started_again_at_once() {
    for seed in 30..34 {
        let (mut simulation, cluster) = cluster(seed, 4, 3);
        cluster.run(&mut simulation, 0, write_file);
        for server in cluster.servers() {
            cluster.kill(&mut simulation, &server, Kill::Process(Duration::ZERO));
        }
        simulation.run_for(Duration::from_millis(200 * (seed - 30)));
        for server in cluster.servers() {
            cluster.restart(&mut simulation, &server);
        }
        cluster.await_start(&mut simulation);
        cluster.run(&mut simulation, 1, |client| check_file(client, Vec::new()));
        simulation.run_for(Duration::from_secs(30));
        assert_equal(&cluster, 3);
    }
}

/// Kills a server, and starts it again a while later.
fn away(simulation: &mut Simulation, cluster: &Cluster, server: u32) {
    let name = format!("data{server}");
    cluster.kill(simulation, &name, Kill::Process(Duration::ZERO));
    simulation.run_for(Duration::from_secs(4));
    cluster.restart(simulation, &name);
    cluster.await_start(simulation);
    simulation.run_for(Duration::from_secs(10));
}

/// A server whose disk is replaced counts its starts anew. The others have heard of larger numbers from its former store.
#[test]
fn a_server_with_a_new_disk_orders_groups_without_driving_members_out() {
    let (mut simulation, cluster) = cluster(60, 4, 3);
    cluster.run(&mut simulation, 0, write_file);
    for _ in 0..3 {
        away(&mut simulation, &cluster, 2);
    }
    // It orders all of its groups: those that were away are the last members.
    let others = [1, 3, 4];
    others.into_iter().for_each(|server| away(&mut simulation, &cluster, server));
    cluster.run(&mut simulation, 0, |client| async move {
        let file = open(&client, b"f", BOTH).await.expect("opened");
        write(&client, &file, 0, &pattern(2, STRIPES * STRIPE)).await.expect("written");
    });
    cluster.kill(&mut simulation, "data2", Kill::Power);
    cluster.renew_disk(2);
    simulation.run_for(Duration::from_secs(4));
    cluster.restart(&mut simulation, "data2");
    cluster.await_start(&mut simulation);
    simulation.run_for(Duration::from_secs(20));
    assert_equal(&cluster, 3);
    // The others stand still in turn: they come back behind it, and remember its former lives.
    for server in others {
        let name = format!("data{server}");
        simulation.pause(&name);
        simulation.run_for(Duration::from_secs(4));
        simulation.resume(&name);
        simulation.run_for(Duration::from_secs(10));
    }
    let changed = pattern(9, STRIPES * STRIPE);
    let bytes = changed.clone();
    cluster.run(&mut simulation, 0, |client| async move {
        let file = open(&client, b"f", BOTH).await.expect("opened");
        write(&client, &file, 0, &bytes).await.expect("written");
    });
    simulation.run_for(Duration::from_secs(10));
    let map = cluster.meta().map().expect("it serves");
    let mut ordered = 0;
    for (group, membership) in map.bands(0).flat_map(|band| band.groups()) {
        let (servers, newcomers) = (&membership.servers, &membership.newcomers);
        assert!(newcomers.is_empty(), "{group:?}: {servers:?}, and out of step: {newcomers:?}");
        ordered += u32::from(servers.len() == 3 && servers[0] == 2);
    }
    assert!(ordered > 0, "it orders no group");
    assert_equal(&cluster, 3);
    cluster.run(&mut simulation, 1, |client| check_file(client, changed));
}

/// A member that is full can do no change. If another one orders the group, it leaves, and another server takes its place; an orderer
/// says that there is no room. Nothing that was acknowledged is lost.
#[test]
fn a_member_that_runs_full_costs_nothing_that_was_acknowledged() {
    for (seed, copies, place) in [(81, 2, 0), (82, 2, 1), (83, 3, 0), (84, 3, 2)] {
        let (mut simulation, cluster) = cluster(seed, 4, copies);
        cluster.run(&mut simulation, 0, write_file);
        simulation.run_for(Duration::from_secs(3));
        let (group, _) = cluster.run(&mut simulation, 0, orderer);
        let full = cluster.meta().map().expect("it serves").members(group)[place];
        let disk = cluster.data_disk(full as usize - 1);
        let space = disk.space(Path::new("/data")).expect("space");
        disk.set_capacity(space.total - space.available + (128 << 10));
        // The room ends in the middle of these.
        let begin = simulation.now();
        let acknowledged = cluster.run(&mut simulation, 0, |client| async move {
            let mut acknowledged = Vec::new();
            for round in 0..12 {
                let file = create(&client, format!("more{round}").as_bytes()).await;
                let written = write(&client, &file, 0, &pattern(round, STRIPES * STRIPE)).await;
                let written = match written {
                    Ok(_) => client.sync(&file).await,
                    Err(errno) => Err(errno),
                };
                match written {
                    Ok(()) => acknowledged.push(round),
                    Err(errno) => assert_eq!(errno, Errno::ENOSPC),
                }
            }
            acknowledged
        });
        let took = simulation.now().since(begin);
        println!("{copies} copies, server {full} full: {} in {took:?}", acknowledged.len());
        // New files go around it as soon as the metadata server knows.
        assert!(acknowledged.len() >= 6, "{acknowledged:?}");
        simulation.run_for(Duration::from_secs(30));
        let check = async move |client: Client| {
            for round in acknowledged {
                let file = open(&client, format!("more{round}").as_bytes(), READ).await;
                let bytes = read_all(&client, &file.expect("opened")).await.expect("read");
                assert_same(&bytes, &pattern(round, STRIPES * STRIPE));
            }
            check_file(client, Vec::new()).await;
        };
        cluster.run(&mut simulation, 1, check.clone());
        // With room again, all is as it was before, and the file can be changed.
        cluster.data_disk(full as usize - 1).set_capacity(space.total);
        simulation.run_for(Duration::from_secs(90));
        cluster.run(&mut simulation, 0, check);
        let changed = pattern(9, 3 * STRIPE / 2);
        let bytes = changed.clone();
        cluster.run(&mut simulation, 0, |client| async move {
            let file = open(&client, b"f", BOTH).await.expect("opened");
            write(&client, &file, 0, &bytes).await.expect("written");
        });
        cluster.run(&mut simulation, 1, |client| check_file(client, changed));
        assert_equal(&cluster, copies);
    }
}
