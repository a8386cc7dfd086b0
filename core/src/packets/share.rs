//! What the ring of an endpoint can take of what its links ask for, and whose turn it is to ask.
//!
//! Invariants:
//! * no more is under way than there is room for, but for one ask where nothing else is;
//! * who waits has its turn before any other link asks twice, as long as whoever has the turn asks or
//!   [leaves](Share::leave).

use std::collections::{HashSet, VecDeque};

use ropewalk_base::slots::SlotId;

/// Packets that are asked for and not here, of all links, and the links that found that they are too many.
#[derive(Debug)]
pub struct Share {
    room: u32,
    ask: u32,
    under_way: u32,
    queue: VecDeque<SlotId>,
    members: HashSet<SlotId>,
}

impl Share {
    /// A ring that takes `room` packets at a time, of links that ask for `ask` of them at most.
    pub fn new(room: u32, ask: u32) -> Share {
        Share { room, ask, under_way: 0, queue: VecDeque::new(), members: HashSet::new() }
    }

    /// Room for an ask, where there is some and no other link has waited for longer. If not the link waits.
    pub fn take(&mut self, link: SlotId, packets: u32) -> bool {
        let first = self.queue.front().is_none_or(|first| *first == link);
        if !first || !self.fits(packets) {
            if self.members.insert(link) {
                self.queue.push_back(link);
            }
            return false;
        }
        self.leave(link);
        self.under_way += packets;
        true
    }

    /// Packets that nobody counted on any more are under way after all.
    pub fn take_back(&mut self, packets: u32) {
        self.under_way += packets;
    }

    /// Packets came, or are not counted on any more.
    pub fn free(&mut self, packets: u32) {
        self.under_way -= packets;
    }

    pub fn waits(&self, link: SlotId) -> bool {
        self.members.contains(&link)
    }

    /// The link has nothing to ask for.
    pub fn leave(&mut self, link: SlotId) {
        if !self.members.remove(&link) {
            return;
        }
        if self.queue.front() == Some(&link) {
            self.queue.pop_front();
        } else {
            self.queue.retain(|other| *other != link);
        }
    }

    /// Who has waited longest, where there is room for an ask.
    pub fn turn(&self) -> Option<SlotId> {
        self.queue.front().copied().filter(|_| self.fits(self.ask))
    }

    /// Where nothing is under way something may be, however little there is room for.
    fn fits(&self, packets: u32) -> bool {
        self.under_way == 0 || self.under_way + packets <= self.room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32) -> SlotId {
        SlotId { index, generation: 1 }
    }

    #[test]
    fn who_finds_no_room_waits_and_asks_before_the_others() {
        let mut share = Share::new(100, 32);
        assert!(share.take(link(1), 32) && share.take(link(1), 32) && share.take(link(2), 32));
        assert!(!share.take(link(3), 32) && !share.take(link(1), 32) && !share.take(link(3), 32));
        assert_eq!(share.turn(), None);
        share.free(28);
        assert_eq!(share.turn(), Some(link(3)));
        assert!(!share.take(link(2), 1), "there is room, and others have waited");
        assert!(share.take(link(3), 32) && !share.waits(link(3)));
        share.free(32);
        assert_eq!(share.turn(), Some(link(1)));
        share.leave(link(1));
        assert_eq!(share.turn(), Some(link(2)));
        share.leave(link(4));
        assert!(share.take(link(2), 32) && share.turn().is_none());
    }

    #[test]
    fn an_ask_is_under_way_however_little_room_there_is() {
        let mut share = Share::new(8, 32);
        assert!(share.take(link(1), 32) && !share.take(link(2), 1));
        share.free(31);
        assert_eq!(share.turn(), None);
        share.free(1);
        assert_eq!(share.turn(), Some(link(2)));
        share.take_back(32);
        assert_eq!(share.turn(), None);
    }
}
