//! `ropewalk server`: which data servers belong to a cluster.

use std::time::Duration;

use super::{number, seconds};
use crate::operate::{Keys, Target};
use crate::report::say;

/// What is done with a server.
#[derive(Debug, clap::Subcommand)]
pub enum ServerCommand {
    /// Admits a data server with a new number to the cluster, permanently.
    #[command(after_help = "Examples:
  ropewalk server add 4                            for the cluster on this host
  ropewalk server add 4 -A tcp://node1:7700 --cluster-file /etc/rope.cluster

Then start the new server with 'ropewalk serve data --server 4 --directory DIR'. 'ropewalk up' \
and 'ropewalk serve all' admit their data servers themselves.")]
    Add {
        /// The number of the new data server.
        #[arg(value_parser = number, allow_negative_numbers = true)]
        number: u32,
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        keys: Keys,
        /// Wait this long for the metadata server's answer.
        #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, default_value = "20", value_parser = seconds)]
        patience: Duration,
    },
}

/// Does it.
pub fn run(command: &ServerCommand) -> anyhow::Result<()> {
    let ServerCommand::Add { number, target, keys, patience } = command;
    let new =
        target.run_with(keys, *patience, async |_, operator| Ok(operator.admit(*number).await?));
    match new? {
        true => say!(
            "data server {number} may join: start it with 'ropewalk serve data --server {number}'"
        ),
        false => say!("data server {number} belongs to the cluster already"),
    }
}
