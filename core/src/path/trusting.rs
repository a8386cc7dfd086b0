//! Greetings of an endpoint that has keys: a session begins only with a peer that has proven itself.
//!
//! The caller's greeting carries a block behind its addresses, and so does the answer; `ropewalk_auth` makes and judges them.
//! Both sides then have a key. The caller's first block may be an old one that somebody sends again, so the caller proves
//! in place of `Confirm` that it has the key. The session has this key from its beginning: further paths, and links that
//! carry it on, prove themselves under it, and need no block.
//!
//! Invariants: nothing is kept of a caller whose block is not good; who answers is identified by a good block alone, or by
//! the proof of a session that goes on; the record of an endpoint belongs to one node.

use std::hash::BuildHasher;
use std::sync::Arc;

use ropewalk_auth::{Calling, Guard, Heard, NodeName, Proven, Untrusted};
use ropewalk_base::memory::Slice;
use ropewalk_base::verb::{FrameOrder, Header, LinkId, Placement, Token, Urgency};
use ropewalk_wire::frame::{
    self, Body, Envelope, FLAG_ANSWER, FLAG_JOIN, FLAG_PAYLOAD_CHECKSUM, HelloBody, JoinBody,
    Prefix, Refusal,
};
use zerocopy::IntoBytes;

use super::answers::Answers;
use super::carrying::CarryingProof;
use super::revoking::Review;
use super::{Link, LinkStage};
use crate::api::{Output, PeerId};
use crate::engine::Core;
use crate::orders::{Order, Orders};
use crate::session::{Claim, Key, Prover, SessionId};

/// The guard of an endpoint with keys, and its own addresses.
pub(crate) struct Trust {
    pub(super) guard: Arc<Guard>,
    /// The text of our addresses, which greetings are about.
    addresses: Vec<u8>,
    answers: Answers,
    pub(super) review: Review,
}

/// How far both sides of a link have proven that they have keys.
#[derive(Debug)]
pub(crate) enum LinkTrust {
    /// The block of the peer's greeting, not judged yet.
    Told(Vec<u8>),
    /// We called.
    Called(Calling),
    /// The peer called; our answer is still to come.
    Heard(Heard),
    /// Both blocks are good.
    Proven(Proven),
}

/// The node that a peer has proven to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ProvenNode {
    /// It has the cluster's key, which has no name.
    Member,
    Named(NodeName),
}

/// The side that answered our call, as far as its answer proves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answerer {
    /// The peer has proven itself, or we ask for no proof.
    Known,
    /// It refuses us, and proves nothing.
    Stranger,
    /// It says that its proof follows, for a session that we have with it.
    Follows,
    /// It proves nothing, or something wrong.
    Untrusted,
}

impl Core {
    /// Sessions begin only with peers that prove themselves to this guard. `addresses`: the text of the greeting.
    #[must_use]
    pub fn with_guard(mut self, guard: Arc<Guard>, addresses: Vec<u8>) -> Core {
        assert_eq!(addresses.len() as u64, self.greeting.len, "the text of the greeting");
        let (answers, review) = (Answers::new(), Review::new(guard.changes()));
        self.trust = Some(Box::new(Trust { guard, addresses, answers, review }));
        self
    }

    /// Why a peer was not believed last.
    pub fn last_untrusted(&self) -> Option<Untrusted> {
        self.trust.as_ref()?.guard.refused().1
    }

    pub(super) fn note_untrusted(&mut self, why: Untrusted) {
        self.counters.untrusted += 1;
        if let Some(trust) = &self.trust {
            trust.guard.note(why);
        }
    }

    /// The block that goes with a greeting of ours, where one is due. `Err`: none can be made.
    pub(super) fn block_for(
        &mut self,
        link: LinkId,
        (flags, session): (u16, u32),
        hello: &HelloBody,
    ) -> Result<Vec<u8>, Untrusted> {
        let Some(trust) = &self.trust else { return Ok(Vec::new()) };
        let Some(state) = self.links.get_mut(link) else { return Ok(Vec::new()) };
        if flags & FLAG_JOIN != 0 {
            // The session's key proves it.
            state.trust = None;
            return Ok(Vec::new());
        }
        let said = said(flags, session, hello, &trust.addresses);
        if flags & FLAG_ANSWER == 0 {
            let peer = state.peer.and_then(|id| self.peers.get(id));
            let identity = peer.map(|peer| &peer.identity);
            let known = identity.and_then(|it| it.node()).and_then(ProvenNode::name);
            let node = identity.and_then(|it| it.wanted()).or(known);
            let (block, calling) = trust.guard.call(node, &said)?;
            state.trust = Some(Box::new(LinkTrust::Called(calling)));
            return Ok(block);
        }
        // A refusal proves who refuses, where we have heard who calls.
        match state.trust.take().map(|it| *it) {
            Some(LinkTrust::Heard(heard)) => {
                let (block, proven) = trust.guard.reply(heard, &said)?;
                state.trust = Some(Box::new(LinkTrust::Proven(proven)));
                if hello.refusal == Refusal::None as u8 {
                    state.proof = CarryingProof::Demanded;
                }
                Ok(block)
            }
            _ => Ok(Vec::new()),
        }
    }

    /// A greeting with a block leaves: the driver has to put its payload somewhere first.
    pub(super) fn greet_with(
        &mut self,
        link: LinkId,
        envelope: Envelope,
        body: HelloBody,
        block: &[u8],
    ) {
        let addresses = self.trust.as_ref().map_or(&[][..], |trust| &trust.addresses);
        let payload = [addresses, block].concat();
        let envelope = Envelope { payload_bytes: payload.len() as u32, ..envelope };
        let header = frame::encode(envelope, &Body::Hello(body));
        self.outputs.push(Output::Greet { link, header: Box::new(header), payload });
    }

    /// The driver has put a greeting's payload into a buffer of its own, which it gives up at `Release`. The frame is for
    /// its rail at once, since the end of the link may follow in the queue.
    pub fn greeting_staged(
        &mut self,
        link: LinkId,
        header: Header,
        slice: Option<Slice>,
    ) -> Option<FrameOrder> {
        let Some(payload) = slice else {
            self.close_link(link);
            return None;
        };
        match self.orders.insert(Order::Greeting { buffer: payload.buffer }, link) {
            Ok(slot) => {
                let (urgency, token) = (Urgency::Urgent, Orders::token(slot));
                Some(FrameOrder { link, header, payload, urgency, token })
            }
            Err(order) => {
                self.order_ended(order, Ok(()));
                self.close_link(link);
                None
            }
        }
    }

    /// Notes what a peer's greeting says beside its addresses.
    pub(super) fn note_block(&mut self, link: LinkId, block: &[u8]) {
        let Some(state) = self.links.get_mut(link) else { return };
        if !block.is_empty() && !state.outbound {
            state.trust = Some(Box::new(LinkTrust::Told(block.to_vec())));
        }
    }

    /// Whether a caller has the key that it needs; `Err`: what it is told.
    pub(super) fn hears(&mut self, link: LinkId, hello: &HelloBody) -> Result<(), Refusal> {
        let now = self.now;
        let Some(state) = self.links.get_mut(link) else { return Err(Refusal::Untrusted) };
        let block = match state.trust.take().map(|it| *it) {
            Some(LinkTrust::Told(block)) => block,
            Some(judged) => {
                state.trust = Some(Box::new(judged));
                return Ok(());
            }
            None => Vec::new(),
        };
        let told = state.told.as_ref().map_or(&[][..], |told| &told.0);
        let session = state.theirs.map_or(0, SessionId::name);
        let said = said(state.their_flags, session, hello, told);
        let Some(trust) = &mut self.trust else {
            if block.is_empty() {
                return Ok(());
            }
            // It wants a proof that we cannot give.
            self.counters.untrusted += 1;
            return Err(Refusal::Untrusted);
        };
        let Trust { guard, answers, .. } = &mut **trust;
        match guard.hear_if(&block, &said, || answers.take(state.source, now)) {
            Ok(heard) => {
                state.trust = Some(Box::new(LinkTrust::Heard(heard)));
                Ok(())
            }
            Err(why) => {
                self.note_untrusted(why);
                // It may call again where it only came too early.
                let again = why == Untrusted::TooMany;
                Err(if again { Refusal::Duplicate } else { Refusal::Untrusted })
            }
        }
    }

    /// Whether the record of an endpoint may be that of the node which calls: no node takes another one's place.
    pub(super) fn may_be(&self, id: PeerId, link: LinkId) -> bool {
        if self.trust.is_none() {
            return true;
        }
        let known = self.peers.get(id).and_then(|peer| peer.identity.node());
        let shown = self.links.get(link).and_then(Link::node);
        shown.is_none() || (known.is_none() || known == shown.as_ref()) && self.is_wanted(id, link)
    }

    /// Whether the node that has shown itself over a link is the one that a peer's address names, if it names one.
    pub(super) fn is_wanted(&self, id: PeerId, link: LinkId) -> bool {
        let wanted = self.peers.get(id).and_then(|peer| peer.identity.wanted());
        let shown = self.links.get(link).and_then(Link::node);
        wanted.is_none() || wanted == shown.as_ref().and_then(ProvenNode::name)
    }

    /// Whether we are the node that a peer's address names, if it names one.
    pub(super) fn are_wanted(&self, id: PeerId) -> bool {
        let wanted = self.peers.get(id).and_then(|peer| peer.identity.wanted());
        let is_ours = |wanted| self.trust.as_ref().is_some_and(|trust| trust.guard.is_node(wanted));
        wanted.is_none_or(is_ours)
    }

    /// This name of a peer stands for this node alone: no other one is let in by its address.
    pub fn want_node(&mut self, name: PeerId, node: NodeName) {
        if let Some(peer) = self.peers.get_mut(name) {
            peer.identity.notes.get_or_insert_default().wanted = Some(node);
        }
    }

    /// The node that a peer has proven to be, if it has a name.
    pub fn peer_node(&self, id: PeerId) -> Option<&NodeName> {
        self.peers.get(self.resolve(id))?.identity.node()?.name()
    }

    /// The host from which the caller of an accepted link comes: answers that are followed by no proof are counted by hosts.
    pub fn came_from(&mut self, link: LinkId, host: &[u8]) {
        let source = self.peers.hash().hash_one(host) as u8;
        if let Some(state) = self.links.get_mut(link) {
            state.source = source;
        }
    }

    /// A caller has proven itself: our answer to it does not count any more.
    pub(super) fn note_proven(&mut self, link: LinkId) {
        let source = self.links.get(link).map_or(0, |state| state.source);
        if let Some(trust) = &mut self.trust {
            trust.answers.give_back(source);
        }
    }

    /// Why the answer to our call does not count, if it does not: its sender proves too little, or is not whom we meant.
    pub(super) fn doubts(
        &mut self,
        asked: PeerId,
        link: LinkId,
        hello: &HelloBody,
        payload: &[u8],
    ) -> Option<Refusal> {
        match self.judge_answer(link, hello, payload) {
            Answerer::Stranger => return Some(Refusal::from_u8(hello.refusal)),
            Answerer::Follows if self.is_same_endpoint(asked, hello) => return None,
            Answerer::Follows | Answerer::Untrusted => return Some(Refusal::Untrusted),
            Answerer::Known => {}
        }
        let is_ourselves = hello.endpoint == self.identity.endpoint.0.to_le_bytes();
        if is_ourselves || self.is_wanted(asked, link) {
            return None;
        }
        self.note_untrusted(Untrusted::OtherNode);
        Some(Refusal::Untrusted)
    }

    /// Judges the answer to our call: its block, behind the addresses in `payload`.
    fn judge_answer(&mut self, link: LinkId, hello: &HelloBody, payload: &[u8]) -> Answerer {
        let Some(trust) = &self.trust else { return Answerer::Known };
        let Some(state) = self.links.get_mut(link) else { return Answerer::Untrusted };
        let Some((addresses, block)) = payload.split_at_checked(hello.address_bytes.get().into())
        else {
            return Answerer::Untrusted;
        };
        let calling = state.trust.take().map(|it| *it);
        if block.is_empty() && hello.refusal != Refusal::None as u8 {
            return Answerer::Stranger;
        }
        if block.is_empty() && state.proof == CarryingProof::Follows {
            return Answerer::Follows;
        }
        let session = state.theirs.map_or(0, SessionId::name);
        let said = said(state.their_flags, session, hello, addresses);
        let judged = match calling {
            Some(LinkTrust::Called(calling)) => trust.guard.answered(calling, block, &said),
            _ => Err(Untrusted::Malformed),
        };
        match judged {
            Ok(proven) => {
                // A block and the promise of a session's proof do not go together.
                state.proof = CarryingProof::None;
                state.trust = Some(Box::new(LinkTrust::Proven(proven)));
                Answerer::Known
            }
            Err(why) => {
                self.note_untrusted(why);
                Answerer::Untrusted
            }
        }
    }

    /// Whether an answer whose proof follows comes from the peer that we called, as far as it says.
    fn is_same_endpoint(&self, asked: PeerId, hello: &HelloBody) -> bool {
        let endpoint = u128::from_le_bytes(hello.endpoint);
        let peer = self.peers.get(asked).filter(|peer| peer.identity.endpoint == endpoint);
        peer.and_then(|peer| peer.session.as_ref()).is_some_and(|session| session.key().is_some())
    }

    /// Whether a session may begin over a link: both sides have the key, or we ask for none.
    pub(super) fn may_begin(&self, link: LinkId) -> bool {
        let state = self.links.get(link);
        self.trust.is_none() || state.is_some_and(|state| state.proven().is_some())
    }

    /// The claim that the caller proves in place of `Confirm`, and the key of the proof.
    fn beginning(&self, link: LinkId, rail: u8) -> Option<(Claim, Key)> {
        let state = self.links.get(link)?;
        let (ours, theirs) = (state.nonce, state.hello?.nonce.get());
        let session = SessionId::agreed(ours, theirs);
        let claim = self.claim_in(session, link, Prover::BeginningCaller, (rail, 0), (0, 0))?;
        Some((claim, Key::proven(session, state.proven()?.key.bytes())))
    }

    /// Our proof in place of `Confirm`, where the link has a key of its own. False where it has none.
    pub(super) fn emit_beginning(&mut self, link: LinkId) -> bool {
        let Some((claim, key)) = self.beginning(link, link.rail) else { return false };
        let salt = self.salt(link);
        let body = JoinBody {
            path: 0.into(),
            counter: 0.into(),
            rail: link.rail,
            reserved: 0,
            entropy: 0.into(),
            salt,
            proof: key.prove(&claim),
        };
        let envelope = Envelope { session: claim.session.name(), ..Envelope::default() };
        self.emit_on(link, envelope, &Body::Join(body), None, Token::NONE);
        self.seal_link(link, &key, &claim, salt);
        true
    }

    /// The caller's proof in place of `Confirm`: the session begins.
    pub(super) fn arrive_beginning(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        body: &JoinBody,
    ) -> Placement {
        let Some(state) = self.links.get(link) else { return Placement::Drop };
        let awaits = state.stage == LinkStage::Agreed && !state.outbound;
        if !awaits && self.is_lossy(link) {
            // It came again: what we answered to the first one was lost.
            if self.peers.session(id).is_some_and(|session| session.paths.is_up_over(link)) {
                self.acknowledge_now(id);
            }
            return Placement::Drop;
        }
        if !awaits {
            return self.violation("an unexpected proof");
        }
        let shown = self.beginning(link, body.rail).filter(|(claim, key)| {
            claim.session.name() == prefix.session.get() && key.holds(claim, &body.proof)
        });
        let Some((claim, key)) = shown else {
            self.note_untrusted(Untrusted::WrongKey);
            self.close_link(link);
            return Placement::Drop;
        };
        if let Some(state) = self.links.get_mut(link) {
            state.proof = CarryingProof::None;
        }
        self.note_proven(link);
        if !self.stands(link) {
            self.close_link(link);
            return Placement::Drop;
        }
        if !self.may_be(id, link) {
            // Another node has proven this endpoint meanwhile.
            self.note_untrusted(Untrusted::OtherNode);
            self.close_link(link);
            return Placement::Drop;
        }
        self.seal_link(link, &key, &claim, body.salt);
        self.expose_existing(id, link);
        self.begin_session(id, link);
        Placement::Drop
    }

    /// A session began over a link: it has the link's key, and its peer is the node that has proven it.
    pub(crate) fn take_proven(&mut self, id: PeerId, link: LinkId) {
        let Some((claim, key)) = self.beginning(link, link.rail) else { return };
        let node = self.links.get(link).and_then(Link::node);
        let Some(peer) = self.peers.get_mut(id) else { return };
        peer.identity.set_node(node);
        let standing = self.links.get(link).and_then(Link::proven).and_then(|it| it.standing);
        peer.identity.set_standing(standing);
        self.watch_standing(standing);
        let Some(peer) = self.peers.get_mut(id) else { return };
        if let Some(session) = peer.session.as_mut() {
            debug_assert_eq!(session.id, claim.session, "the session of this link's greetings");
            session.set_proven(key);
        }
    }
}

impl ProvenNode {
    fn name(&self) -> Option<&NodeName> {
        match self {
            ProvenNode::Member => None,
            ProvenNode::Named(name) => Some(name),
        }
    }
}

impl From<Option<&NodeName>> for ProvenNode {
    fn from(name: Option<&NodeName>) -> ProvenNode {
        name.map_or(ProvenNode::Member, |name| ProvenNode::Named(name.clone()))
    }
}

impl Link {
    /// The proof of both sides on it, where that is for a session that begins over it.
    pub(super) fn proven(&self) -> Option<&Proven> {
        match self.trust.as_deref()? {
            LinkTrust::Proven(proven) => Some(proven),
            _ => None,
        }
    }

    /// The node that the peer has shown to be; `None`: it has shown nothing.
    fn node(&self) -> Option<ProvenNode> {
        match self.trust.as_deref()? {
            LinkTrust::Proven(proven) => Some(proven.node.as_ref().into()),
            LinkTrust::Heard(heard) => Some(heard.node().into()),
            LinkTrust::Told(_) | LinkTrust::Called(_) => None,
        }
    }
}

/// All that a greeting says, as both sides see it. A rail's driver may add a checksum, and says so in the flags.
fn said(flags: u16, session: u32, hello: &HelloBody, addresses: &[u8]) -> Vec<u8> {
    let flags = flags & !FLAG_PAYLOAD_CHECKSUM;
    [&flags.to_le_bytes()[..], &session.to_le_bytes(), hello.as_bytes(), addresses].concat()
}
