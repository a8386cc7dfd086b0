//! Randomness as an argument. Production seeds from the operating system, the simulator from its
//! seed; the generator is the same, so a run is reproduced by its seed alone.

/// A small, fast, seedable generator (xoshiro256**, seeded through SplitMix64). Not for secrets: for these
/// [`crate::cipher_random`] is there.
#[derive(Debug, Clone)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// The generator that `seed` determines.
    pub fn from_seed(seed: u64) -> Random {
        let mut x = seed;
        let mut next = || {
            x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = x;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        Random { state: [next(), next(), next(), next()] }
    }

    /// 64 uniform bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// 64 bits of the present state that are no draw, neither an earlier nor the next one: what peers are told of
    /// draws does not tell them these. The draws stay what they are.
    pub fn apart(&self) -> u64 {
        // The scrambler of xoshiro256++; a draw looks at another word of the state.
        let s = &self.state;
        s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0])
    }

    /// 128 uniform bits.
    pub fn next_u128(&mut self) -> u128 {
        (u128::from(self.next_u64()) << 64) | u128::from(self.next_u64())
    }

    /// A uniform number below `bound`; 0 where `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // Multiply-shift: the bias is below 2^-64 * bound, far under what any caller can notice.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// True in `parts_per_million` of 1,000,000 cases.
    pub fn chance(&mut self, parts_per_million: u32) -> bool {
        self.below(1_000_000) < u64::from(parts_per_million)
    }

    /// A generator of its own for a part of the system, so that parts do not disturb each other.
    pub fn fork(&mut self) -> Random {
        Random::from_seed(self.next_u64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_bounds_hold() {
        let (mut a, mut b) = (Random::from_seed(7), Random::from_seed(7));
        for bound in 1..1000 {
            let x = a.below(bound);
            assert_eq!(x, b.below(bound));
            assert!(x < bound);
        }
        assert_ne!(Random::from_seed(8).next_u64(), Random::from_seed(7).next_u64());
    }
}
