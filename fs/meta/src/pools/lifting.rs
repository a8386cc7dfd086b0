//! Pools that name servers become pools of bands (docs/design/128-upgrade.md), and who speaks which version.
//!
//! Invariant: a pool keeps its number and the places of its stripes. Group *i* of a pool of servers is on server *i*
//! modulo their number; group *i* of a pool of bands is in band *i* modulo their number, and each new band is on its server.

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_base::time::Time;
use ropewalk_wire::fs::layout::{Members, Pool};
use ropewalk_wire::fs::map::Band;
use ropewalk_wire::fs::upgrade::ServerFormat;

use super::{Banded, Pools, encode_pool};
use crate::keys::{self, Table};

/// The state of data servers in an upgrade, as they have said it in this life of the metadata server.
#[derive(Debug, Default)]
pub struct Lifting {
    /// The newest version that each of them speaks.
    versions: BTreeMap<u32, u16>,
    /// Objects that have learned their group, and whether none is left.
    told: BTreeMap<u32, (u64, bool)>,
    /// The store had the first format before.
    lifted: bool,
}

impl Lifting {
    /// A data server speaks this version and those before.
    pub fn note_version(&mut self, server: u32, newest: u16) {
        self.versions.insert(server, newest);
    }

    /// So many objects of a data server have learned their group; `done`: none is left.
    pub fn note_told(&mut self, server: u32, told: u64, done: bool) {
        self.told.insert(server, (told, done));
    }

    /// The store had the first format before.
    pub fn note_lifted(&mut self) {
        self.lifted = true;
    }

    /// Whether no object of a server is left behind where groups move: in a store that had the first format, it has said that
    /// all of them know their group.
    pub fn may_move_from(&self, server: u32) -> bool {
        !self.lifted || self.told.get(&server).is_some_and(|(_, done)| *done)
    }

    /// A server is forgotten.
    pub fn forget(&mut self, server: u32) {
        self.versions.remove(&server);
        self.told.remove(&server);
    }
}

impl Pools {
    /// All data servers with their versions.
    pub fn formats(&self, now: Time) -> Vec<ServerFormat> {
        let format = |server: &u32| {
            let heard = self.is_heard(*server, now);
            let version = self.lifting.versions.get(server).filter(|_| heard);
            let (told, done) = self.lifting.told.get(server).copied().unwrap_or_default();
            ServerFormat { server: *server, version: version.copied().unwrap_or(0), told, done }
        };
        self.members.keys().map(format).collect()
    }

    /// Whether all data servers have said in this life that all their objects know their group.
    pub fn are_told(&self) -> bool {
        self.members.keys().all(|server| self.lifting.may_move_from(*server))
    }

    /// Pools of servers become pools of bands. Returns the rows that say so; none where they are. `None`, and nothing has changed:
    /// the rows have more than `limit` bytes.
    pub fn lift(&mut self, limit: usize) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
        if self.has_bands() {
            return Some(Vec::new());
        }
        let named = self.versions.values().flat_map(|pool| pool.members.numbers());
        let servers: BTreeSet<u32> = self.members.keys().chain(named).copied().collect();
        let mut banded = Banded { restless: true, ..Banded::default() };
        // Callers that know the map of before have to ask for this one.
        banded.map.epoch += 1;
        let (mut rows, mut bands) = (Vec::new(), BTreeMap::new());
        for server in servers {
            let band = Band::new(banded.next, server, banded.map.epoch);
            bands.insert(server, band.number);
            banded.next += 1;
            rows.push(banded.put(band));
        }
        rows.push(banded.head());
        let versions: BTreeMap<u32, Pool> =
            self.versions.iter().map(|(version, pool)| (*version, lifted(pool, &bands))).collect();
        for (version, pool) in &versions {
            rows.push((keys::key(Table::Pool, &[u64::from(*version)]), encode_pool(pool)));
        }
        if rows.iter().map(|(key, row)| key.len() + row.len()).sum::<usize>() > limit {
            return None;
        }
        (self.banded, self.versions) = (Some(banded), versions);
        self.lifting.note_lifted();
        Some(rows)
    }
}

/// A pool with the bands of its servers, in their order.
fn lifted(pool: &Pool, bands: &BTreeMap<u32, u32>) -> Pool {
    let members = match &pool.members {
        Members::Servers(servers) => servers.iter().map(|server| bands[server]).collect(),
        Members::Bands(bands) => bands.clone(),
    };
    Pool { members: Members::Bands(members), ..*pool }
}

#[cfg(test)]
mod tests {
    use ropewalk_wire::fs::layout::{Growth, Layout};

    use super::*;

    /// The server that orders the writes of a stripe.
    fn place(pools: &Pools, layout: &Layout, stripe: u32) -> u32 {
        let pool = pools.get(layout.pool_version).expect("the pool");
        let group = layout.group(stripe, pool);
        pools.map().first(group).or(group.server()).expect("a place")
    }

    #[test]
    fn each_stripe_stays_where_it_is() {
        let growths = [
            Growth::Stepped { narrow: 1, wide: 64 },
            Growth::Stepped { narrow: 0, wide: 0 },
            Growth::Fixed(0),
            Growth::Fixed(1),
            Growth::Fixed(5),
        ];
        // Servers that come and go, in any order; one twice, as no program should have written it.
        let sets =
            [vec![3], vec![9, 3], vec![3, 7, 9], (0..64).rev().collect(), vec![1, 8, 1, 5, 2]];
        let pool = |(version, servers): (usize, &Vec<u32>)| {
            let version = version as u32 + 1;
            (version, Pool::of_servers(version, servers.clone()))
        };
        let versions: BTreeMap<u32, Pool> = sets.iter().enumerate().map(pool).collect();
        let members = (0..70).map(|server| (server, 1)).collect();
        let mut pools = Pools::new(members, versions, Time::ZERO);
        let layouts: Vec<Layout> = (1..=5)
            .flat_map(|pool_version| growths.map(|growth| (pool_version, growth)))
            .flat_map(|(pool_version, growth)| {
                let seeds = [0, 1, 77, 0x1234_5678_9abc_def0, u64::MAX];
                seeds.map(|seed| Layout { pool_version, seed, stripe_bytes: 1 << 20, growth })
            })
            .collect();
        let stripes = [0, 1, 2, 3, 4, 5, 63, 64, 65, 127, 1000, 1_000_000, u32::MAX];
        let places = |pools: &Pools| -> Vec<u32> {
            let pairs = layouts.iter().flat_map(|it| stripes.map(|stripe| (it, stripe)));
            pairs.map(|(layout, stripe)| place(pools, layout, stripe)).collect()
        };
        let before = places(&pools);
        assert_eq!((pools.lift(10_000), pools.has_bands()), (None, false), "too much");
        let rows = pools.lift(1 << 20).expect("room");
        assert_eq!(places(&pools), before);
        assert_eq!((pools.check(), pools.map().epoch), (Ok(()), 2));
        // A band for each of 70 members, the map, and five pools.
        assert_eq!(rows.len(), 70 + 1 + 5);
        assert_eq!(pools.lift(0), Some(Vec::new()), "once");
    }
}
