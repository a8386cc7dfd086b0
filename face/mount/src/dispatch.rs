//! From a decoded request to the method of the file system, and from its answer to a response.
//!
//! Invariants: the answer of a file system is checked against the limits of the request (lengths, numbers)
//! before it goes to the kernel; no method gets a name that the decoder did not check.

use std::pin::{Pin, pin};

use ropewalk_base::abandon::Abandoned;
use ropewalk_base::pool::PoolBuffer;
use ropewalk_base::task::{Either, race};

use crate::abi::Opcode;
use crate::abi::replies as abi;
use crate::abi::requests::{InHeader, WriteIn};
use crate::decode::{Operation, Release, Request};
use crate::dev_loop::error_of;
use crate::errno::Errno;
use crate::filesystem::{Answer, Context, Filesystem, Interrupts};
use crate::interrupt::Level;
use crate::reply::{DirectoryReply, Entry, Opened};
use crate::response::{Reply, Response};
use crate::source::Ticket;

/// Runs an operation under the policy for signals of its caller, and answers.
///
/// Only an operation that waits for other processes is dropped at a signal. Every other operation goes on
/// without its caller, who is answered at once: dropped in the middle, it would leave things half done.
pub(crate) async fn answer<F: Filesystem, T: Ticket>(
    filesystem: &F,
    context: &Context,
    header: &InHeader,
    work: impl Future<Output = Answer<Response>>,
    reply: Reply<T>,
) {
    let opcode = Opcode::from_number(header.opcode);
    let policy = opcode.map_or(Interrupts::Never, |opcode| filesystem.interrupts(opcode));
    let level = match policy {
        Interrupts::AtSignal => {
            let outcome = match race(work, context.level(Level::Signal)).await {
                Either::Left(outcome) => outcome,
                Either::Right(()) => Err(Errno::EINTR),
            };
            return deliver(filesystem, context, header, outcome, reply).await;
        }
        Interrupts::AfterPatience => Level::Waited,
        Interrupts::WhenKilled => Level::Killed,
        Interrupts::Never => {
            return deliver(filesystem, context, header, work.await, reply).await;
        }
    };
    let abandoned = Abandoned::new();
    let work = pin!(work);
    let mut work = pin!(abandoned.clone().over(work));
    match race(work.as_mut(), context.level(level)).await {
        Either::Left(outcome) => deliver(filesystem, context, header, outcome, reply).await,
        Either::Right(()) => {
            reply.send(&Err(Errno::EINTR));
            abandoned.set();
            let _left = context.shared.note_left();
            if let Ok(response) = work.await {
                undo(filesystem, context, header, &response).await;
            }
        }
    }
}

async fn deliver<F: Filesystem, T: Ticket>(
    filesystem: &F,
    context: &Context,
    header: &InHeader,
    outcome: Answer<Response>,
    reply: Reply<T>,
) {
    let sent = reply.send(&outcome);
    if let (Ok(response), false) = (&outcome, sent) {
        undo(filesystem, context, header, response).await;
    }
}

/// Takes back the grants of a response, if the kernel was not told: a handle, which it will not release, and
/// look-ups, which it does not count.
async fn undo<F: Filesystem>(
    filesystem: &F,
    context: &Context,
    header: &InHeader,
    response: &Response,
) {
    let (node, handle) = match response {
        Response::Open(opened) => (header.node, opened.handle),
        Response::Create(entry, opened) => (entry.node, opened.handle),
        _ => (0, 0),
    };
    if node != 0 {
        let release =
            Release { handle, open_flags: 0, lock_owner: 0, flush: false, unlock_flock: false };
        let inode = filesystem.inode(node);
        // Nobody is left who could be told of a failure.
        let _ = if header.opcode == Opcode::OpenDirectory as u32 {
            boxed(filesystem.releasedir(context, inode, &release)).await
        } else {
            boxed(filesystem.release(context, inode, &release)).await
        };
    }
    match response {
        Response::Entry(entry) | Response::Create(entry, _) if entry.node != 0 => {
            filesystem.forget(entry.node, 1);
        }
        Response::Directory(listing) => {
            listing.nodes().into_iter().for_each(|node| filesystem.forget(node, 1));
        }
        _ => {}
    }
}

/// A method's future in a place of its own: most methods need little room, a few very much, and what
/// holds one of any kind would have to be as large as the largest, and be moved whole.
fn boxed<T: Future>(method: T) -> Pin<Box<T>> {
    Box::pin(method)
}

/// Serves a WRITE, whose data is in a buffer of its own.
pub(crate) async fn serve_write<F: Filesystem>(
    filesystem: &F,
    context: &Context,
    header: &InHeader,
    fixed: &[u8; size_of::<WriteIn>()],
    data: PoolBuffer,
) -> Answer<Response> {
    let dialect = context.shared.dialect.get();
    let write = match Request::parse_parts(*header, Some(fixed), &data, dialect) {
        Ok(Request { operation: Operation::Write { header, .. }, .. }) => header,
        _ => return Err(Errno::EIO),
    };
    let size = write.size;
    let written = boxed(filesystem.write(context, header.node, &write, data)).await?;
    if written > size {
        return Err(Errno::EIO);
    }
    Ok(Response::Write(abi::WriteOut { size: written, padding: 0 }))
}

/// Serves anything else.
pub(crate) async fn serve<F: Filesystem>(
    filesystem: &F,
    context: &Context,
    bytes: &[u8],
) -> Answer<Response> {
    let request = match Request::parse_dialect(bytes, context.shared.dialect.get()) {
        Ok(request) => request,
        Err(error) => {
            context.shared.count(|counters| counters.malformed += 1);
            return Err(error_of(error));
        }
    };
    context.parent_group.set(request.parent_group);
    let node = filesystem.inode(request.header.node);
    match request.operation {
        Operation::Lookup { .. }
        | Operation::SymbolicLink { .. }
        | Operation::MakeNode { .. }
        | Operation::MakeDirectory { .. }
        | Operation::Unlink { .. }
        | Operation::RemoveDirectory { .. }
        | Operation::Rename { .. }
        | Operation::Link { .. }
        | Operation::Create { .. }
        | Operation::TemporaryFile { .. } => {
            serve_named(filesystem, context, node, request.operation).await
        }
        Operation::GetAttributes { .. }
        | Operation::SetAttributes(_)
        | Operation::Statx { .. }
        | Operation::SetXattr(_)
        | Operation::GetXattr { .. }
        | Operation::ListXattr { .. }
        | Operation::RemoveXattr { .. }
        | Operation::Access { .. }
        | Operation::ReadLink
        | Operation::StatFs
        | Operation::SyncFs => serve_inode(filesystem, context, node, request.operation).await,
        _ => serve_file(filesystem, context, node, request.operation).await,
    }
}

async fn serve_named<F: Filesystem>(
    filesystem: &F,
    context: &Context,
    node: u64,
    operation: Operation<'_>,
) -> Answer<Response> {
    match operation {
        Operation::Lookup { name } => entry(boxed(filesystem.lookup(context, node, name)).await),
        Operation::SymbolicLink { name, target } => {
            new_entry(boxed(filesystem.symlink(context, node, name, target)).await)
        }
        Operation::MakeNode { name, mode, device, umask } => {
            new_entry(boxed(filesystem.mknod(context, node, name, mode, device, umask)).await)
        }
        Operation::MakeDirectory { name, mode, umask } => {
            new_entry(boxed(filesystem.mkdir(context, node, name, mode, umask)).await)
        }
        Operation::Unlink { name } => empty(boxed(filesystem.unlink(context, node, name)).await),
        Operation::RemoveDirectory { name } => {
            empty(boxed(filesystem.rmdir(context, node, name)).await)
        }
        Operation::Rename { name, new_parent, new_name, flags } => {
            empty(boxed(filesystem.rename(context, node, name, new_parent, new_name, flags)).await)
        }
        Operation::Link { old_node, new_name } => {
            new_entry(boxed(filesystem.link(context, old_node, node, new_name)).await)
        }
        Operation::Create { name, flags, mode, umask, .. } => {
            created(boxed(filesystem.create(context, node, name, mode, flags, umask)).await)
        }
        Operation::TemporaryFile { flags, mode, umask } => {
            created(boxed(filesystem.tmpfile(context, node, mode, flags, umask)).await)
        }
        _ => Err(Errno::ENOSYS),
    }
}

async fn serve_inode<F: Filesystem>(
    filesystem: &F,
    context: &Context,
    node: u64,
    operation: Operation<'_>,
) -> Answer<Response> {
    match operation {
        Operation::GetAttributes { handle } => {
            let reply = boxed(filesystem.getattr(context, node, handle)).await?;
            Ok(Response::Attributes(reply.to_abi()))
        }
        Operation::SetAttributes(changes) => {
            let reply = boxed(filesystem.setattr(context, node, &changes)).await?;
            Ok(Response::Attributes(reply.to_abi()))
        }
        Operation::Statx { handle, mask, .. } => {
            let reply = boxed(filesystem.statx(context, node, handle, mask)).await?;
            Ok(Response::Statx(reply.to_abi()))
        }
        Operation::SetXattr(set) => empty(boxed(filesystem.setxattr(context, node, &set)).await),
        Operation::GetXattr { name, size } => {
            xattr(boxed(filesystem.getxattr(context, node, name, size)).await, size)
        }
        Operation::ListXattr { size } => {
            xattr(boxed(filesystem.listxattr(context, node, size)).await, size)
        }
        Operation::RemoveXattr { name } => {
            empty(boxed(filesystem.removexattr(context, node, name)).await)
        }
        Operation::Access { mask } => empty(boxed(filesystem.access(context, node, mask)).await),
        Operation::ReadLink => {
            let target = boxed(filesystem.readlink(context, node)).await?;
            if target.len() > crate::abi::PATH_BYTES_MAX {
                return Err(Errno::ENAMETOOLONG);
            }
            Ok(Response::Bytes(target))
        }
        Operation::StatFs => {
            Ok(Response::StatFs(boxed(filesystem.statfs(context, node)).await?.to_abi()))
        }
        Operation::SyncFs => empty(boxed(filesystem.syncfs(context, node)).await),
        _ => Err(Errno::ENOSYS),
    }
}

async fn serve_file<F: Filesystem>(
    filesystem: &F,
    context: &Context,
    node: u64,
    operation: Operation<'_>,
) -> Answer<Response> {
    match operation {
        Operation::Open { flags, kill_privileges } => {
            opened(boxed(filesystem.open(context, node, flags, kill_privileges)).await)
        }
        Operation::OpenDirectory { flags } => {
            opened(boxed(filesystem.opendir(context, node, flags)).await)
        }
        Operation::Read(header) => {
            let data = boxed(filesystem.read(context, node, &header)).await?;
            if data.len() > header.size as usize {
                return Err(Errno::EIO);
            }
            Ok(Response::Data(data))
        }
        Operation::ReadDirectory { header, plus } => {
            let limit = header.size.min(context.shared.max_write_bytes.get());
            let mut reply = DirectoryReply::new(limit as usize, plus);
            boxed(filesystem.readdir(context, node, &header, &mut reply)).await?;
            Ok(Response::Directory(reply))
        }
        Operation::Release(release) => {
            empty(boxed(filesystem.release(context, node, &release)).await)
        }
        Operation::ReleaseDirectory(release) => {
            empty(boxed(filesystem.releasedir(context, node, &release)).await)
        }
        Operation::Flush { handle, lock_owner } => {
            empty(boxed(filesystem.flush(context, node, handle, lock_owner)).await)
        }
        Operation::Fsync { handle, data_only } => {
            empty(boxed(filesystem.fsync(context, node, handle, data_only)).await)
        }
        Operation::FsyncDirectory { handle, data_only } => {
            empty(boxed(filesystem.fsyncdir(context, node, handle, data_only)).await)
        }
        Operation::GetLock { handle, owner, lock } => {
            let found = boxed(filesystem.getlk(context, node, handle, owner, &lock)).await?;
            Ok(Response::Lock(abi::LockOut { lock: found.to_abi() }))
        }
        Operation::SetLock { handle, owner, lock, flock, wait } => empty(match (flock, wait) {
            (true, _) => boxed(filesystem.flock(context, node, handle, owner, &lock, wait)).await,
            (false, true) => boxed(filesystem.setlkw(context, node, handle, owner, &lock)).await,
            (false, false) => boxed(filesystem.setlk(context, node, handle, owner, &lock)).await,
        }),
        _ => serve_file_extra(filesystem, context, node, operation).await,
    }
}

async fn serve_file_extra<F: Filesystem>(
    filesystem: &F,
    context: &Context,
    node: u64,
    operation: Operation<'_>,
) -> Answer<Response> {
    match operation {
        Operation::Fallocate { handle, offset, length, mode } => {
            empty(boxed(filesystem.fallocate(context, node, handle, offset, length, mode)).await)
        }
        Operation::Seek { handle, offset, whence } => {
            let offset = boxed(filesystem.lseek(context, node, handle, offset, whence)).await?;
            Ok(Response::Seek(abi::SeekOut { offset }))
        }
        Operation::CopyFileRange { arguments, wide_reply } => {
            let bytes = boxed(filesystem.copy_file_range(context, node, &arguments)).await?;
            if bytes > arguments.len {
                return Err(Errno::EIO);
            }
            if wide_reply {
                return Ok(Response::CopyRange(abi::CopyFileRangeOut { bytes }));
            }
            // The narrow reply comes from kernels that ask for less than 4 GiB.
            let size = u32::try_from(bytes).map_err(|_| Errno::EIO)?;
            Ok(Response::Write(abi::WriteOut { size, padding: 0 }))
        }
        Operation::Ioctl(ioctl) => {
            let reply = boxed(filesystem.ioctl(context, node, &ioctl)).await?;
            if reply.output.len() > ioctl.output_bytes_max as usize {
                return Err(Errno::EIO);
            }
            let head = abi::IoctlOut { result: reply.result, ..abi::IoctlOut::default() };
            Ok(Response::Ioctl(head, reply.output))
        }
        Operation::Poll(poll) => {
            let events = boxed(filesystem.poll(context, node, &poll)).await?;
            Ok(Response::Poll(abi::PollOut { events, padding: 0 }))
        }
        // A WRITE in one piece has extensions, which no kernel sends.
        Operation::Write { .. } => Err(Errno::EIO),
        // `destroy` is called when the device says that the mount is gone.
        Operation::Destroy => Ok(Response::Empty),
        _ => Err(Errno::ENOSYS),
    }
}

fn empty(answer: Answer<()>) -> Answer<Response> {
    answer.map(|()| Response::Empty)
}

fn entry(answer: Answer<Entry>) -> Answer<Response> {
    answer.map(|entry| Response::Entry(entry.to_abi()))
}

/// An entry that was just made cannot be absent.
fn new_entry(answer: Answer<Entry>) -> Answer<Response> {
    let made = answer?;
    if made.attributes.node == 0 {
        return Err(Errno::EIO);
    }
    entry(Ok(made))
}

fn created(answer: Answer<(Entry, Opened)>) -> Answer<Response> {
    let (entry, opened) = answer?;
    if entry.attributes.node == 0 {
        return Err(Errno::EIO);
    }
    Ok(Response::Create(entry.to_abi(), opened.to_abi()))
}

/// ENOSYS would make the kernel open files by itself for as long as the mount lives.
fn opened(answer: Answer<Opened>) -> Answer<Response> {
    match answer {
        Ok(opened) => Ok(Response::Open(opened.to_abi())),
        Err(Errno::ENOSYS) => Err(Errno::EIO),
        Err(error) => Err(error),
    }
}

/// A value for a caller with `size` bytes of room; 0 asks for the length.
fn xattr(answer: Answer<Vec<u8>>, size: u32) -> Answer<Response> {
    let value = answer?;
    let len = u32::try_from(value.len()).map_err(|_| Errno::E2BIG)?;
    if size == 0 {
        return Ok(Response::XattrSize(abi::GetXattrOut { size: len, padding: 0 }));
    }
    if len > size {
        return Err(Errno::ERANGE);
    }
    Ok(Response::Bytes(value))
}
