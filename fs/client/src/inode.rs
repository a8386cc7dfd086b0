//! The client's knowledge of an inode, and the lease that covers it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use ropewalk_base::task::{Notify, Semaphore};
use ropewalk_base::time::Time;
use ropewalk_wire::fs::attributes::{Attributes, Content};
use ropewalk_wire::fs::layout::Layout;
use ropewalk_wire::fs::meta::{Access, DirectoryNow, Grant, LeaseMode};
use ropewalk_wire::fs::runs::Runs;
use ropewalk_wire::fs::trust::Capability;
use ropewalk_wire::fs::value::Timestamp;

use crate::home::Home;

/// An inode that is open, leased or remembered.
pub(crate) struct Inode {
    pub number: u64,
    pub state: RefCell<State>,
    /// Users of the lease: operations that rely on it. It is given back when there are none.
    pub users: Cell<u32>,
    pub idle: Notify,
    /// Requests of the kernel that wait for the lease and hold these pages locked, and the news that
    /// there is another one.
    pub waiting: RefCell<Vec<(u64, u64)>>,
    pub wanted: Notify,
    /// A range of an append is written, or is nobody's any more.
    pub placed: Notify,
    /// Counts the reads into pages of the kernel, and the reads under way.
    pub page_reads: Cell<u64>,
    pub pages_coming: Cell<u32>,
    /// Until then the kernel's programs may use the pages that they waited for; the lease stays.
    pub settling: Cell<Time>,
    /// The number of times that pages changed by programs were lost with the lease. With it: how many of
    /// these are still with the kernel, which is being told to drop them.
    pub orphans: Cell<(u64, u32)>,
    /// Counts how often an open here has truncated the file.
    pub emptied: Cell<u64>,
    /// One acquisition of the lease, or change of the content's place, at a time.
    pub change: Semaphore,
    /// One giving back at a time. Apart from `change`: an acquisition may be waiting at the server
    /// for somebody whose acquisition waits for what we give back.
    pub giving: Semaphore,
    /// One report at a time.
    pub reporting: Semaphore,
    /// One append gets its range at a time.
    pub placing: Semaphore,
    /// When it was used last, on the client's own count.
    pub used: Cell<u64>,
    /// Places of bytes that were not made durable: their eras, or losses, at the first such write.
    pub unsynced: RefCell<BTreeMap<Home, u64>>,
    /// Of these, the places that syncs under way ask, and how many syncs: a sync that begins meanwhile
    /// must not end before they have answered.
    pub syncing: RefCell<BTreeMap<Home, (u64, u32)>>,
    /// A change that a data server was asked for was given up, and may come about as long as the
    /// session lives, whatever becomes of the lease.
    pub in_doubt: Cell<bool>,
    /// Others may have written since the last sync: the next one has to reach every server that has
    /// bytes of the file.
    pub shared_before: Cell<bool>,
    /// A sync may have covered content of the file: bytes that are moved elsewhere have to stay durable.
    pub promised: Cell<bool>,
    /// The metadata server's era and position of the newest change that no sync covered.
    pub changed: Cell<Option<Position>>,
    /// Changes of a directory's entries by this client: a reply that was under way beside one may be
    /// older than it.
    pub renamed: Cell<u64>,
    /// The processes that looked the inode up of late.
    pub looks: Cell<Looks>,
    /// The capability that data servers are shown, where the session is bound to one user or to an export.
    pub capability: Cell<Option<Capability>>,
}

/// The latest look-ups of an inode by processes of this host.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Looks {
    process: u32,
    at: Option<Time>,
    /// The latest by another process than the latest.
    other: Option<Time>,
}

impl Looks {
    /// `process` (0: some process) looked the inode up.
    pub fn add(&mut self, process: u32, now: Time) {
        if process == 0 || process != self.process {
            self.other = self.at;
        }
        (self.process, self.at) = (process, Some(now));
    }

    /// Whether several processes looked it up since.
    pub fn are_several_since(&self, time: Time) -> bool {
        self.other.is_some_and(|other| other >= time)
    }
}

/// A moment in the history of the metadata: an era of the server, and how far it had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Position {
    pub era: u64,
    pub position: u64,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub attributes: Option<Attributes>,
    /// The attributes when the last lease went: others may have removed the inode since.
    pub last: Option<Attributes>,
    pub mode: LeaseMode,
    pub epoch: u32,
    /// Of the newest grant; grants up to `recalled` are none.
    pub number: u64,
    pub recalled: u64,
    /// The highest number that a reply told, whether it was taken or not.
    pub told: u64,
    /// The attributes are older than the newest grant.
    pub stale: bool,
    /// The attributes miss something other than size and times; they have to be asked for.
    pub outdated: bool,
    /// Counts how often the lease was lost under its users.
    pub tenure: u64,
    /// Counts how often the lease went, or the size was set here: others, or we, may have cut the file.
    pub ground: u64,
    /// The lease was insisted on: others may have the file open, and look at its size.
    pub insisted: bool,
    /// New users wait: the lease is being given back.
    pub closing: bool,
    /// New users wait: the size is being set, which takes the lease's ground away.
    pub resizing: u32,
    /// Changes that were acknowledged and are lost.
    pub losses: Losses,
    pub content: Option<Content>,
    /// The newest generation of the content that a reply told; within an era of the metadata server
    /// it only grows. Apart from the attributes: those may be dropped beside an operation that is
    /// about to name the objects.
    pub generation: u32,
    /// The same of the version of the inode.
    pub version: u64,
    /// The server began a new era, in which generation and version may be older ones.
    pub doubtful: bool,
    /// Inline bytes, while a lease covers them.
    pub inline: Option<Inline>,
    pub layout: Option<Layout>,
    pub written: Runs,
    pub dirty: Dirty,
    /// Ranges, in order, where appends are under way.
    pub claims: Vec<(u64, u64)>,
    /// Changes in a report that was not answered yet: other replies may not know of them.
    pub under_way: Dirty,
    pub readers: u32,
    pub writers: u32,
    /// Open files whose pages programs may change in their memory: opened to read and to write.
    pub mappers: u32,
}

/// The number of times that changes were lost. Each open file learns of each loss once, as from a local file
/// system.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Losses {
    pub count: u64,
    /// Somebody was told of so many: a program that opens the file later has nothing to do with them.
    pub told: u64,
}

impl Losses {
    pub fn add(&mut self) {
        self.count += 1;
    }

    /// Whether nobody was told of the latest.
    pub fn are_untold(self) -> bool {
        self.told < self.count
    }

    /// Somebody is told of all of them.
    pub fn tell(&mut self) {
        self.told = self.count;
    }
}

/// Inline bytes of a file, and the version of the inode that has them.
#[derive(Debug)]
pub(crate) struct Inline {
    pub bytes: Vec<u8>,
    pub version: u64,
}

/// Changes that the metadata server was not told yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Dirty {
    /// The size is at least this.
    pub size: Option<u64>,
    pub modified: Option<Timestamp>,
    pub accessed: Option<Timestamp>,
    pub written: Runs,
}

impl Dirty {
    pub fn is_clean(&self) -> bool {
        self.size.is_none()
            && self.modified.is_none()
            && self.accessed.is_none()
            && self.written.is_empty()
    }

    /// Takes older changes back in. False where not all of them have room.
    #[must_use]
    pub fn merge(&mut self, older: Dirty) -> bool {
        self.size = self.size.max(older.size);
        self.modified = self.modified.max(older.modified);
        self.accessed = self.accessed.max(older.accessed);
        self.written.merge(&older.written)
    }
}

impl State {
    /// Takes inline bytes of a reply, unless something newer is known: replies overtake each other.
    pub fn take_inline(&mut self, bytes: &[u8], version: u64) {
        if version >= self.version {
            self.inline = Some(Inline { bytes: bytes.to_vec(), version });
        }
    }

    /// Takes a write that made this version into the inline bytes; they are forgotten where a change
    /// in between is not known here.
    pub fn write_inline(&mut self, offset: usize, bytes: &[u8], version: u64) {
        let Some(inline) = &mut self.inline else { return };
        if inline.version >= version {
            return;
        }
        if inline.version + 1 < version {
            self.inline = None;
            return;
        }
        let end = offset + bytes.len();
        if inline.bytes.len() < end {
            inline.bytes.resize(end, 0);
        }
        inline.bytes[offset..end].copy_from_slice(bytes);
        inline.version = version;
    }

    /// Takes the size that a write made, which ends there, and its version. A reclaim may have told the version before: then it told
    /// the size, too, and the holder of the lease has kept its own.
    pub fn note_written(&mut self, (size, end): (u64, u64), version: u64, modified: Timestamp) {
        let Some(attributes) = &mut self.attributes else { return };
        if attributes.version > version {
            return;
        }
        attributes.size = attributes.size.max(size);
        attributes.blocks = attributes.blocks.max(end.div_ceil(512));
        if attributes.version < version {
            attributes.version = version;
            attributes.modified = modified;
            attributes.changed = modified;
        }
    }

    /// Attributes as programs see them. Unreported stripes count as allocated, too: programs take a file for
    /// a hole where it has a size and no blocks.
    fn shown(&self, mut attributes: Attributes) -> Attributes {
        let reported = self.dirty.is_clean() && self.under_way.is_clean();
        if let (Some(Content::Striped(layout)), false) = (&self.content, reported) {
            let bytes = self.written.bytes(layout.stripe_bytes, attributes.size);
            attributes.blocks = attributes.blocks.max(bytes.div_ceil(512));
        }
        if let (Some(first), Some(last)) = (self.claims.first(), self.claims.last())
            && attributes.size <= last.1
        {
            // Records that got their ranges among several writers may be under way still. Nobody else has
            // written behind them.
            attributes.size = attributes.size.min(first.0);
        }
        attributes
    }
}

impl Inode {
    pub fn new(number: u64) -> Inode {
        Inode {
            number,
            state: RefCell::new(State::default()),
            users: Cell::new(0),
            waiting: RefCell::default(),
            wanted: Notify::new(),
            placed: Notify::new(),
            page_reads: Cell::new(0),
            pages_coming: Cell::new(0),
            settling: Cell::new(Time::ZERO),
            orphans: Cell::new((0, 0)),
            emptied: Cell::new(0),
            idle: Notify::new(),
            change: Semaphore::new(1),
            giving: Semaphore::new(1),
            reporting: Semaphore::new(1),
            placing: Semaphore::new(1),
            used: Cell::new(0),
            unsynced: RefCell::new(BTreeMap::new()),
            syncing: RefCell::new(BTreeMap::new()),
            in_doubt: Cell::new(false),
            shared_before: Cell::new(true),
            promised: Cell::new(true),
            changed: Cell::new(None),
            renamed: Cell::new(0),
            looks: Cell::new(Looks::default()),
            capability: Cell::new(None),
        }
    }

    pub fn mode(&self) -> LeaseMode {
        self.state.borrow().mode
    }

    /// A reply told of a capability of this session. One that is to less than the one before is not taken: a handle may be
    /// open that needs the other one.
    pub fn take_capability(&self, capability: Option<Capability>) {
        let Some(new) = capability else { return };
        if self.capability.get().is_none_or(|known| new.covers(&known) || !known.covers(&new)) {
            self.capability.set(Some(new));
        }
    }

    /// The session's open mode of the inode.
    pub fn opened(&self) -> Option<Access> {
        let state = self.state.borrow();
        let access = Access { read: state.readers > 0, write: state.writers > 0 };
        (access.read || access.write).then_some(access)
    }

    /// Notes a lease that a reply granted, unless it was recalled before the reply came.
    pub fn granted(&self, grant: Option<Grant>) {
        let Some(grant) = grant else { return };
        let mut state = self.state.borrow_mut();
        if grant.number > state.told {
            state.told = grant.number;
            self.idle.notify_all();
        }
        if grant.number <= state.recalled || grant.number < state.number {
            if (grant.number, grant.mode) == (state.number, state.mode) {
                // The part that was kept of a recalled lease goes on under its number.
                state.epoch = state.epoch.max(grant.epoch);
            }
            return;
        }
        if state.mode < LeaseMode::Read && grant.mode >= LeaseMode::Read {
            // Others may have written until now. The reply tells the content, or it is learned before the lease is used.
            (state.content, state.inline) = (None, None);
        }
        state.stale |= grant.number != state.number;
        state.number = grant.number;
        state.mode = grant.mode;
        state.epoch = grant.epoch;
    }

    /// Grant `number` goes, down to `keep`, unless a newer one came. Told to the server after this: a lease
    /// that the server may have given to others is not ours to reclaim.
    pub fn lower(&self, number: u64, keep: LeaseMode) {
        let mut state = self.state.borrow_mut();
        if state.number > number {
            return;
        }
        state.mode = state.mode.min(keep);
        state.insisted = false;
        state.ground += u64::from(state.mode == LeaseMode::None);
        if keep < LeaseMode::Read {
            state.last = state.attributes.take().or(state.last);
            state.inline = None;
            state.content = None;
        }
    }

    /// Notes attributes of a reply. Under `Write` size and times are ours from the grant on: a reply may have
    /// left before our report came in.
    pub fn learned(&self, attributes: Attributes) {
        let mut state = self.state.borrow_mut();
        let mut attributes = attributes;
        if std::mem::take(&mut state.doubtful) {
            (state.generation, state.version) = (0, 0);
        }
        state.generation = state.generation.max(attributes.object_generation);
        state.version = state.version.max(attributes.version);
        let fresh = std::mem::take(&mut state.stale);
        state.outdated = false;
        if let (Some(old), false) = (&state.attributes, fresh) {
            if attributes.version < old.version && state.mode >= LeaseMode::Read {
                return;
            }
            if attributes.version == old.version && state.mode >= LeaseMode::Read {
                // The server shows more of a file, as appends are done, without another version.
                attributes.size = attributes.size.max(old.size);
            }
            if state.mode == LeaseMode::Write {
                attributes.size = old.size;
                attributes.modified = old.modified.max(attributes.modified);
            }
        }
        // No reply has unreported changes. Among several writers the server says when they are to be seen:
        // appends of others may be under way before them.
        if state.mode != LeaseMode::Shared {
            let reported = state.dirty.size.max(state.under_way.size);
            attributes.size = attributes.size.max(reported.unwrap_or(0));
        }
        state.attributes = Some(attributes);
    }

    /// Takes the directory's new attributes after a change of ours. False where another change came between,
    /// or nothing is known: then they have to be asked for.
    pub fn is_now(&self, now: DirectoryNow) -> bool {
        let mut state = self.state.borrow_mut();
        let next = |known: &&mut Attributes| known.version + 1 == now.version;
        let (fresh, version) = (!state.outdated && !state.stale, now.version);
        let Some(known) = state.attributes.as_mut().filter(|_| fresh).filter(next) else {
            return false;
        };
        known.version = version;
        known.size = now.size;
        known.link_count = now.link_count;
        (known.modified, known.changed) = (now.modified, now.modified);
        state.version = state.version.max(version);
        true
    }

    /// The attributes of a reply, with the newer values that are known here.
    pub fn seen(&self, told: Attributes) -> Attributes {
        let state = self.state.borrow();
        state.attributes.map_or(told, |known| state.shown(known))
    }

    /// Attributes that a lease covers.
    pub fn cached(&self) -> Option<Attributes> {
        let state = self.state.borrow();
        let covered = state.mode >= LeaseMode::Read && !state.closing && !state.outdated;
        state.attributes.filter(|_| covered).map(|known| state.shown(known))
    }

    /// Others may write, and sync, from now on.
    pub fn met_others(&self) {
        self.shared_before.set(true);
        self.promised.set(true);
    }

    /// Whether pages that the kernel has may be changed by programs, without a word to us.
    pub fn is_mapped(&self) -> bool {
        self.state.borrow().mappers > 0
    }

    /// The known content is no longer true: it is learned anew, with the epoch, before the lease is used
    /// again.
    pub fn refresh(&self) {
        let mut state = self.state.borrow_mut();
        state.content = None;
        state.inline = None;
        state.attributes = None;
    }

    /// Among several writers nobody but the server knows which stripes there are: they are learned
    /// anew before the lease is used again.
    pub fn doubt_stripes(&self) {
        let mut state = self.state.borrow_mut();
        if state.mode < LeaseMode::Read {
            state.content = None;
        }
    }

    /// The server forgot changes that it had acknowledged: a cut may be among them.
    pub fn doubt(&self) {
        self.state.borrow_mut().doubtful = true;
    }

    /// Changes that were written and not reported are not the file's any more; the next syncs say so.
    pub fn lose_changes(&self) {
        {
            let mut state = self.state.borrow_mut();
            // A report that is under way is not taken any more either, however it ends.
            let clean = state.dirty.is_clean() && state.under_way.is_clean();
            if !clean {
                state.losses.add();
            }
        }
        self.discard();
    }

    /// An open has truncated the file: page changes of programs that wait to be written go.
    pub fn empty(&self) {
        self.emptied.set(self.emptied.get() + 1);
        self.state.borrow_mut().ground += 1;
    }

    /// Changes that were written and not reported were truncated away.
    pub fn discard(&self) {
        let mut state = self.state.borrow_mut();
        state.dirty = Dirty::default();
        state.under_way = Dirty::default();
        state.tenure += 1;
        state.claims.clear();
        drop(state);
        self.placed.notify_all();
        self.refresh();
    }

    /// The lease is gone, and with it all that it covered. Opens stay. Changes that were written and not
    /// reported are lost; the next syncs say so.
    pub fn lose_lease(&self) {
        self.lose_changes();
        self.met_others();
        let mut state = self.state.borrow_mut();
        (state.mode, state.insisted) = (LeaseMode::None, false);
        state.ground += 1;
        drop(state);
        self.idle.notify_all();
    }

    /// The server knows the lease again after its restart. False where it does not, or where its
    /// history is not ours: a power loss took changes that were acknowledged.
    pub fn reclaimed(&self, attributes: Attributes, grant: Option<Grant>) -> bool {
        let mut state = self.state.borrow_mut();
        let granted = grant.map_or(LeaseMode::None, |grant| grant.mode);
        // The source of the version may be attributes, or the reply to a write.
        let known = state.attributes.map_or(0, |known| known.version).max(state.version);
        if attributes.version < known || granted != state.mode {
            return false;
        }
        if let Some(grant) = grant {
            state.mode = grant.mode;
            state.number = grant.number;
            state.epoch = grant.epoch;
        }
        drop(state);
        self.learned(attributes);
        true
    }
}

/// A use of an inode's lease; it is not given back meanwhile.
pub(crate) struct Use {
    pub inode: std::rc::Rc<Inode>,
}

impl Use {
    pub fn new(inode: &std::rc::Rc<Inode>) -> Use {
        inode.users.set(inode.users.get() + 1);
        Use { inode: inode.clone() }
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let users = self.inode.users.get() - 1;
        self.inode.users.set(users);
        if users == 0 {
            self.inode.idle.notify_all();
        }
    }
}

/// A change of the size that is under way: users of the lease wait meanwhile.
pub(crate) struct Resizing<'a> {
    inode: &'a Inode,
}

impl Resizing<'_> {
    pub fn new(inode: &Inode) -> Resizing<'_> {
        let mut state = inode.state.borrow_mut();
        state.resizing += 1;
        state.ground += 1;
        drop(state);
        Resizing { inode }
    }
}

impl Drop for Resizing<'_> {
    fn drop(&mut self) {
        self.inode.state.borrow_mut().resizing -= 1;
        self.inode.idle.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes() -> Attributes {
        Attributes {
            inode: 1,
            object_generation: 0,
            kind: ropewalk_wire::fs::attributes::InodeKind::Directory,
            mode: 0o755,
            link_count: 2,
            user: 0,
            group: 0,
            device: 0,
            size: 0,
            blocks: 0,
            accessed: Timestamp::default(),
            modified: Timestamp::default(),
            changed: Timestamp::default(),
            created: Timestamp::default(),
            capable: false,
            has_xattrs: false,
            version: 5,
        }
    }

    /// The server did a write and died; the next one tells of it at the reclaim, and then repeats the reply.
    #[test]
    fn a_size_that_a_reclaim_told_before_the_reply_to_the_write_is_not_lost() {
        let inode = Inode::new(7);
        let attributes = |size, version| Attributes { size, version, ..attributes() };
        inode.learned(attributes(0, 1));
        inode.state.borrow_mut().mode = LeaseMode::Write;
        inode.learned(attributes(5624, 2));
        assert_eq!(
            inode.state.borrow().attributes.map(|it| it.size),
            Some(0),
            "its own size counts"
        );
        inode.state.borrow_mut().note_written((5624, 5624), 2, Timestamp::default());
        assert_eq!(inode.state.borrow().attributes.map(|it| it.size), Some(5624));
        inode.state.borrow_mut().note_written((9000, 9000), 1, Timestamp::default());
        assert_eq!(inode.state.borrow().attributes.map(|it| it.size), Some(5624), "a late reply");
    }

    /// A create that was sent again after the server's death is answered without a lease. A lookup brings one later.
    #[test]
    fn content_that_was_known_without_a_lease_is_not_taken_for_covered() {
        let inode = Inode::new(1);
        let know = || {
            let mut state = inode.state.borrow_mut();
            state.content = Some(Content::Inline);
            state.take_inline(b"", 1);
        };
        let grant = |mode, number| Some(Grant { mode, epoch: 0, number });
        let knows = || {
            let state = inode.state.borrow();
            (state.content.is_some(), state.inline.is_some())
        };
        for (mode, number) in [(LeaseMode::None, 0), (LeaseMode::Shared, 1)] {
            know();
            inode.granted(grant(mode, number));
            inode.granted(grant(LeaseMode::Read, number + 1));
            assert_eq!(knows(), (false, false), "{mode:?}");
            inode.lower(number + 1, LeaseMode::None);
        }
        inode.granted(grant(LeaseMode::Read, 7));
        know();
        inode.granted(grant(LeaseMode::Write, 8));
        assert_eq!(knows(), (true, true), "it was covered all the time");
    }

    #[test]
    fn a_report_under_way_is_lost_with_the_lease() {
        let inode = Inode::new(1);
        let dirty = Dirty { size: Some(1), ..Dirty::default() };
        inode.state.borrow_mut().under_way = dirty.clone();
        let report = crate::guards::Reported::new(&inode, dirty);
        inode.lose_lease();
        // The server was not reached any more.
        drop(report);
        assert!(inode.state.borrow().losses.are_untold() && inode.state.borrow().dirty.is_clean());
    }

    #[test]
    fn a_directory_follows_our_own_changes_one_by_one() {
        let directory = Inode::new(1);
        let at = Timestamp { seconds: 9, nanos: 0 };
        let now = |version| DirectoryNow { version, size: 3, link_count: 2, modified: at };
        assert!(!directory.is_now(now(1)), "nothing is known");
        directory.learned(Attributes { accessed: at, ..attributes() });
        assert!(!directory.is_now(now(7)), "something came between");
        assert!(directory.is_now(now(6)) && directory.is_now(now(7)));
        let known = directory.state.borrow().attributes.unwrap();
        assert_eq!((known.size, known.modified, known.changed), (3, at, at));
        directory.state.borrow_mut().outdated = true;
        assert!(!directory.is_now(now(8)));
    }

    #[test]
    fn look_ups_of_several_processes_are_told_apart() {
        let at = |seconds| Time::ZERO + std::time::Duration::from_secs(seconds);
        let mut looks = Looks::default();
        looks.add(7, at(1));
        looks.add(7, at(2));
        assert!(!looks.are_several_since(at(0)));
        looks.add(8, at(3));
        assert!(looks.are_several_since(at(2)) && !looks.are_several_since(at(3)));
        looks.add(8, at(9));
        assert!(looks.are_several_since(at(2)) && !looks.are_several_since(at(3)));
        // An unknown process may be any process.
        looks.add(0, at(10));
        looks.add(0, at(11));
        assert!(looks.are_several_since(at(10)));
    }

    #[test]
    fn a_doubt_outlasts_the_lease() {
        let inode = Inode::new(1);
        inode.in_doubt.set(true);
        // As after a restart of the metadata server that does not know the lease: the session lives.
        inode.lose_lease();
        assert!(inode.in_doubt.get());
    }
}
