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
//! | bound what peers make it keep | [`endpoint_config()`] |
//!
//! The state of a library, found by each call:
//!
//! ```
//! use std::cell::RefCell;
//! use std::sync::{Arc, Weak};
//!
//! use ropewalk_face_common::{ForkGuard, Living, ThreadCopy, Versioned};
//!
//! struct Library {
//!     _living: Living,
//! }
//!
//! static FORKS: ForkGuard = ForkGuard::new();
//! static STATE: Versioned<Option<Arc<Library>>> = Versioned::new(None);
//!
//! thread_local! {
//!     static SEEN: RefCell<ThreadCopy<Weak<Library>>> = const { RefCell::new(ThreadCopy::new(Weak::new())) };
//! }
//!
//! extern "C" fn in_child() {
//!     if FORKS.in_child() {
//!         STATE.outdate();
//!     }
//! }
//!
//! fn initialize() {
//!     // In a face: `unsafe { libc::pthread_atfork(None, None, Some(in_child)) }`.
//!     FORKS.watch("libexample", || 0);
//!     let living = FORKS.begin();
//!     STATE.change(|state| *state = Some(Arc::new(Library { _living: living })));
//! }
//!
//! /// The library; `None` before it is initialized and in a child.
//! fn library() -> Option<Arc<Library>> {
//!     let renew = |seen: &mut Weak<Library>| {
//!         *seen = match FORKS.is_child() {
//!             // A lock may be held by a thread that the child does not have.
//!             true => Weak::new(),
//!             false => STATE.look(|state| state.as_ref().map_or(Weak::new(), Arc::downgrade)),
//!         };
//!     };
//!     ThreadCopy::with(&SEEN, &STATE, renew, Weak::upgrade)
//! }
//!
//! assert!(library().is_none());
//! initialize();
//! assert!(library().is_some());
//! in_child();
//! assert!(library().is_none());
//! ```
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
