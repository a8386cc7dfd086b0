//! Objects whose content is given up: each block has its bytes or is an error, after any end of a life, and never reads as zeros.

use crate::object_life;
use crate::object_life::checksums;
use ropewalk_base::random::Random;
use ropewalk_sim::disk::VirtualDisk;
use ropewalk_store::objects::{
    BLOCK_BYTES, Config, ObjectError, ObjectId, ObjectStore, ReadOutcome, UNKNOWN, WriteEpoch,
};

const BLOCKS: usize = 64;
const OBJECTS: u32 = 3;
const BY: WriteEpoch = WriteEpoch { session: 0, epoch: 0 };
/// Of each object: in place, and a part of its last block in the log.
const BYTES: usize = 9 * BLOCK_BYTES + 700;

struct Life {
    process: object_life::Life,
    store: ObjectStore,
}

impl Life {
    fn new(disk: &VirtualDisk) -> Life {
        let config = Config {
            object_bytes: (BLOCKS * BLOCK_BYTES) as u64,
            segment_bytes: 24 * 1024,
            logged_bytes: 8 * 1024,
            ..Config::default()
        };
        let mut process = object_life::Life::new(disk, 3);
        let store = process.open(config).expect("it opens").0;
        Life { process, store }
    }

    fn write(&self, object: ObjectId, offset: usize, bytes: &[u8]) {
        let sums = checksums(offset, bytes);
        self.store.write(object, offset as u64, &[bytes], &sums, BY).map(drop).expect("written");
    }

    /// Gives both objects up, as far as the disk goes along.
    fn give_up(&mut self) -> Result<(), ObjectError> {
        let objects: Vec<ObjectId> = (0..2).map(object).collect();
        for object in &objects {
            self.store.give_up(*object, BY)?;
        }
        let store = self.store.clone();
        self.process.run(async move { store.free_given_up(&objects).await })
    }

    fn checkpoint(&mut self) {
        let store = self.store.clone();
        self.process.run(async move { store.checkpoint().await }).expect("the disk is whole");
    }

    /// Blocks of an object that are errors. The others have their bytes.
    fn lost(&self, of: u32) -> usize {
        let (mut lost, expected) = (0, content(of));
        for (block, expected) in expected.chunks(BLOCK_BYTES).enumerate() {
            let mut bytes = vec![0; expected.len()];
            let at = (block * BLOCK_BYTES) as u64;
            match self.store.read(object(of), at, &mut bytes, &mut Vec::new()) {
                Ok(ReadOutcome::Present { .. }) => {
                    assert!(bytes == expected, "block {block} of {of} has other bytes");
                }
                Err(ObjectError::Corrupt { .. }) => lost += 1,
                other => panic!("block {block} of {of}: {other:?}"),
            }
        }
        lost
    }
}

fn object(number: u32) -> ObjectId {
    ObjectId { inode: 8 + u64::from(number), generation: 1, stripe: number }
}

fn content(number: u32) -> Vec<u8> {
    (0..BYTES).map(|at| (at % 251) as u8 ^ (number as u8) << 3 | 1).collect()
}

/// A store with objects that are durable, one of which was changed since the last checkpoint.
fn filled() -> VirtualDisk {
    let disk = VirtualDisk::new(1);
    let mut life = Life::new(&disk);
    (0..OBJECTS).for_each(|number| life.write(object(number), 0, &content(number)));
    life.checkpoint();
    let changed = &content(1)[BLOCK_BYTES..3 * BLOCK_BYTES];
    life.write(object(1), BLOCK_BYTES, changed);
    let store = life.store.clone();
    life.process.run(async move { store.sync_all().await }).expect("synced");
    drop(life);
    disk.survive_process_death();
    disk
}

#[test]
fn what_is_given_up_is_lost_for_good_and_its_room_is_free() {
    let disk = filled();
    let mut life = Life::new(&disk);
    let before = life.store.usage().object_bytes;
    life.give_up().expect("given up");
    for power in [false, true] {
        assert_eq!((life.lost(0), life.lost(1), life.lost(2)), (10, 10, 0), "power {power}");
        for number in 0..2 {
            let info = life.store.info(object(number)).expect("known").expect("it keeps its name");
            assert_eq!(info.bytes, 0);
            let table = life.store.table(object(number)).expect("known").expect("it is there");
            assert!(table.len() == 10 && table.iter().all(|entry| *entry == UNKNOWN), "{table:?}");
        }
        if !power {
            let left = life.store.usage().object_bytes;
            assert_eq!(left * 3, before, "{left} of {before}");
        }
        assert_eq!(life.store.give_up(object(0), BY).expect("nothing to do"), 0);
        drop(life);
        match power {
            false => disk.survive_process_death(),
            true => disk.crash(&mut Random::from_seed(4)),
        }
        life = Life::new(&disk);
    }
    // A block that is written again is whole, and the others stay lost.
    life.write(object(0), 0, &content(0)[..BLOCK_BYTES]);
    life.checkpoint();
    assert_eq!(life.lost(0), 9);
    let objects = [object(0)];
    let store = life.store.clone();
    life.process.run(async move { store.free_given_up(&objects).await }).expect("freed");
    assert_eq!(life.lost(0), 9, "the new block stays");
}

#[test]
fn giving_up_may_be_broken_off_anywhere_and_no_block_becomes_zeros() {
    let (site, mut random) = (filled(), Random::from_seed(8));
    for halt in 1.. {
        let mut ended = false;
        for power in [false, true, true, true, true] {
            let disk = site.copy();
            let mut life = Life::new(&disk);
            disk.halt_after(halt);
            ended |= life.give_up().is_ok() && !disk.is_halted();
            drop(life);
            match power {
                false => disk.survive_process_death(),
                true => disk.crash(&mut random),
            }
            let mut life = Life::new(&disk);
            let lost = [0, 1, 2].map(|number| life.lost(number));
            assert_eq!(lost[2], 0, "halt {halt}, power {power}");
            // It may be done again, whatever was done.
            life.give_up().unwrap_or_else(|error| panic!("halt {halt}: {error}"));
            life.checkpoint();
            drop(life);
            disk.crash(&mut random);
            let life = Life::new(&disk);
            assert_eq!([0, 1, 2].map(|number| life.lost(number)), [10, 10, 0], "halt {halt}");
        }
        if ended {
            return;
        }
    }
}
