//! A cluster in one process: each server on a thread of its own, joined by the loop form of shared
//! memory. Client and servers talk through `net`, as separate processes would.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context;
use ropewalk_base::ids::{ClusterId, ServerId};
use ropewalk_data::{DataConfig, DataServer};
use ropewalk_meta::server::{MetaConfig, MetaServer};
use ropewalk_net::Address;
use ropewalk_rail::Rail;
use ropewalk_rail_shm::{ShmConfig, ShmRail};
use ropewalk_store::HostDisk;

use crate::node::{Node, NodeThread};
use crate::report::complain;

/// How long a data server that starts waits until the metadata server knows it.
const JOINING: Duration = Duration::from_secs(2);

/// A running cluster of this process.
pub struct Cluster {
    pub id: ClusterId,
    /// Of the metadata server.
    pub address: String,
    data: Vec<NodeThread>,
    meta: NodeThread,
}

fn rails(name: &str) -> anyhow::Result<Vec<Box<dyn Rail>>> {
    let rail = ShmRail::open(ShmConfig::within_process(name))
        .with_context(|| format!("no shared-memory rail '{name}'"))?;
    Ok(vec![Box::new(rail)])
}

/// A name that no other cluster of this process has.
fn unique(role: &str) -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{role}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

fn log(role: &str) -> Rc<dyn Fn(&str)> {
    let role = role.to_string();
    Rc::new(move |line| complain!("{role}: {line}"))
}

/// A metadata server's life. `term`: how long a client that is silent keeps what it holds; `None`:
/// as long as is usual.
pub async fn serve_meta(
    node: Node,
    directory: PathBuf,
    cluster: ClusterId,
    term: Option<Duration>,
) {
    let mut config =
        MetaConfig { log: log("metadata server"), ..MetaConfig::new(directory, cluster) };
    // Whoever runs the servers owns the root directory: a plain user's cluster is his to write in.
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    config.shard.root_owner = (user.as_raw(), group.as_raw());
    if let Some(term) = term {
        config.shard.term = term;
        // Ends are noticed in time.
        config.tick = config.tick.min(term / 4).max(Duration::from_millis(100));
    }
    match MetaServer::start(&node.world, node.endpoint, config).await {
        Ok(server) => {
            node.ready.serving();
            let tell = || {
                let calls: u64 = server.calls().values().sum();
                let sent = server.messages_to_data_servers().total();
                format!("calls={calls} data_messages={sent} syncs={}", HostDisk::syncs())
            };
            node.inquiry.answer_until(node.stop, tell).await;
            if let Err(error) = server.stop().await {
                complain!("metadata server: {error}");
            }
        }
        Err(error) => node.ready.failed(&error),
    }
}

/// A data server's life.
pub async fn serve_data(
    node: Node,
    directory: PathBuf,
    cluster: ClusterId,
    server: ServerId,
    meta: String,
) {
    let role = format!("data server {server}");
    let peer = match Address::parse(&meta) {
        Ok(address) => match node.endpoint.endpoint().lookup(&address) {
            Ok(peer) => peer,
            Err(fault) => return node.ready.failed(&fault),
        },
        Err(error) => return node.ready.failed(&error),
    };
    let config = DataConfig {
        meta: Some(peer),
        log: log(&role),
        ..DataConfig::new(directory, cluster, server)
    };
    match DataServer::start(&node.world, node.endpoint, config).await {
        Ok(server) => {
            // Whoever starts several wants the first file to find them all. A metadata server that
            // is not there yet is not waited for: it may be started after us.
            let _ = node.world.timeout(JOINING, server.joined()).await;
            node.ready.serving();
            let tell = || {
                let counters = server.counters();
                let (requests, wrong) = (counters.requests, counters.checksum_errors);
                format!("requests={requests} checksum_errors={wrong} syncs={}", HostDisk::syncs())
            };
            node.inquiry.answer_until(node.stop, tell).await;
            if let Err(error) = server.stop().await {
                complain!("{role}: {error}");
            }
        }
        Err(error) => node.ready.failed(&error),
    }
}

impl Cluster {
    /// Starts one metadata server and so many data servers below `directory`.
    pub fn start(directory: &Path, data_servers: u32) -> anyhow::Result<Cluster> {
        // The cluster's identity is kept beside the servers: a restart finds the same one.
        let id = identity(directory)?;
        let path = directory.join("meta");
        let name = unique("meta");
        let meta = NodeThread::start("meta", id, rails(&name)?, move |node| {
            serve_meta(node, path, id, None)
        })?;
        let mut data = Vec::new();
        for number in 0..data_servers {
            let path = directory.join(format!("data{number}"));
            let (name, address) = (unique("data"), meta.address.clone());
            let server = ServerId(number);
            data.push(NodeThread::start(
                &format!("data{number}"),
                id,
                rails(&name)?,
                move |node| serve_data(node, path, id, server, address),
            )?);
        }
        Ok(Cluster { id, address: meta.address.clone(), data, meta })
    }

    /// Rails for a client of this process.
    pub fn client_rails(&self) -> anyhow::Result<Vec<Box<dyn Rail>>> {
        rails(&unique("client"))
    }

    /// Stops all servers in good order.
    pub fn stop(mut self) {
        for server in &mut self.data {
            server.stop();
        }
        self.meta.stop();
    }
}

/// The file in a cluster's directory that has its identity.
pub const IDENTITY: &str = "cluster";

/// A cluster's identity as people write it.
pub fn parse_id(text: &str) -> Result<ClusterId, String> {
    u128::from_str_radix(text.trim(), 16)
        .map(ClusterId)
        .map_err(|_| "a cluster is named by up to 32 hexadecimal digits".to_string())
}

/// The identity of the cluster in `directory`; none where there is none.
pub fn read_identity(directory: &Path) -> anyhow::Result<Option<ClusterId>> {
    let path = directory.join(IDENTITY);
    match std::fs::read_to_string(&path) {
        Ok(text) => parse_id(&text).map(Some).map_err(|error| {
            anyhow::anyhow!("{} does not name a cluster: {error}", path.display())
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Gives `directory` an identity.
pub fn write_identity(directory: &Path, id: ClusterId) -> anyhow::Result<ClusterId> {
    std::fs::create_dir_all(directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let path = directory.join(IDENTITY);
    std::fs::write(&path, format!("{id}\n"))
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(id)
}

/// The identity of the cluster in `directory`; a new one where there is none.
pub fn identity(directory: &Path) -> anyhow::Result<ClusterId> {
    if let Some(id) = read_identity(directory)? {
        return Ok(id);
    }
    let high = u128::from(ropewalk_net::host::random_seed());
    let id = ClusterId(high << 64 | u128::from(ropewalk_net::host::random_seed()));
    write_identity(directory, id)
}
