//! Greeting: who is there, which link survives, when a session begins.
//!
//! The connecting side greets, the accepting side answers (or refuses), the connecting side confirms
//! the link that it wants to use; only then messages flow. So of two simultaneous connections one is
//! refused before it carried anything: the one that the endpoint with the higher id began.

use ropewalk_base::error::Fault;
use ropewalk_base::ids::Incarnation;
use ropewalk_base::memory::Slice;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{LinkId, Placement, Token, Urgency};
use ropewalk_wire::frame::{
    self, Body, Envelope, FLAG_ANSWER, FLAG_INSIST, FLAG_JOIN, FLAG_UPGRADE,
    HELLO_PAYLOAD_BYTES_MAX, HelloBody, MODE_PATHS, MODE_RESUME, Prefix, Refusal,
};

use super::calls::PATIENCE;
use super::carrying::CarryingProof;
use super::{Link, LinkStage, Links, Peer, Told};
use crate::api::{Mode, Output, PeerId, Plant};
use crate::engine::Core;
use crate::incoming::IncomingKind;
use crate::session::{Session, SessionId};

/// How long a peer whose link shall survive may take before we insist on ours.
const YIELD: std::time::Duration = std::time::Duration::from_millis(200);

impl Core {
    /// There is no better link to this peer: the agreed one is used.
    pub fn no_upgrade(&mut self, peer: PeerId, link: LinkId) {
        let agreed = self.links.get(link).is_some_and(|link| link.stage == LinkStage::Agreed);
        if agreed {
            self.confirm(self.resolve(peer), link);
        }
    }

    /// A rail says that a link can carry frames.
    pub fn link_up(&mut self, link: LinkId, accepted: bool) {
        if accepted {
            let nonce = self.random.next_u64() as u32;
            let source = link.rail;
            self.links.insert(link, Link { source, ..Link::new(None, nonce) });
            return self.note_newcomer(link);
        }
        let Some(state) = self.links.get_mut(link) else { return };
        if state.stage != LinkStage::Opening {
            return;
        }
        state.stage = LinkStage::Greeting;
        let (id, joins) = (state.peer, state.joins);
        let flags = if state.upgrade { FLAG_UPGRADE } else { 0 }
            | if state.insist { FLAG_INSIST } else { 0 }
            | if state.joins.is_some() { FLAG_JOIN } else { 0 };
        self.greet(link, flags, Refusal::None);
        joins.into_iter().for_each(|id| self.joining_up(id, link));
        let lossy = self.is_lossy(link);
        let Some(id) = id else { return };
        let Some(peer) = self.peers.get_mut(id) else { return };
        let until = peer.calls.greet(link, self.now, lossy.then_some(self.config.resend_after));
        self.wake_by(id, until);
    }

    /// A link was accepted: whoever began it has to greet. Where too many do not those who came first go.
    fn note_newcomer(&mut self, link: LinkId) {
        let until = self.now + PATIENCE;
        self.timers.wake_by(until);
        let links = &self.links;
        if let Some(oldest) = self.newcomers.add(link, until, |link| is_silent(links, link)) {
            self.close_link(oldest);
        }
    }

    /// Closes accepted links on which nobody greeted in time; when there is something to do next.
    pub(crate) fn close_silent(&mut self) -> Time {
        while let Some(link) = self.newcomers.next_due(self.now) {
            if is_silent(&self.links, link) {
                self.close_link(link);
            }
        }
        self.newcomers.deadline()
    }

    /// Whether the peer of a link is on this host, as far as it says so: its bytes do not leave memory.
    pub fn is_same_host(&self, link: LinkId) -> bool {
        let hello = self.links.get(link).and_then(|link| link.hello.as_ref());
        self.identity.host != 0 && hello.is_some_and(|hello| hello.host.get() == self.identity.host)
    }

    /// Whether frames of this link may be lost, doubled or overtaken.
    pub(crate) fn is_lossy(&self, link: LinkId) -> bool {
        self.rails.is_lossy(link)
    }

    pub(super) fn greet(&mut self, link: LinkId, flags: u16, refusal: Refusal) {
        let windows = self.first_windows().unwrap_or(self.least_windows());
        let lossy = self.is_lossy(link);
        let mode = self.mode_over(link) | self.protection_told(link);
        let Some(state) = self.links.get_mut(link) else { return };
        state.mode = mode;
        let peer = state.peer.or(state.joins).and_then(|peer| self.peers.get(peer));
        let same_life = |peer: &&Peer| {
            state.hello.is_none_or(|hello| peer.identity.incarnation.0 == hello.incarnation.get())
        };
        let session = peer.filter(same_life).and_then(|peer| peer.session.as_ref());
        // A session with a key is told nobody who has not named it: whoever it is may be a stranger.
        let is_told = |session: &&Session| {
            session.key().is_none() || state.outbound || state.theirs == Some(session.id)
        };
        state.ours = session.filter(is_told).and_then(|session| session.kept(lossy));
        if let Some(peer) = peer.filter(|_| !lossy) {
            let unconfirmed = peer.unconfirmed(state.hello.as_ref());
            let is_told = state.outbound || state.theirs == unconfirmed;
            state.ours = state.ours.or(unconfirmed.filter(|_| is_told));
        }
        state.windows = windows;
        let (nonce, session) = (state.nonce, state.ours.map_or(0, SessionId::name));
        let body = HelloBody {
            endpoint: self.identity.endpoint.0.to_le_bytes(),
            cluster: self.identity.cluster.0.to_le_bytes(),
            incarnation: self.identity.incarnation.0.into(),
            host: self.identity.host.into(),
            nonce: nonce.into(),
            mode,
            refusal: refusal as u8,
            address_bytes: (self.greeting.len as u16).into(),
            eager_credit: ((windows.eager / 1024) as u16).into(),
            request_credit: ((windows.request / 1024) as u16).into(),
            rts_credit: (self.config.rts_window as u16).into(),
            eager_max: ((self.eager_bytes_over(link, false) / 1024) as u16).into(),
        };
        let slice = self.greeting;
        let payload_bytes = slice.len as u32;
        let envelope = Envelope { flags, payload_bytes, session, ..Envelope::default() };
        match self.block_for(link, (flags, session), &body) {
            Ok(block) if block.is_empty() => {}
            Ok(block) => return self.greet_with(link, envelope, body, &block),
            Err(_) => return self.close_link(link),
        }
        // The greeting lives as long as the endpoint: nobody waits for the rail to let go of it.
        *self.outputs.push_frame(link, slice, Urgency::Urgent, Token::NONE) =
            frame::encode(envelope, &Body::Hello(body));
    }

    /// The mode in our greeting on a link (`MODE_RESUME`, `MODE_PATHS`).
    fn mode_over(&self, link: LinkId) -> u8 {
        let resumes = if self.config.mode == Mode::Resume { MODE_RESUME } else { 0 };
        resumes | if self.takes_paths(link) { MODE_PATHS } else { 0 }
    }

    /// A greeting's header is here; its payload follows.
    pub(crate) fn arrive_hello(
        &mut self,
        link: LinkId,
        prefix: &Prefix,
        hello: HelloBody,
        payload_bytes: u32,
    ) -> Placement {
        let answer = prefix.flags.get() & FLAG_ANSWER != 0;
        let Some(state) = self.links.get_mut(link) else { return Placement::Drop };
        let expected = state.stage == LinkStage::Greeting && state.outbound == answer;
        let lengths = payload_bytes <= HELLO_PAYLOAD_BYTES_MAX
            && u32::from(hello.address_bytes.get()) <= payload_bytes;
        if (!expected || state.hello.is_some()) && self.is_lossy(link) {
            // One that came twice, or late.
            return Placement::Drop;
        }
        let Some(state) = self.links.get_mut(link) else { return Placement::Drop };
        if !expected || !lengths || state.hello.is_some() {
            return self.violation("an unexpected greeting");
        }
        state.hello = Some(hello);
        state.theirs = SessionId::named(prefix.session.get());
        state.their_flags = prefix.flags.get();
        if !answer {
            state.upgrade = prefix.flags.get() & FLAG_UPGRADE != 0;
            state.insist = prefix.flags.get() & FLAG_INSIST != 0;
        } else if state.joins.is_none() && prefix.flags.get() & FLAG_JOIN != 0 {
            state.proof = CarryingProof::Follows;
        }
        if payload_bytes == 0 {
            self.greeted(link, &[]);
            return Placement::Drop;
        }
        self.place_into(link, None, prefix, Slice::NONE, IncomingKind::Hello)
    }

    /// A greeting is complete.
    pub(crate) fn greeted(&mut self, link: LinkId, payload: &[u8]) {
        let Some(state) = self.links.get_mut(link) else { return };
        let (Some(hello), outbound) = (state.hello, state.outbound) else { return };
        let addresses = payload.get(..usize::from(hello.address_bytes.get())).unwrap_or(&[]);
        state.told = (!addresses.is_empty()).then(|| Box::new(Told(addresses.to_vec())));
        if outbound {
            self.answered(link, hello, payload);
        } else {
            self.note_block(link, payload.get(addresses.len()..).unwrap_or(&[]));
            self.asked(link, hello);
        }
    }

    /// Somebody connected to us.
    pub(crate) fn asked(&mut self, link: LinkId, hello: HelloBody) {
        let endpoint = u128::from_le_bytes(hello.endpoint);
        if !self.is_our_cluster(&hello) {
            return self.refuse_link(link, Refusal::Cluster);
        }
        if self.links.get(link).is_some_and(Link::asks_to_join) {
            return self.asked_to_join(link, &hello);
        }
        // Before anything is kept of the caller.
        if let Err(refusal) = self.hears(link, &hello) {
            return self.refuse_link(link, refusal);
        }
        if self.note_unprotected(link) {
            return self.refuse_link(link, Refusal::Untrusted);
        }
        if endpoint == self.identity.endpoint.0 {
            // Ourselves: the connecting end of this link notices it, too, and needs no link.
            return self.refuse_link(link, Refusal::Duplicate);
        }
        let known = self.peer_of(endpoint).filter(|id| self.has_credit_for(*id, link));
        // Its record may have ended, so that there was credit for it.
        let Some(id) = known.and_then(|_| self.peer_of(endpoint)) else {
            return self.refuse_link(link, Refusal::Full);
        };
        if !self.may_be(id, link) {
            return self.refuse_link(link, Refusal::Untrusted);
        }
        self.end_if_revoked(id);
        let (upgrade, insist) = match self.links.get(link) {
            Some(state) => (state.upgrade, state.insist),
            None => return,
        };
        if self.hold_caller(id, link) {
            return;
        }
        let Some(peer) = self.peers.get(id) else { return };
        let ours_survives = self.identity.endpoint.0 < endpoint && !insist && !upgrade;
        let ours_pending = self.links.of_peer(id).into_iter().any(|other| {
            let pending = |state: &Link| !matches!(state.stage, LinkStage::Up | LinkStage::Closing);
            let ours = self.links.get(other).filter(|state| state.outbound);
            other != link && ours.is_some_and(pending)
        });
        let runs = peer.link().is_some() && peer.identity.incarnation.0 == hello.incarnation.get();
        // A session that runs or is about to, or a link of ours that shall survive: the peer waits for
        // that one, and insists where it does not come.
        let about_to = self.has_agreed(id, true, link);
        if ((runs || about_to) && !insist && !upgrade) || (ours_survives && ours_pending) {
            return self.refuse_link(link, Refusal::Duplicate);
        }
        if !self.may_take_place(id, link) {
            return self.refuse_link(link, Refusal::Duplicate);
        }
        self.lose_named(id, link);
        self.links.set_peer(link, id);
        self.links.agree(link);
        // The rail knows the regions of this peer before the peer can ask for them; where keys are to be proven, not before
        // they are.
        if self.links.get(link).is_some_and(|state| state.trust.is_none()) {
            self.expose_existing(id, link);
        }
        self.answer_call(link, id);
    }

    /// Whether there is credit for a session with this peer: one that was idle-closed has its own.
    fn has_credit_for(&mut self, id: PeerId, link: LinkId) -> bool {
        let theirs = self.links.get(link).and_then(|state| state.theirs);
        let keeps = theirs.is_some() && self.peers.session(id).map(|it| it.id) == theirs;
        while !keeps && self.first_windows().is_none() {
            if self.end_oldest_idle().is_none_or(|ended| ended == id) {
                break;
            }
        }
        keeps || self.first_windows().is_some()
    }

    /// Whether the peer is of our cluster. A side that does not know its cluster yet (number 0: a
    /// client that was only told an address) takes the other's.
    fn is_our_cluster(&self, hello: &HelloBody) -> bool {
        let (theirs, ours) = (u128::from_le_bytes(hello.cluster), self.identity.cluster.0);
        theirs == ours || theirs == 0 || ours == 0
    }

    pub(super) fn refuse_link(&mut self, link: LinkId, refusal: Refusal) {
        self.greet(link, FLAG_ANSWER, refusal);
        self.close_link(link);
    }

    /// The peer to whom we connected answered.
    fn answered(&mut self, link: LinkId, hello: HelloBody, payload: &[u8]) {
        let Some(state) = self.links.get(link) else { return };
        if let Some(id) = state.joins {
            return self.join_answered(link, id, &hello);
        }
        let Some(asked) = state.peer else { return };
        let asked = self.resolve(asked);
        if self.end_if_revoked(asked) {
            return self.close_link(link);
        }
        let endpoint = u128::from_le_bytes(hello.endpoint);
        if !self.is_our_cluster(&hello) {
            if let Some(peer) = self.peers.get_mut(asked) {
                let cluster = u128::from_le_bytes(hello.cluster);
                peer.identity.set_other_cluster(Some(cluster));
            }
            self.close_link(link);
            return self.refused(asked, link, Refusal::Cluster);
        }
        let is_told = self.links.get(link).is_some_and(|state| state.is_told);
        let meant = self.peers.get(asked).map(|peer| peer.identity.endpoint);
        if is_told && meant != Some(endpoint) {
            // Another endpoint has this address by now. Our next attempt is another one's.
            if let Some(peer) = self.peers.get_mut(asked) {
                peer.calls.note_stranger();
            }
            return self.close_link(link);
        }
        let refusal = Refusal::from_u8(hello.refusal);
        if let Some(refusal) = self.doubts(asked, link, &hello, payload) {
            self.close_link(link);
            return self.refused(asked, link, refusal);
        }
        if self.note_unprotected(link) {
            self.close_link(link);
            return self.refused(asked, link, Refusal::Untrusted);
        }
        if endpoint == self.identity.endpoint.0 {
            self.close_link(link);
            return self.begin_loop(asked);
        }
        // The record of an endpoint is that of the node which has proven it.
        let known = self.peers.of_endpoint(endpoint);
        // So is the record of the address that was called.
        if known.is_some_and(|known| !self.may_be(known, link)) || !self.may_be(asked, link) {
            self.close_link(link);
            return self.refused(asked, link, Refusal::Untrusted);
        }
        // Also one that refuses us says who it is: perhaps one that is connected to us already.
        let id = self.identify(asked, endpoint);
        if refusal != Refusal::None {
            self.close_link(link);
            return self.refused(id, link, refusal);
        }
        self.links.set_peer(link, id);
        let Some(peer) = self.peers.get_mut(id) else { return };
        peer.identity.cluster = u128::from_le_bytes(hello.cluster);
        peer.identity.set_other_cluster(None);
        if self.awaits_carrying_proof(link, id) {
            return;
        }
        if !self.may_begin(link) || !self.may_be(id, link) || !self.stands(link) {
            self.close_link(link);
            return self.refused(id, link, Refusal::Untrusted);
        }
        self.accepted(link, id, &hello);
    }

    /// The peer accepts our call, and has proven what it has to prove.
    pub(super) fn accepted(&mut self, link: LinkId, id: PeerId, hello: &HelloBody) {
        let endpoint = u128::from_le_bytes(hello.endpoint);
        let Some(state) = self.links.get_mut(link) else { return };
        state.stage = LinkStage::Agreed;
        let upgrade = state.upgrade;
        let named = (state.ours, state.theirs);
        let Some(peer) = self.peers.get(id) else { return };
        let newer = peer.identity.incarnation.0 != hello.incarnation.get();
        if peer.has_link() && !newer && !upgrade {
            // Connected already: over a second address, or by the peer itself meanwhile.
            return self.close_link(link);
        }
        let session = peer.session.as_ref().filter(|session| session.reliable.is_none());
        let idle = session.filter(|_| !peer.has_link()).map(|session| session.id);
        if idle.is_some() && named.1 == idle && named.0 != named.1 && !newer {
            // Called under another name than that of its idle-closed session, which a link of its own goes on
            // with, where somebody wants it.
            self.close_link(link);
            return self.want_waiting(id);
        }
        let unconfirmed = peer.unconfirmed(Some(hello));
        if unconfirmed.is_some() && named.1 == unconfirmed && named.0 != named.1 && !upgrade {
            // Likewise under another name than that by which it called us. It has that session: the next call names it.
            self.close_link(link);
            return self.want_waiting(id);
        }
        if !self.may_take_place(id, link) {
            return self.close_link(link);
        }
        let theirs_survives = self.identity.endpoint.0 > endpoint && !upgrade;
        if !upgrade && self.has_agreed(id, true, link) {
            // Another one of ours is about to carry the session.
            return self.close_link(link);
        }
        if theirs_survives && self.gives_way(id, link) {
            self.close_link(link);
            return self.refused(id, link, Refusal::Duplicate);
        }
        let same_host = hello.host.get() != 0 && hello.host.get() == self.identity.host;
        let shared = self.rails.of(link).is_some_and(|rail| rail.same_host_only);
        if same_host && !shared && !upgrade {
            self.outputs.push(Output::Upgrade { peer: id, link });
        } else {
            self.confirm(id, link);
        }
    }

    /// Our link was refused.
    fn refused(&mut self, id: PeerId, link: LinkId, refusal: Refusal) {
        let upgrade = self.links.get(link).is_some_and(|state| state.upgrade);
        let Some(peer) = self.peers.get_mut(id) else { return };
        // A link of its own carries its session, or a later attempt does, if somebody wants it.
        let unwanted = peer.session.as_ref().is_some_and(|session| {
            let paths = &session.paths;
            paths.has_link() || paths.has_lost() || peer.calls.is_idle()
        });
        if upgrade || unwanted {
            return;
        }
        match refusal {
            Refusal::Duplicate => {
                let until = self.now + peer.calls.take_way_given().unwrap_or(YIELD);
                peer.calls.yield_until(until);
                self.wake_by(id, until);
            }
            Refusal::Cluster => self.end_session(id, Fault::OtherCluster),
            Refusal::Untrusted => self.end_session(id, Fault::Untrusted),
            Refusal::None | Refusal::Full | Refusal::Version => {
                self.end_session(id, Fault::Unreachable);
            }
        }
    }

    /// Whether another link with this peer, begun by us or by it, is agreed upon.
    pub(super) fn has_agreed(&self, id: PeerId, outbound: bool, link: LinkId) -> bool {
        let agreed = |state: &Link| state.outbound == outbound && state.stage == LinkStage::Agreed;
        let others = self.links.of_peer(id).into_iter().filter(|other| *other != link);
        others.into_iter().any(|other| self.links.get(other).is_some_and(agreed))
    }

    /// Whether our call gives way to one of the peer's. One that the peer has not proven itself on may be an old greeting that
    /// somebody repeats: ours gives way to such calls once, for as long as a proof may take, and then no more.
    fn gives_way(&mut self, id: PeerId, link: LinkId) -> bool {
        if !self.has_agreed(id, false, link) {
            return false;
        }
        let others = self.links.of_peer(id).into_iter().filter(|other| *other != link);
        let is_proven = others.filter_map(|other| self.links.get(other)).any(|state| {
            !state.outbound
                && state.stage == LinkStage::Agreed
                && state.proof != CarryingProof::Demanded
        });
        if self.trust.is_none() || is_proven {
            return true;
        }
        let (now, lossy) = (self.now, self.is_lossy(link));
        self.peers.get_mut(id).is_some_and(|peer| peer.calls.give_way(now, lossy))
    }

    /// We choose this link; the session begins on our side.
    pub(super) fn confirm(&mut self, id: PeerId, link: LinkId) {
        self.expose_existing(id, link);
        self.emit_confirmation(link, id);
        let mut others = self.links.of_peer(id);
        let begun = |other: &LinkId| self.links.get(*other).is_some_and(|state| state.outbound);
        others.retain(|other| *other != link && begun(other));
        self.begin_session(id, link);
        for other in others {
            self.close_link(other);
        }
    }

    /// Whether a frame of this session, on a link that carries none yet, stands for a confirmation
    /// that was lost or overtaken.
    pub(crate) fn is_confirmed_by(&self, link: LinkId, session: u32) -> bool {
        let Some(state) = self.links.get(link) else { return false };
        let agreed = state.stage == LinkStage::Agreed && !state.outbound;
        let agreed = agreed && state.proof != CarryingProof::Demanded;
        let fresh = || Some(SessionId::agreed(state.nonce, state.hello?.nonce.get()));
        let tag = state.goes_on_with().or_else(fresh);
        agreed && tag.is_some_and(|tag| tag.name() == session) && self.is_lossy(link)
    }

    /// The connecting side chose this link; the session begins on our side, too.
    pub(crate) fn arrive_confirm(&mut self, link: LinkId, id: PeerId) -> Placement {
        let agreed = self
            .links
            .get(link)
            .is_some_and(|state| state.stage == LinkStage::Agreed && !state.outbound);
        if !agreed && self.is_lossy(link) {
            // It came again: what we answered to the first one was lost.
            if self.peers.session(id).is_some_and(|session| session.paths.is_up_over(link)) {
                self.acknowledge_now(id);
            }
            return Placement::Drop;
        }
        if !agreed {
            return self.violation("an unexpected confirmation");
        }
        let is_omitted = self.config.plant == Plant::ProofOmitted;
        let demands = |state: &Link| state.proof == CarryingProof::Demanded && !is_omitted;
        if self.links.get(link).is_some_and(demands) {
            self.refuse_carrying(link);
            return Placement::Drop;
        }
        self.begin_session(id, link);
        Placement::Drop
    }

    /// Whether the incarnation that greeted on this link is the one we know.
    pub(crate) fn greeted_incarnation(&self, link: LinkId) -> Option<Incarnation> {
        let hello = self.links.get(link)?.hello?;
        Some(Incarnation(hello.incarnation.get()))
    }
}

/// Whether no whole greeting was heard on an accepted link, or no proof on one that is to join a session. A caller that is held
/// back does not wait longer either.
fn is_silent(links: &Links, link: LinkId) -> bool {
    let state = links.get(link);
    state.is_some_and(|it| {
        let greets = it.stage == LinkStage::Greeting;
        let proves = it.joins.is_some() || it.proof == CarryingProof::Demanded;
        !it.outbound && (greets || it.stage == LinkStage::Agreed && proves)
    })
}
