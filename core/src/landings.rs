//! Payloads on their way to their places, and which of them a link would take with it.
//!
//! Invariant: a landing is listed with its link, but for one whose payload is here already: that is
//! over before anything else happens.

use ropewalk_base::slots::{SlotId, Slots};
use ropewalk_base::verb::LinkId;

use crate::lists::{List, Neighbours, Table};
use crate::orders::Landing;

/// All landings of an endpoint.
#[derive(Debug)]
pub(crate) struct Landings {
    entries: Slots<Entry>,
    /// By rail and slot of the link.
    by_link: Vec<Vec<List>>,
}

#[derive(Debug)]
struct Entry {
    landing: Landing,
    listed: bool,
    of_link: Neighbours,
}

impl Table for Slots<Entry> {
    #[inline]
    fn neighbours(&mut self, index: u32) -> &mut Neighbours {
        &mut self.at_mut(index).expect("a landing is listed while it is here").of_link
    }
}

impl Landings {
    pub fn with_limit(limit: usize) -> Landings {
        Landings { entries: Slots::with_limit(limit), by_link: Vec::new() }
    }

    /// Adds a landing; gives it back where there is no room. `here`: so is its payload.
    #[inline]
    pub fn insert(&mut self, landing: Landing, here: bool) -> Result<SlotId, Landing> {
        let entry = Entry { landing, listed: false, of_link: Neighbours::NONE };
        match self.entries.insert(entry) {
            Ok(id) => {
                if !here {
                    self.list(id);
                }
                Ok(id)
            }
            Err(entry) => Err(entry.landing),
        }
    }

    /// Lists a landing with its link, where it is not.
    #[inline(never)]
    pub fn list(&mut self, id: SlotId) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        if std::mem::replace(&mut entry.listed, true) {
            return;
        }
        let (rail, slot) = place_of(entry.landing.link);
        if self.by_link.get(rail).is_none_or(|lists| lists.len() <= slot) {
            self.grow(rail, slot);
        }
        self.by_link[rail][slot].push_back(&mut self.entries, id.index);
    }

    #[cold]
    fn grow(&mut self, rail: usize, slot: usize) {
        if self.by_link.len() <= rail {
            self.by_link.resize_with(rail + 1, Vec::new);
        }
        self.by_link[rail].resize(slot + 1, List::EMPTY);
    }

    /// Takes a landing out.
    #[inline]
    pub fn remove(&mut self, id: SlotId) -> Option<Landing> {
        let entry = self.entries.get(id)?;
        if entry.listed {
            let link = entry.landing.link;
            self.unlist(id, link);
        }
        Some(self.entries.remove(id)?.landing)
    }

    #[inline(never)]
    fn unlist(&mut self, id: SlotId, link: LinkId) {
        let (rail, slot) = place_of(link);
        self.by_link[rail][slot].take(&mut self.entries, id.index);
    }

    /// All landings of a link, in the order in which they came.
    pub fn of(&mut self, link: LinkId) -> Vec<SlotId> {
        let (rail, slot) = place_of(link);
        let list = self.by_link.get(rail).and_then(|lists| lists.get(slot)).copied();
        let all = list.unwrap_or(List::EMPTY).collect(&mut self.entries);
        let named = |index| {
            let id = self.entries.id_at(index).expect("a landing is listed while it is here");
            self.get(id).is_some_and(|landing| landing.link == link).then_some(id)
        };
        all.into_iter().filter_map(named).collect()
    }

    /// Takes them out.
    pub fn take_of(&mut self, link: LinkId) -> Vec<Landing> {
        self.of(link).into_iter().filter_map(|id| self.remove(id)).collect()
    }

    #[inline]
    pub fn get(&self, id: SlotId) -> Option<&Landing> {
        self.entries.get(id).map(|entry| &entry.landing)
    }

    #[inline]
    pub fn get_mut(&mut self, id: SlotId) -> Option<&mut Landing> {
        self.entries.get_mut(id).map(|entry| &mut entry.landing)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Landing> {
        self.entries.iter().map(|(_, entry)| &entry.landing)
    }
}

/// The link of the endpoint to itself has the highest rail number, and comes first.
#[inline]
fn place_of(link: LinkId) -> (usize, usize) {
    (usize::from(link.rail.wrapping_add(1)), link.slot.index as usize)
}
