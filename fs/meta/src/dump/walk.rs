//! A walk over the rows of a store that goes on behind damage.
//!
//! Invariants:
//! * rows come in the order of their keys, each once;
//! * a row that does not come lies in a place that is told as lost.

use std::ops::Bound;

use ropewalk_store::{FoundStore, KeyRange, Row, Snapshot, StoreError, Value};

use super::format::Lost;
use super::tables::TABLES;

/// Rows of a store that is not served, at a time.
const FOUND_ROWS: usize = 64;
/// Bytes of a key that the search for the end of damage looks at: the letter, and three numbers.
const PLACE_BYTES: usize = 25;

/// Rows that do not change during the walk.
pub trait Source {
    /// Some rows of a range, the first ones, in order; none where the range has none. Rows in front of an error are there,
    /// too.
    fn rows(&self, range: KeyRange<'_>, bytes: usize) -> (Vec<Row>, Result<(), StoreError>);

    /// The value of a key.
    fn value(&self, key: &[u8]) -> Result<Option<Value>, StoreError>;
}

impl Source for Snapshot {
    fn rows(&self, range: KeyRange<'_>, bytes: usize) -> (Vec<Row>, Result<(), StoreError>) {
        self.scan_some(range, bytes)
    }

    fn value(&self, key: &[u8]) -> Result<Option<Value>, StoreError> {
        self.get(key)
    }
}

impl Source for FoundStore {
    fn rows(&self, range: KeyRange<'_>, _bytes: usize) -> (Vec<Row>, Result<(), StoreError>) {
        self.scan_some(range, FOUND_ROWS)
    }

    fn value(&self, key: &[u8]) -> Result<Option<Value>, StoreError> {
        self.get(key)
    }
}

/// A step of the walk.
#[derive(Debug)]
pub enum Step {
    Rows(Vec<Row>),
    Lost(Lost),
    End,
}

/// The beginning of a key, as a number.
type Place = [u8; PLACE_BYTES];

/// See the module.
pub struct Walk<S> {
    source: S,
    /// The tables that are left.
    tables: std::slice::Iter<'static, (u8, &'static str)>,
    /// Where the present table goes on, and where it ends.
    at: Option<(Bound<Vec<u8>>, Place)>,
    /// A range that ends here could not be read.
    near: Option<Place>,
}

impl<S: Source> Walk<S> {
    /// A walk from the beginning.
    pub fn new(source: S) -> Walk<S> {
        Walk { source, tables: TABLES.iter(), at: None, near: None }
    }

    /// The next rows, about so many bytes, or a place that is lost.
    ///
    /// # Errors
    /// Those of the store that are no damage.
    pub fn step(&mut self, bytes: usize) -> Result<Step, StoreError> {
        loop {
            let Some((start, end)) = &self.at else {
                match self.tables.next() {
                    Some((letter, _)) => {
                        self.at = Some((Bound::Included(vec![*letter]), place(&[letter + 1])));
                        self.near = None;
                    }
                    None => return Ok(Step::End),
                }
                continue;
            };
            let (start, end) = (start.clone(), *end);
            let to = self.near.take().unwrap_or(end);
            let low = floor(&start);
            if let Some(step) = self.read(&start, (low, to, end), bytes)? {
                return Ok(step);
            }
        }
    }

    /// Reads from `start` to `to`, or less where that cannot be read.
    fn read(
        &mut self,
        start: &Bound<Vec<u8>>,
        (low, mut to, end): (Place, Place, Place),
        bytes: usize,
    ) -> Result<Option<Step>, StoreError> {
        let mut failed = None;
        loop {
            let begin = match start {
                Bound::Included(key) => Bound::Included(&key[..]),
                Bound::Excluded(key) => Bound::Excluded(&key[..]),
                Bound::Unbounded => Bound::Unbounded,
            };
            let range = KeyRange { start: begin, end: Bound::Excluded(first_key(&to)) };
            let (rows, read) = match range.is_empty() {
                true => (Vec::new(), Ok(())),
                false => self.source.rows(range, bytes),
            };
            if let Some((key, _)) = rows.last() {
                self.at = Some((Bound::Excluded(key.clone()), end));
                self.near = failed;
                return Ok(Some(Step::Rows(rows)));
            }
            match read {
                Ok(()) if to == end => {
                    self.at = None;
                    return Ok(None);
                }
                Ok(()) => {
                    self.at = Some((Bound::Included(first_key(&to).to_vec()), end));
                    self.near = failed;
                    return Ok(None);
                }
                Err(error) if is_damage(&error) => match middle(&low, &to) {
                    Some(between) => {
                        failed = Some(to);
                        to = between;
                    }
                    None => return Ok(Some(self.pass_over(start, (low, end), &error))),
                },
                Err(error) => return Err(error),
            }
        }
    }

    /// Goes to where rows can be read again. Rows of a damaged block lie next to each other: their end is searched in
    /// growing steps, and then by bisection.
    fn pass_over(
        &mut self,
        start: &Bound<Vec<u8>>,
        (low, end): (Place, Place),
        error: &StoreError,
    ) -> Step {
        let (mut lost, mut whole) = (low, end);
        for power in 0..8 * (PLACE_BYTES - 1) {
            let probe = plus(&low, power);
            if probe >= end {
                break;
            }
            if self.source.value(first_key(&probe)).is_ok() {
                whole = probe;
                break;
            }
            lost = probe;
        }
        while let Some(between) = middle(&lost, &whole) {
            match self.source.value(first_key(&between)).is_ok() {
                true => whole = between,
                false => lost = between,
            }
        }
        let to = first_key(&whole).to_vec();
        self.at = (whole < end).then(|| (Bound::Included(to.clone()), end));
        self.near = None;
        let from = match start {
            Bound::Included(key) => key.clone(),
            Bound::Excluded(key) => [key, &[0][..]].concat(),
            Bound::Unbounded => Vec::new(),
        };
        Step::Lost(Lost { from, to, why: error.to_string() })
    }
}

/// Whether a read failed because of what is on the disk. Other rows may be read.
fn is_damage(error: &StoreError) -> bool {
    matches!(error, StoreError::Damaged { .. } | StoreError::Index { .. } | StoreError::Io { .. })
}

fn place(key: &[u8]) -> Place {
    let mut place = [0; PLACE_BYTES];
    let length = key.len().min(PLACE_BYTES);
    place[..length].copy_from_slice(&key[..length]);
    place
}

/// The first key at a place.
fn first_key(place: &Place) -> &[u8] {
    let length = place.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    &place[..length]
}

/// The place of the first key from which on is read.
fn floor(start: &Bound<Vec<u8>>) -> Place {
    match start {
        Bound::Included(key) | Bound::Excluded(key) => place(key),
        Bound::Unbounded => [0; PLACE_BYTES],
    }
}

/// The place half-way between two; None where there is none.
fn middle(low: &Place, high: &Place) -> Option<Place> {
    if low >= high {
        return None;
    }
    let mut sum = [0u8; PLACE_BYTES + 1];
    let mut carry = 0u16;
    for at in (0..PLACE_BYTES).rev() {
        let digit = u16::from(low[at]) + u16::from(high[at]) + carry;
        sum[at + 1] = digit as u8;
        carry = digit >> 8;
    }
    sum[0] = carry as u8;
    let mut half = [0u8; PLACE_BYTES];
    for at in 0..PLACE_BYTES {
        half[at] = sum[at + 1] >> 1 | sum[at] << 7;
    }
    (half > *low).then_some(half)
}

/// A place and a power of two.
fn plus(low: &Place, power: usize) -> Place {
    let mut place = *low;
    let mut carry = 1u16 << (power % 8);
    for digit in place[..PLACE_BYTES - power / 8].iter_mut().rev() {
        let sum = u16::from(*digit) + carry;
        *digit = sum as u8;
        carry = sum >> 8;
    }
    match carry {
        0 => place,
        _ => [0xff; PLACE_BYTES],
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::PathBuf;

    use ropewalk_base::random::Random;

    use super::*;

    /// Rows in blocks of four, of which some cannot be read.
    struct Blocks {
        rows: BTreeMap<Vec<u8>, Value>,
        firsts: Vec<Vec<u8>>,
        damaged: BTreeSet<usize>,
        reads: Cell<u64>,
    }

    impl Blocks {
        fn new(keys: BTreeSet<Vec<u8>>, damaged: BTreeSet<usize>) -> Blocks {
            let firsts = keys.iter().step_by(4).cloned().collect();
            let rows = keys.into_iter().map(|key| (key, Value::from(&b"value"[..]))).collect();
            Blocks { rows, firsts, damaged, reads: Cell::new(0) }
        }

        fn block(&self, key: &[u8]) -> usize {
            self.firsts.partition_point(|first| first.as_slice() <= key).saturating_sub(1)
        }

        fn check(&self, key: &[u8]) -> Result<(), StoreError> {
            self.reads.set(self.reads.get() + 1);
            match self.damaged.contains(&self.block(key)) {
                true => Err(StoreError::Damaged { path: PathBuf::new(), what: "bad".to_owned() }),
                false => Ok(()),
            }
        }
    }

    impl Source for &Blocks {
        fn rows(&self, range: KeyRange<'_>, bytes: usize) -> (Vec<Row>, Result<(), StoreError>) {
            let mut rows = Vec::new();
            for bound in [range.start, range.end] {
                if let Bound::Included(key) | Bound::Excluded(key) = bound
                    && let Err(error) = self.check(key)
                {
                    return (rows, Err(error));
                }
            }
            for (key, value) in self.rows.range::<[u8], _>((range.start, range.end)) {
                if let Err(error) = self.check(key) {
                    return (rows, Err(error));
                }
                rows.push((key.clone(), value.clone()));
                if rows.len() >= bytes {
                    break;
                }
            }
            (rows, Ok(()))
        }

        fn value(&self, key: &[u8]) -> Result<Option<Value>, StoreError> {
            self.check(key).map(|()| self.rows.get(key).cloned())
        }
    }

    #[test]
    fn all_rows_outside_of_damaged_blocks_come_once_and_the_others_lie_in_what_is_lost() {
        let mut random = Random::from_seed(7);
        for round in 0..60 {
            let mut keys = BTreeSet::new();
            for _ in 0..random.below(200) {
                let (letter, _) = TABLES[random.below(TABLES.len() as u64) as usize];
                let mut key = vec![letter];
                for _ in 0..random.below(4) {
                    let number = random.next_u64() >> random.below(64);
                    key.extend_from_slice(&number.to_be_bytes());
                }
                keys.insert(key);
            }
            let count = keys.len() / 4 + 1;
            let damaged: BTreeSet<usize> =
                (0..round % 7).map(|_| random.below(count as u64) as usize).collect();
            let blocks = Blocks::new(keys, damaged);
            let mut walk = Walk::new(&blocks);
            let (mut seen, mut lost) = (Vec::new(), Vec::new());
            loop {
                match walk.step(1 + round).unwrap() {
                    Step::Rows(rows) => seen.extend(rows.into_iter().map(|(key, _)| key)),
                    Step::Lost(place) => lost.push(place),
                    Step::End => break,
                }
            }
            assert!(seen.is_sorted_by(|a, b| a < b), "in order, each once");
            assert!(blocks.reads.get() < 50_000, "{} reads", blocks.reads.get());
            for key in blocks.rows.keys() {
                let is_damaged = blocks.damaged.contains(&blocks.block(key));
                assert!(!is_damaged || !seen.contains(key));
                let is_lost = lost.iter().any(|it| it.from <= *key && *key < it.to);
                assert!(is_lost != seen.contains(key), "{round}: {key:?} {is_damaged}");
                assert!(is_damaged || seen.contains(key) || is_lost);
            }
            let good = |key: &&Vec<u8>| !blocks.damaged.contains(&blocks.block(key));
            let missed = blocks.rows.keys().filter(good).filter(|key| !seen.contains(key)).count();
            assert!(missed <= 4 * blocks.damaged.len(), "{round}: {missed} good rows are missed");
        }
    }
}
