//! `ropewalk rm`.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::bail;
use ropewalk_base::task::{Semaphore, join_all};
use ropewalk_client::{Attributes, Errno, InodeKind, Listed};

use super::{Reach, Session, for_each, join, of, shown, within};
use crate::report::complain;

/// Unlinks that are under way at a time.
const AT_ONCE: usize = 32;

/// Arguments of `ropewalk rm`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ropewalk rm :/data/old.bin        removes a file or a link
  ropewalk rm -r :/data/run7        removes a directory with everything in it
  ropewalk rm -rf :/tmp/a :/tmp/b   accepts paths that do not exist

The command does not ask for confirmation. It removes symbolic links, and does not follow them. \
If an entry cannot be removed, a line on stderr names it, all others are removed, and the exit \
status is 1.")]
pub struct Rm {
    /// Paths in the cluster; the colon may be left out.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Remove directories with everything in them.
    #[arg(short, long)]
    recursive: bool,
    /// Accept paths that do not exist.
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
            bail!(
                "{}: the root, '.' and '..' cannot be removed: give the name of an entry",
                shown(within(path))
            );
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
        bail!("{} is a directory: use -r to remove it with everything in it", shown(path));
    }
    let tree = Tree {
        session: session.clone(),
        permits: Semaphore::new(AT_ONCE),
        failed: Cell::new(0),
        last: RefCell::default(),
    };
    let is_empty = tree.empty(path, &found).await?;
    if is_empty {
        return client.remove_directory(caller, parent.inode, name).await.map_err(of(path));
    }
    match (tree.last.into_inner(), tree.failed.get()) {
        (Some(error), 1) => Err(error),
        (Some(error), failed) => {
            Err(error.context(format!("{failed} entries could not be removed; the last one")))
        }
        (None, _) => bail!(
            "{} is still not empty: somebody created entries in it at the same time",
            shown(path)
        ),
    }
}

/// A tree that is being removed. An entry that cannot go is told, and all others go.
struct Tree {
    session: Rc<Session>,
    permits: Semaphore,
    failed: Cell<u64>,
    /// The last failure: it is the command's, all before it were told.
    last: RefCell<Option<anyhow::Error>>,
}

impl Tree {
    /// Removes all that a directory holds; whether it is empty then. An error ends everything.
    async fn empty(&self, path: &[u8], directory: &Attributes) -> anyhow::Result<bool> {
        let (client, caller) = (&self.session.client, &self.session.caller);
        let (mut cookie, mut is_empty) = (0, true);
        loop {
            let read = client.read_directory(caller, directory.inode, cookie, false).await;
            let (entries, end) = match read {
                Ok(read) => read,
                Err(errno) => return self.bear(path, errno),
            };
            let Some(last) = entries.last() else { return Ok(is_empty) };
            cookie = last.cookie;
            let removed = entries.iter().map(|entry| self.entry(path, directory.inode, entry));
            for gone in join_all(removed).await {
                is_empty &= gone?;
            }
            if end {
                return Ok(is_empty);
            }
        }
    }

    /// Removes an entry; whether it is gone.
    async fn entry(&self, path: &[u8], parent: u64, entry: &Listed) -> anyhow::Result<bool> {
        let (client, caller) = (&self.session.client, &self.session.caller);
        let path = join(path, &entry.name);
        let removed = if entry.kind == InodeKind::Directory {
            match client.lookup(caller, parent, &entry.name).await {
                Ok(found) => {
                    // Boxed, since its size would contain itself.
                    if !Box::pin(self.empty(&path, &found)).await? {
                        return Ok(false);
                    }
                    let _permit = self.permits.acquire().await;
                    client.remove_directory(caller, parent, &entry.name).await
                }
                Err(errno) => Err(errno),
            }
        } else {
            let _permit = self.permits.acquire().await;
            client.unlink(caller, parent, &entry.name).await
        };
        match removed {
            // Somebody else was faster.
            Ok(()) | Err(Errno::ENOENT) => Ok(true),
            Err(errno) => self.bear(&path, errno),
        }
    }

    /// Notes that something stays; an error where the same would come again with all that is left.
    fn bear(&self, path: &[u8], errno: Errno) -> anyhow::Result<bool> {
        let error = of(path)(errno);
        let silent = errno == Errno::EIO && self.session.client.unanswered() > 0;
        if silent || matches!(errno, Errno::EROFS | Errno::EPROTO) {
            return Err(error);
        }
        self.failed.set(self.failed.get() + 1);
        if let Some(before) = self.last.borrow_mut().replace(error) {
            complain!("ropewalk: {before:#}");
        }
        Ok(false)
    }
}
