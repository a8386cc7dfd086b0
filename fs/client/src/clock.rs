//! The metadata server's clock, as far as a client knows it.
//!
//! All times that the system sets are on that clock: the client's own may be wrong by minutes, and a `make`
//! elsewhere compares times of both. A time from the client is never later than the server's clock, but for
//! the drift of two clocks between two renewals of the session.
//!
//! Invariants: it goes on with this machine's monotonic clock; a time that a reply told as "now" is never in
//! the future of a later answer; a server whose clock was set back is followed.

use std::cell::Cell;
use std::time::Duration;

use ropewalk_base::time::Time;
use ropewalk_wire::fs::value::Timestamp;

/// A time of change that is further ahead than this is not the server's "now": its clock was set back.
const AHEAD_MAX: i64 = 1_000_000_000;

/// The client's knowledge of the server's clock.
#[derive(Debug, Default)]
pub(crate) struct ServerClock {
    /// The server's time at a moment of ours, both in nanoseconds.
    known: Cell<(Time, i64)>,
}

fn nanos(at: Timestamp) -> i64 {
    at.seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(at.nanos))
}

fn between(earlier: Time, later: Time) -> i64 {
    i64::try_from(later.since(earlier).as_nanos()).unwrap_or(i64::MAX)
}

impl ServerClock {
    fn at(&self, now: Time) -> i64 {
        let (then, server) = self.known.get();
        server.saturating_add(between(then, now))
    }

    /// The server answered a request that was sent at `sent` with its time.
    pub fn told(&self, sent: Time, now: Time, server: Timestamp) {
        let (earliest, trip) = (nanos(server), between(sent, now));
        let latest = earliest.saturating_add(trip);
        let known = self.known.get() != (Time::ZERO, 0);
        let best = if known { self.at(now).clamp(earliest, latest) } else { earliest };
        self.known.set((now, best));
    }

    /// The server changed something at `changed`: it is not earlier there.
    pub fn saw(&self, now: Time, changed: Timestamp) {
        let (known, seen) = (self.at(now), nanos(changed));
        if (1..AHEAD_MAX).contains(&seen.saturating_sub(known)) {
            self.known.set((now, seen));
        }
    }

    /// The time there.
    pub fn now(&self, now: Time) -> Timestamp {
        Timestamp::from_unix_nanos(self.at(now))
    }
}

/// The time until the end of a term.
pub(crate) fn left(until: Time, now: Time) -> Duration {
    if until > now { until.since(now) } else { Duration::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn after(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn it_follows_the_server_and_never_runs_ahead_of_it() {
        let clock = ServerClock::default();
        clock.told(after(10), after(11), Timestamp::from_unix_nanos(500 * SECOND));
        assert_eq!(clock.now(after(12)), Timestamp::from_unix_nanos(501 * SECOND));
        // A later sign of its time counts at once.
        clock.saw(after(12), Timestamp::from_unix_nanos(501 * SECOND + 7));
        assert_eq!(clock.now(after(12)), Timestamp::from_unix_nanos(501 * SECOND + 7));
        // Older signs do not, nor those of a time when its clock was wrong.
        clock.saw(after(12), Timestamp::from_unix_nanos(400 * SECOND));
        clock.saw(after(12), Timestamp::from_unix_nanos(4000 * SECOND));
        assert_eq!(clock.now(after(12)), Timestamp::from_unix_nanos(501 * SECOND + 7));
        // Within the time of a round trip nobody knows better.
        clock.told(after(12), after(14), Timestamp::from_unix_nanos(502 * SECOND));
        assert_eq!(clock.now(after(14)), Timestamp::from_unix_nanos(503 * SECOND + 7));
        clock.told(after(20), after(20), Timestamp::from_unix_nanos(100 * SECOND));
        assert_eq!(clock.now(after(21)), Timestamp::from_unix_nanos(101 * SECOND));
    }
}
