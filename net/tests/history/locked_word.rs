//! The word that a lock protects: each who has the lock reads it and writes a value of its own, and puts that found the lock
//! free write others in between.

use std::collections::{BTreeMap, BTreeSet};

use super::locking::Section;
use super::ops::{Got, NEVER, Op, UnderLock, What};

/// A write of the word.
struct Write<'a> {
    op: &'a Op,
    /// It found the lock free.
    is_put: bool,
}

impl Write<'_> {
    /// A put whose end did not come may have been refused the lock.
    fn is_certain(&self) -> bool {
        self.op.is_certain()
    }
}

struct Word<'a> {
    ops: &'a [Op],
    writes: BTreeMap<u64, Write<'a>>,
    /// The sections of which all is known.
    sections: Vec<&'a Section>,
    /// There are no others.
    is_whole: bool,
    context: String,
}

/// `end`: what the word is in the end.
pub fn check(ops: &[Op], sections: &[&Section], target: usize, end: u64) {
    let mut writes = BTreeMap::new();
    for (op, value) in sections.iter().filter_map(|section| section.write) {
        writes.insert(value, Write { op: &ops[op], is_put: false });
    }
    for op in ops.iter().filter(|op| op.target == target && op.got != Got::Lock) {
        if let What::LockedPut { what: UnderLock::Word { value } } = op.what {
            writes.insert(value, Write { op, is_put: true });
        }
    }
    let mut known = Vec::new();
    let is_whole = sections.iter().all(|section| {
        let is_known = !section.is_void && !ops[section.read].words().is_empty();
        if is_known {
            known.push(*section);
        }
        is_known && section.write.is_none_or(|(write, _)| ops[write].is_certain())
    });
    let context = format!("under the lock of {target}");
    Word { ops, writes, sections: known, is_whole, context }.check(end);
}

impl Word<'_> {
    fn read(&self, section: &Section) -> (&Op, u64) {
        let read = &self.ops[section.read];
        (read, read.words()[0])
    }

    fn check(&self, end: u64) {
        let (mut state, mut gone) = (0, BTreeSet::new());
        // Whether some put came before each of the sections.
        let mut gaps = Vec::new();
        for section in &self.sections {
            let (read, value) = self.read(section);
            self.judge_read(read, value);
            self.judge_next(state, value, &mut gone, &format!("{section:?}, {read:?}"));
            gaps.push(state != value);
            state = value;
            if let Some((_, written)) = section.write {
                gone.insert(state);
                state = written;
            }
        }
        if self.is_whole {
            self.judge_next(state, end, &mut gone, "in the end");
        }
        gaps.push(!self.is_whole || end != state);
        self.judge_puts(&gaps);
    }

    /// What was written last, or a put that came after it.
    fn judge_next(&self, state: u64, value: u64, gone: &mut BTreeSet<u64>, who: &str) {
        let context = &self.context;
        let is_put = self.writes.get(&value).is_some_and(|write| write.is_put);
        assert!(value == state || is_put, "{context}: {value} in place of {state}: {who}");
        assert!(!gone.contains(&value), "{context}: {value} had been replaced: {who}");
        if value != state {
            gone.insert(state);
        }
    }

    /// A value of a write that had begun, and that no other one had replaced for sure.
    fn judge_read(&self, read: &Op, value: u64) {
        let context = &self.context;
        let write = self.writes.get(&value);
        assert!(value == 0 || write.is_some(), "{context}: nobody wrote {value}: {read:?}");
        let posted = write.map_or(0, |write| write.op.posted);
        assert!(posted < read.ended, "{context}: {value} was written later than {read:?}");
        let over = write.map_or(0, |write| write.op.over);
        let replaces =
            |it: &&Write<'_>| it.is_certain() && over < it.op.posted && it.op.over < read.posted;
        let newer = self.writes.values().find(replaces).map(|write| write.op);
        assert!(newer.is_none(), "{context}: {read:?} found {value} after {newer:?}");
    }

    /// Each put that found the lock free came between two who had it, or before or after all of them: there somebody sees it,
    /// or another such put.
    fn judge_puts(&self, gaps: &[bool]) {
        for put in self.writes.values().filter(|it| it.is_put && it.is_certain()) {
            let fits = |gap: usize| {
                let before = gap.checked_sub(1).map_or(0, |before| self.sections[before].ended);
                let after = self.sections.get(gap).map_or(NEVER, |it| self.ops[it.read].posted);
                gaps[gap] && before < put.op.ended && put.op.posted < after
            };
            let has_place = (0..gaps.len()).any(fits);
            assert!(has_place, "{}: nobody saw {:?}", self.context, put.op);
        }
    }
}
