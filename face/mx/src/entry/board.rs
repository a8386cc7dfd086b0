//! Internals of NICs that Open MPI looks at; MX calls a NIC a board here.

use std::ffi::c_int;

use super::{ask_process, put, returned};
use crate::abi::{BoardHandle, MapperState};
use crate::codes::{BOARD_UNKNOWN, Family};
use crate::process;

/// A NIC as a handle for [`mx__get_mapper_state`].
///
/// # Safety
/// `to` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mx_open_board(nic_number: u32, to: *mut BoardHandle) -> u32 {
    let answer = ask_process(c"open a board", |process| {
        let count = process.nics.nics.len();
        if nic_number as usize >= count {
            return Err(BOARD_UNKNOWN);
        }
        // SAFETY: the caller vouches for it.
        unsafe { put(to, nic_number as BoardHandle) };
        Ok(())
    });
    returned(Family::Mx, answer)
}

/// The state of a NIC's network: Open MPI compares the mapper's address to tell networks apart. `state` has
/// the number of the NIC.
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
    let number = unsafe { (*state).board };
    let nics = &process.nics;
    let Some(nic) = nics.nics.get(number as usize) else { return -1 };
    // Without a mapper, all NICs are of one network, to which every host belongs.
    let unmapped = MapperState {
        board: number,
        mapper_station: [0; 6],
        port: 0,
        map_version: 1,
        hosts: (nics.nics.len() + nics.peers.len()) as u32,
        network_configured: 1,
        routes_valid: 1,
        level: 0,
        flags: 0,
    };
    let found = nic.map().map_or(unmapped, |map| {
        let [_, _, mapper @ ..] = map.mapper.to_be_bytes();
        MapperState {
            mapper_station: mapper,
            map_version: map.version,
            hosts: map.hosts,
            network_configured: map.is_complete.into(),
            routes_valid: map.is_complete.into(),
            ..unmapped
        }
    });
    // SAFETY: as above.
    unsafe { state.write(found) };
    0
}
