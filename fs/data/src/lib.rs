//! The data server: objects of files, behind calls.
//!
//! * [`config`]: what a server is told at start, and why it does not start;
//! * [`server`]: its life: claiming a directory, serving, telling the metadata server that it lives;
//! * [`handler`]: calls, one by one;
//! * [`transfer`]: bytes between a client's memory and the object store.
//!
//! Invariants: bytes are stored only after their checksums were verified; an acknowledged write is in
//! the store; a call of a fenced session changes nothing; nothing that a client says costs more memory
//! than a transfer.
#![forbid(unsafe_code)]

pub mod config;
mod errors;
mod handler;
pub mod server;
mod transfer;

pub use config::{DataConfig, DataError};
pub use server::DataServer;
