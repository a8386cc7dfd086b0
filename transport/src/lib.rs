//! The packet protocols, sans I/O: packets, orders and the time in; packets, reports and a deadline out. See
//! docs/design/090-packets.md.
//!
//! * [`packets`]: our own protocol; [`mxoe`]: that of Open-MX and native MXoE hosts;
//! * [`memory`]: the memory of packets, for both protocols; [`pull`]: a read of remote memory, piece by piece;
//!   [`pull_budget`]: the limit for the asks of all reads together;
//! * [`round_trip`]: the waits for answers; [`late`]: packets that were waited for too short a time.
//!
//! There is no system call, clock, thread or future in this crate. The packet rails of `net` drive it over real ports,
//! the simulator over a simulated network.
//!
//! Invariants
//! * A frame, or message, arrives once and in order, or its link ends.
//! * All memory that a peer can make us use is bounded.
//! * Bytes from the network never panic: a packet that breaks the protocol is counted and dropped.
#![forbid(unsafe_code)]

mod driver;
mod late;
pub mod memory;
pub mod mxoe;
pub mod packets;
mod protocol;
pub mod pull;
mod pull_budget;
pub mod round_trip;

pub use memory::Bytes;
pub use protocol::{Counted, LinkEvents, PacketProtocol, Taken, Who};
