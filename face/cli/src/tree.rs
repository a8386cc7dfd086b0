//! Directory trees: listing one of the host, and comparing it with its copy in a cluster.

use std::cell::{Cell, RefCell};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, bail};
use indicatif::ProgressBar;
use ropewalk_base::task::join_all;
use ropewalk_client::{Attributes, Caller, Client, Errno, InodeKind, OpenOptions, Timestamp};

use crate::stop::Stop;

/// An entry of a tree, by its path below the root of the tree.
#[derive(Debug, Clone)]
pub struct Entry {
    pub path: PathBuf,
    pub kind: InodeKind,
    pub bytes: u64,
}

/// Files, directories and links of a tree, parents before their children.
pub fn list(root: &Path) -> anyhow::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut left = vec![PathBuf::new()];
    while let Some(directory) = left.pop() {
        let path = root.join(&directory);
        let names =
            fs::read_dir(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut names = names.collect::<Result<Vec<_>, _>>()?;
        names.sort_by_key(fs::DirEntry::file_name);
        for name in names {
            let path = directory.join(name.file_name());
            let meta = name.metadata()?;
            let kind = if meta.is_dir() {
                left.push(path.clone());
                InodeKind::Directory
            } else if meta.is_symlink() {
                InodeKind::Symlink
            } else if meta.is_file() {
                InodeKind::File
            } else {
                continue;
            };
            entries.push(Entry { path, kind, bytes: if meta.is_file() { meta.len() } else { 0 } });
        }
    }
    // Parents first: a path sorts before the paths that begin with it.
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(entries)
}

/// What a phase moved.
#[derive(Debug, Clone, Copy, Default)]
pub struct Moved {
    pub files: u64,
    pub bytes: u64,
}

/// What these entries are together.
pub fn moved(entries: &[Entry]) -> Moved {
    let files = entries.iter().filter(|entry| entry.kind == InodeKind::File);
    Moved { files: files.clone().count() as u64, bytes: files.map(|entry| entry.bytes).sum() }
}

/// Files that are compared at a time.
const AT_ONCE: usize = 16;
/// Bytes of one read.
const CHUNK_BYTES: usize = 1 << 20;

/// A comparison of a tree under way.
pub struct Work {
    pub client: Client,
    pub caller: Caller,
    pub root: PathBuf,
    pub entries: Vec<Entry>,
    pub bar: ProgressBar,
    pub stop: Stop,
}

impl Work {
    /// Runs `act` over all entries `AT_ONCE` at a time, until one fails.
    async fn each<F>(self: &Rc<Self>, act: impl Fn(Rc<Work>, usize) -> F) -> anyhow::Result<()>
    where
        F: Future<Output = anyhow::Result<()>>,
    {
        let next = Cell::new(0);
        let failed = RefCell::new(None);
        join_all((0..AT_ONCE).map(|_| async {
            while failed.borrow().is_none() && !self.stop.is_asked() {
                let index = next.get();
                let Some(entry) = self.entries.get(index) else { return };
                next.set(index + 1);
                if let Err(error) = act(self.clone(), index).await {
                    let path = entry.path.display().to_string();
                    *failed.borrow_mut() = Some(error.context(path));
                }
            }
        }))
        .await;
        if self.stop.is_asked() {
            bail!("interrupted");
        }
        failed.into_inner().map_or(Ok(()), Err)
    }

    async fn find(&self, path: &Path) -> anyhow::Result<Attributes> {
        let found = self.client.resolve(&self.caller, path.as_os_str().as_bytes(), false);
        found.await.map_err(of(path))
    }

    /// Compares every byte and attribute of the cluster's tree with the source.
    pub async fn verify(self: &Rc<Self>) -> anyhow::Result<Moved> {
        self.each(|work, index| async move { work.verify_one(index).await }).await?;
        Ok(moved(&self.entries))
    }

    async fn verify_one(&self, index: usize) -> anyhow::Result<()> {
        let entry = &self.entries[index];
        let source = self.root.join(&entry.path);
        let meta = fs::symlink_metadata(&source)?;
        let found = self.find(&entry.path).await?;
        if found.kind != entry.kind {
            bail!("is a {:?} in the cluster, a {:?} in the source", found.kind, entry.kind);
        }
        if entry.kind == InodeKind::Symlink {
            let target = self.client.read_link(found.inode).await.map_err(errno)?;
            if target != fs::read_link(&source)?.as_os_str().as_bytes() {
                bail!("the link's target differs");
            }
            return Ok(());
        }
        let wanted = (meta.mode() as u16 & 0o7777, time(meta.mtime(), meta.mtime_nsec()));
        if (found.mode, found.modified) != wanted {
            bail!("mode and time are {:?}, not {wanted:?}", (found.mode, found.modified));
        }
        if entry.kind == InodeKind::Directory {
            return Ok(());
        }
        if found.size != entry.bytes {
            bail!("has {} bytes, not {}", found.size, entry.bytes);
        }
        let opened = self.client.open(&self.caller, found.inode, OpenOptions::READ);
        let file = opened.await.map_err(errno)?;
        let from = fs::File::open(&source)?;
        let mut expected = vec![0; CHUNK_BYTES];
        let mut offset = 0;
        while offset < entry.bytes {
            let len = (entry.bytes - offset).min(CHUNK_BYTES as u64) as usize;
            let buffer = self.client.buffer(len).await;
            let (buffer, read) = self.client.read(&file, offset, buffer).await.map_err(errno)?;
            from.read_exact_at(&mut expected[..len], offset)?;
            if read != len || buffer[..len] != expected[..len] {
                let at = buffer.iter().zip(&expected).position(|(a, b)| a != b);
                bail!("bytes differ from offset {}", offset + at.unwrap_or(read) as u64);
            }
            offset += len as u64;
            self.bar.inc(len as u64);
        }
        Ok(())
    }
}

fn time(seconds: i64, nanos: i64) -> Timestamp {
    Timestamp { seconds, nanos: nanos as u32 }
}

fn errno(errno: Errno) -> anyhow::Error {
    anyhow::anyhow!("{errno}")
}

fn of(path: &Path) -> impl Fn(Errno) -> anyhow::Error + '_ {
    move |errno| anyhow::anyhow!("{}: {errno}", path.display())
}
