//! Raw endpoints of this process. A handle is a number that no other one ever has.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ropewalk_net::agent::AgentError;
use ropewalk_net::modules;
use ropewalk_net::raw::{RawEndpoint, RawError};

use crate::abi::{ErrorHandler, Handle};
use crate::codes::*;
use crate::endpoint::code_of;
use crate::process::{self, Alive, Process};

/// A raw endpoint.
pub struct Raw {
    pub board: u32,
    pub error_handler: Option<ErrorHandler>,
    pub net: RawEndpoint,
    _alive: Alive,
}

struct Table {
    open: BTreeMap<usize, Arc<Raw>>,
    /// The number of raw endpoints that were opened so far.
    count: usize,
}

static TABLE: Mutex<Table> = Mutex::new(Table { open: BTreeMap::new(), count: 0 });

/// In all handles, so that they are none of other endpoints.
const MARK: usize = 1 << 63;

fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens the raw endpoint of a board.
pub fn open(
    process: &Process,
    board: u32,
    error_handler: Option<ErrorHandler>,
) -> Result<Handle, Code> {
    let alive = Alive::begin();
    let own = process.boards.boards.get(board as usize).cloned().ok_or(BOARD_UNKNOWN)?;
    let address = own.raw().ok_or_else(|| {
        eprintln!(
            "libmyriexpress: board {board} has no raw endpoint, since it does not use MXoE; write \
             it like mxoe://eth0 in ROPEWALK_MX_BOARDS"
        );
        NO_DEVICE
    })?;
    let net = modules::open_raw(&address).map_err(|error| code_of(&error))?;
    let mut table = table();
    table.count += 1;
    let number = table.count | MARK;
    table.open.insert(number, Arc::new(Raw { board, error_handler, net, _alive: alive }));
    Ok(ptr::without_provenance_mut(number))
}

/// The raw endpoint of a handle. A child has none of its parent's.
pub fn find(handle: Handle) -> Option<Arc<Raw>> {
    if process::is_child() {
        return None;
    }
    table().open.get(&handle.addr()).cloned()
}

/// Takes a raw endpoint out; `None` where there is none, or another thread did.
pub fn remove(handle: Handle) -> Option<Arc<Raw>> {
    table().open.remove(&handle.addr())
}

/// All of a board.
pub fn of_board(board: u32) -> Vec<Arc<Raw>> {
    table().open.values().filter(|raw| raw.board == board).cloned().collect()
}

/// The code for an error of a raw endpoint.
pub fn code_of_raw(error: &RawError) -> Code {
    match error {
        RawError::Length => BAD_SEGMENT_LIST,
        RawError::NoCard(_) => BAD_NIC,
        RawError::Gone => NIC_DEAD,
        RawError::Closed => BAD_ENDPOINT,
        RawError::Agent(AgentError::NotPermitted) => NO_PERMISSION,
        RawError::Agent(_) => NO_DRIVER,
        _ => NO_RESOURCES,
    }
}
