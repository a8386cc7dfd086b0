//! Groups of data servers, and the map of the servers that are in each.
//!
//! A stripe belongs to one group for ever (`layout`). The map says where the group's bytes are now. Each change of the
//! map has a number, its epoch; a group knows the epoch of its last change. A call about a group is right if its caller
//! knew the map of that epoch or a later one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Malformed;
use super::group::{BAND_GROUPS, COPIES_MAX, Group};
use super::layout::{Members, Pool};

/// Most bytes of one part of the map that is asked for.
pub const PART_BYTES: u32 = 128 * 1024;
/// The map before its first change.
pub const FIRST_EPOCH: u32 = 1;

/// A member of a group of several servers that was silent for so long is taken out of it. For half of that, counted
/// from when it sent the last heartbeat that was answered, a server knows that it is a member still.
pub const COPY_SILENCE: Duration = Duration::from_millis(1500);

/// The servers of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// The epoch of the last change.
    pub since: u32,
    /// The members: at least one. Each has all that was acknowledged. The first orders writes.
    pub servers: Vec<u32>,
    /// Servers that are no members yet: they hear of each write, and get what they lack.
    pub newcomers: Vec<u32>,
    /// How often the last member came back after a loss of power.
    pub losses: u32,
    /// Members that are to leave by their own word, since there are enough without them.
    pub leaving: Vec<u32>,
    /// Newcomers that never were members: they have nothing of their own.
    pub takers: Vec<u32>,
}

impl Membership {
    /// Without newcomers.
    pub fn new(since: u32, servers: Vec<u32>) -> Membership {
        let (newcomers, leaving, takers) = Default::default();
        Membership { since, servers, newcomers, losses: 0, leaving, takers }
    }

    /// Members and newcomers.
    pub fn holders(&self) -> impl Iterator<Item = u32> + '_ {
        self.servers.iter().chain(&self.newcomers).copied()
    }

    /// Whether as many members as that stay without those that are to leave.
    pub fn has_enough(&self, copies: u8) -> bool {
        self.servers.len() >= usize::from(copies) + self.leaving.len()
    }

    /// Whether the group has, or may come to have, more than one member.
    pub fn is_mirrored(&self) -> bool {
        self.servers.len() + self.newcomers.len() > 1
    }
}

/// A band and the servers of its groups, as the map is sent and kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Band {
    pub number: u32,
    /// `BAND_GROUPS` of them.
    pub groups: Vec<Membership>,
    /// Of a band for files of several copies.
    pub mirroring: Option<Mirroring>,
}

/// The purpose of a band for files of several copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mirroring {
    /// Members that each group should have: 2 to `COPIES_MAX`.
    pub copies: u8,
    /// The server for which the band was made.
    pub home: u32,
}

impl Band {
    /// A new band whose groups are all on one server.
    pub fn new(number: u32, server: u32, since: u32) -> Band {
        let group = Membership::new(since, vec![server]);
        Band { number, groups: vec![group; BAND_GROUPS as usize], mirroring: None }
    }

    /// Members that each of its groups should have.
    pub fn copies(&self) -> u8 {
        self.mirroring.map_or(1, |mirroring| mirroring.copies)
    }

    /// Whether the values make a band at all (they may come from a disk or a network).
    pub fn is_valid(&self) -> bool {
        self.groups.len() == BAND_GROUPS as usize
            && self.groups.iter().all(|group| !group.servers.is_empty())
            && self
                .groups
                .iter()
                .all(|group| group.leaving.is_empty() || group.has_enough(self.copies()))
            && self.mirroring.is_none_or(|it| (2..=COPIES_MAX).contains(&it.copies))
    }

    /// The epoch of the newest change within it.
    pub fn since(&self) -> u32 {
        self.groups.iter().map(|group| group.since).max().unwrap_or(0)
    }

    /// Whether a server is in one of its groups, as a member or as a newcomer.
    pub fn has(&self, server: u32) -> bool {
        self.groups.iter().any(|group| group.holders().any(|it| it == server))
    }

    /// Its groups with their servers.
    pub fn groups(&self) -> impl Iterator<Item = (Group, &Membership)> {
        let number = self.number;
        (0..).zip(&self.groups).map(move |(index, it)| (Group::of_band(number, index), it))
    }
}

/// The map, or the part of it that somebody knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Map {
    /// All changes up to this one are in it.
    pub epoch: u32,
    bands: BTreeMap<u32, Known>,
}

/// A band of the map.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    band: Band,
    /// The members of all its groups, each once.
    servers: Vec<u32>,
    /// One of its groups has, or may come to have, several members.
    is_mirrored: bool,
}

impl Default for Map {
    fn default() -> Map {
        Map { epoch: FIRST_EPOCH, bands: BTreeMap::new() }
    }
}

impl Map {
    /// A map without bands.
    pub fn at(epoch: u32) -> Map {
        Map { epoch, ..Map::default() }
    }

    /// Takes in a band, or its present state.
    pub fn add(&mut self, band: Band) {
        debug_assert!(band.is_valid(), "it was checked");
        let mut seen = BTreeSet::new();
        let servers = band.groups.iter().flat_map(|group| &group.servers).copied();
        let servers = servers.filter(|server| seen.insert(*server)).collect();
        let is_mirrored = band.groups.iter().any(Membership::is_mirrored);
        self.bands.insert(band.number, Known { band, servers, is_mirrored });
    }

    /// The band of a group as it would be if the group had these servers since the next epoch; `None` for a group that is
    /// not in the map.
    pub fn with(&self, group: Group, servers: &[u32]) -> Option<Band> {
        let (band, index) = group.band()?;
        let mut band = self.bands.get(&band)?.band.clone();
        band.groups[index] = Membership {
            losses: band.groups[index].losses,
            ..Membership::new(self.epoch + 1, servers.to_vec())
        };
        Some(band)
    }

    /// Whether it has all bands of a pool.
    pub fn covers(&self, pool: &Pool) -> bool {
        match &pool.members {
            Members::Servers(_) => true,
            Members::Bands(bands) => bands.iter().all(|band| self.bands.contains_key(band)),
        }
    }

    /// Bands from number `from` on, in order.
    pub fn bands(&self, from: u32) -> impl Iterator<Item = &Band> {
        self.bands.range(from..).map(|(_, known)| &known.band)
    }

    /// A band, if the map has it.
    pub fn band(&self, number: u32) -> Option<&Band> {
        self.bands.get(&number).map(|known| &known.band)
    }

    /// Bands of which a group has, or may come to have, several members.
    pub fn mirrored_bands(&self) -> impl Iterator<Item = &Band> {
        self.bands.values().filter(|known| known.is_mirrored).map(|known| &known.band)
    }

    /// The numbers of all bands of this many copies, each with the servers of its groups.
    pub fn bands_with_servers(&self, copies: u8) -> impl Iterator<Item = (u32, &[u32])> {
        let bands = self.bands.iter().filter(move |(_, known)| known.band.copies() == copies);
        bands.map(|(number, known)| (*number, &known.servers[..]))
    }

    /// The server that orders the writes of a group; `None` for a group that is not in the map.
    pub fn first(&self, group: Group) -> Option<u32> {
        match group.band() {
            Some((band, index)) => {
                self.bands.get(&band)?.band.groups[index].servers.first().copied()
            }
            None => group.server(),
        }
    }

    /// A group of a band; `None` for one that is not in the map, or is of the first format.
    pub fn membership(&self, group: Group) -> Option<&Membership> {
        let (band, index) = group.band()?;
        self.bands.get(&band).map(|known| &known.band.groups[index])
    }

    /// The members of a group; none for a group that is not in the map.
    pub fn members(&self, group: Group) -> Vec<u32> {
        match (self.membership(group), group.server()) {
            (Some(membership), _) => membership.servers.clone(),
            (None, server) => server.into_iter().collect(),
        }
    }

    /// Members and newcomers of all groups of a pool, each once.
    pub fn holders_of(&self, pool: &Pool) -> BTreeSet<u32> {
        match &pool.members {
            Members::Servers(servers) => servers.iter().copied().collect(),
            Members::Bands(bands) => {
                let bands = bands.iter().filter_map(|band| self.bands.get(band));
                bands.flat_map(|known| &known.band.groups).flat_map(Membership::holders).collect()
            }
        }
    }

    /// All members of groups of a pool, in the pool's order.
    pub fn servers_of(&self, pool: &Pool) -> Vec<u32> {
        match &pool.members {
            Members::Servers(servers) => servers.clone(),
            Members::Bands(bands) => {
                let bands = bands.iter().filter_map(|band| self.bands.get(band));
                let servers = bands.flat_map(|known| &known.servers);
                let mut seen = BTreeSet::new();
                servers.copied().filter(|server| seen.insert(*server)).collect()
            }
        }
    }

    /// Whether a server is in a group of a pool.
    pub fn has(&self, pool: &Pool, server: u32) -> bool {
        match &pool.members {
            Members::Servers(servers) => servers.contains(&server),
            Members::Bands(bands) => {
                let mut bands = bands.iter().filter_map(|band| self.bands.get(band));
                bands.any(|known| known.servers.contains(&server))
            }
        }
    }
}

/// News of the map, which come in parts: the answers to `GetMap`.
#[derive(Debug, Clone)]
pub struct News {
    /// Changes after this epoch are asked for.
    pub since: u32,
    /// The number of the band from which the next part begins.
    pub from: u32,
    /// Of the first part: later ones may tell of later changes, and not of all.
    epoch: Option<u32>,
    map: Map,
}

impl News {
    /// News for somebody who knows this much.
    pub fn of(map: &Map) -> News {
        News { since: map.epoch, from: 0, epoch: None, map: map.clone() }
    }

    /// Takes in a part; whether it was the last.
    pub fn take(&mut self, epoch: u32, bands: Vec<Band>, end: bool) -> Result<bool, Malformed> {
        for band in bands {
            if !band.is_valid() || band.number < self.from {
                return Err(Malformed);
            }
            let next = band.number.checked_add(1);
            if next.is_none() && !end {
                return Err(Malformed);
            }
            self.from = next.unwrap_or(u32::MAX);
            self.map.add(band);
        }
        self.epoch.get_or_insert(epoch);
        Ok(end)
    }

    /// The map with the news. It is never older than before.
    pub fn map(mut self) -> Map {
        self.map.epoch = self.map.epoch.max(self.epoch.unwrap_or(0));
        self.map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_come_in_parts_and_a_map_never_gets_older() {
        let mut news = News::of(&Map::at(5));
        assert_eq!((news.since, news.from), (5, 0));
        assert_eq!(news.take(7, vec![Band::new(3, 1, 6)], false), Ok(false));
        assert_eq!(news.from, 4);
        let back = vec![Band::new(3, 1, 6)];
        assert_eq!(news.clone().take(7, back, true), Err(Malformed), "an endless answer");
        let mut short = Band::new(4, 1, 6);
        short.groups.pop();
        assert_eq!(news.clone().take(7, vec![short], true), Err(Malformed));
        assert_eq!(news.take(9, vec![Band::new(8, 2, 8)], true), Ok(true));
        // A change with epoch 8 may have come to band 3 after it was told.
        let map = news.map();
        assert_eq!((map.epoch, map.bands(0).count()), (7, 2));
        let mut older = News::of(&map);
        assert_eq!(older.take(2, vec![], true), Ok(true));
        assert_eq!(older.map(), map);
    }

    #[test]
    fn the_map_says_where_the_groups_of_a_pool_are() {
        let mut map = Map::at(3);
        let pool = Pool { version: 1, members: Members::Bands(vec![4, 2]), copies: 1 };
        map.add(Band::new(4, 9, 1));
        assert!(!map.covers(&pool) && map.covers(&Pool::of_servers(1, vec![3])));
        map.add(Band::new(2, 5, 2));
        assert!(map.covers(&pool));
        assert_eq!(map.servers_of(&pool), [9, 5]);
        let mut moved = Band::new(4, 9, 1);
        moved.groups[7] = Membership { newcomers: vec![8], ..Membership::new(3, vec![5, 6]) };
        assert_eq!((moved.since(), moved.has(6), moved.has(8)), (3, true, true));
        map.add(moved);
        assert_eq!(map.first(Group::of_band(4, 7)), Some(5));
        assert_eq!(map.first(Group::of_band(4, 8)), Some(9));
        assert_eq!(map.servers_of(&pool), [9, 5, 6]);
        assert!(map.has(&pool, 6) && !map.has(&pool, 7) && !map.has(&pool, 8));
        assert_eq!(map.members(Group::of_band(4, 7)), [5, 6]);
        assert_eq!(map.holders_of(&pool), BTreeSet::from([5, 6, 8, 9]));
        assert_eq!(map.bands(3).map(|band| band.number).collect::<Vec<_>>(), [4]);
    }
}
