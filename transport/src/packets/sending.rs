//! Numbered packets on their way to a peer: kept until they are acknowledged, and sent again where lost.
//!
//! A packet counts as lost some time after a packet has arrived that left later, or once a packet has arrived that left
//! some time later (RACK, RFC 8985). This time grows if packets turn out to have been only late. The peer tells so when
//! a packet that went again came twice; the window then returns to its former width. If nothing comes back at all, the
//! last packet goes again as a probe, and then, at intervals that double, all packets. Loss narrows the window of
//! packets under way, arrival widens it.
//!
//! Invariant: a packet's content is given back exactly once, at its acknowledgement or at the end.

use std::collections::VecDeque;
use std::time::Duration;

use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_wire::packets::came_again;

use super::receiving::{ACKNOWLEDGE_AFTER, ACKNOWLEDGE_EVERY, EARLY_MAX};
use crate::late::Late;
use crate::round_trip::RoundTrip;

/// Packets under way: at first, at least and at most.
const WINDOW_FIRST: u32 = 32;
const WINDOW_MIN: u32 = ACKNOWLEDGE_EVERY;
pub const WINDOW_MAX: u32 = EARLY_MAX;

/// A packet that the peer reports to have come again is one of so many before the next.
const AGAIN_BEHIND: u32 = 3 * EARLY_MAX;

/// Packets to one peer.
#[derive(Debug)]
pub struct Sending<T> {
    /// The number of the first one that is kept.
    first: u32,
    kept: VecDeque<Kept<T>>,
    round_trip: RoundTrip,
    /// When the latest packet left that is known to have arrived, and its number.
    arrived_sent_at: Time,
    arrived_number: u32,
    /// Packets that went again and have arrived.
    recent: Late,
    /// When the first packet counts as lost that others have overtaken.
    overtaken_due: Time,
    /// Kept packets that are to go again.
    lost: u32,
    window: u32,
    /// Packets that arrived since the window grew.
    grown: u32,
    /// Loss of packets before this number has narrowed the window already, and what it was before that.
    narrowed_before: u32,
    window_before: u32,
    /// The time at which packets go again though nothing comes back; and how often that was in vain.
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
    /// The time from which a round trip is measured. If nothing came in time, this is the first time that the packet
    /// left. Otherwise a slow peer would never be known as slow, and each packet would go several times for good.
    measured_from: Option<Time>,
    /// It went more than once.
    again: bool,
    lost: bool,
    /// Since when one is known to have arrived that left after it.
    overtaken_at: Time,
    /// For a packet that was taken for lost since others had overtaken it: since when, and by how much.
    late_from: Time,
    late_by: Duration,
}

/// Whether a number comes after another.
fn is_after(number: u32, other: u32) -> bool {
    number != other && number.wrapping_sub(other) <= u32::MAX / 2
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
            arrived_number: 0,
            recent: Late::default(),
            overtaken_due: Time::NEVER,
            lost: 0,
            window: WINDOW_FIRST,
            grown: 0,
            narrowed_before: 0,
            window_before: 0,
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
            measured_from: Some(now),
            again: false,
            lost: false,
            overtaken_at: Time::NEVER,
            late_from: Time::NEVER,
            late_by: Duration::ZERO,
        });
        if self.silent_since == Time::NEVER {
            self.silent_since = now;
        }
        self.set_alarm(now);
        number
    }

    /// The peer has everything before `next`, and beyond it the packets of the bitmap. It told so `delay` after the
    /// arrival of the first packet that it had not told of. Packets that are kept no more go to `ended`.
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
        // The delay is that of the first packet to arrive. No packet comes sooner than one that left before it could
        // have. So of the packets that are new here, only the one that left first shows a round trip.
        let first = self.first_new(count as usize, early);
        let mut arrived = 0;
        for index in 0..count as usize {
            let delay = (first == Some(index)).then_some(delay);
            arrived += u32::from(self.arrived(index, delay, now, ended));
        }
        let first = first.and_then(|index| index.checked_sub(count as usize));
        self.kept.drain(..count as usize);
        self.first = next;
        if next.wrapping_sub(self.narrowed_before) <= u32::MAX / 2 {
            // It would be taken for one that is yet to come some day.
            self.narrowed_before = next;
        }
        let mut bits = early;
        while bits != 0 {
            let index = bits.trailing_zeros() as usize + 1;
            bits &= bits - 1;
            if index >= self.kept.len() {
                return Err(NeverSent);
            }
            let delay = (first == Some(index)).then_some(delay);
            arrived += u32::from(self.arrived(index, delay, now, ended));
        }
        if arrived > 0 || count > 0 {
            self.misses = 0;
            self.silent_since = if self.kept.is_empty() { Time::NEVER } else { now };
            self.widen(arrived);
            self.set_alarm(now);
        }
        self.find_overtaken(now);
        Ok(())
    }

    /// The peer tells that a packet came again, and part of the packet's number: see [`came_again`].
    pub fn doubled(&mut self, told: u8) {
        // A packet that came again after its retransmission is at most `AGAIN_BEHIND` numbers before the next one.
        let last = self.next_number();
        let numbers = (1..=AGAIN_BEHIND).map(|behind| last.wrapping_sub(behind));
        let number = numbers.into_iter().find(|number| came_again(*number) == told);
        if let Some((_, by)) = number.and_then(|number| self.recent.again(0, number)) {
            self.round_trip.was_late(by);
            self.window = self.window.max(std::mem::take(&mut self.window_before));
        }
    }

    /// The index of the packet that left first, of those that are newly acknowledged.
    fn first_new(&self, count: usize, early: u64) -> Option<usize> {
        let is_told = |index: usize| match index.checked_sub(count + 1) {
            Some(bit @ 0..64) => early >> bit & 1 == 1,
            Some(_) => false,
            None => index < count,
        };
        let told = self.kept.iter().enumerate().take(count + 1 + EARLY_MAX as usize);
        let new = told.filter(|(index, packet)| packet.content.is_some() && is_told(*index));
        new.min_by_key(|(_, packet)| packet.sent_at).map(|(index, _)| index)
    }

    /// The packet at `index` arrived; false where that was known. The delay is known of the first one.
    fn arrived(
        &mut self,
        index: usize,
        delay: Option<Duration>,
        now: Time,
        ended: &mut impl FnMut(T),
    ) -> bool {
        let packet = &mut self.kept[index];
        let Some(content) = packet.content.take() else { return false };
        ended(content);
        self.lost -= u32::from(std::mem::take(&mut packet.lost));
        let ago = now.since(packet.sent_at).saturating_sub(delay.unwrap_or(Duration::ZERO));
        let number = self.first.wrapping_add(index as u32);
        if packet.again && packet.late_from < Time::NEVER {
            let late = packet.late_by + (packet.sent_at + ago).since(packet.late_from);
            self.recent.came(SlotId { index: 0, generation: 0 }, 0, number, late);
        }
        if packet.again && ago < self.round_trip.shortest() * 3 / 4 {
            // It cannot have come of that: it was late and not lost.
            let late = packet.late_by + (packet.sent_at + ago).since(packet.late_from);
            self.round_trip.was_late(late.min(self.round_trip.usual()));
            return true;
        }
        if let Some((from, delay)) = packet.measured_from.zip(delay) {
            self.round_trip.measured(now.since(from).saturating_sub(delay));
        }
        if packet.sent_at > self.arrived_sent_at {
            (self.arrived_sent_at, self.arrived_number) = (packet.sent_at, number);
        } else if packet.sent_at == self.arrived_sent_at && is_after(number, self.arrived_number) {
            self.arrived_number = number;
        }
        true
    }

    /// Packets that were overtaken by more than can be chance are lost, and those that were so for a time that cannot
    /// be chance either.
    fn find_overtaken(&mut self, now: Time) {
        self.overtaken_due = Time::NEVER;
        let apart = self.round_trip.overtaken();
        let latest = self.arrived_sent_at;
        let mut newest = None;
        for (index, packet) in self.kept.iter_mut().enumerate() {
            let number = self.first.wrapping_add(index as u32);
            let before = packet.sent_at < latest
                || packet.sent_at == latest && is_after(self.arrived_number, number);
            if !before && !packet.again {
                // The packets after this one left no earlier.
                break;
            }
            if !before || packet.content.is_none() || packet.lost {
                continue;
            }
            packet.overtaken_at = packet.overtaken_at.min(now);
            // Acknowledgements may overtake each other as well.
            let due = packet.overtaken_at + apart * 2;
            if packet.sent_at + apart < latest || due <= now {
                if packet.late_from == Time::NEVER {
                    packet.late_from = packet.overtaken_at;
                    packet.late_by = latest.since(packet.sent_at);
                }
                self.round_trip.was_lost();
                packet.lost = true;
                packet.measured_from = None;
                self.lost += 1;
                newest = Some(number);
            } else {
                self.overtaken_due = self.overtaken_due.min(due);
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
            self.window_before = self.window;
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
        self.alarm.min(self.overtaken_due)
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

    /// The time came, and nothing had come by then. Overtaken packets are to go again, or the last packet, or all of
    /// them.
    pub fn expire(&mut self, now: Time) {
        if now >= self.overtaken_due {
            self.find_overtaken(now);
        }
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
        packet.overtaken_at = Time::NEVER;
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
        self.overtaken_due = Time::NEVER;
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
    fn a_loss_within_a_burst_is_found_long_before_anything_is_asked() {
        let mut sending = used();
        let first = sending.push(0, at(0));
        for content in 1..4 {
            sending.push(content, at(0));
        }
        let alarm = sending.due();
        acknowledge(&mut sending, first, 0b010, at(40));
        assert_eq!(again(&mut sending, at(40)), [], "they may go over two paths");
        let due = sending.due();
        assert!(due < at(100) && due < alarm, "{due:?}");
        sending.expire(due - US);
        assert_eq!(again(&mut sending, due), []);
        sending.expire(due);
        assert_eq!(again(&mut sending, due), [first, first + 1], "and not what nothing overtook");
        // A packet that left earlier does not overtake a retransmission.
        acknowledge(&mut sending, first, 0b110, due + US);
        assert_eq!((sending.goes_again(), sending.due() > alarm), (false, true));
        acknowledge(&mut sending, first + 4, 0, due + ROUND_TRIP);
        assert!(sending.is_empty() && sending.due() == Time::NEVER);
    }

    #[test]
    fn what_was_only_late_is_given_more_time_from_then_on() {
        let mut sending = used();
        let round = |sending: &mut Sending<u32>, begin: u64| {
            let first = sending.push(0, at(begin));
            sending.push(1, at(begin));
            acknowledge(sending, first, 0b1, at(begin + 40));
            sending.expire(at(begin + 85));
            let count = again(sending, at(begin + 85)).len();
            // The other path takes 50 microseconds more.
            acknowledge(sending, first + 2, 0, at(begin + 90));
            count
        };
        assert_eq!(round(&mut sending, 0), 1);
        for begin in 1..20 {
            assert_eq!(round(&mut sending, begin * 1000), 0);
        }
    }

    #[test]
    fn acknowledgements_that_waited_tell_no_round_trips_that_cannot_be() {
        for apart in [0, 5, 10, 60] {
            let mut sending = used();
            let first = sending.push(0, at(0));
            for content in 1..8 {
                sending.push(content, at(apart * u64::from(content)));
            }
            // The first one came after half a round trip, and the answer was on its way as long.
            let now = at(7 * apart) + ROUND_TRIP;
            let delay = Duration::from_micros(7 * apart);
            sending.acknowledged(first + 8, 0, delay, now, &mut |_| ()).expect("it was sent");
            assert_eq!(sending.round_trip().shortest(), ROUND_TRIP);
        }
    }

    #[test]
    fn a_peer_that_becomes_slow_is_known_for_it_and_each_packet_goes_once_again() {
        let mut sending = used();
        let mut copies = Vec::new();
        for round in 0..40 {
            let begin = at(round * 100_000);
            let number = sending.push(0, begin);
            let mut count = 1;
            while sending.due() < begin + 500 * ROUND_TRIP {
                let due = sending.due();
                sending.expire(due);
                count += again(&mut sending, due).len();
            }
            acknowledge(&mut sending, number + 1, 0, begin + 500 * ROUND_TRIP);
            copies.push(count);
        }
        assert!(copies[0] > 1 && copies[20..].iter().all(|count| *count == 1), "{copies:?}");
    }

    #[test]
    fn losses_are_told_apart_by_their_numbers_however_many_packets_went_well() {
        let mut sending = used();
        sending.window = WINDOW_MAX;
        sending.narrow(sending.first);
        let window = sending.window;
        assert!(window < WINDOW_MAX);
        // Two thousand million packets later.
        for _ in 0..3 {
            let number = sending.first.wrapping_add(1 << 30);
            (sending.first, sending.window) = (number, window);
            let number = sending.push(0, at(0));
            acknowledge(&mut sending, number.wrapping_add(1), 0, at(40));
        }
        let number = sending.push(0, at(1000));
        sending.push(1, at(2000));
        acknowledge(&mut sending, number, 1, at(2040));
        assert!(sending.window < window, "{} {window}", sending.window);
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
