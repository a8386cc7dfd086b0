//! Data servers: finding them, calling them, checksums.

use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::abandon::Abandoned;
use ropewalk_base::checksum::crc32c;
use ropewalk_base::task::{Either, race};
use ropewalk_base::text::printable;
use ropewalk_net::Address;
use ropewalk_rpc::{CallError, Connection, Options, Reply, Terms};
use ropewalk_wire::fs::data::{BLOCK_BYTES, DataReply, DataRequest, DataResult};
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::head::Service;
use ropewalk_wire::fs::layout::{Layout, Pool};
use ropewalk_wire::fs::map::Map;
use ropewalk_wire::fs::meta::{MetaReply, MetaRequest};
use ropewalk_wire::fs::trust::Capability;
use ropewalk_wire::fs::value::Errno;
use ropewalk_wire::fs::{decode, encode};

use crate::call::unexpected;
use crate::client::Client;
use crate::guards::InDoubt;
use crate::inode::Inode;

/// Most bytes of a server's address that people are shown.
const ADDRESS_SHOWN_MAX: usize = 1024;
/// The pause before the address of an unknown server is asked for again.
const ADDRESS_PAUSE: Duration = Duration::from_millis(300);

/// The time a call waits before its server is looked for elsewhere.
const MOVED_PAUSE: std::time::Duration = std::time::Duration::from_secs(1);

/// A data server: where it is, and calls to it.
#[derive(Clone)]
pub(crate) struct DataServer {
    pub address: String,
    pub connection: Connection,
}

/// A server of a pool, as the client knows it.
pub(crate) struct Known {
    pub server: u32,
    pub address: String,
}

impl Client {
    /// The servers of a layout.
    pub(crate) async fn pool_of(&self, layout: &Layout) -> Result<Rc<Pool>, Errno> {
        if let Some(pool) = self.inner.pools.borrow().get(&layout.pool_version) {
            return Ok(pool.clone());
        }
        self.fetch_pool(layout.pool_version).await
    }

    pub(crate) async fn fetch_pool(&self, version: u32) -> Result<Rc<Pool>, Errno> {
        let _guard = self.inner.pool_lock.acquire().await;
        let (pool, servers) = self
            .ask(&MetaRequest::GetPool { version }, |reply| match reply {
                MetaReply::Pool { pool, servers } => {
                    let known = servers.iter().map(|server| Known {
                        server: server.server,
                        address: String::from_utf8_lossy(server.address.0).into_owned(),
                    });
                    Ok((pool, known.collect::<Vec<_>>()))
                }
                _ => unexpected(),
            })
            .await?;
        if !pool.is_valid() {
            return Err(Errno::EPROTO);
        }
        for known in servers {
            self.note_server(known);
        }
        let pool = Rc::new(pool);
        self.inner.pools.borrow_mut().insert(pool.version, pool.clone());
        Ok(pool)
    }

    pub(crate) fn note_server(&self, known: Known) {
        let inner = &*self.inner;
        let same = |server: &DataServer| server.address == known.address;
        if inner.servers.borrow().get(&known.server).is_some_and(same) {
            return;
        }
        let Ok(address) = Address::parse(&known.address) else { return };
        let Ok(peer) = inner.endpoint.endpoint().lookup(&address) else { return };
        let log = inner.config.log.clone();
        let options = Options {
            limit: inner.config.patience,
            on_wait: Rc::new(move |name| log(&format!("waiting for {name}"))),
            name: name_of(known.server, &known.address),
            gate: Some(inner.gate.clone()),
            ..Options::default()
        };
        let before = inner.servers.borrow().get(&known.server).map(|it| it.connection.clone());
        let connection = match before {
            Some(before) => before.moved(peer, options),
            None => {
                let new = Connection::new(&inner.world, &inner.endpoint, peer, options);
                new.set_session(inner.meta.session(), inner.epoch.get(), inner.token.get());
                new.go_on_from(inner.sequence_begin.get());
                new
            }
        };
        let server = DataServer { address: known.address, connection };
        inner.servers.borrow_mut().insert(known.server, server);
    }

    /// The version of a pool that names a server, and so comes with its address; 0, the newest, where none is known. The newest
    /// leaves out servers that are full.
    fn pool_with(&self, server: u32) -> u32 {
        let pools = self.inner.pools.borrow();
        let map = self.map();
        let named = pools.values().filter(|pool| map.has(pool, server));
        named.map(|pool| pool.version).max().unwrap_or(0)
    }

    pub(crate) async fn server(&self, server: u32) -> Result<DataServer, Errno> {
        let begin = self.inner.world.now();
        loop {
            if let Some(known) = self.inner.servers.borrow().get(&server) {
                return Ok(known.clone());
            }
            self.fetch_pool(self.pool_with(server)).await?;
            if self.inner.servers.borrow().contains_key(&server) {
                continue;
            }
            if self.inner.world.now().since(begin) >= self.inner.config.patience {
                break;
            }
            // It did not tell its address since the metadata server started.
            self.inner.world.sleep(ADDRESS_PAUSE).await;
        }
        self.inner.lines.say(&format!(
            "data server {server} has not registered with the metadata server; start it if it is \
             down"
        ));
        Err(self.gave_up(CallError::TimedOut))
    }

    /// Completes when the server is known to be at another address than this one.
    async fn moved(&self, server: u32, address: &str) {
        loop {
            self.inner.world.sleep(MOVED_PAUSE).await;
            // While the metadata server cannot be asked, nobody knows.
            let _ = self.fetch_pool(self.pool_with(server)).await;
            let known = self.inner.servers.borrow().get(&server).map(|known| known.address.clone());
            if known.is_some_and(|known| known != address) {
                return;
            }
        }
    }

    /// Asks a data server; `read` sees the reply while it is borrowed. With it comes the server's
    /// era.
    pub(crate) async fn ask_data<T>(
        &self,
        server: u32,
        request: &DataRequest<'_>,
        read: impl FnOnce(DataReply<'_>) -> Result<T, Errno>,
    ) -> Result<(T, u64), Errno> {
        let mut call = DataCall::new(server, request, &self.map());
        self.call_data(&mut call).await?;
        call.result(read)
    }

    /// As [`Client::ask_data`], of a server that does not order the groups: the call is not begun again with another one.
    pub(crate) async fn ask_member<T>(
        &self,
        server: u32,
        request: &DataRequest<'_>,
        read: impl FnOnce(DataReply<'_>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let mut call = DataCall::new(server, request, &self.map());
        self.call_server(&mut call).await?;
        call.result(read).map(|(answer, _)| answer)
    }

    /// As [`Client::ask_data`], for a change to a file's bytes that a lease of this session allows. If the
    /// session is another one by the time the call could leave, the call does not leave (`ESTALE`). If no
    /// answer comes, the inode is in doubt.
    pub(crate) async fn change_data<T>(
        &self,
        inode: &Inode,
        session: u64,
        server: u32,
        request: &DataRequest<'_>,
        read: impl FnOnce(DataReply<'_>) -> Result<T, Errno>,
    ) -> Result<(T, u64), Errno> {
        let doubt = InDoubt::new(inode);
        let mut call = DataCall::new(server, request, &self.map());
        call.session = Some(session);
        let outcome = self.call_data(&mut call).await;
        if call.answered {
            doubt.answered();
        }
        outcome?;
        call.result(read)
    }

    /// The capability that data servers are shown for a file: none, unless the session is bound.
    fn capability_for(&self, inode: u64) -> Option<Capability> {
        if !self.inner.limited.get() || inode == 0 {
            return None;
        }
        self.inner.inodes.borrow().get(&inode).and_then(|inode| inode.capability.get())
    }

    /// Asks for another capability than an old one, unless another call has got one meanwhile. `ESTALE`: the file has
    /// another content, or the session is another one.
    async fn renew_capability(
        &self,
        (inode, generation): (u64, u32),
        old: Option<Capability>,
    ) -> Result<(), Errno> {
        let _turn = self.inner.allowing.acquire().await;
        if self.capability_for(inode) != old {
            return Ok(());
        }
        let session = self.inner.meta.session();
        let request = MetaRequest::Allow { inode };
        let allowed = self.ask(&request, |reply| match reply {
            MetaReply::Allowed { capability, generation } => Ok((capability, generation)),
            _ => unexpected(),
        });
        let (capability, current) = allowed.await?;
        if self.inner.meta.session() != session {
            return Err(Errno::ESTALE);
        }
        if let Some(inode) = self.inner.inodes.borrow().get(&inode) {
            inode.capability.set(capability);
        }
        if current == generation { Ok(()) } else { Err(Errno::ESTALE) }
    }

    async fn call_data(&self, call: &mut DataCall) -> Result<(), Errno> {
        let (server, groups) = (call.server, std::mem::take(&mut call.groups));
        if groups.is_empty() {
            return self.call_server(call).await;
        }
        match race(self.call_server(call), self.deposed(server, &groups)).await {
            Either::Left(outcome) => outcome,
            // Nobody knows what became of the call: it begins again where the group is now.
            Either::Right(()) => Err(Errno::ESTALE),
        }
    }

    async fn call_server(&self, call: &mut DataCall) -> Result<(), Errno> {
        self.count(|counts| counts.data_calls += 1);
        // Transfers hold large buffers: they do not wait for a server where nobody waits for them.
        let abandoned = Abandoned::current().filter(|_| call.holds_much);
        let (begin, mut renewed) = (self.inner.world.now(), false);
        let (session, outcome) = loop {
            let known = match self.server(call.server).await {
                Ok(known) => known,
                Err(errno) => {
                    // A server that went elsewhere has no calls that were sent to its old place.
                    call.answered = true;
                    return Err(errno);
                }
            };
            let session = call.session.unwrap_or(known.connection.session());
            let capability = self.capability_for(call.file.0);
            let terms = Terms { session: call.session, capability, map: call.map };
            let asked = known.connection.call_as(terms, Service::Data, &call.body);
            // A server that was started again elsewhere has nothing of the call that went to where
            // it was: the call goes to where it is now.
            let answered = race(asked, self.moved(call.server, &known.address));
            let ended = match &abandoned {
                None => answered.await,
                Some(abandoned) => match race(answered, abandoned.wait()).await {
                    Either::Left(ended) => ended,
                    Either::Right(()) => return Err(Errno::EINTR),
                },
            };
            match ended {
                Either::Left(Err(CallError::OldCapability)) => {
                    if self.inner.world.now().since(begin) >= self.inner.config.patience {
                        return Err(self.gave_up(CallError::TimedOut));
                    }
                    if renewed {
                        // The server has yet to hear of the clock by which it was given.
                        self.inner.world.sleep(ADDRESS_PAUSE).await;
                    }
                    renewed = true;
                    self.renew_capability(call.file, capability).await?;
                }
                Either::Left(outcome) => break (session, outcome),
                Either::Right(()) => {}
            }
        };
        match outcome {
            Ok(reply) => {
                (call.reply, call.answered) = (Some(reply), true);
                Ok(())
            }
            Err(CallError::Fenced | CallError::NoSession) => {
                call.answered = true;
                self.lost_session(session).await?;
                Err(Errno::ESTALE)
            }
            Err(CallError::OtherMap(epoch)) => {
                call.answered = true;
                self.fetch_map(epoch).await?;
                if self.map().epoch < epoch {
                    // The metadata server is about to tell of it.
                    self.inner.world.sleep(ADDRESS_PAUSE).await;
                }
                Err(Errno::ESTALE)
            }
            Err(error) => Err(self.gave_up(error)),
        }
    }
}

/// A call to a data server.
struct DataCall {
    server: u32,
    /// The epoch of the map that named the server.
    map: u32,
    body: Vec<u8>,
    /// Groups that another server may come to order.
    groups: Vec<Group>,
    /// Inode and generation of the file whose bytes are read or changed; 0 where it is about none, or several.
    file: (u64, u32),
    holds_much: bool,
    /// The session in whose name the call goes; None: the current session.
    session: Option<u64>,
    /// Nothing can come of it any more that its reply does not tell.
    answered: bool,
    reply: Option<Reply>,
}

impl DataCall {
    fn new(server: u32, request: &DataRequest<'_>, map: &Map) -> DataCall {
        let mut body = Vec::with_capacity(256);
        encode(request, &mut body);
        let holds_much = matches!(request, DataRequest::Read { .. } | DataRequest::Write { .. });
        let file = match request {
            DataRequest::Read { file, .. }
            | DataRequest::Write { file, .. }
            | DataRequest::Punch { file, .. }
            | DataRequest::Truncate { file, .. } => (file.inode, file.generation),
            _ => (0, 0),
        };
        let all: Vec<Group> = match request {
            DataRequest::Read { pieces, .. }
            | DataRequest::Write { pieces, .. }
            | DataRequest::Punch { pieces, .. } => pieces.iter().map(|piece| piece.group).collect(),
            DataRequest::Sync { groups, .. } => groups.clone(),
            _ => Vec::new(),
        };
        let may_move = |it: &Group| map.membership(*it).is_some() || it.server().is_some();
        let groups = all.into_iter().filter(may_move).collect();
        let (session, answered, reply) = (None, false, None);
        let map = map.epoch;
        DataCall { server, map, body, groups, file, holds_much, session, answered, reply }
    }

    fn result<T>(
        &self,
        read: impl FnOnce(DataReply<'_>) -> Result<T, Errno>,
    ) -> Result<(T, u64), Errno> {
        let reply = self.reply.as_ref().ok_or(Errno::EIO)?;
        match decode::<DataResult<'_>>(reply.body()) {
            Ok(Ok(answer)) => Ok((read(answer)?, reply.head.era)),
            Ok(Err(errno)) => Err(errno),
            Err(_) => Err(Errno::EPROTO),
        }
    }
}

/// Checksums of a piece: one for each run of its bytes within a block, little endian.
pub(crate) fn checksums(bytes: &[u8], offset: u32, out: &mut Vec<u8>) {
    let mut at = offset % BLOCK_BYTES;
    let mut rest = bytes;
    while !rest.is_empty() {
        let run = rest.len().min((BLOCK_BYTES - at) as usize);
        out.extend_from_slice(&crc32c(&rest[..run]).to_le_bytes());
        rest = &rest[run..];
        at = 0;
    }
}

/// A data server as people are told of it. Its address is its own words.
fn name_of(server: u32, address: &str) -> String {
    format!("data server {server} at {}", printable(address.as_bytes(), ADDRESS_SHOWN_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_servers_address_adds_no_line_to_a_log() {
        let name = name_of(9, "tcp://a:1\ntcp://b:1,tcp://\u{1b}[2J\u{202e}");
        assert_eq!(name, "data server 9 at tcp://a:1\\x0atcp://b:1,tcp://\\x1b[2J\\u{202e}");
    }
}
