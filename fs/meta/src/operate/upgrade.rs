//! The upgrade of the format, and the groups of objects that do not know theirs.

use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::meta::MetaReply;
use ropewalk_wire::fs::upgrade::{
    CLIENTS_NAMED_MAX, NEEDED_VERSION, OldClient, Telling, UNKNOWN_GROUP, UpgradeOrder,
    UpgradeState,
};
use ropewalk_wire::fs::value::{Bytes, Errno};

use super::{Operation, Step, Stop};
use crate::rows::Rows;
use crate::shard::opening;

/// The most bytes of rows that the step may have: it has to be one batch.
const BATCH_BYTES_MAX: usize = 3 << 20;

impl<R: Rows> Operation<'_, R> {
    /// Takes an order about the format, and tells how things stand.
    pub fn upgrade(&mut self, order: UpgradeOrder) -> Step<()> {
        let (names, more_clients) = self.old_clients();
        let clients = names.iter().map(|(session, version, name)| OldClient {
            session: *session,
            version: *version,
            name: Bytes(name),
        });
        let mut state = UpgradeState {
            format: self.shard.format(),
            newest: opening::FORMAT,
            servers: self.shard.pools.formats(self.now.time),
            clients: clients.collect(),
            more_clients,
        };
        if order == UpgradeOrder::Begin && !state.is_newest() && state.is_free() {
            self.lift()?;
            state.format = self.shard.format();
        }
        self.answer(&MetaReply::Upgrade(state))
    }

    /// Sessions whose clients may not understand the next format: a few of them, and how many more there are.
    fn old_clients(&self) -> (Vec<(u64, u16, Vec<u8>)>, u32) {
        let sessions = self.shard.sessions.iter();
        let mut old: Vec<(u64, u16, Vec<u8>)> = sessions
            .filter(|(_, it)| it.newest < NEEDED_VERSION)
            .map(|(number, it)| (number, it.newest, it.row.name.clone()))
            .collect();
        let more = old.len().saturating_sub(CLIENTS_NAMED_MAX);
        old.truncate(CLIENTS_NAMED_MAX);
        (old, u32::try_from(more).unwrap_or(u32::MAX))
    }

    /// Everything that makes the format is one batch: after a death of any server it is all there, or nothing.
    fn lift(&mut self) -> Step<()> {
        if self.shard.is_full() {
            return Err(Errno::ENOSPC.into());
        }
        // Before the map changes: what fails after that would leave the map without its rows.
        let (key, row) = opening::newest_superblock(self.shard.rows(), true)?;
        let Some(rows) = self.shard.pools.lift(BATCH_BYTES_MAX) else {
            return Err(Errno::E2BIG.into());
        };
        self.batch.put(key, row);
        // Never 0: that is no step.
        let step = self.shard.random.next_u64() | 1;
        self.batch.put(opening::step_key(), opening::step_row(step));
        self.shard.upgrade = opening::Upgrade { step, under_way: true };
        self.change_map(rows);
        Ok(())
    }

    /// Once all data servers have told all their objects their groups, former programs may serve this format again.
    pub(super) fn end_upgrade(&mut self) -> Step<()> {
        if !self.shard.upgrade.under_way || !self.shard.pools.are_told() {
            return Ok(());
        }
        let (key, row) = opening::newest_superblock(self.shard.rows(), false)?;
        self.batch.put(key, row);
        self.durable = true;
        self.shard.upgrade.under_way = false;
        Ok(())
    }

    /// Tells a data server which groups some of its objects belong to, and notes how far it is.
    pub fn tell_groups(&mut self, telling: &Telling<'_>) -> Step<()> {
        if !self.shard.pools.has_bands() {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let objects = telling.objects().ok_or(Errno::EINVAL)?;
        self.shard.pools.note_told(telling.server, telling.told, telling.done);
        let mut groups = Vec::with_capacity(objects.len());
        for (inode, generation, stripe) in objects {
            // One that cannot be read keeps its group, and holds up no other.
            groups.push(match self.group_of(inode, generation, stripe) {
                Ok(group) => group.number(),
                Err(Stop::Errno(Errno::EIO)) => UNKNOWN_GROUP,
                Err(stop) => return Err(stop),
            });
        }
        // Last: nothing of a call that fails is kept in rows.
        self.end_upgrade()?;
        // An object keeps what it is told: the rows that say so must not be lost.
        self.durable = true;
        self.answer(&MetaReply::Groups { groups, step: self.shard.upgrade.step })
    }

    /// Whether a data server may give up bytes of groups that it is not in, as it knows the map.
    pub fn may_clean(&mut self, map: u32) -> Step<()> {
        let pools = &self.shard.pools;
        if !pools.has_bands() {
            return Err(Errno::EOPNOTSUPP.into());
        }
        if pools.map().epoch != map {
            return Err(Errno::EAGAIN.into());
        }
        if !pools.is_whole(self.now.time) {
            return Err(Errno::EBUSY.into());
        }
        self.durable = true;
        self.answer(&MetaReply::Done)
    }

    /// The group of an object; nobody's where no file has it.
    fn group_of(&mut self, inode: u64, generation: u32, stripe: u32) -> Step<Group> {
        let layout = match self.inode(inode) {
            Ok(inode) if inode.generation == generation => inode.layout,
            Ok(_) | Err(Stop::Errno(Errno::ESTALE)) => None,
            Err(stop) => return Err(stop),
        };
        let Some(layout) = layout else { return Ok(Group::NOBODYS) };
        let pool = self.shard.pools.get(layout.pool_version).ok_or(Errno::EIO)?;
        Ok(layout.group(stripe, pool))
    }
}
