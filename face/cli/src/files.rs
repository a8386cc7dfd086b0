//! Copying and comparing trees through a mount, as any program would.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, bail};
use indicatif::ProgressBar;
use ropewalk_client::InodeKind;

use crate::stop::Stop;
use crate::tree::{Entry, Moved, moved};

/// Threads that copy or compare.
const THREADS: usize = 4;
const CHUNK_BYTES: usize = 1 << 20;

/// A tree on its way through a mount.
pub struct Files<'a> {
    pub source: &'a Path,
    pub target: &'a Path,
    pub entries: &'a [Entry],
    pub bar: ProgressBar,
    pub stop: &'a Stop,
}

impl Files<'_> {
    /// Runs `act` over entries on some threads, until one fails.
    fn each(&self, act: impl Fn(&Entry) -> anyhow::Result<()> + Sync) -> anyhow::Result<()> {
        let next = AtomicUsize::new(0);
        let failed = Mutex::new(None);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    while !self.stop.is_asked() && failed.lock().expect("set whole").is_none() {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let Some(entry) = self.entries.get(index) else { return };
                        if let Err(error) = act(entry) {
                            let error = error.context(entry.path.display().to_string());
                            *failed.lock().expect("set whole") = Some(error);
                        }
                    }
                });
            }
        });
        if self.stop.is_asked() {
            bail!("interrupted");
        }
        failed.into_inner().expect("set whole").map_or(Ok(()), Err)
    }

    fn places(&self, entry: &Entry) -> (PathBuf, PathBuf) {
        (self.source.join(&entry.path), self.target.join(&entry.path))
    }

    /// Copies the tree in, with modes and times.
    pub fn copy_in(&self) -> anyhow::Result<Moved> {
        let directories = || self.entries.iter().filter(|entry| entry.kind == InodeKind::Directory);
        for entry in directories() {
            let (_, to) = self.places(entry);
            fs::create_dir(&to).with_context(|| format!("cannot make {}", to.display()))?;
        }
        self.each(|entry| match entry.kind {
            InodeKind::Directory => Ok(()),
            InodeKind::Symlink => {
                let (from, to) = self.places(entry);
                Ok(std::os::unix::fs::symlink(fs::read_link(from)?, to)?)
            }
            _ => self.copy_file(entry),
        })?;
        // Filling a directory changes its time: times of directories come last.
        for entry in directories().collect::<Vec<_>>().into_iter().rev() {
            let (from, to) = self.places(entry);
            let meta = fs::symlink_metadata(from)?;
            fs::set_permissions(&to, fs::Permissions::from_mode(meta.mode() & 0o7777))?;
            let times = fs::FileTimes::new().set_modified(meta.modified()?);
            fs::File::open(&to)?.set_times(times)?;
        }
        Ok(moved(self.entries))
    }

    fn copy_file(&self, entry: &Entry) -> anyhow::Result<()> {
        use std::io::{Read, Write};
        let (from, to) = self.places(entry);
        let meta = fs::symlink_metadata(&from)?;
        let mut source = fs::File::open(&from)?;
        let mut target = fs::File::create_new(&to)?;
        let mut chunk = vec![0; CHUNK_BYTES.min(entry.bytes as usize + 1)];
        loop {
            let len = source.read(&mut chunk)?;
            if len == 0 {
                break;
            }
            target.write_all(&chunk[..len])?;
            self.bar.inc(len as u64);
        }
        target.set_permissions(fs::Permissions::from_mode(meta.mode() & 0o7777))?;
        target.set_times(fs::FileTimes::new().set_modified(meta.modified()?))?;
        Ok(())
    }

    /// Reads the tree back and compares every byte and attribute.
    pub fn verify(&self) -> anyhow::Result<Moved> {
        self.each(|entry| self.verify_one(entry))?;
        Ok(moved(self.entries))
    }

    fn verify_one(&self, entry: &Entry) -> anyhow::Result<()> {
        use std::io::Read;
        let (from, to) = self.places(entry);
        let (wanted, found) = (fs::symlink_metadata(&from)?, fs::symlink_metadata(&to)?);
        if entry.kind == InodeKind::Symlink {
            let (wanted, found) = (fs::read_link(&from)?, fs::read_link(&to)?);
            if wanted.as_os_str().as_bytes() != found.as_os_str().as_bytes() {
                bail!("the link's target differs");
            }
            return Ok(());
        }
        let attributes = |meta: &fs::Metadata| (meta.mode(), meta.mtime(), meta.mtime_nsec());
        if attributes(&wanted) != attributes(&found) {
            bail!("mode and time are {:?}, not {:?}", attributes(&found), attributes(&wanted));
        }
        if entry.kind == InodeKind::Directory {
            return Ok(());
        }
        if found.len() != wanted.len() {
            bail!("has {} bytes, not {}", found.len(), wanted.len());
        }
        let (mut a, mut b) = (fs::File::open(&from)?, fs::File::open(&to)?);
        let size = CHUNK_BYTES.min(entry.bytes as usize + 1);
        let (mut left, mut right) = (vec![0; size], vec![0; size]);
        let mut offset = 0u64;
        loop {
            let len = a.read(&mut left)?;
            if len == 0 {
                return Ok(());
            }
            b.read_exact(&mut right[..len])?;
            if left[..len] != right[..len] {
                let at = left.iter().zip(&right).position(|(a, b)| a != b).unwrap_or(0);
                bail!("bytes differ from offset {}", offset + at as u64);
            }
            offset += len as u64;
            self.bar.inc(len as u64);
        }
    }
}
