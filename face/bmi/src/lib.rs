//! The BMI interface (Buffered Message Interface) of parallel file systems, over Ropewalk's message layer: a C
//! library for programs that were written for standalone BMI or for OrangeFS's copy of it.
//!
//! One shared object serves both flavours: they differ in a last argument that one of them has and we
//! need not read, and in the names of three functions, all of which are here. `include/bmi.h` declares
//! the one or the other; `docs/spec/bmi.md` says what each call promises.
//!
//! A face has no protocol of its own. It expresses BMI in the terms of `net`: a tag is 64 match bits from one
//! source, an unexpected message is a request, a context is a context, an address is a peer's own number.
//!
//! Files: `entry` (the C functions), `library` (the state of a process), `presence` (the threads in a call),
//! `contexts` (completions), `unexpected` (requests by class), `addresses`, `options`, `range`, `buffers`,
//! `errors`; `driver` (the C functions for callers in Rust).
//!
//! Invariants
//! * an operation that completes within its post is reported by the post and by no test;
//! * every other operation is reported once, by a test of its own context;
//! * what peers make us keep is bounded by their credit, requests that nobody tests for included.

mod addresses;
mod buffers;
mod contexts;
pub mod driver;
mod entry;
pub mod errors;
mod library;
mod options;
mod presence;
mod range;
mod unexpected;

pub use entry::*;
