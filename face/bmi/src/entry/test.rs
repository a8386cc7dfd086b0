//! Tests of operations, and cancel.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ropewalk_net::Completed;

use super::{ask, code, put};
use crate::contexts::{ContextSlot, number, operation};
use crate::errors::{self, EINVAL, ErrorCode};
use crate::library::{self, Library};

/// A wait of the caller's.
pub(super) fn idle(milliseconds: c_int) -> Result<Duration, ErrorCode> {
    u64::try_from(milliseconds).map(Duration::from_millis).map_err(|_| -EINVAL)
}

/// The output arrays of a test; null where the caller does not ask.
struct Results {
    ids: *mut i64,
    indices: *mut c_int,
    errors: *mut ErrorCode,
    sizes: *mut i64,
    users: *mut *mut c_void,
}

impl Results {
    /// # Safety
    /// All that is not null has room at `place`.
    #[inline]
    unsafe fn put(&self, place: usize, index: usize, completed: &Completed) {
        let error = completed.outcome.map_or_else(errors::of_fault, |()| 0);
        let user = ptr::with_exposed_provenance_mut(completed.user as usize);
        // SAFETY: the caller vouches for it; null pointers are passed over.
        unsafe {
            at(self.ids, place, number(completed.operation));
            at(self.indices, place, index as c_int);
            at(self.errors, place, error);
            at(self.sizes, place, completed.bytes as i64);
            at(self.users, place, user);
        }
    }
}

/// # Safety
/// `to` is null or has room at `place`.
#[inline]
unsafe fn at<T>(to: *mut T, place: usize, value: T) {
    if !to.is_null() {
        // SAFETY: the caller vouches for it.
        unsafe { to.add(place).write(value) };
    }
}

/// Runs `work` on a context and returns its answer; an error if there is no such context.
fn ask_context(
    id: i64,
    work: impl FnOnce(&Library, &ContextSlot) -> Result<c_int, ErrorCode>,
) -> c_int {
    code(library::with_context(id, work).unwrap_or(Err(-EINVAL)))
}

/// Tests one operation, waiting for it at most `max_idle_time_ms`. 1 where it has ended, 0 where it has not.
///
/// # Safety
/// The pointers are null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn BMI_test(
    id: i64,
    outcount: *mut c_int,
    error_code: *mut ErrorCode,
    actual_size: *mut i64,
    user_ptr: *mut *mut c_void,
    max_idle_time_ms: c_int,
    context_id: i64,
) -> c_int {
    let results = Results {
        ids: ptr::null_mut(),
        indices: ptr::null_mut(),
        errors: error_code,
        sizes: actual_size,
        users: user_ptr,
    };
    // SAFETY: the caller vouches for it.
    unsafe { put(outcount, 0) };
    ask_context(context_id, |library, context| {
        let idle = idle(max_idle_time_ms)?;
        let count = context.test_some(&library.endpoint, &[id], idle, |_, completed| {
            // SAFETY: the caller vouches for it.
            unsafe { results.put(0, 0, &completed) };
        })?;
        // SAFETY: the caller vouches for it.
        unsafe { put(outcount, count as c_int) };
        Ok(count as c_int)
    })
}

/// Tests some operations, waiting for the first at most `max_idle_time_ms`; `index_array` gets the places in
/// `id_array` of those that have ended. Entries of 0 are passed over.
///
/// # Safety
/// The arrays have `incount` entries; those for results may be null, but for the indices.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn BMI_testsome(
    incount: c_int,
    id_array: *mut i64,
    outcount: *mut c_int,
    index_array: *mut c_int,
    error_code_array: *mut ErrorCode,
    actual_size_array: *mut i64,
    user_ptr_array: *mut *mut c_void,
    max_idle_time_ms: c_int,
    context_id: i64,
) -> c_int {
    // SAFETY: the caller vouches for it.
    unsafe { put(outcount, 0) };
    let results = Results {
        ids: ptr::null_mut(),
        indices: index_array,
        errors: error_code_array,
        sizes: actual_size_array,
        users: user_ptr_array,
    };
    ask_context(context_id, |library, context| {
        let idle = idle(max_idle_time_ms)?;
        let most = usize::try_from(incount).map_err(|_| -EINVAL)?;
        if most == 0 || id_array.is_null() || index_array.is_null() {
            return Err(-EINVAL);
        }
        // SAFETY: the array has as many entries, and nobody writes it meanwhile.
        let given = unsafe { std::slice::from_raw_parts(id_array, most) };
        if given.iter().all(|id| *id == 0) {
            return Ok(0);
        }
        let mut count = 0;
        context.test_some(&library.endpoint, given, idle, |place, completed| {
            // SAFETY: at most `incount` are reported.
            unsafe { results.put(count, place, &completed) };
            count += 1;
        })?;
        // SAFETY: the caller vouches for it.
        unsafe { put(outcount, count as c_int) };
        Ok(c_int::from(count > 0))
    })
}

/// Takes completions of a context, waiting for the first at most `max_idle_time_ms`; an unexpected message
/// ends the wait.
///
/// # Safety
/// The arrays have `incount` entries; those for errors, sizes and user pointers may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn BMI_testcontext(
    incount: c_int,
    out_id_array: *mut i64,
    outcount: *mut c_int,
    error_code_array: *mut ErrorCode,
    actual_size_array: *mut i64,
    user_ptr_array: *mut *mut c_void,
    max_idle_time_ms: c_int,
    context_id: i64,
) -> c_int {
    // SAFETY: the caller vouches for it.
    unsafe { put(outcount, 0) };
    let results = Results {
        ids: out_id_array,
        indices: ptr::null_mut(),
        errors: error_code_array,
        sizes: actual_size_array,
        users: user_ptr_array,
    };
    ask_context(context_id, |library, context| {
        let idle = idle(max_idle_time_ms)?;
        let most = usize::try_from(incount).map_err(|_| -EINVAL)?;
        let endpoint = &library.endpoint;
        let checks = library.options.checks_unexpected.load(Ordering::Relaxed);
        let seen = &context.unexpected_seen;
        let unexpected = &library.unexpected;
        let fresh = || {
            let changes = unexpected.changes(endpoint);
            let other = checks && changes != seen.load(Ordering::Relaxed);
            (other && unexpected.is_any(endpoint)).then_some(changes)
        };
        let mut place = 0;
        context.test_context(endpoint, idle, most, &|| fresh().is_some(), |completed| {
            // SAFETY: at most `incount` are reported.
            unsafe { results.put(place, 0, &completed) };
            place += 1;
        });
        if let Some(changes) = fresh().filter(|_| place == 0 && !idle.is_zero()) {
            seen.store(changes, Ordering::Relaxed);
        }
        // SAFETY: the caller vouches for it.
        unsafe { put(outcount, place as c_int) };
        Ok(c_int::from(place > 0))
    })
}

/// Ends an operation early. A test reports it in any case, mostly with `BMI_ECANCEL`.
#[unsafe(no_mangle)]
pub extern "C" fn BMI_cancel(id: i64, _context_id: i64) -> c_int {
    ask(|library| {
        library.endpoint.cancel(operation(id));
        Ok(0)
    })
}
