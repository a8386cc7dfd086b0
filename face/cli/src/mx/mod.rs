//! `mx`: this host's tools for messages over Ethernet.
//!
//! * [`info`]: boards, which are interfaces that can be used, and advice; [`endpoints`]: the owners of
//!   endpoints; [`peers`]: the hosts on the wire; [`host`]: information from files of the kernel; [`advice`]:
//!   the conclusions from it;
//! * [`counters`]: traffic, and drops with their reasons; [`perf`]: the speed of messages.
//!
//! Invariant: nothing is changed, and only [`perf`] needs a right; what cannot be seen is not shown.

mod advice;
mod counters;
mod endpoints;
mod host;
mod info;
mod peers;
pub(crate) mod perf;

/// Subcommands of `ropewalk mx`.
#[derive(Debug, clap::Subcommand)]
pub enum Mx {
    /// Shows the networks that programs can use on this host, their settings, and advice on better
    /// ones.
    Info(info::Info),
    /// Shows the open endpoints on this host's interfaces, and their processes.
    Endpoints(endpoints::Endpoints),
    /// Shows the hosts that were found on this host's networks.
    Peers(peers::Peers),
    /// Shows packet counters of interfaces and endpoints, with the packets that were dropped and
    /// why.
    Counters(counters::Counters),
    /// Measures latency and bandwidth by message size between two hosts.
    Perf(perf::Perf),
}

/// Runs one.
pub fn run(what: &Mx) -> anyhow::Result<()> {
    ropewalk_host_mx::module::register();
    match what {
        Mx::Info(arguments) => info::run(arguments),
        Mx::Endpoints(arguments) => endpoints::run(arguments),
        Mx::Peers(arguments) => peers::run(arguments),
        Mx::Counters(arguments) => counters::run(arguments),
        Mx::Perf(arguments) => perf::run(arguments),
    }
}
