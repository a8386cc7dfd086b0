//! Data servers as their heartbeats show them, the map of their groups, and the pool versions made of them.
//!
//! Invariants: a number keeps its store until a person orders otherwise, also over restarts; a heartbeat
//! counts only where it comes from that store. A server gets a band of groups when it joins. A pool version never
//! changes; the newest names the bands whose servers were all usable when it was made. A server that dies, fills up,
//! comes back or joins leads to a new version, and files made from then on use that. Heartbeats are not kept: after a
//! restart servers count as alive until they were silent for long enough.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::layout::{Layout, Members, POOL_SERVERS_MAX, Pool};
use ropewalk_wire::fs::map::{Band, COPY_SILENCE, Map, Membership};
use ropewalk_wire::fs::meta::{Heartbeat, Step};
use ropewalk_wire::fs::orders::{Moves, Orders};
use ropewalk_wire::fs::status::Room;

use crate::config::Config;
use crate::inode::encode_row;
use crate::keys::{self, Table};

mod lifting;
mod moving;
mod placement;
mod rows;

use lifting::Lifting;
pub use moving::{ORDERS_VERSION, Refusal};
pub use placement::Shortage;
pub use rows::{decode_band, decode_pool, encode_band, encode_pool};

/// Version of the row of the map's epoch.
pub const MAP_VERSION: u8 = 1;
/// Version of the rows of members.
pub const MEMBER_VERSION: u8 = 1;
/// The store of a number that was admitted and never registered.
pub const NO_STORE: u128 = 0;

/// Longest address of a server, in bytes.
pub const ADDRESS_BYTES_MAX: usize = 1024;
/// Longest name of a failure domain that is looked at, in bytes.
pub const DOMAIN_BYTES_MAX: usize = 64;

/// After the start a server that was not heard of yet counts as there for so long: it may have to look for this
/// metadata server first.
const FIRST_SILENCE: Duration = Duration::from_secs(4);
/// The silence of a server that has no link any more. Its lease of reads is over by then, also by a clock that is a little
/// slower.
pub const LINKLESS_SILENCE: Duration =
    Duration::from_millis(COPY_SILENCE.as_millis() as u64 / 2 + 50);

/// The most that a nearly full server keeps for the files that it has.
const KEPT_BYTES_MAX: u64 = 1 << 30;

/// The key of the row of the map's epoch and of the next band.
pub fn map_key() -> Vec<u8> {
    keys::key(Table::Map, &[])
}

/// A server that was heard of since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Server {
    pub address: Vec<u8>,
    pub boot: u64,
    pub room: Room,
    /// Its failure domain.
    pub domain: Vec<u8>,
    heard: Time,
    /// It is missed when it was silent for so long.
    patience: Duration,
}

impl Server {
    /// When it was heard last.
    pub fn heard(&self) -> Time {
        self.heard
    }

    /// Room for new files: more than a fiftieth is free, or more than a large disk needs. A server that is
    /// nearly full keeps the rest for the files that it has.
    pub fn has_room(&self) -> bool {
        self.room.available_bytes > (self.room.total_bytes / 50).min(KEPT_BYTES_MAX)
    }
}

/// The group without these members, who become newcomers, or go for good where they are to leave. At least one other member stays.
fn without(group: &Membership, leavers: &[u32]) -> Option<Membership> {
    let leaves = |server: &u32| leavers.contains(server);
    let (gone, servers): (Vec<u32>, Vec<u32>) = group.servers.iter().partition(|it| leaves(it));
    if gone.is_empty() || servers.is_empty() {
        return None;
    }
    let missed = gone.iter().filter(|it| !group.leaving.contains(it));
    let newcomers = group.newcomers.iter().chain(missed).copied().collect();
    Some(Membership { servers, newcomers, ..group.clone() })
}

/// The group with a newcomer as its last member.
fn with(group: &Membership, server: u32) -> Option<Membership> {
    if !group.newcomers.contains(&server) {
        return None;
    }
    let mut new = group.clone();
    new.newcomers.retain(|it| *it != server);
    new.servers.push(server);
    Some(new)
}

/// The map, and the number that the next band gets.
#[derive(Debug, Clone, Default)]
pub struct Banded {
    pub map: Map,
    pub next: u32,
    /// Groups have changed in this life, or there are new ones.
    pub restless: bool,
}

impl Banded {
    /// The row of epoch and next band.
    pub fn head(&self) -> (Vec<u8>, Vec<u8>) {
        (map_key(), encode_row(MAP_VERSION, &(self.map.epoch, self.next)))
    }

    /// Takes in a band that is new or changed, under a new epoch. Returns the rows.
    fn take(&mut self, band: Band) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.restless = true;
        self.map.epoch += 1;
        let row = self.put(band);
        vec![row, self.head()]
    }

    /// Takes in a band. Returns its row.
    fn put(&mut self, band: Band) -> (Vec<u8>, Vec<u8>) {
        let key = keys::key(Table::Map, &[u64::from(band.number)]);
        let row = (key, encode_band(&band));
        self.map.add(band);
        row
    }

    /// Changes groups of several servers, all under one new epoch: `change` gives those that change their new servers. Returns the
    /// rows that say so; none where nothing changed.
    fn change(
        &mut self,
        change: impl Fn(Group, &Membership) -> Option<Membership>,
    ) -> Vec<(Vec<u8>, Vec<u8>)> {
        let bands: Vec<u32> = self.map.mirrored_bands().map(|band| band.number).collect();
        self.change_in(&bands, |group, membership| {
            membership.is_mirrored().then(|| change(group, membership)).flatten()
        })
    }

    /// As [`Banded::change`], all groups of these bands.
    fn change_in(
        &mut self,
        bands: &[u32],
        change: impl Fn(Group, &Membership) -> Option<Membership>,
    ) -> Vec<(Vec<u8>, Vec<u8>)> {
        let epoch = self.map.epoch + 1;
        let mut changed = Vec::new();
        for band in bands.iter().filter_map(|number| self.map.band(*number)) {
            let mut new = None;
            for (index, (group, membership)) in band.groups().enumerate() {
                if let Some(next) = change(group, membership) {
                    let band: &mut Band = new.get_or_insert_with(|| band.clone());
                    let mut next = Membership { since: epoch, ..next };
                    next.leaving.retain(|it| next.servers.contains(it));
                    next.takers.retain(|it| next.newcomers.contains(it));
                    if !next.has_enough(band.copies()) {
                        next.leaving.clear();
                    }
                    band.groups[index] = next;
                }
            }
            changed.extend(new);
        }
        if changed.is_empty() {
            return Vec::new();
        }
        self.restless = true;
        self.map.epoch = epoch;
        let mut rows: Vec<_> = changed.into_iter().map(|band| self.put(band)).collect();
        rows.push(self.head());
        rows
    }

    /// The bands of which a server is a member or a newcomer.
    fn bands_with(&self, server: u32) -> Vec<u32> {
        self.map.bands(0).filter(|band| band.has(server)).map(|band| band.number).collect()
    }
}

/// Servers and pool versions of a shard.
#[derive(Debug, Default)]
pub struct Pools {
    /// The identity of each number's store, of all servers that ever registered.
    members: BTreeMap<u32, u128>,
    /// The newest start of each of them.
    starts: BTreeMap<u32, u64>,
    /// Numbers that may register.
    admitted: BTreeSet<u32>,
    servers: BTreeMap<u32, Server>,
    versions: BTreeMap<u32, Pool>,
    /// The newest version of each number of copies.
    newest: BTreeMap<u8, u32>,
    /// The servers of all groups; None in the first format, whose groups are the servers.
    banded: Option<Banded>,
    /// New lives of servers that were not answered yet: boot id, and since when.
    knocks: BTreeMap<u32, (u64, Time)>,
    /// Of the first format.
    no_bands: Map,
    started: Time,
    /// Of people, about the servers of groups.
    orders: Orders,
    /// The last look at all groups: when, and its outcome.
    looked: Time,
    moves: Moves,
    lifting: Lifting,
}

impl Pools {
    /// No server was heard of yet; members and versions as rows hold them.
    pub fn new(
        members: BTreeMap<u32, u128>,
        versions: BTreeMap<u32, Pool>,
        started: Time,
    ) -> Pools {
        let newest = versions.values().map(|pool| (pool.copies, pool.version)).collect();
        Pools { members, versions, newest, started, ..Pools::default() }
    }

    /// With numbers that may register, as rows hold them.
    pub fn admitting(self, admitted: BTreeSet<u32>) -> Pools {
        Pools { admitted, ..self }
    }

    /// With the newest start of each member, as rows hold them.
    pub fn started(self, starts: BTreeMap<u32, u64>) -> Pools {
        Pools { starts, ..self }
    }

    /// With the map, as rows hold it. None: of the first format.
    pub fn mapped(self, banded: Option<Banded>) -> Pools {
        Pools { banded, ..self }
    }

    /// A data server speaks this version and those before.
    pub fn note_version(&mut self, server: u32, newest: u16) {
        self.lifting.note_version(server, newest);
    }

    /// The store had the first format before.
    pub fn note_lifted(&mut self) {
        self.lifting.note_lifted();
    }

    /// So many objects of a data server have learned their group; `done`: none is left.
    pub fn note_told(&mut self, server: u32, told: u64, done: bool) {
        self.lifting.note_told(server, told, done);
    }

    /// Whether pools name bands: the store is not of the first format.
    pub fn has_bands(&self) -> bool {
        self.banded.is_some()
    }

    /// The servers of all groups.
    pub fn map(&self) -> &Map {
        self.banded.as_ref().map_or(&self.no_bands, |banded| &banded.map)
    }

    /// Whether the map has all bands of the pools.
    pub fn check(&self) -> Result<(), String> {
        match self.versions.values().find(|pool| !self.map().covers(pool)) {
            Some(pool) => Err(format!("the map lacks bands of pool version {}", pool.version)),
            None => Ok(()),
        }
    }

    /// Makes a band for a server that joins. Returns the rows that say so; none in the first format.
    pub fn add_band(&mut self, server: u32) -> Vec<(Vec<u8>, Vec<u8>)> {
        let Some(banded) = &mut self.banded else { return Vec::new() };
        let band = Band::new(banded.next, server, banded.map.epoch + 1);
        banded.next += 1;
        banded.take(band)
    }

    /// Gives a group these servers. Returns the rows that say so; `None` for a group that is not in the map.
    pub fn set_group(&mut self, group: Group, servers: &[u32]) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
        let banded = self.banded.as_mut()?;
        let band = banded.map.with(group, servers)?;
        Some(banded.take(band))
    }

    /// Whether a server was silent for longer than a member of a group of several may be. Right after the start one that was
    /// not heard of yet has time to find this metadata server.
    fn is_missed(&self, server: u32, now: Time) -> bool {
        match self.servers.get(&server) {
            Some(server) => now.since(server.heard) >= server.patience,
            None => now.since(self.started) >= FIRST_SILENCE,
        }
    }

    /// The link over which a server was heard is lost, and there is no other one: it is missed sooner.
    pub fn note_linkless(&mut self, server: u32, patience: Duration) {
        if let Some(server) = self.servers.get_mut(&server) {
            server.patience = patience;
        }
    }

    /// Whether a server was heard just now.
    pub fn is_heard(&self, server: u32, now: Time) -> bool {
        self.servers.contains_key(&server) && !self.is_missed(server, now)
    }

    /// Whether all groups have all their members, and each of these was heard just now.
    pub fn is_whole(&self, now: Time) -> bool {
        let is_whole = |copies: u8, group: &Membership| {
            let heard = group.servers.iter().filter(|it| self.is_heard(**it, now));
            heard.count() >= usize::from(copies).max(group.servers.len())
        };
        let mut bands = self.map().bands(0);
        bands.all(|band| band.groups.iter().all(|group| is_whole(band.copies(), group)))
    }

    /// Whether what is told of the map may not be durable yet where nobody waits for it.
    pub fn is_map_young(&self) -> bool {
        self.has_mirrored() || self.banded.as_ref().is_some_and(|it| it.restless)
    }

    /// Whether there is a group that has, or may come to have, several members.
    pub fn has_mirrored(&self) -> bool {
        self.map().mirrored_bands().next().is_some()
    }

    /// Takes silent members out of groups where another member is heard. Returns the rows that say so.
    pub fn drop_silent(&mut self, now: Time) -> Vec<(Vec<u8>, Vec<u8>)> {
        let missed = |server: &u32| self.is_missed(*server, now);
        let missed: Vec<u32> = self.members.keys().copied().filter(missed).collect();
        let Some(mut banded) = self.banded.take_if(|_| !missed.is_empty()) else {
            return Vec::new();
        };
        let rows = banded.change(|_, group| {
            let stays = group.servers.iter().any(|server| self.is_heard(*server, now));
            stays.then(|| without(group, &missed)).flatten()
        });
        self.banded = Some(banded);
        rows
    }

    /// A person gave the store of a server up. Where it is the last member of a group, the newcomer that left last comes
    /// nearest to what was acknowledged. Returns the rows that say so.
    pub fn replace_store(&mut self, server: u32) -> Vec<(Vec<u8>, Vec<u8>)> {
        let Some(mut banded) = self.banded.take() else { return Vec::new() };
        let bands = banded.bands_with(server);
        let rows = banded.change_in(&bands, |_, group| {
            if !group.holders().any(|it| it == server) {
                return None;
            }
            // It has nothing any more: whoever else left comes nearer.
            let others = |all: &[u32]| all.iter().copied().filter(|it| *it != server).collect();
            let (mut servers, left): (Vec<u32>, Vec<u32>) =
                (others(&group.servers), others(&group.newcomers));
            let mut newcomers: Vec<u32> = [server].into_iter().chain(left).collect();
            let mut losses = group.losses;
            if servers.is_empty() {
                losses += 1;
                // One that never was a member would give parts of objects for the whole: nothing at all is an error at least.
                let heir = newcomers.iter().rposition(|it| !group.takers.contains(it));
                servers.extend(heir.map(|at| newcomers.remove(at)));
            }
            Some(Membership { servers, newcomers, losses, ..group.clone() })
        });
        self.banded = Some(banded);
        rows
    }

    /// A server begins a new life, without its memory: what it has to leave, it leaves before it is answered. Where nobody else
    /// has the bytes of its groups, a loss of power is one of theirs. Returns the rows that say so. `None`: not yet, since nobody knows
    /// whether another member lives.
    pub fn begin_life(
        &mut self,
        server: u32,
        boot: u64,
        lost_power: bool,
        now: Time,
    ) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
        let knocked = self.knocks.entry(server).or_insert((boot, now));
        if knocked.0 != boot {
            *knocked = (boot, now);
        }
        let since = knocked.1;
        let lives = |other: &u32| {
            *other != server && self.servers.get(other).is_some_and(|other| other.heard > since)
        };
        let unsure =
            |other: &u32| *other != server && !lives(other) && !self.is_missed(*other, now);
        let groups = || self.map().mirrored_bands().flat_map(|band| &band.groups);
        let own = || groups().filter(|group| group.servers.contains(&server));
        if !lost_power
            && own().any(|it| !it.servers.iter().any(lives) && it.servers.iter().any(unsure))
        {
            return None;
        }
        let Some(mut banded) = self.banded.take() else { return Some(Vec::new()) };
        let bands = banded.bands_with(server);
        let rows = banded.change_in(&bands, |_, group| {
            if group.newcomers.contains(&server) {
                // The pass that brings it into step begins anew.
                return Some(group.clone());
            }
            if !group.servers.contains(&server) {
                return None;
            }
            match group.servers.len() {
                1 if lost_power => Some(Membership { losses: group.losses + 1, ..group.clone() }),
                // A request of the orderer's former life counts no more.
                1 if group.newcomers.is_empty() => None,
                1 => Some(group.clone()),
                _ if lost_power || group.servers.iter().any(lives) => without(group, &[server]),
                _ => None,
            }
        });
        self.banded = Some(banded);
        self.knocks.remove(&server);
        Some(rows)
    }

    /// The orderer of groups says that a server is out of step, or in step. Returns the rows that say so; `None` where its
    /// word does not count: it orders none of the groups, or its map is older than their last changes.
    pub fn set_step(&mut self, step: &Step<'_>, now: Time) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
        let Step { by, map, server, in_step, .. } = *step;
        if step.groups.0.is_empty() && server == by && !in_step {
            return Some(self.let_go(by, map, now));
        }
        let counts = |group: &Group| {
            let membership = self.map().membership(*group);
            membership.is_some_and(|it| it.servers.first() == Some(&by) && it.since <= map)
        };
        // One that leaves by its own word leaves another one that lives. Else its word is void, also if it comes once more: that is
        // a change, too.
        let is_void = |membership: &Membership| {
            let mut others = membership.servers.iter().filter(|it| **it != by);
            server == by && !others.any(|other| self.is_heard(*other, now))
        };
        let groups: BTreeSet<Group> = step.groups().filter(counts).collect();
        let is_member = |group: &Group| {
            self.map().membership(*group).is_some_and(|it| it.servers.contains(&server))
        };
        if in_step && server != by && groups.iter().any(is_member) {
            return Some(self.hand_on(&groups, server, now));
        }
        let memberships =
            groups.iter().filter_map(|group| Some((*group, self.map().membership(*group)?)));
        let void: BTreeSet<Group> =
            memberships.filter(|(_, it)| is_void(it)).map(|(group, _)| group).collect();
        if groups.is_empty() || in_step && (server == by || !self.is_heard(server, now)) {
            return None;
        }
        let mut banded = self.banded.take()?;
        let rows = banded.change(|group, membership| {
            if !groups.contains(&group) {
                return None;
            }
            if void.contains(&group) {
                return Some(Membership { leaving: Vec::new(), ..membership.clone() });
            }
            match in_step {
                true => with(membership, server),
                // Of a newcomer, too: a word of before that it is in step must not count any more.
                false => without(membership, &[server]).or_else(|| Some(membership.clone())),
            }
        });
        self.banded = Some(banded);
        Some(rows)
    }

    /// The orderer of groups has ended all its changes, and lets another member order them. Where that one is not heard, all stays as it
    /// is, and the word counts no more: the orderer goes on. Returns the rows that say so.
    fn hand_on(&mut self, groups: &BTreeSet<Group>, to: u32, now: Time) -> Vec<(Vec<u8>, Vec<u8>)> {
        let is_heard = self.is_heard(to, now);
        let Some(mut banded) = self.banded.take() else { return Vec::new() };
        let rows = banded.change(|group, membership| {
            if !groups.contains(&group) || !membership.servers.contains(&to) {
                return None;
            }
            let mut next = membership.clone();
            if is_heard && !next.leaving.contains(&to) {
                next.servers.retain(|it| *it != to);
                next.servers.insert(0, to);
            }
            Some(next)
        });
        self.banded = Some(banded);
        rows
    }

    /// A server stops, and serves no group of several members any more: it leaves those that have another member that lives, and
    /// have not changed since the map that it knows. Returns the rows that say so.
    fn let_go(&mut self, leaver: u32, map: u32, now: Time) -> Vec<(Vec<u8>, Vec<u8>)> {
        let Some(mut banded) = self.banded.take() else { return Vec::new() };
        let bands = banded.bands_with(leaver);
        let rows = banded.change_in(&bands, |_, group| {
            let mut others = group.servers.iter().filter(|it| **it != leaver);
            if group.since > map || !group.servers.contains(&leaver) || group.servers.len() == 1 {
                return None;
            }
            match others.any(|other| self.is_heard(*other, now)) {
                true => without(group, &[leaver]),
                // All stays, and the word counts no more if it comes once more.
                false => Some(group.clone()),
            }
        });
        self.banded = Some(banded);
        rows
    }

    /// Whether a new life of a server changes groups: those of several members, or any after a loss of power.
    pub fn is_touched_by_life(&self, server: u32, lost_power: bool) -> bool {
        let mut groups = self.map().bands(0).flat_map(|band| &band.groups);
        groups.any(|group| {
            (lost_power || group.is_mirrored()) && group.holders().any(|it| it == server)
        })
    }

    /// Whether a number may register its first store.
    pub fn is_admitted(&self, server: u32) -> bool {
        self.admitted.contains(&server)
    }

    /// Numbers that may register and have not.
    pub fn admitted(&self) -> impl Iterator<Item = u32> + '_ {
        self.admitted.iter().copied()
    }

    /// From now on the number may register.
    pub fn admit(&mut self, server: u32) {
        self.admitted.insert(server);
    }

    /// The identity of the store that a number has.
    pub fn member(&self, server: u32) -> Option<u128> {
        self.members.get(&server).copied()
    }

    /// Whether there is room for this number.
    pub fn has_place_for(&self, server: u32) -> bool {
        // The last number stands for servers that join later, in rows of fences.
        let has_place = self.members.contains_key(&server)
            || self.admitted.contains(&server)
            || self.members.len() + self.admitted.len() < POOL_SERVERS_MAX;
        has_place && server != u32::MAX
    }

    /// From now on the number has this store.
    pub fn set_member(&mut self, server: u32, store: u128) {
        self.admitted.remove(&server);
        self.starts.remove(&server);
        self.members.insert(server, store);
    }

    /// The newest start of a member's server; 0 where none is known.
    pub fn start(&self, server: u32) -> u64 {
        self.starts.get(&server).copied().unwrap_or(0)
    }

    /// A member's server was started again.
    pub fn set_start(&mut self, server: u32, start: u64) {
        self.starts.insert(server, start);
    }

    /// The newest version for files of this many copies.
    pub fn newest(&self, copies: u8) -> Option<&Pool> {
        self.versions.get(self.newest.get(&copies)?)
    }

    /// A version; 0 is the newest for files of one copy.
    pub fn get(&self, version: u32) -> Option<&Pool> {
        if version == 0 { self.newest(1) } else { self.versions.get(&version) }
    }

    /// A server, if it was heard of since the start.
    pub fn server(&self, server: u32) -> Option<&Server> {
        self.servers.get(&server)
    }

    /// Numbers from `from` on of all servers that ever registered.
    pub fn known(&self, from: u32) -> BTreeSet<u32> {
        self.members.range(from..).map(|(server, _)| *server).collect()
    }

    /// The newest version that has the server.
    pub fn newest_with(&self, server: u32) -> Option<u32> {
        let mut versions = self.versions.values().rev();
        versions.find(|pool| self.map().has(pool, server)).map(|pool| pool.version)
    }

    /// Whether each server that ever registered was heard of since the start.
    pub fn all_heard(&self) -> bool {
        self.members.keys().all(|server| self.servers.contains_key(server))
    }

    /// Nobody was listened to for so long: servers were not silent.
    pub fn postpone(&mut self, by: Duration) {
        for server in self.servers.values_mut() {
            server.heard = server.heard + by;
        }
    }

    /// Whether the server was heard of lately.
    pub fn is_alive(&self, server: u32, now: Time, silence: Duration) -> bool {
        self.servers.get(&server).is_some_and(|server| now.since(server.heard) < silence)
    }

    /// Takes a heartbeat of a member; whether it says more than that the server lives still.
    pub fn handle_heartbeat(&mut self, beat: &Heartbeat<'_>, now: Time) -> bool {
        assert_eq!(self.member(beat.server), Some(beat.store), "a stranger's is not taken");
        let Heartbeat { boot, room, .. } = *beat;
        let address = beat.address.0.to_vec();
        let domain = beat.domain.0[..beat.domain.0.len().min(DOMAIN_BYTES_MAX)].to_vec();
        let heard = !self.is_missed(beat.server, now);
        let new = Server { address, boot, room, domain, heard: now, patience: COPY_SILENCE };
        let has_room = new.has_room();
        let same = |old: Server| {
            heard && (old.boot, old.has_room(), &old.domain) == (boot, has_room, &new.domain)
        };
        !self.servers.insert(beat.server, new.clone()).is_some_and(same)
    }

    /// The version that should follow the newest for files of this many copies, if the usable servers are others now. With
    /// none usable the newest stays: its servers may come back. The first version may consist of servers
    /// that are nearly full: a file that cannot grow says more than one that never comes to be.
    pub fn successor(&self, copies: u8, now: Time, silence: Duration) -> Option<Pool> {
        let newest = self.newest(copies);
        let members = self.members_on(copies, self.usable(newest, now, silence));
        let same = newest.is_some_and(|pool| pool.members == members);
        if members.numbers().is_empty() || same {
            return None;
        }
        let last = self.versions.last_key_value().map_or(0, |(version, _)| *version);
        Some(Pool { version: last + 1, members, copies })
    }

    /// The servers that new files can use.
    fn usable(&self, newest: Option<&Pool>, now: Time, silence: Duration) -> Vec<u32> {
        let stays = |id: &u32| !self.is_leaving(*id);
        let alive = self.servers.iter().filter(|(_, server)| now.since(server.heard) < silence);
        let alive = alive.filter(|(id, _)| stays(id));
        let (mut usable, mut full) = (Vec::new(), Vec::new());
        for (id, server) in alive {
            if server.has_room() { usable.push(*id) } else { full.push(*id) }
        }
        if newest.is_none() && usable.is_empty() {
            usable = full;
        }
        // Right after the start a server that was not heard of yet is not dead.
        if now.since(self.started) < silence {
            let unheard = newest.iter().flat_map(|pool| self.map().servers_of(pool));
            usable.extend(unheard.filter(|id| !self.servers.contains_key(id) && stays(id)));
            usable.sort_unstable();
        }
        usable
    }

    /// The members of a pool on these servers.
    fn members_on(&self, copies: u8, servers: Vec<u32>) -> Members {
        let Some(Banded { map, .. }) = &self.banded else { return Members::Servers(servers) };
        let servers: BTreeSet<u32> = servers.into_iter().collect();
        // A full server is in many groups of several members. Where few bands do without it, the others that have room order the
        // writes, and its copies are missed.
        let home = |band: &&Band| band.mirroring.is_some_and(|it| servers.contains(&it.home));
        let own = map.bands(0).filter(|band| band.copies() == copies).filter(home);
        let own: Vec<u32> = own.map(|band| band.number).collect();
        // Asked at each heartbeat: a band has 64 groups, and few servers.
        let is_on = |all: &[u32]| all.iter().all(|server| servers.contains(server));
        let bands = map.bands_with_servers(copies).filter(|(_, all)| is_on(all));
        let bands: Vec<u32> = bands.map(|(band, _)| band).collect();
        Members::Bands(if 2 * bands.len() < own.len() { own } else { bands })
    }

    /// Adds a version that was made durable.
    pub fn add(&mut self, pool: Pool) {
        self.newest.insert(pool.copies, pool.version);
        self.versions.insert(pool.version, pool);
    }

    /// The layout of a new file of this many copies; None while there is no pool.
    pub fn layout(&self, copies: u8, config: &Config, random: &mut Random) -> Option<Layout> {
        let pool = self.newest(copies)?;
        Some(Layout {
            pool_version: pool.version,
            seed: random.next_u64(),
            stripe_bytes: config.stripe_bytes,
            growth: config.growth,
        })
    }

    /// Room of all servers heard of: each file system counts once.
    pub fn room(&self) -> Room {
        Room::together(self.servers.values().map(|server| server.room))
    }

    /// The server's share of its file system, if the other servers on it take as much.
    pub fn share(&self, server: u32) -> Room {
        let Some(room) = self.servers.get(&server).map(|server| server.room) else {
            return Room::default();
        };
        let beside = self
            .servers
            .values()
            .filter(|other| room.file_system != 0 && other.room.file_system == room.file_system);
        let count = (beside.count() as u64).max(1);
        Room {
            total_bytes: room.total_bytes / count,
            free_bytes: room.free_bytes / count,
            available_bytes: room.available_bytes / count,
            ..room
        }
    }
}

#[cfg(test)]
mod tests;
