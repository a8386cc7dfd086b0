//! Files: opening, reading, writing, making durable, holes.

use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::pool::PoolBuffer;
use ropewalk_client::{Access, Actor, File, How, OpenOptions, Path};

use super::ClusterFileSystem;
use super::convert::errno;
use super::handles::Open;
use crate::decode::{ReadHeader, WriteHeader};
use crate::errno::Errno;
use crate::filesystem::{Answer, Context};
use crate::reply::{Data, Opened};

/// Until a read without a buffer looks for one again: transfers under way have all of them.
const LOOK_AGAIN: Duration = Duration::from_micros(500);

/// Bits of `open(2)`.
pub(super) fn options(flags: u32) -> OpenOptions {
    let flags = flags as i32;
    let access = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => Access { read: true, write: false },
        libc::O_WRONLY => Access { read: false, write: true },
        _ => Access { read: true, write: true },
    };
    OpenOptions {
        access,
        truncate: flags & libc::O_TRUNC != 0,
        append: flags & libc::O_APPEND != 0,
    }
}

/// The caller of an operation. The kernel passes the lock owner with I/O past its page cache, and only with
/// that.
pub(super) fn actor(context: &Context, owner: Option<u64>) -> Actor {
    let path = if owner.is_some() { Path::Direct } else { Path::Pages };
    Actor { owner, thread: context.pid, path }
}

impl ClusterFileSystem {
    pub(super) fn opened(&self, file: File) -> Result<Opened, Errno> {
        let number = file.number();
        let cached = self.client.is_cached(number);
        let direct = !cached || file.options().append;
        let handle = self.handles.borrow_mut().add(Open::File(Rc::new(file), direct))?;
        Ok(Opened {
            handle,
            // Several clients use it and one of them writes: every read asks. Appends go direct
            // in any case: a write through the page cache that begins within a page comes as two
            // requests, and somebody else's append could get between them.
            direct,
            keep_cache: cached,
            cache_directory: false,
            parallel_direct_writes: true,
            // Closing has to be told only where locks were taken; `flush` sees to that.
            no_flush: false,
            stream: false,
        })
    }

    async fn buffer(&self, len: usize) -> PoolBuffer {
        loop {
            match self.client.pool().take(len) {
                Some(buffer) => return buffer,
                // Others give theirs back as their transfers end.
                None => self.client.world().sleep(LOOK_AGAIN).await,
            }
        }
    }

    pub(super) async fn read_file(&self, context: &Context, header: &ReadHeader) -> Answer<Data> {
        let file = self.handles.borrow().file(header.handle)?;
        let buffer = self.buffer(header.size as usize).await;
        let actor = actor(context, header.lock_owner);
        let read = self.client.read_for_kernel(&file, header.offset, buffer, &actor);
        let (mut buffer, len) = read.await.map_err(errno)?;
        buffer.set_len(len);
        Ok(Data::of(buffer))
    }

    pub(super) async fn write_file(
        &self,
        context: &Context,
        header: &WriteHeader,
        data: PoolBuffer,
    ) -> Answer<u32> {
        self.may_change()?;
        let (file, direct) = self.handles.borrow().file_to_write(header.handle)?;
        let len = data.len();
        let asks = |flag: i32| header.open_flags as i32 & flag != 0 && !header.from_page_cache;
        // As the descriptor is now: fcntl(2) changes it. Data written back from a memory map has its place,
        // also in a file opened to append.
        let append = asks(libc::O_APPEND);
        let actor = match header.from_page_cache {
            false => actor(context, header.lock_owner),
            true => Actor { path: Path::WriteBack, ..actor(context, None) },
        };
        let how = How { append, kill_privileges: header.kill_privileges, actor };
        let written = self.client.write_for_kernel(&file, header.offset, data, 0..len, how);
        written.await.map_err(errno)?;
        // The kernel syncs behind what went through its pages, and only behind that.
        if direct && asks(libc::O_DSYNC) {
            self.client.sync_for_kernel(&file, &actor).await.map_err(errno)?;
        }
        Ok(len as u32)
    }
}
