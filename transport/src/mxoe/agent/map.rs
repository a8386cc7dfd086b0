//! A mapper's statements about the network: the stations that are there, and whether the map is complete. The agent
//! believes them like packets of the stations themselves; beacons and replies that come later tell more.

use ropewalk_base::time::Time;
use ropewalk_wire::mxoe::Station;

use super::{Agent, fitting};

/// The statements about the map as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Map {
    /// The card of the mapper that has drawn it, as a number.
    pub mapper: u64,
    pub version: u32,
    /// Cards on it.
    pub hosts: u32,
    /// Routes to all of them are there.
    pub is_complete: bool,
}

/// Whether a card can have this address.
pub(super) fn is_card(station: Station) -> bool {
    station.0 != [0; 6] && station.0[0] & 1 == 0
}

impl Agent {
    /// This station is there, and perhaps called so; false where no card can have its address. Its name is
    /// asked for where it is not told.
    pub fn add_peer(&mut self, station: Station, name: Option<&str>, now: Time) -> bool {
        self.now = self.now.max(now);
        if station == self.config.station {
            if let Some(name) = name {
                self.set_name(name, now);
            }
            return true;
        }
        if !is_card(station) {
            return false;
        }
        let (index, is_new) = self.hear(station);
        if let Some(name) = name {
            let name = fitting(name.to_string());
            self.table.change(index, |peer| {
                (peer.name, peer.ask_at) = (Some(name.into_bytes().into()), Time::NEVER);
            });
        }
        if is_new {
            // It may not have heard of this interface.
            self.begin_burst();
        }
        true
    }

    /// This station is not there any more, until it is heard again. False: it was not there.
    pub fn remove_peer(&mut self, station: Station) -> bool {
        let Some(index) = self.table.find(station) else { return false };
        self.table.remove(index);
        true
    }

    /// A mapper's latest statement about the map as a whole.
    pub fn map(&self) -> Option<Map> {
        self.map
    }

    /// A mapper says this of the map. If the map is complete, all peers without a known name are asked for it at once.
    pub fn set_map(&mut self, map: Map, now: Time) {
        self.now = self.now.max(now);
        self.map = Some(map);
        if map.is_complete {
            let nameless = self.table.from(0).filter(|peer| peer.name.is_none());
            let nameless: Vec<u16> = nameless.map(|peer| peer.index).collect();
            let now = self.now;
            nameless.into_iter().for_each(|index| self.table.change(index, |it| it.ask_at = now));
        }
    }
}
