//! When what happens to which rail while a kernel runs: faults, and planned drains at the same moments.

use std::ops::Range;
use std::time::Duration;

use ropewalk_base::random::Random;
use ropewalk_netns::{Fault, FaultKind};

/// The network of kernels.
pub const HOSTS: usize = 4;
pub const RAILS: usize = 2;
/// How long a fault lasts.
const LASTS_MS: Range<u64> = 20..60;
/// Moments and places of faults follow from it, and from the number of the run.
const SEED: u64 = 0x0A17_EF1A;

/// What happens while a kernel runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disturbance {
    Nothing,
    /// One host after the other drains a rail, at the moments of [`Disturbance::Cuts`].
    Drains,
    /// One host after the other is cut off from a rail, silently.
    Cuts,
    /// All hosts drain a rail, at the moments of [`Disturbance::Switch`].
    SwitchDrains,
    /// The switch of a rail dies under all hosts, silently, and comes back.
    Switch,
}

impl Disturbance {
    pub const ALL: [Disturbance; 5] = [
        Disturbance::Nothing,
        Disturbance::Drains,
        Disturbance::Cuts,
        Disturbance::SwitchDrains,
        Disturbance::Switch,
    ];

    /// Each kind of fault, and the planned drains that it is compared with.
    pub const PLANNED: [(Disturbance, Disturbance); 2] = [
        (Disturbance::Cuts, Disturbance::Drains),
        (Disturbance::Switch, Disturbance::SwitchDrains),
    ];

    pub fn name(self) -> &'static str {
        match self {
            Disturbance::Nothing => "none",
            Disturbance::Drains => "drains",
            Disturbance::Cuts => "cuts",
            Disturbance::SwitchDrains => "switch-drains",
            Disturbance::Switch => "switch",
        }
    }
}

/// Something that happens to a rail.
#[derive(Debug, Clone, PartialEq)]
pub struct Moment {
    pub at: Duration,
    pub lasts: Duration,
    pub hosts: Range<usize>,
    pub rail: usize,
    /// `None`: these hosts drain the rail.
    pub fault: Option<Fault>,
}

impl Moment {
    pub fn end(&self) -> Duration {
        self.at + self.lasts
    }
}

/// So many random moments within the time in seconds, none of which overlap.
pub fn moments(disturbance: Disturbance, count: usize, seconds: f64, run: usize) -> Vec<Moment> {
    if disturbance == Disturbance::Nothing {
        return Vec::new();
    }
    let mut random = Random::from_seed(SEED + run as u64);
    let slot = Duration::from_secs_f64(seconds / count as f64);
    let mut moment = |number: usize| {
        let lasts = LASTS_MS.start + random.below(LASTS_MS.end - LASTS_MS.start);
        let lasts = Duration::from_millis(lasts).min(slot / 2);
        let room = (slot - lasts).as_nanos() as u64 / 2;
        let at = slot * number as u32 + Duration::from_nanos(random.below(room + 1));
        let host = random.below(HOSTS as u64) as usize;
        let rail = random.below(RAILS as u64) as usize;
        let seed = random.next_u64();
        let fault = |kind| Fault { at, lasts, ..Fault::new(kind, host, rail).seeded(seed) };
        let (hosts, fault) = match disturbance {
            Disturbance::Nothing | Disturbance::Drains => (host..host + 1, None),
            Disturbance::Cuts => (host..host + 1, Some(fault(FaultKind::Cut))),
            Disturbance::SwitchDrains => (0..HOSTS, None),
            Disturbance::Switch => {
                (0..HOSTS, Some(fault(FaultKind::SwitchDeath { silently: true })))
            }
        };
        Moment { at, lasts, hosts, rail, fault }
    };
    (0..count).map(&mut moment).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_seeded_and_do_not_overlap_and_drains_have_those_of_faults() {
        let places = |moments: &[Moment]| -> Vec<_> {
            moments.iter().map(|it| (it.at, it.lasts, it.hosts.clone(), it.rail)).collect()
        };
        for (fault, drain) in Disturbance::PLANNED {
            let faults = moments(fault, 16, 3.0, 1);
            assert_eq!(faults, moments(fault, 16, 3.0, 1));
            assert_ne!(faults, moments(fault, 16, 3.0, 2));
            assert!(faults.windows(2).all(|pair| pair[0].end() < pair[1].at), "{faults:?}");
            assert!(faults.iter().all(|fault| fault.end() < Duration::from_secs(3)));
            let drains = moments(drain, 16, 3.0, 1);
            assert_eq!(places(&drains), places(&faults));
            assert!(drains.iter().all(|moment| moment.fault.is_none()));
        }
        assert!(moments(Disturbance::Nothing, 16, 3.0, 1).is_empty());
    }
}
