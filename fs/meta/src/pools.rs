//! Data servers as their heartbeats show them, and the pool versions made of them.
//!
//! Invariants: a pool version never changes; the newest names the servers that were usable when it
//! was made. A server that dies, fills up, comes back or joins leads to a new version, and files made
//! from then on use that. Heartbeats are not kept: after a restart servers count as alive until they
//! were silent for long enough.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_wire::fs::layout::{Layout, POOL_SERVERS_MAX, Pool};

use crate::config::Config;

/// Version of pool rows.
pub const POOL_VERSION: u8 = 1;

/// Longest address of a server, in bytes.
pub const ADDRESS_BYTES_MAX: usize = 1024;

/// A server that was heard of since the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    pub address: Vec<u8>,
    pub boot: u64,
    pub total_bytes: u64,
    pub available_bytes: u64,
    heard: Time,
}

impl Server {
    /// When it was heard last.
    pub fn heard(&self) -> Time {
        self.heard
    }

    /// Room for new files: more than a fiftieth is free. What is nearly full keeps the rest for the
    /// files that it has.
    fn has_room(&self) -> bool {
        self.available_bytes > self.total_bytes / 50
    }
}

/// Servers and pool versions of a shard.
#[derive(Debug, Default)]
pub struct Pools {
    servers: BTreeMap<u32, Server>,
    versions: BTreeMap<u32, Pool>,
    started: Time,
}

impl Pools {
    /// No servers yet, with the versions that rows hold.
    pub fn new(versions: BTreeMap<u32, Pool>, started: Time) -> Pools {
        Pools { servers: BTreeMap::new(), versions, started }
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

    /// Numbers from `from` on of the servers that were heard of since the start, or that a version
    /// names.
    pub fn known(&self, from: u32) -> BTreeSet<u32> {
        let named = self.versions.values().flat_map(|pool| &pool.servers);
        self.servers.keys().chain(named).copied().filter(|id| *id >= from).collect()
    }

    /// The newest version that has the server.
    pub fn newest_with(&self, server: u32) -> Option<u32> {
        let mut versions = self.versions.values().rev();
        versions.find(|pool| pool.servers.contains(&server)).map(|pool| pool.version)
    }

    /// Whether the server was heard of lately.
    pub fn is_alive(&self, server: u32, now: Time, silence: Duration) -> bool {
        self.servers.get(&server).is_some_and(|server| now.since(server.heard) < silence)
    }

    /// Takes a heartbeat. False where there are too many servers.
    #[allow(clippy::too_many_arguments)]
    pub fn handle_heartbeat(
        &mut self,
        server: u32,
        boot: u64,
        total_bytes: u64,
        available_bytes: u64,
        address: &[u8],
        now: Time,
    ) -> bool {
        if self.servers.len() >= POOL_SERVERS_MAX && !self.servers.contains_key(&server) {
            return false;
        }
        let address = address.to_vec();
        let heard = now;
        self.servers.insert(server, Server { address, boot, total_bytes, available_bytes, heard });
        true
    }

    /// The version that should follow the newest, if the usable servers are others now. With none
    /// usable the newest stays: its servers may come back.
    pub fn successor(&self, now: Time, silence: Duration) -> Option<Pool> {
        let newest = self.newest();
        let mut usable: Vec<u32> = self
            .servers
            .iter()
            .filter(|(_, server)| now.since(server.heard) < silence && server.has_room())
            .map(|(id, _)| *id)
            .collect();
        // Right after the start a server that was not heard of yet is not dead.
        if now.since(self.started) < silence {
            let unheard = newest.iter().flat_map(|pool| &pool.servers);
            usable.extend(unheard.filter(|id| !self.servers.contains_key(id)));
            usable.sort_unstable();
        }
        let same = newest.is_some_and(|pool| pool.servers == usable);
        if usable.is_empty() || same {
            return None;
        }
        Some(Pool { version: newest.map_or(1, |pool| pool.version + 1), servers: usable })
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

    /// Total and available bytes of the servers heard of.
    pub fn room(&self) -> (u64, u64) {
        self.servers.values().fold((0, 0), |(total, available), server| {
            (
                u64::saturating_add(total, server.total_bytes),
                u64::saturating_add(available, server.available_bytes),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: Duration = Duration::from_secs(10);

    fn seconds(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    fn step(pools: &mut Pools, now: Time) -> Option<Vec<u32>> {
        let pool = pools.successor(now, SILENCE)?;
        pools.add(pool.clone());
        Some(pool.servers)
    }

    #[test]
    fn versions_follow_the_servers_that_are_usable() {
        let mut pools = Pools::new(BTreeMap::new(), Time::ZERO);
        assert_eq!(step(&mut pools, Time::ZERO), None);
        pools.handle_heartbeat(3, 1, 1000, 900, b"three", seconds(1));
        assert_eq!(step(&mut pools, seconds(1)), Some(vec![3]));
        pools.handle_heartbeat(1, 1, 1000, 900, b"one", seconds(2));
        assert_eq!(step(&mut pools, seconds(2)), Some(vec![1, 3]));
        assert_eq!(step(&mut pools, seconds(3)), None);
        // Full, then dead, then back.
        pools.handle_heartbeat(1, 1, 1000, 20, b"one", seconds(9));
        assert_eq!(step(&mut pools, seconds(9)), Some(vec![3]));
        assert_eq!(step(&mut pools, seconds(12)), None, "the last usable servers stay");
        pools.handle_heartbeat(1, 2, 1000, 500, b"one", seconds(13));
        assert_eq!(step(&mut pools, seconds(13)), Some(vec![1]));
        assert_eq!(pools.newest().map(|pool| pool.version), Some(4));
        assert_eq!(pools.get(2).map(|pool| pool.servers.clone()), Some(vec![1, 3]));
    }

    #[test]
    fn after_a_restart_servers_have_time_to_be_heard() {
        let kept = BTreeMap::from([(5, Pool { version: 5, servers: vec![1, 2] })]);
        let mut pools = Pools::new(kept, seconds(100));
        pools.handle_heartbeat(1, 1, 1000, 900, b"one", seconds(101));
        assert_eq!(step(&mut pools, seconds(101)), None);
        pools.handle_heartbeat(1, 1, 1000, 900, b"one", seconds(111));
        assert_eq!(step(&mut pools, seconds(111)), Some(vec![1]));
        assert_eq!(pools.newest().map(|pool| pool.version), Some(6));
    }
}
