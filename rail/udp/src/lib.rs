//! Packets behind UDP: a port for machines without rights to raw frames, and for bulk anywhere.
//!
//! The kernel cuts sent messages (UDP_SEGMENT) and joins received ones (UDP_GRO), so that one system call and one
//! way through the network's layers carry dozens of packets.
//!
//! * [`UdpPort`]: the port; [`batch`]: its system calls; [`config`]: its configuration;
//! * [`bare`]: the same of sockets without a port, for measurements.
//!
//! Invariant: `unsafe` is in `batch` alone.

pub mod bare;
mod batch;
mod config;
mod port;

pub use config::{UdpConfig, UdpError};
pub use port::UdpPort;
pub use ropewalk_rail::names::is_address;
