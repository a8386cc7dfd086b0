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
  ropewalk format /srv/rope                creates it and prints its identity
  ropewalk format --config ropewalk.toml   uses the directories in that file
  ropewalk format /srv/rope --meta-directory /fast/meta

Run it once for each cluster, on the host of the metadata server, and then start the servers with \
'ropewalk serve'. The data servers create their own directories when they join. A server refuses \
data of another cluster.

The command writes the file 'cluster' into the directory. It holds the cluster's identity and a \
secret by which its servers recognize each other. Every other host that runs a server of the \
cluster needs a copy, which only the user who runs the server may read (mode 600).")]
pub struct Format {
    /// Create the cluster in this directory, which is created if it does not exist.
    #[arg(required_unless_present = "config")]
    directory: Option<PathBuf>,
    /// Keep the metadata in this directory [default: 'meta' in the cluster's directory].
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
        "no directory given: name one, or add a line 'directory = \"…\"' to the config file",
    )?;
    if directory.is_dir() {
        beside::check_directory(&directory)?;
    }
    let file = directory.join(identity::IDENTITY);
    if file.is_symlink() || file.exists() {
        bail!(
            "{} is already the directory of a cluster: serve it by 'ropewalk serve' or 'ropewalk \
             up', or give another directory for a new cluster",
            directory.display()
        );
    }
    let meta = arguments.meta_directory.clone().or(config.meta.directory);
    let meta = meta.unwrap_or_else(|| directory.join(cluster::META));
    // An earlier try may have come half the way.
    if meta.exists() && !meta.is_dir() || directory.exists() && !directory.is_dir() {
        bail!(
            "{} is not a directory: give a directory, or a path that does not exist yet",
            directory.display()
        );
    }
    let begun = superblock::look(&HostDisk, &meta)?.map(|(id, _)| id);
    let (found, expect) = cluster::found_or_new(&directory)?;
    if expect == Expect::Existing {
        bail!(
            "{0} already has file data of cluster {1}, but the file 'cluster' is missing: restore \
             that file from a backup, or write a new one (mode 600) with the single line {1}; the \
             metadata server then adds a new secret at its next start, and the other hosts need \
             new copies of the file",
            directory.display(),
            found.id
        );
    }
    let id = config.cluster.map(|name| name.0).or(begun).unwrap_or(found.id);
    let identity = Identity { id, ..found };
    let (reactor, world) = node::offline()?;
    let (expect, accept_loss, cluster) = (Expect::Any, false, identity.clone());
    let (term, election) = (None, None);
    let place = MetaPlace { directory: meta, cluster, term, expect, accept_loss, election };
    reactor.block_on(MetaServer::format(&world, meta_config(place)))?;
    identity::write(&directory, &identity)?;
    say!("{id}")
}
