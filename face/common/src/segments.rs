//! Buffers as C passes them, as segments of `base::memory`.

use std::cell::Cell;
use std::ffi::c_void;

use ropewalk_base::memory::Segment;

/// A list of so many segments lies on the caller's stack.
const FEW: usize = 8;
/// A thread keeps the memory of a longer list for the next one, unless the list was longer than this.
const KEPT_MAX: usize = 8192;

thread_local! {
    static LONG: Cell<Vec<Segment>> = const { Cell::new(Vec::new()) };
}

/// A buffer of `bytes` bytes; `None` if it has bytes and no address. Nothing is read.
#[inline]
pub fn segment(address: *mut c_void, bytes: usize) -> Option<Segment> {
    (!address.is_null() || bytes == 0).then(|| Segment::new(address.cast(), bytes))
}

/// Calls `work` with the segments of a list, in their order; with the first error instead, if one of them has one.
///
/// Lists of up to 8 segments allocate nothing; longer ones use memory that the thread keeps.
#[inline]
pub fn with_segments<R, E>(
    entries: impl ExactSizeIterator<Item = Result<Segment, E>>,
    work: impl FnOnce(&[Segment]) -> Result<R, E>,
) -> Result<R, E> {
    let mut few = [Segment::EMPTY; FEW];
    let Some(segments) = few.get_mut(..entries.len()) else {
        return with_many(entries, work);
    };
    for (to, entry) in segments.iter_mut().zip(entries) {
        *to = entry?;
    }
    work(segments)
}

fn with_many<R, E>(
    entries: impl Iterator<Item = Result<Segment, E>>,
    work: impl FnOnce(&[Segment]) -> Result<R, E>,
) -> Result<R, E> {
    // A thread that is ending may post from its last destructors; `work` may come back here.
    let mut segments = LONG.try_with(Cell::take).unwrap_or_default();
    segments.clear();
    let read = entries.into_iter().try_for_each(|entry| {
        segments.push(entry?);
        Ok(())
    });
    let result = read.and_then(|()| work(&segments));
    if segments.capacity() <= KEPT_MAX {
        let _ = LONG.try_with(|kept| kept.set(segments));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(bytes: usize) -> Result<Segment, &'static str> {
        segment(std::ptr::without_provenance_mut(4096), bytes).ok_or("null")
    }

    fn lengths(segments: &[Segment]) -> Vec<usize> {
        segments.iter().map(|segment| segment.len()).collect()
    }

    #[test]
    fn a_list_of_any_length_comes_whole_and_in_order() {
        for count in [0, 1, FEW, FEW + 1, 300, KEPT_MAX + 1, FEW + 2] {
            let all: Vec<usize> = (1..=count).collect();
            let entries = all.iter().map(|bytes| entry(*bytes));
            assert_eq!(with_segments(entries, |list| Ok(lengths(list))), Ok(all));
        }
    }

    #[test]
    fn work_may_post_another_list() {
        let outer = (1..20).map(entry);
        let both = with_segments(outer, |list| {
            let inner = with_segments((20..40).map(entry), |list| Ok(lengths(list)))?;
            Ok((lengths(list), inner))
        });
        assert_eq!(both, Ok(((1..20).collect(), (20..40).collect())));
    }

    #[test]
    fn the_first_error_is_returned_and_no_work_done() {
        for count in [FEW, 20] {
            let bad = |at: usize| if at == 5 { Err("bad") } else { entry(at) };
            let answer = with_segments((0..count).map(bad), |_| -> Result<(), _> { panic!("no") });
            assert_eq!(answer, Err("bad"));
            assert_eq!(with_segments((0..count).map(entry), |list| Ok(list.len())), Ok(count));
        }
    }

    #[test]
    fn a_buffer_with_bytes_has_an_address() {
        assert!(segment(std::ptr::null_mut(), 0).is_some_and(|segment| segment.is_empty()));
        assert!(segment(std::ptr::null_mut(), 1).is_none());
    }
}
