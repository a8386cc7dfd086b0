//! Keys, and the handshake by which two endpoints prove to each other that they have them.
//!
//! * [`Keyring`]: the keys of one process, as a key file has them ([`Keyring::parse`], [`Keyring::to_text`]);
//! * [`Guard`]: calls and answers for an endpoint: it makes the blocks that greetings carry, and judges those of peers;
//! * [`Certificate`]: a node's public key, signed by the cluster's key.
//!
//! Invariants:
//! * no key is in an error, a log or the output of `Debug`; keys are wiped when they are dropped;
//! * keys, tags and proofs are compared in constant time;
//! * a block is at most [`BLOCK_BYTES_MAX`] bytes long, and a key file at most [`FILE_BYTES_MAX`];
//! * a stranger's block costs keyed hashes only, no operation on a curve, and leaves nothing in memory;
//! * clock and chance come in as a [`World`].
//!
//! This crate must not know what a link, a session or a file is. docs/design/121-authentication.md has the reasons.

#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod attack;
mod block;
mod certificate;
mod file;
mod guard;
mod keyring;
mod name;
mod noise;
mod secret;

pub use block::BLOCK_BYTES_MAX;
pub use certificate::{Certificate, Doubt, Standing};
pub use file::{FILE_BYTES_MAX, FileError};
pub use guard::{Calling, Guard, Heard, Proven, Untrusted, World};
pub use keyring::{Authority, Keyring, NodeKeys, PskKeys};
pub use name::{NameError, NodeName};
pub use secret::{Secret, SessionKey};

#[cfg(test)]
mod tests;
