//! Sets of stripe numbers as sorted runs: which stripe objects of a file were ever written.
//!
//! Invariant: runs are sorted, not empty, and neither overlap nor touch.

use serde::{Deserialize, Serialize};

/// Most runs that one inode row keeps. A write that would need more is refused: counting a gap as
/// written would turn its zeros into an error, counting a run as unwritten would hide a loss.
pub const RUNS_MAX: usize = 16384;

/// Sorted runs of stripe numbers: first and count of each.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Runs(Vec<(u32, u32)>);

impl Runs {
    /// First and count of each run.
    pub fn as_slice(&self) -> &[(u32, u32)] {
        &self.0
    }

    /// Whether this stripe is in the set.
    pub fn contains(&self, stripe: u32) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= stripe);
        after > 0 && {
            let (first, count) = self.0[after - 1];
            stripe - first < count
        }
    }

    /// The set of these runs; invalid ones are left out.
    pub fn from_slice(runs: &[(u32, u32)]) -> Runs {
        let mut set = Runs::default();
        for (first, count) in runs {
            if *count > 0 && first.checked_add(count - 1).is_some() {
                // A set over the limit cannot come from a server; runs over the limit read as zeros.
                let _ = set.add(*first, *count);
            }
        }
        set
    }

    /// The form of a report: first and count of each run, four bytes each, little endian.
    pub fn to_report(&self) -> Vec<u8> {
        self.0
            .iter()
            .flat_map(|(first, count)| [first.to_le_bytes(), count.to_le_bytes()])
            .flatten()
            .collect()
    }

    /// Whether no stripe is in the set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the invariant holds (for bytes that come from a store).
    pub fn is_valid(&self) -> bool {
        let ends_fit = self
            .0
            .iter()
            .all(|&(first, count)| count > 0 && u64::from(first) + u64::from(count) <= 1 << 32);
        let apart = self
            .0
            .windows(2)
            .all(|pair| u64::from(pair[0].0) + u64::from(pair[0].1) < u64::from(pair[1].0));
        ends_fit && apart && self.0.len() <= RUNS_MAX
    }

    /// Whether [`Runs::add`] would take these stripes.
    pub fn admits(&self, first: u32, count: u32) -> bool {
        let (low, high) = self.touched(first, count);
        count == 0 || low < high || self.0.len() < RUNS_MAX
    }

    /// Adds `count` stripes from `first` on. False, and nothing is changed, where the set would have
    /// more than [`RUNS_MAX`] runs.
    #[must_use]
    pub fn add(&mut self, first: u32, count: u32) -> bool {
        if count == 0 {
            return true;
        }
        let (mut begin, mut end) =
            (u64::from(first), (u64::from(first) + u64::from(count)).min(1 << 32));
        let (low, high) = self.touched(first, count);
        if low < high {
            begin = begin.min(u64::from(self.0[low].0));
            end = end.max(run_end(self.0[high - 1]));
        } else if self.0.len() == RUNS_MAX {
            return false;
        }
        self.0.splice(low..high, [make(begin, end)]);
        true
    }

    /// Runs that overlap or touch these stripes, by index: they melt into one that is added.
    fn touched(&self, first: u32, count: u32) -> (usize, usize) {
        let (begin, end) = (u64::from(first), u64::from(first) + u64::from(count));
        let low = self.0.partition_point(|run| run_end(*run) < begin);
        let high = self.0.partition_point(|run| u64::from(run.0) <= end);
        (low, high)
    }

    /// Adds another set. False where not all of it has room.
    #[must_use]
    pub fn merge(&mut self, other: &Runs) -> bool {
        other.0.iter().fold(true, |all, (first, count)| self.add(*first, *count) && all)
    }

    /// Removes `count` stripes from `first` on. False, and nothing is changed, where the set would
    /// have more than [`RUNS_MAX`] runs.
    #[must_use]
    pub fn remove(&mut self, first: u32, count: u32) -> bool {
        let (begin, end) = (u64::from(first), u64::from(first) + u64::from(count));
        let low = self.0.partition_point(|run| run_end(*run) <= begin);
        let high = self.0.partition_point(|run| u64::from(run.0) < end);
        if count == 0 || low >= high {
            return true;
        }
        let mut left = Vec::with_capacity(2);
        if u64::from(self.0[low].0) < begin {
            left.push(make(u64::from(self.0[low].0), begin));
        }
        if run_end(self.0[high - 1]) > end {
            left.push(make(end, run_end(self.0[high - 1])));
        }
        if self.0.len() - (high - low) + left.len() > RUNS_MAX {
            return false;
        }
        self.0.splice(low..high, left);
        true
    }

    /// Removes every stripe from `first` on.
    pub fn cut(&mut self, first: u32) {
        let keep = self.0.partition_point(|run| run.0 < first);
        self.0.truncate(keep);
        if let Some(last) = self.0.last_mut() {
            last.1 = last.1.min(first - last.0);
        }
    }

    /// Bytes of the file that lie in stripes of the set, with stripes of `stripe_bytes` and a file
    /// of `size` bytes.
    pub fn bytes(&self, stripe_bytes: u32, size: u64) -> u64 {
        let stripe = u64::from(stripe_bytes);
        self.0
            .iter()
            .map(|run| {
                let begin = (u64::from(run.0) * stripe).min(size);
                (run_end(*run) * stripe).min(size) - begin
            })
            .sum()
    }
}

/// Runs from bytes of a report: first and count, four bytes each, little endian. None where the
/// length does not fit.
pub fn parse(bytes: &[u8]) -> Option<impl Iterator<Item = (u32, u32)> + '_> {
    bytes.len().is_multiple_of(8).then(|| {
        bytes.chunks_exact(8).map(|run| {
            let (first, count) = run.split_at(4);
            let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
            (number(first), number(count))
        })
    })
}

fn run_end(run: (u32, u32)) -> u64 {
    u64::from(run.0) + u64::from(run.1)
}

fn make(begin: u64, end: u64) -> (u32, u32) {
    let count = u32::try_from(end - begin).unwrap_or(u32::MAX);
    (u32::try_from(begin).expect("stripe numbers have 32 bits"), count)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ropewalk_base::random::Random;

    use super::*;

    #[test]
    fn runs_say_the_same_as_a_plain_set() {
        for seed in 0..50 {
            let mut random = Random::from_seed(seed);
            let (mut runs, mut set) = (Runs::default(), BTreeSet::new());
            for _ in 0..200 {
                let (first, count) = (random.below(100) as u32, random.below(20) as u32);
                match random.below(8) {
                    0..4 => {
                        assert!(runs.add(first, count));
                        set.extend(first..first + count);
                    }
                    4..7 => {
                        assert!(runs.remove(first, count));
                        set.retain(|stripe| !(first..first + count).contains(stripe));
                    }
                    _ => {
                        runs.cut(first + 60);
                        set.retain(|stripe| *stripe < first + 60);
                    }
                }
                assert!(runs.is_valid());
                let plain: BTreeSet<u32> =
                    runs.as_slice().iter().flat_map(|run| run.0..run.0 + run.1).collect();
                assert_eq!(plain, set, "seed {seed}");
                let bytes = set.iter().filter(|stripe| **stripe < 50).count() as u64 * 10
                    + if set.contains(&50) { 3 } else { 0 };
                assert_eq!(runs.bytes(10, 503), bytes);
            }
        }
    }

    #[test]
    fn the_number_of_runs_is_bounded() {
        let mut runs = Runs::default();
        for stripe in 0..RUNS_MAX as u32 {
            assert!(runs.add(stripe * 2, 1));
        }
        let before = runs.clone();
        assert!(!runs.admits(RUNS_MAX as u32 * 2, 1) && runs.admits(1, 1));
        assert!(!runs.add(RUNS_MAX as u32 * 2, 1));
        assert_eq!(runs, before);
        assert!(runs.add(1, 1));
        assert!(runs.add(u32::MAX, 1) && runs.is_valid());
    }
}
