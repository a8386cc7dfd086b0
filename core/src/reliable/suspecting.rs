//! Paths that deliver nothing: what went over them goes over the others, and they are probed until they answer or are dead.

use ropewalk_base::health::{Health, Suspicion};
use ropewalk_base::time::Time;
use ropewalk_base::verb::{LinkId, Token};
use ropewalk_wire::frame::{Body, Envelope, ProbeBody, SuspectBody};

use crate::api::{Output, PeerId};
use crate::engine::Core;
use crate::orders::Order;
use crate::path::RouteNews;
use crate::session::{PROMISED_MIN, Path, PathCause, PathId, Paths};

/// The cause of a suspicion, as a peer is told, where nothing is delivered.
const SILENT: u8 = 0;

impl Core {
    /// A rail suspects the path of a link.
    pub fn suspect(&mut self, link: LinkId, cause: Suspicion) {
        self.suspect_for(link, cause, 0);
    }

    /// A payload came spoiled over a link whose rail loses nothing: the rail has acknowledged its bytes, so the peer is told.
    /// `span`: its number, or 0.
    pub(crate) fn suspect_spoiled(&mut self, link: LinkId, span: u64) {
        self.suspect_for(link, Suspicion::Corrupt, span);
    }

    #[cold]
    fn suspect_for(&mut self, link: LinkId, cause: Suspicion, span: u64) {
        let Some(state) = self.links.get(link) else { return };
        self.counters.suspected.note(cause);
        let Some(id) = state.peer.map(|id| self.resolve(id)) else { return };
        self.tell_suspect(id, link, cause.to_wire(), span);
        let carries = |paths: &Paths| paths.are_several() && paths.is_up_over(link);
        if !self.peers.session(id).is_some_and(|session| carries(&session.paths)) {
            return;
        }
        let now = self.now;
        if let Some(session) = self.peers.session_mut(id) {
            session.paths.note_cause(link, PathCause::Rail(cause), now);
        }
        match cause {
            // It does not come back.
            Suspicion::InterfaceGone | Suspicion::AddressGone => {
                self.note_suspected(id, link, PathCause::Rail(cause), None);
                self.path_dead(id, link);
            }
            _ => {
                self.suspect_path(id, link, PathCause::Rail(cause));
            }
        }
    }

    /// Tells the peer over the other paths what we see of this one: the peer may see nothing of it, and have its credit
    /// for us there. Where no other is up a spoiled span is named over this one.
    fn tell_suspect(&mut self, id: PeerId, link: LinkId, cause: u8, span: u64) {
        let Some(session) = self.peers.session(id) else { return };
        let Some(path) = session.paths.id_over(link) else { return };
        let others = session.paths.iter().filter_map(Path::up).filter(|other| *other != link);
        let mut over: Vec<LinkId> = others.collect();
        if over.is_empty() && span > 0 {
            over.push(link);
        }
        let envelope = Envelope { session: session.name(), ..Envelope::default() };
        let (path, span) = (path.name().into(), span.into());
        let body = Body::Suspect(SuspectBody { path, cause, reserved: [0; 3], span });
        for over in over {
            self.emit_on(over, envelope, &body, None, Token::NONE);
        }
    }

    /// The peer's rail sees that a path is broken: it is suspect, and our probes decide. A word that comes over the path that
    /// it is about is wrong, and one about a path that has no link is late. But a span that was spoiled is as good as lost,
    /// and goes again whatever is believed of the path.
    pub(super) fn arrive_suspect(&mut self, id: PeerId, link: LinkId, word: SuspectBody) {
        let now = self.now;
        let path = PathId::named(word.path.get());
        self.span_spoiled(id, link, path, word.span.get());
        let Some(session) = self.peers.session_mut(id) else { return };
        let over = session.paths.up_of(path).filter(|other| *other != link);
        let Some(over) = over else { return };
        if Suspicion::from_wire(word.cause) == Some(Suspicion::Corrupt) {
            session.paths.note_spoiled(over);
        }
        if !session.paths.is_told_of(over, now) {
            return;
        }
        self.counters.paths_suspected_by_peers += 1;
        self.suspect_path(id, over, PathCause::Peer);
    }

    /// Spans were acknowledged: the paths that delivered them are well. Returns whether there are several.
    pub(super) fn paths_delivered(&mut self, id: PeerId) -> bool {
        let now = self.now;
        let Some(session) = self.peers.session_mut(id) else { return false };
        let Some(reliable) = session.reliable.as_mut() else { return false };
        let are_several = session.paths.are_several();
        let (mut any, mut due) = (false, Time::NEVER);
        for (link, acknowledged) in reliable.sent.take_delivered() {
            any = true;
            if let Some((sent_at, _)) = acknowledged.sent {
                let over = (session.id, link);
                self.history.delivered(&mut session.paths, over, sent_at, now);
            }
            if are_several {
                let controllers = &mut self.routes.controllers;
                due = due.min(session.paths.delivered(link, &acknowledged, controllers, now));
            }
        }
        let Some(bundle) = session.bundle_mut() else { return are_several };
        let was_silent = any && bundle.silent_until.take().is_some();
        if are_several {
            let waits = bundle.migrating.as_ref().is_some_and(|it| it.proof.is_some());
            if due < Time::NEVER {
                self.wake_by(id, due);
            }
            if waits {
                self.old_spans_acknowledged(id);
            }
        }
        if was_silent {
            self.note_resumed(id);
        }
        are_several
    }

    /// Judges the paths of a session that has several.
    pub(crate) fn judge_paths(&mut self, id: PeerId) {
        let now = self.now;
        if self.end_silent(id) {
            return;
        }
        self.look_early(id);
        let Some(session) = self.peers.session_mut(id) else { return };
        if !session.paths.are_several() {
            return;
        }
        self.has_judged = true;
        session.paths.look_at_awaited(now);
        if session.judged_at() > now {
            return;
        }
        let promised = session.bundle().map_or(PROMISED_MIN, |bundle| bundle.promised.get());
        session.paths.set_floor(self.floor, promised);
        session.paths.renew_span_times(&self.routes.controllers);
        let watched = session.paths.take_watched(now);
        for link in watched {
            if self.can_be_silent(link) && !self.orders.over(&[link], Order::is_native).is_empty() {
                self.emit_probe(id, link, false);
                if let Some(session) = self.peers.session_mut(id) {
                    session.paths.probed(link, now);
                }
            }
        }
        let Some(session) = self.peers.session_mut(id) else { return };
        let Some(reliable) = session.reliable.as_ref() else { return };
        let mut late = session.paths.late(now);
        let rails = &self.rails;
        late.retain(|link| {
            let is_memory = rails.of(*link).is_none_or(|rail| rail.same_host_only);
            let since = reliable.sent.awaited_since(*link).filter(|_| !is_memory);
            session.paths.is_awaited_over(*link, since, now)
        });
        late.extend(session.paths.silent(now));
        late.into_iter().for_each(|link| self.outputs.push(Output::AskHealth { link }));
        self.look_at_quiet(id);
        self.note_ended_holds(id);
        let Some(session) = self.peers.session_mut(id) else { return };
        let probes = session.paths.probes(session.looks_every(), now);
        let dead = session.paths.dead();
        probes.into_iter().for_each(|link| self.emit_probe(id, link, false));
        for link in dead {
            self.share_news(id, link, RouteNews::Dead);
            self.path_dead(id, link);
        }
        // Paths that were held back may be good now.
        self.sync_paths(id);
    }

    /// The answer to [`Output::AskHealth`]; `None` where the rail measures nothing. The path is suspect, unless all that went
    /// over it is at the peer's machine: then its peer sleeps.
    pub fn path_health(&mut self, link: LinkId, health: Option<&Health>) {
        let now = self.now;
        let Some(id) = self.links.get(link).and_then(|state| state.peer) else { return };
        let id = self.resolve(id);
        let Some(session) = self.peers.session_mut(id) else { return };
        let has_all = |it: &Health| {
            let is_taken = it.unsent_bytes == 0 || it.is_peer_full;
            it.silence_tells && it.unacknowledged_bytes == 0 && is_taken
        };
        let sleeps = health.is_some_and(has_all);
        if !session.paths.are_several() {
            if !sleeps && session.is_early() {
                self.all_are_silent(id);
            }
            return;
        }
        if sleeps && session.paths.excuse(link, now) {
            let due = session.due();
            return self.wake_by(id, due);
        }
        let cause = session.paths.silence_over(link, now);
        if self.suspect_path(id, link, cause) {
            self.tell_suspect(id, link, SILENT, 0);
        } else if !sleeps {
            self.all_are_silent(id);
        }
    }

    /// Probes the paths over which nothing goes, if it is time, and if nobody else does whose peer is on that host.
    fn look_at_quiet(&mut self, id: PeerId) {
        let now = self.now;
        let Some(session) = self.peers.session_mut(id) else { return };
        let Some(every) = session.take_look(now) else { return };
        self.measure_paths(id);
        self.widen(id);
        let Some(session) = self.peers.session_mut(id) else { return };
        for link in session.paths.quiet(every, now) {
            if !self.can_be_silent(link) || !self.takes_probe(link, every) {
                continue;
            }
            if let Some(session) = self.peers.session_mut(id) {
                session.paths.asked(link, now);
            }
            self.emit_probe(id, link, false);
        }
    }

    /// A path is suspect: what went over it goes over another, at once.
    /// False if it was so before, or there is no other.
    pub(crate) fn suspect_path(&mut self, id: PeerId, link: LinkId, cause: PathCause) -> bool {
        let now = self.now;
        let left = self.leaving(id, link);
        let Some(session) = self.peers.session_mut(id) else { return false };
        session.paths.note_cause(link, cause, now);
        let awaited_since = session.paths.awaited_since(link);
        if !session.paths.suspect(link, now) {
            return false;
        }
        self.note_suspected(id, link, cause, awaited_since);
        self.counters.paths_suspected += 1;
        self.share_news(id, link, RouteNews::Suspect);
        let bytes = self.redirect_spans(id, link);
        self.note_left(id, left, bytes);
        self.sync_paths(id);
        self.stop_reads_over(link);
        self.wake_by(id, now);
        self.pump(id);
        true
    }

    /// A path is dead: its link ends here, whether the peer hears of it or not.
    pub(crate) fn path_dead(&mut self, id: PeerId, link: LinkId) {
        let offered = self.links.get(link).is_some_and(|state| state.offered);
        self.counters.paths_dead += 1;
        self.note_dead(id, link);
        self.close_link(link);
        self.outputs.push(Output::Abandon { link });
        self.session_link_lost(id, link, offered);
    }

    /// Asks whether somebody hears this link, or answers that.
    pub(crate) fn emit_probe(&mut self, id: PeerId, link: LinkId, is_answer: bool) {
        let Some(session) = self.peers.session_mut(id) else { return };
        if !is_answer && let Some(tally) = session.paths.tally_over(link) {
            tally.probes_sent += 1;
        }
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
        self.note_answered(id, link);
        let Some(session) = self.peers.session_mut(id) else { return };
        let mut was_silent = false;
        if let Some(bundle) = session.bundle_mut() {
            was_silent = bundle.silent_until.take().is_some();
            bundle.end_doubt();
        }
        if session.paths.are_several() && session.paths.answered(link, now) {
            self.share_news(id, link, RouteNews::Well);
            self.sync_paths(id);
        }
        if was_silent {
            self.note_resumed(id);
        }
    }
}
