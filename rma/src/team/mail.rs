//! Messages between the ranks of a team, over tagged messages of the endpoint.
//!
//! Each rank keeps receives posted for each other one, by source and by all bits. Messages of one rank come out in the order
//! in which they were sent. Long data go in messages of their own, each with a number, for which a receive is posted by
//! number.
//!
//! Invariants:
//! * nobody's messages take more memory here than [`RECEIVES`] buffers: another one is posted when a message was executed;
//! * what was sent, and what data are received into, comes back in an event, also where a rank is lost.

use std::collections::VecDeque;

use ropewalk_base::memory::{Memory, Slice};
use ropewalk_base::pool::{Pool, PoolBuffer};
use ropewalk_base::slots::{SlotId, Slots};
use ropewalk_base::verb::{RemoteKey, RemoteLayout};
use ropewalk_net::{
    Access, Action, Channel, Completed, Context, Endpoint, Fault, LateRefusal, Level, OperationId,
    Oversize, PeerId, Posted, Terms,
};

use crate::direct::state::What;

/// Bytes of a message at most.
pub(crate) const MESSAGE_BYTES: usize = 64 << 10;
/// Receives that are posted for the messages of each rank.
const RECEIVES: usize = 4;
/// Sends to one rank that are under way at a time.
const SENDS: usize = 64;
/// Operations under way, at most.
const POSTED_MAX: usize = 1 << 20;
/// Bits of a message: the team in the upper 16, then what it is, then its number.
const KIND_SHIFT: u32 = 40;
const NUMBER_MASK: u64 = (1 << KIND_SHIFT) - 1;
const MESSAGE: u64 = 1;

/// Marks the user's numbers of remote accesses, whose ends come out as events: the slots of messages stay below.
pub(crate) const REMOTE: u64 = 1 << 31;

/// What a message of its own carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Kind {
    /// Data of an origin.
    Data = 2,
    /// A result of a target.
    Answer = 3,
}

/// Something happened.
#[derive(Debug)]
pub(crate) enum Event {
    /// A message, the next one of its rank; the buffer is as long.
    Message { rank: u32, buffer: PoolBuffer },
    /// Data came, or will not come.
    Received { token: u64, outcome: Result<u64, Fault>, memory: Memory },
    /// The memory of data may be used again.
    Sent { token: u64 },
    /// The rank is lost.
    Gone { rank: u32, fault: Fault },
    /// It sent a message longer than any of ours.
    TooLong { rank: u32 },
    /// A remote access, or something like that, is over.
    Remote(Completed),
}

#[derive(Debug)]
enum Posting {
    Message { rank: u32 },
    Send { rank: u32, token: Option<u64>, operation: Option<OperationId> },
    Receive { rank: u32, token: u64, operation: Option<OperationId> },
}

/// A receive for a message: its number, and the message once it is here.
#[derive(Debug)]
struct Arrival {
    id: SlotId,
    operation: Option<OperationId>,
    buffer: Option<PoolBuffer>,
}

#[derive(Debug)]
struct Outgoing {
    bits: u64,
    memory: Memory,
    token: Option<u64>,
}

#[derive(Debug)]
struct Lane {
    peer: PeerId,
    receives: VecDeque<Arrival>,
    outbox: VecDeque<Outgoing>,
    under_way: usize,
    gone: Option<Fault>,
}

/// The messages of one rank.
pub(crate) struct Mail {
    endpoint: Endpoint,
    context: Context,
    pool: Pool,
    rank: u32,
    tag: u64,
    lanes: Vec<Lane>,
    posted: Slots<Posting>,
    events: VecDeque<Event>,
    /// Messages in all outboxes.
    queued: usize,
}

impl Mail {
    /// For this rank among peers. The upper 16 bits of `tag` name the team's messages.
    pub fn open(
        endpoint: &Endpoint,
        context: &Context,
        rank: u32,
        peers: Vec<PeerId>,
        tag: u64,
    ) -> Mail {
        let lane = |peer| {
            let (receives, outbox) = (VecDeque::new(), VecDeque::new());
            Lane { peer, receives, outbox, under_way: 0, gone: None }
        };
        let mut mail = Mail {
            endpoint: endpoint.clone(),
            context: context.clone(),
            pool: Pool::with_budget(usize::MAX / 2),
            rank,
            tag: tag & !(u64::MAX >> 16),
            lanes: peers.into_iter().map(lane).collect(),
            posted: Slots::with_limit(POSTED_MAX),
            events: VecDeque::new(),
            queued: 0,
        };
        for rank in (0..mail.lanes.len() as u32).filter(|other| *other != rank) {
            (0..RECEIVES).for_each(|_| mail.await_message(rank));
        }
        mail
    }

    /// A buffer for bytes that will be sent, or were received.
    pub fn buffer(&self, bytes: usize) -> PoolBuffer {
        self.pool.take(bytes).expect("the budget is more than memory has")
    }

    fn await_message(&mut self, rank: u32) {
        let buffer = self.buffer(MESSAGE_BYTES);
        let (bits, posting) = (self.tag | MESSAGE << KIND_SHIFT, Posting::Message { rank });
        let Ok(id) = self.posted.insert(posting) else { return self.lose(rank, Fault::Busy) };
        let lane = &mut self.lanes[rank as usize];
        lane.receives.push_back(Arrival { id, operation: None, buffer: None });
        self.post_receive(rank, bits, Memory::pooled(buffer), id);
    }

    fn post_receive(&mut self, rank: u32, bits: u64, memory: Memory, id: SlotId) {
        let (channel, source) = (Channel::Tagged, Some(self.lanes[rank as usize].peer));
        let (cut, user) = (Oversize::Truncate, id.to_u64());
        let context = &self.context;
        let posted =
            self.endpoint.post_receive(context, channel, source, bits, u64::MAX, memory, cut, user);
        match posted {
            Ok(Posted::Done(completed)) => self.complete(completed),
            Ok(Posted::Pending(operation)) => {
                let receives = &mut self.lanes[rank as usize].receives;
                if let Some(arrival) = receives.iter_mut().find(|it| it.id == id) {
                    arrival.operation = Some(operation);
                }
                self.note_operation(id, operation);
            }
            Err((memory, fault)) => self.end(id, Err(fault), memory),
        }
    }

    fn note_operation(&mut self, id: SlotId, of: OperationId) {
        if let Some(Posting::Send { operation, .. } | Posting::Receive { operation, .. }) =
            self.posted.get_mut(id)
        {
            *operation = Some(of);
        }
    }

    /// A message was executed: the next one may come.
    pub fn await_next(&mut self, rank: u32) {
        if rank != self.rank && self.lanes[rank as usize].gone.is_none() {
            self.await_message(rank);
        }
    }

    /// Sends a message of at most [`MESSAGE_BYTES`].
    pub fn send(&mut self, rank: u32, buffer: PoolBuffer) {
        if rank == self.rank {
            return self.events.push_back(Event::Message { rank, buffer });
        }
        let bits = self.tag | MESSAGE << KIND_SHIFT;
        self.post(rank, Outgoing { bits, memory: Memory::pooled(buffer), token: None });
    }

    /// Sends data in a message of their own.
    pub fn send_apart(&mut self, rank: u32, kind: Kind, number: u64, memory: Memory, token: u64) {
        let bits = self.bits(kind, number);
        self.post(rank, Outgoing { bits, memory, token: Some(token) });
    }

    /// Receives such data.
    pub fn receive(&mut self, rank: u32, kind: Kind, number: u64, memory: Memory, token: u64) {
        let bits = self.bits(kind, number);
        match self.posted.insert(Posting::Receive { rank, token, operation: None }) {
            Ok(id) => self.post_receive(rank, bits, memory, id),
            Err(_) => {
                let outcome = Err(Fault::Busy);
                self.events.push_back(Event::Received { token, outcome, memory });
            }
        }
    }

    fn bits(&self, kind: Kind, number: u64) -> u64 {
        self.tag | (kind as u64) << KIND_SHIFT | number & NUMBER_MASK
    }

    fn post(&mut self, rank: u32, outgoing: Outgoing) {
        self.lanes[rank as usize].outbox.push_back(outgoing);
        self.queued += 1;
        self.push(rank);
    }

    /// Posts what waits to be sent to a rank, as much as may be under way.
    fn push(&mut self, rank: u32) {
        loop {
            let lane = &mut self.lanes[rank as usize];
            if lane.under_way >= SENDS || self.posted.is_full() {
                return;
            }
            let Some(Outgoing { bits, memory, token }) = lane.outbox.pop_front() else { return };
            self.queued -= 1;
            if lane.gone.is_some() {
                self.events.extend(token.map(|token| Event::Sent { token }));
                continue;
            }
            let peer = lane.peer;
            let Ok(id) = self.posted.insert(Posting::Send { rank, token, operation: None }) else {
                return;
            };
            let (channel, level, user) = (Channel::Tagged, Level::Buffered, id.to_u64());
            lane.under_way += 1;
            let context = &self.context;
            match self.endpoint.post_send(context, peer, channel, bits, memory, level, user) {
                Ok(Posted::Done(completed)) => self.complete(completed),
                Ok(Posted::Pending(operation)) => self.note_operation(id, operation),
                Err((memory, Fault::Busy)) => {
                    self.posted.remove(id);
                    let lane = &mut self.lanes[rank as usize];
                    lane.under_way -= 1;
                    lane.outbox.push_front(Outgoing { bits, memory, token });
                    self.queued += 1;
                    return;
                }
                Err((memory, fault)) => self.end(id, Err(fault), memory),
            }
        }
    }

    /// Takes what is complete; first after a pass over the rails, where that is nothing. True: there was something.
    pub fn poll(&mut self, is_first: bool) -> bool {
        let mut next = match is_first {
            true => self.endpoint.test(&self.context),
            false => self.endpoint.take(&self.context),
        };
        while let Some(completed) = next {
            self.complete(completed);
            next = self.endpoint.take(&self.context);
        }
        if self.queued > 0 {
            (0..self.lanes.len() as u32).for_each(|rank| self.push(rank));
        }
        self.has_news()
    }

    /// Whether an event waits.
    pub fn has_news(&self) -> bool {
        !self.events.is_empty()
    }

    /// The next event.
    pub fn next(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn complete(&mut self, completed: Completed) {
        if completed.user & REMOTE != 0 {
            return self.events.push_back(Event::Remote(completed));
        }
        let outcome = completed.outcome.map(|()| completed.bytes);
        self.end(SlotId::from_u64(completed.user), outcome, completed.memory);
    }

    fn end(&mut self, id: SlotId, outcome: Result<u64, Fault>, memory: Memory) {
        match self.posted.remove(id) {
            Some(Posting::Message { rank }) => self.arrived(rank, id, outcome, memory),
            Some(Posting::Send { rank, token, .. }) => {
                self.lanes[rank as usize].under_way -= 1;
                self.events.extend(token.map(|token| Event::Sent { token }));
                if let Err(fault) = outcome {
                    self.lose(rank, fault);
                }
            }
            Some(Posting::Receive { token, .. }) => {
                self.events.push_back(Event::Received { token, outcome, memory });
            }
            None => {}
        }
    }

    /// A message came for one of the receives; it comes out when those before it have.
    fn arrived(&mut self, rank: u32, id: SlotId, outcome: Result<u64, Fault>, memory: Memory) {
        let lane = &mut self.lanes[rank as usize];
        let Some(at) = lane.receives.iter().position(|it| it.id == id) else { return };
        let bytes = match outcome {
            Ok(bytes) => bytes as usize,
            Err(fault) => {
                lane.receives.remove(at);
                if fault == Fault::Truncated {
                    return self.events.push_back(Event::TooLong { rank });
                }
                return self.lose(rank, fault);
            }
        };
        let mut buffer = memory.into_pooled().expect("messages are received into pool buffers");
        buffer.set_len(bytes);
        lane.receives[at].buffer = Some(buffer);
        while let Some(buffer) = lane.receives.front_mut().and_then(|it| it.buffer.take()) {
            lane.receives.pop_front();
            self.events.push_back(Event::Message { rank, buffer });
        }
    }

    /// A rank is lost: what waits for it ends.
    fn lose(&mut self, rank: u32, fault: Fault) {
        if self.silence(rank, fault) {
            self.events.push_back(Event::Gone { rank, fault });
        }
    }

    /// From now on nothing is sent to a rank, nor received from it. False: so it was.
    pub fn silence(&mut self, rank: u32, fault: Fault) -> bool {
        let lane = &mut self.lanes[rank as usize];
        if lane.gone.replace(fault).is_some() {
            return false;
        }
        let receives = std::mem::take(&mut lane.receives);
        receives.iter().filter_map(|it| it.operation).for_each(|it| self.endpoint.cancel(it));
        // Data must not come to memory that nobody offers any more, nor go from there. What is sent at the end may go.
        let of_data = |posting: &Posting| match *posting {
            Posting::Receive { rank: of, operation, .. } if of == rank => operation,
            Posting::Send { rank: of, token: Some(_), operation }
                if of == rank && fault != Fault::Closed =>
            {
                operation
            }
            _ => None,
        };
        let ended: Vec<OperationId> =
            self.posted.iter().filter_map(|(_, posting)| of_data(posting)).collect();
        ended.into_iter().for_each(|it| self.endpoint.cancel(it));
        self.push(rank);
        true
    }

    /// The endpoint.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Posts an access of a rank's memory.
    pub fn post_remote(
        &self,
        rank: u32,
        key: RemoteKey,
        (what, terms): (What, Terms),
        memory: Memory,
        user: u64,
    ) -> Result<Posted, (Memory, Fault)> {
        let (action, remote) = match what {
            What::Access(way, remote) => (way.into(), remote),
            What::Update { remote, update, fetch } => (Action::Update { update, fetch }, remote),
            What::Records => (Action::Records, RemoteLayout::At(0)),
            What::Notify { at, raise, applied } => {
                (Action::Notify { raise, applied }, RemoteLayout::At(at))
            }
            What::Atomic { at, atomic } => (Action::Atomic(atomic), RemoteLayout::At(at)),
            What::Reduce(reduction) => unreachable!("{reduction:?} is done here"),
        };
        let peer = self.peer(rank);
        let access = Access { action, peer, key, remote, local: Slice::NONE, terms };
        self.endpoint.post_one_sided(&self.context, access, memory, user)
    }

    /// The next operation that its target refused after it was complete here.
    pub fn next_refusal(&self) -> Option<LateRefusal> {
        self.endpoint.next_refusal(&self.context)
    }

    /// Whether a rank has told of all operations that it may refuse later.
    pub fn has_told(&self, rank: u32) -> bool {
        self.endpoint.has_told(self.peer(rank))
    }

    /// Asks for the lock of a rank's region.
    pub fn ask_for_lock(
        &self,
        rank: u32,
        key: RemoteKey,
        exclusive: bool,
        user: u64,
    ) -> Result<Posted, Fault> {
        self.endpoint.post_lock(&self.context, self.peer(rank), key, exclusive, user)
    }

    /// Puts under that lock, to a byte of the region.
    pub fn put_under_lock(
        &self,
        rank: u32,
        key: RemoteKey,
        (at, exclusive): (u64, bool),
        memory: Memory,
        user: u64,
    ) -> Result<Posted, (Memory, Fault)> {
        let (endpoint, peer) = (&self.endpoint, self.peer(rank));
        endpoint.post_locked_put(&self.context, peer, key, at, exclusive, memory, user)
    }

    /// Gives it back.
    pub fn release_lock(
        &self,
        rank: u32,
        key: RemoteKey,
        lock: OperationId,
        user: u64,
    ) -> Result<Posted, Fault> {
        self.endpoint.post_unlock(&self.context, self.peer(rank), key, lock, user)
    }

    /// Ends the exposure of memory of ours.
    pub fn unexpose(&self, key: RemoteKey, user: u64) -> Result<(), Fault> {
        self.endpoint.unexpose(key, &self.context, user)
    }

    fn peer(&self, rank: u32) -> PeerId {
        self.lanes[rank as usize].peer
    }

    /// Whether something waits to leave.
    pub fn owes(&self) -> bool {
        self.queued > 0 || self.lanes.iter().any(|lane| lane.under_way > 0)
    }

    /// Takes all receives back.
    pub fn close(&mut self) {
        for rank in 0..self.lanes.len() as u32 {
            self.silence(rank, Fault::Closed);
        }
        self.endpoint.retire(&self.context);
    }
}
