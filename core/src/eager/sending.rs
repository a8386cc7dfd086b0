//! The way out: a post becomes a frame where session, credit and rail allow it, or waits for its turn.

use ropewalk_base::error::Fault;
use ropewalk_base::limits::REQUEST_BYTES_MAX;
use ropewalk_base::verb::Urgency;
use ropewalk_wire::frame::EagerBody;

use crate::api::*;
use crate::engine::Core;
use crate::foreign::unspeakable;
use crate::operation::{Ending, Kind, SendStage, SendState};
use crate::orders::{Order, Payload};
use crate::path::Peer;
use crate::reliable::KEPT_BYTES_MAX;
use crate::session::Session;

impl Core {
    /// Ends a post that the driver itself refuses.
    pub fn refuse_post(&mut self, id: OperationId, fault: Fault) {
        let (outcome, peer) = (Err(fault), None);
        *self.outputs.push_completion() =
            Completion { operation: id, outcome, bytes: 0, message_bytes: 0, peer, bits: 0 };
    }

    /// Posts a message. It leaves within the post where nothing keeps it, or becomes an operation, which may complete
    /// within this call.
    #[inline]
    pub fn post_send(&mut self, id: OperationId, mut send: Send) -> Sending {
        let name = send.peer;
        let (peer, barred) = self.meant(name);
        send.peer = peer;
        if barred.is_none() && self.leave_inline(id, &send) {
            return Sending::Inline(send);
        }
        self.post_operation(id, send, name, barred);
        Sending::Operation
    }

    /// A message that does not leave within its post. `name`: what its poster called the peer.
    fn post_operation(&mut self, id: OperationId, send: Send, name: PeerId, barred: Option<Fault>) {
        let state = SendState { send, stage: SendStage::Waiting { turn: 0 }, message: 0 };
        self.operations.insert(id, Kind::Send(state));
        if barred != Some(Fault::Invalid) {
            self.operations.own_as(id, send.peer, name);
        }
        let too_long =
            send.channel == Channel::Request && send.payload.len > u64::from(REQUEST_BYTES_MAX);
        if too_long || self.closing {
            let fault = if too_long { Fault::Oversize } else { Fault::Closed };
            return self.finish(id, Err(fault), 0);
        }
        if let Some(fault) = barred {
            return self.finish(id, Err(fault), 0);
        }
        let Some(peer) = self.peers.get(send.peer) else { return };
        let first = peer.waiting.sends[send.channel as usize].is_empty();
        if first && peer.is_up() && self.start_send(id) {
            return;
        }
        self.enqueue_send(id, send);
        self.want_session(send.peer);
    }

    /// Starts a waiting send where session, credit and rail allow it.
    #[inline(always)]
    pub(crate) fn start_send(&mut self, id: OperationId) -> bool {
        self.start::<false>(id)
    }

    /// The same. `PLANNED`: where the session has several paths, it is known which one the message takes.
    #[inline(always)]
    fn start<const PLANNED: bool>(&mut self, id: OperationId) -> bool {
        let Some(operation) = self.operations.get_mut(id) else { return true };
        let Kind::Send(state) = &mut operation.kind else { return true };
        let send = state.send;
        let Some(peer) = self.peers.get_mut(send.peer) else { return true };
        let Some(session) = peer.session.as_mut() else { return false };
        if session.is_foreign()
            && let Some(fault) = unspeakable(&send)
        {
            self.finish(id, Err(fault), 0);
            return true;
        }
        if !PLANNED && session.paths.wants_plan(send.payload.len) {
            return self.start_over_paths(id, &send);
        }
        let Some(link) = session.paths.with_room() else { return false };
        if session.reliable.as_ref().is_some_and(|it| !it.sent.has_room()) {
            return false;
        }
        // A request is never announced: nobody posts for it.
        // A foreign peer tells the match of no message but an announced one.
        let tells = !session.is_foreign() || !Level::waits_for_match(send.level as u8);
        let small = send.channel == Channel::Request
            || (tells && send.payload.len <= session.granted.eager_bytes());
        let number = small.then(|| session.take_eager(send.channel, send.payload.len));
        if let Some(message) = number.flatten() {
            state.stage = SendStage::Eager { link };
            state.message = message;
            operation.retained += 1;
            if send.level != Level::Buffered {
                session.unfinished.insert((send.channel as u8, message), id);
            }
            self.counters.messages_eager_sent += 1;
            let first = send.payload.len.min(session.granted.frame_bytes());
            let mut body = eager_body(&send, message);
            body.more_bytes = ((send.payload.len - first) as u32).into();
            let order = Order::Eager { operation: id };
            let slice = send.payload.part(0, first);
            let payload = Payload { slice, urgency: Urgency::Urgent, order };
            self.emit(send.peer, body, Some(payload));
            let keeps = send.level == Level::Buffered && first == send.payload.len;
            if keeps && first <= KEPT_BYTES_MAX.into() {
                self.keep_when_sent(send.peer);
            }
            if first < send.payload.len {
                self.send_rest(id, &send, message, first);
            }
            return true;
        }
        let waits = small && self.awaits_credit(send.peer, send.payload.len);
        if send.channel == Channel::Request || waits {
            return false;
        }
        self.start_rendezvous(id, send)
    }

    #[cold]
    fn start_over_paths(&mut self, id: OperationId, send: &Send) -> bool {
        self.plan_send(send) && self.start::<true>(id)
    }

    /// Chooses the path of a message that goes in one span. False: it waits for room.
    fn plan_send(&mut self, send: &Send) -> bool {
        let Some(peer) = self.peers.get_mut(send.peer) else { return true };
        let Some(session) = peer.session.as_mut() else { return false };
        // A redundant one goes over the path that carries, and over another one.
        let bytes = if peer.redundant.has(send.channel) { 0 } else { send.payload.len };
        if bytes > session.granted.eager_bytes() {
            return true;
        }
        let waiting = self.operations.bytes_of(&peer.waiting.sends[send.channel as usize]);
        let (backlog, controllers) = (bytes.saturating_add(waiting), &self.routes.controllers);
        session.paths.plan(bytes, backlog, controllers, self.now)
    }

    fn start_rendezvous(&mut self, id: OperationId, send: Send) -> bool {
        let has_credit = |session: &Session| session.granted.has_rts();
        if !self.peers.session(send.peer).is_some_and(has_credit) {
            return false;
        }
        // The number comes last: one that no frame tells of would hold up all later messages.
        let Some(key) = self.expose_for(send.peer, send.payload, id) else {
            self.finish(id, Err(Fault::Busy), 0);
            return true;
        };
        let session = self.peers.session_mut(send.peer);
        let message = session.and_then(|session| session.take_rts(send.channel));
        let message = message.expect("a region changes no credit");
        if let Some(Kind::Send(state)) = self.operations.get_mut(id).map(|it| &mut it.kind) {
            state.message = message;
        }
        self.announce(id, send, message, key);
        true
    }

    /// A rail let go of an eager frame.
    #[inline(always)]
    pub(crate) fn eager_left(&mut self, id: OperationId, outcome: Result<(), Fault>) {
        let Some(operation) = self.operations.get(id) else { return };
        if let Kind::Send(SendState { send, stage: SendStage::Eager { link }, .. }) = operation.kind
        {
            self.frame_left(send.peer, link, false);
            self.mind_payload(link, outcome);
        }
        self.eager_released(id, outcome);
    }

    /// The memory behind an eager frame is free, which does not count any more.
    #[inline(always)]
    pub(crate) fn eager_released(&mut self, id: OperationId, outcome: Result<(), Fault>) {
        let Some(operation) = self.operations.get_mut(id) else { return };
        let Kind::Send(state) = &mut operation.kind else { return };
        let peer = state.send.peer;
        let bytes = state.send.payload.len;
        let in_fragments = operation.retained > 1;
        let acknowledged = outcome.is_ok() && state.send.level != Level::Buffered;
        state.first_left(acknowledged, in_fragments);
        let goes_on = acknowledged || (outcome.is_ok() && in_fragments);
        if !goes_on && operation.ending.is_none() {
            let bytes = if outcome.is_ok() { bytes } else { 0 };
            operation.ending = Some(Ending { outcome, bytes });
        }
        if in_fragments && outcome.is_err() {
            self.give_rest_up(peer, id);
        }
        self.release_memory(id);
        self.pump(peer);
    }

    fn enqueue_send(&mut self, id: OperationId, send: Send) {
        if let Some(peer) = self.peers.get_mut(send.peer) {
            self.operations.enqueue_send(&mut peer.waiting.sends[send.channel as usize], id);
        }
    }

    /// Moves on what waits for this peer: sends, accesses, data frames.
    #[inline]
    pub(crate) fn pump(&mut self, id: PeerId) {
        if self.peers.get(id).is_some_and(Peer::has_waiting) {
            self.pump_waiting(id);
        }
    }

    fn pump_waiting(&mut self, id: PeerId) {
        for channel in 0..CHANNELS {
            while let Some(peer) = self.peers.get_mut(id) {
                let is_up = peer.is_up();
                let queue = &mut peer.waiting.sends[channel];
                let Some(first) = self.operations.first_of(queue).filter(|_| is_up) else { break };
                // Before it starts: an operation may end within the call.
                self.operations.unqueue(queue, first);
                if !self.start_send(first) {
                    if let Some(peer) = self.peers.get_mut(id) {
                        self.operations.put_back(&mut peer.waiting.sends[channel], first);
                    }
                    break;
                }
            }
        }
        self.pump_accesses(id);
        self.pump_immediates(id);
        self.pump_answers(id);
        self.pump_updates(id);
        self.pump_streams(id);
    }
}

pub(crate) fn eager_body(send: &Send, message: u64) -> EagerBody {
    EagerBody::whole(send.bits, message, send.channel as u8, send.level as u8)
}
