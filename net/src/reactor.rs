//! Drives the tasks of one thread: executor, endpoints, other sources, timers, sleep.
//!
//! One loop, one thread: run the ready tasks, make a pass over every source, and sleep on all their descriptors when
//! nothing happened. Spinning before the sleep lasts only as long as it has been paying.

use std::cell::RefCell;
use std::future::Future;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ropewalk_base::disk::Disk;
use ropewalk_base::executor::Executor;
use ropewalk_base::ids::ClusterId;
use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_base::world::{Clock, Offload, Work, World};
use ropewalk_rail::Rail;
use rustix::event::epoll;
use rustix::event::{EventfdFlags, eventfd};

use crate::cpu_latency::CpuLatency;
use crate::endpoint::{Endpoint, EndpointConfig};
use crate::local::LocalEndpoint;
use crate::payload::PayloadModes;
use crate::security::Security;
use crate::spin::{SPIN_MAX, Spin};

/// Something that brings work to the tasks of a thread.
pub trait Source {
    /// One pass; true where anything happened.
    fn poll(&self) -> bool;
    /// Readable while there is work after `arm` said true.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
    /// Prepares for sleep; false where there is work. With it, when the next pass is due.
    fn arm(&self) -> (bool, Option<Time>);
    /// The sleep is over.
    fn disarm(&self);
}

impl Source for LocalEndpoint {
    fn poll(&self) -> bool {
        LocalEndpoint::poll(self)
    }
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.endpoint().descriptor())
    }
    fn arm(&self) -> (bool, Option<Time>) {
        let (armed, deadline) = self.endpoint().arm_rails();
        (armed && !self.has_work(), deadline)
    }
    fn disarm(&self) {
        self.endpoint().disarm_rails();
    }
}

/// The driver of one thread's tasks.
pub struct Reactor {
    executor: Executor,
    sources: RefCell<Vec<Rc<dyn Source>>>,
    epoll: OwnedFd,
    bell: Arc<OwnedFd>,
    start: Duration,
    spin: std::cell::Cell<Spin>,
    awake: RefCell<CpuLatency>,
}

const BELL: u64 = u64::MAX;

impl Reactor {
    /// A reactor without sources, for the calling thread.
    pub fn new() -> std::io::Result<Reactor> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        epoll::add(&epoll, &*bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        let unpark = bell.clone();
        let executor = Executor::new(Box::new(move || {
            // A full counter means that the bell is ringing already.
            let _ = rustix::io::write(&*unpark, &1u64.to_ne_bytes());
        }));
        Ok(Reactor {
            executor,
            sources: RefCell::new(Vec::new()),
            epoll,
            bell,
            start: uptime(),
            spin: std::cell::Cell::new(Spin::new()),
            awake: RefCell::new(CpuLatency::never()),
        })
    }

    /// From now on keeps the processors from sleeping while this thread goes to sleep and is woken all
    /// the time: wake-ups cost more than the work then. Without effect where this process may not.
    pub fn keep_processors_awake(&self) {
        self.awake.replace(CpuLatency::while_busy());
    }

    /// The executor whose tasks it runs.
    pub fn executor(&self) -> &Executor {
        &self.executor
    }

    /// Adds a source of work.
    pub fn add(&self, source: Rc<dyn Source>) -> std::io::Result<()> {
        let mut sources = self.sources.borrow_mut();
        if let Some(descriptor) = source.descriptor() {
            let data = epoll::EventData::new_u64(sources.len() as u64);
            epoll::add(&self.epoll, descriptor, data, epoll::EventFlags::IN)?;
        }
        sources.push(source);
        Ok(())
    }

    /// Stops, or starts again, to wake for a source's descriptor: one that rests leaves it readable.
    pub fn watch(&self, source: &Rc<dyn Source>, watched: bool) -> std::io::Result<()> {
        let sources = self.sources.borrow();
        let index = sources.iter().position(|other| Rc::ptr_eq(other, source));
        if let (Some(index), Some(descriptor)) = (index, source.descriptor()) {
            let data = epoll::EventData::new_u64(index as u64);
            let flags = if watched { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
            epoll::modify(&self.epoll, descriptor, data, flags)?;
        }
        Ok(())
    }

    /// Opens an endpoint on these rails, and drives it: for tasks of this reactor, without a service
    /// thread. `cluster`: the one that is meant, or number 0 for whichever is found at an address.
    pub fn open_endpoint(
        &self,
        cluster: ClusterId,
        rails: Vec<Box<dyn Rail>>,
    ) -> std::io::Result<LocalEndpoint> {
        self.open_endpoint_with(cluster, rails, Security::None, PayloadModes::default())
    }

    /// The same for peers that this lets in, with payloads protected like this.
    pub fn open_endpoint_with(
        &self,
        cluster: ClusterId,
        rails: Vec<Box<dyn Rail>>,
        security: Security,
        payload: PayloadModes,
    ) -> std::io::Result<LocalEndpoint> {
        let mut config = EndpointConfig::new(cluster);
        config.service_thread = false;
        config.security = security;
        config.payload = payload;
        config.clock = self.shared_clock();
        let endpoint = LocalEndpoint::new(Endpoint::open(config, rails)?)?;
        self.add(Rc::new(endpoint.clone()))?;
        Ok(endpoint)
    }

    /// A world on this thread, with the host's clock and randomness, this disk, and `threads`
    /// threads for blocking work.
    pub fn world(&self, disk: Arc<dyn Disk>, threads: usize) -> std::io::Result<World> {
        Ok(World::new(
            self.executor.clone(),
            Rc::new(HostClock { start: self.start }),
            disk,
            Rc::new(ThreadPool::new(threads)?),
            Random::from_seed(crate::host::random_seed()),
        ))
    }

    /// The clock of deadlines, for endpoints of this reactor.
    pub fn shared_clock(&self) -> crate::endpoint::SharedClock {
        let start = self.start;
        Arc::new(move || since(start))
    }

    /// Runs tasks until `future` is done.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let flag = Arc::new(Flag {
            set: AtomicBool::new(true),
            asleep: AtomicBool::new(false),
            bell: self.bell.clone(),
        });
        let waker = Waker::from(flag.clone());
        loop {
            if flag.set.swap(false, Ordering::SeqCst)
                && let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker))
            {
                return value;
            }
            let busy = self.turn();
            if !busy && !flag.set.load(Ordering::SeqCst) {
                self.idle(&flag);
            }
        }
    }

    fn now(&self) -> Time {
        since(self.start)
    }

    /// Runs the ready tasks, then makes one pass over the sources. True if anything happened.
    pub fn turn(&self) -> bool {
        if self.executor.next_deadline().is_some() {
            self.executor.fire_timers(self.now());
        }
        let mut any = self.executor.run();
        let count = self.sources.borrow().len();
        for index in 0..count {
            let source = self.sources.borrow()[index].clone();
            any |= source.poll();
        }
        any | self.executor.run()
    }

    /// Nothing is ready: spins while that pays, then sleeps.
    fn idle(&self, flag: &Flag) {
        let mut spin = self.spin.get();
        let budget = spin.budget(SPIN_MAX);
        if !budget.is_zero() {
            let until = Instant::now() + budget;
            while Instant::now() < until {
                if self.turn() {
                    spin.paid();
                    self.spin.set(spin);
                    return;
                }
                std::hint::spin_loop();
            }
            spin.missed();
        }
        self.spin.set(spin);
        self.sleep(flag);
    }

    fn sleep(&self, flag: &Flag) {
        // From here on a thread that wakes the future rings; before, the flag is enough.
        flag.asleep.store(true, Ordering::SeqCst);
        if !flag.set.load(Ordering::SeqCst) && self.executor.park() {
            self.sleep_on_sources();
            self.executor.unparked();
        }
        flag.asleep.store(false, Ordering::SeqCst);
    }

    fn sleep_on_sources(&self) {
        let sources = self.sources.borrow().clone();
        let mut deadline = self.executor.next_deadline();
        let mut armed = 0;
        let mut ready = false;
        for source in &sources {
            let (can_sleep, due) = source.arm();
            armed += 1;
            deadline = [deadline, due].into_iter().flatten().min();
            if !can_sleep {
                ready = true;
                break;
            }
        }
        if !ready {
            let limit = deadline.map(|deadline| deadline.since(self.now()));
            let hold = self.awake.borrow_mut().before_sleep();
            let limit = [limit, hold].into_iter().flatten().min();
            let timeout = limit.map(|limit| rustix::time::Timespec {
                tv_sec: limit.as_secs() as i64,
                tv_nsec: i64::from(limit.subsec_nanos()),
            });
            let mut events = [epoll::Event {
                flags: epoll::EventFlags::empty(),
                data: epoll::EventData::new_u64(0),
            }; 8];
            // An interrupted sleep is a short one: the loop looks again in any case.
            let count = epoll::wait(&self.epoll, &mut events[..], timeout.as_ref()).unwrap_or(0);
            if events[..count].iter().any(|event| event.data.u64() == BELL) {
                let mut rung = [0u8; 8];
                let _ = rustix::io::read(self.bell.as_fd(), &mut rung);
            }
        }
        for source in &sources[..armed] {
            source.disarm();
        }
    }
}

/// Wakes the future of `block_on`.
struct Flag {
    set: AtomicBool,
    /// The thread sleeps, or is about to: setting the flag is not enough.
    asleep: AtomicBool,
    bell: Arc<OwnedFd>,
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.set.store(true, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
        }
    }
}

/// The host's time since it booted, in which it was suspended, too: a lease has ended at the others meanwhile.
fn uptime() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

fn since(start: Duration) -> Time {
    Time(uptime().saturating_sub(start).as_nanos() as u64)
}

struct HostClock {
    start: Duration,
}

impl Clock for HostClock {
    fn now(&self) -> Time {
        since(self.start)
    }
    fn unix_nanos(&self) -> i64 {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => since.as_nanos() as i64,
            Err(before) => -(before.duration().as_nanos() as i64),
        }
    }
}

/// Threads for blocking work.
struct ThreadPool {
    queue: mpsc::Sender<Work>,
}

impl ThreadPool {
    fn new(threads: usize) -> std::io::Result<ThreadPool> {
        let (queue, jobs) = mpsc::channel::<Work>();
        let jobs = Arc::new(std::sync::Mutex::new(jobs));
        for number in 0..threads.max(1) {
            let jobs = jobs.clone();
            // If a thread cannot be started, the earlier ones end with the queue.
            crate::threads::start(&format!("ropewalk-disk-{number}"), move || {
                loop {
                    let job = jobs.lock().expect("a job runs outside of the lock").recv();
                    match job {
                        Ok(job) => job(),
                        Err(_) => return,
                    }
                }
            })?;
        }
        Ok(ThreadPool { queue })
    }
}

impl Offload for ThreadPool {
    fn offload(&self, work: Work) {
        self.queue.send(work).expect("the threads live as long as the pool");
    }
}
