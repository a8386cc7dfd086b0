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
use ropewalk_base::world::World;
use ropewalk_client::{Client, ClientConfig};
use ropewalk_mount::MountOptions;
use ropewalk_mount::cluster::{ClusterMount, HandOver};
use ropewalk_mount::session::{UnmountError, Unmounter, mounted_device};
use ropewalk_net::local::LocalEndpoint;
use ropewalk_net::reactor::Reactor;
use ropewalk_net::threads;
use ropewalk_rail::Rail;
use ropewalk_wire::fs::handover::{Facts, Kind, State, frame};

use crate::handover::ask::Offer;
use crate::handover::desk::{Desk, Order, Parcel};
use crate::handover::door;
use crate::report::complain;
use crate::stop::Stop;
use crate::{handover, log, node, security};

/// The interval at which the mount's thread checks whether the mount is gone.
const LOOK: Duration = Duration::from_millis(20);

/// A served mount.
pub struct Mounted {
    path: PathBuf,
    unmounter: Unmounter,
    gap: Option<Duration>,
    desk: Arc<Desk>,
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

/// The parameters of a mount's thread.
struct Job {
    address: String,
    path: PathBuf,
    patience: Option<Duration>,
    stop: Stop,
    leave: Arc<AtomicBool>,
    desk: Arc<Desk>,
}

/// The first message of a mount's thread: it serves.
struct Served {
    unmounter: Unmounter,
    /// The time for which nobody served, of a mount that was taken over.
    gap: Option<Duration>,
}

/// The parts of a mount's thread.
struct Parts {
    reactor: Reactor,
    world: World,
    endpoint: LocalEndpoint,
}

impl Job {
    fn new(address: &str, path: &Path, patience: Option<Duration>, stop: &Stop) -> Job {
        Job {
            address: address.to_string(),
            path: path.to_path_buf(),
            patience,
            stop: stop.clone(),
            leave: Arc::default(),
            desk: Arc::default(),
        }
    }

    fn parts(&self, cluster: ClusterId, rails: Vec<Box<dyn Rail>>) -> anyhow::Result<Parts> {
        let (reactor, world, endpoint) = node::calling(cluster, rails, &self.address)?;
        let role = format!("mount on {}", self.path.display());
        ropewalk_host_paths::show(endpoint.endpoint(), &role);
        Ok(Parts { reactor, world, endpoint })
    }

    fn client_config(&self) -> ClientConfig {
        let usual = ClientConfig::default();
        ClientConfig {
            name: format!("mount on {}", self.path.display()),
            log: log::of("mount"),
            patience: self.patience.unwrap_or(usual.patience),
            ..usual
        }
    }

    /// Mounts.
    fn mount(&self, parts: &Parts, options: &MountOptions) -> anyhow::Result<ClusterMount> {
        let Parts { reactor, world, endpoint } = parts;
        let client = reactor.block_on(async {
            let connect = Client::connect(world, endpoint, &self.address, self.client_config());
            match race(pin!(connect), pin!(self.stop.asked(world))).await {
                Either::Left(client) => anyhow::Ok(client?),
                Either::Right(()) => bail!("interrupted"),
            }
        })?;
        Ok(ClusterMount::new(reactor, world, &client, &self.path, options)?)
    }

    /// Takes a mount over; with it the time for which nobody served.
    fn take_over(&self, parts: &Parts, offer: Offer) -> anyhow::Result<(ClusterMount, Duration)> {
        let Parts { reactor, world, endpoint } = parts;
        let config = self.client_config();
        reactor.block_on(async {
            let meet = Client::meet_server(world, endpoint, &self.address, config.clone());
            match race(pin!(meet), pin!(self.stop.asked(world))).await {
                Either::Left(met) => anyhow::Ok(met?),
                Either::Right(()) => bail!("interrupted"),
            }
        })?;
        let Facts { mount: number, read_only, process, .. } = offer.facts;
        let (state, device, claim) = offer.go()?.unpack();
        let client = Client::from_state(world, endpoint, &self.address, config, &state.client)?;
        let place = (device, &*self.path, number);
        let mut mount =
            ClusterMount::adopt(reactor, world, &client, place, read_only, &state.kernel)?;
        claim.take(process)?;
        reactor.block_on(client.take_session(&state.client))?;
        mount.take_over(reactor, state.kernel.waiting);
        Ok((mount, claim.serving()))
    }

    /// Serves a mount until it is unmounted, or another process serves it.
    fn serve(&self, parts: &Parts, mut mount: ClusterMount) {
        let Parts { reactor, world, .. } = parts;
        let left = reactor.block_on(async {
            while !mount.is_closed() && !self.leave.load(Ordering::SeqCst) {
                let order = race(pin!(self.desk.next()), world.sleep(LOOK)).await.left();
                if let Some(order) = order
                    && self.follow(order, &mount, reactor).await
                {
                    return true;
                }
            }
            mount.client().stop().await;
            false
        });
        if left {
            mount.leave();
        }
    }

    /// Follows an order; true where the mount is another process's.
    async fn follow(&self, order: Order, mount: &ClusterMount, reactor: &Reactor) -> bool {
        match order {
            Order::Rest(answer) => {
                let rested = mount.hand_over(reactor).await.map_err(|busy| busy.to_string());
                let parcel = rested
                    .and_then(|rested| parcel_of(rested).inspect_err(|_| mount.go_on(reactor)));
                // The thread at the door waits for it.
                let _ = answer.send(parcel);
                false
            }
            Order::GoOn => {
                mount.go_on(reactor);
                false
            }
            Order::Leave => true,
        }
    }
}

/// A mount at rest, ready to be sent.
fn parcel_of(rested: HandOver) -> Result<Parcel, String> {
    let HandOver { kernel, client, device, since } = rested;
    let rested = u64::try_from(since.elapsed().as_nanos()).unwrap_or(0);
    let stopped_at = handover::host_clock().saturating_sub(rested);
    let state = State { stopped_at, kernel, client };
    let frame = frame(Kind::State, &state).ok_or("the mount has too many open files")?;
    Ok(Parcel { frame, device })
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
        // The first column of df and of /proc/mounts: which cluster it is.
        let options = MountOptions { name: address.to_string(), ..options };
        let job = Job::new(address, path, patience, stop);
        Mounted::run(job, move |job| {
            let parts = job.parts(cluster, rails)?;
            let mount = job.mount(&parts, &options)?;
            Ok((parts, mount, None))
        })
    }

    /// Takes a mount over from the process that offers it.
    pub fn take_over(
        rails: Vec<Box<dyn Rail>>,
        offer: Offer,
        patience: Duration,
        stop: &Stop,
    ) -> anyhow::Result<Mounted> {
        let job = Job::new(&offer.facts.address, &offer.path(), Some(patience), stop);
        Mounted::run(job, move |job| {
            let parts = job.parts(ClusterId(0), rails)?;
            let (mount, gap) = job.take_over(&parts, offer)?;
            Ok((parts, mount, Some(gap)))
        })
    }

    /// Serves on a thread of its own what `begin` makes there.
    fn run(
        job: Job,
        begin: impl FnOnce(&Job) -> anyhow::Result<(Parts, ClusterMount, Option<Duration>)>
        + Send
        + 'static,
    ) -> anyhow::Result<Mounted> {
        let (sender, receiver) = mpsc::channel();
        let (path, leave, desk) = (job.path.clone(), job.leave.clone(), job.desk.clone());
        let thread = threads::start("mount", move || {
            let (parts, mount, gap) = begin(&job)?;
            let unmounter = mount
                .unmounter()
                .context("the directory was unmounted before the mount was ready")?;
            let mut watch = Watch(unmounter.clone(), false);
            // The thread that started us may have given up.
            let _ = sender.send(Served { unmounter, gap });
            job.serve(&parts, mount);
            watch.1 = true;
            parts.endpoint.endpoint().close();
            Ok(())
        })?;
        match receiver.recv() {
            Ok(Served { unmounter, gap }) => {
                Ok(Mounted { path, unmounter, gap, leave, desk, thread: Some(thread) })
            }
            Err(_) => match thread.join() {
                Ok(Err(error)) => Err(error),
                _ => Err(anyhow!("the thread of the mount ended unexpectedly")),
            },
        }
    }

    /// From now on another process can take the mount over.
    pub fn offer(&self, address: &str, read_only: bool, patience: Duration) -> anyhow::Result<()> {
        let device = mounted_device(&self.path)?.context("the mount has just ended")?;
        let key_file = security::named_file().map(std::path::absolute).transpose()?;
        let facts = Facts {
            path: self.unmounter.path().as_os_str().as_bytes().to_vec(),
            mount: self.unmounter.number(),
            address: address.to_string(),
            patience_milliseconds: u64::try_from(patience.as_millis()).unwrap_or(u64::MAX),
            read_only,
            key_file: key_file.map(|path| path.as_os_str().as_bytes().to_vec()),
            process: std::process::id(),
            program: env!("CARGO_PKG_VERSION").into(),
        };
        door::open(&device, facts, self.desk.clone())
    }

    /// The time for which nobody served the mount when it was taken over.
    pub fn gap(&self) -> Option<Duration> {
        self.gap
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
        // A mount that was given away is not ours to unmount, and this process ends when the other one serves.
        while self.desk.is_given() && !thread.is_finished() {
            std::thread::sleep(LOOK);
        }
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
