//! `paths`: the paths of running processes to their peers, as an operator sees them.
//!
//! * [`status`]: how paths are now, also in the words of Prometheus ([`prometheus`]); [`history`]: what happened to them;
//! * [`orders`]: a path is kept out of use, weighed, moved to;
//! * [`found`]: the processes that show paths, and what they told.

mod found;
mod history;
mod orders;
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
    /// Keeps a path out of use, on both sides, until 'ropewalk paths up'.
    Drain(orders::Drain),
    /// Lets a path be used again after 'ropewalk paths drain'.
    Up(orders::Up),
    /// Weighs a path: the heavier ones are chosen first as alternates.
    Weight(orders::Weight),
    /// Chooses the path that takes over next, by its ends, and proves it.
    Specify(orders::Specify),
    /// Moves traffic to another path now.
    Migrate(orders::Migrate),
}

/// Runs one.
pub fn run(what: &Paths) -> anyhow::Result<()> {
    match what {
        Paths::Status(arguments) => status::run(arguments),
        Paths::History(arguments) => history::run(arguments),
        Paths::Drain(arguments) => orders::drain(arguments),
        Paths::Up(arguments) => orders::up(arguments),
        Paths::Weight(arguments) => orders::weight(arguments),
        Paths::Specify(arguments) => orders::specify(arguments),
        Paths::Migrate(arguments) => orders::migrate(arguments),
    }
}
