//! Measures the object store beside bare `pwrite` and `pread` in alternation, on one thread.
//!
//! `cargo run --release -p ropewalk-store --example objects -- DIRECTORY [MIB] [ROUNDS]`
//!
//! Lines: what, store MiB/s (or 1/s), bare MiB/s, ratio; medians over the rounds.

use std::cell::RefCell;
use std::fs::File;
use std::future::Future;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use ropewalk_base::checksum::crc32c;
use ropewalk_base::executor::Executor;
use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_base::world::{Clock, Offload, Work, World};
use ropewalk_store::host_disk::HostDisk;
use ropewalk_store::objects::{BLOCK_BYTES, Config, ObjectId, ObjectStore, WriteEpoch};

const MIB: usize = 1 << 20;
const OBJECT_BYTES: usize = 16 * MIB;
const BY: WriteEpoch = WriteEpoch { session: 1, epoch: 1 };

struct RealClock(Instant);

impl Clock for RealClock {
    fn now(&self) -> Time {
        Time(self.0.elapsed().as_nanos() as u64)
    }
    fn unix_nanos(&self) -> i64 {
        0
    }
}

/// A thread for each piece of blocking work: there are few here.
struct Threads;

impl Offload for Threads {
    fn offload(&self, work: Work) {
        std::thread::spawn(work);
    }
}

struct Driver {
    executor: Executor,
    world: World,
}

impl Driver {
    fn new() -> Driver {
        let thread = std::thread::current();
        let executor = Executor::new(Box::new(move || thread.unpark()));
        let clock = Rc::new(RealClock(Instant::now()));
        let (disk, random) = (HostDisk::shared(), Random::from_seed(1));
        let world = World::new(executor.clone(), clock, disk, Rc::new(Threads), random);
        Driver { executor, world }
    }

    fn run<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        let result = Rc::new(RefCell::new(None));
        let out = result.clone();
        self.world.spawn(async move {
            let value = future.await;
            *out.borrow_mut() = Some(value);
        });
        loop {
            self.executor.run();
            if let Some(value) = result.borrow_mut().take() {
                return value;
            }
            if self.executor.park() {
                std::thread::park_timeout(Duration::from_millis(10));
            }
            self.executor.unparked();
        }
    }
}

struct Bench {
    driver: Driver,
    store: ObjectStore,
    directory: PathBuf,
    data: Vec<u8>,
    sums: Vec<u32>,
    objects: u32,
    fresh: u64,
}

fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

impl Bench {
    fn object(&self, inode: u64, stripe: u32) -> ObjectId {
        ObjectId { inode, generation: 1, stripe }
    }

    /// 1 MiB writes over all objects of an inode; background work runs between them as in a server.
    fn write(&self, inode: u64) -> f64 {
        seconds(|| {
            for stripe in 0..self.objects {
                let object = self.object(inode, stripe);
                for offset in (0..OBJECT_BYTES as u64).step_by(MIB) {
                    self.store.write(object, offset, &[&self.data], &self.sums, BY).unwrap();
                    self.driver.executor.run();
                }
            }
        })
    }

    fn read(&self, inode: u64, into: &mut [u8]) -> f64 {
        let mut sums = Vec::with_capacity(MIB / BLOCK_BYTES);
        seconds(|| {
            for stripe in 0..self.objects {
                for offset in (0..OBJECT_BYTES as u64).step_by(MIB) {
                    sums.clear();
                    let object = self.object(inode, stripe);
                    self.store.read(object, offset, into, &mut sums).unwrap();
                }
            }
        })
    }

    fn bare_files(&self, name: &str) -> Vec<File> {
        let open = |stripe| {
            let path = self.directory.join(format!("bare.{name}.{stripe}"));
            File::options().create(true).read(true).write(true).truncate(false).open(path).unwrap()
        };
        (0..self.objects).map(open).collect()
    }

    fn bare_write(&self, files: &[File]) -> f64 {
        seconds(|| {
            for file in files {
                for offset in (0..OBJECT_BYTES as u64).step_by(MIB) {
                    file.write_all_at(&self.data, offset).unwrap();
                }
            }
        })
    }

    fn bare_read(&self, files: &[File], into: &mut [u8]) -> f64 {
        seconds(|| {
            for file in files {
                for offset in (0..OBJECT_BYTES as u64).step_by(MIB) {
                    file.read_exact_at(into, offset).unwrap();
                }
            }
        })
    }

    /// Small writes at random block-aligned places of existing objects. Returns the writes a second.
    fn small(&self, inode: u64, bytes: usize, random: &mut Random) -> f64 {
        let count = 50_000_u64;
        let data = &self.data[..bytes];
        let sums = [crc32c(data)];
        let blocks = (OBJECT_BYTES / BLOCK_BYTES) as u64;
        let elapsed = seconds(|| {
            for _ in 0..count {
                let stripe = random.below(u64::from(self.objects)) as u32;
                let offset = random.below(blocks) * BLOCK_BYTES as u64;
                let object = self.object(inode, stripe);
                // As a server does: wait for room, which is there at once in normal times.
                if let Err(error) = self.store.write(object, offset, &[data], &sums, BY) {
                    panic!("{error}");
                }
                self.driver.executor.run();
            }
            let store = self.store.clone();
            self.driver.run(async move { store.room().await }).unwrap();
        });
        count as f64 / elapsed
    }

    fn bare_small(&self, files: &[File], bytes: usize, random: &mut Random) -> f64 {
        let count = 50_000_u64;
        let blocks = (OBJECT_BYTES / BLOCK_BYTES) as u64;
        let elapsed = seconds(|| {
            for _ in 0..count {
                let file = &files[random.below(u64::from(self.objects)) as usize];
                let offset = random.below(blocks) * BLOCK_BYTES as u64;
                file.write_all_at(&self.data[..bytes], offset).unwrap();
            }
        });
        count as f64 / elapsed
    }

    /// 4 KiB write and sync, one after the other. Returns the pairs a second.
    fn synced(&self, inode: u64) -> f64 {
        let elapsed = seconds(|| {
            for number in 0..500_u64 {
                let object = self.object(inode, 0);
                let data = &self.data[..BLOCK_BYTES];
                self.store.write(object, number * 4096, &[data], &[crc32c(data)], BY).unwrap();
                let store = self.store.clone();
                self.driver.run(async move { store.sync(&[object]).await }).unwrap();
            }
        });
        500.0 / elapsed
    }

    fn bare_synced(&self, files: &[File]) -> f64 {
        let elapsed = seconds(|| {
            for number in 0..500_u64 {
                files[0].write_all_at(&self.data[..BLOCK_BYTES], number * 4096).unwrap();
                files[0].sync_data().unwrap();
            }
        });
        500.0 / elapsed
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Results of one kind: the store's and the bare ones, round by round.
#[derive(Default)]
struct Pairs(Vec<f64>, Vec<f64>);

impl Pairs {
    fn push(&mut self, ours: f64, bare: f64) {
        self.0.push(ours);
        self.1.push(bare);
    }

    fn print(&mut self, name: &str, unit: &str) {
        let (ours, bare) = (median(&mut self.0), median(&mut self.1));
        println!("{name:28} {ours:10.0} {bare:10.0} {unit:6} {:5.2}", ours / bare);
    }
}

fn run(bench: &mut Bench, rounds: u64) {
    let mib = f64::from(bench.objects) * (OBJECT_BYTES / MIB) as f64;
    let mut random = Random::from_seed(7);
    let mut into = vec![1; MIB];
    let files = bench.bare_files("existing");
    bench.write(1);
    bench.bare_write(&files);
    let mut kinds: [Pairs; 6] = Default::default();
    for _ in 0..rounds {
        bench.fresh += 1;
        let inode = 100 + bench.fresh;
        let ours = bench.write(inode);
        let store = bench.store.clone();
        bench.driver.run(async move { store.remove_inode(inode, 1, 0).await }).unwrap();
        let bare = bench.bare_write(&bench.bare_files("fresh"));
        for stripe in 0..bench.objects {
            std::fs::remove_file(bench.directory.join(format!("bare.fresh.{stripe}"))).unwrap();
        }
        kinds[0].push(mib / ours, mib / bare);
        kinds[1].push(mib / bench.write(1), mib / bench.bare_write(&files));
        kinds[2].push(mib / bench.read(1, &mut into), mib / bench.bare_read(&files, &mut into));
        let ours = bench.small(1, BLOCK_BYTES, &mut random);
        kinds[3].push(ours, bench.bare_small(&files, BLOCK_BYTES, &mut random));
        let ours = bench.small(1, 100, &mut random);
        kinds[4].push(ours, bench.bare_small(&files, 100, &mut random));
        kinds[5].push(bench.synced(1), bench.bare_synced(&files));
        let store = bench.store.clone();
        bench.driver.run(async move { store.checkpoint().await }).unwrap();
    }
    println!("{:28} {:>10} {:>10} {:6} ratio", "", "store", "bare", "");
    kinds[0].print("1 MiB writes, fresh", "MiB/s");
    kinds[1].print("1 MiB writes, existing", "MiB/s");
    kinds[2].print("1 MiB reads", "MiB/s");
    kinds[3].print("4 KiB writes", "1/s");
    kinds[4].print("100 B writes", "1/s");
    kinds[5].print("4 KiB write and sync", "1/s");
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let Some(parent) = arguments.next() else {
        eprintln!("usage: objects DIRECTORY [MIB] [ROUNDS]");
        std::process::exit(2);
    };
    let number = |text: Option<String>, default: u64| {
        text.map_or(default, |text| text.parse().expect("a number"))
    };
    let mib = number(arguments.next(), 256);
    let rounds = number(arguments.next(), 7);
    let directory = Path::new(&parent).join(format!("objects-{}", std::process::id()));
    let driver = Driver::new();
    let config = Config { object_bytes: OBJECT_BYTES as u64, ..Config::default() };
    let (path, world) = (directory.join("store"), driver.world.clone());
    let opened = driver.run(async move { ObjectStore::open(&path, config, &world).await });
    let (store, _) = opened.expect("the store opens");
    let data: Vec<u8> = (0..MIB).map(|index| (index * 31 % 251) as u8).collect();
    let sums = data.chunks(BLOCK_BYTES).map(crc32c).collect();
    let objects = (mib / 16).max(1) as u32;
    let mut bench =
        Bench { driver, store, directory: directory.clone(), data, sums, objects, fresh: 0 };
    run(&mut bench, rounds);
    println!("{:?}", bench.store.usage());
    drop(bench);
    std::fs::remove_dir_all(directory).expect("the directory was ours");
}
