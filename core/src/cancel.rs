//! Cancel: the way out of an operation in every stage, also where its peer is stopped.
//!
//! An operation ends when no rail holds its memory, and a rail that waits for its peer might hold it for
//! ever. So rails are told to let go: of a frame's payload (what is left of it goes from a private copy,
//! since the stream has to stay well formed), of a place (the rest of the payload goes nowhere), of a
//! native access. Where spans are kept until the peer has them, their payloads move to a buffer of the
//! endpoint.
//!
//! Invariants: a frame counts against its path's windows until it has left, whoever has its bytes, so
//! that private copies are bounded by these windows; neighbours are not touched. A peer that is writing to
//! exposed memory natively at this very moment is waited for: see `Rail::order`.

use ropewalk_base::error::Fault;
use ropewalk_base::memory::BufferId;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{LinkId, Ordered, Token, Verb};

use crate::api::*;
use crate::eager::wanted;
use crate::engine::Core;
use crate::incoming::{Incoming, IncomingKind};
use crate::matching::Content;
use crate::operation::{Kind, ReceiveStage, SendStage, SendState};
use crate::orders::{Entry, Named, Order, Orders};
use crate::path::LinkStage;

impl Core {
    /// Ends an operation early. False where it is too late, or it is unknown: then its completion
    /// comes, or came, by itself. After true it completes, mostly with `Cancelled`.
    ///
    /// A small message that is on its way may still be delivered, as it was posted.
    pub fn cancel(&mut self, id: OperationId) -> bool {
        let Some(operation) = self.operations.get_mut(id) else { return false };
        let over = operation.ending.is_some();
        if !over {
            operation.cancelled = true;
            self.end_early(id);
        }
        // Also where it ends with something else: what keeps it may be a rail that a peer blocks.
        self.take_back(id);
        !over
    }

    fn end_early(&mut self, id: OperationId) {
        let Some(operation) = self.operations.get(id) else { return };
        match &operation.kind {
            Kind::Receive(state) => match &state.stage {
                ReceiveStage::Posted { post } => {
                    self.matching.withdraw(*post, wanted(&state.receive));
                    self.finish(id, Err(Fault::Cancelled), 0);
                }
                ReceiveStage::Placing => {
                    let claimed = (operation.retained == 0).then_some((
                        state.receive.channel,
                        state.from,
                        state.bits,
                    ));
                    self.finish(id, Err(Fault::Cancelled), 0);
                    if let Some((channel, Some(peer), bits)) = claimed {
                        self.give_claim_back(id, channel, peer, bits);
                    }
                }
                ReceiveStage::Fetching { .. } => self.access_ended(id, Err(Fault::Cancelled)),
            },
            Kind::Access(_) => self.access_ended(id, Err(Fault::Cancelled)),
            Kind::Send(state) => match state.stage {
                SendStage::Waiting { .. } => {
                    let (peer, channel) = (state.send.peer, state.send.channel as usize);
                    self.unqueue_send(peer, channel, id);
                    self.finish(id, Err(Fault::Cancelled), 0);
                    // Those behind it may have what the first of the queue lacked.
                    self.pump(peer);
                }
                SendStage::Rendezvous { .. } => self.abort_rendezvous(id),
                SendStage::Eager { .. } | SendStage::Fragments | SendStage::Acknowledge => {
                    let (peer, key) = (state.send.peer, (state.send.channel as u8, state.message));
                    if let Some(session) = self.peers.session_mut(peer) {
                        session.unfinished.remove(&key);
                    }
                    self.finish(id, Err(Fault::Cancelled), 0);
                }
            },
        }
    }

    /// A message that is arriving was claimed by a receive that is gone: it is for others again, and
    /// first for those that are posted.
    fn give_claim_back(&mut self, id: OperationId, channel: Channel, peer: PeerId, bits: u64) {
        let Some(found) = self.matching.find_claimed(channel, peer, bits, id) else { return };
        let bytes = self.matching.message_mut(found).map_or(0, |message| message.bytes);
        let claimed_by = self.accepting(channel, peer, bits, bytes);
        if let Some(operation) = claimed_by {
            self.assign(operation, peer, bits, bytes);
        }
        if let Some(message) = self.matching.message_mut(found) {
            message.content = Content::Arriving { claimed_by };
        }
    }

    /// Has rails let go of the memory of an operation that is about to end.
    pub(crate) fn take_back(&mut self, id: OperationId) {
        let Some(operation) = self.operations.get(id).filter(|operation| operation.retained > 0)
        else {
            return;
        };
        match &operation.kind {
            Kind::Send(state) => match state.stage {
                SendStage::Rendezvous { region } => self.take_region_back(region, true),
                stage => {
                    let peer = state.send.peer;
                    self.give_rest_up(peer, id);
                    let first = |order: &Order| *order == Order::Eager { operation: id };
                    let is_entry = self.detach_frames(peer, true, first);
                    if let SendStage::Eager { link } = stage
                        && !is_entry
                    {
                        self.detach(peer, link, Token(id.0.to_u64()), false);
                    }
                    self.detach_frames(peer, true, |order| {
                        matches!(*order, Order::Fragment { operation, .. } if operation == id)
                    });
                }
            },
            Kind::Receive(_) | Kind::Access(_) => {
                let from = match &operation.kind {
                    Kind::Receive(state) => state.from,
                    _ => self.operations.peer(operation),
                };
                self.stop_native(id);
                self.give_places_up(from, |kind| {
                    matches!(*kind, IncomingKind::Eager { operation, .. }
                        | IncomingKind::Fragment { operation: Some(operation), .. }
                        | IncomingKind::Elements { operation, .. }
                        | IncomingKind::Data { operation, .. } if operation == id)
                });
                if let Some(peer) = from {
                    self.detach_frames(peer, true, |order| {
                        matches!(*order, Order::PutFrame { operation, .. } if operation == id)
                    });
                }
            }
        }
    }

    /// Has rails let go of the memory of a region that is closing. `kept`: of what a peer has not
    /// acknowledged, too.
    pub(crate) fn take_region_back(&mut self, slot: SlotId, kept: bool) {
        let Some(region) = self.regions.get(slot).filter(|region| region.retained > 0) else {
            return;
        };
        let of =
            |order: &Order| matches!(*order, Order::ServeFrame { region, .. } if region == slot);
        let peers: Vec<PeerId> = match region.audience {
            Audience::One(peer) => vec![self.resolve(peer)],
            Audience::Everybody | Audience::Group(_) => {
                self.peers.iter().map(|(id, _)| id).collect()
            }
        };
        let links: Vec<LinkId> = match region.audience {
            Audience::One(peer) => self.links_with(peer),
            Audience::Everybody | Audience::Group(_) => {
                self.links.iter().map(|(link, _)| link).collect()
            }
        };
        let left = links.into_iter().filter(|link| self.is_left(*link)).collect();
        self.detach_left_behind(left, &of);
        for peer in peers {
            self.detach_of_session(peer, kept, &of);
            self.give_places_up(Some(peer), |kind| match kind {
                IncomingKind::Put(put) => put.region == slot,
                IncomingKind::LockedPut { region, .. } => *region == slot,
                _ => false,
            });
        }
    }

    /// Has rails let go of the payloads of such frames to a peer. `kept`: of those that it has not acknowledged, too.
    /// False where there are none.
    fn detach_frames(&mut self, id: PeerId, kept: bool, of: impl Fn(&Order) -> bool) -> bool {
        let left = self.links_with(id).into_iter().filter(|link| self.is_left(*link)).collect();
        let any = self.detach_left_behind(left, &of);
        self.detach_of_session(id, kept, &of) || any
    }

    /// The same for those of the session that there is.
    fn detach_of_session(&mut self, id: PeerId, kept: bool, of: &impl Fn(&Order) -> bool) -> bool {
        let Some(session) = self.peers.session(id) else { return false };
        if let Some(reliable) = &session.reliable {
            let spans = if kept { reliable.sent.spans_of(of) } else { Vec::new() };
            let any = !spans.is_empty();
            spans.into_iter().for_each(|span| self.detach_span(id, span));
            return any;
        }
        let slots = session.paths.orders(&self.orders, of);
        self.detach_orders(slots)
    }

    /// The same for those of sessions that have ended, over such links.
    fn detach_left_behind(&mut self, links: Vec<LinkId>, of: &impl Fn(&Order) -> bool) -> bool {
        if links.is_empty() {
            return false;
        }
        let slots = self.orders.over(&links, of);
        self.detach_orders(slots)
    }

    /// Whether a link is one that a session had when it ended: its rail may still hold frames.
    fn is_left(&self, link: LinkId) -> bool {
        let state = self.links.get(link).filter(|state| state.stage == LinkStage::Closing);
        let peer = state.and_then(|state| self.peers.get(self.resolve(state.peer?)));
        let session = peer.and_then(|peer| peer.session.as_ref());
        state.is_some() && session.is_none_or(|session| !session.paths.carries(link))
    }

    fn detach_orders(&mut self, slots: Vec<SlotId>) -> bool {
        let any = !slots.is_empty();
        for slot in slots {
            let Some(&Entry { order, link }) = self.orders.get(slot) else { continue };
            let Some(peer) = self.peer_of_order(&order) else { continue };
            self.detach(peer, link, Orders::token(slot), order.is_bulk());
        }
        any
    }

    /// The peer to whom the frame of an order went.
    fn peer_of_order(&self, order: &Order) -> Option<PeerId> {
        let Order::Eager { operation } = *order else { return order.peer() };
        self.operations.peer(self.operations.get(operation)?)
    }

    fn detach(&mut self, peer: PeerId, link: LinkId, token: Token, bulk: bool) {
        if link == LOOP_LINK {
            return;
        }
        // It counts until it has left.
        let Ok(later) = self.orders.insert(Order::Detached { peer, bulk }, link) else { return };
        let later = Orders::token(later);
        self.outputs.push(Output::Verb(Verb::DetachSend { link, token, later }));
    }

    /// Has the rail give a native access up.
    fn stop_native(&mut self, id: OperationId) {
        self.stop_parts(id);
        let Some(state) = self.access_mut(id) else { return };
        let Some(slot) = state.native else { return };
        // Its link may be one that is closing, while another carries the session.
        if let Some(&Entry { order: Order::Native { operation, .. }, link }) = self.orders.get(slot)
            && operation == id
        {
            let token = Orders::token(slot);
            self.outputs.push(Output::Verb(Verb::CancelAccess { link, token }));
        }
    }

    /// Has the rail give up all native accesses over a link that closes.
    pub(crate) fn stop_natives_of(&mut self, closing: LinkId) {
        for slot in self.orders.over(&[closing], Order::is_native) {
            let (link, token) = (closing, Orders::token(slot));
            self.outputs.push(Output::Verb(Verb::CancelAccess { link, token }));
        }
    }

    /// Has the rail give up all reads over a link whose path is suspect: what they have not read goes over another.
    /// Nothing is written natively in a session that has several paths.
    pub(crate) fn stop_reads_over(&mut self, link: LinkId) {
        self.stop_natives_of(link);
    }

    /// Has rails give such places up, and forgets those that wait for their span to come again.
    pub(crate) fn give_places_up(
        &mut self,
        from: Option<PeerId>,
        of: impl Fn(&IncomingKind) -> bool,
    ) {
        for link in from.map(|id| self.links_with(id)).unwrap_or_default() {
            for slot in self.incoming.of(link) {
                self.give_apart_up(slot, &of);
                let such = self.incoming.get_mut(slot).filter(|incoming| of(&incoming.kind));
                if let Some(incoming) = such {
                    // Also what was to go on with another copy of its span.
                    incoming.broken_off = false;
                    let token = Token(slot.to_u64());
                    self.outputs.push(Output::Verb(Verb::CancelReceive { link, token }));
                }
            }
        }
        let broken = from
            .and_then(|id| self.reliable_mut(id))
            .map(|reliable| reliable.window.take_broken(|incoming| of(&incoming.kind)));
        for incoming in broken.into_iter().flatten() {
            self.place_given_up(incoming);
        }
    }

    /// The same for a place whose bytes come apart: no rail writes there, and they come to nothing.
    fn give_apart_up(&mut self, slot: SlotId, of: &impl Fn(&IncomingKind) -> bool) {
        let Some(IncomingKind::Apart { place }) = self.incoming.get(slot).map(|it| it.kind) else {
            return;
        };
        if self.incoming.get(place).is_some_and(|incoming| of(&incoming.kind))
            && let Some(incoming) = self.incoming.remove(place)
        {
            self.place_given_up(incoming);
        }
    }

    /// The links with a peer, those begun under other names of it included.
    pub(crate) fn links_with(&self, id: PeerId) -> Vec<LinkId> {
        let id = self.resolve(id);
        let mut links = self.links.of_peer(id);
        let aliases = self.peers.get(id).into_iter().flat_map(|peer| &peer.names.aliases);
        links.extend(aliases.flat_map(|alias| self.links.of_peer(*alias)));
        links
    }

    /// A rail's answer to an order to let go: `DetachSend`, `SkipSend`, `CancelAccess` or `CancelReceive`.
    pub fn took_back(&mut self, verb: &Verb, answer: Ordered) {
        let released = answer == Ordered::Released;
        match *verb {
            Verb::DetachSend { token, later, .. } => self.detached(token, later, released),
            Verb::SkipSend { token, .. } => self.detached(token, Token::NONE, released),
            Verb::CancelAccess { token, .. } if released => {
                self.counters.accesses_stopped += 1;
                let Some(Entry { order, link }) = self.orders.take(token) else { return };
                // Where it was not cancelled its link closes, or is suspect, and is lost to it.
                match order {
                    Order::Native { operation, peer, bytes } => {
                        self.native_ended(operation, peer, link, bytes, Err(Fault::PeerReset));
                        self.pump(peer);
                    }
                    Order::Part { operation, peer, part } => {
                        self.part_stopped(operation, peer, link, part);
                        self.pump(peer);
                    }
                    _ => {}
                }
            }
            Verb::CancelReceive { token, .. } if released => {
                self.counters.places_given_up += 1;
                match self.incoming.remove(SlotId::from_u64(token.0)) {
                    Some(incoming) if incoming.broken_off => {
                        self.undo_incoming(incoming, Fault::PeerReset);
                    }
                    Some(incoming) => self.place_given_up(incoming),
                    None => {}
                }
            }
            _ => {}
        }
    }

    fn detached(&mut self, token: Token, later: Token, released: bool) {
        if !released {
            // Its outcome comes by itself.
            self.orders.take(later);
            return;
        }
        self.counters.frames_detached += 1;
        if let Named::Eager(operation) = Orders::named(token) {
            return self.order_memory_released(Order::Eager { operation });
        }
        let Some(Entry { order, link }) = self.orders.take(token) else { return };
        match order {
            Order::Span { peer, span } => self.span_released(peer, span, link),
            // The session of a span ended meanwhile: nothing counts it any more.
            order if later == Token::NONE => self.order_ended(order, Err(Fault::PeerReset)),
            order => self.order_memory_released(order),
        }
    }

    /// The memory behind an order is free; its frame still counts.
    pub(crate) fn order_memory_released(&mut self, order: Order) {
        match order {
            Order::Eager { operation } => {
                let state = self.operations.get_mut(operation).map(|it| &mut it.kind);
                if let Some(Kind::Send(state)) = state {
                    state.first_left(false, true);
                }
                self.release_memory(operation);
            }
            Order::Fragment { operation, .. } | Order::PutFrame { operation, .. } => {
                self.release_memory(operation);
            }
            Order::ServeFrame { region, .. } => self.release_region(region),
            Order::Answer { .. } => self.answer_released(order),
            Order::Kept { buffer, .. } | Order::Greeting { buffer } => {
                self.outputs.push(Output::Release(buffer));
            }
            Order::Native { .. }
            | Order::Part { .. }
            | Order::Span { .. }
            | Order::Shared { .. }
            | Order::Detached { .. } => {
                unreachable!("{order:?} has no payload")
            }
        }
    }

    /// Nothing lands there any more, and what was to land there does not come again.
    fn place_given_up(&mut self, incoming: Incoming) {
        if let IncomingKind::Copy { attempt } = incoming.kind {
            return self.copy_lost(attempt, &incoming);
        }
        let Incoming { peer, session, span, kind, payload_bytes, .. } = incoming;
        let peer = peer.filter(|peer| self.peers.has_session(*peer, session));
        if let Some(peer) = peer {
            self.span_placed(peer, span);
        }
        match kind {
            IncomingKind::Eager { operation, message, asked } => {
                let state = self.operations.get(operation).map(|it| &it.kind);
                if let (Some(Kind::Receive(state)), Some(peer)) = (state, peer)
                    && asked != Level::Buffered as u8
                {
                    let channel = state.receive.channel;
                    self.emit_fin(peer, channel, message, Err(Fault::Cancelled), 0);
                }
                self.release_memory(operation);
            }
            IncomingKind::Data { operation, .. } => self.release_memory(operation),
            IncomingKind::Elements { operation, number, applied } => {
                if let Some(peer) = peer {
                    self.elements_received(peer, number, applied);
                }
                self.release_memory(operation);
            }
            IncomingKind::Fragment { assembly, operation } => {
                self.fragment_received(assembly, operation, payload_bytes);
            }
            IncomingKind::LockedPut { region, cookie } => {
                self.locked_put_over(peer, session, (region, cookie), Err(Fault::BadKey));
            }
            IncomingKind::Put(put) => {
                if let Some(peer) = peer {
                    self.operation_over(peer, put.number, Err(Fault::BadKey), true);
                }
                self.release_region(put.region);
            }
            _ => unreachable!("{kind:?} is no place of a user's"),
        }
    }

    /// Moves the payload of a span out of its user's memory, once no rail has it.
    fn detach_span(&mut self, id: PeerId, span: u64) {
        let Some(reliable) = self.reliable_mut(id) else { return };
        let Some(copies) = reliable.sent.leave(span) else { return };
        for (link, order) in copies {
            let (token, later) = (Orders::token(order), Token::NONE);
            self.outputs.push(Output::Verb(Verb::DetachSend { link, token, later }));
        }
        self.keep_span(id, span);
    }

    /// The payload of the span that was sent last is copied as soon as its rail has sent it: its sender may go on. Without
    /// spans that is so anyway.
    #[inline]
    pub(crate) fn keep_when_sent(&mut self, id: PeerId) {
        if let Some(reliable) = self.reliable_mut(id) {
            let last = reliable.sent.last();
            reliable.sent.leave_when_sent(last);
        }
    }

    /// Whether a send ends as soon as its memory is free.
    fn may_end(&self, id: OperationId) -> bool {
        self.operations.get(id).is_some_and(|operation| {
            let is_buffered = |state: &SendState| state.send.level == Level::Buffered;
            let ends = matches!(&operation.kind, Kind::Send(state) if is_buffered(state));
            ends && operation.ending.is_none()
        })
    }

    /// Asks for a copy of a span's payload, where its memory is wanted back.
    pub(crate) fn keep_span(&mut self, id: PeerId, span: u64) {
        let reliable = self.reliable_mut(id);
        let Some(from) = reliable.and_then(|reliable| reliable.sent.leaving(span)) else { return };
        self.outputs.push(Output::Keep { peer: id, span, from });
    }

    /// The buffer with the bytes that `Output::Keep` named; `None` where there was no room: then they
    /// stay where they are until the peer has them.
    pub fn kept(&mut self, id: PeerId, span: u64, buffer: Option<BufferId>) {
        let due = self.now + self.config.resend_after;
        let Some(reliable) = self.reliable_mut(id) else {
            return self.outputs.extend_releases(buffer);
        };
        reliable.sent.resend_by(due);
        match reliable.sent.stay(span, id, buffer) {
            Some(order) => {
                let is_nowhere = reliable.sent.is_nowhere(span);
                self.counters.spans_kept += 1;
                match order {
                    Order::Eager { operation } if self.may_end(operation) => {
                        self.eager_released(operation, Ok(()));
                    }
                    order => self.order_memory_released(order),
                }
                if is_nowhere {
                    self.transmit(id, span);
                }
            }
            None => self.outputs.extend_releases(buffer),
        }
        self.wake_by(id, due);
    }
}

#[cfg(test)]
mod tests;
