//! Requests: an operation is waited for alone.

use std::ffi::c_int;
use std::sync::Arc;

use super::ask;
use crate::codes::{ERR_REQUEST, Failure, failure};
use crate::handles::{Handle, handle};
use crate::library::Library;
use crate::memory::{list, place, put};

/// Whether a request is over; then it is gone. None at all is over.
fn is_over(library: &Library, of: Handle) -> Result<bool, Failure> {
    if of.is_null() {
        return Ok(true);
    }
    let tested = library.request(of)?.test().map_err(Failure::from);
    if tested != Ok(false) {
        library.drop_request(of);
    }
    tested
}

/// Waits for a request; then it is gone.
fn finish(library: &Library, of: Handle) -> Result<(), Failure> {
    if of.is_null() {
        return Ok(());
    }
    let request = library.request(of)?;
    library.drop_request(of);
    let busy = || failure(ERR_REQUEST, "another thread asks about this request");
    Ok(Arc::into_inner(request).ok_or_else(busy)?.wait()?)
}

/// Waits until an operation is complete at the origin, and sets its handle to RW_REQUEST_NULL.
///
/// # Safety
/// `request` is null or may be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_wait(request: *mut Handle) -> c_int {
    // SAFETY: the caller vouches for it.
    ask(|library| unsafe { wait_at(library, request) })
}

/// # Safety
/// As [`rw_wait`].
unsafe fn wait_at(library: &Library, request: *mut Handle) -> Result<(), Failure> {
    // SAFETY: the caller vouches for it; it is not null.
    unsafe {
        let request = place(request)?;
        let finished = finish(library, request.read());
        if finished.as_ref().err().is_none_or(|failure| failure.code != ERR_REQUEST) {
            request.write(handle(0));
        }
        finished
    }
}

/// Whether an operation is complete at the origin; then its handle becomes RW_REQUEST_NULL.
///
/// # Safety
/// `request` and `flag` are null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_test(request: *mut Handle, flag: *mut c_int) -> c_int {
    // SAFETY: the caller vouches for it; neither is null.
    ask(|library| unsafe {
        let (request, flag) = (place(request)?, place(flag)?);
        put(flag, c_int::from(test_at(library, request)?))
    })
}

/// Tests a request; one that is over, or failed, becomes RW_REQUEST_NULL.
///
/// # Safety
/// `request` may be read and written.
unsafe fn test_at(library: &Library, request: *mut Handle) -> Result<bool, Failure> {
    // SAFETY: the caller vouches for it.
    let over = is_over(library, unsafe { request.read() });
    if over.as_ref().map_or_else(|failure| failure.code != ERR_REQUEST, |over| *over) {
        // SAFETY: as above.
        unsafe { request.write(handle(0)) };
    }
    over
}

/// Waits for all of a list. Tells the first error.
///
/// # Safety
/// So many may be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_waitall(count: c_int, requests: *mut Handle) -> c_int {
    ask(|library| {
        // SAFETY: the caller vouches for it.
        let all = unsafe { list(requests, i64::from(count))? };
        // SAFETY: so many are there.
        let wait = |at| unsafe { wait_at(library, requests.add(at)) };
        // All are waited for, also behind an error.
        (0..all.len()).map(wait).fold(Ok(()), Result::and)
    })
}

/// Whether all of a list are over: `flag` is 1 if so. Each that is over becomes RW_REQUEST_NULL, also where others are not. All are
/// tested; the first error is told.
///
/// # Safety
/// So many may be read and written; `flag` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_testall(
    count: c_int,
    requests: *mut Handle,
    flag: *mut c_int,
) -> c_int {
    ask(|library| {
        // SAFETY: the caller vouches for both.
        let (all, flag) = unsafe { (list(requests, i64::from(count))?, place(flag)?) };
        let (mut all_over, mut told) = (true, Ok(()));
        for at in 0..all.len() {
            // SAFETY: so many are there.
            match unsafe { test_at(library, requests.add(at)) } {
                Ok(over) => all_over &= over,
                // A request that failed is over.
                Err(failure) => told = told.and(Err(failure)),
            }
        }
        // SAFETY: it is not null.
        unsafe { put(flag, c_int::from(all_over)).and(told) }
    })
}
