//! The life of an operation within the engine: a number and a place for its memory when it is posted, its completion
//! to the waiting caller at the end.
//!
//! Invariant: a memory stays in the table from its post to the moment where its completion is handed
//! over, and moves once each way.

use ropewalk_base::error::Fault;
use ropewalk_base::memory::{BufferId, Memory, Slice};
use ropewalk_base::slots::SlotId;
use ropewalk_core::{
    Access, Channel, Completion, Core, Direction, Level, OperationId, Oversize, PeerId, Receive,
    Send,
};

use crate::context::Completed;
use crate::endpoint::Posted;
use crate::engine::Engine;

/// The state of an operation beside its state in the core.
#[derive(Debug)]
pub(crate) struct Slot {
    generation: u32,
    /// The number of the context that it completes to.
    context: u32,
    user: u64,
    buffer: BufferId,
}

impl Slot {
    /// Whether the operation of this number is under way.
    pub fn is_used_by(&self, id: OperationId) -> bool {
        self.generation == id.0.generation && self.buffer != Slice::NONE.buffer
    }

    /// The number of the context that it completes to.
    pub fn context(&self) -> u32 {
        self.context
    }

    /// The buffer of its memory.
    pub fn buffer(&self) -> BufferId {
        self.buffer
    }
}

/// The caller that holds the engine and waits for an answer. One completion goes to it directly, without its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    Nobody,
    /// The operation is being posted.
    Posts(OperationId),
    /// The next completion of the context with this number is wanted.
    Tests(u32),
    /// It has its answer.
    Answered,
}

pub(crate) const NO_ANSWER: Completion = Completion {
    operation: OperationId(SlotId { index: 0, generation: 0 }),
    outcome: Ok(()),
    bytes: 0,
    message_bytes: 0,
    peer: None,
    bits: 0,
};

/// A posted operation, without its memory.
pub(crate) trait What {
    /// Whether its memory is written to.
    fn writes(&self) -> bool;
    /// Gives it to the core.
    fn start(self, core: &mut Core, id: OperationId, slice: Slice);
    /// The message that it is, which may leave at once.
    fn message(&self, _payload: Slice) -> Option<Send> {
        None
    }
    /// As a value that can be left for another thread.
    fn left(self) -> Left;
}

#[derive(Debug)]
pub(crate) struct SendPost {
    pub peer: PeerId,
    pub channel: Channel,
    pub bits: u64,
    pub level: Level,
}

#[derive(Debug)]
pub(crate) struct ReceivePost {
    pub channel: Channel,
    pub source: Option<PeerId>,
    pub bits: u64,
    pub mask: u64,
    pub oversize: Oversize,
}

impl SendPost {
    #[inline(always)]
    fn send(&self, payload: Slice) -> Send {
        let SendPost { peer, channel, bits, level } = *self;
        Send { peer, channel, bits, payload, level }
    }
}

impl What for SendPost {
    #[inline(always)]
    fn writes(&self) -> bool {
        false
    }
    #[inline(always)]
    fn start(self, core: &mut Core, id: OperationId, payload: Slice) {
        core.post_send(id, self.send(payload));
    }
    #[inline(always)]
    fn message(&self, payload: Slice) -> Option<Send> {
        Some(self.send(payload))
    }
    fn left(self) -> Left {
        Left::Send(self)
    }
}

impl What for ReceivePost {
    #[inline(always)]
    fn writes(&self) -> bool {
        true
    }
    #[inline(always)]
    fn start(self, core: &mut Core, id: OperationId, into: Slice) {
        let ReceivePost { channel, source, bits, mask, oversize } = self;
        core.post_receive(id, Receive { channel, source, bits, mask, into, oversize });
    }
    fn left(self) -> Left {
        Left::Receive(self)
    }
}

impl What for Access {
    fn writes(&self) -> bool {
        self.direction == Direction::Get
    }
    fn start(mut self, core: &mut Core, id: OperationId, local: Slice) {
        self.local = local;
        core.post_access(id, self);
    }
    fn left(self) -> Left {
        Left::Access(self)
    }
}

/// A post that found the engine taken.
#[derive(Debug)]
pub(crate) struct Post {
    pub what: Left,
    pub user: u64,
    pub context: u32,
    pub memory: Memory,
}

#[derive(Debug)]
pub(crate) enum Left {
    Send(SendPost),
    Receive(ReceivePost),
    Access(Access),
}

impl Engine {
    /// A free operation number.
    #[inline]
    pub fn allocate(&mut self) -> Option<OperationId> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.grow()?,
        };
        let generation = self.slots[index as usize].generation;
        Some(OperationId(SlotId { index, generation }))
    }

    #[cold]
    fn grow(&mut self) -> Option<u32> {
        let index = self.slots.len();
        (index < self.slots_max).then(|| {
            let buffer = Slice::NONE.buffer;
            self.slots.push(Slot { generation: 1, context: 0, user: 0, buffer });
            index as u32
        })
    }

    /// Carries out a post, where a number is free.
    #[inline(always)]
    pub fn post(
        &mut self,
        context: u32,
        what: impl What,
        memory: Memory,
        user: u64,
    ) -> Result<Posted, Memory> {
        let Some(id) = self.allocate() else { return Err(memory) };
        let (slice, legal) = self.keep(id, what.writes(), memory, context, user);
        if let Some(mut send) = what.message(slice)
            && self.core.send_inline(id, &mut send)
        {
            let answer = self.hand_over_inline();
            if self.core.inline_sent(id, send, answer) {
                // Frames that left before it may have broken another link.
                self.drain();
                return Ok(Posted::Done(self.end(&Completion {
                    operation: id,
                    outcome: Ok(()),
                    bytes: slice.len,
                    message_bytes: slice.len,
                    peer: Some(send.peer),
                    bits: send.bits,
                })));
            }
        } else {
            self.start(id, what, slice, legal);
        }
        self.caller = Caller::Posts(id);
        self.drain();
        if self.is_answered() {
            return Ok(Posted::Done(self.take_answer()));
        }
        self.dismiss();
        Ok(Posted::Pending(id))
    }

    /// Takes the memory of an operation in: where it lies, and whether the operation may have it.
    #[inline(always)]
    fn keep(
        &mut self,
        id: OperationId,
        writes: bool,
        memory: Memory,
        context: u32,
        user: u64,
    ) -> (Slice, bool) {
        let (len, legal) = (memory.len(), !writes || memory.is_writable());
        let slot = &mut self.slots[id.0.index as usize];
        debug_assert_eq!(slot.generation, id.0.generation, "a post uses a fresh number");
        slot.user = user;
        slot.context = context;
        slot.buffer = match self.buffers.insert(memory) {
            Ok(buffer) => buffer,
            Err(_) => unreachable!("the table has room for all operations, regions and stagings"),
        };
        (Slice { buffer: slot.buffer, offset: 0, len }, legal)
    }

    #[inline(always)]
    fn start(&mut self, id: OperationId, what: impl What, slice: Slice, legal: bool) {
        if legal {
            what.start(&mut self.core, id, slice);
        } else {
            self.core.refuse_post(id, Fault::Invalid);
        }
    }

    /// Carries out a post that was left by another thread.
    pub fn start_left(&mut self, id: OperationId, post: Post) {
        let Post { what, user, context, memory } = post;
        match what {
            Left::Send(what) => self.start_kept(id, what, memory, context, user),
            Left::Receive(what) => self.start_kept(id, what, memory, context, user),
            Left::Access(what) => self.start_kept(id, what, memory, context, user),
        }
    }

    fn start_kept(
        &mut self,
        id: OperationId,
        what: impl What,
        memory: Memory,
        context: u32,
        user: u64,
    ) {
        let (slice, legal) = self.keep(id, what.writes(), memory, context, user);
        self.start(id, what, slice, legal);
    }

    /// Whether the caller's completion is here: then `take_answer` is called, else `dismiss`.
    #[inline]
    pub fn is_answered(&self) -> bool {
        self.caller == Caller::Answered
    }

    /// The caller waits no more; it got no answer.
    #[inline]
    pub fn dismiss(&mut self) {
        self.caller = Caller::Nobody;
    }

    /// The caller's completion.
    #[inline(always)]
    pub fn take_answer(&mut self) -> Completed {
        debug_assert!(self.is_answered(), "an answer is there");
        self.caller = Caller::Nobody;
        let completion = self.answer;
        self.end(&completion)
    }

    /// An operation ended: its completion goes to its context, or directly to the waiting caller.
    #[inline]
    pub fn completed(&mut self) {
        let completion = *self.core.completion();
        let context = self.slots[completion.operation.0.index as usize].context;
        let wanted = match self.caller {
            Caller::Nobody | Caller::Answered => false,
            Caller::Posts(id) => id == completion.operation,
            // Completions that are already in the queue come first.
            Caller::Tests(number) => {
                let queue = &self.queues[number as usize];
                context == number && queue.as_ref().is_none_or(|queue| queue.is_empty())
            }
        };
        if wanted {
            // Its memory stays where it is until the caller takes it.
            self.answer = completion;
            self.caller = Caller::Answered;
        } else {
            self.deliver(&completion);
        }
    }

    #[inline(never)]
    fn deliver(&mut self, completion: &Completion) {
        let context = self.slots[completion.operation.0.index as usize].context;
        let completed = self.end(completion);
        if let Some(queue) = &self.queues[context as usize] {
            queue.push(completed);
        }
    }

    /// Frees an operation's number and gives its memory back.
    #[inline(always)]
    fn end(&mut self, completion: &Completion) -> Completed {
        let Completion { operation, outcome, bytes, message_bytes, peer, bits } = *completion;
        let slot = &mut self.slots[operation.0.index as usize];
        slot.generation = slot.generation.wrapping_add(1).max(1);
        self.free.push(operation.0.index);
        let user = slot.user;
        let buffer = std::mem::replace(&mut slot.buffer, Slice::NONE.buffer);
        let memory = self.buffers.remove(buffer).unwrap_or_else(Memory::empty);
        Completed { operation, user, outcome, bytes, message_bytes, peer, bits, memory }
    }
}
