//! Raw endpoints of this process. A handle is a number that no other one ever has.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ropewalk_face_common::Living;
use ropewalk_host_mx::agent::AgentError;
use ropewalk_host_mx::raw::{RawEndpoint, RawError};

use crate::abi::{ErrorHandler, Handle};
use crate::codes::*;
use crate::endpoint::code_of;
use crate::process::{self, Process};

/// A raw endpoint.
pub struct Raw {
    pub nic_number: u32,
    pub error_handler: Option<ErrorHandler>,
    pub net: RawEndpoint,
    _living: Living,
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

/// Opens the raw endpoint of a NIC.
pub fn open(
    process: &Process,
    nic_number: u32,
    error_handler: Option<ErrorHandler>,
) -> Result<Handle, Code> {
    let living = process::begin();
    let own = process.nics.nics.get(nic_number as usize).cloned().ok_or(BOARD_UNKNOWN)?;
    let address = own.raw().ok_or_else(|| {
        eprintln!(
            "libmyriexpress: board {nic_number} has no raw endpoint, since it does not use MXoE; write \
             it like mxoe://eth0 in ROPEWALK_MX_BOARDS"
        );
        NO_DEVICE
    })?;
    let net = RawEndpoint::open(&address).map_err(|error| code_of(&error))?;
    let mut table = table();
    table.count += 1;
    let number = table.count | MARK;
    table.open.insert(number, Arc::new(Raw { nic_number, error_handler, net, _living: living }));
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

/// All of a NIC.
pub fn of_nic(nic_number: u32) -> Vec<Arc<Raw>> {
    table().open.values().filter(|raw| raw.nic_number == nic_number).cloned().collect()
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
