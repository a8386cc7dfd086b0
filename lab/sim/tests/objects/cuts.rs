//! Cuts of files whose objects are damaged. Each cut ends; the kept part is right or an error, the cut part reads as
//! zeros. The file can be written again, in later lives too.

use std::path::PathBuf;

use crate::object_life;
use crate::object_life::checksums;
use ropewalk_base::random::Random;
use ropewalk_sim::disk::VirtualDisk;
use ropewalk_store::objects::{
    BLOCK_BYTES, Config, ObjectError, ObjectId, ObjectStore, ReadOutcome, WriteEpoch,
};

const BLOCKS: usize = 160;
const STRIPES: u32 = 4;
const BY: WriteEpoch = WriteEpoch { session: 1, epoch: 5 };
/// The cut of the file: the stripe, and its bytes that stay.
const STRIPE: u32 = 1;
const KEPT: usize = 2 * BLOCK_BYTES + 100;

/// One life of a process with the store.
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

    fn checkpoint(&mut self) {
        let store = self.store.clone();
        self.process.run(async move { store.checkpoint().await }).expect("the disk is whole");
    }

    fn write(&self, object: ObjectId, offset: usize, bytes: &[u8]) -> Result<(), ObjectError> {
        let sums = checksums(offset, bytes);
        self.store.write(object, offset as u64, &[bytes], &sums, BY).map(drop)
    }

    fn cut(&self, kept: usize) -> Result<Vec<ObjectId>, ObjectError> {
        self.store.truncate_file(object(0).inode, 1, STRIPE, kept as u64, BY)
    }
}

fn object(stripe: u32) -> ObjectId {
    ObjectId { inode: 8, generation: 1, stripe }
}

fn content(stripe: u32, version: u8) -> Vec<u8> {
    (0..6 * BLOCK_BYTES).map(|at| (at % 251) as u8 ^ version ^ (stripe as u8) << 3 | 1).collect()
}

/// The damage to the file of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    /// A bit of the block in which the cut ends.
    Flip,
    Head,
    Headless,
    Older,
    Short,
    Gone,
}

const DAMAGES: [Damage; 6] =
    [Damage::Flip, Damage::Head, Damage::Headless, Damage::Older, Damage::Short, Damage::Gone];

/// A store at rest.
struct Site {
    disk: VirtualDisk,
    files: Vec<PathBuf>,
    older: Vec<Vec<u8>>,
}

impl Site {
    fn new() -> Site {
        let disk = VirtualDisk::new(1);
        let mut life = Life::new(&disk);
        (0..STRIPES).for_each(|stripe| life.write(object(stripe), 0, &content(stripe, 1)).unwrap());
        life.checkpoint();
        let mut files = disk.files();
        files.retain(|path| path.to_string_lossy().contains("/objects/"));
        let older = files.iter().map(|path| disk.bytes(path).unwrap()).collect();
        (0..STRIPES).for_each(|stripe| life.write(object(stripe), 0, &content(stripe, 2)).unwrap());
        life.checkpoint();
        drop(life);
        disk.survive_process_death();
        assert_eq!(files.len() as u32, STRIPES, "{files:?}");
        Site { disk, files, older }
    }

    fn damaged(&self, stripe: u32, damage: Damage) -> VirtualDisk {
        let (disk, stripe) = (self.disk.copy(), stripe as usize);
        let path = &self.files[stripe];
        let mut bytes = disk.bytes(path).unwrap();
        match damage {
            Damage::Flip => {
                let block = &content(stripe as u32, 2)[2 * BLOCK_BYTES..3 * BLOCK_BYTES];
                let at = bytes.chunks(BLOCK_BYTES).position(|found| found == block).unwrap();
                bytes[at * BLOCK_BYTES + 50] ^= 4;
            }
            Damage::Head => bytes[..1024].fill(0xaa),
            Damage::Headless => bytes[..1024].fill(0),
            Damage::Older => bytes.clone_from(&self.older[stripe]),
            Damage::Short => bytes.truncate(600),
            Damage::Gone => {
                disk.replace(path, None);
                return disk;
            }
        }
        disk.replace(path, Some(&bytes));
        disk
    }
}

/// Compares all objects with their expected contents after the cut. Errors are right in the damaged object alone: in
/// its kept part, and anywhere if its file is gone. True if there were any.
fn check(life: &Life, kept: usize, (damaged, damage): (u32, Damage), what: &str) -> bool {
    let mut any = false;
    for stripe in 0..STRIPES {
        let mut expected = content(stripe, 2);
        expected.resize(BLOCKS * BLOCK_BYTES, 0);
        let kept = if stripe < STRIPE {
            expected.len()
        } else if stripe > STRIPE {
            0
        } else {
            kept
        };
        expected[kept..].fill(0);
        for (block, expected) in expected.chunks(BLOCK_BYTES).enumerate() {
            let (at, mut bytes) = (block * BLOCK_BYTES, vec![0xee; BLOCK_BYTES]);
            match life.store.read(object(stripe), at as u64, &mut bytes, &mut Vec::new()) {
                Ok(ReadOutcome::Present { .. }) => {
                    assert!(bytes == expected, "{what}: block {block} of {stripe} is wrong");
                }
                Ok(ReadOutcome::Absent) => panic!("{what}: {stripe} is absent"),
                Err(error) => {
                    let may = stripe == damaged && (at < kept || damage == Damage::Gone);
                    assert!(may, "{what}: block {block} of {stripe}: {error}");
                    any = true;
                }
            }
        }
    }
    any
}

#[test]
fn a_cut_of_damaged_objects_ends_and_leaves_no_byte_behind_it() {
    let site = Site::new();
    for (stripe, damage) in (0..STRIPES).flat_map(|stripe| DAMAGES.map(|damage| (stripe, damage))) {
        for kept in [KEPT, 2 * BLOCK_BYTES, 0] {
            let what = format!("{damage:?} of {stripe}, {kept} bytes are kept");
            let disk = site.damaged(stripe, damage);
            let life = Life::new(&disk);
            let lossy = life.cut(kept).unwrap_or_else(|error| panic!("{what}: {error}"));
            let any = check(&life, kept, (stripe, damage), &what);
            // Whole blocks that cannot be read are none the worse for the cut.
            let worse = kept == KEPT || damage != Damage::Short;
            let told = any && worse && stripe == STRIPE && damage != Damage::Gone;
            assert_eq!(lossy, if told { vec![object(STRIPE)] } else { vec![] }, "{what}");
            // In later lives, with the log and without.
            drop(life);
            disk.survive_process_death();
            let mut life = Life::new(&disk);
            check(&life, kept, (stripe, damage), &what);
            life.checkpoint();
            drop(life);
            disk.survive_process_death();
            let life = Life::new(&disk);
            check(&life, kept, (stripe, damage), &what);
            // Blocks that are overwritten as a whole are healed, in the kept part and behind it.
            for stripe in STRIPE..STRIPES {
                let written = life.write(object(stripe), 0, &content(stripe, 9));
                let gone =
                    matches!(written, Err(ObjectError::Gone { .. })) && damage == Damage::Gone;
                assert!(written.is_ok() || gone, "{what}: {written:?}");
                if written.is_ok() {
                    let mut bytes = vec![0; 6 * BLOCK_BYTES];
                    life.store.read(object(stripe), 0, &mut bytes, &mut Vec::new()).unwrap();
                    assert!(bytes == content(stripe, 9), "{what}: {stripe} is not healed");
                }
            }
        }
    }
}

#[test]
fn a_cut_of_a_damaged_object_may_be_broken_off_anywhere_and_made_again() {
    let site = Site::new();
    let mut random = Random::from_seed(8);
    for (stripe, damage) in (1..3).flat_map(|stripe| DAMAGES.map(|damage| (stripe, damage))) {
        for halt in 1.. {
            let mut ended = false;
            for power in [false, true, true, true] {
                let disk = site.damaged(stripe, damage);
                let life = Life::new(&disk);
                disk.halt_after(halt);
                ended |= life.cut(KEPT).is_ok() && !disk.is_halted();
                drop(life);
                if power {
                    disk.crash(&mut random);
                } else {
                    disk.survive_process_death();
                }
                let what = format!("{damage:?} of {stripe}, halt {halt}, power {power}");
                let life = Life::new(&disk);
                life.cut(KEPT).unwrap_or_else(|error| panic!("{what}: {error}"));
                check(&life, KEPT, (stripe, damage), &what);
            }
            if ended {
                break;
            }
        }
    }
}

#[test]
fn a_cut_waits_for_a_device_that_fails_where_something_is_kept() {
    let site = Site::new();
    let disk = site.disk.copy();
    let life = Life::new(&disk);
    // The head of the object of which a part is kept: the device may answer differently next time.
    disk.fail_read(1);
    assert!(matches!(life.cut(KEPT), Err(ObjectError::Io { .. })));
    // The others were cut nevertheless.
    let mut bytes = [7; 10];
    life.store.read(object(3), 0, &mut bytes, &mut Vec::new()).unwrap();
    assert_eq!(bytes, [0; 10]);
    assert_eq!(life.cut(KEPT).unwrap(), []);
    assert!(!check(&life, KEPT, (STRIPE, Damage::Flip), "the device is back"));
}
