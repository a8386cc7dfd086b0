//! The quality of a route: what part of its packets is lost or spoiled, and its score, by which paths are ranked.
//!
//! A network may fail in part: it loses three of a hundred packets, or spoils one of ten thousand, and is up by all other
//! signs. Such a route is DEGRADED: short messages leave it. One that loses every tenth packet stands by, and gets nothing
//! while another path is there.
//!
//! Rates are taken over the last second at least, and over [`TELLING`] packets at least. Both states are left after ten
//! seconds without faults only, so that a route which loses packets now and then does not come and go. Losses beside a
//! queue are congestion, and do not count; nor does a burst of them: a route that is broken for a moment is suspect, and
//! no more.
//!
//! Invariants: time is passed in; a route is judged by nothing that is older than a minute; scores of good routes are above
//! those of degraded ones, and these above those of routes that stand by.

use std::time::Duration;

use ropewalk_base::health::RoundTrips;
use ropewalk_base::time::Time;

pub(crate) use crate::apm::roles::SCORE_MAX;
use crate::apm::roles::{SCORE_DEGRADED, SCORE_STANDBY};

/// Scores that differ by less are the same: a score is shown until it is off by so much.
const SCORE_STEP: u16 = 25;
/// By how much another path has to be better to carry in place of the one that carries.
pub(crate) const SCORE_GAIN: u16 = 200;

/// Parts in a million.
const MILLION: u64 = 1_000_000;
/// Of lost packets: a route with so many is degraded, or stands by.
const LOSS_DEGRADES: u32 = 10_000;
const LOSS_STANDS_BY: u32 = 100_000;
/// Fewer are none, and fewer than the second let a route that stands by be degraded.
const LOSS_NONE: u32 = 1_000;
const LOSS_EASED: u32 = 50_000;
/// The same of spoiled ones.
const CORRUPTION_DEGRADES: u32 = 100;
const CORRUPTION_NONE: u32 = 10;

/// Fewer packets tell nothing.
const TELLING: u32 = 1_000;
/// Rates are taken over so much time at least.
const RECENT: Duration = Duration::from_secs(1);
/// What is older does not count.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// How long a degraded route has to do well, and the packets that have to show it. A path that stands by is probed forty
/// times a second while its session has traffic.
const CLEAN_FOR: Duration = Duration::from_secs(10);
const CLEAN_PACKETS: u32 = 100;
/// So many times of what is none in a tenth of a second end such a time, whatever was before.
const SUDDEN: u32 = 5;
/// Periods whose packets are kept apart, and the packets of one at least.
const PERIODS: usize = 16;
const PERIOD_PACKETS: u32 = 100;
/// In so many of them at least, and in half of them, packets are lost at such a rate: a burst is over before.
const LOSSY_PERIODS: u32 = 3;
/// A round trip that is so much longer than the least one says that there is a queue, and one that is so much longer than
/// another path's that the path is slower.
const QUEUED: Duration = Duration::from_millis(2);
/// What slowness costs at most.
const SLOW_MAX: u128 = 300;

/// How a route does. The better ones are the lesser ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum PathGrade {
    #[default]
    Good,
    /// It loses one of a hundred packets, or spoils one of ten thousand, or did within ten seconds: short messages and
    /// control frames go over better paths. Long messages are spread over it as before.
    Degraded,
    /// It loses one of ten packets: it gets nothing while a better path is up, but probes.
    Standby,
}

impl PathGrade {
    /// Its name for people and machines.
    pub fn name(self) -> &'static str {
        match self {
            PathGrade::Good => "good",
            PathGrade::Degraded => "degraded",
            PathGrade::Standby => "standby",
        }
    }
}

/// The quality of a path's route, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathQuality {
    /// 0 to 1000; a higher one is better.
    pub score: u16,
    pub grade: PathGrade,
    /// Packets that were lost or spoiled lately, of a million; `None`: too few went.
    pub loss_ppm: Option<u32>,
    pub corruption_ppm: Option<u32>,
}

impl Default for PathQuality {
    fn default() -> PathQuality {
        let (grade, loss_ppm, corruption_ppm) = (PathGrade::Good, None, None);
        PathQuality { score: SCORE_MAX, grade, loss_ppm, corruption_ppm }
    }
}

/// Packets of a route in some time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counted {
    pub sent: u32,
    /// Those of them that were lost, and that the peer says were spoiled.
    pub lost: u32,
    pub spoiled: u32,
    /// Those that came, and those that were spoiled.
    pub received: u32,
    pub corrupt: u32,
}

/// Some time, and what was counted in it.
#[derive(Debug, Clone, Copy, Default)]
struct Period {
    until: Time,
    counted: Counted,
}

/// A time without faults.
#[derive(Debug, Clone, Copy, Default)]
struct Run {
    since: Time,
    counted: Counted,
}

/// The quality of a route, and what it follows from.
#[derive(Debug)]
pub(super) struct Quality {
    shown: PathQuality,
    /// The last periods; the newest is at `newest`.
    periods: [Period; PERIODS],
    newest: usize,
    /// Since when a route that is degraded loses nothing, and since when one that stands by loses less.
    clean: Run,
    eased: Run,
    /// Its round trip, and the least one of paths beside it.
    round_trip: Option<Duration>,
    least_beside: Option<Duration>,
    noted_at: Time,
}

fn of_million(part: u32, of: u32) -> u32 {
    let part = u64::from(part.min(of)) * MILLION / u64::from(of.max(1));
    part as u32
}

impl Counted {
    fn add(&mut self, more: Counted) {
        self.sent = self.sent.saturating_add(more.sent);
        self.lost = self.lost.saturating_add(more.lost);
        self.spoiled = self.spoiled.saturating_add(more.spoiled);
        self.received = self.received.saturating_add(more.received);
        self.corrupt = self.corrupt.saturating_add(more.corrupt);
    }

    fn loss(&self) -> u32 {
        of_million(self.lost, self.sent)
    }

    /// Of the direction that spoils more, where so many packets went.
    fn corruption(&self, least: u32) -> Option<u32> {
        let ways = [(self.corrupt, self.received), (self.spoiled, self.sent)];
        let known = ways.into_iter().filter(|(_, of)| *of >= least.max(1));
        known.map(|(part, of)| of_million(part, of)).max()
    }
}

impl Run {
    fn from(since: Time) -> Run {
        Run { since, counted: Counted::default() }
    }

    /// Whether the route has done well for long enough: less than so much was lost and spoiled. If not so now it begins
    /// anew.
    fn is_over(&mut self, counted: Counted, [loss, corruption]: [u32; 2], now: Time) -> bool {
        self.counted.add(counted);
        let breaks = |it: &Counted, times: u32| {
            let corrupt = it.corruption(1).unwrap_or(0);
            it.loss() >= loss * times || corrupt >= corruption * times
        };
        // Of many packets that went well the last ones may not.
        let broken = counted.sent >= TELLING && breaks(&counted, SUDDEN);
        if broken || breaks(&self.counted, 1) {
            *self = Run::from(now);
        }
        let packets = self.counted.sent.max(self.counted.received);
        now.since(self.since) >= CLEAN_FOR && packets >= CLEAN_PACKETS
    }
}

impl Quality {
    pub fn new() -> Quality {
        Quality {
            shown: PathQuality::default(),
            periods: [Period::default(); PERIODS],
            newest: 0,
            clean: Run::default(),
            eased: Run::default(),
            round_trip: None,
            least_beside: None,
            noted_at: Time::ZERO,
        }
    }

    /// What is known of the route.
    pub fn shown(&self) -> PathQuality {
        self.shown
    }

    /// Its round trip.
    pub fn round_trip(&self) -> Option<Duration> {
        self.round_trip
    }

    /// Whether it says anything of a route that was not used since, and is again from now on. What went well before counts
    /// no more.
    pub fn is_worth_keeping(&mut self, now: Time) -> bool {
        (self.clean, self.eased) = (Run::from(now), Run::from(now));
        self.shown.grade > PathGrade::Good && now.since(self.noted_at) < FORGOTTEN
    }

    /// The round trip of the route, and the least one of paths beside it.
    pub fn note_round_trips(&mut self, own: Option<Duration>, least_beside: Option<Duration>) {
        (self.round_trip, self.least_beside) = (own, least_beside);
    }

    /// These packets went and came since this was told last.
    pub fn note(&mut self, counted: Counted, now: Time) {
        self.noted_at = now;
        if counted == Counted::default() {
            return self.rate();
        }
        self.put(counted, now);
        let recent = self.recent(now);
        let loss = (recent.sent >= TELLING).then(|| recent.loss());
        let corruption = self.all(now).corruption(TELLING);
        self.shown.loss_ppm = loss.or(self.shown.loss_ppm);
        self.shown.corruption_ppm = corruption.or(self.shown.corruption_ppm);
        let (loss, corruption) = (loss.unwrap_or(0), corruption.unwrap_or(0));
        let is_lossy = |part: u32| loss >= part && self.is_lossy(part, now);
        let reached = if is_lossy(LOSS_STANDS_BY) || corruption >= LOSS_STANDS_BY {
            PathGrade::Standby
        } else if is_lossy(LOSS_DEGRADES) || corruption >= CORRUPTION_DEGRADES {
            PathGrade::Degraded
        } else {
            PathGrade::Good
        };
        if reached > self.shown.grade {
            self.shown.grade = reached;
            (self.clean, self.eased) = (Run::from(now), Run::from(now));
        } else if self.shown.grade > PathGrade::Good {
            self.ease(counted, now);
        }
        self.rate();
    }

    /// Leaves its grade, where the route has done well for long enough.
    fn ease(&mut self, counted: Counted, now: Time) {
        let is_clean = self.clean.is_over(counted, [LOSS_NONE, CORRUPTION_NONE], now);
        let is_eased = self.eased.is_over(counted, [LOSS_EASED, LOSS_EASED], now);
        let grade = match self.shown.grade {
            _ if is_clean => PathGrade::Good,
            PathGrade::Standby if is_eased => PathGrade::Degraded,
            grade => grade,
        };
        if grade == self.shown.grade {
            return;
        }
        let of = if is_clean { self.clean.counted } else { self.eased.counted };
        self.shown.loss_ppm = Some(of.loss());
        self.shown.corruption_ppm = of.corruption(1);
        self.shown.grade = grade;
        // What was before would make it bad again.
        self.periods = [Period::default(); PERIODS];
    }

    fn put(&mut self, counted: Counted, now: Time) {
        let Period { until, counted: newest } = self.periods[self.newest];
        let is_full = newest.sent.max(newest.received) >= PERIOD_PACKETS;
        if is_full || now.since(until) >= FORGOTTEN {
            self.newest = (self.newest + 1) % PERIODS;
            self.periods[self.newest] = Period::default();
        }
        let period = &mut self.periods[self.newest];
        period.counted.add(counted);
        period.until = now;
    }

    /// The periods that count, the newest first.
    fn periods(&self, now: Time) -> impl Iterator<Item = &Period> {
        let places = (0..PERIODS).map(|back| (self.newest + PERIODS - back) % PERIODS);
        let periods = places.map(|place| &self.periods[place]);
        periods.take_while(move |it| {
            it.counted != Counted::default() && now.since(it.until) < FORGOTTEN
        })
    }

    /// The last of them: of a second at least, and with as many packets as tell something, where there are so many.
    fn latest(&self, now: Time) -> impl Iterator<Item = &Period> {
        let mut sent = 0u32;
        self.periods(now).take_while(move |period| {
            let counts = sent < TELLING || now.since(period.until) < RECENT;
            sent = sent.saturating_add(period.counted.sent);
            counts
        })
    }

    fn recent(&self, now: Time) -> Counted {
        let mut recent = Counted::default();
        self.latest(now).for_each(|period| recent.add(period.counted));
        recent
    }

    fn all(&self, now: Time) -> Counted {
        let mut all = Counted::default();
        self.periods(now).for_each(|period| all.add(period.counted));
        all
    }

    /// Whether packets are lost at this rate all the time.
    fn is_lossy(&self, part: u32, now: Time) -> bool {
        let is_lossy = |period: &&Period| period.counted.loss() >= part;
        let (all, lossy) =
            (self.latest(now).count() as u32, self.latest(now).filter(is_lossy).count() as u32);
        lossy >= LOSSY_PERIODS.max(all / 2)
    }

    /// What slowness costs: nothing up to the least round trip and some, and more the longer it is.
    fn slowness(&self) -> u32 {
        let (Some(own), Some(least)) = (self.round_trip, self.least_beside) else { return 0 };
        let allowed = least + QUEUED;
        if own <= allowed {
            return 0;
        }
        let part = SLOW_MAX * (own - allowed).as_nanos() / own.as_nanos().max(1);
        part as u32
    }

    /// The score that follows.
    fn rate(&mut self) {
        let loss = self.shown.loss_ppm.unwrap_or(0);
        let corruption = self.shown.corruption_ppm.unwrap_or(0);
        let (best, least, costs) = match self.shown.grade {
            PathGrade::Good => {
                let costs = (loss / 50).min(200) + corruption.min(100) + self.slowness();
                (SCORE_MAX, SCORE_DEGRADED + 1, costs)
            }
            PathGrade::Degraded => {
                (SCORE_DEGRADED, SCORE_STANDBY + 1, loss / 250 + self.slowness() / 3)
            }
            PathGrade::Standby => (SCORE_STANDBY, 0, loss / 10_000),
        };
        let score = u32::from(best).saturating_sub(costs).max(least.into()) as u16;
        let is_in_grade = (least..=best).contains(&self.shown.score);
        let differs = score.abs_diff(self.shown.score) >= SCORE_STEP || score == best;
        if differs || !is_in_grade {
            self.shown.score = score;
        }
    }
}

/// Whether losses beside such round trips are congestion: there is a queue.
pub(super) fn is_queued(trips: &RoundTrips) -> bool {
    trips.smoothed > trips.least + QUEUED
}

#[cfg(test)]
mod tests;
