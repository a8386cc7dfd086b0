//! Byte-range and whole-file locks of one inode.

use ropewalk_mount::decode::{Lock, LockKind};

#[derive(Default)]
pub struct Locks {
    held: Vec<(u64, Lock)>,
}

impl Locks {
    /// A lock of somebody else that stands in the way.
    pub fn conflict(&self, owner: u64, lock: &Lock) -> Option<Lock> {
        let overlaps = |other: &Lock| other.start <= lock.end && lock.start <= other.end;
        let exclusive =
            |other: &Lock| lock.kind == LockKind::Write || other.kind == LockKind::Write;
        let mut others = self.held.iter().filter(|(other, _)| *other != owner);
        let found = others.find(|(_, other)| overlaps(other) && exclusive(other));
        found.map(|(_, lock)| *lock)
    }

    /// Takes, changes or drops what `owner` holds in the range; there must be no conflict.
    pub fn set(&mut self, owner: u64, lock: &Lock) {
        let mut kept = Vec::with_capacity(self.held.len() + 2);
        for (other, held) in self.held.drain(..) {
            if other != owner || held.end < lock.start || lock.end < held.start {
                kept.push((other, held));
                continue;
            }
            if held.start < lock.start {
                kept.push((other, Lock { end: lock.start - 1, ..held }));
            }
            if held.end > lock.end {
                kept.push((other, Lock { start: lock.end + 1, ..held }));
            }
        }
        if lock.kind != LockKind::Unlock {
            kept.push((owner, *lock));
        }
        self.held = kept;
    }

    pub fn drop_all(&mut self, owner: u64) {
        self.held.retain(|(other, _)| *other != owner);
    }
}
