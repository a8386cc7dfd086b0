//! Calls to other data servers, sent until they are answered or mean nothing any more.

use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::task::{Either, Receiver, oneshot, race};
use ropewalk_net::Address;
use ropewalk_rpc::{CallError, Connection, Options, Proof, Terms};
use ropewalk_wire::fs::data::DataResult;
use ropewalk_wire::fs::decode;
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::head::Service;
use ropewalk_wire::fs::trust::{Member, Role};
use ropewalk_wire::fs::value::Errno;

use super::place::Place;
use crate::server::Inner;

/// The pause before an unknown address is asked for again, or a call that was turned away is made again.
const PAUSE: Duration = Duration::from_millis(50);
/// A call without an answer for so long asks whether its server is elsewhere.
const MOVED_PAUSE: Duration = Duration::from_secs(1);
/// Calls end with an answer, or with the map.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Another data server.
pub(super) struct Peer {
    address: Vec<u8>,
    connection: Connection,
}

/// The end of a call to another server of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Sent {
    /// The body of the reply.
    Done(Vec<u8>),
    Refused(Errno),
    /// The server is not in one of the groups any more, or this server does not order it any more.
    Gone,
}

impl Inner {
    /// Makes a call to another server of a group. It goes on where nobody waits for it.
    pub(super) fn send(&self, group: Group, server: u32, body: Rc<[u8]>) -> Receiver<Sent> {
        self.send_about(group, Vec::new(), server, body)
    }

    /// As [`Inner::send`], of a call that also names other groups of both servers, which this one orders.
    pub(super) fn send_about(
        &self,
        group: Group,
        others: Vec<Group>,
        server: u32,
        body: Rc<[u8]>,
    ) -> Receiver<Sent> {
        let (sender, receiver) = oneshot();
        let inner = self.this();
        *self.mirror.outstanding.borrow_mut().entry((group, server)).or_default() += 1;
        self.world.spawn(async move {
            let sent = inner.call_server(group, &others, server, &body).await;
            let mut outstanding = inner.mirror.outstanding.borrow_mut();
            let count = outstanding.get_mut(&(group, server)).expect("it was counted");
            *count -= 1;
            if *count == 0 {
                outstanding.remove(&(group, server));
            }
            drop(outstanding);
            inner.mirror.changed.notify_all();
            sender.send(sent);
        });
        receiver
    }

    async fn call_server(&self, group: Group, others: &[Group], server: u32, body: &[u8]) -> Sent {
        loop {
            let (map, holds) = {
                let groups = self.groups.borrow();
                let holds =
                    groups.ordered(group).is_some_and(|it| it.holders().any(|it| it == server));
                let is_in =
                    |it: &Group| matches!(self.place(*it, server), Place::Member | Place::Hearing);
                (groups.epoch(), holds && others.iter().all(is_in))
            };
            if !holds || self.stopping.get() {
                return Sent::Gone;
            }
            let Some((address, connection)) = self.peer(server).await else {
                self.world.sleep(PAUSE).await;
                continue;
            };
            let terms = Terms { map, ..Terms::default() };
            let call = connection.call_as(terms, Service::Data, body);
            match race(call, self.moved(server, &address)).await {
                Either::Left(Ok(reply)) => match decode::<DataResult<'_>>(reply.body()) {
                    Ok(Ok(_)) => return Sent::Done(reply.body().to_vec()),
                    Ok(Err(errno)) => return Sent::Refused(errno),
                    Err(_) => return Sent::Refused(Errno::EPROTO),
                },
                Either::Left(Err(CallError::OtherMap(_))) => {
                    // It knows a newer map, or is about to learn this one.
                    self.map_wanted.notify_all();
                    self.world.sleep(PAUSE).await;
                }
                Either::Left(Err(_)) => self.world.sleep(PAUSE).await,
                Either::Right(()) => {}
            }
        }
    }

    /// Whether the link to another server, which has answered before, is lost.
    pub(super) fn is_linkless(&self, server: u32) -> bool {
        self.mirror.peers.borrow().get(&server).is_some_and(|it| it.connection.is_linkless())
    }

    /// Whether another server is known to speak a version.
    pub(super) fn speaks(&self, server: u32, version: u16) -> bool {
        self.version_of(server).is_some_and(|newest| newest >= version)
    }

    /// Whether another server is known not to speak a version.
    pub(super) fn is_former(&self, server: u32, version: u16) -> bool {
        self.version_of(server).is_some_and(|newest| newest < version)
    }

    /// The newest version that another server speaks, as far as it is known.
    fn version_of(&self, server: u32) -> Option<u16> {
        let (peers, callers) = (self.mirror.peers.borrow(), self.mirror.callers.borrow());
        let answered = peers.get(&server).and_then(|peer| peer.connection.newest());
        answered.into_iter().chain(callers.get(&server).copied()).min()
    }

    /// The address of a server and the connection to it; None while nobody knows it.
    pub(super) async fn peer(&self, server: u32) -> Option<(Vec<u8>, Connection)> {
        let known = |inner: &Inner| {
            let peers = inner.mirror.peers.borrow();
            peers.get(&server).map(|peer| (peer.address.clone(), peer.connection.clone()))
        };
        if let Some(known) = known(self) {
            return Some(known);
        }
        self.look_up(server).await;
        known(self)
    }

    /// Completes when a server is known to be at another address.
    async fn moved(&self, server: u32, address: &[u8]) {
        loop {
            self.world.sleep(MOVED_PAUSE).await;
            self.look_up(server).await;
            let peers = self.mirror.peers.borrow();
            if peers.get(&server).is_some_and(|peer| peer.address != address) {
                return;
            }
        }
    }

    /// Asks the metadata server where a server is.
    async fn look_up(&self, server: u32) {
        let Some(herald) = &self.herald else { return };
        let Some(address) = herald.address_of(server).await else { return };
        let text = String::from_utf8_lossy(&address).into_owned();
        let Ok(parsed) = Address::parse(&text) else { return };
        let Ok(peer) = self.endpoint.endpoint().lookup(&parsed) else { return };
        let mut peers = self.mirror.peers.borrow_mut();
        if peers.get(&server).is_some_and(|known| known.address == address) {
            return;
        }
        let member = Member { role: Role::Data, number: self.server };
        let options = Options {
            limit: FOR_EVER,
            name: format!("data server {server}"),
            proof: Some(Proof { secret: self.secret.clone(), member }),
            ..Options::default()
        };
        let connection = match peers.get(&server) {
            Some(before) => before.connection.moved(peer, options),
            None => {
                let new = Connection::new(&self.world, &self.endpoint, peer, options);
                // The upper half of a boot id counts the starts: later lives have larger numbers.
                new.set_session(self.boot, 0, 0);
                new
            }
        };
        peers.insert(server, Peer { address, connection });
    }
}
