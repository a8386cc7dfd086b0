//! The last events of an endpoint's paths: a ring, made when something happens for the first time.
//!
//! An event never changes once it is noted. So what a suspicion led to is an event of its own, [`PathChange::Redirected`],
//! noted when another path delivers again; until then it lies among the stalls.
//!
//! Invariant: nothing is allocated and nothing is looked for before the first event.

use std::collections::VecDeque;
use std::time::Duration;

use ropewalk_base::time::Time;
use ropewalk_base::verb::LinkId;

use super::quality::{PathGrade, PathQuality};
use super::status::PathCause;
use super::{PathId, PathLoss, Paths, Session, SessionId};
use crate::api::PeerId;
use crate::apm::cause::MoveCause;
use crate::apm::{self, What};
use crate::engine::Core;

/// Events that are kept.
const EVENTS_MAX: usize = 128;
/// Ends of sessions that are kept although more events came since.
const ENDS_MAX: usize = 32;
/// Stalls that are not over, of all sessions. Of more the oldest is forgotten.
const STALLS_MAX: usize = 64;
/// Sessions without a path of which it is known since when. Of more the oldest is forgotten.
const WITHOUT_MAX: usize = 64;

/// An event of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryEvent {
    /// Counts the events of the endpoint from 1 on.
    pub number: u64,
    pub at: Time,
    pub peer: PeerId,
    /// The peer's endpoint id.
    pub endpoint: u128,
    /// The number of the path in its session.
    pub path: u32,
    /// Our rail.
    pub rail: u8,
    pub change: PathChange,
}

/// What happened to a path. The detection time runs from the last delivery over the path, or from when something was
/// awaited over it after a rest, to the suspicion; `None`: nothing was awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathChange {
    /// A link became a further path of the session.
    Joined,
    /// Nothing new goes over it, and what went over it goes over others.
    Suspected {
        cause: PathCause,
        detection: Option<Duration>,
    },
    /// Another path delivered again, `stall` after the suspicion or the loss. So many spans, with so many bytes of
    /// payloads, went again.
    Redirected {
        to: u32,
        cause: PathCause,
        detection: Option<Duration>,
        stall: Duration,
        spans: u64,
        bytes: u64,
    },
    /// It was suspect for so long, and answered a probe.
    Answered {
        suspect: Duration,
    },
    /// It was suspect for so long, and is given up: its link is abandoned, and another is sought.
    Dead {
        suspect: Duration,
    },
    /// Its link ended.
    Lost,
    /// It got a link again, and is used before that time only where no other path is there.
    Held {
        until: Time,
    },
    /// It may be used again: its time of being held back is over, or the session goes on over it after a loss of all.
    Mended,
    /// It was the last path of its session: none is left for now, and operations wait.
    NoPath {
        cause: PathCause,
    },
    /// Its session goes on over it, after so long without a path.
    Resumed {
        without: Duration,
    },
    /// Its session has ended for want of a path. This one was not used for that cause, for so long.
    Ended {
        cause: PathCause,
        gone: Duration,
    },
    /// Its route has another grade than before: it is degraded, stands by, or is well again.
    Graded(PathQuality),
    /// An operator keeps it out of use, and no more.
    Drained,
    Raised,
    /// This side's traffic moved from it to another path. Of a move that a fault caused: the time for which it had delivered
    /// nothing, and the bytes of payloads that went again.
    Migrated {
        to: u32,
        cause: MoveCause,
        detection: Option<Duration>,
        bytes: u64,
    },
}

impl PathChange {
    /// Its name for people and machines.
    pub fn name(&self) -> &'static str {
        match self {
            PathChange::Joined => "joined",
            PathChange::Suspected { .. } => "suspected",
            PathChange::Redirected { .. } => "redirected",
            PathChange::Answered { .. } => "answered",
            PathChange::Dead { .. } => "dead",
            PathChange::Lost => "lost",
            PathChange::Held { .. } => "held",
            PathChange::Mended => "mended",
            PathChange::NoPath { .. } => "no_path",
            PathChange::Resumed { .. } => "resumed",
            PathChange::Ended { .. } => "ended",
            PathChange::Graded(quality) => match quality.grade {
                PathGrade::Good => "recovered",
                PathGrade::Degraded => "degraded",
                PathGrade::Standby => "standby",
            },
            PathChange::Drained => "drained",
            PathChange::Raised => "raised",
            PathChange::Migrated { .. } => "migrated",
        }
    }
}

/// The events, and the stalls that are not over.
#[derive(Debug, Default)]
pub(crate) struct History {
    events: VecDeque<HistoryEvent>,
    /// Ends of sessions, which are older than all of these.
    ends: VecDeque<HistoryEvent>,
    noted: u64,
    stalls: Vec<Stall>,
    /// Sessions without a path, and since when.
    without: Vec<(PeerId, SessionId, Time)>,
}

/// What went over a path goes over others, of which none has delivered since.
#[derive(Debug, Clone, Copy)]
struct Stall {
    peer: PeerId,
    session: SessionId,
    endpoint: u128,
    path: PathId,
    link: LinkId,
    since: Time,
    cause: PathCause,
    detection: Option<Duration>,
    spans: u64,
    bytes: u64,
}

impl History {
    fn note(&mut self, mut event: HistoryEvent) {
        self.noted += 1;
        event.number = self.noted;
        if self.events.len() == EVENTS_MAX {
            self.leave_oldest();
        }
        self.events.push_back(event);
    }

    /// The oldest event goes, unless it says why a session is no more: some of these stay.
    fn leave_oldest(&mut self) {
        let is_end = |event: &HistoryEvent| matches!(event.change, PathChange::Ended { .. });
        let Some(end) = self.events.pop_front().filter(is_end) else { return };
        if self.ends.len() == ENDS_MAX {
            self.ends.pop_front();
        }
        self.ends.push_back(end);
    }

    /// The events behind this number that are still kept.
    fn after(&self, number: u64) -> impl Iterator<Item = &HistoryEvent> {
        self.ends.iter().chain(&self.events).filter(move |event| event.number > number)
    }

    /// A session is without a path since then. False where that was known.
    fn begin_without(&mut self, id: PeerId, session: SessionId, since: Time) -> bool {
        let is_same =
            |(peer, other, _): &(PeerId, SessionId, Time)| (*peer, *other) == (id, session);
        if self.without.iter().any(is_same) {
            return false;
        }
        if self.without.len() == WITHOUT_MAX {
            self.without.remove(0);
        }
        self.without.push((id, session, since));
        true
    }

    /// It has one, or has ended: since when it had none.
    fn end_without(&mut self, session: SessionId) -> Option<Time> {
        let at = self.without.iter().position(|(_, other, _)| *other == session)?;
        Some(self.without.remove(at).2)
    }

    fn begin_stall(&mut self, stall: Stall) {
        // A path that was suspect before its link was lost stalls once.
        if self.stalls.iter().any(|it| it.link == stall.link && it.peer == stall.peer) {
            return;
        }
        if self.stalls.len() == STALLS_MAX {
            self.stalls.remove(0);
        }
        self.stalls.push(stall);
    }

    /// Spans that had gone over a link go over others.
    pub fn moved(&mut self, link: LinkId, spans: u64, bytes: u64) {
        if let Some(stall) = self.stalls.iter_mut().find(|stall| stall.link == link) {
            (stall.spans, stall.bytes) = (stall.spans + spans, stall.bytes + bytes);
        }
    }

    /// What was sent over a link at that time was delivered.
    #[inline]
    pub fn delivered(
        &mut self,
        by: &mut Paths,
        over: (SessionId, LinkId),
        sent_at: Time,
        now: Time,
    ) {
        if !self.stalls.is_empty() {
            self.end_stalls(by, over, sent_at, now);
        }
    }

    #[cold]
    fn end_stalls(
        &mut self,
        paths: &mut Paths,
        (session, link): (SessionId, LinkId),
        sent_at: Time,
        now: Time,
    ) {
        let Some(to) = paths.id_over(link) else { return };
        let is_over = |stall: &mut Stall| {
            stall.session == session && stall.link != link && stall.since <= sent_at
        };
        let over: Vec<Stall> = self.stalls.extract_if(.., is_over).collect();
        // Of a path over which nothing was under way nothing was missed.
        for stall in over.into_iter().filter(|stall| stall.spans > 0) {
            let Stall { cause, detection, spans, bytes, .. } = stall;
            let time = now.since(stall.since);
            if let Some(tally) = paths.tally_of(stall.path) {
                tally.stalls += 1;
                tally.stalled += time;
            }
            let to = to.name();
            self.note(HistoryEvent {
                number: 0,
                at: now,
                peer: stall.peer,
                endpoint: stall.endpoint,
                path: stall.path.name(),
                rail: stall.link.rail,
                change: PathChange::Redirected { to, cause, detection, stall: time, spans, bytes },
            });
        }
    }
}

/// Events, where they happen.
impl Core {
    /// The events of paths behind this number, as far as they are kept: the last ones.
    pub fn path_events(&self, after: u64) -> Vec<HistoryEvent> {
        self.history.after(after).copied().collect()
    }

    fn note_path(&mut self, id: PeerId, link: LinkId, path: PathId, change: PathChange) {
        self.note_over(id, link.rail, path, change);
    }

    fn note_over(&mut self, id: PeerId, rail: u8, path: PathId, change: PathChange) {
        let endpoint = self.peers.get(id).map_or(0, |peer| peer.identity.endpoint);
        let (at, path) = (self.now, path.name());
        self.history.note(HistoryEvent { number: 0, at, peer: id, endpoint, path, rail, change });
    }

    /// Notes what migration tells of a path.
    pub(crate) fn note_migration(&mut self, event: &apm::PathEvent) {
        let What::Migrated { from, to, cause, .. } = event.what else { return };
        let (detection, bytes) = (event.detected_after, event.resent_bytes);
        let change = PathChange::Migrated { to: to.0, cause, detection, bytes };
        self.note_named(event.peer, PathId::named(from.0), change);
    }

    /// An operator keeps a path out of use, or no more.
    pub(crate) fn note_drain(&mut self, peer: PeerId, path: apm::PathId, is_drained: bool) {
        let change = if is_drained { PathChange::Drained } else { PathChange::Raised };
        self.note_named(self.resolve(peer), PathId::named(path.0), change);
    }

    fn note_named(&mut self, id: PeerId, path: PathId, change: PathChange) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        let endpoint = peer.identity.endpoint;
        let Some(session) = &mut peer.session else { return };
        let Some(rail) = session.paths.rail_of(path) else { return };
        if let (PathChange::Migrated { .. }, Some(tally)) = (change, session.paths.tally_of(path)) {
            tally.migrated += 1;
        }
        let (at, path) = (self.now, path.name());
        self.history.note(HistoryEvent { number: 0, at, peer: id, endpoint, path, rail, change });
    }

    fn path_over(&self, id: PeerId, link: LinkId) -> Option<PathId> {
        self.peers.session(id)?.paths.id_over(link)
    }

    /// A link has become a path, or the new link of one.
    #[cold]
    pub(crate) fn note_joined(&mut self, id: PeerId, link: LinkId) {
        let Some(session) = self.peers.session_mut(id) else { return };
        let Some(path) = session.paths.id_over(link) else { return };
        let held = session.paths.held_until(link);
        if let Some(tally) = session.paths.tally_over(link) {
            tally.joined += 1;
        }
        let change = held.map_or(PathChange::Joined, |until| PathChange::Held { until });
        self.note_path(id, link, path, change);
    }

    /// A session that had lost all paths goes on.
    #[cold]
    pub(crate) fn note_carried_on(&mut self, id: PeerId) {
        let Some(link) = self.peer_link(id) else { return };
        let Some(path) = self.path_over(id, link) else { return };
        self.note_path(id, link, path, PathChange::Mended);
    }

    /// The path of a link was the last one of its session that delivers, which is without one since then.
    #[cold]
    pub(crate) fn note_no_path(&mut self, id: PeerId, rail: u8, path: PathId, since: Time) {
        let Some(session) = self.peers.session(id) else { return };
        let lost = session.paths.losses();
        let cause = lost.into_iter().find(|loss| loss.path == path.name());
        let cause = cause.map_or(PathCause::LinkLost, |loss| loss.cause);
        if self.history.begin_without(id, session.id, since) {
            self.note_over(id, rail, path, PathChange::NoPath { cause });
        }
    }

    /// A session has a path, over which it goes on; it may have been without one.
    pub(crate) fn note_resumed(&mut self, id: PeerId) {
        if self.history.without.is_empty() {
            return;
        }
        let Some(session) = self.peers.session(id).map(|session| session.id) else { return };
        let Some(link) = self.peer_link(id) else { return };
        let Some(path) = self.path_over(id, link) else { return };
        let Some(since) = self.history.end_without(session) else { return };
        let without = self.now.since(since);
        self.note_path(id, link, path, PathChange::Resumed { without });
    }

    /// A session ends for want of a path.
    #[cold]
    pub(crate) fn note_ended(&mut self, id: PeerId) {
        let now = self.now;
        let Some(session) = self.peers.session(id) else { return };
        for PathLoss { rail, path, cause, since } in session.paths.losses() {
            let change = PathChange::Ended { cause, gone: now.since(since) };
            self.note_over(id, rail, PathId::named(path), change);
        }
    }

    /// A session is over, for whatever reason.
    pub(crate) fn forget_without(&mut self, session: SessionId) {
        self.history.end_without(session);
    }

    /// Paths need not be held back any more.
    pub(crate) fn note_ended_holds(&mut self, id: PeerId) {
        let now = self.now;
        while let Some(session) = self.peers.session_mut(id)
            && let Some(link) = session.paths.next_ended_hold(now)
        {
            let Some(path) = session.paths.id_over(link) else { return };
            self.note_path(id, link, path, PathChange::Mended);
        }
    }

    /// The route of a path has another grade.
    #[cold]
    pub(crate) fn note_graded(&mut self, id: PeerId, link: LinkId, quality: PathQuality) {
        let Some(path) = self.path_over(id, link) else { return };
        self.note_path(id, link, path, PathChange::Graded(quality));
    }

    /// A path is suspect from now on. `awaited_since`: since when something was awaited over it.
    #[cold]
    pub(crate) fn note_suspected(
        &mut self,
        id: PeerId,
        link: LinkId,
        cause: PathCause,
        awaited_since: Option<Time>,
    ) {
        let now = self.now;
        let Some(session) = self.peers.session_mut(id) else { return };
        let Some(path) = session.paths.id_over(link) else { return };
        let detection = awaited_since.map(|since| now.since(since));
        if let Some(tally) = session.paths.tally_over(link) {
            tally.note_suspected(cause);
        }
        self.begin_stall(id, link, path, cause, detection);
        self.note_path(id, link, path, PathChange::Suspected { cause, detection });
    }

    fn begin_stall(
        &mut self,
        id: PeerId,
        link: LinkId,
        path: PathId,
        cause: PathCause,
        detection: Option<Duration>,
    ) {
        let since = self.now;
        let Some(peer) = self.peers.get(id) else { return };
        let Some(session) = peer.session.as_ref().map(|session| session.id) else { return };
        let endpoint = peer.identity.endpoint;
        let (spans, bytes) = (0, 0);
        self.history.begin_stall(Stall {
            peer: id,
            session,
            endpoint,
            path,
            link,
            since,
            cause,
            detection,
            spans,
            bytes,
        });
    }

    /// A probe was answered over a link. To be told before its health is.
    pub(crate) fn note_answered(&mut self, id: PeerId, link: LinkId) {
        let now = self.now;
        let Some(session) = self.peers.session_mut(id).filter(|it| it.paths.are_several()) else {
            return;
        };
        if let Some(tally) = session.paths.tally_over(link) {
            tally.probes_answered += 1;
        }
        let Some(since) = session.paths.suspect_since(link) else { return };
        let Some(path) = session.paths.id_over(link) else { return };
        self.note_path(id, link, path, PathChange::Answered { suspect: now.since(since) });
    }

    /// A path is dead.
    #[cold]
    pub(crate) fn note_dead(&mut self, id: PeerId, link: LinkId) {
        let now = self.now;
        let Some(session) = self.peers.session_mut(id) else { return };
        let Some(path) = session.paths.id_over(link) else { return };
        let suspect = session.paths.suspect_since(link).map_or(Duration::ZERO, |it| now.since(it));
        if let Some(tally) = session.paths.tally_over(link) {
            tally.dead += 1;
        }
        self.note_path(id, link, path, PathChange::Dead { suspect });
    }

    /// A path of a session that may go on has lost its link.
    #[cold]
    pub(crate) fn note_lost(&mut self, id: PeerId, link: LinkId) {
        let now = self.now;
        let goes_on = |session: &&mut Session| session.outlives_links && session.reliable.is_some();
        let Some(session) = self.peers.session_mut(id).filter(goes_on) else { return };
        let Some(path) = session.paths.id_over(link) else { return };
        let detection = session.paths.awaited_since(link).map(|since| now.since(since));
        if let Some(tally) = session.paths.tally_over(link) {
            tally.lost += 1;
        }
        self.begin_stall(id, link, path, PathCause::LinkLost, detection);
        self.note_path(id, link, path, PathChange::Lost);
    }
}

#[cfg(test)]
mod tests;
