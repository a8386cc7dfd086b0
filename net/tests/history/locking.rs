//! Locks: who has which one, and what it protects.

use std::time::Duration;

use ropewalk_base::time::Time;
use ropewalk_net::{Fault, OperationId};

use super::History;
use super::ops::{NEVER, Op, What};
use super::setting::NODES;

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
    granted: bool,
    /// A session had ended while it had the lock.
    after_death: bool,
    /// What it protects was read by this operation, and the lock goes back then.
    kept: Option<(usize, Time)>,
}

/// A time in which somebody had a lock.
#[derive(Debug)]
struct Section {
    target: usize,
    read: usize,
    write: Option<usize>,
    /// Its session, or the one of somebody before, may have ended within: then what it protects is not known any more.
    is_void: bool,
}

#[derive(Debug, Default)]
pub struct Locking {
    walks: [Option<Walk>; NODES],
    sections: Vec<Section>,
    granted: u64,
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

    /// What the one who has a lock writes.
    pub fn value(&self) -> u64 {
        self.value
    }

    /// Each who had a lock found what the one before it had written. How many there were.
    pub fn check(&self, ops: &[Op]) -> u64 {
        for target in 0..NODES {
            let sections = self.sections.iter().filter(|it| it.target == target);
            let mut expected = Some(0);
            for section in sections.take_while(|it| !it.is_void) {
                let read = &ops[section.read];
                let Some(value) = read.words().first() else { break };
                if let Some(expected) = expected {
                    assert_eq!(
                        *value, expected,
                        "under the lock of {target}: {section:?}, {read:?}"
                    );
                }
                if let Some(write) = section.write {
                    expected = ops[write].is_certain().then_some(value + 1);
                }
                if expected.is_none() {
                    break;
                }
            }
        }
        self.granted
    }
}

impl History {
    /// Wants a lock, if it wants none yet.
    pub(super) fn want_lock(&mut self, origin: usize, target: usize) {
        if self.locking.walks[origin].is_some() {
            return;
        }
        let exclusive = self.world.random.below(3) > 0;
        let cuts = self.world.cuts_between(origin, target);
        let lock = self.ops.len() as u64;
        let (id, arrived, granted, after_death) = (None, NEVER, false, false);
        let kept = None;
        self.locking.walks[origin] =
            Some(Walk { target, exclusive, lock, id, cuts, arrived, granted, after_death, kept });
        self.post(origin, target, What::Lock { exclusive });
        if self.world.setting.cancels && self.world.random.below(3) == 0 {
            self.cancel(lock);
        }
        if self.world.setting.in_order() && self.pending.contains_key(&lock) {
            self.post(origin, target, What::Probe);
        }
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
            What::Lock { .. } if outcome.is_ok() => self.granted(origin, bits == 1),
            What::Lock { .. } => {
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

    /// One has a lock: nobody else has it who may not, and nobody is passed who asked before.
    fn granted(&mut self, origin: usize, died: bool) {
        self.locking.granted += 1;
        let own = self.locking.walks[origin].expect("it asked");
        assert!(!died || self.world.setting.ends(), "no session ended");
        for other in (0..NODES).filter(|other| *other != origin) {
            let Some(walk) = self.locking.walks[other].filter(|walk| walk.target == own.target)
            else {
                continue;
            };
            // A session that was just beginning when its link was cut may end much later.
            let may_be_dead = died || self.is_cut(other, &walk);
            let share = !own.exclusive && !walk.exclusive;
            let (lock, asked) = (&self.ops[own.lock as usize], &self.ops[walk.lock as usize]);
            if walk.granted {
                assert!(share || may_be_dead, "two have a lock: {lock:?} and {asked:?}");
            } else if !share && !may_be_dead && !asked.cancelled {
                assert!(walk.arrived > lock.posted, "{lock:?} passed {asked:?}");
            }
        }
        let walk = self.locking.walks[origin].as_mut().expect("it asked");
        (walk.granted, walk.after_death) = (true, died);
        self.post(origin, own.target, What::ReadLocked);
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
        if let Some(value) = self.ops[read].words().first().copied().filter(|_| walk.exclusive) {
            self.locking.value = value + 1;
            write = Some(self.post(origin, walk.target, What::WriteLocked));
        }
        let is_void = walk.after_death || self.is_cut(origin, &walk);
        let target = walk.target;
        self.locking.sections.push(Section { target, read, write, is_void });
        self.post(origin, walk.target, What::Unlock);
        self.locking.walks[origin] = None;
    }
}
