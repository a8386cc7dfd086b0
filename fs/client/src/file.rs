//! Open files: opening, creating, closing, making durable.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use ropewalk_base::task::join;
use ropewalk_wire::fs::attributes::{Attributes, Content, InodeKind};
use ropewalk_wire::fs::data::FileId;
use ropewalk_wire::fs::handover::OpenFile;
use ropewalk_wire::fs::map::FIRST_EPOCH;
use ropewalk_wire::fs::meta::{Access, LeaseMode, MetaRequest};
use ropewalk_wire::fs::value::{Bytes, Errno};

use crate::client::{Caller, Client};
use crate::guards::Unsynced;
use crate::home::Home;
use crate::inode::{Dirty, Inode};
use crate::lease::{For, Opened, opened};
use crate::locks::Actor;

/// Stripes whose servers are computed for a sync; a file of more has some on all.
const STRIPES_LOOKED_AT: u64 = 4096;

/// The options with which a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenOptions {
    pub access: Access,
    /// `O_TRUNC`.
    pub truncate: bool,
    /// `O_APPEND`: every write goes to the end of the file as it is then, over all clients.
    pub append: bool,
}

impl OpenOptions {
    /// For reading.
    pub const READ: OpenOptions =
        OpenOptions { access: Access { read: true, write: false }, truncate: false, append: false };
    /// For writing.
    pub const WRITE: OpenOptions =
        OpenOptions { access: Access { read: false, write: true }, truncate: false, append: false };
}

/// An open file. Closes itself when dropped.
pub struct File {
    client: Client,
    pub(crate) inode: Rc<Inode>,
    options: OpenOptions,
    /// Owners of locks that were taken through it.
    pub(crate) lock_owners: RefCell<Vec<u64>>,
    /// Losses of the inode that it was told of, or that others were told of before it was opened.
    losses: Cell<u64>,
}

impl File {
    /// The inode's number.
    pub fn number(&self) -> u64 {
        self.inode.number
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The options with which it was opened.
    pub fn options(&self) -> OpenOptions {
        self.options
    }

    /// What another process has to know to go on with it. `direct`: as the kernel was told.
    pub fn to_state(&self, direct: bool) -> OpenFile {
        OpenFile {
            inode: self.inode.number,
            access: self.options.access,
            append: self.options.append,
            direct,
            owners: self.lock_owners.borrow().clone(),
            losses: self.losses.get(),
        }
    }

    pub(crate) fn set_state(&self, open: &OpenFile) {
        self.lock_owners.borrow_mut().clone_from(&open.owners);
        self.losses.set(open.losses);
    }

    /// Whether changes were lost of which it was not told.
    fn misses_losses(&self) -> bool {
        self.losses.get() < self.inode.state.borrow().losses.count
    }

    /// It is told of all that was lost: true where that is news.
    fn learn_losses(&self) -> bool {
        let mut state = self.inode.state.borrow_mut();
        state.losses.tell();
        self.losses.replace(state.losses.count) < state.losses.count
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let (last, last_writer, kept, dirty) = {
            let mut state = self.inode.state.borrow_mut();
            state.readers -= u32::from(self.options.access.read);
            state.writers -= u32::from(self.options.access.write);
            state.mappers -= u32::from(self.options.access.read && self.options.access.write);
            let last_writer = self.options.access.write && state.writers == 0;
            let named = state.attributes.is_none_or(|attributes| attributes.link_count > 0);
            let kept = state.mode >= LeaseMode::Read && named;
            let last = state.readers + state.writers == 0;
            if last && !named {
                // Nobody can ever ask for it: the file goes with this close.
                state.dirty = Dirty::default();
            }
            (last, last_writer, kept, !state.dirty.is_clean())
        };
        let (client, inode) = (self.client.clone(), self.inode.clone());
        let world = client.inner.world.clone();
        if !kept && (last || self.inode.mode() == LeaseMode::None) {
            // The server counts our opens where no lease stands for them, and keeps a file without
            // a name for us: it has to be told.
            world.spawn(async move { client.tell_closed(&inode).await });
        } else if last_writer && dirty {
            world.spawn(async move {
                // The next periodic report tries again after an error.
                let _ = client.report(&inode).await;
            });
        }
    }
}

/// A request under way that opens a file.
struct Opening<'a> {
    count: &'a Cell<usize>,
}

impl Opening<'_> {
    fn new(client: &Client) -> Opening<'_> {
        let count = &client.inner.opening;
        count.set(count.get() + 1);
        Opening { count }
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.count.set(self.count.get() - 1);
    }
}

impl Client {
    pub(crate) fn file(&self, inode: Rc<Inode>, options: OpenOptions) -> File {
        let losses = {
            let mut state = inode.state.borrow_mut();
            state.readers += u32::from(options.access.read);
            state.writers += u32::from(options.access.write);
            state.mappers += u32::from(options.access.read && options.access.write);
            Cell::new(state.losses.told)
        };
        let lock_owners = RefCell::default();
        File { client: self.clone(), inode, options, lock_owners, losses }
    }

    /// Tells that a file was closed, unless it was opened again meanwhile: gives a lease back that
    /// is of no use any more.
    async fn tell_closed(&self, inode: &Rc<Inode>) {
        // A release that is under way tells how the file was open before.
        let giving = inode.giving.acquire().await;
        if inode.mode() != LeaseMode::None {
            drop(giving);
            let number = inode.state.borrow().number;
            return self.return_unused(inode, number).await;
        }
        let number = {
            let state = inode.state.borrow();
            state.number.max(state.recalled)
        };
        let request = MetaRequest::Release {
            inode: inode.number,
            number,
            keep: LeaseMode::None,
            open: inode.opened(),
        };
        // A server that cannot be told learns it when the session ends.
        let _ = self.ask(&request, |_| Ok(())).await;
    }

    /// Opens a file.
    pub async fn open(
        &self,
        caller: &Caller,
        number: u64,
        options: OpenOptions,
    ) -> Result<File, Errno> {
        self.open_for(caller, number, options, false).await
    }

    /// Opens a file to execute it: it may be read through the result, and the caller needs the right to
    /// execute it, not to read it.
    pub async fn open_to_execute(&self, caller: &Caller, number: u64) -> Result<File, Errno> {
        self.open_for(caller, number, OpenOptions::READ, true).await
    }

    async fn open_for(
        &self,
        caller: &Caller,
        number: u64,
        options: OpenOptions,
        execute: bool,
    ) -> Result<File, Errno> {
        self.sure_session().await?;
        let inode = self.inode(number);
        if !options.truncate
            && let Some(file) = self.open_here(caller, &inode, options, execute)?
        {
            return Ok(file);
        }
        // Open from now on: a lease that is given back while the request is under way must not take
        // the open along.
        let file = self.file(inode.clone(), options);
        let (who, access, truncate) = (caller.who(), options.access, options.truncate);
        let request = MetaRequest::Open { who, inode: number, access, truncate, execute };
        if !truncate {
            let reply = self.ask_open(&request).await?;
            self.learn_opened(&reply);
            return Ok(file);
        }
        let reply = self
            .resize(&inode, async {
                let _opening = Opening::new(self);
                let reply = self.ask_to_cut(number, &request, opened).await?;
                inode.empty();
                Ok((reply, true))
            })
            .await?;
        let inode = self.learn_opened(&reply);
        self.note_change(&inode);
        Ok(file)
    }

    /// Sends a request that opens a file.
    async fn ask_open(&self, request: &MetaRequest<'_>) -> Result<Opened, Errno> {
        let _opening = Opening::new(self);
        self.ask(request, opened).await
    }

    /// Opens without a message, where a lease covers all that has to be known.
    fn open_here(
        &self,
        caller: &Caller,
        inode: &Rc<Inode>,
        options: OpenOptions,
        execute: bool,
    ) -> Result<Option<File>, Errno> {
        let state = inode.state.borrow();
        let needed = if options.access.write { LeaseMode::Write } else { LeaseMode::Read };
        if state.mode < needed || state.closing || state.content.is_none() {
            return Ok(None);
        }
        let Some(attributes) = state.attributes else { return Ok(None) };
        drop(state);
        if attributes.kind != InodeKind::File {
            return Ok(None);
        }
        if !may(&attributes, caller, options.access, execute) {
            return Err(Errno::EACCES);
        }
        Ok(Some(self.file(inode.clone(), options)))
    }

    /// Creates a file, or opens the existing one, and opens it. `mode`: permission bits, the umask
    /// taken off. True where it is new.
    pub async fn create(
        &self,
        caller: &Caller,
        parent: u64,
        name: &[u8],
        mode: u16,
        exclusive: bool,
        options: OpenOptions,
    ) -> Result<(Attributes, File, bool), Errno> {
        if name.len() > ropewalk_wire::fs::meta::NAME_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let before = self.recalls_of(parent);
        let request = MetaRequest::Create {
            who: caller.who(),
            parent,
            name: Bytes(name),
            mode,
            access: options.access,
            exclusive,
            truncate: options.truncate,
        };
        let reply = self.ask_open(&request).await?;
        if options.truncate && !reply.created {
            let inode = self.inode(reply.entry.attributes.inode);
            inode.empty();
            inode.discard();
        }
        let inode = self.learn_opened(&reply);
        if reply.created || options.truncate {
            self.note_change(&inode);
        }
        if reply.created {
            inode.shared_before.set(false);
            inode.promised.set(false);
        }
        self.created(parent, name, &reply.entry, before);
        Ok((inode.seen(reply.entry.attributes), self.file(inode, options), reply.created))
    }

    /// Creates a file without a name and opens it.
    pub async fn create_temporary(
        &self,
        caller: &Caller,
        parent: u64,
        mode: u16,
        options: OpenOptions,
    ) -> Result<(Attributes, File), Errno> {
        let who = caller.who();
        let request = MetaRequest::Temporary { who, parent, mode, access: options.access };
        let reply = self.ask_open(&request).await?;
        let inode = self.learn_opened(&reply);
        self.note_change(&inode);
        Ok((reply.entry.attributes, self.file(inode, options)))
    }

    /// Whether [`Client::flush`] has something to do: the metadata server does not know of all that
    /// was written to the file, or this open file does not know of a loss.
    pub fn needs_flush(&self, file: &File) -> bool {
        let state = file.inode.state.borrow();
        !state.dirty.is_clean() || !state.under_way.is_clean() || file.misses_losses()
    }

    /// Makes sure that the metadata server knows size and times of the writes: then they outlive this client.
    /// `EIO` where something of them is lost.
    pub async fn flush(&self, file: &File) -> Result<(), Errno> {
        self.report(&file.inode).await?;
        if !file.misses_losses() {
            return Ok(());
        }
        // The end of a process may have closed one descriptor of several: a sync by another tells of
        // it once more.
        file.inode.state.borrow_mut().losses.tell();
        Err(Errno::EIO)
    }

    /// Makes everything durable that was written to the file before. `EIO` where something of it is
    /// lost: once through each open file, and each time while a lock is lost.
    pub async fn sync(&self, file: &File) -> Result<(), Errno> {
        self.sync_for_kernel(file, &Actor::OWN).await
    }

    /// As [`Client::sync`], as the kernel asks for it.
    pub async fn sync_for_kernel(&self, file: &File, actor: &Actor) -> Result<(), Errno> {
        let synced = match self.check_locks(file, actor) {
            Ok(()) => self.sync_inode(&file.inode).await,
            // This error tells of the losses that came with the lock's session.
            refused => refused,
        };
        let news = file.learn_losses();
        synced?;
        if news { Err(Errno::EIO) } else { Ok(()) }
    }

    /// Makes changes to an inode of any kind durable.
    pub async fn sync_number(&self, number: u64) -> Result<(), Errno> {
        let inode = self.inode(number);
        self.sync_for_all(&inode).await
    }

    /// Syncs an inode for nobody in particular: losses that nobody was told of yet are told. Open files learn
    /// of them nevertheless.
    async fn sync_for_all(&self, inode: &Rc<Inode>) -> Result<(), Errno> {
        let synced = self.sync_inode(inode).await;
        let mut state = inode.state.borrow_mut();
        let news = state.losses.are_untold();
        state.losses.tell();
        drop(state);
        synced?;
        if news { Err(Errno::EIO) } else { Ok(()) }
    }

    /// Makes all changes durable, and counts those that turn out to be lost.
    async fn sync_inode(&self, inode: &Rc<Inode>) -> Result<(), Errno> {
        inode.promised.set(true);
        let taken = Unsynced::take(inode);
        let mut homes: BTreeSet<Home> = taken.keys().copied().collect();
        let alone = inode.mode() == LeaseMode::Write;
        if inode.shared_before.get() {
            homes.extend(self.homes_of_bytes(inode).await?);
        }
        let id = self.file_id(inode);
        let unsynced = &*taken;
        let data = async {
            let mut synced = self.sync_homes(id, homes).await;
            if synced.iter().any(|(home, _)| matches!(home, Home::Server(_)))
                && self.map().epoch > FIRST_EPOCH
            {
                // The file system has left the first format meanwhile: others' bytes may lie elsewhere by now.
                let homes = self.homes_of_bytes(inode).await?;
                synced.extend(self.sync_homes(id, homes).await);
            }
            synced.into_iter().try_for_each(|(home, now)| {
                // Another era: bytes that were only in memory may be gone.
                let lost = unsynced.get(&home).is_some_and(|before| now != Ok(*before));
                now.and(if lost { Err(Errno::EIO) } else { Ok(()) })
            })
        };
        let meta = async {
            self.report(inode).await?;
            self.ask(&MetaRequest::Sync, |_| Ok(())).await
        };
        // At the same time: a promise is given when both are done, and until then a power loss may
        // leave the one without the other, as the reports that go out now and then do as well.
        let (synced, told) = join(data, meta).await;
        taken.settled();
        if synced.is_err() {
            // No later sync asks these servers for it again.
            inode.state.borrow_mut().losses.add();
        }
        told?;
        if alone && inode.mode() == LeaseMode::Write {
            inode.shared_before.set(false);
        }
        let kept = inode.changed.take().is_none_or(|changed| self.is_kept(changed));
        if !kept {
            inode.state.borrow_mut().losses.add();
        }
        synced
    }

    /// The places of a file's stripes, from any writer.
    async fn homes_of_bytes(&self, inode: &Rc<Inode>) -> Result<BTreeSet<Home>, Errno> {
        let is_file = self.attributes(inode.number).await?.kind == InodeKind::File;
        if !is_file {
            return Ok(BTreeSet::new());
        }
        inode.doubt_stripes();
        let _lease = self.lease(inode, For::Reading).await?;
        let (content, written) = {
            let state = inode.state.borrow();
            (state.content.clone(), state.written.clone())
        };
        let Some(Content::Striped(layout)) = content else { return Ok(BTreeSet::new()) };
        let places = self.places(&layout).await?;
        let count: u64 = written.as_slice().iter().map(|(_, count)| u64::from(*count)).sum();
        if count > STRIPES_LOOKED_AT {
            return Ok(places.homes());
        }
        let stripes = written.as_slice().iter().flat_map(|(first, count)| *first..*first + *count);
        Ok(stripes.map(|stripe| places.home(places.group(stripe)).0).collect())
    }

    /// Makes everything durable that this client was told is done.
    pub async fn sync_all(&self) -> Result<(), Errno> {
        let inodes: Vec<_> = self.inner.inodes.borrow().values().cloned().collect();
        for inode in inodes {
            let pending = !inode.unsynced.borrow().is_empty()
                || !inode.syncing.borrow().is_empty()
                || inode.changed.get().is_some()
                || inode.state.borrow().losses.are_untold()
                || !inode.state.borrow().dirty.is_clean();
            if pending {
                self.sync_for_all(&inode).await?;
            }
        }
        self.ask(&MetaRequest::Sync, |_| Ok(())).await
    }

    pub(crate) fn file_id(&self, inode: &Inode) -> FileId {
        let state = inode.state.borrow();
        FileId { inode: inode.number, generation: state.generation, epoch: state.epoch }
    }
}

/// Whether attributes allow a caller this access, as the server would judge it.
fn may(attributes: &Attributes, caller: &Caller, access: Access, execute: bool) -> bool {
    let who = caller.who();
    if who.passes() {
        return true;
    }
    let shift = if caller.user == attributes.user {
        6
    } else if who.is_in(attributes.group) {
        3
    } else {
        0
    };
    let bits = attributes.mode >> shift & 7;
    let reads = if execute { 1 } else { 4 };
    (!access.read || bits & reads != 0) && (!access.write || bits & 2 != 0)
}
