//! Numbers of which those that were told say nothing about others: a cipher makes them.
//!
//! For nonces, names and secrets that peers are told. A peer that knows all of them so far cannot say which is next, nor which
//! secrets others were told. Production takes the key from the operating system, the simulator from its seed.
//!
//! Invariant: a key is used for one buffer, and replaced by that buffer's beginning: what was drawn is not told by what
//! is in memory later.

use std::fmt;

use chacha20::ChaCha12;
use chacha20::cipher::{KeyIvInit, StreamCipher};

use crate::random::Random;

const KEY_BYTES: usize = 32;
const BUFFER_BYTES: usize = 512;
const NUMBER_BYTES: usize = 8;

/// A generator of numbers that nobody can guess.
pub struct CipherRandom {
    /// The next key, and numbers that were not drawn yet.
    buffer: [u8; BUFFER_BYTES],
    /// Where the next number begins.
    next: usize,
}

impl CipherRandom {
    /// The generator that these random bytes determine.
    pub fn from_key(key: [u8; KEY_BYTES]) -> CipherRandom {
        let mut buffer = [0; BUFFER_BYTES];
        buffer[..KEY_BYTES].copy_from_slice(&key);
        CipherRandom { buffer, next: BUFFER_BYTES }
    }

    /// The generator that another one's state determines, which stays as it was: its draws are what they are.
    pub fn peek(random: &Random) -> CipherRandom {
        let mut random = random.clone();
        let mut key = [0; KEY_BYTES];
        let parts = key.chunks_exact_mut(NUMBER_BYTES);
        parts.for_each(|part| part.copy_from_slice(&random.next_u64().to_le_bytes()));
        CipherRandom::from_key(key)
    }

    /// 64 uniform bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        if self.next >= BUFFER_BYTES {
            self.refill();
        }
        let drawn = &mut self.buffer[self.next..self.next + NUMBER_BYTES];
        self.next += NUMBER_BYTES;
        let mut number = [0; NUMBER_BYTES];
        number.copy_from_slice(drawn);
        drawn.fill(0);
        u64::from_le_bytes(number)
    }

    /// 128 uniform bits.
    pub fn next_u128(&mut self) -> u128 {
        u128::from(self.next_u64()) << 64 | u128::from(self.next_u64())
    }

    #[cold]
    fn refill(&mut self) {
        let mut key = [0; KEY_BYTES];
        key.copy_from_slice(&self.buffer[..KEY_BYTES]);
        self.buffer = [0; BUFFER_BYTES];
        // Each key is used for one message, so its number does not matter.
        ChaCha12::new(&key.into(), &[0; 12].into()).apply_keystream(&mut self.buffer);
        self.next = KEY_BYTES;
    }
}

impl fmt::Debug for CipherRandom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CipherRandom(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(mut random: CipherRandom) -> Vec<u64> {
        (0..200).map(|_| random.next_u64()).collect()
    }

    #[test]
    fn the_same_key_gives_the_same_numbers_and_none_twice() {
        let first = drawn(CipherRandom::from_key([7; KEY_BYTES]));
        assert_eq!(first, drawn(CipherRandom::from_key([7; KEY_BYTES])));
        let mut all = first.clone();
        all.extend(drawn(CipherRandom::from_key([8; KEY_BYTES])));
        all.extend(drawn(CipherRandom::peek(&Random::from_seed(7))));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 600);
    }

    /// The first block under a key of zeros, as draft-strombergson-chacha-test-vectors has it for 12 rounds.
    #[test]
    fn the_numbers_are_those_of_the_cipher() {
        let block = "9bf49a6a0755f953811fce125f2683d50429c3bb49e074147e0089a52eae155f\
                     0564f879d27ae3c02ce82834acfa8c793a629f2ca0de6919610be82f411326be";
        let bytes: Vec<u8> =
            (0..64).map(|at| u8::from_str_radix(&block[2 * at..2 * at + 2], 16).unwrap()).collect();
        let mut random = CipherRandom::from_key([0; KEY_BYTES]);
        for number in bytes[KEY_BYTES..].chunks_exact(NUMBER_BYTES) {
            assert_eq!(random.next_u64().to_le_bytes(), number);
        }
    }

    #[test]
    fn what_was_drawn_is_not_kept_and_nothing_is_shown() {
        let mut random = CipherRandom::from_key([7; KEY_BYTES]);
        let number = random.next_u64().to_le_bytes();
        assert!(!random.buffer.windows(NUMBER_BYTES).any(|bytes| bytes == number));
        assert_eq!(format!("{random:?}"), "CipherRandom(..)");
        // The key of the first buffer is gone.
        assert!(random.buffer[..KEY_BYTES] != [7; KEY_BYTES]);
    }
}
