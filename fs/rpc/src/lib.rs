//! Calls and replies between clients and servers of the file system: an ordinary user of `net`.
//!
//! * [`server`]: takes calls in, hands them to a handler, sends replies.
//! * [`client`]: sends calls through the slots of a session, and again until they are answered.
//! * [`gate`]: stops the calls of several connections, and counts them;
//! * [`trust`]: the proof of servers' membership, and the tokens of sessions;
//! * [`lines`]: the lines of servers for people, held back where there are too many;
//! * [`servers`]: the metadata servers of a cluster, as one text names them;
//! * [`slots`]: the server's memory of slots, for servers whose effects may be repeated.
//!
//! Exactly once: a slot has one call at a time, numbered in sequence. A call that is sent
//! again carries the same slot and number; while the first copy is being worked on, the reply goes to
//! wherever the last copy came from; when it was worked on, the stored reply is sent. Where replies
//! are stored is the handler's affair: the metadata server keeps them beside their effect.
#![forbid(unsafe_code)]

pub mod client;
pub mod gate;
pub mod lines;
pub mod server;
pub mod servers;
pub mod slots;
pub mod trust;

pub use client::{CallError, Connection, Options, Reply, Terms};
pub use gate::Gate;
pub use server::{Answer, Handler, Incoming, Marks, Responder, Server};
pub use trust::{Grantor, Proof, Secret};
