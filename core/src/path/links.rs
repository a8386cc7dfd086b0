//! The table of links, by rail and slot: found without hashing, walked in one order always.

use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::LinkId;

use super::Link;
use crate::api::LOOP_LINK;

/// All links of an endpoint. Rails number their slots densely, so that rows stay short.
#[derive(Debug, Default)]
pub(crate) struct Links {
    /// One row a rail; the link of the endpoint to itself has the first.
    rows: Vec<Vec<Option<Entry>>>,
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
        self.rows[row][index] = Some(Entry { generation: id.slot.generation, link });
    }

    pub fn remove(&mut self, id: LinkId) -> Option<Link> {
        let entry = self.rows.get_mut(row_of(id.rail))?.get_mut(id.slot.index as usize)?;
        entry.take_if(|entry| entry.generation == id.slot.generation).map(|entry| entry.link)
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
        assert!(links.remove(LOOP_LINK).is_some());
        assert!(links.get_mut(LOOP_LINK).is_none());
    }
}
