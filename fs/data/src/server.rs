//! The life of a data server.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::pool::Pool;
use ropewalk_base::task::Semaphore;
use ropewalk_base::world::World;
use ropewalk_net::Address;
use ropewalk_net::local::LocalEndpoint;
use ropewalk_rpc::slots::SlotTable;
use ropewalk_rpc::{Connection, Options, Server};
use ropewalk_store::objects::ObjectStore;
use ropewalk_store::superblock::{self, ClaimedDirectory, Identity, Role};
use ropewalk_wire::fs::encode;
use ropewalk_wire::fs::head::Service;
use ropewalk_wire::fs::meta::MetaRequest;
use ropewalk_wire::fs::value::Bytes;

use crate::config::{DataConfig, DataError};

/// Bytes of one piece of a pipelined transfer.
pub(crate) const PIECE_BYTES: usize = 1 << 20;

/// What was done, for status and tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    pub requests: u64,
    pub bytes_written: u64,
    pub bytes_read: u64,
    /// Writes whose bytes did not have their checksums when they arrived.
    pub corrupt_arrivals: u64,
}

/// A running data server.
pub struct DataServer {
    pub(crate) world: World,
    pub(crate) endpoint: LocalEndpoint,
    pub(crate) config: DataConfig,
    pub(crate) store: ObjectStore,
    pub(crate) slots: RefCell<SlotTable>,
    /// Newest write epochs that were seen, by inode: older ones are refused.
    pub(crate) epochs: RefCell<BTreeMap<u64, u32>>,
    /// Fences by session, as this life of the server knows them: the store has all of them.
    pub(crate) fences: RefCell<BTreeMap<u64, u32>>,
    pub(crate) pool: Pool,
    /// Permits for pieces in flight.
    pub(crate) room: Semaphore,
    pub(crate) counts: Cell<Counts>,
    stopped: Cell<bool>,
    _directory: ClaimedDirectory,
}

impl DataServer {
    /// Starts a server; it serves when this completes.
    pub async fn start(
        world: &World,
        endpoint: LocalEndpoint,
        config: DataConfig,
    ) -> Result<Rc<DataServer>, DataError> {
        let identity =
            Identity { cluster: config.cluster, server: config.server, role: Role::Data };
        let disk = world.disk();
        let random = (world.random_u64(), world.random_u128());
        let directory =
            superblock::claim(&*disk, &config.directory, identity, config.expect, random)?;
        let objects = config.directory.join("objects");
        let (store, _) = ObjectStore::open(&objects, config.objects.clone(), world).await?;
        let permits = (config.transfer_bytes / PIECE_BYTES).max(2);
        let server = Rc::new(DataServer {
            world: world.clone(),
            endpoint: endpoint.clone(),
            store,
            slots: RefCell::new(SlotTable::default()),
            epochs: RefCell::new(BTreeMap::new()),
            fences: RefCell::new(BTreeMap::new()),
            // Rounding to size classes may double a buffer.
            pool: Pool::with_budget(config.transfer_bytes * 2 + (8 << 20)),
            room: Semaphore::new(permits),
            counts: Cell::new(Counts::default()),
            stopped: Cell::new(false),
            _directory: directory,
            config,
        });
        Server::start(world, endpoint, server.clone());
        if !server.config.meta.is_empty() {
            server.clone().keep_telling()?;
        }
        Ok(server)
    }

    /// What was done since the start.
    pub fn counts(&self) -> Counts {
        self.counts.get()
    }

    /// The object store, for looking at it.
    pub fn store(&self) -> &ObjectStore {
        &self.store
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    /// Tells the metadata server again and again that this one lives, and how much room it has.
    fn keep_telling(self: Rc<Self>) -> Result<(), DataError> {
        let address = &self.config.meta;
        let parsed = Address::parse(address)
            .map_err(|cause| DataError::Address { address: address.clone(), cause })?;
        let peer = self.endpoint.endpoint().lookup(&parsed).map_err(|_| DataError::NoPeer)?;
        let options = Options {
            // A heartbeat that is late is replaced by the next one.
            limit: Duration::from_secs(5),
            on_wait: Rc::new(|_| ()),
            name: format!("the metadata server at {address}"),
        };
        let connection = Connection::new(&self.world, &self.endpoint, peer, options);
        let world = self.world.clone();
        world.clone().spawn(async move {
            let mut silent = false;
            while !self.stopped.get() {
                let answered = self.tell(&connection).await;
                if answered == silent {
                    silent = !answered;
                    let state = if silent { "does not answer" } else { "answers again" };
                    (self.config.log)(&format!("the metadata server {state}"));
                }
                world.sleep(self.config.heartbeat).await;
            }
        });
        Ok(())
    }

    async fn tell(&self, connection: &Connection) -> bool {
        let space = self.store.space().unwrap_or_default();
        let mut body = Vec::new();
        let request = MetaRequest::Heartbeat {
            server: self.config.server.0,
            boot: self.store.boot(),
            total_bytes: space.total,
            available_bytes: space.available,
            address: Bytes(self.endpoint.endpoint().addresses().as_bytes()),
        };
        encode(&request, &mut body);
        connection.call_free(Service::Meta, &body).await.is_ok()
    }

    /// Stops in good order: what is in memory goes to disk, so that the next start has nothing to
    /// replay.
    pub async fn stop(&self) {
        self.stopped.set(true);
        if let Err(error) = self.store.checkpoint().await {
            (self.config.log)(&format!("at the end: {error}"));
        }
    }
}
