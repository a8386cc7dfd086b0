//! Two metadata servers of one history, on copies of a disk: at most one of them is believed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::programs::*;
use ropewalk_base::disk::{Disk, Open};
use ropewalk_client::{Caller, Client, Errno};
use ropewalk_data::Defect;
use ropewalk_rpc::CallError;
use ropewalk_sim::cluster::META;
use ropewalk_sim::disk::VirtualDisk;
use ropewalk_sim::{Cluster, ClusterConfig, Kill, Simulation};
use ropewalk_wire::fs::data::DataRequest;
use ropewalk_wire::fs::meta::ROOT;
use ropewalk_wire::fs::term::Term;

const SECOND: &str = "meta-second";
const DATA: [&str; 2] = ["data1", "data2"];

fn cluster(seed: u64, data_servers: u32) -> (Simulation, Cluster) {
    cluster_with(seed, data_servers, None)
}

/// With a planted bug of the second data server.
fn cluster_with(seed: u64, data_servers: u32, defect: Option<Defect>) -> (Simulation, Cluster) {
    let mut simulation = Simulation::new(seed);
    let (data_defect, defect_at) = (defect, Some(2));
    let config = ClusterConfig {
        data_servers,
        clients: 1,
        data_defect,
        defect_at,
        ..ClusterConfig::default()
    };
    let cluster = Cluster::start(&mut simulation, config);
    simulation.run_for(Duration::from_secs(3));
    (simulation, cluster)
}

fn restart(simulation: &mut Simulation, cluster: &Cluster, name: &str) {
    cluster.kill(simulation, name, Kill::Process(Duration::ZERO));
    cluster.restart(simulation, name);
}

/// A file with stripes on each server.
async fn write_file(client: Client) {
    let file = create(&client, b"f").await;
    write(&client, &file, 0, &pattern(1, 300_000)).await.expect("written");
    client.sync(&file).await.expect("synced");
}

async fn unlink(client: Client) {
    client.unlink(&Caller::root(), ROOT, b"f").await.expect("unlinked");
}

/// A directory: it needs no data server.
async fn make(client: Client, name: &'static [u8]) -> Result<(), Errno> {
    client.make_directories(&Caller::root(), name, 0o755).await.map(drop)
}

/// Objects on the disks of the data servers.
fn objects(cluster: &Cluster) -> [usize; 2] {
    [0, 1].map(|server| {
        let files = cluster.data_disk(server).files();
        files.iter().filter(|path| path.starts_with("/data/objects/objects")).count()
    })
}

/// Number and generation of an inode that has an object at the first data server.
fn an_inode(cluster: &Cluster) -> (u64, u32) {
    let files = cluster.data_disk(0).files();
    let mut objects = files.iter().filter(|path| path.starts_with("/data/objects/objects"));
    let path = objects.next().expect("there is one");
    let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
    let mut parts = name.split('.').map(|part| u64::from_str_radix(part, 16).expect("a number"));
    (parts.next().expect("an inode"), parts.next().expect("a generation") as u32)
}

/// The term of the first metadata server.
fn term(cluster: &Cluster) -> Term {
    Term(cluster.meta().marks().boot)
}

/// The second server begins its term later; the first one does not know of it, and goes on. A data server that has met the
/// second one does nothing for the first, also after a restart at which it finds neither.
#[test]
fn a_data_server_destroys_nothing_for_a_metadata_server_of_an_older_term() {
    obey_the_newer_term(None);
}

/// One of them obeys any metadata server.
#[test]
fn a_term_that_is_not_checked_at_one_data_server_is_found_out() {
    let run = || obey_the_newer_term(Some(Defect::AnyTerm));
    let found = std::panic::catch_unwind(run).expect_err("it is not found");
    let told = found.downcast_ref::<String>().expect("an assertion says something");
    assert!(told.contains("the second server still has the file"), "{told}");
}

fn obey_the_newer_term(defect: Option<Defect>) {
    let (mut simulation, cluster) = cluster_with(1, 2, defect);
    cluster.run(&mut simulation, 0, write_file);
    let before = objects(&cluster);
    assert!(before.into_iter().all(|count| count > 0), "{before:?}");
    let second = cluster.add_copied_meta(&mut simulation, SECOND);
    cluster.follow(SECOND);
    assert!(simulation.run_until(Duration::from_secs(60), |_| second.borrow().is_some()));
    let later = Term(second.borrow().as_ref().expect("it runs").marks().boot);
    assert!(term(&cluster).is_behind(later), "{:?}, {later:?}", term(&cluster));
    DATA.into_iter().for_each(|name| restart(&mut simulation, &cluster, name));
    cluster.await_start(&mut simulation);
    simulation.run_for(Duration::from_secs(2));
    assert_eq!(second.borrow().as_ref().expect("it runs").failure(), None);
    for name in DATA {
        simulation.network().partition(name, SECOND);
        restart(&mut simulation, &cluster, name);
    }
    cluster.await_start(&mut simulation);
    assert_eq!(cluster.meta().failure(), None, "nobody has told it yet");
    assert_eq!(objects(&cluster), before, "after the restarts");
    // The file goes at the first server, which then has its objects removed.
    cluster.run(&mut simulation, 0, unlink);
    simulation.run_for(Duration::from_secs(30));
    assert_eq!(objects(&cluster), before, "the second server still has the file");
    let failure = cluster.meta().failure().expect("it knows now");
    assert!(failure.contains("began to serve later"), "{failure}");
    DATA.into_iter().for_each(|name| simulation.network().heal(name, SECOND));
    simulation.run_for(Duration::from_secs(10));
    assert_eq!(second.borrow().as_ref().expect("it runs").failure(), None);
}

/// The same cluster without a second server: the objects go. Else the test above could not fail.
#[test]
fn a_data_server_removes_objects_for_the_metadata_server_that_it_met() {
    let (mut simulation, cluster) = cluster(1, 2);
    cluster.run(&mut simulation, 0, write_file);
    restart(&mut simulation, &cluster, META);
    DATA.into_iter().for_each(|name| restart(&mut simulation, &cluster, name));
    cluster.await_start(&mut simulation);
    cluster.run(&mut simulation, 0, unlink);
    simulation.run_for(Duration::from_secs(30));
    assert_eq!(objects(&cluster), [0, 0]);
}

/// Rows of before a change of the map, served in a newer term: the data server has an object removed for nobody who does not know
/// the map that it knows, also from its disk alone.
#[test]
fn a_data_server_destroys_nothing_for_rows_that_know_an_older_map() {
    for restarts in [false, true] {
        let (mut simulation, cluster) = cluster(4, 2);
        cluster.mirror(&mut simulation, 2);
        cluster.run(&mut simulation, 0, write_file);
        simulation.run_for(Duration::from_secs(5));
        let map = cluster.meta().map().expect("it serves").epoch;
        let before = objects(&cluster);
        assert!(map > 1 && before.into_iter().all(|count| count > 0), "{map} {before:?}");
        let later = Term::new(term(&cluster).number() + 1, 5);
        if restarts {
            restart(&mut simulation, &cluster, DATA[0]);
            simulation.network().partition(DATA[0], META);
        }
        let request = DataRequest::Reap { inodes: vec![an_inode(&cluster)] };
        let older = cluster.order(&mut simulation, ("older", DATA[0]), (later, map - 1), &request);
        assert_eq!(older, Err(CallError::TimedOut), "{restarts}");
        assert_eq!(objects(&cluster), before);
        let current = cluster.order(&mut simulation, ("current", DATA[0]), (later, map), &request);
        assert_eq!(current, Ok(()), "{restarts}");
        assert!(objects(&cluster)[0] < before[0]);
    }
}

/// Both servers count on from the same start. Data servers believe the one that they met first.
#[test]
fn of_two_terms_with_one_number_the_first_that_was_met_counts() {
    let (mut simulation, cluster) = cluster(2, 2);
    cluster.run(&mut simulation, 0, write_file);
    let second = cluster.add_copied_meta(&mut simulation, SECOND);
    restart(&mut simulation, &cluster, META);
    assert!(simulation.run_until(Duration::from_secs(60), |_| second.borrow().is_some()));
    cluster.await_start(&mut simulation);
    let (own, other) = (term(&cluster), Term(second.borrow().as_ref().unwrap().marks().boot));
    assert!(own != other && own.number() == other.number(), "{own:?}, {other:?}");
    simulation.run_for(Duration::from_secs(3));
    cluster.follow(SECOND);
    restart(&mut simulation, &cluster, "data2");
    simulation.run_for(Duration::from_secs(3));
    let failure = second.borrow().as_ref().expect("it runs").failure();
    assert!(failure.is_some_and(|text| text.contains("older copy")), "it serves nobody");
    cluster.follow(META);
    restart(&mut simulation, &cluster, "data2");
    cluster.await_start(&mut simulation);
    cluster.run(&mut simulation, 0, |client| async move {
        let file = open(&client, b"f", READ).await.expect("opened");
        assert_same(&read_all(&client, &file).await.expect("read"), &pattern(1, 300_000));
    });
    assert_eq!(cluster.meta().failure(), None);
}

type Files = Vec<(PathBuf, Vec<u8>)>;

fn snapshot(disk: &VirtualDisk) -> Files {
    let all = disk.files().into_iter().filter(|path| path.starts_with(Path::new("/meta")));
    all.map(|path| (path.clone(), disk.bytes(&path).expect("it is there"))).collect()
}

fn put_back(disk: &VirtualDisk, files: &Files) {
    for (path, _) in snapshot(disk) {
        disk.remove_file(&path).expect("removed");
    }
    for (path, bytes) in files {
        let file = disk.open(path, Open::Create).expect("made");
        file.write_at(0, bytes).expect("written");
    }
}

/// Nobody else could say so: there is no data server.
#[test]
fn a_client_goes_on_with_the_newest_metadata_server_that_it_met() {
    let (mut simulation, cluster) = cluster(3, 0);
    let kill = |simulation: &mut Simulation| {
        cluster.kill(simulation, META, Kill::Process(Duration::ZERO));
    };
    let start = |simulation: &mut Simulation| {
        cluster.restart(simulation, META);
        cluster.await_start(simulation);
        simulation.run_for(Duration::from_secs(20));
    };
    kill(&mut simulation);
    let older = snapshot(cluster.meta_disk());
    start(&mut simulation);
    cluster.run(&mut simulation, 0, |client| make(client, b"new")).expect("made");
    let met = term(&cluster);
    kill(&mut simulation);
    let newer = snapshot(cluster.meta_disk());
    put_back(cluster.meta_disk(), &older);
    start(&mut simulation);
    assert!(term(&cluster).is_behind(met), "{:?}, {met:?}", term(&cluster));
    let made = cluster.spawn(&simulation, 0, |client| make(client, b"later"));
    simulation.run_for(Duration::from_secs(20));
    assert!(made.borrow().is_none(), "the older copy would lose it");
    let told = cluster.logged();
    assert!(told.iter().any(|line| line.contains("an older copy of it answers")), "{told:?}");
    kill(&mut simulation);
    put_back(cluster.meta_disk(), &newer);
    start(&mut simulation);
    assert!(simulation.run_until(Duration::from_secs(60), |_| made.borrow().is_some()));
    assert_eq!(made.borrow_mut().take(), Some(Ok(())));
    cluster.run(&mut simulation, 0, |client| async move {
        client.lookup(&Caller::root(), ROOT, b"new").await.expect("it is still there");
    });
}
