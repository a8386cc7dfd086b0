//! Deadlines of one kind: all of the same length, so that a queue keeps them in order.
//!
//! Invariant: entries are never searched; an entry whose link has moved on is recognised when it is taken out, and
//! the queue is swept if such entries outnumber the links.

use std::collections::VecDeque;
use std::time::Duration;

use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;

/// A deadline that was set for a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timer {
    /// When.
    pub at: Time,
    /// The link that it belongs to.
    pub link: SlotId,
    /// The value of the link's progress counter when the deadline was set.
    pub mark: u32,
}

/// Deadlines in the order in which they come.
#[derive(Debug)]
pub struct Timers {
    length: Duration,
    queue: VecDeque<Timer>,
}

impl Timers {
    /// No deadlines; each will lie `length` ahead of its setting.
    pub fn new(length: Duration) -> Timers {
        Timers { length, queue: VecDeque::new() }
    }

    /// Sets a deadline.
    pub fn set(&mut self, now: Time, link: SlotId, mark: u32) {
        // Moments given to `connect` and `poll` come from one clock, yet a caller may round.
        let latest = self.queue.back().map_or(Time::ZERO, |timer| timer.at);
        self.queue.push_back(Timer { at: (now + self.length).max(latest), link, mark });
    }

    /// The next deadline that has come.
    pub fn pop(&mut self, now: Time) -> Option<Timer> {
        if self.queue.front()?.at <= now { self.queue.pop_front() } else { None }
    }

    /// The next deadline.
    pub fn next(&self) -> Option<Time> {
        self.queue.front().map(|timer| timer.at)
    }

    /// Drops the entries that are not `live`, where there are many more than `links`.
    pub fn sweep(&mut self, links: usize, live: impl FnMut(&Timer) -> bool) {
        if self.queue.len() > 2 * links + 64 {
            self.queue.retain(live);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_come_in_order_and_sweeping_bounds_them() {
        let mut timers = Timers::new(Duration::from_nanos(10));
        let link = |index| SlotId { index, generation: 1 };
        for index in 0..100 {
            timers.set(Time(u64::from(index)), link(index), 0);
        }
        assert_eq!(timers.next(), Some(Time(10)));
        assert_eq!(timers.pop(Time(9)), None);
        assert_eq!(timers.pop(Time(10)).map(|timer| timer.link), Some(link(0)));
        timers.sweep(10, |timer| timer.link.index >= 95);
        assert_eq!(timers.pop(Time(1000)).map(|timer| timer.link), Some(link(95)));
        timers.set(Time(0), link(7), 0);
        assert_eq!(timers.queue.back().map(|timer| timer.at), Some(Time(109)));
    }
}
