//! Numbers of packets: 14 bits that wrap around, and 2 bits that change when a connection begins anew.

/// A number as it travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sequence(pub u16);

/// Numbers before the first comes again.
const NUMBERS: u16 = 1 << 14;

impl Sequence {
    /// Of these two parts; bits that do not fit are cut off.
    pub const fn new(bits: u8, number: u64) -> Sequence {
        Sequence((bits as u16) << 14 | (number % NUMBERS as u64) as u16)
    }

    /// The 14 bits.
    pub const fn number(self) -> u16 {
        self.0 % NUMBERS
    }

    /// The 2 bits of session.
    pub const fn bits(self) -> u8 {
        (self.0 >> 14) as u8
    }

    /// The distance of this number ahead of `other`, going up, 0 to 16383.
    pub const fn ahead_of(self, other: Sequence) -> u16 {
        self.0.wrapping_sub(other.0) % NUMBERS
    }

    /// The number without end that this one stands for: the nearest to `near`.
    pub const fn expand(self, near: u64) -> u64 {
        let ahead = self.0.wrapping_sub((near % NUMBERS as u64) as u16) % NUMBERS;
        let up = near + ahead as u64;
        if ahead > NUMBERS / 2 && up >= NUMBERS as u64 { up - NUMBERS as u64 } else { up }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_make_a_number_and_come_back() {
        let sequence = Sequence::new(3, 16_384 + 5);
        assert_eq!((sequence.0, sequence.bits(), sequence.number()), (0xc005, 3, 5));
        assert_eq!(Sequence::new(0, 2).ahead_of(Sequence::new(0, 16_383)), 3);
        assert_eq!(Sequence::new(1, 2).ahead_of(Sequence::new(0, 2)), 0);
    }

    #[test]
    fn a_number_expands_to_the_nearest() {
        for near in [0u64, 1, 8191, 8192, 16_383, 16_384, 100_000, 1 << 40] {
            for away in [-8000i64, -1, 0, 1, 300, 8191] {
                let Some(number) = near.checked_add_signed(away) else { continue };
                assert_eq!(Sequence::new(2, number).expand(near), number, "{near} {away}");
            }
        }
        assert_eq!(Sequence::new(0, 16_383).expand(0), 16_383, "there is none before 0");
    }
}
