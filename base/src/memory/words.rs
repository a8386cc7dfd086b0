//! Elements that are words of the processor, updated while others update them, too: by an instruction, or by comparing and
//! swapping.
//!
//! Invariant: an update is one atomic access, also where it changes nothing.

use std::ptr;
use std::sync::atomic::{
    AtomicU8, AtomicU16, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire},
};

use super::Segment;
use super::element::Operator;

/// The memory of one operation.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    pub target: Segment,
    pub source: Segment,
    pub result: Option<Segment>,
    /// Others execute updates of these elements, too, each of which is a word of the processor.
    pub shared: bool,
}

/// # Safety
/// A value can be read there; at any address.
pub(super) unsafe fn read<T: Copy>(at: *const u8) -> T {
    // SAFETY: as the caller vouches.
    unsafe { at.cast::<T>().read_unaligned() }
}

/// Combines elements, each by the processor's atomic operations; without a function it only reads them.
///
/// # Safety
/// As [`super::Update::apply_shared`], after its checks, for elements without padding.
pub(super) unsafe fn each_shared<T: Copy>(
    parts: Parts,
    count: usize,
    combine: Option<impl Fn(T, T) -> T>,
) {
    // SAFETY: as the caller vouches.
    unsafe {
        match size_of::<T>() {
            1 => words_of::<T, AtomicU8>(parts, count, combine),
            2 => words_of::<T, AtomicU16>(parts, count, combine),
            4 => words_of::<T, AtomicU32>(parts, count, combine),
            _ => words_of::<T, AtomicU64>(parts, count, combine),
        }
    }
}

/// # Safety
/// As [`each_shared`]; the word has as many bytes as the element.
unsafe fn words_of<T: Copy, W: Word>(
    parts: Parts,
    count: usize,
    combine: Option<impl Fn(T, T) -> T>,
) {
    let bytes = size_of::<T>();
    for at in (0..count).map(|number| number * bytes) {
        // SAFETY: as the caller vouches; what is read of a word's bytes has no more than these.
        unsafe {
            let word = W::at(parts.target.as_mut_ptr().add(at));
            let before = match &combine {
                None => word.load_bytes(),
                Some(combine) => {
                    let own = read::<T>(parts.source.as_mut_ptr().add(at));
                    replace(word, |before| {
                        let value = combine(read(before.as_ptr()), own);
                        let mut after = [0; 8];
                        after.as_mut_ptr().cast::<T>().write_unaligned(value);
                        after
                    })
                }
            };
            if let Some(result) = parts.result {
                let to = result.as_mut_ptr().add(at).cast::<T>();
                to.write_unaligned(read(before.as_ptr()));
            }
        }
    }
}

/// Replaces a word by what is made of it, also where that changes nothing: an update is one access in the order of all.
/// Returns what it was.
#[inline(always)]
pub(super) fn replace<W: Word>(word: &W, make: impl Fn([u8; 8]) -> [u8; 8]) -> [u8; 8] {
    let mut before = word.load_bytes();
    loop {
        match word.swap_bytes(before, make(before)) {
            Ok(()) => return before,
            Err(found) => before = found,
        }
    }
}

/// Elements that are words, by an operator that the processor has an instruction for.
///
/// # Safety
/// As [`super::Update::apply_shared`], after its checks.
pub(super) unsafe fn natively<W: Word>(operator: Operator, parts: Parts, count: usize) {
    // The operator is known where the loop is, not in each turn of it.
    // SAFETY: as the caller vouches.
    unsafe {
        match operator {
            Operator::Sum => each_word::<W>(parts, count, W::add),
            Operator::BitAnd => each_word::<W>(parts, count, W::and),
            Operator::BitOr => each_word::<W>(parts, count, W::or),
            Operator::BitXor => each_word::<W>(parts, count, W::xor),
            _ => each_word::<W>(parts, count, W::swap),
        }
    }
}

/// # Safety
/// As [`natively`].
unsafe fn each_word<W: Word>(parts: Parts, count: usize, update: impl Fn(&W, [u8; 8]) -> [u8; 8]) {
    let bytes = size_of::<W>();
    for at in (0..count).map(|number| number * bytes) {
        let mut own = [0; 8];
        // SAFETY: as the caller vouches; a word has eight bytes at most.
        unsafe {
            let source = parts.source.as_mut_ptr().add(at);
            ptr::copy_nonoverlapping(source, own.as_mut_ptr(), bytes);
            let before = update(W::at(parts.target.as_mut_ptr().add(at)), own);
            if let Some(result) = parts.result {
                ptr::copy_nonoverlapping(before.as_ptr(), result.as_mut_ptr().add(at), bytes);
            }
        }
    }
}

/// A word that the processor updates at once, as bytes.
pub(super) trait Word {
    /// # Safety
    /// There is such a word, aligned, for as long as it is used; others access it by atomic operations only.
    unsafe fn at<'a>(address: *mut u8) -> &'a Self;
    fn load_bytes(&self) -> [u8; 8];
    /// These update it by one instruction, and return what it was.
    fn add(&self, own: [u8; 8]) -> [u8; 8];
    fn and(&self, own: [u8; 8]) -> [u8; 8];
    fn or(&self, own: [u8; 8]) -> [u8; 8];
    fn xor(&self, own: [u8; 8]) -> [u8; 8];
    fn swap(&self, own: [u8; 8]) -> [u8; 8];
    /// `Err`: what was found in place of `before`.
    fn swap_bytes(&self, before: [u8; 8], after: [u8; 8]) -> Result<(), [u8; 8]>;
}

macro_rules! words {
    (instruction $atomic:ty: $integer:ty, $name:ident, $instruction:ident) => {
        #[inline(always)]
        fn $name(&self, own: [u8; 8]) -> [u8; 8] {
            let own = <$integer>::from_ne_bytes(exactly(&own));
            first(&<$atomic>::$instruction(self, own, AcqRel).to_ne_bytes())
        }
    };
    ($($atomic:ty: $integer:ty),*) => {$(
        impl Word for $atomic {
            unsafe fn at<'a>(address: *mut u8) -> &'a Self {
                // SAFETY: as the caller vouches.
                unsafe { <$atomic>::from_ptr(address.cast()) }
            }

            #[inline(always)]
            fn load_bytes(&self) -> [u8; 8] {
                first(&self.load(Acquire).to_ne_bytes())
            }

            words!(instruction $atomic: $integer, add, fetch_add);
            words!(instruction $atomic: $integer, and, fetch_and);
            words!(instruction $atomic: $integer, or, fetch_or);
            words!(instruction $atomic: $integer, xor, fetch_xor);
            words!(instruction $atomic: $integer, swap, swap);

            #[inline(always)]
            fn swap_bytes(&self, before: [u8; 8], after: [u8; 8]) -> Result<(), [u8; 8]> {
                let before = <$integer>::from_ne_bytes(exactly(&before));
                let after = <$integer>::from_ne_bytes(exactly(&after));
                match self.compare_exchange(before, after, AcqRel, Acquire) {
                    Ok(_) => Ok(()),
                    Err(found) => Err(first(&found.to_ne_bytes())),
                }
            }
        }
    )*};
}

words!(AtomicU8: u8, AtomicU16: u16, AtomicU32: u32, AtomicU64: u64);

/// At most eight bytes, and zeros behind them.
pub(super) fn first(of: &[u8]) -> [u8; 8] {
    let mut all = [0; 8];
    let many = of.len().min(all.len());
    all[..many].copy_from_slice(&of[..many]);
    all
}

/// So many of the first bytes.
fn exactly<const BYTES: usize>(of: &[u8; 8]) -> [u8; BYTES] {
    let mut some = [0; BYTES];
    some.copy_from_slice(&of[..BYTES]);
    some
}

/// # Safety
/// As [`super::Update::compare_swap`]; the target is aligned.
pub(super) unsafe fn swap<W: Word>(
    target: Segment,
    expected: [u8; 8],
    desired: [u8; 8],
) -> [u8; 8] {
    // SAFETY: as the caller vouches.
    let word = unsafe { W::at(target.as_mut_ptr()) };
    let kept = first(&expected[..target.len()]);
    match word.swap_bytes(kept, desired) {
        Ok(()) => kept,
        Err(found) => found,
    }
}
