//! The parts that every C library over `net` needs, for the author of a face. Each part is a type or a function
//! that a face may take or leave; none knows another.
//!
//! | the face has to | part |
//! |---|---|
//! | refuse a child that was forked while the library lived | [`ForkGuard`] |
//! | find the library's state in each call, without a lock | [`Versioned`], [`ThreadCopy`] |
//! | number its objects, and refuse numbers of objects that are gone | [`Places`], [`HandleBits`] |
//! | block a call until something is complete or the time is over | [`wait()`], [`WaiterElection`] |
//! | take lists of buffers from C | [`segment`], [`with_segments`] |
//! | translate why a network could not be opened | [`OpenErrorKind`] |
//! | bound what peers make it keep | [`endpoint_config`] |
//!
//! A function of a C interface has four steps: check the pointers, find the state, work, translate the error. The
//! second is one call of a function of the face; the others are the face's own, since pointers need unsafe code and
//! each interface has codes of its own. A panic needs no step: it cannot leave an `extern "C"` function and ends the
//! program, as an invariant of ours that breaks always does.
//!
//! Invariants
//! * no unsafe code: what only unsafe code can do stays in the face, and is named where a part needs it;
//! * no code of an interface and no rule of its time-outs: these differ, and stay in the faces;
//! * a call that finds the state, or a handle, takes no lock and writes no memory that other threads write.

mod election;
mod endpoint_config;
mod forks;
mod handles;
mod open_error;
mod places;
mod segments;
mod versioned;
mod wait;

pub use election::WaiterElection;
pub use endpoint_config::{OPERATIONS_MAX, PEERS_MAX, WAITING_BYTES_MAX, endpoint_config};
pub use forks::{ForkGuard, Living};
pub use handles::HandleBits;
pub use open_error::OpenErrorKind;
pub use places::Places;
pub use segments::{segment, with_segments};
pub use versioned::{ThreadCopy, Versioned};
pub use wait::{Sleep, wait};
