//! The kernel's requests, one by one.

use std::rc::Rc;

use ropewalk_base::abandon::Abandoned;
use ropewalk_base::pool::PoolBuffer;
use ropewalk_client::{
    self as client, Actor, AttributeChange, Node, OpenOptions, Path, RenameMode,
};

use super::ClusterFileSystem;
use super::convert::{entry_kind, errno, errno_in, time_change};
use super::files::{actor, options};
use super::handles::{Listing, Open, OpenDirectory};
use crate::abi::Opcode;
use crate::caller::Capability;
use crate::decode::{Lock, ReadHeader, Release, SetAttributes, SetXattr, WriteHeader};
use crate::errno::Errno;
use crate::filesystem::{Answer, Context, Filesystem, Interrupts};
use crate::reply::{AttributesReply, Data, DirectoryReply, Entry, EntryKind, Opened, StatFs};

/// Offsets of `.` and `..` in a listing; entries never have them.
const SELF_COOKIE: u64 = 1;
const PARENT_COOKIE: u64 = 2;
const FRAGMENT_BYTES: u64 = 4096;
/// Bit of the kernel's own in the flags of OPEN: the file is opened to be executed. No program can set
/// it.
const FOR_EXECUTION: u32 = 0x20;
/// The name space of extended attributes that only the superuser sees.
const TRUSTED: &[u8] = b"trusted.";

/// A list of names of extended attributes, without those that its caller must not see. The kernel
/// leaves that to file systems. `administers` is asked where it matters.
fn listed_for(names: Vec<u8>, administers: impl FnOnce() -> bool) -> Vec<u8> {
    let all = || names.split_inclusive(|byte| *byte == 0);
    if !all().any(|name| name.starts_with(TRUSTED)) || administers() {
        return names;
    }
    all().filter(|name| !name.starts_with(TRUSTED)).flatten().copied().collect()
}

impl ClusterFileSystem {
    async fn make(
        &self,
        context: &Context,
        parent: u64,
        name: &[u8],
        mode: u32,
        node: Node<'_>,
    ) -> Answer<Entry> {
        self.may_change()?;
        let (caller, mode) = (self.maker(context, mode), mode as u16 & 0o7777);
        let made = self.client.make(&caller, parent, name, mode, node).await;
        Ok(self.entry_at(context.node, name, &made.map_err(errno_in)?).await)
    }

    /// Fetches entries behind `offset`, unless they are there from an earlier call.
    async fn fetch(
        &self,
        context: &Context,
        node: u64,
        directory: &OpenDirectory,
        offset: u64,
        plus: bool,
    ) -> Answer<()> {
        let cookie = if offset <= PARENT_COOKIE { 0 } else { offset };
        {
            let listing = directory.listing.borrow();
            let usable = listing.at == cookie
                && (!listing.entries.is_empty() || listing.end)
                && (!plus || listing.plus);
            if usable && cookie != 0 {
                return Ok(());
            }
        }
        let caller = self.caller(context);
        let (entries, end) =
            self.client.read_directory(&caller, node, cookie, plus).await.map_err(errno_in)?;
        *directory.listing.borrow_mut() =
            Listing { at: cookie, entries: entries.into(), end, plus };
        Ok(())
    }
}

impl Filesystem for ClusterFileSystem {
    fn interrupts(&self, opcode: Opcode) -> Interrupts {
        super::locks::interrupts(opcode)
    }

    async fn lookup(&self, context: &Context, parent: u64, name: &[u8]) -> Answer<Entry> {
        let caller = self.caller(context);
        let found = self.client.lookup(&caller, parent, name).await.map_err(errno_in)?;
        self.client.looked_up(found.inode, context.pid);
        Ok(self.entry_at(context.node, name, &found).await)
    }

    fn inode(&self, node: u64) -> u64 {
        self.places.borrow().inode(node)
    }

    fn forget(&self, node: u64, lookups: u64) {
        let inode = self.inode(node);
        if !self.places.borrow_mut().forgotten(node, lookups) {
            // Nothing is found by name here any more: the kernel forgets such a node all at once.
            self.client.forget_nameless(inode);
        }
    }

    async fn getattr(
        &self,
        context: &Context,
        node: u64,
        handle: Option<u64>,
    ) -> Answer<AttributesReply> {
        if self.client.has_lost_locks(node)
            && let Some(handle) = handle
        {
            // Asked on the way of a read, which pages that others read could answer.
            let file = self.handles.borrow().file(handle)?;
            self.client.check_locks(&file, &actor(context, None)).map_err(errno)?;
        }
        let found = self.client.attributes(node).await.map_err(errno)?;
        Ok(self.attributes_reply(&found))
    }

    async fn setattr(
        &self,
        context: &Context,
        node: u64,
        changes: &SetAttributes,
    ) -> Answer<AttributesReply> {
        self.may_change()?;
        let change = AttributeChange {
            mode: changes.mode.map(|mode| mode as u16 & 0o7777),
            user: changes.uid,
            group: changes.gid,
            size: changes.size,
            accessed: time_change(changes.atime),
            modified: time_change(changes.mtime),
            kill_privileges: changes.kill_privileges,
            kill_capability: false,
            through_handle: changes.handle.is_some(),
        };
        if changes.size.is_some() && self.client.has_lost_locks(node) {
            match changes.handle {
                Some(handle) => {
                    let file = self.handles.borrow().file(handle)?;
                    self.client.check_locks(&file, &actor(context, None)).map_err(errno)?;
                }
                None => {
                    self.client.check_locks_of_thread(node, context.pid).map_err(errno)?;
                }
            }
        }
        let caller = self.caller_keeping(context, !changes.kill_privileges);
        let changed = self.client.set_attributes(&caller, node, change).await.map_err(errno)?;
        Ok(self.attributes_reply(&changed))
    }

    async fn readlink(&self, _context: &Context, node: u64) -> Answer<Vec<u8>> {
        self.client.read_link(node).await.map_err(errno)
    }

    async fn symlink(
        &self,
        context: &Context,
        parent: u64,
        name: &[u8],
        target: &[u8],
    ) -> Answer<Entry> {
        self.make(context, parent, name, 0o777, Node::symlink(target)).await
    }

    async fn mknod(
        &self,
        context: &Context,
        parent: u64,
        name: &[u8],
        mode: u32,
        device: u32,
        _umask: u32,
    ) -> Answer<Entry> {
        let node = match mode & libc::S_IFMT {
            libc::S_IFIFO => Node::Fifo,
            libc::S_IFSOCK => Node::Socket,
            libc::S_IFCHR => Node::CharacterDevice(device),
            libc::S_IFBLK => Node::BlockDevice(device),
            libc::S_IFREG | 0 => Node::File,
            _ => return Err(Errno::EINVAL),
        };
        self.make(context, parent, name, mode, node).await
    }

    async fn mkdir(
        &self,
        context: &Context,
        parent: u64,
        name: &[u8],
        mode: u32,
        _umask: u32,
    ) -> Answer<Entry> {
        self.make(context, parent, name, mode, Node::Directory).await
    }

    async fn unlink(&self, context: &Context, parent: u64, name: &[u8]) -> Answer<()> {
        self.may_change()?;
        self.client.unlink(&self.caller(context), parent, name).await.map_err(errno_in)
    }

    async fn rmdir(&self, context: &Context, parent: u64, name: &[u8]) -> Answer<()> {
        self.may_change()?;
        let removed = self.client.remove_directory(&self.caller(context), parent, name).await;
        removed.map_err(errno_in)?;
        if !Abandoned::is_current() {
            self.places.borrow_mut().removed(context.node, name);
        }
        Ok(())
    }

    async fn rename(
        &self,
        context: &Context,
        parent: u64,
        name: &[u8],
        new_node: u64,
        new_name: &[u8],
        flags: u32,
    ) -> Answer<()> {
        self.may_change()?;
        let mode = match flags {
            0 => RenameMode::Replace,
            libc::RENAME_NOREPLACE => RenameMode::NoReplace,
            libc::RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return Err(Errno::EINVAL),
        };
        let caller = self.caller(context);
        let new_parent = self.inode(new_node);
        let renamed = self.client.rename(&caller, parent, name, new_parent, new_name, mode);
        renamed.await.map_err(errno_in)?;
        // If the kernel was told that the call was given up, it moves nothing.
        if !Abandoned::is_current() {
            let (from, to) = ((context.node, name), (new_node, new_name));
            let mut places = self.places.borrow_mut();
            match mode {
                RenameMode::Exchange => places.exchanged(from, to),
                _ => places.moved(from, to),
            }
        }
        Ok(())
    }

    async fn link(
        &self,
        context: &Context,
        node: u64,
        new_parent: u64,
        new_name: &[u8],
    ) -> Answer<Entry> {
        self.may_change()?;
        let caller = self.caller(context);
        let linked = self.client.link(&caller, node, new_parent, new_name).await;
        Ok(self.entry_at(context.node, new_name, &linked.map_err(errno_in)?).await)
    }

    async fn open(
        &self,
        context: &Context,
        node: u64,
        flags: u32,
        kill_privileges: bool,
    ) -> Answer<Opened> {
        let wanted = options(flags);
        if wanted.access.write || wanted.truncate {
            self.may_change()?;
        }
        if wanted.truncate {
            self.client.check_locks_of_thread(node, context.pid).map_err(errno)?;
        }
        let caller = self.caller_keeping(context, !kill_privileges);
        let file = match flags & FOR_EXECUTION {
            0 => self.client.open(&caller, node, wanted).await,
            _ => self.client.open_to_execute(&caller, node).await,
        };
        self.opened(file.map_err(errno)?)
    }

    async fn read(&self, context: &Context, _node: u64, header: &ReadHeader) -> Answer<Data> {
        self.read_file(context, header).await
    }

    async fn write(
        &self,
        context: &Context,
        _node: u64,
        header: &WriteHeader,
        data: PoolBuffer,
    ) -> Answer<u32> {
        self.write_file(context, header, data).await
    }

    async fn flush(
        &self,
        _context: &Context,
        node: u64,
        handle: u64,
        lock_owner: u64,
    ) -> Answer<()> {
        self.closed(node, lock_owner).await?;
        let file = self.handles.borrow().file(handle)?;
        if file.options().access.write && self.client.needs_flush(&file) {
            // Data of a closed file survives a kill of this process right after the close, or its loss is
            // reported.
            self.client.flush(&file).await.map_err(errno)?;
        }
        Ok(())
    }

    async fn release(&self, _context: &Context, _node: u64, release: &Release) -> Answer<()> {
        let open = self.handles.borrow_mut().remove(release.handle);
        if let Some(Open::File(file, _)) = &open {
            self.client.forget_lost_locks(file);
        }
        drop(open);
        self.let_go(release.handle).await
    }

    async fn fsync(
        &self,
        context: &Context,
        _node: u64,
        handle: u64,
        _data_only: bool,
    ) -> Answer<()> {
        let file = self.handles.borrow().file(handle)?;
        self.client.sync_for_kernel(&file, &actor(context, None)).await.map_err(errno)
    }

    async fn opendir(&self, _context: &Context, _node: u64, _flags: u32) -> Answer<Opened> {
        let directory = OpenDirectory::new();
        let handle = self.handles.borrow_mut().add(Open::Directory(Rc::new(directory)))?;
        Ok(Opened {
            handle,
            direct: false,
            keep_cache: false,
            cache_directory: false,
            parallel_direct_writes: false,
            no_flush: true,
            stream: false,
        })
    }

    async fn readdir(
        &self,
        context: &Context,
        node: u64,
        header: &ReadHeader,
        reply: &mut DirectoryReply,
    ) -> Answer<()> {
        let directory = self.handles.borrow().directory(header.handle)?;
        let _turn = directory.turn.acquire().await;
        let mut offset = header.offset;
        for (cookie, name) in [(SELF_COOKIE, &b"."[..]), (PARENT_COOKIE, &b".."[..])] {
            if offset < cookie {
                if !reply.add(node, cookie, EntryKind::Directory, name) {
                    return Ok(());
                }
                offset = cookie;
            }
        }
        let plus = reply.is_plus();
        loop {
            self.fetch(context, node, &directory, offset, plus).await?;
            loop {
                let next = directory.listing.borrow().entries.front().cloned();
                let Some(entry) = next else { break };
                // As they are now, not as they were fetched: the kernel takes them for newer than all that was
                // answered before this request. The kernel looks up entries without a lease when it wants them.
                let covered = if plus { self.client.covered(entry.inode) } else { None };
                let added = match covered {
                    Some(found) => {
                        let full = self.entry_at(context.node, &entry.name, &found).await;
                        let added = reply.add_plus(&full, entry.cookie, &entry.name);
                        if !added && full.attributes.is_directory() {
                            // The kernel does not count it.
                            self.places.borrow_mut().forgotten(full.node(), 1);
                        }
                        added
                    }
                    None => {
                        reply.add(entry.inode, entry.cookie, entry_kind(entry.kind), &entry.name)
                    }
                };
                if !added {
                    return Ok(());
                }
                let mut listing = directory.listing.borrow_mut();
                listing.entries.pop_front();
                listing.at = entry.cookie;
                offset = entry.cookie;
            }
            // The kernel asks again from where this reply ends.
            if directory.listing.borrow().end || !reply.is_empty() {
                return Ok(());
            }
        }
    }

    async fn releasedir(&self, _context: &Context, _node: u64, release: &Release) -> Answer<()> {
        let open = self.handles.borrow_mut().remove(release.handle);
        drop(open);
        Ok(())
    }

    async fn fsyncdir(
        &self,
        _context: &Context,
        node: u64,
        _handle: u64,
        _data_only: bool,
    ) -> Answer<()> {
        self.client.sync_number(node).await.map_err(errno)
    }

    async fn statfs(&self, _context: &Context, _node: u64) -> Answer<StatFs> {
        let status = self.client.status().await.map_err(errno)?;
        let available = status.available_bytes / FRAGMENT_BYTES;
        Ok(StatFs {
            blocks: status.total_bytes / FRAGMENT_BYTES,
            blocks_free: status.free_bytes / FRAGMENT_BYTES,
            blocks_available: available,
            files: status.inodes.saturating_add(available),
            files_free: available,
            block_bytes: 1 << 20,
            name_bytes_max: 255,
            fragment_bytes: FRAGMENT_BYTES as u32,
        })
    }

    async fn setxattr(&self, context: &Context, node: u64, set: &SetXattr<'_>) -> Answer<()> {
        self.may_change()?;
        let flags = set.flags as i32;
        let (create, replace) = (flags & libc::XATTR_CREATE != 0, flags & libc::XATTR_REPLACE != 0);
        let caller = self.caller(context);
        let done = self.client.set_xattr(&caller, node, set.name, set.value, (create, replace));
        done.await.map_err(errno)
    }

    async fn getxattr(
        &self,
        context: &Context,
        node: u64,
        name: &[u8],
        _size: u32,
    ) -> Answer<Vec<u8>> {
        self.client.get_xattr(&self.caller(context), node, name).await.map_err(errno)
    }

    async fn listxattr(&self, context: &Context, node: u64, _size: u32) -> Answer<Vec<u8>> {
        let names = self.client.list_xattr(&self.caller(context), node).await.map_err(errno)?;
        Ok(listed_for(names, || context.has_capability(Capability::Administer)))
    }

    async fn removexattr(&self, context: &Context, node: u64, name: &[u8]) -> Answer<()> {
        self.may_change()?;
        self.client.remove_xattr(&self.caller(context), node, name).await.map_err(errno)
    }

    async fn create(
        &self,
        context: &Context,
        parent: u64,
        name: &[u8],
        mode: u32,
        flags: u32,
        _umask: u32,
    ) -> Answer<(Entry, Opened)> {
        self.may_change()?;
        let (caller, mode) = (self.maker(context, mode), mode as u16 & 0o7777);
        let exclusive = flags as i32 & libc::O_EXCL != 0;
        let options = options(flags);
        let created = self.client.create(&caller, parent, name, mode, exclusive, options).await;
        let (attributes, file, _) = created.map_err(|error| match error {
            // The kernel saw nothing there when it asked, and would have followed a link, or gone to
            // a fifo by itself: at ESTALE it looks anew.
            client::Errno::ELOOP | client::Errno::ENXIO if !exclusive => Errno::ESTALE,
            error => errno_in(error),
        })?;
        let opened = self.opened(file)?;
        Ok((self.entry_at(context.node, name, &attributes).await, opened))
    }

    async fn tmpfile(
        &self,
        context: &Context,
        parent: u64,
        mode: u32,
        flags: u32,
        _umask: u32,
    ) -> Answer<(Entry, Opened)> {
        self.may_change()?;
        let (caller, mode) = (self.maker(context, mode), mode as u16 & 0o7777);
        let options = OpenOptions { truncate: false, ..options(flags) };
        let created = self.client.create_temporary(&caller, parent, mode, options).await;
        let (attributes, file) = created.map_err(errno_in)?;
        let opened = self.opened(file)?;
        Ok((self.entry(&attributes), opened))
    }

    async fn getlk(
        &self,
        _context: &Context,
        node: u64,
        _handle: u64,
        owner: u64,
        lock: &Lock,
    ) -> Answer<Lock> {
        self.test(node, owner, lock).await
    }

    async fn setlk(
        &self,
        context: &Context,
        node: u64,
        handle: u64,
        owner: u64,
        lock: &Lock,
    ) -> Answer<()> {
        self.lock(context, (node, handle), owner, lock, (false, false)).await
    }

    async fn setlkw(
        &self,
        context: &Context,
        node: u64,
        handle: u64,
        owner: u64,
        lock: &Lock,
    ) -> Answer<()> {
        self.lock(context, (node, handle), owner, lock, (false, true)).await
    }

    async fn flock(
        &self,
        context: &Context,
        node: u64,
        handle: u64,
        owner: u64,
        lock: &Lock,
        wait: bool,
    ) -> Answer<()> {
        self.lock(context, (node, handle), owner, lock, (true, wait)).await
    }

    async fn fallocate(
        &self,
        context: &Context,
        _node: u64,
        handle: u64,
        offset: u64,
        length: u64,
        mode: u32,
    ) -> Answer<()> {
        self.may_change()?;
        let file = self.handles.borrow().file(handle)?;
        let mode = mode as i32;
        let keep = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let zero = mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) != 0;
        let known =
            libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
        if mode & !known != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let keeps = || context.has_capability(Capability::SetIds);
        let actor = Actor { path: Path::Direct, ..actor(context, None) };
        let done = self.client.allocate(&file, offset, length, (keep, zero), keeps, &actor).await;
        done.map_err(errno)
    }

    async fn lseek(
        &self,
        _context: &Context,
        _node: u64,
        handle: u64,
        offset: u64,
        whence: u32,
    ) -> Answer<u64> {
        let file = self.handles.borrow().file(handle)?;
        let hole = match whence as i32 {
            libc::SEEK_DATA => false,
            libc::SEEK_HOLE => true,
            _ => return Err(Errno::EINVAL),
        };
        self.client.seek(&file, offset, hole).await.map_err(errno)
    }

    async fn syncfs(&self, _context: &Context, _node: u64) -> Answer<()> {
        self.client.sync_all().await.map_err(errno)
    }

    async fn destroy(&self) {
        self.client.stop().await;
    }
}
