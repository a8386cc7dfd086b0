//! Endpoints and the partners that they connect to.

use std::ffi::c_void;

use super::{ask, ask_open, limit, pointed, put, returned};
use crate::abi::*;
use crate::codes::*;
use crate::endpoint::{Handler, Settings};
use crate::operations::{Posting, with_partner};
use crate::partners::session_of;
use crate::{endpoint, errors, process};

/// # Safety
/// The list has `count` entries, or is null.
pub(super) unsafe fn settings(
    key: u32,
    list: *const Parameter,
    count: u32,
    usual: (u8, u8),
) -> Result<Settings, Code> {
    let (context_bits, context_shift) = usual;
    let mut settings = Settings { key, context_bits, context_shift, ..Settings::default() };
    if list.is_null() && count > 0 {
        return Err(BAD_PARAMETER_LIST);
    }
    for index in 0..count as usize {
        // SAFETY: the caller vouches for the list.
        let parameter = unsafe { &*list.add(index) };
        match parameter.key {
            PARAMETER_ERROR_HANDLER => {
                // SAFETY: the key says which part of the union it is.
                settings.error_handler = unsafe { parameter.value.error_handler };
            }
            PARAMETER_UNEXPECTED_QUEUE_MAX => {}
            PARAMETER_CONTEXT_ID => {
                // SAFETY: the key says which part of the union it is.
                let ContextId { bits, shift } = unsafe { parameter.value.context_id };
                (settings.context_bits, settings.context_shift) = (bits, shift);
            }
            _ => return Err(BAD_PARAMETER_NAME),
        }
    }
    let Settings { context_bits: bits, context_shift: shift, .. } = settings;
    if bits > CONTEXT_BITS_MAX || u32::from(bits) + u32::from(shift) > 64 {
        return Err(BAD_PARAMETER_VALUE);
    }
    Ok(settings)
}

unsafe fn open(
    family: Family,
    place: (u32, u32),
    key: u32,
    list: *const Parameter,
    count: u32,
    to: *mut Handle,
) -> u32 {
    let open = || {
        let process = process::current().ok_or(NOT_INITIALIZED)?;
        let usual = (process.options.context_bits, process.options.context_shift);
        // SAFETY: the caller vouches for the list.
        let settings = unsafe { settings(key, list, count, usual) }?;
        let (nic_number, number) = place;
        process::add(|at| endpoint::open(&process, at, nic_number, number, settings))
    };
    let answer = open().map_err(|code| errors::raise(None, c"open an endpoint", code));
    // SAFETY: the caller vouches for it.
    returned(family, answer.map(|handle| unsafe { put(to, handle) }))
}

/// Opens an endpoint.
///
/// # Safety
/// `list` has `count` entries or is null; `to` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_open_endpoint(
    nic_number: u32,
    number: u32,
    key: u32,
    list: *mut Parameter,
    count: u32,
    to: *mut Handle,
) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { open(Family::Mx, (nic_number, number), key, list, count, to) }
}

/// Native name of [`mx_open_endpoint`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omx_open_endpoint(
    nic_number: u32,
    number: u32,
    key: u32,
    list: *mut Parameter,
    count: u32,
    to: *mut Handle,
) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { open(Family::Native, (nic_number, number), key, list, count, to) }
}

fn close(family: Family, handle: Handle) -> u32 {
    let answer = ask_open(handle, c"close an endpoint", |endpoint| {
        if endpoint.lock().is_handling() {
            return Err(NOT_IN_HANDLER);
        }
        if !process::remove(handle) {
            return Err(BAD_ENDPOINT);
        }
        endpoint.close();
        Ok(())
    });
    returned(family, answer)
}

/// Closes an endpoint.
#[unsafe(no_mangle)]
pub extern "C" fn mx_close_endpoint(endpoint: Handle) -> u32 {
    close(Family::Mx, endpoint)
}

/// Native name of [`mx_close_endpoint`].
#[unsafe(no_mangle)]
pub extern "C" fn omx_close_endpoint(endpoint: Handle) -> u32 {
    close(Family::Native, endpoint)
}

fn wake_up(family: Family, handle: Handle) -> u32 {
    returned(
        family,
        ask(handle, c"wake up", |endpoint| {
            endpoint.wake_up();
            Ok(())
        }),
    )
}

/// Ends all waits of an endpoint.
#[unsafe(no_mangle)]
pub extern "C" fn mx_wakeup(endpoint: Handle) -> u32 {
    wake_up(Family::Mx, endpoint)
}

/// Native name of [`mx_wakeup`].
#[unsafe(no_mangle)]
pub extern "C" fn omx_wakeup(endpoint: Handle) -> u32 {
    wake_up(Family::Native, endpoint)
}

unsafe fn own_address(family: Family, handle: Handle, to: *mut Address) -> u32 {
    let answer = ask(handle, c"get an endpoint's address", |endpoint| {
        let state = endpoint.lock();
        // SAFETY: the caller vouches for it.
        unsafe { put(to, endpoint.own_address(&state)) };
        Ok(())
    });
    returned(family, answer)
}

/// The endpoint's own address.
///
/// # Safety
/// `to` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_get_endpoint_addr(endpoint: Handle, to: *mut Address) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { own_address(Family::Mx, endpoint, to) }
}

/// Native name of [`mx_get_endpoint_addr`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omx_get_endpoint_addr(endpoint: Handle, to: *mut Address) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { own_address(Family::Native, endpoint, to) }
}

unsafe fn connect(
    family: Family,
    handle: Handle,
    place: (u64, u32),
    key: u32,
    ms: u32,
    to: *mut Address,
) -> u32 {
    let answer = ask(handle, c"connect", |endpoint| {
        let address = endpoint.connect(place, key, limit(family, ms))?;
        // SAFETY: the caller vouches for it.
        unsafe { put(to, address) };
        Ok(())
    });
    returned(family, answer)
}

/// Connects to an endpoint of a card.
///
/// # Safety
/// `to` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_connect(
    endpoint: Handle,
    nic_id: u64,
    number: u32,
    key: u32,
    ms: u32,
    to: *mut Address,
) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { connect(Family::Mx, endpoint, (nic_id, number), key, ms, to) }
}

/// Native name of [`mx_connect`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omx_connect(
    endpoint: Handle,
    nic_id: u64,
    number: u32,
    key: u32,
    ms: u32,
    to: *mut Address,
) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { connect(Family::Native, endpoint, (nic_id, number), key, ms, to) }
}

unsafe fn iconnect(
    family: Family,
    handle: Handle,
    place: (u64, u32),
    key: u32,
    posting: &Posting<'_>,
    to: *mut Handle,
) -> u32 {
    let answer = ask(handle, c"begin to connect", |endpoint| {
        let request = endpoint.connect_later(place, key, posting)?;
        // SAFETY: the caller vouches for it.
        unsafe { put(to, request) };
        Ok(())
    });
    returned(family, answer)
}

/// Begins to connect: a request like others, whose status has the address as its source.
///
/// # Safety
/// `to` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_iconnect(
    endpoint: Handle,
    nic_id: u64,
    number: u32,
    key: u32,
    match_info: u64,
    context: *mut c_void,
    to: *mut Handle,
) -> u32 {
    let posting = Posting { segments: &[], match_info, context, is_wanted: !to.is_null() };
    // SAFETY: the caller vouches for it.
    unsafe { iconnect(Family::Mx, endpoint, (nic_id, number), key, &posting, to) }
}

/// Native name of [`mx_iconnect`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omx_iconnect(
    endpoint: Handle,
    nic_id: u64,
    number: u32,
    key: u32,
    match_info: u64,
    context: *mut c_void,
    to: *mut Handle,
) -> u32 {
    let posting = Posting { segments: &[], match_info, context, is_wanted: !to.is_null() };
    // SAFETY: the caller vouches for it.
    unsafe { iconnect(Family::Native, endpoint, (nic_id, number), key, &posting, to) }
}

fn disconnect(family: Family, handle: Handle, address: Address) -> u32 {
    returned(family, ask(handle, c"disconnect", |endpoint| endpoint.disconnect(address)))
}

/// Forgets a partner.
#[unsafe(no_mangle)]
pub extern "C" fn mx_disconnect(endpoint: Handle, address: Address) -> u32 {
    disconnect(Family::Mx, endpoint, address)
}

/// Native name of [`mx_disconnect`].
#[unsafe(no_mangle)]
pub extern "C" fn omx_disconnect(endpoint: Handle, address: Address) -> u32 {
    disconnect(Family::Native, endpoint, address)
}

unsafe fn decompose(
    family: Family,
    address: Address,
    nic_id: *mut u64,
    number: *mut u32,
    session: *mut u32,
) -> u32 {
    let found = with_partner(address, |partner| (partner.nic_id, partner.endpoint));
    let found = found.map_err(|code| errors::raise(None, c"decompose an address", code));
    let answer = found.map(|(card, endpoint)| {
        // SAFETY: the caller vouches for all of it.
        unsafe {
            put(nic_id, card);
            put(number, endpoint.into());
            put(session, session_of(address));
        }
    });
    returned(family, answer)
}

/// Card and number of an address.
///
/// # Safety
/// Each pointer is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_decompose_endpoint_addr(
    address: Address,
    nic_id: *mut u64,
    number: *mut u32,
) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { decompose(Family::Mx, address, nic_id, number, std::ptr::null_mut()) }
}

/// The same with its session.
///
/// # Safety
/// Each pointer is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_decompose_endpoint_addr2(
    address: Address,
    nic_id: *mut u64,
    number: *mut u32,
    session: *mut u32,
) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { decompose(Family::Mx, address, nic_id, number, session) }
}

/// Native name of [`mx_decompose_endpoint_addr`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omx_decompose_endpoint_addr(
    address: Address,
    nic_id: *mut u64,
    number: *mut u32,
) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { decompose(Family::Native, address, nic_id, number, std::ptr::null_mut()) }
}

/// Native name of [`mx_decompose_endpoint_addr2`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omx_decompose_endpoint_addr_with_session(
    address: Address,
    nic_id: *mut u64,
    number: *mut u32,
    session: *mut u32,
) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { decompose(Family::Native, address, nic_id, number, session) }
}

fn set_context(family: Family, address: Address, context: *mut c_void) -> u32 {
    let number = context.expose_provenance();
    let set = with_partner(address, |partner| partner.context = number);
    let text = c"set the context of an address";
    returned(family, set.map_err(|code| errors::raise(None, text, code)))
}

/// Sets the partner's pointer of the user's.
#[unsafe(no_mangle)]
pub extern "C" fn mx_set_endpoint_addr_context(address: Address, context: *mut c_void) -> u32 {
    set_context(Family::Mx, address, context)
}

/// Native name of [`mx_set_endpoint_addr_context`].
#[unsafe(no_mangle)]
pub extern "C" fn omx_set_endpoint_addr_context(address: Address, context: *mut c_void) -> u32 {
    set_context(Family::Native, address, context)
}

unsafe fn get_context(family: Family, address: Address, to: *mut *mut c_void) -> u32 {
    let found = with_partner(address, |partner| partner.context);
    let text = c"get the context of an address";
    let answer = found.map_err(|code| errors::raise(None, text, code)).map(|number| {
        // SAFETY: the caller vouches for it.
        unsafe { put(to, std::ptr::with_exposed_provenance_mut(number)) };
    });
    returned(family, answer)
}

/// The partner's pointer of the user's; null where none was set.
///
/// # Safety
/// `to` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_get_endpoint_addr_context(
    address: Address,
    to: *mut *mut c_void,
) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { get_context(Family::Mx, address, to) }
}

/// Native name of [`mx_get_endpoint_addr_context`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omx_get_endpoint_addr_context(
    address: Address,
    to: *mut *mut c_void,
) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { get_context(Family::Native, address, to) }
}

fn register(
    family: Family,
    handle: Handle,
    function: Option<UnexpectedHandler>,
    context: *mut c_void,
) -> u32 {
    let answer = ask(handle, c"register a handler", |endpoint| {
        let context = context.expose_provenance();
        endpoint.set_handler(function.map(|function| Handler { function, context }));
        Ok(())
    });
    returned(family, answer)
}

/// Sets the handler of messages that nobody posted a receive for; null: there is none any more.
#[unsafe(no_mangle)]
pub extern "C" fn mx_register_unexp_handler(
    endpoint: Handle,
    function: Option<UnexpectedHandler>,
    context: *mut c_void,
) -> u32 {
    register(Family::Mx, endpoint, function, context)
}

/// Native name of [`mx_register_unexp_handler`].
#[unsafe(no_mangle)]
pub extern "C" fn omx_register_unexp_handler(
    endpoint: Handle,
    function: Option<UnexpectedHandler>,
    context: *mut c_void,
) -> u32 {
    register(Family::Native, endpoint, function, context)
}

fn progress(family: Family, handle: Handle) -> u32 {
    returned(
        family,
        ask(handle, c"progress", |endpoint| {
            drop(endpoint.progress());
            Ok(())
        }),
    )
}

/// One round of progress.
#[unsafe(no_mangle)]
pub extern "C" fn mx_progress(endpoint: Handle) -> u32 {
    progress(Family::Mx, endpoint)
}

/// Native name of [`mx_progress`].
#[unsafe(no_mangle)]
pub extern "C" fn omx_progress(endpoint: Handle) -> u32 {
    progress(Family::Native, endpoint)
}

/// From here on nothing is progressed.
#[unsafe(no_mangle)]
pub extern "C" fn mx_disable_progression(endpoint: Handle) -> u32 {
    returned(Family::Mx, ask(endpoint, c"disable progression", |endpoint| endpoint.disable()))
}

/// Native name of [`mx_disable_progression`].
#[unsafe(no_mangle)]
pub extern "C" fn omx_disable_progression(endpoint: Handle) -> u32 {
    returned(Family::Native, ask(endpoint, c"disable progression", |endpoint| endpoint.disable()))
}

/// It is again.
#[unsafe(no_mangle)]
pub extern "C" fn mx_reenable_progression(endpoint: Handle) -> u32 {
    returned(Family::Mx, ask(endpoint, c"enable progression", |endpoint| endpoint.reenable()))
}

/// Native name of [`mx_reenable_progression`].
#[unsafe(no_mangle)]
pub extern "C" fn omx_reenable_progression(endpoint: Handle) -> u32 {
    returned(Family::Native, ask(endpoint, c"enable progression", |endpoint| endpoint.reenable()))
}

fn set_timeout(family: Family, handle: Handle, request: Handle, ms: u32) -> u32 {
    let request = (!request.is_null()).then_some(request);
    let ms = limit(family, ms).unwrap_or(0);
    returned(family, ask(handle, c"set a time-out", |endpoint| endpoint.set_timeout(request, ms)))
}

/// Sets the time that a request may wait for a peer that does not answer. Without a request, sets it for all
/// later requests.
#[unsafe(no_mangle)]
pub extern "C" fn mx_set_request_timeout(endpoint: Handle, request: Handle, ms: u32) -> u32 {
    set_timeout(Family::Mx, endpoint, request, ms)
}

/// Native name of [`mx_set_request_timeout`].
#[unsafe(no_mangle)]
pub extern "C" fn omx_set_request_timeout(endpoint: Handle, request: Handle, ms: u32) -> u32 {
    set_timeout(Family::Native, endpoint, request, ms)
}

unsafe fn context(family: Family, request: *const Handle, to: *mut *mut c_void) -> u32 {
    // SAFETY: the caller vouches for it.
    let handle = unsafe { pointed(request) };
    let found = process::endpoint_at(crate::requests::Requests::place_of(handle))
        .ok_or(BAD_REQUEST)
        .and_then(|endpoint| endpoint.context_of(handle));
    let text = c"get the context of a request";
    let answer = found.map_err(|code| errors::raise(None, text, code)).map(|context| {
        // SAFETY: the caller vouches for it.
        unsafe { put(to, context) };
    });
    returned(family, answer)
}

/// The user's pointer of a request.
///
/// # Safety
/// `request` may be read, `to` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_context(request: *mut Handle, to: *mut *mut c_void) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { context(Family::Mx, request, to) }
}

/// Native name of [`mx_context`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omx_context(request: *mut Handle, to: *mut *mut c_void) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { context(Family::Native, request, to) }
}
