//! Fuzzing of every decoder of bytes from a network or a disk.
//!
//! * [`targets`]: the fuzzed decoders, one line each;
//! * [`made`]: valid messages of today's layout;
//! * [`mutate`]: makes inputs out of a corpus and chance;
//! * [`corpus`]: the inputs kept in the tree, a folder for each target;
//! * [`drive`]: runs a target over many inputs and names the one that broke it.
//!
//! Three doors lead to the same targets: `cargo test -p ropewalk-fuzz` (bounded, any compiler, same
//! inputs each time), `cargo run -p ropewalk-fuzz` (long runs and replays), and `lab/fuzz/guided`
//! (steered by coverage, nightly compilers only; it also grows the corpus).
//!
//! Invariants: a run is determined by its seed and the corpus; a target fails by panicking and in no
//! other way.
#![forbid(unsafe_code)]

pub mod corpus;
pub mod drive;
pub mod made;
mod memory;
pub mod mutate;
mod mxoe;
mod packets;
mod paths;
mod protocol;
pub mod targets;

/// Something that is fed arbitrary bytes and must neither panic nor break a promise.
pub type Target = fn(&[u8]);

/// Longest input, in bytes: beyond every message head and most bodies, and cheap to try.
pub const INPUT_BYTES_MAX: usize = 4096;
