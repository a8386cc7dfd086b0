//! Groups: the peers that may use a region, where these are several and not all.
//!
//! Invariant: a group stays as long as regions are exposed to it.

use ropewalk_base::error::Fault;
use ropewalk_base::ids::EndpointId;
use ropewalk_base::slots::Slots;

use crate::api::*;
use crate::engine::Core;

/// All groups of an endpoint.
#[derive(Debug)]
pub(crate) struct Groups {
    entries: Slots<Entry>,
}

#[derive(Debug)]
struct Entry {
    /// Sorted, each once.
    members: Box<[Member]>,
    /// Regions that are exposed to it.
    regions: u32,
    /// It goes with the last of them.
    dropped: bool,
}

impl Groups {
    pub fn with_limit(limit: usize) -> Groups {
        Groups { entries: Slots::with_limit(limit) }
    }

    fn has(&self, group: GroupId, member: Member) -> bool {
        self.entries.get(group.0).is_some_and(|it| it.members.binary_search(&member).is_ok())
    }

    /// A region is exposed to a group. False: there is none, or it is given up.
    pub fn retain(&mut self, audience: Audience) -> bool {
        let Audience::Group(group) = audience else { return true };
        let entry = self.entries.get_mut(group.0).filter(|it| !it.dropped);
        entry.is_some_and(|it| {
            it.regions += 1;
            true
        })
    }

    /// A region that was exposed to it is gone.
    pub fn release(&mut self, audience: Audience) {
        let Audience::Group(group) = audience else { return };
        let Some(entry) = self.entries.get_mut(group.0) else { return };
        entry.regions -= 1;
        if entry.regions == 0 && entry.dropped {
            self.entries.remove(group.0);
        }
    }

    fn give_up(&mut self, group: GroupId) {
        let Some(entry) = self.entries.get_mut(group.0) else { return };
        entry.dropped = true;
        if entry.regions == 0 {
            self.entries.remove(group.0);
        }
    }
}

impl Core {
    /// Makes a group, to which regions can be exposed. Peers that were looked up, and that nobody has reached, are members from
    /// the moment when they answer.
    pub fn add_group(&mut self, members: &[Member]) -> Result<GroupId, Fault> {
        let mut members = members.to_vec();
        members.sort_unstable();
        members.dedup();
        let entry = Entry { members: members.into(), regions: 0, dropped: false };
        self.groups.entries.insert(entry).map(GroupId).map_err(|_| Fault::Busy)
    }

    /// Nothing more is exposed to a group. It ends with the last region that is.
    pub fn drop_group(&mut self, group: GroupId) {
        self.groups.give_up(group);
    }

    /// Whether a peer may use what is exposed to this audience.
    #[inline(always)]
    pub(super) fn is_among(&self, id: PeerId, audience: Audience) -> bool {
        match audience {
            Audience::Everybody => true,
            Audience::One(peer) => peer == id,
            Audience::Group(group) => self.is_member(id, group),
        }
    }

    #[cold]
    fn is_member(&self, id: PeerId, group: GroupId) -> bool {
        let Some(peer) = self.peers.get(id) else { return false };
        let endpoint = Member::Endpoint(EndpointId(peer.identity.endpoint));
        let names = std::iter::once(&id).chain(&peer.names.aliases);
        self.groups.has(group, endpoint)
            || names.into_iter().any(|name| self.groups.has(group, Member::Peer(*name)))
    }
}
