//! A disk that has no place for one more file, as one that is out of inodes. The store opens, objects with a file go
//! on, checkpoints come to their end, and removals give places back.

use ropewalk_base::checksum::crc32c;
use ropewalk_base::random::Random;
use ropewalk_sim::disk::VirtualDisk;
use ropewalk_store::objects::{
    BLOCK_BYTES, Config, ObjectError, ObjectId, ObjectStore, ReadOutcome, WriteEpoch,
};

use crate::object_life::{Life, Writer};

const BLOCKS: usize = 32;
const BY: WriteEpoch = WriteEpoch { session: 1, epoch: 5 };

fn config() -> Config {
    Config {
        object_bytes: (BLOCKS * BLOCK_BYTES) as u64,
        segment_bytes: 64 * 1024,
        checkpoint_bytes: 1 << 20,
        overlay_bytes: 1 << 20,
        objects_cached: 16,
        logged_bytes: 8 * 1024,
        era: 1,
    }
}

fn object(inode: u64) -> ObjectId {
    ObjectId { inode, generation: 1, stripe: 0 }
}

/// Takes all places away that are free.
fn fill(disk: &VirtualDisk) {
    disk.set_files_max(disk.files().len());
}

fn check(store: &ObjectStore, writer: &Writer, removed: &[u64], what: &str) {
    for (object, expected) in &writer.expected {
        let mut bytes = vec![0xee; BLOCKS * BLOCK_BYTES];
        let read = store.read(*object, 0, &mut bytes, &mut Vec::new());
        let read = read.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(matches!(read, ReadOutcome::Present { .. }), "{what}: {object}");
        assert!(&bytes == expected, "{what}: {object} is wrong");
    }
    for inode in removed {
        let read = store.read(object(*inode), 0, &mut [0; 64], &mut Vec::new());
        assert!(matches!(read, Ok(ReadOutcome::Absent)), "{what}: {inode} is back: {read:?}");
    }
}

#[test]
fn a_store_without_a_place_for_one_more_file_opens_changes_and_removes() {
    for (early, clean) in [(true, false), (true, true), (false, false), (false, true)] {
        let disk = VirtualDisk::new(1);
        let mut removed = Vec::new();
        let mut expected = std::collections::BTreeMap::new();
        for number in 0..5 {
            let what = format!("full early {early}, clean {clean}, life {number}");
            let mut life = Life::new(&disk, number);
            let opened = life.open(config());
            let (store, recovery) = opened.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(recovery.damage.is_empty(), "{what}: {:?}", recovery.damage);
            let mut writer = Writer::new(&store, BLOCKS * BLOCK_BYTES, BY);
            writer.expected = std::mem::take(&mut expected);
            if number == 0 {
                (1..9).for_each(|inode| writer.write(object(inode), 0, 4 * BLOCK_BYTES));
            }
            check(&store, &writer, &removed, &what);
            if early || number > 0 {
                fill(&disk);
                let late = store.write(object(99), 0, &[b"x"], &[crc32c(b"x")], BY);
                assert!(matches!(late, Err(ObjectError::NoSpace { .. })), "{what}: {late:?}");
            }
            // Many times round the log, with a removal and fences now and then.
            for round in 0..400 {
                let room = store.clone();
                life.run(async move { room.room().await })
                    .unwrap_or_else(|error| panic!("{what}, round {round}: {error}"));
                let inode = 8 - (round as u64 % (8 - number));
                let (block, length) = (round % 29, 300 + (round * 37) % 6000);
                writer.write(object(inode), block * BLOCK_BYTES + round % 99, length);
                if round % 50 == 7 {
                    let handle = store.clone();
                    let fenced = life.run(async move {
                        handle.fence(1000 * number + round as u64, 4, round as u64).await?;
                        handle.checkpoint().await
                    });
                    fenced.unwrap_or_else(|error| panic!("{what}, round {round}: {error}"));
                }
            }
            let (handle, gone) = (store.clone(), number + 1);
            let ended = life.run(async move {
                handle.remove_inode(gone, 1, 7).await?;
                handle.checkpoint().await
            });
            ended.unwrap_or_else(|error| panic!("{what}: {error}"));
            removed.push(gone);
            writer.expected.remove(&object(gone));
            check(&store, &writer, &removed, &what);
            if early || number > 0 {
                fill(&disk);
            }
            expected = std::mem::take(&mut writer.expected);
            if clean {
                let handle = store.clone();
                let closed = life.run(async move { handle.close().await });
                closed.unwrap_or_else(|error| panic!("{what}: {error}"));
            }
            drop((writer, store, life));
            disk.survive_process_death();
        }
    }
}

#[test]
fn a_death_while_marks_are_written_in_their_place_leaves_one_copy() {
    let disk = VirtualDisk::new(2);
    let mut life = Life::new(&disk, 1);
    let (store, _) = life.open(config()).unwrap();
    let mut writer = Writer::new(&store, BLOCKS * BLOCK_BYTES, BY);
    (1..5).for_each(|inode| writer.write(object(inode), 0, 4 * BLOCK_BYTES));
    let handle = store.clone();
    life.run(async move {
        handle.remove_inode(1, 1, 7).await.unwrap();
        handle.fence(9, 4, 7).await.unwrap();
        handle.checkpoint().await.unwrap();
    });
    writer.expected.remove(&object(1));
    let expected = std::mem::take(&mut writer.expected);
    drop((writer, store, life));
    disk.survive_process_death();
    fill(&disk);
    let mut random = Random::from_seed(3);
    let mut ended = false;
    let mut steps = 1;
    while !ended {
        for power in [false, true] {
            let what = format!("dead after {steps} steps, power {power}");
            let disk = disk.copy();
            let mut life = Life::new(&disk, 2);
            let (store, _) = life.open(config()).unwrap();
            disk.halt_after(steps);
            let handle = store.clone();
            let done = life.run(async move {
                for session in 20..40 {
                    handle.fence(session, 4, 7).await?;
                }
                handle.checkpoint().await?;
                handle.close().await
            });
            ended = done.is_ok();
            drop((store, life));
            match power {
                true => disk.crash(&mut random),
                false => disk.survive_process_death(),
            }
            let mut life = Life::new(&disk, 3);
            let config = Config { era: 1 + u64::from(power), ..config() };
            let (store, _) = life.open(config).unwrap_or_else(|error| panic!("{what}: {error}"));
            let mut writer = Writer::new(&store, BLOCKS * BLOCK_BYTES, BY);
            writer.expected = expected.clone();
            check(&store, &writer, &[1], &what);
            assert_eq!(store.minimum_epoch(9), 4, "{what}");
            assert!(!ended || store.minimum_epoch(39) == 4, "{what}");
        }
        steps += 1;
    }
    assert!(steps > 10, "{steps}");
}
