//! `ropewalk format`: a directory gets the identity of a new cluster.

use std::path::PathBuf;

use anyhow::{Context, bail};

use crate::cluster;
use crate::config::Source;
use crate::report::say;

/// Arguments of `ropewalk format`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ropewalk format /var/lib/ropewalk        prints the identity, which 'serve --cluster' takes on
                                           nodes that do not have this directory
  ropewalk format --config ropewalk.toml   the directory that the file names

Once for each cluster. Servers refuse the data of another one.")]
pub struct Format {
    /// The directory below which the servers keep their data; made where it does not exist.
    #[arg(required_unless_present = "config")]
    directory: Option<PathBuf>,
    #[command(flatten)]
    source: Source,
}

/// Gives a directory the identity of a new cluster, and prints it.
pub fn format(arguments: &Format) -> anyhow::Result<()> {
    let config = arguments.source.read()?;
    let named = arguments.directory.clone().or(config.directory);
    let directory = named.context(
        "no directory to format: name one, or give the config file a line 'directory = \"…\"'",
    )?;
    let file = directory.join(cluster::IDENTITY);
    if file.exists() {
        bail!("{} belongs to a cluster already: remove its content to begin anew", file.display());
    }
    let id = match config.cluster {
        Some(id) => cluster::write_identity(&directory, id.0)?,
        None => cluster::identity(&directory)?,
    };
    say!("{id}")
}
