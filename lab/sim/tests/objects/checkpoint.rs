//! Deaths inside a checkpoint of an object store, and damage at that time: writes that the checkpoint has brought
//! into a file are replayed again as long as the log's tail has not passed them.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ropewalk_base::random::Random;
use ropewalk_sim::disk::VirtualDisk;
use ropewalk_store::objects::{
    BLOCK_BYTES, Config, ObjectError, ObjectId, ReadOutcome, WriteEpoch,
};

use crate::object_life::{Life, ROOT, Writer, checksums};

const BLOCKS: usize = 16;
const BY: WriteEpoch = WriteEpoch { session: 1, epoch: 1 };
const SECTOR_BYTES: usize = 512;

fn config(objects_cached: usize) -> Config {
    Config {
        object_bytes: (BLOCKS * BLOCK_BYTES) as u64,
        segment_bytes: 24 * 1024,
        checkpoint_bytes: 1 << 20,
        overlay_bytes: 1 << 20,
        objects_cached,
        logged_bytes: 8 * 1024,
        era: 1,
    }
}

fn object(inode: u64) -> ObjectId {
    ObjectId { inode, generation: 1, stripe: 0 }
}

/// A store whose process died after so many steps of a checkpoint beside which somebody wrote, and what
/// it must say; `None` if the checkpoint had ended before.
fn died_in_checkpoint(
    steps: usize,
    objects_cached: usize,
) -> Option<(VirtualDisk, BTreeMap<ObjectId, Vec<u8>>)> {
    let disk = VirtualDisk::new(1);
    let mut life = Life::new(&disk, 1);
    let store = life.open(config(objects_cached)).unwrap().0;
    let mut writer = Writer::new(&store, BLOCKS * BLOCK_BYTES, BY);
    for inode in 1..5 {
        writer.write(object(inode), 0, 8 * BLOCK_BYTES);
    }
    let handle = store.clone();
    life.run(async move { handle.checkpoint().await.unwrap() });
    for inode in 1..5 {
        // A block that becomes a hole and gets other bytes in place; and one of which the log has an
        // image and, in a later record, a part.
        writer.punch(object(inode), 5 * BLOCK_BYTES, BLOCK_BYTES);
        writer.write(object(inode), 5 * BLOCK_BYTES, BLOCK_BYTES);
        if inode < 3 {
            writer.write(object(inode), BLOCK_BYTES + 7, 20);
            writer.write(object(inode), BLOCK_BYTES + 300, 20);
        }
    }
    let handle = store.clone();
    life.run(async move { handle.sync_all().await.unwrap() });
    let ended = Rc::new(Cell::new(false));
    let (handle, end) = (store.clone(), ended.clone());
    life.world.spawn(async move {
        handle.checkpoint().await.unwrap();
        end.set(true);
    });
    for step in 0..steps {
        life.step();
        if ended.get() {
            return None;
        }
        // Writes to an object that the checkpoint has taken in go on; so do writes that push others out of memory.
        for inode in 1..7 {
            if (step as u64 + inode).is_multiple_of(3) {
                writer.write(object(inode), (9 + step % 7) * BLOCK_BYTES, BLOCK_BYTES);
            }
        }
    }
    let expected = std::mem::take(&mut writer.expected);
    drop((writer, store, life));
    disk.survive_process_death();
    Some((disk, expected))
}

/// Each sector of the log that is not blank: file, offset.
fn sectors(disk: &VirtualDisk) -> Vec<(PathBuf, usize)> {
    let log = Path::new(ROOT).join("log");
    let segments = disk.files().into_iter().filter(|path| path.parent() == Some(&log));
    segments
        .flat_map(|path| {
            let bytes = disk.bytes(&path).unwrap();
            let sectors = bytes.chunks(SECTOR_BYTES).enumerate();
            let used = sectors.filter(|(_, sector)| sector.iter().any(|byte| *byte != 0));
            used.map(|(index, _)| (path.clone(), index * SECTOR_BYTES)).collect::<Vec<_>>()
        })
        .collect()
}

/// The number of blocks that are errors; all others must be right.
fn check(
    disk: &VirtualDisk,
    config: Config,
    expected: &BTreeMap<ObjectId, Vec<u8>>,
    what: &str,
) -> usize {
    let mut life = Life::new(disk, 7);
    let (store, recovery) = life.open(config).unwrap();
    let mut hurt = Vec::new();
    for (object, expected) in expected {
        for (block, expected) in expected.chunks(BLOCK_BYTES).enumerate() {
            let mut bytes = vec![0xee; BLOCK_BYTES];
            let place = (block * BLOCK_BYTES) as u64;
            match store.read(*object, place, &mut bytes, &mut Vec::new()) {
                Ok(ReadOutcome::Present { .. }) => {
                    assert!(bytes == expected, "{what}: {object} block {block} is wrong");
                }
                Ok(ReadOutcome::Absent) | Err(_) => hurt.push((*object, block)),
            }
        }
    }
    let told = hurt.is_empty() || !recovery.damage.is_empty();
    assert!(told, "{what}: nothing is said of {hurt:?}");
    hurt.len()
}

#[test]
fn a_lost_sector_of_the_log_is_told_of_wherever_in_a_checkpoint_the_process_died() {
    let (mut deaths, mut errors) = (0_u32, 0_u32);
    for objects_cached in [2, 16] {
        for steps in 0.. {
            let Some((site, expected)) = died_in_checkpoint(steps, objects_cached) else { break };
            deaths += 1;
            let all = sectors(&site);
            // Over the deaths each sector has its turn, alone and as the first of more.
            let turns = all.iter().enumerate().skip(steps % 11).step_by(11);
            for (index, (path, at)) in turns {
                let mut bytes = site.bytes(path).unwrap();
                let lengths = [SECTOR_BYTES, 4096, bytes.len()];
                let to = (at + lengths[(index + steps) % 3]).min(bytes.len());
                let what = format!("{objects_cached} cached, step {steps}, {at}..{to} of {path:?}");
                bytes[*at..to].fill(0);
                let disk = site.copy();
                disk.replace(path, Some(&bytes));
                errors += u32::from(check(&disk, config(objects_cached), &expected, &what) > 0);
            }
        }
    }
    assert!(deaths > 40 && errors > 10, "{deaths} deaths, {errors} with errors");
}

#[test]
fn the_names_of_a_removed_inode_stay_away_whenever_a_checkpoint_runs_beside_the_removal() {
    let objects = |disk: &VirtualDisk| {
        let of_objects = Path::new(ROOT).join("objects");
        disk.files().into_iter().filter(|path| path.starts_with(&of_objects)).count()
    };
    let (mut gone, mut there) = (0, 0);
    for seed in 0..600 {
        let disk = VirtualDisk::new(seed);
        let mut random = Random::from_seed(seed);
        let mut life = Life::new(&disk, seed);
        let store = life.open(config(16)).unwrap().0;
        let mut writer = Writer::new(&store, BLOCKS * BLOCK_BYTES, BY);
        (1..3).for_each(|inode| writer.write(object(inode), 0, 2 * BLOCK_BYTES));
        let handle = store.clone();
        life.run(async move { handle.checkpoint().await.unwrap() });
        let removed = Rc::new(Cell::new(false));
        let (handle, end) = (store.clone(), removed.clone());
        life.world.spawn(async move {
            // Refused where the store was closed before.
            end.set(handle.remove_inode(1, 1, 7).await.is_ok());
        });
        let handle = store.clone();
        // In every other life nothing is left to replay, or so it seems.
        life.world.spawn(async move {
            match seed % 2 {
                0 => handle.checkpoint().await.unwrap(),
                _ => handle.close().await.unwrap(),
            }
        });
        for _ in 0..random.below(60) {
            life.step_any(&mut random);
        }
        drop((writer, store, life));
        let power = random.below(2) == 0;
        match power {
            true => disk.crash(&mut random),
            false => disk.survive_process_death(),
        }
        let mut life = Life::new(&disk, 7);
        let era = 1 + u64::from(power);
        let store = life.open(Config { era, ..config(16) }).unwrap().0;
        let late = store.write(object(1), 0, &[b"x"], &checksums(0, b"x"), BY);
        let refused = matches!(late, Err(ObjectError::Removed { .. }));
        assert!(refused || !removed.get(), "seed {seed}: {late:?}");
        let left = objects(&disk);
        assert_eq!(left, 2 - usize::from(refused), "seed {seed}, power {power}: files");
        *(if refused { &mut gone } else { &mut there }) += 1;
    }
    assert!(gone > 100 && there > 20, "{gone} gone, {there} there");
}

/// The further change of a block beside a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Beside {
    Part,
    Whole,
    Hole,
}

/// Block 1 of an object: changed in part, synced, and changed again beside a checkpoint that a power cut
/// ends. True if the later change is there, false if the synced one is; `None` if it is an error.
fn cut_in_checkpoint(seed: u64, beside: Beside) -> Option<bool> {
    let disk = VirtualDisk::new(seed);
    let mut random = Random::from_seed(seed);
    let mut life = Life::new(&disk, seed);
    let store = life.open(config(16)).unwrap().0;
    let mut writer = Writer::new(&store, BLOCKS * BLOCK_BYTES, BY);
    writer.write(object(1), 0, 8 * BLOCK_BYTES);
    let handle = store.clone();
    life.run(async move { handle.checkpoint().await.unwrap() });
    writer.write(object(1), BLOCK_BYTES + 7, 20);
    let handle = store.clone();
    life.run(async move { handle.sync_all().await.unwrap() });
    let block =
        |writer: &Writer| writer.expected[&object(1)][BLOCK_BYTES..2 * BLOCK_BYTES].to_vec();
    let synced = block(&writer);
    life.world.spawn(async move {
        let _ = store.checkpoint().await;
    });
    for _ in 0..random.below(12) {
        life.step_any(&mut random);
    }
    match beside {
        Beside::Part => writer.write(object(1), BLOCK_BYTES + 900, 20),
        // So long that it goes in place.
        Beside::Whole => writer.write(object(1), BLOCK_BYTES, 3 * BLOCK_BYTES),
        Beside::Hole => writer.punch(object(1), BLOCK_BYTES, BLOCK_BYTES),
    }
    let later = block(&writer);
    for _ in 0..random.below(40) {
        life.step_any(&mut random);
    }
    drop((writer, life));
    disk.crash(&mut random);
    let mut life = Life::new(&disk, 7);
    let store = life.open(Config { era: 2, ..config(16) }).unwrap().0;
    let mut bytes = vec![0xee; BLOCK_BYTES];
    let outcome = store.read(object(1), BLOCK_BYTES as u64, &mut bytes, &mut Vec::new());
    match outcome {
        Ok(ReadOutcome::Present { .. }) if bytes == later => Some(true),
        Ok(ReadOutcome::Present { .. }) if bytes == synced => Some(false),
        Err(ObjectError::Corrupt { .. }) if beside != Beside::Part => None,
        other => panic!("{beside:?}, seed {seed}: neither of its last two states: {other:?}"),
    }
}

#[test]
fn a_synced_change_outlives_a_later_one_that_a_checkpoint_meets() {
    for beside in [Beside::Part, Beside::Whole, Beside::Hole] {
        let mut outcomes: BTreeMap<Option<bool>, u32> = BTreeMap::new();
        for seed in 0..600 {
            *outcomes.entry(cut_in_checkpoint(seed, beside)).or_default() += 1;
        }
        let count = |outcome| outcomes.get(&outcome).copied().unwrap_or(0);
        assert!(count(Some(true)) > 30 && count(Some(false)) > 30, "{beside:?}: {outcomes:?}");
    }
}
