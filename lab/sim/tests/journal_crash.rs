//! The metadata store under power cuts and kill -9 at arbitrary moments, against a model.
//!
//! One seed is one history: several lives of a store on one virtual disk. Each life commits random
//! batches, waits for marks now and then, and ends at a random call to the disk, often inside a
//! checkpoint. The next life must find a prefix of the commits: all that was acknowledged as
//! written where the process was killed, all that was acknowledged as durable where the power was
//! cut, no batch in part, and none without those before it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_base::disk::Disk;
use ropewalk_base::executor::Executor;
use ropewalk_base::ids::{ClusterId, ServerId};
use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_base::world::{Clock, Offload, Work, World};
use ropewalk_sim::disk::VirtualDisk;
use ropewalk_store::journal::JournalConfig;
use ropewalk_store::superblock::{Expect, Identity, Role, claim};
use ropewalk_store::{
    Batch, EmbeddedConfig, EmbeddedStore, KeyRange, MetaStore, Order, StoreError,
};

const LIVES: u64 = 4;
const KEYS: u64 = 60;

#[derive(Default)]
struct VirtualClock(Cell<u64>);

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
struct Life {
    executor: Executor,
    clock: Rc<VirtualClock>,
    queue: Rc<Queue>,
    world: World,
    random: Random,
}

impl Life {
    fn new(disk: &VirtualDisk, random: &mut Random) -> Life {
        let executor = Executor::shuffled(Box::new(|| ()), random.fork());
        let (clock, queue) = (Rc::new(VirtualClock::default()), Rc::new(Queue::default()));
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let world =
            World::new(executor.clone(), clock.clone(), shared, queue.clone(), random.fork());
        Life { executor, clock, queue, world, random: random.fork() }
    }

    /// Runs tasks, blocking work and timers in a random order until `done` or nothing is left.
    fn run(&mut self, done: impl Fn() -> bool) {
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
}

impl Drop for Life {
    fn drop(&mut self) {
        self.executor.clear();
        self.queue.0.borrow_mut().clear();
    }
}

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;
type Changes = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// What was committed, position by position, and what was promised.
#[derive(Default)]
struct Model {
    batches: Vec<Changes>,
    written: u64,
    durable: u64,
}

impl Model {
    fn rows(&self, through: u64) -> Rows {
        let mut rows = Rows::new();
        for (key, value) in self.batches[..through as usize].iter().flatten() {
            match value {
                Some(value) => rows.insert(key.clone(), value.clone()),
                None => rows.remove(key),
            };
        }
        rows
    }
}

fn config() -> EmbeddedConfig {
    EmbeddedConfig {
        journal: JournalConfig {
            segment_bytes: 16 * 1024,
            sync_interval: Duration::from_millis(20),
        },
        cache_bytes: 256 * 1024,
        overlay_bytes: 6 * 1024,
        journal_bytes: 40 * 1024,
    }
}

fn random_changes(random: &mut Random) -> Changes {
    let count = 1 + random.below(5);
    (0..count)
        .map(|_| {
            let key = format!("row{:02}", random.below(KEYS)).into_bytes();
            let value = vec![random.below(256) as u8; random.below(300) as usize];
            (key, (random.below(4) > 0).then_some(value))
        })
        .collect()
}

fn to_batch(changes: &Changes) -> Batch {
    let mut batch = Batch::new();
    for (key, value) in changes {
        match value {
            Some(value) => batch.put(key, value),
            None => batch.delete(key),
        };
    }
    batch
}

/// Commits until the disk stops or the plan ends. Whoever waits notes what was promised.
async fn client(world: World, store: EmbeddedStore, model: Rc<RefCell<Model>>, mut random: Random) {
    for _ in 0..random.below(80) {
        if store.ready().await.is_err() {
            return;
        }
        let changes = random_changes(&mut random);
        let Ok(position) = store.commit(&to_batch(&changes)) else { return };
        {
            let mut model = model.borrow_mut();
            model.batches.push(changes);
            assert_eq!(model.batches.len() as u64, position.0);
        }
        match random.below(8) {
            0 => {
                let (store, model) = (store.clone(), model.clone());
                world.spawn(async move {
                    if store.wait_durable(position).await.is_ok() {
                        let mut model = model.borrow_mut();
                        model.durable = model.durable.max(position.0);
                    }
                });
            }
            1 | 2 => {
                if store.wait_written(position).await.is_err() {
                    return;
                }
                let mut model = model.borrow_mut();
                model.written = model.written.max(position.0);
            }
            3 if random.below(6) == 0 => {
                if store.checkpoint().await.is_err() {
                    return;
                }
                let mut model = model.borrow_mut();
                model.durable = model.durable.max(store.durable().0);
            }
            4 => world.sleep(Duration::from_millis(random.below(30))).await,
            _ => (),
        }
    }
}

/// How a life ended.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Killed,
    PowerCut,
}

/// What the store of a new life must hold.
fn check(store: &EmbeddedStore, model: &mut Model, end: End) -> Result<(), String> {
    let last = store.position().0;
    let promised = match end {
        End::Killed => model.written.max(model.durable),
        End::PowerCut => model.durable,
    };
    if last < promised {
        return Err(format!("{end:?}: position {last}, but {promised} was promised"));
    }
    if last > model.batches.len() as u64 {
        return Err(format!("{end:?}: position {last} was never committed"));
    }
    let rows = store
        .scan(KeyRange::all(), Order::Forward, usize::MAX)
        .map_err(|error| error.to_string())?;
    let rows: Rows = rows.into_iter().map(|(key, value)| (key, value.to_vec())).collect();
    if rows != model.rows(last) {
        return Err(format!("{end:?}: the rows are not those of position {last}"));
    }
    // What was not found again is gone for good; the start made the rest durable.
    model.batches.truncate(last as usize);
    model.written = last;
    model.durable = last;
    Ok(())
}

/// One life; an error where a promise was broken.
fn live(
    disk: &VirtualDisk,
    random: &mut Random,
    model: &Rc<RefCell<Model>>,
    end: End,
    halt: bool,
) -> Result<(), String> {
    if halt {
        disk.halt_after(1 + random.below(900));
    }
    let mut life = Life::new(disk, random);
    let identity = Identity { cluster: ClusterId(1), server: ServerId(1), role: Role::Metadata };
    let path = Path::new("/store");
    let fresh = (random.next_u64(), random.next_u128());
    let claimed = match claim(disk, path, identity, Expect::Any, fresh) {
        Ok(claimed) => claimed,
        Err(_) if disk.is_halted() => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    let opened: Rc<RefCell<Option<Result<EmbeddedStore, StoreError>>>> = Rc::default();
    let (out, world) = (opened.clone(), life.world.clone());
    let boot = claimed.boot;
    life.executor.spawn(async move {
        let store = EmbeddedStore::open(&world, Path::new("/store"), boot, config(), false).await;
        *out.borrow_mut() = Some(store);
    });
    life.run(|| opened.borrow().is_some());
    let store = match opened.borrow_mut().take().expect("the store was opened") {
        Ok(store) => store,
        Err(_) if disk.is_halted() => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    if !disk.is_halted() {
        let checked = check(&store, &mut model.borrow_mut(), end);
        match checked {
            Err(_) if disk.is_halted() => return Ok(()),
            other => other?,
        }
    }
    let client = client(life.world.clone(), store.clone(), model.clone(), random.fork());
    life.executor.spawn(client);
    life.run(|| disk.is_halted());
    let halt = disk.is_halted();
    // The stop itself is reported too: no later write may seem to have succeeded.
    let written = store.written();
    life.run(|| false);
    assert!(!halt || store.written() == written);
    Ok(())
}

/// A history; an error names the broken promise.
fn history(seed: u64, skip_sync: bool) -> Result<u64, String> {
    let mut random = Random::from_seed(seed);
    let disk = VirtualDisk::new(random.next_u64());
    disk.skip_sync(skip_sync);
    let model = Rc::new(RefCell::new(Model::default()));
    let mut end = End::Killed;
    for life in 0..=LIVES {
        live(&disk, &mut random, &model, end, life < LIVES)?;
        end = if random.below(2) == 0 { End::Killed } else { End::PowerCut };
        match end {
            End::Killed => disk.survive_process_death(),
            End::PowerCut => disk.crash(&mut random),
        }
    }
    let committed = model.borrow().batches.len() as u64;
    Ok(committed)
}

#[test]
fn every_promise_holds_over_500_histories() {
    let mut committed = 0;
    for seed in 0..500 {
        match history(seed, false) {
            Ok(count) => committed += count,
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    assert!(committed > 20_000, "only {committed} commits survived: the test shows little");
}

#[test]
fn a_store_that_skips_its_syncs_is_found_out() {
    let found = (0..20).filter(|seed| history(*seed, true).is_err()).count();
    assert!(found >= 10, "only {found} of 20 histories noticed the planted bug");
}

#[test]
fn a_seed_gives_the_same_history_again() {
    for seed in [3, 4] {
        assert_eq!(history(seed, false), history(seed, false));
    }
}
