//! Sends spans, again until they are acknowledged.

use ropewalk_base::limits::QUEUED_FRAMES_MAX;
use ropewalk_base::verb::LinkId;
use ropewalk_wire::frame::{AckBody, Body, Envelope};

use crate::api::PeerId;
use crate::engine::Core;
use crate::orders::{Order, Orders, Payload};

impl Core {
    /// Sends a frame as a span.
    pub(crate) fn emit_span(
        &mut self,
        id: PeerId,
        envelope: Envelope,
        body: Body,
        payload: Option<Payload>,
    ) {
        let now = self.now;
        let Some(reliable) = self.reliable_mut(id) else { return };
        if payload.is_none() && reliable.sent.len() >= QUEUED_FRAMES_MAX {
            return self.refuse_unacknowledged(id);
        }
        let index = reliable.sent.add(envelope, body, payload, now);
        self.transmit(id, index);
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

    pub(super) fn transmit(&mut self, id: PeerId, index: usize) {
        let (now, after) = (self.now, self.config.resend_after);
        let Some(peer) = self.peers.get_mut(id) else { return };
        let Some(link) = peer.link() else { return };
        let Some(session) = peer.session.as_mut() else { return };
        let name = session.name();
        let Some(reliable) = session.reliable.as_mut() else { return };
        let Some(sent) = reliable.sent.ready(index) else { return };
        let again = sent.try_again(now);
        let Ok(slot) = self.orders.insert(Order::Span { peer: id, span: sent.span }, link) else {
            return;
        };
        sent.in_rail = Some(slot);
        sent.envelope.session = name;
        let (envelope, body, payload) = (sent.envelope, sent.body, sent.payload);
        if again {
            self.counters.frames_re_sent += 1;
        }
        let due = now + after;
        reliable.sent.resend_by(due);
        self.wake_by(id, due);
        self.emit_on(link, envelope, &body, payload, Orders::token(slot));
    }

    /// The rail let go of a span.
    pub(crate) fn span_released(&mut self, id: PeerId, span: u64) {
        let Some(reliable) = self.reliable_mut(id) else { return };
        match reliable.sent.release(span) {
            Err(()) => self.keep_span(id, span),
            Ok(Some(payload)) => self.span_ended(id, payload.order, Ok(())),
            Ok(None) => {}
        }
    }

    /// The peer acknowledges spans.
    pub(crate) fn arrive_ack(&mut self, id: PeerId, ack: &AckBody) {
        let Some(reliable) = self.reliable_mut(id) else { return };
        for order in reliable.sent.acknowledge(ack) {
            self.span_ended(id, order, Ok(()));
        }
    }
}
