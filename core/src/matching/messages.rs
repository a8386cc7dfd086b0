//! Messages that came before their receives.
//!
//! They are found by what a receive may name: source and bits by a hash; an announced one by its number;
//! those of a peer by a list. A receive that leaves source or bits open looks at the first few, and then
//! makes a *view*: all messages by the bits that it does look at, kept up to date until none is left.

use std::collections::VecDeque;

use ropewalk_base::hash::{HashMap, HashSeed};
use ropewalk_base::slots::{SlotId, Slots};

use super::unmatched::{Content, Unmatched, Wanted};
use crate::api::{Channel, OperationId, PeerId};
use crate::lists::{List, Neighbours, Table};

/// Most unmatched messages of an endpoint; credits keep well below.
const MESSAGES_MAX: usize = 1 << 24;
/// Messages that are looked at before a view is made.
const WALK_MAX: usize = 16;
/// Views at a time; one more takes the place of the oldest.
const VIEWS_MAX: usize = 16;
/// Entries of messages that are gone which a view may always have.
const GONE_MAX: usize = 64;

type Exact = (Channel, PeerId, u64);

/// Messages that wait for receives.
#[derive(Debug)]
pub(super) struct Messages {
    entries: Slots<Entry>,
    /// All of them, by arrival.
    all: List,
    by_key: HashMap<Exact, List>,
    /// By the peer's index.
    by_peer: Vec<List>,
    announced: HashMap<Exact, SlotId>,
    views: VecDeque<View>,
}

#[derive(Debug)]
struct Entry {
    message: Unmatched,
    /// The latest of all arrivals that was its own.
    arrival: u64,
    of_all: Neighbours,
    of_key: Neighbours,
    of_peer: Neighbours,
}

/// All messages by some of their bits, and by their source where it is asked for.
#[derive(Debug)]
struct View {
    sourced: bool,
    mask: u64,
    queues: HashMap<Exact, VecDeque<SlotId>>,
    /// Entries of all queues, those of messages that are gone included.
    entries: usize,
}

struct OfAll<'a>(&'a mut Slots<Entry>);
struct OfKey<'a>(&'a mut Slots<Entry>);
struct OfPeer<'a>(&'a mut Slots<Entry>);

impl Table for OfAll<'_> {
    fn neighbours(&mut self, index: u32) -> &mut Neighbours {
        &mut self.0.at_mut(index).expect("a message is listed while it is here").of_all
    }
}

impl Table for OfKey<'_> {
    fn neighbours(&mut self, index: u32) -> &mut Neighbours {
        &mut self.0.at_mut(index).expect("a message is listed while it is here").of_key
    }
}

impl Table for OfPeer<'_> {
    fn neighbours(&mut self, index: u32) -> &mut Neighbours {
        &mut self.0.at_mut(index).expect("a message is listed while it is here").of_peer
    }
}

const ANYBODY: PeerId = PeerId(SlotId { index: 0, generation: 0 });

fn key_of(message: &Unmatched) -> Exact {
    (message.channel, message.peer, message.bits)
}

impl View {
    fn is_of(&self, wanted: &Wanted) -> bool {
        self.mask == wanted.mask && self.sourced == wanted.source.is_some()
    }

    fn key(&self, (channel, peer, bits): Exact) -> Exact {
        (channel, if self.sourced { peer } else { ANYBODY }, bits & self.mask)
    }

    fn add(&mut self, key: Exact, id: SlotId) {
        self.queues.entry(self.key(key)).or_default().push_back(id);
        self.entries += 1;
    }

    /// The first message that no receive has claimed.
    fn first(&mut self, wanted: &Wanted, messages: &Slots<Entry>) -> Option<SlotId> {
        let peer = wanted.source.unwrap_or(ANYBODY);
        let key = self.key((wanted.channel, peer, wanted.bits));
        let queue = self.queues.get_mut(&key)?;
        while queue.front().is_some_and(|id| messages.get(*id).is_none()) {
            queue.pop_front();
            self.entries -= 1;
        }
        if queue.is_empty() {
            self.queues.remove(&key);
            return None;
        }
        queue.iter().copied().find(|id| messages.get(*id).is_some_and(|it| it.message.is_free()))
    }

    /// Cuts entries of messages that are gone out, where they are most of all.
    fn sweep(&mut self, messages: &Slots<Entry>) {
        if self.entries <= GONE_MAX + 4 * messages.len() {
            return;
        }
        self.queues.retain(|_, queue| {
            queue.retain(|id| messages.get(*id).is_some());
            !queue.is_empty()
        });
        self.entries = self.queues.values().map(VecDeque::len).sum();
    }
}

impl Messages {
    pub fn new(hash: HashSeed) -> Messages {
        Messages {
            entries: Slots::with_limit(MESSAGES_MAX),
            all: List::EMPTY,
            by_key: HashMap::with_hasher(hash.clone()),
            by_peer: Vec::new(),
            announced: HashMap::with_hasher(hash),
            views: VecDeque::new(),
        }
    }

    /// Adds a message; `None` where there is no room.
    pub fn add(&mut self, message: Unmatched, arrival: u64) -> Option<SlotId> {
        let (key, number) = (key_of(&message), message.message);
        let announced = matches!(message.content, Content::Rendezvous(..));
        let [of_all, of_key, of_peer] = [Neighbours::NONE; 3];
        let id = self.entries.insert(Entry { message, arrival, of_all, of_key, of_peer }).ok()?;
        let (channel, peer, _) = key;
        self.all.push_back(&mut OfAll(&mut self.entries), id.index);
        let list = self.by_key.entry(key).or_insert(List::EMPTY);
        list.push_back(&mut OfKey(&mut self.entries), id.index);
        let owner = peer.0.index as usize;
        if owner >= self.by_peer.len() {
            self.by_peer.resize(owner + 1, List::EMPTY);
        }
        self.by_peer[owner].push_back(&mut OfPeer(&mut self.entries), id.index);
        if announced {
            self.announced.insert((channel, peer, number), id);
        }
        self.views.iter_mut().for_each(|view| view.add(key, id));
        Some(id)
    }

    /// The bytes of a message arrived.
    pub fn received(&mut self, id: SlotId, arrival: u64) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.arrival = arrival;
        }
    }

    /// The messages of a channel with later arrivals than this, earliest first.
    pub fn since(&mut self, channel: Channel, arrival: u64) -> Vec<SlotId> {
        let mut all = self.all.collect(&mut OfAll(&mut self.entries));
        all.retain(|index| {
            let entry = self.entries.at_mut(*index);
            entry.is_some_and(|it| it.arrival > arrival && it.message.channel == channel)
        });
        all.into_iter().filter_map(|index| self.entries.id_at(index)).collect()
    }

    /// The message that a new receive takes: the earliest arrived that it accepts. It stays.
    #[inline]
    pub fn find(&mut self, wanted: Wanted) -> Option<SlotId> {
        if self.entries.is_empty() { None } else { self.search(&wanted) }
    }

    #[inline(never)]
    fn search(&mut self, wanted: &Wanted) -> Option<SlotId> {
        if let (u64::MAX, Some(peer)) = (wanted.mask, wanted.source) {
            return self.first_of((wanted.channel, peer, wanted.bits), Unmatched::is_free);
        }
        let mut at = self.all.first();
        for _ in 0..WALK_MAX {
            let index = at?;
            let entry = self.entries.at_mut(index)?;
            let (channel, peer, bits) = key_of(&entry.message);
            if entry.message.is_free() && wanted.accepts(channel, peer, bits) {
                return self.entries.id_at(index);
            }
            at = entry.of_all.next();
        }
        let known = self.views.iter().position(|view| view.is_of(wanted));
        let at = known.unwrap_or_else(|| self.make_view(wanted));
        let view = &mut self.views[at];
        let found = view.first(wanted, &self.entries);
        view.sweep(&self.entries);
        found
    }

    /// The earliest of those with the same source and bits that is such.
    fn first_of(&mut self, key: Exact, is_such: impl Fn(&Unmatched) -> bool) -> Option<SlotId> {
        let mut at = self.by_key.get(&key)?.first();
        while let Some(index) = at {
            let entry = self.entries.at_mut(index)?;
            if is_such(&entry.message) {
                return self.entries.id_at(index);
            }
            at = entry.of_key.next();
        }
        None
    }

    /// The message that this receive claimed while it is arriving.
    pub fn find_claimed(&mut self, key: Exact, by: OperationId) -> Option<SlotId> {
        self.first_of(key, |message| {
            matches!(message.content, Content::Arriving { claimed_by } if claimed_by == Some(by))
        })
    }

    /// Costs a walk over all messages, once for those that are here.
    #[cold]
    fn make_view(&mut self, wanted: &Wanted) -> usize {
        if self.views.len() >= VIEWS_MAX {
            self.views.pop_front();
        }
        let (sourced, mask) = (wanted.source.is_some(), wanted.mask);
        let queues = HashMap::with_hasher(self.by_key.hasher().clone());
        let mut view = View { sourced, mask, queues, entries: 0 };
        for index in self.all.collect(&mut OfAll(&mut self.entries)) {
            if let Some(id) = self.entries.id_at(index)
                && let Some(entry) = self.entries.get(id)
            {
                view.add(key_of(&entry.message), id);
            }
        }
        self.views.push_back(view);
        self.views.len() - 1
    }

    pub fn get_mut(&mut self, id: SlotId) -> Option<&mut Unmatched> {
        self.entries.get_mut(id).map(|entry| &mut entry.message)
    }

    /// Takes a message out.
    pub fn remove(&mut self, id: SlotId) -> Option<Unmatched> {
        let message = &self.entries.get(id)?.message;
        let (key, number) = (key_of(message), message.message);
        let (channel, peer, _) = key;
        if matches!(message.content, Content::Rendezvous(..)) {
            self.announced.remove(&(channel, peer, number));
        }
        if let Some(list) = self.by_key.get_mut(&key) {
            list.take(&mut OfKey(&mut self.entries), id.index);
            if list.is_empty() {
                self.by_key.remove(&key);
            }
        }
        self.all.take(&mut OfAll(&mut self.entries), id.index);
        self.by_peer[peer.0.index as usize].take(&mut OfPeer(&mut self.entries), id.index);
        let removed = self.entries.remove(id)?;
        if self.entries.is_empty() {
            self.views.clear();
        }
        Some(removed.message)
    }

    /// The announced message of this number, where it is still here.
    pub fn find_rts(&self, channel: Channel, peer: PeerId, number: u64) -> Option<SlotId> {
        self.announced.get(&(channel, peer, number)).copied()
    }

    /// The messages of a peer, earliest first.
    pub fn of_peer(&mut self, peer: PeerId) -> Vec<SlotId> {
        let Some(list) = self.by_peer.get(peer.0.index as usize).copied() else {
            return Vec::new();
        };
        let all = list.collect(&mut OfPeer(&mut self.entries));
        let named = |index| {
            let id = self.entries.id_at(index)?;
            (self.entries.get(id)?.message.peer == peer).then_some(id)
        };
        all.into_iter().filter_map(named).collect()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Unmatched> {
        self.entries.iter().map(|(_, entry)| &entry.message)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }
}
