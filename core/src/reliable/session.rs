//! A session with spans: its timers, a new link, its end.

use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::LinkId;

use super::Reliable;
use crate::api::{LOOP_LINK, PeerId};
use crate::engine::Core;
use crate::orders::{Order, Payload};
use crate::session::Session;

/// How much later a span goes again over a link that loses nothing.
const LOSSLESS_LATER: u32 = 40;
/// How long a session that lost its links may still get what it owes.
const AWAITED_LOST: Duration = Duration::from_secs(1);

impl Core {
    /// The spans of the session with a peer, where it has such.
    pub(crate) fn reliable_mut(&mut self, id: PeerId) -> Option<&mut Reliable> {
        self.peers.session_mut(id)?.reliable.as_deref_mut()
    }

    pub(crate) fn run_span_timers(&mut self, id: PeerId) {
        let now = self.now;
        self.judge_paths(id);
        let link = self.peer_link(id);
        let after = self.resend_after(link);
        let Some(reliable) = self.reliable_mut(id) else { return };
        let acknowledge = reliable.window.acknowledge_at().is_some_and(|at| at <= now);
        let due = link.map(|link| reliable.sent.due(link, now, after)).unwrap_or_default();
        self.confirm_again(id);
        if acknowledge {
            self.acknowledge_now(id);
        }
        for span in due {
            self.note_sent_again(id, span);
            self.transmit(id, span);
        }
    }

    /// Whether a peer has not acknowledged all spans that were sent to it, and may do so soon: it is given a second where
    /// its session has lost its links.
    pub fn owes(&self) -> bool {
        let owes = |session: &Session| {
            let spans = session.reliable.as_ref().is_some_and(|it| it.sent.are_awaited());
            let lost = session.paths.lost_since().map(|since| self.now.since(since));
            spans && lost.is_none_or(|lost| lost < AWAITED_LOST)
        };
        self.peers.iter().any(|(_, peer)| peer.session.as_ref().is_some_and(owes))
    }

    /// After which time without an acknowledgement a span goes again over the same link. Where the link loses nothing, only
    /// its receiver can have dropped it, for want of room; what a broken path swallows goes over another.
    pub(super) fn resend_after(&self, link: Option<LinkId>) -> Duration {
        let is_lossy = link.is_none_or(|link| self.is_lossy(link));
        self.config.resend_after * if is_lossy { 1 } else { LOSSLESS_LATER }
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

    /// A path has lost this link: what went over it goes over the others. Returns the bytes of that.
    pub(crate) fn redirect_spans(&mut self, id: PeerId, lost: LinkId) -> u64 {
        let bytes = self.lose_copies(id, lost);
        self.acknowledge_now(id);
        bytes
    }

    /// The session is over: what its spans held is let go.
    pub(crate) fn drop_spans(&mut self, id: PeerId, session: u32, mut reliable: Reliable) {
        while let Some(ended) = reliable.sent.next_ended() {
            self.acknowledged(id, ended);
        }
        for sent in reliable.sent.into_spans() {
            let held: Vec<SlotId> = sent.held().collect();
            self.drop_sent(sent.payload, &held);
        }
        let mut window = reliable.window;
        for copy in window.take_copies() {
            self.drop_copy(copy);
        }
        for incoming in window.take_broken(|_| true) {
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
            [first, ..] => {
                let link = self.orders.get(*first).map_or(LOOP_LINK, |entry| entry.link);
                self.orders.insert(order, link).map_or(order, |with| Order::Shared { with })
            }
        };
        for slot in held {
            if let Some(entry) = self.orders.get_mut(*slot) {
                entry.order = order;
            }
        }
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
                self.emit_confirmation(link, id);
            } else {
                // With the rail's last word the path is lost, and looks for another link.
                self.close_link(link);
            }
        }
    }
}
