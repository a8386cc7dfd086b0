//! Messages to a partner: numbered, kept until they are acknowledged, and sent again whole.
//!
//! The partner acknowledges all messages before a number and says nothing of later ones, so that what was lost
//! is found by time: the first and the last one that are not acknowledged go again, and when that was not all, the
//! next; after a second time-out all of them.
//!
//! Invariants: messages have numbers in the order of their orders, and the ends of a partner's messages go before
//! those that wait, for which there may be room only when the partner has gone on; no more than [`AHEAD_MAX`] are
//! under way, since receivers drop what is further ahead of a loss.

use std::collections::VecDeque;
use std::time::Duration;

use ropewalk_base::shared::SharedBytes;
use ropewalk_base::time::Time;
use ropewalk_base::verb::Token;
use ropewalk_wire::mxoe::{SMALL_BYTES_MAX, Sequence};

use crate::memory::Payload;
use crate::round_trip::RoundTrip;

/// Messages under way; and how many of them are not the ends of a partner's. Those find room also where it
/// acknowledges nothing before it has heard of them: it has no more large messages at a time.
const AHEAD_MAX: usize = 255;
const MESSAGES_MAX: usize = AHEAD_MAX - 128;
/// Bytes of messages that are kept.
const KEPT_BYTES_MAX: usize = 1 << 20;
/// The longest time that partners may wait before they acknowledge: Open-MX takes 15 to 19 ms.
pub(super) const ACKNOWLEDGED_WITHIN: Duration = Duration::from_millis(25);

/// A message that has no number yet.
#[derive(Debug)]
pub(super) enum Waiting {
    /// `tells`: its arrival is told.
    Eager {
        bits: u64,
        payload: Payload,
        token: Token,
        named: Named,
        tells: bool,
    },
    Announce {
        bits: u64,
        bytes: u32,
        key_slot: u64,
        named: Named,
    },
}

/// The end of a message of the partner's.
#[derive(Debug, Clone, Copy)]
pub(super) struct Told {
    pub bytes: u32,
    pub region: u8,
    pub region_sequence: u8,
}

/// The name of a message at the layer that ordered it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Named {
    pub channel: u8,
    pub number: u64,
}

/// A message as it is kept.
#[derive(Debug)]
pub(super) enum Kept {
    /// `told`: its arrival is told to the layer that ordered it.
    Eager {
        bits: u64,
        bytes: SharedBytes,
        told: Option<Named>,
    },
    Announce {
        bits: u64,
        bytes: u32,
        region: u8,
        region_sequence: u8,
    },
    Notify {
        bytes: u32,
        region: u8,
        region_sequence: u8,
    },
}

#[derive(Debug)]
struct Sent {
    kept: Kept,
    /// It waits for being sent, or for the rest of it.
    queued: bool,
    /// Its fragment that goes next.
    fragment: u32,
    times: u32,
    sent_at: Time,
}

/// The numbered messages to one partner.
#[derive(Debug)]
pub(super) struct Sending {
    bits: u8,
    /// The number of the first message that is kept.
    acknowledged: u64,
    kept: VecDeque<Sent>,
    kept_bytes: usize,
    /// Numbers of those that go next; the first one is perhaps half on its way.
    to_send: VecDeque<u64>,
    pub waiting: VecDeque<Waiting>,
    pub ends: VecDeque<Told>,
    again_at: Time,
    misses: u32,
    /// Those before this number went before something was found to be lost.
    lost_before: u64,
    /// Since when nothing was acknowledged of what is under way.
    silent_since: Time,
    /// The number that the partner claims to expect next, although it cannot if it still knows us.
    claimed: Option<Sequence>,
    heard: bool,
}

impl Sending {
    /// Nothing was sent; the first message has this number.
    pub fn new(first: Sequence) -> Sending {
        Sending {
            bits: first.bits(),
            acknowledged: first.number().into(),
            kept: VecDeque::new(),
            kept_bytes: 0,
            to_send: VecDeque::new(),
            waiting: VecDeque::new(),
            ends: VecDeque::new(),
            again_at: Time::NEVER,
            misses: 0,
            lost_before: 0,
            silent_since: Time::NEVER,
            claimed: None,
            heard: false,
        }
    }

    /// The first number is another: nothing was sent.
    pub fn restart(&mut self, first: Sequence) {
        let (waiting, ends) = (std::mem::take(&mut self.waiting), std::mem::take(&mut self.ends));
        *self = Sending { waiting, ends, ..Sending::new(first) };
    }

    fn next_number(&self) -> u64 {
        self.acknowledged + self.kept.len() as u64
    }

    /// A number as it travels.
    pub fn sequence(&self, number: u64) -> Sequence {
        Sequence::new(self.bits, number)
    }

    /// Whether another message may have a number.
    pub fn has_room(&self) -> bool {
        self.kept.len() < MESSAGES_MAX && self.kept_bytes < KEPT_BYTES_MAX
    }

    /// The end of a partner's message that has a number next, where there is room for it.
    pub fn next_end(&mut self) -> Option<Told> {
        if self.kept.len() < AHEAD_MAX { self.ends.pop_front() } else { None }
    }

    /// Whether a message may go next, or have a number.
    pub fn wants(&self) -> bool {
        !self.to_send.is_empty()
            || (!self.ends.is_empty() && self.kept.len() < AHEAD_MAX)
            || (!self.waiting.is_empty() && self.has_room())
    }

    /// Whether all messages are acknowledged.
    pub fn is_done(&self) -> bool {
        self.kept.is_empty() && self.waiting.is_empty() && self.ends.is_empty()
    }

    /// Gives a message its number.
    pub fn push(&mut self, kept: Kept, now: Time) {
        let number = self.next_number();
        if self.kept.is_empty() {
            self.silent_since = now;
        }
        self.kept_bytes += kept.bytes();
        self.to_send.push_back(number);
        self.kept.push_back(Sent {
            kept,
            queued: true,
            fragment: 0,
            times: 0,
            sent_at: Time::NEVER,
        });
    }

    /// Everything before a number has arrived; those messages.
    pub fn acknowledge(
        &mut self,
        sequence: Sequence,
        round_trip: &RoundTrip,
        now: Time,
    ) -> Vec<Kept> {
        if sequence.bits() != self.bits {
            return Vec::new();
        }
        let upto = sequence.expand(self.acknowledged);
        if (self.acknowledged..=self.next_number()).contains(&upto) {
            // It knows us.
            self.claimed = None;
        }
        let count = upto.saturating_sub(self.acknowledged);
        if count == 0 {
            return Vec::new();
        }
        // A message that never left is not acknowledged, even if the partner says so.
        let count = count as usize;
        if count > self.kept.len() || self.kept.range(..count).any(|sent| sent.times == 0) {
            return Vec::new();
        }
        (self.acknowledged, self.heard) = (upto, true);
        let done: Vec<Kept> = self.kept.drain(..count).map(|sent| sent.kept).collect();
        self.kept_bytes -= done.iter().map(Kept::bytes).sum::<usize>();
        self.misses = 0;
        self.silent_since = if self.kept.is_empty() { Time::NEVER } else { now };
        self.again_at = match self.kept.front() {
            Some(sent) if sent.times > 0 => now + round_trip.timeout(ACKNOWLEDGED_WITHIN),
            _ => Time::NEVER,
        };
        if upto < self.lost_before {
            // This message left before a loss was found. Had it arrived, it would be acknowledged: it is lost, too.
            self.again(upto);
        }
        done
    }

    /// A message goes once more.
    fn again(&mut self, number: u64) {
        let Some(sent) = self.kept.get_mut((number - self.acknowledged) as usize) else { return };
        if !sent.queued {
            (sent.queued, sent.fragment) = (true, 0);
            self.to_send.push_back(number);
        }
    }

    fn all_again(&mut self) {
        for number in self.acknowledged..self.next_number() {
            self.again(number);
        }
    }

    /// The partner says which number it expects next: it heard of all messages before, and of none after. Open-MX means
    /// the next number that it matches, so fragments of messages before it may be missing. With `again`, all messages
    /// that the partner does not have go again. An impossible number may be late news, or the partner began anew. We
    /// believe that it began anew if nothing else is heard after a message went again.
    pub fn expected(
        &mut self,
        next: Sequence,
        again: bool,
        round_trip: &RoundTrip,
        now: Time,
    ) -> Vec<Kept> {
        if self.kept.is_empty() && !self.heard {
            // Nothing has had a number; and what it said before may have been late.
            self.restart(next);
            return Vec::new();
        }
        let number = next.expand(self.acknowledged);
        let same = next.bits() == self.bits;
        if same && (self.acknowledged..=self.next_number()).contains(&number) {
            let before = self.kept.iter().take((number - self.acknowledged) as usize);
            let here = before.take_while(|sent| sent.kept.is_one_packet()).count() as u64;
            let sure = self.sequence(self.acknowledged + here);
            let done = self.acknowledge(sure, round_trip, now);
            if again {
                self.all_again();
            }
            return done;
        }
        // One that begins anew begins with the first number: others of before are late.
        if !same || number > self.acknowledged || next.number() == 1 {
            self.claimed = Some(next);
        }
        Vec::new()
    }

    /// Whether a number has the session bits of these.
    pub fn is_in_bits_of(&self, other: Sequence) -> bool {
        self.bits == other.bits()
    }

    /// Whether something was acknowledged under these numbers.
    pub fn has_heard(&self) -> bool {
        self.heard
    }

    /// All that is kept goes under new numbers.
    fn renumber(&mut self, first: Sequence) {
        (self.bits, self.acknowledged) = (first.bits(), first.number().into());
        self.to_send.clear();
        self.kept.iter_mut().for_each(|sent| sent.queued = false);
        self.lost_before = 0;
        self.all_again();
    }

    /// When the first message that is not acknowledged goes again.
    pub fn due(&self) -> Time {
        self.again_at
    }

    /// Whether a message has not left, or is among those that the partner has not acknowledged; `regions` tells how the
    /// announce under a region was called. Since when the partner owes acknowledgements, for it that has left.
    pub fn owed_since(&self, message: Named, regions: impl Fn(u8) -> Option<Named>) -> Time {
        let waits = |it: &Waiting| match it {
            Waiting::Eager { named, .. } | Waiting::Announce { named, .. } => *named == message,
        };
        if self.waiting.iter().any(waits) {
            return Time::ZERO;
        }
        let is = |it: &Sent| match &it.kept {
            Kept::Eager { told, .. } => *told == Some(message),
            Kept::Announce { region, .. } => regions(*region) == Some(message),
            Kept::Notify { .. } => false,
        };
        if self.kept.iter().any(is) { self.silent_since } else { Time::NEVER }
    }

    /// Since when the partner owes an acknowledgement.
    pub fn silent_since(&self) -> Time {
        self.silent_since
    }

    /// Sends again the messages that were not acknowledged in time; their number.
    pub fn expire(&mut self, round_trip: &RoundTrip, now: Time) -> u64 {
        if self.again_at > now {
            return 0;
        }
        self.misses += 1;
        self.again_at = now + round_trip.timeout_after(ACKNOWLEDGED_WITHIN, self.misses);
        self.lost_before = self.next_number();
        if self.misses > 1 {
            if let Some(first) = self.claimed.take() {
                self.renumber(first);
            }
            self.all_again();
            return self.kept.len() as u64;
        }
        self.again(self.acknowledged);
        // Open-MX repeats an acknowledgement that was lost for the last message before the number only.
        self.again(self.next_number() - 1);
        2
    }

    /// The message that goes next: its number, what it is, and the fragment of it.
    pub fn next(&mut self) -> Option<(u64, &Kept, u32)> {
        loop {
            let number = *self.to_send.front()?;
            let index = number.checked_sub(self.acknowledged);
            if index.is_some_and(|index| (index as usize) < self.kept.len()) {
                break;
            }
            self.to_send.pop_front();
        }
        let number = *self.to_send.front()?;
        let sent = &self.kept[(number - self.acknowledged) as usize];
        Some((number, &sent.kept, sent.fragment))
    }

    /// The fragment that [`Sending::next`] named has left; `last`: with it the message.
    pub fn left(&mut self, last: bool, round_trip: &RoundTrip, now: Time) {
        let Some(number) = self.to_send.front().copied() else { return };
        let Some(sent) = self.kept.get_mut((number - self.acknowledged) as usize) else { return };
        sent.fragment += 1;
        if last {
            (sent.queued, sent.fragment, sent.sent_at) = (false, 0, now);
            sent.times += 1;
            self.to_send.pop_front();
            if self.again_at == Time::NEVER {
                self.again_at = now + round_trip.timeout(ACKNOWLEDGED_WITHIN);
            }
        }
    }

    /// Whether a message under this number is under way.
    pub fn is_under_way(&self, sequence: Sequence) -> bool {
        let number = sequence.expand(self.acknowledged);
        sequence.bits() == self.bits && (self.acknowledged..self.next_number()).contains(&number)
    }
}

impl Kept {
    /// Whether it goes in one packet in every dialect.
    fn is_one_packet(&self) -> bool {
        self.bytes() <= SMALL_BYTES_MAX
    }

    fn bytes(&self) -> usize {
        match self {
            Kept::Eager { bytes, .. } => bytes.len(),
            Kept::Announce { .. } | Kept::Notify { .. } => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time(millis * 1_000_000)
    }

    fn notify(bytes: u32) -> Kept {
        Kept::Notify { bytes, region: 0, region_sequence: 0 }
    }

    fn leave(sending: &mut Sending, now: Time) -> Vec<u64> {
        let mut numbers = Vec::new();
        while let Some((number, ..)) = sending.next() {
            numbers.push(number);
            sending.left(true, &RoundTrip::default(), now);
        }
        numbers
    }

    #[test]
    fn the_first_that_is_lost_goes_again_and_then_the_next_one() {
        let round_trip = RoundTrip::default();
        let mut sending = Sending::new(Sequence::new(2, 16_382));
        (0..5).for_each(|bytes| sending.push(notify(bytes), at(0)));
        assert_eq!(leave(&mut sending, at(0)), [16_382, 16_383, 16_384, 16_385, 16_386]);
        let acknowledge = |sending: &mut Sending, number: u64, now| {
            sending.acknowledge(Sequence::new(2, number), &round_trip, now).len()
        };
        assert_eq!(acknowledge(&mut sending, 16_383, at(1)), 1);
        assert_eq!(acknowledge(&mut sending, 16_383, at(1)), 0, "the same once more");
        assert_eq!(acknowledge(&mut sending, 16_388, at(1)), 0, "of what never left");
        assert!(sending.acknowledge(Sequence::new(1, 16_384), &round_trip, at(1)).is_empty());
        let due = sending.due();
        assert_eq!((sending.expire(&round_trip, at(2)), leave(&mut sending, due).len()), (0, 0));
        assert_eq!(sending.expire(&round_trip, due), 2);
        assert_eq!(leave(&mut sending, due), [16_383, 16_386]);
        assert_eq!(acknowledge(&mut sending, 16_384, due), 1);
        assert_eq!(leave(&mut sending, due), [16_384], "it was lost with the other");
        let (first, second) = (sending.due(), sending.due() + Duration::from_secs(1));
        sending.expire(&round_trip, first);
        assert_eq!(leave(&mut sending, first), [16_384, 16_386]);
        sending.expire(&round_trip, second);
        assert_eq!(leave(&mut sending, second), [16_384, 16_385, 16_386]);
        assert_eq!(acknowledge(&mut sending, 16_387, second), 3);
        assert_eq!((sending.due(), sending.is_done()), (Time::NEVER, true));
    }

    #[test]
    fn a_partner_that_expects_a_message_may_miss_fragments_of_those_before() {
        let round_trip = RoundTrip::default();
        let mut sending = Sending::new(Sequence::new(0, 1));
        for len in [10, 5000, 10] {
            sending.push(
                Kept::Eager { bits: 1, bytes: SharedBytes::new(vec![0; len]), told: None },
                at(0),
            );
        }
        leave(&mut sending, at(0));
        assert_eq!(sending.expected(Sequence::new(0, 4), true, &round_trip, at(1)).len(), 1);
        assert_eq!(leave(&mut sending, at(1)), [2, 3], "both go again");
        assert_eq!(sending.acknowledge(Sequence::new(0, 4), &round_trip, at(1)).len(), 2);
    }

    #[test]
    fn a_partner_that_forgot_is_told_everything_under_new_numbers() {
        let round_trip = RoundTrip::default();
        let mut sending = Sending::new(Sequence::new(0, 1));
        (0..4).for_each(|bytes| sending.push(notify(bytes), at(0)));
        leave(&mut sending, at(0));
        let heard = sending.expected(Sequence::new(0, 3), true, &round_trip, at(1));
        assert_eq!((heard.len(), leave(&mut sending, at(1))), (2, vec![3, 4]));
        assert!(sending.expected(Sequence::new(0, 1), true, &round_trip, at(2)).is_empty());
        assert_eq!(sending.acknowledge(Sequence::new(0, 4), &round_trip, at(2)).len(), 1);
        let due = sending.due();
        sending.expire(&round_trip, due);
        assert_eq!(leave(&mut sending, due), [4], "it knows us: the other was late news");
        assert!(sending.expected(Sequence::new(1, 1), true, &round_trip, due).is_empty());
        assert_eq!(leave(&mut sending, due), []);
        let due = sending.due();
        sending.expire(&round_trip, due);
        assert_eq!(leave(&mut sending, due), [1], "it forgot us");
        assert_eq!(sending.sequence(2), Sequence::new(1, 2));
    }
}
