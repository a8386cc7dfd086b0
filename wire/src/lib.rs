//! Every byte format that crosses a network.
//!
//! * [`frame`]: the frames between two endpoints of ours,
//! * [`fs`]: the file system's requests and replies, which travel inside messages,
//! * [`mxoe`]: the packets of MX over Ethernet, as hosts with Open-MX speak it,
//! * [`packets`]: those between endpoints of ours, over the same networks.
//!
//! Invariants: decoding never panics, never allocates more than it was given bytes (and nothing at
//! all where a borrowed view does), and checks every length before it uses it. A value that was
//! encoded decodes to itself.
#![forbid(unsafe_code)]

pub mod frame;
pub mod fs;
pub mod mxoe;
pub mod packets;
