//! Inodes that a session was told of a moment ago without keeping a lease on them, and those that lost
//! their last name meanwhile.
//!
//! A kernel that looked a name up opens, reads or asks for the inode right after, by its number. Where
//! somebody replaced the name in between, the number has to serve a moment longer: else a path that
//! always exists fails now and then (`ESTALE`). So such an inode becomes an orphan first, as if it were
//! open somewhere, and is destroyed when its moment is over.
//!
//! Invariants: both tables are bounded in number and in time; an inode that is not here behaves as ever;
//! nothing here outlives a restart, after which orphans that nobody uses are collected.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use ropewalk_base::time::Time;

/// Most inodes in each of the two tables; the oldest go first.
const INODES_MAX: usize = 1 << 16;

/// Inodes that sessions were told of, and orphans that are kept for them.
#[derive(Debug, Default)]
pub struct Graves {
    /// When each inode was told of last.
    told: BTreeMap<u64, Time>,
    told_order: VecDeque<(Time, u64)>,
    kept: BTreeSet<u64>,
    /// The time until which each is kept, the earliest first.
    kept_order: VecDeque<(Time, u64)>,
}

impl Graves {
    /// A session was told of the inode and has no lease on it (any more).
    pub fn told(&mut self, inode: u64, now: Time, moment: Duration) {
        // One note serves for a while: a session that asks again and again costs a look at a table.
        if self.told.get(&inode).is_some_and(|at| now < *at + moment / 2) {
            return;
        }
        self.told.insert(inode, now);
        self.told_order.push_back((now, inode));
        while let Some(&(at, oldest)) = self.told_order.front()
            && (self.told_order.len() > INODES_MAX || at + moment * 2 <= now)
        {
            self.told_order.pop_front();
            if self.told.get(&oldest) == Some(&at) {
                self.told.remove(&oldest);
            }
        }
    }

    /// The inode lost its last name, and nobody uses it. Whether it is kept for a moment.
    pub fn bury(&mut self, inode: u64, now: Time, moment: Duration) -> bool {
        // A note may be half a moment older than the last time.
        let fresh = self.told.get(&inode).is_some_and(|at| now < *at + moment * 3 / 2);
        if fresh && self.kept_order.len() < INODES_MAX && self.kept.insert(inode) {
            self.kept_order.push_back((now + moment, inode));
        }
        fresh && self.kept.contains(&inode)
    }

    /// Whether the inode is kept.
    pub fn keeps(&self, inode: u64) -> bool {
        self.kept.contains(&inode)
    }

    /// An inode whose moment is over; it is not kept any more.
    pub fn due(&mut self, now: Time) -> Option<u64> {
        let (until, inode) = *self.kept_order.front()?;
        if until > now {
            return None;
        }
        self.kept_order.pop_front();
        self.kept.remove(&inode);
        Some(inode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_secs(2);

    fn at(milliseconds: u64) -> Time {
        Time::ZERO + Duration::from_millis(milliseconds)
    }

    #[test]
    fn what_was_told_is_kept_for_a_moment() {
        let mut graves = Graves::default();
        graves.told(7, at(0), MOMENT);
        // Told again soon: the note stays as it is, and still serves for a moment from now.
        graves.told(7, at(900), MOMENT);
        assert!(graves.bury(7, at(2800), MOMENT) && graves.keeps(7));
        assert!(!graves.bury(8, at(2800), MOMENT) && !graves.keeps(8));
        assert_eq!(graves.due(at(4700)), None);
        assert_eq!(graves.due(at(4800)), Some(7));
        assert!(!graves.keeps(7));
        // Long ago is as good as never.
        graves.told(9, at(5000), MOMENT);
        assert!(!graves.bury(9, at(9000), MOMENT));
    }

    #[test]
    fn tables_are_bounded() {
        let mut graves = Graves::default();
        let count = INODES_MAX as u64 + 10;
        (0..count).for_each(|inode| graves.told(inode, at(inode), Duration::from_secs(1000)));
        assert_eq!((graves.told.len(), graves.told_order.len()), (INODES_MAX, INODES_MAX));
        let now = at(count);
        let kept = (0..count).filter(|inode| graves.bury(*inode, now, Duration::from_secs(1000)));
        assert_eq!(kept.count(), INODES_MAX);
        assert!(!graves.bury(0, now, Duration::from_secs(1000)));
        let later = now + Duration::from_secs(1000);
        (10..count).for_each(|inode| assert_eq!(graves.due(later), Some(inode)));
        assert_eq!(graves.due(later), None);
    }
}
