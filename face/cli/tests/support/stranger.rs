//! Calls made by hand, as a program of a stranger's makes them: no library of the file system between.

use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::ids::{ClusterId, EndpointId, Incarnation};
use ropewalk_base::world::World;
use ropewalk_net::local::LocalEndpoint;
use ropewalk_net::reactor::Reactor;
use ropewalk_net::{Address, Endpoint, EndpointConfig};
use ropewalk_rail::Rail;
use ropewalk_rail_tcp::{TcpConfig, TcpRail};
use ropewalk_rpc::{CallError, Connection, Options, Proof, Secret, Terms};
use ropewalk_store::HostDisk;
use ropewalk_wire::fs::data::{DataReply, DataRequest, DataResult, ObjectRange};
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::head::{REPLY_BYTES_MAX, Service};
use ropewalk_wire::fs::meta::{Heartbeat, MetaReply, MetaRequest, MetaResult, Registration};
use ropewalk_wire::fs::session::{SessionReply, SessionRequest, SessionResult};
use ropewalk_wire::fs::trust::{Capability, Member, Role};
use ropewalk_wire::fs::value::{Bytes, Errno};
use ropewalk_wire::fs::{decode, encode};

/// An endpoint of its own, and a connection to one server.
pub struct Stranger {
    reactor: Reactor,
    world: World,
    endpoint: LocalEndpoint,
    meta: Connection,
    /// The endpoint, and which life of it.
    pub origin: (EndpointId, Incarnation),
}

/// The failure of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    Call(CallError),
    Errno(Errno),
}

impl Stranger {
    /// Somebody who calls the server at this address, over TCP alone.
    pub fn at(address: &str) -> Stranger {
        Stranger::as_endpoint(address, None)
    }

    /// Somebody who says that he is this endpoint, in this life of it, which some networks tell to all.
    pub fn posing(address: &str, endpoint: EndpointId, incarnation: Incarnation) -> Stranger {
        Stranger::as_endpoint(address, Some((endpoint, incarnation)))
    }

    fn as_endpoint(address: &str, other: Option<(EndpointId, Incarnation)>) -> Stranger {
        let reactor = Reactor::new().expect("a reactor");
        let world = reactor.world(HostDisk::shared(), 1).unwrap();
        let rails: Vec<Box<dyn Rail>> =
            vec![Box::new(TcpRail::open(TcpConfig::default()).expect("sockets"))];
        let mut config = EndpointConfig::new(ClusterId(0));
        config.service_thread = false;
        if let Some((endpoint, incarnation)) = other {
            (config.endpoint, config.incarnation) = (endpoint, incarnation);
        }
        let origin = (config.endpoint, config.incarnation);
        config.clock = reactor.shared_clock();
        let endpoint = Endpoint::open(config, rails).expect("an endpoint");
        let endpoint = LocalEndpoint::new(endpoint).expect("a local endpoint");
        reactor.add(Rc::new(endpoint.clone())).expect("the reactor takes it");
        let meta = connect(&world, &endpoint, address);
        Stranger { reactor, world, endpoint, meta, origin }
    }

    /// A connection of the same endpoint to another server.
    pub fn to(&self, address: &str) -> Connection {
        connect(&self.world, &self.endpoint, address)
    }

    /// Asks as the data server of this number, in possession of the secret.
    pub fn beat(&self, address: &str, secret: [u8; 32], beat: Heartbeat<'_>) -> Option<bool> {
        let member = Member { role: Role::Data, number: beat.server };
        let proof = Some(Proof { secret: Secret::new(secret), member });
        let server = connect_with(&self.world, &self.endpoint, address, proof);
        let mut body = Vec::new();
        encode(&MetaRequest::Heartbeat(beat), &mut body);
        let reply = self.reactor.block_on(server.call_free(Service::Meta, &body)).ok()?;
        match decode::<MetaResult<'_>>(reply.body()).expect("replies decode") {
            Ok(MetaReply::Registered(verdict)) => {
                Some(matches!(verdict, Registration::Taken { .. }))
            }
            _ => None,
        }
    }

    /// Opens a session under this name.
    pub fn open(&self, client: u128, name: &[u8]) -> Result<SessionReply, Refused> {
        self.session(&SessionRequest::Open { client, name: Bytes(name) })
    }

    /// From now on calls to the metadata server carry this session.
    pub fn take(&self, opened: SessionReply) -> (u64, u64) {
        let SessionReply::Opened { session, epoch, token, .. } = opened else {
            panic!("no session: {opened:?}");
        };
        self.meta.set_session(session, epoch, token);
        (session, token)
    }

    pub fn session(&self, request: &SessionRequest<'_>) -> Result<SessionReply, Refused> {
        let mut body = Vec::new();
        encode(request, &mut body);
        let call = self.meta.call_free(Service::Session, &body);
        let reply = self.reactor.block_on(call).map_err(Refused::Call)?;
        decode::<SessionResult>(reply.body()).expect("replies decode").map_err(Refused::Errno)
    }

    /// Asks the metadata server, in a session or (with none) outside of any.
    pub fn ask<T>(
        &self,
        session: Option<u64>,
        request: &MetaRequest<'_>,
        read: impl FnOnce(MetaReply<'_>) -> T,
    ) -> Result<T, Refused> {
        let mut body = Vec::new();
        encode(request, &mut body);
        let reply = self.reactor.block_on(async {
            match session {
                None => self.meta.call_free_with(Service::Meta, &body, REPLY_BYTES_MAX).await,
                Some(_) => self.meta.call(Service::Meta, &body).await,
            }
        });
        let reply = reply.map_err(Refused::Call)?;
        let result = decode::<MetaResult<'_>>(reply.body()).expect("replies decode");
        Ok(read(result.map_err(Refused::Errno)?))
    }

    /// Asks a data server, with a capability for a file.
    pub fn ask_data<T>(
        &self,
        server: &Connection,
        capability: Option<Capability>,
        request: &DataRequest<'_>,
        read: impl FnOnce(DataReply<'_>) -> T,
    ) -> Result<T, Refused> {
        let mut body = Vec::new();
        encode(request, &mut body);
        let map = self.map();
        let reply = self.reactor.block_on(async {
            match server.session() {
                0 => server.call_free(Service::Data, &body).await,
                _ => {
                    let terms = Terms { session: None, capability, map };
                    server.call_as(terms, Service::Data, &body).await
                }
            }
        });
        let reply = reply.map_err(Refused::Call)?;
        let result = decode::<DataResult<'_>>(reply.body()).expect("replies decode");
        Ok(read(result.map_err(Refused::Errno)?))
    }

    /// Uses a session that somebody else has.
    pub fn steal(&self, session: u64, token: u64) {
        self.meta.set_session(session, 1, token);
    }

    /// The epoch of the map.
    fn map(&self) -> u32 {
        let request = MetaRequest::GetMap { since: 0, from: 0, server: None, bytes_max: 1 };
        let read = |reply: MetaReply<'_>| match reply {
            MetaReply::Map { epoch, .. } => epoch,
            other => panic!("no map: {other:?}"),
        };
        self.ask(None, &request, read).expect("everybody may ask")
    }

    /// The addresses of the data servers of the newest pool: each has the band of its place in the list.
    pub fn data_servers(&self) -> Vec<String> {
        let read = |reply: MetaReply<'_>| match reply {
            MetaReply::Pool { servers, .. } => servers
                .iter()
                .map(|server| String::from_utf8_lossy(server.address.0).into_owned())
                .collect(),
            other => panic!("no pool: {other:?}"),
        };
        self.ask(None, &MetaRequest::GetPool { version: 0 }, read).expect("everybody may ask")
    }
}

/// A range of a stripe in a group of the data server that has this place among [`Stranger::data_servers`].
pub fn range(place: usize, stripe: u32) -> ObjectRange {
    ObjectRange { stripe, group: Group::of_band(place as u32, 0), offset: 0, len: 100 }
}

fn connect(world: &World, endpoint: &LocalEndpoint, address: &str) -> Connection {
    connect_with(world, endpoint, address, None)
}

fn connect_with(
    world: &World,
    endpoint: &LocalEndpoint,
    address: &str,
    proof: Option<Proof>,
) -> Connection {
    let tcp = address.split(',').find(|part| part.starts_with("tcp://")).expect("it has TCP");
    let parsed = Address::parse(tcp).expect("an address");
    let peer = endpoint.endpoint().lookup(&parsed).expect("room for a peer");
    let options = Options { limit: Duration::from_secs(20), proof, ..Options::default() };
    Connection::new(world, endpoint, peer, options)
}
