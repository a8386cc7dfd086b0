//! The fast exit of a post: the frame of a message that can leave at once is handed over within the post. The message
//! is no operation then, unless its rail keeps the frame.

use ropewalk_base::verb::{FrameOrder, Ordered, Token, Urgency};
use ropewalk_wire::frame::{self, Envelope};

use super::sending::eager_body;
use crate::api::*;
use crate::engine::Core;
use crate::operation::{Kind, SendStage, SendState};

impl Core {
    /// Writes the frame of a message that can leave at once, with nothing to be remembered of it but the
    /// count of credit. If it cannot, nothing happened.
    #[inline(always)]
    pub(super) fn leave_inline(&mut self, id: OperationId, send: &Send) -> bool {
        if send.level != Level::Buffered || self.closing || self.has_outputs() {
            return false;
        }
        let Some(peer) = self.peers.get_mut(send.peer) else { return false };
        let Some(session) = peer.session.as_mut() else { return false };
        let Some(link) = session.inline() else { return false };
        let (granted, len) = (&session.granted, send.payload.len);
        let leaves = len <= granted.eager_bytes().min(granted.frame_bytes())
            && peer.waiting.sends[send.channel as usize].is_empty()
            && session.paths.only_has_room();
        if !leaves {
            return false;
        }
        let Some(message) = session.take_eager(send.channel, len) else { return false };
        self.counters.messages_eager_sent += 1;
        let (session, payload_bytes) = (session.name(), len as u32);
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
            envelope.packet = state.packet as u32;
        }
        frame::encode_content(&mut frame.header, envelope, &body);
        true
    }

    /// The frame of [`Sending::Inline`].
    #[inline]
    pub fn inline_frame(&mut self) -> &mut FrameOrder {
        &mut self.outputs.inline
    }

    /// The rail's answer to the frame of [`Sending::Inline`]. Returns the completion if the message is over and its
    /// memory free; else it is an operation like others from now on.
    #[inline(always)]
    pub fn inline_sent(
        &mut self,
        id: OperationId,
        send: Send,
        answer: Ordered,
    ) -> Option<Completion> {
        let bytes = send.payload.len;
        if answer == Ordered::Released {
            return Some(Completion {
                operation: id,
                outcome: Ok(()),
                bytes,
                message_bytes: bytes,
                peer: Some(send.peer),
                bits: send.bits,
            });
        }
        let mut message = 0;
        let link = self.outputs.inline.link;
        if let Some(session) = self.peers.session_mut(send.peer) {
            session.paths.frame_begun(link, Urgency::Urgent, None, &self.orders);
            message = session.send_next[send.channel as usize] - 1;
        }
        let stage = SendStage::Eager { link };
        let state = SendState { send, stage, message };
        self.operations.insert(id, Kind::Send(state)).retained = 1;
        self.operations.own(id, send.peer);
        self.ordered(Token(id.0.to_u64()), answer);
        None
    }
}
