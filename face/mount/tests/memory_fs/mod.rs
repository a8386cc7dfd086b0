//! A POSIX file system in memory, to test the mount with.
//!
//! Names that begin with `hang-` wait for ever: `hang-lookup` when looked up, `hang-mkdir` when
//! made; a file `hang-open` when opened, `hang-read` when read.

#![allow(dead_code, reason = "every user of this module needs another part of it")]

mod contents;
mod locks;
mod tree;

use std::cell::{Cell, RefCell};
use std::time::Duration;

use ropewalk_base::pool::{Pool, PoolBuffer};
use ropewalk_mount::abi::requests::CopyFileRangeIn;
use ropewalk_mount::decode::{
    Lock, LockKind, ReadHeader, Release, SetAttributes, SetTime, SetXattr, WriteHeader,
};
use ropewalk_mount::filesystem::Answer;
use ropewalk_mount::reply::{
    AttributesReply, Data, DirectoryReply, Entry, EntryKind, Opened, StatFs, StatxReply,
};
use ropewalk_mount::{Context, Errno, Filesystem};

use contents::Contents;
use tree::{Kind, Maker, Tree, now};

pub struct MemoryFs {
    tree: RefCell<Tree>,
    pool: Pool,
    direct: bool,
    pub destroyed: Cell<bool>,
}

impl MemoryFs {
    /// `valid` is how long the kernel may believe attributes and entries; `direct` opens all files
    /// past the page cache.
    pub fn new(pool: Pool, valid: Duration, direct: bool) -> MemoryFs {
        let tree = RefCell::new(Tree::new(valid));
        MemoryFs { tree, pool, direct, destroyed: Cell::new(false) }
    }

    fn opened(&self, handle: u64) -> Opened {
        Opened {
            handle,
            direct: self.direct,
            keep_cache: true,
            parallel_direct_writes: true,
            ..Opened::default()
        }
    }

    fn open_node(&self, node: u64, flags: u32, kill: bool) -> Answer<Opened> {
        let mut tree = self.tree.borrow_mut();
        let one = tree.node(node)?;
        if flags as i32 & libc::O_TRUNC != 0 {
            one.contents()?.truncate(&self.pool, 0)?;
            one.changed();
            if kill {
                one.kill_privileges();
            }
        }
        one.opens += 1;
        Ok(self.opened(node))
    }

    fn close_node(&self, node: u64) {
        let mut tree = self.tree.borrow_mut();
        if let Ok(one) = tree.node(node) {
            one.opens -= 1;
        }
        tree.reap(node);
    }

    fn name_of(&self, node: u64) -> Option<Vec<u8>> {
        let mut tree = self.tree.borrow_mut();
        let root = tree.node(ropewalk_mount::abi::ROOT_NODE).ok()?.directory().ok()?;
        root.names.iter().find(|(_, entry)| entry.0 == node).map(|(name, _)| name.clone())
    }

    async fn hang_where(&self, node: u64, name: &[u8]) {
        let numbered = self.name_of(node);
        if numbered.as_deref() == Some(name) {
            std::future::pending::<()>().await;
        }
    }

    /// Nodes that are kept, for leaks to be seen.
    pub fn node_count(&self) -> usize {
        self.tree.borrow().nodes.len()
    }

    /// Changes a file behind the kernel's back, as another client would.
    pub fn change_behind(&self, name: &[u8], bytes: &[u8]) -> u64 {
        let mut tree = self.tree.borrow_mut();
        let node = tree.find(ropewalk_mount::abi::ROOT_NODE, name).unwrap();
        let one = tree.node(node).unwrap();
        let contents = one.contents().unwrap();
        contents.truncate(&self.pool, 0).unwrap();
        contents.write(&self.pool, 0, self.pool.copy_of(bytes).unwrap()).unwrap();
        one.changed();
        node
    }

    /// Removes a name behind the kernel's back.
    pub fn remove_behind(&self, name: &[u8]) -> u64 {
        let mut tree = self.tree.borrow_mut();
        let root = ropewalk_mount::abi::ROOT_NODE;
        let node = tree.find(root, name).unwrap();
        tree.remove(root, name, false).unwrap();
        node
    }

    async fn take_lock(
        &self,
        node: u64,
        owner: u64,
        lock: &Lock,
        whole: bool,
        wait: bool,
    ) -> Answer<()> {
        loop {
            let unlocked = {
                let mut tree = self.tree.borrow_mut();
                let one = tree.node(node)?;
                let locks = if whole { &mut one.flocks } else { &mut one.locks };
                let free = lock.kind == LockKind::Unlock || locks.conflict(owner, lock).is_none();
                if free {
                    locks.set(owner, lock);
                    one.unlocked.notify_all();
                    return Ok(());
                }
                if !wait {
                    return Err(Errno::EAGAIN);
                }
                one.unlocked.notified()
            };
            unlocked.await;
        }
    }
}

fn maker(context: &Context, mode: u32, device: u32) -> Maker {
    Maker { uid: context.uid, gid: context.gid, mode, device }
}

impl Filesystem for MemoryFs {
    async fn lookup(&self, _: &Context, parent: u64, name: &[u8]) -> Answer<Entry> {
        if name == b"hang-lookup" {
            std::future::pending::<()>().await;
        }
        let mut tree = self.tree.borrow_mut();
        match tree.find(parent, name) {
            Ok(node) => tree.entry(node),
            Err(Errno::ENOENT) => Ok(Entry::absent(tree.valid)),
            Err(error) => Err(error),
        }
    }

    fn forget(&self, node: u64, lookups: u64) {
        let mut tree = self.tree.borrow_mut();
        if let Ok(one) = tree.node(node) {
            one.lookups -= lookups.min(one.lookups);
        }
        tree.reap(node);
    }

    async fn getattr(&self, _: &Context, node: u64, _: Option<u64>) -> Answer<AttributesReply> {
        self.tree.borrow_mut().attributes(node)
    }

    async fn setattr(
        &self,
        _: &Context,
        node: u64,
        changes: &SetAttributes,
    ) -> Answer<AttributesReply> {
        let mut tree = self.tree.borrow_mut();
        let one = tree.node(node)?;
        if let Some(size) = changes.size {
            one.contents()?.truncate(&self.pool, size)?;
            one.changed();
        }
        if changes.kill_privileges {
            one.kill_privileges();
        }
        let attributes = &mut one.attributes;
        if let Some(mode) = changes.mode {
            attributes.mode = attributes.mode & libc::S_IFMT | mode & 0o7777;
        }
        attributes.uid = changes.uid.unwrap_or(attributes.uid);
        attributes.gid = changes.gid.unwrap_or(attributes.gid);
        let time = |set: SetTime| match set {
            SetTime::Now => now(),
            SetTime::At(at) => at,
        };
        attributes.atime = changes.atime.map_or(attributes.atime, time);
        attributes.mtime = changes.mtime.map_or(attributes.mtime, time);
        attributes.ctime = now();
        tree.attributes(node)
    }

    async fn readlink(&self, _: &Context, node: u64) -> Answer<Vec<u8>> {
        match &self.tree.borrow_mut().node(node)?.kind {
            Kind::Link(target) => Ok(target.clone()),
            _ => Err(Errno::EINVAL),
        }
    }

    async fn symlink(
        &self,
        context: &Context,
        parent: u64,
        name: &[u8],
        target: &[u8],
    ) -> Answer<Entry> {
        let mut tree = self.tree.borrow_mut();
        let maker = maker(context, libc::S_IFLNK | 0o777, 0);
        let node = tree.make(parent, name, maker, Some(Kind::Link(target.to_vec())))?;
        tree.entry(node)
    }

    async fn mknod(
        &self,
        context: &Context,
        parent: u64,
        name: &[u8],
        mode: u32,
        device: u32,
        _: u32,
    ) -> Answer<Entry> {
        let mut tree = self.tree.borrow_mut();
        let regular = matches!(mode & libc::S_IFMT, libc::S_IFREG | 0);
        let kind = if regular { Kind::File(Contents::default()) } else { Kind::Other };
        let node = tree.make(parent, name, maker(context, mode, device), Some(kind))?;
        tree.entry(node)
    }

    async fn mkdir(
        &self,
        context: &Context,
        parent: u64,
        name: &[u8],
        mode: u32,
        _: u32,
    ) -> Answer<Entry> {
        if name == b"hang-mkdir" {
            std::future::pending::<()>().await;
        }
        let mut tree = self.tree.borrow_mut();
        let node = tree.make(parent, name, maker(context, libc::S_IFDIR | mode, 0), None)?;
        tree.entry(node)
    }

    async fn unlink(&self, _: &Context, parent: u64, name: &[u8]) -> Answer<()> {
        self.tree.borrow_mut().remove(parent, name, false)
    }

    async fn rmdir(&self, _: &Context, parent: u64, name: &[u8]) -> Answer<()> {
        self.tree.borrow_mut().remove(parent, name, true)
    }

    async fn rename(
        &self,
        _: &Context,
        parent: u64,
        name: &[u8],
        new_parent: u64,
        new_name: &[u8],
        flags: u32,
    ) -> Answer<()> {
        self.tree.borrow_mut().rename((parent, name), (new_parent, new_name), flags)
    }

    async fn link(&self, _: &Context, node: u64, parent: u64, name: &[u8]) -> Answer<Entry> {
        let mut tree = self.tree.borrow_mut();
        tree.link(node, parent, name)?;
        tree.entry(node)
    }

    async fn open(&self, _: &Context, node: u64, flags: u32, kill: bool) -> Answer<Opened> {
        self.hang_where(node, b"hang-open").await;
        self.open_node(node, flags, kill)
    }

    async fn read(&self, _: &Context, node: u64, header: &ReadHeader) -> Answer<Data> {
        self.hang_where(node, b"hang-read").await;
        let mut tree = self.tree.borrow_mut();
        Ok(tree.node(node)?.contents()?.read(header.offset, header.size.into()))
    }

    async fn write(
        &self,
        _: &Context,
        node: u64,
        header: &WriteHeader,
        data: PoolBuffer,
    ) -> Answer<u32> {
        let mut tree = self.tree.borrow_mut();
        let one = tree.node(node)?;
        let append = header.open_flags as i32 & libc::O_APPEND != 0 && !header.from_page_cache;
        let contents = one.contents()?;
        let offset = if append { contents.size() } else { header.offset };
        contents.write(&self.pool, offset, data)?;
        if header.kill_privileges {
            one.kill_privileges();
        }
        one.changed();
        Ok(header.size)
    }

    async fn flush(&self, _: &Context, node: u64, _: u64, lock_owner: u64) -> Answer<()> {
        let mut tree = self.tree.borrow_mut();
        let one = tree.node(node)?;
        one.locks.drop_all(lock_owner);
        one.unlocked.notify_all();
        Ok(())
    }

    async fn release(&self, _: &Context, node: u64, release: &Release) -> Answer<()> {
        if release.unlock_flock {
            let mut tree = self.tree.borrow_mut();
            let one = tree.node(node)?;
            one.flocks.drop_all(release.lock_owner);
            one.unlocked.notify_all();
        }
        self.close_node(node);
        Ok(())
    }

    async fn fsync(&self, _: &Context, _: u64, _: u64, _: bool) -> Answer<()> {
        Ok(())
    }

    async fn opendir(&self, _: &Context, node: u64, _: u32) -> Answer<Opened> {
        let mut tree = self.tree.borrow_mut();
        tree.node(node)?.directory()?;
        tree.node(node)?.opens += 1;
        Ok(Opened { handle: node, ..Opened::default() })
    }

    async fn readdir(
        &self,
        _: &Context,
        node: u64,
        header: &ReadHeader,
        reply: &mut DirectoryReply,
    ) -> Answer<()> {
        let mut tree = self.tree.borrow_mut();
        let directory = tree.node(node)?.directory()?;
        for (cookie, name, number) in [(1, ".", node), (2, "..", directory.parent)] {
            let full = header.offset < cookie
                && !reply.add(number, cookie, EntryKind::Directory, name.as_bytes());
            if full {
                return Ok(());
            }
        }
        let behind: Vec<(u64, Vec<u8>, u64)> = {
            let next = directory.cookies.range(header.offset + 1..);
            // No reply holds more: an entry takes 32 bytes at least.
            let most = reply.room_bytes() / 32 + 1;
            next.take(most).map(|(c, name)| (*c, name.clone(), directory.names[name].0)).collect()
        };
        for (cookie, name, number) in behind {
            let entry = tree.entry(number)?;
            let added = reply.add_plus(&entry, cookie, &name);
            if !(added && reply.is_plus()) {
                tree.node(number)?.lookups -= 1;
            }
            if !added {
                break;
            }
        }
        Ok(())
    }

    async fn releasedir(&self, _: &Context, node: u64, _: &Release) -> Answer<()> {
        self.close_node(node);
        Ok(())
    }

    async fn statfs(&self, _: &Context, _: u64) -> Answer<StatFs> {
        let blocks = (self.pool.budget_bytes() / 4096) as u64;
        let free = blocks - (self.pool.lent_bytes() / 4096) as u64;
        Ok(StatFs {
            blocks,
            blocks_free: free,
            blocks_available: free,
            files: 1 << 20,
            files_free: 1 << 19,
            block_bytes: 4096,
            name_bytes_max: 255,
            fragment_bytes: 4096,
        })
    }

    async fn setxattr(&self, _: &Context, node: u64, set: &SetXattr<'_>) -> Answer<()> {
        let mut tree = self.tree.borrow_mut();
        let one = tree.node(node)?;
        let exists = one.xattrs.contains_key(set.name);
        match set.flags as i32 {
            libc::XATTR_CREATE if exists => return Err(Errno::EEXIST),
            libc::XATTR_REPLACE if !exists => return Err(Errno::ENODATA),
            _ => one.xattrs.insert(set.name.to_vec(), set.value.to_vec()),
        };
        one.attributes.ctime = now();
        Ok(())
    }

    async fn getxattr(&self, _: &Context, node: u64, name: &[u8], _: u32) -> Answer<Vec<u8>> {
        self.tree.borrow_mut().node(node)?.xattrs.get(name).cloned().ok_or(Errno::ENODATA)
    }

    async fn listxattr(&self, _: &Context, node: u64, _: u32) -> Answer<Vec<u8>> {
        let mut tree = self.tree.borrow_mut();
        let names = tree.node(node)?.xattrs.keys();
        Ok(names.flat_map(|name| name.iter().copied().chain([0])).collect())
    }

    async fn removexattr(&self, _: &Context, node: u64, name: &[u8]) -> Answer<()> {
        let mut tree = self.tree.borrow_mut();
        tree.node(node)?.xattrs.remove(name).map(drop).ok_or(Errno::ENODATA)
    }

    async fn create(
        &self,
        context: &Context,
        parent: u64,
        name: &[u8],
        mode: u32,
        flags: u32,
        _: u32,
    ) -> Answer<(Entry, Opened)> {
        let node = {
            let mut tree = self.tree.borrow_mut();
            match tree.find(parent, name) {
                Ok(_) if flags as i32 & libc::O_EXCL != 0 => return Err(Errno::EEXIST),
                Ok(node) => node,
                Err(_) => {
                    let maker = maker(context, libc::S_IFREG | mode, 0);
                    tree.make(parent, name, maker, Some(Kind::File(Contents::default())))?
                }
            }
        };
        let opened = self.open_node(node, flags, false)?;
        Ok((self.tree.borrow_mut().entry(node)?, opened))
    }

    async fn tmpfile(
        &self,
        context: &Context,
        _: u64,
        mode: u32,
        flags: u32,
        _: u32,
    ) -> Answer<(Entry, Opened)> {
        let maker = maker(context, libc::S_IFREG | mode, 0);
        let node = self.tree.borrow_mut().make_orphan(&maker);
        let opened = self.open_node(node, flags, false)?;
        Ok((self.tree.borrow_mut().entry(node)?, opened))
    }

    async fn getlk(&self, _: &Context, node: u64, _: u64, owner: u64, lock: &Lock) -> Answer<Lock> {
        let mut tree = self.tree.borrow_mut();
        let found = tree.node(node)?.locks.conflict(owner, lock);
        Ok(found.unwrap_or(Lock { kind: LockKind::Unlock, ..*lock }))
    }

    async fn setlk(&self, _: &Context, node: u64, _: u64, owner: u64, lock: &Lock) -> Answer<()> {
        self.take_lock(node, owner, lock, false, false).await
    }

    async fn setlkw(&self, _: &Context, node: u64, _: u64, owner: u64, lock: &Lock) -> Answer<()> {
        self.take_lock(node, owner, lock, false, true).await
    }

    async fn flock(
        &self,
        _: &Context,
        node: u64,
        _: u64,
        owner: u64,
        lock: &Lock,
        wait: bool,
    ) -> Answer<()> {
        self.take_lock(node, owner, lock, true, wait).await
    }

    async fn fallocate(
        &self,
        _: &Context,
        node: u64,
        _: u64,
        offset: u64,
        length: u64,
        mode: u32,
    ) -> Answer<()> {
        let mut tree = self.tree.borrow_mut();
        let one = tree.node(node)?;
        let end = offset.checked_add(length).ok_or(Errno::EFBIG)?;
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        match mode as i32 {
            0 => one.contents()?.extend(end),
            libc::FALLOC_FL_KEEP_SIZE => {}
            bits if bits == punch => one.contents()?.punch(&self.pool, offset, end)?,
            _ => return Err(Errno::EOPNOTSUPP),
        }
        one.changed();
        Ok(())
    }

    async fn lseek(&self, _: &Context, node: u64, _: u64, offset: u64, whence: u32) -> Answer<u64> {
        let data = whence as i32 == libc::SEEK_DATA;
        self.tree.borrow_mut().node(node)?.contents()?.seek(offset, data).ok_or(Errno::ENXIO)
    }

    async fn copy_file_range(
        &self,
        _: &Context,
        node: u64,
        arguments: &CopyFileRangeIn,
    ) -> Answer<u64> {
        let mut tree = self.tree.borrow_mut();
        let len = arguments.len.min(contents::CHUNK_BYTES);
        let data = tree.node(node)?.contents()?.read(arguments.offset_in, len);
        let mut copy = self.pool.take(data.len()).ok_or(Errno::ENOMEM)?;
        data.copy_to(&mut copy);
        let target = tree.node(arguments.node_out)?;
        target.contents()?.write(&self.pool, arguments.offset_out, copy)?;
        target.changed();
        Ok(data.len() as u64)
    }

    async fn statx(&self, _: &Context, node: u64, _: Option<u64>, _: u32) -> Answer<StatxReply> {
        let mut tree = self.tree.borrow_mut();
        let valid = tree.valid;
        let one = tree.node(node)?;
        Ok(StatxReply { attributes: one.attributes, birth: one.birth, valid })
    }

    async fn destroy(&self) {
        self.destroyed.set(true);
    }
}
