//! Two metadata servers of which one serves: the other takes over, and nothing that was acknowledged is lost.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use ropewalk_client::{Caller, Client};
use ropewalk_election::record;
use ropewalk_sim::cluster::{METAS, PairConfig};
use ropewalk_sim::disk::VirtualDisk;
use ropewalk_sim::{Cluster, ClusterConfig, Kill, Simulation};
use ropewalk_wire::fs::meta::ROOT;
use ropewalk_wire::fs::standby::NodeRole;

use crate::programs::*;

const SECOND: Duration = Duration::from_secs(1);

fn start(seed: u64) -> (Simulation, Cluster) {
    let mut simulation = Simulation::new(seed);
    let mut config = ClusterConfig::paired();
    // As in production: nobody waits for the durable end of a range.
    config.meta.shard.inode_range = 1 << 16;
    let cluster = Cluster::start(&mut simulation, config);
    assert!(simulation.run_until(20 * SECOND, |_| has_standby(&cluster)), "no standby");
    (simulation, cluster)
}

fn has_standby(cluster: &Cluster) -> bool {
    let active = cluster.active().and_then(|number| cluster.member(number));
    active.is_some_and(|it| it.has_standby())
}

/// Directories that a client makes one after the other; the number of those that were acknowledged.
async fn make_many(
    client: Client,
    made: Rc<Cell<u64>>,
    stop: Rc<Cell<bool>>,
) -> Result<(), String> {
    for number in 0.. {
        if stop.get() {
            return Ok(());
        }
        let name = format!("d{number}");
        let made_one = client.make_directories(&Caller::root(), name.as_bytes(), 0o755).await;
        made_one.map_err(|errno| format!("{name}: {errno}"))?;
        made.set(number + 1);
    }
    Ok(())
}

/// Makes directories while something happens to the servers; the longest time without one, in milliseconds.
fn gap_during(
    simulation: &mut Simulation,
    cluster: &Cluster,
    happens: impl FnOnce(&mut Simulation, &Cluster),
) -> u64 {
    let (made, stop) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let done: Rc<RefCell<Option<Result<(), String>>>> =
        cluster.spawn(simulation, 0, |client| make_many(client, made.clone(), stop.clone()));
    simulation.run_for(SECOND);
    assert!(made.get() > 10, "{}", made.get());
    happens(simulation, cluster);
    let (mut longest, mut since, mut known) = (0, 0, made.get());
    for _ in 0..4000 {
        simulation.run_for(Duration::from_millis(1));
        // It looks that no two of them serve.
        let _ = cluster.active();
        since += 1;
        if made.get() > known {
            (longest, since, known) = (since.max(longest), 0, made.get());
        }
    }
    stop.set(true);
    assert!(simulation.run_until(10 * SECOND, |_| done.borrow().is_some()), "it hangs");
    done.borrow_mut().take().expect("it is over").expect("all were made");
    let count = made.get() as usize;
    let names = cluster.run(simulation, 0, async |client: Client| list(&client).await);
    assert_eq!(names.len(), count, "each one is there once");
    longest.max(since)
}

#[test]
fn the_standby_takes_over_from_one_that_is_killed_and_is_followed_by_it() {
    let (mut simulation, cluster) = start(1);
    let first = cluster.active().expect("one serves");
    let gap = gap_during(&mut simulation, &cluster, |simulation, cluster| {
        cluster.kill(simulation, METAS[first], Kill::Process(Duration::ZERO));
    });
    assert_eq!(cluster.active(), Some(1 - first));
    println!("killed: {gap} ms");
    assert!(gap < 4000, "{gap} ms");
    cluster.restart(&mut simulation, METAS[first]);
    assert!(simulation.run_until(20 * SECOND, |_| has_standby(&cluster)), "{:?}", cluster.logged());
    assert_eq!(cluster.active(), Some(1 - first));
}

/// Cuts a node off from all others, or joins it again.
fn cut_off(simulation: &Simulation, cluster: &Cluster, name: &str, is_cut: bool) {
    let mut others = cluster.servers();
    others.extend((0..cluster.client_count()).map(|it| cluster.client_name(it).to_owned()));
    for other in others.iter().filter(|other| *other != name) {
        match is_cut {
            true => simulation.network().partition(name, other),
            false => simulation.network().heal(name, other),
        }
    }
}

#[test]
fn the_standby_takes_over_from_one_that_is_stopped_or_cut_off() {
    for seed in 2..5 {
        for is_stopped in [true, false] {
            let (mut simulation, cluster) = start(seed);
            let first = cluster.active().expect("one serves");
            let gap =
                gap_during(&mut simulation, &cluster, |simulation, cluster| match is_stopped {
                    true => simulation.pause(METAS[first]),
                    false => cut_off(simulation, cluster, METAS[first], true),
                });
            println!("stopped {is_stopped}: {gap} ms");
            assert!(gap < 4000, "{gap} ms");
            match is_stopped {
                true => simulation.resume(METAS[first]),
                false => cut_off(&simulation, &cluster, METAS[first], false),
            }
            let stands = simulation.run_until(20 * SECOND, |_| has_standby(&cluster));
            assert!(stands, "{:?}", cluster.logged());
            assert_eq!(cluster.active(), Some(1 - first));
            let member = cluster.member(first).expect("it runs");
            assert_eq!((member.failure(), member.active().is_some()), (None, false));
        }
    }
}

#[test]
fn the_active_server_tells_of_its_standby_and_of_the_witness() {
    let (mut simulation, cluster) = start(11);
    let first = cluster.active().expect("one serves");
    simulation.run_for(SECOND);
    let told = |number: usize| cluster.member(number).expect("it runs").state();
    let (active, standby) = (told(first), told(1 - first));
    assert_eq!((active.role, standby.role), (NodeRole::Active, NodeRole::Follows));
    assert_eq!((active.term, active.position), (standby.term, standby.position));
    assert!(standby.voters.is_empty());
    let [other, witness] = &active.voters[..] else { panic!("{:?}", active.voters) };
    let known = other.standby.expect("it follows");
    assert!(known.has_all && known.may_lead && !known.copies);
    assert_eq!((other.number, known.reached.written), (1 - first as u32, active.position));
    assert!(witness.is_witness && witness.silence.is_some_and(|silence| silence < 1000));
    cluster.kill(&mut simulation, METAS[1 - first], Kill::Process(Duration::ZERO));
    simulation.run_for(2 * SECOND);
    let active = told(first);
    assert!(active.voters[0].standby.is_none_or(|it| !it.may_lead), "{:?}", active.voters);
}

#[test]
fn an_active_server_goes_on_without_its_standby_and_takes_it_again() {
    let (mut simulation, cluster) = start(6);
    let first = cluster.active().expect("one serves");
    let gap = gap_during(&mut simulation, &cluster, |simulation, cluster| {
        cluster.kill(simulation, METAS[1 - first], Kill::Process(Duration::ZERO));
    });
    println!("without the standby: {gap} ms");
    assert!(gap < 1500, "{gap} ms");
    assert_eq!(cluster.active(), Some(first));
    cluster.restart(&mut simulation, METAS[1 - first]);
    assert!(simulation.run_until(20 * SECOND, |_| has_standby(&cluster)), "{:?}", cluster.logged());
}

#[test]
fn servers_change_places_on_purpose_without_a_pause() {
    let (mut simulation, cluster) = start(7);
    for _ in 0..4 {
        let first = cluster.active().expect("one serves");
        let gap = gap_during(&mut simulation, &cluster, |_, cluster| {
            assert!(cluster.member(first).expect("it runs").switch());
        });
        println!("switched: {gap} ms");
        assert!(gap < 200, "{gap} ms");
        assert_eq!(cluster.active(), Some(1 - first));
        assert!(simulation.run_until(20 * SECOND, |_| has_standby(&cluster)));
        cluster.run(&mut simulation, 0, remove_all);
    }
}

async fn remove_all(client: Client) {
    for name in list(&client).await {
        client.remove_directory(&Caller::root(), ROOT, &name).await.expect("removed");
    }
}

#[test]
fn a_standby_that_was_away_for_long_copies_all_rows() {
    let mut simulation = Simulation::new(8);
    let cluster = Cluster::start(&mut simulation, ClusterConfig::paired());
    assert!(simulation.run_until(20 * SECOND, |_| has_standby(&cluster)));
    let copies = |cluster: &Cluster| {
        cluster.logged().iter().filter(|line| line.contains("copies the rows")).count()
    };
    let before = copies(&cluster);
    let first = cluster.active().expect("one serves");
    let second = METAS[1 - first];
    cluster.kill(&mut simulation, second, Kill::Process(Duration::ZERO));
    simulation.run_for(SECOND);
    // More records than the journal keeps.
    for round in 0..40u64 {
        cluster.run(&mut simulation, 0, async move |client: Client| {
            for number in 0..50u64 {
                let file = create(&client, format!("f{round}-{number}").as_bytes()).await;
                write(&client, &file, 0, &pattern(number, 8000)).await.expect("written");
                client.sync(&file).await.expect("synced");
            }
        });
    }
    cluster.restart(&mut simulation, second);
    assert!(simulation.run_until(60 * SECOND, |_| has_standby(&cluster)), "{:?}", cluster.logged());
    assert!(copies(&cluster) > before, "{:?}", cluster.logged());
    cluster.kill(&mut simulation, METAS[first], Kill::Process(Duration::ZERO));
    let names = cluster.run(&mut simulation, 0, async |client: Client| list(&client).await);
    assert_eq!(names.len(), 2000);
    assert_eq!(cluster.active(), Some(1 - first));
    for number in [0u64, 33, 49] {
        let content = cluster.run(&mut simulation, 0, async move |client: Client| {
            let name = format!("f39-{number}");
            let file = open(&client, name.as_bytes(), READ).await.expect("it is there");
            read_all(&client, &file).await.expect("read")
        });
        assert_eq!(content, pattern(number, 8000));
    }
}

#[test]
fn without_a_majority_nobody_serves() {
    let (mut simulation, cluster) = start(9);
    let first = cluster.active().expect("one serves");
    cluster.kill(&mut simulation, METAS[1 - first], Kill::Process(Duration::ZERO));
    simulation.run_for(2 * SECOND);
    assert_eq!(cluster.active(), Some(first), "with the witness it goes on");
    cluster.kill(&mut simulation, "data1", Kill::Process(Duration::ZERO));
    simulation.run_for(2 * SECOND);
    assert_eq!(cluster.active(), None);
    cluster.restart(&mut simulation, "data1");
    assert!(simulation.run_until(10 * SECOND, |_| cluster.active() == Some(first)));
}

/// The servers that the witness knows as those that may be elected.
fn set_of_witness(cluster: &Cluster) -> BTreeSet<u32> {
    let bytes = cluster.data_disk(0).bytes(Path::new("/data/vote")).expect("it has voted");
    record::decode(&bytes).expect("it is whole").record.set.members
}

/// The witness stores that the standby may be elected, and the active server never hears of that. From then on nothing may be
/// acknowledged without the standby.
#[test]
fn a_standby_that_may_be_elected_is_waited_for_though_the_voters_answer_was_lost() {
    let (mut simulation, cluster) = start(10);
    let first = cluster.active().expect("one serves");
    let (active, standby) = (METAS[first], METAS[1 - first]);
    cluster.kill(&mut simulation, standby, Kill::Process(Duration::ZERO));
    simulation.run_for(2 * SECOND);
    assert_eq!(set_of_witness(&cluster), BTreeSet::from([first as u32]));
    let (made, stop) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let done =
        cluster.spawn(&simulation, 0, |client| make_many(client, made.clone(), stop.clone()));
    cluster.restart(&mut simulation, standby);
    let until = simulation.now() + 20 * SECOND;
    while set_of_witness(&cluster).len() < 2 {
        assert!(simulation.run_steps(1) && simulation.now() < until, "it is not proposed");
    }
    assert!(!has_standby(&cluster), "the answer is still on its way");
    for other in [standby, "data1"] {
        simulation.network().partition(active, other);
    }
    // The active server may act for half a lease; the other one is elected after that.
    assert!(simulation.run_until(10 * SECOND, |_| cluster.active() == Some(1 - first)));
    simulation.run_for(2 * SECOND);
    for other in [standby, "data1"] {
        simulation.network().heal(active, other);
    }
    stop.set(true);
    assert!(simulation.run_until(20 * SECOND, |_| done.borrow().is_some()), "it hangs");
    done.borrow_mut().take().expect("it is over").expect("all were made");
    let names = cluster.run(&mut simulation, 0, async |client: Client| list(&client).await);
    assert_eq!(names.len() as u64, made.get(), "each one is there once");
}

#[test]
fn a_server_that_may_not_be_alone_waits_for_its_standby() {
    let mut config = ClusterConfig::paired();
    config.pair = config.pair.map(|pair| PairConfig { alone: false, ..pair });
    let mut simulation = Simulation::new(11);
    let cluster = Cluster::start(&mut simulation, config);
    assert!(simulation.run_until(20 * SECOND, |_| has_standby(&cluster)), "no standby");
    let first = cluster.active().expect("one serves");
    let (made, stop) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let done =
        cluster.spawn(&simulation, 0, |client| make_many(client, made.clone(), stop.clone()));
    simulation.run_for(SECOND);
    cluster.kill(&mut simulation, METAS[1 - first], Kill::Process(Duration::ZERO));
    simulation.run_for(SECOND);
    let before = made.get();
    simulation.run_for(10 * SECOND);
    assert_eq!(made.get(), before, "nothing is acknowledged by one alone");
    cluster.restart(&mut simulation, METAS[1 - first]);
    assert!(simulation.run_until(20 * SECOND, |_| made.get() > before), "it goes on with two");
    stop.set(true);
    assert!(simulation.run_until(20 * SECOND, |_| done.borrow().is_some()), "it hangs");
    done.borrow_mut().take().expect("it is over").expect("all were made");
}

/// A server that served last starts again, and asks one whose term is over and who does not know that yet.
#[test]
fn a_server_takes_nothing_back_for_one_whose_term_is_over() {
    for delay in [20, 150, 400, 700, 900] {
        let (mut simulation, cluster) = start(12 + delay);
        let first = cluster.active().expect("one serves");
        let (old, new) = (METAS[first], METAS[1 - first]);
        let (made, stop) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let done =
            cluster.spawn(&simulation, 0, |client| make_many(client, made.clone(), stop.clone()));
        simulation.pause(old);
        assert!(simulation.run_until(10 * SECOND, |_| cluster.active() == Some(1 - first)));
        let before = made.get();
        assert!(simulation.run_until(10 * SECOND, |_| made.get() > before + 50));
        cluster.kill(&mut simulation, new, Kill::Process(Duration::ZERO));
        // Neither of them hears of the term from the witness.
        METAS.iter().for_each(|meta| simulation.network().partition(meta, "data1"));
        cluster.restart(&mut simulation, new);
        simulation.run_for(Duration::from_millis(delay));
        simulation.resume(old);
        simulation.run_for(3 * SECOND);
        METAS.iter().for_each(|meta| simulation.network().heal(meta, "data1"));
        assert!(simulation.run_until(20 * SECOND, |_| has_standby(&cluster)), "no standby");
        stop.set(true);
        assert!(simulation.run_until(20 * SECOND, |_| done.borrow().is_some()), "it hangs");
        done.borrow_mut().take().expect("it is over").expect("all were made");
        let names = cluster.run(&mut simulation, 0, async |client: Client| list(&client).await);
        assert_eq!(names.len() as u64, made.get(), "each one is there once, after {delay} ms");
    }
}

/// Kills the standby, does something to its disk, and starts it again.
fn with_disk_of_standby(
    simulation: &mut Simulation,
    cluster: &Cluster,
    change: impl FnOnce(&VirtualDisk),
) -> usize {
    let second = 1 - cluster.active().expect("one serves");
    cluster.kill(simulation, METAS[second], Kill::Process(Duration::ZERO));
    change(cluster.member_disk(second));
    cluster.restart(simulation, METAS[second]);
    second
}

async fn make(client: Client, names: std::ops::Range<u32>) {
    for number in names {
        let name = format!("n{number}");
        client.make_directories(&Caller::root(), name.as_bytes(), 0o755).await.expect("made");
    }
}

/// Whether somebody makes a directory within some time.
fn is_served(simulation: &mut Simulation, cluster: &Cluster, within: Duration) -> bool {
    let made = cluster.spawn(simulation, 0, |client| async move {
        client.make_directories(&Caller::root(), b"served", 0o755).await.is_ok()
    });
    simulation.run_until(within, |_| made.borrow().is_some());
    *made.borrow() == Some(true)
}

#[test]
fn a_store_of_another_file_system_does_not_become_a_standby() {
    let foreign = {
        let (_, other) = start(41);
        other.member_disk(1 - other.active().expect("one serves")).copy()
    };
    let (mut simulation, cluster) = start(42);
    cluster.run(&mut simulation, 0, |client| make(client, 0..20));
    let second = with_disk_of_standby(&mut simulation, &cluster, |disk| disk.restore(&foreign));
    simulation.run_for(20 * SECOND);
    assert!(!has_standby(&cluster), "{:?}", cluster.logged());
    let told = "are of another file system than those of the active server";
    assert!(cluster.logged().iter().any(|line| line.contains(told)), "{:?}", cluster.logged());
    // It does not serve what it has when the right one is gone.
    cluster.kill(&mut simulation, METAS[1 - second], Kill::Process(Duration::ZERO));
    assert!(!is_served(&mut simulation, &cluster, 10 * SECOND), "{:?}", cluster.logged());
    cluster.restart(&mut simulation, METAS[1 - second]);
    assert!(simulation.run_until(20 * SECOND, |_| cluster.active() == Some(1 - second)));
    let names = cluster.run(&mut simulation, 0, async |client: Client| list(&client).await);
    assert!(names.len() >= 20, "{names:?}");
}

/// Of a standby's journal a middle record is damaged: it does not take over with a hole.
#[test]
fn a_standby_with_a_hole_does_not_take_over_with_it() {
    for seed in 43..49 {
        let (mut simulation, cluster) = start(seed);
        cluster.run(&mut simulation, 0, |client| make(client, 0..400));
        let mut spoiled = None;
        let second = with_disk_of_standby(&mut simulation, &cluster, |disk| {
            let mut parts: Vec<_> = disk.files();
            parts.retain(|path| path.to_string_lossy().contains("/journal/"));
            parts.retain(|path| disk.bytes(path).is_some_and(|bytes| bytes.len() > 8192));
            parts.sort();
            let path = &parts[seed as usize % parts.len()];
            let bytes = disk.bytes(path).expect("it is there");
            let used = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0) as u64;
            disk.flip_bit(path, used / 2, 3);
            spoiled = Some((path.clone(), used));
        });
        simulation.run_for(30 * SECOND);
        let copied = has_standby(&cluster);
        println!("seed {seed}: {spoiled:?}, follows again: {copied}");
        cluster.kill(&mut simulation, METAS[1 - second], Kill::Process(Duration::ZERO));
        let served = is_served(&mut simulation, &cluster, 15 * SECOND);
        assert_eq!(served, copied, "seed {seed}: {:?}", cluster.logged());
        if served {
            let names = cluster.run(&mut simulation, 0, async |client: Client| list(&client).await);
            assert_eq!(names.len(), 401, "seed {seed}");
        }
    }
}

/// A server whose disk is an older copy, from before the other one took over, is not elected without that one.
#[test]
fn a_server_with_rows_of_an_older_term_does_not_serve_without_the_newer_ones() {
    let (mut simulation, cluster) = start(50);
    cluster.run(&mut simulation, 0, |client| make(client, 0..10));
    let first = cluster.active().expect("one serves");
    let older = cluster.member_disk(first).copy();
    cluster.kill(&mut simulation, METAS[first], Kill::Process(Duration::ZERO));
    assert!(simulation.run_until(20 * SECOND, |_| cluster.active() == Some(1 - first)));
    cluster.run(&mut simulation, 0, |client| make(client, 10..30));
    cluster.kill(&mut simulation, METAS[1 - first], Kill::Process(Duration::ZERO));
    cluster.member_disk(first).restore(&older);
    cluster.restart(&mut simulation, METAS[first]);
    assert!(!is_served(&mut simulation, &cluster, 15 * SECOND), "{:?}", cluster.logged());
    cluster.restart(&mut simulation, METAS[1 - first]);
    assert!(simulation.run_until(30 * SECOND, |_| has_standby(&cluster)), "{:?}", cluster.logged());
    assert_eq!(cluster.active(), Some(1 - first));
    let names = cluster.run(&mut simulation, 0, async |client: Client| list(&client).await);
    assert!(names.len() >= 30, "{names:?}");
}
