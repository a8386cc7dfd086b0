//! A session with spans: its timers, a new link, its end.

use ropewalk_base::error::Fault;
use ropewalk_base::verb::{LinkId, Token};
use ropewalk_wire::frame::{Body, Envelope};

use super::Reliable;
use crate::api::PeerId;
use crate::engine::Core;

impl Core {
    /// The spans of the session with a peer, where it has such.
    pub(crate) fn reliable_mut(&mut self, id: PeerId) -> Option<&mut Reliable> {
        self.peers.session_mut(id)?.reliable.as_deref_mut()
    }

    pub(crate) fn run_span_timers(&mut self, id: PeerId) {
        let (now, after) = (self.now, self.config.resend_after);
        let Some(reliable) = self.reliable_mut(id) else { return };
        let acknowledge = reliable.window.acknowledge_at().is_some_and(|at| at <= now);
        let due = reliable.sent.due(now, after);
        self.confirm_again(id);
        if acknowledge {
            self.acknowledge_now(id);
        }
        for index in due {
            self.transmit(id, index);
        }
    }

    /// A new link carries the session on: everything unacknowledged goes again.
    pub(crate) fn resume_spans(&mut self, id: PeerId) {
        let count = self.reliable_mut(id).map_or(0, |reliable| reliable.sent.len());
        for index in 0..count {
            self.transmit(id, index);
        }
        self.acknowledge_now(id);
    }

    /// The session is over: what its spans held is let go.
    pub(crate) fn drop_spans(&mut self, id: PeerId, session: u32, reliable: Reliable) {
        for sent in reliable.sent.into_spans() {
            let in_rail = sent.in_rail.and_then(|slot| self.orders.get_mut(slot));
            match (sent.payload, in_rail, sent.in_rail) {
                // The rail still has it: its release ends the order itself.
                (Some(payload), Some(entry), _) => entry.order = payload.order,
                (Some(payload), None, _) => self.order_ended(payload.order, Err(Fault::PeerReset)),
                (None, _, Some(slot)) => drop(self.orders.remove(slot)),
                (None, _, None) => {}
            }
        }
        let mut window = reliable.window;
        for incoming in window.take_broken(|_| true) {
            self.incoming_lost(incoming, Fault::PeerReset);
        }
        self.drop_held(id, session, reliable.held);
    }

    /// A link carries the session from now on. Where its frames may be lost, the side that confirmed it does so
    /// until the peer is heard over it, and the other side lets itself be heard. Otherwise one could
    /// wait for ever for a confirmation that was lost while the other has nothing to send.
    pub(crate) fn begin_confirmation(
        &mut self,
        id: PeerId,
        link: LinkId,
        outbound: bool,
        lossy: bool,
    ) {
        let due = self.now + self.config.resend_after;
        let session = self.peers.session_mut(id).filter(|session| session.reliable.is_some());
        let Some(session) = session else { return };
        session.paths.confirmed(link, (outbound && lossy).then_some(due));
        if outbound && lossy {
            self.wake_by(id, due);
        } else if lossy {
            self.acknowledge_now(id);
        }
    }

    fn confirm_again(&mut self, id: PeerId) {
        let (now, after) = (self.now, self.config.resend_after);
        while let Some(session) = self.peers.session_mut(id)
            && let Some((link, alive)) = session.paths.confirm_again(now, after)
        {
            if alive {
                self.emit_on(link, Envelope::default(), &Body::Confirm, None, Token::NONE);
            } else {
                // With the rail's last word the path is lost, and looks for another link.
                self.close_link(link);
            }
        }
    }
}
