//! The beginning of sessions, and of links that carry them on.

use ropewalk_base::error::Fault;
use ropewalk_base::time::Time;
use ropewalk_base::verb::LinkId;
use ropewalk_wire::frame::MODE_RESUME;

use super::{NewSession, PeerKind, Session, SessionId};
use crate::api::*;
use crate::apm::{Outcome, Rule};
use crate::credit::{Granted, Windows};
use crate::engine::Core;
use crate::path::{Link, LinkStage, Peer};

impl Core {
    /// A link was confirmed: the session begins, or goes on.
    pub(crate) fn begin_session(&mut self, id: PeerId, link: LinkId) {
        if self.lacks_seal(link) {
            return self.close_link(link);
        }
        let incarnation = self.greeted_incarnation(link).unwrap_or_default();
        let Some(kept) = self.links.get(link).map(Link::goes_on_with) else { return };
        // Its peer may be known under another name by now.
        let id = self.resolve(id);
        let kept = kept.filter(|_| !self.recall_unconfirmed(id, link));
        let Some(peer) = self.peers.get(id) else { return };
        let goes_on = kept.is_some();
        let session = peer.session.as_ref();
        let links = session.into_iter().flat_map(|session| session.paths.links());
        let old_links: Vec<LinkId> = links.filter(|old| *old != link).collect();
        let elsewhere =
            !old_links.is_empty() && session.is_some_and(|session| session.reliable.is_none());
        if goes_on && (session.map(|session| session.id) != kept || elsewhere) {
            // It was given up after both sides had greeted: the peer learns it with the next greeting. Or
            // another link carries it, and what is on its way over that one would be lost.
            self.close_link(link);
            return self.connect_if_needed(id);
        }
        if !goes_on && session.is_some() {
            if !self.may_take_place(id, link) {
                // Another link has carried it on since both sides greeted.
                return self.close_link(link);
            }
            // The peer lost what it knew of us; what was under way has failed.
            self.replace_session(id);
        }
        // A peer that called us may have a new record by now.
        let id =
            self.links.get(link).and_then(|state| state.peer).map_or(id, |id| self.resolve(id));
        let now = self.now;
        let mut rested = false;
        if goes_on && let Some(session) = self.peers.session_mut(id) {
            rested = session.begin_over(link, &mut self.routes.controllers, now);
        }
        old_links.into_iter().for_each(|old| self.close_link(old));
        self.close_older(id, link);
        let Some(state) = self.links.get_mut(link) else { return };
        state.stage = LinkStage::Up;
        state.traffic_seen = u64::MAX;
        let outbound = state.outbound;
        let addresses = state.told.take().map_or(Vec::new(), |told| told.0);
        let lossy = self.is_lossy(link);
        let Some(peer) = self.peers.get_mut(id) else { return };
        peer.calls.succeed();
        (peer.identity.incarnation, peer.identity.addresses) = (incarnation, addresses.into());
        self.links.begin_carrying(link);
        if !goes_on {
            self.begin_afresh(id, link);
            self.take_proven(id, link);
        }
        self.begin_lengths(id);
        match goes_on {
            true => self.go_on(id, rested),
            false => self.offer_paths(id, link),
        }
        self.begin_confirmation(id, link, outbound, lossy);
        self.sync_paths(id);
        // Also what was due while there was no link.
        let due = self.peers.get(id).map_or(Time::NEVER, Peer::due);
        self.wake_by(id, due);
        self.pump(id);
        self.pull_over(id);
        self.close_surplus();
    }

    /// A new link carries a session on. `rested`: it was idle-closed before.
    fn go_on(&mut self, id: PeerId, rested: bool) {
        let Some(session) = self.peers.session(id) else { return };
        let has_spans = session.reliable.is_some();
        if has_spans {
            if !rested {
                self.note_carried_on(id);
            }
            self.note_resumed(id);
            self.resume_spans(id);
        }
        if !has_spans || rested {
            self.resume_idle(id);
        }
    }

    /// A link begins to carry a session that there was not before.
    fn begin_afresh(&mut self, id: PeerId, link: LinkId) {
        let Some(state) = self.links.get(link) else { return };
        let (windows, Some(hello)) = (state.windows, state.hello) else { return };
        let number = SessionId::agreed(state.nonce, hello.nonce.get());
        // Frames are numbered from the first one: of those that are under way without a number nobody could tell, when a
        // second path is there, which of them the peer has.
        let several = self.agrees_on_paths(link);
        let resumes = self.config.mode == Mode::Resume;
        let outlives_links = several || resumes;
        let spans = several || (resumes && hello.mode & MODE_RESUME != 0) || self.is_lossy(link);
        if self.config.separate_sessions {
            self.drop_messages_of(id, Fault::PeerReset);
        }
        let granted = Windows {
            eager: u64::from(hello.eager_credit.get()) * 1024,
            request: u64::from(hello.request_credit.get()) * 1024,
        };
        let granted = Granted::begin(granted, u64::from(hello.rts_credit.get()));
        let kind = PeerKind::Ours;
        self.make_session(
            id,
            NewSession { id: number, kind, link, granted, windows, spans, outlives_links },
        );
    }

    /// A session with a peer begins.
    pub(crate) fn make_session(&mut self, id: PeerId, new: NewSession) {
        let Some(peer) = self.peers.get(id) else { return };
        assert!(peer.session.is_none(), "a session of {id:?} ends before the next one begins");
        let (lent, link) = (self.lend_first(new.windows), new.link);
        let mut session = Session::new(new, lent, self.peers.hash());
        if self.config.plant == Plant::OrderLost {
            session.one_sided().issued.is_order_lost = true;
        }
        if let Some(peer) = self.peers.get_mut(id) {
            peer.calls.end();
            peer.session = Some(session);
        }
        self.forget_losses(id);
        self.counters.sessions += 1;
        self.outputs.push(Output::PeerUp { peer: id });
        if !self.agrees_on_paths(link) {
            self.end_early_loads(id, Outcome::Refused(Rule::NoAlternate));
        }
    }

    /// Closes links which the peer had greeted on before it greeted on this one: it has given them up, and a
    /// confirmation of one that is still on its way would end the session that begins.
    fn close_older(&mut self, id: PeerId, link: LinkId) {
        let agreed = |it: &Link| !it.outbound && it.stage == LinkStage::Agreed;
        let Some(turn) = self.links.get(link).filter(|it| !it.outbound).map(|it| it.agreed) else {
            return;
        };
        for other in self.links.of_peer(id) {
            let older = self.links.get(other).is_some_and(|it| agreed(it) && it.agreed < turn);
            if older && !self.is_lossy(other) {
                self.close_link(other);
            }
        }
    }
}
