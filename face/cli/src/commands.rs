//! `up`, `serve`, `format`, `mount`, `umount`: clusters of separate processes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use ropewalk_base::ids::{ClusterId, ServerId};
use ropewalk_mount::{MountOptions, clear_dead_mount};
use ropewalk_rail::Rail;
use ropewalk_rail_shm::{ShmConfig, ShmRail};
use ropewalk_rail_tcp::{TcpConfig, TcpRail};

use crate::cluster::{self, serve_data, serve_meta};
use crate::mounted::Mounted;
use crate::node::NodeThread;
use crate::stop::Stop;

/// How often a waiting command looks whether it shall end.
const LOOK: Duration = Duration::from_millis(50);

/// Where a server listens.
#[derive(Debug, clap::Args)]
pub struct Listen {
    /// Where to listen; port 0 lets the system choose.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7700")]
    listen: SocketAddr,
    /// Allow an address that other hosts can reach, although nobody has to prove who he is.
    #[arg(long)]
    insecure: bool,
}

impl Listen {
    fn rails(&self) -> anyhow::Result<Vec<Box<dyn Rail>>> {
        if !self.listen.ip().is_loopback() && !self.insecure {
            bail!(
                "{} can be reached by other hosts, and there is no authentication yet; listen on \
                 127.0.0.1 or ::1, or say --insecure",
                self.listen
            );
        }
        Ok(vec![
            Box::new(ShmRail::open(ShmConfig::generated())?),
            Box::new(TcpRail::open(TcpConfig::listening(self.listen))?),
        ])
    }
}

/// Rails of a process that only connects.
pub fn client_rails() -> anyhow::Result<Vec<Box<dyn Rail>>> {
    Ok(vec![
        Box::new(ShmRail::open(ShmConfig::default())?),
        Box::new(TcpRail::open(TcpConfig::default())?),
    ])
}

/// Which server to run.
#[derive(Debug, clap::Subcommand)]
pub enum Serve {
    /// The metadata server.
    Meta {
        /// Where it keeps its data.
        #[arg(long, value_name = "DIR")]
        directory: PathBuf,
        /// The cluster, as `ropewalk format` printed it.
        #[arg(long, value_parser = cluster_id)]
        cluster: ClusterId,
        /// How long a client that is silent keeps its leases and locks, and how long a restarted
        /// server waits for those who do not come back.
        #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
        term: Duration,
        #[command(flatten)]
        listen: Listen,
    },
    /// A data server.
    Data {
        /// Where it keeps its data.
        #[arg(long, value_name = "DIR")]
        directory: PathBuf,
        /// The cluster, as `ropewalk format` printed it.
        #[arg(long, value_parser = cluster_id)]
        cluster: ClusterId,
        /// The server's number within the cluster, from 0 on.
        #[arg(long)]
        server: u32,
        /// The metadata server's address.
        #[arg(long, value_name = "URL", default_value = "tcp://127.0.0.1:7700")]
        meta: String,
        /// Where to listen; port 0 lets the system choose.
        #[command(flatten)]
        listen: Listen,
    },
}

/// Seconds, also parts of one, as the user writes them.
fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| format!("'{text}' is not a number of seconds"))?;
    if (0.2..=86_400.0).contains(&number) {
        Ok(Duration::from_secs_f64(number))
    } else {
        Err("between 0.2 and 86400 seconds".to_string())
    }
}

fn cluster_id(text: &str) -> Result<ClusterId, String> {
    u128::from_str_radix(text, 16)
        .map(ClusterId)
        .map_err(|_| "a cluster is named by up to 32 hexadecimal digits".to_string())
}

/// Arguments of `ropewalk format`.
#[derive(Debug, clap::Args)]
pub struct Format {
    /// The directory below which `up` (or servers started one by one) keep their data.
    directory: PathBuf,
}

/// Gives a directory the identity of a new cluster, and prints it.
pub fn format(arguments: &Format) -> anyhow::Result<()> {
    let file = arguments.directory.join("cluster");
    if file.exists() {
        bail!("{} belongs to a cluster already: remove its content to begin anew", file.display());
    }
    let id = cluster::identity(&arguments.directory)?;
    println!("{id}");
    Ok(())
}

/// Runs a server until a signal comes.
pub fn serve(what: Serve) -> anyhow::Result<()> {
    let stop = Stop::watch().context("signals cannot be watched")?;
    let mut thread = match what {
        Serve::Meta { directory, cluster, term, listen } => {
            NodeThread::start("meta", cluster, listen.rails()?, move |node| {
                serve_meta(node, directory, cluster, Some(term))
            })?
        }
        Serve::Data { directory, cluster, server, meta, listen } => {
            let name = format!("data{server}");
            NodeThread::start(&name, cluster, listen.rails()?, move |node| {
                serve_data(node, directory, cluster, ServerId(server), meta)
            })?
        }
    };
    println!("serving at {}", thread.address);
    while !stop.is_asked() {
        std::thread::sleep(LOOK);
    }
    thread.stop();
    Ok(())
}

/// Arguments of `ropewalk up`.
#[derive(Debug, clap::Args)]
pub struct Up {
    /// Where the servers keep their data; made where it does not exist.
    directory: PathBuf,
    /// Data servers.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    data_servers: u32,
    /// Mount the cluster here, too.
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
    #[command(flatten)]
    listen: Listen,
}

/// Runs a whole cluster in this process until a signal comes.
pub fn up(arguments: &Up) -> anyhow::Result<()> {
    let stop = Stop::watch().context("signals cannot be watched")?;
    let id = cluster::identity(&arguments.directory)?;
    let directory = arguments.directory.join("meta");
    let mut meta = NodeThread::start("meta", id, arguments.listen.rails()?, move |node| {
        serve_meta(node, directory, id, None)
    })?;
    let mut data = Vec::new();
    for number in 0..arguments.data_servers {
        let name = format!("data{number}");
        let (directory, address) = (arguments.directory.join(&name), meta.address.clone());
        let listen = Listen {
            listen: SocketAddr::new(arguments.listen.listen.ip(), 0),
            insecure: arguments.listen.insecure,
        };
        data.push(NodeThread::start(&name, id, listen.rails()?, move |node| {
            serve_data(node, directory, id, ServerId(number), address)
        })?);
    }
    println!("cluster {id} serves at {}", meta.address);
    let mounted = match &arguments.mount {
        Some(path) => {
            let mounted = start_mount(id, &meta.address, path, None)?;
            println!("mounted on {}", path.display());
            Some(mounted)
        }
        None => None,
    };
    while !stop.is_asked() {
        std::thread::sleep(LOOK);
    }
    if let Some(mounted) = mounted {
        mounted.stop()?;
    }
    data.iter_mut().for_each(NodeThread::stop);
    meta.stop();
    Ok(())
}

/// Arguments of `ropewalk mount`.
#[derive(Debug, clap::Args)]
pub struct MountArguments {
    /// The metadata server's address, as `up` or `serve meta` printed it.
    address: String,
    /// An empty directory. A dead mount that an earlier process left there is cleared.
    directory: PathBuf,
    /// How long an operation waits for a server that is down, before it fails (`EIO`).
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    patience: Duration,
}

fn start_mount(
    cluster: ClusterId,
    address: &str,
    path: &Path,
    patience: Option<Duration>,
) -> anyhow::Result<Mounted> {
    // A mount whose process was killed answers nothing any more: it is nobody's loss.
    if let Ok(cleared) = clear_dead_mount(path) {
        eprintln!("cleared {cleared} dead mount(s) on {}", path.display());
    }
    Mounted::start(cluster, client_rails()?, address, path, MountOptions::default(), patience)
}

/// Mounts a cluster and serves the mount until it is unmounted or a signal comes.
pub fn mount(arguments: &MountArguments) -> anyhow::Result<()> {
    let stop = Stop::watch().context("signals cannot be watched")?;
    let MountArguments { address, directory, patience } = arguments;
    let mounted = start_mount(ClusterId(0), address, directory, Some(*patience))?;
    println!("mounted on {}", mounted.path().display());
    while !stop.is_asked() && !mounted.is_gone() {
        std::thread::sleep(LOOK);
    }
    mounted.stop()
}

/// Arguments of `ropewalk umount`.
#[derive(Debug, clap::Args)]
pub struct UnmountArguments {
    /// Where it is mounted.
    directory: PathBuf,
    /// Takes it out of the tree although it is in use; it goes when the last user has left.
    #[arg(long)]
    lazy: bool,
}

/// Unmounts, also what a dead process left.
pub fn unmount(arguments: &UnmountArguments) -> anyhow::Result<()> {
    use rustix::mount::UnmountFlags;
    let path = &arguments.directory;
    if clear_dead_mount(path).is_ok() {
        return Ok(());
    }
    let flags = if arguments.lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(path, flags) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::PERM) => {
            let mut helper = std::process::Command::new("fusermount3");
            helper.arg("-u");
            if arguments.lazy {
                helper.arg("-z");
            }
            let status = helper.arg(path).status().context("fusermount3 cannot be run")?;
            if status.success() { Ok(()) } else { bail!("fusermount3 did not unmount it") }
        }
        Err(rustix::io::Errno::BUSY) => {
            bail!("{} is in use: close its files and leave it, or say --lazy", path.display())
        }
        Err(error) => bail!("cannot unmount {}: {error}", path.display()),
    }
}
