//! A client's session goes on at another endpoint, whatever happens to the servers in that moment.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::ids::ClusterId;
use ropewalk_client::handover::{ClientState, OpenFile};
use ropewalk_client::{Client, ClientConfig, ClientError, File};
use ropewalk_sim::cluster::{META, METAS};
use ropewalk_sim::disk::VirtualDisk;
use ropewalk_sim::endpoint::endpoint;
use ropewalk_sim::{Cluster, ClusterConfig, Kill, SimConfig, Simulation};
use ropewalk_wire::fs::meta::{LockKind, LockRange, ROOT};
use ropewalk_wire::fs::value::Errno;

use crate::programs::*;

const NEXT: &str = "next";

fn lock(owner: u64) -> LockRange {
    let kind = LockKind::Exclusive;
    LockRange { kind, whole_file: false, owner, process: 1, start: 0, end: 99 }
}

struct Given {
    state: ClientState,
    open: [OpenFile; 2],
    /// Kept: the old process has them open until it ends.
    _files: [Rc<File>; 2],
}

/// A client that has a file, a file without a name and a lock, and gives all of it away.
async fn give(client: Client) -> Given {
    let root = ropewalk_client::Caller::root();
    let file = create(&client, b"file").await;
    write(&client, &file, 0, &pattern(1, 300_000)).await.expect("written");
    client.set_lock(file.number(), lock(5), false).await.expect("nobody has it");
    let nameless = create(&client, b"nameless").await;
    write(&client, &nameless, 0, &pattern(2, 300_000)).await.expect("written");
    client.unlink(&root, ROOT, b"nameless").await.expect("removed");
    client.report_before_hand_over().await.expect("reported");
    while !client.is_quiet() {
        client.world().sleep(Duration::from_millis(1)).await;
    }
    let files = [Rc::new(file), Rc::new(nameless)];
    let open = [files[0].to_state(false), files[1].to_state(true)];
    Given { state: client.hand_over(), open, _files: files }
}

/// The process that goes on: its client, as soon as it has the session.
type Next = (Client, [File; 2]);
type Taken = Rc<RefCell<Option<Result<Next, ClientError>>>>;

fn add_next(simulation: &mut Simulation, state: ClientState, open: &[OpenFile; 2]) -> Taken {
    add_next_at(simulation, format!("sim://{META}"), state, open)
}

fn add_next_at(
    simulation: &mut Simulation,
    address: String,
    state: ClientState,
    open: &[OpenFile; 2],
) -> Taken {
    let taken = Taken::default();
    let (place, open) = (taken.clone(), open.clone());
    simulation.add_virtual_node(NEXT, VirtualDisk::new(8), move |node| {
        let endpoint = endpoint(node, ClusterId(7), SimConfig::stream());
        let (world, place, state) = (node.world().clone(), place.clone(), state.clone());
        let (open, address) = (open.clone(), address.clone());
        node.world().spawn(async move {
            let config = ClientConfig { patience: Duration::from_secs(120), ..Default::default() };
            let client = Client::from_state(&world, &endpoint, &address, config, &state);
            let client = client.expect("it asks nobody");
            // Before the session comes: a server that was started again asks what is open.
            let files = open.each_ref().map(|one| client.open_again(one));
            let moved = client.take_session(&state).await;
            *place.borrow_mut() = Some(moved.map(|()| (client, files)));
        });
    });
    taken
}

fn cluster(simulation: &mut Simulation) -> Cluster {
    Cluster::start(simulation, ClusterConfig { clients: 2, ..ClusterConfig::default() })
}

fn await_taken(simulation: &mut Simulation, taken: &Taken) -> Result<Next, ClientError> {
    simulation.run_until(Duration::from_secs(200), |_| taken.borrow().is_some());
    taken.borrow_mut().take().expect("it ends")
}

/// Everything that was given goes on, and the former owner has nothing.
fn check(simulation: &mut Simulation, cluster: &Cluster, given: Given, next: Next) {
    let (client, [file, nameless]) = next;
    let number = file.number();
    let program = async move {
        assert_same(&read_all(&client, &file).await.expect("read"), &pattern(1, 300_000));
        assert_same(&read_all(&client, &nameless).await.expect("read"), &pattern(2, 300_000));
        write(&client, &file, 100_000, &pattern(3, 300_000)).await.expect("written");
        write(&client, &nameless, 7, b"more").await.expect("written");
        client.sync(&file).await.expect("synced, also what the other process wrote");
        client.sync(&nameless).await.expect("synced");
        (client, file, nameless)
    };
    let kept = simulation.block_on(NEXT, Duration::from_secs(300), program).expect("it ends");
    cluster.run(simulation, 1, move |other| async move {
        let taken = other.set_lock(number, lock(6), false).await;
        assert_eq!(taken, Err(Errno::EAGAIN), "it is locked still");
        let file = open(&other, b"file", ropewalk_client::OpenOptions::READ).await.expect("opened");
        let found = read_all(&other, &file).await.expect("read");
        assert_same(&found[100_000..], &pattern(3, 300_000));
    });
    drop(kept);
    drop(given);
}

#[test]
fn all_that_a_session_covers_goes_on_at_another_endpoint() {
    for seed in 0..10 {
        let mut simulation = Simulation::new(seed);
        let cluster = cluster(&mut simulation);
        let given = cluster.run(&mut simulation, 0, give);
        let taken = add_next(&mut simulation, given.state.clone(), &given.open);
        let next = await_taken(&mut simulation, &taken).expect("it moves");
        check(&mut simulation, &cluster, given, next);
        let calls = cluster.meta().calls();
        assert_eq!(calls.get("open session").copied(), Some(2), "no further session: {calls:?}");
    }
}

#[test]
fn a_session_moves_once_although_the_server_dies_in_that_moment() {
    for seed in 0..24 {
        let mut simulation = Simulation::new(100 + seed);
        let cluster = cluster(&mut simulation);
        let given = cluster.run(&mut simulation, 0, give);
        if seed % 3 == 0 {
            // It is away when the session is to move.
            cluster.kill(&mut simulation, META, Kill::Process(Duration::ZERO));
        }
        let taken = add_next(&mut simulation, given.state.clone(), &given.open);
        simulation.run_for(Duration::from_micros(150 * seed));
        if seed % 3 != 0 {
            cluster.kill(&mut simulation, META, Kill::Process(Duration::ZERO));
        }
        simulation.run_for(Duration::from_secs(1));
        cluster.restart(&mut simulation, META);
        let next = await_taken(&mut simulation, &taken).expect("it moves");
        check(&mut simulation, &cluster, given, next);
    }
}

#[test]
fn without_the_secret_nothing_moves_and_the_owner_goes_on() {
    let mut simulation = Simulation::new(7);
    let cluster = cluster(&mut simulation);
    let given = cluster.run(&mut simulation, 0, give);
    let mut state = given.state.clone();
    state.recognition ^= 1;
    let taken = add_next(&mut simulation, state, &given.open);
    let refused = await_taken(&mut simulation, &taken).err().expect("it does not move");
    assert!(matches!(refused, ClientError::NotMoved { errno: Errno::ESTALE, .. }), "{refused}");
    cluster.run(&mut simulation, 0, |client| async move {
        client.go_on();
        let file = client.open_again(&given.open[0]);
        write(&client, &file, 0, &pattern(4, 100_000)).await.expect("written");
        client.sync(&file).await.expect("synced");
        assert_same(&read(&client, &file, 0, 100_000).await.expect("read"), &pattern(4, 100_000));
    });
}

/// The one that serves is the last that is asked: until the session has moved there is none to be renewed.
#[test]
fn a_session_moves_also_where_the_active_server_stands_last() {
    for seed in 0..6 {
        let mut simulation = Simulation::new(200 + seed);
        let config = ClusterConfig { clients: 2, ..ClusterConfig::paired() };
        let cluster = Cluster::start(&mut simulation, config);
        let given = cluster.run(&mut simulation, 0, give);
        let active = cluster.active().expect("one serves");
        let address = format!("sim://{};sim://{}", METAS[1 - active], METAS[active]);
        let taken = add_next_at(&mut simulation, address, given.state.clone(), &given.open);
        let next = await_taken(&mut simulation, &taken).expect("it moves");
        // For longer than the server keeps a session that nobody renews.
        simulation.run_for(Duration::from_secs(40));
        check(&mut simulation, &cluster, given, next);
    }
}
