//! The congestion window: how many packets may be under way. Loss narrows it, arrival widens it.

use super::receiving::{ACKNOWLEDGE_EVERY, EARLY_MAX};

/// Packets under way: at first, at least and at most.
const WINDOW_FIRST: u32 = 32;
const WINDOW_MIN: u32 = ACKNOWLEDGE_EVERY;
pub const WINDOW_MAX: u32 = EARLY_MAX;

/// In packets.
#[derive(Debug)]
pub struct CongestionWindow {
    pub(super) width: u32,
    /// Packets that arrived since the window grew.
    grown: u32,
    /// Loss of packets before this number has narrowed the window already, and what it was before that.
    narrowed_before: u32,
    width_before: u32,
}

impl Default for CongestionWindow {
    fn default() -> CongestionWindow {
        CongestionWindow { width: WINDOW_FIRST, grown: 0, narrowed_before: 0, width_before: 0 }
    }
}

impl CongestionWindow {
    /// Packets that may be under way.
    pub fn packets(&self) -> usize {
        self.width as usize
    }

    /// A packet was lost: once for all packets that were under way when that was noticed. `next`: the number of the next
    /// packet.
    pub fn narrow(&mut self, lost: u32, next: u32) {
        let noticed = lost.wrapping_sub(self.narrowed_before) > u32::MAX / 2;
        if !noticed {
            self.width_before = self.width;
            self.width = (self.width * 7 / 10).max(WINDOW_MIN);
            self.narrowed_before = next;
        }
    }

    /// So many packets arrived: a window of them makes room for an eighth more.
    pub fn widen(&mut self, arrived: u32) {
        self.grown += arrived;
        if self.grown >= self.width {
            self.grown = 0;
            self.width = (self.width + self.width.div_ceil(8)).min(WINDOW_MAX);
        }
    }

    /// The packet that was taken for lost last had only been late.
    pub fn restore(&mut self) {
        self.width = self.width.max(std::mem::take(&mut self.width_before));
    }

    /// The peer has all packets before this number.
    pub fn advance(&mut self, next: u32) {
        if next.wrapping_sub(self.narrowed_before) <= u32::MAX / 2 {
            // Numbers wrap: an older one would count as one that is yet to come some day.
            self.narrowed_before = next;
        }
    }
}
