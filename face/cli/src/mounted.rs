//! A mount of this process, on a thread of its own.
//!
//! No thread of this process may ask the mount for anything: a killed process whose thread waits for
//! the process's own mount never ends, since what it waits with keeps the device open. So whoever uses
//! the mount does so from another process, and so does the unmount, which writes back and waits. Should
//! the mount's thread die, the kernel is told to give up, so that nobody hangs in it for ever.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use ropewalk_base::ids::ClusterId;
use ropewalk_base::level::Level;
use ropewalk_base::task::{Either, race};
use ropewalk_client::{Client, ClientConfig};
use ropewalk_mount::MountOptions;
use ropewalk_mount::cluster::ClusterMount;
use ropewalk_mount::session::{UnmountError, Unmounter};
use ropewalk_net::threads;
use ropewalk_rail::Rail;

use crate::report::complain;
use crate::stop::Stop;
use crate::{log, node};

/// The interval at which the mount's thread checks whether the mount is gone.
const LOOK: Duration = Duration::from_millis(20);

/// A served mount.
pub struct Mounted {
    path: PathBuf,
    unmounter: Unmounter,
    /// The mount's thread shall end, even if a process uses the mount.
    leave: Arc<AtomicBool>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

/// Gives the mount up when its thread ends in any other way than by an unmount.
struct Watch(Unmounter, bool);

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.1 {
            // Nothing can be done about a mount that cannot even be aborted.
            let _ = self.0.abort();
        }
    }
}

impl Mounted {
    /// Mounts the cluster of the metadata server at `address` on `path`. `patience`: the time that an operation
    /// waits for a server that is down; `None`: the usual time. Waiting for the servers ends when `stop` is
    /// asked for.
    pub fn start(
        cluster: ClusterId,
        rails: Vec<Box<dyn Rail>>,
        address: &str,
        path: &Path,
        options: MountOptions,
        patience: Option<Duration>,
        stop: &Stop,
    ) -> anyhow::Result<Mounted> {
        let (sender, receiver) = mpsc::channel();
        let stop = stop.clone();
        let leave = Arc::new(AtomicBool::new(false));
        let leaves = leave.clone();
        // The first column of df and of /proc/mounts: which cluster it is.
        let options = MountOptions { name: address.to_string(), ..options };
        let (address, place) = (address.to_string(), path.to_path_buf());
        let thread = threads::start("mount", move || {
            let (reactor, world, endpoint) = node::calling(cluster, rails, &address)?;
            ropewalk_host_paths::show(
                endpoint.endpoint(),
                &format!("mount on {}", place.display()),
            );
            let usual = ClientConfig::default();
            let config = ClientConfig {
                name: format!("mount on {}", place.display()),
                log: log::of("mount"),
                patience: patience.unwrap_or(usual.patience),
                ..usual
            };
            let client = reactor.block_on(async {
                let connect = Client::connect(&world, &endpoint, &address, config);
                match race(pin!(connect), pin!(stop.asked(&world))).await {
                    Either::Left(client) => anyhow::Ok(client?),
                    Either::Right(()) => bail!("interrupted"),
                }
            })?;
            let mount = ClusterMount::new(&reactor, &world, &client, &place, &options)?;
            let unmounter = mount
                .unmounter()
                .context("the directory was unmounted before the mount was ready")?;
            let mut watch = Watch(unmounter.clone(), false);
            // The thread that started us may have given up.
            let _ = sender.send(unmounter);
            reactor.block_on(async {
                while !mount.is_closed() && !leaves.load(Ordering::SeqCst) {
                    world.sleep(LOOK).await;
                }
                client.stop().await;
            });
            watch.1 = true;
            endpoint.endpoint().close();
            Ok(())
        })?;
        match receiver.recv() {
            Ok(unmounter) => {
                Ok(Mounted { path: path.to_path_buf(), unmounter, leave, thread: Some(thread) })
            }
            Err(_) => match thread.join() {
                Ok(Err(error)) => Err(error),
                _ => Err(anyhow!("the thread of the mount ended unexpectedly")),
            },
        }
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the mount is gone, by whomever.
    pub fn is_gone(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Unmounts and waits for the end. If a process still uses the mount, all that was written is with the
    /// servers, and the process's further operations fail.
    pub fn stop(mut self) -> anyhow::Result<()> {
        self.end(None)
    }

    /// Unmounts and waits for the end. If a process still uses the mount, it is served outside of the tree
    /// until it has left or `stop` is asked for once more.
    pub fn stop_unused(mut self, stop: &Stop) -> anyhow::Result<()> {
        self.end(Some(stop))
    }

    fn end(&mut self, stop: Option<&Stop>) -> anyhow::Result<()> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        stop.into_iter().for_each(Stop::expect_another);
        if !thread.is_finished() && !unmount_beside(&self.unmounter)? {
            let path = self.unmounter.path().display();
            if let Some(stop) = stop {
                complain!(
                    "{path} is unmounted, but processes still use it: this process serves them \
                     until they end, or until a second signal (Ctrl-C)"
                );
                while !thread.is_finished() && !stop.is_asked_again() {
                    std::thread::sleep(LOOK);
                }
            }
            if !thread.is_finished() {
                complain!(
                    "{path} is still in use: written data is kept, and further operations fail"
                );
            }
            self.leave.store(true, Ordering::SeqCst);
        }
        let begin = Instant::now();
        while !thread.is_finished() && begin.elapsed() < SOON {
            std::thread::sleep(LOOK);
        }
        if !thread.is_finished() {
            complain!(
                "{0} is unmounted, but still in use: its servers do not answer, or a process in \
                 another mount namespace uses it ('grep {0} /proc/*/mountinfo' shows that \
                 process); waiting for the end of that",
                self.unmounter.path().display()
            );
        }
        thread.join().map_err(|_| anyhow!("the thread of the mount failed (panic)"))?
    }
}

/// The time to wait for the end of an unmount before a message says so.
const SOON: Duration = Duration::from_secs(3);
/// Tells this program, started again, that it shall unmount: the mount's number and its path.
const UNMOUNT: &str = "ROPEWALK_UNMOUNT";
/// Tells it that its output is a part of the log.
const LOG: &str = "ROPEWALK_UNMOUNT_LOG";
/// The exit status of that process if the mount is still in use. The mount is out of the tree by then.
const BUSY: i32 = 75;

/// This program, to be started again.
pub fn again() -> Command {
    // Also where the file that it came from was replaced meanwhile.
    let mut command = Command::new("/proc/self/exe");
    // A mount helper is known by its name.
    command.arg0(std::env::args_os().next().unwrap_or_else(|| "ropewalk".into()));
    command
}

/// Unmounts in a process of its own; whether the mount is over, or has users still.
fn unmount_beside(unmounter: &Unmounter) -> anyhow::Result<bool> {
    let mut order = format!("{} ", unmounter.number()).into_bytes();
    order.extend_from_slice(unmounter.path().as_os_str().as_bytes());
    let mut command = again();
    command.envs(log::has_begun().then_some((LOG, "1")));
    command.env(UNMOUNT, OsStr::from_bytes(&order)).stdin(Stdio::null()).stdout(Stdio::null());
    // Ctrl-C is for us; it would tear the unmount.
    command.process_group(0);
    let status = command.status().context("cannot start a process that unmounts")?;
    match status.code() {
        Some(0) => Ok(true),
        Some(BUSY) => Ok(false),
        _ => bail!("cannot unmount {} ({status})", unmounter.path().display()),
    }
}

/// Unmounts and ends, if this process was started for that.
pub fn unmount_if_child() {
    let Some(order) = std::env::var_os(UNMOUNT) else { return };
    if std::env::var_os(LOG).is_some() {
        log::begin();
    }
    let order = order.as_bytes();
    let space = order.iter().position(|byte| *byte == b' ').unwrap_or(0);
    let number = std::str::from_utf8(&order[..space]).ok().and_then(|text| text.parse().ok());
    let path = Path::new(OsStr::from_bytes(order.get(space + 1..).unwrap_or_default()));
    let unmounter = Unmounter::of(path.to_path_buf(), number.unwrap_or(0));
    let outcome = match unmounter.unmount() {
        // Somebody else was faster.
        Ok(()) | Err(UnmountError::NotMounted(_)) => Ok(0),
        Err(error) => {
            if !matches!(error, UnmountError::Busy(_)) {
                complain!("{error}; it is now detached from the directory tree");
            }
            write_back(unmounter.path());
            unmounter.unmount_lazily().map(|()| BUSY)
        }
    };
    std::process::exit(outcome.unwrap_or_else(|error| {
        log::answer(Level::Error, &format!("ropewalk: {error}"));
        1
    }));
}

/// Has the kernel write what programs wrote into its cache and into maps.
fn write_back(path: &Path) {
    let synced = std::fs::File::open(path)
        .and_then(|root| rustix::fs::syncfs(root).map_err(std::io::Error::from));
    if let Err(error) = synced {
        let path = path.display();
        let text = format!("some data that was written on {path} may be lost: {error}");
        log::answer(Level::Error, &text);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = self.end(None) {
            log::answer(Level::Error, &format!("ropewalk: {error:#}"));
        }
    }
}
