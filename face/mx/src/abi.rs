//! Types of the binary interface, as C has them.
//!
//! Handles are numbers in the shape of pointers: nothing is ever read through one. The object of a handle is
//! looked up, and a number without an object is refused.

use std::ffi::{c_char, c_int, c_void};

/// `MX_API`, of which programs pass what they were compiled with.
pub const API: u32 = 0x301;
pub const MAX_SEGMENTS: u32 = 256;
/// `MX_ANY_NIC` and `MX_ANY_ENDPOINT`.
pub const ANY: u32 = 0xffff_ffff;
pub const NAME_BYTES: usize = 80;
pub const LABEL_BYTES: usize = 128;
pub const CONTEXT_BITS_MAX: u8 = 16;

/// `mx_endpoint_t` and `mx_request_t`.
pub type Handle = *mut c_void;

/// `mx_endpt_handle_t`: a NIC, or what is waited at for a raw endpoint.
pub type BoardHandle = c_int;
/// `MX__INVALID_HANDLE`.
pub const NO_HANDLE: BoardHandle = -1;

/// `mx_raw_status_t`: the kind of an event.
pub type RawStatus = c_int;
pub const RAW_NOTHING: RawStatus = 0;
pub const RAW_SENT: RawStatus = 1;
pub const RAW_RECEIVED: RawStatus = 2;

/// `mx_endpoint_addr_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Address {
    pub stuff: [u64; 2],
}

/// `mx_segment_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct SegmentEntry {
    pub address: *mut c_void,
    pub bytes: u32,
}

/// `mx_status_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Status {
    pub code: u32,
    pub source: Address,
    pub match_info: u64,
    pub message_bytes: u32,
    pub moved_bytes: u32,
    pub context: *mut c_void,
}

/// `mx_param_t`: the union is read by its key.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Parameter {
    pub key: u32,
    pub value: ParameterValue,
}

/// The union of `mx_param_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ParameterValue {
    pub error_handler: Option<ErrorHandler>,
    pub unexpected_queue_max: u32,
    pub context_id: ContextId,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ContextId {
    pub bits: u8,
    pub shift: u8,
}

/// `mx_error_handler_t`.
pub type ErrorHandler = unsafe extern "C" fn(*mut c_char, u32) -> u32;

/// `mx_unexp_handler_t`.
pub type UnexpectedHandler =
    unsafe extern "C" fn(*mut c_void, Address, u64, u32, *mut c_void) -> u32;

/// Return values of a handler of unexpected messages.
pub const CONTINUE: u32 = 0;
pub const FINISHED: u32 = 1;

/// Keys of parameters.
pub const PARAMETER_ERROR_HANDLER: u32 = 0;
pub const PARAMETER_UNEXPECTED_QUEUE_MAX: u32 = 1;
pub const PARAMETER_CONTEXT_ID: u32 = 2;

/// `mx_mapper_state_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MapperState {
    pub board: u32,
    pub mapper_station: [u8; 6],
    pub port: u16,
    pub map_version: u32,
    pub hosts: u32,
    pub network_configured: u32,
    pub routes_valid: u32,
    pub level: u32,
    pub flags: u32,
}

const _: () = assert!(size_of::<Address>() == 16 && align_of::<Address>() == 8);
const _: () = assert!(size_of::<SegmentEntry>() == 16);
const _: () = assert!(size_of::<Status>() == 48);
const _: () = assert!(std::mem::offset_of!(Status, source) == 8);
const _: () = assert!(std::mem::offset_of!(Status, message_bytes) == 32);
const _: () = assert!(std::mem::offset_of!(Status, context) == 40);
const _: () = assert!(size_of::<Parameter>() == 16);
