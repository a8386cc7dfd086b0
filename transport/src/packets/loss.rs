//! Lost packets: how a loss is noticed, and how we learn that a packet was only late.
//!
//! A packet counts as lost some time after a packet has arrived that left later, or once a packet has arrived that left
//! some time later (RACK, RFC 8985). This time grows if packets turn out to have been only late. The peer tells us if
//! a packet that was sent again came twice; the window then returns to its former width. If nothing comes back at all, the
//! last packet goes again as a probe, and then, at intervals that double, all packets.

use ropewalk_base::time::Time;
use ropewalk_wire::packets::came_again;

use super::congestion::QUEUE;
use super::receiving::{ACKNOWLEDGE_AFTER, EARLY_MAX};
use super::sending::{Sending, is_after};

/// A packet that the peer reports to have come again is one of so many before the next.
const AGAIN_BEHIND: u32 = 3 * EARLY_MAX;

impl<T> Sending<T> {
    /// When [`Sending::expire`] has something to do.
    pub fn due(&self) -> Time {
        self.alarm.min(self.overtaken_due)
    }

    pub(super) fn set_alarm(&mut self, now: Time) {
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
        let next = self.next_number();
        let lost = &mut self.lost;
        let missing = self.kept.iter_mut().rev().filter(|packet| packet.content.is_some());
        for packet in missing.take(if probe { 1 } else { usize::MAX }) {
            *lost += u32::from(!std::mem::replace(&mut packet.lost, true));
        }
        if !probe {
            self.window.narrow(next.wrapping_sub(1), next);
        }
    }

    /// Packets that were overtaken by more than can be chance are lost, and those that were so for a time that cannot
    /// be chance either.
    pub(super) fn find_overtaken(&mut self, now: Time) {
        self.overtaken_due = Time::NEVER;
        let apart = self.round_trip.overtaken();
        let latest = self.arrived_sent_at;
        let (mut newest, mut count) = (None, 0);
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
                count += 1;
                newest = Some(number);
            } else {
                self.overtaken_due = self.overtaken_due.min(due);
            }
        }
        if let Some(newest) = newest {
            let next = self.next_number();
            let has_queue = self.round_trip.usual() >= self.round_trip.shortest() + QUEUE;
            self.window.lost(count, newest, next, has_queue);
        }
    }

    /// The peer tells that a packet came again, and part of the packet's number: see [`came_again`].
    pub fn doubled(&mut self, told: u8) {
        // A packet that came again after its retransmission is at most `AGAIN_BEHIND` numbers before the next one.
        let last = self.next_number();
        let numbers = (1..=AGAIN_BEHIND).map(|behind| last.wrapping_sub(behind));
        let number = numbers.into_iter().find(|number| came_again(*number) == told);
        if let Some((_, by)) = number.and_then(|number| self.recent.again(0, number)) {
            self.round_trip.was_late(by);
            self.window.restore();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::congestion::*;
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
        assert!(
            claim(first + 2, 0) && claim(first, 1) && claim(first, 1 << 63) && claim(first + 1, 1)
        );
        assert!(!claim(first.wrapping_sub(5), 0));
        assert!(!claim(first + 1, 0));
        // Nor does any of what was sent by the same word.
        let first = sending.push(2, at(2));
        (3..6).for_each(|content| _ = sending.push(content, at(2)));
        let mut arrived = Vec::new();
        for early in [0b1001, 1 << 40 | 1, 0b101] {
            let told = &mut |content| arrived.push(content);
            let taken = sending.acknowledged(first, early, Duration::ZERO, at(3), told);
            assert_eq!(taken.is_ok(), early == 0b101, "{early:b}");
        }
        assert_eq!(arrived, [3, 5]);
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
        sending.window.width = WINDOW_MAX;
        let next = sending.next_number();
        sending.window.narrow(sending.first, next);
        let window = sending.window.width;
        assert!(window < WINDOW_MAX);
        // Two thousand million packets later.
        for _ in 0..3 {
            let number = sending.first.wrapping_add(1 << 30);
            (sending.first, sending.window.width) = (number, window);
            let number = sending.push(0, at(0));
            acknowledge(&mut sending, number.wrapping_add(1), 0, at(40));
        }
        sending.window.arrived = 0;
        let number = sending.push(0, at(1000));
        sending.push(1, at(2000));
        acknowledge(&mut sending, number, 1, at(2040));
        assert!(sending.window.width < window, "{} {window}", sending.window.width);
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

    /// Sends as much as there is room for: the numbers, and a time when it may have arrived.
    fn fill(sending: &mut Sending<u32>, now: &mut u64) -> (Vec<u32>, Time) {
        let mut sent = Vec::new();
        while sending.has_room() {
            *now += 1;
            sent.push(sending.push(0, at(*now)));
        }
        *now += 100;
        (sent, at(*now))
    }

    /// The first `count` of a round are lost, and go again; then all is there.
    fn lose(sending: &mut Sending<u32>, sent: &[u32], count: usize, then: Time) {
        let early = (1 << (sent.len() - 1)) - (1 << (count - 1));
        acknowledge(sending, sent[0], early, then);
        assert_eq!(again(sending, then), sent[..count]);
        acknowledge(sending, sent[sent.len() - 1] + 1, 0, then + ROUND_TRIP);
    }

    #[test]
    fn much_loss_narrows_the_window_once_a_round_and_arrival_widens_it() {
        let (mut sending, mut now) = (used(), 0);
        let (sent, then) = fill(&mut sending, &mut now);
        let before = sent.len();
        lose(&mut sending, &sent, 2, then);
        let (sent, then) = fill(&mut sending, &mut now);
        assert!(sent.len() >= before, "two of {before} tell nothing of a queue: {}", sent.len());
        let before = sent.len();
        sending.window.arrived = 0;
        lose(&mut sending, &sent, before / 4, then);
        let (sent, then) = fill(&mut sending, &mut now);
        assert!((before * 6 / 10..before).contains(&sent.len()), "{before} {}", sent.len());
        acknowledge(&mut sending, sent[sent.len() - 1] + 1, 0, then);
        for _ in 0..20 {
            let (sent, then) = fill(&mut sending, &mut now);
            acknowledge(&mut sending, sent[sent.len() - 1] + 1, 0, then);
        }
        assert_eq!(fill(&mut sending, &mut now).0.len(), WINDOW_MAX as usize);
    }

    #[test]
    fn little_loss_narrows_the_window_where_round_trips_show_a_queue() {
        let (mut sending, mut now) = (used(), 0);
        (0..50).for_each(|_| sending.round_trip.measured(2 * QUEUE));
        let (sent, then) = fill(&mut sending, &mut now);
        let before = sending.window.width;
        acknowledge(&mut sending, sent[0], (1 << (sent.len() - 1)) - 2, then);
        assert!(sending.window.width < before, "{before} {}", sending.window.width);
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
