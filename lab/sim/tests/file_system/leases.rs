//! Leases that go from client to client while the metadata server dies.

use std::rc::Rc;
use std::time::Duration;

use crate::programs::*;
use ropewalk_client::{AttributeChange, Caller};
use ropewalk_sim::cluster::{META, PROGRAM_LIMIT};
use ropewalk_sim::{Cluster, ClusterConfig, Cut, Kill, Simulation};
use ropewalk_wire::fs::meta::ROOT;

/// One client wrote so many bytes, another one changes the size; the metadata server dies `steps`
/// after that began. True if the change was done before.
fn death_while_a_lease_goes(bytes: usize, steps: u64) -> bool {
    let mut simulation = Simulation::new(steps);
    let config = ClusterConfig { clients: 2, ..ClusterConfig::default() };
    let cluster = Cluster::start(&mut simulation, config);
    let file = cluster.run(&mut simulation, 0, |client| async move {
        let file = Rc::new(create(&client, b"f").await);
        write(&client, &file, 0, &pattern(1, bytes)).await.expect("written");
        file
    });
    let number = file.number();
    let grown = cluster.spawn(&simulation, 1, |client| async move {
        let change = AttributeChange { size: Some(50_000), ..AttributeChange::default() };
        client.set_attributes(&Caller::root(), number, change).await.map(|found| found.size)
    });
    simulation.run_steps(steps);
    let before = grown.borrow().is_some();
    // Frames in flight to the client that gives its lease back do not arrive.
    simulation.network().cut(META, cluster.client_name(0), Cut::Both);
    cluster.kill(&mut simulation, META, Kill::Process(Duration::ZERO));
    simulation.run_for(Duration::from_millis(10));
    cluster.restart(&mut simulation, META);
    assert!(simulation.run_until(PROGRAM_LIMIT, |_| grown.borrow().is_some()));
    assert_eq!(*grown.borrow(), Some(Ok(50_000)), "{steps}");
    cluster.run(&mut simulation, 0, |client| async move {
        let mut expected = pattern(1, bytes);
        expected.resize(50_000, 0);
        assert_same(&read_all(&client, &file).await.expect("read"), &expected);
        client.sync(&file).await.expect("nothing is lost");
    });
    before
}

#[test]
fn a_lease_that_went_is_not_reclaimed_where_only_the_server_knows() {
    // With and without something to report.
    for bytes in [0, 30_000] {
        let done = (0..2000).step_by(3).find(|steps| death_while_a_lease_goes(bytes, *steps));
        let done = done.expect("the change comes to its end");
        assert!(done > 30, "{done}");
        // The reply to the release may come after that of the one who waited for it.
        for steps in done - 10..done + 60 {
            death_while_a_lease_goes(bytes, steps);
        }
    }
}

/// A server that was restarted is told what its client holds; the link is lost so many steps after
/// it took no more of that.
fn link_lost_at_the_end_of_a_reclaim(steps: u64) {
    let mut simulation = Simulation::new(steps);
    let mut cluster = Cluster::start(&mut simulation, ClusterConfig::default());
    let file = cluster.run(&mut simulation, 0, |client| async move {
        let file = Rc::new(create(&client, b"f").await);
        write(&client, &file, 0, &pattern(1, 100_000)).await.expect("written");
        file
    });
    cluster.kill(&mut simulation, META, Kill::Process(Duration::ZERO));
    cluster.restart(&mut simulation, META);
    cluster.await_start(&mut simulation);
    assert!(cluster.meta().is_in_grace());
    assert!(simulation.run_until(PROGRAM_LIMIT, |_| !cluster.meta().is_in_grace()));
    simulation.run_steps(steps);
    simulation.network().cut(META, cluster.client_name(0), Cut::Both);
    // The client reports its writes only half a second after its start.
    simulation.run_for(Duration::from_millis(100));
    cluster.run(&mut simulation, 0, |client| async move {
        client.sync(&file).await.expect("nothing is lost");
    });
    cluster.add_client(&mut simulation);
    cluster.await_start(&mut simulation);
    cluster.run(&mut simulation, 1, |client| async move {
        let file = open(&client, b"f", READ).await.expect("opened");
        assert_same(&read_all(&client, &file).await.expect("read"), &pattern(1, 100_000));
    });
}

#[test]
fn what_was_reclaimed_is_not_lost_with_the_link() {
    (0..40).for_each(link_lost_at_the_end_of_a_reclaim);
}

/// A server that was stopped for longer than a term, while its clients lived, takes nothing from them.
fn server_that_stood_still(seed: u64) {
    let mut simulation = Simulation::new(seed);
    let config = ClusterConfig { clients: 2, ..ClusterConfig::default() };
    let cluster = Cluster::start(&mut simulation, config);
    let file = cluster.run(&mut simulation, 0, |client| async move {
        let file = create(&client, b"f").await;
        write(&client, &file, 0, &pattern(1, 100_000)).await.expect("written");
        client.unlink(&Caller::root(), ROOT, b"f").await.expect("removed");
        file
    });
    for seconds in [11, 60, 600] {
        simulation.pause(META);
        // The network loses the client's renewals meanwhile; the client sends them again soon.
        simulation.network().partition(META, cluster.client_name(0));
        simulation.run_for(Duration::from_secs(seconds));
        simulation.network().heal(META, cluster.client_name(0));
        simulation.resume(META);
        simulation.run_for(Duration::from_secs(20));
    }
    cluster.run(&mut simulation, 0, |client| async move {
        assert_same(&read_all(&client, &file).await.expect("it is open"), &pattern(1, 100_000));
        client.sync(&file).await.expect("nothing is lost");
    });
    let lines = cluster.logged();
    let ended = lines.iter().any(|line| line.contains("the session with"));
    assert!(!ended, "seed {seed}: {lines:?}");
}

#[test]
fn a_server_that_stood_still_ends_no_session_that_lived() {
    (1..=10).for_each(server_that_stood_still);
}
