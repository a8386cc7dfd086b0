//! Sets of endpoint numbers.

/// A set of numbers from 0 to 255.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Numbers([u64; 4]);

fn place(number: u8) -> (usize, u64) {
    (usize::from(number / 64), 1 << (number % 64))
}

impl Numbers {
    pub fn insert(&mut self, number: u8) {
        let (word, bit) = place(number);
        self.0[word] |= bit;
    }

    pub fn remove(&mut self, number: u8) {
        let (word, bit) = place(number);
        self.0[word] &= !bit;
    }

    pub fn contains(&self, number: u8) -> bool {
        let (word, bit) = place(number);
        self.0[word] & bit != 0
    }

    pub fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }

    /// The largest.
    pub fn last(&self) -> Option<u8> {
        let word = self.0.iter().rposition(|word| *word != 0)?;
        Some(word as u8 * 64 + self.0[word].ilog2() as u8)
    }

    /// As bits of words, the smallest numbers first.
    pub fn words(&self) -> [u32; 8] {
        std::array::from_fn(|at| (self.0[at / 2] >> (at % 2 * 32)) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_set() {
        let mut set = Numbers::default();
        assert_eq!((set.is_empty(), set.last()), (true, None));
        for number in [0, 31, 32, 63, 64, 200, 255] {
            set.insert(number);
            assert!(set.contains(number) && !set.contains(number ^ 2));
            assert_eq!(set.last(), Some(number));
        }
        assert_eq!(set.words(), [1 | 1 << 31, 1 | 1 << 31, 1, 0, 0, 0, 1 << 8, 1 << 31]);
        set.remove(255);
        assert_eq!((set.contains(255), set.last()), (false, Some(200)));
    }
}
