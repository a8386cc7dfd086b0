//! Unexpected messages on the side that gets them.

use std::ffi::{c_int, c_void};

use super::test::idle;
use super::{ask, put};
use crate::addresses::Handle;
use crate::errors::{EINVAL, ErrorCode};
use crate::library::Library;
use crate::unexpected::tag_of;

/// A message that nobody posted for.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct BmiUnexpectedInfo {
    pub error_code: ErrorCode,
    pub addr: Handle,
    pub buffer: *mut c_void,
    pub size: i64,
    pub tag: i32,
}

/// Takes unexpected messages of a class, waiting for the first at most `max_idle_time_ms`. Each buffer is
/// given back by `BMI_unexpected_free`.
///
/// # Safety
/// `info_array` has room for `incount` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn BMI_testunexpected_class(
    incount: c_int,
    outcount: *mut c_int,
    info_array: *mut BmiUnexpectedInfo,
    class: u8,
    max_idle_time_ms: c_int,
) -> c_int {
    // SAFETY: the caller vouches for it.
    unsafe { put(outcount, 0) };
    ask(|library| {
        let idle = idle(max_idle_time_ms)?;
        let most = usize::try_from(incount).map_err(|_| -EINVAL)?;
        if most > 0 && info_array.is_null() {
            return Err(-EINVAL);
        }
        let Library { endpoint, unexpected, .. } = library;
        let mut count = 0;
        unexpected.test(endpoint, class, most, idle, |mut request| {
            let counts = library.counts_references;
            let addr = library.addresses().learn(endpoint, request.peer, counts);
            let (size, tag) = (request.bytes().len() as i64, tag_of(request.bits));
            let buffer = unexpected.lend(request.payload.take());
            // SAFETY: at most `incount` are reported.
            unsafe {
                info_array.add(count).write(BmiUnexpectedInfo {
                    error_code: 0,
                    addr,
                    buffer,
                    size,
                    tag,
                });
            }
            count += 1;
        });
        library.addresses().settle(endpoint);
        // SAFETY: the caller vouches for it.
        unsafe { put(outcount, count as c_int) };
        Ok(c_int::from(count > 0))
    })
}

/// The same of class 0.
///
/// # Safety
/// As for `BMI_testunexpected_class`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn BMI_testunexpected(
    incount: c_int,
    outcount: *mut c_int,
    info_array: *mut BmiUnexpectedInfo,
    max_idle_time_ms: c_int,
) -> c_int {
    // SAFETY: the caller vouches for it.
    unsafe { BMI_testunexpected_class(incount, outcount, info_array, 0, max_idle_time_ms) }
}

/// Gives the buffer of an unexpected message back.
#[unsafe(no_mangle)]
pub extern "C" fn BMI_unexpected_free(addr: Handle, buffer: *mut c_void) -> c_int {
    let _ = addr;
    ask(|library| if library.unexpected.take_back(buffer) { Ok(0) } else { Err(-EINVAL) })
}
