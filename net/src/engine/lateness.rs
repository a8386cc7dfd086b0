//! How late the passes of this engine come: the time from when something was due to the pass that did it.
//!
//! Paths are judged by time-outs. A thread that comes late, since it computes or others have its processor, makes each
//! answer look slow, and its peers run on hosts that are about as busy. So the core adds to each time-out what all but one
//! of a thousand passes stay below.
//!
//! Invariants: only passes that had something to do in time count; what was long ago counts ever less.

use std::time::Duration;

/// The width of a step.
const STEP: Duration = Duration::from_micros(250);
/// Steps; the last one has all that was later.
const STEPS: usize = 96;
/// With fewer passes nothing is told.
const PASSES_MIN: u32 = 64;
/// After so many passes each of the older ones counts half.
const PASSES_MAX: u32 = 1 << 14;

/// Passes, counted by their lateness.
#[derive(Debug)]
pub(crate) struct Lateness {
    counts: [u32; STEPS],
    passes: u32,
}

impl Lateness {
    pub fn new() -> Lateness {
        Lateness { counts: [0; STEPS], passes: 0 }
    }

    /// A pass came so late.
    pub fn note(&mut self, late: Duration) {
        let step = (late.as_micros() / STEP.as_micros()) as usize;
        self.counts[step.min(STEPS - 1)] += 1;
        self.passes += 1;
        if self.passes >= PASSES_MAX {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.passes = self.counts.iter().sum();
        }
    }

    /// What 999 of 1000 passes stay below; `None` while few were seen.
    pub fn p999(&self) -> Option<Duration> {
        if self.passes < PASSES_MIN {
            return None;
        }
        let mut later = self.passes / 1000;
        for step in (0..STEPS).rev() {
            if self.counts[step] > later {
                return Some(STEP * (step as u32 + 1));
            }
            later -= self.counts[step];
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn one_pass_of_a_thousand_may_be_later() {
        let mut lateness = Lateness::new();
        (1..PASSES_MIN).for_each(|_| lateness.note(Duration::ZERO));
        assert_eq!(lateness.p999(), None);
        lateness.note(millis(7));
        assert_eq!(lateness.p999(), Some(millis(7) + STEP), "one of few is one too many");
        (0..1000).for_each(|_| lateness.note(Duration::ZERO));
        assert_eq!(lateness.p999(), Some(STEP));
        lateness.note(Duration::MAX);
        assert_eq!(lateness.p999(), Some(millis(7) + STEP));
        lateness.note(Duration::from_secs(3600));
        assert_eq!(lateness.p999(), Some(STEP * STEPS as u32), "no more than the last step");
    }

    #[test]
    fn a_bad_time_is_forgotten() {
        let mut lateness = Lateness::new();
        (0..100).for_each(|_| lateness.note(millis(15)));
        assert_eq!(lateness.p999(), Some(millis(15) + STEP));
        (0..10 * PASSES_MAX).for_each(|_| lateness.note(Duration::ZERO));
        assert_eq!(lateness.p999(), Some(STEP));
    }
}
