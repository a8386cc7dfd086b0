//! Takes spans in, each once, and acknowledges them.

use ropewalk_base::error::Fault;
use ropewalk_base::memory::Slice;
use ropewalk_base::verb::{LinkId, Placement, Token};
use ropewalk_wire::frame::{Arrived, Body, Envelope, Prefix};

use crate::api::PeerId;
use crate::engine::Core;
use crate::incoming::Incoming;

/// How long an acknowledgement may be delayed. A promise to the sender's timer.
const ACKNOWLEDGE_AFTER: std::time::Duration = std::time::Duration::from_millis(1);

impl Core {
    /// A frame of a session with spans.
    pub(crate) fn arrive_span(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        body: Arrived<'_>,
        payload_bytes: u32,
    ) -> Placement {
        let span = prefix.span.get();
        if let Some(reliable) = self.reliable_mut(id) {
            reliable.confirmation.end();
        }
        if span == 0 {
            return match body {
                Arrived::Ack(ack) => {
                    self.arrive_ack(id, link, ack);
                    Placement::Drop
                }
                Arrived::Goodbye => self.dispatch(link, id, prefix, body, payload_bytes),
                _ => self.violation("a frame with an effect has no span"),
            };
        }
        let Some(reliable) = self.reliable_mut(id) else {
            return Placement::Drop;
        };
        if !reliable.window.arrive(span) {
            self.counters.duplicates_dropped += 1;
            self.acknowledge_soon(id, true);
            return Placement::Drop;
        }
        if let Some(incoming) = reliable.window.resume(span) {
            return self.place_again(link, incoming, payload_bytes);
        }
        let placement = self.dispatch(link, id, prefix, body, payload_bytes);
        if matches!(placement, Placement::Drop) {
            self.span_placed(id, span);
        }
        placement
    }

    fn place_again(
        &mut self,
        link: LinkId,
        mut incoming: Incoming,
        payload_bytes: u32,
    ) -> Placement {
        if incoming.payload_bytes != payload_bytes {
            self.incoming_lost(incoming, Fault::PeerReset);
            return self.violation("a span came again with another length");
        }
        (incoming.link, incoming.broken_off) = (link, false);
        let slice = incoming.slice;
        match self.incoming.insert(incoming, false) {
            Ok(slot) if slice.buffer == Slice::NONE.buffer => {
                unreachable!("incoming {slot:?} had its buffer before it broke off")
            }
            Ok(slot) => Placement::Into { slice, token: Token(slot.to_u64()) },
            Err(_) => Placement::Violation("more placements than a link can have"),
        }
    }

    /// A span took effect.
    pub(crate) fn span_placed(&mut self, id: PeerId, span: u64) {
        let Some(reliable) = self.reliable_mut(id) else {
            return;
        };
        if span == 0 {
            return;
        }
        let now = reliable.window.place(span);
        self.acknowledge_soon(id, now);
    }

    /// Keeps a placement that broke off for the span's next coming. False where nothing comes.
    pub(crate) fn keep_broken(&mut self, incoming: Incoming) -> Result<(), Incoming> {
        let Some(id) = incoming.peer else { return Err(incoming) };
        let span = incoming.span;
        let ready = incoming.slice.buffer != Slice::NONE.buffer;
        match self.reliable_mut(id) {
            Some(reliable) if span != 0 && ready => {
                reliable.window.keep_broken(span, incoming);
                Ok(())
            }
            _ => Err(incoming),
        }
    }

    fn acknowledge_soon(&mut self, id: PeerId, at_once: bool) {
        let due = self.now + ACKNOWLEDGE_AFTER;
        if at_once {
            return self.acknowledge_now(id);
        }
        if let Some(reliable) = self.reliable_mut(id) {
            reliable.window.acknowledge_by(due);
            self.wake_by(id, due);
        }
    }

    /// Tells the peer which of its spans are here.
    pub(crate) fn acknowledge_now(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        let Some(link) = peer.link() else { return };
        let Some(session) = peer.session.as_mut() else { return };
        let name = session.name();
        let Some(reliable) = session.reliable.as_mut() else { return };
        let body = Body::Ack(reliable.window.acknowledge());
        let envelope = Envelope { session: name, ..Envelope::default() };
        self.emit_on(link, envelope, &body, None, Token::NONE);
    }
}
