//! Bits that are added to elements: an element is the set of the additions before.
//!
//! An addition that happens twice carries into the bit of another one.

use super::ops::{Op, What};
use super::setting::{SUM_AREAS, SUMS};

/// One element: who added to it, and who says what it was.
struct Element<'a> {
    adds: &'a [(&'a Op, u64)],
    context: String,
}

impl Element<'_> {
    /// What an addition, or a reader without a bit of its own, found.
    fn judge(&self, op: &Op, own: u64, found: u64) {
        let context = &self.context;
        let posted: u64 = self.adds.iter().map(|it| it.1).sum();
        assert_eq!(found & !posted, 0, "{context}: bits that nobody added: {found:x} by {op:?}");
        assert_eq!(found & own, 0, "{context}: {op:?} found itself");
        for (other, bit) in self.adds.iter().filter(|it| it.1 != own) {
            let has = found & bit != 0;
            assert!(!(has && other.posted > op.over), "{context}: {op:?} found {other:?}");
            let is_due = other.is_certain() && other.precedes(op);
            assert!(has || !is_due, "{context}: {op:?} did not find {other:?}");
            if own != 0 && other.origin == op.origin {
                let is_earlier = other.posted < op.posted;
                assert!(
                    has || !(is_earlier && other.is_certain()),
                    "{context}: {op:?} passed {other:?}"
                );
                assert!(!has || is_earlier, "{context}: {other:?} passed {op:?}");
            }
        }
    }

    /// All that was found is of one sequence.
    fn judge_order(&self, found: &[(u64, u64)]) {
        for (at, (own, set)) in found.iter().enumerate() {
            for (other, others) in &found[..at] {
                let (small, large) = match set & other != 0 {
                    true => (others | other, *set),
                    false if others & own != 0 => (set | own, *others),
                    false => panic!("{}: neither of {own:x}, {other:x} was first", self.context),
                };
                assert_eq!(small & !large, 0, "{}: {own:x} and {other:x}", self.context);
            }
        }
    }
}

/// An operation on a run of elements.
#[derive(Clone, Copy)]
struct Span<'a> {
    op: &'a Op,
    first: usize,
    count: usize,
    /// What it adds; 0: it reads.
    bit: u64,
}

impl Span<'_> {
    fn found(&self, index: usize) -> Option<u64> {
        self.op.words().get(index - self.first).copied()
    }
}

fn span(op: &Op) -> Option<(usize, Span<'_>)> {
    let (area, first, count, bit) = match op.what {
        What::Add { area, first, count, bit, .. } => (area, first, count, 1 << bit),
        What::Look { area, first, count } => (area, first, count, 0),
        _ => return None,
    };
    Some((area, Span { op, first: first as usize, count: count as usize, bit }))
}

fn spans(ops: &[Op], target: usize, index: usize) -> Vec<Span<'_>> {
    let such = ops.iter().filter(|op| op.target == target).filter_map(span);
    such.filter(|(area, _)| *area == index).map(|(_, span)| span).collect()
}

/// `regions`: what they are in the end.
pub fn check(ops: &[Op], regions: &[Vec<u8>]) {
    for (target, region) in regions.iter().enumerate() {
        let end = |index: usize| {
            let at = SUMS as usize + index * 8;
            u64::from_le_bytes(region[at..at + 8].try_into().expect("a word"))
        };
        for (area, (first, count)) in SUM_AREAS.iter().enumerate() {
            let spans = spans(ops, target, area);
            let (first, count) = (*first as usize, *count as usize);
            let mut edges = vec![first, first + count];
            edges.extend(spans.iter().flat_map(|span| [span.first, span.first + span.count]));
            edges.sort_unstable();
            edges.dedup();
            for run in edges.windows(2) {
                let is_here =
                    |span: &&Span<'_>| (span.first..span.first + span.count).contains(&run[0]);
                let here: Vec<_> = spans.iter().filter(is_here).copied().collect();
                for index in run[0]..run[1] {
                    // Nearly all elements are as the one before.
                    let is_same = |span: &Span<'_>| span.found(index) == span.found(index - 1);
                    let is_known = index > run[0] && end(index) == end(index - 1);
                    if !(is_known && here.iter().all(is_same)) {
                        let context = format!("element {index} of {target}");
                        check_element(&here, index, end(index), context);
                    }
                }
            }
        }
    }
}

fn check_element(here: &[Span<'_>], index: usize, end: u64, context: String) {
    let adds = here.iter().filter(|it| it.bit != 0).map(|it| (it.op, it.bit));
    let adds: Vec<_> = adds.collect();
    let element = Element { adds: &adds, context };
    let mut found = Vec::new();
    for span in here {
        if let Some(set) = span.found(index) {
            element.judge(span.op, span.bit, set);
            found.extend((span.bit != 0).then_some((span.bit, set)));
        }
    }
    element.judge_order(&found);
    let (mut due, mut posted) = (0, 0);
    for (op, bit) in &adds {
        posted |= bit;
        due |= if op.is_certain() { *bit } else { 0 };
    }
    let context = &element.context;
    assert_eq!(end & !posted, 0, "{context}: bits that nobody added in the end: {end:x}");
    assert_eq!(due & !end, 0, "{context}: additions were lost: {end:x} of {due:x}");
}
