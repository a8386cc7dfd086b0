//! Groups that move: away from servers that are to leave, in place of members that are gone for long, towards an even spread.
//!
//! A look at the map computes the next step of each group (docs/design/124-moving-groups.md). A taker becomes a newcomer, the
//! orderer brings it into step and has it taken in, and the member that is to go leaves. Nothing is remembered beside
//! the map and the orders of people, so whoever dies in between, the next look goes on from there.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ropewalk_base::time::Time;
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::layout::Members;
use ropewalk_wire::fs::map::Membership;
use ropewalk_wire::fs::orders::{Departure, Moves, Orders, ServerOrder};

use super::Pools;
use crate::inode::encode_row;

/// Version of the row of orders.
pub const ORDERS_VERSION: u8 = 1;

/// Takers that an orderer brings into step at a time: servers keep time for clients.
const TAKERS_AT_ONCE: usize = 16;
/// A newcomer that was silent for so long is not waited for any more.
const ABSENCE: Duration = Duration::from_secs(600);
/// The same, of one that never was a member.
const TAKER_ABSENCE: Duration = Duration::from_secs(10);
/// A server that was heard within this time is not given up.
const LOSS_SILENCE: Duration = Duration::from_secs(30);
/// The pause between two looks at all groups.
const PAUSE: Duration = Duration::from_secs(1);

/// Why an order is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// No such server.
    Unknown,
    /// No other server could take the groups.
    NobodyElse,
    /// Pools of the first format name servers, which keep their bytes.
    FirstFormat,
    /// The server is heard, or was a moment ago.
    Lives,
}

/// Rows that say what has changed: keys and values.
type Rows = Vec<(Vec<u8>, Vec<u8>)>;

/// Groups of files of one number of copies, and a server.
type Share = (u8, u32);

/// One look at all groups.
struct Look<'a> {
    pools: &'a Pools,
    now: Time,
    /// Groups that a server has now.
    held: BTreeMap<Share, u64>,
    /// Groups that a server has when all moves under way are over.
    loads: BTreeMap<Share, u64>,
    /// Takers that each orderer brings into step.
    takers: BTreeMap<u32, usize>,
    moves: Moves,
}

impl Pools {
    /// With orders, as their row holds them.
    pub fn with_orders(self, orders: Orders) -> Pools {
        Pools { orders, ..self }
    }

    /// The orders that hold.
    pub fn orders(&self) -> &Orders {
        &self.orders
    }

    /// The state of the moves.
    pub fn moves(&self) -> Moves {
        self.moves
    }

    /// Whether a server is to leave.
    pub fn is_leaving(&self, server: u32) -> bool {
        self.orders.departures.iter().any(|it| it.server == server)
    }

    /// Whether a group, or an old pool, has a server.
    pub fn is_needed(&self, server: u32) -> bool {
        self.map().bands(0).any(|band| band.has(server)) || self.is_in_first_format(server)
    }

    /// Whether a pool of the first format names a server: it keeps its bytes.
    fn is_in_first_format(&self, server: u32) -> bool {
        self.versions.values().any(|pool| match &pool.members {
            Members::Servers(all) => all.contains(&server),
            Members::Bands(_) => false,
        })
    }

    /// Forgets a server that nothing needs.
    pub fn forget(&mut self, server: u32) {
        self.members.remove(&server);
        self.starts.remove(&server);
        self.servers.remove(&server);
        self.knocks.remove(&server);
        self.lifting.forget(server);
    }

    /// Takes an order. Returns the row of all of them.
    pub fn take_order(&mut self, order: ServerOrder) -> Result<Vec<u8>, Refusal> {
        if self.banded.is_none() {
            return Err(Refusal::FirstFormat);
        }
        let orders = &mut self.orders;
        match order {
            ServerOrder::Show => {}
            ServerOrder::Drain { server, heir } => self.drain(server, heir)?,
            ServerOrder::Keep { server } => orders.departures.retain(|it| it.server != server),
            ServerOrder::Remove { server } => {
                orders.departures.retain(|it| it.server != server);
                // Anybody may take what it should have taken.
                let heirs = orders.departures.iter_mut().map(|it| &mut it.heir);
                heirs.filter(|it| **it == Some(server)).for_each(|it| *it = None);
            }
            ServerOrder::Rebalance => orders.spread = true,
            ServerOrder::Cancel => {
                orders.departures.clear();
                orders.spread = false;
            }
            ServerOrder::Pause { paused } => orders.paused = paused,
            ServerOrder::Rate { mib_per_second } => orders.mib_per_second = mib_per_second,
            // It changes the map.
            ServerOrder::Lost { .. } => {}
        }
        // The next look is at once.
        self.looked = Time::ZERO;
        Ok(encode_row(ORDERS_VERSION, &self.orders))
    }

    /// A person gave a server up, store and all. Where it is the last member of a group, the newcomer that left last, of those that
    /// are heard, comes nearest to what was acknowledged; without one the group stays as it is. Nobody begins such a group anew: it may
    /// have bytes of it from long ago. Returns the rows that say so.
    pub fn lose_server(&mut self, server: u32, now: Time) -> Result<Rows, Refusal> {
        if self.member(server).is_none() {
            return Err(Refusal::Unknown);
        }
        if self.is_in_first_format(server) {
            return Err(Refusal::FirstFormat);
        }
        // Nobody is heard right after a start.
        let since = self.server(server).map_or(self.started, |it| it.heard.max(self.started));
        if now.since(since) < LOSS_SILENCE {
            return Err(Refusal::Lives);
        }
        let heard: BTreeSet<u32> =
            self.members.keys().copied().filter(|it| self.is_heard(*it, now)).collect();
        let Some(mut banded) = self.banded.take() else { return Err(Refusal::FirstFormat) };
        let bands = banded.bands_with(server);
        let rows = banded.change_in(&bands, |_, group| group_without(server, group, &heard));
        self.banded = Some(banded);
        Ok(rows)
    }

    fn drain(&mut self, server: u32, heir: Option<u32>) -> Result<(), Refusal> {
        let is_known = |it: u32| self.member(it).is_some() || self.is_admitted(it);
        if self.member(server).is_none() || heir.is_some_and(|heir| !is_known(heir)) {
            return Err(Refusal::Unknown);
        }
        if self.is_in_first_format(server) {
            return Err(Refusal::FirstFormat);
        }
        let stays = |it: &&u32| **it != server && !self.is_leaving(**it);
        if heir == Some(server) || self.members.keys().find(stays).is_none() {
            return Err(Refusal::NobodyElse);
        }
        let departures = &mut self.orders.departures;
        departures.retain(|it| it.server != server);
        departures.push(Departure { server, heir });
        departures.sort_unstable();
        Ok(())
    }

    /// Takes the next steps of all groups that have to move. Returns the rows that say so.
    pub fn move_groups(&mut self, now: Time) -> Vec<(Vec<u8>, Vec<u8>)> {
        let waits = self.looked != Time::ZERO && now.since(self.looked) < PAUSE;
        if waits || self.banded.is_none() {
            return Vec::new();
        }
        self.looked = now;
        let Orders { departures, spread, .. } = &self.orders;
        if departures.is_empty() && !spread && !self.has_mirrored() && self.kinds().len() == 1 {
            // Groups of one copy that nobody moves.
            self.moves = Moves::default();
            return Vec::new();
        }
        let mut look = Look::new(self, now);
        let mut changes: BTreeMap<Group, Membership> = BTreeMap::new();
        let mut bands = BTreeSet::new();
        for band in self.map().bands(0) {
            for (group, membership) in band.groups() {
                if let Some(new) = look.step(band.copies(), membership) {
                    bands.insert(band.number);
                    changes.insert(group, new);
                }
            }
        }
        self.moves = look.moves;
        let bands: Vec<u32> = bands.into_iter().collect();
        let Some(banded) = &mut self.banded else { return Vec::new() };
        banded.change_in(&bands, |group, _| changes.get(&group).cloned())
    }
}

/// A group without a server that is lost; None where it is not in it, or nobody else has anything.
fn group_without(server: u32, group: &Membership, heard: &BTreeSet<u32>) -> Option<Membership> {
    group.holders().find(|it| *it == server)?;
    let others = |all: &[u32]| all.iter().copied().filter(|it| *it != server).collect();
    let (mut servers, mut newcomers): (Vec<u32>, Vec<u32>) =
        (others(&group.servers), others(&group.newcomers));
    let mut losses = group.losses;
    if servers.is_empty() {
        // One that never was a member has parts of objects only.
        let heir =
            newcomers.iter().rposition(|it| !group.takers.contains(it) && heard.contains(it))?;
        servers.push(newcomers.remove(heir));
        losses += 1;
    }
    Some(Membership { servers, newcomers, losses, ..group.clone() })
}

impl<'a> Look<'a> {
    fn new(pools: &'a Pools, now: Time) -> Look<'a> {
        let (held, loads, takers, moves) = Default::default();
        let mut look = Look { pools, now, held, loads, takers, moves };
        let groups = || {
            let bands = pools.map().bands(0);
            bands.flat_map(|band| band.groups.iter().map(|group| (band.copies(), group)))
        };
        for (copies, group) in groups() {
            for server in group.holders().filter(|it| !pools.is_leaving(*it)) {
                *look.held.entry((copies, server)).or_default() += 1;
            }
            let comes = |it: &u32| look.is_heard(*it) && look.is_coming(group, *it);
            if group.newcomers.iter().any(comes) {
                *look.takers.entry(group.servers[0]).or_default() += 1;
            }
        }
        look.loads = look.held.clone();
        // Those that are about to go do not count.
        for (copies, group) in groups() {
            let staying = look.staying(group);
            let coming = group.newcomers.iter().filter(|it| look.is_coming(group, **it)).count();
            if staying.len() >= usize::from(copies)
                && staying.len() + coming > usize::from(copies)
                && let Some(load) = look
                    .victim(copies, &staying)
                    .and_then(|victim| look.loads.get_mut(&(copies, victim)))
            {
                *load = load.saturating_sub(1);
            }
        }
        look
    }

    fn stays(&self, server: u32) -> bool {
        !self.pools.is_leaving(server)
    }

    fn staying(&self, group: &Membership) -> Vec<u32> {
        group.servers.iter().copied().filter(|it| self.stays(*it)).collect()
    }

    fn is_heard(&self, server: u32) -> bool {
        self.pools.is_heard(server, self.now)
    }

    /// Whether a server takes somebody into its groups: all its objects know their group.
    fn is_told(&self, server: u32) -> bool {
        self.pools.lifting.may_move_from(server)
    }

    fn has_room(&self, server: u32) -> bool {
        self.pools.server(server).is_some_and(super::Server::has_room)
    }

    /// Whether a newcomer is likely to become a member: it is heard, and has room, or was silent for a short time only.
    fn is_coming(&self, group: &Membership, server: u32) -> bool {
        if !self.stays(server) {
            return false;
        }
        match self.is_heard(server) {
            true => self.has_room(server),
            false => {
                let since = self.pools.server(server).map_or(self.pools.started, |it| it.heard);
                // While one that is to leave has all bytes, nobody has to be waited for.
                let may_wait = group.servers.iter().all(|it| self.stays(*it));
                let patience = match group.takers.contains(&server) || !may_wait {
                    true => TAKER_ABSENCE,
                    false => ABSENCE,
                };
                self.pools.member(server).is_some() && self.now.since(since) < patience
            }
        }
    }

    fn load(&self, copies: u8, server: u32) -> u128 {
        self.loads.get(&(copies, server)).copied().unwrap_or(0).into()
    }

    /// The capacity of a server, by which its share is measured.
    fn weight(&self, server: u32) -> u128 {
        u128::from(self.pools.share(server).total_bytes).max(1)
    }

    fn domain(&self, server: u32) -> Option<&'a [u8]> {
        self.pools.server(server).map(|it| &it.domain[..])
    }

    /// Of members, the one that goes first where there are too many: of two in one failure domain, then of all, the most loaded. By
    /// the groups of now: so a member that a taker came for is the one that goes.
    fn victim(&self, copies: u8, staying: &[u32]) -> Option<u32> {
        let crowded = |server: &u32| {
            let domain = self.domain(*server);
            domain.is_some() && staying.iter().filter(|it| self.domain(**it) == domain).count() > 1
        };
        let heavier = |a: &&u32, b: &&u32| {
            let held = |it: &u32| u128::from(self.held.get(&(copies, *it)).copied().unwrap_or(0));
            let load = |it: &u32, other: &u32| held(it) * self.weight(*other);
            crowded(a).cmp(&crowded(b)).then(load(a, b).cmp(&load(b, a)))
        };
        // Of equals the first: the last one has just come.
        staying.iter().rev().max_by(heavier).copied()
    }

    /// The server that takes a group: the least loaded one that has room, in a failure domain where no other copy is.
    /// `instead`: a member that goes for it.
    fn pick(&self, copies: u8, group: &Membership, instead: Option<u32>) -> Option<u32> {
        if !self.is_told(group.servers[0]) {
            return None;
        }
        let coming = group.newcomers.iter().copied().filter(|it| self.is_coming(group, *it));
        let remaining = group.servers.iter().copied().filter(|it| self.stays(*it)).chain(coming);
        let remaining = remaining.filter(|it| Some(*it) != instead);
        let used: BTreeSet<&[u8]> = remaining.filter_map(|it| self.domain(it)).collect();
        let departures = self.pools.orders.departures.iter();
        let mut heirs = departures
            .filter(|it| group.holders().any(|holder| holder == it.server))
            .filter_map(|it| it.heir)
            .peekable();
        let named: Option<Vec<u32>> = heirs.peek().is_some().then(|| heirs.collect());
        let fits = |server: &u32| {
            self.stays(*server)
                && self.is_heard(*server)
                && self.has_room(*server)
                && group.holders().all(|it| it != *server)
                && self.domain(*server).is_some_and(|domain| !used.contains(domain))
                && named.as_ref().is_none_or(|named| named.contains(server))
        };
        let lighter = |a: &u32, b: &u32| {
            let load = |it: &u32, other: &u32| (self.load(copies, *it) + 1) * self.weight(*other);
            load(a, b).cmp(&load(b, a))
        };
        self.pools.members.keys().copied().filter(fits).min_by(lighter)
    }

    /// The next step of a group; None where it rests.
    fn step(&mut self, copies: u8, group: &Membership) -> Option<Membership> {
        let staying = self.staying(group);
        let new = match staying.len() < usize::from(copies) {
            true => self.fill(copies, group, staying.len()),
            false => self.trim(copies, group, &staying),
        };
        new.filter(|new| new != group)
    }

    /// A group with too few members that stay gets a newcomer.
    fn fill(&mut self, copies: u8, group: &Membership, staying: usize) -> Option<Membership> {
        let wanted = usize::from(copies);
        let orderer = group.servers[0];
        let coming: Vec<u32> =
            group.newcomers.iter().copied().filter(|it| self.is_coming(group, *it)).collect();
        if staying + coming.len() >= wanted {
            let enters = self.is_heard(orderer) && coming.iter().any(|it| self.is_heard(*it));
            *(if enters { &mut self.moves.under_way } else { &mut self.moves.waiting }) += 1;
            return None;
        }
        if !self.is_heard(orderer) {
            self.moves.stuck += 1;
            return None;
        }
        let busy = self.takers.get(&orderer).copied().unwrap_or(0);
        if self.pools.orders.paused || busy >= TAKERS_AT_ONCE || !self.is_told(orderer) {
            self.moves.waiting += 1;
            return None;
        }
        let Some(taker) = self.pick(copies, group, None) else {
            self.moves.stuck += 1;
            return None;
        };
        self.takers.insert(orderer, busy + 1);
        *self.loads.entry((copies, taker)).or_default() += 1;
        self.moves.under_way += 1;
        // Takers that do not come make room. Former members stay: the group may need one of them.
        let stays = |it: &u32| !group.takers.contains(it) || coming.contains(it);
        let mut newcomers: Vec<u32> = group.newcomers.iter().copied().filter(stays).collect();
        newcomers.insert(0, taker);
        let takers = [&[taker], &group.takers[..]].concat();
        Some(Membership { newcomers, takers, ..group.clone() })
    }

    /// A group with enough members that stay loses those beyond, or gets a newcomer for an even spread.
    fn trim(&mut self, copies: u8, group: &Membership, staying: &[u32]) -> Option<Membership> {
        let mut kept = staying.to_vec();
        while kept.len() > usize::from(copies)
            && let Some(victim) = self.victim(copies, &kept)
        {
            kept.retain(|it| *it != victim);
        }
        let orderer = group.servers[0];
        let orderer_goes = !kept.contains(&orderer);
        let is_marked = group.leaving.contains(&orderer);
        let steps_down = orderer_goes && (is_marked || self.is_heard(orderer));
        let stays = |it: &u32| kept.contains(it) || *it == orderer;
        let servers: Vec<u32> = group.servers.iter().copied().filter(stays).collect();
        let leaving = if steps_down { vec![orderer] } else { Vec::new() };
        let newcomers = self.spread(copies, group, &kept, orderer_goes);
        self.moves.under_way += u64::from(orderer_goes || !newcomers.is_empty());
        let takers = newcomers.clone();
        Some(Membership { servers, newcomers, leaving, takers, ..group.clone() })
    }

    /// The newcomers that a complete group has for an even spread: one that takes the place of a member, at most.
    fn spread(
        &mut self,
        copies: u8,
        group: &Membership,
        kept: &[u32],
        orderer_goes: bool,
    ) -> Vec<u32> {
        let orders = &self.pools.orders;
        let Some(victim) = self.victim(copies, kept) else { return Vec::new() };
        // The size of a server is known when it was heard.
        let all_heard = kept.iter().all(|it| self.is_heard(*it));
        if !orders.spread || orderer_goes || !all_heard {
            return Vec::new();
        }
        let (load, weight) = (self.load(copies, victim), self.weight(victim));
        let is_useful = |server: &&u32| {
            self.is_coming(group, **server)
                && (load + 2) * self.weight(**server) > self.load(copies, **server) * weight
        };
        if let Some(taker) = group.newcomers.iter().find(is_useful) {
            return vec![*taker];
        }
        let busy = self.takers.get(&group.servers[0]).copied().unwrap_or(0);
        let Some(taker) = self.pick(copies, group, Some(victim)) else { return Vec::new() };
        if load * self.weight(taker) <= (self.load(copies, taker) + 1) * weight {
            return Vec::new();
        }
        if orders.paused || busy >= TAKERS_AT_ONCE {
            self.moves.waiting += 1;
            return Vec::new();
        }
        self.takers.insert(group.servers[0], busy + 1);
        *self.loads.entry((copies, taker)).or_default() += 1;
        if let Some(load) = self.loads.get_mut(&(copies, victim)) {
            *load = load.saturating_sub(1);
        }
        vec![taker]
    }
}

#[cfg(test)]
mod tests;
