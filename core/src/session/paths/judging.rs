//! How paths do, where a session has several: what is awaited over each, which are suspect, and which are dead.

use std::time::Duration;

use ropewalk_base::time::Time;
use ropewalk_base::verb::LinkId;

use super::{Path, PathId, Paths};

impl Paths {
    #[inline]
    pub fn are_several(&self) -> bool {
        !self.more.is_empty()
    }

    /// The part of time-outs by which threads come late.
    pub fn set_floor(&mut self, floor: Duration) {
        self.iter_mut().for_each(|path| path.health.set_floor(floor));
    }

    /// A span goes over a link. Returns when its path is judged next.
    pub fn awaits(&mut self, link: LinkId, now: Time) -> Time {
        if self.more.is_empty() {
            return Time::NEVER;
        }
        let Some(path) = self.of_link(link) else { return Time::NEVER };
        path.health.awaits(now);
        path.health.due()
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

    /// The peer has a span that went over this link alone, at that time.
    pub fn delivered(&mut self, link: LinkId, sent_at: Time, now: Time) {
        if let Some(path) = self.of_link(link) {
            path.health.delivered(sent_at, now);
        }
    }

    /// Nothing is awaited over a link.
    pub fn rests_over(&mut self, link: LinkId) {
        if let Some(path) = self.of_link(link) {
            path.health.rests();
        }
    }

    /// Links over which something is awaited for too long.
    pub fn late(&mut self, now: Time) -> Vec<LinkId> {
        let late = |path: &mut Path| path.up().filter(|_| path.health.is_late(now));
        self.iter_mut().filter_map(late).collect()
    }

    /// A link is suspect from now on. False where it was before, and where no other path could do its work.
    pub fn suspect(&mut self, link: LinkId, now: Time) -> bool {
        let others = |path: &Path| path.up().is_some_and(|other| other != link);
        let has_other = self.iter().any(|path| others(path) && !path.health.is_suspect());
        let Some(path) = self.of_link(link).filter(|path| !path.health.is_suspect()) else {
            return false;
        };
        if !has_other {
            // Its peer sleeps, or there is no way to it: nobody knows which.
            path.health.rests();
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

    /// A probe was answered over a link.
    pub fn answered(&mut self, link: LinkId, now: Time) {
        if let Some(path) = self.of_link(link) {
            path.health.answered(now);
        }
    }

    /// The links that are to be probed now: all, where a suspect one is due, since one counts as dead only while another
    /// delivers.
    pub fn probes(&mut self, now: Time) -> Vec<LinkId> {
        self.iter_mut().for_each(|path| path.health.end_hold(now));
        let mut is_due = false;
        for path in self.iter_mut().filter(|path| path.up().is_some()) {
            is_due |= path.health.take_probe(now);
        }
        if is_due { self.iter().filter_map(Path::up).collect() } else { Vec::new() }
    }

    /// The links that are dead.
    pub fn dead(&self, now: Time) -> Vec<LinkId> {
        let dead = |path: &Path| {
            let others = self.iter().filter(|other| other.id != path.id && other.up().is_some());
            let delivered_at = others.map(|other| other.health.delivered_at()).max()?;
            path.up().filter(|_| path.health.is_dead(delivered_at, now))
        };
        self.iter().filter_map(dead).collect()
    }
}
