//! Files that grew, and the sessions whose kernels have to hear of it before the writer goes on.
//!
//! A kernel asks for a file's size before it reads, but not before it splices, copies within the kernel,
//! or serves a map: there it believes the size that it was told last. Nothing makes it ask, and nobody
//! but the writer knows that it should.
//!
//! Invariants: a session owes at most one answer for an inode, the latest; a session that does not answer
//! within [`PATIENCE`] is not waited for until it has answered.

use std::collections::BTreeMap;
use std::time::Duration;

use ropewalk_base::time::Time;

/// The time a writer waits for a session that only looks.
const PATIENCE: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy)]
struct Owed {
    /// The call that made it grow last.
    number: u64,
    since: Time,
    late: bool,
}

/// Answers that are owed, by inode and session.
#[derive(Debug, Default)]
pub struct Growth {
    owed: BTreeMap<(u64, u64), Owed>,
}

impl Growth {
    /// A session is told of a growth by call `number`.
    pub fn tell(&mut self, (inode, session): (u64, u64), number: u64, now: Time) {
        let owed = Owed { number, since: now, late: false };
        let owed = self.owed.entry((inode, session)).or_insert(owed);
        owed.number = number;
    }

    /// Whether somebody has not answered yet, and is waited for.
    pub fn is_awaited(&self, inode: u64) -> bool {
        let mut owed = self.owed.range((inode, 0)..=(inode, u64::MAX));
        owed.any(|(_, owed)| !owed.late)
    }

    /// A session answered. True where somebody may have waited for that.
    pub fn told(&mut self, inode: u64, session: u64, number: u64) -> bool {
        let answered = self.owed.get(&(inode, session)).is_some_and(|owed| owed.number <= number);
        if answered {
            self.owed.remove(&(inode, session));
        }
        answered
    }

    /// Inodes for which somebody waited long enough.
    pub fn overdue(&mut self, now: Time) -> Vec<u64> {
        let mut inodes = Vec::new();
        for ((inode, _), owed) in &mut self.owed {
            if !owed.late && now >= owed.since + PATIENCE {
                owed.late = true;
                inodes.push(*inode);
            }
        }
        inodes
    }

    /// A session ended. Inodes for which somebody may have waited.
    pub fn forget(&mut self, session: u64) -> Vec<u64> {
        let of = |key: &&(u64, u64)| key.1 == session;
        let inodes: Vec<u64> = self.owed.keys().filter(of).map(|key| key.0).collect();
        self.owed.retain(|key, _| key.1 != session);
        inodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_waits_for_those_who_look_and_not_for_those_who_stand_still() {
        let mut growth = Growth::default();
        let at = |milliseconds| Time::ZERO + Duration::from_millis(milliseconds);
        growth.tell((9, 1), 5, at(0));
        growth.tell((9, 2), 5, at(0));
        assert!(growth.is_awaited(9) && !growth.is_awaited(8));
        assert!(growth.told(9, 1, 5) && !growth.told(9, 1, 5) && growth.is_awaited(9));
        assert!(growth.overdue(at(100)).is_empty());
        assert_eq!(growth.overdue(at(600)), [9]);
        assert!(!growth.is_awaited(9));
        growth.tell((9, 2), 7, at(700));
        assert!(!growth.is_awaited(9), "it has not answered yet");
        assert_eq!(growth.forget(2), [9]);
        growth.tell((9, 1), 8, at(800));
        assert!(growth.is_awaited(9));
    }
}
