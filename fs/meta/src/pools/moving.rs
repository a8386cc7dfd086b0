//! Groups that move: away from servers that are to leave, and in place of members that are gone for long.
//!
//! There is one way. A server becomes a newcomer of the group, the orderer brings it into step and has it taken in, and the
//! member that is to go leaves. Each of these is a durable change of the map, so whoever dies in between, the next
//! look at the map goes on from there. Nothing is remembered beside the map and the orders of people.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ropewalk_base::time::Time;
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::map::Membership;

use super::Pools;

/// Groups that have a newcomer at a time: those that move leave the servers time for clients.
const MOVES_AT_ONCE: usize = 16;
/// A member that was silent for so long is replaced, if there is a server for that.
const ABSENCE: Duration = Duration::from_secs(600);
/// The pause between two looks at all groups.
const PAUSE: Duration = Duration::from_secs(1);

/// Groups on their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moves {
    /// Groups with a newcomer that is brought into step.
    pub under_way: u64,
    /// Groups that have to move, and that no server can take.
    pub stuck: u64,
}

/// The servers that can take groups, and how many they have.
struct Takers {
    loads: BTreeMap<u32, usize>,
}

impl Takers {
    /// The least loaded server for a group: in none of its failure domains, as far as they are known.
    fn pick(&mut self, pools: &Pools, group: &Membership) -> Option<u32> {
        let domain = |server: &u32| pools.servers.get(server).map(|it| &it.domain);
        let staying = group.servers.iter().filter(|it| !pools.leaving.contains(it));
        let used: BTreeSet<&Vec<u8>> = staying.filter_map(domain).collect();
        let fits = |server: &u32| {
            group.holders().all(|it| it != *server)
                && domain(server).is_some_and(|domain| !used.contains(domain))
        };
        let all = self.loads.iter().filter(|(server, _)| fits(server));
        let (server, _) = all.min_by_key(|(server, load)| (**load, **server))?;
        let server = *server;
        *self.loads.get_mut(&server)? += 1;
        Some(server)
    }
}

impl Pools {
    /// With the servers that are to leave, as rows hold them.
    pub fn with_leaving(self, leaving: BTreeSet<u32>) -> Pools {
        Pools { leaving, ..self }
    }

    /// A server is to leave, so its groups go to others; or it is to stay after all.
    pub fn set_leaving(&mut self, server: u32, leaves: bool) {
        match leaves {
            true => self.leaving.insert(server),
            false => self.leaving.remove(&server),
        };
    }

    /// Whether a server is to leave.
    pub fn is_leaving(&self, server: u32) -> bool {
        self.leaving.contains(&server)
    }

    /// Forgets a server that has no group. Its number may be given to another one.
    pub fn forget(&mut self, server: u32) {
        self.members.remove(&server);
        self.starts.remove(&server);
        self.servers.remove(&server);
        self.leaving.remove(&server);
    }

    /// Groups that each server has, as a member or as a newcomer.
    pub fn loads(&self) -> BTreeMap<u32, usize> {
        let mut loads = BTreeMap::new();
        for group in self.map().bands(0).flat_map(|band| &band.groups) {
            group.holders().for_each(|server| *loads.entry(server).or_default() += 1);
        }
        loads
    }

    /// The state of the moves.
    pub fn moves(&self) -> Moves {
        self.moves
    }

    /// Takes the next steps of all groups that have to move. Returns the rows that say so.
    pub fn move_groups(&mut self, now: Time) -> Vec<(Vec<u8>, Vec<u8>)> {
        if self.banded.is_none() || now.since(self.moved) < PAUSE {
            return Vec::new();
        }
        self.moved = now;
        let absent = |server: &u32| match self.servers.get(server) {
            Some(server) => now.since(server.heard) >= ABSENCE,
            None => now.since(self.started) >= ABSENCE,
        };
        let absent: BTreeSet<u32> = self.members.keys().copied().filter(absent).collect();
        let held = self.loads();
        let takes = |(server, known): (&u32, &super::Server)| {
            let fit = known.has_room() && self.is_heard(*server, now);
            (fit && !self.leaving.contains(server))
                .then(|| (*server, held.get(server).copied().unwrap_or(0)))
        };
        let mut takers = Takers { loads: self.servers.iter().filter_map(takes).collect() };
        let groups = self.map().bands(0).flat_map(|band| &band.groups);
        let enters = |it: &&Membership| it.newcomers.iter().any(|it| self.is_heard(*it, now));
        let mut moves = Moves { under_way: groups.filter(enters).count() as u64, stuck: 0 };
        let mut changes = Vec::new();
        for band in self.map().bands(0) {
            let wanted = usize::from(band.copies());
            for (group, membership) in band.groups() {
                let step = self.step_of(membership, wanted, &absent, (&mut takers, &mut moves));
                changes.extend(step.map(|new| (group, new)));
            }
        }
        self.moves = moves;
        let changes: BTreeMap<Group, Membership> = changes.into_iter().collect();
        let bands: BTreeSet<u32> = changes.keys().filter_map(|it| Some(it.band()?.0)).collect();
        let bands: Vec<u32> = bands.into_iter().collect();
        let Some(banded) = &mut self.banded else { return Vec::new() };
        banded.change_in(&bands, |group, _| changes.get(&group).cloned())
    }

    /// The next step of a group; None where it rests.
    fn step_of(
        &self,
        group: &Membership,
        wanted: usize,
        absent: &BTreeSet<u32>,
        (takers, moves): (&mut Takers, &mut Moves),
    ) -> Option<Membership> {
        let goes = |server: &u32| self.leaving.contains(server);
        let staying: Vec<u32> = group.servers.iter().copied().filter(|it| !goes(it)).collect();
        let is_new = |server: &u32| !goes(server) && !absent.contains(server);
        let newcomers: Vec<u32> = group.newcomers.iter().copied().filter(is_new).collect();
        if staying.len() >= wanted {
            // Complete without those that go: they may, and nobody else is needed.
            let servers = staying[..wanted].to_vec();
            let done = servers == group.servers && group.newcomers.is_empty();
            return (!done).then(|| Membership { servers, newcomers: Vec::new(), ..group.clone() });
        }
        if staying.len() + newcomers.len() >= wanted || moves.under_way >= MOVES_AT_ONCE as u64 {
            return None;
        }
        let Some(taker) = takers.pick(self, group) else {
            moves.stuck += 1;
            return None;
        };
        moves.under_way += 1;
        let newcomers = newcomers.into_iter().chain([taker]).collect();
        Some(Membership { newcomers, ..group.clone() })
    }
}

#[cfg(test)]
mod tests;
