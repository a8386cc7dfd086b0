//! Packets in raw Ethernet frames: a port over AF_PACKET, for any card and without any IP.
//!
//! * [`EtherPort`]: the port, an endpoint; [`hub`]: the socket that all endpoints of a process on an
//!   interface share; [`inbox`]: packets that another endpoint found; [`watch`]: who of several sleepers is
//!   woken by the socket;
//! * [`interface`]: the network interface; [`ring`]: frames that the kernel writes to shared memory; [`filter`]:
//!   the choice of these frames; [`socket`]: system calls; [`xdp`]: a faster way beside the ring, where it can be had;
//!   [`claim`]: the owners of endpoint numbers; [`holder`]: the user of an owner's program; [`numbers`]: sets of them;
//! * [`AgentSocket`]: the view of an interface's agent, beside all endpoints; [`RawSocket`]: the view of mappers;
//!   [`bare`]: sockets without a port, for measurements.
//!
//! Invariant: `unsafe` is in `ring`, `settings`, `socket` and `xdp` alone.

mod agent;
pub mod bare;
mod claim;
mod config;
mod filter;
mod holder;
mod hub;
mod inbox;
mod interface;
mod numbers;
mod port;
mod raw;
mod ring;
mod settings;
mod socket;
mod watch;
mod xdp;

pub use agent::{AgentSocket, Claims, Heard};
pub use claim::agent_name;
pub use config::{EtherConfig, EtherError, Protocol, RAW_ENDPOINT, SocketKind, Sockets};
pub use holder::{is_trusted, stranger_at};
pub use interface::{Interface, interfaces};
pub use port::{EtherPort, is_address, parse_address};
pub use raw::{FRAMES_MAX as RAW_FRAMES_MAX, RawCounts, RawSocket};
pub use settings::{Settings, numa_node, settings};

/// Whether this process has the right to raw frames.
pub fn may_open() -> bool {
    // A process with this right may lack a descriptor for the moment.
    socket::open().err().is_none_or(|error| ropewalk_rail::host::is_shortage(&error))
}
