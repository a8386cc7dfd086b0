//! Joins core and rails: endpoints, contexts, progress, waiting; the public Rust interface of the
//! message layer.
//!
//! * [`Endpoint`]: a process's presence on one or more rails. Any thread may use it.
//! * [`Context`]: a queue of completions, of one thread or component; to test, to wait, to arm.
//! * [`local`]: the same as futures, for tasks of one executor, with [`reactor::Reactor`] to drive
//!   them.
//!
//! Invariants
//! * One thread at a time works in the engine. The lock is only ever tried: a thread that does not get it
//!   leaves a command, which the holder carries out before it lets go.
//! * An operation that completes within its post is reported by the post and nowhere else.
//! * Memory handed to an operation comes back with its completion, never earlier.
#![forbid(unsafe_code)]

pub mod capture;
pub mod context;
mod counter;
mod counting;
mod cpu_latency;
pub mod endpoint;
mod ends;
mod engine;
mod entropy;
mod exposing;
mod foreign;
mod group;
pub mod host;
pub mod local;
mod mapped;
pub mod migration;
pub mod modules;
mod mtu;
pub mod notice;
mod on_demand;
mod one_sided;
mod packet_events;
pub mod packets;
pub mod path_status;
mod paths;
pub mod payload;
pub mod peers;
mod posts;
mod probe;
pub mod reactor;
mod requests;
pub mod security;
mod service;
mod shared;
mod spin;
mod suspects;
mod teller;
pub mod threads;
mod unreachable;
mod waiting;

pub use context::{Awaited, Completed, Context, LateRefusal, Written};
pub use counter::{Counter, Told};
pub use endpoint::{Endpoint, EndpointConfig, Posted};
pub use engine::Request;
pub use exposing::Exposed;
pub use group::{Group, GroupError};
pub use mapped::Offer;
pub use paths::{INTERFACES_VARIABLE, PATHS_VARIABLE, WAIT_VARIABLE, interfaces};
pub use payload::PayloadModes;
pub use probe::Offered;
pub use ropewalk_auth as auth;
pub use ropewalk_base::error::Fault;
pub use ropewalk_base::payload::PayloadMode;
pub use ropewalk_core::{
    Access, Action, Atomic, Audience, Channel, Config as CoreConfig, Counters, Direction, Exposing,
    GroupId, Level, LinkState, Member, Mode, Naming, OperationId, Oversize, PathCause, PathChange,
    PathTally, PeerId, Raise, Served, Terms, Waiting,
};
pub use ropewalk_rail::address::{Address, AddressError};
pub use ropewalk_rail::{Account, RailOption};
pub use ropewalk_rail_shm::arena as shared_memory;
pub use security::Security;
pub use teller::{Door, StartTeller, Teller};
