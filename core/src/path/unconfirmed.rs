//! A call that was accepted, and whose link was lost before its confirmation came.
//!
//! Its caller has begun the session, and perhaps sent over it: all of that was lost with the link. So the session is not over
//! for the caller, and it names it when it calls again. The accepting side remembers what both sides said in their
//! greetings, and begins that session when a link of the two names it. Without that the caller's session would end, though
//! nobody but its link died.
//!
//! Invariant: a peer's record with a session remembers no such call.

use ropewalk_base::verb::LinkId;
use ropewalk_wire::frame::{HelloBody, MODE_PATHS};

use super::{Link, LinkStage, Peer};
use crate::api::{Mode, Output, PeerId};
use crate::credit::Windows;
use crate::engine::Core;
use crate::session::SessionId;

/// Both sides' greetings on a link that was lost.
#[derive(Debug)]
pub(crate) struct Unconfirmed {
    nonce: u32,
    mode: u8,
    windows: Windows,
    hello: HelloBody,
}

impl Unconfirmed {
    /// The session that the caller has begun.
    pub fn session(&self) -> SessionId {
        SessionId::agreed(self.nonce, self.hello.nonce.get())
    }

    /// Whether a greeting is from the life of the peer that called.
    pub fn is_of(&self, hello: Option<&HelloBody>) -> bool {
        hello.is_none_or(|it| {
            it.incarnation.get() == self.hello.incarnation.get()
                && it.endpoint == self.hello.endpoint
        })
    }
}

impl Core {
    /// A link is lost that its caller may have confirmed.
    pub(super) fn note_unconfirmed(&mut self, id: PeerId, link: LinkId, state: &Link) {
        let Some(call) = self.unconfirmed_call(link, state) else { return };
        if let Some(peer) = self.peers.get_mut(id).filter(|peer| peer.session.is_none()) {
            peer.unconfirmed = Some(Box::new(call));
        }
    }

    /// The call over a link, if its caller may have begun a session that outlives the link.
    fn unconfirmed_call(&self, link: LinkId, state: &Link) -> Option<Unconfirmed> {
        let agreed = state.stage == LinkStage::Agreed && !state.outbound && state.joins.is_none();
        // One that has a key ends with the link: it was not proven that the caller has it, too.
        let agreed = agreed && state.trust.is_none();
        let hello = state.hello.filter(|_| agreed && state.goes_on_with().is_none())?;
        let takes_paths = state.mode & hello.mode & MODE_PATHS != 0;
        let outlives_links = takes_paths || self.config.mode == Mode::Resume;
        let (nonce, mode, windows) = (state.nonce, state.mode, state.windows);
        let call = Unconfirmed { nonce, mode, windows, hello };
        (outlives_links && !self.is_lossy(link)).then_some(call)
    }

    /// The peer calls, and names a session that it has begun over another link: that one is lost, though nobody has told us.
    pub(super) fn lose_named(&mut self, id: PeerId, link: LinkId) {
        if let Some(theirs) = self.links.get(link).and_then(|state| state.theirs) {
            self.lose_unconfirmed(id, |other, session| other != link && session == theirs);
        }
    }

    /// We insist on a call, since nothing comes over the links by which the peer has called: those are lost. It may have begun a
    /// session over one of them, which our call names.
    pub(super) fn lose_agreed(&mut self, id: PeerId) {
        self.lose_unconfirmed(id, |_, _| true);
    }

    fn lose_unconfirmed(&mut self, id: PeerId, is_lost: impl Fn(LinkId, SessionId) -> bool) {
        if self.peers.session(id).is_some() {
            return;
        }
        let call = |link: LinkId| {
            let call = self.unconfirmed_call(link, self.links.get(link)?)?;
            is_lost(link, call.session()).then_some((link, call))
        };
        let mut calls: Vec<_> = self.links.of_peer(id).into_iter().filter_map(call).collect();
        // The last one that was agreed to is the one in which a session may have begun.
        calls.sort_by_key(|(link, _)| self.links.get(*link).map_or(0, |state| state.agreed));
        for (link, call) in calls {
            self.close_link(link);
            self.outputs.push(Output::Abandon { link });
            if let Some(peer) = self.peers.get_mut(id) {
                peer.unconfirmed = Some(Box::new(call));
            }
        }
    }

    /// A session begins, or goes on, over a link. True if it is the one of a call that was never confirmed: it begins as both
    /// sides agreed then. Other such calls are forgotten.
    pub(crate) fn recall_unconfirmed(&mut self, id: PeerId, link: LinkId) -> bool {
        let Some(peer) = self.peers.get_mut(id) else { return false };
        let Some(call) = peer.unconfirmed.take().filter(|_| peer.session.is_none()) else {
            return false;
        };
        let lossy = self.rails.is_lossy(link);
        let Some(state) = self.links.get_mut(link).filter(|_| !lossy) else { return false };
        let is_that = state.goes_on_with() == Some(call.session());
        if is_that && call.is_of(state.hello.as_ref()) {
            let Unconfirmed { nonce, mode, windows, hello } = *call;
            (state.nonce, state.mode, state.windows) = (nonce, mode, windows);
            state.hello = Some(hello);
            return true;
        }
        false
    }
}

impl Peer {
    /// The session of a call of the peer's that it may have confirmed in vain. `hello`: its greeting on the link on which it
    /// would be told, if it is there.
    pub(super) fn unconfirmed(&self, hello: Option<&HelloBody>) -> Option<SessionId> {
        let call = self.unconfirmed.as_ref().filter(|_| self.session.is_none())?;
        call.is_of(hello).then(|| call.session())
    }
}
