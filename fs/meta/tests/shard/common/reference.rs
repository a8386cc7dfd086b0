//! A file system as the manual pages describe it, in memory, as plainly as possible. It shares
//! nothing with the shard but the errno values.

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_wire::fs::value::Errno;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    File,
    Dir,
    Link,
    Fifo,
    Device,
}

#[derive(Debug, Clone)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

impl User {
    fn has_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
    fn root(&self) -> bool {
        self.uid == 0
    }
}

#[derive(Debug, Clone)]
pub struct Node {
    pub kind: Kind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub data: Vec<u8>,
    pub entries: BTreeMap<Vec<u8>, usize>,
    pub parent: usize,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub atime: i64,
    pub mtime: i64,
    pub ctime: i64,
    pub tmpfile: bool,
    /// Sessions that have it open.
    pub users: BTreeSet<usize>,
}

pub struct Tree {
    pub nodes: BTreeMap<usize, Node>,
    pub next: usize,
    pub now: i64,
    pub link_max: u32,
}

type Res<T> = Result<T, Errno>;

const R: u32 = 4;
const W: u32 = 2;
const X: u32 = 1;

impl Tree {
    pub fn new(now: i64, link_max: u32) -> Tree {
        let mut tree = Tree { nodes: BTreeMap::new(), next: 1, now, link_max };
        let id = tree.alloc(Kind::Dir, 0o755, 0, 0);
        tree.nodes.get_mut(&id).unwrap().parent = id;
        tree
    }

    fn alloc(&mut self, kind: Kind, mode: u32, uid: u32, gid: u32) -> usize {
        let id = self.next;
        self.next += 1;
        let node = Node {
            kind,
            mode,
            uid,
            gid,
            nlink: if kind == Kind::Dir { 2 } else { 1 },
            data: Vec::new(),
            entries: BTreeMap::new(),
            parent: 0,
            xattrs: BTreeMap::new(),
            atime: self.now,
            mtime: self.now,
            ctime: self.now,
            tmpfile: false,
            users: BTreeSet::new(),
        };
        self.nodes.insert(id, node);
        id
    }

    pub fn get(&self, id: usize) -> Res<&Node> {
        self.nodes.get(&id).ok_or(Errno::ESTALE)
    }

    fn node(&mut self, id: usize) -> &mut Node {
        self.nodes.get_mut(&id).unwrap()
    }

    fn may(&self, id: usize, user: &User, want: u32) -> Res<()> {
        let node = self.get(id)?;
        if user.root() {
            return Ok(());
        }
        let have = if node.uid == user.uid {
            (node.mode >> 6) & 7
        } else if user.has_group(node.gid) {
            (node.mode >> 3) & 7
        } else {
            node.mode & 7
        };
        if have & want == want { Ok(()) } else { Err(Errno::EACCES) }
    }

    /// Walks one step: the directory must be one, the name sane, the caller allowed to search.
    fn step(&self, dir: usize, user: &User, name: &[u8]) -> Res<Option<usize>> {
        let node = self.get(dir)?;
        if node.kind != Kind::Dir {
            return Err(Errno::ENOTDIR);
        }
        if name.is_empty() {
            return Err(Errno::ENOENT);
        }
        if name.len() > 255 {
            return Err(Errno::ENAMETOOLONG);
        }
        self.may(dir, user, X)?;
        Ok(node.entries.get(name).copied())
    }

    fn may_create(&self, dir: usize, user: &User) -> Res<()> {
        self.may(dir, user, W | X)?;
        if self.get(dir)?.nlink == 0 { Err(Errno::ENOENT) } else { Ok(()) }
    }

    fn may_delete(&self, dir: usize, victim: usize, user: &User) -> Res<()> {
        self.may(dir, user, W | X)?;
        let (d, v) = (self.get(dir)?, self.get(victim)?);
        let sticky = d.mode & 0o1000 != 0;
        if sticky && !user.root() && user.uid != d.uid && user.uid != v.uid {
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    fn touch_dir(&mut self, dir: usize) {
        let now = self.now;
        let node = self.node(dir);
        node.mtime = now;
        node.ctime = now;
    }

    fn attach(&mut self, dir: usize, name: &[u8], id: usize) {
        self.node(dir).entries.insert(name.to_vec(), id);
        if self.nodes[&id].kind == Kind::Dir {
            self.node(dir).nlink += 1;
            self.node(id).parent = dir;
        }
        self.touch_dir(dir);
    }

    fn detach(&mut self, dir: usize, name: &[u8]) -> usize {
        let id = self.node(dir).entries.remove(name).unwrap();
        if self.nodes[&id].kind == Kind::Dir {
            self.node(dir).nlink -= 1;
        }
        self.touch_dir(dir);
        id
    }

    fn new_in(&mut self, dir: usize, user: &User, kind: Kind, mode: u32) -> usize {
        let (dir_mode, dir_gid) = (self.nodes[&dir].mode, self.nodes[&dir].gid);
        let (mut mode, mut gid) = (mode, user.gid);
        if dir_mode & 0o2000 != 0 {
            gid = dir_gid;
            if kind == Kind::Dir {
                mode |= 0o2000;
            } else if mode & 0o2010 == 0o2010 && !user.root() && !user.has_group(gid) {
                mode &= !0o2000;
            }
        }
        self.alloc(kind, mode, user.uid, gid)
    }

    fn drop_if_unused(&mut self, id: usize) {
        if self.nodes.get(&id).is_some_and(|node| node.nlink == 0 && node.users.is_empty()) {
            self.nodes.remove(&id);
        }
    }

    fn lose_name(&mut self, id: usize) {
        let now = self.now;
        let node = self.node(id);
        node.nlink = if node.kind == Kind::Dir { 0 } else { node.nlink - 1 };
        node.ctime = now;
        self.drop_if_unused(id);
    }

    pub fn lookup(&self, dir: usize, user: &User, name: &[u8]) -> Res<usize> {
        self.step(dir, user, name)?.ok_or(Errno::ENOENT)
    }

    #[allow(clippy::too_many_arguments)]
    pub fn create(
        &mut self,
        session: usize,
        dir: usize,
        user: &User,
        name: &[u8],
        mode: u32,
        write: bool,
        excl: bool,
        trunc: bool,
    ) -> Res<usize> {
        match self.step(dir, user, name)? {
            Some(_) if excl => Err(Errno::EEXIST),
            Some(id) => {
                self.open(session, id, user, write, trunc)?;
                Ok(id)
            }
            None => {
                self.may_create(dir, user)?;
                let id = self.new_in(dir, user, Kind::File, mode);
                self.attach(dir, name, id);
                self.node(id).users.insert(session);
                Ok(id)
            }
        }
    }

    pub fn open(
        &mut self,
        session: usize,
        id: usize,
        user: &User,
        write: bool,
        trunc: bool,
    ) -> Res<()> {
        match self.get(id)?.kind {
            Kind::Dir if write || trunc => return Err(Errno::EISDIR),
            Kind::Link => return Err(Errno::ELOOP),
            Kind::Fifo | Kind::Device => return Err(Errno::ENXIO),
            _ => {}
        }
        self.may(id, user, R | if write || trunc { W } else { 0 })?;
        if trunc {
            let now = self.now;
            let node = self.node(id);
            node.data.clear();
            node.mtime = now;
            node.ctime = now;
            node.xattrs.remove(CAPABILITY);
            if !user.root() {
                strip(node);
            }
        }
        self.node(id).users.insert(session);
        Ok(())
    }

    pub fn tmpfile(&mut self, session: usize, dir: usize, user: &User, mode: u32) -> Res<usize> {
        if self.get(dir)?.kind != Kind::Dir {
            return Err(Errno::ENOTDIR);
        }
        self.may_create(dir, user)?;
        let id = self.new_in(dir, user, Kind::File, mode);
        let node = self.node(id);
        node.nlink = 0;
        node.tmpfile = true;
        node.users.insert(session);
        Ok(id)
    }

    pub fn close(&mut self, session: usize, id: usize) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.users.remove(&session);
            self.drop_if_unused(id);
        }
    }

    pub fn make(
        &mut self,
        dir: usize,
        user: &User,
        name: &[u8],
        kind: Kind,
        mode: u32,
        target: &[u8],
    ) -> Res<usize> {
        if self.step(dir, user, name)?.is_some() {
            return Err(Errno::EEXIST);
        }
        self.may_create(dir, user)?;
        if kind == Kind::Device && !user.root() {
            return Err(Errno::EPERM);
        }
        let id = self.new_in(dir, user, kind, mode);
        if kind == Kind::Link {
            let node = self.node(id);
            node.mode = 0o777;
            node.data = target.to_vec();
        }
        self.attach(dir, name, id);
        Ok(id)
    }

    pub fn unlink(&mut self, dir: usize, user: &User, name: &[u8]) -> Res<()> {
        let id = self.step(dir, user, name)?.ok_or(Errno::ENOENT)?;
        self.may_delete(dir, id, user)?;
        if self.nodes[&id].kind == Kind::Dir {
            return Err(Errno::EISDIR);
        }
        self.detach(dir, name);
        self.lose_name(id);
        Ok(())
    }

    pub fn rmdir(&mut self, dir: usize, user: &User, name: &[u8]) -> Res<()> {
        let id = self.step(dir, user, name)?.ok_or(Errno::ENOENT)?;
        self.may_delete(dir, id, user)?;
        if self.nodes[&id].kind != Kind::Dir {
            return Err(Errno::ENOTDIR);
        }
        if !self.nodes[&id].entries.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.detach(dir, name);
        self.lose_name(id);
        Ok(())
    }

    fn inside(&self, mut dir: usize, of: usize) -> bool {
        loop {
            if dir == of {
                return true;
            }
            let parent = self.nodes[&dir].parent;
            // A removed directory keeps its last parent in this tree, but leads nowhere.
            if parent == dir || self.nodes[&dir].nlink == 0 {
                return false;
            }
            dir = parent;
        }
    }

    pub fn link(&mut self, id: usize, user: &User, dir: usize, name: &[u8]) -> Res<()> {
        if self.step(dir, user, name)?.is_some() {
            return Err(Errno::EEXIST);
        }
        self.may_create(dir, user)?;
        let node = self.get(id)?;
        if node.kind == Kind::Dir {
            return Err(Errno::EPERM);
        }
        if node.nlink == 0 && !node.tmpfile {
            return Err(Errno::ENOENT);
        }
        if node.nlink >= self.link_max {
            return Err(Errno::EMLINK);
        }
        let now = self.now;
        let node = self.node(id);
        node.nlink += 1;
        node.tmpfile = false;
        node.ctime = now;
        self.attach(dir, name, id);
        Ok(())
    }

    pub fn rename(
        &mut self,
        user: &User,
        from: (usize, &[u8]),
        to: (usize, &[u8]),
        noreplace: bool,
        exchange: bool,
    ) -> Res<()> {
        let source = self.step(from.0, user, from.1)?;
        let target = self.step(to.0, user, to.1)?;
        let source = source.ok_or(Errno::ENOENT)?;
        if noreplace && target.is_some() {
            return Err(Errno::EEXIST);
        }
        if exchange && target.is_none() {
            return Err(Errno::ENOENT);
        }
        if self.inside(to.0, source) {
            return Err(Errno::EINVAL);
        }
        if let Some(target) = target
            && self.inside(from.0, target)
        {
            return Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY });
        }
        if target == Some(source) {
            return Ok(());
        }
        self.may_delete(from.0, source, user)?;
        let source_dir = self.nodes[&source].kind == Kind::Dir;
        match target {
            None => self.may_create(to.0, user)?,
            Some(target) => {
                self.may_delete(to.0, target, user)?;
                let target_dir = self.nodes[&target].kind == Kind::Dir;
                if !exchange {
                    if source_dir && !target_dir {
                        return Err(Errno::ENOTDIR);
                    }
                    if !source_dir && target_dir {
                        return Err(Errno::EISDIR);
                    }
                    if target_dir && !self.nodes[&target].entries.is_empty() {
                        return Err(Errno::ENOTEMPTY);
                    }
                }
            }
        }
        if from.0 != to.0 {
            if source_dir {
                self.may(source, user, W)?;
            }
            if let Some(target) = target.filter(|_| exchange)
                && self.nodes[&target].kind == Kind::Dir
            {
                self.may(target, user, W)?;
            }
        }
        let now = self.now;
        self.detach(from.0, from.1);
        if let Some(target) = target {
            self.detach(to.0, to.1);
            if exchange {
                self.attach(from.0, from.1, target);
                self.node(target).ctime = now;
            } else {
                self.lose_name(target);
            }
        }
        self.attach(to.0, to.1, source);
        self.node(source).ctime = now;
        Ok(())
    }

    pub fn chmod(&mut self, id: usize, user: &User, mode: u32) -> Res<()> {
        let node = self.get(id)?;
        if !user.root() && user.uid != node.uid {
            return Err(Errno::EPERM);
        }
        let drops = !user.root() && !user.has_group(node.gid);
        let now = self.now;
        let node = self.node(id);
        node.mode = if drops { mode & !0o2000 } else { mode };
        node.ctime = now;
        Ok(())
    }

    pub fn chown(&mut self, id: usize, user: &User, uid: Option<u32>, gid: Option<u32>) -> Res<()> {
        let node = self.get(id)?;
        if !user.root() {
            let own = user.uid == node.uid;
            if uid.is_some_and(|uid| !own || uid != node.uid) {
                return Err(Errno::EPERM);
            }
            if gid.is_some_and(|gid| !own || !(gid == node.gid || user.has_group(gid))) {
                return Err(Errno::EPERM);
            }
        }
        let now = self.now;
        let node = self.node(id);
        node.uid = uid.unwrap_or(node.uid);
        node.gid = gid.unwrap_or(node.gid);
        node.ctime = now;
        if (uid.is_some() || gid.is_some()) && node.kind != Kind::Dir {
            strip(node);
        }
        Ok(())
    }

    pub fn truncate(&mut self, id: usize, user: &User, size: usize) -> Res<()> {
        match self.get(id)?.kind {
            Kind::File => {}
            Kind::Dir => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        self.may(id, user, W)?;
        let now = self.now;
        let node = self.node(id);
        node.data.resize(size, 0);
        node.mtime = now;
        node.ctime = now;
        node.xattrs.remove(CAPABILITY);
        if !user.root() {
            strip(node);
        }
        Ok(())
    }

    /// `at`: None for the present.
    pub fn utimens(&mut self, id: usize, user: &User, at: Option<(i64, i64)>) -> Res<()> {
        let node = self.get(id)?;
        if !user.root() && user.uid != node.uid {
            match at {
                None => self.may(id, user, W)?,
                Some(_) => return Err(Errno::EPERM),
            }
        }
        let now = self.now;
        let node = self.node(id);
        (node.atime, node.mtime) = at.unwrap_or((now, now));
        node.ctime = now;
        Ok(())
    }

    /// A write through an open file; None appends.
    pub fn write(&mut self, id: usize, at: Option<usize>, bytes: &[u8]) -> Res<()> {
        let now = self.now;
        let node = self.nodes.get_mut(&id).ok_or(Errno::ESTALE)?;
        let at = at.unwrap_or(node.data.len());
        if node.data.len() < at + bytes.len() {
            node.data.resize(at + bytes.len(), 0);
        }
        node.data[at..at + bytes.len()].copy_from_slice(bytes);
        node.xattrs.remove(CAPABILITY);
        node.mtime = now;
        node.ctime = now;
        Ok(())
    }

    pub fn set_xattr(&mut self, id: usize, user: &User, name: &[u8], value: &[u8]) -> Res<()> {
        self.may_xattr(id, user, name, true)?;
        let now = self.now;
        let node = self.node(id);
        node.xattrs.insert(name.to_vec(), value.to_vec());
        node.ctime = now;
        Ok(())
    }

    pub fn get_xattr(&self, id: usize, user: &User, name: &[u8]) -> Res<Vec<u8>> {
        self.may_xattr(id, user, name, false)?;
        self.get(id)?.xattrs.get(name).cloned().ok_or(Errno::ENODATA)
    }

    pub fn remove_xattr(&mut self, id: usize, user: &User, name: &[u8]) -> Res<()> {
        let node = self.get(id)?;
        if name == CAPABILITY && node.kind == Kind::File {
            // A user that may write can take it away by a write.
            if node.uid != user.uid {
                self.may(id, user, W)?;
            }
        } else {
            self.may_xattr(id, user, name, true)?;
        }
        let now = self.now;
        let node = self.node(id);
        node.xattrs.remove(name).ok_or(Errno::ENODATA)?;
        node.ctime = now;
        Ok(())
    }

    fn may_xattr(&self, id: usize, user: &User, name: &[u8], write: bool) -> Res<()> {
        let node = self.get(id)?;
        let none = if write { Errno::EPERM } else { Errno::ENODATA };
        if name.starts_with(b"trusted.") {
            return if user.root() { Ok(()) } else { Err(none) };
        }
        if name.starts_with(b"security.") {
            return if user.root() || !write { Ok(()) } else { Err(Errno::EPERM) };
        }
        if !name.starts_with(b"user.") {
            return Err(Errno::EOPNOTSUPP);
        }
        let sticky_dir = node.kind == Kind::Dir && node.mode & 0o1000 != 0;
        let stranger = !user.root() && user.uid != node.uid;
        if !matches!(node.kind, Kind::File | Kind::Dir) || (write && sticky_dir && stranger) {
            return Err(none);
        }
        self.may(id, user, if write { W } else { R })
    }

    pub fn list(&self, id: usize, user: &User) -> Res<BTreeMap<Vec<u8>, usize>> {
        if self.get(id)?.kind != Kind::Dir {
            return Err(Errno::ENOTDIR);
        }
        self.may(id, user, R)?;
        Ok(self.nodes[&id].entries.clone())
    }
}

/// Falls with every change of a file's bytes.
const CAPABILITY: &[u8] = b"security.capability";

/// setuid falls, setgid where the group may execute, and capabilities.
fn strip(node: &mut Node) {
    node.xattrs.remove(CAPABILITY);
    node.mode &= !0o4000;
    if node.mode & 0o010 != 0 {
        node.mode &= !0o2000;
    }
}
