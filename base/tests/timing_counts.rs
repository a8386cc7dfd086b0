//! Counting a duration allocates nothing.

use std::alloc::System;
use std::time::Duration;

use ropewalk_base::timing::{AtomicTimer, Timer};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[test]
fn a_counted_duration_allocates_nothing() {
    let (timer, atomic) = (Timer::default(), AtomicTimer::new());
    // The test's harness allocates beside: in a few runs.
    let mut allocations = [0; 9].map(|_| {
        let region = Region::new(ALLOCATOR);
        for micros in 0..10_000 {
            timer.add(Duration::from_micros(micros));
            atomic.add(Duration::from_micros(micros));
        }
        std::hint::black_box((timer.read(), atomic.read()));
        let stats = region.change();
        stats.allocations + stats.reallocations
    });
    allocations.sort_unstable();
    assert_eq!(allocations[4], 0, "{allocations:?}");
    assert_eq!(timer.read().count(), 90_000);
}

/// A figure, not a check: `--ignored --nocapture` shows it.
#[test]
#[ignore = "a figure that depends on the machine"]
fn the_cost_of_a_counted_call() {
    const CALLS: u32 = 10_000_000;
    let timer = Timer::default();
    let begin = std::time::Instant::now();
    for _ in 0..CALLS {
        let begin = std::hint::black_box(std::time::Instant::now());
        timer.add(begin.elapsed());
    }
    println!("{:?} for two looks at the clock and a count", begin.elapsed() / CALLS);
}
