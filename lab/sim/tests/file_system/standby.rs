//! Two metadata servers of which one serves: the other takes over, and nothing that was acknowledged is lost.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use ropewalk_client::{Caller, Client};
use ropewalk_sim::cluster::METAS;
use ropewalk_sim::{Cluster, ClusterConfig, Kill, Simulation};

use crate::programs::*;

const SECOND: Duration = Duration::from_secs(1);

fn start(seed: u64) -> (Simulation, Cluster) {
    let mut simulation = Simulation::new(seed);
    let cluster = Cluster::start(&mut simulation, ClusterConfig::paired());
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
    for _ in 0..8000 {
        simulation.run_for(Duration::from_millis(1));
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
