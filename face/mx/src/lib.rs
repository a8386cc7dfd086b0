//! The MX interface (Myrinet Express) over Ropewalk's message layer, for programs that were written for MX or
//! for Open-MX: a C library that is found as `libmyriexpress.so` and as `libopen-mx.so.0`.
//!
//! A face has no protocol of its own. It expresses MX in the terms of `net`: match information is 64 match bits
//! from anybody, a message nobody posted a receive for is an unmatched one, an address is a peer, an endpoint
//! is an endpoint with the rail of its NIC and shared memory. `docs/design/092-mx.md` has the decisions,
//! `README.md` the open points.
//!
//! Files: `entry` (the C functions), `process` (what one process has), `endpoint`, `operations` (what it is
//! asked), `progress` (completions, handlers, waits), `connect`, `question` (what is said there), `requests`,
//! `partners` (addresses), `raw` (raw endpoints, for mappers), `errors` (handlers of errors), `codes`,
//! `environment`, `abi` (types as C has them).
//!
//! Invariants
//! * functions of the program run within calls of the program, with no lock of ours held;
//! * a request is reported once: by one test, wait or `*_any`, or by none after a cancel or forget;
//! * no handle and no address is ever read through: the object that it names is looked up.

pub mod abi;
pub mod codes;
mod connect;
mod endpoint;
mod entry;
mod environment;
mod errors;
mod keeper;
mod operations;
mod partners;
mod process;
mod progress;
mod question;
mod raw;
mod requests;
mod search;

pub use entry::*;
pub use errors::{MX_ERRORS_ARE_FATAL, MX_ERRORS_RETURN, OMX_ERRORS_ARE_FATAL, OMX_ERRORS_RETURN};
