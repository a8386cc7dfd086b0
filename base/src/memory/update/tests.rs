//! The executor against a plain calculation of each element, at all addresses and lengths, alone and beside others.

use std::sync::atomic::AtomicU64;

use super::super::words::first;
use super::*;

/// Where the elements of a test begin in its memory: aligned, and not.
const STARTS: [usize; 4] = [0, 1, 4, 8];
const COUNTS: [usize; 6] = [0, 1, 2, 7, 512, 1100];

fn segment(bytes: &mut [u8]) -> Segment {
    Segment::new(bytes.as_mut_ptr(), bytes.len())
}

/// Small values of all types, zeros of both signs and NaN among them.
fn value(element: Element, seed: u64) -> Vec<u8> {
    let small = (seed * 7 + seed / 5) % 11;
    let number = match small {
        9 => f64::NAN,
        10 => -0.0,
        _ => small as f64 - 4.0,
    };
    let whole = small as i64 - 4;
    let mut sent = match element {
        Element::F32 | Element::F32Index => (number as f32).to_ne_bytes().to_vec(),
        Element::F64 | Element::F64Index => number.to_ne_bytes().to_vec(),
        Element::Complex32 => {
            [(whole as f32).to_ne_bytes(), (seed as f32 % 3.0).to_ne_bytes()].concat()
        }
        Element::Complex64 => {
            [(whole as f64).to_ne_bytes(), (seed as f64 % 3.0).to_ne_bytes()].concat()
        }
        Element::LongDouble | Element::LongDoubleIndex => longer(number),
        _ => whole.to_ne_bytes()[..element.shape().value].to_vec(),
    };
    if element.shape().index_at.is_some() {
        sent.extend(((seed % 5) as i32).to_ne_bytes());
    }
    sent
}

/// A small number as a `long double` has it.
fn longer(number: f64) -> Vec<u8> {
    let bits = number.to_bits();
    let (sign, biased) = ((bits >> 63) as u16, (bits >> 52) as u16 & 0x7ff);
    let (fraction, biased) = match biased {
        0 => (0, 0),
        0x7ff => (bits << 11 | 1 << 63, 0x7fff),
        _ => (bits << 11 | 1 << 63, biased + 16_383 - 1023),
    };
    let mut bytes = fraction.to_le_bytes().to_vec();
    bytes.extend((sign << 15 | biased).to_le_bytes());
    bytes.resize(Element::LongDouble.shape().value, 0);
    bytes
}

/// The number again.
fn shorter(bytes: &[u8]) -> f64 {
    let (fraction, exponent) = (number::<u64>(bytes), number::<u16>(&bytes[8..]));
    let sign = u64::from(exponent >> 15) << 63;
    let fraction_bits = fraction << 1 >> 12;
    f64::from_bits(match exponent & 0x7fff {
        0 => sign,
        0x7fff => sign | 0x7ff << 52 | fraction_bits,
        biased => sign | u64::from(biased + 1023 - 16_383) << 52 | fraction_bits,
    })
}

fn number<T: Copy>(bytes: &[u8]) -> T {
    assert!(bytes.len() >= size_of::<T>());
    // SAFETY: there are as many bytes, and tests read plain numbers only.
    unsafe { read(bytes.as_ptr()) }
}

/// What becomes of one element, calculated in the widest types.
fn expected(update: Update, before: &[u8], own: &[u8]) -> Vec<u8> {
    let Update { element, operator } = update;
    match (operator, element) {
        (Operator::Nothing, _) => before.to_vec(),
        (Operator::Replace, _) => own.to_vec(),
        (_, Element::F32 | Element::F64 | Element::LongDouble) => {
            expected_number(operator, before, own)
        }
        (_, Element::Complex32 | Element::Complex64) => expected_complex(operator, before, own),
        _ if element.shape().index_at.is_some() => expected_pair(update, before, own),
        _ => expected_integer(update, before, own),
    }
}

/// A number of four, eight or more bytes.
fn wide(bytes: &[u8]) -> f64 {
    match bytes.len() {
        4 => f64::from(number::<f32>(bytes)),
        8 => number(bytes),
        _ => shorter(bytes),
    }
}

fn narrow(value: f64, bytes: usize) -> Vec<u8> {
    match bytes {
        4 => (value as f32).to_ne_bytes().to_vec(),
        8 => value.to_ne_bytes().to_vec(),
        _ => longer(value),
    }
}

fn expected_number(operator: Operator, before: &[u8], own: &[u8]) -> Vec<u8> {
    let (a, b) = (wide(before), wide(own));
    let is_first = a < b || (a == b && a.is_sign_negative());
    let (least, greatest) = if is_first { (a, b) } else { (b, a) };
    let found = match operator {
        Operator::Sum => a + b,
        Operator::Product => a * b,
        _ if a.is_nan() || b.is_nan() => f64::NAN,
        Operator::Min => least,
        _ => greatest,
    };
    narrow(found, before.len())
}

fn expected_complex(operator: Operator, before: &[u8], own: &[u8]) -> Vec<u8> {
    let half = before.len() / 2;
    let (a, b) = (wide(&before[..half]), wide(&before[half..]));
    let (c, d) = (wide(&own[..half]), wide(&own[half..]));
    let found = match operator {
        Operator::Sum => [a + c, b + d],
        _ => [a * c - b * d, a * d + b * c],
    };
    found.map(|part| narrow(part, half)).concat()
}

fn expected_pair(update: Update, before: &[u8], own: &[u8]) -> Vec<u8> {
    let Update { element, operator } = update;
    let of = |bytes: &[u8]| -> f64 {
        match element {
            Element::F32Index => f64::from(number::<f32>(bytes)),
            Element::F64Index => number(bytes),
            Element::I64Index => number::<i64>(bytes) as f64,
            Element::I16Index => f64::from(number::<i16>(bytes)),
            Element::LongDoubleIndex => shorter(bytes),
            _ => f64::from(number::<i32>(bytes)),
        }
    };
    let index = |bytes: &[u8]| number::<i32>(&bytes[element.shape().value..]);
    let sign = if operator == Operator::MinIndex { 1.0 } else { -1.0 };
    // NaN is before all numbers in both directions.
    let rank = |value: f64| if value.is_nan() { f64::NEG_INFINITY } else { sign * value };
    let (a, b) = (rank(of(before)), rank(of(own)));
    let is_taken = b < a || (b == a && index(own) < index(before));
    if is_taken { own.to_vec() } else { before.to_vec() }
}

fn expected_integer(update: Update, before: &[u8], own: &[u8]) -> Vec<u8> {
    let Update { element, operator } = update;
    let bytes = element.shape().value;
    let is_signed = matches!(element, Element::I8 | Element::I16 | Element::I32 | Element::I64);
    let of = |from: &[u8]| -> i128 {
        let mut all = [if is_signed && from[bytes - 1] > 127 { 255 } else { 0 }; 16];
        all[..bytes].copy_from_slice(from);
        i128::from_le_bytes(all)
    };
    let (a, b) = (of(before), of(own));
    let found = match operator {
        Operator::Sum => a + b,
        Operator::Product => a.wrapping_mul(b),
        Operator::Min => a.min(b),
        Operator::Max => a.max(b),
        Operator::LogicalAnd => i128::from(a != 0 && b != 0),
        Operator::LogicalOr => i128::from(a != 0 || b != 0),
        Operator::LogicalXor => i128::from((a != 0) != (b != 0)),
        Operator::BitAnd => a & b,
        Operator::BitOr => a | b,
        _ => a ^ b,
    };
    found.to_le_bytes()[..bytes].to_vec()
}

fn updates() -> impl Iterator<Item = Update> {
    let all = Element::ALL.into_iter();
    all.flat_map(|element| {
        Operator::ALL.into_iter().filter_map(move |operator| Update::new(element, operator))
    })
}

/// NaN is any NaN.
fn are_equal(element: Element, a: &[u8], b: &[u8]) -> bool {
    let both_nan = match element {
        Element::F32 => number::<f32>(a).is_nan() && number::<f32>(b).is_nan(),
        Element::F64 => number::<f64>(a).is_nan() && number::<f64>(b).is_nan(),
        Element::LongDouble => shorter(a).is_nan() && shorter(b).is_nan(),
        _ => false,
    };
    a == b || both_nan
}

/// Applies an update to elements at `start`, and compares all bytes with what is expected.
fn try_one(update: Update, start: usize, count: usize, shared: bool) {
    const PADDING: u8 = 0xa5;
    let shape = update.element.shape();
    let (extent, sent) = (shape.extent, shape.sent());
    let mut words = vec![u64::from_ne_bytes([PADDING; 8]); (start + count * extent) / 8 + 2];
    // SAFETY: words are bytes.
    let memory: &mut [u8] =
        unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len() * 8) };
    let (mut source, mut before) = (Vec::new(), Vec::new());
    for at in 0..count {
        source.extend(value(update.element, at as u64 * 3 + 1));
        let own = value(update.element, at as u64);
        let place = &mut memory[start + at * extent..][..extent];
        place[..shape.value].copy_from_slice(&own[..shape.value]);
        if let Some(index_at) = shape.index_at {
            place[index_at..index_at + INDEX].copy_from_slice(&own[shape.value..]);
        }
        before.extend(own);
    }
    let mut result = vec![0; count * sent];
    let target = segment(&mut memory[start..start + count * extent]);
    // SAFETY: all of it is the test's own.
    unsafe {
        let (source, result) = (segment(&mut source), segment(&mut result));
        if shared {
            let found = update.apply_shared(target, source, Some(result));
            assert_eq!(found, Ok(()), "{update:?} at {start}");
        } else {
            update.apply(target, source, Some(result));
        }
    }
    assert_eq!(result, before, "{update:?}: what was there before");
    let mut all = vec![PADDING; memory.len()];
    for at in 0..count {
        let (own, other) = (&before[at * sent..][..sent], &source[at * sent..][..sent]);
        let wanted = expected(update, own, other);
        let place = &memory[start + at * extent..][..extent];
        let mut found = place[..shape.value].to_vec();
        let to = &mut all[start + at * extent..][..extent];
        if let Some(index_at) = shape.index_at {
            found.extend(&place[index_at..index_at + INDEX]);
            to[index_at..index_at + INDEX].copy_from_slice(&wanted[shape.value..]);
        }
        assert!(are_equal(update.element, &found, &wanted), "{update:?} {found:?} {wanted:?}");
        to[..shape.value].copy_from_slice(&found[..shape.value]);
    }
    assert_eq!(memory, all, "{update:?}: padding, and what lies beside");
}

#[test]
fn each_operator_of_each_type_does_what_it_says_at_any_address() {
    let mut tried = 0;
    for update in updates() {
        for (start, count) in STARTS.into_iter().flat_map(|start| COUNTS.map(|it| (start, it))) {
            try_one(update, start, count, false);
            if update.element.is_atomic_at(start) {
                try_one(update, start, count, true);
            }
            tried += 1;
        }
    }
    // Eight integers with 12, two numbers with 6, two complex ones with 4, true and false with 5, bytes with 5, five
    // pairs with 4; and long ones, a number and a pair.
    let long = if Element::LongDouble.is_calculated() { 6 + 4 } else { 2 + 2 };
    let each = 8 * 12 + 2 * 6 + 2 * 4 + 5 + 5 + 5 * 4 + long;
    assert_eq!(tried, each * STARTS.len() * COUNTS.len());
}

#[test]
fn what_has_no_atomic_operation_is_refused_and_left_as_it_was() {
    let mut words = [7u64; 4];
    let place = Segment::new(words.as_mut_ptr().cast(), 32);
    let mut own = [1u8; 16];
    let odd = Update::new(Element::U32, Operator::Sum).unwrap();
    let long = Update::new(Element::Complex64, Operator::Sum).unwrap();
    // SAFETY: all of it is the test's own.
    unsafe {
        let refused = odd.apply_shared(place.part(2, 4), segment(&mut own[..4]), None);
        assert_eq!(refused, Err(NeedsLock));
        let refused = long.apply_shared(place.part(0, 16), segment(&mut own), None);
        assert_eq!(refused, Err(NeedsLock));
        let place = place.part(1, 8);
        let refused = Update::compare_swap(Element::U64, place, [0; 8], [1; 8]);
        assert_eq!(refused, Err(NeedsLock));
    }
    assert_eq!(words, [7; 4]);
}

#[test]
fn a_swap_happens_where_all_bytes_are_as_expected() {
    let comparable = Element::ALL.into_iter().filter(|element| element.is_comparable());
    for element in comparable {
        let bytes = element.shape().extent;
        for start in [0, 1] {
            let mut words = [0x1122_3344_5566_7788u64, 0x99aa_bbcc_ddee_ff00];
            let before = words.map(u64::to_ne_bytes).concat();
            let place = Segment::new(words.as_mut_ptr().cast(), 16).part(start, bytes);
            let was = first(&before[start..start + bytes]);
            // SAFETY: the words are the test's own.
            unsafe {
                let other = [!was[0]; 8];
                assert_eq!(Update::compare_swap_alone(element, place, other, [9; 8]), was);
                assert_eq!(words.map(u64::to_ne_bytes).concat(), before, "{element:?}");
                assert_eq!(Update::compare_swap_alone(element, place, was, [9; 8]), was);
            }
            let mut after = before.clone();
            after[start..start + bytes].fill(9);
            assert_eq!(words.map(u64::to_ne_bytes).concat(), after, "{element:?}");
        }
    }
}

#[test]
fn numbers_of_frames_name_types_and_operators_and_nothing_else() {
    for number in 0..=u8::MAX {
        let element = Element::numbered(number);
        assert_eq!(element.map(|it| it as u8), (1..=21).contains(&number).then_some(number));
        let operator = Operator::numbered(number);
        assert_eq!(operator.map(|it| it as u8), (1..=14).contains(&number).then_some(number));
    }
}

#[test]
fn updates_of_several_threads_are_all_counted() {
    const THREADS: u64 = 3;
    const TIMES: u64 = 2000;
    // A sum by an instruction, one by comparing and swapping, and pairs with padding.
    let words = [0, 0, i16::MAX as u64].map(|word| AtomicU64::new(u64::to_le(word)));
    let place = |at: usize| words[at].as_ptr() as usize;
    let places = [place(0), place(1), place(2)];
    let run = |thread: u64| {
        let target =
            |at: usize| Segment::new(ptr::with_exposed_provenance_mut::<u8>(places[at]), 8);
        for time in 0..TIMES {
            let (mut one, mut half) = (1u64.to_ne_bytes(), 0.5f64.to_ne_bytes());
            let least = 10_000 - (time * THREADS + thread) as i16;
            let mut pair = [&least.to_ne_bytes()[..], &(thread as i32).to_ne_bytes()].concat();
            let sum = Update::new(Element::U64, Operator::Sum).unwrap();
            let floats = Update::new(Element::F64, Operator::Sum).unwrap();
            let pairs = Update::new(Element::I16Index, Operator::MinIndex).unwrap();
            // SAFETY: the words live longer than the threads, which update them by this function only.
            unsafe {
                sum.apply_shared(target(0), segment(&mut one), None).unwrap();
                floats.apply_shared(target(1), segment(&mut half), None).unwrap();
                pairs.apply_shared(target(2), segment(&mut pair), None).unwrap();
            }
        }
    };
    words.iter().for_each(|word| {
        (word.as_ptr() as *mut u8).expose_provenance();
    });
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let run = &run;
            scope.spawn(move || run(thread));
        }
    });
    let [sum, floats, pair] = [0, 1, 2].map(|at| words[at].load(Acquire));
    assert_eq!(sum, THREADS * TIMES);
    assert_eq!(f64::from_bits(floats), 0.5 * (THREADS * TIMES) as f64);
    let pair = pair.to_ne_bytes();
    assert_eq!(number::<i16>(&pair), 10_000 - (THREADS * TIMES - 1) as i16);
    assert_eq!(number::<i32>(&pair[4..]), (THREADS - 1) as i32);
}
