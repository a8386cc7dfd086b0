//! Sessions: their beginning, their end, and what an end does to operations.

use ropewalk_base::error::Fault;
use ropewalk_base::ids::{ClusterId, EndpointId, Origin};
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{LinkId, Token};
use ropewalk_wire::frame::{Body, Envelope};

use super::handshake::INSIST_FROM;
use super::{Link, LinkStage, Peer, PeerStage};
use crate::api::*;
use crate::credit::{Charge, Granted, Windows};
use crate::eager::wanted;
use crate::engine::Core;
use crate::lists::List;
use crate::matching::{Content, Unmatched};
use crate::operation::{Kind, ReceiveStage, ReceiveState, SendStage, SendState};
use crate::reliable::Reliable;
use crate::remote::UnderWay;

impl Core {
    /// Adds a peer; `reachable`: the driver has an address for it.
    pub fn add_peer(&mut self, reachable: bool) -> Result<PeerId, Fault> {
        self.peers.add(reachable).ok_or(Fault::Busy)
    }

    /// Forgets a peer: its operations end as cancelled, its link is closed.
    pub fn forget_peer(&mut self, id: PeerId) {
        let id = self.resolve(id);
        // All of its names go: none stands for itself afterwards.
        let names = self.peers.get_mut(id).map(|peer| std::mem::take(&mut peer.names.aliases));
        for name in names.into_iter().flatten() {
            self.peers.remove(name);
        }
        self.end_session(id, Fault::Cancelled);
        // Also receives from one that never came.
        self.fail_operations(id, Fault::Cancelled, true, None);
        for link in self.links.of_peer(id) {
            self.close_link(link);
        }
        self.remove_record(id);
    }

    /// Takes a peer that has no other names out of the tables, with the messages of it that wait.
    pub(super) fn remove_record(&mut self, id: PeerId) {
        self.drop_messages_of(id, Fault::Cancelled);
        let Some(mut peer) = self.peers.remove(id) else { return };
        self.timers.stop(id, &mut peer.timer);
        self.evictable.remove(id, peer.eviction);
    }

    fn drop_messages_of(&mut self, id: PeerId, fault: Fault) {
        for found in self.matching.messages_of(id) {
            self.drop_message(found, fault);
        }
    }

    /// The address list that the peer told.
    pub fn peer_addresses(&self, id: PeerId) -> &[u8] {
        self.peers.get(self.resolve(id)).map_or(&[], |peer| &peer.identity.addresses)
    }

    /// The peer's endpoint, where it greeted us.
    pub fn peer_endpoint(&self, id: PeerId) -> Option<u128> {
        let endpoint = self.peers.get(self.resolve(id))?.identity.endpoint;
        (endpoint != 0).then_some(endpoint)
    }

    /// The peer's life, where it greeted us.
    pub fn peer_origin(&self, id: PeerId) -> Option<Origin> {
        let peer = self.peers.get(self.resolve(id))?;
        let origin = Origin {
            endpoint: EndpointId(peer.identity.endpoint),
            incarnation: peer.identity.incarnation,
        };
        (peer.identity.endpoint != 0).then_some(origin)
    }

    /// The cluster of this endpoint; 0: it was told none, and has joined none.
    pub fn cluster(&self) -> ClusterId {
        self.identity.cluster
    }

    /// This endpoint, where it has no cluster, belongs to that of the peer from now on: strangers who answer
    /// at its peers' addresses are refused. The cluster that it belongs to then.
    pub fn join_cluster_of(&mut self, id: PeerId) -> ClusterId {
        if self.identity.cluster.0 == 0
            && let Some(peer) = self.peers.get(self.resolve(id))
        {
            self.identity.cluster = ClusterId(peer.identity.cluster);
        }
        self.identity.cluster
    }

    /// The cluster of a stranger who answered at the peer's address.
    pub fn peer_stranger(&self, id: PeerId) -> Option<u128> {
        let stranger = self.peers.get(self.resolve(id))?.identity.other_cluster;
        (stranger != 0).then_some(stranger)
    }

    /// Whether a session with the peer runs.
    pub fn is_up(&self, id: PeerId) -> bool {
        self.peers.get(self.resolve(id)).is_some_and(|peer| peer.link().is_some())
    }

    /// The link that carries the session with the peer.
    pub fn peer_link(&self, id: PeerId) -> Option<LinkId> {
        self.peers.get(self.resolve(id))?.link()
    }

    /// Makes sure that a peer is being connected to.
    pub fn want_session(&mut self, id: PeerId) {
        let id = self.resolve(id);
        let Some(peer) = self.peers.get(id) else { return };
        if !matches!(peer.stage, PeerStage::Idle | PeerStage::Parked { .. }) {
            return;
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
            peer.stage = PeerStage::Connecting { attempt };
            peer.calls.begin();
            let attempt = attempt % INSIST_FROM;
            self.outputs.push(Output::Connect { peer: id, attempt });
        }
    }

    /// A link was confirmed: the session begins, or goes on.
    pub(crate) fn begin_session(&mut self, id: PeerId, link: LinkId) {
        let incarnation = self.greeted_incarnation(link).unwrap_or_default();
        let Some((ours, theirs)) = self.links.get(link).map(|link| (link.ours, link.theirs)) else {
            return;
        };
        let Some(peer) = self.peers.get(id) else { return };
        let old_link = peer.session_link();
        let goes_on = ours != 0 && ours == theirs;
        let elsewhere = old_link.is_some_and(|old| old != link) && peer.session.reliable.is_none();
        if goes_on && (peer.session.id != ours || elsewhere) {
            // It was given up after both sides had greeted: the peer learns it with the next greeting. Or
            // another link carries it, and what is on its way over that one would be lost.
            self.close_link(link);
            return self.connect_if_needed(id);
        }
        if !goes_on && peer.session.id != 0 {
            // The peer lost what it knew of us; what was under way has failed.
            self.replace_session(id);
        }
        // Who called us may have a new record by now.
        let id =
            self.links.get(link).and_then(|state| state.peer).map_or(id, |id| self.resolve(id));
        if let Some(old) = old_link.filter(|old| *old != link) {
            self.close_link(old);
        }
        self.close_older(id, link);
        let Some(state) = self.links.get_mut(link) else { return };
        state.stage = LinkStage::Up;
        state.traffic_seen = None;
        let outbound = state.outbound;
        let lossy = self.is_lossy(link);
        let Some(peer) = self.peers.get_mut(id) else { return };
        peer.stage = PeerStage::Up { link };
        peer.calls.succeed();
        peer.parked_at_post = None;
        peer.identity.incarnation = incarnation;
        let parked = goes_on && peer.session.reliable.is_none();
        self.links.begin_carrying(link);
        if !goes_on {
            self.begin_afresh(id, link);
        }
        self.begin_lengths(id, link);
        if parked {
            self.resume_parked(id);
        } else if goes_on {
            self.resume_spans(id);
        }
        self.begin_confirmation(id, outbound, lossy);
        // Also what was due while there was no link.
        let due = self.peers.get(id).map_or(Time::NEVER, Peer::due);
        self.wake_by(id, due);
        self.pump(id);
        self.park_surplus();
    }

    /// A link begins to carry a session that there was not before.
    fn begin_afresh(&mut self, id: PeerId, link: LinkId) {
        let Some(state) = self.links.get(link) else { return };
        let (windows, Some(hello)) = (state.windows, state.hello) else { return };
        let session = state.nonce.wrapping_add(hello.nonce.get()) | 1;
        let resume = self.config.mode == Mode::Resume && hello.mode == 1;
        let lossy = self.is_lossy(link);
        if self.config.separate_sessions {
            self.drop_messages_of(id, Fault::PeerReset);
        }
        let Some(peer) = self.peers.get_mut(id) else { return };
        peer.session.reliable = (resume || lossy).then(|| Box::new(Reliable::new()));
        let granted = Windows {
            eager: u64::from(hello.eager_credit.get()) * 1024,
            request: u64::from(hello.request_credit.get()) * 1024,
        };
        let granted = Granted::begin(granted, u64::from(hello.announce_credit.get()));
        self.new_session(id, session, granted, windows);
    }

    /// A session begins: the peer granted us credit, and is lent the windows that it was told.
    pub(crate) fn new_session(
        &mut self,
        id: PeerId,
        session: u32,
        granted: Granted,
        windows: Windows,
    ) {
        if let Some(peer) = self.peers.get_mut(id) {
            peer.session.begin(session, granted);
        }
        self.begin_credit(id, windows);
        self.counters.sessions += 1;
        self.outputs.push(Output::PeerUp { peer: id });
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

    /// The peer that is this endpoint itself, with its session.
    pub fn own_peer(&mut self) -> Result<PeerId, Fault> {
        if let Some(own) = self.peers.of_endpoint(self.identity.endpoint.0) {
            return Ok(own);
        }
        let own = self.add_peer(true)?;
        self.begin_loop(own);
        Ok(own)
    }

    /// The peer that is being connected to is this endpoint itself.
    pub fn connect_to_itself(&mut self, peer: PeerId) {
        self.begin_loop(self.resolve(peer));
    }

    /// An endpoint talks to itself: a session whose frames the driver hands back to us.
    pub(crate) fn begin_loop(&mut self, asked: PeerId) {
        let own = self.identity.endpoint.0;
        let id = self.peers.of_endpoint(own).unwrap_or(asked);
        self.peers.assign(own, id);
        if let Some(peer) = self.peers.get_mut(id) {
            peer.identity.incarnation = self.identity.incarnation;
        }
        if id != asked {
            return self.alias(asked, id);
        }
        let nonce = self.random.next_u64() as u32;
        let windows = self.first_windows().unwrap_or(self.least_windows());
        self.links.insert(LOOP_LINK, Link { stage: LinkStage::Up, ..Link::new(Some(id), nonce) });
        let Some(peer) = self.peers.get_mut(id) else { return };
        peer.stage = PeerStage::Up { link: LOOP_LINK };
        let granted = Granted::begin(windows, u64::from(self.config.announce_window));
        self.new_session(id, nonce | 1, granted, windows);
        self.begin_lengths(id, LOOP_LINK);
        self.pump(id);
    }

    /// Connects to a peer for which something waits.
    pub(super) fn connect_if_needed(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        let carried = peer.session_link().is_some();
        if carried || matches!(peer.stage, PeerStage::Suspended { .. }) {
            return;
        }
        let sends = peer.waiting.iter().any(|queue| !queue.is_empty());
        let waits = sends || peer.accesses.has_waiting();
        peer.stage = PeerStage::Idle;
        let rests = peer.session.id != 0;
        if rests {
            self.rest(id);
        }
        if waits || !rests && self.is_awaited(id) {
            self.want_session(id);
        }
    }

    /// A receive from this peer alone was posted. A peer that was looked up and has no session is called: it
    /// may be gone, which nobody would notice otherwise. Or it has called us already, under a name that nobody
    /// compared, and what it sends would not be known to come from this peer.
    #[inline]
    pub(crate) fn want_heard(&mut self, id: PeerId, receive: OperationId) {
        if self.peers.get(id).is_some_and(|peer| peer.session.id == 0 && peer.reachable)
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

    /// Connects to a peer with a parked session, where something waits for it.
    pub(crate) fn want_waiting(&mut self, id: PeerId) {
        if self.peers.get(id).is_some_and(Peer::has_waiting) {
            self.want_session(id);
        }
    }

    /// The link of a running session is gone.
    pub(crate) fn session_link_lost(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        let resumes = self.config.mode == Mode::Resume && peer.session.reliable.is_some();
        if !resumes || self.closing {
            return self.end_session(id, Fault::PeerReset);
        }
        peer.stage = PeerStage::Suspended { since: self.now };
        let retry_at = self.now + self.config.resend_after * 4;
        if let Some(reliable) = peer.session.reliable.as_mut() {
            reliable.retry_at = retry_at;
        }
        self.wake_by(id, retry_at);
        // Of two sides that could both connect one goes first; the other comes with its timer.
        let first = self.peers.get(id).is_some_and(|peer| {
            peer.reachable && self.identity.endpoint.0 < peer.identity.endpoint
        });
        if first {
            self.outputs.push(Output::Connect { peer: id, attempt: 0 });
        }
    }

    /// The session, if there is one, ends; operations with this peer fail.
    pub(crate) fn end_session(&mut self, id: PeerId, fault: Fault) {
        if let Some(peer) = self.peers.get(id)
            && let PeerStage::Suspended { since } = peer.stage
        {
            let given_up = self.now.since(since) >= self.config.give_up_after;
            if fault == Fault::Unreachable && !given_up {
                // The next try comes with the timer, until the peer is given up.
                return;
            }
            // The peer would prefer one of these to its own later ones, and wait for it in vain.
            self.close_attempts(id);
        }
        self.fail_session(id, fault);
        if let Some(peer) = self.peers.get_mut(id) {
            peer.stage = PeerStage::Idle;
        }
    }

    /// Another session takes the place of this one, which the peer knows nothing of any more. With separate
    /// sessions what was posted while this one rested was never about it, and waits for the other.
    pub(super) fn replace_session(&mut self, id: PeerId) {
        let peer = self.peers.get(id).filter(|_| self.config.separate_sessions);
        let since = peer.and_then(|peer| peer.parked_at_post);
        self.fail_session_before(id, Fault::PeerReset, since);
    }

    pub(crate) fn fail_session(&mut self, id: PeerId, fault: Fault) {
        self.fail_session_before(id, fault, None);
    }

    /// Ends a session. `spared`: all sends that wait, and receives that were posted after so many others, go on.
    fn fail_session_before(&mut self, id: PeerId, fault: Fault, spared: Option<u64>) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        let session = std::mem::take(&mut peer.session.id);
        let had_session = session != 0;
        let was_called = peer.is_called();
        peer.stage = PeerStage::Idle;
        peer.foreign = false;
        peer.puts.clear();
        let streams = peer.streams.take_all();
        peer.session.unfinished.clear();
        peer.session.fetching.clear();
        if spared.is_none() {
            peer.waiting = [List::EMPTY; CHANNELS];
        }
        peer.accesses.waiting = List::EMPTY;
        peer.parked_at_post = None;
        peer.deferred.clear();
        peer.calls.reset();
        let reliable = peer.session.reliable.take();
        streams.iter().for_each(|stream| self.stream_ended(&stream.kind));
        if had_session {
            self.end_credit(id);
            self.counters.resets += 1;
        }
        self.break_assemblies(id, fault);
        if let Some(reliable) = reliable {
            self.drop_spans(id, session, *reliable);
        }
        self.fail_operations(id, fault, had_session || was_called, spared);
        for found in self.matching.messages_of(id) {
            let announced = self
                .matching
                .message_mut(found)
                .is_some_and(|message| matches!(message.content, Content::Announced(..)));
            if announced {
                self.drop_message(found, fault);
            }
        }
        if let Some(peer) = self.peers.get_mut(id) {
            peer.accesses.under_way = UnderWay::default();
        }
        let caller = self.take_caller(id);
        self.part_names(id, had_session);
        self.evictable.add_caller(id, &mut self.peers);
        self.outputs.push(Output::PeerDown { peer: id, fault });
        self.answer(caller);
    }

    /// Fails every operation with this peer. `receives`: those that wait for a message from it alone, too.
    /// They go on where there was no session and nobody called it: it may still connect to us.
    fn fail_operations(&mut self, id: PeerId, fault: Fault, receives: bool, spared: Option<u64>) {
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

    pub(super) fn fail_operation(&mut self, id: OperationId, fault: Fault) {
        let Some(operation) = self.operations.get(id) else { return };
        let mut region = None;
        match &operation.kind {
            Kind::Receive(ReceiveState {
                stage: ReceiveStage::Posted { post }, receive, ..
            }) => {
                self.matching.withdraw(*post, wanted(receive));
            }
            Kind::Send(state) => {
                if let SendStage::Announced { region: slot } = state.stage {
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
            Content::Announced(..) => Charge::Announce,
            _ => Charge::Eager { channel: message.channel, payload_bytes: message.bytes },
        };
        self.free_charge(message.peer, message.session, charge);
    }

    pub(crate) fn unqueue_send(&mut self, peer: PeerId, channel: usize, id: OperationId) {
        if let Some(peer) = self.peers.get_mut(peer) {
            self.operations.unqueue(&mut peer.waiting[channel], id);
        }
    }

    /// The endpoint closes: peers are told, operations fail.
    pub fn close(&mut self) {
        self.closing = true;
        self.give_all_rests_up();
        let mut links: Vec<LinkId> = self.links.iter().map(|(link, _)| link).collect();
        links.sort_unstable();
        for link in links {
            let up = self.links.get(link).filter(|state| state.stage == LinkStage::Up);
            let session = up.and_then(|state| state.peer).map(|peer| self.session_of(peer));
            if let Some(session) = session.filter(|_| link != LOOP_LINK) {
                let envelope = Envelope { session, ..Envelope::default() };
                self.emit_on(link, envelope, &Body::Goodbye, None, Token::NONE);
            }
            self.close_link(link);
        }
        for (_, peer) in self.peers.iter_mut() {
            peer.session.fetching.clear();
            peer.waiting = [List::EMPTY; CHANNELS];
            peer.accesses.waiting = List::EMPTY;
        }
        let ids: Vec<OperationId> = self.operations.iter().map(|(id, _)| id).collect();
        for id in ids {
            self.fail_operation(id, Fault::Closed);
        }
    }

    /// The peer closes: like a lost link, but in mode `Resume`, too, the session is over.
    pub(crate) fn arrive_goodbye(&mut self, link: LinkId) {
        let Some(id) = self.links.get(link).and_then(|state| state.peer) else { return };
        self.end_session(self.resolve(id), Fault::PeerReset);
        self.close_link(link);
    }

    /// Makes sure that `advance` looks at a peer at `due`, or before: what is due later by then is not
    /// taken back.
    pub(crate) fn wake_by(&mut self, id: PeerId, due: Time) {
        if let Some(peer) = self.peers.get_mut(id) {
            self.timers.set(id, &mut peer.timer, due);
        }
    }

    pub(crate) fn run_timers(&mut self) {
        let now = self.now;
        let due = self.timers.due(now);
        for id in &due {
            if let Some(peer) = self.peers.get_mut(*id) {
                self.timers.stop(*id, &mut peer.timer);
            }
        }
        for id in due {
            let Some(peer) = self.peers.get_mut(id) else { continue };
            match peer.stage {
                PeerStage::Yielded { until } if until <= now => {
                    let insist = INSIST_FROM;
                    self.connect_next(id, insist);
                }
                PeerStage::Connecting { attempt } if peer.calls.deadline() <= now => {
                    self.greeting_lost(id, attempt);
                }
                PeerStage::Suspended { since } => self.retry_suspended(id, since),
                PeerStage::Parking { until, .. } if until <= now => self.park_unanswered(id),
                PeerStage::Crowded { attempt, until } if until <= now => {
                    self.connect_again(id, attempt);
                }
                PeerStage::Up { .. } if peer.session.reliable.is_some() => self.run_span_timers(id),
                _ => {}
            }
            let due = self.peers.get(id).map_or(Time::NEVER, Peer::due);
            self.wake_by(id, due);
        }
        let sweep = self.run_sweep();
        let silent = self.close_silent();
        self.timers.rest(sweep.min(silent));
    }

    fn retry_suspended(&mut self, id: PeerId, since: Time) {
        if self.now.since(since) >= self.config.give_up_after {
            return self.end_session(id, Fault::PeerReset);
        }
        let (now, wait) = (self.now, self.config.resend_after * 4);

        let Some(peer) = self.peers.get_mut(id) else { return };
        let Some(reliable) = peer.session.reliable.as_mut() else { return };
        if reliable.retry_at > now {
            return;
        }
        reliable.retry_at = now + wait;
        if peer.reachable {
            self.outputs.push(Output::Connect { peer: id, attempt: 0 });
        }
    }
}
