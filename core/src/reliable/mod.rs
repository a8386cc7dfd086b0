//! Spans: what makes a session survive loss, duplication, reordering and the loss of its link.
//!
//! Every frame with an effect is a span with a number of its own; it is kept until acknowledged and
//! sent again until it is. The receiver knows each span as free, being placed, or placed, and lets a
//! span take effect once (DESIGN 3.6). Messages carry numbers beside, by which those that overtook
//! others are held until their turn.
//!
//! Used in mode `Resume`, and over rails that lose or reorder. Invariant: a span is placed once, and
//! only when all its bytes were verified.
//!
//! Files: `sent` (spans until they are acknowledged) and `sending`, `window` (spans that arrive) and `receiving`, `held`
//! (messages whose turn has not come), `confirmation` (of a link).

mod confirmation;
mod held;
mod receiving;
mod sending;
mod sent;
mod window;

use ropewalk_base::error::Fault;
use ropewalk_base::time::Time;

use self::confirmation::Confirmation;
use self::held::HeldMessages;
use self::sent::SentSpans;
use self::window::Window;
use crate::api::PeerId;
use crate::engine::Core;

/// The spans of one session, both directions.
#[derive(Debug)]
pub(crate) struct Reliable {
    pub sent: SentSpans,
    pub window: Window,
    pub held: HeldMessages,
    pub confirmation: Confirmation,
    /// When a lost link is tried again.
    pub retry_at: Time,
}

impl Reliable {
    pub fn new() -> Reliable {
        Reliable {
            sent: SentSpans::new(),
            window: Window::new(),
            held: HeldMessages::default(),
            confirmation: Confirmation::default(),
            retry_at: Time::ZERO,
        }
    }

    /// When something is due: an acknowledgement, a span that goes again, or a confirmation.
    pub fn deadline(&self) -> Option<Time> {
        let due =
            [self.window.acknowledge_at(), self.sent.resend_at(), self.confirmation.again_at()];
        due.into_iter().flatten().min()
    }
}

impl Core {
    /// The spans of the session with a peer, where it has such.
    pub(crate) fn reliable_mut(&mut self, id: PeerId) -> Option<&mut Reliable> {
        self.peers.get_mut(id)?.session.reliable.as_deref_mut()
    }

    pub(crate) fn run_span_timers(&mut self, id: PeerId) {
        let (now, after) = (self.now, self.config.resend_after);
        let Some(reliable) = self.reliable_mut(id) else { return };
        let confirm = reliable.confirmation.again_at().is_some_and(|at| at <= now);
        let acknowledge = reliable.window.acknowledge_at().is_some_and(|at| at <= now);
        let due = reliable.sent.due(now, after);
        if confirm {
            self.confirm_again(id);
        }
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
                (Some(payload), Some(order), _) => *order = payload.order,
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
}
