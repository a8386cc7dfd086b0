//! One read of remote memory, piece by piece: pieces to ask for, missing pieces, pieces to ask for again.
//!
//! The reader asks for up to [`PIECES_PER_ASK`] pieces at a time and has several such *asks* under way; the owner
//! answers each in the order of its pieces, and one ask after the other, of all reads. So a piece is lost when one that
//! was asked for later has been here for some time, and then it is asked for again, by itself. Where nothing comes at
//! all, a timer asks for all.
//!
//! Invariant: a piece that is missing is part of exactly one ask, or was not asked for yet.

use std::collections::VecDeque;
use std::time::Duration;

use ropewalk_base::time::Time;

use crate::round_trip::RoundTrip;

/// Pieces of an ask of which none was asked for before.
pub const PIECES_PER_ASK: u32 = 32;
/// Asks that left so long after each other arrive in their order, whatever their paths.
const APART: Duration = Duration::from_micros(20);
/// Shortest wait for an answer: the measured round trip covers the time that the owner needs to be woken.
const WAIT_MIN: Duration = Duration::from_micros(200);
const WAIT_MAX: Duration = Duration::from_millis(500);
/// While the owner answers others, the silence may last this many times as long.
const BUSY_FOR: u32 = 16;

/// A read on its way.
#[derive(Debug)]
pub struct Pull {
    total_bytes: u64,
    piece_bytes: u32,
    /// Bytes that the first piece is shorter than others.
    lead: u32,
    per_ask: u32,
    /// The first piece that was not asked for yet.
    fresh: u32,
    pieces: u32,
    missing: u32,
    /// Those under way, the one that was asked first at the front.
    asks: VecDeque<Asked>,
    /// Since when nothing came, asks that go again aside.
    heard_at: Time,
    /// Since when nothing came at all.
    silent_since: Time,
    /// Times in a row that nothing came in time.
    misses: u32,
}

/// Stands for the time at which an ask was overtaken that is to go again as nothing came.
const SILENCE: Time = Time::ZERO;

/// The pieces that are asked for: `first` plus the number of each bit that is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    pub first: u32,
    pub pieces: u64,
}

#[derive(Debug)]
struct Asked {
    ask: Ask,
    asked_at: Time,
    /// When its pieces were asked for first; none where they were lost for certain, which says nothing of the owner.
    first_at: Option<Time>,
    /// Of its pieces, those that others overtook, and since when.
    overtaken: u64,
    overtaken_at: Time,
    /// It was asked again, and its answer may be that to the first time.
    again: bool,
    /// Since when others had overtaken its pieces, where they are asked for again for that.
    late_from: Time,
    /// It is being answered.
    answered: bool,
}

/// The place of a piece in the transfer, and the history of its ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub offset: u64,
    pub bytes: u32,
    /// When it was asked for.
    pub asked_at: Time,
    /// The time from the ask to its first answer, if this piece is that answer. If the ask went again because nothing
    /// came, the time counts from the first ask on. Otherwise a slow owner would never be known as slow, and would be
    /// asked again for ever.
    pub round_trip: Option<Duration>,
    /// It was asked for more than once.
    pub again: bool,
    /// The time for which others had overtaken it, if it was asked for again for that reason. If it comes once more, it
    /// was late by this time, and not lost.
    pub late: Option<Duration>,
}

impl Pull {
    /// A read of so many bytes, at least one, in pieces of this length.
    pub fn new(total_bytes: u64, piece_bytes: u32) -> Pull {
        Pull::framed(total_bytes, piece_bytes, 0, PIECES_PER_ASK)
    }

    /// The same where the first piece is shorter by `lead`, as that of a region which does not begin where
    /// a piece does, and where at most `per_ask` pieces are asked for at a time, up to 64.
    pub fn framed(total_bytes: u64, piece_bytes: u32, lead: u32, per_ask: u32) -> Pull {
        debug_assert!(lead < piece_bytes && (1..=64).contains(&per_ask) && total_bytes > 0);
        let pieces = (total_bytes + u64::from(lead)).div_ceil(piece_bytes.into()) as u32;
        Pull {
            total_bytes,
            piece_bytes,
            lead,
            per_ask,
            fresh: 0,
            pieces,
            missing: pieces,
            asks: VecDeque::new(),
            heard_at: Time::NEVER,
            silent_since: Time::NEVER,
            misses: 0,
        }
    }

    /// Whether all of it is here.
    pub fn is_complete(&self) -> bool {
        self.missing == 0
    }

    /// Pieces that are asked for and not here.
    pub fn under_way(&self) -> u32 {
        self.fresh - (self.pieces - self.missing)
    }

    /// The number of new pieces in the next ask: pieces that were not asked for before.
    pub fn next_fresh(&self) -> u32 {
        (self.pieces - self.fresh).min(self.per_ask)
    }

    /// The number of pieces that were not asked for yet.
    pub fn fresh_left(&self) -> u32 {
        self.pieces - self.fresh
    }

    /// Asks for the next pieces; there are some.
    pub fn ask(&mut self, now: Time) -> Ask {
        let count = self.next_fresh();
        let ask = Ask { first: self.fresh, pieces: u64::MAX >> (64 - count) };
        self.fresh += count;
        self.note(ask, Some(now), false, Time::NEVER, now);
        ask
    }

    /// An ask goes, which counts as one of then.
    fn note(&mut self, ask: Ask, first_at: Option<Time>, again: bool, late_from: Time, now: Time) {
        if self.asks.is_empty() {
            self.heard_at = now;
            self.silent_since = self.silent_since.min(now);
        }
        let (overtaken, overtaken_at) = (0, Time::NEVER);
        self.asks.push_back(Asked {
            ask,
            asked_at: now,
            first_at,
            overtaken,
            overtaken_at,
            again,
            late_from,
            answered: false,
        });
    }

    /// Offset and length of a piece of this read.
    pub fn place(&self, piece: u32) -> (u64, u32) {
        let bound = |piece: u32| {
            let at = u64::from(piece) * u64::from(self.piece_bytes);
            at.saturating_sub(self.lead.into()).min(self.total_bytes)
        };
        let offset = bound(piece);
        (offset, (bound(piece + 1) - offset) as u32)
    }

    /// The number of its pieces.
    pub fn pieces(&self) -> u32 {
        self.pieces
    }

    /// A piece came. `None` where it is here already, was not asked for, or has another length.
    pub fn arrived(&mut self, piece: u32, bytes: u32, now: Time) -> Option<Piece> {
        if piece >= self.fresh {
            return None;
        }
        let (offset, wanted) = self.place(piece);
        let holds = |asked: &Asked| match piece.checked_sub(asked.ask.first) {
            Some(bit @ 0..64) => asked.ask.pieces >> bit & 1 == 1,
            _ => false,
        };
        let index = self.asks.iter().position(holds)?;
        if bytes != wanted {
            return None;
        }
        let bit = 1 << (piece - self.asks[index].ask.first);
        // Over two paths an ask may overtake one that left at the same time, and be answered first. The other ask
        // counts as overtaken when this one is answered whole. It may have come to its owner so much later, and wait
        // there behind asks that came in between, those of other reads included.
        let (left_at, whole) = (self.asks[index].asked_at, self.asks[index].ask.pieces == bit);
        for earlier in self.asks.range_mut(..index) {
            if left_at.since(earlier.asked_at) >= APART {
                earlier.overtake(now);
            } else if whole {
                earlier.overtake(now + APART);
            }
        }
        let asked = &mut self.asks[index];
        asked.ask.pieces &= !bit;
        asked.overtaken &= !bit;
        if asked.overtaken != 0 {
            // The ask is being answered: pieces that were overtaken with the whole ask may follow.
            asked.overtaken_at = now;
        }
        let before = asked.ask.pieces & (bit - 1);
        if before & !asked.overtaken != 0 {
            asked.overtaken |= before;
            asked.overtaken_at = asked.overtaken_at.min(now);
        }
        let is_first = !std::mem::replace(&mut asked.answered, true);
        let first_at = asked.first_at.filter(|_| is_first);
        let (round_trip, again) = (first_at.map(|first_at| now.since(first_at)), asked.again);
        let late = (asked.late_from < Time::NEVER).then(|| now.since(asked.late_from));
        if asked.ask.pieces == 0 {
            self.asks.remove(index);
        }
        self.missing -= 1;
        (self.heard_at, self.misses) = (now, 0);
        self.silent_since = if self.asks.is_empty() { Time::NEVER } else { now };
        Some(Piece { offset, bytes, asked_at: left_at, round_trip, again, late })
    }

    /// The owner answers an ask of another read, which left at `left_at`. An owner answers all asks in order, those of
    /// other reads included. The earlier asks of this read are therefore lost, or on their way.
    pub fn overtaken_by(&mut self, left_at: Time, now: Time) {
        let before = |asked: &&mut Asked| left_at.since(asked.asked_at) >= APART;
        self.asks.iter_mut().filter(before).for_each(|asked| asked.overtake(now));
    }

    /// The time at which [`Pull::ask_again`] has something to ask for. `busy_at`: the last time at which the owner
    /// answered any read.
    pub fn due(&self, round_trip: &RoundTrip, busy_at: Time) -> Time {
        if self.asks.is_empty() {
            return Time::NEVER;
        }
        let overtaken = self.asks.iter().map(|asked| asked.overtaken_at).min();
        let overtaken = overtaken.unwrap_or(Time::NEVER) + round_trip.overtaken();
        overtaken.min(self.silent_until(round_trip, busy_at))
    }

    /// Until when nothing may come: an owner answers in the order of the asks, so that one that is busy with others may
    /// come to ours yet. But it may have lost ours.
    fn silent_until(&self, round_trip: &RoundTrip, busy_at: Time) -> Time {
        let wait = self.wait(round_trip);
        let busy = (busy_at + wait).min(self.heard_at + wait * BUSY_FOR);
        busy.max(self.heard_at + wait)
    }

    /// The longest silence before pieces are asked for again.
    fn wait(&self, round_trip: &RoundTrip) -> Duration {
        let wait = (round_trip.usual() * 4).max(WAIT_MIN) * (1 << self.misses.min(12));
        wait.min(WAIT_MAX)
    }

    /// The next pieces to ask for again.
    pub fn ask_again(&mut self, now: Time, round_trip: &RoundTrip, busy_at: Time) -> Option<Ask> {
        if self.asks.is_empty() {
            // It waits for its turn, not for the owner.
            return None;
        }
        if now >= self.silent_until(round_trip, busy_at) {
            self.misses += 1;
            self.heard_at = now;
            for asked in &mut self.asks {
                (asked.overtaken, asked.overtaken_at) = (asked.ask.pieces, SILENCE);
            }
        }
        let limit = now - round_trip.overtaken();
        let index = self.asks.iter().position(|asked| asked.overtaken_at <= limit)?;
        let asked = &mut self.asks[index];
        let ask = Ask { first: asked.ask.first, pieces: asked.overtaken };
        let is_silent = asked.overtaken_at == SILENCE;
        let first_at = asked.first_at.filter(|_| is_silent);
        let late_from = match is_silent {
            true => asked.late_from,
            false => asked.late_from.min(asked.overtaken_at),
        };
        asked.ask.pieces &= !asked.overtaken;
        (asked.overtaken, asked.overtaken_at) = (0, Time::NEVER);
        if asked.ask.pieces == 0 {
            self.asks.remove(index);
        }
        if ask.pieces == 0 {
            // The overtaken pieces have arrived meanwhile.
            return self.ask_again(now, round_trip, busy_at);
        }
        self.note(ask, first_at, true, late_from, now);
        Some(ask)
    }

    /// Since when the owner owes pieces; `NEVER` where it owes none.
    pub fn silent_since(&self) -> Time {
        self.silent_since
    }

    /// Times in a row that nothing came in time.
    pub fn misses(&self) -> u32 {
        self.misses
    }
}

impl Asked {
    /// One that left later is being answered, as of then.
    fn overtake(&mut self, at: Time) {
        self.overtaken = self.ask.pieces;
        self.overtaken_at = self.overtaken_at.min(at);
    }
}

impl Ask {
    /// Its pieces.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        let mut left = self.pieces;
        std::iter::from_fn(move || {
            let bit = (left != 0).then(|| left.trailing_zeros())?;
            left &= left - 1;
            Some(self.first + bit)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropewalk_base::random::Random;

    const PIECE: u32 = 1000;

    fn at(micros: u64) -> Time {
        Time(micros * 1000)
    }

    fn round_trip() -> RoundTrip {
        let mut round_trip = RoundTrip::default();
        (0..30).for_each(|_| round_trip.measured(Duration::from_micros(40)));
        round_trip
    }

    #[test]
    fn pieces_land_where_they_belong_in_any_order() {
        let mut pull = Pull::new(40 * 1000 - 1, PIECE);
        let (first, second) = (pull.ask(at(0)), pull.ask(at(0)));
        assert_eq!((first.iter().count(), second.iter().count()), (32, 8));
        assert_eq!((pull.under_way(), pull.next_fresh()), (40, 0));
        let mut all: Vec<u32> = second.iter().chain(first.iter()).collect();
        all.reverse();
        let mut bytes = 0;
        for piece in all {
            let len = if piece == 39 { 999 } else { 1000 };
            assert_eq!(pull.arrived(piece, len + 1, at(1)), None);
            let place = pull.arrived(piece, len, at(1)).expect("it is awaited");
            assert_eq!((place.offset, place.bytes), (u64::from(piece) * 1000, len));
            assert_eq!(pull.arrived(piece, len, at(1)), None, "it is here already");
            bytes += len;
        }
        assert_eq!((bytes, pull.is_complete(), pull.under_way()), (39_999, true, 0));
        assert_eq!(pull.due(&round_trip(), Time::ZERO), Time::NEVER);
        assert_eq!(pull.arrived(40, 1, at(1)), None);
    }

    #[test]
    fn a_first_piece_may_be_shorter_and_asks_too() {
        let mut pull = Pull::framed(10_000, PIECE, 300, 8);
        assert_eq!(pull.ask(at(0)).iter().count(), 8);
        assert_eq!((pull.pieces(), pull.next_fresh()), (11, 3));
        assert_eq!([0, 1, 10].map(|piece| pull.place(piece)), [(0, 700), (700, 1000), (9700, 300)]);
        let last = pull.ask(at(0));
        assert_eq!(last.iter().collect::<Vec<_>>(), [8, 9, 10]);
        for piece in 0..11 {
            pull.arrived(piece, pull.place(piece).1, at(1)).unwrap();
        }
        assert!(pull.is_complete());
    }

    #[test]
    fn a_piece_that_others_overtook_is_asked_for_again_and_no_other() {
        let mut pull = Pull::new(64_000, PIECE);
        let first = pull.ask(at(0));
        for piece in first.iter().filter(|piece| ![3, 31].contains(piece)) {
            pull.arrived(piece, PIECE, at(50)).unwrap();
        }
        let due = pull.due(&round_trip(), Time::ZERO);
        assert_eq!(due, at(50) + round_trip().overtaken());
        assert_eq!(pull.ask_again(at(50), &round_trip(), Time::ZERO), None, "it may only be late");
        let again = pull.ask_again(due, &round_trip(), Time::ZERO).unwrap();
        assert_eq!(again.iter().collect::<Vec<_>>(), [3], "the last one may be on its way");
        pull.ask(at(100));
        pull.arrived(40, PIECE, at(130)).unwrap();
        let again: Vec<u32> =
            std::iter::from_fn(|| pull.ask_again(at(160), &round_trip(), Time::ZERO))
                .flat_map(Ask::iter)
                .collect();
        assert_eq!(again[..2], [31, 3], "both were asked for before the one that came");
    }

    #[test]
    fn an_owner_that_is_busy_with_others_is_waited_for_but_not_for_ever() {
        let mut pull = Pull::new(8 * 1000, PIECE);
        pull.ask(at(0));
        // Others are answered all the time.
        let usual = pull.due(&round_trip(), Time::ZERO);
        assert_eq!(usual, at(200));
        assert_eq!(pull.ask_again(at(250), &round_trip(), at(240)), None);
        assert_eq!(pull.due(&round_trip(), at(1000)), at(1200));
        assert_eq!(pull.due(&round_trip(), at(10_000)), at(16 * 200));
        assert_eq!(pull.ask_again(at(3200), &round_trip(), at(3190)).unwrap().pieces, 0xff);
    }

    #[test]
    fn an_owner_that_became_slow_is_known_for_it() {
        let mut round_trip = round_trip();
        let mut now = at(0);
        let mut asked_again = Vec::new();
        for _ in 0..60 {
            let mut pull = Pull::new(1000, PIECE);
            pull.ask(now);
            let answered_at = now + Duration::from_millis(10);
            let mut again = 0;
            while pull.due(&round_trip, Time::ZERO) < answered_at {
                now = pull.due(&round_trip, Time::ZERO);
                again += u32::from(pull.ask_again(now, &round_trip, Time::ZERO).is_some());
            }
            now = answered_at;
            let piece = pull.arrived(0, PIECE, now).expect("it is awaited");
            assert_eq!(piece.again, again > 0);
            round_trip.measured(piece.round_trip.expect("it is the first one"));
            asked_again.push(again);
        }
        assert!(asked_again[0] > 2, "{asked_again:?}");
        assert_eq!(asked_again[20..].iter().sum::<u32>(), 0, "{asked_again:?}");
    }

    #[test]
    fn an_ask_that_was_answered_after_one_of_the_same_time_is_not_asked_again() {
        let mut pull = Pull::new(96_000, PIECE);
        let (first, second, third) = (pull.ask(at(0)), pull.ask(at(2)), pull.ask(at(4)));
        let mut now = 40;
        for piece in second.iter().chain(first.iter()).chain(third.iter()) {
            now += 4;
            assert_eq!(pull.ask_again(at(now), &round_trip(), Time::ZERO), None, "{piece}");
            pull.arrived(piece, PIECE, at(now)).unwrap();
        }
        assert!(pull.is_complete());
    }

    #[test]
    fn an_ask_that_came_later_than_a_short_one_waits_its_turn_at_the_owner() {
        let mut pull = Pull::new(33_000, PIECE);
        let (long, short) = (pull.ask(at(0)), pull.ask(at(0)));
        assert_eq!((long.iter().count(), short.iter().count()), (32, 1));
        pull.arrived(short.first, PIECE, at(30)).unwrap();
        // It came by the longer path, and the owner had others to answer by then.
        let grace = round_trip().overtaken();
        assert_eq!(pull.ask_again(at(30) + grace, &round_trip(), Time::ZERO), None);
        let due = at(30) + APART + grace;
        assert_eq!(pull.due(&round_trip(), Time::ZERO), due);
        assert_eq!(pull.ask_again(due, &round_trip(), Time::ZERO), Some(long));
    }

    #[test]
    fn who_owes_nothing_is_not_silent() {
        let mut pull = Pull::new(64_000, PIECE);
        for piece in pull.ask(at(0)).iter() {
            pull.arrived(piece, PIECE, at(1)).unwrap();
        }
        for millis in [1000, 2000, 3000] {
            assert_eq!(pull.ask_again(at(millis * 1000), &round_trip(), Time::ZERO), None);
        }
        assert_eq!(pull.misses(), 0);
    }

    #[test]
    fn silence_makes_it_ask_for_everything_ever_more_seldom() {
        let mut pull = Pull::new(3000, PIECE);
        pull.ask(at(0));
        let mut now = at(0);
        let mut wait = Duration::ZERO;
        for miss in 1..=14 {
            let due = pull.due(&round_trip(), Time::ZERO);
            assert!(due.since(now) >= wait);
            (wait, now) = (due.since(now), due);
            assert_eq!(pull.ask_again(now, &round_trip(), Time::ZERO).unwrap().iter().count(), 3);
            assert_eq!(pull.ask_again(now, &round_trip(), Time::ZERO), None);
            assert_eq!(pull.misses(), miss);
        }
        assert_eq!(wait, WAIT_MAX);
        pull.arrived(1, PIECE, now).unwrap();
        assert_eq!(pull.misses(), 0);
    }

    #[test]
    fn whatever_is_lost_or_late_it_ends_and_asks_for_little_twice() {
        for seed in 0..300 {
            let mut random = Random::from_seed(seed);
            let pieces = 1 + random.below(400) as u32;
            let mut pull = Pull::new(u64::from(pieces) * u64::from(PIECE), PIECE);
            let mut coming: Vec<(Time, u32)> = Vec::new();
            let (mut now, mut asked, mut here) = (at(0), 0, 0);
            let round_trip = round_trip();
            while !pull.is_complete() {
                let mut asks = Vec::new();
                while pull.next_fresh() > 0 && pull.under_way() + pull.next_fresh() <= 128 {
                    asks.push(pull.ask(now));
                }
                asks.extend(std::iter::from_fn(|| pull.ask_again(now, &round_trip, Time::ZERO)));
                for piece in asks.into_iter().flat_map(Ask::iter) {
                    asked += 1;
                    let late = Duration::from_micros(40 + random.below(10));
                    let doubled = random.below(100) == 0;
                    for _ in 0..=u32::from(doubled) {
                        if random.below(100) > 2 {
                            coming.push((now + late, piece));
                        }
                    }
                }
                coming.sort_by_key(|(then, _)| std::cmp::Reverse(*then));
                let next = coming.last().map_or(Time::NEVER, |(then, _)| *then);
                now = now.max(next.min(pull.due(&round_trip, Time::ZERO)));
                while coming.last().is_some_and(|(then, _)| *then <= now) {
                    let (_, piece) = coming.pop().expect("there is one");
                    here += u32::from(pull.arrived(piece, PIECE, now).is_some());
                }
            }
            assert_eq!(here, pieces, "seed {seed}");
            assert!(asked <= pieces + pieces / 5 + 10, "seed {seed}: {asked} for {pieces}");
        }
    }
}
