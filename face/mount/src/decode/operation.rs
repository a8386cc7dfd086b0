//! Operations of requests, as borrowed, typed values.

use std::time::Duration;

use crate::abi::requests::{CopyFileRangeIn, FileLock, ForgetOne, IoctlIn};

/// The attributes that SETATTR changes; `None` leaves a field as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttributes {
    /// The open file through which it is asked, if there is one.
    pub handle: Option<u64>,
    /// The lock owner, for file systems with mandatory locks.
    pub lock_owner: Option<u64>,
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    /// Seconds and nanoseconds.
    pub ctime: Option<Timestamp>,
    /// Clear suid, and sgid where the group may execute: the caller truncates or changes owners.
    pub kill_privileges: bool,
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The file system's own clock.
    Now,
    At(Timestamp),
}

/// A moment since 1970-01-01 00:00 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timestamp {
    pub seconds: i64,
    /// Below 10^9.
    pub nanos: u32,
}

impl Timestamp {
    /// From nanoseconds since 1970.
    pub fn from_unix_nanos(nanos: i64) -> Timestamp {
        let seconds = nanos.div_euclid(1_000_000_000);
        Timestamp { seconds, nanos: nanos.rem_euclid(1_000_000_000) as u32 }
    }

    /// From a duration since 1970.
    pub fn since_epoch(duration: Duration) -> Timestamp {
        let seconds = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
        Timestamp { seconds, nanos: duration.subsec_nanos() }
    }
}

/// A byte-range or whole-file lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lock {
    /// First byte.
    pub start: u64,
    /// Last byte, `i64::MAX` for the end of all files.
    pub end: u64,
    pub kind: LockKind,
    /// The process that holds it (for GETLK replies).
    pub pid: u32,
}

/// The kind of a lock: its access, or its release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    Read,
    Write,
    Unlock,
}

impl Lock {
    pub(crate) fn from_abi(lock: FileLock) -> Option<Lock> {
        let kind = match i32::try_from(lock.kind).ok()? {
            libc::F_RDLCK => LockKind::Read,
            libc::F_WRLCK => LockKind::Write,
            libc::F_UNLCK => LockKind::Unlock,
            _ => return None,
        };
        Some(Lock { start: lock.start, end: lock.end, kind, pid: lock.pid })
    }

    pub(crate) fn to_abi(self) -> FileLock {
        let kind = match self.kind {
            LockKind::Read => libc::F_RDLCK,
            LockKind::Write => libc::F_WRLCK,
            LockKind::Unlock => libc::F_UNLCK,
        };
        FileLock { start: self.start, end: self.end, kind: kind as u32, pid: self.pid }
    }
}

/// The fixed part of a WRITE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteHeader {
    pub handle: u64,
    /// First byte in the file.
    pub offset: u64,
    /// Bytes of data.
    pub size: u32,
    /// Flags of the open file (`O_APPEND`, `O_DIRECT`, ...).
    pub open_flags: u32,
    pub lock_owner: Option<u64>,
    /// Written back from a memory map: the handle and the caller are the kernel's guesses.
    pub from_page_cache: bool,
    /// Clear suid, and sgid where the group may execute.
    pub kill_privileges: bool,
}

/// The fixed part of a READ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadHeader {
    pub handle: u64,
    /// First byte in the file.
    pub offset: u64,
    /// Bytes asked for. Fewer mean the end of the file.
    pub size: u32,
    /// Flags of the open file.
    pub open_flags: u32,
    pub lock_owner: Option<u64>,
}

/// A RELEASE or RELEASEDIR: the last reference to a handle is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release {
    pub handle: u64,
    pub open_flags: u32,
    pub lock_owner: u64,
    pub flush: bool,
    /// The BSD lock of this handle goes away with it.
    pub unlock_flock: bool,
}

/// An IOCTL with the bytes it hands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ioctl<'a> {
    pub handle: u64,
    pub command: u32,
    pub argument: u64,
    pub directory: bool,
    pub input: &'a [u8],
    /// Most bytes that the reply may carry.
    pub output_bytes_max: u32,
}

impl<'a> Ioctl<'a> {
    pub(super) fn new(header: IoctlIn, input: &'a [u8]) -> Ioctl<'a> {
        Ioctl {
            handle: header.handle,
            command: header.command,
            argument: header.argument,
            directory: header.flags & crate::abi::flags::misc::IOCTL_DIRECTORY != 0,
            input,
            output_bytes_max: header.out_size,
        }
    }
}

/// A POLL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PollIn {
    pub handle: u64,
    /// The poll handle to wake with `Notifier::poll_wakeup`, if the caller is about to sleep.
    pub wake: Option<u64>,
    /// `POLLIN`, ... that the caller is interested in.
    pub events: u32,
}

/// The kernel's offer in INIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Init {
    pub major: u32,
    pub minor: u32,
    /// Bytes.
    pub max_readahead: u32,
    /// Both words of flags in one.
    pub flags: u64,
}

/// The arguments of SETXATTR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetXattr<'a> {
    pub name: &'a [u8],
    pub value: &'a [u8],
    /// `XATTR_CREATE`, `XATTR_REPLACE`.
    pub flags: u32,
    /// The caller loses the right to keep sgid by setting this access ACL.
    pub kill_sgid: bool,
}

/// A request's kind with its arguments. Names hold neither NUL nor slash and are not empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        lookups: u64,
    },
    BatchForget(Forgets<'a>),
    GetAttributes {
        handle: Option<u64>,
    },
    SetAttributes(SetAttributes),
    ReadLink,
    SymbolicLink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MakeNode {
        name: &'a [u8],
        mode: u32,
        device: u32,
        umask: u32,
    },
    MakeDirectory {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    RemoveDirectory {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        new_parent: u64,
        new_name: &'a [u8],
        flags: u32,
    },
    Link {
        old_node: u64,
        new_name: &'a [u8],
    },
    Open {
        flags: u32,
        kill_privileges: bool,
    },
    Read(ReadHeader),
    Write {
        header: WriteHeader,
        data: &'a [u8],
    },
    StatFs,
    Release(Release),
    Fsync {
        handle: u64,
        data_only: bool,
    },
    SetXattr(SetXattr<'a>),
    GetXattr {
        name: &'a [u8],
        size: u32,
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    Flush {
        handle: u64,
        lock_owner: u64,
    },
    Init(Init),
    OpenDirectory {
        flags: u32,
    },
    ReadDirectory {
        header: ReadHeader,
        plus: bool,
    },
    ReleaseDirectory(Release),
    FsyncDirectory {
        handle: u64,
        data_only: bool,
    },
    GetLock {
        handle: u64,
        owner: u64,
        lock: Lock,
    },
    SetLock {
        handle: u64,
        owner: u64,
        lock: Lock,
        flock: bool,
        wait: bool,
    },
    Access {
        mask: u32,
    },
    Create {
        name: &'a [u8],
        flags: u32,
        mode: u32,
        umask: u32,
        kill_privileges: bool,
    },
    TemporaryFile {
        flags: u32,
        mode: u32,
        umask: u32,
    },
    Interrupt {
        unique: u64,
    },
    Destroy,
    Ioctl(Ioctl<'a>),
    Poll(PollIn),
    Fallocate {
        handle: u64,
        offset: u64,
        length: u64,
        mode: u32,
    },
    Seek {
        handle: u64,
        offset: u64,
        whence: u32,
    },
    CopyFileRange {
        arguments: CopyFileRangeIn,
        wide_reply: bool,
    },
    SyncFs,
    Statx {
        handle: Option<u64>,
        flags: u32,
        mask: u32,
    },
    /// An opcode that exists, but is never answered here with anything but ENOSYS.
    Unserved,
}

/// The list of a BATCH_FORGET.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forgets<'a> {
    pub(super) bytes: &'a [u8],
}

impl<'a> Forgets<'a> {
    /// Node and number of lookups of each.
    pub fn iter(self) -> impl Iterator<Item = (u64, u64)> + 'a {
        self.bytes.chunks_exact(size_of::<ForgetOne>()).filter_map(|chunk| {
            let one = <ForgetOne as zerocopy::FromBytes>::read_from_bytes(chunk).ok()?;
            Some((one.node, one.lookups))
        })
    }
}
