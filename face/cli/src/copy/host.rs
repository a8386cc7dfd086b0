//! The host's files as an end of a copy. What may take long runs beside the executor.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow};
use ropewalk_base::pool::PoolBuffer;
use ropewalk_base::world::World;
use ropewalk_client::{InodeKind, Timestamp};
use rustix::fs::{AtFlags, CWD, FileType, Mode, SeekFrom, Timespec, Timestamps};

use super::end::{Dress, End, Made, Meta};

/// The files of this host.
pub struct Host {
    world: World,
}

/// An open file and its path, for what goes wrong later.
pub struct HostFile {
    file: Arc<fs::File>,
    path: PathBuf,
}

fn place(path: &[u8]) -> &Path {
    // An empty path is the directory in which the command runs.
    Path::new(OsStr::from_bytes(if path.is_empty() { b"." } else { path }))
}

fn kind(meta: &fs::Metadata) -> InodeKind {
    let kind = meta.file_type();
    match kind {
        _ if kind.is_dir() => InodeKind::Directory,
        _ if kind.is_symlink() => InodeKind::Symlink,
        _ if kind.is_fifo() => InodeKind::Fifo,
        _ if kind.is_socket() => InodeKind::Socket,
        _ if kind.is_char_device() => InodeKind::CharacterDevice,
        _ if kind.is_block_device() => InodeKind::BlockDevice,
        _ => InodeKind::File,
    }
}

fn of(meta: &fs::Metadata) -> Meta {
    let time = |seconds, nanos: i64| Timestamp { seconds, nanos: nanos as u32 };
    Meta {
        kind: kind(meta),
        mode: (meta.mode() & 0o7777) as u16,
        user: meta.uid(),
        group: meta.gid(),
        size: meta.len(),
        sparse: meta.blocks() * 512 < meta.len(),
        device: meta.rdev() as u32,
        accessed: time(meta.atime(), meta.atime_nsec()),
        modified: time(meta.mtime(), meta.mtime_nsec()),
        inode: meta.ino(),
    }
}

impl Host {
    pub fn new(world: &World) -> Host {
        Host { world: world.clone() }
    }

    /// Runs blocking work on a file beside the executor.
    async fn beside<T: Send + 'static>(
        &self,
        file: &HostFile,
        work: impl FnOnce(&fs::File) -> std::io::Result<T> + Send + 'static,
    ) -> anyhow::Result<T> {
        let shared = file.file.clone();
        let done = self.world.offload(move || work(&shared)).await;
        let done = done.context("the thread for files ended")?;
        done.with_context(|| file.path.display().to_string())
    }
}

impl End for Host {
    type File = HostFile;

    fn shown(&self, path: &[u8]) -> String {
        place(path).display().to_string()
    }

    async fn look(&self, path: &[u8], follow: bool) -> anyhow::Result<Option<Meta>> {
        let path = place(path);
        let found = if follow { fs::metadata(path) } else { fs::symlink_metadata(path) };
        match found {
            Ok(meta) => Ok(Some(of(&meta))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    }

    async fn list(&self, path: &[u8]) -> anyhow::Result<Vec<(Vec<u8>, Meta)>> {
        let path = place(path);
        let read = || -> std::io::Result<Vec<(Vec<u8>, Meta)>> {
            let mut entries = Vec::new();
            for entry in fs::read_dir(path)? {
                let entry = entry?;
                entries.push((entry.file_name().as_bytes().to_vec(), of(&entry.metadata()?)));
            }
            Ok(entries)
        };
        read().with_context(|| path.display().to_string())
    }

    async fn read_link(&self, path: &[u8]) -> anyhow::Result<Vec<u8>> {
        let target = fs::read_link(place(path));
        let target = target.with_context(|| place(path).display().to_string())?;
        Ok(target.as_os_str().as_bytes().to_vec())
    }

    async fn open(&self, path: &[u8]) -> anyhow::Result<HostFile> {
        let path = place(path).to_path_buf();
        let file = fs::File::open(&path).with_context(|| path.display().to_string())?;
        Ok(HostFile { file: Arc::new(file), path })
    }

    async fn create(&self, path: &[u8], mode: u16) -> anyhow::Result<HostFile> {
        let path = place(path).to_path_buf();
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(u32::from(mode));
        let file = options.open(&path).with_context(|| path.display().to_string())?;
        Ok(HostFile { file: Arc::new(file), path })
    }

    async fn make(&self, path: &[u8], made: Made<'_>, mode: u16) -> anyhow::Result<()> {
        let path = place(path);
        let mode = Mode::from_raw_mode(u32::from(mode));
        let outcome = match made {
            Made::Directory => rustix::fs::mkdir(path, mode),
            Made::Link(target) => rustix::fs::symlink(OsStr::from_bytes(target), path),
            Made::Special(kind, device) => {
                let kind = match kind {
                    InodeKind::Socket => FileType::Socket,
                    InodeKind::CharacterDevice => FileType::CharacterDevice,
                    InodeKind::BlockDevice => FileType::BlockDevice,
                    _ => FileType::Fifo,
                };
                rustix::fs::mknodat(CWD, path, kind, mode, u64::from(device))
            }
        };
        outcome.map_err(|error| anyhow!("{}: {}", path.display(), std::io::Error::from(error)))
    }

    async fn data(&self, file: &HostFile, offset: u64) -> anyhow::Result<Option<Range<u64>>> {
        self.beside(file, move |file| {
            let seek = |to| rustix::fs::seek(file, to);
            match seek(SeekFrom::Data(offset)) {
                Ok(begin) => Ok(Some(begin..seek(SeekFrom::Hole(begin))?)),
                Err(rustix::io::Errno::NXIO) => Ok(None),
                Err(error) => Err(error.into()),
            }
        })
        .await
    }

    async fn read(
        &self,
        file: &HostFile,
        offset: u64,
        mut buffer: PoolBuffer,
    ) -> anyhow::Result<(PoolBuffer, usize)> {
        self.beside(file, move |file| {
            let mut filled = 0;
            while filled < buffer.len() {
                match file.read_at(&mut buffer[filled..], offset + filled as u64) {
                    Ok(0) => break,
                    Ok(bytes) => filled += bytes,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            Ok((buffer, filled))
        })
        .await
    }

    async fn write(
        &self,
        file: &HostFile,
        offset: u64,
        buffer: PoolBuffer,
        len: usize,
    ) -> anyhow::Result<()> {
        self.beside(file, move |file| file.write_all_at(&buffer[..len], offset)).await
    }

    async fn finish(&self, file: &HostFile, size: u64) -> anyhow::Result<()> {
        self.beside(file, move |file| {
            // Only a hole at its end leaves a file shorter than it shall be.
            if file.metadata()?.len() < size { file.set_len(size) } else { Ok(()) }
        })
        .await
    }

    async fn dress(&self, path: &[u8], kind: InodeKind, dress: Dress) -> anyhow::Result<()> {
        let path = place(path);
        let set = || -> std::io::Result<()> {
            if let Some((user, group)) = dress.owner {
                let give = match kind {
                    InodeKind::Symlink => std::os::unix::fs::lchown,
                    // A file may have been written through a link that was there.
                    _ => std::os::unix::fs::chown,
                };
                match give(path, Some(user), Some(group)) {
                    // Who may not give files away keeps them, as with cp.
                    Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
                    outcome => outcome?,
                }
            }
            if let (Some(mode), true) = (dress.mode, kind != InodeKind::Symlink) {
                fs::set_permissions(path, fs::Permissions::from_mode(u32::from(mode)))?;
            }
            if let Some((accessed, modified)) = dress.times {
                let spec = |time: Timestamp| Timespec {
                    tv_sec: time.seconds,
                    tv_nsec: i64::from(time.nanos),
                };
                let times =
                    Timestamps { last_access: spec(accessed), last_modification: spec(modified) };
                let flags = match kind {
                    InodeKind::Symlink => AtFlags::SYMLINK_NOFOLLOW,
                    _ => AtFlags::empty(),
                };
                rustix::fs::utimensat(CWD, path, &times, flags)?;
            }
            Ok(())
        };
        set().with_context(|| path.display().to_string())
    }
}
