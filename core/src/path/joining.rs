//! Further paths of a session: one side calls over another pair of rails, both prove that they belong to the session.
//!
//! The call greets like any other, but names the session and says that it joins (`FLAG_JOIN`). The accepting side answers
//! with a greeting and its proof, the calling side with its own proof in place of `Confirm`. Each proof covers both
//! greetings' nonces, so that an old one proves nothing. The accepting side welcomes the link with the answer to a probe.
//!
//! Invariant: until both sides have proven themselves, a joining link belongs to no peer: it changes neither the calls nor
//! the links nor the session of the peer whose session it names.

use ropewalk_base::error::Fault;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{LinkId, Placement, Token};
use ropewalk_wire::frame::{
    Body, Envelope, FLAG_ANSWER, FLAG_JOIN, HelloBody, JoinBody, KeyBody, MODE_PATHS, Prefix,
    Refusal, SHARE_BYTES,
};

use super::{Link, LinkStage, Peer};
use crate::api::{Output, PeerId};
use crate::apm::{Outcome, Rule};
use crate::engine::Core;
use crate::session::sought::CallFault;
use crate::session::{Bundle, Claim, PathId, Prover, SILENCE_MIN, SessionId};

/// The path and the number of the attempt that a proof is about.
type Named = (PathId, u32);

impl Core {
    /// Whether we greet so that a session that begins over this link may have further paths.
    pub(crate) fn takes_paths(&self, link: LinkId) -> bool {
        let rail = self.rails.of(link);
        let is_between_hosts = rail.is_some_and(|rail| !rail.same_host_only && !rail.foreign);
        self.config.paths_max > 1 && is_between_hosts && !self.is_lossy(link)
    }

    /// Whether both sides have said so of this link: what we would say by now does not count.
    pub(crate) fn agrees_on_paths(&self, link: LinkId) -> bool {
        let Some(state) = self.links.get(link) else { return false };
        let theirs = state.hello.map_or(0, |hello| hello.mode);
        state.mode & theirs & MODE_PATHS != 0
    }

    /// A session begins. Where it may have further paths, the peer is told our share of its key.
    pub(crate) fn offer_paths(&mut self, id: PeerId, link: LinkId) {
        if !self.agrees_on_paths(link) {
            return;
        }
        let mut share = [0; SHARE_BYTES];
        share.copy_from_slice(&self.random.next_u128().to_le_bytes());
        let offers = self.can_add_paths(id, link);
        let Some(session) = self.peers.session_mut(id) else { return };
        session.may_have_paths(share, offers);
        let calls = u8::from(offers);
        self.emit_control(id, KeyBody { share, calls, reserved: [0; 7] });
        let look_at = self.now + SILENCE_MIN;
        let Some(session) = self.peers.session_mut(id) else { return };
        let span = session.reliable.as_ref().map_or(0, |reliable| reliable.sent.last());
        session.bundle_mut().into_iter().for_each(|bundle| bundle.tell_by(span, look_at));
        self.wake_by(id, look_at);
    }

    /// Whether we know an address of the peer that a rail between hosts can call.
    fn can_add_paths(&self, id: PeerId, link: LinkId) -> bool {
        self.peers.get(id).is_some_and(|peer| {
            peer.reachable || self.rails.can_call(&peer.identity.addresses, link)
        })
    }

    /// The peer wants further paths.
    pub(crate) fn arrive_key(&mut self, link: LinkId, id: PeerId, body: &KeyBody) {
        let now = self.now;
        let can_add = self.can_add_paths(id, link);
        let Some(peer) = self.peers.get_mut(id) else { return };
        let is_lower = self.identity.endpoint.0 < peer.identity.endpoint;
        let Some(session) = peer.session.as_mut() else { return };
        let number = session.id;
        let Some(bundle) = session.bundle_mut() else { return };
        // The lower one adds the paths, unless only the other one can. Both sides decide by what both have told: what they know
        // may change at any time, and if both added paths their calls would cross.
        let theirs = body.calls == 1;
        let adds = can_add && if bundle.offers == theirs { is_lower } else { bundle.offers };
        if bundle.key().is_none() {
            bundle.agree(number, &body.share, is_lower, adds, now);
            self.wake_by(id, now);
        }
    }

    /// Begins an attempt that is due, and ends one that takes too long.
    pub(crate) fn run_joins(&mut self, id: PeerId) {
        let (now, paths_max) = (self.now, self.config.paths_max);
        let closing = self.closing;
        let Some(session) = self.peers.session_mut(id) else { return };
        let rails = session.paths.links().fold(0u64, |rails, link| rails | rail_bit(link));
        let is_in_memory = |link| self.rails.of(link).is_none_or(|rail| rail.same_host_only);
        let is_full = session.paths.links().count() >= paths_max
            || session.paths.control().is_none_or(is_in_memory);
        let Some(bundle) = session.bundle_mut() else { return };
        if let Some(late) = bundle.is_late(now) {
            return self.close_joining(id, late, CallFault::NoAnswer);
        }
        let Some(attempt) = bundle.next_way(now) else { return };
        if is_full || closing {
            bundle.sought.clear();
            return bundle.end_round(now);
        }
        bundle.ask();
        self.outputs.push(Output::Join { peer: id, attempt, rails });
    }

    /// The driver began a link, as `Output::Join` asked: over the `attempt`-th address.
    pub fn joining(&mut self, peer: PeerId, link: LinkId, attempt: u32) {
        let id = self.resolve(peer);
        if let Some(former) = self.links.in_slot_of(link) {
            // The rail's last word about it is on the way.
            self.link_down(former, Fault::Closed);
        }
        let nonce = self.random.next_u64() as u32;
        let state = Link {
            outbound: true,
            stage: LinkStage::Opening,
            joins: Some(id),
            ..Link::new(None, nonce)
        };
        self.links.insert(link, state);
        let now = self.now;
        let Some(bundle) = self.bundle_mut(id) else { return self.close_link(link) };
        bundle.begin(link, attempt, now);
        let due = bundle.due();
        self.wake_by(id, due);
    }

    /// The driver could not begin a link over this rail by this way.
    pub fn not_called(&mut self, peer: PeerId, rail: u8, attempt: u32) {
        let (id, now) = (self.resolve(peer), self.now);
        if let Some(bundle) = self.bundle_mut(id) {
            bundle.sought.begin(rail, attempt, now);
            bundle.sought.fail(rail, CallFault::NotCalled);
            bundle.calm(now);
        }
    }

    /// No way is left to try.
    pub fn no_way_to_join(&mut self, peer: PeerId) {
        let (id, now) = (self.resolve(peer), self.now);
        if self.machine(id).is_none() {
            self.end_early_loads(id, Outcome::Refused(Rule::NoAlternate));
        }
        let Some(bundle) = self.bundle_mut(id) else { return };
        bundle.end_round(now);
        let due = bundle.due();
        self.wake_by(id, due);
    }

    /// Somebody called us for one more path of a session.
    pub(super) fn asked_to_join(&mut self, link: LinkId, hello: &HelloBody) {
        let Some(id) = self.wanted_by(link, hello) else {
            self.refuse_link(link, Refusal::Duplicate);
            return self.wake_for(link, hello);
        };
        if self.note_unprotected(link) {
            return self.refuse_link(link, Refusal::Untrusted);
        }
        let Some(state) = self.links.get_mut(link) else { return };
        (state.stage, state.joins) = (LinkStage::Agreed, Some(id));
        self.greet(link, FLAG_ANSWER | FLAG_JOIN, Refusal::None);
        self.emit_proof(link, id, (PathId::FIRST, 0));
    }

    /// The peer whose session may have this link as one more path.
    fn wanted_by(&mut self, link: LinkId, hello: &HelloBody) -> Option<PeerId> {
        let id = self.peers.of_endpoint(u128::from_le_bytes(hello.endpoint))?;
        self.end_if_revoked(id);
        let theirs = self.links.get(link)?.theirs?;
        let peer = self.peers.get(id)?;
        let session = peer.session.as_ref()?;
        let has_key = session.bundle().is_some_and(|bundle| bundle.key().is_some());
        // A path whose link the caller has lost, and we not yet, gets its new link over the same rail.
        let others = session.paths.links().filter(|other| other.rail != link.rail).count();
        let has_room = others < self.config.paths_max && session.paths.is_up();
        let wanted = is_same_life(peer, hello) && session.id == theirs && has_key && has_room;
        (wanted && !self.is_lossy(link) && !self.closing).then_some(id)
    }

    /// The peer answered our call for one more path.
    pub(super) fn join_answered(&mut self, link: LinkId, id: PeerId, hello: &HelloBody) {
        let Some(state) = self.links.get_mut(link) else { return };
        let same_session = state.ours.is_some() && state.ours == state.theirs;
        let same_peer = self.peers.get(id).is_some_and(|peer| is_same_life(peer, hello));
        if hello.refusal != Refusal::None as u8 || !same_session || !same_peer {
            return self.close_joining(id, link, CallFault::TurnedDown);
        }
        if self.note_unprotected(link) {
            return self.close_joining(id, link, CallFault::TurnedDown);
        }
        let Some(state) = self.links.get_mut(link) else { return };
        // Its proof follows.
        state.stage = LinkStage::Agreed;
    }

    /// The proof of the other side of a joining link.
    pub(crate) fn arrive_join(
        &mut self,
        link: LinkId,
        prefix: &Prefix,
        body: &JoinBody,
    ) -> Placement {
        let Some(state) = self.links.get(link) else { return Placement::Drop };
        if let (None, Some(id)) = (state.joins, state.peer) {
            return self.arrive_carrying_proof(link, self.resolve(id), prefix, body);
        }
        let Some(id) = state.joins.filter(|_| state.stage == LinkStage::Agreed) else {
            return self.violation("an unexpected proof");
        };
        let outbound = state.outbound;
        if self.end_if_revoked(id) {
            self.close_link(link);
            return Placement::Drop;
        }
        let prover = if outbound { Prover::Acceptor } else { Prover::Caller };
        let (their_rail, entropy) = (body.rail, body.entropy.get());
        let named = (PathId::named(body.path.get()), body.counter.get());
        let claim = self.claim(link, id, prover, (body.rail, entropy), named);
        let session = self.peers.session(id).filter(|it| it.is_named(prefix.session.get()));
        let key = session.and_then(|session| session.key());
        let shown = claim.zip(key).filter(|(claim, key)| key.holds(claim, &body.proof));
        let Some((claim, key)) = shown.map(|(claim, key)| (claim, key.clone())) else {
            // Not a word of it is believed, nor that it has to do with the session that it names.
            self.counters.joins_refused += 1;
            self.close_joining(id, link, CallFault::TurnedDown);
            return Placement::Drop;
        };
        let is_apart = !outbound && self.is_apart(id, link, named.0, entropy);
        let Some(session) = self.peers.session_mut(id) else { return Placement::Drop };
        let named = match outbound {
            // It has come to rest since this call began.
            _ if session.paths.is_resting() => None,
            true => session.name_path(link),
            false => session.take_path(link, named, is_apart),
        };
        let Some(named) = named else {
            self.close_joining(id, link, CallFault::TurnedDown);
            return Placement::Drop;
        };
        if let Some(state) = self.links.get_mut(link) {
            state.their_rail = Some(their_rail);
            if !outbound {
                state.entropy = entropy;
            }
        }
        if !outbound {
            self.seal_link(link, &key, &claim, body.salt);
        }
        // Our rail knows the regions of this peer before it can ask for them over this link, and nobody else's.
        self.expose_existing(id, link);
        if outbound {
            self.emit_proof(link, id, named);
            if let Some(state) = self.links.get_mut(link) {
                state.proven = Some(named.0);
            }
            return Placement::Drop;
        }
        // Before anything that joining sends: until it is welcome, the other side takes nothing else.
        self.emit_probe(id, link, true);
        self.join(id, link, named.0);
        Placement::Drop
    }

    /// The accepting side welcomes a link of ours.
    pub(crate) fn arrive_welcome(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
    ) -> Placement {
        let proven = self.links.get(link).and_then(|state| state.proven);
        let ours = self.peers.has_session(id, prefix.session.get());
        let Some(path) = proven.filter(|_| ours) else {
            return self.violation("an unexpected welcome");
        };
        let now = self.now;
        if let Some(bundle) = self.bundle_mut(id) {
            bundle.end(link, true, now);
        }
        self.join(id, link, path);
        Placement::Drop
    }

    /// Both sides have proven that a link belongs to the session with a peer.
    fn join(&mut self, id: PeerId, link: LinkId, path: PathId) {
        if self.lacks_seal(link) {
            return self.close_joining(id, link, CallFault::TurnedDown);
        }
        self.links.set_peer(link, id);
        let Some(state) = self.links.get_mut(link) else { return };
        (state.stage, state.joins, state.traffic_seen) = (LinkStage::Up, None, u64::MAX);
        state.proven = None;
        self.links.begin_carrying(link);
        let now = self.now;
        let Some(session) = self.peers.session_mut(id) else { return };
        let before = session.join(path, link, &mut self.routes.controllers, now);
        if session.paths.are_several() {
            session.paths.links().for_each(|link| self.outputs.push(Output::Tune { link }));
        }
        self.counters.paths_joined += 1;
        self.note_joined(id, link);
        self.note_resumed(id);
        if let Some(before) = before {
            self.close_link(before);
            self.redirect_spans(id, before);
        }
        self.begin_parts(id);
        self.begin_lengths(id);
        let due = self.peers.get(id).map_or(Time::NEVER, Peer::due);
        self.wake_by(id, due);
        self.path_joined(id, crate::apm::PathId(path.name()));
        self.pump(id);
        self.pull_over(id);
        self.close_surplus();
    }

    /// A joining link is of no use.
    fn close_joining(&mut self, id: PeerId, link: LinkId, fault: CallFault) {
        self.close_link(link);
        self.joining_down(id, link, fault);
    }

    /// A joining link of ours is there: we have greeted.
    pub(super) fn joining_up(&mut self, id: PeerId, link: LinkId) {
        let now = self.now;
        let Some(bundle) = self.bundle_mut(id) else { return };
        bundle.note_up(link, now);
        let due = bundle.due();
        self.wake_by(id, due);
    }

    /// A joining link is gone.
    pub(super) fn joining_down(&mut self, id: PeerId, link: LinkId, fault: CallFault) {
        let now = self.now;
        let Some(bundle) = self.bundle_mut(id) else { return };
        bundle.fail(link, fault, now);
        let due = bundle.due();
        self.wake_by(id, due);
    }

    /// Whether a link that is to be a path of the peer's session has a source port that no other one over this rail has, and
    /// the session may have one more.
    fn is_apart(&self, id: PeerId, link: LinkId, path: PathId, entropy: u16) -> bool {
        let Some(session) = self.peers.session(id) else { return false };
        let others = || {
            let views = session.paths.views();
            views.filter(|view| view.path.0 != path.name()).filter_map(|view| view.link)
        };
        let label = |other: LinkId| self.links.get(other).map_or(0, |state| state.entropy);
        let has_room = others().count() < self.config.paths_max;
        let is_same = |other: LinkId| other.rail == link.rail && label(other) == entropy;
        entropy != 0 && has_room && !others().any(is_same)
    }

    /// What a proof of this side is about.
    pub(super) fn claim(
        &self,
        link: LinkId,
        id: PeerId,
        prover: Prover,
        (rail, entropy): (u8, u16),
        (path, counter): Named,
    ) -> Option<Claim> {
        let session = self.peers.session(id)?.id;
        self.claim_in(session, link, prover, (rail, entropy), (path.name(), counter))
    }

    /// As [`Core::claim`], of a session that may not have begun.
    pub(super) fn claim_in(
        &self,
        session: SessionId,
        link: LinkId,
        prover: Prover,
        (rail, entropy): (u8, u16),
        (path, counter): (u32, u32),
    ) -> Option<Claim> {
        let state = self.links.get(link)?;
        let (ours, theirs) = (state.nonce, state.hello?.nonce.get());
        let (caller_nonce, acceptor_nonce) =
            if state.outbound { (ours, theirs) } else { (theirs, ours) };
        let modes = self.modes_told(link);
        Some(Claim {
            prover,
            session,
            caller_nonce,
            acceptor_nonce,
            path,
            counter,
            rail,
            entropy,
            modes,
        })
    }

    fn emit_proof(&mut self, link: LinkId, id: PeerId, named: Named) {
        let outbound = self.links.get(link).is_some_and(|state| state.outbound);
        self.emit_proof_as(
            link,
            id,
            if outbound { Prover::Caller } else { Prover::Acceptor },
            named,
        );
    }

    pub(super) fn emit_proof_as(&mut self, link: LinkId, id: PeerId, prover: Prover, named: Named) {
        let joins = prover == Prover::Caller;
        let is_caller = joins || prover == Prover::CarryingCaller;
        let entropy = if joins { self.rails.label(link.rail).entropy } else { 0 };
        let Some(claim) = self.claim(link, id, prover, (link.rail, entropy), named) else { return };
        if let Some(state) = self.links.get_mut(link).filter(|_| joins) {
            state.entropy = entropy;
        }
        let salt = if is_caller { self.salt(link) } else { [0; 4] };
        let Some(session) = self.peers.session(id) else { return };
        let Some(key) = session.key().cloned() else { return };
        let name = session.name();
        let body = JoinBody {
            path: named.0.name().into(),
            counter: named.1.into(),
            rail: link.rail,
            reserved: 0,
            entropy: entropy.into(),
            salt,
            proof: key.prove(&claim),
        };
        let envelope = Envelope { session: name, ..Envelope::default() };
        self.emit_on(link, envelope, &Body::Join(body), None, Token::NONE);
        if is_caller {
            self.seal_link(link, &key, &claim, salt);
        }
    }

    fn bundle_mut(&mut self, id: PeerId) -> Option<&mut Bundle> {
        self.peers.session_mut(id)?.bundle_mut()
    }
}

fn rail_bit(link: LinkId) -> u64 {
    1u64.checked_shl(link.rail.into()).unwrap_or(0)
}

fn is_same_life(peer: &Peer, hello: &HelloBody) -> bool {
    let endpoint = u128::from_le_bytes(hello.endpoint);
    peer.identity.endpoint == endpoint && peer.identity.incarnation.0 == hello.incarnation.get()
}

#[cfg(test)]
pub(super) mod tests;
