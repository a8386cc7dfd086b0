//! Numbered packets on their way to a peer: kept until they are acknowledged, and sent again where lost.
//!
//! A packet counts as lost when one that left some time after it has arrived (RACK, RFC 8985). Where
//! nothing comes back at all, the last packet goes again as a probe, and then, at intervals that
//! double, all of them. Loss narrows the window of packets under way, arrival widens it.
//!
//! Invariant: a packet's content is given back exactly once, at its acknowledgement or at the end.

use std::collections::VecDeque;
use std::time::Duration;

use ropewalk_base::time::Time;

use super::receiving::{ACKNOWLEDGE_AFTER, ACKNOWLEDGE_EVERY, EARLY_MAX};
use super::round_trip::RoundTrip;

/// Packets under way: at first, at least and at most.
const WINDOW_FIRST: u32 = 32;
const WINDOW_MIN: u32 = ACKNOWLEDGE_EVERY;
pub const WINDOW_MAX: u32 = EARLY_MAX;

/// Packets to one peer.
#[derive(Debug)]
pub struct Sending<T> {
    /// The number of the first one that is kept.
    first: u32,
    kept: VecDeque<Kept<T>>,
    round_trip: RoundTrip,
    /// When the latest packet left that is known to have arrived.
    arrived_sent_at: Time,
    /// Kept packets that are to go again.
    lost: u32,
    window: u32,
    /// Packets that arrived since the window grew.
    grown: u32,
    /// Loss of packets before this number has narrowed the window already.
    narrowed_before: u32,
    /// When something is done though nothing comes back; how often that was in vain.
    alarm: Time,
    misses: u32,
    /// Since when nothing came back that was awaited.
    silent_since: Time,
}

#[derive(Debug)]
struct Kept<T> {
    /// Taken at its acknowledgement.
    content: Option<T>,
    sent_at: Time,
    /// It went more than once: its acknowledgement tells no round trip.
    again: bool,
    lost: bool,
}

/// A peer acknowledged what never left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeverSent;

impl<T> Default for Sending<T> {
    fn default() -> Sending<T> {
        Sending {
            first: 0,
            kept: VecDeque::new(),
            round_trip: RoundTrip::default(),
            arrived_sent_at: Time::ZERO,
            lost: 0,
            window: WINDOW_FIRST,
            grown: 0,
            narrowed_before: 0,
            alarm: Time::NEVER,
            misses: 0,
            silent_since: Time::NEVER,
        }
    }
}

impl<T> Sending<T> {
    /// Whether another packet may leave.
    pub fn has_room(&self) -> bool {
        // A receiver takes so many after one that is missing, however many of them it has.
        self.lost == 0 && self.kept.len() < self.window as usize
    }

    /// Whether a packet is to go again.
    pub fn goes_again(&self) -> bool {
        self.lost > 0
    }

    /// Whether anything is on its way or to go again.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// The number of the next packet.
    pub fn next_number(&self) -> u32 {
        self.first.wrapping_add(self.kept.len() as u32)
    }

    /// A packet leaves now: its number.
    pub fn push(&mut self, content: T, now: Time) -> u32 {
        let number = self.next_number();
        self.kept.push_back(Kept {
            content: Some(content),
            sent_at: now,
            again: false,
            lost: false,
        });
        if self.silent_since == Time::NEVER {
            self.silent_since = now;
        }
        self.set_alarm(now);
        number
    }

    /// The peer has everything before `next`, and beyond it what the bitmap says; it told so `delay`
    /// after the arrival. What is kept no more goes to `ended`.
    pub fn acknowledged(
        &mut self,
        next: u32,
        early: u64,
        delay: Duration,
        now: Time,
        ended: &mut impl FnMut(T),
    ) -> Result<(), NeverSent> {
        let count = next.wrapping_sub(self.first);
        if count > u32::MAX / 2 {
            // Overtaken by a later one.
            return Ok(());
        }
        if count as usize > self.kept.len() {
            return Err(NeverSent);
        }
        let before = self.arrived_sent_at;
        let mut arrived = 0;
        for index in 0..count as usize {
            arrived += u32::from(self.arrived(index, delay, now, ended));
        }
        self.kept.drain(..count as usize);
        self.first = next;
        let mut bits = early;
        while bits != 0 {
            let index = bits.trailing_zeros() as usize + 1;
            bits &= bits - 1;
            if index >= self.kept.len() {
                return Err(NeverSent);
            }
            arrived += u32::from(self.arrived(index, delay, now, ended));
        }
        if arrived > 0 || count > 0 {
            self.misses = 0;
            self.silent_since = if self.kept.is_empty() { Time::NEVER } else { now };
            self.widen(arrived);
            self.set_alarm(now);
        }
        if self.arrived_sent_at > before {
            self.find_overtaken();
        }
        Ok(())
    }

    /// The packet at `index` arrived; false where that was known.
    fn arrived(
        &mut self,
        index: usize,
        delay: Duration,
        now: Time,
        ended: &mut impl FnMut(T),
    ) -> bool {
        let packet = &mut self.kept[index];
        let Some(content) = packet.content.take() else { return false };
        ended(content);
        self.lost -= u32::from(std::mem::take(&mut packet.lost));
        if !packet.again {
            self.round_trip.measured(now.since(packet.sent_at).saturating_sub(delay));
        }
        self.arrived_sent_at = self.arrived_sent_at.max(packet.sent_at);
        true
    }

    /// Packets that were overtaken by more than can be chance are lost.
    fn find_overtaken(&mut self) {
        let limit = self.arrived_sent_at - self.round_trip.overtaken();
        let mut newest = None;
        for (index, packet) in self.kept.iter_mut().enumerate() {
            if !packet.again && packet.sent_at >= limit {
                // What follows left no earlier.
                break;
            }
            if packet.content.is_some() && !packet.lost && packet.sent_at < limit {
                packet.lost = true;
                self.lost += 1;
                newest = Some(self.first.wrapping_add(index as u32));
            }
        }
        if let Some(newest) = newest {
            self.narrow(newest);
        }
    }

    /// Once for all that was under way when it was noticed.
    fn narrow(&mut self, lost: u32) {
        let noticed = lost.wrapping_sub(self.narrowed_before) > u32::MAX / 2;
        if !noticed {
            self.window = (self.window * 7 / 10).max(WINDOW_MIN);
            self.narrowed_before = self.first.wrapping_add(self.kept.len() as u32);
        }
    }

    /// A packet more for each window that arrived.
    fn widen(&mut self, arrived: u32) {
        self.grown += arrived;
        if self.grown >= self.window {
            self.grown = 0;
            self.window = (self.window + self.window.div_ceil(8)).min(WINDOW_MAX);
        }
    }

    /// When [`Sending::expire`] has something to do.
    pub fn due(&self) -> Time {
        self.alarm
    }

    /// Since when the peer owes a sign of life; `NEVER` where it owes none.
    pub fn silent_since(&self) -> Time {
        self.silent_since
    }

    fn set_alarm(&mut self, now: Time) {
        self.alarm = match self.misses {
            _ if self.kept.is_empty() => Time::NEVER,
            // The first is a probe, and need not wait for what is rare.
            0 => now + self.round_trip.timeout(ACKNOWLEDGE_AFTER),
            misses => now + self.round_trip.timeout_after(ACKNOWLEDGE_AFTER, misses - 1),
        };
    }

    /// The time came, and nothing had come by then: the last packet is to go again, or all of them.
    pub fn expire(&mut self, now: Time) {
        if now < self.alarm {
            return;
        }
        let probe = self.misses == 0;
        self.misses += 1;
        self.set_alarm(now);
        let newest = self.first.wrapping_add(self.kept.len() as u32).wrapping_sub(1);
        let lost = &mut self.lost;
        let missing = self.kept.iter_mut().rev().filter(|packet| packet.content.is_some());
        for packet in missing.take(if probe { 1 } else { usize::MAX }) {
            *lost += u32::from(!std::mem::replace(&mut packet.lost, true));
        }
        if !probe {
            self.narrow(newest);
        }
    }

    /// The next packet that is to go again, which leaves now.
    pub fn again(&mut self, now: Time) -> Option<(u32, &T)> {
        if self.lost == 0 {
            return None;
        }
        let index = self.kept.iter().position(|packet| packet.lost)?;
        self.lost -= 1;
        let packet = &mut self.kept[index];
        (packet.lost, packet.again, packet.sent_at) = (false, true, now);
        let content = packet.content.as_ref().expect("a packet that arrived is not lost");
        Some((self.first.wrapping_add(index as u32), content))
    }

    /// The round trips that were measured.
    pub fn round_trip(&self) -> &RoundTrip {
        &self.round_trip
    }

    /// Every content that is still kept: the link ends.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        (self.lost, self.alarm, self.silent_since) = (0, Time::NEVER, Time::NEVER);
        self.kept.drain(..).filter_map(|packet| packet.content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);
    const ROUND_TRIP: Duration = Duration::from_micros(40);

    fn at(micros: u64) -> Time {
        Time(micros * 1000 + 10_000_000)
    }

    /// A window that has measured some round trips and is empty.
    fn used() -> Sending<u32> {
        let mut sending = Sending::default();
        for round in 0..20 {
            let now = Time(0) + 2 * ROUND_TRIP * round;
            let number = sending.push(round, now);
            let now = now + ROUND_TRIP;
            sending
                .acknowledged(number + 1, 0, Duration::ZERO, now, &mut |_| ())
                .expect("it was sent");
        }
        assert!(sending.is_empty());
        sending
    }

    fn acknowledge(sending: &mut Sending<u32>, next: u32, early: u64, now: Time) -> Vec<u32> {
        let mut ended = Vec::new();
        let mut end = |content| ended.push(content);
        sending.acknowledged(next, early, Duration::ZERO, now, &mut end).expect("it was sent");
        ended
    }

    fn again(sending: &mut Sending<u32>, now: Time) -> Vec<u32> {
        std::iter::from_fn(|| sending.again(now).map(|(number, _)| number)).collect()
    }

    #[test]
    fn contents_come_back_once_each_in_whatever_order_they_are_told() {
        let mut sending = used();
        let first = sending.push(100, at(0));
        for content in 101..106 {
            sending.push(content, at(0));
        }
        assert_eq!(acknowledge(&mut sending, first, 0b1010, at(40)), [102, 104]);
        assert_eq!(acknowledge(&mut sending, first + 2, 0b111, at(41)), [100, 101, 103, 105]);
        assert_eq!(acknowledge(&mut sending, first + 1, 0, at(42)), [], "overtaken");
        assert_eq!(acknowledge(&mut sending, first + 6, 0, at(42)), []);
        assert!(sending.is_empty() && sending.due() == Time::NEVER);
    }

    #[test]
    fn what_was_never_sent_cannot_arrive() {
        let mut sending = used();
        let first = sending.push(1, at(0));
        let mut claim = |next, early| {
            sending.acknowledged(next, early, Duration::ZERO, at(1), &mut |_| ()).is_err()
        };
        assert!(claim(first + 2, 0) && claim(first, 1) && claim(first, 1 << 63));
        assert!(!claim(first.wrapping_sub(5), 0));
        assert!(!claim(first + 1, 0));
    }

    #[test]
    fn a_packet_that_was_overtaken_goes_again_at_once_and_others_wait_for_it() {
        let mut sending = used();
        let first = sending.push(0, at(0));
        sending.push(1, at(1));
        sending.push(2, at(100));
        acknowledge(&mut sending, first, 0b01, at(41));
        assert_eq!(again(&mut sending, at(41)), [], "a microsecond may be chance");
        acknowledge(&mut sending, first, 0b11, at(140));
        assert!(!sending.has_room());
        assert_eq!(again(&mut sending, at(140)), [first]);
        assert!(sending.has_room());
        acknowledge(&mut sending, first + 3, 0, at(180));
        assert!(sending.is_empty());
    }

    #[test]
    fn the_last_packet_is_a_probe_and_then_all_go_again_ever_more_slowly() {
        let mut sending = used();
        let first = sending.push(0, at(0));
        sending.push(1, at(0));
        let probe = sending.due();
        sending.expire(probe - US);
        assert_eq!(again(&mut sending, probe), []);
        sending.expire(probe);
        assert_eq!(again(&mut sending, probe), [first + 1]);
        let mut wait = Duration::ZERO;
        let mut now = probe;
        for _ in 0..12 {
            let due = sending.due();
            assert!(
                due.since(now) >= wait.min(Duration::from_millis(500)),
                "not sooner than before"
            );
            (wait, now) = (due.since(now), due);
            sending.expire(now);
            assert_eq!(again(&mut sending, now), [first, first + 1]);
        }
        assert_eq!(wait, Duration::from_millis(500));
        assert_eq!(sending.silent_since(), at(0));
        acknowledge(&mut sending, first + 1, 0, now);
        assert_eq!(sending.silent_since(), now);
        assert!(sending.due().since(now) < Duration::from_millis(3), "it is heard again");
    }

    #[test]
    fn loss_narrows_the_window_once_a_round_and_arrival_widens_it() {
        let mut sending = used();
        let mut now = 0;
        let mut room = |sending: &mut Sending<u32>| {
            let mut sent = Vec::new();
            while sending.has_room() {
                now += 1;
                sent.push(sending.push(0, at(now)));
            }
            (sent, at(now + 100))
        };
        let (sent, then) = room(&mut sending);
        let before = sent.len();
        // Two of a round are lost.
        acknowledge(&mut sending, sent[0], (1 << (before - 1)) - 2, then);
        assert_eq!(again(&mut sending, then), sent[..2]);
        acknowledge(&mut sending, sent[before - 1] + 1, 0, then + ROUND_TRIP);
        let (sent, then) = room(&mut sending);
        assert!((before * 6 / 10..before).contains(&sent.len()), "{before} {}", sent.len());
        acknowledge(&mut sending, sent[sent.len() - 1] + 1, 0, then);
        for _ in 0..20 {
            let (sent, then) = room(&mut sending);
            acknowledge(&mut sending, sent[sent.len() - 1] + 1, 0, then);
        }
        assert_eq!(room(&mut sending).0.len(), WINDOW_MAX as usize);
    }

    #[test]
    fn at_the_end_everything_is_given_back() {
        let mut sending = used();
        let first = sending.push(7, at(0));
        sending.push(8, at(0));
        acknowledge(&mut sending, first, 1, at(40));
        assert_eq!(sending.drain().collect::<Vec<_>>(), [7]);
        assert!(sending.is_empty() && sending.again(at(50)).is_none());
    }
}
