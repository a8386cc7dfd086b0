//! Orders and news of the core: one queue in order.
//!
//! Frames and completions are most of it, and long. Each is written once, in a ring where it lies
//! until it was dealt with; the queue itself holds marks.
//!
//! Invariant: a kind has as many marks in the queue as entries that were not taken.

use std::collections::VecDeque;

use ropewalk_base::memory::{BufferId, Slice};
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{FrameOrder, Header, LinkId, Token, Urgency};

use crate::api::{Completion, Next, OperationId, Output};

#[derive(Debug)]
pub(crate) struct Outputs {
    marks: Ring<Next>,
    frames: Ring<FrameOrder>,
    completions: Ring<Completion>,
    others: VecDeque<Output>,
    /// The frame of a message that leaves within its post, before all others.
    pub inline: FrameOrder,
}

const NOWHERE: SlotId = SlotId { index: 0, generation: 0 };

const NO_FRAME: FrameOrder = FrameOrder {
    link: LinkId { rail: 0, slot: NOWHERE },
    header: Header::EMPTY,
    payload: Slice::NONE,
    urgency: Urgency::Urgent,
    token: Token::NONE,
};

const NO_COMPLETION: Completion = Completion {
    operation: OperationId(NOWHERE),
    outcome: Ok(()),
    bytes: 0,
    message_bytes: 0,
    peer: None,
    bits: 0,
};

impl Outputs {
    pub fn new() -> Outputs {
        Outputs {
            marks: Ring::new(Next::Other),
            frames: Ring::new(NO_FRAME),
            completions: Ring::new(NO_COMPLETION),
            others: VecDeque::new(),
            inline: NO_FRAME,
        }
    }

    pub fn push(&mut self, output: Output) {
        *self.marks.push() = Next::Other;
        self.others.push_back(output);
    }

    /// Gives a staged buffer up, where there is one.
    pub fn extend_releases(&mut self, buffer: Option<BufferId>) {
        if let Some(buffer) = buffer {
            self.push(Output::Release(buffer));
        }
    }

    /// Adds a frame; its header is for the caller to write.
    #[inline]
    pub fn push_frame(
        &mut self,
        link: LinkId,
        payload: Slice,
        urgency: Urgency,
        token: Token,
    ) -> &mut Header {
        *self.marks.push() = Next::Frame;
        let frame = self.frames.push();
        frame.link = link;
        frame.payload = payload;
        frame.urgency = urgency;
        frame.token = token;
        &mut frame.header
    }

    /// The frame that was added last may wait: for the next pass, and where its rail makes packets for others.
    /// Nothing where something else came last.
    pub fn last_is_patient(&mut self) {
        if let Some(mark) = self.marks.last_pushed().filter(|mark| **mark == Next::Frame) {
            *mark = Next::PatientFrame;
            self.frames.last_pushed().into_iter().for_each(|it| it.urgency = Urgency::Patient);
        }
    }

    /// The frame that was added last may wait for others, in a rail that makes packets of them.
    pub fn last_joins_others(&mut self) {
        if self.marks.last_pushed().is_some_and(|mark| *mark == Next::Frame) {
            self.frames.last_pushed().into_iter().for_each(|it| it.urgency = Urgency::Patient);
        }
    }

    /// Whether the frame that was taken last is followed by another one of its link.
    #[inline]
    pub fn is_followed(&self) -> bool {
        let link = self.frames.last_popped().link;
        matches!(self.marks.peek(), Some(Next::Frame | Next::PatientFrame))
            && self.frames.peek().is_some_and(|frame| frame.link == link)
    }

    /// Adds a completion, which the caller writes.
    #[inline]
    pub fn push_completion(&mut self) -> &mut Completion {
        *self.marks.push() = Next::Completed;
        self.completions.push()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// Takes the next one: `frame`, `completion` or `other` has it.
    #[inline]
    pub fn next(&mut self) -> Option<Next> {
        if self.marks.is_empty() {
            return None;
        }
        self.marks.pop();
        let mark = *self.marks.popped();
        match mark {
            Next::Frame | Next::PatientFrame => self.frames.pop(),
            Next::Completed => self.completions.pop(),
            Next::Other => {}
        }
        Some(mark)
    }

    #[inline]
    pub fn frame(&mut self) -> &mut FrameOrder {
        self.frames.popped()
    }

    #[inline]
    pub fn completion(&mut self) -> &Completion {
        self.completions.popped()
    }

    pub fn other(&mut self) -> Output {
        self.others.pop_front().expect("a mark stands for an output")
    }
}

/// A queue whose entries are written and read where they lie. The one that was popped last stays until
/// the next pop.
#[derive(Debug)]
struct Ring<T> {
    /// A power of two of them.
    entries: Vec<T>,
    /// Entries popped, and pushed, since the beginning.
    popped: usize,
    pushed: usize,
}

const RING_FIRST: usize = 64;

impl<T: Copy> Ring<T> {
    fn new(blank: T) -> Ring<T> {
        Ring { entries: vec![blank; RING_FIRST], popped: 0, pushed: 0 }
    }

    #[inline(always)]
    fn push(&mut self) -> &mut T {
        if self.pushed - self.popped + 1 >= self.entries.len() {
            self.grow();
        }
        let mask = self.entries.len() - 1;
        let at = self.pushed & mask;
        self.pushed += 1;
        &mut self.entries[at]
    }

    #[cold]
    fn grow(&mut self) {
        let len = self.entries.len();
        let mut entries = vec![self.entries[0]; 2 * len];
        for at in self.popped.saturating_sub(1)..self.pushed {
            entries[at & (2 * len - 1)] = self.entries[at & (len - 1)];
        }
        self.entries = entries;
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.popped == self.pushed
    }

    #[inline]
    fn pop(&mut self) {
        debug_assert!(self.popped < self.pushed, "what is popped was pushed");
        self.popped += 1;
    }

    #[inline]
    fn peek(&self) -> Option<&T> {
        let mask = self.entries.len() - 1;
        (!self.is_empty()).then(|| &self.entries[self.popped & mask])
    }

    fn last_pushed(&mut self) -> Option<&mut T> {
        let mask = self.entries.len() - 1;
        let last = self.pushed.wrapping_sub(1) & mask;
        (!self.is_empty()).then(|| &mut self.entries[last])
    }

    #[inline]
    fn last_popped(&self) -> &T {
        let mask = self.entries.len() - 1;
        &self.entries[self.popped.wrapping_sub(1) & mask]
    }

    #[inline]
    fn popped(&mut self) -> &mut T {
        let mask = self.entries.len() - 1;
        &mut self.entries[self.popped.wrapping_sub(1) & mask]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_out_in_order_and_whole_however_many_wait() {
        let mut ring = Ring::new([0u32; 3]);
        let (mut pushed, mut popped) = (0, 0);
        for round in 0..400 {
            for _ in 0..round % 37 {
                *ring.push() = [pushed; 3];
                pushed += 1;
            }
            for _ in 0..(round % 41).min(pushed - popped) {
                ring.pop();
                assert_eq!(*ring.popped(), [popped; 3]);
                // A push while an entry is in use leaves the entry alone.
                *ring.push() = [pushed; 3];
                pushed += 1;
                assert_eq!(*ring.popped(), [popped; 3]);
                popped += 1;
            }
        }
        assert!(popped > 1000);
    }
}
