//! A whole file system on simulated nodes: a metadata server, data servers, clients.
//!
//! Every node has its own executor, world and endpoint; servers have virtual disks. Programs run as
//! tasks of client nodes. A node that is killed comes back with its disk; a client comes back as a
//! new client.
//!
//! With a pair of metadata servers, `meta` and `meta2`, one of them serves, and `data1` votes, too.
//!
//! Names: `meta`, `data1`, `data2`, ..., `client0`, `client1`, ...

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_base::ids::{ClusterId, ServerId};
use ropewalk_client::{Caller, Client, ClientConfig, POLICY, Policy};
use ropewalk_data::{DataConfig, DataServer, Defect, Scrub, WitnessConfig};
use ropewalk_meta::{MetaConfig, MetaNode, MetaServer, NodeConfig, Witness};
use ropewalk_net::Address;
use ropewalk_rail_sim::{Kill, SimConfig};
use ropewalk_rpc::{CallError, Connection, Options, Proof, Secret, servers};
use ropewalk_store::objects::{self, ObjectId};
use ropewalk_store::superblock::Expect;
use ropewalk_wire::fs::data::DataRequest;
use ropewalk_wire::fs::encode;
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::head::Service;
use ropewalk_wire::fs::map::Band;
use ropewalk_wire::fs::meta::ROOT;
use ropewalk_wire::fs::term::Term;
use ropewalk_wire::fs::trust::{Member, Role as Part};

use crate::disk::VirtualDisk;
use crate::endpoint::endpoint;
use crate::node::Node;
use crate::simulation::Simulation;

/// The name of the metadata server's node.
pub const META: &str = "meta";
/// The names of a pair's nodes.
pub const METAS: [&str; 2] = [META, "meta2"];
/// The data server that votes, too, by number.
const WITNESS: u32 = 1;
const CLUSTER: ClusterId = ClusterId(7);
/// The secret by which the servers of a simulated cluster authenticate each other.
pub const SECRET: [u8; 32] = [7; 32];
/// The time limit for the start of a server and for the connect of a client.
const START_LIMIT: Duration = Duration::from_secs(120);
/// The time limit of one program, in virtual time.
pub const PROGRAM_LIMIT: Duration = Duration::from_secs(600);

/// The composition of a cluster.
#[derive(Clone)]
pub struct ClusterConfig {
    pub data_servers: u32,
    pub clients: u32,
    pub rail: SimConfig,
    pub meta: MetaConfig,
    /// Two metadata servers, of which one serves.
    pub pair: Option<PairConfig>,
    /// The nodes of which one is the metadata server, as clients and data servers know them.
    pub meta_nodes: Vec<String>,
    /// Sizes of data servers' stores.
    pub objects: objects::Config,
    /// Bytes of each data server's disk.
    pub data_disk_bytes: u64,
    /// The time that a client's operation waits for a server.
    pub patience: Duration,
    /// Inodes that a client remembers.
    pub inodes_max: usize,
    /// A planted bug of all data servers, or of one.
    pub data_defect: Option<Defect>,
    pub defect_at: Option<u32>,
    /// The scrub of all data servers.
    pub data_scrub: Option<Scrub>,
    /// Whether log lines of servers and clients go to standard error.
    pub verbose: bool,
}

impl Default for ClusterConfig {
    fn default() -> ClusterConfig {
        let mut meta = MetaConfig::new(PathBuf::from("/meta"), CLUSTER, Secret::new(SECRET));
        // Small sizes and short times: a short run sees segments end and stripes cross servers.
        meta.store.journal.segment_bytes = 256 << 10;
        meta.store.cache_bytes = 1 << 20;
        meta.store.reserve_bytes = 64 << 10;
        meta.store.overlay_bytes = 64 << 10;
        meta.store.journal_bytes = 512 << 10;
        meta.shard.inode_range = 256;
        meta.shard.stripe_bytes = 64 << 10;
        ClusterConfig {
            data_servers: 2,
            clients: 1,
            rail: SimConfig::stream(),
            meta,
            pair: None,
            meta_nodes: vec![META.to_owned()],
            objects: objects::Config {
                object_bytes: 64 << 10,
                segment_bytes: 256 << 10,
                checkpoint_bytes: 768 << 10,
                overlay_bytes: 512 << 10,
                objects_cached: 64,
                ..objects::Config::default()
            },
            data_disk_bytes: 1 << 30,
            patience: Duration::from_secs(120),
            inodes_max: 65536,
            data_defect: None,
            defect_at: None,
            data_scrub: None,
            verbose: std::env::var_os("ROPEWALK_VERBOSE").is_some(),
        }
    }
}

/// A pair of metadata servers.
#[derive(Clone, Copy)]
pub struct PairConfig {
    pub lease: Duration,
    /// Whether one goes on without the other.
    pub alone: bool,
}

impl ClusterConfig {
    /// Two metadata servers and a witness.
    pub fn paired() -> ClusterConfig {
        ClusterConfig {
            pair: Some(PairConfig { lease: Duration::from_secs(1), alone: true }),
            meta_nodes: METAS.map(str::to_owned).to_vec(),
            ..ClusterConfig::default()
        }
    }
}

/// The server or client of a node, while it runs.
pub type Place<T> = Rc<RefCell<Option<T>>>;

/// A node, and the server or client that runs on it while it lives.
struct Role<T> {
    name: String,
    disk: VirtualDisk,
    place: Place<T>,
}

/// The nodes of a file system within a simulation.
pub struct Cluster {
    config: ClusterConfig,
    meta: Role<Rc<MetaServer>>,
    pair: Vec<Role<Rc<MetaNode>>>,
    /// The nodes to whose metadata server data servers speak from their next start on.
    followed: Rc<RefCell<Vec<String>>>,
    data: Vec<Role<Rc<DataServer>>>,
    /// Data servers that got another disk: they are started by `--replace` until they have joined.
    renewed: Rc<RefCell<BTreeSet<u32>>>,
    clients: Vec<Role<Client>>,
    lines: Rc<RefCell<Vec<String>>>,
}

impl Cluster {
    /// Adds all nodes and runs until everything has started.
    pub fn start(simulation: &mut Simulation, config: ClusterConfig) -> Cluster {
        let seed = simulation.seed();
        let meta = Role::new(META.into(), seed);
        let followed = Rc::new(RefCell::new(config.meta_nodes.clone()));
        let (data, clients, lines) = (Vec::new(), Vec::new(), Rc::default());
        let (pair, renewed) = (Vec::new(), Rc::default());
        let mut cluster = Cluster { config, meta, pair, followed, data, renewed, clients, lines };
        match cluster.config.pair {
            Some(pair) => {
                for number in 0..METAS.len() {
                    cluster.add_pair_member(simulation, number, pair);
                }
            }
            None => cluster.add_meta(simulation, &cluster.meta),
        }
        for _ in 0..cluster.config.data_servers {
            cluster.add_data_server(simulation);
        }
        for _ in 0..cluster.config.clients {
            cluster.add_client(simulation);
        }
        cluster.await_start(simulation);
        cluster
    }

    fn log(&self, name: &str) -> Rc<dyn Fn(&str)> {
        let (name, verbose) = (name.to_string(), self.config.verbose);
        let lines = self.lines.clone();
        Rc::new(move |text| {
            let line = format!("{name}: {text}");
            if verbose {
                eprintln!("{line}");
            }
            lines.borrow_mut().push(line);
        })
    }

    /// The log lines of servers and clients, each with the node's name in front.
    pub fn logged(&self) -> Vec<String> {
        self.lines.borrow().clone()
    }

    /// Adds a second metadata server, on a copy of the first one's disk.
    pub fn add_copied_meta(
        &self,
        simulation: &mut Simulation,
        name: &str,
    ) -> Place<Rc<MetaServer>> {
        let disk = self.meta.disk.copy();
        let role = Role { name: name.to_owned(), disk, place: Rc::default() };
        self.add_meta(simulation, &role);
        role.place
    }

    /// Sends a data server an order of a metadata server of this term that knows the map of this epoch. `name`: of the node
    /// that does it.
    pub fn order(
        &self,
        simulation: &mut Simulation,
        (name, server): (&str, &str),
        (term, map): (Term, u32),
        request: &DataRequest<'_>,
    ) -> Result<(), CallError> {
        let (rail, place) = (self.config.rail.clone(), Place::default());
        let out: Place<Connection> = place.clone();
        let address = Address::parse(&format!("sim://{server}")).expect("an address");
        simulation.add_virtual_node(name, VirtualDisk::new(0), move |node| {
            let endpoint = endpoint(node, CLUSTER, rail.clone());
            let peer = endpoint.endpoint().lookup(&address).expect("there is room for it");
            let member = Member { role: Part::Metadata, number: 0 };
            let proof = Some(Proof { secret: Secret::new(SECRET), member });
            let limit = Duration::from_secs(1);
            let options = Options { limit, proof, term, ..Options::default() };
            *out.borrow_mut() = Some(Connection::new(node.world(), &endpoint, peer, options));
        });
        let connection = place.borrow_mut().take().expect("the node has booted");
        let mut body = Vec::new();
        encode(request, &mut body);
        let sent =
            async move { connection.call_free_by(map, Service::Data, &body).await.map(drop) };
        simulation.block_on(name, PROGRAM_LIMIT, sent).expect("it ends in time")
    }

    /// Data servers that start from now on speak to the metadata server of this node.
    pub fn follow(&self, name: &str) {
        *self.followed.borrow_mut() = vec![name.to_owned()];
    }

    fn add_meta(&self, simulation: &mut Simulation, role: &Role<Rc<MetaServer>>) {
        let mut config = self.config.meta.clone();
        config.log = self.log(&role.name);
        let (rail, place) = (self.config.rail.clone(), role.place.clone());
        simulation.add_virtual_node(&role.name, role.disk.clone(), move |node| {
            let endpoint = endpoint(node, CLUSTER, rail.clone());
            let (world, config, place) = (node.world().clone(), config.clone(), place.clone());
            node.world().spawn(async move {
                let log = config.log.clone();
                match MetaServer::start(&world, endpoint, config).await {
                    Ok(server) => *place.borrow_mut() = Some(server),
                    // Its clients wait for the next life.
                    Err(error) => log(&error.to_string()),
                }
            });
        });
    }

    /// Adds one of a pair of metadata servers. The first one makes the file system.
    fn add_pair_member(&mut self, simulation: &mut Simulation, number: usize, pair: PairConfig) {
        let name = METAS[number];
        let mut config = self.config.meta.clone();
        (config.log, config.server) = (self.log(name), ServerId(number as u32));
        let role = Role::new(name.to_owned(), simulation.seed() ^ (number as u64) << 32);
        let (rail, place) = (self.config.rail.clone(), role.place.clone());
        simulation.add_virtual_node(name, role.disk.clone(), move |node| {
            let endpoint = endpoint(node, CLUSTER, rail.clone());
            let peer = |name: &str| {
                let address = Address::parse(&format!("sim://{name}")).expect("an address");
                endpoint.endpoint().lookup(&address).expect("there is room for it")
            };
            let other = 1 - number;
            let nodes = NodeConfig {
                others: BTreeMap::from([(other as u32, peer(METAS[other]))]),
                witness: Some(Witness::Server(WITNESS, peer(&format!("data{WITNESS}")))),
                lease: pair.lease,
                alone: pair.alone,
                founds: number == 0,
            };
            let (world, config, place) = (node.world().clone(), config.clone(), place.clone());
            node.world().spawn(async move {
                let log = config.log.clone();
                match MetaNode::start(&world, endpoint, config, nodes).await {
                    Ok(server) => *place.borrow_mut() = Some(server),
                    Err(error) => log(&error.to_string()),
                }
            });
        });
        self.pair.push(role);
    }

    /// One of the pair of metadata servers, if it runs.
    pub fn member(&self, number: usize) -> Option<Rc<MetaNode>> {
        self.pair[number].place.borrow().clone()
    }

    /// The number of the pair's server that is the active one.
    ///
    /// # Panics
    /// Both may act.
    pub fn active(&self) -> Option<usize> {
        let acts = |number: &usize| self.member(*number).is_some_and(|it| it.active().is_some());
        let active: Vec<usize> = (0..self.pair.len()).filter(acts).collect();
        assert!(active.len() < 2, "two metadata servers may act");
        active.first().copied()
    }

    /// Has it checked after each step that no two metadata servers may act.
    ///
    /// # Panics
    /// As soon as two may act.
    pub fn check_leases(&self, simulation: &mut Simulation) {
        let places: Vec<Place<Rc<MetaNode>>> =
            self.pair.iter().map(|role| role.place.clone()).collect();
        simulation.check_always(move || {
            let acts = |place: &Place<Rc<MetaNode>>| {
                place.borrow().as_ref().is_some_and(|it| it.active().is_some())
            };
            assert!(
                places.iter().filter(|it| acts(it)).count() < 2,
                "two metadata servers may act"
            );
        });
    }

    /// Adds one more data server.
    pub fn add_data_server(&mut self, simulation: &mut Simulation) {
        let id = self.data.len() as u32 + 1;
        let name = format!("data{id}");
        let role = Role::new(name.clone(), simulation.seed() ^ u64::from(id));
        role.disk.set_capacity(self.config.data_disk_bytes);
        let secret = Secret::new(SECRET);
        let mut config = DataConfig::new(PathBuf::from("/data"), CLUSTER, ServerId(id), secret);
        config.admit = true;
        let votes = self.config.pair.filter(|_| id == WITNESS);
        config.witness = votes.map(|pair| WitnessConfig { lease: pair.lease });
        config.objects = self.config.objects.clone();
        let has_defect = self.config.defect_at.is_none_or(|at| at == id);
        config.defect = self.config.data_defect.filter(|_| has_defect);
        config.scrub = self.config.data_scrub;
        config.log = self.log(&name);
        config.address = Some(format!("sim://{name}"));
        let (rail, place) = (self.config.rail.clone(), role.place.clone());
        let (followed, renewed) = (self.followed.clone(), self.renewed.clone());
        let disk = role.disk.clone();
        simulation.add_virtual_node(&name, role.disk.clone(), move |node: &Node| {
            let endpoint = endpoint(node, CLUSTER, rail.clone());
            let (world, mut config, place) = (node.world().clone(), config.clone(), place.clone());
            config.meta =
                servers::look_up(&endpoint, &addresses(&followed.borrow())).unwrap_or_default();
            let has_joined = disk.bytes(Path::new("/data/joined")).is_some();
            if renewed.borrow().contains(&id) && !has_joined {
                config.expect = Expect::Replace;
            }
            node.world().spawn(async move {
                let log = config.log.clone();
                match DataServer::start(&world, endpoint, config).await {
                    Ok(server) => {
                        *place.borrow_mut() = Some(server.clone());
                        log(&server.refused().await.to_string());
                    }
                    Err(error) => log(&error.to_string()),
                }
            });
        });
        self.data.push(role);
    }

    /// A data server that is down gets an empty disk, and takes the place of its former store at its next start.
    pub fn renew_disk(&self, number: u32) {
        self.data[number as usize - 1].disk.renew();
        self.renewed.borrow_mut().insert(number);
    }

    /// Adds one more client.
    pub fn add_client(&mut self, simulation: &mut Simulation) {
        let name = format!("client{}", self.clients.len());
        let role = Role::new(name.clone(), 0);
        let mut config = ClientConfig {
            name: name.clone(),
            patience: self.config.patience,
            inodes_max: self.config.inodes_max,
            secret: Some(Secret::new(SECRET)),
            ..ClientConfig::default()
        };
        config.log = self.log(&name);
        let (rail, place) = (self.config.rail.clone(), role.place.clone());
        let nodes = self.config.meta_nodes.clone();
        simulation.add_node(&name, Arc::new(role.disk.clone()), move |node: &Node| {
            let endpoint = endpoint(node, CLUSTER, rail.clone());
            let (world, config, place) = (node.world().clone(), config.clone(), place.clone());
            let nodes = nodes.clone();
            node.world().spawn(async move {
                let address = addresses(&nodes);
                let client = Client::connect(&world, &endpoint, &address, config).await;
                *place.borrow_mut() = client.ok();
            });
        });
        self.clients.push(role);
    }

    /// Runs until all nodes that live have started what they are for.
    pub fn await_start(&self, simulation: &mut Simulation) {
        let started = simulation.run_until(START_LIMIT, |simulation| {
            let has_meta = match self.pair.is_empty() {
                true => self.meta.is_ready(simulation),
                false => self.pair.iter().all(|server| server.is_ready(simulation)),
            };
            has_meta
                && self.data.iter().all(|server| server.is_ready(simulation))
                && self.clients.iter().all(|client| client.is_ready(simulation))
        });
        assert!(started, "a server does not start, or a client does not connect");
    }

    /// Runs a program on a client to its end.
    ///
    /// # Panics
    /// If the program does not end within [`PROGRAM_LIMIT`].
    pub fn run<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        simulation: &mut Simulation,
        client: usize,
        program: impl FnOnce(Client) -> F,
    ) -> T {
        let future = program(self.client(client));
        let name = &self.clients[client].name;
        let done = simulation.block_on(name, PROGRAM_LIMIT, future);
        done.unwrap_or_else(|| panic!("a program on {name} does not end"))
    }

    /// Starts a program on a client; its result appears in the place.
    pub fn spawn<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        simulation: &Simulation,
        client: usize,
        program: impl FnOnce(Client) -> F,
    ) -> Rc<RefCell<Option<T>>> {
        let future = program(self.client(client));
        let result = Rc::new(RefCell::new(None));
        let place = result.clone();
        simulation.node(&self.clients[client].name).world().spawn(async move {
            let value = future.await;
            *place.borrow_mut() = Some(value);
        });
        result
    }

    /// Files that are made in the root from now on have so many copies.
    pub fn mirror(&self, simulation: &mut Simulation, copies: u32) {
        let copies = copies.min(self.data.len() as u32);
        // All data servers are heard by then.
        simulation.run_for(Duration::from_secs(2));
        let done = self.spawn(simulation, 0, move |client| async move {
            let value = Policy::Copies(copies as u8).text();
            let (root, create) = (Caller::root(), (false, false));
            client.set_xattr(&root, ROOT, POLICY, value.as_bytes(), create).await
        });
        let set = simulation.run_until(PROGRAM_LIMIT, |_| done.borrow().is_some());
        assert!(set, "the policy is not set");
        assert_eq!(*done.borrow(), Some(Ok(())));
    }

    /// Differences between the members of groups, for people; and groups with fewer members than `copies`.
    pub fn copy_differences(&self, copies: u32) -> Vec<String> {
        self.copy_differences_among(copies, 0..self.data.len())
    }

    /// As [`Cluster::copy_differences`], of these data servers, which live.
    pub fn copy_differences_among(
        &self,
        copies: u32,
        servers: impl IntoIterator<Item = usize>,
    ) -> Vec<String> {
        let wanted = (copies as usize).min(self.data.len());
        let map = self.meta().map().expect("it serves");
        let mut differences = Vec::new();
        let mut objects: BTreeMap<Group, BTreeSet<ObjectId>> = BTreeMap::new();
        for server in servers {
            for info in self.data(server).store().list(None).expect("a listing") {
                match info {
                    Ok(info) => {
                        let group = info.group.get().map(Group::from_number);
                        let group = group.expect("objects know their group");
                        objects.entry(group).or_default().insert(info.object);
                    }
                    Err(error) => differences.push(format!("server {server}: {error}")),
                }
            }
        }
        let mirrored = map.bands(0).filter(|band| band.mirroring.is_some());
        for (group, membership) in mirrored.flat_map(Band::groups) {
            if membership.servers.len() < wanted {
                differences.push(format!("{group:?} has {membership:?}"));
            }
            for object in objects.remove(&group).unwrap_or_default() {
                let table = |server: &u32| {
                    let store = self.data(*server as usize - 1).store().table(object);
                    store.unwrap_or_else(|error| panic!("{object} at {server}: {error}"))
                };
                let tables: Vec<_> = membership.servers.iter().map(table).collect();
                // An empty object of which the orderer has none reads as nothing, too. Where nobody has a byte, they may be left of
                // a file that is gone: a server that left the group before that, and came back, has emptied them.
                let is_empty = |table: &Option<Vec<u32>>| table.as_ref().is_none_or(Vec::is_empty);
                let none = tables[0].is_none() || tables.iter().all(is_empty);
                let same =
                    |table: &Option<Vec<u32>>| *table == tables[0] || none && is_empty(table);
                if !tables.iter().all(same) {
                    let servers = &membership.servers;
                    differences.push(format!("{object} differs between {servers:?}: {tables:?}"));
                }
            }
        }
        differences
    }

    /// The client of a node that lives.
    pub fn client(&self, client: usize) -> Client {
        let client = self.clients[client].place.borrow().clone();
        client.unwrap_or_else(|| panic!("the client is not connected"))
    }

    /// The metadata server; it must live.
    pub fn meta(&self) -> Rc<MetaServer> {
        self.meta_if_up().unwrap_or_else(|| panic!("the metadata server does not run"))
    }

    /// The metadata server that serves, if one does.
    pub fn meta_if_up(&self) -> Option<Rc<MetaServer>> {
        match self.pair.is_empty() {
            true => self.meta.place.borrow().clone(),
            false => self.active().and_then(|number| self.member(number)?.active()),
        }
    }

    /// The metadata server's disk.
    pub fn meta_disk(&self) -> &VirtualDisk {
        &self.meta.disk
    }

    /// The disk of one of the pair of metadata servers.
    pub fn member_disk(&self, number: usize) -> &VirtualDisk {
        &self.pair[number].disk
    }

    /// A data server, counted from 0; it must live.
    pub fn data(&self, server: usize) -> Rc<DataServer> {
        let server = self.data[server].place.borrow().clone();
        server.unwrap_or_else(|| panic!("the data server does not run"))
    }

    /// A data server, counted from 0, if it has started.
    pub fn data_if_up(&self, server: usize) -> Option<Rc<DataServer>> {
        self.data[server].place.borrow().clone()
    }

    /// A data server's disk.
    pub fn data_disk(&self, server: usize) -> &VirtualDisk {
        &self.data[server].disk
    }

    /// The number of data servers.
    pub fn data_count(&self) -> usize {
        self.data.len()
    }

    /// Kills a node, by its name; the server or client that ran on it is gone.
    pub fn kill(&self, simulation: &mut Simulation, name: &str, kill: Kill) {
        let mut dropped = None;
        if let Some(server) = self.pair.iter().find(|server| server.name == name) {
            drop(server.place.borrow_mut().take());
        } else if name == META {
            drop(self.meta.place.borrow_mut().take());
        } else if let Some(server) = self.data.iter().find(|server| server.name == name) {
            drop(server.place.borrow_mut().take());
        } else if let Some(client) = self.clients.iter().find(|client| client.name == name) {
            dropped = client.place.borrow_mut().take();
        }
        simulation.kill(name, kill);
        drop(dropped);
    }

    /// Boots a dead node.
    pub fn restart(&self, simulation: &mut Simulation, name: &str) {
        simulation.restart(name);
    }

    /// The names of the servers' nodes.
    pub fn servers(&self) -> Vec<String> {
        let data = self.data.iter().map(|server| server.name.clone());
        let metas = if self.pair.is_empty() { &METAS[..1] } else { &METAS[..] };
        metas.iter().map(|name| (*name).to_owned()).chain(data).collect()
    }

    /// The name of a client's node.
    pub fn client_name(&self, client: usize) -> &str {
        &self.clients[client].name
    }

    /// The number of clients.
    pub fn client_count(&self) -> usize {
        self.clients.len()
    }
}

impl<T> Role<T> {
    fn new(name: String, seed: u64) -> Role<T> {
        Role { name, disk: VirtualDisk::new(seed), place: Rc::default() }
    }

    fn is_ready(&self, simulation: &Simulation) -> bool {
        !simulation.is_alive(&self.name) || self.place.borrow().is_some()
    }
}

/// The addresses of nodes, as one text.
fn addresses(nodes: &[String]) -> String {
    let addresses: Vec<String> = nodes.iter().map(|node| format!("sim://{node}")).collect();
    addresses.join(&servers::BETWEEN.to_string())
}
