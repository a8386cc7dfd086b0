//! `ropewalk rm`.

use std::path::PathBuf;
use std::rc::Rc;

use anyhow::bail;
use ropewalk_base::task::{Semaphore, join_all};
use ropewalk_client::{Attributes, Errno, InodeKind, Listed};

use super::{Reach, Session, cause, for_each, join, of, shown, within};

/// Unlinks that are under way at a time.
const AT_ONCE: usize = 32;

/// Arguments of `ropewalk rm`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ropewalk rm :/data/old.bin        a file, a link, ...
  ropewalk rm -r :/data/run7        a directory with all that it holds
  ropewalk rm -rf :/tmp/a :/tmp/b   and no word about what is not there

Nothing is asked, and what is gone is gone. Symbolic links are removed, not followed.")]
pub struct Rm {
    /// What to remove, within the cluster; the colon may be left out.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Directories, too, with all that they hold.
    #[arg(short, long)]
    recursive: bool,
    /// What does not exist is no error.
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    reach: Reach,
}

/// Removes.
pub fn run(arguments: &Rm) -> anyhow::Result<()> {
    for path in &arguments.paths {
        let last = within(path).split(|byte| *byte == b'/').rfind(|name| !name.is_empty());
        if matches!(last, None | Some(b"." | b"..")) {
            bail!("{}: name what is to go, not where you stand", shown(within(path)));
        }
    }
    arguments.reach.run("rm", async |session| {
        for_each(&arguments.paths, "removed", async |path| remove(arguments, session, path).await)
            .await
    })
}

async fn remove(arguments: &Rm, session: &Rc<Session>, path: &[u8]) -> anyhow::Result<()> {
    let (client, caller) = (&session.client, &session.caller);
    let found = async {
        let (parent, name) = client.resolve_parent(caller, path).await?;
        Ok((parent, name, client.lookup(caller, parent.inode, name).await?))
    };
    let (parent, name, found) = match found.await {
        Err(Errno::ENOENT) if arguments.force => return Ok(()),
        found => found.map_err(of(path))?,
    };
    if found.kind != InodeKind::Directory {
        return client.unlink(caller, parent.inode, name).await.map_err(of(path));
    }
    if !arguments.recursive {
        bail!("{} is a directory: -r removes it with all that it holds", shown(path));
    }
    let tree = Tree { session: session.clone(), permits: Semaphore::new(AT_ONCE) };
    tree.empty(path, &found).await?;
    client.remove_directory(caller, parent.inode, name).await.map_err(of(path))
}

/// A tree that is being removed.
struct Tree {
    session: Rc<Session>,
    permits: Semaphore,
}

impl Tree {
    /// Removes all that a directory holds.
    async fn empty(&self, path: &[u8], directory: &Attributes) -> anyhow::Result<()> {
        let (client, caller) = (&self.session.client, &self.session.caller);
        let mut cookie = 0;
        loop {
            let read = client.read_directory(caller, directory.inode, cookie, false).await;
            let (entries, end) = read.map_err(of(path))?;
            let Some(last) = entries.last() else { return Ok(()) };
            cookie = last.cookie;
            let removed = entries.iter().map(|entry| self.entry(path, directory.inode, entry));
            join_all(removed).await.into_iter().collect::<anyhow::Result<()>>()?;
            if end {
                return Ok(());
            }
        }
    }

    async fn entry(&self, path: &[u8], parent: u64, entry: &Listed) -> anyhow::Result<()> {
        let (client, caller) = (&self.session.client, &self.session.caller);
        let path = join(path, &entry.name);
        if entry.kind == InodeKind::Directory {
            let found = client.lookup(caller, parent, &entry.name).await.map_err(of(&path))?;
            // Boxed, since its size would contain itself.
            Box::pin(self.empty(&path, &found)).await?;
            let _permit = self.permits.acquire().await;
            return client.remove_directory(caller, parent, &entry.name).await.map_err(of(&path));
        }
        let _permit = self.permits.acquire().await;
        match client.unlink(caller, parent, &entry.name).await {
            // Somebody else was faster.
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => bail!("{}: {}", shown(&path), cause(errno)),
        }
    }
}
