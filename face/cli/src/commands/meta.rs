//! `ropewalk meta`: several metadata servers, of which one serves.

use std::time::Duration;

use anyhow::bail;

use super::seconds;
use crate::operate::{Keys, Target};
use crate::report::say;

/// An order to the metadata servers.
#[derive(Debug, clap::Subcommand)]
pub enum MetaCommand {
    /// Has the standby metadata server serve; the active one then follows it.
    #[command(after_help = "Examples:
  ropewalk meta switch                     for the cluster on this host
  ropewalk meta switch -A 'tcp://n1:7700;tcp://n2:7700' --cluster-file FILE

Clients and mounts go on. The section [election] in the example of a config file explains how to \
run several metadata servers.")]
    Switch {
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
pub fn run(command: &MetaCommand) -> anyhow::Result<()> {
    let MetaCommand::Switch { target, keys, patience } = command;
    let switched =
        target.run_with(keys, *patience, async |_, operator| Ok(operator.switch().await?));
    if !switched? {
        bail!(
            "no standby metadata server has all that the active one has: start one, or wait until it \
             has caught up"
        );
    }
    say!("the standby metadata server takes over")
}
