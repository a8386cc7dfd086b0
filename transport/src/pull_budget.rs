//! The packets that the links of an endpoint may ask for while its ring can take them, and the order in which links
//! ask.
//!
//! Invariants:
//! * no more is under way than there is room for, but for one ask where nothing else is;
//! * a waiting link has its turn before any other link asks twice, as long as the link that has the turn asks or
//!   [leaves](PullBudget::leave);
//! * a link whose pieces come slowly holds its part of the room and no more while others wait, and there is room for
//!   the first ask of another one.

use std::collections::VecDeque;

use ropewalk_base::hash::{HashSeed, HashSet};
use ropewalk_base::slots::SlotId;

/// Asks that a ring has room for at least where one of them is kept for a link that has nothing under way.
const ASKS_BESIDE_ONE: u32 = 4;

/// Packets that are asked for and not here, of all links, and the links that found that they are too many.
#[derive(Debug)]
pub struct PullBudget {
    room: u32,
    ask: u32,
    under_way: u32,
    /// Of those, how many are of each link, by its index.
    held: Vec<u32>,
    /// Links that hold some, or wait.
    asking: u32,
    queue: VecDeque<SlotId>,
    members: HashSet<SlotId>,
}

impl PullBudget {
    /// A ring that takes `room` packets at a time, of links that ask for `ask` of them at most.
    pub fn new(room: u32, ask: u32) -> PullBudget {
        let (held, queue) = (Vec::new(), VecDeque::new());
        let members = HashSet::with_hasher(HashSeed::OWN_KEYS);
        PullBudget { room, ask, under_way: 0, held, asking: 0, queue, members }
    }

    /// Room for an ask, where there is some and no other link has waited for longer. If not the link waits.
    pub fn take(&mut self, link: SlotId, packets: u32) -> bool {
        let mut earlier = self.queue.iter().take_while(|other| **other != link);
        let first = !earlier.any(|other| !self.has_its_part(*other, self.ask));
        if !first || !self.fits(packets) || self.has_its_part(link, packets) {
            self.wait(link);
            return false;
        }
        self.leave(link);
        self.hold(link, packets);
        true
    }

    /// Packets that nobody counted on any more are under way after all.
    pub fn take_back(&mut self, link: SlotId, packets: u32) {
        self.hold(link, packets);
    }

    fn hold(&mut self, link: SlotId, packets: u32) {
        let index = link.index as usize;
        if index >= self.held.len() {
            self.held.resize(index + 1, 0);
        }
        if self.held[index] == 0 && packets > 0 && !self.waits(link) {
            self.asking += 1;
        }
        self.held[index] += packets;
        self.under_way += packets;
    }

    /// Packets came, or are not counted on any more.
    pub fn free(&mut self, link: SlotId, packets: u32) {
        let Some(held) = self.held.get_mut(link.index as usize).filter(|_| packets > 0) else {
            return;
        };
        *held -= packets;
        self.under_way -= packets;
        if *held == 0 && !self.waits(link) {
            self.asking -= 1;
        }
    }

    fn held(&self, link: SlotId) -> u32 {
        self.held.get(link.index as usize).copied().unwrap_or(0)
    }

    pub fn waits(&self, link: SlotId) -> bool {
        self.members.contains(&link)
    }

    fn wait(&mut self, link: SlotId) {
        if self.members.insert(link) {
            self.queue.push_back(link);
            self.asking += u32::from(self.held(link) == 0);
        }
    }

    /// The link has nothing to ask for.
    pub fn leave(&mut self, link: SlotId) {
        if !self.members.remove(&link) {
            return;
        }
        self.asking -= u32::from(self.held(link) == 0);
        if self.queue.front() == Some(&link) {
            self.queue.pop_front();
        } else {
            self.queue.retain(|other| *other != link);
        }
    }

    /// The link that has waited longest of those that may ask, if there is room for an ask.
    pub fn turn(&self) -> Option<SlotId> {
        if !self.fits(self.ask) {
            return None;
        }
        self.queue.iter().copied().find(|link| !self.has_its_part(*link, self.ask))
    }

    /// If nothing is under way, any ask fits, however little room there is.
    fn fits(&self, packets: u32) -> bool {
        self.under_way == 0 || self.under_way + packets <= self.room
    }

    /// Whether a link has its part of the packets under way. If others wait, all have equal parts. Otherwise the part
    /// is the whole room but for one ask, with which another link may begin.
    fn has_its_part(&self, link: SlotId, packets: u32) -> bool {
        let own = self.held(link);
        let others = self.members.len() - usize::from(self.waits(link));
        if own == 0 {
            false
        } else if others > 0 {
            own >= self.room / self.asking.max(1)
        } else {
            let kept = if self.room >= ASKS_BESIDE_ONE * self.ask { self.ask } else { 0 };
            own + packets > self.room - kept
        }
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
        let mut share = PullBudget::new(100, 32);
        assert!(share.take(link(1), 32) && share.take(link(1), 32) && share.take(link(2), 32));
        assert!(!share.take(link(3), 32) && !share.take(link(1), 32) && !share.take(link(3), 32));
        assert_eq!(share.turn(), None);
        share.free(link(1), 28);
        assert_eq!(share.turn(), Some(link(3)));
        assert!(!share.take(link(2), 1), "there is room, and others have waited");
        assert!(share.take(link(3), 32) && !share.waits(link(3)));
        share.free(link(1), 32);
        assert_eq!(share.turn(), Some(link(1)));
        share.leave(link(1));
        assert_eq!(share.turn(), Some(link(2)));
        share.leave(link(4));
        assert!(share.take(link(2), 32) && share.turn().is_none());
    }

    #[test]
    fn an_ask_is_under_way_however_little_room_there_is() {
        let mut share = PullBudget::new(8, 32);
        assert!(share.take(link(1), 32) && !share.take(link(2), 1));
        share.free(link(1), 31);
        assert_eq!(share.turn(), None);
        share.free(link(1), 1);
        assert_eq!(share.turn(), Some(link(2)));
        share.take_back(link(1), 32);
        assert_eq!(share.turn(), None);
    }

    #[test]
    fn who_holds_its_part_waits_while_others_do_and_leaves_room_for_one_more() {
        let mut share = PullBudget::new(256, 32);
        let asks = (0..20).take_while(|_| share.take(link(1), 32)).count();
        assert_eq!(asks, 7, "an ask of another one has room");
        assert!(share.take(link(2), 32) && !share.take(link(2), 32));
        assert!(!share.take(link(1), 32));
        // The other link gets all room that the first one frees, until both hold the same.
        for _ in 0..3 {
            share.free(link(1), 32);
            assert_eq!(share.turn(), Some(link(2)));
            assert!(
                !share.take(link(1), 32) && share.take(link(2), 32) && !share.take(link(2), 32)
            );
        }
        share.free(link(1), 32);
        assert_eq!(share.turn(), Some(link(1)));
        assert!(share.take(link(1), 32));
        // One that waits and has its part is passed over.
        assert!(!share.take(link(3), 32));
        share.free(link(1), 32);
        assert_eq!(share.turn(), Some(link(3)));
        assert!(!share.take(link(2), 32) && share.take(link(3), 32));
        assert_eq!((share.asking, share.under_way), (3, 256));
        share.leave(link(2));
        share.free(link(2), 128);
        share.free(link(3), 32);
        assert_eq!((share.asking, share.under_way), (1, 96));
    }
}
