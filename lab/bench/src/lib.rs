//! Benchmarks, after the contract of DESIGN section 6: ours and a reference in the same invocation,
//! alternating, in separate processes, with checksums and the service thread on.
//!
//! * [`net`]: latency and bandwidth of the message layer beside bare sockets and a bare cache line;
//! * [`report`]: JSON lines, a table, a figure.
//!
//! Invariant: a program that benchmarks calls [`serve_if_child`] before anything else: the peer of a
//! measurement is the same program, started again.
#![forbid(unsafe_code)]

mod message;
pub mod net;
mod raw;
pub mod report;

pub use report::Outcome;

/// The variable by which a child process learns its part.
pub(crate) const PART: &str = "ROPEWALK_BENCH_PART";

/// Plays the peer's part and ends the process, where it was started for that.
pub fn serve_if_child() {
    if let Ok(part) = std::env::var(PART) {
        match net::serve(&part) {
            Ok(()) => std::process::exit(0),
            Err(error) => {
                eprintln!("the peer of the benchmark failed at '{part}': {error}");
                std::process::exit(1);
            }
        }
    }
}
