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
    /// Shows the boards of this host, what they are set to, and what to set instead.
    Info(info::Info),
    /// Shows who has which endpoint of the boards of this host.
    Endpoints(endpoints::Endpoints),
    /// Shows the hosts that the agents of this host's boards have found.
    Peers(peers::Peers),
    /// Shows what interfaces, agents and endpoints of this host counted: what went, and what was dropped and why.
    Counters(counters::Counters),
    /// Measures half round trips and bandwidth by size, towards whoever runs it as well.
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
