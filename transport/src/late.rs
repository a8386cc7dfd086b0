//! Packets that were taken for lost, were sent or asked for again, and arrived. If such a packet arrives once more,
//! neither copy was lost: the first one was only late. From this a link learns how late packets may be on its path.
//!
//! Invariant: it remembers only the latest few packets.

use std::collections::VecDeque;
use std::time::Duration;

use ropewalk_base::slots::SlotId;

/// The number of packets that are remembered: those of two asks.
const RECENT_MAX: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub struct Late {
    recent: VecDeque<Came>,
}

#[derive(Debug)]
struct Came {
    link: SlotId,
    /// The transfer that it is a piece of, and its number there.
    name: u64,
    piece: u32,
    by: Duration,
}

impl Late {
    /// A piece that went again is here, for the first time: so long after one that left behind it.
    pub fn came(&mut self, link: SlotId, name: u64, piece: u32, by: Duration) {
        if self.recent.len() >= RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(Came { link, name, piece, by });
    }

    /// A piece is here once more: by how much it was late, and over which link, where it was taken for lost.
    pub fn again(&mut self, name: u64, piece: u32) -> Option<(SlotId, Duration)> {
        let is_it = |came: &Came| came.name == name && came.piece == piece;
        let index = self.recent.iter().position(is_it)?;
        self.recent.remove(index).map(|came| (came.link, came.by))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_twice_was_late_and_the_latest_are_remembered() {
        let link = SlotId { index: 1, generation: 1 };
        let mut late = Late::default();
        let by = |micros: usize| Duration::from_micros(micros as u64);
        (0..=RECENT_MAX).for_each(|piece| late.came(link, 7, piece as u32, by(piece)));
        assert_eq!(late.again(7, 0), None, "there was no room");
        assert_eq!(late.again(8, 3), None);
        assert_eq!(late.again(7, 3), Some((link, by(3))));
        assert_eq!(late.again(7, 3), None, "it is told once");
        assert_eq!(late.again(7, RECENT_MAX as u32), Some((link, by(RECENT_MAX))));
    }
}
