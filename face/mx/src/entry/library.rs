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

twins! {
    /// Begins; `mx_init()` passes what the program was compiled with.
    fn mx__init_api, omx__init_api(api: c_int) = |family| initialize(family, api)
}

fn finalize(family: Family) -> u32 {
    let answer = process::finalize();
    returned(family, answer.map_err(|code| errors::raise(None, c"finalize", code)))
}

twins! {
    /// Ends; it may begin again.
    fn mx_finalize, omx_finalize() = |family| finalize(family)
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

twins! {
    /// The `nic_id` of the NIC with this number.
    ///
    /// # Safety
    /// `nic_id` is null or may be written.
    unsafe fn mx_board_number_to_nic_id, omx_board_number_to_nic_id(
        nic_number: u32,
        nic_id: *mut u64,
    ) = |family| nic_id_of(family, nic_number, nic_id)
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

twins! {
    /// The number of the NIC with this `nic_id`.
    ///
    /// # Safety
    /// `nic_number` is null or may be written.
    unsafe fn mx_nic_id_to_board_number, omx_nic_id_to_board_number(
        nic_id: u64,
        nic_number: *mut u32,
    ) = |family| nic_number_of(family, nic_id, nic_number)
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

twins! {
    /// The card of a host's name.
    ///
    /// # Safety
    /// `name` is null or ends with a zero, `nic_id` is null or may be written.
    unsafe fn mx_hostname_to_nic_id, omx_hostname_to_nic_id(
        name: *const c_char,
        nic_id: *mut u64,
    ) = |family| nic_id_of_name(family, name, nic_id)
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

twins! {
    /// The name of a card's host.
    ///
    /// # Safety
    /// `name` is null or has room for 80 bytes.
    unsafe fn mx_nic_id_to_hostname, omx_nic_id_to_hostname(nic_id: u64, name: *mut c_char) = |family|
        name_of_nic(family, nic_id, name)
}
