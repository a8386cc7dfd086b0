//! The metadata store on a disk that is full: operations that free room always work, and so does a restart.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::store_life;
use crate::store_life::{Life, STORE};
use ropewalk_base::disk::{Disk, Open};
use ropewalk_base::random::Random;
use ropewalk_sim::disk::VirtualDisk;
use ropewalk_store::journal::JournalConfig;
use ropewalk_store::{Batch, JournaledConfig, JournaledStore, MetaStore, Room, StoreError};

fn config() -> JournaledConfig {
    JournaledConfig {
        journal: JournalConfig {
            segment_bytes: 256 << 10,
            sync_interval: Duration::from_millis(500),
        },
        cache_bytes: 4 << 20,
        overlay_bytes: 1 << 20,
        journal_bytes: 2 << 20,
        reserve_bytes: 8 << 20,
    }
}

fn start(disk: &VirtualDisk, random: &mut Random) -> (Life, Result<JournaledStore, StoreError>) {
    let claimed = store_life::take(disk, (random.next_u64(), 5)).expect("no room is needed for it");
    let mut life = Life::new(disk, random);
    let store = life.open(claimed.boot, config());
    // The claim is let go of with the life: nobody else is here.
    (life, store)
}

/// Commits batches until there are no more, or until the store says that room is short.
fn commit(
    life: &mut Life,
    store: &JournaledStore,
    until_short: bool,
    batches: impl Iterator<Item = Batch> + 'static,
) -> Result<u64, StoreError> {
    let done: Rc<RefCell<Option<Result<u64, StoreError>>>> = Rc::default();
    let (out, store) = (done.clone(), store.clone());
    life.executor.spawn(async move {
        let mut count = 0;
        let mut last = Ok(());
        for batch in batches {
            last = store.ready().await;
            if last.is_err() || (until_short && store.room() != Room::Ample) {
                break;
            }
            match store.commit(&batch) {
                Ok(position) => last = store.wait_written(position).await,
                Err(error) => last = Err(error),
            }
            if last.is_err() {
                break;
            }
            count += 1;
        }
        *out.borrow_mut() = Some(last.map(|()| count));
    });
    life.run(|| done.borrow().is_some());
    done.take().expect("it came to an end")
}

fn key(number: u64) -> Vec<u8> {
    // Scattered, as names in directories are.
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_be_bytes().to_vec()
}

fn puts(from: u64, to: u64, bytes: usize) -> impl Iterator<Item = Batch> {
    (from..to).map(move |number| {
        let mut batch = Batch::new();
        batch.put(&key(number), &vec![number as u8; bytes]).put(b"reply", &[3; 60]);
        batch
    })
}

fn deletes(from: u64, to: u64) -> impl Iterator<Item = Batch> {
    (from..to).map(|number| {
        let mut batch = Batch::new();
        batch.delete(&key(number)).put(b"reply", &[4; 60]);
        batch
    })
}

/// Somebody else takes all that is left.
fn fill_disk(disk: &VirtualDisk) {
    let space = disk.space(Path::new(STORE)).unwrap();
    disk.set_capacity(space.total - space.free);
}

/// The server died while it made one more segment.
fn half_made_segment(disk: &VirtualDisk) {
    let directory = Path::new(STORE).join("journal");
    let names = disk.list(&directory).unwrap().into_iter().map(|(name, _)| name);
    let numbers = names
        .filter_map(|name| u64::from_str_radix(name.to_str()?.strip_suffix(".journal")?, 16).ok());
    let next = numbers.max().expect("there is a journal") + 1;
    disk.open(&directory.join(format!("{next:016x}.journal")), Open::CreateNew).unwrap();
    disk.sync_directory(&directory).unwrap();
}

/// Lets the store look, and time go by.
fn settle(life: &mut Life, store: &JournaledStore) {
    for _ in 0..8 {
        store.look();
        let until = life.clock.0.get() + 250_000_000;
        let world = life.world.clone();
        life.executor.spawn(async move { world.sleep(Duration::from_millis(250)).await });
        let clock = life.clock.clone();
        life.run(|| clock.0.get() >= until);
    }
}

/// Fills a disk of so many bytes; the number of rows.
fn full(disk: &VirtualDisk, random: &mut Random, capacity: u64, bytes: usize) -> u64 {
    disk.set_capacity(capacity);
    let (mut life, store) = start(disk, random);
    let store = store.unwrap();
    let count = commit(&mut life, &store, true, puts(0, u64::MAX, bytes)).unwrap();
    assert!(matches!(store.room(), Room::Short { .. }), "{:?}", store.room());
    let space = disk.space(Path::new(STORE)).unwrap();
    assert!(space.available < capacity / 3, "of {capacity} bytes {} are left", space.available);
    drop((life, store));
    disk.survive_process_death();
    count
}

#[test]
fn a_full_disk_is_freed_and_started_on_whoever_filled_it() {
    for (seed, bytes, capacity) in [(1, 200, 28 << 20), (2, 12_000, 40 << 20)] {
        let disk = VirtualDisk::new(seed);
        let mut random = Random::from_seed(seed);
        let rows = full(&disk, &mut random, capacity, bytes);
        fill_disk(&disk);
        let mut gone = 0;
        for round in 0..4 {
            if round % 2 == 0 {
                half_made_segment(&disk);
            }
            let (mut life, store) = start(&disk, &mut random);
            let store = store.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            // It gives back what it can do without, and somebody else takes that, too.
            fill_disk(&disk);
            assert_ne!(store.room(), Room::Ample);
            // Changes in place take no room for good.
            commit(&mut life, &store, false, puts(rows - 300, rows, bytes)).unwrap();
            let next = gone + rows / 5;
            commit(&mut life, &store, false, deletes(gone, next)).unwrap();
            gone = next;
            for number in (0..rows).step_by(17) {
                let found = store.get(&key(number)).unwrap();
                assert_eq!(found.is_some(), number >= gone, "row {number} of {rows}");
            }
            drop((life, store));
            disk.survive_process_death();
        }
        // The room that removals made is room for new rows, though the disk has none.
        let (mut life, store) = start(&disk, &mut random);
        let store = store.unwrap();
        settle(&mut life, &store);
        assert_eq!(store.room(), Room::Ample, "{gone} of {rows} rows are gone");
        let again = commit(&mut life, &store, true, puts(rows, rows + rows / 10, bytes)).unwrap();
        assert!(again > rows / 20, "{again} of {rows} rows found room again");
    }
}

#[test]
fn a_disk_that_others_free_takes_new_rows_again() {
    let disk = VirtualDisk::new(3);
    let mut random = Random::from_seed(3);
    let rows = full(&disk, &mut random, 26 << 20, 300);
    fill_disk(&disk);
    let (mut life, store) = start(&disk, &mut random);
    let store = store.unwrap();
    settle(&mut life, &store);
    let Room::Short { missing } = store.room() else { panic!("{:?}", store.room()) };
    // Exactly as much as was named.
    let space = disk.space(Path::new(STORE)).unwrap();
    disk.set_capacity(space.total + missing + 4096);
    settle(&mut life, &store);
    assert_eq!(store.room(), Room::Ample);
    assert!(commit(&mut life, &store, true, puts(rows, rows + 100, 300)).unwrap() > 0);
}

#[test]
fn a_reserve_that_is_half_used_is_told_and_removals_bring_it_back() {
    let disk = VirtualDisk::new(4);
    let mut random = Random::from_seed(4);
    let rows = full(&disk, &mut random, 26 << 20, 300);
    fill_disk(&disk);
    let (mut life, store) = start(&disk, &mut random);
    let store = store.unwrap();
    // Clients that are still served add rows until the room is tight.
    let mut next = rows;
    while !matches!(store.room(), Room::Tight { .. }) {
        commit(&mut life, &store, false, puts(next, next + 500, 300)).unwrap();
        next += 500;
        settle(&mut life, &store);
        assert!(next < 3 * rows, "{:?}", store.room());
    }
    commit(&mut life, &store, false, deletes(0, rows)).unwrap();
    settle(&mut life, &store);
    assert_eq!(store.room(), Room::Ample);
    drop((life, store));
    disk.survive_process_death();
    assert!(start(&disk, &mut random).1.is_ok());
}

#[test]
fn a_disk_without_room_for_a_new_store_says_how_much_is_missing() {
    let disk = VirtualDisk::new(5);
    let mut random = Random::from_seed(5);
    disk.set_capacity(6 << 20);
    let error = start(&disk, &mut random).1.err().unwrap();
    assert!(error.is_full(), "{error}");
    assert!(error.to_string().contains(STORE) && error.to_string().contains("MiB"), "{error}");
}
