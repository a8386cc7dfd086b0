//! The time that a waiter spins before it sleeps: it spins as long as spinning has paid off.
//!
//! A spin that ends with work keeps the budget. One without work stops spinning for many sleeps, since a spinning
//! waiter takes the core from the thread that it waits for.

use std::time::Duration;

/// The longest spin: about the cost of a sleep and a wake-up on another core together.
const SPIN_MAX: Duration = Duration::from_micros(40);
/// Sleeps after a miss before spinning is tried again.
const PAUSE: u32 = 64;

/// One waiter's experience, packed into a number so that it fits an atomic: the sleeps to go before
/// the next try; 0 while spinning pays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spin(pub u32);

impl Spin {
    /// A waiter without experience: it sleeps first.
    pub const fn new() -> Spin {
        Spin(PAUSE)
    }

    /// A waiter that has good reason to spin: it tries at once.
    pub const fn eager() -> Spin {
        Spin(0)
    }

    /// The time to spin before the coming sleep.
    pub fn budget(&mut self) -> Duration {
        self.0 = self.0.saturating_sub(1);
        if self.0 == 0 { SPIN_MAX } else { Duration::ZERO }
    }

    /// Spinning brought nothing.
    pub fn missed(&mut self) {
        self.0 = PAUSE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_miss_costs_many_sleeps_and_a_hit_nothing() {
        let mut spin = Spin::new();
        let sleeps = (0..1000).take_while(|_| spin.budget().is_zero()).count();
        assert_eq!(sleeps, PAUSE as usize - 1);
        assert!((0..100).all(|_| spin.budget() == SPIN_MAX), "it pays: it goes on");
        spin.missed();
        assert_eq!(spin.budget(), Duration::ZERO);
    }
}
