//! `long double` as x86-64 has it: the 80 bits of an x87 register in 16 bytes of memory, of which the last 6 are padding.
//!
//! Sums and products are those of the processor, in its full precision and rounded to the nearest, whatever the program has set.
//! Comparisons go by the bits, here: so the rules of other numbers hold ([`super::element`]), and an encoding that the
//! processor calls invalid counts as NaN.
//!
//! Elsewhere a `long double` is another number (of 128 bits, mostly), for which there is no instruction: nothing is calculated there
//! ([`super::Element::is_calculated`]), and nobody asks for a comparison.

use std::cmp::Ordering;

use super::element::{Arithmetic, Ordered, order_of_values};

/// Bytes of a value of 80 bits.
pub(super) const BYTES: usize = 10;
/// The exponent of what is infinite, or no number.
const EXPONENT_MAX: u16 = 0x7fff;
/// The bit of the fraction that stands before the point, which is stored.
const INTEGER_BIT: u64 = 1 << 63;

/// A number of 80 bits, in the order of the processor's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(super) struct LongDouble {
    fraction: u64,
    /// The sign is the highest bit.
    exponent: u16,
}

impl LongDouble {
    const NAN: LongDouble =
        LongDouble { fraction: INTEGER_BIT | INTEGER_BIT >> 1, exponent: EXPONENT_MAX };

    pub fn of_bytes(bytes: [u8; BYTES]) -> LongDouble {
        let (fraction, exponent) = bytes.split_at(size_of::<u64>());
        let fraction = u64::from_le_bytes(fraction.try_into().expect("eight bytes"));
        let exponent = u16::from_le_bytes(exponent.try_into().expect("two bytes"));
        LongDouble { fraction, exponent }
    }

    pub fn to_bytes(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&self.fraction.to_le_bytes());
        bytes[8..].copy_from_slice(&self.exponent.to_le_bytes());
        bytes
    }

    fn biased(self) -> u16 {
        self.exponent & EXPONENT_MAX
    }

    /// Its sign and its bits as one number: of two zeros the negative one has the greater one.
    fn bits(self) -> u128 {
        u128::from(self.exponent) << 64 | u128::from(self.fraction)
    }

    fn is_nan(self) -> bool {
        let has_integer_bit = self.fraction & INTEGER_BIT != 0;
        match self.biased() {
            0 => false,
            EXPONENT_MAX => self.fraction != INTEGER_BIT,
            // The processor has no number for it.
            _ => !has_integer_bit,
        }
    }

    /// A number with the order of the values. NaN has none.
    fn key(self) -> i128 {
        // Numbers without an exponent have the least one.
        let magnitude = i128::from(self.biased().max(1)) << 64 | i128::from(self.fraction);
        match (self.fraction, self.exponent > EXPONENT_MAX) {
            (0, _) => 0,
            (_, true) => -magnitude,
            (_, false) => magnitude,
        }
    }

    fn compared(self, other: LongDouble) -> Option<Ordering> {
        (!self.is_nan() && !other.is_nan()).then(|| self.key().cmp(&other.key()))
    }
}

impl Ordered for LongDouble {
    fn least(self, other: Self) -> Self {
        match self.compared(other) {
            Some(Ordering::Less) => self,
            Some(Ordering::Greater) => other,
            // Of two zeros the negative one.
            Some(Ordering::Equal) if self.bits() > other.bits() => self,
            Some(Ordering::Equal) => other,
            None => Self::NAN,
        }
    }

    fn greatest(self, other: Self) -> Self {
        match self.compared(other) {
            Some(Ordering::Less) => other,
            Some(Ordering::Greater) => self,
            Some(Ordering::Equal) if self.bits() < other.bits() => self,
            Some(Ordering::Equal) => other,
            None => Self::NAN,
        }
    }

    fn order(self, other: Self, nan_first: bool) -> Ordering {
        order_of_values(self.compared(other), [self.is_nan(), other.is_nan()], nan_first)
    }
}

impl Arithmetic for LongDouble {
    fn sum(self, other: Self) -> Self {
        x87::sum(self, other)
    }

    fn product(self, other: Self) -> Self {
        x87::product(self, other)
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod x87 {
    use super::LongDouble;

    pub fn sum(_: LongDouble, _: LongDouble) -> LongDouble {
        unreachable!("elements take no such operator here")
    }

    pub fn product(_: LongDouble, _: LongDouble) -> LongDouble {
        unreachable!("elements take no such operator here")
    }
}

/// The processor's arithmetic.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x87 {
    use std::arch::asm;

    use super::LongDouble;

    /// Full precision, rounded to the nearest, without traps: as a program begins.
    pub static USUAL: u16 = 0x037f;
    /// Bytes of the environment: control, status, tags, pointers.
    const ENVIRONMENT: usize = 28;

    /// The control word of this thread.
    pub fn control() -> u16 {
        let mut word = 0_u16;
        // SAFETY: it stores two bytes, and nothing else.
        unsafe {
            asm!("fnstcw word ptr [{}]", in(reg) &raw mut word, options(nostack, preserves_flags));
        }
        word
    }

    macro_rules! calculated {
        ($name:ident, $instruction:literal) => {
            pub fn $name(mut value: LongDouble, own: LongDouble) -> LongDouble {
                let (to, from) = (&raw mut value, &raw const own);
                if control() == USUAL {
                    // SAFETY: both are numbers of ten bytes; the stack of registers is empty before and behind.
                    unsafe {
                        asm!(
                            "fld tbyte ptr [{to}]",
                            "fld tbyte ptr [{from}]",
                            $instruction,
                            "fstp tbyte ptr [{to}]",
                            to = in(reg) to, from = in(reg) from,
                            out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                            out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                            options(nostack),
                        );
                    }
                    return value;
                }
                // The program has a precision, a rounding or traps of its own, and keeps them.
                let mut kept = [0_u8; ENVIRONMENT];
                // SAFETY: as above; the environment is stored in as many bytes as it has, and restored behind.
                unsafe {
                    asm!(
                        "fnstenv [{kept}]",
                        "fldcw word ptr [{usual}]",
                        "fld tbyte ptr [{to}]",
                        "fld tbyte ptr [{from}]",
                        $instruction,
                        "fstp tbyte ptr [{to}]",
                        "fldenv [{kept}]",
                        to = in(reg) to, from = in(reg) from,
                        kept = in(reg) kept.as_mut_ptr(), usual = in(reg) &raw const USUAL,
                        out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                        out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                        options(nostack),
                    );
                }
                value
            }
        };
    }

    calculated!(sum, "faddp st(1), st");
    calculated!(product, "fmulp st(1), st");
}

#[cfg(all(test, target_arch = "x86_64", not(miri)))]
mod tests;
