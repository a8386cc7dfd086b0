//! Schedules of faults from a seed.

use std::ops::RangeInclusive;
use std::time::Duration;

use ropewalk_base::random::Random;

use crate::direction::Direction;
use crate::fault::{Fault, FaultKind};

/// The faults of a schedule.
#[derive(Debug, Clone)]
pub struct ScheduleConfig {
    pub hosts: usize,
    pub rails: usize,
    /// The number of faults.
    pub faults: usize,
    /// The kinds among which it chooses; [`FaultKind::examples`] has all.
    pub kinds: Vec<FaultKind>,
    /// How long a fault lasts.
    pub lasts: RangeInclusive<Duration>,
    /// The pause before a fault; a rail has the shortest pause at least between two faults.
    pub pause: RangeInclusive<Duration>,
    /// Rails that have a fault at the same time; all others are well. 1 to `rails`.
    pub rails_hurt_max: usize,
}

/// The faults that the seed determines, in the order of their times. Those of one rail never overlap, so that each of
/// them can be injected. Panics where a range is empty, where there is no kind, host or rail, and where more rails, or
/// none, may have a fault.
pub fn schedule(seed: u64, config: &ScheduleConfig) -> Vec<Fault> {
    let ScheduleConfig { hosts, rails, rails_hurt_max, .. } = *config;
    assert!(hosts > 0 && !config.kinds.is_empty(), "there are hosts and kinds");
    assert!((1..=rails).contains(&rails_hurt_max), "1 to {rails} rails may have a fault");
    let mut random = Random::from_seed(seed);
    let mut found: Vec<Fault> = Vec::new();
    // Faults of one lane follow each other; faults of different lanes may overlap.
    let mut lanes = vec![Duration::ZERO; rails_hurt_max];
    while found.len() < config.faults {
        let lane = (0..lanes.len()).min_by_key(|lane| lanes[*lane]).expect("there is one");
        let mut at = lanes[lane] + within(&mut random, &config.pause);
        let lasts = within(&mut random, &config.lasts);
        let rail = loop {
            let (begin, end) = (at, at + lasts + *config.pause.start());
            let is_free = |rail: &usize| {
                let mut others = found.iter().filter(|fault| fault.rail == *rail);
                others.all(|fault| end <= fault.at || fault.end() + *config.pause.start() <= begin)
            };
            let free: Vec<usize> = (0..rails).filter(is_free).collect();
            if !free.is_empty() {
                break free[random.below(free.len() as u64) as usize];
            }
            at += (*config.pause.start()).max(Duration::from_millis(1));
        };
        let kind = config.kinds[random.below(config.kinds.len() as u64) as usize];
        let all = [Direction::Both, Direction::From, Direction::To];
        let directions = if kind.has_direction() { &all[..] } else { &all[..1] };
        let direction = directions[random.below(directions.len() as u64) as usize];
        let host = random.below(hosts as u64) as usize;
        let seed = random.next_u64();
        found.push(Fault { kind, host, rail, direction, seed, at, lasts });
        lanes[lane] = at + lasts;
    }
    found.sort_by_key(|fault| fault.at);
    found
}

fn within(random: &mut Random, range: &RangeInclusive<Duration>) -> Duration {
    assert!(!range.is_empty(), "the range {range:?} is empty");
    let nanos = (*range.end() - *range.start()).as_nanos() as u64;
    *range.start() + Duration::from_nanos(random.below(nanos + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    fn config(rails: usize, rails_hurt_max: usize) -> ScheduleConfig {
        ScheduleConfig {
            hosts: 4,
            rails,
            faults: 300,
            kinds: FaultKind::examples(),
            lasts: ms(50)..=ms(500),
            pause: ms(100)..=ms(300),
            rails_hurt_max,
        }
    }

    #[test]
    fn a_seed_gives_the_same_schedule_again() {
        let config = config(4, 3);
        assert_eq!(schedule(5, &config), schedule(5, &config));
        assert_ne!(schedule(5, &config), schedule(6, &config));
    }

    #[test]
    fn enough_rails_are_well_at_any_time_and_each_rests_between_faults() {
        for (rails, most) in [(2, 1), (4, 1), (4, 3), (3, 3)] {
            let faults = schedule(9, &config(rails, most));
            assert_eq!(faults.len(), 300);
            for fault in &faults {
                let is_there = |at, other: &&Fault| other.at <= at && at < other.end();
                let there = faults.iter().filter(|other| is_there(fault.at, other)).count();
                assert!(there <= most, "{there} of {rails} rails have a fault");
                let rests = |other: &&Fault| {
                    other.rail == fault.rail
                        && is_there(fault.at, &&Fault { lasts: other.lasts + ms(100), ..**other })
                };
                assert_eq!(faults.iter().filter(rests).count(), 1);
                assert!((ms(50)..=ms(500)).contains(&fault.lasts));
                assert!(fault.rail < rails && fault.host < 4);
            }
            let kinds = FaultKind::examples();
            assert!(kinds.iter().all(|kind| faults.iter().any(|fault| fault.kind == *kind)));
            assert!(faults.iter().any(|fault| fault.direction == Direction::To));
        }
    }
}
