//! `ropewalk mkdir`.

use std::path::PathBuf;
use std::rc::Rc;

use anyhow::bail;
use ropewalk_client::{Errno, InodeKind, Node};

use super::{Reach, Session, for_each, of, shown};

/// Arguments of `ropewalk mkdir`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ropewalk mkdir :/data          creates a directory in an existing one
  ropewalk mkdir -p :/data/a/b   also creates missing parents

The new directory belongs to the user who calls the command, and the umask applies, as with \
mkdir(1).")]
pub struct Mkdir {
    /// Paths in the cluster; the colon may be left out.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Also create missing parent directories, and accept directories that already exist.
    #[arg(short, long)]
    parents: bool,
    #[command(flatten)]
    reach: Reach,
}

/// Makes directories.
pub fn run(arguments: &Mkdir) -> anyhow::Result<()> {
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(mask);
    let mode = 0o777 & !(mask.bits() as u16);
    arguments.reach.run("mkdir", async |session| {
        for_each(&arguments.paths, "made", async |path| make(arguments, session, path, mode).await)
            .await
    })
}

async fn make(
    arguments: &Mkdir,
    session: &Rc<Session>,
    path: &[u8],
    mode: u16,
) -> anyhow::Result<()> {
    let (client, caller) = (&session.client, &session.caller);
    if !arguments.parents {
        let (parent, name) = client.resolve_parent(caller, path).await.map_err(of(path))?;
        let made = client.make(caller, parent.inode, name, mode, Node::Directory).await;
        return made.map(drop).map_err(of(path));
    }
    // Step by step, links followed, as the path is read.
    let ends = (1..=path.len()).filter(|end| path.get(*end).is_none_or(|byte| *byte == b'/'));
    for end in ends {
        let step = &path[..end];
        let found = match client.resolve(caller, step, true).await {
            Err(Errno::ENOENT) => {
                let (parent, name) = client.resolve_parent(caller, step).await.map_err(of(step))?;
                match client.make(caller, parent.inode, name, mode, Node::Directory).await {
                    // Somebody else was faster.
                    Err(Errno::EEXIST) => client.resolve(caller, step, true).await,
                    made => made,
                }
            }
            found => found,
        };
        if found.map_err(of(step))?.kind != InodeKind::Directory {
            bail!("{} exists and is not a directory", shown(step));
        }
    }
    Ok(())
}
