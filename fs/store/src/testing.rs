//! A small driver for tests and measurements: one executor thread, helper threads, a real clock.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use ropewalk_base::disk::Disk;
use ropewalk_base::executor::Executor;
use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_base::world::{Clock, Offload, Work, World};

struct RealClock(Instant);

impl Clock for RealClock {
    fn now(&self) -> Time {
        Time(self.0.elapsed().as_nanos() as u64)
    }

    fn unix_nanos(&self) -> i64 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        since.expect("the calendar is past 1970").as_nanos() as i64
    }
}

/// Two helper threads with one queue. They are waited for at the end: a thread that outlives its store
/// would go on writing beside the store that a test opens next.
struct Helpers {
    queue: Option<mpsc::Sender<Work>>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Helpers {
    fn start() -> Helpers {
        let (sender, receiver) = mpsc::channel::<Work>();
        let receiver = Arc::new(Mutex::new(receiver));
        let work_off = move || {
            loop {
                let work = receiver.lock().expect("no helper panics").recv();
                match work {
                    Ok(work) => work(),
                    Err(_) => return,
                }
            }
        };
        let threads = (0..2).map(|_| std::thread::spawn(work_off.clone())).collect();
        Helpers { queue: Some(sender), threads }
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        self.queue = None;
        for thread in self.threads.drain(..) {
            thread.join().expect("no helper panics");
        }
    }
}

impl Offload for Helpers {
    fn offload(&self, work: Work) {
        let queue = self.queue.as_ref().expect("open until the end");
        queue.send(work).expect("helpers live as long as the driver");
    }
}

/// Runs one future, and all tasks it starts, until the future is done.
pub fn run<T: 'static, F: Future<Output = T> + 'static>(
    disk: Arc<dyn Disk>,
    make: impl FnOnce(World) -> F,
) -> T {
    let driver = std::thread::current();
    let executor = Executor::new(Box::new(move || driver.unpark()));
    let clock = Rc::new(RealClock(Instant::now()));
    let helpers = Rc::new(Helpers::start());
    let world = World::new(executor.clone(), clock, disk, helpers, Random::from_seed(1));
    let result = Rc::new(RefCell::new(None));
    let (out, future) = (result.clone(), make(world.clone()));
    executor.spawn(async move {
        let value = future.await;
        *out.borrow_mut() = Some(value);
    });
    loop {
        executor.run();
        if let Some(value) = result.borrow_mut().take() {
            executor.clear();
            return value;
        }
        if executor.park() {
            let deadline = executor.next_deadline().unwrap_or(Time::NEVER);
            let wait = deadline.since(world.now());
            std::thread::park_timeout(wait.min(Duration::from_secs(1)));
        }
        executor.unparked();
        executor.fire_timers(world.now());
    }
}
