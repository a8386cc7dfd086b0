//! Who gets a message: posted receives and unmatched messages.
//!
//! Exact receives (one source, all bits) and unmatched messages are found by hash, wildcard receives
//! by a walk in post order; post and arrival numbers decide between both.
//!
//! Invariant: no receive in here accepts a message in here.

use std::collections::VecDeque;

use hashbrown::HashMap;
use ropewalk_base::memory::BufferId;
use ropewalk_base::slots::{SlotId, Slots};
use ropewalk_base::verb::RemoteKey;

use crate::api::{Channel, OperationId, PeerId};

type Exact = (Channel, PeerId, u64);

/// A message that arrived before its receive.
#[derive(Debug)]
pub(crate) struct Unmatched {
    pub channel: Channel,
    pub peer: PeerId,
    /// The session that it came in: its credit is that session's.
    pub session: u32,
    pub bits: u64,
    pub message: u64,
    pub bytes: u64,
    pub content: Content,
    pub acknowledge: u8,
    /// Its number among all arrivals; set by `arrive`.
    pub arrival: u64,
}

/// Where the bytes of an unmatched message are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Content {
    /// There are none.
    Empty,
    /// On their way into a staging buffer; a receive may have claimed them already.
    Arriving { claimed_by: Option<OperationId> },
    /// In a staging buffer.
    Staged(BufferId),
    /// Still at the sender.
    Announced(RemoteKey),
}

#[derive(Debug)]
struct Wildcard {
    post: u64,
    operation: OperationId,
    wanted: Wanted,
}

/// What a receive wants.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub channel: Channel,
    pub source: Option<PeerId>,
    pub bits: u64,
    pub mask: u64,
}

impl Wanted {
    fn exact(&self) -> Option<Exact> {
        if self.mask == u64::MAX { Some((self.channel, self.source?, self.bits)) } else { None }
    }

    #[inline]
    fn accepts(&self, channel: Channel, peer: PeerId, bits: u64) -> bool {
        self.channel == channel
            && self.source.is_none_or(|source| source == peer)
            && (self.bits ^ bits) & self.mask == 0
    }
}

/// A posted receive, and where it is among the others.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub operation: OperationId,
    /// Its place in the list of wildcards.
    wildcard: Option<usize>,
}

/// Receives and messages that wait for each other.
#[derive(Debug)]
pub(crate) struct Matching {
    posts: u64,
    arrivals: u64,
    exact: HashMap<Exact, VecDeque<(u64, OperationId)>>,
    wildcards: VecDeque<Wildcard>,
    messages: Slots<Unmatched>,
    by_key: HashMap<Exact, VecDeque<SlotId>>,
    /// All messages by arrival; entries of messages that are gone are skipped and dropped.
    in_order: VecDeque<(u64, SlotId)>,
    /// Emptied queues, kept so that a steady flow allocates nothing.
    spare_posts: Vec<VecDeque<(u64, OperationId)>>,
    spare_messages: Vec<VecDeque<SlotId>>,
}

/// Most unmatched messages of an endpoint; credits keep well below.
const MESSAGES_MAX: usize = 1 << 24;
const SPARE_MAX: usize = 64;

impl Matching {
    pub fn new() -> Matching {
        Matching {
            posts: 0,
            arrivals: 0,
            exact: HashMap::new(),
            wildcards: VecDeque::new(),
            messages: Slots::with_limit(MESSAGES_MAX),
            by_key: HashMap::new(),
            in_order: VecDeque::new(),
            spare_posts: Vec::new(),
            spare_messages: Vec::new(),
        }
    }

    /// Adds a receive that no message in here satisfies.
    #[inline(always)]
    pub fn post(&mut self, operation: OperationId, wanted: Wanted) {
        let post = self.posts;
        self.posts += 1;
        self.post_as(post, operation, wanted);
    }

    /// Adds a receive in the turn that a post number gives it.
    #[inline(always)]
    pub fn post_as(&mut self, post: u64, operation: OperationId, wanted: Wanted) {
        match wanted.exact() {
            Some(key) => {
                let spare = &mut self.spare_posts;
                let queue =
                    self.exact.entry(key).or_insert_with(|| spare.pop().unwrap_or_default());
                // Nearly always the latest, and so the last.
                let at = match queue.back() {
                    Some((last, _)) if *last > post => {
                        queue.partition_point(|(other, _)| *other < post)
                    }
                    _ => return queue.push_back((post, operation)),
                };
                queue.insert(at, (post, operation));
            }
            None => {
                let wildcard = Wildcard { post, operation, wanted };
                let at = match self.wildcards.back() {
                    Some(last) if last.post > post => {
                        self.wildcards.partition_point(|other| other.post < post)
                    }
                    _ => return self.wildcards.push_back(wildcard),
                };
                self.wildcards.insert(at, wildcard);
            }
        }
    }

    /// Takes the receive out that a new message goes to: the earliest posted that accepts it.
    pub fn take_receive(
        &mut self,
        channel: Channel,
        peer: PeerId,
        bits: u64,
    ) -> Option<OperationId> {
        let found = self.first_receive(channel, peer, bits)?;
        self.take(found, channel, peer, bits);
        Some(found.operation)
    }

    /// The receive that a new message goes to. It stays until `take`.
    #[inline(always)]
    pub fn first_receive(&self, channel: Channel, peer: PeerId, bits: u64) -> Option<Found> {
        let key = (channel, peer, bits);
        let exact = match self.exact.is_empty() {
            true => None,
            false => self.exact.get(&key).and_then(|queue| queue.front()).copied(),
        };
        let accepts = |wildcard: &Wildcard| wildcard.wanted.accepts(channel, peer, bits);
        let first = self.wildcards.front().filter(|wildcard| accepts(wildcard));
        let wildcard = match first {
            Some(wildcard) => Some((0, wildcard)),
            None => self.wildcards.iter().enumerate().skip(1).find(|(_, it)| accepts(it)),
        };
        match (exact, wildcard) {
            (Some((post, operation)), wildcard)
                if wildcard.is_none_or(|(_, other)| post < other.post) =>
            {
                Some(Found { operation, wildcard: None })
            }
            (_, Some((index, wildcard))) => {
                Some(Found { operation: wildcard.operation, wildcard: Some(index) })
            }
            (_, None) => None,
        }
    }

    /// Takes what `first_receive` found just now.
    #[inline(always)]
    pub fn take(&mut self, found: Found, channel: Channel, peer: PeerId, bits: u64) {
        match found.wildcard {
            Some(0) => drop(self.wildcards.pop_front()),
            Some(index) => drop(self.wildcards.remove(index)),
            None => self.pop_exact((channel, peer, bits)),
        }
    }

    fn pop_exact(&mut self, key: Exact) {
        if let Some(queue) = self.exact.get_mut(&key) {
            queue.pop_front();
            if queue.is_empty() {
                self.recycle_posts(key);
            }
        }
    }

    fn recycle_posts(&mut self, key: Exact) {
        if let Some(queue) = self.exact.remove(&key)
            && self.spare_posts.len() < SPARE_MAX
        {
            self.spare_posts.push(queue);
        }
    }

    /// Takes a posted receive out, wherever it is; its post number. `None` where it is not posted.
    pub fn withdraw(&mut self, operation: OperationId, wanted: Wanted) -> Option<u64> {
        if let Some(key) = wanted.exact() {
            let queue = self.exact.get_mut(&key)?;
            let index = queue.iter().position(|(_, other)| *other == operation)?;
            let post = queue.remove(index).map(|(post, _)| post);
            if queue.is_empty() {
                self.recycle_posts(key);
            }
            return post;
        }
        let index = self.wildcards.iter().position(|wildcard| wildcard.operation == operation)?;
        self.wildcards.remove(index).map(|wildcard| wildcard.post)
    }

    /// Adds a message that no receive in here accepts; `None` where there is no room.
    pub fn arrive(&mut self, mut message: Unmatched) -> Option<SlotId> {
        let arrival = self.arrivals;
        self.arrivals += 1;
        message.arrival = arrival;
        let key = (message.channel, message.peer, message.bits);
        let id = self.messages.insert(message).ok()?;
        let spare = &mut self.spare_messages;
        self.by_key.entry(key).or_insert_with(|| spare.pop().unwrap_or_default()).push_back(id);
        self.in_order.push_back((arrival, id));
        Some(id)
    }

    /// The message that a new receive takes: the earliest arrived that it accepts. It stays.
    #[inline]
    pub fn find_message(&mut self, wanted: Wanted) -> Option<SlotId> {
        if self.messages.is_empty() { None } else { self.search_message(wanted) }
    }

    fn search_message(&mut self, wanted: Wanted) -> Option<SlotId> {
        if let Some(key) = wanted.exact() {
            let queue = self.by_key.get(&key)?;
            return queue
                .iter()
                .copied()
                .find(|id| self.messages.get(*id).is_some_and(|message| message.is_free()));
        }
        while self.in_order.front().is_some_and(|(_, id)| self.messages.get(*id).is_none()) {
            self.in_order.pop_front();
        }
        // Gaps of messages that went are cut out when they are most of the list.
        if self.in_order.len() > 64 && self.in_order.len() > 4 * self.messages.len() {
            let messages = &self.messages;
            self.in_order.retain(|(_, id)| messages.get(*id).is_some());
        }
        self.in_order.iter().map(|(_, id)| *id).find(|id| {
            self.messages.get(*id).is_some_and(|message| {
                message.is_free() && wanted.accepts(message.channel, message.peer, message.bits)
            })
        })
    }

    pub fn message_mut(&mut self, id: SlotId) -> Option<&mut Unmatched> {
        self.messages.get_mut(id)
    }

    /// Takes a message out.
    pub fn remove_message(&mut self, id: SlotId) -> Option<Unmatched> {
        let message = self.messages.remove(id)?;
        let key = (message.channel, message.peer, message.bits);
        if let Some(queue) = self.by_key.get_mut(&key) {
            if queue.front() == Some(&id) {
                queue.pop_front();
            } else {
                queue.retain(|other| *other != id);
            }
            if queue.is_empty()
                && let Some(queue) = self.by_key.remove(&key)
                && self.spare_messages.len() < SPARE_MAX
            {
                self.spare_messages.push(queue);
            }
        }
        if self.messages.is_empty() {
            self.in_order.clear();
        } else {
            while self.in_order.front().is_some_and(|(_, id)| self.messages.get(*id).is_none()) {
                self.in_order.pop_front();
            }
        }
        Some(message)
    }

    /// The announced message of this number, where it is still here.
    pub fn find_announced(&self, channel: Channel, peer: PeerId, message: u64) -> Option<SlotId> {
        self.messages
            .iter()
            .find(|(_, entry)| {
                let announced = matches!(entry.content, Content::Announced(_));
                let same = entry.peer == peer && entry.channel == channel;
                announced && same && entry.message == message
            })
            .map(|(id, _)| id)
    }

    /// The message with these bits that is arriving and was claimed by this receive.
    pub fn find_claimed(
        &self,
        channel: Channel,
        peer: PeerId,
        bits: u64,
        by: OperationId,
    ) -> Option<SlotId> {
        let queue = self.by_key.get(&(channel, peer, bits))?;
        queue.iter().copied().find(|id| {
            self.messages.get(*id).is_some_and(|message| {
                matches!(message.content, Content::Arriving { claimed_by } if claimed_by == Some(by))
            })
        })
    }

    /// The messages of a peer, earliest first.
    pub fn messages_of(&self, peer: PeerId) -> Vec<SlotId> {
        let mut found: Vec<(u64, SlotId)> = self
            .messages
            .iter()
            .filter(|(_, entry)| entry.peer == peer)
            .map(|(id, entry)| (entry.arrival, id))
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, id)| id).collect()
    }

    /// All messages.
    pub fn messages(&self) -> impl Iterator<Item = &Unmatched> {
        self.messages.iter().map(|(_, message)| message)
    }

    /// How many messages wait for a receive.
    pub fn message_count(&self) -> usize {
        self.messages.len()
    }
}

impl Unmatched {
    /// Whether no receive has claimed it.
    fn is_free(&self) -> bool {
        !matches!(self.content, Content::Arriving { claimed_by: Some(_) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(index: u32) -> PeerId {
        PeerId(SlotId { index, generation: 1 })
    }
    fn operation(index: u32) -> OperationId {
        OperationId(SlotId { index, generation: 1 })
    }
    fn wanted(source: Option<PeerId>, bits: u64, mask: u64) -> Wanted {
        Wanted { channel: Channel::Tagged, source, bits, mask }
    }

    #[test]
    fn the_earliest_posted_receive_wins_whether_exact_or_wildcard() {
        let mut matching = Matching::new();
        matching.post(operation(0), wanted(Some(peer(1)), 5, u64::MAX));
        matching.post(operation(1), wanted(None, 0, 0));
        matching.post(operation(2), wanted(Some(peer(1)), 5, u64::MAX));
        matching.post(operation(3), wanted(Some(peer(2)), 4, !1));
        let tagged = Channel::Tagged;
        assert_eq!(matching.take_receive(tagged, peer(1), 5), Some(operation(0)));
        assert_eq!(matching.take_receive(tagged, peer(1), 5), Some(operation(1)));
        assert_eq!(matching.take_receive(Channel::Untagged, peer(1), 5), None);
        assert_eq!(matching.take_receive(tagged, peer(2), 5), Some(operation(3)));
        assert_eq!(matching.withdraw(operation(2), wanted(Some(peer(1)), 5, u64::MAX)), Some(2));
        assert_eq!(matching.take_receive(tagged, peer(1), 5), None);
    }

    #[test]
    fn the_earliest_message_wins_and_claimed_ones_are_passed_over() {
        let mut matching = Matching::new();
        let mut add = |bits, message, content| {
            let channel = Channel::Tagged;
            let (peer, session, bytes, acknowledge, arrival) = (peer(1), 1, 0, 0, 0);
            matching
                .arrive(Unmatched {
                    channel,
                    peer,
                    session,
                    bits,
                    message,
                    bytes,
                    content,
                    acknowledge,
                    arrival,
                })
                .unwrap()
        };
        let claimed = add(7, 0, Content::Arriving { claimed_by: Some(operation(9)) });
        let first = add(8, 1, Content::Empty);
        let second = add(7, 2, Content::Empty);
        assert_eq!(matching.find_message(wanted(None, 0, 0)), Some(first));
        assert_eq!(matching.find_message(wanted(Some(peer(1)), 7, u64::MAX)), Some(second));
        matching.remove_message(first);
        assert_eq!(matching.find_message(wanted(None, 0, 0)), Some(second));
        matching.remove_message(claimed);
        matching.remove_message(second);
        assert_eq!(matching.find_message(wanted(None, 0, 0)), None);
        assert_eq!(matching.message_count(), 0);
    }
}
