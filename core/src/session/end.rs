//! The end of sessions, and what it does to operations.

use ropewalk_base::error::Fault;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::LinkId;

use super::Session;
use crate::api::*;
use crate::credit::Charge;
use crate::eager::wanted;
use crate::engine::Core;
use crate::lists::List;
use crate::matching::{Content, Unmatched};
use crate::operation::{Kind, ReceiveStage, ReceiveState, SendStage, SendState};

impl Core {
    pub(crate) fn drop_messages_of(&mut self, id: PeerId, fault: Fault) {
        for found in self.matching.messages_of(id) {
            self.drop_message(found, fault);
        }
    }

    /// A link of a running session is gone. The session ends where it has no other one and does not outlive it. `offered`: we
    /// have offered to do without it.
    pub(crate) fn session_link_lost(&mut self, id: PeerId, link: LinkId, offered: bool) {
        let (now, posts) = (self.now, self.matching.posts());
        let retry_at = now + self.config.resend_after * 4;
        let Some(session) = self.peers.session_mut(id) else { return };
        let alone = session.paths.links().all(|other| other == link);
        let resumes = session.outlives_links && session.reliable.is_some();
        if alone && (!resumes || self.closing) {
            return self.end_session(id, Fault::PeerReset);
        }
        let left = self.leaving(id, link);
        let Some(session) = self.peers.session_mut(id) else { return };
        let path = session.paths.id_over(link);
        if !alone {
            // What others carry needs no call; the bundle has a path in its place in its own time.
            session.lose(link, Time::NEVER, &mut self.routes.controllers, now);
            let due = session.due();
            self.counters.paths_lost += 1;
            self.begin_lengths(id);
            let bytes = self.redirect_spans(id, link);
            self.note_left(id, left, bytes);
            self.sync_paths(id);
            return self.wake_by(id, due);
        }
        session.lose(link, retry_at, &mut self.routes.controllers, now);
        if offered || session.paths.has_resting() {
            // The peer may have come to rest, and would call nobody.
            session.wake(now, retry_at, posts);
        }
        if self.config.path_wait().is_zero() && !session.paths.is_woken() {
            return self.give_up_paths(id);
        }
        if let Some(path) = path {
            self.note_no_path(id, link.rail, path, now);
        }
        self.wake_by(id, retry_at);
        self.sync_paths(id);
        // Of two sides that could both connect one goes first; the other comes with its timer.
        let first = self.peers.get(id).is_some_and(|peer| {
            peer.reachable && self.identity.endpoint.0 < peer.identity.endpoint
        });
        if first {
            self.call_by_next(id);
        }
    }

    /// The session, if there is one, ends; operations with this peer fail.
    pub(crate) fn end_session(&mut self, id: PeerId, fault: Fault) {
        let goes_on = |session: &Session| session.reliable.is_some() && session.paths.has_link();
        if fault == Fault::Unreachable && self.peers.session(id).is_some_and(goes_on) {
            // A call that was made before another link came to carry it.
            return;
        }
        if let Some(session) = self.peers.session(id)
            && let Some(since) = session.paths.lost_since()
        {
            let given_up = self.now.since(since) >= self.config.wait_of(session);
            if fault == Fault::Unreachable && !given_up {
                // The next try comes with the timer, until the peer is given up.
                return;
            }
            self.note_ended(id);
            // The peer would prefer one of these to its own later ones, and wait for it in vain.
            self.close_attempts(id);
        }
        self.fail_session(id, fault);
        if let Some(peer) = self.peers.get_mut(id) {
            peer.calls.end();
        }
    }

    /// Another session takes the place of this one, which the peer knows nothing of any more. With separate
    /// sessions what was posted while this one was idle-closed was never about it, and waits for the other.
    pub(crate) fn replace_session(&mut self, id: PeerId) {
        let session = self.peers.session(id).filter(|_| self.config.separate_sessions);
        let since = session.and_then(|session| session.paths.resting_since_post());
        self.fail_session_before(id, Fault::PeerReset, since);
    }

    pub(crate) fn fail_session(&mut self, id: PeerId, fault: Fault) {
        self.fail_session_before(id, fault, None);
    }

    /// Ends a session, or the attempt to begin one. `spared`: all sends that wait, and receives that were posted after
    /// so many others, go on.
    fn fail_session_before(&mut self, id: PeerId, fault: Fault, spared: Option<u64>) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        let was_called = !peer.calls.is_idle();
        peer.calls.end();
        if spared.is_none() {
            peer.waiting.sends = [List::EMPTY; CHANNELS];
        }
        peer.waiting.accesses = List::EMPTY;
        peer.calls.reset();
        let session = peer.session.take();
        let had_session = session.is_some();
        match session {
            Some(session) => self.wind_up(id, session, fault, spared),
            None => {
                self.migration_over(id, None);
                self.fail_operations(id, fault, was_called, spared);
            }
        }
        let caller = self.take_caller(id);
        self.part_names(id, had_session);
        self.evictable.add_caller(id, &mut self.peers);
        self.outputs.push(Output::PeerDown { peer: id, fault });
        self.answer(caller);
    }

    /// A session was taken out of its peer: what was under way in it ends.
    fn wind_up(&mut self, id: PeerId, session: Session, fault: Fault, spared: Option<u64>) {
        let Session {
            id: number,
            lent,
            streams,
            assembling,
            reliable,
            // Of these the table of operations knows more: they fail there.
            unfinished: _,
            fetching: _,
            accesses: _,
            // These end with the session, and nobody waits for them.
            kind: _,
            inline: _,
            send_next: _,
            receive_next: _,
            granted: _,
            one_sided,
            outlives_links: _,
            mut paths,
            bundle,
            proven: _,
        } = session;
        self.counters.resets += 1;
        self.forget_without(number);
        paths.leave_parts(&mut self.routes.controllers);
        // Where one of several broke the protocol the others are well. Orders that rails have not finished know their links.
        paths.links().for_each(|link| self.close_link(link));
        let (joining, migrating) =
            bundle.map_or((None, None), |bundle| (bundle.attempt_link(), bundle.migrating));
        if let Some(link) = joining {
            // It was to join this session.
            self.close_link(link);
        }
        self.migration_over(id, migrating);
        // First: messages that go from now on give no credit back to the peer.
        self.pool.take_back(&lent);
        streams.iter().for_each(|stream| self.stream_ended(&stream.kind));
        if let Some(one_sided) = one_sided {
            self.drop_answers(id, number.name(), one_sided.answers);
            self.drop_locks_of(id, number.name());
        }
        self.break_assemblies(assembling.into_values(), fault);
        if let Some(reliable) = reliable {
            self.drop_spans(id, number.name(), *reliable);
        }
        self.fail_operations(id, fault, true, spared);
        for found in self.matching.messages_of(id) {
            let message = self.matching.message_mut(found);
            let announced =
                |message: &mut Unmatched| matches!(message.content, Content::Rendezvous(..));
            if message.is_some_and(announced) {
                self.drop_message(found, fault);
            }
        }
    }

    /// Fails every operation with this peer. `receives`: those that wait for a message from it alone, too.
    /// They go on where there was no session and nobody called it: it may still connect to us.
    pub(crate) fn fail_operations(
        &mut self,
        id: PeerId,
        fault: Fault,
        receives: bool,
        spared: Option<u64>,
    ) {
        let is_later = |post: u64| spared.is_some_and(|before| post > before);
        for owned in self.operations.owned_by(id) {
            let Some(operation) = self.operations.get(owned) else { continue };
            let concerned = match &operation.kind {
                Kind::Send(SendState { stage: SendStage::Waiting { .. }, .. })
                    if spared.is_some() =>
                {
                    false
                }
                Kind::Send(state) => state.send.peer == id,
                Kind::Access(_) => self.operations.peer(operation) == Some(id),
                Kind::Receive(state) => match &state.stage {
                    ReceiveStage::Posted { post } => {
                        receives && state.receive.source == Some(id) && !is_later(*post)
                    }
                    ReceiveStage::Placing => false,
                    ReceiveStage::Fetching { .. } => self
                        .operations
                        .access(operation)
                        .is_some_and(|state| state.access.peer == id),
                },
            };
            if concerned {
                self.fail_operation(owned, fault);
            }
        }
    }

    pub(crate) fn fail_operation(&mut self, id: OperationId, fault: Fault) {
        let Some(operation) = self.operations.get(id) else { return };
        let mut region = None;
        match &operation.kind {
            Kind::Receive(ReceiveState {
                stage: ReceiveStage::Posted { post }, receive, ..
            }) => {
                self.matching.withdraw(*post, wanted(receive));
            }
            Kind::Send(state) => {
                if let SendStage::Rendezvous { region: slot } = state.stage {
                    region = Some(slot);
                }
            }
            _ => {}
        }
        self.finish(id, Err(fault), 0);
        if let Some(region) = region {
            self.close_region(region);
        }
    }

    /// An eager message broke off in the middle of its placement.
    pub(crate) fn receive_broken(&mut self, id: OperationId, fault: Fault) {
        let placing = self.operations.get(id).is_some_and(|operation| {
            matches!(&operation.kind, Kind::Receive(state)
                if matches!(state.stage, ReceiveStage::Placing))
        });
        if placing {
            self.finish(id, Err(fault), 0);
        }
    }

    /// A staged message broke off.
    pub(crate) fn unmatched_lost(&mut self, found: SlotId, fault: Fault) {
        let Some(message) = self.matching.remove_message(found) else { return };
        // Those behind it that are offered waited for it.
        self.matching.arrivals += 1;
        self.free_unmatched(&message);
        if let Content::Arriving { claimed_by: Some(operation) } = message.content {
            self.finish(operation, Err(fault), 0);
        }
    }

    /// Drops a message; a receive that has claimed it while it arrives fails.
    fn drop_message(&mut self, found: SlotId, fault: Fault) {
        if let Some(message) = self.matching.remove_message(found) {
            self.free_unmatched(&message);
            match message.content {
                Content::Staged(buffer) => self.outputs.push(Output::Release(buffer)),
                Content::Arriving { claimed_by: Some(operation) } => {
                    self.finish(operation, Err(fault), 0);
                }
                _ => {}
            }
        }
    }

    fn free_unmatched(&mut self, message: &Unmatched) {
        let charge = match message.content {
            Content::Rendezvous(..) => Charge::Rendezvous,
            _ => Charge::Eager { channel: message.channel, payload_bytes: message.bytes },
        };
        self.free_charge(message.peer, message.session, charge);
    }

    pub(crate) fn unqueue_send(&mut self, peer: PeerId, channel: usize, id: OperationId) {
        if let Some(peer) = self.peers.get_mut(peer) {
            self.operations.unqueue(&mut peer.waiting.sends[channel], id);
        }
    }
}
