//! A data server and a client as simulated nodes.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::ids::{ClusterId, ServerId};
use ropewalk_data::{Counters, DataConfig, DataServer};
use ropewalk_rail::address::Address;
use ropewalk_sim::disk::VirtualDisk;
use ropewalk_sim::endpoint::endpoint;
use ropewalk_sim::{Kill, Node, SimConfig, Simulation};
use ropewalk_store::objects::Config;

use crate::client::{Client, secret};

pub const LIMIT: Duration = Duration::from_secs(600);
pub const DIRECTORY: &str = "/data";
pub const SESSION: u64 = 7;

/// The configuration of the server.
#[derive(Clone)]
pub struct Setup {
    pub rail: SimConfig,
    pub transfer_bytes: usize,
    pub objects: Config,
}

impl Setup {
    pub fn new(rail: SimConfig) -> Setup {
        Setup { rail, transfer_bytes: 8 << 20, objects: Config::default() }
    }
}

/// Media over which every test of transfers runs.
pub fn rails() -> [SimConfig; 2] {
    [SimConfig::stream(), SimConfig::native()]
}

type Place = Rc<RefCell<Option<Rc<DataServer>>>>;

/// The server of the cluster, as the scenario sees it.
pub struct Cluster {
    pub disk: VirtualDisk,
    pub lines: Rc<RefCell<Vec<String>>>,
    server: Place,
    starts: Rc<Cell<u64>>,
    pub client: Client,
}

impl Cluster {
    /// A server that is up, and a client with a session.
    pub fn new(simulation: &mut Simulation, setup: &Setup) -> Cluster {
        let disk = VirtualDisk::new(simulation.seed());
        let lines = Rc::new(RefCell::new(Vec::new()));
        let (server, starts) = (Place::default(), Rc::new(Cell::new(0)));
        let boot = {
            let setup = setup.clone();
            let (server, starts, lines) = (server.clone(), starts.clone(), lines.clone());
            move |node: &Node| {
                server.borrow_mut().take();
                let endpoint = endpoint(node, ClusterId(1), setup.rail.clone());
                let (path, id) = (PathBuf::from(DIRECTORY), ServerId(3));
                let mut config = DataConfig::new(path, ClusterId(1), id, secret());
                config.objects = setup.objects.clone();
                config.transfer_bytes = setup.transfer_bytes;
                let lines = lines.clone();
                config.log = Rc::new(move |line| {
                    if std::env::var_os("ROPEWALK_VERBOSE").is_some() {
                        eprintln!("server: {line}");
                    }
                    lines.borrow_mut().push(line.to_owned());
                });
                let (server, starts) = (server.clone(), starts.clone());
                let world = node.world().clone();
                node.world().spawn(async move {
                    let started = DataServer::start(&world, endpoint, config).await;
                    *server.borrow_mut() = Some(started.expect("the server starts"));
                    starts.set(starts.get() + 1);
                });
            }
        };
        simulation.add_virtual_node("server", disk.clone(), boot);
        let client = add_client(simulation, "client", setup.rail.clone());
        client.use_session(SESSION, 1);
        let cluster = Cluster { disk, lines, server, starts, client };
        cluster.wait_up(simulation, 1);
        cluster
    }

    fn wait_up(&self, simulation: &mut Simulation, starts: u64) {
        let up = simulation.run_until(LIMIT, |_| self.starts.get() >= starts);
        assert!(up, "the server does not start");
    }

    /// Kills the server and starts it again.
    pub fn restart(&self, simulation: &mut Simulation, kill: Kill) {
        let starts = self.starts.get();
        simulation.kill("server", kill);
        self.server.borrow_mut().take();
        simulation.run_for(Duration::from_millis(10));
        simulation.restart("server");
        self.wait_up(simulation, starts + 1);
    }

    pub fn server(&self) -> Rc<DataServer> {
        self.server.borrow().clone().expect("the server is up")
    }

    pub fn counters(&self) -> Counters {
        self.server().counters()
    }

    /// The file in which an object's bytes lie.
    pub fn object_path(&self, inode: u64, generation: u32, stripe: u32) -> PathBuf {
        use ropewalk_base::disk::Disk;
        let name = format!("{inode:016x}.{generation:08x}.{stripe:08x}");
        let root = Path::new(DIRECTORY).join("objects/objects");
        let directories = self.disk.list(&root).expect("the folder of objects is there");
        let paths = directories.iter().map(|(directory, _)| root.join(directory).join(&name));
        paths.into_iter().find(|path| self.disk.bytes(path).is_some()).expect("it exists")
    }
}

/// A node with a client on it, connected to the server.
pub fn add_client(simulation: &mut Simulation, name: &str, rail: SimConfig) -> Client {
    let place: Rc<RefCell<Option<Client>>> = Rc::default();
    let out = place.clone();
    let disk = VirtualDisk::new(0);
    simulation.add_virtual_node(name, disk, move |node| {
        let endpoint = endpoint(node, ClusterId(1), rail.clone());
        let address = Address::parse("sim://server").expect("it is an address");
        let peer = endpoint.endpoint().lookup(&address).expect("its scheme has a rail");
        *out.borrow_mut() = Some(Client::new(node.world(), &endpoint, peer));
    });
    let client = place.borrow().clone();
    client.expect("the node has booted")
}

/// Runs what the client does to its end.
pub fn run<T: 'static>(
    simulation: &mut Simulation,
    future: impl Future<Output = T> + 'static,
) -> T {
    simulation.block_on("client", LIMIT, future).expect("it ends in time")
}
