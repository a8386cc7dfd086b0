//! Bands for files of several copies: which servers their groups are on.
//!
//! Each server that is heard and has room gets a band of each number of copies that is in use. It is the first member of all
//! groups of its band, so it orders their writes; the other members go round the servers of the other failure domains.
//! Members of a group are on servers of different domains. Bands stay as they are when further servers join.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ropewalk_base::time::Time;
use ropewalk_wire::fs::group::BAND_GROUPS;
use ropewalk_wire::fs::map::{Band, Membership, Mirroring};

use super::{FIRST_SILENCE, Pools};

/// The servers that can get copies, by failure domain.
type Domains<'a> = BTreeMap<&'a [u8], Vec<u32>>;

/// Groups for files of several copies that do not have all of their members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shortage {
    /// All groups for files of several copies.
    pub groups: u64,
    /// Those with fewer members than they should have.
    pub short: u64,
    /// Those with one member only.
    pub last: u64,
    /// Those of which two members are in one failure domain by now.
    pub together: u64,
    /// How often the last member of a group lost what it had not made durable, or its disk.
    pub losses: u64,
}

impl Pools {
    /// Counts the groups that lack members.
    pub fn shortage(&self) -> Shortage {
        let mut found = Shortage::default();
        for band in self.map().bands(0).filter(|band| band.mirroring.is_some()) {
            for group in &band.groups {
                found.groups += 1;
                found.short += u64::from(group.servers.len() < usize::from(band.copies()));
                found.last += u64::from(group.servers.len() == 1);
                let domain = |server: &u32| self.servers.get(server).map(|it| &it.domain);
                let known: Vec<&Vec<u8>> = group.servers.iter().filter_map(domain).collect();
                let apart: BTreeSet<&Vec<u8>> = known.iter().copied().collect();
                found.together += u64::from(apart.len() < known.len());
                found.losses += u64::from(group.losses);
            }
        }
        found
    }

    /// Numbers of copies for which there are bands.
    pub fn kinds(&self) -> BTreeSet<u8> {
        std::iter::once(1).chain(self.map().bands(0).map(Band::copies)).collect()
    }

    /// Makes bands of this many copies for all servers that lack one. Returns the rows that say so; `None` where there are too few
    /// failure domains with a server that is heard and has room.
    pub fn begin_copies(&mut self, copies: u8, now: Time) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
        let has_all = usize::from(copies) <= self.domains(now).len();
        let rows = self.add_bands(copies, now);
        let begun = copies == 1 || self.map().bands_with_servers(copies).next().is_some();
        (has_all || begun).then_some(rows)
    }

    /// Makes bands for servers that lack one of a number of copies that is in use. Returns the rows that say so.
    pub fn add_missing_bands(&mut self, now: Time) -> Vec<(Vec<u8>, Vec<u8>)> {
        let kinds = self.kinds();
        kinds.into_iter().flat_map(|copies| self.add_bands(copies, now)).collect()
    }

    fn add_bands(&mut self, copies: u8, now: Time) -> Vec<(Vec<u8>, Vec<u8>)> {
        // Of one copy a server gets a band when it registers. Right after the start not all servers were heard, and members stay
        // for long.
        let early = !self.all_heard() && now.since(self.started) < FIRST_SILENCE;
        if copies == 1 || early {
            return Vec::new();
        }
        let have: BTreeSet<u32> = (self.map().bands(0))
            .filter_map(|band| Some((band, band.mirroring?)))
            // A number that was given to another server needs a band of its own.
            .filter(|(band, it)| it.copies == copies && band.has(it.home))
            .map(|(_, mirroring)| mirroring.home)
            .collect();
        if self.servers.keys().all(|server| have.contains(server)) {
            return Vec::new();
        }
        let domains = self.domains(now);
        let places = |(domain, homes): (&&[u8], &Vec<u32>)| {
            let new = homes.iter().filter(|home| !have.contains(home));
            let new = new.map(|home| (*home, others(&domains, domain, *home, copies)));
            new.collect::<Vec<_>>()
        };
        let places: Vec<_> = domains.iter().flat_map(places).collect();
        let Some(banded) = &mut self.banded else { return Vec::new() };
        let mut rows = Vec::new();
        for (home, others) in places {
            let Some(others) = others else { continue };
            let since = banded.map.epoch + 1;
            let groups = others.into_iter().map(|others| {
                Membership::new(since, std::iter::once(home).chain(others).collect())
            });
            let mirroring = Some(Mirroring { copies, home });
            let band = Band { number: banded.next, groups: groups.collect(), mirroring };
            banded.next += 1;
            rows.extend(banded.take(band));
        }
        rows
    }

    /// Makes bands of one copy on usable servers, where groups have moved so that hardly any band does without those that are not.
    /// Returns the rows that say so.
    pub fn add_fresh_bands(&mut self, now: Time, silence: Duration) -> Vec<(Vec<u8>, Vec<u8>)> {
        let usable: BTreeSet<u32> = self.usable(self.newest(1), now, silence).into_iter().collect();
        let is_clean = |all: &&[u32]| all.iter().all(|server| usable.contains(server));
        let bands = self.map().bands_with_servers(1).map(|(_, servers)| servers);
        let covered: BTreeSet<u32> = bands.filter(is_clean).flatten().copied().collect();
        let moved = self.map().bands_with_servers(1).any(|(_, servers)| servers.len() > 1);
        if !moved || 2 * covered.len() >= usable.len() {
            return Vec::new();
        }
        let bare: Vec<u32> = usable.difference(&covered).copied().collect();
        bare.into_iter().flat_map(|server| self.add_band(server)).collect()
    }

    /// Servers that are heard and have room.
    fn domains(&self, now: Time) -> Domains<'_> {
        let mut domains = Domains::new();
        for (number, server) in &self.servers {
            let is_heard = now.since(server.heard) < FIRST_SILENCE;
            if server.has_room() && is_heard && !self.is_leaving(*number) {
                domains.entry(&server.domain).or_default().push(*number);
            }
        }
        domains
    }
}

/// The other members of each group of a server's band: the servers of other domains in turn, each as often as the others.
/// `None` where there are too few domains.
fn others(domains: &Domains<'_>, own: &[u8], home: u32, copies: u8) -> Option<Vec<Vec<u32>>> {
    let further = usize::from(copies) - 1;
    let foreign = domains.iter().filter(|(domain, _)| **domain != own);
    if foreign.clone().count() < further {
        return None;
    }
    let all: Vec<(&[u8], u32)> = foreign
        .flat_map(|(domain, servers)| servers.iter().map(|server| (*domain, *server)))
        .collect();
    let groups = (0..BAND_GROUPS as usize).map(|group| {
        // Servers begin at different places, so that the first groups of all bands are not on the same servers.
        let turn = group + home as usize;
        let mut chosen: Vec<(&[u8], u32)> = Vec::with_capacity(further);
        for copy in 0..further {
            let from = turn + copy * all.len() / further;
            let places = (0..all.len()).map(|step| all[(from + step) % all.len()]);
            let mut fits = places.filter(|(domain, _)| chosen.iter().all(|(it, _)| it != domain));
            chosen.extend(fits.next());
        }
        chosen.into_iter().map(|(_, server)| server).collect()
    });
    Some(groups.collect())
}

#[cfg(test)]
mod tests;
