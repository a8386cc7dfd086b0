//! The place of this server among the others, as people are told of it.

use std::time::Duration;

use ropewalk_wire::fs::standby::{NodeRole, NodeStatus, Reached, VoterStatus};

use super::feed::known;
use super::{MetaNode, WITNESS};

impl MetaNode {
    /// The part of this server, and the other voters as far as it knows them.
    pub fn state(&self) -> NodeStatus {
        let feed = self.feed.borrow().clone().filter(|_| self.active().is_some());
        let followed = self.follows.get();
        let (role, term) = match (&feed, followed) {
            (Some(_), _) => (NodeRole::Active, self.candidacy.won().unwrap_or_default()),
            (None, Some((term, role))) => (role, term),
            (None, None) => (NodeRole::Seeks, self.candidacy.newest()),
        };
        let (position, reached) = match &feed {
            Some(feed) => feed.own(),
            None => self.stored.borrow().as_ref().map_or((0, Reached::default()), known),
        };
        let voters = feed.map_or_else(Vec::new, |feed| {
            let standbys = feed.statuses();
            let voter = |(voter, silence): (u32, Option<Duration>)| {
                let is_witness = voter & WITNESS != 0;
                let standby = standbys.get(&voter).filter(|_| !is_witness).copied();
                let number = voter & !WITNESS;
                VoterStatus { number, is_witness, silence: silence.map(milliseconds), standby }
            };
            self.candidacy.silences().into_iter().map(voter).collect()
        });
        NodeStatus {
            server: self.config.server.0,
            role,
            term,
            lease: u32::try_from(self.node.lease.as_millis()).unwrap_or(u32::MAX),
            alone: self.node.alone,
            position,
            reached,
            voters,
        }
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
