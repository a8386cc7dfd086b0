//! `ropewalk up`: a whole cluster in one process, and its mount.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use ropewalk_mount::MountOptions;

use super::down::{hold, make_directory};
use super::mount::{ready_mount_point, start_mount};
use super::serve::{Servers, below};
use crate::network::{self, LISTEN, Listen};
use crate::report::announce;
use crate::stop::Stop;
use crate::{background, beside, cluster};

/// Arguments of `ropewalk up`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ropewalk up /var/tmp/cluster                    serves at tcp://127.0.0.1:7700
  ropewalk up /var/tmp/cluster --mount /mnt       and is mounted
  ropewalk up /var/tmp/cluster --background       returns when it serves; logs
                                                  into /var/tmp/cluster/log, and
                                                  'ropewalk down' ends it
  ropewalk up /var/tmp/cluster --data-servers 8   with more data servers
  ropewalk up /srv/rope --listen 10.0.0.1:7700 --insecure
                                                  for other hosts, whoever they
                                                  are

The directory is made at the first start, and serves again what it holds at every later one; \
where some of that is gone by then, it says so and does not start. Ctrl-C ends it in good order; \
whatever else ends it loses nothing that was acknowledged.")]
pub struct Up {
    /// Where the servers keep their data; made where it does not exist.
    directory: PathBuf,
    /// Data servers: those that there were before, unless said otherwise; 4 at the first start. More
    /// than before join for good.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=i64::from(cluster::DATA_SERVERS_MAX)))]
    data_servers: Option<u32>,
    /// Give up what the data server of this number had: every stripe on it is lost, files that have
    /// some there give errors, and 'ropewalk check' names them.
    #[arg(long, value_name = "NUMBER")]
    replace: Vec<u32>,
    /// Start although the metadata's journal has damaged records. The server gives up the first of them and
    /// all that came later: names and files made since then are lost. Give it at one start only.
    #[arg(long)]
    accept_loss: bool,
    /// Mount the cluster here, too.
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
    /// Where the metadata server listens, as 'serve' takes it. Data servers take any free port or
    /// endpoint beside it.
    #[arg(long, value_name = "URL", default_value = LISTEN, value_delimiter = ',')]
    listen: Vec<Listen>,
    /// Allow an address that other hosts can reach. Servers do not authenticate clients.
    #[arg(long)]
    insecure: bool,
    /// Go on in the background: the command ends when the cluster serves and is mounted.
    #[arg(long)]
    background: bool,
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
    let stop = Stop::watch_aloud().context("signals cannot be watched")?;
    background::enter(&stop)?;
    // Held to the end.
    let _running = hold(&directory)?;
    if let Some(path) = &arguments.mount {
        ready_mount_point(path, &MountOptions::default())?;
    }
    let found = cluster::found_or_new(&directory)?;
    let id = found.0.id;
    let count = data_servers(&directory, arguments.data_servers)?;
    let mut plan = below(&directory, found, &arguments.listen, count);
    plan.replace.clone_from(&arguments.replace);
    plan.accept_loss = arguments.accept_loss;
    let servers = Servers::start(plan, arguments.insecure)?;
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
    servers.run_until(&stop, mounted)
}

/// The number of data servers to start. Fewer than before would leave out stripes of files.
fn data_servers(directory: &Path, asked: Option<u32>) -> anyhow::Result<u32> {
    let Some(before) = cluster::data_servers(directory)? else { return Ok(asked.unwrap_or(4)) };
    match asked.unwrap_or(before) {
        fewer if fewer < before => bail!(
            "{} has {before} data servers, and files may lie on each of them: say --data-servers \
             {before}, or leave it out",
            directory.display()
        ),
        more => {
            for number in before..more {
                announce!("data server {number} joins the cluster, for good");
            }
            Ok(more)
        }
    }
}
