//! What was counted of a path since the quality of its route was judged last: by its link's rail, and by the session.

use std::time::Duration;

use ropewalk_base::health::Health;
use ropewalk_base::time::Time;

use super::quality::{Counted, is_queued};

/// Between two questions to the rail of a path that carries something, or does badly, and of any other one.
const EVERY: Duration = Duration::from_millis(100);
const EVERY_IDLE: Duration = Duration::from_secs(1);
/// More packets between two answers are not those of probes alone, whose round trips tell of no queue: where a packet is lost,
/// the next one is a probe that comes much later.
const PROBES_MAX: u32 = 200;

/// What the rail of a link has counted so far.
#[derive(Debug, Clone, Copy)]
struct Seen {
    packets: u64,
    losses: u64,
    received: u64,
    corrupt: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Counting {
    asked_at: Option<Time>,
    seen: Option<Seen>,
    /// Spans that went over the path, those that are lost, and those that the peer says were spoiled.
    spans: u32,
    lost: u32,
    spoiled: u32,
    /// Frames that came over it, and were spoiled.
    corrupt: u32,
}

/// How much more one number is than the other.
fn more(now: u64, before: u64) -> u32 {
    now.saturating_sub(before).try_into().unwrap_or(u32::MAX)
}

impl Counting {
    #[inline]
    pub fn sent(&mut self) {
        self.spans = self.spans.saturating_add(1);
    }

    pub fn lost(&mut self) {
        self.lost = self.lost.saturating_add(1);
    }

    pub fn spoiled(&mut self) {
        self.spoiled = self.spoiled.saturating_add(1);
    }

    pub fn corrupt(&mut self) {
        self.corrupt = self.corrupt.saturating_add(1);
    }

    /// Whether it is time to ask the rail: then it is asked now. `is_bad`: the route does badly.
    pub fn take_question(&mut self, is_bad: bool, now: Time) -> bool {
        let is_idle = self.spans == 0 && self.corrupt == 0 && !is_bad;
        let every = if is_idle { EVERY_IDLE } else { EVERY };
        let is_due = self.asked_at.is_none_or(|at| now.since(at) >= every);
        if is_due {
            self.asked_at = Some(now);
        }
        is_due
    }

    /// The rail answers; `None`: it measures nothing. Returns what was counted since its last answer, unless that tells
    /// nothing: it is the first one, or what was lost was lost to a queue.
    pub fn take(&mut self, health: Option<&Health>) -> Option<Counted> {
        let Counting { spans, lost, spoiled, corrupt, seen, .. } = *self;
        (self.spans, self.lost, self.spoiled, self.corrupt) = (0, 0, 0, 0);
        let Some(health) = health else {
            return Some(Counted { sent: spans, lost, spoiled, received: spans, corrupt });
        };
        let Health { packets, losses, received, .. } = *health;
        // A loss that turns out to be none lowers their number.
        let losses_seen = seen.map_or(losses, |seen| seen.losses.max(losses));
        self.seen = Some(Seen { packets, losses: losses_seen, received, corrupt: health.corrupt });
        let seen = seen?;
        let packets = if packets > 0 { more(packets, seen.packets) } else { spans };
        let carries = spans > 0 || packets >= PROBES_MAX;
        if carries && health.round_trips.is_some_and(|trips| is_queued(&trips)) {
            return None;
        }
        // The rail may have lost what the session sends again: that is one loss.
        let lost = lost.max(more(losses, seen.losses));
        Some(Counted {
            sent: packets,
            lost,
            spoiled,
            received: more(received, seen.received),
            corrupt: corrupt.saturating_add(more(health.corrupt, seen.corrupt)),
        })
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_base::health::RoundTrips;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn health(packets: u64, losses: u64, smoothed: Duration) -> Health {
        let (variation, least, p95) = (Duration::ZERO, MS, None);
        let round_trips = Some(RoundTrips { smoothed, variation, least, p95 });
        let (received, corrupt) = (2 * packets, losses / 2);
        let memory = Health::of_memory(Time::ZERO);
        Health { round_trips, packets, losses, received, corrupt, ..memory }
    }

    #[test]
    fn what_a_rail_counted_before_does_not_count() {
        let mut counting = Counting::default();
        counting.sent();
        assert_eq!(counting.take(Some(&health(5000, 400, MS))), None, "of how long ago is unknown");
        (0..7).for_each(|_| counting.sent());
        counting.corrupt();
        counting.spoiled();
        let counted = counting.take(Some(&health(5100, 404, MS)));
        let expected = Counted { sent: 100, lost: 4, spoiled: 1, received: 200, corrupt: 3 };
        assert_eq!(counted, Some(expected));
        let nothing = counting.take(Some(&health(5100, 404, MS)));
        assert_eq!(nothing, Some(Counted::default()));
    }

    #[test]
    fn losses_beside_a_queue_are_congestion() {
        let mut counting = Counting::default();
        counting.take(Some(&health(0, 0, MS)));
        assert_eq!(counting.take(Some(&health(1000, 200, 4 * MS))), None);
        let counted = counting.take(Some(&health(1500, 202, 3 * MS))).expect("the queue is gone");
        assert_eq!((counted.sent, counted.lost), (500, 2));
        // A path that carries probes alone makes no queue. What repairs a loss has a long round trip.
        let counted = counting.take(Some(&health(1600, 262, 9 * MS))).expect("probes");
        assert_eq!((counted.sent, counted.lost), (100, 60));
        counting.sent();
        assert_eq!(counting.take(Some(&health(1700, 282, 9 * MS))), None, "it carries something");
    }

    #[test]
    fn a_loss_that_was_none_is_not_counted_twice() {
        let mut counting = Counting::default();
        counting.take(Some(&health(0, 4, MS)));
        let lost = |counting: &mut Counting, losses| {
            counting.take(Some(&health(0, losses, MS))).map(|counted| counted.lost)
        };
        assert_eq!(lost(&mut counting, 6), Some(2));
        assert_eq!(lost(&mut counting, 5), Some(0), "the kernel found that one had come");
        assert_eq!(lost(&mut counting, 6), Some(0));
        assert_eq!(lost(&mut counting, 8), Some(2));
    }

    #[test]
    fn a_session_counts_for_a_rail_that_does_not() {
        let mut counting = Counting::default();
        (0..200).for_each(|_| counting.sent());
        (0..3).for_each(|_| counting.lost());
        let counted = counting.take(None).expect("there is nothing to compare with");
        assert_eq!((counted.sent, counted.lost), (200, 3));
        // One that counts packets has counted the losses, too.
        counting.take(Some(&health(0, 0, MS)));
        counting.sent();
        counting.lost();
        let counted = counting.take(Some(&health(50, 1, MS))).expect("no queue");
        assert_eq!((counted.sent, counted.lost), (50, 1));
    }

    #[test]
    fn a_rail_is_asked_ten_times_a_second_while_its_path_carries_something() {
        let mut counting = Counting::default();
        let looks = || (0..1000).step_by(25).map(|millis| Time::ZERO + millis * MS);
        let asked = |counting: &mut Counting, is_bad| {
            counting.asked_at = None;
            looks().filter(|now| counting.take_question(is_bad, *now)).count()
        };
        assert_eq!((asked(&mut counting, false), asked(&mut counting, true)), (1, 10));
        counting.sent();
        assert_eq!(asked(&mut counting, false), 10, "it carries something");
    }
}
