//! A message that arrives in fragments, which follow each other.

use ropewalk_base::memory::Slice;
use ropewalk_base::slots::SlotId;

use crate::api::{Channel, OperationId, PeerId};

/// A message of which fragments are still to come.
#[derive(Debug)]
pub(crate) struct Assembly {
    pub peer: PeerId,
    pub channel: Channel,
    pub message: u64,
    pub acknowledge: u8,
    pub target: Target,
    /// The message's place; the receive may have room for less than all of it.
    pub into: Slice,
    pub total: u64,
    /// Bytes of the fragments that came, and of those that are at their place or have none.
    begun: u64,
    here: u64,
    /// Fragments on their way to their places.
    placing: u32,
    /// Nothing more comes.
    over: bool,
}

/// The receiver of a message that is being assembled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Receive(OperationId),
    Unmatched(SlotId),
}

impl Assembly {
    pub fn new(
        peer: PeerId,
        channel: Channel,
        message: u64,
        acknowledge: u8,
        target: Target,
        into: Slice,
        total: u64,
    ) -> Assembly {
        Assembly {
            peer,
            channel,
            message,
            acknowledge,
            target,
            into,
            total,
            begun: 0,
            here: 0,
            placing: 0,
            over: false,
        }
    }

    /// The receive that the message goes to, if there is one.
    pub fn receive(&self) -> Option<OperationId> {
        match self.target {
            Target::Receive(operation) => Some(operation),
            Target::Unmatched(_) => None,
        }
    }

    /// Whether a fragment is the one that comes next.
    pub fn is_next(&self, offset: u64, bytes: u64) -> bool {
        offset == self.begun && bytes > 0 && bytes <= self.total - self.begun
    }

    /// The next fragment comes. Returns its offset.
    pub fn begin(&mut self, bytes: u64) -> u64 {
        let offset = self.begun;
        self.begun += bytes;
        offset
    }

    /// A fragment has no place.
    pub fn skip(&mut self, bytes: u64) {
        self.here += bytes;
    }

    /// A fragment is on its way to its place.
    pub fn place(&mut self) {
        self.placing += 1;
    }

    /// A fragment is not on its way any more; so many bytes of it count as here.
    pub fn placed(&mut self, bytes: u64) {
        self.placing -= 1;
        self.here += bytes;
    }

    pub fn is_placing(&self) -> bool {
        self.placing > 0
    }

    pub fn is_whole(&self) -> bool {
        self.here >= self.total
    }

    /// Nothing more comes. True the first time.
    pub fn give_up(&mut self) -> bool {
        !std::mem::replace(&mut self.over, true)
    }

    pub fn is_over(&self) -> bool {
        self.over
    }
}
