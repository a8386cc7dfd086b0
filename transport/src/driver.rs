//! The common driver of packet protocols: the turns of links, the timers at which links are looked at, replies to
//! strangers, and events that wait to be reported.
//!
//! A protocol keeps a [`Driver`] beside its links, and a [`Schedule`] in each of them. [`Driven`] describes the links
//! to the driver, and has the loops over them.
//!
//! Invariants:
//! * a link is among the ready ones once at most, and has one timer at most;
//! * a timer is never later than what is due;
//! * events are reported in the order in which they happened.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use ropewalk_base::shared::Leaving;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;

use crate::memory::Bytes;
use crate::protocol::LinkEvents;

/// Replies to strangers that wait; more are not given.
const REPLIES_MAX: usize = 64;
/// The interval at which the driver looks at a link that waits for room in the port.
const HELD_UP_FOR: Duration = Duration::from_millis(1);

/// The turn of a link, and the time at which the driver looks at it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schedule {
    /// It is among the ready ones.
    is_ready: bool,
    /// `NEVER` where it is not among the timers.
    timer: Time,
}

impl Default for Schedule {
    fn default() -> Schedule {
        Schedule { is_ready: false, timer: Time::NEVER }
    }
}

/// The links of a protocol in their turns; its replies to strangers (`R`), and its events (`E`).
#[derive(Debug)]
pub(crate) struct Driver<R, E> {
    /// The time, as it was told last.
    pub now: Time,
    ready: VecDeque<SlotId>,
    timers: BTreeSet<(Time, SlotId)>,
    replies: VecDeque<R>,
    events: VecDeque<E>,
    /// Room for the links whose timers are due. It is empty between calls.
    due: Vec<SlotId>,
}

impl<R, E> Driver<R, E> {
    pub fn new() -> Driver<R, E> {
        Driver {
            now: Time::ZERO,
            ready: VecDeque::new(),
            timers: BTreeSet::new(),
            replies: VecDeque::new(),
            events: VecDeque::new(),
            due: Vec::new(),
        }
    }

    /// Sets the clock, which does not run backwards.
    pub fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
    }

    /// When a timer has to be judged.
    pub fn deadline(&self) -> Time {
        self.timers.first().map_or(Time::NEVER, |(at, _)| *at)
    }

    /// Whether a link has its turn, a reply waits, or something is to be reported.
    pub fn has_work(&self) -> bool {
        !self.ready.is_empty() || self.has_replies() || !self.events.is_empty()
    }

    pub fn has_replies(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Keeps a reply to a stranger; false where too many wait.
    pub fn reply(&mut self, reply: R) -> bool {
        let has_room = self.replies.len() < REPLIES_MAX;
        if has_room {
            self.replies.push_back(reply);
        }
        has_room
    }

    /// Notes what happened, to be reported in its turn.
    pub fn tell(&mut self, event: E) {
        self.events.push_back(event);
    }

    /// Whether the latest event was not reported yet and fulfils `is_such`; if so, it is taken back and never reported.
    pub fn take_last(&mut self, is_such: impl FnOnce(&E) -> bool) -> bool {
        let such = self.events.back().is_some_and(is_such);
        if such {
            self.events.pop_back();
        }
        such
    }

    /// A link that is gone leaves the timers; its turn is passed over.
    pub fn forget(&mut self, id: SlotId, schedule: &Schedule) {
        self.timers.remove(&(schedule.timer, id));
    }
}

/// A driver, and the schedule of one of its links.
pub(crate) type Scheduled<'a, R, E> = (&'a mut Driver<R, E>, &'a mut Schedule);

/// A driven protocol: the needs of its links, and the loops over them.
pub(crate) trait Driven<S> {
    type Reply;
    type Event;

    fn driver(&mut self) -> &mut Driver<Self::Reply, Self::Event>;

    /// The driver, and the schedule of a link that is there.
    fn schedule(&mut self, id: SlotId) -> Option<Scheduled<'_, Self::Reply, Self::Event>>;

    /// When a link has to be looked at.
    fn due(&self, id: SlotId) -> Time;

    /// Whether it may have a packet to send now.
    fn wants(&self, id: SlotId) -> bool;

    /// Something of a link is due.
    fn run_timer(&mut self, id: SlotId);

    /// Writes a reply to a stranger; its destination.
    fn write_reply(&mut self, reply: Self::Reply, out: &mut [u8]) -> (S, Leaving);

    /// Writes the next packet of a link, if it has one; its destination.
    fn write_next(
        &mut self,
        id: SlotId,
        memory: &dyn Bytes,
        out: &mut [u8],
    ) -> Option<(S, Leaving)>;

    /// Reports an event.
    fn report_event(&mut self, event: Self::Event, above: &mut dyn LinkEvents<S>);

    /// A link may have something to send: it has a turn. When it has been asked, its timer is set.
    fn touch(&mut self, id: SlotId) {
        let Some((driver, schedule)) = self.schedule(id) else { return };
        if !std::mem::replace(&mut schedule.is_ready, true) {
            driver.ready.push_back(id);
        }
    }

    /// Likewise after something that may have left nothing to be sent.
    fn touch_if_wanted(&mut self, id: SlotId) {
        if self.wants(id) { self.touch(id) } else { self.wake(id) }
    }

    /// Makes sure that a link is looked at in time. An earlier deadline that no longer holds stays: it costs one look too many.
    fn wake(&mut self, id: SlotId) {
        let due = self.due(id);
        self.wake_by(id, due);
    }

    /// Makes sure that a link is looked at by then.
    fn wake_by(&mut self, id: SlotId, due: Time) {
        let Some((driver, schedule)) = self.schedule(id) else { return };
        if due < schedule.timer {
            if schedule.timer < Time::NEVER {
                driver.timers.remove(&(schedule.timer, id));
            }
            schedule.timer = due;
            driver.timers.insert((due, id));
        }
    }

    /// Judges the timers that are due.
    fn run_timers(&mut self) {
        // Each once: what is due is not over before a packet has left.
        let driver = self.driver();
        let mut due = std::mem::take(&mut driver.due);
        while let Some(&(at, id)) = driver.timers.first().filter(|(at, _)| *at <= driver.now) {
            driver.timers.remove(&(at, id));
            due.push(id);
        }
        for id in due.drain(..) {
            let Some((_, schedule)) = self.schedule(id) else { continue };
            schedule.timer = Time::NEVER;
            self.run_timer(id);
            self.touch(id);
        }
        self.driver().due = due;
    }

    /// The port has no room for more: links that wait for it are looked at all the same, and given up in time.
    fn hold_up(&mut self, now: Time) {
        let waiting: Vec<SlotId> = self.driver().ready.iter().copied().collect();
        for id in waiting {
            if self.schedule(id).is_some_and(|(_, schedule)| schedule.timer == Time::NEVER) {
                let due = self.due(id).max(now + HELD_UP_FOR);
                self.wake_by(id, due);
            }
        }
    }

    /// Reports what has happened since it was asked last.
    fn report_all(&mut self, above: &mut dyn LinkEvents<S>) {
        while let Some(event) = self.driver().events.pop_front() {
            self.report_event(event, above);
        }
    }

    /// Writes the next packet: replies to strangers first, then the links in their turns.
    fn write_packet(&mut self, memory: &dyn Bytes, out: &mut [u8]) -> Option<(S, Leaving)> {
        if let Some(reply) = self.driver().replies.pop_front() {
            return Some(self.write_reply(reply, out));
        }
        while let Some(id) = self.driver().ready.pop_front() {
            let Some((_, schedule)) = self.schedule(id) else { continue };
            schedule.is_ready = false;
            if let Some(packet) = self.write_next(id, memory, out) {
                // It had something, and may have more.
                self.touch_if_wanted(id);
                return Some(packet);
            }
            self.wake(id);
        }
        None
    }
}
