//! Making inodes: files, directories, symbolic links, device nodes, files without a name, hard links.

use ropewalk_wire::fs::attributes::InodeKind;
use ropewalk_wire::fs::meta::{
    Access, DirectoryNow, Entry, LeaseMode, MetaReply, Node, TARGET_BYTES_MAX, Who,
};
use ropewalk_wire::fs::value::Errno;

use super::directory::Dentry;
use super::{Operation, Step, Stop};
use crate::inode::Inode;
use crate::keys::{self, Table};
use crate::leases::Need;
use crate::parking::WaitOn;
use crate::permission::{self, GROUP_EXECUTE, SEARCH, SET_GROUP, WRITE};
use crate::rows::Rows;
use crate::runs::Runs;
use crate::shard::Admission;
use ropewalk_wire::fs::policy::Policy;

impl<R: Rows> Operation<'_, R> {
    #[allow(clippy::too_many_arguments)]
    pub fn create(
        &mut self,
        who: &Who<'_>,
        parent: u64,
        name: &[u8],
        mode: u16,
        access: Access,
        exclusive: bool,
        truncate: bool,
    ) -> Step<()> {
        let directory = self.directory(parent)?;
        permission::check_name(name)?;
        permission::check(&directory, who, SEARCH)?;
        if permission::is_dot(name) {
            return Err(if exclusive { Errno::EEXIST } else { Errno::EISDIR }.into());
        }
        let found = self.find(parent, name)?;
        if let Some(dentry) = found.dentry {
            if exclusive {
                return Err(Errno::EEXIST.into());
            }
            // It came while the request was on its way: a kernel that asks for a new file has not
            // looked at this one.
            let (who, cached) = (who.unjudged(), self.caches_entries(parent));
            return self.open(&who, dentry.inode, access, (truncate, false), cached);
        }
        let cookie = self.check_new_entry(&directory, who, found.free)?;
        self.check_growth()?;
        self.check_room(0)?;
        self.need_entries(parent);
        self.settle()?;
        let number = self.new_inode(who, &directory, InodeKind::File, mode)?;
        self.put_entry(parent, name, Dentry { cookie, inode: number, kind: InodeKind::File }, 0)?;
        let directory = self.directory_now(parent)?;
        self.open_new(number, access, self.caches_entries(parent), Some(directory))
    }

    pub fn temporary(&mut self, who: &Who<'_>, parent: u64, mode: u16, access: Access) -> Step<()> {
        let directory = self.directory(parent)?;
        self.check_new_entry(&directory, who, Some(0))?;
        self.check_growth()?;
        self.check_room(0)?;
        let number = self.new_inode(who, &directory, InodeKind::File, mode)?;
        let inode = self.change(number)?;
        inode.links = 0;
        inode.temporary = true;
        self.batch.put(keys::key(Table::Orphan, &[number]), Vec::new());
        self.open_new(number, access, false, None)
    }

    /// Opens a file that this operation made, with the lease that its only user can have.
    fn open_new(
        &mut self,
        number: u64,
        access: Access,
        entry_cached: bool,
        directory: Option<DirectoryNow>,
    ) -> Step<()> {
        let mode = if access.write { LeaseMode::Write } else { LeaseMode::Read };
        self.shard.leases.open(number, self.session, access);
        self.shard.leases.grant(number, self.session, mode, 0);
        self.answer_opened(number, (entry_cached, directory), true, false)
    }

    pub fn make(
        &mut self,
        who: &Who<'_>,
        parent: u64,
        name: &[u8],
        mode: u16,
        node: &Node<'_>,
    ) -> Step<()> {
        let directory = self.directory(parent)?;
        permission::check_name(name)?;
        permission::check(&directory, who, SEARCH)?;
        let found = self.find(parent, name)?;
        if permission::is_dot(name) || found.dentry.is_some() {
            return Err(Errno::EEXIST.into());
        }
        let cookie = self.check_new_entry(&directory, who, found.free)?;
        let (kind, device) = match *node {
            Node::Directory => (InodeKind::Directory, 0),
            Node::Symlink { .. } => (InodeKind::Symlink, 0),
            Node::Fifo => (InodeKind::Fifo, 0),
            Node::Socket => (InodeKind::Socket, 0),
            Node::File => (InodeKind::File, 0),
            Node::CharacterDevice(_) | Node::BlockDevice(_) if !who.passes() => {
                return Err(Errno::EPERM.into());
            }
            Node::CharacterDevice(device) => (InodeKind::CharacterDevice, device),
            Node::BlockDevice(device) => (InodeKind::BlockDevice, device),
        };
        if let Node::Symlink { target } = node {
            check_target(target.0)?;
        }
        let subdirectory = u32::from(kind == InodeKind::Directory);
        if subdirectory == 1 && directory.links == u32::MAX {
            return Err(Errno::EMLINK.into());
        }
        self.check_growth()?;
        self.need_entries(parent);
        self.settle()?;
        let number = self.new_inode(who, &directory, kind, mode)?;
        if let Node::Symlink { target } = node {
            let inode = self.change(number)?;
            inode.size = target.0.len() as u64;
            inode.inline_bytes = target.0.len() as u32;
            inode.mode = 0o777;
            self.batch.put(keys::key(Table::Inline, &[number]), target.0.to_vec());
        }
        self.change(number)?.device = device;
        self.put_entry(parent, name, Dentry { cookie, inode: number, kind }, subdirectory as i32)?;
        let directory = Some(self.directory_now(parent)?);
        let entry = Entry { directory, ..self.entry(parent, number)? };
        self.answer(&MetaReply::Entry(entry))
    }

    pub fn link(&mut self, who: &Who<'_>, number: u64, parent: u64, name: &[u8]) -> Step<()> {
        let directory = self.directory(parent)?;
        permission::check_name(name)?;
        permission::check(&directory, who, SEARCH)?;
        let found = self.find(parent, name)?;
        if permission::is_dot(name) || found.dentry.is_some() {
            return Err(Errno::EEXIST.into());
        }
        let links_max = self.shard.config.links_max;
        let cookie = self.check_new_entry(&directory, who, found.free)?;
        let inode = self.inode(number)?.clone();
        if inode.is_directory() {
            return Err(Errno::EPERM.into());
        }
        if inode.links == 0 && !inode.temporary {
            return Err(Errno::ENOENT.into());
        }
        if inode.links >= links_max {
            return Err(Errno::EMLINK.into());
        }
        self.check_growth()?;
        self.need_entries(parent);
        self.need(number, Need::Quiet);
        self.settle()?;
        let kind = inode.kind;
        let changed = self.touch(number)?;
        changed.links += 1;
        changed.temporary = false;
        if inode.links == 0 {
            self.batch.remove(keys::key(Table::Orphan, &[number]));
        }
        self.put_entry(parent, name, Dentry { cookie, inode: number, kind }, 0)?;
        let directory = Some(self.directory_now(parent)?);
        let entry = Entry { directory, ..self.entry(parent, number)? };
        self.answer(&MetaReply::Entry(entry))
    }

    /// Whether `who` may add an entry to the directory; its cookie.
    pub fn check_new_entry(
        &mut self,
        directory: &Inode,
        who: &Who<'_>,
        free: Option<u64>,
    ) -> Step<u64> {
        permission::check(directory, who, WRITE | SEARCH)?;
        if directory.links == 0 {
            return Err(Errno::ENOENT.into());
        }
        Ok(free.ok_or(Errno::ENOSPC)?)
    }

    /// Whether something new or longer finds room.
    pub fn check_growth(&self) -> Step<()> {
        match self.shard.admission {
            Admission::All => Ok(()),
            _ => Err(Errno::ENOSPC.into()),
        }
    }

    /// Writes an entry, counts it in its directory, and points the inode back to it.
    pub fn put_entry(&mut self, parent: u64, name: &[u8], dentry: Dentry, links: i32) -> Step<()> {
        self.put_dentry(parent, name, dentry);
        self.count_entries(parent, 1, links)?;
        self.add_back_pointer(dentry.inode, parent, dentry.cookie)
    }

    /// A new inode in `directory`, with a row but without a name: its number.
    fn new_inode(
        &mut self,
        who: &Who<'_>,
        directory: &Inode,
        kind: InodeKind,
        mode: u16,
    ) -> Step<u64> {
        let wait = |on| Stop::Wait { on: vec![on] };
        let layout = match kind {
            InodeKind::File => {
                let shard = &mut *self.shard;
                let copies = directory.policy.copies();
                let layout = shard.pools.layout(copies, &shard.config, &mut shard.random);
                Some(layout.ok_or_else(|| wait(WaitOn::Pool))?)
            }
            _ => None,
        };
        let number = self.shard.next_inode()?.ok_or_else(|| wait(WaitOn::Durable))?;
        let is_directory = kind == InodeKind::Directory;
        let (group, mode) = inherit(who, directory, is_directory, mode & 0o7777);
        let now = self.now.calendar;
        self.shard.inode_count += 1;
        self.add_inode(Inode {
            number,
            kind,
            mode,
            links: if is_directory { 2 } else { 1 },
            user: who.user,
            group,
            device: 0,
            size: 0,
            accessed: now,
            modified: now,
            changed: now,
            created: now,
            version: 1,
            generation: 0,
            epoch: 0,
            parent: 0,
            cookie: 0,
            temporary: false,
            striped: false,
            layout,
            written: Runs::default(),
            inline_bytes: 0,
            xattr_bytes: 0,
            capable: false,
            policy: if is_directory { directory.policy } else { Policy::default() },
        });
        Ok(number)
    }
}

/// Group and mode of a new inode: a setgid directory hands its group down, and its bit to
/// subdirectories; others may not make programs that run as a group that is not theirs.
fn inherit(who: &Who<'_>, directory: &Inode, is_directory: bool, mode: u16) -> (u32, u16) {
    if directory.mode & SET_GROUP == 0 {
        return (who.group, mode);
    }
    let group = directory.group;
    if is_directory {
        return (group, mode | SET_GROUP);
    }
    let runs_as_group = mode & (SET_GROUP | GROUP_EXECUTE) == SET_GROUP | GROUP_EXECUTE;
    let foreign = !who.keeps_privileges() && !who.is_in(group);
    (group, if runs_as_group && foreign { mode & !SET_GROUP } else { mode })
}

fn check_target(target: &[u8]) -> Result<(), Errno> {
    match target.len() {
        0 => Err(Errno::ENOENT),
        len if len > TARGET_BYTES_MAX => Err(Errno::ENAMETOOLONG),
        _ if target.contains(&0) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}
