//! Confirming a link over which frames may be lost, until the peer is heard over it.

use ropewalk_base::time::Time;
use ropewalk_base::verb::Token;
use ropewalk_wire::frame::{Body, Envelope};

use crate::api::PeerId;
use crate::engine::Core;

/// Confirmations of a link in a row without an answer before it counts as dead.
const CONFIRMATIONS_MAX: u32 = 10;

#[derive(Debug, Default)]
pub(crate) struct Confirmation {
    /// When the link's confirmation goes again, since nothing was heard over the link yet.
    again_at: Option<Time>,
    sent: u32,
}

impl Confirmation {
    pub fn again_at(&self) -> Option<Time> {
        self.again_at
    }

    /// The peer was heard over the link.
    pub fn end(&mut self) {
        self.again_at = None;
    }
}

impl Core {
    /// A link carries the session from now on. Where its frames may be lost, the side that confirmed it does so
    /// until the peer is heard over it, and the other side lets itself be heard. Otherwise one could
    /// wait for ever for a confirmation that was lost while the other has nothing to send.
    pub(crate) fn begin_confirmation(&mut self, id: PeerId, outbound: bool, lossy: bool) {
        let due = self.now + self.config.resend_after;
        let Some(reliable) = self.reliable_mut(id) else { return };
        let again_at = (outbound && lossy).then_some(due);
        reliable.confirmation = Confirmation { again_at, sent: 1 };
        if outbound && lossy {
            self.wake_by(id, due);
        } else if lossy {
            self.acknowledge_now(id);
        }
    }

    pub(super) fn confirm_again(&mut self, id: PeerId) {
        let (now, after) = (self.now, self.config.resend_after);
        let Some(peer) = self.peers.get_mut(id) else { return };
        let Some(link) = peer.link() else { return };
        let Some(reliable) = peer.session.reliable.as_mut() else { return };
        let confirmation = &mut reliable.confirmation;
        if confirmation.sent >= CONFIRMATIONS_MAX {
            // The rail's last word suspends the session, which then looks for another link.
            confirmation.end();
            return self.close_link(link);
        }
        confirmation.again_at = Some(now + after * (1 << confirmation.sent.min(4)));
        confirmation.sent += 1;
        self.emit_on(link, Envelope::default(), &Body::Confirm, None, Token::NONE);
    }
}
