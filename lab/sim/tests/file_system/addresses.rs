//! Clients and data servers that know several metadata servers, of which one serves.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::ids::ClusterId;
use ropewalk_client::{Client, ClientConfig, ClientError};
use ropewalk_meta::{MetaConfig, MetaServer};
use ropewalk_net::local::LocalEndpoint;
use ropewalk_rpc::Secret;
use ropewalk_sim::cluster::META;
use ropewalk_sim::disk::VirtualDisk;
use ropewalk_sim::endpoint::endpoint;
use ropewalk_sim::{Cluster, ClusterConfig, Kill, SimConfig, Simulation};

use crate::programs::*;

/// No node has this name.
const NOBODY: &str = "nobody";
const MUTE: &str = "mute";
const FOREIGN: &str = "foreign";
const OTHER: ClusterId = ClusterId(9);

/// A node that takes messages and says nothing.
fn add_mute(simulation: &mut Simulation) {
    let kept: Rc<RefCell<Vec<LocalEndpoint>>> = Rc::default();
    simulation.add_virtual_node(MUTE, VirtualDisk::new(1), move |node| {
        kept.borrow_mut().push(endpoint(node, ClusterId(7), SimConfig::stream()));
    });
}

/// The metadata server of another cluster.
fn add_foreign(simulation: &mut Simulation) {
    let kept: Rc<RefCell<Option<Rc<MetaServer>>>> = Rc::default();
    simulation.add_virtual_node(FOREIGN, VirtualDisk::new(2), move |node| {
        let endpoint = endpoint(node, OTHER, SimConfig::stream());
        let config = MetaConfig::new(PathBuf::from("/meta"), OTHER, Secret::new([9; 32]));
        let (world, kept) = (node.world().clone(), kept.clone());
        node.world().spawn(async move {
            let server = MetaServer::start(&world, endpoint, config).await;
            *kept.borrow_mut() = Some(server.expect("it starts"));
        });
    });
}

fn names(nodes: &[&str]) -> Vec<String> {
    nodes.iter().map(|node| (*node).to_owned()).collect()
}

async fn use_it(client: Client, name: &'static [u8]) {
    let file = create(&client, name).await;
    write(&client, &file, 0, &pattern(1, 300_000)).await.expect("written");
    client.sync(&file).await.expect("synced");
    assert_eq!(read(&client, &file, 0, 300_000).await, Ok(pattern(1, 300_000)));
}

#[test]
fn the_one_that_serves_is_found_wherever_it_stands_in_the_list() {
    for nodes in [
        &[NOBODY, META][..],
        &[MUTE, META],
        &[FOREIGN, META],
        &[META, NOBODY],
        &[FOREIGN, NOBODY, MUTE, META],
    ] {
        let mut simulation = Simulation::new(3);
        add_mute(&mut simulation);
        add_foreign(&mut simulation);
        let meta_nodes = names(nodes);
        let config = ClusterConfig { meta_nodes, ..ClusterConfig::default() };
        let cluster = Cluster::start(&mut simulation, config);
        cluster.run(&mut simulation, 0, |client| use_it(client, b"before"));
        cluster.kill(&mut simulation, META, Kill::Process(Duration::ZERO));
        simulation.run_for(Duration::from_secs(2));
        cluster.restart(&mut simulation, META);
        // Calls that went round find it again, in the same session.
        cluster.run(&mut simulation, 0, |client| use_it(client, b"after"));
        simulation.run_for(Duration::from_secs(30));
        let sessions = cluster.meta().calls().get("open session").copied();
        assert_eq!(sessions.unwrap_or(0), 0, "{nodes:?}: {:?}", cluster.meta().calls());
    }
}

#[test]
fn strangers_alone_are_an_error_at_once_and_one_silence_is_enough_to_wait() {
    for (nodes, is_waited_for) in [(&[FOREIGN, FOREIGN][..], false), (&[FOREIGN, NOBODY], true)] {
        let mut simulation = Simulation::new(4);
        add_foreign(&mut simulation);
        let found: Rc<RefCell<Option<(ClientError, Duration)>>> = Rc::default();
        let place = found.clone();
        let address: Vec<String> = nodes.iter().map(|node| format!("sim://{node}")).collect();
        let address = address.join(";");
        simulation.add_virtual_node("client", VirtualDisk::new(3), move |node| {
            let endpoint = endpoint(node, ClusterId(7), SimConfig::stream());
            let patience = Duration::from_secs(20);
            let config = ClientConfig { patience, ..ClientConfig::default() };
            let (world, place, address) = (node.world().clone(), place.clone(), address.clone());
            node.world().spawn(async move {
                let begin = world.now();
                let connected = Client::connect(&world, &endpoint, &address, config).await;
                let error = connected.err().expect("nobody serves");
                *place.borrow_mut() = Some((error, world.now().since(begin)));
            });
        });
        simulation.run_until(Duration::from_secs(60), |_| found.borrow().is_some());
        let (error, waited) = found.borrow_mut().take().expect("it ends");
        if is_waited_for {
            assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
            assert!(waited >= Duration::from_secs(20), "{waited:?}");
        } else {
            assert!(matches!(error, ClientError::OtherCluster { .. }), "{error}");
            assert!(waited < Duration::from_secs(5), "{waited:?}");
        }
    }
}
