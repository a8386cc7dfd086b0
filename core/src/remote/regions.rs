//! Regions: memory that peers may access, and who may.
//!
//! Invariant: a region is listed with its audience, so that a link's beginning and end concern the
//! regions of its peer, of groups and of everybody, and no others.

use std::collections::BTreeMap;

use ropewalk_base::memory::Slice;
use ropewalk_base::slots::{SlotId, Slots};
use ropewalk_base::verb::LinkId;

use crate::api::{Audience, OperationId, PeerId};
use crate::lists::{List, Neighbours, Table};

/// Memory that peers may access.
#[derive(Debug)]
pub(crate) struct Region {
    pub secret: u64,
    pub slice: Slice,
    pub writable: bool,
    pub audience: Audience,
    /// Peers may use it by this number, too.
    pub name: Option<u64>,
    /// It takes immediate data; what is done to it is told.
    pub events: bool,
    pub counts: bool,
    /// The send whose announce made it; told when nobody holds it any more.
    pub owner: Option<OperationId>,
    pub closing: bool,
    /// Data frames and placements that use it.
    pub retained: u32,
    /// Streams that serve it: what peers asked for and is not on its way yet.
    pub streams: u32,
    /// Links over which it was exposed: until the rail confirms the end of the region, or that of the
    /// link, however long that is closing already.
    pub exposed: Vec<LinkId>,
}

/// All regions of an endpoint.
#[derive(Debug)]
pub(crate) struct Regions {
    entries: Slots<Entry>,
    /// Those of everybody, and of groups.
    everybody: List,
    /// By the peer's index.
    one: Vec<List>,
    /// Those that have names. One that is closing has none any more.
    names: BTreeMap<u64, SlotId>,
    /// How many count what is done to them.
    counting: u32,
    /// How many are one-shot: made by the announce of a send.
    one_shot: u32,
    /// Emptied lists of links, so that announced messages allocate nothing.
    spare_lists: Vec<Vec<LinkId>>,
}

/// Emptied lists that are kept.
const SPARE_MAX: usize = 64;

#[derive(Debug)]
struct Entry {
    region: Region,
    of_audience: Neighbours,
}

impl Table for Slots<Entry> {
    #[inline]
    fn neighbours(&mut self, index: u32) -> &mut Neighbours {
        &mut self.at_mut(index).expect("a region is listed while it is here").of_audience
    }
}

impl Regions {
    pub fn with_limit(limit: usize) -> Regions {
        let entries = Slots::with_limit(limit);
        Regions {
            entries,
            everybody: List::EMPTY,
            one: Vec::new(),
            names: BTreeMap::new(),
            counting: 0,
            one_shot: 0,
            spare_lists: Vec::new(),
        }
    }

    /// Regions that announces of sends have made and whose memory is not given back yet.
    #[inline]
    pub fn one_shot(&self) -> u32 {
        self.one_shot
    }

    /// An empty list of links.
    pub fn take_list(&mut self) -> Vec<LinkId> {
        self.spare_lists.pop().unwrap_or_default()
    }

    /// Keeps an empty list for later.
    pub fn give_list(&mut self, list: Vec<LinkId>) {
        if self.spare_lists.len() < SPARE_MAX {
            self.spare_lists.push(list);
        }
    }

    /// Adds a region; gives it back where there is no room.
    pub fn insert(&mut self, region: Region) -> Result<SlotId, Region> {
        let (audience, one_shot) = (region.audience, region.owner.is_some());
        let (name, counts) = (region.name, region.counts);
        let entry = Entry { region, of_audience: Neighbours::NONE };
        let slot = self.entries.insert(entry).map_err(|entry| entry.region)?;
        let list = match audience {
            Audience::Everybody | Audience::Group(_) => &mut self.everybody,
            Audience::One(peer) => {
                let index = peer.0.index as usize;
                if self.one.len() <= index {
                    self.one.resize(index + 1, List::EMPTY);
                }
                &mut self.one[index]
            }
        };
        list.push_back(&mut self.entries, slot.index);
        self.one_shot += u32::from(one_shot);
        self.counting += u32::from(counts);
        if let Some(name) = name {
            self.names.insert(name, slot);
        }
        Ok(slot)
    }

    /// Takes a region out.
    pub fn remove(&mut self, slot: SlotId) -> Option<Region> {
        let list = match self.entries.get(slot)?.region.audience {
            Audience::Everybody | Audience::Group(_) => &mut self.everybody,
            Audience::One(peer) => &mut self.one[peer.0.index as usize],
        };
        list.take(&mut self.entries, slot.index);
        let region = self.entries.remove(slot)?.region;
        self.one_shot -= u32::from(region.owner.is_some());
        self.counting -= u32::from(region.counts);
        Some(region)
    }

    /// Whether any of them counts what is done to it.
    #[inline]
    pub fn any_counts(&self) -> bool {
        self.counting > 0
    }

    /// Whether a region has this name.
    pub fn has_name(&self, name: u64) -> bool {
        self.names.contains_key(&name)
    }

    /// The region with this name.
    #[cold]
    pub fn named(&self, name: u64) -> Option<(SlotId, &Region)> {
        let slot = *self.names.get(&name)?;
        Some((slot, self.get(slot)?))
    }

    /// A region ends: another one may have its name.
    pub fn free_name(&mut self, slot: SlotId) {
        let name = self.get_mut(slot).and_then(|region| region.name.take());
        if let Some(name) = name {
            self.names.remove(&name);
        }
    }

    #[inline]
    pub fn get(&self, slot: SlotId) -> Option<&Region> {
        self.entries.get(slot).map(|entry| &entry.region)
    }

    #[inline]
    pub fn get_mut(&mut self, slot: SlotId) -> Option<&mut Region> {
        self.entries.get_mut(slot).map(|entry| &mut entry.region)
    }

    /// The regions that this peer may access, closing ones included, and those of all groups.
    pub fn open_to(&mut self, peer: PeerId) -> Vec<SlotId> {
        let own = self.one.get(peer.0.index as usize).copied().unwrap_or(List::EMPTY);
        let mut all = self.everybody.collect(&mut self.entries);
        all.extend(own.collect(&mut self.entries));
        let named = |index| {
            let slot = self.entries.id_at(index)?;
            match self.get(slot)?.audience {
                Audience::One(other) if other != peer => None,
                _ => Some(slot),
            }
        };
        let mut slots: Vec<SlotId> = all.into_iter().filter_map(named).collect();
        slots.sort_unstable();
        slots
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (SlotId, &Region)> {
        self.entries.iter().map(|(slot, entry)| (slot, &entry.region))
    }
}
