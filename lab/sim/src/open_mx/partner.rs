//! Another endpoint, as the library knows it: sessions, numbers in both directions, unacknowledged messages and
//! packets that came early.

use std::collections::VecDeque;

use ropewalk_base::time::Time;
use ropewalk_wire::mxoe::{SESSION_UNKNOWN, Sequence};

use super::driver::{Body, Sequenced};
use super::send::{Posted, Ready};
use super::{ACK_AFTER, EARLY_MAX, OWED_MAX, Request, UNACKED_MAX};

/// Numbers that exist, in 14 bits.
const NUMBERS: u16 = 1 << 14;

/// The place of a sequence number relative to the next expected one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Of another session.
    Foreign,
    /// The next to be matched.
    Next,
    /// Matched before, but not complete, or a copy of one that was complete.
    Before,
    Early,
    /// `last`: the one before the next, so that an acknowledgement was lost.
    Obsolete {
        last: bool,
    },
}

/// A connect that is not answered.
#[derive(Debug)]
pub(super) struct Connecting {
    pub request: Request,
    pub number: u8,
    pub key: u32,
    pub sent: Time,
    pub resends: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Partner {
    /// The session that messages carry, and the session that all other packets carry.
    pub true_session: u32,
    pub back_session: u32,
    pub send_next: Sequence,
    pub send_acked: Sequence,
    pub match_next: Sequence,
    pub fragment_next: Sequence,
    pub connect_next: u8,
    pub connects: VecDeque<Connecting>,
    /// Numbers of the acknowledgements that were sent and seen.
    pub ack_sent: u32,
    pub ack_seen: u32,
    /// Messages not yet acknowledged to the partner: their number, since when, and whether an acknowledgement is due
    /// now.
    pub owed: u16,
    pub owed_since: Option<Time>,
    pub ack_now: bool,
    pub early: Vec<Sequenced>,
    /// Mediums that are matched and not complete, with the library's names of them, oldest first.
    pub partial: VecDeque<(Sequence, u64)>,
    pub unacked: VecDeque<Posted>,
    pub throttled: VecDeque<Ready>,
}

/// A number further on, with the same bits of session.
pub(super) fn after(sequence: Sequence, count: u16) -> Sequence {
    Sequence::new(sequence.bits(), u64::from(sequence.number()) + u64::from(count))
}

impl Partner {
    pub fn new() -> Partner {
        let first = Sequence::new(0, 1);
        Partner {
            true_session: SESSION_UNKNOWN,
            back_session: SESSION_UNKNOWN,
            send_next: first,
            send_acked: first,
            match_next: first,
            fragment_next: first,
            connect_next: 0,
            connects: VecDeque::new(),
            ack_sent: 0,
            ack_seen: 0,
            owed: 0,
            owed_since: None,
            ack_now: false,
            early: Vec::new(),
            partial: VecDeque::new(),
            unacked: VecDeque::new(),
            throttled: VecDeque::new(),
        }
    }

    /// Messages that are not acknowledged.
    pub fn outstanding(&self) -> u16 {
        self.send_next.ahead_of(self.send_acked)
    }

    pub fn is_throttled(&self) -> bool {
        self.outstanding() >= UNACKED_MAX
    }

    pub fn place(&self, sequence: Sequence) -> Place {
        if sequence.bits() != self.fragment_next.bits() {
            return Place::Foreign;
        }
        let index = sequence.ahead_of(self.fragment_next);
        let matched = self.match_next.ahead_of(self.fragment_next);
        if index == matched {
            Place::Next
        } else if index < matched {
            Place::Before
        } else if index - matched <= EARLY_MAX {
            Place::Early
        } else {
            Place::Obsolete { last: index == NUMBERS - 1 }
        }
    }

    /// Keeps what came early, unless it is there.
    pub fn keep_early(&mut self, packet: Sequenced) {
        let order = |it: &Sequenced| (it.sequence.ahead_of(self.fragment_next), number_of(it));
        let key = order(&packet);
        if let Err(at) = self.early.binary_search_by_key(&key, order) {
            self.early.insert(at, packet);
        }
    }

    /// Takes a packet that came early and is due by now.
    pub fn take_early(&mut self) -> Option<Sequenced> {
        let due = |it: &Sequenced| matches!(self.place(it.sequence), Place::Next | Place::Before);
        let at = self.early.iter().position(due)?;
        Some(self.early.remove(at))
    }

    /// Counts what is complete, and owes an acknowledgement for it.
    pub fn settle(&mut self, now: Time) {
        let next = self.partial.front().map_or(self.match_next, |(sequence, _)| *sequence);
        let more = next.ahead_of(self.fragment_next);
        self.fragment_next = next;
        if more > 0 {
            self.owed += more;
            self.owed_since.get_or_insert(now);
        }
    }

    /// The peer is told by something that is sent.
    pub fn acknowledges(&mut self) -> Sequence {
        (self.owed, self.owed_since, self.ack_now) = (0, None, false);
        self.fragment_next
    }

    /// When an acknowledgement has to go by itself.
    pub fn ack_at(&self) -> Time {
        let late = self.owed_since.map_or(Time::NEVER, |since| since + ACK_AFTER);
        if self.ack_now || self.owed >= OWED_MAX { Time::ZERO } else { late }
    }

    /// Begins to receive anew.
    pub fn reset_receiving(&mut self) {
        let first = Sequence::new(self.fragment_next.bits(), 1);
        (self.match_next, self.fragment_next) = (first, first);
        self.early.clear();
        self.partial.clear();
        (self.owed, self.owed_since, self.ack_now) = (0, None, false);
    }

    /// Makes old packets fall outside of all windows.
    pub fn advance_bits(&mut self) {
        let step = |old: Sequence, other: u16| {
            Sequence::new((old.bits() + 1) % 4, (old.number() ^ other).into())
        };
        self.fragment_next = step(self.fragment_next, 0x30f0);
        self.match_next = self.fragment_next;
        self.send_next = step(self.send_next, 0x0f0f);
        self.send_acked = self.send_next;
    }
}

/// The number of a packet's fragment in its message.
fn number_of(packet: &Sequenced) -> u8 {
    match &packet.body {
        Body::Fragment { number, .. } => *number,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_its_place_also_where_numbers_wrap() {
        for start in [1u16, 100, 16_000, 16_383] {
            let mut partner = Partner::new();
            partner.fragment_next = Sequence::new(2, start.into());
            partner.match_next = after(partner.fragment_next, 3);
            let place = |ahead: i32| {
                let number = (i32::from(start) + ahead).rem_euclid(16_384) as u64;
                partner.place(Sequence::new(2, number))
            };
            assert_eq!([place(0), place(2)], [Place::Before; 2]);
            assert_eq!(place(3), Place::Next);
            assert_eq!([place(4), place(258)], [Place::Early; 2]);
            assert_eq!(place(259), Place::Obsolete { last: false });
            assert_eq!(place(-1), Place::Obsolete { last: true });
            assert_eq!(place(-2), Place::Obsolete { last: false });
            assert_eq!(partner.place(Sequence::new(1, start.into())), Place::Foreign);
        }
    }
}
