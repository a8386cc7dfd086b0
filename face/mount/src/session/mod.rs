//! Mounting and unmounting.
//!
//! A process that has the right mounts by system call; a plain user mounts through the set-uid helper
//! `fusermount3`. Both ways end with a descriptor of /dev/fuse on which the first request (INIT) waits.
//!
//! Invariants: a mount is never made over another FUSE mount, nor over files that it would hide,
//! unless that is asked for; nothing here waits for a file system that does not answer; a mount
//! that was made here and is not ours any more is not unmounted.
//!
//! It must not know requests or the loop.

mod helper;
mod options;
mod table;

pub use options::{AllowOther, Method, MountOptions};

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno as Os;
use rustix::mount::UnmountFlags;

const DEVICE: &str = "/dev/fuse";
/// The time that a mount may take to say whether it is alive.
const PROBE: Duration = Duration::from_secs(1);
/// Most dead mounts on top of each other that are cleared in one call.
const DEAD_MAX: usize = 16;

/// The reason that there is no mount.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error("mount point {0} does not exist: create the directory first")]
    NotFound(PathBuf),
    #[error("mount point {0} is not a directory: give a directory")]
    NotDirectory(PathBuf),
    #[error(
        "mount point {0} is not empty, and a mount would hide its files: give an empty directory"
    )]
    NotEmpty(PathBuf),
    #[error("{0} is a FUSE mount already: unmount it first, or mount elsewhere")]
    AlreadyMounted(PathBuf),
    #[error(
        "{0} is a dead mount, whose daemon is gone (\"Transport endpoint is not connected\"): clear \
         it with `umount -l {path}` or `fusermount3 -uz {path}`",
        path = .0.display()
    )]
    DeadMount(PathBuf),
    #[error(
        "there is no /dev/fuse: load the kernel's fuse module, or give the container the device \
         (--device /dev/fuse)"
    )]
    NoDevice,
    #[error(
        "this user may not open /dev/fuse: root opens it to all by 'chmod 666 /dev/fuse', as most \
         distributions have it"
    )]
    ClosedDevice,
    #[error(
        "only root may mount by system call ({cause}), and fusermount3, which mounts for other \
         users, is missing: run as root, or install the package fuse3"
    )]
    NoRights { cause: String },
    #[error(
        "{0} is another mount here than in the process that serves it: run this command in the mount \
         namespace of that process"
    )]
    Elsewhere(PathBuf),
    #[error(
        "the state of the mount on {0} that its process handed over cannot be used: run the version of \
         Ropewalk that serves it"
    )]
    Unusable(PathBuf),
    #[error("{helper} did not mount {path}: {message}")]
    Helper { helper: PathBuf, path: PathBuf, message: String },
    #[error("mount option {0:?} cannot be passed on: it holds a NUL or a newline")]
    BadOption(String),
    #[error("cannot {action} {path}: {cause}")]
    System { action: &'static str, path: PathBuf, cause: std::io::Error },
}

/// The reason that a mount is still there.
#[derive(Debug, thiserror::Error)]
pub enum UnmountError {
    #[error("{0} is busy: close its files and leave it, or unmount with force")]
    Busy(PathBuf),
    #[error("this program has mounted nothing on {0}")]
    NotMounted(PathBuf),
    #[error(
        "{0} is in use by a live process, and only a dead mount can be removed: unmount it instead"
    )]
    Alive(PathBuf),
    #[error(
        "{0} does not answer, but its process may be alive, and only a dead mount can be removed"
    )]
    Silent(PathBuf),
    #[error("this user may not unmount {0}: run the command as root or as the user who mounted it")]
    NoRights(PathBuf),
    #[error("cannot unmount {path}: {message}")]
    Other { path: PathBuf, message: String },
}

/// A mount. Dropping it unmounts, lazily, even if files are still open.
pub struct Mount {
    device: OwnedFd,
    unmounter: Unmounter,
    mounted: bool,
}

/// Unmounts; may go to another thread than the loop's, which it has to: a clean unmount writes
/// dirty pages back and waits for the loop to serve that.
#[derive(Debug, Clone)]
pub struct Unmounter {
    path: PathBuf,
    /// The kernel's number of the mount.
    id: Option<u64>,
    /// The helper that made it, if one did.
    helper: Option<PathBuf>,
}

impl Mount {
    /// Mounts on the directory `path`. Returns before the kernel's first request is answered: until a loop
    /// runs, every process that touches the mount waits.
    pub fn new(path: &Path, options: &MountOptions) -> Result<Mount, MountError> {
        let path = check_mount_point(path, options)?;
        let (device, helper) = match options.method {
            Method::Helper => by_helper(&path, options, "as asked for".into())?,
            Method::SystemCall => (by_system_call(&path, options)?, None),
            Method::Any => match by_system_call(&path, options) {
                Ok(device) => (device, None),
                Err(MountError::System { cause, .. })
                    if cause.kind() == std::io::ErrorKind::PermissionDenied =>
                {
                    by_helper(&path, options, cause.to_string())?
                }
                Err(error) => return Err(error),
            },
        };
        let id = table::fuse_mount_at(&path).map(|mount| mount.id);
        Ok(Mount { device, unmounter: Unmounter { path, id, helper }, mounted: true })
    }

    /// A mount that another process made and hands over with its descriptor. It stays when this is dropped, before
    /// [`Mount::own`].
    pub fn adopt(device: OwnedFd, path: &Path, number: u64) -> Result<Mount, MountError> {
        let path = path.to_path_buf();
        match table::fuse_mount_at(&path) {
            Some(mount) if mount.id == number || number == 0 => {
                let unmounter = Unmounter { path, id: Some(mount.id), helper: None };
                Ok(Mount { device, unmounter, mounted: false })
            }
            _ => Err(MountError::Elsewhere(path)),
        }
    }

    /// The mount ends with this process from now on.
    pub fn own(&mut self) {
        self.mounted = true;
    }

    /// The mount is another process's from now on.
    pub fn leave(&mut self) {
        self.mounted = false;
    }

    /// The mount point, as an absolute path without links.
    pub fn path(&self) -> &Path {
        &self.unmounter.path
    }

    /// The first descriptor, on which INIT comes.
    pub fn device(&self) -> Result<OwnedFd, MountError> {
        self.device.try_clone().map_err(|cause| self.failed("duplicate the descriptor of", cause))
    }

    /// A further descriptor of the same mount, with a queue of its own for replies: for a loop on
    /// another thread.
    pub fn clone_device(&self) -> Result<OwnedFd, MountError> {
        let device = open_device()?;
        crate::device_ioctl::clone_into(&device, self.device.as_raw_fd())
            .map_err(|cause| self.failed("clone the descriptor of", cause.into()))?;
        Ok(device)
    }

    fn failed(&self, action: &'static str, cause: std::io::Error) -> MountError {
        MountError::System { action, path: self.path().to_owned(), cause }
    }

    /// A handle that unmounts it from another thread.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Unmounts. Not on the loop's thread, unless the loop is gone. A mount that is busy stays.
    pub fn unmount(mut self) -> Result<(), (Mount, UnmountError)> {
        match self.unmounter.unmount() {
            Ok(()) | Err(UnmountError::NotMounted(_)) => {
                self.mounted = false;
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if !self.mounted {
            return;
        }
        let unmounter = self.unmounter();
        let (done, wait) = mpsc::channel();
        let thread = std::thread::Builder::new().name("mount-unmount".into());
        let started = thread.spawn(move || {
            let _ = done.send(unmounter.unmount_lazily());
        });
        if started.is_ok() {
            // Not for ever: the loop may be of this very thread, and the unmount may want it.
            let _ = wait.recv_timeout(PROBE);
        }
    }
}

impl Unmounter {
    /// For another process than the one that mounted: it is told the path, and the number as
    /// [`Unmounter::number`] gave it.
    pub fn of(path: PathBuf, number: u64) -> Unmounter {
        Unmounter { path, id: Some(number).filter(|id| *id != 0), helper: None }
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The kernel's number of the mount; 0 where it is not known.
    pub fn number(&self) -> u64 {
        self.id.unwrap_or(0)
    }

    /// Unmounts where nothing is open any more.
    pub fn unmount(&self) -> Result<(), UnmountError> {
        self.run(UnmountFlags::empty())
    }

    /// Takes the mount out of the tree at once. Open files stay usable as long as a loop serves them; the loop
    /// ends when they are closed.
    pub fn unmount_lazily(&self) -> Result<(), UnmountError> {
        self.run(UnmountFlags::DETACH)
    }

    /// As `unmount_lazily`, and cuts off everything that is in work or open: a waiting caller gets
    /// ECONNABORTED, and the loop ends. The last resort against a file system that hangs, from any process;
    /// only for users that may unmount by system call.
    pub fn abort(&self) -> Result<(), UnmountError> {
        self.run(UnmountFlags::DETACH | UnmountFlags::FORCE)
    }

    fn run(&self, flags: UnmountFlags) -> Result<(), UnmountError> {
        let found = table::fuse_mount_at(&self.path);
        let ours = found.is_some_and(|mount| self.id.is_none_or(|id| id == mount.id));
        if !ours {
            return Err(UnmountError::NotMounted(self.path.clone()));
        }
        match rustix::mount::unmount(&*self.path, flags | UnmountFlags::NOFOLLOW) {
            Ok(()) => Ok(()),
            Err(Os::BUSY) => Err(UnmountError::Busy(self.path.clone())),
            Err(Os::INVAL | Os::NOENT) => Err(UnmountError::NotMounted(self.path.clone())),
            Err(Os::PERM | Os::ACCESS) if flags.contains(UnmountFlags::FORCE) => {
                Err(UnmountError::NoRights(self.path.clone()))
            }
            Err(Os::PERM | Os::ACCESS) => self.run_helper(flags.contains(UnmountFlags::DETACH)),
            Err(error) => {
                let message = error.to_string();
                Err(UnmountError::Other { path: self.path.clone(), message })
            }
        }
    }

    fn run_helper(&self, lazy: bool) -> Result<(), UnmountError> {
        let helper = self.helper.clone().or_else(helper::find);
        let Some(helper) = helper else { return Err(UnmountError::NoRights(self.path.clone())) };
        helper::unmount(&helper, &self.path, lazy)
    }
}

/// Clears what a daemon that was killed left behind: mounts on `path` that answer "Transport
/// endpoint is not connected". Returns how many there were; an error where `path` is alive.
pub fn clear_dead_mount(path: &Path) -> Result<usize, UnmountError> {
    let failed = |path: &Path, message: String| UnmountError::Other { path: path.into(), message };
    let path = absolute(path).map_err(|error| failed(path, error.to_string()))?;
    let mut cleared = 0;
    while let Some(mount) = table::fuse_mount_at(&path) {
        match probe(&path) {
            Life::Dead => {}
            _ if cleared > 0 => break,
            Life::Silent => return Err(UnmountError::Silent(path)),
            Life::Alive => return Err(UnmountError::Alive(path)),
        }
        if cleared == DEAD_MAX {
            return Err(failed(
                &path,
                format!("{DEAD_MAX} dead mounts were cleared, more are left"),
            ));
        }
        let id = Some(mount.id);
        Unmounter { path: path.clone(), id, helper: None }.unmount_lazily()?;
        cleared += 1;
    }
    if cleared == 0 {
        return Err(UnmountError::NotMounted(path));
    }
    Ok(cleared)
}

/// The kernel's number of the device of the FUSE mount on `path`, as `MAJOR:MINOR`; the same in all mount namespaces.
/// Touches no mount.
pub fn mounted_device(path: &Path) -> std::io::Result<Option<String>> {
    Ok(table::fuse_mount_at(&absolute(path)?).map(|mount| mount.device))
}

/// The FUSE mount on `path`, if there is one: its number, and the user for whom it was made.
pub fn mounted_for(path: &Path) -> std::io::Result<Option<(u64, Option<u32>)>> {
    Ok(table::fuse_mount_at(&absolute(path)?).map(|mount| (mount.id, mount.user)))
}

/// The type of the file system that is mounted on `path`, if there is one: ours is `fuse.ropewalk`. Asks no
/// server that may not answer.
pub fn mounted_kind(path: &Path) -> std::io::Result<Option<String>> {
    Ok(table::kind_at(&absolute(path)?))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Alive,
    Dead,
    /// No answer in time.
    Silent,
}

/// Whether a mount answers. Asks for something that the kernel does not cache, on a thread of its
/// own, since a daemon that hangs would hang us, too.
fn probe(path: &Path) -> Life {
    let (answer, wait) = mpsc::channel();
    let path = path.to_owned();
    let thread = std::thread::Builder::new().name("mount-probe".into());
    let started = thread.spawn(move || {
        let life = match rustix::fs::statfs(&path) {
            // Refused: the daemon and the kernel never agreed on a session, and never will.
            Err(Os::NOTCONN | Os::CONNABORTED | Os::CONNREFUSED) => Life::Dead,
            _ => Life::Alive,
        };
        let _ = answer.send(life);
    });
    match started {
        Ok(_) => wait.recv_timeout(PROBE).unwrap_or(Life::Silent),
        Err(_) => Life::Silent,
    }
}

/// An absolute path without links, also where the last part is a dead mount.
fn absolute(path: &Path) -> std::io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => {
            let plain = std::fs::canonicalize(parent)?.join(name);
            if table::fuse_mount_at(&plain).is_some() {
                // Not touched: it may be dead, or hang.
                return Ok(plain);
            }
            std::fs::canonicalize(plain)
        }
        _ => Ok(path),
    }
}

/// Whether a mount could be made there: an empty directory where nothing is mounted. Its absolute path.
pub fn check_mount_point(path: &Path, options: &MountOptions) -> Result<PathBuf, MountError> {
    let named = path.to_owned();
    let path = match absolute(path) {
        Ok(path) => path,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(MountError::NotFound(named));
        }
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNREFUSED)) => {
            return Err(MountError::DeadMount(named));
        }
        Err(cause) => {
            return Err(MountError::System { action: "reach mount point", path: named, cause });
        }
    };
    if table::fuse_mount_at(&path).is_some() {
        return Err(match probe(&path) {
            Life::Dead => MountError::DeadMount(path),
            Life::Alive | Life::Silent => MountError::AlreadyMounted(path),
        });
    }
    let failed =
        |cause| MountError::System { action: "look at mount point", path: named.clone(), cause };
    if !std::fs::metadata(&path).map_err(failed)?.is_dir() {
        return Err(MountError::NotDirectory(path));
    }
    let occupied =
        !options.hide_files && std::fs::read_dir(&path).map_err(failed)?.next().is_some();
    if occupied {
        return Err(MountError::NotEmpty(path));
    }
    // The helper opens it as the user who calls it.
    open_device()?;
    Ok(path)
}

fn open_device() -> Result<OwnedFd, MountError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::fs::open(DEVICE, flags, Mode::empty()).map_err(|error| match error {
        Os::NOENT | Os::NODEV | Os::NXIO => MountError::NoDevice,
        Os::ACCESS | Os::PERM => MountError::ClosedDevice,
        error => MountError::System { action: "open", path: DEVICE.into(), cause: error.into() },
    })
}

fn by_system_call(path: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let device = open_device()?;
    let failed = |cause| MountError::System { action: "mount on", path: path.to_owned(), cause };
    let mode = std::fs::metadata(path).map_err(failed)?.mode();
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let data = options.kernel_data(device.as_raw_fd(), mode, uid.as_raw(), gid.as_raw());
    let bad = |_| MountError::BadOption(data.clone());
    let data = CString::new(data.clone()).map_err(bad)?;
    let kind = options.kind()?;
    let target = CString::new(path.as_os_str().as_bytes())
        .map_err(|_| MountError::BadOption(path.display().to_string()))?;
    rustix::mount::mount(&*options.name, &*target, &*kind, options.flags(), &*data)
        .map_err(|error| failed(error.into()))?;
    Ok(device)
}

fn by_helper(
    path: &Path,
    options: &MountOptions,
    cause: String,
) -> Result<(OwnedFd, Option<PathBuf>), MountError> {
    let helper = helper::find().ok_or(MountError::NoRights { cause })?;
    let device = helper::mount(&helper, path, options)?;
    Ok((device, Some(helper)))
}
