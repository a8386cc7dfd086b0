//! Numbers of 80 bits against whole numbers of 128 bits, which have all of their digits.

use std::arch::asm;

use super::*;
use crate::random::Random;

/// `fraction` times a power of two, as the format has it: the fraction's highest bit is set.
fn number(fraction: u64, power: i32, is_negative: bool) -> LongDouble {
    assert!(fraction & INTEGER_BIT != 0);
    let biased = u16::try_from(power + 16_383 + 63).expect("tests have moderate powers");
    LongDouble { fraction, exponent: biased | u16::from(is_negative) << 15 }
}

/// `value` times a power of two, rounded to 64 bits: to the nearest, and of two to the even one.
fn rounded(value: u128, power: i32, is_negative: bool) -> LongDouble {
    let over = (128 - value.leading_zeros()).saturating_sub(64);
    if over == 0 {
        let up = (value as u64).leading_zeros();
        return number((value as u64) << up, power - up as i32, is_negative);
    }
    let (kept, rest, half) = (value >> over, value & ((1 << over) - 1), 1 << (over - 1));
    let is_up = rest > half || (rest == half && kept & 1 == 1);
    match u64::try_from(kept + u128::from(is_up)) {
        Ok(fraction) => number(fraction, power + over as i32, is_negative),
        Err(_) => number(INTEGER_BIT, power + over as i32 + 1, is_negative),
    }
}

/// Fractions whose last bits decide.
fn fraction(random: &mut Random) -> u64 {
    let bits = random.next_u64() | INTEGER_BIT;
    match random.next_u64() % 4 {
        0 => bits,
        1 => bits | 0x1f,
        2 => INTEGER_BIT | bits & 3,
        _ => u64::MAX - (bits & 3),
    }
}

#[test]
fn sums_and_products_have_all_digits_and_are_rounded_to_the_nearest() {
    let mut random = Random::from_seed(80);
    for _ in 0..20_000 {
        let (a, b) = (fraction(&mut random), fraction(&mut random));
        let (power, is_negative) = ((random.next_u64() % 60) as i32, random.next_u64() & 1 == 1);
        let product = number(a, power, is_negative).product(number(b, -9, false));
        let wanted = rounded(u128::from(a) * u128::from(b), power - 9, is_negative);
        assert_eq!(product, wanted, "{a:#x} {b:#x}");
        // Both fit in 128 bits.
        let apart = (random.next_u64() % 62) as i32;
        let sum = number(a, apart, is_negative).sum(number(b, 0, is_negative));
        let wanted = rounded((u128::from(a) << apart) + u128::from(b), 0, is_negative);
        assert_eq!(sum, wanted, "{a:#x} {apart} {b:#x}");
        let difference = number(a, apart, false).sum(number(b, 0, true));
        let exact = (i128::from(a) << apart) - i128::from(b);
        if exact != 0 {
            assert_eq!(difference, rounded(exact.unsigned_abs(), 0, exact < 0));
        }
    }
}

#[test]
fn a_precision_or_a_rounding_of_the_program_changes_nothing_and_stays() {
    let (a, b) = (number(u64::MAX, 0, false), number(INTEGER_BIT | 1, -1, false));
    let usual = (a.sum(b), a.product(b));
    let set = |word: u16| {
        // SAFETY: the word is read, and set back below; nothing else here uses these registers.
        unsafe { asm!("fldcw word ptr [{}]", in(reg) &raw const word, options(nostack)) };
    };
    // 53 bits and 24; up, down, to zero.
    for word in [0x027f, 0x007f, 0x0b7f, 0x077f, 0x0f7f] {
        set(word);
        let found = (a.sum(b), a.product(b));
        let kept = x87::control();
        set(x87::USUAL);
        assert_eq!((found, kept), (usual, word), "{word:#x}");
    }
    assert_eq!(x87::control(), x87::USUAL);
}

#[test]
fn what_is_compared_keeps_the_rules_of_other_numbers() {
    let of = |fraction, exponent| LongDouble { fraction, exponent };
    let (zero, minus_zero) = (of(0, 0), of(0, 0x8000));
    let (infinite, one) = (of(INTEGER_BIT, 0x7fff), number(INTEGER_BIT, -63, false));
    // The least number, the greatest without an integer bit, and the first with one, in both ways to write it.
    let ascending = [
        of(INTEGER_BIT, 0xffff),
        number(INTEGER_BIT | 1, 5, true),
        number(INTEGER_BIT, 5, true),
        of(1, 0x8000),
        zero,
        of(1, 0),
        of(INTEGER_BIT - 1, 0),
        of(INTEGER_BIT, 1),
        one,
        number(INTEGER_BIT | 1, -63, false),
        infinite,
    ];
    for (at, a) in ascending.iter().enumerate() {
        for (other, b) in ascending.iter().enumerate() {
            assert_eq!(a.order(*b, true), at.cmp(&other), "{a:?} {b:?}");
            assert_eq!(a.least(*b), ascending[at.min(other)]);
            assert_eq!(a.greatest(*b), ascending[at.max(other)]);
        }
    }
    assert_eq!(zero.order(minus_zero, true), Ordering::Equal);
    assert_eq!((zero.least(minus_zero), minus_zero.least(zero)), (minus_zero, minus_zero));
    assert_eq!((zero.greatest(minus_zero), minus_zero.greatest(zero)), (zero, zero));
    assert_eq!(of(INTEGER_BIT, 0).order(of(INTEGER_BIT, 1), true), Ordering::Equal);
    // Quiet, signalling, and what the processor calls invalid: infinite or a number without its integer bit.
    for nan in [of(u64::MAX, 0x7fff), of(INTEGER_BIT | 1, 0xffff), of(0, 0x7fff), of(1, 0x4000)] {
        assert!(nan.is_nan() && one.least(nan).is_nan() && nan.greatest(infinite).is_nan());
        assert!(one.sum(nan).is_nan() && nan.product(one).is_nan(), "{nan:?}");
        assert_eq!(nan.order(one, true), Ordering::Less);
        assert_eq!(nan.order(one, false), Ordering::Greater);
        assert_eq!(one.order(nan, true), Ordering::Greater);
    }
    assert_eq!(LongDouble::of_bytes(one.to_bytes()), one);
}
