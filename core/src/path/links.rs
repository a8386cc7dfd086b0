//! The table of links, by rail and slot: found without hashing, walked in one order always.
//!
//! Invariant: a link that has a peer is named in that peer's row.

use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::LinkId;

use super::{Link, LinkStage};
use crate::api::{LOOP_LINK, PeerId};

/// All links of an endpoint. Rails number their slots densely, so that rows stay short.
#[derive(Debug, Default)]
pub(crate) struct Links {
    /// One row a rail; the link of the endpoint to itself has the first.
    rows: Vec<Vec<Option<Entry>>>,
    /// By the peer's index: its links.
    by_peer: Vec<Vec<LinkId>>,
    /// Those that carry a session, apart from the endpoint's to itself, and the clock's hand on them.
    carrying: Vec<LinkId>,
    hand: usize,
    /// Turns in a row of links that are never closed as idle, since the last one began to carry a session.
    fixed: usize,
    /// How many of them are to be closed as idle: the peer's answer is awaited.
    closing_idle: usize,
    /// Accepted links on which both sides have greeted, so far.
    agreements: u64,
}

#[derive(Debug)]
struct Entry {
    generation: u32,
    link: Link,
}

/// `LOOP_LINK` has the highest rail number, and row 0.
#[inline]
fn row_of(rail: u8) -> usize {
    usize::from(rail.wrapping_sub(LOOP_LINK.rail))
}

fn rail_of(row: usize) -> u8 {
    LOOP_LINK.rail.wrapping_add(row as u8)
}

impl Links {
    #[inline]
    pub fn get(&self, id: LinkId) -> Option<&Link> {
        let entry = self.rows.get(row_of(id.rail))?.get(id.slot.index as usize)?.as_ref()?;
        (entry.generation == id.slot.generation).then_some(&entry.link)
    }

    #[inline]
    pub fn get_mut(&mut self, id: LinkId) -> Option<&mut Link> {
        let entry =
            self.rows.get_mut(row_of(id.rail))?.get_mut(id.slot.index as usize)?.as_mut()?;
        (entry.generation == id.slot.generation).then_some(&mut entry.link)
    }

    /// The link that is in the slot of another one.
    pub fn in_slot_of(&self, id: LinkId) -> Option<LinkId> {
        let row = self.rows.get(row_of(id.rail))?;
        let generation = row.get(id.slot.index as usize)?.as_ref()?.generation;
        let slot = SlotId { generation, ..id.slot };
        (slot != id.slot).then_some(LinkId { slot, ..id })
    }

    /// Adds a link. One that had its slot before is gone by then: its rail said so.
    pub fn insert(&mut self, id: LinkId, link: Link) {
        let (row, index) = (row_of(id.rail), id.slot.index as usize);
        if self.rows.len() <= row {
            self.rows.resize_with(row + 1, Vec::new);
        }
        if self.rows[row].len() <= index {
            self.rows[row].resize_with(index + 1, || None);
        }
        let gone = id == LOOP_LINK || self.rows[row][index].is_none();
        debug_assert!(gone, "rail {} gave a slot to two links", id.rail);
        self.unname(id);
        let peer = link.peer;
        self.rows[row][index] = Some(Entry { generation: id.slot.generation, link });
        self.name(id, peer);
    }

    /// Both sides have greeted on an accepted link.
    pub fn agree(&mut self, id: LinkId) {
        self.agreements += 1;
        let agreed = self.agreements;
        if let Some(link) = self.get_mut(id) {
            link.stage = LinkStage::Agreed;
            link.agreed = agreed;
        }
    }

    /// The link carries a session from now on.
    pub fn begin_carrying(&mut self, id: LinkId) {
        let turn = self.carrying.len() as u32;
        let Some(state) = self.get_mut(id).filter(|state| state.turn.is_none()) else { return };
        state.turn = Some(turn);
        self.carrying.push(id);
        self.fixed = 0;
    }

    /// The link carries no session any more.
    pub fn end_carrying(&mut self, id: LinkId) {
        self.set_closing_idle(id, false);
        let Some(turn) = self.get_mut(id).and_then(|state| state.turn.take()) else { return };
        self.carrying.swap_remove(turn as usize);
        let moved = self.carrying.get(turn as usize).copied().and_then(|moved| self.get_mut(moved));
        if let Some(moved) = moved {
            moved.turn = Some(turn);
        }
    }

    /// Whether the peer was asked to do without this link.
    pub fn set_closing_idle(&mut self, id: LinkId, closing_idle: bool) {
        let Some(state) = self.get_mut(id).filter(|state| state.turn.is_some()) else { return };
        let before = std::mem::replace(&mut state.closing_idle, closing_idle);
        self.closing_idle += usize::from(closing_idle);
        self.closing_idle -= usize::from(before);
    }

    /// How many links carry a session.
    pub fn carrying(&self) -> usize {
        self.carrying.len()
    }

    /// How many more than `max` will go on carrying one.
    pub fn surplus(&self, max: usize) -> usize {
        (self.carrying.len() - self.closing_idle).saturating_sub(max)
    }

    /// The link whose turn it is, of those that carry a session; the next call names the next one.
    pub fn next_turn(&mut self) -> Option<LinkId> {
        if self.hand >= self.carrying.len() {
            self.hand = 0;
        }
        let link = self.carrying.get(self.hand).copied();
        self.hand += 1;
        link
    }

    /// Whether the link whose turn it was may ever be closed as idle.
    pub fn note_turn(&mut self, closes: bool) {
        self.fixed = if closes { 0 } else { self.fixed + 1 };
    }

    /// Whether none of those that carry a session is ever closed as idle, as all turns have shown.
    pub fn are_fixed(&self) -> bool {
        self.fixed >= self.carrying.len()
    }

    pub fn remove(&mut self, id: LinkId) -> Option<Link> {
        self.end_carrying(id);
        self.unname(id);
        let entry = self.rows.get_mut(row_of(id.rail))?.get_mut(id.slot.index as usize)?;
        entry.take_if(|entry| entry.generation == id.slot.generation).map(|entry| entry.link)
    }

    /// Notes to which peer a link leads.
    pub fn set_peer(&mut self, id: LinkId, peer: PeerId) {
        self.unname(id);
        if let Some(link) = self.get_mut(id) {
            link.peer = Some(peer);
            self.name(id, Some(peer));
        }
    }

    fn name(&mut self, id: LinkId, peer: Option<PeerId>) {
        let Some(peer) = peer.map(|peer| peer.0.index as usize) else { return };
        if self.by_peer.len() <= peer {
            self.by_peer.resize_with(peer + 1, Vec::new);
        }
        self.by_peer[peer].push(id);
    }

    fn unname(&mut self, id: LinkId) {
        let Some(peer) = self.get(id).and_then(|link| link.peer) else { return };
        if let Some(row) = self.by_peer.get_mut(peer.0.index as usize) {
            row.retain(|other| *other != id);
        }
    }

    /// The links of a peer, by row and slot.
    pub fn of_peer(&self, peer: PeerId) -> Vec<LinkId> {
        let row = self.by_peer.get(peer.0.index as usize);
        let named = row.into_iter().flatten().copied();
        let of = |id: &LinkId| self.get(*id).is_some_and(|link| link.peer == Some(peer));
        let mut links: Vec<LinkId> = named.filter(of).collect();
        links.sort_unstable();
        links
    }

    /// How many links a peer has.
    pub fn count_of_peer(&self, peer: PeerId) -> usize {
        let row = self.by_peer.get(peer.0.index as usize);
        let of = |id: &&LinkId| self.get(**id).is_some_and(|link| link.peer == Some(peer));
        row.into_iter().flatten().filter(of).count()
    }

    /// All links, by row and slot.
    pub fn iter(&self) -> impl Iterator<Item = (LinkId, &Link)> {
        self.rows.iter().enumerate().flat_map(|(row, entries)| {
            entries.iter().enumerate().filter_map(move |(index, entry)| {
                let entry = entry.as_ref()?;
                let slot = SlotId { index: index as u32, generation: entry.generation };
                Some((LinkId { rail: rail_of(row), slot }, &entry.link))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_found_by_its_own_name_only() {
        let name = |rail, index, generation| LinkId { rail, slot: SlotId { index, generation } };
        let mut links = Links::default();
        for id in [LOOP_LINK, name(0, 3, 1), name(2, 0, 7)] {
            links.insert(id, Link::new(None, id.slot.generation));
        }
        assert_eq!(links.get(name(2, 0, 7)).map(|link| link.nonce), Some(7));
        for stranger in [name(2, 0, 6), name(0, 0, 1), name(0, 4, 1), name(1, 0, 1), name(9, 0, 1)]
        {
            assert!(links.get(stranger).is_none() && links.remove(stranger).is_none());
        }
        let all: Vec<LinkId> = links.iter().map(|(id, _)| id).collect();
        assert_eq!(all, [LOOP_LINK, name(0, 3, 1), name(2, 0, 7)]);
        let peer = |index| PeerId(SlotId { index, generation: 2 });
        links.set_peer(name(2, 0, 7), peer(1));
        links.set_peer(LOOP_LINK, peer(1));
        links.set_peer(name(0, 3, 1), peer(1));
        links.set_peer(name(0, 3, 1), peer(0));
        assert_eq!(links.of_peer(peer(1)), [name(2, 0, 7), LOOP_LINK]);
        assert_eq!(links.of_peer(peer(0)), [name(0, 3, 1)]);
        links.remove(name(2, 0, 7));
        links.insert(LOOP_LINK, Link::new(Some(peer(1)), 1));
        assert_eq!(links.of_peer(peer(1)), [LOOP_LINK]);
        assert_eq!(links.of_peer(PeerId(SlotId { index: 1, generation: 1 })), []);
        assert!(links.remove(LOOP_LINK).is_some());
        assert!(links.get_mut(LOOP_LINK).is_none());
    }

    #[test]
    fn every_link_that_carries_a_session_has_its_turn_and_no_other() {
        let name = |index| LinkId { rail: 0, slot: SlotId { index, generation: 1 } };
        let mut links = Links::default();
        for index in 0..7 {
            links.insert(name(index), Link::new(None, index));
            links.begin_carrying(name(index));
        }
        links.begin_carrying(name(3));
        assert_eq!((links.carrying(), links.surplus(5), links.surplus(9)), (7, 2, 0));
        links.set_closing_idle(name(0), true);
        links.set_closing_idle(name(0), true);
        assert_eq!(links.surplus(5), 1);
        links.end_carrying(name(0));
        links.remove(name(6));
        links.end_carrying(name(6));
        assert_eq!((links.carrying(), links.surplus(4)), (5, 1));
        let mut turns: Vec<u32> =
            (0..10).filter_map(|_| links.next_turn()).map(|it| it.slot.index).collect();
        turns.sort_unstable();
        assert_eq!(turns, [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]);
    }

    #[test]
    fn links_are_fixed_when_each_had_its_turn_and_none_may_be_closed() {
        let name = |index| LinkId { rail: 0, slot: SlotId { index, generation: 1 } };
        let mut links = Links::default();
        for index in 0..3 {
            links.insert(name(index), Link::new(None, index));
            links.begin_carrying(name(index));
        }
        for closes in [false, false, true, false, false] {
            links.note_turn(closes);
            assert!(!links.are_fixed());
        }
        links.note_turn(false);
        assert!(links.are_fixed());
        links.insert(name(3), Link::new(None, 3));
        links.begin_carrying(name(3));
        assert!(!links.are_fixed(), "it may be one that can be closed");
    }
}
