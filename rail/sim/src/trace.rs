//! A running hash over everything that happens, to prove that two runs were the same run.

/// A 64-bit hash that grows word by word. Equal hashes of two runs with one seed are the evidence
/// that nothing outside the seed (addresses, hash tables, the real clock) had a say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trace {
    state: u64,
}

impl Trace {
    /// The hash of nothing.
    pub fn new() -> Trace {
        Trace { state: 0x524f_5045_5741_4c4b }
    }

    /// Takes one word in; the order of words matters.
    pub fn mix(&mut self, word: u64) {
        let mut z = self.state.rotate_left(23) ^ word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        self.state = z ^ (z >> 32);
    }

    /// Takes bytes in, with their number.
    pub fn mix_bytes(&mut self, bytes: &[u8]) {
        self.mix(bytes.len() as u64);
        self.mix(u64::from(ropewalk_base::checksum::crc32c(bytes)));
    }

    /// The hash of all words so far.
    pub fn value(&self) -> u64 {
        self.state
    }
}

impl Default for Trace {
    fn default() -> Trace {
        Trace::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_content_change_the_hash() {
        let hash = |words: &[u64]| {
            let mut trace = Trace::new();
            words.iter().for_each(|&word| trace.mix(word));
            trace.value()
        };
        assert_eq!(hash(&[1, 2, 3]), hash(&[1, 2, 3]));
        assert_ne!(hash(&[1, 2, 3]), hash(&[2, 1, 3]));
        assert_ne!(hash(&[1]), hash(&[1, 0]));
        assert_ne!(hash(&[0]), hash(&[]));
    }
}
