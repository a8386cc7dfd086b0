//! Codes: those that the native functions (`omx_*`) return and report, and MX's, which has one list for what
//! calls return and another for what became of a request.
//!
//! Inside, all codes are native ones, which say the most.

use std::ffi::CStr;

/// A native code.
pub type Code = u32;

pub const SUCCESS: Code = 0;
pub const FAILURE: Code = 2;
pub const ALREADY_INITIALIZED: Code = 3;
pub const NOT_INITIALIZED: Code = 4;
pub const NO_DEVICE: Code = 5;
pub const NO_DRIVER: Code = 6;
pub const NO_PERMISSION: Code = 7;
pub const BOARD_UNKNOWN: Code = 8;
pub const BAD_ENDPOINT: Code = 9;
pub const BAD_SEGMENT_LIST: Code = 10;
pub const BAD_SEGMENT_MEMORY: Code = 11;
pub const BAD_SEGMENT_COUNT: Code = 12;
pub const BAD_REQUEST: Code = 13;
pub const BAD_MATCH_MASK: Code = 14;
pub const NO_RESOURCES: Code = 15;
pub const BUSY: Code = 20;
pub const BAD_INFO_KEY: Code = 21;
pub const BAD_INFO_VALUE: Code = 22;
pub const BAD_NIC: Code = 23;
pub const BAD_PARAMETER_LIST: Code = 24;
pub const BAD_PARAMETER_NAME: Code = 25;
pub const BAD_PARAMETER_VALUE: Code = 26;
pub const BAD_HOST_NAME: Code = 27;
pub const HOST_NOT_FOUND: Code = 28;
pub const TIMEOUT: Code = 30;
pub const BAD_ENDPOINT_ID: Code = 32;
pub const ENDPOINT_CLOSED: Code = 33;
pub const BAD_CONNECTION_KEY: Code = 34;
pub const BAD_INFO_LENGTH: Code = 35;
pub const NIC_NOT_FOUND: Code = 36;
pub const BAD_LIBRARY_VERSION: Code = 38;
pub const NIC_DEAD: Code = 39;
/// Of MX alone: the native functions say `BAD_REQUEST`.
pub const CANCEL_NOT_SUPPORTED: Code = 40;
pub const BAD_MATCHING_FOR_CONTEXT_IDS: Code = 42;
pub const NOT_SUPPORTED_WITH_CONTEXT_IDS: Code = 43;
pub const CANCELLED: Code = 90;
pub const UNREACHABLE: Code = 92;
pub const BAD_SESSION: Code = 93;
pub const ABORTED: Code = 94;
pub const TRUNCATED: Code = 95;
pub const NOT_IN_HANDLER: Code = 96;
pub const NOT_IMPLEMENTED: Code = 99;

/// The two families of functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Mx,
    Native,
}

impl Family {
    /// The value that a call returns for a code.
    pub fn returned(self, code: Code) -> u32 {
        match self {
            Family::Mx => mx_return(code),
            Family::Native => code,
        }
    }

    /// The value that a status reports for a code.
    pub fn status(self, code: Code) -> u32 {
        match self {
            Family::Mx => mx_status(code),
            Family::Native => code,
        }
    }
}

/// A native code as a return code of MX.
pub fn mx_return(code: Code) -> u32 {
    match code {
        NOT_IN_HANDLER => 41,
        UNREACHABLE | BAD_SESSION => ENDPOINT_CLOSED,
        97 => NO_RESOURCES,
        90.. => FAILURE,
        code => code,
    }
}

/// A native code as a status code of MX. Codes that error handlers make up have no name there.
pub fn mx_status(code: Code) -> u32 {
    match code {
        SUCCESS => 0,
        NO_PERMISSION => 3,
        TIMEOUT => 4,
        TRUNCATED => 5,
        CANCELLED => 6,
        NIC_NOT_FOUND => 7,
        ENDPOINT_CLOSED => 8,
        UNREACHABLE => 9,
        BAD_SESSION => 10,
        BAD_CONNECTION_KEY => 11,
        BAD_ENDPOINT_ID => 12,
        91 => 13,
        NO_RESOURCES => 16,
        _ => 14,
    }
}

const RETURNS: [&CStr; 44] = [
    c"success",
    c"an error without a name",
    c"failure",
    c"the library is initialized already",
    c"the library is not initialized",
    c"there is no network to use",
    c"there is no driver",
    c"permission denied",
    c"there is no board of this number",
    c"bad endpoint",
    c"bad list of segments",
    c"bad memory in a segment",
    c"too many segments",
    c"bad request",
    c"the match information has bits outside the mask",
    c"no resources left",
    c"bad list of addresses",
    c"bad count of addresses",
    c"bad root",
    c"not completed",
    c"the endpoint is in use",
    c"there is no information of this key",
    c"bad value for information",
    c"bad network card",
    c"bad list of parameters",
    c"there is no parameter of this key",
    c"bad value of a parameter",
    c"bad arguments for a name of a host",
    c"the host is unknown",
    c"a request is pending",
    c"the time is over",
    c"no match",
    c"there is no endpoint of this number",
    c"the endpoint of the peer is closed",
    c"the connection key is another one",
    c"the room for information is too short",
    c"the network card is unknown",
    c"bad version of the kernel part",
    c"the program was compiled for another version of the library",
    c"the network card is dead",
    c"this cannot be cancelled",
    c"not within a handler",
    c"the mask has to cover all bits of the context number",
    c"not with context numbers",
];

const NATIVE: [&CStr; 10] = [
    c"cancelled",
    c"bad window of remote memory",
    c"the peer cannot be reached",
    c"the session of the peer is another one",
    c"the message was given up",
    c"the message is longer than its receive",
    c"not within a handler",
    c"no resources of the system left",
    c"an error without a name",
    c"not implemented",
];

const STATUSES: [&CStr; 17] = [
    c"success",
    c"pending",
    c"buffered",
    c"rejected",
    c"the time is over",
    c"the message is longer than its receive",
    c"cancelled",
    c"the endpoint of the peer is unknown",
    c"the endpoint of the peer is closed",
    c"the peer cannot be reached",
    c"the session of the peer is another one",
    c"the connection key is another one",
    c"there is no endpoint of this number",
    c"bad window of remote memory",
    c"the message was given up",
    c"the queue of events is full",
    c"no resources left",
];

/// The text for a code of either family.
pub fn text(code: u32) -> &'static CStr {
    let native = || NATIVE.get(code.checked_sub(90)? as usize);
    RETURNS.get(code as usize).or_else(native).copied().unwrap_or(c"an unknown code")
}

/// The text for a status code of MX.
pub fn status_text(code: u32) -> &'static CStr {
    STATUSES.get(code as usize).copied().unwrap_or(c"an unknown status")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_the_numbers_that_programs_were_compiled_with() {
        let pairs = [(95, 5), (90, 6), (33, 8), (92, 9), (93, 10), (34, 11), (32, 12), (91, 13)];
        for (native, status) in pairs {
            assert_eq!(mx_status(native), status);
        }
        assert_eq!([94, 15, 30, 0, 7, 36].map(mx_status), [14, 16, 4, 0, 3, 7]);
        assert_eq!([96, 30, 34, 43, 97].map(mx_return), [41, 30, 34, 43, 15]);
        assert!((0..44).all(|code| mx_return(code) == code));
        assert_eq!(text(NOT_IN_HANDLER), text(41));
        assert_eq!(text(60), c"an unknown code");
    }
}
