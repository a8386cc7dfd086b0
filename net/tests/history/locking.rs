//! Locks: who has which one, and what it protects.

use std::time::Duration;

use ropewalk_base::time::Time;
use ropewalk_net::{Fault, OperationId};

use super::ops::{Got, Moment, NEVER, Op, UnderLock, What};
use super::setting::{LOCKED, NODES};
use super::{History, locked_word};

/// What an endpoint does with a lock.
#[derive(Debug, Clone, Copy)]
struct Walk {
    target: usize,
    exclusive: bool,
    lock: u64,
    id: Option<OperationId>,
    /// Links of the two that had been cut when it asked.
    cuts: u64,
    /// Its request was at the owner by then, for sure.
    arrived: u64,
    granted: Option<Moment>,
    /// A session had ended while it had the lock.
    after_death: bool,
    /// What it protects was read by this operation, and the lock goes back then.
    kept: Option<(usize, Time)>,
}

/// A time in which somebody had a lock.
#[derive(Debug)]
pub(super) struct Section {
    pub target: usize,
    pub read: usize,
    /// The write of a value that is used once.
    pub write: Option<(usize, u64)>,
    /// When the lock was given back.
    pub ended: Moment,
    /// Its session, or the one of somebody before, may have ended within: then what it protects is not known any more.
    pub is_void: bool,
}

#[derive(Debug, Default)]
pub struct Locking {
    walks: [Option<Walk>; NODES],
    sections: Vec<Section>,
    granted: u64,
    /// Puts for which the lock was free.
    at_once: u64,
    /// What the one who has a lock writes next.
    value: u64,
}

impl Locking {
    pub fn is_busy(&self) -> bool {
        self.walks.iter().any(Option::is_some)
    }

    /// The lock that an endpoint gives back.
    pub fn held_by(&self, origin: usize) -> OperationId {
        self.walks[origin].and_then(|walk| walk.id).expect("it has a lock")
    }

    /// This operation asked for a lock.
    pub fn note(&mut self, user: u64, origin: usize, id: OperationId) {
        if let Some(walk) = self.walks[origin].as_mut().filter(|walk| walk.lock == user) {
            walk.id = Some(id);
        }
    }

    /// The value that was made last.
    pub fn value(&self) -> u64 {
        self.value
    }

    /// A value that nobody wrote before.
    pub fn next_value(&mut self) -> u64 {
        self.value += 1;
        self.value
    }

    /// Each who had a lock found what was written before it. How many there were, and how many puts found it free.
    pub fn check(&self, ops: &[Op], regions: &[Vec<u8>]) -> (u64, u64) {
        for (target, region) in regions.iter().enumerate() {
            let at = LOCKED as usize;
            let end = u64::from_le_bytes(region[at..at + 8].try_into().expect("a word"));
            let sections: Vec<_> = self.sections.iter().filter(|it| it.target == target).collect();
            locked_word::check(ops, &sections, target, end);
        }
        (self.granted, self.at_once)
    }
}

impl History {
    /// Wants a lock, if it wants none yet.
    pub(super) fn want_lock(&mut self, origin: usize, target: usize) {
        if self.locking.walks[origin].is_some() {
            return;
        }
        let exclusive = self.world.random.below(3) > 0;
        let lock = self.walk(origin, target, exclusive);
        self.post(origin, target, What::Lock { exclusive });
        if self.world.setting.cancels && self.world.random.below(3) == 0 {
            self.cancel(lock);
        }
        if self.world.setting.in_order() && self.pending.contains_key(&lock) {
            self.post(origin, target, What::Probe);
        }
    }

    /// Puts under a lock, if it wants none yet.
    pub(super) fn put_under_lock(&mut self, origin: usize, target: usize) {
        if self.locking.walks[origin].is_some() {
            return;
        }
        let Some(what) = self.any_under_lock(target) else { return };
        let lock = self.walk(origin, target, matches!(what, UnderLock::Word { .. }));
        self.post(origin, target, What::LockedPut { what });
        if self.world.setting.cancels && self.world.random.below(4) == 0 {
            self.cancel(lock);
        }
    }

    /// The next operation asks for a lock. Its number.
    fn walk(&mut self, origin: usize, target: usize, exclusive: bool) -> u64 {
        let cuts = self.world.cuts_between(origin, target);
        let lock = self.ops.len() as u64;
        let (id, arrived, granted, after_death) = (None, NEVER, None, false);
        let kept = None;
        self.locking.walks[origin] =
            Some(Walk { target, exclusive, lock, id, cuts, arrived, granted, after_death, kept });
        lock
    }

    pub(super) fn lock_learned(&mut self, user: usize, bits: u64) {
        let (origin, target, what, outcome) = {
            let op = &self.ops[user];
            (op.origin, op.target, op.what, op.outcome.expect("it ended"))
        };
        let Some(walk) = self.locking.walks[origin] else { return };
        match what {
            What::Probe => {
                let is_after = self.ops[user].posted > self.ops[walk.lock as usize].posted;
                let shows = outcome.is_ok() && walk.target == target && is_after;
                let walk = self.locking.walks[origin].as_mut().expect("it walks");
                walk.arrived = if shows { self.moment } else { walk.arrived };
            }
            What::LockedPut { .. } if self.ops[user].got == Got::Put => {
                self.locking.at_once += 1;
                self.judge_entry(origin, self.ops[user].posted, false);
                self.locking.walks[origin] = None;
            }
            What::Lock { .. } | What::LockedPut { .. } if outcome.is_ok() => {
                self.granted(origin, bits == 1);
            }
            What::Lock { .. } | What::LockedPut { .. } => {
                assert!(outcome == Err(Fault::Cancelled) || self.world.setting.ends());
                self.locking.walks[origin] = None;
            }
            What::ReadLocked => self.read_under_lock(origin, user),
            _ => {}
        }
    }

    fn is_cut(&self, origin: usize, walk: &Walk) -> bool {
        self.world.setting.ends() && self.world.cuts_between(origin, walk.target) != walk.cuts
    }

    /// One has a lock.
    fn granted(&mut self, origin: usize, died: bool) {
        self.locking.granted += 1;
        assert!(!died || self.world.setting.ends(), "no session ended");
        self.judge_entry(origin, NEVER, died);
        let now = self.moment;
        let walk = self.locking.walks[origin].as_mut().expect("it asked");
        (walk.granted, walk.after_death) = (Some(now), died);
        let target = walk.target;
        self.post(origin, target, What::ReadLocked);
    }

    /// Nobody else has a lock who may not and had it before this moment, and nobody is passed who asked before.
    fn judge_entry(&self, origin: usize, since: Moment, died: bool) {
        let own = self.locking.walks[origin].expect("it asked");
        for other in (0..NODES).filter(|other| *other != origin) {
            let Some(walk) = self.locking.walks[other].filter(|walk| walk.target == own.target)
            else {
                continue;
            };
            // A session that was just beginning when its link was cut may end much later.
            let may_be_dead = died || self.is_cut(other, &walk);
            let share = !own.exclusive && !walk.exclusive;
            let (lock, asked) = (&self.ops[own.lock as usize], &self.ops[walk.lock as usize]);
            match walk.granted {
                Some(granted) if granted < since => {
                    assert!(share || may_be_dead, "two have a lock: {lock:?} and {asked:?}");
                }
                Some(_) => {}
                None if share || may_be_dead || asked.cancelled => {}
                None => assert!(walk.arrived > lock.posted, "{lock:?} passed {asked:?}"),
            }
        }
    }

    /// The word that the lock protects is known. Some keep the lock, while all links rest.
    fn read_under_lock(&mut self, origin: usize, read: usize) {
        let keeps = self.world.setting.parks && self.world.random.below(4) == 0;
        let long = Duration::from_millis(if keeps { 2500 } else { 0 });
        let until = self.world.now() + long;
        self.locking.walks[origin].as_mut().expect("it has a lock").kept = Some((read, until));
        self.give_locks_back();
    }

    /// Those who kept a lock for so long as they wanted give it back.
    pub(super) fn give_locks_back(&mut self) {
        for origin in 0..NODES {
            let kept = self.locking.walks[origin].and_then(|walk| walk.kept);
            if let Some((read, _)) = kept.filter(|(_, until)| *until <= self.world.now()) {
                self.give_lock_back(origin, read);
            }
        }
    }

    /// The word is written, and the lock goes back, without a wait.
    fn give_lock_back(&mut self, origin: usize, read: usize) {
        let walk = self.locking.walks[origin].expect("it has a lock");
        self.locking.walks[origin].as_mut().expect("it walks").kept = None;
        let mut write = None;
        if walk.exclusive && !self.ops[read].words().is_empty() {
            let value = self.locking.next_value();
            write = Some((self.post(origin, walk.target, What::WriteLocked), value));
        }
        let is_void = walk.after_death || self.is_cut(origin, &walk);
        let (target, ended) = (walk.target, self.moment);
        self.locking.sections.push(Section { target, read, write, ended, is_void });
        self.post(origin, walk.target, What::Unlock);
        self.locking.walks[origin] = None;
    }
}
