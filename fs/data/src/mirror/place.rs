//! The place of another server in a group that this server orders.

use ropewalk_wire::fs::group::Group;

use crate::server::Inner;

/// A server's place in a group that this server orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Nothing is done without it.
    Member,
    /// A newcomer that has missed nothing since its pass began.
    Hearing,
    /// A newcomer that nobody waits for, or no server of the group.
    Outside,
    /// This server does not order the group.
    Deposed,
}

impl Inner {
    pub(super) fn place(&self, group: Group, server: u32) -> Place {
        let groups = self.groups.borrow();
        let Some(membership) = groups.ordered(group) else { return Place::Deposed };
        if membership.servers.contains(&server) {
            return Place::Member;
        }
        if !membership.holders().any(|holder| holder == server) {
            return Place::Outside;
        }
        let passes = self.mirror.passes.borrow();
        match passes.get(&(group, server)) {
            Some(pass) if pass.entering => Place::Member,
            Some(pass) if !pass.broken => Place::Hearing,
            _ => Place::Outside,
        }
    }
}
