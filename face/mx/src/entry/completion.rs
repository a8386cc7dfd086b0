//! Completion: tests, waits, peeks, probes; cancel and forget.

use super::{ask, limit, pointed, put, report, returned, status_of, tell};
use crate::abi::{Handle, Status};
use crate::codes::{BAD_REQUEST, CANCEL_NOT_SUPPORTED, Code, Family};
use crate::requests::Outcome;

unsafe fn test(
    family: Family,
    endpoint: Handle,
    request: *mut Handle,
    status: *mut Status,
    result: *mut u32,
) -> u32 {
    // SAFETY: the caller vouches for all of it.
    unsafe {
        let handle = pointed(request);
        let answer = ask(endpoint, c"test", |endpoint| endpoint.test(handle));
        report(family, answer, request, status, result)
    }
}

twins! {
    /// Whether a request is complete; then it is reported and gone.
    ///
    /// # Safety
    /// `request` may be read and written, the others are null or may be written.
    unsafe fn mx_test, omx_test(
        endpoint: Handle,
        request: *mut Handle,
        status: *mut Status,
        result: *mut u32,
    ) = |family| test(family, endpoint, request, status, result)
}

unsafe fn wait(
    family: Family,
    endpoint: Handle,
    request: *mut Handle,
    ms: u32,
    status: *mut Status,
    result: *mut u32,
) -> u32 {
    // SAFETY: the caller vouches for all of it.
    unsafe {
        let handle = pointed(request);
        let ms = limit(family, ms);
        let answer = ask(endpoint, c"wait", |endpoint| endpoint.wait_request(handle, ms));
        report(family, answer, request, status, result)
    }
}

/// Waits until a request is complete.
///
/// # Safety
/// As for [`mx_test`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_wait(
    endpoint: Handle,
    request: *mut Handle,
    ms: u32,
    status: *mut Status,
    result: *mut u32,
) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { wait(Family::Mx, endpoint, request, ms, status, result) }
}

/// Native name of [`mx_wait`], with the time-out last.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omx_wait(
    endpoint: Handle,
    request: *mut Handle,
    status: *mut Status,
    result: *mut u32,
    ms: u32,
) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { wait(Family::Native, endpoint, request, ms, status, result) }
}

unsafe fn test_any(
    family: Family,
    endpoint: Handle,
    (bits, mask): (u64, u64),
    status: *mut Status,
    result: *mut u32,
) -> u32 {
    let answer = ask(endpoint, c"test any", |endpoint| endpoint.test_any(bits, mask));
    // SAFETY: the caller vouches for it.
    unsafe { report(family, answer, std::ptr::null_mut(), status, result) }
}

twins! {
    /// Reports the first complete request whose match information, under the mask, is this.
    ///
    /// # Safety
    /// Each pointer is null or may be written.
    unsafe fn mx_test_any, omx_test_any(
        endpoint: Handle,
        bits: u64,
        mask: u64,
        status: *mut Status,
        result: *mut u32,
    ) = |family| test_any(family, endpoint, (bits, mask), status, result)
}

unsafe fn wait_any(
    family: Family,
    endpoint: Handle,
    (bits, mask): (u64, u64),
    ms: u32,
    status: *mut Status,
    result: *mut u32,
) -> u32 {
    let ms = limit(family, ms);
    let answer = ask(endpoint, c"wait for any", |endpoint| endpoint.wait_any(bits, mask, ms));
    // SAFETY: the caller vouches for it.
    unsafe { report(family, answer, std::ptr::null_mut(), status, result) }
}

/// Waits for the first complete request whose match information, under the mask, is this.
///
/// # Safety
/// Each pointer is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_wait_any(
    endpoint: Handle,
    ms: u32,
    bits: u64,
    mask: u64,
    status: *mut Status,
    result: *mut u32,
) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { wait_any(Family::Mx, endpoint, (bits, mask), ms, status, result) }
}

/// Native name of [`mx_wait_any`], with the time-out last.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omx_wait_any(
    endpoint: Handle,
    bits: u64,
    mask: u64,
    status: *mut Status,
    result: *mut u32,
    ms: u32,
) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { wait_any(Family::Native, endpoint, (bits, mask), ms, status, result) }
}

/// # Safety
/// Each pointer is null or may be written.
unsafe fn peeked(
    family: Family,
    answer: Result<Option<Handle>, Code>,
    request: *mut Handle,
    result: *mut u32,
) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { tell(result, matches!(answer, Ok(Some(_)))) };
    let answer = answer.map(|found| {
        // SAFETY: the caller vouches for it.
        unsafe {
            if let Some(found) = found {
                put(request, found);
            }
        }
    });
    returned(family, answer)
}

twins! {
    /// The oldest complete request, which stays so.
    ///
    /// # Safety
    /// Each pointer is null or may be written.
    unsafe fn mx_ipeek, omx_ipeek(
        endpoint: Handle,
        request: *mut Handle,
        result: *mut u32,
    ) = |family| {
        let answer = ask(endpoint, c"peek", |endpoint| endpoint.ipeek());
        peeked(family, answer, request, result)
    }
}

/// Waits for the oldest complete request, which stays so.
///
/// # Safety
/// Each pointer is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_peek(
    endpoint: Handle,
    ms: u32,
    request: *mut Handle,
    result: *mut u32,
) -> u32 {
    let answer = ask(endpoint, c"peek", |endpoint| endpoint.peek(limit(Family::Mx, ms)));
    // SAFETY: the caller vouches for it.
    unsafe { peeked(Family::Mx, answer, request, result) }
}

/// Native name of [`mx_peek`], with the time-out last.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omx_peek(
    endpoint: Handle,
    request: *mut Handle,
    result: *mut u32,
    ms: u32,
) -> u32 {
    let answer = ask(endpoint, c"peek", |endpoint| endpoint.peek(limit(Family::Native, ms)));
    // SAFETY: the caller vouches for it.
    unsafe { peeked(Family::Native, answer, request, result) }
}

/// # Safety
/// Each pointer is null or may be written.
unsafe fn probed(
    family: Family,
    answer: Result<Option<Outcome>, Code>,
    status: *mut Status,
    result: *mut u32,
) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { tell(result, matches!(answer, Ok(Some(_)))) };
    let answer = answer.map(|found| {
        // SAFETY: the caller vouches for it.
        unsafe {
            if let Some(found) = found {
                put(status, status_of(family, &found, std::ptr::null_mut()));
            }
        }
    });
    returned(family, answer)
}

twins! {
    /// The first message that waits for a receive like this; it stays.
    ///
    /// # Safety
    /// Each pointer is null or may be written.
    unsafe fn mx_iprobe, omx_iprobe(
        endpoint: Handle,
        bits: u64,
        mask: u64,
        status: *mut Status,
        result: *mut u32,
    ) = |family| {
        let answer = ask(endpoint, c"probe", |endpoint| endpoint.iprobe(bits, mask));
        probed(family, answer, status, result)
    }
}

/// Waits for a message that waits for a receive like this; it stays.
///
/// # Safety
/// Each pointer is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_probe(
    endpoint: Handle,
    ms: u32,
    bits: u64,
    mask: u64,
    status: *mut Status,
    result: *mut u32,
) -> u32 {
    let ms = limit(Family::Mx, ms);
    let answer = ask(endpoint, c"probe", |endpoint| endpoint.probe(bits, mask, ms));
    // SAFETY: the caller vouches for it.
    unsafe { probed(Family::Mx, answer, status, result) }
}

/// Native name of [`mx_probe`], with the time-out last.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omx_probe(
    endpoint: Handle,
    bits: u64,
    mask: u64,
    status: *mut Status,
    result: *mut u32,
    ms: u32,
) -> u32 {
    let ms = limit(Family::Native, ms);
    let answer = ask(endpoint, c"probe", |endpoint| endpoint.probe(bits, mask, ms));
    // SAFETY: the caller vouches for it.
    unsafe { probed(Family::Native, answer, status, result) }
}

unsafe fn ibuffered(
    family: Family,
    endpoint: Handle,
    request: *const Handle,
    result: *mut u32,
) -> u32 {
    // SAFETY: the caller vouches for both.
    unsafe {
        let handle = pointed(request);
        let answer = ask(endpoint, c"is it buffered", |endpoint| endpoint.ibuffered(handle));
        tell(result, matches!(answer, Ok(true)));
        returned(family, answer.map(drop))
    }
}

twins! {
    /// Whether a send has left its memory.
    ///
    /// # Safety
    /// `request` may be read, `result` is null or may be written.
    unsafe fn mx_ibuffered, omx_ibuffered(
        endpoint: Handle,
        request: *mut Handle,
        result: *mut u32,
    ) = |family| ibuffered(family, endpoint, request, result)
}

unsafe fn cancel(
    family: Family,
    endpoint: Handle,
    request: *mut Handle,
    result: *mut u32,
    keep: bool,
) -> u32 {
    // SAFETY: the caller vouches for both.
    unsafe {
        let handle = pointed(request);
        let answer = ask(endpoint, c"cancel", |endpoint| {
            endpoint.cancel(handle, keep).map_err(|code| match (family, code) {
                (Family::Native, CANCEL_NOT_SUPPORTED) => BAD_REQUEST,
                (_, code) => code,
            })
        });
        tell(result, matches!(answer, Ok(true)));
        let answer = answer.map(|cancelled| {
            if cancelled && !keep {
                put(request, std::ptr::null_mut());
            }
        });
        returned(family, answer)
    }
}

twins! {
    /// Cancels a receive without a message, or a connect without an answer.
    ///
    /// # Safety
    /// `request` may be read and written, `result` is null or may be written.
    unsafe fn mx_cancel, omx_cancel(
        endpoint: Handle,
        request: *mut Handle,
        result: *mut u32,
    ) = |family| cancel(family, endpoint, request, result, false)
}

/// The same, but the request is still to be tested, and reports that it was cancelled.
///
/// # Safety
/// As for [`mx_cancel`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omx_cancel_notest(
    endpoint: Handle,
    request: *mut Handle,
    result: *mut u32,
) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { cancel(Family::Native, endpoint, request, result, true) }
}

unsafe fn forget(family: Family, endpoint: Handle, request: *mut Handle) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe {
        let handle = pointed(request);
        let answer = ask(endpoint, c"forget", |endpoint| endpoint.forget(handle));
        returned(family, answer.map(|()| put(request, std::ptr::null_mut())))
    }
}

twins! {
    /// Nobody will test for a request.
    ///
    /// # Safety
    /// `request` may be read and written.
    unsafe fn mx_forget, omx_forget(endpoint: Handle, request: *mut Handle) = |family|
        forget(family, endpoint, request)
}
