//! Matching: posted receives and unmatched messages.
//!
//! Neither a match nor a post nor a withdrawal walks over what it does not concern: `receives` and
//! `messages` find by hash; post and arrival numbers decide.
//!
//! Invariant: no receive in here accepts a message in here.

mod messages;
mod offers;
mod receives;
mod unmatched;

pub(crate) use receives::Found;
pub(crate) use unmatched::{Content, Unmatched, Wanted};

use ropewalk_base::hash::HashSeed;
use ropewalk_base::slots::SlotId;

use self::messages::Messages;
use self::offers::Offers;
use self::receives::Receives;
use crate::api::{CHANNELS, Channel, OperationId, PeerId};

/// Receives and messages that wait for each other.
#[derive(Debug)]
pub(crate) struct Matching {
    receives: Receives,
    messages: Messages,
    /// Messages that came to wait so far, and those of them whose bytes are here.
    pub arrivals: u64,
    /// By channel: messages that no posted receive accepts are dropped.
    drops_unawaited: [bool; CHANNELS],
    /// Receives with room for more bytes than are surely sent eagerly.
    awaited: u32,
    eager_bytes: u64,
    offers: Offers,
}

impl Matching {
    /// `eager_bytes`: any peer may send messages of up to so many bytes eagerly.
    pub fn new(hash: HashSeed, eager_bytes: u64) -> Matching {
        Matching {
            receives: Receives::new(hash.clone()),
            messages: Messages::new(hash),
            arrivals: 0,
            drops_unawaited: [false; CHANNELS],
            awaited: 0,
            eager_bytes,
            offers: Offers::default(),
        }
    }

    /// From now on messages of a channel that no posted receive accepts are dropped.
    pub fn drop_unawaited(&mut self, channel: Channel) {
        self.drops_unawaited[channel as usize] = true;
    }

    #[inline]
    pub fn drops_unawaited(&self, channel: Channel) -> bool {
        self.drops_unawaited[channel as usize]
    }

    /// From now on messages of a channel are offered, with those that wait and came after so many arrivals; `None`: not
    /// any more.
    pub fn offer_unmatched(&mut self, wanted: Option<(Channel, u64)>) {
        let channel = wanted.map(|(channel, _)| channel);
        if channel.is_none_or(|channel| !self.offers.are_of(channel)) {
            let waiting = wanted.map(|(channel, since)| self.messages_since(channel, since));
            self.offers = Offers::of(channel, waiting.unwrap_or_default());
        }
    }

    /// Notes that a message waits, which is offered if such messages are.
    #[inline]
    pub fn offer(&mut self, channel: Channel, found: SlotId) {
        self.offers.push(channel, found);
    }

    /// The message to offer next; it may be gone.
    pub fn first_offer(&self) -> Option<SlotId> {
        self.offers.first()
    }

    /// That message need not be offered any more.
    pub fn end_first_offer(&mut self) {
        self.offers.pop();
    }

    /// Receives that an announced message may end.
    #[inline]
    pub fn awaited(&self) -> u32 {
        self.awaited
    }

    /// Whether an announced message may end a receive with so much room, as a number.
    #[inline]
    pub fn awaits(&self, room: u64) -> u32 {
        u32::from(room > self.eager_bytes)
    }

    /// A receive with so much room begins.
    #[inline]
    pub fn begin_receive(&mut self, room: u64) {
        self.awaited += self.awaits(room);
    }

    /// A receive with so much room is over.
    #[inline]
    pub fn end_receive(&mut self, room: u64) {
        self.awaited -= self.awaits(room);
    }

    /// The turn of a receive that is posted now.
    #[inline(always)]
    pub fn next_post(&mut self) -> u64 {
        self.receives.next_post()
    }

    /// The turn that was given last.
    pub fn posts(&self) -> u64 {
        self.receives.posts()
    }

    /// Adds a receive that no message in here satisfies, in its turn.
    #[inline(always)]
    pub fn post(&mut self, post: u64, operation: OperationId, wanted: Wanted) {
        self.receives.post(post, operation, wanted);
    }

    /// Takes the receive out that a new message goes to: the earliest posted that accepts it.
    #[inline(always)]
    pub fn take_receive(
        &mut self,
        channel: Channel,
        peer: PeerId,
        bits: u64,
    ) -> Option<OperationId> {
        let found = self.receives.first(channel, peer, bits)?;
        self.receives.take(found);
        Some(found.operation)
    }

    /// The receive that a new message goes to. It stays until `take`.
    #[inline(always)]
    pub fn first_receive(&self, channel: Channel, peer: PeerId, bits: u64) -> Option<Found> {
        self.receives.first(channel, peer, bits)
    }

    /// Takes what `first_receive` found just now.
    #[inline(always)]
    pub fn take(&mut self, found: Found) {
        self.receives.take(found);
    }

    /// Takes a posted receive out, wherever it is; false where it is not posted.
    pub fn withdraw(&mut self, post: u64, wanted: Wanted) -> bool {
        self.receives.withdraw(post, wanted)
    }

    /// Adds a message that no receive in here accepts; `None` where there is no room.
    pub fn arrive(&mut self, message: Unmatched) -> Option<SlotId> {
        self.arrivals += 1;
        self.messages.add(message, self.arrivals)
    }

    /// The bytes of a message are here.
    pub fn received(&mut self, id: SlotId) {
        self.arrivals += 1;
        self.messages.received(id, self.arrivals);
    }

    /// The messages of a channel that came to wait, or of which the bytes came, after so many arrivals; earliest first.
    pub fn messages_since(&mut self, channel: Channel, arrivals: u64) -> Vec<SlotId> {
        self.messages.since(channel, arrivals)
    }

    /// The message that a new receive takes: the earliest arrived that it accepts. It stays.
    #[inline]
    pub fn find_message(&mut self, wanted: Wanted) -> Option<SlotId> {
        self.messages.find(wanted)
    }

    pub fn message_mut(&mut self, id: SlotId) -> Option<&mut Unmatched> {
        self.messages.get_mut(id)
    }

    /// Takes a message out.
    pub fn remove_message(&mut self, id: SlotId) -> Option<Unmatched> {
        self.messages.remove(id)
    }

    /// The announced message of this number, where it is still here.
    pub fn find_rts(&self, channel: Channel, peer: PeerId, message: u64) -> Option<SlotId> {
        self.messages.find_rts(channel, peer, message)
    }

    /// The message with these bits that is arriving and was claimed by this receive.
    pub fn find_claimed(
        &mut self,
        channel: Channel,
        peer: PeerId,
        bits: u64,
        by: OperationId,
    ) -> Option<SlotId> {
        self.messages.find_claimed((channel, peer, bits), by)
    }

    /// The messages of a peer, earliest first.
    pub fn messages_of(&mut self, peer: PeerId) -> Vec<SlotId> {
        self.messages.of_peer(peer)
    }

    /// All messages.
    pub fn messages(&self) -> impl Iterator<Item = &Unmatched> {
        self.messages.iter()
    }

    /// How many messages wait for a receive.
    pub fn message_count(&self) -> usize {
        self.messages.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ropewalk_base::random::Random;

    use ropewalk_base::verb::{Help, RemoteKey};

    use super::*;

    const TAGGED: Channel = Channel::Tagged;

    fn peer(index: u32) -> PeerId {
        PeerId(SlotId { index, generation: 1 })
    }
    fn operation(index: u32) -> OperationId {
        OperationId(SlotId { index, generation: 1 })
    }
    fn wanted(source: Option<PeerId>, bits: u64, mask: u64) -> Wanted {
        Wanted { channel: TAGGED, source, bits, mask }
    }
    fn message(peer: PeerId, bits: u64, message: u64, content: Content) -> Unmatched {
        let (channel, session, bytes, acknowledge) = (TAGGED, 1, 0, 0);
        let shown = false;
        Unmatched { channel, peer, session, bits, message, bytes, content, acknowledge, shown }
    }

    /// A receive or a message of a few sources, bits and masks, so that they meet.
    fn draw(random: &mut Random) -> (Wanted, PeerId, u64) {
        let sender = peer(random.below(3) as u32);
        let range = if random.below(3) == 0 { 400 } else { 4 };
        let (bits, kind) = (random.below(range), random.below(6));
        let source = (kind < 3).then_some(sender);
        let mask = [u64::MAX, !1, 0][(kind % 3) as usize];
        (wanted(source, bits, mask), sender, bits)
    }

    /// Both directions against a list that is walked from its beginning.
    #[test]
    fn what_is_found_is_what_a_walk_would_find() {
        let mut random = Random::from_seed(5);
        let (mut matching, mut posted) = (Matching::new(HashSeed::OWN_KEYS, 1024), BTreeMap::new());
        let mut waiting: BTreeMap<u64, (PeerId, u64, SlotId)> = BTreeMap::new();
        let mut most = 0;
        for round in 0..20_000u32 {
            most = most.max(posted.len());
            let (receive, sender, bits) = draw(&mut random);
            match random.below(5) {
                0 | 1 => {
                    let accepted = waiting
                        .iter()
                        .find(|(_, (peer, bits, _))| receive.accepts(TAGGED, *peer, *bits))
                        .map(|(number, (.., id))| (*number, *id));
                    assert_eq!(matching.find_message(receive), accepted.map(|(_, id)| id));
                    if let Some((number, id)) = accepted {
                        waiting.remove(&number);
                        assert!(matching.remove_message(id).is_some());
                    } else {
                        let post = matching.next_post();
                        matching.post(post, operation(round), receive);
                        posted.insert(post, (operation(round), receive));
                    }
                }
                2 | 3 => {
                    let expected = posted
                        .iter()
                        .find(|(_, (_, receive))| receive.accepts(TAGGED, sender, bits))
                        .map(|(post, (operation, _))| (*post, *operation));
                    let taken = matching.take_receive(TAGGED, sender, bits);
                    assert_eq!(taken, expected.map(|(_, operation)| operation));
                    if let Some((post, _)) = expected {
                        posted.remove(&post);
                    } else if waiting.len() < 60 {
                        let number = u64::from(round);
                        let content = Content::Empty;
                        let id = matching.arrive(message(sender, bits, number, content)).unwrap();
                        waiting.insert(number, (sender, bits, id));
                    }
                }
                _ if posted.len() > 40 => {
                    let nth = random.below(posted.len() as u64) as usize;
                    let (post, (id, receive)) = posted.iter().nth(nth).unwrap();
                    let (post, id, receive) = (*post, *id, *receive);
                    assert!(matching.withdraw(post, receive));
                    assert!(!matching.withdraw(post, receive), "it is gone");
                    if round % 2 == 0 {
                        posted.remove(&post);
                    } else {
                        matching.post(post, id, receive);
                    }
                }
                _ => {}
            }
        }
        assert!(most > 40, "receives of many kinds waited, {most} at most");
    }

    #[test]
    fn the_earliest_posted_receive_wins_whether_exact_or_wildcard() {
        let mut matching = Matching::new(HashSeed::OWN_KEYS, 1024);
        let all = [
            wanted(Some(peer(1)), 5, u64::MAX),
            wanted(None, 0, 0),
            wanted(Some(peer(1)), 5, u64::MAX),
            wanted(Some(peer(2)), 4, !1),
        ];
        for (number, wanted) in all.into_iter().enumerate() {
            matching.post(number as u64, operation(number as u32), wanted);
        }
        assert_eq!(matching.take_receive(TAGGED, peer(1), 5), Some(operation(0)));
        assert_eq!(matching.take_receive(TAGGED, peer(1), 5), Some(operation(1)));
        assert_eq!(matching.take_receive(Channel::Untagged, peer(1), 5), None);
        assert_eq!(matching.take_receive(TAGGED, peer(2), 5), Some(operation(3)));
        assert!(matching.withdraw(2, all[2]));
        assert_eq!(matching.take_receive(TAGGED, peer(1), 5), None);
    }

    #[test]
    fn the_earliest_message_wins_and_claimed_ones_are_passed_over() {
        let mut matching = Matching::new(HashSeed::OWN_KEYS, 1024);
        let mut add = |bits, number, content| {
            matching.arrive(message(peer(1), bits, number, content)).unwrap()
        };
        let claimed = add(7, 0, Content::Arriving { claimed_by: Some(operation(9)) });
        let first = add(8, 1, Content::Empty);
        let second = add(7, 2, Content::Empty);
        assert_eq!(matching.find_message(wanted(None, 0, 0)), Some(first));
        assert_eq!(matching.find_message(wanted(Some(peer(1)), 7, u64::MAX)), Some(second));
        matching.remove_message(first);
        assert_eq!(matching.find_message(wanted(None, 0, 0)), Some(second));
        assert_eq!(matching.messages_of(peer(1)), [claimed, second]);
        matching.remove_message(claimed);
        matching.remove_message(second);
        assert_eq!(matching.find_message(wanted(None, 0, 0)), None);
        assert_eq!(matching.message_count(), 0);
        assert_eq!(matching.messages_of(peer(1)), []);
    }

    #[test]
    fn an_announced_message_is_found_by_its_number() {
        let mut matching = Matching::new(HashSeed::OWN_KEYS, 1024);
        let key = RemoteKey { slot: SlotId { index: 1, generation: 1 }, secret: 2 };
        let found =
            matching.arrive(message(peer(1), 7, 3, Content::Rendezvous(key, Help::None))).unwrap();
        matching.arrive(message(peer(1), 7, 4, Content::Empty)).unwrap();
        assert_eq!(matching.find_rts(TAGGED, peer(1), 3), Some(found));
        assert_eq!(matching.find_rts(TAGGED, peer(1), 4), None, "it is no announced one");
        assert_eq!(matching.find_rts(TAGGED, peer(2), 3), None);
        matching.remove_message(found);
        assert_eq!(matching.find_rts(TAGGED, peer(1), 3), None);
    }
}
