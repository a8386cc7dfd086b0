//! Batches per second of the embedded store on a real file system.
//!
//! Usage: `cargo run --release -p ropewalk-store --example journal -- DIRECTORY [SECONDS]`
//!
//! A batch is what a file's creation needs: three rows of 100 bytes. Five ways of waiting: not at
//! all, for `written` and for `durable`, each with 1 and with 32 tasks at a time. Checkpoints run
//! as they do in a server, and their cost is in the figures.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::ids::{ClusterId, ServerId};
use ropewalk_base::task::{join_all, yield_now};
use ropewalk_base::time::Time;
use ropewalk_base::world::World;
use ropewalk_store::superblock::{Boot, Expect, Identity, Role, claim};
use ropewalk_store::{Batch, HostDisk, JournaledConfig, JournaledStore, MetaStore};

#[path = "../src/testing.rs"]
mod testing;

const VALUE_BYTES: usize = 100;
const ROWS: u64 = 3;
/// The batches that a task that does not wait commits before it lets others run.
const TURN: u64 = 32;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Wait {
    Not,
    Written,
    Durable,
}

/// A full mixing of the bits: keys arrive in no order, as hashed names do.
fn scramble(number: u64) -> u64 {
    let mixed = (number ^ (number >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

struct Figures {
    batches: u64,
    latencies: Vec<u64>,
}

async fn task(
    world: World,
    store: JournaledStore,
    wait: Wait,
    end: Time,
    out: Rc<RefCell<Figures>>,
) {
    while world.now() < end {
        store.ready().await.expect("the disk has room");
        let begin = world.now();
        let first = store.position().0 * ROWS;
        let mut batch = Batch::new();
        for row in first..first + ROWS {
            let key = [scramble(row).to_be_bytes(), row.to_be_bytes()].concat();
            batch.put(&key, &[row as u8; VALUE_BYTES]);
        }
        let position = store.commit(&batch).expect("ready was awaited");
        match wait {
            Wait::Not if position.0.is_multiple_of(TURN) => yield_now().await,
            Wait::Not => (),
            Wait::Written => store.wait_written(position).await.expect("the disk works"),
            Wait::Durable => store.wait_durable(position).await.expect("the disk works"),
        }
        let mut figures = out.borrow_mut();
        figures.batches += 1;
        figures.latencies.push(world.now().since(begin).as_nanos() as u64);
    }
}

async fn measure(world: World, store: JournaledStore, wait: Wait, depth: usize, seconds: u64) {
    let figures = Rc::new(RefCell::new(Figures { batches: 0, latencies: Vec::new() }));
    let (begin, before) = (world.now(), store.counts().checkpoints);
    let end = begin + Duration::from_secs(seconds);
    let tasks = (0..depth).map(|_| task(world.clone(), store.clone(), wait, end, figures.clone()));
    join_all(tasks).await;
    let elapsed = world.now().since(begin).as_secs_f64();
    let mut figures = figures.borrow_mut();
    figures.latencies.sort_unstable();
    let at = |part: f64| {
        let index = (figures.latencies.len() as f64 * part) as usize;
        figures.latencies.get(index).copied().unwrap_or(0) as f64 / 1000.0
    };
    println!(
        "{:<8} depth {depth:>2}: {:>9.0} batches/s, p50 {:>8.1} us, p99 {:>8.1} us, {} checkpoints",
        format!("{wait:?}").to_lowercase(),
        figures.batches as f64 / elapsed,
        at(0.5),
        at(0.99),
        store.counts().checkpoints - before,
    );
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().unwrap_or_else(|| "journal-figures".to_owned()));
    let seconds = arguments.next().map_or(4, |text| text.parse().expect("seconds are a number"));
    let identity = Identity { cluster: ClusterId(1), server: ServerId(1), role: Role::Metadata };
    let claimed = claim(&HostDisk, &directory, identity, Expect::Any, (1, 1))
        .unwrap_or_else(|error| panic!("{error}"));
    let boot: Boot = claimed.boot;
    let path = claimed.path.clone();
    testing::run(HostDisk::shared(), move |world| async move {
        let begin = world.now();
        let config = JournaledConfig::default();
        let store = JournaledStore::open(&world, &path, boot, config, false)
            .await
            .unwrap_or_else(|error| panic!("{error}"));
        let milliseconds = world.now().since(begin).as_secs_f64() * 1000.0;
        let replayed = store.recovery().records;
        println!("opened in {milliseconds:.1} ms, {replayed} records replayed; {}", resident());
        for (wait, depth) in [
            (Wait::Not, 1),
            (Wait::Written, 1),
            (Wait::Written, 32),
            (Wait::Durable, 1),
            (Wait::Durable, 32),
        ] {
            store.checkpoint().await.expect("the disk works");
            measure(world.clone(), store.clone(), wait, depth, seconds).await;
        }
        store.checkpoint().await.expect("the disk works");
    });
    let size = std::fs::metadata(directory.join("index.redb")).map_or(0, |file| file.len());
    println!("index {:.0} MB; {}", size as f64 / 1e6, resident());
}

/// The resident memory of this process, as the kernel words it.
fn resident() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let words = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap_or("");
        line.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")
    };
    format!("memory {} now, {} at most", words("VmRSS"), words("VmHWM"))
}
