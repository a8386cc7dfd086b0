//! Elements of memory that may go away: copied out, combined in copies, and copied back, by routines that a fault can leave.
//!
//! Invariants:
//! * this process alone executes here, one operation at a time, as where memory stays (`Regime::Alone`): a block is a copy meanwhile
//!   in both;
//! * a single aligned element of 1, 2, 4 or 8 bytes is loaded once and stored once; compared and swapped it is by one instruction,
//!   so that the atomic operations of the program beside it are never lost;
//! * padding is never written, nor is a pair or a `long double` that stays as it is.

use std::mem::MaybeUninit;

use super::super::guard;
use super::super::update::{BLOCK, EXTENT_MAX};
use super::{Operator, Segment, Update};

/// Room for a block of elements, aligned for any of them.
type Block = [MaybeUninit<u64>; BLOCK / size_of::<u64>()];

fn block() -> Block {
    [const { MaybeUninit::uninit() }; BLOCK / size_of::<u64>()]
}

fn part(of: &mut Block, bytes: usize) -> Segment {
    debug_assert!(bytes <= BLOCK, "a part of a block");
    Segment::new(of.as_mut_ptr().cast(), bytes)
}

/// Combines elements block by block. False where some of the memory is gone: blocks before that have been combined.
///
/// # Safety
/// As [`Update::apply`]; but bytes that are not there end it.
pub unsafe fn apply(
    update: Update,
    target: Segment,
    source: Segment,
    result: Option<Segment>,
) -> bool {
    let (extent, sent) = (update.extent(), update.sent(1));
    let count = target.len() / extent;
    let reads_only = update.operator() == Operator::Nothing;
    let (mut places, mut befores, mut owns, mut fetched) = (block(), block(), block(), block());
    let most = BLOCK / extent;
    let mut done = 0;
    while done < count {
        let many = most.min(count - done);
        let memory = target.part(done * extent, many * extent);
        let (place, was) = (part(&mut places, memory.len()), part(&mut befores, memory.len()));
        let own = match reads_only {
            true => Segment::EMPTY,
            false => part(&mut owns, many * sent),
        };
        let fetched = result.map(|it| (part(&mut fetched, many * sent), it));
        // SAFETY: the caller vouches for the memory, of which gone parts end the copies. The blocks are our own, have room for so many
        // elements, and are written before they are read.
        unsafe {
            if !copy(memory, place) || !copy(source.part(done * sent, own.len()), own) {
                return false;
            }
            if !update.element().shape().is_plain() {
                copy_own(place, was);
            }
            update.apply(place, own, fetched.map(|(block, _)| block));
            if !reads_only && !write_back(update, memory, was, place) {
                return false;
            }
            if let Some((block, result)) = fetched
                && !copy(block, result.part(done * sent, block.len()))
            {
                return false;
            }
        }
        done += many;
    }
    true
}

/// Writes elements back that were combined. Of those that have parts it writes the ones that have changed.
///
/// # Safety
/// `memory` is the caller's to write, as far as it is there. `was` and `now` are as long, and are copies; `was` is one where elements have
/// parts.
unsafe fn write_back(update: Update, memory: Segment, was: Segment, now: Segment) -> bool {
    let shape = update.element().shape();
    if shape.is_plain() {
        // SAFETY: as the caller vouches.
        return unsafe { copy(now, memory) };
    }
    let index = shape.index_at.map(|index_at| (index_at, shape.sent() - shape.value));
    for element in (0..memory.len()).step_by(shape.extent) {
        for (at, bytes) in std::iter::once((0, shape.value)).chain(index) {
            let (was, now) = (was.part(element + at, bytes), now.part(element + at, bytes));
            // SAFETY: as the caller vouches.
            let is_there = unsafe {
                bytes_of(was) == bytes_of(now) || copy(now, memory.part(element + at, bytes))
            };
            if !is_there {
                return false;
            }
        }
    }
    true
}

/// A part of an element in a copy of our own.
///
/// # Safety
/// It was written, and is no longer than the longest element.
unsafe fn bytes_of(part: Segment) -> [u8; EXTENT_MAX] {
    let mut bytes = [0; EXTENT_MAX];
    // SAFETY: as the caller vouches.
    unsafe { std::ptr::copy_nonoverlapping(part.as_mut_ptr(), bytes.as_mut_ptr(), part.len()) };
    bytes
}

/// Swaps an element for another one where it has the expected bytes; what it was. `None` where it is gone.
///
/// # Safety
/// As [`Update::compare_swap_alone`]; but bytes that are not there end it.
pub unsafe fn compare_swap(
    target: Segment,
    expected: [u8; 8],
    desired: [u8; 8],
) -> Option<[u8; 8]> {
    let bytes = target.len();
    assert!(matches!(bytes, 1 | 2 | 4 | 8), "an element that is compared is a word");
    if target.address().is_multiple_of(bytes) {
        // SAFETY: as the caller vouches; the word is aligned.
        return unsafe { guard::swap(target.as_mut_ptr(), bytes, expected, desired) };
    }
    let (mut before, mut after) = ([0; 8], desired);
    let was = Segment::new(before.as_mut_ptr(), bytes);
    // SAFETY: as the caller vouches; the arrays are our own.
    unsafe {
        if !copy(target, was) {
            return None;
        }
        let is_swapped = before[..bytes] == expected[..bytes];
        if is_swapped && !copy(Segment::new(after.as_mut_ptr(), bytes), target) {
            return None;
        }
    }
    Some(before)
}

/// # Safety
/// As [`guard::copy`], of so many bytes as `to` has.
unsafe fn copy(from: Segment, to: Segment) -> bool {
    // SAFETY: as the caller vouches.
    unsafe { guard::copy(from.as_mut_ptr(), to.as_mut_ptr(), to.len()) }
}

/// Copies a block of our own.
///
/// # Safety
/// Both are blocks of our own, and the first one was written.
unsafe fn copy_own(from: Segment, to: Segment) {
    // SAFETY: as the caller vouches.
    unsafe { std::ptr::copy_nonoverlapping(from.as_mut_ptr(), to.as_mut_ptr(), to.len()) };
}

#[cfg(all(test, target_arch = "x86_64", not(miri)))]
mod tests;
