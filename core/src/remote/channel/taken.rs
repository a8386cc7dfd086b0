//! Operations of a peer on our memory: which are applied, and which are here in part.

use std::collections::VecDeque;

use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_wire::frame::{AtomicBody, LockBody};

use super::numbers::{Known, NUMBERS_MAX, Numbers};

/// Tokens of a peer that may be held.
pub(crate) const TOKENS_MAX: u32 = 64;

/// Something that takes effect after all that its sender did before.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Held {
    Atomic(AtomicBody),
    /// Of a lock.
    Release(LockBody),
    /// Of a put that is at its place.
    Notice(Notice),
}

/// Something that takes effect after a put.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Notice {
    pub region: SlotId,
    pub number: u64,
    /// The peer wants to know when it has taken effect.
    pub tells: bool,
    /// The memory of the put is gone: the peer is told that, although the effect takes place.
    pub is_refused: bool,
    pub effect: Effect,
}

/// The effect of a put whose bytes are at their place.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Effect {
    /// A word, counted from the end of the region, grows to the value, or by it.
    Growth { value: u64, word: u32, to: bool },
    /// An event, with this data, about so many bytes.
    Event { data: u64, bytes: u64 },
}

impl Held {
    pub fn number(&self) -> u64 {
        match self {
            Held::Atomic(body) => body.number.get(),
            Held::Release(body) => body.number.get(),
            Held::Notice(notice) => notice.number,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Taken {
    numbers: Numbers,
    /// Those of which some bytes have arrived and others lack. Numbers that may be open bound them.
    parts: Vec<Part>,
    /// Tokens, in the order in which they came, until what they follow is over.
    tokens: VecDeque<Held>,
    /// The peer is to be told what is applied.
    pub(super) is_due: bool,
    /// Refused operations, and the spans that tell of them: no mark stands for them before the peer has heard why.
    refusals: VecDeque<(u64, u64)>,
    /// The last mark that the peer was told, and when it is told of the rest, although it did not ask.
    told: u64,
    tell_at: Time,
}

#[derive(Debug, Clone, Copy)]
struct Part {
    number: u64,
    /// Where its bytes are: a name may be that of another region meanwhile.
    region: SlotId,
    lacks: u32,
}

/// How far an operation is, of which bytes arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Come {
    All,
    Some,
    /// Others of its bytes are in another region.
    Elsewhere,
}

/// How the end of an operation stands to those of lower numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// All up to it are over.
    InTurn,
    /// One with a lower number is not.
    Early,
    /// It was over before.
    Before,
}

impl Default for Taken {
    fn default() -> Taken {
        Taken {
            numbers: Numbers::default(),
            parts: Vec::new(),
            tokens: VecDeque::new(),
            refusals: VecDeque::new(),
            is_due: false,
            told: 0,
            tell_at: Time::NEVER,
        }
    }
}

impl Taken {
    pub fn is_due(&self) -> bool {
        self.is_due
    }

    pub fn known(&self, number: u64) -> Known {
        self.numbers.known(number)
    }

    /// All operations up to this number are over.
    pub fn applied(&self) -> u64 {
        self.numbers.through()
    }

    /// The number up to which all are over, for the peer to be told, which has all spans up to `answered`. A mark that
    /// overtook a refusal would be taken for success.
    pub fn tell(&mut self, answered: u64) -> u64 {
        self.refusals.retain(|(_, span)| *span > answered);
        let refused = self.refusals.iter().map(|(number, _)| number - 1).min();
        let told = self.applied().min(refused.unwrap_or(u64::MAX));
        (self.told, self.tell_at, self.is_due) = (told, Time::NEVER, false);
        told
    }

    /// The peer hears by this span that an operation was refused.
    pub(super) fn refused(&mut self, number: u64, span: u64) {
        // The origin that gave this number has heard of all that lie so far below.
        self.refusals.retain(|(refused, _)| refused + NUMBERS_MAX > number);
        self.refusals.push_back((number, span));
    }

    /// When the peer is told although it did not ask; `NEVER` where it knows all.
    pub fn tell_at(&self) -> Time {
        self.tell_at
    }

    /// The peer is told by then. True where that is news.
    pub(super) fn tell_by(&mut self, due: Time) -> bool {
        let is_new = self.tell_at == Time::NEVER && self.applied() > self.told;
        if is_new {
            self.tell_at = due;
        }
        is_new
    }

    /// Holds a token. False where there are too many.
    pub(super) fn hold(&mut self, token: Held) -> bool {
        let has_room = self.tokens.len() < TOKENS_MAX as usize;
        if has_room {
            self.tokens.push_back(token);
        }
        has_room
    }

    #[inline]
    pub(super) fn has_tokens(&self) -> bool {
        !self.tokens.is_empty()
    }

    /// Takes out a token of which all that it follows is over.
    pub(super) fn next_token(&mut self) -> Option<Held> {
        let next = self.applied() + 1;
        let at = self.tokens.iter().position(|token| token.number() == next)?;
        self.tokens.remove(at)
    }

    /// So many bytes of an operation of `total` bytes are at their place in a region. A part of an operation that is over
    /// counts for nothing.
    pub(super) fn arrive(&mut self, number: u64, region: SlotId, bytes: u32, total: u32) -> Come {
        let part = self.parts.iter_mut().find(|part| part.number == number);
        match part {
            Some(part) if part.region != region => Come::Elsewhere,
            Some(part) => {
                part.lacks = part.lacks.saturating_sub(bytes);
                if part.lacks == 0 { Come::All } else { Come::Some }
            }
            None if self.numbers.known(number) != Known::Open => Come::Some,
            None if bytes >= total => Come::All,
            None => {
                self.parts.push(Part { number, region, lacks: total - bytes });
                Come::Some
            }
        }
    }

    /// An operation is over: all of it is at its place, or nothing of it comes any more.
    pub fn end(&mut self, number: u64) -> Ended {
        if self.numbers.known(number) != Known::Open {
            return Ended::Before;
        }
        if let Some(at) = self.parts.iter().position(|part| part.number == number) {
            self.parts.swap_remove(at);
        }
        self.numbers.add(number);
        match self.numbers.through() >= number {
            true => Ended::InTurn,
            false => Ended::Early,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: SlotId = SlotId { index: 1, generation: 1 };

    fn come(taken: &mut Taken, number: u64, bytes: u32, total: u32) -> Come {
        taken.arrive(number, REGION, bytes, total)
    }

    #[test]
    fn bytes_of_an_operation_are_in_one_region() {
        let mut taken = Taken::default();
        assert_eq!(come(&mut taken, 1, 5, 15), Come::Some);
        let other = SlotId { index: 1, generation: 2 };
        assert_eq!(taken.arrive(1, other, 5, 15), Come::Elsewhere);
        taken.end(1);
        assert_eq!(come(&mut taken, 1, 5, 15), Come::Some, "what is over counts for nothing");
    }

    #[test]
    fn an_operation_is_over_when_all_its_bytes_are_here_and_once() {
        let mut taken = Taken::default();
        assert!(
            come(&mut taken, 2, 10, 30) == Come::Some && come(&mut taken, 1, 5, 6) == Come::Some
        );
        assert!(
            come(&mut taken, 2, 10, 30) == Come::Some && come(&mut taken, 2, 10, 30) == Come::All
        );
        assert_eq!(taken.end(2), Ended::Early);
        assert_eq!(
            (taken.applied(), taken.known(2), taken.end(2)),
            (0, Known::Done, Ended::Before)
        );
        assert!(come(&mut taken, 1, 1, 6) == Come::All);
        assert_eq!((taken.end(1), taken.applied()), (Ended::InTurn, 2));
        assert!(come(&mut taken, 3, 8, 8) == Come::All);
        assert_eq!(taken.end(3), Ended::InTurn);
        assert!(taken.parts.is_empty());
    }

    #[test]
    fn tokens_wait_for_what_they_follow_and_are_few() {
        use zerocopy::FromZeros;
        let token = |number: u64| {
            Held::Atomic(AtomicBody { number: number.into(), ..AtomicBody::new_zeroed() })
        };
        let mut taken = Taken::default();
        assert!(taken.hold(token(4)) && taken.hold(token(3)));
        assert!(taken.next_token().is_none());
        assert_eq!(taken.end(2), Ended::Early);
        assert!(taken.next_token().is_none(), "the first one lacks");
        assert_eq!(taken.end(1), Ended::InTurn);
        for number in [3, 4] {
            assert_eq!(taken.next_token().map(|token| token.number()), Some(number));
            assert!(taken.next_token().is_none());
            assert_eq!(taken.end(number), Ended::InTurn);
        }
        assert!((0..TOKENS_MAX).all(|_| taken.hold(token(9))) && !taken.hold(token(9)));
    }

    #[test]
    fn the_peer_is_told_in_time_of_what_it_did_not_ask_for() {
        let mut taken = Taken::default();
        let due = Time(5);
        assert!(!taken.tell_by(due), "there is nothing to tell");
        taken.end(1);
        assert!(taken.tell_by(due) && !taken.tell_by(Time(9)));
        assert_eq!((taken.tell_at(), taken.tell(0), taken.tell_at()), (due, 1, Time::NEVER));
        assert!(!taken.tell_by(due), "it knows all");
    }

    #[test]
    fn no_mark_stands_for_a_refusal_that_the_peer_may_not_have() {
        let mut taken = Taken::default();
        (1..=4).for_each(|number| assert_eq!(taken.end(number), Ended::InTurn));
        taken.refused(2, 7);
        taken.refused(4, 9);
        assert_eq!((taken.tell(6), taken.tell(7), taken.tell(8)), (1, 3, 3));
        assert!(taken.tell_by(Time(5)), "the rest is told later");
        assert_eq!((taken.tell(9), taken.tell_by(Time(6))), (4, false));
    }

    #[test]
    fn one_that_was_given_up_in_part_leaves_nothing() {
        let mut taken = Taken::default();
        assert!(come(&mut taken, 1, 5, 6) == Come::Some);
        assert_eq!(taken.end(1), Ended::InTurn);
        assert!(taken.parts.is_empty());
        // A frame of it that was on its way to its place comes late.
        assert!(come(&mut taken, 1, 1, 6) == Come::Some);
        assert!(taken.parts.is_empty());
    }
}
