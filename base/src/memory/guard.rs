//! Copies of memory that may go away: unmapped, or cut off with the file behind it.
//!
//! A copy of such memory is made by routines in assembly. A handler of SIGSEGV and SIGBUS knows their first and their last
//! instruction. A fault between them ends the routine, which answers that it was not completed. The handler hands on every other
//! fault to the handler that was there before.
//!
//! Invariants:
//! * the handler takes no lock and allocates nothing; it reads what was written before it was installed;
//! * a routine touches no stack and calls nothing, so that it can be left at any of its instructions;
//! * a copy of 1, 2, 4 or 8 bytes is one load and one store, at any address (see [`super::store`]).
//!
//! There are such routines for x86-64. On other processors the copies are plain, and a fault ends the process, as everywhere else.
//! If somebody else installs a handler later and does not hand on, faults of these routines are that handler's.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A page has so many bytes at least.
const PAGE: usize = 4096;

/// Memory is not there (any more).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone {
    /// Bytes of whole segments that were copied before.
    pub done: usize,
}

/// Whether there is, or was, memory that may go away.
static IN_USE: AtomicBool = AtomicBool::new(false);

/// Whether this process has had memory that may go away: then its handlers are installed.
#[inline]
pub(super) fn is_in_use() -> bool {
    IN_USE.load(Relaxed)
}

/// Gets ready for memory that may go away: installs the handlers, once.
pub(super) fn prepare() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    handler::install();
    IN_USE.store(true, Relaxed);
}

/// Copies bytes; both places may overlap. False where some of them are not there. Then any part of them was copied.
///
/// # Safety
/// At both places so many bytes are the caller's to read and to write, as far as they are there. No Rust reference to them
/// exists.
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) -> bool {
    // SAFETY: as the caller vouches.
    unsafe { routines::copy(from, to, bytes) }
}

/// Swaps a word of 1, 2, 4 or 8 bytes, aligned, for another one where it equals what was expected: by one instruction of the
/// processor. Returns what it was; `None` where it is not there.
///
/// # Safety
/// As [`copy`], of the word.
pub(super) unsafe fn swap(
    word: *mut u8,
    bytes: usize,
    expected: [u8; 8],
    desired: [u8; 8],
) -> Option<[u8; 8]> {
    // SAFETY: as the caller vouches.
    unsafe { routines::swap(word, bytes, expected, desired) }
}

/// Whether all these bytes are there at this moment. Reads one byte of each page.
///
/// # Safety
/// As [`copy`], for reading.
pub(super) unsafe fn is_there(at: *const u8, bytes: usize) -> bool {
    let first = at.addr();
    let next = |address: usize| (address & !(PAGE - 1)).checked_add(PAGE);
    let mut place = Some(first).filter(|_| bytes > 0);
    while let Some(address) = place.filter(|address| address - first < bytes) {
        // SAFETY: the byte is one of the caller's.
        if !unsafe { routines::touch(at.with_addr(address)) } {
            return false;
        }
        place = next(address);
    }
    true
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod handler;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod routines;

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod routines {
    //! Plain copies: nobody leaves them.

    use crate::memory::{Element, Segment, Update, store};

    /// # Safety
    /// As [`super::copy`], and all bytes are there.
    pub unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) -> bool {
        // SAFETY: as the caller vouches.
        unsafe { store::copy(from, to, bytes) };
        true
    }

    /// # Safety
    /// As [`super::swap`], and the word is there.
    pub unsafe fn swap(
        word: *mut u8,
        bytes: usize,
        expected: [u8; 8],
        desired: [u8; 8],
    ) -> Option<[u8; 8]> {
        let element = match bytes {
            1 => Element::U8,
            2 => Element::U16,
            4 => Element::U32,
            _ => Element::U64,
        };
        // SAFETY: as the caller vouches.
        unsafe { Update::compare_swap(element, Segment::new(word, bytes), expected, desired) }.ok()
    }

    /// # Safety
    /// As [`super::is_there`], and the byte is there.
    pub unsafe fn touch(_: *const u8) -> bool {
        true
    }
}

#[cfg(all(test, target_arch = "x86_64", not(miri)))]
pub(super) mod tests;
