//! Calls that carry a session on over another link, or put a new one in its place.
//!
//! Anybody can call in the name of an endpoint, and read from an answer which life of it that is. So where both sides have
//! the session's key (see [`super::joining`]) each proves that it has, before a link carries the session on: the accepting
//! side with its answer, the calling one in place of `Confirm`. A side that may not know yet that the other one has the key
//! demands no proof; nobody else knows the session's number by then.
//!
//! Invariants: a session that has a key is told only those who name it; a caller who proves nothing puts no other in its
//! place while a path of it answers.

use ropewalk_base::verb::{LinkId, Placement, Token};
use ropewalk_wire::frame::{Body, Envelope, FLAG_ANSWER, FLAG_JOIN, JoinBody, Prefix, Refusal};

use super::LinkStage;
use crate::api::PeerId;
use crate::engine::Core;
use crate::session::{PathId, Prover};

/// How far both sides of a link are in proving that it may carry a session on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum CarryingProof {
    /// Nobody needs one.
    #[default]
    None,
    /// We called; the peer's proof follows its answer.
    Follows,
    /// We called, and the peer has proven it; our proof stands in place of `Confirm`.
    Given,
    /// The peer called, and has to prove it.
    Demanded,
}

impl Core {
    /// Whether a link, on which the peer has greeted, may carry the session with it on, or begin another one in its place. The
    /// second is refused as long as a path of a session with a key answers: they are probed.
    pub(crate) fn may_take_place(&mut self, id: PeerId, link: LinkId) -> bool {
        let now = self.now;
        let incarnation = self.greeted_incarnation(link);
        let Some(state) = self.links.get(link) else { return false };
        let (outbound, ours, theirs) = (state.outbound, state.ours, state.theirs);
        let Some(peer) = self.peers.get_mut(id) else { return false };
        let is_same_life = incarnation == Some(peer.identity.incarnation);
        let Some(session) = peer.session.as_mut().filter(|session| session.key().is_some()) else {
            return true;
        };
        let named = Some(session.id);
        if is_same_life && theirs == named && (!outbound || ours == named) {
            // It has to prove that.
            return true;
        }
        if is_same_life && outbound && ours != named {
            // We called it under another name, and did not say that we have this session.
            return false;
        }
        if !session.paths.has_link() {
            return true;
        }
        let links: Vec<LinkId> = session.paths.links().collect();
        let Some(bundle) = session.bundle_mut() else { return true };
        if bundle.is_doubtful(now) {
            return true;
        }
        if bundle.doubt(now) {
            links.into_iter().for_each(|link| self.emit_probe(id, link, false));
        }
        false
    }

    /// Answers a call whose link may have the session with this peer, with our proof where it would carry one on.
    pub(super) fn answer_call(&mut self, link: LinkId, id: PeerId) {
        let incarnation = self.greeted_incarnation(link);
        let lossy = self.is_lossy(link);
        let Some(peer) = self.peers.get(id) else { return };
        let Some(state) = self.links.get_mut(link) else { return };
        let is_same_life = incarnation == Some(peer.identity.incarnation);
        let session = peer.session.as_ref().filter(|_| is_same_life);
        let session = session.filter(|it| state.theirs.is_some() && it.kept(lossy) == state.theirs);
        let Some(session) = session.filter(|session| session.key().is_some()) else {
            return self.greet(link, FLAG_ANSWER, Refusal::None);
        };
        if session.is_key_shared() {
            state.proof = CarryingProof::Demanded;
        }
        self.greet(link, FLAG_ANSWER | FLAG_JOIN, Refusal::None);
        let challenge = self.challenge(link);
        self.emit_proof_as(link, id, Prover::CarryingAcceptor, challenge);
    }

    /// Whether the peer, which accepts our call, has to prove first that it may carry our session on. Where it has to and does
    /// not say that its proof follows the link is closed.
    pub(super) fn awaits_carrying_proof(&mut self, link: LinkId, id: PeerId) -> bool {
        let incarnation = self.greeted_incarnation(link);
        let Some(state) = self.links.get(link) else { return false };
        let Some(peer) = self.peers.get(id) else { return false };
        let session = peer.session.as_ref();
        let session = session.filter(|session| Some(session.id) == state.goes_on_with());
        let Some(session) = session.filter(|_| incarnation == Some(peer.identity.incarnation))
        else {
            return false;
        };
        match state.proof {
            CarryingProof::Follows => session.key().is_some(),
            _ if session.is_key_shared() => {
                self.refuse_carrying(link);
                true
            }
            _ => false,
        }
    }

    /// The proof of the other side of a link that may carry a session on.
    pub(super) fn arrive_carrying_proof(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        body: &JoinBody,
    ) -> Placement {
        if self.end_if_revoked(id) {
            self.close_link(link);
            return Placement::Drop;
        }
        let Some(state) = self.links.get(link) else { return Placement::Drop };
        if !state.outbound && state.proven().is_some() {
            return self.arrive_beginning(link, id, prefix, body);
        }
        let (outbound, stage, hello) = (state.outbound, state.stage, state.hello);
        let is_awaited = match outbound {
            true => state.proof == CarryingProof::Follows && stage == LinkStage::Greeting,
            false => stage == LinkStage::Agreed,
        };
        let Some(hello) = hello.filter(|_| is_awaited) else {
            if outbound && state.proof != CarryingProof::None || self.is_lossy(link) {
                // We could not have checked it when the answer came; or it came twice.
                return Placement::Drop;
            }
            return self.violation("an unexpected proof");
        };
        let prover = if outbound { Prover::CarryingAcceptor } else { Prover::CarryingCaller };
        let session = self.peers.session(id).filter(|it| it.is_named(prefix.session.get()));
        let key = session.filter(|it| Some(it.id) == state.goes_on_with()).and_then(|it| it.key());
        let named = match outbound && self.is_to_be_sealed(link) {
            true => (PathId::named(body.path.get()), body.counter.get()),
            false => state.challenge(),
        };
        let claim = self.claim(link, id, prover, (body.rail, body.entropy.get()), named);
        let shown = claim.zip(key).filter(|(claim, key)| key.holds(claim, &body.proof));
        let Some((claim, key)) = shown.map(|(claim, key)| (claim, key.clone())) else {
            self.refuse_carrying(link);
            return Placement::Drop;
        };
        if !outbound {
            self.note_proven(link);
            self.seal_link(link, &key, &claim, body.salt);
            if self.trust.is_some() {
                self.expose_existing(id, link);
            }
            self.begin_session(id, link);
            return Placement::Drop;
        }
        if let Some(state) = self.links.get_mut(link) {
            state.proof = CarryingProof::Given;
            state.set_challenge(named);
        }
        self.accepted(link, id, &hello);
        Placement::Drop
    }

    /// Confirms a link of ours, with our proof where the peer has given its own.
    pub(crate) fn emit_confirmation(&mut self, link: LinkId, id: PeerId) {
        let state = self.links.get(link).map(|state| (state.proof, state.challenge()));
        if let Some((CarryingProof::Given, challenge)) = state {
            return self.emit_proof_as(link, id, Prover::CarryingCaller, challenge);
        }
        if !self.emit_beginning(link) {
            self.emit_on(link, Envelope::default(), &Body::Confirm, None, Token::NONE);
        }
    }

    /// Somebody who has not proven it would carry a session on.
    pub(super) fn refuse_carrying(&mut self, link: LinkId) {
        self.counters.joins_refused += 1;
        self.close_link(link);
    }
}
