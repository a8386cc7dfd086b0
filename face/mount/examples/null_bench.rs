//! A benchmark of the loop alone: a file system in memory behind the mount, and client processes that create,
//! open, write and read. `cargo run --release -p ropewalk-mount --example null_bench`
//!
//! The daemon is this process; each client is a process of its own, started from this program.

#[path = "../tests/memory_fs/mod.rs"]
mod memory_fs;
#[path = "../tests/support/mod.rs"]
mod support;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use memory_fs::MemoryFs;
use ropewalk_base::pool::Pool;
use support::Served;

const FILES: u32 = 4_000;
const OPENS: u32 = 10_000;
const WRITE_BYTES: usize = 1 << 20;
const FILE_BYTES: usize = 256 << 20;
const READS: u32 = 20_000;
const ROUNDS: usize = 5;

/// The measures, with their units and what is better.
const MEASURES: [(&str, &str); 8] = [
    ("create", "1/s"),
    ("stat", "1/s"),
    ("open+close", "us"),
    ("unlink", "1/s"),
    ("write 1 MiB", "MB/s"),
    ("read 1 MiB direct", "MB/s"),
    ("pwrite 4 KiB", "us"),
    ("pread 4 KiB direct", "us"),
];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, mode, folder, start] = &arguments[..]
        && mode == "client"
    {
        return client(Path::new(folder), start.parse().expect("a time in nanoseconds"));
    }
    support::LIFE_SECONDS.store(600, std::sync::atomic::Ordering::Relaxed);
    let make = |pool: Pool| MemoryFs::new(pool, Duration::ZERO, false);
    let served = Served::start(make);
    for clients in [1, 2] {
        let mut rounds: Vec<Vec<f64>> = vec![Vec::new(); MEASURES.len()];
        for round in 0..ROUNDS {
            let result = run_clients(served.path(), clients, round);
            for (all, one) in rounds.iter_mut().zip(result) {
                all.push(one);
            }
        }
        println!("{clients} client process(es), median of {ROUNDS} (lowest to highest)");
        for ((name, unit), values) in MEASURES.iter().zip(&mut rounds) {
            values.sort_by(f64::total_cmp);
            let (low, middle, high) = (values[0], values[ROUNDS / 2], values[ROUNDS - 1]);
            println!("  {name:20} {middle:10.1} {unit:5} ({low:.1} to {high:.1})");
        }
    }
    println!("{:?}", served.stop());
}

/// One round: rates are summed over the clients, times are averaged.
fn run_clients(path: &Path, clients: usize, round: usize) -> Vec<f64> {
    let program = std::env::current_exe().expect("this program has a path");
    // All begin at the same moment on the machine's monotonic clock.
    let start = monotonic_nanos() + 200_000_000;
    let children: Vec<_> = (0..clients)
        .map(|client| {
            let folder: PathBuf = path.join(format!("client-{client}-{round}"));
            let mut command = Command::new(&program);
            command.arg("client").arg(&folder).arg(start.to_string()).stdout(Stdio::piped());
            command.spawn().expect("a client starts")
        })
        .collect();
    let mut sums = vec![0.0; MEASURES.len()];
    for child in children {
        let output = child.wait_with_output().expect("a client ends");
        assert!(output.status.success(), "a client failed");
        let text = String::from_utf8(output.stdout).expect("a client prints numbers");
        let values: Vec<f64> =
            text.split_whitespace().map(|v| v.parse().expect("a number")).collect();
        for ((sum, value), (_, unit)) in sums.iter_mut().zip(values).zip(MEASURES) {
            *sum += if unit == "us" { value / clients as f64 } else { value };
        }
    }
    sums
}

fn monotonic_nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn timed(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

fn client(folder: &Path, start: u64) {
    fs::create_dir(folder).expect("the client's folder is new");
    std::thread::sleep(Duration::from_nanos(start.saturating_sub(monotonic_nanos())));
    let file = |number: u32| folder.join(number.to_string());
    let per_second = |count: u32, seconds: f64| f64::from(count) / seconds;
    let micros = |count: u32, seconds: f64| seconds * 1e6 / f64::from(count);
    let megabytes = |seconds: f64| FILE_BYTES as f64 / 1e6 / seconds;
    let created = timed(|| (0..FILES).for_each(|n| drop(File::create(file(n)).expect("created"))));
    let asked =
        timed(|| (0..FILES).for_each(|n| assert!(fs::metadata(file(n)).expect("stat").is_file())));
    let opened = timed(|| (0..OPENS).for_each(|_| drop(File::open(file(0)).expect("opened"))));
    let removed = timed(|| (1..FILES).for_each(|n| fs::remove_file(file(n)).expect("removed")));
    let pool = Pool::with_budget(8 << 20);
    let mut buffer = pool.take(WRITE_BYTES).expect("a buffer");
    buffer.fill(7);
    let big = folder.join("big");
    let target = File::create(&big).expect("created");
    let blocks = (FILE_BYTES / WRITE_BYTES) as u64;
    let at = |block: u64| block * WRITE_BYTES as u64;
    let written = timed(|| {
        (0..blocks).for_each(|block| target.write_all_at(&buffer, at(block)).expect("written"));
    });
    let small_written = timed(|| {
        for n in 0..READS {
            target.write_all_at(&buffer[..4096], u64::from(n % 4096) * 4096).expect("written");
        }
    });
    let mut options = File::options();
    let source = options.read(true).custom_flags(libc::O_DIRECT).open(&big).expect("opened");
    let read = timed(|| {
        (0..blocks).for_each(|block| source.read_exact_at(&mut buffer, at(block)).expect("read"));
    });
    let small_read = timed(|| {
        for n in 0..READS {
            let offset = u64::from(n % 4096) * 4096;
            source.read_exact_at(&mut buffer[..4096], offset).expect("read");
        }
    });
    drop((target, source));
    fs::remove_dir_all(folder).expect("cleaned up");
    println!(
        "{} {} {} {} {} {} {} {}",
        per_second(FILES, created),
        per_second(FILES, asked),
        micros(OPENS, opened),
        per_second(FILES - 1, removed),
        megabytes(written),
        megabytes(read),
        micros(READS, small_written),
        micros(READS, small_read),
    );
}
