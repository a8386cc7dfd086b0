//! The damage matrix of a data server's store: every structure on its disk, damaged in every way, after a kill, a
//! tidy end and a power cut. Each read is right or an error. Objects that are not concerned read as before. Removals
//! and fences hold, or the store does not open and says what is wrong.
//!
//! Each case damages one file of a small store that has a bit of everything: objects in checkpoints and
//! in the log, patches, holes, a removal, a fence, several segments. The seeds draw cases;
//! `ROPEWALK_SEEDS` asks for more, and the ignored test takes every byte of every file, as far as `ROPEWALK_SEED_MINUTES` last.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ropewalk_base::checksum::crc32c;
use ropewalk_base::random::Random;
use ropewalk_sim::disk::VirtualDisk;
use ropewalk_sim::{in_time, seeds};
use ropewalk_store::objects::{
    BLOCK_BYTES, Config, ObjectError, ObjectId, ObjectStore, ReadOutcome, Recovery, WriteEpoch,
};

use crate::object_life::{Life, ROOT, Writer};

/// Bytes between two that have their turn one after the other.
const SPREAD: usize = 499;
const BLOCKS: usize = 160;
const BY: WriteEpoch = WriteEpoch { session: 1, epoch: 5 };
const REMOVED: ObjectId = ObjectId { inode: 9, generation: 1, stripe: 0 };
const REMOVED_LATER: ObjectId = ObjectId { inode: 10, generation: 1, stripe: 0 };

fn config(era: u64) -> Config {
    Config {
        object_bytes: (BLOCKS * BLOCK_BYTES) as u64,
        segment_bytes: 24 * 1024,
        checkpoint_bytes: 1 << 20,
        overlay_bytes: 1 << 20,
        objects_cached: 16,
        logged_bytes: 8 * 1024,
        era,
    }
}

fn object(inode: u64, stripe: u32) -> ObjectId {
    ObjectId { inode, generation: 1, stripe }
}

/// The end of the life before the damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Kill,
    Stop,
    Power,
}

/// A store at rest, and its expected contents.
struct Site {
    disk: VirtualDisk,
    ending: Ending,
    expected: BTreeMap<ObjectId, Vec<u8>>,
    /// The files at an earlier time, and those of another store.
    older: BTreeMap<PathBuf, Vec<u8>>,
    foreign: BTreeMap<PathBuf, Vec<u8>>,
}

fn files(disk: &VirtualDisk) -> BTreeMap<PathBuf, Vec<u8>> {
    let bytes = |path: PathBuf| disk.bytes(&path).map(|bytes| (path, bytes));
    disk.files().into_iter().filter_map(bytes).collect()
}

impl Site {
    fn new(ending: Ending) -> Site {
        let foreign = files(&Site::made(ending, 2).disk);
        Site { foreign, ..Site::made(ending, 1) }
    }

    fn made(ending: Ending, identity: u64) -> Site {
        let disk = VirtualDisk::new(1);
        let mut life = Life::new(&disk, identity);
        let store = life.open(config(1)).unwrap().0;
        let mut writer = Writer::new(&store, BLOCKS * BLOCK_BYTES, BY);
        for inode in 1..5 {
            writer.write(object(inode, 0), 0, 3 * BLOCK_BYTES);
            writer.write(object(inode, 1), 2 * BLOCK_BYTES, 2 * BLOCK_BYTES);
        }
        for stripe in 0..2 {
            writer.write(object(8, stripe), 0, 6 * BLOCK_BYTES);
        }
        // An object whose table has a second sector.
        writer.write(object(1, 0), 150 * BLOCK_BYTES, 2 * BLOCK_BYTES);
        writer.write(REMOVED, 0, BLOCK_BYTES);
        let handle = store.clone();
        life.run(async move {
            handle.remove_inode(REMOVED.inode, 1, 7).await.unwrap();
            handle.fence(2, 4, 7).await.unwrap();
            handle.checkpoint().await.unwrap();
        });
        let older = files(&disk);
        // Of these the log says something later, and nothing.
        for stripe in 0..2 {
            writer.write(object(8, stripe), BLOCK_BYTES, 3 * BLOCK_BYTES);
            writer.punch(object(8, stripe), 5 * BLOCK_BYTES, BLOCK_BYTES);
        }
        let handle = store.clone();
        life.run(async move { handle.checkpoint().await.unwrap() });
        writer.write(object(8, 0), 2 * BLOCK_BYTES + 17, 100);
        // Writes from here are in the log alone until the end, or in one checkpoint more.
        writer.write(object(1, 0), 100, 50);
        writer.write(object(1, 0), 4 * BLOCK_BYTES, 2 * BLOCK_BYTES);
        writer.write(object(2, 0), BLOCK_BYTES, 5 * BLOCK_BYTES);
        writer.write(object(2, 1), 2 * BLOCK_BYTES + 7, 9);
        writer.punch(object(3, 0), BLOCK_BYTES, BLOCK_BYTES);
        writer.write(object(5, 0), 0, 2 * BLOCK_BYTES);
        writer.write(REMOVED_LATER, 0, BLOCK_BYTES);
        let handle = store.clone();
        life.run(async move {
            handle.remove_inode(REMOVED_LATER.inode, 1, 7).await.unwrap();
            handle.fence(3, 4, 7).await.unwrap();
            handle.sync_all().await.unwrap();
        });
        writer.expected.remove(&REMOVED);
        writer.expected.remove(&REMOVED_LATER);
        for round in 0..4 {
            writer.write(object(4, 0), 10 + round, 2 * BLOCK_BYTES);
            writer.write(object(3, 1), 3 * BLOCK_BYTES + 5 * round, 11);
        }
        writer.write(object(6, 0), 0, 3 * BLOCK_BYTES);
        match ending {
            Ending::Kill => (),
            Ending::Stop => life.run(async move { store.close().await.unwrap() }),
            Ending::Power => {
                let handle = store.clone();
                life.run(async move { handle.sync_all().await.unwrap() });
                // Only the records behind it distinguish data of the last sync from writes that were under way. So
                // more data follows than a case takes away at once.
                writer.write(object(7, 0), 0, 5 * BLOCK_BYTES);
                for block in 0..5 {
                    writer.write(object(7, 0), block * BLOCK_BYTES + 9, 7);
                }
                life.run(async move { store.sync_all().await.unwrap() });
                writer.expected.remove(&object(7, 0));
            }
        }
        let expected = std::mem::take(&mut writer.expected);
        drop((writer, life));
        match ending {
            Ending::Power => disk.crash(&mut Random::from_seed(3)),
            Ending::Kill | Ending::Stop => disk.survive_process_death(),
        }
        Site { disk, ending, expected, older, foreign: BTreeMap::new() }
    }

    fn era(&self) -> u64 {
        if self.ending == Ending::Power { 2 } else { 1 }
    }

    fn files(&self) -> Vec<PathBuf> {
        // The lock and the reserve hold nothing.
        let empty = ["lock", "reserve"].map(|name| Path::new(ROOT).join(name));
        self.disk.files().into_iter().filter(|path| !empty.contains(path)).collect()
    }
}

/// The damage to a file.
#[derive(Debug, Clone)]
enum Damage {
    Flip {
        at: usize,
        bit: u8,
    },
    Zero {
        from: usize,
        to: usize,
    },
    Cut {
        at: usize,
    },
    /// The device does not give the page back that has this byte.
    Unreadable {
        at: usize,
    },
    Older,
    Exchange {
        with: PathBuf,
    },
    /// Another store's file of the same name.
    Foreign,
    Gone,
}

/// The sort of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Sort {
    Description,
    Marks,
    Segment,
    Board,
    Roll,
    Object,
}

fn sort(path: &Path) -> Sort {
    let name = path.file_name().unwrap().to_str().unwrap();
    match name {
        "store" => Sort::Description,
        "board" => Sort::Board,
        "roll" => Sort::Roll,
        _ if name.starts_with("marks") => Sort::Marks,
        _ if name.starts_with("segment.") => Sort::Segment,
        _ => Sort::Object,
    }
}

/// The object of a file of this name.
fn named(path: &Path) -> Option<ObjectId> {
    let mut parts = path.file_name()?.to_str()?.split('.');
    let mut number = || u64::from_str_radix(parts.next()?, 16).ok();
    let (inode, generation, stripe) = (number()?, number()? as u32, number()? as u32);
    Some(ObjectId { inode, generation, stripe })
}

fn apply(site: &Site, disk: &VirtualDisk, path: &Path, damage: &Damage) {
    let bytes = disk.bytes(path).unwrap();
    let mut changed = bytes.clone();
    match damage {
        Damage::Flip { at, bit } => changed[*at] ^= 1 << bit,
        Damage::Zero { from, to } => changed[*from..*to].fill(0),
        Damage::Cut { at } => changed.truncate(*at),
        Damage::Unreadable { at } => return disk.spoil(path, *at as u64),
        Damage::Older => changed.clone_from(&site.older[path]),
        Damage::Foreign => changed.clone_from(&site.foreign[path]),
        Damage::Exchange { with } => {
            changed = disk.bytes(with).unwrap();
            disk.replace(with, Some(&bytes));
        }
        Damage::Gone => return disk.replace(path, None),
    }
    disk.replace(path, Some(&changed));
}

/// The outcome of one case, for the sum in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// Everything reads as it was.
    Whole,
    /// Some objects are errors.
    Errors,
    Refused,
}

impl Site {
    fn check(&self, path: &Path, damage: &Damage) -> Outcome {
        let what = format!("{:?}: {damage:?} of {}", self.ending, path.display());
        let disk = self.disk.copy();
        apply(self, &disk, path, damage);
        let mut life = Life::new(&disk, 7);
        let (store, recovery) = match life.open(config(self.era())) {
            Ok(opened) => opened,
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains(ROOT), "{what}: {text}");
                let description =
                    matches!(damage, Damage::Unreadable { .. }) && sort(path) == Sort::Description;
                let clean = matches!(error, ObjectError::Format { .. }) || description;
                assert!(clean, "{what}: {text}");
                // One damaged copy of anything is no reason to refuse everything.
                let small = matches!(damage, Damage::Flip { .. });
                assert!(!small || sort(path) == Sort::Description, "{what}: {text}");
                return Outcome::Refused;
            }
        };
        let hurt = self.read_all(&store, &what);
        self.check_marks(&store, &what);
        self.check_bystanders(path, damage, &hurt, &recovery, &what);
        // The next life says the same.
        drop((store, life));
        disk.survive_process_death();
        let mut life = Life::new(&disk, 8);
        let (store, _) =
            life.open(config(self.era())).unwrap_or_else(|error| panic!("{what}: {error}"));
        let again = self.read_all(&store, &what);
        assert_eq!(again, hurt, "{what}: another life");
        self.write_hurt(&store, &hurt, &what);
        if hurt.is_empty() { Outcome::Whole } else { Outcome::Errors }
    }

    /// The objects of which a block is an error; anything else must be right.
    fn read_all(&self, store: &ObjectStore, what: &str) -> BTreeSet<ObjectId> {
        let mut hurt = BTreeSet::new();
        for (object, expected) in &self.expected {
            for (block, expected) in expected.chunks(BLOCK_BYTES).enumerate() {
                let mut bytes = vec![0xee; BLOCK_BYTES];
                let at = (block * BLOCK_BYTES) as u64;
                match store.read(*object, at, &mut bytes, &mut Vec::new()) {
                    Ok(ReadOutcome::Present { .. }) => {
                        assert!(bytes == expected, "{what}: {object} block {block} is wrong");
                    }
                    // The written-map of its file tells the reader that this is a loss.
                    Ok(ReadOutcome::Absent) => drop(hurt.insert(*object)),
                    Err(error) => {
                        let text = error.to_string();
                        assert!(text.contains(&object.to_string()), "{what}: {text}");
                        hurt.insert(*object);
                    }
                }
            }
        }
        hurt
    }

    /// A write to an object with lost data leaves that data lost: unknown bytes never become zeros beside the write.
    fn write_hurt(&self, store: &ObjectStore, hurt: &BTreeSet<ObjectId>, what: &str) {
        for object in hurt {
            let mut expected = self.expected[object].clone();
            for block in [0, 2, 5, 100] {
                let at = block * BLOCK_BYTES + 5;
                let written = store.write(*object, at as u64, &[b"later"], &[crc32c(b"later")], BY);
                if written.is_ok() {
                    expected[at..at + 5].copy_from_slice(b"later");
                }
            }
            for (block, expected) in expected.chunks(BLOCK_BYTES).enumerate() {
                let (mut bytes, at) = (vec![0xee; BLOCK_BYTES], (block * BLOCK_BYTES) as u64);
                let read = store.read(*object, at, &mut bytes, &mut Vec::new());
                if let Ok(ReadOutcome::Present { .. }) = read {
                    let right = bytes == expected;
                    assert!(right, "{what}: {object} block {block} is wrong after a write");
                }
            }
        }
    }

    fn check_marks(&self, store: &ObjectStore, what: &str) {
        for object in [REMOVED, REMOVED_LATER] {
            let outcome = store.read(object, 0, &mut [0; 64], &mut Vec::new());
            assert!(matches!(outcome, Ok(ReadOutcome::Absent)), "{what}: {object} is back");
            let late = store.write(object, 0, &[b"x"], &[crc32c(b"x")], BY);
            let refused = matches!(late, Err(ObjectError::Removed { .. }));
            assert!(refused, "{what}: a late write to {object}: {late:?}");
        }
        for session in [2, 3] {
            assert_eq!(store.minimum_epoch(session), 4, "{what}: the fence of {session}");
        }
    }

    /// Those who were not damaged read as before, and damage is told of.
    fn check_bystanders(
        &self,
        path: &Path,
        damage: &Damage,
        hurt: &BTreeSet<ObjectId>,
        recovery: &Recovery,
        what: &str,
    ) {
        let mut most = usize::MAX;
        let mut allowed: Option<Vec<ObjectId>> = None;
        match (sort(path), damage) {
            (Sort::Object, Damage::Exchange { with }) => {
                allowed = Some([path, with].into_iter().filter_map(named).collect());
            }
            (Sort::Object, _) => allowed = Some(named(path).into_iter().collect()),
            (Sort::Segment, Damage::Flip { .. }) => most = 1,
            (Sort::Segment, Damage::Exchange { .. }) => most = 0,
            (Sort::Roll, Damage::Exchange { .. }) => unreachable!("there is one"),
            (Sort::Segment, _) => {
                let told = hurt.is_empty() || !recovery.damage.is_empty();
                assert!(told, "{what}: nothing is said of {hurt:?}");
            }
            _ => most = 0,
        }
        assert!(hurt.len() <= most, "{what}: {hurt:?}");
        let innocent = hurt
            .iter()
            .find(|object| allowed.as_ref().is_some_and(|allowed| !allowed.contains(object)));
        assert_eq!(innocent, None, "{what}");
    }
}

/// Every way to damage a file; of flips, zeros and cuts those at `places`.
fn damages(site: &Site, path: &Path, places: &[usize], bit: u8) -> Vec<Damage> {
    let length = site.disk.bytes(path).unwrap().len();
    let mut all = Vec::new();
    for &at in places.iter().filter(|at| **at < length) {
        all.push(Damage::Flip { at, bit: bit % 8 });
        for bytes in [8, 512, 4096, length] {
            all.push(Damage::Zero { from: at, to: at.saturating_add(bytes).min(length) });
        }
        all.push(Damage::Cut { at });
        all.push(Damage::Unreadable { at });
    }
    all.extend(site.older.contains_key(path).then_some(Damage::Older));
    all.extend(site.foreign.contains_key(path).then_some(Damage::Foreign));
    let mut others = site.files();
    others.retain(|other| other != path && sort(other) == sort(path));
    all.extend(others.into_iter().map(|with| Damage::Exchange { with }));
    all.push(Damage::Gone);
    all
}

/// The last byte of a file that is not zero: the bytes behind it are not used.
fn used(site: &Site, path: &Path) -> usize {
    let bytes = site.disk.bytes(path).unwrap();
    bytes.iter().rposition(|byte| *byte != 0).map_or(1, |last| last + 1)
}

#[test]
fn every_read_is_right_or_an_error_whatever_is_damaged() {
    let sites = [Ending::Kill, Ending::Stop, Ending::Power].map(Site::new);
    let mut outcomes: BTreeMap<(Sort, Outcome), u32> = BTreeMap::new();
    for seed in seeds(0, 40) {
        let mut random = Random::from_seed(seed);
        let site = &sites[random.below(3) as usize];
        let files = site.files();
        let path = &files[random.below(files.len() as u64) as usize];
        let used = used(site, path) as u64;
        // Half of them at the front, where the smallest structures are.
        let limit = if random.below(2) == 0 { used } else { used.min(2048) };
        let place = random.below(limit) as usize;
        for damage in damages(site, path, &[place], random.below(8) as u8) {
            let outcome = site.check(path, &damage);
            *outcomes.entry((sort(path), outcome)).or_default() += 1;
        }
    }
    println!("{outcomes:?}");
}

#[test]
fn every_file_may_be_gone_an_older_copy_or_anothers() {
    let mut outcomes: BTreeMap<(Sort, Outcome), u32> = BTreeMap::new();
    for ending in [Ending::Kill, Ending::Stop, Ending::Power] {
        let site = Site::new(ending);
        for path in site.files() {
            for damage in damages(&site, &path, &[0], 3) {
                let outcome = site.check(&path, &damage);
                *outcomes.entry((sort(&path), outcome)).or_default() += 1;
            }
        }
        // Of one of these the log says something, and nothing of the other one.
        for stripe in 0..2 {
            let mut files = site.files().into_iter();
            let path = files.find(|path| named(path) == Some(object(8, stripe))).unwrap();
            assert_eq!(site.check(&path, &Damage::Older), Outcome::Errors, "{ending:?}");
            assert_eq!(site.check(&path, &Damage::Gone), Outcome::Errors, "{ending:?}");
        }
    }
    println!("{outcomes:?}");
}

#[test]
fn every_page_of_every_file_may_be_unreadable_for_ever_or_for_one_life() {
    let mut outcomes: BTreeMap<(Sort, Outcome), u32> = BTreeMap::new();
    for ending in [Ending::Kill, Ending::Stop, Ending::Power] {
        let site = Site::new(ending);
        for path in site.files() {
            let length = site.disk.bytes(&path).unwrap().len();
            for at in (0..length).step_by(4096) {
                let damage = Damage::Unreadable { at };
                let outcome = site.check(&path, &damage);
                *outcomes.entry((sort(&path), outcome)).or_default() += 1;
                // The result of a start must also hold if the device can read the bytes again later.
                let disk = site.disk.copy();
                disk.spoil(&path, at as u64);
                let what = format!("{ending:?}: byte {at} of {} for one life", path.display());
                drop(Life::new(&disk, 7).open(config(site.era())));
                disk.survive_process_death();
                disk.unspoil();
                let mut life = Life::new(&disk, 8);
                if let Ok((store, _)) = life.open(config(site.era())) {
                    site.read_all(&store, &what);
                    site.check_marks(&store, &what);
                }
            }
        }
    }
    println!("{outcomes:?}");
    let refused = |sort| outcomes.contains_key(&(sort, Outcome::Refused));
    let sorts = [Sort::Object, Sort::Marks, Sort::Board, Sort::Roll];
    assert!(!sorts.into_iter().any(refused), "{outcomes:?}");
}

#[test]
fn what_earlier_lives_noted_on_the_board_never_comes_to_life_again() {
    // Here the power cut has torn the board's head: the first life does not read the slots.
    let site = Site::new(Ending::Power);
    let board = Path::new(ROOT).join("board");
    for at in 256..used(&site, &board) {
        site.check(&board, &Damage::Flip { at, bit: 2 });
    }
}

#[test]
#[ignore = "takes minutes: every byte of every file"]
fn every_byte_of_every_structure_may_be_damaged() {
    std::thread::scope(|scope| {
        for ending in [Ending::Kill, Ending::Stop, Ending::Power] {
            scope.spawn(move || println!("{ending:?}: {:?}", of_every_byte(&Site::new(ending))));
        }
    });
}

fn of_every_byte(site: &Site) -> BTreeMap<(Sort, Outcome), u32> {
    let mut outcomes = BTreeMap::new();
    let mut places = Vec::new();
    for path in site.files() {
        let used = used(site, &path);
        // Data is all alike: every byte before it, and some bytes of it.
        let dense = if sort(&path) == Sort::Object { used.min(4096) } else { used };
        let all = (0..dense).chain((dense..used).step_by(997));
        places.extend(all.map(|at| (path.clone(), at)));
    }
    // Where time is short, some bytes of each structure had their turn.
    let turns = (0..SPREAD).flat_map(|first| places.iter().skip(first).step_by(SPREAD));
    for (path, at) in in_time(turns) {
        let flip = Damage::Flip { at: *at, bit: (at % 8) as u8 };
        let others = if at % 61 == 0 { damages(site, path, &[*at], 3) } else { Vec::new() };
        for damage in [flip].into_iter().chain(others) {
            let outcome = site.check(path, &damage);
            *outcomes.entry((sort(path), outcome)).or_default() += 1;
        }
    }
    outcomes
}
