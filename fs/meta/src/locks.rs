//! `fcntl` byte-range locks and `flock` locks of all files, with their queues.
//!
//! Invariants:
//! * ranges of one owner and family on one inode do not overlap, and neighbours of the same kind are
//!   one range;
//! * an exclusive lock overlaps no lock of another owner in its family;
//! * a queued lock conflicts with a held one, or waits behind an earlier queued one that it
//!   conflicts with (so that writers are not starved);
//! * no cycle of owners wait for each other with `fcntl` locks;
//! * held and queued locks are counted for each session, and bounded for each, in all, and on each inode.
//!
//! Held locks are rows, and survive a restart; queues do not, clients ask again. The table knows no
//! store: it reports what changed as [`RowChange`]s, which go into the batch of the request.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ropewalk_wire::fs::meta::{LockKind, LockRange};

/// The owner of a lock: a session and the owner within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    pub session: u64,
    pub owner: u64,
}

/// A lock that is held, or asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lock {
    pub owner: Owner,
    pub whole_file: bool,
    pub exclusive: bool,
    pub process: u32,
    pub start: u64,
    pub end: u64,
}

impl Lock {
    /// From a request of `session`; the kind `Unlock` counts as shared.
    pub fn new(session: u64, range: &LockRange) -> Lock {
        let (start, end) = if range.whole_file { (0, u64::MAX) } else { (range.start, range.end) };
        Lock {
            owner: Owner { session, owner: range.owner },
            whole_file: range.whole_file,
            exclusive: range.kind == LockKind::Exclusive,
            process: range.process,
            start,
            end,
        }
    }

    /// As a client sees it.
    pub fn range(&self) -> LockRange {
        LockRange {
            kind: if self.exclusive { LockKind::Exclusive } else { LockKind::Shared },
            whole_file: self.whole_file,
            owner: self.owner.owner,
            process: self.process,
            start: self.start,
            end: self.end,
        }
    }

    fn overlaps(&self, other: &Lock) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    fn conflicts(&self, other: &Lock) -> bool {
        self.owner != other.owner
            && self.whole_file == other.whole_file
            && (self.exclusive || other.exclusive)
            && self.overlaps(other)
    }

    fn same_set(&self, other: &Lock) -> bool {
        self.owner == other.owner && self.whole_file == other.whole_file
    }
}

/// A change of the rows of held locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowChange {
    Put(u64, Lock),
    Remove(u64, Lock),
}

/// The outcome of a request for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    Done,
    Queued,
    /// It conflicts and was not to wait (`EAGAIN`).
    Conflict,
    /// Waiting would close a circle (`EDEADLK`).
    Deadlock,
    /// Too many locks or waiters on the inode, of the session, or in all (`ENOLCK`).
    TooMany,
}

/// The greatest numbers of locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    pub of_session: usize,
    pub in_all: usize,
    /// Locks that a session may have, however many the others have.
    pub share: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { of_session: usize::MAX, in_all: usize::MAX, share: usize::MAX }
    }
}

/// Held and queued locks of each session.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    sessions: BTreeMap<u64, usize>,
    in_all: usize,
}

impl Counts {
    fn add(&mut self, lock: &Lock) {
        *self.sessions.entry(lock.owner.session).or_default() += 1;
        self.in_all += 1;
    }

    fn remove(&mut self, lock: &Lock) {
        let session = lock.owner.session;
        let count = self.sessions.get_mut(&session).expect("locks are counted");
        *count -= 1;
        if *count == 0 {
            self.sessions.remove(&session);
        }
        self.in_all -= 1;
    }

    fn has_room(&self, session: u64, bounds: &Bounds) -> bool {
        let count = self.sessions.get(&session).copied().unwrap_or(0);
        count < bounds.of_session && (self.in_all < bounds.in_all || count < bounds.share)
    }
}

/// Most held locks, and most queued ones, of one inode.
pub const LOCKS_MAX: usize = 4096;

#[derive(Debug, Default)]
struct File {
    held: Vec<Lock>,
    queue: VecDeque<Lock>,
}

/// The locks of all inodes.
#[derive(Debug, Default)]
pub struct Locks {
    files: BTreeMap<u64, File>,
    counts: Counts,
    bounds: Bounds,
}

/// The effects of a change of locks.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Effects {
    pub rows: Vec<RowChange>,
    /// Queued locks that were taken: inode and lock.
    pub granted: Vec<(u64, Lock)>,
}

impl Locks {
    /// An empty table, which does not get larger than this.
    pub fn new(bounds: Bounds) -> Locks {
        Locks { bounds, ..Locks::default() }
    }

    /// Puts back a held lock at start.
    pub fn restore(&mut self, inode: u64, lock: Lock) {
        self.counts.add(&lock);
        self.files.entry(inode).or_default().held.push(lock);
    }

    /// Held locks of an inode.
    pub fn held(&self, inode: u64) -> &[Lock] {
        self.files.get(&inode).map_or(&[], |file| &file.held)
    }

    /// The first lock that conflicts with `lock`, by its start.
    pub fn conflict(&self, inode: u64, lock: &Lock) -> Option<Lock> {
        self.held(inode).iter().filter(|held| held.conflicts(lock)).min_by_key(|l| l.start).copied()
    }

    /// Sessions whose locks conflict with `lock`, each once.
    pub fn in_the_way(&self, inode: u64, lock: &Lock) -> BTreeSet<u64> {
        let held = self.held(inode).iter().filter(|held| held.conflicts(lock));
        held.map(|held| held.owner.session).collect()
    }

    /// Takes a lock, queues it, or refuses it.
    pub fn take(&mut self, inode: u64, lock: Lock, wait: bool, effects: &mut Effects) -> Taken {
        if self.files.get(&inode).is_some_and(|file| file.queue.contains(&lock)) {
            return Taken::Queued;
        }
        if !self.has_room(inode, &lock) {
            return Taken::TooMany;
        }
        let counts = &mut self.counts;
        let file = self.files.entry(inode).or_default();
        let conflict = file.held.iter().any(|held| held.conflicts(&lock));
        let behind = wait && file.waits_behind(&lock, file.queue.len());
        if !conflict && !behind {
            file.insert(inode, lock, effects, counts);
            self.grant_queued(inode, effects);
            return Taken::Done;
        }
        if !wait {
            if lock.whole_file {
                // As Linux does it: a conversion that is refused has given up the old lock.
                file.erase(inode, &lock, effects, counts);
                self.grant_queued(inode, effects);
            }
            return Taken::Conflict;
        }
        if lock.whole_file {
            // As `flock` does: a conversion first gives up the old lock. Two sharers that both want
            // to be alone would wait for each other for ever otherwise.
            file.erase(inode, &lock, effects, counts);
        } else if self.closes_circle(inode, &lock) {
            return Taken::Deadlock;
        }
        self.counts.add(&lock);
        self.files.entry(inode).or_default().queue.push_back(lock);
        // Others, or this very request, may wait for the lock that a conversion gave up.
        self.grant_queued(inode, effects);
        let queued = self.files.get(&inode).is_some_and(|file| file.queue.contains(&lock));
        if queued {
            return Taken::Queued;
        }
        effects.granted.retain(|granted| *granted != (inode, lock));
        Taken::Done
    }

    /// Gives up a range of an owner: `Done`, or `TooMany` where a lock would become two and one more is
    /// too many.
    pub fn release(&mut self, inode: u64, range: Lock, effects: &mut Effects) -> Taken {
        let Some(file) = self.files.get(&inode) else { return Taken::Done };
        let splits =
            |held: &Lock| held.same_set(&range) && held.start < range.start && range.end < held.end;
        if file.held.iter().any(splits) && !self.has_room(inode, &range) {
            return Taken::TooMany;
        }
        if let Some(file) = self.files.get_mut(&inode) {
            file.erase(inode, &range, effects, &mut self.counts);
            self.grant_queued(inode, effects);
        }
        Taken::Done
    }

    /// Whether there may be one more lock of this owner on the inode.
    fn has_room(&self, inode: u64, lock: &Lock) -> bool {
        let full = |file: &File| file.held.len() >= LOCKS_MAX || file.queue.len() >= LOCKS_MAX;
        let full = self.files.get(&inode).is_some_and(full);
        !full && self.counts.has_room(lock.owner.session, &self.bounds)
    }

    /// Takes a lock out of the queue. False where it is not there.
    pub fn cancel(&mut self, inode: u64, lock: &Lock, effects: &mut Effects) -> bool {
        let Some(file) = self.files.get_mut(&inode) else { return false };
        let before = file.queue.len();
        file.queue.retain(|queued| queued != lock);
        let removed = before - file.queue.len();
        (0..removed).for_each(|_| self.counts.remove(lock));
        let removed = removed > 0;
        self.grant_queued(inode, effects);
        removed
    }

    /// All locks of one owner on an inode fall, queued ones too.
    pub fn release_owner(
        &mut self,
        inode: u64,
        owner: Owner,
        whole_file: bool,
        effects: &mut Effects,
    ) {
        self.retain(inode, effects, |lock| lock.owner != owner || lock.whole_file != whole_file);
    }

    /// Inodes on which a session holds or waits for locks.
    pub fn inodes_of(&self, session: u64) -> Vec<u64> {
        if !self.counts.sessions.contains_key(&session) {
            return Vec::new();
        }
        let his = |file: &File| {
            file.held.iter().chain(&file.queue).any(|lock| lock.owner.session == session)
        };
        self.files.iter().filter(|(_, file)| his(file)).map(|(inode, _)| *inode).collect()
    }

    /// All locks of a session on an inode fall.
    pub fn release_session(&mut self, inode: u64, session: u64, effects: &mut Effects) {
        self.retain(inode, effects, |lock| lock.owner.session != session);
    }

    /// All locks of an inode fall: it is gone.
    pub fn release_inode(&mut self, inode: u64, effects: &mut Effects) {
        self.retain(inode, effects, |_| false);
    }

    fn retain(&mut self, inode: u64, effects: &mut Effects, keep: impl Fn(&Lock) -> bool) {
        let Some(file) = self.files.get_mut(&inode) else { return };
        let gone = file.held.iter().filter(|lock| !keep(lock));
        effects.rows.extend(gone.map(|lock| RowChange::Remove(inode, *lock)));
        let gone = file.held.iter().chain(&file.queue).filter(|lock| !keep(lock));
        gone.for_each(|lock| self.counts.remove(lock));
        file.held.retain(&keep);
        file.queue.retain(&keep);
        self.grant_queued(inode, effects);
    }

    /// Takes all queued locks that can be taken now, earliest first.
    fn grant_queued(&mut self, inode: u64, effects: &mut Effects) {
        let Some(file) = self.files.get_mut(&inode) else { return };
        let mut at = 0;
        while at < file.queue.len() {
            let lock = file.queue[at];
            let conflict = file.held.iter().any(|held| held.conflicts(&lock));
            if conflict || file.waits_behind(&lock, at) {
                at += 1;
                continue;
            }
            file.queue.remove(at);
            self.counts.remove(&lock);
            file.insert(inode, lock, effects, &mut self.counts);
            effects.granted.push((inode, lock));
            // It may have been a downgrade that lets earlier ones in.
            at = 0;
        }
        if file.held.is_empty() && file.queue.is_empty() {
            self.files.remove(&inode);
        }
    }

    /// Whether waiting for `lock` would make its owner wait for itself.
    fn closes_circle(&self, inode: u64, lock: &Lock) -> bool {
        let mut seen = BTreeSet::new();
        let mut open = self.blockers(inode, lock);
        while let Some(owner) = open.pop() {
            if owner == lock.owner {
                return true;
            }
            if seen.insert(owner) {
                for (inode, file) in &self.files {
                    for queued in file.queue.iter().filter(|queued| queued.owner == owner) {
                        open.extend(self.blockers(*inode, queued));
                    }
                }
            }
        }
        false
    }

    /// Owners whose going would be needed before `lock` can be taken.
    fn blockers(&self, inode: u64, lock: &Lock) -> Vec<Owner> {
        let Some(file) = self.files.get(&inode) else { return Vec::new() };
        let before = file.queue.iter().position(|queued| queued == lock);
        let earlier = file.queue.iter().take(before.unwrap_or(file.queue.len()));
        let held = file.held.iter();
        held.chain(earlier).filter(|other| other.conflicts(lock)).map(|other| other.owner).collect()
    }

    /// Whether the invariants hold; the inode where not.
    pub fn check(&self) -> Result<(), u64> {
        let mut counts = Counts::default();
        for (inode, file) in &self.files {
            file.held.iter().chain(&file.queue).for_each(|lock| counts.add(lock));
            for (at, lock) in file.held.iter().enumerate() {
                let rest = &file.held[at + 1..];
                let overlap = |other: &Lock| lock.same_set(other) && lock.overlaps(other);
                let clash = |other: &Lock| lock.conflicts(other) || overlap(other);
                if lock.start > lock.end || rest.iter().any(clash) {
                    return Err(*inode);
                }
            }
            for (at, lock) in file.queue.iter().enumerate() {
                if !file.held.iter().any(|held| held.conflicts(lock))
                    && !file.waits_behind(lock, at)
                {
                    return Err(*inode);
                }
            }
        }
        if counts == self.counts { Ok(()) } else { Err(0) }
    }
}

impl File {
    /// Whether one of the first `count` queued locks has to go first. One that waits for a lock of
    /// this very owner does not: the owner would wait for itself.
    fn waits_behind(&self, lock: &Lock, count: usize) -> bool {
        self.queue.iter().take(count).any(|earlier| {
            let waits_for_owner =
                || self.held.iter().any(|held| held.owner == lock.owner && held.conflicts(earlier));
            earlier.conflicts(lock) && !waits_for_owner()
        })
    }

    /// Lays a lock over its owner's locks: the new kind wins, neighbours of its kind join.
    fn insert(&mut self, inode: u64, lock: Lock, effects: &mut Effects, counts: &mut Counts) {
        self.erase(inode, &lock, effects, counts);
        let mut merged = lock;
        let joins = |held: &Lock| {
            held.same_set(&lock)
                && held.exclusive == lock.exclusive
                && (held.end.checked_add(1) == Some(lock.start)
                    || lock.end.checked_add(1) == Some(held.start))
        };
        for held in self.held.iter().filter(|held| joins(held)) {
            merged.start = merged.start.min(held.start);
            merged.end = merged.end.max(held.end);
            effects.rows.push(RowChange::Remove(inode, *held));
            counts.remove(held);
        }
        self.held.retain(|held| !joins(held));
        self.held.push(merged);
        counts.add(&merged);
        effects.rows.push(RowChange::Put(inode, merged));
    }

    /// Takes a range away from its owner, splitting locks that reach beyond it on either side.
    fn erase(&mut self, inode: u64, range: &Lock, effects: &mut Effects, counts: &mut Counts) {
        let mut left = Vec::new();
        for held in self.held.iter().filter(|held| held.same_set(range) && held.overlaps(range)) {
            effects.rows.push(RowChange::Remove(inode, *held));
            counts.remove(held);
            if held.start < range.start {
                left.push(Lock { end: range.start - 1, ..*held });
            }
            if held.end > range.end {
                left.push(Lock { start: range.end + 1, ..*held });
            }
        }
        self.held.retain(|held| !(held.same_set(range) && held.overlaps(range)));
        effects.rows.extend(left.iter().map(|lock| RowChange::Put(inode, *lock)));
        left.iter().for_each(|lock| counts.add(lock));
        self.held.extend(left);
    }
}

#[cfg(test)]
mod tests;
