//! Handlers of errors: every call that fails, and every request that ends with an error, goes through one
//! once, and what it returns becomes the code.

use std::ffi::{CStr, c_char};
use std::sync::{Mutex, PoisonError};

use crate::abi::ErrorHandler;
use crate::codes::{self, Code};
use crate::process;

/// The handler of the process; `None`: the usual one.
static HANDLER: Mutex<Option<ErrorHandler>> = Mutex::new(None);

/// Prints the error and ends the program.
unsafe extern "C" fn fatal(text: *mut c_char, code: u32) -> u32 {
    let said = match text.is_null() {
        true => String::new(),
        // SAFETY: handlers are called with a text that ends with a zero.
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
    };
    eprintln!("{said}: {}", codes::text(code).to_string_lossy());
    if let Some(process) = process::current() {
        std::thread::sleep(process.options.abort_sleep);
    }
    std::process::exit(1);
}

/// Returns the code.
unsafe extern "C" fn returned(_text: *mut c_char, code: u32) -> u32 {
    code
}

/// The error handlers that programs name: pointers to functions, as data.
#[unsafe(no_mangle)]
pub static MX_ERRORS_ARE_FATAL: ErrorHandler = fatal;
#[unsafe(no_mangle)]
pub static MX_ERRORS_RETURN: ErrorHandler = returned;
#[unsafe(no_mangle)]
pub static OMX_ERRORS_ARE_FATAL: ErrorHandler = fatal;
#[unsafe(no_mangle)]
pub static OMX_ERRORS_RETURN: ErrorHandler = returned;

/// The handler of the process.
pub fn handler() -> ErrorHandler {
    let set = *HANDLER.lock().unwrap_or_else(PoisonError::into_inner);
    set.unwrap_or_else(|| match process::current() {
        Some(process) if !process.options.errors_are_fatal => returned,
        _ => fatal,
    })
}

/// Sets the handler of the process; the one before it.
pub fn set_handler(handler: Option<ErrorHandler>) -> ErrorHandler {
    let before = self::handler();
    *HANDLER.lock().unwrap_or_else(PoisonError::into_inner) = handler;
    before
}

/// Tells a handler, if this is an error; returns the code that the handler makes of it. No lock is held.
pub fn raise(own: Option<ErrorHandler>, text: &CStr, code: Code) -> Code {
    if code == codes::SUCCESS {
        return code;
    }
    let handler = own.unwrap_or_else(handler);
    // SAFETY: the handler is one of ours or the program's; the text ends with a zero and nobody writes to it.
    unsafe { handler(text.as_ptr().cast_mut(), code) }
}
