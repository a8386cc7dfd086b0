//! A cluster in one process: each server on a thread of its own, joined by the loop form of shared
//! memory. Client and servers talk through `net`, as separate processes would.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, bail};
use ropewalk_base::ids::{ClusterId, ServerId};
use ropewalk_base::task::{Either, race};
use ropewalk_data::{DataConfig, DataServer, Scrub, WitnessConfig};
use ropewalk_meta::{MetaConfig, MetaNode, MetaServer, NodeConfig, Witness};
use ropewalk_net::local::LocalEndpoint;
use ropewalk_rail::Rail;
use ropewalk_rail_shm::{ShmConfig, ShmRail};
use ropewalk_rpc::servers;
use ropewalk_store::HostDisk;
use ropewalk_store::superblock::{self, Expect};

use crate::beside;
use crate::etcd::Etcd;
use crate::identity::{self, Identity};
use crate::log;
use crate::node::{self, Node, NodeThread};
use crate::report::complain;
use crate::told::{Network, OwnDisk, Report};
use crate::witness::WitnessPlace;

/// The time that a starting data server waits until the metadata server knows it.
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
        .with_context(|| format!("cannot open shared memory under the name '{name}'"))?;
    Ok(vec![Box::new(rail)])
}

/// A name that no other cluster of this process has.
fn unique(role: &str) -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{role}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The place of a metadata server's rows, and its settings.
pub struct MetaPlace {
    pub directory: PathBuf,
    pub cluster: Identity,
    /// The time for which a silent client keeps what it holds; `None`: the usual time.
    pub term: Option<Duration>,
    /// Whether there have to be metadata.
    pub expect: Expect,
    /// The user gives up what damage of the journal took away.
    pub accept_loss: bool,
    /// There are several metadata servers.
    pub election: Option<Election>,
}

/// One of several metadata servers, and the others.
pub struct Election {
    pub number: u32,
    /// The addresses of all metadata servers, by number.
    pub servers: String,
    pub witness: WitnessPlace,
    pub lease: Duration,
    /// Whether one goes on without the others.
    pub alone: bool,
}

impl Election {
    /// The others, as the endpoint knows them.
    fn look_up(&self, endpoint: &LocalEndpoint, cluster: ClusterId) -> anyhow::Result<NodeConfig> {
        node::reach_all(endpoint, &self.servers)?;
        let numbers = (0..).zip(servers::look_up(endpoint, &self.servers)?);
        let witness = match &self.witness {
            WitnessPlace::Server(number, address) => {
                node::reach_all(endpoint, address)?;
                let peer = servers::look_up(endpoint, address)?.first().copied();
                peer.map(|peer| Witness::Server(*number, peer))
            }
            WitnessPlace::Etcd(members) => {
                let register = Etcd::start(members.clone(), cluster, self.lease)?;
                Some(Witness::Register(register))
            }
        };
        Ok(NodeConfig {
            others: numbers.filter(|(number, _)| *number != self.number).collect(),
            witness,
            lease: self.lease,
            alone: self.alone,
            founds: false,
        })
    }
}

/// The configuration of a metadata server of this user.
pub fn meta_config(place: MetaPlace) -> MetaConfig {
    let MetaPlace { directory, cluster, term, expect, accept_loss, election } = place;
    let log = log::of("metadata server");
    let store = MetaConfig::new(directory, cluster.id, cluster.secret);
    let mut config = MetaConfig { log, expect, accept_loss, ..store };
    config.server = ServerId(election.map_or(0, |it| it.number));
    // The user that runs the servers owns the root directory: a plain user can write in his own cluster.
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    config.shard.root_owner = (user.as_raw(), group.as_raw());
    if let Some(term) = term {
        config.shard.term = term;
        // Ends are noticed in time.
        config.tick = config.tick.min(term / 4).max(Duration::from_millis(100));
    }
    config
}

/// Says once at a start that others of this host can read a store: those that are made now are private.
fn warn_of_readers(role: &str, directory: &Path) {
    let Ok(found) = std::fs::metadata(directory) else { return };
    let mode = found.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let path = directory.display();
        complain!(
            "{role}: other users of this host can access {path} (mode {mode:03o}), and may read \
             files there without permission: close it by 'chmod -R go= {path}'"
        );
    }
}

/// A metadata server's life.
pub async fn serve_meta(node: Node, place: MetaPlace) {
    warn_of_readers("metadata server", &place.directory);
    if let Some(election) = &place.election {
        return match election.look_up(&node.endpoint, place.cluster.id) {
            Ok(others) => serve_elected(node, meta_config(place), others).await,
            Err(error) => node.ready.failed(&error),
        };
    }
    let endpoint = node.endpoint.clone();
    match MetaServer::start(&node.world, node.endpoint, meta_config(place)).await {
        Ok(server) => {
            node.ready.serving();
            let tell = || {
                let (status, network) = (server.report().map(Box::new), Network::of(&endpoint));
                Report::Meta { status, node: None, disk: None, network }
            };
            node.inquiry.answer_until(node.stop, tell).await;
            if let Err(error) = server.stop().await {
                complain!("metadata server: {error}");
            }
        }
        Err(error) => node.ready.failed(&error),
    }
}

/// The life of one of several metadata servers.
async fn serve_elected(node: Node, config: MetaConfig, others: NodeConfig) {
    let (endpoint, node_world) = (node.endpoint.clone(), node.world.clone());
    let directory = config.directory.clone();
    match MetaNode::start(&node.world, node.endpoint, config, others).await {
        Ok(server) => {
            node.ready.serving();
            let tell = || {
                let active = server.active();
                let status = active.and_then(|active| active.report()).map(Box::new);
                let (node, network) = (Some(server.state()), Network::of(&endpoint));
                let disk = status.is_none().then(|| OwnDisk::of(&node_world, &directory));
                Report::Meta { status, node, disk, network }
            };
            let serving = node.inquiry.answer_until(node.stop, tell);
            if let Either::Right(failure) = race(serving, server.failed()).await {
                return node.ready.failed(&failure);
            }
            if let Err(error) = server.stop().await {
                complain!("metadata server: {error}");
            }
        }
        Err(error) => node.ready.failed(&error),
    }
}

/// Settings of a data server that follow from options and the config file.
#[derive(Debug, Clone)]
pub struct DataSettings {
    /// Its failure domain.
    pub domain: String,
    pub scrub: Option<Scrub>,
}

/// A data server, and the place of its objects.
pub struct DataPlace {
    pub directory: PathBuf,
    pub cluster: Identity,
    pub server: ServerId,
    /// The user gives up what an earlier store of this number had.
    pub replace: bool,
    /// The user takes it in, though the cluster did not have its number yet.
    pub admit: bool,
    pub settings: DataSettings,
    /// It votes, too, and promises for so long.
    pub witness: Option<Duration>,
    /// It stops while others go on, and tells them.
    pub leaves: bool,
}

/// A data server's life.
pub async fn serve_data(node: Node, place: DataPlace, meta: String) {
    let DataPlace { directory, cluster, server, replace, admit, settings, witness, leaves } = place;
    let role = format!("data server {server}");
    warn_of_readers(&role, &directory);
    if let Err(error) = node::reach_all(&node.endpoint, &meta) {
        return node.ready.failed(&error);
    }
    let peers = match servers::look_up(&node.endpoint, &meta) {
        Ok(peers) => peers,
        Err(error) => return node.ready.failed(&error),
    };
    let config = DataConfig {
        meta: peers,
        log: log::of(&role),
        expect: if replace { Expect::Replace } else { Expect::Any },
        admit,
        domain: settings.domain,
        scrub: settings.scrub,
        witness: witness.map(|lease| WitnessConfig { lease }),
        ..DataConfig::new(directory, cluster.id, server, cluster.secret)
    };
    let (ready, mut stop, endpoint) = (node.ready, node.stop, node.endpoint.clone());
    let mut starting = pin!(DataServer::start(&node.world, node.endpoint, config));
    let started = match node.world.timeout(JOINING, starting.as_mut()).await {
        Some(started) => started,
        None => {
            // It waits for its metadata server, which may be started after us.
            ready.serving();
            match race(&mut stop, starting).await {
                Either::Left(_) => return,
                Either::Right(started) => started,
            }
        }
    };
    let server = match started {
        Ok(server) => server,
        Err(error) => return ready.failed(&error),
    };
    // A user that starts several servers wants the first file to find them all.
    let joined = node.world.timeout(JOINING, server.joined());
    let mut refusal = race(joined, server.refused()).await.right();
    if refusal.is_none() {
        ready.serving();
        let tell = || {
            let (status, network) = (server.report().map(Box::new), Network::of(&endpoint));
            Report::Data { status, network }
        };
        let serving = node.inquiry.answer_until(stop, tell);
        refusal = race(serving, server.refused()).await.right();
    }
    if leaves && refusal.is_none() {
        server.leave().await;
    }
    if let Err(error) = server.stop().await {
        complain!("{role}: {error}");
    }
    if let Some(refusal) = refusal {
        ready.failed(&refusal);
    }
}

impl Cluster {
    /// Starts one metadata server and so many data servers below `directory`.
    pub fn start(directory: &Path, data_servers: u32) -> anyhow::Result<Cluster> {
        // The cluster's identity is kept beside the servers: a restart finds the same one.
        let (identity, expect) = found_or_new(directory)?;
        let id = identity.id;
        let (place, name) = (directory.join(META), unique("meta"));
        let (term, accept_loss, cluster) = (None, false, identity.clone());
        let election = None;
        let place = MetaPlace { directory: place, cluster, term, expect, accept_loss, election };
        let serve = move |node| serve_meta(node, place);
        let meta = NodeThread::start("meta", id, rails(&name)?, serve)?;
        identity::write(directory, &identity)?;
        let mut data = Vec::new();
        for number in 0..data_servers {
            let name = format!("data{number}");
            let place = DataPlace {
                directory: directory.join(&name),
                cluster: identity.clone(),
                server: ServerId(number),
                replace: false,
                admit: true,
                settings: DataSettings { domain: name.clone(), scrub: None },
                witness: None,
                leaves: false,
            };
            let (rails, address) = (rails(&unique("data"))?, meta.address.clone());
            let serve = move |node| serve_data(node, place, address);
            data.push(NodeThread::start(&name, id, rails, serve)?);
        }
        write_data_servers(directory, data_servers)?;
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

/// The file in a cluster's directory that says how many data servers `up` serves.
const DATA_SERVERS: &str = "data-servers";
/// Data servers that one process serves, at most.
pub const DATA_SERVERS_MAX: u32 = 64;
/// The place of the metadata below a cluster's directory, unless something else is said.
pub const META: &str = "meta";

/// The cluster of the stores below a directory, or of the store in it.
pub fn known_below(directory: &Path) -> Option<ClusterId> {
    let stores = [directory.join(META), directory.to_path_buf()];
    let known = stores.iter().find_map(|store| superblock::look(&HostDisk, store).ok().flatten());
    let known = known.map(|(id, _)| id);
    known.or_else(|| data_below(directory).ok().flatten().map(|(_, id)| id))
}

/// The text in a small file; `Some(None)` where it is none, and None where there is no file.
#[allow(clippy::option_option)]
fn read_text(path: &Path) -> anyhow::Result<Option<Option<String>>> {
    let read = || -> std::io::Result<_> {
        let mut bytes = Vec::new();
        beside::open(OpenOptions::new().read(true), path)?.read_to_end(&mut bytes)?;
        Ok(Some(String::from_utf8(bytes).ok()))
    };
    match read() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        read => read.with_context(|| format!("cannot read {}", path.display())),
    }
}

/// The number of data servers below `directory`: the number that `up` noted, or the highest directory number
/// plus one if that is larger. A noted server's directory may be missing, and a server with a directory may not
/// be noted.
pub fn data_servers(directory: &Path) -> anyhow::Result<Option<u32>> {
    let path = directory.join(DATA_SERVERS);
    let noted = read_text(&path)?.map(|text| {
        let count = text.and_then(|text| text.trim().parse().ok());
        count.filter(|count| (1..=DATA_SERVERS_MAX).contains(count)).with_context(|| {
            format!(
                "{} is damaged: it must have the number of data servers; write that number into \
                 it, as one line of digits",
                path.display()
            )
        })
    });
    let noted = noted.transpose()?;
    let numbers = names_in(directory)?.into_iter().filter_map(|name| data_server_of(&name));
    Ok(noted.max(numbers.max().map(|last| last + 1)))
}

/// The number of the data server whose directory has this name in a cluster's.
fn data_server_of(name: &str) -> Option<u32> {
    let number = name.strip_prefix("data")?.parse().ok()?;
    (number < DATA_SERVERS_MAX && name == format!("data{number}")).then_some(number)
}

/// Notes how many data servers `up` serves below `directory`.
pub fn write_data_servers(directory: &Path, count: u32) -> anyhow::Result<()> {
    let path = directory.join(DATA_SERVERS);
    if read_text(&path)?.flatten().is_some_and(|text| text.trim() == count.to_string()) {
        return identity::keep_name(&path);
    }
    identity::write_line(&path, &count.to_string())
}

/// The identity of the cluster below `directory`, and whether its metadata have to be there. Without an
/// identity, a new one. It is written down only when there is a metadata store, so an earlier failure leaves
/// nothing behind.
pub fn found_or_new(directory: &Path) -> anyhow::Result<(Identity, Expect)> {
    if let Some(said) = identity::read(directory)? {
        return Ok((identity::complete(directory, said)?, Expect::Existing));
    }
    let data = data_below(directory)?;
    match (superblock::look(&HostDisk, &directory.join(META))?, data) {
        (Some((id, _)), Some(_)) => Ok((Identity::of(id), Expect::Existing)),
        // Somebody began to make it, and did not come to the end.
        (Some((id, _)), None) => Ok((Identity::of(id), Expect::Any)),
        (None, Some((name, id))) => bail!(
            "{} has file data of cluster {id} in {name}, but the metadata and the file 'cluster' \
             are missing: restore both from a backup, or give another directory",
            directory.display()
        ),
        (None, None) => match stranger_in(directory)? {
            None => Ok((Identity::new(), Expect::Any)),
            Some(name) => bail!(
                "{0} is not the directory of a cluster and is not empty (it contains '{name}'): \
                 give an empty or a new directory, for instance {0}/cluster",
                directory.display()
            ),
        },
    }
}

/// Names that may lie in a directory before a cluster is made there: the leftovers of a start that did not come
/// to its end, and the directory of a new file system.
const EARLY: [&str; 5] = [META, "cluster.new", "log", "running", "lost+found"];

/// Something in a directory that no cluster brought there.
fn stranger_in(directory: &Path) -> anyhow::Result<Option<String>> {
    let ours = |name: &String| EARLY.contains(&name.as_str()) || data_server_of(name).is_some();
    Ok(names_in(directory)?.into_iter().find(|name| !ours(name)))
}

/// The names in a directory, in order; none where it does not exist.
fn names_in(directory: &Path) -> anyhow::Result<Vec<String>> {
    let cannot = || format!("cannot list {}", directory.display());
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(cannot)?,
    };
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        Ok(entry.with_context(cannot)?.file_name().to_string_lossy().into_owned())
    };
    let mut names = entries.map(name).collect::<anyhow::Result<Vec<String>>>()?;
    names.sort_unstable();
    Ok(names)
}

/// A directory of a data server below this one, and its cluster.
fn data_below(directory: &Path) -> anyhow::Result<Option<(String, ClusterId)>> {
    for name in names_in(directory)? {
        if name.starts_with("data")
            && let Ok(Some((id, _))) = superblock::look(&HostDisk, &directory.join(&name))
        {
            return Ok(Some((name, id)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_servers_are_counted_by_their_directories_and_by_what_was_noted() {
        let place = tempfile::tempdir().expect("a directory");
        let count = || data_servers(place.path()).expect("it can be counted");
        assert_eq!(count(), None);
        // Others have names that begin so, too.
        for name in ["data2024", "data01", "database"] {
            std::fs::create_dir(place.path().join(name)).expect("made");
        }
        assert_eq!(count(), None);
        assert!(stranger_in(place.path()).expect("listed").is_some());
        std::fs::create_dir(place.path().join("data2")).expect("made");
        assert_eq!(count(), Some(3));
        write_data_servers(place.path(), 5).expect("noted");
        assert_eq!(count(), Some(5));
        write_data_servers(place.path(), 2).expect("noted");
        assert_eq!(count(), Some(3), "one joined, and was not noted");
        std::fs::write(place.path().join(DATA_SERVERS), "many").expect("written");
        assert!(data_servers(place.path()).is_err());
    }
}
