//! Inode numbers, in ranges that are durable before one of their numbers is used.
//!
//! Invariant: no number is given out twice, whatever crash comes between; numbers of a range that
//! was not used up are lost.

use std::ops::Range;

/// The first number that is not reserved for special inodes.
pub const FIRST: u64 = 16;

/// The ranges at hand.
#[derive(Debug, Default)]
pub struct Numbers {
    ready: Range<u64>,
    /// Reserved, with the position of its row; usable when that is durable.
    coming: Option<(Range<u64>, u64)>,
}

impl Numbers {
    /// A range was written at `position`.
    pub fn add(&mut self, range: Range<u64>, position: u64) {
        assert!(self.coming.is_none(), "one range is on its way at a time");
        self.coming = Some((range, position));
    }

    /// Whether it is time to write another range.
    pub fn wants_range(&self, range: u64) -> bool {
        self.coming.is_none() && self.ready.end - self.ready.start < range / 2
    }

    /// Every number below this one was given out, or never will be. `next_range`: where the next range
    /// will begin.
    pub fn first_unused(&self, next_range: u64) -> u64 {
        match &self.coming {
            _ if !self.ready.is_empty() => self.ready.start,
            Some((range, _)) => range.start,
            None => next_range,
        }
    }

    /// The next number; None while the range that has it is not durable.
    pub fn next(&mut self, durable: u64) -> Option<u64> {
        if self.ready.is_empty() {
            let (range, _) = self.coming.take_if(|(_, position)| *position <= durable)?;
            self.ready = range;
        }
        self.ready.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_wait_for_their_range() {
        let mut numbers = Numbers::default();
        assert!(numbers.wants_range(4));
        numbers.add(16..18, 5);
        assert!(!numbers.wants_range(4));
        assert_eq!(numbers.next(4), None);
        assert_eq!(numbers.first_unused(18), 16);
        assert_eq!(numbers.next(5), Some(16));
        assert_eq!(numbers.first_unused(18), 17);
        assert!(numbers.wants_range(4));
        numbers.add(18..20, 9);
        assert_eq!((numbers.next(5), numbers.next(5), numbers.next(9)), (Some(17), None, Some(18)));
        assert_eq!(
            (numbers.first_unused(20), numbers.next(9), numbers.first_unused(20)),
            (19, Some(19), 20)
        );
    }
}
