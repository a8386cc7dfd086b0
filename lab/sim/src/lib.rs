//! Whole clusters in one thread: virtual time, a seeded scheduler, a network and disks that fail.
//!
//! * [`simulation`]: nodes by name, killed and restarted; the loop that runs them;
//! * [`node`]: the interface for a node's boot code: its world, its rails, a place for objects to poll;
//! * [`disk`]: a disk that forgets;
//! * [`endpoint`]: the message layer on a node; [`cluster`]: a whole file system on several;
//! * [`open_mx`]: a host that runs Open-MX, to speak MXoE with;
//! * [`mod@seeds`]: running a scenario over seeds, each twice, with a command that replays a failure.
//!
//! Invariants:
//! * a run is a function of its seed and its scenario: the trace hash over all scheduling decisions
//!   and all network events is equal for two runs of one seed;
//! * a killed node does nothing any more: no task, no timer, no offloaded work, no frame;
//! * production code runs unchanged: it sees `base::world::World` and rails, nothing of this crate.

pub mod cluster;
pub mod disk;
pub mod endpoint;
pub mod node;
mod offload;
pub mod open_mx;
pub mod seeds;
pub mod simulation;

pub use cluster::{Cluster, ClusterConfig};
pub use node::{Node, Pollable};
pub use ropewalk_rail_sim::{Cut, Kill, Path, Release, SimConfig, SimNetwork, SimRail};
pub use seeds::{in_time, in_two_processes, run_seed_twice, run_seeds, seeds};
pub use simulation::Simulation;
