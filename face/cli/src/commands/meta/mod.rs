//! `ropewalk meta`: several metadata servers, of which one serves; and dumps of the metadata.

mod dump;
mod restore;
mod summary;

use std::process::ExitCode;

use anyhow::bail;

use super::Asking;
use crate::report::{Closed, complain, say};

/// An order about the metadata.
#[derive(Debug, clap::Subcommand)]
pub enum MetaCommand {
    /// Has the standby metadata server serve; the active one then follows it.
    #[command(after_help = "Examples:
  ropewalk meta switch                     for the cluster on this host
  ropewalk meta switch -A 'tcp://n1:7700;tcp://n2:7700' --cluster-file FILE

Clients and mounts go on. The section [election] in the example of a config file explains how to \
run several metadata servers.")]
    Switch(Asking),
    /// Writes all metadata to a file, from a running server, a standby, or a directory.
    Dump(dump::DumpArguments),
    /// Makes a new metadata directory out of such a file.
    Restore(restore::RestoreArguments),
}

/// Does it. The exit status is 1 where metadata are missing, and 2 where the command could not do its work.
pub fn run(command: &MetaCommand) -> ExitCode {
    let (done, failure) = match command {
        MetaCommand::Switch(asking) => (switch(asking).map(|()| ExitCode::SUCCESS), 1),
        MetaCommand::Dump(arguments) => (dump::run(arguments), 2),
        MetaCommand::Restore(arguments) => (restore::run(arguments), 2),
    };
    match done {
        Ok(code) => code,
        Err(error) if error.is::<Closed>() => ExitCode::SUCCESS,
        Err(error) => {
            complain!("ropewalk: {error:#}");
            ExitCode::from(failure)
        }
    }
}

fn switch(asking: &Asking) -> anyhow::Result<()> {
    if !asking.run(async |_, operator| Ok(operator.switch().await?))? {
        bail!(
            "no standby metadata server has all that the active one has: start one, or wait until it \
             has caught up"
        );
    }
    say!("the standby metadata server takes over")
}
