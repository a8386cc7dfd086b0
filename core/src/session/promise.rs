//! By how much a peer delays its acknowledgements, as it tells in them: a part of the time-outs of its paths.
//!
//! Invariant: what a peer tells has bounds.

use std::time::Duration;

/// A peer may always delay an acknowledgement by this.
pub(crate) const PROMISED_MIN: Duration = Duration::from_millis(1);
/// No peer is given more.
const PROMISED_MAX: Duration = Duration::from_millis(20);
/// By how much the estimate falls with each acknowledgement that came sooner, in microseconds, and by how many times that it
/// rises with one that came later: about 999 of 1000 come sooner.
const STEP_US: u32 = 1;
const STEPS_UP: u32 = 999;

/// What 999 of 1000 acknowledgements of a peer were not delayed by, in microseconds, estimated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Promise(u32);

impl Promise {
    /// An acknowledgement says that it was delayed by so many microseconds.
    pub fn note(&mut self, told_us: u32) {
        self.0 = if told_us > self.0 {
            told_us.min(self.0 + STEP_US * STEPS_UP).min(PROMISED_MAX.as_micros() as u32)
        } else {
            self.0.saturating_sub(STEP_US)
        };
    }

    pub fn get(self) -> Duration {
        Duration::from_micros(self.0.into()).max(PROMISED_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(promise: &mut Promise, told_us: impl Fn(u32) -> u32, times: u32) -> Duration {
        (0..times).for_each(|number| promise.note(told_us(number)));
        promise.get()
    }

    #[test]
    fn a_peer_is_given_what_it_takes_within_bounds() {
        let mut promise = Promise::default();
        assert_eq!(promise.get(), PROMISED_MIN);
        assert_eq!(noted(&mut promise, |_| 250, 1000), PROMISED_MIN);
        let late = noted(&mut promise, |_| 8000, 100);
        assert!(late > Duration::from_micros(7900) && late <= Duration::from_millis(8), "{late:?}");
        assert_eq!(noted(&mut promise, |_| u32::MAX, 100), PROMISED_MAX);
        assert_eq!(noted(&mut promise, |_| 250, 30_000), PROMISED_MIN);
    }

    #[test]
    fn one_late_acknowledgement_of_thousands_changes_little() {
        let mut promise = Promise::default();
        let late = |number: u32| if number.is_multiple_of(5000) { 100_000 } else { 900 };
        assert!(noted(&mut promise, late, 50_000) < 2 * PROMISED_MIN);
        let often = |number: u32| if number.is_multiple_of(100) { 9000 } else { 900 };
        assert!(noted(&mut promise, often, 50_000) > 8 * PROMISED_MIN);
    }
}
