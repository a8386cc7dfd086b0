//! Inodes and directories in memory.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime};

use ropewalk_base::task::Notify;
use ropewalk_mount::Errno;
use ropewalk_mount::abi::ROOT_NODE;
use ropewalk_mount::decode::Timestamp;
use ropewalk_mount::reply::{Attributes, AttributesReply, Entry};

use super::contents::Contents;
use super::locks::Locks;

pub enum Kind {
    File(Contents),
    Directory(Directory),
    Link(Vec<u8>),
    Other,
}

pub struct Directory {
    pub parent: u64,
    pub names: BTreeMap<Vec<u8>, (u64, u64)>,
    pub cookies: BTreeMap<u64, Vec<u8>>,
    next_cookie: u64,
}

impl Directory {
    fn new(parent: u64) -> Directory {
        // 1 and 2 are `.` and `..`.
        let (names, cookies) = (BTreeMap::new(), BTreeMap::new());
        Directory { parent, names, cookies, next_cookie: 3 }
    }

    fn insert(&mut self, name: &[u8], node: u64) {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.names.insert(name.to_vec(), (node, cookie));
        self.cookies.insert(cookie, name.to_vec());
    }

    fn remove(&mut self, name: &[u8]) -> Option<u64> {
        let (node, cookie) = self.names.remove(name)?;
        self.cookies.remove(&cookie);
        Some(node)
    }
}

pub struct Node {
    pub attributes: Attributes,
    pub birth: Timestamp,
    pub kind: Kind,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub locks: Locks,
    pub flocks: Locks,
    pub unlocked: Notify,
    pub opens: u64,
    pub lookups: u64,
}

impl Node {
    pub fn contents(&mut self) -> Result<&mut Contents, Errno> {
        match &mut self.kind {
            Kind::File(contents) => Ok(contents),
            Kind::Directory(_) => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    pub fn directory(&mut self) -> Result<&mut Directory, Errno> {
        match &mut self.kind {
            Kind::Directory(directory) => Ok(directory),
            _ => Err(Errno::ENOTDIR),
        }
    }

    /// Brings size and blocks in line with the contents; a change of contents is one of times.
    pub fn changed(&mut self) {
        let time = now();
        if let Kind::File(contents) = &self.kind {
            self.attributes.size = contents.size();
            self.attributes.blocks = contents.blocks();
        }
        self.attributes.mtime = time;
        self.attributes.ctime = time;
    }

    pub fn kill_privileges(&mut self) {
        self.attributes.mode &= !libc::S_ISUID;
        if self.attributes.mode & libc::S_IXGRP != 0 {
            self.attributes.mode &= !libc::S_ISGID;
        }
    }
}

pub fn now() -> Timestamp {
    Timestamp::since_epoch(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap())
}

pub struct Tree {
    pub nodes: HashMap<u64, Node>,
    next: u64,
    pub valid: Duration,
}

/// The owner and the mode of a node that is made.
pub struct Maker {
    pub uid: u32,
    pub gid: u32,
    pub mode: u32,
    pub device: u32,
}

impl Tree {
    pub fn new(valid: Duration) -> Tree {
        let mut tree = Tree { nodes: HashMap::new(), next: ROOT_NODE, valid };
        let maker = Maker { uid: 0, gid: 0, mode: libc::S_IFDIR | 0o777, device: 0 };
        let root = tree.allocate(&maker, Kind::Directory(Directory::new(ROOT_NODE)));
        assert_eq!(root, ROOT_NODE);
        tree
    }

    pub fn node(&mut self, number: u64) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&number).ok_or(Errno::ESTALE)
    }

    fn allocate(&mut self, maker: &Maker, kind: Kind) -> u64 {
        let (number, time) = (self.next, now());
        self.next += 1;
        let directory = matches!(kind, Kind::Directory(_));
        let attributes = Attributes {
            node: number,
            size: if let Kind::Link(target) = &kind { target.len() as u64 } else { 0 },
            atime: time,
            mtime: time,
            ctime: time,
            mode: maker.mode,
            links: if directory { 2 } else { 1 },
            uid: maker.uid,
            gid: maker.gid,
            device: maker.device,
            block_bytes: 1 << 20,
            ..Attributes::default()
        };
        let node = Node {
            attributes,
            birth: time,
            kind,
            xattrs: BTreeMap::new(),
            locks: Locks::default(),
            flocks: Locks::default(),
            unlocked: Notify::new(),
            opens: 0,
            lookups: 0,
        };
        self.nodes.insert(number, node);
        number
    }

    /// An entry for a reply; counts as a lookup.
    pub fn entry(&mut self, number: u64) -> Result<Entry, Errno> {
        let valid = self.valid;
        let node = self.node(number)?;
        node.lookups += 1;
        Ok(Entry {
            number: 0,
            attributes: node.attributes,
            generation: 1,
            attributes_valid: valid,
            entry_valid: valid,
        })
    }

    pub fn attributes(&mut self, number: u64) -> Result<AttributesReply, Errno> {
        let valid = self.valid;
        Ok(AttributesReply { attributes: self.node(number)?.attributes, valid })
    }

    pub fn find(&mut self, parent: u64, name: &[u8]) -> Result<u64, Errno> {
        let directory = self.node(parent)?.directory()?;
        if name == b"." {
            return Ok(parent);
        }
        if name == b".." {
            return Ok(directory.parent);
        }
        directory.names.get(name).map(|entry| entry.0).ok_or(Errno::ENOENT)
    }

    fn check_name(&mut self, parent: u64, name: &[u8]) -> Result<(), Errno> {
        if name.len() > 255 {
            return Err(Errno::ENAMETOOLONG);
        }
        if self.node(parent)?.attributes.links == 0 {
            return Err(Errno::ENOENT);
        }
        match self.find(parent, name) {
            Ok(_) => Err(Errno::EEXIST),
            Err(Errno::ENOENT) => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub fn make(
        &mut self,
        parent: u64,
        name: &[u8],
        mut maker: Maker,
        kind: Option<Kind>,
    ) -> Result<u64, Errno> {
        self.check_name(parent, name)?;
        let above = self.node(parent)?.attributes;
        let is_directory = kind.is_none();
        if above.mode & libc::S_ISGID != 0 {
            maker.gid = above.gid;
            if is_directory {
                maker.mode |= libc::S_ISGID;
            }
        }
        let number = self.allocate(&maker, kind.unwrap_or(Kind::Directory(Directory::new(parent))));
        self.insert(parent, name, number)?;
        Ok(number)
    }

    /// A file without a name.
    pub fn make_orphan(&mut self, maker: &Maker) -> u64 {
        let number = self.allocate(maker, Kind::File(Contents::default()));
        if let Some(node) = self.nodes.get_mut(&number) {
            node.attributes.links = 0;
        }
        number
    }

    fn insert(&mut self, parent: u64, name: &[u8], number: u64) -> Result<(), Errno> {
        let is_directory = self.node(number)?.attributes.is_directory();
        let above = self.node(parent)?;
        above.directory()?.insert(name, number);
        above.attributes.links += u32::from(is_directory);
        above.changed();
        if is_directory {
            self.node(number)?.directory()?.parent = parent;
        }
        Ok(())
    }

    fn take(&mut self, parent: u64, name: &[u8]) -> Result<u64, Errno> {
        let above = self.node(parent)?;
        let number = above.directory()?.remove(name).ok_or(Errno::ENOENT)?;
        above.changed();
        if self.node(number)?.attributes.is_directory() {
            self.node(parent)?.attributes.links -= 1;
        }
        Ok(number)
    }

    pub fn link(&mut self, number: u64, parent: u64, name: &[u8]) -> Result<(), Errno> {
        self.check_name(parent, name)?;
        let node = self.node(number)?;
        node.attributes.links += 1;
        node.attributes.ctime = now();
        self.insert(parent, name, number)
    }

    pub fn remove(&mut self, parent: u64, name: &[u8], directory: bool) -> Result<(), Errno> {
        let number = self.find(parent, name)?;
        let node = self.node(number)?;
        match &node.kind {
            Kind::Directory(_) if !directory => return Err(Errno::EISDIR),
            Kind::Directory(own) if !own.names.is_empty() => return Err(Errno::ENOTEMPTY),
            Kind::Directory(_) => {}
            _ if directory => return Err(Errno::ENOTDIR),
            _ => {}
        }
        self.take(parent, name)?;
        let node = self.node(number)?;
        node.attributes.links = if directory { 0 } else { node.attributes.links - 1 };
        node.attributes.ctime = now();
        self.reap(number);
        Ok(())
    }

    pub fn rename(
        &mut self,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        flags: u32,
    ) -> Result<(), Errno> {
        let moved = self.find(from.0, from.1)?;
        let target = match self.find(to.0, to.1) {
            Ok(target) => Some(target),
            Err(Errno::ENOENT) => None,
            Err(error) => return Err(error),
        };
        if flags & libc::RENAME_EXCHANGE != 0 {
            let other = target.ok_or(Errno::ENOENT)?;
            self.take(from.0, from.1)?;
            self.take(to.0, to.1)?;
            self.insert(from.0, from.1, other)?;
            return self.insert(to.0, to.1, moved);
        }
        if let Some(other) = target {
            if flags & libc::RENAME_NOREPLACE != 0 {
                return Err(Errno::EEXIST);
            }
            if other == moved {
                return Ok(());
            }
            let directory = self.node(moved)?.attributes.is_directory();
            self.remove(to.0, to.1, directory)?;
        }
        self.take(from.0, from.1)?;
        self.insert(to.0, to.1, moved)?;
        self.node(moved)?.attributes.ctime = now();
        Ok(())
    }

    /// Drops an inode that nobody can reach any more.
    pub fn reap(&mut self, number: u64) {
        let gone = self
            .nodes
            .get(&number)
            .is_some_and(|node| node.attributes.links == 0 && node.opens == 0 && node.lookups == 0);
        if gone {
            self.nodes.remove(&number);
        }
    }
}
