//! Idle-closed sessions: an idle link is closed, and its session goes on over the next one.
//!
//! A side that wants to close an idle link sends `CloseIdle` and nothing after it. The other side answers with
//! `CloseIdle` if it is idle, too, and each can call the other again; else with `KeepOpen`. A `CloseIdle` is its sender's
//! last frame on the link, so an idle-closed session has nothing on its way: numbers, credits, posted receives and
//! staged messages stay as they are, and no frame has to be kept. Sessions with spans promise less: see [`super::resting`].
//!
//! Invariants: an idle-closed session has no frame, stream, access or RTS of either side under way; it
//! is carried on only over a link whose greetings both name it.

use ropewalk_base::error::Fault;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{LinkId, Placement, Token};
use ropewalk_wire::frame::{Body, Envelope};

use super::{LinkStage, Peer, evictable};
use crate::api::*;
use crate::engine::Core;
use crate::session::Session;

/// Links that one look for idle ones examines.
const SWEEP: usize = 256;
/// The next look, where too many links were busy.
const SWEEP_AGAIN: std::time::Duration = std::time::Duration::from_millis(100);
/// A `CloseIdle` that is unanswered at its deadline gets this much longer, so that queues are drained first.
const GRACE: std::time::Duration = std::time::Duration::from_secs(1);
/// Turns for which a link is passed over after `KeepOpen`, at most.
const SPARED_MAX: u8 = 63;
pub(super) const NEVER_CLOSED: &str = "a session that cannot be idle-closed";

impl Core {
    /// The schemes of the rails' addresses, by rail: by them the core sees whether it can call a peer
    /// that told its addresses. Without them any address will do.
    #[must_use]
    pub fn with_schemes(self, schemes: Vec<&'static str>) -> Core {
        let mut core = self;
        core.rails.set_schemes(schemes);
        core
    }

    /// How many links carry sessions, and how many of them are about to be closed.
    pub fn carrying_links(&self) -> (usize, usize) {
        let carrying = self.links.carrying();
        (carrying, carrying - self.links.surplus(0))
    }

    /// Closes idle links while more than the limit carry sessions: those that had no traffic since the hand
    /// passed last, where nothing is under way.
    pub(crate) fn close_surplus(&mut self) {
        let max = self.config.links_max;
        if self.links.surplus(max) == 0 {
            return;
        }
        for _ in 0..SWEEP.min(2 * self.links.carrying()) {
            self.close_next_idle();
            if self.links.surplus(max) == 0 {
                return;
            }
        }
        self.counters.links_over += 1;
        if self.links.are_fixed() {
            // Sessions with spans, and foreign ones: none of them is idle-closed, however long it rests.
            return;
        }
        self.sweep_at = self.now + SWEEP_AGAIN;
        self.timers.wake_by(self.sweep_at);
    }

    /// A descriptor or another resource of links is used up: an idle link is closed as idle to make room.
    pub fn make_room(&mut self) {
        for _ in 0..SWEEP.min(2 * self.links.carrying()) {
            if self.close_next_idle() {
                return;
            }
        }
    }

    /// The second chance of the link under the hand; true where it is idle-closed.
    fn close_next_idle(&mut self) -> bool {
        let Some(link) = self.links.next_turn() else { return false };
        let closes = self.is_ever_idle_closed(link);
        self.links.note_turn(closes);
        if !closes {
            return false;
        }
        let Some(state) = self.links.get(link) else { return false };
        let Some(id) = state.peer.filter(|id| self.may_close_idle(*id, link)) else { return false };
        let Some(session) = self.peers.session(id) else { return false };
        // Probes are no traffic, which only sessions with spans have.
        let frames = session.reliable.as_ref().map_or(state.packet, |spans| spans.traffic());
        let traffic = session.traffic().wrapping_add(frames);
        let Some(state) = self.links.get_mut(link) else { return false };
        let quiet = state.traffic_seen == traffic;
        state.traffic_seen = traffic;
        if !quiet || state.spared > 0 {
            state.spared = state.spared.saturating_sub(1);
            return false;
        }
        match self.peers.session(id).is_some_and(|session| session.reliable.is_some()) {
            true => self.ask_to_rest(id, link),
            false => self.ask_to_close_idle(id, link),
        }
        true
    }

    /// Whether the session of a link is idle-closed at all.
    fn is_ever_idle_closed(&self, link: LinkId) -> bool {
        let peer = self.links.get(link).and_then(|state| state.peer);
        let session = peer.and_then(|id| self.peers.session(self.resolve(id)));
        session.is_none_or(|session| match session.reliable {
            None => !session.is_foreign(),
            Some(_) => self.ever_rests(session, link),
        })
    }

    /// Whether the session may do without the link for now, as far as this side can tell.
    pub(super) fn may_close_idle(&self, id: PeerId, link: LinkId) -> bool {
        let Some(peer) = self.peers.get(id) else { return false };
        let Some(session) = peer.session.as_ref() else { return false };
        let live = self.links.get(link).is_some_and(|state| state.stage == LinkStage::Up);
        if !live || self.closing || !peer.is_idle() {
            return false;
        }
        if session.reliable.is_some() {
            return self.may_rest(id, peer, session, link);
        }
        let ours = session.paths.sole_up() == Some(link) && !session.is_foreign();
        ours && self.may_be_without_link(peer, link)
    }

    /// Whether each side could make a link to the other one, as far as this side can tell.
    pub(super) fn may_be_without_link(&self, peer: &Peer, link: LinkId) -> bool {
        self.greeting.len > 0 && self.can_call(peer, link)
    }

    /// Whether we could make a link to this peer ourselves.
    fn can_call(&self, peer: &Peer, link: LinkId) -> bool {
        peer.reachable || self.rails.can_call(&peer.identity.addresses, link)
    }

    fn ask_to_close_idle(&mut self, id: PeerId, link: LinkId) {
        let until = self.now + self.config.give_up_after;
        if let Some(session) = self.peers.session_mut(id) {
            session.ask_idle(link, until);
        }
        self.links.set_closing_idle(link, true);
        self.wake_by(id, until);
        self.emit_apart(id, link, &Body::CloseIdle);
    }

    /// A frame of the session, whatever its stage.
    pub(super) fn emit_apart(&mut self, id: PeerId, link: LinkId, body: &Body) {
        let Some(session) = self.peers.session(id).map(Session::name) else { return };
        let envelope = Envelope { session, ..Envelope::default() };
        self.emit_on(link, envelope, body, None, Token::NONE);
    }

    /// The peer asks to close the idle link, or answers that it may.
    pub(crate) fn arrive_close_idle(&mut self, link: LinkId, id: PeerId) -> Placement {
        let Some(peer) = self.peers.get(id) else { return Placement::Drop };
        let Some(session) = peer.session.as_ref() else { return Placement::Drop };
        if link == LOOP_LINK {
            return self.violation(NEVER_CLOSED);
        }
        if session.reliable.is_some() {
            return self.arrive_rest(link, id);
        }
        if session.paths.is_closing() {
            if !peer.is_settled() {
                return self.violation("a session is idle-closed with work under way");
            }
            self.close_idle(id, link);
        } else if self.may_close_idle(id, link) {
            self.emit_apart(id, link, &Body::CloseIdle);
            self.close_idle(id, link);
        } else {
            self.emit_apart(id, link, &Body::KeepOpen);
        }
        Placement::Drop
    }

    /// The peer needs the link that we would have closed as idle.
    pub(crate) fn arrive_keep_open(&mut self, link: LinkId, id: PeerId) -> Placement {
        let asked = self.links.get(link).is_some_and(|state| state.closing_idle);
        let session = self.peers.session_mut(id);
        let deferred = session.and_then(|session| match session.reliable {
            None => session.keep_open(link),
            Some(_) => asked.then(Vec::new),
        });
        let Some(deferred) = deferred else {
            return self.violation("an answer to what was not asked");
        };
        self.counters.idle_closes_refused += 1;
        self.links.set_closing_idle(link, false);
        // Timers that went off meanwhile were passed over.
        let due = self.peers.get(id).map_or(Time::NEVER, Peer::due);
        self.wake_by(id, due);
        if let Some(state) = self.links.get_mut(link) {
            state.offered = false;
            state.spared_next = (2 * state.spared_next + 1).min(SPARED_MAX);
            state.spared = state.spared_next;
        }
        for body in deferred {
            self.emit_apart(id, link, &body);
        }
        self.tell_news(id);
        self.pump(id);
        self.answer_caller(id);
        self.close_surplus();
        Placement::Drop
    }

    /// Both sides sent their last frame over this link.
    fn close_idle(&mut self, id: PeerId, link: LinkId) {
        let Some(peer) = self.peers.get(id) else { return };
        let waits = peer.has_waiting();
        self.counters.sessions_idle_closed += 1;
        self.become_idle_closed(id);
        self.close_link(link);
        self.answer_caller(id);
        // The caller may have hung up while it waited.
        if waits && !self.has_agreed(id, false, LOOP_LINK) {
            self.want_session(id);
        }
    }

    /// The session needs no link from now on.
    pub(crate) fn become_idle_closed(&mut self, id: PeerId) {
        let since = self.now;
        let posts = self.matching.posts();
        let Some(peer) = self.peers.get_mut(id) else { return };
        peer.calls.end();
        let controllers = &mut self.routes.controllers;
        peer.session.iter_mut().for_each(|session| session.rest(since, posts, controllers));
        if !peer.reachable {
            self.evictable.add_idle(id, &mut peer.eviction, since);
        }
    }

    /// A new link carries an idle-closed session on.
    pub(crate) fn resume_idle(&mut self, id: PeerId) {
        self.counters.sessions_resumed += 1;
        match self.config.plant {
            Plant::ForgottenCredit => {}
            Plant::ForgottenNumbers => {
                if let Some(session) = self.peers.session_mut(id) {
                    session.send_next = [0; CHANNELS];
                }
            }
            _ => self.tell_news(id),
        }
    }

    /// Tells of the credit that came back while there was no link to tell it over.
    fn tell_news(&mut self, id: PeerId) {
        if self.peers.session(id).is_some_and(|session| session.lent.has_news()) {
            self.tell_credit(id);
        }
    }

    /// A control frame for a session whose link is being closed as idle waits for the answer.
    #[cold]
    pub(crate) fn defer(&mut self, id: PeerId, body: Body) {
        let Some(session) = self.peers.session_mut(id) else { return };
        if let Err(link) = session.paths.defer(body) {
            // A peer that makes us answer and does not answer itself.
            self.break_link(link);
            self.close_link(link);
        }
    }

    /// The peer calls while its last frames over the old link are still on their way: its greeting
    /// waits for them. True where it does.
    pub(crate) fn hold_caller(&mut self, id: PeerId, link: LinkId) -> bool {
        let incarnation = self.greeted_incarnation(link);
        let Some(peer) = self.peers.get_mut(id) else { return false };
        let closing = peer.session.as_ref().is_some_and(|session| session.paths.is_closing());
        if !closing || incarnation != Some(peer.identity.incarnation) {
            return false;
        }
        if let Some(before) = peer.calls.keep_caller(link) {
            self.close_link(before);
        }
        true
    }

    /// Answers a greeting that waited.
    pub(crate) fn answer_caller(&mut self, id: PeerId) {
        let caller = self.take_caller(id);
        self.answer(caller);
    }

    /// The link with a greeting that waited.
    pub(crate) fn take_caller(&mut self, id: PeerId) -> Option<LinkId> {
        self.peers.get_mut(id)?.calls.take_caller()
    }

    pub(crate) fn answer(&mut self, caller: Option<LinkId>) {
        let Some(link) = caller else { return };
        let state = self.links.get(link).filter(|state| state.stage == LinkStage::Greeting);
        if let Some(hello) = state.and_then(|state| state.hello) {
            self.asked(link, hello);
        }
    }

    /// The peer did not answer. That ends the session only where something waits for it: whoever wants
    /// nothing of a silent peer goes on wanting nothing.
    pub(crate) fn close_unanswered(&mut self, id: PeerId) {
        let (now, give_up_after) = (self.now, self.config.give_up_after);
        let Some(peer) = self.peers.get_mut(id) else { return };
        let waits = peer.has_waiting() || peer.calls.has_caller();
        let Some(session) = peer.session.as_mut() else { return };
        if let Some(link) = session.paths.unanswered(now, [GRACE, give_up_after], waits) {
            self.close_link(link);
            self.end_session(id, Fault::PeerReset);
        }
    }

    /// Closes idle links if that is due; returns the time of the next look.
    pub(crate) fn run_sweep(&mut self) -> Time {
        if self.sweep_at <= self.now {
            self.sweep_at = Time::NEVER;
            self.close_surplus();
        }
        self.sweep_at
    }

    /// An idle-closed session that concerns nobody here ends, so that there is room for another peer: the one
    /// that rests for longest, of a few that are looked at.
    pub(crate) fn end_oldest_idle(&mut self) -> Option<PeerId> {
        for _ in 0..evictable::LOOKS {
            let (at, id) = self.evictable.next_idle(&mut self.peers)?;
            let Some(peer) = self.peers.get_mut(id) else { continue };
            let Some(since) = peer.resting_since() else { continue };
            if peer.reachable {
                continue;
            }
            let clear = peer.session.as_ref().is_none_or(|session| session.lent.is_clear());
            let free = clear && self.operations.is_free(id);
            if since <= at && free {
                self.end_session(id, Fault::PeerReset);
                return Some(id);
            }
            // It was awake meanwhile; or it is of concern, and others come first.
            let since = if since <= at { self.now } else { since };
            self.evictable.add_idle(id, &mut peer.eviction, since);
        }
        None
    }
}

impl Peer {
    /// Whether nothing of either side is under way, as far as this side can tell.
    pub(super) fn is_idle(&self) -> bool {
        !self.has_waiting() && self.is_settled()
    }

    /// Whether nothing is under way that the other side waits for, or could.
    fn is_settled(&self) -> bool {
        self.session.as_ref().is_none_or(Session::is_settled)
    }
}
