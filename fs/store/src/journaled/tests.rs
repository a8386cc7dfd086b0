use std::collections::BTreeMap;
use std::ops::Bound;

use ropewalk_base::ids::{ClusterId, ServerId};
use ropewalk_base::random::Random;

use super::*;
use crate::HostDisk;
use crate::superblock::{ClaimedDirectory, Expect, Identity, Role, claim};
use crate::testing::run;

fn take(path: &std::path::Path) -> ClaimedDirectory {
    let identity = Identity { cluster: ClusterId(1), server: ServerId(1), role: Role::Metadata };
    claim(&HostDisk, path, identity, Expect::Any, (5, 6)).unwrap()
}

fn small() -> JournaledConfig {
    JournaledConfig {
        journal: JournalConfig { segment_bytes: 64 * 1024, ..JournalConfig::default() },
        cache_bytes: 1 << 20,
        overlay_bytes: 16 * 1024,
        journal_bytes: 1 << 20,
        reserve_bytes: 256 << 10,
    }
}

async fn open(world: &World, directory: &ClaimedDirectory) -> JournaledStore {
    JournaledStore::open(world, &directory.path, directory.boot, small(), false).await.unwrap()
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn random_batch(random: &mut Random, model: &mut Model) -> Batch {
    let mut batch = Batch::new();
    for _ in 0..1 + random.below(4) {
        let key = format!("k{:03}", random.below(300)).into_bytes();
        if random.below(4) == 0 {
            batch.delete(&key);
            model.remove(&key);
        } else {
            let value = vec![random.below(256) as u8; random.below(200) as usize];
            batch.put(&key, &value);
            model.insert(key, value);
        }
    }
    batch
}

fn check_scans(store: &JournaledStore, model: &Model, random: &mut Random) {
    let key = |random: &mut Random| format!("k{:03}", random.below(310)).into_bytes();
    let (a, b) = (key(random), key(random));
    let bound = |key: &'static [u8], random: &mut Random| match random.below(3) {
        0 => Bound::Unbounded,
        1 => Bound::Included(key),
        _ => Bound::Excluded(key),
    };
    let start = bound(Box::leak(a.into_boxed_slice()), random);
    let end = bound(Box::leak(b.into_boxed_slice()), random);
    let range = KeyRange { start, end };
    let limit = random.below(40) as usize;
    let mut wanted: Vec<(Vec<u8>, Vec<u8>)> = if range.is_empty() {
        Vec::new()
    } else {
        let rows = model.range::<[u8], _>((start, end));
        rows.map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    let order = if random.below(2) == 0 { Order::Forward } else { Order::Backward };
    if order == Order::Backward {
        wanted.reverse();
    }
    wanted.truncate(limit);
    let rows = store.scan(range, order, limit).unwrap();
    let rows: Vec<_> = rows.into_iter().map(|(key, value)| (key, value.to_vec())).collect();
    assert_eq!(rows, wanted, "{range:?} {order:?} {limit}");
}

#[test]
fn reads_equal_a_model_through_checkpoints_and_restarts() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_path_buf();
    let mut model = Model::new();
    let mut random = Random::from_seed(11);
    let mut checkpoints = 0;
    for round in 0..4 {
        let claimed = take(&path);
        let model_before = model.clone();
        let (done, count, after) = run(HostDisk::shared(), |world| async move {
            let store = open(&world, &claimed).await;
            let mut model = model_before;
            let mut random = Random::from_seed(100 + round);
            for step in 0..600 {
                store.ready().await.unwrap();
                let batch = random_batch(&mut random, &mut model);
                let position = store.commit(&batch).unwrap();
                let key = format!("k{:03}", random.below(300)).into_bytes();
                let value = store.get(&key).unwrap().map(|value| value.to_vec());
                assert_eq!(value.as_ref(), model.get(&key));
                if step % 7 == 0 {
                    check_scans(&store, &model, &mut random);
                }
                if step % 50 == 0 {
                    store.wait_durable(position).await.unwrap();
                }
            }
            let last = store.position();
            store.wait_written(last).await.unwrap();
            (last, store.counts().checkpoints, model)
        });
        assert_eq!(done, Position(600 * (round + 1)));
        model = after;
        checkpoints += count;
        random.next_u64();
    }
    assert!(checkpoints >= 4, "{checkpoints} checkpoints: the test is too small to show anything");
    let claimed = take(&path);
    run(HostDisk::shared(), |world| async move {
        let store = open(&world, &claimed).await;
        assert_eq!(store.position(), Position(2400));
        let rows = store.scan(KeyRange::all(), Order::Forward, usize::MAX).unwrap();
        let rows: Model = rows.into_iter().map(|(key, value)| (key, value.to_vec())).collect();
        assert_eq!(rows, model);
        store.checkpoint().await.unwrap();
        assert_eq!(store.checkpointed(), Position(2400));
        assert_eq!(store.counts().overlay_bytes, 0);
        let rows = store.scan(KeyRange::all(), Order::Backward, usize::MAX).unwrap();
        assert_eq!(rows.len(), model.len());
    });
}

#[test]
fn who_does_not_wait_for_ready_is_refused_and_memory_stays_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let claimed = take(directory.path());
    run(HostDisk::shared(), |world| async move {
        let store = open(&world, &claimed).await;
        let mut refused = false;
        for number in 0..4000u64 {
            let mut batch = Batch::new();
            batch.put(&number.to_be_bytes(), &[1; 100]);
            match store.commit(&batch) {
                Ok(_) => (),
                Err(StoreError::Busy) => {
                    refused = true;
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(refused);
        assert!(store.counts().overlay_bytes < 6 * small().overlay_bytes);
        store.ready().await.unwrap();
        let mut batch = Batch::new();
        batch.put(b"after", b"1");
        let position = store.commit(&batch).unwrap();
        store.wait_durable(position).await.unwrap();
        assert!(store.durable() >= position);
    });
}

#[test]
fn oversized_batches_change_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let claimed = take(directory.path());
    run(HostDisk::shared(), |world| async move {
        let store = open(&world, &claimed).await;
        let mut batch = Batch::new();
        batch.put(b"a", &[0; 20_000]);
        assert!(matches!(store.commit(&batch), Err(StoreError::TooLarge { .. })));
        assert_eq!(store.get(b"a").unwrap(), None);
        assert_eq!(store.position(), Position(0));
    });
}

#[test]
fn a_damaged_index_is_refused_with_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_path_buf();
    let claimed = take(&path);
    run(HostDisk::shared(), |world| async move {
        let store = open(&world, &claimed).await;
        let mut batch = Batch::new();
        batch.put(b"a", b"1");
        store.commit(&batch).unwrap();
        store.checkpoint().await.unwrap();
    });
    let index = path.join("index.redb");
    std::fs::write(&index, b"no index at all").unwrap();
    let claimed = take(&path);
    run(HostDisk::shared(), |world| async move {
        let result =
            JournaledStore::open(&world, &claimed.path, claimed.boot, small(), false).await;
        let error = result.err().unwrap();
        assert_eq!(error.class(), ropewalk_base::error::Class::Data);
        assert!(error.to_string().contains("index.redb"), "{error}");
    });
}

#[test]
fn a_copy_that_was_broken_off_is_no_store() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (from, to) = (from.path().to_path_buf(), to.path().to_path_buf());
    run(HostDisk::shared(), move |world| async move {
        let (first, second) = (take(&from), take(&to));
        let mut random = Random::from_seed(7);
        let mut model = Model::new();
        let (store, old) = (open(&world, &first).await, open(&world, &second).await);
        for _ in 0..200 {
            store.ready().await.unwrap();
            store.commit(&random_batch(&mut random, &mut model)).unwrap();
            old.ready().await.unwrap();
            old.commit(Batch::new().put(b"older", b"row")).unwrap();
        }
        store.checkpoint().await.unwrap();
        old.checkpoint().await.unwrap();
        drop(old);
        let (path, boot) = (&second.path, second.boot);
        for finishes in [false, true] {
            let (mut snapshot, _records) = store.snapshot().await.unwrap();
            let position = snapshot.position();
            assert_eq!(position, store.position());
            let copy = StoreCopy::begin(&world, path, boot, small(), position).await.unwrap();
            copy.add(snapshot.next_rows(2000).unwrap()).await.unwrap();
            // This is behind the snapshot.
            store.ready().await.unwrap();
            let key = [b"later", &[u8::from(finishes)][..]].concat();
            store.commit(Batch::new().put(&key, b"row")).unwrap();
            store.checkpoint().await.unwrap();
            if !finishes {
                drop(copy);
                let error = JournaledStore::open(&world, path, boot, small(), false).await.err();
                assert!(matches!(error, Some(StoreError::Unfinished { .. })), "{error:?}");
                model.insert(key, b"row".to_vec());
                continue;
            }
            loop {
                let rows = snapshot.next_rows(2000).unwrap();
                if rows.is_empty() {
                    break;
                }
                copy.add(rows).await.unwrap();
            }
            let copied = copy.finish().await.unwrap();
            assert_eq!(copied.position(), position);
            let (key, value) = model.iter().next().unwrap();
            assert_eq!(copied.get(key).unwrap().as_deref(), Some(&value[..]));
            let copied = copied.begin(None).await.unwrap();
            let rows = copied.scan(KeyRange::all(), Order::Forward, usize::MAX).unwrap();
            let rows: Model = rows.into_iter().map(|(key, value)| (key, value.to_vec())).collect();
            assert_eq!(rows, model, "at the position of the snapshot");
            assert!(matches!(
                copied.accept(Position(203), b""),
                Err(StoreError::Gap { next: 202, got: 203 })
            ));
            let senseless = copied.accept(Position(202), &[9; 9]);
            assert!(matches!(senseless, Err(StoreError::Senseless { position: 202 })));
        }
    });
}
