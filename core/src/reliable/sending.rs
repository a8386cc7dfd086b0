//! Sends spans, again until they are acknowledged.

use ropewalk_base::error::Fault;
use ropewalk_base::limits::QUEUED_FRAMES_MAX;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{LinkId, Urgency, Verb};
use ropewalk_wire::frame::{AckBody, Body, Envelope, FLAG_REDUNDANT};

use super::sent::{Ended, Released, SentSpans};
use super::striping;
use crate::api::{Channel, Output, PeerId, Plant};
use crate::engine::{Core, put_on};
use crate::orders::{Order, Orders, Payload};
use crate::session::Going;

impl Core {
    /// From now on messages to a peer on a channel go over two of its paths at once, where there are several, or over one.
    pub fn set_redundant(&mut self, peer: PeerId, channel: Channel, redundant: bool) {
        for id in [peer, self.resolve(peer)] {
            if let Some(peer) = self.peers.get_mut(id) {
                peer.redundant.set(channel, redundant);
            }
        }
    }

    /// Sends a frame as a span.
    pub(crate) fn emit_span(
        &mut self,
        id: PeerId,
        envelope: Envelope,
        body: Body,
        payload: Option<Payload>,
    ) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        let Some(session) = peer.session.as_mut() else { return };
        let Some(reliable) = session.reliable.as_mut() else { return };
        if payload.is_none() && reliable.sent.len() >= QUEUED_FRAMES_MAX {
            return self.refuse_unacknowledged(id);
        }
        let (path, link) = session.paths.span_begun(payload.map(|payload| payload.urgency));
        let answers = reliable.answers_redundantly;
        let redundant = session.paths.are_several() && peer.redundant.covers(&body, answers);
        let span = reliable.sent.add(envelope, body, payload, path, redundant);
        if session.paths.is_resting() {
            return self.want_session(id);
        }
        match link {
            Some(link) if !redundant => self.transmit_over(id, span, link, false),
            _ => self.transmit(id, span),
        }
    }

    /// A peer that acknowledges nothing, but makes us answer: its session ends with its links, and what
    /// is left out until then does not matter.
    #[cold]
    fn refuse_unacknowledged(&mut self, id: PeerId) {
        let Some(session) = self.peers.session(id) else { return };
        let links: Vec<LinkId> = session.paths.links().collect();
        for link in links {
            self.break_link(link);
            self.close_link(link);
        }
    }

    /// Sends a span over the link that is best for it, and over another one if it is redundant, unless the link's rail has
    /// it, or the peer.
    pub(crate) fn transmit(&mut self, id: PeerId, span: u64) {
        let session = self.peers.session(id);
        let Some((link, beside)) =
            session.and_then(|it| striping::links_for(it, span, &self.routes.controllers))
        else {
            return;
        };
        self.transmit_over(id, span, link, false);
        if let Some(link) = beside {
            self.transmit_over(id, span, link, true);
        }
    }

    /// Sends a span over a link, unless the link's rail has it, or the peer. `beside`: just now it went over another one.
    pub(super) fn transmit_over(&mut self, id: PeerId, span: u64, link: LinkId, beside: bool) {
        let now = self.now;
        let after = self.resend_after(Some(link));
        let mut due = SentSpans::first_look(now, after);
        let Some(peer) = self.peers.get_mut(id) else { return };
        let Some(session) = peer.session.as_mut() else { return };
        let name = session.name();
        let Some(reliable) = session.reliable.as_mut() else { return };
        if reliable.sent.hold_back(span) {
            return;
        }
        let Some(was_there) = reliable.sent.may_go_where(span, link) else { return };
        reliable.sent.resend_by(due);
        // Of several paths only those that the peer uses are sure to bring it an acknowledgement.
        let hears = !session.paths.are_several() || reliable.is_heard_over(link);
        if let Ok(order) = self.orders.insert(Order::Span { peer: id, span }, link)
            && let Some(sent) = reliable.sent.send(span, link, order, now)
        {
            let bulk = sent.payload.is_some_and(|payload| payload.urgency == Urgency::Bulk);
            let rides = !bulk && hears;
            let placed = if rides { reliable.window.ride() } else { reliable.window.cumulative() };
            sent.envelope.session = name;
            sent.envelope.acknowledged = placed as u32;
            sent.envelope.attempt = sent.attempt.try_into().unwrap_or(u16::MAX);
            let goes_twice = sent.redundant && (beside || sent.attempt == 1);
            sent.envelope.flags = if goes_twice { FLAG_REDUNDANT } else { 0 };
            let is_again = sent.attempt > 1 && !beside;
            self.counters.spans_redundant += u64::from(beside);
            self.counters.frames_re_sent += u64::from(is_again);
            let bytes = sent.bytes();
            let payload_bytes = sent.payload.map_or(0, |payload| payload.slice.len);
            let going = Going { bytes, payload_bytes, is_again, was_there };
            let to = (&mut self.links, &mut self.outputs);
            let (body, payload) = (&sent.body, sent.payload.as_ref());
            put_on(to, link, sent.envelope, body, payload, Orders::token(order));
            due = due.min(session.goes(link, going, &mut self.routes.controllers, now));
        }
        self.wake_by(id, due);
    }

    /// The rail of a link let go of a span.
    pub(crate) fn span_released(&mut self, id: PeerId, span: u64, link: LinkId) {
        let now = self.now;
        let Some(reliable) = self.reliable_mut(id) else { return };
        match reliable.sent.released(span, link, now) {
            Released::Awaited => {}
            Released::Leaving => self.keep_span(id, span),
            Released::Over(payload) => {
                if let Some((payload, path)) = payload {
                    self.span_ended(id, path, payload.order);
                }
            }
        }
    }

    /// The peer acknowledges spans.
    pub(crate) fn arrive_ack(&mut self, id: PeerId, link: LinkId, ack: &AckBody) {
        let early = self.config.plant == Plant::EndsBeforeRelease;
        let Some(session) = self.peers.session_mut(id) else { return };
        if session.paths.are_several()
            && let Some(bundle) = session.bundle_mut()
        {
            bundle.promised.note(ack.delay.get());
        }
        let Some(reliable) = session.reliable.as_deref_mut() else { return };
        let was_full = !reliable.sent.has_room();
        reliable.sent.ends_early = early;
        reliable.sent.acknowledge(link, ack);
        self.spans_ended(id, was_full);
    }

    /// The peer acknowledges spans on a frame that goes anyway.
    pub(super) fn arrive_acknowledged(&mut self, id: PeerId, link: LinkId, acknowledged: u32) {
        let Some(reliable) = self.reliable_mut(id) else { return };
        let was_full = !reliable.sent.has_room();
        if reliable.sent.acknowledge_low(link, acknowledged) {
            self.spans_ended(id, was_full);
        }
    }

    /// The peer acknowledged spans. `was_full`: operations waited for room.
    fn spans_ended(&mut self, id: PeerId, was_full: bool) {
        let stripes = self.paths_delivered(id);
        while let Some(ended) = self.reliable_mut(id).and_then(|it| it.sent.next_ended()) {
            self.acknowledged(id, ended);
        }
        let reliable = self.reliable_mut(id);
        let (let_go, has_hole) = reliable.map_or((0..0, false), |reliable| {
            (reliable.sent.let_go(), reliable.sent.oldest_hole().is_some())
        });
        let_go.for_each(|span| self.transmit(id, span));
        if stripes && has_hole {
            self.fill_hole(id);
        }
        if was_full || stripes {
            self.pump(id);
        }
    }

    /// An acknowledgement of a span of the session with a peer brought this about.
    pub(super) fn acknowledged(&mut self, id: PeerId, ended: Ended) {
        match ended {
            Ended::Order(order, path) => self.span_ended(id, path, order),
            Ended::Detach { link, order } => self.forget_copy(link, order),
        }
    }

    /// Has a link's rail forget its copy of a span, which has arrived or goes over another link.
    fn forget_copy(&mut self, link: LinkId, order: SlotId) {
        let token = Orders::token(order);
        self.outputs.push(Output::Verb(Verb::SkipSend { link, token }));
    }

    /// A link carries a session no more: its rail lets go of what it has, and nothing is awaited over it.
    /// Returns the bytes that go again.
    pub(super) fn lose_copies(&mut self, id: PeerId, link: LinkId) -> u64 {
        let Some(reliable) = self.reliable_mut(id) else { return 0 };
        let lost = reliable.sent.lost(link);
        let bytes = lost.spans.iter().map(|span| reliable.sent.bytes_of(*span)).sum();
        self.history.moved(link, lost.spans.len() as u64, bytes);
        if let Some(session) = self.peers.session_mut(id) {
            session.paths.bytes_given_up(link, &mut self.routes.controllers);
        }
        lost.orders.into_iter().for_each(|order| self.forget_copy(link, order));
        lost.spans.into_iter().for_each(|span| self.transmit(id, span));
        bytes
    }

    /// One of several rails that had the payload of a span when its session ended let go of it.
    pub(crate) fn share_released(&mut self, with: SlotId, outcome: Result<(), Fault>) {
        let share = Order::Shared { with };
        if self.orders.iter().all(|(_, entry)| entry.order != share)
            && let Some(entry) = self.orders.remove(with)
        {
            self.order_ended(entry.order, outcome);
        }
    }
}
