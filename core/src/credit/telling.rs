//! When credit is lent, and when a peer is told of it.

use ropewalk_base::limits::{EAGER_BYTES_LONG, EAGER_BYTES_SHORT, REQUEST_BYTES_MAX};
use ropewalk_wire::frame::{Content, CreditBody};

use super::lent::Awaited;
use super::{Charge, Lent, TRAFFIC_WINDOW_MAX, Windows, charge_bytes, window_min};
use crate::api::PeerId;
use crate::engine::Core;

impl Core {
    /// Counts the arrival of a message; false where the peer ignored its credits.
    #[must_use]
    pub(crate) fn charge(&mut self, peer: PeerId, charge: Charge) -> bool {
        self.peers.session_mut(peer).is_some_and(|session| session.lent.arrive(charge))
    }

    /// Gives credit of this session back: the message does not occupy us any more.
    #[inline(always)]
    pub(crate) fn free_charge(&mut self, id: PeerId, session: u32, charge: Charge) {
        let found = self.peers.session_mut(id);
        let Some(session) = found.filter(|found| found.is_named(session)) else {
            if let Charge::Eager { payload_bytes, .. } | Charge::Update { payload_bytes } = charge {
                self.pool.free_orphan(payload_bytes);
            }
            return;
        };
        // While its link is lost, a session that resumes keeps the news for the next one. One that rests tells them then.
        let keeps = session.reliable.is_some() && !session.paths.is_resting();
        if session.lent.free(charge) && (session.paths.is_up() || keeps) {
            self.tell_credit(id);
        }
    }

    #[cold]
    pub(crate) fn tell_credit(&mut self, id: PeerId) {
        let max = u64::from(self.config.eager_window_bytes_max).min(TRAFFIC_WINDOW_MAX);
        let now = self.now;
        if let Some(session) = self.peers.session_mut(id) {
            session.lent.grow_busy(max, &mut self.pool, now);
            self.say_credit(id);
        }
    }

    /// A message waits for its receive. A peer whose messages fill half of what they may is lent more, before
    /// it waits for it: programs send before they receive, and count on it. Where there is no more to lend it
    /// is told, and announces the others.
    #[inline]
    pub(crate) fn lend_to_waiting(&mut self, id: PeerId) {
        let max = u64::from(self.config.eager_window_bytes_max);
        let Some(session) = self.peers.session(id) else { return };
        if session.lent.is_filling(max, &self.pool) {
            self.lend(id, max);
        } else if session.lent.has_news() {
            // It used up what it knows of, and nothing of what is here may come to its receive before the next message.
            self.say_credit(id);
        }
    }

    #[cold]
    fn lend(&mut self, id: PeerId, max: u64) {
        let Some(session) = self.peers.session_mut(id) else { return };
        if session.lent.grow_eager(max, &mut self.pool) {
            self.say_credit(id);
        }
    }

    /// The longest message that a peer may send at once as far as its credit reaches, where that is a long one.
    fn long_bytes_of(&self, id: PeerId) -> Option<u64> {
        let peer = self.peers.get(id)?;
        let session = peer.session.as_ref()?;
        if session.is_foreign() || session.reliable.is_some() {
            return None;
        }
        let bytes = self.eager_bytes_over(peer.link()?, false);
        (bytes > u64::from(EAGER_BYTES_LONG)).then_some(bytes)
    }

    /// A message came for which nobody waits. To stage a long one costs more than to announce it: the peer is told.
    #[inline]
    pub(crate) fn note_unmatched(&mut self, id: PeerId, payload_bytes: u64) {
        if payload_bytes > u64::from(EAGER_BYTES_SHORT) {
            self.refuse_long(id);
        }
    }

    #[cold]
    fn refuse_long(&mut self, id: PeerId) {
        let applies = self.long_bytes_of(id).is_some();
        let Some(session) = self.peers.session_mut(id).filter(|_| applies) else { return };
        if session.lent.refuse_long() {
            self.say_credit(id);
        }
    }

    /// A message was announced for which somebody waits: where it is one of those that come at once as far as credit
    /// reaches, the next one of its length has room.
    pub(crate) fn lend_for(&mut self, id: PeerId, payload_bytes: u64) {
        if self.long_bytes_of(id).is_none_or(|most| payload_bytes > most) {
            return;
        }
        let max = u64::from(self.config.eager_window_bytes_posted);
        let Some(session) = self.peers.session_mut(id) else { return };
        let awaited = session.lent.await_long();
        if awaited == Awaited::Seldom {
            return;
        }
        let grew = session.lent.grow_for(payload_bytes, max, &mut self.pool);
        if grew || awaited == Awaited::Again {
            self.say_credit(id);
        }
    }

    fn say_credit(&mut self, id: PeerId) {
        let max = u64::from(self.config.eager_window_bytes_max);
        let now = self.now;
        let Some(session) = self.peers.session_mut(id) else { return };
        let mut body = session.lent.tell(max, &self.pool, now);
        let learned = session.one_sided.as_ref().map_or(0, |it| it.learned.taken());
        body.layouts = learned.into();
        self.emit_control(id, body);
    }

    /// A peer's layout is here, or a number is free: it is told, and lent room for operations that use layouts.
    pub(crate) fn lend_for_strided(&mut self, id: PeerId) {
        let max = u64::from(self.config.eager_window_bytes_max).min(TRAFFIC_WINDOW_MAX);
        if let Some(session) = self.peers.session_mut(id) {
            session.lent.grow_update(max, &mut self.pool);
            self.say_credit(id);
        }
    }

    /// The first windows of a new session; `None` where the pool has none left.
    pub(crate) fn first_windows(&self) -> Option<Windows> {
        let (least, bytes) = (self.least_windows(), u64::from(self.config.eager_window_bytes));
        let usual = bytes.next_multiple_of(1024);
        let eager = usual.max(window_min(self.eager_bytes_sure()));
        let usual = Windows { eager, request: usual.max(least.request) };
        self.pool.first(usual, least)
    }

    /// The smallest windows with which nothing gets stuck. A message that is too long for them may
    /// be announced, a longer request may not.
    pub(crate) fn least_windows(&self) -> Windows {
        let eager = self.eager_bytes_sure().min(EAGER_BYTES_SHORT);
        Windows { eager: window_min(eager), request: window_min(REQUEST_BYTES_MAX) }
    }

    /// Lends the first windows of a session.
    pub(crate) fn lend_first(&mut self, windows: Windows) -> Lent {
        let announces = u64::from(self.config.rts_window);
        let largest = Windows {
            eager: charge_bytes(u64::from(self.eager_bytes_sure())),
            request: charge_bytes(u64::from(REQUEST_BYTES_MAX)),
        };
        self.pool.lend(windows.sum());
        Lent::begin(windows, announces, largest, self.now)
    }

    /// The peer allows us more.
    pub(crate) fn arrive_credit(&mut self, id: PeerId, span: u64, body: CreditBody) {
        let Some(session) = self.peers.session_mut(id) else { return };
        let reliable = session.reliable.as_mut();
        let is_newest = reliable.is_none_or(|reliable| reliable.hear_credit(span));
        session.granted.extend(&body, is_newest);
        if let Some(one_sided) = &mut session.one_sided {
            one_sided.taught.confirm(body.layouts.get());
        }
        self.pump(id);
    }

    /// Whether a small message without credit waits for some: a receiver that takes messages gives it back
    /// within a round trip, one that does not lends more, and a message costs one frame then instead of four.
    /// A receiver without more to lend says so: it may be waiting for a message behind.
    pub(crate) fn awaits_credit(&self, id: PeerId, payload_bytes: u64) -> bool {
        self.peers.session(id).is_some_and(|session| session.granted.comes_back(payload_bytes))
    }

    /// A control frame to a peer whose session runs.
    pub(crate) fn emit_control<B: Content>(&mut self, id: PeerId, body: B) {
        self.emit(id, body, None);
    }
}
