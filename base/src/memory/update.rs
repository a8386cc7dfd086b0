//! The memory executor: accumulates, fetching updates and compare-and-swap on exposed memory.
//!
//! All atomic operations are executed here: by an origin over shared memory, the service thread for a peer, an
//! endpoint for itself. Memory is of one of two regimes ([`super::Cells::share`]). Under [`Update::apply`] this process is
//! the only one that executes, one operation at a time: bulk updates are loops over plain copies, which the compiler turns
//! into vector instructions. Under [`Update::apply_shared`] several processes execute at once, by the processor's atomic
//! operations; elements for which there are none need a lock around `apply`, and [`Element::is_atomic_at`] says which.
//!
//! Invariants:
//! * exposed memory is never behind a Rust reference: peers and the application access it meanwhile;
//! * one aligned element of 1, 2, 4 or 8 bytes is loaded once and stored once, so that nobody sees a part of it;
//! * padding is never written.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{
    AtomicU8, AtomicU16, AtomicU32, AtomicU64,
    Ordering::{Acquire, Release},
};

use super::Segment;
use super::element::{Arithmetic, Bits, Complex, Element, INDEX, Operator, Ordered, Shape};
use super::long_double::{self, LongDouble};
use super::words::{Parts, Word, each_shared, natively, read, replace, swap};

/// Bytes that are combined at a time: with as many of the source they stay in the nearest cache.
pub(super) const BLOCK: usize = 4096;
/// The longest element in memory, and the longest one as it is sent.
pub(super) const EXTENT_MAX: usize = 32;

/// What an accumulate does with each element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Update {
    element: Element,
    operator: Operator,
}

/// An element cannot be updated by the processor's atomic operations where it lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeedsLock;

impl Element {
    /// Whether the processor has atomic operations for an element at this address.
    pub fn is_atomic_at(self, address: usize) -> bool {
        is_atomic(self.shape().extent, address)
    }
}

fn is_atomic(bytes: usize, address: usize) -> bool {
    matches!(bytes, 1 | 2 | 4 | 8) && address.is_multiple_of(bytes)
}

impl Update {
    /// `None` where the operator is not defined for the type.
    pub fn new(element: Element, operator: Operator) -> Option<Update> {
        element.takes(operator).then_some(Update { element, operator })
    }

    /// The type of its elements.
    pub fn element(self) -> Element {
        self.element
    }

    /// What each element is combined by.
    pub fn operator(self) -> Operator {
        self.operator
    }

    /// Bytes from one element to the next in memory.
    pub fn extent(self) -> usize {
        self.element.shape().extent
    }

    /// How many elements lie in so many bytes of memory; `None` where they end in the middle of one.
    pub fn count(self, bytes: usize) -> Option<usize> {
        let extent = self.element.shape().extent;
        bytes.is_multiple_of(extent).then_some(bytes / extent)
    }

    /// Bytes of so many elements as they are sent.
    pub fn sent(self, count: usize) -> usize {
        self.element.shape().sent() * count
    }

    /// Combines the elements of `target` with those of `source`, and puts what they were before into `result`, where there
    /// is one. `source` and `result` have no padding. [`Operator::Nothing`] reads nothing of `source`.
    ///
    /// # Panics
    /// `target` is no whole number of elements, or the others do not have as many.
    ///
    /// # Safety
    /// All bytes are mapped, those of `target` and `result` may be written, and neither `source` nor `result` overlaps
    /// another one; but `result` may be `source`. Nobody else executes updates there meanwhile.
    pub unsafe fn apply(self, target: Segment, source: Segment, result: Option<Segment>) {
        let count = self.checked(target, source, result);
        let parts = Parts { target, source, result, shared: false };
        // SAFETY: the caller vouches for the memory; its lengths were checked.
        unsafe { self.execute(parts, count) }
    }

    /// The same while others execute updates there, too.
    ///
    /// # Errors
    /// The processor has no atomic operation for these elements at this address. Nothing was changed: whoever holds the
    /// memory's lock calls [`Self::apply`].
    ///
    /// # Panics
    /// As [`Self::apply`].
    ///
    /// # Safety
    /// As [`Self::apply`], but for the last sentence: others execute here by this function only, or are kept away from
    /// these elements by a lock.
    pub unsafe fn apply_shared(
        self,
        target: Segment,
        source: Segment,
        result: Option<Segment>,
    ) -> Result<(), NeedsLock> {
        let count = self.checked(target, source, result);
        if !self.element.is_atomic_at(target.address()) {
            return Err(NeedsLock);
        }
        let parts = Parts { target, source, result, shared: true };
        // SAFETY: the caller vouches for the memory, whose lengths were checked; all elements are aligned.
        unsafe {
            match self.native() {
                Some(operator) => match self.extent() {
                    1 => natively::<AtomicU8>(operator, parts, count),
                    2 => natively::<AtomicU16>(operator, parts, count),
                    4 => natively::<AtomicU32>(operator, parts, count),
                    _ => natively::<AtomicU64>(operator, parts, count),
                },
                None => self.execute(parts, count),
            }
        }
        Ok(())
    }

    /// Swaps an element for another one where it equals what was expected; returns what it was, in its first bytes.
    ///
    /// # Panics
    /// The type has no such comparison ([`Element::is_comparable`]), or `target` is not one element.
    ///
    /// # Safety
    /// `target` is mapped and may be written. Others execute updates there by this function and [`Self::apply_shared`] only.
    pub unsafe fn compare_swap(
        element: Element,
        target: Segment,
        expected: [u8; 8],
        desired: [u8; 8],
    ) -> Result<[u8; 8], NeedsLock> {
        assert!(element.is_comparable(), "bytes of this type are compared");
        assert_eq!(target.len(), element.shape().extent, "the target is one element");
        if !element.is_atomic_at(target.address()) {
            return Err(NeedsLock);
        }
        // SAFETY: the caller vouches for the memory, which is aligned.
        let before = unsafe {
            match target.len() {
                1 => swap::<AtomicU8>(target, expected, desired),
                2 => swap::<AtomicU16>(target, expected, desired),
                4 => swap::<AtomicU32>(target, expected, desired),
                _ => swap::<AtomicU64>(target, expected, desired),
            }
        };
        Ok(before)
    }

    /// The same where nobody else executes updates there meanwhile, at any address.
    ///
    /// # Panics
    /// As [`Self::compare_swap`].
    ///
    /// # Safety
    /// `target` is mapped and may be written; nobody else executes updates there.
    pub unsafe fn compare_swap_alone(
        element: Element,
        target: Segment,
        expected: [u8; 8],
        desired: [u8; 8],
    ) -> [u8; 8] {
        // SAFETY: as the caller vouches.
        if let Ok(before) = unsafe { Self::compare_swap(element, target, expected, desired) } {
            return before;
        }
        let bytes = target.len();
        let mut before = [0; 8];
        // SAFETY: both sides have as many bytes, and the arrays are our own.
        unsafe {
            ptr::copy_nonoverlapping(target.as_mut_ptr(), before.as_mut_ptr(), bytes);
            if before[..bytes] == expected[..bytes] {
                ptr::copy_nonoverlapping(desired.as_ptr(), target.as_mut_ptr(), bytes);
            }
        }
        before
    }

    /// # Safety
    /// As [`Self::apply`], or [`Self::apply_shared`] for parts of shared memory, after their checks.
    unsafe fn execute(self, parts: Parts, count: usize) {
        // SAFETY: as the caller vouches.
        unsafe {
            match self.element {
                Element::I8 => integers::<i8>(self.operator, parts, count),
                Element::U8 | Element::Byte => integers::<u8>(self.operator, parts, count),
                Element::Bool => integers::<u8>(self.operator, parts, count),
                Element::I16 => integers::<i16>(self.operator, parts, count),
                Element::U16 => integers::<u16>(self.operator, parts, count),
                Element::I32 => integers::<i32>(self.operator, parts, count),
                Element::U32 => integers::<u32>(self.operator, parts, count),
                Element::I64 => integers::<i64>(self.operator, parts, count),
                Element::U64 => integers::<u64>(self.operator, parts, count),
                Element::F32 => numbers::<f32>(self.operator, parts, count),
                Element::F64 => numbers::<f64>(self.operator, parts, count),
                Element::Complex32 => complexes::<Complex<f32>>(self.operator, parts, count),
                Element::Complex64 => complexes::<Complex<f64>>(self.operator, parts, count),
                _ if parts.shared => self.pairs_shared(parts, count),
                _ => self.with_parts(parts, count),
            }
        }
    }

    /// The number of elements, after a look at all lengths.
    fn checked(self, target: Segment, source: Segment, result: Option<Segment>) -> usize {
        let count = self.count(target.len()).expect("a target has whole elements");
        let sent = self.sent(count);
        assert!(
            self.operator == Operator::Nothing || source.len() == sent,
            "a source has as many elements as its target"
        );
        assert!(result.is_none_or(|it| it.len() == sent), "so has a result");
        count
    }

    /// Combines one element that lies in `place` as memory has it, padding untouched, with one as it is sent.
    fn combine(self, place: &mut [u8], own: &[u8]) {
        let place = Segment::new(place.as_mut_ptr(), place.len());
        let own = Segment::new(own.as_ptr().cast_mut(), own.len());
        // SAFETY: both are slices of the caller's own, apart from each other.
        unsafe { self.apply(place, own, None) };
    }

    /// The operator, where the processor may have an instruction for it.
    fn native(self) -> Option<Operator> {
        let is_bits = self.element.is_comparable();
        let is_plain = self.element.shape().is_plain();
        match self.operator {
            Operator::Sum | Operator::BitAnd | Operator::BitOr | Operator::BitXor => {
                is_bits.then_some(self.operator)
            }
            Operator::Replace => is_plain.then_some(self.operator),
            _ => None,
        }
    }

    /// Pairs that fit in a word of the processor, one after the other.
    ///
    /// # Safety
    /// As [`Self::apply_shared`], after its checks.
    unsafe fn pairs_shared(self, parts: Parts, count: usize) {
        let (extent, sent) = (self.extent(), self.sent(1));
        assert_eq!(extent, size_of::<AtomicU64>(), "the only pair that a word has room for");
        let nothing = self.operator == Operator::Nothing;
        for number in 0..count {
            let own = match nothing {
                true => Segment::EMPTY,
                false => parts.source.part(number * sent, sent),
            };
            let mut source = [0; EXTENT_MAX];
            // SAFETY: the caller vouches for the memory; no part is longer than the longest element.
            let word = unsafe {
                ptr::copy_nonoverlapping(own.as_mut_ptr(), source.as_mut_ptr(), own.len());
                AtomicU64::at(parts.target.part(number * extent, extent).as_mut_ptr())
            };
            let mut before = match nothing {
                true => word.load_bytes(),
                false => replace(word, |mut pair| {
                    self.combine(&mut pair[..extent], &source[..sent]);
                    pair
                }),
            };
            if let Some(result) = parts.result {
                let place = Segment::new(before.as_mut_ptr(), extent);
                // SAFETY: the result has room for one element, and the place is our own.
                unsafe { gather(self.element.shape(), place, result.part(number * sent, sent)) };
            }
        }
    }

    /// Elements with padding or an index, one after the other.
    ///
    /// # Safety
    /// As [`Self::apply`], after its checks.
    unsafe fn with_parts(self, parts: Parts, count: usize) {
        let shape = self.element.shape();
        let (extent, sent) = (shape.extent, shape.sent());
        for number in 0..count {
            let place = parts.target.part(number * extent, extent);
            let mut own = [0; EXTENT_MAX];
            let own = Segment::new(own.as_mut_ptr(), sent);
            // SAFETY: as the caller vouches; an element as it is sent is no longer than the longest one.
            unsafe {
                if self.operator != Operator::Nothing {
                    let source = parts.source.part(number * sent, sent);
                    ptr::copy_nonoverlapping(source.as_mut_ptr(), own.as_mut_ptr(), sent);
                }
                if let Some(result) = parts.result {
                    gather(shape, place, result.part(number * sent, sent));
                }
            }
            let is_taken = match self.operator {
                Operator::Nothing => false,
                Operator::Replace => true,
                // SAFETY: as the caller vouches.
                Operator::MinIndex | Operator::MaxIndex => unsafe { self.is_preferred(own, place) },
                // SAFETY: as the caller vouches; only a long double takes these and has padding.
                _ => unsafe { combine_long(self.operator, own, place) },
            };
            if is_taken {
                // SAFETY: value and index lie inside both.
                unsafe { scatter(shape, own, place) };
            }
        }
    }

    /// Whether a pair as it is sent takes the place of one in memory.
    ///
    /// # Safety
    /// Both are readable pairs of this type.
    unsafe fn is_preferred(self, own: Segment, place: Segment) -> bool {
        let is_least = self.operator == Operator::MinIndex;
        let shape = self.element.shape();
        let index_at = shape.index_at.expect("a pair has an index");
        let (own, place) = (own.as_mut_ptr(), place.as_mut_ptr());
        // SAFETY: the caller vouches that all of a pair can be read.
        unsafe {
            let index = read::<i32>(own.add(shape.value));
            let other = read::<i32>(place.add(index_at));
            let order = match self.element {
                Element::F32Index => read::<f32>(own).order(read(place), is_least),
                Element::F64Index => read::<f64>(own).order(read(place), is_least),
                Element::I64Index => read::<i64>(own).order(read(place), is_least),
                Element::I16Index => read::<i16>(own).order(read(place), is_least),
                Element::LongDoubleIndex => long(own).order(long(place), is_least),
                _ => read::<i32>(own).order(read(place), is_least),
            };
            match order {
                std::cmp::Ordering::Equal => index < other,
                order => order.is_lt() == is_least,
            }
        }
    }
}

/// The `long double` there.
///
/// # Safety
/// It can be read.
unsafe fn long(at: *const u8) -> LongDouble {
    // SAFETY: as the caller vouches.
    LongDouble::of_bytes(unsafe { read::<[u8; long_double::BYTES]>(at) })
}

/// Combines a `long double` as it is sent with the one in memory: `own` gets what becomes of them. True: it takes that one's place.
///
/// # Safety
/// Both are readable elements of this type, `own` a copy of the caller's.
unsafe fn combine_long(operator: Operator, own: Segment, place: Segment) -> bool {
    // SAFETY: as the caller vouches.
    let (ours, before) = unsafe { (long(own.as_mut_ptr()), long(place.as_mut_ptr())) };
    let value = match operator {
        Operator::Sum => before.sum(ours),
        Operator::Product => before.product(ours),
        Operator::Min => before.least(ours),
        Operator::Max => before.greatest(ours),
        _ => unreachable!("an update has an operator of its type"),
    };
    // SAFETY: as the caller vouches; such elements have as many bytes at least.
    unsafe { own.as_mut_ptr().cast::<[u8; long_double::BYTES]>().write(value.to_bytes()) };
    true
}

/// Copies an element as it is sent over one in memory, but for that one's padding.
///
/// # Safety
/// `own` has an element of the shape as it is sent, `place` one as memory has it, apart from it.
unsafe fn scatter(shape: Shape, own: Segment, place: Segment) {
    let (from, to) = (own.as_mut_ptr(), place.as_mut_ptr());
    // SAFETY: as the caller vouches.
    unsafe {
        ptr::copy_nonoverlapping(from, to, shape.value);
        if let Some(index_at) = shape.index_at {
            ptr::copy_nonoverlapping(from.add(shape.value), to.add(index_at), INDEX);
        }
    }
}

/// Copies an element without its padding.
///
/// # Safety
/// `place` has an element of the shape, `result` room for one as it is sent, apart from it.
unsafe fn gather(shape: Shape, place: Segment, result: Segment) {
    let (from, to) = (place.as_mut_ptr(), result.as_mut_ptr());
    // SAFETY: as the caller vouches.
    unsafe {
        ptr::copy_nonoverlapping(from, to, shape.value);
        if let Some(index_at) = shape.index_at {
            ptr::copy_nonoverlapping(from.add(index_at), to.add(shape.value), INDEX);
        }
    }
}

/// # Safety
/// As [`Update::apply`], after its checks.
unsafe fn integers<T: Arithmetic + Ordered + Bits>(operator: Operator, parts: Parts, count: usize) {
    // SAFETY: as the caller vouches.
    unsafe {
        match operator {
            Operator::LogicalAnd => {
                each::<T>(parts, count, |a, b| T::of_bool(a.is_true() && b.is_true()));
            }
            Operator::LogicalOr => {
                each::<T>(parts, count, |a, b| T::of_bool(a.is_true() || b.is_true()));
            }
            Operator::LogicalXor => {
                each::<T>(parts, count, |a, b| T::of_bool(a.is_true() != b.is_true()));
            }
            Operator::BitAnd => each::<T>(parts, count, T::and),
            Operator::BitOr => each::<T>(parts, count, T::or),
            Operator::BitXor => each::<T>(parts, count, T::xor),
            _ => numbers::<T>(operator, parts, count),
        }
    }
}

/// # Safety
/// As [`Update::apply`], after its checks.
unsafe fn numbers<T: Arithmetic + Ordered>(operator: Operator, parts: Parts, count: usize) {
    // SAFETY: as the caller vouches.
    unsafe {
        match operator {
            Operator::Min => each::<T>(parts, count, T::least),
            Operator::Max => each::<T>(parts, count, T::greatest),
            _ => complexes::<T>(operator, parts, count),
        }
    }
}

/// # Safety
/// As [`Update::apply`], after its checks.
unsafe fn complexes<T: Arithmetic>(operator: Operator, parts: Parts, count: usize) {
    // SAFETY: as the caller vouches.
    unsafe {
        match operator {
            Operator::Sum => each::<T>(parts, count, T::sum),
            Operator::Product => each::<T>(parts, count, T::product),
            Operator::Replace => each::<T>(parts, count, |_, own| own),
            Operator::Nothing => fetch::<T>(parts, count),
            _ => unreachable!("an update has an operator of its type"),
        }
    }
}

/// # Safety
/// As [`Update::apply`], after its checks, for elements without padding.
unsafe fn fetch<T: Copy>(parts: Parts, count: usize) {
    let Some(result) = parts.result else { return };
    let bytes = count * size_of::<T>();
    if parts.shared {
        // SAFETY: as the caller vouches.
        return unsafe { each_shared::<T>(parts, count, None::<fn(T, T) -> T>) };
    }
    // SAFETY: as the caller vouches.
    unsafe {
        if count == 1 && is_atomic(bytes, parts.target.address()) {
            let value = load::<T>(parts.target.as_mut_ptr());
            result.as_mut_ptr().cast::<T>().write_unaligned(value);
        } else {
            ptr::copy_nonoverlapping(parts.target.as_mut_ptr(), result.as_mut_ptr(), bytes);
        }
    }
}

/// Combines elements where they lie; or, where somebody wants to know what they were, block by block: copied out, combined, copied
/// back.
///
/// # Safety
/// As [`Update::apply`], after its checks, for elements without padding.
unsafe fn each<T: Copy>(parts: Parts, count: usize, combine: impl Fn(T, T) -> T) {
    let Parts { target, source, result, shared } = parts;
    if shared {
        // SAFETY: as the caller vouches.
        return unsafe { each_shared(parts, count, Some(combine)) };
    }
    let bytes = size_of::<T>();
    if count == 1 && is_atomic(bytes, target.address()) {
        // SAFETY: as the caller vouches; the target is aligned.
        unsafe {
            let own = read::<T>(source.as_mut_ptr());
            let before = load::<T>(target.as_mut_ptr());
            if let Some(result) = result {
                result.as_mut_ptr().cast::<T>().write_unaligned(before);
            }
            store(target.as_mut_ptr(), combine(before, own));
        }
        return;
    }
    let Some(result) = result else {
        // SAFETY: as the caller vouches; both have as many elements.
        return unsafe { each_in_place(target.as_mut_ptr(), source.as_mut_ptr(), count, combine) };
    };
    let mut space = [const { MaybeUninit::<u64>::uninit() }; 2 * BLOCK / 8];
    let (place, copy) = space.split_at_mut(BLOCK / 8);
    let (place, copy) = (place.as_mut_ptr().cast::<T>(), copy.as_mut_ptr().cast::<T>());
    let most = BLOCK / bytes;
    let mut done = 0;
    while done < count {
        let many = most.min(count - done);
        let (at, long) = (done * bytes, many * bytes);
        // SAFETY: as the caller vouches; both halves of the space are aligned for any element, have room for a block, and
        // are written before they are read. The source may lie at any address.
        unsafe {
            let memory = target.as_mut_ptr().add(at);
            // The result may be the source.
            ptr::copy_nonoverlapping(source.as_mut_ptr().add(at), copy.cast::<u8>(), long);
            ptr::copy_nonoverlapping(memory, place.cast::<u8>(), long);
            ptr::copy_nonoverlapping(place.cast::<u8>(), result.as_mut_ptr().add(at), long);
            let values = std::slice::from_raw_parts_mut(place, many);
            let own = std::slice::from_raw_parts(copy.cast_const(), many);
            values.iter_mut().zip(own).for_each(|(value, own)| *value = combine(*value, *own));
            ptr::copy_nonoverlapping(place.cast::<u8>(), memory, long);
        }
        done += many;
    }
}

/// Combines elements where they lie, by the widest instructions that the processor has.
///
/// # Safety
/// As [`each`], for so many elements at any address.
unsafe fn each_in_place<T: Copy>(
    target: *mut u8,
    source: *const u8,
    count: usize,
    combine: impl Fn(T, T) -> T,
) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has them, and as the caller vouches.
        return unsafe { each_by_avx2(target, source, count, combine) };
    }
    // SAFETY: as the caller vouches.
    unsafe { each_by_any(target, source, count, combine) }
}

/// # Safety
/// As [`each_in_place`], on a processor with AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn each_by_avx2<T: Copy>(
    target: *mut u8,
    source: *const u8,
    count: usize,
    combine: impl Fn(T, T) -> T,
) {
    // SAFETY: as the caller vouches.
    unsafe { each_by_any(target, source, count, combine) }
}

/// # Safety
/// As [`each_in_place`].
#[inline(always)]
unsafe fn each_by_any<T: Copy>(
    target: *mut u8,
    source: *const u8,
    count: usize,
    combine: impl Fn(T, T) -> T,
) {
    let (target, source) = (target.cast::<T>(), source.cast::<T>());
    for at in 0..count {
        // SAFETY: as the caller vouches.
        unsafe {
            let place = target.add(at);
            let value = combine(place.read_unaligned(), source.add(at).read_unaligned());
            place.write_unaligned(value);
        }
    }
}

/// Loads an element by one access.
///
/// # Safety
/// It can be read, has 1, 2, 4 or 8 bytes, and is aligned to as many.
unsafe fn load<T: Copy>(at: *mut u8) -> T {
    // SAFETY: as the caller vouches; the bytes of an atomic integer are those of the element.
    unsafe {
        match size_of::<T>() {
            1 => read(ptr::from_ref(&AtomicU8::from_ptr(at).load(Acquire)).cast()),
            2 => read(ptr::from_ref(&AtomicU16::from_ptr(at.cast()).load(Acquire)).cast()),
            4 => read(ptr::from_ref(&AtomicU32::from_ptr(at.cast()).load(Acquire)).cast()),
            _ => read(ptr::from_ref(&AtomicU64::from_ptr(at.cast()).load(Acquire)).cast()),
        }
    }
}

/// Stores an element by one access.
///
/// # Safety
/// As [`load`], for writing.
unsafe fn store<T: Copy>(at: *mut u8, value: T) {
    let from = ptr::from_ref(&value).cast::<u8>();
    // SAFETY: as the caller vouches.
    unsafe {
        match size_of::<T>() {
            1 => AtomicU8::from_ptr(at).store(read(from), Release),
            2 => AtomicU16::from_ptr(at.cast()).store(read(from), Release),
            4 => AtomicU32::from_ptr(at.cast()).store(read(from), Release),
            _ => AtomicU64::from_ptr(at.cast()).store(read(from), Release),
        }
    }
}

#[cfg(test)]
mod tests;
