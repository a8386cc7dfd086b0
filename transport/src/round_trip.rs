//! Round trips as they were measured, and what to wait for accordingly.
//!
//! A peer here is a microsecond away, or a millisecond where it has to be woken first, so that the mean says
//! little and the deviation much: the time-out is RFC 6298's, without its floor of a second.

use std::time::Duration;

use ropewalk_base::health::RoundTrips;

/// Round trips to one peer.
#[derive(Debug, Clone, Copy)]
pub struct RoundTrip {
    smoothed: Duration,
    deviation: Duration,
    /// The shortest of late, and of those since that was looked at.
    shortest: Duration,
    recent: Duration,
    left: u32,
    measured: bool,
    /// About 95 of 100 are no longer, in nanoseconds.
    p95: u64,
    /// The allowance for late packets, learnt from packets that were wrongly taken for lost; and the losses since the
    /// latest of those.
    late: Duration,
    lost: u32,
}

/// The shortest round trip is taken over so many measurements, since paths change.
const LATE_ONES: u32 = 1024;

/// The round trip that is assumed before the first measurement.
const AT_FIRST: Duration = Duration::from_millis(10);
/// Shortest and longest wait for an answer.
const TIMEOUT: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(2)..=Duration::from_millis(500);
/// Shortest time by which a packet may be overtaken before it counts as lost: bonded links reorder by
/// what is in the queue of one of them.
const OVERTAKEN_MIN: Duration = Duration::from_micros(20);
/// Packets that are later than this, or than the usual round trip, are not waited for.
const LATE_MAX: Duration = Duration::from_micros(500);
/// After this many losses, none of them a late packet, the allowance for late packets is halved.
const LOST_IN_A_ROW: u32 = 64;

/// A step of the estimate for the 95th percentile is a part of it: one in so many, as a power of two.
const P95_SHIFT: u32 = 8;

impl Default for RoundTrip {
    fn default() -> RoundTrip {
        RoundTrip {
            smoothed: AT_FIRST,
            deviation: AT_FIRST / 2,
            shortest: Duration::MAX,
            recent: Duration::MAX,
            left: LATE_ONES,
            measured: false,
            p95: 0,
            late: Duration::ZERO,
            lost: 0,
        }
    }
}

impl RoundTrip {
    /// A round trip was measured: from a packet that went once to the news of its arrival, without the time that the
    /// peer says to have waited.
    pub fn measured(&mut self, round_trip: Duration) {
        self.recent = self.recent.min(round_trip);
        self.shortest = self.shortest.min(round_trip);
        self.left -= 1;
        if self.left == 0 {
            (self.shortest, self.recent, self.left) = (self.recent, Duration::MAX, LATE_ONES);
        }
        if !self.measured {
            (self.smoothed, self.deviation) = (round_trip, round_trip / 2);
            self.measured = true;
            self.p95 = round_trip.as_nanos() as u64;
            return;
        }
        self.step_p95(round_trip.as_nanos() as u64);
        let away = self.smoothed.abs_diff(round_trip);
        self.deviation = (self.deviation * 3 + away) / 4;
        self.smoothed = (self.smoothed * 7 + round_trip) / 8;
    }

    /// One in twenty steps goes up, and is as long as the other nineteen together.
    #[inline]
    fn step_p95(&mut self, nanos: u64) {
        let step = (self.p95 >> P95_SHIFT) + 1;
        if nanos > self.p95 {
            self.p95 += step * 19;
        } else {
            self.p95 -= step.min(self.p95);
        }
    }

    /// All that was seen, for others; `None` before the first measurement.
    pub fn seen(&self) -> Option<RoundTrips> {
        self.measured.then(|| RoundTrips {
            smoothed: self.smoothed,
            variation: self.deviation,
            least: self.shortest,
            p95: Some(Duration::from_nanos(self.p95)),
        })
    }

    /// The longest wait for an answer that the peer gives within `delay`.
    pub fn timeout(&self, delay: Duration) -> Duration {
        let wait = self.smoothed + self.deviation * 4 + delay;
        wait.clamp(*TIMEOUT.start(), *TIMEOUT.end())
    }

    /// The same after so many time-outs in a row.
    pub fn timeout_after(&self, delay: Duration, misses: u32) -> Duration {
        let wait = self.timeout(delay) * (1 << misses.min(8));
        wait.min(*TIMEOUT.end())
    }

    /// By how much a packet that is not lost may be overtaken.
    pub fn overtaken(&self) -> Duration {
        let shortest = if self.measured { self.shortest / 4 } else { Duration::ZERO };
        shortest.max(OVERTAKEN_MIN).max(self.late)
    }

    /// A packet that was taken for lost, since others had overtaken it, was only late: by so much. The next ones may be
    /// later by a quarter.
    pub fn was_late(&mut self, by: Duration) {
        self.lost = 0;
        self.late = self.late.max((by + by / 4).min(self.smoothed.max(LATE_MAX)));
    }

    /// A packet is taken for lost, since others have overtaken it.
    pub fn was_lost(&mut self) {
        self.lost += 1;
        if self.lost >= LOST_IN_A_ROW {
            (self.lost, self.late) = (0, self.late / 2);
        }
    }

    /// The shortest one that was measured; none: nothing.
    pub fn shortest(&self) -> Duration {
        if self.measured { self.shortest } else { Duration::ZERO }
    }

    /// The usual one.
    pub fn usual(&self) -> Duration {
        self.smoothed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn waits_follow_what_is_measured() {
        let mut round_trip = RoundTrip::default();
        assert!(round_trip.timeout(Duration::ZERO) >= Duration::from_millis(20));
        for _ in 0..50 {
            round_trip.measured(20 * US);
        }
        assert_eq!(round_trip.timeout(Duration::ZERO), Duration::from_millis(2));
        assert_eq!(round_trip.usual(), 20 * US);
        for step in 0..50 {
            round_trip.measured(if step % 2 == 0 { 20_000 * US } else { 20 * US });
        }
        let wait = round_trip.timeout(Duration::ZERO);
        assert!(wait > Duration::from_millis(20), "{wait:?}: it has seen 20 ms often");
        assert_eq!(round_trip.overtaken(), 20 * US);
    }

    #[test]
    fn few_round_trips_are_longer_than_the_95th_percentile() {
        let mut round_trip = RoundTrip::default();
        assert_eq!(round_trip.seen(), None);
        // One in ten takes a millisecond, and the others 20 to 29 us.
        let long = |step: u32| if step.is_multiple_of(10) { 1000 } else { 20 + step % 10 };
        (0..5000).for_each(|step| round_trip.measured(US * long(step)));
        let p95 = |round_trip: &RoundTrip| round_trip.seen().unwrap().p95.unwrap();
        assert!((US * 900..US * 1100).contains(&p95(&round_trip)), "{round_trip:?}");
        // Now none does.
        (0..5000).for_each(|step| round_trip.measured(US * (20 + step % 10)));
        assert!((US * 26..US * 32).contains(&p95(&round_trip)), "{round_trip:?}");
        assert_eq!(round_trip.seen().unwrap().least, 20 * US);
    }

    #[test]
    fn waits_double_up_to_half_a_second() {
        let mut round_trip = RoundTrip::default();
        round_trip.measured(20 * US);
        let wait = |misses| round_trip.timeout_after(Duration::ZERO, misses).as_millis();
        assert_eq!([0, 1, 2, 3].map(wait), [2, 4, 8, 16]);
        assert_eq!([8, 9, 100].map(wait), [500; 3]);
    }

    #[test]
    fn what_was_late_is_waited_for_until_much_was_lost() {
        let mut round_trip = RoundTrip::default();
        round_trip.measured(40 * US);
        assert_eq!(round_trip.overtaken(), 20 * US);
        round_trip.was_late(80 * US);
        round_trip.was_late(40 * US);
        assert_eq!(round_trip.overtaken(), 100 * US);
        (0..LOST_IN_A_ROW - 1).for_each(|_| round_trip.was_lost());
        round_trip.was_late(10 * US);
        (0..LOST_IN_A_ROW - 1).for_each(|_| round_trip.was_lost());
        assert_eq!(round_trip.overtaken(), 100 * US);
        round_trip.was_lost();
        assert_eq!(round_trip.overtaken(), 50 * US);
        round_trip.was_late(Duration::from_secs(1));
        assert_eq!(round_trip.overtaken(), LATE_MAX);
    }

    #[test]
    fn a_path_that_became_longer_is_known_for_it_after_some_time() {
        let mut round_trip = RoundTrip::default();
        round_trip.measured(Duration::ZERO);
        (0..2 * LATE_ONES).for_each(|_| round_trip.measured(800 * US));
        assert_eq!((round_trip.shortest(), round_trip.overtaken()), (800 * US, 200 * US));
    }
}
