//! Numbers of operations that are done: all up to one, and some above it.

/// Numbers above the highest one below which nothing lacks, at most.
pub(crate) const NUMBERS_MAX: u64 = 1024;

const WORDS: usize = NUMBERS_MAX as usize / 64;

/// The state of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    Open,
    Done,
    /// Farther ahead than any honest peer is, or no number.
    Beyond,
}

/// A set of numbers from 1 on. Those above `through` are bits, in a ring.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    through: u64,
    above: [u64; WORDS],
}

impl Numbers {
    /// All numbers up to this one are done, and the next one is not.
    pub fn through(&self) -> u64 {
        self.through
    }

    pub fn known(&self, number: u64) -> Known {
        match number.checked_sub(self.through) {
            None if number == 0 => Known::Beyond,
            None | Some(0) if number > 0 => Known::Done,
            Some(1..=NUMBERS_MAX) => match self.has_bit(number) {
                true => Known::Done,
                false => Known::Open,
            },
            _ => Known::Beyond,
        }
    }

    /// A number is done. One that is not open changes nothing.
    pub fn add(&mut self, number: u64) {
        if self.known(number) != Known::Open {
            return;
        }
        self.flip(number);
        // No bit stands for number 0, which follows the last one.
        while self.has_bit(self.through.wrapping_add(1)) {
            self.through += 1;
            self.flip(self.through);
        }
    }

    fn has_bit(&self, number: u64) -> bool {
        self.above[Self::word(number)] >> (number % 64) & 1 != 0
    }

    fn flip(&mut self, number: u64) {
        self.above[Self::word(number)] ^= 1 << (number % 64);
    }

    fn word(number: u64) -> usize {
        (number / 64) as usize % WORDS
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ropewalk_base::random::Random;

    use super::*;

    #[test]
    fn numbers_are_done_as_in_a_plain_set_in_whatever_order_they_come() {
        let mut random = Random::from_seed(7);
        let (mut numbers, mut set) = (Numbers::default(), BTreeSet::new());
        let mut through = 0;
        for _ in 0..20_000 {
            let number = (through + random.below(NUMBERS_MAX + 40)).saturating_sub(20);
            let known = match number {
                0 => Known::Beyond,
                _ if number <= through || set.contains(&number) => Known::Done,
                _ if number > through + NUMBERS_MAX => Known::Beyond,
                _ => Known::Open,
            };
            assert_eq!(numbers.known(number), known, "{number} with {through}");
            numbers.add(number);
            if known == Known::Open {
                set.insert(number);
            }
            while set.remove(&(through + 1)) {
                through += 1;
            }
            assert_eq!(numbers.through(), through);
        }
        assert!(through > 2_000, "{through}");
    }

    #[test]
    fn the_last_numbers_of_all_are_numbers_like_others() {
        let mut numbers = Numbers { through: u64::MAX - 2, ..Numbers::default() };
        assert_eq!(numbers.known(u64::MAX), Known::Open);
        numbers.add(u64::MAX);
        numbers.add(u64::MAX - 1);
        assert_eq!(numbers.through(), u64::MAX);
    }
}
