//! The numbers of packets that were heard: none counts twice.

/// Numbers that a packet may lie behind the highest one.
const BITS: u64 = 1024;
const WORDS: usize = (BITS / 64) as usize;

/// A window over the numbers of the packets of one direction.
///
/// Invariant: [`Window::take`] is true at most once for each number.
#[derive(Debug)]
pub struct Window {
    /// One more than the highest number that was taken.
    end: u64,
    /// Whether each of the last `BITS` numbers was taken, by its remainder.
    taken: [u64; WORDS],
}

impl Default for Window {
    fn default() -> Window {
        Window::new()
    }
}

impl Window {
    /// No number was heard.
    pub fn new() -> Window {
        Window { end: 0, taken: [0; WORDS] }
    }

    /// One more than the highest number that was taken.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Whether a number is new. To be asked before its packet is opened; it changes nothing.
    pub fn is_new(&self, number: u64) -> bool {
        if number >= self.end {
            return true;
        }
        let (word, bit) = place(number);
        self.end - number <= BITS && self.taken[word] & bit == 0
    }

    /// Takes a number whose packet is genuine. False where it is not new.
    pub fn take(&mut self, number: u64) -> bool {
        if !self.is_new(number) {
            return false;
        }
        if number >= self.end {
            let begun = self.end.max((number + 1).saturating_sub(BITS));
            for passed in begun..number {
                let (word, bit) = place(passed);
                self.taken[word] &= !bit;
            }
            self.end = number + 1;
        }
        let (word, bit) = place(number);
        self.taken[word] |= bit;
        true
    }
}

fn place(number: u64) -> (usize, u64) {
    (((number % BITS) / 64) as usize, 1 << (number % 64))
}
