//! One-sided windows: memory of each rank of a team that all ranks put to, get from and accumulate in, with the semantics of
//! MPI-4.1, chapter 12.
//!
//! * [`Team`]: the ranks, with an exchange and a barrier.
//! * [`Window`]: its operations and synchronisation.
//! * [`types`]: which bytes an operation is about.
//! * [`epochs`]: which calls are legal when.
//!
//! Operations travel by remote access or by messages, behind one seam (`way`). The target executes messages within its own
//! calls; they are the yardstick.
//!
//! The memory model is MPI's unified one: loads of the target see what others wrote, without a call. They are ordered only behind a
//! synchronisation, a notice, or [`Window::sync`] at both sides of a barrier.
//!
//! Invariants
//! * Memory that peers reach is never behind a Rust reference: applications load and store it through
//!   [`Cells`].
//! * A wrong call is an error in words, and changes nothing. A refusal of a target is told at the next synchronisation that
//!   waits for it, and hangs nobody. Neither does a rank that is lost.
//! * Bytes of peers are checked before anything is done with them.
#![forbid(unsafe_code)]

mod asserts;
#[doc(hidden)]
pub mod attack;
mod check;
mod claims;
pub mod conflict;
mod direct;
pub mod epochs;
mod error;
mod messages;
mod operation;
mod options;
mod team;
mod ticket;
pub mod types;
mod way;
mod window;

pub use asserts::Asserts;
pub use epochs::LockKind;
pub use error::{BadArgument, Error, Interrupted, Loss, Refusal, WindowName};
pub use operation::{Destination, PROC_NULL, Source, Target};
pub use options::{AccumulateOrdering, Implementation, WindowOptions};
pub use ropewalk_base::memory::{Cells, Element, Operator};
pub use team::Team;
pub use types::Datatype;
pub use window::{Request, Window};
