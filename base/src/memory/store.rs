//! Copies that leave single elements whole.
//!
//! A copy of 1, 2, 4 or 8 bytes reads its source at once where that is aligned to its length, and writes its target at once
//! where that is: whoever reads or writes the same element meanwhile never sees a part of it. Longer copies may be seen in
//! parts, and so may elements at odd addresses.

use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Copies bytes; both places may overlap, and others may read and write there meanwhile.
///
/// # Safety
/// So many bytes are mapped at both places, and those at `to` may be written. No Rust reference to them exists.
#[inline]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: as the caller vouches.
    unsafe {
        match bytes {
            1 => u8::copy(from, to),
            2 => u16::copy(from, to),
            4 => u32::copy(from, to),
            8 => u64::copy(from, to),
            _ => ptr::copy(from, to, bytes),
        }
    }
}

trait Whole: Copy {
    /// # Safety
    /// As [`copy`], of so many bytes as this type has.
    unsafe fn copy(from: *const u8, to: *mut u8);
}

macro_rules! whole {
    ($($plain:ty, $atomic:ty;)*) => {$(
        impl Whole for $plain {
            #[inline]
            unsafe fn copy(from: *const u8, to: *mut u8) {
                let (from, to) = (from.cast_mut().cast::<$plain>(), to.cast::<$plain>());
                // SAFETY: the caller vouches for the memory; what is accessed atomically is aligned.
                unsafe {
                    let value = match from.is_aligned() {
                        true => <$atomic>::from_ptr(from).load(Relaxed),
                        false => from.read_unaligned(),
                    };
                    match to.is_aligned() {
                        true => <$atomic>::from_ptr(to).store(value, Relaxed),
                        false => to.write_unaligned(value),
                    }
                }
            }
        }
    )*};
}

whole! {
    u8, AtomicU8;
    u16, AtomicU16;
    u32, AtomicU32;
    u64, AtomicU64;
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn all_lengths_at_all_addresses_are_copied_and_nothing_beside_them() {
        let source: Vec<u8> = (1..=40).collect();
        for bytes in 0..=17 {
            for (from, to) in (0..8).flat_map(|from| (0..8).map(move |to| (from, to))) {
                let mut target = [0; 40];
                // SAFETY: both lie inside of arrays of our own.
                unsafe { copy(source[from..].as_ptr(), target[to..].as_mut_ptr(), bytes) };
                let mut want = [0; 40];
                want[to..to + bytes].copy_from_slice(&source[from..from + bytes]);
                assert_eq!(target, want, "{bytes} bytes from {from} to {to}");
            }
        }
    }

    #[test]
    fn places_may_overlap() {
        for (from, to) in [(0, 3), (3, 0), (2, 4), (5, 5)] {
            for bytes in 1..=16 {
                let mut bytes_there: Vec<u8> = (0..32).collect();
                let mut want = bytes_there.clone();
                want.copy_within(from..from + bytes, to);
                let place = bytes_there.as_mut_ptr();
                // SAFETY: both lie inside of one vector.
                unsafe { copy(place.add(from), place.add(to), bytes) };
                assert_eq!(bytes_there, want, "{bytes} bytes from {from} to {to}");
            }
        }
    }

    /// Two threads write an element of all ones and all zeros, and one reads: no value is half of each.
    fn never_in_parts(bytes: usize) {
        let rounds = if cfg!(miri) { 200 } else { 200_000 };
        let shared = AtomicU64::new(0);
        // An element that is not the first one in its word.
        let place = |element: usize| shared.as_ptr().cast::<u8>().wrapping_add(element);
        let at = 8 - bytes;
        let done = AtomicBool::new(false);
        let address = place(at).expose_provenance();
        let element = || ptr::with_exposed_provenance_mut::<u8>(address);
        std::thread::scope(|scope| {
            let writers = [0u8, 0xff].map(|fill| {
                scope.spawn(move || {
                    let values = [fill; 8];
                    for _ in 0..rounds {
                        // SAFETY: the element lies in the word, which outlives the scope.
                        unsafe { copy(values.as_ptr(), element(), bytes) };
                    }
                })
            });
            let read = || {
                while !done.load(Relaxed) {
                    let mut seen = [0u8; 8];
                    // SAFETY: as above; `seen` is this thread's own.
                    unsafe { copy(element(), seen.as_mut_ptr(), bytes) };
                    let seen = &seen[..bytes];
                    assert!(seen.iter().all(|byte| *byte == seen[0]), "{seen:?}");
                }
            };
            let reader = scope.spawn(read);
            writers.into_iter().for_each(|writer| writer.join().expect("a writer ends"));
            done.store(true, Relaxed);
            reader.join().expect("nothing was in parts");
        });
    }

    #[test]
    fn no_thread_sees_a_part_of_an_aligned_element() {
        [1, 2, 4, 8].into_iter().for_each(never_in_parts);
    }
}
