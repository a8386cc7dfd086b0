//! Peer events: changes of peers' sessions, kept until somebody takes them.

use std::collections::VecDeque;

use ropewalk_base::error::Fault;
use ropewalk_core::PeerId;

/// Events that are kept for a caller who does not ask for them.
const EVENTS_MAX: usize = 1024;

/// A change in a peer's session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerEvent {
    Up(PeerId),
    Down(PeerId, Fault),
    /// A foreign peer says whether a key that it was shown, by a connect or beside one, is right.
    KeyJudged {
        peer: PeerId,
        key: u32,
        right: bool,
    },
    /// Two are one endpoint: `alias` stands for `peer` from here on.
    Aliased {
        alias: PeerId,
        peer: PeerId,
    },
}

/// The latest events that nobody has taken.
#[derive(Debug, Default)]
pub(crate) struct PeerEvents {
    events: VecDeque<PeerEvent>,
}

impl PeerEvents {
    /// Adds an event; the earliest is lost where they are too many.
    pub fn push(&mut self, event: PeerEvent) {
        if self.events.len() >= EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// The earliest event.
    pub fn pop(&mut self) -> Option<PeerEvent> {
        self.events.pop_front()
    }
}
