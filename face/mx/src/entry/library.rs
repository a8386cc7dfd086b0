//! Beginning and end, handlers of errors, texts of codes.

use std::ffi::{c_char, c_int};

use super::{ask, ask_process, put, returned};
use crate::abi::{ErrorHandler, Handle};
use crate::codes::{self, BOARD_UNKNOWN, Family, HOST_NOT_FOUND, NIC_NOT_FOUND};
use crate::{errors, process};

fn initialize(family: Family, api: c_int) -> u32 {
    let answer = process::initialize(api as u32);
    let text = c"initialize";
    returned(family, answer.map_err(|code| errors::raise(None, text, code)))
}

/// Begins; `mx_init()` passes what the program was compiled with.
#[unsafe(no_mangle)]
pub extern "C" fn mx__init_api(api: c_int) -> u32 {
    initialize(Family::Mx, api)
}

/// Native name of [`mx__init_api`].
#[unsafe(no_mangle)]
pub extern "C" fn omx__init_api(api: c_int) -> u32 {
    initialize(Family::Native, api)
}

fn finalize(family: Family) -> u32 {
    let answer = process::finalize();
    returned(family, answer.map_err(|code| errors::raise(None, c"finalize", code)))
}

/// Ends; it may begin again.
#[unsafe(no_mangle)]
pub extern "C" fn mx_finalize() -> u32 {
    finalize(Family::Mx)
}

/// Native name of [`mx_finalize`].
#[unsafe(no_mangle)]
pub extern "C" fn omx_finalize() -> u32 {
    finalize(Family::Native)
}

/// Sets the process's handler of errors; the one before it.
#[unsafe(no_mangle)]
pub extern "C" fn mx_set_error_handler(handler: Option<ErrorHandler>) -> Option<ErrorHandler> {
    Some(errors::set_handler(handler))
}

/// Sets the handler of the process, or of an endpoint; the one before it.
#[unsafe(no_mangle)]
pub extern "C" fn omx_set_error_handler(
    endpoint: Handle,
    handler: Option<ErrorHandler>,
) -> Option<ErrorHandler> {
    if endpoint.is_null() {
        return Some(errors::set_handler(handler));
    }
    ask(endpoint, c"set an error handler", |endpoint| Ok(endpoint.set_error_handler(handler)))
        .ok()
        .flatten()
}

/// The text for a return code.
#[unsafe(no_mangle)]
pub extern "C" fn mx_strerror(code: u32) -> *const c_char {
    codes::text(code).as_ptr()
}

/// The text for a native code.
#[unsafe(no_mangle)]
pub extern "C" fn omx_strerror(code: u32) -> *const c_char {
    codes::text(code).as_ptr()
}

/// The text for a status code.
#[unsafe(no_mangle)]
pub extern "C" fn mx_strstatus(code: u32) -> *const c_char {
    codes::status_text(code).as_ptr()
}

unsafe fn nic_id_of(family: Family, nic_number: u32, nic_id: *mut u64) -> u32 {
    let answer = ask_process(c"number of a board to a card", |process| {
        let nics = &process.nics;
        let found = nics.nics.get(nic_number as usize).ok_or(BOARD_UNKNOWN)?;
        // SAFETY: the caller vouches for it.
        unsafe { put(nic_id, found.place.nic_id()) };
        Ok(())
    });
    returned(family, answer)
}

/// The `nic_id` of the NIC with this number.
///
/// # Safety
/// `nic_id` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_board_number_to_nic_id(nic_number: u32, nic_id: *mut u64) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { nic_id_of(Family::Mx, nic_number, nic_id) }
}

/// Native name of [`mx_board_number_to_nic_id`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omx_board_number_to_nic_id(nic_number: u32, nic_id: *mut u64) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { nic_id_of(Family::Native, nic_number, nic_id) }
}

unsafe fn nic_number_of(family: Family, nic_id: u64, nic_number: *mut u32) -> u32 {
    let answer = ask_process(c"card to the number of a board", |process| {
        let found = process.nics.number_of(nic_id).ok_or(BOARD_UNKNOWN)?;
        // SAFETY: the caller vouches for it.
        unsafe { put(nic_number, found) };
        Ok(())
    });
    returned(family, answer)
}

/// The number of the NIC with this `nic_id`.
///
/// # Safety
/// `nic_number` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_nic_id_to_board_number(nic_id: u64, nic_number: *mut u32) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { nic_number_of(Family::Mx, nic_id, nic_number) }
}

/// Native name of [`mx_nic_id_to_board_number`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omx_nic_id_to_board_number(nic_id: u64, nic_number: *mut u32) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { nic_number_of(Family::Native, nic_id, nic_number) }
}

unsafe fn nic_id_of_name(family: Family, name: *const c_char, nic_id: *mut u64) -> u32 {
    let answer = ask_process(c"name of a host to a card", |process| {
        if name.is_null() {
            return Err(HOST_NOT_FOUND);
        }
        // SAFETY: not null, and the caller vouches for the rest.
        let name = unsafe { std::ffi::CStr::from_ptr(name) }.to_string_lossy();
        let found = process.nics.nic_id_of_name(&name).ok_or(HOST_NOT_FOUND)?;
        // SAFETY: the caller vouches for it.
        unsafe { put(nic_id, found) };
        Ok(())
    });
    returned(family, answer)
}

/// The card of a host's name.
///
/// # Safety
/// `name` is null or ends with a zero, `nic_id` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_hostname_to_nic_id(name: *const c_char, nic_id: *mut u64) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { nic_id_of_name(Family::Mx, name, nic_id) }
}

/// Native name of [`mx_hostname_to_nic_id`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omx_hostname_to_nic_id(name: *const c_char, nic_id: *mut u64) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { nic_id_of_name(Family::Native, name, nic_id) }
}

unsafe fn name_of_nic(family: Family, nic_id: u64, name: *mut c_char) -> u32 {
    let answer = ask_process(c"card to the name of a host", |process| {
        let nics = &process.nics;
        let found = nics.name_of_nic(nic_id).ok_or(match family {
            Family::Mx => HOST_NOT_FOUND,
            Family::Native => NIC_NOT_FOUND,
        })?;
        // SAFETY: the caller vouches for it.
        unsafe { super::info::put_text(name, crate::abi::NAME_BYTES, &found) };
        Ok(())
    });
    returned(family, answer)
}

/// The name of a card's host.
///
/// # Safety
/// `name` is null or has room for 80 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_nic_id_to_hostname(nic_id: u64, name: *mut c_char) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { name_of_nic(Family::Mx, nic_id, name) }
}

/// Native name of [`mx_nic_id_to_hostname`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omx_nic_id_to_hostname(nic_id: u64, name: *mut c_char) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { name_of_nic(Family::Native, nic_id, name) }
}
