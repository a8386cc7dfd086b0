//! Attempts to reach a peer: when one is wanted, which address comes next, and when it is given up.

use ropewalk_base::error::Fault;
use ropewalk_base::time::Time;
use ropewalk_base::verb::LinkId;

use super::calls::INSIST_FROM;
use super::{CallStage, Link, LinkStage, Peer};
use crate::api::{Output, PeerId, *};
use crate::engine::Core;
use crate::operation::{Kind, ReceiveStage};

/// The next attempt of a connect for which there was no descriptor.
const ROOM_AGAIN: std::time::Duration = std::time::Duration::from_millis(50);

impl Core {
    /// Makes sure that a peer is being connected to.
    pub fn want_session(&mut self, id: PeerId) {
        let id = self.resolve(id);
        let Some(peer) = self.peers.get(id) else { return };
        if !peer.is_idle_or_rests() {
            return;
        }
        if peer.session.as_ref().is_some_and(|session| session.reliable.is_some()) {
            return self.wake(id);
        }
        if peer.reachable || !peer.identity.addresses.is_empty() {
            self.connect_next(id, 0);
        } else {
            self.end_session(id, Fault::Unreachable);
        }
    }

    /// Tries the address of this attempt. Attempts that insist number from `INSIST_FROM` on.
    pub(crate) fn connect_next(&mut self, id: PeerId, attempt: u32) {
        if let Some(peer) = self.peers.get_mut(id) {
            peer.calls.begin(attempt);
            let attempt = attempt % INSIST_FROM;
            self.outputs.push(Output::Connect { peer: id, attempt });
        }
    }

    /// Connects to a peer for which something waits.
    pub(crate) fn connect_if_needed(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        let session = peer.session.as_ref();
        if session.is_some_and(|session| !session.paths.is_resting()) {
            return;
        }
        let (rests, waits) = (session.is_some(), !peer.waiting.is_empty());
        peer.calls.end();
        if rests {
            self.become_idle_closed(id);
        }
        if waits || !rests && self.is_awaited(id) {
            self.want_session(id);
        }
    }

    /// Connects to a peer with an idle-closed session, where something waits for it.
    pub(crate) fn want_waiting(&mut self, id: PeerId) {
        if self.peers.get(id).is_some_and(Peer::has_waiting) {
            self.want_session(id);
        }
    }

    /// A receive from this peer alone was posted. A peer that was looked up and has no session is called: it
    /// may be gone, which nobody would notice otherwise. Or it has called us already, under a name that nobody
    /// compared, and what it sends would not be known to come from this peer.
    #[inline]
    pub(crate) fn want_heard(&mut self, id: PeerId, receive: OperationId) {
        if self.peers.get(id).is_some_and(|peer| peer.session.is_none() && peer.reachable)
            && self.awaits_from(receive, id)
        {
            self.want_session(id);
        }
    }

    /// Whether receives from this peer alone wait for a message.
    pub(super) fn is_awaited(&mut self, id: PeerId) -> bool {
        let owned = self.operations.owned_by(id);
        owned.into_iter().any(|owned| self.awaits_from(owned, id))
    }

    /// Whether an operation is a receive that waits for a message from this peer alone.
    fn awaits_from(&self, id: OperationId, peer: PeerId) -> bool {
        let operation = self.operations.get(id).filter(|operation| operation.ending.is_none());
        operation.is_some_and(|operation| match &operation.kind {
            Kind::Receive(state) => {
                let posted = matches!(state.stage, ReceiveStage::Posted { .. });
                posted && state.receive.source == Some(peer)
            }
            _ => false,
        })
    }

    /// The driver began a link to a peer, as `Output::Connect` asked.
    pub fn connecting(&mut self, peer: PeerId, link: LinkId, called: Called) {
        let insist = self.peers.get(peer).is_some_and(|peer| {
            let session = peer.session.as_ref();
            session.is_some_and(|session| session.paths.has_lost())
                || match peer.calls.stage() {
                    CallStage::Connecting { attempt } => attempt >= INSIST_FROM,
                    _ => false,
                }
        });
        if insist {
            self.lose_agreed(peer);
        }
        self.begin_link(peer, link, false, insist);
        let (now, Called { way, is_alone, is_told }) = (self.now, called);
        let is_lost = self.has_lost_paths(peer);
        if let Some(state) = self.links.get_mut(link) {
            state.is_told = is_told || is_lost && !is_alone;
        }
        let Some(state) = self.peers.get_mut(peer) else { return };
        if state.session.as_ref().is_some_and(|session| session.paths.has_lost()) {
            state.calls.retry(way, is_alone, now);
        } else if !is_alone {
            let until = state.calls.hurry(way, now);
            self.wake_by(peer, until);
        }
    }

    /// The driver began a link that shares memory, as `Output::Upgrade` asked.
    pub fn connecting_upgrade(&mut self, peer: PeerId, link: LinkId) {
        self.begin_link(peer, link, true, false);
    }

    fn begin_link(&mut self, peer: PeerId, link: LinkId, upgrade: bool, insist: bool) {
        if self.is_same_foreign(peer, link) {
            return;
        }
        if let Some(former) = self.links.in_slot_of(link) {
            // The rail's last word about it is on the way.
            self.link_down(former, Fault::Closed);
        }
        let nonce = self.random.next_u64() as u32;
        let state = Link { upgrade, insist, ..Link::new(Some(peer), nonce) };
        self.links.insert(link, state);
    }

    /// No way is left to try.
    pub fn unreachable(&mut self, peer: PeerId) {
        let met = self.peers.get(peer).is_some_and(|peer| peer.calls.has_met_strangers_alone());
        if met && self.has_lost_paths(peer) {
            // Nobody answers in its name any more.
            return self.end_session(peer, Fault::PeerReset);
        }
        if let Some(state) = self.peers.get_mut(peer)
            && state.calls.end_round()
            && let CallStage::Connecting { attempt } = state.calls.stage()
        {
            return self.connect_next(peer, attempt / INSIST_FROM * INSIST_FROM);
        }
        if !self.connect_later(peer) {
            let babbled = self.peers.get(peer).is_some_and(|peer| peer.calls.has_babbled());
            let fault = if babbled { Fault::Protocol } else { Fault::Unreachable };
            self.end_session(peer, fault);
        }
    }

    /// An attempt has taken too long: nobody answered our greeting, or others are left to try.
    pub(crate) fn attempt_late(&mut self, id: PeerId, attempt: u32) {
        let now = self.now;
        let is_hurried = self.peers.get_mut(id).is_some_and(|peer| peer.calls.is_hurried(now));
        if !is_hurried {
            return self.greeting_lost(id, attempt);
        }
        self.close_attempts(id);
        self.connect_next(id, attempt + 1);
    }

    /// Nobody answered our greeting in time.
    fn greeting_lost(&mut self, id: PeerId, attempt: u32) {
        let greeted_over = self.peers.get(id).and_then(|peer| peer.calls.greeted_over());
        let lossy = greeted_over.is_some_and(|link| self.is_lossy(link));
        self.close_attempts(id);
        let Some(peer) = self.peers.get_mut(id) else { return };
        let again = peer.calls.lose_greeting(lossy);
        self.connect_next(id, if again { attempt } else { attempt + 1 });
    }

    /// Closes the links that we began to a peer.
    pub(crate) fn close_attempts(&mut self, id: PeerId) {
        for link in self.links.of_peer(id) {
            if self.links.get(link).is_some_and(|state| state.outbound) {
                self.close_link(link);
            }
        }
    }

    /// Tries anew the paths that lost their links, or gives a session up that has been without any for long.
    pub(super) fn retry_lost(&mut self, id: PeerId) {
        let (now, wait) = (self.now, self.config.resend_after * 4);
        let Some(peer) = self.peers.get_mut(id) else { return };
        let Some(session) = peer.session.as_mut() else { return };
        let Some(since) = session.paths.lost_since() else {
            // Another path carries it by now: its bundle seeks those that are lost.
            session.paths.retry(now, Time::NEVER);
            return;
        };
        let is_woken = session.paths.is_woken();
        if now.since(since) >= self.config.wait_of(session) {
            return self.give_up_paths(id);
        }
        // One that rested was left by the consent of two who can call each other.
        let reachable = peer.reachable || is_woken;
        if session.paths.retry(now, now + wait) == 0 || !reachable {
            return;
        }
        // One call at a time: the next way is tried when this one has had its time, or is refused.
        if self.is_being_called(id) {
            let calls = self.peers.get_mut(id).map(|peer| &mut peer.calls);
            if !calls.is_some_and(|calls| calls.is_retried_in_vain(now)) {
                return;
            }
            self.close_attempts(id);
        }
        self.call_by_next(id);
    }

    /// Calls a peer whose session has lost its links, by the next way.
    pub(crate) fn call_by_next(&mut self, id: PeerId) {
        if let Some(peer) = self.peers.get(id) {
            let attempt = peer.calls.retries_over();
            self.outputs.push(Output::Connect { peer: id, attempt });
        }
    }

    /// Whether the session with a peer goes on as soon as it has a link.
    pub fn has_lost_paths(&self, id: PeerId) -> bool {
        let session = self.peers.session(self.resolve(id));
        session.is_some_and(|session| !session.paths.has_link() && session.paths.has_lost())
    }

    /// Whether a link that we began to a peer may come to carry its session.
    fn is_being_called(&self, id: PeerId) -> bool {
        let pending = |link: &LinkId| {
            let state = self.links.get(*link).filter(|state| state.outbound);
            state.is_some_and(|it| !matches!(it.stage, LinkStage::Up | LinkStage::Closing))
        };
        self.links.of_peer(id).iter().any(pending)
    }

    /// No descriptor, or none of what else a link needs, is left for one to this peer: an idle link is
    /// closed.
    pub fn crowded(&mut self, id: PeerId) {
        self.make_room();
        let now = self.now;
        if let Some(peer) = self.peers.get_mut(id) {
            peer.calls.note_crowd(now);
        }
    }

    /// Whether the peer could not be reached for want of descriptors only: it is tried again, until it is
    /// given up.
    pub(crate) fn connect_later(&mut self, id: PeerId) -> bool {
        let (now, give_up_after) = (self.now, self.config.give_up_after);
        let Some(peer) = self.peers.get_mut(id) else { return false };
        let since = peer.calls.crowded_since();
        let (CallStage::Connecting { attempt }, Some(since)) = (peer.calls.stage(), since) else {
            return false;
        };
        if now.since(since) >= give_up_after {
            return false;
        }
        let until = now + ROOM_AGAIN;
        peer.calls.wait_for_room(attempt - attempt % INSIST_FROM, until);
        self.wake_by(id, until);
        true
    }

    /// Tries again what there was no descriptor for.
    pub(crate) fn connect_again(&mut self, id: PeerId, attempt: u32) {
        if let Some(peer) = self.peers.get_mut(id) {
            peer.calls.forget_crowd();
        }
        self.connect_next(id, attempt);
    }
}
