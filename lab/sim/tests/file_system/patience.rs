//! The time that operations wait for servers that are down: one patience, whatever does not answer.

use std::rc::Rc;
use std::time::Duration;

use crate::programs::*;
use ropewalk_base::time::Time;
use ropewalk_client::{Caller, Client, Errno};
use ropewalk_sim::cluster::{META, PROGRAM_LIMIT};
use ropewalk_sim::{Cluster, ClusterConfig, Kill, Simulation};
use ropewalk_wire::fs::meta::ROOT;

const PATIENCE: Duration = Duration::from_secs(4);
/// For an attempt that is under way when patience ends, and for calls right behind it.
const MORE: Duration = Duration::from_millis(300);
/// Longer than the session's term.
const LONG: Duration = Duration::from_secs(20);

fn begin(seed: u64) -> (Simulation, Cluster) {
    let mut simulation = Simulation::new(seed);
    let config = ClusterConfig { patience: PATIENCE, ..ClusterConfig::default() };
    let cluster = Cluster::start(&mut simulation, config);
    cluster.run(&mut simulation, 0, |client| async move {
        let file = create(&client, b"f").await;
        write(&client, &file, 0, &pattern(1, 200_000)).await.expect("written");
        client.sync(&file).await.expect("kept");
    });
    (simulation, cluster)
}

fn kill(simulation: &mut Simulation, cluster: &Cluster, name: &str) {
    cluster.kill(simulation, name, Kill::Process(Duration::ZERO));
}

fn since(client: &Client, begin: Time) -> Duration {
    client.world().now().since(begin)
}

/// The lookups that the kernel makes for one `open`: of the name that it knows, and again as if it did not know it.
async fn opens(client: &Client) -> Result<(), Errno> {
    let first = client.lookup(&Caller::root(), ROOT, b"f").await;
    if first.is_ok() {
        return Ok(());
    }
    client.lookup(&Caller::root(), ROOT, b"f").await.map(|_| ())
}

fn assert_one_patience(took: Duration, what: &str) {
    assert!(took >= PATIENCE && took < PATIENCE + MORE, "{what}: {took:?}");
}

#[test]
fn a_system_call_fails_after_one_patience_when_the_sessions_term_is_over() {
    // Renewals begin and end in vain all the time: wherever the call meets them.
    for more in (0..4000).step_by(500) {
        let (mut simulation, cluster) = begin(more);
        kill(&mut simulation, &cluster, META);
        simulation.run_for(LONG + Duration::from_millis(more));
        let took = cluster.run(&mut simulation, 0, |client| async move {
            let begin = client.world().now();
            let found = client.attributes(ROOT).await;
            assert_eq!(found.map(|_| ()), Err(Errno::EIO));
            let one = since(&client, begin);
            // df(1): the root's attributes, twice, and then the room there is.
            assert_eq!(client.attributes(ROOT).await.map(|_| ()), Err(Errno::EIO));
            assert_eq!(client.status().await.map(|_| ()), Err(Errno::EIO));
            (one, since(&client, begin))
        });
        assert_one_patience(took.0, "one request");
        assert_one_patience(took.1, "all requests of df");
        simulation.run_for(Duration::from_millis(500));
        let took = cluster.run(&mut simulation, 0, |client| async move {
            let begin = client.world().now();
            assert_eq!(opens(&client).await, Err(Errno::EIO));
            since(&client, begin)
        });
        assert_one_patience(took, "open, a while later");
    }
}

#[test]
fn a_system_call_fails_after_one_patience_within_the_term_and_for_a_data_server() {
    let (mut simulation, cluster) = begin(1);
    let file = cluster.run(&mut simulation, 0, |client| async move {
        Rc::new(open(&client, b"f", READ).await.expect("opened"))
    });
    let servers = cluster.servers();
    for server in &servers[1..] {
        kill(&mut simulation, &cluster, server);
    }
    let took = cluster.run(&mut simulation, 0, |client| async move {
        let begin = client.world().now();
        // Read ahead, and then again the page that it is about.
        assert_eq!(read(&client, &file, 0, 100_000).await, Err(Errno::EIO));
        assert_eq!(read(&client, &file, 0, 4096).await, Err(Errno::EIO));
        since(&client, begin)
    });
    assert_one_patience(took, "a read");
    kill(&mut simulation, &cluster, META);
    let took = cluster.run(&mut simulation, 0, |client| async move {
        let begin = client.world().now();
        for _ in 0..2 {
            let found = client.lookup(&Caller::root(), ROOT, b"absent").await;
            assert_eq!(found.map(|_| ()), Err(Errno::EIO));
        }
        since(&client, begin)
    });
    assert_one_patience(took, "a name, within the term");
}

#[test]
fn what_waits_goes_on_with_a_server_that_is_back_and_a_loop_of_programs_waits_again() {
    let (mut simulation, cluster) = begin(2);
    kill(&mut simulation, &cluster, META);
    simulation.run_for(LONG);
    // A program that asks again and again is not told at once for ever.
    let tries = cluster.run(&mut simulation, 0, |client| async move {
        let (begin, mut tries) = (client.world().now(), 0);
        while since(&client, begin) < 4 * PATIENCE {
            assert_eq!(opens(&client).await, Err(Errno::EIO));
            tries += 1;
        }
        tries
    });
    assert!(tries < 40, "{tries}");
    simulation.run_for(Duration::from_millis(500));
    let waiting = cluster.spawn(&simulation, 0, |client| async move { opens(&client).await });
    simulation.run_for(PATIENCE / 2);
    assert!(waiting.borrow().is_none(), "it is patient");
    cluster.restart(&mut simulation, META);
    assert!(simulation.run_until(PROGRAM_LIMIT, |_| waiting.borrow().is_some()));
    assert_eq!(*waiting.borrow(), Some(Ok(())));
    cluster.run(&mut simulation, 0, |client| async move {
        assert_eq!(opens(&client).await, Ok(()));
    });
}
