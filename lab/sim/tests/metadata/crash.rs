//! The metadata store under power cuts and kill -9 at arbitrary moments, against a model.
//!
//! One seed is one history: several lives of a store on one virtual disk. Each life commits random
//! batches, waits for marks now and then, and ends at a random call to the disk, often inside a
//! checkpoint. The next life must find a prefix of the commits: all that was acknowledged as
//! written where the process was killed, all that was acknowledged as durable where the power was
//! cut, no batch in part, and none without those before it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::store_life;
use crate::store_life::Life;
use ropewalk_base::disk::{Disk, Open};
use ropewalk_base::random::Random;
use ropewalk_base::world::World;
use ropewalk_sim::disk::VirtualDisk;
use ropewalk_sim::seeds;
use ropewalk_store::journal::JournalConfig;
use ropewalk_store::{
    Batch, JournaledConfig, JournaledStore, KeyRange, MetaStore, Order, StoreError,
};

const LIVES: u64 = 4;
const KEYS: u64 = 60;

pub type Rows = BTreeMap<Vec<u8>, Vec<u8>>;
pub type Changes = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// The committed batches, position by position, and the positions that were promised.
#[derive(Default)]
struct Model {
    /// The power was cut since a start found its rows: batches that were only written may be gone.
    power_cut: bool,
    batches: Vec<Changes>,
    written: u64,
    durable: u64,
}

/// The rows after these batches.
pub fn rows_of(batches: &[Changes]) -> Rows {
    let mut rows = Rows::new();
    for (key, value) in batches.iter().flatten() {
        match value {
            Some(value) => rows.insert(key.clone(), value.clone()),
            None => rows.remove(key),
        };
    }
    rows
}

/// All rows of a store.
pub fn rows_in(store: &JournaledStore) -> Result<Rows, StoreError> {
    let rows = store.scan(KeyRange::all(), Order::Forward, usize::MAX)?;
    Ok(rows.into_iter().map(|(key, value)| (key, value.to_vec())).collect())
}

pub fn config() -> JournaledConfig {
    JournaledConfig {
        journal: JournalConfig {
            segment_bytes: 16 * 1024,
            sync_interval: Duration::from_millis(20),
        },
        cache_bytes: 256 * 1024,
        overlay_bytes: 6 * 1024,
        journal_bytes: 40 * 1024,
        reserve_bytes: 64 * 1024,
    }
}

pub fn random_changes(random: &mut Random) -> Changes {
    let count = 1 + random.below(5);
    (0..count)
        .map(|_| {
            let key = format!("row{:02}", random.below(KEYS)).into_bytes();
            let value = vec![random.below(256) as u8; random.below(300) as usize];
            (key, (random.below(4) > 0).then_some(value))
        })
        .collect()
}

pub fn to_batch(changes: &Changes) -> Batch {
    let mut batch = Batch::new();
    for (key, value) in changes {
        match value {
            Some(value) => batch.put(key, value),
            None => batch.delete(key),
        };
    }
    batch
}

/// Commits until the disk stops or the plan ends. A task that waits notes the promised positions.
async fn client(
    world: World,
    store: JournaledStore,
    model: Rc<RefCell<Model>>,
    mut random: Random,
) {
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

/// Checks that the store of a new life holds the promised rows.
fn check(store: &JournaledStore, model: &mut Model) -> Result<(), String> {
    let last = store.position().0;
    let end = if model.power_cut { "power cut" } else { "killed" };
    let promised = if model.power_cut { model.durable } else { model.written.max(model.durable) };
    if last < promised {
        return Err(format!("{end}: position {last}, but {promised} was promised"));
    }
    if last > model.batches.len() as u64 {
        return Err(format!("{end}: position {last} was never committed"));
    }
    let rows = rows_in(store).map_err(|error| error.to_string())?;
    if rows != rows_of(&model.batches[..last as usize]) {
        return Err(format!("{end}: the rows are not those of position {last}"));
    }
    // Batches that were not found again are gone for good; the start made the rest durable.
    model.batches.truncate(last as usize);
    model.written = last;
    model.durable = last;
    model.power_cut = false;
    Ok(())
}

/// One life; an error if a promise was broken.
fn live(
    disk: &VirtualDisk,
    random: &mut Random,
    model: &Rc<RefCell<Model>>,
    halt: bool,
) -> Result<(), String> {
    let mut faulty = false;
    if halt {
        disk.halt_after(1 + random.below(900));
        faulty = random.below(4) == 0;
        if faulty {
            disk.fail_sync(1 + random.below(60));
        }
    }
    let mut life = Life::new(disk, random);
    let fresh = (random.next_u64(), random.next_u128());
    let claimed = match store_life::take(disk, fresh) {
        Ok(claimed) => claimed,
        Err(_) if faulty || disk.is_halted() => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    let store = match life.open(claimed.boot, config()) {
        Ok(store) => store,
        Err(_) if disk.is_halted() => return Ok(()),
        Err(StoreError::Io { .. } | StoreError::Index { .. }) if faulty => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    if !disk.is_halted() {
        let checked = check(&store, &mut model.borrow_mut());
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
    for life in 0..=LIVES {
        live(&disk, &mut random, &model, life < LIVES)?;
        if random.below(2) == 0 {
            disk.survive_process_death();
        } else {
            disk.crash(&mut random);
            model.borrow_mut().power_cut = true;
        }
    }
    let committed = model.borrow().batches.len() as u64;
    Ok(committed)
}

#[test]
fn every_promise_holds_over_500_histories() {
    let (mut histories, mut committed) = (0, 0);
    for seed in seeds(0, 500) {
        match history(seed, false) {
            Ok(count) => committed += count,
            Err(error) => panic!("ROPEWALK_SEED={seed}: {error}"),
        }
        histories += 1;
    }
    assert!(committed > 40 * histories, "only {committed} commits survived: the test shows little");
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

/// Opens the store on a disk that works, in a life of its own.
fn open_fresh(life: &mut Life, disk: &VirtualDisk) -> Result<JournaledStore, StoreError> {
    open_under(life, disk, |_| ())
}

/// Opens the store in a life of its own, with faults of the disk from the claim on.
fn open_under(
    life: &mut Life,
    disk: &VirtualDisk,
    faults: impl FnOnce(&VirtualDisk),
) -> Result<JournaledStore, StoreError> {
    let claimed = store_life::take(disk, (1, 2)).unwrap();
    faults(disk);
    life.open(claimed.boot, config())
}

/// Commits one row after the other until `stop` or an error.
async fn fill(store: JournaledStore, stop: u64, out: Rc<RefCell<Option<StoreError>>>) {
    for number in 0..stop {
        let mut batch = Batch::new();
        batch.put(&number.to_be_bytes(), &[7; 200]);
        let done = match store.ready().await {
            Ok(()) => store.commit(&batch),
            Err(error) => Err(error),
        };
        let error = match done {
            Ok(position) => store.wait_written(position).await.err(),
            Err(error) => Some(error),
        };
        if error.is_some() {
            *out.borrow_mut() = error;
            return;
        }
    }
}

#[test]
fn a_group_costs_one_write_and_its_mark_none() {
    const GROUPS: u64 = 20;
    let disk = VirtualDisk::new(6);
    let mut random = Random::from_seed(6);
    let mut life = Life::new(&disk, &mut random);
    let claimed = store_life::take(&disk, (1, 2)).unwrap();
    // No checkpoint and no sync comes between.
    let journal = JournalConfig { sync_interval: Duration::from_secs(1000), ..config().journal };
    let config = JournaledConfig { journal, overlay_bytes: 1 << 20, ..config() };
    let store = life.open(claimed.boot, config).unwrap();
    let error: Rc<RefCell<Option<StoreError>>> = Rc::default();
    let mut commit = |count| {
        let until = store.written().0 + count;
        life.executor.spawn(fill(store.clone(), count, error.clone()));
        life.run(|| store.written().0 >= until || error.borrow().is_some());
        assert!(error.borrow().is_none(), "{:?}", error.borrow());
    };
    // Long enough for the first segment's successor to be made.
    commit(10);
    let before = disk.counts();
    commit(GROUPS);
    let after = disk.counts();
    assert_eq!(after.writes - before.writes, GROUPS);
    assert_eq!(after.operations - before.operations, GROUPS);
    // And the mark has the last of them.
    drop(life);
    disk.survive_process_death();
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let mut mark = [0; 88];
    let file = shared.open(Path::new("/store/journal.mark"), Open::Read).unwrap();
    assert_eq!(file.read_at(0, &mut mark).unwrap(), 88);
    let last = store.position().0.to_le_bytes();
    assert!(mark[40..].chunks(24).any(|slot| slot[..8] == last), "{mark:?}");
}

#[test]
fn a_full_disk_is_named_and_room_heals_it_without_a_restart() {
    let disk = VirtualDisk::new(5);
    let mut random = Random::from_seed(5);
    let mut life = Life::new(&disk, &mut random);
    let store = open_fresh(&mut life, &disk).unwrap();
    disk.set_capacity(6 << 20);
    let error: Rc<RefCell<Option<StoreError>>> = Rc::default();
    life.executor.spawn(fill(store.clone(), u64::MAX, error.clone()));
    life.run(|| error.borrow().is_some());
    let text = error.borrow_mut().take().unwrap();
    assert!(matches!(text, StoreError::Full { .. }), "{text}");
    assert!(text.to_string().contains("/store"), "{text}");
    let kept = store.position().0;
    assert!(kept > 50);
    // Reads and acknowledged rows are untouched; with room again, work goes on.
    assert!(store.get(&0u64.to_be_bytes()).unwrap().is_some());
    disk.set_capacity(64 << 20);
    let until = life.clock.0.get() + 2_000_000_000;
    let world = life.world.clone();
    life.executor.spawn(async move { world.sleep(Duration::from_secs(2)).await });
    let clock = life.clock.clone();
    life.run(|| clock.0.get() >= until);
    life.executor.spawn(fill(store.clone(), 500, error.clone()));
    life.run(|| store.written().0 >= kept + 500 || error.borrow().is_some());
    assert!(error.borrow().is_none(), "{:?}", error.borrow());
    drop(life);
    disk.survive_process_death();
    let mut life = Life::new(&disk, &mut random);
    let store = open_fresh(&mut life, &disk).unwrap();
    assert_eq!(store.position().0, kept + 500);
}

#[test]
fn a_failed_write_or_sync_stops_the_store_and_a_restart_recovers() {
    for (seed, write) in [(1, true), (2, false), (3, true), (4, false)] {
        let disk = VirtualDisk::new(seed);
        let mut random = Random::from_seed(seed);
        let mut life = Life::new(&disk, &mut random);
        let store = open_fresh(&mut life, &disk).unwrap();
        if write {
            disk.fail_write(40);
        } else {
            disk.fail_sync(9);
        }
        let error: Rc<RefCell<Option<StoreError>>> = Rc::default();
        life.executor.spawn(fill(store.clone(), u64::MAX, error.clone()));
        life.run(|| error.borrow().is_some());
        let stopped = error.borrow_mut().take().unwrap();
        assert!(matches!(stopped, StoreError::Stopped(_)), "{stopped}");
        // The disk works again, but nobody is told success any more.
        let written = store.written();
        life.executor.spawn(fill(store.clone(), 3, error.clone()));
        life.run(|| error.borrow().is_some());
        assert_eq!(store.written(), written);
        drop(life);
        disk.survive_process_death();
        let mut life = Life::new(&disk, &mut random);
        assert!(open_fresh(&mut life, &disk).unwrap().position() >= written);
    }
}

#[test]
fn rot_in_the_journal_is_refused_or_harmless_but_never_read() {
    let mut refused = 0;
    for seed in 0..60 {
        let disk = VirtualDisk::new(seed);
        let mut random = Random::from_seed(seed);
        let mut life = Life::new(&disk, &mut random);
        let store = open_fresh(&mut life, &disk).unwrap();
        let error: Rc<RefCell<Option<StoreError>>> = Rc::default();
        life.executor.spawn(fill(store.clone(), 15 + seed, error.clone()));
        life.run(|| store.position().0 == 15 + seed && store.durable() == store.position());
        let last = store.position().0;
        drop(life);
        disk.survive_process_death();
        let journal = Path::new("/store/journal");
        let names = disk.list(journal).unwrap();
        let victim = journal.join(&names[random.below(names.len() as u64) as usize].0);
        let bytes = disk.bytes(&victim).unwrap().len().min(14_000) as u64;
        disk.flip_bit(&victim, random.below(bytes), random.below(8) as u8);
        let mut life = Life::new(&disk, &mut random);
        match open_fresh(&mut life, &disk) {
            Err(StoreError::Lost { .. }) => refused += 1,
            Err(error) => panic!("seed {seed}: {error}"),
            Ok(store) => {
                let rows = store.scan(KeyRange::all(), Order::Forward, usize::MAX).unwrap();
                assert_eq!(rows.len() as u64, store.position().0);
                assert_eq!(store.position().0, last, "seed {seed}: records went without a word");
                assert!(rows.iter().all(|(_, value)| **value == [7; 200]));
            }
        }
    }
    assert!(refused >= 3, "{refused} of 60 cases of rot were refused");
}

#[test]
fn an_index_whose_first_sync_failed_outlives_a_kill_and_then_a_power_cut() {
    for seed in 0..400 {
        let disk = VirtualDisk::new(seed);
        let mut random = Random::from_seed(seed);
        let mut live = |faults: &dyn Fn(&VirtualDisk)| {
            let mut life = Life::new(&disk, &mut random);
            open_under(&mut life, &disk, faults).map(|store| store.position())
        };
        // Afterwards the page cache shows what the failed sync did not bring to the disk.
        let _ = live(&|disk| disk.fail_sync(1 + seed % 10));
        disk.survive_process_death();
        // The next life sees it, and has not come far when the power goes.
        let _ = live(&|disk| disk.halt_after(1 + seed / 10));
        disk.crash(&mut Random::from_seed(seed));
        let last = live(&|_| ());
        assert!(last.is_ok(), "seed {seed}: {}", last.unwrap_err());
    }
}
