//! The C functions. Each checks its arguments, asks the library, and translates the answer.
//!
//! Return values, unless a function says otherwise: 0 or a positive number is success, a negative one
//! an error code (`errors`). A post returns 1 where the operation is complete, 0 where it was started.

mod address;
mod info;
mod post;
mod test;
mod unexpected;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use crate::addresses::{Handle, peer_of};
use crate::errors::{self, EINVAL, ENETDOWN, ErrorCode};
use crate::library::{self, Library, Start};

pub use address::*;
pub use info::*;
pub use post::*;
pub use test::*;
pub use unexpected::*;

/// A string of the caller's; `None` where it is null, an error where it is not text.
///
/// # Safety
/// `text` is null or ends with a zero and lives as long as the answer.
unsafe fn text<'a>(text: *const c_char) -> Result<Option<&'a str>, ErrorCode> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller vouches for it.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| -EINVAL)
}

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

fn code(result: Result<c_int, ErrorCode>) -> c_int {
    result.unwrap_or_else(|error| error)
}

/// Runs `work` on the library and returns its answer; an error if there is no library.
fn ask(work: impl FnOnce(&Library) -> Result<c_int, ErrorCode>) -> c_int {
    code(library::with(work).unwrap_or(Err(-ENETDOWN)))
}

/// Starts the library, or counts one more user of it. `methods`: `bmi_tcp,bmi_shm`; `listen`: a URL for each
/// of them, where `flags` has `BMI_INIT_SERVER`. OrangeFS's fourth argument is not needed.
///
/// # Safety
/// The strings are null or end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn BMI_initialize(
    methods: *const c_char,
    listen: *const c_char,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller vouches for both.
    let (methods, listen) = match unsafe { (text(methods), text(listen)) } {
        (Ok(methods), Ok(listen)) => (methods, listen),
        (Err(error), _) | (_, Err(error)) => return error,
    };
    code(library::initialize(&Start { methods, listen, flags }).map(|()| 0))
}

/// Ends the library with its last user; operations under way are given up. Always 0.
#[unsafe(no_mangle)]
pub extern "C" fn BMI_finalize() -> c_int {
    library::finalize();
    0
}

/// Opens a context.
///
/// # Safety
/// `context_id` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn BMI_open_context(context_id: *mut i64) -> c_int {
    if context_id.is_null() {
        return -EINVAL;
    }
    ask(|library| {
        let id = library.contexts.open(&library.endpoint)?;
        // SAFETY: not null, and the caller vouches for the rest.
        unsafe { put(context_id, id) };
        Ok(0)
    })
}

/// Closes a context; completions that nobody tested for are dropped.
#[unsafe(no_mangle)]
pub extern "C" fn BMI_close_context(context_id: i64) {
    library::with(|library| library.contexts.close(&library.endpoint, context_id));
}

/// Memory for messages with this address; null where there is none, or no such address.
#[unsafe(no_mangle)]
pub extern "C" fn BMI_memalloc(addr: Handle, size: i64, _send_recv: c_int) -> *mut c_void {
    let allocate = |library: &Library| {
        let bytes = usize::try_from(size).ok()?;
        if !library.addresses().is_known(addr) && !library.endpoint.is_known(peer_of(addr)) {
            return None;
        }
        library.buffers.allocate(bytes)
    };
    library::with(allocate).flatten().unwrap_or(ptr::null_mut())
}

/// Gives memory of `BMI_memalloc` back.
#[unsafe(no_mangle)]
pub extern "C" fn BMI_memfree(
    _addr: Handle,
    buffer: *mut c_void,
    _size: i64,
    _send_recv: c_int,
) -> c_int {
    ask(|library| if library.buffers.free(buffer) { Ok(0) } else { Err(-EINVAL) })
}

/// The interface's code of a system's error.
#[unsafe(no_mangle)]
pub extern "C" fn bmi_errno_to_pvfs(error: c_int) -> ErrorCode {
    errors::from_errno(error)
}

/// The text for an error code.
#[unsafe(no_mangle)]
pub extern "C" fn bmi_status_string(error: ErrorCode) -> *const c_char {
    errors::name(error).as_ptr()
}
