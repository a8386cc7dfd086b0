//! The operations of requests: one operation reads rows, checks, demands leases, and collects its changes.
//!
//! Invariants that every operation keeps:
//! * the order is checks (which may fail), then [`Operation::need`] and [`Operation::settle`] (which
//!   may wait), then changes and grants (which may not fail): an operation that failed or waits has
//!   changed nothing, in rows or in memory;
//! * changes are committed by the shard as one batch, together with the reply;
//! * leases of other sessions that may cover cached data of an inode or a directory are recalled before the
//!   reply that says it changed.

mod attributes;
mod content;
mod create;
mod directory;
mod exports;
mod garbage;
mod inspect;
mod lease;
mod limits;
mod listing;
mod lock;
mod lookup;
mod open;
mod policy;
mod remove;
mod rename;
mod status;
mod upgrade;
mod xattr;

pub(crate) use directory::decode_dentry;
pub(crate) use lock::decode_lock;

use ropewalk_wire::fs::encode;
use ropewalk_wire::fs::meta::{Grant, LeaseMode, MetaReply, MetaRequest, MetaResult};
use ropewalk_wire::fs::value::Errno;

use crate::config::Config;
use crate::identity::Mapped;
use crate::inode::{Damaged, Inode};
use crate::keys::{self, Table};
use crate::leases::{Leases, Need};
use crate::parking::WaitOn;
use crate::rows::{Batch, Rows, RowsError};
use crate::shard::{Moment, Shard};

/// Why an operation did not come to its end.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The reply is this error; nothing changed.
    Errno(Errno),
    /// It has to wait for one of these.
    Wait { on: Vec<WaitOn> },
    /// The store failed.
    Rows(RowsError),
}

pub(crate) type Step<T> = Result<T, Stop>;

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        Stop::Errno(errno)
    }
}

impl From<RowsError> for Stop {
    fn from(error: RowsError) -> Stop {
        Stop::Rows(error)
    }
}

impl From<Damaged> for Stop {
    fn from(_: Damaged) -> Stop {
        Stop::Errno(Errno::EIO)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Clean,
    Changed,
    Removed,
}

/// One execution of one request.
pub(crate) struct Operation<'a, R> {
    pub shard: &'a mut Shard<R>,
    pub session: u64,
    /// The call's place in the order of arrival.
    pub ticket: u64,
    pub now: Moment,
    pub batch: Batch,
    /// The encoded result.
    pub reply: Vec<u8>,
    /// The reply waits until everything so far is durable.
    pub durable: bool,
    /// The reply waits until this inode's objects are cut.
    pub told_after_cut: Option<u64>,
    /// The reply waits until the sessions that look at this inode heard of its size.
    pub told_after_growth: Option<u64>,
    /// An inode, and the size that it has for whoever gets the reply.
    reached: Option<(u64, u64)>,
    inodes: Vec<(Inode, State)>,
    needed: Vec<u64>,
    conflicted: bool,
}

impl<'a, R: Rows> Operation<'a, R> {
    pub fn new(shard: &'a mut Shard<R>, session: u64, ticket: u64, now: Moment) -> Self {
        Operation {
            shard,
            session,
            ticket,
            now,
            batch: Batch::default(),
            reply: Vec::new(),
            durable: false,
            told_after_cut: None,
            told_after_growth: None,
            reached: None,
            inodes: Vec::new(),
            needed: Vec::new(),
            conflicted: false,
        }
    }

    /// Executes a request up to its encoded reply.
    pub fn dispatch(&mut self, request: &Mapped<'_>) -> Step<()> {
        use MetaRequest as M;
        let request = request.request();
        self.check_standing(request)?;
        match *request {
            M::Lookup { who, parent, name } => self.lookup(&who, parent, name.0),
            M::GetAttributes { inode } => self.get_attributes(inode),
            M::SetAttributes { who, inode, change } => self.set_attributes(&who, inode, &change),
            M::Create { who, parent, name, mode, access, exclusive, truncate } => {
                self.create(&who, parent, name.0, mode, access, exclusive, truncate)
            }
            M::Temporary { who, parent, mode, access } => {
                self.temporary(&who, parent, mode, access)
            }
            M::Make { who, parent, name, mode, node } => {
                self.make(&who, parent, name.0, mode, &node)
            }
            M::Open { who, inode, access, truncate, execute } => {
                self.open(&who, inode, access, (truncate, execute), false)
            }
            M::Unlink { who, parent, name, closed } => self.unlink(&who, parent, name.0, closed),
            M::RemoveDirectory { who, parent, name, closed } => {
                self.remove_directory(&who, parent, name.0, closed)
            }
            M::Rename { who, parent, name, new_parent, new_name, mode, closed } => {
                self.rename(&who, (parent, name.0), (new_parent, new_name.0), mode, closed)
            }
            M::Link { who, inode, parent, name } => self.link(&who, inode, parent, name.0),
            M::ReadDirectory { who, inode, cookie, bytes_max, attributes } => {
                self.read_directory(&who, inode, cookie, bytes_max, attributes)
            }
            M::ReadLink { inode } => self.read_link(inode),
            M::GetXattr { who, inode, name } => self.get_xattr(&who, inode, name.0),
            M::ListXattr { who, inode } => self.list_xattr(&who, inode),
            M::SetXattr { who, inode, name, value, create, replace } => {
                self.set_xattr(&who, inode, name.0, value.0, create, replace)
            }
            M::RemoveXattr { who, inode, name } => self.remove_xattr(&who, inode, name.0),
            _ => self.dispatch_rest(request),
        }
    }

    fn dispatch_rest(&mut self, request: &MetaRequest<'_>) -> Step<()> {
        use MetaRequest as M;
        match *request {
            M::Acquire { inode, mode, insist } => self.acquire(inode, mode, insist),
            M::Release { inode, number, keep, open } => self.release(inode, number, keep, open),
            M::Reclaim { inode, mode, open } => self.reclaim(inode, mode, open),
            M::ReclaimDone => self.reclaim_done(),
            M::Report { inode, report } => self.report(inode, &report),
            M::RenewEpoch { inode } => self.renew_epoch(inode),
            M::ReadInline { inode } => self.read_inline(inode),
            M::WriteInline { inode, epoch, offset, data, append, kill_privileges } => {
                let at = if append { None } else { Some(offset) };
                self.write_inline(inode, epoch, at, data.0, kill_privileges)
            }
            M::LeaveInline { inode, version, report } => self.leave_inline(inode, version, &report),
            M::ReserveAppend { inode, epoch, len } => self.reserve_append(inode, epoch, len),
            M::SetLock { inode, range, wait } => self.set_lock(inode, &range, wait),
            M::TestLock { inode, range } => self.test_lock(inode, &range),
            M::CancelLock { inode, range } => self.cancel_lock(inode, &range),
            M::ReleaseOwner { inode, owner, whole_file } => {
                self.release_owner(inode, owner, whole_file)
            }
            M::ToldUnlocked { inode, number } => self.told_unlocked(inode, number),
            M::ToldGrown { inode, number } => self.told_grown(inode, number),
            M::Allow { inode } => self.allow(inode),
            M::StatFileSystem => self.stat_file_system(),
            M::Sync => {
                self.durable = true;
                self.answer(&MetaReply::Done)
            }
            M::GetPool { version } => self.get_pool(version),
            M::GetMap { since, from, server, bytes_max } => {
                self.get_map(since, from, server, bytes_max)
            }
            M::Heartbeat(beat) => self.heartbeat(&beat),
            M::ListInodes { from, bytes_max } => self.list_inodes(from, bytes_max),
            M::GetInodes { inodes, bytes_max } => self.get_inodes(inodes.0, bytes_max),
            M::GetPath { inode } => self.get_path(inode),
            M::Inspect { from, cookie, whole } => self.inspect(from, cookie, whole),
            M::Discard { server, objects } => self.discard(server, objects.0),
            M::Admit { server } => self.admit(server),
            M::Order(order) => self.order(order),
            M::Export(order) => self.export(order),
            M::Vouch { sessions, inodes } => self.vouch(sessions.0, inodes.0),
            M::SetStep(step) => self.set_step(&step),
            M::Upgrade(order) => self.upgrade(order),
            M::TellGroups(telling) => self.tell_groups(&telling),
            M::MayClean { map, .. } => self.may_clean(map),
            // They tell of more than rows: the server answers them, and not within a session's slots.
            M::Status | M::ListSessions { .. } | M::ListServers { .. } => Err(Errno::EINVAL.into()),
            _ => unreachable!("the other requests were dispatched before"),
        }
    }

    /// The directory that has no parent for the session: the root of its export.
    pub fn root(&self) -> Step<u64> {
        Ok(self.shard.standing(self.session).ok_or(Errno::EACCES)?.export.root)
    }

    /// Encodes the reply of success, with the ids that the session's client knows.
    pub fn answer(&mut self, reply: &MetaReply<'_>) -> Step<()> {
        let mut reply = reply.clone();
        // A session without terms is answered nothing but errors.
        let standing = self.shard.standing(self.session).ok_or(Errno::EACCES)?;
        standing.show(&mut reply);
        let result: MetaResult<'_> = Ok(reply);
        encode(&result, &mut self.reply);
        Ok(())
    }

    /// Whether the operation has brought nothing about until now: it may end with an error.
    pub fn is_blank(&self) -> bool {
        self.batch.is_empty() && self.inodes.iter().all(|(_, state)| *state == State::Clean)
    }

    /// The changes of this operation, complete.
    pub fn finish(self) -> (Batch, Vec<u8>, bool) {
        let mut batch = self.batch;
        for (inode, state) in &self.inodes {
            let key = keys::key(Table::Inode, &[inode.number]);
            match state {
                State::Clean => {}
                State::Changed => batch.put(key, inode.encode()),
                State::Removed => batch.remove(key),
            }
        }
        (batch, self.reply, self.durable)
    }

    fn load(&mut self, number: u64) -> Step<usize> {
        let at = self.inodes.iter().position(|(inode, _)| inode.number == number);
        let at = match at {
            Some(at) => at,
            None => {
                let bytes = self.shard.rows.get(&keys::key(Table::Inode, &[number]))?;
                let bytes = bytes.ok_or(Errno::ESTALE)?;
                self.inodes.push((Inode::decode(number, &bytes)?, State::Clean));
                self.inodes.len() - 1
            }
        };
        if self.inodes[at].1 == State::Removed {
            return Err(Errno::ESTALE.into());
        }
        Ok(at)
    }

    /// The inode, as this operation has changed it so far; `ESTALE` where it is gone.
    pub fn inode(&mut self, number: u64) -> Step<&Inode> {
        let at = self.load(number)?;
        Ok(&self.inodes[at].0)
    }

    /// The inode, to be changed. Its version grows once an operation.
    pub fn change(&mut self, number: u64) -> Step<&mut Inode> {
        let at = self.load(number)?;
        let (inode, state) = &mut self.inodes[at];
        if *state == State::Clean {
            *state = State::Changed;
            inode.version += 1;
        }
        Ok(inode)
    }

    /// The inode, to be changed, with a new change time.
    pub fn touch(&mut self, number: u64) -> Step<&mut Inode> {
        let now = self.now.calendar;
        let inode = self.change(number)?;
        inode.changed = now;
        Ok(inode)
    }

    /// Adds an inode that did not exist.
    pub fn add_inode(&mut self, inode: Inode) {
        self.inodes.push((inode, State::Changed));
    }

    /// Lets the inode's row vanish.
    pub fn forget_inode(&mut self, number: u64) -> Step<()> {
        let at = self.load(number)?;
        self.inodes[at].1 = State::Removed;
        Ok(())
    }

    /// Demands something of the other sessions' leases; [`Operation::settle`] waits for it.
    pub fn need(&mut self, inode: u64, need: Need) {
        let shard = &mut *self.shard;
        let deadline = Leases::deadline(self.now.time, shard.config.term);
        let conflict =
            shard.leases.recall(inode, self.session, need, deadline, &mut shard.callbacks);
        // While a file is being cut, nothing that could bring bytes back may pass.
        let cutting = need != Need::Fresh && shard.cuts.contains_key(&inode);
        self.conflicted |= conflict || cutting;
        self.needed.push(inode);
    }

    /// As [`Operation::need`] of a directory's entries; remembers that it is contended.
    pub fn need_entries(&mut self, directory: u64) {
        let before = self.conflicted;
        self.conflicted = false;
        self.need(directory, Need::Quiet);
        if self.conflicted {
            let until = self.now.time + self.shard.config.contention;
            self.shard.leases.set_contended(directory, until);
        }
        self.conflicted |= before;
    }

    /// Waits behind calls that came earlier and need the inode. Not so a session that gives `Write` back: they
    /// wait for it, and it may need this before it can write what its kernel has changed.
    pub fn need_turn(&mut self, inode: u64) {
        let gives = self.shard.leases.gives_writing_back(inode, self.session);
        self.conflicted |= !gives && self.shard.parking.is_awaited(inode, self.ticket)
            || self.shard.cuts.contains_key(&inode);
        self.needed.push(inode);
    }

    /// Goes on when everything needed is there; otherwise the operation waits and begins anew.
    pub fn settle(&mut self) -> Step<()> {
        if !self.conflicted {
            return Ok(());
        }
        let on = self.needed.iter().map(|inode| WaitOn::Inode(*inode)).collect();
        Err(Stop::Wait { on })
    }

    /// The lease that the session has on an inode, or a read lease where nobody minds.
    pub fn cache_grant(&mut self, inode: u64, epoch: u32) -> Option<Grant> {
        let held = self.shard.leases.holder(inode, self.session).copied();
        if let Some(holder) = held.filter(|holder| holder.mode != LeaseMode::None) {
            // If the lease is being recalled, its release notes that the session knows the inode.
            let grant = Grant { mode: holder.mode, epoch, number: holder.number };
            return (!holder.is_recalled()).then_some(grant);
        }
        // Nobody begins to use an inode without a name; its users have it open.
        let named = self.inode(inode).is_ok_and(|found| found.links > 0);
        // Half of all room is kept for opens: caches can do without.
        let Config { leases_max, opens_in_all_max, .. } = self.shard.config;
        let has_room = self.has_room(inode, leases_max, opens_in_all_max / 2);
        let shard = &mut *self.shard;
        let may = named
            && self.session != 0
            && !shard.parking.is_awaited(inode, self.ticket)
            && !shard.cuts.contains_key(&inode)
            && shard.leases.may_cache(inode, self.session, self.now.time)
            && has_room;
        if !may {
            if named {
                self.note_told(inode);
            }
            return None;
        }
        Some(shard.leases.grant(inode, self.session, LeaseMode::Read, epoch))
    }

    /// Whether the session may hold something on this inode, where it may hold something on `most` inodes,
    /// and all together `in_all` things.
    fn has_room(&self, inode: u64, most: usize, in_all: usize) -> bool {
        let (leases, config) = (&self.shard.leases, &self.shard.config);
        let count = leases.count(self.session);
        leases.holder(inode, self.session).is_some()
            || (count < most && (leases.len() < in_all || count < config.share(in_all)))
    }

    /// Refuses (`ENFILE`) one more inode to a session that has too many open, or holds too many leases.
    pub fn check_room(&self, inode: u64) -> Step<()> {
        let Config { opens_max, opens_in_all_max, .. } = self.shard.config;
        match self.has_room(inode, opens_max, opens_in_all_max) {
            true => Ok(()),
            false => Err(Errno::ENFILE.into()),
        }
    }

    /// Whether the session may take this inode up again. All inodes held before a restart have room after it:
    /// the bound allows the shares of sessions with few inodes beside those of the others.
    pub fn may_reclaim(&self, inode: u64) -> bool {
        let (leases, config) = (&self.shard.leases, &self.shard.config);
        leases.holder(inode, self.session).is_some()
            || (leases.count(self.session) < config.opens_max
                && leases.len() < 2 * config.opens_in_all_max)
    }

    /// Whether the session may cache entries of the directory.
    pub fn caches_entries(&self, directory: u64) -> bool {
        let holder = self.shard.leases.holder(directory, self.session);
        holder.is_some_and(|holder| holder.mode >= LeaseMode::Read && !holder.is_recalled())
    }
}
