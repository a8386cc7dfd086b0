//! `paths`: the paths of running processes to their peers, as an operator sees them.
//!
//! * [`status`]: how paths are now, also in the words of Prometheus ([`prometheus`]); [`history`]: what happened to them;
//! * [`found`]: the processes that show paths, and what they told.

mod found;
mod history;
mod prometheus;
mod status;

/// Subcommands of `ropewalk paths`.
#[derive(Debug, clap::Subcommand)]
pub enum Paths {
    /// Shows the paths of running processes to their peers: states, round trips, traffic.
    Status(status::Status),
    /// Shows what happened to paths: suspicions with their causes, stalls, traffic that was sent
    /// again.
    History(history::History),
}

/// Runs one.
pub fn run(what: &Paths) -> anyhow::Result<()> {
    match what {
        Paths::Status(arguments) => status::run(arguments),
        Paths::History(arguments) => history::run(arguments),
    }
}
