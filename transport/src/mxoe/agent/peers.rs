//! The table of peers: the place of each peer, the next peer to ask, and the peer that goes when the table is full.
//!
//! Invariant: each peer is once in the table, once in the order in which they go, and among the questions where it
//! is asked at all; [`Table::change`] is the only way to change one. A place is a peer's, or free and among the free.

use std::collections::BTreeSet;

use ropewalk_base::hash::{HashMap, HashSeed};
use ropewalk_base::time::Time;
use ropewalk_wire::mxoe::{Announcement, INDEX_UNKNOWN, Order, Station};

/// Peers of a table: indices have 16 bits, of which one stands for nobody, and the first one is the interface's own.
pub const PEERS_MAX: u16 = INDEX_UNKNOWN - 1;

/// Another interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    pub station: Station,
    /// In this table, from 1.
    pub index: u16,
    /// That of this interface in the peer's table.
    pub reverse: u16,
    /// Of its life, where it has sent a beacon.
    pub serial: Option<u32>,
    /// It is one of ours.
    pub ours: Option<Announcement>,
    /// The byte order in which it speaks MXoE, where it said something that tells.
    pub order: Option<Order>,
    /// As it was told, without a zero byte.
    pub name: Option<Box<[u8]>>,
    /// When something came from it, or a mapper named it.
    pub heard: Time,
    /// When it is asked for its name; never where it has told it.
    pub(super) ask_at: Time,
}

/// See the module.
#[derive(Debug)]
pub struct Table {
    /// The peer of index 1 comes first.
    peers: Vec<Option<Peer>>,
    /// Indices of those that were taken out.
    free: BTreeSet<u16>,
    by_station: HashMap<Station, u16>,
    /// Those that have not told a name first, then by age.
    goes: BTreeSet<(bool, Time, u16)>,
    asks: BTreeSet<(Time, u16)>,
    max: u16,
}

impl Peer {
    fn goes(&self) -> (bool, Time, u16) {
        (self.name.is_some(), self.heard, self.index)
    }
}

impl Table {
    pub fn with_limit(max: u16, hash: HashSeed) -> Table {
        Table {
            peers: Vec::new(),
            free: BTreeSet::new(),
            by_station: HashMap::with_hasher(hash),
            goes: BTreeSet::new(),
            asks: BTreeSet::new(),
            max,
        }
    }

    pub fn find(&self, station: Station) -> Option<u16> {
        self.by_station.get(&station).copied()
    }

    pub fn get(&self, index: u16) -> Option<&Peer> {
        self.peers.get(usize::from(index.checked_sub(1)?))?.as_ref()
    }

    /// Peers from an index on.
    pub fn from(&self, index: u16) -> impl Iterator<Item = &Peer> {
        self.peers.iter().skip(usize::from(index.saturating_sub(1))).flatten()
    }

    /// When somebody is asked, and who.
    pub fn next_question(&self) -> Time {
        self.asks.first().map_or(Time::NEVER, |(at, _)| *at)
    }

    pub fn question(&self) -> Option<u16> {
        self.asks.first().map(|(_, index)| *index)
    }

    /// A station that was not known. If there is no room, another one goes.
    pub fn add(&mut self, station: Station, now: Time) -> u16 {
        let peer = |index| Peer {
            station,
            index,
            reverse: INDEX_UNKNOWN,
            serial: None,
            ours: None,
            order: None,
            name: None,
            heard: now,
            ask_at: now,
        };
        if self.free.is_empty()
            && self.peers.len() >= usize::from(self.max)
            && let Some((.., oldest)) = self.goes.first().copied()
        {
            self.remove(oldest);
        }
        let index = match self.free.pop_first() {
            Some(index) => index,
            None => {
                self.peers.push(None);
                self.peers.len() as u16
            }
        };
        let peer = peer(index);
        self.by_station.insert(station, index);
        self.goes.insert(peer.goes());
        self.asks.insert((now, index));
        self.peers[usize::from(index) - 1] = Some(peer);
        index
    }

    /// Takes a peer out; its index is the next newcomer's.
    pub fn remove(&mut self, index: u16) {
        let place = usize::from(index).checked_sub(1).and_then(|at| self.peers.get_mut(at));
        let Some(gone) = place.and_then(Option::take) else { return };
        self.goes.remove(&gone.goes());
        self.asks.remove(&(gone.ask_at, index));
        self.by_station.remove(&gone.station);
        self.free.insert(index);
    }

    /// Changes a peer, but neither its station nor its index.
    pub fn change(&mut self, index: u16, change: impl FnOnce(&mut Peer)) {
        let Some(place) = usize::from(index).checked_sub(1) else { return };
        let Some(Some(peer)) = self.peers.get_mut(place) else { return };
        self.goes.remove(&peer.goes());
        self.asks.remove(&(peer.ask_at, index));
        change(peer);
        self.goes.insert(peer.goes());
        if peer.ask_at < Time::NEVER {
            self.asks.insert((peer.ask_at, index));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn station(number: u8) -> Station {
        Station([2, 0, 0, 0, 0, number])
    }

    #[test]
    fn where_there_is_no_room_the_one_goes_that_was_not_heard_for_the_longest_time() {
        let mut table = Table::with_limit(3, HashSeed::OWN_KEYS);
        for number in 1..=3 {
            assert_eq!(table.add(station(number), Time(u64::from(number))), u16::from(number));
        }
        // The oldest has told its name: strangers go first.
        table.change(1, |peer| (peer.name, peer.ask_at) = (Some([b'a'].into()), Time::NEVER));
        assert_eq!((table.next_question(), table.question()), (Time(2), Some(2)));
        assert_eq!(table.add(station(4), Time(4)), 2, "in its place");
        assert_eq!((table.find(station(2)), table.find(station(4))), (None, Some(2)));
        table.change(3, |peer| peer.heard = Time(5));
        assert_eq!(table.add(station(5), Time(5)), 2);
        assert_eq!((table.find(station(4)), table.find(station(1))), (None, Some(1)));
        let stations: Vec<Station> = table.from(0).map(|peer| peer.station).collect();
        assert_eq!(stations, [station(1), station(5), station(3)]);
        assert_eq!(table.from(3).count(), 1);
        assert_eq!((table.goes.len(), table.asks.len(), table.by_station.len()), (3, 2, 3));
    }

    #[test]
    fn who_is_taken_out_leaves_a_place_for_the_next_one() {
        let mut table = Table::with_limit(3, HashSeed::OWN_KEYS);
        for number in 1..=3 {
            table.add(station(number), Time(u64::from(number)));
        }
        table.remove(2);
        table.remove(2);
        assert_eq!((table.find(station(2)), table.get(2), table.from(0).count()), (None, None, 2));
        table.change(2, |_| panic!("nobody is there"));
        assert_eq!(table.question(), Some(1));
        table.remove(1);
        assert_eq!((table.next_question(), table.question()), (Time(3), Some(3)));
        let next = [4, 5, 6].map(|number| table.add(station(number), Time(u64::from(number))));
        assert_eq!(next, [1, 2, 3], "the third one came first");
        let stations: Vec<Station> = table.from(0).map(|peer| peer.station).collect();
        assert_eq!(stations, [4, 5, 6].map(station));
        assert_eq!((table.goes.len(), table.asks.len(), table.by_station.len()), (3, 3, 3));
        for index in 0..=4 {
            table.remove(index);
        }
        assert_eq!((table.goes.len(), table.asks.len(), table.by_station.len()), (0, 0, 0));
        assert_eq!(table.next_question(), Time::NEVER);
    }
}
