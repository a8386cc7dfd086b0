//! Keeps processors from sleeping while work comes and goes faster than they wake up.
//!
//! A processor that went to sleep is woken by an interrupt, which costs 20 us in a virtual machine and
//! 50 us and more in the deep sleep of a real one: more than a metadata operation. Linux lets administrators limit
//! the latency of a wake-up, as long as `/dev/cpu_dma_latency` is held open
//! (Documentation/power/pm_qos_interface.rst). Tuning guides for clusters hold it for good; here it is held only
//! while a thread goes to sleep more than a thousand times a second.
//!
//! Invariant: an idle thread holds nothing.

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

/// The interval between decisions.
const WINDOW: Duration = Duration::from_millis(10);
/// Sleeps within a window that are too many.
const SLEEPS: u32 = 12;
/// Microseconds that a wake-up may cost: none, and as many as the kernel chooses.
const AT_ONCE: i32 = 0;
const NO_LIMIT: i32 = i32::MAX;

/// One thread's hold on the processors' sleep.
pub(crate) struct CpuLatency {
    device: Option<File>,
    held: bool,
    since: Instant,
    sleeps: u32,
}

impl CpuLatency {
    /// Holds nothing, and never will.
    pub fn never() -> CpuLatency {
        CpuLatency { device: None, held: false, since: Instant::now(), sleeps: 0 }
    }

    /// Holds the processors awake where that pays and this process may: the device is root's.
    pub fn while_busy() -> CpuLatency {
        let opened = File::options().write(true).open("/dev/cpu_dma_latency");
        let mut awake = CpuLatency { device: opened.ok(), ..CpuLatency::never() };
        // A request that was never written to counts as one for no latency at all.
        awake.set(NO_LIMIT);
        awake
    }

    /// The thread is about to sleep. The sleep must not be longer than the returned time, so that a hold ends when
    /// nothing happens any more.
    pub fn before_sleep(&mut self) -> Option<Duration> {
        self.device.as_ref()?;
        let now = Instant::now();
        self.decide(now).inspect(|held| self.set(if *held { AT_ONCE } else { NO_LIMIT }));
        self.held.then_some(WINDOW)
    }

    /// Counts a sleep; whether to hold, where that changes.
    fn decide(&mut self, now: Instant) -> Option<bool> {
        self.sleeps += 1;
        if now - self.since < WINDOW {
            return None;
        }
        // The counted sleeps may have taken longer than one window.
        let windows = (now - self.since).as_nanos() / WINDOW.as_nanos();
        let busy = u128::from(self.sleeps) >= u128::from(SLEEPS) * windows;
        (self.since, self.sleeps) = (now, 0);
        let changed = busy != self.held;
        self.held = busy;
        changed.then_some(busy)
    }

    fn set(&mut self, microseconds: i32) {
        let Some(device) = &mut self.device else { return };
        if device.write_all(&microseconds.to_ne_bytes()).is_err() {
            // Closed, it asks for nothing.
            self.device = None;
            self.held = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_sleeps_begin_a_hold_and_a_pause_ends_it() {
        let mut awake = CpuLatency::never();
        let mut now = awake.since;
        let mut sleep = |awake: &mut CpuLatency, pause: Duration| {
            now += pause;
            awake.decide(now)
        };
        let (often, seldom) = (Duration::from_micros(200), Duration::from_millis(2));
        let changes: Vec<bool> = (0..500).filter_map(|_| sleep(&mut awake, seldom)).collect();
        assert_eq!(changes, [] as [bool; 0], "five hundred a second are few");
        let begun = (0..500).position(|_| sleep(&mut awake, often).is_some());
        assert!(begun.is_some_and(|begun| begun <= 100), "{begun:?}");
        assert!((0..500).all(|_| sleep(&mut awake, often).is_none()), "it goes on");
        assert_eq!(sleep(&mut awake, Duration::from_secs(1)), Some(false));
    }

    #[test]
    fn without_the_device_nothing_is_held() {
        let mut awake = CpuLatency::never();
        assert!((0..1000).all(|_| awake.before_sleep().is_none()));
    }
}
