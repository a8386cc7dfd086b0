//! Requests to the metadata server, its replies, and its callbacks to clients.
//!
//! Rules that the shape of these messages carries:
//! * one request per create (it creates, opens and grants the lease), and per open + close: an open
//!   under a held lease needs no message, a close gives nothing back unless the lease goes, too;
//! * a lease covers the whole inode. `Read`: attributes, content, and for a directory its entries
//!   may be cached. `Write`: the holder alone uses the file and is the authority on its size and
//!   times (it ignores those that replies carry). `Shared`: several writers; nothing is cached,
//!   size-extending writes report before they return;
//! * a session that has a file open without a lease (one was recalled) acquires one before it reads
//!   or writes;
//! * reports carry the write epoch; one of another epoch is refused with `ESTALE`;
//! * a recall is answered at once, also for a grant whose reply is still on its way: the client
//!   remembers the highest number that was recalled or that it released, and a grant of this number
//!   or an older one is none when it arrives.
//!   `Release`, `Report` and `RenewEpoch` never wait at the server, so answering needs no other session.

use serde::{Deserialize, Serialize};

use super::attributes::{Attributes, Content, InodeKind};
pub use super::beat::{Clock, HAND_ON_VERSION, Heartbeat, Registration, STEP_GROUPS_MAX, Step};
use super::exports::{ExportInfo, ExportOrder};
use super::head::CALL_BYTES_MAX;
use super::layout::Pool;
use super::map::Band;
use super::orders::{Moves, Orders, ServerOrder};
use super::status::{KnownServer, MetaStatus, Room, SessionInfo};
use super::trust::Capability;
use super::upgrade::{Telling, UpgradeOrder, UpgradeState};
use super::value::{Bytes, Errno, Timestamp};

/// The inode number of the root directory.
pub const ROOT: u64 = 1;
/// Longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest target of a symbolic link, in bytes.
pub const TARGET_BYTES_MAX: usize = 4095;
/// Longest value of an extended attribute, in bytes.
pub const XATTR_BYTES_MAX: usize = 16 * 1024;
/// Longest content kept in the inode row, in bytes.
pub const INLINE_BYTES_MAX: u64 = 16 * 1024;
/// Most supplementary groups that travel with a request.
pub const GROUPS_MAX: usize = 1024;

/// Most runs of stripes in one report: with all else they fit a call.
pub const REPORT_RUNS_MAX: usize = 2048;
const _: () = assert!(REPORT_RUNS_MAX * 8 + 1024 <= CALL_BYTES_MAX);

/// Most inodes of one `GetInodes`.
pub const INODES_ASKED_MAX: usize = 512;
/// Most sessions, and most inodes, of one `Vouch`.
pub const VOUCHED_MAX: usize = 512;
/// Most runs of inodes that a reply to `Inspect` names.
pub const INODES_DAMAGED_MAX: usize = 256;
/// Most objects of one `Discard`.
pub const DISCARDED_MAX: usize = 512;
/// Longest path that `GetPath` tells, in bytes.
pub const PATH_BYTES_MAX: usize = 16 * 1024;

/// The party that has judged whether a caller may do what it asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Judge {
    /// Nobody yet: the server judges by ids, as POSIX demands. User 0 may do what root may do.
    #[default]
    Server,
    /// The kernel of the caller's host. It knows facts that no ids tell: capabilities, name spaces, a mask of
    /// capabilities that root gave up. A server that judged again would refuse requests that the kernel allowed.
    ///
    /// A client that sends this acts for every user. A server believes it only from sessions that may do so anyway.
    /// From all other sessions, the server takes it for [`Judge::Server`].
    Kernel {
        /// The caller may leave setuid and setgid on what it changes or makes (`CAP_FSETID`).
        keeps_privileges: bool,
    },
}

/// On whose behalf something is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Who<'a> {
    pub user: u32,
    pub group: u32,
    /// Supplementary groups, four bytes each, little endian.
    #[serde(borrow)]
    pub groups: Bytes<'a>,
    pub judge: Judge,
}

impl Who<'_> {
    /// The superuser.
    pub const ROOT: Who<'static> =
        Who { user: 0, group: 0, groups: Bytes(&[]), judge: Judge::Server };

    /// Whether no check of a right is left: the caller may do everything, or was judged before.
    pub fn passes(&self) -> bool {
        self.user == 0 || self.judge != Judge::Server
    }

    /// Whether what this caller changes or makes may keep setuid and setgid.
    pub fn keeps_privileges(&self) -> bool {
        match self.judge {
            Judge::Server => self.user == 0,
            Judge::Kernel { keeps_privileges } => keeps_privileges,
        }
    }

    /// The same caller, judged by nobody.
    pub fn unjudged(self) -> Self {
        Who { judge: Judge::Server, ..self }
    }

    /// Whether `group` is this caller's, primary or supplementary.
    pub fn is_in(&self, group: u32) -> bool {
        self.group == group
            || self.groups.0.chunks_exact(4).any(|bytes| bytes == group.to_le_bytes())
    }
}

/// The access for which a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Access {
    pub read: bool,
    pub write: bool,
}

/// The strength of a lease on an inode.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
pub enum LeaseMode {
    /// Nothing may be cached.
    #[default]
    None,
    /// Several writers, or readers beside a writer: nothing may be cached, but the file is in use.
    Shared,
    /// Attributes, content and entries may be cached.
    Read,
    /// As `Read`, and the holder alone writes and owns size and times.
    Write,
}

/// A lease that a reply grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    pub mode: LeaseMode,
    /// The inode's write epoch, to be carried by data requests and reports under this lease.
    pub epoch: u32,
    /// Grows with every grant and recall of this inode to this session: tells a recall of an older
    /// grant from one of this grant.
    pub number: u64,
}

/// A new value of a time stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum TimeChange {
    #[default]
    Keep,
    /// The server's clock.
    Now,
    At(Timestamp),
}

/// A change of attributes, as `chmod`, `chown`, `truncate` and `utimensat` make it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AttributeChange {
    pub mode: Option<u16>,
    pub user: Option<u32>,
    pub group: Option<u32>,
    pub size: Option<u64>,
    pub accessed: TimeChange,
    pub modified: TimeChange,
    /// Whether setuid, setgid and capabilities fall away as for a write by another user.
    pub kill_privileges: bool,
    /// Whether capabilities (the attribute `security.capability`) fall away, as they do for
    /// everybody's write.
    pub kill_capability: bool,
    /// The size changes through a handle that was opened for writing (`ftruncate`): the permission
    /// was checked then.
    pub through_handle: bool,
}

/// The kind of inode that `Make` makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Node<'a> {
    Directory,
    Symlink {
        #[serde(borrow)]
        target: Bytes<'a>,
    },
    Fifo,
    Socket,
    CharacterDevice(u32),
    BlockDevice(u32),
    File,
}

impl<'a> Node<'a> {
    /// A symbolic link to `target`.
    pub fn symlink(target: &'a [u8]) -> Node<'a> {
        Node::Symlink { target: Bytes(target) }
    }
}

/// The behaviour of `Rename` if the new name exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RenameMode {
    /// Replaces it, as `rename(2)` does.
    Replace,
    /// Fails with `EEXIST` (`RENAME_NOREPLACE`).
    NoReplace,
    /// Swaps the two (`RENAME_EXCHANGE`).
    Exchange,
}

/// A writer's report about a file to the metadata server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report<'a> {
    /// The write epoch under which the bytes were written.
    pub epoch: u32,
    /// The file's size is at least this; `SetAttributes` is what makes it smaller.
    pub size: Option<u64>,
    /// On the metadata server's clock, as far as the client knows it (`SessionReply`).
    pub modified: Option<Timestamp>,
    pub accessed: Option<Timestamp>,
    /// Stripes whose objects were written for the first time: pairs of first stripe and count, eight
    /// bytes each, little endian; at most `REPORT_RUNS_MAX`. `EFBIG` where the inode row would have
    /// more than `RUNS_MAX`.
    #[serde(borrow)]
    pub written: Bytes<'a>,
    /// Stripes whose objects have no bytes any more, in the same form: from now on nobody asks for
    /// them. Reported when that is durable, by a session that writes alone: what a power loss brought
    /// back, or another wrote meanwhile, would be lost to sight and come to light later.
    #[serde(borrow)]
    pub punched: Bytes<'a>,
}

/// Whether a lock is shared or exclusive; or none, to unlock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockKind {
    Unlock,
    Shared,
    Exclusive,
}

/// A byte-range lock (`fcntl`) or a whole-file lock (`flock`): two families that ignore each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockRange {
    pub kind: LockKind,
    /// True for `flock`.
    pub whole_file: bool,
    /// The lock owner within the session, as the kernel names it.
    pub owner: u64,
    /// The process that asks, for `F_GETLK`.
    pub process: u32,
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive; `u64::MAX` for the end of the file wherever it is.
    pub end: u64,
}

/// A request to the metadata server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MetaRequest<'a> {
    /// The entry `name` of a directory. Grants what can be cached.
    Lookup {
        #[serde(borrow)]
        who: Who<'a>,
        parent: u64,
        #[serde(borrow)]
        name: Bytes<'a>,
    },
    /// Attributes of an inode.
    GetAttributes {
        inode: u64,
    },
    SetAttributes {
        #[serde(borrow)]
        who: Who<'a>,
        inode: u64,
        change: AttributeChange,
    },
    /// Creates a regular file, or opens the existing one, and opens it.
    Create {
        #[serde(borrow)]
        who: Who<'a>,
        parent: u64,
        #[serde(borrow)]
        name: Bytes<'a>,
        /// Permission bits, the umask already taken off.
        mode: u16,
        access: Access,
        /// `O_EXCL`: an existing name is `EEXIST`.
        exclusive: bool,
        /// `O_TRUNC`.
        truncate: bool,
    },
    /// Creates a file without a name (`O_TMPFILE`) and opens it.
    Temporary {
        #[serde(borrow)]
        who: Who<'a>,
        parent: u64,
        mode: u16,
        access: Access,
    },
    /// Creates anything, without opening it.
    Make {
        #[serde(borrow)]
        who: Who<'a>,
        parent: u64,
        #[serde(borrow)]
        name: Bytes<'a>,
        mode: u16,
        #[serde(borrow)]
        node: Node<'a>,
    },
    Open {
        #[serde(borrow)]
        who: Who<'a>,
        inode: u64,
        access: Access,
        truncate: bool,
        /// To execute it: the caller asks for the right to execute, and not for the right to read.
        execute: bool,
    },
    Unlink {
        #[serde(borrow)]
        who: Who<'a>,
        parent: u64,
        #[serde(borrow)]
        name: Bytes<'a>,
        /// An inode that this session has not open: where it is the one that loses its last name,
        /// the session's lease on it ends with this request. 0: none.
        closed: u64,
    },
    RemoveDirectory {
        #[serde(borrow)]
        who: Who<'a>,
        parent: u64,
        #[serde(borrow)]
        name: Bytes<'a>,
        /// As in `Unlink`.
        closed: u64,
    },
    Rename {
        #[serde(borrow)]
        who: Who<'a>,
        parent: u64,
        #[serde(borrow)]
        name: Bytes<'a>,
        new_parent: u64,
        #[serde(borrow)]
        new_name: Bytes<'a>,
        mode: RenameMode,
        /// As in `Unlink`, for an inode that the rename replaces.
        closed: u64,
    },
    Link {
        #[serde(borrow)]
        who: Who<'a>,
        inode: u64,
        parent: u64,
        #[serde(borrow)]
        name: Bytes<'a>,
    },
    /// Entries after `cookie` (0: from the beginning), as many as fit `bytes_max` bytes of reply.
    /// Cookies are below 2^63; 1 and 2 are never an entry's, a client may give them to `.` and `..`.
    ReadDirectory {
        #[serde(borrow)]
        who: Who<'a>,
        inode: u64,
        cookie: u64,
        bytes_max: u32,
        /// With attributes and read leases of each (`readdirplus`).
        attributes: bool,
    },
    ReadLink {
        inode: u64,
    },
    GetXattr {
        #[serde(borrow)]
        who: Who<'a>,
        inode: u64,
        #[serde(borrow)]
        name: Bytes<'a>,
    },
    ListXattr {
        #[serde(borrow)]
        who: Who<'a>,
        inode: u64,
    },
    SetXattr {
        #[serde(borrow)]
        who: Who<'a>,
        inode: u64,
        #[serde(borrow)]
        name: Bytes<'a>,
        #[serde(borrow)]
        value: Bytes<'a>,
        /// `XATTR_CREATE`: must not exist.
        create: bool,
        /// `XATTR_REPLACE`: must exist.
        replace: bool,
    },
    RemoveXattr {
        #[serde(borrow)]
        who: Who<'a>,
        inode: u64,
        #[serde(borrow)]
        name: Bytes<'a>,
    },
    /// Asks for a lease (stronger than the one held); waits for recalls. Where other sessions have
    /// the file open, `Shared` is granted instead of `Write`, and of `Read` when one of them writes;
    /// unless the caller insists on the mode: pages in the memory of a kernel know no compromise.
    Acquire {
        inode: u64,
        mode: LeaseMode,
        insist: bool,
    },
    /// Gives a lease back or down to `keep`, after a report of the changes under it. `open`: the access with which the
    /// session still has the file open, over all its handles. The reply's grant tells the lease that is left to it.
    Release {
        inode: u64,
        number: u64,
        keep: LeaseMode,
        open: Option<Access>,
    },
    /// Tells size, times and written stripes.
    Report {
        inode: u64,
        #[serde(borrow)]
        report: Report<'a>,
    },
    /// Begins a new write epoch of a file that this session may write. Data servers refuse writes of the former epoch
    /// that are still under way, from the first write of the new one on.
    RenewEpoch {
        inode: u64,
    },
    /// The content of an inline file.
    ReadInline {
        inode: u64,
    },
    /// Writes into an inline file; `E2BIG` where it would not stay inline.
    WriteInline {
        inode: u64,
        epoch: u32,
        offset: u64,
        #[serde(borrow)]
        data: Bytes<'a>,
        /// At the end of the file, whatever `offset` says.
        append: bool,
        kill_privileges: bool,
    },
    /// After the server's restart: the lease and the open file that this session had, one request an inode. Served
    /// before anything else is.
    Reclaim {
        inode: u64,
        mode: LeaseMode,
        open: Option<Access>,
    },
    /// This session has reclaimed all it wants to keep.
    ReclaimDone,
    /// The file leaves the inode row: its inline bytes, as they were at `version` of the attributes,
    /// were written to the stripes of `layout`, which the server had offered with the open. One
    /// transaction; `ESTALE` where the inode changed since. The write epoch grows.
    LeaveInline {
        inode: u64,
        version: u64,
        #[serde(borrow)]
        report: Report<'a>,
    },
    /// Reserves `len` bytes at the end of the file for an append; replies with the offset.
    ReserveAppend {
        inode: u64,
        epoch: u32,
        len: u64,
    },
    /// Takes or gives back a lock. `wait`: queue where it conflicts; `LockGranted` calls back.
    SetLock {
        inode: u64,
        range: LockRange,
        wait: bool,
    },
    /// The first conflicting lock.
    TestLock {
        inode: u64,
        range: LockRange,
    },
    /// Gives up a queued lock; `ENOENT` where it is not queued (any more): it may have been taken.
    CancelLock {
        inode: u64,
        range: LockRange,
    },
    /// All locks of an owner fall: the file was closed.
    ReleaseOwner {
        inode: u64,
        owner: u64,
        whole_file: bool,
    },
    /// Answers the callback `TellUnlocked` of this number. All locks on the inode that this session's programs had
    /// given up by then were told before. Never waits.
    ToldUnlocked {
        inode: u64,
        number: u64,
    },
    /// Answers the callback `Grown` of this number. Never waits.
    ToldGrown {
        inode: u64,
        number: u64,
    },
    /// Free room and inodes.
    StatFileSystem,
    /// Answered when everything that this session was told is durable.
    Sync,
    /// A pool version (0: the newest) and the addresses of its servers.
    GetPool {
        version: u32,
    },
    /// The map: bands from number `from` on that changed after epoch `since`. `server`: only bands in which it has a
    /// group, for a data server.
    GetMap {
        since: u32,
        from: u32,
        server: Option<u32>,
        bytes_max: u32,
    },
    /// From a data server, first of all and then each second.
    Heartbeat(#[serde(borrow)] Heartbeat<'a>),
    /// Inodes from number `from` on, for `check`.
    ListInodes {
        from: u64,
        bytes_max: u32,
    },
    /// The state of inodes, for `check`: numbers of eight bytes each, little endian, at most `INODES_ASKED_MAX`. The
    /// reply may stop early, after at least one.
    GetInodes {
        #[serde(borrow)]
        inodes: Bytes<'a>,
        bytes_max: u32,
    },
    /// One of the paths of an inode, from the root; `ENOENT` where it has no name.
    GetPath {
        inode: u64,
    },
    /// The server's activity and knowledge.
    Status,
    /// Sessions after number `after`.
    ListSessions {
        after: u64,
        bytes_max: u32,
    },
    /// Data servers from number `from` on: those that were heard of or that a pool version names.
    ListServers {
        from: u32,
        bytes_max: u32,
    },
    /// Has objects on a data server removed, as those of removed files are, where they are garbage
    /// for certain: the inode is gone for good, or has a later object generation. Inode (eight bytes)
    /// and generation (four) of each, little endian, at most `DISCARDED_MAX`; others are left alone.
    Discard {
        server: u32,
        #[serde(borrow)]
        objects: Bytes<'a>,
    },
    /// From an administrator: a data server of this number may join.
    Admit {
        server: u32,
    },
    /// From an administrator: about the servers that groups are on.
    Order(ServerOrder),
    /// Another capability for a file: the former one is old.
    Allow {
        inode: u64,
    },
    /// From an administrator: about exports.
    Export(#[serde(borrow)] ExportOrder<'a>),
    /// From a data server that orders a group: another one is out of step, or in step.
    SetStep(#[serde(borrow)] Step<'a>),
    /// From a data server: which of these sessions there are, and what the write epochs of these inodes
    /// are. Numbers of eight bytes each, little endian, at most `VOUCHED_MAX` of either.
    Vouch {
        #[serde(borrow)]
        sessions: Bytes<'a>,
        #[serde(borrow)]
        inodes: Bytes<'a>,
    },
    /// Reads the rows that inodes from number `from` on need, for `check`: first, of a directory `from`, the
    /// entries behind `cookie`. Not `whole`: only as far as `ListInodes` can go on.
    Inspect {
        from: u64,
        cookie: u64,
        whole: bool,
    },
    // Version 11. Later versions add their kinds behind these: docs/design/128-upgrade.md.
    /// From an administrator: about the format of the file system.
    Upgrade(UpgradeOrder),
    /// From a data server: about the groups of objects that do not know theirs.
    TellGroups(#[serde(borrow)] Telling<'a>),
    /// From a data server that is to give up bytes of groups which it is not in: whether, by the map of this epoch, all groups
    /// have all their members.
    MayClean {
        server: u32,
        map: u32,
    },
}

impl<'a> MetaRequest<'a> {
    /// On whose behalf it is, where it says that.
    pub fn who_mut(&mut self) -> Option<&mut Who<'a>> {
        use MetaRequest as M;
        match self {
            M::Lookup { who, .. }
            | M::SetAttributes { who, .. }
            | M::Create { who, .. }
            | M::Temporary { who, .. }
            | M::Make { who, .. }
            | M::Open { who, .. }
            | M::Unlink { who, .. }
            | M::RemoveDirectory { who, .. }
            | M::Rename { who, .. }
            | M::Link { who, .. }
            | M::ReadDirectory { who, .. }
            | M::GetXattr { who, .. }
            | M::ListXattr { who, .. }
            | M::SetXattr { who, .. }
            | M::RemoveXattr { who, .. } => Some(who),
            M::GetAttributes { .. }
            | M::ReadLink { .. }
            | M::Acquire { .. }
            | M::Release { .. }
            | M::Report { .. }
            | M::RenewEpoch { .. }
            | M::ReadInline { .. }
            | M::WriteInline { .. }
            | M::Reclaim { .. }
            | M::ReclaimDone
            | M::LeaveInline { .. }
            | M::ReserveAppend { .. }
            | M::SetLock { .. }
            | M::TestLock { .. }
            | M::CancelLock { .. }
            | M::ReleaseOwner { .. }
            | M::ToldUnlocked { .. }
            | M::ToldGrown { .. }
            | M::Allow { .. }
            | M::StatFileSystem
            | M::Sync
            | M::GetPool { .. }
            | M::GetMap { .. }
            | M::Heartbeat(_)
            | M::ListInodes { .. }
            | M::GetInodes { .. }
            | M::GetPath { .. }
            | M::Status
            | M::ListSessions { .. }
            | M::ListServers { .. }
            | M::Discard { .. }
            | M::Admit { .. }
            | M::Order(_)
            | M::Export(_)
            | M::SetStep(_)
            | M::Vouch { .. }
            | M::Inspect { .. }
            | M::Upgrade(_)
            | M::TellGroups(_)
            | M::MayClean { .. } => None,
        }
    }
}

/// An entry that a lookup or a creating request found or made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub attributes: Attributes,
    /// The session may cache the entry: it holds a read lease on the directory.
    pub entry_cached: bool,
    /// A lease on the inode that the reply grants.
    pub grant: Option<Grant>,
    /// The directory after a request that added the entry.
    pub directory: Option<DirectoryNow>,
}

/// The state of a directory after a change of its entries, for clients that cache its attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryNow {
    /// Its version. If the cached version is the one before, nothing else changed.
    pub version: u64,
    /// The number of its entries.
    pub size: u64,
    pub link_count: u32,
    /// Times of modification and of change.
    pub modified: Timestamp,
}

/// One entry of `ReadDirectory`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryEntry<'a> {
    #[serde(borrow)]
    pub name: Bytes<'a>,
    pub inode: u64,
    pub kind: InodeKind,
    /// The position from which the next read continues after this entry.
    pub cookie: u64,
    /// With `attributes` asked for.
    pub attributes: Option<Attributes>,
    pub grant: Option<Grant>,
}

/// A server of the cluster as `GetPool` and `status` name it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerInfo<'a> {
    pub server: u32,
    #[serde(borrow)]
    pub address: Bytes<'a>,
    /// Heard of within the last seconds.
    pub alive: bool,
    /// Its share where several servers lie on one file system.
    pub total_bytes: u64,
    pub available_bytes: u64,
}

/// One inode of `ListInodes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InodeInfo {
    pub attributes: Attributes,
    pub content: Content,
    /// Written stripes: first and count of each run.
    pub written: Vec<(u32, u32)>,
    /// Somebody may be changing its objects now, and tell of it later.
    pub changing: bool,
}

/// One inode of `GetInodes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InodeFate {
    /// None: there is no such inode.
    pub inode: Option<InodeInfo>,
    /// Objects up to this generation are on their way out.
    pub reaping: Option<u32>,
}

/// The reply to a [`MetaRequest`] that succeeded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MetaReply<'a> {
    /// Nothing to say but that it was done.
    Done,
    /// Lookup, Make, Link.
    Entry(Entry),
    /// Lookup of a name that is not there. `cached`: the client may remember that.
    Missing {
        cached: bool,
    },
    /// GetAttributes, SetAttributes, Report, RenewEpoch, Release, Reclaim, LeaveInline; a Rename that
    /// replaces: of the inode that lost its name.
    Attributes {
        attributes: Attributes,
        grant: Option<Grant>,
    },
    /// Unlink, RemoveDirectory: of the inode that lost its name, and of the directory.
    Removed {
        attributes: Attributes,
        directory: DirectoryNow,
    },
    /// Create, Temporary, Open, Acquire.
    Opened {
        entry: Entry,
        content: Content,
        /// Inline: the content, so that reading a small file costs no further message (opened for
        /// reading, or acquired). Shorter than the size: the rest is zeros. `None`: not told.
        #[serde(borrow)]
        inline: Option<Bytes<'a>>,
        /// The layout that the file will have when it leaves the inode row (or has).
        layout: super::layout::Layout,
        /// Written stripes: first and count of each run.
        written: Vec<(u32, u32)>,
        /// Create: whether the file is new.
        created: bool,
        /// Shown to data servers with each call for this file, by a bound session; none for all others.
        capability: Option<Capability>,
    },
    /// ReadDirectory. `end`: there are no more.
    Directory {
        #[serde(borrow)]
        entries: Vec<DirectoryEntry<'a>>,
        end: bool,
        grant: Option<Grant>,
    },
    /// ReadLink, GetXattr, GetPath: the bytes. ListXattr: names, each ended by a zero byte.
    Content {
        #[serde(borrow)]
        bytes: Bytes<'a>,
    },
    /// ReadInline: the bytes, as they are in this version of the inode.
    Inline {
        #[serde(borrow)]
        bytes: Bytes<'a>,
        version: u64,
    },
    /// WriteInline, ReserveAppend: the place of the bytes, and the file's size, version and time of modification now.
    Written {
        offset: u64,
        size: u64,
        version: u64,
        modified: Timestamp,
    },
    /// SetLock: not now; a callback tells when.
    Queued,
    /// SetLock: `EAGAIN`, and a lock that was to be converted is gone.
    Refused,
    /// TestLock: the conflict, or none.
    Lock {
        conflict: Option<LockRange>,
    },
    FileSystem {
        room: Room,
        inodes: u64,
    },
    /// Heartbeat.
    Registered(#[serde(borrow)] Registration<'a>),
    Pool {
        pool: Pool,
        #[serde(borrow)]
        servers: Vec<ServerInfo<'a>>,
    },
    /// GetMap: all changes up to `epoch` are in what was asked for. `end`: there are no further bands.
    Map {
        epoch: u32,
        bands: Vec<Band>,
        end: bool,
    },
    Inodes {
        inodes: Vec<InodeInfo>,
        end: bool,
    },
    /// GetInodes, in the order in which they were asked for.
    Fates {
        fates: Vec<InodeFate>,
    },
    Status(#[serde(borrow)] MetaStatus<'a>),
    Sessions {
        #[serde(borrow)]
        sessions: Vec<SessionInfo<'a>>,
        end: bool,
    },
    Servers {
        #[serde(borrow)]
        servers: Vec<KnownServer<'a>>,
        end: bool,
    },
    /// Order: those that hold now.
    Orders {
        orders: Orders,
        moves: Moves,
    },
    /// Allow: the capability, none for a session that needs none, and the generation of the content that it is for.
    Allowed {
        capability: Option<Capability>,
        generation: u32,
    },
    /// Export: the exports that were asked for, by number.
    Exports {
        #[serde(borrow)]
        exports: Vec<ExportInfo<'a>>,
        end: bool,
    },
    /// Discard: the number of objects that will be removed.
    Discarded {
        count: u32,
    },
    /// Vouch, in the order in which they were asked for: 1 for each session that there is, and is not being fenced, 0 for
    /// others; of each inode the object generation and the write epoch, where there is such a file.
    Vouched {
        #[serde(borrow)]
        sessions: Bytes<'a>,
        clock: Clock,
        files: Vec<Option<(u32, u32)>>,
    },
    /// Inspect: runs of inode numbers (the first, and how many) of which something cannot be read. A run
    /// of several is damage of inodes' own rows, some of which need not be there. `next`: inode and
    /// cookie from which to go on.
    Inspected {
        damaged: Vec<(u64, u64)>,
        next: Option<(u64, u64)>,
    },
    // Version 11.
    /// Upgrade: how things stand.
    Upgrade(#[serde(borrow)] UpgradeState<'a>),
    /// TellGroups: the number of the group of each object, in the order in which they were asked for.
    /// `step`: the upgrade by which the file system left its first format; 0: it never had that.
    Groups {
        groups: Vec<u64>,
        step: u64,
    },
}

/// The body of a reply of the metadata service.
pub type MetaResult<'a> = Result<MetaReply<'a>, Errno>;

/// From the metadata server to a client. Answered with `Ok(())` at once; the client does what it is asked for by
/// requests of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Callback {
    /// Give the lease `number` (and every older one) of `inode` back, or down to `keep`, by
    /// `Release`, after caches were dropped and changes reported.
    Recall { inode: u64, number: u64, keep: LeaseMode },
    /// A queued lock was taken. Asking again is harmless and says the same.
    LockGranted { inode: u64, owner: u64, start: u64 },
    /// A lock of this session is in another one's way, who does not want to wait for it: locks that
    /// programs have given up, or closed files of, are to be told of, and then `ToldUnlocked` sent.
    TellUnlocked { inode: u64, number: u64 },
    /// A file that this session has open to read, without a lease, is longer than before: its kernel
    /// believes a size without asking in places. To be answered by `ToldGrown`, for which the one who
    /// wrote waits.
    Grown { inode: u64, size: u64, number: u64 },
}
