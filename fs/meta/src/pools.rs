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
use ropewalk_wire::fs::status::Room;
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::inode::{Damaged, decode_row, encode_row};
use crate::keys::{self, Table};

/// Version of pool rows that name servers: those of the first format.
const SERVERS_VERSION: u8 = 1;
/// Version of pool rows.
const POOL_VERSION: u8 = 2;
/// Version of the row of the map's epoch.
pub const MAP_VERSION: u8 = 1;
/// Version of the rows of bands.
const BAND_VERSION: u8 = 2;
/// Version of the rows of bands whose groups have no newcomers.
const PLAIN_BAND_VERSION: u8 = 1;
/// Version of the rows of members.
pub const MEMBER_VERSION: u8 = 1;
/// The store of a number that was admitted and never registered.
pub const NO_STORE: u128 = 0;

/// Longest address of a server, in bytes.
pub const ADDRESS_BYTES_MAX: usize = 1024;

/// After the start a server that was not heard of yet counts as there for so long: it may have to look for this
/// metadata server first.
const FIRST_SILENCE: Duration = Duration::from_secs(4);

/// The most that a nearly full server keeps for the files that it has.
const KEPT_BYTES_MAX: u64 = 1 << 30;

/// A pool's row in the first format.
#[derive(Serialize, Deserialize)]
struct ServersRow {
    version: u32,
    servers: Vec<u32>,
}

/// The row of a pool.
pub fn encode_pool(pool: &Pool) -> Vec<u8> {
    let version = pool.version;
    match &pool.members {
        Members::Servers(servers) => {
            encode_row(SERVERS_VERSION, &ServersRow { version, servers: servers.clone() })
        }
        Members::Bands(_) => encode_row(POOL_VERSION, pool),
    }
}

/// A pool from its row.
pub fn decode_pool(bytes: &[u8]) -> Result<Pool, Damaged> {
    let pool = match bytes.first() {
        Some(&SERVERS_VERSION) => {
            let ServersRow { version, servers } = decode_row(SERVERS_VERSION, bytes)?;
            Pool::of_servers(version, servers)
        }
        _ => decode_row(POOL_VERSION, bytes)?,
    };
    if pool.is_valid() { Ok(pool) } else { Err(Damaged) }
}

/// A band's row without newcomers.
#[derive(Serialize, Deserialize)]
struct PlainBand {
    number: u32,
    groups: Vec<(u32, Vec<u32>)>,
}

/// The row of a band.
pub fn encode_band(band: &Band) -> Vec<u8> {
    encode_row(BAND_VERSION, band)
}

/// A band from its row.
pub fn decode_band(bytes: &[u8]) -> Result<Band, Damaged> {
    let band = match bytes.first() {
        Some(&PLAIN_BAND_VERSION) => {
            let PlainBand { number, groups } = decode_row(PLAIN_BAND_VERSION, bytes)?;
            let groups = groups.into_iter();
            let groups = groups.map(|(since, servers)| Membership::new(since, servers)).collect();
            Band { number, groups }
        }
        _ => decode_row(BAND_VERSION, bytes)?,
    };
    if band.is_valid() { Ok(band) } else { Err(Damaged) }
}

/// The key of the row of the map's epoch and of the next band.
pub fn map_key() -> Vec<u8> {
    keys::key(Table::Map, &[])
}

/// A server that was heard of since the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    pub address: Vec<u8>,
    pub boot: u64,
    pub room: Room,
    heard: Time,
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

/// The group without these members, who become newcomers. At least one other member stays.
fn without(group: &Membership, leavers: &[u32]) -> Option<Membership> {
    let leaves = |server: &u32| leavers.contains(server);
    let (gone, servers): (Vec<u32>, Vec<u32>) = group.servers.iter().partition(|it| leaves(it));
    if gone.is_empty() || servers.is_empty() {
        return None;
    }
    let newcomers = group.newcomers.iter().chain(&gone).copied().collect();
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
}

impl Banded {
    /// The row of epoch and next band.
    pub fn head(&self) -> (Vec<u8>, Vec<u8>) {
        (map_key(), encode_row(MAP_VERSION, &(self.map.epoch, self.next)))
    }

    /// Takes in a band that is new or changed, under a new epoch. Returns the rows.
    fn take(&mut self, band: Band) -> Vec<(Vec<u8>, Vec<u8>)> {
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

    /// Changes groups, all under one new epoch: `change` gives those that change their new servers. Returns the rows that say
    /// so; none where nothing changed.
    fn change(
        &mut self,
        change: impl Fn(Group, &Membership) -> Option<Membership>,
    ) -> Vec<(Vec<u8>, Vec<u8>)> {
        let epoch = self.map.epoch + 1;
        let mut changed = Vec::new();
        for band in self.map.bands(0) {
            let mut new = None;
            for (index, (group, membership)) in band.groups().enumerate() {
                if !membership.is_mirrored() {
                    continue;
                }
                if let Some(next) = change(group, membership) {
                    let band: &mut Band = new.get_or_insert_with(|| band.clone());
                    band.groups[index] = Membership { since: epoch, ..next };
                }
            }
            changed.extend(new);
        }
        if changed.is_empty() {
            return Vec::new();
        }
        self.map.epoch = epoch;
        let mut rows: Vec<_> = changed.into_iter().map(|band| self.put(band)).collect();
        rows.push(self.head());
        rows
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
    /// The servers of all groups; None in the first format, whose groups are the servers.
    banded: Option<Banded>,
    /// New lives of servers that were not answered yet: boot id, and since when.
    knocks: BTreeMap<u32, (u64, Time)>,
    /// Of the first format.
    no_bands: Map,
    started: Time,
}

impl Pools {
    /// No server was heard of yet; members and versions as rows hold them.
    pub fn new(
        members: BTreeMap<u32, u128>,
        versions: BTreeMap<u32, Pool>,
        started: Time,
    ) -> Pools {
        Pools { members, versions, started, ..Pools::default() }
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
            Some(server) => now.since(server.heard) >= COPY_SILENCE,
            None => now.since(self.started) >= FIRST_SILENCE,
        }
    }

    /// Whether a server was heard just now.
    fn is_heard(&self, server: u32, now: Time) -> bool {
        self.servers.contains_key(&server) && !self.is_missed(server, now)
    }

    /// Whether there is a group that has, or may come to have, several members.
    pub fn has_mirrored(&self) -> bool {
        self.map().bands(0).any(|band| band.groups.iter().any(Membership::is_mirrored))
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

    /// A server of mirrored groups begins a new life, without its memory: what it has to leave, it leaves before it is
    /// answered. Returns the rows that say so. `None`: not yet, since nobody knows whether another member lives.
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
        let groups = || self.map().bands(0).flat_map(|band| &band.groups);
        let own = || groups().filter(|group| group.servers.contains(&server));
        if !lost_power
            && own().any(|it| !it.servers.iter().any(lives) && it.servers.iter().any(unsure))
        {
            return None;
        }
        let Some(mut banded) = self.banded.take() else { return Some(Vec::new()) };
        let rows = banded.change(|_, group| {
            if group.newcomers.contains(&server) {
                // Whoever brings it into step begins anew.
                return Some(group.clone());
            }
            if !group.servers.contains(&server) {
                return None;
            }
            match group.servers.len() {
                1 if lost_power => Some(Membership { losses: group.losses + 1, ..group.clone() }),
                // What the former life of the orderer had under way counts no more.
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

    /// The orderer of a group says that a server is out of step, or in step. Returns the rows that say so; `None` where its
    /// word does not count: it does not order the group, or its map is older than the group's last change.
    pub fn set_step(&mut self, step: &Step, now: Time) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
        let Step { group, by, map, server, in_step } = *step;
        let membership = self.map().membership(group)?;
        let counts = membership.servers.first() == Some(&by) && membership.since <= map;
        if !counts || server == by || in_step && !self.is_heard(server, now) {
            return None;
        }
        let mut banded = self.banded.take()?;
        let rows = banded.change(|changed, membership| {
            if changed != group {
                return None;
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

    /// Whether a server is in a group that has, or may come to have, several members.
    pub fn is_in_mirrored(&self, server: u32) -> bool {
        let mut groups = self.map().bands(0).flat_map(|band| &band.groups);
        groups.any(|group| group.is_mirrored() && group.holders().any(|it| it == server))
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
        self.members.contains_key(&server)
            || self.admitted.contains(&server)
            || self.members.len() + self.admitted.len() < POOL_SERVERS_MAX
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

    /// The newest version.
    pub fn newest(&self) -> Option<&Pool> {
        self.versions.values().next_back()
    }

    /// A version; 0 is the newest.
    pub fn get(&self, version: u32) -> Option<&Pool> {
        if version == 0 { self.newest() } else { self.versions.get(&version) }
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

    /// Takes a heartbeat of a member.
    pub fn handle_heartbeat(&mut self, beat: &Heartbeat<'_>, now: Time) {
        assert_eq!(self.member(beat.server), Some(beat.store), "a stranger's is not taken");
        let Heartbeat { boot, room, .. } = *beat;
        let address = beat.address.0.to_vec();
        self.servers.insert(beat.server, Server { address, boot, room, heard: now });
    }

    /// The version that should follow the newest, if the usable servers are others now. With none
    /// usable the newest stays: its servers may come back. The first version may consist of servers
    /// that are nearly full: a file that cannot grow says more than one that never comes to be.
    pub fn successor(&self, now: Time, silence: Duration) -> Option<Pool> {
        let newest = self.newest();
        let alive = self.servers.iter().filter(|(_, server)| now.since(server.heard) < silence);
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
            usable.extend(unheard.filter(|id| !self.servers.contains_key(id)));
            usable.sort_unstable();
        }
        let members = self.members_on(usable);
        let same = newest.is_some_and(|pool| pool.members == members);
        if members.numbers().is_empty() || same {
            return None;
        }
        Some(Pool { version: newest.map_or(1, |pool| pool.version + 1), members })
    }

    /// The members of a pool on these servers.
    fn members_on(&self, servers: Vec<u32>) -> Members {
        let Some(Banded { map, .. }) = &self.banded else { return Members::Servers(servers) };
        let servers: BTreeSet<u32> = servers.into_iter().collect();
        // Asked at each heartbeat: a band has 64 groups, and few servers.
        let is_on = |all: &[u32]| all.iter().all(|server| servers.contains(server));
        let bands = map.bands_with_servers().filter(|(_, all)| is_on(all));
        Members::Bands(bands.map(|(band, _)| band).collect())
    }

    /// Adds a version that was made durable.
    pub fn add(&mut self, pool: Pool) {
        self.versions.insert(pool.version, pool);
    }

    /// The layout of a new file; None while there is no pool.
    pub fn layout(&self, config: &Config, random: &mut Random) -> Option<Layout> {
        let pool = self.newest()?;
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
mod tests {
    use ropewalk_wire::fs::group::BAND_GROUPS;
    use ropewalk_wire::fs::value::Bytes;

    use super::*;

    const SILENCE: Duration = Duration::from_secs(10);

    fn seconds(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    fn beat(pools: &mut Pools, server: u32, boot: u64, available_bytes: u64, now: Time) {
        pools.set_member(server, 7);
        let (total_bytes, free_bytes) = (1000, available_bytes);
        let room = Room { total_bytes, free_bytes, available_bytes, file_system: 0 };
        let address = Bytes(b"somewhere");
        let (store, history) = (7, 0);
        let (replace, admit) = (false, false);
        let (met, known_by, era) = (0, 0, 1);
        let beat = Heartbeat {
            server,
            boot,
            era,
            store,
            history,
            met,
            known_by,
            replace,
            admit,
            room,
            address,
        };
        pools.handle_heartbeat(&beat, now);
    }

    fn step(pools: &mut Pools, now: Time) -> Option<Vec<u32>> {
        let pool = pools.successor(now, SILENCE)?;
        pools.add(pool.clone());
        Some(pool.members.numbers().to_vec())
    }

    #[test]
    fn versions_follow_the_servers_that_are_usable() {
        let mut pools = Pools::default();
        assert_eq!(step(&mut pools, Time::ZERO), None);
        beat(&mut pools, 3, 1, 900, seconds(1));
        assert_eq!(step(&mut pools, seconds(1)), Some(vec![3]));
        beat(&mut pools, 1, 1, 900, seconds(2));
        assert_eq!(step(&mut pools, seconds(2)), Some(vec![1, 3]));
        assert_eq!(step(&mut pools, seconds(3)), None);
        // Full, then dead, then back.
        beat(&mut pools, 1, 1, 20, seconds(9));
        assert_eq!(step(&mut pools, seconds(9)), Some(vec![3]));
        assert_eq!(step(&mut pools, seconds(12)), None, "the last usable servers stay");
        beat(&mut pools, 1, 2, 500, seconds(13));
        assert_eq!(step(&mut pools, seconds(13)), Some(vec![1]));
        assert_eq!(pools.newest().map(|pool| pool.version), Some(4));
        assert_eq!(pools.get(2), Some(&Pool::of_servers(2, vec![1, 3])));
    }

    #[test]
    fn a_pool_names_the_bands_whose_servers_are_all_usable() {
        let mut pools = Pools::default().mapped(Some(Banded::default()));
        for server in [7, 3] {
            beat(&mut pools, server, 1, 900, seconds(1));
            assert_eq!(pools.add_band(server).len(), 2, "rows of the band and of the map");
        }
        assert_eq!(step(&mut pools, seconds(1)), Some(vec![0, 1]));
        assert_eq!(pools.newest_with(3), Some(1));
        // A group of the first server's band is on the second one, too: without it the band cannot be used.
        assert!(pools.set_group(Group::of_band(0, 5), &[7, 3]).is_some());
        assert!(pools.set_group(Group::of_band(9, 5), &[7, 3]).is_none());
        assert_eq!(pools.map().epoch, 4);
        beat(&mut pools, 3, 1, 20, seconds(12));
        beat(&mut pools, 7, 1, 900, seconds(12));
        assert_eq!(step(&mut pools, seconds(12)), None, "the last usable bands stay");
        beat(&mut pools, 3, 1, 900, seconds(13));
        beat(&mut pools, 7, 1, 20, seconds(13));
        assert_eq!(step(&mut pools, seconds(13)), Some(vec![1]));
    }

    /// Pools of three servers, of which groups 0 and 1 of the first band have two members.
    fn mirrored() -> (Pools, [Group; 2]) {
        let mut pools = Pools::default().mapped(Some(Banded::default()));
        for server in [1, 2, 3] {
            beat(&mut pools, server, 1 << 32, 900, seconds(1));
            pools.add_band(server);
        }
        let groups = [Group::of_band(0, 0), Group::of_band(0, 1)];
        pools.set_group(groups[0], &[1, 2]).expect("it is there");
        pools.set_group(groups[1], &[2, 3]).expect("it is there");
        (pools, groups)
    }

    fn servers(pools: &Pools, group: Group) -> (Vec<u32>, Vec<u32>) {
        let group = pools.map().membership(group).expect("it is there");
        (group.servers.clone(), group.newcomers.clone())
    }

    #[test]
    fn silent_members_leave_where_another_one_is_heard() {
        let (mut pools, [first, second]) = mirrored();
        assert!(pools.drop_silent(seconds(2)).is_empty());
        assert!(pools.drop_silent(seconds(9)).is_empty(), "nobody would stay");
        beat(&mut pools, 1, 1 << 32, 900, seconds(9));
        let epoch = pools.map().epoch;
        assert_eq!(pools.drop_silent(seconds(9)).len(), 2, "rows of the band and of the map");
        assert_eq!(servers(&pools, first), (vec![1], vec![2]));
        assert_eq!(servers(&pools, second), (vec![2, 3], vec![]), "none of them is heard");
        assert_eq!(pools.map().epoch, epoch + 1);
        assert_eq!(pools.map().membership(first).map(|group| group.since), Some(epoch + 1));
        assert!(pools.drop_silent(seconds(9)).is_empty());
    }

    #[test]
    fn who_begins_a_new_life_leaves_where_another_member_is_known_to_live() {
        let (mut pools, [first, _]) = mirrored();
        // Its last sign is of before: it may have died with this one.
        assert_eq!(pools.begin_life(1, 2 << 32, false, seconds(2)), None);
        beat(&mut pools, 2, 1 << 32, 900, seconds(3));
        assert!(
            pools.begin_life(1, 2 << 32, false, seconds(3)).is_some_and(|rows| !rows.is_empty())
        );
        assert_eq!(servers(&pools, first), (vec![2], vec![1]));
        // A newcomer's new life is another state of the group: what is under way for it does not count.
        let since = |pools: &Pools| pools.map().membership(first).map(|group| group.since);
        let before = since(&pools);
        assert!(pools.begin_life(1, 3 << 32, false, seconds(4)).is_some());
        assert!(since(&pools) > before);
        // The last member stays, and says what it may have lost.
        assert_eq!(pools.begin_life(2, 2 << 32, false, seconds(9)).map(|rows| rows.len()), Some(2));
        assert_eq!(servers(&pools, first), (vec![2], vec![1]));
        pools.begin_life(2, 3 << 32, true, seconds(9)).expect("at once");
        assert_eq!(pools.map().membership(first).map(|group| group.losses), Some(1));
    }

    #[test]
    fn who_lost_power_leaves_as_long_as_there_is_another_member() {
        let (mut pools, [first, second]) = mirrored();
        pools.begin_life(2, 2 << 32, true, seconds(90)).expect("at once");
        assert_eq!(servers(&pools, first), (vec![1], vec![2]));
        assert_eq!(servers(&pools, second), (vec![3], vec![2]));
    }

    #[test]
    fn the_orderer_says_who_is_in_step() {
        let (mut pools, [first, _]) = mirrored();
        let map = pools.map().epoch;
        let step = Step { group: first, by: 1, map, server: 2, in_step: false };
        let late = seconds(2);
        assert_eq!(pools.set_step(&Step { by: 2, server: 1, ..step }, late), None, "not the first");
        assert_eq!(pools.set_step(&Step { map: 1, ..step }, late), None, "an older map");
        assert_eq!(pools.set_step(&Step { server: 1, ..step }, late), None, "itself");
        assert!(pools.set_step(&step, late).is_some());
        assert_eq!(servers(&pools, first), (vec![1], vec![2]));
        // A word of before counts no more; nor does one after a report of the newcomer.
        let enter = Step { in_step: true, ..step };
        assert_eq!(pools.set_step(&enter, late), None);
        let map = pools.map().epoch;
        assert!(pools.set_step(&Step { map, ..step }, late).is_some_and(|rows| !rows.is_empty()));
        assert_eq!(pools.set_step(&Step { map, ..enter }, late), None);
        let map = pools.map().epoch;
        assert_eq!(pools.set_step(&Step { map, ..enter }, seconds(9)), None, "it is silent");
        assert!(pools.set_step(&Step { map, ..enter }, late).is_some());
        assert_eq!(servers(&pools, first), (vec![1, 2], vec![]));
    }

    #[test]
    fn rows_of_bands_are_read_in_both_formats() {
        let plain = PlainBand { number: 3, groups: vec![(5, vec![1, 300]); BAND_GROUPS as usize] };
        let band = decode_band(&encode_row(PLAIN_BAND_VERSION, &plain)).expect("a band");
        assert_eq!(band.groups[7], Membership::new(5, vec![1, 300]));
        let mut band = Band::new(4, 1, 2);
        band.groups[9].newcomers.push(8);
        assert_eq!(decode_band(&encode_band(&band)).ok(), Some(band));
        for bad in [&[][..], &[1, 3, 0], &[2, 3, 1, 5, 1, 1, 0, 0], &[3]] {
            assert!(decode_band(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn rows_of_pools_are_read_in_both_formats() {
        let old = Pool::of_servers(7, vec![1, 300]);
        assert_eq!(encode_pool(&old), [1, 7, 2, 1, 0xac, 2], "the first format stays as it is");
        let new = Pool { version: 8, members: Members::Bands(vec![0, 300]) };
        for pool in [old, new] {
            assert_eq!(decode_pool(&encode_pool(&pool)).ok(), Some(pool));
        }
        for bad in [&[1, 7, 0][..], &[2, 7, 1, 0], &[3, 7, 1, 1, 1], &[]] {
            assert!(decode_pool(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn files_can_be_made_from_the_start_where_all_servers_are_nearly_full() {
        let mut pools = Pools::default();
        beat(&mut pools, 1, 1, 20, seconds(1));
        assert_eq!(step(&mut pools, seconds(1)), Some(vec![1]));
        beat(&mut pools, 2, 1, 900, seconds(2));
        assert_eq!(step(&mut pools, seconds(2)), Some(vec![2]));
    }

    #[test]
    fn a_large_disk_keeps_no_more_than_it_needs() {
        let total_bytes = 1 << 48;
        let room = |available_bytes| Room { total_bytes, available_bytes, ..Room::default() };
        let heard = Time::ZERO;
        let server = |room| Server { address: Vec::new(), boot: 1, room, heard };
        assert!(server(room((1 << 30) + 1)).has_room());
        assert!(!server(room(1 << 30)).has_room());
    }

    #[test]
    fn servers_on_one_file_system_do_not_promise_it_twice() {
        let mut pools = Pools::default();
        for (server, file_system) in [(1, 5), (2, 5), (3, 6), (4, 0)] {
            beat(&mut pools, server, 1, 900, seconds(1));
            pools.servers.get_mut(&server).expect("heard").room.file_system = file_system;
        }
        let whole = pools.room();
        assert_eq!((whole.total_bytes, whole.available_bytes), (3000, 2700));
        let shares = [1, 2, 3, 4].map(|server| pools.share(server).available_bytes);
        assert_eq!(shares, [450, 450, 900, 900]);
    }

    #[test]
    fn after_a_restart_servers_have_time_to_be_heard() {
        let kept = BTreeMap::from([(5, Pool::of_servers(5, vec![1, 2]))]);
        let mut pools = Pools::new(BTreeMap::new(), kept, seconds(100));
        beat(&mut pools, 1, 1, 900, seconds(101));
        assert_eq!(step(&mut pools, seconds(101)), None);
        beat(&mut pools, 1, 1, 900, seconds(111));
        assert_eq!(step(&mut pools, seconds(111)), Some(vec![1]));
        assert_eq!(pools.newest().map(|pool| pool.version), Some(6));
    }
}
