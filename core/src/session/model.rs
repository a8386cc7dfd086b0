//! What a pair of rails can carry to a host: how many bytes a second it delivers, its least round trip, and how many bytes
//! are in flight, of all sessions together ([`super::controllers`]).
//!
//! The rate is the greatest of some rounds: a round counts what is acknowledged in some milliseconds. One in which the
//! path always had enough to do may lower the rate; one in which it had not can only raise it. The bytes in flight are
//! bounded by what a round trip needs and two milliseconds of queue, so that a path that falls silent, or becomes slow,
//! holds back little.
//!
//! Invariants: time is passed in; what is in flight is what went over links of the route and is neither acknowledged nor
//! given up.

use std::time::Duration;

use ropewalk_base::limits::SPAN_BYTES_MAX;
use ropewalk_base::time::Time;

const SPAN: u64 = SPAN_BYTES_MAX as u64;
/// What a span counts beside its payload, and what goes between two long ones.
const HEADS: u64 = 1 << 10;
/// In flight at most while the rate is not known: enough to measure it.
const UNKNOWN_MAX: u64 = 2 * (SPAN + HEADS);
/// In flight at most whatever the rate: a path that is slow always has its next span.
const FEW: u64 = 2 * (SPAN + HEADS);
/// A round trip that is so much longer than the least one says that there is a queue.
const QUEUED: Duration = Duration::from_micros(1500);
/// How long a span may take over a path whose rate is not known.
const UNKNOWN_SPAN: Duration = Duration::from_millis(10);
/// Fewer bytes tell nothing of a rate.
pub(super) const TELLING: u64 = 16 << 10;
/// The queue that a path holds, besides one span.
const QUEUE: Duration = Duration::from_micros(1500);
/// By how much a peer may delay an acknowledgement.
const PROMISED: Duration = Duration::from_millis(1);
/// Twice the rate in this time is the most in flight, for shorter round trips.
const ROUND_TRIP_MIN: Duration = Duration::from_millis(5);
/// How long a round takes at least, at first and later.
const FIRST_ROUND: Duration = Duration::from_millis(3);
const ROUND: Duration = Duration::from_millis(10);
/// Rounds whose greatest rate counts.
const ROUNDS: usize = 4;
/// Rounds without growth after which the rate is known.
const FLAT_ROUNDS: u8 = 3;
/// Rounds in which a path gets spans to be measured, at first and when it was unused for long, and after one with growth.
const TRIES: u8 = 8;
const TRIES_LATER: u8 = 2;
const TRIES_GROWING: u8 = 4;
/// How long a least round trip counts. Then it is measured again, for a while with little in flight.
const LEAST_FOR: Duration = Duration::from_secs(10);
const LEAST_SLOT: Duration = Duration::from_millis(20);
/// A path that nobody used for so long gets a span, since it may have become faster; more rarely where a span takes long.
const UNUSED: Duration = Duration::from_secs(1);
const UNUSED_SPANS: u32 = 200;

/// The model of the paths of one route.
#[derive(Debug, Default)]
pub(crate) struct PathModel {
    /// Bytes in flight.
    in_flight: u64,
    round: Option<Round>,
    /// Bytes a second of the last rounds, 0 where there was none.
    rounds: [u64; ROUNDS],
    next_round: usize,
    /// The greatest of them; 0: not known.
    rate: u64,
    /// Rounds without growth, up to [`FLAT_ROUNDS`].
    flat: u8,
    /// Rounds left in which it gets spans to be measured.
    tries: u8,
    least: Option<Least>,
    /// The least of the present time, and of spans that went while it was measured again.
    later: [Option<RoundTrip>; 2],
    /// When the newest span was sent that was acknowledged.
    sent_at: Time,
    /// When an acknowledgement of it came last over the route itself.
    delivered_at: Time,
    used_at: Time,
}

#[derive(Debug, Clone, Copy)]
struct Round {
    since: Time,
    delivered: u64,
    /// The fewest bytes in flight since then, and the least round trip.
    least_in_flight: u64,
    round_trip: Option<Duration>,
    /// When the newest span was sent that was acknowledged before.
    sent_at: Time,
    /// It began with nothing in flight: the way there and back counts, too.
    was_idle: bool,
    /// Some of what was acknowledged went over another path, too, and does not count as delivered.
    is_redundant: bool,
}

/// The least round trip, and since when it counts.
#[derive(Debug, Clone, Copy)]
struct Least {
    round_trip: RoundTrip,
    since: Time,
}

/// A round trip, and the bytes of the span that it took.
#[derive(Debug, Clone, Copy)]
struct RoundTrip {
    time: Duration,
    bytes: u64,
}

/// Bytes of a path that were acknowledged together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Acknowledged {
    /// Bytes that went over it, and over it alone.
    pub bytes: u64,
    pub alone: u64,
    /// When the last of the latter was sent, and its bytes.
    pub sent: Option<(Time, u64)>,
    /// The acknowledgement came over it, too.
    pub over_it: bool,
    /// Some went over two paths at once.
    pub is_redundant: bool,
}

impl Acknowledged {
    /// So many bytes more. `alone`: when they were sent, where they went over this path alone.
    #[inline]
    pub fn add(&mut self, bytes: u64, alone: Option<Time>) {
        self.bytes += bytes;
        if let Some(sent_at) = alone {
            self.alone += bytes;
            self.sent = self.sent.max(Some((sent_at, bytes)));
        }
    }
}

impl Least {
    /// Whether it is so old at a moment that it is measured again then.
    fn is_measured_again(self, at: Time) -> bool {
        let age = at.since(self.since);
        age >= LEAST_FOR && age < LEAST_FOR + LEAST_SLOT
    }
}

impl PathModel {
    /// The model of a route over which so many bytes are under way already.
    pub fn new(in_flight: u64, now: Time) -> PathModel {
        PathModel { in_flight, used_at: now, tries: TRIES, ..PathModel::default() }
    }

    /// Bytes of spans that are neither acknowledged nor given up.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// When the newest span was sent that was acknowledged.
    pub fn delivered_until(&self) -> Time {
        self.sent_at
    }

    /// When something was acknowledged last over the route itself.
    pub fn delivered_at(&self) -> Time {
        self.delivered_at
    }

    /// Bytes a second, where that is known.
    pub fn rate(&self) -> Option<u64> {
        (self.rate > 0).then_some(self.rate)
    }

    /// The round trip of an empty span on an empty path, where any was measured.
    pub fn round_trip(&self) -> Option<Duration> {
        self.least.map(|least| self.without_bytes(least.round_trip))
    }

    fn without_bytes(&self, round_trip: RoundTrip) -> Duration {
        round_trip.time.saturating_sub(self.time_of(round_trip.bytes))
    }

    /// How long the path takes for so many bytes; nothing where its rate is not known.
    fn time_of(&self, bytes: u64) -> Duration {
        if self.rate == 0 {
            return Duration::ZERO;
        }
        // Divisions of 128 bits are calls of functions.
        let nanos = match bytes.checked_mul(1_000_000_000) {
            Some(nanos) => nanos / self.rate,
            None => {
                let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate);
                nanos.try_into().unwrap_or(u64::MAX)
            }
        };
        Duration::from_nanos(nanos)
    }

    fn bytes_in(&self, time: Duration) -> u64 {
        let bytes = u128::from(self.rate) * time.as_nanos() / 1_000_000_000;
        bytes.try_into().unwrap_or(u64::MAX)
    }

    /// How long the longest span takes, which delivers nothing meanwhile. Where no long one goes there is no such time.
    pub fn span_time(&self) -> Duration {
        match self.rate {
            0 if self.in_flight < TELLING => Duration::ZERO,
            0 => UNKNOWN_SPAN,
            _ => self.time_of(SPAN),
        }
    }

    /// The time until so many bytes more are at the peer.
    pub fn finish(&self, bytes: u64) -> Duration {
        let ahead = self.in_flight + bytes;
        self.time_of(ahead) + self.round_trip().unwrap_or_default() / 2
    }

    /// Bytes that may be in flight.
    pub fn in_flight_max(&self) -> u64 {
        if self.rate == 0 {
            return UNKNOWN_MAX;
        }
        let round_trip = self.round_trip().unwrap_or_default();
        let most = 2 * self.bytes_in(round_trip.max(ROUND_TRIP_MIN));
        // One span of the queue is the same for all: of two hosts over one pair of rails, which know nothing of each other,
        // the slower one gains by that until both have as much.
        let full = self.bytes_in(round_trip + PROMISED + QUEUE) + SPAN;
        let growing = 2 * self.bytes_in(round_trip) * u64::from(self.flat < FLAT_ROUNDS);
        full.max(growing).min(most).max(FEW)
    }

    /// Bytes that may be in flight now: few while the least round trip is measured again.
    pub fn most(&self, now: Time) -> u64 {
        let measures = self.least.is_some_and(|least| least.is_measured_again(now));
        if measures { SPAN } else { self.in_flight_max() }
    }

    /// Whether a span has to show what the path can do: its rate is not known, or of long ago.
    pub fn wants_probe(&self, now: Time) -> bool {
        if self.tries > 0 || self.rate == 0 {
            return self.in_flight + SPAN <= UNKNOWN_MAX;
        }
        self.is_unused(now)
    }

    fn is_unused(&self, now: Time) -> bool {
        let wait = UNUSED.max(self.time_of(SPAN).saturating_mul(UNUSED_SPANS));
        self.in_flight < SPAN && now.since(self.used_at) >= wait
    }

    /// A span goes over the path.
    pub fn send(&mut self, bytes: u64, now: Time) {
        if bytes >= TELLING {
            if self.is_unused(now) {
                self.tries = self.tries.max(TRIES_LATER);
            }
            self.used_at = now;
        }
        if self.in_flight == 0 {
            self.round = Some(Round { was_idle: true, ..self.round_from(now) });
        }
        self.in_flight += bytes;
    }

    /// Spans are acknowledged.
    pub fn acknowledge(&mut self, acknowledged: &Acknowledged, now: Time) {
        self.in_flight = self.in_flight.saturating_sub(acknowledged.bytes);
        let sample = self.measure(acknowledged.sent, now);
        if sample.is_some() && acknowledged.over_it {
            self.delivered_at = now;
        }
        let length = if self.flat < FLAT_ROUNDS { FIRST_ROUND } else { ROUND };
        let is_idle = self.in_flight == 0;
        let Some(round) = &mut self.round else {
            return self.begin_round(now);
        };
        round.delivered += acknowledged.alone;
        round.is_redundant |= acknowledged.is_redundant;
        round.least_in_flight = round.least_in_flight.min(self.in_flight);
        round.round_trip = round.round_trip.into_iter().chain(sample).min();
        let round = *round;
        if is_idle || (now.since(round.since) >= length && round.delivered >= TELLING) {
            self.end_round(round, now);
            self.begin_round(now);
        }
    }

    /// A span is acknowledged that was sent at that time, and has so many bytes. Returns its round trip.
    pub fn measure(&mut self, sent: Option<(Time, u64)>, now: Time) -> Option<Duration> {
        let (sent_at, bytes) = sent?;
        let round_trip = RoundTrip { time: now.since(sent_at), bytes };
        self.note_round_trip(round_trip, sent_at, now);
        self.sent_at = self.sent_at.max(sent_at);
        Some(round_trip.time)
    }

    fn round_from(&self, since: Time) -> Round {
        let (least_in_flight, sent_at) = (self.in_flight, self.sent_at);
        let (delivered, round_trip, was_idle, is_redundant) = (0, None, false, false);
        Round { since, delivered, least_in_flight, round_trip, sent_at, was_idle, is_redundant }
    }

    fn begin_round(&mut self, now: Time) {
        self.round = (self.in_flight > 0).then(|| self.round_from(now));
    }

    /// Whether the path had enough to do all the time: there was always more in flight than it needs, or a queue.
    fn was_full(&self, round: &Round) -> bool {
        let needed = self.bytes_in(self.round_trip().unwrap_or_default() + PROMISED);
        let has_queue = || {
            let least = self.least.map(|least| least.round_trip.time);
            let queue = least.zip(round.round_trip).map(|(least, now)| now.saturating_sub(least));
            queue.is_some_and(|queue| queue >= QUEUED)
        };
        let was_busy = !round.was_idle && !round.is_redundant && round.least_in_flight > 0;
        was_busy && (round.least_in_flight >= needed || has_queue())
    }

    fn end_round(&mut self, round: Round, now: Time) {
        // Acknowledgements that were held up come together: nothing comes faster than it was sent.
        let sent_in =
            if round.was_idle { Duration::ZERO } else { self.sent_at.since(round.sent_at) };
        let nanos = now.since(round.since).max(sent_in).as_nanos();
        if nanos == 0 || round.delivered < TELLING {
            return;
        }
        let rate = u128::from(round.delivered) * 1_000_000_000 / nanos;
        let rate = u64::try_from(rate).unwrap_or(u64::MAX).max(1);
        let was_full = self.was_full(&round);
        self.tries = self.tries.saturating_sub(1);
        if !was_full && rate <= self.rate {
            return;
        }
        let grows = rate / 5 > self.rate / 4;
        if grows && self.rate > 0 {
            self.tries = self.tries.max(TRIES_GROWING);
        }
        self.flat = if grows { 0 } else { (self.flat + u8::from(was_full)).min(FLAT_ROUNDS) };
        self.rounds[self.next_round] = rate;
        self.next_round = (self.next_round + 1) % ROUNDS;
        self.rate = self.rounds.into_iter().max().unwrap_or(0);
    }

    fn note_round_trip(&mut self, round_trip: RoundTrip, sent_at: Time, now: Time) {
        let Some(least) = self.least else {
            self.least = Some(Least { round_trip, since: now });
            return;
        };
        if self.without_bytes(round_trip) <= self.without_bytes(least.round_trip) {
            (self.least, self.later) = (Some(Least { round_trip, since: now }), [None; 2]);
            return;
        }
        for (place, counts) in [(0, true), (1, least.is_measured_again(sent_at))] {
            let is_less = |other: RoundTrip| round_trip.time < other.time;
            if counts && self.later[place].is_none_or(is_less) {
                self.later[place] = Some(round_trip);
            }
        }
        if now.since(least.since) >= LEAST_FOR + LEAST_SLOT {
            // Longer ways than a slot drain no queue in it, and need none.
            let [any, slot] = std::mem::take(&mut self.later);
            let round_trip = slot.or(any).unwrap_or(round_trip);
            self.least = Some(Least { round_trip, since: now });
        }
    }

    /// So many bytes were under way before they were counted here.
    pub fn add_in_flight(&mut self, bytes: u64) {
        self.in_flight += bytes;
    }

    /// So many of the bytes in flight go over other paths, or are of no interest any more.
    pub fn give_up(&mut self, bytes: u64) {
        self.in_flight -= bytes;
        match &mut self.round {
            Some(round) if self.in_flight > 0 => {
                round.least_in_flight = round.least_in_flight.min(self.in_flight);
            }
            round => *round = None,
        }
    }

    /// What it did before tells nothing any more.
    pub fn forget(&mut self) {
        *self = PathModel {
            in_flight: self.in_flight,
            used_at: self.used_at,
            tries: TRIES,
            ..PathModel::default()
        };
    }
}

#[cfg(test)]
mod tests;
