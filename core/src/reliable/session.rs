//! A session with spans: its timers, a new link, its end.

use ropewalk_base::error::Fault;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::Token;
use ropewalk_wire::frame::{Body, Envelope};

use super::Reliable;
use crate::api::PeerId;
use crate::engine::Core;
use crate::orders::{Order, Payload};

impl Core {
    /// The spans of the session with a peer, where it has such.
    pub(crate) fn reliable_mut(&mut self, id: PeerId) -> Option<&mut Reliable> {
        self.peers.session_mut(id)?.reliable.as_deref_mut()
    }

    pub(crate) fn run_span_timers(&mut self, id: PeerId) {
        let (now, after) = (self.now, self.config.resend_after);
        let link = self.peer_link(id);
        let Some(reliable) = self.reliable_mut(id) else { return };
        let confirm = reliable.confirmation.again_at().is_some_and(|at| at <= now);
        let acknowledge = reliable.window.acknowledge_at().is_some_and(|at| at <= now);
        let due = link.map(|link| reliable.sent.due(link, now, after)).unwrap_or_default();
        if confirm {
            self.confirm_again(id);
        }
        if acknowledge {
            self.acknowledge_now(id);
        }
        for span in due {
            self.transmit(id, span);
        }
    }

    /// A new link carries the session on: everything unacknowledged goes again.
    pub(crate) fn resume_spans(&mut self, id: PeerId) {
        let Some(link) = self.peer_link(id) else { return };
        let Some(reliable) = self.reliable_mut(id) else { return };
        for other in reliable.sent.links_but(link) {
            self.lose_copies(id, other);
        }
        let numbers = self.reliable_mut(id).map_or(0..0, |reliable| reliable.sent.numbers());
        numbers.for_each(|span| self.transmit(id, span));
        self.acknowledge_now(id);
    }

    /// The session is over: what its spans held is let go.
    pub(crate) fn drop_spans(&mut self, id: PeerId, session: u32, mut reliable: Reliable) {
        while let Some(ended) = reliable.sent.next_ended() {
            self.span_ended(ended);
        }
        for sent in reliable.sent.into_spans() {
            let held: Vec<SlotId> = sent.held().collect();
            self.drop_sent(sent.payload, &held);
        }
        let mut window = reliable.window;
        for copy in window.take_copies() {
            self.drop_copy(Some(copy));
        }
        for (incoming, _) in window.take_broken(|_| true) {
            self.incoming_lost(incoming, Fault::PeerReset);
        }
        self.drop_held(id, session, reliable.held);
    }

    /// A span of a session that is over. `held`: the orders by which rails have it.
    fn drop_sent(&mut self, payload: Option<Payload>, held: &[SlotId]) {
        let Some(Payload { order, .. }) = payload else {
            held.iter().for_each(|slot| _ = self.orders.remove(*slot));
            return;
        };
        // Those that still have the payload end its order themselves, the last of them if there are several.
        let order = match held {
            [] => return self.order_ended(order, Err(Fault::PeerReset)),
            [_] => order,
            _ => self.orders.insert(order).map_or(order, |with| Order::Shared { with }),
        };
        for slot in held {
            if let Some(held) = self.orders.get_mut(*slot) {
                *held = order;
            }
        }
    }

    /// A link carries the session from now on. Where its frames may be lost, the side that confirmed it does so
    /// until the peer is heard over it, and the other side lets itself be heard. Otherwise one could
    /// wait for ever for a confirmation that was lost while the other has nothing to send.
    pub(crate) fn begin_confirmation(&mut self, id: PeerId, outbound: bool, lossy: bool) {
        let due = self.now + self.config.resend_after;
        let Some(reliable) = self.reliable_mut(id) else { return };
        reliable.confirmation.begin((outbound && lossy).then_some(due));
        if outbound && lossy {
            self.wake_by(id, due);
        } else if lossy {
            self.acknowledge_now(id);
        }
    }

    fn confirm_again(&mut self, id: PeerId) {
        let (now, after) = (self.now, self.config.resend_after);
        let Some(link) = self.peer_link(id) else { return };
        let Some(reliable) = self.reliable_mut(id) else { return };
        if !reliable.confirmation.again(now, after) {
            // The rail's last word suspends the session, which then looks for another link.
            return self.close_link(link);
        }
        self.emit_on(link, Envelope::default(), &Body::Confirm, None, Token::NONE);
    }
}
