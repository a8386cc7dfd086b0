//! A cluster as its operator sees it: the status that servers report of themselves, and whether their data
//! fit together. Outside of sessions, so that it neither takes leases nor waits for those of others.
//!
//! * [`status`]: lives, room, counters, sessions;
//! * [`metas`]: the metadata servers, where there are several;
//! * [`check`]: inodes compared with objects;
//! * [`dump`]: all metadata, for a file;
//! * [`exports`]: which clients may do what;
//! * [`moves`]: groups that move, and servers that go.
//!
//! Invariant: memory is bounded by pages, whatever the cluster holds.

pub mod check;
pub mod dump;
pub mod exports;
mod judge;
pub mod metas;
pub mod moves;
mod scrub;
pub mod status;
pub mod upgrade;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::ids::ClusterId;
use ropewalk_base::world::World;
use ropewalk_net::Address;
use ropewalk_net::local::LocalEndpoint;
use ropewalk_rpc::{CallError, Connection, Options, Proof, Reply, Secret, servers};
use ropewalk_wire::fs::data::{DataReply, DataRequest, DataResult};
use ropewalk_wire::fs::head::{REPLY_BYTES_MAX, Service};
use ropewalk_wire::fs::layout::{Layout, Pool};
use ropewalk_wire::fs::map::{Map, News, PART_BYTES};
use ropewalk_wire::fs::meta::{MetaReply, MetaRequest, MetaResult};
use ropewalk_wire::fs::standby::{StandbyReply, StandbyRequest, StandbyResult};
use ropewalk_wire::fs::trust::{Member, Role};
use ropewalk_wire::fs::value::Errno;
use ropewalk_wire::fs::{decode, encode};

use crate::client::Client;
use crate::error::ClientError;
use crate::places::Places;

/// Room that is asked for in replies with pages of entries, in bytes.
const PAGE_BYTES: u32 = 128 << 10;

/// Why an operator's request came to nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperatorError {
    #[error(
        "{server} does not answer: start it ('ropewalk up DIR', or 'ropewalk serve'), or correct the address"
    )]
    Silent { server: String },
    #[error(
        "data server {server} has not reported since the metadata server started: start it, or \
         correct the address by which it calls the metadata server (--meta)"
    )]
    Unheard { server: u32 },
    #[error("{server} refuses the request: {errno}")]
    Refused { server: String, errno: Errno },
    #[error(
        "{server} does this for administrators only: run the command on the server's host as root \
         or as the server's user, or name a copy of the cluster's file 'cluster' (--cluster-file \
         FILE)"
    )]
    NotAdministrator { server: String },
    #[error(
        "{server} and the file given by --cluster-file do not have the same secret: copy the file \
         'cluster' from the metadata server's host again"
    )]
    OtherSecret { server: String },
    #[error(
        "{server} and this command did not prove who they are: name a key file of the server's cluster \
         (--key-file FILE), and compare the clocks of both hosts"
    )]
    OtherKeys { server: String },
    #[error("{server} serves another cluster ({found}): check the address")]
    OtherCluster { server: String, found: ClusterId },
    #[error(
        "{server} does not speak the expected protocol: check the address, and that both sides run \
         the same version of Ropewalk"
    )]
    Version { server: String },
}

impl OperatorError {
    /// The server could not read the rows or objects that were asked for.
    fn is_damage(&self) -> bool {
        matches!(self, OperatorError::Refused { errno: Errno::EIO, .. })
    }
}

/// A server that answers requests.
struct Server {
    /// For people.
    name: String,
    address: String,
    connection: Connection,
}

/// Asks the servers of a cluster.
pub struct Operator {
    world: World,
    endpoint: LocalEndpoint,
    /// The time limit of a server's answer.
    patience: Duration,
    /// The proof of membership by which servers know that the caller is allowed to ask.
    proof: Option<Proof>,
    meta: Rc<Server>,
    /// Each metadata server apart.
    metas: Vec<Server>,
    data: RefCell<BTreeMap<u32, Rc<Server>>>,
    pools: RefCell<BTreeMap<u32, Rc<Pool>>>,
    map: RefCell<Rc<Map>>,
}

impl Operator {
    /// An operator of the cluster whose metadata server has this address. Nothing is asked yet; `patience` is
    /// the time limit of each answer. With the cluster's secret it may send requests that only administrators
    /// may send. Without, servers on its own host check the user of its process.
    pub fn new(
        world: &World,
        endpoint: &LocalEndpoint,
        address: &str,
        patience: Duration,
        secret: Option<Secret>,
    ) -> Result<Operator, ClientError> {
        let peers = servers::look_up(endpoint, address)
            .map_err(|cause| ClientError::lookup(address, cause))?;
        let name = format!("the metadata server at {address}");
        let member = Member { role: Role::Administrator, number: 0 };
        let proof = secret.map(|secret| Proof { secret, member });
        let options = Options {
            limit: patience,
            name: name.clone(),
            refuses_strangers: true,
            proof: proof.clone(),
            ..Options::default()
        };
        let apart = servers::names(address).zip(&peers).map(|(address, peer)| Server {
            name: format!("the metadata server at {address}"),
            address: address.to_string(),
            connection: Connection::new(world, endpoint, *peer, options.clone()),
        });
        let metas = apart.collect();
        let connection = Connection::among(world, endpoint, peers, options);
        Ok(Operator {
            proof,
            world: world.clone(),
            endpoint: endpoint.clone(),
            patience,
            meta: Rc::new(Server { name, address: address.to_string(), connection }),
            metas,
            data: RefCell::default(),
            pools: RefCell::default(),
            map: RefCell::default(),
        })
    }

    /// Lets a data server of this number join the cluster. False where it is one already.
    pub async fn admit(&self, server: u32) -> Result<bool, OperatorError> {
        let request = MetaRequest::Admit { server };
        let done = |reply: MetaReply<'_>, _| matches!(reply, MetaReply::Done).then_some(());
        match self.ask_meta(&request, done).await {
            Ok(()) => Ok(true),
            Err(OperatorError::Refused { errno: Errno::EEXIST, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Has the standby metadata server serve. False where there is none that has all.
    pub async fn switch(&self) -> Result<bool, OperatorError> {
        let (server, mut body) = (&*self.meta, Vec::new());
        encode(&StandbyRequest::Switch, &mut body);
        let reply = self.call(server, Service::Standby, &body).await?;
        match decode::<StandbyResult<'_>>(reply.body()) {
            Ok(Ok(StandbyReply::Done)) => Ok(true),
            Ok(Err(Errno::ENODEV)) => Ok(false),
            Ok(Err(errno)) => Err(refused(server, errno)),
            Ok(Ok(_)) | Err(_) => Err(version(server)),
        }
    }

    /// The metadata server, for people.
    pub fn name(&self) -> &str {
        &self.meta.name
    }

    /// Notes where a data server is. False where that is no address.
    fn note_server(&self, id: u32, address: &str) -> bool {
        if self.data.borrow().get(&id).is_some_and(|known| known.address == address) {
            return true;
        }
        let Ok(parsed) = Address::parse(address) else { return false };
        let Ok(peer) = self.endpoint.endpoint().lookup(&parsed) else { return false };
        let name = format!("data server {id} at {address}");
        let (limit, proof) = (self.patience, self.proof.clone());
        let options = Options { limit, name: name.clone(), proof, ..Options::default() };
        let connection = Connection::new(&self.world, &self.endpoint, peer, options);
        let server = Server { name, address: address.to_string(), connection };
        self.data.borrow_mut().insert(id, Rc::new(server));
        true
    }

    /// A pool version.
    async fn pool(&self, version: u32) -> Result<Rc<Pool>, OperatorError> {
        if let Some(pool) = self.pools.borrow().get(&version) {
            return Ok(pool.clone());
        }
        let pool = self
            .ask_meta(&MetaRequest::GetPool { version }, |reply, _| match reply {
                MetaReply::Pool { pool, .. } if pool.is_valid() => Some(Rc::new(pool)),
                _ => None,
            })
            .await?;
        self.pools.borrow_mut().insert(version, pool.clone());
        Ok(pool)
    }

    /// The places of a layout's stripes.
    async fn places(&self, layout: &Layout) -> Result<Places, OperatorError> {
        let pool = self.pool(layout.pool_version).await?;
        let known = || Places::new(layout, pool.clone(), self.map.borrow().clone());
        if let Some(places) = known() {
            return Ok(places);
        }
        self.learn_map().await?;
        known().ok_or_else(|| version(&self.meta))
    }

    /// Asks for what is new in the map.
    async fn learn_map(&self) -> Result<(), OperatorError> {
        let mut news = News::of(&self.map.borrow());
        loop {
            let News { since, from, .. } = news;
            let request = MetaRequest::GetMap { since, from, server: None, bytes_max: PART_BYTES };
            let taken = |reply: MetaReply<'_>, _| match reply {
                MetaReply::Map { epoch, bands, end } => news.take(epoch, bands, end).ok(),
                _ => None,
            };
            if self.ask_meta(&request, taken).await? {
                break;
            }
        }
        *self.map.borrow_mut() = Rc::new(news.map());
        Ok(())
    }

    /// Asks the metadata server; `read` sees the reply and the server's boot id.
    async fn ask_meta<T>(
        &self,
        request: &MetaRequest<'_>,
        read: impl FnOnce(MetaReply<'_>, u64) -> Option<T>,
    ) -> Result<T, OperatorError> {
        let mut body = Vec::new();
        encode(request, &mut body);
        let server = &*self.meta;
        let reply = self.call(server, Service::Meta, &body).await?;
        let decoded = decode::<MetaResult<'_>>(reply.body());
        let decoded = decoded.map_err(|_| version(server))?;
        let answer = decoded.map_err(|errno| refused(server, errno))?;
        read(answer, reply.head.boot).ok_or_else(|| version(server))
    }

    /// Asks a data server; `read` sees the reply and the server's boot id.
    async fn ask_data<T>(
        &self,
        id: u32,
        request: &DataRequest<'_>,
        read: impl FnOnce(DataReply<'_>, u64) -> Option<T>,
    ) -> Result<T, OperatorError> {
        let server = self.data.borrow().get(&id).cloned();
        let Some(server) = server else {
            return Err(OperatorError::Silent { server: format!("data server {id}") });
        };
        let mut body = Vec::new();
        encode(request, &mut body);
        let reply = self.call(&server, Service::Data, &body).await?;
        let decoded = decode::<DataResult<'_>>(reply.body());
        let decoded = decoded.map_err(|_| version(&server))?;
        let answer = decoded.map_err(|errno| refused(&server, errno))?;
        read(answer, reply.head.boot).ok_or_else(|| version(&server))
    }

    async fn call(
        &self,
        server: &Server,
        service: Service,
        body: &[u8],
    ) -> Result<Reply, OperatorError> {
        let call = server.connection.call_free_with(service, body, REPLY_BYTES_MAX);
        match self.world.timeout(self.patience, call).await {
            Some(Ok(reply)) => Ok(reply),
            Some(Err(CallError::Malformed)) => Err(version(server)),
            Some(Err(CallError::Unproven)) => {
                Err(OperatorError::NotAdministrator { server: server.name.clone() })
            }
            Some(Err(CallError::Untrusted)) => {
                Err(OperatorError::OtherSecret { server: server.name.clone() })
            }
            Some(Err(CallError::OtherKeys)) => {
                Err(OperatorError::OtherKeys { server: server.name.clone() })
            }
            Some(Err(CallError::OtherCluster(found))) => {
                Err(OperatorError::OtherCluster { server: server.name.clone(), found })
            }
            Some(Err(_)) | None => Err(OperatorError::Silent { server: server.name.clone() }),
        }
    }
}

impl Client {
    /// An operator of this client's cluster, on the client's endpoint.
    pub fn operator(&self, patience: Duration) -> Result<Operator, ClientError> {
        let inner = &*self.inner;
        let secret = inner.config.secret.clone();
        Operator::new(&inner.world, &inner.endpoint, &inner.address, patience, secret)
    }
}

fn version(server: &Server) -> OperatorError {
    OperatorError::Version { server: server.name.clone() }
}

fn refused(server: &Server, errno: Errno) -> OperatorError {
    let server = server.name.clone();
    match errno {
        Errno::EPERM => OperatorError::NotAdministrator { server },
        errno => OperatorError::Refused { server, errno },
    }
}
