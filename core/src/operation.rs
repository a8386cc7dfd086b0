//! The table of operations: what each one is, how far it is, and in which queue it waits.
//!
//! Invariant: an entry holds what a small message needs and nothing that has to be dropped, so that it
//! is written and forgotten where it lies; the larger state of gets and puts lies beside.

use ropewalk_base::error::Fault;
use ropewalk_base::slots::{SlotId, Slots};
use ropewalk_base::verb::RemoteLayout;

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
    Access(AccessId),
}

/// Names the state of a get or put in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AccessId(SlotId);

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

#[derive(Debug, Clone, Copy)]
pub(crate) enum ReceiveStage {
    /// Waits for a message.
    Posted,
    /// An eager message is on its way to it.
    Placing,
    /// It gets an announced message.
    Fetching { message: u64, access: AccessId },
}

/// A get or put under way: the user's own, or the one inside a rendezvous.
#[derive(Debug)]
pub(crate) struct AccessState {
    pub access: Access,
    /// In the queue of its peer.
    pub waiting: bool,
    /// Bytes that arrived (get), or were confirmed (put).
    pub moved: u64,
    /// The last native order for it.
    pub native: Option<SlotId>,
}

/// Operations by the driver's numbers.
#[derive(Debug)]
pub(crate) struct Operations {
    entries: Vec<Entry>,
    limit: usize,
    accesses: Slots<AccessState>,
}

#[derive(Debug)]
struct Entry {
    /// 0 while the number is free; no number has that generation.
    generation: u32,
    operation: Operation,
}

const FREE: Entry = Entry {
    generation: 0,
    operation: Operation {
        kind: Kind::Access(AccessId(SlotId { index: u32::MAX, generation: 0 })),
        next: None,
        cancelled: false,
        held: 0,
        ending: None,
    },
};

impl AccessState {
    /// How many pieces of remote memory it is about.
    pub fn segments(&self) -> u32 {
        match &self.access.remote {
            RemoteLayout::At(_) => 1,
            RemoteLayout::List(list) => list.len() as u32,
        }
    }
}

impl Operations {
    pub fn with_limit(limit: usize) -> Operations {
        Operations { entries: Vec::new(), limit, accesses: Slots::with_limit(limit) }
    }

    /// Adds an operation. The number must be free: the driver hands numbers out.
    #[inline]
    pub fn insert(&mut self, id: OperationId, kind: Kind) -> &mut Operation {
        let index = id.0.index as usize;
        if index >= self.entries.len() {
            self.grow(index);
        }
        let entry = &mut self.entries[index];
        assert!(entry.generation == 0, "an operation's number is used once at a time");
        entry.generation = id.0.generation;
        entry.operation = Operation { kind, next: None, cancelled: false, held: 0, ending: None };
        &mut entry.operation
    }

    #[cold]
    fn grow(&mut self, index: usize) {
        assert!(index < self.limit, "operation numbers stay below the limit");
        self.entries.resize_with(index + 1, || FREE);
    }

    /// Adds the state of a get or put; it goes with its operation.
    pub fn add_access(&mut self, access: Access) -> AccessId {
        match self.accesses.insert(AccessState { access, waiting: false, moved: 0, native: None }) {
            Ok(slot) => AccessId(slot),
            Err(_) => unreachable!("an operation has one access at most"),
        }
    }

    #[inline]
    pub fn get_mut(&mut self, id: OperationId) -> Option<&mut Operation> {
        let entry = self.entries.get_mut(id.0.index as usize)?;
        (entry.generation == id.0.generation && entry.generation != 0)
            .then_some(&mut entry.operation)
    }

    #[inline]
    pub fn get(&self, id: OperationId) -> Option<&Operation> {
        let entry = self.entries.get(id.0.index as usize)?;
        (entry.generation == id.0.generation && entry.generation != 0).then_some(&entry.operation)
    }

    fn access_id(kind: &Kind) -> Option<AccessId> {
        match kind {
            Kind::Access(access) => Some(*access),
            Kind::Receive(ReceiveState {
                stage: ReceiveStage::Fetching { access, .. }, ..
            }) => Some(*access),
            Kind::Send(_) | Kind::Receive(_) => None,
        }
    }

    /// The get or put that an operation is, or that is inside a receive.
    pub fn access(&self, operation: &Operation) -> Option<&AccessState> {
        self.accesses.get(Self::access_id(&operation.kind)?.0)
    }

    /// The same by the operation's number, to change.
    pub fn access_mut(&mut self, id: OperationId) -> Option<&mut AccessState> {
        let access = Self::access_id(&self.get(id)?.kind)?;
        self.accesses.get_mut(access.0)
    }

    /// The peer that an operation is about, where there is one.
    pub fn peer(&self, operation: &Operation) -> Option<PeerId> {
        match &operation.kind {
            Kind::Send(state) => Some(state.send.peer),
            Kind::Receive(state) => state.receive.source,
            Kind::Access(_) => self.access(operation).map(|state| state.access.peer),
        }
    }

    /// Forgets an operation.
    #[inline]
    pub fn forget(&mut self, id: OperationId) {
        let Some(entry) = self.entries.get_mut(id.0.index as usize) else { return };
        if entry.generation == id.0.generation {
            entry.generation = 0;
            if let Some(access) = Self::access_id(&entry.operation.kind) {
                self.accesses.remove(access.0);
            }
        }
    }

    /// All operations with their numbers, in the order of the numbers.
    pub fn iter(&self) -> impl Iterator<Item = (OperationId, &Operation)> {
        let used = |(_, entry): &(usize, &Entry)| entry.generation != 0;
        self.entries.iter().enumerate().filter(used).map(|(index, entry)| {
            let id = SlotId { index: index as u32, generation: entry.generation };
            (OperationId(id), &entry.operation)
        })
    }
}
