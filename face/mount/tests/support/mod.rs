//! A driver over epoll, and mounts that live in a thread of the test.

#![allow(dead_code, reason = "every user of this module needs another part of it")]

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ropewalk_base::executor::Executor;
use ropewalk_base::pool::Pool;
use ropewalk_base::time::Time;
use ropewalk_mount::dev_loop::Counters;
use ropewalk_mount::session::Unmounter;
use ropewalk_mount::{
    Connection, Device, DeviceLoop, Filesystem, Mount, MountOptions, Notifier, Settings,
};
use rustix::event::{EventfdFlags, epoll, eventfd};

pub const POOL_BYTES: usize = 8 << 30;
/// The time that a mount may live, in seconds.
pub static LIFE_SECONDS: AtomicU64 = AtomicU64::new(30);

/// Whether FUSE can be used here; says so where it cannot, which fails under CI.
pub fn usable() -> bool {
    let cause = match std::fs::File::options().read(true).write(true).open("/dev/fuse") {
        Ok(_) => return true,
        Err(error) => error,
    };
    println!("SKIP: /dev/fuse cannot be used here: {cause}");
    false
}

/// Something for the loop's thread to do.
pub type Job<F> = Box<dyn FnOnce(&Rc<F>, &Executor) + Send>;

/// Serves a mount on the current thread until it is gone.
pub struct Driver {
    wake: OwnedFd,
    set: OwnedFd,
    pub executor: Executor,
    start: Instant,
}

impl Driver {
    pub fn new() -> Driver {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let ring = wake.try_clone().unwrap();
        let executor = Executor::new(Box::new(move || {
            rustix::io::write(&ring, &1u64.to_ne_bytes()).unwrap();
        }));
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let data = epoll::EventData::new_u64(0);
        epoll::add(&set, &wake, data, epoll::EventFlags::IN).unwrap();
        Driver { wake, set, executor, start: Instant::now() }
    }

    pub fn waker(&self) -> OwnedFd {
        self.wake.try_clone().unwrap()
    }

    fn now(&self) -> Time {
        Time(self.start.elapsed().as_nanos() as u64 + 1)
    }

    pub fn run<F: Filesystem>(&self, fuse: &mut DeviceLoop<F>, mut control: impl FnMut()) {
        let data = epoll::EventData::new_u64(1);
        epoll::add(&self.set, fuse.descriptor(), data, epoll::EventFlags::IN).unwrap();
        let mut listening = true;
        while !fuse.is_closed() {
            self.executor.run();
            control();
            let now = self.now();
            self.executor.fire_timers(now);
            if fuse.poll(now) {
                continue;
            }
            if listening != fuse.wants_input() {
                listening = fuse.wants_input();
                let flags =
                    if listening { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
                epoll::modify(&self.set, fuse.descriptor(), data, flags).unwrap();
            }
            if self.executor.park() {
                let deadline = [fuse.deadline(), self.executor.next_deadline()];
                self.sleep(deadline.into_iter().flatten().min());
            }
            self.executor.unparked();
        }
        self.executor.run();
    }

    fn sleep(&self, deadline: Option<Time>) {
        let limit = deadline.map(|at| at.since(self.now()).try_into().unwrap());
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 4];
        match epoll::wait(&self.set, &mut events[..], limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("epoll: {error}"),
        }
        let mut count = [0; 8];
        let _ = rustix::io::read(self.wake.as_fd(), &mut count);
    }
}

/// Serves `device` until the mount is gone.
pub fn serve<F: Filesystem>(
    device: OwnedFd,
    connection: Connection,
    settings: Settings,
    pool: Pool,
    filesystem: Rc<F>,
    driver: &Driver,
    mut control: impl FnMut(&Rc<F>, &Executor),
) -> Counters {
    let source = Device::new(device, pool, settings.max_write_bytes).unwrap();
    let executor = driver.executor.clone();
    let mut fuse =
        DeviceLoop::new(filesystem.clone(), source, executor.clone(), connection, settings);
    driver.run(&mut fuse, || control(&filesystem, &executor));
    fuse.counters()
}

/// A mount served by a thread.
pub struct Served<F: Filesystem> {
    mount: Option<Mount>,
    pub notifier: Option<Notifier>,
    path: PathBuf,
    jobs: Sender<Job<F>>,
    wake: OwnedFd,
    thread: Option<JoinHandle<Counters>>,
    _watchdog: Watchdog,
    _folder: tempfile::TempDir,
}

impl<F: Filesystem> Served<F> {
    pub fn start(make: impl FnOnce(Pool) -> F + Send + 'static) -> Served<F> {
        let pool = Pool::with_budget(POOL_BYTES);
        Served::with(MountOptions::default(), Settings::default(), pool, make)
    }

    pub fn with(
        options: MountOptions,
        settings: Settings,
        pool: Pool,
        make: impl FnOnce(Pool) -> F + Send + 'static,
    ) -> Served<F> {
        let folder = tempfile::tempdir().unwrap();
        let mount = Mount::new(folder.path(), &options).unwrap_or_else(|error| panic!("{error}"));
        let device = mount.device().unwrap();
        let notifier = Notifier::new(mount.device().unwrap());
        let (jobs, inbox): (Sender<Job<F>>, Receiver<Job<F>>) = channel();
        let (send_wake, wake) = channel();
        let thread = std::thread::spawn(move || {
            let driver = Driver::new();
            send_wake.send(driver.waker()).unwrap();
            let filesystem = Rc::new(make(pool.clone()));
            let control = |filesystem: &Rc<F>, executor: &Executor| {
                for job in inbox.try_iter() {
                    job(filesystem, executor);
                    executor.run();
                }
            };
            let connection = Connection::new();
            serve(device, connection, settings, pool, filesystem, &driver, control)
        });
        let watched = mount.unmounter();
        Served {
            path: mount.path().to_owned(),
            mount: Some(mount),
            notifier: Some(notifier),
            jobs,
            wake: wake.recv().unwrap(),
            thread: Some(thread),
            _watchdog: Watchdog::new(watched),
            _folder: folder,
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn mount(&self) -> &Mount {
        self.mount.as_ref().unwrap()
    }

    /// Runs `job` on the loop's thread.
    pub fn run<R: Send + 'static>(&self, job: impl FnOnce(&F) -> R + Send + 'static) -> R {
        let (send, receive) = channel();
        let job: Job<F> = Box::new(move |filesystem, _| send.send(job(filesystem)).unwrap());
        self.jobs.send(job).unwrap();
        rustix::io::write(&self.wake, &1u64.to_ne_bytes()).unwrap();
        receive.recv_timeout(Duration::from_secs(10)).expect("the loop answers")
    }

    /// Unmounts cleanly and returns what the loop counted.
    pub fn stop(mut self) -> Counters {
        self.notifier = None;
        let mount = self.mount.take().unwrap();
        mount.unmount().map_err(|(_, error)| error).unwrap();
        self.thread.take().unwrap().join().unwrap()
    }
}

impl<F: Filesystem> Drop for Served<F> {
    fn drop(&mut self) {
        // Should the test have failed, threads of it may hang in the mount.
        if let Some(mount) = self.mount.take() {
            let _ = mount.unmounter().abort();
        }
    }
}

/// Cuts a mount off that has lived for too long: threads of a test that failed may wait in it, and
/// a process whose threads wait for its own mount cannot be killed.
pub struct Watchdog {
    _alive: Sender<()>,
}

impl Watchdog {
    pub fn new(unmounter: Unmounter) -> Watchdog {
        let (alive, gone) = channel::<()>();
        std::thread::spawn(move || {
            let limit = Duration::from_secs(LIFE_SECONDS.load(Ordering::Relaxed));
            if gone.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                eprintln!("the mount is cut off: {:?}", unmounter.abort());
            }
        });
        Watchdog { _alive: alive }
    }
}

/// Waits until `ready` says so, at most ten seconds.
pub fn wait_until(what: &str, mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < Duration::from_secs(10), "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
