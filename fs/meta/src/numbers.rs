//! Inode numbers and object generations, in ranges that are durable before one of them is used.
//!
//! Invariant: no number is given out twice, and no inode gets a generation twice, whatever crash comes
//! between. Numbers that were reserved and not used up are lost.

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

/// Generations that are reserved at a time. Only a power loss gives up reserved ones: 32 bits are enough for
/// tens of thousands of them.
const GENERATIONS: u32 = 1 << 16;

/// The generations that the content of files may get. Each inode counts its own. But after a power loss its
/// row may hold an older generation than the one under which clients wrote objects to data servers. So the
/// generations of each era of the store begin above those of all eras before.
#[derive(Debug)]
pub struct Generations {
    /// The first of this era.
    first: u32,
    /// Those below are durably reserved, and may be used.
    end: u32,
    /// Reserved up to here, with the position of the row that says so.
    coming: Option<(u32, u64)>,
}

impl Generations {
    /// From `first` on; those below `end` are durably reserved.
    pub fn new(first: u32, end: u32) -> Generations {
        Generations { first, end, coming: None }
    }

    /// The first of this era.
    pub fn first(&self) -> u32 {
        self.first
    }

    /// The generation after `old`; `None` where there are no more.
    pub fn after(&self, old: u32) -> Option<u32> {
        let next = old.checked_add(1)?.max(self.first);
        (next < u32::MAX - GENERATIONS).then_some(next)
    }

    /// Everything up to this position is durable.
    pub fn settle(&mut self, durable: u64) {
        if let Some((end, _)) = self.coming.take_if(|(_, position)| *position <= durable) {
            self.end = end;
        }
    }

    /// Up to where to reserve now, where it is time to, since `next` is to be used.
    pub fn wanted(&self, next: u32) -> Option<u32> {
        let low = next + GENERATIONS / 2 >= self.end;
        (low && self.coming.is_none()).then_some(next + GENERATIONS)
    }

    /// All below `end` were reserved at `position`.
    pub fn add(&mut self, end: u32, position: u64) {
        assert!(self.coming.is_none(), "one reservation is on its way at a time");
        self.coming = Some((end, position));
    }

    /// Whether `next` may be used: no later era will use it again.
    pub fn may_use(&self, next: u32) -> bool {
        next < self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_of_a_former_era_is_not_given_out_again() {
        let mut generations = Generations::new(0, 0);
        let end = generations.wanted(0).expect("nothing is reserved");
        generations.add(end, 5);
        generations.settle(4);
        assert!(!generations.may_use(1), "the reservation could be lost");
        generations.settle(5);
        assert!(generations.may_use(1));
        assert_eq!((generations.after(0), generations.wanted(1)), (Some(1), None));
        let late = end - GENERATIONS / 2;
        let further = generations.wanted(late).expect("half of it is used");
        assert!(further > end && generations.may_use(end - 1) && !generations.may_use(end));
        let next_era = Generations::new(end, end);
        assert_eq!(next_era.after(0), Some(end));
        assert_eq!(next_era.after(end + 7), Some(end + 8));
    }

    #[test]
    fn a_generation_beyond_all_that_is_reserved_is_reserved_at_once() {
        // As where rows are older than the reservation.
        let mut generations = Generations::new(0, 0);
        generations.add(GENERATIONS, 1);
        generations.settle(1);
        let next = generations.after(5 * GENERATIONS).expect("there are more");
        assert_eq!(generations.wanted(next), Some(next + GENERATIONS));
        for old in [u32::MAX, u32::MAX - 1, u32::MAX - GENERATIONS] {
            assert_eq!(generations.after(old), None);
        }
    }

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
