//! Networks of namespaces, and faults in them: for tests and measurements over real sockets.
//!
//! * A [`Topology`] has hosts, each a network namespace of its own, joined by rails: by cables, or by a switch for
//!   each rail. Closures, threads and processes run at a [`Host`].
//! * A [`Fault`] is data. [`Topology::inject`] gives an [`Injected`], which ends when it is mended or dropped;
//!   [`Topology::play`] injects and mends many of them at their times; [`schedule()`] makes them from a seed.
//! * A [`Wire`] is a cable in user space, which delays, loses, doubles, reorders and corrupts frames.
//!
//! What always holds:
//! * names have the number of the process, so that several processes can build networks at once;
//! * all is gone when it is dropped, also where a test panics;
//! * faults that concern frames act in the namespace of the switch, on each frame of each socket: raw ones, too;
//! * a program that is missing, or a right, gives an error that says what to install or to do.
//!
//! Nothing here knows Ropewalk's protocols. Root, and the Debian packages iproute2, nftables and util-linux are needed.
//!
//! ```no_run
//! use std::net::UdpSocket;
//! use ropewalk_netns::{Fault, FaultKind, Topology, TopologyConfig};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let network = Topology::new(&TopologyConfig { hosts: 2, rails: 2, ..TopologyConfig::default() })?;
//! let (near, far) = (network.host(0), network.host(1));
//! let socket = near.within(|| UdpSocket::bind((near.address(1), 0)))?;
//! let cut = network.inject(&Fault::new(FaultKind::Cut, 0, 1))?;
//! socket.send_to(b"lost", (far.address(1), 7000))?;
//! cut.mend()?;
//! socket.send_to(b"comes", (far.address(1), 7000))?;
//! # Ok(())
//! # }
//! ```

mod claims;
mod direction;
mod error;
mod fault;
mod inject;
mod layout;
mod link;
mod namespace;
mod network;
mod plan;
mod player;
mod schedule;
mod tool;
mod topology;
mod wire;

pub use direction::Direction;
pub use error::{Error, Result};
pub use fault::{Fault, FaultKind, Flap, Route};
pub use inject::Injected;
pub use layout::{HOSTS_MAX, Joint, RAILS_MAX, TopologyConfig};
pub use link::Link;
pub use namespace::Namespace;
pub use player::{Played, Player};
pub use schedule::{ScheduleConfig, schedule};
pub use tool::Tool;
pub use topology::{Host, Topology};
pub use wire::{Impairment, ImpairmentId, Wire, WireCounters};
