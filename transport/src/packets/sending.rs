//! Numbered packets on their way to a peer: kept until they are acknowledged, and sent again where lost (`loss`).
//!
//! Invariant: a packet's content is given back exactly once, at its acknowledgement or at the end.

use std::collections::VecDeque;
use std::time::Duration;

use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;

use super::congestion::CongestionWindow;
use super::receiving::EARLY_MAX;
use crate::late::Late;
use crate::round_trip::RoundTrip;

/// Packets to one peer.
#[derive(Debug)]
pub struct Sending<T> {
    /// The number of the first one that is kept.
    pub(super) first: u32,
    pub(super) kept: VecDeque<Kept<T>>,
    pub(super) round_trip: RoundTrip,
    /// When the latest packet left that is known to have arrived, and its number.
    pub(super) arrived_sent_at: Time,
    pub(super) arrived_number: u32,
    /// Packets that went again and have arrived.
    pub(super) recent: Late,
    /// When the first packet counts as lost that others have overtaken.
    pub(super) overtaken_due: Time,
    /// Kept packets that are to go again.
    pub(super) lost: u32,
    pub(super) window: CongestionWindow,
    /// The time at which packets go again though nothing comes back; and how often that was in vain.
    pub(super) alarm: Time,
    pub(super) misses: u32,
    /// Since when nothing came back that was awaited.
    pub(super) silent_since: Time,
}

#[derive(Debug)]
pub(super) struct Kept<T> {
    /// Taken at its acknowledgement.
    pub(super) content: Option<T>,
    pub(super) sent_at: Time,
    /// The time from which a round trip is measured. If nothing came in time, this is the first time that the packet
    /// left. Otherwise a slow peer would never be known as slow, and each packet would go several times for good.
    pub(super) measured_from: Option<Time>,
    /// It went more than once.
    pub(super) again: bool,
    pub(super) lost: bool,
    /// Since when one is known to have arrived that left after it.
    pub(super) overtaken_at: Time,
    /// For a packet that was taken for lost since others had overtaken it: since when, and by how much.
    pub(super) late_from: Time,
    pub(super) late_by: Duration,
}

/// Whether a number comes after another.
pub(super) fn is_after(number: u32, other: u32) -> bool {
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
            window: CongestionWindow::default(),
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
        self.lost == 0 && self.kept.len() < self.window.packets()
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
        // Nothing of it is believed before all of it can be true.
        let left = self.kept.len().checked_sub(count as usize).ok_or(NeverSent)?;
        let last_early = u64::BITS - early.leading_zeros();
        if last_early > 0 && last_early as usize >= left {
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
        self.window.advance(next);
        let mut bits = early;
        while bits != 0 {
            let index = bits.trailing_zeros() as usize + 1;
            bits &= bits - 1;
            let delay = (first == Some(index)).then_some(delay);
            arrived += u32::from(self.arrived(index, delay, now, ended));
        }
        if arrived > 0 || count > 0 {
            self.misses = 0;
            self.silent_since = if self.kept.is_empty() { Time::NEVER } else { now };
            self.window.widen(arrived);
            self.set_alarm(now);
        }
        self.find_overtaken(now);
        Ok(())
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

    /// Since when the peer owes a sign of life; `NEVER` where it owes none.
    pub fn silent_since(&self) -> Time {
        self.silent_since
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

    /// Contents that are kept: packets that are not acknowledged.
    pub fn contents(&self) -> impl Iterator<Item = &T> {
        self.kept.iter().filter_map(|packet| packet.content.as_ref())
    }

    /// The same, to be changed.
    pub fn contents_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.kept.iter_mut().filter_map(|packet| packet.content.as_mut())
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
