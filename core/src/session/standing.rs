//! Standing probes: when the paths of a session are looked at although nothing goes over them.
//!
//! A path that stands by may have died long before it is needed. So each one over which nothing was heard lately is probed:
//! each 25 ms while the session has traffic, then ever more rarely.
//!
//! Invariant: an idle session sends a bounded number of probes a minute, whatever becomes of its paths.

use std::time::Duration;

use ropewalk_base::time::Time;

/// Between two looks: while there is traffic, and after as many looks without.
const TRAFFIC: Duration = Duration::from_millis(25);
const TRAFFIC_NANOS: u64 = TRAFFIC.as_nanos() as u64;
const IDLE: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_secs(1), Duration::from_secs(10)];
/// Looks in each of these times.
const LOOKS: u32 = 4;

/// When a session's paths are looked at next.
#[derive(Debug)]
pub(crate) struct Standing {
    at: Time,
    /// Looks since the last traffic, and the traffic by then.
    quiet: u32,
    traffic: u64,
}

impl Standing {
    pub fn new() -> Standing {
        Standing { at: Time::NEVER, quiet: 0, traffic: 0 }
    }

    /// The session has several paths.
    pub fn begin(&mut self, now: Time) {
        self.at = self.at.min(now + TRAFFIC);
    }

    /// The session has one path, or none.
    pub fn end(&mut self) {
        self.at = Time::NEVER;
    }

    /// There is traffic. Returns when the paths are looked at.
    #[inline]
    pub fn hurry(&mut self, now: Time) -> Time {
        if self.at.0.saturating_sub(now.0) > TRAFFIC_NANOS && self.at != Time::NEVER {
            self.at = now + TRAFFIC;
        }
        self.at
    }

    pub fn due(&self) -> Time {
        self.at
    }

    /// Whether there was traffic at the last look.
    pub fn is_busy(&self) -> bool {
        self.quiet == 0
    }

    /// The time between two looks at present.
    pub fn every(&self) -> Duration {
        match self.quiet {
            0 => TRAFFIC,
            quiet => IDLE[((quiet - 1) / LOOKS).min(IDLE.len() as u32 - 1) as usize],
        }
    }

    /// Whether it is time for a look. `traffic`: a number that grows with all that goes and comes. `owes`: something of it is
    /// not acknowledged.
    pub fn take(&mut self, now: Time, traffic: u64, owes: bool) -> bool {
        if self.at > now {
            return false;
        }
        let is_quiet = traffic == self.traffic && !owes;
        self.quiet = if is_quiet { self.quiet.saturating_add(1) } else { 0 };
        self.traffic = traffic;
        self.at = now + self.every();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_become_rare_while_nothing_goes_and_frequent_again_with_traffic() {
        let mut standing = Standing::new();
        assert!(standing.due() == Time::NEVER && !standing.take(Time(1), 0, false));
        assert_eq!(standing.hurry(Time(1)), Time::NEVER, "it has one path");
        standing.begin(Time::ZERO);
        let mut looks = Vec::new();
        while looks.len() < 15 {
            let now = standing.due();
            assert!(standing.take(now, 7, false) && !standing.take(now, 7, false));
            looks.push(standing.every().as_millis());
        }
        assert_eq!(looks[..9], [25, 100, 100, 100, 100, 1000, 1000, 1000, 1000]);
        assert_eq!(looks[9..], [10_000; 6]);
        let now = standing.due() + Duration::from_secs(1);
        standing.take(now, 7, false);
        let soon = now + Duration::from_secs(2) + TRAFFIC;
        assert_eq!(standing.hurry(now + Duration::from_secs(2)), soon);
        assert_eq!(standing.hurry(now + Duration::from_secs(2) + TRAFFIC / 2), soon);
        assert!(standing.take(soon, 8, false) && standing.every() == TRAFFIC);
        assert!(standing.take(soon + TRAFFIC, 8, true) && standing.every() == TRAFFIC);
        standing.end();
        assert_eq!(standing.due(), Time::NEVER);
    }
}
