//! How paths do, where a session has several: what is awaited over each, which are suspect, and which are dead.

use std::time::Duration;

use ropewalk_base::time::Time;
use ropewalk_base::verb::LinkId;

use super::{Path, PathId, Paths};
use crate::session::{Controllers, PathCause, PathLoss};

impl Paths {
    #[inline]
    pub fn are_several(&self) -> bool {
        !self.more.is_empty()
    }

    /// The parts of time-outs by which threads come late, and by which the peer delays acknowledgements.
    pub fn set_floor(&mut self, floor: Duration, promised: Duration) {
        self.iter_mut().for_each(|path| path.health.set_floor(floor, promised));
    }

    /// Spans take as long as their routes need by now, and wait for what other sessions sent there before.
    pub fn renew_span_times(&mut self, controllers: &Controllers) {
        for path in self.iter_mut() {
            if let Some(part) = &path.part {
                path.health.allow(controllers.span_time(part));
                path.health.waits(|since| controllers.awaited_since(part, since));
            }
        }
    }

    /// Looks at what is awaited, by a clock that has advanced since it went.
    pub fn look_at_awaited(&mut self, now: Time) {
        self.iter_mut().for_each(|path| _ = path.health.is_late(now));
    }

    /// When a path is judged next, or a link is to be replaced.
    pub fn judged_at(&self) -> Time {
        self.iter().map(Path::due).min().unwrap_or(Time::NEVER)
    }

    /// The links that may be used now: of those that fit the good ones, else those that are not suspect, else all. Those
    /// that stand by, or are drained, only where there is no other.
    pub fn usable(&self, fits: impl Fn(LinkId) -> bool + Copy) -> impl Iterator<Item = LinkId> {
        let rank = |path: &Path| {
            let health = &path.health;
            (path.is_drained, health.is_suspect(), health.is_standby(), !health.is_good())
        };
        let up = move |path: &&Path| path.up().is_some_and(fits);
        let best = self.iter().filter(up).map(rank).min();
        let is_best = move |path: &&Path| Some(rank(path)) == best;
        self.iter().filter(up).filter(is_best).filter_map(Path::up)
    }

    /// The rail of a link reads or writes. Returns when that is looked at.
    pub fn watch(&mut self, link: LinkId, now: Time) -> Time {
        if self.more.is_empty() {
            return Time::NEVER;
        }
        let Some(path) = self.of_link(link) else { return Time::NEVER };
        path.health.watch(now);
        path.health.due()
    }

    /// Links at which it is to be seen now whether their rails still read or write.
    pub fn take_watched(&mut self, now: Time) -> Vec<LinkId> {
        let watched = |path: &mut Path| path.up().filter(|_| path.health.take_watch(now));
        self.iter_mut().filter_map(watched).collect()
    }

    /// A probe goes over a link whose rail reads or writes.
    pub fn probed(&mut self, link: LinkId, now: Time) {
        if let Some(path) = self.of_link(link) {
            path.health.probed(now);
        }
    }

    /// Links at which such a probe is unanswered.
    pub fn silent(&self, now: Time) -> Vec<LinkId> {
        let silent = |path: &Path| path.up().filter(|_| path.health.is_silent(now));
        self.iter().filter_map(silent).collect()
    }

    /// The oldest span that is awaited over a link that is late went there at that time, if there is one. Whether the link
    /// is late by that, too.
    pub fn is_awaited_over(&mut self, link: LinkId, since: Option<Time>, now: Time) -> bool {
        self.of_link(link).is_some_and(|path| path.health.is_awaited(since, now))
    }

    /// Links over which something is awaited for too long.
    pub fn late(&mut self, now: Time) -> Vec<LinkId> {
        let late = |path: &mut Path| path.up().filter(|_| path.health.is_late(now));
        self.iter_mut().filter_map(late).collect()
    }

    /// All that went over a link is at the peer's machine. False where that is so for too long.
    pub fn excuse(&mut self, link: LinkId, now: Time) -> bool {
        self.of_link(link).is_some_and(|path| path.health.excuse(now))
    }

    /// Why the path of a link is not used.
    pub fn note_cause(&mut self, link: LinkId, cause: PathCause, now: Time) {
        if let Some(path) = self.of_link(link) {
            path.health.note_cause(cause, now);
        }
    }

    /// The paths that are not used, and why.
    pub fn losses(&self) -> Vec<PathLoss> {
        let loss = |path: &Path| {
            let (cause, since) = path.health.cause()?;
            Some(PathLoss { path: path.id.name(), rail: path.rail, cause, since })
        };
        self.iter().filter_map(loss).collect()
    }

    /// A link is suspect from now on. False where it was before, and where no other path could do its work.
    pub fn suspect(&mut self, link: LinkId, now: Time) -> bool {
        let others = |path: &Path| path.up().is_some_and(|other| other != link);
        let has_other = self.iter().any(|path| others(path) && !path.health.is_suspect());
        let Some(path) = self.of_link(link).filter(|path| !path.health.is_suspect()) else {
            return false;
        };
        if !has_other {
            // Its peer sleeps, or there is no way to it: nobody knows which. It is judged again, as another path may answer.
            path.health.waits_anew(now);
            return false;
        }
        path.health.suspect(now);
        true
    }

    /// The number of the path that frames may be sent over by this link.
    pub fn id_over(&self, link: LinkId) -> Option<PathId> {
        self.iter().find(|path| path.up() == Some(link)).map(|path| path.id)
    }

    /// The link that frames of a path of several may be sent over.
    pub fn up_of(&self, id: PathId) -> Option<LinkId> {
        self.iter().filter(|_| self.are_several()).find(|path| path.id == id)?.up()
    }

    /// The peer says that a link is broken. False where it says so too often to be believed.
    pub fn is_told_of(&mut self, link: LinkId, now: Time) -> bool {
        self.of_link(link).is_some_and(|path| path.health.is_told(now))
    }

    pub fn is_suspect(&self, link: LinkId) -> bool {
        self.iter().any(|path| path.up() == Some(link) && path.health.is_suspect())
    }

    pub fn have_suspects(&self) -> bool {
        self.iter().any(|path| path.health.is_suspect())
    }

    /// A probe was answered over a link. True where it was suspect until now.
    pub fn answered(&mut self, link: LinkId, now: Time) -> bool {
        let Some(path) = self.of_link(link) else { return false };
        let was_suspect = path.health.is_suspect();
        path.health.answered(now);
        was_suspect
    }

    /// Something that was asked over a link, and is no probe of its health, came back.
    pub fn note_carried(&mut self, link: LinkId, now: Time) {
        if let Some(path) = self.of_link(link) {
            path.health.note_carried(now);
        }
    }

    /// The links that are to be probed now: all, where a suspect one is due, since one counts as dead only while another
    /// delivers. `idle`: how often paths are looked at over which nothing goes.
    pub fn probes(&mut self, idle: Duration, now: Time) -> Vec<LinkId> {
        self.iter_mut().for_each(|path| path.health.end_hold(now));
        if !self.have_suspects() {
            return Vec::new();
        }
        // The latest deliveries, the second one of another path than the first.
        let (mut last, mut second) = ((None, Time::ZERO), Time::ZERO);
        for path in self.iter().filter(|path| path.up().is_some()) {
            let at = path.health.delivered_at();
            if at >= last.1 {
                (last, second) = ((Some(path.id), at), last.1);
            } else {
                second = second.max(at);
            }
        }
        let mut is_due = false;
        for path in self.iter_mut().filter(|path| path.up().is_some()) {
            let others = if last.0 == Some(path.id) { second } else { last.1 };
            is_due |= path.health.take_probe(others, idle, now);
        }
        if is_due { self.iter().filter_map(Path::up).collect() } else { Vec::new() }
    }

    /// The links that are dead.
    pub fn dead(&self) -> Vec<LinkId> {
        self.iter().filter(|path| path.health.is_dead()).filter_map(Path::up).collect()
    }

    /// Whether a link delivered something within this time.
    pub fn has_delivered(&self, link: LinkId, now: Time, within: Duration) -> bool {
        let path = self.iter().find(|path| path.up() == Some(link));
        path.is_some_and(|path| now.since(path.health.delivered_at()) < within)
    }

    /// The links over which nothing was heard for half of this time, and which are not suspect. Those that are suspect are
    /// probed within it.
    pub fn quiet(&mut self, every: Duration, now: Time) -> Vec<LinkId> {
        self.iter_mut().for_each(|path| path.health.probe_by(now + every));
        let is_quiet = |path: &&Path| {
            let heard = now.since(path.health.delivered_at());
            heard >= every / 2 && !path.health.is_suspect()
        };
        self.iter().filter(is_quiet).filter_map(Path::up).collect()
    }

    /// A link that does well is probed. Returns when its path is judged next.
    pub fn asked(&mut self, link: LinkId, now: Time) -> Time {
        let Some(path) = self.of_link(link) else { return Time::NEVER };
        path.health.asked(now);
        path.health.due()
    }

    /// Where a link is suspect it is probed at once.
    pub fn probe_soon(&mut self, link: LinkId, now: Time) {
        if let Some(path) = self.of_link(link) {
            path.health.probe_by(now);
        }
    }
}
