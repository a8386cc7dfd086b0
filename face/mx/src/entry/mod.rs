//! The C functions: MX's (`mx_*`) and the native ones (`omx_*`), which differ in the numbers of their codes
//! and in the order of some arguments. Each checks its arguments, asks the endpoint, and translates.
//! `twins!` declares two functions that differ in the family alone.

/// Declares a function of MX and its native twin: `unsafe fn mx_test, omx_test(arguments) = |family| work`. Both have
/// these arguments, return a code of their own family, and do the work on the right, in which `family` is that family.
macro_rules! twins {
    (
        $(#[$doc:meta])*
        unsafe fn $mx:ident, $native:ident($($argument:ident: $type:ty),* $(,)?) = |$family:ident|
        $work:expr
    ) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $mx($($argument: $type),*) -> u32 {
            let $family = $crate::codes::Family::Mx;
            // SAFETY: the caller vouches for it.
            unsafe { $work }
        }

        #[doc = concat!("Native name of [`", stringify!($mx), "`].\n\n# Safety\nAs there.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $native($($argument: $type),*) -> u32 {
            let $family = $crate::codes::Family::Native;
            // SAFETY: the caller vouches for it.
            unsafe { $work }
        }
    };
    (
        $(#[$doc:meta])*
        fn $mx:ident, $native:ident($($argument:ident: $type:ty),* $(,)?) = |$family:ident|
        $work:expr
    ) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $mx($($argument: $type),*) -> u32 {
            let $family = $crate::codes::Family::Mx;
            $work
        }

        #[doc = concat!("Native name of [`", stringify!($mx), "`].")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $native($($argument: $type),*) -> u32 {
            let $family = $crate::codes::Family::Native;
            $work
        }
    };
}

mod board;
mod completion;
mod endpoint;
mod info;
mod library;
mod message;
mod missing;
mod raw;

use std::ffi::CStr;
use std::sync::Arc;

use crate::abi::{Handle, Status};
use crate::codes::{BAD_ENDPOINT, Code, Family, NOT_INITIALIZED, SUCCESS};
use crate::endpoint::Ep;
use crate::operations::Taken;
use crate::requests::Outcome;
use crate::{errors, process};

pub use board::*;
pub use completion::*;
pub use endpoint::*;
pub use info::*;
pub use library::*;
pub use message::*;
pub use missing::*;
pub use raw::*;

/// Writes through a pointer of the caller's, unless it is null.
///
/// # Safety
/// `to` is null or may be written.
unsafe fn put<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: the caller vouches for it.
        unsafe { to.write(value) };
    }
}

/// Reads through a pointer of the caller's; null reads as null.
///
/// # Safety
/// `from` is null or may be read.
unsafe fn pointed(from: *const Handle) -> Handle {
    // SAFETY: the caller vouches for it.
    if from.is_null() { std::ptr::null_mut() } else { unsafe { from.read() } }
}

/// Asks an endpoint. The error has been through its handler, and may have become none.
fn ask<T>(
    handle: Handle,
    text: &CStr,
    work: impl FnOnce(&Arc<Ep>) -> Result<T, Code>,
) -> Result<T, Code> {
    ask_found(process::endpoint_in_life(handle), text, work)
}

/// Asks an endpoint that is open, also where finalize was called before it is closed.
fn ask_open<T>(
    handle: Handle,
    text: &CStr,
    work: impl FnOnce(&Arc<Ep>) -> Result<T, Code>,
) -> Result<T, Code> {
    ask_found(process::endpoint(handle), text, work)
}

#[inline]
fn ask_found<T>(
    endpoint: Option<Arc<Ep>>,
    text: &CStr,
    work: impl FnOnce(&Arc<Ep>) -> Result<T, Code>,
) -> Result<T, Code> {
    let Some(endpoint) = endpoint else {
        return Err(errors::raise(None, text, no_endpoint()));
    };
    work(&endpoint).map_err(|code| errors::raise(endpoint.error_handler(), text, code))
}

/// The reason that a handle has no endpoint.
fn no_endpoint() -> Code {
    if process::is_initialized() { BAD_ENDPOINT } else { NOT_INITIALIZED }
}

/// The same for what concerns no endpoint.
fn ask_process<T>(
    text: &CStr,
    work: impl FnOnce(&process::Process) -> Result<T, Code>,
) -> Result<T, Code> {
    let answer = match process::current() {
        Some(process) => work(&process),
        None => Err(NOT_INITIALIZED),
    };
    answer.map_err(|code| errors::raise(None, text, code))
}

fn returned(family: Family, answer: Result<(), Code>) -> u32 {
    family.returned(answer.err().unwrap_or(SUCCESS))
}

/// A time-out as a family writes it; `None` is endless.
fn limit(family: Family, ms: u32) -> Option<u32> {
    let endless = match family {
        Family::Mx => 0,
        Family::Native => u32::MAX,
    };
    (ms != endless).then_some(ms)
}

fn status_of(family: Family, outcome: &Outcome, context: *mut std::ffi::c_void) -> Status {
    Status {
        code: family.status(outcome.code),
        source: outcome.source,
        match_info: outcome.match_info,
        message_bytes: outcome.message_bytes,
        moved_bytes: outcome.moved_bytes,
        context,
    }
}

/// Writes the result of a call, also of one that failed: programs look at it before they look at the code.
///
/// # Safety
/// `result` is null or may be written.
unsafe fn tell(result: *mut u32, is_so: bool) {
    // SAFETY: the caller vouches for it.
    unsafe { put(result, u32::from(is_so)) }
}

/// Reports a request that was taken, or that none was.
///
/// # Safety
/// Each pointer is null or may be written.
unsafe fn report(
    family: Family,
    answer: Result<Option<Taken>, Code>,
    request: *mut Handle,
    status: *mut Status,
    result: *mut u32,
) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { tell(result, matches!(answer, Ok(Some(_)))) };
    let answer = answer.map(|taken| {
        // SAFETY: the caller vouches for all of it.
        unsafe {
            if let Some(taken) = taken {
                put(status, status_of(family, &taken.outcome, taken.context));
                put(request, std::ptr::null_mut());
            }
        }
    });
    returned(family, answer)
}
