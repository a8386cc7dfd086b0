//! What a wire does to frames, and the decision for each frame.
//!
//! Invariant: decisions follow from the seed and from the number of the frame in its direction alone.

use std::time::Duration;

use ropewalk_base::random::Random;

use crate::direction::Direction;

/// Bytes of an Ethernet header. It is never corrupted, else the frame would reach nobody.
const ETHERNET_BYTES: usize = 14;

/// The impairments of frames. Chances are parts of a million. Several on one wire act one after another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Impairment {
    /// Each frame comes later by this, and by a random time below `jitter`, so that frames overtake others.
    pub delay: Duration,
    pub jitter: Duration,
    /// So many are lost.
    pub loss_ppm: u32,
    /// So many come twice.
    pub duplicate_ppm: u32,
    /// So many come later by `reorder_by`.
    pub reorder_ppm: u32,
    pub reorder_by: Duration,
    /// A bit is flipped in so many, behind the Ethernet header. The kernel does not notice wherever a virtual
    /// interface has left the checksum out.
    pub corrupt_ppm: u32,
}

impl Impairment {
    /// Later by `delay`, and by up to `jitter` more.
    pub fn delay(delay: Duration, jitter: Duration) -> Impairment {
        Impairment { delay, jitter, ..Impairment::default() }
    }

    /// So many of a million are lost.
    pub fn loss(ppm: u32) -> Impairment {
        Impairment { loss_ppm: ppm, ..Impairment::default() }
    }

    /// So many of a million come twice.
    pub fn duplicate(ppm: u32) -> Impairment {
        Impairment { duplicate_ppm: ppm, ..Impairment::default() }
    }

    /// So many of a million come later by `by`.
    pub fn reorder(ppm: u32, by: Duration) -> Impairment {
        Impairment { reorder_ppm: ppm, reorder_by: by, ..Impairment::default() }
    }

    /// A bit is flipped in so many of a million.
    pub fn corrupt(ppm: u32) -> Impairment {
        Impairment { corrupt_ppm: ppm, ..Impairment::default() }
    }
}

/// An impairment of a wire, and its random choices in both directions.
#[derive(Debug)]
pub(super) struct Active {
    pub number: u64,
    pub impairment: Impairment,
    chances: [Option<Random>; 2],
}

/// What happened to a frame, beside the times at which its copies go on.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Harm {
    pub lost: bool,
    pub duplicated: bool,
    pub reordered: bool,
    pub corrupted: bool,
}

impl Active {
    pub fn new(number: u64, impairment: Impairment, direction: Direction, seed: u64) -> Active {
        let mut random = Random::from_seed(seed);
        let both = [random.fork(), random.fork()];
        let concerned = [direction.has_from(), direction.has_to()];
        let mut chances = both.map(Some);
        for (chance, concerned) in chances.iter_mut().zip(concerned) {
            *chance = chance.take().filter(|_| concerned);
        }
        Active { number, impairment, chances }
    }
}

/// Decides about a frame of a direction: 0 from the host, 1 to it. `delays` has an entry for each copy that goes on.
pub(super) fn decide(
    all: &mut [Active],
    direction: usize,
    frame: &mut [u8],
    delays: &mut Vec<Duration>,
) -> Harm {
    let mut harm = Harm::default();
    delays.clear();
    delays.push(Duration::ZERO);
    for Active { impairment, chances, .. } in all {
        let Some(random) = &mut chances[direction] else { continue };
        // Each frame draws as often as any other, so that one impairment's chances do not depend on another's.
        let lost = random.chance(impairment.loss_ppm);
        let corrupted = random.chance(impairment.corrupt_ppm);
        let duplicated = random.chance(impairment.duplicate_ppm);
        let reordered = random.chance(impairment.reorder_ppm);
        let (bit, early, late) = (random.next_u64(), random.next_u64(), random.next_u64());
        if lost {
            delays.clear();
            return Harm { lost, ..Harm::default() };
        }
        if corrupted && frame.len() > ETHERNET_BYTES {
            let bits = (frame.len() - ETHERNET_BYTES) as u64 * 8;
            let bit = (bit % bits) as usize;
            frame[ETHERNET_BYTES + bit / 8] ^= 1 << (bit % 8);
            harm.corrupted = true;
        }
        let later = |part: u64| {
            let jitter = impairment.jitter.as_nanos() as u64;
            impairment.delay + Duration::from_nanos(part.checked_rem(jitter).unwrap_or(0))
        };
        let before = delays.len();
        for index in 0..before {
            if duplicated {
                delays.push(delays[index] + later(late));
            }
            delays[index] += later(early);
        }
        if reordered {
            delays[0] += impairment.reorder_by;
        }
        harm.duplicated |= duplicated;
        harm.reordered |= reordered;
    }
    harm
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn run(all: &mut [Active], direction: usize, frames: usize) -> Vec<(Harm, Vec<Duration>)> {
        let mut delays = Vec::new();
        let one = |_| {
            let harm = decide(all, direction, &mut [0; 60], &mut delays);
            (harm, delays.clone())
        };
        (0..frames).map(one).collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_decisions_and_directions_are_apart() {
        let impairment = Impairment {
            loss_ppm: 100_000,
            reorder_by: MS,
            reorder_ppm: 50_000,
            ..Impairment::delay(MS, MS)
        };
        let active = |seed| [Active::new(0, impairment, Direction::Both, seed)];
        let (mut one, mut other) = (active(7), active(7));
        let first = run(&mut one, 0, 1000);
        // Frames of the other direction change nothing.
        run(&mut other, 1, 123);
        assert_eq!(first, run(&mut other, 0, 1000));
        assert_ne!(first, run(&mut active(8), 0, 1000));
        assert_ne!(first, run(&mut active(7), 1, 1000));
        let lost = first.iter().filter(|(harm, _)| harm.lost).count();
        assert!((70..130).contains(&lost), "{lost}");
        let times = first.iter().flat_map(|(_, delays)| delays);
        assert!(times.clone().all(|delay| (MS..3 * MS).contains(delay)));
        assert!(times.clone().any(|delay| *delay > 2 * MS));
    }

    #[test]
    fn one_direction_alone_is_concerned_where_that_was_asked_for() {
        let impairment = Impairment::loss(1_000_000);
        let mut from = [Active::new(0, impairment, Direction::From, 1)];
        assert!(run(&mut from, 0, 10).iter().all(|(harm, delays)| harm.lost && delays.is_empty()));
        let passed = (Harm::default(), vec![Duration::ZERO]);
        assert!(run(&mut from, 1, 10).iter().all(|found| *found == passed));
    }

    #[test]
    fn corruption_flips_one_bit_behind_the_ethernet_header() {
        let mut active = [Active::new(0, Impairment::corrupt(1_000_000), Direction::Both, 3)];
        let mut places = [0; 60];
        for _ in 0..5000 {
            let mut frame = [0_u8; 60];
            assert!(decide(&mut active, 0, &mut frame, &mut Vec::new()).corrupted);
            assert_eq!(frame.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
            places[frame.iter().position(|byte| *byte != 0).expect("one is")] += 1;
        }
        assert!(places[..14].iter().all(|count| *count == 0));
        assert!(places[14..].iter().all(|count| *count > 0), "{places:?}");
        assert!(!decide(&mut active, 0, &mut [0; 14], &mut Vec::new()).corrupted);
    }

    #[test]
    fn several_impairments_add_up() {
        let delay = Impairment::delay(MS, Duration::ZERO);
        let active = |impairment| Active::new(0, impairment, Direction::Both, 3);
        let mut all = [active(delay), active(Impairment::duplicate(1_000_000)), active(delay)];
        let (harm, delays) = run(&mut all, 0, 1).remove(0);
        assert!(harm.duplicated && !harm.lost);
        assert_eq!(delays, [2 * MS, 2 * MS]);
    }
}
