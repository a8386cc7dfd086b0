//! Requests and their ends: one for each peer, told by an event or kept for a poll.

use std::collections::VecDeque;

use super::cause::ArmCause;
use super::path::PathId;
use super::state::Rule;
use crate::api::PeerId;

/// Ends that a connection keeps for polls. Beyond that the oldest is dropped.
pub const KEPT_MAX: usize = 64;

/// A request to one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// How the caller wants to learn the end of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum By {
    Event,
    Poll,
}

/// The end of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    Specified {
        path: PathId,
    },
    /// The loaded path; the peer's load may have taken the place of ours.
    Armed {
        path: PathId,
    },
    Migrated {
        path: PathId,
    },
    /// A change of a path's drain or weight.
    Changed,
    Refused(Rule),
    /// The load began, and did not reach its end.
    Failed(ArmCause),
}

/// Ends of requests that wait for a poll.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Kept {
    ends: VecDeque<(Ticket, Outcome)>,
}

impl Kept {
    pub fn keep(&mut self, ticket: Ticket, outcome: Outcome) {
        if self.ends.len() == KEPT_MAX {
            self.ends.pop_front();
        }
        self.ends.push_back((ticket, outcome));
    }

    /// Takes the end of a request, if it ended.
    pub fn take(&mut self, ticket: Ticket) -> Option<Outcome> {
        let at = self.ends.iter().position(|(of, _)| *of == ticket)?;
        self.ends.remove(at).map(|(_, outcome)| outcome)
    }
}

/// A load of several peers, polled as one. Each peer has its own end.
#[derive(Debug, Default)]
pub struct LoadList {
    peers: Vec<(PeerId, Ticket, Option<Outcome>)>,
}

impl LoadList {
    /// Asks each of the peers by `load`, which passes the request to the peer's connection.
    pub fn begin(peers: &[PeerId], mut load: impl FnMut(PeerId) -> Ticket) -> LoadList {
        LoadList { peers: peers.iter().map(|peer| (*peer, load(*peer), None)).collect() }
    }

    /// Looks after all that have not ended, by `poll`; the number of those left.
    pub fn poll(&mut self, mut poll: impl FnMut(PeerId, Ticket) -> Option<Outcome>) -> usize {
        for (peer, ticket, outcome) in self.peers.iter_mut().filter(|entry| entry.2.is_none()) {
            *outcome = poll(*peer, *ticket);
        }
        self.peers.iter().filter(|entry| entry.2.is_none()).count()
    }

    /// The end of each peer's load, in the order of the list; `None` where it is still under way.
    pub fn ends(&self) -> impl Iterator<Item = (PeerId, Option<Outcome>)> {
        self.peers.iter().map(|(peer, _, outcome)| (*peer, *outcome))
    }
}
