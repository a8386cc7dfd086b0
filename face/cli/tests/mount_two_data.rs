//! Two mounts of one cluster against one local file system: random orders to programs, each of which
//! works on one of the mounts, and the same orders on local files. Every answer has to be the same, and
//! every file in the end.
//!
//! The seeds are few and the same each time; `ROPEWALK_SEEDS` makes them many, `ROPEWALK_SEED` chooses one.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::filer::{Filer, compile};
use support::operation::Random;
use support::servers::Servers;
use support::{PROGRAM, Process, mounts_usable};

const FILES: u64 = 3;
/// Programs; the first half on the first mount.
const PROGRAMS: usize = 4;
/// Open files of each program.
const SLOTS: u64 = 3;
const STEPS: usize = 250;
const SEEDS: u64 = 6;
/// Files are not longer: maps are this long.
const SIZE_MAX: u64 = 60_000;

/// An open file of a program.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    file: Option<u64>,
    writes: bool,
    reads: bool,
    append: bool,
    mapped: bool,
}

/// A program on a mount and its double on the local file system.
struct Pair {
    program: Filer,
    double: Filer,
    mount: usize,
    slots: [Slot; SLOTS as usize],
}

struct Site {
    pairs: Vec<Pair>,
    mounts: [PathBuf; 2],
    local: PathBuf,
    /// Whether a file became shorter since a mount's kernel asked for its size: nothing tells it in time
    /// (docs/design/040-client-caches.md).
    shrunk: [[bool; FILES as usize]; 2],
    random: Random,
    /// The operations so far, to be shown if a check fails.
    log: Vec<String>,
}

impl Site {
    /// The same order to both; the answers must be the same.
    fn ask(&mut self, number: usize, order: &str) -> String {
        self.ask_at(number, order, order)
    }

    fn ask_at(&mut self, number: usize, order: &str, local: &str) -> String {
        let pair = &mut self.pairs[number];
        let (seen, expected) = (pair.program.ask(order), pair.double.ask(local));
        self.log.push(format!("{number}: {order} -> {seen}"));
        // Times are looked at elsewhere.
        let (seen, expected) = match order.starts_with("stat") {
            true => (first_word(&seen), first_word(&expected)),
            false => (seen, expected),
        };
        if seen != expected {
            let from = self.log.len().saturating_sub(40);
            panic!("{}\n{order}: {seen}, not {expected}", self.log[from..].join("\n"));
        }
        seen
    }

    fn open(&mut self, number: usize, slot: u64) {
        let file = self.random.below(FILES);
        let how = ["r", "rw", "rw", "rw", "w", "wa"][self.random.below(6) as usize];
        let pair = &self.pairs[number];
        let path = self.mounts[pair.mount].join(format!("file{file}"));
        let double = self.local.join(format!("file{file}"));
        let order = |path: &Path| format!("open {slot} {how} {}", path.display());
        self.ask_at(number, &order(&path), &order(&double));
        self.pairs[number].slots[slot as usize] = Slot {
            file: Some(file),
            writes: how.contains('w'),
            reads: how.contains('r'),
            append: how.contains('a'),
            mapped: false,
        };
    }

    fn close(&mut self, number: usize, slot: u64) {
        let state = self.pairs[number].slots[slot as usize];
        if state.mapped {
            self.ask(number, &format!("unmap {slot}"));
        }
        self.ask(number, &format!("close {slot}"));
        self.pairs[number].slots[slot as usize] = Slot::default();
    }

    /// A program is killed, and another one takes its place.
    fn kill(&mut self, number: usize, filer: &Path) {
        let mount = self.pairs[number].mount;
        self.log.push(format!("{number}: killed"));
        self.pairs[number] = Pair::start(filer, mount);
    }

    /// The file's size, as it has to be.
    fn size(&mut self, file: u64) -> u64 {
        fs::metadata(self.local.join(format!("file{file}"))).unwrap().len()
    }

    /// Has the kernel ask for the size before it believes one that was larger.
    fn look(&mut self, number: usize, slot: u64) {
        let (mount, file) =
            (self.pairs[number].mount, self.pairs[number].slots[slot as usize].file);
        let Some(file) = file else { return };
        if std::mem::take(&mut self.shrunk[mount][file as usize]) {
            self.ask(number, &format!("stat {slot}"));
        }
    }

    fn truncate(&mut self, number: usize, slot: u64, file: u64, size: u64) {
        self.ask(number, &format!("truncate {slot} {size}"));
        self.shrunk[1 - self.pairs[number].mount][file as usize] = true;
    }

    /// A place in a file and a length, mostly where something is.
    fn range(&mut self, size: u64) -> (u64, u64) {
        let from = self.random.below(size.clamp(1, SIZE_MAX - 1) + 2000);
        let long = self.random.below(4) == 0;
        let len = 1 + self.random.below(if long { 20_000 } else { 300 });
        (from, len.min(SIZE_MAX.saturating_sub(from).max(1)))
    }

    fn step(&mut self, filer: &Path) {
        let number = self.random.below(PROGRAMS as u64) as usize;
        let slot = self.random.below(SLOTS);
        let state = self.pairs[number].slots[slot as usize];
        let Some(file) = state.file else { return self.open(number, slot) };
        let size = self.size(file);
        let (from, len) = self.range(size);
        let seed = self.random.below(1 << 30);
        match self.random.below(100) {
            0..8 => self.close(number, slot),
            8..9 => self.kill(number, filer),
            9..13 => drop(self.ask(number, &format!("stat {slot}"))),
            13..17 => drop(self.ask(number, &format!("end {slot}"))),
            17..22 => drop(self.ask(number, &format!("sync {slot}"))),
            22..34 if state.reads => drop(self.ask(number, &format!("read {slot} {from} {len}"))),
            34..39 if state.reads => {
                self.look(number, slot);
                drop(self.ask(number, &format!("splice {slot} {from} {}", len.min(4096))));
            }
            39..60 if state.writes && state.append && size + len >= SIZE_MAX => {}
            39..60 if state.writes && state.append => {
                drop(self.ask(number, &format!("append {slot} {len} {seed}")));
            }
            39..60 if state.writes => {
                drop(self.ask(number, &format!("write {slot} {from} {len} {seed}")));
            }
            60..63 if state.writes => self.truncate(number, slot, file, from),
            63..66 if state.writes => drop(self.ask(number, &format!("punch {slot} {from} {len}"))),
            66..68 if state.writes => {
                drop(self.ask(number, &format!("allocate {slot} {from} {len}")));
            }
            68..70 if state.writes => {
                drop(self.ask(number, &format!("utime {slot} {}", 1_000_000 + seed % 1000)));
            }
            70..74 if state.reads => self.copy(number, slot, from, len),
            74..80 if state.reads && !state.mapped => self.map(number, slot, state),
            74..90 if state.mapped => self.use_map(number, slot, (from, len, size), seed),
            90..100 => self.lock(number, slot, state, seed),
            _ => {}
        }
    }

    fn map(&mut self, number: usize, slot: u64, state: Slot) {
        let writable = u8::from(state.writes);
        if self.ask(number, &format!("map {slot} {SIZE_MAX} {writable}")) == "0" {
            self.pairs[number].slots[slot as usize].mapped = true;
        }
    }

    /// Within the file: the bytes behind its end in its last page are nobody's.
    fn use_map(&mut self, number: usize, slot: u64, (from, len, size): (u64, u64, u64), seed: u64) {
        if size == 0 {
            return;
        }
        self.look(number, slot);
        let from = from % size;
        let len = len.min(size - from);
        let writes = self.pairs[number].slots[slot as usize].writes;
        match seed % 5 {
            0 => self.ask(number, &format!("msync {slot}")),
            1 | 2 if writes => self.ask(number, &format!("store {slot} {from} {len} {seed}")),
            _ => self.ask(number, &format!("load {slot} {from} {len}")),
        };
    }

    /// To another open file of the same program.
    fn copy(&mut self, number: usize, slot: u64, from: u64, len: u64) {
        let to = (slot + 1) % SLOTS;
        let (source, target) =
            (self.pairs[number].slots[slot as usize], self.pairs[number].slots[to as usize]);
        if !target.writes || target.append || source.file == target.file {
            return;
        }
        self.look(number, slot);
        let at = self.random.below(SIZE_MAX / 2);
        let len = len.min(SIZE_MAX / 2);
        self.ask(number, &format!("copy {slot} {from} {at} {len} {to}"));
    }

    fn lock(&mut self, number: usize, slot: u64, state: Slot, seed: u64) {
        let kind = ["flock", "posix", "ofd"][(seed % 3) as usize];
        let mut how = ["r", "w", "u"][(seed / 3 % 3) as usize];
        if kind != "flock" && (how == "r" && !state.reads || how == "w" && !state.writes) {
            how = "u";
        }
        let (from, len) = (self.random.below(50), self.random.below(50));
        self.ask(number, &format!("lock {slot} {kind} {how} {from} {len}"));
    }
}

impl Pair {
    fn start(filer: &Path, mount: usize) -> Pair {
        let (program, double) = (Filer::start(filer), Filer::start(filer));
        Pair { program, double, mount, slots: Default::default() }
    }
}

fn first_word(line: &str) -> String {
    line.split(' ').next().unwrap_or_default().to_string()
}

fn run(seed: u64, filer: &Path, mounts: &[PathBuf; 2], local: &Path) {
    let directory = format!("seed{seed}");
    let mounts = [mounts[0].join(&directory), mounts[1].join(&directory)];
    let local = local.join(&directory);
    fs::create_dir(&mounts[0]).unwrap();
    fs::create_dir(&local).unwrap();
    for file in 0..FILES {
        for place in [&mounts[0], &local] {
            fs::write(place.join(format!("file{file}")), vec![file as u8; 3000]).unwrap();
        }
    }
    let pairs = (0..PROGRAMS).map(|number| Pair::start(filer, number * 2 / PROGRAMS)).collect();
    let random = Random::new(seed);
    let mut site =
        Site { pairs, mounts, local, shrunk: Default::default(), random, log: Vec::new() };
    site.log.push(format!("seed {seed}"));
    for _ in 0..STEPS {
        site.step(filer);
    }
    for number in 0..PROGRAMS {
        for slot in 0..SLOTS {
            if site.pairs[number].slots[slot as usize].file.is_some() {
                site.close(number, slot);
            }
        }
    }
    for file in 0..FILES {
        let name = format!("file{file}");
        let expected = fs::read(site.local.join(&name)).unwrap();
        for mount in &site.mounts {
            let found = fs::read(mount.join(&name)).unwrap();
            assert!(found == expected, "seed {seed}: {name} differs at the end");
        }
    }
}

#[test]
fn random_orders_to_two_mounts_do_what_they_do_to_local_files() {
    if !mounts_usable() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let Some(filer) = compile(place.path()) else { return };
    let mut servers = Servers::new(&place.path().join("cluster"), 2, "10");
    servers.start();
    let mounts = [place.path().join("a"), place.path().join("b")];
    let local = place.path().join("local");
    fs::create_dir(&local).unwrap();
    let _processes: Vec<Process> = mounts
        .iter()
        .map(|mount| {
            fs::create_dir(mount).unwrap();
            servers.mount(mount, None).expect("it lives")
        })
        .collect();
    let _unmounts = Unmounts(&mounts);
    let chosen = std::env::var("ROPEWALK_SEED").ok().and_then(|seed| seed.parse().ok());
    let deep = std::env::var_os("ROPEWALK_SEEDS").is_some();
    let seeds = match chosen {
        Some(seed) => seed..seed + 1,
        None => 1..1 + if deep { 50 * SEEDS } else { SEEDS },
    };
    for seed in seeds {
        run(seed, &filer, &mounts, &local);
    }
}

struct Unmounts<'a>(&'a [PathBuf]);

impl Drop for Unmounts<'_> {
    fn drop(&mut self) {
        for mount in self.0 {
            let _ = Command::new(PROGRAM).args(["umount", "--lazy"]).arg(mount).output();
        }
    }
}
