//! Virtual clock and blocking work.
//!
//! Invariant: offloaded work runs as one step at its due time, or never: a sync that had not
//! completed when its node died has not happened.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_base::world::{Clock, Offload, Work};

/// The calendar at virtual time zero: 2027-01-15 08:00 UTC, in nanoseconds since 1970.
const UNIX_START: i64 = 1_800_000_000_000_000_000;

/// The clock of all nodes. Cloning gives another hand of the same clock; each node has a calendar of its own.
#[derive(Clone, Default)]
pub(crate) struct SimClock {
    now: Rc<Cell<Time>>,
    /// Nanoseconds by which the node's calendar is ahead of the true one.
    ahead: Rc<Cell<i64>>,
}

impl SimClock {
    pub(crate) fn set(&self, now: Time) {
        assert!(now >= self.now.get(), "virtual time runs backwards");
        self.now.set(now);
    }

    /// The same clock with this calendar.
    pub(crate) fn with(&self, ahead: &Rc<Cell<i64>>) -> SimClock {
        SimClock { now: self.now.clone(), ahead: ahead.clone() }
    }
}

impl Clock for SimClock {
    fn now(&self) -> Time {
        self.now.get()
    }

    fn unix_nanos(&self) -> i64 {
        let passed = i64::try_from(self.now.get().0).unwrap_or(i64::MAX - UNIX_START);
        (UNIX_START + passed).saturating_add(self.ahead.get())
    }
}

/// The blocking work of one life of a node.
pub(crate) struct SimOffload {
    clock: SimClock,
    random: RefCell<Random>,
    /// The duration of work: the minimum, and the largest random addition to it.
    delay: (Duration, Duration),
    waiting: RefCell<BTreeMap<(Time, u64), Work>>,
    count: Cell<u64>,
}

impl SimOffload {
    pub(crate) fn new(clock: SimClock, random: Random, delay: (Duration, Duration)) -> SimOffload {
        let waiting = RefCell::new(BTreeMap::new());
        let random = RefCell::new(random);
        SimOffload { clock, random, delay, waiting, count: Cell::new(0) }
    }

    /// When the next work is done.
    pub(crate) fn next_due(&self) -> Option<Time> {
        self.waiting.borrow().keys().next().map(|(due, _)| *due)
    }

    /// Runs the first work that is due at `now`; false if there is none.
    pub(crate) fn run_one(&self, now: Time) -> bool {
        let work = {
            let mut waiting = self.waiting.borrow_mut();
            match waiting.first_entry() {
                Some(entry) if entry.key().0 <= now => entry.remove(),
                _ => return false,
            }
        };
        // Run with no borrow held: the result wakes a task, and the work may offload more.
        work();
        true
    }

    /// Forgets all work.
    pub(crate) fn clear(&self) {
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        drop(waiting);
    }
}

impl Offload for SimOffload {
    fn offload(&self, work: Work) {
        let (from, more) = self.delay;
        let more = u64::try_from(more.as_nanos()).unwrap_or(u64::MAX - 1);
        let extra = Duration::from_nanos(self.random.borrow_mut().below(more + 1));
        let due = self.clock.now() + from + extra;
        let number = self.count.get();
        self.count.set(number + 1);
        self.waiting.borrow_mut().insert((due, number), work);
    }
}
