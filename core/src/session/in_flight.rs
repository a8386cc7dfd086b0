//! Frames with a payload that a path's rail has and has not released.

use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::Urgency;

use crate::orders::{Order, Orders};

/// Frames that may have been given to the rail of one path and that it has not released.
const FRAMES_MAX: u32 = 128;
/// So many are few.
const FEW: u32 = 16;
/// Data frames among them: enough to keep a connection busy, few enough to stay fair.
const BULK_MAX: u32 = 4;
/// Shorter ones go together: as many as have this many bytes, and at most so many.
const BULK_BYTES: u64 = 512 << 10;
const BULK_SHORT_MAX: u64 = 32;

#[derive(Debug, Clone, Default)]
pub(crate) struct InFlight {
    frames: u32,
    bulk: u32,
    /// Orders of the table that the rail may have; those that ended are dropped now and then.
    orders: Vec<SlotId>,
}

impl InFlight {
    /// Whether the rail may have another frame.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.frames < FRAMES_MAX
    }

    /// Whether another frame leaves soon.
    pub fn has_few(&self) -> bool {
        self.frames < FEW
    }

    /// Whether the rail may have another data frame of a stream with so many bytes left.
    pub fn has_bulk_room(&self, left_bytes: u64) -> bool {
        let together = (BULK_BYTES / left_bytes.max(1)).min(BULK_SHORT_MAX) as u32;
        self.has_room() && self.bulk < together.max(BULK_MAX)
    }

    /// The rail has one more.
    #[inline]
    pub fn begin(&mut self, urgency: Urgency) {
        self.frames += 1;
        self.bulk += u32::from(urgency == Urgency::Bulk);
    }

    /// The rail released one.
    #[inline]
    pub fn end(&mut self, bulk: bool) {
        self.frames -= 1;
        self.bulk -= u32::from(bulk);
    }

    pub fn is_empty(&self) -> bool {
        self.frames == 0
    }

    /// Notes an order of the table.
    pub fn note_order(&mut self, slot: SlotId, orders: &Orders) {
        if self.orders.len() == self.orders.capacity() {
            self.orders.retain(|slot| orders.get(*slot).is_some());
        }
        self.orders.push(slot);
    }

    /// The orders of the table that are such ones and have not ended.
    pub fn orders(&self, orders: &Orders, is_such: impl Fn(&Order) -> bool) -> Vec<SlotId> {
        let open = |slot: &SlotId| orders.get(*slot).is_some_and(|entry| is_such(&entry.order));
        self.orders.iter().copied().filter(open).collect()
    }

    /// All frames and the data frames among them.
    pub fn counts(&self) -> (u32, u32) {
        (self.frames, self.bulk)
    }
}
