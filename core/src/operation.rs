//! The table of operations: what each one is, how far it is, and in which queue it waits.

use ropewalk_base::error::Fault;
use ropewalk_base::slots::SlotId;

use crate::api::{Access, OperationId, PeerId, Receive, Send};

/// An operation in flight.
#[derive(Debug)]
pub(crate) struct Operation {
    pub kind: Kind,
    /// Next in the queue of operations that wait at their peer.
    pub next: Option<OperationId>,
    /// The user wants it to end.
    pub cancelled: bool,
    /// Orders and placements that rails hold for its memory.
    pub held: u32,
    /// How it will end, once `held` is 0.
    pub ending: Option<Ending>,
}

impl Operation {
    /// The peer that it is about, where there is one.
    pub fn peer(&self) -> Option<PeerId> {
        match &self.kind {
            Kind::Send(state) => Some(state.send.peer),
            Kind::Receive(state) => state.receive.source,
            Kind::Access(state) => Some(state.access.peer),
        }
    }
}

/// The end of an operation, decided and waiting for rails to let go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ending {
    pub outcome: Result<(), Fault>,
    pub bytes: u64,
}

#[derive(Debug)]
pub(crate) enum Kind {
    Send(SendState),
    Receive(ReceiveState),
    Access(AccessState),
}

#[derive(Debug)]
pub(crate) struct SendState {
    pub send: Send,
    pub stage: SendStage,
    pub message: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendStage {
    /// In the queue of its peer: no session, no credit, or others before it.
    Waiting,
    /// Given to a rail as a frame.
    Eager,
    /// Announced, the receiver gets it from this region.
    Announced { region: SlotId },
    /// Waits for an acknowledgement.
    Acknowledge,
}

#[derive(Debug)]
pub(crate) struct ReceiveState {
    pub receive: Receive,
    pub stage: ReceiveStage,
    /// Of the message that it took.
    pub from: Option<PeerId>,
    pub bits: u64,
    pub message_bytes: u64,
}

#[derive(Debug)]
pub(crate) enum ReceiveStage {
    /// Waits for a message.
    Posted,
    /// An eager message is on its way to it.
    Placing,
    /// It gets an announced message.
    Fetching { message: u64, access: AccessState },
}

/// A get or put under way: the user's own, or the one inside a rendezvous.
#[derive(Debug)]
pub(crate) struct AccessState {
    pub access: Access,
    /// In the queue of its peer.
    pub waiting: bool,
    /// Bytes that arrived (get), or were confirmed (put).
    pub moved: u64,
}

impl AccessState {
    pub fn new(access: Access) -> AccessState {
        AccessState { access, waiting: false, moved: 0 }
    }
}

/// Operations by the driver's numbers.
#[derive(Debug)]
pub(crate) struct Operations {
    entries: Vec<Option<(u32, Operation)>>,
    limit: usize,
}

impl Operations {
    pub fn with_limit(limit: usize) -> Operations {
        Operations { entries: Vec::new(), limit }
    }

    /// Adds an operation. The number must be free: the driver hands numbers out.
    #[inline]
    pub fn insert(&mut self, id: OperationId, kind: Kind) {
        let index = id.0.index as usize;
        assert!(index < self.limit, "operation numbers stay below the limit");
        if index >= self.entries.len() {
            self.entries.resize_with(index + 1, || None);
        }
        let entry = &mut self.entries[index];
        assert!(entry.is_none(), "an operation's number is used once at a time");
        let operation = Operation { kind, next: None, cancelled: false, held: 0, ending: None };
        *entry = Some((id.0.generation, operation));
    }

    #[inline]
    pub fn get_mut(&mut self, id: OperationId) -> Option<&mut Operation> {
        match self.entries.get_mut(id.0.index as usize)? {
            Some((generation, operation)) if *generation == id.0.generation => Some(operation),
            _ => None,
        }
    }

    #[inline]
    pub fn get(&self, id: OperationId) -> Option<&Operation> {
        match self.entries.get(id.0.index as usize)? {
            Some((generation, operation)) if *generation == id.0.generation => Some(operation),
            _ => None,
        }
    }

    /// Forgets an operation where it lies: it is large, and nobody needs it any more.
    #[inline]
    pub fn forget(&mut self, id: OperationId) {
        if let Some(entry) = self.entries.get_mut(id.0.index as usize)
            && matches!(entry, Some((generation, _)) if *generation == id.0.generation)
        {
            *entry = None;
        }
    }

    /// All operations with their numbers, in the order of the numbers.
    pub fn iter(&self) -> impl Iterator<Item = (OperationId, &Operation)> {
        self.entries.iter().enumerate().filter_map(|(index, entry)| {
            let (generation, operation) = entry.as_ref()?;
            let id = SlotId { index: index as u32, generation: *generation };
            Some((OperationId(id), operation))
        })
    }
}
