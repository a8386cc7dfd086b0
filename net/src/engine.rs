//! The engine: the core, its rails and the buffers between them, worked by one thread at a time.

use std::collections::VecDeque;
use std::sync::Arc;

use ropewalk_base::error::Fault;
use ropewalk_base::memory::{BufferId, BufferTable, Memory, Slice};
use ropewalk_base::pool::{Pool, PoolBuffer};
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{Header, LinkId, Ordered, Placement, RemoteKey, Token, Verb};
use ropewalk_core::{
    Access, Audience, Channel, Completion, Core, LOOP_LINK, Level, OperationId, Output, Oversize,
    PeerId, Receive, Send,
};
use ropewalk_rail::address::Address;
use ropewalk_rail::{Rail, Report};
use ropewalk_wire::frame;

use crate::context::{Completed, Queue};
use crate::endpoint::Request;

/// A monotonic clock that threads share.
pub type SharedClock = Arc<dyn Fn() -> Time + std::marker::Send + Sync>;

/// What an operation needs beside what the core knows.
#[derive(Debug)]
struct Slot {
    generation: u32,
    user: u64,
    context: Option<Arc<Queue>>,
    buffer: Option<BufferId>,
}

/// A command of a caller, carried out by whoever holds the engine.
#[derive(Debug)]
pub(crate) struct Post {
    pub what: What,
    pub user: u64,
    pub context: Arc<Queue>,
    pub memory: Memory,
}

#[derive(Debug)]
pub(crate) enum What {
    Send { peer: PeerId, channel: Channel, bits: u64, level: Level },
    Receive { channel: Channel, source: Option<PeerId>, bits: u64, mask: u64, oversize: Oversize },
    Access(Access),
}

#[derive(Debug)]
pub(crate) enum Command {
    Post(OperationId, Post),
    Cancel(OperationId),
    RequestTaken { peer: PeerId, session: u32, bytes: u32 },
}

struct Exposure {
    key: RemoteKey,
    buffer: BufferId,
    /// Where its memory goes when it ended, with the caller's number.
    end: Option<(Arc<Queue>, u64)>,
}

pub(crate) struct Engine {
    pub core: Core,
    pub rails: Vec<Box<dyn Rail>>,
    pub buffers: BufferTable,
    pool: Pool,
    payload_checksum: bool,
    clock: SharedClock,
    slots: Vec<Slot>,
    free: Vec<u32>,
    slots_max: usize,
    exposures: Vec<Option<Exposure>>,
    /// Addresses by the peer's slot, as they were looked up.
    addresses: Vec<Option<(PeerId, Address)>>,
    requests: Arc<std::sync::Mutex<VecDeque<Request>>>,
    request_contexts: Vec<Arc<Queue>>,
    /// The operation that is being posted: its completion goes to the poster.
    posting: Option<OperationId>,
    posted: Option<Completion>,
    pub events: VecDeque<PeerEvent>,
    /// Rails were prepared for a sleep and not told of its end.
    pub armed: bool,
    /// Passes over the rails.
    pub passes: u64,
    /// Passes since the last one that asked for the time and polled every rail.
    short_passes: u32,
}

/// A change in a peer's session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerEvent {
    Up(PeerId),
    Down(PeerId, Fault),
}

/// Passes at a stretch that only look whether a rail might have work. What they may be late for are
/// timers and news of the kernel, so that few of them are enough to make spinning cheap.
const SHORT_PASSES_MAX: u32 = 15;

/// Peer events that are kept for a caller who does not ask for them.
const EVENTS_MAX: usize = 1024;

impl Engine {
    #[expect(clippy::too_many_arguments, reason = "the parts of an endpoint, put together once")]
    pub fn new(
        core: Core,
        rails: Vec<Box<dyn Rail>>,
        buffers: BufferTable,
        pool: Pool,
        payload_checksum: bool,
        clock: SharedClock,
        slots_max: usize,
        requests: Arc<std::sync::Mutex<VecDeque<Request>>>,
    ) -> Engine {
        Engine {
            core,
            rails,
            buffers,
            pool,
            payload_checksum,
            clock,
            slots: Vec::new(),
            free: Vec::new(),
            slots_max,
            exposures: Vec::new(),
            addresses: Vec::new(),
            requests,
            request_contexts: Vec::new(),
            posting: None,
            posted: None,
            events: VecDeque::new(),
            armed: false,
            passes: 0,
            short_passes: SHORT_PASSES_MAX,
        }
    }

    pub fn now(&self) -> Time {
        (self.clock)()
    }

    /// Contexts that want to know of requests.
    pub fn add_request_context(&mut self, queue: Arc<Queue>) {
        self.request_contexts.push(queue);
    }

    /// A free operation number.
    pub fn allocate(&mut self) -> Option<OperationId> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < self.slots_max => {
                let index = self.slots.len() as u32;
                self.slots.push(Slot { generation: 1, user: 0, context: None, buffer: None });
                index
            }
            None => return None,
        };
        let generation = self.slots[index as usize].generation;
        Some(OperationId(SlotId { index, generation }))
    }

    /// Carries out a post. Its completion, where it comes at once, is returned.
    pub fn post(&mut self, id: OperationId, post: Post) -> Option<Completed> {
        self.posting = Some(id);
        let started = self.start(id, post);
        self.drain();
        self.posting = None;
        if let Err((memory, fault)) = started {
            return Some(self.end(refused(id, fault), memory).0);
        }
        let completion = self.posted.take()?;
        let memory = self.take_memory(id);
        Some(self.end(completion, memory).0)
    }

    fn start(&mut self, id: OperationId, post: Post) -> Result<(), (Memory, Fault)> {
        let slot = &mut self.slots[id.0.index as usize];
        debug_assert_eq!(slot.generation, id.0.generation, "a post uses a fresh number");
        slot.user = post.user;
        slot.context = Some(post.context);
        let len = post.memory.len();
        let writable = post.memory.is_writable();
        let needs_write = match &post.what {
            What::Send { .. } => false,
            What::Receive { .. } => true,
            What::Access(access) => access.direction == ropewalk_core::Direction::Get,
        };
        if needs_write && !writable {
            return Err((post.memory, Fault::Invalid));
        }
        let buffer = self.buffers.insert(post.memory).map_err(|memory| (memory, Fault::Busy))?;
        self.slots[id.0.index as usize].buffer = Some(buffer);
        let slice = Slice { buffer, offset: 0, len };
        match post.what {
            What::Send { peer, channel, bits, level } => {
                self.core.post_send(id, Send { peer, channel, bits, payload: slice, level });
            }
            What::Receive { channel, source, bits, mask, oversize } => {
                let receive = Receive { channel, source, bits, mask, into: slice, oversize };
                self.core.post_receive(id, receive);
            }
            What::Access(mut access) => {
                access.local = slice;
                self.core.post_access(id, access);
            }
        }
        Ok(())
    }

    /// Carries out a command that was left for the holder of the engine.
    pub fn command(&mut self, command: Command) {
        match command {
            Command::Post(id, post) => {
                if let Err((memory, fault)) = self.start(id, post) {
                    self.deliver(refused(id, fault), memory);
                }
            }
            Command::Cancel(id) => {
                self.core.cancel(id);
            }
            Command::RequestTaken { peer, session, bytes } => {
                self.core.request_taken(peer, session, bytes);
            }
        }
        self.drain();
    }

    /// Makes memory accessible to peers.
    pub fn expose(
        &mut self,
        memory: Memory,
        writable: bool,
        audience: Audience,
    ) -> Result<RemoteKey, (Memory, Fault)> {
        if writable && !memory.is_writable() {
            return Err((memory, Fault::Invalid));
        }
        let len = memory.len();
        let buffer = self.buffers.insert(memory).map_err(|memory| (memory, Fault::Busy))?;
        let slice = Slice { buffer, offset: 0, len };
        match self.core.expose(slice, writable, audience) {
            Ok(key) => {
                let index = key.slot.index as usize;
                if self.exposures.len() <= index {
                    self.exposures.resize_with(index + 1, || None);
                }
                self.exposures[index] = Some(Exposure { key, buffer, end: None });
                self.drain();
                Ok(key)
            }
            Err(fault) => {
                let memory = self.buffers.remove(buffer).unwrap_or_else(Memory::empty);
                Err((memory, fault))
            }
        }
    }

    /// Ends an exposure; its memory comes back through `queue` with `user`.
    pub fn unexpose(&mut self, key: RemoteKey, queue: Arc<Queue>, user: u64) -> Result<(), Fault> {
        match self.exposures.get_mut(key.slot.index as usize) {
            Some(Some(exposure)) if exposure.key == key && exposure.end.is_none() => {
                exposure.end = Some((queue, user));
            }
            _ => return Err(Fault::BadKey),
        }
        let result = self.core.unexpose(key);
        self.drain();
        result
    }

    fn unexposed(&mut self, key: RemoteKey) {
        let Some(entry) = self.exposures.get_mut(key.slot.index as usize) else { return };
        if entry.as_ref().is_none_or(|exposure| exposure.key != key) {
            return;
        }
        let Some(exposure) = entry.take() else { return };
        let memory = self.buffers.remove(exposure.buffer).unwrap_or_else(Memory::empty);
        if let Some((queue, user)) = exposure.end {
            let bytes = memory.len();
            queue.push(Completed {
                operation: OperationId(key.slot),
                user,
                outcome: Ok(()),
                bytes,
                message_bytes: bytes,
                peer: None,
                bits: 0,
                memory,
            });
        }
    }

    /// A peer for these addresses.
    pub fn add_peer(&mut self, address: Address) -> Result<PeerId, Fault> {
        let peer = self.core.add_peer(true)?;
        let index = peer.0.index as usize;
        if self.addresses.len() <= index {
            self.addresses.resize_with(index + 1, || None);
        }
        self.addresses[index] = Some((peer, address));
        Ok(peer)
    }

    /// One pass: time, rails, what they bring about. True where anything happened.
    pub fn progress(&mut self) -> bool {
        self.passes += 1;
        if self.short_passes < SHORT_PASSES_MAX
            && !self.core.has_outputs()
            && !self.rails.iter().any(|rail| rail.may_have_work())
        {
            self.short_passes += 1;
            return false;
        }
        self.short_passes = 0;
        let now = self.now();
        self.core.advance(now);
        let mut any = self.drain();
        for index in 0..self.rails.len() {
            let Engine { core, rails, buffers, pool, .. } = self;
            let mut upper = Upper { core, buffers, pool };
            if rails[index].poll(now, &mut upper) {
                any = true;
                self.drain();
            }
        }
        any
    }

    /// When a pass has to be made at the latest.
    pub fn deadline(&self) -> Option<Time> {
        self.rails.iter().filter_map(|rail| rail.deadline()).chain(self.core.deadline()).min()
    }

    /// Prepares the rails for sleep; false where there is work. Rails that were armed are armed afresh:
    /// a peer rings once for each arming, and that bell may have been heard already.
    pub fn arm(&mut self) -> bool {
        if self.armed {
            self.disarm();
        }
        self.armed = true;
        for index in 0..self.rails.len() {
            if !self.rails[index].arm() {
                self.disarm();
                return false;
            }
        }
        true
    }

    pub fn disarm(&mut self) {
        self.armed = false;
        // After a sleep the time matters.
        self.short_passes = SHORT_PASSES_MAX;
        self.rails.iter_mut().for_each(|rail| rail.disarm());
    }

    /// Does what the core wants done, in order. True where there was anything.
    pub fn drain(&mut self) -> bool {
        let mut any = false;
        while let Some(output) = self.core.next_output() {
            any = true;
            match output {
                Output::Verb(verb) => self.order(verb),
                Output::Copy { from, to } => {
                    self.buffers.copy(from, to);
                }
                Output::Release(buffer) => drop(self.buffers.remove(buffer)),
                Output::Completed(completion) => self.completed(completion),
                Output::Request { peer, session, bits, payload } => {
                    self.request(peer, session, bits, payload);
                }
                Output::Connect { peer, attempt } => self.connect(peer, attempt),
                Output::Upgrade { peer, link } => self.upgrade(peer, link),
                Output::PeerUp { peer } => self.event(PeerEvent::Up(peer)),
                Output::PeerDown { peer, fault } => self.event(PeerEvent::Down(peer, fault)),
                Output::Aliased { .. } => {}
                Output::Unexposed { key } => self.unexposed(key),
            }
        }
        any
    }

    fn event(&mut self, event: PeerEvent) {
        if self.events.len() >= EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    fn order(&mut self, verb: Verb) {
        let mut verb = verb;
        if let Verb::Frame { link: LOOP_LINK, header, payload, token, .. } = &verb {
            return self.loop_frame(header, *payload, *token);
        }
        if matches!(verb, Verb::Close { link: LOOP_LINK }) {
            return self.core.link_down(LOOP_LINK, Fault::Closed);
        }
        let (link, token) = match &mut verb {
            Verb::Frame { link, header, payload, token, .. } => {
                if self.core.needs_checksum(*link) {
                    let checked = self.payload_checksum && payload.len > 0;
                    let checksum = checked.then(|| self.buffers.crc32c(*payload));
                    frame::seal(header, checksum);
                }
                (*link, *token)
            }
            Verb::Read { link, token, .. } | Verb::Write { link, token, .. } => (*link, *token),
            Verb::Expose { link, .. } | Verb::Close { link } => (*link, Token::NONE),
            Verb::Revoke { link, key } => {
                let (link, key) = (*link, *key);
                // Whatever the rail answers, only its report says that nobody holds the region.
                let answer = self.rails[usize::from(link.rail)].order(verb, &self.buffers);
                if matches!(answer, Ordered::Refused(_)) {
                    self.core.revoked(link, key);
                }
                return;
            }
        };
        let answer = self.rails[usize::from(link.rail)].order(verb, &self.buffers);
        self.core.ordered(token, answer);
    }

    /// A frame from this endpoint to itself: placed like any other, and copied.
    fn loop_frame(&mut self, header: &Header, payload: Slice, token: Token) {
        let Engine { core, buffers, pool, .. } = self;
        let mut upper = Upper { core, buffers, pool };
        match upper.place(LOOP_LINK, header.as_bytes(), payload.len as u32) {
            Placement::Into { slice, token } => {
                upper.buffers.copy(payload, slice);
                upper.landed(LOOP_LINK, token);
            }
            Placement::Drop => {}
            Placement::Stage { .. } => unreachable!("turned into a place by `Upper`"),
            Placement::Violation(_) => self.core.link_down(LOOP_LINK, Fault::Protocol),
        }
        self.core.ordered(token, Ordered::Released);
    }

    fn completed(&mut self, completion: Completion) {
        if self.posting == Some(completion.operation) {
            // The poster takes it from here, with its memory: both are large.
            self.posted = Some(completion);
            return;
        }
        let memory = self.take_memory(completion.operation);
        self.deliver(completion, memory);
    }

    #[inline]
    fn take_memory(&mut self, id: OperationId) -> Memory {
        let buffer = self.slots[id.0.index as usize].buffer.take();
        buffer.and_then(|buffer| self.buffers.remove(buffer)).unwrap_or_else(Memory::empty)
    }

    fn deliver(&mut self, completion: Completion, memory: Memory) {
        let (completed, context) = self.end(completion, memory);
        if let Some(context) = context {
            context.push(completed);
        }
    }

    /// Frees an operation's number.
    #[inline]
    fn end(&mut self, completion: Completion, memory: Memory) -> (Completed, Option<Arc<Queue>>) {
        let index = completion.operation.0.index;
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1).max(1);
        self.free.push(index);
        let completed = Completed {
            operation: completion.operation,
            user: slot.user,
            outcome: completion.outcome,
            bytes: completion.bytes,
            message_bytes: completion.message_bytes,
            peer: completion.peer,
            bits: completion.bits,
            memory,
        };
        (completed, slot.context.take())
    }

    fn request(&mut self, peer: PeerId, session: u32, bits: u64, payload: Option<(BufferId, u32)>) {
        let bytes = payload.map_or(0, |(_, bytes)| bytes);
        let payload: Option<PoolBuffer> = payload
            .and_then(|(buffer, _)| self.buffers.remove(buffer))
            .and_then(Memory::into_pooled);
        let request = Request { peer, session, bits, payload, bytes };
        self.requests
            .lock()
            .expect("the request queue is never left half-changed")
            .push_back(request);
        for context in &self.request_contexts {
            context.ring();
        }
    }

    /// Tries addresses from this attempt on, until one can at least be tried.
    fn connect(&mut self, peer: PeerId, attempt: u32) {
        let now = self.now();
        let known = self.addresses.get(peer.0.index as usize).and_then(|entry| entry.as_ref());
        let address = match known {
            Some((known, address)) if *known == peer => Some(address.clone()),
            _ => self.told_address(peer),
        };
        let parts: Vec<(String, String)> = address
            .iter()
            .flat_map(|address| address.parts())
            .map(|(scheme, rest)| (scheme.to_string(), rest.to_string()))
            .collect();
        for (scheme, rest) in parts.iter().skip(attempt as usize) {
            let rail = self.rails.iter_mut().find(|rail| rail.scheme() == scheme);
            if let Some(Ok(link)) = rail.map(|rail| rail.connect(rest, now)) {
                return self.core.connecting(peer, link);
            }
        }
        self.core.unreachable(peer);
    }

    fn told_address(&self, peer: PeerId) -> Option<Address> {
        let text = std::str::from_utf8(self.core.peer_addresses(peer)).ok()?;
        Address::parse(text).ok()
    }

    fn upgrade(&mut self, peer: PeerId, link: LinkId) {
        let now = self.now();
        if let Some(address) = self.told_address(peer) {
            for (scheme, rest) in address.parts() {
                let rail = self
                    .rails
                    .iter_mut()
                    .find(|rail| rail.scheme() == scheme && rail.capabilities().same_host_only);
                if let Some(Ok(better)) = rail.map(|rail| rail.connect(rest, now)) {
                    return self.core.connecting_upgrade(peer, better);
                }
            }
        }
        self.core.no_upgrade(peer, link);
    }
}

/// The end of an operation that did not begin.
fn refused(operation: OperationId, fault: Fault) -> Completion {
    Completion { operation, outcome: Err(fault), bytes: 0, message_bytes: 0, peer: None, bits: 0 }
}

/// What a rail sees of the engine while it is polled.
struct Upper<'a> {
    core: &'a mut Core,
    buffers: &'a mut BufferTable,
    pool: &'a Pool,
}

impl Report for Upper<'_> {
    fn buffers(&self) -> &BufferTable {
        self.buffers
    }

    fn link_up(&mut self, link: LinkId, accepted: bool) {
        self.core.link_up(link, accepted);
    }

    fn link_down(&mut self, link: LinkId, fault: Fault) {
        self.core.link_down(link, fault);
    }

    fn place(&mut self, link: LinkId, header: &[u8], payload_bytes: u32) -> Placement {
        if self.core.needs_checksum(link) && !frame::verify(header) {
            return self.core.corrupt_header(link);
        }
        match self.core.place(link, header, payload_bytes) {
            Placement::Stage { bytes, token } => {
                let Some(buffer) = self.pool.take(bytes as usize) else {
                    return self.core.unstaged(token);
                };
                match self.buffers.insert(Memory::pooled(buffer)) {
                    Ok(id) => Placement::Into { slice: self.core.staged(token, id, bytes), token },
                    Err(_) => self.core.unstaged(token),
                }
            }
            placement => placement,
        }
    }

    fn landed(&mut self, _link: LinkId, token: Token) {
        let Some(wants) = self.core.wants(token) else { return self.core.landed(token, &[]) };
        if wants.checksum.is_some_and(|checksum| self.buffers.crc32c(wants.slice) != checksum) {
            return self.core.landed_corrupt(token);
        }
        let mut bytes = vec![0; if wants.greeting { wants.slice.len as usize } else { 0 }];
        self.buffers.read(wants.slice, &mut bytes);
        self.core.landed(token, &bytes);
    }

    fn done(&mut self, token: Token) {
        self.core.done(token);
    }

    fn failed(&mut self, token: Token, fault: Fault) {
        self.core.failed(token, fault);
    }

    fn revoked(&mut self, link: LinkId, key: RemoteKey) {
        self.core.revoked(link, key);
    }
}
