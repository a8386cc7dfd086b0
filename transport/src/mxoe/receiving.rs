//! Messages from a partner: matched in the order of their numbers, whatever the order of arrival.
//!
//! Invariants: a message is told once, when all before it were; a packet that came too early is kept, within
//! [`EARLY_MAX`] numbers and [`EARLY_BYTES_MAX`] bytes, or comes again; everything before the acknowledged number is
//! here whole; a partner that goes on and never sends the missing packets is noticed.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ropewalk_base::memory::Slice;
use ropewalk_base::time::Time;
use ropewalk_base::verb::Token;
use ropewalk_wire::mxoe::Sequence;

/// Numbers that may come before their turn.
const EARLY_MAX: u64 = 255;
/// Bytes of what came before its turn.
const EARLY_BYTES_MAX: usize = 512 << 10;
/// Messages that are told behind one that is not whole: half of the numbers, as far as Open-MX goes.
const PARTIAL_MAX: usize = 8191;
/// Bytes that an early packet counts beside its own.
const EARLY_OVERHEAD: usize = 64;
/// Messages after which the partner is told at once, and how long a single one waits.
const ACKNOWLEDGE_EVERY: u32 = 4;
const ACKNOWLEDGE_AFTER: Duration = Duration::from_millis(1);

/// The longest time that packets of a partner's former life may be on their way.
const FORMER_LIFE: Duration = Duration::from_millis(100);
/// A sender that retransmits does so more often than this. After so much silence nobody waits for the missing packets,
/// and packets that came early so long ago come again. If one does not come again, its number belonged to another
/// packet, which comes as well.
const PAUSE: Duration = Duration::from_secs(2);

/// A message, or a fragment of one, as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part<B> {
    Eager { bits: u64, total: u32, fragment: u8, offset: u32, bytes: B },
    Announce { bits: u64, bytes: u32, region: u8, region_sequence: u8, region_offset: u16 },
    Notify { bytes: u32, region: u8, region_sequence: u8 },
}

/// A part that waits for its turn.
#[derive(Debug)]
pub(super) enum Early {
    Part(Part<Vec<u8>>),
    /// It was dealt with already.
    Done,
}

/// The class of a packet by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The next message.
    Next,
    /// Of a message that was told and is not whole.
    Partial(u64),
    /// Messages before it are missing.
    Early(u64),
    /// It is here.
    Again,
    /// Further ahead than anybody keeps, or of another session.
    Beyond,
}

/// A message that was told and is not whole.
#[derive(Debug)]
pub(super) struct Partial {
    pub total: u32,
    /// The place of the message; none if nobody wants it.
    pub place: Option<(Slice, Token)>,
    /// Bytes of every fragment but the last.
    unit: u32,
    here: u32,
    left: u32,
}

/// The numbered messages from one partner.
#[derive(Debug)]
pub(super) struct Receiving {
    bits: u8,
    /// The number of the message that is told next.
    next: u64,
    has_told: bool,
    /// Those before it that are not whole; the first one's number is acknowledged.
    partial: VecDeque<Option<Partial>>,
    early: BTreeMap<(u64, u8), (Early, Time)>,
    early_bytes: usize,
    /// Messages that came since the partner was told, and since when; or it is to be told at once.
    untold: u32,
    since: Time,
    at_once: bool,
    /// The number with which messages may begin instead, and the time from which we believe that.
    instead: Option<(Sequence, Time)>,
    /// Since when packets come that are not the ones that are missing, and when the last of them did.
    stuck: Option<(Time, Time)>,
}

impl Receiving {
    pub fn new(first: Sequence) -> Receiving {
        Receiving {
            bits: first.bits(),
            next: first.number().into(),
            has_told: false,
            partial: VecDeque::new(),
            early: BTreeMap::new(),
            early_bytes: 0,
            untold: 0,
            since: Time::NEVER,
            at_once: false,
            instead: None,
            stuck: None,
        }
    }

    /// The partner, which began anew, may also begin with this number. Late packets of its former life may look the
    /// same, but not for long.
    pub fn may_begin(&mut self, first: Sequence, now: Time) {
        self.instead = Some((first, now + FORMER_LIFE));
    }

    /// The number of the message that is told next.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Whether something came under these numbers.
    pub fn has_told(&self) -> bool {
        self.has_told
    }

    fn first_partial(&self) -> u64 {
        self.next - self.partial.len() as u64
    }

    /// Everything before it is here.
    pub fn acknowledged(&self) -> Sequence {
        Sequence::new(self.bits, self.first_partial())
    }

    /// The class of a packet with this number.
    pub fn look(&mut self, sequence: Sequence, now: Time) -> Arrival {
        if let Some((first, after)) = self.instead {
            let ahead = u64::from(sequence.ahead_of(first));
            if sequence.bits() == self.bits {
                self.instead = None;
            } else if now >= after && sequence.bits() == first.bits() && ahead <= EARLY_MAX {
                *self = Receiving::new(first);
            }
        }
        if sequence.bits() != self.bits {
            return Arrival::Beyond;
        }
        let number = sequence.expand(self.next);
        if number < self.first_partial() {
            return Arrival::Again;
        }
        match number {
            _ if number < self.next => {
                let index = (number - self.first_partial()) as usize;
                if self.partial[index].is_some() {
                    Arrival::Partial(number)
                } else {
                    Arrival::Again
                }
            }
            // A partner that sends ahead of a message, and never completes that message, is not followed for ever.
            _ if self.partial.len() >= PARTIAL_MAX => Arrival::Beyond,
            _ if number == self.next => Arrival::Next,
            _ if number - self.next <= EARLY_MAX => Arrival::Early(number),
            _ => Arrival::Beyond,
        }
    }

    /// A packet came that is not the missing one. The time for which only such packets have come while the partner goes
    /// on: a partner that is silent may only compute.
    pub fn is_stuck_for(&mut self, now: Time) -> Duration {
        let going_on = self.stuck.filter(|(_, last)| now.since(*last) <= PAUSE);
        let since = going_on.map_or(now, |(since, _)| since);
        self.stuck = Some((since, now));
        now.since(since)
    }

    /// Messages go on, or wait for nothing but room.
    pub fn goes_on(&mut self) {
        self.stuck = None;
    }

    /// Keeps a part for later, where it is not here and there is room; whether it is here now.
    pub fn keep(&mut self, number: u64, part: Part<&[u8]>, now: Time) -> bool {
        let fragment = match &part {
            Part::Eager { fragment, .. } => *fragment,
            Part::Announce { .. } | Part::Notify { .. } => 0,
        };
        let key = (number, fragment);
        if self.is_here(key, now) {
            return true;
        }
        let amount = part.bytes().len() + EARLY_OVERHEAD;
        if self.early_bytes + amount > EARLY_BYTES_MAX {
            return false;
        }
        self.early_bytes += amount;
        self.early.insert(key, (Early::Part(part.to_owned()), now));
        true
    }

    /// A message ahead of its turn was dealt with; false if that happened before.
    pub fn done_early(&mut self, number: u64, now: Time) -> bool {
        let key = (number, 0);
        if self.is_here(key, now) {
            return false;
        }
        self.early_bytes += EARLY_OVERHEAD;
        self.early.insert(key, (Early::Done, now));
        true
    }

    /// Whether something came early, and not too long ago.
    fn is_here(&mut self, key: (u64, u8), now: Time) -> bool {
        match self.early.get(&key) {
            Some((_, at)) if now.since(*at) <= PAUSE => true,
            Some(_) => {
                let (early, _) = self.early.remove(&key).expect("it is there");
                self.early_bytes -= early.amount();
                false
            }
            None => false,
        }
    }

    /// A part of the next message, or of one before it, that came early.
    pub fn take_early(&mut self, now: Time) -> Option<(u64, Early)> {
        loop {
            let first = self.early.first_entry()?;
            let (number, _) = *first.key();
            if number > self.next {
                return None;
            }
            let (early, at) = first.remove();
            self.early_bytes -= early.amount();
            if now.since(at) <= PAUSE {
                return Some((number, early));
            }
        }
    }

    /// Bytes of what came early.
    pub fn early_bytes(&self) -> usize {
        self.early_bytes
    }

    /// The next message was told; `partial` is what is missing of it.
    pub fn told(&mut self, partial: Option<Partial>, now: Time) {
        let whole = partial.is_none();
        self.next += 1;
        self.has_told = true;
        self.partial.push_back(partial);
        if whole {
            self.slide();
            self.owe(now);
        }
    }

    fn slide(&mut self) {
        while let Some(None) = self.partial.front() {
            self.partial.pop_front();
            self.goes_on();
        }
    }

    /// The message under a number that is not whole.
    pub fn partial(&mut self, number: u64) -> Option<&mut Partial> {
        let index = number.checked_sub(self.first_partial())?;
        self.partial.get_mut(index as usize)?.as_mut()
    }

    /// The partial message with this token.
    pub fn placed(&mut self, token: Token) -> Option<&mut Partial> {
        let mut all = self.partial.iter_mut().flatten();
        all.find(|partial| partial.place.is_some_and(|(_, other)| other == token))
    }

    /// A message is whole.
    pub fn whole(&mut self, number: u64, now: Time) {
        if let Some(index) = number.checked_sub(self.first_partial())
            && let Some(partial) = self.partial.get_mut(index as usize)
        {
            *partial = None;
            self.slide();
            self.owe(now);
        }
    }

    /// A message is here of which the partner does not know.
    fn owe(&mut self, now: Time) {
        if self.untold == 0 {
            self.since = now;
        }
        self.untold += 1;
    }

    /// The partner missed what it was told.
    pub fn owe_at_once(&mut self, now: Time) {
        self.owe(now);
        self.at_once = true;
    }

    /// When the partner is to be told, if nothing goes there before.
    pub fn due(&self) -> Time {
        match self.untold {
            0 => Time::NEVER,
            _ if self.at_once || self.untold >= ACKNOWLEDGE_EVERY => Time::ZERO,
            _ => self.since + ACKNOWLEDGE_AFTER,
        }
    }

    /// The acknowledgement for a packet that leaves now.
    pub fn tell(&mut self) -> Sequence {
        (self.untold, self.at_once) = (0, false);
        self.acknowledged()
    }
}

impl Partial {
    /// A message of which nothing is here but that it comes, judged by its first part. `None` where that
    /// cannot be a fragment of it.
    pub fn new(total: u32, fragment: u8, offset: u32, bytes: u32) -> Option<Partial> {
        // The last fragment may be shorter than the others, and says by its place what these are.
        let unit = match fragment {
            0 => bytes,
            _ => offset / u32::from(fragment),
        };
        let legal = unit > 0 && total.div_ceil(unit) <= 32 && unit * u32::from(fragment) == offset;
        legal.then_some(Partial { total, place: None, unit, here: 0, left: total })
    }

    /// The same, with its place.
    pub fn at(self, place: Option<(Slice, Token)>) -> Partial {
        Partial { place, ..self }
    }

    /// Notes a fragment. `None` where it does not fit the others or is here, else whether that was all.
    pub fn arrived(&mut self, fragment: u8, offset: u32, bytes: u32) -> Option<bool> {
        let bit = 1u32.checked_shl(fragment.into())?;
        if !self.fits(fragment, offset, bytes) || self.here & bit != 0 {
            return None;
        }
        self.here |= bit;
        self.left -= bytes;
        Some(self.left == 0)
    }
}

impl Partial {
    /// Whether a fragment is one of the message's, by its place and its length.
    pub fn fits(&self, fragment: u8, offset: u32, bytes: u32) -> bool {
        let at = u32::from(fragment).checked_mul(self.unit);
        let expected = at.and_then(|at| self.total.checked_sub(at)).map(|left| left.min(self.unit));
        at == Some(offset) && expected == Some(bytes) && bytes > 0
    }
}

impl Early {
    /// Its bytes in the account of early packets.
    fn amount(&self) -> usize {
        match self {
            Early::Part(part) => part.borrowed().bytes().len() + EARLY_OVERHEAD,
            Early::Done => EARLY_OVERHEAD,
        }
    }
}

impl<'a> Part<&'a [u8]> {
    fn bytes(&self) -> &'a [u8] {
        match *self {
            Part::Eager { bytes, .. } => bytes,
            Part::Announce { .. } | Part::Notify { .. } => &[],
        }
    }

    fn to_owned(&self) -> Part<Vec<u8>> {
        match *self {
            Part::Eager { bits, total, fragment, offset, bytes } => {
                Part::Eager { bits, total, fragment, offset, bytes: bytes.to_vec() }
            }
            Part::Announce { bits, bytes, region, region_sequence, region_offset } => {
                Part::Announce { bits, bytes, region, region_sequence, region_offset }
            }
            Part::Notify { bytes, region, region_sequence } => {
                Part::Notify { bytes, region, region_sequence }
            }
        }
    }
}

impl Part<Vec<u8>> {
    /// The same, with its bytes elsewhere.
    pub fn borrowed(&self) -> Part<&[u8]> {
        match *self {
            Part::Eager { bits, total, fragment, offset, ref bytes } => {
                Part::Eager { bits, total, fragment, offset, bytes }
            }
            Part::Announce { bits, bytes, region, region_sequence, region_offset } => {
                Part::Announce { bits, bytes, region, region_sequence, region_offset }
            }
            Part::Notify { bytes, region, region_sequence } => {
                Part::Notify { bytes, region, region_sequence }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_in_order_and_acknowledged_when_they_are_whole() {
        let mut receiving = Receiving::new(Sequence::new(1, 16_383));
        let look =
            |receiving: &mut Receiving, number| receiving.look(Sequence::new(1, number), Time(1));
        assert_eq!(receiving.look(Sequence::new(0, 16_383), Time(1)), Arrival::Beyond);
        assert_eq!(look(&mut receiving, 16_383), Arrival::Next);
        assert_eq!(look(&mut receiving, 16_383 + 255), Arrival::Early(16_383 + 255));
        assert_eq!(look(&mut receiving, 16_383 + 256), Arrival::Beyond);
        assert_eq!(look(&mut receiving, 16_382), Arrival::Again);
        receiving.told(Partial::new(2000, 0, 0, 1452), Time(1));
        receiving.told(None, Time(1));
        assert_eq!(receiving.acknowledged(), Sequence::new(1, 16_383), "the first is not whole");
        assert_eq!(look(&mut receiving, 16_383), Arrival::Partial(16_383));
        assert_eq!(look(&mut receiving, 16_384), Arrival::Again);
        let partial = receiving.partial(16_383).unwrap();
        assert_eq!(partial.arrived(0, 0, 1452), Some(false));
        assert_eq!(partial.arrived(0, 0, 1452), None, "it is here");
        assert_eq!(partial.arrived(1, 1452, 500), None, "it is too short");
        assert_eq!(partial.arrived(1, 1452, 548), Some(true));
        receiving.whole(16_383, Time(2));
        assert_eq!(receiving.tell(), Sequence::new(1, 16_385));
        assert_eq!(receiving.due(), Time::NEVER);
    }

    #[test]
    fn what_comes_early_is_bounded_and_waits_for_its_turn() {
        let (mut receiving, now) = (Receiving::new(Sequence::new(0, 1)), Time(1));
        let bytes = vec![7; 8192];
        let part = |fragment| Part::Eager {
            bits: 3,
            total: 100_000,
            fragment,
            offset: 8192 * u32::from(fragment),
            bytes: &bytes[..],
        };
        assert!(receiving.done_early(2, now) && !receiving.done_early(2, now));
        let kept = (3..255)
            .flat_map(|number| (0..32).map(move |fragment| (number, fragment)))
            .filter(|(number, fragment)| receiving.keep(*number, part(*fragment), now))
            .count();
        assert!((50..=64).contains(&kept), "{kept}");
        assert!(receiving.take_early(now).is_none());
        receiving.told(None, Time(1));
        assert!(matches!(receiving.take_early(now), Some((2, Early::Done))));
        receiving.told(None, Time(1));
        assert_eq!((0..).map_while(|_| receiving.take_early(now)).count(), 32);
    }
}
