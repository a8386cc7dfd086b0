//! Paths that deliver nothing: what went over them goes over the others, and they are probed until they answer or are dead.

use ropewalk_base::health::Suspicion;
use ropewalk_base::verb::{LinkId, Token};
use ropewalk_wire::frame::{Body, Envelope, ProbeBody};

use crate::api::{Output, PeerId};
use crate::engine::Core;
use crate::orders::Order;
use crate::session::Paths;

impl Core {
    /// A rail suspects the path of a link.
    #[cold]
    pub fn suspect(&mut self, link: LinkId, cause: Suspicion) {
        let Some(state) = self.links.get(link) else { return };
        self.counters.suspected.note(cause);
        let Some(id) = state.peer.map(|id| self.resolve(id)) else { return };
        let carries = |paths: &Paths| paths.are_several() && paths.is_up_over(link);
        if !self.peers.session(id).is_some_and(|session| carries(&session.paths)) {
            return;
        }
        match cause {
            // It does not come back.
            Suspicion::InterfaceGone | Suspicion::AddressGone => self.path_dead(id, link),
            _ => self.suspect_path(id, link),
        }
    }

    /// Spans were acknowledged: the paths that delivered them are well.
    pub(super) fn paths_delivered(&mut self, id: PeerId) {
        let now = self.now;
        let Some(session) = self.peers.session_mut(id) else { return };
        let Some(reliable) = session.reliable.as_mut() else { return };
        let are_several = session.paths.are_several();
        for (link, sent_at) in reliable.sent.take_delivered() {
            if are_several {
                session.paths.delivered(link, sent_at, now);
            }
        }
        if are_several {
            let due = session.due();
            let waits = session.migrating_mut().is_some_and(|it| it.proof.is_some());
            self.wake_by(id, due);
            if waits {
                self.old_spans_acknowledged(id);
            }
        }
    }

    /// Judges the paths of a session that has several.
    pub(crate) fn judge_paths(&mut self, id: PeerId) {
        let now = self.now;
        let Some(session) = self.peers.session_mut(id) else { return };
        if !session.paths.are_several() {
            return;
        }
        let watched = session.paths.take_watched(now);
        for link in watched {
            let is_native = |order: &Order| matches!(order, Order::Native { .. });
            if !self.orders.over(&[link], is_native).is_empty() {
                self.emit_probe(id, link, false);
                if let Some(session) = self.peers.session_mut(id) {
                    session.paths.probed(link, now);
                }
            }
        }
        let Some(session) = self.peers.session_mut(id) else { return };
        let Some(reliable) = session.reliable.as_ref() else { return };
        let mut late = session.paths.late(now);
        late.retain(|link| {
            let rests = reliable.sent.rests_over(*link);
            if rests {
                session.paths.rests_over(*link);
            }
            !rests
        });
        late.extend(session.paths.silent(now));
        for link in late {
            self.suspect_path(id, link);
        }
        let Some(session) = self.peers.session_mut(id) else { return };
        for link in session.paths.probes(now) {
            self.emit_probe(id, link, false);
        }
        let dead = self.peers.session(id).map_or(Vec::new(), |session| session.paths.dead(now));
        dead.into_iter().for_each(|link| self.path_dead(id, link));
        // Paths that were held back may be good now.
        self.sync_paths(id);
    }

    /// A path is suspect: what went over it goes over another, at once.
    fn suspect_path(&mut self, id: PeerId, link: LinkId) {
        let now = self.now;
        let left = self.leaving(id, link);
        let Some(session) = self.peers.session_mut(id) else { return };
        if !session.paths.suspect(link, now) {
            return;
        }
        self.counters.paths_suspected += 1;
        let bytes = self.redirect_spans(id, link);
        self.note_left(id, left, bytes);
        self.sync_paths(id);
        self.stop_reads_over(link);
        self.wake_by(id, now);
    }

    /// A path is dead: its link ends here, whether the peer hears of it or not.
    fn path_dead(&mut self, id: PeerId, link: LinkId) {
        self.counters.paths_dead += 1;
        self.close_link(link);
        self.outputs.push(Output::Abandon { link });
        self.session_link_lost(id, link);
    }

    /// Asks whether somebody hears this link, or answers that.
    pub(crate) fn emit_probe(&mut self, id: PeerId, link: LinkId, is_answer: bool) {
        let Some(session) = self.peers.session(id) else { return };
        let envelope = Envelope { session: session.name(), ..Envelope::default() };
        let body = ProbeBody { is_answer: u8::from(is_answer), reserved: [0; 7] };
        self.emit_on(link, envelope, &Body::Probe(body), None, Token::NONE);
    }

    /// A probe, or the answer to one.
    pub(super) fn arrive_probe(&mut self, id: PeerId, link: LinkId, probe: ProbeBody) {
        let now = self.now;
        if probe.is_answer == 0 {
            return self.emit_probe(id, link, true);
        }
        if let Some(session) = self.peers.session_mut(id).filter(|it| it.paths.are_several()) {
            let was_suspect = session.paths.is_suspect(link);
            session.paths.answered(link, now);
            if was_suspect {
                self.sync_paths(id);
            }
        }
    }
}
