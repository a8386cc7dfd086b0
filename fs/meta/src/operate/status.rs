//! Data servers, pools, free room.

use ropewalk_store::superblock::Starts;
use ropewalk_wire::fs::map::Band;
use ropewalk_wire::fs::meta::{self as wire, Heartbeat, MetaReply, Registration, ServerInfo};
use ropewalk_wire::fs::orders::ServerOrder;
use ropewalk_wire::fs::value::{Bytes, Errno};
use ropewalk_wire::fs::{encode, head};

use super::{Operation, Step};
use crate::inode::encode_row;
use crate::keys::{self, Table};
use crate::parking::WaitOn;
use crate::pools::{ADDRESS_BYTES_MAX, MEMBER_VERSION, NO_STORE, Refusal, encode_pool};
use crate::rows::Rows;

/// Bytes of a reply that its bands leave to the rest of it.
const MAP_FRAME_BYTES: usize = 64;

/// The error of an order that is refused.
fn errno(refusal: Refusal) -> Errno {
    match refusal {
        Refusal::Unknown => Errno::ENOENT,
        Refusal::NobodyElse => Errno::ENODEV,
        Refusal::FirstFormat => Errno::EOPNOTSUPP,
        Refusal::Lives => Errno::ETXTBSY,
    }
}

impl<R: Rows> Operation<'_, R> {
    pub fn stat_file_system(&mut self) -> Step<()> {
        let room = self.shard.pools.room();
        let inodes = self.shard.inode_count;
        self.answer(&MetaReply::FileSystem { room, inodes })
    }

    /// Takes a data server in, or a further sign of its life, or refuses it.
    pub fn heartbeat(&mut self, beat: &Heartbeat<'_>) -> Step<()> {
        if beat.address.0.len() > ADDRESS_BYTES_MAX {
            return Err(Errno::EINVAL.into());
        }
        let history = self.shard.config.boot.history;
        let before = self.shard.pools.map().epoch;
        if beat.history != 0 && beat.history != history {
            return self.registered(Registration::OtherMetadata { history });
        }
        if !self.shard.starts.may_have(beat.met) {
            return self.registered(Registration::OlderMetadata);
        }
        let known = self.shard.pools.member(beat.server);
        if known.is_some_and(|known| known != beat.store) && !beat.replace {
            return self.registered(Registration::OtherStore);
        }
        if known != Some(beat.store) {
            let new = known.is_none();
            if new && !beat.admit && !self.shard.pools.is_admitted(beat.server) {
                return self.registered(Registration::NotAdmitted);
            }
            if self.shard.is_full() || !self.shard.pools.has_place_for(beat.server) {
                return Err(Errno::ENOSPC.into());
            }
            let key = keys::key(Table::Member, &[u64::from(beat.server)]);
            self.batch.put(key, encode_row(MEMBER_VERSION, &beat.store));
            self.batch.remove(keys::key(Table::Member, &[u64::from(beat.server), 0]));
            // Sessions that ended before show tokens that count, and it has never heard of their ends. Before the map changes: what
            // fails after that would leave the map without its rows.
            let inherited = self.shard.inherit_fences(beat.server, &mut self.batch);
            inherited.map_err(|_| Errno::EIO)?;
            self.shard.pools.set_member(beat.server, beat.store);
            let rows = self.shard.pools.replace_store(beat.server);
            self.change_map(rows);
            if new {
                self.add_band(beat.server);
            }
            // From then on the server may serve what only it has.
            self.durable = true;
        }
        let met = self.shard.pools.start(beat.server);
        if ![0, beat.boot, beat.known_by].contains(&met) {
            return self.registered(Registration::KnownBy { start: met });
        }
        let begins = beat.boot != met && Starts::is_counted(beat.boot);
        // A server that was never met has nothing to lose.
        let lost = met != 0 && Starts::is_later(beat.era, met);
        let touches = begins && self.shard.pools.is_touched_by_life(beat.server, lost);
        if touches && self.shard.is_full() {
            // It may have missed what was written, and that has to be noted first.
            return Err(Errno::ENOSPC.into());
        }
        if begins {
            let (server, boot, now) = (beat.server, beat.boot, self.now.time);
            match self.shard.pools.begin_life(server, boot, lost, now) {
                Some(rows) => self.change_map(rows),
                None => return Err(Errno::EAGAIN.into()),
            }
        }
        // On a full disk it is not noted: an older copy of the store may not be noticed then.
        if begins && !self.shard.is_full() {
            let key = keys::key(Table::Member, &[u64::from(beat.server), 0]);
            self.batch.put(key, encode_row(MEMBER_VERSION, &u128::from(beat.boot)));
            self.shard.pools.set_start(beat.server, beat.boot);
            self.durable = true;
        }
        let is_news = self.shard.pools.handle_heartbeat(beat, self.now.time);
        self.drop_silent();
        self.move_groups();
        if is_news || self.shard.pools.map().epoch != before {
            self.renew_pool();
        }
        self.durable |= self.shard.pools.is_map_young();
        let map = self.shard.pools.map().epoch;
        let mib_per_second = self.shard.pools.orders().mib_per_second;
        let clock = self.shard.clock(self.now);
        self.registered(Registration::Taken { history, map, mib_per_second, clock })
    }

    fn add_band(&mut self, server: u32) {
        let rows = self.shard.pools.add_band(server);
        rows.into_iter().for_each(|(key, row)| self.batch.put(key, row));
    }

    /// Takes members that were silent out of groups that have another member.
    pub fn drop_silent(&mut self) {
        if self.shard.is_full() {
            return;
        }
        let rows = self.shard.pools.drop_silent(self.now.time);
        self.change_map(rows);
    }

    /// Takes the next steps of groups that have to move.
    fn move_groups(&mut self) {
        if self.shard.is_full() {
            return;
        }
        let rows = self.shard.pools.move_groups(self.now.time);
        self.change_map(rows);
    }

    /// Takes an order about the servers of groups.
    pub fn order(&mut self, order: ServerOrder) -> Step<()> {
        if let ServerOrder::Remove { server } = order {
            self.forget_server(server)?;
        }
        if let ServerOrder::Lost { server } = order {
            let rows = self.shard.pools.lose_server(server, self.now.time).map_err(errno)?;
            self.change_map(rows);
        }
        if order != ServerOrder::Show {
            let row = self.shard.pools.take_order(order).map_err(errno)?;
            self.batch.put(keys::key(Table::Orders, &[]), row);
            self.durable = true;
            self.move_groups();
            self.renew_pool();
        }
        // The server that was removed may have been the last one to tell its objects their groups.
        self.end_upgrade()?;
        let pools = &self.shard.pools;
        let reply = MetaReply::Orders { orders: pools.orders().clone(), moves: pools.moves() };
        self.answer(&reply)
    }

    /// Forgets a data server that has no groups.
    fn forget_server(&mut self, server: u32) -> Result<(), Errno> {
        let pools = &mut self.shard.pools;
        if pools.member(server).is_none() {
            return Err(Errno::ENOENT);
        }
        if !pools.has_bands() {
            return Err(Errno::EOPNOTSUPP);
        }
        if pools.is_needed(server) {
            return Err(Errno::EBUSY);
        }
        if pools.is_heard(server, self.now.time) {
            // It would come back at once, if it admits itself, and get new files.
            return Err(Errno::ETXTBSY);
        }
        pools.forget(server);
        for key in [&[u64::from(server)][..], &[u64::from(server), 0]] {
            self.batch.remove(keys::key(Table::Member, key));
        }
        for (session, _) in self.shard.fences_owed_by(server).map_err(|_| Errno::EIO)? {
            self.batch.remove(keys::key(Table::Owed, &[u64::from(server), session]));
        }
        Ok(())
    }

    /// Takes the word of the orderer of groups about another server of them.
    pub fn set_step(&mut self, step: &wire::Step<'_>) -> Step<()> {
        let rows = self.shard.pools.set_step(step, self.now.time).ok_or(Errno::ESTALE)?;
        self.change_map(rows);
        self.answer(&MetaReply::Done)
    }

    /// Rows of the map that changed. Nobody hears of it before they are durable.
    pub fn change_map(&mut self, rows: Vec<(Vec<u8>, Vec<u8>)>) {
        self.durable |= !rows.is_empty();
        rows.into_iter().for_each(|(key, row)| self.batch.put(key, row));
    }

    /// A data server of a number that has none yet may join from now on.
    pub fn admit(&mut self, server: u32) -> Step<()> {
        let pools = &mut self.shard.pools;
        if pools.member(server).is_some() {
            return Err(Errno::EEXIST.into());
        }
        if !pools.has_place_for(server) {
            return Err(Errno::ENOSPC.into());
        }
        if !pools.is_admitted(server) {
            pools.admit(server);
            let key = keys::key(Table::Member, &[u64::from(server)]);
            self.batch.put(key, encode_row(MEMBER_VERSION, &NO_STORE));
        }
        self.durable = true;
        self.answer(&MetaReply::Done)
    }

    fn registered(&mut self, outcome: Registration<'_>) -> Step<()> {
        self.answer(&MetaReply::Registered(outcome))
    }

    /// Makes the bands that servers lack, and new pool versions where the usable servers are others than those of the
    /// newest ones.
    pub fn renew_pool(&mut self) {
        let silence = self.shard.config.server_silence;
        if self.shard.is_full() {
            return;
        }
        let rows = self.shard.pools.add_missing_bands(self.now.time);
        self.change_map(rows);
        let rows = self.shard.pools.add_fresh_bands(self.now.time, silence);
        self.change_map(rows);
        for copies in self.shard.pools.kinds() {
            if let Some(pool) = self.shard.pools.successor(copies, self.now.time, silence) {
                let key = keys::key(Table::Pool, &[u64::from(pool.version)]);
                self.batch.put(key, encode_pool(&pool));
                self.shard.pools.add(pool);
                self.shard.parking.wake(WaitOn::Pool);
            }
        }
    }

    pub fn get_pool(&mut self, version: u32) -> Step<()> {
        let pool = self.shard.pools.get(version).cloned().ok_or(Errno::ENOENT)?;
        // Who knows a version keeps it for ever.
        self.durable = true;
        let (now, silence) = (self.now.time, self.shard.config.server_silence);
        let all = self.shard.pools.map().servers_of(&pool);
        let addresses: Vec<Vec<u8>> = all
            .iter()
            .map(|id| self.shard.pools.server(*id).map_or(Vec::new(), |s| s.address.clone()))
            .collect();
        let servers = all
            .iter()
            .zip(&addresses)
            .map(|(id, address)| {
                let share = self.shard.pools.share(*id);
                ServerInfo {
                    server: *id,
                    address: Bytes(address),
                    alive: self.shard.pools.is_alive(*id, now, silence),
                    total_bytes: share.total_bytes,
                    available_bytes: share.available_bytes,
                }
            })
            .collect();
        self.answer(&MetaReply::Pool { pool, servers })
    }

    /// Bands of the map that changed after epoch `since`, or all in which a server has a group.
    pub fn get_map(
        &mut self,
        since: u32,
        from: u32,
        server: Option<u32>,
        bytes_max: u32,
    ) -> Step<()> {
        // A map that a loss of power takes back must not have been told.
        self.durable |= self.shard.pools.is_map_young();
        let map = self.shard.pools.map();
        let wanted = |band: &&Band| match server {
            Some(server) => band.has(server),
            None => band.since() > since,
        };
        let room = (bytes_max as usize).min(head::REPLY_BYTES_MAX).saturating_sub(MAP_FRAME_BYTES);
        let (epoch, mut bytes, mut end, mut bands) = (map.epoch, Vec::new(), true, Vec::new());
        for band in map.bands(from).filter(wanted) {
            encode(band, &mut bytes);
            if bytes.len() > room && !bands.is_empty() {
                end = false;
                break;
            }
            bands.push(band.clone());
        }
        self.answer(&MetaReply::Map { epoch, bands, end })
    }
}
