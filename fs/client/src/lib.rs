//! The client of the file system: a library for programs, and the base of the mount.
//!
//! A [`Client`] belongs to one executor. It has one session with the metadata server, whose leases
//! allow it to cache, and talks to data servers directly: where a stripe lies is computed.
//!
//! * names and attributes: [`Client::lookup`], [`Client::create`], [`Client::rename`], ...
//! * open files: [`File`] with [`Client::read`], [`Client::write`], [`Client::sync`], ...
//! * the cluster itself, for its operators: [`operator`];
//! * a session that goes on in another process: [`Client::hand_over`], [`Client::take_session`];
//! * the places of bytes: [`Client::placement`], [`Client::data_servers`];
//! * paths, for programs rather than mounts: [`paths`].
//!
//! Invariants
//! * Cached data are covered by a lease; a recall is answered only after caches that it covers are dropped
//!   here and in the kernel ([`Invalidate`]) and changes are reported.
//! * An absent object that was written is an error, never zeros.
//! * Bytes travel with the checksums that were computed over them here, and are verified here.
#![forbid(unsafe_code)]

mod append;
mod call;
mod client;
mod clock;
mod data;
mod entries;
mod error;
mod file;
mod guards;
mod holes;
mod home;
mod inode;
mod inspect;
mod kernel;
mod lease;
mod listing;
mod locks;
mod members;
mod names;
pub mod operator;
pub mod paths;
mod patience;
mod places;
mod read;
mod recognition;
mod session;
mod sync;
mod takeover;
mod underway;
mod write;
mod xattr;

pub use client::{Caller, Client, ClientConfig, Counts, Invalidate};
pub use error::ClientError;
pub use file::{File, OpenOptions};
pub use inspect::{DataServerInfo, Placement, PoolInfo, StripePlace, Striped};
pub use listing::Listed;
pub use locks::{Actor, Path};
pub use names::FileSystemStatus;
pub use ropewalk_wire::fs::attributes::{Attributes, Content, InodeKind};
pub use ropewalk_wire::fs::handover;
pub use ropewalk_wire::fs::layout::{Growth, Layout};
pub use ropewalk_wire::fs::meta::{
    Access, AttributeChange, LockKind, LockRange, Node, RenameMode, TimeChange,
};
pub use ropewalk_wire::fs::policy::{POLICY, Policy};
pub use ropewalk_wire::fs::value::{Errno, Timestamp};
pub use write::How;
