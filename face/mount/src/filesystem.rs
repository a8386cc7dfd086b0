//! The trait that a file system implements to be mounted, and the context of a request.
//!
//! One loop calls it from one thread; every method is a future on that thread's executor, so a
//! file system waits wherever it likes and blocks nobody. Methods take `&self`: requests overlap.
//!
//! Nodes are the file system's own inode numbers (the root is 1). A node stays known to the kernel
//! until it was forgotten as often as it was looked up. No method may ever access the mount itself.
//!
//! ENOSYS is remembered by the kernel: it never asks again for that operation on this mount.

#![allow(async_fn_in_trait, reason = "futures stay on the loop's thread by design")]
#![allow(unused_variables, reason = "defaults answer without a look at their arguments")]

use std::cell::Cell;
use std::rc::Rc;

use ropewalk_base::pool::PoolBuffer;
use ropewalk_base::slots::SlotId;

use crate::abi::Opcode;
use crate::abi::requests::CopyFileRangeIn;
use crate::caller::{self, Capability};
use crate::decode::{
    Ioctl, Lock, PollIn, ReadHeader, Release, SetAttributes, SetXattr, WriteHeader,
};
use crate::dev_loop::Shared;
use crate::errno::Errno;
use crate::interrupt::{Interrupted, Level};
use crate::reply::{
    AttributesReply, Data, DirectoryReply, Entry, IoctlReply, Opened, StatFs, StatxReply,
};

/// The result of an operation.
pub type Answer<T> = Result<T, Errno>;

/// The caller of a request.
pub struct Context {
    pub uid: u32,
    pub gid: u32,
    /// The thread that asks; 0 where it lives outside our process namespace.
    pub pid: u32,
    /// The kernel's number of this request.
    pub unique: u64,
    /// The node as the kernel names it; methods are called with [`Filesystem::inode`] of it.
    pub node: u64,
    pub(crate) parent_group: Cell<Option<u32>>,
    pub(crate) slot: SlotId,
    pub(crate) shared: Rc<Shared>,
}

impl Context {
    /// The caller's supplementary groups, as of at most a second ago. Reads /proc at first use.
    pub fn groups(&self) -> Rc<[u32]> {
        self.shared.groups.of(self.pid, self.uid, self.shared.now.get())
    }

    /// Whether the caller has a capability that the kernel does not tell of. Reads /proc each time.
    pub fn has_capability(&self, capability: Capability) -> bool {
        caller::has_capability(self.pid, self.uid, capability)
    }

    /// For requests that create: the caller's supplementary group that owns the parent directory,
    /// where it is in such a group.
    pub fn parent_group(&self) -> Option<u32> {
        self.parent_group.get()
    }

    /// Completes when the caller gets a signal. The operation should then end with EINTR, or go on
    /// where it cannot be undone.
    pub fn interrupted(&self) -> Interrupted {
        self.level(Level::Signal)
    }

    /// Completes when the caller is being killed: it will never see the answer.
    pub fn killed(&self) -> Interrupted {
        self.level(Level::Killed)
    }

    /// Whether the caller has got a signal.
    pub fn is_interrupted(&self) -> bool {
        self.shared.registry.level(self.slot) >= Level::Signal
    }

    pub(crate) fn level(&self, wanted: Level) -> Interrupted {
        Interrupted { registry: self.shared.registry.clone(), slot: self.slot, wanted }
    }
}

/// The time at which the loop itself answers a caller with EINTR. The operation goes on without it, marked as
/// abandoned ([`ropewalk_base::abandon`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupts {
    /// At any signal, and the operation's future is dropped: for operations that wait for other
    /// processes, as locks do.
    AtSignal,
    /// When the caller is being killed, or has had a signal for two seconds: for operations that
    /// change nothing. A healthy operation is never cut short by a signal that its caller
    /// handles: programs do not expect EINTR from files, and some runtimes send signals all the
    /// time.
    AfterPatience,
    /// When the caller is being killed: for operations that change something. Whether they took
    /// effect is then unknown, and nobody is left who could ask.
    WhenKilled,
    /// Not at all: the operation looks at its context itself.
    Never,
}

/// The policy for callers of file systems whose waiting locks may be dropped at any point where they wait.
pub fn usual_interrupts(opcode: Opcode) -> Interrupts {
    match opcode {
        Opcode::SymbolicLink
        | Opcode::MakeNode
        | Opcode::MakeDirectory
        | Opcode::Unlink
        | Opcode::RemoveDirectory
        | Opcode::Rename
        | Opcode::Rename2
        | Opcode::Link
        | Opcode::Create
        | Opcode::TemporaryFile
        | Opcode::Write
        | Opcode::SetAttributes
        | Opcode::SetXattr
        | Opcode::RemoveXattr
        | Opcode::Fallocate
        | Opcode::CopyFileRange
        | Opcode::CopyFileRange64
        | Opcode::Ioctl
        | Opcode::SetLock
        | Opcode::Flush => Interrupts::WhenKilled,
        // Their callers are gone already; the effects that they undo have to be undone.
        Opcode::Release | Opcode::ReleaseDirectory => Interrupts::Never,
        Opcode::SetLockWait | Opcode::Poll => Interrupts::AtSignal,
        _ => Interrupts::AfterPatience,
    }
}

/// A file system. Methods without a default are the ones that no mount can do without.
pub trait Filesystem: 'static {
    /// The time at which the caller of an operation of this kind is let go.
    fn interrupts(&self, opcode: Opcode) -> Interrupts {
        usual_interrupts(opcode)
    }

    /// The file system's own number of a node that the kernel names. It may have told the kernel another number
    /// than its own ([`Entry::number`]); the methods get its own. This does not hold for the nodes that a
    /// request names beside its first, and for `forget`.
    fn inode(&self, node: u64) -> u64 {
        node
    }

    /// Finds a name in a directory; counts as one lookup of the node. `Entry::absent` lets the
    /// kernel remember that there is none. With export support, `.` and `..` are asked, too.
    async fn lookup(&self, context: &Context, parent: u64, name: &[u8]) -> Answer<Entry>;

    /// The kernel drops so many lookups of a node. Not answered, never waits.
    fn forget(&self, node: u64, lookups: u64) {}

    /// Attributes of a node.
    async fn getattr(
        &self,
        context: &Context,
        node: u64,
        handle: Option<u64>,
    ) -> Answer<AttributesReply>;

    /// Changes attributes; truncates.
    async fn setattr(
        &self,
        context: &Context,
        node: u64,
        changes: &SetAttributes,
    ) -> Answer<AttributesReply> {
        Err(Errno::EROFS)
    }

    /// The target of a symbolic link.
    async fn readlink(&self, context: &Context, node: u64) -> Answer<Vec<u8>> {
        Err(Errno::EINVAL)
    }

    /// Makes a symbolic link.
    async fn symlink(
        &self,
        context: &Context,
        parent: u64,
        name: &[u8],
        target: &[u8],
    ) -> Answer<Entry> {
        Err(Errno::EPERM)
    }

    /// Makes a file, device, FIFO or socket. `umask` is already applied to `mode`, except with
    /// access control lists.
    async fn mknod(
        &self,
        context: &Context,
        parent: u64,
        name: &[u8],
        mode: u32,
        device: u32,
        umask: u32,
    ) -> Answer<Entry> {
        Err(Errno::EPERM)
    }

    /// Makes a directory.
    async fn mkdir(
        &self,
        context: &Context,
        parent: u64,
        name: &[u8],
        mode: u32,
        umask: u32,
    ) -> Answer<Entry> {
        Err(Errno::EPERM)
    }

    /// Removes a name of anything but a directory. The inode lives on while it is open.
    async fn unlink(&self, context: &Context, parent: u64, name: &[u8]) -> Answer<()> {
        Err(Errno::EROFS)
    }

    /// Removes an empty directory.
    async fn rmdir(&self, context: &Context, parent: u64, name: &[u8]) -> Answer<()> {
        Err(Errno::EROFS)
    }

    /// Renames. `flags`: `RENAME_NOREPLACE`, `RENAME_EXCHANGE`, `RENAME_WHITEOUT`.
    async fn rename(
        &self,
        context: &Context,
        parent: u64,
        name: &[u8],
        new_parent: u64,
        new_name: &[u8],
        flags: u32,
    ) -> Answer<()> {
        Err(Errno::EROFS)
    }

    /// Gives an inode another name.
    async fn link(
        &self,
        context: &Context,
        node: u64,
        new_parent: u64,
        new_name: &[u8],
    ) -> Answer<Entry> {
        Err(Errno::EPERM)
    }

    /// Opens a file. `flags` may hold `O_TRUNC`, to be done in one step with the open.
    /// ENOSYS becomes EIO: the kernel would open everything by itself from then on.
    async fn open(
        &self,
        context: &Context,
        node: u64,
        flags: u32,
        kill_privileges: bool,
    ) -> Answer<Opened>;

    /// Reads. Fewer bytes than asked for mean the end of the file.
    async fn read(&self, context: &Context, node: u64, header: &ReadHeader) -> Answer<Data>;

    /// Writes the whole of `data`, which is the request's own, page-aligned buffer. Answers how
    /// many bytes were written.
    async fn write(
        &self,
        context: &Context,
        node: u64,
        header: &WriteHeader,
        data: PoolBuffer,
    ) -> Answer<u32> {
        Err(Errno::EROFS)
    }

    /// A descriptor is closed; POSIX locks of `lock_owner` end. May come several times for one
    /// open.
    async fn flush(
        &self,
        context: &Context,
        node: u64,
        handle: u64,
        lock_owner: u64,
    ) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// The last reference to an open file is gone. Its error is not seen by anybody.
    async fn release(&self, context: &Context, node: u64, release: &Release) -> Answer<()> {
        Ok(())
    }

    /// Makes a file durable.
    async fn fsync(
        &self,
        context: &Context,
        node: u64,
        handle: u64,
        data_only: bool,
    ) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Opens a directory. ENOSYS becomes EIO, as in `open`.
    async fn opendir(&self, context: &Context, node: u64, flags: u32) -> Answer<Opened>;

    /// Fills `reply` with entries from `header.offset` on, including `.` and `..`. Nothing added
    /// means the end. `reply.is_plus()` says whether attributes are wanted.
    async fn readdir(
        &self,
        context: &Context,
        node: u64,
        header: &ReadHeader,
        reply: &mut DirectoryReply,
    ) -> Answer<()>;

    /// The last reference to an open directory is gone.
    async fn releasedir(&self, context: &Context, node: u64, release: &Release) -> Answer<()> {
        Ok(())
    }

    /// Makes a directory durable.
    async fn fsyncdir(
        &self,
        context: &Context,
        node: u64,
        handle: u64,
        data_only: bool,
    ) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Capacity and use.
    async fn statfs(&self, context: &Context, node: u64) -> Answer<StatFs>;

    /// Sets an extended attribute.
    async fn setxattr(&self, context: &Context, node: u64, set: &SetXattr<'_>) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// An extended attribute. `size` is the room that the caller has, 0 where it asks for the
    /// length alone; the loop sorts out which of value, length and ERANGE it gets.
    async fn getxattr(
        &self,
        context: &Context,
        node: u64,
        name: &[u8],
        size: u32,
    ) -> Answer<Vec<u8>> {
        Err(Errno::ENOSYS)
    }

    /// The names of all extended attributes, each with a NUL behind it. `size` as in `getxattr`.
    async fn listxattr(&self, context: &Context, node: u64, size: u32) -> Answer<Vec<u8>> {
        Err(Errno::ENOSYS)
    }

    /// Removes an extended attribute.
    async fn removexattr(&self, context: &Context, node: u64, name: &[u8]) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Whether the caller may; only asked on mounts without `default_permissions`.
    async fn access(&self, context: &Context, node: u64, mask: u32) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Makes a file and opens it, in one step; opens it where it exists and `O_EXCL` is not set.
    async fn create(
        &self,
        context: &Context,
        parent: u64,
        name: &[u8],
        mode: u32,
        flags: u32,
        umask: u32,
    ) -> Answer<(Entry, Opened)> {
        Err(Errno::ENOSYS)
    }

    /// Makes a file without a name and opens it.
    async fn tmpfile(
        &self,
        context: &Context,
        parent: u64,
        mode: u32,
        flags: u32,
        umask: u32,
    ) -> Answer<(Entry, Opened)> {
        Err(Errno::EOPNOTSUPP)
    }

    /// A lock that stands in the way of `lock`, or `LockKind::Unlock` where there is none.
    async fn getlk(
        &self,
        context: &Context,
        node: u64,
        handle: u64,
        owner: u64,
        lock: &Lock,
    ) -> Answer<Lock> {
        Err(Errno::ENOLCK)
    }

    /// Takes or drops a byte-range lock; EAGAIN where it would have to wait.
    async fn setlk(
        &self,
        context: &Context,
        node: u64,
        handle: u64,
        owner: u64,
        lock: &Lock,
    ) -> Answer<()> {
        Err(Errno::ENOLCK)
    }

    /// Takes a byte-range lock, waiting for it. Dropped at a signal: the place in the queue goes.
    async fn setlkw(
        &self,
        context: &Context,
        node: u64,
        handle: u64,
        owner: u64,
        lock: &Lock,
    ) -> Answer<()> {
        Err(Errno::ENOLCK)
    }

    /// Takes or drops a BSD lock; waits for it where `wait`, else answers EAGAIN.
    async fn flock(
        &self,
        context: &Context,
        node: u64,
        handle: u64,
        owner: u64,
        lock: &Lock,
        wait: bool,
    ) -> Answer<()> {
        Err(Errno::ENOLCK)
    }

    /// Allocates or punches.
    async fn fallocate(
        &self,
        context: &Context,
        node: u64,
        handle: u64,
        offset: u64,
        length: u64,
        mode: u32,
    ) -> Answer<()> {
        Err(Errno::EOPNOTSUPP)
    }

    /// The next data or hole (`SEEK_DATA`, `SEEK_HOLE`). After ENOSYS the kernel takes every file
    /// for one without holes.
    async fn lseek(
        &self,
        context: &Context,
        node: u64,
        handle: u64,
        offset: u64,
        whence: u32,
    ) -> Answer<u64> {
        Err(Errno::ENOSYS)
    }

    /// Copies between two open files of this mount. Answers how many bytes; may be fewer. After
    /// ENOSYS the kernel copies through its page cache.
    async fn copy_file_range(
        &self,
        context: &Context,
        node: u64,
        arguments: &CopyFileRangeIn,
    ) -> Answer<u64> {
        Err(Errno::ENOSYS)
    }

    /// Device-like control of a file.
    async fn ioctl(&self, context: &Context, node: u64, ioctl: &Ioctl<'_>) -> Answer<IoctlReply> {
        Err(Errno::ENOTTY)
    }

    /// The events that are ready. After ENOSYS the kernel says that all files always are.
    async fn poll(&self, context: &Context, node: u64, poll: &PollIn) -> Answer<u32> {
        Err(Errno::ENOSYS)
    }

    /// Attributes with the time of birth. After ENOSYS the kernel asks `getattr`.
    async fn statx(
        &self,
        context: &Context,
        node: u64,
        handle: Option<u64>,
        mask: u32,
    ) -> Answer<StatxReply> {
        Err(Errno::ENOSYS)
    }

    /// Makes everything durable.
    async fn syncfs(&self, context: &Context, node: u64) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// The mount is gone; nothing comes after it. Requests that were cut off may still be ending.
    async fn destroy(&self) {}
}
