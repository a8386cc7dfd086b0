//! Which path a span takes, where a session has several: the one over which it is at the peer first.
//!
//! Control frames and short messages stay on one path ([`Paths::control`]). A longer span goes over another one where
//! that gains enough. A path that is suspect or held back gets none, and one that has enough in flight gets none now.

use std::time::Duration;

use ropewalk_base::time::Time;
use ropewalk_base::verb::LinkId;

use super::{Path, PathId, Paths};
use crate::session::controllers::{Controllers, Part};
use crate::session::model::Acknowledged;
use crate::session::quality::{SCORE_GAIN, SCORE_MAX};

/// Shorter spans stay on the path of control frames.
const STRIPED_MIN: u64 = 8 << 10;
/// What another path has to gain, and the part of the time that it has to gain, at least.
const GAIN_MIN: Duration = Duration::from_micros(50);
const GAIN_PART: u32 = 20;
/// Bytes of data frames that are not acknowledged, over one path, and over several at most.
const BULK_BYTES: u64 = 1 << 20;
const BULK_BYTES_MAX: u64 = 64 << 20;

/// A span that goes over a link.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Going {
    /// What it counts, and its payload alone.
    pub bytes: u64,
    pub payload_bytes: u64,
    /// It went before, over whatever link, and over this one.
    pub is_again: bool,
    pub was_there: bool,
}

/// Where a span goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    Over(PathId),
    /// Some path has it at the peer earlier if the span waits for its turn there.
    Wait,
}

impl Path {
    /// Whether spans may be spread over it.
    #[inline]
    pub(super) fn is_usable(&self) -> bool {
        self.up().is_some() && !self.is_drained && self.health.is_good()
    }

    /// The time until so many bytes more are at the peer.
    fn finish(&self, bytes: u64, controllers: &Controllers) -> Duration {
        let model = self.part.as_ref().and_then(|part| controllers.model(part));
        model.map_or(Duration::ZERO, |model| model.finish(bytes))
    }

    /// The same of all that waits, while other sessions go on.
    fn finish_all(&self, bytes: u64, controllers: &Controllers) -> Duration {
        self.part.as_ref().map_or(Duration::ZERO, |part| controllers.finish_all(part, bytes))
    }

    fn has_stripe_room(&self, bytes: u64, now: Time, controllers: &Controllers) -> bool {
        self.part.as_ref().is_none_or(|part| controllers.has_room(part, bytes, now))
    }

    fn is_known(&self, controllers: &Controllers) -> bool {
        let model = self.part.as_ref().and_then(|part| controllers.model(part));
        model.is_some_and(|model| model.rate().is_some())
    }

    fn wants_probe(&self, now: Time, controllers: &Controllers) -> bool {
        let model = self.part.as_ref().and_then(|part| controllers.model(part));
        model.is_some_and(|model| model.wants_probe(now))
    }
}

/// Whether it is worth while to be done after `time` instead of `other`.
fn is_worth(time: Duration, other: Duration) -> bool {
    other > time + GAIN_MIN.max(other / GAIN_PART)
}

/// Choices.
impl Paths {
    /// Whether spans may be spread over a path: one that stands by gets none while a better one is up.
    fn is_open(&self, path: &Path) -> bool {
        path.is_usable() && (!path.health.is_standby() || !self.has_better())
    }

    /// Whether a path is up that does not stand by.
    fn has_better(&self) -> bool {
        let is_better = |path: &Path| {
            let is_used = path.up().is_some() && !path.is_drained;
            is_used && !path.health.is_suspect() && !path.health.is_standby()
        };
        self.iter().any(is_better)
    }

    /// The link over which so many bytes are at the peer first, were they sent now. `None`: no path is up.
    pub fn for_bytes(&self, bytes: u64, controllers: &Controllers) -> Option<LinkId> {
        if self.more.is_empty() {
            return self.first.up();
        }
        let usable = self.iter().filter(|path| self.is_open(path));
        let best = usable.min_by_key(|path| path.finish(bytes, controllers));
        best.or_else(|| self.chosen()).and_then(Path::up)
    }

    /// Whether a span with a payload of so many bytes, which is made next, is to be planned. Otherwise it goes over the path
    /// of control frames.
    #[inline]
    pub fn wants_plan(&mut self, bytes: u64) -> bool {
        self.planned = PathId::NONE;
        !self.more.is_empty() && bytes >= STRIPED_MIN
    }

    /// Chooses the path of a span with a payload of so many bytes, which is made next. `backlog`: the bytes that wait to
    /// be sent, these included. False: it is not to be made before something is acknowledged.
    pub fn plan(&mut self, bytes: u64, backlog: u64, controllers: &Controllers, now: Time) -> bool {
        if !self.wants_plan(bytes) {
            return true;
        }
        match self.choose(bytes, backlog.max(bytes), controllers, now) {
            Choice::Over(id) => {
                self.planned = id;
                true
            }
            Choice::Wait => false,
        }
    }

    fn choose(&self, bytes: u64, backlog: u64, controllers: &Controllers, now: Time) -> Choice {
        let usable = || self.iter().filter(|path| self.is_open(path));
        let has_room = |path: &Path| path.has_stripe_room(bytes, now, controllers);
        let Some(primary) = self.chosen() else { return Choice::Over(self.first.id) };
        let over = |path: &Path| match has_room(path) {
            true => Choice::Over(path.id),
            false => Choice::Wait,
        };
        if let Some(path) = usable().find(|path| path.wants_probe(now, controllers)) {
            return Choice::Over(path.id);
        }
        let free = usable().filter(|path| has_room(path));
        let of = |path: &&Path| (path.finish(bytes, controllers), path.id != primary.id);
        let Some(best) = free.min_by_key(of) else { return over(primary) };
        // What another path does meanwhile: all that waits.
        let time = best.finish(bytes, controllers);
        let others = usable().filter(|path| path.id != best.id);
        let is_rival =
            |path: &&Path| path.id == primary.id || (path.is_known(controllers) && !has_room(path));
        let all = |path: &&Path| path.finish_all(backlog, controllers);
        let rivals = others.filter(is_rival).filter(|path| !is_worth(time, all(path)));
        match rivals.min_by_key(all) {
            Some(rival) => over(rival),
            None => Choice::Over(best.id),
        }
    }

    /// The link for the second copy of a span of so many bytes that goes over this link: of the paths that are not
    /// suspect the one with a score that is much better, else the one over which it is at the peer first. A path that is held
    /// back, or stands by, serves for that, too.
    pub fn beside(&self, link: LinkId, bytes: u64, controllers: &Controllers) -> Option<LinkId> {
        let serves = |path: &&Path| {
            let is_other = path.up().is_some_and(|other| other != link);
            is_other && !path.is_drained && !path.health.is_suspect()
        };
        let others = self.iter().filter(serves);
        let rank = |path: &&Path| {
            let health = &path.health;
            let worse = (SCORE_MAX - health.score()) / SCORE_GAIN;
            let is_bad = (health.is_standby(), !health.is_good());
            (is_bad, worse, path.finish(bytes, controllers))
        };
        others.min_by_key(rank)?.up()
    }

    /// The link of a path, where spans may be spread over it.
    pub fn usable_link(&self, id: PathId) -> Option<LinkId> {
        self.iter().find(|path| path.id == id && self.is_open(path)).and_then(Path::up)
    }

    /// Bytes of data frames that may be unacknowledged.
    pub fn bulk_bytes_max(&self, controllers: &Controllers) -> u64 {
        if self.more.is_empty() {
            return BULK_BYTES;
        }
        let parts = self.iter().filter_map(|path| path.part.as_ref());
        let models = parts.filter_map(|part| controllers.model(part));
        let sum = models.fold(0u64, |sum, model| sum.saturating_add(model.in_flight_max()));
        sum.clamp(BULK_BYTES, BULK_BYTES_MAX)
    }
}

/// What the controllers are told.
impl Paths {
    /// Links that carry and have no part of a controller yet.
    pub fn without_part(&self) -> Vec<LinkId> {
        if self.more.is_empty() {
            return Vec::new();
        }
        self.iter().filter(|path| path.part.is_none()).filter_map(Path::link).collect()
    }

    /// The path of a link has a part of a controller from now on.
    pub fn take_part(&mut self, link: LinkId, part: Part) {
        if let Some(path) = self.of_link(link) {
            debug_assert!(path.part.is_none(), "a path has one part");
            path.part = Some(Box::new(part));
        }
    }

    /// A path has none any more: it gets another link.
    pub fn leave_part(&mut self, id: PathId, controllers: &mut Controllers) {
        let path = self.iter_mut().find(|path| path.id == id);
        path.and_then(|path| path.part.take())
            .into_iter()
            .for_each(|part| controllers.leave(*part));
    }

    /// The path of a link has none any more: it loses the link.
    pub fn leave_part_over(&mut self, link: LinkId, controllers: &mut Controllers) {
        let part = self.of_link(link).and_then(|path| path.part.take());
        part.into_iter().for_each(|part| controllers.leave(*part));
    }

    /// No path has one any more.
    pub fn leave_parts(&mut self, controllers: &mut Controllers) {
        let parts = self.iter_mut().filter_map(|path| path.part.take());
        parts.for_each(|part| controllers.leave(*part));
    }

    /// A span goes over a link. Returns when its path is judged next, where that may be sooner than before. A session with
    /// one path notes nothing.
    #[inline]
    pub fn goes(
        &mut self,
        link: LinkId,
        span: Going,
        controllers: &mut Controllers,
        now: Time,
    ) -> Time {
        if self.more.is_empty() {
            return Time::NEVER;
        }
        let Some(path) = self.of_link(link) else { return Time::NEVER };
        path.tally.carry(span.payload_bytes, span.is_again);
        let judged = path.health.awaits(now);
        let Some(part) = path.part.as_deref_mut().filter(|_| !span.was_there) else {
            return judged;
        };
        if part.put_aside(span.bytes, now) {
            return judged;
        }
        controllers.send(part, span.bytes, now);
        path.health.allow(controllers.span_time(part));
        path.health.due()
    }

    /// Spans that went over a link are acknowledged. Returns when its path is judged next, where that may be sooner than
    /// before.
    pub fn delivered(
        &mut self,
        link: LinkId,
        acknowledged: &Acknowledged,
        controllers: &mut Controllers,
        now: Time,
    ) -> Time {
        let Some(path) = self.of_link(link) else { return Time::NEVER };
        let (health, part) = (&mut *path.health, path.part.as_deref_mut());
        let bytes = acknowledged.bytes;
        if bytes < STRIPED_MIN
            && acknowledged.over_it
            && acknowledged.sent.is_some()
            && let Some(part) = &part
            && let Some(is_last) = part.is_aside(bytes)
            && health.delivered_again(is_last, now)
        {
            path.part.iter_mut().for_each(|part| _ = part.take_aside(bytes));
            return Time::NEVER;
        }
        if let Some((sent_at, _)) = acknowledged.sent {
            health.delivered(sent_at, acknowledged.over_it, now);
        }
        let Some(part) = part else { return health.due() };
        controllers.acknowledge(part, acknowledged, now);
        health.allow(controllers.span_time(part));
        if acknowledged.sent.is_some_and(|(_, bytes)| bytes >= STRIPED_MIN) {
            health.carries();
        }
        if part.in_flight() == 0 {
            // What goes next is awaited from then on.
            health.awaits_nothing();
        }
        health.due()
    }

    /// What went over a link goes over others.
    pub fn bytes_given_up(&mut self, link: LinkId, controllers: &mut Controllers) {
        if let Some(part) = self.of_link(link).and_then(|path| path.part.as_mut()) {
            controllers.give_up(part);
        }
    }
}

/// What is told of them.
impl Path {
    /// Its part of a controller.
    pub fn part(&self) -> Option<&Part> {
        self.part.as_deref()
    }
}

#[cfg(test)]
mod tests;
