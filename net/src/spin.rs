//! The time that a waiter spins before it sleeps: it spins as long as spinning has paid off.
//!
//! A spin that ends with work keeps the budget. One without work stops spinning for some sleeps, since a spinning
//! waiter takes the core from the thread that it waits for: for few of them where it has paid off just before, and for
//! twice as many after each further miss.

use std::time::Duration;

/// The longest spin: about the cost of a sleep and a wake-up on another core together.
pub(crate) const SPIN_MAX: Duration = Duration::from_micros(40);
/// The same for an answer of a peer's service thread, which has to wake up, too, before it can answer.
pub(crate) const ANSWER_MAX: Duration = Duration::from_micros(120);
/// Sleeps after a first miss before spinning is tried again, and after many.
const PAUSE_MIN: u16 = 4;
const PAUSE_MAX: u16 = 64;

/// One waiter's experience. It fits an atomic number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spin {
    /// Sleeps to go before the next try; 0 while spinning pays.
    left: u16,
    /// The pause after the last miss, if nothing has paid off since.
    pause: u16,
}

impl Spin {
    /// A waiter without experience: it sleeps first.
    pub const fn new() -> Spin {
        Spin { left: PAUSE_MAX, pause: PAUSE_MAX }
    }

    /// A waiter that has good reason to spin: it tries at once.
    pub const fn eager() -> Spin {
        Spin { left: 0, pause: 0 }
    }

    /// As a number.
    pub const fn to_bits(self) -> u32 {
        (self.pause as u32) << 16 | self.left as u32
    }

    /// Of the number.
    pub const fn from_bits(bits: u32) -> Spin {
        Spin { left: bits as u16, pause: (bits >> 16) as u16 }
    }

    /// The time to spin before the coming sleep: `most`, or nothing.
    pub fn budget(&mut self, most: Duration) -> Duration {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 { most } else { Duration::ZERO }
    }

    /// Spinning has paid off.
    pub fn paid(&mut self) {
        self.pause = 0;
    }

    /// Spinning brought nothing.
    pub fn missed(&mut self) {
        self.pause = (2 * self.pause).clamp(PAUSE_MIN, PAUSE_MAX);
        self.left = self.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeps(spin: &mut Spin) -> usize {
        (0..1000).take_while(|_| spin.budget(SPIN_MAX).is_zero()).count() + 1
    }

    #[test]
    fn misses_cost_more_and_more_sleeps_and_a_hit_none() {
        let mut spin = Spin::new();
        assert_eq!(sleeps(&mut spin), 64);
        assert!((0..100).all(|_| spin.budget(SPIN_MAX) == SPIN_MAX), "it pays: it goes on");
        spin.paid();
        let pauses = std::array::from_fn(|_| {
            spin.missed();
            sleeps(&mut spin)
        });
        assert_eq!(pauses, [4, 8, 16, 32, 64, 64]);
        spin.paid();
        spin.missed();
        assert_eq!(sleeps(&mut spin), 4);
    }

    #[test]
    fn experience_is_a_number() {
        for spin in [Spin::new(), Spin::eager(), Spin { left: 3, pause: 8 }] {
            assert_eq!(Spin::from_bits(spin.to_bits()), spin);
        }
    }
}
