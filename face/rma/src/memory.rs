//! Memory of callers in C, as cells.

use std::ffi::c_void;

use ropewalk_rma::{Cells, Datatype};

use crate::codes::{ERR_ARG, ERR_COUNT, Failure, failure};

/// RW_BOTTOM: the types of data have addresses for displacements. No data can be there; NULL is a mistake too often.
pub const BOTTOM: usize = 1;
/// Nobody's data are in the first page.
const PAGE: i64 = 4096;

/// Data of an origin: cells that reach from their first byte to their last one, and where in them the first instance is.
pub struct Span {
    pub cells: Cells,
    pub at: usize,
}

impl Span {
    /// Of no data.
    pub fn nothing() -> Span {
        Span { cells: Cells::zeroed(0), at: 0 }
    }

    /// Of `count` instances of a type, the first one at an address.
    ///
    /// # Safety
    /// The data may be accessed as the operation does, from now on until it is complete at the origin.
    pub unsafe fn new(
        address: *mut c_void,
        count: u64,
        datatype: &Datatype,
    ) -> Result<Span, Failure> {
        let far = || failure(ERR_COUNT, "the data reach farther than addresses do");
        let bounds = datatype.descriptor().bounds(count).ok_or_else(far)?;
        if bounds.is_empty() {
            return Ok(Span::nothing());
        }
        if address.is_null() {
            return Err(failure(ERR_ARG, "the address of data is NULL"));
        }
        let before = bounds.start.min(0).unsigned_abs() as usize;
        let behind = bounds.end.max(0) as usize;
        let begin = address.addr().checked_sub(before);
        begin.and_then(|_| address.addr().checked_add(behind)).ok_or_else(far)?;
        let begin = address.cast::<u8>().wrapping_sub(before);
        // SAFETY: the caller vouches for the data, and nothing else is accessed: operations walk over the type.
        let cells = unsafe { Cells::promised(begin, before + behind) };
        Ok(Span { cells, at: before })
    }

    /// Of `count` instances of a type whose displacements are addresses; and the type of all of them within the cells.
    ///
    /// # Safety
    /// As [`Span::new`].
    pub unsafe fn absolute(count: u64, datatype: &Datatype) -> Result<(Span, Datatype), Failure> {
        let far = || failure(ERR_COUNT, "the data reach farther than addresses do");
        let bounds = datatype.descriptor().bounds(count).ok_or_else(far)?;
        let within = datatype.hindexed(&[(count, -bounds.start)])?;
        if bounds.is_empty() {
            return Ok((Span::nothing(), within));
        }
        if bounds.start < PAGE {
            let words = "RW_BOTTOM needs a datatype whose displacements are addresses";
            return Err(failure(ERR_ARG, words));
        }
        let (begin, bytes) = (bounds.start as usize, (bounds.end - bounds.start) as usize);
        // SAFETY: the caller vouches for the data, and nothing else is accessed: operations walk over the type.
        let cells = unsafe { Cells::promised(std::ptr::with_exposed_provenance_mut(begin), bytes) };
        Ok((Span { cells, at: 0 }, within))
    }
}

/// As many values of a list as its length says.
///
/// # Safety
/// So many may be read.
pub unsafe fn list<T: Copy>(values: *const T, length: i64) -> Result<Vec<T>, Failure> {
    /// Far more than a datatype can have, or a job.
    const MOST: i64 = 1 << 24;
    if !(0..=MOST).contains(&length) {
        return Err(failure(ERR_COUNT, format!("a list of {length} values")));
    }
    if length == 0 {
        return Ok(Vec::new());
    }
    if values.is_null() {
        return Err(failure(ERR_ARG, "a list is NULL"));
    }
    // SAFETY: the caller vouches for it; a list is read one by one, since it may be of anything.
    Ok((0..length as usize).map(|at| unsafe { values.add(at).read() }).collect())
}

/// Writes an answer.
///
/// # Safety
/// `to` is null or may be written.
pub unsafe fn put<T>(to: *mut T, value: T) -> Result<(), Failure> {
    // SAFETY: the caller vouches for it.
    unsafe { place(to).map(|to| to.write(value)) }
}

/// A place for an answer, which has to be one.
///
/// # Safety
/// `to` is null or may be written.
pub unsafe fn place<T>(to: *mut T) -> Result<*mut T, Failure> {
    match to.is_null() {
        true => Err(failure(ERR_ARG, "the place for an answer is NULL")),
        false => Ok(to),
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_rma::Element;

    use super::*;

    #[test]
    fn cells_reach_from_the_first_byte_to_the_last_one_and_no_farther() {
        let mut array = [0_u8, 1, 2, 3, 4, 5, 6, 7];
        let byte = Datatype::of(Element::U8);
        let here: *mut u8 = &raw mut array[3];
        let span = |datatype: &Datatype, count| {
            // SAFETY: all bytes of all types here lie in the array.
            unsafe { Span::new(here.cast(), count, datatype) }.map(|span| {
                let mut bytes = vec![0; span.cells.len()];
                span.cells.read(0, &mut bytes).unwrap();
                (bytes, span.at)
            })
        };
        assert_eq!(span(&byte, 2), Ok((vec![3, 4], 0)));
        let around = byte.hindexed(&[(1, -2), (2, 1)]).unwrap();
        assert_eq!(span(&around, 1), Ok((vec![1, 2, 3, 4, 5], 2)));
        let before = byte.hindexed(&[(2, -3)]).unwrap();
        assert_eq!(span(&before, 1), Ok((vec![0, 1, 2], 3)));
        let behind = byte.hindexed(&[(1, 4)]).unwrap();
        assert_eq!(span(&behind, 1), Ok((vec![3, 4, 5, 6, 7], 0)));
        assert_eq!(span(&byte, 0), Ok((Vec::new(), 0)));
        assert_eq!(span(&byte, u64::MAX).unwrap_err().code, ERR_COUNT);
    }

    #[test]
    fn types_of_addresses_have_their_data_anywhere() {
        let mut array = [0_u8, 1, 2, 3, 4, 5, 6, 7];
        let base = (&raw mut array).expose_provenance() as i64;
        let byte = Datatype::of(Element::U8);
        let absolute = byte.hindexed(&[(2, base + 5), (1, base + 2)]).unwrap();
        // SAFETY: all bytes lie in the array.
        let (span, within) = unsafe { Span::absolute(1, &absolute).unwrap() };
        let mut bytes = vec![0; span.cells.len()];
        span.cells.read(0, &mut bytes).unwrap();
        assert_eq!((bytes, span.at), (vec![2, 3, 4, 5, 6], 0));
        assert_eq!(within.true_bounds(), 0..5);
        assert_eq!(within.size(), 3);
        // SAFETY: refused, or without data.
        unsafe {
            assert_eq!(Span::absolute(1, &byte).err().map(|it| it.code), Some(ERR_ARG));
            assert!(Span::absolute(0, &byte).is_ok());
        }
    }

    #[test]
    fn addresses_that_are_none_are_refused() {
        let byte = Datatype::of(Element::U8);
        // SAFETY: refused, or without data.
        unsafe {
            let null = std::ptr::null_mut();
            assert_eq!(Span::new(null, 1, &byte).err().map(|it| it.code), Some(ERR_ARG));
            assert!(Span::new(null, 0, &byte).is_ok());
            let last = std::ptr::without_provenance_mut(usize::MAX - 3);
            assert_eq!(Span::new(last, 9, &byte).err().map(|it| it.code), Some(ERR_COUNT));
            assert_eq!(list::<u8>(std::ptr::null(), 0), Ok(Vec::new()));
            assert_eq!(list::<u8>(std::ptr::null(), 1).unwrap_err().code, ERR_ARG);
            assert_eq!(list::<u8>([1].as_ptr(), -1).unwrap_err().code, ERR_COUNT);
            assert_eq!(list([1_u16, 2].as_ptr(), 2), Ok(vec![1, 2]));
        }
    }
}
