//! Clients under exports: the whole way from their programs to the rows and to the stripes.

use std::time::Duration;

use crate::programs::*;
use ropewalk_client::{Caller, Client, Errno};
use ropewalk_data::Defect;
use ropewalk_meta::exports::{Export, NOBODY, Rights, Squash};
use ropewalk_sim::cluster::META;
use ropewalk_sim::{Cluster, ClusterConfig, Kill, Simulation};
use ropewalk_wire::fs::exports::ClientRule;
use ropewalk_wire::fs::meta::{AttributeChange, ROOT};

const EXPORT: u32 = 3;
/// The export of the first client, which has everything, and the address of its rail.
const FIRST: u32 = 2;
const CLIENT_0: &str = "10.0.0.4";
/// Of several stripes.
const LEN: usize = 300_000;

/// A cluster with a client that has the whole file system, and a second one with this export.
fn exporting(seed: u64, export: Export) -> (Simulation, Cluster) {
    exporting_with(seed, export, None)
}

fn exporting_with(seed: u64, export: Export, data_defect: Option<Defect>) -> (Simulation, Cluster) {
    let mut simulation = Simulation::new(seed);
    let config =
        ClusterConfig { data_servers: 2, clients: 1, data_defect, ..ClusterConfig::default() };
    let mut cluster = Cluster::start(&mut simulation, config);
    simulation.run_for(Duration::from_secs(2));
    // The first client has its session before the export comes.
    cluster.run(&mut simulation, 0, |client| async move {
        assert!(list(&client).await.is_empty());
        let change = AttributeChange { mode: Some(0o777), ..AttributeChange::default() };
        client.set_attributes(&Caller::root(), ROOT, change).await.expect("its owner may");
        let file = create(&client, b"whole").await;
        write(&client, &file, 0, &pattern(1, LEN)).await.expect("written");
        client.sync(&file).await.expect("synced");
        drop(file);
        let file = create(&client, b"secret").await;
        write(&client, &file, 0, &pattern(2, LEN)).await.expect("written");
        client.sync(&file).await.expect("synced");
        drop(file);
        let change = AttributeChange { mode: Some(0o600), ..AttributeChange::default() };
        let inode = client.lookup(&Caller::root(), ROOT, b"secret").await.expect("found").inode;
        client.set_attributes(&Caller::root(), inode, change).await.expect("its owner may");
    });
    set(&mut simulation, &cluster, Some(export));
    cluster.add_client(&mut simulation);
    cluster.await_start(&mut simulation);
    (simulation, cluster)
}

/// Gives the export these terms, or takes it away.
fn set(simulation: &mut Simulation, cluster: &Cluster, export: Option<Export>) {
    let meta = cluster.meta();
    let set = cluster.spawn(simulation, 0, move |_| async move {
        let clients = vec![ClientRule::Everybody];
        let export = export.map(|export| Export { clients, ..export });
        let clients = vec![CLIENT_0.parse().expect("a rule")];
        let name = "first".to_owned();
        let first = Export { clients, name, ..Export::WHOLE };
        // The first client goes on with everything.
        meta.set_export(FIRST, Some(first)).await && meta.set_export(EXPORT, export).await
    });
    simulation.run_until(Duration::from_secs(1), |_| set.borrow().is_some());
    assert_eq!(*set.borrow(), Some(true));
}

/// Root, as a mount sends it: judged by a kernel that does not know of the export.
fn root() -> Caller {
    Caller::root().judged_by_kernel(true)
}

async fn check_whole(client: Client) {
    let file = open(&client, b"whole", READ).await.expect("opened");
    assert_same(&read_all(&client, &file).await.expect("read"), &pattern(1, LEN));
    drop(file);
}

/// Makes a file of stripes as root, who is nobody there, and changes it.
async fn make_as_nobody(client: Client, name: &'static [u8]) {
    let (_, file, _) =
        client.create(&root(), ROOT, name, 0o644, true, BOTH).await.expect("all may");
    write(&client, &file, 0, &pattern(3, LEN)).await.expect("written");
    write(&client, &file, 70_000, &pattern(4, 1000)).await.expect("written");
    client.sync(&file).await.expect("synced");
    drop(file);
    let entry = client.lookup(&root(), ROOT, name).await.expect("found");
    assert_eq!((entry.user, entry.group), (NOBODY, NOBODY));
}

async fn check_made(client: Client, name: &'static [u8]) {
    let entry = client.lookup(&Caller::root(), ROOT, name).await.expect("found");
    assert_eq!((entry.user, entry.group), (NOBODY, NOBODY));
    let file = client.open(&Caller::root(), entry.inode, READ).await.expect("opened");
    let mut expected = pattern(3, LEN);
    expected[70_000..71_000].copy_from_slice(&pattern(4, 1000));
    assert_same(&read_all(&client, &file).await.expect("read"), &expected);
    drop(file);
}

async fn has_no_rights_of_root(client: Client) {
    let secret = client.lookup(&root(), ROOT, b"secret").await.expect("a name is no secret");
    let opened = client.open(&root(), secret.inode, READ).await;
    assert_eq!(opened.err(), Some(Errno::EACCES));
    let change = AttributeChange { mode: Some(0o777), ..AttributeChange::default() };
    let changed = client.set_attributes(&root(), secret.inode, change).await;
    assert_eq!(changed.err(), Some(Errno::EPERM));
    let whole = client.lookup(&root(), ROOT, b"whole").await.expect("found");
    assert_eq!(client.open(&root(), whole.inode, BOTH).await.err(), Some(Errno::EACCES));
}

#[test]
fn root_of_a_squashed_client_is_nobody_and_stays_so_over_a_restart() {
    let export = Export { squash: Squash::Root, ..Export::WHOLE };
    let (mut simulation, cluster) = exporting(31, export);
    cluster.run(&mut simulation, 1, has_no_rights_of_root);
    cluster.run(&mut simulation, 1, check_whole);
    cluster.run(&mut simulation, 1, |client| make_as_nobody(client, b"first"));
    cluster.run(&mut simulation, 0, |client| check_made(client, b"first"));
    cluster.kill(&mut simulation, META, Kill::Power);
    cluster.restart(&mut simulation, META);
    cluster.await_start(&mut simulation);
    // The session is the same, and its row says the export.
    cluster.run(&mut simulation, 1, |client| make_as_nobody(client, b"second"));
    cluster.run(&mut simulation, 0, |client| check_made(client, b"second"));
    cluster.run(&mut simulation, 1, has_no_rights_of_root);
}

#[test]
fn a_client_that_may_only_read_reads_stripes_and_changes_none() {
    let export = Export { rights: Rights::ReadOnly, ..Export::WHOLE };
    let (mut simulation, cluster) = exporting(32, export);
    cluster.run(&mut simulation, 1, check_whole);
    cluster.run(&mut simulation, 1, |client| async move {
        let made = client.create(&root(), ROOT, b"new", 0o644, true, BOTH).await;
        assert_eq!(made.err(), Some(Errno::EROFS));
        assert_eq!(open(&client, b"whole", BOTH).await.err(), Some(Errno::EROFS));
        assert_eq!(client.unlink(&root(), ROOT, b"whole").await.err(), Some(Errno::EROFS));
        assert_eq!(list(&client).await, [&b"secret"[..], b"whole"]);
    });
    cluster.run(&mut simulation, 0, check_whole);
    // The first client goes on with the whole file system.
    cluster.run(&mut simulation, 0, |client| async move {
        let file = open(&client, b"whole", BOTH).await.expect("opened");
        write(&client, &file, 0, &pattern(1, LEN)).await.expect("written");
        client.sync(&file).await.expect("synced");
    });
}

/// The capabilities that were asked for because the former ones were old.
fn renewed(cluster: &Cluster) -> u64 {
    cluster.meta().calls().get("allow").copied().unwrap_or(0)
}

/// Reads and writes a file for longer than a capability lasts; how many more were asked for.
fn renewed_in_ten_minutes(defect: Option<Defect>) -> u64 {
    let export = Export { squash: Squash::Root, ..Export::WHOLE };
    let (mut simulation, cluster) = exporting_with(33, export, defect);
    let done = cluster.spawn(&simulation, 1, |client| async move {
        let made = client.create(&root(), ROOT, b"long", 0o644, true, BOTH).await;
        let (_, file, _) = made.expect("all may");
        for round in 0..20 {
            write(&client, &file, 0, &pattern(round, LEN)).await.expect("written");
            client.sync(&file).await.expect("synced");
            client.world().sleep(Duration::from_secs(30)).await;
            assert_same(&read_all(&client, &file).await.expect("read"), &pattern(round, LEN));
        }
    });
    simulation.run_until(Duration::from_secs(700), |_| done.borrow().is_some());
    assert!(done.borrow().is_some(), "it does not end");
    renewed(&cluster)
}

#[test]
fn capabilities_expire_and_a_file_that_is_open_gets_another() {
    let renewed = renewed_in_ten_minutes(None);
    // Two servers, one file: another one each five minutes, and not with each call.
    assert!((1..=4).contains(&renewed), "{renewed}");
}

#[test]
fn a_capability_without_expiry_is_found() {
    assert_eq!(renewed_in_ten_minutes(Some(Defect::CapabilityWithoutExpiry)), 0);
}

#[test]
fn terms_that_change_count_at_once_at_all_servers() {
    let export = Export { squash: Squash::Root, ..Export::WHOLE };
    let (mut simulation, cluster) = exporting(34, export.clone());
    let file = cluster.run(&mut simulation, 1, |client| async move {
        let made = client.create(&root(), ROOT, b"mine", 0o644, true, BOTH).await;
        let (_, file, _) = made.expect("all may");
        write(&client, &file, 0, &pattern(5, LEN)).await.expect("written");
        client.sync(&file).await.expect("synced");
        file
    });
    let read_only = Export { rights: Rights::ReadOnly, ..export.clone() };
    set(&mut simulation, &cluster, Some(read_only));
    simulation.run_for(Duration::from_millis(1000));
    let file = cluster.run(&mut simulation, 1, |client| async move {
        let written = write(&client, &file, 0, &pattern(6, LEN)).await;
        let synced = client.sync(&file).await;
        assert!(written.is_err() || synced.is_err(), "{written:?} {synced:?}");
        let again = open(&client, b"mine", READ).await.expect("it may read");
        assert_same(&read_all(&client, &again).await.expect("read"), &pattern(5, LEN));
        file
    });
    cluster.run(&mut simulation, 0, |client| async move {
        let file = open(&client, b"mine", READ).await.expect("opened");
        assert_same(&read_all(&client, &file).await.expect("read"), &pattern(5, LEN));
    });
    // Terms that allow it again.
    drop(file);
    set(&mut simulation, &cluster, Some(export));
    simulation.run_for(Duration::from_millis(1000));
    cluster.run(&mut simulation, 1, |client| async move {
        let file = open(&client, b"mine", BOTH).await.expect("opened");
        write(&client, &file, 0, &pattern(7, LEN)).await.expect("written");
        client.sync(&file).await.expect("synced");
    });
}

/// A client of many that come and go is at work all the time: nobody's end holds it up.
#[test]
fn revocations_without_an_end_hold_nobody_up() {
    let export = Export { squash: Squash::Root, ..Export::WHOLE };
    let (mut simulation, mut cluster) = exporting(35, export);
    let done = cluster.spawn(&simulation, 1, |client| async move {
        let made = client.create(&root(), ROOT, b"busy", 0o644, true, BOTH).await;
        let (_, file, _) = made.expect("all may");
        for round in 0..100 {
            write(&client, &file, 0, &pattern(round, LEN)).await.expect("written");
            client.sync(&file).await.expect("synced");
            client.world().sleep(Duration::from_millis(100)).await;
        }
    });
    for other in 2..20 {
        cluster.add_client(&mut simulation);
        cluster.await_start(&mut simulation);
        cluster.run(&mut simulation, other, |client| async move {
            assert!(!list(&client).await.is_empty());
            client.stop().await;
        });
        simulation.run_for(Duration::from_millis(400));
    }
    simulation.run_until(Duration::from_secs(20), |_| done.borrow().is_some());
    assert!(done.borrow().is_some(), "the work stands still");
}
