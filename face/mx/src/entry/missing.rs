//! What programs link to and do not get: calls that MX declared and never had, internals that Open MPI names,
//! and raw endpoints, which are for those who map Myrinet networks.

use std::ffi::{c_int, c_void};

use super::put;
use crate::abi::{BoardHandle, MapperState};
use crate::codes::{Family, NOT_IMPLEMENTED};
use crate::{errors, process};

/// MX declared it and had none: whoever calls it cannot go on.
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

/// A board as a handle for [`mx__get_mapper_state`].
///
/// # Safety
/// `to` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_open_board(board: u32, to: *mut BoardHandle) -> u32 {
    let answer = super::ask_process(c"open a board", |process| {
        let count = process.boards().boards.len();
        if board as usize >= count {
            return Err(crate::codes::BOARD_UNKNOWN);
        }
        // SAFETY: the caller vouches for it.
        unsafe { put(to, board as BoardHandle) };
        Ok(())
    });
    super::returned(Family::Mx, answer)
}

/// What is known of a board's network: Open MPI compares the mapper's address to tell networks apart. `state`
/// has the number of the board.
///
/// # Safety
/// `state` may be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx__get_mapper_state(
    _board: BoardHandle,
    state: *mut MapperState,
) -> c_int {
    let Some(process) = process::current().filter(|_| !state.is_null()) else { return -1 };
    // SAFETY: not null, and the caller vouches for the rest.
    let board = unsafe { (*state).board };
    let boards = process.boards();
    if board as usize >= boards.boards.len() {
        return -1;
    }
    let found = MapperState {
        board,
        // All boards are of one network, which nobody maps.
        mapper_station: [0; 6],
        port: 0,
        map_version: 1,
        hosts: (boards.boards.len() + boards.peers.len()) as u32,
        network_configured: 1,
        routes_valid: 1,
        level: 0,
        flags: 0,
    };
    // SAFETY: as above.
    unsafe { state.write(found) };
    0
}

/// Memory is not registered, so that nothing of it is remembered.
#[unsafe(no_mangle)]
pub extern "C" fn mx__regcache_clean(_address: *mut c_void, _bytes: usize) {}

/// Raw endpoints are open work: see the crate's README.
fn raw(family: Family) -> u32 {
    family.returned(errors::raise(None, c"raw endpoints", NOT_IMPLEMENTED))
}

macro_rules! raw_calls {
    ($($family:ident $name:ident),* $(,)?) => {$(
        /// Raw endpoints are not there yet: always an error, whatever the arguments are.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> u32 {
            raw(Family::$family)
        }
    )*};
}

raw_calls! {
    Mx mx_raw_open_endpoint,
    Mx mx_raw_close_endpoint,
    Mx mx_raw_endpoint_handle,
    Mx mx_raw_send,
    Mx mx_raw_next_event,
    Mx mx_raw_set_route_begin,
    Mx mx_raw_set_route_end,
    Mx mx_raw_set_route,
    Mx mx_raw_set_route_mag,
    Mx mx_raw_clear_routes,
    Mx mx_raw_remove_peer,
    Mx mx_raw_set_map_version,
    Mx mx_raw_num_ports,
    Mx mx_raw_line_speed,
    Mx mx_raw_set_hostname,
    Mx mx_raw_set_peer_name,
    Mx mx_raw_set_nic_reply_info,
    Native omx_raw_open_endpoint,
    Native omx_raw_close_endpoint,
    Native omx_raw_send,
    Native omx_raw_next_event,
}
