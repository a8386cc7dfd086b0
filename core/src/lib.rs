//! The message protocol, sans I/O: commands and reports in, orders and events out.
//!
//! There is no system call, clock, thread, future or pointer in this crate. Whoever drives it
//! (`net` over real rails, the simulator over a simulated one) calls
//! * commands: [`Core::post_send`], [`Core::post_receive`], [`Core::post_access`], [`Core::cancel`],
//!   [`Core::expose`], [`Core::unexpose`], [`Core::add_peer`], [`Core::forget_peer`];
//! * reports of rails: [`Core::link_up`], [`Core::link_down`], [`Core::place`], [`Core::received`],
//!   [`Core::done`], [`Core::failed`], [`Core::revoked`];
//! * time: [`Core::advance`], at the latest at [`Core::deadline`];
//!
//! and after each of them takes [`Core::next_output`] until nothing is left, in order. A post that answers
//! [`Sending::Inline`] first hands [`Core::inline_frame`] to the rail and tells the answer by [`Core::inline_sent`].
//!
//! Files: `engine` (the state), `arrive` (where a frame belongs), `outputs` (what is to be done), `matching` (who gets a
//! message), `probe` (a look at what waits), `eager`, `fragments`, `assembly` and `rendezvous` (how a message travels),
//! `streams` (data frames in turn), `remote` (put and get), `reliable` (spans, acknowledgements, re-sending), `session`
//! (what two ends share, its beginning and its end), `path` (peers, links, hand-shake), `credit` (who may send how much),
//! `foreign` (peers that speak a protocol of their rail's), `operation`, `cancel`, `orders` and `incoming` (what rails
//! were told to do, and payloads on their way), `rails` (their guarantees), `lists` (lists through tables), [`apm`] (the
//! alternate path of a connection, and the move to it).
//!
//! Invariants
//! * Of one peer's messages on one channel that a receive accepts, the earliest sent wins; of the
//!   receives that accept a message, the earliest posted wins.
//! * An operation completes exactly once, and only when no rail and no peer holds a placement, an
//!   order or a key for its memory.
//! * All memory that a peer can make us use is bounded by credits of the configuration.
//! * Bytes from a peer never panic: what breaks the protocol costs the peer its link.
#![forbid(unsafe_code)]

pub mod api;
pub mod apm;
mod arrive;
mod assembly;
mod cancel;
mod check;
mod credit;
mod eager;
mod engine;
mod foreign;
mod fragments;
mod incoming;
mod lists;
mod matching;
mod operation;
mod orders;
mod outputs;
mod path;
mod plant;
mod probe;
mod rails;
mod reliable;
mod remote;
mod rendezvous;
mod session;
mod streams;

pub use api::*;
pub use check::Holdings;
pub use engine::Core;
pub use path::PathState;
pub use probe::{Offer, OfferId, Waiting};
pub use rails::{RailLabel, RailProtection};
pub use remote::Task;
pub use session::PathLoss;
pub use session::history::{HistoryEvent, PathChange};
pub use session::quality::{PathGrade, PathQuality};
pub use session::sought::CallFault;
pub use session::status::{LinkState, NotUsed, PathCause, PathStatus, PathTally};
