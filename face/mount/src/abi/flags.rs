//! Bits of the protocol, by the field in which they stand.

/// INIT, both directions. Bits 32 and up travel in a second word.
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const FILE_OPS: u64 = 1 << 2;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const SPLICE_WRITE: u64 = 1 << 7;
    pub const SPLICE_MOVE: u64 = 1 << 8;
    pub const SPLICE_READ: u64 = 1 << 9;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const HAS_IOCTL_DIR: u64 = 1 << 11;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const HANDLE_KILLPRIV: u64 = 1 << 19;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const ABORT_ERROR: u64 = 1 << 21;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const MAP_ALIGNMENT: u64 = 1 << 26;
    pub const SUBMOUNTS: u64 = 1 << 27;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    /// The INIT request and reply have a second word of flags.
    pub const INIT_EXT: u64 = 1 << 30;
    pub const SECURITY_CTX: u64 = 1 << 32;
    pub const HAS_INODE_DAX: u64 = 1 << 33;
    pub const CREATE_SUPP_GROUP: u64 = 1 << 34;
    pub const HAS_EXPIRE_ONLY: u64 = 1 << 35;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const PASSTHROUGH: u64 = 1 << 37;
    pub const NO_EXPORT_SUPPORT: u64 = 1 << 38;
    pub const HAS_RESEND: u64 = 1 << 39;
    pub const ALLOW_IDMAP: u64 = 1 << 40;
    pub const OVER_IO_URING: u64 = 1 << 41;
    pub const REQUEST_TIMEOUT: u64 = 1 << 42;
}

/// SETATTR: which fields are to change.
pub mod set {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const HANDLE: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const LOCK_OWNER: u32 = 1 << 9;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// OPEN, OPENDIR and CREATE replies.
pub mod opened {
    /// Bypass the page cache for this open file.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// Keep what the page cache has of this file.
    pub const KEEP_CACHE: u32 = 1 << 1;
    /// The file has no position.
    pub const NONSEEKABLE: u32 = 1 << 2;
    /// Cache the entries of this directory.
    pub const CACHE_DIR: u32 = 1 << 3;
    /// The file is a stream.
    pub const STREAM: u32 = 1 << 4;
    /// Send no FLUSH at close.
    pub const NO_FLUSH: u32 = 1 << 5;
    /// Let several direct writes of one inode run at once.
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// Everything else, small.
pub mod misc {
    /// GETATTR: the handle is valid.
    pub const GETATTR_HANDLE: u32 = 1 << 0;
    /// OPEN and CREATE: clear suid and sgid (the open truncates).
    pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
    /// READ: the lock owner is valid.
    pub const READ_LOCK_OWNER: u32 = 1 << 1;
    /// WRITE: from the page cache; handle and process are guesses.
    pub const WRITE_CACHE: u32 = 1 << 0;
    /// WRITE: the lock owner is valid.
    pub const WRITE_LOCK_OWNER: u32 = 1 << 1;
    /// WRITE: clear suid and sgid.
    pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
    /// RELEASE: flush first.
    pub const RELEASE_FLUSH: u32 = 1 << 0;
    /// RELEASE: the BSD lock goes away with this handle.
    pub const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
    /// FSYNC: data only.
    pub const FSYNC_DATA_ONLY: u32 = 1 << 0;
    /// Locks: a BSD lock on the whole file.
    pub const LOCK_FLOCK: u32 = 1 << 0;
    /// POLL: a wake-up is asked for.
    pub const POLL_SCHEDULE_NOTIFY: u32 = 1 << 0;
    /// SETXATTR: clear sgid when an access ACL is set.
    pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
    /// IOCTL: the node is a directory.
    pub const IOCTL_DIRECTORY: u32 = 1 << 4;
    /// INVAL_ENTRY: let the entry expire rather than dropping it.
    pub const EXPIRE_ONLY: u32 = 1 << 0;
}
