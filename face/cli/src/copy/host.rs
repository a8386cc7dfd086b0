//! The host's files as an end of a copy. All that waits runs beside the executor, so that several
//! files are on their way at a time also where each step is a journey, as on a mount.

use std::ffi::OsStr;
use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use ropewalk_base::pool::PoolBuffer;
use ropewalk_base::text::printable;
use ropewalk_base::world::World;
use ropewalk_client::{InodeKind, Timestamp};
use rustix::fs::{AtFlags, CWD, FileType, Mode, SeekFrom, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

use super::end::{Dress, End, Extended, Listing, Made, Meta};

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
        size: if meta.is_file() { meta.len() } else { 0 },
        sparse: meta.is_file() && meta.blocks() * 512 < meta.len(),
        device: meta.rdev() as u32,
        accessed: time(meta.atime(), meta.atime_nsec()),
        modified: time(meta.mtime(), meta.mtime_nsec()),
        volume: meta.dev(),
        inode: meta.ino(),
        links: meta.nlink() as u32,
    }
}

impl Host {
    pub fn new(world: &World) -> Host {
        Host { world: world.clone() }
    }

    /// Runs blocking work on a path beside the executor.
    async fn at<T: Send + 'static>(
        &self,
        path: &[u8],
        work: impl FnOnce(&Path) -> Result<T> + Send + 'static,
    ) -> anyhow::Result<T> {
        let path = place(path).to_path_buf();
        let done =
            self.world.offload(move || work(&path).with_context(|| path.display().to_string()));
        done.await.context("the thread for files ended")?
    }

    /// Runs blocking work on an open file beside the executor.
    async fn beside<T: Send + 'static>(
        &self,
        file: &HostFile,
        work: impl FnOnce(&fs::File) -> Result<T> + Send + 'static,
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
        printable(place(path).as_os_str().as_bytes(), 4096)
    }

    async fn look(&self, path: &[u8], follow: bool) -> anyhow::Result<Option<Meta>> {
        let look = move |path: &Path| {
            let found = if follow { fs::metadata(path) } else { fs::symlink_metadata(path) };
            match found {
                Ok(meta) => Ok(Some(of(&meta))),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            }
        };
        self.at(path, look).await
    }

    async fn list(&self, path: &[u8]) -> anyhow::Result<Listing> {
        self.at(path, |path| {
            let mut listing = Listing::default();
            for entry in fs::read_dir(path)? {
                let entry = match entry {
                    Ok(entry) => entry,
                    // The entries behind the failed one are unknown.
                    Err(error) => {
                        let name = path.display().to_string();
                        listing.failures.push(anyhow::Error::new(error).context(name));
                        break;
                    }
                };
                match entry.metadata() {
                    Ok(meta) => {
                        listing.entries.push((entry.file_name().as_bytes().to_vec(), of(&meta)));
                    }
                    // Removed since.
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => {
                        let name = entry.path().display().to_string();
                        listing.failures.push(anyhow::Error::new(error).context(name));
                    }
                }
            }
            Ok(listing)
        })
        .await
    }

    async fn read_link(&self, path: &[u8]) -> anyhow::Result<Vec<u8>> {
        self.at(path, |path| Ok(fs::read_link(path)?.as_os_str().as_bytes().to_vec())).await
    }

    async fn open(&self, path: &[u8]) -> anyhow::Result<HostFile> {
        let file = self.at(path, |path| fs::File::open(path)).await?;
        Ok(HostFile { file: Arc::new(file), path: place(path).to_path_buf() })
    }

    async fn create(&self, path: &[u8], mode: u16) -> anyhow::Result<HostFile> {
        let create = move |path: &Path| {
            let mut options = fs::OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(u32::from(mode)).open(path)
        };
        let file = self.at(path, create).await?;
        Ok(HostFile { file: Arc::new(file), path: place(path).to_path_buf() })
    }

    async fn make(&self, path: &[u8], made: Made<'_>, mode: u16) -> anyhow::Result<bool> {
        let mode = Mode::from_raw_mode(u32::from(mode));
        match made {
            Made::Directory => {
                self.at(path, move |path| Ok(rustix::fs::mkdir(path, mode)?)).await?;
            }
            Made::Link(target) => {
                let target = target.to_vec();
                let link =
                    move |path: &Path| Ok(rustix::fs::symlink(OsStr::from_bytes(&target), path)?);
                self.at(path, link).await?;
            }
            Made::Special(kind, device) => {
                let kind = match kind {
                    InodeKind::Socket => FileType::Socket,
                    InodeKind::CharacterDevice => FileType::CharacterDevice,
                    InodeKind::BlockDevice => FileType::BlockDevice,
                    _ => FileType::Fifo,
                };
                let make = move |path: &Path| match rustix::fs::mknodat(
                    CWD,
                    path,
                    kind,
                    mode,
                    u64::from(device),
                ) {
                    Err(Errno::PERM) => Ok(false),
                    made => Ok(made.map(|()| true)?),
                };
                return self.at(path, make).await;
            }
        }
        Ok(true)
    }

    async fn data(&self, file: &HostFile, offset: u64) -> anyhow::Result<Option<Range<u64>>> {
        self.beside(file, move |file| {
            let seek = |to| rustix::fs::seek(file, to);
            match seek(SeekFrom::Data(offset)) {
                Ok(begin) => Ok(Some(begin..seek(SeekFrom::Hole(begin))?)),
                Err(Errno::NXIO) => Ok(None),
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

    async fn link(&self, original: &[u8], path: &[u8]) -> anyhow::Result<bool> {
        let original = place(original).to_path_buf();
        let link = move |path: &Path| match rustix::fs::linkat(
            CWD,
            &original,
            CWD,
            path,
            AtFlags::empty(),
        ) {
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::MLINK | Errno::XDEV) => Ok(false),
            linked => Ok(linked.map(|()| true)?),
        };
        self.at(path, link).await
    }

    async fn extended(&self, path: &[u8]) -> anyhow::Result<Extended> {
        self.at(path, |path| {
            let mut extended = Extended::default();
            let names = match grown(|bytes| rustix::fs::llistxattr(path, bytes)) {
                Err(Errno::OPNOTSUPP) => return Ok(extended),
                names => names?,
            };
            for name in extended.sort(&names) {
                let key = OsStr::from_bytes(&name);
                let value = grown(|bytes| rustix::fs::lgetxattr(path, key, bytes))?;
                extended.users.push((name, value));
            }
            Ok(extended)
        })
        .await
    }

    async fn set_extended(&self, path: &[u8], name: &[u8], value: &[u8]) -> anyhow::Result<bool> {
        let (name, value) = (name.to_vec(), value.to_vec());
        let set = move |path: &Path| {
            let name = OsStr::from_bytes(&name);
            match rustix::fs::lsetxattr(path, name, &value, XattrFlags::empty()) {
                Err(Errno::PERM | Errno::TOOBIG | Errno::OPNOTSUPP | Errno::NOSPC) => Ok(false),
                set => Ok(set.map(|()| true)?),
            }
        };
        self.at(path, set).await
    }

    async fn dress(&self, path: &[u8], kind: InodeKind, dress: Dress) -> anyhow::Result<bool> {
        self.at(path, move |path| put_on(path, kind, dress)).await
    }
}

/// Calls with room for more and more bytes, until they suffice.
fn grown(call: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut bytes = vec![0; 1024];
    loop {
        match call(&mut bytes) {
            Ok(len) => {
                bytes.truncate(len);
                return Ok(bytes);
            }
            // 64 KiB is the kernel's own limit.
            Err(Errno::RANGE) if bytes.len() < 1 << 16 => bytes.resize(bytes.len() * 8, 0),
            Err(error) => return Err(error),
        }
    }
}

fn put_on(path: &Path, kind: InodeKind, dress: Dress) -> Result<bool> {
    let mut given = true;
    // Each change is a request of its own on a mount, and most files are as they should be.
    let found = match kind {
        InodeKind::Symlink => fs::symlink_metadata(path),
        // A file may have been written through a link that was there.
        _ => fs::metadata(path),
    }?;
    let owner = dress.owner.filter(|owner| *owner != (found.uid(), found.gid()));
    if let Some((user, group)) = owner {
        let give = match kind {
            InodeKind::Symlink => std::os::unix::fs::lchown,
            _ => std::os::unix::fs::chown,
        };
        match give(path, Some(user), Some(group)) {
            // A user that may not give files away keeps them, as with cp. Also, such users do not exist in
            // every container.
            Err(error) if refused(&error) => given = false,
            outcome => outcome?,
        }
    }
    if let (Some(mode), true) = (dress.mode.map(u32::from), kind != InodeKind::Symlink) {
        // A change of the owner may have taken bits away.
        if owner.is_some() || found.mode() & 0o7777 != mode {
            fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        }
    }
    if let Some((accessed, modified)) = dress.times {
        let spec =
            |time: Timestamp| Timespec { tv_sec: time.seconds, tv_nsec: i64::from(time.nanos) };
        let times = Timestamps { last_access: spec(accessed), last_modification: spec(modified) };
        let flags = match kind {
            InodeKind::Symlink => AtFlags::SYMLINK_NOFOLLOW,
            _ => AtFlags::empty(),
        };
        rustix::fs::utimensat(CWD, path, &times, flags)?;
    }
    Ok(given)
}

fn refused(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::InvalidInput)
}
