//! A metadata server, clients written by hand and data servers that only listen, on simulated nodes.

pub mod client;
pub mod data_server;

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ropewalk_base::ids::{ClusterId, EndpointId, Incarnation};
use ropewalk_base::time::Time;
use ropewalk_meta::{MetaConfig, MetaServer};
use ropewalk_net::local::LocalEndpoint;
use ropewalk_net::{Endpoint, EndpointConfig};
use ropewalk_rpc::Secret;
use ropewalk_sim::disk::VirtualDisk;
use ropewalk_sim::{Kill, Node, Pollable, SimConfig, Simulation};

pub const LIMIT: Duration = Duration::from_secs(120);
pub const CLUSTER: ClusterId = ClusterId(7);
pub const META: &str = "meta";

/// Has a node's endpoint polled, and keeps its clock.
struct Polled {
    endpoint: LocalEndpoint,
    clock: Arc<AtomicU64>,
}

impl Pollable for Polled {
    fn poll(&mut self, now: Time) -> bool {
        self.clock.store(now.0, Ordering::Relaxed);
        self.endpoint.poll()
    }
    fn deadline(&self) -> Option<Time> {
        self.endpoint.endpoint().deadline()
    }
}

/// An endpoint of this life of a node, on one rail.
pub fn endpoint(node: &Node) -> LocalEndpoint {
    let clock = Arc::new(AtomicU64::new(node.world().now().0));
    let hand = clock.clone();
    let name = node.name().bytes().fold(1u128, |sum, byte| sum << 8 | u128::from(byte));
    let config = EndpointConfig {
        endpoint: EndpointId(name),
        incarnation: Incarnation(node.life()),
        host: 0,
        service_thread: false,
        clock: Arc::new(move || Time(hand.load(Ordering::Relaxed))),
        virtual_time: true,
        seed: node.world().random_u64(),
        ..EndpointConfig::new(CLUSTER)
    };
    let rail = node.rail(SimConfig::stream());
    let endpoint = Endpoint::open(config, vec![Box::new(rail)]).expect("an endpoint opens");
    let endpoint = LocalEndpoint::new(endpoint).expect("a context opens");
    node.register(Polled { endpoint: endpoint.clone(), clock });
    endpoint
}

/// The secret of the cluster's members.
pub fn secret() -> Secret {
    Secret::new(ropewalk_sim::cluster::SECRET)
}

/// Small sizes and short times, so that a short run sees segments end and checkpoints happen.
pub fn config() -> MetaConfig {
    let mut config = MetaConfig::new(PathBuf::from("/meta"), CLUSTER, secret());
    config.store.journal.segment_bytes = 64 << 10;
    config.store.cache_bytes = 1 << 20;
    config.store.reserve_bytes = 64 << 10;
    config.store.overlay_bytes = 32 << 10;
    config.store.journal_bytes = 128 << 10;
    config.shard.inode_range = 256;
    config
}

/// The metadata server's node: its disk, and the server while it runs.
#[derive(Clone)]
pub struct Meta {
    pub disk: VirtualDisk,
    server: Rc<RefCell<Option<Rc<MetaServer>>>>,
}

impl Meta {
    /// Adds the node and boots it.
    pub fn add(simulation: &mut Simulation, config: MetaConfig) -> Meta {
        let meta = Meta { disk: VirtualDisk::new(simulation.seed()), server: Rc::default() };
        let place = meta.server.clone();
        simulation.add_virtual_node(META, meta.disk.clone(), move |node| {
            let (endpoint, world) = (endpoint(node), node.world().clone());
            let (config, place) = (config.clone(), place.clone());
            node.world().spawn(async move {
                // If the disk fails there is no server, and its clients wait for the next life.
                match MetaServer::start(&world, endpoint, config).await {
                    Ok(server) => *place.borrow_mut() = Some(server),
                    Err(error) => eprintln!("the metadata server: {error}"),
                }
            });
        });
        meta
    }

    /// The server; it must have started.
    pub fn server(&self) -> Rc<MetaServer> {
        self.server.borrow().clone().expect("the server runs")
    }

    pub fn is_started(&self) -> bool {
        self.server.borrow().is_some()
    }

    /// Runs until the server has started.
    pub fn await_start(&self, simulation: &mut Simulation) {
        assert!(simulation.run_until(LIMIT, |_| self.is_started()), "the server does not start");
    }

    pub fn kill(&self, simulation: &mut Simulation, kill: Kill) {
        drop(self.server.borrow_mut().take());
        simulation.kill(META, kill);
    }

    pub fn restart(&self, simulation: &mut Simulation) {
        simulation.restart(META);
    }
}
