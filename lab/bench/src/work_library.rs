//! Work through the client library, without a mount: one client on one thread.
//!
//! Invariants
//! * `depth` operations are under way at any time, each begun when one has ended.
//! * A worker is a session of its own: it remembers nothing that an earlier worker's leases covered, so that it asks
//!   a server for all data.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, anyhow, ensure};
use ropewalk_base::ids::ClusterId;
use ropewalk_base::level::Level;
use ropewalk_base::task::join_all;
use ropewalk_client::{
    Access, Attributes, Caller, Client, ClientConfig, Errno, File, OpenOptions, RenameMode,
};
use ropewalk_net::local::LocalEndpoint;
use ropewalk_net::reactor::Reactor;
use ropewalk_net::{Endpoint, EndpointConfig, PayloadModes, Security};
use ropewalk_rail::Rail;
use ropewalk_rail_shm::{ShmConfig, ShmRail};
use ropewalk_rail_tcp::{TcpConfig, TcpRail};
use ropewalk_store::HostDisk;

use crate::embed::{Embedded, Embedder};
use crate::order::Order;
use crate::work_files::{LARGE, check_stamp, stamp};
use crate::worker::{Work, serve};

pub const BOTH: OpenOptions =
    OpenOptions { access: Access { read: true, write: true }, truncate: false, append: false };
/// Threads for blocking work of a client, which has none.
const THREADS: usize = 1;

/// A client with all that carries it.
pub struct Session {
    pub reactor: Reactor,
    pub client: Client,
    endpoint: LocalEndpoint,
    embedded: Option<Box<dyn Embedded>>,
    pub caller: Caller,
}

fn rails() -> anyhow::Result<Vec<Box<dyn Rail>>> {
    Ok(vec![
        Box::new(ShmRail::open(ShmConfig::default())?),
        Box::new(TcpRail::open(TcpConfig::default())?),
    ])
}

impl Session {
    /// Connects to the cluster at `address`, or to one of this process below `embedded`.
    pub fn open(order: &Order, embedder: &dyn Embedder) -> anyhow::Result<Session> {
        let embedded = match order.has("embedded") {
            true => {
                let servers = order.get("data_servers")?;
                Some(embedder.start(order.text("embedded")?.as_ref(), servers)?)
            }
            false => None,
        };
        let (id, address, rails) = match &embedded {
            Some(cluster) => (cluster.id(), cluster.address(), cluster.client_rails()?),
            None => (ClusterId(0), order.text("address")?.to_string(), rails()?),
        };
        let reactor = Reactor::new()?;
        let world = reactor.world(HostDisk::shared(), THREADS)?;
        let mut config = EndpointConfig::new(id);
        config.service_thread = false;
        if order.has("keys") {
            config.security = Security::from_file(order.text("keys")?.as_ref())?;
            let mode = order.text("payload").unwrap_or("crc").parse();
            config.payload = PayloadModes::all(mode.map_err(|error: String| anyhow!(error))?);
        }
        config.clock = reactor.shared_clock();
        let endpoint = LocalEndpoint::new(Endpoint::open(config, rails)?)?;
        reactor.add(Rc::new(endpoint.clone()))?;
        let usual = ClientConfig::default();
        let config = ClientConfig {
            name: "bench".into(),
            log: Rc::new(|line| eprintln!("client: {}", Level::split(line).1)),
            inodes_max: order.get("inodes_max").unwrap_or(usual.inodes_max),
            ..usual
        };
        let client = reactor.block_on(Client::connect(&world, &endpoint, &address, config))?;
        Ok(Session { reactor, client, endpoint, embedded, caller: Caller::root() })
    }

    pub fn close(self) {
        self.reactor.block_on(self.client.stop());
        self.endpoint.endpoint().close();
        if let Some(cluster) = self.embedded {
            cluster.stop();
        }
    }

    /// Runs `one` for each number below `count`, `depth` at a time.
    fn pump<F: Future<Output = anyhow::Result<usize>>>(
        &self,
        (count, depth): (u64, u64),
        one: impl Fn(u64) -> F,
    ) -> anyhow::Result<Work> {
        let work = Rc::new(RefCell::new(Work::begin()));
        let next = Cell::new(0);
        let lane = async || {
            while next.get() < count {
                let number = next.replace(next.get() + 1);
                let begin = Instant::now();
                let bytes = one(number).await?;
                work.borrow_mut().note(begin, bytes);
            }
            anyhow::Ok(())
        };
        for end in self.reactor.block_on(join_all((0..depth).map(|_| lane()))) {
            end?;
        }
        let mut work = work.take();
        work.lanes = depth;
        work.end();
        Ok(work)
    }

    /// The directory of an order; made where it is missing.
    pub fn folder(&self, order: &Order) -> anyhow::Result<Attributes> {
        let path = order.text("folder")?.as_bytes();
        let made = self.client.make_directories(&self.caller, path, 0o755);
        self.reactor.block_on(made).map_err(|errno| failed("make the directory", errno))
    }

    fn open_file(&self, order: &Order, new: bool) -> anyhow::Result<File> {
        let (folder, name) = (self.folder(order)?.inode, order.text("name")?.as_bytes());
        let (client, caller) = (&self.client, &self.caller);
        let opened = self.reactor.block_on(async {
            if new {
                let made = client.create(caller, folder, name, 0o644, true, BOTH).await?;
                return Ok(made.1);
            }
            let found = client.lookup(caller, folder, name).await?;
            client.open(caller, found.inode, BOTH).await
        });
        opened.map_err(|errno| failed("open the file", errno))
    }
}

pub fn failed(what: &str, errno: Errno) -> anyhow::Error {
    anyhow!("cannot {what}: {errno}")
}

/// Does what `order` says, as a worker. `None`: it is not of this kind.
pub fn work(order: &Order, embedder: &dyn Embedder) -> Option<anyhow::Result<()>> {
    let kind = order.kind.strip_prefix("library ")?;
    let act: fn(&Session, &Order) -> anyhow::Result<()> = match kind {
        "write" => write,
        "read" => read,
        "ready" => return Some(ready(order, embedder)),
        "remove" => remove,
        "names" => names,
        "reconnect" => reconnect,
        _ => return None,
    };
    Some(Session::open(order, embedder).and_then(|session| {
        act(&session, order)?;
        session.close();
        Ok(())
    }))
}

/// Transfers of 1 MiB: into a new file, or over what is there.
fn write(session: &Session, order: &Order) -> anyhow::Result<()> {
    let file = session.open_file(order, !order.has("existing"))?;
    let (count, depth) = (order.get("count")?, order.get("depth")?);
    serve(|| {
        session.pump((count, depth), async |number| {
            let pool = session.client.pool();
            let mut buffer = pool.take(LARGE).context("no memory for a transfer")?;
            stamp(&mut buffer, number);
            let offset = number * LARGE as u64;
            let written = session.client.write(&file, offset, buffer, 0..LARGE).await;
            written.map_err(|errno| failed("write", errno))?;
            Ok(LARGE)
        })
    })?;
    // Not measured, and wanted: the next worker finds all that was written.
    let synced = session.reactor.block_on(session.client.sync(&file));
    synced.map_err(|errno| failed("sync", errno))
}

fn read(session: &Session, order: &Order) -> anyhow::Result<()> {
    let file = session.open_file(order, false)?;
    let (count, depth) = (order.get("count")?, order.get("depth")?);
    serve(|| {
        session.pump((count, depth), async |number| {
            let buffer = session.client.pool().take(LARGE).context("no memory for a transfer")?;
            let read = session.client.read(&file, number * LARGE as u64, buffer).await;
            let (buffer, len) = read.map_err(|errno| failed("read", errno))?;
            ensure!(len == LARGE, "a read of {LARGE} bytes ended after {len}");
            check_stamp(&buffer, number)?;
            Ok(LARGE)
        })
    })
}

fn remove(session: &Session, order: &Order) -> anyhow::Result<()> {
    let (folder, name) = (session.folder(order)?.inode, order.text("name")?.as_bytes());
    serve(|| {
        let mut work = Work::begin();
        let removed = session.client.unlink(&session.caller, folder, name);
        session.reactor.block_on(removed).map_err(|errno| failed("remove", errno))?;
        work.operations = 1;
        work.end();
        Ok(work)
    })
}

/// One kind of operation on many names of one directory.
fn names(session: &Session, order: &Order) -> anyhow::Result<()> {
    let folder = session.folder(order)?.inode;
    let (client, caller) = (&session.client, &session.caller);
    let (count, depth) = (order.get("count")?, order.get("depth")?);
    let bytes = order.get::<usize>("bytes").unwrap_or(0);
    let (what, prefix) = (order.text("what")?, order.text("name")?);
    let name = |number: u64| format!("{prefix}{number}").into_bytes();
    serve(|| {
        let before = client.counts();
        let mut work = session.pump((count, depth), async |number| {
            let name = name(number);
            let done = match what {
                "create" => match client.create(caller, folder, &name, 0o644, true, BOTH).await {
                    Ok((_, file, _)) if bytes > 0 => fill(client, &file, bytes).await,
                    made => made.map(drop),
                },
                "stat" => client.lookup(caller, folder, &name).await.map(drop),
                "open" => match client.lookup(caller, folder, &name).await {
                    Ok(found) => {
                        client.open(caller, found.inode, OpenOptions::READ).await.map(drop)
                    }
                    Err(errno) => Err(errno),
                },
                "fill" => match client.lookup(caller, folder, &name).await {
                    Ok(found) => match client.open(caller, found.inode, BOTH).await {
                        Ok(file) => fill(client, &file, bytes).await,
                        Err(errno) => Err(errno),
                    },
                    Err(errno) => Err(errno),
                },
                "rename" => {
                    let new = [&name[..], b".renamed"].concat();
                    let plain = RenameMode::Replace;
                    client.rename(caller, folder, &name, folder, &new, plain).await
                }
                "unlink" => {
                    let new = [&name[..], b".renamed"].concat();
                    client.unlink(caller, folder, &new).await
                }
                _ => Err(Errno::ENOSYS),
            };
            done.map_err(|errno| failed(what, errno))?;
            Ok(bytes)
        })?;
        work.extra = client.counts().data_calls - before.data_calls;
        Ok(work)
    })
}

/// Writes so many bytes into a new file, and makes sure that they are where they belong.
async fn fill(client: &Client, file: &File, bytes: usize) -> Result<(), Errno> {
    let mut at = 0;
    while at < bytes {
        let len = (bytes - at).min(LARGE);
        let buffer = client.pool().take(len).ok_or(Errno::ENOMEM)?;
        client.write(file, at as u64, buffer, 0..len).await?;
        at += len;
    }
    Ok(())
}

/// From nothing in this process to the first answer.
fn ready(order: &Order, embedder: &dyn Embedder) -> anyhow::Result<()> {
    let session = Cell::new(None);
    serve(|| {
        let mut work = Work::begin();
        let begin = Instant::now();
        let opened = Session::open(order, embedder)?;
        first(&opened)?;
        work.note(begin, 0);
        work.end();
        session.set(Some(opened));
        Ok(work)
    })?;
    if let Some(session) = session.take() {
        session.close();
    }
    Ok(())
}

fn first(session: &Session) -> anyhow::Result<()> {
    let asked = session.client.status();
    session.reactor.block_on(asked).map(drop).map_err(|errno| failed("ask", errno))
}

/// A client that lives through a server's death: from the word to the first answer.
fn reconnect(session: &Session, _order: &Order) -> anyhow::Result<()> {
    first(session)?;
    serve(|| {
        let mut work = Work::begin();
        let begin = Instant::now();
        first(session)?;
        work.note(begin, 0);
        work.end();
        Ok(work)
    })
}
