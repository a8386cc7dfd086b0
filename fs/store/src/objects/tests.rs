//! The store on the host's file system: the promises of single calls. Crashes are the simulator's.

use std::path::{Path, PathBuf};

use ropewalk_base::checksum::crc32c;
use ropewalk_base::world::World;

use super::*;
use crate::host_disk::HostDisk;
use crate::testing::run;

const BY: WriteEpoch = WriteEpoch { session: 1, epoch: 1 };
const OBJECT: ObjectId = ObjectId { inode: 7, generation: 3, stripe: 2 };

fn config() -> Config {
    Config {
        object_bytes: 1 << 20,
        segment_bytes: 64 << 10,
        checkpoint_bytes: 128 << 10,
        overlay_bytes: 64 << 10,
        objects_cached: 4,
        ..Config::default()
    }
}

async fn open(directory: &Path, world: &World) -> ObjectStore {
    loop {
        match ObjectStore::open(directory, config(), world).await {
            Ok((store, _)) => return store,
            // Tasks of an earlier handle hold the lock until they end.
            Err(ObjectError::Format { .. }) => ropewalk_base::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Runs a test body on a fresh directory.
fn with_store<F: Future<Output = ()> + 'static>(body: impl FnOnce(World, PathBuf) -> F) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    run(HostDisk::shared(), |world| body(world, path));
}

fn sums(offset: u64, data: &[u8]) -> Vec<u32> {
    let first = (BLOCK_BYTES - offset as usize % BLOCK_BYTES).min(data.len());
    let (head, rest) = data.split_at(first);
    std::iter::once(head).chain(rest.chunks(BLOCK_BYTES)).map(crc32c).collect()
}

fn put(store: &ObjectStore, object: ObjectId, offset: u64, data: &[u8]) -> Written {
    store.write(object, offset, &[data], &sums(offset, data), BY).expect("a write")
}

fn get(store: &ObjectStore, object: ObjectId, offset: u64, length: usize) -> Vec<u8> {
    let (mut bytes, mut found) = (vec![0xee; length], Vec::new());
    let outcome = store.read(object, offset, &mut bytes, &mut found).expect("a read");
    assert_eq!(outcome, ReadOutcome::Present { bytes: length });
    assert_eq!(found, sums(offset, &bytes));
    bytes
}

#[test]
fn random_writes_and_punches_read_as_a_plain_array_would_also_after_reopening() {
    with_store(|world, path| async move {
        let mut store = open(&path, &world).await;
        let mut model = vec![0_u8; 1 << 20];
        let mut checkpoints = 0;
        let mut random = ropewalk_base::random::Random::from_seed(5);
        for round in 0..600_u32 {
            store.room().await.unwrap();
            let offset = random.below(1 << 20) as usize;
            let limit = [100, 5000, 40_000, 1 << 20][random.below(4) as usize];
            let length = 1 + random.below(limit.min((1 << 20) - offset as u64)) as usize;
            let range = offset..offset + length;
            if random.below(6) == 0 {
                store.punch(OBJECT, offset as u64, length as u64, BY).unwrap();
                // An object that was never written stays absent: nothing to compare yet.
                model[range].fill(0);
            } else {
                let data: Vec<u8> = (0..length).map(|_| random.next_u64() as u8).collect();
                put(&store, OBJECT, offset as u64, &data);
                model[range].copy_from_slice(&data);
                let from = random.below(1 << 20) as usize;
                let count = random.below(((1 << 20) - from) as u64) as usize;
                assert!(get(&store, OBJECT, from as u64, count) == model[from..from + count]);
            }
            if round % 150 == 149 {
                checkpoints += store.usage().checkpoints;
                if round < 150 {
                    let written = store.verify(OBJECT).unwrap();
                    assert_eq!(store.usage().object_bytes, written * BLOCK_BYTES as u64);
                }
                drop(store);
                store = open(&path, &world).await;
                assert!(get(&store, OBJECT, 0, 1 << 20) == model);
            }
        }
        assert!(checkpoints > 4, "{checkpoints}");
    });
}

#[test]
fn an_absent_object_is_told_from_an_empty_one() {
    with_store(|world, path| async move {
        let store = open(&path, &world).await;
        let mut bytes = [9; 10];
        let outcome = store.read(OBJECT, 0, &mut bytes, &mut Vec::new()).unwrap();
        assert_eq!((outcome, bytes), (ReadOutcome::Absent, [9; 10]));
        store.truncate(OBJECT, 0, BY).unwrap();
        assert_eq!(store.info(OBJECT).unwrap(), None);
        put(&store, OBJECT, 70_000, b"x");
        assert_eq!(get(&store, OBJECT, 0, 10), [0; 10]);
        let info = store.info(OBJECT).unwrap().unwrap();
        assert_eq!((info.bytes, info.end), (4096, 73_728));
        store.truncate(OBJECT, 0, BY).unwrap();
        assert_eq!(get(&store, OBJECT, 70_000, 1), [0]);
    });
}

#[test]
fn damaged_input_and_senseless_ranges_change_nothing() {
    with_store(|world, path| async move {
        let store = open(&path, &world).await;
        put(&store, OBJECT, 0, &[1; 8192]);
        let wrong = store.write(OBJECT, 0, &[&[2; 8192]], &[crc32c(&[2; 4096]), 5], BY);
        assert!(matches!(wrong, Err(ObjectError::Checksum { block: 1, .. })));
        let limit = 1 << 20;
        for (offset, count) in [(limit, 1), (u64::MAX, 1), (0, 0), (0, 2)] {
            let result = store.write(OBJECT, offset, &[&[2; 10]], &vec![0; count], BY);
            assert!(matches!(result, Err(ObjectError::Range { .. })), "{offset} {count}");
        }
        assert!(store.read(OBJECT, limit - 5, &mut [0; 10], &mut Vec::new()).is_err());
        assert_eq!(get(&store, OBJECT, 0, 8192), [1; 8192]);
    });
}

#[test]
fn a_removed_inode_refuses_late_writes_until_its_tombstone_expires() {
    with_store(|world, path| async move {
        let store = open(&path, &world).await;
        let newer = ObjectId { generation: 4, ..OBJECT };
        put(&store, OBJECT, 0, &[1; 4096]);
        put(&store, newer, 0, &[2; 4096]);
        store.remove_inode(7, 3, 100).await.unwrap();
        let late = store.write(OBJECT, 0, &[b"x"], &[crc32c(b"x")], BY);
        assert!(matches!(late, Err(ObjectError::Removed { object: OBJECT })));
        assert_eq!(get(&store, newer, 0, 4096), [2; 4096]);
        let listed: Vec<_> = store.list(None).unwrap().map(|info| info.unwrap().object).collect();
        assert_eq!(listed, [newer]);
        let usage = store.usage();
        assert_eq!((usage.objects, usage.object_bytes, usage.tombstones), (1, 4096, 1));
        store.expire(100);
        assert_eq!(store.usage().tombstones, 1);
        store.expire(101);
        put(&store, OBJECT, 0, b"x");
    });
}

#[test]
fn a_fence_holds_for_its_session_alone_and_over_a_restart() {
    with_store(|world, path| async move {
        let store = open(&path, &world).await;
        store.fence(1, 5, 0).await.unwrap();
        drop(store);
        let store = open(&path, &world).await;
        let write = |session, epoch| {
            store.write(OBJECT, 0, &[b"x"], &[crc32c(b"x")], WriteEpoch { session, epoch })
        };
        assert!(matches!(write(1, 4), Err(ObjectError::Fenced { minimum: 5, .. })));
        write(1, 5).unwrap();
        write(2, 0).unwrap();
        let fenced = WriteEpoch { session: 1, epoch: 4 };
        assert!(matches!(store.punch(OBJECT, 0, 1, fenced), Err(ObjectError::Fenced { .. })));
    });
}

#[test]
fn a_listing_goes_on_where_it_stopped() {
    with_store(|world, path| async move {
        let store = open(&path, &world).await;
        for inode in 0..40 {
            for stripe in 0..2 {
                store.room().await.unwrap();
                put(&store, ObjectId { inode, generation: 1, stripe }, 0, &[1; 100]);
            }
        }
        let objects = |after| -> Vec<ObjectId> {
            store.list(after).unwrap().map(|info| info.unwrap().object).collect()
        };
        let all = objects(None);
        assert_eq!(all.len(), 80);
        for (index, object) in all.iter().enumerate() {
            assert_eq!(objects(Some(*object)), all[index + 1..]);
        }
    });
}

#[test]
fn another_group_counts_after_a_checkpoint_and_changes_no_byte() {
    with_store(|world, path| async move {
        let (before, after) = (GroupTag::new(3), GroupTag::new(1 << 33));
        let grouped = |stripe| Grouped { object: ObjectId { stripe, ..OBJECT }, group: before };
        let objects: Vec<ObjectId> = (0..9).map(|stripe| grouped(stripe).object).collect();
        let data = [6; 9000];
        let mut store = open(&path, &world).await;
        for stripe in 0..9 {
            let written = store.write(grouped(stripe), 0, &[&data], &sums(0, &data), BY);
            written.expect("a write");
        }
        let groups = |store: &ObjectStore| -> Vec<GroupTag> {
            let info = |it: &ObjectId| store.info(*it).expect("readable").expect("there").group;
            objects.iter().map(info).collect()
        };
        for round in 0..3 {
            for object in &objects {
                // More than stay in memory.
                store.room().await.unwrap();
                assert!(store.regroup(*object, after).unwrap());
            }
            assert_eq!(groups(&store), [after; 9]);
            if round == 1 {
                store.checkpoint().await.unwrap();
            }
            // The first time it ends without a checkpoint: either group may be there.
            drop(store);
            store = open(&path, &world).await;
            let found = groups(&store);
            let fits = |it: &GroupTag| *it == after || (round == 0 && *it == before);
            assert!(found.iter().all(fits), "{round}: {found:?}");
            for object in &objects {
                assert_eq!(get(&store, *object, 0, 9000), data);
            }
        }
        // A write says its group, and the one that was told before stays.
        put(&store, objects[0], 20_000, &[7; 100]);
        store.write(grouped(1), 0, &[&data], &sums(0, &data), BY).expect("a write");
        assert_eq!(groups(&store), [after; 9]);
        let absent = ObjectId { inode: 99, ..OBJECT };
        assert_eq!(store.regroup(absent, after).ok(), Some(false));
        assert!(store.info(absent).unwrap().is_none());
    });
}

#[test]
fn a_file_is_cut_across_its_stripes() {
    with_store(|world, path| async move {
        let store = open(&path, &world).await;
        let object = |stripe| ObjectId { inode: 7, generation: 1, stripe };
        (0..4).for_each(|stripe| {
            put(&store, object(stripe), 0, &[3; 20_000]);
        });
        store.truncate_file(7, 1, 1, 5000, BY).unwrap();
        let end =
            |stripe| get(&store, object(stripe), 0, 20_000).iter().filter(|b| **b == 3).count();
        assert_eq!([end(0), end(1), end(2), end(3)], [20_000, 5000, 0, 0]);
        store.sync_files(&[(7, 1)]).await.unwrap();
    });
}

/// Copies the files of one directory to another.
fn copy_files(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn a_death_between_the_marks_of_a_start_and_its_log_is_no_damage() {
    with_store(|world, path| async move {
        let config = Config { era: 7, ..config() };
        let open = async || {
            loop {
                match ObjectStore::open(&path, config.clone(), &world).await {
                    Ok((store, recovery)) => return (store, recovery.damage),
                    Err(error) if error.to_string().contains("another process") => {
                        ropewalk_base::task::yield_now().await;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        };
        let (log, kept) = (path.join("log"), path.join("../log"));
        let (store, _) = open().await;
        put(&store, OBJECT, 0, &[5; 10_000]);
        store.close().await.unwrap();
        drop(store);
        copy_files(&log, &kept);
        let board = std::fs::read(path.join("board")).unwrap();
        // The next start saves its marks; log and board are taken back, as if it had died before that.
        drop(open().await);
        copy_files(&kept, &log);
        std::fs::write(path.join("board"), board).unwrap();
        let (store, damage) = open().await;
        assert_eq!(damage, Vec::<String>::new());
        assert_eq!(get(&store, OBJECT, 0, 10_000), vec![5; 10_000]);
    });
}
