//! Spans: what makes a session survive loss, duplication, reordering and the loss of its link.
//!
//! Every frame with an effect is a span with a number of its own; it is kept until acknowledged and
//! sent again until it is. The receiver knows each span as free, being placed, or placed, and lets a
//! span take effect once. Messages carry numbers beside, by which those that overtook
//! others are held until their turn.
//!
//! Used in mode `Resume`, and over rails that lose or reorder. Invariant: a span is placed once, and
//! only when all its bytes were verified.
//!
//! Files: `sent` (spans until they are acknowledged), `copies` (of them, by link) and `sending`, `window` (spans that
//! arrive) and `receiving`, `taking_over` (copies of spans that are being placed), `redundant` (spans that go over two
//! paths at once), `held` (messages whose turn has not come)
//! and `holding`, `striping` (over
//! which link a span goes), `suspecting` (paths that deliver nothing), and `session` (its timers and its end).

mod copies;
mod grading;
mod held;
mod holding;
mod receiving;
mod redundant;
mod sending;
mod sent;
mod session;
mod striping;
mod suspecting;
mod taking_over;
#[cfg(test)]
mod tests;
mod window;

use ropewalk_base::time::Time;
use ropewalk_base::verb::LinkId;

pub(crate) use self::redundant::RedundantChannels;

use self::held::HeldMessages;
use self::sent::SentSpans;
use self::window::Window;

/// An eager message of up to so many bytes, with the memory of which its sender goes on at once: it is copied behind its
/// sending. A longer one is acknowledged at once.
pub(crate) const KEPT_BYTES_MAX: u32 = 32 << 10;

/// The spans of one session, both directions.
#[derive(Debug)]
pub(crate) struct Reliable {
    pub sent: SentSpans,
    pub window: Window,
    pub held: HeldMessages,
    /// The newest span that its sender waits for: it is acknowledged as soon as it is here.
    pub awaited: u64,
    /// The newest span that told of credit.
    credit: u64,
    /// The link that the newest span came over.
    pub heard_over: Option<LinkId>,
    /// Another one, over which a span came since the last acknowledgement.
    pub heard_before: Option<LinkId>,
    /// The peer sends spans over two paths at once: what they need to go on goes so, too.
    pub answers_redundantly: bool,
}

impl Reliable {
    pub fn new() -> Reliable {
        let (sent, window, held) = (SentSpans::new(), Window::new(), HeldMessages::default());
        Reliable {
            sent,
            window,
            held,
            awaited: 0,
            credit: 0,
            heard_over: None,
            heard_before: None,
            answers_redundantly: false,
        }
    }

    /// A span came over this link.
    pub fn hear(&mut self, link: LinkId) {
        if self.heard_over != Some(link) {
            self.heard_before = self.heard_over.replace(link);
        }
    }

    /// Whether the peer was heard over a link since the last acknowledgement.
    pub fn is_heard_over(&self, link: LinkId) -> bool {
        self.heard_over == Some(link) || self.heard_before == Some(link)
    }

    /// A span tells of credit. False: a newer one has.
    pub fn hear_credit(&mut self, span: u64) -> bool {
        let is_newest = span > self.credit;
        self.credit = self.credit.max(span);
        is_newest
    }

    /// A number that grows with each span that goes or comes.
    pub fn traffic(&self) -> u64 {
        self.sent.next_number().wrapping_add(self.window.cumulative())
    }

    /// Whether all that was sent is acknowledged, and all that came has been told of and has had its turn.
    pub fn is_quiet(&self) -> bool {
        !self.sent.are_awaited() && self.window.acknowledge_at().is_none() && self.held.len() == 0
    }

    /// When something is due: an acknowledgement, or a span that goes again.
    pub fn deadline(&self) -> Option<Time> {
        let due = [self.window.acknowledge_at(), self.sent.resend_at()];
        due.into_iter().flatten().min()
    }
}
