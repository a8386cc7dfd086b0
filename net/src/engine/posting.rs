//! The way of an operation through the engine: from its post, which gives it a number and a place for its memory, to
//! its completion, which gives the memory back.

use ropewalk_base::error::Fault;
use ropewalk_base::memory::{Memory, Slice};
use ropewalk_core::{Completion, OperationId, Sending};

use crate::context::Completed;
use crate::engine::Engine;
use crate::posts::{Left, Post, Posted, What};

impl Engine {
    /// A free operation number.
    #[inline]
    pub fn allocate(&mut self) -> Option<OperationId> {
        self.operations.allocate()
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
        let Some(id) = self.operations.allocate() else { return Err(memory) };
        let (slice, legal) = self.keep(id, what.writes(), memory, context, user);
        if let Some(completion) = self.start(id, what, slice, legal) {
            // Frames that left before it may have broken another link.
            self.drain();
            return Ok(Posted::Done(self.end(&completion)));
        }
        self.caller.await_posted(id);
        self.drain();
        if self.caller.stop_waiting() {
            let completion = *self.caller.answer();
            return Ok(Posted::Done(self.end(&completion)));
        }
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
        let buffer = self.operations.begin(id, context, user);
        *buffer = match self.buffers.insert(memory) {
            Ok(buffer) => buffer,
            Err(_) => unreachable!("the table has room for all operations, regions and stagings"),
        };
        (Slice { buffer: *buffer, offset: 0, len }, legal)
    }

    /// Gives an operation to the core. Returns the completion of a message that left within this call.
    #[inline(always)]
    fn start(
        &mut self,
        id: OperationId,
        what: impl What,
        slice: Slice,
        legal: bool,
    ) -> Option<Completion> {
        if !legal {
            self.core.refuse_post(id, Fault::Invalid);
            return None;
        }
        let Sending::Inline(send) = what.start(&mut self.core, id, slice) else { return None };
        let answer = self.hand_over_inline();
        self.core.inline_sent(id, send, answer)
    }

    /// Carries out a post that was left by another thread.
    pub(super) fn start_left(&mut self, id: OperationId, post: Post) {
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
        if let Some(completion) = self.start(id, what, slice, legal) {
            // Completions that came before it are told before it.
            self.drain();
            self.tell(&completion);
        }
    }

    /// The caller waits for the next completion of the context with this number, until it takes the answer.
    #[inline]
    pub fn await_next(&mut self, context: u32) {
        self.caller.await_next(context);
    }

    /// The caller waits no more: its completion, if it is here.
    #[inline(always)]
    pub fn take_answer(&mut self) -> Option<Completed> {
        if self.caller.stop_waiting() {
            let completion = *self.caller.answer();
            return Some(self.end(&completion));
        }
        None
    }

    /// An operation ended: its completion goes to its context, or directly to the waiting caller.
    #[inline]
    pub(super) fn completed(&mut self) {
        let completion = *self.core.completion();
        self.tell(&completion);
    }

    #[inline(always)]
    fn tell(&mut self, completion: &Completion) {
        let context = self.operations.context_of(completion.operation);
        let contexts = &self.contexts;
        if self.caller.wants(completion.operation, context, |number| contexts.is_empty(number)) {
            self.caller.set_answer(completion);
        } else {
            self.deliver(context, completion);
        }
    }

    #[inline(never)]
    fn deliver(&mut self, context: u32, completion: &Completion) {
        let completed = self.end(completion);
        self.contexts.push(context, completed);
    }

    /// Frees an operation's number and gives its memory back.
    #[inline(always)]
    fn end(&mut self, completion: &Completion) -> Completed {
        let Completion { operation, outcome, bytes, message_bytes, peer, bits } = *completion;
        let (user, buffer) = self.operations.end(operation);
        let memory = self.buffers.remove(buffer).unwrap_or_else(Memory::empty);
        Completed { operation, user, outcome, bytes, message_bytes, peer, bits, memory }
    }
}
