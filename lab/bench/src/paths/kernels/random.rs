//! The random numbers of the NAS benchmarks: x' = a x modulo 2^46, as fractions of 1.

/// The usual multiplier, 5^13, and the usual first value.
const MULTIPLIER: u64 = 1_220_703_125;
pub const SEED: u64 = 314_159_265;
const BITS: u32 = 46;
const MASK: u64 = (1 << BITS) - 1;

/// A stream of numbers.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The stream behind so many numbers.
    pub fn after(count: u64) -> Random {
        Random(product(power(count), SEED))
    }

    /// The next number, above 0 and below 1.
    pub fn next(&mut self) -> f64 {
        self.0 = product(self.0, MULTIPLIER);
        // Both are exact: 46 bits fit.
        self.0 as f64 / (1u64 << BITS) as f64
    }
}

fn product(a: u64, b: u64) -> u64 {
    // 2^46 divides 2^64, so that a product cut to 64 bits has the right lowest ones.
    a.wrapping_mul(b) & MASK
}

/// The multiplier to this power.
fn power(mut exponent: u64) -> u64 {
    let (mut result, mut square) = (1, MULTIPLIER);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = product(result, square);
        }
        square = product(square, square);
        exponent >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_can_begin_anywhere() {
        let mut from_first = Random::after(0);
        for count in 0..100 {
            let mut later = Random::after(count);
            let number = from_first.next();
            assert_eq!(later.next().to_bits(), number.to_bits());
            assert!(number > 0.0 && number < 1.0);
        }
    }
}
