//! Raw endpoints, by which a mapper sends and receives whole frames and has a say in the table of peers.
//!
//! Ethernet finds its ways itself: ports and routes are accepted, and what a route says is that a card is there.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::time::Duration;

use ropewalk_host_mx::agent::Map;
use ropewalk_host_mx::raw::{RawError, RawEvent};
use ropewalk_wire::mxoe::{HOST_NAME_BYTES_MAX, RAW_BYTES_MAX};

use super::info::LINE_SPEED;
use super::{endpoint, no_endpoint, put, returned};
use crate::abi::*;
use crate::codes::*;
use crate::raw::{self, Raw, code_of_raw};
use crate::{errors, process};

/// As a time-out, of both families: for ever. 0 is no time at all.
const FOREVER: u32 = u32::MAX;
/// The native calls that do not want events of sends, and those that do.
const WITHOUT: c_int = 0;
const WITH: c_int = 1;

/// Asks a raw endpoint. The error has been through its handler, and may have become none.
fn ask<T>(
    handle: Handle,
    text: &CStr,
    work: impl FnOnce(&Raw) -> Result<T, RawError>,
) -> Result<T, Code> {
    if !process::is_initialized() {
        return Err(errors::raise(None, text, NOT_INITIALIZED));
    }
    ask_open(handle, text, work)
}

/// Asks a raw endpoint that is open, also where finalize was called before it is closed.
fn ask_open<T>(
    handle: Handle,
    text: &CStr,
    work: impl FnOnce(&Raw) -> Result<T, RawError>,
) -> Result<T, Code> {
    let Some(raw) = raw::find(handle) else {
        return Err(errors::raise(None, text, no_endpoint()));
    };
    work(&raw).map_err(|error| errors::raise(raw.error_handler, text, code_of_raw(&error)))
}

unsafe fn open(
    family: Family,
    nic_number: u32,
    list: *const Parameter,
    count: u32,
    to: *mut Handle,
) -> u32 {
    let open = || {
        let process = process::current().ok_or(NOT_INITIALIZED)?;
        // SAFETY: the caller vouches for the list.
        let settings = unsafe { endpoint::settings(0, list, count, (0, 0)) }?;
        raw::open(&process, nic_number, settings.error_handler)
    };
    let answer = open().map_err(|code| errors::raise(None, c"open a raw endpoint", code));
    // SAFETY: the caller vouches for it.
    returned(family, answer.map(|handle| unsafe { put(to, handle) }))
}

/// Opens the raw endpoint of a NIC: each has one.
///
/// # Safety
/// `list` has `count` entries or is null; `to` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_raw_open_endpoint(
    nic_number: u32,
    list: *mut Parameter,
    count: u32,
    to: *mut Handle,
) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { open(Family::Mx, nic_number, list, count, to) }
}

/// Native name of [`mx_raw_open_endpoint`].
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omx_raw_open_endpoint(
    nic_number: u32,
    list: *const Parameter,
    count: u32,
    to: *mut Handle,
) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { open(Family::Native, nic_number, list, count, to) }
}

fn close(family: Family, handle: Handle) -> u32 {
    let text = c"close a raw endpoint";
    let answer = ask_open(handle, text, |_| match raw::remove(handle) {
        Some(raw) => {
            raw.net.close();
            Ok(())
        }
        None => Err(RawError::Closed),
    });
    returned(family, answer)
}

/// Closes a raw endpoint: threads that wait there are told that it is none.
#[unsafe(no_mangle)]
pub extern "C" fn mx_raw_close_endpoint(endpoint: Handle) -> u32 {
    close(Family::Mx, endpoint)
}

/// Native name of [`mx_raw_close_endpoint`].
#[unsafe(no_mangle)]
pub extern "C" fn omx_raw_close_endpoint(endpoint: Handle) -> u32 {
    close(Family::Native, endpoint)
}

/// A descriptor that is readable while an event waits, to be polled and nothing else; -1: there is no such endpoint.
#[unsafe(no_mangle)]
pub extern "C" fn mx_raw_handle(endpoint: Handle) -> BoardHandle {
    use std::os::fd::AsRawFd;
    let text = c"get the handle of a raw endpoint";
    ask(endpoint, text, |raw| Ok(raw.net.handle().as_raw_fd())).unwrap_or(NO_HANDLE)
}

/// # Safety
/// `buffer` has `bytes` bytes, or is null.
unsafe fn send(
    family: Family,
    handle: Handle,
    buffer: *const c_void,
    bytes: u32,
    context: Option<*const c_void>,
) -> u32 {
    let answer = ask(handle, c"send a raw packet", |raw| {
        if buffer.is_null() || bytes as usize > RAW_BYTES_MAX {
            return Err(RawError::Length);
        }
        // SAFETY: not null, and the caller vouches for its bytes.
        let frame = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), bytes as usize) };
        raw.net.send(frame, context.map(|it| it.expose_provenance()))
    });
    returned(family, answer)
}

/// Sends a frame as it is, its Ethernet header included, of 14 to 1024 bytes. An event with the context tells that
/// it is done; the buffer is the caller's again at once. Port and route say nothing here.
///
/// # Safety
/// `buffer` has `bytes` bytes, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_raw_send(
    endpoint: Handle,
    _port: u32,
    _route: *mut c_void,
    _route_bytes: u32,
    buffer: *mut c_void,
    bytes: u32,
    context: *mut c_void,
) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { send(Family::Mx, endpoint, buffer, bytes, Some(context)) }
}

/// Native form of [`mx_raw_send`], with an event where that is wanted.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omx__raw_send(
    endpoint: Handle,
    buffer: *const c_void,
    bytes: u32,
    wants_event: c_int,
    context: *const c_void,
) -> u32 {
    let context = (wants_event != 0).then_some(context);
    // SAFETY: the caller vouches for it.
    unsafe { send(Family::Native, endpoint, buffer, bytes, context) }
}

/// Native form of [`mx_raw_send`], without an event.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omx_raw_send(endpoint: Handle, buffer: *const c_void, bytes: u32) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { send(Family::Native, endpoint, buffer, bytes, None) }
}

/// The output pointers for an event: each is null or may be written.
struct Places {
    port: *mut u32,
    context: *mut *mut c_void,
    buffer: *mut c_void,
    bytes: *mut u32,
    status: *mut RawStatus,
}

/// # Safety
/// The places are what they say; `buffer` has the bytes that `bytes` points to.
unsafe fn next(family: Family, handle: Handle, to: &Places, ms: u32, wants_sent: c_int) -> u32 {
    let answer = ask(handle, c"get the next raw event", |raw| {
        let timeout = (ms != FOREVER).then(|| Duration::from_millis(ms.into()));
        let mut frame = [0; RAW_BYTES_MAX];
        // SAFETY: the caller vouches for it.
        let room = if to.bytes.is_null() { 0 } else { unsafe { to.bytes.read() } } as usize;
        let room = if to.buffer.is_null() { 0 } else { room.min(frame.len()) };
        let event = raw.net.next(&mut frame[..room], wants_sent != WITHOUT, timeout)?;
        // SAFETY: the caller vouches for the places, and a frame is not longer than its room.
        unsafe {
            match event {
                None => put(to.status, RAW_NOTHING),
                Some(RawEvent::Sent(context)) => {
                    put(to.context, std::ptr::with_exposed_provenance_mut(context));
                    put(to.status, RAW_SENT);
                }
                Some(RawEvent::Received(bytes)) => {
                    if bytes > 0 {
                        std::ptr::copy_nonoverlapping(frame.as_ptr(), to.buffer.cast(), bytes);
                    }
                    put(to.port, 0);
                    put(to.bytes, bytes as u32);
                    put(to.status, RAW_RECEIVED);
                }
            }
        }
        Ok(())
    });
    returned(family, answer)
}

/// The next event, for which it waits up to so many milliseconds: a send is done (its context), a frame came (it, and
/// how many bytes of it there was room for), or nothing happened.
///
/// # Safety
/// Pointers are null or may be written; `buffer` has room for the bytes that `bytes` points to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_raw_next_event(
    endpoint: Handle,
    port: *mut u32,
    context: *mut *mut c_void,
    buffer: *mut c_void,
    bytes: *mut u32,
    ms: u32,
    status: *mut RawStatus,
) -> u32 {
    let to = Places { port, context, buffer, bytes, status };
    // SAFETY: the caller vouches for it.
    unsafe { next(Family::Mx, endpoint, &to, ms, WITH) }
}

/// Native form of [`mx_raw_next_event`]; events of sends wait on where they are not wanted.
///
/// # Safety
/// As there.
#[allow(clippy::too_many_arguments, reason = "programs were compiled with these")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omx__raw_next_event(
    endpoint: Handle,
    port: *mut u32,
    context: *mut *mut c_void,
    buffer: *mut c_void,
    bytes: *mut u32,
    ms: u32,
    status: *mut RawStatus,
    wants_sent: c_int,
) -> u32 {
    let to = Places { port, context, buffer, bytes, status };
    // SAFETY: the caller vouches for it.
    unsafe { next(Family::Native, endpoint, &to, ms, wants_sent) }
}

/// Native form of [`mx_raw_next_event`], of frames alone.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omx_raw_next_event(
    endpoint: Handle,
    buffer: *mut c_void,
    bytes: *mut u32,
    ms: u32,
    status: *mut RawStatus,
) -> u32 {
    let (port, context) = (std::ptr::null_mut(), std::ptr::null_mut());
    let to = Places { port, context, buffer, bytes, status };
    // SAFETY: the caller vouches for it.
    unsafe { next(Family::Native, endpoint, &to, ms, WITHOUT) }
}

fn accept(handle: Handle, text: &CStr) -> u32 {
    returned(Family::Mx, ask(handle, text, |_| Ok(())))
}

/// Routes follow. Each counts when it is set.
#[unsafe(no_mangle)]
pub extern "C" fn mx_raw_set_route_begin(endpoint: Handle) -> u32 {
    accept(endpoint, c"begin to set routes")
}

/// That was all routes.
#[unsafe(no_mangle)]
pub extern "C" fn mx_raw_set_route_end(endpoint: Handle) -> u32 {
    accept(endpoint, c"end setting routes")
}

fn set_route(handle: Handle, nic_id: u64) -> u32 {
    returned(Family::Mx, ask(handle, c"set a route", |raw| raw.net.add_peer(nic_id, None)))
}

/// There is a route to this card: it is in the table of peers from now on.
#[unsafe(no_mangle)]
pub extern "C" fn mx_raw_set_route(
    endpoint: Handle,
    nic_id: u64,
    _route: *mut c_void,
    _route_bytes: u32,
    _input_port: u32,
    _output_port: u32,
    _host_type: c_int,
) -> u32 {
    set_route(endpoint, nic_id)
}

/// As [`mx_raw_set_route`].
#[allow(clippy::too_many_arguments, reason = "programs were compiled with these")]
#[unsafe(no_mangle)]
pub extern "C" fn mx_raw_set_route_mag(
    endpoint: Handle,
    nic_id: u64,
    _route: *mut c_void,
    _route_bytes: u32,
    _input_port: u32,
    _output_port: u32,
    _host_type: c_int,
    _mag: u32,
) -> u32 {
    set_route(endpoint, nic_id)
}

/// No route leads to this card, which stays in the table: as there are no routes, nothing is left to do.
#[unsafe(no_mangle)]
pub extern "C" fn mx_raw_clear_routes(endpoint: Handle, _nic: u64, _port: u32) -> u32 {
    accept(endpoint, c"clear routes")
}

/// This card is out of the table of peers, until it is heard again.
#[unsafe(no_mangle)]
pub extern "C" fn mx_raw_remove_peer(endpoint: Handle, nic_id: u64) -> u32 {
    returned(Family::Mx, ask(endpoint, c"remove a peer", |raw| raw.net.remove_peer(nic_id)))
}

/// Sets the map that `mx__get_mapper_state` reports for the NIC from now on. If the map is complete, all
/// peers that have not told their names are asked for them.
#[unsafe(no_mangle)]
pub extern "C" fn mx_raw_set_map_version(
    endpoint: Handle,
    _port: u32,
    mapper: u64,
    version: u32,
    hosts: u32,
    complete: u32,
) -> u32 {
    let map = Map { mapper, version, hosts, is_complete: complete != 0 };
    returned(Family::Mx, ask(endpoint, c"set the version of a map", |raw| raw.net.set_map(map)))
}

/// Ports of the card: one.
///
/// # Safety
/// `count` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_raw_num_ports(endpoint: Handle, count: *mut u32) -> u32 {
    let answer = ask(endpoint, c"count ports", |_| Ok(1));
    // SAFETY: the caller vouches for it.
    returned(Family::Mx, answer.map(|ports| unsafe { put(count, ports) }))
}

/// The speed of the card, as `mx_get_info` tells it.
///
/// # Safety
/// `speed` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_raw_line_speed(endpoint: Handle, speed: *mut u32) -> u32 {
    let answer = ask(endpoint, c"get a line's speed", |_| Ok(LINE_SPEED));
    // SAFETY: the caller vouches for it.
    returned(Family::Mx, answer.map(|found| unsafe { put(speed, found) }))
}

/// A name that others can be told; a code where it is none.
///
/// # Safety
/// `name` is null or ends with a zero.
unsafe fn name_in(name: *const c_char) -> Option<String> {
    // SAFETY: the caller vouches for it.
    let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })?;
    let name = name.to_string_lossy().into_owned();
    (1..HOST_NAME_BYTES_MAX).contains(&name.len()).then_some(name)
}

/// # Safety
/// `name` is null or ends with a zero.
unsafe fn name_peer(
    handle: Handle,
    text: &CStr,
    name: *const c_char,
    nic_id: impl FnOnce(&Raw) -> u64,
) -> u32 {
    // SAFETY: the caller vouches for it.
    let name = unsafe { name_in(name) };
    let answer = match name {
        Some(name) => ask(handle, text, |raw| raw.net.add_peer(nic_id(raw), Some(&name))),
        None => ask(handle, text, |raw| Ok(raw.error_handler))
            .and_then(|handler| Err(errors::raise(handler, text, BAD_HOST_NAME))),
    };
    returned(Family::Mx, answer)
}

/// Others shall call the NIC so.
///
/// # Safety
/// `name` is null or ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_raw_set_hostname(endpoint: Handle, name: *mut c_char) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { name_peer(endpoint, c"set a host's name", name, |raw| raw.net.nic_id()) }
}

/// This card is there, and called so, until it says otherwise.
///
/// # Safety
/// `name` is null or ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_raw_set_peer_name(
    endpoint: Handle,
    nic_id: u64,
    name: *mut c_char,
) -> u32 {
    // SAFETY: the caller vouches for it.
    unsafe { name_peer(endpoint, c"set a peer's name", name, |_| nic_id) }
}

/// Sets the reply of native cards to mappers. No host with MXoE asks for it, so the call is accepted and the
/// reply is not kept.
#[unsafe(no_mangle)]
pub extern "C" fn mx_raw_set_nic_reply_info(
    endpoint: Handle,
    _info: *mut c_void,
    _bytes: u32,
) -> u32 {
    accept(endpoint, c"set what a card replies")
}
