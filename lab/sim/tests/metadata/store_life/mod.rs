//! Lives of a metadata store alone, on a virtual disk: for tests that kill it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use ropewalk_base::disk::Disk;
use ropewalk_base::executor::Executor;
use ropewalk_base::ids::{ClusterId, ServerId};
use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_base::world::{Clock, Offload, Work, World};
use ropewalk_sim::disk::VirtualDisk;
use ropewalk_store::superblock::{
    Boot, ClaimError, ClaimedDirectory, Expect, Identity, Role, claim,
};
use ropewalk_store::{JournaledConfig, JournaledStore, StoreError};

/// The path of the store.
pub const STORE: &str = "/store";

/// Claims the store's directory; `fresh` is the randomness of the boot.
pub fn take(disk: &VirtualDisk, fresh: (u64, u128)) -> Result<ClaimedDirectory, ClaimError> {
    let identity = Identity { cluster: ClusterId(1), server: ServerId(1), role: Role::Metadata };
    claim(disk, Path::new(STORE), identity, Expect::Any, fresh)
}

#[derive(Default)]
pub struct VirtualClock(pub Cell<u64>);

impl Clock for VirtualClock {
    fn now(&self) -> Time {
        Time(self.0.get())
    }
    fn unix_nanos(&self) -> i64 {
        self.0.get() as i64
    }
}

/// Blocking work, done when the driver picks it.
#[derive(Default)]
struct Queue(RefCell<VecDeque<Work>>);

impl Offload for Queue {
    fn offload(&self, work: Work) {
        self.0.borrow_mut().push_back(work);
    }
}

/// One life of one node.
pub struct Life {
    pub executor: Executor,
    pub clock: Rc<VirtualClock>,
    queue: Rc<Queue>,
    pub world: World,
    random: Random,
}

impl Life {
    pub fn new(disk: &VirtualDisk, random: &mut Random) -> Life {
        let executor = Executor::shuffled(Box::new(|| ()), random.fork());
        let (clock, queue) = (Rc::new(VirtualClock::default()), Rc::new(Queue::default()));
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let world =
            World::new(executor.clone(), clock.clone(), shared, queue.clone(), random.fork());
        Life { executor, clock, queue, world, random: random.fork() }
    }

    /// The world of a second node, which lives and dies with the first one.
    pub fn beside(&mut self, disk: &VirtualDisk) -> World {
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let (executor, queue) = (self.executor.clone(), self.queue.clone());
        World::new(executor, self.clock.clone(), shared, queue, self.random.fork())
    }

    /// Runs tasks, blocking work and timers in a random order until `done` or nothing is left.
    pub fn run(&mut self, done: impl Fn() -> bool) {
        while !done() {
            let work = !self.queue.0.borrow().is_empty();
            let ready = self.random.below(3) > 0 && self.executor.run_one();
            if ready || (work && self.random.below(2) == 0) {
                let work = if ready { None } else { self.queue.0.borrow_mut().pop_front() };
                work.into_iter().for_each(|work| work());
                continue;
            }
            if self.executor.run_one() || work {
                continue;
            }
            let Some(deadline) = self.executor.next_deadline() else { return };
            self.clock.0.set(self.clock.0.get().max(deadline.0));
            self.executor.fire_timers(deadline);
        }
    }

    /// Opens the store of a boot.
    pub fn open(
        &mut self,
        boot: Boot,
        config: JournaledConfig,
    ) -> Result<JournaledStore, StoreError> {
        let opened: Rc<RefCell<Option<Result<JournaledStore, StoreError>>>> = Rc::default();
        let (out, world) = (opened.clone(), self.world.clone());
        self.executor.spawn(async move {
            let store = JournaledStore::open(&world, Path::new(STORE), boot, config, false).await;
            *out.borrow_mut() = Some(store);
        });
        self.run(|| opened.borrow().is_some());
        let result = opened.borrow_mut().take();
        result.expect("the store was opened")
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.executor.clear();
        self.queue.0.borrow_mut().clear();
    }
}
