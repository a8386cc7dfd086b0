//! Options of `BMI_set_info` and `BMI_get_info`, and those of the environment.

use std::sync::atomic::AtomicBool;

use ropewalk_net::EndpointConfig;

/// Numbers of the options that callers query or set; the interface defines the numbers.
pub mod number {
    pub const DROP_ADDR: i32 = 1;
    pub const CHECK_INIT: i32 = 2;
    pub const CHECK_MAXSIZE: i32 = 3;
    pub const GET_METH_ADDR: i32 = 4;
    pub const INC_ADDR_REF: i32 = 5;
    pub const DEC_ADDR_REF: i32 = 6;
    pub const DROP_ADDR_QUERY: i32 = 7;
    pub const TRUSTED_CONNECTION: i32 = 9;
    pub const GET_UNEXP_SIZE: i32 = 10;
    pub const TCP_BUFFER_SEND_SIZE: i32 = 11;
    pub const TCP_BUFFER_RECEIVE_SIZE: i32 = 12;
    pub const TCP_CLOSE_SOCKET: i32 = 13;
    pub const TCP_CHECK_UNEXPECTED: i32 = 15;
    /// OrangeFS; standalone BMI has it as 17, and sets an unrelated time-out by 16.
    pub const TRANSPORT_METHODS_STRING_ORANGEFS: i32 = 16;
    pub const TRANSPORT_METHODS_STRING: i32 = 17;
    pub const TCP_GET_PORT: i32 = 18;
    /// Ours alone; far from what others number.
    pub const WHY_UNREACHABLE: i32 = 0x5257;
}

/// The environment variable that sets, in bytes, the longest message that `BMI_CHECK_MAXSIZE` reports.
const MAX_MESSAGE: &str = "ROPEWALK_BMI_MAX_MESSAGE";
/// Messages up to so many bytes are sent without asking.
const EAGER_BYTES: &str = "ROPEWALK_BMI_EAGER_BYTES";

/// 1: checksums over payloads also between processes of one host, whose bytes do not leave its memory.
const SAME_HOST_CHECKSUM: &str = "ROPEWALK_BMI_SAME_HOST_CHECKSUM";
/// Connections that are kept open.
const SOCKETS: &str = "ROPEWALK_BMI_SOCKETS";

/// Options that callers may change while the library runs.
pub struct Options {
    /// The longest message that is accepted, as it is reported.
    pub message_bytes_max: i64,
    /// Unexpected messages end the wait of `BMI_testcontext`.
    pub checks_unexpected: AtomicBool,
}

impl Options {
    pub fn new() -> Result<Options, String> {
        let limit = i64::from(i32::MAX);
        let max = number_of(MAX_MESSAGE, 1, limit)?.unwrap_or(limit);
        Ok(Options { message_bytes_max: max, checks_unexpected: AtomicBool::new(true) })
    }
}

/// Changes the protocol's sizes as the environment says.
pub fn from_environment(config: &mut EndpointConfig) -> Result<(), String> {
    let max = i64::from(ropewalk_base::limits::EAGER_BYTES_MAX);
    if let Some(bytes) = number_of(EAGER_BYTES, 0, max)? {
        config.core.eager_bytes_max = Some(bytes as u32);
    }
    if let Some(links) = number_of(SOCKETS, 1, 1 << 20)? {
        config.core.links_max = links as usize;
    }
    config.same_host_checksum = number_of(SAME_HOST_CHECKSUM, 0, 1)? == Some(1);
    Ok(())
}

fn number_of(name: &str, least: i64, most: i64) -> Result<Option<i64>, String> {
    let Some(text) = std::env::var_os(name) else { return Ok(None) };
    let text = text.to_string_lossy();
    match text.parse() {
        Ok(value) if (least..=most).contains(&value) => Ok(Some(value)),
        _ => Err(format!("{name}={text}: give a number from {least} to {most}")),
    }
}
