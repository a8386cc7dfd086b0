//! The client itself: its parts and its start.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::pool::Pool;
use ropewalk_base::task::Semaphore;
use ropewalk_base::time::Time;
use ropewalk_base::world::World;
use ropewalk_net::local::LocalEndpoint;
use ropewalk_rpc::lines::Lines;
use ropewalk_rpc::{Connection, Gate, Options, Secret, servers};
use ropewalk_wire::fs::attributes::Attributes;
use ropewalk_wire::fs::layout::Pool as ServerPool;
use ropewalk_wire::fs::map::Map;
use ropewalk_wire::fs::meta::{Judge, Who};
use ropewalk_wire::fs::value::Bytes;

use crate::clock::ServerClock;
use crate::data::DataServer;
use crate::entries::Entries;
use crate::error::ClientError;
use crate::inode::{Inode, Position};
use crate::locks::Locks;
use crate::patience::Patience;
use crate::recognition::Recognition;
use crate::underway::UnderWay;

/// On whose behalf something is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    pub user: u32,
    pub group: u32,
    /// Supplementary groups, four bytes each, little endian.
    groups: Rc<[u8]>,
    judge: Judge,
}

impl Caller {
    /// A user with a primary group and supplementary groups.
    pub fn new(user: u32, group: u32, groups: &[u32]) -> Caller {
        Caller {
            user,
            group,
            groups: groups.iter().flat_map(|group| group.to_le_bytes()).collect(),
            judge: Judge::Server,
        }
    }

    /// The same caller, already judged by its kernel: its request is allowed. `keeps_privileges`:
    /// setuid and setgid may stay on what it changes or makes. A metadata server believes this only
    /// from clients that may act for every user, and judges itself for all others.
    pub fn judged_by_kernel(self, keeps_privileges: bool) -> Caller {
        Caller { judge: Judge::Kernel { keeps_privileges }, ..self }
    }

    /// The superuser.
    pub fn root() -> Caller {
        Caller::new(0, 0, &[])
    }

    pub(crate) fn who(&self) -> Who<'_> {
        Who { user: self.user, group: self.group, groups: Bytes(&self.groups), judge: self.judge }
    }
}

/// A future that is kept without its type.
pub type LocalFuture = Pin<Box<dyn Future<Output = ()>>>;

/// Caches above the client (the kernel's), told before a lease is given back.
///
/// Entries of directories are not among them. The kernel drops one only under the directory's lock. Its own
/// requests hold that lock while they wait for the server, and the server may wait for the lease that is
/// given back here. So nobody above the client remembers entries.
pub trait Invalidate {
    /// Attributes and content of the inode must not be used any more. Writes of the kernel that
    /// this brings about are still accepted meanwhile.
    fn inode(&self, inode: u64) -> LocalFuture;

    /// The same of the bytes from `begin` to `end`, in whole pages.
    fn pages(&self, inode: u64, begin: u64, end: u64) -> LocalFuture;

    /// The inode is at least so long by now.
    fn grown(&self, inode: u64, size: u64) -> LocalFuture;
}

struct Nothing;

impl Invalidate for Nothing {
    fn inode(&self, _inode: u64) -> LocalFuture {
        Box::pin(async {})
    }

    fn pages(&self, _inode: u64, _begin: u64, _end: u64) -> LocalFuture {
        Box::pin(async {})
    }

    fn grown(&self, _inode: u64, _size: u64) -> LocalFuture {
        Box::pin(async {})
    }
}

/// The settings of a client.
#[derive(Clone)]
pub struct ClientConfig {
    /// The name that the client gives itself.
    pub name: String,
    /// The time an operation waits for a server that is down, before it fails with `EIO`.
    pub patience: Duration,
    /// Takes lines for people; one for each longer wait among them.
    pub log: Rc<dyn Fn(&str)>,
    /// Bytes of file content in flight.
    pub transfer_bytes: usize,
    /// Inodes that are remembered without being open; more are given back, oldest first.
    pub inodes_max: usize,
    /// Changes of size and times are reported after so long at the latest.
    pub report_after: Duration,
    /// The cluster's secret, for operators of this client's: nothing else needs it.
    pub secret: Option<Secret>,
}

impl Default for ClientConfig {
    fn default() -> ClientConfig {
        ClientConfig {
            name: "client".into(),
            patience: Duration::from_secs(60),
            log: Rc::new(|_| ()),
            transfer_bytes: 64 << 20,
            // More than a large directory has: a program that goes over it twice finds it the second time.
            inodes_max: 1 << 17,
            report_after: Duration::from_millis(500),
            secret: None,
        }
    }
}

/// Counts of calls, bytes and recalls, for tests and figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    pub meta_calls: u64,
    pub data_calls: u64,
    pub bytes_written: u64,
    pub bytes_read: u64,
    pub recalls: u64,
}

/// A client of a cluster. Cloning gives another handle.
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Rc<Inner>,
}

pub(crate) struct Inner {
    pub world: World,
    pub endpoint: LocalEndpoint,
    pub config: ClientConfig,
    /// The log, for lines that programs can provoke as often as they like.
    pub lines: Lines,
    /// This life of the client.
    pub number: u128,
    pub address: String,
    pub meta: Connection,
    pub pool: Pool,
    pub inodes: RefCell<BTreeMap<u64, Rc<Inode>>>,
    pub entries: RefCell<Entries>,
    /// Names that are looked up or removed at this moment.
    pub under_way: UnderWay,
    /// The attributes of inodes when this client took their last name, until they are forgotten.
    pub nameless: RefCell<BTreeMap<u64, Attributes>>,
    /// Data servers by id.
    pub servers: RefCell<BTreeMap<u32, DataServer>>,
    pub pools: RefCell<BTreeMap<u32, Rc<ServerPool>>>,
    /// The servers of groups, as far as known.
    pub map: RefCell<Rc<Map>>,
    pub pool_lock: Semaphore,
    pub invalidate: RefCell<Rc<dyn Invalidate>>,
    pub counts: Cell<Counts>,
    pub epoch: Cell<u32>,
    /// The token by which data servers know the session.
    pub token: Cell<u64>,
    pub recognition: Recognition,
    /// The root of the export of our sessions.
    pub root: Cell<Option<u64>>,
    /// One capability is asked for at a time.
    pub allowing: Semaphore,
    /// The session is bound to one user or to an export: files have capabilities.
    pub limited: Cell<bool>,
    pub boot: Cell<u64>,
    /// The life of the metadata server that knows all that we hold.
    pub reclaimed: Cell<u64>,
    /// The link to the metadata server was lost.
    pub down: ropewalk_base::task::Notify,
    /// The newest position that a reply told of.
    pub position: Cell<Position>,
    /// The durable position of each era of the metadata server, as far as known, the latest eras only.
    pub durable: RefCell<BTreeMap<u64, u64>>,
    pub term: Cell<Duration>,
    /// Until then the server keeps our leases and locks, whatever happens.
    pub sure_until: Cell<Time>,
    pub renewed: ropewalk_base::task::Notify,
    pub server_clock: ServerClock,
    pub locks: Locks,
    /// The process of a thread.
    pub processes: RefCell<Rc<dyn Fn(u32) -> u32>>,
    /// See `Client::set_unlocks`.
    pub unlocks: RefCell<Rc<dyn Fn(u64) -> LocalFuture>>,
    /// One session at a time is opened or reclaimed.
    pub session_lock: Semaphore,
    /// Locks that were granted while they were queued: inode, owner, start.
    pub granted: RefCell<Vec<(u64, u64, u64)>>,
    pub granted_notify: ropewalk_base::task::Notify,
    pub renewing: Cell<bool>,
    /// Requests under way that open a file.
    pub opening: Cell<usize>,
    /// Calls that no server answered in time.
    pub unanswered: Cell<u64>,
    /// Data servers that did not answer a read in time, until when others are preferred.
    pub slow: RefCell<BTreeMap<u32, Time>>,
    pub stopped: Cell<bool>,
    /// Leases and inodes that were not used for long are being given back.
    pub trimming: Cell<bool>,
    pub clock: Cell<u64>,
    /// In front of all calls.
    pub gate: Rc<Gate>,
    /// Calls of the session up to this number were another process's.
    pub sequence_begin: Cell<u64>,
}

impl Client {
    /// Connects to the cluster whose metadata server has this address, or one of these: see [`servers`].
    pub async fn connect(
        world: &World,
        endpoint: &LocalEndpoint,
        address: &str,
        config: ClientConfig,
    ) -> Result<Client, ClientError> {
        let client = Client::build(world, endpoint, address, config, world.random_u128())?;
        client.open_session().await?;
        client.serve_callbacks();
        client.watch_server();
        client.keep_session();
        client.keep_reporting();
        Ok(client)
    }

    /// A client without a session. `number`: this life of the client.
    pub(crate) fn build(
        world: &World,
        endpoint: &LocalEndpoint,
        address: &str,
        config: ClientConfig,
        number: u128,
    ) -> Result<Client, ClientError> {
        let peers = servers::look_up(endpoint, address)
            .map_err(|cause| ClientError::lookup(address, cause))?;
        let log = config.log.clone();
        let gate = Rc::new(Gate::default());
        let options = Options {
            limit: config.patience,
            on_wait: Rc::new(move |name| log(&format!("waiting for {name}"))),
            name: format!("the metadata server at {address}"),
            refuses_strangers: true,
            gate: Some(gate.clone()),
            ..Options::default()
        };
        let inner = Rc::new(Inner {
            world: world.clone(),
            endpoint: endpoint.clone(),
            lines: Lines::new(world, config.log.clone()),
            number,
            address: address.into(),
            meta: Connection::among(world, endpoint, peers, options),
            pool: Pool::with_budget(config.transfer_bytes * 2),
            inodes: RefCell::new(BTreeMap::new()),
            entries: RefCell::new(Entries::new(world.hash_seed())),
            trimming: Cell::new(false),
            under_way: UnderWay::default(),
            nameless: RefCell::new(BTreeMap::new()),
            servers: RefCell::new(BTreeMap::new()),
            pools: RefCell::new(BTreeMap::new()),
            map: RefCell::default(),
            pool_lock: Semaphore::new(1),
            invalidate: RefCell::new(Rc::new(Nothing)),
            counts: Cell::new(Counts::default()),
            epoch: Cell::new(0),
            token: Cell::new(0),
            recognition: Recognition::default(),
            root: Cell::new(None),
            allowing: Semaphore::new(1),
            limited: Cell::new(false),
            boot: Cell::new(0),
            reclaimed: Cell::new(0),
            down: ropewalk_base::task::Notify::new(),
            position: Cell::new(Position::default()),
            durable: RefCell::new(BTreeMap::new()),
            term: Cell::new(Duration::from_secs(10)),
            sure_until: Cell::new(Time::ZERO),
            renewed: ropewalk_base::task::Notify::new(),
            server_clock: ServerClock::default(),
            locks: Locks::default(),
            processes: RefCell::new(Rc::new(|thread| thread)),
            unlocks: RefCell::new(Rc::new(|_| Box::pin(async {}))),
            session_lock: Semaphore::new(1),
            granted: RefCell::new(Vec::new()),
            granted_notify: ropewalk_base::task::Notify::new(),
            renewing: Cell::new(false),
            opening: Cell::new(0),
            unanswered: Cell::new(0),
            slow: RefCell::default(),
            stopped: Cell::new(false),
            clock: Cell::new(0),
            gate,
            sequence_begin: Cell::new(0),
            config,
        });
        Ok(Client { inner })
    }

    /// Caches above this client that have to follow its leases.
    pub fn set_invalidate(&self, invalidate: Rc<dyn Invalidate>) {
        *self.inner.invalidate.borrow_mut() = invalidate;
    }

    /// The world in which it lives.
    pub fn world(&self) -> World {
        self.inner.world.clone()
    }

    /// Whether it was stopped: its session, with all that it held, is ending.
    pub fn is_stopped(&self) -> bool {
        self.inner.stopped.get()
    }

    /// The client's counters.
    pub fn counts(&self) -> Counts {
        self.inner.counts.get()
    }

    /// Memory for reading and writing.
    pub fn pool(&self) -> &Pool {
        &self.inner.pool
    }

    pub(crate) fn patience(&self) -> Patience {
        Patience::new(&self.inner.world, self.inner.config.patience)
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.inner.counts.get();
        change(&mut counts);
        self.inner.counts.set(counts);
    }

    pub(crate) fn invalidate(&self) -> Rc<dyn Invalidate> {
        self.inner.invalidate.borrow().clone()
    }
}
