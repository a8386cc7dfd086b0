//! The groups that this server is in, as the metadata server's map says.
//!
//! Invariants:
//! * a server that does not know the map yet serves no group of a band: it may have been taken out of it while it was
//!   down. The map is not kept on disk, so nobody can bring an older one back;
//! * a call is served if this server is the first of each of its groups, and its caller knew of the group's last change;
//! * a group of several members is served only when this server has settled it, and read only while nobody can have taken
//!   this server out of it (docs/design/116-mirrored-groups.md);
//! * members that are not the first serve reads only, and of bands for several copies only.

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_base::time::Time;
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::head::Status;
use ropewalk_wire::fs::map::{COPY_SILENCE, FIRST_EPOCH, Map, Membership};
use ropewalk_wire::fs::meta::STEP_GROUPS_MAX;
use ropewalk_wire::fs::term::Term;
use ropewalk_wire::fs::value::Errno;

use crate::config::Defect;
use crate::failure::Failure;

/// This member does not know whether all members have what is to be read: the orderer does.
pub(crate) const ELSEWHERE: Failure = Failure::Errno(Errno::EAGAIN);

/// A group of this server.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Own {
    membership: Membership,
    /// Members that the group should have.
    copies: u8,
    /// The server that is to order it.
    home: Option<u32>,
    /// When this server learned of its last change.
    changed: Time,
    /// This server orders the writes, and all members have what any of them has.
    settled: bool,
    /// This life knows all changes that are open here. One that began as a member does not know those of former lives.
    remembers: bool,
    /// Until then a server that is no member any more may serve reads, since it does not know.
    alone_from: Time,
}

/// The groups of a server.
#[derive(Debug, Clone)]
pub(crate) struct Groups {
    server: u32,
    /// Of the map; 0: it is not known yet.
    epoch: u32,
    /// The term of the metadata server that told that map.
    term: Term,
    own: BTreeMap<Group, Own>,
    /// Groups that this server is about to leave, and serves no more: the epoch of the map when it said so.
    withheld: BTreeMap<Group, u32>,
    /// Groups that this server does not serve just now. Nobody was told.
    resting: BTreeSet<Group>,
    /// Members that this server has called out of step, which may be heard all the same.
    reported: BTreeSet<(Group, u32)>,
    /// Until then this server is a member of the groups of its map.
    lease: Time,
    /// This server stops, and has told others so: it serves no group of several members any more.
    gone: bool,
    defect: Option<Defect>,
}

impl Groups {
    /// Those of this server, of which nothing is known yet but the one of the first format.
    pub(crate) fn new(server: u32) -> Groups {
        let (own, withheld, resting, reported) = Default::default();
        let (epoch, term, lease, gone, defect) = (0, Term(0), Time::ZERO, false, None);
        Groups { server, epoch, term, own, withheld, resting, reported, lease, gone, defect }
    }

    /// As these, with a planted bug.
    pub(crate) fn with(self, defect: Option<Defect>) -> Groups {
        Groups { defect, ..self }
    }

    /// The epoch of the map that is known; 0: none.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The epoch of the map that is known, and the term of the metadata server that told it.
    pub(crate) fn known(&self) -> (u32, Term) {
        (self.epoch, self.term)
    }

    /// There is no metadata server, and so no map but the first one.
    pub(crate) fn alone(self) -> Groups {
        Groups { epoch: FIRST_EPOCH, ..self }
    }

    /// Whether pools name bands: in the first format no group ever changes.
    pub(crate) fn has_left_first_format(&self) -> bool {
        self.epoch > FIRST_EPOCH
    }

    /// Whether to make everything durable for a caller with the map of epoch `map`. One that takes this for a file system of
    /// the first format may look for bytes at the wrong servers.
    pub(crate) fn judge_sync(&self, map: u32) -> Result<(), Status> {
        let outdated = map <= FIRST_EPOCH && self.has_left_first_format();
        if outdated { Err(Status::OtherMap) } else { Ok(()) }
    }

    /// Whether a metadata server of this term has rows of before the map that is known here: an older copy of them. The map
    /// is durable before anybody hears of it.
    pub(crate) fn is_older_copy(&self, map: u32, term: Term) -> bool {
        map < self.epoch && term.is_ahead_of(self.term)
    }

    /// As [`Groups::take`], of a map that the metadata server of this term told.
    pub(crate) fn take_of(&mut self, term: Term, map: &Map, now: Time) {
        if map.epoch >= self.epoch {
            self.term = term;
        }
        self.take(map, now);
    }

    /// Takes the map's word for the groups. `map`: all bands in which this server has a group. An older map says
    /// nothing.
    pub(crate) fn take(&mut self, map: &Map, now: Time) {
        if map.epoch < self.epoch {
            return;
        }
        let known = std::mem::replace(&mut self.epoch, map.epoch);
        let (is_first_map, is_next_map) = (known == 0, map.epoch == known + 1);
        let before = std::mem::take(&mut self.own);
        let groups = map.bands(0).flat_map(|band| {
            let kind = (band.copies(), band.mirroring.map(|it| it.home));
            band.groups().map(move |(group, membership)| (group, kind, membership))
        });
        for (group, (copies, home), membership) in groups {
            if !membership.holders().any(|server| server == self.server) {
                continue;
            }
            let first = membership.servers.first() == Some(&self.server);
            let former = before.get(&group);
            let ordered = former.is_some_and(|own| own.settled);
            let careless = self.defect == Some(Defect::Unsettled);
            let settled = first && (ordered || membership.servers.len() == 1 || careless);
            let is_member = membership.servers.contains(&self.server);
            let remembers = match former {
                Some(former) => former.remembers || settled || !is_member,
                None => !is_first_map || settled || !is_member,
            };
            let waits = match former {
                // Of several changes at once nobody knows who was a member in between, but who ordered the group all the time: nobody
                // became one without its word.
                Some(former) if !is_next_map && former.membership.since < membership.since => {
                    let ordered = former.settled && settled;
                    copies > 1 && (!ordered || self.has_lost_a_reader(group, former, membership))
                }
                Some(former) => self.has_lost_a_reader(group, former, membership),
                None => is_first_map && copies > 1,
            };
            let before = former.map_or(Time::ZERO, |former| former.alone_from);
            let alone_from = if waits { now + COPY_SILENCE / 2 } else { before };
            let same = former.filter(|former| former.membership.since == membership.since);
            let changed = same.map_or(now, |former| former.changed);
            let membership = membership.clone();
            let own = Own { membership, copies, home, changed, settled, remembers, alone_from };
            self.own.insert(group, own);
        }
        let own = &self.own;
        let is_same = |group: &Group| {
            let since = |all: &BTreeMap<Group, Own>| all.get(group).map(|own| own.membership.since);
            since(own) == since(&before)
        };
        self.reported.retain(|(group, _)| is_same(group));
        self.withheld.retain(|group, epoch| {
            own.get(group).is_some_and(|own| own.membership.since <= *epoch)
        });
    }

    /// Whether a member left that may still serve reads under its lease. One that was silent has none. An orderer leaves
    /// by its own word, or silent.
    fn has_lost_a_reader(&self, group: Group, former: &Own, now: &Membership) -> bool {
        let was_first = former.membership.servers.first() == Some(&self.server);
        let is_short = now.servers.len() < usize::from(former.copies);
        let others = former.membership.servers.iter().skip(1).filter(|it| **it != self.server);
        let left = others.filter(|it| !now.servers.contains(it));
        // Newcomers that this server brought into step may have been members in between.
        let is_reported = |it: &u32| self.reported.contains(&(group, *it));
        let came = former.membership.newcomers.iter().filter(|_| was_first);
        let came = came.filter(|it| !now.servers.contains(it));
        let gone = came.filter(|it| !now.newcomers.contains(it) || is_reported(it));
        left.chain(gone).any(|it| !was_first || !is_short || is_reported(it))
    }

    /// This server is about to call a member out of step.
    pub(crate) fn report(&mut self, group: Group, server: u32) {
        self.reported.insert((group, server));
    }

    /// From then on nobody reads from a server that has left one of the groups.
    pub(crate) fn all_alone_from(&self) -> Time {
        self.own.values().map(|own| own.alone_from).max().unwrap_or(Time::ZERO)
    }

    /// From then on nobody reads from a server that is no member of a group any more.
    pub(crate) fn alone_from(&self, group: Group) -> Time {
        self.own.get(&group).map_or(Time::ZERO, |own| own.alone_from)
    }

    /// Serves nobody in these groups from now on, until a later change of them.
    pub(crate) fn withhold(&mut self, groups: &[Group]) {
        let epoch = self.epoch;
        self.withheld.extend(groups.iter().map(|group| (*group, epoch)));
    }

    /// Serves nobody in these groups for now; without any, serves all again.
    pub(crate) fn rest(&mut self, groups: &[Group]) {
        self.resting = groups.iter().copied().collect();
    }

    /// Of these groups those that this server still withholds.
    pub(crate) fn withheld(&self, groups: &[Group]) -> Vec<Group> {
        groups.iter().copied().filter(|group| self.withheld.contains_key(group)).collect()
    }

    /// Groups that this server orders and is to leave, and that it has not begun to leave.
    pub(crate) fn to_leave(&self) -> Vec<Group> {
        let is_to_leave = |(group, own): (&Group, &Own)| {
            let Membership { servers, leaving, .. } = &own.membership;
            let orders = own.settled && servers.first() == Some(&self.server);
            let goes = orders && leaving.contains(&self.server);
            (goes && !self.withheld.contains_key(group)).then_some(*group)
        };
        self.own.iter().filter_map(is_to_leave).collect()
    }

    /// Whole groups that this server orders, and that have not changed since `before`, though the server that is to order them is a
    /// member: that server and a few of its groups.
    pub(crate) fn to_hand_on(&self, before: Time) -> Option<(u32, Vec<Group>)> {
        let home = |(group, own): (&Group, &Own)| {
            let Membership { servers, newcomers, leaving, .. } = &own.membership;
            let home = own.home.filter(|home| servers.contains(home) && *home != self.server)?;
            let is_whole = servers.len() >= usize::from(own.copies) && newcomers.is_empty();
            let orders = own.settled && servers.first() == Some(&self.server);
            let is_quiet = own.changed <= before && leaving.is_empty();
            let goes = is_whole && orders && is_quiet && !self.withheld.contains_key(group);
            goes.then_some((home, *group))
        };
        let all: Vec<(u32, Group)> = self.own.iter().filter_map(home).collect();
        let (first, _) = *all.first()?;
        let groups = all.iter().filter(|(home, _)| *home == first).map(|(_, group)| *group);
        Some((first, groups.take(STEP_GROUPS_MAX).collect()))
    }

    /// A heartbeat was answered: until `until` this server is a member of its groups.
    pub(crate) fn renew(&mut self, until: Time) {
        if !self.gone {
            self.lease = self.lease.max(until);
        }
    }

    /// Serves no group of several members from now on. Others need not wait for the end of this server's lease.
    pub(crate) fn leave_all(&mut self) {
        (self.gone, self.lease) = (true, Time::ZERO);
    }

    /// Whether one of the groups has, or may come to have, several members.
    pub(crate) fn are_mirrored(&self, groups: impl IntoIterator<Item = Group>) -> bool {
        // Also a lone member of what were several: others may serve reads still.
        let is_mirrored = |own: &Own| own.copies > 1 || own.membership.is_mirrored();
        let mirrored = |group| self.own.get(&group).is_some_and(is_mirrored);
        groups.into_iter().any(mirrored)
    }

    /// Whether any group of this server has, or may come to have, several members.
    pub(crate) fn has_mirrored(&self) -> bool {
        self.own.values().any(|own| own.membership.is_mirrored())
    }

    /// The servers of a group of which this server is the first.
    pub(crate) fn ordered(&self, group: Group) -> Option<&Membership> {
        let own = self.own.get(&group)?;
        (own.membership.servers.first() == Some(&self.server)).then_some(&own.membership)
    }

    /// Whether this server serves a group: it is the first, and has settled it.
    pub(crate) fn serves(&self, group: Group) -> bool {
        self.own
            .get(&group)
            .is_some_and(|own| own.settled && own.membership.servers.first() == Some(&self.server))
    }

    /// Groups of several members that this server serves.
    pub(crate) fn served_mirrored(&self) -> impl Iterator<Item = (Group, &Membership)> {
        self.own
            .iter()
            .filter(|(_, own)| own.settled && own.membership.servers.len() > 1)
            .map(|(group, own)| (*group, &own.membership))
    }

    /// The first member of a group that this server is in.
    pub(crate) fn orderer(&self, group: Group) -> Option<u32> {
        self.own.get(&group)?.membership.servers.first().copied()
    }

    /// Whether a server is a member of a group that this server serves.
    pub(crate) fn has_member(&self, group: Group, server: u32) -> bool {
        let own = self.own.get(&group).filter(|own| own.settled);
        own.is_some_and(|own| own.membership.servers.contains(&server))
    }

    /// Whether this server is a member of a group for several copies that another one orders.
    pub(crate) fn follows(&self, group: Group) -> bool {
        self.own.get(&group).is_some_and(|own| self.is_follower(own))
    }

    fn is_follower(&self, own: &Own) -> bool {
        let servers = &own.membership.servers;
        own.copies > 1 && servers.iter().skip(1).any(|server| *server == self.server)
    }

    /// Whether this server is in a group, in step or not.
    pub(crate) fn is_in(&self, group: Group) -> bool {
        self.own.contains_key(&group)
    }

    /// Whether this server is in a group, and not in step.
    pub(crate) fn is_newcomer(&self, group: Group) -> bool {
        let own = self.own.get(&group);
        own.is_some_and(|own| own.membership.newcomers.contains(&self.server))
    }

    /// Groups of several members of which this server is the first.
    pub(crate) fn ordered_mirrored(&self) -> Vec<Group> {
        let mirrored = self.own.iter().filter(|(_, own)| {
            own.membership.is_mirrored() && own.membership.servers.first() == Some(&self.server)
        });
        mirrored.map(|(group, _)| *group).collect()
    }

    /// Groups of which this server is the first, and that it has not settled.
    pub(crate) fn unsettled(&self) -> Vec<Group> {
        let unsettled = |(group, own): (&Group, &Own)| {
            (!own.settled && own.membership.servers.first() == Some(&self.server)).then_some(*group)
        };
        self.own.iter().filter_map(unsettled).collect()
    }

    /// A group is settled, if it has not changed since this epoch.
    pub(crate) fn settle(&mut self, group: Group, epoch: u32) {
        if let Some(own) = self.own.get_mut(&group)
            && own.membership.servers.first() == Some(&self.server)
            && own.membership.since <= epoch
        {
            (own.settled, own.remembers) = (true, true);
        }
    }

    /// The newcomers of settled groups, each with the groups.
    pub(crate) fn newcomers(&self) -> BTreeMap<u32, Vec<Group>> {
        let mut newcomers: BTreeMap<u32, Vec<Group>> = BTreeMap::new();
        for (group, own) in self.own.iter().filter(|(_, own)| own.settled) {
            for server in &own.membership.newcomers {
                newcomers.entry(*server).or_default().push(*group);
            }
        }
        newcomers
    }

    /// Whether to serve a call about these groups, whose caller knew the map of epoch `map`. `Unavailable`: when this
    /// server knows that map, too, and has settled the groups.
    pub(crate) fn judge(
        &self,
        map: u32,
        groups: impl IntoIterator<Item = Group>,
        writes: bool,
        now: Time,
    ) -> Result<(), Status> {
        for group in groups {
            if let Some(server) = group.server() {
                // Of the first format. A server that knows no map may have given the bytes away meanwhile.
                match self.epoch {
                    0 => return Err(Status::Unavailable),
                    FIRST_EPOCH if server == self.server => continue,
                    _ => return Err(Status::OtherMap),
                }
            }
            if self.epoch == 0 || self.epoch < map {
                return Err(Status::Unavailable);
            }
            let stale = self.defect == Some(Defect::StaleMap);
            let own = self.own.get(&group).filter(|own| own.membership.since <= map || stale);
            match own {
                Some(own) if own.membership.since > map => {}
                Some(own) if own.membership.servers.first() == Some(&self.server) => {
                    let mirrored = own.membership.is_mirrored();
                    let leased = !mirrored || now < self.lease || writes && !self.gone;
                    let rests = self.withheld.contains_key(&group) || self.resting.contains(&group);
                    if !own.settled || !leased || rests {
                        return Err(Status::Unavailable);
                    }
                }
                _ => return Err(Status::OtherMap),
            }
        }
        Ok(())
    }

    /// As [`Groups::judge`], of a read: any member may serve it.
    pub(crate) fn judge_read(
        &self,
        map: u32,
        groups: impl IntoIterator<Item = Group>,
        now: Time,
    ) -> Result<(), Failure> {
        for group in groups {
            let own = self.own.get(&group).filter(|own| own.membership.since <= map);
            let leased = now < self.lease || self.defect == Some(Defect::UnleasedReads);
            match own.filter(|own| self.epoch >= map && self.is_follower(own)) {
                Some(own) if leased && own.remembers => {}
                Some(_) => return Err(ELSEWHERE),
                None => self.judge(map, [group], false, now).map_err(Failure::Status)?,
            }
        }
        Ok(())
    }

    /// Whether to cut a file, as a metadata server wants it that knows the map of epoch `map`. Else the bytes that are cut could come back
    /// from a server that this one still listens to, or a late cut could take bytes that were written after it.
    /// `groups`: of the file; none: any.
    pub(crate) fn judge_cut(&self, map: u32, groups: &[Group]) -> Result<(), Status> {
        let is_newer = |own: &Own| own.membership.since > map;
        if self.has_left_first_format() && groups.iter().any(|group| group.server().is_some()) {
            return Err(Status::OtherMap);
        }
        let changed = match groups {
            [] => self.own.values().any(is_newer),
            some => some.iter().filter_map(|group| self.own.get(group)).any(is_newer),
        };
        if self.epoch < map || changed { Err(Status::Unavailable) } else { Ok(()) }
    }

    /// Whether to take what `sender` has done to these groups by its map of epoch `map`.
    pub(crate) fn judge_copy(
        &self,
        sender: u32,
        map: u32,
        groups: impl IntoIterator<Item = Group>,
    ) -> Result<(), Status> {
        if self.epoch == 0 || self.epoch < map {
            return Err(Status::Unavailable);
        }
        for group in groups {
            let own = self.own.get(&group).map(|own| &own.membership);
            let ordered = |own: &&Membership| own.servers.first() == Some(&sender);
            if own.filter(ordered).is_none_or(|own| own.since > map) {
                return Err(Status::OtherMap);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ropewalk_wire::fs::map::{Band, Mirroring};

    use super::*;

    const NOW: Time = Time(5);

    fn map(epoch: u32, groups: &[(u32, &[u32])]) -> Map {
        let mut map = Map::at(epoch);
        let mut band = Band::new(3, 9, 1);
        for (group, (since, servers)) in band.groups.iter_mut().zip(groups) {
            *group = Membership::new(*since, servers.to_vec());
        }
        map.add(band);
        map
    }

    #[test]
    fn a_call_is_served_where_its_caller_knew_of_the_groups_last_change() {
        let [first, second, other] = [0, 1, 2].map(|index| Group::of_band(3, index));
        let mut groups = Groups::new(7);
        let judge =
            |groups: &Groups, map, group: Group, writes| groups.judge(map, [group], writes, NOW);
        let (own, others) = (Group::of_server(7), Group::of_server(8));
        assert_eq!(judge(&groups, 0, own, true), Err(Status::Unavailable), "no map yet");
        let first_format = Groups::new(7).alone();
        assert_eq!(judge(&first_format, 0, own, true), Ok(()));
        assert_eq!(judge(&first_format, 0, others, false), Err(Status::OtherMap));
        assert_eq!(judge(&groups, 4, first, false), Err(Status::Unavailable), "no map yet");
        groups.take(&map(5, &[(5, &[7]), (2, &[8, 7])]), NOW);
        assert_eq!(judge(&groups, 5, first, true), Ok(()));
        assert_eq!(judge(&groups, 1, own, true), Err(Status::OtherMap), "of the format before");
        assert_eq!(groups.judge_cut(1, &[own]), Err(Status::OtherMap), "a late cut");
        assert_eq!((groups.judge_sync(1), groups.judge_sync(2)), (Err(Status::OtherMap), Ok(())));
        assert_eq!(judge(&groups, 4, first, true), Err(Status::OtherMap), "an old map");
        assert_eq!(judge(&groups, 4, second, false), Err(Status::OtherMap), "not the first");
        assert_eq!(
            groups.judge(5, [first, other], false, NOW),
            Err(Status::OtherMap),
            "one of them"
        );
        assert_eq!(judge(&groups, 6, first, true), Err(Status::Unavailable), "a newer map");
        // An older word changes nothing; a newer one takes a group away.
        groups.take(&map(4, &[(4, &[8])]), NOW);
        assert_eq!((groups.epoch(), judge(&groups, 5, first, true)), (5, Ok(())));
        groups.take(&map(6, &[(6, &[8]), (2, &[7])]), NOW);
        assert_eq!(judge(&groups, 6, first, false), Err(Status::OtherMap));
        assert_eq!(judge(&groups, 5, second, false), Ok(()));
    }

    #[test]
    fn a_mirrored_group_is_settled_first_and_read_under_a_lease() {
        let group = Group::of_band(3, 0);
        let mut groups = Groups::new(7);
        groups.take(&map(5, &[(5, &[8, 7])]), NOW);
        assert!(groups.unsettled().is_empty() && groups.are_mirrored([group]));
        assert_eq!(groups.judge_copy(8, 5, [group]), Ok(()));
        assert_eq!(groups.judge_copy(7, 5, [group]), Err(Status::OtherMap), "not the first");
        assert_eq!(groups.judge_copy(8, 4, [group]), Err(Status::OtherMap), "an old map");
        assert_eq!(groups.judge_copy(8, 6, [group]), Err(Status::Unavailable), "a newer map");
        groups.take(&map(6, &[(6, &[7, 9])]), NOW);
        assert_eq!(groups.judge_copy(8, 5, [group]), Err(Status::OtherMap), "it orders no more");
        assert_eq!(groups.judge(6, [group], true, NOW), Err(Status::Unavailable), "not settled");
        groups.settle(group, 5);
        assert_eq!(groups.unsettled(), [group], "it changed since");
        groups.settle(group, 6);
        assert_eq!(groups.judge(6, [group], true, NOW), Ok(()));
        assert_eq!(groups.judge(6, [group], false, NOW), Err(Status::Unavailable), "no lease");
        groups.renew(Time(6));
        assert_eq!(groups.judge(6, [group], false, NOW), Ok(()));
        assert_eq!(groups.judge(6, [group], false, Time(6)), Err(Status::Unavailable));
        // Reads of a stale caller are refused at members, too.
        assert_eq!(groups.judge_read(5, [group], NOW), Err(Failure::Status(Status::OtherMap)));
        // It goes on ordering when a member leaves.
        groups.take(&map(7, &[(7, &[7, 4])]), NOW);
        assert!(groups.unsettled().is_empty());
    }

    #[test]
    fn whole_groups_go_to_the_server_that_is_to_order_them() {
        let group = Group::of_band(3, 0);
        let mut groups = Groups::new(7);
        let second = |groups: &Groups| groups.to_hand_on(NOW);
        groups.take(&Map::at(4), NOW);
        groups.take(&mirrored(5, &[7], &[9]), NOW);
        assert_eq!(second(&groups), None, "it has to come into step first");
        groups.take(&mirrored(6, &[7, 9], &[]), NOW + Duration::from_secs(1));
        assert_eq!(second(&groups), None, "that was a moment ago");
        let later = NOW + Duration::from_secs(1);
        assert_eq!(groups.to_hand_on(later), Some((9, vec![group])));
        groups.rest(&[group]);
        groups.renew(later);
        assert_eq!(groups.judge(6, [group], true, NOW), Err(Status::Unavailable));
        groups.rest(&[]);
        assert_eq!(groups.judge(6, [group], true, NOW), Ok(()));
        groups.withhold(&[group]);
        assert_eq!(groups.to_hand_on(later), None, "it is under way");
        groups.take(&mirrored(7, &[9, 7], &[]), later);
        assert_eq!(groups.alone_from(group), Time::ZERO, "nobody left");
        assert_eq!(groups.to_hand_on(Time(u64::MAX)), None);
    }

    /// A map with one group of a band for two copies.
    fn mirrored(epoch: u32, servers: &[u32], newcomers: &[u32]) -> Map {
        let mut map = Map::at(epoch);
        let mut band = Band::new(3, 9, 1);
        let membership = Membership::new(epoch, servers.to_vec());
        band.groups[0] = Membership { newcomers: newcomers.to_vec(), ..membership };
        band.mirroring = Some(Mirroring { copies: 2, home: 9 });
        map.add(band);
        map
    }

    #[test]
    fn a_member_serves_reads_under_its_lease_and_only_if_its_life_knows_what_is_open() {
        let group = Group::of_band(3, 0);
        let read = |groups: &Groups, map| groups.judge_read(map, [group], NOW);
        let mut groups = Groups::new(7);
        groups.take(&mirrored(5, &[8, 7], &[]), NOW);
        groups.renew(Time(6));
        assert_eq!(read(&groups, 5), Err(ELSEWHERE), "its life began as a member");
        groups.take(&mirrored(6, &[8], &[7]), NOW);
        assert_eq!(read(&groups, 6), Err(Failure::Status(Status::OtherMap)), "a newcomer");
        groups.take(&mirrored(7, &[8, 7], &[]), NOW);
        assert_eq!(read(&groups, 7), Ok(()));
        assert_eq!(read(&groups, 6), Err(Failure::Status(Status::OtherMap)), "an old map");
        assert_eq!(read(&groups, 8), Err(Failure::Status(Status::Unavailable)), "a newer map");
        assert_eq!(groups.judge(7, [group], true, NOW), Err(Status::OtherMap), "no writes");
        assert_eq!(groups.judge_read(7, [group], Time(6)), Err(ELSEWHERE), "no lease");
    }

    #[test]
    fn a_change_waits_for_the_lease_of_a_member_that_left_while_it_was_heard() {
        let group = Group::of_band(3, 0);
        let lease = NOW + COPY_SILENCE / 2;
        let first = || {
            let mut groups = Groups::new(7);
            groups.take(&Map::at(4), NOW);
            groups.take(&mirrored(5, &[7, 8], &[]), NOW);
            groups
        };
        let mut silent = first();
        silent.take(&mirrored(6, &[7], &[8]), NOW);
        assert_eq!(silent.alone_from(group), Time::ZERO, "it has no lease any more");
        let mut reported = first();
        reported.report(group, 8);
        reported.take(&mirrored(6, &[7], &[8]), NOW);
        assert_eq!(reported.alone_from(group), lease);
        let mut moved = first();
        moved.take(&mirrored(6, &[7, 8, 9], &[]), NOW);
        moved.take(&mirrored(7, &[7, 9], &[]), NOW);
        assert_eq!((moved.alone_from(group), moved.all_alone_from()), (lease, lease));
        // Of several changes at once, where it ordered the group all the time.
        let mut came = first();
        came.take(&mirrored(6, &[7], &[8]), NOW);
        came.take(&mirrored(9, &[7, 8], &[]), NOW);
        assert_eq!(came.alone_from(group), Time::ZERO, "nobody left");
        let mut quick = first();
        quick.take(&mirrored(6, &[7], &[8]), NOW);
        quick.report(group, 8);
        quick.take(&mirrored(8, &[7], &[8]), NOW);
        assert_eq!(quick.alone_from(group), lease, "it may have been a member in between");
        let mut second = Groups::new(8);
        second.take(&Map::at(4), NOW);
        second.take(&mirrored(5, &[7, 8], &[]), NOW);
        let mut jumped = second.clone();
        jumped.take(&mirrored(8, &[8], &[7]), NOW);
        assert_eq!(jumped.alone_from(group), lease, "it did not order the group");
        second.take(&mirrored(6, &[8], &[7]), NOW);
        assert_eq!(second.alone_from(group), Time::ZERO, "an orderer leaves silent, or knows it");
        let mut third = Groups::new(9);
        third.take(&Map::at(4), NOW);
        third.take(&mirrored(5, &[7, 9, 8], &[]), NOW);
        third.take(&mirrored(6, &[9], &[7, 8]), NOW);
        assert_eq!(third.alone_from(group), lease, "the former orderer may have called it out");
    }
}
