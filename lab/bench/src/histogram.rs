//! Times of many operations in little memory, so that processes can hand them to each other.
//!
//! Invariant: a value is reported at most 3 % too high, never too low.

use std::collections::BTreeMap;

/// Steps in each power of two.
const STEPS: u64 = 32;

/// The number of occurrences of each time, in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Histogram {
    counts: BTreeMap<u64, u64>,
}

/// The class of a value: its power of two, and the step in it.
fn class(nanos: u64) -> u64 {
    if nanos < STEPS {
        return nanos;
    }
    let power = u64::from(nanos.ilog2());
    let shift = power - u64::from(STEPS.ilog2());
    (shift + 1) * STEPS + ((nanos >> shift) - STEPS)
}

/// The highest value of a class.
fn value(class: u64) -> u64 {
    if class < STEPS {
        return class;
    }
    let shift = class / STEPS - 1;
    ((class % STEPS + STEPS + 1) << shift) - 1
}

impl Histogram {
    /// Notes one operation.
    pub fn note(&mut self, nanos: u64) {
        *self.counts.entry(class(nanos)).or_default() += 1;
    }

    /// Adds what another one holds.
    pub fn merge(&mut self, other: &Histogram) {
        for (class, count) in &other.counts {
            *self.counts.entry(*class).or_default() += count;
        }
    }

    /// Operations that were noted.
    pub fn count(&self) -> u64 {
        self.counts.values().sum()
    }

    /// The time that this part (0 to 1) of all operations did not exceed; 0 if there is none.
    pub fn quantile(&self, part: f64) -> u64 {
        let wanted = (self.count() as f64 * part).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (class, count) in &self.counts {
            seen += count;
            if seen >= wanted {
                return value(*class);
            }
        }
        0
    }

    /// In one word, for another process.
    pub fn encode(&self) -> String {
        let words: Vec<String> =
            self.counts.iter().map(|(class, count)| format!("{class}:{count}")).collect();
        words.join(",")
    }

    /// Takes such a word apart.
    pub fn decode(word: &str) -> Option<Histogram> {
        let mut counts = BTreeMap::new();
        for pair in word.split(',').filter(|pair| !pair.is_empty()) {
            let (class, count) = pair.split_once(':')?;
            counts.insert(class.parse().ok()?, count.parse().ok()?);
        }
        Some(Histogram { counts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_their_order_of_magnitude_and_cross_to_another_process() {
        let mut times = Histogram::default();
        for nanos in 1..=100_000u64 {
            times.note(nanos);
        }
        for (part, exact) in [(0.5, 50_000.0), (0.99, 99_000.0), (1.0, 100_000.0)] {
            let found = times.quantile(part) as f64;
            assert!(found >= exact && found <= exact * 1.032, "{part}: {found}");
        }
        let mut twice = Histogram::decode(&times.encode()).expect("it is one");
        assert_eq!(twice, times);
        twice.merge(&times);
        assert_eq!(twice.count(), 200_000);
        assert_eq!(Histogram::decode("3:x"), None);
        assert_eq!(Histogram::default().quantile(0.99), 0);
    }
}
