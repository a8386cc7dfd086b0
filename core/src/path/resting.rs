//! Idle sessions with spans: they leave their paths beyond the one that carries, then the last one, and rest.
//!
//! Here `CloseIdle` is an offer to do without the link that it comes over, and no promise: its sender may go on sending,
//! and its receiver agrees with another one, or answers `KeepOpen`. Whatever was on its way over a link that both have
//! agreed to close is a span, and goes again: over another path, or when the session is carried on. So nothing depends on
//! which of both was the last to send, on an answer that is lost, or on a call that comes before it.
//!
//! A session that rests keeps its numbers, credit, keys and roles of paths. When somebody sends it is as if it had lost its
//! links at that moment: it is called for, and carried on by who proves its key (see [`super::carrying`]).
//!
//! Invariant: a session that rests has nothing to send; whoever gives it something wakes it.

use ropewalk_base::verb::{LinkId, Placement};
use ropewalk_wire::frame::{Body, HelloBody};

use super::Peer;
use super::idle::NEVER_CLOSED;
use crate::api::{PeerId, Plant};
use crate::apm;
use crate::engine::Core;
use crate::session::Session;

impl Core {
    /// Whether a session with spans does without this link at times.
    pub(super) fn ever_rests(&self, session: &Session, link: LinkId) -> bool {
        let is_last = session.paths.links().all(|other| other == link);
        session.outlives_links && !self.is_lossy(link) && (!is_last || self.greeting.len > 0)
    }

    /// Whether an idle session with spans may do without a link that is up, as far as this side can tell: it leaves the
    /// one that carries last, and the alternate before that.
    pub(super) fn may_rest(
        &self,
        id: PeerId,
        peer: &Peer,
        session: &Session,
        link: LinkId,
    ) -> bool {
        let asked = self.links.get(link).is_some_and(|state| state.closing_idle);
        if asked || !session.paths.is_up_over(link) || !session.is_calm() {
            return false;
        }
        let may = match session.paths.links().count() {
            // An operator's word about a path is kept as long as the session has a path.
            1 => self.may_be_without_link(peer, link) && !session.paths.has_drained(),
            2 => session.paths.control() != Some(link),
            _ => session.paths.control() != Some(link) && !self.is_alternate(id, session, link),
        };
        may && self.ever_rests(session, link)
    }

    fn is_alternate(&self, id: PeerId, session: &Session, link: LinkId) -> bool {
        let alternate = self.machine(id).and_then(|machine| machine.roles().alternate());
        let path = session.paths.id_over(link).map(|path| apm::PathId(path.name()));
        path.is_some() && path == alternate
    }

    /// Offers to do without a link of an idle session with spans.
    pub(super) fn ask_to_rest(&mut self, id: PeerId, link: LinkId) {
        self.links.set_closing_idle(link, true);
        self.links.get_mut(link).into_iter().for_each(|state| state.offered = true);
        self.emit_apart(id, link, &Body::CloseIdle);
    }

    /// The peer offers to do without a link of a session with spans, or agrees to that.
    pub(super) fn arrive_rest(&mut self, link: LinkId, id: PeerId) -> Placement {
        let Some(session) = self.peers.session(id) else { return Placement::Drop };
        if !session.outlives_links || self.is_lossy(link) {
            return self.violation(NEVER_CLOSED);
        }
        let asked = self.links.get(link).is_some_and(|state| state.closing_idle);
        if !asked && !self.may_close_idle(id, link) {
            self.emit_apart(id, link, &Body::KeepOpen);
            return Placement::Drop;
        }
        if !asked {
            self.emit_apart(id, link, &Body::CloseIdle);
        }
        let is_last = self.peers.session(id).is_some_and(|it| it.paths.links().count() == 1);
        match is_last {
            true => self.rest_session(id, link),
            false => self.rest_path(id, link),
        }
        Placement::Drop
    }

    /// Both sides do without a path of several.
    fn rest_path(&mut self, id: PeerId, link: LinkId) {
        let (now, posts) = (self.now, self.matching.posts());
        let Some(session) = self.peers.session_mut(id) else { return };
        session.rest_over(link, &mut self.routes.controllers, now, posts);
        let due = session.due();
        self.counters.paths_rested += 1;
        self.close_link(link);
        self.begin_lengths(id);
        self.redirect_spans(id, link);
        self.sync_paths(id);
        self.wake_by(id, due);
    }

    /// Both sides do without the last link.
    fn rest_session(&mut self, id: PeerId, link: LinkId) {
        self.counters.sessions_idle_closed += 1;
        self.become_idle_closed(id);
        self.close_link(link);
        self.redirect_spans(id, link);
        let forgets = self.config.plant == Plant::ForgottenSpans;
        let lacks = |session: &Session| session.is_awaited() || !session.is_settled();
        let lacks = self.peers.session(id).is_some_and(lacks);
        // Something was sent, posted or begun by the peer after the offer.
        if self.peers.get(id).is_some_and(Peer::has_waiting) || lacks && !forgets {
            self.want_session(id);
        }
    }

    /// Somebody sends in a session that rests: it is called for.
    pub(super) fn wake(&mut self, id: PeerId) {
        let (now, posts) = (self.now, self.matching.posts());
        let retry_at = now + self.config.resend_after * 4;
        let Some(session) = self.peers.session_mut(id) else { return };
        session.wake(now, retry_at, posts);
        self.wake_by(id, retry_at);
        self.call_by_next(id);
    }

    /// The peer calls for a further path of a session that rests here. It does not know that, and may hear nobody over the
    /// paths that it has.
    pub(super) fn wake_for(&mut self, link: LinkId, hello: &HelloBody) {
        let named = self.links.get(link).and_then(|state| state.theirs);
        let Some(id) = self.peers.of_endpoint(u128::from_le_bytes(hello.endpoint)) else { return };
        let is_named = |session: &Session| Some(session.id) == named && session.paths.is_resting();
        if self.peers.session(id).is_some_and(is_named) {
            self.want_session(id);
        }
    }

    /// A frame came while paths rest: soon it is looked whether there is traffic.
    pub(crate) fn look_soon(&mut self, id: PeerId) {
        let now = self.now;
        let Some(session) = self.peers.session_mut(id) else { return };
        if session.paths.has_resting()
            && let Some(bundle) = session.bundle_mut()
        {
            let look = bundle.standing.hurry(now);
            self.wake_by(id, look);
        }
    }

    /// Paths that rest are sought again where there was traffic since.
    pub(crate) fn widen(&mut self, id: PeerId) {
        let now = self.now;
        let Some(session) = self.peers.session_mut(id) else { return };
        let traffic = session.traffic();
        if session.bundle_mut().is_some_and(|bundle| bundle.widens(traffic, now)) {
            self.wake_by(id, now);
        }
    }
}
