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

twins! {
    /// Opens an endpoint.
    ///
    /// # Safety
    /// `list` has `count` entries or is null; `to` may be written.
    unsafe fn mx_open_endpoint, omx_open_endpoint(
        nic_number: u32,
        number: u32,
        key: u32,
        list: *mut Parameter,
        count: u32,
        to: *mut Handle,
    ) = |family| open(family, (nic_number, number), key, list, count, to)
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

twins! {
    /// Closes an endpoint.
    fn mx_close_endpoint, omx_close_endpoint(endpoint: Handle) = |family| close(family, endpoint)
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

twins! {
    /// Ends all waits of an endpoint.
    fn mx_wakeup, omx_wakeup(endpoint: Handle) = |family| wake_up(family, endpoint)
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

twins! {
    /// The endpoint's own address.
    ///
    /// # Safety
    /// `to` is null or may be written.
    unsafe fn mx_get_endpoint_addr, omx_get_endpoint_addr(
        endpoint: Handle,
        to: *mut Address,
    ) = |family| own_address(family, endpoint, to)
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

twins! {
    /// Connects to an endpoint of a card.
    ///
    /// # Safety
    /// `to` is null or may be written.
    unsafe fn mx_connect, omx_connect(
        endpoint: Handle,
        nic_id: u64,
        number: u32,
        key: u32,
        ms: u32,
        to: *mut Address,
    ) = |family| connect(family, endpoint, (nic_id, number), key, ms, to)
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

twins! {
    /// Begins to connect: a request like others, whose status has the address as its source.
    ///
    /// # Safety
    /// `to` is null or may be written.
    unsafe fn mx_iconnect, omx_iconnect(
        endpoint: Handle,
        nic_id: u64,
        number: u32,
        key: u32,
        match_info: u64,
        context: *mut c_void,
        to: *mut Handle,
    ) = |family| {
        let posting = Posting { segments: &[], match_info, context, is_wanted: !to.is_null() };
        iconnect(family, endpoint, (nic_id, number), key, &posting, to)
    }
}

fn disconnect(family: Family, handle: Handle, address: Address) -> u32 {
    returned(family, ask(handle, c"disconnect", |endpoint| endpoint.disconnect(address)))
}

twins! {
    /// Forgets a partner.
    fn mx_disconnect, omx_disconnect(endpoint: Handle, address: Address) = |family|
        disconnect(family, endpoint, address)
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

twins! {
    /// Card and number of an address.
    ///
    /// # Safety
    /// Each pointer is null or may be written.
    unsafe fn mx_decompose_endpoint_addr, omx_decompose_endpoint_addr(
        address: Address,
        nic_id: *mut u64,
        number: *mut u32,
    ) = |family| decompose(family, address, nic_id, number, std::ptr::null_mut())
}

twins! {
    /// The same with its session.
    ///
    /// # Safety
    /// Each pointer is null or may be written.
    unsafe fn mx_decompose_endpoint_addr2, omx_decompose_endpoint_addr_with_session(
        address: Address,
        nic_id: *mut u64,
        number: *mut u32,
        session: *mut u32,
    ) = |family| decompose(family, address, nic_id, number, session)
}

fn set_context(family: Family, address: Address, context: *mut c_void) -> u32 {
    let number = context.expose_provenance();
    let set = with_partner(address, |partner| partner.context = number);
    let text = c"set the context of an address";
    returned(family, set.map_err(|code| errors::raise(None, text, code)))
}

twins! {
    /// Sets the partner's pointer of the user's.
    fn mx_set_endpoint_addr_context, omx_set_endpoint_addr_context(
        address: Address,
        context: *mut c_void,
    ) = |family| set_context(family, address, context)
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

twins! {
    /// The partner's pointer of the user's; null where none was set.
    ///
    /// # Safety
    /// `to` is null or may be written.
    unsafe fn mx_get_endpoint_addr_context, omx_get_endpoint_addr_context(
        address: Address,
        to: *mut *mut c_void,
    ) = |family| get_context(family, address, to)
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

twins! {
    /// Sets the handler of messages that nobody posted a receive for; null: there is none any more.
    fn mx_register_unexp_handler, omx_register_unexp_handler(
        endpoint: Handle,
        function: Option<UnexpectedHandler>,
        context: *mut c_void,
    ) = |family| register(family, endpoint, function, context)
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

twins! {
    /// One round of progress.
    fn mx_progress, omx_progress(endpoint: Handle) = |family| progress(family, endpoint)
}

twins! {
    /// From here on nothing is progressed.
    fn mx_disable_progression, omx_disable_progression(endpoint: Handle) = |family|
        returned(family, ask(endpoint, c"disable progression", |endpoint| endpoint.disable()))
}

twins! {
    /// It is again.
    fn mx_reenable_progression, omx_reenable_progression(endpoint: Handle) = |family|
        returned(family, ask(endpoint, c"enable progression", |endpoint| endpoint.reenable()))
}

fn set_timeout(family: Family, handle: Handle, request: Handle, ms: u32) -> u32 {
    let request = (!request.is_null()).then_some(request);
    let ms = limit(family, ms).unwrap_or(0);
    returned(family, ask(handle, c"set a time-out", |endpoint| endpoint.set_timeout(request, ms)))
}

twins! {
    /// Sets the time that a request may wait for a peer that does not answer. Without a request, sets it for all
    /// later requests.
    fn mx_set_request_timeout, omx_set_request_timeout(
        endpoint: Handle,
        request: Handle,
        ms: u32,
    ) = |family| set_timeout(family, endpoint, request, ms)
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

twins! {
    /// The user's pointer of a request.
    ///
    /// # Safety
    /// `request` may be read, `to` is null or may be written.
    unsafe fn mx_context, omx_context(request: *mut Handle, to: *mut *mut c_void) = |family|
        context(family, request, to)
}
