//! Words that are replaced by values of which each is used once: what was found tells the order of all changes.

use std::collections::BTreeMap;

use super::ops::{Op, What};
use super::setting::{CHAIN_COUNT, CHAINS};

struct Write<'a> {
    op: &'a Op,
    value: u64,
    /// The value that it replaced, as far as that is known.
    before: Option<u64>,
}

struct Chain<'a> {
    writes: Vec<Write<'a>>,
    /// Operations that changed nothing, and the values that they found.
    reads: Vec<(&'a Op, u64)>,
    context: String,
}

impl<'a> Chain<'a> {
    fn of(ops: &'a [Op], target: usize, index: usize) -> Chain<'a> {
        let context = format!("word {index} of {target}");
        let mut chain = Chain { writes: Vec::new(), reads: Vec::new(), context };
        for op in ops.iter().filter(|op| op.target == target) {
            let What::Chain { word, value, expected } = op.what else { continue };
            let found = op.words().first().copied();
            match (value, found) {
                _ if word != index => {}
                (Some(value), Some(found)) if expected.is_none_or(|it| it == found) => {
                    chain.writes.push(Write { op, value, before: Some(found) });
                }
                (_, Some(found)) => chain.reads.push((op, found)),
                (Some(value), None) => chain.writes.push(Write { op, value, before: None }),
                (None, None) => {}
            }
        }
        chain
    }

    fn is_whole(&self) -> bool {
        self.writes.iter().all(|write| write.before.is_some())
    }

    /// The writes that follow each other, from each one on of which nobody knows what it replaced, and from the first one.
    fn runs(&self) -> Vec<Vec<&Write<'a>>> {
        let mut next = BTreeMap::new();
        for write in &self.writes {
            if let Some(before) = write.before {
                let known = before == 0 || self.writes.iter().any(|it| it.value == before);
                assert!(known, "{}: {:?} found {before}", self.context, write.op);
                let other = next.insert(before, write).map(|it| it.op);
                assert!(
                    other.is_none(),
                    "{}: {:?} and {other:?} found {before}",
                    self.context,
                    write.op
                );
            }
        }
        let starts = self.writes.iter().filter(|it| it.before.is_none());
        let starts = starts.map(|it| (it.value, vec![it])).chain([(0, Vec::new())]);
        let mut runs = Vec::new();
        for (mut value, mut run) in starts {
            while let Some(write) = next.remove(&value) {
                run.push(write);
                value = write.value;
            }
            runs.push(run);
        }
        assert!(next.is_empty(), "{}: values in a circle", self.context);
        runs
    }

    /// Nothing that was over before something else began, or was posted before it by the same origin, comes after it.
    fn judge(&self, first: &Op, second: &Op) {
        let context = &self.context;
        assert!(!second.precedes(first), "{context}: {second:?} was over before {first:?}");
        let passes = first.origin == second.origin && second.posted < first.posted;
        assert!(!passes, "{context}: {first:?} passed {second:?}");
    }

    fn check(&self, end: u64) {
        let runs = self.runs();
        for run in &runs {
            for (at, write) in run.iter().enumerate() {
                run[..at].iter().for_each(|earlier| self.judge(earlier.op, write.op));
            }
        }
        for (read, found) in &self.reads {
            self.check_read(&runs, read, *found);
        }
        if self.is_whole() {
            let last = runs.last().and_then(|run| run.last()).map_or(0, |write| write.value);
            assert_eq!(end, last, "{}: in the end", self.context);
        }
    }

    fn check_read(&self, runs: &[Vec<&Write<'a>>], read: &Op, found: u64) {
        let of = |run: &&Vec<&Write<'_>>| run.iter().any(|it| it.value == found);
        let run = if found == 0 { runs.last() } else { runs.iter().find(of) };
        let run = run.unwrap_or_else(|| panic!("{}: {read:?} found {found}", self.context));
        let behind = run.iter().position(|it| it.value == found).map_or(0, |at| at + 1);
        run[..behind].iter().for_each(|write| self.judge(write.op, read));
        run[behind..].iter().for_each(|write| self.judge(read, write.op));
    }
}

/// `regions`: what they are in the end.
pub fn check(ops: &[Op], regions: &[Vec<u8>]) {
    for (target, region) in regions.iter().enumerate() {
        for word in 0..CHAIN_COUNT {
            let at = CHAINS as usize + word * 8;
            let end = u64::from_le_bytes(region[at..at + 8].try_into().expect("a word"));
            Chain::of(ops, target, word).check(end);
        }
    }
}
