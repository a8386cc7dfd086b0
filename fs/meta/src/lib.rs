//! The metadata server's state machine: the name space, leases, locks and sessions of one shard.
//!
//! A [`Shard`] executes requests serially against an ordered store ([`Rows`]). One request is one atomic
//! batch. The batch holds the reply too, so that a retry finds the result of the first time. The shard is
//! sans-IO: calls come in with the time; replies and all requests for outside work come out:
//! * [`Shard::execute`] answers a call or says that it waits; [`Shard::poll_reply`] has the replies
//!   of calls that waited;
//! * [`Shard::poll_callback`]: recalls and granted locks, for clients;
//! * [`Shard::poll_fence`]: sessions that data servers must refuse before their leases go to others;
//! * [`Shard::poll_reap`] and [`Shard::poll_cut`]: objects that data servers shall remove or cut.
//!
//! Invariants: the time and all randomness come as arguments; no state in memory is needed to keep
//! acknowledged changes (a shard is rebuilt from its rows at any point); bytes of clients and rows never
//! panic. The shard must not know how calls travel, nor what a disk is: [`server`] carries calls to it and
//! its messages away, [`store_rows`] keeps its rows in the journaled store.
//!
//! Entry points for a reader: `shard` for the life of a call, `operate` for the requests, `leases` for
//! caching between clients. Rows are described in `docs/spec/metadata-rows.md`.

mod appends;
pub mod config;
mod demands;
pub mod dump;
pub mod exports;
mod graves;
mod growth;
pub mod history;
pub mod identity;
pub mod inode;
pub mod keys;
pub mod leases;
pub mod locks;
pub mod names;
pub mod node;
mod numbers;
mod operate;
mod parking;
pub mod permission;
pub mod pools;
mod questions;
pub mod rows;
pub use ropewalk_wire::fs::runs;
pub mod server;
pub mod sessions;
pub mod shard;
mod store_rows;

pub use config::Config;
pub use node::{MetaNode, NodeConfig, Witness};
pub use rows::{Batch, Rows, RowsError, VolatileRows};
pub use server::{MetaConfig, MetaError, MetaServer};
pub use shard::{Admission, Call, Completed, Cut, Moment, Opening, Outcome, Reap, Reply, Shard};
pub use store_rows::StoreRows;
