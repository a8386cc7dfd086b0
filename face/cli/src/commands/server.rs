//! `ropewalk server`: which data servers belong to a cluster.

use std::time::Duration;

use super::seconds;
use crate::operate::{Keys, Target};
use crate::report::say;

/// What is done with a server.
#[derive(Debug, clap::Subcommand)]
pub enum ServerCommand {
    /// Lets a data server of a new number join the cluster; from then on it belongs to it for good.
    #[command(after_help = "Examples:
  ropewalk server add 4                            the cluster on this host
  ropewalk server add 4 -A tcp://node1:7700 --cluster-file /etc/rope.cluster

Then start it: 'ropewalk serve data --server 4 --directory DIR'. Servers that 'up' and 'serve all' start \
are admitted on their own.")]
    Add {
        /// The number, which the cluster does not have yet.
        number: u32,
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        keys: Keys,
        /// How long the metadata server has for its answer.
        #[arg(long, value_name = "SECONDS", default_value = "20", value_parser = seconds)]
        patience: Duration,
    },
}

/// Does it.
pub fn run(command: &ServerCommand) -> anyhow::Result<()> {
    let ServerCommand::Add { number, target, keys, patience } = command;
    let new =
        target.run_with(keys, *patience, async |_, operator| Ok(operator.admit(*number).await?));
    match new? {
        true => say!("data server {number} may join"),
        false => say!("data server {number} belongs to the cluster already"),
    }
}
