//! The paths of a session: which links carry it, what is under way over each, and what becomes of it without one.
//!
//! A path is a pair of a local rail and a remote one. It has at most one link at a time, and keeps its number when it
//! gets another link. A session begins with one path, which lies in place.
//!
//! Invariants: no two paths have one link; a path whose link is to be closed as idle, or was, has nothing in flight.

mod grading;
mod judging;
mod looking;
mod resting;
mod roles;
mod striping;

pub(crate) use roles::PathView;
pub(crate) use striping::Going;

use std::time::Duration;

use ropewalk_base::limits::QUEUED_FRAMES_MAX;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{LinkId, Urgency};
use ropewalk_wire::frame::Body;

use super::confirmation::Confirmation;
use super::controllers::Part;
use super::health::KeptHealth;
use super::in_flight::InFlight;
use super::status::KeptTally;
use crate::orders::{Order, Orders};

/// Paths of a session, those without a link included.
const KNOWN_MAX: usize = 64;

/// The number of a path in its session, never given again. The lowest bit says which side named it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PathId(u32);

/// All paths of a session.
#[derive(Debug)]
pub(crate) struct Paths {
    first: Path,
    more: Vec<Path>,
    /// The one that carries as long as it is good.
    preferred: PathId,
    /// The path of the span that is made next, where that was chosen; else [`PathId::NONE`].
    planned: PathId,
}

/// One path.
#[derive(Debug)]
pub(crate) struct Path {
    /// Frames that count against it: without spans those that its link's rail has, with spans those that the peer has
    /// not acknowledged.
    in_flight: InFlight,
    way: Way,
    id: PathId,
    /// Our rail.
    rail: u8,
    confirmation: Confirmation,
    /// Kept where there are several paths.
    health: KeptHealth,
    /// An operator keeps it out of use.
    is_drained: bool,
    tally: KeptTally,
    /// Its part of the controller of its pair of rails, where there are several paths.
    part: Option<Box<Part>>,
}

/// What carries a path.
#[derive(Debug)]
enum Way {
    Up {
        link: LinkId,
    },
    /// The peer was asked at the latest `until` (once more where that is `late`) to do without the link. Nothing is
    /// sent; control frames wait for the answer.
    ClosingIdle {
        link: LinkId,
        until: Time,
        late: bool,
        deferred: Vec<Body>,
    },
    /// No link, and none is needed until somebody wants something. After how many posts of receives it was idle-closed.
    Resting {
        since: Time,
        since_post: u64,
    },
    /// The link was lost; the session goes on over the next one. Where its peer may rest: after how many posts of receives
    /// that began.
    Lost {
        since: Time,
        retry_at: Time,
        rested: Option<u64>,
    },
}

impl PathId {
    /// The path that a session begins with.
    pub const FIRST: PathId = PathId(0);
    /// No path: a side names few.
    const NONE: PathId = PathId(u32::MAX);

    /// The path that a frame names.
    pub fn named(name: u32) -> PathId {
        PathId(name)
    }

    /// Its name in a frame.
    pub fn name(self) -> u32 {
        self.0
    }

    /// The one that a side has named after `count` others; the first one of a session counts for both sides.
    pub fn of(count: u32, is_lower: bool) -> PathId {
        PathId(count << 1 | u32::from(!is_lower))
    }
}

impl Path {
    fn over(id: PathId, link: LinkId) -> Path {
        let (in_flight, confirmation) = (InFlight::default(), Confirmation::default());
        let (health, tally) = (KeptHealth::default(), KeptTally::default());
        let (way, rail, is_drained) = (Way::Up { link }, link.rail, false);
        let part = None;
        Path { in_flight, way, id, rail, confirmation, health, is_drained, tally, part }
    }

    /// The link that frames may be sent over.
    #[inline]
    pub fn up(&self) -> Option<LinkId> {
        match self.way {
            Way::Up { link } => Some(link),
            _ => None,
        }
    }

    /// The same, also where nothing is sent any more since it is to be closed.
    #[inline]
    pub fn link(&self) -> Option<LinkId> {
        match self.way {
            Way::Up { link } | Way::ClosingIdle { link, .. } => Some(link),
            Way::Resting { .. } | Way::Lost { .. } => None,
        }
    }

    pub fn id(&self) -> PathId {
        self.id
    }

    pub fn in_flight(&self) -> &InFlight {
        &self.in_flight
    }

    /// Our rail.
    pub fn rail(&self) -> u8 {
        self.rail
    }

    fn due(&self) -> Time {
        match self.way {
            Way::Up { .. } => {
                self.confirmation.again_at().unwrap_or(Time::NEVER).min(self.health.due())
            }
            Way::ClosingIdle { until, .. } => until,
            Way::Lost { retry_at, .. } => retry_at,
            Way::Resting { .. } => Time::NEVER,
        }
    }
}

/// Which links carry the session.
impl Paths {
    /// The only path of a session that begins.
    pub fn over(link: LinkId) -> Paths {
        let (first, more) = (Path::over(PathId::FIRST, link), Vec::new());
        Paths { first, more, preferred: PathId::FIRST, planned: PathId::NONE }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(&self.first).chain(&self.more)
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Path> {
        std::iter::once(&mut self.first).chain(&mut self.more)
    }

    #[inline]
    fn of_link(&mut self, link: LinkId) -> Option<&mut Path> {
        if self.first.up() == Some(link) {
            return Some(&mut self.first);
        }
        self.of_other_link(link)
    }

    /// The same of a link that is not the first path's, or that is to be closed as idle.
    #[inline(never)]
    fn of_other_link(&mut self, link: LinkId) -> Option<&mut Path> {
        self.iter_mut().find(|path| path.link() == Some(link))
    }

    /// The link for control frames, and for spans, where there is one.
    #[inline]
    pub fn control(&self) -> Option<LinkId> {
        if self.more.is_empty() {
            return self.first.up();
        }
        self.chosen().and_then(Path::up)
    }

    /// All links, also those that are to be closed as idle.
    pub fn links(&self) -> impl Iterator<Item = LinkId> {
        self.iter().filter_map(Path::link)
    }

    /// Whether frames can be sent.
    #[inline]
    pub fn is_up(&self) -> bool {
        self.first.up().is_some() || self.more.iter().any(|path| path.up().is_some())
    }

    /// Whether frames can be sent over this link.
    #[inline]
    pub fn is_up_over(&self, link: LinkId) -> bool {
        self.first.up() == Some(link) || self.more.iter().any(|path| path.up() == Some(link))
    }

    /// Whether this link carries the session, if only until it is closed as idle.
    pub fn carries(&self, link: LinkId) -> bool {
        self.links().any(|other| other == link)
    }

    pub fn has_link(&self) -> bool {
        self.links().next().is_some()
    }

    /// The link of a session that has no other one.
    pub fn sole_up(&self) -> Option<LinkId> {
        let mut links = self.links();
        let only = links.next().filter(|link| self.is_up_over(*link));
        only.filter(|_| links.next().is_none())
    }

    /// The link of a session that has one path, where it is up.
    pub fn only(&self) -> Option<LinkId> {
        self.first.up().filter(|_| self.more.is_empty())
    }

    /// Whether a link is to be closed as idle.
    pub fn is_closing(&self) -> bool {
        self.iter().any(|path| matches!(path.way, Way::ClosingIdle { .. }))
    }

    /// Whether a path has lost its link.
    pub fn has_lost(&self) -> bool {
        self.iter().any(|path| matches!(path.way, Way::Lost { .. }))
    }

    /// Since when the session is without any link, where a path has lost the last one.
    pub fn lost_since(&self) -> Option<Time> {
        let since = |path: &Path| match path.way {
            Way::Lost { since, .. } => Some(since),
            _ => None,
        };
        self.iter().filter_map(since).max().filter(|_| !self.has_link())
    }

    /// When something is due. `spans`: when a span, or an acknowledgement, goes over whatever path.
    pub fn due(&self, spans: Option<Time>) -> Time {
        self.judged_at().min(spans.filter(|_| self.is_up()).unwrap_or(Time::NEVER))
    }
}

/// What becomes of a path: [`super::Session`] calls these, which has to choose its inline link anew. Those that lose or
/// change their links have left their controllers before.
impl Paths {
    /// A link carries the session on, which its caller thinks to be without any: the first path is the only one from now
    /// on, and the others are to join anew.
    pub(super) fn begin(&mut self, link: LinkId) {
        self.more.clear();
        let Path { way, rail, confirmation, health, .. } = &mut self.first;
        (*way, *rail, *confirmation) = (Way::Up { link }, link.rail, Confirmation::default());
        *health = KeptHealth::default();
    }

    /// A link becomes the link of a path, which is a new one if there is none of this number. Returns the link that the
    /// path had.
    pub(super) fn join(&mut self, id: PathId, link: LinkId, now: Time) -> Option<LinkId> {
        let Some(path) = self.iter_mut().find(|path| path.id == id) else {
            self.more.push(Path::over(id, link));
            return None;
        };
        let before = path.link();
        (path.way, path.rail, path.confirmation) =
            (Way::Up { link }, link.rail, Confirmation::default());
        if before.is_some() {
            path.health.lose(now);
        }
        path.health.hold(now);
        before
    }

    /// The path over this rail of ours that has lost its link, or rests.
    pub fn lost_over(&self, rail: u8) -> Option<PathId> {
        let lost = |path: &&Path| path.rail == rail && path.link().is_none();
        self.iter().find(lost).map(|path| path.id)
    }

    /// Whether there is a path of this number, or room for one.
    pub fn has_place(&self, id: PathId) -> bool {
        self.more.len() + 1 < KNOWN_MAX || self.iter().any(|path| path.id == id)
    }

    /// Whether another path than this one has a link over this rail of ours.
    pub fn is_up_beside(&self, id: PathId, rail: u8) -> bool {
        self.iter().any(|path| path.id != id && path.link().is_some_and(|it| it.rail == rail))
    }

    /// The peer is asked to do without a link.
    pub(super) fn ask_idle(&mut self, link: LinkId, until: Time) {
        if let Some(path) = self.of_link(link) {
            debug_assert!(path.in_flight.is_empty(), "an idle path has nothing in flight");
            path.way = Way::ClosingIdle { link, until, late: false, deferred: Vec::new() };
        }
    }

    /// The peer needs the link: what waited for its answer. `None` where it was not asked.
    pub(super) fn keep_open(&mut self, link: LinkId) -> Option<Vec<Body>> {
        let path = self.of_link(link)?;
        let Way::ClosingIdle { deferred, .. } = &mut path.way else { return None };
        let deferred = std::mem::take(deferred);
        path.way = Way::Up { link };
        Some(deferred)
    }

    /// A link is lost, which is to be replaced.
    pub(super) fn lose(&mut self, link: LinkId, now: Time, retry_at: Time) {
        if let Some(path) = self.of_link(link) {
            path.way = Way::Lost { since: now, retry_at, rested: None };
            path.health.lose(now);
        }
    }
}

/// Answers and links that are awaited.
impl Paths {
    /// A control frame waits for the peer's answer, where one is awaited. `Err`: too many wait, on this link.
    pub fn defer(&mut self, body: Body) -> Result<(), LinkId> {
        for path in self.iter_mut() {
            if let Way::ClosingIdle { link, deferred, .. } = &mut path.way {
                if deferred.len() >= QUEUED_FRAMES_MAX {
                    return Err(*link);
                }
                deferred.push(body);
                break;
            }
        }
        Ok(())
    }

    /// A link whose closing the peer was asked for twice without an answer, and for whose answer something waits:
    /// `waits`, or a control frame. Other answers may take longer: `grace` the first time, then `patience`.
    pub fn unanswered(
        &mut self,
        now: Time,
        [grace, patience]: [Duration; 2],
        waits: bool,
    ) -> Option<LinkId> {
        for path in self.iter_mut() {
            let Way::ClosingIdle { link, until, late, deferred } = &mut path.way else { continue };
            if *until > now {
                continue;
            }
            if *late && (waits || !deferred.is_empty()) {
                return Some(*link);
            }
            *until = now + if *late { patience } else { grace };
            *late = !*late;
        }
        None
    }

    /// How many paths are to be tried again now; the next time is then.
    pub fn retry(&mut self, now: Time, next: Time) -> usize {
        let mut due = 0;
        for path in self.iter_mut() {
            if let Way::Lost { retry_at, .. } = &mut path.way
                && *retry_at <= now
            {
                *retry_at = next;
                due += 1;
            }
        }
        due
    }

    /// A link was confirmed; again then, if at all.
    pub fn confirmed(&mut self, link: LinkId, again_at: Option<Time>) {
        if let Some(path) = self.of_link(link) {
            path.confirmation.begin(again_at);
        }
    }

    /// The peer was heard over a link.
    #[inline]
    pub fn heard(&mut self, link: LinkId) {
        if let Some(path) = self.of_link(link) {
            path.confirmation.end();
        }
    }

    /// A link that is to be confirmed again now; false if it counts as dead instead. `after`: the time for the first try.
    pub fn confirm_again(&mut self, now: Time, after: Duration) -> Option<(LinkId, bool)> {
        let due = |path: &&mut Path| path.confirmation.again_at().is_some_and(|at| at <= now);
        let path = self.iter_mut().filter(due).find(|path| path.up().is_some())?;
        Some((path.up()?, path.confirmation.again(now, after)))
    }
}

/// Frames in flight.
impl Paths {
    /// A link whose path may have another frame.
    #[inline]
    pub fn with_room(&self) -> Option<LinkId> {
        let open = |path: &Path| path.up().filter(|_| path.in_flight.has_room());
        open(&self.first).or_else(|| self.more.iter().find_map(open))
    }

    /// Whether the path of [`Paths::only`] may have another frame.
    #[inline]
    pub fn only_has_room(&self) -> bool {
        self.first.in_flight.has_room()
    }

    /// Whether the path of control frames has so few frames in flight that another one leaves soon.
    pub fn has_few_frames(&self) -> bool {
        let control = self.control();
        let path = self.iter().find(|path| control.is_some() && path.up() == control);
        path.is_some_and(|path| path.in_flight.has_few())
    }

    /// Whether a path may have another data frame of a stream with so many bytes left.
    pub fn has_bulk_room(&self, left_bytes: u64) -> bool {
        let open = |path: &Path| path.up().is_some() && path.in_flight.has_bulk_room(left_bytes);
        self.iter().any(open)
    }

    /// The rail of a link has one more frame, whose order is in this place of the table if it has one.
    #[inline]
    pub fn frame_begun(
        &mut self,
        link: LinkId,
        urgency: Urgency,
        entry: Option<SlotId>,
        orders: &Orders,
    ) {
        let Some(path) = self.of_link(link) else { return };
        path.in_flight.begin(urgency);
        if let Some(slot) = entry {
            path.in_flight.note_order(slot, orders);
        }
    }

    /// A rail released a frame of a link. One that is no path's any more counts nothing.
    #[inline]
    pub fn frame_left(&mut self, link: LinkId, bulk: bool) {
        if let Some(path) = self.of_link(link) {
            path.in_flight.end(bulk);
        }
    }

    /// A span begins, over the path that it counts against until it is acknowledged, if it has a payload. Returns that path
    /// and its link, where it is up.
    #[inline]
    pub fn span_begun(&mut self, urgency: Option<Urgency>) -> (PathId, Option<LinkId>) {
        let planned = urgency.map(|_| std::mem::replace(&mut self.planned, PathId::NONE));
        let id = match planned.filter(|path| *path != PathId::NONE) {
            Some(planned) => planned,
            None if self.more.is_empty() => self.first.id,
            None => self.chosen().map_or(self.first.id, |path| path.id),
        };
        let path = match id == self.first.id {
            true => None,
            false => self.more.iter_mut().find(|path| path.id == id),
        };
        let path = path.unwrap_or(&mut self.first);
        if let Some(urgency) = urgency {
            path.in_flight.begin(urgency);
        }
        (path.id, path.up())
    }

    /// The path that a session goes on with, and the frames that count against it.
    pub(super) fn first(&mut self) -> (PathId, &mut InFlight) {
        (self.first.id, &mut self.first.in_flight)
    }

    /// A span that counts against a path was acknowledged.
    #[inline]
    pub fn span_ended(&mut self, id: PathId, bulk: bool) {
        if let Some(path) = self.iter_mut().find(|path| path.id == id) {
            path.in_flight.end(bulk);
        }
    }

    /// The orders of data frames that are such ones and have not ended.
    pub fn orders(&self, orders: &Orders, is_such: &impl Fn(&Order) -> bool) -> Vec<SlotId> {
        let such = |path: &Path| path.in_flight.orders(orders, is_such);
        self.iter().flat_map(such).collect()
    }

    /// Whether nothing is in flight.
    pub fn is_settled(&self) -> bool {
        self.iter().all(|path| path.in_flight.is_empty())
    }
}

#[cfg(test)]
mod tests;
