//! Links that are one of several paths and of which the peer's machine acknowledges nothing, although it has room: their paths
//! are suspect. The core awaits answers of the peer's program; here the kernel of the peer's machine is judged, which answers
//! also where the core awaits nothing, as beside acknowledgements and probes alone.
//!
//! Invariants: the kernel is asked only while something that was sent may be unacknowledged, once in a time-out; sending costs no
//! system call. The kernel hears acknowledgements by itself, so that a late pass makes nobody look silent.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use ropewalk_base::health::RoundTrips;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;

use crate::path;

/// Beside the round trip: a segment is sent again, and that again, or its acknowledgement is kept back; and the kernel's ticks,
/// each of which may be 4 ms late.
const SLACK: Duration = Duration::from_micros(2 * path::SEND_AGAIN_AFTER_MIN_US as u64 + 8000);
/// Where the kernel keeps to its own times: 200 ms until it sends again, 40 ms until it acknowledges.
const SLACK_UNTUNED: Duration = Duration::from_millis(260);
/// Between two looks at a link of which it was told, at most.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// Whether what a link sends is acknowledged.
#[derive(Debug)]
pub struct Stall {
    slack: Duration,
    time_out: Duration,
    /// As [`Sight::acknowledged`] was at the last look.
    acknowledged: (u64, u32),
    /// While something may be unacknowledged.
    watch: Option<Watch>,
}

#[derive(Debug, Clone, Copy)]
struct Watch {
    /// When something was sent, or acknowledged.
    since: Time,
    look_at: Time,
    is_looked_at: bool,
    is_told: bool,
}

/// What a look at a link says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sight {
    /// Changes whenever the peer's machine acknowledges something new.
    pub acknowledged: (u64, u32),
    /// Nothing is awaited.
    pub is_all: bool,
    /// How long ago the last acknowledgement came.
    pub heard: Duration,
    /// The peer's machine has no room for more.
    pub is_peer_full: bool,
}

impl Stall {
    /// `is_quick`: the kernel has the times that [`path::tune`] asks for.
    pub fn new(is_quick: bool) -> Stall {
        let slack = if is_quick { SLACK } else { SLACK_UNTUNED };
        Stall { slack, time_out: 2 * slack, acknowledged: (0, 0), watch: None }
    }

    /// Something was sent. When the link is looked at, if that is news.
    #[inline]
    fn sent(&mut self, now: Time) -> Option<Time> {
        if self.watch.is_some() {
            return None;
        }
        let look_at = now + self.time_out;
        self.watch = Some(Watch { since: now, look_at, is_looked_at: false, is_told: false });
        Some(look_at)
    }

    /// When it is looked at, while something may be unacknowledged.
    pub fn look_at(&self) -> Option<Time> {
        self.watch.map(|watch| watch.look_at)
    }

    /// The kernel says nothing of it.
    pub fn end(&mut self) {
        self.watch = None;
    }

    /// What the kernel measured.
    pub fn measured(&mut self, round_trips: Option<RoundTrips>) {
        if let Some(it) = round_trips {
            self.time_out = it.smoothed + 4 * it.variation + self.slack;
        }
    }

    /// Whether the path is suspect from now on.
    pub fn saw(&mut self, sight: Sight, now: Time) -> bool {
        let Some(watch) = &mut self.watch else { return false };
        let has_moved = sight.acknowledged != self.acknowledged;
        self.acknowledged = sight.acknowledged;
        if sight.is_all {
            self.watch = None;
            return false;
        }
        if has_moved || sight.is_peer_full {
            let heard = sight.heard.min(self.time_out / 2).as_nanos() as u64;
            let since = if sight.is_peer_full { now } else { Time(now.0.saturating_sub(heard)) };
            let look_at = since + self.time_out;
            *watch = Watch { since, look_at, is_looked_at: true, is_told: false };
            return false;
        }
        if !std::mem::replace(&mut watch.is_looked_at, true) {
            // That time was told by a clock that may be old.
            let half = (self.time_out / 2).as_nanos() as u64;
            watch.since = watch.since.max(Time(now.0.saturating_sub(half)));
        }
        let silent = now.since(watch.since);
        if silent < self.time_out {
            watch.look_at = watch.since + self.time_out;
            return false;
        }
        // As long again, each time.
        watch.look_at = now + silent.min(LOOK_MAX);
        !std::mem::replace(&mut watch.is_told, true)
    }
}

/// The links that are looked at, the next one first: a look at one costs nothing for the others.
///
/// Invariant: a link has one entry while something that it sent may be unacknowledged. One that is gone may have one until its
/// time.
#[derive(Debug)]
pub struct Stalls {
    watched: BinaryHeap<Reverse<(Time, SlotId)>>,
}

impl Stalls {
    pub fn new() -> Stalls {
        Stalls { watched: BinaryHeap::new() }
    }

    /// When the next one is looked at.
    pub fn due(&self) -> Time {
        self.watched.peek().map_or(Time::NEVER, |Reverse((at, _))| *at)
    }

    /// A link sent something.
    #[inline]
    pub fn sent(&mut self, slot: SlotId, stall: &mut Stall, now: Time) {
        if let Some(look_at) = stall.sent(now) {
            self.look_at(slot, look_at);
        }
    }

    /// A link is looked at then.
    pub fn look_at(&mut self, slot: SlotId, at: Time) {
        self.watched.push(Reverse((at, slot)));
    }

    /// Takes out a link whose time has come.
    pub fn take_due(&mut self, now: Time) -> Option<SlotId> {
        let Reverse((at, _)) = self.watched.peek()?;
        if *at > now {
            return None;
        }
        self.watched.pop().map(|Reverse((_, slot))| slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    fn awaited(acknowledged: u64) -> Sight {
        let acknowledged = (acknowledged, 0);
        Sight { acknowledged, is_all: false, heard: Duration::ZERO, is_peer_full: false }
    }

    /// A link with round trips of a millisecond, which sends something at 100 ms, and is looked at whenever that is due. When it
    /// was suspect, until a second has passed, and how often it was looked at.
    fn suspected(see: impl Fn(u64) -> Sight) -> (Vec<u64>, usize) {
        let mut stall = Stall::new(true);
        let smoothed = Duration::from_millis(1);
        stall.measured(Some(RoundTrips { smoothed, ..RoundTrips::default() }));
        assert_eq!(stall.time_out, Duration::from_millis(25));
        assert_eq!((stall.sent(at(100)), stall.sent(at(101))), (Some(at(125)), None));
        let (mut suspected, mut looks) = (Vec::new(), 0);
        for millis in 100..1100 {
            if stall.watch.is_some_and(|watch| watch.look_at <= at(millis)) {
                looks += 1;
                if stall.saw(see(millis), at(millis)) {
                    suspected.push(millis);
                }
            }
        }
        (suspected, looks)
    }

    #[test]
    fn what_is_acknowledged_is_looked_at_once() {
        assert_eq!(suspected(|_| Sight { is_all: true, ..awaited(9) }), (Vec::new(), 1));
    }

    #[test]
    fn acknowledgements_that_stand_still_beside_an_open_window_are_suspect_once() {
        // The clock may have been old when it was sent, by half of a time-out at most.
        let (suspected, looks) = suspected(|_| awaited(0));
        assert_eq!(suspected, [138]);
        assert!(looks < 9, "{looks}");
    }

    #[test]
    fn a_link_that_stands_still_again_is_suspect_again() {
        let progress = |millis| awaited(if (300..600).contains(&millis) { millis } else { 0 });
        let (suspected, _) = self::suspected(progress);
        assert_eq!(suspected.len(), 2, "{suspected:?}");
    }

    #[test]
    fn a_link_that_moves_or_whose_peer_is_full_is_not_suspect() {
        let full = Sight { is_peer_full: true, ..awaited(0) };
        for sight in [&(|millis| awaited(millis)) as &dyn Fn(u64) -> Sight, &|_| full] {
            let (suspected, looks) = self::suspected(sight);
            assert_eq!((suspected, looks), (Vec::new(), 39), "one look in a time-out");
        }
    }

    #[test]
    fn a_kernel_that_keeps_to_its_own_times_is_given_them() {
        let mut stall = Stall::new(false);
        stall.measured(Some(RoundTrips::default()));
        assert_eq!(stall.time_out, SLACK_UNTUNED);
    }

    #[test]
    fn of_many_links_those_are_looked_at_whose_time_has_come_and_no_others() {
        const LINKS: u64 = 500;
        let slot = |index| SlotId { index, generation: 1 };
        let mut stalls = Stalls::new();
        let mut all: Vec<Stall> = (0..LINKS).map(|_| Stall::new(true)).collect();
        for (index, stall) in all.iter_mut().enumerate().rev() {
            stalls.sent(slot(index as u32), stall, at(index as u64));
            stalls.sent(slot(index as u32), stall, at(index as u64 + 1));
        }
        let first = all[0].look_at().expect("it is watched");
        assert_eq!((stalls.due(), stalls.take_due(at(0))), (first, None));
        let mut looks = 0;
        for millis in 0..=LINKS {
            let now = first + Duration::from_millis(millis);
            while let Some(SlotId { index, .. }) = stalls.take_due(now) {
                assert_eq!(u64::from(index), millis);
                looks += 1;
                let stall = &mut all[index as usize];
                assert!(!stall.saw(Sight { is_all: index > 0, ..awaited(7) }, now));
                // The first one has sent something that is not acknowledged yet.
                stall.look_at().into_iter().for_each(|next| {
                    stalls.look_at(slot(index), next + LOOK_MAX);
                });
            }
        }
        assert_eq!((looks, stalls.watched.len()), (LINKS, 1));
    }
}
