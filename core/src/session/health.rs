//! How a path does, where a session has several: what it takes to an acknowledgement, and whether it is suspect.
//!
//! A path is suspect when nothing of what went over it is acknowledged for a time-out, or its rail says so. Then what went
//! over it goes over the others, and it is probed, together with them. It is dead when it has missed four probes in 100 ms at
//! least that another path answered: if all are silent the peer sleeps, or computes, and no path is to blame, nor is one
//! whose peer answers by another path first when it wakes.
//!
//! Invariant: time is judged against a clock that has advanced since: the first look takes a wait to have begun half a
//! time-out ago at the earliest.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use ropewalk_base::time::Time;

use super::status::PathCause;

/// Part of each time-out: what the thread of a busy host comes late. The clock of such a host ticks each 4 ms, and before it
/// was measured that counts.
pub(crate) const FLOOR_FIRST: Duration = Duration::from_millis(4);
const FLOOR_MIN: Duration = Duration::from_millis(2);
const FLOOR_MAX: Duration = Duration::from_millis(20);
/// By how much a peer may delay an acknowledgement.
const PROMISED: Duration = Duration::from_millis(1);
/// The time-out before any round trip was measured.
const FIRST: Duration = Duration::from_millis(25);
const TIME_OUT_MAX: Duration = Duration::from_millis(500);
/// How long a rail reads or writes before its path is probed.
const WATCH_AFTER: Duration = Duration::from_millis(5);
/// Between two probes of a suspect path, and of one whose rail reads or writes.
const PROBE_EVERY: Duration = Duration::from_millis(25);
/// How long a path is not suspect although it is silent, since its peer's machine has all.
const EXCUSED_MAX: Duration = Duration::from_secs(1);
/// How often the peer is believed that a path is broken.
const TOLD_EVERY: Duration = PROBE_EVERY;
/// How long probes of a suspect path stay unanswered at least before it is dead, and how many that another path answered.
const DEAD_AFTER: Duration = Duration::from_millis(100);
const MISSED_MIN: u32 = 4;
/// Probes of a suspect path, after which it is probed as rarely as one that is idle.
const URGENT_PROBES: u32 = 8;
/// How long a path that got its link back is used only where no other is there; twice as long each time, up to a minute.
const HOLD: Duration = Duration::from_millis(250);
const HOLD_DOUBLINGS: u32 = 8;
/// A path that was in use for longer lost its links long ago.
const LOSSES_FORGOTTEN: Duration = Duration::from_secs(60);
/// A path that answers and is suspect again so soon carries probes and nothing else: it is held back, too, twice as long each
/// time, until it has done well for so long.
const FLAP: Duration = Duration::from_millis(250);
const FLAPS_FORGOTTEN: Duration = Duration::from_secs(10);

/// That part where passes come so late.
pub(crate) fn floor_of(lateness: Duration) -> Duration {
    lateness.clamp(FLOOR_MIN, FLOOR_MAX)
}

#[derive(Debug)]
pub(crate) struct PathHealth {
    floor: Duration,
    /// Smoothed as in RFC 6298.
    round_trip: Option<Duration>,
    variation: Duration,
    /// When it last delivered.
    delivered_at: Time,
    awaiting: Option<Awaiting>,
    suspect: Option<Suspect>,
    /// While its rail reads or writes: when it is probed next, and since when a probe is unanswered.
    watch_at: Option<Time>,
    probed_at: Option<Time>,
    /// Since when its peer takes nothing of what is at the peer's machine.
    excused_since: Option<Time>,
    /// When the peer said last that it is broken, and was believed.
    told_at: Option<Time>,
    /// Why it is not used, as far as that is so, and since when.
    cause: Option<(PathCause, Time)>,
    /// Since when it is used again after it was suspect, and how often it was suspect again soon after.
    well_at: Option<Time>,
    flaps: u32,
    /// How often it lost its link, since when it has been in use after that, and until when it is used only where no other is
    /// there.
    lost: u32,
    used_since: Time,
    held_until: Option<Time>,
    /// How long one span may take.
    span_time: Duration,
}

/// The health of a path, kept from when something is noted of it on: a session with one path has none.
#[derive(Debug, Default)]
pub(crate) struct KeptHealth(Option<Box<PathHealth>>);

static NOTHING_NOTED: PathHealth = PathHealth::NOTHING;

impl Default for PathHealth {
    fn default() -> PathHealth {
        PathHealth::NOTHING
    }
}

impl Deref for KeptHealth {
    type Target = PathHealth;

    #[inline]
    fn deref(&self) -> &PathHealth {
        self.0.as_deref().unwrap_or(&NOTHING_NOTED)
    }
}

impl DerefMut for KeptHealth {
    fn deref_mut(&mut self) -> &mut PathHealth {
        self.0.get_or_insert_default()
    }
}

/// Something that went over the path is not acknowledged.
#[derive(Debug, Clone, Copy)]
struct Awaiting {
    since: Time,
    is_looked_at: bool,
}

#[derive(Debug, Clone, Copy)]
struct Suspect {
    since: Time,
    probe_at: Time,
    /// When it was probed last, how often so far, and how many of these probes another path answered alone.
    asked_at: Option<Time>,
    asked: u32,
    missed: u32,
    is_dead: bool,
}

/// What operators see of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HealthLook {
    /// Smoothed, and its variation.
    pub round_trip: Option<(Duration, Duration)>,
    pub delivered_at: Time,
    /// Since when an acknowledgement, and the answer to a probe, is awaited, and after how long that is too long.
    pub awaited_since: Option<Time>,
    pub probed_at: Option<Time>,
    pub time_out: Duration,
    pub suspect_since: Option<Time>,
    pub held_until: Option<Time>,
}

impl PathHealth {
    const NOTHING: PathHealth = PathHealth {
        floor: FLOOR_FIRST,
        round_trip: None,
        variation: Duration::ZERO,
        delivered_at: Time::ZERO,
        awaiting: None,
        suspect: None,
        watch_at: None,
        probed_at: None,
        excused_since: None,
        told_at: None,
        well_at: None,
        flaps: 0,
        cause: None,
        lost: 0,
        used_since: Time::NEVER,
        held_until: None,
        span_time: Duration::ZERO,
    };

    /// Whether the path is the first choice.
    #[inline]
    pub fn is_good(&self) -> bool {
        self.suspect.is_none() && self.held_until.is_none()
    }

    pub fn is_suspect(&self) -> bool {
        self.suspect.is_some()
    }

    /// When it last delivered, or answered.
    pub fn delivered_at(&self) -> Time {
        self.delivered_at
    }

    /// When it last delivered, or since when something is awaited.
    pub fn silent_since(&self) -> Time {
        self.awaiting.map_or(self.delivered_at, |awaiting| awaiting.since)
    }

    /// Something goes over it, and its acknowledgement is awaited. A suspect path is judged by its probes.
    pub fn awaits(&mut self, now: Time) {
        if self.suspect.is_some() {
            return;
        }
        self.awaiting.get_or_insert(Awaiting { since: now, is_looked_at: false });
    }

    /// Something that went over it alone, at that time, is acknowledged.
    pub fn delivered(&mut self, sent_at: Time, now: Time) {
        self.measure(now.since(sent_at));
        (self.delivered_at, self.excused_since) = (now, None);
        if self.suspect.is_none() {
            self.cause = None;
            self.awaiting = Some(Awaiting { since: now, is_looked_at: true });
        }
    }

    /// Nothing that went over it is awaited.
    pub fn rests(&mut self) {
        (self.awaiting, self.probed_at) = (None, None);
    }

    /// A span takes as long as that, and nothing is delivered meanwhile.
    pub fn allow(&mut self, span_time: Duration) {
        self.span_time = span_time;
    }

    /// All spans that went over it are acknowledged.
    pub fn awaits_nothing(&mut self) {
        self.awaiting = None;
    }

    /// Its rail reads or writes, of which no acknowledgement tells: it is probed meanwhile.
    pub fn watch(&mut self, now: Time) {
        self.watch_at.get_or_insert(now + WATCH_AFTER);
    }

    /// Whether it is time to see if its rail still reads or writes.
    pub fn take_watch(&mut self, now: Time) -> bool {
        self.watch_at.take_if(|at| *at <= now).is_some()
    }

    /// A probe goes, since its rail reads or writes.
    pub fn probed(&mut self, now: Time) {
        self.watch_at = Some(now + PROBE_EVERY);
        if self.suspect.is_none() {
            self.probed_at.get_or_insert(now);
        }
    }

    /// Whether such a probe is unanswered for longer than a time-out.
    pub fn is_silent(&self, now: Time) -> bool {
        self.probed_at.is_some_and(|at| now.since(at) >= self.time_out())
    }

    fn measure(&mut self, sample: Duration) {
        let Some(smoothed) = self.round_trip else {
            (self.round_trip, self.variation) = (Some(sample), sample / 2);
            return;
        };
        self.variation = self.variation * 3 / 4 + smoothed.abs_diff(sample) / 4;
        self.round_trip = Some(smoothed * 7 / 8 + sample / 8);
    }

    /// The part of its time-outs by which threads come late.
    pub fn set_floor(&mut self, floor: Duration) {
        self.floor = floor;
    }

    /// The time after which the path is suspect.
    pub fn time_out(&self) -> Duration {
        let late = PROMISED + self.floor + self.span_time;
        let measured = self.round_trip.map(|it| it + 4 * self.variation + late);
        measured.unwrap_or(FIRST).min(TIME_OUT_MAX)
    }

    /// Whether something is awaited for longer than a time-out.
    pub fn is_late(&mut self, now: Time) -> bool {
        let time_out = self.time_out();
        let Some(awaiting) = &mut self.awaiting else { return false };
        if !std::mem::replace(&mut awaiting.is_looked_at, true) {
            let half = (time_out / 2).as_nanos() as u64;
            awaiting.since = awaiting.since.max(Time(now.0.saturating_sub(half)));
        }
        self.suspect.is_none() && now.since(awaiting.since) >= time_out
    }

    /// The oldest thing that is awaited went over it at that time, if there is one. Whether it is late by that, too: it may
    /// have rested between the last delivery and the next sending.
    pub fn is_awaited(&mut self, sent_at: Option<Time>, now: Time) -> bool {
        let Some(sent_at) = sent_at else {
            self.rests();
            return false;
        };
        if self.awaiting.is_some_and(|awaiting| awaiting.since >= sent_at) {
            return true;
        }
        // That time was told by a clock that may be old.
        let half = (self.time_out() / 2).as_nanos() as u64;
        let since = sent_at.max(Time(now.0.saturating_sub(half)));
        self.awaiting = Some(Awaiting { since, is_looked_at: true });
        false
    }

    /// All that went over it is at the peer's machine: the peer computes, or is stopped, and the path waits for it anew. False
    /// where that is so for too long: somebody else may have acknowledged in the peer's place.
    pub fn excuse(&mut self, now: Time) -> bool {
        let since = *self.excused_since.get_or_insert(now);
        if now.since(since) >= EXCUSED_MAX {
            return false;
        }
        if let Some(awaiting) = &mut self.awaiting {
            awaiting.since = now;
        }
        self.probed_at = self.probed_at.map(|_| now);
        true
    }

    /// It is suspect from now on, and probed at once.
    pub fn suspect(&mut self, now: Time) {
        self.rests();
        if self.suspect.is_none()
            && let Some(well_at) = self.well_at
        {
            let well_for = now.since(well_at);
            // Nothing says so before a time-out is over.
            let flap = FLAP.max(2 * self.time_out());
            self.flaps = match well_for {
                _ if well_for < flap => self.flaps + 1,
                _ if well_for < FLAPS_FORGOTTEN => self.flaps,
                _ => 0,
            };
        }
        self.suspect.get_or_insert(Suspect {
            since: now,
            probe_at: now,
            asked_at: None,
            asked: 0,
            missed: 0,
            is_dead: false,
        });
    }

    /// The peer says that it is broken. False where it says so too often to be believed.
    pub fn is_told(&mut self, now: Time) -> bool {
        if self.told_at.is_some_and(|at| now.since(at) < TOLD_EVERY) {
            return false;
        }
        self.told_at = Some(now);
        true
    }

    /// A probe was answered: it is well.
    pub fn answered(&mut self, now: Time) {
        if self.suspect.is_some() {
            let hold = HOLD * (1 << self.flaps.saturating_sub(1).min(HOLD_DOUBLINGS));
            let until = (self.flaps > 0).then(|| now + hold);
            self.held_until = self.held_until.max(until);
            self.well_at = Some(self.held_until.unwrap_or(now));
        }
        (self.suspect, self.probed_at, self.excused_since) = (None, None, None);
        self.cause = None;
        self.delivered_at = now;
    }

    /// Whether it is to be probed now; the next probe follows in its time. `others`: when another path delivered last.
    /// `idle`: how often paths are looked at over which nothing goes.
    pub fn take_probe(&mut self, others: Time, idle: Duration, now: Time) -> bool {
        let patience = DEAD_AFTER.max(self.time_out());
        let Some(suspect) = self.suspect.as_mut().filter(|it| it.probe_at <= now) else {
            return false;
        };
        if suspect.asked_at.is_some_and(|at| others > at) {
            suspect.missed += 1;
            let is_over = now.since(suspect.since) >= patience;
            suspect.is_dead = is_over && suspect.missed >= MISSED_MIN;
        }
        suspect.asked_at = Some(now);
        suspect.asked += 1;
        let is_urgent = suspect.asked < URGENT_PROBES;
        suspect.probe_at = now + if is_urgent { PROBE_EVERY } else { PROBE_EVERY.max(idle) };
        true
    }

    pub fn look(&self) -> HealthLook {
        HealthLook {
            round_trip: self.round_trip.map(|smoothed| (smoothed, self.variation)),
            delivered_at: self.delivered_at,
            awaited_since: self.awaiting.map(|awaiting| awaiting.since),
            probed_at: self.probed_at,
            time_out: self.time_out(),
            suspect_since: self.suspect.map(|suspect| suspect.since),
            held_until: self.held_until,
        }
    }

    /// Where it is suspect it is probed by then.
    pub fn probe_by(&mut self, at: Time) {
        if let Some(suspect) = &mut self.suspect {
            suspect.probe_at = suspect.probe_at.min(at);
        }
    }

    /// It is probed although it does well.
    pub fn asked(&mut self, now: Time) {
        if self.suspect.is_none() {
            self.probed_at.get_or_insert(now);
        }
    }

    /// Whether it is dead, by its last probe.
    pub fn is_dead(&self) -> bool {
        self.suspect.is_some_and(|suspect| suspect.is_dead)
    }

    /// It has lost its link.
    pub fn lose(&mut self, now: Time) {
        let PathHealth { floor, cause, .. } = *self;
        let lost = if now.since(self.used_since) > LOSSES_FORGOTTEN { 0 } else { self.lost };
        *self = PathHealth { lost: lost + 1, floor, cause, ..PathHealth::NOTHING };
    }

    /// It is not used, for this reason; the first one counts.
    pub fn note_cause(&mut self, cause: PathCause, now: Time) {
        self.cause.get_or_insert((cause, now));
    }

    /// Why it is not used, and since when.
    pub fn cause(&self) -> Option<(PathCause, Time)> {
        self.cause
    }

    /// It has a link again.
    pub fn hold(&mut self, now: Time) {
        self.cause = None;
        let hold = HOLD * (1 << self.lost.saturating_sub(1).min(HOLD_DOUBLINGS));
        self.held_until = (self.lost > 0).then(|| now + hold);
        self.used_since = self.held_until.unwrap_or(now);
    }

    /// It may be used again, if it is time.
    pub fn end_hold(&mut self, now: Time) {
        self.held_until.take_if(|until| *until <= now);
    }

    /// When something is due.
    pub fn due(&self) -> Time {
        let late = self.awaiting.map(|awaiting| awaiting.since + self.time_out());
        let probe = self.suspect.map(|suspect| suspect.probe_at);
        let silent = self.probed_at.map(|at| at + self.time_out());
        [late, probe, silent, self.watch_at, self.held_until]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(Time::NEVER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_millis(25);

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    /// A path whose round trips all took a millisecond.
    fn steady() -> PathHealth {
        let mut health = PathHealth::default();
        for millis in 1..100 {
            health.awaits(at(millis - 1));
            health.delivered(at(millis - 1), at(millis));
        }
        assert_eq!(health.round_trip.map(|it| it.as_micros()), Some(1000));
        health
    }

    #[test]
    fn a_path_that_delivers_nothing_for_a_time_out_is_late() {
        let mut health = steady();
        let time_out = health.time_out();
        assert!((6..7).contains(&time_out.as_millis()), "{time_out:?}");
        assert_eq!(health.due(), at(99) + time_out);
        assert!(!health.is_late(at(104)) && health.is_late(at(106)));
        health.delivered(at(105), at(106));
        assert!(!health.is_late(at(111)));
        health.rests();
        assert!(!health.is_late(at(1000)) && health.due() == Time::NEVER);
    }

    #[test]
    fn a_thread_that_comes_late_has_longer_time_outs() {
        let mut health = steady();
        let before = health.time_out();
        health.set_floor(floor_of(Duration::from_micros(250)));
        assert_eq!(before - health.time_out(), FLOOR_FIRST - FLOOR_MIN);
        health.set_floor(floor_of(Duration::from_millis(9)));
        assert_eq!(health.time_out() - before, Duration::from_millis(5));
        health.lose(at(99));
        health.measure(Duration::from_millis(1));
        assert_eq!(
            health.time_out(),
            Duration::from_millis(1 + 2 + 1 + 9),
            "for its next link, too"
        );
        health.set_floor(floor_of(Duration::from_secs(9)));
        assert_eq!(health.time_out(), Duration::from_millis(1 + 2 + 1) + FLOOR_MAX);
    }

    #[test]
    fn a_wait_that_began_by_an_old_clock_is_no_long_one() {
        let mut health = steady();
        health.rests();
        health.awaits(at(99));
        assert!(!health.is_late(at(500)), "nobody has looked since");
        assert!(!health.is_late(at(502)) && health.is_late(at(504)));
    }

    #[test]
    fn a_path_that_rested_is_late_by_what_was_sent_since() {
        let mut health = steady();
        // Nothing was under way until just before the time-out of the last delivery.
        health.awaits(at(104));
        assert!(health.is_late(at(106)) && !health.is_awaited(Some(at(104)), at(106)));
        assert!(!health.is_late(at(109)));
        assert!(health.is_late(at(111)) && health.is_awaited(Some(at(104)), at(111)));
        assert!(!health.is_awaited(None, at(112)) && health.due() == Time::NEVER);
    }

    #[test]
    fn a_path_whose_peer_sleeps_is_not_late_for_a_second() {
        let mut health = steady();
        let late: Vec<u64> = (100..2000)
            .filter(|millis| health.is_late(at(*millis)) && !health.excuse(at(*millis)))
            .collect();
        assert!((1100..1120).contains(&late[0]), "{}", late[0]);
        health.delivered(at(1999), at(2000));
        assert!(health.is_late(at(2010)) && health.excuse(at(2010)) && !health.is_late(at(2015)));
    }

    #[test]
    fn a_suspect_path_is_probed_until_it_answers_or_is_dead() {
        let mut health = steady();
        health.suspect(at(200));
        health.suspect(at(210));
        assert!(health.is_suspect() && !health.is_good());
        // Where it is the only one left, spans go over it all the same.
        health.awaits(at(201));
        health.delivered(at(201), at(202));
        assert!(health.due() == at(200) && !health.is_late(at(900)));
        // Another path answers each probe a millisecond later.
        let mut dead_at = None;
        let probes = (200..=300).filter(|millis| {
            let is_probed = health.take_probe(at((millis - 1) / 25 * 25 + 1), EVERY, at(*millis));
            dead_at = dead_at.or(health.is_dead().then_some(*millis));
            is_probed
        });
        assert_eq!(probes.collect::<Vec<_>>(), [200, 225, 250, 275, 300]);
        assert_eq!(dead_at, Some(300));
        health.answered(at(300));
        assert!(health.is_good() && !health.is_dead());
    }

    #[test]
    fn a_path_is_not_dead_while_all_are_silent_nor_when_another_one_is_heard_first() {
        let mut health = steady();
        health.suspect(at(200));
        // The other path has delivered a moment later; then the peer sleeps for some seconds.
        for millis in 200..5000 {
            health.take_probe(at(203), EVERY, at(millis));
            assert!(!health.is_dead(), "{millis}");
        }
        // It wakes, and the answers by the other path come first.
        for millis in 5000..5030 {
            health.take_probe(at(5000), EVERY, at(millis));
        }
        assert!(!health.is_dead());
    }

    #[test]
    fn a_suspect_path_of_an_idle_session_is_probed_ever_more_rarely() {
        let mut health = steady();
        health.suspect(at(0));
        let idle = Duration::from_secs(10);
        let probes = (0..60_000).filter(|millis| health.take_probe(at(0), idle, at(*millis)));
        let probes: Vec<u64> = probes.collect();
        assert_eq!(probes[..9], [0, 25, 50, 75, 100, 125, 150, 175, 10_175]);
        assert_eq!(probes.len(), 13);
        health.probe_by(at(60_001));
        assert_eq!(health.due(), at(60_001));
    }

    #[test]
    fn a_path_whose_rail_reads_is_probed_meanwhile() {
        let mut health = steady();
        health.rests();
        health.watch(at(200));
        health.watch(at(203));
        assert_eq!(health.due(), at(205));
        assert!(!health.take_watch(at(204)) && health.take_watch(at(205)));
        health.probed(at(205));
        assert!(!health.is_silent(at(210)) && health.is_silent(at(212)));
        health.answered(at(206));
        assert!(!health.is_silent(at(300)) && health.due() == at(230), "the next probe");
        assert!(health.take_watch(at(230)) && health.due() == Time::NEVER, "it reads no more");
    }

    #[test]
    fn a_path_that_carries_probes_alone_is_held_back_ever_longer() {
        let mut health = steady();
        let (mut now, mut holds) = (at(1000), Vec::new());
        for _ in 0..6 {
            health.suspect(now);
            now = now + Duration::from_millis(1);
            health.answered(now);
            holds.push(health.held_until.map_or(0, |until| until.since(now).as_millis()));
            now = health.held_until.unwrap_or(now) + Duration::from_millis(10);
            health.end_hold(now);
            assert!(health.is_good());
        }
        assert_eq!(holds, [0, 250, 500, 1000, 2000, 4000]);
        health.suspect(now + FLAPS_FORGOTTEN);
        health.answered(now + FLAPS_FORGOTTEN);
        assert!(health.is_good(), "that is long ago");
    }

    #[test]
    fn a_path_that_comes_and_goes_is_held_back_ever_longer() {
        let mut health = PathHealth::default();
        health.hold(at(0));
        assert!(health.is_good(), "it never lost its link");
        let mut holds = Vec::new();
        for _ in 0..12 {
            health.lose(at(0));
            health.hold(at(0));
            assert!(!health.is_good());
            holds.push(health.due().since(Time::ZERO).as_millis());
            health.end_hold(health.due());
            assert!(health.is_good());
        }
        assert_eq!(holds[..4], [250, 500, 1000, 2000]);
        assert_eq!(holds[11], 64_000);
    }

    #[test]
    fn losses_of_long_ago_hold_a_path_back_no_longer() {
        let mut health = PathHealth::default();
        let mut lost_after = |seconds: u64, now: Time| {
            let now = now + Duration::from_secs(seconds);
            health.lose(now);
            health.hold(now);
            (health.due().since(now).as_millis(), health.due())
        };
        let (mut holds, mut now) = (Vec::new(), at(0));
        for seconds in [1000, 1, 1, 1, 59, 61, 1, 61] {
            let (hold, until) = lost_after(seconds, now);
            (holds, now) = ([holds, vec![hold]].concat(), until);
        }
        assert_eq!(holds, [250, 500, 1000, 2000, 4000, 250, 500, 250]);
    }

    #[test]
    fn a_slow_path_that_carries_probes_alone_is_held_back_too() {
        let mut health = PathHealth::default();
        health.measure(Duration::from_millis(300));
        let time_out = health.time_out();
        assert!(time_out > FLAP);
        let (mut now, mut holds) = (at(1000), Vec::new());
        for _ in 0..4 {
            health.suspect(now);
            health.answered(now + Duration::from_millis(300));
            now = now + Duration::from_millis(300);
            holds.push(health.held_until.map_or(0, |until| until.since(now).as_millis()));
            now = health.held_until.unwrap_or(now);
            health.end_hold(now);
            // What goes over it now is late after a time-out.
            now = now + time_out + Duration::from_millis(5);
        }
        assert_eq!(holds, [0, 250, 500, 1000]);
    }
}
