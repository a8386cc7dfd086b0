//! Lives of an object store alone, on a virtual disk, one step after the other.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use ropewalk_base::checksum::crc32c;
use ropewalk_base::disk::Disk;
use ropewalk_base::executor::Executor;
use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_base::world::{Clock, Offload, Work, World};
use ropewalk_sim::disk::VirtualDisk;
use ropewalk_store::objects::{
    BLOCK_BYTES, Config, ObjectError, ObjectId, ObjectStore, Recovery, WriteEpoch,
};

/// The path of the store.
pub const ROOT: &str = "/data/store";

struct StillClock;

impl Clock for StillClock {
    fn now(&self) -> Time {
        Time(0)
    }
    fn unix_nanos(&self) -> i64 {
        0
    }
}

#[derive(Default)]
struct Queue(RefCell<VecDeque<Work>>);

impl Offload for Queue {
    fn offload(&self, work: Work) {
        self.0.borrow_mut().push_back(work);
    }
}

/// One life of one process.
pub struct Life {
    executor: Executor,
    queue: Rc<Queue>,
    pub world: World,
}

impl Life {
    pub fn new(disk: &VirtualDisk, seed: u64) -> Life {
        let mut random = Random::from_seed(seed);
        let executor = Executor::shuffled(Box::new(|| ()), random.fork());
        let queue = Rc::new(Queue::default());
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let clock = Rc::new(StillClock);
        let world = World::new(executor.clone(), clock, shared, queue.clone(), random);
        Life { executor, queue, world }
    }

    /// One task or else one piece of blocking work; false if there is neither.
    pub fn step(&mut self) -> bool {
        if self.executor.run_one() {
            return true;
        }
        let work = self.queue.0.borrow_mut().pop_front();
        work.map(|work| work()).is_some()
    }

    /// As [`Life::step`], but runs any of the queued work: helpers end in any order.
    pub fn step_any(&mut self, random: &mut Random) -> bool {
        if random.below(2) == 0 && self.executor.run_one() {
            return true;
        }
        let queued = self.queue.0.borrow().len() as u64;
        if queued == 0 {
            return self.executor.run_one();
        }
        let pick = random.below(queued) as usize;
        let work = self.queue.0.borrow_mut().remove(pick).expect("counted");
        work();
        true
    }

    /// Runs a future to its end, with everything else.
    pub fn run<T: 'static>(&mut self, future: impl Future<Output = T> + 'static) -> T {
        let result = Rc::new(RefCell::new(None));
        let out = result.clone();
        self.world.spawn(async move {
            let value = future.await;
            *out.borrow_mut() = Some(value);
        });
        while result.borrow().is_none() {
            assert!(self.step(), "it cannot go on");
        }
        result.take().expect("just seen")
    }

    /// Opens the store in [`ROOT`].
    pub fn open(&mut self, config: Config) -> Result<(ObjectStore, Recovery), ObjectError> {
        let world = self.world.clone();
        self.run(async move { ObjectStore::open(Path::new(ROOT), config, &world).await })
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.executor.clear();
        self.queue.0.borrow_mut().clear();
    }
}

/// Checksums of the parts that a range has in each block.
pub fn checksums(offset: usize, data: &[u8]) -> Vec<u32> {
    let first = (BLOCK_BYTES - offset % BLOCK_BYTES).min(data.len());
    let (head, rest) = data.split_at(first);
    std::iter::once(head).chain(rest.chunks(BLOCK_BYTES)).map(crc32c).collect()
}

/// Writes, and keeps what must be read.
pub struct Writer {
    pub store: ObjectStore,
    pub expected: BTreeMap<ObjectId, Vec<u8>>,
    object_bytes: usize,
    by: WriteEpoch,
    version: u8,
}

impl Writer {
    pub fn new(store: &ObjectStore, object_bytes: usize, by: WriteEpoch) -> Writer {
        Writer { store: store.clone(), expected: BTreeMap::new(), object_bytes, by, version: 0 }
    }

    /// Writes bytes of which none is zero.
    pub fn write(&mut self, object: ObjectId, offset: usize, length: usize) {
        self.version = self.version.wrapping_add(1);
        let data: Vec<u8> = (0..length).map(|at| self.version ^ (at % 251) as u8 | 1).collect();
        let sums = checksums(offset, &data);
        self.store.write(object, offset as u64, &[&data], &sums, self.by).unwrap();
        let whole = self.expected.entry(object).or_insert_with(|| vec![0; self.object_bytes]);
        whole[offset..offset + length].copy_from_slice(&data);
    }

    pub fn punch(&mut self, object: ObjectId, offset: usize, length: usize) {
        self.store.punch(object, offset as u64, length as u64, self.by).unwrap();
        self.expected.get_mut(&object).unwrap()[offset..offset + length].fill(0);
    }
}
