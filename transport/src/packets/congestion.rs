//! The congestion window: how many packets may be under way. Arrival widens it. Loss narrows it where there is a queue, or where
//! much is lost: a cable that loses some packets has room for others.

use std::time::Duration;

use super::receiving::{ACKNOWLEDGE_EVERY, EARLY_MAX};

/// Packets under way: at first, at least and at most.
const WINDOW_FIRST: u32 = 32;
const WINDOW_MIN: u32 = ACKNOWLEDGE_EVERY;
pub const WINDOW_MAX: u32 = EARLY_MAX;

/// Of the latest packets, about so many, more than one in so many has to be lost to narrow the window by itself.
const RECENT: u16 = 256;
const LOST_OF: u16 = 5;
/// So many of one acknowledgement count at most.
const COUNTED_MAX: u32 = 8192;
/// A round trip that is so much longer than the shortest one shows a queue.
pub(super) const QUEUE: Duration = Duration::from_millis(2);

/// In packets.
#[derive(Debug)]
pub struct CongestionWindow {
    pub(super) width: u32,
    /// Packets that arrived since the window grew.
    grown: u32,
    /// Loss of packets before this number has narrowed the window already, and what it was before that.
    narrowed_before: u32,
    width_before: u32,
    /// Of the latest packets: those that arrived, and those that were lost.
    pub(super) arrived: u16,
    lost: u16,
}

impl Default for CongestionWindow {
    fn default() -> CongestionWindow {
        CongestionWindow {
            width: WINDOW_FIRST,
            grown: 0,
            narrowed_before: 0,
            width_before: 0,
            arrived: 0,
            lost: 0,
        }
    }
}

impl CongestionWindow {
    /// Packets that may be under way.
    pub fn packets(&self) -> usize {
        self.width as usize
    }

    /// So many packets were lost, the newest of them with this number. `has_queue`: round trips show one. `next`: the number of
    /// the next packet.
    pub fn lost(&mut self, packets: u32, newest: u32, next: u32, has_queue: bool) {
        self.lost += packets.min(COUNTED_MAX) as u16;
        self.forget();
        if has_queue || self.lost > (self.arrived + self.lost) / LOST_OF {
            self.narrow(newest, next);
        } else if !self.is_noticed(newest) {
            self.width_before = 0;
        }
    }

    /// Makes room for less: once for all packets that were under way when a loss was noticed.
    pub fn narrow(&mut self, lost: u32, next: u32) {
        if !self.is_noticed(lost) {
            self.width_before = self.width;
            self.width = (self.width * 7 / 10).max(WINDOW_MIN);
            self.narrowed_before = next;
        }
    }

    fn is_noticed(&self, lost: u32) -> bool {
        lost.wrapping_sub(self.narrowed_before) > u32::MAX / 2
    }

    fn forget(&mut self) {
        if self.arrived + self.lost > RECENT {
            (self.arrived, self.lost) = (self.arrived / 2, self.lost / 2);
        }
    }

    /// So many packets arrived: a window of them makes room for an eighth more.
    pub fn widen(&mut self, arrived: u32) {
        self.arrived += arrived.min(COUNTED_MAX) as u16;
        self.forget();
        self.grown += arrived;
        if self.grown >= self.width {
            self.grown = 0;
            self.width = (self.width + self.width.div_ceil(8)).min(WINDOW_MAX);
        }
    }

    /// The packet that was taken for lost last had only been late.
    pub fn restore(&mut self) {
        self.lost = self.lost.saturating_sub(1);
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
