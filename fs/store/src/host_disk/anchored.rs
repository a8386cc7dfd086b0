//! Calls by path, from directories that are held open.
//!
//! A store's directory is held from its claim on. Every path below it is walked from its descriptor, so the
//! server stays with its disk whatever happens to the name: an `umount -l`, a rename, another disk
//! mounted over it.
//!
//! *Rejected:* to compare device and inode of the name with those of the claim. Before each call that is one
//! system call more, with a gap behind it; now and then, it lets syncs on the wrong disk be
//! acknowledged in between; and it ends a server whose disk is well.
//!
//! Invariants
//! * a file of a store is a regular file: nothing else is opened, and no link is followed to one;
//! * no open waits for somebody else;
//! * a directory that is held belongs to root or to the user of this process.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};

use ropewalk_base::disk::{Disk, DiskTimes, File, Kind, Open, Space};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, StatxFlags};
use rustix::io::{Errno, retry_on_intr};

use super::counted::Counted;
use super::{HostFile, SYNCS, named, run_of_kernel};

/// `STATX_MNT_ID_UNIQUE` of linux/stat.h, which libraries do not name yet.
const MOUNT_UNIQUE: u32 = 0x4000;

/// Rights of files and directories that are made here.
const FILE_MODE: Mode = Mode::from_raw_mode(0o600);
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o700);

/// The host's file system, with the directories of stores held open.
#[derive(Debug, Default)]
pub(super) struct Anchored {
    held: RwLock<Vec<Held>>,
    counted: Arc<Counted>,
}

#[derive(Debug)]
struct Held {
    root: PathBuf,
    directory: Arc<OwnedFd>,
}

/// A path as the kernel gets it.
struct Place<'a> {
    /// A directory that is held; `None`: the process's own.
    directory: Option<Arc<OwnedFd>>,
    below: &'a Path,
}

impl Place<'_> {
    fn from(&self) -> BorrowedFd<'_> {
        self.directory.as_ref().map_or(CWD, |directory| directory.as_fd())
    }

    fn kind(&self, flags: AtFlags) -> Result<FileType, Errno> {
        let found = rustix::fs::statat(self.from(), self.below, flags)?;
        Ok(FileType::from_raw_mode(found.st_mode))
    }

    fn open(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::CLOEXEC;
        retry_on_intr(|| rustix::fs::openat(self.from(), self.below, flags, FILE_MODE))
    }

    fn open_directory(&self) -> Result<OwnedFd, Errno> {
        self.open(OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// Opens a regular file.
    fn open_file(&self, open: Open) -> io::Result<OwnedFd> {
        let access = match open {
            Open::Read => OFlags::RDONLY,
            Open::Write => OFlags::RDWR,
            Open::Create => OFlags::RDWR | OFlags::CREATE,
            Open::CreateNew => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
        };
        let opened = self.open(access | OFlags::NOFOLLOW | OFlags::NONBLOCK);
        let file = opened.map_err(|cause| match cause {
            // The error numbers of links, sockets and devices without a driver.
            Errno::LOOP | Errno::NXIO | Errno::NODEV => {
                let kind = self.kind(AtFlags::SYMLINK_NOFOLLOW);
                kind.ok().and_then(unfit).unwrap_or_else(|| cause.into())
            }
            cause => cause.into(),
        })?;
        // One that was just made is regular.
        if open != Open::CreateNew {
            let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
            unfit(kind).map_or(Ok(()), Err)?;
        }
        Ok(file)
    }

    /// Makes a directory whose parent may be missing, too.
    fn make_directory(&self) -> Result<(), Errno> {
        match rustix::fs::mkdirat(self.from(), self.below, DIRECTORY_MODE) {
            Err(Errno::NOENT) => {
                let Some(parent) = self.below.parent().filter(|path| *path != Path::new("")) else {
                    return Err(Errno::NOENT);
                };
                Place { directory: self.directory.clone(), below: parent }.make_directory()?;
                // Somebody else may make it at the same time.
                match rustix::fs::mkdirat(self.from(), self.below, DIRECTORY_MODE) {
                    Err(Errno::EXIST) => self.is_directory(Errno::EXIST),
                    made => made,
                }
            }
            Err(cause) => self.is_directory(cause),
            Ok(()) => Ok(()),
        }
    }

    /// A directory that is there is fine, whyever it cannot be made.
    fn is_directory(&self, cause: Errno) -> Result<(), Errno> {
        match self.kind(AtFlags::empty()) {
            Ok(FileType::Directory) => Ok(()),
            _ => Err(cause),
        }
    }
}

/// Why a name does not stand for a file of a store; `None` where it does.
fn unfit(kind: FileType) -> Option<io::Error> {
    let what = match kind {
        FileType::RegularFile => return None,
        FileType::Directory => return Some(Errno::ISDIR.into()),
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Unknown => "something else",
    };
    Some(io::Error::other(format!("it is {what}, and not a regular file")))
}

fn kind_of(kind: FileType) -> Kind {
    match kind {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        _ => Kind::Other,
    }
}

/// The owner of a store's directory can exchange all files in it.
fn check_owner(directory: &OwnedFd, path: &Path) -> io::Result<()> {
    let (owner, own) = (rustix::fs::fstat(directory)?.st_uid, rustix::process::geteuid());
    if owner == 0 || owner == own.as_raw() {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "it belongs to user {owner}, who can change the data in it at any time: run the server as \
         that user, or change the owner by 'chown -R {} {}'",
        own.as_raw(),
        path.display()
    )))
}

impl Anchored {
    /// The start of a path: the held directory above it, or the held directory itself.
    fn place<'a>(&self, path: &'a Path) -> Place<'a> {
        self.nearest(path, |_| true)
    }

    /// As `place`, for what is done to a name: that of a held directory is not within it.
    fn name<'a>(&self, path: &'a Path) -> Place<'a> {
        self.nearest(path, |below| !below.as_os_str().is_empty())
    }

    fn nearest<'a>(&self, path: &'a Path, fits: impl Fn(&Path) -> bool) -> Place<'a> {
        // Entries are put in and taken out whole.
        let all = self.held.read().unwrap_or_else(PoisonError::into_inner);
        let below = |held: &Held| {
            let below = path.strip_prefix(&held.root).ok().filter(|below| fits(below))?;
            Some((Some(held.directory.clone()), below))
        };
        // Within a store another disk may be mounted, and held.
        let nearest = all.iter().filter_map(below).min_by_key(|(_, below)| below.as_os_str().len());
        let (directory, below) = nearest.unwrap_or((None, path));
        // A directory itself, and the parent of a plain relative name.
        let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
        Place { directory, below }
    }

    /// Opens a directory and checks whose it is; `None` where nothing is there.
    pub fn checked(&self, root: &Path) -> io::Result<Option<OwnedFd>> {
        let directory = match self.place(root).open(OFlags::PATH | OFlags::DIRECTORY) {
            Err(Errno::NOENT) => return Ok(None),
            directory => directory.map_err(|cause| named("open", root, cause.into()))?,
        };
        check_owner(&directory, root).map_err(|cause| named("use", root, cause))?;
        Ok(Some(directory))
    }
}

impl Disk for Anchored {
    fn hold(&self, root: &Path) -> io::Result<()> {
        let forget = |all: &mut Vec<Held>| all.retain(|held| !held.root.starts_with(root));
        forget(&mut self.held.write().unwrap_or_else(PoisonError::into_inner));
        if let Some(directory) = self.checked(root)? {
            let held = Held { root: root.to_path_buf(), directory: Arc::new(directory) };
            self.held.write().unwrap_or_else(PoisonError::into_inner).push(held);
        }
        Ok(())
    }

    fn open(&self, path: &Path, open: Open) -> io::Result<Arc<dyn File>> {
        let file = self.place(path).open_file(open).map_err(|cause| named("open", path, cause))?;
        Ok(Arc::new(HostFile::new(file.into(), path, self.counted.clone())))
    }

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        let made = self.place(path).make_directory();
        made.map_err(|cause| named("make the directory", path, cause.into()))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let place = self.name(path);
        rustix::fs::unlinkat(place.from(), place.below, AtFlags::empty())
            .map_err(|cause| named("remove", path, cause.into()))
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        let place = self.name(path);
        rustix::fs::unlinkat(place.from(), place.below, AtFlags::REMOVEDIR)
            .map_err(|cause| named("remove the directory", path, cause.into()))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (old, new) = (self.name(from), self.name(to));
        rustix::fs::renameat(old.from(), old.below, new.from(), new.below)
            .map_err(|cause| named(&format!("rename {} to", from.display()), to, cause.into()))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<(OsString, Kind)>> {
        let list = || -> Result<Vec<(OsString, Kind)>, Errno> {
            let directory = self.place(path).open_directory()?;
            let mut names = Vec::new();
            for entry in Dir::read_from(&directory)? {
                let entry = entry?;
                let name = entry.file_name().to_bytes();
                if matches!(name, b"." | b"..") {
                    continue;
                }
                let kind = match entry.file_type() {
                    FileType::Unknown => {
                        let flags = AtFlags::SYMLINK_NOFOLLOW;
                        let found = rustix::fs::statat(&directory, entry.file_name(), flags)?;
                        FileType::from_raw_mode(found.st_mode)
                    }
                    kind => kind,
                };
                names.push((OsStr::from_bytes(name).to_os_string(), kind_of(kind)));
            }
            names.sort_by(|a, b| a.0.cmp(&b.0));
            Ok(names)
        };
        list().map_err(|cause| named("list", path, cause.into()))
    }

    fn kind(&self, path: &Path) -> io::Result<Option<Kind>> {
        match self.place(path).kind(AtFlags::SYMLINK_NOFOLLOW) {
            Ok(kind) => Ok(Some(kind_of(kind))),
            Err(Errno::NOENT) => Ok(None),
            Err(cause) => Err(named("look at", path, cause.into())),
        }
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        SYNCS.fetch_add(1, Ordering::Relaxed);
        let opened = self.place(path).open_directory();
        opened
            .and_then(|directory| retry_on_intr(|| rustix::fs::fsync(&directory)))
            .map_err(|cause| named("sync the directory", path, cause.into()))
    }

    fn times(&self) -> Option<DiskTimes> {
        Some(self.counted.times())
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let ask = || {
            let place = self.place(path).open(OFlags::PATH)?;
            Ok((rustix::fs::fstatvfs(&place)?, rustix::fs::fstat(&place)?.st_dev))
        };
        let (space, device) =
            ask().map_err(|cause: Errno| named("ask for the free space of", path, cause.into()))?;
        // The number of the device on this host. Two subvolumes of btrfs have two.
        let identity = run_of_kernel().map(|run| (run ^ (u128::from(device) << 64)).max(1));
        Ok(Space {
            total: space.f_blocks.saturating_mul(space.f_frsize),
            free: space.f_bfree.saturating_mul(space.f_frsize),
            available: space.f_bavail.saturating_mul(space.f_frsize),
            identity: identity.unwrap_or(0),
        })
    }

    /// Unsynced bytes live in the page cache: as long as this run of the kernel, this mount and this
    /// file. Mounts are told apart by a number that the kernel (6.8 and later) gives only once.
    fn memory_of(&self, path: &Path) -> Option<u128> {
        let kernel = run_of_kernel()?;
        let wanted = StatxFlags::INO | StatxFlags::from_bits_retain(MOUNT_UNIQUE);
        let place = self.place(path);
        let found = rustix::fs::statx(place.from(), place.below, AtFlags::empty(), wanted).ok()?;
        let told = found.stx_mask & MOUNT_UNIQUE != 0;
        told.then(|| kernel ^ (u128::from(found.stx_mnt_id) << 64) ^ u128::from(found.stx_ino))
    }
}
