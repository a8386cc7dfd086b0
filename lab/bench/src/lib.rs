//! Benchmarks, after the contract of the house: ours and a reference in the same invocation,
//! alternating, in separate processes, with checksums and the service thread on.
//!
//! * [`mod@net`]: latency and bandwidth of the message layer beside bare sockets and a bare cache
//!   line;
//! * [`mod@bmi`]: the figures of the BMI paper, through the C interface, beside bare sockets and MPI;
//! * [`mod@mx`]: the figures of the MX papers, between two network namespaces, beside bare frames,
//!   datagrams and streams;
//! * [`mod@rma`]: the figures of the paper on one-sided communication, by remote access and by messages;
//! * [`mod@paths`]: streams whose rails fail, between network namespaces, beside TCP and MPTCP;
//! * [`mod@survive`]: servers that die, stop or are cut off, and what clients notice of it;
//! * [`mod@io`]: data through the library and a mount; [`mod@meta`]: names, and starts of servers;
//! * [`mod@mpi`]: messages of the MPIs that are here;
//! * [`lab`]: the alternation of parties; [`servers`], `worker`, `process`: the processes; `work_files`,
//!   `work_library`: the operations of workers;
//! * [`series`], [`report`]: figures, JSON lines, a table, a picture.
//!
//! Invariants
//! * A program that benchmarks calls [`serve_if_child`] before anything else: servers, mounts,
//!   workers and the peer of a measurement are the same program, started again.
//! * Nothing that is started here survives the process that started it.
#![forbid(unsafe_code)]

pub mod bmi;
mod bmi_bare;
mod bmi_group;
mod bmi_rows;
mod bmi_side;
mod counters;
pub mod embed;
mod fio;
mod guide;
mod histogram;
mod host;
pub mod io;
mod lab;
mod message;
pub mod meta;
pub mod mpi;
pub mod mx;
pub mod net;
mod order;
pub mod paths;
mod postmark;
mod process;
mod ranks;
mod raw;
pub mod report;
pub mod rma;
pub mod series;
mod servers;
mod stage;
mod starts;
pub mod survive;
mod work_files;
mod work_library;
mod worker;

pub use lab::Options;
pub use report::Outcome;

use embed::Embedder;
use order::Order;

/// The variable by which a child process learns its part.
pub(crate) const PART: &str = "ROPEWALK_BENCH_PART";
/// The variable that tells a child to end with the process that started it: [`DIES`] as by `kill -9`, which a process that
/// stands still obeys, too.
pub(crate) const ORPHAN: &str = "ROPEWALK_BENCH_ORPHAN";
pub(crate) const DIES: &str = "dies";

/// Plays its part and ends the process, where it was started for that by a benchmark.
pub fn serve_if_child(embedder: &dyn Embedder) {
    if let Some(how) = std::env::var_os(ORPHAN) {
        use rustix::process::Signal;
        let signal = if how == DIES { Signal::KILL } else { Signal::TERM };
        if let Err(error) = rustix::process::set_parent_process_death_signal(Some(signal)) {
            eprintln!("this process may not end with the benchmark: {error}");
        }
    }
    let Ok(part) = std::env::var(PART) else { return };
    if let Err(error) = serve(&part, embedder) {
        eprintln!("a process of the benchmark failed: {error:#}");
        std::process::exit(1);
    }
    std::process::exit(0);
}

fn serve(part: &str, embedder: &dyn Embedder) -> anyhow::Result<()> {
    if part == "become" {
        return become_another();
    }
    if part.starts_with("bmi ") {
        return bmi_side::serve(part);
    }
    if let Some(part) = part.strip_prefix("mx ") {
        return mx::serve(part);
    }
    if let Some(part) = part.strip_prefix("rma ") {
        return rma::serve(part);
    }
    if let Some(part) = part.strip_prefix("paths ") {
        return paths::serve(part);
    }
    let Some(text) = part.strip_prefix("work\n") else { return serve_messages(part) };
    let order = Order::decode(text).ok_or_else(|| anyhow::anyhow!("'{text}' is no order"))?;
    let done = work_files::work(&order).or_else(|| work_library::work(&order, embedder));
    let done = done.or_else(|| survive::work(&order, embedder));
    done.unwrap_or_else(|| anyhow::bail!("nobody knows how to '{}'", order.kind))
}

/// The other end of a measurement of messages; the measuring side closes the connection at the end.
fn serve_messages(part: &str) -> anyhow::Result<()> {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    match net::serve(part) {
        Err(error) if matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof) => {
            Ok(())
        }
        done => Ok(done?),
    }
}

/// Becomes the program that the arguments name.
fn become_another() -> anyhow::Result<()> {
    use std::os::unix::process::CommandExt;
    let mut arguments = std::env::args_os().skip(1);
    let program = arguments.next().ok_or_else(|| anyhow::anyhow!("which program?"))?;
    let mut command = std::process::Command::new(&program);
    Err(command.args(arguments).env_remove(PART).env_remove(ORPHAN).exec().into())
}
