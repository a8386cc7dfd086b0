//! Sealed records and packets: what protects the bytes of a link from others on the way.
//!
//! * [`Sealer`] and [`Opener`]: one direction each, with numbers that the caller gives;
//! * [`Writer`] and [`Reader`]: the records of a byte stream, whose numbers both sides count;
//! * [`Window`]: the numbers of packets that were heard, so that none counts twice;
//! * [`hardware_aes`]: whether this processor has instructions for AES.
//!
//! Invariants:
//! * no two texts are sealed under one key and one number: a [`Sealer`] takes each number once, in rising order;
//! * nothing is handed out before its tag is checked;
//! * a key seals at most [`RECORDS_PER_KEY`] records; the next key comes from it by a one-way function;
//! * no system call, no clock, no chance.
//!
//! This crate must not know what a link or a socket is. docs/design/125-payload-modes.md has the reasons.

#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod attack;
mod cipher;
mod stream;
mod window;

pub use cipher::{Opener, RECORDS_PER_KEY, Refused, Sealer, TAG_BYTES, hardware_aes};
pub use stream::{HEAD_BYTES, OVERHEAD_BYTES, Reader, RecordError, TEXT_BYTES_MAX, Writer};
pub use window::Window;

#[cfg(test)]
mod tests;
