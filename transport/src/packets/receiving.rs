//! A peer's numbered packets: those that are here, and the content and time of acknowledgements for them.

use std::time::Duration;

use ropewalk_base::time::Time;
use ropewalk_wire::packets::AckBody;

/// Packets after the first missing one that are taken and told of.
pub const EARLY_MAX: u32 = 64;
/// A packet that arrived is told of at the latest after so many, or after that time: a promise to the
/// sender's timers. No more than the narrowest window holds, or its sender would wait for the time each time.
pub const ACKNOWLEDGE_EVERY: u32 = 8;
pub const ACKNOWLEDGE_AFTER: Duration = Duration::from_micros(100);

/// Packets from one peer.
#[derive(Debug, Default)]
pub struct Receiving {
    /// The first that is missing.
    next: u32,
    /// Bit n: `next + 1 + n` is here.
    early: u64,
    /// Packets that arrived since they were told of.
    untold: u32,
    /// When the first of them did.
    since: Time,
    at_once: bool,
    /// The packet that came again last, of those that were not told of.
    again: Option<u32>,
}

/// The class of a packet by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// The one that was missing: its bytes are next.
    Next,
    /// Others are missing before it.
    Early,
    /// It was here before.
    Again,
    /// Further ahead than a sender may go.
    Beyond,
}

/// The content of an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    pub next: u32,
    pub early: u64,
    /// The age of the first arrived packet that was not acknowledged before.
    pub delay: Duration,
    /// A packet that came again.
    pub again: Option<u32>,
}

impl From<Told> for AckBody {
    fn from(told: Told) -> AckBody {
        AckBody::new(told.next, told.early, told.delay, told.again)
    }
}

impl Receiving {
    /// The class of packet `number`. If the packet is the next one or early, and there is room for it, the caller
    /// passes it to [`Receiving::taken`] after that.
    pub fn look(&self, number: u32) -> Arrival {
        let ahead = number.wrapping_sub(self.next);
        match ahead {
            0 => Arrival::Next,
            1..=EARLY_MAX if self.early >> (ahead - 1) & 1 == 1 => Arrival::Again,
            1..=EARLY_MAX => Arrival::Early,
            _ if ahead > u32::MAX / 2 => Arrival::Again,
            _ => Arrival::Beyond,
        }
    }

    /// The packet is here.
    pub fn taken(&mut self, number: u32, now: Time) {
        let ahead = number.wrapping_sub(self.next);
        if ahead == 0 {
            self.at_once |= self.early != 0;
            // Those that waited for it are behind it without a gap.
            let run = self.early.trailing_ones();
            self.next = self.next.wrapping_add(run + 1);
            self.early = self.early.checked_shr(run + 1).unwrap_or(0);
        } else if ahead <= EARLY_MAX {
            self.early |= 1 << (ahead - 1);
            self.at_once = true;
        }
        if self.untold == 0 {
            self.since = now;
        }
        self.untold += 1;
    }

    /// The packets after the first missing one do not count.
    pub fn forget_early(&mut self) {
        self.early = 0;
    }

    /// The peer is to hear something now: a packet came again, since what it was told before was lost, or it
    /// waits for a sign of life.
    pub fn owe(&mut self, now: Time) {
        if self.untold == 0 {
            self.since = now;
        }
        self.untold += 1;
        self.at_once = true;
    }

    /// A packet came again, of which the peer is told.
    pub fn came_again(&mut self, number: u32, now: Time) {
        self.again = Some(number);
        self.owe(now);
    }

    /// The first that is missing.
    pub fn next(&self) -> u32 {
        self.next
    }

    /// When the peer is to be told, if nothing goes there before.
    pub fn due(&self) -> Time {
        match self.untold {
            0 => Time::NEVER,
            _ if self.at_once || self.untold >= ACKNOWLEDGE_EVERY => Time::ZERO,
            _ => self.since + ACKNOWLEDGE_AFTER,
        }
    }

    /// The acknowledgement for a packet that leaves now.
    pub fn tell(&mut self, now: Time) -> Told {
        let delay = if self.untold > 0 { now.since(self.since) } else { Duration::ZERO };
        (self.untold, self.at_once) = (0, false);
        Told { next: self.next, early: self.early, delay, again: self.again.take() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(receiving: &mut Receiving, numbers: &[u32]) {
        numbers.iter().for_each(|number| receiving.taken(*number, Time(1000)));
    }

    #[test]
    fn what_fills_a_gap_is_followed_by_what_waited() {
        let mut receiving = Receiving::default();
        take(&mut receiving, &[0, 1, 3, 4, 6]);
        assert_eq!((receiving.next(), receiving.early), (2, 0b1011));
        let looks = [1, 2, 3, 5, 6, 7, 66, 67].map(|number| receiving.look(number));
        use Arrival::*;
        assert_eq!(looks, [Again, Next, Again, Early, Again, Early, Early, Beyond]);
        take(&mut receiving, &[2]);
        assert_eq!((receiving.next(), receiving.early), (5, 0b1));
        take(&mut receiving, &[5]);
        assert_eq!((receiving.next(), receiving.early), (7, 0));
    }

    #[test]
    fn numbers_wrap_around() {
        let mut receiving = Receiving { next: u32::MAX - 1, ..Receiving::default() };
        let last = receiving.next.wrapping_add(EARLY_MAX);
        take(&mut receiving, &[last]);
        assert_eq!(receiving.early, 1 << 63);
        let all: Vec<u32> =
            (0..EARLY_MAX).map(|ahead| (u32::MAX - 1).wrapping_add(ahead)).collect();
        take(&mut receiving, &all);
        assert_eq!((receiving.next(), receiving.early), (last.wrapping_add(1), 0));
        assert_eq!(receiving.look(u32::MAX), Arrival::Again);
    }

    #[test]
    fn the_peer_is_told_after_a_while_or_some_packets_or_at_once() {
        let mut receiving = Receiving::default();
        assert_eq!(receiving.due(), Time::NEVER);
        take(&mut receiving, &[0]);
        assert_eq!(receiving.due(), Time(1000) + ACKNOWLEDGE_AFTER);
        take(&mut receiving, &[1, 2, 3, 4, 5, 6]);
        assert_eq!(receiving.due(), Time(1000) + ACKNOWLEDGE_AFTER);
        take(&mut receiving, &[7]);
        assert_eq!(receiving.due(), Time::ZERO);
        let told = receiving.tell(Time(6000));
        assert_eq!(told, Told { next: 8, early: 0, delay: Duration::from_micros(5), again: None });
        assert_eq!(receiving.due(), Time::NEVER);
        take(&mut receiving, &[9]);
        assert_eq!(receiving.due(), Time::ZERO, "one is missing");
        receiving.tell(Time(6000));
        receiving.owe(Time(7000));
        assert_eq!(receiving.due(), Time::ZERO, "the last word was lost");
        receiving.came_again(3, Time(7000));
        assert_eq!(receiving.tell(Time(7000)).again, Some(3));
        assert_eq!(receiving.tell(Time(7000)).again, None, "it is told once");
    }
}
