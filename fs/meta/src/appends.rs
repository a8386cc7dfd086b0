//! Appends of sessions that write a file together: ranges that have their place and not yet their bytes.
//!
//! An append among several writers takes its range from the metadata server first; from then on the
//! inode's row counts it, so that nobody else gets it. The bytes follow. Sizes that are told end before
//! the first range whose session has not reported it: nobody sees zeros where a record is still to come.
//!
//! Invariants: a session has ranges only while it holds `Shared` (see `Leases`); a report up to some size
//! says that all its ranges below are written or given up; a writer behind a range of another session waits
//! for that session, but not longer than [`PATIENCE`].

use std::collections::BTreeMap;
use std::time::Duration;

use ropewalk_base::time::Time;

/// The time a writer waits for another session's range before its own.
const PATIENCE: Duration = Duration::from_millis(500);

/// Ranges of one session on one inode. With more of them the gaps between them count, too.
const RANGES_MAX: usize = 64;

#[derive(Debug)]
struct Ranges {
    /// Apart, in order, not empty.
    ranges: Vec<(u64, u64)>,
    /// The times since which somebody waits for those below an offset; both grow.
    awaited: Vec<(Time, u64)>,
}

/// Ranges that were not reported, by inode and session.
#[derive(Debug, Default)]
pub(crate) struct Appends {
    ranges: BTreeMap<(u64, u64), Ranges>,
    /// Inodes that lost ranges since this was asked last, and whether by a report.
    ended: Vec<(u64, bool)>,
}

impl Appends {
    /// A session got a range, which lies behind all that the inode has.
    pub fn add(&mut self, (inode, session): (u64, u64), offset: u64, end: u64) {
        let found = self.ranges.entry((inode, session));
        let Ranges { ranges, .. } =
            found.or_insert_with(|| Ranges { ranges: Vec::new(), awaited: Vec::new() });
        let full = ranges.len() == RANGES_MAX;
        match ranges.last_mut() {
            Some(last) if last.1 == offset || full => last.1 = end,
            _ => ranges.push((offset, end)),
        }
    }

    /// A session told that the file has all its bytes up to `size`.
    pub fn reported(&mut self, (inode, session): (u64, u64), size: u64) {
        let Some(Ranges { ranges, .. }) = self.ranges.get_mut(&(inode, session)) else { return };
        if ranges.first().is_none_or(|first| first.0 >= size) {
            return;
        }
        self.end_below((inode, session), size);
        self.ended.push((inode, true));
    }

    fn end_below(&mut self, key: (u64, u64), size: u64) {
        let Some(Ranges { ranges, awaited }) = self.ranges.get_mut(&key) else { return };
        ranges.retain(|range| range.1 > size);
        awaited.retain(|(_, below)| *below > size);
        match ranges.first_mut() {
            Some(first) => first.0 = first.0.max(size),
            None => drop(self.ranges.remove(&key)),
        }
    }

    /// The session does not write the inode any more, or begins anew.
    pub fn forget(&mut self, inode: u64, session: u64) {
        if self.ranges.remove(&(inode, session)).is_some() {
            self.ended.push((inode, false));
        }
    }

    /// The file was cut: its end is elsewhere, and nobody sees it grow.
    pub fn forget_all(&mut self, inode: u64) {
        let sessions: Vec<u64> = self.on(inode).map(|(session, _)| session).collect();
        for session in sessions {
            self.ranges.remove(&(inode, session));
            self.ended.push((inode, true));
        }
    }

    /// The size to tell of an inode whose row has `size`.
    pub fn shown(&self, inode: u64, size: u64) -> u64 {
        if self.ranges.is_empty() {
            return size;
        }
        self.on(inode).map(|(_, found)| found.ranges[0].0).fold(size, u64::min)
    }

    /// Whether a session that reached `size` has to wait for ranges of others, which have only so long from
    /// now on.
    pub fn wait(&mut self, inode: u64, session: u64, size: u64, now: Time) -> bool {
        let mut waits = false;
        for (key, found) in self.ranges.range_mut((inode, 0)..=(inode, u64::MAX)) {
            if key.1 != session && found.ranges[0].0 < size {
                let last = found.awaited.last().map_or(0, |last| last.1);
                if size > last && found.awaited.len() < RANGES_MAX {
                    found.awaited.push((now, size));
                }
                waits = true;
            }
        }
        waits
    }

    /// Gives up ranges that somebody waited for long enough.
    pub fn give_up_overdue(&mut self, now: Time) {
        let is_late = |wait: &&(Time, u64)| now >= wait.0 + PATIENCE;
        let late = |found: &Ranges| found.awaited.iter().rev().find(is_late).map(|wait| wait.1);
        let overdue: Vec<((u64, u64), u64)> =
            self.ranges.iter().filter_map(|(key, found)| Some((*key, late(found)?))).collect();
        for (key, below) in overdue {
            self.end_below(key, below);
            self.ended.push((key.0, false));
        }
    }

    /// Inodes that lost ranges since the last call, and whether by a report: else nobody was told that
    /// their sizes may have grown.
    pub fn take_ended(&mut self) -> Vec<(u64, bool)> {
        std::mem::take(&mut self.ended)
    }

    fn on(&self, inode: u64) -> impl Iterator<Item = (u64, &Ranges)> {
        self.ranges.range((inode, 0)..=(inode, u64::MAX)).map(|(key, found)| (key.1, found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_ends_before_the_first_range_that_was_not_reported() {
        let mut appends = Appends::default();
        assert_eq!(appends.shown(9, 100), 100);
        appends.add((9, 1), 100, 200);
        appends.add((9, 2), 200, 300);
        appends.add((9, 1), 300, 400);
        assert_eq!((appends.shown(9, 400), appends.shown(8, 400)), (100, 400));
        let waits =
            |appends: &mut Appends, session, size| appends.wait(9, session, size, Time::ZERO);
        assert!(waits(&mut appends, 2, 300) && !waits(&mut appends, 1, 200));
        appends.reported((9, 1), 100);
        assert_eq!((appends.shown(9, 400), appends.take_ended()), (100, vec![]));
        appends.reported((9, 1), 200);
        assert_eq!((appends.shown(9, 400), appends.take_ended()), (200, vec![(9, true)]));
        assert!(!waits(&mut appends, 2, 300) && waits(&mut appends, 1, 400));
        appends.reported((9, 1), 350);
        appends.forget(9, 2);
        assert_eq!(appends.shown(9, 400), 350);
        appends.forget_all(9);
        assert_eq!(appends.shown(9, 400), 400);
        assert!(appends.ranges.is_empty());
    }

    #[test]
    fn nobody_waits_for_ever_for_a_range() {
        let mut appends = Appends::default();
        let at = |milliseconds| Time::ZERO + Duration::from_millis(milliseconds);
        appends.add((9, 1), 100, 200);
        appends.give_up_overdue(at(5000));
        assert_eq!(appends.shown(9, 300), 100, "nobody waits for it");
        assert!(appends.wait(9, 2, 300, at(6000)) && appends.wait(9, 3, 400, at(6400)));
        appends.give_up_overdue(at(6400));
        assert_eq!(appends.shown(9, 300), 100);
        appends.give_up_overdue(at(6500));
        assert!(!appends.wait(9, 2, 300, at(6500)) && appends.shown(9, 300) == 300);
        // A second session waits for more of them, from its own beginning on.
        appends.add((9, 1), 300, 400);
        appends.add((9, 2), 400, 500);
        appends.add((9, 1), 500, 600);
        assert!(appends.wait(9, 2, 500, at(7000)) && appends.wait(9, 3, 700, at(7100)));
        appends.give_up_overdue(at(7600));
        appends.forget(9, 2);
        assert_eq!(appends.shown(9, 700), 700);
    }

    #[test]
    fn who_was_waited_for_in_vain_keeps_what_nobody_waited_for() {
        let mut appends = Appends::default();
        let at = |milliseconds| Time::ZERO + Duration::from_millis(milliseconds);
        appends.add((9, 1), 100, 200);
        appends.add((9, 2), 200, 300);
        appends.add((9, 1), 300, 400);
        // The first range comes in time, and the wait for it ends with it.
        assert!(appends.wait(9, 2, 300, at(0)));
        appends.reported((9, 1), 200);
        appends.give_up_overdue(at(900));
        assert_eq!(appends.shown(9, 400), 200);
        // Of two, the one that was waited for is given up.
        appends.add((9, 1), 400, 500);
        assert!(appends.wait(9, 3, 350, at(1000)));
        appends.give_up_overdue(at(1500));
        appends.reported((9, 2), 300);
        assert_eq!(appends.shown(9, 500), 350);
    }

    #[test]
    fn ranges_take_bounded_memory() {
        let mut appends = Appends::default();
        for at in 0..10_000 {
            appends.add((9, 1), at * 20, at * 20 + 10);
            appends.add((9, 2), at * 20 + 10, at * 20 + 20);
        }
        assert!(appends.ranges.values().all(|found| found.ranges.len() <= RANGES_MAX));
        appends.reported((9, 1), 199_990);
        assert_eq!(appends.shown(9, 200_000), 10);
        appends.reported((9, 2), 200_000);
        assert!(appends.ranges.is_empty());
    }
}
