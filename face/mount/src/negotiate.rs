//! INIT: the kernel's offer, the parts that are taken, and the reasons.
//!
//! Invariants: nothing is agreed that the kernel did not offer; every flag that is taken, and every
//! one that is left, has its reason here.

use crate::abi::flags::init;
use crate::abi::replies::InitOut;
use crate::abi::{MAJOR, MINOR, MINOR_OLDEST};
use crate::decode::{Dialect, Init};

/// Bytes of a page.
pub const PAGE_BYTES: u32 = 4096;
/// Most bytes of one READ or WRITE that are ever asked for.
pub const MAX_WRITE_LIMIT: u32 = 16 << 20;

/// The settings that a mount asks of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Most bytes of one WRITE (and READ); rounded to pages, cut to what the kernel allows.
    pub max_write_bytes: u32,
    /// Most bytes of read-ahead; the kernel's own limit (of the mount's device) stands above it.
    pub max_readahead_bytes: u32,
    /// Most asynchronous requests (read-ahead, asynchronous direct I/O) at once. For plain users
    /// the kernel has a limit of its own.
    pub max_background: u16,
    /// The file system keeps POSIX access control lists in `system.posix_acl_*` attributes, and
    /// the kernel enforces them. Costs a GETXATTR for every inode that is newly looked at.
    pub posix_acl: bool,
    /// The file system answers LOOKUP of `.` and `..` for any node, so that the mount can be
    /// exported and opened by handle.
    pub export: bool,
}

impl Settings {
    /// Those of a mount that wishes nothing else.
    pub const USUAL: Settings = Settings {
        max_write_bytes: 1 << 20,
        max_readahead_bytes: 16 << 20,
        // The kernel's default of 12 is less than two 16-MiB streams have in flight.
        max_background: 128,
        posix_acl: false,
        export: true,
    };
}

impl Default for Settings {
    fn default() -> Settings {
        Settings::USUAL
    }
}

/// Taken wherever the kernel offers them.
const WANTED: &[(u64, &str)] = &[
    (init::ASYNC_READ, "read-ahead sends several READs at once; our reads overlap"),
    (init::ASYNC_DIO, "a large direct read or write goes out in parallel pieces"),
    (init::BIG_WRITES, "WRITEs above one page"),
    (
        init::MAX_PAGES,
        "requests of 1 MiB rather than 128 KiB: a system call costs more than a copy",
    ),
    (init::ATOMIC_O_TRUNC, "open and truncate are one request, and cannot be torn apart by others"),
    (init::POSIX_LOCKS, "byte-range locks hold between clients: they are the metadata server's"),
    (init::FLOCK_LOCKS, "BSD locks hold between clients, too"),
    (init::HAS_IOCTL_DIR, "ioctls on directories reach the file system"),
    (init::DO_READDIRPLUS, "a listing brings attributes along: one request instead of one a file"),
    (init::READDIRPLUS_AUTO, "but not for callers that only want names"),
    (init::PARALLEL_DIROPS, "lookups and listings of one directory overlap; so do ours"),
    (init::ABORT_ERROR, "an aborted mount reads ECONNABORTED, an unmounted one ENODEV"),
    (init::CACHE_SYMLINKS, "a link's target never changes while its inode lives"),
    (
        init::AUTO_INVAL_DATA,
        "a file that several clients write was perhaps opened before it was one: its pages then end \
         with its mtime, which is asked for at every read; under a lease nobody asks",
    ),
    (init::HANDLE_KILLPRIV_V2, "we clear suid and sgid ourselves: no GETXATTR before each write"),
    (init::SETXATTR_EXT, "SETXATTR tells when an access ACL takes sgid away"),
    (init::INIT_EXT, "the second word of flags"),
    (init::CREATE_SUPP_GROUP, "creating requests name the group that sgid directories need"),
    (
        init::HAS_EXPIRE_ONLY,
        "entries can be made to expire instead of being dropped from under users",
    ),
    (init::DIRECT_IO_ALLOW_MMAP, "files that several clients write go direct, yet can be mapped"),
];

/// Never taken, whatever the kernel offers.
const REFUSED: &[(u64, &str)] = &[
    (init::WRITEBACK_CACHE, "mount-wide: the kernel would own sizes and times against our leases"),
    (
        init::EXPLICIT_INVAL_DATA,
        "pages of files that were opened under a lease and lost it since would outlive the truth",
    ),
    (init::NO_OPEN_SUPPORT, "opens are session state at the server: every one is asked"),
    (init::NO_OPENDIR_SUPPORT, "as opens"),
    (init::HANDLE_KILLPRIV, "the older promise; it clears too much"),
    (init::FILE_OPS, "never had a meaning"),
    (init::SPLICE_READ, "requests are read into page-aligned buffers in one copy, without pipes"),
    (init::SPLICE_WRITE, "as for reading"),
    (init::SPLICE_MOVE, "would give pages of our buffers away"),
    (init::SECURITY_CTX, "labels are set like other attributes"),
    (init::SUBMOUNTS, "one mount is one tree"),
    (init::MAP_ALIGNMENT, "only of use to virtual machines"),
    (init::HAS_INODE_DAX, "as above"),
    (init::PASSTHROUGH, "data is not in local files"),
    (init::HAS_RESEND, "a mount is handed over with all requests answered, or sent along"),
    (init::ALLOW_IDMAP, "ids in requests would not be the caller's any more"),
    (init::OVER_IO_URING, "taken by the loop over io_uring alone, which asks for it itself"),
    (init::REQUEST_TIMEOUT, "would abort the whole mount where one server is slow"),
];

/// The reason that there is no agreement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NegotiationError {
    /// Older than Linux 5.4.
    #[error(
        "the kernel speaks FUSE {major}.{minor}, at least {MAJOR}.{MINOR_OLDEST} (Linux 5.4) is \
         needed: use a newer kernel"
    )]
    TooOld { major: u32, minor: u32 },
}

/// The settings that both sides agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreement {
    pub flags: u64,
    pub minor: u32,
    pub max_write_bytes: u32,
    pub dialect: Dialect,
    pub(crate) reply: InitOut,
}

impl Agreement {
    /// The one that another process made with the kernel.
    pub fn of_state(flags: u64, minor: u32, max_write_bytes: u32) -> Agreement {
        let dialect = Dialect { setxattr_extended: flags & init::SETXATTR_EXT != 0 };
        Agreement { flags, minor, max_write_bytes, dialect, reply: InitOut::default() }
    }
}

/// Agrees with the kernel's offer. `max_pages_limit` is the kernel's setting, in pages.
/// `Ok(None)` where it speaks a newer major version and will ask again.
pub fn negotiate(
    offer: &Init,
    settings: &Settings,
    max_pages_limit: u32,
) -> Result<Option<Agreement>, NegotiationError> {
    let (major, minor) = (offer.major, offer.minor);
    if major > MAJOR {
        return Ok(None);
    }
    if major < MAJOR || minor < MINOR_OLDEST {
        return Err(NegotiationError::TooOld { major, minor });
    }
    let mut wanted: u64 = WANTED.iter().map(|(bit, _)| bit).sum();
    if settings.posix_acl {
        // With default ACLs the umask must not be applied by the kernel.
        wanted |= init::POSIX_ACL | init::DONT_MASK;
    }
    wanted |= if settings.export { init::EXPORT_SUPPORT } else { init::NO_EXPORT_SUPPORT };
    let flags = wanted & offer.flags;
    let pages_max = if flags & init::MAX_PAGES == 0 { 32 } else { max_pages_limit.clamp(1, 65535) };
    let max_write = max_write_bytes(settings, pages_max);
    let background = settings.max_background.max(1);
    let reply = InitOut {
        major: MAJOR,
        minor: minor.min(MINOR),
        max_readahead: settings.max_readahead_bytes.min(offer.max_readahead),
        flags: flags as u32,
        flags2: (flags >> 32) as u32,
        max_background: background,
        congestion_threshold: (background / 4 * 3).max(1),
        max_write,
        time_granularity: 1,
        max_pages: (max_write / PAGE_BYTES) as u16,
        ..InitOut::default()
    };
    Ok(Some(Agreement {
        flags,
        minor: reply.minor,
        max_write_bytes: max_write,
        dialect: Dialect { setxattr_extended: flags & init::SETXATTR_EXT != 0 },
        reply,
    }))
}

/// The largest WRITE that settings and the kernel's limit allow together.
pub fn max_write_bytes(settings: &Settings, max_pages_limit: u32) -> u32 {
    let wanted = settings.max_write_bytes.clamp(PAGE_BYTES, MAX_WRITE_LIMIT);
    let pages = (wanted / PAGE_BYTES).min(max_pages_limit.clamp(1, 65535));
    pages * PAGE_BYTES
}

/// The kernel's own limit on pages in one request. Kernels without the setting have 256.
pub fn kernel_max_pages() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit");
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(256)
}

/// The decision about a flag in words, for people who wonder.
pub fn reason(flag: u64) -> Option<&'static str> {
    let all = WANTED.iter().chain(REFUSED);
    all.filter(|(bit, _)| *bit == flag).map(|(_, reason)| *reason).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(flags: u64) -> Init {
        Init { major: 7, minor: 45, max_readahead: 131_072, flags }
    }

    #[test]
    fn only_what_is_offered_is_taken_and_nothing_refused() {
        let settings = Settings::default();
        let agreed = negotiate(&offer(u64::MAX), &settings, 256).unwrap().unwrap();
        for (bit, reason) in REFUSED {
            assert_eq!(agreed.flags & bit, 0, "{reason}");
            assert!(WANTED.iter().all(|(wanted, _)| wanted != bit));
        }
        assert_eq!(agreed.max_write_bytes, 1 << 20);
        assert_eq!(agreed.reply.max_pages, 256);
        assert!(agreed.dialect.setxattr_extended);
        let bare = negotiate(&offer(0), &settings, 256).unwrap().unwrap();
        assert_eq!((bare.flags, bare.max_write_bytes), (0, 128 << 10));
        assert!(!bare.dialect.setxattr_extended);
    }

    #[test]
    fn every_flag_has_one_decision_with_a_reason() {
        let decided: u64 = WANTED.iter().chain(REFUSED).map(|(bit, _)| bit).fold(0, |all, bit| {
            assert_eq!(all & bit, 0, "decided twice");
            all | bit
        });
        let by_setting =
            init::POSIX_ACL | init::DONT_MASK | init::EXPORT_SUPPORT | init::NO_EXPORT_SUPPORT;
        // Bit 31 is reserved; 42 is the newest that is known.
        assert_eq!(decided | by_setting, ((1u64 << 43) - 1) & !(1 << 31));
        assert!(reason(init::WRITEBACK_CACHE).unwrap().contains("leases"));
    }

    #[test]
    fn versions_and_limits() {
        let settings = Settings { max_write_bytes: 64 << 20, ..Settings::default() };
        let old = Init { minor: 30, ..offer(u64::MAX) };
        assert!(negotiate(&old, &settings, 256).unwrap_err().to_string().contains("7.30"));
        let newer = Init { major: 8, ..offer(u64::MAX) };
        assert_eq!(negotiate(&newer, &settings, 256).unwrap(), None);
        let wide = negotiate(&offer(u64::MAX), &settings, 8192).unwrap().unwrap();
        assert_eq!(wide.max_write_bytes, MAX_WRITE_LIMIT);
        let narrow = negotiate(&offer(u64::MAX), &settings, 1).unwrap().unwrap();
        assert_eq!(narrow.max_write_bytes, PAGE_BYTES);
    }
}
