//! `ropewalk format`: a directory gets the identity of a new cluster, and an empty file system.

use std::path::PathBuf;

use anyhow::{Context, bail};
use ropewalk_meta::server::MetaServer;
use ropewalk_store::HostDisk;
use ropewalk_store::superblock::{self, Expect};

use crate::beside;
use crate::cluster::{self, MetaPlace, meta_config};
use crate::config::Source;
use crate::identity::{self, Identity};
use crate::node;
use crate::report::say;

/// Arguments of `ropewalk format`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ropewalk format /srv/rope                prints the cluster's identity
  ropewalk format --config ropewalk.toml   the directories that the file names
  ropewalk format /srv/rope --meta-directory /fast/meta

Once for each cluster, where its metadata shall be. Servers refuse the data of another one. Data \
servers make their directories themselves when they join. The file 'cluster' in the directory has \
the cluster's identity and its secret, by which its servers know each other: hosts with other servers \
of it get a copy, which only who runs them may read (mode 600).")]
pub struct Format {
    /// The directory below which the servers keep their data; made where it does not exist.
    #[arg(required_unless_present = "config")]
    directory: Option<PathBuf>,
    /// Where the metadata shall be; 'meta' in the directory unless said otherwise.
    #[arg(long, value_name = "DIR")]
    meta_directory: Option<PathBuf>,
    #[command(flatten)]
    source: Source,
}

/// Makes an empty file system, gives its directory the identity of a new cluster, and prints that.
pub fn format(arguments: &Format) -> anyhow::Result<()> {
    let config = arguments.source.read()?;
    let named = arguments.directory.clone().or(config.directory);
    let directory = named.context(
        "no directory to format: name one, or give the config file a line 'directory = \"…\"'",
    )?;
    if directory.is_dir() {
        beside::check_directory(&directory)?;
    }
    let file = directory.join(identity::IDENTITY);
    if file.is_symlink() || file.exists() {
        bail!(
            "{} is a cluster's directory already: 'ropewalk serve' and 'ropewalk up' serve it; a new \
             cluster wants another directory",
            directory.display()
        );
    }
    let meta = arguments.meta_directory.clone().or(config.meta.directory);
    let meta = meta.unwrap_or_else(|| directory.join(cluster::META));
    // An earlier try may have come half the way.
    if meta.exists() && !meta.is_dir() || directory.exists() && !directory.is_dir() {
        bail!("{} is not a directory: name one, or one that is to be made", directory.display());
    }
    let begun = superblock::look(&HostDisk, &meta)?.map(|(id, _)| id);
    let (found, expect) = cluster::found_or_new(&directory)?;
    if expect == Expect::Existing {
        bail!(
            "{0} has objects of cluster {1} already: restore its file 'cluster' from a copy, or write one \
             with the one line {1} (mode 600); at its next start the metadata server adds a new secret, \
             which other hosts need a copy of",
            directory.display(),
            found.id
        );
    }
    let id = config.cluster.map(|name| name.0).or(begun).unwrap_or(found.id);
    let identity = Identity { id, ..found };
    let (reactor, world) = node::offline()?;
    let (expect, accept_loss, cluster) = (Expect::Any, false, identity.clone());
    let place = MetaPlace { directory: meta, cluster, term: None, expect, accept_loss };
    reactor.block_on(MetaServer::format(&world, meta_config(place)))?;
    identity::write(&directory, &identity)?;
    say!("{id}")
}
