//! Durations of one kind of work, counted in buckets: always on, and cheap enough for each call.
//!
//! Bucket `n` counts durations of less than `2^n` microseconds that no lower bucket counts; the last one counts all
//! longer ones. Nothing is allocated, and nobody is locked: a [`Timer`] belongs to one thread, an [`AtomicTimer`] to
//! all threads of a process.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets of a histogram.
pub const BUCKETS: usize = 24;

/// The bucket of a duration.
fn bucket(micros: u64) -> usize {
    (u64::BITS - micros.leading_zeros()).min(BUCKETS as u32 - 1) as usize
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Durations, as they were counted at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Histogram {
    /// All of them together.
    pub micros: u64,
    pub counts: [u64; BUCKETS],
}

impl Histogram {
    /// The bound of a bucket, in microseconds: durations in it are shorter. None: the last one has no bound.
    pub fn bound(bucket: usize) -> Option<u64> {
        (bucket + 1 < BUCKETS).then(|| 1 << bucket)
    }

    /// The number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The durations that came since an earlier moment.
    #[must_use]
    pub fn since(&self, before: &Histogram) -> Histogram {
        let mut counts = self.counts;
        for (count, before) in counts.iter_mut().zip(&before.counts) {
            *count = count.saturating_sub(*before);
        }
        Histogram { micros: self.micros.saturating_sub(before.micros), counts }
    }

    /// The mean; none where there is no duration.
    pub fn mean(&self) -> Option<Duration> {
        self.micros.checked_div(self.count()).map(Duration::from_micros)
    }

    /// An upper bound of this part of the durations, between 0 and 1: a power of two of microseconds, so at most twice
    /// too long. None: there is no duration.
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = ((count as f64 * part).ceil() as u64).clamp(1, count);
        let mut seen: u64 = 0;
        let bucket = self.counts.iter().position(|count| {
            seen = seen.saturating_add(*count);
            seen >= rank
        });
        // The last bucket has no bound: that of its neighbour is told.
        let bucket = bucket.unwrap_or(BUCKETS - 1).min(BUCKETS - 2);
        Histogram::bound(bucket).map(Duration::from_micros)
    }
}

/// Counts durations on one thread.
#[derive(Debug, Default)]
pub struct Timer {
    micros: Cell<u64>,
    counts: [Cell<u64>; BUCKETS],
}

impl Timer {
    pub fn add(&self, time: Duration) {
        let micros = micros(time);
        self.micros.set(self.micros.get().saturating_add(micros));
        let count = &self.counts[bucket(micros)];
        count.set(count.get() + 1);
    }

    pub fn read(&self) -> Histogram {
        let mut counts = [0; BUCKETS];
        counts.iter_mut().zip(&self.counts).for_each(|(to, from)| *to = from.get());
        Histogram { micros: self.micros.get(), counts }
    }
}

/// Counts durations on all threads.
#[derive(Debug)]
pub struct AtomicTimer {
    micros: AtomicU64,
    counts: [AtomicU64; BUCKETS],
}

impl Default for AtomicTimer {
    fn default() -> AtomicTimer {
        AtomicTimer::new()
    }
}

impl AtomicTimer {
    pub const fn new() -> AtomicTimer {
        AtomicTimer { micros: AtomicU64::new(0), counts: [const { AtomicU64::new(0) }; BUCKETS] }
    }

    pub fn add(&self, time: Duration) {
        let micros = micros(time);
        self.micros.fetch_add(micros, Ordering::Relaxed);
        self.counts[bucket(micros)].fetch_add(1, Ordering::Relaxed);
    }

    pub fn read(&self) -> Histogram {
        let mut counts = [0; BUCKETS];
        let pairs = counts.iter_mut().zip(&self.counts);
        pairs.for_each(|(to, from)| *to = from.load(Ordering::Relaxed));
        Histogram { micros: self.micros.load(Ordering::Relaxed), counts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_is_in_the_bucket_that_bounds_it() {
        for micros in [0, 1, 2, 3, 4, 1000, 1023, 1024, 4_194_303, 4_194_304, u64::MAX] {
            let bucket = bucket(micros);
            assert!(Histogram::bound(bucket).is_none_or(|bound| micros < bound), "{micros}");
            let lower = bucket.checked_sub(1).and_then(Histogram::bound);
            assert!(lower.is_none_or(|bound| micros >= bound), "{micros}");
        }
        assert_eq!(Histogram::bound(BUCKETS - 1), None);
    }

    #[test]
    fn counts_means_and_quantiles_are_those_of_what_was_added() {
        let (timer, atomic) = (Timer::default(), AtomicTimer::new());
        assert_eq!((timer.read().mean(), timer.read().quantile(0.5)), (None, None));
        for micros in 1..=1000 {
            timer.add(Duration::from_micros(micros));
            atomic.add(Duration::from_micros(micros));
        }
        let read = timer.read();
        assert_eq!(read, atomic.read());
        assert_eq!((read.count(), read.micros), (1000, 500_500));
        assert_eq!(read.mean(), Some(Duration::from_micros(500)));
        for part in [0.01, 0.5, 0.9, 0.99, 1.0] {
            let (exact, told) = (part * 1000.0, read.quantile(part).expect("there are some"));
            let told = told.as_micros() as f64;
            assert!(told > exact && told <= 2.0 * exact + 1.0, "{part}: {told} of {exact}");
        }
        timer.add(Duration::MAX);
        let later = timer.read().since(&read);
        assert_eq!((later.count(), later.counts[BUCKETS - 1]), (1, 1));
        assert_eq!(later.quantile(0.5), Some(Duration::from_micros(1 << (BUCKETS - 2))));
    }
}
