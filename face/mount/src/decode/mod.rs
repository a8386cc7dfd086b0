//! From bytes of the kernel to typed requests.
//!
//! Invariants: no input panics; lengths are checked before anything is taken; nothing is
//! allocated, results borrow from the input. The kernel is trusted no more than a peer would be,
//! since the same decoder runs under the fuzzer.
//!
//! It must not know the loop, replies or any file system.

mod operation;
mod reader;

pub use operation::{
    Forgets, Init, Ioctl, Lock, LockKind, Operation, PollIn, ReadHeader, Release, SetAttributes,
    SetTime, SetXattr, Timestamp, WriteHeader,
};

use zerocopy::FromBytes;

use crate::abi::flags::{init, misc, set};
use crate::abi::requests as abi;
use crate::abi::{NAME_BYTES_MAX, Opcode, PATH_BYTES_MAX, extension};
use reader::Reader;

/// The reason that bytes are not a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end before the structure that the opcode promises.
    #[error("a FUSE request is shorter than its opcode demands")]
    Short,
    /// The header's length is not the number of bytes that came.
    #[error("a FUSE request says it has {said} bytes, but {came} came")]
    Length { said: u32, came: usize },
    /// A string has no terminator within the longest length allowed.
    #[error("a string in a FUSE request is too long or has no end")]
    Unterminated,
    /// A name is empty or holds a slash.
    #[error("a name in a FUSE request is empty or holds a slash")]
    BadName,
    /// A field has a value that the protocol does not know.
    #[error("a field of a FUSE request has an unknown value")]
    BadField,
    /// The extensions behind the body are not well formed.
    #[error("the extensions of a FUSE request are not well formed")]
    BadExtension,
    /// An opcode from the future, or none at all: to be answered with ENOSYS.
    #[error("FUSE opcode {0} is not known")]
    UnknownOpcode(u32),
}

/// The agreement at INIT, as far as it changes the layout of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dialect {
    /// SETXATTR has the longer header.
    pub setxattr_extended: bool,
}

impl Dialect {
    /// The dialect that kernels since 5.14 speak with us.
    pub const MODERN: Dialect = Dialect { setxattr_extended: true };
}

/// A request: its caller, its node and its operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    pub header: abi::InHeader,
    pub opcode: Opcode,
    pub operation: Operation<'a>,
    /// The caller's supplementary group that owns the parent directory, for requests that create.
    pub parent_group: Option<u32>,
}

/// The header alone.
pub fn parse_header(bytes: &[u8]) -> Result<abi::InHeader, DecodeError> {
    let (header, _) = abi::InHeader::read_from_prefix(bytes).map_err(|_| DecodeError::Short)?;
    Ok(header)
}

impl<'a> Request<'a> {
    /// Takes one request apart: header, body and extensions, as read from /dev/fuse.
    pub fn parse(bytes: &'a [u8]) -> Result<Request<'a>, DecodeError> {
        Request::parse_dialect(bytes, Dialect::MODERN)
    }

    /// As [`Request::parse`], in the dialect agreed on.
    pub fn parse_dialect(bytes: &'a [u8], dialect: Dialect) -> Result<Request<'a>, DecodeError> {
        let header = parse_header(bytes)?;
        if header.len as usize != bytes.len() {
            return Err(DecodeError::Length { said: header.len, came: bytes.len() });
        }
        let body = &bytes[size_of::<abi::InHeader>()..];
        Request::parse_parts(header, None, body, dialect)
    }

    /// Takes a request apart whose first structure lies in `fixed`, and everything behind it in
    /// `rest`.
    pub fn parse_parts(
        header: abi::InHeader,
        fixed: Option<&'a [u8]>,
        rest: &'a [u8],
        dialect: Dialect,
    ) -> Result<Request<'a>, DecodeError> {
        let number = header.opcode;
        let opcode = Opcode::from_number(number).ok_or(DecodeError::UnknownOpcode(number))?;
        let extension_bytes = usize::from(header.extension_words) * 8;
        let split = rest.len().checked_sub(extension_bytes).ok_or(DecodeError::BadExtension)?;
        let (rest, extensions) = rest.split_at(split);
        let parent_group = parse_extensions(extensions)?;
        let mut reader = Reader::new(fixed, rest);
        let operation = parse_operation(opcode, &mut reader, dialect)?;
        Ok(Request { header, opcode, operation, parent_group })
    }
}

/// The one group of the groups extension; other extensions are passed over.
fn parse_extensions(mut bytes: &[u8]) -> Result<Option<u32>, DecodeError> {
    let mut group = None;
    while !bytes.is_empty() {
        let (header, _) =
            abi::ExtensionHeader::read_from_prefix(bytes).map_err(|_| DecodeError::BadExtension)?;
        let size = header.size as usize;
        if size < size_of::<abi::ExtensionHeader>() || size > bytes.len() {
            return Err(DecodeError::BadExtension);
        }
        let body = &bytes[size_of::<abi::ExtensionHeader>()..size];
        if header.kind == extension::GROUPS {
            let (count, groups) =
                u32::read_from_prefix(body).map_err(|_| DecodeError::BadExtension)?;
            if count > 0 {
                let (first, _) =
                    u32::read_from_prefix(groups).map_err(|_| DecodeError::BadExtension)?;
                group = Some(first);
            }
        }
        bytes = &bytes[size.next_multiple_of(8).min(bytes.len())..];
    }
    Ok(group)
}

fn parse_operation<'a>(
    opcode: Opcode,
    reader: &mut Reader<'a>,
    dialect: Dialect,
) -> Result<Operation<'a>, DecodeError> {
    match opcode {
        Opcode::Lookup
        | Opcode::SymbolicLink
        | Opcode::MakeNode
        | Opcode::MakeDirectory
        | Opcode::Unlink
        | Opcode::RemoveDirectory
        | Opcode::Rename
        | Opcode::Rename2
        | Opcode::Link
        | Opcode::Create
        | Opcode::TemporaryFile => parse_named(opcode, reader),
        Opcode::Open
        | Opcode::OpenDirectory
        | Opcode::Read
        | Opcode::ReadDirectory
        | Opcode::ReadDirectoryPlus
        | Opcode::Write
        | Opcode::Flush
        | Opcode::Release
        | Opcode::ReleaseDirectory
        | Opcode::Fsync
        | Opcode::FsyncDirectory
        | Opcode::GetLock
        | Opcode::SetLock
        | Opcode::SetLockWait
        | Opcode::Fallocate
        | Opcode::Seek
        | Opcode::CopyFileRange
        | Opcode::CopyFileRange64
        | Opcode::Ioctl
        | Opcode::Poll => parse_file(opcode, reader),
        Opcode::GetAttributes
        | Opcode::SetAttributes
        | Opcode::Statx
        | Opcode::SetXattr
        | Opcode::GetXattr
        | Opcode::ListXattr
        | Opcode::RemoveXattr
        | Opcode::Access => parse_attributes(opcode, reader, dialect),
        Opcode::ReadLink => Ok(Operation::ReadLink),
        Opcode::StatFs => Ok(Operation::StatFs),
        Opcode::SyncFs => Ok(Operation::SyncFs),
        Opcode::Destroy => Ok(Operation::Destroy),
        Opcode::Init => parse_init(reader),
        Opcode::Interrupt => {
            let interrupt: abi::InterruptIn = reader.take()?;
            Ok(Operation::Interrupt { unique: interrupt.unique })
        }
        Opcode::Forget => {
            let forget: abi::ForgetIn = reader.take()?;
            Ok(Operation::Forget { lookups: forget.lookups })
        }
        Opcode::BatchForget => {
            let forget: abi::BatchForgetIn = reader.take()?;
            let one = size_of::<abi::ForgetOne>();
            let len = (forget.count as usize).checked_mul(one).ok_or(DecodeError::Short)?;
            Ok(Operation::BatchForget(Forgets { bytes: reader.bytes(len)? }))
        }
        Opcode::BlockMap | Opcode::NotifyReply | Opcode::SetupMapping | Opcode::RemoveMapping => {
            Ok(Operation::Unserved)
        }
    }
}

/// Requests about the entries of a directory.
fn parse_named<'a>(opcode: Opcode, reader: &mut Reader<'a>) -> Result<Operation<'a>, DecodeError> {
    Ok(match opcode {
        Opcode::SymbolicLink => {
            let name = reader.name()?;
            Operation::SymbolicLink { name, target: reader.string(PATH_BYTES_MAX)? }
        }
        Opcode::MakeNode => {
            let head: abi::MakeNodeIn = reader.take()?;
            Operation::MakeNode {
                name: reader.name()?,
                mode: head.mode,
                device: head.device,
                umask: head.umask,
            }
        }
        Opcode::MakeDirectory => {
            let head: abi::MakeDirectoryIn = reader.take()?;
            Operation::MakeDirectory { name: reader.name()?, mode: head.mode, umask: head.umask }
        }
        Opcode::Unlink => Operation::Unlink { name: reader.name()? },
        Opcode::RemoveDirectory => Operation::RemoveDirectory { name: reader.name()? },
        Opcode::Rename => {
            let head: abi::RenameIn = reader.take()?;
            let (name, new_name) = (reader.name()?, reader.name()?);
            Operation::Rename { name, new_parent: head.new_parent, new_name, flags: 0 }
        }
        Opcode::Rename2 => {
            let head: abi::Rename2In = reader.take()?;
            let (name, new_name) = (reader.name()?, reader.name()?);
            Operation::Rename { name, new_parent: head.new_parent, new_name, flags: head.flags }
        }
        Opcode::Link => {
            let head: abi::LinkIn = reader.take()?;
            Operation::Link { old_node: head.old_node, new_name: reader.name()? }
        }
        Opcode::Create => {
            let head: abi::CreateIn = reader.take()?;
            Operation::Create {
                name: reader.name()?,
                flags: head.flags,
                mode: head.mode,
                umask: head.umask,
                kill_privileges: head.open_flags & misc::OPEN_KILL_SUIDGID != 0,
            }
        }
        Opcode::TemporaryFile => {
            // A name follows, a mere slash, which means nothing.
            let head: abi::CreateIn = reader.take()?;
            Operation::TemporaryFile { flags: head.flags, mode: head.mode, umask: head.umask }
        }
        _ => Operation::Lookup { name: reader.name()? },
    })
}

/// Requests about open files.
fn parse_file<'a>(opcode: Opcode, reader: &mut Reader<'a>) -> Result<Operation<'a>, DecodeError> {
    Ok(match opcode {
        Opcode::Open => {
            let head: abi::OpenIn = reader.take()?;
            let kill_privileges = head.open_flags & misc::OPEN_KILL_SUIDGID != 0;
            Operation::Open { flags: head.flags, kill_privileges }
        }
        Opcode::OpenDirectory => {
            let head: abi::OpenIn = reader.take()?;
            Operation::OpenDirectory { flags: head.flags }
        }
        Opcode::Read => Operation::Read(read_header(reader.take()?)),
        Opcode::ReadDirectory => {
            Operation::ReadDirectory { header: read_header(reader.take()?), plus: false }
        }
        Opcode::ReadDirectoryPlus => {
            Operation::ReadDirectory { header: read_header(reader.take()?), plus: true }
        }
        Opcode::Write => {
            let header = write_header(reader.take()?);
            Operation::Write { header, data: reader.bytes(header.size as usize)? }
        }
        Opcode::Flush => {
            let head: abi::FlushIn = reader.take()?;
            Operation::Flush { handle: head.handle, lock_owner: head.lock_owner }
        }
        Opcode::Release => Operation::Release(release(reader.take()?)),
        Opcode::ReleaseDirectory => Operation::ReleaseDirectory(release(reader.take()?)),
        Opcode::Fsync => {
            let head: abi::FsyncIn = reader.take()?;
            let data_only = head.flags & misc::FSYNC_DATA_ONLY != 0;
            Operation::Fsync { handle: head.handle, data_only }
        }
        Opcode::FsyncDirectory => {
            let head: abi::FsyncIn = reader.take()?;
            let data_only = head.flags & misc::FSYNC_DATA_ONLY != 0;
            Operation::FsyncDirectory { handle: head.handle, data_only }
        }
        Opcode::GetLock => {
            let head: abi::LockIn = reader.take()?;
            let lock = Lock::from_abi(head.lock).ok_or(DecodeError::BadField)?;
            Operation::GetLock { handle: head.handle, owner: head.owner, lock }
        }
        Opcode::SetLock | Opcode::SetLockWait => {
            let head: abi::LockIn = reader.take()?;
            Operation::SetLock {
                handle: head.handle,
                owner: head.owner,
                lock: Lock::from_abi(head.lock).ok_or(DecodeError::BadField)?,
                flock: head.flags & misc::LOCK_FLOCK != 0,
                wait: opcode == Opcode::SetLockWait,
            }
        }
        _ => return parse_file_extra(opcode, reader),
    })
}

/// The rarer requests about open files.
fn parse_file_extra<'a>(
    opcode: Opcode,
    reader: &mut Reader<'a>,
) -> Result<Operation<'a>, DecodeError> {
    Ok(match opcode {
        Opcode::Fallocate => {
            let head: abi::FallocateIn = reader.take()?;
            Operation::Fallocate {
                handle: head.handle,
                offset: head.offset,
                length: head.length,
                mode: head.mode,
            }
        }
        Opcode::Seek => {
            let head: abi::SeekIn = reader.take()?;
            Operation::Seek { handle: head.handle, offset: head.offset, whence: head.whence }
        }
        Opcode::CopyFileRange | Opcode::CopyFileRange64 => Operation::CopyFileRange {
            arguments: reader.take()?,
            wide_reply: opcode == Opcode::CopyFileRange64,
        },
        Opcode::Ioctl => {
            let head: abi::IoctlIn = reader.take()?;
            let input = reader.bytes(head.in_size as usize)?;
            Operation::Ioctl(Ioctl::new(head, input))
        }
        Opcode::Poll => {
            let head: abi::PollIn = reader.take()?;
            let wanted = head.flags & misc::POLL_SCHEDULE_NOTIFY != 0;
            let wake = wanted.then_some(head.kernel_handle);
            Operation::Poll(PollIn { handle: head.handle, wake, events: head.events })
        }
        _ => Operation::Unserved,
    })
}

/// Requests about attributes, plain and extended.
fn parse_attributes<'a>(
    opcode: Opcode,
    reader: &mut Reader<'a>,
    dialect: Dialect,
) -> Result<Operation<'a>, DecodeError> {
    Ok(match opcode {
        Opcode::GetAttributes => {
            let head: abi::GetAttributesIn = reader.take()?;
            let handle = (head.flags & misc::GETATTR_HANDLE != 0).then_some(head.handle);
            Operation::GetAttributes { handle }
        }
        Opcode::Statx => {
            let head: abi::StatxIn = reader.take()?;
            let handle = (head.getattr_flags & misc::GETATTR_HANDLE != 0).then_some(head.handle);
            Operation::Statx { handle, flags: head.flags, mask: head.mask }
        }
        Opcode::SetAttributes => Operation::SetAttributes(set_attributes(&reader.take()?)),
        Opcode::SetXattr => {
            let (size, flags, more) = if dialect.setxattr_extended {
                let head: abi::SetXattrIn = reader.take()?;
                (head.size, head.flags, head.setxattr_flags)
            } else {
                let head: abi::SetXattrShortIn = reader.take()?;
                (head.size, head.flags, 0)
            };
            let kill_sgid = more & misc::SETXATTR_ACL_KILL_SGID != 0;
            let name = reader.string(NAME_BYTES_MAX)?;
            let value = reader.bytes(size as usize)?;
            Operation::SetXattr(SetXattr { name, value, flags, kill_sgid })
        }
        Opcode::GetXattr => {
            let head: abi::GetXattrIn = reader.take()?;
            Operation::GetXattr { name: reader.string(NAME_BYTES_MAX)?, size: head.size }
        }
        Opcode::ListXattr => {
            let head: abi::GetXattrIn = reader.take()?;
            Operation::ListXattr { size: head.size }
        }
        Opcode::RemoveXattr => Operation::RemoveXattr { name: reader.string(NAME_BYTES_MAX)? },
        _ => {
            let head: abi::AccessIn = reader.take()?;
            Operation::Access { mask: head.mask }
        }
    })
}

fn parse_init<'a>(reader: &mut Reader<'a>) -> Result<Operation<'a>, DecodeError> {
    let head: abi::InitIn = reader.take()?;
    let mut flags = u64::from(head.flags);
    if flags & init::INIT_EXT != 0 {
        let upper: u32 = reader.take()?;
        flags |= u64::from(upper) << 32;
    }
    Ok(Operation::Init(Init {
        major: head.major,
        minor: head.minor,
        max_readahead: head.max_readahead,
        flags,
    }))
}

fn read_header(head: abi::ReadIn) -> ReadHeader {
    let owned = head.read_flags & misc::READ_LOCK_OWNER != 0;
    ReadHeader {
        handle: head.handle,
        offset: head.offset,
        size: head.size,
        open_flags: head.flags,
        lock_owner: owned.then_some(head.lock_owner),
    }
}

fn write_header(head: abi::WriteIn) -> WriteHeader {
    let owned = head.write_flags & misc::WRITE_LOCK_OWNER != 0;
    WriteHeader {
        handle: head.handle,
        offset: head.offset,
        size: head.size,
        open_flags: head.flags,
        lock_owner: owned.then_some(head.lock_owner),
        from_page_cache: head.write_flags & misc::WRITE_CACHE != 0,
        kill_privileges: head.write_flags & misc::WRITE_KILL_SUIDGID != 0,
    }
}

fn release(head: abi::ReleaseIn) -> Release {
    Release {
        handle: head.handle,
        open_flags: head.flags,
        lock_owner: head.lock_owner,
        flush: head.release_flags & misc::RELEASE_FLUSH != 0,
        unlock_flock: head.release_flags & misc::RELEASE_FLOCK_UNLOCK != 0,
    }
}

fn set_attributes(head: &abi::SetAttributesIn) -> SetAttributes {
    let has = |bit: u32| head.valid & bit != 0;
    let at = |seconds: u64, nanos: u32| Timestamp {
        seconds: seconds as i64,
        nanos: nanos.min(999_999_999),
    };
    let time = |bit: u32, now: u32, seconds: u64, nanos: u32| match (has(now), has(bit)) {
        (true, _) => Some(SetTime::Now),
        (false, true) => Some(SetTime::At(at(seconds, nanos))),
        (false, false) => None,
    };
    SetAttributes {
        handle: has(set::HANDLE).then_some(head.handle),
        lock_owner: has(set::LOCK_OWNER).then_some(head.lock_owner),
        mode: has(set::MODE).then_some(head.mode),
        uid: has(set::UID).then_some(head.uid),
        gid: has(set::GID).then_some(head.gid),
        size: has(set::SIZE).then_some(head.size),
        atime: time(set::ATIME, set::ATIME_NOW, head.atime, head.atime_nanos),
        mtime: time(set::MTIME, set::MTIME_NOW, head.mtime, head.mtime_nanos),
        ctime: has(set::CTIME).then(|| at(head.ctime, head.ctime_nanos)),
        kill_privileges: has(set::KILL_SUIDGID),
    }
}
