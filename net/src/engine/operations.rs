//! The operations of an endpoint: a number for each, and the state that it has beside its state in the core.
//!
//! Invariant: an operation's memory stays in the buffer table from its post to the moment where its completion is
//! handed over, and moves once each way.

use ropewalk_base::memory::{BufferId, Slice};
use ropewalk_base::slots::SlotId;
use ropewalk_core::OperationId;

struct Slot {
    generation: u32,
    /// The number of the context that it completes to.
    context: u32,
    user: u64,
    /// Its memory; none before the post and after the end.
    buffer: BufferId,
}

/// An operation that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pending {
    /// The number of the context that it completes to.
    pub context: u32,
    /// Its memory.
    pub buffer: BufferId,
}

pub(crate) struct OperationTable {
    slots: Vec<Slot>,
    free: Vec<u32>,
    slots_max: usize,
}

impl OperationTable {
    pub fn with_limit(slots_max: usize) -> OperationTable {
        OperationTable { slots: Vec::new(), free: Vec::new(), slots_max }
    }

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

    /// An operation is posted under a fresh number. Returns the place for its buffer, which the caller fills at once:
    /// with the slot found before, the memory moves into the buffer table without a stop.
    #[inline(always)]
    pub fn begin(&mut self, id: OperationId, context: u32, user: u64) -> &mut BufferId {
        let slot = &mut self.slots[id.0.index as usize];
        debug_assert_eq!(slot.generation, id.0.generation, "a post uses a fresh number");
        slot.user = user;
        slot.context = context;
        &mut slot.buffer
    }

    /// The number of the context to which an operation that is under way completes.
    #[inline(always)]
    pub fn context_of(&self, id: OperationId) -> u32 {
        self.slots[id.0.index as usize].context
    }

    /// The operation of this number, if it is under way.
    pub fn get(&self, id: OperationId) -> Option<Pending> {
        let slot = self.slots.get(id.0.index as usize)?;
        let Slot { generation, context, buffer, .. } = *slot;
        let is_used = generation == id.0.generation && buffer != Slice::NONE.buffer;
        is_used.then_some(Pending { context, buffer })
    }

    /// Ends an operation that is under way, and frees its number. Returns the caller's number and the buffer.
    #[inline(always)]
    pub fn end(&mut self, id: OperationId) -> (u64, BufferId) {
        let slot = &mut self.slots[id.0.index as usize];
        slot.generation = slot.generation.wrapping_add(1).max(1);
        self.free.push(id.0.index);
        (slot.user, std::mem::replace(&mut slot.buffer, Slice::NONE.buffer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_ended_names_nothing() {
        let mut operations = OperationTable::with_limit(1);
        let id = operations.allocate().unwrap();
        assert_eq!(operations.get(id), None, "it is not posted yet");
        assert_eq!(operations.allocate(), None, "there is one slot");
        let buffer = BufferId(SlotId { index: 5, generation: 1 });
        *operations.begin(id, 2, 7) = buffer;
        assert_eq!(operations.get(id), Some(Pending { context: 2, buffer }));
        assert_eq!(operations.end(id), (7, buffer));
        let next = operations.allocate().unwrap();
        assert_ne!(next, id);
        *operations.begin(next, 2, 7) = buffer;
        assert_eq!(operations.get(id), None);
    }
}
