//! The file system's messages between clients, metadata servers and data servers.
//!
//! Encoding: [postcard](https://postcard.jamesmunns.com) (stable, compact, borrowed decoding) behind
//! a fixed head ([`head`]). Names, link targets and file bytes are borrowed from the message.

pub mod attributes;
pub mod beat;
pub mod data;
pub mod election;
pub mod exports;
pub mod group;
pub mod handover;
pub mod head;
pub mod layout;
pub mod map;
pub mod meta;
pub mod orders;
pub mod policy;
pub mod runs;
pub mod session;
pub mod standby;
pub mod status;
pub mod term;
pub mod trust;
pub mod upgrade;
pub mod value;

use serde::{Deserialize, Serialize};

/// A message that does not decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a file system message does not decode")]
pub struct Malformed;

/// Appends the encoding of `value` to `out`.
pub fn encode<T: Serialize>(value: &T, out: &mut Vec<u8>) {
    let begin = std::mem::take(out);
    *out = postcard::to_extend(value, begin).expect("encoding into memory cannot fail");
}

/// Decodes exactly one value from all of `bytes`.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Malformed> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        _ => Err(Malformed),
    }
}
