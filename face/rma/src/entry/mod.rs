//! The C functions. Each checks its arguments, asks the library, and translates the answer into a code of `codes`.

mod communicate;
mod look;
mod request;
mod synchronise;
mod team;
mod types;
mod window;

use std::ffi::{CStr, c_char, c_int};

use ropewalk_rma::Window;

use crate::codes::{ERR_ARG, Failure, code, failure};
use crate::handles::Handle;
use crate::library::{Library, library, with_window};

pub use communicate::*;
pub use look::*;
pub use request::*;
pub use synchronise::*;
pub use team::*;
pub use types::*;
pub use window::*;

/// Asks the library.
fn ask(work: impl FnOnce(&Library) -> Result<(), Failure>) -> c_int {
    code(library().and_then(|library| work(&library)))
}

/// Asks a window.
fn ask_window(window: Handle, work: impl FnOnce(&Window) -> Result<(), Failure>) -> c_int {
    code(with_window(window, work))
}

/// A text of a caller; none where it is null.
///
/// # Safety
/// It is null or ends with a zero, and lives as long as the answer.
unsafe fn text<'a>(text: *const c_char) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Ok("");
    }
    // SAFETY: the caller vouches for it.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| failure(ERR_ARG, "a text is not UTF-8"))
}
