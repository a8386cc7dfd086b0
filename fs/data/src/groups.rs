//! The groups that this server is in, as the metadata server's map says.
//!
//! Invariants:
//! * a server that does not know the map yet serves no group of a band: it may have been taken out of it while it was
//!   down. The map is not kept on disk, so nobody can bring an older one back;
//! * a call is served if this server is in each of its groups, and its caller knew of the group's last change.

use std::collections::BTreeMap;

use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::head::Status;
use ropewalk_wire::fs::map::Map;

/// A group of this server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Own {
    /// The epoch of the last change of the group's servers.
    since: u32,
    /// This server orders the writes.
    first: bool,
}

/// The groups of a server.
#[derive(Debug)]
pub(crate) struct Groups {
    server: u32,
    /// Of the map; 0: it is not known yet.
    epoch: u32,
    own: BTreeMap<Group, Own>,
}

impl Groups {
    /// Those of this server, of which nothing is known yet but the one of the first format.
    pub(crate) fn new(server: u32) -> Groups {
        Groups { server, epoch: 0, own: BTreeMap::new() }
    }

    /// The epoch of the map that is known; 0: none.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Takes the map's word for the groups. `map`: all bands in which this server has a group. An older map says
    /// nothing.
    pub(crate) fn take(&mut self, map: &Map) {
        if map.epoch < self.epoch {
            return;
        }
        self.epoch = map.epoch;
        self.own.clear();
        for (group, members) in map.bands(0).flat_map(|band| band.groups()) {
            if members.servers.contains(&self.server) {
                let first = members.servers.first() == Some(&self.server);
                self.own.insert(group, Own { since: members.since, first });
            }
        }
    }

    /// Whether to serve a call about these groups, whose caller knew the map of epoch `map`. `Unavailable`: when this
    /// server knows that map, too.
    pub(crate) fn judge(
        &self,
        map: u32,
        groups: impl IntoIterator<Item = Group>,
        writes: bool,
    ) -> Result<(), Status> {
        for group in groups {
            if let Some(server) = group.server() {
                // Of the first format: it stays where it is.
                if server != self.server {
                    return Err(Status::OtherMap);
                }
                continue;
            }
            if self.epoch == 0 || self.epoch < map {
                return Err(Status::Unavailable);
            }
            match self.own.get(&group) {
                Some(own) if own.since <= map && (own.first || !writes) => {}
                _ => return Err(Status::OtherMap),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_wire::fs::map::{Band, Membership};

    use super::*;

    fn map(epoch: u32, groups: &[(u32, &[u32])]) -> Map {
        let mut map = Map::at(epoch);
        let mut band = Band::new(3, 9, 1);
        for (group, (since, servers)) in band.groups.iter_mut().zip(groups) {
            *group = Membership { since: *since, servers: servers.to_vec() };
        }
        map.add(band);
        map
    }

    #[test]
    fn a_call_is_served_where_its_caller_knew_of_the_groups_last_change() {
        let [first, second, other] = [0, 1, 2].map(|index| Group::of_band(3, index));
        let mut groups = Groups::new(7);
        assert_eq!(groups.judge(0, [Group::of_server(7)], true), Ok(()));
        assert_eq!(groups.judge(0, [Group::of_server(8)], false), Err(Status::OtherMap));
        assert_eq!(groups.judge(4, [first], false), Err(Status::Unavailable), "no map yet");
        groups.take(&map(5, &[(5, &[7, 8]), (2, &[8, 7])]));
        assert_eq!(groups.judge(5, [first], true), Ok(()));
        assert_eq!(groups.judge(4, [first], true), Err(Status::OtherMap), "an old map");
        assert_eq!(groups.judge(4, [second], false), Ok(()));
        assert_eq!(groups.judge(4, [second], true), Err(Status::OtherMap), "not the first");
        assert_eq!(groups.judge(5, [first, other], false), Err(Status::OtherMap), "one of them");
        assert_eq!(groups.judge(6, [first], true), Err(Status::Unavailable), "a newer map");
        // An older word changes nothing; a newer one takes a group away.
        groups.take(&map(4, &[(4, &[8])]));
        assert_eq!((groups.epoch(), groups.judge(5, [first], true)), (5, Ok(())));
        groups.take(&map(6, &[(6, &[8]), (2, &[8, 7])]));
        assert_eq!(groups.judge(6, [first], false), Err(Status::OtherMap));
        assert_eq!(groups.judge(5, [second], false), Ok(()));
    }
}
