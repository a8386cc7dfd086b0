//! Names and attributes.

use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::time::Time;
use ropewalk_wire::fs::attributes::{Attributes, InodeKind};
use ropewalk_wire::fs::meta::{
    AttributeChange, DirectoryNow, Entry, Grant, MetaReply, MetaRequest, NAME_BYTES_MAX, Node,
    RenameMode, TimeChange,
};
use ropewalk_wire::fs::value::{Bytes, Errno};

use crate::call::unexpected;
use crate::client::{Caller, Client};
use crate::inode::{Inode, Resizing};

/// Room and inodes of the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSystemStatus {
    pub total_bytes: u64,
    /// Not used; some of it may be kept back for superusers.
    pub free_bytes: u64,
    pub available_bytes: u64,
    pub inodes: u64,
}

fn entry_of(reply: MetaReply<'_>) -> Result<Entry, Errno> {
    match reply {
        MetaReply::Entry(entry) => Ok(entry),
        _ => unexpected(),
    }
}

fn check(name: &[u8]) -> Result<(), Errno> {
    if name.len() > NAME_BYTES_MAX { Err(Errno::ENAMETOOLONG) } else { Ok(()) }
}

/// The time for which an inode that somebody looked up is kept after its last name went.
const MOMENT: Duration = Duration::from_secs(2);
/// Inodes without a name whose attributes are remembered, at most.
const NAMELESS_MAX: usize = 1 << 16;

impl Client {
    /// The entry of a directory: attributes of the inode that it names.
    pub async fn lookup(
        &self,
        caller: &Caller,
        parent: u64,
        name: &[u8],
    ) -> Result<Attributes, Errno> {
        check(name)?;
        self.sure_session().await?;
        self.inner.under_way.settled(parent, name).await;
        let known = self.known(parent, name);
        if let Some(known) = known {
            let number = known.ok_or(Errno::ENOENT)?;
            if let Some(attributes) = self.inode(number).cached() {
                return Ok(attributes);
            }
        }
        let _asking = self.inner.under_way.look_up(parent, name);
        if let Some(Some(number)) = known {
            self.read_ahead(caller, parent);
            match self.attributes(number).await {
                // It went while the lease on the directory did: the name may mean another by now.
                Err(Errno::ESTALE) => {}
                answer => return answer,
            }
        }
        let before = self.history_of(parent);
        let request = MetaRequest::Lookup { who: caller.who(), parent, name: Bytes(name) };
        let found = self
            .ask(&request, |reply| match reply {
                MetaReply::Entry(entry) => Ok(Ok(entry)),
                MetaReply::Missing { cached } => Ok(Err(cached)),
                _ => unexpected(),
            })
            .await?;
        let valid = self.history_of(parent) == before;
        match found {
            Ok(entry) => {
                let inode = self.learn(&entry);
                if entry.entry_cached && valid {
                    self.remember(parent, name, Some(entry.attributes.inode));
                }
                Ok(inode.seen(entry.attributes))
            }
            Err(cached) => {
                if cached && valid {
                    self.remember(parent, name, None);
                }
                Err(Errno::ENOENT)
            }
        }
    }

    fn known(&self, parent: u64, name: &[u8]) -> Option<Option<u64>> {
        self.inner.entries.borrow().known(parent, name)
    }

    /// Notes that a process (0: some process) of this host looked an inode up, and may be about to use
    /// it: it is kept for a moment where this client takes its last name.
    pub fn looked_up(&self, number: u64, process: u32) {
        if let Some(inode) = self.inner.inodes.borrow().get(&number) {
            let mut looks = inode.looks.get();
            looks.add(process, self.inner.world.now());
            inode.looks.set(looks);
        }
    }

    /// Whether somebody else than the one that removes the inode's name may be about to use it.
    fn is_looked_at(&self, number: u64) -> bool {
        let now = self.inner.world.now();
        let inodes = self.inner.inodes.borrow();
        let looks = inodes.get(&number).map(|inode| inode.looks.get()).unwrap_or_default();
        let since = now.since(Time::ZERO).saturating_sub(MOMENT);
        looks.are_several_since(Time::ZERO + since)
    }

    /// The inode that an entry names, if this client can say that it does not use it any more once its
    /// last name is gone; else 0. With it whether a look-up of the name is under way. To be asked in the
    /// step in which the request leaves.
    fn closed(&self, parent: u64, name: &[u8]) -> (u64, bool) {
        let looked_up = self.inner.under_way.is_looked_up(parent, name);
        let unused =
            |number: &u64| !looked_up && !self.is_open(*number) && !self.is_looked_at(*number);
        (self.known(parent, name).flatten().filter(unused).unwrap_or(0), looked_up)
    }

    /// Whether attributes and content are covered by a lease: the kernel may remember them, too.
    pub fn is_cached(&self, inode: u64) -> bool {
        let inodes = self.inner.inodes.borrow();
        inodes.get(&inode).is_some_and(|inode| inode.cached().is_some())
    }

    /// The time for which the kernel may believe attributes that it is told now, unless it is told to forget
    /// them. Not longer than the session lives for sure.
    pub fn cached_for(&self, inode: u64) -> std::time::Duration {
        match self.is_cached(inode) && !self.has_lost_locks(inode) {
            true => self.sure_for(),
            false => std::time::Duration::ZERO,
        }
    }

    pub(crate) fn remember(&self, parent: u64, name: &[u8], inode: Option<u64>) {
        self.inner.entries.borrow_mut().remember(parent, name, inode);
    }

    /// A change of ours in a directory: the remembered entries follow. `now`: its attributes, as far as they
    /// are told.
    fn changed(
        &self,
        parent: u64,
        name: &[u8],
        (inode, cached): (Option<u64>, bool),
        now: Option<DirectoryNow>,
    ) {
        self.inner.entries.borrow_mut().change(parent, name, inode, cached);
        let directory = self.inode(parent);
        directory.renamed.set(directory.renamed.get() + 1);
        self.note_change(&directory);
        if !now.is_some_and(|now| directory.is_now(now)) {
            // Its known times and size are out of date.
            self.stale(parent);
        }
    }

    /// A file of ours came into a directory. `before`: see [`Client::recalls_of`].
    pub(crate) fn created(&self, parent: u64, name: &[u8], entry: &Entry, before: u64) {
        let inode = entry.attributes.inode;
        if entry.entry_cached && self.recalls_of(parent) == before {
            self.remember(parent, name, Some(inode));
        }
        self.changed(parent, name, (Some(inode), entry.entry_cached), entry.directory);
    }

    /// Changes when the lease on a directory is recalled: a recall that overtook a reply also took back the
    /// entries that the reply allows to be remembered.
    pub(crate) fn recalls_of(&self, directory: u64) -> u64 {
        self.inode(directory).state.borrow().recalled
    }

    /// As [`Client::recalls_of`], and changes with each change of ours, too: a reply that was under
    /// way beside one may be older.
    pub(crate) fn history_of(&self, directory: u64) -> (u64, u64) {
        let inode = self.inode(directory);
        let recalled = inode.state.borrow().recalled;
        (recalled, inode.renamed.get())
    }

    /// Attributes have to be asked for again.
    pub(crate) fn stale(&self, inode: u64) {
        if let Some(inode) = self.inner.inodes.borrow().get(&inode) {
            inode.state.borrow_mut().outdated = true;
        }
    }

    /// Attributes of an inode.
    pub async fn attributes(&self, number: u64) -> Result<Attributes, Errno> {
        self.sure_session().await?;
        let inode = self.inode(number);
        if let Some(attributes) = inode.cached() {
            return Ok(attributes);
        }
        let request = MetaRequest::GetAttributes { inode: number };
        match self.ask_attributes(&inode, &request).await {
            // Somebody still stands in a directory that was removed, or holds the path of a file.
            Err(Errno::ESTALE) => {
                let ours = self.inner.nameless.borrow().get(&number).copied();
                let last = || inode.state.borrow().last;
                let gone = ours.or_else(last).ok_or(Errno::ESTALE)?;
                Ok(Attributes { link_count: 0, ..gone })
            }
            answer => answer,
        }
    }

    /// Nobody has use for this client's record of an inode that lost its last name.
    pub fn forget_nameless(&self, number: u64) {
        self.inner.nameless.borrow_mut().remove(&number);
    }

    pub(crate) async fn ask_attributes(
        &self,
        inode: &Rc<Inode>,
        request: &MetaRequest<'_>,
    ) -> Result<Attributes, Errno> {
        let told = self.ask_told(inode, request).await?;
        Ok(inode.state.borrow().attributes.unwrap_or(told))
    }

    /// As `ask_attributes`, with the attributes as the server told them: under `Write` what is known
    /// here of size and times goes beyond that.
    async fn ask_told(
        &self,
        inode: &Rc<Inode>,
        request: &MetaRequest<'_>,
    ) -> Result<Attributes, Errno> {
        let (attributes, grant) = self.ask(request, granted_attributes).await?;
        inode.granted(grant);
        self.learned(inode, attributes);
        Ok(attributes)
    }

    /// Notes the attributes of a reply, and so the server's clock.
    pub(crate) fn learned(&self, inode: &Inode, attributes: Attributes) {
        self.inner.server_clock.saw(self.inner.world.now(), attributes.changed);
        inode.learned(attributes);
    }

    /// As `ask_attributes`, for a request that a lease of this session allows.
    pub(crate) async fn learn_under_lease(
        &self,
        inode: &Inode,
        request: &MetaRequest<'_>,
    ) -> Result<(), Errno> {
        let (attributes, grant) = self.ask_under_lease(request, granted_attributes).await?;
        inode.granted(grant);
        self.learned(inode, attributes);
        Ok(())
    }

    /// Sends a request that takes bytes away. If the session ends meanwhile and a lock on the file went with
    /// it, the caller may have relied on that lock.
    pub(crate) async fn ask_to_cut<T>(
        &self,
        inode: u64,
        request: &MetaRequest<'_>,
        read: impl Fn(MetaReply<'_>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let session = self.inner.meta.session();
        match self.ask_under_lease(request, &read).await {
            Err(Errno::ESTALE) if self.inner.meta.session() != session => {
                match self.has_lost_locks(inode) {
                    true => Err(Errno::EIO),
                    false => self.ask(request, read).await,
                }
            }
            answer => answer,
        }
    }

    /// Changes attributes, the size among them.
    pub async fn set_attributes(
        &self,
        caller: &Caller,
        number: u64,
        change: AttributeChange,
    ) -> Result<Attributes, Errno> {
        let inode = self.inode(number);
        let request = MetaRequest::SetAttributes { who: caller.who(), inode: number, change };
        if change.size.is_some() {
            return self
                .resize(&inode, async {
                    // As the server tells them: the size known here is out of date.
                    let cut = self.ask_to_cut(number, &request, granted_attributes).await?;
                    let (attributes, grant) = cut;
                    inode.granted(grant);
                    self.learned(&inode, attributes);
                    self.note_change(&inode);
                    Ok((attributes, true))
                })
                .await;
        }
        if change.modified != TimeChange::Keep && inode.is_mapped() {
            // Changes that programs made in memory before count before, too.
            self.forget_in_kernel(&inode).await;
        }
        // Our earlier writes count before this change.
        self.report(&inode).await?;
        let told = self.ask_told(&inode, &request).await?;
        self.note_change(&inode);
        let mut state = inode.state.borrow_mut();
        let Some(known) = &mut state.attributes else { return Ok(told) };
        if change.modified != TimeChange::Keep {
            // Set on purpose: the time of our last write no longer counts.
            known.modified = told.modified;
        }
        Ok(*known)
    }

    /// Runs a change of the size, with no reading and writing of ours beside it. Content, epoch and
    /// written stripes may all be others after it, where it says so.
    pub(crate) async fn resize<T>(
        &self,
        inode: &Rc<Inode>,
        change: impl Future<Output = Result<(T, bool), Errno>>,
    ) -> Result<T, Errno> {
        let _resizing = Resizing::new(inode);
        loop {
            let idle = inode.idle.notified();
            if inode.users.get() == 0 {
                break;
            }
            idle.await;
        }
        // Our earlier writes count before this change.
        self.report(inode).await?;
        let (result, changed) = change.await?;
        if changed {
            inode.refresh();
        }
        Ok(result)
    }

    /// Makes a directory, symbolic link, fifo, socket, device node, or file without opening it.
    pub async fn make(
        &self,
        caller: &Caller,
        parent: u64,
        name: &[u8],
        mode: u16,
        node: Node<'_>,
    ) -> Result<Attributes, Errno> {
        check(name)?;
        let who = caller.who();
        let request = MetaRequest::Make { who, parent, name: Bytes(name), mode, node };
        let before = self.recalls_of(parent);
        let entry = self.ask(&request, entry_of).await?;
        let inode = self.learn(&entry);
        self.note_change(&inode);
        if entry.attributes.kind == InodeKind::Directory && inode.cached().is_some() {
            self.inner.entries.borrow_mut().made(inode.number);
        }
        self.created(parent, name, &entry, before);
        Ok(inode.seen(entry.attributes))
    }

    /// Removes a name that is not a directory's.
    pub async fn unlink(&self, caller: &Caller, parent: u64, name: &[u8]) -> Result<(), Errno> {
        check(name)?;
        let _removing = self.inner.under_way.remove(parent, name);
        let (closed, looked_up) = self.closed(parent, name);
        let who = caller.who();
        let request = MetaRequest::Unlink { who, parent, name: Bytes(name), closed };
        let (attributes, now) = self.ask(&request, removed_of).await?;
        self.changed(parent, name, (None, true), Some(now));
        self.lost_name(attributes, closed, looked_up);
        Ok(())
    }

    /// Removes an empty directory.
    pub async fn remove_directory(
        &self,
        caller: &Caller,
        parent: u64,
        name: &[u8],
    ) -> Result<(), Errno> {
        check(name)?;
        let _removing = self.inner.under_way.remove(parent, name);
        let (closed, looked_up) = self.closed(parent, name);
        let who = caller.who();
        let request = MetaRequest::RemoveDirectory { who, parent, name: Bytes(name), closed };
        let (attributes, now) = self.ask(&request, removed_of).await?;
        self.changed(parent, name, (None, true), Some(now));
        self.lost_name(attributes, closed, looked_up);
        Ok(())
    }

    /// An inode has a name less. `closed`: the one whose lease ended with that. `looked_up`: the name was
    /// being looked up when it went.
    fn lost_name(&self, attributes: Attributes, closed: u64, looked_up: bool) {
        let number = attributes.inode;
        self.inner.entries.borrow_mut().remove(number);
        let inode = self.inode(number);
        inode.learned(attributes);
        if attributes.link_count == 0 {
            let mut nameless = self.inner.nameless.borrow_mut();
            nameless.insert(number, attributes);
            if nameless.len() > NAMELESS_MAX {
                nameless.pop_first();
            }
        }
        if attributes.link_count > 0 || self.is_open(number) {
            return;
        }
        if number == closed {
            self.inner.inodes.borrow_mut().remove(&number);
        } else {
            // The server keeps the file for us as long as we hold a lease on it.
            let client = self.clone();
            // Somebody looked at it, or asks for it at this moment.
            let wait = self.is_looked_at(number) || looked_up;
            self.inner.world.spawn(async move {
                if wait {
                    client.inner.world.sleep(MOMENT).await;
                }
                client.forget(inode).await;
            });
        }
    }

    pub(crate) fn is_open(&self, number: u64) -> bool {
        let inodes = self.inner.inodes.borrow();
        inodes.get(&number).is_some_and(|inode| inode.opened().is_some())
    }

    /// Renames.
    pub async fn rename(
        &self,
        caller: &Caller,
        parent: u64,
        name: &[u8],
        new_parent: u64,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<(), Errno> {
        check(name)?;
        check(new_name)?;
        self.tell_before_naming(self.known(parent, name).flatten()).await?;
        if mode == RenameMode::Exchange {
            self.tell_before_naming(self.known(new_parent, new_name).flatten()).await?;
        }
        let _leaving = self.inner.under_way.remove(parent, name);
        let _replacing = self.inner.under_way.remove(new_parent, new_name);
        let moved = self.known(parent, name).flatten();
        let replaced = self.known(new_parent, new_name).flatten();
        let (closed, looked_up) = self.closed(new_parent, new_name);
        let request = MetaRequest::Rename {
            who: caller.who(),
            parent,
            name: Bytes(name),
            new_parent,
            new_name: Bytes(new_name),
            mode,
            closed,
        };
        let certain = moved.is_some() && self.known(new_parent, new_name).is_some();
        let lost_name = self.ask(&request, attributes_of).await?;
        if moved.is_some() && moved == replaced {
            // Two names of one file: POSIX changes nothing.
            return Ok(());
        }
        if mode == RenameMode::Exchange {
            self.changed(parent, name, (replaced, replaced.is_some()), None);
        } else {
            self.changed(parent, name, (None, certain), None);
        }
        self.changed(new_parent, new_name, (moved, moved.is_some()), None);
        for number in [moved, replaced].into_iter().flatten() {
            self.stale(number);
        }
        if let Some(attributes) = lost_name {
            self.lost_name(attributes, closed, looked_up);
        }
        Ok(())
    }

    /// Tells changes that only this client knows of a file before the file gets a name. So a program that
    /// opens a reused name finds the old file or the new one, also if this client is killed right after.
    /// `None`: a file that is not known by name here.
    async fn tell_before_naming(&self, number: Option<u64>) -> Result<(), Errno> {
        let Some(number) = number else {
            return self.report_all_strictly().await;
        };
        let known = self.inner.inodes.borrow().get(&number).cloned();
        let Some(inode) = known else { return Ok(()) };
        if inode.is_mapped() {
            self.forget_in_kernel(&inode).await;
        }
        self.report(&inode).await
    }

    /// Gives an inode another name.
    pub async fn link(
        &self,
        caller: &Caller,
        number: u64,
        parent: u64,
        name: &[u8],
    ) -> Result<Attributes, Errno> {
        check(name)?;
        let who = caller.who();
        self.tell_before_naming(Some(number)).await?;
        let request = MetaRequest::Link { who, inode: number, parent, name: Bytes(name) };
        let before = self.recalls_of(parent);
        let entry = self.ask(&request, entry_of).await?;
        let inode = self.learn(&entry);
        self.note_change(&inode);
        self.created(parent, name, &entry, before);
        Ok(inode.seen(entry.attributes))
    }

    /// The target of a symbolic link.
    pub async fn read_link(&self, number: u64) -> Result<Vec<u8>, Errno> {
        self.ask(&MetaRequest::ReadLink { inode: number }, content_of).await
    }

    /// Room and inodes.
    pub async fn status(&self) -> Result<FileSystemStatus, Errno> {
        self.ask(&MetaRequest::StatFileSystem, |reply| match reply {
            MetaReply::FileSystem { room, inodes } => Ok(FileSystemStatus {
                total_bytes: room.total_bytes,
                free_bytes: room.free_bytes,
                available_bytes: room.available_bytes,
                inodes,
            }),
            _ => unexpected(),
        })
        .await
    }
}

fn removed_of(reply: MetaReply<'_>) -> Result<(Attributes, DirectoryNow), Errno> {
    match reply {
        MetaReply::Removed { attributes, directory } => Ok((attributes, directory)),
        _ => unexpected(),
    }
}

fn attributes_of(reply: MetaReply<'_>) -> Result<Option<Attributes>, Errno> {
    match reply {
        MetaReply::Attributes { attributes, .. } => Ok(Some(attributes)),
        MetaReply::Done => Ok(None),
        _ => unexpected(),
    }
}

fn granted_attributes(reply: MetaReply<'_>) -> Result<(Attributes, Option<Grant>), Errno> {
    match reply {
        MetaReply::Attributes { attributes, grant } => Ok((attributes, grant)),
        _ => unexpected(),
    }
}

pub(crate) fn content_of(reply: MetaReply<'_>) -> Result<Vec<u8>, Errno> {
    match reply {
        MetaReply::Content { bytes } => Ok(bytes.0.to_vec()),
        _ => unexpected(),
    }
}
