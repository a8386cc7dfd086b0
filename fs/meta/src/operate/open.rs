//! Opening: permission, truncation, the lease that the opener can have.

use ropewalk_wire::fs::attributes::InodeKind;
use ropewalk_wire::fs::layout::{Growth, Layout};
use ropewalk_wire::fs::meta::{Access, DirectoryNow, Entry, Grant, LeaseMode, MetaReply, Who};
use ropewalk_wire::fs::value::{Bytes, Errno};

use super::{Operation, Step, Stop};
use crate::keys::{self, Table};
use crate::leases::{Holder, Leases, Need};
use crate::parking::WaitOn;
use crate::permission::{self, EXECUTE, READ, WRITE};
use crate::rows::Rows;

impl<R: Rows> Operation<'_, R> {
    pub fn open(
        &mut self,
        who: &Who<'_>,
        number: u64,
        access: Access,
        (truncate, execute): (bool, bool),
        entry_cached: bool,
    ) -> Step<()> {
        let inode = self.inode(number)?.clone();
        let writes = access.write || truncate;
        match inode.kind {
            InodeKind::File => {}
            InodeKind::Directory if writes => return Err(Errno::EISDIR.into()),
            InodeKind::Directory => {}
            InodeKind::Symlink => return Err(Errno::ELOOP.into()),
            _ => return Err(Errno::ENXIO.into()),
        }
        let reads = match (access.read, execute) {
            (_, true) => EXECUTE,
            (true, false) => READ,
            (false, false) => 0,
        };
        let bits = reads | if writes { WRITE } else { 0 };
        permission::check(&inode, who, bits)?;
        self.check_room(number)?;
        if inode.is_directory() {
            self.shard.leases.open(number, self.session, access);
            self.cache_grant(number, inode.epoch);
            return self.answer_opened(number, (entry_cached, None), false, false);
        }
        let wish = if access.write { LeaseMode::Write } else { LeaseMode::Read };
        let wish = self.shard.leases.attainable(number, self.session, wish);
        self.need_turn(number);
        self.need(number, if truncate { Need::Alone } else { need_of(wish) });
        self.settle()?;
        let mode = self.shard.leases.possible(number, self.session, wish);
        self.drop_own_cache(number, mode)?;
        if truncate {
            self.truncate_to_zero(number, !who.keeps_privileges())?;
        }
        let epoch = self.inode(number)?.epoch;
        self.shard.leases.open(number, self.session, access);
        let mode = self.shard.leases.possible(number, self.session, wish);
        self.shard.leases.grant(number, self.session, mode, epoch);
        self.answer_opened(number, (entry_cached, None), false, access.read)
    }

    pub fn acquire(&mut self, number: u64, wish: LeaseMode, insist: bool) -> Step<()> {
        let inode = self.inode(number)?.clone();
        if !inode.is_file() {
            // Only reading can be cached, and never by demand: several may wish to change it.
            self.cache_grant(number, inode.epoch);
            return self.answer_opened(number, (self.caches_entries(number), None), false, false);
        }
        self.check_room(number)?;
        let leases = &self.shard.leases;
        let wish = if insist { wish } else { leases.attainable(number, self.session, wish) };
        self.need_turn(number);
        self.need(
            number,
            match (insist, wish) {
                (true, LeaseMode::Read) => Need::Unwritten,
                (true, LeaseMode::Write) => Need::Alone,
                _ => need_of(wish),
            },
        );
        self.settle()?;
        let own = self.shard.leases.mode(number, self.session);
        let mode = match insist {
            // Nobody else holds anything that stands beside it: its writes that are under way go on.
            true if self.shard.leases.writes_shared(number, self.session) => LeaseMode::Write,
            true => own.max(wish),
            false => self.shard.leases.possible(number, self.session, wish),
        };
        self.drop_own_cache(number, mode)?;
        if mode != LeaseMode::None {
            self.shard.leases.grant(number, self.session, mode, inode.epoch);
        }
        self.answer_opened(number, (false, None), false, mode >= LeaseMode::Read)
    }

    /// Waits until the session gave up its cache under `Read`, where it is about to get `Shared`.
    fn drop_own_cache(&mut self, number: u64, mode: LeaseMode) -> Step<()> {
        if mode == LeaseMode::Shared {
            let shard = &mut *self.shard;
            let deadline = Leases::deadline(self.now.time, shard.config.term);
            let callbacks = &mut shard.callbacks;
            self.conflicted |= shard.leases.recall_own(number, self.session, deadline, callbacks);
        }
        self.settle()
    }

    /// Replies with everything that a client needs to use the inode; with inline bytes where asked.
    pub fn answer_opened(
        &mut self,
        number: u64,
        (entry_cached, directory): (bool, Option<DirectoryNow>),
        created: bool,
        with_bytes: bool,
    ) -> Step<()> {
        let inode = self.inode(number)?.clone();
        let with_bytes = with_bytes && self.rights(number)?.0;
        // Nothing costs nothing to tell.
        let told = with_bytes || inode.inline_bytes == 0;
        let inline = match inode.is_file() && !inode.striped && told {
            true => Some(self.inline_bytes(number)?),
            false => None,
        };
        let mut grant = self.present_grant(number, inode.epoch);
        if self.shard.leases.gives_writing_back(number, self.session) {
            // It takes no lease from this: it writes the last changes under the one that goes, by this epoch.
            let holder = self.shard.leases.holder(number, self.session);
            let told = |holder: &Holder| Grant {
                mode: holder.mode,
                epoch: inode.epoch,
                number: holder.number,
            };
            grant = holder.map(told);
        }
        let attributes = self.shown(inode.attributes());
        let entry = Entry { attributes, entry_cached, grant, directory };
        let capability = self.capability(number)?;
        self.answer(&MetaReply::Opened {
            entry,
            content: inode.content(),
            inline: inline.as_deref().map(Bytes),
            layout: inode.layout.unwrap_or(NO_LAYOUT),
            written: inode.written.as_slice().to_vec(),
            created,
            capability,
        })
    }

    /// The lease that the session holds now.
    pub fn present_grant(&self, number: u64, epoch: u32) -> Option<Grant> {
        let holder = self.shard.leases.holder(number, self.session)?;
        let holds = holder.mode != LeaseMode::None && !holder.is_recalled();
        holds.then_some(Grant { mode: holder.mode, epoch, number: holder.number })
    }

    /// Throws a file's bytes away: a new object generation, inline again.
    pub fn truncate_to_zero(&mut self, number: u64, kill_privileges: bool) -> Step<()> {
        let now = self.now.calendar;
        let old = self.inode(number)?.clone();
        let wanted = match old.parent {
            0 => 1,
            parent => self.inode(parent)?.policy.copies(),
        };
        let shard = &mut *self.shard;
        // As many copies as before, or as its directory wants by now.
        let pool = old.layout.and_then(|layout| shard.pools.get(layout.pool_version));
        let copies = pool.map_or(1, |pool| pool.copies).max(wanted);
        let layout = shard.pools.layout(copies, &shard.config, &mut shard.random);
        // A new generation also where nothing left the inode row: somebody may have begun to write
        // stripes, and those must not come to light when the file grows again.
        let cut = old.size > 0 || old.striped;
        let generation = if cut { self.next_generation(old.generation)? } else { old.generation };
        if old.striped {
            self.queue_reap(&old);
        }
        if old.inline_bytes > 0 {
            self.batch.remove(keys::key(Table::Inline, &[number]));
        }
        let inode = self.change(number)?;
        inode.generation = generation;
        if cut {
            inode.epoch += 1;
            inode.layout = layout.or(inode.layout);
        }
        self.shard.leases.appends.forget_all(number);
        let inode = self.change(number)?;
        inode.striped = false;
        inode.written.cut(0);
        inode.inline_bytes = 0;
        inode.size = 0;
        inode.modified = now;
        inode.changed = now;
        self.kill_privileges(number, kill_privileges)
    }

    /// The next generation of an inode's content.
    pub fn next_generation(&mut self, old: u32) -> Step<u32> {
        let next = self.shard.generations.after(old).ok_or(Errno::EIO)?;
        match self.shard.may_use_generation(next)? {
            true => Ok(next),
            false => Err(Stop::Wait { on: vec![WaitOn::Durable] }),
        }
    }
}

/// The leases that others must give up so that a session can have `wish`.
pub(super) fn need_of(wish: LeaseMode) -> Need {
    match wish {
        LeaseMode::None | LeaseMode::Read => Need::Fresh,
        LeaseMode::Shared | LeaseMode::Write => Need::Quiet,
    }
}

/// Stands for the layout of inodes that have none: directories.
const NO_LAYOUT: Layout = Layout {
    pool_version: 0,
    seed: 0,
    stripe_bytes: Layout::STRIPE_BYTES_DEFAULT,
    growth: Growth::Fixed(0),
};
