//! Seeds over all processors. `ROPEWALK_SEED_MINUTES=N` ends each run of them after that time.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// `ROPEWALK_SEEDS`: how many, or `=seed` for one alone.
pub fn seeds(usual: u64) -> Range<u64> {
    let given = std::env::var("ROPEWALK_SEEDS").unwrap_or_default();
    match given.strip_prefix('=').and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..given.parse().unwrap_or(usual),
    }
}

/// The time for a run of seeds.
fn limit() -> Option<Duration> {
    let text = std::env::var("ROPEWALK_SEED_MINUTES").ok()?;
    let minutes: u64 = text.parse().expect("ROPEWALK_SEED_MINUTES is a number");
    Some(Duration::from_secs(60 * minutes))
}

/// Runs each seed on some thread; gives what the runs were to `take`, in any order. A failure names its seed.
pub fn each<T: Send>(seeds: Range<u64>, run: impl Fn(u64) -> T + Sync, take: impl FnMut(T) + Send) {
    let (next, failed) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
    let take = Mutex::new(take);
    let (limit, begin) = (limit(), Instant::now());
    let is_over = || limit.is_some_and(|limit| begin.elapsed() >= limit);
    let work = || {
        while !failed.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                break;
            }
            if seed > seeds.start && is_over() {
                println!("the time is over before seed {seed}, of {}", seeds.end);
                break;
            }
            let outcome = catch_unwind(AssertUnwindSafe(|| run(seed))).unwrap_or_else(|panic| {
                failed.store(true, Ordering::Relaxed);
                eprintln!("seed {seed} failed; again: ROPEWALK_SEEDS=={seed}");
                resume_unwind(panic)
            });
            (take.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))(outcome);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| _ = scope.spawn(work)));
}
