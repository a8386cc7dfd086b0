//! The short way out: a small message that can leave at once is never an operation.

use ropewalk_base::verb::{FrameOrder, Ordered, Token, Urgency};
use ropewalk_wire::frame::{self, Envelope};

use super::sending::eager_body;
use crate::api::*;
use crate::engine::Core;
use crate::operation::{Kind, SendStage, SendState};

impl Core {
    /// Whether a message can leave in this very moment, with nothing to be remembered of it but the
    /// count of credit. If so its frame is in [`Core::inline_frame`], for the rail at once, whose
    /// answer goes to [`Core::inline_sent`]; if not, nothing happened.
    #[inline]
    pub fn send_inline(&mut self, id: OperationId, send: &mut Send) -> bool {
        if send.level != Level::Buffered || self.closing || self.has_outputs() {
            return false;
        }
        // Until it is sure to leave it may yet go the long way, under the name that it has.
        let (meant, barred) = self.meant(send.peer);
        let peer = self.peers.get_mut(meant);
        let Some(peer) = peer.filter(|_| barred.is_none()) else { return false };
        let Some(link) = peer.link() else { return false };
        if send.payload.len
            > peer.session.granted.eager_bytes().min(peer.session.granted.frame_bytes())
        {
            return false;
        }
        let channel = send.channel as usize;
        let waits = !peer.waiting[channel].is_empty()
            || !peer.in_flight.has_room()
            || peer.session.reliable.is_some();
        if link == LOOP_LINK
            || waits
            || !peer.session.granted.take_eager(send.channel, send.payload.len)
        {
            return false;
        }
        send.peer = meant;
        let message = peer.session.send_next[channel];
        peer.session.send_next[channel] += 1;
        self.counters.messages_eager_sent += 1;
        let (session, payload_bytes) = (peer.session.id, send.payload.len as u32);
        let body = eager_body(send, message);
        let frame = &mut self.outputs.inline;
        frame.link = link;
        frame.payload = send.payload;
        frame.token = Token(id.0.to_u64());
        if self.rails.of(link).is_some_and(|rail| rail.intact) {
            frame::encode_short(&mut frame.header, session, payload_bytes, &body);
            return true;
        }
        let mut envelope = Envelope { session, payload_bytes, ..Envelope::default() };
        if let Some(state) = self.links.get_mut(link) {
            state.packet += 1;
            envelope.packet = state.packet;
        }
        frame::encode_content(&mut frame.header, envelope, &body);
        true
    }

    /// The frame of a message that [`Core::send_inline`] lets leave at once.
    #[inline]
    pub fn inline_frame(&mut self) -> &mut FrameOrder {
        &mut self.outputs.inline
    }

    /// The rail's answer to [`Core::inline_frame`]. True where the message is over and its memory
    /// free; else it is an operation like others from now on.
    #[inline]
    pub fn inline_sent(&mut self, id: OperationId, send: Send, answer: Ordered) -> bool {
        if answer == Ordered::Released {
            return true;
        }
        let mut message = 0;
        if let Some(peer) = self.peers.get_mut(send.peer) {
            peer.in_flight.begin(Urgency::Urgent);
            message = peer.session.send_next[send.channel as usize] - 1;
        }
        let state = SendState { send, stage: SendStage::Eager, message };
        self.operations.insert(id, Kind::Send(state)).retained = 1;
        self.operations.own(id, send.peer);
        self.ordered(Token(id.0.to_u64()), answer);
        false
    }
}
