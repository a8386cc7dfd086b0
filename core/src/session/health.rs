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

use ropewalk_base::health::Suspicion;
use ropewalk_base::time::Time;

use super::promise::PROMISED_MIN;
use super::quality::{PathGrade, SCORE_GAIN, SCORE_MAX};
use super::status::PathCause;

/// Part of each time-out: what the thread of a busy host comes late. The clock of such a host ticks each 4 ms, and before it
/// was measured that counts.
pub(crate) const FLOOR_FIRST: Duration = Duration::from_millis(4);
const FLOOR_MIN: Duration = Duration::from_millis(2);
const FLOOR_MAX: Duration = Duration::from_millis(20);
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
/// Between two short spans whose round trips are measured: those in between tell no more.
const SAMPLE_EVERY: Duration = Duration::from_millis(1);

/// That part where passes come so late.
pub(crate) fn floor_of(lateness: Duration) -> Duration {
    lateness.clamp(FLOOR_MIN, FLOOR_MAX)
}

#[derive(Debug)]
pub(crate) struct PathHealth {
    floor: Duration,
    /// By how much the peer delays acknowledgements.
    promised: Duration,
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
    /// It delivered something long since then.
    carried: bool,
    /// How often it lost its link, since when it has been in use after that, and until when it is used only where no other is
    /// there.
    lost: u32,
    used_since: Time,
    held_until: Option<Time>,
    /// How long one span may take.
    span_time: Duration,
    /// The score of its route, and what that means, as the session has acted on them.
    score: u16,
    grade: PathGrade,
    /// The time after which the path is suspect, of all these.
    time_out: Duration,
    /// Before that time acknowledgements of short spans measure nothing, and change nothing but when it delivered.
    sample_at: Time,
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
        promised: PROMISED_MIN,
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
        carried: false,
        cause: None,
        lost: 0,
        used_since: Time::NEVER,
        held_until: None,
        span_time: Duration::ZERO,
        score: SCORE_MAX,
        grade: PathGrade::Good,
        time_out: FIRST,
        sample_at: Time::ZERO,
    };

    /// Whether the path is the first choice.
    #[inline]
    pub fn is_good(&self) -> bool {
        self.suspect.is_none() && self.held_until.is_none()
    }

    pub fn is_suspect(&self) -> bool {
        self.suspect.is_some()
    }

    /// The score of its route: of several the path with the highest one is used.
    #[inline]
    pub fn score(&self) -> u16 {
        self.score
    }

    pub fn grade(&self) -> PathGrade {
        self.grade
    }

    /// It gets nothing while a better path is up.
    #[inline]
    pub fn is_standby(&self) -> bool {
        self.grade == PathGrade::Standby
    }

    /// No path is so much better that it carries in place of this one.
    #[inline]
    pub fn is_unbeaten(&self) -> bool {
        self.score > SCORE_MAX - SCORE_GAIN
    }

    /// What its route does from now on.
    pub fn set_quality(&mut self, score: u16, grade: PathGrade) {
        (self.score, self.grade) = (score, grade);
    }

    /// When it last delivered, or answered.
    pub fn delivered_at(&self) -> Time {
        self.delivered_at
    }

    /// When it last delivered, or since when something is awaited.
    pub fn silent_since(&self) -> Time {
        self.awaiting.map_or(self.delivered_at, |awaiting| awaiting.since)
    }

    /// Something goes over it, and its acknowledgement is awaited. A suspect path is judged by its probes. Returns when it
    /// is judged next, where nothing was awaited before.
    #[inline]
    pub fn awaits(&mut self, now: Time) -> Time {
        if self.awaiting.is_some() || self.suspect.is_some() {
            return Time::NEVER;
        }
        self.awaiting = Some(Awaiting { since: now, is_looked_at: false });
        now + self.time_out
    }

    /// Something short that went over it alone is acknowledged over it, soon after another thing of which that was measured.
    /// `is_last`: nothing else is under way. False, and nothing is noted, where that is to be measured.
    #[inline]
    pub fn delivered_again(&mut self, is_last: bool, now: Time) -> bool {
        let Some(awaiting) = self.awaiting.as_mut().filter(|_| now < self.sample_at) else {
            return false;
        };
        self.delivered_at = now;
        if is_last {
            self.awaiting = None;
        } else {
            *awaiting = Awaiting { since: now, is_looked_at: true };
        }
        true
    }

    /// Something that went over it alone, at that time, is acknowledged. `over_it`: over itself. An acknowledgement that comes
    /// over another path may be late, since the peer found this one broken before: it shows that the path carried something a
    /// round trip after that time, and no more.
    pub fn delivered(&mut self, sent_at: Time, over_it: bool, now: Time) {
        let sample = now.since(sent_at);
        let expected_at = sent_at + self.round_trip.unwrap_or_default();
        let at = if over_it { now } else { now.min(expected_at) };
        self.measure(if over_it { sample } else { sample.min(self.round_trip_likely()) });
        (self.delivered_at, self.excused_since) = (self.delivered_at.max(at), None);
        self.sample_at = now + SAMPLE_EVERY;
        if self.suspect.is_none() {
            self.cause = None;
            let since = self.awaiting.map_or(at, |awaiting| awaiting.since.max(at));
            self.awaiting = Some(Awaiting { since, is_looked_at: true });
        }
    }

    /// The longest round trip that is no surprise.
    fn round_trip_likely(&self) -> Duration {
        self.round_trip.map_or(FIRST, |smoothed| smoothed + 2 * self.variation + self.promised)
    }

    /// Nothing that went over it is awaited.
    pub fn rests(&mut self) {
        (self.awaiting, self.probed_at) = (None, None);
    }

    /// It is late, and all others are suspect: what is awaited is awaited from now on.
    pub fn waits_anew(&mut self, now: Time) {
        self.probed_at = None;
        if let Some(awaiting) = &mut self.awaiting {
            awaiting.since = now;
        }
    }

    /// Counts the wait from a later time on, if anything is awaited.
    pub fn waits(&mut self, later: impl FnOnce(Time) -> Time) {
        if let Some(awaiting) = &mut self.awaiting {
            awaiting.since = later(awaiting.since);
        }
    }

    /// A span takes as long as that, and nothing is delivered meanwhile.
    pub fn allow(&mut self, span_time: Duration) {
        if self.span_time != span_time {
            self.span_time = span_time;
            self.renew_time_out();
        }
    }

    /// Something long that went over it alone is acknowledged.
    pub fn carries(&mut self) {
        self.carried = true;
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
            return self.renew_time_out();
        };
        self.variation = self.variation * 3 / 4 + smoothed.abs_diff(sample) / 4;
        self.round_trip = Some(smoothed * 7 / 8 + sample / 8);
        self.renew_time_out();
    }

    /// The parts of its time-outs by which threads come late, and by which the peer delays acknowledgements.
    pub fn set_floor(&mut self, floor: Duration, promised: Duration) {
        if (self.floor, self.promised) != (floor, promised) {
            (self.floor, self.promised) = (floor, promised);
            self.renew_time_out();
        }
    }

    /// The time after which the path is suspect.
    pub fn time_out(&self) -> Duration {
        self.time_out
    }

    fn renew_time_out(&mut self) {
        let late = self.promised + self.floor + self.span_time;
        let measured = self.round_trip.map(|it| it + 4 * self.variation + late);
        // Two spans go before the first of them is acknowledged.
        let first = || FIRST.max(late + self.span_time);
        self.time_out = measured.unwrap_or_else(first).min(TIME_OUT_MAX);
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
        self.sample_at = Time::ZERO;
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
        if let Some(suspect) = &self.suspect {
            // What carries, and was silent for a moment only, repaired a loss: it does not come and go.
            if std::mem::take(&mut self.carried) && now.since(suspect.since) < PROBE_EVERY {
                self.flaps = 0;
            }
            let hold = HOLD * (1 << self.flaps.saturating_sub(1).min(HOLD_DOUBLINGS));
            let until = (self.flaps > 0).then(|| now + hold);
            self.held_until = self.held_until.max(until);
            self.well_at = Some(self.held_until.unwrap_or(now));
        }
        (self.suspect, self.probed_at, self.excused_since) = (None, None, None);
        self.cause = None;
        self.delivered_at = now;
    }

    /// Something that was asked over it, and is no such probe, came back. Whether it is suspect its own probes decide.
    pub fn note_carried(&mut self, now: Time) {
        if self.suspect.is_none() {
            self.delivered_at = now;
        }
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
        let PathHealth { floor, promised, cause, .. } = *self;
        let lost = if now.since(self.used_since) > LOSSES_FORGOTTEN { 0 } else { self.lost };
        *self = PathHealth { lost: lost + 1, floor, promised, cause, ..PathHealth::NOTHING };
        self.renew_time_out();
    }

    /// It delivers nothing, for this reason. The first one counts; but what our own rail saw says more than silence, and than
    /// the peer's word.
    pub fn note_cause(&mut self, cause: PathCause, now: Time) {
        let (before, _) = self.cause.get_or_insert((cause, now));
        let is_seen = |cause: PathCause| matches!(cause, PathCause::Rail(seen) if seen != Suspicion::Unacknowledged);
        if is_seen(cause) && !is_seen(*before) && *before != PathCause::LinkLost {
            *before = cause;
        }
        self.sample_at = Time::ZERO;
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
        let late = self.awaiting.map(|awaiting| awaiting.since + self.time_out);
        let probe = self.suspect.map(|suspect| suspect.probe_at);
        let silent = self.probed_at.map(|at| at + self.time_out);
        [late, probe, silent, self.watch_at, self.held_until]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(Time::NEVER)
    }
}

#[cfg(test)]
mod tests;
