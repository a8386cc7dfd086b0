//! The caller that holds the engine and waits for an answer. One completion goes to it directly, without its queue.

use ropewalk_base::slots::SlotId;
use ropewalk_core::{Completion, OperationId};

/// The completion that the caller waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaits {
    Nothing,
    /// The operation that is being posted.
    Posted(OperationId),
    /// The next completion of the context with this number.
    Next(u32),
    /// It has its answer.
    Answered,
}

const NO_ANSWER: Completion = Completion {
    operation: OperationId(SlotId { index: 0, generation: 0 }),
    outcome: Ok(()),
    bytes: 0,
    message_bytes: 0,
    peer: None,
    bits: 0,
};

pub(crate) struct Caller {
    awaits: Awaits,
    /// The completion for the caller, once it is answered.
    answer: Completion,
}

impl Caller {
    pub fn new() -> Caller {
        Caller { awaits: Awaits::Nothing, answer: NO_ANSWER }
    }

    /// The caller waits for the completion of the operation that it posts.
    #[inline(always)]
    pub fn await_posted(&mut self, id: OperationId) {
        self.awaits = Awaits::Posted(id);
    }

    /// The caller waits for the next completion of the context with this number.
    #[inline(always)]
    pub fn await_next(&mut self, context: u32) {
        self.awaits = Awaits::Next(context);
    }

    /// Whether a completion, of an operation in this context, is the caller's. `is_empty`: whether no other one
    /// waits in a context, which would come first.
    #[inline(always)]
    pub fn wants(
        &self,
        operation: OperationId,
        context: u32,
        is_empty: impl FnOnce(u32) -> bool,
    ) -> bool {
        match self.awaits {
            Awaits::Nothing | Awaits::Answered => false,
            Awaits::Posted(id) => id == operation,
            Awaits::Next(number) => context == number && is_empty(number),
        }
    }

    /// The caller's completion is here. The operation keeps its memory until the caller takes its answer.
    #[inline(always)]
    pub fn set_answer(&mut self, completion: &Completion) {
        self.answer = *completion;
        self.awaits = Awaits::Answered;
    }

    /// The caller waits no more. True if it has an answer.
    #[inline(always)]
    pub fn stop_waiting(&mut self) -> bool {
        std::mem::replace(&mut self.awaits, Awaits::Nothing) == Awaits::Answered
    }

    /// The last answer.
    #[inline(always)]
    pub fn answer(&self) -> &Completion {
        &self.answer
    }
}
