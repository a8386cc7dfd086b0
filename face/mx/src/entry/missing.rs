//! Functions that programs link to without an implementation: calls that MX declared and never had, and notices
//! about memory.

use std::ffi::c_void;

/// MX declared the function and never had it, so its caller cannot go on.
fn never(name: &str) -> ! {
    eprintln!("libmyriexpress: {name} was never part of MX");
    std::process::abort();
}

/// Declared by MX, which had none.
#[unsafe(no_mangle)]
pub extern "C" fn mx_iput() -> u32 {
    never("mx_iput")
}

/// Declared by MX, which had none.
#[unsafe(no_mangle)]
pub extern "C" fn mx_iget() -> u32 {
    never("mx_iget")
}

/// Declared by MX, which had none.
#[unsafe(no_mangle)]
pub extern "C" fn mx_buffered() -> u32 {
    never("mx_buffered")
}

/// Declared by MX, which had none.
#[unsafe(no_mangle)]
pub extern "C" fn mx_register_unexp_callback() -> u32 {
    never("mx_register_unexp_callback")
}

/// Memory is not registered, so that nothing of it is remembered.
#[unsafe(no_mangle)]
pub extern "C" fn mx__regcache_clean(_address: *mut c_void, _bytes: usize) {}
