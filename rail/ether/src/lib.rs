//! Packets in raw Ethernet frames: a port over AF_PACKET, for any card and without any IP.
//!
//! * [`EtherPort`]: the port; [`interface`]: what it runs on; [`ring`]: frames that the kernel writes to
//!   shared memory; [`socket`]: its system calls and the kernel's filter; [`claim`]: who has which number.
//!
//! Invariant: `unsafe` is in `ring` and `socket` alone.

mod claim;
mod config;
mod interface;
mod port;
mod ring;
mod socket;

pub use config::{EtherConfig, EtherError};
pub use interface::{Interface, interfaces};
pub use port::{EtherPort, is_address};
