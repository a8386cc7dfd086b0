//! The passes over the rails: which of them ask for the time, and which rails they poll.
//!
//! Most passes of a thread that spins are short: they do not ask for the time, and poll only rails that see work.
//! They may be late for timers and news of the kernel only, so that few of them are enough to make spinning cheap.
//! A thread that makes passes seldom makes none of these: they end with the tick in which they began.
//!
//! Invariant: after [`SHORT_PASSES_MAX`] short passes, after a tick, and after a sleep, comes one that asks for the
//! time. A rail is passed over for [`QUIET_FOR`] at most while it sees no work.

use std::sync::Arc;
use std::time::Duration;

use ropewalk_base::time::Time;
use ropewalk_rail::Sight;

/// A monotonic clock that threads share.
pub type SharedClock = Arc<dyn Fn() -> Time + std::marker::Send + Sync>;

/// Short passes at a stretch.
const SHORT_PASSES_MAX: u32 = 15;

/// The time for which a rail that sees no work is not polled beside others: a look at quiet sockets costs as much as
/// a message through shared memory.
const QUIET_FOR: Duration = Duration::from_micros(10);

/// The kernel's coarse time, of some milliseconds, which costs next to nothing to read: seconds and
/// nanoseconds.
type Tick = (i64, i64);

fn kernel_tick() -> Tick {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    (time.tv_sec, time.tv_nsec)
}

/// A tick of virtual time lasts so many nanoseconds.
const VIRTUAL_TICK: u64 = 4_000_000;

pub(crate) struct Passes {
    /// A clock of virtual time, from which ticks are taken: the kernel's would be chance.
    virtual_time: Option<SharedClock>,
    /// So far.
    count: u64,
    /// Passes since the last one that asked for the time, and the tick of that one.
    short_passes: u32,
    tick: Tick,
    /// By rail: when it was polled last.
    polled: Vec<Time>,
}

/// One pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pass {
    /// It does not ask for the time.
    pub is_short: bool,
    /// It began in the tick of the pass before.
    same_tick: bool,
}

impl Passes {
    pub fn new(virtual_time: Option<SharedClock>) -> Passes {
        let short_passes = SHORT_PASSES_MAX;
        Passes { virtual_time, count: 0, short_passes, tick: (0, 0), polled: Vec::new() }
    }

    #[inline(always)]
    fn now_tick(&self) -> Tick {
        match &self.virtual_time {
            None => kernel_tick(),
            Some(clock) => ((clock().0 / VIRTUAL_TICK) as i64, 0),
        }
    }

    /// The next rail. It is polled in the next pass.
    pub fn add_rail(&mut self) {
        self.polled.push(Time::ZERO);
    }

    /// Passes so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// A pass begins. `may_be_short`: whether nothing in it depends on the time.
    #[inline(always)]
    pub fn begin(&mut self, may_be_short: impl FnOnce() -> bool) -> Pass {
        self.begin_in(self.now_tick(), may_be_short)
    }

    #[inline(always)]
    fn begin_in(&mut self, tick: Tick, may_be_short: impl FnOnce() -> bool) -> Pass {
        self.count += 1;
        let same_tick = self.tick == tick;
        let is_short = self.short_passes < SHORT_PASSES_MAX && same_tick && may_be_short();
        if is_short {
            self.short_passes += 1;
        } else {
            self.short_passes = 0;
            self.tick = tick;
        }
        Pass { is_short, same_tick }
    }

    /// Whether this pass polls a rail, at `now`. A rail with nothing in sight is passed over: others need the time that
    /// asking the kernel costs.
    #[inline(always)]
    pub fn polls(
        &mut self,
        pass: Pass,
        index: usize,
        now: Time,
        sight: impl FnOnce() -> Sight,
    ) -> bool {
        if self.polled.len() > 1 && pass.same_tick && self.may_pass_over(pass, index, now, sight())
        {
            return false;
        }
        self.polled[index] = now;
        true
    }

    #[inline]
    fn may_pass_over(&self, pass: Pass, index: usize, now: Time, sight: Sight) -> bool {
        let recent = now.since(self.polled[index]) < QUIET_FOR;
        (pass.is_short && sight != Sight::Work) || (sight == Sight::Nothing && recent)
    }

    /// A sleep is over: the next pass asks for the time and polls every rail.
    pub fn slept(&mut self) {
        self.short_passes = SHORT_PASSES_MAX;
        self.polled.fill(Time::ZERO);
    }

    /// A sleep is over in which no rail had anything to say: it counts as a pass at `now` that found nothing.
    pub fn slept_quietly(&mut self, now: Time) {
        self.short_passes = 0;
        self.tick = self.now_tick();
        self.polled.fill(now);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::*;

    fn passes(rails: usize) -> Passes {
        let mut passes = Passes::new(None);
        (0..rails).for_each(|_| passes.add_rail());
        passes
    }

    #[test]
    fn short_passes_end_after_some_with_a_tick_and_with_a_sleep() {
        let mut passes = passes(1);
        assert!(!passes.begin_in((1, 0), || true).is_short, "the first one asks for the time");
        for _ in 0..SHORT_PASSES_MAX {
            assert!(passes.begin_in((1, 0), || true).is_short);
        }
        assert!(!passes.begin_in((1, 0), || true).is_short, "enough of them");
        assert!(!passes.begin_in((1, 0), || false).is_short, "something depends on the time");
        assert!(passes.begin_in((1, 0), || true).is_short);
        assert!(!passes.begin_in((2, 0), || true).is_short, "a tick later");
        passes.slept();
        assert!(!passes.begin_in((2, 0), || true).is_short, "after a sleep");
        assert_eq!(passes.count(), 21);
    }

    #[test]
    fn ticks_of_virtual_time_follow_its_clock_alone() {
        let now = Arc::new(AtomicU64::new(VIRTUAL_TICK));
        let hand = now.clone();
        let mut passes = Passes::new(Some(Arc::new(move || Time(hand.load(Relaxed)))));
        assert!(!passes.begin(|| true).is_short);
        std::thread::sleep(Duration::from_millis(20));
        assert!(passes.begin(|| true).is_short, "no virtual time has passed");
        now.store(2 * VIRTUAL_TICK, Relaxed);
        assert!(!passes.begin(|| true).is_short, "a tick later");
    }

    #[test]
    fn a_quiet_rail_is_passed_over_beside_others_for_a_short_time() {
        let mut passes = passes(2);
        let at = |micros| Time::ZERO + Duration::from_micros(micros);
        passes.begin_in((1, 0), || true);
        let whole = Pass { is_short: false, same_tick: true };
        assert!(passes.polls(whole, 0, at(100), || Sight::Nothing));
        assert!(!passes.polls(whole, 0, at(105), || Sight::Nothing));
        assert!(passes.polls(whole, 0, at(106), || Sight::Blind));
        assert!(passes.polls(whole, 0, at(116), || Sight::Nothing));
        let short = Pass { is_short: true, ..whole };
        assert!(!passes.polls(short, 0, at(200), || Sight::Blind));
        assert!(passes.polls(short, 0, at(200), || Sight::Work));
        let late = Pass { is_short: false, same_tick: false };
        assert!(passes.polls(late, 0, at(200), || Sight::Nothing), "a tick later all are polled");
        passes.slept();
        assert!(passes.polls(whole, 0, at(200), || Sight::Nothing), "after a sleep, too");
    }

    #[test]
    fn the_only_rail_is_never_passed_over() {
        let mut passes = passes(1);
        let short = Pass { is_short: true, same_tick: true };
        assert!(passes.polls(short, 0, Time::ZERO, || unreachable!("nobody looks")));
    }
}
