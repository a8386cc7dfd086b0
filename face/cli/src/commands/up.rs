//! `ropewalk up`: a whole cluster in one process, and its mount.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use ropewalk_mount::MountOptions;

use super::data_options::DataOptions;
use super::down::{hold, make_directory};
use super::mount::{ready_mount_point, start_mount};
use super::serve::{Servers, below};
use crate::network::{self, LISTEN, Listen};
use crate::report::announce;
use crate::stop::Stop;
use crate::{background, beside, cluster, log, metrics, notify};

/// Arguments of `ropewalk up`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ropewalk up /var/tmp/cluster                    serves at tcp://127.0.0.1:7700
  ropewalk up /var/tmp/cluster --mount /mnt       also mounts it on /mnt
  ropewalk up /var/tmp/cluster --background       returns when it serves; logs
                                                  into /var/tmp/cluster/log;
                                                  'ropewalk down' stops it
  ropewalk up /var/tmp/cluster --data-servers 8   runs 8 data servers
  ropewalk up /srv/rope --listen 10.0.0.1:7700 --insecure
                                                  serves other hosts, without
                                                  authentication

The first start creates the directory; later starts serve the data in it. If some of that data is \
missing, the command names it and does not start. Ctrl-C stops the cluster cleanly. A crash or a \
kill loses no data that the servers have acknowledged.")]
pub struct Up {
    /// Keep the servers' data in this directory; it is created if it does not exist.
    directory: PathBuf,
    /// Run this many data servers [default: 4 at the first start, later as many as before].
    /// Additional data servers join the cluster permanently.
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=i64::from(cluster::DATA_SERVERS_MAX)))]
    data_servers: Option<u32>,
    /// Give up the data of data server NUMBER and start it with an empty directory: every stripe on
    /// it is lost. Reading the files that had stripes there fails, and 'ropewalk check' lists them.
    /// Can be given several times.
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = super::number)]
    replace: Vec<u32>,
    /// Start although records in the metadata journal are damaged. The server drops the first
    /// damaged record and all records after it: files and names that were created since then are
    /// lost. Use it for one start only.
    #[arg(long)]
    accept_loss: bool,
    /// Also mount the cluster on this directory.
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
    /// Let the metadata server listen here; 'ropewalk serve meta --help' explains the form. The
    /// data servers take free ports or endpoints beside it.
    #[arg(long, value_name = "URL", default_value = LISTEN, value_delimiter = ',')]
    listen: Vec<Listen>,
    /// Allow listening at an address that other hosts can reach, though everybody who reaches it can
    /// act as any user. Not needed with --key-file, where payloads are protected (--payload).
    #[arg(long)]
    insecure: bool,
    /// Serve figures for Prometheus here, at http://ADDRESS/metrics. Only this host can read them
    /// unless --insecure is given.
    #[arg(long, value_name = "ADDRESS", value_parser = metrics::socket)]
    metrics: Option<SocketAddr>,
    /// Run in the background: the command returns when the cluster serves and is mounted.
    #[arg(long)]
    background: bool,
    #[command(flatten)]
    options: DataOptions,
}

/// Runs a whole cluster in this process until a signal comes.
pub fn up(arguments: &Up) -> anyhow::Result<()> {
    let directory = std::path::absolute(&arguments.directory)?;
    if background::is_wanted(arguments.background) {
        let made = !directory.exists();
        make_directory(&directory)?;
        let log = directory.join("log");
        return background::start(&log, !log.exists(), beside::open_own).inspect_err(|_| {
            if made {
                // Only where nothing is in there.
                let _ = std::fs::remove_dir(&directory);
            }
        });
    }
    log::begin();
    let stop = Stop::watch_aloud().context("cannot watch for signals")?;
    background::enter(&stop)?;
    // Held to the end.
    let _running = hold(&directory)?;
    if let Some(path) = &arguments.mount {
        ready_mount_point(path, &MountOptions::default())?;
    }
    let found = cluster::found_or_new(&directory)?;
    let id = found.0.id;
    let count = data_servers(&directory, arguments.data_servers)?;
    let mut plan = below(&directory, found, &arguments.listen, count, &arguments.options);
    plan.replace.clone_from(&arguments.replace);
    plan.accept_loss = arguments.accept_loss;
    let metrics = metrics::Place::of(arguments.metrics, None, arguments.insecure)?;
    let servers = Servers::start(plan, arguments.insecure)?;
    let _exporter = servers.export(metrics)?;
    cluster::write_data_servers(&directory, count)?;
    announce!("cluster {id} serves at {}", servers.address());
    for sentence in network::who_gets_in(&arguments.listen) {
        announce!("{sentence}");
    }
    let mounted = match &arguments.mount {
        Some(path) => {
            let options = MountOptions::default();
            let mounted = start_mount(id, servers.address(), path, options, None, &stop)?;
            announce!("mounted on {}", path.display());
            Some(mounted)
        }
        None => None,
    };
    background::ready(&stop)?;
    notify::ready(&format!("serving at {}", servers.address()));
    servers.run_until(&stop, mounted)
}

/// The number of data servers to start. Fewer than before would leave out stripes of files.
fn data_servers(directory: &Path, asked: Option<u32>) -> anyhow::Result<u32> {
    let Some(before) = cluster::data_servers(directory)? else { return Ok(asked.unwrap_or(4)) };
    match asked.unwrap_or(before) {
        fewer if fewer < before => bail!(
            "the cluster in {} has {before} data servers, and each may hold parts of files: it \
             cannot start with fewer; give --data-servers {before}, or leave the option out",
            directory.display()
        ),
        more => {
            for number in before..more {
                announce!("data server {number} joins the cluster permanently");
            }
            Ok(more)
        }
    }
}
