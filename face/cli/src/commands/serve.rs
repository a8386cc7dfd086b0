//! `ropewalk serve`: one server, or all servers of a config file, until a signal comes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Arg;
use ropewalk_base::ids::{ClusterId, ServerId};
use ropewalk_rpc::servers;
use ropewalk_store::superblock::Expect;

use super::data_options::DataOptions;
use super::{LOOK, number, seconds};
use crate::cluster::{
    self, DataPlace, DataSettings, Election, MetaPlace, known_below, serve_data, serve_meta,
};
use crate::config::{Config, Source};
use crate::identity::{self, Identity};
use crate::metrics::{self, Exporter};
use crate::mounted::Mounted;
use crate::network::{self, Listen, complete_address, server_rails};
use crate::node::NodeThread;
use crate::report::announce;
use crate::stop::Stop;
use crate::{log, notify};

/// Which server to run.
#[derive(Debug, clap::Subcommand)]
pub enum Serve {
    /// Runs the metadata server.
    #[command(after_help = "Examples:
  ropewalk format /var/lib/ropewalk
  ropewalk serve meta --directory /var/lib/ropewalk/meta
  ropewalk serve meta --directory /var/lib/ropewalk/meta --insecure \\
           --listen ether://eth0/3,tcp://10.0.0.1:7700    raw Ethernet, and TCP

The server does not start if the directory is empty or missing: only 'ropewalk format' creates a \
file system.", mut_arg("listen", |arg| with_default(arg, "tcp://127.0.0.1:7700")))]
    Meta {
        #[command(flatten)]
        place: Place,
        /// Take leases and locks from a client that is silent for this long; a restarted server
        /// also waits this long for its former clients [default: 10].
        #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds)]
        term: Option<Duration>,
        /// Start although records in the metadata journal are damaged. The server drops the first
        /// damaged record and all records after it: files and names that were created since then
        /// are lost. Use it for one start only.
        #[arg(long)]
        accept_loss: bool,
        /// The number of this metadata server where the config file has a section for elections: its
        /// place among the servers of 'address', counted from 0.
        #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = number, default_value = "0")]
        number: u32,
        /// Begin with an empty directory, and copy the metadata from the active server. Use it for
        /// the first start of a further metadata server, or for one that lost its directory.
        #[arg(long)]
        join: bool,
    },
    /// Runs one data server.
    #[command(after_help = "Examples:
  ropewalk serve data --server 0 --directory /var/lib/ropewalk/data0 --admit
  ropewalk serve data --server 2 --directory /disk2/rope \\
           --cluster-file /etc/rope.cluster --meta tcp://node1:7700
  ropewalk serve data --server 3 --directory /disk3/rope --insecure \\
           --cluster-file /etc/rope.cluster \\
           --meta ether://02:00:00:00:00:01/3 --listen ether://eth0

A data server with a new number joins the cluster permanently, and new files use it. Therefore it \
must be admitted: by --admit, by 'ropewalk server add NUMBER', or by its section [[data]] in the \
config file. The cluster refuses a data server that comes back without its data, unless --replace \
gives that data up.", mut_arg("listen", |arg| with_default(arg, "tcp://127.0.0.1:0")))]
    Data {
        /// The number of this data server in the cluster, counted from 0.
        #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = number)]
        server: u32,
        #[command(flatten)]
        place: Place,
        /// The metadata server's address [default: that of the config file, or
        /// tcp://127.0.0.1:7700].
        #[arg(long, value_name = "URL")]
        meta: Option<String>,
        /// Give up the data of this data server and start it with an empty directory: every stripe
        /// on it is lost. Reading the files that had stripes there fails, and 'ropewalk check'
        /// lists them. Use it for one start only.
        #[arg(long)]
        replace: bool,
        /// Admit this server if its number is new to the cluster; it then belongs to the cluster
        /// permanently.
        #[arg(long)]
        admit: bool,
        #[command(flatten)]
        options: DataOptions,
    },
    /// Runs the metadata server and all data servers in one process.
    #[command(after_help = "Examples:
  ropewalk serve all --config ropewalk.toml                   uses a config file
  ropewalk serve all --directory /srv/rope --data-servers 4   uses none

'ropewalk format' must have created the directory. 'ropewalk up' runs a cluster without that step.",
        mut_arg("listen", |arg| with_default(arg, LISTEN_ALL)),
        mut_arg("directory", |arg| arg.help("Keep the whole cluster in this directory")))]
    All {
        #[command(flatten)]
        place: Place,
        /// Run this many data servers, numbered from 0, instead of those in the config file.
        #[arg(long, value_name = "COUNT", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=i64::from(cluster::DATA_SERVERS_MAX)))]
        data_servers: Option<u32>,
        /// Give up the data of data server NUMBER, as 'ropewalk serve data --replace' does. Can be
        /// given several times.
        #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = number)]
        replace: Vec<u32>,
        /// Start although records in the metadata journal are damaged, as 'ropewalk serve meta
        /// --accept-loss' does.
        #[arg(long)]
        accept_loss: bool,
        #[command(flatten)]
        options: DataOptions,
    },
}

const LISTEN_ALL: &str =
    "tcp://127.0.0.1:7700 for the metadata server, tcp://127.0.0.1:0 for each data server";

/// An argument whose help also gives its default.
fn with_default(arg: Arg, default: &str) -> Arg {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    arg.help(format!("{help} [default: {default}]"))
}

/// Where a server keeps its data, to whom it belongs, and where it listens.
#[derive(Debug, clap::Args)]
pub struct Place {
    /// Keep the data in this directory.
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Refuse to serve any other cluster than this one, given by the identity that 'ropewalk
    /// format' printed.
    #[arg(long, value_name = "ID", value_parser = identity::parse_id)]
    cluster: Option<ClusterId>,
    /// Use this copy of the file 'cluster' that 'ropewalk format' wrote. Its secret admits servers
    /// to the cluster, so nobody else may be able to read it (mode 600) [default: 'cluster' in the
    /// server's directory or in the one above].
    #[arg(long, value_name = "FILE")]
    cluster_file: Option<PathBuf>,
    /// Listen here: tcp://ADDRESS:PORT (or just ADDRESS:PORT), udp://ADDRESS:PORT or
    /// ether://INTERFACE/ENDPOINT. With port 0, or without an endpoint, the system chooses a free
    /// one. Separate several by commas; peers try them in this order. On a host with several
    /// interfaces, tcp://ADDRESS:PORT?interface=NAME&source=ADDRESS binds the sockets to one of
    /// them, and calls leave from there, too.
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    listen: Vec<Listen>,
    /// Allow listening at an address that other hosts can reach, though everybody who reaches it can
    /// act as any user. Not needed with --key-file, where payloads are protected (--payload).
    #[arg(long)]
    insecure: bool,
    /// Serve figures for Prometheus here, at http://ADDRESS/metrics. Only this host can read them
    /// unless --insecure is given.
    #[arg(long, value_name = "ADDRESS", value_parser = metrics::socket)]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    source: Source,
}

/// A server to be started.
pub struct Planned {
    pub directory: PathBuf,
    pub listen: Vec<Listen>,
}

/// A data server to be started.
pub struct PlannedData {
    pub number: u32,
    pub place: Planned,
    pub settings: DataSettings,
}

/// Servers of one process that are to be started.
pub struct Plan {
    pub cluster: Identity,
    pub meta: Planned,
    /// Whether there have to be metadata.
    pub expect: Expect,
    /// Gets the cluster's identity as soon as there are metadata.
    pub named: Option<PathBuf>,
    pub term: Option<Duration>,
    pub data: Vec<PlannedData>,
    /// Numbers of data servers whose former stores are given up.
    pub replace: Vec<u32>,
    /// The records that damage took from the metadata's journal are given up.
    pub accept_loss: bool,
    /// There are several metadata servers.
    pub election: Option<Election>,
    /// The data server that votes, too, and the time for which it promises.
    pub witness: Option<(u32, Duration)>,
}

/// All servers of a cluster below one directory; data servers listen at any places beside these.
pub fn below(
    directory: &Path,
    (cluster, expect): (Identity, Expect),
    listen: &[Listen],
    data_servers: u32,
    options: &DataOptions,
) -> Plan {
    let planned = |name: &str, listen| Planned { directory: directory.join(name), listen };
    let data = |number| {
        let place = planned(&format!("data{number}"), network::beside(listen));
        PlannedData { number, place, settings: options.of(None, number) }
    };
    let data = (0..data_servers).map(data).collect();
    let meta = planned(cluster::META, listen.to_vec());
    let named = Some(directory.to_path_buf());
    let (term, replace, accept_loss) = (None, Vec::new(), false);
    let (election, witness) = (None, None);
    Plan { cluster, meta, expect, named, term, data, replace, accept_loss, election, witness }
}

fn start_meta(plan: &mut Plan, insecure: bool) -> anyhow::Result<NodeThread> {
    let Plan { term, expect, accept_loss, .. } = *plan;
    let election = plan.election.take();
    let (directory, cluster) = (plan.meta.directory.clone(), plan.cluster.clone());
    let id = cluster.id;
    let place = MetaPlace { directory, cluster, term, expect, accept_loss, election };
    let rails = server_rails(&plan.meta.listen, insecure)?;
    NodeThread::start("meta", id, rails, move |node| serve_meta(node, place))
}

fn start_data(
    listen: &[Listen],
    place: DataPlace,
    meta: String,
    insecure: bool,
) -> anyhow::Result<NodeThread> {
    let rails = server_rails(listen, insecure)?;
    let (name, cluster) = (format!("data{}", place.server), place.cluster.id);
    NodeThread::start(&name, cluster, rails, move |node| serve_data(node, place, meta))
}

/// The servers of this process. Stopped in good order when dropped, data servers first.
pub struct Servers {
    /// With their numbers.
    data: Vec<(u32, NodeThread)>,
    meta: NodeThread,
}

impl Servers {
    /// Starts all of a plan.
    pub fn start(mut plan: Plan, insecure: bool) -> anyhow::Result<Servers> {
        let unknown = |number: &&u32| plan.data.iter().all(|known| known.number != **number);
        if let Some(number) = plan.replace.iter().find(unknown) {
            bail!("--replace {number}: this command does not start a data server {number}");
        }
        let meta = start_meta(&mut plan, insecure)?;
        if let Some(directory) = &plan.named {
            identity::write(directory, &plan.cluster)?;
        }
        let mut servers = Servers { data: Vec::new(), meta };
        for PlannedData { number, place: planned, settings } in plan.data {
            let place = DataPlace {
                directory: planned.directory,
                cluster: plan.cluster.clone(),
                server: ServerId(number),
                replace: plan.replace.contains(&number),
                // A user that starts all servers together wants them all.
                admit: true,
                settings,
                witness: plan.witness.filter(|(it, _)| *it == number).map(|(_, lease)| lease),
                leaves: false,
            };
            let address = servers.address().to_string();
            let started = start_data(&planned.listen, place, address, insecure)?;
            servers.data.push((number, started));
        }
        Ok(servers)
    }

    /// Serves the figures of all of them, where a place is given.
    pub fn export(&self, place: Option<metrics::Place>) -> anyhow::Result<Option<Exporter>> {
        let data = self.data.iter().map(|(number, it)| (format!("data{number}"), it.inquiry()));
        let servers = [("meta0".to_string(), self.meta.inquiry())].into_iter().chain(data);
        Exporter::start(place, servers.collect())
    }

    /// The address of the metadata server.
    pub fn address(&self) -> &str {
        &self.meta.address
    }

    /// Serves until a signal comes or a server cannot go on, then ends the mount (if there is one) and the servers.
    pub fn run_until(mut self, stop: &Stop, mounted: Option<Mounted>) -> anyhow::Result<()> {
        let mut failed = None;
        while !stop.is_asked() && failed.is_none() {
            std::thread::sleep(LOOK);
            let data = self.data.iter().map(|(_, thread)| thread);
            failed = data.chain([&self.meta]).find_map(NodeThread::failure);
        }
        notify::stopping();
        let ended = mounted.map_or(Ok(()), Mounted::stop);
        self.data.iter_mut().for_each(|(_, thread)| thread.stop());
        self.meta.stop();
        match failed {
            Some(error) => bail!(error),
            None => ended,
        }
    }
}

/// Runs what was asked for until a signal comes.
pub fn serve(what: &Serve) -> anyhow::Result<()> {
    log::begin();
    let stop = Stop::watch_aloud().context("cannot watch for signals")?;
    match what {
        Serve::Meta { place, term, accept_loss, number, join } => {
            let config = place.source.read()?;
            let election = election_of(&config, *number, *join)?;
            let meta = Planned {
                directory: place.directory(&config, config.meta.directory.as_ref(), "meta")?,
                listen: network::first(&[&place.listen, &config.meta.listen]),
            };
            // A further server is not where the cluster was made.
            let own = !*join && *number == 0;
            let mut plan = Plan {
                cluster: place.cluster(&config, &meta.directory, own)?,
                meta,
                expect: if *join { Expect::Any } else { Expect::Existing },
                named: None,
                term: term.or(config.term()),
                data: Vec::new(),
                replace: Vec::new(),
                accept_loss: *accept_loss,
                election,
                witness: None,
            };
            let metrics = place.metrics(&config)?;
            let thread = start_meta(&mut plan, place.insecure(&config))?;
            serve_one(thread, (format!("meta{number}"), metrics), &stop)
        }
        Serve::Data { server, place, meta, replace, admit, options } => {
            let config = place.source.read()?;
            let planned = place.data(&config, *server)?;
            let meta = meta.clone().map_or_else(|| config.meta_address(), Ok)?;
            let meta = complete_address(&meta)?;
            let cluster = place.cluster(&config, &planned.directory, false)?;
            let Planned { directory, listen } = planned;
            // The author of the configuration file wants the servers that it names.
            let section = config.section(*server);
            let (admit, settings) = (*admit || section.is_some(), options.of(section, *server));
            let witness = config.witness_lease(*server);
            let (name, metrics) = (format!("data{server}"), place.metrics(&config)?);
            let (server, replace) = (ServerId(*server), *replace);
            let insecure = place.insecure(&config);
            let leaves = true;
            let place =
                DataPlace { directory, cluster, server, replace, admit, settings, witness, leaves };
            serve_one(start_data(&listen, place, meta, insecure)?, (name, metrics), &stop)
        }
        Serve::All { place, data_servers, replace, accept_loss, options } => {
            let config = place.source.read()?;
            let mut plan = place.all(&config, *data_servers, options)?;
            plan.replace.clone_from(replace);
            plan.accept_loss = *accept_loss;
            let cluster = plan.cluster.id;
            let metrics = place.metrics(&config)?;
            let servers = Servers::start(plan, place.insecure(&config))?;
            let _exporter = servers.export(metrics)?;
            announce!("cluster {cluster} serves at {}", servers.address());
            notify::ready(&format!("serving at {}", servers.address()));
            servers.run_until(&stop, None)
        }
    }
}

/// The other metadata servers, as the file names them.
fn election_of(config: &Config, number: u32, join: bool) -> anyhow::Result<Option<Election>> {
    let Some(section) = &config.election else {
        if number != 0 || join {
            bail!(
                "--number and --join are for several metadata servers: name all of them in 'address', \
                 and a witness in a section [election] of the config file"
            );
        }
        return Ok(None);
    };
    let servers = config.address.clone().unwrap_or_default();
    let count = servers::addresses(&servers).map_or(0, |found| found.len());
    if count < 2 || number as usize >= count {
        bail!(
            "metadata server {number} is not one of several: 'address' in the config file has to \
             name all metadata servers, with semicolons between them, in the order of their numbers"
        );
    }
    Ok(Some(Election {
        number,
        servers,
        witness: section.witness()?,
        lease: section.lease(),
        alone: section.alone.unwrap_or(true),
    }))
}

/// Runs one server until a signal comes.
fn serve_one(
    mut thread: NodeThread,
    (name, metrics): (String, Option<metrics::Place>),
    stop: &Stop,
) -> anyhow::Result<()> {
    let _exporter = Exporter::start(metrics, vec![(name, thread.inquiry())])?;
    announce!("serving at {}", thread.address);
    notify::ready(&format!("serving at {}", thread.address));
    while !stop.is_asked() {
        if let Some(error) = thread.failure() {
            bail!(error);
        }
        std::thread::sleep(LOOK);
    }
    notify::stopping();
    thread.stop();
    Ok(())
}

impl Place {
    /// Where the process serves its metrics, if it does.
    fn metrics(&self, config: &Config) -> anyhow::Result<Option<metrics::Place>> {
        metrics::Place::of(self.metrics, config.metrics.address, self.insecure(config))
    }

    fn insecure(&self, config: &Config) -> bool {
        self.insecure || config.insecure.unwrap_or(false)
    }

    /// A server's directory: as the flag says, as its section says, or `name` below the cluster's.
    fn directory(
        &self,
        config: &Config,
        own: Option<&PathBuf>,
        name: &str,
    ) -> anyhow::Result<PathBuf> {
        let below = || config.directory.as_ref().map(|directory| directory.join(name));
        let found = self.directory.clone().or_else(|| own.cloned()).or_else(below);
        found.context(
            "no directory for the data: give --directory DIR, or name a directory in a config file \
             (--config FILE)",
        )
    }

    /// The cluster that the server in `directory` belongs to. `own`: its metadata are served from there.
    fn cluster(&self, config: &Config, directory: &Path, own: bool) -> anyhow::Result<Identity> {
        let expected = self.cluster.or(config.cluster.map(|id| id.0));
        let named = self.cluster_file.as_deref().or(config.cluster_file.as_deref());
        let formatted = [config.directory.as_deref(), Some(directory), directory.parent()];
        let formatted: Vec<&Path> = formatted.into_iter().flatten().collect();
        let found = identity::find(named, &formatted, expected)?;
        let Some((path, said)) = found else {
            if let Some(id) = formatted.iter().find_map(|place| known_below(place)) {
                bail!(
                    "{} has data of cluster {id}, but the file 'cluster' is missing in the \
                     directory above: restore that file from a backup, or write a new one (mode \
                     600) with the single line {id}; the metadata server then adds a new secret at \
                     its next start, and the other hosts need new copies of the file",
                    directory.display()
                )
            }
            bail!(
                "{} belongs to no cluster: create one by 'ropewalk format DIR', and give a \
                 directory below DIR. On another host, copy the file DIR/cluster there (mode 600) \
                 and name it by --cluster-file",
                directory.display()
            )
        };
        match (said.secret.clone(), path.parent()) {
            (Some(secret), _) => Ok(Identity { id: said.id, secret }),
            (None, Some(place)) if own => identity::complete(place, said),
            (None, _) => bail!(
                "{} has no secret, since an earlier version of Ropewalk wrote it: start the \
                 metadata server once, which adds one, and copy the file 'cluster' from its host \
                 again",
                path.display()
            ),
        }
    }

    /// Data server `number`, as flags and file have it.
    fn data(&self, config: &Config, number: u32) -> anyhow::Result<Planned> {
        let section = config.section(number);
        let own = section.and_then(|section| section.directory.as_ref());
        let said = section.map_or(&[][..], |section| &section.listen);
        Ok(Planned {
            directory: self.directory(config, own, &format!("data{number}"))?,
            listen: network::first(&[&self.listen, said, &network::beside(&network::usual())]),
        })
    }

    /// All servers, as flags and file have them.
    fn all(
        &self,
        config: &Config,
        data_servers: Option<u32>,
        options: &DataOptions,
    ) -> anyhow::Result<Plan> {
        let mut config = config.clone();
        config.directory = self.directory.clone().or(config.directory);
        let listen = network::first(&[&self.listen, &config.meta.listen]);
        let beside = network::beside(&listen);
        let place = Place {
            directory: None,
            listen: Vec::new(),
            source: Source::default(),
            cluster_file: self.cluster_file.clone(),
            ..*self
        };
        let directory = place.directory(&config, config.meta.directory.as_ref(), "meta")?;
        if let Some(count) = data_servers {
            config.data.retain(|section| section.server < count);
        }
        let numbers: Vec<u32> = match data_servers {
            None if !config.data.is_empty() => config.data.iter().map(|s| s.server).collect(),
            count => (0..count.unwrap_or(4)).collect(),
        };
        let mut data = Vec::new();
        for number in numbers {
            let mut planned = place.data(&config, number)?;
            let section = config.section(number);
            if section.is_none_or(|section| section.listen.is_empty()) {
                planned.listen.clone_from(&beside);
            }
            let settings = options.of(section, number);
            data.push(PlannedData { number, place: planned, settings });
        }
        let cluster = place.cluster(&config, &directory, true)?;
        let meta = Planned { directory, listen };
        let (expect, named, term) = (Expect::Existing, None, config.term());
        let (replace, accept_loss) = (Vec::new(), false);
        if config.election.is_some() {
            bail!(
                "'ropewalk serve all' runs one metadata server: with a section [election], run each \
                 server by 'ropewalk serve meta' or 'ropewalk serve data'"
            );
        }
        let (election, witness) = (None, None);
        Ok(Plan {
            cluster,
            meta,
            expect,
            named,
            term,
            data,
            replace,
            accept_loss,
            election,
            witness,
        })
    }
}
