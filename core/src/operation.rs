//! The table of operations: what each one is, how far it is, and in which queue it waits.
//!
//! Invariant: an entry holds what a small message needs and nothing that has to be dropped, so that it
//! is written and forgotten where it lies; the larger state of gets and puts lies beside.
//!
//! Operations that are about one peer alone are listed by it, so that its end concerns no others.

use ropewalk_base::error::Fault;
use ropewalk_base::limits::LOCKED_PUT_BYTES_MAX;
use ropewalk_base::memory::{Element, Operator, Slice, Update};
use ropewalk_base::slots::{SlotId, Slots};
use ropewalk_base::verb::{Help, LinkId, RemoteLayout};

use crate::api::{Access, Action, Atomic, OperationId, PeerId, Receive, Send};
use crate::lists::{List, Neighbours, Table};
use crate::remote::{Pieces, Pulled};

/// Waiting sends whose bytes are counted, at most, to see what waits.
const COUNTED_MAX: usize = 64;

/// An operation in flight.
#[derive(Debug)]
pub(crate) struct Operation {
    pub kind: Kind,
    /// In the queue of operations that wait at their peer.
    turn: Neighbours,
    /// Listed by its peer.
    owned: bool,
    /// The user wants it to end.
    pub cancelled: bool,
    /// Orders and placements that rails hold for its memory.
    pub retained: u32,
    /// How it will end, once `retained` is 0.
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

impl SendState {
    /// No rail has the message's only, or first, frame any more.
    #[inline]
    pub fn first_left(&mut self, acknowledged: bool, in_fragments: bool) {
        self.stage = match self.stage {
            SendStage::Eager { .. } if acknowledged => SendStage::Acknowledge,
            SendStage::Eager { .. } if in_fragments => SendStage::Fragments,
            stage => stage,
        };
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendStage {
    /// In the queue of its peer: no session, no credit, or others before it. Its turn among all that
    /// came to wait, whatever name its peer had.
    Waiting { turn: u64 },
    /// Given to the rail of this link as a frame.
    Eager { link: LinkId },
    /// Announced, the receiver gets it from this region.
    Rendezvous { region: SlotId },
    /// Its first fragment has left, not all of the others have.
    Fragments,
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
    /// Waits for a message, in this turn.
    Posted { post: u64 },
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
    /// A put or an update of which data frames are still to be made, or a request for a lock without its answer.
    pub streaming: bool,
    /// Bytes that arrived (get), or were confirmed (put).
    pub moved: u64,
    /// The former value of an atomic's element.
    pub value: u64,
    /// It counts as one of which the peer's core hears no number.
    pub unnumbered: bool,
    /// A rail that reads and writes by itself left it to frames, or knows its key as a name only.
    pub by_frames: bool,
    /// It is put first, and told of when it is at its place.
    pub tells_after: bool,
    /// The last native order for it.
    pub native: Option<SlotId>,
    /// Where it is in parts: how far it is.
    pub pulled: Option<Pulled>,
    /// The help that the target of a get offers.
    pub help: Help,
}

/// Operations by the driver's numbers.
#[derive(Debug)]
pub(crate) struct Operations {
    entries: Vec<Entry>,
    limit: usize,
    /// Sends that came to wait so far.
    turns: u64,
    accesses: Slots<AccessState>,
    /// By operation: where it is among those of its peer.
    bonds: Vec<Bond>,
    /// By the peer's index: its operations.
    owners: Vec<List>,
}

/// An operation among those of its peer.
#[derive(Debug, Clone, Copy)]
struct Bond {
    peer: u32,
    /// The index of the name that it was posted under.
    name: u32,
    neighbours: Neighbours,
}

/// Posted under no name.
const NAMELESS: u32 = u32::MAX;

impl Table for Vec<Bond> {
    #[inline]
    fn neighbours(&mut self, index: u32) -> &mut Neighbours {
        &mut self[index as usize].neighbours
    }
}

impl Table for Vec<Entry> {
    #[inline]
    fn neighbours(&mut self, index: u32) -> &mut Neighbours {
        &mut self[index as usize].operation.turn
    }
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
        turn: Neighbours::NONE,
        owned: false,
        cancelled: false,
        retained: 0,
        ending: None,
    },
};

impl AccessState {
    /// How many pieces of remote memory it is about.
    pub fn segments(&self) -> u32 {
        match &self.access.remote {
            RemoteLayout::At(_) | RemoteLayout::Strided(_) => 1,
            RemoteLayout::List(list) => list.len() as u32,
        }
    }

    /// Whether it is about instances of a datatype. Where a rail does it, it has become one about a list.
    pub fn is_strided(&self) -> bool {
        matches!(self.access.remote, RemoteLayout::Strided(_))
    }

    /// How it combines elements, and whether it fetches what they were. Strided puts replace bytes, and strided gets fetch
    /// them.
    pub fn combines(&self) -> Option<(Update, bool)> {
        let bytes = |operator| Update::new(Element::Byte, operator);
        match self.access.action {
            Action::Update { update, fetch } => Some((update, fetch)),
            Action::Records => Some((bytes(Operator::Replace)?, false)),
            Action::Get if self.is_strided() => Some((bytes(Operator::Nothing)?, true)),
            Action::Put if self.is_strided() => Some((bytes(Operator::Replace)?, false)),
            _ => None,
        }
    }

    /// How many numbers it takes, if frames do it.
    #[inline]
    pub fn numbers(&self) -> u64 {
        match self.access.action {
            // It has a number for each of its frames, and waits between them.
            _ if self.is_strided() => 1,
            Action::Get | Action::Lock { .. } | Action::LockedPut { .. } => 0,
            Action::Put => Pieces::count_of(&self.access.remote, self.access.local.len),
            Action::Immediate { .. } => self.numbers_of_immediate(),
            // An update has a number for each of its frames, and waits between them.
            Action::Update { .. }
            | Action::Records
            | Action::Atomic(_)
            | Action::Notify { .. }
            | Action::Unlock { .. } => 1,
        }
    }

    #[cold]
    fn numbers_of_immediate(&self) -> u64 {
        let put = Pieces::count_of(&self.access.remote, self.access.local.len);
        if self.puts_first() { put + 1 } else { 1 }
    }

    /// Whether it asks for a lock.
    pub fn is_lock(&self) -> bool {
        matches!(self.access.action, Action::Lock { .. } | Action::LockedPut { .. })
    }

    /// Whether it tells the peer something, after all before it.
    pub fn is_token(&self) -> bool {
        matches!(
            self.access.action,
            Action::Unlock { .. }
                | Action::Notify { .. }
                | Action::Immediate { .. }
                | Action::Atomic(Atomic { token: true, .. })
        )
    }

    /// Whether it is a put with immediate data that does not fit into the frame that has the data.
    pub fn puts_first(&self) -> bool {
        if !matches!(self.access.action, Action::Immediate { .. }) {
            return false;
        }
        let fits = matches!(self.access.remote, RemoteLayout::At(_))
            && self.access.local.len <= u64::from(LOCKED_PUT_BYTES_MAX);
        !fits
    }

    /// Where the elements of an update are, and where what they were goes.
    pub fn halves(&self) -> (Slice, Slice) {
        let local = self.access.local;
        match self.combines() {
            Some((update, true)) if update.operator() == Operator::Nothing => {
                (local.part(0, 0), local)
            }
            Some((_, true)) => {
                (local.part(0, local.len / 2), local.part(local.len / 2, local.len / 2))
            }
            _ => (local, local.part(0, 0)),
        }
    }

    /// How many bytes are moved when it is over.
    pub fn bytes(&self) -> u64 {
        let (source, result) = self.halves();
        source.len.max(result.len)
    }
}

impl Operations {
    pub fn with_limit(limit: usize) -> Operations {
        Operations {
            entries: Vec::new(),
            limit,
            turns: 0,
            accesses: Slots::with_limit(limit),
            bonds: Vec::new(),
            owners: Vec::new(),
        }
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
        let turn = Neighbours::NONE;
        entry.operation =
            Operation { kind, turn, owned: false, cancelled: false, retained: 0, ending: None };
        &mut entry.operation
    }

    #[cold]
    fn grow(&mut self, index: usize) {
        assert!(index < self.limit, "operation numbers stay below the limit");
        self.entries.resize_with(index + 1, || FREE);
    }

    /// Lists an operation with the peer that it is about.
    pub fn own(&mut self, id: OperationId, peer: PeerId) {
        let index = id.0.index as usize;
        let Some(entry) = self.entries.get_mut(index) else { return };
        let before = std::mem::replace(&mut entry.operation.owned, true);
        if before {
            self.release(id.0.index);
        }
        let owner = peer.0.index as usize;
        if index >= self.bonds.len() {
            let nobody = Bond { peer: 0, name: NAMELESS, neighbours: Neighbours::NONE };
            self.bonds.resize(self.entries.len(), nobody);
        }
        if !before {
            self.bonds[index].name = NAMELESS;
        }
        if owner >= self.owners.len() {
            self.owners.resize(owner + 1, List::EMPTY);
        }
        self.bonds[index].peer = peer.0.index;
        self.owners[owner].push_back(&mut self.bonds, id.0.index);
    }

    /// The same for one that is posted under a name of the peer.
    #[inline]
    pub fn own_as(&mut self, id: OperationId, peer: PeerId, name: PeerId) {
        self.own(id, peer);
        if let Some(bond) = self.bonds.get_mut(id.0.index as usize) {
            bond.name = name.0.index;
        }
    }

    /// The index of the name that an operation of a peer was posted under.
    pub fn name_of(&self, id: OperationId) -> Option<u32> {
        self.get(id).filter(|operation| operation.owned)?;
        let name = self.bonds.get(id.0.index as usize)?.name;
        (name != NAMELESS).then_some(name)
    }

    /// The operations with a peer that were posted under this name.
    pub fn posted_under(&mut self, peer: PeerId, name: PeerId) -> Vec<OperationId> {
        let mut found = self.owned_by(peer);
        found.retain(|id| self.name_of(*id) == Some(name.0.index));
        found
    }

    fn release(&mut self, index: u32) {
        let owner = self.bonds[index as usize].peer as usize;
        self.owners[owner].take(&mut self.bonds, index);
    }

    /// The operations about this peer alone, in the order of their posts. Some may be about one that
    /// had its place in the table before.
    pub fn owned_by(&mut self, peer: PeerId) -> Vec<OperationId> {
        let Some(list) = self.owners.get(peer.0.index as usize).copied() else {
            return Vec::new();
        };
        let id = |index: u32| {
            let generation = self.entries[index as usize].generation;
            OperationId(SlotId { index, generation })
        };
        list.collect(&mut self.bonds).into_iter().map(id).collect()
    }

    /// Whether no operation is about this peer alone.
    pub fn is_free(&self, peer: PeerId) -> bool {
        self.owners.get(peer.0.index as usize).is_none_or(List::is_empty)
    }

    /// The first of a queue of waiting operations.
    #[inline]
    pub fn first_of(&self, queue: &List) -> Option<OperationId> {
        let index = queue.first()?;
        let generation = self.entries[index as usize].generation;
        Some(OperationId(SlotId { index, generation }))
    }

    /// Adds an operation at the end of a queue, or at its beginning.
    pub fn enqueue(&mut self, queue: &mut List, id: OperationId) {
        queue.push_back(&mut self.entries, id.0.index);
    }

    pub fn put_back(&mut self, queue: &mut List, id: OperationId) {
        queue.push_front(&mut self.entries, id.0.index);
    }

    /// Takes an operation out of its queue.
    pub fn unqueue(&mut self, queue: &mut List, id: OperationId) {
        queue.take(&mut self.entries, id.0.index);
    }

    /// Bytes of the first sends of a queue.
    pub fn bytes_of(&self, queue: &List) -> u64 {
        let next = |index: &u32| self.entries[*index as usize].operation.turn.next();
        let first = std::iter::successors(queue.first(), next).take(COUNTED_MAX);
        let bytes = |index: u32| match &self.entries[index as usize].operation.kind {
            Kind::Send(state) => state.send.payload.len,
            _ => 0,
        };
        first.fold(0, |sum, index| sum.saturating_add(bytes(index)))
    }

    /// All of a queue, the first one first; panics where it is broken. For tests.
    pub fn queued(&self, queue: &List) -> Vec<OperationId> {
        let mut found = Vec::new();
        let mut at = queue.first();
        while let Some(index) = at {
            let entry = &self.entries[index as usize];
            found.push(OperationId(SlotId { index, generation: entry.generation }));
            at = entry.operation.turn.next();
        }
        let last = found.last().map(|id| id.0.index);
        assert_eq!(queue.last(), last, "the tail of a queue");
        found
    }

    /// Adds a send at the end of its queue, and notes its turn.
    pub fn enqueue_send(&mut self, queue: &mut List, id: OperationId) {
        self.turns += 1;
        let turn = self.turns;
        if let Some(Kind::Send(state)) = self.get_mut(id).map(|operation| &mut operation.kind) {
            state.stage = SendStage::Waiting { turn };
        }
        self.enqueue(queue, id);
    }

    fn turn_of(&self, index: u32) -> u64 {
        match &self.entries[index as usize].operation.kind {
            Kind::Send(SendState { stage: SendStage::Waiting { turn }, .. }) => *turn,
            _ => 0,
        }
    }

    /// Adds all of one queue to another one, in their turns. Gets and puts have none.
    pub fn merge(&mut self, queue: &mut List, other: List) {
        let in_turn = match (queue.last(), other.first()) {
            (Some(last), Some(first)) => self.turn_of(last) <= self.turn_of(first),
            _ => true,
        };
        if in_turn {
            return queue.append(&mut self.entries, other);
        }
        let mut all = queue.collect(&mut self.entries);
        all.extend(other.collect(&mut self.entries));
        all.sort_by_key(|index| self.turn_of(*index));
        *queue = List::EMPTY;
        all.into_iter().for_each(|index| queue.push_back(&mut self.entries, index));
    }

    /// Adds the state of a get or put; it goes with its operation.
    pub fn add_access(&mut self, access: Access, help: Help) -> AccessId {
        let by_frames = access.key.is_named();
        match self.accesses.insert(AccessState {
            access,
            waiting: false,
            streaming: false,
            moved: 0,
            value: 0,
            unnumbered: false,
            by_frames,
            tells_after: false,
            native: None,
            pulled: None,
            help,
        }) {
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

    /// Whether an operation is a get or put itself.
    pub fn is_access(&self, id: OperationId) -> bool {
        self.get(id).is_some_and(|operation| matches!(operation.kind, Kind::Access(_)))
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
        if entry.generation != id.0.generation {
            return;
        }
        entry.generation = 0;
        let owned = entry.operation.owned;
        if let Some(access) = Self::access_id(&entry.operation.kind) {
            self.accesses.discard(access.0);
        }
        if owned {
            self.release(id.0.index);
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
