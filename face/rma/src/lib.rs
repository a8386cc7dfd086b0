//! One-sided windows for programs in C: the library `libropewalk-rma`, with names after MPI's.
//!
//! A face has no protocol of its own. It expresses the calls in the terms of the room `rma`, which judges epochs, arguments
//! and ranges. `include/ropewalk_rma.h` declares the calls, `man 7 ropewalk-rma` describes them.
//!
//! Files: `entry` (the C functions), `library` (the state of a process), `process` (how a rank joins its job, also for
//! programs in Rust), `memory` (memory of callers as cells), `handles` (predefined types and operators), `info` (what a
//! window is made with), `codes` (errors).
//!
//! Invariants
//! * a handle is a number: nothing is read through it, and one of an object that is gone finds nothing;
//! * memory of a caller is accessed from the call on until the operation is complete at the origin, or the window is freed;
//!   no Rust reference to it exists;
//! * whoever finds the arguments of a collective call wrong says so to the others: nobody waits for it.

pub mod codes;
mod entry;
mod handles;
mod info;
mod library;
mod memory;
mod process;

pub use entry::*;
pub use process::{Process, ProcessError};
