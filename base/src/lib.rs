//! The ground floor: names, limits and small machines that every other room stands on.
//!
//! This crate knows no protocol, no socket and no file system. It offers
//! * identities and error classes ([`ids`], [`error`]),
//! * the words in which the protocol core gives orders to rails ([`verb`]), and rails tell of links ([`health`]),
//! * the protection of payloads, and the keys of a link ([`payload`]),
//! * memory that operations may touch ([`memory`], [`pool`]),
//! * the outside world as traits: clock, randomness, disk, spawning ([`world`], [`disk`]),
//! * a single-threaded executor and its primitives ([`executor`], [`task`], [`abandon`]),
//! * slabs with generation checks ([`slots`]), checksums ([`checksum`]) and counted durations ([`timing`]),
//! * levels of lines for people ([`level`]).
//!
//! Invariant: nothing above this crate reaches a clock, a disk or randomness in any other way, so
//! that the production protocol, client and servers run under the simulator unchanged.

pub mod abandon;
pub mod checksum;
pub mod cipher_random;
pub mod descriptor;
pub mod disk;
pub mod error;
pub mod executor;
mod followed;
pub mod hash;
pub mod health;
pub mod ids;
pub mod level;
pub mod limits;
pub mod memory;
pub mod payload;
pub mod pool;
pub mod random;
pub mod shared;
pub mod slots;
pub mod task;
pub mod text;
pub mod time;
pub mod timing;
pub mod verb;
pub mod world;
