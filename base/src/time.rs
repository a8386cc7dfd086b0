//! Time as the protocol sees it: nanoseconds since an arbitrary start, real or simulated.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A moment on the owner's monotonic clock, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Time(pub u64);

impl Time {
    /// The beginning of the clock.
    pub const ZERO: Time = Time(0);
    /// Later than every other moment.
    pub const NEVER: Time = Time(u64::MAX);

    /// The time that passed since `earlier`; zero where `earlier` lies ahead.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, duration: Duration) -> Time {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Time(self.0.saturating_add(nanos))
    }
}

impl Sub<Duration> for Time {
    type Output = Time;
    fn sub(self, duration: Duration) -> Time {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Time(self.0.saturating_sub(nanos))
    }
}
